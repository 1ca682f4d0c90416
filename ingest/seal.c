/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seal.c - one thread that finishes shards, so that writing footers and fsync stay off the threads that read.
 *
 * Items are sealed in the order in which they were pushed: the shards of a unit, pushed by one worker, reach the journal in their
 * order. The queue has a bound: who pushes waits. After a failure items are dropped and every push returns that failure.
 *
 * The lock guards all fields below it and is never held while sealing.
 */
#include "ingest/ingest_int.h"

#include <errno.h>
#include <signal.h>

struct sealer {
    sealed_fn *fn;
    void *user;
    unsigned cap;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct seal_item *queue;   /* [cap], a ring */
    unsigned head, n;
    bool closing, dropping;
    int rc;                    /* of the first failure */
    struct larder_error why;
};

static int seal(struct sealer *s, struct seal_item *item, struct larder_error *err)
{
    struct shard_ref ref = {.name = NULL};
    if (!item->w)
        return s->fn(s->user, item, NULL, err);
    int rc = shard_writer_finish(item->w, &ref, err);
    item->w = NULL;
    return rc ? rc : s->fn(s->user, item, &ref, err);
}

static void *sealer_main(void *arg)
{
    struct sealer *s = arg;
    struct larder_error why;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->n && !s->closing)
            pthread_cond_wait(&s->changed, &s->lock);
        if (!s->n)
            break;
        struct seal_item item = s->queue[s->head];
        bool drop = s->rc || s->dropping;
        pthread_mutex_unlock(&s->lock);
        int rc = LARDER_OK;
        why.code = LARDER_OK;
        if (drop)
            shard_writer_abort(item.w);
        else
            rc = seal(s, &item, &why);
        pthread_mutex_lock(&s->lock);
        if (rc && !s->rc) {
            s->rc = rc;
            s->why = why;
        }
        s->head = (s->head + 1) % s->cap; /* only now: an item being sealed counts, so that a bound of k is k shards open */
        s->n--;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void sealer_free(struct sealer *s)
{
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s->queue);
    free(s);
}

int sealer_start(unsigned queue, sealed_fn *fn, void *user, struct sealer **out, struct larder_error *err)
{
    sigset_t all, old;
    *out = NULL;
    struct sealer *s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err, sizeof(*s), "a sealing thread");
    s->fn = fn;
    s->user = user;
    s->cap = MAX(queue, 1u);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->queue = calloc(s->cap, sizeof(*s->queue));
    int e = s->queue ? 0 : ENOMEM;
    if (!e) {
        sigfillset(&all); /* the process's signals are its own threads' business */
        pthread_sigmask(SIG_SETMASK, &all, &old);
        e = pthread_create(&s->thread, NULL, sealer_main, s);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    if (e) {
        sealer_free(s);
        return err_sys(err, LARDER_ENOMEM, e, "cannot start a sealing thread");
    }
    *out = s;
    return LARDER_OK;
}

int sealer_push(struct sealer *s, const struct seal_item *item, struct larder_error *err)
{
    pthread_mutex_lock(&s->lock);
    while (s->n == s->cap && !s->rc)
        pthread_cond_wait(&s->changed, &s->lock);
    int rc = s->rc;
    if (rc && err)
        *err = s->why;
    if (!rc) {
        s->queue[(s->head + s->n) % s->cap] = *item;
        s->n++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    if (rc)
        shard_writer_abort(item->w);
    return rc;
}

static int end(struct sealer *s, bool drop, struct larder_error *err)
{
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    s->dropping = drop;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    int rc = s->rc;
    if (rc && err)
        *err = s->why;
    sealer_free(s);
    return rc;
}

int sealer_finish(struct sealer *s, struct larder_error *err) { return s ? end(s, false, err) : LARDER_OK; }

void sealer_abort(struct sealer *s)
{
    if (s)
        end(s, true, NULL);
}
