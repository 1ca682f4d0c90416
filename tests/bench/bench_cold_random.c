/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_cold_random.c - a full-shuffle epoch past the page cache against a bare io_uring loop.
 *
 * 12,000 records of 100 to 120 kB (1.3 GB) in 64 MiB shards. larder: a loader with O_DIRECT, opened, read for three epochs and
 * closed again (its staging memory is new each time, as in a job that begins). Baseline: the same extents in the same order at the same depth through one ring of registered files and buffers with O_DIRECT, each
 * record checked by the same CRC32C; it does nothing else: no order, no record table, no batches. The extents are widened
 * to 4 KiB on both sides; bytes are those of the records.
 */
#include "tests/bench/bench.h"

#include <liburing.h>

#include "store/base/base.h"

enum { SAMPLES = 12000, EPOCHS = 3, READS = SAMPLES * EPOCHS, DEPTH = 64, BATCH = 64, ALIGN = 4096, SLOT = 128 << 10 };

struct place {
    uint64_t offset;
    uint32_t shard, len;
};

struct ctx {
    const char *path;
    struct larder_dataset *ds;
    struct place *places; /* [READS], in the order of the epochs */
    int *fds;
    uint64_t n_shards;
    double bytes;         /* of all reads */
    uint32_t crcs; /* of all records, xored: must not change from round to round */
};

static void make(const char *path)
{
    struct larder_field field = {.name = "image", .type = LARDER_BYTES};
    struct larder_writer_options opts = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    uint64_t state = 7;
    uint8_t *value = malloc(SLOT);
    char key[32];

    if (!value)
        bench_die("no memory");
    bench_ok(larder_writer_open(path, &field, 1, &opts, &w, &err), &err);
    for (int i = 0; i < SAMPLES; i++) {
        size_t len = 100000 + bench_rng(&state) % 20000;
        struct larder_value v = {value, len};

        bench_fill(&state, value, len);
        bench_ok(larder_writer_add(w, key, (size_t)sprintf(key, "%08d", i), &v, &err), &err);
    }
    bench_ok(larder_writer_commit(w, NULL, &err), &err);
    free(value);
}

/* The epochs by the loader; places != NULL: note where each record lies. */
static double epochs(struct ctx *c, struct place *places)
{
    struct larder_loader_options opts = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;
    uint64_t n = 0;
    double t = bench_now();
    int rc;

    opts.batch_size = BATCH;
    opts.seed = 1;
    opts.epochs = EPOCHS;
    opts.queue_depth = DEPTH;
    bench_ok(larder_loader_open(c->ds, &opts, &ld, &err), &err);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK || (rc == LARDER_END && n < READS)) {
        if (rc == LARDER_END)
            continue;
        for (uint32_t i = 0; places && i < b->n; i++) {
            struct larder_location loc;

            bench_ok(larder_dataset_locate(c->ds, b->ordinals[i], &loc, &err), &err);
            places[n + i] = (struct place){loc.offset, (uint32_t)loc.shard_no, loc.stored_len};
        }
        n += b->n;
        larder_batch_release(b);
    }
    if (rc != LARDER_END || n != READS)
        bench_die("cold_random: %" PRIu64 " samples delivered: %s", n, rc < 0 ? err.message : "");
    t = bench_now() - t;
    larder_loader_close(ld);
    return c->bytes / t;
}

/* Bytes that this process has had read from the device so far. */
static double device_bytes(void)
{
    FILE *f = fopen("/proc/self/io", "r");
    char line[128];
    double bytes = -1;

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "read_bytes: %lf", &bytes) == 1)
            break;
    if (f)
        fclose(f);
    return bytes;
}

/* Runs one side and makes sure that the page cache had no part in it. */
static double from_device(struct ctx *c, double (*run)(struct ctx *))
{
    double before = device_bytes(), rate = run(c), after = device_bytes();

    if (before >= 0 && after - before < c->bytes)
        bench_die("cold_random: only %.0f of %.0f bytes came from the device: the file system has no O_DIRECT?", after - before,
                  c->bytes);
    return rate;
}

static double epochs_only(struct ctx *c)
{
    return epochs(c, NULL);
}

static double run_larder(void *arg)
{
    return from_device(arg, epochs_only);
}

static void open_files(struct ctx *c)
{
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_error err;

    bench_ok(larder_dataset_info(c->ds, &info, &err), &err);
    c->n_shards = info.shards;
    c->fds = calloc(c->n_shards, sizeof *c->fds);
    if (!c->fds)
        bench_die("no memory");
    for (uint64_t o = 0; o < SAMPLES; o++) {
        struct larder_location loc;
        char path[1024];

        bench_ok(larder_dataset_locate(c->ds, o, &loc, &err), &err);
        c->bytes += (double)loc.stored_len * EPOCHS;
        if (c->fds[loc.shard_no])
            continue;
        snprintf(path, sizeof path, "%s/shards/%s", c->path, loc.shard);
        c->fds[loc.shard_no] = open(path, O_RDONLY | O_DIRECT);
        if (c->fds[loc.shard_no] < 0)
            bench_die("%s: %s", path, strerror(errno));
    }
}

static void submit(struct io_uring *ring, const struct place *p, uint8_t *slot, uint64_t tag)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    uint64_t from = p->offset / ALIGN * ALIGN, to = (p->offset + p->len + ALIGN - 1) / ALIGN * ALIGN;

    io_uring_prep_read_fixed(sqe, (int)p->shard, slot, (unsigned)(to - from), from, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, tag);
}

/* The least that reads and checks these records. */
static double bare(struct ctx *c)
{
    struct io_uring ring;
    struct iovec iov = {NULL, (size_t)DEPTH * SLOT};
    uint32_t in_slot[DEPTH], crcs = 0;
    unsigned next = 0, done = 0; /* of READS */
    double t = bench_now();

    if (posix_memalign(&iov.iov_base, 2 << 20, iov.iov_len) != 0 || io_uring_queue_init(DEPTH, &ring, 0) != 0 ||
        io_uring_register_files(&ring, c->fds, (unsigned)c->n_shards) != 0 || io_uring_register_buffers(&ring, &iov, 1) != 0)
        bench_die("cold_random: io_uring is not available here");
    for (; next < DEPTH; next++) {
        in_slot[next] = next;
        submit(&ring, &c->places[next], (uint8_t *)iov.iov_base + (size_t)next * SLOT, next);
    }
    while (done < READS) {
        struct io_uring_cqe *cqe;
        unsigned head, n = 0;

        io_uring_submit_and_wait(&ring, 1);
        io_uring_for_each_cqe(&ring, head, cqe) {
            uint64_t s = io_uring_cqe_get_data64(cqe);
            const struct place *p = &c->places[in_slot[s]];
            uint8_t *slot = (uint8_t *)iov.iov_base + s * SLOT;

            if (cqe->res < (int)(p->offset % ALIGN + p->len))
                bench_die("cold_random: a read gave %d", cqe->res);
            crcs ^= crc32c(0, slot + p->offset % ALIGN, p->len);
            if (next < READS) {
                in_slot[s] = next;
                submit(&ring, &c->places[next++], slot, s);
            }
            n++;
        }
        io_uring_cq_advance(&ring, n);
        done += n;
    }
    t = bench_now() - t;
    io_uring_queue_exit(&ring);
    free(iov.iov_base);
    if (c->crcs && c->crcs != crcs)
        bench_die("cold_random: bytes changed");
    c->crcs = crcs;
    return c->bytes / t;
}

static double run_bare(void *arg)
{
    return from_device(arg, bare);
}

int main(int argc, char **argv)
{
    struct ctx c = {.path = bench_path("cold_random.larder")};
    struct larder_dataset_options opts = LARDER_DATASET_OPTIONS_INIT;
    struct larder_error err;

    (void)argc, (void)argv;
    if (!bench_is_made(c.path)) {
        make(c.path);
        bench_made(c.path);
        sync();
    }
    c.places = calloc(READS, sizeof *c.places);
    if (!c.places)
        bench_die("no memory");
    opts.direct = LARDER_DIRECT_ON;
    opts.queue_depth = DEPTH;
    bench_ok(larder_dataset_open(c.path, &opts, &c.ds, &err), &err);
    open_files(&c);
    epochs(&c, c.places);
    bench_pair("cold_random", run_larder, run_bare, "bare io_uring O_DIRECT + CRC32C", "B/s", 5, &c,
               "\"depth\": 64, \"samples\": 12000, \"epochs\": 3");
    larder_dataset_close(c.ds);
    for (uint64_t i = 0; i < c.n_shards; i++)
        close(c.fds[i]);
    free(c.fds);
    free(c.places);
    return 0;
}
