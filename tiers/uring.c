/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uring.c - the engine over io_uring; the only file that includes liburing.h.
 *
 * One ring a queue, as many entries as the queue is deep, so an entry is always free when a read is added and completions never
 * overflow. Reads are sent in batches: one io_uring_enter sends all that were added and, when the caller waits, waits too.
 * Reads whose memory was registered go as READ_FIXED, which spares the kernel pinning pages for each.
 *
 * The ring is made without IORING_SETUP_SINGLE_ISSUER and DEFER_TASKRUN: both bind it to one thread, and a queue may change
 * threads (README.md, decisions).
 *
 * When io_uring_enter itself begins to fail for good (a seccomp filter put on later), unsent reads come back with its errno,
 * and those in the kernel are awaited by poll(2) on the ring, which needs no io_uring call.
 *
 * Threads: the queue's, one at a time. A forked child may only close.
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>

#include "tiers/tiers_int.h"

#define CHUNK_BYTES GIB /* the kernel's limit on one registered buffer */
#define CHUNKS_MAX 1024u
#define REFUSALS_MAX 1000u
#define ASYNC_MIN (64u * 1024) /* buffered reads from here on are copied by the kernel's workers, not inside io_uring_enter */

struct uring {
    struct engine engine;
    struct io_uring ring;
    const uint8_t *memory; /* registered, in chunks of CHUNK_BYTES; NULL: none */
    size_t memory_len;
    struct read_op *unsent, **unsent_tail; /* in the order of the ring's entries */
    int broken;                            /* errno of an io_uring_enter that failed for good */
    unsigned refusals;                     /* EAGAIN or EBUSY in a row */
};

/* The registered chunk that holds all of op's memory, or -1. */
static int chunk_of(const struct uring *u, const struct read_op *op)
{
    const uint8_t *buf = op->buf;
    if (!u->memory || buf < u->memory || (size_t)(buf - u->memory) >= u->memory_len)
        return -1;
    size_t at = (size_t)(buf - u->memory), chunk = at / CHUNK_BYTES;
    if (op->len > u->memory_len - at || at % CHUNK_BYTES + op->len > CHUNK_BYTES)
        return -1;
    return (int)chunk;
}

static void add(struct engine *e, struct read_op *op)
{
    struct uring *u = (struct uring *)e;
    op->next = NULL;
    *u->unsent_tail = op;
    u->unsent_tail = &op->next;
    if (u->broken)
        return;
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    if (!sqe) { /* more than depth ops: the queue does not */
        u->broken = EOVERFLOW;
        return;
    }
    int chunk = chunk_of(u, op);
    if (chunk >= 0)
        io_uring_prep_read_fixed(sqe, op->fd, op->buf, op->len, op->offset, chunk);
    else
        io_uring_prep_read(sqe, op->fd, op->buf, op->len, op->offset);
    if (op->buffered && op->len >= ASYNC_MIN)
        sqe->flags |= IOSQE_ASYNC;
    io_uring_sqe_set_data(sqe, op);
}

/* Takes the first n ops off the unsent list. */
static void sent(struct uring *u, int n)
{
    for (; n > 0 && u->unsent; n--)
        u->unsent = u->unsent->next;
    if (!u->unsent)
        u->unsent_tail = &u->unsent;
}

/* Sends what was added; waits for a completion when asked. Sets broken on a lasting failure. */
static void enter(struct uring *u, bool wait)
{
    int n = wait ? io_uring_submit_and_wait(&u->ring, 1) : io_uring_submit(&u->ring);
    if (n >= 0) {
        sent(u, n);
        u->refusals = 0;
    } else if (n != -EINTR && ((n != -EAGAIN && n != -EBUSY) || ++u->refusals > REFUSALS_MAX)) {
        u->broken = -n;
    }
}

static void flush(struct engine *e)
{
    struct uring *u = (struct uring *)e;
    if (u->unsent && !u->broken)
        enter(u, false);
}

static unsigned drain(struct uring *u, struct read_op **done, unsigned max)
{
    unsigned head, n = 0;
    struct io_uring_cqe *cqe;
    io_uring_for_each_cqe(&u->ring, head, cqe) {
        if (n == max)
            break;
        struct read_op *op = io_uring_cqe_get_data(cqe);
        op->result = cqe->res;
        done[n++] = op;
    }
    io_uring_cq_advance(&u->ring, n);
    return n;
}

/* After io_uring_enter failed for good: unsent reads fail with its errno. */
static unsigned drain_broken(struct uring *u, struct read_op **done, unsigned max)
{
    unsigned n = 0;
    while (u->unsent && n < max) {
        struct read_op *op = u->unsent;
        sent(u, 1);
        op->result = -u->broken;
        done[n++] = op;
    }
    return n;
}

static unsigned reap(struct engine *e, bool wait, struct read_op **done, unsigned max)
{
    struct uring *u = (struct uring *)e;
    if (wait && u->unsent && !u->broken)
        enter(u, true); /* one call sends and waits; it returns at once where something is finished */
    for (;;) {
        unsigned n = drain(u, done, max);
        if (u->broken)
            n += drain_broken(u, done + n, max - n);
        if (n || !wait)
            return n;
        if (!u->broken) {
            enter(u, true);
        } else {
            struct pollfd p = {.fd = u->ring.ring_fd, .events = POLLIN};
            poll(&p, 1, -1);
        }
    }
}

static void register_memory(struct engine *e, void *memory, size_t len)
{
    struct uring *u = (struct uring *)e;
    size_t n = (len + CHUNK_BYTES - 1) / CHUNK_BYTES;
    if (u->memory || !n || n > CHUNKS_MAX)
        return;
    AUTO_FREE struct iovec *iov = calloc(n, sizeof(*iov));
    if (!iov)
        return;
    for (size_t i = 0; i < n; i++)
        iov[i] = (struct iovec){(uint8_t *)memory + i * CHUNK_BYTES, MIN(CHUNK_BYTES, len - i * CHUNK_BYTES)};
    if (io_uring_register_buffers(&u->ring, iov, (unsigned)n) == 0) { /* refused under a low RLIMIT_MEMLOCK: plain reads */
        u->memory = memory;
        u->memory_len = len;
    }
}

static void close_ring(struct engine *e, bool forked)
{
    struct uring *u = (struct uring *)e;
    (void)forked; /* unmapping and closing are the child's own */
    io_uring_queue_exit(&u->ring);
    free(u);
}

static int descriptor(struct engine *e)
{
    const struct uring *u = (struct uring *)e;
    return u->ring.ring_fd;
}

static const struct engine_ops uring_ops = {"io_uring", add, flush, reap, register_memory, close_ring, descriptor, NULL, NULL};

/* IORING_OP_READ is younger than io_uring, and sandboxes implement parts of it. */
static bool reads_supported(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    bool ok = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
              io_uring_opcode_supported(probe, IORING_OP_READ_FIXED);
    io_uring_free_probe(probe);
    return ok;
}

int uring_open(unsigned depth, struct engine **e, struct larder_error *err)
{
    *e = NULL;
    struct uring *u = calloc(1, sizeof(*u));
    if (!u)
        return err_nomem(err, sizeof(*u), "an io_uring queue");
    int rc = io_uring_queue_init(depth, &u->ring, 0);
    if (rc < 0) {
        free(u);
        return err_sys(err, LARDER_EIO, -rc, "io_uring of %u entries", depth);
    }
    if (!reads_supported(&u->ring)) {
        io_uring_queue_exit(&u->ring);
        free(u);
        return err_sys(err, LARDER_EIO, EOPNOTSUPP, "io_uring without reads");
    }
    u->engine.ops = &uring_ops;
    u->unsent_tail = &u->unsent;
    *e = &u->engine;
    return LARDER_OK;
}
