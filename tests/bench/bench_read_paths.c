/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_read_paths.c - the ways tiers reads, below records and batches: what its README's decisions rest on.
 *
 * warm_2500/io_uring, warm_2500/pread: 256 random 2.5 kB extents a tiers_read, planned each time, all in the page cache, one
 * thread; baseline: a pread each.
 * cold_110000/io_uring, cold_110000/pread: random 110 kB extents through one queue of depth 64, page cache emptied of them,
 * buffered; baseline: one ring of depth 64 that copies inside io_uring_enter.
 */
#include "tests/bench/bench.h"

#include <liburing.h>

#include "tiers/tiers_int.h"

enum { FILES = 8, FILE_MIB = 64, BATCH = 256, WARM_BATCHES = 200, COLD = 2048, COLD_BATCH = 64, DEPTH = 64, COLD_LEN = 110000,
       WARM_LEN = 2500, SLOT = 112 << 10 };

struct ctx {
    const char *dir;
    struct shard_ref refs[FILES];
    int fds[FILES];
    struct tiers *t;
    uint64_t seed;
    uint8_t *memory;
    size_t memory_len;
};

static void make(const char *dir)
{
    uint8_t *block = malloc(MIB);
    uint64_t state = 3;
    if (!block || (mkdir(dir, 0777) != 0 && errno != EEXIST))
        bench_die("%s: %s", dir, strerror(errno));
    for (int i = 0; i < FILES; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/s%d", dir, i);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        for (int k = 0; k < FILE_MIB; k++) {
            bench_fill(&state, block, MIB);
            if (fd < 0 || write(fd, block, MIB) != (ssize_t)MIB)
                bench_die("%s: %s", path, strerror(errno));
        }
        fsync(fd);
        close(fd);
    }
    free(block);
}

static struct extent draw(uint64_t *state, uint32_t len)
{
    struct extent e = {.shard = (uint32_t)(bench_rng(state) % FILES), .stored_len = len};
    e.offset = bench_rng(state) % (FILE_MIB * MIB - len);
    return e;
}

static void plan(struct ctx *c, struct tiers_fetch *f, const struct extent *e, size_t n, size_t room)
{
    struct larder_error err;
    size_t bytes;
    (void)c;
    bench_ok(tiers_fetch_plan_ranges(f, e, NULL, n, &bytes, &err), &err);
    if (bytes > room)
        bench_die("read_paths: %zu bytes planned", bytes);
}

static double warm_tiers(void *arg)
{
    struct ctx *c = arg;
    struct extent e[BATCH];
    struct tiers_fetch *f;
    struct larder_error err;
    uint64_t state = c->seed++ / 2;
    bench_ok(tiers_fetch_new(c->t, &f, &err), &err);
    double t = bench_now();
    for (int b = 0; b < WARM_BATCHES; b++) {
        for (int i = 0; i < BATCH; i++)
            e[i] = draw(&state, WARM_LEN);
        plan(c, f, e, BATCH, c->memory_len);
        bench_ok(tiers_read(c->t, f, c->memory, &err), &err);
    }
    t = bench_now() - t;
    tiers_fetch_free(f);
    return WARM_BATCHES * BATCH / t;
}

static double warm_bare(void *arg)
{
    struct ctx *c = arg;
    uint64_t state = c->seed++ / 2;
    double t = bench_now();
    for (int b = 0; b < WARM_BATCHES; b++) {
        for (int i = 0; i < BATCH; i++) {
            struct extent e = draw(&state, WARM_LEN);
            if (pread(c->fds[e.shard], c->memory + i * 2560, WARM_LEN, (off_t)e.offset) != WARM_LEN)
                bench_die("read_paths: pread: %s", strerror(errno));
        }
    }
    return WARM_BATCHES * BATCH / (bench_now() - t);
}

static void cool(struct ctx *c)
{
    for (int i = 0; i < FILES; i++)
        posix_fadvise(c->fds[i], 0, 0, POSIX_FADV_DONTNEED);
}

static double cold_tiers(void *arg)
{
    struct ctx *c = arg;
    struct extent e[COLD_BATCH];
    struct tiers_queue *q;
    struct tiers_fetch *f[4], *done;
    struct larder_error err;
    uint64_t state = c->seed++ / 2;
    size_t part = c->memory_len / 4;
    int started = 0;
    void *tag;
    cool(c);
    bench_ok(tiers_queue_open(c->t, DEPTH, &q, &err), &err);
    double t = bench_now();
    for (int finished = -4; finished < COLD / COLD_BATCH; finished++) {
        uint8_t *memory = c->memory + (finished + 4) * part;
        if (finished < 0) {
            bench_ok(tiers_fetch_new(c->t, &f[started], &err), &err);
            done = f[started];
        } else {
            bench_ok(tiers_queue_next(q, true, &done, &tag, &err), &err);
            memory = tag;
        }
        if (started++ >= COLD / COLD_BATCH)
            continue;
        for (int i = 0; i < COLD_BATCH; i++)
            e[i] = draw(&state, COLD_LEN);
        plan(c, done, e, COLD_BATCH, part);
        bench_ok(tiers_fetch_start(q, done, memory, memory, &err), &err);
    }
    t = bench_now() - t;
    tiers_queue_close(q);
    for (int i = 0; i < 4; i++)
        tiers_fetch_free(f[i]);
    return (double)COLD * COLD_LEN / t;
}

static double cold_bare(void *arg)
{
    struct ctx *c = arg;
    struct io_uring ring;
    uint64_t state = c->seed++ / 2;
    unsigned sent = 0, done = 0, n_free = DEPTH;
    uint64_t unused[DEPTH];
    cool(c);
    for (unsigned i = 0; i < DEPTH; i++)
        unused[i] = i;
    double t = bench_now();
    if (io_uring_queue_init(DEPTH, &ring, 0) != 0)
        bench_die("read_paths: io_uring is not available here");
    while (done < COLD) {
        struct io_uring_cqe *cqe;
        unsigned head, n = 0;
        for (; n_free && sent < COLD; sent++) {
            struct extent e = draw(&state, COLD_LEN);
            struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
            uint64_t slot = unused[--n_free];
            io_uring_prep_read(sqe, c->fds[e.shard], c->memory + slot * SLOT, COLD_LEN, e.offset);
            io_uring_sqe_set_data64(sqe, slot);
        }
        io_uring_submit_and_wait(&ring, 1);
        io_uring_for_each_cqe(&ring, head, cqe) {
            if (cqe->res != COLD_LEN)
                bench_die("read_paths: a read gave %d", cqe->res);
            unused[n_free++] = io_uring_cqe_get_data64(cqe);
            n++;
        }
        io_uring_cq_advance(&ring, n);
        done += n;
    }
    t = bench_now() - t;
    io_uring_queue_exit(&ring);
    return (double)COLD * COLD_LEN / t;
}

static void run(struct ctx *c, int argc, char **argv, const char *name, const char *no_uring, bool cold)
{
    struct tiers_options o = {.queue_depth = DEPTH, .direct = LARDER_DIRECT_OFF};
    struct larder_error err;
    if (!bench_wanted(argc, argv, name))
        return;
    setenv("LARDER_NO_URING", no_uring, 1);
    bench_ok(tiers_open_files(c->dir, c->refs, FILES, &o, &c->t, &err), &err);
    if (cold)
        bench_pair(name, cold_tiers, cold_bare, "one ring, plain reads", "B/s", 5, c, "\"depth\": 64");
    else
        bench_pair(name, warm_tiers, warm_bare, "a pread each", "1/s", 7, c, "\"batch\": 256");
    tiers_close(c->t);
}

int main(int argc, char **argv)
{
    struct ctx c = {.dir = bench_path("read_paths"), .memory_len = 4 * COLD_BATCH * (COLD_LEN + 8192)};
    char names[FILES][8];
    if (!bench_is_made(c.dir)) {
        make(c.dir);
        bench_made(c.dir);
    }
    c.memory_len = round_up(c.memory_len, 4 * 4096);
    if (posix_memalign((void **)&c.memory, 2 * MIB, c.memory_len) != 0)
        bench_die("no memory");
    memset(c.memory, 1, c.memory_len);
    for (int i = 0; i < FILES; i++) {
        char path[600];
        snprintf(names[i], sizeof names[i], "s%d", i);
        snprintf(path, sizeof path, "%s/%s", c.dir, names[i]);
        c.refs[i] = (struct shard_ref){.name = names[i], .size = FILE_MIB * MIB};
        c.fds[i] = open(path, O_RDONLY);
        posix_fadvise(c.fds[i], 0, 0, POSIX_FADV_RANDOM);
        for (int k = 0; k < FILE_MIB; k += 16) /* into the page cache */
            if (pread(c.fds[i], c.memory, 16 * MIB, (off_t)k << 20) != (ssize_t)(16 * MIB))
                bench_die("%s: %s", path, strerror(errno));
    }
    run(&c, argc, argv, "read_paths/warm_2500/io_uring", "0", false);
    run(&c, argc, argv, "read_paths/warm_2500/pread", "1", false);
    run(&c, argc, argv, "read_paths/cold_110000/io_uring", "0", true);
    run(&c, argc, argv, "read_paths/cold_110000/pread", "1", true);
    for (int i = 0; i < FILES; i++)
        close(c.fds[i]);
    free(c.memory);
    return 0;
}
