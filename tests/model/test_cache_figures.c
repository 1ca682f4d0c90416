/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cache_figures.c - the figures of the papers about cache behaviour, from our orders and our policy.
 *
 * MinIO (CoorDL 5.1): exactly F - C misses in every epoch after the first, and the same hits. LRU under a permutation an epoch,
 * simulated as the baseline it is: miss = 1 - [c + (1 - c) ln(1 - c)]. DELI's FIFO, insert on miss without prefetching, three nodes
 * with a fresh partition an epoch: miss = 1 + c - 3 ln(3 / (3 - c)) in the second epoch, 2/3 with room for all. MinIO and
 * FIFO also by the arena itself, which has bookkeeping and evicts a slab at a time.
 */
#include <math.h>

#include "loader/loader_int.h"
#include "tests/unit/test.h"
#include "tiers/dram_int.h"

enum { F = 120000 };

static uint64_t ordinals[F];

static void draw(uint64_t epoch, uint64_t seed)
{
    struct order o = {.n = F, .seed = seed, .shuffle = LARDER_SHUFFLE_FULL};

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

/* ---- the same by the arena ---- */

static int lay_out(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    return dram_init(base, bytes, *(enum replacement *)user, err);
}

struct node { struct share *share; struct dram *d; uint32_t space; };

static struct node open_node(uint64_t budget, enum replacement replacement)
{
    struct share_options o = {.bytes = dram_region_bytes(budget), .init = lay_out, .user = &replacement};
    struct cache_space space = {.uuid = "figures"};
    struct larder_error err;
    struct node n = {0};

    REQUIRE_OK(share_open(&o, &n.share, &err), &err);
    REQUIRE_OK(dram_open(n.share, &n.d, &err), &err);
    dram_no_pin(n.d);
    REQUIRE_OK(dram_space(n.d, &space, &n.space, &err), &err);
    return n;
}

static void close_node(struct node *n)
{
    dram_close(n->d);
    share_close(n->share);
}

static uint64_t entries_of(const struct node *n)
{
    struct dram_stats s;

    dram_stats(n->d, &s);
    return s.entries;
}

static uint8_t record[4096], copied[4096];

static void *copy_to(void *user, size_t i, size_t len)
{
    (void)user, (void)i;
    return len <= sizeof(copied) ? copied : NULL;
}

/* Looks a record up and, if it is absent, has it admitted. True: a hit. */
static bool want(struct node *n, uint64_t ordinal, uint32_t len)
{
    struct cached c = {record, len, len, (uint32_t)ordinal, 0};
    struct extent hit;
    const void *view;

    if (dram_lookup(n->d, n->space, &ordinal, 1, &hit, &view, copy_to, NULL)) {
        CHECK(hit.stored_len == len && hit.crc == (uint32_t)ordinal);
        return true;
    }
    dram_admit(n->d, n->space, ordinal, &c, NULL);
    return false;
}

/* The first C of F come in and stay; C is what the budget has room for. Unequal sizes: the same hits in all later epochs. */
static void minio_by_the_arena(bool equal)
{
    static bool hit[F];
    struct node n = open_node(24 * MIB, REPLACE_NONE);
    uint64_t held = 0;

    for (uint64_t e = 0; e < 4; e++) {
        uint64_t misses = 0, others = 0;

        draw(e, 5);
        for (uint64_t i = 0; i < F; i++) {
            uint64_t at = ordinals[i];
            uint32_t len = equal ? 600 : (uint32_t)(hash64(1, &at, sizeof(at)) % 1200);
            bool have = want(&n, at, len);

            others += e > 1 && have != hit[at];
            hit[at] = have;
            misses += !have;
        }
        CHECK_EQ(others, 0);
        CHECK_EQ(misses, F - held);
        held = entries_of(&n);
        if (equal) { /* all of the budget but its first pages and the table is records */
            uint64_t pages = n.d->h->budget_pages - n.d->h->fixed_pages - (atomic_load(&n.d->h->alloc) >> 32);

            CHECK_EQ(held, pages * ARENA_PAGE / record_need(600, false));
        }
        CHECK(held > F / 4 && held < F / 2);
    }
    close_node(&n);
}

TEST(minio_by_the_arena_equal_sizes) { minio_by_the_arena(true); }
TEST(minio_by_the_arena_unequal_sizes) { minio_by_the_arena(false); }

/* The misses of three nodes in the second epoch, as a share of all; *share gets what a node held of its partition, in the mean. */
static double fifo_by_the_arena(uint64_t budget, double *share)
{
    uint64_t part = F / 3, misses = 0, held = 0, looks = 0;
    struct node nodes[3];

    for (int k = 0; k < 3; k++)
        nodes[k] = open_node(budget, REPLACE_FIFO);
    for (uint64_t e = 0; e < 2; e++) {
        draw(e, 11);
        for (uint64_t i = 0; i < F; i++) {
            struct node *n = &nodes[i / part];

            misses += !want(n, ordinals[i], 900) && e;
            if (e && i % 97 == 0) {
                held += entries_of(n);
                looks++;
            }
        }
    }
    for (int k = 0; k < 3; k++)
        close_node(&nodes[k]);
    *share = (double)held / (double)looks / (double)part;
    return (double)misses / F;
}

TEST(deli_fifo_by_three_arenas)
{
    static const double shares[3] = {.25, .5, .75}, want_miss[3] = {.989, .953, .887};
    double held;

    for (int i = 0; i < 3; i++) {
        uint64_t records = (uint64_t)(shares[i] * F / 3);
        double miss = fifo_by_the_arena(records * record_need(900, false) + records * 10, &held); /* a slot each besides */

        CHECK(fabs(held - shares[i]) < .02);
        CHECK(fabs(miss - want_miss[i]) < .01);
        CHECK(fabs(miss - (1 + held - 3 * log(3 / (3 - held)))) < .01);
    }
    CHECK(fabs(fifo_by_the_arena(128 * MIB, &held) - 2. / 3) < .01);
}

/* CoorDL figure 12: four items, room for two. */
TEST(two_of_four_miss)
{
    bool held[4] = {0};
    uint64_t room = 2;
    bool closed = false;

    for (uint64_t e = 0; e < 8; e++) {
        struct order o = {.n = 4, .seed = 1, .shuffle = LARDER_SHUFFLE_FULL};
        uint64_t four[4], misses = 0;

        order_fill(&o, e, 0, 4, four);
        for (int i = 0; i < 4; i++) {
            if (held[four[i]])
                continue;
            misses++;
            enum policy_act act = policy_admit(REPLACE_NONE, closed, 1, room, 2);
            if (act == POLICY_ADMIT)
                held[four[i]] = true, room--;
            closed |= act == POLICY_CLOSE;
        }
        CHECK_EQ(misses, e ? 2 : 4);
    }
}

TEST_MAIN();
