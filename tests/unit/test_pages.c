/* SPDX-License-Identifier: Apache-2.0 */
/* The page cache: what goes in comes out whole, within its budget, from many threads. */
#include <pthread.h>

#include "store/store_int.h"
#include "tests/unit/test.h"

static void fill(uint8_t *page, uint32_t shard, uint32_t number)
{
    uint64_t state = (uint64_t)shard << 32 | number;
    rng_fill(&state, page, STORE_PAGE);
}

TEST(hit_and_miss)
{
    struct larder_error err = {0};
    struct pages *p;
    uint8_t page[STORE_PAGE], got[100];
    REQUIRE_OK(pages_new(MIB, &p, &err), &err);
    CHECK(!pages_get(p, 0, 0, 0, got, 1));
    fill(page, 3, 9);
    pages_put(p, 3, 9, page);
    CHECK(pages_get(p, 3, 9, 500, got, 100));
    CHECK_MEM(got, page + 500, 100);
    CHECK(!pages_get(p, 9, 3, 500, got, 100));
    CHECK(!pages_get(p, 3, 10, 500, got, 100));
    pages_free(p);
    pages_free(NULL);
}

TEST(budget_holds)
{
    struct larder_error err = {0};
    struct pages *p;
    uint8_t page[STORE_PAGE], got[8];
    int hits = 0;
    REQUIRE_OK(pages_new(256 * KIB, &p, &err), &err);
    for (uint32_t i = 0; i < 1000; i++) {
        fill(page, 1, i);
        pages_put(p, 1, i, page);
    }
    for (uint32_t i = 0; i < 1000; i++)
        if (pages_get(p, 1, i, 0, got, 8)) {
            fill(page, 1, i);
            CHECK_MEM(got, page, 8);
            hits++;
        }
    CHECK(hits > 8 && hits <= 64);
    pages_free(p);
    REQUIRE_OK(pages_new(0, &p, &err), &err); /* the smallest cache still works */
    pages_put(p, 1, 1, page);
    CHECK(pages_get(p, 1, 1, 0, got, 8));
    pages_free(p);
}

static void *hammer(void *arg)
{
    struct pages *p = arg;
    uint8_t page[STORE_PAGE], got[STORE_PAGE];
    uint64_t rng = (uint64_t)(uintptr_t)&page;
    for (int i = 0; i < 3000; i++) {
        uint32_t n = (uint32_t)rng_below(&rng, 200);
        fill(page, 2, n);
        if (pages_get(p, 2, n, 0, got, STORE_PAGE))
            CHECK(memcmp(got, page, STORE_PAGE) == 0);
        else
            pages_put(p, 2, n, page);
    }
    return NULL;
}

TEST(threads)
{
    struct larder_error err = {0};
    struct pages *p;
    pthread_t t[4];
    REQUIRE_OK(pages_new(512 * KIB, &p, &err), &err);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, hammer, p);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    pages_free(p);
}

TEST_MAIN();
