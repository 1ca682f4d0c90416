/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resize.c - scales rows of RGB while they are decoded, by PIL's filters, and writes pixels of the wanted type.
 *
 * A filter's weights are those of PIL's ImagingResample: for each output pixel a run of input pixels, its support growing with the
 * scale unless antialias is off. The vertical pass comes first: an output row is the weighted sum of input rows, which lie in a ring
 * just long enough for one run, so that they stay in the nearest cache from decoder to use; it is 16-bit fixed point, its pixels lie in
 * pairs, and it goes through the horizontal pass at once.
 *
 *     decoder -> ring of rows (u8) -> the rows of one run (Q7) --vertical, Q15 weights--> one row (Q7) --horizontal, Q14 weights--> u8 -> dtype, layout
 *
 * Bicubic weights overshoot, and what PIL sees in between is cut to 0..255 after its horizontal pass: so with them each row goes through that
 * first, into a ring of its own, as it comes.
 *
 *     decoder -> ring --horizontal, Q14--> second ring (u8) --vertical, Q14--> one row (Q6) -> u8 -> dtype, layout
 *
 * An output of very many inputs is made as PIL does it, in this order too, with weights of 32 bits: rounding each product to 16 would show.
 *
 * Weights are rounded so that each run's sum is exactly one: a flat area stays flat. A mirrored result is the horizontal runs in
 * reverse order. Vector and plain code compute the same bits: what a sample looks like does not depend on the machine.
 *
 * Threads: one at a time.
 */
#include "store/codec/codec_int.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PAD_PIXELS 24u     /* behind a row: vectors read and write beyond its end */
#define LINE_PIXELS 8u     /* spread, in a cache line */
#define SIDE_MAX (1u << 20)
#define WIDE_TAPS 64u      /* more inputs to an output: 16 bits are too few for their weights */
#define WIDE_ONE (1 << 22)

/* One direction: output i is the sum of coef[i * taps + k] * input[start[i] + k], k < n[i]. */
struct axis { uint32_t *start, *n; int16_t *coef; int32_t *wide; uint32_t taps; size_t cap_start, cap_n, cap_coef, cap_wide; };

/* What a direction is planned from. Inputs are counted along the turned image: mirrored, they are stored the other way round. */
struct side {
    uint32_t full;             /* inputs that the image has */
    uint32_t off, n;           /* those that come in, as stored */
    double from, len;          /* the box, turned */
    uint32_t size;             /* outputs */
    bool mirror;
};

struct resize {
    struct axis v, h;
    struct resize_input in;
    uint32_t width, height;    /* of what the passes make */
    uint32_t out_width, out_height; /* of the result: the other way round when turned */
    bool swap, backwards;      /* rows go into columns; the last one first */
    uint32_t next;             /* row to make */
    bool rows_first;           /* the horizontal pass comes first */
    bool clip_middle;          /* what lies between the passes is cut to whole levels */
    bool wide;                 /* many inputs to an output: rows_first, with weights of 32 bits */
    bool nearest;              /* pixels are copied */
    uint32_t arrived;          /* rows that went through it, or were spread */
    const uint8_t *pixels; size_t pixels_stride; /* input rows below tail_from that lie in memory; NULL: in the ring */
    uint32_t tail_from;        /* of this and later rows there are copies in the ring */
    uint8_t *ring;             /* rows y % ring_rows, at ring + that * stride */
    uint32_t ring_rows;
    size_t stride, cap_ring;
    uint8_t *second; uint32_t second_rows; size_t second_stride, cap_second; /* another, of rows of the result's width */
    int16_t *spread; size_t spread_stride, cap_spread; /* rows of one run, in 16 bits: y % v.taps */
    const int16_t **spread_run; size_t cap_spread_run;
    int16_t *middle; size_t cap_middle; /* between the passes */
    uint32_t pairs;            /* of inputs to an output of the horizontal pass, at most */
    uint32_t low, high;        /* columns that the horizontal pass looks at: [low, high), low the first of a line */
    uint32_t *pair_start; int16_t *pair_coef; size_t cap_pair_start, cap_pair_coef; /* the horizontal plan as vectors want it */
    uint8_t *line; size_t cap_line; /* an output row, where it is not written in place */
    const uint8_t **run; size_t cap_run; /* input rows of one output row */
    uint8_t *out;
    int dtype;
    bool planar, plain;
    float lut[3][256];
    uint16_t lut16[3][256];
};

/* ---- weights ---- */

static double bilinear(double x)
{
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0)
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

/* Rounds n weights that sum to 1 so that they sum to `one`; the largest takes the rest. */
static void quantise(const double *w, uint32_t n, int32_t one, int32_t *out)
{
    int32_t rest = one;
    uint32_t largest = 0;
    for (uint32_t k = 0; k < n; k++) {
        out[k] = (int32_t)(w[k] * one + (w[k] < 0 ? -0.5 : 0.5));
        rest -= out[k];
        if (w[k] > w[largest])
            largest = k;
    }
    out[largest] += rest;
}

/* INT16_MAX stands for 1.0 in Q15: a 32768th less, which rounding mends. */
static int16_t narrow(int32_t v) { return (int16_t)MIN(MAX(v, INT16_MIN), INT16_MAX); }

static int axis_room(struct axis *a, uint32_t size, uint32_t taps, bool wide, struct larder_error *err)
{
    size_t n = (size_t)size * taps, n_wide = wide ? n : 0, n_coef = wide ? 0 : n;
    a->taps = taps;
    if ((size > a->cap_start && GROW(a->start, a->cap_start, size, err)) || (size > a->cap_n && GROW(a->n, a->cap_n, size, err)) ||
        (n_wide > a->cap_wide && GROW(a->wide, a->cap_wide, n_wide, err)) ||
        (n_coef > a->cap_coef && GROW(a->coef, a->cap_coef, n_coef, err)))
        return LARDER_ENOMEM;
    if (n_coef)
        memset(a->coef, 0, n_coef * sizeof(*a->coef));
    return LARDER_OK;
}

/* Inputs [*low, *high) of the turned image that may be looked at: those that came in, and of these the box's. */
static void bounds(const struct side *s, bool beyond, uint32_t *low, uint32_t *high)
{
    uint32_t begin = s->mirror ? s->full - s->off - s->n : s->off, end = begin + s->n;
    *low = beyond ? begin : MAX(begin, (uint32_t)s->from);
    *high = beyond ? end : MIN(end, (uint32_t)ceil(s->from + s->len));
    *low = MIN(*low, end - 1);
    *high = MAX(*high, *low + 1);
}

static double filter_support(const struct image_job *job, double scale)
{
    return (job->filter == IMAGE_BICUBIC ? 2.0 : 1.0) * (job->no_antialias || scale < 1.0 ? 1.0 : scale);
}

/* Slot i's run: inputs [first, first + n) of the turned image, with weights w or 1. */
static void axis_set(struct axis *a, const struct side *s, uint32_t slot, uint32_t first, uint32_t n)
{
    a->start[slot] = (s->mirror ? s->full - first - n : first) - s->off;
    a->n[slot] = n;
}

/* As PIL: positions add up, for the sake of ties. Of a cut from a scaled image they begin at that image's edge. */
static int plan_nearest(struct axis *a, const struct side *s, bool beyond, bool reverse, struct larder_error *err)
{
    double scale = s->len / s->size, whole = s->full / scale;
    uint32_t low, high, skip = 0, base = (uint32_t)s->from;
    bounds(s, beyond, &low, &high);
    if (beyond && whole < 1 << 24) {
        scale = s->full / rint(whole);
        skip = (uint32_t)lrint(s->from / scale);
        base = 0;
    }
    double walked = 0.5 * scale;
    for (uint32_t i = 0; i < skip; i++)
        walked += scale;
    int rc = axis_room(a, s->size, 1, false, err);
    for (uint32_t i = 0; !rc && i < s->size; i++, walked += scale)
        axis_set(a, s, reverse ? s->size - 1 - i : i, MIN(MAX(base + (uint32_t)walked, low), high - 1), 1);
    return rc;
}

/* Inputs of a run at most. */
static uint32_t taps_of(const struct side *s, const struct image_job *job)
{
    uint32_t low, high;
    bounds(s, job->beyond, &low, &high);
    return (uint32_t)MIN(ceil(filter_support(job, s->len / s->size)) * 2 + 1, (double)(high - low));
}

/* Weights of output i: *first and the number of inputs, counted along the turned image, the weights as stored. */
static uint32_t weights(const struct side *s, const struct image_job *job, uint32_t low, uint32_t high, uint32_t i, uint32_t most, double *w,
                        uint32_t *first)
{
    double scale = s->len / s->size, shrink = job->no_antialias || scale < 1.0 ? 1.0 : 1.0 / scale, support = filter_support(job, scale);
    double center = s->from + (i + 0.5) * scale, sum = 0, lo = center - support + 0.5, hi = center + support + 0.5;
    *first = MIN(lo > low ? (uint32_t)lo : low, high - 1);
    uint32_t n = MIN(MAX(hi < high ? (uint32_t)hi : high, *first + 1) - *first, most);
    for (uint32_t k = 0; k < n; k++) {
        double x = (k + *first - center + 0.5) * shrink;
        sum += w[s->mirror ? n - 1 - k : k] = job->filter == IMAGE_BICUBIC ? bicubic(x) : bilinear(x);
    }
    double share = sum != 0 ? 1.0 / sum : 0;
    for (uint32_t k = 0; k < n; k++)
        w[k] = sum != 0 ? w[k] * share : 1.0 / n;
    return n;
}

/* even: runs begin at even inputs and have even lengths. one: the sum of weights, that of WIDE_ONE goes into a->wide. reverse:
 * outputs go into slots the other way round. */
static int axis_plan(struct axis *a, const struct side *s, const struct image_job *job, bool even, int32_t one, bool reverse,
                     struct larder_error *err)
{
    uint32_t most = taps_of(s, job), low, high;
    bounds(s, job->beyond, &low, &high);
    AUTO_FREE double *w = malloc(((size_t)most + 1) * (sizeof(double) + sizeof(int32_t)));
    if (!w)
        return err_nomem(err, most * sizeof(*w), "weights of a filter");
    int32_t *q = (int32_t *)(void *)(w + most + 1);
    int rc = axis_room(a, s->size, (uint32_t)(even ? round_up(most + 1, 2) : most), one == WIDE_ONE, err);
    for (uint32_t i = 0; !rc && i < s->size; i++) {
        uint32_t slot = reverse ? s->size - 1 - i : i, first, n = weights(s, job, low, high, i, most, w, &first);
        axis_set(a, s, slot, first, n);
        quantise(w, n, one, q);
        if (one == WIDE_ONE) {
            memcpy(a->wide + (size_t)slot * a->taps, q, n * sizeof(*q));
            continue;
        }
        uint32_t odd = even && a->start[slot] & 1; /* begins with a weight of 0 */
        a->start[slot] -= odd;
        a->n[slot] += odd;
        for (uint32_t k = 0; k < n; k++)
            a->coef[(size_t)slot * a->taps + odd + k] = narrow(q[k]);
    }
    return rc;
}

/* The columns and the rows as they are stored. */
static void sides_of(const struct resize_input *in, const struct image_job *job, struct side *columns, struct side *rows)
{
    int o = job->orientation;
    struct side x = {0, 0, 0, in->x, in->box_w, job->width, turn_mirrors_x(o)}, y = {0, 0, 0, in->y, in->box_h, job->height, turn_mirrors_y(o)};
    *columns = turn_swaps(o) ? y : x;
    *rows = turn_swaps(o) ? x : y;
    columns->full = in->full_w;
    rows->full = in->full_h;
    columns->off = in->part.x;
    columns->n = in->part.w;
    rows->off = in->part.y;
    rows->n = in->part.h;
}

static void side_need(const struct side *s, const struct image_job *job, uint32_t *off, uint32_t *n)
{
    double reach = job->beyond ? filter_support(job, s->len / s->size) + 1 : 0;
    uint32_t from = (uint32_t)MAX(s->from - reach, 0), to = (uint32_t)MIN(ceil(s->from + s->len + reach), (double)s->full);
    from = MIN(from, s->full - 1);
    to = MAX(to, from + 1);
    *off = s->mirror ? s->full - to : from;
    *n = to - from;
}

/* ---- pixels of the wanted type ---- */

static uint16_t half_of(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    uint32_t sign = x >> 16 & 0x8000, mant = x & 0x7fffff;
    int32_t e = (int32_t)(x >> 23 & 0xff) - 112;
    if (e >= 31)
        return (uint16_t)(sign | 0x7c00);
    if (e <= 0) {
        if (e < -10)
            return (uint16_t)sign;
        mant |= 0x800000;
        uint32_t cut = (uint32_t)(14 - e), half = mant >> cut, rest = mant & ((1u << cut) - 1), mid = 1u << (cut - 1);
        return (uint16_t)(sign | (half + (rest > mid || (rest == mid && (half & 1)))));
    }
    uint32_t half = (uint32_t)e << 10 | mant >> 13, rest = mant & 0x1fff;
    return (uint16_t)(sign | (half + (rest > 0x1000 || (rest == 0x1000 && (half & 1)))));
}

static uint16_t bfloat_of(float f)
{
    uint32_t x;
    memcpy(&x, &f, 4);
    return (uint16_t)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}

/* The pixel of the result at which row y begins. */
static size_t place_of(const struct resize *r, uint32_t y)
{
    size_t row = r->backwards ? r->height - 1 - y : y;
    return r->swap ? row : row * r->out_width;
}

static void lut_fill(struct resize *r, const struct image_job *job)
{
    for (int c = 0; c < 3 && job->dtype != IMAGE_U8 && !job->mask; c++)
        for (int i = 0; i < 256; i++) {
            float v = (float)i / 255.0f;
            if (job->mean)
                v -= job->mean[c];
            if (job->std)
                v /= job->std[c];
            r->lut[c][i] = v;
            r->lut16[c][i] = job->dtype == IMAGE_F16 ? half_of(v) : bfloat_of(v);
        }
}

/* Row y of u8 RGB into its place in the result. */
static void store_row(const struct resize *r, uint32_t y, const uint8_t *line)
{
    size_t w = r->width, plane = (size_t)r->out_width * r->out_height, pixel = r->planar ? 1 : 3;
    size_t at = place_of(r, y) * pixel, step = (r->swap ? r->out_width : 1) * pixel;
    for (size_t c = 0; c < 3; c++, at += r->planar ? plane : 1) {
        const uint8_t *in = line + c;
        if (r->dtype == IMAGE_U8) {
            for (size_t x = 0; x < w; x++)
                r->out[at + x * step] = in[x * 3];
        } else if (r->dtype == IMAGE_F32) {
            float *out = (float *)(void *)r->out + at;
            for (size_t x = 0; x < w; x++)
                out[x * step] = r->lut[c][in[x * 3]];
        } else {
            uint16_t *out = (uint16_t *)(void *)r->out + at;
            for (size_t x = 0; x < w; x++)
                out[x * step] = r->lut16[c][in[x * 3]];
        }
    }
}

/* Row y of a mask: in is a row as it came. */
static void store_mask_row(const struct resize *r, uint32_t y, const uint8_t *in)
{
    size_t at = place_of(r, y), step = r->swap ? r->out_width : 1;
    uint16_t *wide = (uint16_t *)(void *)r->out;
    const uint32_t *start = r->h.start;
    for (size_t x = 0; x < r->width; x++, at += step) {
        if (r->dtype == IMAGE_U8)
            r->out[at] = in[start[x]];
        else
            wide[at] = r->in.part.bytes == 2 ? get_u16(in + (size_t)start[x] * 2) : in[start[x]];
    }
}

/* ---- the two passes ---- */

#define ROW_SHIFT 7

static uint8_t clip(int32_t v) { return (uint8_t)MIN(MAX(v, 0), 255); }
static inline int16_t saturate(int32_t v) { return (int16_t)MIN(MAX(v, INT16_MIN), INT16_MAX); }
static inline int16_t mulhrs(int16_t a, int16_t b) { return (int16_t)((a * b + 0x4000) >> 15); }

/* What lies between the passes of rows-last order: pixels in pairs, R R G G B B 0 0, as one multiply-and-add takes them. */
static inline size_t pair_at(uint32_t x, int c) { return (size_t)(x / 2) * 8 + (size_t)c * 2 + (x & 1); }

/* A row into pairs of Q7. */
static void spread_plain(const struct resize *r, const uint8_t *in, int16_t *out)
{
    for (uint32_t x = r->low; x < r->high; x++)
        for (int c = 0; c < 3; c++)
            out[pair_at(x, c)] = (int16_t)(in[(size_t)x * 3 + (size_t)c] << ROW_SHIFT);
}

/* Of the spread rows. */
static void vertical_plain(const struct resize *r, const int16_t *coef, uint32_t n)
{
    for (size_t i = (size_t)r->low * 4; i < (size_t)r->high * 4 + 4; i++) {
        int16_t sum = 0;
        for (uint32_t k = 0; k < n; k++)
            sum = saturate(sum + mulhrs(r->spread_run[k][i], coef[k]));
        r->middle[i] = sum;
    }
}

/* Q14 weights make Q6. */
static void vertical_bytes_plain(const struct resize *r, const int16_t *coef, uint32_t n, uint8_t *out)
{
    for (size_t i = 0; i < (size_t)r->width * 3; i++) {
        int16_t sum = 0;
        for (uint32_t k = 0; k < n; k++)
            sum = saturate(sum + mulhrs((int16_t)(r->run[k][i] << ROW_SHIFT), coef[k]));
        out[i] = clip((sum + 32) >> 6);
    }
}

static void horizontal_plain(const struct resize *r, uint8_t *out)
{
    const unsigned shift = 14 + ROW_SHIFT;
    for (uint32_t x = 0; x < r->width; x++) {
        const int16_t *coef = r->h.coef + (size_t)x * r->h.taps;
        int32_t sum[3] = {1 << (shift - 1), 1 << (shift - 1), 1 << (shift - 1)};
        for (uint32_t k = 0; k < r->h.n[x]; k++)
            for (int c = 0; c < 3; c++)
                sum[c] += r->middle[pair_at(r->h.start[x] + k, c)] * coef[k];
        for (int c = 0; c < 3; c++)
            *out++ = clip(sum[c] >> shift);
    }
}

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
#define LOAD128(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define LOAD256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))

/* Four pixels, of which each lane takes two, as pairs of Q7. */
AVX2 static inline __m256i pairs_avx2(const uint8_t *in)
{
    const __m256i where = _mm256_setr_epi8(-1, 0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7, -1, 10, -1, 8,
                                           -1, 11, -1, -1, -1, -1);
    return _mm256_srli_epi16(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(LOAD128(in)), where), 8 - ROW_SHIFT);
}

AVX2 static void spread_avx2(const struct resize *r, const uint8_t *in, int16_t *out)
{
    for (uint32_t x = r->low; x < r->high; x += 4) /* in and out are padded */
        _mm256_storeu_si256((__m256i *)(void *)(out + (size_t)x * 4), pairs_avx2(in + (size_t)x * 3));
}

AVX2 static void vertical_avx2(const struct resize *r, const int16_t *coef, uint32_t n)
{
    for (size_t i = (size_t)r->low * 4; i < (size_t)r->high * 4; i += 64) { /* rows and middle are padded */
        __m256i sum[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
        for (uint32_t k = 0; k < n; k++) {
            const __m256i c = _mm256_set1_epi16(coef[k]);
            const int16_t *in = r->spread_run[k] + i;
            for (int v = 0; v < 4; v++)
                sum[v] = _mm256_adds_epi16(sum[v], _mm256_mulhrs_epi16(LOAD256(in + v * 16), c));
        }
        for (int v = 0; v < 4; v++)
            _mm256_storeu_si256((__m256i *)(void *)(r->middle + i + v * 16), sum[v]);
    }
}

AVX2 static void vertical_bytes_avx2(const struct resize *r, const int16_t *coef, uint32_t n, uint8_t *out)
{
    const __m256i half = _mm256_set1_epi16(32);
    for (size_t i = 0; i < (size_t)r->width * 3; i += 32) { /* rows and out are padded */
        __m256i a = _mm256_setzero_si256(), b = a;
        for (uint32_t k = 0; k < n; k++) {
            const __m256i c = _mm256_set1_epi16(coef[k]), v = LOAD256(r->run[k] + i), zero = _mm256_setzero_si256();
            __m256i lo = _mm256_srli_epi16(_mm256_unpacklo_epi8(zero, v), 8 - ROW_SHIFT);
            __m256i hi = _mm256_srli_epi16(_mm256_unpackhi_epi8(zero, v), 8 - ROW_SHIFT);
            a = _mm256_adds_epi16(a, _mm256_mulhrs_epi16(lo, c));
            b = _mm256_adds_epi16(b, _mm256_mulhrs_epi16(hi, c));
        }
        a = _mm256_srai_epi16(_mm256_adds_epi16(a, half), 6);
        b = _mm256_srai_epi16(_mm256_adds_epi16(b, half), 6);
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_packus_epi16(a, b));
    }
}

/* Two results: those of the run at a, and of the one at b. */
AVX2 static inline __m256i two_avx2(const int16_t *a, const int16_t *b, const int16_t *coef, uint32_t pairs)
{
    __m256i sum = _mm256_set1_epi32(1 << (13 + ROW_SHIFT));
    for (uint32_t k = 0; k < pairs; k++) {
        __m256i v = _mm256_inserti128_si256(_mm256_castsi128_si256(LOAD128(a + 8 * k)), LOAD128(b + 8 * k), 1);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(v, LOAD256(coef + 16 * k)));
    }
    return _mm256_srai_epi32(sum, 14 + ROW_SHIFT);
}

/* Four results at a time; the coefficients of each two lie as they are multiplied. */
AVX2 static inline void horizontal_run(const struct resize *r, uint8_t *out, uint32_t pairs)
{
    const __m128i three = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const uint32_t *at = r->pair_start;
    const int16_t *coef = r->pair_coef, *in = r->middle;
    for (uint32_t x = 0; x < r->width; x += 4, out += 12, at += 4, coef += 32 * pairs) { /* all are padded */
        __m256i lo = two_avx2(in + at[0], in + at[1], coef, pairs), hi = two_avx2(in + at[2], in + at[3], coef + 16 * pairs, pairs);
        __m256i all = _mm256_packus_epi16(_mm256_packs_epi32(lo, hi), _mm256_setzero_si256()); /* 0 2 | 1 3 */
        __m128i four = _mm_unpacklo_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
        _mm_storeu_si128((__m128i *)(void *)out, _mm_shuffle_epi8(four, three));
    }
}

AVX2 static void horizontal_avx2(const struct resize *r, uint8_t *out)
{
    switch (r->pairs) {
    case 1: horizontal_run(r, out, 1); break;
    case 2: horizontal_run(r, out, 2); break;
    case 3: horizontal_run(r, out, 3); break;
    case 4: horizontal_run(r, out, 4); break;
    default: horizontal_run(r, out, r->pairs);
    }
}
#endif

/* The horizontal plan as vectors want it. */
static int pair_plan(struct resize *r, struct larder_error *err)
{
    size_t w = round_up(r->width, 4), pairs = r->pairs, n = w * pairs * 8;
    if ((w > r->cap_pair_start && GROW(r->pair_start, r->cap_pair_start, w, err)) ||
        (n > r->cap_pair_coef && GROW(r->pair_coef, r->cap_pair_coef, n, err)))
        return LARDER_ENOMEM;
    for (uint32_t x = 0; x < w; x++) {
        r->pair_start[x] = x < r->width ? r->h.start[x] * 4 : 0;
        for (size_t k = 0; k < pairs; k++) {
            int16_t *out = r->pair_coef + (((size_t)(x / 2) * pairs + k) * 2 + (x & 1)) * 8;
            const int16_t *c = r->h.coef + (size_t)x * r->h.taps + 2 * k;
            for (int i = 0; i < 8; i++)
                out[i] = x < r->width ? c[i & 1] : 0;
        }
    }
    return LARDER_OK;
}

static bool use_avx2(const struct resize *r)
{
#if defined(__x86_64__)
    return !r->plain && __builtin_cpu_supports("avx2");
#else
    (void)r;
    return false;
#endif
}

#if defined(__x86_64__)
#define DISPATCH(r, name, ...) (use_avx2(r) ? name##_avx2(r, ##__VA_ARGS__) : name##_plain(r, ##__VA_ARGS__))
#else
#define DISPATCH(r, name, ...) name##_plain(r, ##__VA_ARGS__)
#endif

static uint8_t *second_row(const struct resize *r, uint32_t y) { return r->second + (y % r->second_rows) * r->second_stride; }

static const uint8_t *input_row(struct resize *r, uint32_t y)
{
    return r->pixels && y < r->tail_from ? r->pixels + y * r->pixels_stride : resize_row(r, y);
}

static uint8_t from_wide(int64_t sum) { return (uint8_t)MIN(MAX((sum + WIDE_ONE / 2) >> 22, 0), 255); }

static void horizontal_wide(const struct resize *r, const uint8_t *in, uint8_t *out)
{
    for (uint32_t x = 0; x < r->width; x++) {
        const int32_t *coef = r->h.wide + (size_t)x * r->h.taps;
        const uint8_t *p = in + (size_t)r->h.start[x] * 3;
        int64_t sum[3] = {0, 0, 0};
        for (uint32_t k = 0; k < r->h.n[x]; k++)
            for (int c = 0; c < 3; c++)
                sum[c] += (int64_t)*p++ * coef[k];
        for (int c = 0; c < 3; c++)
            *out++ = from_wide(sum[c]);
    }
}

static void vertical_wide(const struct resize *r, uint32_t y, uint8_t *out)
{
    const int32_t *coef = r->v.wide + (size_t)y * r->v.taps;
    for (size_t i = 0; i < (size_t)r->width * 3; i++) {
        int64_t sum = 0;
        for (uint32_t k = 0; k < r->v.n[y]; k++)
            sum += (int64_t)r->run[k][i] * coef[k];
        out[i] = from_wide(sum);
    }
}

/* Input row y goes through the horizontal pass. */
static void widen_row(struct resize *r, uint32_t y)
{
    if (r->wide) {
        horizontal_wide(r, input_row(r, y), second_row(r, y));
        return;
    }
    DISPATCH(r, spread, input_row(r, y), r->middle);
    DISPATCH(r, horizontal, second_row(r, y));
}

/* From Q6, which the vertical pass makes of Q14 weights, to Q7 of whole levels. */
static void clip_middle(struct resize *r)
{
    for (size_t i = (size_t)r->low * 4; i < (size_t)r->high * 4 + 8; i++)
        r->middle[i] = (int16_t)(clip((r->middle[i] + 32) >> 6) << ROW_SHIFT);
}

/* Rows [from, from + n) as pairs, each of which is made once. */
static void spread_rows(struct resize *r, uint32_t from, uint32_t n)
{
    for (r->arrived = MAX(r->arrived, from); r->arrived < from + n; r->arrived++)
        DISPATCH(r, spread, input_row(r, r->arrived), r->spread + (r->arrived % r->v.taps) * r->spread_stride);
    for (uint32_t k = 0; k < n; k++)
        r->spread_run[k] = r->spread + ((from + k) % r->v.taps) * r->spread_stride;
}

/* The weighted sum of rows, in the order of passes that this filter has. */
static void scale_row(struct resize *r, uint32_t y, uint8_t *line)
{
    uint32_t n = r->v.n[y];
    for (uint32_t k = 0; r->rows_first && k < n; k++)
        r->run[k] = second_row(r, r->v.start[y] + k);
    if (r->wide) {
        vertical_wide(r, y, line);
        return;
    }
    const int16_t *coef = r->v.coef + (size_t)y * r->v.taps;
    if (r->rows_first) {
        DISPATCH(r, vertical_bytes, coef, n, line);
        return;
    }
    spread_rows(r, r->v.start[y], n);
    DISPATCH(r, vertical, coef, n);
    if (r->clip_middle)
        clip_middle(r);
    DISPATCH(r, horizontal, line);
}

static void pick_row(struct resize *r, uint32_t y, uint8_t *line)
{
    const uint8_t *in = input_row(r, r->v.start[y]);
    for (uint32_t x = 0; x < r->width; x++)
        memcpy(line + (size_t)x * 3, in + (size_t)r->h.start[x] * 3, 3);
}

/* Vectors write up to PAD_PIXELS beyond a row: only into rows that are still to come. */
static bool fits_in_place(const struct resize *r, uint32_t y)
{
    return !r->rows_first && !r->backwards && y + 1 < r->height && (size_t)r->width * 3 >= 16;
}

static void make_row(struct resize *r, uint32_t y)
{
    size_t row = (size_t)r->width * 3;
    bool packed = r->dtype == IMAGE_U8 && !r->planar && !r->swap, in_place = packed && fits_in_place(r, y);
    uint8_t *line = in_place ? r->out + y * row : r->line;
    if (r->nearest)
        pick_row(r, y, line);
    else
        scale_row(r, y, line);
    if (packed && !in_place)
        memcpy(r->out + place_of(r, y) * 3, line, row);
    else if (!packed)
        store_row(r, y, line);
}

/* ---- the door ---- */

int resize_new(struct resize **out, struct larder_error *err)
{
    *out = calloc(1, sizeof(**out));
    return *out ? LARDER_OK : err_nomem(err, sizeof(**out), "a resizer");
}

static void axis_release(struct axis *a)
{
    free(a->start);
    free(a->n);
    free(a->coef);
    free(a->wide);
}

void resize_free(struct resize *r)
{
    if (!r)
        return;
    axis_release(&r->v);
    axis_release(&r->h);
    free(r->ring);
    free(r->second);
    free(r->spread);
    free(r->spread_run);
    free(r->middle);
    free(r->line);
    free(r->pair_start);
    free(r->pair_coef);
    free(r->run);
    free(r);
}

/* Zeroed when it grows: what vectors read beyond a row has been written once. */
static int room(void **p, size_t *cap, size_t want, struct larder_error *err)
{
    if (want <= *cap)
        return LARDER_OK;
    free(*p);
    *cap = 0;
    if (posix_memalign(p, 64, want)) {
        *p = NULL;
        return err_nomem(err, want, "rows of an image");
    }
    memset(*p, 0, want);
    *cap = want;
    return LARDER_OK;
}

void resize_need(const struct resize_input *in, const struct image_job *job, struct image_part *need)
{
    struct side columns, rows;
    sides_of(in, job, &columns, &rows);
    *need = (struct image_part){0};
    side_need(&columns, job, &need->x, &need->w);
    side_need(&rows, job, &need->y, &need->h);
}

/* Which passes there are, and in which order. */
static void choose_passes(struct resize *r, const struct image_job *job, const struct side *columns, const struct side *rows)
{
    bool bicubic_wanted = job->filter == IMAGE_BICUBIC;
    r->nearest = job->mask || job->filter == IMAGE_NEAREST;
    r->wide = !r->nearest && (taps_of(columns, job) > WIDE_TAPS || taps_of(rows, job) > WIDE_TAPS);
    r->rows_first = !r->nearest && (r->wide || (bicubic_wanted && !r->swap));
    r->clip_middle = !r->nearest && bicubic_wanted && !r->rows_first;
}

/* The columns that the horizontal pass looks at, and its plan as vectors want it. */
static int horizontal_reach(struct resize *r, struct larder_error *err)
{
    uint32_t most = 0;
    r->low = UINT32_MAX;
    r->high = 0;
    for (uint32_t x = 0; x < r->width; x++) {
        r->low = MIN(r->low, r->h.start[x]);
        r->high = MAX(r->high, r->h.start[x] + r->h.n[x]);
        most = MAX(most, r->h.n[x]);
    }
    r->pairs = (most + 1) / 2;
    r->low = (uint32_t)round_down(r->low, LINE_PIXELS);
    return pair_plan(r, err);
}

static int plan_axes(struct resize *r, const struct image_job *job, struct larder_error *err)
{
    struct side columns, rows;
    sides_of(&r->in, job, &columns, &rows);
    choose_passes(r, job, &columns, &rows);
    r->width = columns.size;
    r->height = rows.size;
    bool flip_rows = job->flip && r->swap, flip_columns = job->flip && !r->swap;
    r->backwards = rows.mirror != flip_rows;
    if (r->nearest) {
        int rc = plan_nearest(&r->v, &rows, job->beyond, rows.mirror, err);
        return rc ? rc : plan_nearest(&r->h, &columns, job->beyond, flip_columns, err);
    }
    int32_t v_one = r->wide ? WIDE_ONE : r->rows_first || r->clip_middle ? 1 << 14 : 1 << 15;
    int rc = axis_plan(&r->v, &rows, job, false, v_one, rows.mirror, err);
    if (!rc)
        rc = axis_plan(&r->h, &columns, job, !r->wide, r->wide ? WIDE_ONE : 1 << 14, flip_columns, err);
    return rc || r->wide ? rc : horizontal_reach(r, err);
}

/* The ring for `rows` rows of the part. */
static int ring_room(struct resize *r, uint32_t rows, struct larder_error *err)
{
    /* 16 bytes off a multiple of 32: libjpeg-turbo stores aligned rows past the cache, from which they are read next. */
    r->stride = round_up(((size_t)r->in.part.w + PAD_PIXELS) * 3, 32) + 16;
    r->ring_rows = MAX(rows, 1u);
    return room((void **)&r->ring, &r->cap_ring, r->ring_rows * r->stride + 64, err);
}

int resize_begin(struct resize *r, const struct resize_input *in, const struct image_job *job, void *out, struct larder_error *err)
{
    if (!job->width || !job->height || job->width > SIDE_MAX || job->height > SIDE_MAX)
        return err_set(err, LARDER_EINVAL, "a result of %u x %u pixels", job->width, job->height);
    r->in = *in;
    r->out_width = job->width;
    r->out_height = job->height;
    r->swap = turn_swaps(job->orientation);
    r->next = r->arrived = 0;
    r->pixels = NULL;
    r->out = out;
    r->dtype = job->dtype;
    r->planar = job->planar;
    lut_fill(r, job);
    int rc = plan_axes(r, job, err);
    if (rc)
        return rc;
    bool spread = !r->rows_first && !r->nearest;
    r->spread_stride = round_up((size_t)in->part.w + PAD_PIXELS + r->h.taps, LINE_PIXELS) * 4;
    size_t middle = r->wide || r->nearest ? 0 : r->spread_stride * sizeof(int16_t);
    r->second_stride = round_up(((size_t)r->width + PAD_PIXELS) * 3, 32);
    r->second_rows = r->rows_first ? MAX(MIN(r->v.taps + RESIZE_ROWS, in->part.h), 1u) : 0;
    if ((rc = ring_room(r, MIN(r->v.taps + RESIZE_ROWS, in->part.h), err)) ||
        (rc = room((void **)&r->second, &r->cap_second, r->second_rows * r->second_stride, err)) ||
        (rc = room((void **)&r->spread, &r->cap_spread, spread ? r->v.taps * r->spread_stride * sizeof(int16_t) : 0, err)) ||
        (rc = room((void **)&r->spread_run, &r->cap_spread_run, spread ? r->v.taps * sizeof(*r->spread_run) : 0, err)) ||
        (rc = room((void **)&r->middle, &r->cap_middle, middle, err)) ||
        (rc = room((void **)&r->line, &r->cap_line, ((size_t)r->width + PAD_PIXELS) * 3, err)))
        return rc;
    return room((void **)&r->run, &r->cap_run, r->v.taps * sizeof(*r->run), err);
}

int resize_keep(struct resize *r, const struct image_part *part, struct larder_error *err)
{
    r->in.part = *part;
    r->height = r->next = r->arrived = 0;
    r->rows_first = false;
    r->pixels = NULL;
    return ring_room(r, part->h, err);
}

uint8_t *resize_row(struct resize *r, uint32_t y)
{
    uint8_t *base = (uint8_t *)round_up((uintptr_t)r->ring, 32);
    return base + 16 + (y % r->ring_rows) * r->stride;
}

void resize_feed(struct resize *r, uint32_t rows)
{
    for (; r->rows_first && r->arrived < rows; r->arrived++)
        widen_row(r, r->arrived);
    for (; r->next < r->height && r->v.start[r->next] + r->v.n[r->next] <= rows; r->next++) {
        if (r->in.part.bytes == 3)
            make_row(r, r->next);
        else
            store_mask_row(r, r->next, input_row(r, r->v.start[r->next]));
    }
}

/* Vectors read beyond a row: of the last ones, behind which there may be no memory, copies are used. */
int resize_from(struct resize *r, const uint8_t *pixels, size_t stride, struct larder_error *err)
{
    const struct image_part *part = &r->in.part;
    size_t row = (size_t)part->w * 3, beyond = (size_t)PAD_PIXELS * 3, tail = MIN(beyond / stride + 1, part->h);
    r->pixels = pixels;
    r->pixels_stride = stride;
    r->tail_from = part->h - (uint32_t)tail;
    if (!r->height) /* kept */
        return LARDER_OK;
    if (r->ring_rows < tail) {
        int rc = ring_room(r, (uint32_t)tail, err);
        if (rc)
            return rc;
    }
    for (uint32_t y = r->tail_from; y < part->h; y++)
        memcpy(resize_row(r, y), pixels + y * stride, row);
    for (uint32_t y = 0; y < part->h; y += RESIZE_ROWS)
        resize_feed(r, MIN(y + RESIZE_ROWS, part->h));
    return LARDER_OK;
}

int resize_from_kept(struct resize *r, const struct resize *kept, struct larder_error *err)
{
    if (kept->pixels)
        return resize_from(r, kept->pixels, kept->pixels_stride, err);
    return resize_from(r, (uint8_t *)round_up((uintptr_t)kept->ring, 32) + 16, kept->stride, err);
}

void resize_plain(struct resize *r, bool plain) { r->plain = plain; }
