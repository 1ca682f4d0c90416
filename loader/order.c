/* SPDX-License-Identifier: Apache-2.0 */
/*
 * order.c - which sample stands where in an epoch.
 *
 *     place in the walk = epoch * length + position          (epochs follow each other without a gap)
 *     pass, k = place / n, place % n                         (each pass over the n candidates is shuffled anew)
 *     candidate = shuffle(seed, pass, k)  -->  ordinal: itself, the filter's k-th member, or the caller's list
 *
 * So an epoch may be shorter or longer than a pass and nothing is left out or repeated out of turn. A full shuffle is a keyed
 * bijection; a block shuffle one of blocks, then one within each window of blocks, so that a window's samples lie together. Weights
 * replace the pass by independent draws, one for each place of the walk. All of it is a function of (seed, epoch, n): not of the batch
 * size, world, threads or timing. So every future access is known without being stored or exchanged (HDMLP 3). The inverse says where
 * in a pass a sample stands.
 *
 * What of it is in a rank's batches says batch_plan.c; several datasets at once are mix.c's.
 *
 * Pure: no clock, no I/O, no threads. Memory: none, but one bit and an eighth a sample for a filter, 8 bytes for weights.
 */
#include <math.h>

#include "loader/loader_int.h"

/* ---- filters: the k-th set bit ---- */

#define RANK_BITS 512u      /* a count of the members before every so many bits */

int subset_empty(uint64_t n, struct subset **out, struct larder_error *err)
{
    uint64_t words = (n + 63) / 64, groups = (n + RANK_BITS - 1) / RANK_BITS + 1;
    *out = NULL;
    struct subset *s = calloc(1, sizeof(*s));
    if (s) {
        s->bits = calloc(MAX(words, 1u), sizeof(*s->bits));
        s->rank = calloc(groups, sizeof(*s->rank));
    }
    if (!s || !s->bits || !s->rank) {
        subset_free(s);
        return err_nomem(err, words * 8 + groups * 8, "a filter");
    }
    s->n = n;
    s->groups = groups - 1;
    *out = s;
    return LARDER_OK;
}

void subset_count(struct subset *s)
{
    uint64_t words = (s->n + 63) / 64;
    if (s->n % 64)
        s->bits[words - 1] &= ~0ull >> (64 - s->n % 64);
    s->members = 0;
    for (uint64_t w = 0; w < words; w++) {
        if (w % (RANK_BITS / 64) == 0)
            s->rank[w / (RANK_BITS / 64)] = s->members;
        s->members += (uint64_t)__builtin_popcountll(s->bits[w]);
    }
    s->rank[s->groups] = s->members;
}

int subset_new(const uint8_t *bits, uint64_t n, struct subset **out, struct larder_error *err)
{
    int rc = subset_empty(n, out, err);
    if (rc)
        return rc;
    memcpy((*out)->bits, bits, (n + 7) / 8);
    subset_count(*out);
    return LARDER_OK;
}

int subset_and(const struct subset *a, const struct subset *b, struct subset **out, struct larder_error *err)
{
    int rc = subset_empty(a->n, out, err);
    if (rc)
        return rc;
    for (uint64_t w = 0; w < (a->n + 63) / 64; w++)
        (*out)->bits[w] = a->bits[w] & (b ? b->bits[w] : ~0ull);
    subset_count(*out);
    return LARDER_OK;
}

void subset_free(struct subset *s)
{
    if (!s)
        return;
    free(s->bits);
    free(s->rank);
    free(s);
}

uint64_t subset_bytes(const struct subset *s) { return (s->n + 63) / 64 * 8 + (s->groups + 1) * 8; }

/* The k-th set bit, by halves. */
static inline __attribute__((always_inline)) uint64_t word_select(uint64_t w, uint64_t k)
{
    uint64_t at = 0;
    for (unsigned half = 32; half >= 8; half /= 2) {
        uint64_t low = (uint64_t)__builtin_popcountll(w & ((1ull << half) - 1));
        if (k >= low) {
            k -= low;
            w >>= half;
            at += half;
        }
    }
    while (k--)
        w &= w - 1;
    return at + (uint64_t)__builtin_ctzll(w);
}

/* Members are mostly spread evenly: the group is guessed, and searched around the guess by doubling steps. */
static inline __attribute__((always_inline)) uint64_t select_member(const struct subset *s, uint64_t k)
{
    uint64_t lo = 0, hi = s->groups, step = 1;
    uint64_t at = (uint64_t)((double)k / (double)s->members * (double)s->groups);
    at = MIN(at, s->groups - 1);
    if (s->rank[at] <= k) {
        for (lo = at; at + step < s->groups && s->rank[at + step] <= k; step *= 2)
            lo = at + step;
        hi = MIN(at + step, s->groups);
    } else {
        for (hi = at; at >= step && s->rank[at - step] > k; step *= 2)
            hi = at - step;
        lo = at >= step ? at - step : 0;
    }
    while (hi - lo > 1) { /* rank[lo] <= k < rank[hi] */
        uint64_t mid = lo + (hi - lo) / 2;
        if (s->rank[mid] <= k)
            lo = mid;
        else
            hi = mid;
    }
    k -= s->rank[lo];
    for (uint64_t w = lo * (RANK_BITS / 64);; w++) {
        uint64_t count = (uint64_t)__builtin_popcountll(s->bits[w]);
        if (k < count)
            return w * 64 + word_select(s->bits[w], k);
        k -= count;
    }
}

uint64_t subset_select(const struct subset *s, uint64_t k) { return select_member(s, k); }

static void select_plain(const struct subset *s, uint64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = select_member(s, v[i]);
}

#if defined(__x86_64__)
__attribute__((target("popcnt"))) static void select_popcnt(const struct subset *s, uint64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        v[i] = select_member(s, v[i]);
}
#endif

/* v[n]: numbers of members become members. */
static void subset_map(const struct subset *s, uint64_t *v, size_t n)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("popcnt")) {
        select_popcnt(s, v, n);
        return;
    }
#endif
    select_plain(s, v, n);
}

bool subset_has(const struct subset *s, uint64_t ordinal) { return ordinal < s->n && (s->bits[ordinal / 64] >> ordinal % 64 & 1); }

uint64_t subset_rank(const struct subset *s, uint64_t ordinal)
{
    uint64_t w = ordinal / RANK_BITS * (RANK_BITS / 64), rank = s->rank[ordinal / RANK_BITS];
    for (; w < ordinal / 64; w++)
        rank += (uint64_t)__builtin_popcountll(s->bits[w]);
    return ordinal % 64 ? rank + (uint64_t)__builtin_popcountll(s->bits[w] << (64 - ordinal % 64)) : rank;
}

/* ---- weights: an alias table (Vose 1991) ---- */

int alias_new(const double *weights, uint64_t n, struct alias **out, struct larder_error *err)
{
    double sum = 0;
    *out = NULL;
    if (n == 0 || n > UINT32_MAX)
        return err_set(err, LARDER_EINVAL, "weights of %llu samples: 1 to %u can have them", (unsigned long long)n, UINT32_MAX);
    for (uint64_t i = 0; i < n; i++) {
        if (!(weights[i] >= 0) || isinf(weights[i]))
            return err_set(err, LARDER_EINVAL, "weight %llu is %g: it must be 0 or more, and finite", (unsigned long long)i, weights[i]);
        sum += weights[i];
    }
    if (!(sum > 0) || isinf(sum))
        return err_set(err, LARDER_EINVAL, "the weights sum up to %g", sum);
    struct alias *a = calloc(1, sizeof(*a));
    AUTO_FREE uint32_t *todo = malloc(n * sizeof(*todo)); /* small ones from the front, large ones from the back */
    AUTO_FREE double *left = malloc(n * sizeof(*left));
    if (a)
        a->entry = malloc(n * sizeof(*a->entry));
    if (!a || !a->entry || !todo || !left) {
        alias_free(a);
        return err_nomem(err, n * 20, "weights");
    }
    a->n = n;
    uint64_t small = 0, large = n;
    for (uint64_t i = 0; i < n; i++) {
        left[i] = weights[i] / sum * (double)n;
        a->entry[i] = (struct alias_entry){UINT32_MAX, (uint32_t)i};
        if (left[i] < 1)
            todo[small++] = (uint32_t)i;
        else
            todo[--large] = (uint32_t)i;
    }
    while (small > 0 && large < n) {
        uint32_t s = todo[--small], l = todo[large];
        a->entry[s] = (struct alias_entry){(uint32_t)MIN(left[s] * 4294967296.0, 4294967295.0), l};
        left[l] -= 1 - left[s];
        if (left[l] < 1) { /* from the front of the large to the end of the small */
            large++;
            todo[small++] = l;
        }
    }
    uint64_t some = 0; /* rounding may leave one over that must never be drawn */
    while (weights[some] == 0)
        some++;
    for (uint64_t i = 0; i < small; i++)
        if (weights[todo[i]] == 0)
            a->entry[todo[i]] = (struct alias_entry){0, (uint32_t)some};
    *out = a;
    return LARDER_OK;
}

void alias_free(struct alias *a)
{
    if (!a)
        return;
    free(a->entry);
    free(a);
}

static uint64_t mix64(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint64_t scale(uint64_t random, uint64_t n) { return (uint64_t)((unsigned __int128)random * n >> 64); }

/* The draw of one place in the walk. */
static uint64_t alias_draw(const struct alias *a, uint64_t seed, uint64_t place)
{
    uint64_t state = mix64(seed + 0x9e3779b97f4a7c15u) ^ mix64(place + 0xd1b54a32d192ed03u), r = mix64(state);
    uint64_t i = scale(r, a->n);
    return (uint32_t)mix64(r + 0x9e3779b97f4a7c15u) < a->entry[i].below ? i : a->entry[i].other;
}

/* ---- the walk ---- */

uint64_t order_length(const struct order *o) { return o->epoch_size ? o->epoch_size : o->n; }

/* Block shuffle of one pass: where things begin when the last block is short. */
static void blocks_init(const struct order *o, uint64_t pass, struct blocks *b)
{
    b->n = (o->n + o->block - 1) / o->block;
    b->block = o->block;
    b->window = o->window;
    b->lack = b->n * o->block - o->n;
    perm_init(&b->perm, o->seed, pass, b->n);
    b->short_at = perm_inverse(&b->perm, b->n - 1); /* the place of the short block among the shuffled ones */
}

/* The place in the pass where the k-th of the shuffled blocks begins. */
static uint64_t block_begin(const struct blocks *b, uint64_t k) { return k * b->block - (k > b->short_at ? b->lack : 0); }

static uint64_t block_at(const struct blocks *b, uint64_t k)
{
    uint64_t at = k / b->block;
    if (k >= block_begin(b, MIN(b->short_at + 1, b->n)))
        at = (k + b->lack) / b->block;
    return at;
}

/* The shuffle within the window of the k-th block. */
static void window_init(const struct order *o, const struct blocks *b, uint64_t pass, uint64_t k, struct perm *perm, uint64_t *begin)
{
    uint64_t window = k / b->window, end = MIN((window + 1) * b->window, b->n);
    *begin = block_begin(b, window * b->window);
    perm_init(perm, mix64(o->seed + 0x9e3779b97f4a7c15u) ^ window, pass, block_begin(b, end) - *begin);
}

#define TABLE_BLOCKS 256u /* a window of no more has its blocks looked up together */

/* out[n]: positions in a window become candidates. */
static void place_blocks(const struct blocks *b, uint64_t begin, size_t n, uint64_t *out)
{
    uint64_t first = block_at(b, begin), table[TABLE_BLOCKS];
    bool few = b->window <= TABLE_BLOCKS;
    if (few)
        perm_range(&b->perm, first, (size_t)MIN(b->window, b->n - first), table);
    for (size_t i = 0; i < n; i++) {
        uint64_t k = begin + out[i], at = block_at(b, k);
        out[i] = (few ? table[at - first] : perm_at(&b->perm, at)) * b->block + (k - block_begin(b, at));
    }
}

static void fill_blocks(const struct order *o, uint64_t pass, uint64_t first, size_t count, uint64_t *out)
{
    struct blocks b;
    blocks_init(o, pass, &b);
    while (count) {
        struct perm perm;
        uint64_t begin;
        window_init(o, &b, pass, block_at(&b, first), &perm, &begin);
        size_t n = (size_t)MIN((uint64_t)count, begin + perm.n - first);
        perm_range(&perm, first - begin, n, out);
        place_blocks(&b, begin, n, out);
        first += n;
        out += n;
        count -= n;
    }
}

/* Candidates of one pass. */
static void fill_pass(const struct order *o, uint64_t pass, uint64_t first, size_t count, uint64_t *out)
{
    struct perm perm;
    switch (o->shuffle) {
    case LARDER_SHUFFLE_FULL:
        perm_init(&perm, o->seed, pass, o->n);
        perm_range(&perm, first, count, out);
        break;
    case LARDER_SHUFFLE_BLOCK: fill_blocks(o, pass, first, count, out); break;
    default:
        for (size_t i = 0; i < count; i++)
            out[i] = first + i;
    }
}

static void to_ordinals(const struct order *o, uint64_t *v, size_t n)
{
    if (o->subset)
        subset_map(o->subset, v, n);
    for (size_t i = 0; i < n && o->list; i++)
        v[i] = o->list[v[i]];
}

void order_fill(const struct order *o, uint64_t epoch, uint64_t first, size_t count, uint64_t *ordinals)
{
    uint64_t place = epoch * order_length(o) + first;
    for (size_t done = 0; done < count;) {
        uint64_t at = (place + done) % o->n;
        size_t n = (size_t)MIN((uint64_t)(count - done), o->n - at);
        if (o->alias)
            for (size_t i = 0; i < n; i++)
                ordinals[done + i] = alias_draw(o->alias, o->seed, place + done + i);
        else
            fill_pass(o, (place + done) / o->n, at, n, ordinals + done);
        done += n;
    }
    to_ordinals(o, ordinals, count);
}

/* The k-th candidate of a pass, of a block shuffle: what is prepared serves its neighbours. */
static uint64_t walk_blocks(const struct order *o, struct order_walk *w, uint64_t pass, uint64_t k)
{
    if (!w->ready || w->pass != pass) {
        blocks_init(o, pass, &w->blocks);
        w->window = UINT64_MAX;
    }
    uint64_t at = block_at(&w->blocks, k);
    if (w->window != at / o->window) {
        w->window = at / o->window;
        window_init(o, &w->blocks, pass, at, &w->perm, &w->begin);
    }
    k = w->begin + perm_at(&w->perm, k - w->begin);
    at = block_at(&w->blocks, k);
    return perm_at(&w->blocks.perm, at) * o->block + (k - block_begin(&w->blocks, at));
}

uint64_t order_at(const struct order *o, struct order_walk *w, uint64_t place)
{
    uint64_t pass = place / o->n, k = place % o->n;
    if (o->alias) {
        k = alias_draw(o->alias, o->seed, place);
    } else if (o->shuffle == LARDER_SHUFFLE_FULL) {
        if (!w->ready || w->pass != pass)
            perm_init(&w->perm, o->seed, pass, o->n);
        k = perm_at(&w->perm, k);
    } else if (o->shuffle == LARDER_SHUFFLE_BLOCK) {
        k = walk_blocks(o, w, pass, k);
    }
    w->ready = true;
    w->pass = pass;
    return o->list ? o->list[k] : o->subset ? subset_select(o->subset, k) : k;
}

/* Of one pass, of a full shuffle: all of them through the permutation together. */
static void pass_at(const struct order *o, struct order_walk *w, uint64_t pass, uint64_t *places, size_t n)
{
    if (!w->ready || w->pass != pass)
        perm_init(&w->perm, o->seed, pass, o->n);
    w->ready = true;
    w->pass = pass;
    for (size_t i = 0; i < n; i++)
        places[i] -= pass * o->n;
    perm_map(&w->perm, places, n);
    to_ordinals(o, places, n);
}

void order_map(const struct order *o, struct order_walk *w, uint64_t *places, size_t n)
{
    if (o->alias || o->shuffle != LARDER_SHUFFLE_FULL) {
        for (size_t i = 0; i < n; i++)
            places[i] = order_at(o, w, places[i]);
        return;
    }
    for (size_t i = 0, run; i < n; i += run) { /* neighbours of one pass */
        uint64_t pass = places[i] / o->n, begin = pass * o->n;
        for (run = 1; i + run < n && places[i + run] >= begin && places[i + run] - begin < o->n; run++)
            ;
        pass_at(o, w, pass, places + i, run);
    }
}

bool order_find(const struct order *o, uint64_t pass, uint64_t ordinal, uint64_t *position)
{
    struct perm perm;
    if (o->alias || o->list || (o->subset && !subset_has(o->subset, ordinal)))
        return false;
    uint64_t c = o->subset ? subset_rank(o->subset, ordinal) : ordinal;
    if (c >= o->n)
        return false;
    if (o->shuffle == LARDER_SHUFFLE_FULL) {
        perm_init(&perm, o->seed, pass, o->n);
        c = perm_inverse(&perm, c);
    } else if (o->shuffle == LARDER_SHUFFLE_BLOCK) {
        struct blocks b;
        uint64_t begin;
        blocks_init(o, pass, &b);
        uint64_t k = perm_inverse(&b.perm, c / b.block);
        window_init(o, &b, pass, k, &perm, &begin);
        c = begin + perm_inverse(&perm, block_begin(&b, k) + c % b.block - begin);
    }
    *position = c;
    return true;
}
