/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/test.h"

#include <pthread.h>

#include "store/store_int.h"

enum { N = 20000 };

static char keys[N][16];
static const void *ptrs[N];
static size_t lens[N];
static uint64_t found[N];

static void make_keys(void)
{
    for (int i = 0; i < N; i++) {
        ptrs[i] = keys[i];
        lens[i] = (size_t)snprintf(keys[i], sizeof keys[i], "k%d", i);
    }
}

TEST(finds_what_was_put_and_nothing_else)
{
    struct key_cache *c;
    struct larder_error err;
    size_t missing, wrong = 0;

    make_keys();
    REQUIRE_OK(key_cache_new(4 * MIB, &c, &err), &err);
    CHECK_EQ(key_cache_get(c, ptrs, lens, N, found), N);
    for (int i = 0; i < N / 2; i++)
        key_cache_put(c, ptrs[i], lens[i], (uint64_t)i * 7);
    missing = key_cache_get(c, ptrs, lens, N, found);
    for (int i = 0; i < N; i++)
        wrong += found[i] != LARDER_NO_ORDINAL && (i >= N / 2 || found[i] != (uint64_t)i * 7);
    CHECK_EQ(wrong, 0);
    CHECK(missing >= N / 2 && missing < N / 2 + N / 100); /* few sets of four overflow at this load */
    key_cache_free(c);
}

TEST(a_full_cache_forgets_and_never_lies)
{
    struct key_cache *c;
    struct larder_error err;
    size_t missing, wrong = 0;

    make_keys();
    REQUIRE_OK(key_cache_new(64 * 100, &c, &err), &err); /* 400 entries */
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < N; i++)
            key_cache_put(c, ptrs[i], lens[i], (uint64_t)i);
    missing = key_cache_get(c, ptrs, lens, N, found);
    for (int i = 0; i < N; i++)
        wrong += found[i] != LARDER_NO_ORDINAL && found[i] != (uint64_t)i;
    CHECK_EQ(wrong, 0);
    CHECK_EQ(N - missing, 400);
    key_cache_put(c, "big", 3, UINT64_C(1) << 40); /* does not fit an entry: not remembered */
    CHECK_EQ(key_cache_get(c, (const void *[]){"big"}, (size_t[]){3}, 1, found), 1);
    key_cache_put(c, "big", 3, (UINT64_C(1) << 40) - 2);
    CHECK_EQ(key_cache_get(c, (const void *[]){"big"}, (size_t[]){3}, 1, found), 0);
    CHECK_EQ(found[0], (UINT64_C(1) << 40) - 2);
    key_cache_free(c);
}

struct racer {
    struct key_cache *c;
    uint64_t seed;
    atomic_ulong wrong;
};

static void *race(void *arg)
{
    struct racer *r = arg;
    uint64_t state = r->seed, ordinal;

    for (int k = 0; k < 100000; k++) {
        uint64_t i = rng_below(&state, 50);

        if (k % 2)
            key_cache_put(r->c, ptrs[i], lens[i], i);
        else if (key_cache_get(r->c, &ptrs[i], &lens[i], 1, &ordinal) == 0 && ordinal != i)
            atomic_fetch_add(&r->wrong, 1);
    }
    return NULL;
}

TEST(threads_replace_entries_under_each_other)
{
    struct larder_error err;
    struct racer a = {.seed = 1}, b = {.seed = 2};
    pthread_t t;

    make_keys();
    REQUIRE_OK(key_cache_new(128, &a.c, &err), &err); /* 8 entries for 50 keys */
    b.c = a.c;
    REQUIRE_EQ(pthread_create(&t, NULL, race, &b), 0);
    race(&a);
    pthread_join(t, NULL);
    CHECK_EQ(a.wrong + b.wrong, 0);
    key_cache_free(a.c);
}

TEST_MAIN();
