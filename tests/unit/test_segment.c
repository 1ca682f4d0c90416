/* SPDX-License-Identifier: Apache-2.0 */
/* test_segment.c - the planner's promises [tiers I1], on examples and on seeded random batches. */
#include "tests/unit/test.h"
#include "tiers/tiers_int.h"

static struct extent extent(uint32_t shard, uint64_t offset, uint32_t len)
{
    return (struct extent){.shard = shard, .offset = offset, .stored_len = len};
}

static const struct plan_rules direct = {4096, 16384, 1 << 20}, buffered = {1, 4096, 1 << 20};

TEST(one_record_direct)
{
    struct plan p = {0};
    struct extent e = extent(3, 5000, 100);
    struct larder_error err;
    REQUIRE_OK(plan_build(&p, &direct, &e, NULL, 1, &err), &err);
    REQUIRE_EQ(p.n_segments, 1);
    CHECK_EQ(p.segments[0].shard, 3);
    CHECK_EQ(p.segments[0].offset, 4096);
    CHECK_EQ(p.segments[0].len, 4096);
    CHECK_EQ(p.segments[0].need, 1004);
    CHECK_EQ(p.place[0], 904);
    CHECK_EQ(p.memory, 4096);
    CHECK_EQ(p.bytes, 4096);
    plan_release(&p);
}

TEST(one_record_buffered_keeps_alignment)
{
    struct plan p = {0};
    struct extent e[] = {extent(0, 5000, 100), extent(1, 64 * 7, 10)};
    struct larder_error err;
    REQUIRE_OK(plan_build(&p, &buffered, e, NULL, 2, &err), &err);
    REQUIRE_EQ(p.n_segments, 2);
    CHECK_EQ(p.segments[0].offset, 5000);
    CHECK_EQ(p.segments[0].len, 100);
    CHECK_EQ(p.place[0] % 64, 5000 % 64);
    CHECK_EQ(p.place[1] % 64, 0);
    CHECK(p.memory <= 256);
    plan_release(&p);
}

TEST(neighbours_join_and_strangers_do_not)
{
    struct plan p = {0};
    /* b touches a; c is 4096 bytes behind b; d 4097 behind c; e in another shard */
    struct extent x[] = {extent(0, 1000, 500), extent(0, 1500, 500), extent(0, 6096, 4), extent(0, 6100 + 4097, 3), extent(1, 0, 9)};
    struct larder_error err;
    REQUIRE_OK(plan_build(&p, &buffered, x, NULL, 5, &err), &err);
    REQUIRE_EQ(p.n_segments, 3);
    CHECK_EQ(p.segments[0].offset, 1000);
    CHECK_EQ(p.segments[0].len, 5100);
    CHECK_EQ(p.segments[1].offset, 10197);
    CHECK_EQ(p.segments[2].shard, 1);
    CHECK_EQ(p.place[1] - p.place[0], 500);
    plan_release(&p);
}

TEST(duplicates_share_bytes)
{
    struct plan p = {0};
    struct extent x[] = {extent(0, 70000, 3000000), extent(0, 10, 5), extent(0, 70000, 3000000)};
    struct larder_error err;
    REQUIRE_OK(plan_build(&p, &direct, x, NULL, 3, &err), &err);
    CHECK_EQ(p.place[0], p.place[2]);
    CHECK(p.memory < 3100000);
    plan_release(&p);
}

TEST(long_record_is_cut_but_contiguous)
{
    struct plan p = {0};
    struct extent x = extent(0, 4095, (3 << 20) + 2);
    struct larder_error err;
    REQUIRE_OK(plan_build(&p, &direct, &x, NULL, 1, &err), &err);
    REQUIRE_EQ(p.n_segments, 4);
    for (size_t i = 0; i < 4; i++) {
        CHECK_EQ(p.segments[i].offset, i << 20);
        CHECK_EQ(p.segments[i].memory, i << 20);
        CHECK_EQ(p.segments[i].len, i < 3 ? 1 << 20 : 8192);
    }
    CHECK_EQ(p.segments[3].need, 4097);
    plan_release(&p);
}

TEST(empty_plans)
{
    struct plan p = {0};
    struct extent x[] = {extent(0, 100, 0), extent(0, 0, 0)};
    struct larder_error err;
    REQUIRE_OK(plan_build(&p, &direct, x, NULL, 0, &err), &err);
    CHECK_EQ(p.memory, 0);
    REQUIRE_OK(plan_build(&p, &direct, x, NULL, 2, &err), &err);
    CHECK_EQ(p.memory, 0);
    CHECK_EQ(p.n_segments, 0);
    CHECK_EQ(p.place[0], 0);
    plan_release(&p);
}

TEST(ranges_lie_in_their_records)
{
    struct plan p = {0};
    struct extent x[] = {extent(0, 1000, 500), extent(0, 2000, 500)};
    struct field_range r[] = {{100, 50}, {450, 50}};
    struct larder_error err;
    REQUIRE_OK(plan_build(&p, &buffered, x, r, 2, &err), &err);
    REQUIRE_EQ(p.n_segments, 1);
    CHECK_EQ(p.segments[0].offset, 1100);
    CHECK_EQ(p.segments[0].len, 1400);
    CHECK_EQ(p.place[1] - p.place[0], 1350);
    r[1].len = 51;
    CHECK_ERR(plan_build(&p, &buffered, x, r, 2, &err), LARDER_ECORRUPT, &err);
    r[1] = (struct field_range){UINT32_MAX, UINT32_MAX};
    CHECK_ERR(plan_build(&p, &buffered, x, r, 2, &err), LARDER_ECORRUPT, &err);
    plan_release(&p);
}

TEST(impossible_offsets_are_refused)
{
    struct plan p = {0};
    struct extent x = extent(0, UINT64_MAX - 10, 100);
    struct larder_error err;
    CHECK_ERR(plan_build(&p, &direct, &x, NULL, 1, &err), LARDER_ECORRUPT, &err);
    x.offset = INT64_MAX;
    CHECK_ERR(plan_build(&p, &direct, &x, NULL, 1, &err), LARDER_ECORRUPT, &err);
    plan_release(&p);
}

/* The segment that holds byte `at` of a shard, by search. */
static const struct segment *segment_of(const struct plan *p, uint32_t shard, uint64_t at)
{
    for (size_t i = 0; i < p->n_segments; i++) {
        const struct segment *s = &p->segments[i];
        if (s->shard == shard && at >= s->offset && at < s->offset + s->need)
            return s;
    }
    return NULL;
}

static void check_segments(const struct plan *p, const struct plan_rules *r)
{
    for (size_t i = 0; i < p->n_segments; i++) {
        const struct segment *s = &p->segments[i], *before = i ? s - 1 : NULL;
        CHECK(s->len > 0 && s->len <= r->segment_max && s->need > 0 && s->need <= s->len);
        CHECK_EQ(s->offset % r->align, 0);
        CHECK_EQ(s->len % r->align, 0);
        CHECK_EQ(s->memory % r->align, 0);
        CHECK(s->memory + s->len <= p->memory);
        if (!before)
            continue;
        CHECK(before->memory + before->len <= s->memory);
        bool adjacent = before->shard == s->shard && before->offset + before->len == s->offset;
        if (adjacent) /* one run: cut only at full length, contiguous in memory */
            CHECK(before->len == r->segment_max && before->memory + before->len == s->memory);
        else if (before->shard == s->shard)
            CHECK(s->offset > before->offset + before->len + r->gap);
        else
            CHECK(s->shard > before->shard);
    }
}

static void check_wants(const struct plan *p, const struct extent *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!x[i].stored_len)
            continue;
        uint64_t at = x[i].offset, end = at + x[i].stored_len;
        while (at < end) { /* every byte is read, and to its place */
            const struct segment *s = segment_of(p, x[i].shard, at);
            REQUIRE(s != NULL);
            CHECK_EQ(s->memory + (at - s->offset), p->place[i] + (at - x[i].offset));
            at = s->offset + s->need;
        }
    }
}

TEST(random_batches)
{
    struct plan p = {0};
    struct larder_error err;
    uint64_t seed = 7;
    static struct extent x[300];
    for (int round = 0; round < 300; round++) {
        size_t n = rng_below(&seed, 300);
        uint64_t span = 1ull << (12 + rng_below(&seed, 16)), len = 1ull << rng_below(&seed, 15);
        struct plan_rules r = round & 1 ? direct : buffered;
        if (round % 3 == 0)
            r.segment_max = 8192;
        for (size_t i = 0; i < n; i++) {
            x[i] = extent((uint32_t)rng_below(&seed, 4), rng_below(&seed, span), (uint32_t)rng_below(&seed, len));
            if (i && rng_below(&seed, 8) == 0)
                x[i] = x[rng_below(&seed, i)];
        }
        REQUIRE_OK(plan_build(&p, &r, x, NULL, n, &err), &err);
        check_segments(&p, &r);
        check_wants(&p, x, n);
    }
    plan_release(&p);
}

TEST_MAIN();
