/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/test.h"

static int is_permutation(const uint64_t *v, uint64_t n)
{
    uint8_t *seen = calloc(n, 1);
    int ok = 1;

    for (uint64_t i = 0; i < n; i++)
        ok = ok && v[i] < n && !seen[v[i]]++;
    free(seen);
    return ok;
}

TEST(full_shuffle_is_a_permutation_of_every_epoch)
{
    static const uint64_t sizes[] = {1, 2, 3, 255, 256, 257, 1000, 10007};
    uint64_t *a = malloc(10007 * sizeof(*a)), *b = malloc(10007 * sizeof(*b));

    for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
        struct order o = {.n = sizes[k], .seed = 7, .shuffle = LARDER_SHUFFLE_FULL};

        order_fill(&o, 0, 0, o.n, a);
        CHECK(is_permutation(a, o.n));
        order_fill(&o, 1, 0, o.n, b);
        CHECK(is_permutation(b, o.n));
        if (o.n > 100)
            CHECK(memcmp(a, b, o.n * sizeof(*a)) != 0);
    }
    free(a);
    free(b);
}

TEST(pieces_are_cut_from_one_order)
{
    struct order o = {.n = 5000, .seed = 99, .shuffle = LARDER_SHUFFLE_FULL};
    uint64_t whole[5000], piece[5000], state = 3;

    order_fill(&o, 4, 0, o.n, whole);
    for (int k = 0; k < 200; k++) {
        uint64_t first = rng_below(&state, o.n), count = rng_below(&state, o.n - first + 1);

        order_fill(&o, 4, first, count, piece);
        CHECK_MEM(piece, whole + first, count * sizeof(*piece));
    }
}

TEST(depends_on_seed_and_epoch_alone)
{
    struct order o = {.n = 1000, .seed = 1, .shuffle = LARDER_SHUFFLE_FULL}, p = {.n = 1000, .seed = 2, .shuffle = LARDER_SHUFFLE_FULL};
    uint64_t a[1000], b[1000];

    order_fill(&o, 5, 0, 1000, a);
    order_fill(&o, 5, 0, 1000, b);
    CHECK_MEM(a, b, sizeof(a));
    order_fill(&p, 5, 0, 1000, b);
    CHECK(memcmp(a, b, sizeof(a)) != 0);
}

TEST(none_is_the_identity)
{
    struct order o = {.n = 1000, .seed = 1, .shuffle = LARDER_SHUFFLE_NONE};
    uint64_t a[100];

    order_fill(&o, 8, 300, 100, a);
    for (uint64_t i = 0; i < 100; i++)
        CHECK_EQ(a[i], 300 + i);
}

TEST(epochs_of_another_size_walk_on)
{
    enum { N = 97, SIZE = 40 };
    struct order o = {.n = N, .seed = 5, .shuffle = LARDER_SHUFFLE_FULL, .epoch_size = SIZE}, pass = {.n = N, .seed = 5, .shuffle = LARDER_SHUFFLE_FULL};
    uint64_t walk[N * SIZE], want[N];

    CHECK_EQ(order_length(&o), SIZE);
    for (uint64_t e = 0; e < N; e++)
        order_fill(&o, e, 0, SIZE, walk + e * SIZE);
    for (uint64_t p = 0; p < SIZE; p++) {
        order_fill(&pass, p, 0, N, want);
        CHECK_MEM(walk + p * N, want, sizeof(want));
    }
    o.epoch_size = 250; /* longer than a pass */
    order_fill(&o, 3, 0, 250, walk);
    for (int i = 0; i < 250; i++) {
        order_fill(&pass, (750 + (uint64_t)i) / N, (750 + (uint64_t)i) % N, 1, want);
        CHECK_EQ(walk[i], want[0]);
    }
}

/* Every sample once a pass; the samples of a window come from its blocks alone; the inverse finds each. */
TEST(blocks_are_shuffled_then_windows_of_them)
{
    static const uint64_t sizes[] = {1, 2, 9, 10, 11, 100, 1000, 1009, 4096};
    uint64_t *a = malloc(4096 * sizeof(*a)), p, state = 1;

    for (size_t k = 0; k < ARRAY_LEN(sizes); k++)
        for (uint64_t block = 1; block <= 64; block = block * 3 + 1)
            for (uint64_t window = 1; window < 6; window += 2)
                for (uint64_t pass = 0; pass < 3; pass++) {
                    struct order o = {.n = sizes[k], .seed = 3, .shuffle = LARDER_SHUFFLE_BLOCK, .block = MIN(block, sizes[k]), .window = window};
                    uint64_t blocks = (o.n + o.block - 1) / o.block, at = 0;
                    order_fill(&o, pass, 0, o.n, a);
                    CHECK(is_permutation(a, o.n));
                    for (uint64_t i = 0; i < o.n; i += 1 + o.n / 50) {
                        CHECK(order_find(&o, pass, a[i], &p));
                        CHECK_EQ(p, i);
                    }
                    uint64_t first = rng_below(&state, o.n), n = rng_below(&state, o.n - first + 1), piece[4096];
                    order_fill(&o, pass, first, n, piece);
                    CHECK_MEM(piece, a + first, n * sizeof(*piece));
                    for (uint64_t w = 0; w * window < blocks; w++) { /* whole blocks, as many as a window has */
                        uint64_t left = MIN(window, blocks - w * window), seen = 0, *count = calloc(blocks, sizeof(*count));
                        while (at < o.n && (seen < left || count[a[at] / o.block])) {
                            seen += count[a[at] / o.block]++ == 0;
                            at++;
                        }
                        for (uint64_t b = 0; b < blocks; b++)
                            CHECK(count[b] == 0 || count[b] == MIN(o.block, o.n - b * o.block));
                        free(count);
                    }
                    CHECK_EQ(at, o.n);
                }
    free(a);
}

TEST(filters_select_and_rank)
{
    uint64_t state = 9, p;

    for (uint64_t n = 1; n < 20000; n = n * 3 + 7) {
        for (int kind = 0; kind < 4; kind++) { /* sparse, half, dense, in clumps */
            uint8_t *bits = calloc((n + 7) / 8 + 1, 1);
            uint64_t *want = malloc(n * sizeof(*want)), members = 0, got[64];
            struct subset *s;
            struct larder_error err;
            for (uint64_t i = 0; i < n; i++) {
                bool in = kind == 0 ? rng_below(&state, 97) == 0 : kind == 1 ? rng_below(&state, 2) : kind == 2 ? rng_below(&state, 97) != 0
                                                                                                   : i / 1000 % 7 == 3;
                if (in || (i + 1 == n && members == 0)) {
                    bits[i / 8] |= (uint8_t)(1u << i % 8);
                    want[members++] = i;
                }
            }
            bits[n / 8] |= (uint8_t)(0xffu << n % 8); /* what lies beyond n is not looked at */
            REQUIRE_OK(subset_new(bits, n, &s, &err), &err);
            CHECK_EQ(s->members, members);
            CHECK(subset_bytes(s) <= n / 8 + n / 64 + 32);
            for (uint64_t k = 0; k < members; k += 1 + members / 500) {
                CHECK_EQ(subset_select(s, k), want[k]);
                CHECK_EQ(subset_rank(s, want[k]), k);
                CHECK(subset_has(s, want[k]));
            }
            struct order o = {.n = members, .seed = 4, .shuffle = LARDER_SHUFFLE_FULL, .subset = s};
            uint64_t first = rng_below(&state, members), count = MIN(members - first, (uint64_t)64);
            order_fill(&o, 2, first, count, got);
            for (uint64_t i = 0; i < count; i++) {
                CHECK(subset_has(s, got[i]));
                CHECK(order_find(&o, 2, got[i], &p));
                CHECK_EQ(p, first + i);
            }
            subset_free(s);
            free(bits);
            free(want);
        }
    }
}

/* Chi-square against the weights; what has none is never drawn; the same draw whatever piece it is in. */
TEST(weights_are_drawn)
{
    enum { N = 40, DRAWS = 400000 };
    double w[N], sum = 0, chi = 0;
    uint64_t *a = malloc(DRAWS * sizeof(*a)), count[N] = {0}, piece[100];
    struct alias *alias;
    struct larder_error err;

    for (int i = 0; i < N; i++)
        sum += w[i] = i % 5 == 0 ? 0 : i * i + 1;
    REQUIRE_OK(alias_new(w, N, &alias, &err), &err);
    struct order o = {.n = N, .seed = 77, .shuffle = LARDER_SHUFFLE_FULL, .epoch_size = DRAWS / 4, .alias = alias};
    for (uint64_t e = 0; e < 4; e++)
        order_fill(&o, e, 0, DRAWS / 4, a + e * (DRAWS / 4));
    for (int i = 0; i < DRAWS; i++)
        count[a[i]]++;
    for (int i = 0; i < N; i++) {
        double want = w[i] / sum * DRAWS;
        if (w[i] == 0)
            CHECK_EQ(count[i], 0);
        else
            chi += ((double)count[i] - want) * ((double)count[i] - want) / want;
    }
    CHECK(chi > 8 && chi < 70); /* 31 degrees of freedom: 1 in 10,000 lies outside */
    order_fill(&o, 2, 1234, 100, piece);
    CHECK_MEM(piece, a + 2 * (DRAWS / 4) + 1234, sizeof(piece));
    alias_free(alias);
    w[3] = -1;
    CHECK_ERR(alias_new(w, N, &alias, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "weight 3 is -1"));
    memset(w, 0, sizeof(w));
    CHECK_ERR(alias_new(w, N, &alias, &err), LARDER_EINVAL, &err);
    free(a);
}

TEST(a_list_is_followed)
{
    static const uint64_t list[] = {9, 3, 3, 70, 1};
    struct order o = {.n = 5, .seed = 1, .shuffle = LARDER_SHUFFLE_NONE, .list = list};
    uint64_t a[5];

    order_fill(&o, 6, 0, 5, a);
    CHECK_MEM(a, list, sizeof(a));
}

/* Place by place, in any order and across passes, as in one piece: every shuffle, with a filter, a list, weights. */
TEST(any_place_of_the_walk)
{
    enum { N = 700 };
    uint64_t state = 5, want[N], list[N];
    uint8_t bits[N / 8 + 1];
    double w[N];
    struct subset *s;
    struct alias *alias;
    struct larder_error err;

    for (uint64_t i = 0; i < N; i++) {
        list[i] = rng_below(&state, 5000);
        w[i] = (double)(i % 7);
    }
    rng_fill(&state, bits, sizeof(bits));
    REQUIRE_OK(subset_new(bits, N, &s, &err), &err);
    REQUIRE_OK(alias_new(w, N, &alias, &err), &err);
    for (int kind = 0; kind < 6; kind++) {
        struct order o = {.n = N, .seed = 8, .shuffle = kind % 3, .block = 30, .window = 4};
        struct order_walk walk = {.ready = false};
        if (kind == 3)
            o.subset = s, o.n = s->members;
        if (kind == 4)
            o.list = list;
        if (kind == 5)
            o.alias = alias;
        for (uint64_t pass = 0; pass < 3; pass++) {
            order_fill(&o, pass, 0, o.n, want);
            for (uint64_t i = 0; i < o.n; i++)
                CHECK_EQ(order_at(&o, &walk, pass * o.n + i), want[i]);
        }
        uint64_t places[300], got[300];
        for (int k = 0; k < 300; k++) { /* some in one pass, some in turn, most anywhere */
            places[k] = k < 100 ? rng_below(&state, o.n) : k < 130 ? o.n - 15 + (uint64_t)k - 100 : rng_below(&state, 3 * o.n);
            got[k] = places[k];
            order_fill(&o, places[k] / o.n, places[k] % o.n, 1, want);
            CHECK_EQ(order_at(&o, &walk, places[k]), want[0]);
        }
        order_map(&o, &walk, got, 300);
        for (int k = 0; k < 300; k++)
            CHECK_EQ(got[k], order_at(&o, &walk, places[k]));
    }
    subset_free(s);
    alias_free(alias);
}

/* How far samples move, epoch to epoch: as far as in a uniform shuffle, for sizes around powers of two too. */
TEST(displacement_is_that_of_a_uniform_shuffle)
{
    enum { BINS = 20, EPOCHS = 60 };
    static const uint64_t sizes[] = {511, 512, 513, 1000, 4095, 4096, 4097};
    uint64_t *a = malloc(4097 * sizeof(*a));

    for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
        struct order o = {.n = sizes[k], .seed = 21, .shuffle = LARDER_SHUFFLE_FULL};
        uint64_t count[BINS] = {0};
        double chi = 0, all = (double)o.n * EPOCHS;
        for (uint64_t e = 0; e < EPOCHS; e++) {
            order_fill(&o, e, 0, o.n, a);
            for (uint64_t i = 0; i < o.n; i++)
                count[(a[i] + o.n - i) % o.n * BINS / o.n]++;
        }
        for (int b = 0; b < BINS; b++) { /* displacements modulo n are uniform */
            uint64_t lo = ((uint64_t)b * o.n + BINS - 1) / BINS, hi = ((uint64_t)(b + 1) * o.n + BINS - 1) / BINS;
            double want = all * (double)(hi - lo) / (double)o.n;
            chi += ((double)count[b] - want) * ((double)count[b] - want) / want;
        }
        CHECK(chi < 55); /* 19 degrees of freedom: 1 in 40,000 lies above */
    }
    free(a);
}

TEST_MAIN();
