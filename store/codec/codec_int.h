/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_int.h - inside store/codec: rows of RGB on their way from a decoder through the resizer.
 */
#ifndef LARDER_STORE_CODEC_INT_H
#define LARDER_STORE_CODEC_INT_H

#include "store/codec/codec.h"

/* ---- resize.c: pure ---- */

struct resize; /* tables and rows of one thread, kept between images */
int resize_new(struct resize **r, struct larder_error *err);
void resize_free(struct resize *r);
/* What comes in: src_w x src_h pixels, decoded, of which the box is used; what goes out: as the job says. */
struct resize_input { uint32_t w, h; double x, y, box_w, box_h; };
int resize_begin(struct resize *r, const struct resize_input *in, const struct image_job *job, void *out, struct larder_error *err);
/* Where row y of the input goes (w * 3 bytes): rows come in order. Up to RESIZE_ROWS beyond the last row fed are there at once. */
#define RESIZE_ROWS 16u
uint8_t *resize_row(struct resize *r, uint32_t y);
/* Rows below `rows` are there: makes what can be made of them. */
void resize_feed(struct resize *r, uint32_t rows);
/* For tests: without vector instructions. The results are the same. */
void resize_plain(struct resize *r, bool plain);

/* ---- the decoders: each reads its own format only ---- */

struct jpegdec;
int jpegdec_new(struct jpegdec **j, struct larder_error *err);
void jpegdec_free(struct jpegdec *j);
int jpegdec_open(struct jpegdec *j, const void *data, size_t len, struct image_info *info, struct larder_error *err);
int jpegdec_render(struct jpegdec *j, struct resize *r, const struct image_job *job, void *out, struct larder_error *err);

struct pngdec;
int pngdec_new(struct pngdec **g, struct larder_error *err);
void pngdec_free(struct pngdec *g);
int pngdec_open(struct pngdec *g, const void *data, size_t len, struct image_info *info, struct larder_error *err);
int pngdec_render(struct pngdec *g, struct resize *r, const struct image_job *job, void *out, struct larder_error *err);

struct webpdec;
int webpdec_new(struct webpdec **w, struct larder_error *err);
void webpdec_free(struct webpdec *w);
int webpdec_open(struct webpdec *w, const void *data, size_t len, struct image_info *info, struct larder_error *err);
int webpdec_render(struct webpdec *w, struct resize *r, const struct image_job *job, void *out, struct larder_error *err);

/* The job's crop within an image of w x h; EINVAL when it does not lie there, ECORRUPT when the image is too large. */
int image_crop(const struct image_job *job, uint32_t w, uint32_t h, struct resize_input *box, struct larder_error *err);

#endif
