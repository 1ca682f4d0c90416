/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault_io.c - every allocation and every system call of the directory's store_io fails in turn.
 *
 * What is checked at each failure: an error comes back (or the work is done all the same), an object is either complete or not
 * there, what was there before is untouched, nothing stays open, and the same call works when tried again.
 */
#include "tests/unit/test.h"

#include <fcntl.h>

#include "store/base/base.h"
#include "tests/fault/fault.h"

enum { LEN = 300000 };

static uint8_t content[LEN], other[LEN];

static int read_back(struct store_io *io, const char *name, struct buf *out, struct larder_error *err)
{
    out->len = 0;
    return io_read_all(io, name, LEN + 1, out, err);
}

/* name holds want[LEN] or, when may_miss, is not there. */
static void check_content(const char *root, const char *name, const uint8_t *want, bool may_miss, const char *when)
{
    AUTO_BUF struct buf b = BUF_INIT;
    struct larder_error err;
    struct store_io *io;
    int rc;

    REQUIRE_OK(io_file_open(root, false, 4, &io, &err), &err);
    rc = read_back(io, name, &b, &err);
    if (rc == LARDER_ENOTFOUND && may_miss) {
        io_close(io);
        return;
    }
    (void)test_check(rc == 0 && b.len == LEN && memcmp(b.data, want, LEN) == 0, __FILE__, __LINE__,
                     "%s after a failing %s: code %d, %zu bytes", name, when, rc, b.len);
    io_close(io);
}

typedef int op_fn(struct store_io *io, struct larder_error *err);

static int op_create(struct store_io *io, struct larder_error *err)
{
    return io->ops->create_exclusive(io, "a/b/new", content, LEN, err);
}

static int op_put(struct store_io *io, struct larder_error *err)
{
    return io->ops->put(io, "a/old", content, LEN, err);
}

static int op_stream(struct store_io *io, struct larder_error *err)
{
    struct store_out *out;
    int rc = io->ops->begin(io, "a/b/new", &out, err);

    for (size_t at = 0, n = 1; rc == 0 && at < LEN; at += n, n = n * 3 % 100003 + 1) {
        if (n > LEN - at)
            n = LEN - at;
        rc = io->ops->write(out, content + at, n, err);
        if (rc) {
            io->ops->abort(out);
            return rc;
        }
    }
    return rc ? rc : io->ops->finish(out, err);
}

static int op_read(struct store_io *io, struct larder_error *err)
{
    static uint8_t a[1000], b[LEN];
    struct store_range ranges[] = {{"a/old", 5, a, 1000}, {"keep", 0, b, LEN}, {"a/old", LEN - 10, a, 10}};
    int rc = io->ops->read_ranges(io, ranges, 3, err);

    if (rc == 0) {
        CHECK_MEM(b, other, LEN);
        CHECK_MEM(a, other + LEN - 10, 10);
    }
    return rc;
}

static int count_one(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    (void)name, (void)size, (void)mtime_s;
    ++*(int *)user;
    return 0;
}

static int op_list(struct store_io *io, struct larder_error *err)
{
    int n = 0, rc = io->ops->list(io, "", count_one, &n, err);

    if (rc == 0)
        CHECK_EQ(n, 2);
    return rc;
}

static int op_remove(struct store_io *io, struct larder_error *err)
{
    return io->ops->remove(io, "a/old", err);
}

/* A fresh folder for each failure: keep and a/old are there. Stops when the operation ends before its nth call. */
static void sweep(op_fn *op, enum fault_kind kind, bool writes_new, bool replaces, bool removes)
{
    struct larder_error err;

    for (long n = 1;; n++) {
        const char *base = tmp_dir();
        char root[128], command[300];
        struct store_io *io;
        int rc, fds;
        bool hit;

        snprintf(root, sizeof root, "%s/d", base);
        REQUIRE_OK(io_file_open(root, true, 4, &io, &err), &err);
        REQUIRE_OK(io->ops->create_exclusive(io, "keep", other, LEN, &err), &err);
        REQUIRE_OK(io->ops->create_exclusive(io, "a/old", other, LEN, &err), &err);
        io_close(io);
        fds = open_fds();
        fault_arm(kind, n);
        rc = io_file_open(root, false, 4, &io, &err);
        if (rc == 0) {
            rc = op(io, &err);
            io_close(io);
        }
        hit = fault_disarm();
        CHECK_EQ(open_fds(), fds);
        if (rc < 0)
            CHECK(err.code == rc && err.message[0]);
        if (!hit || kind == FAULT_SHORT) /* a short transfer is no error */
            CHECK_OK(rc, &err);
        check_content(root, "keep", other, false, fault_name());
        if (replaces && rc == 0)
            check_content(root, "a/old", content, false, fault_name());
        else if (!replaces && !removes)
            check_content(root, "a/old", other, false, fault_name());
        if (writes_new) /* a failing sync of the folder comes after the name: complete, not promised */
            check_content(root, "a/b/new", content, rc != 0, fault_name());
        snprintf(command, sizeof command, "rm -rf %s", base);
        test_n_dirs--; /* many rounds: gone at once */
        CHECK_EQ(system(command), 0);
        if (!hit) {
            CHECK(n > 1);
            return;
        }
    }
}

static void fill_once(void)
{
    uint64_t state = 1;

    rng_fill(&state, content, LEN);
    rng_fill(&state, other, LEN);
}

TEST(create_exclusive)
{
    fill_once();
    sweep(op_create, FAULT_ALLOC, true, false, false);
    sweep(op_create, FAULT_IO, true, false, false);
    sweep(op_create, FAULT_SHORT, true, false, false);
}

TEST(put)
{
    fill_once();
    sweep(op_put, FAULT_ALLOC, false, true, false);
    sweep(op_put, FAULT_IO, false, true, false);
    sweep(op_put, FAULT_SHORT, false, true, false);
}

TEST(stream)
{
    fill_once();
    sweep(op_stream, FAULT_ALLOC, true, false, false);
    sweep(op_stream, FAULT_IO, true, false, false);
    sweep(op_stream, FAULT_SHORT, true, false, false);
}

TEST(read_ranges)
{
    fill_once();
    sweep(op_read, FAULT_ALLOC, false, false, false);
    sweep(op_read, FAULT_IO, false, false, false);
    sweep(op_read, FAULT_SHORT, false, false, false);
}

TEST(list_and_remove)
{
    fill_once();
    sweep(op_list, FAULT_ALLOC, false, false, false);
    sweep(op_list, FAULT_IO, false, false, false);
    sweep(op_remove, FAULT_ALLOC, false, false, true);
    sweep(op_remove, FAULT_IO, false, false, true);
}

TEST_MAIN();
