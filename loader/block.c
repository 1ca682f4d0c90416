/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - the memory that samples borrow: refcounted blocks, recycled.
 *
 * A read of many samples lands in one mapping, its block; each sample holds one reference. The last release puts the block
 * back into the pool, so that the next read of that size finds memory that is mapped and faulted in already. The pool keeps
 * at most keep_bytes and KEEP_BLOCKS of them; beyond that blocks are unmapped.
 *
 * Invariants: pool->refs counts the owner and every block that is out; pool and blocks are freed with the last of them, so
 * samples may be released after their dataset was closed. Any thread enters. In a forked child the pool's mutex may be
 * held for ever by a thread that is not there: there a block is unmapped without touching the pool.
 */
#include "loader/loader_int.h"

#include <sys/mman.h>
#include <unistd.h>

#define KEEP_BLOCKS 8
#define BLOCK_MIN (64 * KIB)

struct block_pool {
    pthread_mutex_t lock; /* guards all below but pid */
    struct block *idle;
    unsigned n_idle;
    size_t idle_bytes, keep_bytes;
    uint64_t refs;
    pid_t pid;
};

int block_pool_new(size_t keep_bytes, struct block_pool **pool, struct larder_error *err)
{
    struct block_pool *p = calloc(1, sizeof(*p));

    *pool = NULL;
    if (!p)
        return err_nomem(err, sizeof(*p), "block pool");
    pthread_mutex_init(&p->lock, NULL);
    p->keep_bytes = keep_bytes;
    p->refs = 1;
    p->pid = getpid();
    *pool = p;
    return 0;
}

static void block_unmap(struct block *b)
{
    munmap(b->memory, b->cap);
    free(b);
}

static void pool_destroy(struct block_pool *p)
{
    struct block *b;

    while ((b = p->idle)) {
        p->idle = b->next;
        block_unmap(b);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void block_pool_free(struct block_pool *p)
{
    struct block *b, *idle;
    bool last;

    if (!p)
        return;
    if (process_id() != p->pid) {
        while ((b = p->idle)) {
            p->idle = b->next;
            block_unmap(b);
        }
        if (--p->refs == 0) /* else samples that are out still point at it; their release does not free it: see above */
            free(p);
        return;
    }
    pthread_mutex_lock(&p->lock);
    idle = p->idle;
    p->idle = NULL;
    p->n_idle = 0;
    p->keep_bytes = 0;
    last = --p->refs == 0;
    pthread_mutex_unlock(&p->lock);
    while ((b = idle)) {
        idle = b->next;
        block_unmap(b);
    }
    if (last)
        pool_destroy(p);
}

/* Takes the smallest idle block that fits without being far too large. */
static struct block *idle_take(struct block_pool *p, size_t need)
{
    struct block **at, **best = NULL, *b;

    for (at = &p->idle; *at; at = &(*at)->next)
        if ((*at)->cap >= need && (*at)->cap / 4 <= MAX(need, BLOCK_MIN) && (!best || (*at)->cap < (*best)->cap))
            best = at;
    if (!best)
        return NULL;
    b = *best;
    *best = b->next;
    p->n_idle--;
    p->idle_bytes -= b->cap;
    return b;
}

static int block_new(struct block_pool *p, size_t need, struct block **out, struct larder_error *err)
{
    size_t cap = BLOCK_MIN;
    struct block *b;
    void *memory;

    if (need > SIZE_MAX / 4)
        return err_nomem(err, need, "samples");
    if (need > cap)
        cap = round_up(need + need / 4, STORE_PAGE);
    b = calloc(1, sizeof(*b));
    if (!b)
        return err_nomem(err, sizeof(*b), "samples");
    memory = mmap(NULL, cap, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        free(b);
        return err_nomem(err, cap, "samples");
    }
    b->memory = memory;
    b->cap = cap;
    b->pool = p;
    *out = b;
    return 0;
}

int block_get(struct block_pool *p, size_t need, uint64_t refs, struct block **out, struct larder_error *err)
{
    struct block *b;
    int rc;

    *out = NULL;
    pthread_mutex_lock(&p->lock);
    b = idle_take(p, need);
    if (b)
        p->refs++;
    pthread_mutex_unlock(&p->lock);
    if (!b) {
        rc = block_new(p, need, &b, err);
        if (rc)
            return rc;
        pthread_mutex_lock(&p->lock);
        p->refs++;
        pthread_mutex_unlock(&p->lock);
    }
    b->also = NULL;
    b->next = NULL;
    atomic_store_explicit(&b->refs, refs, memory_order_relaxed);
    *out = b;
    return 0;
}

static void block_return(struct block *b)
{
    struct block_pool *p = b->pool;
    bool keep, last;

    if (process_id() != p->pid) {
        block_unmap(b);
        return;
    }
    pthread_mutex_lock(&p->lock);
    keep = p->n_idle < KEEP_BLOCKS && b->cap <= p->keep_bytes && p->idle_bytes <= p->keep_bytes - b->cap;
    if (keep) {
        b->next = p->idle;
        p->idle = b;
        p->n_idle++;
        p->idle_bytes += b->cap;
    }
    last = --p->refs == 0;
    pthread_mutex_unlock(&p->lock);
    if (!keep)
        block_unmap(b);
    if (last)
        pool_destroy(p);
}

void block_put(struct block *b, uint64_t n)
{
    struct block *also;

    if (atomic_fetch_sub_explicit(&b->refs, n, memory_order_acq_rel) != n)
        return;
    for (; b; b = also) {
        also = b->also;
        block_return(b);
    }
}
