/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/test.h"

#include <sys/wait.h>

TEST(blocks_are_recycled)
{
    struct block_pool *pool;
    struct larder_error err;
    struct block *a, *b;
    uint8_t *memory;

    REQUIRE_OK(block_pool_new(1 << 20, &pool, &err), &err);
    REQUIRE_OK(block_get(pool, 100000, 2, &a, &err), &err);
    CHECK(a->cap >= 100000);
    CHECK_EQ((uintptr_t)a->memory % 4096, 0);
    memset(a->memory, 1, a->cap);
    memory = a->memory;
    block_put(a, 1);
    REQUIRE_OK(block_get(pool, 100000, 1, &b, &err), &err);
    CHECK(b->memory != memory); /* the first is still borrowed */
    block_put(a, 1);
    REQUIRE_OK(block_get(pool, 90000, 1, &a, &err), &err);
    CHECK(a->memory == memory);
    block_put(a, 1);
    block_put(b, 1);
    block_pool_free(pool);
}

TEST(large_blocks_do_not_serve_tiny_reads)
{
    struct block_pool *pool;
    struct larder_error err;
    struct block *a, *b;

    REQUIRE_OK(block_pool_new(64 << 20, &pool, &err), &err);
    REQUIRE_OK(block_get(pool, 8 << 20, 1, &a, &err), &err);
    block_put(a, 1);
    REQUIRE_OK(block_get(pool, 10, 1, &b, &err), &err);
    CHECK(b->cap < 1 << 20);
    block_put(b, 1);
    block_pool_free(pool);
}

TEST(beyond_the_budget_nothing_is_kept)
{
    struct block_pool *pool;
    struct larder_error err;
    struct block *b;

    REQUIRE_OK(block_pool_new(0, &pool, &err), &err);
    for (int i = 0; i < 100; i++) {
        REQUIRE_OK(block_get(pool, 1 << 20, 3, &b, &err), &err);
        b->memory[0] = 1;
        block_put(b, 3);
    }
    block_pool_free(pool);
    block_pool_free(NULL);
}

TEST(blocks_outlive_their_pool)
{
    struct block_pool *pool;
    struct larder_error err;
    struct block *a, *b;

    REQUIRE_OK(block_pool_new(1 << 20, &pool, &err), &err);
    REQUIRE_OK(block_get(pool, 1000, 1, &a, &err), &err);
    REQUIRE_OK(block_get(pool, 1000, 1, &b, &err), &err);
    a->also = b;
    block_pool_free(pool);
    a->memory[0] = b->memory[0] = 7;
    block_put(a, 1); /* and b with it */
}

TEST(an_absurd_size_is_out_of_memory)
{
    struct block_pool *pool;
    struct larder_error err;
    struct block *b;

    REQUIRE_OK(block_pool_new(1 << 20, &pool, &err), &err);
    CHECK_ERR(block_get(pool, SIZE_MAX - 5, 1, &b, &err), LARDER_ENOMEM, &err);
    CHECK(b == NULL);
    block_pool_free(pool);
}

struct churn {
    struct block_pool *pool;
    uint64_t seed;
};

static void *churn(void *arg)
{
    struct churn *c = arg;
    struct block *held[4] = {0};

    for (int i = 0; i < 2000; i++) {
        unsigned k = (unsigned)rng_below(&c->seed, 4);

        if (held[k]) {
            CHECK_EQ(held[k]->memory[100], (uint8_t)(uintptr_t)c);
            block_put(held[k], 5);
            held[k] = NULL;
        } else if (block_get(c->pool, 101 + rng_below(&c->seed, 300000), 5, &held[k], NULL) == 0) {
            held[k]->memory[100] = (uint8_t)(uintptr_t)c;
        }
    }
    for (int k = 0; k < 4; k++)
        if (held[k])
            block_put(held[k], 5);
    return NULL;
}

TEST(any_number_of_threads)
{
    struct churn c[4];
    pthread_t t[4];
    struct block_pool *pool;

    REQUIRE_EQ(block_pool_new(2 << 20, &pool, NULL), 0);
    for (int i = 0; i < 4; i++) {
        c[i] = (struct churn){pool, (uint64_t)i};
        pthread_create(&t[i], NULL, churn, &c[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    block_pool_free(pool);
}

TEST(a_forked_child_frees_its_own_copy)
{
    struct block_pool *pool;
    struct larder_error err;
    struct block *a, *b;
    int status = -1;
    pid_t pid;

    REQUIRE_OK(block_pool_new(1 << 20, &pool, &err), &err);
    REQUIRE_OK(block_get(pool, 1000, 1, &a, &err), &err);
    REQUIRE_OK(block_get(pool, 1000, 1, &b, &err), &err);
    block_put(b, 1);
    pid = fork();
    if (pid == 0) {
        block_pool_free(pool);
        block_put(a, 1);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    a->memory[3] = 1;
    block_put(a, 1);
    block_pool_free(pool);
}

TEST_MAIN();
