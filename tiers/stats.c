/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - counters of the tiers, latencies on a log scale, and both as Prometheus text.
 *
 * A latency falls into one of four buckets an octave, so that adding one costs a few instructions and any percentile is right
 * within a fifth, whatever its size. Counters are relaxed atomics: sums are right, snapshots are not of one instant.
 */
#include <inttypes.h>

#include "tiers/stack_int.h"

static unsigned bucket_of(uint64_t ns)
{
    if (ns < 4)
        return (unsigned)ns;
    unsigned octave = 63 - (unsigned)__builtin_clzll(ns);
    return (octave - 1) * 4 + (unsigned)(ns >> (octave - 2) & 3);
}

static uint64_t bucket_end(unsigned b)
{
    if (b < 4)
        return b;
    unsigned octave = b / 4 + 1;
    uint64_t step = 1ull << (octave - 2);
    return (1ull << octave) + step * (b % 4) + (step - 1);
}

void histogram_add(struct histogram *h, uint64_t ns)
{
    atomic_fetch_add_explicit(&h->count[bucket_of(ns)], 1, memory_order_relaxed);
    uint64_t max = atomic_load_explicit(&h->max, memory_order_relaxed);
    while (ns > max && !atomic_compare_exchange_weak_explicit(&h->max, &max, ns, memory_order_relaxed, memory_order_relaxed))
        ;
}

uint64_t histogram_at(const struct histogram *h, unsigned per_mille)
{
    uint64_t total = 0, seen = 0, max = atomic_load_explicit(&h->max, memory_order_relaxed);
    for (unsigned b = 0; b < HISTOGRAM_BUCKETS; b++)
        total += atomic_load_explicit(&h->count[b], memory_order_relaxed);
    if (!total)
        return 0;
    uint64_t rank = total / 1000 * per_mille + (total % 1000 * per_mille + 999) / 1000;
    for (unsigned b = 0; b < HISTOGRAM_BUCKETS; b++) {
        seen += atomic_load_explicit(&h->count[b], memory_order_relaxed);
        if (seen >= rank && seen)
            return MIN(bucket_end(b), max);
    }
    return max;
}

void counter_add(struct tier_counter *c, const struct larder_tier_stats *s)
{
    atomic_fetch_add_explicit(&c->hits, s->hits, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->bytes, s->bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->requests, s->requests, memory_order_relaxed);
    if (s->misses)
        atomic_fetch_add_explicit(&c->misses, s->misses, memory_order_relaxed);
}

void counter_give(const struct tier_counter *c, struct larder_cache_tier *out)
{
    out->hits = atomic_load_explicit(&c->hits, memory_order_relaxed);
    out->misses = atomic_load_explicit(&c->misses, memory_order_relaxed);
    out->bytes = atomic_load_explicit(&c->bytes, memory_order_relaxed);
    out->requests = atomic_load_explicit(&c->requests, memory_order_relaxed);
    out->latency_ns_p50 = histogram_at(&c->latency, 500);
    out->latency_ns_p90 = histogram_at(&c->latency, 900);
    out->latency_ns_p99 = histogram_at(&c->latency, 990);
    out->latency_ns_max = atomic_load_explicit(&c->latency.max, memory_order_relaxed);
}

/* ---- text ---- */

struct metric { const char *name, *type, *help; size_t at; };

#define METRIC(name, type, member, help) {"larder_cache_" name, type, help, offsetof(struct larder_cache_tier, member)}
static const struct metric metrics[] = {
    METRIC("budget_bytes", "gauge", budget_bytes, "Limit of the tier."),
    METRIC("used_bytes", "gauge", used_bytes, "Records and bookkeeping."),
    METRIC("bookkeeping_bytes", "gauge", bookkeeping_bytes, "Of the used bytes: no record."),
    METRIC("entries", "gauge", entries, "Records held."),
    METRIC("hits_total", "counter", hits, "Samples that this process found here."),
    METRIC("misses_total", "counter", misses, "Samples that this process found in a farther tier."),
    METRIC("bytes_total", "counter", bytes, "Bytes that this process fetched from here."),
    METRIC("requests_total", "counter", requests, "Reads (DRAM: lookups) of this process."),
    METRIC("admissions_total", "counter", admissions, "Records that came in."),
    METRIC("refusals_total", "counter", refusals, "Records that found no room."),
    METRIC("evictions_total", "counter", evictions, "Records that made room."),
    METRIC("healed_total", "counter", healed, "Damaged records that were dropped."),
};

static uint64_t member(const struct larder_cache_tier *t, size_t at)
{
    uint64_t v;
    memcpy(&v, (const uint8_t *)t + at, sizeof(v));
    return v;
}

int stats_text(const char *cache, const struct larder_cache_stats *s, bool dram, bool nvme, struct buf *out, struct larder_error *err)
{
    const char *const names[TIERS] = {"dram", "nvme", "origin"};
    const struct larder_cache_tier *const tiers[TIERS] = {&s->dram, &s->nvme, &s->origin};
    const bool there[TIERS] = {dram, nvme, true};
    int rc = LARDER_OK;
    for (size_t m = 0; !rc && m < ARRAY_LEN(metrics); m++) {
        rc = buf_printf(out, err, "# HELP %s %s\n# TYPE %s %s\n", metrics[m].name, metrics[m].help, metrics[m].name, metrics[m].type);
        for (unsigned t = 0; !rc && t < TIERS; t++)
            if (there[t])
                rc = buf_printf(out, err, "%s{cache=\"%s\",tier=\"%s\"} %" PRIu64 "\n", metrics[m].name, cache, names[t],
                                member(tiers[t], metrics[m].at));
    }
    if (!rc && dram)
        rc = buf_printf(out, err, "# HELP larder_cache_locked_bytes Memory that this process has locked.\n"
                        "# TYPE larder_cache_locked_bytes gauge\nlarder_cache_locked_bytes{cache=\"%s\",tier=\"dram\"} %" PRIu64 "\n",
                        cache, s->locked_bytes);
    if (!rc && dram)
        rc = buf_printf(out, err, "# HELP larder_cache_registered_bytes Memory that this process has registered with CUDA.\n"
                        "# TYPE larder_cache_registered_bytes gauge\nlarder_cache_registered_bytes{cache=\"%s\",tier=\"dram\"} %" PRIu64 "\n",
                        cache, s->registered_bytes);
    if (!rc)
        rc = buf_printf(out, err, "# HELP larder_cache_latency_seconds Latency of requests.\n# TYPE larder_cache_latency_seconds summary\n");
    for (unsigned t = 0; !rc && t < TIERS; t++)
        if (there[t])
            rc = buf_printf(out, err, "larder_cache_latency_seconds{cache=\"%s\",tier=\"%s\",quantile=\"0.5\"} %.9f\n"
                            "larder_cache_latency_seconds{cache=\"%s\",tier=\"%s\",quantile=\"0.9\"} %.9f\n"
                            "larder_cache_latency_seconds{cache=\"%s\",tier=\"%s\",quantile=\"0.99\"} %.9f\n"
                            "larder_cache_latency_seconds{cache=\"%s\",tier=\"%s\",quantile=\"1\"} %.9f\n",
                            cache, names[t], (double)tiers[t]->latency_ns_p50 / 1e9, cache, names[t], (double)tiers[t]->latency_ns_p90 / 1e9,
                            cache, names[t], (double)tiers[t]->latency_ns_p99 / 1e9, cache, names[t], (double)tiers[t]->latency_ns_max / 1e9);
    return rc;
}
