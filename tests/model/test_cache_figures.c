/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cache_figures.c - the figures of the papers about cache behaviour, from our orders and our policy.
 *
 * MinIO (CoorDL 5.1): exactly F - C misses in every epoch after the first, and the same hits. LRU under a permutation an epoch,
 * simulated as the baseline it is: miss = 1 - [c + (1 - c) ln(1 - c)]. DELI's FIFO, insert on miss without prefetching, three nodes
 * with a fresh partition an epoch: miss = 1 + c - 3 ln(3 / (3 - c)) in the second epoch, 2/3 with room for all.
 */
#include <math.h>

#include "loader/loader_int.h"
#include "tests/unit/test.h"
#include "tiers/cache_int.h"

enum { F = 120000 };

static uint64_t ordinals[F];

static void draw(uint64_t epoch, uint64_t seed)
{
    struct order o = {F, seed, LARDER_SHUFFLE_FULL};

    order_fill(&o, epoch, 0, F, ordinals);
}

TEST(minio_misses_exactly_what_has_no_room)
{
    static bool held[F], hit[F];
    uint64_t c = F * 35 / 100, room = c;
    bool closed = false;

    memset(held, 0, sizeof(held));
    for (uint64_t e = 0; e < 5; e++) {
        uint64_t misses = 0, others = 0;

        draw(e, 3);
        for (uint64_t i = 0; i < F; i++) {
            uint64_t at = ordinals[i];

            if (e > 1)
                others += hit[at] != held[at];
            hit[at] = held[at];
            misses += !held[at];
            if (held[at])
                continue;
            enum policy_act act = policy_admit(REPLACE_NONE, closed, 1, room, c);
            if (act == POLICY_ADMIT)
                held[at] = true, room--;
            closed |= act == POLICY_CLOSE;
        }
        CHECK_EQ(misses, e == 0 ? F : F - c);
        CHECK_EQ(others, 0);
    }
}

/* A sample is a hit when fewer than c other samples were used since: counted by a tree over the times of last use. */
static double lru_miss(double share)
{
    static uint32_t tree[2 * F + 2], last[F];
    uint64_t c = (uint64_t)(share * F), misses = 0;

    memset(tree, 0, sizeof(tree));
    for (uint64_t e = 0; e < 2; e++) {
        draw(e, 7);
        for (uint64_t i = 0; i < F; i++) {
            uint64_t at = ordinals[i], now = e * F + i + 1, used = 0;

            if (e) {
                for (uint64_t t = 2 * F; t; t &= t - 1)
                    used += tree[t];
                for (uint64_t t = last[at]; t; t &= t - 1)
                    used -= tree[t];
                misses += used >= c;
                for (uint64_t t = last[at]; t <= 2 * F; t += t & -t)
                    tree[t]--;
            }
            last[at] = (uint32_t)now;
            for (uint64_t t = now; t <= 2 * F; t += t & -t)
                tree[t]++;
        }
    }
    return (double)misses / F;
}

TEST(lru_is_what_the_formula_says)
{
    static const double shares[4] = {.25, .35, .5, .65}, want[4] = {.966, .930, .847, .717};

    for (int i = 0; i < 4; i++) {
        double c = shares[i], formula = 1 - (c + (1 - c) * log(1 - c)), miss = lru_miss(c);

        CHECK(fabs(formula - want[i]) < .001);
        CHECK(fabs(miss - formula) < .01);
    }
}

/* Node 0's misses in the second epoch, as a share of its partition. c: of a partition; 0: unlimited. */
static double fifo_miss(double share)
{
    static uint8_t held[F];
    static uint32_t queue[2 * F];
    uint64_t part = F / 3, c = share > 0 ? (uint64_t)(share * (double)part) : F, head = 0, tail = 0, misses = 0;

    memset(held, 0, sizeof(held));
    for (uint64_t e = 0; e < 2; e++) {
        draw(e, 11);
        misses = 0;
        for (uint64_t i = 0; i < part; i++) {
            uint64_t at = ordinals[i];

            if (held[at])
                continue;
            misses++;
            while (policy_admit(REPLACE_FIFO, false, 1, c - (tail - head), c) == POLICY_EVICT)
                held[queue[head++]] = 0;
            held[at] = 1;
            queue[tail++] = (uint32_t)at;
        }
    }
    return (double)misses / (double)part;
}

TEST(deli_fifo_on_three_nodes)
{
    static const double shares[3] = {.25, .5, .75}, want[3] = {.989, .953, .887};

    for (int i = 0; i < 3; i++) {
        double c = shares[i], formula = 1 + c - 3 * log(3 / (3 - c)), miss = fifo_miss(c);

        CHECK(fabs(formula - want[i]) < .001);
        CHECK(fabs(miss - formula) < .01);
    }
    CHECK(fabs(fifo_miss(0) - 2. / 3) < .01);
}

TEST_MAIN();
