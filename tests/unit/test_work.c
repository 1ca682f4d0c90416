/* SPDX-License-Identifier: Apache-2.0 */
/* Outputs in batches, and the threads that make them. */
#include "loader/stage_int.h"
#include "tests/unit/dataset.h"

static const struct dataset_spec plain = {500, 128, 800, 800, 30, LARDER_COMPRESS_NONE}, packed = {500, 128, 100, 200, 700, LARDER_COMPRESS_ZSTD};

static struct larder_dataset *open_ds(const struct dataset_spec *d)
{
    static const char *dirs[2];
    const char **dir = &dirs[d == &packed];
    struct larder_dataset *ds;
    struct larder_error err;

    if (!*dir)
        *dir = dataset_make(d);
    REQUIRE_OK(larder_dataset_open(*dir, NULL, &ds, &err), &err);
    return ds;
}

static struct larder_output output(const char *field, int prep)
{
    struct larder_output o = LARDER_OUTPUT_INIT;

    o.field = field;
    o.prep = prep;
    return o;
}

static struct larder_loader *open_ld(struct larder_dataset *ds, const struct larder_output *outputs, size_t n, uint32_t threads, size_t staging)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    o.batch_size = 32;
    o.seed = 9;
    o.epochs = 2;
    o.outputs = outputs;
    o.n_outputs = n;
    o.threads = threads;
    o.staging_bytes = staging;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    return ld;
}

/* Sums up what a sample is: the same function by a caller's output and by the test. */
static uint64_t digest(uint64_t ordinal, uint64_t position, uint64_t random, const struct larder_value *v)
{
    uint64_t h = larder_hash64(ordinal, &position, 8);

    h = larder_hash64(h, &random, 8);
    for (int f = 0; f < F_COUNT; f++)
        h = larder_hash64(h + (v[f].data != NULL), v[f].data, v[f].len);
    return h;
}

static int digest_fn(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    uint64_t h = digest(in->ordinal, in->position, in->random, in->values);

    (void)user, (void)err;
    CHECK_EQ(in->n_fields, F_COUNT);
    memcpy(out, &h, 8);
    return 0;
}

static const int64_t one_shape[] = {1};

static size_t all_outputs(struct larder_output *o)
{
    o[0] = output("label", LARDER_PREP_AUTO);
    o[1] = output("text", LARDER_PREP_RAGGED);
    o[2] = output("image", LARDER_PREP_PADDED);
    o[3] = output(NULL, LARDER_PREP_USER);
    o[3].name = "digest";
    o[3].dtype = "uint64";
    o[3].ndim = 1;
    o[3].shape = one_shape;
    o[3].fn = digest_fn;
    o[4] = output("image", LARDER_PREP_BYTES);
    o[4].name = "file";
    return 5;
}

/* Every array of a batch against the samples it is made of. A hash of all of it. */
static uint64_t check_batch(const struct dataset_spec *d, const struct larder_batch *b, uint32_t n_arrays)
{
    const struct larder_array *a = b->arrays;
    uint8_t image[2048], text[2048];
    uint64_t h = 0;

    CHECK(b->values == NULL && b->n_fields == 0);
    REQUIRE_EQ(b->n_arrays, n_arrays);
    CHECK_STR(a[0].name, "label");
    CHECK_STR(a[0].dtype, "int64");
    CHECK_EQ(a[0].shape[0], b->n);
    CHECK_EQ(a[1].shape[0], (uint64_t)b->n * d->text_len);
    CHECK(a[2].ndim == 2 && a[3].ndim == 2 && a[3].shape[1] == 1);
    for (uint32_t i = 0; i < b->n; i++) {
        struct larder_value v[F_COUNT];
        int64_t label;
        sample_values(d, b->ordinals[i], image, text, &label, v);
        CHECK_EQ(((const int64_t *)a[0].data)[i], label);
        CHECK_EQ(a[1].offsets[i + 1] - a[1].offsets[i], d->text_len);
        CHECK_MEM((const uint8_t *)a[1].data + a[1].offsets[i], text, d->text_len);
        CHECK_EQ(a[2].lengths[i], v[F_IMAGE].len);
        CHECK_EQ(a[2].present[i], v[F_IMAGE].data != NULL);
        if (v[F_IMAGE].data)
            CHECK_MEM((const uint8_t *)a[2].data + i * (size_t)a[2].shape[1], image, v[F_IMAGE].len);
        h = larder_hash64(h, (const uint64_t *)a[3].data + i, 8);
        if (n_arrays < 5)
            continue;
        CHECK_EQ(a[4].values[i].len, v[F_IMAGE].len);
        if (v[F_IMAGE].data)
            CHECK_MEM(a[4].values[i].data, image, v[F_IMAGE].len);
        else
            CHECK(a[4].values[i].data == NULL);
    }
    for (uint32_t k = 0; k < n_arrays; k++)
        CHECK((uintptr_t)a[k].data % 64 == 0);
    return h;
}

static uint64_t epochs(const struct dataset_spec *d, uint32_t n_arrays, uint32_t threads)
{
    struct larder_output outputs[5];
    struct larder_dataset *ds = open_ds(d);
    all_outputs(outputs);
    struct larder_loader *ld = open_ld(ds, outputs, n_arrays, threads, 1 << 20);
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t h = 0, n = 0, bytes = 0;

    for (int ends = 0; ends < 2;) {
        int rc = larder_loader_next(ld, &b, &err);
        if (rc == LARDER_END) {
            REQUIRE_OK(larder_loader_stats(ld, &s, &err), &err);
            CHECK_EQ(s.bytes, bytes);
            bytes = 0;
            ends++;
            continue;
        }
        REQUIRE_OK(rc, &err);
        h = larder_hash64(h, &(uint64_t){check_batch(d, b, n_arrays)}, 8);
        for (uint32_t k = 0; k < b->n_arrays; k++)
            bytes += b->arrays[k].len;
        n += b->n;
        larder_batch_release(b);
    }
    CHECK_EQ(n, 2 * d->n);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    return h;
}

static void the_same(const struct dataset_spec *d, uint32_t n_arrays)
{
    static const uint32_t threads[] = {1, 3, 8};
    uint64_t want = epochs(d, n_arrays, 0);

    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        CHECK_EQ(epochs(d, n_arrays, threads[i]), want);
}

TEST(arrays_of_plain_records) { the_same(&plain, 4); }
TEST(arrays_of_compressed_records) { the_same(&packed, 4); }
TEST(arrays_that_point_into_records) { the_same(&plain, 5); }
TEST(arrays_that_point_into_unpacked_records) { the_same(&packed, 5); }

/* 60 batches of 32 labels take up little when their records are given back: of these, no 15 have room. */
TEST(records_are_given_back)
{
    struct larder_output o = output("label", LARDER_PREP_DENSE);
    struct larder_dataset *ds = open_ds(&plain);

    for (uint32_t threads = 0; threads < 3; threads++) {
        struct larder_loader *ld = open_ld(ds, &o, 1, threads, 600 << 10);
        const struct larder_batch *held[15];
        struct larder_error err;
        for (int i = 0; i < 15; i++)
            REQUIRE_OK(larder_loader_next(ld, &held[i], &err), &err);
        for (int i = 0; i < 15; i++)
            for (uint32_t k = 0; k < held[i]->n; k++)
                CHECK_EQ(((const int64_t *)held[i]->arrays[0].data)[k], held[i]->ordinals[k] % 10);
        larder_loader_close(ld);
    }
    larder_dataset_close(ds);
}

/* Fails for some samples, in any order. */
static int choosy_fn(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    (void)user, (void)out;
    if (in->position < 200 || in->position % 3)
        return 0;
    snprintf(err->message, sizeof(err->message), "position %d is not to my taste", (int)in->position);
    return LARDER_ECORRUPT;
}

TEST(the_first_bad_sample_is_told)
{
    struct larder_output o = output(NULL, LARDER_PREP_USER);
    struct larder_dataset *ds = open_ds(&plain);

    o.name = "taste";
    o.dtype = "uint8";
    o.fn = choosy_fn;
    for (uint32_t threads = 0; threads < 9; threads += 2) {
        struct larder_loader *ld = open_ld(ds, &o, 1, threads, 4 << 20);
        const struct larder_batch *b;
        struct larder_error err = {0};
        int n = 0, rc;
        while ((rc = larder_loader_next(ld, &b, &err)) == 0) {
            larder_batch_release(b);
            n++;
        }
        CHECK_EQ(n, 6);
        CHECK(rc < 0 && strstr(err.message, "position 201 is not to my taste"));
        larder_loader_close(ld);
    }
    larder_dataset_close(ds);
}

/* ---- stalls: of a stage whose decoding waits until the consumer does ---- */

struct meeting { struct stage *_Atomic stage; };

static int waits_for_consumer(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    struct meeting *m = user;
    bool waits = false;

    (void)out, (void)err;
    while (!waits) {
        struct stage *st = atomic_load(&m->stage);
        usleep(200);
        if (!st)
            continue;
        pthread_mutex_lock(&st->lock);
        waits = (st->consumer_waits && st->next_seq == in->position) || atomic_load(&st->stop); /* for this very batch */
        pthread_mutex_unlock(&st->lock);
    }
    return 0;
}

TEST(a_wait_for_decoding_is_a_prep_stall)
{
    struct larder_output o = output(NULL, LARDER_PREP_USER);
    struct larder_dataset *ds = open_ds(&plain);
    struct stage_options so = {.store = ds->store, .tiers = ds->tiers, .plan.order = {.n = plain.n, .seed = 1}, .staging_bytes = 1 << 20,
                               .plan.slicing = {.batch_size = 1, .world = 1, .last = LARDER_LAST_SHORT}, .n_outputs = 1, .threads = 1};
    struct meeting m = {NULL};
    const struct larder_batch *b;
    struct larder_error err;
    struct stage_cost cost;
    struct prep *prep;
    struct stage *st;

    o.name = "x";
    o.dtype = "uint8";
    o.fn = waits_for_consumer;
    o.user = &m;
    REQUIRE_OK(prep_new(&ds->manifest->schema, &o, 1, &prep, &err), &err);
    so.prep = prep;
    REQUIRE_OK(stage_open(&so, &st, &err), &err);
    atomic_store(&m.stage, st);
    for (int i = 0; i < 5; i++) {
        REQUIRE_OK(stage_next(st, 0, &b, &cost, &err), &err);
        CHECK(cost.prep_stall_ns > 0);
        stage_release(b);
    }
    stage_close(st); /* in the middle of decoding */
    prep_free(prep);
    larder_dataset_close(ds);
}

TEST(bad_outputs_are_named)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_output out = output("nothing", LARDER_PREP_AUTO);
    struct larder_dataset *ds = open_ds(&plain);
    struct larder_loader *ld;
    struct larder_error err;

    o.n_outputs = 1;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "n_outputs"));
    o.outputs = &out;
    CHECK_ERR(larder_loader_open(ds, &o, &ld, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "nothing"));
    larder_dataset_close(ds);
}

TEST_MAIN();
