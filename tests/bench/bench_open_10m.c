/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_open_10m.c - opening a dataset of ten million samples: milliseconds and memory.
 *
 * The dataset is made by larder's writer: ten million samples of 16 bytes and a label. It is made twice, with few large
 * shards and with many small ones, for opening must not depend on how many samples a shard holds. Each open happens in a
 * fresh process, which reports the time of larder_dataset_open, its resident memory after it, and, for information, the
 * same after one read and one lookup. The baseline is the stated budget: 100 ms, and "rss_mib" below 64.
 */
#include "tests/bench/bench.h"

enum { SAMPLES = 10000000, ROUNDS = 7 };

struct report {
    double open_ms, read_ms, lookup_ms;
    double open_rss, after_rss; /* MiB */
    uint64_t shards;
};

static size_t key_of(uint64_t i, char *key)
{
    return (size_t)sprintf(key, "sample-%08" PRIu64, i);
}

static void make(const char *path, uint64_t shard_size)
{
    struct larder_field fields[] = {{.name = "value", .type = LARDER_BYTES}, {.name = "label", .type = LARDER_I64}};
    struct larder_writer_options opts = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    uint64_t state = 10;
    char key[32];

    opts.shard_size = shard_size;
    bench_ok(larder_writer_open(path, fields, 2, &opts, &w, &err), &err);
    for (uint64_t i = 0; i < SAMPLES; i++) {
        uint64_t value[2] = {bench_rng(&state), i};
        int64_t label = (int64_t)(i % 1000);
        struct larder_value v[2] = {{value, 16}, {&label, 8}};

        bench_ok(larder_writer_add(w, key, key_of(i, key), v, &err), &err);
    }
    bench_ok(larder_writer_commit(w, NULL, &err), &err);
}

/* Resident set of this process in MiB: the peak. */
static double rss(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    double kib = 0;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lf", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib / 1024;
}

/* The child's part: open, read, look up; the numbers to stdout. */
static int child(const char *path)
{
    struct report r = {0};
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_sample sample = {0};
    struct larder_dataset *ds;
    struct larder_error err;
    uint64_t ordinal = SAMPLES / 3, found;
    char key[32];
    const void *keys[1] = {key};
    size_t len = key_of(ordinal, key);
    double t = bench_now();

    bench_ok(larder_dataset_open(path, NULL, &ds, &err), &err);
    r.open_ms = (bench_now() - t) * 1e3;
    r.open_rss = rss();
    bench_ok(larder_dataset_info(ds, &info, &err), &err);
    if (info.samples != SAMPLES)
        bench_die("%s: %" PRIu64 " samples", path, info.samples);
    r.shards = info.shards;
    t = bench_now();
    bench_ok(larder_dataset_read(ds, &ordinal, 1, NULL, &sample, &err), &err);
    larder_samples_release(&sample, 1);
    r.read_ms = (bench_now() - t) * 1e3;
    t = bench_now();
    bench_ok(larder_dataset_lookup(ds, keys, &len, 1, &found, &err), &err);
    r.lookup_ms = (bench_now() - t) * 1e3;
    r.after_rss = rss();
    if (found != ordinal)
        bench_die("%s: key %s is not at its ordinal", path, key);
    larder_dataset_close(ds);
    printf("%f %f %f %f %f %" PRIu64 "\n", r.open_ms, r.read_ms, r.lookup_ms, r.open_rss, r.after_rss, r.shards);
    return 0;
}

static struct report open_fresh(const char *self, const char *path)
{
    char command[1200];
    struct report r;
    FILE *p;

    snprintf(command, sizeof command, "'%s' --open '%s'", self, path);
    p = popen(command, "r");
    if (!p || fscanf(p, "%lf %lf %lf %lf %lf %" SCNu64, &r.open_ms, &r.read_ms, &r.lookup_ms, &r.open_rss, &r.after_rss,
                     &r.shards) != 6 || pclose(p) != 0)
        bench_die("%s failed", command);
    return r;
}

int main(int argc, char **argv)
{
    static const struct { const char *name, *data; uint64_t shard_size; } cases[2] = {
        {"open_10m/64MiB", "open_10m_64", 64 << 20}, {"open_10m/512KiB", "open_10m_512k", 512 << 10}};

    if (argc == 3 && strcmp(argv[1], "--open") == 0)
        return child(argv[2]);
    for (int i = 0; i < 2; i++) {
        const char *path = bench_path(cases[i].data);
        struct bench_side ms;
        struct report r;
        double rss_max = 0;
        char more[512];

        if (!bench_wanted(argc, argv, cases[i].name))
            continue;
        if (!bench_is_made(path)) {
            make(path, cases[i].shard_size);
            bench_made(path);
        }
        for (int k = 0; k < ROUNDS; k++) {
            r = open_fresh(argv[0], path);
            ms.v[k] = r.open_ms;
            rss_max = r.open_rss > rss_max ? r.open_rss : rss_max;
        }
        bench_side_sum(&ms, ROUNDS);
        snprintf(more, sizeof more, "\"rss_mib\": %.1f, \"shards\": %" PRIu64 ", \"first_read_ms\": %.2f, \"first_lookup_ms\": %.2f, "
                 "\"rss_after_lookup_mib\": %.1f", rss_max, r.shards, r.read_ms, r.lookup_ms, r.after_rss);
        bench_line(cases[i].name, &ms, 100, "budget of 100 ms and 64 MiB", 100 / ms.median, "ms", ROUNDS, more);
    }
    return 0;
}
