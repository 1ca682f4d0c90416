/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <unistd.h>

#include "loader/loader_int.h"
#include "tests/unit/dataset.h"

static const struct dataset_spec spec = {3000, 97, 5, 20, 5, LARDER_COMPRESS_NONE}; /* shards meet within a word of bits */

static struct larder_dataset *open_ds(const char *dir)
{
    struct larder_dataset *ds;
    struct larder_error err;

    REQUIRE_OK(larder_dataset_open(dir, NULL, &ds, &err), &err);
    return ds;
}

/* By the public hash alone. */
static bool expected(uint64_t i, double begin, double end, uint64_t seed)
{
    char key[64];
    double x = (double)(larder_hash64(seed, key, sample_key(i, key)) >> 11) * 0x1p-53;

    return x >= begin && x < end;
}

TEST(members_are_those_whose_keys_hash_there)
{
    static const double parts[][2] = {{0, 0.9}, {0.9, 1}, {0, 0.5}, {0.25, 0.5}, {0.5, 1}, {0, 0.0625}};
    struct larder_dataset *ds = open_ds(dataset_make(&spec));
    struct larder_error err;

    for (size_t k = 0; k < ARRAY_LEN(parts); k++)
        for (uint64_t seed = 0; seed < 3; seed++) {
            struct split_part part;
            const struct subset *s, *again;
            uint64_t members = 0;
            double share = parts[k][1] - parts[k][0], n = (double)spec.n;

            REQUIRE_OK(split_part(parts[k][0], parts[k][1], seed, &part, &err), &err);
            REQUIRE_OK(split_get(ds, &part, &s, &err), &err);
            for (uint64_t i = 0; i < spec.n; i++) {
                CHECK_EQ(subset_has(s, i), expected(i, parts[k][0], parts[k][1], seed));
                members += subset_has(s, i);
            }
            CHECK_EQ(s->members, members);
            CHECK(((double)members - share * n) * ((double)members - share * n) < 25 * share * (1 - share) * n); /* five deviations */
            REQUIRE_OK(split_get(ds, &part, &again, &err), &err);
            CHECK(again == s);
            split_put(ds, s);
            split_put(ds, again);
        }
    split_put(ds, NULL);
    larder_dataset_close(ds);
}

TEST(parts_that_touch_share_nothing_and_leave_nothing)
{
    struct split_part a, b, c;
    struct larder_error err;
    uint64_t state = 3;

    REQUIRE_OK(split_part(0, 1.0 / 3, 7, &a, &err), &err);
    REQUIRE_OK(split_part(1.0 / 3, 0.9, 7, &b, &err), &err);
    REQUIRE_OK(split_part(0.9, 1, 7, &c, &err), &err);
    for (int i = 0; i < 20000; i++) {
        uint64_t key = rng_u64(&state);
        CHECK_EQ(split_has(&a, &key, 8) + split_has(&b, &key, 8) + split_has(&c, &key, 8), 1);
    }
    CHECK_ERR(split_part(0.5, 0.5, 0, &a, &err), LARDER_EINVAL, &err);
    CHECK_ERR(split_part(-0.1, 0.5, 0, &a, &err), LARDER_EINVAL, &err);
    CHECK_ERR(split_part(0.5, 1.1, 0, &a, &err), LARDER_EINVAL, &err);
    CHECK_ERR(split_part(0, 1e-300, 0, &a, &err), LARDER_EINVAL, &err);
}

/* A dataset that grows: nobody changes sides. */
TEST(appending_moves_nobody)
{
    struct dataset_spec grown = spec;
    struct split_part part;
    const struct subset *before, *after;
    struct larder_error err;

    grown.n = 5000;
    struct larder_dataset *old = open_ds(dataset_make(&spec)), *new = open_ds(dataset_make(&grown));
    REQUIRE_OK(split_part(0.2, 0.7, 1, &part, &err), &err);
    REQUIRE_OK(split_get(old, &part, &before, &err), &err);
    REQUIRE_OK(split_get(new, &part, &after, &err), &err);
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(subset_has(before, i), subset_has(after, i));
    CHECK(after->members > before->members + 800);
    split_put(old, before);
    split_put(new, after);
    larder_dataset_close(old);
    larder_dataset_close(new);
}

static struct larder_loader *open_ld(struct larder_dataset *ds, const struct larder_loader_options *o)
{
    struct larder_loader *ld;
    struct larder_error err;

    REQUIRE_OK(larder_loader_open(ds, o, &ld, &err), &err);
    return ld;
}

/* Counts the samples of an epoch. */
static uint64_t read_epoch(struct larder_loader *ld, uint32_t *count)
{
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t n = 0;
    int rc;

    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
        for (uint32_t i = 0; i < b->valid; i++)
            count[b->ordinals[i]]++;
        n += b->valid;
        larder_batch_release(b);
    }
    CHECK_ERR(rc, LARDER_END, &err);
    return n;
}

TEST(loaders_of_the_parts_have_every_sample_once)
{
    static const double ends[] = {0, 0.6, 0.8, 1};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(dataset_make(&spec));
    struct larder_loader_stats st = {.struct_size = sizeof(st)};
    uint32_t count[3000] = {0};
    uint8_t filter[375];
    double weights[3000];

    o.epochs = 1;
    for (int part = 0; part < 3; part++) {
        o.split_begin = ends[part];
        o.split_end = ends[part + 1];
        struct larder_loader *a = open_ld(ds, &o), *b = open_ld(ds, &o); /* the second one finds it there */
        uint32_t again[3000] = {0};
        CHECK_EQ(read_epoch(a, count), read_epoch(b, again));
        CHECK_EQ(larder_loader_stats(a, &st, NULL), LARDER_OK);
        CHECK(st.order_bytes >= spec.n / 8 && st.order_bytes < spec.n / 4);
        larder_loader_close(a);
        larder_loader_close(b);
    }
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(count[i], 1);
    /* with a filter, what is in both; weights go with the ordinals, or with the filter's members */
    memset(filter, 0x55, sizeof(filter));
    for (int given = 0; given < 2; given++) {
        o.filter = given ? filter : NULL;
        for (uint64_t i = 0; i < spec.n; i++) /* only multiples of 6 have any */
            weights[i] = (given ? 2 * i : i) % 6 == 0 ? 1 : 0;
        for (int w = 0; w < 2; w++) {
            o.weights = w ? weights : NULL;
            memset(count, 0, sizeof(count));
            struct larder_loader *ld = open_ld(ds, &o);
            read_epoch(ld, count);
            for (uint64_t i = 0; i < spec.n; i++) {
                bool in = expected(i, 0.8, 1, 0) && (!given || i % 2 == 0) && (!w || i % 6 == 0);
                CHECK(in ? w || count[i] == 1 : count[i] == 0);
            }
            larder_loader_close(ld);
        }
    }
    larder_dataset_close(ds);
}

static void *part_of(void *user)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    uint32_t *count = calloc(3000, sizeof(*count));

    o.epochs = 1;
    o.split_end = 0.5;
    struct larder_loader *ld = open_ld(user, &o);
    uint64_t n = read_epoch(ld, count);
    larder_loader_close(ld);
    free(count);
    return (void *)(uintptr_t)n;
}

TEST(threads_that_miss_the_same_part_agree)
{
    struct larder_dataset *ds = open_ds(dataset_make(&spec));
    pthread_t t[4];
    void *n[4];

    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, part_of, ds);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], &n[i]);
    CHECK(n[0] == n[1] && n[1] == n[2] && n[2] == n[3] && n[0]);
    larder_dataset_close(ds);
}

/* A part goes on with another world and batch size; the whole does not go on as a part. */
TEST(states_of_a_part)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(dataset_make(&spec));
    const struct larder_batch *b;
    char state[LARDER_STATE_MAX];
    struct larder_loader *ld;
    struct larder_error err;
    uint32_t count[3000] = {0};

    o.epochs = 1;
    o.batch_size = 100;
    o.split_begin = 0.3;
    o.split_end = 0.9;
    ld = open_ld(ds, &o);
    for (int i = 0; i < 5; i++) {
        REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
        for (uint32_t k = 0; k < b->n; k++)
            count[b->ordinals[k]]++;
        larder_batch_release(b);
    }
    REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
    larder_loader_close(ld);
    o.state = state;
    o.batch_size = 37;
    o.world = 3;
    o.last = LARDER_LAST_SHORT;
    for (o.rank = 0; o.rank < 3; o.rank++) {
        ld = open_ld(ds, &o);
        read_epoch(ld, count);
        larder_loader_close(ld);
    }
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(count[i], expected(i, 0.3, 0.9, 0));
    o.rank = 0;
    o.split_seed = 1;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "split"));
    larder_dataset_close(ds);
}

TEST(damaged_keys_are_told)
{
    const char *dir = dataset_make(&spec);
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(dir);
    char path[512], zeros[4096 * 2] = {0};
    struct larder_loader *ld;
    struct larder_error err;

    snprintf(path, sizeof(path), "%s/shards/%s", dir, ds->manifest->shards[7].name);
    int fd = open(path, O_WRONLY);
    REQUIRE(fd >= 0);
    CHECK_EQ(pwrite(fd, zeros, sizeof(zeros), (off_t)ds->manifest->shards[7].footer_off), sizeof(zeros));
    close(fd);
    o.split_end = 0.5;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, ds->manifest->shards[7].name));
    larder_dataset_close(ds);
}

TEST_MAIN();
