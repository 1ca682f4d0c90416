/* SPDX-License-Identifier: Apache-2.0 */
/* test_uring.c - the io_uring engine: random reads, errors, registered memory. */
#include <sys/mman.h>

#include "tests/unit/engine_tests.h"

static struct engine *open_engine(unsigned depth)
{
    struct engine *e;
    struct larder_error err;
    if (uring_open(depth, &e, &err)) {
        CHECK_EQ(err.code, LARDER_EIO);
        CHECK(err.sys_errno != 0);
        TEST_SKIP(err.message);
    }
    CHECK_STR(e->ops->name, "io_uring");
    return e;
}

static void close_pool(void) {}

/* Reads into, across the end of and outside of registered memory. */
TEST(registered_memory)
{
    struct files f = files_make(1, 100000, 3);
    struct engine *e = open_engine(4);
    size_t len = 64 * KIB;
    uint8_t *m = mmap(NULL, 2 * len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(m != MAP_FAILED);
    int fd = open_file(&f, 0, 0);
    e->ops->register_memory(e, m, len);
    e->ops->register_memory(e, m, len); /* a second time is ignored */
    struct read_op ops[3] = {{.offset = 7, .buf = m + len - 1000, .len = 1000, .fd = fd},
                             {.offset = 2007, .buf = m + len - 1000 + 1000, .len = 1000, .fd = fd},
                             {.offset = 5000, .buf = m, .len = 20000, .fd = fd}}, *done[3];
    struct read_op across = {.offset = 40000, .buf = m + len - 500, .len = 1000, .fd = fd};
    for (int i = 0; i < 3; i++)
        e->ops->add(e, &ops[i]);
    for (unsigned n = 0; n < 3;)
        n += e->ops->reap(e, true, done, 3);
    CHECK_MEM(m + len - 1000, f.bytes[0] + 7, 1000);
    CHECK_MEM(m + len, f.bytes[0] + 2007, 1000);
    CHECK_MEM(m, f.bytes[0] + 5000, 20000);
    e->ops->add(e, &across);
    REQUIRE_EQ(e->ops->reap(e, true, done, 3), 1);
    CHECK_EQ(across.result, 1000);
    CHECK_MEM(m + len - 500, f.bytes[0] + 40000, 1000);
    e->ops->close(e, false);
    munmap(m, 2 * len);
    close(fd);
    files_release(&f);
}

TEST(impossible_depth_is_an_error)
{
    struct engine *e;
    struct larder_error err;
    int rc = uring_open(1u << 30, &e, &err);
    CHECK_ERR(rc, LARDER_EIO, &err);
    CHECK(e == NULL);
    CHECK(err.sys_errno != 0);
}

TEST_MAIN();
