/* SPDX-License-Identifier: Apache-2.0 */
/* png_file.h - PNG files of 8 bits for tests, by libpng. The program names it (LIBS). */
#ifndef TEST_PNG_FILE_H
#define TEST_PNG_FILE_H

#include <png.h>
#include <stdlib.h>

#include "tests/unit/test.h"

/* Owned. channels: 1 or 3. */
static inline uint8_t *make_png(const uint8_t *pixels, uint32_t w, uint32_t h, unsigned channels, size_t *len)
{
    png_image im = {.version = PNG_IMAGE_VERSION, .width = w, .height = h, .format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB};
    png_alloc_size_t n = 0;
    REQUIRE(png_image_write_to_memory(&im, NULL, &n, 0, pixels, 0, NULL));
    uint8_t *out = malloc(n);
    REQUIRE(png_image_write_to_memory(&im, out, &n, 0, pixels, 0, NULL));
    *len = n;
    return out;
}

#endif
