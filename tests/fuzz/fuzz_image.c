/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_image.c - image_open(), image_open_rgb() and image_render() over bytes from outside.
 *
 * Input: 16 bytes that choose crop, size, filter, orientation and mode, then the image (or pixels, for a mode). Never a crash or a byte
 * outside the result, never a code but LARDER_OK, LARDER_ECORRUPT and LARDER_EINVAL, and the same pixels the second time, without
 * vectors, and as one of two results.
 */
#include "store/codec/codec_int.h"

enum { HEAD = 16, GUARD = 64, GUARD_BYTE = 0xa5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static struct image_job job_of(const uint8_t *data)
{
    struct image_job j = {get_u16(data), get_u16(data + 2), get_u16(data + 4), get_u16(data + 6), 1 + data[8] % 64u, 1 + data[9] % 64u,
                          .filter = data[10] % 3, .orientation = data[10] / 16 % 9, .no_antialias = data[11] & 1, .flip = data[11] & 2,
                          .exact = data[11] & 4, .planar = data[11] & 8, .beyond = data[11] & 16, .mask = data[11] & 32, .dtype = data[12] % 4,
                          .pixels_max = 1 << 20};
    if (j.mask)
        j.dtype = data[12] & 1 ? IMAGE_U16 : IMAGE_U8;
    if (data[13] & 1)
        j.w = 0;
    if (data[13] & 2)
        j.x += data[14] / 256.0, j.w += data[15] / 256.0, j.y += data[15] / 300.0, j.h += data[14] / 300.0;
    return j;
}

/* Of bytes that are pixels: as wide as they say. */
static int open_any(struct image_decoder *d, const uint8_t *data, size_t size, bool rgb)
{
    struct image_info info;
    uint32_t w = size ? 1 + data[0] : 0;
    if (rgb)
        return !size || size < w * 3 ? LARDER_ECORRUPT : image_open_rgb(d, data, w, (uint32_t)(size / (w * 3)), NULL);
    int rc = image_open(d, data, size, &info, NULL);
    require(rc || (info.width && info.height && info.orientation >= 1 && info.orientation <= 8));
    return rc;
}

static void render(struct image_decoder *d, const struct image_job *j)
{
    size_t n = image_job_bytes(j);
    AUTO_FREE uint8_t *out = malloc(n + GUARD), *again = malloc(n), *more = malloc(n);
    require(out && again && more);
    memset(out + n, GUARD_BYTE, GUARD);
    int rc = image_render(d, j, out, NULL);
    require(rc == LARDER_OK || rc == LARDER_ECORRUPT || rc == LARDER_EINVAL);
    for (size_t i = 0; i < GUARD; i++)
        require(out[n + i] == GUARD_BYTE);
    image_plain(d, true);
    require(image_render(d, j, again, NULL) == rc && (rc || !memcmp(out, again, n)));
    image_plain(d, false);
    struct image_job two[2] = {*j, *j};
    void *outs[2] = {again, more};
    if (rc == LARDER_OK && !j->mask)
        require(image_render_views(d, two, outs, 2, NULL) == LARDER_OK && !memcmp(out, again, n) && !memcmp(out, more, n));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct image_decoder *d;
    if (size < HEAD)
        return 0;
    struct image_job j = job_of(data);
    require(image_decoder_new(&d, NULL) == LARDER_OK); /* libFuzzer's data end where they end: ASan sees what lies behind */
    if (open_any(d, data + HEAD, size - HEAD, data[13] & 4) == LARDER_OK)
        render(d, &j);
    image_decoder_free(d);
    return 0;
}
