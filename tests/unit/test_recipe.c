/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_recipe.c - options that say what is in batches, through real loaders: own batches, assignments, weights, and states of them.
 */
#include "loader/loader_int.h"
#include "tests/unit/dataset.h"

static const struct dataset_spec spec = {600, 100, 20, 100, 10, LARDER_COMPRESS_NONE};

static struct larder_dataset *open_ds(void)
{
    static const char *dir;
    struct larder_dataset *ds;
    struct larder_error err;

    dir = dir ? dir : dataset_make(&spec);
    REQUIRE_OK(larder_dataset_open(dir, NULL, &ds, &err), &err);
    return ds;
}

static struct larder_loader *open_ld(struct larder_dataset *ds, const struct larder_loader_options *o)
{
    struct larder_loader *ld;
    struct larder_error err;

    REQUIRE_OK(larder_loader_open(ds, o, &ld, &err), &err);
    return ld;
}

/* The ordinals that a loader gives, of so many batches (0: to the end of its first epoch), behind each other. */
static size_t read_on(struct larder_loader *ld, size_t batches, uint64_t *ordinals)
{
    const struct larder_batch *b;
    struct larder_error err;
    size_t n = 0;
    int rc = 0;

    for (size_t i = 0; (i < batches || !batches) && (rc = larder_loader_next(ld, &b, &err)) == LARDER_OK; i++) {
        for (uint32_t k = 0; k < b->n; k++)
            CHECK(sample_is(&spec, b->ordinals[k], b->values + (size_t)k * b->n_fields));
        memcpy(ordinals + n, b->ordinals, b->valid * sizeof(*ordinals));
        n += b->valid;
        larder_batch_release(b);
    }
    CHECK(rc == LARDER_OK || rc == LARDER_END);
    return n;
}

/* ---- a rank's own batches ---- */

TEST(own_batches_come_as_they_are)
{
    uint64_t order[200], got[400];
    uint32_t lengths[200];
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds();
    char state[LARDER_STATE_MAX];
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t rng = 2, n = 0, batches = 0;

    for (int i = 0; i < 200; i++)
        order[i] = rng_below(&rng, spec.n); /* repeats allowed */
    while (n < 200) {
        uint64_t length = 1 + rng_below(&rng, 23);
        lengths[batches] = (uint32_t)MIN(length, 200 - n);
        n += lengths[batches++];
    }
    o.order = order;
    o.n_order = 200;
    o.order_is_ranks = 1;
    o.world = 4; /* of a rank among others: not cut */
    o.rank = 2;
    o.shuffle = LARDER_SHUFFLE_NONE;
    o.batch_lengths = lengths;
    o.n_batch_lengths = batches;
    o.batch_size = 3; /* of no interest */
    o.epochs = 2;
    struct larder_loader *ld = open_ld(ds, &o);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        uint64_t at = 0;
        for (uint64_t i = 0; i < batches; i++) {
            REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
            CHECK(b->n == lengths[i] && b->valid == b->n && b->position == at && b->epoch == epoch && b->number == i);
            CHECK_MEM(b->ordinals, order + at, b->n * sizeof(*order));
            at += b->n;
            larder_batch_release(b);
        }
        CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_END);
    }
    CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_END);
    struct larder_loader_stats st = {.struct_size = sizeof(st)};
    REQUIRE_OK(larder_loader_stats(ld, &st, &err), &err);
    CHECK(st.order_bytes >= (200 + batches) * 8);
    CHECK(st.epoch_samples == 200 && st.epoch_batches == batches);
    larder_loader_close(ld);

    for (uint64_t stop = 0; stop <= batches; stop += 3) { /* to be continued, twice */
        ld = open_ld(ds, &o);
        size_t first = stop ? read_on(ld, stop, got) : 0;
        REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
        larder_loader_close(ld);
        o.state = state;
        ld = open_ld(ds, &o);
        o.state = NULL;
        if (stop + 1 < batches)
            first += read_on(ld, 1, got + first);
        REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
        REQUIRE_OK(larder_loader_load_state(ld, state, &err), &err);
        first += read_on(ld, 0, got + first);
        CHECK_EQ(first, 200);
        CHECK_MEM(got, order, sizeof(order));
        if (stop == 0) {
            CHECK_ERR(larder_loader_seek(ld, 0, lengths[0] > 1 ? 1 : 200 - 1, &err), lengths[0] > 1 || lengths[batches - 1] > 1 ? LARDER_EINVAL : LARDER_OK, &err);
            CHECK_OK(larder_loader_seek(ld, 1, lengths[0] + lengths[1], &err), &err);
            REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
            CHECK(b->epoch == 1 && b->n == lengths[2] && b->ordinals[0] == order[lengths[0] + lengths[1]]);
            larder_batch_release(b);
        }
        larder_loader_close(ld);
    }
    ld = open_ld(ds, &o);
    REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
    larder_loader_close(ld);
    o.state = state; /* not with other batches, nor with another rank's order */
    lengths[0]++;
    lengths[1]--;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "batches (digest)"));
    lengths[0]--;
    lengths[1]++;
    order[0] = (order[0] + 1) % spec.n;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    larder_dataset_close(ds);
}

TEST(wrong_options_are_named)
{
    static const uint64_t order[4] = {1, 2, 3, 4};
    static const uint32_t lengths[2] = {2, 2}, none[3] = {2, 0, 2}, fewer[2] = {2, 1};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds();
    uint8_t filter[75] = {1};
    struct larder_loader *ld;
    struct larder_error err;

#define REFUSED(word)                                                             \
    do {                                                                          \
        CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);    \
        CHECK(strstr(err.message, word) != NULL);                                 \
    } while (0)
    o.batch_lengths = lengths;
    o.n_batch_lengths = 2;
    REFUSED("order_is_ranks");
    o.order = order;
    o.n_order = 4;
    o.order_is_ranks = 1;
    REFUSED("LARDER_SHUFFLE_NONE");
    o.shuffle = LARDER_SHUFFLE_NONE;
    o.epoch_size = 4;
    REFUSED("epoch_size");
    o.epoch_size = 0;
    o.batch_lengths = none;
    o.n_batch_lengths = 3;
    REFUSED("batch_lengths[1] is 0");
    o.batch_lengths = fewer;
    o.n_batch_lengths = 2;
    REFUSED("3 samples together, and order has 4");
    o.batch_lengths = NULL;
    REFUSED("n_batch_lengths");
    o.n_batch_lengths = 0;
    o.filter = filter;
    REFUSED("filter");
    o.filter = NULL;
    o.split_end = 0.5;
    REFUSED("split");
    o.order = NULL;
    REFUSED("order_is_ranks without an order");
    o.order_is_ranks = 0;
    o.split_begin = 0.6;
    REFUSED("split_begin 0.6");
    larder_dataset_close(ds);
}

/* ---- assignments ---- */

/* By where a sample lies, as far as there is room: what locality asks for (Yang & Cong). */
static int by_home(void *user, const struct larder_assign_in *in, uint32_t *ranks, struct larder_error *err)
{
    uint32_t count[64] = {0}, each = in->n / in->world, more = in->n % in->world;

    (void)user;
    (void)err;
    for (uint32_t i = 0; i < in->n; i++) {
        uint32_t r = (uint32_t)(in->ordinals[i] * in->world / 600);
        while (count[r] == each + (r < more))
            r = (r + 1) % in->world;
        count[r]++;
        ranks[i] = r;
    }
    return LARDER_OK;
}

TEST(assigned_ranks_share_each_global_batch)
{
    static const uint32_t worlds[] = {1, 3, 8, 40};
    struct larder_dataset *ds = open_ds();

    for (size_t k = 0; k < ARRAY_LEN(worlds); k++)
        for (int last = LARDER_LAST_SHORT; last <= LARDER_LAST_PAD; last++) {
            struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
            struct order order = {.n = spec.n, .seed = 77, .shuffle = LARDER_SHUFFLE_FULL};
            uint32_t count[600] = {0}, covered = 0, at_home = 0;
            uint64_t g, want[600];
            o.seed = 77;
            o.world = worlds[k];
            o.batch_size = 13;
            o.last = last;
            o.epochs = 1;
            o.assign = by_home;
            g = (uint64_t)o.batch_size * o.world;
            order_fill(&order, 0, 0, spec.n, want);
            for (o.rank = 0; o.rank < o.world; o.rank++) {
                struct larder_loader *ld = open_ld(ds, &o);
                struct larder_loader_stats st = {.struct_size = sizeof(st)};
                const struct larder_batch *b;
                CHECK_EQ(larder_loader_stats(ld, &st, NULL), LARDER_OK);
                CHECK_EQ(st.epoch_samples, spec.n);
                CHECK_EQ(st.epoch_batches, last == LARDER_LAST_DROP ? spec.n / g : (spec.n + g - 1) / g);
                while (larder_loader_next(ld, &b, NULL) == LARDER_OK) {
                    for (uint32_t i = 0; i < b->n; i++) {
                        CHECK_EQ(want[b->positions[i]], b->ordinals[i]);
                        CHECK(sample_is(&spec, b->ordinals[i], b->values + (size_t)i * b->n_fields));
                        if (i >= b->valid)
                            continue;
                        CHECK_EQ(b->positions[i] / g, b->number);
                        count[b->ordinals[i]]++;
                        covered++;
                        at_home += b->ordinals[i] * o.world / 600 == o.rank;
                    }
                    larder_batch_release(b);
                }
                larder_loader_close(ld);
            }
            CHECK_EQ(covered, last == LARDER_LAST_DROP ? spec.n / g * g : spec.n);
            for (uint64_t i = 0; i < spec.n; i++)
                CHECK(count[i] <= 1);
            CHECK(at_home > covered / 2); /* it was heard */
        }
    larder_dataset_close(ds);
}

static int badly(void *user, const struct larder_assign_in *in, uint32_t *ranks, struct larder_error *err)
{
    (void)user;
    (void)err;
    for (uint32_t i = 0; i < in->n; i++)
        ranks[i] = in->number == 2 ? 0 : i % in->world;
    return LARDER_OK;
}

/* Batches before a wrong one are delivered; a state of one assignment goes on with another. */
TEST(assignments_that_fail_and_that_change)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds();
    uint64_t got[700];
    char state[LARDER_STATE_MAX];
    uint32_t count[600] = {0};
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;

    o.world = 2;
    o.batch_size = 50;
    o.epochs = 1;
    o.assign = badly;
    ld = open_ld(ds, &o);
    CHECK_EQ(read_on(ld, 2, got), 100);
    CHECK_ERR(larder_loader_next(ld, &b, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "assign: rank 0 gets 100 of the 100 samples of global batch 2"));
    larder_loader_close(ld);
    for (o.rank = 0; o.rank < 2; o.rank++) {
        ld = open_ld(ds, &o);
        size_t n = read_on(ld, 2, got);
        for (size_t i = 0; i < n; i++)
            count[got[i]]++;
        REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
        larder_loader_close(ld);
    }
    o.state = state;
    o.world = 3;
    o.batch_size = 7;
    o.last = LARDER_LAST_SHORT;
    o.assign = by_home;
    for (o.rank = 0; o.rank < 3; o.rank++) {
        ld = open_ld(ds, &o);
        size_t n = read_on(ld, 0, got);
        for (size_t i = 0; i < n; i++)
            count[got[i]]++;
        larder_loader_close(ld);
    }
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(count[i], 1);
    larder_dataset_close(ds);
}

/* ---- states: of weights, a list, a filter ---- */

TEST(any_order_goes_on_where_it_stood)
{
    struct larder_dataset *ds = open_ds();
    uint64_t whole[2000], got[2000], list[450], rng = 8;
    uint8_t filter[75];
    double weights[600];
    struct larder_error err;

    rng_fill(&rng, filter, sizeof(filter));
    for (int i = 0; i < 600; i++)
        weights[i] = (double)(i % 9);
    for (int i = 0; i < 450; i++)
        list[i] = rng_below(&rng, 600);
    for (int kind = 0; kind < 6; kind++) {
        struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
        char state[LARDER_STATE_MAX];
        o.seed = 5;
        o.epochs = 1;
        o.batch_size = 40;
        o.shuffle = kind % 3;
        o.weights = kind == 0 || kind == 3 ? weights : NULL;
        o.filter = kind == 3 || kind == 4 || kind == 5 ? filter : NULL;
        if (kind == 1 || kind == 2) {
            o.order = list;
            o.n_order = 450;
        }
        o.epoch_size = kind == 4 ? 700 : 0;
        struct larder_loader *ld = open_ld(ds, &o);
        size_t n = read_on(ld, 0, whole), at = 0;
        larder_loader_close(ld);
        for (int part = 0; part < 4; part++) { /* batch by batch of other sizes, a resume of a resume of a resume */
            o.state = part ? state : NULL;
            o.batch_size = 40 - 9 * (uint32_t)part;
            ld = open_ld(ds, &o);
            at += read_on(ld, part < 3 ? (size_t)part + 1 : 0, got + at);
            REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
            larder_loader_close(ld);
        }
        CHECK_EQ(at, n);
        CHECK_MEM(got, whole, n * sizeof(*got));
    }
    larder_dataset_close(ds);
}

TEST_MAIN();
