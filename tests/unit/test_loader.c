/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/dataset.h"

#include <dirent.h>
#include <sys/wait.h>

static const struct dataset_spec spec = {1000, 256, 200, 800, 20, LARDER_COMPRESS_NONE};

static const char *spec_dir(void)
{
    static const char *dir; /* made once for all tests of this file */

    return dir ? dir : (dir = dataset_make(&spec));
}

static struct larder_dataset *open_ds(int direct)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;

    o.direct = direct;
    REQUIRE_OK(larder_dataset_open(spec_dir(), &o, &ds, &err), &err);
    return ds;
}

static struct larder_loader *open_ld(struct larder_dataset *ds, uint32_t batch_size, uint64_t epochs, int shuffle)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    o.batch_size = batch_size;
    o.seed = 17;
    o.epochs = epochs;
    o.shuffle = shuffle;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    return ld;
}

/* Reads to the next LARDER_END; the hash of the ordinals in order; checks that each came once with its bytes. */
static uint64_t read_epoch(struct larder_loader *ld, uint64_t epoch, uint32_t batch_size)
{
    uint8_t seen[1000] = {0};
    uint64_t hash = 0, position = 0, number = 0;
    const struct larder_batch *b;
    struct larder_error err;
    int rc;

    while ((rc = larder_loader_next(ld, &b, &err)) == 0) {
        CHECK_EQ(b->epoch, epoch);
        CHECK_EQ(b->number, number++);
        CHECK_EQ(b->position, position);
        CHECK(b->n == batch_size || position + b->n == spec.n);
        for (uint32_t i = 0; i < b->n; i++) {
            CHECK(b->ordinals[i] < spec.n && !seen[b->ordinals[i]]++);
            CHECK(sample_is(&spec, b->ordinals[i], b->values + (size_t)i * b->n_fields));
            hash = larder_hash64(hash, &b->ordinals[i], 8);
        }
        position += b->n;
        larder_batch_release(b);
    }
    CHECK_ERR(rc, LARDER_END, &err);
    CHECK(b == NULL);
    CHECK_EQ(position, spec.n);
    return hash;
}

static void epochs(uint32_t batch_size, int direct)
{
    struct larder_dataset *ds = open_ds(direct);
    struct larder_loader *ld = open_ld(ds, batch_size, 3, LARDER_SHUFFLE_FULL);
    uint64_t h[3];
    const struct larder_batch *b;

    for (uint64_t e = 0; e < 3; e++)
        h[e] = read_epoch(ld, e, batch_size);
    CHECK(h[0] != h[1] && h[1] != h[2] && h[0] != h[2]);
    CHECK_EQ(larder_loader_next(ld, &b, NULL), LARDER_END);
    CHECK_EQ(larder_loader_next(ld, &b, NULL), LARDER_END);
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(every_ordinal_once_batch_1) { epochs(1, LARDER_DIRECT_OFF); }
TEST(every_ordinal_once_batch_7) { epochs(7, LARDER_DIRECT_ON); }
TEST(every_ordinal_once_batch_256) { epochs(256, LARDER_DIRECT_ON); }
TEST(every_ordinal_once_batch_n) { epochs(1000, LARDER_DIRECT_OFF); }
TEST(every_ordinal_once_batch_beyond_n) { epochs(5000, LARDER_DIRECT_ON); }

TEST(without_io_uring)
{
    setenv("LARDER_NO_URING", "1", 1);
    epochs(64, LARDER_DIRECT_OFF);
    epochs(64, LARDER_DIRECT_ON);
    unsetenv("LARDER_NO_URING");
}

TEST(order_does_not_depend_on_batch_size)
{
    static const uint32_t sizes[] = {1, 33, 256, 4000};
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    uint64_t hash[ARRAY_LEN(sizes)];

    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct larder_loader *ld = open_ld(ds, sizes[i], 1, LARDER_SHUFFLE_FULL);

        hash[i] = read_epoch(ld, 0, sizes[i]);
        CHECK_EQ(hash[i], hash[0]);
        larder_loader_close(ld);
    }
    larder_dataset_close(ds);
}

TEST(shuffle_none_is_storage_order)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    struct larder_loader *ld = open_ld(ds, 100, 2, LARDER_SHUFFLE_NONE);
    const struct larder_batch *b;

    for (int e = 0; e < 2; e++) {
        uint64_t next = 0;

        while (larder_loader_next(ld, &b, NULL) == 0) {
            for (uint32_t i = 0; i < b->n; i++)
                CHECK_EQ(b->ordinals[i], next++);
            larder_batch_release(b);
        }
        CHECK_EQ(next, spec.n);
    }
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(begins_at_the_epoch_asked_for)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    struct larder_loader *a = open_ld(ds, 100, 0, LARDER_SHUFFLE_FULL), *b;
    uint64_t second;
    struct larder_error err;

    read_epoch(a, 0, 100);
    second = read_epoch(a, 1, 100);
    o.batch_size = 50;
    o.seed = 17;
    o.epoch = 1;
    o.epochs = 1;
    REQUIRE_OK(larder_loader_open(ds, &o, &b, &err), &err);
    CHECK_EQ(read_epoch(b, 1, 50), second);
    larder_loader_close(b);
    larder_loader_close(a);
    larder_dataset_close(ds);
}

TEST(two_loaders_take_turns)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    struct larder_loader *ld[2] = {open_ld(ds, 10, 1, LARDER_SHUFFLE_FULL), open_ld(ds, 10, 1, LARDER_SHUFFLE_NONE)};
    const struct larder_batch *b[2];

    for (int i = 0; i < 100; i++) {
        for (int k = 0; k < 2; k++)
            REQUIRE_EQ(larder_loader_next(ld[k], &b[k], NULL), 0);
        for (int k = 0; k < 2; k++) {
            for (uint32_t j = 0; j < b[k]->n; j++)
                CHECK(sample_is(&spec, b[k]->ordinals[j], b[k]->values + j * F_COUNT));
            larder_batch_release(b[k]);
        }
    }
    larder_loader_close(ld[0]);
    larder_loader_close(ld[1]);
    larder_dataset_close(ds);
}

static void *own_loader(void *ds)
{
    struct larder_loader *ld = open_ld(ds, 77, 2, LARDER_SHUFFLE_FULL);

    read_epoch(ld, 0, 77);
    read_epoch(ld, 1, 77);
    larder_loader_close(ld);
    return NULL;
}

TEST(a_loader_in_each_thread)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);
    pthread_t t[3];

    for (int i = 0; i < 3; i++)
        pthread_create(&t[i], NULL, own_loader, ds);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    larder_dataset_close(ds);
}

TEST(an_empty_dataset_has_epochs_without_batches)
{
    static const struct dataset_spec none = {0, 10, 10, 10, 10, LARDER_COMPRESS_NONE};
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    const struct larder_batch *b;
    struct larder_dataset *ds;
    struct larder_loader *ld;
    struct larder_error err;

    REQUIRE_OK(larder_dataset_open(dataset_make(&none), NULL, &ds, &err), &err);
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err); /* epochs without end */
    for (uint64_t e = 0; e < 3; e++) {
        CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_END);
        CHECK_OK(larder_loader_stats(ld, &s, &err), &err);
        CHECK_EQ(s.epoch, e);
        CHECK_EQ(s.samples, 0);
    }
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(stopping_anywhere)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    const struct larder_batch *b;

    for (int stop = 0; stop < 40; stop++) {
        struct larder_loader *ld = open_ld(ds, 50, 0, LARDER_SHUFFLE_FULL);

        for (int i = 0; i < stop; i++) {
            if (larder_loader_next(ld, &b, NULL) == 0 && i % 3)
                larder_batch_release(b);
        }
        larder_loader_close(ld);
    }
    larder_dataset_close(ds);
}

TEST(a_slow_consumer_finds_batches_ready)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    struct larder_loader *ld = open_ld(ds, 100, 1, LARDER_SHUFFLE_FULL);
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    const struct larder_batch *b;

    for (int i = 0; i < 10; i++) {
        usleep(20000);
        REQUIRE_EQ(larder_loader_next(ld, &b, NULL), 0);
        larder_batch_release(b);
    }
    CHECK_EQ(larder_loader_next(ld, &b, NULL), LARDER_END);
    CHECK_EQ(larder_loader_stats(ld, &s, NULL), 0);
    CHECK(s.seconds_ns >= 9 * 20000000ull);
    CHECK(s.fetch_stall_ns < s.seconds_ns / 4);
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(statistics_of_epochs)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);
    struct larder_loader *ld = open_ld(ds, 64, 2, LARDER_SHUFFLE_NONE);
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    const struct larder_batch *b;
    uint64_t bytes = 0;

    for (uint64_t e = 0; e < 2; e++) {
        bytes = 0;
        while (larder_loader_next(ld, &b, NULL) == 0) {
            for (size_t i = 0; i < (size_t)b->n * b->n_fields; i++)
                bytes += b->values[i].len;
            larder_batch_release(b);
        }
        REQUIRE_EQ(larder_loader_stats(ld, &s, NULL), 0);
        CHECK_EQ(s.struct_size, sizeof(s));
        CHECK_EQ(s.epoch, e);
        CHECK_EQ(s.samples, spec.n);
        CHECK_EQ(s.batches, 16);
        CHECK_EQ(s.bytes, bytes);
        CHECK_EQ(s.prep_stall_ns, 0);
        CHECK_EQ(s.origin.hits, spec.n);
        CHECK_EQ(s.origin.misses, 0);
        CHECK(s.origin.bytes >= bytes && s.origin.bytes < bytes + spec.n * 64);
        CHECK(s.origin.requests >= 16 && s.origin.requests <= 64); /* neighbours travel together */
        CHECK(s.seconds_ns > 0 && s.fetch_stall_ns <= s.seconds_ns);
    }
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

struct run { uint32_t world, batch_size; int last; uint64_t epoch_size; int shuffle; const uint8_t *filter; };

static struct larder_loader *open_rank(struct larder_dataset *ds, const struct run *r, uint32_t rank, const char *state)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    o.batch_size = r->batch_size;
    o.seed = 23;
    o.epochs = 4;
    o.rank = rank;
    o.world = r->world;
    o.last = r->last;
    o.epoch_size = r->epoch_size;
    o.shuffle = r->shuffle;
    o.block_samples = 50;
    o.window_blocks = 3;
    o.filter = r->filter;
    o.state = state;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    return ld;
}

/* The next `batches` batches of a rank (UINT64_MAX: to the end of the last epoch): counts each valid sample of each epoch. */
static void count_batches(struct larder_loader *ld, uint64_t batches, uint32_t (*count)[1000])
{
    const struct larder_batch *b;
    struct larder_error err;
    int rc = 0, ends = 0;

    for (uint64_t i = 0; i < batches && ends < 2;) {
        rc = larder_loader_next(ld, &b, &err);
        if (rc == LARDER_END) { /* of an epoch; twice in a row: of all */
            ends++;
            continue;
        }
        REQUIRE_OK(rc, &err);
        ends = 0;
        for (uint32_t k = 0; k < b->n; k++)
            CHECK(sample_is(&spec, b->ordinals[k], b->values + (size_t)k * b->n_fields));
        for (uint32_t k = 0; k < b->valid; k++)
            count[b->epoch][b->ordinals[k]]++;
        larder_batch_release(b);
        i++;
    }
}

TEST(ranks_deliver_each_sample_once_an_epoch)
{
    static const struct run runs[] = {{3, 7, LARDER_LAST_SHORT, 0, LARDER_SHUFFLE_FULL, NULL}, {8, 30, LARDER_LAST_PAD, 0, LARDER_SHUFFLE_BLOCK, NULL},
                                      {64, 32, LARDER_LAST_SHORT, 0, LARDER_SHUFFLE_FULL, NULL}, {2, 500, LARDER_LAST_DROP, 0, LARDER_SHUFFLE_BLOCK, NULL}};
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);

    for (size_t k = 0; k < ARRAY_LEN(runs); k++) {
        uint32_t (*count)[1000] = calloc(4, sizeof(*count));
        for (uint32_t rank = 0; rank < runs[k].world; rank++) {
            struct larder_loader *ld = open_rank(ds, &runs[k], rank, NULL);
            count_batches(ld, UINT64_MAX, count);
            larder_loader_close(ld);
        }
        for (int e = 0; e < 4; e++)
            for (uint64_t i = 0; i < spec.n; i++)
                CHECK_EQ(count[e][i], 1);
        free(count);
    }
    larder_dataset_close(ds);
}

/* Stop anywhere, go on with another world and batch size, and again with a third: nothing twice, nothing left out. */
TEST(a_run_goes_on_at_another_world_size)
{
    static const struct run runs[3] = {{4, 10, LARDER_LAST_SHORT, 0, LARDER_SHUFFLE_FULL, NULL}, {2, 33, LARDER_LAST_SHORT, 0, LARDER_SHUFFLE_FULL, NULL},
                                       {1, 256, LARDER_LAST_SHORT, 0, LARDER_SHUFFLE_FULL, NULL}};
    static const uint64_t batches[3][2] = {{0, 0}, {7, 11}, {25, 30}}; /* before the first and the second change */
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);

    for (size_t k = 0; k < ARRAY_LEN(batches); k++) {
        char state[LARDER_STATE_MAX] = "", text[LARDER_STATE_MAX];
        uint32_t (*count)[1000] = calloc(4, sizeof(*count));
        for (int part = 0; part < 3; part++) {
            for (uint32_t rank = 0; rank < runs[part].world; rank++) {
                struct larder_loader *ld = open_rank(ds, &runs[part], rank, part ? state : NULL);
                struct larder_error err;
                count_batches(ld, part < 2 ? batches[k][part] : UINT64_MAX, count);
                REQUIRE_OK(larder_loader_state(ld, text, sizeof(text), &err), &err);
                larder_loader_close(ld);
            }
            memcpy(state, text, sizeof(state));
        }
        for (int e = 0; e < 4; e++)
            for (uint64_t i = 0; i < spec.n; i++)
                CHECK_EQ(count[e][i], 1);
        struct larder_loader *ld = open_rank(ds, &runs[0], 1, state); /* at the very end there is nothing */
        const struct larder_batch *b;
        CHECK_EQ(larder_loader_next(ld, &b, NULL), LARDER_END);
        larder_loader_close(ld);
        free(count);
    }
    larder_dataset_close(ds);
}

TEST(filters_and_epoch_sizes)
{
    uint8_t filter[125] = {0};
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);
    uint32_t (*count)[1000] = calloc(4, sizeof(*count));

    for (uint64_t i = 0; i < spec.n; i += 3)
        filter[i / 8] |= (uint8_t)(1u << i % 8);
    struct run r = {2, 10, LARDER_LAST_SHORT, 0, LARDER_SHUFFLE_FULL, filter};
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct larder_loader *ld = open_rank(ds, &r, rank, NULL);
        count_batches(ld, UINT64_MAX, count);
        struct larder_loader_stats s = {.struct_size = sizeof(s)};
        CHECK_EQ(larder_loader_stats(ld, &s, NULL), LARDER_OK);
        CHECK(s.order_bytes > 125 && s.order_bytes < 300);
        larder_loader_close(ld);
    }
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(count[2][i], i % 3 == 0);
    memset(count, 0, 4 * sizeof(*count));
    r = (struct run){1, 64, LARDER_LAST_SHORT, 250, LARDER_SHUFFLE_FULL, NULL}; /* four epochs are one pass */
    struct larder_loader *ld = open_rank(ds, &r, 0, NULL);
    count_batches(ld, UINT64_MAX, count);
    larder_loader_close(ld);
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(count[0][i] + count[1][i] + count[2][i] + count[3][i], 1);
    free(count);
    larder_dataset_close(ds);
}

/* The hash of ordinals and bytes of two epochs. */
static uint64_t data_hash(struct larder_dataset *ds, uint32_t threads, uint64_t fetch_size, uint64_t threshold)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;
    uint64_t h = 0;

    o.batch_size = 33;
    o.seed = 5;
    o.epochs = 2;
    o.threads = threads;
    o.fetch_size = fetch_size;
    o.threshold = threshold;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    for (int ends = 0; ends < 2;) {
        int rc = larder_loader_next(ld, &b, &err);
        if (rc == LARDER_END) {
            ends++;
            continue;
        }
        REQUIRE_OK(rc, &err);
        h = larder_hash64(h, b->ordinals, b->n * sizeof(*b->ordinals));
        for (size_t i = 0; i < (size_t)b->n * b->n_fields; i++)
            h = larder_hash64(h, b->values[i].data, b->values[i].len);
        larder_batch_release(b);
    }
    larder_loader_close(ld);
    return h;
}

TEST(the_same_bytes_with_any_threads_windows_and_tiers)
{
    static const struct dataset_spec specs[] = {{1000, 256, 200, 800, 20, LARDER_COMPRESS_NONE}, {1000, 256, 200, 800, 20, LARDER_COMPRESS_ZSTD}};
    static const uint32_t threads[] = {0, 1, 3, 8};
    static const uint64_t windows[][2] = {{0, 0}, {77, 13}, {0, 200}, {500, 0}};
    uint64_t want = 0;

    for (int k = 0; k < 2; k++) {
        const char *dir = dataset_make(&specs[k]);
        for (int cached = 0; cached < 2; cached++) {
            struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
            struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
            struct larder_dataset *ds;
            struct larder_error err;
            co.name = NULL;
            co.dram_bytes = 16 << 20;
            if (cached)
                REQUIRE_OK(larder_cache_open(&co, &o.cache, &err), &err);
            REQUIRE_OK(larder_dataset_open(dir, &o, &ds, &err), &err);
            want = want ? want : data_hash(ds, 0, 0, 0);
            for (size_t i = 0; i < ARRAY_LEN(threads); i++)
                CHECK_EQ(data_hash(ds, threads[i], windows[i][0], windows[i][1]), want);
            larder_dataset_close(ds);
            if (cached)
                larder_cache_close(o.cache);
        }
    }
}

struct consumers { struct larder_loader *ld; _Atomic uint32_t seen[1000]; _Atomic unsigned ends; pthread_barrier_t start; };

static void *consume(void *arg)
{
    struct consumers *c = arg;
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t last = 0;
    int rc;

    pthread_barrier_wait(&c->start);
    while ((rc = larder_loader_next(c->ld, &b, &err)) == 0) {
        CHECK(b->number == 0 || b->number > last || last == 0);
        last = b->number;
        for (uint32_t i = 0; i < b->n; i++) {
            CHECK(sample_is(&spec, b->ordinals[i], b->values + (size_t)i * b->n_fields));
            atomic_fetch_add(&c->seen[b->ordinals[i]], 1);
        }
        larder_batch_release(b);
    }
    CHECK_ERR(rc, LARDER_END, &err);
    atomic_fetch_add(&c->ends, 1);
    return NULL;
}

TEST(several_threads_share_a_loader)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);
    struct consumers c = {.ld = open_ld(ds, 9, 1, LARDER_SHUFFLE_FULL)};
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    pthread_t t[4];

    pthread_barrier_init(&c.start, NULL, 4);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, consume, &c);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    CHECK_EQ(c.ends, 4);
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(c.seen[i], 1);
    CHECK_EQ(larder_loader_stats(c.ld, &s, NULL), 0);
    CHECK_EQ(s.samples, spec.n);
    CHECK_EQ(s.batches, 112);
    pthread_barrier_destroy(&c.start);
    larder_loader_close(c.ld);
    larder_dataset_close(ds);
}

TEST(seeking_and_states)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);
    struct run r = {2, 10, LARDER_LAST_SHORT, 0, LARDER_SHUFFLE_FULL, NULL};
    struct larder_loader *ld = open_rank(ds, &r, 1, NULL);
    struct order order = {.n = spec.n, .seed = 23, .shuffle = LARDER_SHUFFLE_FULL};
    const struct larder_batch *b, *held;
    char state[LARDER_STATE_MAX];
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    struct larder_error err;
    uint64_t want[10];

    REQUIRE_OK(larder_loader_next(ld, &held, &err), &err);
    REQUIRE_OK(larder_loader_seek(ld, 2, 333, &err), &err);
    for (uint64_t i = 0; i < 3; i++) {
        REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
        CHECK_EQ(b->epoch, 2);
        CHECK_EQ(b->number, i);
        CHECK_EQ(b->position, 333 + i * 20 + 10);
        order_fill(&order, 2, b->position, 10, want);
        CHECK_MEM(b->ordinals, want, sizeof(want));
        larder_batch_release(b);
    }
    REQUIRE_OK(larder_loader_stats(ld, &s, &err), &err);
    CHECK(s.epoch == 2 && s.samples == 30);
    REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
    REQUIRE_OK(larder_loader_seek(ld, 0, 0, &err), &err);
    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
    CHECK(b->epoch == 0 && b->position == 10);
    CHECK_MEM(b->ordinals, held->ordinals, 80);
    larder_batch_release(b);
    REQUIRE_OK(larder_loader_load_state(ld, state, &err), &err);
    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
    CHECK(b->epoch == 2 && b->number == 0 && b->position == 333 + 3 * 20 + 10);
    larder_batch_release(b);
    for (uint32_t k = 0; k < held->n; k++)
        CHECK(sample_is(&spec, held->ordinals[k], held->values + (size_t)k * held->n_fields));
    larder_batch_release(held);

    CHECK_ERR(larder_loader_seek(ld, 5, 0, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_loader_seek(ld, 1, spec.n + 1, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_loader_load_state(ld, "{}", &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_loader_load_state(ld, NULL, &err), LARDER_EINVAL, &err);
    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err); /* as if nothing had been asked */
    CHECK_EQ(b->position, 333 + 4 * 20 + 10);
    larder_batch_release(b);
    REQUIRE_OK(larder_loader_seek(ld, 3, spec.n, &err), &err);
    CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_END); /* of the last epoch, and of all */
    CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_END);
    REQUIRE_OK(larder_loader_seek(ld, 4, 0, &err), &err);
    CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_END);
    REQUIRE_OK(larder_loader_seek(ld, 3, spec.n - 20, &err), &err);
    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
    larder_batch_release(b);
    CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_END);
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

/* Numbers of open descriptors and of threads. */
static void resources(unsigned out[2])
{
    static const char *const folders[2] = {"/proc/self/fd", "/proc/self/task"};

    for (int i = 0; i < 2; i++) {
        DIR *d = opendir(folders[i]);
        REQUIRE(d != NULL);
        for (out[i] = 0; readdir(d); out[i]++)
            ;
        closedir(d);
    }
}

TEST(opened_and_closed_a_thousand_times)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);
    unsigned before[2] = {0}, after[2] = {0};
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;

    o.batch_size = 20;
    o.staging_bytes = 1 << 20;
    for (uint32_t i = 0; i < 1000; i++) {
        o.threads = i % 3;
        REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
        for (uint32_t k = 0; k < i % 5; k++)
            if (larder_loader_next(ld, &b, &err) == 0 && k % 2)
                larder_batch_release(b);
        if (i % 7 == 0)
            REQUIRE_OK(larder_loader_seek(ld, 3, 40, &err), &err);
        larder_loader_close(ld);
        if (i == 10)
            resources(before);
    }
    resources(after);
    CHECK_EQ(after[0], before[0]);
    CHECK_EQ(after[1], before[1]);
    larder_dataset_close(ds);
}

TEST(a_window_that_cannot_fit_is_refused)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);
    struct larder_loader *ld;
    struct larder_error err;

    o.staging_bytes = 256 << 10;
    o.batch_size = 10;
    o.fetch_size = 300;
    o.threshold = 299;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "fetch_size 300 and threshold 299") && strstr(err.message, "262144"));
    o.threshold = 0;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    larder_loader_close(ld);
    o.threads = 1025;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "threads"));
    larder_dataset_close(ds);
}

TEST(states_and_ranks_that_do_not_fit_are_refused)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_OFF);
    struct larder_loader *ld;
    struct larder_error err;
    char state[LARDER_STATE_MAX];

    REQUIRE_OK(larder_loader_open(ds, NULL, &ld, &err), &err);
    CHECK_ERR(larder_loader_state(ld, state, 20, &err), LARDER_EINVAL, &err);
    REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
    larder_loader_close(ld);
    o.state = state;
    o.seed = 5;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "another seed: 0 then, 5 now"));
    o.state = NULL;
    o.rank = o.world = 2;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    o.rank = 1;
    o.batch_size = 501;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "no whole batch of 1002"));
    uint64_t order[2] = {3, 1000};
    o.order = order;
    o.n_order = 2;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_ENOTFOUND, &err);
    larder_dataset_close(ds);
}

TEST(bad_options_are_named)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    struct larder_loader *ld = (void *)1;
    struct larder_error err;

    CHECK_ERR(larder_loader_open(NULL, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(ld == NULL);
    CHECK_ERR(larder_loader_open(ds, &o, NULL, &err), LARDER_EINVAL, &err);
    o.shuffle = 7;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "shuffle") != NULL);
    o.shuffle = 0;
    o.staging_bytes = 100;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "staging_bytes") != NULL);
    o.struct_size = 8;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "struct_size") != NULL);
    CHECK_ERR(larder_loader_next(NULL, NULL, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_loader_stats(NULL, NULL, &err), LARDER_EINVAL, &err);
    larder_batch_release(NULL);
    larder_loader_close(NULL);
    larder_dataset_close(ds);
}

TEST(a_larger_staging_option_is_named_when_it_is_too_small)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;

    o.staging_bytes = 65536;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    CHECK_ERR(larder_loader_next(ld, &b, &err), LARDER_ENOMEM, &err);
    CHECK(strstr(err.message, "staging_bytes") != NULL);
    CHECK_ERR(larder_loader_next(ld, &b, &err), LARDER_ENOMEM, &err);
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(forked_children_are_refused_and_may_close)
{
    struct larder_dataset *ds = open_ds(LARDER_DIRECT_AUTO);
    struct larder_loader *ld = open_ld(ds, 32, 0, LARDER_SHUFFLE_FULL);
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    const struct larder_batch *b, *other;
    struct larder_error err;
    int status = -1;
    pid_t pid;

    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
    pid = fork();
    if (pid == 0) {
        int bad = larder_loader_next(ld, &other, &err) != LARDER_EFORK;

        bad |= larder_loader_stats(ld, &s, &err) != LARDER_EFORK;
        larder_batch_release(b);
        larder_loader_close(ld);
        larder_dataset_close(ds);
        _exit(bad);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    for (uint32_t i = 0; i < b->n; i++)
        CHECK(sample_is(&spec, b->ordinals[i], b->values + i * F_COUNT));
    larder_batch_release(b);
    for (int i = 0; i < 40; i++)
        if (larder_loader_next(ld, &b, &err) == 0)
            larder_batch_release(b);
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST_MAIN();
