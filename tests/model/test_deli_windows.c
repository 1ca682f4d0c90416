/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_deli_windows.c - DELI's figures about fetch sizes and thresholds (V-D), from our orders, windows and FIFO policy.
 *
 * A trainer wants the samples of a shuffled epoch in turn and takes COMPUTE for each. Windows of them are fetched behind a latency, some at a
 * time, into a cache of c samples that evicts what came first. A sample that is not there when it is wanted is a miss, and is fetched by
 * the trainer itself, past the cache. What DELI found: the miss rate does not depend on the cache once it holds a fetch; at half of that it
 * is about .48, for the first half of a fetch is gone when it is wanted; and fetch size and threshold of half the cache each beat a
 * threshold of 0, with that fetch size or twice of it.
 */
#include "loader/prep_int.h"
#include "tests/unit/test.h"
#include "tiers/cache_int.h"

enum { N = 60000 };
enum { LATENCY = 3000, AT_ONCE = 600, COMPUTE = 100 }; /* a fetched sample every 5: much faster than it is used */

struct sim {
    uint64_t fetch, threshold, cache;
    uint64_t now, misses;
    struct window w;
    uint64_t requested, arrived;  /* counts of samples of the whole walk */
    uint64_t *comes;              /* when each of it comes */
    uint64_t *walk;               /* its ordinals */
    uint64_t *fifo, first, room;  /* what is held, in the order it came */
    bool held[N];
};

static void admit(struct sim *s, uint64_t ordinal)
{
    if (s->held[ordinal])
        return;
    enum policy_act act = policy_admit(REPLACE_FIFO, false, 1, s->room, s->cache);
    CHECK(act == POLICY_ADMIT || act == POLICY_EVICT);
    if (act == POLICY_EVICT) {
        s->held[s->fifo[s->first % s->cache]] = false;
        s->first++;
        s->room++;
    }
    s->fifo[(s->first + s->cache - s->room) % s->cache] = ordinal;
    s->room--;
    s->held[ordinal] = true;
}

static void arrive(struct sim *s)
{
    while (s->arrived < s->requested && s->comes[s->arrived] <= s->now)
        admit(s, s->walk[s->arrived++]);
}

static void request(struct sim *s)
{
    uint64_t n = MIN(window_due(&s->w), (uint64_t)N - s->requested);

    for (uint64_t i = 0; i < n; i++, s->requested++)
        s->comes[s->requested] = LATENCY + (s->requested < AT_ONCE ? s->now : MAX(s->now, s->comes[s->requested - AT_ONCE]));
    window_request(&s->w, n);
}

static double miss_rate(uint64_t fetch, uint64_t threshold, uint64_t cache)
{
    struct order o = {.n = N, .seed = 4, .shuffle = LARDER_SHUFFLE_FULL};
    struct sim *s = calloc(1, sizeof(*s));

    s->cache = s->room = cache;
    s->comes = calloc((size_t)N, sizeof(uint64_t));
    s->walk = calloc((size_t)N, sizeof(uint64_t));
    s->fifo = calloc(cache, sizeof(uint64_t));
    order_fill(&o, 0, 0, N, s->walk);
    window_init(&s->w, fetch, threshold);
    for (uint64_t i = 0; i < (uint64_t)N; i++) {
        request(s);
        arrive(s);
        if (!s->held[s->walk[i]]) {
            s->misses++;
            s->now += LATENCY;
        }
        window_consume(&s->w, 1);
        s->now += COMPUTE;
    }
    double rate = (double)s->misses / N;
    free(s->comes);
    free(s->walk);
    free(s->fifo);
    free(s);
    return rate;
}

TEST(flat_once_the_cache_holds_a_fetch)
{
    double half = miss_rate(1024, 0, 512), one = miss_rate(1024, 0, 1024), two = miss_rate(1024, 0, 2048), three = miss_rate(1024, 0, 3072);

    CHECK(half > 0.44 && half < 0.52);
    CHECK(one < 0.01);
    CHECK(one - two < 0.005 && two - one < 0.005);
    CHECK(two - three < 0.005 && three - two < 0.005);
}

TEST(a_larger_fetch_misses_less)
{
    double last = 1;

    for (uint64_t f = 256; f <= 2048; f *= 2) {
        double rate = miss_rate(f, 0, (uint64_t)N);
        CHECK(rate < last && rate > 0);
        last = rate;
    }
}

TEST(half_and_half_is_best)
{
    double best = miss_rate(1024, 1024, 2048);

    CHECK(best < miss_rate(1024, 0, 2048) / 10); /* DELI: 31% to 80% less, where latencies differed */
    CHECK(best < miss_rate(2048, 0, 2048) / 10); /* "full fetch" */
    CHECK(best <= miss_rate(1024, 512, 2048));
    CHECK(best <= miss_rate(1024, 1536, 2048));  /* the cache cannot hold what the threshold asks for */
}

TEST(a_threshold_beyond_the_cache_throws_away_what_is_wanted)
{
    CHECK(miss_rate(1024, 1024, 1024) > 0.2);
}

TEST_MAIN();
