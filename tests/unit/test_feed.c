/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <unistd.h>

#include "loader/feed.h"
#include "store/base/base.h"
#include "tests/unit/dataset.h"

enum { SOURCES = 3, BATCHES = 6 };

static const struct dataset_spec specs[SOURCES] = {{900, 256, 200, 4000, 20, LARDER_COMPRESS_NONE},
                                                   {300, 100, 10, 50, 300, LARDER_COMPRESS_ZSTD},
                                                   {50, 50, 30000, 20000, 10, LARDER_COMPRESS_NONE}};

struct rig {
    struct store_io *io[SOURCES];
    struct store *store[SOURCES];
    struct tiers *tiers[SOURCES];
    struct feed *feed;
};

static void rig_open(struct rig *r, uint32_t n, struct tiers_cache *cache)
{
    static const char *dir[SOURCES];
    struct tiers_options to = {.cache = cache};
    struct store_options so = {0};
    struct larder_error err;

    for (uint32_t i = 0; i < n; i++) {
        dir[i] = dir[i] ? dir[i] : dataset_make(&specs[i]);
        REQUIRE_OK(io_file_open(dir[i], false, 0, &r->io[i], &err), &err);
        REQUIRE_OK(store_open(r->io[i], &so, &r->store[i], &err), &err);
        REQUIRE_OK(tiers_open(r->store[i], &to, &r->tiers[i], &err), &err);
    }
    REQUIRE_OK(feed_new(r->tiers, r->store, n, &r->feed, &err), &err);
    REQUIRE_OK(feed_open(r->feed, 8, &err), &err);
    CHECK_EQ(feed_only(r->feed) != NULL, n == 1);
}

static void rig_close(struct rig *r, uint32_t n)
{
    feed_close(r->feed);
    feed_free(r->feed);
    for (uint32_t i = 0; i < n; i++) {
        tiers_close(r->tiers[i]);
        store_close(r->store[i]);
        io_close(r->io[i]);
    }
}

struct job { struct feed_batch *b; size_t n, bytes; uint64_t ordinals[200]; uint32_t sources[200]; uint8_t *memory; };

static void job_plan(struct job *j, uint32_t n_sources, uint64_t *state)
{
    struct larder_error err;

    j->n = rng_below(state, 8) == 0 ? 0 : rng_below(state, 200);
    for (size_t i = 0; i < j->n; i++) {
        j->sources[i] = (uint32_t)rng_below(state, n_sources);
        if (rng_below(state, 4)) /* some have no sample in the batch */
            j->sources[i] = 0;
        j->ordinals[i] = rng_below(state, specs[j->sources[i]].n);
    }
    REQUIRE_OK(feed_batch_plan(j->b, j->ordinals, n_sources > 1 ? j->sources : NULL, j->n, &j->bytes, &err), &err);
    free(j->memory);
    j->memory = aligned_alloc(4096, round_up(j->bytes, 4096) + 4096);
    REQUIRE(j->memory);
}

static void job_check(const struct job *j, struct decoder *d)
{
    struct larder_value v[F_COUNT];
    struct larder_error err;

    for (size_t i = 0; i < j->n; i++) {
        const struct extent *e = feed_batch_extent(j->b, i);
        uint8_t *scratch = malloc(store_decode_scratch(e) + 16);

        CHECK_EQ(feed_batch_source(j->b, i), j->sources[i]);
        REQUIRE_OK(feed_batch_decode(j->b, i, d, scratch, v, &err), &err);
        CHECK(sample_is(&specs[j->sources[i]], j->ordinals[i], v));
        free(scratch);
    }
}

/* Several batches under way, in any order of completion; each is checked when it is whole. */
static void feed_batches(uint32_t n_sources, int rounds, uint64_t seed, struct tiers_cache *cache)
{
    struct job job[BATCHES] = {{0}};
    struct decoder *d;
    struct rig r = {0};
    struct larder_error err;
    int started = 0, finished = 0;
    uint64_t samples = 0, counted = 0;
    void *tag;

    rig_open(&r, n_sources, cache);
    REQUIRE_OK(decoder_new(&d, &err), &err);
    CHECK_EQ(feed_next(r.feed, true, &tag, &err), LARDER_END);
    for (; started < BATCHES; started++) {
        REQUIRE_OK(feed_batch_new(r.feed, &job[started].b, &err), &err);
        feed_batch_limit(job[started].b, 1 << 20);
        CHECK_EQ(feed_batch_only(job[started].b) != NULL, n_sources == 1);
        job_plan(&job[started], n_sources, &seed);
        REQUIRE_OK(feed_start(r.feed, job[started].b, job[started].memory, &job[started], &err), &err);
    }
    while (finished < started) {
        CHECK_EQ(feed_under_way(r.feed), started - finished);
        int rc = feed_next(r.feed, rng_below(&seed, 2), &tag, &err);
        if (rc == LARDER_END)
            continue;
        REQUIRE_OK(rc, &err);
        struct job *j = tag;
        job_check(j, d);
        struct tiers_counts c = feed_batch_counts(j->b);
        samples += j->n;
        counted += c.dram.hits + c.nvme.hits + c.origin.hits;
        finished++;
        if (started < rounds) {
            job_plan(j, n_sources, &seed);
            REQUIRE_OK(feed_start(r.feed, j->b, j->memory, j, &err), &err);
            started++;
        }
    }
    CHECK_EQ(samples, counted);
    CHECK_EQ(feed_next(r.feed, true, &tag, &err), LARDER_END);
    for (int i = 0; i < BATCHES; i++) {
        feed_batch_free(job[i].b);
        free(job[i].memory);
    }
    decoder_free(d);
    rig_close(&r, n_sources);
}

TEST(one_dataset) { feed_batches(1, 60, 1, NULL); }
TEST(three_datasets) { feed_batches(3, 100, 2, NULL); }
TEST(two_datasets) { feed_batches(2, 100, 3, NULL); }

TEST(without_io_uring)
{
    setenv("LARDER_NO_URING", "1", 1);
    feed_batches(3, 60, 4, NULL);
    unsetenv("LARDER_NO_URING");
}

TEST(in_front_of_them_a_cache)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    struct tiers_cache *cache;
    struct larder_error err;

    o.name = NULL;
    o.dram_bytes = 16 << 20;
    REQUIRE_OK(tiers_cache_open(&o, &cache, &err), &err);
    feed_batches(3, 100, 5, cache);
    tiers_cache_close(cache);
}

/* Closed with batches under way, cancelled from another thread while the fetch thread waits. */
static void *cancel(void *feed)
{
    feed_cancel(feed);
    return NULL;
}

TEST(ends_with_batches_under_way)
{
    uint64_t seed = 6;

    for (uint32_t n = 1; n <= SOURCES; n++)
        for (int round = 0; round < 20; round++) {
            struct job job[BATCHES] = {{0}};
            struct rig r = {0};
            struct larder_error err;
            pthread_t t;
            void *tag;

            rig_open(&r, n, NULL);
            for (int i = 0; i < BATCHES; i++) {
                REQUIRE_OK(feed_batch_new(r.feed, &job[i].b, &err), &err);
                job_plan(&job[i], n, &seed);
                REQUIRE_OK(feed_start(r.feed, job[i].b, job[i].memory, &job[i], &err), &err);
            }
            pthread_create(&t, NULL, cancel, r.feed);
            while (feed_next(r.feed, true, &tag, &err) == LARDER_OK)
                ;
            pthread_join(t, NULL);
            feed_close(r.feed);
            if (round % 2) { /* it opens again, as for a seek */
                REQUIRE_OK(feed_open(r.feed, 4, &err), &err);
                job_plan(&job[0], n, &seed);
                REQUIRE_OK(feed_start(r.feed, job[0].b, job[0].memory, &job[0], &err), &err);
                REQUIRE_OK(feed_next(r.feed, true, &tag, &err), &err);
                CHECK(tag == &job[0]);
            }
            for (int i = 0; i < BATCHES; i++)
                feed_batch_free(job[i].b);
            rig_close(&r, n);
            for (int i = 0; i < BATCHES; i++)
                free(job[i].memory);
        }
}

/* A shard that is gone: the batches that need it fail, and say whose it is; the others come. */
TEST(a_failing_dataset_fails_its_batches)
{
    struct job job[2] = {{0}};
    struct rig r = {0};
    struct larder_error err;
    char path[512], away[520];
    void *tag;

    rig_open(&r, 3, NULL);
    snprintf(path, sizeof(path), "%s/shards/%s", io_where(r.io[1]), store_manifest(r.store[1])->shards[0].name);
    snprintf(away, sizeof(away), "%s.away", path);
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(feed_batch_new(r.feed, &job[i].b, &err), &err);
        job[i].n = 3;
        memcpy(job[i].ordinals, (uint64_t[]){1, 2, 3}, 24);
        memcpy(job[i].sources, (uint32_t[]){0, (uint32_t)i, 2}, 12);
        REQUIRE_OK(feed_batch_plan(job[i].b, job[i].ordinals, job[i].sources, 3, &job[i].bytes, &err), &err);
        job[i].memory = aligned_alloc(4096, round_up(job[i].bytes, 4096));
    }
    REQUIRE_EQ(rename(path, away), 0);
    for (int i = 0; i < 2; i++)
        REQUIRE_OK(feed_start(r.feed, job[i].b, job[i].memory, &job[i], &err), &err);
    for (int i = 0; i < 2; i++) {
        int rc = feed_next(r.feed, true, &tag, &err);
        CHECK(tag == &job[rc ? 1 : 0]);
        if (rc)
            CHECK_ERR(rc, LARDER_ENOTFOUND, &err);
        CHECK(!rc || strstr(err.message, "source 1: ") == err.message);
    }
    REQUIRE_EQ(rename(away, path), 0);
    for (int i = 0; i < 2; i++) {
        feed_batch_free(job[i].b);
        free(job[i].memory);
    }
    rig_close(&r, 3);
}

TEST_MAIN();
