/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue.c - a queue: the started fetches of one thread, and at most `depth` of their segments in an engine.
 *
 *     tiers_fetch_start --> waiting (FIFO) --fill--> engine --complete--> done (FIFO) --> tiers_queue_next
 *                             one segment after the other    ^      |
 *                                                            '------' short reads go on, refused ones again
 *
 * fill moves segments from the first waiting fetch to the engine while an op is free; it never waits for a disk. Each call drives
 * it, so that the engine is full whenever the caller comes by. A fetch is done when none of its segments is in the engine and
 * either all have been or one has failed: only then may its memory be used or freed [tiers I2]. The queue's ops are made at
 * open; reading allocates nothing.
 *
 * With a cache a run that was read is settled first (stack.c), a portion at a time with a look at the engine in between; then the
 * fetch is done, or reads once more, or waits for records that others fetch. The queue sleeps for those only when it has nothing
 * else to do, its own claims settled.
 *
 *     waiting --> engine --> settling --> done
 *        ^                       |    '--> others (asked again at each call) --> done
 *        '-----------------------'
 *
 * Where the origin is remote there are two engines: one reads NVMe, the other sends GETs, each for any number of reads that lie together.
 * A cork keeps the fetches from both, so that those of a whole window are there when the GETs are made. With reads in both the queue sleeps on
 * both descriptors.
 *
 * Threads: one at a time; tiers_queue_wake and tiers_queue_cancel from any.
 */
#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "tiers/remote.h"
#include "tiers/stack_int.h"

#define RETRIES_MAX 64u /* of EINTR and EAGAIN in a row */
#define REAP_BATCH 64u
#define GETS_MAX 256u

struct queue_op {
    struct read_op read; /* first: the engine gives it back */
    struct tiers_fetch *fetch;
    const struct segment *segment;
    struct origin_file file;
    uint32_t done, retries;
    uint64_t sent_ns;          /* with a cache: for its latencies */
    struct queue_op *next_free;
};

struct fetch_list { struct tiers_fetch *head, **tail; };

struct tiers_queue {
    struct tiers *t;
    struct engine *engine, *gets; /* gets: NULL unless the origin is remote */
    struct queue_op *ops, *free_ops;
    unsigned depth, in_engine, in_gets; /* in_engine: in both; in_gets: of these */
    unsigned file_depth;       /* reads of files at once: depth, but for a remote origin */
    bool closing, corked;
    struct fetch_list waiting, settling, others, done;
    struct tiers_stats stats;
    struct waker waker;        /* tiers_queue_wake and tiers_queue_cancel, of any thread; */
    atomic_bool cancelled;     /* then it stays woken */
};

static void list_push(struct fetch_list *l, struct tiers_fetch *f)
{
    f->next = NULL;
    *l->tail = f;
    l->tail = &f->next;
}

static struct tiers_fetch *list_pop(struct fetch_list *l)
{
    struct tiers_fetch *f = l->head;
    l->head = f->next;
    if (!l->head)
        l->tail = &l->head;
    return f;
}

static bool all_given(const struct tiers_fetch *f) { return f->failed || f->next_segment == f->run->n_segments; }

/* It is the caller's again, unread. */
static void give_up(struct tiers_fetch *f)
{
    f->state = FETCH_EMPTY;
    f->failed = true;
    if (f->cached)
        stack_end(f);
}

/* f left the waiting list, or lost a segment: is it over? */
static void check_done(struct tiers_queue *q, struct tiers_fetch *f)
{
    if (f->in_flight)
        return;
    if (q->closing)
        give_up(f);
    else if (q->waiting.head != f && all_given(f))
        list_push(f->cached && !f->failed ? &q->settling : &q->done, f);
}

/* Remembers the first failure; the error itself is in f->error already when it was set by the callee. */
static struct larder_error *first_error(struct tiers_fetch *f)
{
    return f->failed ? NULL : &f->error;
}

/* It goes to the remote origin. */
static bool is_get(const struct tiers_queue *q, const struct segment *s) { return q->gets && s->nvme < 0; }

static void send_op(struct tiers_queue *q, struct queue_op *op)
{
    const struct segment *s = op->segment;
    struct engine *e = is_get(q, s) ? q->gets : q->engine;
    op->read.offset = s->offset + op->done;
    op->read.buf = op->fetch->run_memory + s->memory + op->done;
    op->read.len = s->len - op->done;
    op->read.fd = op->file.fd;
    op->read.shard = s->shard;
    op->read.buffered = !op->file.direct;
    q->stats.requests += e != q->gets;
    e->ops->add(e, &op->read);
}

/* Gives the next segment of f to the engine. False: no descriptor is free now. */
static bool send_segment(struct tiers_queue *q, struct tiers_fetch *f)
{
    const struct segment *s = &f->run->segments[f->next_segment];
    struct queue_op *op = q->free_ops;
    int rc = LARDER_OK;
    if (!is_get(q, s) && q->in_engine - q->in_gets == q->file_depth)
        return false;
    if (s->nvme >= 0)
        op->file = (struct origin_file){s->nvme, -1, true};
    else if (q->gets)
        op->file = (struct origin_file){-1, -1, false};
    else
        rc = origin_get(q->t->origin, s->shard, q->in_engine == 0, &op->file, &f->error);
    if (rc == LARDER_EBUSY)
        return false;
    if (rc) {
        f->failed = true;
        return true;
    }
    q->free_ops = op->next_free;
    q->in_engine++;
    q->in_gets += is_get(q, s);
    f->in_flight++;
    f->next_segment++;
    op->fetch = f;
    op->segment = s;
    op->done = op->retries = 0;
    op->sent_ns = f->cached ? now_ns() : 0;
    send_op(q, op);
    return true;
}

static void fill(struct tiers_queue *q)
{
    struct tiers_fetch *f;
    while (!q->corked && (f = q->waiting.head)) {
        if (all_given(f)) {
            list_pop(&q->waiting);
            check_done(q, f);
        } else if (!q->free_ops || !send_segment(q, f)) {
            return;
        }
    }
}

/* op is through, well or not. */
static void retire(struct tiers_queue *q, struct queue_op *op)
{
    struct tiers_fetch *f = op->fetch;
    if (is_get(q, op->segment)) {
        q->in_gets--;
        q->stats.requests += op->read.gets;
        q->stats.bytes += op->read.fetched;
        f->gets += op->read.gets;
        f->fetched += op->read.fetched;
    } else if (op->segment->nvme < 0)
        origin_put(q->t->origin, &op->file);
    if (f->cached)
        stack_took(f, op->segment->nvme < 0 ? UINT32_MAX : op->segment->shard, now_ns() - op->sent_ns);
    op->next_free = q->free_ops;
    q->free_ops = op;
    q->in_engine--;
    f->in_flight--;
    check_done(q, f);
}

static void fail(struct tiers_queue *q, struct queue_op *op, int sys)
{
    const struct segment *s = op->segment;
    if (s->nvme >= 0) {
        stack_nvme_failed(op->fetch, s->shard);
        retire(q, op);
        return;
    }
    const struct shard_ref *shard = &q->t->shards[s->shard];
    struct larder_error *e = first_error(op->fetch);
    unsigned long long at = s->offset + op->done;
    if (is_get(q, s)) {
        if (e)
            *e = op->read.error;
    } else if (sys)
        err_sys(e, LARDER_EIO, sys, "reading %u bytes of shard %s at offset %llu; 'larder verify' tells "
                "what is damaged", op->read.len, shard->name, at);
    else
        err_set(e, LARDER_ECORRUPT, "shard %s was cut short: it has no bytes from offset %llu on, and records "
                "lie at %llu+%u; 'larder verify' lists the damage", shard->name, at, (unsigned long long)s->offset, s->need);
    op->fetch->failed = true;
    retire(q, op);
}

/* n bytes came. A direct read goes on from an aligned place; if it cannot, it was at the end of the file. */
static void advance(struct tiers_queue *q, struct queue_op *op, uint32_t n)
{
    uint32_t before = op->done, len = op->segment->len;
    q->stats.bytes += is_get(q, op->segment) ? 0 : n;
    op->done += MIN(n, len - before);
    if (op->done >= op->segment->need) {
        retire(q, op);
        return;
    }
    uint32_t end = op->done;
    if (op->file.direct)
        op->done = (uint32_t)round_down(op->done, TIERS_ALIGN);
    if (op->done == before) {
        op->done = end;
        fail(q, op, 0);
        return;
    }
    op->retries = 0;
    if (q->closing)
        retire(q, op);
    else
        send_op(q, op);
}

static void complete(struct tiers_queue *q, struct queue_op *op)
{
    int32_t r = op->read.result;
    if (r >= 0) {
        advance(q, op, (uint32_t)r);
    } else if (q->closing) {
        retire(q, op);
    } else if ((r == -EINTR || r == -EAGAIN) && op->retries < RETRIES_MAX && !is_get(q, op->segment)) {
        op->retries++;
        send_op(q, op);
    } else if (r == -EINVAL && op->file.direct && op->segment->nvme < 0) {
        origin_direct_refused(q->t->origin, &op->file);
        send_op(q, op);
    } else {
        fail(q, op, -r);
    }
}

static void flush(struct tiers_queue *q)
{
    q->engine->ops->flush(q->engine);
    if (q->gets)
        q->gets->ops->flush(q->gets);
}

static unsigned reap_both(struct tiers_queue *q, struct read_op **done)
{
    unsigned n = q->engine->ops->reap(q->engine, false, done, REAP_BATCH);
    return n + (n < REAP_BATCH ? q->gets->ops->reap(q->gets, false, done + n, REAP_BATCH - n) : 0);
}

/* Sleeps until either engine has finished something, or somebody woke the GETs'. Without descriptors reads of a disk are awaited:
 * they are the faster ones. */
static unsigned wait_both(struct tiers_queue *q, struct read_op **done)
{
    struct pollfd p[2] = {{.fd = -1, .events = POLLIN}, {.fd = -1, .events = POLLIN}};
    flush(q);
    if (q->engine->ops->descriptor && q->gets->ops->descriptor) {
        p[0].fd = q->engine->ops->descriptor(q->engine);
        p[1].fd = q->gets->ops->descriptor(q->gets);
    }
    if (p[0].fd < 0 || p[1].fd < 0)
        return q->engine->ops->reap(q->engine, true, done, REAP_BATCH);
    poll(p, 2, -1);
    return reap_both(q, done);
}

static unsigned reap(struct tiers_queue *q, bool wait, struct read_op **done)
{
    if (!q->in_engine)
        return 0;
    if (!q->in_gets || q->in_gets == q->in_engine) {
        struct engine *e = q->in_gets ? q->gets : q->engine;
        return e->ops->reap(e, wait, done, REAP_BATCH);
    }
    unsigned n = reap_both(q, done);
    return n || !wait ? n : wait_both(q, done);
}

/* Takes what the engines have finished; true when there was something. */
static bool pump(struct tiers_queue *q, bool wait)
{
    struct read_op *ops[REAP_BATCH];
    unsigned n = reap(q, wait, ops);
    for (unsigned i = 0; i < n; i++)
        complete(q, (struct queue_op *)ops[i]);
    return n > 0;
}

int tiers_fetch_start(struct tiers_queue *q, struct tiers_fetch *f, void *memory, void *tag, struct larder_error *err)
{
    if (q->t->pid != process_id())
        return err_set(err, LARDER_EFORK, "a queue of the parent process cannot read in a forked child: open the dataset there");
    int rc = tiers_fetch_begin(f, memory, err);
    if (rc)
        return rc;
    f->tag = tag;
    f->state = FETCH_STARTED;
    if (f->cached && stack_all_hit(f)) {
        stack_end(f);
        list_push(&q->done, f);
        return LARDER_OK;
    }
    list_push(&q->waiting, f);
    fill(q);
    flush(q);
    return LARDER_OK;
}

static int hand_over(struct tiers_queue *q, struct tiers_fetch **f, void **tag, struct larder_error *err)
{
    struct tiers_fetch *d = list_pop(&q->done);
    d->state = FETCH_EMPTY;
    *f = d;
    *tag = d->tag;
    if (!d->failed && !d->cached && q->gets)
        remote_used(q->t->remote, d->plan.bytes - d->plan.over_read);
    if (!d->failed)
        return LARDER_OK;
    if (d->cached)
        stack_end(d);
    if (err)
        *err = d->error;
    return d->error.code;
}

/* f's run is settled, or it waited: what next? */
static void go_on(struct tiers_queue *q, struct tiers_fetch *f)
{
    switch (stack_next(f)) {
    case STACK_DONE:
        stack_end(f);
        list_push(&q->done, f);
        break;
    case STACK_FAILED: list_push(&q->done, f); break;
    case STACK_READ: list_push(&q->waiting, f); break;
    case STACK_WAIT: list_push(&q->others, f); break;
    }
}

/* Settles a portion of the oldest fetch that was read. */
static void settle(struct tiers_queue *q)
{
    struct tiers_fetch *f = q->settling.head;
    if (stack_settle(f)) {
        list_pop(&q->settling);
        go_on(q, f);
    }
}

/* Looks whether others have come up with what they fetch. */
static void ask_others(struct tiers_queue *q)
{
    struct fetch_list l = q->others;
    if (!l.head)
        return;
    q->others = (struct fetch_list){NULL, &q->others.head};
    while (l.head) {
        struct tiers_fetch *f = l.head;
        l.head = f->next;
        go_on(q, f);
    }
}

/* Everything that needs no waiting. */
static void drive(struct tiers_queue *q)
{
    do {
        while (pump(q, false))
            fill(q);
        if (q->settling.head)
            settle(q);
        fill(q);
        flush(q);
    } while (q->settling.head);
    ask_others(q);
    fill(q);
}

/* Who waited has been woken. A cancel that comes meanwhile is not lost. */
static void woken(struct tiers_queue *q)
{
    atomic_store(&q->waker.woken, false);
    if (atomic_load(&q->cancelled))
        atomic_store(&q->waker.woken, true);
}

int tiers_queue_next(struct tiers_queue *q, bool wait, struct tiers_fetch **f, void **tag, struct larder_error *err)
{
    *f = NULL, *tag = NULL;
    if (q->t->pid != process_id())
        return err_set(err, LARDER_EFORK, "a queue of the parent process cannot read in a forked child: open the dataset there");
    if (q->done.head && !q->in_engine && !q->waiting.head)
        return hand_over(q, f, tag, err);
    drive(q);
    while (!q->done.head && wait && (q->in_engine || q->waiting.head || q->others.head) && !atomic_load(&q->waker.woken)) {
        if (q->in_engine)
            pump(q, true);
        else if (!q->waiting.head)
            stack_wait(q->others.head, &q->waker);
        drive(q);
    }
    if (wait && atomic_load(&q->waker.woken))
        woken(q);
    flush(q);
    return q->done.head ? hand_over(q, f, tag, err) : LARDER_END;
}

void tiers_queue_cork(struct tiers_queue *q, bool corked)
{
    q->corked = corked;
    if (corked)
        return;
    fill(q);
    flush(q);
}

void tiers_queue_cancel(struct tiers_queue *q)
{
    atomic_store(&q->cancelled, true);
    tiers_queue_wake(q);
}

void tiers_queue_wake(struct tiers_queue *q)
{
    dram_wake(&q->waker);
    if (q->gets && q->gets->ops->wake)
        q->gets->ops->wake(q->gets);
}

struct tiers_stats tiers_queue_stats(const struct tiers_queue *q) { return q->stats; }

void tiers_queue_register(struct tiers_queue *q, void *memory, size_t len)
{
    q->engine->ops->register_memory(q->engine, memory, len);
}

struct engine **tiers_queue_engine(struct tiers_queue *q) { return q->gets ? &q->gets : &q->engine; }

/* io_uring, and threads where it is refused; GETs for a remote origin. */
static int open_engines(struct tiers_queue *q, unsigned depth, struct larder_error *err)
{
    struct tiers *t = q->t;
    if (t->http) {
        int rc = origin_http_engine(t->http, depth, MIN(q->file_depth, GETS_MAX), t->rules.gap, &q->gets, err);
        if (rc)
            return rc;
    }
    if (t->uring && uring_open(q->file_depth, &q->engine, NULL) == LARDER_OK)
        return LARDER_OK;
    return pool_engine_open(t->pool, &q->engine, err);
}

int tiers_queue_open(struct tiers *t, unsigned depth, struct tiers_queue **out, struct larder_error *err)
{
    *out = NULL;
    if (t->pid != process_id())
        return err_set(err, LARDER_EFORK, "a dataset of the parent process cannot be read in a forked child: open it there");
    depth = depth ? depth : t->depth;
    if (depth > TIERS_DEPTH_MAX)
        return err_set(err, LARDER_EINVAL, "queue depth %u: the most is %u", depth, TIERS_DEPTH_MAX);
    unsigned file_depth = depth;
    depth = t->http ? MAX(depth, TIERS_GET_OPS) : depth;
    struct tiers_queue *q = calloc(1, sizeof(*q));
    struct queue_op *ops = calloc(depth, sizeof(*ops));
    if (!q || !ops) {
        free(q);
        free(ops);
        return err_nomem(err, sizeof(*q) + depth * sizeof(*ops), "a read queue");
    }
    q->t = t;
    q->ops = ops;
    q->depth = depth;
    q->file_depth = file_depth;
    q->waiting.tail = &q->waiting.head;
    q->settling.tail = &q->settling.head;
    q->others.tail = &q->others.head;
    q->done.tail = &q->done.head;
    for (unsigned i = depth; i-- > 0;) {
        ops[i].next_free = q->free_ops;
        q->free_ops = &ops[i];
    }
    int rc = open_engines(q, depth, err);
    if (rc) {
        tiers_queue_close(q);
        return rc;
    }
    tiers_register(t);
    *out = q;
    return LARDER_OK;
}

/* Fetches that are given up are the caller's again. */
static void abandon(struct fetch_list *l)
{
    while (l->head)
        give_up(list_pop(l));
}

void tiers_queue_close(struct tiers_queue *q)
{
    if (!q)
        return;
    bool forked = q->t->pid != getpid();
    if (!forked) {
        q->closing = true;
        abandon(&q->waiting);
        abandon(&q->settling);
        abandon(&q->others);
        abandon(&q->done);
        if (q->in_gets && q->gets->ops->cancel)
            q->gets->ops->cancel(q->gets);
        while (q->in_engine)
            pump(q, true);
    }
    if (q->engine)
        q->engine->ops->close(q->engine, forked);
    if (q->gets)
        q->gets->ops->close(q->gets, forked);
    free(q->ops);
    free(q);
}
