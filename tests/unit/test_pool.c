/* SPDX-License-Identifier: Apache-2.0 */
/* test_pool.c - the pread engine: random reads, errors, and that its threads are few and come on demand. */
#include "tests/unit/engine_tests.h"

static struct pool *pool;

static struct engine *open_engine(unsigned depth)
{
    struct engine *e;
    struct larder_error err;
    (void)depth;
    if (!pool)
        REQUIRE_OK(pool_new(4, &pool, &err), &err);
    REQUIRE_OK(pool_engine_open(pool, &e, &err), &err);
    CHECK_STR(e->ops->name, "pread");
    return e;
}

static void close_pool(void)
{
    pool_free(pool, false);
    pool = NULL;
}

TEST(warm_reads_need_no_thread)
{
    struct files f = files_make(1, 100000, 3);
    struct engine *e = open_engine(4);
    static uint8_t buf[5000];
    int fd = open_file(&f, 0, 0);
    for (int i = 0; i < 50; i++) { /* just written: in the page cache */
        struct read_op op = {.offset = (uint64_t)i * 1000, .buf = buf, .len = 5000, .fd = fd, .buffered = true}, *done;
        e->ops->add(e, &op);
        REQUIRE_EQ(e->ops->reap(e, true, &done, 1), 1);
        if (pool_threads(pool) == 0)
            CHECK_EQ(op.result, 5000);
        CHECK_MEM(buf, f.bytes[0] + i * 1000, (size_t)op.result);
    }
    if (pool_threads(pool)) {
        e->ops->close(e, false);
        close_pool();
        close(fd);
        files_release(&f);
        TEST_SKIP("the file system has no RWF_NOWAIT");
    }
    e->ops->close(e, false);
    close_pool();
    close(fd);
    files_release(&f);
}

TEST(threads_are_bounded)
{
    struct files f = files_make(1, 100000, 3);
    struct engine *e = open_engine(64);
    static uint8_t buf[64][100];
    struct read_op ops[64], *done[64];
    int fd = open_file(&f, 0, 0);
    CHECK_EQ(pool_threads(pool), 0);
    for (int i = 0; i < 64; i++) {
        ops[i] = (struct read_op){.offset = (uint64_t)i, .buf = buf[i], .len = 100, .fd = fd, .buffered = false};
        e->ops->add(e, &ops[i]);
    }
    e->ops->flush(e);
    CHECK_EQ(pool_threads(pool), 4);
    for (unsigned n = 0; n < 64;)
        n += e->ops->reap(e, true, done, 64);
    for (int i = 0; i < 64; i++)
        CHECK_MEM(buf[i], f.bytes[0] + i, 100);
    e->ops->close(e, false);
    close_pool();
    close(fd);
    files_release(&f);
}

TEST(two_engines_get_their_own)
{
    struct files f = files_make(1, 100000, 3);
    struct engine *a = open_engine(4), *b = open_engine(4);
    uint8_t buf_a[100], buf_b[100];
    int fd = open_file(&f, 0, 0);
    struct read_op op_a = {.offset = 1, .buf = buf_a, .len = 100, .fd = fd}, op_b = {.offset = 2, .buf = buf_b, .len = 100, .fd = fd};
    struct read_op *done;
    for (int i = 0; i < 100; i++) {
        a->ops->add(a, &op_a);
        b->ops->add(b, &op_b);
        REQUIRE_EQ(b->ops->reap(b, true, &done, 1), 1);
        CHECK(done == &op_b);
        REQUIRE_EQ(a->ops->reap(a, true, &done, 1), 1);
        CHECK(done == &op_a);
    }
    CHECK_MEM(buf_a, f.bytes[0] + 1, 100);
    CHECK_MEM(buf_b, f.bytes[0] + 2, 100);
    a->ops->close(a, false);
    b->ops->close(b, false);
    close_pool();
    close(fd);
    files_release(&f);
}

TEST_MAIN();
