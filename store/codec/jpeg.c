/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jpeg.c - the part of a JPEG that a job needs, by libjpeg-turbo: sole user of jpeglib.h.
 *
 * Of the image only the crop's rows and columns are decoded: columns are cut at blocks (jpeg_crop_scanline), rows above are
 * skipped, what lies below is left alone. One block more than the crop on either side keeps every pixel as a full decode has it,
 * since chroma is interpolated from its neighbours. Unless the job is exact, a crop that shrinks by four or more is decoded at 1/2, 1/4
 * or 1/8, for which libjpeg-turbo has vector code; it stays twice as large as the result, which keeps the error low.
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

#include <math.h>
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

/* ---- EXIF ---- */

static uint32_t tiff_u16(const uint8_t *p, bool big) { return big ? (uint32_t)p[0] << 8 | p[1] : get_u16(p); }
static uint32_t tiff_u32(const uint8_t *p, bool big) { return big ? tiff_u16(p, true) << 16 | tiff_u16(p + 2, true) : get_u32(p); }

/* The orientation that a TIFF header and its first directory tell; 1 where they do not. */
static int tiff_orientation(const uint8_t *p, size_t len)
{
    if (len < 8 || (memcmp(p, "II*\0", 4) && memcmp(p, "MM\0*", 4)))
        return 1;
    bool big = p[0] == 'M';
    size_t at = tiff_u32(p + 4, big);
    if (at > len - 2)
        return 1;
    uint32_t n = tiff_u16(p + at, big);
    at += 2;
    for (uint32_t i = 0; i < n && len - at >= 12; i++, at += 12)
        if (tiff_u16(p + at, big) == 0x0112 && tiff_u16(p + at + 2, big) == 3) {
            uint32_t v = tiff_u16(p + at + 8, big);
            return v >= 1 && v <= 8 ? (int)v : 1;
        }
    return 1;
}

static int exif_orientation(const struct jpegdec *j)
{
    for (const struct jpeg_marker_struct *m = j->c.marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > 6 && !memcmp(m->data, "Exif\0", 6))
            return tiff_orientation(m->data + 6, m->data_length - 6);
    return 1;
}

/* ---- decoding ---- */

/* Ends what was begun; rc stays. */
static int give_up(struct jpegdec *j, int rc)
{
    jpeg_abort_decompress(&j->c);
    return rc;
}

/* The smallest decode that is twice as large as the result in both directions: 1/1, 1/2, 1/4, 1/8. */
static unsigned denominator(const struct image_job *job, const struct resize_input *crop)
{
    unsigned d = 1;
    while (!job->exact && job->filter != IMAGE_NEAREST && d < 8 && crop->box_w >= 4.0 * d * job->width &&
           crop->box_h >= 4.0 * d * job->height)
        d *= 2;
    return d;
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
static void read_rows(struct jpegdec *j, struct resize *r, uint32_t from, uint32_t to, bool cmyk)
{
    struct jpeg_decompress_struct *c = &j->c;
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

/* Columns: the decoder cuts at blocks, one of which is kept beyond the crop on either side. */
static void cut_columns(struct jpegdec *j, struct resize_input *in)
{
    struct jpeg_decompress_struct *c = &j->c;
    uint32_t lo = (uint32_t)in->x, hi = MIN((uint32_t)ceil(in->x + in->box_w), c->output_width);
    JDIMENSION x = lo > 2 ? lo - 2 : 0, w = MIN(hi + 2, c->output_width) - x;
    if (x == 0 && w == c->output_width)
        return;
    jpeg_crop_scanline(c, &x, &w);
    in->x -= x;
    in->w = w;
}

static int decode(struct jpegdec *j, struct resize *r, const struct image_job *job, void *out, struct larder_error *err)
{
    struct jpeg_decompress_struct *c = &j->c;
    struct resize_input in;
    int rc = image_crop(job, c->image_width, c->image_height, &in, err);
    if (rc)
        return rc;
    bool cmyk = c->jpeg_color_space == JCS_CMYK || c->jpeg_color_space == JCS_YCCK;
    unsigned d = denominator(job, &in);
    c->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    c->scale_num = 1;
    c->scale_denom = d;
    c->dct_method = JDCT_ISLOW;
    jpeg_start_decompress(c);
    in = (struct resize_input){c->output_width, c->output_height, in.x / d, in.y / d, in.box_w / d, in.box_h / d};
    in.box_w = MIN(in.box_w, in.w - in.x);
    in.box_h = MIN(in.box_h, in.h - in.y);
    uint32_t top = (uint32_t)in.y, bottom = MIN((uint32_t)ceil(in.y + in.box_h), in.h);
    cut_columns(j, &in);
    in.y -= top;
    in.h = bottom - top;
    if (cmyk && (size_t)c->output_width * 4 > j->cap_cmyk && GROW(j->cmyk, j->cap_cmyk, (size_t)c->output_width * 4, err))
        return LARDER_ENOMEM;
    if ((rc = resize_begin(r, &in, job, out, err)))
        return rc;
    if (top)
        jpeg_skip_scanlines(c, top);
    read_rows(j, r, top, bottom, cmyk);
    if (j->ended)
        return err_set(err, LARDER_ECORRUPT, "JPEG of %u x %u ends before line %u", c->image_width, c->image_height, bottom * d);
    return LARDER_OK;
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
        *info = (struct image_info){IMAGE_JPEG, j->c.image_width, j->c.image_height, exif_orientation(j)};
    return LARDER_OK;
}

int jpegdec_render(struct jpegdec *j, struct resize *r, const struct image_job *job, void *out, struct larder_error *err)
{
    int rc = j->opened ? LARDER_OK : jpegdec_open(j, j->data, j->len, NULL, err);
    if (rc)
        return rc;
    j->opened = false; /* the header is used up */
    if (setjmp(j->fail))
        return give_up(j, err_set(err, LARDER_ECORRUPT, "JPEG: %.120s", j->why));
    return give_up(j, decode(j, r, job, out, err));
}
