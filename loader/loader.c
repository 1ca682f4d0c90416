/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.c - larder_loader_*: epochs of batches over the staging buffer.
 *
 * The stage delivers one endless run of batches; the loader counts them into epochs, puts LARDER_END between two, and keeps
 * the statistics of the epoch that runs. What an epoch's batches cost (reads, bytes) comes with each batch, so that reads
 * made ahead for the next epoch are counted there.
 *
 * A loader belongs to one thread at a time; batches may be released by any.
 */
#include "loader/loader_int.h"

#include <unistd.h>

#define BATCH_SIZE_DEFAULT 256
#define STAGING_DEFAULT (256 * MIB)

struct larder_loader {
    struct stage *stage;
    pid_t pid;
    uint64_t batches;             /* of an epoch */
    uint64_t epoch, last_epoch;   /* last_epoch: the one after the last; epoch == last_epoch is the end */
    bool endless;
    uint64_t number;              /* of the next batch */
    uint64_t begin_ns;            /* first call of this epoch; 0: not yet */
    struct larder_loader_stats stats;
};

static int loader_check(const struct larder_loader *ld, struct larder_error *err)
{
    if (!ld)
        return err_set(err, LARDER_EINVAL, "loader is NULL");
    if (getpid() != ld->pid)
        return err_set(err, LARDER_EFORK, "loader: opened by process %d and used in its child %d: open the dataset and the "
                       "loader again there", (int)ld->pid, (int)getpid());
    return 0;
}

static size_t staging_default(void)
{
    uint64_t quarter = memory_available() / 4;

    return quarter && quarter < STAGING_DEFAULT ? MAX((size_t)quarter, 4 * MIB) : STAGING_DEFAULT;
}

static int options_check(struct larder_loader_options *o, struct larder_error *err)
{
    if (o->shuffle != LARDER_SHUFFLE_FULL && o->shuffle != LARDER_SHUFFLE_NONE)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.shuffle: %d is no enum larder_shuffle", o->shuffle);
    if (o->queue_depth > 4096)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.queue_depth: %u is more than 4096", o->queue_depth);
    if (o->epochs > UINT64_MAX - o->epoch)
        return err_set(err, LARDER_EINVAL, "larder_loader_options: epoch + epochs is more than 2^64 - 1");
    if (o->staging_bytes && o->staging_bytes < STORE_PAGE)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.staging_bytes: %zu is less than a page of %u",
                       o->staging_bytes, STORE_PAGE);
    if (!o->batch_size)
        o->batch_size = BATCH_SIZE_DEFAULT;
    if (!o->staging_bytes)
        o->staging_bytes = staging_default();
    return 0;
}

int larder_loader_open(struct larder_dataset *ds, const struct larder_loader_options *opts, struct larder_loader **out,
                       struct larder_error *err)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct stage_options so = {0};
    struct larder_loader *ld;
    int rc;

    if (!out)
        return err_set(err, LARDER_EINVAL, "larder_loader_open: ld is NULL");
    *out = NULL;
    rc = dataset_check(ds, err);
    if (rc == 0)
        rc = options_take(opts, &o, sizeof(o), "larder_loader_options", err);
    if (rc == 0)
        rc = options_check(&o, err);
    if (rc)
        return rc;
    ld = calloc(1, sizeof(*ld));
    if (!ld)
        return err_nomem(err, sizeof(*ld), "loader");
    so.store = ds->store;
    so.tiers = ds->tiers;
    so.order = (struct order){ds->manifest->samples, o.seed, o.shuffle};
    so.batch_size = o.batch_size;
    so.epoch = o.epoch;
    so.epochs = o.epochs;
    so.queue_depth = o.queue_depth;
    so.staging_bytes = o.staging_bytes;
    ld->pid = getpid();
    ld->batches = order_batches(&so.order, o.batch_size);
    ld->epoch = ld->stats.epoch = o.epoch;
    ld->last_epoch = o.epoch + o.epochs;
    ld->endless = o.epochs == 0;
    rc = stage_open(&so, &ld->stage, err);
    if (rc) {
        free(ld);
        return rc;
    }
    *out = ld;
    return 0;
}

void larder_loader_close(struct larder_loader *ld)
{
    if (!ld)
        return;
    if (getpid() == ld->pid)
        stage_close(ld->stage);
    else
        stage_abandon(ld->stage);
    free(ld);
}

/* The first call of an epoch starts its clock. */
static void epoch_begin(struct larder_loader *ld)
{
    ld->stats = (struct larder_loader_stats){.epoch = ld->epoch};
    ld->begin_ns = now_ns();
}

static int epoch_end(struct larder_loader *ld)
{
    ld->stats.seconds_ns = now_ns() - ld->begin_ns;
    ld->begin_ns = 0;
    ld->number = 0;
    ld->epoch++;
    return LARDER_END;
}

static void tier_add(struct larder_tier_stats *to, const struct larder_tier_stats *s)
{
    to->hits += s->hits;
    to->misses += s->misses;
    to->bytes += s->bytes;
    to->requests += s->requests;
}

static void count(struct larder_loader *ld, const struct larder_batch *b, const struct stage_cost *cost)
{
    struct larder_loader_stats *s = &ld->stats;

    s->samples += b->n;
    s->batches++;
    s->bytes += cost->bytes;
    s->fetch_stall_ns += cost->fetch_stall_ns;
    s->prep_stall_ns += cost->prep_stall_ns;
    tier_add(&s->dram, &cost->io.dram);
    tier_add(&s->nvme, &cost->io.nvme);
    tier_add(&s->origin, &cost->io.origin);
}

int larder_loader_next(struct larder_loader *ld, const struct larder_batch **batch, struct larder_error *err)
{
    struct stage_cost cost;
    int rc;

    if (!batch)
        return err_set(err, LARDER_EINVAL, "larder_loader_next: batch is NULL");
    *batch = NULL;
    rc = loader_check(ld, err);
    if (rc)
        return rc;
    if (!ld->endless && ld->epoch == ld->last_epoch)
        return LARDER_END;
    if (!ld->begin_ns)
        epoch_begin(ld);
    if (ld->number == ld->batches)
        return epoch_end(ld);
    rc = stage_next(ld->stage, batch, &cost, err);
    if (rc)
        return rc;
    ld->number++;
    count(ld, *batch, &cost);
    return 0;
}

void larder_batch_release(const struct larder_batch *batch)
{
    if (batch)
        stage_release(batch);
}

int larder_loader_stats(const struct larder_loader *ld, struct larder_loader_stats *stats, struct larder_error *err)
{
    struct larder_loader_stats s;
    int rc = loader_check(ld, err);

    if (rc == 0)
        rc = result_check(stats, sizeof(s), "larder_loader_stats", err);
    if (rc)
        return rc;
    s = ld->stats;
    if (ld->begin_ns)
        s.seconds_ns = now_ns() - ld->begin_ns;
    result_give(stats, &s, sizeof(s));
    return 0;
}
