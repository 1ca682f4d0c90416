/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.c - the staging buffer: a bounded ring of batches that are filled ahead and handed over in order (HDMLP, class 0).
 *
 *              plan, place, start         completion        all decoded         stage_next        stage_release
 *     FREE ------------------------> FETCHING ------> FETCHED --------> READY ------------> HELD ------------> FREE
 *             (fetch.c)                          (work.c)
 *
 * One fetch thread has a batch from FREE to FETCHED, workers, or the same thread, to READY, the consumer until it is released.
 *
 * All bytes of a batch (records, decoded values, ordinals, arrays) lie in one region of staging_bytes, the hard bound. A batch takes the first
 * gap that is large enough, so a loader of small batches touches only the beginning of the region. With arrays it has two pieces: what
 * lasts from the beginning of the region, what passes (records, and the values that arrays are made of) from its end, given back as soon as the arrays are there, unless some of them point into it. So neither
 * leaves gaps that only the other would fit.
 *
 * A seek ends all threads, forgets what is not held, and starts them elsewhere: there is nothing that it could leave half done.
 *
 * Invariants:
 *   1. Sequence numbers count batches over all epochs, from the last seek. [next_seq, plan_seq) are exactly the slots FETCHING to READY, and
 *      there are at most n_slots of them: by_seq[seq % slots_max] finds each.
 *   2. live[] holds the pieces of the region that are in use, by offset.
 *   3. Batches before fail_seq are handed over even when a later one has failed; then the failure is, for ever (or up to a seek).
 *      A wait that ends without a batch (ETIMEOUT, too many held) leaves everything as it is.
 *   4. The fetch thread waits either in the feed (reads in flight) or for `space` (none in flight), workers for `some_work`, the consumer
 *      for `ready`; each side signals only when the other says that it waits.
 *
 * Threads: the fetch thread and the workers; the consumer's calls (one at a time); stage_release from any thread.
 */
#include "loader/stage_int.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HUGE_PAGE (2 * MIB)
#define SLOTS_MIN 16
#define SLOTS_MAX 512
#define SLOTS_WINDOW_MAX 65536 /* where a window in samples asks for more */
#define WINDOW_RECORDS 4096    /* of small ones, in as many batches as it takes */

/* ---- the region ---- */

/* Whoever waits for a batch looks again, for there may be none until the caller releases one. With the lock held. */
static void block(struct stage *st, size_t bytes)
{
    st->blocked = true;
    st->blocked_bytes = bytes;
    if (st->consumer_waits)
        pthread_cond_signal(&st->ready);
}

/* The fetch thread may go on, if a window is due. With the lock held. */
static void wake_fetcher(struct stage *st)
{
    if ((!st->fetcher_waits && !st->fetcher_reads) || st->blocked || !window_due(&st->window))
        return;
    if (st->fetcher_waits)
        pthread_cond_signal(&st->space);
    else
        feed_wake(st->feed);
    st->fetcher_reads = false;
}

/* There is room that was not there before. With the lock held. */
static void unblock(struct stage *st)
{
    st->blocked = false;
    wake_fetcher(st);
}

static void insert(struct stage *st, struct piece *p, unsigned at)
{
    memmove(&st->live[at + 1], &st->live[at], (st->n_live - at) * sizeof(*st->live));
    st->live[at] = p;
    st->n_live++;
}

static size_t end_of(const struct piece *p) { return p->offset + p->len; }

/* The lowest gap that is large enough. With the lock held, as the two below. */
static bool place_low(struct stage *st, struct piece *p)
{
    size_t at = 0;
    unsigned i;

    for (i = 0; i < st->n_live && st->live[i]->offset - at < p->len; i++)
        at = end_of(st->live[i]);
    if (i == st->n_live && st->o.staging_bytes - at < p->len)
        return false;
    p->offset = at;
    insert(st, p, i);
    return true;
}

/* The highest. */
static bool place_high(struct stage *st, struct piece *p)
{
    size_t end = st->o.staging_bytes;
    unsigned i;

    for (i = st->n_live; i > 0 && end - end_of(st->live[i - 1]) < p->len; i--)
        end = st->live[i - 1]->offset;
    if (i == 0 && end < p->len)
        return false;
    p->offset = end - p->len;
    insert(st, p, i);
    return true;
}

static void unplace(struct stage *st, struct piece *p)
{
    unsigned i = 0;

    if (!p->len)
        return;
    while (st->live[i] != p)
        i++;
    st->n_live--;
    memmove(&st->live[i], &st->live[i + 1], (st->n_live - i) * sizeof(*st->live));
    p->len = 0;
}

bool stage_place(struct stage *st, struct slot *s)
{
    size_t lasting = s->lasting.len;

    if ((!lasting || place_low(st, &s->lasting)) && (!s->passing.len || place_high(st, &s->passing))) {
        st->blocked = false;
        return true;
    }
    for (unsigned i = 0; i < st->n_live; i++) /* the one of both that had room */
        if (st->live[i] == &s->lasting) {
            unplace(st, &s->lasting);
            s->lasting.len = lasting;
            break;
        }
    block(st, lasting + s->passing.len);
    return false;
}

void stage_shrink(struct stage *st, struct slot *s)
{
    unplace(st, &s->passing);
    unblock(st);
}

void stage_fail(struct stage *st, uint64_t seq, const struct larder_error *e)
{
    if (seq < st->fail_seq) {
        st->fail_seq = seq;
        st->fail = *e;
    }
    if (st->consumer_waits)
        pthread_cond_signal(&st->ready);
}

/* ---- slots ---- */

static void slot_free(struct slot *s)
{
    if (!s)
        return;
    feed_batch_free(s->reads);
    mend_release(s);
    free(s);
}

static int slot_new(struct stage *st, struct slot **out, struct larder_error *err)
{
    struct slot *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return err_nomem(err, sizeof(*s), "batch");
    rc = feed_batch_new(st->feed, &s->reads, err);
    if (rc) {
        free(s);
        return rc;
    }
    feed_batch_limit(s->reads, st->o.staging_bytes / 4);
    if (st->streams)
        tiers_fetch_patient(feed_batch_only(s->reads));
    s->stage = st;
    s->batch.owner = s;
    s->batch.n_fields = st->o.prep ? 0 : st->n_fields;
    s->batch.n_arrays = st->o.n_outputs;
    *out = s;
    return 0;
}

int stage_slot(struct stage *st, struct slot **out, struct larder_error *err)
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

/* ---- open, seek and close ---- */

static void stage_free(struct stage *st)
{
    pinned_free(st->pinned);
    if (st->region)
        munmap(st->region, st->o.staging_bytes);
    free(st->slots);
    free(st->by_seq);
    free(st->live);
    free(st->ordinals);
    free(st->positions);
    free(st->sources);
    free(st->missing);
    free(st->views_are);
    free(st->views);
    free(st);
}

/* Enough batches that two times the queue's depth of reads, and two windows, can wait, however small they are. */
static unsigned slots_wanted(const struct stage *st)
{
    uint64_t depth = MAX(st->o.queue_depth ? st->o.queue_depth : 64, st->dense ? WINDOW_RECORDS : 1u), batch = MAX(st->batch_n, 1u);
    uint64_t n = MIN(MAX((uint64_t)SLOTS_MIN, 2 * depth / batch + 4), (uint64_t)SLOTS_MAX);

    if (st->o.fetch_size)
        n = MAX(n, MIN((st->o.fetch_size + MIN(st->o.threshold, UINT64_MAX / 2)) / batch + 4, (uint64_t)SLOTS_WINDOW_MAX));
    return (unsigned)n;
}

/* The region, which begins where a huge page does. */
static uint8_t *region_map(size_t bytes)
{
    uint8_t *room = mmap(NULL, bytes + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), *at;

    if (room == MAP_FAILED)
        return NULL;
    at = room + (round_up((uintptr_t)room, HUGE_PAGE) - (uintptr_t)room);
    if (at > room)
        munmap(room, (size_t)(at - room));
    if (at < room + HUGE_PAGE)
        munmap(at + bytes, (size_t)(room + HUGE_PAGE - at));
    (void)madvise(at, bytes, MADV_HUGEPAGE); /* a hint */
    return at;
}

static int allocate(struct stage *st, struct larder_error *err)
{
    size_t n = st->slots_max = slots_wanted(st);

    st->slots = calloc(n, sizeof(*st->slots));
    st->by_seq = calloc(n, sizeof(*st->by_seq));
    st->live = calloc(2 * n, sizeof(*st->live));
    /* A batch whose ordinals alone are beyond the budget fails before they are written. */
    size_t most = MIN(st->batch_n, st->o.staging_bytes / sizeof(uint64_t)) + 1;
    st->ordinals = calloc(most, sizeof(*st->ordinals));
    st->positions = st->o.plan.assign ? calloc(most, sizeof(*st->positions)) : NULL;
    st->sources = st->o.plan.mix ? calloc(most, sizeof(*st->sources)) : NULL;
    if (st->o.decoded) {
        st->missing = calloc(most, sizeof(*st->missing));
        st->views_are = calloc(most, sizeof(*st->views_are));
        st->views = calloc(most, sizeof(*st->views));
        if (!st->missing || !st->views_are || !st->views)
            return err_nomem(err, most * (sizeof(uint64_t) + sizeof(struct extent) + sizeof(void *)), "staging buffer");
    }
    if (!st->slots || !st->by_seq || !st->live || !st->ordinals || (st->o.plan.assign && !st->positions) || (st->o.plan.mix && !st->sources))
        return err_nomem(err, n * 4 * sizeof(void *) + st->batch_n * sizeof(uint64_t), "staging buffer");
    st->region = region_map(st->o.staging_bytes);
    if (!st->region)
        return err_nomem(err, st->o.staging_bytes, "staging buffer (staging_bytes)");
    (void)pinned_new(st->region, tiers_pin_options(st->o.tiers), &st->pinned, NULL); /* it only helps */
    int rc = feed_new(st->o.tiers_of ? st->o.tiers_of : &st->o.tiers, st->o.stores ? st->o.stores : &st->o.store, st->n_sources, &st->feed, err);
    return rc ? rc : work_open(st, err);
}

/* Are the records of a window so near each other that many travel in one GET? */
static bool is_dense(const struct stage *st)
{
    const struct manifest *m = store_manifest(st->o.store);
    struct tiers_remote_rules r;
    double stored = 0, record;

    if (st->o.plan.mix || !tiers_remote_rules(st->o.tiers, &r) || !order_is_full(&st->o.plan.order, m->samples) || m->samples == 0)
        return false;
    for (size_t i = 0; i < m->n_shards; i++)
        stored += m->shards[i].stored_bytes;
    record = stored / m->samples;
    return stored / MIN(st->o.staging_bytes / 2 / record, (double)WINDOW_RECORDS) <= r.gap_bytes;
}

/* Threads take no signals: those are the application's. */
static int thread_start(pthread_t *thread, void *(*fn)(void *), void *arg, const char *name, struct larder_error *err)
{
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return err_sys(err, LARDER_ENOMEM, rc, "loader: cannot start the thread %s", name);
    pthread_setname_np(*thread, name);
    return 0;
}

/* Ends all threads. What was in flight is given up; batches stay where they are. */
static void halt(struct stage *st)
{
    pthread_mutex_lock(&st->lock);
    atomic_store(&st->stop, true);
    pthread_cond_signal(&st->space);
    pthread_cond_broadcast(&st->some_work);
    mend_cancel(st);
    pthread_mutex_unlock(&st->lock);
    if (st->feed)
        feed_cancel(st->feed); /* not to wait for what other processes fetch */
    if (st->fetching)
        pthread_join(st->thread, NULL);
    for (unsigned i = 0; i < st->n_threads; i++)
        pthread_join(st->workers[i].thread, NULL);
    pthread_mutex_lock(&st->lock);
    st->fetcher_reads = false; /* releases leave the feed alone from now on */
    pthread_mutex_unlock(&st->lock);
    st->fetching = false;
    st->n_threads = 0;
    if (st->feed)
        feed_close(st->feed);
    st->alone = NULL;
    for (unsigned i = 0; st->workers && i < MAX(st->n_workers, 1u); i++)
        mend_close(&st->workers[i]);
}

/* Where the epochs begin; nothing but held batches is left. No thread runs. */
static void reset(struct stage *st)
{
    uint64_t length = batch_plan_length(&st->o.plan);

    st->batches = slicing_batches(&st->o.plan.slicing, 0, length);
    st->first_batches = slicing_batches(&st->o.plan.slicing, st->o.position, length);
    st->plan_epoch = st->o.epoch + (st->first_batches == 0); /* it went on at the very end of one */
    st->plan_number = 0;
    st->planned = NULL;
    st->registered = false;
    st->n_busy = 0;
    st->work = NULL;
    st->next_seq = st->plan_seq = 0;
    st->windowed = st->o.fetch_size > 0;
    window_init(&st->window, st->o.fetch_size, st->windowed ? st->o.threshold : UINT64_MAX);
    st->open_rc = 0;
    st->opened = st->blocked = false;
    st->fail_seq = UINT64_MAX;
    for (unsigned i = 0; i < st->n_slots; i++)
        if (st->slots[i]->state > SLOT_FREE && st->slots[i]->state < SLOT_HELD) {
            unplace(st, &st->slots[i]->lasting);
            unplace(st, &st->slots[i]->passing);
            st->slots[i]->state = SLOT_FREE;
        }
    atomic_store(&st->stop, false);
}

static void trace_names(struct stage *st)
{
    char name[32];

    trace_thread(st->o.trace, TRACE_PLAN, "plan and fetch");
    trace_thread(st->o.trace, TRACE_CONSUMER, "caller");
    for (unsigned i = 0; i < st->n_workers; i++) {
        snprintf(name, sizeof(name), "decode %u", i + 1);
        trace_thread(st->o.trace, TRACE_WORK + i, name);
    }
}

/* Starts the threads; after a failure none runs, and every call gets it. */
static int begin(struct stage *st, struct larder_error *err)
{
    struct larder_error e = {0};
    int rc = 0;

    pthread_mutex_lock(&st->lock);
    reset(st);
    pthread_mutex_unlock(&st->lock);
    for (; !rc && st->n_threads < st->n_workers; st->n_threads += !rc)
        rc = thread_start(&st->workers[st->n_threads].thread, work_main, &st->workers[st->n_threads], "larder-work", &e);
    if (!rc)
        rc = thread_start(&st->thread, fetch_main, st, "larder-fetch", &e);
    st->fetching = !rc;
    pthread_mutex_lock(&st->lock);
    while (!rc && !st->opened)
        pthread_cond_wait(&st->ready, &st->lock);
    if (!rc && st->open_rc) {
        rc = st->open_rc;
        e = st->fail;
    }
    if (rc)
        stage_fail(st, 0, &e);
    pthread_mutex_unlock(&st->lock);
    if (!rc)
        return 0;
    halt(st);
    if (err)
        *err = e;
    return rc;
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
    st->batch_n = (uint32_t)MIN((uint64_t)o->plan.slicing.batch_size,
                                 o->plan.slicing.last == LARDER_LAST_PAD ? UINT32_MAX : batch_plan_length(&o->plan));
    st->n_workers = o->threads;
    st->n_sources = MAX(o->n_sources, 1u);
    st->pid = getpid();
    st->dense = is_dense(st);
    pthread_mutex_init(&st->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC); /* now_ns()'s */
    pthread_cond_init(&st->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_cond_init(&st->space, NULL);
    pthread_cond_init(&st->some_work, NULL);
    rc = allocate(st, err);
    if (!rc) {
        st->streams = !o->plan.mix && order_is_full(&o->plan.order, store_manifest(o->store)->samples) && tiers_stream_start(o->tiers);
        trace_names(st);
        st->cork = o->fetch_size ? feed_only(st->feed) && tiers_remote(o->tiers) : st->dense && !st->streams;
        rc = begin(st, err);
    }
    if (rc)
        stage_close(st);
    else
        *out = st;
    return rc;
}

int stage_seek(struct stage *st, uint64_t epoch, uint64_t epochs, uint64_t position, struct larder_error *err)
{
    halt(st);
    st->o.epoch = epoch;
    st->o.epochs = epochs;
    st->o.position = position;
    return begin(st, err);
}

void stage_close(struct stage *st)
{
    unsigned i;

    if (!st)
        return;
    halt(st);
    for (i = 0; i < st->n_slots; i++)
        slot_free(st->slots[i]);
    if (st->streams)
        tiers_stream_stop(st->o.tiers);
    work_close(st);
    feed_free(st->feed);
    pthread_cond_destroy(&st->ready);
    pthread_cond_destroy(&st->space);
    pthread_cond_destroy(&st->some_work);
    pthread_mutex_destroy(&st->lock);
    stage_free(st);
}

void stage_abandon(struct stage *st)
{
    unsigned i;

    if (!st)
        return;
    /* Fetches may have been in flight in the parent and decoders at work, so they are not freed, nor are the queue and what locks guard. */
    for (i = 0; i < st->n_slots; i++) {
        feed_batch_abandon(st->slots[i]->reads);
        free(st->slots[i]);
    }
    feed_abandon(st->feed);
    free(st->workers);
    stage_free(st);
}

/* ---- the consumer ---- */

static struct slot *next_ready(const struct stage *st)
{
    struct slot *s = st->next_seq < st->plan_seq ? st->by_seq[st->next_seq % st->slots_max] : NULL;

    return s && s->state == SLOT_READY ? s : NULL;
}

/* There is nothing to do because the caller holds all there is. */
static bool starved(const struct stage *st)
{
    return st->blocked && st->n_busy == 0 && st->next_seq == st->plan_seq;
}

static int starved_error(const struct stage *st, struct larder_error *err)
{
    if (st->blocked_bytes)
        return err_set(err, LARDER_EINVAL, "loader: the %u batches held by the caller leave no room for the next one of %zu "
                       "bytes: release a batch first, or raise staging_bytes (%zu)", st->n_held, st->blocked_bytes,
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
    snprintf(w->what, sizeof(w->what), "rank %u waiting %s for batch %llu", st->o.plan.slicing.rank, duration(ms, since),
             (unsigned long long)number);
    bool remote = tiers_state(st->o.tiers, state);
    for (uint32_t i = 1; i < st->n_sources && !remote; i++)
        remote = tiers_state(st->o.tiers_of[i], state);
    if (!remote)
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

/* From now on the caller has it. */
static void trace_given(struct slot *s, uint64_t waited_since)
{
    struct trace *t = s->stage->o.trace;
    struct trace_batch b = stage_traced(s);

    s->held_ns = now_ns();
    trace_state(t, "ready", s->ready_ns, s->held_ns, &b);
    if (waited_since)
        trace_span(t, TRACE_CONSUMER, "wait", waited_since, s->held_ns, &b);
}

/* How long the call waited for bytes, and for what is made of them. begin: when it began to; 0: not at all. */
static void count_stall(const struct slot *s, uint64_t begin, struct stage_cost *cost)
{
    bool prepared = s->scratches || s->stage->o.prep; /* else there is but the CRC, and it belongs to the bytes */
    uint64_t end, fetched;

    cost->fetch_stall_ns = cost->prep_stall_ns = 0;
    if (!begin)
        return;
    end = now_ns();
    fetched = prepared ? MIN(MAX(s->fetched_ns, begin), end) : end;
    cost->fetch_stall_ns = fetched - begin;
    cost->prep_stall_ns = end - fetched;
}

int stage_next(struct stage *st, uint64_t since_ns, const struct larder_batch **batch, struct stage_cost *cost, struct larder_error *err)
{
    uint64_t begin = 0;
    bool told = false;
    struct slot *s;
    int rc = 0;

    pthread_mutex_lock(&st->lock);
    while (!(s = next_ready(st)) && st->next_seq < st->fail_seq && !starved(st) && rc == 0) {
        if (!begin)
            begin = now_ns();
        rc = wait_ready(st, since_ns ? since_ns : begin, &told, err);
    }
    if (s) {
        s->state = SLOT_HELD;
        st->n_held++;
        st->next_seq++;
        window_consume(&st->window, s->units);
        wake_fetcher(st);
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
    cost->bad = &s->bad;
    count_stall(s, begin, cost);
    if (st->o.trace)
        trace_given(s, begin);
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
    if (s->state == SLOT_HELD && st->o.trace) {
        struct trace_batch b = stage_traced(s);
        trace_state(st->o.trace, "held", s->held_ns, now_ns(), &b);
    }
    if (s->state == SLOT_HELD) { /* else released twice: the caller's bug, harmless as long as the slot is not reused */
        s->state = SLOT_FREE;
        st->n_held--;
        unplace(st, &s->lasting);
        unplace(st, &s->passing);
        unblock(st);
    }
    pthread_mutex_unlock(&st->lock);
}
