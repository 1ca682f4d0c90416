/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hash.c - hash64 and hash128 are XXH3 with a seed, 64 and 128 bits, as xxHash 0.8 fixed it. The only user of xxhash.h.
 *
 * The algorithm is compiled in (XXH_INLINE_ALL), so that short keys do not pay for a call into a shared library. Pure:
 * any thread. Not for adversaries: whoever knows the seed can make collisions.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store/base/base.h"

uint64_t hash64(uint64_t seed, const void *data, size_t len)
{
    return XXH3_64bits_withSeed(data, len, seed);
}

void hash128(uint64_t seed, const void *data, size_t len, uint64_t out[2])
{
    XXH128_hash_t h = XXH3_128bits_withSeed(data, len, seed);
    out[0] = h.low64;
    out[1] = h.high64;
}
