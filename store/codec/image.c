/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - an image of any kind that larder knows: what it is, by its content, and what a job needs of it.
 *
 * A crop is given in pixels of the image as it is turned. The resizer says which part of the stored image its filter looks at, the
 * decoder of the format delivers that part or somewhat more, and its rows go through the resizer as they come:
 *
 *     job -> box -> part wanted -> decoder: part got -> rows -> resizer -> result
 *
 * Nothing is turned in memory: a mirrored axis is a plan of weights in reverse, and where rows become columns they are stored so. Of several
 * results the parts are joined, decoded once and kept; each is then made from memory.
 *
 * Threads: one a decoder.
 */
#include "store/codec/codec_int.h"

#include <math.h>

#define PIXELS_MAX (1ull << 28)
#define VIEWS_MAX 4096u
enum { IMAGE_RGB = 100 }; /* decoded before */

struct image_decoder {
    int kind;
    struct image_info info;    /* of what is open */
    struct jpegdec *jpeg;
    struct pngdec *png;
    struct webpdec *webp;
    struct resize *resize, *kept;
    struct resize_input *views; size_t cap_views;
    const uint8_t *rgb;        /* IMAGE_RGB: borrowed */
};

static int kind_of(const void *data, size_t len)
{
    const char *ext = sniff_extension(data, len);
    return !ext ? 0 : !strcmp(ext, "jpg") ? IMAGE_JPEG : !strcmp(ext, "png") ? IMAGE_PNG : !strcmp(ext, "webp") ? IMAGE_WEBP : 0;
}

static int unknown(const void *data, size_t len, struct larder_error *err)
{
    const char *ext = sniff_extension(data, len);
    if (ext)
        return err_set(err, LARDER_ECORRUPT, "%zu bytes that look like a .%s, which is not decoded here", len, ext);
    return err_set(err, LARDER_ECORRUPT, "%zu bytes that are no image: neither JPEG, PNG nor WebP", len);
}

int mask_refused(const char *found, struct larder_error *err)
{
    return err_set(err, LARDER_ECORRUPT, "%s is no mask, which has one channel: store masks as grey or palette PNG, or take the field as an image",
                   found);
}

/* ---- EXIF ---- */

static uint32_t tiff_u16(const uint8_t *p, bool big) { return big ? (uint32_t)p[0] << 8 | p[1] : get_u16(p); }
static uint32_t tiff_u32(const uint8_t *p, bool big) { return big ? tiff_u16(p, true) << 16 | tiff_u16(p + 2, true) : get_u32(p); }

int exif_orientation(const uint8_t *p, size_t len)
{
    if (len < 8 || (memcmp(p, "II*\0", 4) && memcmp(p, "MM\0*", 4)))
        return 1;
    bool big = p[0] == 'M';
    size_t at = tiff_u32(p + 4, big);
    if (at > len - 2)
        return 1;
    uint32_t n = tiff_u16(p + at, big);
    at += 2;
    for (uint32_t i = 0; i < n && len - at >= 12; i++, at += 12)
        if (tiff_u16(p + at, big) == 0x0112 && tiff_u16(p + at + 2, big) == 3) {
            uint32_t v = tiff_u16(p + at + 8, big);
            return v >= 1 && v <= 8 ? (int)v : 1;
        }
    return 1;
}

/* ---- what a job needs ---- */

static int check_job(const struct image_job *j, struct larder_error *err)
{
    if (j->filter < IMAGE_BILINEAR || j->filter > IMAGE_NEAREST || j->orientation < 0 || j->orientation > 8 || j->dtype < IMAGE_U8 ||
        j->dtype > IMAGE_U16 || (j->mask ? j->dtype != IMAGE_U8 && j->dtype != IMAGE_U16 : j->dtype == IMAGE_U16))
        return err_set(err, LARDER_EINVAL, "filter %d, orientation %d, dtype %d of %s", j->filter, j->orientation, j->dtype,
                       j->mask ? "a mask" : "an image");
    return LARDER_OK;
}

/* The crop within the image at 1/d, turned. EINVAL when it does not lie there. */
static int place_box(const struct image_job *job, const struct image_info *info, unsigned d, struct resize_input *in, struct larder_error *err)
{
    bool swap = turn_swaps(job->orientation);
    double tw = swap ? info->height : info->width, th = swap ? info->width : info->height; /* turned */
    double x = job->x, y = job->y, w = job->w, h = job->h;
    if (w == 0)
        x = y = 0, w = tw, h = th;
    if (!(x >= 0 && y >= 0 && w > 0 && h > 0 && w < 1e9 && h < 1e9 && x < tw && y < th && x + w <= tw + 1e-6 * tw && y + h <= th + 1e-6 * th))
        return err_set(err, LARDER_EINVAL, "a crop of %g x %g at %g, %g of an image of %g x %g", w, h, x, y, tw, th);
    uint32_t full_w = (info->width + d - 1) / d, full_h = (info->height + d - 1) / d;
    double wide = swap ? full_h : full_w, high = swap ? full_w : full_h;
    /* The last pixel at 1/d may stand for less than d: where that is the first one, turned, the image begins within it. */
    double left = turn_mirrors_x(job->orientation) ? wide - tw / d : 0, top = turn_mirrors_y(job->orientation) ? high - th / d : 0;
    *in = (struct resize_input){full_w, full_h, x / d + left, y / d + top, w / d, h / d, {0}};
    in->box_w = MIN(in->box_w, wide - in->x);
    in->box_h = MIN(in->box_h, high - in->y);
    return LARDER_OK;
}

/* The smallest decode that is twice as large as the result in both directions: 1/1, 1/2, 1/4, 1/8. */
static unsigned denominator(const struct image_job *job, const struct resize_input *in)
{
    unsigned d = 1;
    while (!job->exact && !job->mask && job->filter != IMAGE_NEAREST && d < 8 && in->box_w >= 4.0 * d * job->width &&
           in->box_h >= 4.0 * d * job->height)
        d *= 2;
    return d;
}

static void join(struct image_part *a, const struct image_part *b)
{
    uint32_t right = MAX(a->x + a->w, b->x + b->w), bottom = MAX(a->y + a->h, b->y + b->h);
    a->x = MIN(a->x, b->x);
    a->y = MIN(a->y, b->y);
    a->w = right - a->x;
    a->h = bottom - a->y;
}

/* d->views, the scale of the decode and the part of the image that all jobs need together. */
static int plan(struct image_decoder *d, const struct image_job *jobs, uint32_t n, unsigned *scale, struct image_part *want,
                struct larder_error *err)
{
    int rc = n > d->cap_views ? GROW(d->views, d->cap_views, n, err) : LARDER_OK;
    *scale = d->kind == IMAGE_JPEG ? 8 : 1;
    for (uint32_t i = 0; !rc && i < n; i++) {
        uint64_t most = jobs[i].pixels_max ? jobs[i].pixels_max : PIXELS_MAX;
        if ((uint64_t)d->info.width * d->info.height > most)
            return err_set(err, LARDER_ECORRUPT, "an image of %u x %u is larger than the limit of %llu pixels", d->info.width,
                           d->info.height, (unsigned long long)most);
        if (!(rc = check_job(&jobs[i], err)) && !(rc = place_box(&jobs[i], &d->info, 1, &d->views[i], err)))
            *scale = MIN(*scale, denominator(&jobs[i], &d->views[i]));
    }
    for (uint32_t i = 0; !rc && i < n; i++) {
        struct image_part need;
        rc = place_box(&jobs[i], &d->info, *scale, &d->views[i], err);
        resize_need(&d->views[i], &jobs[i], &need);
        if (i == 0)
            *want = need;
        else
            join(want, &need);
    }
    return rc;
}

/* ---- the decoders ---- */

static int begin(struct image_decoder *d, unsigned scale, bool mask, const struct image_part *want, struct image_part *got,
                 struct larder_error *err)
{
    switch (d->kind) {
    case IMAGE_JPEG: return jpegdec_begin(d->jpeg, scale, mask, want, got, err);
    case IMAGE_PNG: return pngdec_begin(d->png, mask, want, got, err);
    case IMAGE_WEBP: return webpdec_begin(d->webp, mask, want, got, err);
    default: break;
    }
    *got = *want;
    got->bytes = 3;
    return mask ? mask_refused("RGB", err) : LARDER_OK;
}

static int rows(struct image_decoder *d, const struct image_part *part, struct resize *r, struct larder_error *err)
{
    size_t stride = (size_t)d->info.width * 3;
    switch (d->kind) {
    case IMAGE_JPEG: return jpegdec_rows(d->jpeg, r, err);
    case IMAGE_PNG: return pngdec_rows(d->png, r, err);
    case IMAGE_WEBP: return webpdec_rows(d->webp, r, err);
    default: return resize_from(r, d->rgb + part->y * stride + (size_t)part->x * 3, stride, err);
    }
}

/* The part that was got goes through the resizer, or is kept for several. */
static int render_part(struct image_decoder *d, const struct image_job *jobs, void *const *outs, uint32_t n, const struct image_part *got,
                       struct larder_error *err)
{
    d->views[0].part = *got;
    int rc = n == 1 ? resize_begin(d->resize, &d->views[0], &jobs[0], outs[0], err) : resize_keep(d->kept, got, err);
    if (!rc)
        rc = rows(d, got, n == 1 ? d->resize : d->kept, err);
    for (uint32_t i = 0; !rc && n > 1 && i < n; i++) {
        d->views[i].part = *got;
        if (!(rc = resize_begin(d->resize, &d->views[i], &jobs[i], outs[i], err)))
            rc = resize_from_kept(d->resize, d->kept, err);
    }
    return rc;
}

/* ---- the door ---- */

void image_plain(struct image_decoder *d, bool plain)
{
    resize_plain(d->resize, plain);
}

int image_decoder_new(struct image_decoder **out, struct larder_error *err)
{
    struct image_decoder *d = calloc(1, sizeof(*d));
    *out = NULL;
    if (!d)
        return err_nomem(err, sizeof(*d), "an image decoder");
    int rc = jpegdec_new(&d->jpeg, err);
    if (!rc)
        rc = pngdec_new(&d->png, err);
    if (!rc)
        rc = webpdec_new(&d->webp, err);
    if (!rc)
        rc = resize_new(&d->resize, err);
    if (!rc)
        rc = resize_new(&d->kept, err);
    if (rc) {
        image_decoder_free(d);
        return rc;
    }
    *out = d;
    return LARDER_OK;
}

void image_decoder_free(struct image_decoder *d)
{
    if (!d)
        return;
    jpegdec_free(d->jpeg);
    pngdec_free(d->png);
    webpdec_free(d->webp);
    resize_free(d->resize);
    resize_free(d->kept);
    free(d->views);
    free(d);
}

int image_open(struct image_decoder *d, const void *data, size_t len, struct image_info *info, struct larder_error *err)
{
    int rc, kind = kind_of(data, len);
    d->kind = 0;
    switch (kind) {
    case IMAGE_JPEG: rc = jpegdec_open(d->jpeg, data, len, &d->info, err); break;
    case IMAGE_PNG: rc = pngdec_open(d->png, data, len, &d->info, err); break;
    case IMAGE_WEBP: rc = webpdec_open(d->webp, data, len, &d->info, err); break;
    default: return unknown(data, len, err);
    }
    if (rc)
        return rc;
    d->kind = kind;
    *info = d->info;
    return LARDER_OK;
}

int image_open_rgb(struct image_decoder *d, const void *pixels, uint32_t width, uint32_t height, struct larder_error *err)
{
    d->kind = 0;
    if (!width || !height)
        return err_set(err, LARDER_EINVAL, "pixels of an image of %u x %u", width, height);
    d->kind = IMAGE_RGB;
    d->info = (struct image_info){IMAGE_RGB, width, height, 1};
    d->rgb = pixels;
    return LARDER_OK;
}

int image_render_views(struct image_decoder *d, const struct image_job *jobs, void *const *outs, uint32_t n, struct larder_error *err)
{
    struct image_part want = {0}, got = {0};
    unsigned scale;
    if (!d->kind || !n || n > VIEWS_MAX || (jobs[0].mask && n > 1))
        return err_set(err, LARDER_EINVAL, !d->kind ? "no image is open" : "%u results of one image", n);
    int rc = plan(d, jobs, n, &scale, &want, err);
    if (!rc)
        rc = begin(d, scale, jobs[0].mask, &want, &got, err);
    if (!rc && got.bytes == 2 && jobs[0].dtype != IMAGE_U16)
        rc = mask_refused("16-bit grey for a result of uint8", err);
    return rc ? rc : render_part(d, jobs, outs, n, &got, err);
}

int image_render(struct image_decoder *d, const struct image_job *job, void *out, struct larder_error *err)
{
    return image_render_views(d, job, &out, 1, err);
}
