/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_minio_epoch.c - epochs over a dataset three times the DRAM budget, past the page cache.
 *
 * 6,000 records of 110 kB, shuffled anew each epoch, the cache filled before counting. larder: a loader with a DRAM cache without
 * replacement and O_DIRECT. Baseline: an LRU of the same bytes over the same order, which reads what it misses of 256 records at a time
 * through larder without a cache, 64 reads in flight, and keeps it. `pagecache`: plain buffered reads by a loader in a memory
 * cgroup of that size (null where none may be made). The *_bytes are what each side read from the origin in an epoch.
 */
#include <sys/resource.h>

#include "tests/bench/bench.h"

enum { SAMPLES = 6000, VALUE = 110000, BATCH = 256, EPOCHS = 2, ROUNDS = 5 };
#define BUDGET ((uint64_t)SAMPLES * VALUE / 3)

struct ctx {
    const char *path;
    struct larder_cache *cache;
    struct larder_dataset *cached, *plain;
    uint64_t epoch;                 /* the next of the order */
    uint8_t *slots;                 /* LRU */
    uint32_t slot_of[SAMPLES], owner[SAMPLES];
    uint64_t used[SAMPLES], clock;  /* of slots */
    uint32_t n_slots, filled;
    uint64_t larder_bytes, lru_bytes;
};

static void make(const char *path)
{
    struct larder_field field = {.name = "value", .type = LARDER_BYTES};
    struct larder_writer_options opts = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    static uint8_t value[VALUE + 8];

    bench_ok(larder_writer_open(path, &field, 1, &opts, &w, &err), &err);
    for (uint64_t i = 0; i < SAMPLES; i++) {
        struct larder_value v = {value, VALUE};
        uint64_t state = i;

        bench_fill(&state, value, VALUE);
        bench_ok(larder_writer_add(w, &i, sizeof i, &v, &err), &err);
    }
    bench_ok(larder_writer_commit(w, NULL, &err), &err);
}

static uint64_t touch(const uint8_t *data, size_t len)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < len; i += 64)
        sum += data[i];
    return sum;
}

/* Samples a second over whole epochs of a loader; *bytes: of the origin, an epoch. */
static double load(struct larder_dataset *ds, uint64_t first, uint64_t epochs, uint64_t *bytes)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader_stats s = {.struct_size = sizeof s};
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;
    volatile uint64_t sum = 0;
    double t = bench_now();
    int rc;

    o.batch_size = BATCH;
    o.seed = 9;
    o.epoch = first;
    o.epochs = epochs;
    bench_ok(larder_loader_open(ds, &o, &ld, &err), &err);
    for (uint64_t e = 0; e < epochs; e++) {
        while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
            for (uint32_t i = 0; i < b->n; i++)
                sum += touch(b->values[i].data, b->values[i].len);
            larder_batch_release(b);
        }
        if (rc != LARDER_END)
            bench_ok(rc, &err);
    }
    t = bench_now() - t;
    bench_ok(larder_loader_stats(ld, &s, &err), &err);
    *bytes = s.origin.bytes;
    larder_loader_close(ld);
    return (double)SAMPLES * (double)epochs / t;
}

static double run_larder(void *arg)
{
    struct ctx *c = arg;

    c->epoch += EPOCHS;
    return load(c->cached, c->epoch, EPOCHS, &c->larder_bytes);
}

/* ---- the LRU ---- */

static uint32_t oldest(struct ctx *c)
{
    uint32_t at = 0;

    if (c->filled < c->n_slots)
        return c->filled++;
    for (uint32_t i = 1; i < c->n_slots; i++)
        if (c->used[i] < c->used[at])
            at = i;
    c->slot_of[c->owner[at]] = UINT32_MAX;
    return at;
}

static void lru_batch(struct ctx *c, const uint64_t *ordinals, size_t n, uint64_t *bytes)
{
    static struct larder_sample samples[BATCH];
    uint64_t miss[BATCH];
    struct larder_error err;
    volatile uint64_t sum = 0;
    size_t m = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t slot = c->slot_of[ordinals[i]];

        if (slot == UINT32_MAX) {
            miss[m++] = ordinals[i];
            continue;
        }
        c->used[slot] = ++c->clock;
        sum += touch(c->slots + (size_t)slot * VALUE, VALUE);
    }
    if (!m)
        return;
    bench_ok(larder_dataset_read(c->plain, miss, m, NULL, samples, &err), &err);
    for (size_t i = 0; i < m; i++) {
        uint32_t slot = oldest(c);

        memcpy(c->slots + (size_t)slot * VALUE, samples[i].fields[0].data, VALUE);
        c->slot_of[miss[i]] = slot;
        c->owner[slot] = (uint32_t)miss[i];
        c->used[slot] = ++c->clock;
        sum += touch(c->slots + (size_t)slot * VALUE, VALUE);
    }
    larder_samples_release(samples, m);
    *bytes += (uint64_t)m * VALUE;
}

static double run_lru(void *arg)
{
    struct ctx *c = arg;
    static uint64_t order[SAMPLES];
    double t = 0;

    c->lru_bytes = 0;
    for (int e = 0; e < EPOCHS; e++) {
        uint64_t state = c->epoch + (uint64_t)e;

        for (uint32_t i = 0; i < SAMPLES; i++)
            order[i] = i;
        for (uint32_t i = SAMPLES - 1; i > 0; i--) {
            uint32_t j = (uint32_t)(bench_rng(&state) % (i + 1));
            uint64_t x = order[i];

            order[i] = order[j];
            order[j] = x;
        }
        double t0 = bench_now();
        for (uint32_t i = 0; i < SAMPLES; i += BATCH)
            lru_batch(c, order + i, SAMPLES - i < BATCH ? SAMPLES - i : BATCH, &c->lru_bytes);
        t += bench_now() - t0;
    }
    c->lru_bytes /= EPOCHS;
    return (double)SAMPLES * EPOCHS / t;
}

/* ---- the page cache, limited ---- */

static int put(const char *dir, const char *file, const char *text)
{
    char path[300];
    int fd, ok;

    snprintf(path, sizeof path, "%s/%s", dir, file);
    fd = open(path, O_WRONLY);
    if (fd < 0)
        return 0;
    ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return ok;
}

/* In a child of a cgroup with BUDGET bytes of memory besides what the loader itself needs. */
static void limited(const char *path, int fd)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;
    struct rusage before, after;
    double out[2];
    uint64_t bytes;

    o.direct = LARDER_DIRECT_OFF;
    bench_ok(larder_dataset_open(path, &o, &ds, &err), &err);
    load(ds, 0, 1, &bytes);
    getrusage(RUSAGE_SELF, &before);
    out[0] = load(ds, 1, EPOCHS, &bytes);
    getrusage(RUSAGE_SELF, &after);
    out[1] = (double)(after.ru_inblock - before.ru_inblock) * 512 / EPOCHS;
    if (write(fd, out, sizeof out) != sizeof out)
        _exit(1);
    larder_dataset_close(ds);
    _exit(0);
}

static void page_cache(const struct ctx *c, char *text, size_t size)
{
    const char *dir = "/sys/fs/cgroup/larder-bench";
    char number[32];
    double got[2];
    int fds[2], status, ok;

    snprintf(text, size, "\"pagecache\": null");
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return;
    snprintf(number, sizeof number, "%llu", (unsigned long long)(BUDGET + (300u << 20)));
    ok = put(dir, "memory.max", number) && pipe(fds) == 0;
    if (ok) {
        pid_t pid = fork();

        if (pid == 0) {
            snprintf(number, sizeof number, "%d", (int)getpid());
            if (!put(dir, "cgroup.procs", number))
                _exit(1);
            limited(c->path, fds[1]);
        }
        close(fds[1]);
        ok = waitpid(pid, &status, 0) == pid && status == 0 && read(fds[0], got, sizeof got) == sizeof got;
        close(fds[0]);
    }
    rmdir(dir);
    if (ok)
        snprintf(text, size, "\"pagecache\": %.6g, \"pagecache_bytes\": %.0f", got[0], got[1]);
}

int main(int argc, char **argv)
{
    static struct ctx c;
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_error err;
    char more[400], pages[160];
    uint64_t bytes;

    if (!bench_wanted(argc, argv, "minio_epoch"))
        return 0;
    c.path = bench_path("minio_epoch.larder");
    if (!bench_is_made(c.path)) {
        make(c.path);
        bench_made(c.path);
    }
    co.name = NULL;
    co.dram_bytes = BUDGET;
    o.direct = LARDER_DIRECT_ON;
    bench_ok(larder_dataset_open(c.path, &o, &c.plain, &err), &err);
    bench_ok(larder_cache_open(&co, &c.cache, &err), &err);
    o.cache = c.cache;
    bench_ok(larder_dataset_open(c.path, &o, &c.cached, &err), &err);
    c.n_slots = BUDGET / VALUE;
    c.slots = malloc((size_t)c.n_slots * VALUE);
    if (!c.slots)
        bench_die("no memory");
    memset(c.slot_of, 0xff, sizeof c.slot_of);
    load(c.cached, 0, 1, &bytes); /* fills */
    run_larder(&c);
    run_lru(&c);
    page_cache(&c, pages, sizeof pages);
    snprintf(more, sizeof more, "\"larder_bytes\": %llu, \"lru_bytes\": %llu, \"dataset_bytes\": %llu, %s",
             (unsigned long long)c.larder_bytes, (unsigned long long)c.lru_bytes, (unsigned long long)SAMPLES * VALUE, pages);
    bench_pair("minio_epoch", run_larder, run_lru, "LRU of the same size", "samples/s", ROUNDS, &c, more);
    larder_dataset_close(c.cached);
    larder_dataset_close(c.plain);
    larder_cache_close(c.cache);
    free(c.slots);
    return 0;
}
