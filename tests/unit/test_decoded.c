/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lm */
/* test_decoded.c - the stored form of samples: sizes, pixels, hits and misses alike, compressed or not, damage. */
#include <math.h>

#include "loader/prep_int.h"
#include "tests/unit/images.h"
#include "tests/unit/test.h"

enum { N = 6, IMAGE = 0, LABEL = 1, TEXT = 2, SECOND = 3, FIELDS = 4 };

static struct schema_field fields[FIELDS] = {{(char *)"image", LARDER_IMAGE, NULL, 0, NULL}, {(char *)"label", LARDER_I64, NULL, 0, NULL},
                                             {(char *)"text", LARDER_UTF8, NULL, 0, NULL}, {(char *)"second", LARDER_IMAGE, NULL, 0, NULL}};
static struct manifest manifest = {.uuid = "decoded", .lineage = "tests", .samples = N, .schema = {FIELDS, fields}};
static const uint8_t keep[FIELDS] = {DECODED_PIXELS, DECODED_RAW, 0, DECODED_PIXELS | DECODED_RAW};

/* Wide, tall, small, of one pixel's height, grey, turned. */
static const struct { uint32_t w, h; struct jpeg_kind kind; } shapes[N] = {
    {301, 203, {3, 2, 2, false, 0}}, {97, 450, {3, 1, 1, true, 0}}, {40, 63, {3, 2, 1, false, 0}}, {500, 1, {3, 1, 1, false, 0}},
    {128, 128, {1, 1, 1, false, 0}}, {210, 140, {3, 2, 2, false, 6}}};
static uint8_t *jpegs[N];
static size_t lens[N];
static int64_t labels[N];

/* Ordinal 2 has no second image, 4 has neither. */
static void sample(uint64_t ordinal, struct larder_value values[FIELDS])
{
    size_t i = (size_t)ordinal, k = (i + 1) % N;
    if (!jpegs[i] || !jpegs[k])
        for (size_t j = 0; j < N; j++) {
            uint8_t *p = make_pixels(shapes[j].w, shapes[j].h, shapes[j].kind.channels, j + 1);
            jpegs[j] = make_jpeg(p, shapes[j].w, shapes[j].h, &shapes[j].kind, &lens[j]);
            labels[j] = (int64_t)j * 11;
            free(p);
        }
    memset(values, 0, FIELDS * sizeof(*values));
    if (i != 4)
        values[IMAGE] = (struct larder_value){jpegs[i], lens[i]};
    values[LABEL] = (struct larder_value){&labels[i], 8};
    values[TEXT] = (struct larder_value){"not kept", 8};
    if (i != 2 && i != 4)
        values[SECOND] = (struct larder_value){jpegs[k], lens[k]};
}

static struct decoded *open_decoded(const char *name, uint64_t bytes, uint32_t side, bool compress, const struct larder_image *image)
{
    struct decoded_options o = {&manifest, name, bytes, side, compress, true, {.exact = 1}, keep};
    struct decoded *d = NULL;
    struct larder_error err;
    if (image)
        o.image = *image;
    REQUIRE_OK(decoded_open(&o, &d, &err), &err);
    return d;
}

static struct decoded_worker *worker(struct decoded *d)
{
    struct decoded_worker *w = NULL;
    struct larder_error err;
    REQUIRE_OK(decoded_worker_new(d, &w, &err), &err);
    return w;
}

/* The image as the codec renders it whole at that size. */
static void check_image(const struct decoded_image *im, const struct larder_value *v, uint32_t side, int filter)
{
    struct image_decoder *images;
    struct image_info info;
    struct larder_error err;
    if (!v->data) {
        CHECK(!im->pixels);
        return;
    }
    REQUIRE_OK(image_decoder_new(&images, &err), &err);
    REQUIRE_OK(image_open(images, v->data, v->len, &info, &err), &err);
    CHECK(im->pixels != NULL);
    CHECK_EQ(im->full_width, info.width);
    CHECK_EQ(im->full_height, info.height);
    CHECK_EQ(im->orientation, info.orientation);
    uint32_t shorter = MIN(info.width, info.height);
    double ratio = shorter > side ? (double)side / shorter : 1;
    CHECK_EQ(im->width, (uint32_t)floor(info.width * ratio + 0.5));
    CHECK_EQ(im->height, (uint32_t)floor(info.height * ratio + 0.5));
    struct image_job job = {.width = im->width, .height = im->height, .filter = filter, .exact = true};
    uint8_t *want = malloc(image_job_bytes(&job));
    REQUIRE_OK(image_render(images, &job, want, &err), &err);
    CHECK_MEM(im->pixels, want, image_job_bytes(&job));
    free(want);
    image_decoder_free(images);
}

/* Makes it when it is not there; whether it was. */
static bool go(struct decoded *d, struct decoded_worker *w, uint64_t ordinal, uint32_t side, int filter)
{
    struct larder_value values[FIELDS], got[FIELDS];
    const struct decoded_image *images;
    struct larder_error err;
    struct extent e;
    const void *view;
    uint64_t ns = UINT64_MAX;
    sample(ordinal, values);
    bool hit = decoded_lookup(d, &ordinal, 1, &e, &view);
    if (hit) {
        CHECK_OK(decoded_take(w, view, e.stored_len, got, &images, &ns, &err), &err);
        CHECK_EQ(got[LABEL].len, 8);
        CHECK_MEM(got[LABEL].data, values[LABEL].data, 8);
        CHECK(!got[TEXT].data && !got[IMAGE].data);
        CHECK_EQ(got[SECOND].len, values[SECOND].len);
        CHECK_EQ(got[SECOND].data != NULL, values[SECOND].data != NULL);
        if (got[SECOND].data)
            CHECK_MEM(got[SECOND].data, values[SECOND].data, values[SECOND].len);
    } else {
        CHECK_OK(decoded_make(w, ordinal, values, &images, &ns, &err), &err);
    }
    CHECK(ns < 10000000000ull);
    check_image(&images[IMAGE], &values[IMAGE], side, filter);
    check_image(&images[SECOND], &values[SECOND], side, filter);
    CHECK(!images[LABEL].pixels && !images[TEXT].pixels);
    return hit;
}

TEST(hit_or_miss_compressed_or_not_it_is_the_same)
{
    for (int compress = 0; compress < 2; compress++) {
        struct decoded *d = open_decoded(NULL, 8 * MIB, 100, compress, NULL);
        struct decoded_worker *w = worker(d);
        for (int pass = 0; pass < 3; pass++)
            for (uint64_t i = 0; i < N; i++)
                CHECK_EQ(go(d, w, i, 100, IMAGE_BILINEAR), pass > 0);
        CHECK_EQ(decoded_stats(d).entries, N);
        decoded_worker_free(w);
        decoded_close(d);
    }
    decoded_close(NULL);
    decoded_worker_free(NULL);
}

TEST(compressed_takes_less)
{
    uint64_t used[2];
    for (int compress = 0; compress < 2; compress++) {
        struct decoded *d = open_decoded(NULL, 8 * MIB, 200, compress, NULL);
        struct decoded_worker *w = worker(d);
        struct extent e[N];
        const void *views[N];
        const uint64_t ordinals[N] = {0, 1, 2, 3, 4, 5};
        for (uint64_t i = 0; i < N; i++)
            go(d, w, i, 200, IMAGE_BILINEAR);
        CHECK_EQ(decoded_lookup(d, ordinals, N, e, views), N);
        used[compress] = 0;
        for (uint64_t i = 0; i < N; i++)
            used[compress] += e[i].stored_len;
        decoded_worker_free(w);
        decoded_close(d);
    }
    CHECK(used[1] < used[0] * 9 / 10);
}

TEST(what_another_compressed_is_read_too)
{
    struct decoded *a = open_decoded("decoded-both", 8 * MIB, 90, true, NULL), *b = open_decoded("decoded-both", 8 * MIB, 90, false, NULL);
    struct decoded_worker *wa = worker(a), *wb = worker(b);
    CHECK(!go(a, wa, 0, 90, IMAGE_BILINEAR));
    CHECK(!go(b, wb, 1, 90, IMAGE_BILINEAR));
    CHECK(go(b, wb, 0, 90, IMAGE_BILINEAR));
    CHECK(go(a, wa, 1, 90, IMAGE_BILINEAR));
    decoded_worker_free(wa);
    decoded_worker_free(wb);
    decoded_close(a);
    decoded_close(b);
}

TEST(other_options_are_another_form)
{
    const struct larder_image other[] = {{.exact = 1, .filter = LARDER_BICUBIC}, {.exact = 1, .filter = LARDER_NEAREST},
                                         {.exact = 1, .pixels_max = 1 << 20}};
    struct decoded *d = open_decoded("decoded-forms", 64 * MIB, 90, false, NULL);
    struct decoded_worker *w = worker(d);
    for (uint64_t i = 0; i < N; i++)
        CHECK(!go(d, w, i, 90, IMAGE_BILINEAR));
    for (size_t k = 0; k <= ARRAY_LEN(other); k++) {
        bool side = k == ARRAY_LEN(other);
        struct decoded *e = open_decoded("decoded-forms", 64 * MIB, side ? 91 : 90, false, side ? NULL : &other[k]);
        struct decoded_worker *we = worker(e);
        for (int pass = 0; pass < 2; pass++)
            CHECK_EQ(go(e, we, 0, side ? 91 : 90, side ? IMAGE_BILINEAR : other[k].filter), pass);
        decoded_worker_free(we);
        decoded_close(e);
    }
    CHECK(go(d, w, 5, 90, IMAGE_BILINEAR));
    decoded_worker_free(w);
    decoded_close(d);
}

TEST(a_full_cache_changes_nothing)
{
    struct decoded *d = open_decoded(NULL, 4 * MIB, 100, false, NULL);
    struct decoded_worker *w = worker(d);
    struct larder_value values[FIELDS];
    const struct decoded_image *images;
    struct larder_error err;
    uint64_t ns, n = 0;
    sample(0, values);
    for (n = 100; !n || decoded_stats(d).refusals == 0; n++) /* until it is full */
        REQUIRE_OK(decoded_make(w, n, values, &images, &ns, &err), &err);
    CHECK(n > 105 && n < 200);
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t i = 0; i < N; i++)
            CHECK(!go(d, w, i, 100, IMAGE_BILINEAR));
    decoded_worker_free(w);
    decoded_close(d);
}

TEST(a_sample_that_cannot_be_decoded_is_named_and_not_kept)
{
    struct decoded *d = open_decoded(NULL, 8 * MIB, 100, false, NULL);
    struct decoded_worker *w = worker(d);
    struct larder_value values[FIELDS];
    const struct decoded_image *images;
    struct larder_error err;
    struct extent e;
    const void *view;
    uint64_t ns, ordinal = 0;
    sample(0, values);
    values[SECOND] = (struct larder_value){"this is no image", 16};
    CHECK_ERR(decoded_make(w, 0, values, &images, &ns, &err), LARDER_ECORRUPT, &err);
    CHECK(strncmp(err.message, "field second: 16 bytes that are no image", 40) == 0);
    values[SECOND] = values[IMAGE];
    values[IMAGE].len /= 2;
    CHECK_ERR(decoded_make(w, 0, values, &images, &ns, &err), LARDER_ECORRUPT, &err);
    CHECK(strncmp(err.message, "field image: ", 13) == 0);
    CHECK_EQ(decoded_lookup(d, &ordinal, 1, &e, &view), 0);
    CHECK(!go(d, w, 0, 100, IMAGE_BILINEAR));
    decoded_worker_free(w);
    decoded_close(d);

    struct larder_image small = {.exact = 1, .pixels_max = 301 * 203 - 1};
    d = open_decoded(NULL, 8 * MIB, 100, false, &small);
    w = worker(d);
    sample(0, values);
    CHECK_ERR(decoded_make(w, 0, values, &images, &ns, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "field image: an image of 301 x 203 is larger than the limit of 61102 pixels");
    decoded_worker_free(w);
    decoded_close(d);
}

TEST(bytes_that_are_no_record_are_refused)
{
    struct decoded *d = open_decoded(NULL, 8 * MIB, 60, true, NULL);
    struct decoded_worker *w = worker(d);
    struct larder_value values[FIELDS];
    const struct decoded_image *images;
    struct larder_error err;
    struct extent e;
    const void *view;
    uint64_t ordinal = 0, ns, rng = 4, refused = 0;
    go(d, w, 0, 60, IMAGE_BILINEAR);
    REQUIRE(decoded_lookup(d, &ordinal, 1, &e, &view) == 1);
    uint8_t *copy = malloc(e.stored_len);
    for (size_t len = 0; len < 140; len++) {
        memcpy(copy, view, len); /* exactly as many bytes: the address checker sees what is read beyond */
        uint8_t *cut = malloc(len + (len == 0));
        memcpy(cut, copy, len);
        CHECK_ERR(decoded_take(w, cut, len, values, &images, &ns, &err), LARDER_EIO, &err);
        free(cut);
    }
    for (int i = 0; i < 400; i++) { /* heads with a byte changed: refused, or something else, but nothing beyond */
        memcpy(copy, view, e.stored_len);
        copy[rng_below(&rng, 16 + 4 * 32)] ^= (uint8_t)(1 + rng_below(&rng, 255));
        refused += decoded_take(w, copy, e.stored_len, values, &images, &ns, &err) != LARDER_OK;
    }
    CHECK(refused > 100);
    free(copy);
    decoded_worker_free(w);
    decoded_close(d);
}

TEST(crops_move_to_the_pixels_kept)
{
    struct decoded_image im = {NULL, 300, 200, 900, 600, 1};
    struct geometry full = {900, 600, 90, 30, 450, 333, 224, 224, true, 1}, got;
    decoded_geometry(&im, &full, &got);
    CHECK(got.x == 30 && got.y == 10 && got.w == 150 && got.h == 111);
    CHECK(got.image_width == 300 && got.image_height == 200 && got.flip && got.width == 224 && got.height == 224 && got.orientation == 1);
    struct decoded_image tall = {NULL, 300, 200, 900, 400, 6}; /* x is a third, y a half; turned they change places */
    full = (struct geometry){400, 900, 40, 90, 200, 300, 224, 224, false, 6};
    decoded_geometry(&tall, &full, &got);
    CHECK(got.x == 20 && got.y == 30 && got.w == 100 && got.h == 100);
    CHECK(got.image_width == 200 && got.image_height == 300 && got.orientation == 6);
}

TEST_MAIN();
