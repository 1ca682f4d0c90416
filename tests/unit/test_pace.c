/* SPDX-License-Identifier: Apache-2.0 */
/* When a slow disk is passed by, and for how long. Times are made up. */
#include "tests/unit/test.h"
#include "tiers/stack_int.h"

#define MS 1000000ull
#define S 1000000000ull

/* Reads of `took` come every `step` until one has it passed by, or `until`; when. */
static uint64_t read_on(struct pace *p, uint64_t took, uint64_t next, uint64_t step, uint64_t from, uint64_t until)
{
    for (uint64_t now = from; now < until; now += step)
        if (pace_read(p, took, next, now))
            return now;
    return 0;
}

TEST(reads_in_time_are_never_passed_by)
{
    struct pace p = {0};
    CHECK_EQ(read_on(&p, 499 * MS, 0, 10 * MS, S, 100 * S), 0);
    CHECK_EQ(read_on(&p, 3900 * MS, S, 10 * MS, 100 * S, 200 * S), 0); /* late, but so is what comes next */
    CHECK(!pace_passed(&p, 200 * S));
}

TEST(slow_for_some_seconds)
{
    struct pace p = {0};
    uint64_t at = read_on(&p, 600 * MS, 10 * MS, 100 * MS, 50 * S, 100 * S);
    CHECK(at >= 52 * S && at <= 54 * S);
    CHECK(pace_passed(&p, at) && pace_passed(&p, at + 9 * S) && !pace_passed(&p, at + 11 * S));
}

TEST(a_few_reads_are_not_enough)
{
    struct pace p = {0};
    for (int i = 0; i < 7; i++)
        CHECK(!pace_read(&p, 5 * S, 0, (50 + (uint64_t)i) * S));
    CHECK(pace_read(&p, 5 * S, 0, 58 * S));
}

TEST(one_in_time_begins_anew)
{
    struct pace p = {0};
    for (uint64_t now = 50 * S; now < 150 * S; now += 2 * S) {
        CHECK_EQ(read_on(&p, 900 * MS, 10 * MS, 100 * MS, now, now + 1900 * MS), 0);
        CHECK(!pace_read(&p, MS, 10 * MS, now + 1950 * MS));
    }
}

TEST(pauses_grow_and_end)
{
    struct pace p = {0};
    uint64_t now = 100 * S, pause[8];
    for (int i = 0; i < 8; i++) {
        uint64_t at = read_on(&p, 2 * S, 10 * MS, 100 * MS, now, now + 60 * S);
        REQUIRE(at);
        CHECK_EQ(read_on(&p, 2 * S, 10 * MS, S, at, at + 9 * S), 0); /* those that were under way: until 8 s later */
        for (now = at += 8 * S; pace_passed(&p, now); now += S)
            ;
        pause[i] = (now - at) / S;
    }
    CHECK_EQ(pause[0], 10);
    CHECK_EQ(pause[1], 20);
    CHECK_EQ(pause[4], 160);
    CHECK_EQ(pause[5], 300);
    CHECK_EQ(pause[7], 300);
    CHECK(!pace_read(&p, MS, 10 * MS, now)); /* well again */
    uint64_t at = read_on(&p, 2 * S, 10 * MS, 100 * MS, now, now + 60 * S);
    CHECK(at && pace_passed(&p, at + 9 * S) && !pace_passed(&p, at + 11 * S));
}

TEST(the_mean_follows)
{
    _Atomic uint64_t mean = 0;
    pace_average(&mean, 1600);
    CHECK_EQ(atomic_load(&mean), 1600);
    for (int i = 0; i < 400; i++)
        pace_average(&mean, 160000);
    CHECK(atomic_load(&mean) > 150000 && atomic_load(&mean) <= 160000);
}

TEST_MAIN();
