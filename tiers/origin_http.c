/* SPDX-License-Identifier: Apache-2.0 */
/*
 * origin_http.c - the shards of a dataset in a bucket or on a web server: an engine whose reads are ranged GETs.
 *
 * A GET lands where its read wants it. remote.c does the rest of one request: connections, retries, deadlines. What is left here
 * is which object it is: the first answer for a shard shows its ETag, which all later GETs of it demand (If-Match), in all queues
 * of the stack; and its size, which must be the manifest's. So a shard that was replaced is an error and never mixes with what
 * was read before. An object without ETag is held to its size, and to the CRC of each record.
 *
 * Reads that are added before the engine is flushed, and lie near each other, travel in one GET, over fetches: it lands in a buffer of the
 * engine and is copied to where each wants it. What lies between goes nowhere. A read alone lands where it is wanted.
 *
 *     add --> pending --flush--> GETs (the oldest reads first) --done--> finished (lock) --reap--> ready --> queue
 *                                                              eventfd: it is not empty, or somebody woke the engine
 *
 * Invariants:
 *   1. A get is in the free list, with the remote, or in finished. `done` touches neither get nor engine once the lock is free, since
 *      the queue may have closed the engine by then.
 *   2. etags[shard] is written once, by a swap from NULL, and lives until the origin is closed.
 *   3. Buffers of the engine are of JOINED_MAX bytes at most, one a get, and stay for the next.
 *
 * Threads: an engine is its queue's, one at a time, but for wake (any) and done (a loop's). The table of ETags: any, no lock.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tiers/remote.h"
#include "tiers/tiers_int.h"

#define JOINED_MAX MIB /* of a GET for several reads */

struct origin_http {
    struct remote *remote;
    const struct shard_ref *shards;
    size_t n_shards;
    _Atomic(char *) *etags; /* NULL: not seen yet; "" has none */
};

struct get {
    struct remote_request q;
    char name[ORIGIN_NAME];
    struct read_op *ops;  /* ascending by offset */
    uint8_t *buffer;      /* of several */
    size_t cap;
    struct http_engine *engine;
    struct get *next;
    bool out;             /* with the remote, or finished and not reaped */
};

/* Reads [first, first + n) of the pending ones, in one GET of [begin, end). */
struct group { size_t first, n; uint64_t begin, end, order; };

struct http_engine {
    struct engine engine;
    struct origin_http *origin;
    struct get *gets, *unused;
    unsigned n, n_unused;
    uint64_t gap, order;
    struct read_op **pending; /* added, not sent; sorted but for the newest */
    struct group *groups;
    size_t n_pending, depth;
    bool added;               /* since it was sorted */
    struct read_op *ready, **last_ready;
    int event;            /* eventfd */
    pthread_mutex_t lock; /* guards finished, last */
    struct get *finished, **last;
};

/* ---- which object it is ---- */

void origin_http_prepare(struct origin_http *o, uint32_t shard, uint64_t offset, void *buf, size_t len, char *name,
                         struct remote_request *q)
{
    const char *etag = atomic_load_explicit(&o->etags[shard], memory_order_acquire);
    snprintf(name, ORIGIN_NAME, "shards/%s", o->shards[shard].name);
    q->method = HTTP_GET;
    q->name = name;
    q->ranged = true;
    q->offset = offset;
    q->len = len;
    q->buf = buf;
    q->if_match = etag && *etag ? etag : NULL;
}

static int replaced(const struct origin_http *o, uint32_t shard, struct larder_error *err)
{
    return err_set(err, LARDER_EBUSY, "%s/shards/%s was replaced while it was read: open the dataset again", remote_uri(o->remote),
                   o->shards[shard].name);
}

/* Notes or compares the ETag of an answer. */
static int check_etag(struct origin_http *o, uint32_t shard, const char *etag, struct larder_error *err)
{
    char *seen = atomic_load_explicit(&o->etags[shard], memory_order_acquire);
    if (seen)
        return strcmp(seen, etag) == 0 ? LARDER_OK : replaced(o, shard, err);
    char *copy = strdup(etag);
    if (!copy)
        return err_nomem(err, strlen(etag) + 1, "an ETag");
    if (atomic_compare_exchange_strong_explicit(&o->etags[shard], &seen, copy, memory_order_acq_rel, memory_order_acquire))
        return LARDER_OK;
    free(copy);
    return strcmp(seen, etag) == 0 ? LARDER_OK : replaced(o, shard, err);
}

int origin_http_check(struct origin_http *o, uint32_t shard, struct remote_request *q)
{
    const struct shard_ref *s = &o->shards[shard];
    if (q->rc)
        return q->rc;
    q->rc = check_etag(o, shard, q->etag, &q->error);
    if (!q->rc && q->object_size != UINT64_MAX && q->object_size != s->size)
        q->rc = err_set(&q->error, LARDER_ECORRUPT, "%s/shards/%s has %llu bytes and the manifest says %llu: it was replaced or cut short; "
                        "'larder verify' lists the damage", remote_uri(o->remote), s->name, (unsigned long long)q->object_size,
                        (unsigned long long)s->size);
    return q->rc;
}

int origin_http_open(struct remote *r, const struct shard_ref *shards, size_t n, struct origin_http **out, struct larder_error *err)
{
    *out = NULL;
    struct origin_http *o = calloc(1, sizeof(*o));
    if (!o || !(o->etags = calloc(MAX(n, (size_t)1), sizeof(*o->etags)))) {
        free(o);
        return err_nomem(err, sizeof(*o) + n * sizeof(*o->etags), "the table of ETags");
    }
    o->remote = r;
    o->shards = shards;
    o->n_shards = n;
    *out = o;
    return LARDER_OK;
}

void origin_http_close(struct origin_http *o)
{
    if (!o)
        return;
    for (size_t i = 0; i < o->n_shards; i++)
        free(atomic_load_explicit(&o->etags[i], memory_order_relaxed));
    free(o->etags);
    free(o);
}

struct remote *origin_http_remote(const struct origin_http *o) { return o->remote; }

/* ---- the engine ---- */

static void done(struct remote_request *q)
{
    struct get *g = q->user;
    struct http_engine *e = g->engine;
    pthread_mutex_lock(&e->lock);
    bool first = !e->finished;
    g->next = NULL;
    *e->last = g;
    e->last = &g->next;
    if (first)
        eventfd_write(e->event, 1);
    pthread_mutex_unlock(&e->lock);
}

static void add(struct engine *engine, struct read_op *op)
{
    struct http_engine *e = (struct http_engine *)engine;
    op->order = e->order++;
    e->pending[e->n_pending++] = op;
    e->added = true;
}

static int by_place(const void *a, const void *b)
{
    const struct read_op *x = *(struct read_op *const *)a, *y = *(struct read_op *const *)b;
    if (x->shard != y->shard)
        return x->shard < y->shard ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static int by_order(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    return x->order < y->order ? -1 : x->order > y->order;
}

/* Cuts the sorted reads into groups. How many; *over_read: whether they fetch much that nobody wants. */
static size_t cut(struct http_engine *e, uint64_t gap, bool *over_read)
{
    size_t n = 0;
    uint64_t wanted = 0, fetched = 0;
    for (size_t i = 0; i < e->n_pending; i++) {
        const struct read_op *op = e->pending[i];
        struct group *g = &e->groups[n ? n - 1 : 0];
        uint64_t end = op->offset + op->len;
        if (n && e->pending[g->first]->shard == op->shard && op->offset <= g->end + gap && MAX(end, g->end) - g->begin <= JOINED_MAX) {
            g->n++;
            g->end = MAX(g->end, end);
            g->order = MIN(g->order, op->order);
        } else {
            e->groups[n++] = (struct group){i, 1, op->offset, end, op->order};
        }
        wanted += op->len;
    }
    for (size_t i = 0; i < n; i++)
        fetched += e->groups[i].end - e->groups[i].begin;
    *over_read = fetched > wanted + MAX(wanted * TIERS_OVER_READ_SHARE, (uint64_t)TIERS_OVER_READ_FREE);
    return n;
}

/* The pending reads in groups: nearer neighbours only where all would cost too much. */
static size_t group(struct http_engine *e)
{
    uint64_t gap = e->gap;
    bool over_read;
    if (e->added)
        qsort(e->pending, e->n_pending, sizeof(*e->pending), by_place);
    e->added = false;
    size_t n = cut(e, gap, &over_read);
    while (over_read && gap) {
        gap /= 2;
        n = cut(e, gap, &over_read);
    }
    return n;
}

/* A buffer for several reads; one that is too small is replaced. */
static bool make_room(struct get *g, size_t len)
{
    if (len <= g->cap)
        return true;
    free(g->buffer);
    g->cap = MIN(round_up(len + len / 4, 64 * KIB), JOINED_MAX);
    g->buffer = malloc(g->cap);
    if (!g->buffer)
        g->cap = 0;
    return g->buffer != NULL;
}

/* Sends one GET for a group, or for its first read where there is no memory. How many reads are under way with it. */
static size_t send_group(struct http_engine *e, const struct group *group)
{
    struct get *g = e->unused;
    struct read_op **ops = e->pending + group->first;
    size_t n = group->n > 1 && make_room(g, group->end - group->begin) ? group->n : 1;
    for (size_t i = 0; i < n; i++)
        ops[i]->next = i + 1 < n ? ops[i + 1] : NULL;
    e->unused = g->next;
    e->n_unused--;
    g->q = (struct remote_request){.priority = REMOTE_DEMAND, .done = done, .user = g};
    g->ops = ops[0];
    g->out = true;
    if (n > 1)
        origin_http_prepare(e->origin, ops[0]->shard, group->begin, g->buffer, group->end - group->begin, g->name, &g->q);
    else
        origin_http_prepare(e->origin, ops[0]->shard, ops[0]->offset, ops[0]->buf, ops[0]->len, g->name, &g->q);
    for (size_t i = 0; i < n; i++)
        ops[i] = NULL;
    remote_start(e->origin->remote, &g->q);
    return n;
}

/* Sends what is pending, as far as there are gets: the groups with the oldest reads. */
static void flush(struct engine *engine)
{
    struct http_engine *e = (struct http_engine *)engine;
    if (!e->n_pending || !e->unused)
        return;
    size_t n = group(e), left = 0;
    if (n > e->n_unused)
        qsort(e->groups, n, sizeof(*e->groups), by_order);
    for (size_t i = 0; i < n && e->unused; i++)
        send_group(e, &e->groups[i]);
    for (size_t i = 0; i < e->n_pending; i++)
        if (e->pending[i])
            e->pending[left++] = e->pending[i];
    e->n_pending = left;
}

static struct get *take(struct http_engine *e)
{
    eventfd_t spent;
    pthread_mutex_lock(&e->lock);
    eventfd_read(e->event, &spent);
    struct get *g = e->finished;
    e->finished = NULL;
    e->last = &e->finished;
    pthread_mutex_unlock(&e->lock);
    return g;
}

static void make_ready(struct http_engine *e, struct read_op *op)
{
    op->next = NULL;
    *e->last_ready = op;
    e->last_ready = &op->next;
}

/* The reads of a GET that is over are ready. */
static void finish(struct http_engine *e, struct get *g)
{
    struct read_op *op = g->ops, *next;
    bool several = op->next != NULL;
    int rc = origin_http_check(e->origin, op->shard, &g->q);
    for (unsigned first = 1; op; op = next, first = 0) {
        next = op->next;
        op->gets = first;
        op->fetched = first && !rc ? g->q.len : 0;
        op->result = rc ? -EIO : (int32_t)op->len;
        if (rc)
            op->error = g->q.error;
        else if (several)
            memcpy(op->buf, g->buffer + (op->offset - g->q.offset), op->len);
        make_ready(e, op);
    }
    g->out = false;
    g->next = e->unused;
    e->unused = g;
    e->n_unused++;
}

static unsigned reap(struct engine *engine, bool wait, struct read_op **ops, unsigned max)
{
    struct http_engine *e = (struct http_engine *)engine;
    unsigned n = 0;
    if (wait)
        flush(engine);
    struct get *g = take(e), *next;
    if (!g && wait && !e->ready) {
        struct pollfd p = {.fd = e->event, .events = POLLIN};
        poll(&p, 1, -1);
        g = take(e);
    }
    for (; g; g = next) {
        next = g->next;
        finish(e, g);
    }
    while (e->ready && n < max) {
        ops[n] = e->ready;
        e->ready = ops[n++]->next;
        if (!e->ready)
            e->last_ready = &e->ready;
    }
    return n;
}

static void register_memory(struct engine *e, void *memory, size_t len) { (void)e, (void)memory, (void)len; }

static int descriptor(struct engine *engine) { return ((struct http_engine *)engine)->event; }

static void wake(struct engine *engine) { eventfd_write(((struct http_engine *)engine)->event, 1); }

static void cancel(struct engine *engine)
{
    struct http_engine *e = (struct http_engine *)engine;
    for (size_t i = 0; i < e->n_pending; i++) {
        struct read_op *op = e->pending[i];
        op->result = -ECANCELED;
        op->gets = 0, op->fetched = 0;
        err_set(&op->error, LARDER_ECANCELED, "the queue was closed");
        make_ready(e, op);
    }
    e->n_pending = 0;
    for (unsigned i = 0; i < e->n; i++)
        if (e->gets[i].out)
            remote_cancel(e->origin->remote, &e->gets[i].q);
}

static void free_engine(struct http_engine *e)
{
    for (unsigned i = 0; e->gets && i < e->n; i++)
        free(e->gets[i].buffer);
    free(e->gets);
    free(e->pending);
    free(e->groups);
    if (e->event >= 0)
        close(e->event);
    free(e);
}

static void close_engine(struct engine *engine, bool forked)
{
    struct http_engine *e = (struct http_engine *)engine;
    if (!forked)
        pthread_mutex_destroy(&e->lock);
    free_engine(e);
}

static const struct engine_ops http_ops = {"http", add, flush, reap, register_memory, close_engine, descriptor, wake, cancel};

int origin_http_engine(struct origin_http *o, unsigned depth, unsigned gets, uint64_t gap, struct engine **out, struct larder_error *err)
{
    *out = NULL;
    struct http_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return err_nomem(err, sizeof(*e), "a queue of GETs");
    *e = (struct http_engine){.engine = {&http_ops}, .origin = o, .n = gets, .n_unused = gets, .gap = gap, .depth = depth};
    e->gets = calloc(gets, sizeof(*e->gets));
    e->pending = malloc(depth * sizeof(struct read_op *));
    e->groups = malloc(depth * sizeof(*e->groups));
    e->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int sys = errno;
    if (!e->gets || !e->pending || !e->groups || e->event < 0) {
        bool memory = e->event >= 0;
        free_engine(e);
        return memory ? err_nomem(err, gets * sizeof(*e->gets) + depth * sizeof(*e->groups), "a queue of GETs")
                      : err_sys(err, LARDER_EIO, sys, "a queue of GETs: raise the limit of open files (ulimit -n)");
    }
    e->last = &e->finished;
    e->last_ready = &e->ready;
    pthread_mutex_init(&e->lock, NULL);
    for (unsigned i = gets; i-- > 0;) {
        e->gets[i].engine = e;
        e->gets[i].next = e->unused;
        e->unused = &e->gets[i];
    }
    *out = &e->engine;
    return LARDER_OK;
}
