/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_perm.c - the keyed bijection: that it is one, that it never changes, and that it looks like chance.
 *
 * The statistics are chi-square tests over fixed seeds: they pass or fail for ever. A limit is the mean plus about
 * six standard deviations; skewed() shows that the tests see what is skewed.
 */
#include "store/base/base.h"
#include "store/base/base_int.h"
#include "tests/unit/test.h"

/* sum((count - expected)^2 / expected) against the chi-square distribution of `freedom` degrees. */
static bool looks_uniform(const uint32_t *count, size_t cells, double total, double freedom)
{
    double expected = total / (double)cells, chi = 0, excess;

    for (size_t i = 0; i < cells; i++)
        chi += (count[i] - expected) * (count[i] - expected) / expected;
    excess = chi - freedom - 12; /* 12: few degrees of freedom have a long tail */
    return excess <= 0 || excess * excess <= 36 * 2 * freedom;
}

/* ---- that it is a bijection ---- */

static void check_bijection(uint64_t key, uint64_t tweak, size_t n)
{
    AUTO_FREE uint64_t *all = malloc(n * sizeof(*all));
    AUTO_FREE uint8_t *seen = calloc(n, 1);
    struct perm p;

    REQUIRE(all && seen);
    perm_init(&p, key, tweak, n);
    perm_range(&p, 0, n, all);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(all[i] < n);
        REQUIRE_EQ(seen[all[i]], 0);
        seen[all[i]] = 1;
        if (n < 2000 || i % 61 == 0) {
            REQUIRE_EQ(perm_at(&p, i), all[i]);
            REQUIRE_EQ(perm_inverse(&p, all[i]), i);
        }
    }
}

TEST(bijective_for_small_n)
{
    for (size_t n = 1; n <= 300; n++)
        check_bijection(n * 7, n, n);
}

TEST(bijective_around_powers)
{
    static const size_t sizes[] = {511, 512, 513, 1000, 4095, 4096, 4097, 65535, 65536, 65537, 131073};

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
        check_bijection(1, i, sizes[i]);
}

TEST(inverse_for_large_n)
{
    uint64_t seed = 1, sizes[64 + 6];
    size_t n_sizes = 0;

    for (int bits = 1; bits <= 63; bits++)
        sizes[n_sizes++] = ((uint64_t)1 << bits) + (bits % 2 ? 1 : 0);
    sizes[n_sizes++] = ((uint64_t)1 << 63) - 1;
    sizes[n_sizes++] = (uint64_t)1 << 63;
    sizes[n_sizes++] = UINT64_MAX;
    sizes[n_sizes++] = 1000000007;
    for (size_t i = 0; i < n_sizes; i++) {
        struct perm p;

        perm_init(&p, i, ~i, sizes[i]);
        for (int k = 0; k < 200; k++) {
            uint64_t at = k == 0 ? 0 : k == 1 ? sizes[i] - 1 : rng_below(&seed, sizes[i]);
            uint64_t value = perm_at(&p, at);

            REQUIRE(value < sizes[i]);
            REQUIRE_EQ(perm_inverse(&p, value), at);
            REQUIRE_EQ(perm_at(&p, perm_inverse(&p, at)), at);
        }
    }
}

TEST(range_is_at)
{
    static const uint64_t sizes[] = {1, 2, 100, 257, 1281167, 2097153, ((uint64_t)1 << 40) + 1, (uint64_t)1 << 63};
    uint64_t out[1100], seed = 2;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct perm p;

        perm_init(&p, 5, i, sizes[i]);
        for (size_t count = 0; count < 1024 && count <= sizes[i]; count += count < 40 ? 1 : 37) {
            uint64_t first = count % 2 ? sizes[i] - count : rng_below(&seed, sizes[i] - count + 1);

            out[count] = 0xabcdef;
            perm_range(&p, first, count, out);
            CHECK_EQ(out[count], 0xabcdef);
            for (size_t k = 0; k < count; k++)
                REQUIRE_EQ(out[k], perm_at(&p, first + k));
        }
    }
}

TEST(map_is_at)
{
    static const uint64_t sizes[] = {1, 2, 100, 257, 65536, 1281167, ((uint64_t)1 << 40) + 1, (uint64_t)1 << 63};
    uint64_t v[1100], was[1100], seed = 3;

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct perm p;

        perm_init(&p, 9, i, sizes[i]);
        for (size_t count = 0; count < 1099; count += count < 40 ? 1 : 53) {
            for (size_t k = 0; k <= count; k++)
                v[k] = was[k] = rng_below(&seed, sizes[i]);
            perm_map(&p, v, count);
            CHECK_EQ(v[count], was[count]);
            for (size_t k = 0; k < count; k++)
                REQUIRE_EQ(v[k], perm_at(&p, was[k]));
        }
    }
}

/* Each width of vectors takes the step that the scalar code takes: on a full domain perm_at() is one step. */
TEST(every_vector_width)
{
    static const int widths[] = {0, 256, 512};

    for (int bits = 8; bits <= 63; bits += 5)
        for (size_t w = 0; w < ARRAY_LEN(widths); w++) {
            uint64_t v[48], first = ((uint64_t)1 << bits) - 48;
            struct perm p;

            perm_init(&p, 6, (uint64_t)bits, (uint64_t)1 << bits);
            for (size_t i = 0; i < 48; i++)
                v[i] = first + i;
            if (!perm_encrypt_as(widths[w], &p, v, 48))
                continue;
            for (size_t i = 0; i < 48; i++)
                REQUIRE_EQ(v[i], perm_at(&p, first + i));
        }
}

/* ---- that it never changes ---- */

TEST(golden)
{
    static const struct {
        uint64_t key, tweak, n, first, want[6];
    } golden[] = {
        {0u, 0u, 1u, 0u,
         {0u}},
        {0u, 0u, 2u, 0u,
         {1u, 0u}},
        {1u, 0u, 3u, 0u,
         {2u, 0u, 1u}},
        {1u, 2u, 10u, 4u,
         {9u, 5u, 1u, 0u, 8u, 4u}},
        {42u, 0u, 256u, 100u,
         {234u, 196u, 206u, 183u, 48u, 208u}},
        {42u, 1u, 257u, 251u,
         {6u, 143u, 127u, 88u, 228u, 7u}},
        {7u, 0u, 1000u, 0u,
         {146u, 648u, 236u, 54u, 792u, 960u}},
        {7u, 1u, 1000u, 0u,
         {9u, 332u, 572u, 13u, 103u, 960u}},
        {123456789u, 3u, 65536u, 65530u,
         {4592u, 5676u, 13068u, 4314u, 13627u, 19693u}},
        {123456789u, 3u, 65537u, 65531u,
         {3677u, 20489u, 41661u, 3965u, 24070u, 3178u}},
        {0u, 0u, 1281167u, 640000u,
         {524967u, 484105u, 1169442u, 394591u, 213599u, 1048240u}},
        {18446744073709551615u, 18446744073709551615u, 14197122u, 1000000u,
         {4206651u, 7960491u, 10151953u, 1221112u, 3570758u, 10672454u}},
        {99u, 90u, 1000000000u, 999999994u,
         {239872377u, 793815605u, 594991650u, 198519054u, 534371677u, 746046003u}},
        {5u, 6u, 1099511627777u, 549755813888u,
         {745584100692u, 889154318938u, 261820376060u, 215739640275u, 55671128136u, 665508796607u}},
        {5u, 7u, 9223372036854775808u, 0u,
         {1029749911149256060u, 3668656506112347390u, 6657146416238826553u, 8234332677548210349u, 7831001852612119960u, 1336418908920190484u}},
    };

    for (size_t i = 0; i < ARRAY_LEN(golden); i++) {
        uint64_t have[6];
        size_t count = MIN(golden[i].n - golden[i].first, (uint64_t)6);
        struct perm p;

        perm_init(&p, golden[i].key, golden[i].tweak, golden[i].n);
        perm_range(&p, golden[i].first, count, have);
        for (size_t k = 0; k < count; k++)
            CHECK_EQ(have[k], golden[i].want[k]);
    }
}

/* The algorithm as perm.c's head tells it, written once more in another way. */
static uint64_t told_mix(uint64_t z)
{
    z ^= z >> 30;
    z *= 0xbf58476d1ce4e5b9u;
    z ^= z >> 27;
    z *= 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t told_at(uint64_t key, uint64_t tweak, uint64_t n, uint64_t v)
{
    const uint64_t g = 0x9e3779b97f4a7c15u;
    uint64_t state = told_mix(told_mix(told_mix(key + g) + tweak + g) + n + g);
    int bits = 8, low;

    while (bits < 64 && (uint64_t)1 << bits < n)
        bits++;
    low = bits - bits / 2;
    do {
        uint64_t half[2] = {v >> low, v & (((uint64_t)1 << low) - 1)};

        for (int i = 0; i < 6; i++) {
            uint64_t k = told_mix(state + ((uint64_t)i + 1) * g);
            uint32_t x = (uint32_t)half[1 - i % 2] ^ (uint32_t)k;

            x ^= x >> 16;
            x *= 0x21f0aaadu;
            x ^= x >> 15;
            x += (uint32_t)(k >> 32);
            x *= 0x735a2d97u;
            x ^= x >> 15;
            half[i % 2] ^= x & (((uint64_t)1 << (i % 2 ? low : bits - low)) - 1);
        }
        v = half[0] << low | half[1];
    } while (v >= n);
    return v;
}

TEST(as_documented)
{
    uint64_t seed = 3;

    for (int i = 0; i < 3000; i++) {
        uint64_t key = rng_u64(&seed), tweak = rng_below(&seed, 1000), n = (rng_u64(&seed) >> rng_below(&seed, 62)) | 1;
        uint64_t at = rng_below(&seed, n);
        struct perm p;

        perm_init(&p, key, tweak, n);
        REQUIRE_EQ(perm_at(&p, at), told_at(key, tweak, n, at));
    }
}

/* ---- that it looks like chance ---- */

TEST(skewed_counts_are_seen)
{
    uint32_t even[10], odd[10];

    for (uint32_t i = 0; i < 10; i++) {
        even[i] = 10000 + i * 10;
        odd[i] = 10000 + i * 100;
    }
    CHECK(looks_uniform(even, 10, 100450, 9));
    CHECK(!looks_uniform(odd, 10, 104500, 9));
}

/* Every element equally often at every position. */
TEST(positions_over_tweaks)
{
    enum { TWEAKS = 6000 };

    for (uint32_t n = 2; n <= 10; n++) {
        uint32_t count[100] = {0};
        uint64_t v[10];

        for (uint32_t t = 0; t < TWEAKS; t++) {
            struct perm p;

            perm_init(&p, 11, t, n);
            perm_range(&p, 0, n, v);
            for (uint32_t i = 0; i < n; i++)
                count[i * n + v[i]]++;
        }
        CHECK(looks_uniform(count, n * n, (double)n * TWEAKS, (n - 1) * (n - 1)));
    }
}

/* Every order of 2, 3, 4 and 5 elements equally often. */
TEST(all_orders_of_few)
{
    uint32_t orders = 1;

    for (uint32_t n = 2; n <= 5; n++) {
        uint32_t count[120] = {0}, tweaks;

        orders *= n;
        tweaks = orders * 150 < 4000 ? 4000 : orders * 150;
        for (uint32_t t = 0; t < tweaks; t++) {
            uint32_t rank = 0;
            uint64_t v[5];
            struct perm p;

            perm_init(&p, 12, t, n);
            perm_range(&p, 0, n, v);
            for (uint32_t i = 0; i < n; i++) {
                uint32_t smaller = 0;

                for (uint32_t j = i + 1; j < n; j++)
                    smaller += v[j] < v[i];
                rank = rank * (n - i) + smaller;
            }
            count[rank]++;
        }
        CHECK(looks_uniform(count, orders, tweaks, orders - 1));
    }
}

/* Which value follows which. */
TEST(adjacent_pairs)
{
    static const uint32_t sizes[] = {5, 16, 33, 64};

    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        uint32_t n = sizes[s], count[64 * 64] = {0}, dense[64 * 64], cells = 0;
        double total = 0;

        for (uint32_t t = 0; t < 3000; t++) {
            uint64_t v[64];
            struct perm p;

            perm_init(&p, 13, t, n);
            perm_range(&p, 0, n, v);
            for (uint32_t i = 0; i + 1 < n; i++, total++)
                count[v[i] * n + v[i + 1]]++;
        }
        for (uint32_t i = 0; i < n * n; i++)
            if (i / n != i % n)
                dense[cells++] = count[i];
            else
                CHECK_EQ(count[i], 0);
        CHECK(looks_uniform(dense, cells, total, cells - 1));
    }
}

/* How far values travel, how they differ from their neighbours, and where each sixteenth of the positions goes. */
TEST(large_orders)
{
    static const uint64_t sizes[] = {5000, 65536, 100003, 1281167};

    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        enum { LOOK = 50000 };
        uint64_t n = sizes[s], look = MIN(n, (uint64_t)LOOK), fixed = 0;
        uint32_t travel[64] = {0}, step[64] = {0}, place[256] = {0};
        AUTO_FREE uint64_t *v = malloc(look * sizeof(*v));

        REQUIRE(v != NULL);
        for (uint64_t t = 0; t < 4; t++) {
            uint64_t first = (n - look) / 4 * t;
            struct perm p;

            perm_init(&p, 14, t, n);
            perm_range(&p, first, look, v);
            for (uint64_t i = 0; i < look; i++) {
                uint64_t moved = (v[i] + n - (first + i)) % n;

                fixed += moved == 0;
                travel[moved * 64 / n]++;
                place[i * 16 / look * 16 + v[i] * 16 / n]++;
                if (i)
                    step[(v[i] + n - v[i - 1]) % n * 64 / n]++;
            }
        }
        CHECK(looks_uniform(travel, 64, (double)(4 * look), 63));
        CHECK(looks_uniform(step, 64, (double)(4 * (look - 1)), 63));
        CHECK(looks_uniform(place, 256, (double)(4 * look), 255));
        CHECK(fixed < 20); /* 4 expected, or fewer */
    }
}

/* Keys, tweaks and sizes that differ in one bit agree in one place on average, as any two orders do. */
TEST(neighbours_differ)
{
    enum { N = 1000 };
    uint64_t base[N], other[N], agree = 0, pairs = 0;
    struct perm p;

    perm_init(&p, 99, 7, N);
    perm_range(&p, 0, N, base);
    for (int bit = 0; bit < 128; bit++) {
        perm_init(&p, bit < 64 ? 99 ^ (uint64_t)1 << bit : 99, bit < 64 ? 7 : 7 ^ (uint64_t)1 << (bit - 64), N);
        perm_range(&p, 0, N, other);
        pairs++;
        for (int i = 0; i < N; i++)
            agree += base[i] == other[i];
    }
    perm_init(&p, 99, 7, N + 1);
    perm_range(&p, 0, N, other);
    for (int i = 0; i < N; i++)
        agree += base[i] == other[i];
    perm_init(&p, 7, 99, N); /* key and tweak are not alike */
    perm_range(&p, 0, N, other);
    for (int i = 0; i < N; i++)
        agree += base[i] == other[i];
    CHECK(agree > pairs / 2 && agree < pairs * 3 / 2);
}

TEST_MAIN();
