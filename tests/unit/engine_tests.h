/* SPDX-License-Identifier: Apache-2.0 */
/* engine_tests.h - what both engines must do; the including test defines open_engine and close_pool. */
#ifndef ENGINE_TESTS_H
#define ENGINE_TESTS_H

#include "tests/unit/tiers_files.h"

static struct engine *open_engine(unsigned depth); /* leaves the test when it cannot */
static void close_pool(void);

static int open_file(const struct files *f, size_t i, int flags)
{
    char path[160];
    int fd = open(files_path(f, i, path), O_RDONLY | flags);
    REQUIRE(fd >= 0);
    return fd;
}

/* Reads `total` random places with at most depth in the engine, flushed now and then, and checks each. */
static void read_random(struct engine *e, unsigned depth, const struct files *f, const int *fds, bool buffered, unsigned total)
{
    struct read_op *ops = calloc(depth, sizeof(*ops)), **unused = calloc(depth, sizeof(*unused)), **done;
    uint8_t *memory = aligned_alloc(4096, (size_t)depth * 8192);
    uint64_t seed = depth;
    unsigned n_free = depth, sent = 0, finished = 0;
    done = calloc(depth, sizeof(*done));
    for (unsigned i = 0; i < depth; i++)
        unused[i] = &ops[i];
    while (finished < total) {
        while (n_free && sent < total) {
            struct read_op *op = unused[--n_free];
            unsigned shard = (unsigned)rng_below(&seed, f->n);
            uint64_t at = rng_below(&seed, f->refs[shard].size + 500); /* some behind the end */
            *op = (struct read_op){.offset = buffered ? at : at & ~4095ull, .len = buffered ? (uint32_t)rng_below(&seed, 8191) + 1 : 8192,
                                   .fd = fds[shard], .buffered = buffered, .buf = memory + (op - ops) * 8192};
            op->owner = NULL;
            e->ops->add(e, op);
            sent++;
            if (rng_below(&seed, 4) == 0)
                e->ops->flush(e);
        }
        unsigned n = e->ops->reap(e, true, done, depth);
        REQUIRE(n > 0 && n <= depth);
        for (unsigned i = 0; i < n; i++) {
            struct read_op *op = done[i];
            unsigned shard = 0;
            while (fds[shard] != op->fd)
                shard++;
            uint64_t size = f->refs[shard].size, want = op->offset < size ? MIN(op->len, size - op->offset) : 0;
            CHECK(op->result >= 0 && (uint64_t)op->result <= want && (want == 0 || op->result > 0));
            if (op->result > 0)
                CHECK_MEM(op->buf, f->bytes[shard] + op->offset, (size_t)op->result);
            unused[n_free++] = op;
        }
        finished += n;
    }
    CHECK_EQ(e->ops->reap(e, false, done, depth), 0);
    free(ops);
    free(unused);
    free(done);
    free(memory);
}

static void test_random(int flags, bool registered)
{
    struct files f = files_make(3, 300000, 5);
    int fds[3];
    for (int i = 0; i < 3; i++)
        fds[i] = open_file(&f, (size_t)i, flags);
    for (unsigned depth = 1; depth <= 128; depth = depth * 3 + 1) {
        struct engine *e = open_engine(depth);
        (void)registered;
        read_random(e, depth, &f, fds, !flags, 300);
        e->ops->close(e, false);
    }
    close_pool();
    for (int i = 0; i < 3; i++)
        close(fds[i]);
    files_release(&f);
}

TEST(random_reads_buffered) { test_random(0, false); }

TEST(random_reads_direct)
{
    struct files f = files_make(1, 10, 5);
    char path[160];
    int fd = open(files_path(&f, 0, path), O_RDONLY | O_DIRECT);
    files_release(&f);
    if (fd < 0)
        TEST_SKIP("no O_DIRECT on this file system");
    close(fd);
    test_random(O_DIRECT, false);
}

TEST(bad_descriptor_is_a_result)
{
    struct engine *e = open_engine(4);
    uint8_t buf[10];
    struct read_op op = {.fd = 1 << 20, .buf = buf, .len = 10, .buffered = true}, *done;
    e->ops->add(e, &op);
    REQUIRE_EQ(e->ops->reap(e, true, &done, 1), 1);
    CHECK(done == &op);
    CHECK_EQ(op.result, -EBADF);
    e->ops->close(e, false);
    close_pool();
}

TEST(reap_gives_no_more_than_asked)
{
    struct files f = files_make(1, 100000, 9);
    struct engine *e = open_engine(8);
    static uint8_t buf[8][100];
    struct read_op ops[8], *done[8];
    int fd = open_file(&f, 0, 0);
    for (int i = 0; i < 8; i++) {
        ops[i] = (struct read_op){.offset = (uint64_t)i * 1000, .buf = buf[i], .len = 100, .fd = fd, .buffered = i & 1};
        e->ops->add(e, &ops[i]);
    }
    unsigned n = 0;
    while (n < 8) {
        unsigned got = e->ops->reap(e, true, done + n, MIN(3u, 8 - n));
        REQUIRE(got >= 1 && got <= 3);
        n += got;
    }
    for (int i = 0; i < 8; i++) {
        CHECK_EQ(ops[i].result, 100);
        CHECK_MEM(buf[i], f.bytes[0] + i * 1000, 100);
    }
    close(fd);
    e->ops->close(e, false);
    close_pool();
    files_release(&f);
}

#endif
