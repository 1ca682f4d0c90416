/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lm */
/*
 * test_huffman.c - coefficients against a decoder written from the standard bit by bit, over scans that are written here (every code
 * length, every kind of symbol, restarts, stuffing) and over damage; images against libjpeg's own entropy decoder.
 */
#include "tests/unit/images.h"
#include "tests/unit/test.h"

/* ---- a writer of scans ---- */

struct bits { uint8_t data[1 << 16]; size_t n; uint32_t acc, used; };

static void put_byte(struct bits *b, uint8_t v)
{
    b->data[b->n++] = v;
    if (v == 0xff)
        b->data[b->n++] = 0;
}

static void put_bits(struct bits *b, uint32_t v, uint32_t n)
{
    while (n--) {
        b->acc = b->acc << 1 | (v >> n & 1);
        if (++b->used == 8) {
            put_byte(b, (uint8_t)b->acc);
            b->acc = b->used = 0;
        }
    }
}

static void put_ones(struct bits *b)
{
    while (b->used)
        put_bits(b, 1, 1);
}

struct code { uint8_t counts[17], values[256]; uint32_t word[256], length[256]; unsigned n; };

/* Codes of every length from 2 to 16: one symbol of each, or `each` from 4 on, and the rest of 16. */
static void make_code(struct code *c, const uint8_t *symbols, unsigned n, unsigned each)
{
    uint32_t word = 0;
    memset(c, 0, sizeof(*c));
    for (uint32_t length = 2; length <= 16 && c->n < n; length++) {
        word <<= 1;
        uint32_t want = length == 16 ? n - c->n : length < 4 ? 1 : each;
        REQUIRE(word + want < 1u << length); /* all ones is no code */
        for (uint32_t i = 0; i < want && c->n < n; i++) {
            uint8_t s = symbols[c->n];
            c->values[c->n++] = s;
            c->word[s] = word++;
            c->length[s] = length;
            c->counts[length]++;
        }
    }
}

static void put_symbol(struct bits *b, const struct code *c, uint8_t s) { put_bits(b, c->word[s], c->length[s]); }

static uint32_t size_of(int v)
{
    uint32_t n = 0;
    for (int a = abs(v); a; a >>= 1)
        n++;
    return n;
}

static void put_value(struct bits *b, int v)
{
    uint32_t n = size_of(v);
    put_bits(b, (uint32_t)(v < 0 ? v - 1 : v) & ((1u << n) - 1), n);
}

static const uint8_t zigzag[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
                                   41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
                                   30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

static void put_block(struct bits *b, const struct code *dc, const struct code *ac, const int16_t *block, int *last)
{
    int diff = block[0] - *last;
    *last = block[0];
    put_symbol(b, dc, (uint8_t)size_of(diff));
    put_value(b, diff);
    int run = 0;
    for (int k = 1; k < 64; k++) {
        int v = block[zigzag[k]];
        if (!v) {
            run++;
            continue;
        }
        for (; run > 15; run -= 16)
            put_symbol(b, ac, 0xf0);
        put_symbol(b, ac, (uint8_t)(run << 4 | (int)size_of(v)));
        put_value(b, v);
        run = 0;
    }
    if (run)
        put_symbol(b, ac, 0);
}

/* ---- the decoder from the standard's figures ---- */

struct reader { const uint8_t *p, *end; int bit; };

static int read_bit(struct reader *r)
{
    if (r->p >= r->end || (*r->p == 0xff && (r->p + 1 >= r->end || r->p[1])))
        return -1;
    int v = *r->p >> (7 - r->bit) & 1;
    if (++r->bit == 8) {
        r->p += *r->p == 0xff ? 2 : 1;
        r->bit = 0;
    }
    return v;
}

static int read_symbol(struct reader *r, const struct code *c)
{
    uint32_t word = 0, first = 0, n = 0;
    for (uint32_t length = 1; length <= 16; length++) {
        int bit = read_bit(r);
        if (bit < 0)
            return -1;
        word = word << 1 | (uint32_t)bit;
        if (word < first + c->counts[length])
            return c->values[n + word - first];
        n += c->counts[length];
        first = (first + c->counts[length]) << 1;
    }
    return -1;
}

static int read_value(struct reader *r, int s, int *v)
{
    *v = 0;
    for (int i = 0; i < s; i++) {
        int bit = read_bit(r);
        if (bit < 0)
            return -1;
        *v = *v << 1 | bit;
    }
    if (s && *v < 1 << (s - 1))
        *v -= (1 << s) - 1;
    return 0;
}

static bool read_block(struct reader *r, const struct code *dc, const struct code *ac, int16_t *out, int *last)
{
    int s = read_symbol(r, dc), v;
    if (s < 0 || read_value(r, s, &v))
        return false;
    out[0] = (int16_t)(*last += v);
    for (int k = 1; k < 64; k++) {
        s = read_symbol(r, ac);
        if (s < 0)
            return false;
        if (!(s & 15) && s >> 4 != 15)
            break;
        k += s >> 4;
        if (k > 63 || read_value(r, s & 15, &v))
            return false;
        out[zigzag[k]] = (int16_t)v;
    }
    return true;
}

/* ---- tests ---- */

enum { BLOCKS = 400 };
struct made { struct code dc, ac; int16_t block[BLOCKS][64]; struct bits bits; };

static void shuffle(uint8_t *p, unsigned n, uint64_t *seed)
{
    for (unsigned i = n - 1; i > 0; i--) {
        unsigned k = (unsigned)rng_below(seed, i + 1);
        uint8_t t = p[i];
        p[i] = p[k];
        p[k] = t;
    }
}

/* dense: of 64, how many coefficients are not 0. restart: MCUs of a block each. */
static void make_scan(struct made *m, uint64_t seed, unsigned dense, unsigned most, uint32_t restart)
{
    uint8_t dc[12], ac[162];
    unsigned n = 0;
    int last = 0;
    for (int i = 0; i < 12; i++)
        dc[i] = (uint8_t)i;
    ac[n++] = 0;
    ac[n++] = 0xf0;
    for (int run = 0; run < 16; run++)
        for (int s = 1; s <= 10; s++)
            ac[n++] = (uint8_t)(run << 4 | s);
    shuffle(dc, 12, &seed);
    shuffle(ac, n, &seed);
    make_code(&m->dc, dc, 12, 1);
    make_code(&m->ac, ac, n, seed & 1 ? 1 : 3);
    memset(&m->bits, 0, sizeof(m->bits));
    memset(m->block, 0, sizeof(m->block));
    for (unsigned b = 0; b < BLOCKS; b++) {
        for (unsigned k = 0; k < 64; k++)
            if (k == 0 || rng_below(&seed, 64) < dense) {
                int v = (int)rng_below(&seed, 2u << rng_below(&seed, most));
                m->block[b][zigzag[k]] = (int16_t)(k == 0 ? v / 2 : rng_below(&seed, 2) ? v : -v);
            }
        if (restart && b && b % restart == 0) {
            put_ones(&m->bits);
            m->bits.data[m->bits.n++] = 0xff;
            m->bits.data[m->bits.n++] = (uint8_t)(0xd0 + (b / restart - 1) % 8);
            last = 0;
        }
        put_block(&m->bits, &m->dc, &m->ac, m->block[b], &last);
        REQUIRE(m->bits.n + 4000 < sizeof(m->bits.data) || b + 1 < BLOCKS);
        if (m->bits.n + 4000 > sizeof(m->bits.data))
            break;
    }
    put_ones(&m->bits);
    m->bits.data[m->bits.n++] = 0xff;
    m->bits.data[m->bits.n++] = 0xd9;
}

static struct huff_scan *scan_of(const struct made *m, uint32_t restart)
{
    struct huff_scan *s = calloc(1, sizeof(*s));
    REQUIRE(huff_table_set(&s->dc[1], m->dc.counts, m->dc.values, true));
    REQUIRE(huff_table_set(&s->ac[2], m->ac.counts, m->ac.values, false));
    s->n_blocks = 1;
    s->block[0] = (struct huff_block){1, 2, 0};
    s->restart_interval = restart;
    return s;
}

TEST(scans_of_every_kind)
{
    struct made *m = calloc(1, sizeof(*m));
    for (unsigned i = 0; i < 40; i++) {
        static const unsigned dense[] = {0, 1, 4, 16, 64};
        uint32_t restart = i % 4 == 3 ? 1 + i % 7 : 0;
        make_scan(m, i + 1, dense[i % 5], i % 3 ? 4 : 9, restart);
        struct huff_scan *s = scan_of(m, restart);
        uint8_t *tight = malloc(m->bits.n);
        memcpy(tight, m->bits.data, m->bits.n);
        huff_begin(s, tight, m->bits.n);
        unsigned decoded = 0, wrong = 0;
        for (unsigned b = 0; b < BLOCKS; b++) {
            int16_t out[64] = {0};
            int16_t(*at)[64] = &out;
            bool skip = b % 5 == 2;
            if (!huff_mcu(s, skip ? NULL : &at))
                break;
            decoded++;
            wrong += !skip && memcmp(out, m->block[b], sizeof(out));
        }
        test_check(decoded == BLOCKS || m->bits.n + 4000 > sizeof(m->bits.data), __FILE__, __LINE__, "scan %u: %u blocks", i, decoded);
        CHECK_EQ(wrong, 0);
        CHECK(!huff_mcu(s, NULL)); /* nothing behind the last one */
        free(tight);
        free(s);
    }
    free(m);
}

/* Flipped bits and cuts: as long as it says yes, it has what the standard's way has; it says no where that does, or before. */
TEST(damaged_scans)
{
    struct made *m = calloc(1, sizeof(*m));
    uint64_t seed = 77;
    make_scan(m, 5, 12, 5, 0);
    for (int i = 0; i < 300; i++) {
        size_t n = i % 3 ? m->bits.n : 1 + rng_below(&seed, m->bits.n), at = rng_below(&seed, n);
        uint8_t *data = malloc(n);
        memcpy(data, m->bits.data, n);
        data[at] = (uint8_t)rng_u64(&seed);
        if (i % 7 == 0)
            memset(data + at, i % 2 ? 0 : 0xff, MIN(n - at, 9));
        struct huff_scan *s = scan_of(m, 0);
        huff_begin(s, data, n);
        struct reader r = {data, data + n, 0};
        int last = 0;
        for (unsigned b = 0; b < 2 * BLOCKS; b++) {
            int16_t out[64] = {0}, want[64] = {0};
            int16_t(*to)[64] = &out;
            if (!huff_mcu(s, &to))
                break;
            REQUIRE(read_block(&r, &m->dc, &m->ac, want, &last));
            REQUIRE(!memcmp(out, want, sizeof(out)));
        }
        free(s);
        free(data);
    }
    free(m);
}

TEST(tables_that_are_none)
{
    struct huff_table *t = calloc(1, sizeof(*t));
    uint8_t counts[17] = {0}, values[256] = {0};
    counts[1] = 3;
    CHECK(!huff_table_set(t, counts, values, true));
    counts[1] = 1, counts[2] = 3;
    CHECK(!huff_table_set(t, counts, values, true));
    counts[2] = 1, values[1] = 16;
    CHECK(!huff_table_set(t, counts, values, true)); /* no DC difference has 16 bits */
    CHECK(huff_table_set(t, counts, values, false));
    memset(counts, 255, sizeof(counts));
    CHECK(!huff_table_set(t, counts, values, false));
    memset(counts, 0, sizeof(counts));
    CHECK(huff_table_set(t, counts, values, false)); /* no codes at all: every block is refused */
    free(t);
}

/* Whole images by both, restarts and damage among them: the same pixels, the same codes. */
TEST(images_are_as_the_library_has_them)
{
    struct image_decoder *d;
    struct image_info info;
    struct larder_error err, other;
    uint64_t seed = 3;
    enum { W = 203, H = 131, N = W * H * 3 };
    uint8_t *p = make_pixels(W, H, 3, 60), *a = malloc(N), *b = malloc(N);
    REQUIRE_OK(image_decoder_new(&d, &err), &err);
    for (int i = 0; i < 160; i++) {
        static const struct jpeg_kind kinds[] = {{3, 2, 2, false, 0}, {3, 1, 1, false, 0}, {1, 1, 1, false, 0}, {3, 4, 1, false, 0},
                                                 {3, 2, 2, true, 0}};
        size_t len;
        struct image_job j = {.width = W, .height = H};
        uint8_t *file = make_jpeg(p, W, H, &kinds[i % 5], &len);
        size_t n = i % 4 == 3 ? len / 2 + rng_below(&seed, len / 2) : len;
        for (int k = 0; i > 20 && k < i % 3; k++)
            file[len / 3 + rng_below(&seed, len - len / 3)] ^= (uint8_t)(1u << rng_below(&seed, 8));
        int rc[2] = {-99, -99};
        for (int plain = 0; plain < 2; plain++) {
            image_plain(d, plain);
            if (image_open(d, file, n, &info, &err) == LARDER_OK)
                rc[plain] = image_render(d, &j, plain ? b : a, plain ? &other : &err);
        }
        CHECK_EQ(rc[0], rc[1]);
        if (rc[0] == LARDER_OK)
            CHECK_MEM(a, b, N);
        else if (rc[0] != -99)
            CHECK_STR(err.message, other.message);
        free(file);
    }
    image_decoder_free(d);
    free(p);
    free(a);
    free(b);
}

TEST_MAIN();
