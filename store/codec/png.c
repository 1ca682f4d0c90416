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
        *info = (struct image_info){IMAGE_PNG, png_get_image_width(g->p, g->info), png_get_image_height(g->p, g->info), 1};
    return LARDER_OK;
}

/* Asks libpng for RGB, or for 16-bit grey: true. */
static bool set_up(struct pngdec *g)
{
    int type = png_get_color_type(g->p, g->info), depth = png_get_bit_depth(g->p, g->info);
    if (type == PNG_COLOR_TYPE_GRAY && depth == 16)
        return true;
    if (depth == 16)
        png_set_strip_16(g->p);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(g->p);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8)
        png_set_expand_gray_1_2_4_to_8(g->p);
    if (type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_GRAY_ALPHA)
        png_set_gray_to_rgb(g->p);
    png_set_strip_alpha(g->p);
    return false;
}

static void grey16_to_rgb(const uint8_t *in, uint8_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, out += 3)
        memset(out, in[2 * i] ? 255 : in[2 * i + 1], 3);
}

static int decode(struct pngdec *g, struct resize *r, const struct image_job *job, void *out, struct larder_error *err)
{
    uint32_t w = png_get_image_width(g->p, g->info), h = png_get_image_height(g->p, g->info);
    struct resize_input in;
    int rc = image_crop(job, w, h, &in, err);
    if (rc)
        return rc;
    uint32_t left = (uint32_t)in.x, top = (uint32_t)in.y, rows = (uint32_t)in.box_h;
    in = (struct resize_input){(uint32_t)in.box_w, rows, 0, 0, in.box_w, in.box_h};
    bool grey16 = set_up(g), whole = png_set_interlace_handling(g->p) > 1;
    png_read_update_info(g->p, g->info);
    size_t row = png_get_rowbytes(g->p, g->info), need = whole ? row * h : row;
    if (row != (size_t)w * (grey16 ? 2 : 3))
        return err_set(err, LARDER_ECORRUPT, "PNG: rows of %zu bytes for %u pixels", row, w);
    if ((need > g->cap_pixels && GROW(g->pixels, g->cap_pixels, need, err)) || (rc = resize_begin(r, &in, job, out, err)))
        return rc ? rc : LARDER_ENOMEM;
    if (whole) /* each pass fills in more of all rows */
        for (int passes = png_set_interlace_handling(g->p), i = 0; i < passes; i++)
            for (uint32_t y = 0; y < h; y++)
                png_read_row(g->p, g->pixels + y * row, NULL);
    for (uint32_t y = 0; y < top + rows; y++) {
        const uint8_t *from = g->pixels + (whole ? y * row : 0);
        if (!whole)
            png_read_row(g->p, g->pixels, NULL);
        if (y < top)
            continue;
        if (grey16)
            grey16_to_rgb(from + (size_t)left * 2, resize_row(r, y - top), in.w);
        else
            memcpy(resize_row(r, y - top), from + (size_t)left * 3, (size_t)in.w * 3);
        resize_feed(r, y - top + 1);
    }
    return LARDER_OK;
}

int pngdec_render(struct pngdec *g, struct resize *r, const struct image_job *job, void *out, struct larder_error *err)
{
    int rc = g->opened ? LARDER_OK : pngdec_open(g, g->data, g->len, NULL, err);
    if (rc)
        return rc;
    if (setjmp(png_jmpbuf(g->p)))
        return damaged(g, err);
    rc = decode(g, r, job, out, err);
    close_image(g);
    return rc;
}
