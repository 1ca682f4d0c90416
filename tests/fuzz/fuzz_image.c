/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_image.c - image_open() and image_render() over bytes from outside.
 *
 * Input: 16 bytes that choose the crop, the size and the filter, then the image. Never a crash or a byte outside the result, never
 * a code but LARDER_OK, LARDER_ECORRUPT and LARDER_EINVAL, and the same pixels the second time.
 */
#include "store/codec/codec.h"

enum { HEAD = 16, GUARD = 64, GUARD_BYTE = 0xa5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct image_decoder *d;
    struct image_info info;
    if (size < HEAD)
        return 0;
    struct image_job j = {get_u16(data), get_u16(data + 2), get_u16(data + 4), get_u16(data + 6), 1 + data[8] % 64u, 1 + data[9] % 64u,
                          .filter = data[10] % 3, .no_antialias = data[11] & 1, .flip = data[11] & 2, .exact = data[11] & 4,
                          .planar = data[11] & 8, .dtype = data[12] % 4, .pixels_max = 1 << 20};
    if (data[13] & 1)
        j.w = 0;
    size_t n = image_job_bytes(&j);
    require(image_decoder_new(&d, NULL) == LARDER_OK);
    if (image_open(d, data + HEAD, size - HEAD, &info, NULL) == LARDER_OK) {
        AUTO_FREE uint8_t *out = malloc(n + GUARD), *again = malloc(n);
        require(out && again && info.width && info.height && info.orientation >= 1 && info.orientation <= 8);
        memset(out + n, GUARD_BYTE, GUARD);
        int rc = image_render(d, &j, out, NULL);
        require(rc == LARDER_OK || rc == LARDER_ECORRUPT || rc == LARDER_EINVAL);
        for (size_t i = 0; i < GUARD; i++)
            require(out[n + i] == GUARD_BYTE);
        if (rc == LARDER_OK)
            require(image_render(d, &j, again, NULL) == LARDER_OK && !memcmp(out, again, n));
    }
    image_decoder_free(d);
    return 0;
}
