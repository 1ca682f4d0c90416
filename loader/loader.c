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
#define BLOCK_SAMPLES 1024 /* of a block shuffle: 16 such blocks are 16,384 samples, a few seconds of training */
#define WINDOW_BLOCKS 16
#define STAGING_DEFAULT (256 * MIB)
#define TIMEOUT_MS_DEFAULT 120000
#define NOTICE_MS_DEFAULT 30000

struct larder_loader {
    struct stage *stage;
    struct larder_dataset *ds;
    pid_t pid;
    struct order order;
    struct subset *subset;        /* owned, as the two below, by the order */
    struct alias *alias;
    uint64_t *list;
    struct slicing slicing;
    const struct manifest *manifest;
    uint64_t batches;             /* of the epoch that runs or comes next */
    uint64_t position;            /* where that epoch began: 0 but after a resume */
    uint64_t epoch, last_epoch;   /* last_epoch: the one after the last; epoch == last_epoch is the end */
    bool endless;
    uint64_t number;              /* of the next batch */
    uint64_t begin_ns;            /* first call of this epoch; 0: not yet */
    struct larder_loader_stats stats;
    uint64_t first_epoch;
    struct larder_loader_estimate first; /* of that one, taken before anything was fetched for it */
};

static int loader_check(const struct larder_loader *ld, struct larder_error *err)
{
    if (!ld)
        return err_set(err, LARDER_EINVAL, "loader is NULL");
    if (process_id() != ld->pid)
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
    if (o->shuffle < LARDER_SHUFFLE_FULL || o->shuffle > LARDER_SHUFFLE_BLOCK)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.shuffle: %d is no enum larder_shuffle", o->shuffle);
    if (o->last < LARDER_LAST_AUTO || o->last > LARDER_LAST_PAD)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.last: %d is no enum larder_last", o->last);
    if (!o->world)
        o->world = 1;
    if (o->rank >= o->world)
        return err_set(err, LARDER_EINVAL, "larder_loader_options: rank %u of %u: ranks begin at 0", o->rank, o->world);
    if (o->filter && o->order)
        return err_set(err, LARDER_EINVAL, "larder_loader_options: filter and order exclude each other: leave out of order what is not wanted");
    if (o->order_is_ranks && !o->order)
        return err_set(err, LARDER_EINVAL, "larder_loader_options: order_is_ranks without an order");
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
    if (!o->timeout_ms)
        o->timeout_ms = TIMEOUT_MS_DEFAULT;
    if (!o->notice_ms)
        o->notice_ms = NOTICE_MS_DEFAULT;
    return 0;
}

/* The order that the options describe; ld owns its parts. */
static int order_take(struct larder_loader *ld, const struct larder_loader_options *o, uint64_t samples, struct larder_error *err)
{
    struct order *r = &ld->order;
    int rc = LARDER_OK;

    *r = (struct order){.n = samples, .seed = o->seed, .shuffle = o->shuffle, .epoch_size = o->epoch_size,
                        .block = o->block_samples ? o->block_samples : BLOCK_SAMPLES,
                        .window = o->window_blocks ? o->window_blocks : WINDOW_BLOCKS};
    if (o->filter) {
        rc = subset_new(o->filter, samples, &ld->subset, err);
        r->subset = ld->subset;
        r->n = rc ? 0 : ld->subset->members;
    }
    for (uint64_t i = 0; o->order && i < o->n_order; i++)
        if (o->order[i] >= samples)
            return err_set(err, LARDER_ENOTFOUND, "larder_loader_options.order[%llu]: ordinal %llu of %llu", (unsigned long long)i,
                           (unsigned long long)o->order[i], (unsigned long long)samples);
    if (o->order) {
        ld->list = bytes_dup(o->order, o->n_order * sizeof(*o->order));
        if (!ld->list)
            return err_nomem(err, o->n_order * sizeof(*o->order), "an order");
        r->list = ld->list;
        r->n = o->n_order;
    }
    if (!rc && o->weights && r->n) {
        rc = alias_new(o->weights, r->n, &ld->alias, err);
        r->alias = ld->alias;
    }
    if (!rc && r->n == 0)
        r->epoch_size = 0; /* of nothing there is nothing */
    r->block = MIN(r->block, MAX(r->n, (uint64_t)1)); /* more makes no difference */
    r->window = MIN(r->window, MAX(r->n, (uint64_t)1));
    ld->stats.order_bytes = (ld->subset ? subset_bytes(ld->subset) : 0) + (ld->alias ? r->n * sizeof(struct alias_entry) : 0) +
                            (ld->list ? r->n * sizeof(*ld->list) : 0);
    return rc;
}

static int slicing_take(struct larder_loader *ld, const struct larder_loader_options *o, struct larder_error *err)
{
    uint32_t world = o->order_is_ranks ? 1 : o->world, rank = o->order_is_ranks ? 0 : o->rank;
    uint64_t length = order_length(&ld->order), g = (uint64_t)o->batch_size * world;
    int last = o->last;

    if (last == LARDER_LAST_AUTO)
        last = world == 1 ? LARDER_LAST_SHORT : o->shuffle == LARDER_SHUFFLE_NONE ? LARDER_LAST_PAD : LARDER_LAST_DROP;
    ld->slicing = (struct slicing){o->batch_size, world, rank, last};
    if (last == LARDER_LAST_DROP && length > 0 && length < g)
        return err_set(err, LARDER_EINVAL, "an epoch of %llu samples has no whole batch of %llu (batch_size %u x world %u), and last is to be "
                       "dropped: lower batch_size, or ask for LARDER_LAST_SHORT or _PAD", (unsigned long long)length, (unsigned long long)g,
                       o->batch_size, world);
    return LARDER_OK;
}

/* What the state of this loader has whatever comes. */
static struct state state_now(const struct larder_loader *ld)
{
    struct state s = {.generation = ld->manifest->generation, .samples = ld->manifest->samples, .seed = ld->order.seed,
                      .order = order_digest(&ld->order), .epoch = ld->epoch, .position = 0};

    memcpy(s.uuid, ld->manifest->uuid, 16);
    memcpy(s.lineage, ld->manifest->lineage, 16);
    return s;
}

static int state_take(struct larder_loader *ld, const struct larder_loader_options *o, struct larder_error *err)
{
    struct state saved, now = state_now(ld);
    int rc;

    if (!o->state)
        return LARDER_OK;
    rc = state_decode(o->state, strlen(o->state), &saved, err);
    if (!rc)
        rc = state_check(&saved, &now, order_length(&ld->order), err);
    if (rc)
        return rc;
    if (saved.epoch < o->epoch || (o->epochs && saved.epoch > o->epoch + o->epochs))
        return err_set(err, LARDER_EINVAL, "the state stands in epoch %llu; these are %llu epochs from %llu on", (unsigned long long)saved.epoch,
                       (unsigned long long)o->epochs, (unsigned long long)o->epoch);
    ld->position = saved.position;
    if (o->epochs && saved.epoch == o->epoch + o->epochs)
        ld->position = order_length(&ld->order); /* all is done */
    ld->epoch = saved.epoch;
    return LARDER_OK;
}

static void loader_free(struct larder_loader *ld)
{
    subset_free(ld->subset);
    alias_free(ld->alias);
    free(ld->list);
    free(ld);
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
    ld->pid = getpid();
    ld->ds = ds;
    ld->manifest = ds->manifest;
    ld->epoch = o.epoch;
    ld->last_epoch = o.epoch + o.epochs;
    ld->endless = o.epochs == 0;
    rc = order_take(ld, &o, ds->manifest->samples, err);
    if (!rc)
        rc = slicing_take(ld, &o, err);
    if (!rc)
        rc = state_take(ld, &o, err);
    if (rc) {
        loader_free(ld);
        return rc;
    }
    ld->batches = slicing_batches(&ld->slicing, ld->position, order_length(&ld->order));
    ld->stats.epoch = ld->epoch;
    so.store = ds->store;
    so.tiers = ds->tiers;
    so.order = ld->order;
    so.slicing = ld->slicing;
    so.epoch = ld->epoch;
    so.epochs = ld->endless ? 0 : MAX(ld->last_epoch - ld->epoch, (uint64_t)1);
    so.position = ld->position;
    so.queue_depth = o.queue_depth;
    so.staging_bytes = o.staging_bytes;
    so.timeout_ms = o.timeout_ms;
    so.notice_ms = o.notice_ms;
    so.waiting = o.waiting;
    so.user = o.user;
    ld->first_epoch = ld->epoch;
    estimate_epoch(ds, &ld->order, &ld->slicing, &ld->first);
    rc = stage_open(&so, &ld->stage, err);
    if (rc) {
        loader_free(ld);
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
    loader_free(ld);
}

/* The first call of an epoch starts its clock. */
static void epoch_begin(struct larder_loader *ld)
{
    ld->stats = (struct larder_loader_stats){.epoch = ld->epoch, .order_bytes = ld->stats.order_bytes};
    ld->begin_ns = now_ns();
    tiers_register(ld->ds->tiers);
}

static int epoch_end(struct larder_loader *ld)
{
    tiers_register(ld->ds->tiers);
    ld->stats.seconds_ns = now_ns() - ld->begin_ns;
    ld->begin_ns = 0;
    ld->number = 0;
    ld->position = 0;
    ld->epoch++;
    ld->batches = slicing_batches(&ld->slicing, 0, order_length(&ld->order));
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

    s->samples += b->valid;
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

int larder_loader_estimate(struct larder_loader *ld, struct larder_loader_estimate *estimate, struct larder_error *err)
{
    struct larder_loader_estimate e = {0};
    int rc = loader_check(ld, err);

    if (rc == 0)
        rc = result_check(estimate, sizeof(e), "larder_loader_estimate", err);
    if (rc)
        return rc;
    if (ld->epoch == ld->first_epoch)
        e = ld->first;
    else
        estimate_epoch(ld->ds, &ld->order, &ld->slicing, &e);
    result_give(estimate, &e, sizeof(e));
    return 0;
}

void larder_batch_release(const struct larder_batch *batch)
{
    if (batch)
        stage_release(batch);
}

int larder_loader_state(const struct larder_loader *ld, char *text, size_t cap, struct larder_error *err)
{
    AUTO_BUF struct buf out = BUF_INIT;
    int rc = loader_check(ld, err);

    if (rc)
        return rc;
    if (!text)
        return err_set(err, LARDER_EINVAL, "larder_loader_state: text is NULL");
    struct state s = state_now(ld);
    s.position = MIN(ld->position + ld->number * ld->slicing.batch_size * ld->slicing.world, order_length(&ld->order));
    rc = state_encode(&s, &out, err);
    if (rc)
        return rc;
    if (out.len >= cap)
        return err_set(err, LARDER_EINVAL, "larder_loader_state: %zu bytes do not fit into %zu: LARDER_STATE_MAX do", out.len, cap);
    memcpy(text, out.data, out.len);
    text[out.len] = '\0';
    return LARDER_OK;
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
