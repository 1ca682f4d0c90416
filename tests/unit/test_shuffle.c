/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_shuffle.c - that a full shuffle cannot be told from a uniform one: for 2 to 10^9 samples, powers of two and one off.
 *
 * What is counted, over seeds that are fixed: how far a sample is moved; how samples differ that stand at a distance (neighbours, and powers
 * of two, where a network of too few rounds leaves its halves as they were); how one epoch differs from the next at a position, and one seed
 * from another; and which sixteenth of the positions goes to which of the values. Each is a chi-square test whose limit is the mean plus about
 * six standard deviations; the draws of an epoch are few against its length, so that they are as good as independent.
 *
 * The same counts find two Feistel rounds out: the tests can fail.
 */
#include "loader/loader_int.h"
#include "tests/unit/test.h"

enum { BINS = 64, DRAWS = 3000, RUN_MAX = 256 };

/* Under test: the order of n samples, or perm.c's algorithm, written once more, with so many rounds. */
struct subject { uint64_t n, seed; int rounds; /* 0: the order */ };

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t network(const struct subject *s, uint64_t epoch, uint64_t v)
{
    const uint64_t g = 0x9e3779b97f4a7c15u;
    uint64_t state = mix(mix(mix(s->seed + g) + epoch + g) + s->n + g);
    int bits = 8, low;

    while ((uint64_t)1 << bits < s->n)
        bits++;
    low = bits - bits / 2;
    do {
        uint64_t half[2] = {v >> low, v & (((uint64_t)1 << low) - 1)};
        for (int i = 0; i < s->rounds; i++) {
            uint64_t k = mix(state + ((uint64_t)i + 1) * g);
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
    } while (v >= s->n);
    return v;
}

static void draw(const struct subject *s, uint64_t epoch, uint64_t first, size_t count, uint64_t *out)
{
    struct order o = {.n = s->n, .seed = s->seed, .shuffle = LARDER_SHUFFLE_FULL};

    if (s->rounds == 0)
        order_fill(&o, epoch, first, count, out);
    for (size_t i = 0; s->rounds && i < count; i++)
        out[i] = network(s, epoch, first + i);
}

/* ---- counting ---- */

/* Numbers of [0, range), of which each should come equally often. */
struct tally { uint64_t range, count[BINS], n; };

static uint64_t bins_of(const struct tally *t) { return MIN(t->range, (uint64_t)BINS); }
static uint64_t bin_begin(const struct tally *t, uint64_t b)
{
    return (uint64_t)(((unsigned __int128)b * t->range + bins_of(t) - 1) / bins_of(t));
}

static void tell(struct tally *t, uint64_t value)
{
    t->count[(unsigned __int128)value * bins_of(t) / t->range]++;
    t->n++;
}

static bool uniform(const struct tally *t)
{
    double chi = 0, freedom = (double)bins_of(t) - 1, excess;

    for (uint64_t b = 0; b < bins_of(t); b++) {
        double want = (double)t->n * (double)(bin_begin(t, b + 1) - bin_begin(t, b)) / (double)t->range;
        chi += ((double)t->count[b] - want) * ((double)t->count[b] - want) / want;
    }
    excess = chi - freedom - 12; /* few degrees of freedom have a long tail */
    return excess <= 0 || excess * excess <= 36 * 2 * freedom;
}

/* Positions that are looked at together: few of an epoch. */
static size_t run_of(uint64_t n) { return n < 2048 ? 1 : n < 100000 ? 16 : RUN_MAX; }

/* ---- the tests: true where nothing shows ---- */

static bool displacement(const struct subject *s)
{
    struct tally t = {.range = s->n};
    uint64_t v[RUN_MAX], state = 1;
    size_t run = run_of(s->n);

    for (uint64_t e = 0; t.n < DRAWS; e++) {
        uint64_t first = rng_below(&state, s->n - run + 1);
        draw(s, e, first, run, v);
        for (size_t i = 0; i < run; i++)
            tell(&t, (v[i] + s->n - (first + i)) % s->n);
    }
    return uniform(&t);
}

/* Samples at a distance: never the same one. */
static bool distance(const struct subject *s, uint64_t lag)
{
    struct tally t = {.range = s->n - 1};
    uint64_t v[RUN_MAX], w[RUN_MAX], state = lag;
    size_t run = (size_t)MIN((uint64_t)run_of(s->n), s->n - lag);

    for (uint64_t e = 0; t.n < DRAWS; e++) {
        uint64_t first = rng_below(&state, s->n - lag - run + 1);
        draw(s, e, first, run, v);
        draw(s, e, first + lag, run, w);
        for (size_t i = 0; i < run; i++) {
            if (v[i] == w[i])
                return false;
            tell(&t, (w[i] + s->n - v[i]) % s->n - 1);
        }
    }
    return uniform(&t);
}

static bool distances(const struct subject *s)
{
    bool well = distance(s, 1);

    for (uint64_t lag = 2; lag < s->n; lag *= 2)
        well = distance(s, lag) && well;
    return well;
}

/* The same position in the next epoch, and with the next seed. */
static bool others(const struct subject *s)
{
    struct tally epochs = {.range = s->n}, seeds = {.range = s->n};
    struct subject next = *s;
    uint64_t v[RUN_MAX], w[RUN_MAX], state = 2;
    size_t run = run_of(s->n);

    next.seed++;
    for (uint64_t e = 0; epochs.n < DRAWS; e += 2) {
        uint64_t first = rng_below(&state, s->n - run + 1);
        draw(s, e, first, run, v);
        draw(s, e + 1, first, run, w);
        for (size_t i = 0; i < run; i++)
            tell(&epochs, (w[i] + s->n - v[i]) % s->n);
        draw(&next, e, first, run, w);
        for (size_t i = 0; i < run; i++)
            tell(&seeds, (w[i] + s->n - v[i]) % s->n);
    }
    return uniform(&epochs) && uniform(&seeds);
}

/* Each part of the positions goes to all parts of the values alike. */
static bool positions(const struct subject *s)
{
    uint64_t parts = MIN(s->n, (uint64_t)16), v[RUN_MAX], state = 3;
    bool well = true;

    for (uint64_t part = 0; part < parts; part++) {
        uint64_t begin = s->n * part / parts, end = s->n * (part + 1) / parts;
        size_t run = (size_t)MIN((uint64_t)run_of(s->n), end - begin);
        struct tally t = {.range = s->n};
        for (uint64_t e = 0; t.n < DRAWS / 2; e++) {
            uint64_t first = begin + rng_below(&state, end - begin - run + 1);
            draw(s, e, first, run, v);
            for (size_t i = 0; i < run; i++)
                tell(&t, v[i]);
        }
        well = uniform(&t) && well;
    }
    return well;
}

static const uint64_t sizes[] = {2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1000, 1023,
                                 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537, 1000000, 1048575, 1048576, 1048577, 1281167, 16777215,
                                 16777216, 16777217, 999999999, 1000000000, 1073741823, 1073741824, 1073741825};

TEST(displacements_are_uniform)
{
    for (size_t k = 0; k < ARRAY_LEN(sizes); k++)
        CHECK(displacement(&(struct subject){sizes[k], 100 + k, 0}));
}

TEST(distances_are_uniform)
{
    for (size_t k = 1; k < ARRAY_LEN(sizes); k += sizes[k] < 100 ? 1 : 2)
        CHECK(distances(&(struct subject){sizes[k], 200 + k, 0}));
}

TEST(epochs_and_seeds_have_nothing_in_common)
{
    for (size_t k = 0; k < ARRAY_LEN(sizes); k++)
        CHECK(others(&(struct subject){sizes[k], 300 + k, 0}));
}

TEST(positions_are_uniform)
{
    for (size_t k = 0; k < ARRAY_LEN(sizes); k++)
        CHECK(positions(&(struct subject){sizes[k], 400 + k, 0}));
}

/* Six rounds of the network as told here are the order; two are found out, at every size from a few hundred on. */
TEST(too_few_rounds_show)
{
    static const uint64_t large[] = {257, 512, 1000, 4096, 65535, 65536, 1000000, 1048577, 1000000000};

    for (size_t k = 0; k < ARRAY_LEN(large); k++) {
        struct subject six = {large[k], 7, 6}, two = {large[k], 7, 2}, order = {large[k], 7, 0};
        uint64_t a[64], b[64];

        draw(&six, 3, large[k] / 2, 64, a);
        draw(&order, 3, large[k] / 2, 64, b);
        CHECK_MEM(a, b, sizeof(a));
        CHECK(!distances(&two));
    }
}

TEST_MAIN();
