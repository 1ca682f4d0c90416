/* SPDX-License-Identifier: Apache-2.0 */
/*
 * png.c - PNG images by libpng: sole user of png.h.
 *
 * Every colour type becomes RGB as PIL's convert("RGB") makes it: alpha is dropped, palettes are looked up, 16 bits are cut to
 * their upper 8, but for grey ones, which PIL reads as integers and then clips at 255. Rows above the crop have to be inflated, those
 * below it are left alone; an interlaced image is decoded whole.
 *
 * libpng reports errors by a callback that must not return: a longjmp to the call that it began in. What that call holds is
 * in struct pngdec, whose png_close gives it back. Threads: one at a time.
 */
#include "store/codec/codec_int.h"

#include <setjmp.h>

#include <png.h>

#define CHUNK_BYTES_MAX (8u * 1024 * 1024) /* of a chunk that is not pixels, inflated */
#define CHUNKS_MAX 1000u
#define SIDE_MAX 1000000u

struct pngdec {
    png_structp p;
    png_infop info;
    const uint8_t *data; size_t len, at;
    bool opened;               /* the header was read, and nothing behind it */
    uint8_t *pixels; size_t cap_pixels; /* a row, or all of an interlaced image */
    struct image_part part;    /* being decoded */
    bool deep;                 /* rows are 16-bit grey, high byte first */
    bool whole;                /* interlaced */
    char why[120];
};

static void on_error(png_structp p, png_const_charp text)
{
    struct pngdec *g = png_get_error_ptr(p);
    snprintf(g->why, sizeof(g->why), "%s", text);
    png_longjmp(p, 1);
}

static void on_warning(png_structp p, png_const_charp text)
{
    (void)p;
    (void)text;
}

static void on_read(png_structp p, png_bytep out, size_t n)
{
    struct pngdec *g = png_get_io_ptr(p);
    if (n > g->len - g->at)
        png_error(p, "it ends early");
    memcpy(out, g->data + g->at, n);
    g->at += n;
}

static void close_image(struct pngdec *g)
{
    if (g->p)
        png_destroy_read_struct(&g->p, &g->info, NULL);
    g->p = NULL;
    g->info = NULL;
    g->opened = false;
}

int pngdec_new(struct pngdec **out, struct larder_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? LARDER_OK : err_nomem(err, sizeof(**out), "a PNG decoder");
}

void pngdec_free(struct pngdec *g)
{
    if (!g)
        return;
    close_image(g);
    free(g->pixels);
    free(g);
}

static int damaged(struct pngdec *g, struct larder_error *err)
{
    close_image(g);
    return err_set(err, LARDER_ECORRUPT, "PNG: %s", g->why);
}

/* What the first eXIf chunk tells, wherever it lies. */
static int orientation(const uint8_t *p, size_t len)
{
    for (size_t at = 8; at + 12 <= len;) {
        uint32_t n = (uint32_t)p[at] << 24 | (uint32_t)p[at + 1] << 16 | (uint32_t)p[at + 2] << 8 | p[at + 3];
        if (n > len - at - 12)
            return 1;
        if (!memcmp(p + at + 4, "eXIf", 4))
            return exif_orientation(p + at + 8, n);
        at += (size_t)n + 12;
    }
    return 1;
}

int pngdec_open(struct pngdec *g, const void *data, size_t len, struct image_info *info, struct larder_error *err)
{
    close_image(g);
    g->data = data;
    g->len = len;
    g->at = 0;
    g->p = png_create_read_struct(PNG_LIBPNG_VER_STRING, g, on_error, on_warning);
    g->info = g->p ? png_create_info_struct(g->p) : NULL;
    if (!g->info) {
        close_image(g);
        return err_nomem(err, 1024, "a PNG decoder");
    }
    if (setjmp(png_jmpbuf(g->p)))
        return damaged(g, err);
    png_set_user_limits(g->p, SIDE_MAX, SIDE_MAX);
    png_set_chunk_cache_max(g->p, CHUNKS_MAX);
    png_set_chunk_malloc_max(g->p, CHUNK_BYTES_MAX);
    png_set_read_fn(g->p, g, on_read);
    png_read_info(g->p, g->info);
    g->opened = true;
    if (info)
        *info = (struct image_info){IMAGE_PNG, png_get_image_width(g->p, g->info), png_get_image_height(g->p, g->info), orientation(data, len)};
    return LARDER_OK;
}

/* Asks libpng for RGB, or for 16-bit grey: g->deep. */
static void set_up(struct pngdec *g)
{
    int type = png_get_color_type(g->p, g->info), depth = png_get_bit_depth(g->p, g->info);
    g->deep = type == PNG_COLOR_TYPE_GRAY && depth == 16;
    if (g->deep)
        return;
    if (depth == 16)
        png_set_strip_16(g->p);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(g->p);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8)
        png_set_expand_gray_1_2_4_to_8(g->p);
    if (type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_GRAY_ALPHA)
        png_set_gray_to_rgb(g->p);
    png_set_strip_alpha(g->p);
}

/* Asks for samples and indexes as they are, a byte or two each. */
static int set_up_mask(struct pngdec *g, struct larder_error *err)
{
    int type = png_get_color_type(g->p, g->info), depth = png_get_bit_depth(g->p, g->info);
    if (type & PNG_COLOR_MASK_COLOR && type != PNG_COLOR_TYPE_PALETTE)
        return mask_refused("a PNG in colour", err);
    g->deep = depth == 16;
    png_set_packing(g->p);
    png_set_strip_alpha(g->p);
    return LARDER_OK;
}

static void deep_to_rgb(const uint8_t *in, uint8_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, out += 3)
        memset(out, in[2 * i] ? 255 : in[2 * i + 1], 3);
}

static void deep_to_u16(const uint8_t *in, uint8_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, out += 2)
        put_u16(out, (uint16_t)(in[2 * i] << 8 | in[2 * i + 1]));
}

/* from: a row of the image, as libpng delivers it. */
static void give_row(const struct pngdec *g, const uint8_t *from, uint8_t *out)
{
    uint32_t x = g->part.x, w = g->part.w;
    if (!g->deep)
        memcpy(out, from + (size_t)x * g->part.bytes, (size_t)w * g->part.bytes);
    else if (g->part.bytes == 2)
        deep_to_u16(from + (size_t)x * 2, out, w);
    else
        deep_to_rgb(from + (size_t)x * 2, out, w);
}

static int prepare(struct pngdec *g, bool mask, struct larder_error *err)
{
    uint32_t w = png_get_image_width(g->p, g->info), h = png_get_image_height(g->p, g->info);
    int rc = LARDER_OK;
    if (mask)
        rc = set_up_mask(g, err);
    else
        set_up(g);
    if (rc)
        return rc;
    g->whole = png_set_interlace_handling(g->p) > 1;
    png_read_update_info(g->p, g->info);
    g->part.bytes = !mask ? 3 : g->deep ? 2 : 1;
    size_t row = png_get_rowbytes(g->p, g->info), need = g->whole ? row * h : row;
    if (row != (size_t)w * (g->deep ? 2 : g->part.bytes))
        return err_set(err, LARDER_ECORRUPT, "PNG: rows of %zu bytes for %u pixels", row, w);
    return need > g->cap_pixels ? GROW(g->pixels, g->cap_pixels, need, err) : LARDER_OK;
}

int pngdec_begin(struct pngdec *g, bool mask, const struct image_part *want, struct image_part *got, struct larder_error *err)
{
    int rc = g->opened ? LARDER_OK : pngdec_open(g, g->data, g->len, NULL, err);
    if (rc)
        return rc;
    if (setjmp(png_jmpbuf(g->p)))
        return damaged(g, err);
    g->part = *want;
    rc = prepare(g, mask, err);
    if (rc)
        close_image(g);
    *got = g->part;
    return rc;
}

int pngdec_rows(struct pngdec *g, struct resize *r, struct larder_error *err)
{
    size_t row = png_get_rowbytes(g->p, g->info), h = png_get_image_height(g->p, g->info);
    if (setjmp(png_jmpbuf(g->p)))
        return damaged(g, err);
    if (g->whole) /* each pass fills in more of all rows */
        for (int passes = png_set_interlace_handling(g->p), i = 0; i < passes; i++)
            for (size_t y = 0; y < h; y++)
                png_read_row(g->p, g->pixels + y * row, NULL);
    for (uint32_t y = 0; y < g->part.y + g->part.h; y++) {
        if (!g->whole)
            png_read_row(g->p, g->pixels, NULL);
        if (y < g->part.y)
            continue;
        give_row(g, g->pixels + (g->whole ? y * row : 0), resize_row(r, y - g->part.y));
        resize_feed(r, y - g->part.y + 1);
    }
    close_image(g);
    return LARDER_OK;
}
