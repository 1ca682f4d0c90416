/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pack.c - samples into shards: workers that take units in order, a sealing thread behind them.
 *
 *     worker:  next unit -> cursor -> sample -> shard writer -+-> full or unit over: push -+
 *     sealer:                                                  finish, fsync -> journal <--+
 *
 * A shard holds samples of one unit; the next one is begun when a sample would make it larger than the shard size. What a unit has
 * in the journal already is passed over unread. A cancelled or failed run leaves its open shards out and its sealed ones in the
 * journal. Workers share the counter of units and the progress counters, all atomic, and the sealer's queue; unit states are
 * written before the workers start.
 */
#include "ingest/ingest_int.h"

struct unit { uint64_t consumed, skipped, source_bytes; uint32_t subs; bool done; };

struct packing {
    struct pack *p;
    struct unit *units;
    struct sealer *sealer;
    atomic_uint_least64_t next_unit, samples, bytes;
    atomic_uint_least32_t names;
};

/* One unit on its way through a worker. */
struct job {
    struct packing *k;
    uint64_t number;
    struct unit at;
    struct source_cursor *cursor;
    struct shard_writer *w;
};

/* Hands the open shard, or just the word that the unit is over, to the sealer. */
static int push(struct job *b, bool unit_done, struct larder_error *err)
{
    struct seal_item item = {.w = b->w, .unit = b->number, .consumed = b->at.consumed, .skipped = b->at.skipped,
                             .source_bytes = b->at.source_bytes, .unit_done = unit_done};
    if (b->w && shard_writer_samples(b->w) == 0) { /* all that was tried in it was skipped */
        shard_writer_abort(b->w);
        item.w = NULL;
    }
    b->at.subs += item.w != NULL;
    b->w = NULL;
    return item.w || unit_done ? sealer_push(b->k->sealer, &item, err) : LARDER_OK;
}

static int open_shard(struct job *b, struct larder_error *err)
{
    struct pack *p = b->k->p;
    struct shard_params params = p->params;
    char name[32];
    shard_name_new(p->run, atomic_fetch_add(&b->k->names, 1), name);
    params.unit = b->number;
    params.sub = b->at.subs;
    return shard_writer_open(p->journal->io, name, &params, &b->w, err);
}

static int add(struct job *b, const struct source_item *item, struct larder_error *err)
{
    struct pack *p = b->k->p;
    uint32_t n = p->source->schema.n;
    uint64_t weight = sample_weight(n, item->key_len, values_bytes(item->values, n));
    if (b->w && shard_writer_samples(b->w) && shard_writer_bytes(b->w) + weight > p->shard_size) {
        int rc = push(b, false, err);
        if (rc)
            return rc;
    }
    int rc = b->w ? LARDER_OK : open_shard(b, err);
    return rc ? rc : shard_writer_add(b->w, item->key, item->key_len, item->values, err);
}

/* One sample was read, or failed to be: rc and *err say. Fatal errors come back. */
static int account(struct job *b, const struct source_item *item, int rc, struct larder_error *err)
{
    struct larder_error why = {.code = LARDER_OK};
    bool of_item = rc != LARDER_OK && rc != LARDER_ENOMEM;
    if (!rc && (rc = add(b, item, &why))) {
        of_item = rc == LARDER_EINVAL; /* the store refused the values; anything else is the disk */
        if (of_item)
            err_prefix(&why, rc, "%.150s", item->what);
        if (err)
            *err = why;
    }
    if (rc && (!of_item || !notes_may_skip(b->k->p->notes)))
        return rc;
    b->at.consumed++;
    if (rc) {
        b->at.skipped++;
        notes_skipped(b->k->p->notes, item->what, err ? err->message : larder_code_name(rc));
    } else {
        b->at.source_bytes += item->source_bytes;
        atomic_fetch_add_explicit(&b->k->bytes, item->source_bytes, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&b->k->samples, 1, memory_order_relaxed);
    return LARDER_OK;
}

/* The unit cannot be read further: with on_error = SKIP its rest is left out. */
static int cut_short(struct job *b, int rc, struct larder_error *err)
{
    struct pack *p = b->k->p;
    if (!p->source->lossy_units || !notes_may_skip(p->notes) || (rc != LARDER_ECORRUPT && rc != LARDER_EIO))
        return rc;
    b->at.skipped++;
    notes_skipped(p->notes, err->message, "the rest of this archive is left out");
    return LARDER_OK;
}

static int pack_unit(struct job *b, const atomic_bool *stop, struct larder_error *err)
{
    struct source *s = b->k->p->source;
    int rc = s->ops->open_unit(s, b->number, b->at.consumed, &b->cursor, err);
    if (rc && (rc = cut_short(b, rc, err)))
        return rc;
    while (b->cursor) {
        struct source_item item;
        if (atomic_load_explicit(stop, memory_order_relaxed))
            return LARDER_OK;
        rc = s->ops->next(b->cursor, &item, err);
        if (rc == LARDER_END)
            break;
        if (rc && !item.what) {
            if ((rc = cut_short(b, rc, err)))
                return rc;
            break;
        }
        if ((rc = account(b, &item, rc, err)))
            return rc;
    }
    return push(b, true, err);
}

static int worker(void *user, unsigned number, const atomic_bool *stop, struct larder_error *err)
{
    struct packing *k = user;
    struct larder_error why = {.code = LARDER_OK};
    int rc = LARDER_OK;
    (void)number;
    while (!rc && !atomic_load_explicit(stop, memory_order_relaxed)) {
        uint64_t i = atomic_fetch_add(&k->next_unit, 1);
        if (i >= k->p->source->units)
            break;
        if (k->units[i].done)
            continue;
        struct job b = {.k = k, .number = i, .at = k->units[i]};
        rc = pack_unit(&b, stop, &why);
        shard_writer_abort(b.w);
        if (b.cursor)
            k->p->source->ops->close_unit(b.cursor);
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* In the sealing thread. */
static int sealed(void *user, const struct seal_item *item, struct shard_ref *ref, struct larder_error *err)
{
    struct packing *k = user;
    int rc = LARDER_OK;
    if (ref) {
        struct journal_shard s = {*ref, item->consumed, item->skipped, item->source_bytes};
        rc = journal_add_shard(k->p->journal, &s, err);
        shard_ref_release(ref);
    }
    if (rc || !item->unit_done)
        return rc;
    struct journal_unit u = {item->unit, item->consumed, item->skipped, item->source_bytes};
    return journal_add_unit(k->p->journal, &u, err);
}

static int tick(void *user)
{
    struct packing *k = user;
    struct larder_progress now = {"ingest", atomic_load(&k->samples), k->p->source->samples, atomic_load(&k->bytes),
                                  atomic_load(&k->p->notes->skipped)};
    return notes_progress(k->p->notes, &now, true, NULL);
}

/* What the journal says of each unit. */
static int take_over(struct packing *k, struct larder_error *err)
{
    const struct journal *j = k->p->journal;
    uint64_t n = k->p->source->units, samples = 0, bytes = 0;
    for (size_t i = 0; i < j->n_shards; i++) {
        const struct journal_shard *s = &j->shards[i];
        if (s->ref.unit >= n)
            return err_set(err, LARDER_ECORRUPT, "the journal names unit %llu of %llu; --restart discards it", (unsigned long long)s->ref.unit,
                           (unsigned long long)n);
        struct unit *u = &k->units[s->ref.unit];
        u->subs = MAX(u->subs, s->ref.sub + 1);
        if (s->consumed >= u->consumed)
            *u = (struct unit){s->consumed, s->skipped, s->source_bytes, u->subs, false};
    }
    for (size_t i = 0; i < j->n_units; i++)
        if (j->units[i].unit < n) {
            struct unit *u = &k->units[j->units[i].unit];
            *u = (struct unit){j->units[i].consumed, j->units[i].skipped, j->units[i].source_bytes, u->subs, true};
        }
    for (uint64_t i = 0; i < n; i++) {
        samples += k->units[i].consumed;
        bytes += k->units[i].source_bytes;
    }
    atomic_init(&k->samples, samples);
    atomic_init(&k->bytes, bytes);
    return LARDER_OK;
}

int pack_run(struct pack *p, struct larder_error *err)
{
    struct packing k = {.p = p};
    struct larder_error why;
    atomic_init(&k.next_unit, 0);
    atomic_init(&k.names, 0);
    AUTO_FREE struct unit *units = calloc(p->source->units + 1, sizeof(*units));
    if (!units)
        return err_nomem(err, p->source->units * sizeof(*units), "units");
    k.units = units;
    int rc = take_over(&k, err);
    unsigned workers = (unsigned)MIN((uint64_t)MAX(p->workers, 1u), p->source->units);
    if (!rc)
        rc = sealer_start(2 * workers, sealed, &k, &k.sealer, err);
    if (rc)
        return rc;
    rc = crew_run(workers, worker, tick, &k, err);
    int sealed_rc = sealer_finish(k.sealer, &why);
    if (!rc && sealed_rc) {
        rc = sealed_rc;
        if (err)
            *err = why;
    }
    p->consumed = p->skipped = p->source_bytes = 0;
    for (size_t i = 0; i < p->journal->n_units; i++) {
        p->consumed += p->journal->units[i].consumed;
        p->skipped += p->journal->units[i].skipped;
        p->source_bytes += p->journal->units[i].source_bytes;
    }
    return rc;
}
