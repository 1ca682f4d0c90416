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

/* A filter: a set of ordinals below n with rank and select, one bit and an eighth a sample. */
struct subset { uint64_t n, members, groups, *bits, *rank; };
int subset_new(const uint8_t *bits, uint64_t n, struct subset **s, struct larder_error *err); /* bit i of byte i / 8: ordinal i is in */
void subset_free(struct subset *s);
uint64_t subset_bytes(const struct subset *s);
uint64_t subset_select(const struct subset *s, uint64_t k); /* the k-th member; k < members */
uint64_t subset_rank(const struct subset *s, uint64_t ordinal); /* members before it */
bool subset_has(const struct subset *s, uint64_t ordinal);

/* Weights: draws in constant time, 8 bytes a sample. */
struct alias_entry { uint32_t below, other; };
struct alias { uint64_t n; struct alias_entry *entry; };
int alias_new(const double *weights, uint64_t n, struct alias **a, struct larder_error *err); /* EINVAL: negative, none above 0 */
void alias_free(struct alias *a);

/* What an epoch's order depends on: nothing else does. */
struct order {
    uint64_t n;            /* candidates of a pass: samples, members of the filter, entries of the list */
    uint64_t seed;
    int shuffle;           /* enum larder_shuffle */
    uint64_t block, window; /* LARDER_SHUFFLE_BLOCK: candidates a block, blocks a window; 1 or more each */
    uint64_t epoch_size;   /* 0: n */
    const uint64_t *list;  /* [n]: the caller's own ordinals; NULL: none */
    const struct subset *subset;
    const struct alias *alias; /* over candidates */
};
uint64_t order_length(const struct order *o); /* positions in an epoch */
/* Ordinals at positions [first, first + count) of an epoch; first + count <= order_length. n >= 1. */
void order_fill(const struct order *o, uint64_t epoch, uint64_t first, size_t count, uint64_t *ordinals);
/* Where in a pass (an epoch, without epoch_size) a sample stands. False: nowhere, or nobody can say (weights, a list). */
bool order_find(const struct order *o, uint64_t pass, uint64_t ordinal, uint64_t *position);

/* How an epoch is cut into batches, and which part of each is a rank's. */
struct slicing { uint32_t batch_size, world, rank; int last; /* enum larder_last, not AUTO */ };
/* Batches of each rank in positions [from, length). */
uint64_t slicing_batches(const struct slicing *s, uint64_t from, uint64_t length);
/* A rank's part of a global batch: positions [position, position + n), beyond the epoch's end from its beginning again; the first
 * `valid` count. n may be 0: the others have what is left. */
struct slice { uint64_t position; uint32_t n, valid; };
struct slice slicing_batch(const struct slicing *s, uint64_t from, uint64_t length, uint64_t number);
void order_slice(const struct order *o, uint64_t epoch, const struct slice *s, uint64_t *ordinals);

/* ---- where a run stands (state.c): pure ---- */

struct state { uint8_t uuid[16], lineage[16]; uint64_t generation, samples, seed, order /* its digest */, epoch, position; };
uint64_t order_digest(const struct order *o);
int state_encode(const struct state *s, struct buf *out, struct larder_error *err);
int state_decode(const char *text, size_t len, struct state *s, struct larder_error *err); /* EINVAL: not one; EVERSION */
/* EINVAL naming the first thing that differs, with both values; length: of an epoch. generation may differ. */
int state_check(const struct state *saved, const struct state *now, uint64_t length, struct larder_error *err);

/* ---- what an epoch will cost (estimate.c) ---- */

struct estimate_in {
    double samples, bytes, shards; /* of the dataset */
    double own, batch, cached;     /* samples of the epoch, of a batch; share of them that tiers have */
    double gap, get_bytes, over_read; /* over_read: at most so many times what is wanted; 0: any number */
    bool in_order, streams;
};
double estimate_gets(const struct estimate_in *in, double *bytes); /* pure */
struct larder_dataset;
void estimate_epoch(struct larder_dataset *ds, const struct order *o, const struct slicing *s, struct larder_loader_estimate *e);
/* Does an epoch take all there is, in no order? Then it may be read in any. */
bool order_is_full(const struct order *o, uint64_t samples);

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
    struct slicing slicing;
    uint64_t epoch, epochs;   /* the first; how many, 0: without end */
    uint64_t position;        /* where the first one begins */
    uint32_t queue_depth;
    size_t staging_bytes;
    uint32_t timeout_ms, notice_ms; /* 0: without end; never */
    larder_notice_fn *waiting;
    void *user;
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
 * leave no room: it may release one and ask again; ETIMEOUT: it may ask again too. Any other error ends the stage and comes
 * again at every call. */
int stage_next(struct stage *st, const struct larder_batch **batch, struct stage_cost *cost, struct larder_error *err);
void stage_release(const struct larder_batch *batch);

#endif
