/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lpng -lwebp -lm */
/*
 * test_image_jobs.c - what a job can ask beside a crop: turned images, crops of a scaled image, masks, pixels in memory, several results,
 * images far larger than the result. References are written plainly: each pixel is moved by hand, each weight is a double.
 */
#include <math.h>

#include <png.h>
#include <webp/encode.h>

#include "tests/unit/images.h"
#include "tests/unit/test.h"

enum { W = 97, H = 61 };

static struct image_decoder *new_decoder(void)
{
    struct image_decoder *d;
    struct larder_error err;
    REQUIRE_OK(image_decoder_new(&d, &err), &err);
    return d;
}

/* A copy with nothing behind it, for ASan's sake. */
static uint8_t *exact_copy(const void *p, size_t n)
{
    uint8_t *c = malloc(n);
    memcpy(c, p, n);
    return c;
}

/* n bytes of a and b: at most `most` apart, mean10 / 10 on average. */
static void check_near(const uint8_t *a, const uint8_t *b, size_t n, uint64_t most, uint64_t mean10, const char *what, int which)
{
    uint64_t sum = 0, worst = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t diff = (uint64_t)abs(a[i] - b[i]);
        sum += diff;
        worst = MAX(worst, diff);
    }
    test_check(worst <= most && sum * 10 <= n * mean10, __FILE__, __LINE__, "%s %d: mean %.3f most %" PRIu64, what, which, (double)sum / (double)n,
               worst);
}

/* ---- turning ---- */

/* As EXIF defines orientation o: where the stored pixel (x, y) of w x h is shown. */
static void shown_at(int o, uint32_t w, uint32_t h, uint32_t x, uint32_t y, uint32_t *tx, uint32_t *ty)
{
    uint32_t mx = w - 1 - x, my = h - 1 - y;
    const uint32_t at[9][2] = {{x, y}, {x, y}, {mx, y}, {mx, my}, {x, my}, {y, x}, {my, x}, {my, mx}, {y, mx}};
    *tx = at[o][0];
    *ty = at[o][1];
}

static uint8_t *turned(const uint8_t *p, uint32_t w, uint32_t h, unsigned bytes, int o)
{
    uint8_t *out = malloc((size_t)w * h * bytes);
    for (uint32_t y = 0; y < h; y++)
        for (uint32_t x = 0; x < w; x++) {
            uint32_t tx, ty;
            shown_at(o, w, h, x, y, &tx, &ty);
            memcpy(out + ((size_t)ty * (o >= 5 ? h : w) + tx) * bytes, p + ((size_t)y * w + x) * bytes, bytes);
        }
    return out;
}

static struct image_job some_job(uint64_t *seed, uint32_t w, uint32_t h, int i)
{
    uint32_t cw = 1 + (uint32_t)rng_below(seed, w), ch = 1 + (uint32_t)rng_below(seed, h);
    struct image_job j = {.w = cw, .h = ch, .x = (double)rng_below(seed, w - cw + 1), .y = (double)rng_below(seed, h - ch + 1),
                          .width = 1 + (uint32_t)rng_below(seed, 90), .height = 1 + (uint32_t)rng_below(seed, 90), .filter = i % 3,
                          .flip = rng_below(seed, 2), .exact = true, .planar = rng_below(seed, 2)};
    if (i % 4 == 0)
        j.width = cw * 2, j.height = ch; /* scales with ties */
    if (i % 4 == 1 && cw > 1 && ch > 1)
        j.width = cw / 2, j.height = ch / 2, j.w = cw & ~1u, j.h = ch & ~1u;
    return j;
}

/* A turned job is the same job of the turned image. */
TEST(orientations)
{
    struct image_decoder *d = new_decoder(), *plain = new_decoder();
    struct larder_error err;
    uint64_t seed = 5;
    uint8_t *p = make_pixels(W, H, 3, 21);
    for (int o = 1; o <= 8; o++) {
        uint32_t tw = o >= 5 ? H : W, th = o >= 5 ? W : H;
        uint8_t *t = turned(p, W, H, 3, o);
        CHECK_OK(image_open_rgb(d, p, W, H, &err), &err);
        CHECK_OK(image_open_rgb(plain, t, tw, th, &err), &err);
        for (int i = 0; i < 24; i++) {
            struct image_job j = some_job(&seed, tw, th, i);
            size_t n = image_job_bytes(&j);
            uint8_t *want = malloc(n), *have = malloc(n);
            CHECK_OK(image_render(plain, &j, want, &err), &err);
            j.orientation = o;
            CHECK_OK(image_render(d, &j, have, &err), &err);
            check_near(have, want, n, j.filter == IMAGE_NEAREST ? 0 : 2, 3, "orientation", o);
            free(want);
            free(have);
        }
        free(t);
    }
    image_decoder_free(d);
    image_decoder_free(plain);
    free(p);
}

/* Every kind of file tells its orientation, and is turned as pixels are. */
static void check_turned_file(const uint8_t *data, size_t len, const uint8_t *rgb, int o, int kind)
{
    struct image_decoder *d = new_decoder();
    struct image_info info;
    struct larder_error err;
    uint8_t *want = turned(rgb, W, H, 3, o), *have = malloc(W * H * 3);
    CHECK_OK(image_open(d, data, len, &info, &err), &err);
    CHECK_EQ(info.orientation, o);
    CHECK_EQ(info.kind, kind);
    CHECK_EQ(info.width, W);
    struct image_job j = {.width = o >= 5 ? H : W, .height = o >= 5 ? W : H, .orientation = info.orientation, .exact = true};
    CHECK_OK(image_render(d, &j, have, &err), &err);
    check_near(have, want, W * H * 3, 0, 0, "file of kind", kind);
    image_decoder_free(d);
    free(want);
    free(have);
}

static const uint8_t tiff[] = "II*\0\10\0\0\0\2\0\0\1\3\0\1\0\0\0\7\0\0\0\22\1\3\0\1\0\0\0\6\0\0\0\0\0\0";
enum { TIFF_LEN = sizeof(tiff) - 1, TIFF_VALUE = 30 };

static uint8_t *png_with_exif(const uint8_t *rgb, int o, bool late, size_t *len)
{
    png_alloc_size_t n = 1 << 20;
    png_image im = {.version = PNG_IMAGE_VERSION, .width = W, .height = H, .format = PNG_FORMAT_RGB};
    uint8_t *file = malloc(1 << 20), chunk[12 + TIFF_LEN] = {0, 0, 0, TIFF_LEN, 'e', 'X', 'I', 'f'};
    REQUIRE(png_image_write_to_memory(&im, file, &n, 0, rgb, 0, NULL));
    memcpy(chunk + 8, tiff, TIFF_LEN);
    chunk[8 + TIFF_VALUE] = (uint8_t)o;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 4; i < 8 + TIFF_LEN; i++) {
        crc ^= chunk[i];
        for (int b = 0; b < 8; b++)
            crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    for (int i = 0; i < 4; i++)
        chunk[8 + TIFF_LEN + i] = (uint8_t)(~crc >> (24 - 8 * i));
    size_t at = late ? n - 12 : 33; /* before IEND, or behind IHDR */
    memmove(file + at + sizeof(chunk), file + at, n - at);
    memcpy(file + at, chunk, sizeof(chunk));
    *len = n + sizeof(chunk);
    return file;
}

static uint8_t *webp_with_exif(const uint8_t *rgb, int o, size_t *len)
{
    uint8_t *plain = NULL;
    size_t n = WebPEncodeLosslessRGB(rgb, W, H, W * 3, &plain), body = n - 12;
    REQUIRE(n > 12);
    uint8_t *file = calloc(1, n + 200), *at = file + 12;
    const uint8_t vp8x[18] = {'V', 'P', '8', 'X', 10, 0, 0, 0, 8, 0, 0, 0, W - 1, 0, 0, H - 1, 0, 0};
    memcpy(file, "RIFF\0\0\0\0WEBP", 12);
    memcpy(at, vp8x, sizeof(vp8x));
    memcpy(at += sizeof(vp8x), plain + 12, body);
    at += body;
    memcpy(at, "EXIF", 4);
    put_u32(at + 4, 6 + TIFF_LEN);
    memcpy(at + 8, "Exif\0", 6);
    memcpy(at + 14, tiff, TIFF_LEN);
    at[14 + TIFF_VALUE] = (uint8_t)o;
    at += 14 + TIFF_LEN + (TIFF_LEN & 1);
    put_u32(file + 4, (uint32_t)(at - file - 8));
    *len = (size_t)(at - file);
    WebPFree(plain);
    return file;
}

TEST(orientations_of_files)
{
    uint8_t *p = make_pixels(W, H, 3, 22);
    for (int o = 1; o <= 8; o++) {
        size_t len;
        uint8_t *jpg = make_jpeg(p, W, H, &(struct jpeg_kind){3, 2, 2, o & 1, o}, &len), *rgb = full_jpeg(jpg, len, false);
        check_turned_file(jpg, len, rgb, o, IMAGE_JPEG);
        free(jpg);
        free(rgb);
        uint8_t *png = png_with_exif(p, o, o & 1, &len);
        check_turned_file(png, len, p, o, IMAGE_PNG);
        free(png);
        uint8_t *webp = webp_with_exif(p, o, &len);
        check_turned_file(webp, len, p, o, IMAGE_WEBP);
        free(webp);
    }
    free(p);
}

/* ---- crops of a scaled image ---- */

/* The whole image is scaled by the codec (which other tests compare with the reference), and then cut. */
TEST(crops_of_a_scaled_image)
{
    struct image_decoder *d = new_decoder();
    struct larder_error err;
    uint64_t seed = 6;
    uint8_t *p = make_pixels(W, H, 3, 23);
    CHECK_OK(image_open_rgb(d, p, W, H, &err), &err);
    for (int i = 0; i < 240; i++) {
        int o = 1 + (int)rng_below(&seed, 8);
        uint32_t iw = o >= 5 ? H : W, ih = o >= 5 ? W : H;
        struct image_job whole = {.width = 2 + (uint32_t)rng_below(&seed, 150), .height = 2 + (uint32_t)rng_below(&seed, 150), .filter = i % 3,
                                  .orientation = o};
        if (i % 5 == 0)
            whole.width = iw / 3, whole.height = ih * 2;
        struct image_job cut = whole;
        cut.width = 1 + (uint32_t)rng_below(&seed, whole.width);
        cut.height = 1 + (uint32_t)rng_below(&seed, whole.height);
        uint32_t left = (uint32_t)rng_below(&seed, whole.width - cut.width + 1), top = (uint32_t)rng_below(&seed, whole.height - cut.height + 1);
        double sx = (double)iw / whole.width, sy = (double)ih / whole.height;
        cut.x = left * sx, cut.w = cut.width * sx, cut.y = top * sy, cut.h = cut.height * sy, cut.beyond = true;
        uint8_t *all = malloc(image_job_bytes(&whole)), *part = malloc(image_job_bytes(&cut));
        CHECK_OK(image_render(d, &whole, all, &err), &err);
        CHECK_OK(image_render(d, &cut, part, &err), &err);
        for (uint32_t y = 0; y < cut.height; y++)
            check_near(part + (size_t)y * cut.width * 3, all + ((size_t)(y + top) * whole.width + left) * 3, cut.width * 3, whole.filter == IMAGE_NEAREST ? 0 : 1,
                       3, "cut with filter", whole.filter);
        free(all);
        free(part);
    }
    image_decoder_free(d);
    free(p);
}

/* ---- several results, pixels in memory ---- */

TEST(views_are_what_single_results_are)
{
    enum { N = 5 };
    struct image_decoder *d = new_decoder();
    struct larder_error err;
    struct image_info info;
    uint64_t seed = 7;
    uint8_t *p = make_pixels(W, H, 3, 24), *files[4];
    size_t len[4];
    files[0] = make_jpeg(p, W, H, &(struct jpeg_kind){3, 2, 2, false, 0}, &len[0]);
    files[1] = make_jpeg(p, W, H, &(struct jpeg_kind){1, 1, 1, true, 0}, &len[1]);
    files[2] = png_with_exif(p, 1, false, &len[2]);
    files[3] = webp_with_exif(p, 1, &len[3]);
    for (int f = 0; f < 5; f++)
        for (int round = 0; round < 6; round++) {
            struct image_job jobs[N];
            uint8_t *want[N];
            void *have[N];
            if (f < 4)
                REQUIRE_OK(image_open(d, files[f], len[f], &info, &err), &err);
            else
                REQUIRE_OK(image_open_rgb(d, p, W, H, &err), &err);
            for (int i = 0; i < N; i++) {
                int o = 1 + (int)rng_below(&seed, 8);
                jobs[i] = some_job(&seed, o >= 5 ? H : W, o >= 5 ? W : H, i + round);
                jobs[i].orientation = o;
                jobs[i].beyond = i == 2;
                want[i] = malloc(image_job_bytes(&jobs[i]));
                have[i] = malloc(image_job_bytes(&jobs[i]));
                CHECK_OK(image_render(d, &jobs[i], want[i], &err), &err);
            }
            CHECK_OK(image_render_views(d, jobs, have, N, &err), &err);
            for (int i = 0; i < N; i++) {
                CHECK_MEM(have[i], want[i], image_job_bytes(&jobs[i]));
                free(have[i]);
                free(want[i]);
            }
        }
    struct image_job two[2] = {{.width = 4, .height = 4, .mask = true}, {.width = 4, .height = 4}};
    uint8_t out[2][48];
    void *outs[2] = {out[0], out[1]};
    CHECK_EQ(image_render_views(d, two, outs, 2, &err), LARDER_EINVAL);
    CHECK_EQ(image_render_views(d, two, outs, 0, &err), LARDER_EINVAL);
    image_decoder_free(d);
    for (int f = 0; f < 4; f++)
        free(files[f]);
    free(p);
}

/* Pixels in memory that ends with them, of sizes around those of vectors: as a PNG of the same pixels. */
TEST(pixels_in_memory)
{
    struct image_decoder *d = new_decoder(), *png = new_decoder();
    struct larder_error err;
    struct image_info info;
    uint64_t seed = 8;
    static const uint32_t sizes[][2] = {{1, 1}, {1, 9}, {9, 1}, {3, 40}, {40, 3}, {1, 60}, {2, 300}, {16, 16}, {17, 5}, {33, 21}, {97, 2}};
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        uint32_t w = sizes[s][0], h = sizes[s][1];
        uint8_t *made = make_pixels(w, h, 3, s + 30), *p = exact_copy(made, (size_t)w * h * 3), file[1 << 16];
        png_alloc_size_t len = sizeof(file);
        png_image im = {.version = PNG_IMAGE_VERSION, .width = w, .height = h, .format = PNG_FORMAT_RGB};
        REQUIRE(png_image_write_to_memory(&im, file, &len, 0, p, 0, NULL));
        CHECK_OK(image_open_rgb(d, p, w, h, &err), &err);
        CHECK_OK(image_open(png, file, len, &info, &err), &err);
        for (int i = 0; i < 30; i++) {
            struct image_job j = some_job(&seed, w, h, i);
            uint8_t *want = malloc(image_job_bytes(&j)), *have = malloc(image_job_bytes(&j));
            CHECK_OK(image_render(png, &j, want, &err), &err);
            CHECK_OK(image_render(d, &j, have, &err), &err);
            CHECK_MEM(have, want, image_job_bytes(&j));
            free(want);
            free(have);
        }
        free(made);
        free(p);
    }
    CHECK_EQ(image_open_rgb(d, &seed, 0, 4, &err), LARDER_EINVAL);
    image_decoder_free(d);
    image_decoder_free(png);
}

/* ---- masks ---- */

struct sink { uint8_t *p; size_t n; };

static void png_put(png_structp p, png_bytep data, size_t n)
{
    struct sink *s = png_get_io_ptr(p);
    memcpy(s->p + s->n, data, n);
    s->n += n;
}

/* values: one a pixel, below 2^depth. */
static uint8_t *mask_png(const uint16_t *values, int type, int depth, bool interlaced, size_t *len)
{
    struct sink s = {malloc(1 << 18), 0};
    png_structp p = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(p);
    png_color palette[256];
    uint8_t rows[H][W * 2];
    png_bytep at[H];
    for (int i = 0; i < 256; i++)
        palette[i] = (png_color){(png_byte)(255 - i), (png_byte)(i * 7), 3};
    png_set_write_fn(p, &s, png_put, NULL);
    png_set_IHDR(p, info, W, H, depth, type, interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, 0, 0);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_PLTE(p, info, palette, 1 << depth);
    png_write_info(p, info);
    if (depth < 8)
        png_set_packing(p);
    for (int y = 0; y < H; y++) {
        for (int x = 0; x < W; x++)
            if (depth == 16) {
                rows[y][2 * x] = (uint8_t)(values[y * W + x] >> 8);
                rows[y][2 * x + 1] = (uint8_t)values[y * W + x];
            } else {
                rows[y][x] = (uint8_t)values[y * W + x];
            }
        at[y] = rows[y];
    }
    png_write_image(p, at);
    png_write_end(p, NULL);
    png_destroy_write_struct(&p, &info);
    *len = s.n;
    return s.p;
}

/* As PIL's resize with NEAREST: positions add up. */
static uint16_t mask_pixel(const uint16_t *t, uint32_t tw, const struct image_job *j, uint32_t x, uint32_t y)
{
    double sx = j->w / j->width, sy = j->h / j->height, px = sx / 2, py = sy / 2;
    if (j->flip)
        x = j->width - 1 - x;
    while (x--)
        px += sx;
    while (y--)
        py += sy;
    return t[((uint32_t)j->y + MIN((uint32_t)py, (uint32_t)j->h - 1)) * tw + (uint32_t)j->x + MIN((uint32_t)px, (uint32_t)j->w - 1)];
}

static void check_mask(int type, int depth, bool interlaced)
{
    struct image_decoder *d = new_decoder();
    struct image_info info;
    struct larder_error err;
    uint64_t seed = (uint64_t)depth;
    uint16_t *values = malloc(W * H * 2);
    size_t len;
    for (int i = 0; i < W * H; i++)
        values[i] = (uint16_t)rng_below(&seed, 1u << depth);
    uint8_t *file = mask_png(values, type, depth, interlaced, &len);
    REQUIRE_OK(image_open(d, file, len, &info, &err), &err);
    for (int i = 0; i < 16; i++) {
        int o = 1 + i % 8, tw = o >= 5 ? H : W, th = o >= 5 ? W : H;
        struct image_job j = some_job(&seed, (uint32_t)tw, (uint32_t)th, i);
        j.mask = true;
        j.orientation = o;
        j.dtype = depth == 16 || i & 1 ? IMAGE_U16 : IMAGE_U8;
        uint16_t *t = (uint16_t *)(void *)turned((uint8_t *)values, W, H, 2, o);
        uint8_t *out = malloc(image_job_bytes(&j));
        CHECK_EQ(image_job_bytes(&j), j.width * j.height * (j.dtype == IMAGE_U16 ? 2 : 1));
        REQUIRE_OK(image_render(d, &j, out, &err), &err);
        size_t wrong = 0;
        for (uint32_t y = 0; y < j.height; y++)
            for (uint32_t x = 0; x < j.width; x++) {
                size_t at = (size_t)y * j.width + x;
                wrong += (j.dtype == IMAGE_U16 ? get_u16(out + 2 * at) : out[at]) != mask_pixel(t, (uint32_t)tw, &j, x, y);
            }
        CHECK_EQ(wrong, 0);
        free(t);
        free(out);
    }
    image_decoder_free(d);
    free(file);
    free(values);
}

TEST(masks)
{
    for (int depth = 1; depth <= 8; depth *= 2) {
        check_mask(PNG_COLOR_TYPE_PALETTE, depth, depth == 4);
        check_mask(PNG_COLOR_TYPE_GRAY, depth, depth == 2);
    }
    check_mask(PNG_COLOR_TYPE_GRAY, 16, false);
    check_mask(PNG_COLOR_TYPE_GRAY, 16, true);
}

TEST(what_is_no_mask)
{
    struct image_decoder *d = new_decoder();
    struct image_info info;
    struct larder_error err;
    uint8_t *p = make_pixels(W, H, 3, 40), *grey = make_pixels(W, H, 1, 41), out[64];
    uint16_t deep[W * H] = {0};
    size_t len[5];
    uint8_t *files[5] = {make_jpeg(p, W, H, &(struct jpeg_kind){3, 2, 2, false, 0}, &len[0]), png_with_exif(p, 1, false, &len[1]),
                         webp_with_exif(p, 1, &len[2]), mask_png(deep, PNG_COLOR_TYPE_GRAY, 16, false, &len[3]),
                         make_jpeg(grey, W, H, &(struct jpeg_kind){1, 1, 1, false, 0}, &len[4])};
    struct image_job j = {.width = 8, .height = 8, .mask = true};
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(image_open(d, files[i], len[i], &info, &err), &err);
        CHECK_EQ(image_render(d, &j, out, &err), LARDER_ECORRUPT);
        CHECK(strstr(err.message, i == 3 ? "16-bit grey" : "is no mask"));
    }
    REQUIRE_OK(image_open(d, files[4], len[4], &info, &err), &err); /* a grey JPEG is one, its pixels as they are */
    j.w = j.width, j.h = j.height, j.x = 3, j.y = 5;
    CHECK_OK(image_render(d, &j, out, &err), &err);
    uint8_t *rgb = full_jpeg(files[4], len[4], false);
    for (int i = 0; i < 64; i++)
        CHECK_EQ(out[i], rgb[((size_t)(5 + i / 8) * W + 3 + (size_t)i % 8) * 3]);
    free(rgb);
    j.dtype = IMAGE_F32;
    CHECK_EQ(image_render(d, &j, out, &err), LARDER_EINVAL);
    j = (struct image_job){.width = 4, .height = 4, .dtype = IMAGE_U16};
    CHECK_EQ(image_render(d, &j, out, &err), LARDER_EINVAL);
    image_decoder_free(d);
    for (int i = 0; i < 5; i++)
        free(files[i]);
    free(p);
    free(grey);
}

/* ---- extremes ---- */

/* A result of few pixels from very many: a flat area stays flat, a ramp is averaged as doubles do it. */
TEST(very_small_results)
{
    struct image_decoder *d = new_decoder();
    struct larder_error err;
    static const uint32_t sizes[][2] = {{70000, 2}, {2, 70000}, {900, 800}};
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        uint32_t w = sizes[s][0], h = sizes[s][1];
        uint8_t *p = malloc((size_t)w * h * 3), out[2 * 2 * 3];
        for (int filter = IMAGE_BILINEAR; filter <= IMAGE_BICUBIC; filter++)
            for (int value = 1; value < 256; value += 127) {
                memset(p, value, (size_t)w * h * 3);
                CHECK_OK(image_open_rgb(d, p, w, h, &err), &err);
                struct image_job j = {.width = 2, .height = 1, .filter = filter, .orientation = s == 2 ? 6 : 1};
                CHECK_OK(image_render(d, &j, out, &err), &err);
                for (int i = 0; i < 6; i++)
                    CHECK_EQ(out[i], value);
            }
        for (size_t i = 0; i < (size_t)w * h; i++)
            memset(p + i * 3, (int)(w > h ? i % w * 255 / (w - 1) : i / w * 255 / (h - 1)), 3);
        CHECK_OK(image_open_rgb(d, p, w, h, &err), &err);
        struct image_job j = {.width = w > h ? 2 : 1, .height = w > h ? 1 : 2, .flip = true};
        CHECK_OK(image_render(d, &j, out, &err), &err);
        /* The triangle's support is cut at the image's edge: 255/4 would be a box's. */
        double want = 0, sum = 0;
        for (int i = 0; i < 1000; i++) {
            double x = (i + .5) / 1000, weight = 1 - fabs(x - .25) / .5;
            if (weight > 0)
                want += weight * (x * 255 - .5), sum += weight;
        }
        double dark = w > h ? out[3] : out[0];
        test_check(fabs(dark - want / sum) < 1, __FILE__, __LINE__, "%u x %u: %g for %g", w, h, dark, want / sum);
        free(p);
    }
    image_decoder_free(d);
}

TEST(jobs_that_make_no_sense)
{
    static const struct image_job bad[] = {
        {.x = -1, .w = 5, .h = 5, .width = 4, .height = 4},
        {.x = NAN, .w = 5, .h = 5, .width = 4, .height = 4},
        {.w = NAN, .h = 5, .width = 4, .height = 4},
        {.w = 5, .h = INFINITY, .width = 4, .height = 4},
        {.w = -5, .h = 5, .width = 4, .height = 4},
        {.x = W, .w = 1, .h = 5, .width = 4, .height = 4},
        {.x = 0.5, .w = W, .h = 5, .width = 4, .height = 4},
        {.w = 5, .h = H, .orientation = 6, .width = 4, .height = 4, .y = W - H + 1},
        {.w = 5, .h = 0, .width = 4, .height = 4},
        {.width = 0, .height = 4},
        {.width = 4, .height = 1u << 31},
        {.width = 4, .height = 4, .filter = 3},
        {.width = 4, .height = 4, .orientation = 9},
        {.width = 4, .height = 4, .dtype = 5},
    };
    struct image_decoder *d = new_decoder();
    struct larder_error err;
    uint8_t *p = make_pixels(W, H, 3, 50), out[4 * 4 * 3];
    struct image_job j = {.width = 4, .height = 4};
    CHECK_EQ(image_render(d, &j, out, &err), LARDER_EINVAL);
    CHECK_OK(image_open_rgb(d, p, W, H, &err), &err);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        test_check(image_render(d, &bad[i], out, &err) == LARDER_EINVAL && err.message[0], __FILE__, __LINE__, "job %zu", i);
    j = (struct image_job){.x = W - 1e-7, .y = H - 1e-7, .w = 1e-7, .h = 1e-7, .width = 4, .height = 4}; /* a speck of the last pixel */
    for (int filter = 0; filter < 3; filter++)
        for (int beyond = 0; beyond < 2; beyond++) {
            j.filter = filter;
            j.beyond = beyond;
            CHECK_OK(image_render(d, &j, out, &err), &err);
            CHECK(abs(out[0] - p[W * H * 3 - 3]) <= 2);
        }
    image_decoder_free(d);
    free(p);
}

TEST_MAIN();
