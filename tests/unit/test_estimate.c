/* SPDX-License-Identifier: Apache-2.0 */
/* test_estimate.c - the estimate of an epoch's GETs and bytes, against plans of random batches. */
#include "loader/loader_int.h"
#include "tests/unit/test.h"
#include "tiers/tiers_int.h"

#define RECORD 2500u
#define SHARD_SAMPLES 1000u

/* What the planner makes of a shuffled epoch of n samples. */
static void simulate(uint64_t n, uint32_t batch, uint32_t gap, uint32_t get, double *gets, double *bytes)
{
    struct order o = {.n = n, .seed = 7};
    struct plan_rules rules = {1, gap, get};
    uint64_t *ordinals = calloc(batch, sizeof(*ordinals));
    struct extent *e = calloc(batch, sizeof(*e));
    struct plan p = {0};
    struct larder_error err;
    *gets = *bytes = 0;
    for (uint64_t at = 0; at < n; at += batch) {
        size_t m = (size_t)MIN((uint64_t)batch, n - at);
        order_fill(&o, 0, at, m, ordinals);
        for (size_t i = 0; i < m; i++)
            e[i] = (struct extent){.shard = (uint32_t)(ordinals[i] / SHARD_SAMPLES), .offset = ordinals[i] % SHARD_SAMPLES * RECORD,
                                   .stored_len = RECORD};
        REQUIRE_OK(plan_build(&p, &rules, e, NULL, m, &err), &err);
        *gets += (double)p.n_segments;
        *bytes += (double)p.bytes;
    }
    plan_release(&p);
    free(ordinals);
    free(e);
}

static bool near(double a, double b, double share) { return a >= b * (1 - share) && a <= b * (1 + share); }

TEST(shuffled_batches)
{
    const uint32_t batches[] = {16, 128, 1024}, gaps[] = {128, 20000, 262144};
    for (size_t i = 0; i < ARRAY_LEN(batches); i++)
        for (size_t k = 0; k < ARRAY_LEN(gaps); k++) {
            double gets, bytes, want_gets, want_bytes;
            struct estimate_in in = {.samples = 20000, .bytes = 20000.0 * RECORD, .shards = 20, .own = 20000, .batch = batches[i],
                                     .gap = gaps[k], .get_bytes = 8 << 20};
            gets = estimate_gets(&in, &bytes);
            simulate(20000, batches[i], gaps[k], 8 << 20, &want_gets, &want_bytes);
            CHECK(near(gets, want_gets, 0.2));
            CHECK(near(bytes, want_bytes, 0.1));
            if (!near(gets, want_gets, 0.2) || !near(bytes, want_bytes, 0.1))
                fprintf(stderr, "batch %u gap %u: %.0f GETs, planned %.0f; %.0f bytes, planned %.0f\n", batches[i], gaps[k], gets,
                        want_gets, bytes, want_bytes);
        }
}

TEST(in_order_and_streamed)
{
    double bytes;
    struct estimate_in in = {.samples = 10000, .bytes = 1e9, .shards = 15, .own = 10000, .batch = 100, .gap = 262144, .get_bytes = 8e6,
                             .in_order = true};
    CHECK_EQ((int)estimate_gets(&in, &bytes), 100 * 2 + 15); /* 10 MB a batch: two GETs, and one more where a shard ends in it */
    CHECK_EQ((uint64_t)bytes, 1000000000);
    in.in_order = false, in.streams = true;
    CHECK_EQ((int)estimate_gets(&in, &bytes), 125 + 15);
    CHECK_EQ((uint64_t)bytes, 1000000000);
    in.cached = 1;
    CHECK_EQ((int)estimate_gets(&in, &bytes), 0);
    CHECK_EQ((uint64_t)bytes, 0);
    in.cached = 0.5, in.streams = false;
    CHECK(estimate_gets(&in, &bytes) <= 5100);
    CHECK(bytes >= 499e6 && bytes < 1e9);
}

TEST_MAIN();
