/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lpng -lm */
/* test_prep.c - arrays of batches, each number against one that is computed here. */
#include "tests/unit/test.h"

#include <math.h>
#include <pthread.h>

#include "tests/unit/images.h"
#include "tests/unit/png_file.h"
#include "tests/unit/prep_batch.h"

#define ARRAY(t, i, type) ((const type *)(t)->b.arrays[i].data)

static struct larder_output output(const char *field, int prep)
{
    struct larder_output o = LARDER_OUTPUT_INIT;
    o.field = field;
    o.prep = prep;
    return o;
}

/* ---- values of one size ---- */

TEST(scalars_and_dense)
{
    static const int64_t shape[] = {2, 2};
    static const struct larder_field fields[] = {{"label", LARDER_I64, NULL, 0, NULL}, {"score", LARDER_F64, NULL, 0, NULL},
                                                 {"weight", LARDER_F32, NULL, 0, NULL}, {"good", LARDER_BOOL, NULL, 0, NULL},
                                                 {"grid", LARDER_NDARRAY, "int16", 2, shape}};
    struct larder_output o[5];
    struct batch_test t;
    struct larder_error err;
    int64_t labels[] = {5, INT64_MIN};
    double scores[] = {1.5, -INFINITY};
    float weights[] = {0.25f, 3e38f};
    uint8_t good[] = {2, 0};
    int16_t grids[2][4] = {{1, 2, 3, 4}, {-1, -2, -3, -32768}};
    for (size_t i = 0; i < 5; i++)
        o[i] = output(fields[i].name, LARDER_PREP_AUTO);
    prep_open(&t, fields, 5, o, 5);
    struct larder_value v[3][5];
    for (int i = 0; i < 2; i++) {
        v[2 * i][0] = (struct larder_value){&labels[i], 8};
        v[2 * i][1] = (struct larder_value){&scores[i], 8};
        v[2 * i][2] = (struct larder_value){&weights[i], 4};
        v[2 * i][3] = (struct larder_value){&good[i], 1};
        v[2 * i][4] = (struct larder_value){grids[i], 8};
    }
    memset(v[1], 0, sizeof(v[1])); /* has nothing */
    CHECK_OK(prep_batch_run(&t, 3, v[0], &err), &err);
    for (size_t i = 0; i < 5; i++) {
        const struct larder_array *a = &t.b.arrays[i];
        CHECK_STR(a->name, fields[i].name);
        CHECK_EQ(a->shape[0], 3);
        CHECK_EQ((uintptr_t)a->data % 64, 0);
        CHECK_MEM(a->present, ((uint8_t[]){1, 0, 1}), 3);
        CHECK(!a->values && !a->offsets && !a->lengths && !a->keep);
    }
    CHECK_MEM(ARRAY(&t, 0, int64_t), ((int64_t[]){5, 0, INT64_MIN}), 24);
    CHECK_MEM(ARRAY(&t, 1, double), ((double[]){1.5, 0, -INFINITY}), 24);
    CHECK_MEM(ARRAY(&t, 2, float), ((float[]){0.25f, 0, 3e38f}), 12);
    CHECK_MEM(ARRAY(&t, 3, uint8_t), ((uint8_t[]){1, 0, 0}), 3);
    CHECK_MEM(ARRAY(&t, 4, int16_t), ((int16_t[]){1, 2, 3, 4, 0, 0, 0, 0, -1, -2, -3, -32768}), 24);
    CHECK_EQ(t.b.arrays[4].ndim, 3);
    CHECK_EQ(t.b.arrays[4].len, 24);
    CHECK_MEM(t.b.arrays[4].shape, ((int64_t[]){3, 2, 2}), 24);
    v[2][0].len = 7;
    CHECK_ERR(prep_batch_run(&t, 3, v[0], &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field label: 7 bytes instead of 8");
    CHECK_OK(prep_batch_run(&t, 0, v[0], &err), &err);
    CHECK_EQ(t.b.arrays[4].shape[0], 0);
    CHECK_EQ(t.b.arrays[4].len, 0);
    prep_close(&t);
}

TEST(bytes)
{
    static const struct larder_field fields[] = {{"a", LARDER_UTF8, NULL, 0, NULL}, {"b", LARDER_BYTES, NULL, 0, NULL}};
    struct larder_output o[] = {output("b", LARDER_PREP_AUTO), output("b", LARDER_PREP_BYTES)};
    struct batch_test t;
    struct larder_error err;
    o[1].name = "again";
    prep_open(&t, fields, 2, o, 2);
    struct larder_value v[2][2] = {{{"x", 1}, {"first", 5}}, {{"y", 1}, NO_VALUE}};
    CHECK_OK(prep_batch_run(&t, 2, v[0], &err), &err);
    for (int i = 0; i < 2; i++) {
        const struct larder_array *a = &t.b.arrays[i];
        CHECK(a->values[0].data == v[0][1].data && a->values[0].len == 5 && !a->values[1].data);
        CHECK(!a->data && !a->dtype && a->ndim == 1 && a->shape[0] == 2 && a->len == 0);
    }
    prep_close(&t);
}

/* ---- values of differing size ---- */

TEST(ragged)
{
    static const int64_t shape[] = {-1, 2};
    static const struct larder_field fields[] = {{"points", LARDER_NDARRAY, "int32", 2, shape}, {"text", LARDER_UTF8, NULL, 0, NULL}};
    struct larder_output o[] = {output("points", LARDER_PREP_RAGGED), output("text", LARDER_PREP_RAGGED)};
    struct batch_test t;
    struct larder_error err;
    int32_t a[] = {1, 2, 3, 4}, b[] = {5, 6};
    struct larder_value v[4][2] = {{VALUE(a), {"one", 3}}, {NO_VALUE, {"", 0}}, {{a, 0}, NO_VALUE}, {VALUE(b), {"four!", 5}}};
    prep_open(&t, fields, 2, o, 2);
    CHECK_OK(prep_batch_run(&t, 4, v[0], &err), &err);
    const struct larder_array *p = &t.b.arrays[0], *x = &t.b.arrays[1];
    CHECK_EQ(p->ndim, 2);
    CHECK_MEM(p->shape, ((int64_t[]){3, 2}), 16);
    CHECK_EQ(p->len, 24);
    CHECK_MEM(p->data, ((int32_t[]){1, 2, 3, 4, 5, 6}), 24);
    CHECK_MEM(p->offsets, ((uint64_t[]){0, 2, 2, 2, 3}), 40);
    CHECK_MEM(p->present, ((uint8_t[]){1, 0, 1, 1}), 4);
    CHECK_STR(x->dtype, "uint8");
    CHECK_EQ(x->ndim, 1);
    CHECK_EQ(x->shape[0], 8);
    CHECK_MEM(x->data, "onefour!", 8);
    CHECK_MEM(x->offsets, ((uint64_t[]){0, 3, 3, 3, 8}), 40);
    CHECK_MEM(x->present, ((uint8_t[]){1, 1, 0, 1}), 4);
    v[3][0].len = 7;
    CHECK_ERR(prep_batch_run(&t, 4, v[0], &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field points: 7 bytes, no multiple of 8");
    CHECK_OK(prep_batch_run(&t, 0, v[0], &err), &err);
    CHECK_EQ(t.b.arrays[0].shape[0], 0);
    CHECK_EQ(t.b.arrays[0].offsets[0], 0);
    prep_close(&t);
}

TEST(padded)
{
    static const int64_t shape[] = {-1, 2}, across[] = {2, -1};
    static const struct larder_field fields[] = {{"points", LARDER_NDARRAY, "int16", 2, shape}, {"text", LARDER_UTF8, NULL, 0, NULL},
                                                 {"across", LARDER_NDARRAY, "uint8", 2, across}};
    struct larder_output o[] = {output("points", LARDER_PREP_PADDED), output("text", LARDER_PREP_PADDED), output("across", LARDER_PREP_PADDED),
                                output("text", LARDER_PREP_PADDED), output("across", LARDER_PREP_PADDED)};
    struct batch_test t;
    struct larder_error err;
    int16_t a[] = {1, 2, 3, 4}, b[] = {5, 6};
    struct larder_value v[3][3] = {{VALUE(a), {"one", 3}, {"abcABC", 6}}, {NO_VALUE, NO_VALUE, NO_VALUE}, {VALUE(b), {"three", 5}, {"xX", 2}}};
    o[3].name = "cut";
    o[3].pad_to = 4;
    o[4].name = "across_cut";
    o[4].pad_to = 2;
    prep_open(&t, fields, 3, o, 5);
    CHECK_OK(prep_batch_run(&t, 3, v[0], &err), &err);
    const struct larder_array *q = t.b.arrays;
    CHECK_EQ(q[0].ndim, 3);
    CHECK_MEM(q[0].shape, ((int64_t[]){3, 2, 2}), 24);
    CHECK_MEM(q[0].data, ((int16_t[]){1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 0, 0}), 24);
    CHECK_MEM(q[0].lengths, ((uint32_t[]){2, 0, 1}), 12);
    CHECK_MEM(q[0].present, ((uint8_t[]){1, 0, 1}), 3);
    CHECK_EQ(q[0].len, 24);
    CHECK_MEM(q[1].shape, ((int64_t[]){3, 5}), 16);
    CHECK_MEM(q[1].data, "one\0\0\0\0\0\0\0three", 15);
    CHECK_MEM(q[2].shape, ((int64_t[]){3, 2, 3}), 24);
    CHECK_MEM(q[2].data, "abcABC\0\0\0\0\0\0x\0\0X\0\0", 18);
    CHECK_MEM(q[2].lengths, ((uint32_t[]){3, 0, 1}), 12);
    CHECK_MEM(q[3].shape, ((int64_t[]){3, 4}), 16);
    CHECK_MEM(q[3].data, "one\0\0\0\0\0thre", 12);
    CHECK_MEM(q[3].lengths, ((uint32_t[]){3, 0, 4}), 12);
    CHECK_MEM(q[4].shape, ((int64_t[]){3, 2, 2}), 24);
    CHECK_MEM(q[4].data, "abAB\0\0\0\0x\0X\0", 12);
    v[0][2].len = 5;
    CHECK_ERR(prep_batch_run(&t, 3, v[0], &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field across: 5 bytes, no multiple of 2");
    v[0][2] = v[2][2] = NO_VALUE; /* nobody has it: an axis of 0 */
    CHECK_OK(prep_batch_run(&t, 3, v[0], &err), &err);
    CHECK_MEM(t.b.arrays[2].shape, ((int64_t[]){3, 2, 0}), 24);
    CHECK_EQ(t.b.arrays[2].len, 0);
    CHECK_OK(prep_batch_run(&t, 0, v[0], &err), &err);
    prep_close(&t);
}

/* Several dimensions differ: the sizes stand in front of the elements. */
TEST(padded_in_several_dimensions)
{
    static const int64_t shape[] = {-1, 2, -1};
    static const struct larder_field fields[] = {{"m", LARDER_NDARRAY, "uint16", 3, shape}};
    struct larder_output o = output("m", LARDER_PREP_PADDED);
    struct { int64_t sizes[3]; uint16_t e[12]; } a = {{2, 2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, b = {{1, 2, 5}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}};
    struct batch_test t;
    struct larder_error err;
    o.pad_to = 4;
    prep_open(&t, fields, 1, &o, 1);
    struct larder_value v[] = {{&a, 24 + 24}, NO_VALUE, {&b, 24 + 20}};
    CHECK_OK(prep_batch_run(&t, 3, v, &err), &err);
    const struct larder_array *q = t.b.arrays;
    CHECK_MEM(q->shape, ((int64_t[]){3, 4, 2, 4}), 32);
    CHECK_MEM(q->lengths, ((uint32_t[]){2, 3, 0, 0, 1, 4}), 24);
    uint16_t want[3][4][2][4] = {{{{1, 2, 3}, {4, 5, 6}}, {{7, 8, 9}, {10, 11, 12}}}, {{{0}}}, {{{1, 2, 3, 4}, {6, 7, 8, 9}}}};
    CHECK_EQ(q->len, sizeof(want));
    CHECK_MEM(q->data, want, sizeof(want));
    /* Sizes that are not those of the elements. */
    static const struct { int64_t sizes[3]; size_t len; } bad[] = {
        {{2, 2, 3}, 46}, {{2, 3, 2}, 48}, {{-1, 2, 3}, 48}, {{INT64_MAX, 2, INT64_MAX}, 48}, {{1ll << 62, 2, 2}, 24}, {{2, 2, 3}, 23}, {{2, 2, 3}, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        memcpy(a.sizes, bad[i].sizes, 24);
        v[0].len = bad[i].len;
        CHECK_ERR(prep_batch_run(&t, 1, v, &err), LARDER_ECORRUPT, &err);
        CHECK(strstr(err.message, "field m: ") == err.message);
    }
    memcpy(a.sizes, ((int64_t[]){5000000000, 2, 0}), 24); /* nothing, at great length */
    v[0].len = 24;
    CHECK_OK(prep_batch_run(&t, 1, v, &err), &err);
    CHECK_MEM(t.b.arrays[0].lengths, ((uint32_t[]){4, 0}), 8);
    prep_close(&t);
}

/* ---- images ---- */

static const struct larder_field picture_fields[] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"mask", LARDER_IMAGE, NULL, 0, NULL}};

/* An output of images is what the codec makes of the geometry that transform.c finds. */
TEST(image_views)
{
    enum { W = 61, H = 40, N = 3, SIDE = 16 };
    struct larder_output o[2] = {output("image", LARDER_PREP_IMAGE), output("image", LARDER_PREP_IMAGE)};
    struct batch_test t;
    struct larder_error err;
    struct larder_value v[N][2] = {{NO_VALUE}};
    uint8_t *files[N];
    o[0].image = (struct larder_image){.width = SIDE, .flip = 0.5, .views = 3};
    o[1].image = (struct larder_image){.width = SIDE, .height = 8, .crop = LARDER_CROP_CENTER, .dtype = "float32", .planar = 1, .exif = 1,
                                       .normalize = 1, .mean = {.4f, .5f, .6f}, .std = {.2f, .3f, .4f}};
    o[1].name = "middle";
    prep_open(&t, picture_fields, 2, o, 2);
    for (uint32_t i = 0; i < N; i++) {
        AUTO_FREE uint8_t *pixels = make_pixels(W + i, H, 3, i);
        struct jpeg_kind k = {3, 2, 2, i == 1, i == 2 ? 6 : 1};
        v[i][0].data = files[i] = make_jpeg(pixels, W + i, H, &k, &v[i][0].len);
    }
    CHECK_OK(prep_batch_run(&t, N, v[0], &err), &err);
    CHECK_EQ(t.b.arrays[0].ndim, 5);
    CHECK_MEM(t.b.arrays[0].shape, ((int64_t[]){N, 3, SIDE, SIDE, 3}), 40);
    CHECK_EQ(t.b.arrays[1].ndim, 4);
    CHECK_MEM(t.b.arrays[1].shape, ((int64_t[]){N, 3, 8, SIDE}), 32);
    CHECK_STR(t.b.arrays[1].dtype, "float32");
    struct image_decoder *d;
    REQUIRE_OK(image_decoder_new(&d, &err), &err);
    for (uint32_t i = 0; i < N; i++) {
        struct image_info info;
        struct image_job job;
        struct geometry g;
        uint8_t want[SIDE * SIDE * 3];
        float middle[SIDE * 8 * 3];
        CHECK_OK(image_open(d, v[i][0].data, v[i][0].len, &info, &err), &err);
        struct larder_image im = o[0].image, center = o[1].image;
        CHECK_OK(transform_check(&im, "image", &err), &err);
        CHECK_OK(transform_check(&center, "middle", &err), &err);
        for (uint32_t k = 0; k < 3; k++) {
            transform_geometry(&im, info.width, info.height, 1, &(struct random_key){7, 3, 50 + i, k}, &g);
            transform_job(&im, &g, &job);
            CHECK_OK(image_render(d, &job, want, &err), &err);
            int worst = 0; /* one decode of several views need not scale in the DCT as one of each does */
            for (size_t q = 0; q < sizeof(want); q++)
                worst = MAX(worst, abs(want[q] - ARRAY(&t, 0, uint8_t)[(i * 3 + k) * sizeof(want) + q]));
            CHECK(worst <= 24);
        }
        transform_geometry(&center, info.width, info.height, info.orientation, &(struct random_key){7, 3, 50 + i, 0}, &g);
        CHECK_EQ(g.image_width, i == 2 ? H : W + i);
        transform_job(&center, &g, &job);
        CHECK_OK(image_render(d, &job, middle, &err), &err);
        CHECK_MEM(ARRAY(&t, 1, float) + i * SIDE * 8 * 3, middle, sizeof(middle));
    }
    image_decoder_free(d);
    /* A sample that has none, one that ends too early, one that is none. */
    struct larder_value all = v[1][0];
    v[1][0] = NO_VALUE;
    CHECK_ERR(prep_batch_run(&t, N, v[0], &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field image: the sample has none");
    v[1][0] = (struct larder_value){v[0][0].data, v[0][0].len / 2};
    CHECK_ERR(prep_batch_run(&t, N, v[0], &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "field image: JPEG ") == err.message);
    v[1][0] = (struct larder_value){"pixels", 6};
    CHECK_ERR(prep_batch_run(&t, N, v[0], &err), LARDER_ECORRUPT, &err);
    v[1][0] = all;
    CHECK_OK(prep_batch_run(&t, N, v[0], &err), &err);
    for (uint32_t i = 0; i < N; i++)
        free(files[i]);
    prep_close(&t);
}

/* Pixels that were decoded before, as large as the image and half of that: the same crops, the same arrays. */
TEST(images_decoded_before)
{
    enum { W = 80, H = 60, SIDE = 20 };
    struct larder_output o[] = {output("image", LARDER_PREP_IMAGE), output("mask", LARDER_PREP_MASK), output(NULL, LARDER_PREP_GEOMETRY)};
    struct batch_test t;
    struct larder_error err;
    AUTO_FREE uint8_t *rgb = malloc(W * H * 3), *half = malloc(W * H * 3 / 4);
    for (uint32_t i = 0; i < W * H * 3; i++)
        rgb[i] = (uint8_t)(i / 3 % W * 2 + i / 3 / W + i % 3 * 9);
    for (uint32_t i = 0; i < W * H * 3 / 4; i++) {
        const uint8_t *p = rgb + (i / 3 / (W / 2) * 2 * W + i / 3 % (W / 2) * 2) * 3 + i % 3;
        half[i] = (uint8_t)((p[0] + p[3] + p[W * 3] + p[W * 3 + 3] + 2) / 4);
    }
    size_t len, mask_len;
    AUTO_FREE uint8_t *file = make_png(rgb, W, H, 3, &len), *mask_file = make_png(rgb, W, H, 1, &mask_len);
    struct larder_value v[4][2];
    o[0].image = (struct larder_image){.width = SIDE, .flip = 0.5};
    o[1].follows = o[2].follows = "image";
    o[2].name = "where";
    prep_open(&t, picture_fields, 2, o, 3);
    uint8_t keep[2], want[3][4 * SIDE * SIDE * 3];
    struct decoded_options d = {.side = 0};
    CHECK(prep_decoded(t.prep, keep, &d));
    CHECK_EQ(keep[0], DECODED_PIXELS);
    CHECK_EQ(keep[1], DECODED_RAW);
    CHECK_EQ(d.side, 23);
    CHECK_EQ(d.image.width, SIDE);
    for (int i = 0; i < 4; i++) {
        v[i][0] = (struct larder_value){file, len};
        v[i][1] = (struct larder_value){mask_file, mask_len};
    }
    for (int round = 0; round < 3; round++) {
        struct decoded_image images[2] = {{round == 1 ? rgb : half, round == 1 ? W : W / 2, round == 1 ? H : H / 2, W, H, 1}};
        if (round)
            prep_worker_decoded(t.worker, images);
        for (int i = 0; round && i < 4; i++)
            v[i][0] = NO_VALUE;
        CHECK_OK(prep_batch_run(&t, 4, v[0], &err), &err);
        for (int k = 0; k < 3; k++)
            memcpy(want[k], round ? want[k] : t.b.arrays[k].data, MIN(t.b.arrays[k].len, sizeof(want[k])));
        CHECK_MEM(t.b.arrays[1].data, want[1], t.b.arrays[1].len);
        CHECK_MEM(t.b.arrays[2].data, want[2], t.b.arrays[2].len);
        int worst = 0;
        for (size_t i = 0; i < sizeof(want[0]); i++)
            worst = MAX(worst, abs(want[0][i] - ARRAY(&t, 0, uint8_t)[i]));
        CHECK(round < 2 ? worst == 0 : worst <= 6);
    }
    struct decoded_image none[2] = {{0}};
    prep_worker_decoded(t.worker, none);
    CHECK_ERR(prep_batch_run(&t, 4, v[0], &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field image: the sample has none");
    prep_close(&t);
}

/* The place of each pixel is written in its colours: what an image, its mask and its boxes were moved to can be read off. */
TEST(mask_boxes_and_geometry_follow)
{
    enum { W = 90, H = 70, N = 12, SIDE = 24, VIEWS = 2 };
    static const int64_t shape[] = {-1, 4};
    static const struct larder_field fields[] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"mask", LARDER_IMAGE, NULL, 0, NULL},
                                                 {"boxes", LARDER_NDARRAY, "int16", 2, shape}};
    struct larder_output o[] = {output("boxes", LARDER_PREP_BOXES), output("mask", LARDER_PREP_MASK), output("image", LARDER_PREP_IMAGE),
                                output(NULL, LARDER_PREP_GEOMETRY), output("mask", LARDER_PREP_MASK)};
    struct batch_test t;
    struct larder_error err;
    AUTO_FREE uint8_t *rgb = malloc(W * H * 3), *grey = malloc(W * H);
    for (uint32_t y = 0; y < H; y++)
        for (uint32_t x = 0; x < W; x++) {
            uint8_t p[3] = {(uint8_t)x, (uint8_t)y, (uint8_t)(x * 3 + y * 5)};
            memcpy(rgb + (y * W + x) * 3, p, 3);
            grey[y * W + x] = p[2];
        }
    size_t rgb_len, grey_len;
    AUTO_FREE uint8_t *image_file = make_png(rgb, W, H, 3, &rgb_len), *mask_file = make_png(grey, W, H, 1, &grey_len);
    int16_t boxes[3][4] = {{0, 0, W, H}, {10, 20, 40, 30}, {80, 60, 89, 69}};
    struct larder_value v[N][3];
    for (uint32_t i = 0; i < N; i++) {
        v[i][0] = (struct larder_value){image_file, rgb_len};
        v[i][1] = (struct larder_value){mask_file, grey_len};
        v[i][2] = (struct larder_value){boxes, 8 * (i % 4)};
    }
    v[3][2] = NO_VALUE;
    o[2].image = (struct larder_image){.width = SIDE, .flip = 0.5, .filter = LARDER_NEAREST, .views = VIEWS};
    o[0].follows = o[1].follows = o[3].follows = o[4].follows = "image";
    o[3].name = "where";
    o[4].name = "mask16";
    o[4].dtype = "uint16";
    prep_open(&t, fields, 3, o, 5);
    CHECK_OK(prep_batch_run(&t, N, v[0], &err), &err);
    const struct larder_array *q = t.b.arrays;
    const uint8_t *image = q[2].data, *mask = q[1].data;
    const uint16_t *mask16 = q[4].data;
    CHECK_MEM(q[1].shape, ((int64_t[]){N, VIEWS, SIDE, SIDE}), 32);
    CHECK_MEM(q[3].shape, ((int64_t[]){N, VIEWS, 8}), 24);
    uint64_t at = 0, flips = 0, gone = 0;
    for (uint32_t i = 0; i < N * VIEWS; i++) {
        size_t differ = 0;
        for (uint32_t p = i * SIDE * SIDE; p < (i + 1) * SIDE * SIDE; p++)
            differ += mask[p] != image[p * 3 + 2] || mask16[p] != mask[p];
        CHECK_EQ(differ, 0);
        /* the corner pixels tell the crop */
        const uint8_t *first = image + (size_t)i * SIDE * SIDE * 3, *last = first + (SIDE * SIDE - 1) * 3;
        const int32_t *g = (const int32_t *)q[3].data + i * 8;
        CHECK(g[0] == W && g[1] == H && g[7] == 1);
        bool flip = first[0] > last[0];
        flips += flip;
        CHECK_EQ(g[6], flip);
        double sx = (double)g[4] / SIDE, sy = (double)g[5] / SIDE;
        CHECK(fabs(MIN(first[0], last[0]) - (g[2] + sx / 2)) <= 1 && fabs(first[1] - (g[3] + sy / 2)) <= 1 &&
              fabs(MAX(first[0], last[0]) - (g[2] + g[4] - sx / 2)) <= 1.5);
        /* a box's corners are where the crop and the scale bring them */
        uint32_t sample = i / VIEWS, k = sample == 3 ? 0 : sample % 4;
        CHECK_EQ(q[0].offsets[i], at);
        for (uint32_t b = 0; b < k; b++, at++) {
            double x0 = fmin(fmax((boxes[b][0] - g[2]) / sx, 0), SIDE), x1 = fmin(fmax((boxes[b][2] - g[2]) / sx, 0), SIDE);
            double y0 = fmin(fmax((boxes[b][1] - g[3]) / sy, 0), SIDE), y1 = fmin(fmax((boxes[b][3] - g[3]) / sy, 0), SIDE);
            bool keep = x1 > x0 && y1 > y0;
            const float *have = ARRAY(&t, 0, float) + at * 4;
            CHECK_EQ(q[0].keep[at], keep);
            gone += !keep;
            double want[4] = {flip ? SIDE - x1 : x0, y0, flip ? SIDE - x0 : x1, y1};
            for (int c = 0; c < 4; c++)
                CHECK(fabs(have[c] - (keep ? want[c] : 0)) < 1e-4);
        }
    }
    CHECK_EQ(q[0].offsets[N * VIEWS], at);
    CHECK_EQ(q[0].shape[0], (int64_t)at);
    CHECK_EQ(q[0].len, at * 16);
    CHECK_MEM(q[0].present, ((uint8_t[]){1, 1, 1, 0, 1, 1}), 6);
    CHECK(flips > 2 && flips < 22 && gone > 0); /* of 24 */
    v[1][2].len = 7;
    CHECK_ERR(prep_batch_run(&t, N, v[0], &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field boxes: 7 bytes, which are not boxes of 4 int16");
    v[1][2].len = 8;
    size_t small_len;
    AUTO_FREE uint8_t *small = make_png(grey, W, H - 1, 1, &small_len);
    v[0][1] = (struct larder_value){small, small_len};
    CHECK_ERR(prep_batch_run(&t, N, v[0], &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field mask: a mask of 90 x 69 of an image of 90 x 70");
    prep_close(&t);
}

/* A mask and boxes lie on the image as it is stored: they are turned with it. A light rectangle is where its mask and its box are. */
TEST(followers_are_turned)
{
    enum { W = 96, H = 64, SIDE = 32 };
    static const int64_t shape[] = {-1, 4};
    static const struct larder_field fields[] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"mask", LARDER_IMAGE, NULL, 0, NULL},
                                                 {"boxes", LARDER_NDARRAY, "float64", 2, shape}};
    struct larder_output o[] = {output("image", LARDER_PREP_IMAGE), output("mask", LARDER_PREP_MASK), output("boxes", LARDER_PREP_BOXES),
                                output(NULL, LARDER_PREP_GEOMETRY)};
    struct batch_test t;
    struct larder_error err;
    AUTO_FREE uint8_t *grey = malloc(W * H);
    double box[4] = {16, 8, 48, 24};
    for (uint32_t i = 0; i < W * H; i++)
        grey[i] = i % W >= 16 && i % W < 48 && i / W >= 8 && i / W < 24 ? 250 : 5;
    size_t mask_len;
    AUTO_FREE uint8_t *mask_file = make_png(grey, W, H, 1, &mask_len);
    o[0].image = (struct larder_image){.width = SIDE, .crop = LARDER_CROP_NONE, .filter = LARDER_NEAREST, .exact = 1, .exif = 1, .flip = 0.5};
    o[1].follows = o[2].follows = o[3].follows = "image";
    o[3].name = "where";
    prep_open(&t, fields, 3, o, 4);
    for (int orientation = 1; orientation <= 8; orientation++) {
        struct larder_value v[4][3];
        size_t len;
        AUTO_FREE uint8_t *file = make_jpeg(grey, W, H, &(struct jpeg_kind){1, 1, 1, false, orientation}, &len);
        for (int i = 0; i < 4; i++) {
            v[i][0] = (struct larder_value){file, len};
            v[i][1] = (struct larder_value){mask_file, mask_len};
            v[i][2] = VALUE(box);
        }
        CHECK_OK(prep_batch_run(&t, 4, v[0], &err), &err);
        for (uint32_t i = 0; i < 4; i++) {
            const float *b = ARRAY(&t, 2, float) + 4 * i;
            const int32_t *where = ARRAY(&t, 3, int32_t) + 8 * i;
            uint32_t differ = 0, light = 0;
            for (uint32_t k = 0; k < SIDE * SIDE; k++) {
                uint8_t pixel = ARRAY(&t, 0, uint8_t)[(i * SIDE * SIDE + k) * 3], mask = ARRAY(&t, 1, uint8_t)[i * SIDE * SIDE + k];
                float x = (float)(k % SIDE) + 0.5f, y = (float)(k / SIDE) + 0.5f;
                differ += (pixel > 128) != (mask > 128) || (mask > 128) != (x > b[0] && x < b[2] && y > b[1] && y < b[3]);
                light += pixel > 128;
            }
            CHECK_EQ(differ, 0);
            CHECK(light > 60 && light < 110);
            CHECK_EQ(where[7], orientation);
            CHECK_EQ(where[0], orientation >= 5 ? H : W);
        }
    }
    prep_close(&t);
}

/* Numbers of every type are the same boxes; those that are none are not kept. */
TEST(boxes_of_every_dtype)
{
    static const char *const dtypes[] = {"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"};
    static const int64_t shape[] = {2, 4};
    static const double want[2][4] = {{1, 2, 30, 40}, {0, 8, 16, 64}};
    AUTO_FREE uint8_t *pixels = make_pixels(64, 64, 3, 1);
    size_t len;
    AUTO_FREE uint8_t *file = make_png(pixels, 64, 64, 3, &len);
    for (size_t k = 0; k < ARRAY_LEN(dtypes); k++) {
        struct larder_field fields[] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"boxes", LARDER_NDARRAY, dtypes[k], 2, shape}};
        struct larder_output o[] = {output("image", LARDER_PREP_IMAGE), output("boxes", LARDER_PREP_BOXES)};
        struct batch_test t;
        struct larder_error err;
        uint8_t raw[64];
        size_t item = dtype_find(dtypes[k])->bytes;
        for (int i = 0; i < 8; i++) {
            double x = want[i / 4][i % 4];
            int64_t n = (int64_t)x;
            float f = (float)x;
            uint32_t bits;
            memcpy(&bits, &f, 4);
            uint16_t half = (uint16_t)(x == 0 ? 0 : (bits >> 23) - 112) << 10 | (bits >> 13 & 0x3ff), brain = (uint16_t)(bits >> 16);
            const void *from = strchr(dtypes[k], 'i') ? (void *)&n : k == 8 ? (void *)&half : k == 9 ? (void *)&brain : k == 10 ? (void *)&f : (void *)&x;
            if (k == 8 && x == 0)
                half = 0;
            memcpy(raw + i * item, from, item);
        }
        o[0].image = (struct larder_image){.width = 64, .crop = LARDER_CROP_NONE};
        o[1].follows = "image";
        prep_open(&t, fields, 2, o, 2);
        struct larder_value v[] = {{file, len}, {raw, 8 * item}};
        CHECK_OK(prep_batch_run(&t, 1, v, &err), &err);
        for (int i = 0; i < 8; i++)
            CHECK(fabs(ARRAY(&t, 1, float)[i] - want[i / 4][i % 4]) < 1e-5);
        v[1].len = 4 * item; /* the field has two, always */
        CHECK_ERR(prep_batch_run(&t, 1, v, &err), LARDER_ECORRUPT, &err);
        if (k == 11) {
            double none[2][4] = {{1, 2, NAN, 40}, {0, 8, INFINITY, 64}};
            v[1] = VALUE(none);
            CHECK_OK(prep_batch_run(&t, 1, v, &err), &err);
            CHECK_MEM(t.b.arrays[1].keep, "\0\0", 2);
            CHECK(ARRAY(&t, 1, float)[2] == 0);
        }
        prep_close(&t);
    }
}

/* ---- sounds ---- */

static uint8_t *wav(uint32_t rate, const int16_t *samples, uint32_t n, size_t *len)
{
    uint8_t *f = calloc(1, 44 + n * 2);
    memcpy(f, "RIFF\0\0\0\0WAVEfmt \20\0\0\0\1\0\1\0", 24);
    put_u32(f + 4, 36 + n * 2);
    put_u32(f + 24, rate);
    put_u32(f + 28, rate * 2);
    put_u32(f + 32, 16 << 16 | 2);
    memcpy(f + 36, "data", 4);
    put_u32(f + 40, n * 2);
    memcpy(f + 44, samples, n * 2);
    *len = 44 + n * 2;
    return f;
}

TEST(audio)
{
    enum { N = 40, LONG = 1000, SHORT = 60, FRAMES = 100 };
    static const struct larder_field fields[] = {{"voice", LARDER_AUDIO, NULL, 0, NULL}};
    struct larder_output o[] = {output("voice", LARDER_PREP_AUDIO), output("voice", LARDER_PREP_AUDIO)};
    struct batch_test t;
    struct larder_error err;
    int16_t samples[LONG];
    for (int i = 0; i < LONG; i++)
        samples[i] = (int16_t)(i * 31 - 15000);
    size_t long_len, short_len, other_len;
    AUTO_FREE uint8_t *a = wav(8000, samples, LONG, &long_len), *b = wav(8000, samples, SHORT, &short_len), *c = wav(16000, samples, SHORT, &other_len);
    struct larder_value v[N];
    for (int i = 0; i < N; i++)
        v[i] = i % 10 == 3 ? (struct larder_value){b, short_len} : (struct larder_value){a, long_len};
    o[0].audio = (struct larder_audio){.frames = FRAMES, .dtype = "int16"};
    o[1].audio = (struct larder_audio){.frames = FRAMES, .channels = 2, .center = 1};
    o[1].name = "middle";
    prep_open(&t, fields, 1, o, 2);
    CHECK_OK(prep_batch_run(&t, N, v, &err), &err);
    CHECK_MEM(t.b.arrays[0].shape, ((int64_t[]){N, 1, FRAMES}), 24);
    CHECK_MEM(t.b.arrays[1].shape, ((int64_t[]){N, 2, FRAMES}), 24);
    CHECK_STR(t.b.arrays[0].dtype, "int16");
    int32_t lowest = LONG, highest = 0;
    for (int i = 0; i < N; i++) {
        const int16_t *have = ARRAY(&t, 0, int16_t) + i * FRAMES;
        const float *left = ARRAY(&t, 1, float) + i * 2 * FRAMES;
        uint32_t there = i % 10 == 3 ? SHORT : FRAMES, start = (uint32_t)(have[0] + 15000) / 31, bad = 0;
        CHECK_EQ(t.b.arrays[0].lengths[i], there);
        CHECK_EQ(t.b.arrays[1].lengths[i], there);
        CHECK(there == FRAMES ? start + FRAMES <= LONG : start == 0);
        if (there == FRAMES) {
            lowest = MIN(lowest, (int32_t)start);
            highest = MAX(highest, (int32_t)start);
        }
        for (uint32_t k = 0; k < FRAMES; k++) {
            int16_t want = k < there ? samples[start + k] : 0;
            float mid = k < there ? samples[(there == FRAMES ? (LONG - FRAMES) / 2 : 0) + k] / 32768.0f : 0;
            bad += have[k] != want || left[k] != mid || left[FRAMES + k] != mid;
        }
        CHECK_EQ(bad, 0);
    }
    CHECK(lowest < 150 && highest > 750);
    v[5] = (struct larder_value){c, other_len}; /* at the stored rate, of which there are two */
    CHECK_ERR(prep_batch_run(&t, N, v, &err), LARDER_EINVAL, &err);
    CHECK_STR(err.message, "output 'voice': samples of 8000 and 16000 Hz in one batch: say audio.rate");
    v[5] = NO_VALUE;
    CHECK_ERR(prep_batch_run(&t, N, v, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field voice: the sample has none");
    v[5] = (struct larder_value){a, 30};
    CHECK_ERR(prep_batch_run(&t, N, v, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "field voice: 30 bytes ") == err.message);
    prep_close(&t);
    o[0].audio.rate = 16000;
    prep_open(&t, fields, 1, o, 1);
    v[5] = (struct larder_value){c, other_len};
    CHECK_OK(prep_batch_run(&t, N, v, &err), &err);
    CHECK_EQ(t.b.arrays[0].lengths[5], SHORT);
    CHECK_EQ(t.b.arrays[0].lengths[3], FRAMES); /* 60 frames at 8 kHz are 120 at 16 */
    prep_close(&t);
}

/* ---- the caller's own function ---- */

static int sum_fn(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    uint64_t *o = out;
    (void)user;
    CHECK(o[0] == 0 && o[1] == 0 && o[2] == 0 && o[3] == 0);
    if (in->values[1].len == 1)
        return err_set(err, LARDER_EIO, "one byte is too few");
    if (in->values[1].len == 2)
        return LARDER_ENOMEM;
    o[0] = in->ordinal * 1000000 + in->position * 1000 + in->epoch;
    o[1] = in->random;
    o[2] = in->values[0].len + 10 * in->values[1].len + 100 * in->n_fields;
    return LARDER_OK;
}

TEST(user)
{
    static const struct larder_field fields[] = {{"a", LARDER_UTF8, NULL, 0, NULL}, {"b", LARDER_BYTES, NULL, 0, NULL}};
    static const int64_t shape[] = {4};
    struct larder_output o = output(NULL, LARDER_PREP_USER);
    struct batch_test t;
    struct larder_error err;
    o.name = "mine";
    o.fn = sum_fn;
    o.dtype = "uint64";
    o.ndim = 1;
    o.shape = shape;
    prep_open(&t, fields, 2, &o, 1);
    struct larder_value v[2][2] = {{{"x", 1}, {"first", 5}}, {{"yy", 2}, {"second", 6}}};
    CHECK_OK(prep_batch_run(&t, 2, v[0], &err), &err);
    const uint64_t *have = t.b.arrays[0].data;
    CHECK_EQ(have[0], 1000050003);
    CHECK_EQ(have[4], 1001051003);
    CHECK_EQ(have[2], 251);
    CHECK_EQ(have[6], 262);
    CHECK_EQ(have[3], 0);
    CHECK(have[1] != have[5] && have[1] >> 32 && (uint32_t)have[1]);
    uint64_t random = have[5];
    prep_lay(&t, 2, v[0], 7, 3);
    CHECK_OK(prep_sample(t.worker, &t.b, 0, 5, 51, v[0], &err), &err);
    CHECK_EQ(ARRAY(&t, 0, uint64_t)[1], random); /* of the position, not of the place in the batch */
    v[1][1].len = 1;
    CHECK_ERR(prep_batch_run(&t, 2, v[0], &err), LARDER_EINVAL, &err);
    CHECK_STR(err.message, "output mine: one byte is too few");
    v[1][1].len = 2;
    CHECK_ERR(prep_batch_run(&t, 2, v[0], &err), LARDER_EINVAL, &err);
    CHECK_STR(err.message, "output mine: out of memory");
    prep_close(&t);
}

/* ---- memory ---- */

TEST(sizes)
{
    static const int64_t wide[] = {1 << 20, 1 << 20};
    static const struct larder_field fields[] = {{"text", LARDER_UTF8, NULL, 0, NULL}, {"wide", LARDER_NDARRAY, "float64", 2, wide}};
    struct larder_output o[] = {output("text", LARDER_PREP_RAGGED), output("text", LARDER_PREP_PADDED), output("wide", LARDER_PREP_AUTO)};
    struct batch_test t;
    struct larder_error err;
    o[1].name = "padded";
    prep_open(&t, fields, 2, o, 2);
    size_t one = prep_bytes(t.prep, 1, 1000, 1000), many = prep_bytes(t.prep, 100, 100 * 1000, 1000);
    CHECK(one >= 2000 && one < 2000 + 2048);
    CHECK(many >= 200 * 1000 && many < 200 * 1000 + 100 * 13 + 2048);
    CHECK_EQ(prep_bytes(t.prep, UINT32_MAX, UINT64_MAX, UINT64_MAX), SIZE_MAX); /* never wraps */
    prep_close(&t);
    prep_open(&t, fields, 2, o, 3);
    CHECK_EQ(prep_bytes(t.prep, 1 << 30, 1, 1), SIZE_MAX);
    CHECK(prep_bytes(t.prep, 1, 1, 1) > 1ull << 43);
    prep_close(&t);
    /* Values that are more than was said: an error, nothing beyond the memory. */
    prep_open(&t, fields, 2, o, 2);
    struct larder_value v[][2] = {{{"one", 3}, NO_VALUE}, {{"two", 3}, NO_VALUE}};
    prep_lay(&t, 2, v[0], 1, 1);
    char more[1000] = {0};
    v[1][0] = VALUE(more);
    for (uint32_t i = 0; i < 2; i++)
        CHECK_OK(prep_sample(t.worker, &t.b, i, i, i, v[i], &err), &err);
    CHECK_ERR(prep_end(&t.b, v[0], 2, &err), LARDER_ENOMEM, &err);
    CHECK_STR(err.message, "output 'text': 1003 bytes in a batch that has room for 6");
    prep_check_guard(&t);
    prep_close(&t);
}

/* ---- threads, order ---- */

enum { M = 40 };
struct race { struct batch_test *t; struct larder_value (*v)[4]; atomic_uint next; uint32_t order[M]; };

static void *race_run(void *user)
{
    struct race *r = user;
    struct prep_worker *w;
    struct larder_error err;
    CHECK_OK(prep_worker_new(r->t->prep, &w, &err), &err);
    for (uint32_t k; (k = atomic_fetch_add(&r->next, 1)) < M;) {
        uint32_t i = r->order[k];
        CHECK_OK(prep_sample(w, &r->t->b, i, i, 900 + i, r->v[i], &err), &err);
    }
    prep_worker_free(w);
    return NULL;
}

/* The same arrays by one thread in order, by four in any, and after a sample was done with other values first. */
TEST(any_order_any_threads)
{
    static const int64_t shape[] = {-1, 4};
    static const struct larder_field fields[] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"boxes", LARDER_NDARRAY, "float32", 2, shape},
                                                 {"text", LARDER_UTF8, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}};
    struct larder_output o[] = {output("image", LARDER_PREP_IMAGE), output("boxes", LARDER_PREP_BOXES), output("text", LARDER_PREP_PADDED),
                                output("label", LARDER_PREP_DENSE), output("text", LARDER_PREP_RAGGED)};
    struct batch_test t;
    struct larder_error err;
    struct larder_value v[M][4];
    uint8_t *files[4];
    size_t lens[4];
    int64_t labels[M];
    float boxes[M][4];
    for (uint32_t i = 0; i < 4; i++) {
        AUTO_FREE uint8_t *pixels = make_pixels(64 + 8 * i, 50, 3, i);
        files[i] = make_jpeg(pixels, 64 + 8 * i, 50, &(struct jpeg_kind){3, 2, 2, false, 0}, &lens[i]);
    }
    for (uint32_t i = 0; i < M; i++) {
        labels[i] = i * 11;
        memcpy(boxes[i], (float[]){(float)i, 1, (float)i + 20, 30}, 16);
        v[i][0] = (struct larder_value){files[i % 4], lens[i % 4]};
        v[i][1] = (struct larder_value){boxes[i], i % 3 ? 16 : 0};
        v[i][2] = (struct larder_value){files[i % 4], i};
        v[i][3] = (struct larder_value){&labels[i], 8};
    }
    o[0].image = (struct larder_image){.width = 20, .flip = 0.5, .views = 2};
    o[1].follows = "image";
    o[4].name = "ragged";
    prep_open(&t, fields, 4, o, 5);
    uint64_t digest[3] = {0};
    for (int round = 0; round < 3; round++) {
        struct race r = {.t = &t, .v = v};
        uint64_t rng = (uint64_t)round;
        pthread_t threads[4];
        prep_lay(&t, M, v[0], 1, 2);
        for (uint32_t i = 0; i < M; i++)
            r.order[i] = i;
        for (uint32_t i = M; round && i > 1; i--) {
            uint32_t k = (uint32_t)rng_below(&rng, i), swap = r.order[k];
            r.order[k] = r.order[i - 1];
            r.order[i - 1] = swap;
        }
        if (round == 2) {
            CHECK_OK(prep_sample(t.worker, &t.b, 7, 30, 907, v[30], &err), &err);
            CHECK_ERR(prep_sample(t.worker, &t.b, 9, 9, 909, (struct larder_value[4]){{"x", 1}}, &err), LARDER_ECORRUPT, &err);
        }
        for (int k = 0; k < (round ? 4 : 1); k++)
            REQUIRE(!pthread_create(&threads[k], NULL, race_run, &r));
        for (int k = 0; k < (round ? 4 : 1); k++)
            pthread_join(threads[k], NULL);
        CHECK_OK(prep_end(&t.b, v[0], 4, &err), &err);
        prep_check_guard(&t);
        for (int k = 0; k < 5; k++) {
            const struct larder_array *a = &t.b.arrays[k];
            digest[round] = larder_hash64(digest[round], a->data, a->len);
            digest[round] = larder_hash64(digest[round], a->shape, a->ndim * sizeof(*a->shape));
            if (a->offsets)
                digest[round] = larder_hash64(digest[round], a->offsets, ((k == 1 ? 2 * M : M) + 1) * sizeof(*a->offsets));
            if (a->present)
                digest[round] = larder_hash64(digest[round], a->present, M);
            if (a->keep)
                digest[round] = larder_hash64(digest[round], a->keep, (size_t)a->shape[0]);
        }
    }
    CHECK_EQ(digest[0], digest[1]);
    CHECK_EQ(digest[0], digest[2]);
    for (uint32_t i = 0; i < 4; i++)
        free(files[i]);
    prep_close(&t);
}

TEST_MAIN();
