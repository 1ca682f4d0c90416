/* SPDX-License-Identifier: Apache-2.0 */
/*
 * work.c - from fetched bytes to a ready batch: records are checked and decoded, arrays made of them.
 *
 * Work is shared within a batch as well as across batches (Yang & Cong III-B): whoever is free takes the next portion of the oldest fetched
 * batch that has one left, one sample where something is decoded, else up to PORTION_RECORDS. The last to end a portion of a batch ends the
 * batch. So a single batch keeps all threads busy, and its last portions do not let them wait, for those of the next follow.
 *
 *     stage.work:  batch 7 [done|done|A....|B....]   batch 8 [C....|     |     |     ]   batch 9 ...
 *
 * Where little is to be done, the fetch thread does it, a portion between two looks at its queue (work_some).
 *
 * A sample that fails ends its batch. What was claimed before it is still done, and the first sample that fails is the one that is told,
 * so that the message does not depend on which thread was faster.
 *
 * Threads: workers, or the fetch thread. The lock is taken once a portion; nothing is decoded under it.
 */
#include "loader/stage_int.h"

#define PORTION_RECORDS 64
#define PORTION_BYTES (256 * KIB)

/* ---- one sample ---- */

void work_remap(const struct stage *st, uint32_t source, const struct larder_value *from, struct larder_value *to)
{
    const uint32_t *fields = st->o.fields[source];

    for (uint32_t f = 0; f < st->n_fields; f++)
        to[f] = fields[f] == UINT32_MAX ? (struct larder_value){NULL, 0} : from[fields[f]];
}

/* Its values: views of its bytes, which are checked first. */
static int decode(struct worker *w, struct slot *s, uint32_t i, struct larder_error *err)
{
    struct stage *st = w->stage;
    struct larder_value *v = s->values + (size_t)i * st->n_fields;
    bool remap = st->o.fields != NULL;
    uint32_t read = s->kept ? s->kept[i].read : i;
    int rc = feed_batch_decode(s->reads, read, w->decoder, s->scratches ? s->scratch + s->scratches[read] : s->scratch, remap ? w->values : v,
                               err);

    if (!rc && remap)
        work_remap(st, feed_batch_source(s->reads, read), w->values, v);
    return rc;
}

/* The sample's images in their stored form, found or made now. Others may have made it since the batch was planned. */
static int take_decoded(struct worker *w, const struct kept *k, uint64_t ordinal, struct larder_value *values, struct larder_error *err)
{
    const struct decoded_image *images;
    const void *view = k->view;
    struct extent e = {.stored_len = k->len};
    uint64_t ns;
    int rc;

    if (view || decoded_lookup(w->stage->o.decoded, &ordinal, 1, &e, &view))
        rc = decoded_take(w->decoded, view, e.stored_len, k->view ? values : NULL, &images, &ns, err);
    else
        rc = decoded_make(w->decoded, ordinal, values, &images, &ns, err);
    if (rc)
        return rc;
    w->counts.hits += view != NULL;
    w->counts.misses += view == NULL;
    *(view ? &w->counts.saved_ns : &w->counts.decode_ns) += ns;
    prep_worker_decoded(w->prep, images);
    return LARDER_OK;
}

int work_arrays(struct worker *w, struct slot *s, uint32_t i, uint64_t ordinal, struct larder_error *err)
{
    const struct stage *st = w->stage;
    struct larder_value *values = s->values + (size_t)i * st->n_fields;
    int rc = LARDER_OK;

    if (!w->prep)
        return LARDER_OK;
    if (s->kept)
        rc = take_decoded(w, &s->kept[i], ordinal, values, err);
    return rc ? rc : prep_sample(w->prep, &s->prep, i, ordinal, stage_position(st, s, i), values, err);
}

/* What is damaged is read again by itself; what is bad all the same is mended. */
static int make(struct worker *w, struct slot *s, uint32_t i, struct larder_error *err)
{
    struct which x = {s->ordinals[i], s->sources ? s->sources[i] : 0};
    struct larder_error why;
    int rc = LARDER_OK;

    if (!s->kept || !s->kept[i].view)
        rc = s->alone ? LARDER_ECORRUPT : decode(w, s, i, &why);
    if (rc == LARDER_ECORRUPT)
        rc = mend_read(w, s, x, s->values + (size_t)i * w->stage->n_fields, &why);
    if (!rc)
        rc = work_arrays(w, s, i, x.ordinal, &why);
    if (rc == LARDER_ECORRUPT || rc == LARDER_EINVAL)
        return mend_sample(w, s, i, &why, err);
    if (rc)
        *err = why;
    return rc;
}

/* ---- a portion ---- */

struct portion {
    struct slot *slot;
    uint32_t first, n;
    uint64_t bytes;     /* of its values */
    struct decoded_counts decoded;
    uint32_t failed_at; /* UINT32_MAX: none did */
    struct larder_error failure;
};

/* For the trace: portions of a batch, one after the other, are one span. */
static void trace_end(struct worker *w)
{
    struct stage *st = w->stage;

    if (w->batch.samples)
        trace_span(st->o.trace, st->n_workers ? TRACE_WORK + (uint32_t)(w - st->workers) : TRACE_PLAN, "decode", w->begin_ns, w->end_ns,
                   &w->batch);
    w->batch.samples = 0;
}

static void trace_portion(struct worker *w, const struct portion *p, uint64_t begin_ns)
{
    struct trace_batch b = stage_traced(p->slot);

    if (w->batch.samples && w->batch.seq != b.seq)
        trace_end(w);
    if (!w->batch.samples) {
        w->batch = b;
        w->batch.samples = 0;
        w->begin_ns = begin_ns;
    }
    w->batch.samples += p->n;
    w->end_ns = now_ns();
}

/* With the lock held. */
static bool claim(struct stage *st, struct portion *p)
{
    struct slot *s = st->work;

    while (s && (s->all_claimed || s->seq >= st->fail_seq))
        s = s->next;
    if (!s)
        return false;
    *p = (struct portion){.slot = s, .first = s->claimed, .n = MIN(s->portion, s->batch.n - s->claimed), .failed_at = UINT32_MAX};
    s->claimed += p->n;
    s->all_claimed = s->claimed == s->batch.n;
    s->working++;
    return true;
}

static void run(struct worker *w, struct portion *p)
{
    struct stage *st = w->stage;
    struct slot *s = p->slot;
    uint32_t i = p->first, end = p->first + p->n;

    w->counts = (struct decoded_counts){0, 0, 0, 0};
    while (i < end && !atomic_load_explicit(&st->stop, memory_order_relaxed)) {
        size_t n = 0;
        if (!w->prep && !s->alone) /* what a cache gave need only be placed: as many as come next */
            n = feed_batch_views(s->reads, i, end - i, s->values + (size_t)i * st->n_fields);
        if (n == 0 && make(w, s, i, &p->failure)) {
            p->failed_at = i;
            return;
        }
        i += MAX((uint32_t)n, 1u);
    }
    p->decoded = w->counts;
    for (size_t k = (size_t)p->first * st->n_fields; !w->prep && k < (size_t)i * st->n_fields; k++)
        p->bytes += s->values[k].len;
}

/* ---- a batch ---- */

void work_add(struct stage *st, struct slot *s)
{
    struct slot **at = &st->work;
    uint64_t each = s->batch.n ? s->raw_bytes / s->batch.n : 0;
    uint32_t portions;

    s->portion = st->o.prep && prep_is_heavy(st->o.prep) ? 1 : (uint32_t)MAX(MIN(PORTION_RECORDS, PORTION_BYTES / MAX(each, (uint64_t)1)), (uint64_t)1);
    s->claimed = 0;
    s->working = 0;
    s->all_claimed = false;
    s->failed_at = UINT32_MAX;
    while (*at && (*at)->seq < s->seq)
        at = &(*at)->next;
    s->next = *at;
    *at = s;
    portions = s->batch.n / s->portion + 1;
    for (unsigned i = 0; i < st->n_idle && i < portions; i++)
        pthread_cond_signal(&st->some_work);
}

static void unlist(struct stage *st, const struct slot *s)
{
    struct slot **at = &st->work;

    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
}

/* All samples are there: the arrays become final. Without the lock. *borrows: some point into the records. */
static int end_arrays(struct worker *w, struct slot *s, bool *borrows, struct larder_error *err)
{
    int rc = mend_room(w, s, err);

    if (!rc)
        rc = prep_end(&s->prep, s->values, w->stage->n_fields, err);
    if (rc)
        return rc;
    s->batch.arrays = s->prep.arrays;
    for (uint32_t i = 0; i < s->batch.n_arrays; i++) {
        s->cost.bytes += s->batch.arrays[i].len;
        *borrows |= s->batch.arrays[i].values != NULL;
    }
    return LARDER_OK;
}

/* Every portion of s is done. With the lock held, which is given up in between. */
static void finish(struct worker *w, struct slot *s)
{
    struct stage *st = w->stage;
    bool borrows = false;
    int rc = 0;

    unlist(st, s);
    if (s->failed_at != UINT32_MAX) {
        stage_fail(st, s->seq, &s->failure);
        return;
    }
    if (st->o.prep) {
        pthread_mutex_unlock(&st->lock);
        rc = end_arrays(w, s, &borrows, &s->failure);
        pthread_mutex_lock(&st->lock);
        if (rc) {
            stage_fail(st, s->seq, &s->failure);
            return;
        }
        if (!borrows)
            stage_shrink(st, s);
    }
    bad_sort(&s->bad);
    s->state = SLOT_READY;
    s->ready_ns = st->o.trace ? now_ns() : 0;
    st->n_busy--;
    if (st->consumer_waits && s->seq == st->next_seq)
        pthread_cond_signal(&st->ready);
}

/* With the lock held. */
static void settle(struct worker *w, const struct portion *p)
{
    struct stage *st = w->stage;
    struct slot *s = p->slot;

    s->working--;
    s->cost.bytes += p->bytes;
    s->cost.decoded.hits += p->decoded.hits;
    s->cost.decoded.misses += p->decoded.misses;
    s->cost.decoded.decode_ns += p->decoded.decode_ns;
    s->cost.decoded.saved_ns += p->decoded.saved_ns;
    if (p->failed_at < s->failed_at) {
        s->failed_at = p->failed_at;
        s->failure = p->failure;
        s->all_claimed = true; /* the rest of it is of no use */
    }
    if (s->all_claimed && s->working == 0 && !atomic_load(&st->stop))
        finish(w, s);
}

/* ---- who does it ---- */

/* With the lock held, which is given up in between. False: there is nothing to do. */
static bool step(struct worker *w)
{
    struct stage *st = w->stage;
    struct portion p;
    uint64_t begin;

    if (!claim(st, &p))
        return false;
    pthread_mutex_unlock(&st->lock);
    begin = st->o.trace ? now_ns() : 0;
    run(w, &p);
    if (st->o.trace)
        trace_portion(w, &p, begin);
    pthread_mutex_lock(&st->lock);
    settle(w, &p);
    return true;
}

bool work_some(struct stage *st)
{
    bool did;

    pthread_mutex_lock(&st->lock);
    did = step(&st->workers[0]);
    pthread_mutex_unlock(&st->lock);
    if (!did)
        trace_end(&st->workers[0]);
    return did;
}

void work_end(struct stage *st)
{
    if (st->n_workers == 0)
        trace_end(&st->workers[0]);
}

void *work_main(void *worker)
{
    struct worker *w = worker;
    struct stage *st = w->stage;

    pthread_mutex_lock(&st->lock);
    while (!atomic_load(&st->stop)) {
        if (step(w))
            continue;
        trace_end(w);
        st->n_idle++;
        pthread_cond_wait(&st->some_work, &st->lock);
        st->n_idle--;
    }
    trace_end(w);
    pthread_mutex_unlock(&st->lock);
    return NULL;
}

int work_open(struct stage *st, struct larder_error *err)
{
    unsigned n = MAX(st->n_workers, 1u);
    int rc = LARDER_OK;

    st->workers = calloc(n, sizeof(*st->workers));
    if (!st->workers)
        return err_nomem(err, n * sizeof(*st->workers), "decode threads");
    for (unsigned i = 0; !rc && i < n; i++) {
        st->workers[i].stage = st;
        rc = decoder_new(&st->workers[i].decoder, err);
        if (!rc && st->o.prep)
            rc = prep_worker_new(st->o.prep, &st->workers[i].prep, err);
        if (!rc && st->o.decoded)
            rc = decoded_worker_new(st->o.decoded, &st->workers[i].decoded, err);
        if (!rc && st->o.fields_max && !(st->workers[i].values = calloc(st->o.fields_max, sizeof(*st->workers[i].values))))
            rc = err_nomem(err, st->o.fields_max * sizeof(struct larder_value), "decode threads");
    }
    return rc;
}

void work_close(struct stage *st)
{
    for (unsigned i = 0; st->workers && i < MAX(st->n_workers, 1u); i++) {
        decoder_free(st->workers[i].decoder);
        prep_worker_free(st->workers[i].prep);
        decoded_worker_free(st->workers[i].decoded);
        free(st->workers[i].values);
    }
    free(st->workers);
    st->workers = NULL;
}
