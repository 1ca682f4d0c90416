/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_int.h - inside loader/: the handles of larder.h, the order of epochs, the staging buffer and the memory of
 * reads.
 *
 * api.c and read.c are the dataset, loader.c the loader over stage.c; order.c is pure; block.c is the memory that samples
 * borrow.
 */
#ifndef LARDER_LOADER_INT_H
#define LARDER_LOADER_INT_H

#include <pthread.h>
#include <sys/types.h>

#include "store/store.h"
#include "tiers/tiers.h"

/* ---- the order of samples (order.c): pure ---- */

/* What an epoch's order depends on: nothing else does. */
struct order {
    uint64_t n;    /* samples */
    uint64_t seed;
    int shuffle;   /* enum larder_shuffle */
};
/* Ordinals at positions [first, first + count) of an epoch; first + count <= n. */
void order_fill(const struct order *o, uint64_t epoch, uint64_t first, size_t count, uint64_t *ordinals);
/* Batches in an epoch, the last one short. */
uint64_t order_batches(const struct order *o, uint32_t batch_size);
/* Batch `number` begins at *position and has so many samples; 0: the epoch has no such batch. */
uint32_t order_batch(const struct order *o, uint32_t batch_size, uint64_t number, uint64_t *position);

/* ---- memory of reads (block.c) ---- */

/* A pool keeps released blocks for the next read, within bounds. It lives until its owner has freed it and the last block
 * is back, so samples may outlive their dataset. */
struct block_pool;
struct block {
    uint8_t *memory;          /* 4096-aligned, borrowed by the samples */
    size_t cap;
    struct block *also;       /* goes with this one: the heads of a read of single fields */
    struct block *next;       /* in the pool's list */
    struct block_pool *pool;
    _Atomic uint64_t refs;    /* samples that borrow it */
};
int block_pool_new(size_t keep_bytes, struct block_pool **pool, struct larder_error *err);
void block_pool_free(struct block_pool *pool);
/* A block of at least need bytes with refs references. */
int block_get(struct block_pool *pool, size_t need, uint64_t refs, struct block **b, struct larder_error *err);
/* Drops n references; the last returns the block (and those that go with it). Any thread. */
void block_put(struct block *b, uint64_t n);

/* ---- the dataset (api.c, read.c) ---- */

/* What one read needs to work with: one a thread at a time. */
struct reader {
    struct reader *next;
    struct tiers_fetch *fetch;
    struct decoder *decoder;
    struct extent *extents;        /* for reads of single fields, as all below */
    struct field_range *ranges;
    struct extent *range_extents;
    const void **parts;
    struct larder_value *values;
    size_t cap_extents, cap_ranges, cap_range_extents, cap_parts, cap_values;
};

struct larder_dataset {
    char *path;                    /* for messages */
    struct store_io *io;
    struct store *store;
    struct tiers *tiers;
    const struct manifest *manifest;
    pid_t pid;                     /* of the process that opened it */
    struct block_pool *blocks;
    pthread_mutex_t lock;          /* guards readers, n_readers */
    struct reader *readers;        /* idle ones */
    unsigned n_readers;
};

/* LARDER_EFORK in a forked child. */
int dataset_check(const struct larder_dataset *ds, struct larder_error *err);
void reader_free(struct reader *r);

/* Copies the caller's options struct into ours: defaults for NULL; EINVAL for a struct_size smaller than this header's or
 * larger with bytes set that this library does not know. out holds the defaults. */
int options_take(const void *opts, void *out, size_t size, const char *what, struct larder_error *err);
/* Copies a filled-in result into the caller's struct of struct_size bytes; check: only whether that would work. */
int result_check(const void *result, size_t size, const char *what, struct larder_error *err);
void result_give(void *result, const void *filled, size_t size);

/* ---- the staging buffer (stage.c) ---- */

struct stage;

struct stage_options {
    struct store *store;
    struct tiers *tiers;
    struct order order;
    uint32_t batch_size;
    uint64_t epoch, epochs;   /* the first; how many, 0: without end */
    uint32_t queue_depth;
    size_t staging_bytes;
};

/* The cache of a handle; NULL for NULL (cache_api.c). */
struct tiers_cache *cache_of(const struct larder_cache *c);

/* What a batch cost, beside the batch. */
struct stage_cost {
    uint64_t fetch_stall_ns, prep_stall_ns; /* of the call that got it */
    uint64_t bytes;                         /* of its fields */
    struct tiers_counts io;                 /* what each tier gave */
};

int stage_open(const struct stage_options *o, struct stage **st, struct larder_error *err);
/* Ends the fetch thread and frees all. */
void stage_close(struct stage *st);
/* In a forked child, which has no fetch thread: frees memory only. */
void stage_abandon(struct stage *st);
/* The next batch of all epochs in order; the caller does not ask beyond the last. EINVAL when the caller's own batches
 * leave no room: it may release one and ask again. Any other error ends the stage and comes again at every call. */
int stage_next(struct stage *st, const struct larder_batch **batch, struct stage_cost *cost, struct larder_error *err);
void stage_release(const struct larder_batch *batch);

#endif
