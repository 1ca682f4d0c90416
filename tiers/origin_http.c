/* SPDX-License-Identifier: Apache-2.0 */
/*
 * origin_http.c - the shards of a dataset in a bucket or on a web server: an engine whose reads are ranged GETs.
 *
 * A GET lands where its read wants it. remote.c does the rest of one request: connections, retries, deadlines. What is left here
 * is which object it is: the first answer for a shard shows its ETag, which all later GETs of it demand (If-Match), in all queues
 * of the stack; and its size, which must be the manifest's. So a shard that was replaced is an error and never mixes with what
 * was read before. An object without ETag is held to its size, and to the CRC of each record.
 *
 *     add --remote_start--> loop's thread --done--> finished (lock) --reap--> queue
 *                                                   eventfd: it is not empty, or somebody woke the engine
 *
 * Invariants:
 *   1. A get is in the free list, with the remote, or in finished. `done` touches neither get nor engine once the lock is free, since
 *      the queue may have closed the engine by then.
 *   2. etags[shard] is written once, by a swap from NULL, and lives until the origin is closed.
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

struct origin_http {
    struct remote *remote;
    const struct shard_ref *shards;
    size_t n_shards;
    _Atomic(char *) *etags; /* NULL: not seen yet; "" has none */
};

struct get {
    struct remote_request q;
    char name[ORIGIN_NAME];
    struct read_op *op;
    struct http_engine *engine;
    struct get *next;
    bool out; /* with the remote, or finished and not reaped */
};

struct http_engine {
    struct engine engine;
    struct origin_http *origin;
    struct get *gets, *unused;
    unsigned n;
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
    struct get *g = e->unused;
    e->unused = g->next;
    g->q = (struct remote_request){.priority = REMOTE_DEMAND, .done = done, .user = g};
    g->op = op;
    g->out = true;
    origin_http_prepare(e->origin, op->shard, op->offset, op->buf, op->len, g->name, &g->q);
    remote_start(e->origin->remote, &g->q);
}

static void flush(struct engine *e) { (void)e; /* remote_start sends */ }

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

static void put_back(struct http_engine *e, struct get *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&e->lock);
    struct get **end = &g->next;
    while (*end)
        end = &(*end)->next;
    *end = e->finished;
    if (!e->finished)
        e->last = end;
    e->finished = g;
    eventfd_write(e->event, 1);
    pthread_mutex_unlock(&e->lock);
}

static void finish(struct http_engine *e, struct get *g)
{
    struct read_op *op = g->op;
    int rc = origin_http_check(e->origin, op->shard, &g->q);
    op->result = rc ? -EIO : (int32_t)op->len;
    if (rc)
        op->error = g->q.error;
    g->out = false;
    g->next = e->unused;
    e->unused = g;
}

static unsigned reap(struct engine *engine, bool wait, struct read_op **ops, unsigned max)
{
    struct http_engine *e = (struct http_engine *)engine;
    struct get *g = take(e), *next;
    unsigned n = 0;
    if (!g && wait) {
        struct pollfd p = {.fd = e->event, .events = POLLIN};
        poll(&p, 1, -1);
        g = take(e);
    }
    for (; g && n < max; g = next) {
        next = g->next;
        ops[n++] = g->op;
        finish(e, g);
    }
    put_back(e, g);
    return n;
}

static void register_memory(struct engine *e, void *memory, size_t len) { (void)e, (void)memory, (void)len; }

static int descriptor(struct engine *engine) { return ((struct http_engine *)engine)->event; }

static void wake(struct engine *engine) { eventfd_write(((struct http_engine *)engine)->event, 1); }

static void cancel(struct engine *engine)
{
    struct http_engine *e = (struct http_engine *)engine;
    for (unsigned i = 0; i < e->n; i++)
        if (e->gets[i].out)
            remote_cancel(e->origin->remote, &e->gets[i].q);
}

static void close_engine(struct engine *engine, bool forked)
{
    struct http_engine *e = (struct http_engine *)engine;
    if (!forked)
        pthread_mutex_destroy(&e->lock);
    if (e->event >= 0)
        close(e->event);
    free(e->gets);
    free(e);
}

static const struct engine_ops http_ops = {"http", add, flush, reap, register_memory, close_engine, descriptor, wake, cancel};

int origin_http_engine(struct origin_http *o, unsigned depth, struct engine **out, struct larder_error *err)
{
    *out = NULL;
    struct http_engine *e = calloc(1, sizeof(*e));
    struct get *gets = calloc(depth, sizeof(*gets));
    int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), sys = errno;
    if (!e || !gets || event < 0) {
        free(e);
        free(gets);
        if (event >= 0)
            close(event);
        return event < 0 ? err_sys(err, LARDER_EIO, sys, "a queue of GETs: raise the limit of open files (ulimit -n)")
                         : err_nomem(err, sizeof(*e) + depth * sizeof(*gets), "a queue of GETs");
    }
    *e = (struct http_engine){.engine = {&http_ops}, .origin = o, .gets = gets, .n = depth, .event = event};
    e->last = &e->finished;
    pthread_mutex_init(&e->lock, NULL);
    for (unsigned i = depth; i-- > 0;) {
        gets[i].engine = e;
        gets[i].next = e->unused;
        e->unused = &gets[i];
    }
    *out = &e->engine;
    return LARDER_OK;
}
