/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage_int.h - inside the staging buffer: what its files share.
 *
 *     stage.c   the region, the slots, the consumer's calls, open, seek and close
 *     fetch.c   the fetch thread: plans batches, finds room for them, starts their reads
 *     work.c    decode: portions of fetched batches, by worker threads or by the fetch thread itself
 *     mend.c    records read again, and other samples in the place of bad ones
 */
#ifndef LARDER_STAGE_INT_H
#define LARDER_STAGE_INT_H

#include "loader/feed.h"
#include "loader/loader_int.h"
#include "loader/prep_int.h"

/* A sample of a batch when there is a decoded cache: its stored form, or which of the batch's reads its record is. */
struct kept { const void *view; uint32_t len, read; };

enum slot_state { SLOT_FREE, SLOT_FETCHING, SLOT_FETCHED, SLOT_READY, SLOT_HELD };

/* A part of the region, in whole pages. */
struct piece { size_t offset, len; };

struct slot {
    struct larder_batch batch;   /* batch.owner is the slot */
    struct stage *stage;
    enum slot_state state;       /* under stage->lock */
    struct feed_batch *reads;
    uint64_t seq;
    struct piece lasting, passing; /* until it is released; until its arrays are made. Without arrays the first holds all */
    /* In the passing one: records, scratch, where the scratch of each sample begins, values. In the lasting one: ordinals, positions, arrays. */
    size_t scratch_at, scratches_at, kept_at, values_at, ordinals_at, positions_at, sources_at, arrays_at;
    uint32_t n_reads;            /* records: its samples but for those that were found decoded */
    uint64_t raw_bytes, raw_max; /* of its records, and of what is kept of the others */
    uint64_t units;              /* what it counts in the window */
    struct larder_value *values;
    uint64_t *ordinals;          /* batch.ordinals, */
    uint32_t *sources;           /* and batch.sources */
    struct kept *kept;           /* [n]; NULL: there is no decoded cache */
    uint64_t *scratches;         /* [n_reads], from scratch_at; NULL: no record is compressed */
    uint8_t *scratch;
    struct prep_batch prep;
    uint64_t start_ns, fetched_ns, ready_ns, held_ns; /* when it came that far; ready, held: with a trace only */
    struct stage_cost cost;

    /* While it is FETCHED, under stage->lock (work.c). */
    uint32_t claimed, portion;   /* samples that some thread has taken; that one takes at once */
    unsigned working;            /* threads at its portions */
    bool all_claimed;
    uint32_t failed_at;          /* the first sample that failed; UINT32_MAX: none did */
    struct larder_error failure;
    uint64_t mended_bytes, mended_max; /* of values that stand in for bad ones (mend.c) */
    struct spare *spares;        /* memory of records that were read alone */
    struct bad_notes bad;        /* the fetch thread's before it is FETCHED */
    bool alone;                  /* its reads failed as damaged: each record is to be read alone. Constant while it is FETCHED */
    struct slot *next;           /* in stage->work, by seq */
};

struct worker {
    struct stage *stage;
    struct decoder *decoder;
    struct prep_worker *prep;    /* NULL: batches have values */
    struct decoded_worker *decoded; /* NULL: there is no decoded cache */
    struct decoded_counts counts; /* of a portion */
    struct larder_value *values; /* of a record of another schema; NULL: all are of one */
    struct trace_batch batch;    /* at whose portions it has been without a break, since begin_ns; samples 0: at none */
    uint64_t begin_ns, end_ns;
    struct lone *lone;           /* [sources]: for records read alone; NULL: there were none yet. Changed under the lock */
    pthread_t thread;
};

struct stage {
    /* constant once open */
    struct stage_options o;      /* but where it begins: stage_seek */
    uint32_t n_fields, batch_n;  /* samples of a full batch, no more than there are */
    uint32_t n_sources;
    struct feed *feed;           /* open while the fetch thread runs, and its */
    uint8_t *region;
    struct pinned *pinned;       /* NULL: it cannot be */
    unsigned slots_max;
    bool streams;                /* the tiers read ahead for us */
    bool dense;                  /* records of a window lie so near each other that they share GETs */
    bool cork;                   /* windows are kept back until they are whole */
    struct worker *workers;      /* [max(n_workers, 1)]: without workers the fetch thread uses the first */
    unsigned n_workers;
    pid_t pid;

    /* constant between two seeks */
    uint64_t batches, first_batches; /* of an epoch; of the first one */
    unsigned n_threads;          /* of the workers' that run */
    bool fetching;               /* the fetch thread runs */
    pthread_t thread;

    /* the fetch thread's */
    uint64_t *ordinals;          /* of the batch being planned, */
    uint64_t *positions;         /* where they stand; NULL: from the batch's position on, */
    uint32_t *sources;           /* and of which dataset they are; NULL: there is one */
    uint64_t *missing;           /* of a decoded cache, as the next two: ordinals of the batch being planned that it has not, */
    struct extent *views_are;    /* what it has of each, */
    const void **views;          /* and where */
    uint64_t plan_epoch, plan_number;
    struct slot *planned;        /* waits for room */
    bool full_once;              /* the region was, so that it is registered */
    bool wants_space;            /* the next batch waits for room, or for a window to fall due: nothing else */
    struct feed_batch *alone;    /* of one record, while it is under way (fetch_alone) */
    int alone_rc;
    struct larder_error alone_error;
    bool registered;

    atomic_bool stop;            /* set with the lock held */

    pthread_mutex_t lock;        /* guards all below and slot->state */
    pthread_cond_t ready, space, some_work;
    struct slot **slots, **by_seq;
    struct piece **live;
    unsigned n_slots, n_live, n_busy; /* n_busy: FETCHING or FETCHED */
    unsigned n_held;             /* by the caller */
    unsigned n_idle;             /* workers that wait for some_work */
    struct slot *work;           /* FETCHED, oldest first */
    uint64_t next_seq, plan_seq;
    struct window window;        /* in samples where the options say so, else in bytes of pieces */
    bool windowed;               /* it is set: its size in bytes is known with the first batch */
    int open_rc;                 /* of the fetch thread's own opening */
    bool opened, blocked, consumer_waits;
    bool fetcher_waits, fetcher_reads; /* for `space`; in the feed, though it wants space */
    size_t blocked_bytes;        /* what the planned batch needs */
    uint64_t fail_seq;           /* UINT64_MAX: none */
    struct larder_error fail;
};

/* ---- stage.c ---- */

/* A free slot, made when there is none yet; *out is NULL, and the stage blocked, when all are in use. Fetch thread. */
int stage_slot(struct stage *st, struct slot **out, struct larder_error *err);
/* Finds room for s, or else blocks. With the lock held, as all below. */
bool stage_place(struct stage *st, struct slot *s);
/* Its passing piece is given back. */
void stage_shrink(struct stage *st, struct slot *s);
/* The batch numbered seq cannot be delivered. */
void stage_fail(struct stage *st, uint64_t seq, const struct larder_error *e);

static inline struct trace_batch stage_traced(const struct slot *s)
{
    return (struct trace_batch){s->seq, s->batch.epoch, s->batch.number, s->batch.n};
}

/* ---- fetch.c ---- */

void *fetch_main(void *stage);
/* Plans the reads of st->ordinals: of those that are not found decoded. */
int fetch_plan(struct stage *st, struct slot *s, size_t *bytes, struct larder_error *err);
/* Reads b on the thread's own feed, and takes what else completes meanwhile: that thread holds claims of other batches, for which another
 * queue would wait in vain. LARDER_END: all is cancelled. */
int fetch_alone(struct stage *st, struct feed_batch *b, void *memory, struct larder_error *err);

/* ---- work.c ---- */

int work_open(struct stage *st, struct larder_error *err); /* st->n_workers is set; what was made is freed by work_close */
void work_close(struct stage *st);
void *work_main(void *worker);
/* s has been fetched; lock held. */
void work_add(struct stage *st, struct slot *s);
/* Without workers: a portion of the oldest batch, by the fetch thread. False: there is none. */
bool work_some(struct stage *st);
void work_end(struct stage *st); /* that thread ends */
/* Of a record of that source, as the first dataset has its fields. */
void work_remap(const struct stage *st, uint32_t source, const struct larder_value *from, struct larder_value *to);
/* The arrays of sample i, for which `ordinal` is taken, of the values in its place. */
int work_arrays(struct worker *w, struct slot *s, uint32_t i, uint64_t ordinal, struct larder_error *err);

/* ---- mend.c ---- */

/* Where a sample stands in its epoch. */
static inline uint64_t stage_position(const struct stage *st, const struct slot *s, uint32_t i)
{
    return s->batch.positions ? s->batch.positions[i] : (s->batch.position + i) % batch_plan_length(&st->o.plan);
}

void mend_begin(struct slot *s);   /* a batch is planned in it */
void mend_release(struct slot *s);
void mend_cancel(struct stage *st); /* reads under way end; lock held */
void mend_close(struct worker *w);  /* which does not run */
/* A record by itself, twice if it is damaged: its values, in memory of the slot. */
struct which { uint64_t ordinal; uint32_t source; };
int mend_read(struct worker *w, struct slot *s, struct which x, struct larder_value *values, struct larder_error *err);
/* Sample i is bad, and that is why: refuses it, or puts another one in its place. */
int mend_sample(struct worker *w, struct slot *s, uint32_t i, const struct larder_error *why, struct larder_error *err);
/* Some of the planned batch cannot be located: plans it with others in their place. */
int mend_plan(struct stage *st, struct slot *s, size_t *bytes, struct larder_error *err);
/* Before the arrays of a batch end: with records in it that it was not planned with they may need more room. */
int mend_room(struct worker *w, struct slot *s, struct larder_error *err);

#endif
