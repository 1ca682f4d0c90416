/* SPDX-License-Identifier: Apache-2.0 */
/*
 * codec.h - the door of store/codec: pure functions, bytes <-> values. No I/O, no clock, no threads.
 */
#ifndef LARDER_STORE_CODEC_H
#define LARDER_STORE_CODEC_H

#include "store/base/base.h"

/* ---- zstd (zstd.c): frames without magic, size and dictionary id: the record table has them ---- */

struct zcomp;   /* a compressor: one thread at a time */
struct zdecomp; /* a decompressor: one thread at a time */
struct zdict;   /* a dictionary digested for decompression: shared by threads */

/* dict/dict_len: NULL/0 for none; copied. level 1..19. */
int zcomp_new(int level, const void *dict, size_t dict_len, struct zcomp **c, struct larder_error *err);
void zcomp_free(struct zcomp *c);
size_t zcomp_bound(size_t len);
/* Compresses into dst (cap >= zcomp_bound(len)); *out_len gets the size. */
int zcomp_run(struct zcomp *c, const void *src, size_t len, void *dst, size_t cap, size_t *out_len, struct larder_error *err);
int zdecomp_new(struct zdecomp **d, struct larder_error *err);
void zdecomp_free(struct zdecomp *d);
int zdict_new(const void *dict, size_t dict_len, struct zdict **z, struct larder_error *err);
void zdict_free(struct zdict *z);
/* Decompresses to exactly raw_len bytes; anything else is ECORRUPT. dict NULL for none. Never writes beyond raw_len. */
int zdecomp_run(struct zdecomp *d, const struct zdict *dict, const void *src, size_t len, void *dst, size_t raw_len,
                struct larder_error *err);
/* Trains a dictionary of at most cap bytes on n samples laid back to back. *dict_len 0: too little material to train on. */
int zdict_train(const void *samples, const size_t *sizes, size_t n, void *dict, size_t cap, size_t *dict_len,
                struct larder_error *err);

/* ---- sniffing (sniff.c) ---- */

/* The usual file extension of media by content ("jpg", "png", "webp", "gif", "bmp", "tiff", "wav", "flac", "ogg", "mp3"),
 * or NULL. */
const char *sniff_extension(const void *data, size_t len);
/* The field type that a file's extension (without dot, any case) stands for; LARDER_BYTES when unknown. */
int extension_type(const char *ext, size_t len);

#endif
