/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mix.c - several datasets in one order, each by its weight: arithmetic over their own orders.
 *
 *     position --block shuffle--> x --split--> source, index --> place in the source's walk --order_at--> ordinal
 *
 * split deals the numbers 0, 1, 2, ... out to the sources as evenly as whole numbers can be: source 0 gets its next one where
 * floor((x + 1) f0) > floor(x f0), f0 being its share; what it leaves, numbered anew, is dealt out to the others in the same way (nested
 * Beatty sequences). So after any x numbers a source has had its share of x, give or take less than 1 + ln(sources), and by what index, is
 * one multiplication a source; back is one division a source. Shares are fractions of 2^64, rounded up: by sizes n_i the sum of the sizes
 * is dealt out exactly.
 *
 * What is dealt out in turn is then shuffled within blocks of positions, so that a source's turn is not foreseeable but its share of
 * each block is fixed. By size and with a full shuffle the block is the whole epoch: a uniform shuffle of everything.
 *
 * How long an epoch is and how the sources go on:
 *
 *     by size     all samples, once each
 *     stop        until the first source is exhausted; each epoch begins new passes of all
 *     repeat      until the last one is, the others walking on through new permutations, across epochs too
 *     epoch_size  so many, all sources walking on
 *
 * Pure. Memory: a few words a source.
 */
#include "loader/loader_int.h"

#define MIX_BLOCK 1024u
#define MIX_LENGTH_MAX ((uint64_t)1 << 62)
#define CHUNK 256u

static uint64_t mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* ---- dealing out ---- */

static uint32_t split(const struct mix *m, uint64_t x, uint64_t *index)
{
    uint32_t i;
    for (i = 0; i < m->last; i++) {
        unsigned __int128 had = (unsigned __int128)x * m->source[i].share;
        if ((uint64_t)had + m->source[i].share < (uint64_t)had) { /* the next one is its */
            *index = (uint64_t)(had >> 64);
            return i;
        }
        x -= (uint64_t)(had >> 64);
    }
    *index = x;
    return i;
}

/* floor(a 2^64 / b), or what is beyond all lengths. */
static uint64_t divide(uint64_t a, uint64_t b)
{
    unsigned __int128 q = ((unsigned __int128)a << 64) / b;
    return q > UINT64_MAX ? UINT64_MAX : (uint64_t)q;
}

/* The x at which a source gets its index-th. */
static uint64_t unsplit(const struct mix *m, uint32_t source, uint64_t index)
{
    uint64_t x = index;
    if (source < m->last) { /* the smallest x with floor((x + 1) share / 2^64) > index */
        uint64_t share = m->source[source].share;
        if (share == 0 || index >= MIX_LENGTH_MAX)
            return UINT64_MAX;
        unsigned __int128 most = ((unsigned __int128)(index + 1) << 64) - 1;
        most /= share;
        x = most > UINT64_MAX ? UINT64_MAX : (uint64_t)most;
    }
    for (uint32_t i = MIN(source, m->last); i-- > 0;) { /* the x-th that source i leaves */
        if (x >= MIX_LENGTH_MAX)
            return UINT64_MAX;
        if (m->source[i].share)
            x = divide(x, -m->source[i].share);
    }
    return x;
}

/* How many of [0, x) are a source's. */
static uint64_t dealt(const struct mix *m, uint32_t source, uint64_t x)
{
    for (uint32_t i = 0; i < MIN(source, m->last); i++)
        x -= (uint64_t)((unsigned __int128)x * m->source[i].share >> 64);
    if (source > m->last)
        return 0;
    return source == m->last ? x : (uint64_t)((unsigned __int128)x * m->source[source].share >> 64);
}

/* ---- positions ---- */

/* The block of a position: where it begins, and its shuffle. */
static uint64_t block_of(const struct mix *m, uint64_t epoch, uint64_t position, struct perm *perm)
{
    uint64_t k = position / m->block, begin = k * m->block;
    perm_init(perm, mix64(m->seed + 0x2545f4914f6cdd1du) ^ k, epoch, MIN(m->block, m->length - begin));
    return begin;
}

static uint32_t place_of(const struct mix *m, uint64_t epoch, uint64_t x, uint64_t *place)
{
    uint64_t index;
    uint32_t s = split(m, m->restart ? x : epoch * m->length + x, &index);
    *place = m->restart ? epoch * m->source[s].order.n + index : index;
    return s;
}

void mix_at(const struct mix *m, uint64_t epoch, uint64_t position, uint32_t *source, uint64_t *place)
{
    struct perm perm;
    uint64_t x = position;
    if (m->shuffle != LARDER_SHUFFLE_NONE) {
        x = block_of(m, epoch, position, &perm);
        x += perm_at(&perm, position - x);
    }
    *source = place_of(m, epoch, x, place);
}

bool mix_find(const struct mix *m, uint32_t source, uint64_t place, uint64_t *epoch, uint64_t *position)
{
    uint64_t n = m->source[source].order.n, x, begin;
    struct perm perm;
    if (n == 0)
        return false;
    x = unsplit(m, source, m->restart ? place % n : place);
    if (x >= MIX_LENGTH_MAX || (m->restart && x >= m->length))
        return false;
    *epoch = m->restart ? place / n : x / m->length;
    *position = x % m->length;
    if (m->shuffle == LARDER_SHUFFLE_NONE)
        return true;
    begin = block_of(m, *epoch, *position, &perm);
    *position = begin + perm_inverse(&perm, *position - begin);
    return true;
}

/* Places become ordinals, source by source, so that those of a pass go through its permutation together. */
static void resolve(const struct mix *m, const uint32_t *sources, uint64_t *places, size_t n)
{
    bool done[CHUNK] = {false};
    for (size_t i = 0; i < n; i++) {
        struct order_walk w = {.ready = false};
        uint64_t own[CHUNK];
        uint16_t at[CHUNK];
        size_t k = 0;
        if (done[i])
            continue;
        for (size_t j = i; j < n; j++)
            if (sources[j] == sources[i]) {
                own[k] = places[j];
                at[k++] = (uint16_t)j;
                done[j] = true;
            }
        order_map(&m->source[sources[i]].order, &w, own, k);
        while (k--)
            places[at[k]] = own[k];
    }
}

void mix_fill(const struct mix *m, uint64_t epoch, uint64_t first, size_t count, uint64_t *ordinals, uint32_t *sources)
{
    while (count) {
        struct perm perm = {.n = m->length};
        uint64_t begin = m->shuffle == LARDER_SHUFFLE_NONE ? 0 : block_of(m, epoch, first, &perm);
        size_t n = MIN(MIN(count, (size_t)CHUNK), begin + perm.n - first);
        if (m->shuffle != LARDER_SHUFFLE_NONE)
            perm_range(&perm, first - begin, n, ordinals);
        for (size_t i = 0; i < n; i++) {
            uint64_t x = m->shuffle == LARDER_SHUFFLE_NONE ? first + i : begin + ordinals[i];
            sources[i] = place_of(m, epoch, x, &ordinals[i]);
        }
        resolve(m, sources, ordinals, n);
        first += n;
        count -= n;
        ordinals += n;
        sources += n;
    }
}

/* ---- making one ---- */

static int check(const struct order *orders, const double *weights, uint32_t n, struct larder_error *err)
{
    double sum = 0;
    for (uint32_t i = 0; weights && i < n; i++) {
        if (!(weights[i] > 0) || weights[i] > 1e300)
            return err_set(err, LARDER_EINVAL, "weight of source %u is %g: it must be above 0, and finite", i, weights[i]);
        if (orders[i].n == 0)
            return err_set(err, LARDER_EINVAL, "source %u has a weight and no samples", i);
        sum += weights[i];
    }
    for (uint32_t i = 0; weights && i < n; i++)
        if (!(weights[i] / sum >= MIX_WEIGHT_MIN))
            return err_set(err, LARDER_EINVAL, "weight of source %u is %g of %g in all: below one part in %u", i, weights[i], sum,
                           (unsigned)(1 / MIX_WEIGHT_MIN));
    return LARDER_OK;
}

/* Of what is left by those before. */
static void share_out(struct mix *m, const double *weights, uint64_t total)
{
    for (uint32_t i = m->n; i-- > 0;)
        if (weights || m->source[i].order.n) {
            m->last = i;
            break;
        }
    for (uint32_t i = 0; i < m->last; i++) {
        uint64_t n = m->source[i].order.n;
        double rest = 0;
        for (uint32_t k = m->n; weights && k-- > i;)
            rest += weights[k];
        if (!weights)
            m->source[i].share = n ? (uint64_t)((((unsigned __int128)n << 64) + total - 1) / total) : 0;
        else /* below 1 - 2^-21: all weights behind it count */
            m->source[i].share = (uint64_t)(weights[i] / rest * 0x1p64);
        total -= n;
    }
}

/* Where the epoch ends: see above. */
static uint64_t length_of(const struct mix *m, int exhausted)
{
    uint64_t length = exhausted == LARDER_EXHAUSTED_STOP ? UINT64_MAX : 0;
    for (uint32_t i = 0; i < m->n; i++) {
        uint64_t n = m->source[i].order.n;
        if (exhausted == LARDER_EXHAUSTED_STOP)
            length = MIN(length, unsplit(m, i, n)); /* where it would get one more */
        else
            length = MAX(length, MIN(unsplit(m, i, n - 1), MIX_LENGTH_MAX) + 1);
    }
    return length;
}

int mix_new(const struct order *orders, const double *weights, uint32_t n, uint64_t seed, int shuffle, uint64_t epoch_size, int exhausted,
            struct mix **out, struct larder_error *err)
{
    uint64_t total = 0;
    *out = NULL;
    if (n == 0 || n > MIX_SOURCES_MAX)
        return err_set(err, LARDER_EINVAL, "a mix of %u datasets: 1 to %u can be mixed", n, MIX_SOURCES_MAX);
    int rc = check(orders, weights, n, err);
    if (rc)
        return rc;
    struct mix *m = calloc(1, sizeof(*m));
    if (m)
        m->source = calloc(n, sizeof(*m->source));
    if (!m || !m->source) {
        mix_free(m);
        return err_nomem(err, n * sizeof(*m->source), "a mix");
    }
    m->n = n;
    m->seed = seed;
    m->shuffle = shuffle;
    for (uint32_t i = 0; i < n; i++) {
        m->source[i].order = orders[i];
        m->source[i].order.epoch_size = 0;
        m->source[i].order.seed = mix64(mix64(seed + 0x9e3779b97f4a7c15u) + i); /* equal datasets are not walked alike */
        m->source[i].weight = weights ? weights[i] : 0;
        total += orders[i].n;
    }
    share_out(m, weights, total);
    m->restart = !epoch_size && weights && exhausted == LARDER_EXHAUSTED_STOP;
    m->length = epoch_size && total ? epoch_size : weights ? length_of(m, exhausted) : total;
    m->block = MAX(!weights && !epoch_size && shuffle == LARDER_SHUFFLE_FULL ? m->length : MIN(m->length, (uint64_t)MIX_BLOCK), (uint64_t)1);
    for (uint32_t i = 0; i < n; i++)
        m->source[i].each = dealt(m, i, m->length);
    if (m->length > MIX_LENGTH_MAX) {
        mix_free(m);
        return err_set(err, LARDER_EINVAL, "an epoch of this mix has more than 2^62 samples");
    }
    *out = m;
    return LARDER_OK;
}

void mix_free(struct mix *m)
{
    if (m)
        free(m->source);
    free(m);
}
