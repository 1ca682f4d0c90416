/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "loader/loader_int.h"
#include "tests/unit/test.h"

static struct mix *make(const uint64_t *sizes, const double *weights, uint32_t n, int shuffle, uint64_t epoch_size, int exhausted)
{
    struct order orders[MIX_SOURCES_MAX];
    struct larder_error err;
    struct mix *m;

    for (uint32_t i = 0; i < n; i++)
        orders[i] = (struct order){.n = sizes[i], .seed = 1, .shuffle = shuffle, .block = MIN((uint64_t)16, MAX(sizes[i], (uint64_t)1)), .window = 4};
    REQUIRE_OK(mix_new(orders, weights, n, 5, shuffle, epoch_size, exhausted, &m, &err), &err);
    return m;
}

/* Of any first positions in turn, each source has its share; by how much it may be off, whatever comes. */
TEST(shares_hold_at_every_position_of_the_deal)
{
    static const double weights[][5] = {{1, 1}, {0.7, 0.3}, {1, 1000}, {1000, 1}, {0.5, 0.3, 0.2}, {1, 2, 3, 4, 5}, {5, 4, 3, 2, 1}, {1, 1e-6}};
    static const uint32_t n[] = {2, 2, 2, 2, 3, 5, 5, 2};
    static const uint64_t sizes[] = {1000003, 1000003, 1000003, 1000003, 1000003};

    for (size_t k = 0; k < ARRAY_LEN(n); k++) {
        struct mix *m = make(sizes, weights[k], n[k], LARDER_SHUFFLE_NONE, 20000, LARDER_EXHAUSTED_REPEAT);
        uint64_t count[5] = {0}, place, e, p;
        double sum = 0;
        uint32_t s;

        for (uint32_t i = 0; i < n[k]; i++)
            sum += weights[k][i];
        for (uint64_t x = 0; x < 20000; x++) {
            mix_at(m, 0, x, &s, &place);
            REQUIRE(s < n[k]);
            CHECK_EQ(place, count[s]); /* in turn */
            CHECK(mix_find(m, s, place, &e, &p) && e == 0 && p == x);
            count[s]++;
            for (uint32_t i = 0; i < n[k]; i++)
                CHECK(fabs((double)count[i] - (double)(x + 1) * weights[k][i] / sum) < 1 + log(n[k]));
        }
        for (uint32_t i = 0; i < n[k]; i++)
            CHECK_EQ(m->source[i].each, count[i]);
        mix_free(m);
    }
}

/* Epochs of every kind: the places of each source come once each, in a gapless run; there and back; any piece is cut from the whole. */
static void walk(const uint64_t *sizes, const double *weights, uint32_t n, int shuffle, uint64_t epoch_size, int exhausted)
{
    enum { EPOCHS = 3 };
    struct mix *m = make(sizes, weights, n, shuffle, epoch_size, exhausted);
    uint64_t length = m->length, *ordinals = malloc(length * 8), *part = malloc(length * 8), place, e, p, state = length;
    uint32_t *sources = malloc(length * 4), *part_sources = malloc(length * 4), s;
    uint64_t total[8] = {0};
    uint8_t *seen[8];

    for (uint32_t i = 0; i < n; i++)
        seen[i] = calloc((m->source[i].each + 2) * EPOCHS + sizes[i] * EPOCHS + 1, 1);
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        uint64_t count[8] = {0};
        mix_fill(m, epoch, 0, length, ordinals, sources);
        for (uint64_t x = 0; x < length; x++) {
            struct order_walk w = {.ready = false};
            mix_at(m, epoch, x, &s, &place);
            CHECK_EQ(s, sources[x]);
            CHECK(ordinals[x] < sizes[s]);
            CHECK_EQ(seen[s][place]++, 0);
            count[s]++;
            if (x % 5 != epoch)
                continue;
            CHECK_EQ(order_at(&m->source[s].order, &w, place), ordinals[x]);
            CHECK(mix_find(m, s, place, &e, &p));
            CHECK(e == epoch && p == x);
        }
        for (uint32_t i = 0; i < n; i++) {
            uint64_t begin = m->restart ? epoch * sizes[i] : total[i];
            for (uint64_t q = 0; q < count[i]; q++) /* of a pass the beginning, or on from where the epoch before ended */
                CHECK_EQ(seen[i][begin + q], 1);
            CHECK(!m->restart || count[i] == sizes[i] || !mix_find(m, i, begin + count[i], &e, &p));
            CHECK(m->restart || mix_find(m, i, begin + count[i], &e, &p));
            CHECK(m->restart || e > epoch);
            total[i] += count[i];
            CHECK(llabs((long long)count[i] - (long long)m->source[i].each) <= (m->restart || (!weights && !epoch_size) ? 0 : 3));
        }
        for (int k = 0; k < 3; k++) {
            uint64_t first = rng_below(&state, length), c = rng_below(&state, length - first + 1);
            mix_fill(m, epoch, first, c, part, part_sources);
            CHECK_MEM(part, ordinals + first, c * 8);
            CHECK_MEM(part_sources, sources + first, c * 4);
        }
    }
    for (uint32_t i = 0; i < n; i++)
        free(seen[i]);
    free(ordinals);
    free(part);
    free(sources);
    free(part_sources);
    mix_free(m);
}

TEST(walks_of_every_kind)
{
    static const uint64_t sizes[][4] = {{200, 100, 40, 60}, {1, 2, 1, 3}, {256, 55, 55, 50}, {130, 50, 70, 90}};
    static const double weights[][4] = {{1, 1, 1, 1}, {0.6, 0.2, 0.15, 0.05}, {1, 5, 5, 3}};

    for (size_t k = 0; k < ARRAY_LEN(sizes); k++)
        for (uint32_t n = 1; n <= 4; n += 1 + n % 2)
            for (int shuffle = LARDER_SHUFFLE_FULL; shuffle <= LARDER_SHUFFLE_BLOCK; shuffle++)
                for (uint64_t epoch_size = 0; epoch_size < 1500; epoch_size += 1201) {
                    walk(sizes[k], NULL, n, shuffle, epoch_size, LARDER_EXHAUSTED_REPEAT);
                    for (size_t w = 0; w < ARRAY_LEN(weights) && k != 1; w++) {
                        walk(sizes[k], weights[w], n, shuffle, epoch_size, LARDER_EXHAUSTED_REPEAT);
                        walk(sizes[k], weights[w], n, shuffle, epoch_size, LARDER_EXHAUSTED_STOP);
                    }
                }
}

/* By size: every sample of every source once an epoch, also where sources are empty. */
TEST(by_size_everything_once)
{
    static const uint64_t sizes[] = {0, 900, 0, 77, 1, 0};

    for (int shuffle = LARDER_SHUFFLE_FULL; shuffle <= LARDER_SHUFFLE_BLOCK; shuffle++) {
        struct mix *m = make(sizes, NULL, 6, shuffle, 0, LARDER_EXHAUSTED_REPEAT);
        uint64_t ordinals[978];
        uint32_t sources[978];

        REQUIRE_EQ(m->length, 978);
        for (uint64_t epoch = 0; epoch < 5; epoch++) {
            uint8_t seen[6][900] = {{0}};
            mix_fill(m, epoch, 0, 978, ordinals, sources);
            for (int i = 0; i < 978; i++)
                CHECK_EQ(seen[sources[i]][ordinals[i]]++, 0);
        }
        mix_free(m);
    }
    static const uint64_t none[] = {0, 0};
    struct mix *m = make(none, NULL, 2, LARDER_SHUFFLE_FULL, 10, LARDER_EXHAUSTED_STOP);
    CHECK_EQ(m->length, 0);
    mix_free(m);
}

/* Huge sizes deal out exactly too: the arithmetic has no rounding left over at the end of an epoch. */
TEST(by_size_is_exact_for_any_size)
{
    uint64_t state = 11, e, p, place;
    uint32_t s;

    for (int round = 0; round < 200; round++) {
        uint64_t sizes[3], total = 0, count = 0;
        for (int i = 0; i < 3; i++)
            total += sizes[i] = 1 + (rng_u64(&state) >> (12 + rng_below(&state, 50)));
        struct mix *m = make(sizes, NULL, 3, LARDER_SHUFFLE_FULL, 0, LARDER_EXHAUSTED_STOP);
        CHECK_EQ(m->length, total);
        for (uint32_t i = 0; i < 3; i++) {
            CHECK_EQ(m->source[i].each, sizes[i]);
            count += m->source[i].each;
        }
        CHECK_EQ(count, total);
        for (int k = 0; k < 50; k++) {
            uint64_t epoch = rng_below(&state, 100), at = k < 2 ? (k ? total - 1 : 0) : rng_below(&state, total);
            mix_at(m, epoch, at, &s, &place);
            CHECK_EQ(place / sizes[s], epoch); /* the pass of that epoch */
            CHECK(mix_find(m, s, place, &e, &p) && e == epoch && p == at);
        }
        mix_free(m);
    }
}

TEST(stop_ends_with_the_first_and_repeat_with_the_last)
{
    static const uint64_t sizes[] = {1000, 100};
    static const double even[] = {1, 1};
    struct mix *stop = make(sizes, even, 2, LARDER_SHUFFLE_FULL, 0, LARDER_EXHAUSTED_STOP);
    struct mix *repeat = make(sizes, even, 2, LARDER_SHUFFLE_FULL, 0, LARDER_EXHAUSTED_REPEAT);
    uint64_t ordinals[2001], times[100] = {0};
    uint32_t sources[2001];

    CHECK(stop->length >= 200 && stop->length <= 201);
    CHECK_EQ(stop->source[1].each, 100);
    CHECK(repeat->length >= 1999 && repeat->length <= 2000);
    CHECK_EQ(repeat->source[0].each, 1000);
    mix_fill(repeat, 0, 0, repeat->length, ordinals, sources);
    for (uint64_t i = 0; i < repeat->length; i++)
        if (sources[i] == 1)
            times[ordinals[i]]++;
    for (int i = 0; i < 100; i++) /* ten permutations of it, the last one perhaps not to its end */
        CHECK(times[i] == 10 || times[i] == 9);
    mix_free(stop);
    mix_free(repeat);
}

/* Where a source's samples stand in a block is not foreseeable: each place as often its as any, each pair of neighbours as chance has
 * it. */
TEST(turns_look_like_chance)
{
    enum { EPOCHS = 400, BLOCK = 1024, BINS = 64 };
    static const uint64_t sizes[] = {1u << 20, 1u << 20};
    static const double weights[] = {0.25, 0.75};
    struct mix *m = make(sizes, weights, 2, LARDER_SHUFFLE_FULL, BLOCK, LARDER_EXHAUSTED_REPEAT);
    uint64_t ordinals[BLOCK], both = 0, all = 0, count[BINS] = {0};
    uint32_t sources[BLOCK];
    double chi = 0;

    for (uint64_t e = 0; e < EPOCHS; e++) {
        uint32_t mine = 0;
        mix_fill(m, e, 0, BLOCK, ordinals, sources);
        for (int i = 0; i < BLOCK; i++) {
            mine += sources[i] == 0;
            count[i * BINS / BLOCK] += sources[i] == 0;
            both += i && sources[i] == 0 && sources[i - 1] == 0;
        }
        CHECK_EQ(mine, BLOCK / 4); /* the share is exact */
        all += mine;
    }
    for (int b = 0; b < BINS; b++)
        chi += ((double)count[b] - (double)all / BINS) * ((double)count[b] - (double)all / BINS) / ((double)all / BINS);
    CHECK(chi > 20 && chi < 110); /* 63 degrees of freedom, of which a quarter is fixed: well within six deviations */
    CHECK(fabs((double)both / (EPOCHS * (BLOCK - 1.0)) - 0.25 * 255 / 1023) < 0.002);
    mix_free(m);
}

/* Two copies of a dataset do not walk hand in hand. */
TEST(sources_have_permutations_of_their_own)
{
    static const uint64_t sizes[] = {1000, 1000};
    struct mix *m = make(sizes, NULL, 2, LARDER_SHUFFLE_FULL, 0, LARDER_EXHAUSTED_REPEAT);
    struct order_walk a = {.ready = false}, b = {.ready = false};
    int same = 0;

    for (uint64_t i = 0; i < 1000; i++)
        same += order_at(&m->source[0].order, &a, i) == order_at(&m->source[1].order, &b, i);
    CHECK(same < 10);
    mix_free(m);
}

TEST(what_cannot_be_mixed)
{
    static const double bad[][2] = {{1, 0}, {1, -1}, {1, NAN}, {INFINITY, 1}, {1, 1e-7}};
    struct order orders[2] = {{.n = 5, .shuffle = LARDER_SHUFFLE_FULL}, {.n = 5, .shuffle = LARDER_SHUFFLE_FULL}};
    static const double good[2] = {1, 1};
    struct larder_error err;
    struct mix *m;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CHECK_ERR(mix_new(orders, bad[i], 2, 1, LARDER_SHUFFLE_FULL, 0, 0, &m, &err), LARDER_EINVAL, &err);
        CHECK(strstr(err.message, i == 3 ? "source 0" : "source 1") && m == NULL);
    }
    CHECK_ERR(mix_new(orders, NULL, 0, 1, LARDER_SHUFFLE_FULL, 0, 0, &m, &err), LARDER_EINVAL, &err);
    CHECK_ERR(mix_new(orders, NULL, MIX_SOURCES_MAX + 1, 1, LARDER_SHUFFLE_FULL, 0, 0, &m, &err), LARDER_EINVAL, &err);
    orders[1].n = 0;
    CHECK_ERR(mix_new(orders, good, 2, 1, LARDER_SHUFFLE_FULL, 0, 0, &m, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "source 1"));
}

TEST_MAIN();
