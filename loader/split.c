/* SPDX-License-Identifier: Apache-2.0 */
/*
 * split.c - samples divided by their keys: a part of [0, 1), and who falls into it.
 *
 * A key's hash is a fraction of 2^64. It does not depend on what else is in the dataset, so an append moves nobody to another side, and
 * parts that do not overlap share no sample. Membership is one bit a sample (struct subset), found by reading the keys of all shards once,
 * several shards side by side, each in a few pages' memory.
 *
 * What was found stays with the dataset handle, for as many loaders as ask for the same part: those in use, and IDLE_MAX others.
 *
 * Threads: any. dataset.lock guards the list; two that miss the same part at once both read the keys, and one result stays.
 */
#include <math.h>

#include "loader/loader_int.h"

#define WORKERS_LOCAL 8u
#define WORKERS_REMOTE 32u /* they wait for the network */
#define IDLE_MAX 4u

bool split_has(const struct split_part *p, const void *key, size_t len)
{
    uint64_t h = hash64(p->seed, key, len);
    return h >= p->lo && h - p->lo < p->span;
}

/* x 2^64, and 2^64 as 0. Parts that meet in x meet in the same number. */
static uint64_t bound(double x) { return x >= 1 ? 0 : (uint64_t)ldexp(x, 64); }

int split_part(double begin, double end, uint64_t seed, struct split_part *p, struct larder_error *err)
{
    if (!(begin >= 0 && end <= 1 && begin < end))
        return err_set(err, LARDER_EINVAL, "larder_loader_options: split_begin %g and split_end %g are no part of [0, 1)", begin, end);
    p->lo = bound(begin);
    p->span = bound(end) - p->lo; /* of all: 0, for which there is no split */
    p->seed = seed;
    if (p->span == 0 && (begin > 0 || end < 1))
        return err_set(err, LARDER_EINVAL, "larder_loader_options: split_begin %g and split_end %g are nearer than 2^-64", begin, end);
    return LARDER_OK;
}

/* ---- reading keys ---- */

struct reading {
    const struct larder_dataset *ds;
    struct split_part part;
    struct subset *s;
    _Atomic size_t next; /* shard */
};

/* Shards share a word of bits where they meet. */
static void put_bits(struct subset *s, uint64_t word, uint64_t bits)
{
    if (bits)
        __atomic_fetch_or(&s->bits[word], bits, __ATOMIC_RELAXED);
}

static int read_shard(struct reading *r, const struct shard_ref *ref, const atomic_bool *stop, struct larder_error *err)
{
    struct shard_scan *scan;
    struct scan_item item;
    uint64_t word = ref->base / 64, bits = 0, slots = 0;
    int rc = shard_scan_open(r->ds->io, ref, SCAN_KEYS, &scan, err);

    if (rc)
        return rc;
    while (!atomic_load_explicit(stop, memory_order_relaxed) && (rc = shard_scan_next(scan, &item, err)) == LARDER_OK) {
        uint64_t ordinal = ref->base + slots++;
        if (ordinal / 64 != word) {
            put_bits(r->s, word, bits);
            word = ordinal / 64;
            bits = 0;
        }
        if (slots <= ref->samples && split_has(&r->part, item.key, item.key_len))
            bits |= 1ull << ordinal % 64;
    }
    put_bits(r->s, word, bits);
    shard_scan_close(scan);
    if (rc == LARDER_END && slots != ref->samples)
        return err_set(err, LARDER_ECORRUPT, "shard %s: %llu keys for %u samples", ref->name, (unsigned long long)slots, ref->samples);
    return rc == LARDER_END ? LARDER_OK : rc;
}

static int reader_main(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err)
{
    struct reading *r = user;
    const struct manifest *m = r->ds->manifest;
    size_t i;
    int rc = LARDER_OK;

    (void)worker;
    while (!rc && !atomic_load(stop) && (i = atomic_fetch_add(&r->next, 1)) < m->n_shards)
        rc = read_shard(r, &m->shards[i], stop, err);
    return rc;
}

static int read_keys(const struct larder_dataset *ds, const struct split_part *part, struct subset **out, struct larder_error *err)
{
    struct reading r = {.ds = ds, .part = *part};
    unsigned most = io_is_local(ds->io) ? MIN(cpu_count(), WORKERS_LOCAL) : WORKERS_REMOTE;
    int rc = subset_empty(ds->manifest->samples, &r.s, err);

    if (!rc && ds->manifest->n_shards)
        rc = crew_run((unsigned)MIN((size_t)most, ds->manifest->n_shards), reader_main, NULL, &r, err);
    if (rc) {
        subset_free(r.s);
        return rc;
    }
    subset_count(r.s);
    *out = r.s;
    return LARDER_OK;
}

/* ---- what the dataset keeps ---- */

struct split {
    struct split *next;
    struct split_part part;
    struct subset *subset;
    unsigned users;
};

static bool same(const struct split_part *a, const struct split_part *b) { return a->lo == b->lo && a->span == b->span && a->seed == b->seed; }

/* With the lock held. */
static const struct subset *use(struct larder_dataset *ds, const struct split_part *part)
{
    for (struct split *s = ds->splits; s; s = s->next)
        if (same(&s->part, part)) {
            s->users++;
            return s->subset;
        }
    return NULL;
}

int split_get(struct larder_dataset *ds, const struct split_part *part, const struct subset **out, struct larder_error *err)
{
    struct split *mine;
    int rc;

    pthread_mutex_lock(&ds->lock);
    *out = use(ds, part);
    pthread_mutex_unlock(&ds->lock);
    if (*out)
        return LARDER_OK;
    mine = calloc(1, sizeof(*mine));
    if (!mine)
        return err_nomem(err, sizeof(*mine), "a split");
    rc = read_keys(ds, part, &mine->subset, err);
    if (rc) {
        free(mine);
        return rc;
    }
    pthread_mutex_lock(&ds->lock);
    *out = use(ds, part); /* another thread was faster */
    if (!*out) {
        mine->part = *part;
        mine->users = 1;
        mine->next = ds->splits;
        ds->splits = mine;
        *out = mine->subset;
        mine = NULL;
    }
    pthread_mutex_unlock(&ds->lock);
    if (mine)
        subset_free(mine->subset);
    free(mine);
    return LARDER_OK;
}

static void split_free(struct split *s)
{
    subset_free(s->subset);
    free(s);
}

/* Keeps the newest of those that nobody uses. */
void split_put(struct larder_dataset *ds, const struct subset *subset)
{
    struct split **at, *gone = NULL;
    unsigned idle = 0;

    if (!subset)
        return;
    pthread_mutex_lock(&ds->lock);
    for (struct split *s = ds->splits; s; s = s->next)
        s->users -= s->subset == subset;
    for (at = &ds->splits; *at && !gone;) {
        idle += (*at)->users == 0;
        if (idle <= IDLE_MAX) {
            at = &(*at)->next;
        } else {
            gone = *at;
            *at = gone->next;
        }
    }
    pthread_mutex_unlock(&ds->lock);
    if (gone)
        split_free(gone);
}

void split_close(struct larder_dataset *ds)
{
    struct split *s;

    while ((s = ds->splits)) {
        ds->splits = s->next;
        split_free(s);
    }
}
