/* SPDX-License-Identifier: Apache-2.0 */
/*
 * images.h - images for the tests of the codecs: pixels that are smooth and grainy at once, encoded by the formats' own libraries.
 * Owned by the caller. The program names the libraries it needs (LIBS).
 */
#ifndef TEST_IMAGES_H
#define TEST_IMAGES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "store/codec/codec_int.h"

static inline uint8_t *make_pixels(uint32_t w, uint32_t h, unsigned channels, uint64_t seed)
{
    uint8_t *p = malloc((size_t)w * h * channels);
    for (uint32_t y = 0; p && y < h; y++)
        for (uint32_t x = 0; x < w; x++)
            for (unsigned c = 0; c < channels; c++) {
                seed = seed * 6364136223846793005u + 1442695040888963407u;
                uint32_t v = 40 + x * 130 / w + y * 60 / h + (c * 37 + (x / 9 + y / 7) % 2 * 40) % 60;
                p[((size_t)y * w + x) * channels + c] = (uint8_t)MIN(v + (seed >> 58), 255);
            }
    return p;
}

struct jpeg_kind { unsigned channels; int h_samp, v_samp; bool progressive; int orientation; };

/* stored: the colour space in the file; JCS_UNKNOWN: the usual one. */
static inline uint8_t *make_jpeg_as(const uint8_t *pixels, uint32_t w, uint32_t h, const struct jpeg_kind *k, J_COLOR_SPACE stored, size_t *len)
{
    struct jpeg_compress_struct c;
    struct jpeg_error_mgr mgr;
    unsigned char *out = NULL;
    unsigned long n = 0;
    c.err = jpeg_std_error(&mgr);
    jpeg_create_compress(&c);
    jpeg_mem_dest(&c, &out, &n);
    c.image_width = w;
    c.image_height = h;
    c.input_components = (int)k->channels;
    c.in_color_space = k->channels == 1 ? JCS_GRAYSCALE : k->channels == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_set_defaults(&c);
    if (stored != JCS_UNKNOWN)
        jpeg_set_colorspace(&c, stored);
    jpeg_set_quality(&c, 85, TRUE);
    if (k->channels == 3) {
        c.comp_info[0].h_samp_factor = k->h_samp;
        c.comp_info[0].v_samp_factor = k->v_samp;
    }
    if (k->progressive)
        jpeg_simple_progression(&c);
    jpeg_start_compress(&c, TRUE);
    if (k->orientation) {
        uint8_t exif[] = "Exif\0\0MM\0*\0\0\0\10\0\1\1\22\0\3\0\0\0\1\0\0\0\0\0\0\0\0";
        exif[25] = (uint8_t)k->orientation;
        jpeg_write_marker(&c, JPEG_APP0 + 1, exif, sizeof(exif) - 1);
    }
    while (c.next_scanline < h) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(pixels + (size_t)c.next_scanline * w * k->channels);
        jpeg_write_scanlines(&c, &row, 1);
    }
    jpeg_finish_compress(&c);
    jpeg_destroy_compress(&c);
    *len = n;
    return out;
}

static inline uint8_t *make_jpeg(const uint8_t *pixels, uint32_t w, uint32_t h, const struct jpeg_kind *k, size_t *len)
{
    return make_jpeg_as(pixels, w, h, k, JCS_UNKNOWN, len);
}

/* All of a JPEG by libjpeg alone, as RGB (or CMYK as stored). */
static inline uint8_t *full_jpeg(const uint8_t *data, size_t len, bool cmyk)
{
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr mgr;
    c.err = jpeg_std_error(&mgr);
    jpeg_create_decompress(&c);
    jpeg_mem_src(&c, data, (unsigned long)len);
    jpeg_read_header(&c, TRUE);
    c.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&c);
    size_t row = (size_t)c.output_width * (cmyk ? 4 : 3);
    uint8_t *out = malloc(row * c.output_height);
    while (out && c.output_scanline < c.output_height) {
        JSAMPROW at = out + c.output_scanline * row;
        jpeg_read_scanlines(&c, &at, 1);
    }
    jpeg_destroy_decompress(&c);
    return out;
}

#endif
