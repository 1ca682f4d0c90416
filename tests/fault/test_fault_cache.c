/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault_cache.c - failures below a dataset that is read through DRAM and NVMe.
 *
 * Sweeps: the Nth allocation, system call or thread fails while a cache and a dataset are opened and read for two epochs: an error with
 * its message, or the right bytes; nothing stays open. And single reads of either tier that fail, come short or have wrong bytes,
 * by an I/O table in front of the engine: what NVMe cannot give comes from the origin [tiers I9]; what the origin cannot give
 * is an error of that fetch alone; wrong bytes never come in; no claim is left.
 */
#include "tests/fault/fault.h"

#include "loader/loader_int.h"
#include "tests/unit/dataset.h"
#include "tiers/dram_int.h"
#include "tiers/stack_int.h"

static const struct dataset_spec spec = {60, 20, 20000, 90000, 40, LARDER_COMPRESS_ZSTD}; /* 4 MB */
static const struct dataset_spec plain = {400, 100, 15000, 10000, 40, LARDER_COMPRESS_NONE}; /* 8 MB */

enum { STRIDE_FROM = 150 };

static long stride(long n) { return n < STRIDE_FROM || getenv("LARDER_FULL") ? 1 : 1 + n / 8; }

static int open_both(const char *dir, const char *nvme, uint64_t nvme_bytes, int replacement, struct larder_cache **c,
                     struct larder_dataset **ds, struct larder_error *err)
{
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_cache_nvme n = {nvme, nvme_bytes};
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    static unsigned names;
    char name[64];
    int rc;

    snprintf(name, sizeof(name), "fault-%d-%u", (int)getpid(), names++);
    co.name = name;
    co.dram_bytes = 4 * MIB;
    co.nvme = &n;
    co.n_nvme = 1;
    co.copy_local = 1;
    co.replacement = replacement;
    *ds = NULL;
    rc = larder_cache_open(&co, c, err);
    if (rc) {
        CHECK(*c == NULL);
        return rc;
    }
    o.cache = *c;
    o.direct = LARDER_DIRECT_OFF;
    rc = larder_dataset_open(dir, &o, ds, err);
    if (rc) {
        CHECK(*ds == NULL);
        larder_cache_close(*c);
        *c = NULL;
    }
    return rc;
}

/* ---- sweeps ---- */

/* Sums a digest of every byte over two epochs; *good: the batches were all of them. */
static int epochs(struct larder_dataset *ds, uint64_t *h, struct larder_error *err)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *b;
    struct larder_loader *ld;
    int rc;

    o.batch_size = 16;
    o.epochs = 2;
    o.staging_bytes = 4 << 20;
    rc = larder_loader_open(ds, &o, &ld, err);
    if (rc)
        return rc;
    for (int e = 0; e < 2; e++) {
        while ((rc = larder_loader_next(ld, &b, err)) == 0) {
            for (uint32_t i = 0; i < b->n * b->n_fields; i++)
                *h += larder_hash64(b->ordinals[i / b->n_fields], b->values[i].data, b->values[i].len);
            larder_batch_release(b);
        }
        if (rc != LARDER_END)
            break;
    }
    larder_loader_close(ld);
    return rc == LARDER_END ? 0 : rc;
}

static int operation(const char *dir, const char *nvme, uint64_t *h, struct larder_error *err)
{
    struct larder_cache *c;
    struct larder_dataset *ds;
    int rc = open_both(dir, nvme, 6 * MIB, LARDER_REPLACE_FIFO, &c, &ds, err);

    *h = 0;
    if (rc)
        return rc;
    rc = epochs(ds, h, err);
    larder_dataset_close(ds);
    larder_cache_close(c);
    return rc;
}

static void sweep(enum fault_kind kind)
{
    const char *dir = dataset_make(&spec);
    uint64_t want = 0, have = 0;
    struct larder_error err;
    char nvme[160];
    long n;
    int rc = 0;

    snprintf(nvme, sizeof(nvme), "%s/nvme", tmp_dir());
    REQUIRE_OK(operation(dir, nvme, &want, &err), &err);
    for (n = 1; n < 200000; n += stride(n)) {
        int fds = open_fds();

        memset(&err, 0, sizeof(err));
        fault_arm(kind, n);
        rc = operation(dir, nvme, &have, &err);
        bool hit = fault_disarm();
        CHECK_EQ(open_fds(), fds);
        if (rc == 0)
            CHECK_EQ(have, want);
        else
            CHECK(hit && rc < 0 && rc == err.code && err.message[0] != '\0' && kind != FAULT_SHORT);
        if (!hit)
            break;
    }
    CHECK(n < 200000);
    CHECK_OK(rc, &err);
}

TEST(allocations) { sweep(FAULT_ALLOC); }
TEST(system_calls) { sweep(FAULT_IO); }
TEST(short_transfers) { sweep(FAULT_SHORT); }
TEST(threads) { sweep(FAULT_THREAD); }

/* ---- reads that fail ---- */

enum kind { WELL, FAILS, SHORT, ENDS, FLIPPED, AGAIN, KINDS };

struct flaky {
    struct engine engine, *real;
    uint64_t state;
    unsigned one_in[2];   /* of the origin's reads, of NVMe's: 0: none goes wrong */
    unsigned done[2][KINDS];
    bool worst;           /* also what cannot be mended: not SHORT and AGAIN alone */
};

static bool of_nvme(int fd)
{
    char link[64], path[300];
    ssize_t n;

    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof(path) - 1);
    path[n > 0 ? n : 0] = '\0';
    return strstr(path, "/seg-") != NULL;
}

static void spoil(struct flaky *y, struct read_op *op)
{
    bool nvme = of_nvme(op->fd);
    enum kind kind = WELL;

    if (y->one_in[nvme] && op->result > 0 && rng_below(&y->state, y->one_in[nvme]) == 0)
        kind = 1 + rng_below(&y->state, KINDS - 1);
    if (!y->worst && kind != WELL)
        kind = kind % 2 ? SHORT : AGAIN;
    y->done[nvme][kind]++;
    switch (kind) {
    case FAILS: op->result = -EIO; break;
    case SHORT: /* direct reads come in whole blocks */
        op->result = nvme ? (int32_t)MIN((uint32_t)op->result, TIERS_ALIGN) : (int32_t)(1 + rng_below(&y->state, (uint64_t)op->result));
        break;
    case ENDS: op->result = 0; break;
    case FLIPPED: ((uint8_t *)op->buf)[rng_below(&y->state, (uint64_t)op->result)] ^= 0x10; break;
    case AGAIN: op->result = rng_below(&y->state, 2) ? -EINTR : -EAGAIN; break;
    default: break;
    }
}

#define REAL(e) ((struct flaky *)(e))->real
static void flaky_add(struct engine *e, struct read_op *op) { REAL(e)->ops->add(REAL(e), op); }
static void flaky_flush(struct engine *e) { REAL(e)->ops->flush(REAL(e)); }
static unsigned flaky_reap(struct engine *e, bool wait, struct read_op **done, unsigned max)
{
    unsigned n = REAL(e)->ops->reap(REAL(e), wait, done, max);

    for (unsigned i = 0; i < n; i++)
        spoil((struct flaky *)e, done[i]);
    return n;
}
static void flaky_register(struct engine *e, void *m, size_t len) { REAL(e)->ops->register_memory(REAL(e), m, len); }
static void flaky_close(struct engine *e, bool forked) { REAL(e)->ops->close(REAL(e), forked); }
static const struct engine_ops flaky_ops = {.name = "flaky", .add = flaky_add, .flush = flaky_flush, .reap = flaky_reap,
                                            .register_memory = flaky_register, .close = flaky_close};

struct through {
    struct larder_cache *c;
    struct larder_dataset *ds;
    struct tiers_queue *q;
    struct tiers_fetch *f;
    struct decoder *decoder;
    struct flaky y;
    uint8_t *memory;
    size_t cap;
};

static void begin(struct through *w, const char *dir, int replacement)
{
    struct larder_error err;
    char nvme[160];

    snprintf(nvme, sizeof(nvme), "%s/nvme", tmp_dir());
    REQUIRE_OK(open_both(dir, nvme, replacement ? 6 * MIB : 32 * MIB, replacement, &w->c, &w->ds, &err), &err);
    REQUIRE_OK(tiers_queue_open(w->ds->tiers, 8, &w->q, &err), &err);
    REQUIRE_OK(tiers_fetch_new(w->ds->tiers, &w->f, &err), &err);
    REQUIRE_OK(decoder_new(&w->decoder, &err), &err);
    w->y.engine.ops = &flaky_ops;
    w->y.real = *tiers_queue_engine(w->q);
    *tiers_queue_engine(w->q) = &w->y.engine;
}

static void finish(struct through *w)
{
    const struct dram *d = cache_of(w->c)->dram;

    for (uint32_t i = 0; i < d->h->claim_sets; i++)
        for (int k = 0; k < CLAIM_WAYS; k++)
            CHECK_EQ(atomic_load(&d->claims[i].claim[k]), 0);
    CHECK_EQ(atomic_load(&w->ds->tiers->bound->coming), 0);
    tiers_queue_close(w->q);
    tiers_fetch_free(w->f);
    decoder_free(w->decoder);
    free(w->memory);
    larder_dataset_close(w->ds);
    larder_cache_close(w->c);
}

/* Reads a batch; counts the records that are right and those that store_decode refuses. The code of the fetch. */
static int read_batch(struct through *w, const uint64_t *ordinals, size_t n, unsigned *right, unsigned *refused)
{
    struct tiers_fetch *f;
    struct larder_error err;
    size_t bytes;
    void *tag;

    REQUIRE_OK(tiers_fetch_plan(w->f, ordinals, n, &bytes, &err), &err);
    if (bytes > w->cap || !w->memory) {
        free(w->memory);
        w->cap = round_up(bytes + 1, TIERS_ALIGN);
        w->memory = aligned_alloc(TIERS_ALIGN, w->cap);
    }
    REQUIRE_OK(tiers_fetch_start(w->q, w->f, w->memory, NULL, &err), &err);
    int rc = tiers_queue_next(w->q, true, &f, &tag, &err);
    REQUIRE(f == w->f);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct larder_value v[F_COUNT];
        int decoded = store_decode(w->ds->store, w->decoder, tiers_fetch_extent(f, i), tiers_fetch_record(f, i), NULL, v, &err);

        if (decoded)
            CHECK_ERR(decoded, LARDER_ECORRUPT, &err);
        else
            CHECK(sample_is(&plain, ordinals[i], v));
        *right += decoded == 0;
        *refused += decoded != 0;
    }
    if (rc)
        CHECK(rc == LARDER_EIO || rc == LARDER_ECORRUPT);
    return rc;
}

static unsigned draw(uint64_t *state, uint64_t *ordinals)
{
    uint64_t first = rng_below(state, plain.n), step = 1 + rng_below(state, 13);
    unsigned n = 1 + (unsigned)rng_below(state, 24); /* 24 * 13 < n: each once */

    for (unsigned i = 0; i < n; i++)
        ordinals[i] = (first + i * step) % plain.n;
    return n;
}

/* rounds of random batches; what failed and what was refused. */
static void rounds(struct through *w, unsigned count, unsigned *failed, unsigned *refused)
{
    uint64_t ordinals[24];
    unsigned right = 0;

    *failed = *refused = 0;
    for (unsigned i = 0; i < count; i++) {
        unsigned n = draw(&w->y.state, ordinals), before = right + *refused;

        if (read_batch(w, ordinals, n, &right, refused))
            ++*failed;
        else
            CHECK_EQ(right + *refused, before + n);
        if (i % 8 == 0)
            nvme_flush(w->ds->tiers->bound->nvme[0]);
    }
}

static void flaky_tiers(int replacement)
{
    static const char *dir;
    struct larder_cache_stats s = {.struct_size = sizeof(s)};
    struct through w = {.y.state = 77 + (uint64_t)replacement};
    struct larder_error err;
    unsigned failed, refused;

    if (!dir)
        dir = dataset_make(&plain);
    begin(&w, dir, replacement);
    w.y.one_in[0] = w.y.one_in[1] = 5; /* what can be gone on from */
    rounds(&w, 150, &failed, &refused);
    CHECK(failed == 0 && refused == 0);
    CHECK(w.y.done[0][SHORT] > 5 && w.y.done[0][AGAIN] > 5 && w.y.done[1][SHORT] > 5 && w.y.done[1][AGAIN] > 5);
    CHECK_OK(larder_cache_stats(w.c, &s, &err), &err);
    CHECK_EQ(s.nvme.healed, 0);

    w.y.worst = true;
    w.y.one_in[0] = 0, w.y.one_in[1] = 3; /* NVMe: mended by the origin */
    rounds(&w, 300, &failed, &refused);
    CHECK(failed == 0 && refused == 0);
    CHECK(w.y.done[1][FAILS] > 5 && w.y.done[1][ENDS] > 5 && w.y.done[1][FLIPPED] > 5);
    CHECK_OK(larder_cache_stats(w.c, &s, &err), &err);
    CHECK(s.nvme.healed > 20);

    w.y.one_in[0] = 3, w.y.one_in[1] = 4; /* both: errors, of those that meet them */
    rounds(&w, 300, &failed, &refused);
    CHECK(failed > 5);
    CHECK(w.y.done[0][FAILS] > 5 && w.y.done[0][FLIPPED] > 5);

    w.y.one_in[0] = w.y.one_in[1] = 0; /* well again: nothing wrong has come in */
    rounds(&w, 200, &failed, &refused);
    CHECK(failed == 0 && refused == 0);
    finish(&w);
}

TEST(flaky_reads) { flaky_tiers(LARDER_REPLACE_NONE); }
TEST(flaky_reads_fifo) { flaky_tiers(LARDER_REPLACE_FIFO); }

TEST_MAIN();
