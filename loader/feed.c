/* SPDX-License-Identifier: Apache-2.0 */
/*
 * feed.c - the reads of batches, from one dataset or from several.
 *
 * A batch of one dataset is one fetch, on one queue, which the fetch thread drives itself. A batch of a mix is a fetch for each dataset that
 * has samples in it: each dataset has a queue and a lane, a thread that drives it, so that a slow one keeps no other from reading.
 *
 *     feed_start --> inbox of each lane --> its queue --> done --> feed_next: a batch whose last part has come
 *
 * A lane sleeps in its queue while reads are in flight, else on `work`; who puts something into its inbox wakes it where it sleeps. All is in
 * lists through the parts themselves: nothing is allocated on the way.
 *
 * Threads: open, start, next and close are the fetch thread's; feed_cancel any's. The lock guards inboxes, done and what says who sleeps.
 * Plans and what came of them are read by workers between next and the batch's next plan.
 */
#include <signal.h>

#include "loader/feed.h"

/* One dataset's share of a batch. */
struct feed_part {
    struct tiers_fetch *fetch;
    struct feed_batch *batch;
    size_t n, offset, bytes;      /* samples; its piece of the batch's memory */
    uint8_t *memory;
    int rc;
    struct larder_error error;
    struct feed_part *next;       /* in an inbox, or done */
};

struct place { uint32_t source, index; };

struct feed_batch {
    struct feed *feed;
    struct feed_part *part;       /* [feed->n] */
    struct place *place;          /* [n], of a mix: sample i is which of which part */
    size_t cap_place, n;
    uint32_t pending;             /* parts under way */
    void *tag;
};

struct part_list { struct feed_part *head, **tail; };

struct lane {
    struct feed *feed;
    struct tiers_queue *queue;
    pthread_t thread;
    pthread_cond_t work;
    struct part_list inbox;
    unsigned in_flight;           /* its thread's */
    bool running, in_queue;       /* in_queue: it may sleep there */
};

struct feed {
    struct tiers *const *tiers;   /* [n], borrowed, as the two below */
    struct store *const *stores;
    uint32_t n;
    struct lane *lane;            /* [n]; of one dataset only the queue is used */
    size_t under_way;             /* batches; the fetch thread's */
    uint64_t *ordinals;           /* of a part that is planned; the fetch thread's */
    size_t cap_ordinals;

    pthread_mutex_t lock;         /* guards all below, and inbox and in_queue of lanes */
    pthread_cond_t ready;
    struct part_list done;
    atomic_bool stop;
    bool waiting, woken;
    int broken;                   /* a queue itself failed */
    struct larder_error why;
};

static void list_init(struct part_list *l) { *l = (struct part_list){NULL, &l->head}; }

static void list_push(struct part_list *l, struct feed_part *p)
{
    p->next = NULL;
    *l->tail = p;
    l->tail = &p->next;
}

static struct feed_part *list_pop(struct part_list *l)
{
    struct feed_part *p = l->head;

    if (p && !(l->head = p->next))
        l->tail = &l->head;
    return p;
}

/* ---- batches ---- */

int feed_batch_new(struct feed *f, struct feed_batch **out, struct larder_error *err)
{
    struct feed_batch *b = calloc(1, sizeof(*b));
    int rc = LARDER_OK;

    *out = NULL;
    if (b)
        b->part = calloc(f->n, sizeof(*b->part));
    if (!b || !b->part) {
        free(b);
        return err_nomem(err, sizeof(*b) + f->n * sizeof(*b->part), "batch");
    }
    b->feed = f;
    for (uint32_t i = 0; !rc && i < f->n; i++) {
        b->part[i].batch = b;
        rc = tiers_fetch_new(f->tiers[i], &b->part[i].fetch, err);
    }
    if (rc) {
        feed_batch_free(b);
        return rc;
    }
    *out = b;
    return LARDER_OK;
}

void feed_batch_free(struct feed_batch *b)
{
    if (!b)
        return;
    for (uint32_t i = 0; i < b->feed->n; i++)
        tiers_fetch_free(b->part[i].fetch);
    feed_batch_abandon(b);
}

void feed_batch_abandon(struct feed_batch *b)
{
    free(b->part);
    free(b->place);
    free(b);
}

void feed_batch_limit(struct feed_batch *b, uint64_t over_read_max)
{
    for (uint32_t i = 0; i < b->feed->n; i++)
        tiers_fetch_limit(b->part[i].fetch, over_read_max / b->feed->n);
}

struct tiers_fetch *feed_batch_only(struct feed_batch *b) { return b->feed->n == 1 ? b->part[0].fetch : NULL; }

/* The ordinals of a source's samples, in feed->ordinals. */
static size_t gather(const struct feed_batch *b, uint32_t source, const uint64_t *ordinals)
{
    size_t n = 0;

    for (size_t i = 0; i < b->n; i++)
        if (b->place[i].source == source) {
            b->place[i].index = (uint32_t)n;
            b->feed->ordinals[n++] = ordinals[i];
        }
    return n;
}

static int plan_mix(struct feed_batch *b, const uint64_t *ordinals, const uint32_t *sources, size_t *bytes, struct larder_error *err)
{
    struct feed *f = b->feed;
    int rc = GROW(b->place, b->cap_place, b->n + 1, err);

    if (!rc)
        rc = GROW(f->ordinals, f->cap_ordinals, b->n + 1, err);
    if (rc)
        return rc;
    for (uint32_t k = 0; k < f->n; k++)
        b->part[k].n = 0;
    for (size_t i = 0; i < b->n; i++) {
        b->place[i].source = sources[i];
        b->part[sources[i]].n++;
    }
    *bytes = 0;
    for (uint32_t k = 0; !rc && k < f->n; k++) {
        struct feed_part *p = &b->part[k];
        if (p->n == 0)
            continue;
        gather(b, k, ordinals);
        p->offset = *bytes;
        rc = tiers_fetch_plan(p->fetch, f->ordinals, p->n, &p->bytes, err);
        if (rc)
            return err_prefix(err, rc, "source %u", k);
        *bytes += round_up(p->bytes, STORE_PAGE);
    }
    return rc;
}

int feed_batch_plan(struct feed_batch *b, const uint64_t *ordinals, const uint32_t *sources, size_t n, size_t *bytes, struct larder_error *err)
{
    b->n = n;
    if (b->feed->n > 1)
        return plan_mix(b, ordinals, sources, bytes, err);
    b->part[0].n = n;
    b->part[0].offset = 0;
    return tiers_fetch_plan(b->part[0].fetch, ordinals, n, bytes, err);
}

/* ---- what has come ---- */

/* Sample i is which of which part. */
static struct place where(const struct feed_batch *b, size_t i) { return b->feed->n > 1 ? b->place[i] : (struct place){0, (uint32_t)i}; }

uint32_t feed_batch_source(const struct feed_batch *b, size_t i) { return where(b, i).source; }

const struct extent *feed_batch_extent(const struct feed_batch *b, size_t i)
{
    struct place p = where(b, i);

    return tiers_fetch_extent(b->part[p.source].fetch, p.index);
}

int feed_batch_decode(const struct feed_batch *b, size_t i, struct decoder *d, void *scratch, struct larder_value *values,
                      struct larder_error *err)
{
    struct place p = where(b, i);
    const struct tiers_fetch *f = b->part[p.source].fetch;
    const void *const *views = tiers_fetch_views(f);
    struct store *s = b->feed->stores[p.source];
    int rc;

    if (views && store_decode_views(s, tiers_fetch_extents(f) + p.index, views + p.index, 1, values))
        return LARDER_OK;
    rc = store_decode(s, d, tiers_fetch_extent(f, p.index), tiers_fetch_record(f, p.index), scratch, values, err);
    return rc && b->feed->n > 1 ? err_prefix(err, rc, "source %u", p.source) : rc;
}

size_t feed_batch_views(const struct feed_batch *b, size_t i, size_t n, struct larder_value *values)
{
    const struct tiers_fetch *f = b->part[0].fetch;
    const void *const *views = b->feed->n == 1 ? tiers_fetch_views(f) : NULL;

    return views ? store_decode_views(b->feed->stores[0], tiers_fetch_extents(f) + i, views + i, n, values) : 0;
}

static void tier_add(struct larder_tier_stats *to, const struct larder_tier_stats *s)
{
    to->hits += s->hits;
    to->misses += s->misses;
    to->bytes += s->bytes;
    to->requests += s->requests;
}

struct tiers_counts feed_batch_counts(const struct feed_batch *b)
{
    struct tiers_counts all = {.dram = {0}};

    for (uint32_t i = 0; i < b->feed->n; i++) {
        if (b->part[i].n == 0)
            continue;
        struct tiers_counts c = tiers_fetch_counts(b->part[i].fetch);
        tier_add(&all.dram, &c.dram);
        tier_add(&all.nvme, &c.nvme);
        tier_add(&all.origin, &c.origin);
    }
    return all;
}

/* ---- a lane ---- */

/* With the lock held. */
static void give(struct feed *f, struct feed_part *p)
{
    list_push(&f->done, p);
    if (f->waiting)
        pthread_cond_signal(&f->ready);
}

/* Takes what its queue has done; waits for something if told to. False: the queue is of no use any more. */
static bool lane_reap(struct lane *l, bool wait)
{
    struct feed *f = l->feed;
    struct larder_error e = {0};

    for (; l->in_flight; wait = false) {
        struct tiers_fetch *fetch;
        void *tag;
        int rc = tiers_queue_next(l->queue, wait, &fetch, &tag, &e);
        struct feed_part *p = tag;
        if (rc == LARDER_END)
            return true;
        pthread_mutex_lock(&f->lock);
        if (p) {
            l->in_flight--;
            p->rc = rc;
            p->error = e;
            give(f, p);
        } else {
            f->broken = rc;
            f->why = e;
            pthread_cond_signal(&f->ready);
        }
        pthread_mutex_unlock(&f->lock);
        if (!p)
            return false;
    }
    return true;
}

static void lane_start(struct lane *l, struct part_list *parts)
{
    struct feed_part *p;

    while ((p = list_pop(parts))) {
        p->rc = tiers_fetch_start(l->queue, p->fetch, p->memory, p, &p->error);
        if (!p->rc) {
            l->in_flight++;
            continue;
        }
        pthread_mutex_lock(&l->feed->lock);
        give(l->feed, p);
        pthread_mutex_unlock(&l->feed->lock);
    }
}

static void *lane_main(void *arg)
{
    struct lane *l = arg;
    struct feed *f = l->feed;
    bool well = true;

    pthread_mutex_lock(&f->lock);
    while (well && !atomic_load(&f->stop)) {
        struct part_list parts;
        struct feed_part *p;
        if (!l->inbox.head && !l->in_flight) {
            pthread_cond_wait(&l->work, &f->lock);
            continue;
        }
        list_init(&parts);
        while ((p = list_pop(&l->inbox)))
            list_push(&parts, p);
        bool wait = l->in_queue = !parts.head;
        pthread_mutex_unlock(&f->lock);
        lane_start(l, &parts);
        well = lane_reap(l, wait);
        pthread_mutex_lock(&f->lock);
        l->in_queue = false;
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

/* The thread takes no signals: they are the application's. */
static int lane_open(struct lane *l, struct larder_error *err)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&l->thread, NULL, lane_main, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_sys(err, LARDER_ENOMEM, rc, "loader: cannot start the thread larder-lane");
    pthread_setname_np(l->thread, "larder-lane");
    l->running = true;
    return LARDER_OK;
}

/* ---- the feed ---- */

int feed_new(struct tiers *const *tiers, struct store *const *stores, uint32_t n, struct feed **out, struct larder_error *err)
{
    struct feed *f = calloc(1, sizeof(*f));

    *out = NULL;
    if (f)
        f->lane = calloc(n, sizeof(*f->lane));
    if (!f || !f->lane) {
        free(f);
        return err_nomem(err, n * sizeof(*f->lane), "queues of reads");
    }
    f->tiers = tiers;
    f->stores = stores;
    f->n = n;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->ready, NULL);
    list_init(&f->done);
    for (uint32_t i = 0; i < n; i++) {
        f->lane[i].feed = f;
        pthread_cond_init(&f->lane[i].work, NULL);
        list_init(&f->lane[i].inbox);
    }
    *out = f;
    return LARDER_OK;
}

int feed_open(struct feed *f, unsigned depth, struct larder_error *err)
{
    int rc = LARDER_OK;

    atomic_store(&f->stop, false);
    f->broken = 0;
    f->under_way = 0;
    list_init(&f->done);
    for (uint32_t i = 0; !rc && i < f->n; i++) {
        struct tiers_queue *q = NULL;
        list_init(&f->lane[i].inbox);
        f->lane[i].in_flight = 0;
        rc = tiers_queue_open(f->tiers[i], depth, &q, err);
        pthread_mutex_lock(&f->lock); /* feed_cancel looks */
        f->lane[i].queue = q;
        pthread_mutex_unlock(&f->lock);
        if (!rc && f->n > 1)
            rc = lane_open(&f->lane[i], err);
    }
    return rc;
}

void feed_cancel(struct feed *f)
{
    pthread_mutex_lock(&f->lock);
    atomic_store(&f->stop, true);
    pthread_cond_signal(&f->ready);
    for (uint32_t i = 0; i < f->n; i++) {
        pthread_cond_signal(&f->lane[i].work);
        if (f->lane[i].queue)
            tiers_queue_cancel(f->lane[i].queue);
    }
    pthread_mutex_unlock(&f->lock);
}

void feed_close(struct feed *f)
{
    feed_cancel(f);
    for (uint32_t i = 0; i < f->n; i++) {
        struct lane *l = &f->lane[i];
        if (l->running)
            pthread_join(l->thread, NULL);
        l->running = false;
        tiers_queue_close(l->queue);
        l->queue = NULL;
    }
}

void feed_free(struct feed *f)
{
    if (!f)
        return;
    for (uint32_t i = 0; i < f->n; i++)
        pthread_cond_destroy(&f->lane[i].work);
    pthread_cond_destroy(&f->ready);
    pthread_mutex_destroy(&f->lock);
    feed_abandon(f);
}

void feed_abandon(struct feed *f)
{
    free(f->lane);
    free(f->ordinals);
    free(f);
}

struct tiers_queue *feed_only(struct feed *f) { return f->n == 1 ? f->lane[0].queue : NULL; }

void feed_wake(struct feed *f)
{
    if (f->n == 1) {
        tiers_queue_wake(f->lane[0].queue);
        return;
    }
    pthread_mutex_lock(&f->lock);
    f->woken = true;
    if (f->waiting)
        pthread_cond_signal(&f->ready);
    pthread_mutex_unlock(&f->lock);
}

size_t feed_under_way(const struct feed *f) { return f->under_way; }

static void post(struct feed *f, uint32_t source, struct feed_part *p)
{
    struct lane *l = &f->lane[source];

    pthread_mutex_lock(&f->lock);
    list_push(&l->inbox, p);
    pthread_cond_signal(&l->work);
    if (l->in_queue)
        tiers_queue_wake(l->queue);
    pthread_mutex_unlock(&f->lock);
}

int feed_start(struct feed *f, struct feed_batch *b, void *memory, void *tag, struct larder_error *err)
{
    int rc = LARDER_OK;

    b->tag = tag;
    b->pending = 0;
    if (f->n == 1) {
        rc = tiers_fetch_start(f->lane[0].queue, b->part[0].fetch, memory, &b->part[0], err);
        f->under_way += !rc;
        return rc;
    }
    f->under_way++;
    for (uint32_t i = 0; i < f->n; i++)
        b->pending += b->part[i].n > 0;
    for (uint32_t i = 0; i < f->n; i++) {
        struct feed_part *p = &b->part[i];
        p->rc = LARDER_OK;
        p->memory = (uint8_t *)memory + p->offset;
        if (p->n)
            post(f, i, p);
    }
    if (b->pending == 0) { /* nothing to read: it is done */
        b->pending = 1;
        pthread_mutex_lock(&f->lock);
        give(f, &b->part[0]);
        pthread_mutex_unlock(&f->lock);
    }
    return LARDER_OK;
}

/* A batch whose last part has come, or NULL. With the lock held. */
static struct feed_batch *whole(struct feed *f)
{
    struct feed_part *p;

    while ((p = list_pop(&f->done)))
        if (--p->batch->pending == 0)
            return p->batch;
    return NULL;
}

static int next_of_mix(struct feed *f, bool wait, void **tag, struct larder_error *err)
{
    struct feed_batch *b;
    int rc = LARDER_END;

    pthread_mutex_lock(&f->lock);
    while (!(b = whole(f)) && wait && !f->broken && !f->woken && !atomic_load(&f->stop)) {
        f->waiting = true;
        pthread_cond_wait(&f->ready, &f->lock);
        f->waiting = false;
    }
    f->woken &= !wait;
    if (b)
        rc = LARDER_OK;
    else if ((rc = f->broken) && err)
        *err = f->why;
    pthread_mutex_unlock(&f->lock);
    if (!b)
        return rc ? rc : LARDER_END;
    f->under_way--;
    *tag = b->tag;
    for (uint32_t i = 0; i < f->n; i++) /* the first source's error, whichever was faster */
        if (b->part[i].n && b->part[i].rc) {
            if (err)
                *err = b->part[i].error;
            return err_prefix(err, b->part[i].rc, "source %u", i);
        }
    return LARDER_OK;
}

int feed_next(struct feed *f, bool wait, void **tag, struct larder_error *err)
{
    struct tiers_fetch *fetch;
    void *part;
    int rc;

    *tag = NULL;
    if (f->under_way == 0)
        return LARDER_END;
    if (f->n > 1)
        return next_of_mix(f, wait, tag, err);
    rc = tiers_queue_next(f->lane[0].queue, wait, &fetch, &part, err);
    if (!part)
        return rc;
    f->under_way--;
    *tag = ((struct feed_part *)part)->batch->tag;
    return rc;
}
