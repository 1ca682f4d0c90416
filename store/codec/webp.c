/* SPDX-License-Identifier: Apache-2.0 */
/*
 * webp.c - still WebP images, lossy and lossless, by libwebp: sole user of webp/decode.h.
 *
 * libwebp cuts the crop out itself, at even columns and rows. Alpha is dropped, as PIL's convert("RGB") does. Threads: one at a time.
 */
#include "store/codec/codec_int.h"

#include <webp/decode.h>

struct webpdec {
    const uint8_t *data; size_t len;
    uint32_t width, height;
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
    *info = (struct image_info){IMAGE_WEBP, w->width, w->height, 1};
    return LARDER_OK;
}

int webpdec_render(struct webpdec *w, struct resize *r, const struct image_job *job, void *out, struct larder_error *err)
{
    struct resize_input in;
    WebPDecoderConfig c;
    int rc = image_crop(job, w->width, w->height, &in, err);
    if (rc)
        return rc;
    /* A margin: chroma is interpolated from its neighbours. */
    uint32_t left = (uint32_t)MAX(in.x - 2, 0.0) & ~1u, top = (uint32_t)MAX(in.y - 2, 0.0) & ~1u;
    in.w = MIN((uint32_t)(in.x + in.box_w) + 2, w->width) - left;
    in.h = MIN((uint32_t)(in.y + in.box_h) + 2, w->height) - top;
    in.x -= left;
    in.y -= top;
    size_t row = (size_t)in.w * 3, bytes = row * in.h;
    if ((bytes > w->cap_pixels && GROW(w->pixels, w->cap_pixels, bytes, err)) || (rc = resize_begin(r, &in, job, out, err)))
        return rc ? rc : LARDER_ENOMEM;
    if (!WebPInitDecoderConfig(&c))
        return err_set(err, LARDER_EVERSION, "libwebp is not the version this was built for");
    c.options.use_cropping = in.w != w->width || in.h != w->height;
    c.options.crop_left = (int)left;
    c.options.crop_top = (int)top;
    c.options.crop_width = (int)in.w;
    c.options.crop_height = (int)in.h;
    c.output.colorspace = MODE_RGB;
    c.output.is_external_memory = 1;
    c.output.u.RGBA.rgba = w->pixels;
    c.output.u.RGBA.stride = (int)row;
    c.output.u.RGBA.size = bytes;
    VP8StatusCode status = WebPDecode(w->data, w->len, &c);
    WebPFreeDecBuffer(&c.output);
    if (status != VP8_STATUS_OK)
        return failed(status, err);
    for (uint32_t y = 0; y < in.h; y++) {
        memcpy(resize_row(r, y), w->pixels + y * row, row);
        resize_feed(r, y + 1);
    }
    return LARDER_OK;
}
