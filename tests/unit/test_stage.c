/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/stage_int.h"
#include "tests/unit/dataset.h"

#include <sys/wait.h>

struct rig {
    struct store_io *io;
    struct store *store;
    struct tiers *tiers;
    struct stage *stage;
    struct stage_options o;
};

static const struct dataset_spec plain = {300, 64, 1000, 3000, 50, LARDER_COMPRESS_NONE};
static const struct dataset_spec packed = {300, 64, 100, 300, 900, LARDER_COMPRESS_ZSTD};

/* A dataset that no test changes: made once. */
static const char *whole(const struct dataset_spec *d)
{
    static const char *dirs[2];
    const char **dir = &dirs[d == &packed];

    return *dir ? *dir : (*dir = dataset_make(d));
}

static void rig_open(struct rig *r, const char *dir, const struct dataset_spec *d, uint32_t batch_size, size_t staging)
{
    struct store_options so = {0};
    struct tiers_options to = {0};
    struct larder_error err;

    *r = (struct rig){0};
    REQUIRE_OK(io_file_open(dir, false, 0, &r->io, &err), &err);
    REQUIRE_OK(store_open(r->io, &so, &r->store, &err), &err);
    REQUIRE_OK(tiers_open(r->store, &to, &r->tiers, &err), &err);
    r->o = (struct stage_options){.store = r->store, .tiers = r->tiers, .queue_depth = 16, .staging_bytes = staging,
                                  .plan = {.order = {.n = d->n, .seed = 11},
                                           .slicing = {.batch_size = batch_size, .world = 1, .last = LARDER_LAST_SHORT}}};
}

static void rig_start(struct rig *r)
{
    struct larder_error err;

    REQUIRE_OK(stage_open(&r->o, &r->stage, &err), &err);
}

static void rig_close(struct rig *r)
{
    stage_close(r->stage);
    tiers_close(r->tiers);
    store_close(r->store);
    io_close(r->io);
}

/* Takes and checks one batch; returns it held. */
static const struct larder_batch *take(struct rig *r, const struct dataset_spec *d, uint64_t epoch, uint64_t number)
{
    const struct larder_batch *b = NULL;
    struct larder_error err = {0};
    struct stage_cost cost;
    struct slice slice = slicing_batch(&r->o.plan.slicing, 0, r->o.plan.order.n, number);
    uint64_t position = slice.position, want[1024], bytes = 0;
    uint32_t n = slice.n;

    REQUIRE_OK(stage_next(r->stage, 0, &b, &cost, &err), &err);
    CHECK_EQ(b->epoch, epoch);
    CHECK_EQ(b->number, number);
    CHECK_EQ(b->position, position);
    REQUIRE_EQ(b->n, n);
    CHECK_EQ(b->n_fields, F_COUNT);
    order_fill(&r->o.plan.order, epoch, position, n, want);
    CHECK_MEM(b->ordinals, want, n * sizeof(*want));
    for (uint32_t i = 0; i < n; i++) {
        CHECK(sample_is(d, b->ordinals[i], b->values + i * F_COUNT));
        for (int f = 0; f < F_COUNT; f++)
            bytes += b->values[i * F_COUNT + f].len;
    }
    CHECK_EQ(cost.bytes, bytes);
    CHECK(cost.io.origin.requests >= 1 && cost.io.origin.requests <= n);
    if (!d->compression)
        CHECK(cost.io.origin.bytes >= bytes && cost.prep_stall_ns == 0);
    return b;
}

/* Also with decode threads. */
static void epochs_by(const struct dataset_spec *d, uint32_t batch_size, size_t staging, unsigned threads)
{
    struct rig r;

    rig_open(&r, whole(d), d, batch_size, staging);
    r.o.threads = threads;
    rig_start(&r);
    for (uint64_t e = 0; e < 3; e++)
        for (uint64_t b = 0; b < slicing_batches(&r.o.plan.slicing, 0, r.o.plan.order.n); b++)
            stage_release(take(&r, d, e, b));
    rig_close(&r);
}

static void epochs(const struct dataset_spec *d, uint32_t batch_size, size_t staging)
{
    static const unsigned threads[] = {0, 1, 3, 8};

    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        epochs_by(d, batch_size, staging, threads[i]);
}

TEST(batches_of_one) { epochs(&plain, 1, 1 << 20); }
TEST(batches_of_seven) { epochs(&plain, 7, 1 << 20); }
TEST(one_batch_an_epoch) { epochs(&plain, 300, 8 << 20); }
TEST(batch_larger_than_the_dataset) { epochs(&plain, 1000, 8 << 20); }
TEST(compressed) { epochs(&packed, 32, 1 << 20); }
TEST(room_for_one_batch) { epochs(&plain, 32, 200 << 10); }

TEST(what_is_held_stays_untouched)
{
    const struct larder_batch *held[6];
    struct rig r;

    rig_open(&r, whole(&plain), &plain, 16, 600 << 10);
    rig_start(&r);
    for (int i = 0; i < 6; i++)
        held[i] = take(&r, &plain, 0, (uint64_t)i);
    stage_release(held[3]);
    for (uint64_t b = 6; b < 15; b++)
        stage_release(take(&r, &plain, 0, b));
    for (int i = 0; i < 6; i++)
        for (uint32_t k = 0; i != 3 && k < held[i]->n; k++)
            CHECK(sample_is(&plain, held[i]->ordinals[k], held[i]->values + k * F_COUNT));
    rig_close(&r);
}

TEST(holding_everything_is_told_at_once_and_can_be_mended)
{
    const struct larder_batch *held[1100], *b;
    struct larder_error err;
    struct stage_cost cost;
    int n = 0, rc;
    struct rig r;

    rig_open(&r, whole(&plain), &plain, 64, 2 << 20);
    rig_start(&r);
    while ((rc = stage_next(r.stage, 0, &b, &cost, &err)) == 0 && n < 1100)
        held[n++] = b;
    CHECK_ERR(rc, LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "release a batch") != NULL);
    CHECK(n >= 5 && n <= 16);
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &err), LARDER_EINVAL, &err);
    stage_release(held[0]);
    stage_release(held[1]);
    b = take(&r, &plain, (uint64_t)n / 5, (uint64_t)n % 5);
    for (int i = 2; i < n; i++)
        for (uint32_t k = 0; k < held[i]->n; k++)
            CHECK(sample_is(&plain, held[i]->ordinals[k], held[i]->values + k * F_COUNT));
    rig_close(&r);
}

TEST(all_slots_of_tiny_batches)
{
    const struct larder_batch *b;
    struct larder_error err;
    struct stage_cost cost;
    int n = 0, rc;
    struct rig r;

    rig_open(&r, whole(&plain), &plain, 1, 64 << 20);
    rig_start(&r);
    while ((rc = stage_next(r.stage, 0, &b, &cost, &err)) == 0)
        n++;
    CHECK_ERR(rc, LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "staging slots") != NULL);
    CHECK_EQ(n, 2 * 16 + 4);
    rig_close(&r);
}

TEST(a_batch_beyond_the_budget_says_what_it_needs)
{
    const struct larder_batch *b;
    struct larder_error err, again;
    struct stage_cost cost;
    struct rig r;

    rig_open(&r, whole(&plain), &plain, 256, 64 << 10);
    rig_start(&r);
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &err), LARDER_ENOMEM, &err);
    CHECK(strstr(err.message, "65536") && strstr(err.message, "staging_bytes"));
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &again), LARDER_ENOMEM, &again);
    CHECK_STR(again.message, err.message);
    rig_close(&r);
}

TEST(a_page_of_staging_is_too_small_for_the_ordinals)
{
    const struct larder_batch *b;
    struct larder_error err;
    struct stage_cost cost;
    struct rig r;

    rig_open(&r, whole(&plain), &plain, 300, 4096);
    rig_start(&r);
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &err), LARDER_ENOMEM, &err);
    rig_close(&r);
}

/* Flips a byte of the record of an ordinal. */
static void damage(const char *dir, struct store *s, uint64_t ordinal)
{
    struct larder_error err;
    struct extent e;
    char path[400];
    uint8_t byte;
    FILE *f;

    REQUIRE_OK(store_locate(s, &ordinal, 1, &e, &err), &err);
    snprintf(path, sizeof(path), "%s/shards/%s", dir, store_manifest(s)->shards[e.shard].name);
    REQUIRE((f = fopen(path, "r+b")) != NULL);
    fseek(f, (long)(e.offset + e.stored_len / 2), SEEK_SET);
    REQUIRE_EQ(fread(&byte, 1, 1, f), 1);
    byte ^= 0x10;
    fseek(f, -1, SEEK_CUR);
    REQUIRE_EQ(fwrite(&byte, 1, 1, f), 1);
    fclose(f);
}

/* The message is of the first damaged sample of the first damaged batch, whichever thread found what first. */
static void told_where(unsigned threads)
{
    const char *dir = dataset_make(&plain);
    const struct larder_batch *b;
    struct larder_error err, again;
    struct stage_cost cost;
    struct extent e;
    char where[200];
    struct rig r;
    uint64_t ordinal;

    rig_open(&r, dir, &plain, 10, 4 << 20);
    r.o.threads = threads;
    for (uint64_t at = 140; at >= 77; at -= at > 78 ? 31 : 1) { /* 140, 109, 78, 77 */
        order_fill(&r.o.plan.order, 0, at, 1, &ordinal);
        damage(dir, r.store, ordinal);
    }
    REQUIRE_OK(store_locate(r.store, &ordinal, 1, &e, &err), &err);
    rig_start(&r);
    for (uint64_t i = 0; i < 7; i++)
        stage_release(take(&r, &plain, 0, i));
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &err), LARDER_ECORRUPT, &err);
    snprintf(where, sizeof(where), "(ordinal %llu, shard %u slot %u)", (unsigned long long)ordinal, e.shard, e.slot);
    CHECK(strstr(err.message, where) != NULL);
    snprintf(where, sizeof(where), "offset %llu", (unsigned long long)e.offset);
    CHECK(strstr(err.message, where) != NULL);
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &again), LARDER_ECORRUPT, &again);
    CHECK_STR(again.message, err.message);
    rig_close(&r);
}

TEST(damage_is_told_where_it_is_after_all_batches_before_it) { told_where(0); }
TEST(damage_is_told_where_it_is_by_many_threads)
{
    for (int i = 0; i < 5; i++)
        told_where(i % 2 ? 3 : 8);
}

TEST(a_missing_shard_ends_it)
{
    const char *dir = dataset_make(&plain);
    const struct larder_batch *b;
    struct larder_error err;
    struct stage_cost cost;
    char path[400];
    struct rig r;
    int rc;

    rig_open(&r, dir, &plain, 10, 4 << 20);
    snprintf(path, sizeof(path), "%s/shards/%s", dir, store_manifest(r.store)->shards[3].name);
    REQUIRE_EQ(unlink(path), 0);
    rig_start(&r);
    while ((rc = stage_next(r.stage, 0, &b, &cost, &err)) == 0)
        stage_release(b);
    CHECK(rc == LARDER_ENOTFOUND || rc == LARDER_EIO || rc == LARDER_ECORRUPT);
    CHECK(strstr(err.message, store_manifest(r.store)->shards[3].name) != NULL);
    rig_close(&r);
}

TEST(closing_at_any_moment)
{
    const char *dir = dataset_make(&plain);
    const struct larder_batch *b;
    struct stage_cost cost;
    struct rig r;

    rig_open(&r, dir, &plain, 20, 1 << 20);
    for (int k = 0; k < 60; k++) {
        r.o.threads = (unsigned)k % 4;
        rig_start(&r);
        for (int i = 0; i < k % 20; i++) {
            REQUIRE_EQ(stage_next(r.stage, 0, &b, &cost, NULL), 0);
            if (i % 5)
                stage_release(b);
        }
        stage_close(r.stage);
    }
    r.stage = NULL;
    rig_close(&r);
}

struct releaser {
    const struct larder_batch *batches[600];
    pthread_mutex_t lock;
    pthread_cond_t some;
    int n, released, end;
};

static void *release_main(void *arg)
{
    struct releaser *r = arg;

    pthread_mutex_lock(&r->lock);
    while (!r->end || r->released < r->n) {
        if (r->released == r->n) {
            pthread_cond_wait(&r->some, &r->lock);
            continue;
        }
        stage_release(r->batches[r->released++]);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

TEST(another_thread_may_release)
{
    struct releaser rel = {.n = 0};
    const struct larder_batch *b;
    struct larder_error err;
    struct stage_cost cost;
    struct rig r;
    pthread_t t;
    int rc;

    pthread_mutex_init(&rel.lock, NULL);
    pthread_cond_init(&rel.some, NULL);
    rig_open(&r, whole(&plain), &plain, 5, 1 << 20);
    rig_start(&r);
    pthread_create(&t, NULL, release_main, &rel);
    for (int i = 0; i < 600; i++) {
        while ((rc = stage_next(r.stage, 0, &b, &cost, &err)) == LARDER_EINVAL)
            ; /* the other thread is slow */
        CHECK_OK(rc, &err);
        pthread_mutex_lock(&rel.lock);
        rel.batches[rel.n++] = b;
        rel.end = i == 599 || rc;
        pthread_cond_signal(&rel.some);
        pthread_mutex_unlock(&rel.lock);
        if (rc)
            break;
    }
    pthread_join(t, NULL);
    rig_close(&r);
}

/* The most that was requested and not given to the caller, over two epochs; every window a whole one. */
static void windows(uint64_t fetch_size, uint64_t threshold, uint32_t batch_size)
{
    uint64_t most = 0, batches;
    struct rig r;

    rig_open(&r, whole(&plain), &plain, batch_size, 8 << 20);
    r.o.fetch_size = fetch_size;
    r.o.threshold = threshold;
    rig_start(&r);
    batches = slicing_batches(&r.o.plan.slicing, 0, plain.n);
    for (uint64_t i = 0; i < 2 * batches; i++) {
        const struct larder_batch *b = take(&r, &plain, i / batches, i % batches);
        pthread_mutex_lock(&r.stage->lock);
        most = MAX(most, r.stage->window.queued + b->n);
        pthread_mutex_unlock(&r.stage->lock);
        stage_release(b);
    }
    CHECK(most < fetch_size + MIN(threshold, 100000) + 2 * batch_size);
    rig_close(&r);
}

TEST(windows_of_odd_sizes)
{
    windows(1, 0, 1);
    windows(1, 0, 32);
    windows(37, 11, 5);
    windows(64, 64, 32);
    windows(299, 0, 10);
    windows(10, 300, 7);
    windows(100000, 0, 32); /* more than there is */
}

/* Windows run across the end of an epoch, and hold every batch that fits into them without a release. */
TEST(a_window_is_there_as_a_whole)
{
    const struct larder_batch *held[40];
    struct rig r;

    rig_open(&r, whole(&plain), &plain, 30, 8 << 20);
    r.o.fetch_size = 300;
    r.o.threshold = 300;
    rig_start(&r);
    for (int i = 0; i < 20; i++)
        held[i] = take(&r, &plain, (uint64_t)i / 10, (uint64_t)i % 10);
    for (int i = 0; i < 20; i++)
        stage_release(held[i]);
    rig_close(&r);
}

static void seeks(unsigned threads)
{
    uint64_t state = threads + 3;
    struct larder_error err;
    struct rig r;

    rig_open(&r, whole(&plain), &plain, 16, 1 << 20);
    r.o.threads = threads;
    rig_start(&r);
    const struct larder_batch *held = take(&r, &plain, 0, 0);
    for (int k = 0; k < 30; k++) {
        uint64_t epoch = rng_below(&state, 5), batch = rng_below(&state, 19);
        REQUIRE_OK(stage_seek(r.stage, epoch, 0, batch * 16, &err), &err);
        for (uint64_t i = 0; i < (uint64_t)k % 4; i++) {
            const struct larder_batch *b;
            struct stage_cost cost;
            REQUIRE_OK(stage_next(r.stage, 0, &b, &cost, &err), &err);
            CHECK_EQ(b->epoch, epoch + (batch + i) / 19);
            CHECK_EQ(b->position, (batch + i) % 19 * 16);
            for (uint32_t j = 0; j < b->n; j++)
                CHECK(sample_is(&plain, b->ordinals[j], b->values + j * F_COUNT));
            stage_release(b);
        }
        for (uint32_t j = 0; j < held->n; j++)
            CHECK(sample_is(&plain, held->ordinals[j], held->values + j * F_COUNT));
    }
    stage_release(held);
    CHECK_EQ(r.stage->n_slots <= r.stage->slots_max, 1);
    rig_close(&r);
}

TEST(seeking_leaves_held_batches_alone) { seeks(0); }
TEST(seeking_with_threads) { seeks(3); }

TEST(a_seek_mends_what_failed)
{
    const char *dir = dataset_make(&plain);
    const struct larder_batch *b;
    struct larder_error err;
    struct stage_cost cost;
    struct rig r;
    uint64_t ordinal;

    rig_open(&r, dir, &plain, 10, 4 << 20);
    order_fill(&r.o.plan.order, 0, 5, 1, &ordinal);
    damage(dir, r.store, ordinal);
    r.o.threads = 2;
    rig_start(&r);
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &err), LARDER_ECORRUPT, &err);
    REQUIRE_OK(stage_seek(r.stage, 0, 0, 10, &err), &err);
    for (uint64_t i = 1; i < 6; i++) {
        REQUIRE_OK(stage_next(r.stage, 0, &b, &cost, &err), &err);
        CHECK_EQ(b->position, i * 10);
        stage_release(b);
    }
    REQUIRE_OK(stage_seek(r.stage, 0, 0, 0, &err), &err);
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &err), LARDER_ECORRUPT, &err);
    rig_close(&r);
}

TEST(the_end_of_all_epochs)
{
    struct rig r;

    rig_open(&r, whole(&plain), &plain, 100, 1 << 20);
    r.o.epochs = 2;
    r.o.epoch = 40;
    rig_start(&r);
    for (uint64_t b = 0; b < 6; b++)
        stage_release(take(&r, &plain, 40 + b / 3, b % 3));
    rig_close(&r);
}

TEST_MAIN();
