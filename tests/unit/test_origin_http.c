/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_origin_http.c - fetches whose origin is remote, against the bytes that were written: the engine of GETs, alone and beside one of
 * files; what a server may do to it; the stack above, with and without tiers; and a loader over all of it.
 */
#include "loader/loader_int.h"
#include "tests/unit/dataset.h"
#include "tests/unit/fake_remote.h"
#include "tests/unit/tiers_files.h"
#include "tiers/stack_int.h"

#include <sys/mman.h>
#include <sys/wait.h>

/* Files that look like the objects of a dataset: below shards/. */
static struct files objects_make(size_t n, size_t size, uint64_t seed)
{
    struct files f = files_make(n, size, seed);
    char path[160], shards[160];
    snprintf(shards, sizeof(shards), "%s/shards", f.dir);
    REQUIRE_EQ(mkdir(shards, 0700), 0);
    for (size_t i = 0; i < n; i++) {
        snprintf(shards, sizeof(shards), "%s/shards/%s", f.dir, f.refs[i].name);
        REQUIRE_EQ(rename(files_path(&f, i, path), shards), 0);
    }
    return f;
}

static struct tiers *open_objects(struct remote *r, const struct files *f, unsigned depth)
{
    struct tiers_options o = {.queue_depth = depth};
    struct tiers *t;
    struct larder_error err;
    REQUIRE_OK(tiers_open_remote(r, f->refs, f->n, &o, &t, &err), &err);
    return t;
}

#define BATCH 48
struct batch {
    struct tiers_fetch *f;
    struct extent e[BATCH];
    size_t n, bytes;
    void *memory;
};

static void batch_plan(struct tiers *t, struct batch *b)
{
    struct larder_error err;
    if (!b->f)
        REQUIRE_OK(tiers_fetch_new(t, &b->f, &err), &err);
    REQUIRE_OK(tiers_fetch_plan_ranges(b->f, b->e, NULL, b->n, &b->bytes, &err), &err);
    free(b->memory);
    b->memory = b->bytes ? aligned_alloc(4096, round_up(b->bytes, 4096)) : NULL;
}

static void batch_random(struct tiers *t, const struct files *f, uint64_t *seed, struct batch *b)
{
    b->n = 1 + rng_below(seed, BATCH);
    for (size_t i = 0; i < b->n; i++)
        b->e[i] = i && rng_below(seed, 8) == 0 ? b->e[rng_below(seed, i)] : files_extent(f, seed, 30000);
    batch_plan(t, b);
}

static void batch_release(struct batch *b)
{
    tiers_fetch_free(b->f);
    free(b->memory);
}

/* Three batches in flight, answered in any order. */
static void read_batches(unsigned depth, uint32_t gap, uint32_t get, uint64_t seed)
{
    struct files f = objects_make(4, 400000, 3);
    struct remote *r = fake_start(f.dir, seed);
    struct batch b[3] = {{0}};
    struct tiers_queue *q;
    struct larder_error err;
    int started = 3, finished = 0;
    r->o.gap_bytes = gap, r->o.get_bytes = get;
    struct tiers *t = open_objects(r, &f, depth);
    REQUIRE_OK(tiers_queue_open(t, 0, &q, &err), &err);
    for (int i = 0; i < 3; i++) {
        batch_random(t, &f, &seed, &b[i]);
        REQUIRE_OK(tiers_fetch_start(q, b[i].f, b[i].memory, &b[i], &err), &err);
    }
    while (finished < started) {
        struct tiers_fetch *done;
        void *tag;
        REQUIRE_OK(tiers_queue_next(q, true, &done, &tag, &err), &err);
        struct batch *x = tag;
        CHECK(files_match(&f, done, x->e, x->n));
        finished++;
        if (started++ < 12) {
            batch_random(t, &f, &seed, x);
            REQUIRE_OK(tiers_fetch_start(q, x->f, x->memory, x, &err), &err);
        } else {
            started--;
        }
    }
    CHECK(r->in_flight_max <= depth);
    CHECK_EQ(tiers_queue_stats(q).requests, r->demand);
    CHECK_EQ(tiers_queue_stats(q).bytes, r->bytes);
    CHECK(r->used > 0); /* what two fetches want may have come in one GET */
    tiers_queue_close(q);
    for (int i = 0; i < 3; i++)
        batch_release(&b[i]);
    tiers_close(t);
    fake_stop(r);
    files_release(&f);
}

TEST(one_in_flight) { read_batches(1, 65536, 1 << 20, 1); }
TEST(sixteen_in_flight) { read_batches(16, 4096, 1 << 20, 2); }
TEST(sixty_four_in_flight) { read_batches(64, 0, 16384, 3); }

TEST(neighbours_travel_in_one_get)
{
    struct files f = objects_make(2, 3 << 20, 5);
    struct remote *r = fake_start(f.dir, 1);
    struct batch b = {.n = 4};
    struct larder_error err;
    r->o.gap_bytes = 100000, r->o.get_bytes = 1 << 20;
    struct tiers *t = open_objects(r, &f, 8);
    b.e[0] = (struct extent){.shard = 0, .offset = 2000000, .stored_len = 500};
    b.e[1] = (struct extent){.shard = 0, .offset = 1000, .stored_len = 9000};
    b.e[2] = (struct extent){.shard = 0, .offset = 110000, .stored_len = 5};     /* 100,000 behind: joined */
    b.e[3] = (struct extent){.shard = 1, .offset = 0, .stored_len = 3000000};    /* three GETs */
    batch_plan(t, &b);
    CHECK_EQ(tiers_fetch_stats(b.f).bytes, 500 + 9005 + 3000000); /* no memory for gaps */
    CHECK_OK(tiers_read(t, b.f, b.memory, &err), &err);
    CHECK(files_match(&f, b.f, b.e, b.n));
    CHECK_EQ(r->used, 500 + 9005 + 3000000);
    CHECK_EQ(r->demand, 5);
    CHECK_EQ(r->bytes, 500 + 109005 + 3000000);
    CHECK_EQ(tiers_fetch_counts(b.f).origin.requests, 5);
    CHECK_EQ(tiers_fetch_counts(b.f).origin.bytes, 500 + 109005 + 3000000);
    b.e[2].offset++; /* one byte more: alone */
    batch_plan(t, &b);
    CHECK_OK(tiers_read(t, b.f, b.memory, &err), &err);
    CHECK(files_match(&f, b.f, b.e, b.n));
    CHECK_EQ(r->demand, 11);
    batch_release(&b);
    tiers_close(t);
    fake_stop(r);
    files_release(&f);
}

/* ---- what a server may do ---- */

struct script { unsigned at; int code; const char *etag; uint64_t size; };

static void play(void *user, struct remote_request *q, unsigned nth)
{
    const struct script *s = user;
    if (nth != s->at)
        return;
    if (s->code) {
        q->rc = err_set(&q->error, s->code, "%s: told so", q->name);
        q->error.http_status = 403;
    }
    if (s->etag)
        snprintf(q->etag, sizeof(q->etag), "%s", s->etag);
    if (s->size)
        q->object_size = s->size;
}

/* Ten records of one shard, far apart, one after the other. */
static int ten_reads(struct script s, struct larder_error *err, bool *right)
{
    struct files f = objects_make(1, 210000, 7);
    struct remote *r = fake_start(f.dir, 9);
    struct batch b = {.n = 10};
    r->hook = play, r->user = &s;
    r->o.gap_bytes = 0;
    struct tiers *t = open_objects(r, &f, 4);
    for (uint32_t i = 0; i < 10; i++)
        b.e[i] = (struct extent){.shard = 0, .offset = 20000 * i, .stored_len = 1000};
    batch_plan(t, &b);
    int rc = tiers_read(t, b.f, b.memory, err);
    *right = !rc && files_match(&f, b.f, b.e, b.n);
    CHECK_EQ(r->n, 0); /* a failed fetch comes back when its last GET has drained */
    batch_release(&b);
    tiers_close(t);
    fake_stop(r);
    files_release(&f);
    return rc;
}

TEST(errors_reach_the_caller_unchanged)
{
    const int codes[] = {LARDER_EREMOTE, LARDER_ETIMEOUT, LARDER_ENOTFOUND, LARDER_EBUSY, LARDER_ENOMEM, LARDER_ECORRUPT};
    struct larder_error err;
    bool right;
    for (size_t i = 0; i < ARRAY_LEN(codes); i++)
        for (unsigned at = 0; at < 10; at += 3) {
            CHECK_ERR(ten_reads((struct script){.at = at, .code = codes[i]}, &err, &right), codes[i], &err);
            CHECK_STR(err.message, "shards/shard-0: told so");
            CHECK_EQ(err.http_status, 403);
        }
    CHECK_OK(ten_reads((struct script){.at = 99, .code = LARDER_EREMOTE}, &err, &right), &err);
    CHECK(right);
}

TEST(another_object_is_told)
{
    struct larder_error err;
    bool right;
    for (unsigned at = 0; at < 10; at++) {
        CHECK_ERR(ten_reads((struct script){.at = at, .etag = "\"other\""}, &err, &right), LARDER_EBUSY, &err);
        CHECK(strstr(err.message, "s3://fake/set/shards/shard-0 was replaced while it was read"));
        CHECK_ERR(ten_reads((struct script){.at = at, .size = 12345}, &err, &right), LARDER_ECORRUPT, &err);
        CHECK(strstr(err.message, "has 12345 bytes and the manifest says"));
    }
}

TEST(a_replaced_object_is_not_mixed_with_the_old_one)
{
    struct files f = objects_make(1, 1 << 20, 7);
    struct remote *r = fake_start(f.dir, 9);
    struct batch b = {.n = 1, .e = {{.shard = 0, .offset = 5, .stored_len = 1000}}};
    struct larder_error err;
    char path[160], other[160];
    struct tiers *t = open_objects(r, &f, 4);
    batch_plan(t, &b);
    CHECK_OK(tiers_read(t, b.f, b.memory, &err), &err);
    snprintf(path, sizeof(path), "%s/shards/shard-0", f.dir);
    snprintf(other, sizeof(other), "%s/other", f.dir);
    int fd = open(other, O_WRONLY | O_CREAT, 0600);
    CHECK_EQ(write(fd, f.bytes[0], f.refs[0].size), (ssize_t)f.refs[0].size); /* even the same bytes */
    close(fd);
    REQUIRE_EQ(rename(other, path), 0);
    batch_plan(t, &b);
    CHECK_ERR(tiers_read(t, b.f, b.memory, &err), LARDER_EBUSY, &err);
    tiers_close(t);
    t = open_objects(r, &f, 4); /* who opens anew reads the new one */
    tiers_fetch_free(b.f);
    b.f = NULL;
    batch_plan(t, &b);
    CHECK_OK(tiers_read(t, b.f, b.memory, &err), &err);
    batch_release(&b);
    tiers_close(t);
    fake_stop(r);
    files_release(&f);
}

TEST(closing_ends_what_is_in_flight)
{
    struct files f = objects_make(2, 1 << 20, 7);
    struct remote *r = fake_start(f.dir, 9);
    struct tiers_queue *q;
    struct larder_error err;
    struct batch b[2] = {{0}};
    uint64_t seed = 5;
    r->o.gap_bytes = 0;
    struct tiers *t = open_objects(r, &f, 8);
    REQUIRE_OK(tiers_queue_open(t, 0, &q, &err), &err);
    fake_hold(r, true);
    for (int i = 0; i < 2; i++) {
        batch_random(t, &f, &seed, &b[i]);
        REQUIRE_OK(tiers_fetch_start(q, b[i].f, b[i].memory, NULL, &err), &err);
    }
    tiers_queue_close(q); /* the server never answers */
    CHECK(r->canceled > 0 && r->canceled <= 8 && r->n == 0);
    fake_hold(r, false);
    for (int i = 0; i < 2; i++) { /* and they can be planned and read again */
        batch_plan(t, &b[i]);
        CHECK_OK(tiers_read(t, b[i].f, b[i].memory, &err), &err);
        CHECK(files_match(&f, b[i].f, b[i].e, b[i].n));
        batch_release(&b[i]);
    }
    tiers_close(t);
    fake_stop(r);
    files_release(&f);
}

static void *cancel_later(void *q)
{
    usleep(20000);
    tiers_queue_cancel(q);
    return NULL;
}

TEST(a_waiting_queue_can_be_cancelled)
{
    struct files f = objects_make(1, 1 << 20, 7);
    struct remote *r = fake_start(f.dir, 9);
    struct tiers_queue *q;
    struct larder_error err;
    struct batch b = {.n = 1, .e = {{.shard = 0, .offset = 5, .stored_len = 1000}}};
    struct tiers_fetch *done;
    pthread_t thread;
    void *tag;
    struct tiers *t = open_objects(r, &f, 8);
    REQUIRE_OK(tiers_queue_open(t, 0, &q, &err), &err);
    fake_hold(r, true);
    batch_plan(t, &b);
    REQUIRE_OK(tiers_fetch_start(q, b.f, b.memory, NULL, &err), &err);
    REQUIRE_EQ(pthread_create(&thread, NULL, cancel_later, q), 0);
    CHECK_EQ(tiers_queue_next(q, true, &done, &tag, &err), LARDER_END);
    pthread_join(thread, NULL);
    tiers_queue_close(q);
    batch_release(&b);
    tiers_close(t);
    fake_stop(r);
    files_release(&f);
}

/* Woken, once and from another thread: what it waits for goes on. */
static void *wake_later(void *q)
{
    usleep(20000);
    tiers_queue_wake(q);
    return NULL;
}

TEST(a_waiting_queue_can_be_woken)
{
    struct files f = objects_make(1, 1 << 20, 7);
    struct remote *r = fake_start(f.dir, 9);
    struct tiers_queue *q;
    struct larder_error err;
    struct batch b = {.n = 1, .e = {{.shard = 0, .offset = 5, .stored_len = 1000}}};
    struct tiers_fetch *done;
    pthread_t thread;
    void *tag;
    struct tiers *t = open_objects(r, &f, 8);
    REQUIRE_OK(tiers_queue_open(t, 0, &q, &err), &err);
    fake_hold(r, true);
    batch_plan(t, &b);
    REQUIRE_OK(tiers_fetch_start(q, b.f, b.memory, NULL, &err), &err);
    tiers_queue_wake(q); /* before it waits */
    CHECK_EQ(tiers_queue_next(q, true, &done, &tag, &err), LARDER_END);
    REQUIRE_EQ(pthread_create(&thread, NULL, wake_later, q), 0);
    CHECK_EQ(tiers_queue_next(q, true, &done, &tag, &err), LARDER_END);
    pthread_join(thread, NULL);
    fake_hold(r, false);
    CHECK_OK(tiers_queue_next(q, true, &done, &tag, &err), &err);
    CHECK(files_match(&f, b.f, b.e, b.n));
    batch_plan(t, &b);
    REQUIRE_OK(tiers_fetch_start(q, b.f, b.memory, NULL, &err), &err);
    tiers_queue_cancel(q); /* that stays */
    tiers_queue_wake(q);
    while (tiers_queue_next(q, true, &done, &tag, &err) == LARDER_OK)
        ;
    CHECK_EQ(tiers_queue_next(q, true, &done, &tag, &err), LARDER_END);
    tiers_queue_close(q);
    batch_release(&b);
    tiers_close(t);
    fake_stop(r);
    files_release(&f);
}

/* ---- the stack above ---- */

static const struct dataset_spec plain = {600, 100, 1000, 3000, 50, LARDER_COMPRESS_NONE};
static const struct dataset_spec packed = {600, 100, 100, 3000, 900, LARDER_COMPRESS_ZSTD};

struct rig {
    struct remote *remote;
    struct store_io *io;
    struct store *store;
    struct tiers_cache *cache;
    struct tiers *tiers;
    struct stage *stage;
    struct stage_options o;
};

/* remote NULL: from the directory. */
static void rig_open(struct rig *r, const char *dir, const struct dataset_spec *d, struct remote *remote, const char *nvme, uint64_t dram)
{
    struct store_options so = {0};
    struct larder_cache_nvme n = {nvme, 64 * MIB};
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_error err;

    *r = (struct rig){.remote = remote};
    co.name = NULL;
    co.dram_bytes = dram;
    if (nvme)
        co.nvme = &n, co.n_nvme = 1;
    if (nvme || dram != LARDER_DRAM_OFF)
        REQUIRE_OK(tiers_cache_open(&co, &r->cache, &err), &err);
    REQUIRE_OK(io_file_open(dir, false, 0, &r->io, &err), &err);
    REQUIRE_OK(store_open(r->io, &so, &r->store, &err), &err);
    struct tiers_options to = {.cache = r->cache, .remote = remote};
    REQUIRE_OK(tiers_open(r->store, &to, &r->tiers, &err), &err);
    r->o = (struct stage_options){.store = r->store, .tiers = r->tiers, .queue_depth = 16, .staging_bytes = 8 << 20,
                                  .plan = {.order = {.n = d->n, .seed = 11},
                                           .slicing = {.batch_size = 32, .world = 1, .last = LARDER_LAST_SHORT}}};
    REQUIRE_OK(stage_open(&r->o, &r->stage, &err), &err);
}

static void rig_close(struct rig *r)
{
    stage_close(r->stage);
    tiers_close(r->tiers);
    if (r->cache)
        tiers_cache_close(r->cache);
    store_close(r->store);
    io_close(r->io);
}

/* One epoch, every byte checked. The sums over its batches. */
static struct tiers_counts epoch(struct rig *r, const struct dataset_spec *d)
{
    struct tiers_counts sum = {0};
    uint64_t n = 0;

    for (uint64_t i = 0; i < slicing_batches(&r->o.plan.slicing, 0, order_length(&r->o.plan.order)); i++) {
        const struct larder_batch *b;
        struct larder_error err;
        struct stage_cost cost;
        REQUIRE_OK(stage_next(r->stage, 0, &b, &cost, &err), &err);
        for (uint32_t k = 0; k < b->n; k++)
            CHECK(sample_is(d, b->ordinals[k], b->values + (size_t)k * F_COUNT));
        n += b->n;
        sum.dram.hits += cost.io.dram.hits, sum.nvme.hits += cost.io.nvme.hits, sum.origin.hits += cost.io.origin.hits;
        sum.origin.bytes += cost.io.origin.bytes, sum.origin.requests += cost.io.origin.requests;
        stage_release(b);
    }
    CHECK_EQ(n, d->n);
    CHECK_EQ(sum.dram.hits + sum.nvme.hits + sum.origin.hits, d->n);
    return sum;
}

static void without_cache(const struct dataset_spec *d)
{
    const char *dir = dataset_make(d);
    struct remote *remote = fake_start(dir, 4);
    struct rig r;
    rig_open(&r, dir, d, remote, NULL, LARDER_DRAM_OFF);
    for (int e = 0; e < 2; e++)
        CHECK_EQ(epoch(&r, d).origin.hits, d->n);
    rig_close(&r);
    CHECK(remote->used > 0); /* a GET may have a record for two epochs */
    fake_stop(remote);
}

TEST(an_epoch_without_cache) { without_cache(&plain); }
TEST(compressed_without_cache) { without_cache(&packed); }

/* The first answer of all, and the first to each GET of about a third of the places (names of shards are random), has flipped bits. */
struct flips { uint64_t done[4096]; size_t n; };
static void flip(void *user, struct remote_request *q, unsigned nth)
{
    struct flips *f = user;
    uint64_t place = q->offset * 8 + strlen(q->name) + (unsigned char)q->name[strlen(q->name) - 1] % 8;
    bool done = (f->n && place % 3 != 0) || f->n == ARRAY_LEN(f->done) || !q->len;
    for (size_t i = 0; !done && i < f->n; i++)
        done = f->done[i] == place;
    if (done)
        return;
    f->done[f->n++] = place;
    for (size_t at = nth % 16 % q->len; at < q->len; at += 512) /* whatever of it is wanted is hit */
        ((uint8_t *)q->buf)[at] ^= 16;
}

TEST(damage_on_the_way_is_read_again)
{
    const char *dir = dataset_make(&plain), *nvme = tmp_dir();
    struct remote *remote = fake_start(dir, 4);
    struct flips *flips = calloc(1, sizeof(*flips));
    remote->hook = flip, remote->user = flips;
    remote->o.gap_bytes = 0;
    remote->o.get_bytes = 64 * KIB;
    for (int tiers = 0; tiers < 3; tiers++) {
        flips->n = 0;
        struct rig r;
        unsigned before = remote->damaged; /* opening begins to fetch */
        rig_open(&r, dir, &plain, remote, tiers == 2 ? nvme : NULL, tiers ? 16 * MIB : LARDER_DRAM_OFF);
        for (int e = 0; e < 3; e++)
            epoch(&r, &plain);
        CHECK(remote->damaged > before);
        rig_close(&r);
    }
    fake_stop(remote);
    free(flips);
}

/* The record with a certain ordinal is always damaged. */
struct spoil { uint64_t offset; _Atomic unsigned seen; };
static void spoil(void *user, struct remote_request *q, unsigned nth)
{
    struct spoil *s = user;
    (void)nth;
    if (strstr(q->name, "-000000") && s->offset >= q->offset && s->offset - q->offset < q->len) {
        ((uint8_t *)q->buf)[s->offset - q->offset] ^= 1;
        s->seen++;
    }
}

TEST(lasting_damage_is_told_and_enters_no_tier)
{
    const char *dir = dataset_make(&plain);
    for (int budget = 0; budget < 2; budget++) {
        const char *nvme = tmp_dir();
        struct remote *remote = fake_start(dir, 4);
        struct extent e;
        struct spoil s = {0};
        struct larder_error err = {0};
        struct stage_cost cost;
        const struct larder_batch *b;
        const uint64_t ordinal = 33;
        struct rig r;
        int rc;
        remote->budget = budget ? UINT64_MAX : 1;
        remote->o.gap_bytes = 0;
        rig_open(&r, dir, &plain, NULL, NULL, LARDER_DRAM_OFF);
        REQUIRE_OK(store_locate(r.store, &ordinal, 1, &e, &err), &err);
        rig_close(&r);
        s.offset = e.offset + 100;
        remote->hook = spoil, remote->user = &s;
        rig_open(&r, dir, &plain, remote, nvme, 16 * MIB);
        while ((rc = stage_next(r.stage, 0, &b, &cost, &err)) == 0)
            stage_release(b);
        CHECK_ERR(rc, LARDER_ECORRUPT, &err);
        CHECK(strstr(err.message, "(ordinal 33, shard 0 slot 33)"));
        CHECK(s.seen >= 2 && s.seen <= 4 * (1 + TIERS_READ_AGAIN)); /* by the stream, and by who wants it in this epoch and the next */
        rig_close(&r);
        remote->hook = NULL;
        rig_open(&r, dir, &plain, remote, nvme, 16 * MIB); /* NVMe is as the first run left it */
        epoch(&r, &plain);
        rig_close(&r);
        fake_stop(remote);
    }
}

TEST(every_byte_comes_once_where_there_is_room)
{
    const char *dir = dataset_make(&plain), *nvme = tmp_dir();
    struct remote *remote = fake_start(dir, 4);
    struct rig r;
    remote->o.gap_bytes = 0;
    rig_open(&r, dir, &plain, remote, nvme, LARDER_DRAM_OFF);
    CHECK_EQ(epoch(&r, &plain).origin.hits, plain.n);
    uint64_t bytes = remote->bytes;
    CHECK_EQ(epoch(&r, &plain).nvme.hits, plain.n);
    CHECK_EQ(epoch(&r, &plain).nvme.hits, plain.n);
    CHECK_EQ(remote->bytes, bytes);
    rig_close(&r);
    fake_stop(remote);
}

/* What lies between wanted records comes along and stays; its first want counts at the origin. */
static void over_read(const char *nvme, uint64_t dram)
{
    const char *dir = dataset_make(&plain);
    struct remote *remote = fake_start(dir, 4);
    uint64_t stored = 0;
    struct rig r;
    remote->o.gap_bytes = 64 * KIB;
    rig_open(&r, dir, &plain, remote, nvme, dram);
    for (size_t i = 0; i < store_manifest(r.store)->n_shards; i++)
        stored += store_manifest(r.store)->shards[i].stored_bytes;
    CHECK_EQ(epoch(&r, &plain).origin.hits, plain.n);
    uint64_t bytes = remote->bytes;
    CHECK(bytes < 10 * stored); /* some batches are planned before the first has come */
    CHECK(remote->demand < plain.n);
    for (int e = 0; e < 2; e++) {
        struct tiers_counts c = epoch(&r, &plain);
        CHECK_EQ(c.dram.hits + c.nvme.hits, plain.n);
    }
    rig_close(&r);
    CHECK_EQ(remote->bytes, bytes);
    CHECK(remote->used >= stored && remote->used <= bytes);
    fake_stop(remote);
}

TEST(what_was_over_read_stays_in_dram) { over_read(NULL, 16 * MIB); }
TEST(what_was_over_read_stays_in_nvme) { over_read(tmp_dir(), LARDER_DRAM_OFF); }
TEST(what_was_over_read_stays_in_both) { over_read(tmp_dir(), 16 * MIB); }

/* NVMe for some, GETs for the others, in the same batches. */
static void both_engines(bool pread_pool)
{
    const char *dir = dataset_make(&plain), *nvme = tmp_dir();
    struct remote *remote = fake_start(dir, 4);
    struct larder_cache_nvme n = {nvme, 4 * MIB};
    struct rig r;
    (void)n;
    if (pread_pool)
        setenv("LARDER_NO_URING", "1", 1);
    remote->o.gap_bytes = 0;
    rig_open(&r, dir, &plain, remote, nvme, LARDER_DRAM_OFF);
    epoch(&r, &plain);
    rig_close(&r);
    uint64_t bytes = remote->bytes;
    struct larder_error err;
    rig_open(&r, dir, &plain, remote, nvme, LARDER_DRAM_OFF);
    for (uint64_t i = 0; i < plain.n; i += 3) { /* a third of what NVMe holds is gone */
        struct nvme_place at;
        if (nvme_lookup(r.cache->nvme[0], r.tiers->bound->nvme_space[0], i, &at))
            nvme_drop(r.cache->nvme[0], r.tiers->bound->nvme_space[0], i, &at);
    }
    (void)err;
    struct tiers_counts c = epoch(&r, &plain);
    CHECK(c.nvme.hits > 0);
    CHECK_EQ(c.nvme.hits + c.origin.hits, plain.n);
    CHECK(remote->bytes < 2 * bytes);
    rig_close(&r);
    unsetenv("LARDER_NO_URING");
    fake_stop(remote);
}

TEST(nvme_and_gets_with_io_uring) { both_engines(false); }
TEST(nvme_and_gets_with_pread) { both_engines(true); }

TEST(closing_a_loader_ends_its_gets)
{
    const char *dir = dataset_make(&plain);
    struct remote *remote = fake_start(dir, 4);
    struct rig r;
    fake_hold(remote, true);
    rig_open(&r, dir, &plain, remote, NULL, LARDER_DRAM_OFF);
    usleep(20000);
    rig_close(&r);
    CHECK_EQ(remote->n, 0);
    fake_stop(remote);
}

/* ---- waiting ---- */

struct told { _Atomic int n; char what[160], why[256]; };
static void tell(void *user, const char *what, const char *why)
{
    struct told *t = user;
    snprintf(t->what, sizeof(t->what), "%s", what);
    snprintf(t->why, sizeof(t->why), "%s", why);
    atomic_fetch_add(&t->n, 1);
}

TEST(a_wait_is_told_once_then_ends_and_may_go_on)
{
    const char *dir = dataset_make(&plain);
    struct remote *remote = fake_start(dir, 4);
    const struct larder_batch *b;
    struct larder_error err;
    struct stage_cost cost;
    struct told told = {0};
    struct rig r;
    rig_open(&r, dir, &plain, remote, NULL, LARDER_DRAM_OFF);
    stage_close(r.stage);
    r.o.plan.slicing.rank = 3, r.o.plan.slicing.world = 4;
    r.o.notice_ms = 30, r.o.timeout_ms = 120;
    r.o.waiting = tell, r.o.user = &told;
    fake_hold(remote, true);
    REQUIRE_OK(stage_open(&r.o, &r.stage, &err), &err);
    uint64_t begin = now_ns();
    CHECK_ERR(stage_next(r.stage, 0, &b, &cost, &err), LARDER_ETIMEOUT, &err);
    CHECK(now_ns() - begin >= 120000000);
    CHECK_EQ(told.n, 1);
    CHECK(strncmp(told.what, "rank 3 waiting ", 15) == 0 && strstr(told.what, " ms for batch 0"));
    CHECK_STR(told.why, "3 GETs in flight, 2 retries (503), 0 B/s for 1 s; fails at 120 ms (timeout=)");
    CHECK(strncmp(err.message, "rank 3 waiting ", 15) == 0 && strstr(err.message, " for batch 0: 3 GETs in flight, "));
    fake_hold(remote, false); /* the caller asks again */
    r.o.timeout_ms = 0;
    for (int i = 0; i < 50; i++) {
        int rc = stage_next(r.stage, 0, &b, &cost, &err);
        if (rc != LARDER_ETIMEOUT) { /* the machine may be slow */
            REQUIRE_OK(rc, &err);
            CHECK_EQ(b->number, 0);
            stage_release(b);
            break;
        }
    }
    rig_close(&r);
    fake_stop(remote);
}

/* ---- streams ---- */

static const struct dataset_spec wide = {1500, 400, 3000, 2000, 50, LARDER_COMPRESS_NONE};

static uint64_t stored_of(const struct rig *r)
{
    uint64_t stored = 0;
    for (size_t i = 0; i < store_manifest(r->store)->n_shards; i++)
        stored += store_manifest(r->store)->shards[i].stored_bytes;
    return stored;
}

static void streams(const char *nvme, uint64_t dram, bool pread_pool)
{
    const char *dir = dataset_make(&wide);
    struct remote *remote = fake_start(dir, 4);
    struct rig r;
    if (pread_pool)
        setenv("LARDER_NO_URING", "1", 1);
    remote->o.gap_bytes = 0;
    remote->o.get_bytes = 256 * KIB;
    rig_open(&r, dir, &wide, remote, nvme, dram);
    uint64_t stored = stored_of(&r);
    CHECK(r.tiers->stream != NULL);
    struct tiers_counts c = epoch(&r, &wide);
    CHECK_EQ(c.origin.hits, wide.n);
    CHECK(remote->stream > 0);
    CHECK(remote->bytes >= stored);
    for (int e = 0; e < 2; e++)
        CHECK_EQ(epoch(&r, &wide).origin.hits, 0);
    rig_close(&r);
    CHECK(remote->bytes < stored * 3); /* the first batches are fetched out of turn: all of a dataset as small as this */
    rig_open(&r, dir, &wide, remote, nvme, dram);
    CHECK(!nvme || r.tiers->stream == NULL); /* a warm tier needs none */
    rig_close(&r);
    unsetenv("LARDER_NO_URING");
    fake_stop(remote);
}

TEST(streams_into_dram) { streams(NULL, 64 * MIB, false); }
TEST(streams_into_nvme) { streams(tmp_dir(), LARDER_DRAM_OFF, false); }
TEST(streams_into_nvme_with_pread) { streams(tmp_dir(), LARDER_DRAM_OFF, true); }
TEST(streams_into_both) { streams(tmp_dir(), 64 * MIB, false); }

/* A dataset large enough that what may be fetched out of turn is a small part. */
TEST(streaming_fetches_about_every_byte_once)
{
    static const struct dataset_spec large = {2000, 500, 30000, 10000, 50, LARDER_COMPRESS_NONE};
    const char *dir = dataset_make(&large), *nvme = tmp_dir();
    struct remote *remote = fake_start(dir, 4);
    struct rig r;
    remote->o.get_bytes = 1 * MIB;
    remote->o.gap_bytes = 0;
    rig_open(&r, dir, &large, remote, nvme, 100 * MIB);
    uint64_t stored = stored_of(&r);
    struct tiers_counts c = epoch(&r, &large);
    CHECK_EQ(c.origin.hits, large.n);
    rig_close(&r);
    CHECK(remote->bytes >= stored && remote->bytes < stored + stored / 2);
    CHECK(c.origin.bytes <= remote->bytes && c.origin.bytes > stored / 2);
    fake_stop(remote);
}

TEST(without_room_nothing_streams)
{
    static const struct dataset_spec large = {400, 200, 30000, 10000, 50, LARDER_COMPRESS_NONE};
    const char *dir = dataset_make(&large);
    struct remote *remote = fake_start(dir, 4);
    struct rig r;
    rig_open(&r, dir, &large, remote, NULL, 5 * MIB);
    CHECK(r.tiers->stream == NULL);
    epoch(&r, &large);
    CHECK_EQ(remote->stream, 0);
    rig_close(&r);
    fake_stop(remote);
}

static void refuse_streams(void *user, struct remote_request *q, unsigned nth)
{
    (void)user, (void)nth;
    if (q->priority == REMOTE_STREAM)
        q->rc = err_set(&q->error, LARDER_EREMOTE, "503");
}

TEST(a_stream_that_fails_leaves_the_records_to_who_wants_them)
{
    const char *dir = dataset_make(&wide);
    struct remote *remote = fake_start(dir, 4);
    struct rig r;
    remote->hook = refuse_streams;
    remote->o.get_bytes = 64 * KIB;
    remote->o.gap_bytes = 0;
    rig_open(&r, dir, &wide, remote, NULL, 64 * MIB);
    CHECK_EQ(epoch(&r, &wide).origin.hits, wide.n);
    CHECK_EQ(epoch(&r, &wide).dram.hits, wide.n);
    rig_close(&r);
    fake_stop(remote);
}

TEST(closing_ends_a_stream)
{
    const char *dir = dataset_make(&wide);
    for (int i = 0; i < 12; i++) {
        struct remote *remote = fake_start(dir, (uint64_t)i);
        struct rig r;
        remote->o.get_bytes = 64 * KIB;
        if (i % 3 == 0)
            fake_hold(remote, true);
        rig_open(&r, dir, &wide, remote, i % 2 ? tmp_dir() : NULL, 64 * MIB);
        usleep((useconds_t)(i * 700));
        rig_close(&r);
        CHECK_EQ(remote->n, 0);
        fake_stop(remote);
    }
}

TEST(seeking_beside_a_stream)
{
    const char *dir = dataset_make(&wide);
    struct remote *remote = fake_start(dir, 4);
    struct rig r;
    remote->o.get_bytes = 64 * KIB;
    remote->o.gap_bytes = 0;
    rig_open(&r, dir, &wide, remote, NULL, 64 * MIB);
    CHECK(r.tiers->stream != NULL);
    for (uint64_t k = 0; k < 8; k++) {
        struct larder_error err;
        REQUIRE_OK(stage_seek(r.stage, k % 3, 0, k * 160, &err), &err);
        for (uint64_t i = 0; i < k % 4; i++) {
            const struct larder_batch *b;
            struct stage_cost cost;
            REQUIRE_OK(stage_next(r.stage, 0, &b, &cost, &err), &err);
            CHECK(b->epoch == k % 3 && b->position == k * 160 + i * 32);
            for (uint32_t j = 0; j < b->n; j++)
                CHECK(sample_is(&wide, b->ordinals[j], b->values + (size_t)j * F_COUNT));
            stage_release(b);
        }
    }
    struct larder_error err;
    REQUIRE_OK(stage_seek(r.stage, 0, 0, 0, &err), &err);
    epoch(&r, &wide);
    CHECK_EQ(epoch(&r, &wide).dram.hits, wide.n);
    rig_close(&r);
    fake_stop(remote);
}

TEST(two_loaders_share_a_stream)
{
    const char *dir = dataset_make(&wide);
    struct remote *remote = fake_start(dir, 4);
    struct stage *second;
    struct larder_error err;
    struct rig r;
    remote->o.get_bytes = 64 * KIB;
    rig_open(&r, dir, &wide, remote, NULL, 64 * MIB);
    REQUIRE_OK(stage_open(&r.o, &second, &err), &err);
    CHECK_EQ(r.tiers->streamers, 2);
    struct stage *first = r.stage;
    stage_close(first);
    r.stage = second;
    epoch(&r, &wide);
    rig_close(&r);
    fake_stop(remote);
}

/* Processes of one cache divide the stream among themselves. */
static int one_of_two(const char *dir, const char *cache, _Atomic uint64_t *bytes)
{
    struct remote *remote = fake_start(dir, (uint64_t)getpid());
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_error err;
    struct rig r;
    remote->o.get_bytes = 128 * KIB;
    remote->o.gap_bytes = 0;
    co.name = cache;
    co.dram_bytes = 64 * MIB;
    rig_open(&r, dir, &wide, remote, NULL, LARDER_DRAM_OFF);
    rig_close(&r);
    if (tiers_cache_open(&co, &r.cache, &err))
        return 2;
    struct store_options so = {0};
    struct tiers_options to = {.cache = r.cache, .remote = remote};
    if (io_file_open(dir, false, 0, &r.io, &err) || store_open(r.io, &so, &r.store, &err) || tiers_open(r.store, &to, &r.tiers, &err))
        return 3;
    uint64_t before = remote->bytes;
    r.o.store = r.store, r.o.tiers = r.tiers;
    if (stage_open(&r.o, &r.stage, &err))
        return 4;
    epoch(&r, &wide);
    epoch(&r, &wide);
    rig_close(&r);
    atomic_fetch_add(bytes, remote->bytes - before);
    fake_stop(remote);
    return atomic_load(&test_failures) ? 1 : 0;
}

TEST(processes_share_a_stream)
{
    const char *dir = dataset_make(&wide);
    _Atomic uint64_t *bytes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char cache[64];
    pid_t pid[2];
    snprintf(cache, sizeof(cache), "stream-test-%d", (int)getpid());
    for (int i = 0; i < 2; i++)
        if ((pid[i] = fork()) == 0)
            _exit(one_of_two(dir, cache, bytes));
    for (int i = 0; i < 2; i++) {
        int status = 0;
        CHECK_EQ(waitpid(pid[i], &status, 0), pid[i]);
        CHECK_EQ(status, 0);
    }
    CHECK(*bytes >= (uint64_t)wide.n * wide.len_min * 10 / 11);
    munmap((void *)bytes, 4096);
}

TEST(a_forked_child_only_closes)
{
    struct files f = objects_make(1, 1 << 20, 7);
    struct remote *r = fake_start(f.dir, 9);
    struct batch b = {.n = 1, .e = {{.shard = 0, .offset = 5, .stored_len = 1000}}};
    struct larder_error err;
    struct tiers *t = open_objects(r, &f, 4);
    batch_plan(t, &b);
    CHECK_OK(tiers_read(t, b.f, b.memory, &err), &err);
    batch_plan(t, &b);
    pid_t pid = fork();
    if (pid == 0) {
        int rc = tiers_read(t, b.f, b.memory, &err);
        tiers_close(t);
        _exit(rc == LARDER_EFORK ? 0 : 1);
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_OK(tiers_read(t, b.f, b.memory, &err), &err);
    CHECK(files_match(&f, b.f, b.e, b.n));
    batch_release(&b);
    tiers_close(t);
    fake_stop(r);
    files_release(&f);
}

TEST_MAIN();
