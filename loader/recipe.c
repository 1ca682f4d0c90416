/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recipe.c - what a loader's epochs are made of: datasets, their orders, how they are mixed and cut into batches. From options to values.
 *
 * Everything that the order depends on is decided here and constant afterwards; a digest of it goes into states. What the caller gave
 * (filter, weights, list, lengths) is copied. Splits are borrowed from their datasets.
 *
 * Threads: one; afterwards the fetch thread has the batch plan, whose work room is its own.
 */
#include "loader/loader_int.h"

#define BLOCK_SAMPLES 1024 /* of a block shuffle: 16 such blocks are 16,384 samples, a few seconds of training */
#define WINDOW_BLOCKS 16

/* What of the options belongs to one dataset. */
struct choice { const uint8_t *filter; const double *weights; const uint64_t *list; uint64_t n_list; };

/* ---- the order of one dataset ---- */

/* Filter and split: one of them as it is, or what is in both. */
static int take_subset(struct recipe_source *s, const struct choice *c, const struct split_part *part, struct larder_error *err)
{
    uint64_t samples = s->ds->manifest->samples;
    struct subset *filter = NULL;
    int rc = LARDER_OK;

    if (part->span)
        rc = split_get(s->ds, part, &s->split, err);
    if (!rc && c->filter)
        rc = subset_new(c->filter, samples, &filter, err);
    if (!rc && filter && s->split)
        rc = subset_and(filter, s->split, &s->subset, err);
    if (!rc && filter && !s->split) {
        s->subset = filter;
        filter = NULL;
    }
    subset_free(filter);
    return rc;
}

static int take_list(struct recipe_source *s, const struct choice *c, struct larder_error *err)
{
    uint64_t samples = s->ds->manifest->samples;

    for (uint64_t i = 0; i < c->n_list; i++)
        if (c->list[i] >= samples)
            return err_set(err, LARDER_ENOTFOUND, "larder_loader_options.order[%llu]: ordinal %llu of %llu", (unsigned long long)i,
                           (unsigned long long)c->list[i], (unsigned long long)samples);
    s->list = bytes_dup(c->list, c->n_list * sizeof(*c->list));
    return s->list ? LARDER_OK : err_nomem(err, c->n_list * sizeof(*c->list), "an order");
}

/* Weights are given for what a filter leaves, before the split. */
static int take_weights(struct recipe_source *s, const struct order *o, const struct choice *c, struct larder_error *err)
{
    AUTO_FREE double *members = NULL;
    struct subset *filter = NULL;
    int rc;

    if (!s->split)
        return alias_new(c->weights, o->n, &s->alias, err);
    members = malloc(MAX(o->n, (uint64_t)1) * sizeof(*members));
    if (!members)
        return err_nomem(err, o->n * sizeof(*members), "weights");
    if (c->filter && (rc = subset_new(c->filter, s->ds->manifest->samples, &filter, err)))
        return rc;
    for (uint64_t i = 0; i < o->n; i++) {
        uint64_t ordinal = subset_select(o->subset, i);
        members[i] = c->weights[filter ? subset_rank(filter, ordinal) : ordinal];
    }
    subset_free(filter);
    return alias_new(members, o->n, &s->alias, err);
}

static int take_order(struct recipe_source *s, const struct larder_loader_options *o, const struct choice *c, const struct split_part *part,
                      struct order *r, struct larder_error *err)
{
    int rc = take_subset(s, c, part, err);

    *r = (struct order){.n = s->ds->manifest->samples, .seed = o->seed, .shuffle = o->shuffle, .epoch_size = o->epoch_size,
                        .block = o->block_samples ? o->block_samples : BLOCK_SAMPLES,
                        .window = o->window_blocks ? o->window_blocks : WINDOW_BLOCKS};
    r->subset = s->subset ? s->subset : s->split;
    if (!rc && r->subset)
        r->n = r->subset->members;
    if (!rc && c->list) {
        rc = take_list(s, c, err);
        r->list = s->list;
        r->n = c->n_list;
    }
    if (!rc && c->weights && r->n) {
        rc = take_weights(s, r, c, err);
        r->alias = s->alias;
    }
    if (r->n == 0)
        r->epoch_size = 0; /* of nothing there is nothing */
    r->block = MIN(r->block, MAX(r->n, (uint64_t)1)); /* more makes no difference */
    r->window = MIN(r->window, MAX(r->n, (uint64_t)1));
    return rc;
}

/* A split that two sources of one dataset share counts twice: it is told what each needs. */
static uint64_t source_bytes(const struct recipe_source *s, const struct order *o)
{
    return (s->subset ? subset_bytes(s->subset) : 0) + (s->split ? subset_bytes(s->split) : 0) +
           (s->alias ? o->n * sizeof(struct alias_entry) : 0) + (s->list ? o->n * sizeof(*s->list) : 0);
}

/* ---- batches ---- */

static int take_ends(struct recipe *r, const struct larder_loader_options *o, struct larder_error *err)
{
    uint64_t length = batch_plan_length(&r->plan), end = 0;
    struct slicing *s = &r->plan.slicing;

    if (!o->batch_lengths)
        return LARDER_OK;
    r->ends = malloc(MAX(o->n_batch_lengths, (uint64_t)1) * sizeof(*r->ends));
    if (!r->ends)
        return err_nomem(err, o->n_batch_lengths * sizeof(*r->ends), "batch lengths");
    s->batch_size = 1;
    for (uint64_t i = 0; i < o->n_batch_lengths; i++) {
        if (o->batch_lengths[i] == 0)
            return err_set(err, LARDER_EINVAL, "larder_loader_options.batch_lengths[%llu] is 0", (unsigned long long)i);
        s->batch_size = MAX(s->batch_size, o->batch_lengths[i]);
        r->ends[i] = end += o->batch_lengths[i];
    }
    if (end != length)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.batch_lengths: %llu samples together, and order has %llu", (unsigned long long)end,
                       (unsigned long long)length);
    s->ends = r->ends;
    s->n_ends = o->n_batch_lengths;
    return LARDER_OK;
}

static int take_slicing(struct recipe *r, const struct larder_loader_options *o, struct larder_error *err)
{
    uint32_t world = o->order_is_ranks ? 1 : o->world, rank = o->order_is_ranks ? 0 : o->rank;
    uint64_t length = batch_plan_length(&r->plan), g = (uint64_t)o->batch_size * world;
    int last = o->last;

    if (last == LARDER_LAST_AUTO)
        last = world == 1 ? LARDER_LAST_SHORT : o->shuffle == LARDER_SHUFFLE_NONE ? LARDER_LAST_PAD : LARDER_LAST_DROP;
    r->plan.slicing = (struct slicing){.batch_size = o->batch_size, .world = world, .rank = rank, .last = last};
    if (last == LARDER_LAST_DROP && length > 0 && length < g && !o->batch_lengths)
        return err_set(err, LARDER_EINVAL, "an epoch of %llu samples has no whole batch of %llu (batch_size %u x world %u), and last is to be "
                       "dropped: lower batch_size, or ask for LARDER_LAST_SHORT or _PAD", (unsigned long long)length, (unsigned long long)g,
                       o->batch_size, world);
    return take_ends(r, o, err);
}

/* ---- options ---- */

static int exclude(bool a, bool b, const char *what, struct larder_error *err)
{
    return a && b ? err_set(err, LARDER_EINVAL, "larder_loader_options: %s", what) : LARDER_OK;
}

static int check(const struct larder_loader_options *o, bool mix, struct larder_error *err)
{
    bool split = o->split_begin != 0 || o->split_end != 0, lengths = o->batch_lengths;
    int rc = LARDER_OK;

    if (o->order_is_ranks && !o->order)
        rc = err_set(err, LARDER_EINVAL, "larder_loader_options: order_is_ranks without an order");
    if (o->n_batch_lengths && !o->batch_lengths)
        rc = err_set(err, LARDER_EINVAL, "larder_loader_options: n_batch_lengths without batch_lengths");
    rc = rc ? rc : exclude(mix, o->filter || o->weights || o->order, "filter, weights and order are of one dataset: a mix has them in its "
                           "sources, and no order", err);
    rc = rc ? rc : exclude(o->filter || split, o->order, "filter and split exclude an order: leave out of it what is not wanted", err);
    rc = rc ? rc : exclude(lengths, !o->order_is_ranks, "batch_lengths cut a rank's own order: give order and order_is_ranks", err);
    rc = rc ? rc : exclude(lengths, o->weights || o->epoch_size || o->shuffle != LARDER_SHUFFLE_NONE, "batch_lengths cut an order that is as "
                           "given: with LARDER_SHUFFLE_NONE, without weights and epoch_size", err);
    return rc ? rc : exclude(o->assign, o->order_is_ranks, "assign with order_is_ranks: there is nothing to share out", err);
}

/* ---- the run ---- */

static int take_one(struct recipe *r, const struct larder_loader_options *o, const struct split_part *part, struct larder_error *err)
{
    struct choice c = {o->filter, o->weights, o->order, o->order ? o->n_order : 0};
    int rc = take_order(&r->source[0], o, &c, part, &r->plan.order, err);

    r->bytes = rc ? 0 : source_bytes(&r->source[0], &r->plan.order);
    return rc;
}

static int take_mix(struct recipe *r, const struct larder_mix_source *from, int exhausted, const struct larder_loader_options *o,
                    const struct split_part *part, struct larder_error *err)
{
    AUTO_FREE struct order *orders = calloc(r->n, sizeof(*orders));
    AUTO_FREE double *weights = calloc(r->n, sizeof(*weights));
    bool by_size = true;
    int rc = LARDER_OK;

    if (!orders || !weights)
        return err_nomem(err, r->n * sizeof(*orders), "a mix");
    for (uint32_t i = 0; !rc && i < r->n; i++) {
        struct choice c = {from[i].filter, from[i].weights, NULL, 0};
        rc = take_order(&r->source[i], o, &c, part, &orders[i], err);
        if (rc)
            return err_prefix(err, rc, "source %u", i);
        weights[i] = from[i].weight;
        by_size = by_size && weights[i] == 0;
        r->bytes += source_bytes(&r->source[i], &orders[i]);
    }
    rc = mix_new(orders, by_size ? NULL : weights, r->n, o->seed, o->shuffle, o->epoch_size, exhausted, &r->mix, err);
    r->plan.mix = r->mix;
    r->plan.order = (struct order){.seed = o->seed, .shuffle = o->shuffle, .block = 1, .window = 1};
    r->bytes += r->n * sizeof(struct mix_source);
    return rc;
}

int recipe_open(const struct larder_mix_source *sources, uint32_t n, bool mix, int exhausted, const struct larder_loader_options *o, struct recipe *r,
                struct larder_error *err)
{
    struct split_part part = {.span = 0};
    int rc = check(o, mix, err);

    *r = (struct recipe){.n = n};
    if (!rc && (o->split_begin != 0 || o->split_end != 0))
        rc = split_part(o->split_begin, o->split_end, o->split_seed, &part, err);
    if (rc)
        return rc;
    r->source = calloc(n, sizeof(*r->source));
    if (!r->source)
        return err_nomem(err, n * sizeof(*r->source), "loader");
    r->stores = calloc(n, sizeof(*r->stores));
    r->tiers = calloc(n, sizeof(*r->tiers));
    r->uris = calloc(n, sizeof(*r->uris));
    if (!r->stores || !r->tiers || !r->uris)
        rc = err_nomem(err, n * sizeof(*r->stores), "loader");
    for (uint32_t i = 0; !rc && i < n; i++) {
        r->source[i].ds = sources[i].ds;
        r->stores[i] = sources[i].ds->store;
        r->tiers[i] = sources[i].ds->tiers;
        r->uris[i] = sources[i].ds->path;
    }
    if (!rc)
        rc = mix ? take_mix(r, sources, exhausted, o, &part, err) : take_one(r, o, &part, err);
    if (!rc)
        rc = take_slicing(r, o, err);
    r->plan.assign = o->assign;
    r->plan.assign_user = o->assign_user;
    if (!rc)
        rc = batch_plan_prepare(&r->plan, err);
    if (rc) {
        recipe_close(r, false);
        return rc;
    }
    r->bytes += batch_plan_bytes(&r->plan) + r->plan.slicing.n_ends * sizeof(*r->ends);
    r->digest = batch_plan_digest(&r->plan);
    return LARDER_OK;
}

void recipe_close(struct recipe *r, bool forked)
{
    for (uint32_t i = 0; r->source && i < r->n; i++) {
        if (r->fields)
            free(r->fields[i]);
        if (!forked) /* the lock of the dataset may be held for ever there */
            split_put(r->source[i].ds, r->source[i].split);
        subset_free(r->source[i].subset);
        alias_free(r->source[i].alias);
        free(r->source[i].list);
    }
    batch_plan_release(&r->plan);
    mix_free(r->mix);
    free(r->ends);
    free(r->stores);
    free(r->tiers);
    free(r->uris);
    free(r->fields);
    free(r->source);
    *r = (struct recipe){.n = 0};
}

/* ---- schemas ---- */

static bool same_field(const struct schema_field *a, const struct schema_field *b)
{
    struct schema x = {1, (struct schema_field *)a}, y = {1, (struct schema_field *)b};

    return schema_equal(&x, &y);
}

/* Which field of theirs each of ours is; UINT32_MAX: none that is alike. */
static uint32_t *match(const struct schema *ours, const struct schema *theirs)
{
    uint32_t *fields = malloc(MAX(ours->n, 1u) * sizeof(*fields));

    for (uint32_t f = 0; fields && f < ours->n; f++) {
        int found = schema_find(theirs, ours->fields[f].name);
        fields[f] = found >= 0 && same_field(&ours->fields[f], &theirs->fields[found]) ? (uint32_t)found : UINT32_MAX;
    }
    return fields;
}

/* outputs are prep_new's: of one struct_size, which may be a newer header's. */
static int join_one(struct recipe *r, uint32_t i, const struct larder_output *outputs, size_t n_outputs, struct larder_error *err)
{
    const struct schema *ours = &r->source[0].ds->manifest->schema, *theirs = &r->source[i].ds->manifest->schema;

    r->fields_max = MAX(r->fields_max, theirs->n);
    r->fields[i] = match(ours, theirs);
    if (!r->fields[i])
        return err_nomem(err, ours->n * sizeof(**r->fields), "a mix");
    for (size_t k = 0; k < n_outputs; k++) {
        const char *field = ((const struct larder_output *)(const void *)((const char *)outputs + k * outputs->struct_size))->field;
        int f = field ? schema_find(ours, field) : -1;
        if (f >= 0 && r->fields[i][f] == UINT32_MAX)
            return err_set(err, LARDER_EINVAL, "source %u (%s): field '%s' of an output is not there, or not what it is in source 0 (%s)", i,
                           r->source[i].ds->path, field, r->source[0].ds->path);
    }
    return LARDER_OK;
}

int recipe_join(struct recipe *r, const struct larder_output *outputs, size_t n_outputs, struct larder_error *err)
{
    const struct schema *ours = &r->source[0].ds->manifest->schema;
    uint32_t other = 1;
    int rc = LARDER_OK;

    while (other < r->n && schema_equal(ours, &r->source[other].ds->manifest->schema))
        other++;
    if (other >= r->n)
        return LARDER_OK;
    if (!outputs)
        return err_set(err, LARDER_EINVAL, "source %u (%s) has another schema than source 0 (%s): batches of both need outputs", other,
                       r->source[other].ds->path, r->source[0].ds->path);
    r->fields = calloc(r->n, sizeof(*r->fields));
    if (!r->fields)
        return err_nomem(err, r->n * sizeof(*r->fields), "a mix");
    for (uint32_t i = 0; !rc && i < r->n; i++)
        rc = join_one(r, i, outputs, n_outputs, err);
    return rc;
}

/* ---- its state ---- */

int recipe_state(const struct recipe *r, struct state *s, struct larder_error *err)
{
    *s = (struct state){.seed = r->plan.order.seed, .order = r->digest, .mix = r->mix, .n = r->n};
    s->source = calloc(r->n, sizeof(*s->source));
    if (!s->source)
        return err_nomem(err, r->n * sizeof(*s->source), "a state");
    for (uint32_t i = 0; i < r->n; i++) {
        const struct manifest *m = r->source[i].ds->manifest;
        s->source[i] = (struct state_source){.generation = m->generation, .samples = m->samples};
        memcpy(s->source[i].uuid, m->uuid, 16);
        memcpy(s->source[i].lineage, m->lineage, 16);
        if (r->mix)
            memcpy(&s->source[i].weight, &r->mix->source[i].weight, 8);
    }
    return LARDER_OK;
}

int recipe_position(const struct recipe *r, uint64_t position, struct larder_error *err)
{
    const struct slicing *s = &r->plan.slicing;
    uint64_t length = batch_plan_length(&r->plan), before = s->ends ? s->n_ends - slicing_batches(s, position, length) : 0;

    if (position > length)
        return err_set(err, LARDER_EINVAL, "position %llu of an epoch of %llu", (unsigned long long)position, (unsigned long long)length);
    if (s->ends && position != (before ? s->ends[before - 1] : 0))
        return err_set(err, LARDER_EINVAL, "position %llu lies within batch %llu of batch_lengths: it has to be where one begins",
                       (unsigned long long)position, (unsigned long long)before);
    return LARDER_OK;
}
