/* SPDX-License-Identifier: Apache-2.0 */
/*
 * huffman.c - the entropy coding of baseline JPEG (ITU T.81, annex F.2), which is most of the time of a decode. Pure.
 *
 * One lookup of LOOK bits tells a whole coefficient where code and value fit: how many bits, how many zeros before it, which value. Where
 * the next one fits too, it tells both: what takes time is the way from one lookup to the next. Bits come eight bytes at a time, unless an
 * 0xff is among them, which may be stuffed or a marker.
 *
 * Only what is clean is decoded. On anything else (codes that do not exist, too many coefficients, a marker too early, an end) the
 * answer is no, and the caller does it all again by the library, whose way with damage is then the only one.
 *
 * Threads: one at a time.
 */
#include "store/codec/codec_int.h"

#define LOOK HUFF_LOOK
/* An entry: bits 0..5 length of code and value together; 6 set when they do not fit; 8..14 places to go on; 16..31 the value. Those that
 * do not fit: 0..5 length of the code, 0 when that does not fit either; 16..23 the symbol. */
#define LONG 64u
/* A pair: the first entry with the length of both; 32..38 places to go on to the second; 40..45 length of the first alone; 48..63 the value of the
 * second. Without a second: the first's value, once more at the same place. */
#define SKIP_END 127u  /* the block ends */
#define SKIP_BAD 64u   /* beyond the block, as damage is */
static uint32_t entry(uint32_t length, uint32_t skip, int32_t value) { return length | skip << 8 | (uint32_t)value << 16; }
static uint32_t skip_of(uint64_t e) { return (uint32_t)(e >> 8) & 127; }
static uint64_t alone(uint32_t e) { return e | (uint64_t)(e & 63) << 40 | (uint64_t)(e >> 16) << 48; }

static int32_t extend(uint32_t r, uint32_t s) { return s && r < 1u << (s - 1) ? (int32_t)r - (int32_t)(1u << s) + 1 : (int32_t)r; }

static void fill_code(struct huff_table *t, uint32_t code, uint32_t length, uint32_t symbol)
{
    uint32_t s = symbol & 15, run = t->dc ? 0 : symbol >> 4, n = 1u << (LOOK - length), at = code << (LOOK - length);
    uint32_t skip = t->dc ? 0 : s || run == 15 ? run + 1 : SKIP_END;
    for (uint32_t i = 0; i < n; i++) {
        bool fits = length + s <= LOOK;
        uint32_t r = fits ? i >> (LOOK - length - s) : 0;
        t->look[at + i] = fits ? entry(length + s, skip, extend(r, s)) : entry(length | LONG, 0, (int32_t)symbol);
    }
}

/* After the entries of single ones. */
static void fill_pairs(struct huff_table *t)
{
    for (uint32_t i = 0; i < 1u << LOOK; i++) {
        uint32_t a = t->look[i], n = a & 63, b = t->look[i << n & ((1u << LOOK) - 1)];
        t->pair[i] = alone(a);
        if (!(a & LONG) && skip_of(a) < 64 && !(b & LONG) && n + (b & 63) <= LOOK)
            t->pair[i] = (a + (b & 63)) | (uint64_t)skip_of(b) << 32 | (uint64_t)n << 40 | (uint64_t)(b >> 16) << 48;
    }
}

bool huff_table_set(struct huff_table *t, const uint8_t *counts, const uint8_t *values, bool dc)
{
    uint32_t code = 0, n = 0;
    if (t->valid && t->dc == dc && !memcmp(t->counts, counts, 17) && !memcmp(t->values, values, 256))
        return true;
    t->valid = false;
    t->dc = dc;
    memcpy(t->counts, counts, 17);
    memcpy(t->values, values, 256);
    for (size_t i = 0; i < ARRAY_LEN(t->look); i++)
        t->look[i] = LONG;
    for (uint32_t length = 1; length <= 16; length++, code <<= 1) {
        t->first[length] = (int32_t)n - (int32_t)code;
        if (code + counts[length] > 1u << length || n + counts[length] > 256)
            return false;
        for (uint32_t i = 0; i < counts[length]; i++, code++, n++) {
            if (dc && values[n] > 15)
                return false;
            if (length <= LOOK)
                fill_code(t, code, length, values[n]);
        }
        t->below[length] = counts[length] ? code : 0;
    }
    if (!dc)
        fill_pairs(t);
    t->valid = true;
    return true;
}

void huff_begin(struct huff_scan *s, const uint8_t *data, size_t len)
{
    s->in = (struct huff_bits){data, data + len, 0, 0};
    memset(s->last_dc, 0, sizeof(s->last_dc));
    s->restart_left = s->restart_interval;
    s->restart_next = 0;
}

#define INLINE static inline __attribute__((always_inline))

/* At least 56 bits, or all up to a marker or the end. */
INLINE void refill(struct huff_bits *b)
{
    if (b->end - b->p >= 8) {
        uint64_t w = __builtin_bswap64(get_u64(b->p));
        if (likely(!((~w - 0x0101010101010101u) & w & 0x8080808080808080u))) { /* no 0xff */
            b->bits |= w >> b->count;
            b->p += (63 - b->count) >> 3;
            b->count |= 56;
            return;
        }
    }
    while (b->count <= 56 && b->p < b->end) {
        if (*b->p == 0xff && (b->end - b->p < 2 || b->p[1]))
            return;
        b->bits |= (uint64_t)*b->p << (56 - b->count);
        b->p += *b->p == 0xff ? 2 : 1;
        b->count += 8;
    }
}

INLINE uint32_t take(struct huff_bits *b, uint32_t n)
{
    uint32_t v = (uint32_t)(b->bits >> 1 >> (63 - n)); /* n may be 0 */
    b->bits <<= n;
    b->count -= (int)n;
    return v;
}

/* A code that is longer than LOOK bits: its length, and its symbol; 0: there is none. By value: the bits of the caller stay in registers. */
__attribute__((noinline)) static uint32_t long_code(const struct huff_table *t, uint64_t bits, uint32_t *symbol)
{
    uint32_t length = LOOK + 1;
    while (length <= 16 && (uint32_t)(bits >> (64 - length)) >= t->below[length])
        length++;
    if (length > 16)
        return 0;
    *symbol = t->values[(t->first[length] + (int32_t)(bits >> (64 - length))) & 255];
    return length;
}

/* What does not fit the table, as an entry. */
INLINE uint32_t next_long(const struct huff_table *t, struct huff_bits *b, uint32_t e)
{
    uint32_t length = e & 63, symbol = e >> 16 & 255;
    if (!length && !(length = long_code(t, b->bits, &symbol)))
        return entry(0, SKIP_BAD, 0);
    take(b, length);
    if (b->count < 16)
        refill(b);
    uint32_t s = symbol & 15, skip = t->dc ? 0 : s || symbol >> 4 == 15 ? (symbol >> 4) + 1 : SKIP_END;
    return entry(0, skip, extend(take(b, s), s));
}

/* The next entry; its bits are gone. */
INLINE uint32_t next(const struct huff_table *t, struct huff_bits *b)
{
    if (b->count < 16)
        refill(b);
    uint32_t e = t->look[b->bits >> (64 - LOOK)];
    if (unlikely(e & LONG))
        return next_long(t, b, e);
    b->bits <<= e & 63;
    b->count -= (int)(e & 63);
    return e;
}

/* Position in the block of the k-th coefficient. */
static const uint8_t natural[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
                                    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
                                    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* All coefficients but the first. */
INLINE bool rest(const struct huff_table *t, struct huff_bits *b, int16_t *out)
{
    for (uint32_t k = 0;;) {
        if (b->count < 16)
            refill(b);
        uint64_t before = b->bits, e = t->pair[before >> (64 - LOOK)];
        if (unlikely(e & LONG)) {
            e = alone(next_long(t, b, (uint32_t)e));
        } else {
            b->bits <<= e & 63;
            b->count -= (int)(e & 63);
        }
        uint32_t first = k + skip_of(e);
        k = first + ((uint32_t)(e >> 32) & 127);
        if (likely(k < 63)) {
            if (out) {
                out[natural[first]] = (int16_t)(e >> 16);
                out[natural[k]] = (int16_t)(e >> 48);
            }
            continue;
        }
        if (out && first <= 63)
            out[natural[first]] = (int16_t)(e >> 16);
        if (first == 63 && (e & 63) != (e >> 40 & 63)) { /* what follows is not of this block */
            b->bits = before << (e >> 40 & 63);
            b->count += (int)(e & 63) - (int)(e >> 40 & 63);
        } else if (out && k == 63) {
            out[63] = (int16_t)(e >> 48);
        }
        bool ended = first < 63 ? k == 63 || k >= SKIP_END : first == 63 || first >= SKIP_END;
        return ended && b->count >= 0;
    }
}

INLINE bool block(const struct huff_table *dc, const struct huff_table *ac, struct huff_bits *b, int32_t *last_dc, int16_t *out)
{
    uint32_t e = next(dc, b), k = skip_of(e);
    *last_dc = (int32_t)((uint32_t)*last_dc + (uint32_t)((int32_t)e >> 16));
    if (out)
        out[0] = (int16_t)*last_dc;
    if (k)
        return false;
    return rest(ac, b, out);
}

static bool restart(struct huff_scan *s)
{
    struct huff_bits *b = &s->in;
    refill(b);
    if (b->count > 7 || b->end - b->p < 2 || b->p[0] != 0xff || b->p[1] != 0xd0 + s->restart_next)
        return false;
    *b = (struct huff_bits){b->p + 2, b->end, 0, 0};
    memset(s->last_dc, 0, sizeof(s->last_dc));
    s->restart_next = (s->restart_next + 1) & 7;
    s->restart_left = s->restart_interval;
    return true;
}

INLINE bool mcu(struct huff_scan *s, int16_t (*const *out)[64], bool store)
{
    struct huff_bits b = s->in;
    bool ok = true;
    for (unsigned i = 0; ok && i < s->n_blocks; i++) {
        const struct huff_block *k = &s->block[i];
        ok = block(&s->dc[k->dc], &s->ac[k->ac], &b, &s->last_dc[k->component], store ? *out[i] : NULL);
    }
    s->in = b;
    return ok;
}

static bool mcu_plain(struct huff_scan *s, int16_t (*const *out)[64]) { return out ? mcu(s, out, true) : mcu(s, NULL, false); }

#if defined(__x86_64__)
__attribute__((target("bmi2"))) static bool mcu_bmi2(struct huff_scan *s, int16_t (*const *out)[64])
{
    return out ? mcu(s, out, true) : mcu(s, NULL, false);
}
#endif

bool huff_mcu(struct huff_scan *s, int16_t (*const *out)[64])
{
    if (s->restart_interval && s->restart_left-- == 0) {
        if (!restart(s))
            return false;
        s->restart_left--;
    }
#if defined(__x86_64__)
    if (__builtin_cpu_supports("bmi2"))
        return mcu_bmi2(s, out);
#endif
    return mcu_plain(s, out);
}

/* A few bytes on, where the library may have looked ahead. */
bool huff_near_end(const struct huff_scan *s)
{
    const uint8_t *p = s->in.p;
    for (; p < s->in.end && p < s->in.p + 16; p++)
        if (*p == 0xff && s->in.end - p > 1 && p[1])
            return false; /* a marker: nothing is missing */
    return p == s->in.end;
}
