/* SPDX-License-Identifier: Apache-2.0 */
/*
 * perm.c - a keyed bijection on [0, n): position -> value and back, in constant time and memory.
 *
 * The algorithm is for ever: orders that were handed out, and states saved in the middle of one, depend on it.
 * All arithmetic is modulo 2^64, or 2^32 where a type says so.
 *
 *   mix64(z):       z ^= z >> 30; z *= 0xbf58476d1ce4e5b9; z ^= z >> 27; z *= 0x94d049bb133111eb; z ^= z >> 31
 *   state:          mix64(mix64(mix64(key + G) + tweak + G) + n + G),  G = 0x9e3779b97f4a7c15
 *   round_key[i]:   mix64(state + (i + 1) G), i = 0..5           (splitmix64)
 *   bits:           the smallest b >= BITS_MIN with 2^b >= n; bits_l = b / 2 rounded down, bits_r = b - bits_l
 *   f(x, k), 32 bit: x ^= low half of k; x ^= x >> 16; x *= 0x21f0aaad; x ^= x >> 15; x += high half of k;
 *                   x *= 0x735a2d97; x ^= x >> 15                (constants: hash-prospector)
 *   encrypt(v):     l = v >> bits_r, r = the low bits_r bits of v; for i = 0, 2, 4:
 *                       l ^= f(r, round_key[i]) mod 2^bits_l;  r ^= f(l, round_key[i + 1]) mod 2^bits_r;
 *                   then l << bits_r | r
 *   perm_at(v):     v = encrypt(v), again until v < n            ("Ciphers with Arbitrary Finite Domains", 2002)
 *
 * An unbalanced Feistel network permutes [0, 2^b) whatever f is. 2^b < 2n, so a walk takes less than two steps
 * on average; only below 2^BITS_MIN = 256 are there more, because networks on fewer bits reach their
 * permutations too unevenly: on 5 bits and less, counts of the permutations of 2 to 6 elements are far off
 * (tests/unit/test_perm.c counts them). perm_range() takes 256 positions through the network together, in
 * vectors, then only those that still walk, gathered.
 *
 * Pure functions over the caller's struct; any thread.
 */
#include "store/base/base.h"
#include "store/base/base_int.h"

#include <assert.h>

#define GOLDEN 0x9e3779b97f4a7c15u

enum { BITS_MIN = 8, ROUNDS = 6, BLOCK = 256, LANES = 16 };

static uint64_t mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void perm_init(struct perm *p, uint64_t key, uint64_t tweak, uint64_t n)
{
    uint64_t state = mix64(mix64(mix64(key + GOLDEN) + tweak + GOLDEN) + n + GOLDEN);
    uint32_t bits;

    assert(n >= 1);
    bits = n > 1 ? 64 - (uint32_t)__builtin_clzll(n - 1) : 0;
    bits = MAX(bits, (uint32_t)BITS_MIN);
    p->n = n;
    p->bits_l = bits / 2;
    p->bits_r = bits - p->bits_l;
    p->mask_l = ((uint64_t)1 << p->bits_l) - 1;
    p->mask_r = ((uint64_t)1 << p->bits_r) - 1;
    for (int i = 0; i < ROUNDS; i++)
        p->round_key[i] = mix64(state += GOLDEN);
}

static inline uint32_t f(uint32_t x, uint64_t k)
{
    x ^= (uint32_t)k;
    x ^= x >> 16;
    x *= 0x21f0aaadu;
    x ^= x >> 15;
    x += (uint32_t)(k >> 32);
    x *= 0x735a2d97u;
    return x ^ x >> 15;
}

/* The halves have at most 32 bits each. */
static uint64_t encrypt(const struct perm *p, uint64_t v)
{
    uint32_t mask_l = (uint32_t)p->mask_l, mask_r = (uint32_t)p->mask_r;
    uint32_t l = (uint32_t)(v >> p->bits_r), r = (uint32_t)v & mask_r;

    for (int i = 0; i < ROUNDS; i += 2) {
        l ^= f(r, p->round_key[i]) & mask_l;
        r ^= f(l, p->round_key[i + 1]) & mask_r;
    }
    return (uint64_t)l << p->bits_r | r;
}

static uint64_t decrypt(const struct perm *p, uint64_t v)
{
    uint32_t mask_l = (uint32_t)p->mask_l, mask_r = (uint32_t)p->mask_r;
    uint32_t l = (uint32_t)(v >> p->bits_r), r = (uint32_t)v & mask_r;

    for (int i = ROUNDS - 2; i >= 0; i -= 2) {
        r ^= f(l, p->round_key[i + 1]) & mask_r;
        l ^= f(r, p->round_key[i]) & mask_l;
    }
    return (uint64_t)l << p->bits_r | r;
}

uint64_t perm_at(const struct perm *p, uint64_t position)
{
    assert(position < p->n);
    do
        position = encrypt(p, position);
    while (position >= p->n);
    return position;
}

uint64_t perm_inverse(const struct perm *p, uint64_t value)
{
    assert(value < p->n);
    do
        value = decrypt(p, value);
    while (value >= p->n);
    return value;
}

/* ---- a run of positions ---- */

typedef uint32_t lanes __attribute__((vector_size(4 * LANES)));
typedef uint64_t wide_lanes __attribute__((vector_size(8 * LANES), aligned(8), may_alias));

/* A macro: vectors as arguments have no settled ABI without the wide target. */
#define F_LANES(x, k)                                                                                       \
    ({                                                                                                      \
        lanes x_ = (x) ^ (uint32_t)(k);                                                                     \
        x_ ^= x_ >> 16;                                                                                     \
        x_ *= 0x21f0aaadu;                                                                                  \
        x_ ^= x_ >> 15;                                                                                     \
        x_ += (uint32_t)((k) >> 32);                                                                        \
        x_ *= 0x735a2d97u;                                                                                  \
        x_ ^ x_ >> 15;                                                                                      \
    })

/* encrypt() of n values in place; n is a multiple of LANES. */
static inline __attribute__((always_inline)) void encrypt_lanes(const struct perm *p, uint64_t *v, size_t n)
{
    const struct perm key = *p;
    uint32_t mask_l = (uint32_t)key.mask_l, mask_r = (uint32_t)key.mask_r;

    for (size_t i = 0; i < n; i += LANES) {
        wide_lanes *w = (wide_lanes *)(v + i);
        lanes l = __builtin_convertvector(*w >> key.bits_r, lanes);
        lanes r = __builtin_convertvector(*w, lanes) & mask_r;

#pragma GCC unroll 3
        for (int k = 0; k < ROUNDS; k += 2) {
            l ^= F_LANES(r, key.round_key[k]) & mask_l;
            r ^= F_LANES(l, key.round_key[k + 1]) & mask_r;
        }
        *w = __builtin_convertvector(l, wide_lanes) << key.bits_r | __builtin_convertvector(r, wide_lanes);
    }
}

static void encrypt_plain(const struct perm *p, uint64_t *v, size_t n)
{
    encrypt_lanes(p, v, n);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void encrypt_avx2(const struct perm *p, uint64_t *v, size_t n)
{
    encrypt_lanes(p, v, n);
}

__attribute__((target("avx512f,avx512dq"))) static void encrypt_avx512(const struct perm *p, uint64_t *v, size_t n)
{
    encrypt_lanes(p, v, n);
}
#endif

static void encrypt_many(const struct perm *p, uint64_t *v, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        encrypt_avx512(p, v, n);
        return;
    }
    if (__builtin_cpu_supports("avx2")) {
        encrypt_avx2(p, v, n);
        return;
    }
#endif
    encrypt_plain(p, v, n);
}

bool perm_encrypt_as(int vector_bits, const struct perm *p, uint64_t *v, size_t n)
{
    assert(n % LANES == 0);
    if (vector_bits == 0) {
        encrypt_plain(p, v, n);
        return true;
    }
#if defined(__x86_64__)
    if (vector_bits == 256 && __builtin_cpu_supports("avx2")) {
        encrypt_avx2(p, v, n);
        return true;
    }
    if (vector_bits == 512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        encrypt_avx512(p, v, n);
        return true;
    }
#endif
    return false;
}

/* Of the values out[0..count) those that left [0, n) walk on: gathered in v, put back, again. count <= BLOCK. */
static void walk_block(const struct perm *p, uint64_t *out, size_t count)
{
    uint64_t v[BLOCK];
    uint8_t slot[BLOCK];
    size_t walkers = 0;

    for (size_t i = 0; i < count; i++) {
        slot[walkers] = (uint8_t)i;
        walkers += out[i] >= p->n;
    }
    while (walkers) {
        size_t left = 0, full = round_up(walkers, LANES);

        for (size_t i = 0; i < walkers; i++)
            v[i] = out[slot[i]];
        for (size_t i = walkers; i < full; i++)
            v[i] = 0;
        encrypt_many(p, v, full);
        for (size_t i = 0; i < walkers; i++) {
            out[slot[i]] = v[i];
            slot[left] = slot[i];
            left += v[i] >= p->n;
        }
        walkers = left;
    }
}

/* out[0..count) are positions and become values; count is a multiple of LANES, at most BLOCK. */
static void range_block(const struct perm *p, uint64_t *out, size_t count)
{
    encrypt_many(p, out, count);
    if (p->n - 1 != (p->mask_l << p->bits_r | p->mask_r))
        walk_block(p, out, count);
}

void perm_map(const struct perm *p, uint64_t *v, size_t n)
{
    uint64_t rest[LANES];
    size_t full = n / LANES * LANES, left = n - full;

    for (size_t i = 0; i < full; i += BLOCK)
        range_block(p, v + i, MIN(full - i, (size_t)BLOCK));
    if (!left)
        return;
    for (size_t i = 0; i < LANES; i++)
        rest[i] = v[full + MIN(i, left - 1)];
    range_block(p, rest, LANES);
    memcpy(v + full, rest, left * sizeof(*v));
}

void perm_range(const struct perm *p, uint64_t first, size_t count, uint64_t *out)
{
    uint64_t rest[BLOCK];
    size_t full;

    assert(first <= p->n && count <= p->n - first);
    for (; count >= BLOCK; first += BLOCK, out += BLOCK, count -= BLOCK) {
        for (size_t i = 0; i < BLOCK; i++)
            out[i] = first + i;
        range_block(p, out, BLOCK);
    }
    if (!count)
        return;
    full = round_up(count, LANES);
    for (size_t i = 0; i < full; i++)
        rest[i] = first + MIN(i, count - 1);
    range_block(p, rest, full);
    memcpy(out, rest, count * sizeof(*out));
}
