/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mixed.c - loaders on several datasets: larder_loader_open_mix over real datasets, one of them behind a cache.
 */
#include <sys/wait.h>

#include "loader/loader_int.h"
#include "tests/unit/dataset.h"
#include "tests/unit/http_server.h"

enum { SOURCES = 3, MOST = 700 };

static const struct dataset_spec specs[SOURCES] = {{700, 256, 200, 800, 20, LARDER_COMPRESS_NONE},
                                                   {150, 40, 10, 50, 200, LARDER_COMPRESS_ZSTD},
                                                   {33, 33, 5000, 5000, 10, LARDER_COMPRESS_NONE}};

struct set { struct larder_dataset *ds[SOURCES]; struct larder_cache *cache; struct larder_mix_source source[SOURCES]; };

static void set_open(struct set *s, bool cached)
{
    static const char *dir[SOURCES];
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_error err;

    *s = (struct set){.cache = NULL};
    co.name = NULL;
    co.dram_bytes = 16 << 20;
    if (cached)
        REQUIRE_OK(larder_cache_open(&co, &s->cache, &err), &err);
    for (int i = 0; i < SOURCES; i++) {
        struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
        dir[i] = dir[i] ? dir[i] : dataset_make(&specs[i]);
        o.cache = i == 1 ? s->cache : NULL;
        REQUIRE_OK(larder_dataset_open(dir[i], &o, &s->ds[i], &err), &err);
        s->source[i] = (struct larder_mix_source)LARDER_MIX_SOURCE_INIT;
        s->source[i].ds = s->ds[i];
    }
}

static void set_close(struct set *s)
{
    for (int i = 0; i < SOURCES; i++)
        larder_dataset_close(s->ds[i]);
    larder_cache_close(s->cache);
}

static void weigh(struct set *s, double a, double b, double c)
{
    s->source[0].weight = a;
    s->source[1].weight = b;
    s->source[2].weight = c;
}

struct course { uint32_t world, batch_size, threads; int last, shuffle, exhausted; uint64_t epoch_size, epochs; };

static struct larder_loader *open_rank(struct set *s, const struct course *c, uint32_t rank, const char *state)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    o.seed = 31;
    o.rank = rank;
    o.world = c->world;
    o.batch_size = c->batch_size;
    o.threads = c->threads;
    o.last = c->last;
    o.shuffle = c->shuffle;
    o.epoch_size = c->epoch_size;
    o.epochs = c->epochs;
    o.block_samples = 20;
    o.window_blocks = 3;
    o.state = state;
    REQUIRE_OK(larder_loader_open_mix(s->source, SOURCES, c->exhausted, &o, &ld, &err), &err);
    return ld;
}

typedef uint32_t counts[SOURCES][MOST];

/* The next `batches` batches (UINT64_MAX: to the end of the last epoch); each sample's bytes are looked at. */
static void read_batches(struct larder_loader *ld, uint64_t batches, counts *count, uint64_t *hash)
{
    const struct larder_batch *b;
    struct larder_error err;
    int ends = 0;

    for (uint64_t i = 0; i < batches && ends < 2;) {
        int rc = larder_loader_next(ld, &b, &err);
        if (rc == LARDER_END) {
            ends++;
            continue;
        }
        REQUIRE_OK(rc, &err);
        ends = 0;
        i++;
        CHECK(b->sources && !b->positions);
        for (uint32_t k = 0; k < b->n; k++) {
            REQUIRE(b->sources[k] < SOURCES && b->ordinals[k] < specs[b->sources[k]].n);
            CHECK(sample_is(&specs[b->sources[k]], b->ordinals[k], b->values + (size_t)k * b->n_fields));
            if (hash)
                *hash = larder_hash64(*hash ^ b->sources[k], &b->ordinals[k], 8);
            if (k < b->valid)
                count[b->epoch][b->sources[k]][b->ordinals[k]]++;
        }
        larder_batch_release(b);
    }
}

/* By size: every sample of every dataset once an epoch, whatever the world. */
TEST(by_size_ranks_have_every_sample_once)
{
    static const struct course courses[] = {{1, 64, 0, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, 0, 0, 2}, {3, 7, 2, LARDER_LAST_PAD, LARDER_SHUFFLE_BLOCK, 0, 0, 2},
                                            {8, 20, 1, LARDER_LAST_SHORT, LARDER_SHUFFLE_NONE, 1, 0, 2}, {64, 3, 0, LARDER_LAST_PAD, LARDER_SHUFFLE_FULL, 0, 0, 1}};

    for (size_t k = 0; k < ARRAY_LEN(courses); k++) {
        counts *count = calloc(2, sizeof(*count));
        struct set s;
        set_open(&s, k % 2);
        for (uint32_t rank = 0; rank < courses[k].world; rank++) {
            struct larder_loader *ld = open_rank(&s, &courses[k], rank, NULL);
            read_batches(ld, UINT64_MAX, count, NULL);
            larder_loader_close(ld);
        }
        for (uint64_t e = 0; e < courses[k].epochs; e++)
            for (int i = 0; i < SOURCES; i++)
                for (uint64_t o = 0; o < specs[i].n; o++)
                    CHECK_EQ(count[e][i][o], 1);
        set_close(&s);
        free(count);
    }
}

/* The order is the same with any threads, tiers and batch size. */
TEST(the_order_depends_on_nothing_else)
{
    uint64_t hash[3] = {0};
    counts *count = calloc(2, sizeof(*count));

    for (int k = 0; k < 3; k++) {
        struct course c = {1, k == 2 ? 1000 : 16, (uint32_t)k * 2, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, LARDER_EXHAUSTED_REPEAT, 0, 2};
        struct set s;
        set_open(&s, k == 1);
        weigh(&s, 0.6, 0.3, 0.1);
        struct larder_loader *ld = open_rank(&s, &c, 0, NULL);
        read_batches(ld, UINT64_MAX, count, &hash[k]);
        larder_loader_close(ld);
        set_close(&s);
    }
    CHECK(hash[0] == hash[1] && hash[1] == hash[2]);
    free(count);
}

/* What the pure order says an epoch has: what the ranks together delivered, having changed their number in between. */
static void resumed(int exhausted, uint64_t epoch_size, uint64_t seed)
{
    struct course part[3] = {{4, 10, 0, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, exhausted, epoch_size, 2},
                             {2, 33, 1, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, exhausted, epoch_size, 2},
                             {1, 256, 0, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, exhausted, epoch_size, 2}};
    char state[LARDER_STATE_BYTES(SOURCES)] = "", text[LARDER_STATE_BYTES(SOURCES)];
    static const double w[SOURCES] = {3, 2, 1};
    counts *count = calloc(2, sizeof(*count)), *want = calloc(2, sizeof(*want));
    struct order orders[SOURCES];
    struct larder_error err;
    struct mix *m;
    struct set s;

    set_open(&s, false);
    weigh(&s, w[0], w[1], w[2]);
    for (int i = 0; i < SOURCES; i++)
        orders[i] = (struct order){.n = specs[i].n, .shuffle = LARDER_SHUFFLE_FULL, .block = 1, .window = 1};
    REQUIRE_OK(mix_new(orders, w, SOURCES, 31, LARDER_SHUFFLE_FULL, epoch_size, exhausted, &m, &err), &err);
    for (uint64_t e = 0; e < 2; e++)
        for (uint64_t p = 0; p < m->length; p++) {
            uint64_t ordinal;
            uint32_t source;
            mix_fill(m, e, p, 1, &ordinal, &source);
            want[e][source][ordinal]++;
        }
    for (int k = 0; k < 3; k++) {
        uint64_t batches = k == 2 ? UINT64_MAX : rng_below(&seed, 9);
        for (uint32_t rank = 0; rank < part[k].world; rank++) {
            struct larder_loader *ld = open_rank(&s, &part[k], rank, k ? state : NULL);
            read_batches(ld, batches, count, NULL);
            REQUIRE_OK(larder_loader_state(ld, text, sizeof(text), &err), &err);
            larder_loader_close(ld);
        }
        memcpy(state, text, sizeof(state));
    }
    CHECK_MEM(count, want, 2 * sizeof(*count));
    mix_free(m);
    set_close(&s);
    free(count);
    free(want);
}

TEST(a_run_goes_on_at_another_world_size)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        resumed(LARDER_EXHAUSTED_STOP, 0, seed);
        resumed(LARDER_EXHAUSTED_REPEAT, 0, seed);
        resumed(LARDER_EXHAUSTED_REPEAT, 500, seed);
    }
}

TEST(shares_are_exact)
{
    struct course c = {1, 100, 0, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, LARDER_EXHAUSTED_REPEAT, 3000, 1};
    counts *count = calloc(1, sizeof(*count));
    uint64_t sum[SOURCES] = {0};
    struct set s;

    set_open(&s, true);
    weigh(&s, 5, 3, 2);
    struct larder_loader *ld = open_rank(&s, &c, 0, NULL);
    read_batches(ld, UINT64_MAX, count, NULL);
    larder_loader_close(ld);
    for (int i = 0; i < SOURCES; i++)
        for (uint64_t o = 0; o < specs[i].n; o++)
            sum[i] += count[0][i][o];
    CHECK(llabs((long long)sum[0] - 1500) < 2 && llabs((long long)sum[1] - 900) < 3 && llabs((long long)sum[2] - 600) < 3);
    for (uint64_t o = 0; o < specs[2].n; o++) /* it walks on: each as often as any */
        CHECK(count[0][2][o] == sum[2] / specs[2].n || count[0][2][o] == sum[2] / specs[2].n + 1);
    struct larder_loader_stats st = {.struct_size = sizeof(st)};
    set_close(&s);
    (void)st;
    free(count);
}

/* Filters and splits of each dataset. */
TEST(parts_of_datasets)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    counts *count = calloc(1, sizeof(*count));
    uint8_t filter[MOST / 8 + 1];
    struct larder_loader *ld;
    struct larder_error err;
    struct set s;

    set_open(&s, false);
    memset(filter, 0x0f, sizeof(filter));
    s.source[0].filter = filter;
    o.epochs = 1;
    for (int side = 0; side < 2; side++) {
        o.split_begin = side ? 0.7 : 0;
        o.split_end = side ? 1 : 0.7;
        REQUIRE_OK(larder_loader_open_mix(s.source, SOURCES, 0, &o, &ld, &err), &err);
        read_batches(ld, UINT64_MAX, count, NULL);
        struct larder_loader_stats st = {.struct_size = sizeof(st)};
        REQUIRE_OK(larder_loader_stats(ld, &st, &err), &err);
        CHECK(st.order_bytes >= (specs[0].n * 2 + specs[1].n + specs[2].n) / 8);
        CHECK_EQ(st.samples, st.origin.hits + st.dram.hits + st.nvme.hits);
        larder_loader_close(ld);
    }
    for (int i = 0; i < SOURCES; i++)
        for (uint64_t n = 0; n < specs[i].n; n++)
            CHECK_EQ(count[0][i][n], i > 0 || n % 8 < 4);
    set_close(&s);
    free(count);
}

TEST(seeks)
{
    struct course c = {1, 25, 0, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, LARDER_EXHAUSTED_REPEAT, 0, 0};
    const struct larder_batch *b;
    uint64_t first[25], again[25];
    struct larder_error err;
    struct set s;

    set_open(&s, false);
    struct larder_loader *ld = open_rank(&s, &c, 0, NULL);
    for (int i = 0; i < 4; i++) {
        REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
        memcpy(first, b->ordinals, sizeof(first));
        larder_batch_release(b);
    }
    REQUIRE_OK(larder_loader_seek(ld, 5, 100, &err), &err);
    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
    CHECK(b->epoch == 5 && b->position == 100);
    larder_batch_release(b);
    REQUIRE_OK(larder_loader_seek(ld, 0, 75, &err), &err);
    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
    memcpy(again, b->ordinals, sizeof(again));
    CHECK_MEM(first, again, sizeof(first));
    larder_batch_release(b);
    larder_loader_close(ld);
    set_close(&s);
}

/* ---- datasets behind a web server, and one that is not ---- */

struct site { const char *dir; struct { char path[sizeof(((struct request *)0)->path)]; struct buf body; } file[64]; size_t n; };

/* Files below dir, a moment late. What was served stays for bodies that are under way. */
static void serve(struct server *s, const struct request *q, struct answer *a)
{
    struct site *site = s->user;
    struct store_io *io;
    size_t i = 0;

    while (i < site->n && strcmp(site->file[i].path, q->path))
        i++;
    if (i == site->n && i < ARRAY_LEN(site->file) && io_file_open(site->dir, false, 0, &io, NULL) == 0) {
        struct buf body = BUF_INIT;
        if (io_read_all(io, q->path + 1, 64 << 20, &body, NULL) == 0) {
            snprintf(site->file[i].path, sizeof(site->file[i].path), "%s", q->path);
            site->file[i].body = body;
            site->n++;
        } else {
            buf_release(&body);
        }
        io_close(io);
    }
    a->delay_ms = 1 + q->nr % 5;
    a->status = 404;
    if (i == site->n)
        return;
    s->object = site->file[i].body.data;
    s->object_len = site->file[i].body.len;
    server_object(s, q, a);
}

TEST(far_and_near_datasets)
{
    static struct server servers[2]; /* large, as these */
    static struct site site[2];
    struct course c = {1, 20, 0, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, LARDER_EXHAUSTED_REPEAT, 0, 2};
    counts *count = calloc(2, sizeof(*count));
    struct larder_error err;
    char url[256];
    struct set s;

    set_open(&s, false);
    for (int i = 0; i < 2; i++) {
        site[i].dir = dataset_make(&specs[i + 1]);
        servers[i].handle = serve;
        servers[i].user = &site[i];
        server_start(&servers[i]);
        larder_dataset_close(s.ds[i + 1]);
        server_url(&servers[i], "", url);
        REQUIRE_OK(larder_dataset_open(url, NULL, &s.ds[i + 1], &err), &err);
        s.source[i + 1].ds = s.ds[i + 1];
    }
    struct larder_loader *ld = open_rank(&s, &c, 0, NULL);
    read_batches(ld, UINT64_MAX, count, NULL);
    struct larder_loader_estimate e = {.struct_size = sizeof(e)};
    CHECK_OK(larder_loader_estimate(ld, &e, &err), &err);
    CHECK(e.samples >= 700 + 150 + 33 && e.gets > 0);
    larder_loader_close(ld);
    for (int i = 0; i < SOURCES; i++)
        for (uint64_t o = 0; o < specs[i].n; o++)
            CHECK(count[0][i][o] == 1 && count[1][i][o] == 1);
    struct larder_loader_options part = LARDER_LOADER_OPTIONS_INIT; /* keys are read from there, too */
    part.split_end = 0.5;
    part.epochs = 1;
    for (int i = 0; i < 2; i++) {
        struct larder_loader_stats st = {.struct_size = sizeof(st)};
        uint64_t want = 0;
        char key[64];
        for (uint64_t o = 0; o < specs[i + 1].n; o++)
            want += larder_hash64(0, key, sample_key(o, key)) < (uint64_t)1 << 63;
        REQUIRE_OK(larder_loader_open(s.ds[i + 1], &part, &ld, &err), &err);
        CHECK_OK(larder_loader_stats(ld, &st, &err), &err);
        CHECK_EQ(st.epoch_samples, want);
        larder_loader_close(ld);
    }
    for (int round = 0; round < 5; round++) { /* and ends while much is on its way */
        const struct larder_batch *b;
        ld = open_rank(&s, &c, 0, NULL);
        for (int i = 0; i < round; i++)
            if (larder_loader_next(ld, &b, &err) == LARDER_OK)
                larder_batch_release(b);
        larder_loader_close(ld);
    }
    set_close(&s);
    for (int i = 0; i < 2; i++) {
        server_stop(&servers[i]);
        for (size_t k = 0; k < site[i].n; k++)
            buf_release(&site[i].file[k].body);
    }
    free(count);
}

/* ---- another schema ---- */

static const char *other_schema(char path[256])
{
    static const struct larder_field fields[] = {{"extra", LARDER_F64, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL},
                                                 {"text", LARDER_BYTES, NULL, 0, NULL}, {"more", LARDER_BOOL, NULL, 0, NULL}};
    const char *dir = tmp_dir();
    struct larder_writer *w;
    struct larder_error err;

    snprintf(path, 256, "%s/ds", dir);
    REQUIRE_OK(larder_writer_open(path, fields, 4, NULL, &w, &err), &err);
    for (int64_t i = 0; i < 100; i++) {
        char key[20];
        double x = 0.5;
        int64_t label = 1000 + i;
        struct larder_value v[4] = {{&x, 8}, {&label, 8}, {"abc", 3}, {"\1", 1}};
        snprintf(key, sizeof(key), "k%03d", (int)i);
        REQUIRE_OK(larder_writer_add(w, key, 4, v, &err), &err);
    }
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    return path;
}

TEST(outputs_join_what_schemas_do_not)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_output out[2] = {LARDER_OUTPUT_INIT, LARDER_OUTPUT_INIT};
    char path[256];
    const char *dir = other_schema(path);
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;
    uint32_t seen[2][MOST] = {{0}};
    struct set s;

    set_open(&s, false);
    struct larder_mix_source source[2] = {s.source[0], LARDER_MIX_SOURCE_INIT};
    REQUIRE_OK(larder_dataset_open(dir, NULL, &source[1].ds, &err), &err);
    CHECK_ERR(larder_loader_open_mix(source, 2, 0, NULL, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "another schema"));
    out[0].field = "label";
    out[1].field = "text";
    o.outputs = out;
    o.n_outputs = 2;
    o.epochs = 1;
    CHECK_ERR(larder_loader_open_mix(source, 2, 0, &o, &ld, &err), LARDER_EINVAL, &err); /* one is text, the other bytes */
    CHECK(strstr(err.message, "source 1") && strstr(err.message, "'text'"));
    o.n_outputs = 1;
    for (o.threads = 0; o.threads < 4; o.threads += 3) {
        memset(seen, 0, sizeof(seen));
        REQUIRE_OK(larder_loader_open_mix(source, 2, 0, &o, &ld, &err), &err);
        while (larder_loader_next(ld, &b, &err) == LARDER_OK) {
            REQUIRE(b->n_arrays == 1 && b->arrays[0].len == b->n * 8u);
            for (uint32_t i = 0; i < b->n; i++) {
                int64_t label;
                memcpy(&label, (const uint8_t *)b->arrays[0].data + i * 8, 8);
                CHECK_EQ(label, b->sources[i] ? 1000 + (int64_t)b->ordinals[i] : (int64_t)(b->ordinals[i] % 10));
                seen[b->sources[i]][b->ordinals[i]]++;
            }
            larder_batch_release(b);
        }
        larder_loader_close(ld);
        for (uint64_t i = 0; i < specs[0].n; i++)
            CHECK(seen[0][i] == 1 && (i >= 100 || seen[1][i] == 1));
    }
    larder_dataset_close(source[1].ds);
    set_close(&s);
}

/* ---- what goes wrong ---- */

TEST(states_of_other_mixes_are_refused)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    char state[LARDER_STATE_BYTES(SOURCES)], single[LARDER_STATE_MAX];
    struct larder_loader *ld;
    struct larder_error err;
    struct set s;

    set_open(&s, false);
    weigh(&s, 1, 2, 3);
    REQUIRE_OK(larder_loader_open_mix(s.source, SOURCES, 0, &o, &ld, &err), &err);
    REQUIRE_OK(larder_loader_state(ld, state, sizeof(state), &err), &err);
    REQUIRE_OK(larder_loader_load_state(ld, state, &err), &err);
    larder_loader_close(ld);
    REQUIRE_OK(larder_loader_open(s.ds[0], &o, &ld, &err), &err);
    REQUIRE_OK(larder_loader_state(ld, single, sizeof(single), &err), &err);
    CHECK_ERR(larder_loader_load_state(ld, state, &err), LARDER_EINVAL, &err);
    larder_loader_close(ld);
    o.state = single;
    CHECK_ERR(larder_loader_open_mix(s.source, SOURCES, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "number of datasets"));
    o.state = state;
    CHECK_ERR(larder_loader_open_mix(s.source, SOURCES, 1, &o, &ld, &err), LARDER_EINVAL, &err); /* stop */
    weigh(&s, 1, 2, 4);
    CHECK_ERR(larder_loader_open_mix(s.source, SOURCES, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "weight of source 2: 3 then, 4 now"));
    weigh(&s, 1, 2, 3);
    CHECK_ERR(larder_loader_open_mix(s.source, 2, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    set_close(&s);
}

TEST(wrong_mixes_are_refused)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld = (void *)1;
    struct larder_error err;
    uint64_t order[2] = {0, 1};
    struct set s;

    set_open(&s, false);
    CHECK_ERR(larder_loader_open_mix(NULL, 2, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(ld == NULL);
    CHECK_ERR(larder_loader_open_mix(s.source, 0, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_loader_open_mix(s.source, 257, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_loader_open_mix(s.source, 2, 7, &o, &ld, &err), LARDER_EINVAL, &err);
    weigh(&s, 1, 0, 1);
    CHECK_ERR(larder_loader_open_mix(s.source, SOURCES, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "source 1"));
    weigh(&s, 0, 0, 0);
    o.order = order;
    o.n_order = 2;
    CHECK_ERR(larder_loader_open_mix(s.source, SOURCES, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    o.order = NULL;
    s.source[1].ds = NULL;
    CHECK_ERR(larder_loader_open_mix(s.source, SOURCES, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    s.source[1].ds = s.ds[1];
    s.source[2].struct_size = 8;
    CHECK_ERR(larder_loader_open_mix(s.source, SOURCES, 0, &o, &ld, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "source 2"));
    set_close(&s);
}

/* The same dataset twice, in permutations of their own. */
TEST(a_dataset_may_be_two_sources)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *b;
    uint32_t seen[2][MOST] = {{0}};
    struct larder_loader *ld;
    struct larder_error err;
    struct set s;

    set_open(&s, false);
    struct larder_mix_source twice[2] = {s.source[0], s.source[0]};
    o.epochs = 1;
    REQUIRE_OK(larder_loader_open_mix(twice, 2, 0, &o, &ld, &err), &err);
    while (larder_loader_next(ld, &b, &err) == LARDER_OK) {
        for (uint32_t i = 0; i < b->n; i++)
            seen[b->sources[i]][b->ordinals[i]]++;
        larder_batch_release(b);
    }
    for (uint64_t i = 0; i < specs[0].n; i++)
        CHECK(seen[0][i] == 1 && seen[1][i] == 1);
    larder_loader_close(ld);
    set_close(&s);
}

TEST(closed_in_the_middle_and_in_a_child)
{
    struct course c = {1, 50, 2, LARDER_LAST_SHORT, LARDER_SHUFFLE_FULL, 0, 0, 0};
    const struct larder_batch *b;
    struct larder_error err;
    int status = -1;
    struct set s;

    set_open(&s, false);
    for (int i = 0; i < 30; i++) {
        struct larder_loader *ld = open_rank(&s, &c, 0, NULL);
        for (int k = 0; k < i % 4; k++) {
            REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
            larder_batch_release(b);
        }
        if (i == 3) {
            pid_t pid = fork();
            if (pid == 0) {
                int bad = larder_loader_next(ld, &b, &err) != LARDER_EFORK;
                larder_loader_close(ld);
                _exit(bad);
            }
            CHECK_EQ(waitpid(pid, &status, 0), pid);
            CHECK_EQ(status, 0);
        }
        larder_loader_close(ld);
    }
    set_close(&s);
}

TEST_MAIN();
