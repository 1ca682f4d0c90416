/* SPDX-License-Identifier: Apache-2.0 */
/* test_io.c - reads that are checked and repeated over an io that flips bits, and whole objects over any io. */
#include "tests/unit/test.h"

#include "store/base/base.h"

/* One object "x" of 64 bytes, byte i is i; the first `bad` reads of any range come with a flipped bit, or short. */
struct lossy { struct store_io io; unsigned bad, reads, ranges, told; bool cut, deaf; };

static int lossy_read(struct store_io *io, const struct store_range *r, size_t n, struct larder_error *err)
{
    struct lossy *l = (struct lossy *)(void *)io;
    bool bad = l->reads++ < l->bad;
    for (size_t i = 0; i < n; i++) {
        l->ranges++;
        if (r[i].offset + r[i].len > 64 || (bad && l->cut))
            return err_set(err, LARDER_ECORRUPT, "%s ends early", r[i].name);
        for (size_t k = 0; k < r[i].len; k++)
            ((uint8_t *)r[i].buf)[k] = (uint8_t)(r[i].offset + k);
        if (bad && r[i].offset / 8 % 2 == 1)
            ((uint8_t *)r[i].buf)[0] ^= 1;
    }
    return LARDER_OK;
}

static bool lossy_damaged(struct store_io *io)
{
    struct lossy *l = (struct lossy *)(void *)io;
    l->told++;
    return !l->deaf;
}

static const struct store_io_ops lossy_ops = {.read_ranges = lossy_read, .damaged = lossy_damaged};

static int check(void *user, size_t i, struct larder_error *err)
{
    uint8_t *bufs = user;
    return bufs[i * 8] == i * 8 ? LARDER_OK : err_set(err, LARDER_ECORRUPT, "range %zu is bad", i);
}

static void ranges_of(uint8_t *bufs, struct store_range r[6])
{
    memset(bufs, 0xee, 48);
    for (size_t i = 0; i < 6; i++)
        r[i] = (struct store_range){"x", i * 8, bufs + i * 8, 8};
}

TEST(reads_again_only_what_failed)
{
    struct lossy l = {.io = {&lossy_ops, 3, 0}, .bad = 1};
    struct larder_error err = {0};
    uint8_t bufs[48];
    struct store_range r[6];
    ranges_of(bufs, r);
    CHECK_OK(io_read_checked(&l.io, r, 6, check, bufs, &err), &err);
    CHECK_EQ(l.reads, 2);
    CHECK_EQ(l.ranges, 6 + 3);
    CHECK_EQ(l.told, 1);
    for (unsigned i = 0; i < 48; i++)
        CHECK_EQ(bufs[i], i);
}

TEST(gives_up_after_tries_with_the_first_bad_range)
{
    struct lossy l = {.io = {&lossy_ops, 3, 0}, .bad = 1000};
    struct larder_error err = {0};
    uint8_t bufs[48];
    struct store_range r[6];
    ranges_of(bufs, r);
    CHECK_EQ(io_read_checked(&l.io, r, 6, check, bufs, &err), LARDER_ECORRUPT);
    CHECK(strstr(err.message, "is bad") != NULL);
    CHECK_EQ(l.reads, 3);
    l = (struct lossy){.io = {&lossy_ops, 0, 0}, .bad = 1}; /* a local io: one look */
    CHECK_EQ(io_read_checked(&l.io, r, 6, check, bufs, &err), LARDER_ECORRUPT);
    CHECK_STR(err.message, "range 1 is bad");
    CHECK_EQ(l.reads, 1);
    l = (struct lossy){.io = {&lossy_ops, 9, 0}, .bad = 1, .deaf = true}; /* no budget left */
    CHECK_EQ(io_read_checked(&l.io, r, 6, check, bufs, &err), LARDER_ECORRUPT);
    CHECK_EQ(l.reads, 1);
}

TEST(a_short_answer_is_asked_for_again)
{
    struct lossy l = {.io = {&lossy_ops, 2, 0}, .bad = 1, .cut = true};
    struct larder_error err = {0};
    uint8_t bufs[48];
    struct store_range r[6];
    ranges_of(bufs, r);
    CHECK_OK(io_read_checked(&l.io, r, 6, check, bufs, &err), &err);
    CHECK_EQ(l.reads, 2);
    CHECK_OK(io_read_checked(&l.io, r, 0, check, bufs, &err), &err);
    CHECK_EQ(l.reads, 2);
}

TEST(whole_objects_of_a_directory)
{
    struct store_io *io;
    struct larder_error err = {0};
    AUTO_BUF struct buf a = BUF_INIT, b = BUF_INIT;
    REQUIRE_OK(io_file_open(tmp_dir(), true, 0, &io, &err), &err);
    CHECK_OK(io->ops->put(io, "m/1", "one", 3, &err), &err);
    struct store_whole w[2] = {{"m/1", 8, &a, 1}, {"m/2", 8, &b, 1}};
    CHECK_OK(io_read_whole(io, w, 2, &err), &err);
    CHECK_EQ(w[0].rc, LARDER_OK);
    CHECK_EQ(w[1].rc, LARDER_ENOTFOUND);
    CHECK_EQ(a.len, 3);
    CHECK(!memcmp(a.data, "one", 3));
    CHECK_EQ(b.len, 0);
    w[0].max = 2;
    CHECK_EQ(io_read_whole(io, w, 2, &err), LARDER_ECORRUPT);
    CHECK_EQ(io_read_all(io, "m/2", 8, &b, &err), LARDER_ENOTFOUND);
    io_close(io);
}

TEST_MAIN();
