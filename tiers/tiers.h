/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers.h - the door of tiers/: where the bytes of records come from.
 *
 * A fetch is one batched read of many ordinals. Planning it locates the records and joins neighbours into segments; starting it
 * puts the segments on a queue; it completes once, when every record's bytes lie in memory. A queue belongs to one thread and
 * keeps `depth` reads in flight over all fetches started on it. With a cache, DRAM and NVMe are asked first: a fetch whose
 * records all lie in DRAM completes when it is started, and its records are views of that memory.
 */
#ifndef LARDER_TIERS_H
#define LARDER_TIERS_H

#include "store/store.h"

/* ---- a cache: the tiers in front of origins, for any number of stacks (cache.c) ---- */

struct tiers_cache;
/* Options are as in larder.h, checked here. */
int tiers_cache_open(const struct larder_cache_options *o, struct tiers_cache **c, struct larder_error *err);
void tiers_cache_close(struct tiers_cache *c); /* after its stacks, and when no view is used any more */
void tiers_cache_stats(const struct tiers_cache *c, struct larder_cache_stats *out);
const char *tiers_cache_warning(const struct tiers_cache *c, size_t i); /* NULL: there are fewer */
int tiers_cache_text(const struct tiers_cache *c, struct buf *out, struct larder_error *err); /* Prometheus text */
/* A directory of a cache, in use or not (nvme_info.c): as in larder.h. */
int tiers_cache_dir_info(const char *dir, struct larder_cache_dir_info *out, struct larder_cache_dataset *datasets, size_t cap,
                         struct larder_error *err);
int tiers_cache_dir_clear(const char *dir, uint64_t *freed, struct larder_error *err);
/* The cache of a stack; NULL: it has none. */
struct tiers;
const struct tiers_cache *tiers_cache_of(const struct tiers *t);
/* The name of a stack's cache; NULL: it is private; "default": it has none. */
const char *tiers_cache_name(const struct tiers *t);
/* EFORK in a forked child. */
int tiers_cache_check(const struct tiers_cache *c, struct larder_error *err);

/* ---- variants: what was made of records, in memory of the node (variant.c) ---- */

struct tiers_variant;
struct tiers_variant_options {
    const char *name;     /* of the cache beside which it stands: processes of a user with the same one share; NULL: private */
    uint64_t bytes;       /* all processes together, bookkeeping included: hard */
    uint64_t fingerprint; /* of what is made of a record: another one is another space */
    bool no_pin;
};
/* Opens or joins. m is the dataset's (only during the call). EINVAL, ENOMEM, EIO as a cache's DRAM. */
int tiers_variant_open(const struct manifest *m, const struct tiers_variant_options *o, struct tiers_variant **v, struct larder_error *err);
void tiers_variant_close(struct tiers_variant *v); /* NULL is allowed; in a forked child memory only */
/* As dram_lookup: views[i] NULL is a miss, extents[i] has stored_len, raw_len and codec of the others. Nothing is replaced: views stay until
 * close. Any number of threads, without locks. */
size_t tiers_variant_lookup(struct tiers_variant *v, const uint64_t *ordinals, size_t n, struct extent *extents, const void **views);
/* Copies it in, if there is room; what is there already stays. Whether it is there now. Any thread. */
bool tiers_variant_put(struct tiers_variant *v, uint64_t ordinal, const void *bytes, uint32_t len, uint32_t raw_len, uint8_t codec);
bool tiers_variant_full(const struct tiers_variant *v); /* a put is refused, as there was no room before */
struct tiers_variant_stats {
    uint64_t budget_bytes, used_bytes, entries, refusals; /* of all variants and processes that share it */
    bool shared, joined;
    const char *warning; /* of opening; NULL: none. Valid until close */
};
void tiers_variant_stats(const struct tiers_variant *v, struct tiers_variant_stats *out);

/* ---- pinned memory (pin.c) ---- */

/* A region of this process that devices are to read from: locked as far as RLIMIT_MEMLOCK goes, in huge pages where base is a multiple of
 * 2 MiB, and registered with CUDA where that is of use (cuda.c), all from its beginning as it is taken into use. The memory is the
 * caller's. */
struct pinned;
struct pinned_stats {
    uint64_t locked, collapsed, registered; /* bytes */
    const char *lock_warning, *cuda_warning; /* NULL: none; borrowed until pinned_free */
};
/* no_pin and cuda_device are taken from o; NULL: their defaults. */
int pinned_new(void *base, const struct larder_cache_options *o, struct pinned **p, struct larder_error *err);
/* [base, base + end) is in use. Any thread. The driver is asked by a thread of its own, so registering takes effect a little later. It
 * refuses to copy in one piece what lies across the end of a registration: pass only an `end` that nothing which is copied ever lies
 * across, best all of it in one call. Registering populates memory. */
void pinned_grow(struct pinned *p, uint64_t end);
/* Registers [base, base + end) alone, if this process uses CUDA by now, and else does nothing: for memory that is in use all the time anyway.
 * Ask again when it may have begun to, as tiers_register is asked. */
void pinned_register(struct pinned *p, uint64_t end);
void pinned_stats(const struct pinned *p, struct pinned_stats *out);
void pinned_free(struct pinned *p); /* unregisters: before the memory goes. NULL is allowed; in a forked child it only gives back memory */

/* ---- the stack ---- */

struct tiers;
struct remote;
struct tiers_options {
    unsigned queue_depth; /* reads in flight a queue; 0: 64 */
    unsigned files_max;   /* shard files open at once, over all queues; 0: 512, less where RLIMIT_NOFILE is low */
    int direct;           /* enum larder_direct */
    struct tiers_cache *cache; /* NULL: none; borrowed */
    struct remote *remote;     /* the shards are objects below it; NULL: files of the io's local root. Borrowed */
};
/* s is borrowed and must outlive the stack; its io has a local root or is a remote one. */
int tiers_open(struct store *s, const struct tiers_options *o, struct tiers **t, struct larder_error *err);
void tiers_close(struct tiers *t);
bool tiers_direct(const struct tiers *t);        /* what AUTO came to */
bool tiers_remote(const struct tiers *t);        /* the origin is a bucket or a web server */
/* What goes on at a remote origin, for who waits: "64 GETs in flight, 61 retries (503), ..."; false: it is none. */
bool tiers_state(const struct tiers *t, char out[160]);
/* How a remote origin is read, and what that costs (larder_remote_options); false: it is none. */
struct tiers_remote_rules { uint64_t gap_bytes, get_bytes, over_read_share; double price_get, price_gb; }; /* share: of what is wanted */
bool tiers_remote_rules(const struct tiers *t, struct tiers_remote_rules *r);
/* How many of n samples a tier has now. */
size_t tiers_cached(const struct tiers *t, const uint64_t *ordinals, size_t n);
/* Ranges of records failed their CRC: are they worth reading again? Whole records are read again by themselves. */
bool tiers_read_again(struct tiers *t);
const char *tiers_engine(const struct tiers *t); /* "io_uring" or "pread" */

struct tiers_stats { uint64_t requests, bytes; }; /* reads submitted, bytes fetched: padding of O_DIRECT included */

/* A queue: one thread at a time, in the process that opened it; closed before its stack. Fork: in a child every call but the
 * closes is EFORK, and those only give back memory and descriptors. */
struct tiers_queue;
int tiers_queue_open(struct tiers *t, unsigned depth, struct tiers_queue **q, struct larder_error *err); /* depth 0: the stack's */
void tiers_queue_close(struct tiers_queue *q); /* waits for reads in flight, so that their memory may be freed */
/* Any thread: the queue is to be closed. It waits for other processes no more: its tiers_queue_next returns what is done or END. */
void tiers_queue_cancel(struct tiers_queue *q);
/* Any thread, and the queue goes on: a tiers_queue_next that waits, or the next one that would, returns soon, perhaps with END. Where it waits
 * for a local disk, that is when a read ends. */
void tiers_queue_wake(struct tiers_queue *q);
/* A remote origin: what is started is not read before the cork is off, so that neighbours travel in one GET over many fetches. */
void tiers_queue_cork(struct tiers_queue *q, bool corked);
struct tiers_stats tiers_queue_stats(const struct tiers_queue *q);
/* Memory that reads will land in, registered with the ring where the kernel lets us: a hint. At most once a queue. */
void tiers_queue_register(struct tiers_queue *q, void *memory, size_t len);

/* One batched read; reusable: its arrays grow to the largest batch and stay. */
struct tiers_fetch;
int tiers_fetch_new(struct tiers *t, struct tiers_fetch **f, struct larder_error *err);
void tiers_fetch_free(struct tiers_fetch *f); /* not while started */
/* Locates n ordinals and plans the segments. *bytes gets the memory that tiers_fetch_start needs. */
int tiers_fetch_plan(struct tiers_fetch *f, const uint64_t *ordinals, size_t n, size_t *bytes, struct larder_error *err);
/* The same, for byte ranges inside records (single fields): range i of record ordinals[i]. */
int tiers_fetch_plan_ranges(struct tiers_fetch *f, const struct extent *extents, const struct field_range *ranges, size_t n,
                            size_t *bytes, struct larder_error *err);
/* A remote origin: at most so many bytes of gaps between records are read with a fetch. 64 MiB where nothing is said. */
void tiers_fetch_limit(struct tiers_fetch *f, uint64_t over_read_max);
/* Starts it on q. memory: 4096-aligned, the planned bytes, untouched until completion. tag comes back with the completion. */
int tiers_fetch_start(struct tiers_queue *q, struct tiers_fetch *f, void *memory, void *tag, struct larder_error *err);
/* A completed fetch: LARDER_OK with *f and *tag; LARDER_END: nothing is in flight, or wait is false and none is done,
 * or the queue was cancelled. A failed
 * read is LARDER_EIO or LARDER_ECORRUPT (file ends early), or what a server said, with *f and *tag set: that fetch is over, others go on. Wait blocks. */
int tiers_queue_next(struct tiers_queue *q, bool wait, struct tiers_fetch **f, void **tag, struct larder_error *err);
/* Record i of the plan's n: what it is (after planning) and where it is (after completion). */
const struct extent *tiers_fetch_extent(const struct tiers_fetch *f, size_t i);
const void *tiers_fetch_record(const struct tiers_fetch *f, size_t i);
/* The reads and bytes (padding included) that the plan makes of the origin. */
struct tiers_stats tiers_fetch_stats(const struct tiers_fetch *f);
/* After completion, with a cache: where all n records lie; NULL without. */
const void *const *tiers_fetch_views(const struct tiers_fetch *f);
const struct extent *tiers_fetch_extents(const struct tiers_fetch *f);
/* After planning: every record is in DRAM, and stays. */
bool tiers_fetch_is_hit(const struct tiers_fetch *f);
/* What a fetch took from each tier, after completion, so that it can be counted where the batch is delivered. */
struct tiers_counts { struct larder_tier_stats dram, nvme, origin; };
struct tiers_counts tiers_fetch_counts(const struct tiers_fetch *f);
/* Which tiers stand in front of the origin. */
bool tiers_has_dram(const struct tiers *t);
bool tiers_has_nvme(const struct tiers *t);
/* The options of the stack's cache, for pinned_new; NULL: none. */
const struct larder_cache_options *tiers_pin_options(const struct tiers *t);
/* An epoch begins or is over: DRAM that is not registered with CUDA yet is, if this process uses CUDA by now. Never waits. */
void tiers_register(const struct tiers *t);

/* Records that were admitted to NVMe are found there only when they are written. Between two epochs, with nothing in flight,
 * tiers_settle waits for those (a few seconds at most, once), so that the next epoch finds all of them. */
bool tiers_filling(const struct tiers *t); /* there are such */
void tiers_settle(struct tiers *t);

/* A first epoch over a remote origin with room for all of it in the tiers: its shards come in large GETs, behind what is waited for.
 * Would they? */
bool tiers_streams(const struct tiers *t);
/* Whoever was told true stops it too, after his patient fetches: those wait for what is to come. */
bool tiers_stream_start(struct tiers *t);
void tiers_stream_stop(struct tiers *t);
/* For who was told true: is it still coming? And waits until it is over, 2 s at most: an epoch that has had all is over with it. */
bool tiers_stream_runs(const struct tiers *t);
void tiers_stream_settle(struct tiers *t);
void tiers_fetch_patient(struct tiers_fetch *f); /* from the next plan on */

/* Blocking: reads a planned fetch through a queue of the stack's own. Any number of threads, a fetch each. */
int tiers_read(struct tiers *t, struct tiers_fetch *f, void *memory, struct larder_error *err);

#endif
