/* SPDX-License-Identifier: Apache-2.0 */
/*
 * estimate.c - what the next epoch will ask of a remote origin: larder_loader_estimate.
 *
 * Records of a shuffled batch lie anywhere: each of the dataset's is wanted with probability q = m / samples. The next wanted one of a
 * shard lies k records on, geometrically distributed; up to k = 1 + gap / record, and that is probability p, the two travel in one
 * GET with what lies between them. In storage order, and where the dataset streams into tiers with room for it, GETs are as large as they
 * may be.
 *
 * Pure but for the samples that are looked up in the tiers: evenly spread ordinals, all of a small dataset.
 *
 * Threads: the loader's.
 */
#include <math.h>

#include "loader/loader_int.h"

#define LOOK_UP_MAX 4096

/* A batch of m records in any place, neighbours within gap joined. */
static double shuffled_gets(const struct estimate_in *in, double m, double gap, double *bytes)
{
    double record = in->bytes / in->samples, shard = in->samples / in->shards, q = MIN(m / in->samples, 1.0);
    double k = MIN(1 + floor(gap / record), shard), none = pow(1 - q, k), p = 1 - none;
    double apart = p > 0 ? 1 / q - k * none / p : 1;      /* of two that travel together, in records */
    double joined = in->shards * q * p * (shard - apart); /* pairs in a shard */

    *bytes = m * record + joined * (apart - 1) * record;
    return m - joined;
}

double estimate_gets(const struct estimate_in *in, double *bytes)
{
    double missing = in->own * (1 - in->cached), wanted = missing * in->bytes / in->samples, gap = in->gap, gets;
    double batches = ceil(in->own / MAX(in->batch, 1.0)), m = missing / MAX(batches, 1.0);

    *bytes = wanted;
    if (missing < 0.5)
        return 0;
    if (in->streams) {
        *bytes = in->bytes * (1 - in->cached);
        return ceil(*bytes / in->get_bytes) + in->shards;
    }
    if (in->in_order)
        return MIN(batches * ceil(wanted / batches / in->get_bytes) + in->shards, missing);
    gets = shuffled_gets(in, m, gap, bytes);
    for (; in->over_read > 0 && *bytes * batches > wanted * (1 + in->over_read) && gap > 1; gap /= 2)
        gets = shuffled_gets(in, m, gap / 2, bytes);
    *bytes *= batches;
    return batches * gets + *bytes / in->get_bytes;
}

/* The share of the samples that tiers have: of all, or of LOOK_UP_MAX. */
static double share_cached(struct larder_dataset *ds)
{
    uint64_t ordinals[64], samples = ds->manifest->samples, looks = MIN(samples, (uint64_t)LOOK_UP_MAX);
    size_t n = 0, found = 0;

    for (uint64_t i = 0; i < looks; i++) {
        ordinals[n++] = (uint64_t)((double)i / looks * samples);
        if (n == ARRAY_LEN(ordinals) || i + 1 == looks) {
            found += tiers_cached(ds->tiers, ordinals, n);
            n = 0;
        }
    }
    return looks ? (double)found / looks : 0;
}

bool order_is_full(const struct order *o, uint64_t samples)
{
    return o->shuffle == LARDER_SHUFFLE_FULL && !o->list && !o->subset && !o->alias && order_length(o) == samples;
}

/* Of one dataset: n of its samples are this rank's in an epoch, in batches of `batch`. Adds to e. */
static void estimate_one(struct larder_dataset *ds, const struct order *o, double n, double batch, bool full, struct larder_loader_estimate *e)
{
    struct tiers_remote_rules r;
    struct estimate_in in = {.samples = ds->manifest->samples, .own = ceil(n), .batch = batch, .shards = ds->manifest->n_shards,
                             .in_order = o->shuffle == LARDER_SHUFFLE_NONE && !o->list && !o->alias};
    double bytes, gets;

    e->samples += (uint64_t)in.own;
    if (in.own < 1)
        return;
    in.cached = share_cached(ds);
    e->samples_cached += (uint64_t)(in.cached * in.own + 0.5);
    if (!tiers_remote_rules(ds->tiers, &r))
        return;
    for (size_t i = 0; i < ds->manifest->n_shards; i++)
        in.bytes += ds->manifest->shards[i].stored_bytes;
    in.gap = r.gap_bytes;
    in.get_bytes = r.get_bytes;
    in.over_read = r.over_read_share;
    in.streams = full && tiers_streams(ds->tiers);
    gets = floor(estimate_gets(&in, &bytes) + 0.5);
    e->gets += (uint64_t)gets;
    e->bytes += (uint64_t)(bytes + 0.5);
    e->dollars += gets / 1000.0 * r.price_get + bytes / 1e9 * r.price_gb;
}

void estimate_epoch(const struct recipe *r, struct larder_loader_estimate *e)
{
    const struct slicing *s = &r->plan.slicing;
    const struct order *o = &r->plan.order;

    if (!r->mix) {
        estimate_one(r->source[0].ds, o, (double)order_length(o) / s->world, s->batch_size, order_is_full(o, r->source[0].ds->manifest->samples), e);
        return;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        const struct mix_source *m = &r->mix->source[i];
        double share = (double)m->each / (double)MAX(r->mix->length, (uint64_t)1);
        estimate_one(r->source[i].ds, &m->order, (double)m->each / s->world, MAX(s->batch_size * share, 1.0), false, e);
    }
}
