/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -luring */
/*
 * nvme_read/110000, nvme_read/4000: random reads of records of that size out of an NVMe cache (lookup in the map, a read in
 * flight by the engine of tiers/, header and CRC checked), 64 at a time, against a bare io_uring loop that knows where the
 * bytes are, reads the same pages with O_DIRECT into registered memory from registered files, and does nothing but their
 * CRC32C. cpu_ratio: larder's CPU time by the loop's, smaller is better. The directory is the warm start of an earlier run.
 */
#include <liburing.h>
#include <sys/resource.h>

#include "tests/bench/bench.h"
#include "tiers/nvme_int.h"

enum { DEPTH = 64, ROUNDS = 7 };

struct ctx {
    const char *name;
    uint32_t len;       /* of every record */
    uint64_t records, reads;
    uint32_t slot;      /* memory of one read */
    struct nvme *n;
    uint32_t space;
    uint64_t *order;    /* [reads] */
    double cpu[2];      /* seconds, of all rounds */
    uint32_t crcs;
};

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

static void fill_cache(struct ctx *c)
{
    uint8_t *bytes = malloc(c->len + 8);
    struct nvme_stats st;
    if (!bytes)
        bench_die("no memory");
    for (uint64_t i = 0; i < c->records; i++) {
        struct nvme_place at;
        uint64_t state = i;
        if (nvme_lookup(c->n, c->space, i, &at))
            continue;
        bench_fill(&state, bytes, c->len);
        struct cached r = {bytes, c->len, c->len, crc32c(0, bytes, c->len), 0};
        while (nvme_admit(c->n, c->space, i, &r) != LARDER_OK) {
            if (nvme_closed(c->n, c->space))
                bench_die("%s: the cache is full", c->name);
            nvme_flush(c->n);
        }
    }
    nvme_flush(c->n);
    nvme_stats(c->n, &st);
    if (st.entries != c->records || st.warning)
        bench_die("%s: %" PRIu64 " entries: %s", c->name, st.entries, st.warning ? st.warning : "");
    free(bytes);
}

/* ---- larder ---- */

struct read { struct read_op op; uint64_t ordinal; struct nvme_place at; };

static void begin(struct ctx *c, struct engine *e, struct read *r, uint64_t ordinal)
{
    r->ordinal = ordinal;
    if (!nvme_lookup(c->n, c->space, ordinal, &r->at))
        bench_die("%s: record %" PRIu64 " is missing", c->name, ordinal);
    r->op.fd = r->at.fd;
    r->op.offset = r->at.offset;
    r->op.len = r->at.len;
    e->ops->add(e, &r->op);
}

static double run_larder(void *arg)
{
    struct ctx *c = arg;
    struct read *reads = calloc(DEPTH, sizeof *reads);
    struct read_op *done[DEPTH];
    struct larder_error err;
    struct engine *e;
    struct cached hit;
    uint64_t next = 0, finished = 0;
    uint32_t crcs = 0;
    void *memory;
    double cpu = cpu_seconds(), t = bench_now();
    if (!reads || posix_memalign(&memory, 2 << 20, (size_t)DEPTH * c->slot) != 0)
        bench_die("no memory");
    bench_ok(uring_open(DEPTH, &e, &err), &err);
    e->ops->register_memory(e, memory, (size_t)DEPTH * c->slot);
    for (; next < DEPTH; next++) {
        reads[next].op.buf = (uint8_t *)memory + next * c->slot;
        begin(c, e, &reads[next], c->order[next]);
    }
    while (finished < c->reads) {
        unsigned k = e->ops->reap(e, true, done, DEPTH);
        for (unsigned i = 0; i < k; i++) {
            struct read *r = (struct read *)done[i];
            if (r->op.result != (int32_t)r->op.len || !nvme_check(c->n, c->space, r->ordinal, &r->at, r->op.buf, &hit))
                bench_die("%s: a read gave %d, or other bytes", c->name, r->op.result);
            crcs ^= hit.crc;
            if (next < c->reads)
                begin(c, e, r, c->order[next++]);
        }
        finished += k;
    }
    t = bench_now() - t;
    c->cpu[0] += cpu_seconds() - cpu;
    e->ops->close(e, false);
    free(memory);
    free(reads);
    if (c->crcs && crcs != c->crcs)
        bench_die("%s: bytes changed", c->name);
    c->crcs = crcs;
    return (double)c->reads * c->len / t;
}

/* ---- bare ---- */

static void submit(struct ctx *c, struct io_uring *ring, const struct nvme_place *p, uint8_t *slot, uint64_t tag)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    (void)c;
    io_uring_prep_read_fixed(sqe, (int)p->segment, slot, p->len, p->offset, 0);
    sqe->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(sqe, tag);
}

static double run_bare(void *arg)
{
    struct ctx *c = arg;
    struct nvme_place *places = calloc(c->reads, sizeof *places);
    int fds[NVME_SEGMENTS_MAX];
    unsigned n_fds = 0;
    struct io_uring ring;
    struct iovec iov = {NULL, (size_t)DEPTH * c->slot};
    uint64_t in_slot[DEPTH], next = 0, finished = 0;
    uint32_t crcs = 0;
    if (!places || posix_memalign(&iov.iov_base, 2 << 20, iov.iov_len) != 0)
        bench_die("no memory");
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        fds[i] = -1;
    for (uint64_t i = 0; i < c->reads; i++) { /* it knows where the bytes are */
        nvme_lookup(c->n, c->space, c->order[i], &places[i]);
        fds[places[i].segment] = places[i].fd;
        n_fds = n_fds > places[i].segment + 1 ? n_fds : places[i].segment + 1;
    }
    double cpu = cpu_seconds(), t = bench_now();
    if (io_uring_queue_init(DEPTH, &ring, 0) != 0 || io_uring_register_files(&ring, fds, n_fds) != 0 ||
        io_uring_register_buffers(&ring, &iov, 1) != 0)
        bench_die("%s: io_uring is not available here", c->name);
    for (; next < DEPTH; next++) {
        in_slot[next] = next;
        submit(c, &ring, &places[next], (uint8_t *)iov.iov_base + next * c->slot, next);
    }
    while (finished < c->reads) {
        struct io_uring_cqe *cqe;
        unsigned head, k = 0;
        io_uring_submit_and_wait(&ring, 1);
        io_uring_for_each_cqe(&ring, head, cqe) {
            uint64_t s = io_uring_cqe_get_data64(cqe);
            const struct nvme_place *p = &places[in_slot[s]];
            uint8_t *slot = (uint8_t *)iov.iov_base + s * c->slot;
            if (cqe->res != (int)p->len)
                bench_die("%s: a bare read gave %d", c->name, cqe->res);
            crcs ^= crc32c(0, slot + p->skip + NVME_UNIT, c->len);
            if (next < c->reads) {
                in_slot[s] = next;
                submit(c, &ring, &places[next++], slot, s);
            }
            k++;
        }
        io_uring_cq_advance(&ring, k);
        finished += k;
    }
    t = bench_now() - t;
    c->cpu[1] += cpu_seconds() - cpu;
    io_uring_queue_exit(&ring);
    free(iov.iov_base);
    free(places);
    if (c->crcs && crcs != c->crcs)
        bench_die("%s: bytes changed", c->name);
    c->crcs = crcs;
    return (double)c->reads * c->len / t;
}

/* bench_pair, with the CPU time of both in the line. */
static void run_case(const char *name, uint32_t len, uint64_t records, uint64_t reads)
{
    struct ctx c = {.name = name, .len = len, .records = records, .reads = reads};
    struct cache_space space = {{'b', 'e', 'n', 'c', 'h'}, {0}, len};
    struct bench_side a, b;
    struct larder_error err;
    char dir[32], more[256];
    uint64_t state = 7;
    snprintf(dir, sizeof dir, "nvme_read.%u", len);
    struct nvme_options o = {bench_path(dir), records * (len + 4096) + 200 * MIB, REPLACE_NONE, true, NULL};
    bench_ok(nvme_open(&o, &c.n, &err), &err);
    bench_ok(nvme_space(c.n, &space, &c.space, &err), &err);
    fill_cache(&c);
    if (!nvme_direct(c.n))
        bench_die("%s: the file system has no O_DIRECT", name);
    c.slot = (uint32_t)round_up(len + NVME_UNIT, NVME_PAGE) + NVME_PAGE;
    c.order = calloc(reads, sizeof *c.order);
    if (!c.order)
        bench_die("no memory");
    for (uint64_t i = 0; i < reads; i++)
        c.order[i] = bench_rng(&state) % records;
    run_larder(&c);
    run_bare(&c);
    c.cpu[0] = c.cpu[1] = 0;
    for (int i = 0; i < ROUNDS; i++) {
        if (i & 1)
            b.v[i] = run_bare(&c);
        a.v[i] = run_larder(&c);
        if (!(i & 1))
            b.v[i] = run_bare(&c);
    }
    bench_side_sum(&a, ROUNDS);
    bench_side_sum(&b, ROUNDS);
    snprintf(more, sizeof more,
             "\"baseline_min\": %.6g, \"baseline_max\": %.6g, \"cpu_ratio\": %.3f, \"depth\": %d, \"records\": %" PRIu64 ", \"reads\": %" PRIu64,
             b.min, b.max, c.cpu[0] / c.cpu[1], DEPTH, records, reads);
    bench_line(name, &a, b.median, "bare io_uring O_DIRECT + CRC32C", a.median / b.median, "B/s", ROUNDS, more);
    nvme_close(c.n);
    free(c.order);
}

int main(int argc, char **argv)
{
    if (bench_wanted(argc, argv, "nvme_read/110000"))
        run_case("nvme_read/110000", 110000, 12000, 12000);
    if (bench_wanted(argc, argv, "nvme_read/4000"))
        run_case("nvme_read/4000", 4000, 150000, 100000);
    return 0;
}
