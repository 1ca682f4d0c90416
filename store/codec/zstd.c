/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zstd.c - records as bare Zstandard frames, and dictionaries for them. The only user of zstd.h.
 *
 * A frame here has no magic number, no content size, no checksum and no dictionary id: the record table knows
 * the raw length and the CRC, the shard knows the dictionary. So it begins with a descriptor of value 0 and a
 * window byte; then come blocks, each with a 3-byte header (last:1, type:2, size:21), up to one marked last.
 *
 * zdecomp_run() walks these headers before it decompresses: the library would go on to a second frame behind
 * the first, and what follows the last block must be nothing. Its output goes into exactly raw_len bytes.
 *
 * A compressor and a decompressor belong to one thread at a time; a digested dictionary is read-only.
 */
#include "store/codec/codec.h"

#define ZSTD_STATIC_LINKING_ONLY /* for the magicless format: parameters of the shared library all the same */
#include <zdict.h>
#include <zstd.h>
#include <zstd_errors.h>

enum { LEVEL_MAX = 19, HEAD_BYTES = 2, BLOCK_HEAD_BYTES = 3, DICT_BYTES_MIN = 256 };
enum { BLOCK_RAW = 0, BLOCK_RLE = 1, BLOCK_COMPRESSED = 2 };

struct zcomp {
    ZSTD_CCtx *ctx;
    ZSTD_CDict *dict; /* NULL: none */
};

struct zdecomp {
    ZSTD_DCtx *ctx;
};

struct zdict {
    ZSTD_DDict *dict;
};

static int set_zstd(struct larder_error *err, int code, size_t rc, const char *what)
{
    if (ZSTD_getErrorCode(rc) == ZSTD_error_memory_allocation)
        code = LARDER_ENOMEM;
    return err_set(err, code, "zstd: %s: %s", what, ZSTD_getErrorName(rc));
}

/* zstd says NULL for a damaged dictionary and for lack of memory alike. Without its magic, any bytes will do. */
static int set_dict_refused(struct larder_error *err, const void *dict, size_t dict_len)
{
    if (dict_len >= 8 && get_u32(dict) == ZSTD_MAGIC_DICTIONARY &&
        ZDICT_isError(ZDICT_getDictHeaderSize(dict, dict_len)))
        return err_set(err, LARDER_ECORRUPT, "zstd: dictionary of %zu bytes is damaged: its tables do not parse",
                       dict_len);
    return err_nomem(err, dict_len, "digesting a zstd dictionary");
}

/* ---- compression ---- */

static int configure(struct zcomp *c, int level, struct larder_error *err)
{
    const struct {
        ZSTD_cParameter parameter;
        int value;
    } settings[] = {
        {ZSTD_c_compressionLevel, level}, {ZSTD_c_format, ZSTD_f_zstd1_magicless}, {ZSTD_c_contentSizeFlag, 0},
        {ZSTD_c_checksumFlag, 0},         {ZSTD_c_dictIDFlag, 0},
    };
    size_t rc;

    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        rc = ZSTD_CCtx_setParameter(c->ctx, settings[i].parameter, settings[i].value);
        if (ZSTD_isError(rc))
            return set_zstd(err, LARDER_EINVAL, rc, "setting a compression parameter");
    }
    rc = ZSTD_CCtx_refCDict(c->ctx, c->dict);
    return ZSTD_isError(rc) ? set_zstd(err, LARDER_EINVAL, rc, "attaching a dictionary") : LARDER_OK;
}

int zcomp_new(int level, const void *dict, size_t dict_len, struct zcomp **out, struct larder_error *err)
{
    struct zcomp *c;
    int rc;

    *out = NULL;
    if (level < 1 || level > LEVEL_MAX)
        return err_set(err, LARDER_EINVAL, "zstd: level %d, must be 1..%d", level, LEVEL_MAX);
    c = calloc(1, sizeof(*c));
    if (!c)
        return err_nomem(err, sizeof(*c), "a compressor");
    c->ctx = ZSTD_createCCtx();
    if (!c->ctx) {
        zcomp_free(c);
        return err_nomem(err, 0, "a zstd compression context");
    }
    if (dict_len) {
        c->dict = ZSTD_createCDict(dict, dict_len, level);
        if (!c->dict) {
            zcomp_free(c);
            return set_dict_refused(err, dict, dict_len);
        }
    }
    rc = configure(c, level, err);
    if (rc) {
        zcomp_free(c);
        return rc;
    }
    *out = c;
    return LARDER_OK;
}

void zcomp_free(struct zcomp *c)
{
    if (!c)
        return;
    ZSTD_freeCCtx(c->ctx);
    ZSTD_freeCDict(c->dict);
    free(c);
}

size_t zcomp_bound(size_t len)
{
    return ZSTD_compressBound(len);
}

int zcomp_run(struct zcomp *c, const void *src, size_t len, void *dst, size_t cap, size_t *out_len,
              struct larder_error *err)
{
    size_t rc = ZSTD_compress2(c->ctx, dst, cap, len ? src : "", len);

    if (ZSTD_isError(rc))
        return set_zstd(err, LARDER_EINVAL, rc, "compressing");
    *out_len = rc;
    return LARDER_OK;
}

/* ---- decompression ---- */

int zdecomp_new(struct zdecomp **out, struct larder_error *err)
{
    struct zdecomp *d = calloc(1, sizeof(*d));
    size_t rc;

    *out = NULL;
    if (!d)
        return err_nomem(err, sizeof(*d), "a decompressor");
    d->ctx = ZSTD_createDCtx();
    if (!d->ctx) {
        zdecomp_free(d);
        return err_nomem(err, 0, "a zstd decompression context");
    }
    rc = ZSTD_DCtx_setParameter(d->ctx, ZSTD_d_format, ZSTD_f_zstd1_magicless);
    if (ZSTD_isError(rc)) {
        zdecomp_free(d);
        return set_zstd(err, LARDER_EINVAL, rc, "setting the magicless format");
    }
    *out = d;
    return LARDER_OK;
}

void zdecomp_free(struct zdecomp *d)
{
    if (!d)
        return;
    ZSTD_freeDCtx(d->ctx);
    free(d);
}

int zdict_new(const void *dict, size_t dict_len, struct zdict **out, struct larder_error *err)
{
    struct zdict *z;

    *out = NULL;
    if (!dict_len)
        return err_set(err, LARDER_ECORRUPT, "zstd: dictionary of 0 bytes");
    z = calloc(1, sizeof(*z));
    if (!z)
        return err_nomem(err, sizeof(*z), "a dictionary");
    z->dict = ZSTD_createDDict(dict, dict_len);
    if (!z->dict) {
        free(z);
        return set_dict_refused(err, dict, dict_len);
    }
    *out = z;
    return LARDER_OK;
}

void zdict_free(struct zdict *z)
{
    if (!z)
        return;
    ZSTD_freeDDict(z->dict);
    free(z);
}

/* One frame of ours and nothing behind it: the blocks' sizes add up to len. */
static int check_frame(const uint8_t *p, size_t len, struct larder_error *err)
{
    size_t at = HEAD_BYTES;
    bool last = false;

    if (len < HEAD_BYTES || p[0] != 0)
        return err_set(err, LARDER_ECORRUPT, "zstd: %zu bytes do not begin as a frame", len);
    while (!last) {
        uint32_t head, type;
        size_t size;

        if (len - at < BLOCK_HEAD_BYTES)
            return err_set(err, LARDER_ECORRUPT, "zstd: frame of %zu bytes ends within a block header", len);
        head = p[at] | (uint32_t)p[at + 1] << 8 | (uint32_t)p[at + 2] << 16;
        at += BLOCK_HEAD_BYTES;
        last = head & 1;
        type = head >> 1 & 3;
        size = type == BLOCK_RLE ? 1 : head >> 3;
        if (type > BLOCK_COMPRESSED || size > len - at)
            return err_set(err, LARDER_ECORRUPT, "zstd: block of type %u, %zu bytes at %zu of a frame of %zu", type,
                           size, at, len);
        at += size;
    }
    if (at != len)
        return err_set(err, LARDER_ECORRUPT, "zstd: %zu bytes follow the frame's last block", len - at);
    return LARDER_OK;
}

int zdecomp_run(struct zdecomp *d, const struct zdict *dict, const void *src, size_t len, void *dst, size_t raw_len,
                struct larder_error *err)
{
    uint8_t nothing[1];
    size_t rc;
    int code = check_frame(src, len, err);

    if (code)
        return code;
    rc = ZSTD_DCtx_refDDict(d->ctx, dict ? dict->dict : NULL);
    if (ZSTD_isError(rc))
        return set_zstd(err, LARDER_EINVAL, rc, "attaching a dictionary");
    rc = ZSTD_decompressDCtx(d->ctx, raw_len ? dst : nothing, raw_len, src, len);
    if (ZSTD_isError(rc))
        return set_zstd(err, LARDER_ECORRUPT, rc, "decompressing");
    if (rc != raw_len)
        return err_set(err, LARDER_ECORRUPT, "zstd: frame holds %zu bytes, %zu expected", rc, raw_len);
    return LARDER_OK;
}

/* ---- training ---- */

int zdict_train(const void *samples, const size_t *sizes, size_t n, void *dict, size_t cap, size_t *dict_len,
                struct larder_error *err)
{
    size_t rc;

    if (n > UINT32_MAX)
        return err_set(err, LARDER_EINVAL, "zstd: %zu samples to train on, at most %u", n, UINT32_MAX);
    *dict_len = 0;
    if (!n || cap < DICT_BYTES_MIN)
        return LARDER_OK;
    rc = ZDICT_trainFromBuffer(dict, cap, samples, sizes, (unsigned)n);
    if (ZDICT_isError(rc)) {
        if (ZSTD_getErrorCode(rc) == ZSTD_error_memory_allocation)
            return err_nomem(err, 0, "training a zstd dictionary");
        return LARDER_OK; /* too few samples, or too little in common */
    }
    *dict_len = rc;
    return LARDER_OK;
}
