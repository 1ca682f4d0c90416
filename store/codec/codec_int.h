/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec_int.h - inside store/codec: rows of RGB on their way from a decoder through the resizer.
 */
#ifndef LARDER_STORE_CODEC_INT_H
#define LARDER_STORE_CODEC_INT_H

#include "store/codec/codec.h"

/* A part of an image as it is stored: pixels of `bytes` each, 3 for RGB, 1 or 2 (in the machine's order) for masks. */
struct image_part { uint32_t x, y, w, h; unsigned bytes; };

/* ---- resize.c: pure ---- */

struct resize; /* tables and rows of one thread, kept between images */
int resize_new(struct resize **r, struct larder_error *err);
void resize_free(struct resize *r);
/* What comes in: the image as decoded is full_w x full_h, of which `part` arrives. The box is in pixels of all of it, turned. */
struct resize_input { uint32_t full_w, full_h; double x, y, box_w, box_h; struct image_part part; };
/* What a job looks at. */
void resize_need(const struct resize_input *in, const struct image_job *job, struct image_part *need);
int resize_begin(struct resize *r, const struct resize_input *in, const struct image_job *job, void *out, struct larder_error *err);
/* Instead: rows are kept, and nothing is made of them. */
int resize_keep(struct resize *r, const struct image_part *part, struct larder_error *err);
/* Where row y of the part goes (w * bytes): rows come in order. Up to RESIZE_ROWS beyond the last row fed are there at once. */
#define RESIZE_ROWS 16u
uint8_t *resize_row(struct resize *r, uint32_t y);
/* Rows below `rows` are there: makes what can be made of them. */
void resize_feed(struct resize *r, uint32_t rows);
/* Instead of both: all rows of the part lie in memory. */
int resize_from(struct resize *r, const uint8_t *pixels, size_t stride, struct larder_error *err);
/* All rows, of what was kept. */
int resize_from_kept(struct resize *r, const struct resize *kept, struct larder_error *err);
/* For tests: without vector instructions. The results are the same. */
void resize_plain(struct resize *r, bool plain);

/* ---- the decoders: each reads its own format only ----
 *
 * begin: a part is wanted (`want`, at 1/denominator, which only JPEG has), of at least which rows will come: `got`. rows: feeds them.
 */

struct jpegdec;
int jpegdec_new(struct jpegdec **j, struct larder_error *err);
void jpegdec_free(struct jpegdec *j);
int jpegdec_open(struct jpegdec *j, const void *data, size_t len, struct image_info *info, struct larder_error *err);
int jpegdec_begin(struct jpegdec *j, unsigned denominator, bool mask, const struct image_part *want, struct image_part *got,
                  struct larder_error *err);
int jpegdec_rows(struct jpegdec *j, struct resize *r, struct larder_error *err);

struct pngdec;
int pngdec_new(struct pngdec **g, struct larder_error *err);
void pngdec_free(struct pngdec *g);
int pngdec_open(struct pngdec *g, const void *data, size_t len, struct image_info *info, struct larder_error *err);
int pngdec_begin(struct pngdec *g, bool mask, const struct image_part *want, struct image_part *got, struct larder_error *err);
int pngdec_rows(struct pngdec *g, struct resize *r, struct larder_error *err);

struct webpdec;
int webpdec_new(struct webpdec **w, struct larder_error *err);
void webpdec_free(struct webpdec *w);
int webpdec_open(struct webpdec *w, const void *data, size_t len, struct image_info *info, struct larder_error *err);
int webpdec_begin(struct webpdec *w, bool mask, const struct image_part *want, struct image_part *got, struct larder_error *err);
int webpdec_rows(struct webpdec *w, struct resize *r, struct larder_error *err);

/* For tests: without vector instructions. The results are the same. */
void image_plain(struct image_decoder *d, bool plain);
/* The orientation that EXIF data (a TIFF header and its first directory) tell; 1 where they do not. */
int exif_orientation(const uint8_t *tiff, size_t len);
/* What orientation o does: rows become columns first, then left and right, top and bottom change places. */
static inline bool turn_swaps(int o) { return o >= 5; }
static inline bool turn_mirrors_x(int o) { return o == 2 || o == 3 || o == 6 || o == 7; }
static inline bool turn_mirrors_y(int o) { return o == 3 || o == 4 || o == 7 || o == 8; }
/* ECORRUPT: what was found is no mask. */
int mask_refused(const char *found, struct larder_error *err);

#endif
