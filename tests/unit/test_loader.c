/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/dataset.h"

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
