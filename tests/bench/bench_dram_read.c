/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -llmdb */
/*
 * bench_dram_read.c - random reads of records that lie in DRAM, against LMDB.
 *
 * One thread, batches of 256 random ordinals, every cache line of every value touched: larder by larder_dataset_read and
 * release, LMDB by mdb_get (integer keys, one read transaction a batch, renewed). Both read the same batches, larder PASSES times
 * a round: else its rounds were so short that a moment of another program's would count. `memcpy_share` is larder's rate as a
 * share of a bare loop that copies the same records out of one array.
 */
#include "tests/bench/dram_bench.h"

#include <lmdb.h>

struct ctx { struct data d; MDB_env *env; MDB_dbi dbi; MDB_txn *txn; uint64_t seed, sum; };

static void lmdb_ok(int rc)
{
    if (rc != 0)
        bench_die("lmdb: %s", mdb_strerror(rc));
}

static void lmdb_open(struct ctx *c, const char *path, unsigned flags)
{
    MDB_txn *txn;

    lmdb_ok(mdb_env_create(&c->env));
    lmdb_ok(mdb_env_set_mapsize(c->env, (size_t)4 << 30));
    lmdb_ok(mdb_env_open(c->env, path, flags, 0644));
    lmdb_ok(mdb_txn_begin(c->env, NULL, flags & MDB_RDONLY, &txn));
    lmdb_ok(mdb_dbi_open(txn, NULL, flags & MDB_RDONLY ? 0 : MDB_CREATE | MDB_INTEGERKEY, &c->dbi));
    lmdb_ok(mdb_txn_commit(txn));
}

static void make_lmdb(const char *path, const struct size_case *s)
{
    struct ctx c = {0};
    MDB_txn *txn;
    uint8_t *value = malloc(s->bytes + 8);

    mkdir(path, 0777);
    lmdb_open(&c, path, MDB_NOSYNC);
    lmdb_ok(mdb_txn_begin(c.env, NULL, 0, &txn));
    for (uint64_t i = 0; i < s->samples; i++) {
        MDB_val k = {sizeof i, &i}, v = {s->bytes, value};

        value_of(i, value, s->bytes);
        lmdb_ok(mdb_put(txn, c.dbi, &k, &v, MDB_APPEND));
    }
    lmdb_ok(mdb_txn_commit(txn));
    mdb_env_close(c.env);
    free(value);
}

static double run_larder(void *arg)
{
    enum { PASSES = 4 };
    struct ctx *c = arg;
    double t = 0;

    for (int k = 0; k < PASSES; k++) {
        uint64_t sum = 0;

        t += 1 / read_random(&c->d, c->seed, c->d.c->batches, &sum);
        if (c->sum && c->sum != sum)
            bench_die("dram_read: the two sides read different bytes");
        c->sum = sum;
    }
    return PASSES / t;
}

static double run_lmdb(void *arg)
{
    struct ctx *c = arg;
    uint64_t state = c->seed, ordinals[BATCH], sum = 0;
    double t = 0;

    for (uint32_t b = 0; b < c->d.c->batches; b++) {
        double t0;

        draw(&c->d, &state, ordinals);
        t0 = bench_now();
        lmdb_ok(mdb_txn_renew(c->txn));
        for (int i = 0; i < BATCH; i++) {
            MDB_val k = {sizeof ordinals[i], &ordinals[i]}, v;

            lmdb_ok(mdb_get(c->txn, c->dbi, &k, &v));
            sum += touch(v.mv_data, v.mv_size);
        }
        mdb_txn_reset(c->txn);
        t += bench_now() - t0;
    }
    if (c->sum && c->sum != sum)
        bench_die("dram_read: the two sides read different bytes");
    c->sum = sum;
    return (double)BATCH * c->d.c->batches / t;
}

static double memcpy_share(struct ctx *c)
{
    double ours[5], bare[5];
    uint64_t sum = 0;

    data_array(&c->d);
    for (int i = -1; i < 5; i++) {
        double a = read_random(&c->d, c->seed, c->d.c->batches, &sum), b = copy_random(&c->d, c->seed, c->d.c->batches, &sum);

        if (i >= 0)
            ours[i] = a, bare[i] = b;
    }
    return bench_median(ours, 5) / bench_median(bare, 5);
}

static void run_case(const struct size_case *s)
{
    struct ctx c = {.seed = 42};
    char name[64], db[64], more[200];
    const char *path;
    double share;

    snprintf(name, sizeof name, "dram_read/%s", s->name);
    snprintf(db, sizeof db, "dram_%s.lmdb", s->name);
    path = bench_path(db);
    if (!bench_is_made(path)) {
        make_lmdb(path, s);
        bench_made(path);
    }
    data_open(&c.d, s, NULL);
    share = memcpy_share(&c);
    lmdb_open(&c, path, MDB_RDONLY);
    lmdb_ok(mdb_txn_begin(c.env, NULL, MDB_RDONLY, &c.txn));
    mdb_txn_reset(c.txn);
    snprintf(more, sizeof more, "\"value_bytes\": %u, \"batch\": %d, \"samples\": %u, \"memcpy_share\": %.3f", s->bytes, BATCH,
             s->samples, share);
    bench_pair(name, run_larder, run_lmdb, "lmdb mdb_get + touch", "1/s", 7, &c, more);
    mdb_txn_abort(c.txn);
    mdb_env_close(c.env);
    data_close(&c.d);
}

int main(int argc, char **argv)
{
    char name[64];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(name, sizeof name, "dram_read/%s", cases[i].name);
        if (bench_wanted(argc, argv, name))
            run_case(&cases[i]);
    }
    return 0;
}
