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

struct larder_dataset;

/* A filter: a set of ordinals below n with rank and select, one bit and an eighth a sample. */
struct subset { uint64_t n, members, groups, *bits, *rank; };
int subset_new(const uint8_t *bits, uint64_t n, struct subset **s, struct larder_error *err); /* bit i of byte i / 8: ordinal i is in */
/* Of the members of a, those that b has; b NULL: a copy of a. */
int subset_and(const struct subset *a, const struct subset *b, struct subset **s, struct larder_error *err);
int subset_empty(uint64_t n, struct subset **s, struct larder_error *err); /* set bits of it, bit i % 64 of word i / 64, */
void subset_count(struct subset *s);                                      /* and then this */
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

/* One pass of an order, prepared: for who asks for places here and there. Begins as zeros. */
struct blocks { struct perm perm; uint64_t n, block, window, short_at, lack; };
struct order_walk { bool ready; uint64_t pass, window, begin; struct perm perm; struct blocks blocks; };
/* The ordinal at a place of the endless walk: pass x n + position. The same w goes with the same o. */
uint64_t order_at(const struct order *o, struct order_walk *w, uint64_t place);
void order_map(const struct order *o, struct order_walk *w, uint64_t *places, size_t n); /* order_at of many, in place */

/* ---- datasets mixed by weight (mix.c): pure ---- */

#define MIX_SOURCES_MAX 256u
#define MIX_WEIGHT_MIN (1.0 / (1 << 20)) /* of all weights together */

struct mix_source {
    struct order order;    /* its own; epoch_size 0, seed of its own */
    double weight;         /* as given; by size: 0 */
    uint64_t share;        /* of what the sources before it leave, in units of 2^-64 */
    uint64_t each;         /* an epoch takes so many, or one more or less where the walks go on */
};
struct mix {
    uint32_t n, last;      /* last: the one that takes all that is left */
    struct mix_source *source;
    uint64_t seed, length, block; /* length: of an epoch; block: positions that are shuffled together */
    int shuffle;           /* enum larder_shuffle */
    bool restart;          /* each epoch begins a new pass of every source */
};
/* Copies orders[n]; what they point to is borrowed. weights NULL: by their n. exhausted: enum larder_exhausted. epoch_size 0: as that
 * says. */
int mix_new(const struct order *orders, const double *weights, uint32_t n, uint64_t seed, int shuffle, uint64_t epoch_size, int exhausted,
            struct mix **m, struct larder_error *err);
void mix_free(struct mix *m);
/* A position of an epoch <-> a place in the walk of a source. False: no epoch comes to that place. */
void mix_at(const struct mix *m, uint64_t epoch, uint64_t position, uint32_t *source, uint64_t *place);
bool mix_find(const struct mix *m, uint32_t source, uint64_t place, uint64_t *epoch, uint64_t *position);
/* Samples at positions [first, first + count) of an epoch; first + count <= length. */
void mix_fill(const struct mix *m, uint64_t epoch, uint64_t first, size_t count, uint64_t *ordinals, uint32_t *sources);

/* ---- what is in a batch (batch_plan.c): pure but for the caller's function ---- */

/* How an epoch is cut into batches, and which part of each is a rank's. */
struct slicing {
    uint32_t batch_size, world, rank;
    int last;             /* enum larder_last, not AUTO */
    const uint64_t *ends; /* [n_ends], ascending: batches that end there, one rank's, instead of equal ones; NULL: none */
    uint64_t n_ends;
};
/* Batches of each rank in positions [from, length). */
uint64_t slicing_batches(const struct slicing *s, uint64_t from, uint64_t length);
/* The position that the first `number` batches from `from` on come to, all ranks together. */
uint64_t slicing_position(const struct slicing *s, uint64_t from, uint64_t length, uint64_t number);
/* A rank's part of a global batch: positions [position, position + n), beyond the epoch's end from its beginning again; the first
 * `valid` count. n may be 0: the others have what is left. */
struct slice { uint64_t position; uint32_t n, valid; };
struct slice slicing_batch(const struct slicing *s, uint64_t from, uint64_t length, uint64_t number);
void order_slice(const struct order *o, uint64_t epoch, const struct slice *s, uint64_t *ordinals);

/* Everything that says what a rank's batches are. Constant but for the room for global batches, which belongs to one thread. */
struct batch_plan {
    struct order order;       /* with a mix: its seed and shuffle only */
    const struct mix *mix;    /* NULL: one dataset */
    struct slicing slicing;
    larder_assign_fn *assign; /* NULL: contiguous slices */
    void *assign_user;
    uint64_t *ordinals;       /* [batch_size x world] with assign, as below; owned */
    uint32_t *sources, *ranks;
};
int batch_plan_prepare(struct batch_plan *p, struct larder_error *err); /* makes the room */
void batch_plan_release(struct batch_plan *p);
uint64_t batch_plan_bytes(const struct batch_plan *p); /* of the room */
uint64_t batch_plan_length(const struct batch_plan *p); /* positions in an epoch */
/* Batch `number` of positions [from, length) of an epoch. First its size, by slicing_batch(); then the samples of that slice: ordinals[n],
 * with a mix sources[n], with assign positions[n] (else untouched), and position and valid as assign makes them. EINVAL: what the caller's
 * function gave cannot be; or what it returned. */
int batch_plan_fill(struct batch_plan *p, uint64_t epoch, uint64_t from, uint64_t number, struct slice *slice, uint64_t *ordinals,
                    uint32_t *sources, uint64_t *positions, struct larder_error *err);

/* ---- where a run stands (state.c): pure ---- */

/* A dataset of a run; weight: the bits of a mix's, else 0. */
struct state_source { uint8_t uuid[16], lineage[16]; uint64_t generation, samples, weight; };
struct state {
    uint64_t seed, order /* a digest */, epoch, position;
    bool mix;
    uint32_t n; /* 1 but for a mix */
    struct state_source *source; /* [n] */
};
void state_release(struct state *s); /* what decode made */
uint64_t order_digest(const struct order *o);
uint64_t batch_plan_digest(const struct batch_plan *p); /* all that the order of a run depends on */
int state_encode(const struct state *s, struct buf *out, struct larder_error *err);
int state_decode(const char *text, size_t len, struct state *s, struct larder_error *err); /* EINVAL: not one; EVERSION */
/* EINVAL naming the first thing that differs, with both values; length: of an epoch. generation may differ. */
int state_check(const struct state *saved, const struct state *now, uint64_t length, struct larder_error *err);

/* ---- what a loader's epochs are made of (recipe.c) ---- */

struct recipe_source {
    struct larder_dataset *ds;
    const struct subset *split; /* the dataset's */
    struct subset *subset;      /* owned, as the next two: the filter, or what of it is in the split */
    struct alias *alias;
    uint64_t *list;
};
struct recipe {
    struct batch_plan plan;
    struct mix *mix;            /* NULL: one dataset */
    struct recipe_source *source; /* [n] */
    uint32_t n;
    uint64_t *ends;
    uint64_t digest;            /* of all that the order depends on */
    uint64_t bytes;             /* of memory that filters, splits, weights, lists and what is beside them take */
    struct store **stores;      /* [n], as the next two */
    struct tiers **tiers;
    const char **uris;
    uint32_t **fields;          /* as in struct stage_options */
    uint32_t fields_max;
};
/* o has its defaults; sources[n]: 1 when it is no mix. What r points to does not move with it. */
int recipe_open(const struct larder_mix_source *sources, uint32_t n, bool mix, int exhausted, const struct larder_loader_options *o,
                struct recipe *r, struct larder_error *err);
void recipe_close(struct recipe *r, bool forked);
/* Have the datasets of a mix one schema, or the fields that outputs name? Says in r->fields which these are. EINVAL */
int recipe_join(struct recipe *r, const struct larder_output *outputs, size_t n_outputs, struct larder_error *err);
/* The state at the beginning of epoch 0: release it. */
int recipe_state(const struct recipe *r, struct state *s, struct larder_error *err);
/* May an epoch go on from this position? EINVAL. */
int recipe_position(const struct recipe *r, uint64_t position, struct larder_error *err);

/* ---- does a block shuffle mix the classes? (classes.c) ---- */

/* Different labels in a window of o, on average, and in the dataset, by a sample of both. */
int classes_in_windows(struct larder_dataset *ds, const struct order *o, uint32_t field, uint64_t *seen, uint64_t *classes,
                       struct larder_error *err);
/* Appends what there is to say of it, without a NUL; nothing where a window has half of the classes, or nobody can tell. */
int classes_warning(struct larder_dataset *ds, const struct order *o, struct buf *out, struct larder_error *err);

/* ---- what an epoch will cost (estimate.c) ---- */

struct estimate_in {
    double samples, bytes, shards; /* of the dataset */
    double own, batch, cached;     /* samples of the epoch, of a batch; share of them that tiers have */
    double gap, get_bytes, over_read; /* over_read: at most so many times what is wanted; 0: any number */
    bool in_order, streams;
};
double estimate_gets(const struct estimate_in *in, double *bytes); /* pure */
void estimate_epoch(const struct recipe *r, struct larder_loader_estimate *e);
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

/* ---- splits (split.c) ---- */

/* Keys whose hashes are in [lo, lo + span); span 0: all of them. */
struct split_part { uint64_t lo, span, seed; };
int split_part(double begin, double end, uint64_t seed, struct split_part *p, struct larder_error *err); /* EINVAL */
bool split_has(const struct split_part *p, const void *key, size_t len);
struct larder_dataset;
/* Who is in it: borrowed until split_put, which takes NULL too. Reads keys where the dataset does not have it at hand. span is not 0. */
int split_get(struct larder_dataset *ds, const struct split_part *part, const struct subset **s, struct larder_error *err);
void split_put(struct larder_dataset *ds, const struct subset *s);
void split_close(struct larder_dataset *ds); /* with the dataset */

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
    pthread_mutex_t lock;          /* guards readers, n_readers, splits */
    struct reader *readers;        /* idle ones */
    unsigned n_readers;
    struct split *splits;
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

/* ---- Prometheus text (metrics.c) ---- */

int metrics_write(const char *path, const struct buf *text, struct larder_error *err); /* replaces the file at path */
int metrics_loader(const struct larder_loader_stats *s, uint32_t rank, struct buf *out, struct larder_error *err);

/* ---- the staging buffer (stage.c) ---- */

struct stage;
struct prep;
struct trace;
struct decoded;
struct bad_notes;

struct stage_options {
    struct store *store;
    struct tiers *tiers;
    struct batch_plan plan;   /* what it points to outlives the stage, and is the fetch thread's */
    uint32_t n_sources;       /* of a mix; 0: one dataset, the two above */
    struct store *const *stores;   /* [n_sources], store and tiers being the first ones */
    struct tiers *const *tiers_of;
    const uint32_t *const *fields; /* [n_sources][fields of the first]: which field of its schema that is, UINT32_MAX: none. NULL: all are alike */
    uint32_t fields_max;           /* of any schema; 0: fields is NULL */
    uint64_t epoch, epochs;   /* the first; how many, 0: without end */
    uint64_t position;        /* where the first one begins */
    uint32_t queue_depth;
    size_t staging_bytes;
    uint32_t timeout_ms, notice_ms; /* 0: without end; never */
    larder_notice_fn *waiting;
    void *user;
    const struct prep *prep;  /* what becomes of the values; NULL: they are delivered as they are. Borrowed */
    uint32_t n_outputs;       /* of it */
    unsigned threads;         /* that decode; 0: the fetch thread does */
    uint64_t fetch_size, threshold; /* a window, in samples; fetch_size 0: as pays */
    struct decoded *decoded;  /* with prep, of one dataset; NULL: none. Borrowed */
    struct trace *trace;      /* NULL: none. Borrowed */
    bool replace;             /* bad samples, by others */
    const char *const *uris;  /* [n_sources, or 1]: of the datasets, for messages. NULL: not known */
};

/* The cache of a handle; NULL for NULL (cache_api.c). */
struct tiers_cache *cache_of(const struct larder_cache *c);

/* Of samples that went through the decoded cache, and how long decoding them took, or would have. */
struct decoded_counts { uint64_t hits, misses, decode_ns, saved_ns; };

/* What a batch cost, beside the batch. */
struct stage_cost {
    uint64_t fetch_stall_ns, prep_stall_ns; /* of the call that got it */
    uint64_t bytes;                         /* of its fields */
    struct tiers_counts io;                 /* what each tier gave */
    struct decoded_counts decoded;
    const struct bad_notes *bad;            /* of the batch, by position; borrowed until it is released */
};

int stage_open(const struct stage_options *o, struct stage **st, struct larder_error *err);
/* Ends its threads and frees all. */
void stage_close(struct stage *st);
/* In a forked child, which has none of its threads: frees memory only. */
void stage_abandon(struct stage *st);
/* The next batch of all epochs in order; the caller does not ask beyond the last. since_ns: when its wait began, if that was before this
 * call; else 0. EINVAL when the caller's own batches leave no room: it may release one and ask again; ETIMEOUT: it may ask again too.
 * Any other error ends the stage and comes again at every call. One thread at a time. */
int stage_next(struct stage *st, uint64_t since_ns, const struct larder_batch **batch, struct stage_cost *cost, struct larder_error *err);
/* Gives up what is not held and goes on at position of epoch, for so many epochs (0: without end). Not beside stage_next. What fails
 * here every call gives, as after any failure; another seek may mend it. */
int stage_seek(struct stage *st, uint64_t epoch, uint64_t epochs, uint64_t position, struct larder_error *err);
void stage_release(const struct larder_batch *batch);

#endif
