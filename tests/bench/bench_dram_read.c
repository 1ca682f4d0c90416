/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -llmdb */
/*
 * bench_dram_read.c - random warm reads out of the arena against LMDB.
 *
 * One thread, batches of 256 random ordinals, each cache line of each record touched. larder: dram_lookup; LMDB: mdb_get in one
 * read transaction a batch, keys of 8 bytes, filled in key order, no sync. "share_of_memcpy" compares larder with a loop
 * that only reads the same number of records, of the same size, at random places of one array.
 */
#include <lmdb.h>
#include <sys/mman.h>

#include "tests/bench/bench.h"
#include "tiers/cache_int.h"

enum { BATCH = 256 };

struct ctx {
    uint32_t size, count, batches;
    struct share *share;
    struct dram *dram;
    uint32_t space;
    MDB_env *env;
    MDB_dbi dbi;
    uint8_t *array;
    uint64_t seed, sum;
};

static uint64_t touch(const uint8_t *data, size_t len)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < len; i += 64)
        sum += data[i];
    return sum + data[len - 1];
}

static int lay_out(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    (void)user;
    return dram_init(base, bytes, REPLACE_NONE, err);
}

static void lmdb_ok(int rc)
{
    if (rc != 0)
        bench_die("lmdb: %s", mdb_strerror(rc));
}

static void fill(struct ctx *c, const char *path)
{
    uint64_t budget = (uint64_t)c->count * (c->size + 40) + (16u << 20), state = 1;
    struct share_options o = {.bytes = dram_region_bytes(budget), .init = lay_out};
    struct cache_space space = {.variant = 1};
    struct larder_error err;
    uint8_t *value = malloc(c->size + 8);
    MDB_txn *txn = NULL;

    bench_ok(share_open(&o, &c->share, &err), &err);
    bench_ok(dram_open(c->share, &c->dram, &err), &err);
    bench_ok(dram_space(c->dram, &space, &c->space, &err), &err);
    c->array = mmap(NULL, (size_t)c->count * c->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(c->array, (size_t)c->count * c->size, MADV_HUGEPAGE);
    mkdir(path, 0777);
    lmdb_ok(mdb_env_create(&c->env));
    lmdb_ok(mdb_env_set_mapsize(c->env, (size_t)8 << 30));
    lmdb_ok(mdb_env_open(c->env, path, MDB_NOSYNC | MDB_WRITEMAP, 0644));
    lmdb_ok(mdb_txn_begin(c->env, NULL, 0, &txn));
    lmdb_ok(mdb_dbi_open(txn, NULL, MDB_INTEGERKEY, &c->dbi));
    for (uint64_t i = 0; i < c->count; i++) {
        MDB_val k = {sizeof i, &i}, v = {c->size, value};
        struct cached r = {value, c->size, c->size, (uint32_t)i, 0};

        bench_fill(&state, value, c->size);
        memcpy(c->array + i * c->size, value, c->size);
        lmdb_ok(mdb_put(txn, c->dbi, &k, &v, MDB_APPEND));
        if (dram_admit(c->dram, c->space, i, &r, NULL) != LARDER_OK)
            bench_die("the arena is full at %" PRIu64, i);
    }
    lmdb_ok(mdb_txn_commit(txn));
    free(value);
}

static double run_larder(void *arg)
{
    struct ctx *c = arg;
    uint64_t state = ++c->seed, ordinals[BATCH], sum = 0;
    struct cached hits[BATCH];
    double from = bench_now();

    for (uint32_t b = 0; b < c->batches; b++) {
        for (int i = 0; i < BATCH; i++)
            ordinals[i] = bench_rng(&state) % c->count;
        if (dram_lookup(c->dram, c->space, ordinals, BATCH, hits, NULL, NULL) != BATCH)
            bench_die("a miss");
        for (int i = 0; i < BATCH; i++)
            sum += touch(hits[i].bytes, hits[i].stored_len);
    }
    c->sum += sum;
    return (double)c->batches * BATCH / (bench_now() - from);
}

static double run_array(void *arg)
{
    struct ctx *c = arg;
    uint64_t state = ++c->seed, sum = 0;
    double from = bench_now();

    for (uint32_t b = 0; b < c->batches; b++) {
        for (int i = 0; i < BATCH; i++)
            sum += touch(c->array + bench_rng(&state) % c->count * c->size, c->size);
    }
    c->sum += sum;
    return (double)c->batches * BATCH / (bench_now() - from);
}

static double run_lmdb(void *arg)
{
    struct ctx *c = arg;
    uint32_t batches = c->size < 1000 ? c->batches / 16 : c->batches;
    uint64_t state = ++c->seed, sum = 0;
    double from = bench_now();

    for (uint32_t b = 0; b < batches; b++) {
        MDB_txn *txn;

        lmdb_ok(mdb_txn_begin(c->env, NULL, MDB_RDONLY, &txn));
        for (int i = 0; i < BATCH; i++) {
            uint64_t n = bench_rng(&state) % c->count;
            MDB_val k = {sizeof n, &n}, v;

            lmdb_ok(mdb_get(txn, c->dbi, &k, &v));
            sum += touch(v.mv_data, v.mv_size);
        }
        mdb_txn_abort(txn);
    }
    c->sum += sum;
    return (double)batches * BATCH / (bench_now() - from);
}

static void run_case(int argc, char **argv, uint32_t size, uint32_t count, uint32_t batches)
{
    struct ctx c = {.size = size, .count = count, .batches = batches};
    struct dram_stats st;
    char name[64], more[256];
    double array[5];
    const char *path;

    snprintf(name, sizeof name, "dram_read/%u", size);
    if (!bench_wanted(argc, argv, name))
        return;
    path = bench_path("dram_read.lmdb");
    bench_rm(path);
    fill(&c, path);
    dram_stats(c.dram, &st);
    run_larder(&c);
    double larder[5];
    for (int i = 0; i < 5; i++) {
        larder[i] = run_larder(&c);
        array[i] = run_array(&c);
    }
    snprintf(more, sizeof more, "\"share_of_memcpy\": %.3f, \"bookkeeping_per_sample\": %.2f, \"collapsed_mib\": %" PRIu64,
             bench_median(larder, 5) / bench_median(array, 5), (double)st.bookkeeping / (double)st.entries, st.collapsed >> 20);
    bench_pair(name, run_larder, run_lmdb, "lmdb", "1/s", 7, &c, more);
    mdb_env_close(c.env);
    bench_rm(path);
    munmap(c.array, (size_t)c.count * c.size);
    dram_close(c.dram);
    share_close(c.share);
}

int main(int argc, char **argv)
{
    run_case(argc, argv, 128, 4000000, 16000);
    run_case(argc, argv, 2500, 400000, 4000);
    run_case(argc, argv, 110000, 12000, 100);
    return 0;
}
