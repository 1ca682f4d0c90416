/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_minio_epoch.c - epochs over a dataset three times the DRAM budget, past the page cache.
 *
 * 6,000 records of 110 kB, shuffled anew each epoch, caches filled before counting; three sides in turn. larder: a loader with
 * a DRAM cache without replacement and O_DIRECT. Baseline: an LRU of the same bytes over the same order, which reads what it
 * misses of 256 records at a time through larder without a cache, 64 reads in flight, and keeps it. `pagecache`: plain buffered
 * reads by the same loader without a cache, in a process whose memory cgroup (version 1 or 2) leaves it that many bytes of
 * page cache besides its own memory; null where no cgroup may be made, and why. For each: samples a second, seconds an epoch,
 * bytes read from the origin in an epoch. `fastest`: larder is faster than both.
 */
#include <signal.h>
#include <sys/prctl.h>

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

/* A process of its own: asked by a byte, it runs epochs and tells samples a second and bytes an epoch. */
struct pages {
    char dir[400];      /* of the cgroup; "": none made */
    const char *limit;  /* the file in it */
    const char *why;    /* not; NULL: it runs */
    pid_t pid;
    int ask, answer;
};

static bool put(const char *dir, const char *file, uint64_t number)
{
    char path[500], text[32];
    int fd, n = snprintf(text, sizeof text, "%" PRIu64, number);

    snprintf(path, sizeof path, "%s/%s", dir, file);
    fd = open(path, O_WRONLY);
    if (fd < 0)
        return false;
    bool ok = write(fd, text, (size_t)n) == n;
    close(fd);
    return ok;
}

/* Our own group of version 1 is the folder to make one in: in a container there may be no other. */
static void own_group(char *path, size_t size)
{
    FILE *f = fopen("/proc/self/cgroup", "r");
    char line[300], *at;

    path[0] = '\0';
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if ((at = strstr(line, ":memory:")))
            snprintf(path, size, "%s", at + strlen(":memory:"));
    }
    if (f)
        fclose(f);
}

static void make_group(struct pages *p)
{
    static const char *const name = "larder-bench-minio_epoch"; /* found again after a run that was killed */
    const char *const tops[3] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    char own[200], file[500];

    own_group(own, sizeof own);
    p->why = "no cgroup file system with a memory controller is mounted";
    for (int i = 0; i < 3; i++) {
        p->limit = i < 2 ? "memory.limit_in_bytes" : "memory.max";
        snprintf(file, sizeof file, "%s%s/%s", tops[i], i == 0 ? own : "", i < 2 ? p->limit : "cgroup.controllers");
        if (access(file, F_OK) != 0)
            continue;
        snprintf(p->dir, sizeof p->dir, "%s%s/%s", tops[i], i == 0 ? own : "", name);
        p->why = "a memory cgroup may not be made here";
        if (mkdir(p->dir, 0777) != 0 && errno != EEXIST)
            continue;
        if (put(p->dir, p->limit, BUDGET + (400u << 20))) {
            p->why = NULL;
            return;
        }
        rmdir(p->dir);
    }
    p->dir[0] = '\0';
}

/* What a line of a file of /proc/self begins to say; 0: nothing. */
static uint64_t proc_number(const char *file, const char *name)
{
    FILE *f = fopen(file, "r");
    char line[200];
    uint64_t v = 0;

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            v = strtoull(line + strlen(name), NULL, 10);
    if (f)
        fclose(f);
    return v;
}

static int forget_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    int fd = flag == FTW_F ? open(path, O_RDONLY) : -1;

    (void)st, (void)ftw;
    if (fd >= 0) {
        fdatasync(fd); /* only clean pages go */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    return 0;
}

/* In the child. Pages that others have brought in are not counted here: they go first. Its own memory comes on top of the limit. */
static void limited(const char *path, const struct pages *p, int ask, int answer)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;
    uint64_t bytes;
    char c;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!put(p->dir, "cgroup.procs", (uint64_t)getpid()))
        _exit(1);
    nftw(path, forget_one, 32, FTW_PHYS);
    o.direct = LARDER_DIRECT_OFF;
    bench_ok(larder_dataset_open(path, &o, &ds, &err), &err);
    load(ds, 0, 1, &bytes);
    load(ds, 1, 1, &bytes);
    if (!put(p->dir, p->limit, BUDGET + proc_number("/proc/self/status", "VmHWM:") * 1024))
        _exit(1);
    for (uint64_t epoch = 2; read(ask, &c, 1) == 1; epoch += EPOCHS) {
        uint64_t before = proc_number("/proc/self/io", "read_bytes:");
        double out[2] = {load(ds, epoch, EPOCHS, &bytes), 0};

        out[1] = (double)(proc_number("/proc/self/io", "read_bytes:") - before) / EPOCHS;
        if (write(answer, out, sizeof out) != sizeof out)
            _exit(1);
    }
    larder_dataset_close(ds);
    _exit(0);
}

/* Before the parent has threads. */
static void pages_start(struct pages *p, const char *path)
{
    int ask[2], answer[2];

    make_group(p);
    if (p->why)
        return;
    if (pipe(ask) != 0 || pipe(answer) != 0 || (p->pid = fork()) < 0)
        bench_die("no process for the page cache: %s", strerror(errno));
    if (p->pid == 0) {
        close(ask[1]);
        close(answer[0]);
        limited(path, p, ask[0], answer[1]);
    }
    close(ask[0]);
    close(answer[1]);
    p->ask = ask[1];
    p->answer = answer[0];
}

static double run_pages(struct pages *p, double *bytes)
{
    double got[2];

    if (p->why)
        return 0;
    if (write(p->ask, "x", 1) != 1 || read(p->answer, got, sizeof got) != sizeof got) {
        p->why = "the process in the cgroup ended: it may not join it, or its memory was not enough";
        return 0;
    }
    *bytes = got[1];
    return got[0];
}

static void pages_stop(struct pages *p)
{
    if (p->pid > 0) {
        close(p->ask);
        close(p->answer);
        waitpid(p->pid, NULL, 0);
    }
    if (p->dir[0])
        rmdir(p->dir);
}

/* ---- */

static void compare(struct ctx *c, struct pages *p)
{
    struct bench_side a, b, pages;
    double page_bytes = 0;
    char more[1000], text[300];

    for (int i = -1; i < ROUNDS; i++) { /* the first does not count */
        double v[3] = {0};

        for (int k = 0; k < 3; k++) {
            int side = (i + 1 + k) % 3;

            v[side] = side == 0 ? run_larder(c) : side == 1 ? run_lru(c) : run_pages(p, &page_bytes);
        }
        if (i >= 0)
            a.v[i] = v[0], b.v[i] = v[1], pages.v[i] = v[2];
    }
    bench_side_sum(&a, ROUNDS);
    bench_side_sum(&b, ROUNDS);
    bench_side_sum(&pages, ROUNDS);
    if (p->why)
        snprintf(text, sizeof text, "\"pagecache\": null, \"pagecache_why\": \"%s\"", p->why);
    else
        snprintf(text, sizeof text, "\"pagecache\": %.6g, \"pagecache_ratio\": %.3f, \"pagecache_epoch_s\": %.4f, \"pagecache_bytes\": %.0f",
                 pages.median, a.median / pages.median, SAMPLES / pages.median, page_bytes);
    snprintf(more, sizeof more, "\"baseline_min\": %.6g, \"baseline_max\": %.6g, \"epoch_s\": %.4f, \"lru_epoch_s\": %.4f, "
             "\"larder_bytes\": %" PRIu64 ", \"lru_bytes\": %" PRIu64 ", \"dataset_bytes\": %" PRIu64 ", %s, \"fastest\": %s",
             b.min, b.max, SAMPLES / a.median, SAMPLES / b.median, c->larder_bytes, c->lru_bytes, (uint64_t)SAMPLES * VALUE, text,
             a.median > b.median && (p->why || a.median > pages.median) ? "true" : "false");
    bench_line("minio_epoch", &a, b.median, "LRU of the same size", a.median / b.median, "samples/s", ROUNDS, more);
}

int main(int argc, char **argv)
{
    static struct ctx c;
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_error err;
    struct pages pages = {0};
    uint64_t bytes;

    if (!bench_wanted(argc, argv, "minio_epoch"))
        return 0;
    c.path = bench_path("minio_epoch.larder");
    if (!bench_is_made(c.path)) {
        make(c.path);
        bench_made(c.path);
    }
    pages_start(&pages, c.path);
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
    compare(&c, &pages);
    pages_stop(&pages);
    larder_dataset_close(c.cached);
    larder_dataset_close(c.plain);
    larder_cache_close(c.cache);
    free(c.slots);
    return 0;
}
