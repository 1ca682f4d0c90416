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

/* ---- images: jpeg.c, png.c, webp.c decode rows, resize.c makes of them what was asked for, image.c sniffs ---- */

enum image_kind { IMAGE_JPEG = 1, IMAGE_PNG, IMAGE_WEBP };
struct image_info {
    int kind;
    uint32_t width, height;  /* as stored, before orientation */
    int orientation;         /* EXIF, 1..8; 1 where absent or nonsense */
};
enum image_filter { IMAGE_BILINEAR, IMAGE_BICUBIC, IMAGE_NEAREST };
enum image_dtype { IMAGE_U8, IMAGE_F16, IMAGE_BF16, IMAGE_F32, IMAGE_U16 /* masks only */ };
static inline size_t image_dtype_bytes(int dtype) { return dtype == IMAGE_U8 ? 1 : dtype == IMAGE_F32 ? 4 : 2; }

/* What to make of an image: the pixels of a crop, scaled, as RGB. */
struct image_job {
    double x, y, w, h;           /* the crop, in pixels of the image after `orientation`; w 0: all of it */
    uint32_t width, height;      /* of the result */
    int orientation;             /* as EXIF counts, 1..8: the image is turned so before all else; 0, 1: as stored */
    int filter;                  /* enum image_filter, as PIL's */
    bool no_antialias;           /* the filter's support does not grow when the image shrinks */
    bool beyond;                 /* the filter looks at pixels around the crop: the crop is one of a scaled image, which PIL cuts out afterwards */
    bool flip;                   /* left and right change places, in the end */
    bool exact;                  /* JPEG: no scaling in the DCT: within 2 levels of PIL */
    bool mask;                   /* one channel, NEAREST, nothing converted: a grey image's samples, a palette's indexes; U8 or U16 */
    int dtype;                   /* enum image_dtype */
    bool planar;                 /* NCHW, else NHWC */
    const float *mean, *std;     /* [3] in units of 0..1; NULL: values are 0..1 (0..255 for U8, which takes neither) */
    uint64_t pixels_max;         /* larger images are refused; 0: 2^28 */
};
/* Bytes of the result. */
static inline size_t image_job_bytes(const struct image_job *j)
{
    return (size_t)j->width * j->height * (j->mask ? 1 : 3) * image_dtype_bytes(j->dtype);
}

/* Working memory for images: one a thread. */
struct image_decoder;
int image_decoder_new(struct image_decoder **d, struct larder_error *err);
void image_decoder_free(struct image_decoder *d);
/* Reads the header of an image, whose bytes are borrowed until the next one is opened. ECORRUPT: no image, damaged, or of a kind that is not
 * known (says what the bytes look like). */
int image_open(struct image_decoder *d, const void *data, size_t len, struct image_info *info, struct larder_error *err);
/* The same for pixels that were decoded before: RGB, 3 * width bytes a row, borrowed likewise and not copied. */
int image_open_rgb(struct image_decoder *d, const void *pixels, uint32_t width, uint32_t height, struct larder_error *err);
/* Decodes what the job needs of the opened image and no more: rows and columns outside the crop are passed over. Any number of
 * times. out: image_job_bytes(), aligned for its dtype. All modes become RGB as PIL's convert("RGB") makes them. ECORRUPT: damaged, with
 * what is wrong, or no mask; EINVAL: the crop is not in the image, or the job makes no sense; ENOMEM. What out holds after a failure is
 * undefined. */
int image_render(struct image_decoder *d, const struct image_job *job, void *out, struct larder_error *err);
/* Several results of one decode: what one of them needs is decoded once. No masks, if n > 1. */
int image_render_views(struct image_decoder *d, const struct image_job *jobs, void *const *outs, uint32_t n, struct larder_error *err);

/* ---- audio (audio.c) ---- */

enum audio_dtype { AUDIO_F32, AUDIO_I16 };
struct audio_info { uint32_t rate, channels; uint64_t frames; /* a frame: a number of each channel */ };

/* What to make of a sound. */
struct audio_job {
    uint64_t start;              /* the first frame of it, as stored */
    uint32_t frames;             /* of the result: where the sound has fewer, zeros stand behind them */
    uint32_t rate;               /* of the result, in Hz; 0: as stored */
    uint32_t channels;           /* of the result: 1: the mean of all; as many as stored; or any number of copies of one */
    int dtype;                   /* enum audio_dtype: -1 to 1, or its 2^15 fold, rounded and clipped */
};
/* Bytes of the result: channels x frames. */
static inline size_t audio_job_bytes(const struct audio_job *j)
{
    return (size_t)j->channels * j->frames * (j->dtype == AUDIO_I16 ? 2 : 4);
}

/* Working memory for sounds: one a thread. */
struct audio_decoder;
int audio_decoder_new(struct audio_decoder **d, struct larder_error *err);
void audio_decoder_free(struct audio_decoder *d);
/* Reads the header of a sound, whose bytes are borrowed until the next one is opened or the decoder is freed. WAV (RF64 and W64,
 * too), AIFF, AU, CAF, FLAC, Ogg (Vorbis, Opus, FLAC), MP3. ECORRUPT: no sound, damaged, of more than 64 channels, or of a rate that is none. */
int audio_open(struct audio_decoder *d, const void *data, size_t len, struct audio_info *info, struct larder_error *err);
/* Frames as stored that a result is made of. */
uint64_t audio_span(const struct audio_info *info, const struct audio_job *job);
/* Decodes what the job needs of the opened sound, any number of times. out: audio_job_bytes(). *length: frames that are there, before the
 * zeros. Another rate is made by a band-limiting filter (libsoxr's HQ). The result is a function of the bytes and the job. ECORRUPT: damaged, or of other channels; ENOMEM. What out holds after a failure is
 * undefined. */
int audio_render(struct audio_decoder *d, const struct audio_job *job, void *out, uint32_t *length, struct larder_error *err);

#endif
