/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lpng -lwebp -lm */
/*
 * test_image.c - crops of images of every kind, against a full decode by the format's own library and a resampler in floating
 * point that is written from PIL's definition. tests/e2e/test_pixels.py compares with PIL itself.
 */
#include <math.h>

#include <png.h>
#include <webp/encode.h>

#include "tests/unit/images.h"
#include "tests/unit/test.h"

/* ---- the reference: double precision, u8 between the passes and after them, horizontal first, as PIL ---- */

static double weight(int filter, double x)
{
    x = fabs(x);
    if (filter == IMAGE_BILINEAR)
        return x < 1 ? 1 - x : 0;
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0;
}

/* in: n pixels, `hop` apart, 3 channels; out likewise, m of them. */
static void resample(const uint8_t *in, uint32_t n, size_t hop, uint8_t *out, uint32_t m, size_t out_hop, const struct image_job *j)
{
    double scale = (double)n / m, stretch = j->no_antialias || scale < 1 ? 1 : scale;
    double support = (j->filter == IMAGE_BICUBIC ? 2 : 1) * stretch, walked = scale / 2; /* as PIL does for NEAREST */
    for (uint32_t i = 0; i < m; i++, walked += scale) {
        double center = (i + 0.5) * scale, sum = 0, v[3] = {0};
        int lo = MAX((int)(center - support + 0.5), 0), hi = MIN((int)(center + support + 0.5), (int)n);
        if (j->filter == IMAGE_NEAREST) {
            lo = MIN((int)walked, (int)n - 1);
            hi = lo + 1;
        }
        for (int k = lo; k < hi; k++) {
            double w = j->filter == IMAGE_NEAREST ? 1 : weight(j->filter, (k - center + 0.5) / stretch);
            sum += w;
            for (int c = 0; c < 3; c++)
                v[c] += w * in[k * hop + c];
        }
        for (int c = 0; c < 3; c++)
            out[i * out_hop + c] = (uint8_t)MIN(MAX(lrint(v[c] / sum), 0), 255);
    }
}

static uint8_t *reference(const uint8_t *rgb, uint32_t w, const struct image_job *j)
{
    uint32_t cx = (uint32_t)j->x, cy = (uint32_t)j->y, cw = (uint32_t)j->w, ch = (uint32_t)j->h;
    uint8_t *rows = malloc((size_t)j->width * ch * 3), *out = malloc((size_t)j->width * j->height * 3);
    for (uint32_t y = 0; y < ch; y++)
        resample(rgb + ((size_t)(cy + y) * w + cx) * 3, cw, 3, rows + (size_t)y * j->width * 3, j->width, 3, j);
    for (uint32_t x = 0; x < j->width; x++)
        resample(rows + x * 3, ch, (size_t)j->width * 3, out + x * 3, j->height, (size_t)j->width * 3, j);
    for (uint32_t y = 0; j->flip && y < j->height; y++)
        for (uint32_t x = 0; x < j->width / 2; x++)
            for (int c = 0; c < 3; c++) {
                uint8_t *a = &out[((size_t)y * j->width + x) * 3 + c], *b = &out[((size_t)y * j->width + j->width - 1 - x) * 3 + c], t = *a;
                *a = *b;
                *b = t;
            }
    free(rows);
    return out;
}

/* Random crops of an image whose pixels are `rgb`: all within 2 levels, 0.3 on average; the nearest pixel is the same one. */
static void check_crops(const void *data, size_t len, const uint8_t *rgb, uint32_t w, uint32_t h, uint64_t seed)
{
    struct image_decoder *d;
    struct image_info info;
    struct larder_error err;
    REQUIRE_OK(image_decoder_new(&d, &err), &err);
    REQUIRE_OK(image_open(d, data, len, &info, &err), &err);
    CHECK_EQ(info.width, w);
    CHECK_EQ(info.height, h);
    for (int i = 0; i < 24; i++) {
        struct image_job j = {.exact = true, .filter = i % 3, .flip = i & 4, .no_antialias = i % 7 == 5};
        uint32_t cw = 1 + (uint32_t)rng_below(&seed, w), ch = 1 + (uint32_t)rng_below(&seed, h);
        j.w = cw;
        j.h = ch;
        j.x = (double)rng_below(&seed, w - cw + 1);
        j.y = (double)rng_below(&seed, h - ch + 1);
        j.width = i == 1 ? cw : 1 + (uint32_t)rng_below(&seed, 120);
        j.height = i == 1 ? ch : 1 + (uint32_t)rng_below(&seed, 120);
        size_t n = image_job_bytes(&j);
        uint8_t *out = malloc(n), *want = reference(rgb, w, &j);
        REQUIRE_OK(image_render(d, &j, out, &err), &err);
        uint64_t sum = 0, most = 0;
        for (size_t k = 0; k < n; k++) {
            uint64_t diff = (uint64_t)abs(out[k] - want[k]);
            sum += diff;
            most = MAX(most, diff);
        }
        test_check(j.filter == IMAGE_NEAREST ? most == 0 : most <= 2 && sum * 10 <= n * 3, __FILE__, __LINE__, "crop %gx%g+%g+%g to %ux%u filter %d: mean %.3f most %" PRIu64, j.w, j.h, j.x, j.y, j.width,
                      j.height, j.filter, (double)sum / (double)n, most);
        free(out);
        free(want);
    }
    image_decoder_free(d);
}

enum { W = 161, H = 117 };

TEST(jpeg_of_every_sampling)
{
    static const struct jpeg_kind kinds[] = {{3, 1, 1, false, 0}, {3, 2, 1, false, 0}, {3, 2, 2, false, 0}, {3, 1, 2, false, 0},
                                             {3, 4, 1, false, 0}, {3, 1, 1, true, 0},  {3, 2, 2, true, 0},  {1, 1, 1, false, 0},
                                             {1, 1, 1, true, 0}};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        uint8_t *p = make_pixels(W, H, kinds[i].channels, i + 1);
        size_t len;
        uint8_t *jpg = make_jpeg(p, W, H, &kinds[i], &len), *rgb = full_jpeg(jpg, len, false);
        check_crops(jpg, len, rgb, W, H, i + 10);
        free(p);
        free(jpg);
        free(rgb);
    }
}

TEST(jpeg_whole_is_the_full_decode)
{
    struct image_decoder *d;
    struct image_info info;
    struct larder_error err;
    uint8_t *p = make_pixels(W, H, 3, 3);
    size_t len;
    uint8_t *jpg = make_jpeg(p, W, H, &(struct jpeg_kind){3, 2, 2, false, 6}, &len), *rgb = full_jpeg(jpg, len, false), *out = malloc(W * H * 3);
    REQUIRE_OK(image_decoder_new(&d, &err), &err);
    REQUIRE_OK(image_open(d, jpg, len, &info, &err), &err);
    CHECK_EQ(info.kind, IMAGE_JPEG);
    CHECK_EQ(info.orientation, 6);
    struct image_job j = {.width = W, .height = H};
    CHECK_OK(image_render(d, &j, out, &err), &err);
    CHECK_MEM(out, rgb, W * H * 3);
    /* Every crop without scaling, too. */
    for (uint32_t x = 0; x < 40; x++) {
        j = (struct image_job){x, x / 2, W - 2 * x, H - x, W - 2 * x, H - x, .exact = true};
        CHECK_OK(image_render(d, &j, out, &err), &err);
        for (uint32_t y = 0; y < j.height; y++)
            CHECK_MEM(out + (size_t)y * j.width * 3, rgb + ((size_t)(y + x / 2) * W + x) * 3, j.width * 3);
    }
    image_decoder_free(d);
    free(p);
    free(jpg);
    free(rgb);
    free(out);
}

/* As PIL: what is stored is inverted, and black takes from the others. */
static void check_four_inks(bool progressive, J_COLOR_SPACE stored)
{
    uint8_t *p = make_pixels(W, H, 4, 4), rgb[W * H * 3];
    size_t len;
    uint8_t *jpg = make_jpeg_as(p, W, H, &(struct jpeg_kind){4, 1, 1, progressive, 0}, stored, &len), *cmyk = full_jpeg(jpg, len, true);
    for (size_t i = 0; i < W * H; i++)
        for (int c = 0; c < 3; c++) {
            unsigned ink = 255u - cmyk[i * 4 + c], k = cmyk[i * 4 + 3];
            rgb[i * 3 + c] = (uint8_t)(k - (ink * k + 127) / 255);
        }
    check_crops(jpg, len, rgb, W, H, 5);
    free(p);
    free(jpg);
    free(cmyk);
}

TEST(jpeg_cmyk_and_ycck)
{
    check_four_inks(false, JCS_CMYK);
    check_four_inks(false, JCS_YCCK);
    check_four_inks(true, JCS_YCCK);
}

/* A crop that shrinks much is scaled by the DCT: near, and not the same. */
TEST(jpeg_dct_scaling)
{
    enum { BIG = 640 };
    struct image_decoder *d;
    struct image_info info;
    struct larder_error err;
    uint8_t *p = make_pixels(BIG, BIG, 3, 6), exact[64 * 64 * 3], fast[64 * 64 * 3];
    size_t len, differ = 0;
    uint64_t sum = 0;
    uint8_t *jpg = make_jpeg(p, BIG, BIG, &(struct jpeg_kind){3, 2, 2, false, 0}, &len);
    REQUIRE_OK(image_decoder_new(&d, &err), &err);
    REQUIRE_OK(image_open(d, jpg, len, &info, &err), &err);
    struct image_job j = {33, 17, 601, 599, 64, 64, .exact = true};
    CHECK_OK(image_render(d, &j, exact, &err), &err);
    j.exact = false;
    CHECK_OK(image_render(d, &j, fast, &err), &err);
    for (size_t i = 0; i < sizeof(fast); i++) {
        sum += (uint64_t)abs(fast[i] - exact[i]);
        differ += fast[i] != exact[i];
    }
    CHECK(sum <= 2 * sizeof(fast));
    CHECK(differ > 0);
    image_decoder_free(d);
    free(p);
    free(jpg);
}

static void check_png(uint32_t format, unsigned channels, unsigned colour)
{
    uint8_t *p = make_pixels(W, H, channels, 7), *rgb = malloc(W * H * 3), *file = malloc(1 << 20);
    png_alloc_size_t len = 1 << 20;
    png_image im = {.version = PNG_IMAGE_VERSION, .width = W, .height = H, .format = format};
    REQUIRE(png_image_write_to_memory(&im, file, &len, 0, p, 0, NULL));
    for (size_t i = 0; i < W * H; i++)
        for (unsigned c = 0; c < 3; c++)
            rgb[i * 3 + c] = p[i * channels + (colour == 3 ? c : 0)];
    check_crops(file, len, rgb, W, H, format);
    free(p);
    free(rgb);
    free(file);
}

TEST(png_of_every_layout)
{
    check_png(PNG_FORMAT_RGB, 3, 3);
    check_png(PNG_FORMAT_RGBA, 4, 3);
    check_png(PNG_FORMAT_GRAY, 1, 1);
    check_png(PNG_FORMAT_GA, 2, 1);
}

TEST(webp)
{
    uint8_t *p = make_pixels(W, H, 3, 8), *file = NULL;
    size_t len = WebPEncodeLosslessRGB(p, W, H, W * 3, &file);
    REQUIRE(len > 0);
    check_crops(file, len, p, W, H, 8);
    WebPFree(file);
    free(p);
}

/* Without vectors the same bits; a flat image stays flat; mirrored columns are the columns mirrored. */
TEST(resizer_alone)
{
    struct resize *a, *b;
    struct larder_error err;
    uint64_t seed = 9;
    REQUIRE_OK(resize_new(&a, &err), &err);
    REQUIRE_OK(resize_new(&b, &err), &err);
    resize_plain(b, true);
    for (int i = 0; i < 60; i++) {
        uint32_t w = 1 + (uint32_t)rng_below(&seed, 90), h = 1 + (uint32_t)rng_below(&seed, 90);
        struct resize_input in = {w, h, 0, 0, w, h, {0, 0, w, h, 3}};
        struct image_job j = {.width = 1 + (uint32_t)rng_below(&seed, 90), .height = 1 + (uint32_t)rng_below(&seed, 90), .filter = i % 3};
        size_t n = image_job_bytes(&j);
        uint8_t *p = make_pixels(w, h, 3, (uint64_t)i), *x = malloc(n), *y = malloc(n);
        bool flat = i % 5 == 0;
        if (flat)
            memset(p, i * 4, (size_t)w * h * 3);
        for (int k = 0; k < 2; k++) {
            struct resize *r = k ? b : a;
            REQUIRE_OK(resize_begin(r, &in, &j, k ? y : x, &err), &err);
            for (uint32_t row = 0; row < h; row++) {
                memcpy(resize_row(r, row), p + (size_t)row * w * 3, (size_t)w * 3);
                resize_feed(r, row + 1);
            }
        }
        CHECK_MEM(x, y, n);
        for (size_t k = 0; flat && k < n; k++)
            if (x[k] != i * 4) {
                CHECK_EQ(x[k], i * 4);
                break;
            }
        free(p);
        free(x);
        free(y);
    }
    resize_free(a);
    resize_free(b);
}

TEST(types_and_layouts)
{
    static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};
    struct image_decoder *d;
    struct image_info info;
    struct larder_error err;
    enum { S = 20, N = S * S * 3 };
    uint8_t *p = make_pixels(W, H, 3, 3), u8[N], chw[N];
    float f[N];
    uint16_t h[N], bf[N];
    size_t len;
    uint8_t *jpg = make_jpeg(p, W, H, &(struct jpeg_kind){3, 2, 2, false, 0}, &len);
    REQUIRE_OK(image_decoder_new(&d, &err), &err);
    REQUIRE_OK(image_open(d, jpg, len, &info, &err), &err);
    struct image_job j = {10, 10, 90, 80, S, S, .flip = true};
    CHECK_OK(image_render(d, &j, u8, &err), &err);
    j.planar = true;
    CHECK_OK(image_render(d, &j, chw, &err), &err);
    j.dtype = IMAGE_F32, j.mean = mean, j.std = std;
    CHECK_OK(image_render(d, &j, f, &err), &err);
    j.planar = false, j.dtype = IMAGE_F16;
    CHECK_OK(image_render(d, &j, h, &err), &err);
    j.dtype = IMAGE_BF16;
    CHECK_OK(image_render(d, &j, bf, &err), &err);
    for (int i = 0; i < S * S; i++)
        for (int c = 0; c < 3; c++) {
            uint8_t v = u8[i * 3 + c];
            float want = ((float)v / 255 - mean[c]) / std[c];
            CHECK_EQ(chw[c * S * S + i], v);
            CHECK(fabsf(f[c * S * S + i] - want) < 1e-5f);
            uint32_t bits = (uint32_t)bf[i * 3 + c] << 16;
            float b;
            memcpy(&b, &bits, 4);
            CHECK(fabsf(b - want) <= fabsf(want) / 128);
            int e = h[i * 3 + c] >> 10 & 31, m = h[i * 3 + c] & 1023;
            float half = (e ? ldexpf((float)(1024 + m), e - 25) : ldexpf((float)m, -24)) * (h[i * 3 + c] & 0x8000 ? -1.f : 1.f);
            CHECK(fabsf(half - want) <= fabsf(want) / 1024 + 1e-7f);
        }
    image_decoder_free(d);
    free(p);
    free(jpg);
}

/* Each prefix and each flipped byte: an error that says something, or pixels; never a crash. The decoder goes on with the next image. */
TEST(damaged_images)
{
    struct image_decoder *d;
    struct image_info info;
    struct larder_error err;
    uint8_t *p = make_pixels(W, H, 3, 3), out[16 * 16 * 3];
    size_t len[3];
    uint64_t seed = 1;
    uint8_t *file[3] = {make_jpeg(p, W, H, &(struct jpeg_kind){3, 2, 2, false, 0}, &len[0]), malloc(1 << 20), NULL};
    png_alloc_size_t n = 1 << 20;
    png_image im = {.version = PNG_IMAGE_VERSION, .width = W, .height = H, .format = PNG_FORMAT_RGB};
    REQUIRE(png_image_write_to_memory(&im, file[1], &n, 0, p, 0, NULL));
    len[1] = n;
    len[2] = WebPEncodeRGB(p, W, H, W * 3, 70, &file[2]);
    struct image_job j = {.width = 16, .height = 16};
    REQUIRE_OK(image_decoder_new(&d, &err), &err);
    CHECK_EQ(image_open(d, "no image at all", 15, &info, &err), LARDER_ECORRUPT);
    CHECK(strstr(err.message, "no image"));
    CHECK_EQ(image_render(d, &j, out, &err), LARDER_EINVAL);
    for (int k = 0; k < 3; k++) {
        for (size_t cut = 0; cut < len[k]; cut += 1 + len[k] / 90) {
            uint8_t *part = malloc(cut + 1);
            memcpy(part, file[k], cut);
            err.message[0] = 0;
            int rc = image_open(d, part, cut, &info, &err);
            rc = rc ? rc : image_render(d, &j, out, &err);
            CHECK_EQ(rc, LARDER_ECORRUPT);
            CHECK(strlen(err.message) > 10);
            free(part);
        }
        for (int i = 0; i < 90; i++) {
            size_t at = rng_below(&seed, len[k]);
            uint8_t bit = (uint8_t)(1u << rng_below(&seed, 8));
            file[k][at] ^= bit;
            int rc = image_open(d, file[k], len[k], &info, &err);
            rc = rc ? rc : image_render(d, &j, out, &err);
            CHECK(rc == LARDER_OK || rc == LARDER_ECORRUPT);
            file[k][at] ^= bit;
        }
        CHECK_OK(image_open(d, file[k], len[k], &info, &err), &err);
        CHECK_OK(image_render(d, &j, out, &err), &err);
        struct image_job off = {100, 0, 62, 10, 8, 8, .exact = true}, huge = {.width = 8, .height = 8, .pixels_max = 1000};
        CHECK_EQ(image_render(d, &off, out, &err), LARDER_EINVAL);
        CHECK_EQ(image_render(d, &huge, out, &err), LARDER_ECORRUPT);
    }
    image_decoder_free(d);
    free(file[0]);
    free(file[1]);
    WebPFree(file[2]);
    free(p);
}

TEST_MAIN();
