/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -lm */
/*
 * test_transform.c - random numbers against Random123's published answers, crops against torchvision's algorithm as written down
 * here a second time (with its own generator, so that distributions are compared, and with given numbers, so that boxes are), boxes
 * against pixels that are moved by hand.
 */
#include <math.h>

#include "loader/prep_int.h"
#include "tests/unit/test.h"

/* kat_vectors of Random123, philox4x32 with 10 rounds. */
TEST(philox_known_answers)
{
    static const struct { uint32_t counter[4], key[2], out[4]; } v[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        uint32_t out[4];
        random_philox(v[i].counter, v[i].key, out);
        CHECK_MEM(out, v[i].out, sizeof(out));
    }
}

/* Each part of the key and the block change everything; the same key gives the same. */
TEST(keys_are_independent)
{
    const struct random_key base = {1, 2, 3, 4};
    struct random_key keys[] = {base, {2, 2, 3, 4}, {1, 3, 3, 4}, {1, 2, 4, 4}, {1, 2, 3, 5}, {2, 1, 3, 4}, {1, 2, 3 + (1ull << 32), 4}};
    uint32_t out[ARRAY_LEN(keys) + 1][4], again[4];
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        random_at(&keys[i], 0, out[i]);
    random_at(&base, 1, out[ARRAY_LEN(keys)]);
    random_at(&base, 0, again);
    CHECK_MEM(out[0], again, sizeof(again));
    for (size_t i = 0; i < ARRAY_LEN(out); i++)
        for (size_t k = 0; k < i; k++)
            for (int c = 0; c < 4; c++)
                CHECK(out[i][c] != out[k][c]);
}

/* ---- torchvision's RandomResizedCrop.get_params ---- */

struct box { int x, y, w, h; };
typedef double draw_fn(void *ctx, int attempt, int which); /* [0, 1): area, ratio, top, left */

static struct box torch_params(int width, int height, const double scale[2], const double ratio[2], draw_fn *draw, void *ctx)
{
    for (int i = 0; i < 10; i++) {
        double area = (double)width * height * (scale[0] + (scale[1] - scale[0]) * draw(ctx, i, 0));
        double aspect = exp(log(ratio[0]) + (log(ratio[1]) - log(ratio[0])) * draw(ctx, i, 1));
        int w = (int)rint(sqrt(area * aspect)), h = (int)rint(sqrt(area / aspect));
        if (w > 0 && w <= width && h > 0 && h <= height) {
            int top = (int)(draw(ctx, i, 2) * (height - h + 1)), left = (int)(draw(ctx, i, 3) * (width - w + 1));
            return (struct box){left, top, w, h};
        }
    }
    double in_ratio = (double)width / height;
    int w = width, h = height;
    if (in_ratio < ratio[0])
        h = (int)rint(w / ratio[0]);
    else if (in_ratio > ratio[1])
        w = (int)rint(h * ratio[1]);
    return (struct box){(width - w) / 2, (height - h) / 2, w, h};
}

static double draw_key(void *ctx, int attempt, int which)
{
    uint32_t r[4];
    random_at(ctx, (uint32_t)attempt, r);
    return r[which] * 0x1p-32;
}

static double draw_rng(void *ctx, int attempt, int which)
{
    (void)attempt;
    (void)which;
    return (double)(rng_u64(ctx) >> 11) * 0x1p-53;
}

static struct larder_image options(int crop)
{
    struct larder_image o = {.width = 224, .crop = crop};
    struct larder_error err;
    CHECK_OK(transform_check(&o, "image", &err), &err);
    return o;
}

TEST(random_crops_are_torchvisions)
{
    static const int sizes[][2] = {{500, 375}, {375, 500}, {64, 64}, {1, 1}, {2000, 3}, {3, 2000}, {17, 900}, {224, 224}, {4000, 3000}};
    struct larder_image o = options(LARDER_CROP_RANDOM);
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++)
        for (uint64_t i = 0; i < 400; i++) {
            struct random_key key = {7, 1, i, 0};
            struct geometry g;
            const double scale[2] = {o.scale_min, o.scale_max}, ratio[2] = {o.ratio_min, o.ratio_max};
            transform_geometry(&o, (uint32_t)sizes[s][0], (uint32_t)sizes[s][1], 1, &key, &g);
            struct box want = torch_params(sizes[s][0], sizes[s][1], scale, ratio, draw_key, &key);
            CHECK_EQ(g.x, want.x);
            CHECK_EQ(g.y, want.y);
            CHECK_EQ(g.w, want.w);
            CHECK_EQ(g.h, want.h);
            CHECK(g.x + g.w <= sizes[s][0] && g.y + g.h <= sizes[s][1]);
        }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The largest distance of two empirical distributions (Kolmogorov and Smirnov). */
static double distance(double *a, double *b, size_t n)
{
    double most = 0;
    qsort(a, n, sizeof(*a), by_value);
    qsort(b, n, sizeof(*b), by_value);
    for (size_t i = 0, k = 0; i < n && k < n;) {
        double v = MIN(a[i], b[k]);
        while (i < n && a[i] == v)
            i++;
        while (k < n && b[k] == v)
            k++;
        most = MAX(most, fabs((double)i - (double)k) / (double)n);
    }
    return most;
}

/* Area, ratio, place: 20,000 of each. 1.95 * sqrt(2 / n) is the distance that one pair in a thousand exceeds; seeds are fixed. */
TEST(random_crops_are_distributed_as_torchvisions)
{
    enum { N = 20000 };
    struct larder_image o = options(LARDER_CROP_RANDOM);
    double (*ours)[N] = calloc(5, sizeof(*ours)), (*theirs)[N] = calloc(5, sizeof(*theirs));
    const double scale[2] = {o.scale_min, o.scale_max}, ratio[2] = {o.ratio_min, o.ratio_max};
    uint64_t rng = 99;
    o.flip = 0.3;
    int flips = 0;
    for (int i = 0; i < N; i++) {
        struct random_key key = {123, (uint64_t)i % 3, (uint64_t)i, 0};
        struct geometry g;
        transform_geometry(&o, 500, 375, 1, &key, &g);
        struct box b = torch_params(500, 375, scale, ratio, draw_rng, &rng);
        flips += g.flip;
        ours[0][i] = g.w * g.h, theirs[0][i] = (double)b.w * b.h;
        ours[1][i] = g.w / g.h, theirs[1][i] = (double)b.w / b.h;
        ours[2][i] = g.x, theirs[2][i] = b.x;
        ours[3][i] = g.y, theirs[3][i] = b.y;
        ours[4][i] = g.x / MAX(500 - g.w, 1), theirs[4][i] = b.x / MAX(500.0 - b.w, 1);
    }
    for (int k = 0; k < 5; k++) {
        double d = distance(ours[k], theirs[k], N);
        test_check(d < 1.95 * sqrt(2.0 / N), __FILE__, __LINE__, "quantity %d: distance %.4f", k, d);
    }
    CHECK(fabs(flips - 0.3 * N) < 4 * sqrt(0.21 * N));
    free(ours);
    free(theirs);
}

TEST(flips_and_views)
{
    struct larder_image o = options(LARDER_CROP_RANDOM);
    struct geometry a, b;
    for (uint64_t i = 0; i < 300; i++) {
        o.flip = 0;
        transform_geometry(&o, 640, 480, 1, &(struct random_key){1, 1, i, 0}, &a);
        CHECK(!a.flip);
        o.flip = 1;
        transform_geometry(&o, 640, 480, 1, &(struct random_key){1, 1, i, 0}, &b);
        CHECK(b.flip);
        CHECK(a.x == b.x && a.w == b.w); /* the flip moves nothing else */
        transform_geometry(&o, 640, 480, 1, &(struct random_key){1, 1, i, 1}, &b);
        CHECK(a.x != b.x || a.w != b.w || a.y != b.y || a.h != b.h);
    }
}

/* Resize(256), CenterCrop(224), by hand: 500 x 375 becomes 341 x 256, of which 58.5 and 16 are cut off; Python rounds to even. */
TEST(centre_crops)
{
    struct larder_image o = options(LARDER_CROP_CENTER);
    struct geometry g;
    struct random_key key = {0};
    CHECK_EQ(o.resize, 256);
    transform_geometry(&o, 500, 375, 1, &key, &g);
    CHECK(fabs(g.x - 58 * 500.0 / 341) < 1e-9 && fabs(g.w - 224 * 500.0 / 341) < 1e-9);
    CHECK(fabs(g.y - 16 * 375.0 / 256) < 1e-9 && fabs(g.h - 224 * 375.0 / 256) < 1e-9);
    transform_geometry(&o, 375, 502, 1, &key, &g); /* 256 x 342 */
    CHECK(fabs(g.y - 59 * 502.0 / 342) < 1e-9);
    transform_geometry(&o, 100, 100, 1, &key, &g);
    CHECK(fabs(g.x - 6.25) < 1e-12 && fabs(g.w - 87.5) < 1e-12);
    transform_geometry(&o, 1, 60000, 1, &key, &g);
    CHECK(g.x >= 0 && g.y >= 0 && g.x + g.w <= 1 && g.y + g.h <= 60000);
    for (uint32_t w = 1; w < 700; w += 13)
        for (uint32_t h = 1; h < 700; h += 17) {
            transform_geometry(&o, w, h, 1, &key, &g);
            CHECK(g.x >= 0 && g.y >= 0 && g.x + g.w <= w * (1 + 1e-12) && g.y + g.h <= h * (1 + 1e-12));
        }
}

TEST(options_are_checked)
{
    static const struct { struct larder_image o; const char *says; } bad[] = {
        {{.width = 0}, "image.width is 0"},
        {{.width = 70000}, "image.width is 70000"},
        {{.width = 8, .height = 70000}, "image.height"},
        {{.width = 8, .crop = 3}, "image.crop is 3"},
        {{.width = 8, .filter = -1}, "image.filter is -1"},
        {{.width = 8, .flip = 1.5}, "image.flip is 1.5"},
        {{.width = 8, .flip = NAN}, "image.flip"},
        {{.width = 8, .scale_min = 0.5, .scale_max = 0.2}, "image.scale_min and scale_max are 0.5 and 0.2"},
        {{.width = 8, .scale_max = 0.2}, "image.scale_min"},
        {{.width = 8, .ratio_min = 2, .ratio_max = INFINITY}, "image.ratio_min"},
        {{.width = 224, .crop = LARDER_CROP_CENTER, .resize = 200}, "image.resize is 200"},
        {{.width = 100, .height = 300, .crop = LARDER_CROP_CENTER, .resize = 256}, "image.resize is 256"},
        {{.width = 8, .dtype = "int8"}, "image.dtype is 'int8'"},
        {{.width = 8, .normalize = 1, .std = {1, 1, 1}}, "image.normalize"},
        {{.width = 8, .normalize = 1, .dtype = "float32"}, "image.std[0] is 0"},
        {{.width = 8, .normalize = 1, .dtype = "float32", .std = {1, 1, 1}, .mean = {0, NAN, 0}}, "image.mean[1]"},
        {{.width = 8, .views = 5000}, "image.views is 5000"},
    };
    struct larder_error err;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct larder_image o = bad[i].o;
        CHECK_EQ(transform_check(&o, "pictures", &err), LARDER_EINVAL);
        test_check(strstr(err.message, bad[i].says) && strstr(err.message, "output 'pictures'"), __FILE__, __LINE__, "%s", err.message);
    }
    struct larder_image o = {.width = 320, .height = 96, .crop = LARDER_CROP_CENTER};
    CHECK_OK(transform_check(&o, "image", &err), &err);
    CHECK_EQ(o.resize, 366);
    CHECK_EQ(o.views, 1);
    CHECK(o.scale_min == 0.08 && o.scale_max == 1 && o.ratio_min == 0.75 && o.ratio_max == 4.0 / 3);
}

TEST(jobs_follow_options)
{
    static const char *const dtypes[] = {NULL, "uint8", "float16", "bfloat16", "float32"};
    static const int codes[] = {IMAGE_U8, IMAGE_U8, IMAGE_F16, IMAGE_BF16, IMAGE_F32};
    struct larder_error err;
    struct geometry g;
    struct image_job j;
    for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
        struct larder_image o = {.width = 40, .height = 30, .crop = (int)i % 3, .filter = (int)i % 3, .dtype = dtypes[i], .exif = 1, .planar = 1,
                                 .exact = 1, .no_antialias = 1, .normalize = i > 1, .std = {1, 2, 3}, .flip = 1, .pixels_max = 99};
        CHECK_OK(transform_check(&o, "image", &err), &err);
        transform_geometry(&o, 200, 100, 6, &(struct random_key){1, 2, 3, 0}, &g);
        transform_job(&o, &g, &j);
        CHECK_EQ(g.image_width, 100);
        CHECK_EQ(g.image_height, 200);
        CHECK(j.x == g.x && j.y == g.y && j.w == g.w && j.h == g.h && j.width == 40 && j.height == 30);
        CHECK_EQ(j.orientation, 6);
        CHECK_EQ(j.dtype, codes[i]);
        CHECK_EQ(j.filter, i % 3 == 0 ? IMAGE_BILINEAR : i % 3 == 1 ? IMAGE_BICUBIC : IMAGE_NEAREST);
        CHECK_EQ(j.beyond, i % 3 == 1);
        CHECK(j.flip && j.planar && j.exact && j.no_antialias && !j.mask && j.pixels_max == 99);
        CHECK(i > 1 ? j.std == o.std && j.mean == o.mean : !j.std && !j.mean);
        o.exif = 0;
        transform_geometry(&o, 200, 100, 6, &(struct random_key){1, 2, 3, 0}, &g);
        CHECK(g.image_width == 200 && g.orientation == 1);
    }
}

/* A box of whole pixels is moved as its pixels are: each stored pixel is turned by hand. */
TEST(boxes_turn_as_pixels)
{
    enum { W = 7, H = 5 };
    static const int last[] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    for (size_t i = 1; i < ARRAY_LEN(last); i++) {
        int o = last[i], tw = o >= 5 ? H : W, th = o >= 5 ? W : H;
        struct geometry g = {(uint32_t)tw, (uint32_t)th, 0, 0, tw, th, (uint32_t)tw, (uint32_t)th, false, o};
        const double in[4] = {1, 2, 4, 3};
        float out[4];
        CHECK(transform_box(&g, in, out));
        for (int sy = 0; sy < H; sy++)
            for (int sx = 0; sx < W; sx++) {
                const int where[9][2] = {{0}, {sx, sy}, {W - 1 - sx, sy}, {W - 1 - sx, H - 1 - sy}, {sx, H - 1 - sy}, {sy, sx},
                                         {H - 1 - sy, sx}, {H - 1 - sy, W - 1 - sx}, {sy, W - 1 - sx}};
                int x = where[o][0], y = where[o][1];
                bool inside = sx >= 1 && sx < 4 && sy >= 2 && sy < 3;
                CHECK_EQ(inside, x + 0.5 > out[0] && x + 0.5 < out[2] && y + 0.5 > out[1] && y + 0.5 < out[3]);
            }
    }
}

TEST(boxes_are_clipped)
{
    struct geometry g = {500, 400, 100, 50, 200, 100, 100, 100, false, 1}; /* scaled by 1/2 across, not down */
    static const struct { double in[4]; float out[4]; bool keep; } v[] = {
        {{120, 60, 140, 80}, {10, 10, 20, 30}, true},
        {{0, 0, 500, 400}, {0, 0, 100, 100}, true},
        {{90, 40, 102, 51}, {0, 0, 1, 1}, true},
        {{0, 0, 100, 400}, {0, 0, 0, 100}, false},
        {{300, 50, 500, 150}, {100, 0, 100, 100}, false},
        {{120, 60, 120, 80}, {10, 10, 10, 30}, false},
        {{140, 60, 120, 80}, {20, 10, 10, 30}, false},
        {{NAN, 60, 140, 80}, {0, 10, 20, 30}, false},
        {{120, 60, 140, NAN}, {10, 10, 20, 0}, false},
        {{-INFINITY, 60, INFINITY, 80}, {0, 10, 100, 30}, true},
    };
    float out[4];
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        CHECK_EQ(transform_box(&g, v[i].in, out), v[i].keep);
        CHECK_MEM(out, v[i].out, sizeof(out));
    }
    g.flip = true;
    CHECK(transform_box(&g, v[0].in, out));
    CHECK_MEM(out, ((float[4]){80, 10, 90, 30}), sizeof(out));
}

TEST_MAIN();
