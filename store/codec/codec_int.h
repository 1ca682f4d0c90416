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

/* ---- huffman.c: the entropy coding of baseline JPEG ---- */

#define HUFF_LOOK 10
/* Zero it before first use. */
struct huff_table {
    uint64_t pair[1 << HUFF_LOOK]; /* AC */
    uint32_t look[1 << HUFF_LOOK];
    uint32_t below[17];        /* codes of this length are less, and lie behind those before them */
    int32_t first[17];         /* code + first: which value */
    uint8_t counts[17], values[256];
    bool dc, valid;
};
/* counts[1..16] codes of each length, and their symbols: as a DHT segment has them. Cheap when they are those that are set. false: no
 * Huffman code. */
bool huff_table_set(struct huff_table *t, const uint8_t *counts, const uint8_t *values, bool dc);

struct huff_bits { const uint8_t *p, *end; uint64_t bits; int count; };
struct huff_block { uint8_t dc, ac, component; };
struct huff_scan {
    struct huff_table dc[4], ac[4];
    struct huff_block block[10]; /* of an MCU */
    unsigned n_blocks;
    uint32_t restart_interval; /* MCUs; 0: none */
    uint32_t restart_left;
    uint8_t restart_next;
    int32_t last_dc[4];
    struct huff_bits in;
};
/* The scan's data, behind its header; what is above has been set. */
void huff_begin(struct huff_scan *s, const uint8_t *data, size_t len);
/* The next MCU into its blocks, which are zeroed (NULL: passed over). false: not clean. */
bool huff_mcu(struct huff_scan *s, int16_t (*const *out)[64]);
/* The data end here, and no marker says that they should. */
bool huff_near_end(const struct huff_scan *s);

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
/* DECODE_AGAIN: something is not clean: the library is to decode all of it, from jpegdec_begin() on. */
#define DECODE_AGAIN 2
int jpegdec_rows(struct jpegdec *j, struct resize *r, struct larder_error *err);
/* For tests: the library decodes all images. */
void jpegdec_plain(struct jpegdec *j, bool plain);

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

/* For tests: without huffman.c and vector instructions. The results are the same. */
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
