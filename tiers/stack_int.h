/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stack_int.h - inside tiers/: the cache object, its counters, and the way of one fetch through the tiers.
 *
 *     stats.c   counters and latencies (log-scale), and their text
 *     pace.c    whether a directory's disk is too slow to be of use (pure)
 *     cache.c   the cache: what is opened once, for any number of datasets
 *     variant.c what was made of records, in an arena of its own
 *     stack.c   one fetch: who has its records, who fetches them, who admits them
 *     stream.c  a remote origin read ahead of the epoch, once
 *     ahead.c   records of a remote origin that came before they were wanted
 */
#ifndef LARDER_TIERS_STACK_INT_H
#define LARDER_TIERS_STACK_INT_H

#include "tiers/cache_int.h"

enum tier { TIER_DRAM, TIER_NVME, TIER_ORIGIN, TIERS };

/* ---- stats.c ---- */

/* Four buckets an octave of nanoseconds: a percentile is right within 19%. */
#define HISTOGRAM_BUCKETS 256u
struct histogram { _Atomic uint64_t count[HISTOGRAM_BUCKETS], max; };
void histogram_add(struct histogram *h, uint64_t ns);
/* The value that `per_mille` thousandths of all do not exceed (the upper end of its bucket); 0: there are none. */
uint64_t histogram_at(const struct histogram *h, unsigned per_mille);

/* What this process took from a tier. */
struct tier_counter {
    _Atomic uint64_t hits, misses, bytes, requests;
    struct histogram latency;
};
void counter_add(struct tier_counter *c, const struct larder_tier_stats *s);
/* Fills the members of *out that a counter has. */
void counter_give(const struct tier_counter *c, struct larder_cache_tier *out);
/* Prometheus text of the tiers that are there. */
int stats_text(const char *cache, const struct larder_cache_stats *s, bool dram, bool nvme, struct buf *out, struct larder_error *err);

/* ---- pace.c: pure ---- */

/* Of one cache directory. Begins as zeros. */
struct pace { _Atomic uint64_t slow_reads, slow_since_ns, pause_ns, until_ns; };
/* A mean that follows: 0 is none yet. */
void pace_average(_Atomic uint64_t *average_ns, uint64_t took_ns);
/* A read of the directory has ended; the next tier's take next_tier_ns (0: not known). True: from now on it is passed by for a while. */
bool pace_read(struct pace *p, uint64_t took_ns, uint64_t next_tier_ns, uint64_t now_ns);
bool pace_passed(const struct pace *p, uint64_t now_ns);

/* ---- cache.c ---- */

#define NVME_DIRS_MAX 8u
#define WARNINGS_MAX (NVME_DIRS_MAX + 4)

struct tiers_cache {
    struct larder_cache_options o; /* name and nvme are not kept in it */
    char name[68];
    bool named;                    /* else it is private */
    struct share *share;           /* NULL: no DRAM */
    struct dram *dram;
    struct nvme *nvme[NVME_DIRS_MAX];
    unsigned n_nvme;
    pid_t pid;
    struct tier_counter counter[TIERS];
    char warnings[WARNINGS_MAX][256]; /* of opening */
    unsigned n_warnings;
    char slow_text[NVME_DIRS_MAX][256]; /* the warning when its disk is slow */
    atomic_bool slow[NVME_DIRS_MAX];    /* it was */
};

/* A dataset's place in a cache. Constant after open. */
struct bound {
    struct tiers_cache *cache;
    bool dram;                          /* it has a number there */
    uint32_t dram_space;
    struct nvme *nvme[NVME_DIRS_MAX];   /* those that gave it a number */
    uint32_t nvme_space[NVME_DIRS_MAX];
    unsigned nvme_at[NVME_DIRS_MAX];    /* in the cache */
    unsigned n_nvme;
    struct pace pace[NVME_DIRS_MAX];
    _Atomic uint64_t origin_ns;         /* that a read of the origin takes, in the mean */
    bool fill_nvme;                     /* records of the origin are copied there */
    atomic_bool filled;                 /* NVMe has admitted records since it was last flushed */
    _Atomic size_t coming;              /* of the origin, being fetched, that NVMe may admit */
    atomic_bool slow;                   /* its disk let us wait too long once */
    struct ahead *ahead;                /* of a remote origin */
    bool exclusive;                     /* MinIO, and NVMe has no room for the whole dataset: a record is either there or in DRAM */
};
/* An arena in memory of the node, or of the process (name NULL); *share and *dram are to be closed also on failure. */
int cache_arena_open(const char *name, uint64_t budget, enum replacement replacement, struct share **share, struct dram **dram,
                     struct larder_error *err);
void cache_arena_close(struct share *share, struct dram *dram); /* NULL is allowed */
uint64_t cache_contents(const struct manifest *m);
int cache_bind(struct tiers_cache *c, const struct manifest *m, bool local, struct bound **b, struct larder_error *err);
void cache_unbind(struct bound *b);

/* ---- stack.c ---- */

enum absent_state { ABSENT_READ, ABSENT_WAIT, ABSENT_AGAIN, ABSENT_DONE };
enum absent_from { FROM_ORIGIN, FROM_NVME, FROM_COPY, FROM_STREAM };

/* A record that has no view yet when the fetch is planned. */
struct absent {
    uint32_t i;              /* of the fetch's n */
    uint32_t k;              /* in the plan that reads it */
    uint8_t from, state, found; /* enum absent_from, absent_state, tier */
    bool claimed, wanted;    /* wanted: a tier would admit it */
    bool coming;             /* another process is writing it to NVMe */
    bool first, ahead;       /* nobody here wanted it before; and it is in a tier by now */
    uint8_t dir;             /* of NVMe */
    uint8_t again;           /* how often it was read anew because its CRC failed */
    size_t at;               /* room in the fetch's memory: for what NVMe reads, or for the record's bytes; SIZE_MAX: none */
    size_t again_at;         /* where NVMe read it in the second run */
    struct extent extent;    /* as it lies at the origin */
    struct nvme_place place;
};

struct fetch_stack {
    struct bound *b;
    uint64_t *ordinals;
    const void **views;
    struct absent *absent;
    uint64_t *ask;           /* ordinals of a part of the records: of those in the plan that was made last */
    struct extent *extents;  /* theirs */
    size_t cap_ordinals, cap_views, cap_absent, cap_ask, cap_extents;
    size_t n, n_absent, settled;
    size_t n_first;          /* of the hits: their first want, of what came ahead */
    size_t gap;              /* settled: the first want of the run behind which nobody has looked yet (ahead.c) */
    struct plan again;       /* of the second round */
    uint8_t *again_memory;
    size_t again_cap;
    uint64_t used;           /* bytes of the origin that were wanted */
    size_t coming;           /* records that NVMe may admit: counted in bound.coming while started */
    struct stream_want *wants; /* [n_stream]; absent.k is the place */
    size_t cap_wants;
    bool started;            /* the wants may be listed */
    size_t n_stream, stream_at; /* records that the stream is to bring; all before stream_at have come, or are ours to fetch */
    uint32_t bell;           /* of the stream, before they were looked for */
    uint64_t deadline_ns;    /* for others to come up with what they fetch */
    uint64_t written_ns;     /* and for what they write */
    struct tiers_counts counts;
};

void stack_free(struct fetch_stack *k);
/* Plans f for its n ordinals; *bytes as tiers_fetch_plan. */
int stack_plan(struct tiers_fetch *f, const uint64_t *ordinals, size_t n, size_t *bytes, struct larder_error *err);
/* Everything is there: nothing to read or copy. */
bool stack_all_hit(const struct tiers_fetch *f);
/* Notes what is wanted. */
void stack_wants(struct tiers_fetch *f);
/* Claims what is absent and settles which segments the first round reads. */
int stack_start(struct tiers_fetch *f, struct larder_error *err);
/* A run has been read: checks and admits its records, a portion a call. False: there is more. */
bool stack_settle(struct tiers_fetch *f);
enum stack_step { STACK_DONE, STACK_READ, STACK_WAIT, STACK_FAILED };
/* What next, when a run is settled. STACK_READ: f->run is to be read; STACK_WAIT: others fetch what is missing, ask again. */
enum stack_step stack_next(struct tiers_fetch *f);
/* Blocks until the first record that others fetch may be there, or w is woken. The caller has settled all that it claimed. */
void stack_wait(struct tiers_fetch *f, struct waker *w);
/* The NVMe read of absent record a failed: it comes from the origin. */
void stack_nvme_failed(struct tiers_fetch *f, uint32_t a);
/* A read has ended: of absent record a from NVMe, or of the origin (a: UINT32_MAX). */
void stack_took(struct tiers_fetch *f, uint32_t a, uint64_t ns);
/* The fetch is over, well or not: gives claims up and counts. */
void stack_end(struct tiers_fetch *f);
/* Would a tier take it? */
bool stack_wanted(const struct bound *b, uint64_t ordinal);
/* Into DRAM, and into NVMe: as a copy when there is room for the whole dataset, else what DRAM refused. Which tier has it now: NOT, NVME or
 * DRAM. */
enum admitted { ADMITTED_NOT, ADMITTED_LATER, ADMITTED_NVME, ADMITTED_DRAM, ADMITTED_OWED };
enum admitted stack_admit(struct bound *b, uint64_t ordinal, const struct cached *c, bool from_nvme);
/* The same without waiting for a disk. LATER: no tier has it yet, and stack_admit is to be called; OWED: DRAM has it, and NVMe is to get it
 * by stack_copy. owe: what DRAM takes is not copied to NVMe now. */
enum admitted stack_admit_now(struct bound *b, uint64_t ordinal, const struct cached *c, bool owe);
/* Copies those of n <= 64 records to NVMe that lie in DRAM alone; waits for the disk. No replacement. */
void stack_copy(struct bound *b, const uint64_t *ordinals, size_t n);

/* ---- stream.c ---- */

struct stream;
/* Is a record of that shard still to come? s NULL: no. */
bool stream_takes(const struct stream *s, uint32_t shard);
/* May so many bytes be fetched out of turn? They are counted. */
bool stream_allow(struct stream *s, uint64_t bytes);
/* A record that a fetch leaves to the stream, for which it has room. Where DRAM does not take the record, its checked bytes are copied
 * there when they come, and `came` is set. */
struct stream_want {
    uint64_t ordinal;
    uint8_t *to;
    uint32_t len;
    bool listed;             /* under the stream's lock of wants */
    atomic_bool came;
    struct stream_want *next;
};
void stream_want(struct stream *s, struct stream_want *w);   /* filled in but for what the stream says */
void stream_unwant(struct stream *s, struct stream_want *w); /* after it nobody writes there. Any number of times */
_Atomic uint32_t *stream_bell(struct stream *s); /* changes when something came, or the stream is over */
void stream_account(struct stream *s, struct larder_tier_stats *origin); /* adds what was not yet counted */

/* ---- ahead.c ---- */

struct ahead;
int ahead_new(uint64_t samples, struct ahead **a, struct larder_error *err);
void ahead_free(struct ahead *a);
enum ahead_state { AHEAD_NONE, AHEAD, AHEAD_WANTED, AHEAD_CAME };
void ahead_note(struct ahead *a, uint64_t ordinal);             /* it is in a tier, unasked for */
enum ahead_state ahead_want(struct ahead *a, uint64_t ordinal); /* it is wanted: how did it stand before? */
bool ahead_came(const struct ahead *a, uint64_t ordinal);       /* unasked for, after it was first wanted */
bool ahead_some(const struct ahead *a);                         /* are any ahead? NULL: none */
/* absent[i]: no tier has ordinals[i]; n <= 64. How many. */
size_t ahead_absent(const struct bound *b, const uint64_t *ordinals, size_t n, bool *absent);
/* Bytes that nobody asked for, of record e: into a tier, if they are whole. */
bool ahead_admit(struct bound *b, uint64_t ordinal, const struct extent *e, const uint8_t *stored);
/* The run of f was read and settled: admits what lies in its gaps, about `budget` bytes a call. False: there is more. */
bool ahead_settle(struct tiers_fetch *f, size_t budget);

#endif
