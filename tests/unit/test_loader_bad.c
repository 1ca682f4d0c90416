/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_loader_bad.c - loaders over damaged records, pages and shards, and over samples that nothing can be made of: refused or replaced. What
 * takes a place is compared with a model of it; it is the same on all ranks, with any threads, batch sizes and caches.
 */
#include "loader/prep_int.h"
#include "tests/unit/dataset.h"

static const struct dataset_spec spec = {400, 100, 200, 900, 300, LARDER_COMPRESS_NONE};
static const struct dataset_spec packed = {400, 100, 100, 100, 900, LARDER_COMPRESS_ZSTD};

/* ---- damage ---- */

static bool bad[400]; /* what a test damaged, or refuses in its function */

static void flip(const char *path, uint64_t offset, size_t n)
{
    FILE *f = fopen(path, "r+b");
    REQUIRE(f != NULL);
    for (size_t i = 0; i < n; i++) {
        fseek(f, (long)(offset + i), SEEK_SET);
        int byte = fgetc(f);
        fseek(f, (long)(offset + i), SEEK_SET);
        fputc(byte ^ 0x55, f);
    }
    fclose(f);
}

static void shard_path(struct larder_dataset *ds, const char *dir, uint64_t ordinal, char path[600], struct larder_location *at)
{
    struct larder_error err;
    REQUIRE_OK(larder_dataset_locate(ds, ordinal, at, &err), &err);
    snprintf(path, 600, "%s/shards/%s", dir, at->shard);
}

/* A fresh dataset in which these records are damaged. */
static const char *damaged(const struct dataset_spec *d, const uint64_t *ordinals, size_t n)
{
    const char *dir = dataset_make(d);
    struct larder_dataset *ds;
    struct larder_location at;
    struct larder_error err;
    char path[600];
    memset(bad, 0, sizeof(bad));
    REQUIRE_OK(larder_dataset_open(dir, NULL, &ds, &err), &err);
    for (size_t i = 0; i < n; i++) {
        shard_path(ds, dir, ordinals[i], path, &at);
        flip(path, at.offset + at.stored_len / 2, 3);
        bad[ordinals[i]] = true;
    }
    larder_dataset_close(ds);
    return dir;
}

/* ---- loaders ---- */

struct told { uint64_t n, ordinals, last_position; char message[300]; };

static void tell(void *user, const struct larder_bad_sample *b)
{
    struct told *t = user;
    t->n++;
    t->ordinals += b->ordinal + b->position * 1000 + b->substitute * 1000000 + b->epoch;
    CHECK(bad[b->ordinal]);
    CHECK(b->substitute != LARDER_NO_ORDINAL && !bad[b->substitute]);
    snprintf(t->message, sizeof(t->message), "%s", b->message);
}

static struct larder_loader_options replacing(struct told *t)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    o.batch_size = 32;
    o.seed = 11;
    o.epochs = 2;
    o.on_bad_sample = LARDER_ON_BAD_REPLACE;
    o.max_bad = 1;
    o.bad = tell;
    o.user = t;
    return o;
}

/* The ordinal that has to stand at a position. */
static uint64_t expected(const struct larder_loader_options *o, uint64_t epoch, uint64_t position)
{
    const struct order r = {.n = 400, .seed = o->seed, .shuffle = LARDER_SHUFFLE_FULL, .block = 1, .window = 1};
    uint64_t ordinal;
    order_fill(&r, epoch, position, 1, &ordinal);
    for (uint32_t k = 0; bad[ordinal]; k++) {
        REQUIRE(k < BAD_TRIES);
        order_fill(&r, epoch, bad_position(o->seed, epoch, position, k, 400), 1, &ordinal);
    }
    return ordinal;
}

static struct larder_dataset *open_ds(const char *dir, struct larder_cache *c)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;
    o.cache = c;
    REQUIRE_OK(larder_dataset_open(dir, &o, &ds, &err), &err);
    return ds;
}

static struct larder_loader *open_ld(struct larder_dataset *ds, const struct larder_loader_options *o)
{
    struct larder_loader *ld;
    struct larder_error err;
    REQUIRE_OK(larder_loader_open(ds, o, &ld, &err), &err);
    return ld;
}

/* All epochs of a rank; every sample is the one that the model says, and whole. How many places were mended. */
static uint64_t run(const struct dataset_spec *d, const char *dir, struct larder_loader_options *o, struct larder_cache *c)
{
    struct larder_dataset *ds = open_ds(dir, c);
    struct larder_loader *ld = open_ld(ds, o);
    struct larder_loader_stats st = {.struct_size = sizeof(st)};
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t mended = 0, counted = 0, before = ((struct told *)o->user)->n;
    for (uint64_t epoch = 0; epoch < o->epochs; epoch++) {
        int rc;
        while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
            for (uint32_t i = 0; i < b->n; i++) {
                uint64_t position = (b->position + i) % 400, ordinal;
                const struct order r = {.n = 400, .seed = o->seed, .shuffle = LARDER_SHUFFLE_FULL, .block = 1, .window = 1};
                CHECK_EQ(b->ordinals[i], expected(o, epoch, position));
                order_fill(&r, epoch, position, 1, &ordinal);
                mended += ordinal != b->ordinals[i];
                if (!o->n_outputs)
                    CHECK(sample_is(d, b->ordinals[i], b->values + (size_t)i * b->n_fields));
            }
            larder_batch_release(b);
        }
        CHECK_EQ(rc, LARDER_END);
        REQUIRE_OK(larder_loader_stats(ld, &st, &err), &err);
        counted += st.bad;
    }
    CHECK_EQ(counted, ((struct told *)o->user)->n - before);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    return mended;
}

/* ---- damaged records ---- */

TEST(damaged_records_are_replaced_the_same_way_by_all)
{
    const uint64_t ordinals[] = {3, 77, 78, 200, 399};
    for (int z = 0; z < 2; z++) {
        const struct dataset_spec *d = z ? &packed : &spec;
        const char *dir = damaged(d, ordinals, ARRAY_LEN(ordinals));
        struct told first = {0};
        struct larder_loader_options o = replacing(&first);
        CHECK_EQ(run(d, dir, &o, NULL), 10);
        CHECK(first.n >= 10);
        CHECK(strncmp(first.message, "sample 'class0", 14) == 0 && strstr(first.message, "fail their CRC32C") && strstr(first.message, ", shard "));
        for (int k = 0; k < 4; k++) { /* threads, batch sizes, ranks: together they tell and deliver the same */
            struct told t = {0};
            o = replacing(&t);
            o.threads = (uint32_t)(k % 2 * 3);
            o.batch_size = k < 2 ? 7 : 25;
            o.world = k < 2 ? 1 : 4;
            uint64_t mended = 0;
            for (o.rank = 0; o.rank < o.world; o.rank++)
                mended += run(d, dir, &o, NULL);
            CHECK_EQ(mended, 10);
            CHECK_EQ(t.n, first.n);
            CHECK_EQ(t.ordinals, first.ordinals);
        }
    }
}

TEST(caches_change_nothing)
{
    const uint64_t ordinals[] = {5, 6, 7, 111, 333};
    const char *dir = damaged(&spec, ordinals, ARRAY_LEN(ordinals));
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_cache_nvme nvme = {NULL, 4 << 20};
    struct larder_cache *c;
    struct larder_error err;
    struct told plain = {0}, cold = {0}, warm = {0};
    char path[200];
    struct larder_loader_options o = replacing(&plain);
    CHECK_EQ(run(&spec, dir, &o, NULL), 10);
    snprintf(path, sizeof(path), "%s/nvme", tmp_dir());
    nvme.dir = path;
    co.name = NULL;
    co.dram_bytes = 4 << 20;
    co.nvme = &nvme;
    co.n_nvme = 1;
    co.copy_local = 1;
    REQUIRE_OK(larder_cache_open(&co, &c, &err), &err);
    o = replacing(&cold);
    CHECK_EQ(run(&spec, dir, &o, c), 10);
    o = replacing(&warm);
    o.threads = 2;
    CHECK_EQ(run(&spec, dir, &o, c), 10);
    CHECK_EQ(cold.ordinals, plain.ordinals);
    CHECK_EQ(warm.ordinals, plain.ordinals);
    larder_cache_close(c);
}

TEST(by_default_it_is_an_error_that_names_the_sample)
{
    const uint64_t ordinals[] = {42};
    const char *dir = damaged(&spec, ordinals, 1);
    struct larder_dataset *ds = open_ds(dir, NULL);
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *b;
    struct larder_error err, again;
    char want[300];
    int rc;
    o.shuffle = LARDER_SHUFFLE_NONE;
    o.batch_size = 10;
    struct larder_loader *ld = open_ld(ds, &o);
    for (uint64_t n = 0; (rc = larder_loader_next(ld, &b, &err)) == LARDER_OK; n++) {
        CHECK(n < 4);
        larder_batch_release(b);
    }
    CHECK_EQ(rc, LARDER_ECORRUPT);
    CHECK_EQ(larder_loader_next(ld, &b, &again), LARDER_ECORRUPT);
    CHECK_STR(again.message, err.message);
    CHECK(strncmp(err.message, "sample 'class02/sample-00000042' (ordinal 42, shard 0 slot 42), ", 60) == 0);
    snprintf(want, sizeof(want), "; on_bad_sample=replace goes on; larder get %s @42 shows it", strlen(dir) > 60 ? "DATASET" : dir);
    CHECK(strstr(err.message, want) != NULL);
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(a_page_of_a_record_table_is_lost)
{
    const char *dir = damaged(&spec, NULL, 0);
    struct larder_dataset *ds = open_ds(dir, NULL);
    struct larder_location at;
    struct told t = {0}, u = {0};
    char path[600];
    shard_path(ds, dir, 150, path, &at);
    flip(path, store_manifest(ds->store)->shards[1].footer_off + 100, 3);
    larder_dataset_close(ds);
    for (int i = 100; i < 200; i++)
        bad[i] = true;
    struct larder_loader_options o = replacing(&t);
    CHECK_EQ(run(&spec, dir, &o, NULL), 200);
    CHECK(strstr(t.message, ", shard 1 slot ") != NULL);
    o = replacing(&u);
    o.threads = 3;
    o.batch_size = 9;
    CHECK_EQ(run(&spec, dir, &o, NULL), 200);
    CHECK_EQ(t.ordinals, u.ordinals);
}

TEST(a_shard_is_cut_short)
{
    const char *dir = damaged(&spec, NULL, 0);
    struct larder_dataset *ds = open_ds(dir, NULL);
    struct larder_location at;
    struct told t = {0};
    char path[600];
    shard_path(ds, dir, 250, path, &at);
    for (int i = 250; i < 300; i++) /* the table of records is gone, too, but for loaders that have read it */
        bad[i] = true;
    struct larder_loader_options o = replacing(&t);
    uint8_t label[400 * 8];
    struct larder_error err;
    REQUIRE_OK(larder_dataset_column(ds, F_LABEL, 0, 400, label, &err), &err);
    uint64_t all[400];
    struct extent e[400];
    for (uint64_t i = 0; i < 400; i++)
        all[i] = i;
    REQUIRE_OK(store_locate(ds->store, all, 400, e, &err), &err);
    char key[LARDER_KEY_MAX];
    size_t len;
    REQUIRE_OK(larder_dataset_key(ds, 250, key, sizeof(key), &len, &err), &err);
    CHECK_EQ(truncate(path, (off_t)at.offset), 0);
    o.batch_size = 20;
    o.threads = 2;
    struct larder_loader *ld = open_ld(ds, &o);
    const struct larder_batch *b;
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        uint64_t n = 0;
        int rc;
        while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
            for (uint32_t i = 0; i < b->n; i++) {
                CHECK_EQ(b->ordinals[i], expected(&o, epoch, b->position + i));
                CHECK(sample_is(&spec, b->ordinals[i], b->values + (size_t)i * b->n_fields));
            }
            n += b->n;
            larder_batch_release(b);
        }
        CHECK_EQ(rc, LARDER_END);
        CHECK_EQ(n, 400);
    }
    CHECK(t.n >= 100);
    larder_loader_close(ld);

    o.on_bad_sample = LARDER_ON_BAD_FAIL; /* which one it was is said */
    int rc;
    ld = open_ld(ds, &o);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK)
        larder_batch_release(b);
    CHECK_EQ(rc, LARDER_ECORRUPT);
    CHECK(strncmp(err.message, "sample '", 8) == 0 && strstr(err.message, ", shard 2 slot ") && strstr(err.message, "cut short"));
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(a_missing_shard_is_no_bad_sample)
{
    const char *dir = damaged(&spec, NULL, 0);
    struct larder_dataset *ds = open_ds(dir, NULL);
    struct larder_location at;
    struct told t = {0};
    struct larder_loader_options o = replacing(&t);
    const struct larder_batch *b;
    struct larder_error err;
    char path[600];
    int rc;
    shard_path(ds, dir, 250, path, &at);
    uint64_t all[400];
    struct extent e[400];
    for (uint64_t i = 0; i < 400; i++)
        all[i] = i;
    REQUIRE_OK(store_locate(ds->store, all, 400, e, &err), &err);
    CHECK_EQ(unlink(path), 0);
    struct larder_loader *ld = open_ld(ds, &o);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK)
        larder_batch_release(b);
    CHECK(rc < 0 && rc != LARDER_ECORRUPT);
    CHECK_EQ(t.n, 0);
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(nothing_good_is_left)
{
    uint64_t all[400];
    for (uint64_t i = 0; i < 400; i++)
        all[i] = i;
    const char *dir = damaged(&spec, all, 400);
    struct larder_dataset *ds = open_ds(dir, NULL);
    struct told t = {0};
    struct larder_loader_options o = replacing(&t);
    const struct larder_batch *b;
    struct larder_error err;
    struct larder_loader *ld = open_ld(ds, &o);
    CHECK_ERR(larder_loader_next(ld, &b, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "nor is any of ") != NULL);
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

TEST(too_many_end_the_run_at_the_same_batch)
{
    const uint64_t ordinals[] = {10, 20};
    const char *dir = damaged(&spec, ordinals, 2);
    struct larder_error first = {0}, err;
    uint64_t given[2] = {0};
    for (int k = 0; k < 2; k++) {
        struct larder_dataset *ds = open_ds(dir, NULL);
        struct told t = {0};
        struct larder_loader_options o = replacing(&t);
        const struct larder_batch *b;
        int rc = 0;
        o.epochs = 0;
        o.max_bad = 0;
        o.threads = k ? 3 : 0;
        struct larder_loader *ld = open_ld(ds, &o);
        while (rc == LARDER_OK || rc == LARDER_END) {
            rc = larder_loader_next(ld, &b, &err);
            if (rc == LARDER_OK) {
                given[k] += b->n;
                larder_batch_release(b);
            }
        }
        CHECK_EQ(rc, LARDER_ECORRUPT);
        CHECK(strstr(err.message, " samples asked for were bad, more than max_bad=0.001: ordinals ") && strstr(err.message, "10") &&
              strstr(err.message, "20"));
        CHECK(given[k] >= 400 && given[k] >= 1000 - 32);
        CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_ECORRUPT);
        if (k)
            CHECK_STR(err.message, first.message);
        first = err;
        REQUIRE_OK(larder_loader_seek(ld, 0, 0, &err), &err); /* a seek mends it, for as long as it goes */
        CHECK_EQ(larder_loader_next(ld, &b, &err), LARDER_OK);
        larder_batch_release(b);
        larder_loader_close(ld);
        larder_dataset_close(ds);
    }
    CHECK_EQ(given[0], given[1]);
}

TEST(options_that_make_no_sense)
{
    const char *dir = damaged(&spec, NULL, 0);
    struct larder_dataset *ds = open_ds(dir, NULL);
    struct larder_loader *ld;
    struct larder_error err;
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    o.on_bad_sample = 2;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    o.on_bad_sample = LARDER_ON_BAD_REPLACE;
    o.max_bad = 1.5;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "max_bad") != NULL);
    o.max_bad = -1;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    larder_dataset_close(ds);
}

/* ---- samples that nothing can be made of ---- */

static int picky(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    (void)user;
    if (bad[in->ordinal]) {
        if (err)
            snprintf(err->message, sizeof(err->message), "not to my liking");
        return LARDER_ECORRUPT;
    }
    uint64_t h = larder_hash64(in->position, in->values[F_TEXT].data, in->values[F_TEXT].len);
    memcpy(out, &h, sizeof(h));
    return LARDER_OK;
}

/* Back to back, padded, as it is, and by a function that refuses some. */
static size_t some_outputs(struct larder_output out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = (struct larder_output)LARDER_OUTPUT_INIT;
    out[0].field = out[1].field = out[2].field = "image";
    out[0].prep = LARDER_PREP_RAGGED;
    out[0].name = "ragged";
    out[1].prep = LARDER_PREP_PADDED;
    out[1].name = "padded";
    out[2].prep = LARDER_PREP_BYTES;
    out[3].prep = LARDER_PREP_USER;
    out[3].name = "mine";
    out[3].dtype = "uint64";
    out[3].fn = picky;
    return 4;
}

static void check_arrays(const struct larder_batch *b, const struct dataset_spec *d)
{
    const struct larder_array *ragged = &b->arrays[0], *padded = &b->arrays[1], *bytes = &b->arrays[2], *mine = &b->arrays[3];
    for (uint32_t i = 0; i < b->n; i++) {
        uint8_t image[2000], text[2000];
        int64_t label;
        struct larder_value want[F_COUNT];
        sample_values(d, b->ordinals[i], image, text, &label, want);
        uint64_t h = larder_hash64((b->position + i) % 400, want[F_TEXT].data, want[F_TEXT].len);
        CHECK_MEM((const uint8_t *)mine->data + i * 8, &h, 8);
        CHECK_EQ(bytes->values[i].len, want[F_IMAGE].len);
        CHECK_EQ(ragged->offsets[i + 1] - ragged->offsets[i], want[F_IMAGE].len);
        CHECK_EQ(padded->lengths[i], want[F_IMAGE].len);
        if (!want[F_IMAGE].len)
            continue;
        CHECK_MEM(bytes->values[i].data, want[F_IMAGE].data, want[F_IMAGE].len);
        CHECK_MEM((const uint8_t *)ragged->data + ragged->offsets[i], want[F_IMAGE].data, want[F_IMAGE].len);
        CHECK_MEM((const uint8_t *)padded->data + (size_t)i * (size_t)padded->shape[1], want[F_IMAGE].data, want[F_IMAGE].len);
    }
}

TEST(what_the_outputs_refuse_is_replaced_with_all_its_arrays)
{
    const uint64_t ordinals[] = {30, 31, 90};
    const char *dir = damaged(&spec, ordinals, 3); /* some by damage, the others by the function */
    struct larder_output out[4];
    uint64_t sums[4] = {0};
    for (int i = 100; i < 140; i++)
        bad[i] = true;
    for (int k = 0; k < 4; k++) {
        struct told t = {0};
        struct larder_loader_options o = replacing(&t);
        const struct larder_batch *b;
        struct larder_error err;
        int rc;
        o.outputs = out;
        o.n_outputs = some_outputs(out);
        o.threads = (uint32_t)k;
        o.batch_size = k == 3 ? 1 : 16; /* of one: a larger substitute never fits */
        struct larder_dataset *ds = open_ds(dir, NULL);
        struct larder_loader *ld = open_ld(ds, &o);
        for (uint64_t epoch = 0; epoch < 2; epoch++) {
            while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
                for (uint32_t i = 0; i < b->n; i++)
                    CHECK_EQ(b->ordinals[i], expected(&o, epoch, b->position + i));
                check_arrays(b, &spec);
                larder_batch_release(b);
            }
            CHECK_EQ(rc, LARDER_END);
        }
        sums[k] = t.ordinals;
        CHECK(t.n >= 86);
        larder_loader_close(ld);
        larder_dataset_close(ds);
    }
    CHECK(sums[0] == sums[1] && sums[0] == sums[2] && sums[0] == sums[3]);
}

TEST(the_message_names_field_and_output)
{
    const char *dir = damaged(&spec, NULL, 0);
    struct larder_output out[4];
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *b;
    struct larder_error err;
    o.outputs = out;
    o.n_outputs = some_outputs(out);
    o.shuffle = LARDER_SHUFFLE_NONE;
    bad[3] = bad[20] = true;
    struct larder_dataset *ds = open_ds(dir, NULL);
    struct larder_loader *ld = open_ld(ds, &o);
    CHECK_ERR(larder_loader_next(ld, &b, &err), LARDER_ECORRUPT, &err);
    const char *want = "sample 'class03/sample-00000003' (ordinal 3, shard 0 slot 3), output mine: not to my liking; on_bad_sample=replace goes on; "
                       "larder get ";
    CHECK(strncmp(err.message, want, strlen(want)) == 0);
    larder_loader_close(ld);
    out[0] = (struct larder_output)LARDER_OUTPUT_INIT;
    out[0].field = "image"; /* random bytes are no image */
    out[0].prep = LARDER_PREP_IMAGE;
    out[0].image.width = 8;
    o.n_outputs = 1;
    ld = open_ld(ds, &o);
    CHECK_ERR(larder_loader_next(ld, &b, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "(ordinal 0, shard 0 slot 0), field image: ") && strstr(err.message, "that are no image"));
    larder_loader_close(ld);
    larder_dataset_close(ds);
}

/* ---- mixes ---- */

TEST(bad_samples_of_a_mix)
{
    const uint64_t ordinals[] = {3, 77, 200, 399};
    const char *one = damaged(&spec, ordinals, ARRAY_LEN(ordinals)), *two = dataset_make(&packed); /* only the first has bad ones */
    uint64_t sums[3] = {0};
    struct larder_dataset *ds[2] = {open_ds(one, NULL), open_ds(two, NULL)};
    struct larder_mix_source sources[2] = {LARDER_MIX_SOURCE_INIT, LARDER_MIX_SOURCE_INIT};
    sources[0].ds = ds[0];
    sources[1].ds = ds[1];
    for (uint32_t k = 0; k < 3; k++) {
        struct told t = {0};
        struct larder_loader_options o = replacing(&t);
        struct larder_loader *ld;
        const struct larder_batch *b;
        struct larder_error err;
        uint64_t n = 0;
        int rc;
        o.bad = NULL;
        o.epochs = 1;
        o.threads = k;
        o.batch_size = 20 + 7 * k;
        REQUIRE_OK(larder_loader_open_mix(sources, 2, LARDER_EXHAUSTED_REPEAT, &o, &ld, &err), &err);
        while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
            for (uint32_t i = 0; i < b->n; i++) {
                CHECK(b->sources[i] || !bad[b->ordinals[i]]);
                CHECK(sample_is(b->sources[i] ? &packed : &spec, b->ordinals[i], b->values + (size_t)i * b->n_fields));
                sums[k] += larder_hash64(b->position + i, &b->ordinals[i], 8) + b->sources[i];
            }
            n += b->n;
            larder_batch_release(b);
        }
        CHECK_EQ(rc, LARDER_END);
        CHECK_EQ(n, 800);
        larder_loader_close(ld);

        o.on_bad_sample = LARDER_ON_BAD_FAIL;
        REQUIRE_OK(larder_loader_open_mix(sources, 2, LARDER_EXHAUSTED_REPEAT, &o, &ld, &err), &err);
        while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK)
            larder_batch_release(b);
        CHECK_EQ(rc, LARDER_ECORRUPT);
        CHECK(strstr(err.message, "(source 0, ordinal ") && strstr(err.message, "fail their CRC32C"));
        larder_loader_close(ld);
    }
    CHECK(sums[0] == sums[1] && sums[0] == sums[2]);
    larder_dataset_close(ds[0]);
    larder_dataset_close(ds[1]);
}

/* ---- closing ---- */

TEST(closing_amid_mending)
{
    uint64_t half[200];
    for (uint64_t i = 0; i < 200; i++)
        half[i] = 2 * i;
    const char *dir = damaged(&spec, half, 200);
    for (uint32_t k = 0; k < 12; k++) {
        struct told t = {0};
        struct larder_dataset *ds = open_ds(dir, NULL);
        struct larder_loader_options o = replacing(&t);
        const struct larder_batch *b = NULL;
        struct larder_error err;
        o.threads = k % 3;
        struct larder_loader *ld = open_ld(ds, &o);
        for (uint32_t i = 0; i < k / 3; i++) {
            REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
            larder_batch_release(b);
        }
        if (k % 4 == 3)
            REQUIRE_OK(larder_loader_seek(ld, 1, 50, &err), &err);
        larder_loader_close(ld);
        larder_dataset_close(ds);
    }
}

TEST_MAIN();
