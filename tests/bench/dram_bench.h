/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dram_bench.h - what bench_dram_read and bench_dram_scale share: a dataset of equal records that lies in DRAM as a whole, and
 * the loop that reads random batches of 256 of them and touches every cache line.
 */
#ifndef DRAM_BENCH_H
#define DRAM_BENCH_H

#include "tests/bench/bench.h"

enum { BATCH = 256 };

struct size_case { const char *name; uint32_t bytes, samples; uint32_t batches; };
static const struct size_case cases[] = {{"128", 128, 2000000, 4000}, {"2500", 2500, 160000, 1500}, {"110000", 110000, 4000, 60}};

struct data {
    const struct size_case *c;
    struct larder_cache *cache;
    struct larder_dataset *ds;
    uint8_t *array; /* the same records back to back */
};

static inline uint64_t touch(const uint8_t *data, size_t len)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < len; i += 64)
        sum += data[i];
    return sum + data[len - 1];
}

static inline void value_of(uint64_t i, void *value, uint32_t len)
{
    bench_fill(&i, value, len);
}

static void data_make(const char *path, const struct size_case *c)
{
    struct larder_field field = {.name = "value", .type = LARDER_BYTES};
    struct larder_writer_options opts = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    uint8_t *value = malloc(c->bytes + 8);

    if (!value)
        bench_die("no memory");
    bench_ok(larder_writer_open(path, &field, 1, &opts, &w, &err), &err);
    for (uint64_t i = 0; i < c->samples; i++) {
        struct larder_value v = {value, c->bytes};

        value_of(i, value, c->bytes);
        bench_ok(larder_writer_add(w, &i, sizeof i, &v, &err), &err);
    }
    bench_ok(larder_writer_commit(w, NULL, &err), &err);
    free(value);
}

static void read_batch(struct larder_dataset *ds, const uint64_t *ordinals, size_t n, uint64_t *sum)
{
    struct larder_sample samples[BATCH] = {{0}};
    struct larder_error err;

    bench_ok(larder_dataset_read(ds, ordinals, n, NULL, samples, &err), &err);
    for (size_t i = 0; i < n; i++)
        *sum += touch(samples[i].fields[0].data, samples[i].fields[0].len);
    larder_samples_release(samples, n);
}

/* Opens the dataset of a case behind a cache of so many bytes and reads all of it. */
static void data_fill(struct data *d, const struct size_case *c, const char *cache_name, uint64_t dram_bytes)
{
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_error err;
    uint64_t ordinals[BATCH], sum = 0;
    char name[64];
    const char *path;

    snprintf(name, sizeof name, "dram_%s.larder", c->name);
    path = bench_path(name);
    if (!bench_is_made(path)) {
        data_make(path, c);
        bench_made(path);
    }
    co.name = cache_name;
    co.dram_bytes = dram_bytes;
    bench_ok(larder_cache_open(&co, &d->cache, &err), &err);
    o.cache = d->cache;
    bench_ok(larder_dataset_open(path, &o, &d->ds, &err), &err);
    for (uint64_t i = 0; i < c->samples; i += BATCH) {
        size_t n = c->samples - i < BATCH ? c->samples - i : BATCH;

        for (size_t k = 0; k < n; k++)
            ordinals[k] = i + k;
        read_batch(d->ds, ordinals, n, &sum);
    }
    d->c = c;
}

/* A cache that holds all of it. */
BENCH_UNUSED static void data_open(struct data *d, const struct size_case *c, const char *cache_name)
{
    struct larder_cache_stats s = {.struct_size = sizeof s};
    struct larder_error err;

    data_fill(d, c, cache_name, (uint64_t)c->samples * (c->bytes + 80) + (64 << 20));
    bench_ok(larder_cache_stats(d->cache, &s, &err), &err);
    if (s.dram.entries != c->samples)
        bench_die("%s: %llu of %u records came into DRAM", c->name, (unsigned long long)s.dram.entries, c->samples);
}

static void data_close(struct data *d)
{
    larder_dataset_close(d->ds);
    larder_cache_close(d->cache);
    free(d->array);
}

static void draw(const struct data *d, uint64_t *state, uint64_t *ordinals)
{
    for (int i = 0; i < BATCH; i++)
        ordinals[i] = (uint32_t)(((bench_rng(state) >> 32) * d->c->samples) >> 32);
}

/* Records a second; the drawing is not counted. */
BENCH_UNUSED static double read_random(struct data *d, uint64_t seed, uint32_t batches, uint64_t *sum)
{
    uint64_t ordinals[BATCH];
    double t = 0;

    for (uint32_t b = 0; b < batches; b++) {
        double t0;

        draw(d, &seed, ordinals);
        t0 = bench_now();
        read_batch(d->ds, ordinals, BATCH, sum);
        t += bench_now() - t0;
    }
    return (double)BATCH * batches / t;
}

/* The same records copied out of one array, with nothing around it. */
BENCH_UNUSED static void data_array(struct data *d)
{
    d->array = malloc((size_t)d->c->samples * d->c->bytes + 8);
    if (!d->array)
        bench_die("no memory");
    for (uint64_t i = 0; i < d->c->samples; i++) {
        value_of(i, d->array + i * d->c->bytes, d->c->bytes & ~7u);
    }
}

BENCH_UNUSED static double copy_random(struct data *d, uint64_t seed, uint32_t batches, uint64_t *sum)
{
    uint8_t *to = malloc(d->c->bytes + 64);
    uint64_t ordinals[BATCH];
    double t = 0;

    for (uint32_t b = 0; b < batches; b++) {
        double t0;

        draw(d, &seed, ordinals);
        t0 = bench_now();
        for (int i = 0; i < BATCH; i++) {
            if (i + 8 < BATCH)
                __builtin_prefetch(d->array + ordinals[i + 8] * d->c->bytes);
            memcpy(to, d->array + ordinals[i] * d->c->bytes, d->c->bytes);
            *sum += to[ordinals[i] % d->c->bytes];
        }
        t += bench_now() - t0;
    }
    free(to);
    return (double)BATCH * batches / t;
}

#endif
