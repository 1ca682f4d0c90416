/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c - the fetch thread: plans batches in the order of the epochs, finds room for them and has them read.
 *
 * A batch is planned first, for only the plan knows what it needs; then it gets its piece of the region; then its reads start. Planning
 * runs on across the end of an epoch as long as a window is due (window.c), and there is a slot and room. Windows are what the options say, in
 * samples; else, where neighbours of a window can share the GETs of a remote origin, half of what the region holds, in bytes, and as
 * much again as threshold (50/50, DELI V-B); else there is no threshold, and each batch is requested as soon as it has room: what is at
 * hand need not be waited for.
 *
 * The thread waits either in the feed (reads in flight) or for `space` (none in flight: room, or a window that falls due), and is woken in the
 * feed, too, when there is space. Without workers it also decodes, a portion between two looks at the queue, so that the device is never left without work.
 *
 * Threads: this one. It shares slots with workers and the consumer under the stage's lock.
 */
#include "loader/stage_int.h"

#define REGISTER_MAX (256 * MIB) /* of the region, with the queue */

/* Whoever waits for a batch is told. Takes the lock. */
static void fail(struct stage *st, uint64_t seq, const struct larder_error *e)
{
    pthread_mutex_lock(&st->lock);
    stage_fail(st, seq, e);
    pthread_mutex_unlock(&st->lock);
}

/* ---- planning ---- */

/* Where the parts of a batch lie in its pieces, and how long these are. */
static void lay_out(struct stage *st, struct slot *s, size_t record_bytes)
{
    size_t n = s->batch.n, scratch = 0, at = round_up(record_bytes, 64);

    s->cost.bytes = 0;
    s->cost.decoded = (struct decoded_counts){0, 0, 0, 0};
    s->raw_bytes = s->raw_max = 0;
    for (uint32_t i = 0; st->o.decoded && i < n; i++)
        if (st->views[i]) {
            uint64_t raw = decoded_raw_bytes(st->o.decoded, st->views[i], st->views_are[i].stored_len);
            s->raw_bytes += raw;
            s->raw_max = MAX(s->raw_max, raw);
        }
    for (uint32_t i = 0; i < s->n_reads; i++) {
        const struct extent *e = feed_batch_extent(s->reads, i);
        scratch += round_up(store_decode_scratch(e), 16);
        s->raw_bytes += e->raw_len;
        s->raw_max = MAX(s->raw_max, (uint64_t)e->raw_len);
    }
    s->scratch_at = at;
    s->scratches_at = at + round_up(scratch, 64);
    s->kept_at = s->scratches_at + (scratch ? s->n_reads * sizeof(uint64_t) : 0);
    s->values_at = s->kept_at + (st->o.decoded ? n * sizeof(struct kept) : 0);
    at = s->values_at + n * st->n_fields * sizeof(struct larder_value);
    s->passing.len = st->o.prep ? round_up(at, STORE_PAGE) : 0;
    s->ordinals_at = st->o.prep ? 0 : at;
    s->positions_at = s->ordinals_at + n * sizeof(uint64_t);
    s->sources_at = s->positions_at + (st->positions ? n * sizeof(uint64_t) : 0);
    at = s->sources_at + (st->sources ? n * sizeof(uint32_t) : 0);
    s->arrays_at = round_up(at, 64);
    if (st->o.prep)
        at = s->arrays_at + prep_bytes(st->o.prep, s->batch.n, s->raw_bytes, s->raw_max);
    s->lasting.len = round_up(at, STORE_PAGE);
}

static size_t length(const struct slot *s) { return s->lasting.len + s->passing.len; }

static int too_small(const struct stage *st, const struct slot *s, size_t need, struct larder_error *err)
{
    return err_set(err, LARDER_ENOMEM, "batch %llu of epoch %llu (%u samples) needs %zu bytes of staging and the budget is "
                   "%zu: raise staging_bytes or lower batch_size", (unsigned long long)s->batch.number,
                   (unsigned long long)s->batch.epoch, s->batch.n, need, st->o.staging_bytes);
}

static uint64_t epoch_from(const struct stage *st, uint64_t epoch) { return epoch == st->o.epoch ? st->o.position : 0; }
static uint64_t epoch_batches(const struct stage *st, uint64_t epoch) { return epoch == st->o.epoch ? st->first_batches : st->batches; }

int fetch_plan(struct stage *st, struct slot *s, size_t *bytes, struct larder_error *err)
{
    uint32_t n = s->batch.n;

    s->n_reads = n;
    if (!st->o.decoded)
        return feed_batch_plan(s->reads, st->ordinals, st->sources, n, bytes, err);
    decoded_lookup(st->o.decoded, st->ordinals, n, st->views_are, st->views);
    s->n_reads = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!st->views[i])
            st->missing[s->n_reads++] = st->ordinals[i];
    return feed_batch_plan(s->reads, st->missing, NULL, s->n_reads, bytes, err);
}

/* Plans the next batch of the order into s. */
static int plan(struct stage *st, struct slot *s, struct larder_error *err)
{
    struct larder_batch *b = &s->batch;
    size_t bytes = 0, fixed;
    int rc;

    b->epoch = st->plan_epoch;
    b->number = st->plan_number;
    uint64_t from = epoch_from(st, b->epoch);
    struct slice slice = slicing_batch(&st->o.plan.slicing, from, batch_plan_length(&st->o.plan), b->number);
    b->n = slice.n;
    fixed = (size_t)b->n * ((1u + !!st->positions + !!st->sources) * sizeof(uint64_t) + st->n_fields * sizeof(struct larder_value));
    if (fixed > st->o.staging_bytes)
        return too_small(st, s, fixed, err);
    rc = batch_plan_fill(&st->o.plan, b->epoch, from, b->number, &slice, st->ordinals, st->sources, st->positions, err);
    if (rc)
        return rc;
    b->position = slice.position;
    b->valid = slice.valid;
    mend_begin(s);
    rc = fetch_plan(st, s, &bytes, err);
    if (rc == LARDER_ECORRUPT && st->o.replace)
        rc = mend_plan(st, s, &bytes, err);
    if (rc)
        return rc;
    lay_out(st, s, bytes);
    if (length(s) > st->o.staging_bytes || length(s) < s->lasting.len)
        return too_small(st, s, length(s), err);
    s->seq = st->plan_seq;
    return 0;
}

/* Where records lie in the region. */
static uint8_t *records_of(const struct stage *st, const struct slot *s)
{
    return st->region + (st->o.prep ? s->passing.offset : s->lasting.offset);
}

/* The part of the region that records of batches of this size will use is registered once, at the first: its beginning, or its end. */
static void register_region(struct stage *st, const struct slot *s)
{
    size_t each = st->o.prep ? s->passing.len : s->lasting.len, len = MIN(st->o.staging_bytes, REGISTER_MAX);

    st->registered = true;
    if (!feed_only(st->feed) || !tiers_direct(st->o.tiers) || st->streams) /* registering touches all of it, and what streams needs little of it */
        return;
    if (each < len / st->slots_max)
        len = round_up(each + each / 8, STORE_PAGE) * st->slots_max;
    len = MIN(len, st->o.staging_bytes);
    tiers_queue_register(feed_only(st->feed), st->region + (st->o.prep ? st->o.staging_bytes - len : 0), len);
}

/* With the first batch it is known how much a window of bytes is: half of what the region and the slots hold beside two batches that the
 * caller has. With the lock held. */
static void size_window(struct stage *st, const struct slot *s)
{
    uint64_t room = MIN((uint64_t)st->o.staging_bytes, (uint64_t)st->slots_max * length(s)), held = 2 * (uint64_t)length(s);

    st->windowed = true;
    if (st->cork)
        window_init(&st->window, (room - MIN(held, room / 2)) / 2, (room - MIN(held, room / 2)) / 2);
    else
        window_init(&st->window, 1, UINT64_MAX);
}

/* The parts of a batch in its pieces, before anything is read. */
static void lay_down(struct stage *st, struct slot *s)
{
    uint8_t *memory = records_of(st, s), *lasting = st->region + s->lasting.offset;
    size_t at = 0;

    s->scratch = memory + s->scratch_at;
    s->scratches = s->kept_at > s->scratches_at ? (uint64_t *)(void *)(memory + s->scratches_at) : NULL;
    for (uint32_t i = 0; s->scratches && i < s->n_reads; i++) {
        s->scratches[i] = at;
        at += round_up(store_decode_scratch(feed_batch_extent(s->reads, i)), 16);
    }
    s->kept = st->o.decoded ? (struct kept *)(void *)(memory + s->kept_at) : NULL;
    for (uint32_t i = 0, read = 0; s->kept && i < s->batch.n; i++)
        s->kept[i] = st->views[i] ? (struct kept){st->views[i], st->views_are[i].stored_len, 0} : (struct kept){NULL, 0, read++};
    s->values = (struct larder_value *)(void *)(memory + s->values_at);
    memcpy(lasting + s->ordinals_at, st->ordinals, s->batch.n * sizeof(uint64_t));
    s->batch.ordinals = s->ordinals = (uint64_t *)(void *)(lasting + s->ordinals_at);
    if (st->positions)
        s->batch.positions = memcpy(lasting + s->positions_at, st->positions, s->batch.n * sizeof(uint64_t));
    if (st->sources)
        s->batch.sources = s->sources = memcpy(lasting + s->sources_at, st->sources, s->batch.n * sizeof(uint32_t));
    s->batch.values = st->o.prep ? NULL : s->values;
    if (st->o.prep)
        prep_begin(st->o.prep, &s->prep, s->batch.n, s->raw_bytes, s->raw_max, st->o.plan.order.seed, s->batch.epoch, lasting + s->arrays_at);
}

/* Gives the planned batch its place and starts its reads. *blocked: there is no room for it now. */
static int start(struct stage *st, bool *blocked, struct larder_error *err)
{
    struct slot *s = st->planned;
    int rc;

    pthread_mutex_lock(&st->lock);
    *blocked = !stage_place(st, s);
    if (*blocked) {
        pthread_mutex_unlock(&st->lock);
        return 0;
    }
    s->state = SLOT_FETCHING;
    st->n_busy++;
    st->plan_seq++;
    st->by_seq[s->seq % st->slots_max] = s;
    if (!st->windowed)
        size_window(st, s);
    s->units = st->o.fetch_size ? s->batch.n : length(s);
    window_request(&st->window, s->units);
    pthread_mutex_unlock(&st->lock);

    st->planned = NULL;
    if (++st->plan_number == epoch_batches(st, st->plan_epoch)) {
        st->plan_number = 0;
        st->plan_epoch++;
        if (st->full_once) /* this process may have begun to use CUDA */
            pinned_register(st->pinned, st->o.staging_bytes);
    }
    lay_down(st, s);
    s->start_ns = st->o.trace ? now_ns() : 0;
    if (!st->registered)
        register_region(st, s);
    rc = feed_start(st->feed, s->reads, records_of(st, s), s, err);
    if (rc)
        fail(st, s->seq, err);
    return rc;
}

static bool planned_all(const struct stage *st)
{
    return st->batches == 0 || (st->o.epochs && st->plan_epoch - st->o.epoch >= st->o.epochs);
}

static struct tiers *tiers_of(const struct stage *st, uint32_t i) { return st->o.tiers_of ? st->o.tiers_of[i] : st->o.tiers; }

/* An epoch that fills NVMe is over when what it admitted is written, and one that streams when all has come: so that the next one finds
 * it there. */
static bool epoch_settled(struct stage *st)
{
    if (st->plan_number != 0 || st->plan_epoch == st->o.epoch)
        return true;
    bool fills = false;
    for (uint32_t i = 0; i < st->n_sources; i++)
        fills |= tiers_has_nvme(tiers_of(st, i)) && tiers_filling(tiers_of(st, i));
    if (feed_under_way(st->feed))
        return !(st->streams && tiers_stream_runs(st->o.tiers)) && !fills;
    if (st->streams)
        tiers_stream_settle(st->o.tiers);
    for (uint32_t i = 0; i < st->n_sources; i++)
        if (tiers_has_nvme(tiers_of(st, i)))
            tiers_settle(tiers_of(st, i));
    return true;
}

static bool due(struct stage *st)
{
    bool yes;

    pthread_mutex_lock(&st->lock);
    yes = window_due(&st->window) > 0;
    pthread_mutex_unlock(&st->lock);
    return yes;
}

/* Starts one more batch if one is due, and there is a slot and room for it. Returns whether it did. */
static bool start_next(struct stage *st)
{
    struct larder_error e = {0};
    bool blocked = false;
    uint64_t begin;

    st->wants_space = false;
    if (!st->planned && planned_all(st))
        return false;
    st->wants_space = !due(st);
    if (st->wants_space || (!st->planned && !epoch_settled(st)))
        return false;
    if (!st->planned) {
        if (stage_slot(st, &st->planned, &e)) {
            fail(st, st->plan_seq, &e);
            return false;
        }
        st->wants_space = !st->planned;
        if (!st->planned)
            return false;
        begin = now_ns();
        if (plan(st, st->planned, &e)) {
            st->planned = NULL;
            fail(st, st->plan_seq, &e);
            return false;
        }
        if (st->o.trace) {
            struct trace_batch b = stage_traced(st->planned);
            trace_span(st->o.trace, TRACE_PLAN, "plan", begin, now_ns(), &b);
        }
    }
    if (start(st, &blocked, &e))
        return false;
    st->wants_space = blocked;
    return !blocked;
}

/* ---- completion ---- */

static void fetched(struct stage *st, struct slot *s)
{
    s->fetched_ns = now_ns();
    s->cost.io = s->alone ? (struct tiers_counts){.dram = {0}} : feed_batch_counts(s->reads);
    if (st->o.trace) {
        struct trace_batch b = stage_traced(s);
        trace_state(st->o.trace, "fetch", s->start_ns, s->fetched_ns, &b);
    }
    pthread_mutex_lock(&st->lock);
    s->state = SLOT_FETCHED;
    work_add(st, s);
    pthread_mutex_unlock(&st->lock);
}

/* May it sleep in the feed? Not when there is space by now; from here on it is woken when there is. */
static bool may_sleep(struct stage *st)
{
    bool yes;

    pthread_mutex_lock(&st->lock);
    yes = !st->wants_space || st->blocked || !window_due(&st->window);
    st->fetcher_reads = yes && st->wants_space;
    pthread_mutex_unlock(&st->lock);
    return yes;
}

/* Takes what the feed has completed; waits for one if told to. */
static void reap(struct stage *st, bool wait)
{
    struct larder_error e = {0};
    struct slot *s;
    void *tag;
    int rc;

    for (; feed_under_way(st->feed); wait = false) {
        rc = feed_next(st->feed, wait, &tag, &e);
        if (rc == LARDER_END)
            return;
        if (st->alone && (tag == st->alone || !tag)) {
            st->alone = NULL;
            st->alone_rc = rc;
            st->alone_error = e;
            if (tag)
                continue;
        }
        s = tag;
        if (rc && !s) { /* the queue itself */
            fail(st, 0, &e);
            return;
        }
        s->alone = rc == LARDER_ECORRUPT; /* one of its records, or some: which, is found by reading each */
        if (rc && !s->alone)
            fail(st, s->seq, &e);
        else
            fetched(st, s);
    }
}

int fetch_alone(struct stage *st, struct feed_batch *b, void *memory, struct larder_error *err)
{
    int rc = feed_start(st->feed, b, memory, b, err);

    if (rc)
        return rc;
    st->alone = b;
    st->alone_rc = LARDER_END;
    if (feed_only(st->feed))
        tiers_queue_cork(feed_only(st->feed), false);
    while (st->alone && !atomic_load(&st->stop))
        reap(st, true);
    if (st->alone_rc < 0 && err)
        *err = st->alone_error;
    return st->alone_rc;
}

/* ---- the thread ---- */

/* A region that was full once is registered with CUDA, as a whole: it has been touched already, and nothing that is copied to a device lies
 * across an end. Asked again each time: the process may use CUDA only later. */
static void pin_region(struct stage *st)
{
    bool full;

    pthread_mutex_lock(&st->lock);
    full = st->blocked && st->blocked_bytes;
    pthread_mutex_unlock(&st->lock);
    if (!full)
        return;
    st->full_once = true;
    pinned_register(st->pinned, st->o.staging_bytes);
}

/* Nothing is in flight and nothing to decode: waits for room, and for a window to fall due. False: it is over. */
static bool wait_for_space(struct stage *st)
{
    bool go_on;

    pthread_mutex_lock(&st->lock);
    st->fetcher_waits = true;
    while (!atomic_load(&st->stop) && st->fail_seq == UINT64_MAX && (st->blocked || !window_due(&st->window)))
        pthread_cond_wait(&st->space, &st->lock);
    st->fetcher_waits = false;
    go_on = !atomic_load(&st->stop);
    pthread_mutex_unlock(&st->lock);
    return go_on;
}

/* Whether to go on: not when stopped, nor when there is nothing left to do for batches before a failed one. *failed: start no more. */
static bool look(struct stage *st, bool *failed)
{
    enum slot_state mine = st->n_threads ? SLOT_FETCHING : SLOT_FETCHED; /* up to there it is this thread's */
    uint64_t seq;
    bool go_on;

    pthread_mutex_lock(&st->lock);
    *failed = st->fail_seq != UINT64_MAX;
    go_on = !atomic_load(&st->stop);
    if (*failed && go_on) {
        for (seq = st->next_seq; seq < st->fail_seq && st->by_seq[seq % st->slots_max]->state > mine; seq++)
            ;
        go_on = seq < st->fail_seq;
    }
    pthread_mutex_unlock(&st->lock);
    return go_on;
}

static void run(struct stage *st)
{
    bool failed = false, started, worked;

    while (look(st, &failed)) {
        started = !failed && start_next(st);
        st->wants_space &= !failed; /* space is of no use any more: it may sleep for the reads that are left */
        if (st->cork)
            tiers_queue_cork(feed_only(st->feed), started && st->plan_seq > 1); /* the very first batch does not wait for a window */
        worked = st->n_threads == 0 && work_some(st);
        if (st->wants_space)
            pin_region(st);
        if (feed_under_way(st->feed))
            reap(st, !started && !worked && may_sleep(st));
        else if (!started && !worked && ((!st->planned && planned_all(st)) || !wait_for_space(st)))
            return;
    }
}

void *fetch_main(void *arg)
{
    struct stage *st = arg;
    struct larder_error e = {0};
    int rc = feed_open(st->feed, st->o.queue_depth, &e);

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
    work_end(st);
    return NULL;
}
