/* SPDX-License-Identifier: Apache-2.0 */
/*
 * webp.c - still WebP images, lossy and lossless, by libwebp: sole user of webp/decode.h.
 *
 * libwebp cuts the part out itself, at even columns and rows. Alpha is dropped, as PIL's convert("RGB") does. Threads: one at a time.
 */
#include "store/codec/codec_int.h"

#include <webp/decode.h>

struct webpdec {
    const uint8_t *data; size_t len;
    uint32_t width, height;
    struct image_part part;    /* being decoded */
    uint8_t *pixels; size_t cap_pixels;
};

int webpdec_new(struct webpdec **out, struct larder_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? LARDER_OK : err_nomem(err, sizeof(**out), "a WebP decoder");
}

void webpdec_free(struct webpdec *w)
{
    if (!w)
        return;
    free(w->pixels);
    free(w);
}

static int failed(VP8StatusCode status, struct larder_error *err)
{
    static const char *const why[] = {[VP8_STATUS_OK] = "",
                                      [VP8_STATUS_OUT_OF_MEMORY] = "out of memory",
                                      [VP8_STATUS_INVALID_PARAM] = "it makes no sense",
                                      [VP8_STATUS_BITSTREAM_ERROR] = "damaged",
                                      [VP8_STATUS_UNSUPPORTED_FEATURE] = "of a kind that is not decoded here, animated perhaps",
                                      [VP8_STATUS_SUSPENDED] = "it ends early",
                                      [VP8_STATUS_USER_ABORT] = "given up",
                                      [VP8_STATUS_NOT_ENOUGH_DATA] = "it ends early"};
    int code = status == VP8_STATUS_OUT_OF_MEMORY ? LARDER_ENOMEM : LARDER_ECORRUPT;
    return err_set(err, code, "WebP: %s", (size_t)status < ARRAY_LEN(why) && why[status] ? why[status] : "damaged");
}

/* What the EXIF chunk tells; some writers put "Exif\\0\\0" before it. */
static int orientation(const uint8_t *p, size_t len)
{
    for (size_t at = 12; at + 8 <= len;) {
        size_t n = get_u32(p + at + 4), skip;
        if (n > len - at - 8)
            return 1;
        if (!memcmp(p + at, "EXIF", 4)) {
            skip = n > 6 && !memcmp(p + at + 8, "Exif\0", 6) ? 6 : 0;
            return exif_orientation(p + at + 8 + skip, n - skip);
        }
        at += 8 + n + (n & 1);
    }
    return 1;
}

int webpdec_open(struct webpdec *w, const void *data, size_t len, struct image_info *info, struct larder_error *err)
{
    WebPBitstreamFeatures f;
    VP8StatusCode status = WebPGetFeatures(data, len, &f);
    if (status == VP8_STATUS_OK && f.has_animation)
        status = VP8_STATUS_UNSUPPORTED_FEATURE;
    if (status != VP8_STATUS_OK)
        return failed(status, err);
    w->data = data;
    w->len = len;
    w->width = (uint32_t)f.width;
    w->height = (uint32_t)f.height;
    *info = (struct image_info){IMAGE_WEBP, w->width, w->height, orientation(data, len)};
    return LARDER_OK;
}

int webpdec_begin(struct webpdec *w, bool mask, const struct image_part *want, struct image_part *got, struct larder_error *err)
{
    /* A margin: chroma is interpolated from its neighbours. */
    uint32_t x = (want->x - MIN(want->x, 2)) & ~1u, y = (want->y - MIN(want->y, 2)) & ~1u;
    if (mask)
        return mask_refused("a WebP image", err);
    w->part = (struct image_part){x, y, MIN(want->x + want->w + 2, w->width) - x, MIN(want->y + want->h + 2, w->height) - y, 3};
    *got = w->part;
    size_t bytes = (size_t)w->part.w * 3 * w->part.h;
    return bytes > w->cap_pixels ? GROW(w->pixels, w->cap_pixels, bytes, err) : LARDER_OK;
}

int webpdec_rows(struct webpdec *w, struct resize *r, struct larder_error *err)
{
    size_t row = (size_t)w->part.w * 3;
    WebPDecoderConfig c;
    if (!WebPInitDecoderConfig(&c))
        return err_set(err, LARDER_EVERSION, "libwebp is not the version this was built for");
    c.options.use_cropping = w->part.w != w->width || w->part.h != w->height;
    c.options.crop_left = (int)w->part.x;
    c.options.crop_top = (int)w->part.y;
    c.options.crop_width = (int)w->part.w;
    c.options.crop_height = (int)w->part.h;
    c.output.colorspace = MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.rgba = w->pixels;
    c.output.u.RGBA.stride = (int)row;
    c.output.u.RGBA.size = row * w->part.h;
    VP8StatusCode status = WebPDecode(w->data, w->len, &c);
    WebPFreeDecBuffer(&c.output);
    return status == VP8_STATUS_OK ? resize_from(r, w->pixels, row, err) : failed(status, err);
}
