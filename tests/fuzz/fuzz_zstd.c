/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_zstd.c - zdecomp_run() and zdict_new() over bytes from outside.
 *
 * Input: raw length (3 bytes, up to 1 MiB), dictionary length (1 byte, times 8; 0: none), dictionary, frame. Never
 * a byte behind the raw length, never a code but LARDER_OK and LARDER_ECORRUPT, and what was expanded comes back
 * when it is compressed again.
 */
#include "store/codec/codec.h"

enum { HEAD = 4, GUARD = 32, GUARD_BYTE = 0xa5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        __builtin_trap();
}

/* Compresses what a frame held and expands it into `back`, which must then be the same. */
static void check_round_trip(struct zdecomp *d, const uint8_t *raw, size_t raw_len)
{
    size_t cap = zcomp_bound(raw_len), len;
    AUTO_FREE uint8_t *packed = malloc(cap), *back = malloc(raw_len + 1);
    struct zcomp *c = NULL;

    require(packed && back && zcomp_new(1, NULL, 0, &c, NULL) == LARDER_OK);
    require(zcomp_run(c, raw, raw_len, packed, cap, &len, NULL) == LARDER_OK);
    require(zdecomp_run(d, NULL, packed, len, back, raw_len, NULL) == LARDER_OK);
    require(!memcmp(raw, back, raw_len));
    zcomp_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct larder_error err;
    struct zdecomp *d = NULL;
    struct zdict *z = NULL;
    size_t raw_len, dict_len;
    AUTO_FREE uint8_t *out = NULL;
    int rc;

    if (size < HEAD)
        return 0;
    raw_len = (data[0] | (size_t)data[1] << 8 | (size_t)data[2] << 16) % (MIB + 1);
    dict_len = MIN((size_t)data[3] * 8, size - HEAD);
    data += HEAD;
    size -= HEAD;
    if (dict_len) {
        rc = zdict_new(data, dict_len, &z, &err);
        require(rc == LARDER_OK || (rc == LARDER_ECORRUPT && !z));
    }
    out = malloc(raw_len + GUARD);
    require(out && zdecomp_new(&d, &err) == LARDER_OK);
    memset(out + raw_len, GUARD_BYTE, GUARD);
    rc = zdecomp_run(d, z, data + dict_len, size - dict_len, out, raw_len, &err);
    require(rc == LARDER_OK || rc == LARDER_ECORRUPT);
    for (size_t i = 0; i < GUARD; i++)
        require(out[raw_len + i] == GUARD_BYTE);
    if (rc == LARDER_OK)
        check_round_trip(d, out, raw_len);
    zdecomp_free(d);
    zdict_free(z);
    return 0;
}
