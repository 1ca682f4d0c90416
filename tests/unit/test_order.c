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
        struct order o = {sizes[k], 7, LARDER_SHUFFLE_FULL};

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
    struct order o = {5000, 99, LARDER_SHUFFLE_FULL};
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
    struct order o = {1000, 1, LARDER_SHUFFLE_FULL}, p = {1000, 2, LARDER_SHUFFLE_FULL};
    uint64_t a[1000], b[1000];

    order_fill(&o, 5, 0, 1000, a);
    order_fill(&o, 5, 0, 1000, b);
    CHECK_MEM(a, b, sizeof(a));
    order_fill(&p, 5, 0, 1000, b);
    CHECK(memcmp(a, b, sizeof(a)) != 0);
}

TEST(none_is_the_identity)
{
    struct order o = {1000, 1, LARDER_SHUFFLE_NONE};
    uint64_t a[100];

    order_fill(&o, 8, 300, 100, a);
    for (uint64_t i = 0; i < 100; i++)
        CHECK_EQ(a[i], 300 + i);
}

TEST(batches_cover_the_epoch)
{
    static const uint32_t sizes[] = {1, 7, 256, 999, 1000, 1001, UINT32_MAX};

    for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
        struct order o = {1000, 1, LARDER_SHUFFLE_NONE};
        uint64_t batches = order_batches(&o, sizes[k]), next = 0, at = 0;

        for (uint64_t b = 0; b < batches; b++) {
            uint32_t n = order_batch(&o, sizes[k], b, &at);

            CHECK_EQ(at, next);
            CHECK(n > 0 && (n == sizes[k] || b + 1 == batches));
            next += n;
        }
        CHECK_EQ(next, 1000);
        CHECK_EQ(order_batch(&o, sizes[k], batches, &at), 0);
    }
}

TEST(nothing_of_nothing)
{
    struct order o = {0, 1, LARDER_SHUFFLE_FULL};
    uint64_t at;

    CHECK_EQ(order_batches(&o, 256), 0);
    CHECK_EQ(order_batch(&o, 256, 0, &at), 0);
    order_fill(&o, 0, 0, 0, NULL);
}

TEST_MAIN();
