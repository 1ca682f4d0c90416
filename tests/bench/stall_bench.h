/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stall_bench.h - what bench_stall.c and bench_epoch_boundary.c share: datasets of the shapes of MLPerf Storage, read past the page cache by a
 * loader whose consumer computes for a while after each batch.
 */
#ifndef STALL_BENCH_H
#define STALL_BENCH_H

#include <math.h>

#include "tests/bench/bench.h"

struct shape { const char *name; uint32_t bytes, sd, samples, batch; };

/* A normal length, no shorter than a tenth. */
static inline size_t shape_length(const struct shape *s, uint64_t *state)
{
    double u = (double)(bench_rng(state) >> 11) / 9007199254740992.0, v = (double)(bench_rng(state) >> 11) / 9007199254740992.0;
    double len = s->bytes + s->sd * sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v);

    return (size_t)fmax(len, s->bytes / 10.0);
}

static struct larder_dataset *shape_open(const struct shape *s)
{
    struct larder_field field = {.name = "value", .type = LARDER_BYTES};
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;
    uint64_t state = 11;
    char name[64];
    const char *path;

    snprintf(name, sizeof name, "stall_%s.larder", s->name);
    path = bench_path(name);
    if (!bench_is_made(path)) {
        uint8_t *value = malloc((size_t)s->bytes * 8);
        struct larder_writer *w;

        bench_ok(larder_writer_open(path, &field, 1, NULL, &w, &err), &err);
        bench_fill(&state, value, (size_t)s->bytes * 8 - 8);
        for (uint64_t i = 0; i < s->samples; i++) {
            struct larder_value v = {value + i % 64, shape_length(s, &state)};

            bench_ok(larder_writer_add(w, &i, sizeof i, &v, &err), &err);
        }
        bench_ok(larder_writer_commit(w, NULL, &err), &err);
        free(value);
        bench_made(path);
        sync();
    }
    o.direct = LARDER_DIRECT_ON;
    bench_ok(larder_dataset_open(path, &o, &ds, &err), &err);
    return ds;
}

static inline void compute(double seconds)
{
    struct timespec t;
    double until = bench_now() + seconds;

    if (seconds <= 0)
        return;
    t.tv_sec = (time_t)until;
    t.tv_nsec = (long)((until - (double)t.tv_sec) * 1e9);
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

#endif
