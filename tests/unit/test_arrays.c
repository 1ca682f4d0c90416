/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lpng -lm */
/* test_arrays.c - every prep at once, through larder.h: values against those that were written, and the same arrays with any threads. */
#include "tests/unit/test.h"

#include "tests/unit/images.h"
#include "tests/unit/png_file.h"

enum { N = 45, SIDE = 16, VIEWS = 2, FRAMES = 120, BATCH = 8 };
enum { IMAGE, MASK, BOXES, LABEL, TEXT, LIST, VOICE, META, VEC, N_FIELDS };

static const int64_t boxes_shape[] = {-1, 4}, list_shape[] = {-1}, vec_shape[] = {3};
static const struct larder_field fields[N_FIELDS] = {
    {"image", LARDER_IMAGE, NULL, 0, NULL}, {"mask", LARDER_IMAGE, NULL, 0, NULL}, {"boxes", LARDER_NDARRAY, "float32", 2, boxes_shape},
    {"label", LARDER_I64, NULL, 0, NULL}, {"text", LARDER_UTF8, NULL, 0, NULL}, {"list", LARDER_NDARRAY, "int32", 1, list_shape},
    {"voice", LARDER_AUDIO, NULL, 0, NULL}, {"meta", LARDER_JSON, NULL, 0, NULL}, {"vec", LARDER_NDARRAY, "float64", 1, vec_shape},
};

/* 16 bits at 8 kHz: frame k of sample i is i * 100 + k. */
static size_t wav(uint32_t i, uint8_t *f)
{
    uint32_t n = 60 + i * 9;
    memcpy(f, "RIFF\0\0\0\0WAVEfmt \20\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\20\0data", 40);
    put_u32(f + 4, 36 + n * 2);
    put_u32(f + 40, n * 2);
    for (uint32_t k = 0; k < n; k++)
        put_u16(f + 44 + 2 * k, (uint16_t)(i * 100 + k));
    return 44 + n * 2;
}

static void add(struct larder_writer *w, uint32_t i)
{
    struct larder_error err;
    struct larder_value v[N_FIELDS];
    char key[32], text[64], meta[64];
    uint32_t width = 40 + i % 7 * 9, height = 36 + i % 5 * 8;
    AUTO_FREE uint8_t *pixels = make_pixels(width, height, 3, i), *grey = malloc((size_t)width * height);
    for (uint32_t k = 0; k < width * height; k++)
        grey[k] = (uint8_t)(k % width + k / width);
    size_t jpeg_len, png_len;
    AUTO_FREE uint8_t *jpeg = make_jpeg(pixels, width, height, &(struct jpeg_kind){3, 2, 2, i % 3 == 1, 0}, &jpeg_len);
    AUTO_FREE uint8_t *png = make_png(grey, width, height, 1, &png_len);
    float boxes[3][4] = {{1, 2, 30, 20}, {5, 5, 9, 9}, {0, 0, (float)width, (float)height}};
    int64_t label = i * 1000;
    int32_t list[20];
    uint8_t sound[44 + 2000];
    double vec[3] = {i, i / 2.0, -1.0 * i};
    for (int k = 0; k < 20; k++)
        list[k] = (int32_t)i * 20 + k;
    v[IMAGE] = (struct larder_value){jpeg, jpeg_len};
    v[MASK] = (struct larder_value){png, png_len};
    v[BOXES] = (struct larder_value){i % 6 == 5 ? NULL : boxes, 16 * (i % 4)};
    v[LABEL] = (struct larder_value){&label, 8};
    v[TEXT] = (struct larder_value){text, (size_t)snprintf(text, sizeof(text), "text of %u %.*s", i, (int)(i % 30), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")};
    v[LIST] = (struct larder_value){list, i % 20 * 4};
    v[VOICE] = (struct larder_value){sound, wav(i, sound)};
    v[META] = (struct larder_value){meta, (size_t)snprintf(meta, sizeof(meta), "{\"i\": %u}", i)};
    v[VEC] = (struct larder_value){i % 7 == 2 ? NULL : vec, 24};
    for (int k = 0; k < N_FIELDS; k++)
        if (!v[k].data)
            v[k].len = 0;
    size_t key_len = (size_t)snprintf(key, sizeof(key), "sample-%u", i);
    REQUIRE_OK(larder_writer_add(w, key, key_len, v, &err), &err);
}

static struct larder_dataset *make_dataset(int compression)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_error err;
    struct larder_writer *w;
    struct larder_dataset *ds;
    char uri[512];
    snprintf(uri, sizeof(uri), "%s/ds", tmp_dir());
    o.compression = compression;
    o.shard_size = 40000; /* several */
    REQUIRE_OK(larder_writer_open(uri, fields, N_FIELDS, &o, &w, &err), &err);
    for (uint32_t i = 0; i < N; i++)
        add(w, i);
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    REQUIRE_OK(larder_dataset_open(uri, NULL, &ds, &err), &err);
    return ds;
}

/* The length of the text and the sum of the list, by the caller. */
static int user_fn(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    int64_t *o = out;
    (void)user;
    if (in->n_fields != N_FIELDS || o[0] || o[1])
        return err_set(err, LARDER_EINVAL, "%u fields", in->n_fields);
    o[0] = (int64_t)in->values[TEXT].len;
    for (size_t k = 0; k < in->values[LIST].len / 4; k++)
        o[1] += (int32_t)get_u32((const uint8_t *)in->values[LIST].data + 4 * k);
    return LARDER_OK;
}

enum { A_BOXES, A_IMAGE, A_MASK, A_WHERE, A_LABEL, A_RAGGED, A_PADDED, A_LIST, A_VOICE, A_META, A_VEC, A_USER, A_MIDDLE, N_OUTPUTS };

static void make_outputs(struct larder_output o[N_OUTPUTS])
{
    static const struct { const char *field, *name; int prep; } kinds[N_OUTPUTS] = {
        {"boxes", NULL, LARDER_PREP_BOXES},   {"image", NULL, LARDER_PREP_IMAGE}, {"mask", NULL, LARDER_PREP_MASK}, {NULL, "where", LARDER_PREP_GEOMETRY},
        {"label", NULL, LARDER_PREP_AUTO},    {"text", NULL, LARDER_PREP_RAGGED}, {"text", "padded", LARDER_PREP_PADDED}, {"list", NULL, LARDER_PREP_RAGGED},
        {"voice", NULL, LARDER_PREP_AUDIO},   {"meta", NULL, LARDER_PREP_AUTO},   {"vec", NULL, LARDER_PREP_AUTO}, {NULL, "mine", LARDER_PREP_USER},
        {"image", "middle", LARDER_PREP_IMAGE},
    };
    static const int64_t user_shape[] = {2};
    for (int k = 0; k < N_OUTPUTS; k++) {
        o[k] = (struct larder_output)LARDER_OUTPUT_INIT;
        o[k].field = kinds[k].field;
        o[k].name = kinds[k].name;
        o[k].prep = kinds[k].prep;
    }
    o[A_IMAGE].image = (struct larder_image){.width = SIDE, .flip = 0.5, .views = VIEWS};
    o[A_MIDDLE].image = (struct larder_image){.width = SIDE, .crop = LARDER_CROP_CENTER, .dtype = "float16", .planar = 1};
    o[A_BOXES].follows = o[A_MASK].follows = o[A_WHERE].follows = "image";
    o[A_VOICE].audio = (struct larder_audio){.frames = FRAMES, .dtype = "int16"};
    o[A_USER].fn = user_fn;
    o[A_USER].dtype = "int64";
    o[A_USER].ndim = 1;
    o[A_USER].shape = user_shape;
}

/* Sample k of a batch against what was written. */
static void check_sample(const struct larder_batch *b, uint32_t k)
{
    const struct larder_array *a = b->arrays;
    uint32_t i = (uint32_t)(((const int64_t *)a[A_LABEL].data)[k] / 1000), there = MIN(60 + i * 9, FRAMES), differ = 0;
    char text[64], meta[64];
    size_t text_len = (size_t)snprintf(text, sizeof(text), "text of %u %.*s", i, (int)(i % 30), "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    size_t meta_len = (size_t)snprintf(meta, sizeof(meta), "{\"i\": %u}", i);
    CHECK_EQ(b->ordinals[k], i);
    CHECK_EQ(a[A_RAGGED].offsets[k + 1] - a[A_RAGGED].offsets[k], text_len);
    CHECK_MEM((const char *)a[A_RAGGED].data + a[A_RAGGED].offsets[k], text, text_len);
    const char *padded = (const char *)a[A_PADDED].data + k * (size_t)a[A_PADDED].shape[1];
    CHECK_EQ(a[A_PADDED].lengths[k], text_len);
    CHECK_MEM(padded, text, text_len);
    for (size_t c = text_len; c < (size_t)a[A_PADDED].shape[1]; c++)
        differ += padded[c] != 0;
    CHECK_EQ(a[A_LIST].offsets[k + 1] - a[A_LIST].offsets[k], i % 20);
    int64_t sum = 0;
    for (uint32_t c = 0; c < i % 20; c++) {
        differ += ((const int32_t *)a[A_LIST].data)[a[A_LIST].offsets[k] + c] != (int32_t)(i * 20 + c);
        sum += i * 20 + c;
    }
    CHECK_MEM((const int64_t *)a[A_USER].data + 2 * k, ((int64_t[]){(int64_t)text_len, sum}), 16);
    CHECK(a[A_META].values[k].len == meta_len && !memcmp(a[A_META].values[k].data, meta, meta_len));
    CHECK_EQ(a[A_VEC].present[k], i % 7 != 2);
    CHECK_MEM((const double *)a[A_VEC].data + 3 * k, i % 7 == 2 ? ((double[]){0, 0, 0}) : ((double[]){i, i / 2.0, -1.0 * i}), 24);
    const int16_t *voice = (const int16_t *)a[A_VOICE].data + k * FRAMES;
    CHECK_EQ(a[A_VOICE].lengths[k], there);
    for (uint32_t c = 0; c < FRAMES; c++)
        differ += voice[c] != (c < there ? (int16_t)(voice[0] + (int)c) : 0);
    CHECK(voice[0] >= (int)(i * 100) && voice[0] + there <= i * 100 + 60 + i * 9);
    CHECK_EQ(a[A_BOXES].present[k], i % 6 != 5);
    for (uint32_t view = 0; view < VIEWS; view++) {
        const int32_t *where = (const int32_t *)a[A_WHERE].data + (k * VIEWS + view) * 8;
        uint64_t at = a[A_BOXES].offsets[k * VIEWS + view], n = a[A_BOXES].offsets[k * VIEWS + view + 1] - at;
        CHECK_EQ(where[0], 40 + i % 7 * 9);
        CHECK_EQ(where[1], 36 + i % 5 * 8);
        CHECK_EQ(n, i % 6 == 5 ? 0 : i % 4);
        if (n == 3) { /* the whole image: the whole result */
            CHECK_EQ(a[A_BOXES].keep[at + 2], 1);
            CHECK_MEM((const float *)a[A_BOXES].data + 4 * (at + 2), ((float[]){0, 0, SIDE, SIDE}), 16);
        }
        /* x + y in the image: the mask tells where its middle comes from */
        const uint8_t *mask = (const uint8_t *)a[A_MASK].data + (k * VIEWS + view) * SIDE * SIDE;
        double want = where[2] + where[3] + (where[4] + where[5]) / 2.0;
        differ += mask[SIDE / 2 * SIDE + SIDE / 2] > want + 4 || mask[SIDE / 2 * SIDE + SIDE / 2] + 4 < want;
    }
    CHECK_EQ(differ, 0);
}

static uint64_t digest_array(uint64_t h, const struct larder_array *a, uint32_t n)
{
    bool boxes = a->keep != NULL;
    h = larder_hash64(h, a->name, strlen(a->name));
    h = larder_hash64(h, a->shape, a->ndim * sizeof(*a->shape));
    if (a->data)
        h = larder_hash64(h, a->data, a->len);
    for (uint32_t i = 0; a->values && i < n; i++)
        h = larder_hash64(h, a->values[i].data, a->values[i].len);
    if (a->offsets)
        h = larder_hash64(h, a->offsets, ((boxes ? n * VIEWS : n) + 1) * sizeof(*a->offsets));
    if (a->lengths)
        h = larder_hash64(h, a->lengths, n * sizeof(*a->lengths));
    if (a->present)
        h = larder_hash64(h, a->present, n);
    return boxes ? larder_hash64(h, a->keep, (size_t)a->shape[0]) : h;
}

static uint64_t epochs(struct larder_dataset *ds, uint32_t threads, size_t staging, uint64_t decoded)
{
    struct larder_loader_options lo = LARDER_LOADER_OPTIONS_INIT;
    struct larder_output o[N_OUTPUTS];
    struct larder_loader *ld;
    struct larder_error err;
    const struct larder_batch *b;
    uint64_t digest = 0, samples = 0;
    int rc = 0;
    make_outputs(o);
    lo.batch_size = BATCH;
    lo.seed = 4;
    lo.epochs = 2;
    lo.threads = threads;
    lo.staging_bytes = staging;
    lo.decoded_bytes = decoded;
    lo.outputs = o;
    lo.n_outputs = N_OUTPUTS;
    REQUIRE_OK(larder_loader_open(ds, &lo, &ld, &err), &err);
    memset(o, 0xff, sizeof(o)); /* it was copied */
    for (int ends = 0; ends < 2 && rc >= 0;) {
        rc = larder_loader_next(ld, &b, &err);
        ends += rc == LARDER_END;
        CHECK(rc >= 0);
        if (rc != LARDER_OK)
            continue;
        CHECK(b->values == NULL && b->n_fields == 0);
        CHECK_EQ(b->n_arrays, N_OUTPUTS);
        for (uint32_t k = 0; k < b->n; k++)
            check_sample(b, k);
        for (uint32_t k = 0; k < N_OUTPUTS; k++) {
            CHECK_EQ((uintptr_t)b->arrays[k].data % 64, 0);
            digest = digest_array(digest, &b->arrays[k], b->n);
        }
        samples += b->n;
        larder_batch_release(b);
    }
    CHECK_EQ(samples, 2 * N);
    larder_loader_close(ld);
    return digest;
}

TEST(all_preps_any_threads)
{
    struct larder_dataset *plain = make_dataset(LARDER_COMPRESS_NONE), *packed = make_dataset(LARDER_COMPRESS_ZSTD);
    uint64_t want = epochs(plain, 1, 0, 0);
    CHECK_EQ(epochs(plain, 4, 0, 0), want);
    CHECK_EQ(epochs(plain, 4, 4 << 20, 0), want);
    CHECK_EQ(epochs(packed, 1, 0, 0), want);
    CHECK_EQ(epochs(packed, 4, 4 << 20, 0), want);
    larder_dataset_close(plain);
    larder_dataset_close(packed);
}

/* Through the stored form of images, too: in the first epoch, which makes it, and in the second, which finds it. */
TEST(all_preps_with_the_decoded_cache)
{
    struct larder_dataset *plain = make_dataset(LARDER_COMPRESS_NONE);
    uint64_t want = epochs(plain, 1, 0, 64 << 20);
    CHECK_EQ(epochs(plain, 4, 0, 64 << 20), want);
    CHECK_EQ(epochs(plain, 3, 4 << 20, 4 << 20), want);
    larder_dataset_close(plain);
}

TEST(what_cannot_be_is_said_at_open)
{
    struct larder_dataset *ds = make_dataset(LARDER_COMPRESS_NONE);
    struct larder_loader_options lo = LARDER_LOADER_OPTIONS_INIT;
    struct larder_output o[N_OUTPUTS];
    struct larder_loader *ld;
    struct larder_error err;
    make_outputs(o);
    o[A_LABEL].prep = LARDER_PREP_RAGGED;
    lo.outputs = o;
    lo.n_outputs = N_OUTPUTS;
    CHECK_ERR(larder_loader_open(ds, &lo, &ld, &err), LARDER_EINVAL, &err);
    CHECK_STR(err.message, "output 'label': field 'label' is i64: ask for dense");
    CHECK(ld == NULL);
    larder_dataset_close(ds);
}

TEST_MAIN();
