/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -llmdb */
/*
 * bench_get_key.c - random gets by key against LMDB.
 *
 * 400,000 samples of 2.5 kB with keys like n01443537_000123; all pages are in the page cache. Both sides answer the same
 * batches of 256 random keys in one thread and touch each cache line of each value: larder by larder_dataset_lookup and
 * larder_dataset_read (which checks every byte's CRC when it comes in), LMDB by mdb_get in one read transaction a batch, on a
 * database filled in key order. larder remembers keys that it has looked up, so four cases tell its parts apart:
 *
 *     get_key           records in the DRAM tier, keys seen before
 *     get_key/index     records in the DRAM tier, each key asked for once of a dataset opened anew: every lookup is RocksDB's
 *     get_key/uncached  records in the page cache, keys seen before
 *     get_key/unseen    records in the page cache, every lookup RocksDB's
 */
#include "tests/bench/bench.h"

#include <lmdb.h>

enum { SAMPLES = 400000, VALUE = 2500, BATCH = 256, BATCHES = 1000, KEY_CAP = 24 };

struct ctx {
    struct larder_dataset *ds;
    struct larder_cache *cache; /* NULL: records come from the page cache, by system calls */
    MDB_env *env;
    MDB_dbi dbi;
    uint64_t seed; /* of the round: both sides draw the same keys */
    uint64_t sum;  /* of what was touched: must agree, and keeps the compiler honest */
    const char *path;
    bool unseen;   /* each key once; else draws */
};

static size_t key_of(uint32_t i, char *key)
{
    return (size_t)snprintf(key, KEY_CAP, "n%08u_%06u", 1440764 + i / 1300 * 97, i);
}

static void value_of(uint32_t i, void *value)
{
    uint64_t state = i;

    bench_fill(&state, value, VALUE);
}

static void make_larder(const char *path)
{
    struct larder_field field = {.name = "value", .type = LARDER_BYTES};
    struct larder_writer_options opts = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    char key[KEY_CAP];
    uint8_t value[VALUE + 8];

    bench_ok(larder_writer_open(path, &field, 1, &opts, &w, &err), &err);
    for (uint32_t i = 0; i < SAMPLES; i++) {
        uint32_t j = (uint32_t)((uint64_t)i * 274177 % SAMPLES); /* keys and ordinals are not in one order */
        struct larder_value v = {value, VALUE};

        value_of(j, value);
        bench_ok(larder_writer_add(w, key, key_of(j, key), &v, &err), &err);
    }
    bench_ok(larder_writer_commit(w, NULL, &err), &err);
}

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
    lmdb_ok(mdb_dbi_open(txn, NULL, 0, &c->dbi));
    lmdb_ok(mdb_txn_commit(txn));
}

static void make_lmdb(const char *path)
{
    struct ctx c = {0};
    MDB_txn *txn;
    char key[KEY_CAP];
    uint8_t value[VALUE + 8];

    mkdir(path, 0777);
    lmdb_open(&c, path, 0);
    lmdb_ok(mdb_txn_begin(c.env, NULL, 0, &txn));
    for (uint32_t i = 0; i < SAMPLES; i++) {
        MDB_val k = {key_of(i, key), key}, v = {VALUE, value};

        value_of(i, value);
        lmdb_ok(mdb_put(txn, c.dbi, &k, &v, MDB_APPEND));
    }
    lmdb_ok(mdb_txn_commit(txn));
    mdb_env_close(c.env);
}

static uint64_t touch(const uint8_t *data, size_t len)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < len; i += 64)
        sum += data[i];
    return sum + data[len - 1];
}

static void draw(const struct ctx *c, uint64_t *state, int batch, char keys[BATCH][KEY_CAP], size_t *lens)
{
    for (int i = 0; i < BATCH; i++) {
        uint64_t n = c->unseen ? ((uint64_t)batch * BATCH + (uint64_t)i) * 174763 : bench_rng(state); /* a unit modulo SAMPLES */

        lens[i] = key_of((uint32_t)(n % SAMPLES), keys[i]);
    }
}

static double run_larder(void *arg)
{
    struct ctx *c = arg;
    uint64_t state = c->seed, ordinals[BATCH], sum = 0;
    struct larder_sample samples[BATCH] = {{0}};
    char keys[BATCH][KEY_CAP];
    const void *ptrs[BATCH];
    size_t lens[BATCH];
    struct larder_error err;
    double t = 0;

    for (int i = 0; i < BATCH; i++)
        ptrs[i] = keys[i];
    for (int b = 0; b < BATCHES; b++) {
        double t0;

        draw(c, &state, b, keys, lens);
        t0 = bench_now();
        bench_ok(larder_dataset_lookup(c->ds, ptrs, lens, BATCH, ordinals, &err), &err);
        bench_ok(larder_dataset_read(c->ds, ordinals, BATCH, NULL, samples, &err), &err);
        for (int i = 0; i < BATCH; i++)
            sum += touch(samples[i].fields[0].data, samples[i].fields[0].len);
        larder_samples_release(samples, BATCH);
        t += bench_now() - t0;
    }
    if (c->sum && c->sum != sum)
        bench_die("get_key: the two sides read different bytes");
    c->sum = sum;
    return (double)BATCH * BATCHES / t;
}

static double run_lmdb(void *arg)
{
    struct ctx *c = arg;
    uint64_t state = c->seed, sum = 0;
    char keys[BATCH][KEY_CAP];
    size_t lens[BATCH];
    double t = 0;

    for (int b = 0; b < BATCHES; b++) {
        MDB_txn *txn;
        double t0;

        draw(c, &state, b, keys, lens);
        t0 = bench_now();
        lmdb_ok(mdb_txn_begin(c->env, NULL, MDB_RDONLY, &txn));
        for (int i = 0; i < BATCH; i++) {
            MDB_val k = {lens[i], keys[i]}, v;

            lmdb_ok(mdb_get(txn, c->dbi, &k, &v));
            sum += touch(v.mv_data, v.mv_size);
        }
        mdb_txn_abort(txn);
        t += bench_now() - t0;
    }
    if (c->sum && c->sum != sum)
        bench_die("get_key: the two sides read different bytes");
    c->sum = sum;
    return (double)BATCH * BATCHES / t;
}

/* A fresh handle whose shards have been read, but no key looked up save one, which opens the index. */
static void reopen(struct ctx *c)
{
    struct larder_sample samples[BATCH] = {{0}};
    uint64_t state = 5, ordinals[BATCH];
    struct larder_dataset_options opts = LARDER_DATASET_OPTIONS_INIT;
    struct larder_sample sample = {0};
    struct larder_error err;
    char key[KEY_CAP];

    larder_dataset_close(c->ds);
    opts.cache = c->cache;
    bench_ok(larder_dataset_open(c->path, &opts, &c->ds, &err), &err);
    bench_ok(larder_dataset_get(c->ds, key, key_of(SAMPLES - 1, key), &sample, &err), &err); /* opens the index */
    larder_samples_release(&sample, 1);
    for (int b = 0; b < 2 * SAMPLES / BATCH; b++) {
        for (int i = 0; i < BATCH; i++)
            ordinals[i] = bench_rng(&state) % SAMPLES;
        bench_ok(larder_dataset_read(c->ds, ordinals, BATCH, NULL, samples, &err), &err);
        larder_samples_release(samples, BATCH);
    }
}

/* The keys that the timed batches leave out: they bring in the index's blocks, as the other side's are in memory. */
static void warm_index(struct ctx *c)
{
    char keys[BATCH][KEY_CAP];
    const void *ptrs[BATCH];
    size_t lens[BATCH];
    uint64_t state = 0, ordinals[BATCH];
    struct larder_error err;

    for (int i = 0; i < BATCH; i++)
        ptrs[i] = keys[i];
    for (int b = BATCHES; b < SAMPLES / BATCH; b++) {
        draw(c, &state, b, keys, lens);
        bench_ok(larder_dataset_lookup(c->ds, ptrs, lens, BATCH, ordinals, &err), &err);
    }
}

static double run_unseen(void *arg)
{
    reopen(arg);
    warm_index(arg);
    return run_larder(arg);
}

int main(int argc, char **argv)
{
    struct ctx c = {.seed = 42, .path = bench_path("get_key.larder")};
    const char *db = bench_path("get_key.lmdb"), *more = "\"value_bytes\": 2500, \"batch\": 256, \"samples\": 400000";

    if (!bench_is_made(c.path)) {
        make_larder(c.path);
        bench_made(c.path);
    }
    if (!bench_is_made(db)) {
        make_lmdb(db);
        bench_made(db);
    }
    lmdb_open(&c, db, MDB_RDONLY);
    if (argc < 2 || strcmp(argv[1], "get_key") == 0) {
        struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
        struct larder_error err;

        o.name = NULL; /* private */
        o.dram_bytes = (uint64_t)SAMPLES * VALUE * 5 / 4;
        bench_ok(larder_cache_open(&o, &c.cache, &err), &err);
        reopen(&c);
        bench_pair("get_key", run_larder, run_lmdb, "lmdb mdb_get + touch", "1/s", 7, &c, more);
        c.unseen = true;
        c.sum = 0;
        bench_pair("get_key/index", run_unseen, run_lmdb, "lmdb mdb_get + touch", "1/s", 7, &c, more);
        c.unseen = false;
        larder_dataset_close(c.ds);
        larder_cache_close(c.cache);
        c.ds = NULL;
        c.cache = NULL;
        c.sum = 0;
    }
    reopen(&c);
    if (bench_wanted(argc, argv, "get_key/uncached"))
        bench_pair("get_key/uncached", run_larder, run_lmdb, "lmdb mdb_get + touch", "1/s", 7, &c, more);
    c.unseen = true;
    c.sum = 0;
    if (bench_wanted(argc, argv, "get_key/unseen"))
        bench_pair("get_key/unseen", run_unseen, run_lmdb, "lmdb mdb_get + touch", "1/s", 7, &c, more);
    mdb_env_close(c.env);
    larder_dataset_close(c.ds);
    return 0;
}
