/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jpeg.c - the part of a JPEG that a job needs, by libjpeg-turbo: sole user of jpeglib.h.
 *
 * Of the image only the rows and columns wanted are decoded: columns are cut at blocks (jpeg_crop_scanline), rows above are
 * skipped, what lies below is left alone. Two columns more on either side keep every pixel as a full decode has it, since chroma is
 * interpolated from its neighbours. A decode at 1/2, 1/4 or 1/8 happens in the DCT, for which libjpeg-turbo has vector code.
 *
 * Rows go into the resizer's ring, RESIZE_ROWS at a time. Grey becomes RGB in the library; CMYK and YCCK come as Adobe stores them,
 * inverted, and are converted as PIL does.
 *
 * libjpeg reports errors by a callback that must not return: a longjmp to the call that it began in, which owns nothing that
 * could leak. Its warnings are about damage it can live with, and are passed over as PIL does, but for data that ends early.
 *
 * Threads: one at a time.
 */
#include "store/codec/codec_int.h"

#include <setjmp.h>
#include <stdio.h>

#include <jerror.h>
#include <jpeglib.h>

struct jpegdec {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr mgr;
    jmp_buf fail;
    char why[JMSG_LENGTH_MAX];
    bool ended;                /* the data did, before the image */
    bool opened;               /* the header was read, and nothing behind it */
    const void *data; size_t len; /* borrowed */
    struct image_part part;    /* being decoded */
    uint8_t *cmyk; size_t cap_cmyk;
};

static struct jpegdec *jpeg_of(j_common_ptr c) { return (struct jpegdec *)c->client_data; }

static void on_error(j_common_ptr c)
{
    struct jpegdec *j = jpeg_of(c);
    c->err->format_message(c, j->why);
    longjmp(j->fail, 1);
}

static void on_message(j_common_ptr c, int level)
{
    if (level < 0 && c->err->msg_code == JWRN_JPEG_EOF)
        jpeg_of(c)->ended = true;
}

static void no_output(j_common_ptr c) { (void)c; }

int jpegdec_new(struct jpegdec **out, struct larder_error *err)
{
    struct jpegdec *j = calloc(1, sizeof(*j));
    *out = NULL;
    if (!j)
        return err_nomem(err, sizeof(*j), "a JPEG decoder");
    j->c.err = jpeg_std_error(&j->mgr);
    j->mgr.error_exit = on_error;
    j->mgr.emit_message = on_message;
    j->mgr.output_message = no_output;
    j->c.client_data = j;
    if (setjmp(j->fail)) {
        int rc = err_set(err, LARDER_ENOMEM, "a JPEG decoder: %s", j->why);
        jpegdec_free(j);
        return rc;
    }
    jpeg_create_decompress(&j->c);
    j->c.client_data = j;
    jpeg_save_markers(&j->c, JPEG_APP0 + 1, 0xffff); /* EXIF */
    *out = j;
    return LARDER_OK;
}

void jpegdec_free(struct jpegdec *j)
{
    if (!j)
        return;
    jpeg_destroy_decompress(&j->c);
    free(j->cmyk);
    free(j);
}

/* The orientation that the first EXIF marker tells. */
static int orientation(const struct jpegdec *j)
{
    for (const struct jpeg_marker_struct *m = j->c.marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && !memcmp(m->data, "Exif\0", 6))
            return exif_orientation(m->data + 6, m->data_length - 6);
    return 1;
}

/* ---- decoding ---- */

/* Ends what was begun; rc stays. */
static int give_up(struct jpegdec *j, int rc)
{
    jpeg_abort_decompress(&j->c);
    return rc;
}

/* As PIL: C, M, Y, K arrive inverted. */
static void cmyk_to_rgb(const uint8_t *in, uint8_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++, in += 4, out += 3) {
        uint32_t k = in[3];
        for (int c = 0; c < 3; c++) {
            uint32_t t = (255u - in[c]) * k + 128;
            out[c] = (uint8_t)(k - (((t >> 8) + t) >> 8));
        }
    }
}

/* Reads rows [from, to) of the picture into the ring, whose row 0 is `from`. */
static void read_rows(struct jpegdec *j, struct resize *r, uint32_t from, uint32_t to)
{
    struct jpeg_decompress_struct *c = &j->c;
    bool cmyk = c->out_color_space == JCS_CMYK;
    JSAMPROW rows[RESIZE_ROWS];
    for (uint32_t y = from; y < to;) {
        uint32_t n = MIN(to - y, RESIZE_ROWS), got = 0;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = cmyk ? j->cmyk : resize_row(r, y - from + i);
        while (got < n) {
            uint32_t k = jpeg_read_scanlines(c, rows + got, cmyk ? 1 : n - got);
            if (cmyk)
                cmyk_to_rgb(j->cmyk, resize_row(r, y - from + got), c->output_width);
            got += k;
        }
        y += n;
        resize_feed(r, y - from);
    }
}

/* Columns: the decoder cuts at blocks. */
static void cut_columns(struct jpegdec *j, struct image_part *part)
{
    struct jpeg_decompress_struct *c = &j->c;
    uint32_t full = c->output_width;
    JDIMENSION x = part->x > 2 ? part->x - 2 : 0, w = MIN(part->x + part->w + 2, full) - x;
    if (w < full)
        jpeg_crop_scanline(c, &x, &w);
    part->x = x;
    part->w = w;
}

int jpegdec_open(struct jpegdec *j, const void *data, size_t len, struct image_info *info, struct larder_error *err)
{
    jpeg_abort_decompress(&j->c);
    j->opened = j->ended = false;
    j->data = data;
    j->len = len;
    if (len == 0 || len > UINT32_MAX)
        return err_set(err, LARDER_ECORRUPT, "JPEG of %zu bytes", len);
    if (setjmp(j->fail))
        return give_up(j, err_set(err, LARDER_ECORRUPT, "JPEG: %.120s", j->why));
    jpeg_mem_src(&j->c, data, (unsigned long)len);
    jpeg_read_header(&j->c, TRUE);
    j->opened = true;
    if (info)
        *info = (struct image_info){IMAGE_JPEG, j->c.image_width, j->c.image_height, orientation(j)};
    return LARDER_OK;
}

int jpegdec_begin(struct jpegdec *j, unsigned denominator, bool mask, const struct image_part *want, struct image_part *got,
                  struct larder_error *err)
{
    struct jpeg_decompress_struct *c = &j->c;
    int rc = j->opened ? LARDER_OK : jpegdec_open(j, j->data, j->len, NULL, err);
    if (rc)
        return rc;
    if (mask && c->num_components != 1)
        return mask_refused("a JPEG in colour", err);
    j->opened = false; /* the header is used up */
    if (setjmp(j->fail))
        return give_up(j, err_set(err, LARDER_ECORRUPT, "JPEG: %.120s", j->why));
    bool cmyk = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    c->out_color_space = mask ? JCS_GRAYSCALE : cmyk ? JCS_CMYK : JCS_RGB;
    c->scale_num = 1;
    c->scale_denom = denominator;
    c->dct_method = JDCT_ISLOW;
    jpeg_start_decompress(c);
    j->part = *want;
    j->part.bytes = mask ? 1 : 3;
    cut_columns(j, &j->part);
    size_t row = (size_t)c->output_width * 4;
    if (cmyk && row > j->cap_cmyk && GROW(j->cmyk, j->cap_cmyk, row, err))
        return give_up(j, LARDER_ENOMEM);
    *got = j->part;
    return LARDER_OK;
}

int jpegdec_rows(struct jpegdec *j, struct resize *r, struct larder_error *err)
{
    struct jpeg_decompress_struct *c = &j->c;
    if (setjmp(j->fail))
        return give_up(j, err_set(err, LARDER_ECORRUPT, "JPEG: %.120s", j->why));
    if (j->part.y)
        jpeg_skip_scanlines(c, j->part.y);
    read_rows(j, r, j->part.y, j->part.y + j->part.h);
    if (!j->ended)
        return give_up(j, LARDER_OK);
    return give_up(j, err_set(err, LARDER_ECORRUPT, "JPEG of %u x %u ends before line %u", c->image_width, c->image_height,
                              (j->part.y + j->part.h) * c->scale_denom));
}
