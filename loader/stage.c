/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.c - the staging buffer: a bounded ring of batches that are filled ahead and handed over in order (HDMLP, class 0).
 *
 *              plan, place, start         completion        all decoded         stage_next        stage_release
 *     FREE ------------------------> FETCHING ------> FETCHED --------> READY ------------> HELD ------------> FREE
 *
 * One fetch thread owns the queue of reads, the decoder and every batch from FREE to READY. It plans batches in epoch
 * order, running on across the end of an epoch, as long as there is a slot and room; it decodes fetched batches oldest
 * first in small portions, and looks after the queue between two portions so that the device is never left without work.
 *
 * All bytes of a batch (records, decoded values, ordinals) lie in one piece of one region of staging_bytes, the hard bound.
 * A batch takes the first gap that is large enough, so a loader of small batches touches only the beginning of the region.
 *
 * Invariants:
 *   1. Sequence numbers count batches over all epochs. [next_seq, plan_seq) are exactly the slots FETCHING to READY, and
 *      there are at most n_slots of them: by_seq[seq % slots_max] finds each.
 *   2. live[] holds the slots that own a piece of the region, by offset.
 *   3. Batches before fail_seq are handed over even when a later one has failed; then the failure is, for ever.
 *      A wait that ends without a batch (ETIMEOUT, too many held) leaves everything as it is.
 *   4. The fetch thread waits either for the queue (reads in flight) or for `space` (none in flight), the consumer for
 *      `ready`; each side signals only when the other says that it waits.
 *
 * Threads: the fetch thread; the consumer's calls (one at a time); stage_release from any thread.
 */
#include "loader/loader_int.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SLOTS_MIN 16
#define SLOTS_MAX 512
#define PORTION_RECORDS 64
#define PORTION_BYTES (512 * KIB)
#define WINDOW_RECORDS 4096 /* of small ones, in as many batches as it takes */
#define WINDOW_LEFT 4   /* the next window is requested when a quarter of the region is in use */
#define REGISTER_MAX (256 * MIB) /* of the region, with the queue */

enum slot_state { SLOT_FREE, SLOT_FETCHING, SLOT_FETCHED, SLOT_READY, SLOT_HELD };

struct slot {
    struct larder_batch batch;   /* batch.owner is the slot */
    struct stage *stage;
    enum slot_state state;       /* under stage->lock */
    struct tiers_fetch *fetch;
    uint64_t seq;
    size_t offset, len;          /* its piece of the region */
    size_t values_at, ordinals_at, scratch_at; /* in the piece, after the records */
    struct larder_value *values;
    uint32_t decoded;            /* records done */
    bool compressed;             /* some record is */
    uint64_t fetched_ns;
    struct stage_cost cost;
    struct slot *next;           /* in the fetch thread's list of fetched ones, by seq */
};

struct stage {
    /* constant once open */
    struct stage_options o;
    uint32_t n_fields, batch_n;  /* samples of a full batch, no more than there are */
    uint64_t batches, first_batches; /* of an epoch; of the first one */
    uint8_t *region;
    unsigned slots_max;
    bool streams;                /* the tiers read ahead for us */
    bool windows;                /* batches are requested many at a time (DELI III-B): the next ones when a quarter of the region is left */
    pthread_t thread;
    pid_t pid;

    /* the fetch thread's */
    struct tiers_queue *queue;
    struct decoder *decoder;
    uint64_t *ordinals;          /* of the batch being planned */
    uint64_t plan_epoch, plan_number;
    struct slot *planned;        /* waits for room */
    size_t in_flight;
    struct slot *fetched;
    bool registered;

    pthread_mutex_t lock;        /* guards all below and slot->state */
    pthread_cond_t ready, space;
    struct slot **slots, **by_seq, **live;
    unsigned n_slots, n_live, n_busy; /* n_busy: FETCHING or FETCHED */
    uint64_t next_seq, plan_seq;
    int open_rc;                 /* of the fetch thread's own opening */
    bool opened, stop, blocked, consumer_waits, fetcher_waits;
    bool resting;                /* windows: a window is requested, the next one not yet due */
    size_t live_bytes;
    size_t blocked_bytes;        /* what the planned batch needs */
    uint64_t fail_seq;           /* UINT64_MAX: none */
    struct larder_error fail;
};

/* ---- the region ---- */

/* Finds room for s. Called with the lock held. */
static bool place(struct stage *st, struct slot *s)
{
    size_t at = 0;
    unsigned i;

    for (i = 0; i < st->n_live && st->live[i]->offset - at < s->len; i++)
        at = st->live[i]->offset + st->live[i]->len;
    if (i == st->n_live && st->o.staging_bytes - at < s->len)
        return false;
    memmove(&st->live[i + 1], &st->live[i], (st->n_live - i) * sizeof(*st->live));
    st->live[i] = s;
    st->n_live++;
    st->live_bytes += s->len;
    s->offset = at;
    return true;
}

/* With the lock held. */
static void unplace(struct stage *st, struct slot *s)
{
    unsigned i = 0;

    while (st->live[i] != s)
        i++;
    st->n_live--;
    st->live_bytes -= s->len;
    memmove(&st->live[i], &st->live[i + 1], (st->n_live - i) * sizeof(*st->live));
}

/* ---- slots ---- */

static void slot_free(struct slot *s)
{
    if (!s)
        return;
    tiers_fetch_free(s->fetch);
    free(s);
}

static int slot_new(struct stage *st, struct slot **out, struct larder_error *err)
{
    struct slot *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return err_nomem(err, sizeof(*s), "batch");
    rc = tiers_fetch_new(st->o.tiers, &s->fetch, err);
    if (rc) {
        free(s);
        return rc;
    }
    tiers_fetch_limit(s->fetch, st->o.staging_bytes / 4);
    if (st->streams)
        tiers_fetch_patient(s->fetch);
    s->stage = st;
    s->batch.owner = s;
    *out = s;
    return 0;
}

/* Whoever waits for a batch looks again, for there may be none until the caller releases one. With the lock held. */
static void block(struct stage *st, size_t bytes)
{
    st->blocked = true;
    st->resting = st->windows;
    st->blocked_bytes = bytes;
    if (st->consumer_waits)
        pthread_cond_signal(&st->ready);
}

/* A free slot, made when there is none yet; *out is NULL, and the stage blocked, when all are in use. Fetch thread. */
static int slot_take(struct stage *st, struct slot **out, struct larder_error *err)
{
    unsigned i, n;
    int rc;

    *out = NULL;
    pthread_mutex_lock(&st->lock);
    n = st->n_slots;
    for (i = 0; i < n; i++)
        if (st->slots[i]->state == SLOT_FREE) {
            *out = st->slots[i];
            break;
        }
    if (!*out && n == st->slots_max)
        block(st, 0);
    pthread_mutex_unlock(&st->lock);
    if (*out || n == st->slots_max)
        return 0;
    rc = slot_new(st, out, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&st->lock);
    st->slots[st->n_slots++] = *out;
    pthread_mutex_unlock(&st->lock);
    return 0;
}

/* ---- planning (fetch thread) ---- */

/* The batch numbered seq cannot be delivered. */
static void fail(struct stage *st, uint64_t seq, const struct larder_error *e)
{
    pthread_mutex_lock(&st->lock);
    if (seq < st->fail_seq) {
        st->fail_seq = seq;
        st->fail = *e;
    }
    if (st->consumer_waits)
        pthread_cond_signal(&st->ready);
    pthread_mutex_unlock(&st->lock);
}

/* Where the parts of a batch lie in its piece: records, scratch, values, ordinals. */
static void lay_out(struct stage *st, struct slot *s, size_t record_bytes)
{
    const struct extent *e;
    size_t scratch = 0, at = round_up(record_bytes, 64);
    uint32_t i;

    s->cost.bytes = 0;
    for (i = 0; i < s->batch.n; i++) {
        e = tiers_fetch_extent(s->fetch, i);
        scratch += round_up(store_decode_scratch(e), 16);
    }
    s->compressed = scratch > 0;
    s->scratch_at = at;
    s->values_at = at + round_up(scratch, 64);
    s->ordinals_at = s->values_at + (size_t)s->batch.n * st->n_fields * sizeof(struct larder_value);
    s->len = round_up(s->ordinals_at + (size_t)s->batch.n * sizeof(uint64_t), STORE_PAGE);
}

static int too_small(const struct stage *st, const struct slot *s, size_t need, struct larder_error *err)
{
    return err_set(err, LARDER_ENOMEM, "batch %llu of epoch %llu (%u samples) needs %zu bytes of staging and the budget is "
                   "%zu: raise staging_bytes or lower batch_size", (unsigned long long)s->batch.number,
                   (unsigned long long)s->batch.epoch, s->batch.n, need, st->o.staging_bytes);
}

static uint64_t epoch_from(const struct stage *st, uint64_t epoch) { return epoch == st->o.epoch ? st->o.position : 0; }
static uint64_t epoch_batches(const struct stage *st, uint64_t epoch) { return epoch == st->o.epoch ? st->first_batches : st->batches; }

/* Plans the next batch of the order into s. */
static int plan(struct stage *st, struct slot *s, struct larder_error *err)
{
    struct larder_batch *b = &s->batch;
    size_t bytes = 0, fixed;
    int rc;

    b->epoch = st->plan_epoch;
    b->number = st->plan_number;
    struct slice slice = slicing_batch(&st->o.slicing, epoch_from(st, b->epoch), order_length(&st->o.order), b->number);
    b->position = slice.position;
    b->n = slice.n;
    b->valid = slice.valid;
    b->n_fields = st->n_fields;
    fixed = (size_t)b->n * (sizeof(uint64_t) + st->n_fields * sizeof(struct larder_value));
    if (fixed > st->o.staging_bytes)
        return too_small(st, s, fixed, err);
    order_slice(&st->o.order, b->epoch, &slice, st->ordinals);
    rc = tiers_fetch_plan(s->fetch, st->ordinals, b->n, &bytes, err);
    if (rc)
        return rc;
    lay_out(st, s, bytes);
    if (s->len > st->o.staging_bytes)
        return too_small(st, s, s->len, err);
    s->seq = st->plan_seq;
    return 0;
}

/* The part of the region that batches of this size will use is registered once, at the first. */
static void register_region(struct stage *st, const struct slot *s)
{
    size_t len = MIN(st->o.staging_bytes, REGISTER_MAX);

    st->registered = true;
    if (!tiers_direct(st->o.tiers))
        return;
    if (s->len < len / st->slots_max)
        len = round_up(s->len + s->len / 8, STORE_PAGE) * st->slots_max;
    tiers_queue_register(st->queue, st->region, MIN(len, st->o.staging_bytes));
}

/* Gives the planned batch its place and starts its reads. *blocked: there is no room for it now. */
static int start(struct stage *st, bool *blocked, struct larder_error *err)
{
    struct slot *s = st->planned;
    uint8_t *memory;
    int rc;

    pthread_mutex_lock(&st->lock);
    *blocked = !place(st, s);
    if (*blocked) {
        block(st, s->len);
        pthread_mutex_unlock(&st->lock);
        return 0;
    }
    st->blocked = false;
    s->state = SLOT_FETCHING;
    st->n_busy++;
    st->plan_seq++;
    st->by_seq[s->seq % st->slots_max] = s;
    pthread_mutex_unlock(&st->lock);

    st->planned = NULL;
    if (++st->plan_number == epoch_batches(st, st->plan_epoch)) {
        st->plan_number = 0;
        st->plan_epoch++;
    }
    memory = st->region + s->offset;
    s->values = (struct larder_value *)(void *)(memory + s->values_at);
    s->batch.values = s->values;
    s->batch.ordinals = (uint64_t *)(void *)(memory + s->ordinals_at);
    memcpy(memory + s->ordinals_at, st->ordinals, s->batch.n * sizeof(uint64_t));
    s->decoded = 0;
    if (!st->registered)
        register_region(st, s);
    rc = tiers_fetch_start(st->queue, s->fetch, memory, s, err);
    if (rc)
        fail(st, s->seq, err);
    else
        st->in_flight++;
    return rc;
}

static bool planned_all(const struct stage *st)
{
    return st->batches == 0 || (st->o.epochs && st->plan_epoch - st->o.epoch >= st->o.epochs);
}

/* An epoch that fills NVMe is over when what it admitted is written, and one that streams when all has come: so that the next one finds
 * it there. */
static bool epoch_settled(struct stage *st)
{
    if (st->plan_number != 0 || st->plan_epoch == st->o.epoch)
        return true;
    if (st->in_flight)
        return !(st->streams && tiers_stream_runs(st->o.tiers)) && !(tiers_has_nvme(st->o.tiers) && tiers_filling(st->o.tiers));
    if (st->streams)
        tiers_stream_settle(st->o.tiers);
    if (tiers_has_nvme(st->o.tiers))
        tiers_settle(st->o.tiers);
    return true;
}

static bool resting(struct stage *st)
{
    bool rest;

    if (!st->windows)
        return false;
    pthread_mutex_lock(&st->lock);
    rest = st->resting;
    pthread_mutex_unlock(&st->lock);
    return rest;
}

/* Starts one more batch if there is one, a slot and room for it. Returns whether it did. */
static bool start_next(struct stage *st)
{
    struct larder_error e = {0};
    bool blocked = false;

    if (resting(st) || (!st->planned && (planned_all(st) || !epoch_settled(st))))
        return false;
    if (!st->planned) {
        if (slot_take(st, &st->planned, &e)) {
            fail(st, st->plan_seq, &e);
            return false;
        }
        if (!st->planned)
            return false;
        if (plan(st, st->planned, &e)) {
            st->planned = NULL;
            fail(st, st->plan_seq, &e);
            return false;
        }
    }
    return start(st, &blocked, &e) == 0 && !blocked;
}

/* ---- completion and decoding (fetch thread) ---- */

static void fetched_add(struct stage *st, struct slot *s)
{
    struct slot **at = &st->fetched;

    s->fetched_ns = now_ns();
    s->cost.io = tiers_fetch_counts(s->fetch);
    while (*at && (*at)->seq < s->seq)
        at = &(*at)->next;
    s->next = *at;
    *at = s;
    pthread_mutex_lock(&st->lock);
    s->state = SLOT_FETCHED;
    pthread_mutex_unlock(&st->lock);
}

/* Takes what the queue has completed; waits for one if told to. */
static void reap(struct stage *st, bool wait)
{
    struct larder_error e = {0};
    struct tiers_fetch *f;
    struct slot *s;
    void *tag;
    int rc;

    for (; st->in_flight; wait = false) {
        f = NULL;
        tag = NULL;
        rc = tiers_queue_next(st->queue, wait, &f, &tag, &e);
        if (rc == LARDER_END)
            return;
        s = tag;
        if (rc && !s) { /* the queue itself */
            fail(st, 0, &e);
            return;
        }
        st->in_flight--;
        if (rc)
            fail(st, s->seq, &e);
        else
            fetched_add(st, s);
    }
}

static int decode_one(struct stage *st, struct slot *s, struct larder_error *err)
{
    const struct extent *e = tiers_fetch_extent(s->fetch, s->decoded);
    struct larder_value *v = s->values + (size_t)s->decoded * st->n_fields;
    uint32_t i;
    int rc;

    rc = store_decode(st->o.store, st->decoder, e, tiers_fetch_record(s->fetch, s->decoded),
                      st->region + s->offset + s->scratch_at, v, err);
    if (rc)
        return rc;
    s->scratch_at += round_up(store_decode_scratch(e), 16);
    for (i = 0; i < st->n_fields; i++)
        s->cost.bytes += v[i].len;
    s->decoded++;
    return 0;
}

/* Records that a cache gave need only be placed: as many of them as come next. */
static void decode_views(struct stage *st, struct slot *s)
{
    struct larder_value *v = s->values + (size_t)s->decoded * st->n_fields;
    size_t n = store_decode_views(st->o.store, tiers_fetch_extents(s->fetch) + s->decoded,
                                  tiers_fetch_views(s->fetch) + s->decoded, s->batch.n - s->decoded, v);

    for (size_t i = 0; i < n * st->n_fields; i++)
        s->cost.bytes += v[i].len;
    s->decoded += (uint32_t)n;
}

/* Checks and decodes a portion of the oldest fetched batch; the last portion makes it ready. */
static void decode_some(struct stage *st)
{
    struct slot *s = st->fetched;
    uint32_t first = s->decoded;
    struct larder_error e = {0};
    size_t bytes = 0;

    if (tiers_fetch_views(s->fetch))
        decode_views(st, s);
    while (s->decoded < s->batch.n && s->decoded - first < PORTION_RECORDS && bytes < PORTION_BYTES) {
        bytes += tiers_fetch_extent(s->fetch, s->decoded)->raw_len;
        if (decode_one(st, s, &e)) {
            st->fetched = s->next;
            fail(st, s->seq, &e);
            return;
        }
    }
    if (s->decoded < s->batch.n)
        return;
    st->fetched = s->next;
    pthread_mutex_lock(&st->lock);
    s->state = SLOT_READY;
    st->n_busy--;
    if (st->consumer_waits && s->seq == st->next_seq)
        pthread_cond_signal(&st->ready);
    pthread_mutex_unlock(&st->lock);
}

/* ---- the fetch thread ---- */

static int thread_open(struct stage *st, struct larder_error *err)
{
    int rc = tiers_queue_open(st->o.tiers, st->o.queue_depth, &st->queue, err);

    return rc ? rc : decoder_new(&st->decoder, err);
}

/* Nothing is in flight and nothing to decode: waits for room. False when there will be nothing to do any more. */
static bool wait_for_space(struct stage *st)
{
    bool go_on;

    pthread_mutex_lock(&st->lock);
    st->fetcher_waits = true;
    while (!st->stop && (st->blocked || st->resting))
        pthread_cond_wait(&st->space, &st->lock);
    st->fetcher_waits = false;
    go_on = !st->stop;
    pthread_mutex_unlock(&st->lock);
    return go_on;
}

/* Whether to go on: not when stopped, nor when all batches before a failed one are ready. *failed: start no more. */
static bool look(struct stage *st, bool *failed)
{
    uint64_t seq;
    bool go_on;

    pthread_mutex_lock(&st->lock);
    *failed = st->fail_seq != UINT64_MAX;
    go_on = !st->stop;
    if (*failed && go_on) {
        for (seq = st->next_seq; seq < st->fail_seq && st->by_seq[seq % st->slots_max]->state == SLOT_READY; seq++)
            ;
        go_on = seq < st->fail_seq;
    }
    pthread_mutex_unlock(&st->lock);
    return go_on;
}

static void run(struct stage *st)
{
    bool failed = false, started;

    while (look(st, &failed)) {
        started = !failed && start_next(st);
        if (st->windows)
            tiers_queue_cork(st->queue, started && st->plan_seq > 1); /* the very first batch does not wait for a window */
        if (st->in_flight)
            reap(st, !started && !st->fetched);
        if (st->fetched)
            decode_some(st);
        else if (!started && !st->in_flight && !failed && ((!st->planned && planned_all(st)) || !wait_for_space(st)))
            return;
    }
}

static void *thread_main(void *arg)
{
    struct stage *st = arg;
    struct larder_error e = {0};
    int rc = thread_open(st, &e);

    pthread_mutex_lock(&st->lock);
    st->opened = true;
    if (rc) {
        st->fail = e;
        st->fail_seq = 0;
        st->open_rc = rc;
    }
    pthread_cond_signal(&st->ready);
    pthread_mutex_unlock(&st->lock);
    if (rc == 0)
        run(st);
    decoder_free(st->decoder);
    return NULL;
}

/* ---- open and close ---- */

static void stage_free(struct stage *st)
{
    if (st->region)
        munmap(st->region, st->o.staging_bytes);
    free(st->slots);
    free(st->by_seq);
    free(st->live);
    free(st->ordinals);
    free(st);
}

static int allocate(struct stage *st, struct larder_error *err)
{
    uint32_t depth = MAX(st->o.queue_depth ? st->o.queue_depth : 64, st->windows ? WINDOW_RECORDS / 2 : 1);
    size_t n;
    void *region;

    /* enough batches that two times the queue's depth of reads can wait, however small they are */
    st->slots_max = (unsigned)MIN(MAX((uint64_t)SLOTS_MIN, 2 * (uint64_t)depth / MAX(st->batch_n, 1u) + 4), SLOTS_MAX);
    n = st->slots_max;
    st->slots = calloc(n, sizeof(*st->slots));
    st->by_seq = calloc(n, sizeof(*st->by_seq));
    st->live = calloc(n + 1, sizeof(*st->live));
    /* A batch whose ordinals alone are beyond the budget fails before they are written. */
    st->ordinals = calloc(MIN(st->batch_n, st->o.staging_bytes / sizeof(uint64_t)) + 1, sizeof(*st->ordinals));
    if (!st->slots || !st->by_seq || !st->live || !st->ordinals)
        return err_nomem(err, n * 3 * sizeof(void *) + st->batch_n * sizeof(uint64_t), "staging buffer");
    region = mmap(NULL, st->o.staging_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED)
        return err_nomem(err, st->o.staging_bytes, "staging buffer (staging_bytes)");
    st->region = region;
    (void)madvise(region, st->o.staging_bytes, MADV_HUGEPAGE); /* a hint */
    return 0;
}

/* Are the records of a window so near each other that many travel in one GET? */
static bool windows_pay(const struct stage *st)
{
    const struct manifest *m = store_manifest(st->o.store);
    struct tiers_remote_rules r;
    double stored = 0, record;

    if (!tiers_remote_rules(st->o.tiers, &r) || !order_is_full(&st->o.order, m->samples) || m->samples == 0)
        return false;
    for (size_t i = 0; i < m->n_shards; i++)
        stored += m->shards[i].stored_bytes;
    record = stored / m->samples;
    return stored / MIN(st->o.staging_bytes / record, (double)WINDOW_RECORDS) <= r.gap_bytes;
}

/* The thread takes no signals: they are the application's. */
static int thread_start(struct stage *st, struct larder_error *err)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&st->thread, NULL, thread_main, st);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_sys(err, LARDER_ENOMEM, rc, "loader: cannot start the fetch thread");
    pthread_setname_np(st->thread, "larder-fetch");
    return 0;
}

int stage_open(const struct stage_options *o, struct stage **out, struct larder_error *err)
{
    struct stage *st = calloc(1, sizeof(*st));
    pthread_condattr_t monotonic;
    int rc;

    *out = NULL;
    if (!st)
        return err_nomem(err, sizeof(*st), "staging buffer");
    st->o = *o;
    st->o.staging_bytes = round_down(MIN(o->staging_bytes, SIZE_MAX / 2), STORE_PAGE);
    st->n_fields = store_manifest(o->store)->schema.n;
    uint64_t length = order_length(&o->order);
    st->batch_n = (uint32_t)MIN((uint64_t)o->slicing.batch_size, o->slicing.last == LARDER_LAST_PAD ? UINT32_MAX : length);
    st->batches = slicing_batches(&o->slicing, 0, length);
    st->first_batches = slicing_batches(&o->slicing, o->position, length);
    st->plan_epoch = o->epoch + (st->first_batches == 0); /* it went on at the very end of one */
    st->fail_seq = UINT64_MAX;
    st->pid = getpid();
    st->windows = windows_pay(st);
    rc = allocate(st, err);
    if (rc) {
        stage_free(st);
        return rc;
    }
    pthread_mutex_init(&st->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC); /* now_ns()'s */
    pthread_cond_init(&st->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&st->space, NULL);
    st->streams = order_is_full(&o->order, store_manifest(o->store)->samples) && tiers_stream_start(o->tiers);
    st->windows = st->windows && !st->streams;
    rc = thread_start(st, err);
    if (rc) {
        if (st->streams)
            tiers_stream_stop(st->o.tiers);
        pthread_mutex_destroy(&st->lock);
        stage_free(st);
        return rc;
    }
    pthread_mutex_lock(&st->lock);
    while (!st->opened)
        pthread_cond_wait(&st->ready, &st->lock);
    rc = st->open_rc;
    if (rc && err)
        *err = st->fail;
    pthread_mutex_unlock(&st->lock);
    if (rc)
        stage_close(st);
    else
        *out = st;
    return rc;
}

void stage_close(struct stage *st)
{
    unsigned i;

    if (!st)
        return;
    pthread_mutex_lock(&st->lock);
    st->stop = true;
    pthread_cond_signal(&st->space);
    pthread_mutex_unlock(&st->lock);
    if (st->queue)
        tiers_queue_cancel(st->queue); /* not to wait for what other processes fetch */
    pthread_join(st->thread, NULL);
    tiers_queue_close(st->queue);
    for (i = 0; i < st->n_slots; i++)
        slot_free(st->slots[i]);
    if (st->streams)
        tiers_stream_stop(st->o.tiers);
    pthread_cond_destroy(&st->ready);
    pthread_cond_destroy(&st->space);
    pthread_mutex_destroy(&st->lock);
    stage_free(st);
}

void stage_abandon(struct stage *st)
{
    unsigned i;

    if (!st)
        return;
    /* Fetches may have been in flight in the parent, so they are not freed, nor are the queue and what locks guard. */
    for (i = 0; i < st->n_slots; i++)
        free(st->slots[i]);
    stage_free(st);
}

/* ---- the consumer ---- */

static struct slot *next_ready(const struct stage *st)
{
    struct slot *s = st->next_seq < st->plan_seq ? st->by_seq[st->next_seq % st->slots_max] : NULL;

    return s && s->state == SLOT_READY ? s : NULL;
}

/* The fetch thread has nothing to do because the caller holds all there is. */
static bool starved(const struct stage *st)
{
    return st->blocked && st->n_busy == 0 && st->next_seq == st->plan_seq;
}

static int starved_error(const struct stage *st, struct larder_error *err)
{
    if (st->blocked_bytes)
        return err_set(err, LARDER_EINVAL, "loader: the %u batches held by the caller leave no room for the next one of %zu "
                       "bytes: release a batch first, or raise staging_bytes (%zu)", st->n_live, st->blocked_bytes,
                       st->o.staging_bytes);
    return err_set(err, LARDER_EINVAL, "loader: all %u staging slots are held by the caller: release a batch first",
                   st->slots_max);
}

/* "30 s", "250 ms" */
static const char *duration(uint64_t ms, char out[32])
{
    if (ms >= 1000)
        snprintf(out, 32, "%llu s", (unsigned long long)(ms / 1000));
    else
        snprintf(out, 32, "%llu ms", (unsigned long long)ms);
    return out;
}

/* What the consumer waits for, since when, and what goes on meanwhile. With the lock held, which is given up in between. */
struct waiting { char what[96], why[244]; };

static void describe(struct stage *st, uint64_t ms, struct waiting *w)
{
    char state[160], since[32], until[32];
    uint64_t seq = st->next_seq, number = seq < st->first_batches ? seq : (seq - st->first_batches) % MAX(st->batches, (uint64_t)1);
    unsigned busy = st->n_busy;

    pthread_mutex_unlock(&st->lock);
    snprintf(w->what, sizeof(w->what), "rank %u waiting %s for batch %llu", st->o.slicing.rank, duration(ms, since),
             (unsigned long long)number);
    if (!tiers_state(st->o.tiers, state))
        snprintf(state, sizeof(state), "%u batches are being read or decoded", busy);
    if (st->o.timeout_ms)
        snprintf(w->why, sizeof(w->why), "%s; fails at %s (timeout=)", state, duration(st->o.timeout_ms, until));
    else
        snprintf(w->why, sizeof(w->why), "%s", state);
    pthread_mutex_lock(&st->lock);
}

/* Waits for `ready`, up to the next thing to be told. Lock held. ETIMEOUT: it is over. */
static int wait_ready(struct stage *st, uint64_t begin, bool *told, struct larder_error *err)
{
    bool notice = st->o.waiting && !*told && st->o.notice_ms && (!st->o.timeout_ms || st->o.notice_ms < st->o.timeout_ms);
    uint64_t ms = notice ? st->o.notice_ms : st->o.timeout_ms, end = begin + ms * 1000000ull;
    struct timespec until = {(time_t)(end / 1000000000), (long)(end % 1000000000)};
    struct waiting w;
    int rc;

    st->consumer_waits = true;
    rc = ms ? pthread_cond_timedwait(&st->ready, &st->lock, &until) : pthread_cond_wait(&st->ready, &st->lock);
    st->consumer_waits = false;
    if (rc != ETIMEDOUT)
        return 0;
    describe(st, (now_ns() - begin) / 1000000, &w);
    if (!notice)
        return err_set(err, LARDER_ETIMEOUT, "%s: %s", w.what, w.why);
    *told = true;
    pthread_mutex_unlock(&st->lock);
    st->o.waiting(st->o.user, w.what, w.why);
    pthread_mutex_lock(&st->lock);
    return 0;
}

int stage_next(struct stage *st, const struct larder_batch **batch, struct stage_cost *cost, struct larder_error *err)
{
    uint64_t begin = 0, end, fetched;
    bool told = false;
    struct slot *s;
    int rc = 0;

    pthread_mutex_lock(&st->lock);
    while (!(s = next_ready(st)) && st->next_seq < st->fail_seq && !starved(st) && rc == 0) {
        if (!begin)
            begin = now_ns();
        if (st->resting && st->next_seq == st->plan_seq) { /* the caller holds what it has of the window, and wants more */
            st->resting = false;
            if (st->fetcher_waits)
                pthread_cond_signal(&st->space);
        }
        rc = wait_ready(st, begin, &told, err);
    }
    if (s) {
        s->state = SLOT_HELD;
        st->next_seq++;
        rc = 0;
    } else if (st->next_seq >= st->fail_seq) {
        if (err)
            *err = st->fail;
        rc = st->fail.code;
    } else if (rc == 0) {
        rc = starved_error(st, err);
    }
    pthread_mutex_unlock(&st->lock);
    if (rc)
        return rc;
    *cost = s->cost;
    cost->fetch_stall_ns = cost->prep_stall_ns = 0;
    if (begin) {
        end = now_ns();
        fetched = s->compressed ? MIN(MAX(s->fetched_ns, begin), end) : end; /* the CRC belongs to the bytes */
        cost->fetch_stall_ns = fetched - begin;
        cost->prep_stall_ns = end - fetched;
    }
    *batch = &s->batch;
    return 0;
}

void stage_release(const struct larder_batch *batch)
{
    struct slot *s = batch->owner;
    struct stage *st = s->stage;

    if (getpid() != st->pid) /* a lock may be held there for ever */
        return;
    pthread_mutex_lock(&st->lock);
    if (s->state == SLOT_HELD) { /* else released twice: the caller's bug, harmless as long as the slot is not reused */
        s->state = SLOT_FREE;
        unplace(st, s);
        st->blocked = false;
        if (st->live_bytes <= st->o.staging_bytes / WINDOW_LEFT || st->next_seq == st->plan_seq)
            st->resting = false;
        if (st->fetcher_waits && !st->resting)
            pthread_cond_signal(&st->space);
    }
    pthread_mutex_unlock(&st->lock);
}
