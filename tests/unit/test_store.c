/* SPDX-License-Identifier: Apache-2.0 */
/* The reader: extents, records, single fields, keys and columns of datasets whose every byte is known. */
#include "store/store_int.h"
#include "tests/model/sim_s3.h"
#include "tests/unit/dataset.h"

struct fixture { struct store_io *io; struct store *s; struct decoder *d; };

static void set_up(struct fixture *f, const struct dataset_spec *spec, size_t table_bytes)
{
    struct larder_error err = {0};
    REQUIRE_OK(io_file_open(dataset_make(spec), false, 0, &f->io, &err), &err);
    REQUIRE_OK(store_open(f->io, &(struct store_options){.table_bytes = table_bytes}, &f->s, &err), &err);
    REQUIRE_OK(decoder_new(&f->d, &err), &err);
}

static void tear_down(struct fixture *f)
{
    decoder_free(f->d);
    store_close(f->s);
    io_close(f->io);
}

static void *stored_bytes(struct fixture *f, const struct extent *e)
{
    struct larder_error err = {0};
    char path[320];
    uint8_t *p = malloc(e->stored_len + 1);
    shard_path(store_manifest(f->s)->shards[e->shard].name, path);
    REQUIRE_OK(io_read(f->io, path, e->offset, p, e->stored_len, &err), &err);
    return p;
}

static void check_sample(struct fixture *f, const struct dataset_spec *spec, uint64_t ordinal, const struct extent *e)
{
    struct larder_error err = {0};
    struct larder_value v[F_COUNT];
    AUTO_FREE void *stored = stored_bytes(f, e);
    AUTO_FREE void *scratch = malloc(store_decode_scratch(e) + 1);
    REQUIRE_OK(store_decode(f->s, f->d, e, stored, scratch, v, &err), &err);
    REQUIRE(sample_is(spec, ordinal, v));
}

TEST(random_reads_small_and_large_tables)
{
    static const struct dataset_spec spec = {.n = 3000, .shard_samples = 451, .len_min = 5, .len_spread = 900, .text_len = 30,
                                             .compression = LARDER_COMPRESS_ZSTD};
    for (int round = 0; round < 2; round++) { /* pages evicted all the time, and never */
        struct fixture f;
        struct larder_error err = {0};
        uint64_t ordinals[700], rng = 5;
        struct extent e[700];
        set_up(&f, &spec, round ? 0 : 40000);
        for (int i = 0; i < 700; i++)
            ordinals[i] = rng_below(&rng, spec.n);
        for (int again = 0; again < 2; again++) {
            REQUIRE_OK(store_locate(f.s, ordinals, 700, e, &err), &err);
            for (int i = 0; i < 700; i += 7)
                check_sample(&f, &spec, ordinals[i], &e[i]);
        }
        tear_down(&f);
    }
}

TEST(beyond_the_end)
{
    static const struct dataset_spec spec = {.n = 10, .shard_samples = 4, .len_min = 5, .text_len = 3};
    struct fixture f;
    struct larder_error err = {0};
    struct extent e[2];
    size_t len;
    uint8_t key[8];
    set_up(&f, &spec, 0);
    uint64_t ordinals[2] = {9, 10};
    CHECK_ERR(store_locate(f.s, ordinals, 2, e, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "10") != NULL);
    CHECK_ERR(store_key(f.s, 10, key, 8, &len, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(store_column(f.s, F_LABEL, 8, 3, key, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(store_column(f.s, F_IMAGE, 0, 1, key, &err), LARDER_EINVAL, &err);
    CHECK_ERR(store_column(f.s, 9, 0, 1, key, &err), LARDER_ENOTFOUND, &err);
    tear_down(&f);
}

TEST(keys_and_columns)
{
    static const struct dataset_spec spec = {.n = 1200, .shard_samples = 500, .len_min = 5, .text_len = 3};
    struct fixture f;
    struct larder_error err = {0};
    set_up(&f, &spec, 0);
    for (uint64_t i = 0; i < spec.n; i += 37) {
        char want[64];
        uint8_t got[LARDER_KEY_MAX];
        size_t len = 0, n = sample_key(i, want);
        REQUIRE_OK(store_key(f.s, i, got, sizeof(got), &len, &err), &err);
        REQUIRE_EQ(len, n);
        REQUIRE_MEM(got, want, n);
        memset(got, 0, 8);
        REQUIRE_OK(store_key(f.s, i, got, 3, &len, &err), &err); /* cut to the room there is */
        CHECK_EQ(len, n);
        CHECK_MEM(got, want, 3);
        CHECK_EQ(got[3], 0);
    }
    int64_t labels[1200];
    REQUIRE_OK(store_column(f.s, F_LABEL, 0, 1200, labels, &err), &err);
    for (int i = 0; i < 1200; i++)
        REQUIRE_EQ(labels[i], i % 10);
    REQUIRE_OK(store_column(f.s, F_LABEL, 499, 2, labels, &err), &err); /* across shards */
    CHECK_EQ(labels[0], 9);
    CHECK_EQ(labels[1], 0);
    tear_down(&f);
}

TEST(single_fields_of_large_records)
{
    static const struct dataset_spec spec = {.n = 20, .shard_samples = 20, .len_min = 90000, .len_spread = 20000, .text_len = 4000,
                                             .compression = LARDER_COMPRESS_ZSTD};
    struct fixture f;
    struct larder_error err = {0};
    set_up(&f, &spec, 0);
    for (uint64_t i = 0; i < spec.n; i++) {
        static const uint32_t want[3] = {F_TEXT, F_IMAGE, F_LABEL};
        struct field_range ranges[3];
        struct larder_value got[3], all[F_COUNT];
        struct extent e;
        REQUIRE_OK(store_locate(f.s, &i, 1, &e, &err), &err);
        AUTO_FREE uint8_t *stored = stored_bytes(&f, &e);
        AUTO_FREE uint8_t *scratch = malloc(store_decode_scratch(&e) + 1);
        if (!sample_has_image(i)) {
            CHECK_EQ(store_head_len(f.s, &e), 0); /* small: read whole */
            continue;
        }
        REQUIRE(store_head_len(f.s, &e) > 0);
        REQUIRE_OK(store_field_ranges(f.s, &e, stored, want, 3, ranges, &err), &err);
        CHECK(ranges[0].len < 1000); /* the packed part is compressed */
        CHECK_EQ(ranges[1].len, sample_len(&spec, i));
        const void *parts[3] = {stored + ranges[0].offset, stored + ranges[1].offset, stored + ranges[2].offset};
        REQUIRE_OK(store_decode_fields(f.s, f.d, &e, stored, want, 3, parts, scratch, got, &err), &err);
        all[F_TEXT] = got[0];
        all[F_IMAGE] = got[1];
        all[F_LABEL] = got[2];
        CHECK(sample_is(&spec, i, all));
        stored[ranges[1].offset + 7] ^= 1; /* each field is checked by itself */
        CHECK_ERR(store_decode_fields(f.s, f.d, &e, stored, want, 3, parts, scratch, got, &err), LARDER_ECORRUPT, &err);
        CHECK(strstr(err.message, "image") != NULL);
        CHECK_OK(store_decode_fields(f.s, f.d, &e, stored, want, 1, parts, scratch, got, &err), &err);
    }
    tear_down(&f);
}

TEST(damage_names_the_place)
{
    static const struct dataset_spec spec = {.n = 30, .shard_samples = 10, .len_min = 500, .text_len = 10};
    struct fixture f;
    struct larder_error err = {0};
    struct larder_value v[F_COUNT];
    struct extent e;
    uint64_t ordinal = 25;
    set_up(&f, &spec, 0);
    REQUIRE_OK(store_locate(f.s, &ordinal, 1, &e, &err), &err);
    AUTO_FREE uint8_t *stored = stored_bytes(&f, &e);
    stored[100] ^= 2;
    CHECK_ERR(store_decode(f.s, f.d, &e, stored, NULL, v, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "slot 5") && strstr(err.message, "ordinal 25") && strstr(err.message, store_manifest(f.s)->shards[2].name));
    tear_down(&f);
}

TEST(trips_to_a_bucket)
{
    static const struct dataset_spec spec = {.n = 20000, .shard_samples = 700, .len_min = 5, .len_spread = 20, .text_len = 90,
                                             .compression = LARDER_COMPRESS_ZSTD};
    struct sim_bucket *b = sim_bucket_new();
    REQUIRE(sim_upload(b, dataset_make(&spec)));
    struct sim_io *s = sim_open(b, 1, NULL);
    struct fixture f = {.io = &s->io};
    struct larder_error err = {0};
    uint64_t ordinals[32], rng = 9;
    struct extent e[32];
    char key[64], want[64];
    size_t len = 0;
    REQUIRE_OK(store_open(f.io, &(struct store_options){0}, &f.s, &err), &err);
    REQUIRE_OK(decoder_new(&f.d, &err), &err);
    CHECK_EQ(s->trips, 2); /* the hint; its manifest and the one that could follow */
    for (int i = 0; i < 32; i++)
        ordinals[i] = rng_below(&rng, spec.n);
    REQUIRE_OK(store_locate(f.s, ordinals, 32, e, &err), &err);
    CHECK_EQ(s->trips, 3); /* all pages of all shards */
    for (int i = 0; i < 32; i++)
        check_sample(&f, &spec, ordinals[i], &e[i]);
    uint64_t before = s->trips;
    AUTO_FREE int64_t *labels = malloc(spec.n * sizeof(*labels));
    REQUIRE_OK(store_column(f.s, F_LABEL, 0, spec.n, labels, &err), &err);
    CHECK_EQ(s->trips, before + 2); /* 29 trailers, then the columns' pages */
    for (uint64_t i = 0; i < spec.n; i++)
        CHECK_EQ(labels[i], i % 10);
    before = s->trips;
    REQUIRE_OK(store_key(f.s, 12345, key, sizeof(key), &len, &err), &err);
    CHECK(len == sample_key(12345, want) && !memcmp(key, want, len));
    CHECK(s->trips <= before + 3);
    CHECK_EQ(s->heads + s->lists, 0);
    s->faults = (struct sim_faults){.flip = 500, .cut = 50}; /* damage on the way is not damage */
    struct store *other;
    for (int round = 0; round < 20; round++) {
        REQUIRE_OK(store_open(f.io, &(struct store_options){0}, &other, &err), &err);
        REQUIRE_OK(store_locate(other, ordinals, 32, e, &err), &err);
        memset(labels, 0, spec.n * sizeof(*labels));
        REQUIRE_OK(store_column(other, F_LABEL, 0, spec.n, labels, &err), &err);
        CHECK_EQ(labels[spec.n - 1], (spec.n - 1) % 10);
        store_close(other);
    }
    CHECK(s->flips > 10);
    tear_down(&f);
    sim_bucket_free(b);
}

TEST_MAIN();
