/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - an image of any kind that larder knows: what it is, by its content, and the decoder for it.
 *
 * A decoder of a format reads its header, has the crop checked here, and feeds its rows to the resizer. Threads: one a decoder.
 */
#include "store/codec/codec_int.h"

#define PIXELS_MAX (1ull << 28)

struct image_decoder { int kind; struct jpegdec *jpeg; struct pngdec *png; struct webpdec *webp; struct resize *resize; };

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

int image_crop(const struct image_job *job, uint32_t w, uint32_t h, struct resize_input *box, struct larder_error *err)
{
    uint64_t most = job->pixels_max ? job->pixels_max : PIXELS_MAX;
    if ((uint64_t)w * h > most)
        return err_set(err, LARDER_ECORRUPT, "an image of %u x %u is larger than the limit of %llu pixels", w, h, (unsigned long long)most);
    if (job->w == 0)
        *box = (struct resize_input){w, h, 0, 0, w, h};
    else
        *box = (struct resize_input){w, h, job->x, job->y, job->w, job->h};
    if (job->w && (job->x >= w || job->y >= h || !job->h || job->w > w - job->x || job->h > h - job->y))
        return err_set(err, LARDER_EINVAL, "a crop of %u x %u at %u, %u of an image of %u x %u", job->w, job->h, job->x, job->y, w, h);
    return LARDER_OK;
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
    free(d);
}

int image_open(struct image_decoder *d, const void *data, size_t len, struct image_info *info, struct larder_error *err)
{
    d->kind = kind_of(data, len);
    switch (d->kind) {
    case IMAGE_JPEG: return jpegdec_open(d->jpeg, data, len, info, err);
    case IMAGE_PNG: return pngdec_open(d->png, data, len, info, err);
    case IMAGE_WEBP: return webpdec_open(d->webp, data, len, info, err);
    default: return unknown(data, len, err);
    }
}

int image_render(struct image_decoder *d, const struct image_job *job, void *out, struct larder_error *err)
{
    switch (d->kind) {
    case IMAGE_JPEG: return jpegdec_render(d->jpeg, d->resize, job, out, err);
    case IMAGE_PNG: return pngdec_render(d->png, d->resize, job, out, err);
    case IMAGE_WEBP: return webpdec_render(d->webp, d->resize, job, out, err);
    default: return err_set(err, LARDER_EINVAL, "no image is open");
    }
}
