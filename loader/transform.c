/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transform.c - what is done to an image, decided before a pixel is read: random numbers and geometry. Pure.
 *
 * Random numbers are a function, not a stream (Philox 4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3",
 * SC 2011): a sample's crop depends on (seed, epoch, position, view) and on nothing else, neither threads nor tiers nor world.
 * The key is made of seed and epoch, the counter of position, view and block.
 *
 * Crops are those of torchvision. RANDOM is RandomResizedCrop: ten tries of a uniform area and a log-uniform ratio, then the largest
 * middle part with a ratio in range. CENTER is Resize, then CenterCrop: the same pixels are a crop of the image itself, whose corners
 * are fractions, with the scale of the whole image.
 */
#include "loader/prep_int.h"

#include <math.h>

#define TRIES 10u /* as torchvision */
#define SIDE_MAX (1u << 16)

/* ---- Philox ---- */

void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3], k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The finaliser of splitmix64. */
static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

void random_at(const struct random_key *key, uint32_t k, uint32_t out[4])
{
    uint64_t both = mix(mix(key->seed + 0x9e3779b97f4a7c15u) + key->epoch);
    const uint32_t counter[4] = {(uint32_t)key->position, (uint32_t)(key->position >> 32), key->view, k};
    const uint32_t words[2] = {(uint32_t)both, (uint32_t)(both >> 32)};
    random_philox(counter, words, out);
}

static double uniform(uint32_t r, double from, double to) { return from + (to - from) * (r * 0x1p-32); }
static uint32_t below(uint32_t r, uint64_t n) { return (uint32_t)((r * n) >> 32); }

/* ---- geometry ---- */

static void place(struct geometry *g, double x, double y, double w, double h)
{
    g->x = x;
    g->y = y;
    g->w = w;
    g->h = h;
}

/* The largest middle part whose ratio is in range. */
static void fallback(const struct larder_image *o, struct geometry *g)
{
    double w = g->image_width, h = g->image_height, ratio = w / h;
    if (ratio < o->ratio_min)
        h = MIN(MAX(rint(w / o->ratio_min), 1), h);
    else if (ratio > o->ratio_max)
        w = MIN(MAX(rint(h * o->ratio_max), 1), w);
    place(g, floor((g->image_width - w) / 2), floor((g->image_height - h) / 2), w, h);
}

static void crop_random(const struct larder_image *o, const struct random_key *key, struct geometry *g)
{
    double area = (double)g->image_width * g->image_height, low = log(o->ratio_min), high = log(o->ratio_max);
    for (uint32_t k = 0; k < TRIES; k++) {
        uint32_t r[4];
        random_at(key, k, r);
        double target = area * uniform(r[0], o->scale_min, o->scale_max), ratio = exp(uniform(r[1], low, high));
        double w = rint(sqrt(target * ratio)), h = rint(sqrt(target / ratio));
        if (w > 0 && w <= g->image_width && h > 0 && h <= g->image_height) {
            place(g, below(r[3], g->image_width - (uint64_t)w + 1), below(r[2], g->image_height - (uint64_t)h + 1), w, h);
            return;
        }
    }
    fallback(o, g);
}

static void crop_center(const struct larder_image *o, struct geometry *g)
{
    uint64_t iw = g->image_width, ih = g->image_height, w = o->resize, h = o->resize;
    if (iw <= ih)
        h = o->resize * ih / iw;
    else
        w = o->resize * iw / ih;
    double left = rint((double)(w - g->width) / 2), top = rint((double)(h - g->height) / 2);
    double sx = (double)iw / (double)w, sy = (double)ih / (double)h;
    place(g, left * sx, top * sy, g->width * sx, g->height * sy);
}

void transform_geometry(const struct larder_image *o, uint32_t width, uint32_t height, int orientation, const struct random_key *key,
                        struct geometry *g)
{
    uint32_t r[4];
    int turn = o->exif && orientation >= 1 && orientation <= 8 ? orientation : 1;
    *g = (struct geometry){.image_width = turn >= 5 ? height : width, .image_height = turn >= 5 ? width : height, .width = o->width,
                           .height = o->height, .orientation = turn};
    if (o->crop == LARDER_CROP_RANDOM)
        crop_random(o, key, g);
    else if (o->crop == LARDER_CROP_CENTER)
        crop_center(o, g);
    else
        place(g, 0, 0, g->image_width, g->image_height);
    random_at(key, TRIES, r);
    g->flip = uniform(r[0], 0, 1) < o->flip;
}

/* ---- options ---- */

static int dtype_of(const char *name)
{
    static const char *const names[] = {[IMAGE_U8] = "uint8", [IMAGE_F16] = "float16", [IMAGE_BF16] = "bfloat16", [IMAGE_F32] = "float32"};
    for (size_t i = 0; name && i < ARRAY_LEN(names); i++)
        if (!strcmp(name, names[i]))
            return (int)i;
    return name ? -1 : IMAGE_U8;
}

static int refuse(struct larder_error *err, const char *output, const char *member, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int refuse(struct larder_error *err, const char *output, const char *member, const char *fmt, ...)
{
    char why[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    return err_set(err, LARDER_EINVAL, "output '%.40s': image.%s %s", output ? output : "", member, why);
}

/* 0 < min <= max, both finite; both 0 stand for the default. */
static int check_range(double *min, double *max, double default_min, double default_max, const char *output, const char *what,
                       struct larder_error *err)
{
    char member[16];
    if (*min == 0 && *max == 0) {
        *min = default_min;
        *max = default_max;
    }
    snprintf(member, sizeof(member), "%s_min", what);
    if (!(*min > 0 && *min <= *max && *max < 1e6))
        return refuse(err, output, member, "and %s_max are %g and %g: 0 < min <= max < 1e6 is wanted, or 0 and 0 for %g and %g", what, *min, *max,
                      default_min, default_max);
    return LARDER_OK;
}

static int check_size(struct larder_image *o, const char *output, struct larder_error *err)
{
    o->height = o->height ? o->height : o->width;
    if (!o->width || o->width > SIDE_MAX)
        return refuse(err, output, "width", "is %u: 1 to %u pixels are possible", o->width, SIDE_MAX);
    if (o->height > SIDE_MAX)
        return refuse(err, output, "height", "is %u: %u pixels are possible", o->height, SIDE_MAX);
    uint32_t longer = MAX(o->width, o->height);
    if (o->crop != LARDER_CROP_CENTER)
        return LARDER_OK;
    o->resize = o->resize ? o->resize : (uint32_t)lrint(longer * 8.0 / 7);
    if (o->resize < longer || o->resize > 2 * SIDE_MAX)
        return refuse(err, output, "resize", "is %u: the middle %u x %u is cut out of what it gives, so it is %u to %u", o->resize, o->width,
                      o->height, longer, 2 * SIDE_MAX);
    return LARDER_OK;
}

static int check_values(struct larder_image *o, const char *output, struct larder_error *err)
{
    int dtype = dtype_of(o->dtype);
    if (dtype < 0)
        return refuse(err, output, "dtype", "is '%.20s': uint8, float16, bfloat16 and float32 are known", o->dtype);
    if (o->normalize && dtype == IMAGE_U8)
        return refuse(err, output, "normalize", "needs a floating-point dtype: float16, bfloat16 or float32");
    static const char *const means[] = {"mean[0]", "mean[1]", "mean[2]"}, *const stds[] = {"std[0]", "std[1]", "std[2]"};
    for (int c = 0; o->normalize && c < 3; c++) {
        if (!isfinite(o->mean[c]))
            return refuse(err, output, means[c], "is %g", (double)o->mean[c]);
        if (!(o->std[c] > 0) || !isfinite(o->std[c]))
            return refuse(err, output, stds[c], "is %g: (value / 255 - mean) / std is computed", (double)o->std[c]);
    }
    return LARDER_OK;
}

int transform_check(struct larder_image *o, const char *output, struct larder_error *err)
{
    if (o->crop < LARDER_CROP_RANDOM || o->crop > LARDER_CROP_NONE)
        return refuse(err, output, "crop", "is %d: no enum larder_crop", o->crop);
    if (o->filter < LARDER_BILINEAR || o->filter > LARDER_NEAREST)
        return refuse(err, output, "filter", "is %d: no enum larder_filter", o->filter);
    if (!(o->flip >= 0 && o->flip <= 1))
        return refuse(err, output, "flip", "is %g: a probability is wanted, 0 to 1", o->flip);
    int rc = check_size(o, output, err);
    if (!rc)
        rc = check_range(&o->scale_min, &o->scale_max, 0.08, 1, output, "scale", err);
    if (!rc)
        rc = check_range(&o->ratio_min, &o->ratio_max, 3.0 / 4, 4.0 / 3, output, "ratio", err);
    if (!rc)
        rc = check_values(o, output, err);
    if (rc)
        return rc;
    o->views = o->views ? o->views : 1;
    if (o->views > 4096)
        return refuse(err, output, "views", "is %u: 4096 are possible", o->views);
    return LARDER_OK;
}

void transform_job(const struct larder_image *o, const struct geometry *g, struct image_job *job)
{
    static const int filters[] = {[LARDER_BILINEAR] = IMAGE_BILINEAR, [LARDER_BICUBIC] = IMAGE_BICUBIC, [LARDER_NEAREST] = IMAGE_NEAREST};
    *job = (struct image_job){.x = g->x, .y = g->y, .w = g->w, .h = g->h, .width = g->width, .height = g->height,
                              .orientation = g->orientation, .filter = filters[o->filter], .no_antialias = o->no_antialias,
                              .beyond = o->crop == LARDER_CROP_CENTER, .flip = g->flip, .exact = o->exact, .dtype = dtype_of(o->dtype),
                              .planar = o->planar, .mean = o->normalize ? o->mean : NULL, .std = o->normalize ? o->std : NULL,
                              .pixels_max = o->pixels_max};
}

/* ---- boxes ---- */

/* Pixels of the image as stored -> of the turned one. */
static void turn(const struct geometry *g, const double in[4], double b[4])
{
    int o = g->orientation;
    bool swap = o >= 5, mirror_x = o == 2 || o == 3 || o == 6 || o == 7, mirror_y = o == 3 || o == 4 || o == 7 || o == 8;
    for (int i = 0; i < 4; i++)
        b[i] = in[swap ? i ^ 1 : i];
    double w = g->image_width, h = g->image_height, x0 = b[0], y0 = b[1];
    if (mirror_x)
        b[0] = w - b[2], b[2] = w - x0;
    if (mirror_y)
        b[1] = h - b[3], b[3] = h - y0;
}

static double clamp(double v, double most) { return v > 0 ? MIN(v, most) : 0; } /* NaN: 0 */

bool transform_box(const struct geometry *g, const double in[4], float out[4])
{
    double b[4], w = g->width, h = g->height;
    turn(g, in, b);
    for (int i = 0; i < 4; i += 2) {
        b[i] = (b[i] - g->x) * w / g->w;
        b[i + 1] = (b[i + 1] - g->y) * h / g->h;
    }
    double x0 = b[0];
    if (g->flip)
        b[0] = w - b[2], b[2] = w - x0;
    for (int i = 0; i < 4; i += 2) {
        out[i] = (float)clamp(b[i], w);
        out[i + 1] = (float)clamp(b[i + 1], h);
    }
    return out[0] < out[2] && out[1] < out[3] && !isnan(b[0]) && !isnan(b[1]);
}
