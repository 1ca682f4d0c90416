/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mend.c - a bad sample amid a batch: its record is read again, alone; if that does not help, another sample takes its place.
 *
 *     the record fails its check, or the batch's reads fail as damaged --> read alone --> still damaged
 *                                                                                                   \
 *     the record is whole, and nothing can be made of it ------------------------------------------> bad: refused, or replaced
 *
 * What disks, servers and memory refuse is passed on as it is: only damage and bytes that make no sense count. The substitute is the first good
 * one of the tries that bad_position() names, so it does not matter who looks for it. What is random stays that of the place.
 *
 * Records that are read here lie in memory of the slot beside the region: the few that stand in have no room there. It is freed when
 * the slot is used again. A batch whose arrays find no room in their piece with a substitute's values is laid out anew there.
 *
 * Threads: whoever works on a batch: workers each with feeds of their own, which halting cancels, the fetch thread with its one; mend_plan
 * is the fetch thread's.
 */
#include "loader/stage_int.h"

#define DEPTH 4u

struct spare { struct spare *next; };

/* ---- memory beside the region ---- */

/* 4096-aligned; freed with the slot. */
static void *spare_new(struct slot *s, size_t bytes, struct larder_error *err)
{
    size_t need = bytes > SIZE_MAX - 2 * STORE_PAGE ? 0 : round_up(bytes, STORE_PAGE) + STORE_PAGE;
    uint8_t *memory = need ? aligned_alloc(STORE_PAGE, need) : NULL;
    struct spare *x = (struct spare *)(void *)memory;

    if (!x) {
        err_nomem(err, bytes, "a sample that is read alone");
        return NULL;
    }
    pthread_mutex_lock(&s->stage->lock);
    x->next = s->spares;
    s->spares = x;
    pthread_mutex_unlock(&s->stage->lock);
    return memory + STORE_PAGE;
}

void mend_begin(struct slot *s)
{
    while (s->spares) {
        struct spare *x = s->spares;
        s->spares = x->next;
        free(x);
    }
    s->bad.n = 0;
    s->alone = false;
    s->mended_bytes = s->mended_max = 0;
}

void mend_release(struct slot *s)
{
    mend_begin(s);
    bad_release(&s->bad);
}

/* ---- one record ---- */

/* What reads one record of a source: a worker has a feed for it, the fetch thread uses its own. */
struct lone { struct feed *feed; struct feed_batch *batch; };

static struct store *const *store_of(const struct stage *st, uint32_t source) { return st->o.stores ? &st->o.stores[source] : &st->o.store; }
static struct tiers *const *tiers_of(const struct stage *st, uint32_t source) { return st->o.tiers_of ? &st->o.tiers_of[source] : &st->o.tiers; }
static bool is_fetcher(const struct worker *w) { return w->stage->n_workers == 0; }

static int open_lone(struct worker *w, uint32_t source, struct larder_error *err)
{
    struct stage *st = w->stage;
    struct lone made = {NULL, NULL}, *all = w->lone;
    int rc;

    if (!all) {
        all = calloc(st->n_sources, sizeof(*all));
        if (!all)
            return err_nomem(err, st->n_sources * sizeof(*all), "a sample that is read alone");
    }
    if (is_fetcher(w)) {
        rc = feed_batch_new(st->feed, &made.batch, err);
    } else {
        rc = feed_new(tiers_of(st, source), store_of(st, source), 1, &made.feed, err);
        if (!rc)
            rc = feed_open(made.feed, DEPTH, err);
        if (!rc)
            rc = feed_batch_new(made.feed, &made.batch, err);
        if (rc && made.feed) {
            feed_close(made.feed);
            feed_free(made.feed);
            made.feed = NULL;
        }
    }
    pthread_mutex_lock(&st->lock); /* from now on mend_cancel finds it */
    w->lone = all;
    all[source] = made;
    pthread_mutex_unlock(&st->lock);
    return rc;
}

void mend_cancel(struct stage *st)
{
    for (unsigned i = 0; st->workers && i < MAX(st->n_workers, 1u); i++)
        for (uint32_t k = 0; st->workers[i].lone && k < st->n_sources; k++)
            if (st->workers[i].lone[k].feed)
                feed_cancel(st->workers[i].lone[k].feed);
}

void mend_close(struct worker *w)
{
    for (uint32_t k = 0; w->lone && k < w->stage->n_sources; k++) {
        struct lone *l = &w->lone[k];
        if (l->feed)
            feed_close(l->feed);
        feed_batch_free(l->batch);
        feed_free(l->feed);
    }
    free(w->lone);
    w->lone = NULL;
}

static int fetch_one(struct worker *w, struct lone *l, void *memory, struct larder_error *err)
{
    void *tag;
    int rc;

    if (atomic_load(&w->stage->stop))
        return LARDER_END;
    if (is_fetcher(w))
        return fetch_alone(w->stage, l->batch, memory, err);
    rc = feed_start(l->feed, l->batch, memory, l, err);
    return rc ? rc : feed_next(l->feed, true, &tag, err);
}

static int read_alone(struct worker *w, struct slot *s, struct which x, struct larder_value *values, struct larder_error *err)
{
    struct stage *st = w->stage;
    bool remap = st->o.fields != NULL;
    size_t bytes;
    int rc = w->lone && w->lone[x.source].batch ? LARDER_OK : open_lone(w, x.source, err);

    if (rc)
        return rc;
    struct lone *l = &w->lone[x.source];
    rc = feed_batch_plan(l->batch, &x.ordinal, is_fetcher(w) && st->n_sources > 1 ? &x.source : NULL, 1, &bytes, err);
    if (rc)
        return rc;
    bytes = round_up(bytes, 64);
    uint8_t *memory = spare_new(s, bytes + store_decode_scratch(feed_batch_extent(l->batch, 0)), err);
    if (!memory)
        return LARDER_ENOMEM;
    rc = fetch_one(w, l, memory, err);
    if (rc == LARDER_END)
        return err_set(err, LARDER_ECANCELED, "the loader is being closed");
    if (!rc)
        rc = feed_batch_decode(l->batch, 0, w->decoder, memory + bytes, remap ? w->values : values, err);
    if (!rc && remap)
        work_remap(st, x.source, w->values, values);
    return rc;
}

int mend_read(struct worker *w, struct slot *s, struct which x, struct larder_value *values, struct larder_error *err)
{
    int rc = read_alone(w, s, x, values, err);

    return rc == LARDER_ECORRUPT ? read_alone(w, s, x, values, err) : rc;
}

/* ---- substitutes ---- */

/* The sample at a position of an epoch. */
static struct which sample_at(const struct stage *st, uint64_t epoch, uint64_t position)
{
    const struct batch_plan *p = &st->o.plan;
    struct which x = {0, 0};

    if (p->mix)
        mix_fill(p->mix, epoch, position, 1, &x.ordinal, &x.source);
    else
        order_fill(&p->order, epoch, position, 1, &x.ordinal);
    return x;
}

/* Those tried for one place, the bad one first. */
struct search {
    struct bad_notes found;
    uint64_t epoch, position;
    uint32_t next;
};

static int search_note(struct stage *st, struct search *f, struct which x, const struct larder_error *why, struct larder_error *err)
{
    struct bad_note note = {.position = f->position, .ordinal = x.ordinal, .source = x.source, .substitute = LARDER_NO_ORDINAL};

    bad_describe(*store_of(st, x.source), st->n_sources > 1 ? (int)x.source : -1, x.ordinal, why->message, note.message);
    return bad_add(&f->found, &note, err);
}

/* The next one to try that was not tried before. False: there have been enough. */
static bool search_next(const struct stage *st, struct search *f, struct which *x)
{
    while (f->next < BAD_TRIES) {
        bool tried = false;
        *x = sample_at(st, f->epoch, bad_position(st->o.plan.order.seed, f->epoch, f->position, f->next++, batch_plan_length(&st->o.plan)));
        for (size_t i = 0; i < f->found.n; i++)
            tried |= f->found.notes[i].ordinal == x->ordinal && f->found.notes[i].source == x->source;
        if (!tried)
            return true;
    }
    return false;
}

static int exhausted(const struct search *f, struct larder_error *err)
{
    return err_set(err, LARDER_ECORRUPT, "%.170s; nor is any of %zu others that could take its place good", f->found.notes[0].message,
                   f->found.n - 1);
}

/* What was found goes into the slot's list; bytes: of the substitute's values. */
static int search_end(struct stage *st, struct slot *s, struct search *f, struct which x, uint64_t bytes, struct larder_error *err)
{
    int rc = LARDER_OK;

    pthread_mutex_lock(&st->lock);
    s->mended_bytes += bytes;
    s->mended_max = MAX(s->mended_max, bytes);
    for (size_t i = 0; !rc && i < f->found.n; i++) {
        f->found.notes[i].substitute = x.ordinal;
        f->found.notes[i].substitute_source = x.source;
        rc = bad_add(&s->bad, &f->found.notes[i], err);
    }
    pthread_mutex_unlock(&st->lock);
    return rc;
}

static bool is_bad(int rc) { return rc == LARDER_ECORRUPT || rc == LARDER_EINVAL; }

static void take_place(struct worker *w, struct slot *s, uint32_t i, struct which x, uint64_t *bytes)
{
    const struct larder_value *values = s->values + (size_t)i * w->stage->n_fields;

    *bytes = 0;
    for (uint32_t k = 0; k < w->stage->n_fields; k++)
        *bytes += values[k].len;
    s->ordinals[i] = x.ordinal;
    if (s->sources)
        s->sources[i] = x.source;
}

static int replace(struct worker *w, struct slot *s, uint32_t i, struct search *f, struct larder_error *err)
{
    struct stage *st = w->stage;
    struct larder_error why;
    struct which x;
    uint64_t bytes;

    if (s->kept)
        s->kept[i].view = NULL; /* what comes is read */
    while (search_next(st, f, &x)) {
        int rc = mend_read(w, s, x, s->values + (size_t)i * st->n_fields, &why);
        if (!rc)
            rc = work_arrays(w, s, i, x.ordinal, &why);
        if (!rc) {
            take_place(w, s, i, x, &bytes);
            return search_end(st, s, f, x, bytes, err);
        }
        if (!is_bad(rc)) {
            if (err)
                *err = why;
            return rc;
        }
        rc = search_note(st, f, x, &why, err);
        if (rc)
            return rc;
    }
    return exhausted(f, err);
}

int mend_sample(struct worker *w, struct slot *s, uint32_t i, const struct larder_error *why, struct larder_error *err)
{
    struct stage *st = w->stage;
    struct search f = {{NULL, 0, 0}, s->batch.epoch, stage_position(st, s, i), 0};
    struct which x = {s->ordinals[i], s->sources ? s->sources[i] : 0};
    int rc = search_note(st, &f, x, why, err);

    if (!rc && !st->o.replace)
        rc = bad_refuse(f.found.notes[0].message, st->o.uris ? st->o.uris[x.source] : NULL, x.ordinal, err);
    else if (!rc)
        rc = replace(w, s, i, &f, err);
    bad_release(&f.found);
    return rc;
}

/* ---- planning ---- */

/* Can it be located? Damaged pages of a record table are read again by asking again. */
static int plan_one(struct stage *st, struct slot *s, struct which x, struct larder_error *err)
{
    const uint32_t *source = st->n_sources > 1 ? &x.source : NULL;
    size_t bytes;
    int rc = feed_batch_plan(s->reads, &x.ordinal, source, 1, &bytes, err);

    return rc == LARDER_ECORRUPT ? feed_batch_plan(s->reads, &x.ordinal, source, 1, &bytes, err) : rc;
}

static int plan_place(struct stage *st, struct slot *s, uint64_t position, struct which *x, struct larder_error *err)
{
    struct search f = {{NULL, 0, 0}, s->batch.epoch, position, 0};
    struct larder_error why;
    int rc = plan_one(st, s, *x, &why);

    while (rc == LARDER_ECORRUPT) {
        rc = search_note(st, &f, *x, &why, &why);
        if (rc)
            break;
        if (!search_next(st, &f, x)) {
            rc = exhausted(&f, &why);
            break;
        }
        rc = plan_one(st, s, *x, &why);
    }
    if (!rc && f.found.n)
        rc = search_end(st, s, &f, *x, 0, &why);
    bad_release(&f.found);
    if (rc && err)
        *err = why;
    return rc;
}

int mend_plan(struct stage *st, struct slot *s, size_t *bytes, struct larder_error *err)
{
    const struct larder_batch *b = &s->batch;
    uint64_t length = batch_plan_length(&st->o.plan);
    int rc = LARDER_OK;

    for (uint32_t i = 0; !rc && i < b->n; i++) {
        if (st->o.decoded && st->views[i])
            continue;
        struct which x = {st->ordinals[i], st->sources ? st->sources[i] : 0};
        rc = plan_place(st, s, st->positions ? st->positions[i] : (b->position + i) % length, &x, err);
        st->ordinals[i] = x.ordinal;
        if (st->sources)
            st->sources[i] = x.source;
    }
    return rc ? rc : fetch_plan(st, s, bytes, err);
}

/* ---- arrays ---- */

int mend_room(struct worker *w, struct slot *s, struct larder_error *err)
{
    struct stage *st = w->stage;
    const struct prep *p = st->o.prep;
    uint64_t raw_bytes = s->raw_bytes + s->mended_bytes, raw_max = MAX(s->raw_max, s->mended_max);
    size_t need = prep_bytes(p, s->batch.n, raw_bytes, raw_max);
    void *memory;
    int rc = LARDER_OK;

    if (!s->mended_bytes || need <= prep_bytes(p, s->batch.n, s->raw_bytes, s->raw_max))
        return LARDER_OK;
    memory = spare_new(s, need, err);
    if (!memory)
        return LARDER_ENOMEM;
    prep_begin(p, &s->prep, s->batch.n, raw_bytes, raw_max, st->o.plan.order.seed, s->batch.epoch, memory);
    for (uint32_t i = 0; !rc && i < s->batch.n; i++) /* all or none: who ends the arrays relies on what is noted of each */
        rc = atomic_load(&st->stop) ? err_set(err, LARDER_ECANCELED, "the loader is being closed") : work_arrays(w, s, i, s->ordinals[i], err);
    return rc;
}
