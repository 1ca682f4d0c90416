/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - the engine over pread(2), for where io_uring is refused.
 *
 * A stack has one pool; each of its queues has an engine on it. A read that may be in the page cache is tried in place with
 * preadv2(RWF_NOWAIT), so warm reads need no other thread. The rest goes to the pool's FIFO, from which threads take one
 * read each; a thread is started when work arrives, none is idle and the bound allows it. The FIFO is bounded by the depths of
 * its queues, since they own the ops.
 *
 *     add --NOWAIT--> ready --------------------------------> reap
 *      \--> added --flush--> pool FIFO --thread--> finished --/
 *
 * Threads: an engine is its queue's, one thread at a time; finished is shared with the pool's threads under engine.lock, the
 * FIFO under pool.lock. Neither lock is held while the other is taken, nor across a read.
 */
#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "tiers/tiers_int.h"

#define THREADS_MAX 32u

struct op_list { struct read_op *head, **tail; };

struct pool {
    pthread_mutex_t lock; /* guards all below but threads_max */
    pthread_cond_t work;  /* the FIFO is not empty, or stop */
    struct op_list fifo;
    pthread_t threads[THREADS_MAX];
    unsigned n_threads, n_idle, n_fifo, threads_max;
    bool stop;
};

struct pool_engine {
    struct engine engine;
    struct pool *pool;
    struct op_list ready, added; /* the queue's thread only */
    unsigned n_added;
    bool nowait;                 /* the file system knows RWF_NOWAIT */
    pthread_mutex_t lock;        /* guards finished, event */
    pthread_cond_t some;         /* finished is not empty */
    struct op_list finished;
    int event;                   /* an eventfd, readable when finished is not empty; -1: nobody asked for it */
};

static void list_init(struct op_list *l) { l->head = NULL, l->tail = &l->head; }

static void list_push(struct op_list *l, struct read_op *op)
{
    op->next = NULL;
    *l->tail = op;
    l->tail = &op->next;
}

static struct read_op *list_pop(struct op_list *l)
{
    struct read_op *op = l->head;
    l->head = op->next;
    if (!l->head)
        l->tail = &l->head;
    return op;
}

/* Moves all of b behind a. */
static void list_move(struct op_list *a, struct op_list *b)
{
    if (!b->head)
        return;
    *a->tail = b->head;
    a->tail = b->tail;
    list_init(b);
}

static void read_blocking(struct read_op *op)
{
    ssize_t n;
    do
        n = pread(op->fd, op->buf, op->len, (off_t)op->offset);
    while (n < 0 && errno == EINTR);
    op->result = n < 0 ? -errno : (int32_t)n;
}

static void finish(struct read_op *op)
{
    struct pool_engine *e = op->owner;
    pthread_mutex_lock(&e->lock);
    list_push(&e->finished, op);
    if (e->event >= 0)
        eventfd_write(e->event, 1);
    pthread_cond_signal(&e->some); /* under the lock: once the op is seen the engine may be gone */
    pthread_mutex_unlock(&e->lock);
}

static void *thread_main(void *arg)
{
    struct pool *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->fifo.head && !p->stop) {
            p->n_idle++;
            pthread_cond_wait(&p->work, &p->lock);
            p->n_idle--;
        }
        if (!p->fifo.head)
            break;
        struct read_op *op = list_pop(&p->fifo);
        p->n_fifo--;
        pthread_mutex_unlock(&p->lock);
        read_blocking(op);
        finish(op);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Starts threads for the work that idle ones do not cover; signals are the application's. p->lock is held. */
static void start_threads(struct pool *p)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    unsigned want = p->n_fifo > p->n_idle ? p->n_fifo - p->n_idle : 0;
    for (; want && p->n_threads < p->threads_max; want--) {
        if (pthread_create(&p->threads[p->n_threads], NULL, thread_main, p) != 0)
            break;
        p->n_threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

static void try_now(struct pool_engine *e, struct read_op *op)
{
    struct iovec iov = {op->buf, op->len};
    ssize_t n = preadv2(op->fd, &iov, 1, (off_t)op->offset, RWF_NOWAIT);
    if (n >= 0) {
        op->result = (int32_t)n;
        list_push(&e->ready, op);
        return;
    }
    if (errno == EOPNOTSUPP || errno == ENOSYS)
        e->nowait = false;
    list_push(&e->added, op);
    e->n_added++;
}

static void add(struct engine *engine, struct read_op *op)
{
    struct pool_engine *e = (struct pool_engine *)engine;
    op->owner = e;
    if (op->buffered && e->nowait) {
        try_now(e, op);
    } else {
        list_push(&e->added, op);
        e->n_added++;
    }
}

static void flush(struct engine *engine)
{
    struct pool_engine *e = (struct pool_engine *)engine;
    struct pool *p = e->pool;
    if (!e->added.head)
        return;
    pthread_mutex_lock(&p->lock);
    list_move(&p->fifo, &e->added);
    p->n_fifo += e->n_added;
    if (p->n_fifo > p->n_idle && p->n_threads < p->threads_max)
        start_threads(p);
    bool nobody = p->n_threads == 0;
    if (nobody) { /* not one thread could be had: the caller reads */
        list_move(&e->added, &p->fifo);
        p->n_fifo = 0;
    } else if (e->n_added == 1) {
        pthread_cond_signal(&p->work);
    } else {
        pthread_cond_broadcast(&p->work);
    }
    pthread_mutex_unlock(&p->lock);
    e->n_added = 0;
    while (nobody && e->added.head) {
        struct read_op *op = list_pop(&e->added);
        read_blocking(op);
        finish(op);
    }
}

static unsigned take(struct op_list *l, struct read_op **done, unsigned max)
{
    unsigned n = 0;
    while (l->head && n < max)
        done[n++] = list_pop(l);
    return n;
}

static unsigned reap(struct engine *engine, bool wait, struct read_op **done, unsigned max)
{
    struct pool_engine *e = (struct pool_engine *)engine;
    unsigned n = take(&e->ready, done, max);
    if (n == max)
        return n;
    if (wait && !n)
        flush(engine);
    pthread_mutex_lock(&e->lock);
    while (wait && !n && !e->finished.head)
        pthread_cond_wait(&e->some, &e->lock);
    n += take(&e->finished, done + n, max - n);
    eventfd_t spent;
    if (e->event >= 0 && !e->finished.head)
        eventfd_read(e->event, &spent);
    pthread_mutex_unlock(&e->lock);
    return n;
}

static int descriptor(struct engine *engine)
{
    struct pool_engine *e = (struct pool_engine *)engine;
    pthread_mutex_lock(&e->lock);
    if (e->event < 0)
        e->event = eventfd(e->finished.head ? 1 : 0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_unlock(&e->lock);
    return e->event;
}

static void register_memory(struct engine *e, void *memory, size_t len)
{
    (void)e, (void)memory, (void)len; /* nothing to gain */
}

static void close_engine(struct engine *engine, bool forked)
{
    struct pool_engine *e = (struct pool_engine *)engine;
    if (!forked) {
        pthread_mutex_destroy(&e->lock);
        pthread_cond_destroy(&e->some);
    }
    if (e->event >= 0)
        close(e->event);
    free(e);
}

static const struct engine_ops pool_ops = {"pread", add, flush, reap, register_memory, close_engine, descriptor, NULL, NULL};

int pool_engine_open(struct pool *p, struct engine **out, struct larder_error *err)
{
    *out = NULL;
    struct pool_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return err_nomem(err, sizeof(*e), "a read queue");
    e->engine.ops = &pool_ops;
    e->pool = p;
    e->nowait = true;
    e->event = -1;
    list_init(&e->ready);
    list_init(&e->added);
    list_init(&e->finished);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->some, NULL);
    *out = &e->engine;
    return LARDER_OK;
}

int pool_new(unsigned threads_max, struct pool **out, struct larder_error *err)
{
    *out = NULL;
    struct pool *p = calloc(1, sizeof(*p));
    if (!p)
        return err_nomem(err, sizeof(*p), "the read threads");
    p->threads_max = MAX(1u, MIN(threads_max, THREADS_MAX));
    list_init(&p->fifo);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    *out = p;
    return LARDER_OK;
}

unsigned pool_threads(struct pool *p)
{
    pthread_mutex_lock(&p->lock);
    unsigned n = p->n_threads;
    pthread_mutex_unlock(&p->lock);
    return n;
}

void pool_free(struct pool *p, bool forked)
{
    if (!p)
        return;
    if (!forked) {
        pthread_mutex_lock(&p->lock);
        p->stop = true;
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
        for (unsigned i = 0; i < p->n_threads; i++)
            pthread_join(p->threads[i], NULL);
        pthread_mutex_destroy(&p->lock);
        pthread_cond_destroy(&p->work);
    }
    free(p);
}
