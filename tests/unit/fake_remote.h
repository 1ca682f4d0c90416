/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_remote.h - stands in for remote.c in the tests of what reads through it: objects are files of a directory, one thread answers in
 * an order drawn from a seed, and a hook may change each answer.
 *
 * It defines every function of remote.h that the stack calls, so remote.o is not linked. A store over a plain directory may have such a
 * remote as the origin of its records.
 */
#ifndef FAKE_REMOTE_H
#define FAKE_REMOTE_H

#include <fcntl.h>
#include <pthread.h>

#include "tests/unit/test.h"
#include "tiers/remote.h"

#define FAKE_QUEUE 8192

/* May change what an answer is: q is filled in as a server without faults would. nth: of all answers, from 0. */
typedef void fake_hook(void *user, struct remote_request *q, unsigned nth);

struct remote {
    const char *dir;
    struct larder_remote_options o;
    fake_hook *hook;
    void *user;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    struct remote_request *waiting[FAKE_QUEUE];
    _Atomic unsigned n, answers, in_flight_max;
    bool stop, hold; /* hold: answers nothing but cancellations */
    uint64_t seed;
    _Atomic unsigned damaged, demand, stream, canceled;
    _Atomic uint64_t used, bytes, budget; /* budget: of remote_damaged */
};

static void fake_read(struct remote *r, struct remote_request *q)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", r->dir, q->name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    q->rc = LARDER_OK;
    q->tries = 1;
    if (fd < 0 || fstat(fd, &st) != 0) {
        q->rc = err_set(&q->error, LARDER_ENOTFOUND, "%s: 404", q->name);
        q->status = 404;
    } else if (pread(fd, q->buf, q->len, (off_t)q->offset) != (ssize_t)q->len) {
        q->rc = err_set(&q->error, LARDER_ECORRUPT, "%s: too short", q->name);
    } else {
        q->status = 206;
        q->object_size = (uint64_t)st.st_size;
        snprintf(q->etag, sizeof(q->etag), "\"%llx\"", (unsigned long long)st.st_ino);
        if (q->if_match && strcmp(q->if_match, q->etag) != 0)
            q->rc = err_set(&q->error, LARDER_EBUSY, "%s was replaced while it was read", q->name);
    }
    if (fd >= 0)
        close(fd);
}

/* A request that takes its bytes as they come gets them in pieces, some more than once, as tries that are repeated do. */
static void fake_answer(struct remote *r, struct remote_request *q, unsigned nth)
{
    uint64_t seed = r->seed + nth;
    AUTO_FREE uint8_t *bytes = q->sink ? malloc(q->len + 1) : NULL;
    if (q->sink)
        q->buf = bytes;
    fake_read(r, q);
    int rc = q->rc;
    if (r->hook)
        r->hook(r->user, q, nth);
    for (unsigned tries = rc || !q->sink ? 0 : 1 + (unsigned)rng_below(&seed, 2); tries > 0; tries--) {
        bool last = tries == 1 && q->rc == LARDER_OK; /* one that failed broke off somewhere */
        size_t end = last ? q->len : (size_t)rng_below(&seed, q->len);
        for (size_t at = 0, part; at < end; at += part) {
            part = MIN((size_t)rng_below(&seed, 16 * KIB) + 1, end - at);
            rc = q->rc;
            q->rc = LARDER_OK;
            q->sink(q, at, bytes + at, part);
            q->rc = rc;
        }
    }
    if (q->sink)
        q->buf = NULL;
}

static void *fake_main(void *arg)
{
    struct remote *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop || r->n) {
        unsigned pick = r->n;
        for (unsigned i = 0; i < r->n; i++) /* what was cancelled goes first */
            if (r->waiting[i]->rc == LARDER_ECANCELED)
                pick = i;
        if (pick == r->n && r->n && !r->hold)
            pick = (unsigned)rng_below(&r->seed, r->n);
        if (pick == r->n) {
            pthread_cond_wait(&r->change, &r->lock);
            continue;
        }
        struct remote_request *q = r->waiting[pick];
        r->waiting[pick] = r->waiting[--r->n];
        unsigned nth = r->answers++;
        bool canceled = q->rc == LARDER_ECANCELED;
        pthread_mutex_unlock(&r->lock);
        if (canceled) {
            err_set(&q->error, LARDER_ECANCELED, "cancelled");
        } else {
            fake_answer(r, q, nth);
        }
        pthread_mutex_lock(&r->lock);
        r->canceled += canceled;
        r->bytes += canceled ? 0 : q->len;
        if (q->priority == REMOTE_STREAM)
            r->stream += !canceled;
        else
            r->demand += !canceled;
        pthread_mutex_unlock(&r->lock);
        q->done(q);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

TEST_UNUSED static struct remote *fake_start(const char *dir, uint64_t seed)
{
    struct remote *r = calloc(1, sizeof(*r));
    r->dir = dir;
    r->seed = seed;
    r->budget = UINT64_MAX;
    r->o = (struct larder_remote_options)LARDER_REMOTE_OPTIONS_INIT;
    r->o.gap_bytes = 256 * KIB;
    r->o.get_bytes = 8 * MIB;
    r->o.requests_max = 64;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->change, NULL);
    if (pthread_create(&r->thread, NULL, fake_main, r) != 0)
        abort();
    return r;
}

TEST_UNUSED static void fake_stop(struct remote *r)
{
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->change);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->change);
    free(r);
}

TEST_UNUSED static void fake_hold(struct remote *r, bool hold)
{
    pthread_mutex_lock(&r->lock);
    r->hold = hold;
    pthread_cond_broadcast(&r->change);
    pthread_mutex_unlock(&r->lock);
}

/* ---- remote.h ---- */

const char *remote_uri(const struct remote *r) { (void)r; return "s3://fake/set"; }
const struct larder_remote_options *remote_options(const struct remote *r) { return &r->o; }

void remote_start(struct remote *r, struct remote_request *q)
{
    q->remote = r;
    q->rc = LARDER_OK;
    q->object_size = UINT64_MAX;
    pthread_mutex_lock(&r->lock);
    if (r->n == FAKE_QUEUE)
        abort();
    r->waiting[r->n++] = q;
    if (r->n > r->in_flight_max)
        r->in_flight_max = r->n;
    pthread_cond_broadcast(&r->change);
    pthread_mutex_unlock(&r->lock);
}

void remote_cancel(struct remote *r, struct remote_request *q)
{
    pthread_mutex_lock(&r->lock);
    for (unsigned i = 0; i < r->n; i++)
        if (r->waiting[i] == q)
            q->rc = LARDER_ECANCELED;
    pthread_cond_broadcast(&r->change);
    pthread_mutex_unlock(&r->lock);
}

bool remote_damaged(struct remote *r)
{
    pthread_mutex_lock(&r->lock);
    bool more = r->damaged++ < r->budget;
    pthread_mutex_unlock(&r->lock);
    return more;
}

void remote_used(struct remote *r, uint64_t bytes)
{
    pthread_mutex_lock(&r->lock);
    r->used += bytes;
    pthread_mutex_unlock(&r->lock);
}

void remote_state(const struct remote *r, char out[160])
{
    (void)r;
    snprintf(out, 160, "3 GETs in flight, 2 retries (503), 0 B/s for 1 s");
}

#endif
