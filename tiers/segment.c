/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - from the extents of a batch to the reads that fetch it. Pure: no I/O, no clock, no threads.
 *
 * Wants are sorted by (shard, offset). Those that touch, overlap or lie no more than `gap` apart form a run: one contiguous
 * piece of a file that lands in one contiguous piece of memory, so every record in it is contiguous too, however long. A run is
 * cut into segments of at most segment_max, which are read independently. Under O_DIRECT a run begins and ends at multiples
 * of `align`, in the file and in memory; otherwise memory keeps the file's position modulo 64, so that what is aligned in a
 * shard is aligned in memory.
 *
 *     file    ....[ want ]..[ want ]......................[ want ]...
 *     runs    ..[----------------------]..............[-----------]..
 *     cut     ..[ segment_max | rest   ]..............[-----------]..
 *
 * Holds [tiers I1]: every want lies in one run; segments are disjoint, at most segment_max long, and cover the runs.
 */
#include "tiers/tiers_int.h"

#define MEMORY_LINE 64u
#define SORT_RUN 8u

static inline bool want_less(const struct want *a, const struct want *b)
{
    return a->shard != b->shard ? a->shard < b->shard : a->offset < b->offset;
}

/* Insertion sort of w[lo, hi). */
static void sort_short(struct want *w, size_t lo, size_t hi)
{
    for (size_t i = lo + 1; i < hi; i++) {
        struct want x = w[i];
        size_t j = i;
        for (; j > lo && want_less(&x, &w[j - 1]); j--)
            w[j] = w[j - 1];
        w[j] = x;
    }
}

static void merge(const struct want *from, struct want *to, size_t lo, size_t mid, size_t hi)
{
    size_t a = lo, b = mid;
    for (size_t i = lo; i < hi; i++)
        to[i] = b == hi || (a < mid && !want_less(&from[b], &from[a])) ? from[a++] : from[b++];
}

/* Bottom-up merge sort; the result is in p->wants. Sorted input, the usual one of sequential reads, costs one pass. */
static void sort_wants(struct plan *p, size_t n)
{
    size_t i = 1;
    while (i < n && !want_less(&p->wants[i], &p->wants[i - 1]))
        i++;
    if (i >= n)
        return;
    for (size_t lo = 0; lo < n; lo += SORT_RUN)
        sort_short(p->wants, lo, MIN(n, lo + SORT_RUN));
    for (size_t width = SORT_RUN; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width)
            merge(p->wants, p->scratch, lo, MIN(n, lo + width), MIN(n, lo + 2 * width));
        struct want *w = p->wants;
        size_t cap = p->cap_wants;
        p->wants = p->scratch, p->cap_wants = p->cap_scratch;
        p->scratch = w, p->cap_scratch = cap;
    }
}

/* Cuts [start, end) of a shard into segments; start is aligned. *memory: where the run begins. */
static int add_run(struct plan *p, const struct plan_rules *r, uint32_t shard, uint64_t start, uint64_t end, size_t *memory,
                   struct larder_error *err)
{
    uint64_t padded = round_up(end, r->align);
    size_t pieces = (padded - start + r->segment_max - 1) / r->segment_max;
    if (p->n_segments + pieces > p->cap_segments && GROW(p->segments, p->cap_segments, p->n_segments + pieces, err))
        return LARDER_ENOMEM;
    *memory = r->align > 1 ? round_up(p->memory, r->align) : round_up(p->memory, MEMORY_LINE) + start % MEMORY_LINE;
    p->memory = *memory + (padded - start);
    p->bytes += padded - start;
    for (uint64_t at = start; at < padded; at += r->segment_max) {
        uint32_t len = (uint32_t)MIN((uint64_t)r->segment_max, padded - at);
        uint32_t need = (uint32_t)MIN((uint64_t)len, end - at);
        p->segments[p->n_segments++] = (struct segment){at, *memory + (at - start), shard, len, need, -1};
    }
    return LARDER_OK;
}

/* The run that begins with want first: *last is behind its last want. */
static int plan_run(struct plan *p, const struct plan_rules *r, size_t n, size_t first, size_t *last, struct larder_error *err)
{
    const struct want *w = p->wants;
    uint64_t start = round_down(w[first].offset, r->align), end = w[first].end;
    size_t i = first + 1, memory;
    for (; i < n && w[i].shard == w[first].shard; i++) {
        if (round_down(w[i].offset, r->align) > round_up(end, r->align) + r->gap)
            break;
        p->over_read += w[i].offset > end ? w[i].offset - end : 0;
        end = MAX(end, w[i].end);
    }
    int rc = add_run(p, r, w[first].shard, start, end, &memory, err);
    if (rc)
        return rc;
    for (size_t k = first; k < i; k++)
        p->place[w[k].index] = memory + (w[k].offset - start);
    *last = i;
    return LARDER_OK;
}

/* Fills p->wants; returns how many, those of length 0 left out. SIZE_MAX: an extent is impossible. */
static size_t collect(struct plan *p, const struct extent *extents, const struct field_range *ranges, size_t n,
                      struct larder_error *err)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++) {
        const struct extent *e = &extents[i];
        uint64_t offset = e->offset, len = e->stored_len;
        if (ranges) {
            if (ranges[i].offset > len || ranges[i].len > len - ranges[i].offset) {
                err_set(err, LARDER_ECORRUPT, "shard %u slot %u: bytes %u+%u are outside its record of %u bytes",
                        e->shard, e->slot, ranges[i].offset, ranges[i].len, e->stored_len);
                return SIZE_MAX;
            }
            offset += ranges[i].offset, len = ranges[i].len;
        }
        if (offset > INT64_MAX - len - TIERS_SEGMENT_MAX) {
            err_set(err, LARDER_ECORRUPT, "shard %u slot %u: offset %llu is beyond any file", e->shard, e->slot,
                    (unsigned long long)e->offset);
            return SIZE_MAX;
        }
        p->place[i] = 0;
        if (len)
            p->wants[m++] = (struct want){offset, offset + len, e->shard, (uint32_t)i};
    }
    return m;
}

int plan_build(struct plan *p, const struct plan_rules *rules, const struct extent *extents, const struct field_range *ranges,
               size_t n, struct larder_error *err)
{
    p->n_segments = 0, p->memory = 0, p->bytes = 0;
    p->over_read = 0, p->gap = rules->gap;
    if (n > UINT32_MAX)
        return err_set(err, LARDER_EINVAL, "a fetch of %zu records: the most is %u", n, UINT32_MAX);
    if ((n > p->cap_wants && GROW(p->wants, p->cap_wants, n, err)) ||
        (n > p->cap_scratch && GROW(p->scratch, p->cap_scratch, n, err)) ||
        (n > p->cap_place && GROW(p->place, p->cap_place, n, err)))
        return LARDER_ENOMEM;
    size_t m = collect(p, extents, ranges, n, err);
    p->n_wants = m;
    if (m == SIZE_MAX)
        return LARDER_ECORRUPT;
    sort_wants(p, m);
    for (size_t i = 0; i < m;) {
        int rc = plan_run(p, rules, m, i, &i, err);
        if (rc) {
            p->n_segments = 0;
            return rc;
        }
    }
    p->memory = round_up(p->memory, rules->align);
    return LARDER_OK;
}

void plan_release(struct plan *p)
{
    free(p->segments);
    free(p->place);
    free(p->wants);
    free(p->scratch);
    *p = (struct plan){0};
}
