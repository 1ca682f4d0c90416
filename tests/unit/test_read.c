/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/dataset.h"

#include <sys/wait.h>

static const struct dataset_spec small = {3000, 700, 300, 1500, 30, LARDER_COMPRESS_NONE};
static const struct dataset_spec packed = {500, 100, 100, 600, 2000, LARDER_COMPRESS_ZSTD};
static const struct dataset_spec large = {40, 9, 10, 150000, 40000, LARDER_COMPRESS_ZSTD}; /* some have a CRC a field */

static struct larder_dataset *open_at(const char *dir, int direct)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;

    o.direct = direct;
    REQUIRE_OK(larder_dataset_open(dir, &o, &ds, &err), &err);
    return ds;
}

static void read_randomly(const struct dataset_spec *d, int direct, size_t most)
{
    struct larder_dataset *ds = open_at(dataset_make(d), direct);
    struct larder_sample *samples = calloc(most, sizeof(*samples));
    uint64_t *ordinals = calloc(most, sizeof(*ordinals)), state = 1;
    struct larder_error err;

    for (int k = 0; k < 20; k++) {
        size_t n = 1 + rng_below(&state, most);

        for (size_t i = 0; i < n; i++)
            ordinals[i] = rng_below(&state, d->n); /* repeats among them */
        REQUIRE_OK(larder_dataset_read(ds, ordinals, n, NULL, samples, &err), &err);
        for (size_t i = 0; i < n; i++) {
            CHECK_EQ(samples[i].ordinal, ordinals[i]);
            CHECK_EQ(samples[i].n_fields, F_COUNT);
            CHECK(sample_is(d, ordinals[i], samples[i].fields));
        }
        larder_samples_release(samples, n);
        CHECK(samples[n - 1].fields == NULL && samples[n - 1].owner == NULL);
    }
    free(samples);
    free(ordinals);
    larder_dataset_close(ds);
}

TEST(random_reads) { read_randomly(&small, LARDER_DIRECT_OFF, 300); }
TEST(random_reads_direct) { read_randomly(&small, LARDER_DIRECT_ON, 300); }
TEST(random_reads_compressed) { read_randomly(&packed, LARDER_DIRECT_OFF, 300); }
TEST(random_reads_large) { read_randomly(&large, LARDER_DIRECT_ON, 30); }
TEST(more_than_one_piece) { read_randomly(&packed, LARDER_DIRECT_OFF, 5000); }

TEST(without_io_uring)
{
    setenv("LARDER_NO_URING", "1", 1);
    read_randomly(&small, LARDER_DIRECT_OFF, 100);
    read_randomly(&large, LARDER_DIRECT_ON, 20);
    unsetenv("LARDER_NO_URING");
}

TEST(one_sample_very_often)
{
    struct larder_dataset *ds = open_at(dataset_make(&small), LARDER_DIRECT_OFF);
    struct larder_sample samples[200] = {0};
    uint64_t ordinals[200];
    struct larder_error err;

    for (int i = 0; i < 200; i++)
        ordinals[i] = 1234;
    REQUIRE_OK(larder_dataset_read(ds, ordinals, 200, NULL, samples, &err), &err);
    for (int i = 0; i < 200; i++)
        CHECK(sample_is(&small, 1234, samples[i].fields));
    larder_samples_release(samples, 200);
    larder_dataset_close(ds);
}

static void single_fields(const struct dataset_spec *d, int direct)
{
    static const uint32_t sets[][4] = {{F_LABEL}, {F_IMAGE}, {F_TEXT}, {F_TEXT, F_IMAGE}, {F_LABEL, F_LABEL, F_IMAGE, F_TEXT}};
    static const size_t counts[] = {1, 1, 1, 2, 4};
    struct larder_read_options o = LARDER_READ_OPTIONS_INIT;
    struct larder_dataset *ds = open_at(dataset_make(d), direct);
    struct larder_sample whole[40] = {0}, part[40] = {0};
    uint64_t ordinals[40], state = 4;
    struct larder_error err;

    for (size_t k = 0; k < ARRAY_LEN(sets); k++) {
        for (int i = 0; i < 40; i++)
            ordinals[i] = rng_below(&state, d->n);
        o.fields = sets[k];
        o.n_fields = counts[k];
        REQUIRE_OK(larder_dataset_read(ds, ordinals, 40, NULL, whole, &err), &err);
        REQUIRE_OK(larder_dataset_read(ds, ordinals, 40, &o, part, &err), &err);
        for (int i = 0; i < 40; i++) {
            CHECK_EQ(part[i].n_fields, counts[k]);
            for (size_t f = 0; f < counts[k]; f++) {
                const struct larder_value *have = &part[i].fields[f], *want = &whole[i].fields[sets[k][f]];

                CHECK_EQ(!have->data, !want->data);
                REQUIRE_EQ(have->len, want->len);
                CHECK_MEM(have->data, want->data, want->len);
            }
        }
        larder_samples_release(whole, 40);
        larder_samples_release(part, 40);
    }
    larder_dataset_close(ds);
}

TEST(single_fields_of_small_records) { single_fields(&small, LARDER_DIRECT_OFF); }
TEST(single_fields_of_compressed_records) { single_fields(&packed, LARDER_DIRECT_ON); }
TEST(single_fields_of_large_records) { single_fields(&large, LARDER_DIRECT_OFF); }
TEST(single_fields_of_large_records_direct) { single_fields(&large, LARDER_DIRECT_ON); }

TEST(releasing_in_any_order_and_after_close)
{
    struct larder_dataset *ds = open_at(dataset_make(&small), LARDER_DIRECT_OFF);
    struct larder_sample samples[100] = {0};
    uint64_t ordinals[100], state = 5;
    struct larder_error err;

    for (int i = 0; i < 100; i++)
        ordinals[i] = (uint64_t)i * 29;
    REQUIRE_OK(larder_dataset_read(ds, ordinals, 50, NULL, samples, &err), &err);
    REQUIRE_OK(larder_dataset_read(ds, ordinals + 50, 50, NULL, samples + 50, &err), &err);
    for (int i = 0; i < 60; i++)
        larder_samples_release(&samples[rng_below(&state, 100)], 1);
    larder_dataset_close(ds);
    for (int i = 0; i < 100; i++)
        if (samples[i].owner)
            CHECK(sample_is(&small, samples[i].ordinal, samples[i].fields));
    larder_samples_release(samples, 100);
    larder_samples_release(samples, 100);
    larder_samples_release(NULL, 0);
}

/* Changes one byte in the file of the record. */
static void flip(const char *dir, const struct larder_location *loc, uint64_t at)
{
    char path[400];
    FILE *f;
    int c;

    snprintf(path, sizeof(path), "%s/shards/%s", dir, loc->shard);
    REQUIRE((f = fopen(path, "r+b")) != NULL);
    fseek(f, (long)at, SEEK_SET);
    c = fgetc(f);
    fseek(f, (long)at, SEEK_SET);
    fputc(c ^ 4, f);
    fclose(f);
}

TEST(damage_is_named_and_fills_nothing)
{
    const char *dir = dataset_make(&packed);
    struct larder_dataset *ds = open_at(dir, LARDER_DIRECT_OFF);
    struct larder_sample samples[5000] = {0};
    struct larder_location loc;
    struct larder_error err;
    uint64_t ordinals[5000];
    char where[100];

    for (uint64_t i = 0; i < 5000; i++)
        ordinals[i] = i % packed.n == 333 ? 0 : i % packed.n;
    ordinals[4998] = 333; /* in the last piece */
    REQUIRE_OK(larder_dataset_locate(ds, 333, &loc, &err), &err);
    CHECK_EQ(loc.shard_no, 3);
    CHECK_EQ(loc.slot, 33);
    flip(dir, &loc, loc.offset + loc.stored_len - 1);
    CHECK_ERR(larder_dataset_read(ds, ordinals, 5000, NULL, samples, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, loc.shard) && strstr(err.message, "slot 33"));
    snprintf(where, sizeof(where), "offset %llu", (unsigned long long)loc.offset);
    CHECK(strstr(err.message, where) != NULL);
    for (int i = 0; i < 5000; i++)
        CHECK(samples[i].owner == NULL && samples[i].fields == NULL);
    CHECK_OK(larder_dataset_read(ds, ordinals, 4998, NULL, samples, &err), &err);
    larder_samples_release(samples, 4998);
    larder_dataset_close(ds);
}

TEST(damage_in_a_field_that_nobody_wants_is_not_read)
{
    const char *dir = dataset_make(&large);
    struct larder_dataset *ds = open_at(dir, LARDER_DIRECT_OFF);
    struct larder_read_options o = LARDER_READ_OPTIONS_INIT;
    static const uint32_t label = F_LABEL, image = F_IMAGE;
    struct larder_sample sample = {0};
    struct larder_location loc;
    struct larder_error err;
    uint64_t i = 0;

    while (sample_len(&large, i) < 100000 || !sample_has_image(i))
        i++;
    REQUIRE_OK(larder_dataset_locate(ds, i, &loc, &err), &err);
    flip(dir, &loc, loc.offset + loc.stored_len - 10);
    o.n_fields = 1;
    o.fields = &label;
    REQUIRE_OK(larder_dataset_read(ds, &i, 1, &o, &sample, &err), &err);
    CHECK_EQ(get_u64(sample.fields[0].data), i % 10);
    larder_samples_release(&sample, 1);
    o.fields = &image;
    CHECK_ERR(larder_dataset_read(ds, &i, 1, &o, &sample, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, loc.shard) != NULL);
    larder_dataset_close(ds);
}

TEST(bad_arguments_are_named)
{
    struct larder_dataset *ds = open_at(dataset_make(&small), LARDER_DIRECT_OFF);
    struct larder_read_options o = LARDER_READ_OPTIONS_INIT;
    struct larder_sample s = {0};
    uint64_t ordinal = small.n;
    uint32_t field = 3;
    struct larder_error err;
    const void *key = "";
    size_t len = 0;

    CHECK_ERR(larder_dataset_read(ds, &ordinal, 1, NULL, &s, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "3000") != NULL);
    CHECK_ERR(larder_dataset_read(NULL, &ordinal, 1, NULL, &s, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_read(ds, NULL, 1, NULL, &s, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_read(ds, &ordinal, 1, NULL, NULL, &err), LARDER_EINVAL, &err);
    CHECK_OK(larder_dataset_read(ds, NULL, 0, NULL, NULL, &err), &err);
    o.fields = &field;
    CHECK_ERR(larder_dataset_read(ds, &ordinal, 1, &o, &s, &err), LARDER_EINVAL, &err);
    o.n_fields = 1;
    CHECK_ERR(larder_dataset_read(ds, &ordinal, 1, &o, &s, &err), LARDER_ENOTFOUND, &err);
    o.fields = NULL;
    CHECK_ERR(larder_dataset_read(ds, &ordinal, 1, &o, &s, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_lookup(ds, &key, &len, 1, &ordinal, &err), LARDER_EINVAL, &err);
    len = 1025;
    CHECK_ERR(larder_dataset_lookup(ds, &key, &len, 1, &ordinal, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_lookup(ds, NULL, &len, 1, &ordinal, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_dataset_get(ds, NULL, 4, &s, &err), LARDER_EINVAL, &err);
    CHECK(s.owner == NULL);
    larder_dataset_close(ds);
}

struct reading {
    struct larder_dataset *ds;
    uint64_t seed;
};

static void *reading(void *arg)
{
    struct reading *r = arg;
    struct larder_read_options o = LARDER_READ_OPTIONS_INIT;
    static const uint32_t fields[] = {F_TEXT, F_LABEL};
    struct larder_sample samples[50] = {0};
    uint64_t ordinals[50];
    struct larder_error err;

    o.fields = fields;
    o.n_fields = 2;
    for (int k = 0; k < 30; k++) {
        for (int i = 0; i < 50; i++)
            ordinals[i] = rng_below(&r->seed, packed.n);
        CHECK_OK(larder_dataset_read(r->ds, ordinals, 50, k % 2 ? &o : NULL, samples, &err), &err);
        for (int i = 0; i < 50; i++) {
            if (k % 2)
                CHECK_EQ(get_u64(samples[i].fields[1].data), ordinals[i] % 10);
            else
                CHECK(sample_is(&packed, ordinals[i], samples[i].fields));
        }
        larder_samples_release(samples, 50);
    }
    return NULL;
}

TEST(many_threads)
{
    struct larder_dataset *ds = open_at(dataset_make(&packed), LARDER_DIRECT_OFF);
    struct reading r[4];
    pthread_t t[4];

    for (int i = 0; i < 4; i++) {
        r[i] = (struct reading){ds, (uint64_t)i};
        pthread_create(&t[i], NULL, reading, &r[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    larder_dataset_close(ds);
}

TEST(a_forked_child_is_refused_and_may_release)
{
    const char *dir = dataset_make(&small);
    struct larder_dataset *ds = open_at(dir, LARDER_DIRECT_OFF), *own;
    struct larder_sample s = {0}, mine = {0};
    struct larder_error err;
    uint64_t ordinal = 7;
    int status = -1;
    pid_t pid;

    REQUIRE_OK(larder_dataset_read(ds, &ordinal, 1, NULL, &s, &err), &err);
    pid = fork();
    if (pid == 0) {
        int bad = larder_dataset_read(ds, &ordinal, 1, NULL, &mine, &err) != LARDER_EFORK;

        bad |= !sample_is(&small, 7, s.fields);
        larder_samples_release(&s, 1);
        larder_dataset_close(ds);
        bad |= larder_dataset_open(dir, NULL, &own, &err) != 0; /* again, as the message says */
        bad |= larder_dataset_read(own, &ordinal, 1, NULL, &mine, &err) != 0;
        bad |= !sample_is(&small, 7, mine.fields);
        larder_samples_release(&mine, 1);
        larder_dataset_close(own);
        _exit(bad);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK(sample_is(&small, 7, s.fields));
    larder_samples_release(&s, 1);
    larder_dataset_close(ds);
}

TEST_MAIN();
