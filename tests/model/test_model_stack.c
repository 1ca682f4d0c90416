/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_model_stack.c - the tiers together against a simple simulation: which tier each record comes from is predicted.
 *
 * Records of one size are read in random batches and in epochs, through DRAM, NVMe and both, without replacement and with FIFO,
 * with and without a plan that says what may come in. The simulation knows of each tier how many records fit into each of its
 * bins (slabs, segments), from the layout of the arena and from filling a directory once, and no more:
 *
 *     what DRAM has comes from there, else what NVMe has, else the origin is read; what was read asks in, DRAM first;
 *     without replacement a tier takes what comes until it is full; NVMe takes what DRAM refused, or all when it has room for all;
 *     FIFO fills bin after bin, and going on to a bin empties it.
 *
 * NVMe is flushed after each batch, for what is not written yet is not found. MODEL_SEED repeats a run.
 */
#include <time.h>

#include "loader/loader_int.h"
#include "tests/unit/test.h"
#include "tiers/dram_int.h"
#include "tiers/stack_int.h"

enum { N = 1600, LEN = 8116, BATCH_MAX = 48, BINS_MAX = 256, BIN_MAX = 4096 };
#define SMALL (4 * MIB) /* a third of the records */
#define LARGE (64 * MIB)

static const char *dataset, *uneven; /* records of one size, and of many */
static uint64_t seed;

/* ---- the dataset ---- */

static void content(uint64_t i, uint8_t *out, size_t len)
{
    uint64_t state = i * 31 + 7;

    rng_fill(&state, out, len);
}

static uint32_t len_of(bool even, uint64_t i) { return even ? LEN : (uint32_t)(hash64(9, &i, sizeof(i)) % (2 * LEN)); }

static const char *make_one(bool even)
{
    const struct larder_field field = {.name = "value", .type = LARDER_BYTES};
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;
    uint8_t value[2 * LEN];
    static char paths[2][160];
    char *path = paths[even];

    snprintf(path, sizeof(paths[0]), "%s/d", tmp_dir());
    REQUIRE_OK(larder_writer_open(path, &field, 1, &o, &w, &err), &err);
    for (uint64_t i = 0; i < N; i++) {
        struct larder_value v = {value, len_of(even, i)};

        content(i, value, v.len);
        REQUIRE_OK(larder_writer_add(w, &i, sizeof(i), &v, &err), &err);
    }
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
    return path;
}

static void make(void)
{
    const char *env = getenv("MODEL_SEED");

    if (dataset)
        return;
    seed = env ? strtoull(env, NULL, 10) : (uint64_t)time(NULL);
    printf("MODEL_SEED=%llu\n", (unsigned long long)seed);
    dataset = make_one(true);
    uneven = make_one(false);
}

/* ---- the simulation ---- */

/* A tier: bins of so many records each. Without replacement there is one, and it is closed by the first refusal. */
struct sim_tier {
    bool there, fifo, closed;
    unsigned n_bins, cap[BINS_MAX], bin, in_bin;
    uint32_t bins[BINS_MAX][BIN_MAX];
    unsigned used[BINS_MAX];
    bool held[N];
    uint64_t entries, evictions;
};

static bool sim_admit(struct sim_tier *t, uint64_t ordinal)
{
    if (!t->there || t->closed)
        return false;
    if (t->held[ordinal])
        return true;
    if (t->used[t->bin] == t->cap[t->bin] && !t->fifo) {
        t->closed = true;
        return false;
    }
    if (t->used[t->bin] == t->cap[t->bin]) {
        do
            t->bin = (t->bin + 1) % t->n_bins;
        while (t->cap[t->bin] == 0);
        for (unsigned i = 0; i < t->used[t->bin]; i++)
            t->held[t->bins[t->bin][i]] = false;
        t->entries -= t->used[t->bin];
        t->evictions += t->used[t->bin];
        t->used[t->bin] = 0;
    }
    t->bins[t->bin][t->used[t->bin]++] = (uint32_t)ordinal;
    t->held[ordinal] = true;
    t->entries++;
    return true;
}

struct sim { struct sim_tier dram, nvme; bool exclusive, plan; };

/* A plan: three of four, in no pattern that anything else has. */
static int planned(void *user, uint64_t ordinal)
{
    (void)user;
    return hash64(3, &ordinal, sizeof(ordinal)) % 4 != 0;
}

static void sim_batch(struct sim *s, const uint64_t *ordinals, size_t n, enum tier *from)
{
    for (size_t i = 0; i < n; i++)
        from[i] = s->dram.held[ordinals[i]] ? TIER_DRAM : s->nvme.held[ordinals[i]] ? TIER_NVME : TIER_ORIGIN;
    for (size_t i = 0; i < n; i++) {
        if (from[i] == TIER_DRAM || (s->plan && !planned(NULL, ordinals[i])) || (from[i] == TIER_NVME && s->exclusive))
            continue;
        bool in_dram = sim_admit(&s->dram, ordinals[i]);
        if (from[i] == TIER_ORIGIN && !(s->exclusive && in_dram))
            sim_admit(&s->nvme, ordinals[i]);
    }
}

/* ---- the tiers ---- */

struct real {
    bool even;
    struct larder_cache *cache;
    struct larder_dataset *ds;
    struct tiers_fetch *fetch;
    struct decoder *decoder;
    uint8_t *memory;
    size_t cap;
};

static void open_real(struct real *r, bool even, int replacement, uint64_t dram, const char *dir, uint64_t nvme, bool plan)
{
    struct larder_cache_options co = LARDER_CACHE_OPTIONS_INIT;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_cache_nvme n = {dir, nvme};
    struct larder_error err;

    *r = (struct real){.even = even};
    co.name = NULL;
    co.dram_bytes = dram;
    co.replacement = replacement;
    co.copy_local = 1;
    co.admit = plan ? planned : NULL;
    if (dir)
        co.nvme = &n, co.n_nvme = 1;
    REQUIRE_OK(larder_cache_open(&co, &r->cache, &err), &err);
    CHECK(larder_cache_warning(r->cache, 0) == NULL || strstr(larder_cache_warning(r->cache, 0), "MEMLOCK"));
    o.cache = r->cache;
    o.direct = LARDER_DIRECT_OFF;
    REQUIRE_OK(larder_dataset_open(even ? dataset : uneven, &o, &r->ds, &err), &err);
    REQUIRE_OK(tiers_fetch_new(r->ds->tiers, &r->fetch, &err), &err);
    REQUIRE_OK(decoder_new(&r->decoder, &err), &err);
}

static void close_real(struct real *r)
{
    tiers_fetch_free(r->fetch);
    decoder_free(r->decoder);
    free(r->memory);
    larder_dataset_close(r->ds);
    larder_cache_close(r->cache);
}

static struct larder_cache_stats stats_of(const struct real *r)
{
    struct larder_cache_stats s = {.struct_size = sizeof(s)};
    struct larder_error err;

    CHECK_OK(larder_cache_stats(r->cache, &s, &err), &err);
    return s;
}

static void check_value(struct real *r, uint64_t ordinal, size_t i)
{
    struct larder_value v = {0};
    struct larder_error err;
    uint32_t len = len_of(r->even, ordinal);
    uint8_t want[2 * LEN];

    content(ordinal, want, len);
    CHECK_OK(store_decode(r->ds->store, r->decoder, tiers_fetch_extent(r->fetch, i), tiers_fetch_record(r->fetch, i), NULL, &v, &err),
             &err);
    CHECK(v.len == len && memcmp(v.data, want, len) == 0);
}

/* Reads a batch; where each record came from. */
static void read_batch(struct real *r, const uint64_t *ordinals, size_t n, enum tier *from)
{
    struct bound *b = r->ds->tiers->bound;
    struct larder_error err;
    size_t bytes;

    REQUIRE_OK(tiers_fetch_plan(r->fetch, ordinals, n, &bytes, &err), &err);
    if (bytes > r->cap || !r->memory) {
        free(r->memory);
        r->cap = round_up(bytes + 1, TIERS_ALIGN);
        r->memory = aligned_alloc(TIERS_ALIGN, r->cap);
    }
    REQUIRE_OK(tiers_read(r->ds->tiers, r->fetch, r->memory, &err), &err);
    const struct fetch_stack *k = r->fetch->stack;
    for (size_t i = 0; i < n; i++) {
        from[i] = TIER_DRAM;
        check_value(r, ordinals[i], i);
    }
    for (size_t j = 0; j < k->n_absent; j++)
        from[k->absent[j].i] = (enum tier)k->absent[j].found;
    for (unsigned d = 0; d < b->n_nvme; d++)
        nvme_flush(b->nvme[d]);
}

/* ---- what fits ---- */

static uint32_t stored_len(struct real *r)
{
    uint64_t ordinal = 1;
    struct larder_error err;
    struct extent e;

    CHECK_OK(store_locate(r->ds->store, &ordinal, 1, &e, &err), &err);
    CHECK_EQ(e.stored_len + 64, 8192); /* NVMe: whole pages, however they are grouped when they are written */
    return e.stored_len;
}

/* From the arena's layout alone. Its table is made once for all that these budgets hold. */
static void dram_bins(struct sim_tier *t, struct real *r)
{
    const struct dram_header *h = cache_of(r->cache)->dram->h;
    uint64_t need = record_need(stored_len(r), false);
    uint64_t bytes = (h->budget_pages - h->fixed_pages - (atomic_load(&h->alloc) >> 32)) * ARENA_PAGE;

    t->there = true;
    if (!t->fifo) {
        t->n_bins = 1;
        t->cap[0] = (unsigned)(bytes / need);
        return;
    }
    t->n_bins = (unsigned)((bytes + h->slab_bytes - 1) / h->slab_bytes);
    REQUIRE(t->n_bins <= BINS_MAX);
    for (unsigned i = 0; i < t->n_bins; i++)
        t->cap[i] = (unsigned)(MIN(bytes - i * (uint64_t)h->slab_bytes, h->slab_bytes) / need);
}

/* Segments hold so many records each: found by filling a directory of that size. */
static void nvme_bins(struct sim_tier *t, uint64_t budget)
{
    static unsigned segments[2], each[2]; /* SMALL, LARGE */
    unsigned w = budget == LARGE;

    t->there = true;
    if (!segments[w]) {
        struct larder_cache_dir_info in = {.struct_size = sizeof(in)};
        struct larder_error err;
        enum tier from[BATCH_MAX];
        uint64_t ordinals[BATCH_MAX];
        struct real r;
        char dir[160];

        snprintf(dir, sizeof(dir), "%s/probe", tmp_dir());
        open_real(&r, true, LARDER_REPLACE_NONE, LARDER_DRAM_OFF, dir, budget, false);
        for (uint64_t i = 0; i < N; i += 32) {
            for (uint64_t k = 0; k < 32; k++)
                ordinals[k] = i + k;
            read_batch(&r, ordinals, 32, from);
        }
        CHECK_OK(larder_cache_dir_info(dir, &in, NULL, 0, &err), &err);
        segments[w] = (unsigned)in.segments;
        each[w] = (unsigned)((stats_of(&r).nvme.entries + in.segments - 1) / in.segments);
        CHECK(w ? stats_of(&r).nvme.entries == N : in.entries == in.segments * each[w]); /* full ones, or room for all */
        close_real(&r);
    }
    t->n_bins = t->fifo ? segments[w] : 1;
    for (unsigned i = 0; i < t->n_bins; i++)
        t->cap[i] = w ? N : t->fifo ? each[w] : segments[w] * each[w];
}

/* ---- the comparison ---- */

static uint64_t draw_batch(uint64_t *state, uint64_t *ordinals)
{
    uint64_t n = 1 + rng_below(state, BATCH_MAX);
    uint64_t hot = rng_below(state, 2) ? N : 1 + rng_below(state, N); /* all, or the first some */
    static uint32_t drawn[N];
    static uint32_t round;

    round++;
    n = MIN(n, hot);
    for (uint64_t i = 0; i < n;) { /* each at most once */
        uint64_t o = rng_below(state, hot);

        if (drawn[o] == round)
            continue;
        drawn[o] = round;
        ordinals[i++] = o;
    }
    return n;
}

static void compare(struct real *r, struct sim *s, const uint64_t *ordinals, uint64_t n, uint64_t count[TIERS])
{
    enum tier have[BATCH_MAX], want[BATCH_MAX];

    read_batch(r, ordinals, n, have);
    sim_batch(s, ordinals, n, want);
    struct tiers_counts c = tiers_fetch_counts(r->fetch);
    uint64_t batch[TIERS] = {0};
    for (uint64_t i = 0; i < n; i++) {
        REQUIRE_EQ(have[i], want[i]);
        batch[want[i]]++;
        count[want[i]]++;
    }
    REQUIRE(c.dram.hits == batch[TIER_DRAM] && c.nvme.hits == batch[TIER_NVME] && c.origin.hits == batch[TIER_ORIGIN]);
    REQUIRE_EQ(c.dram.misses, s->dram.there ? n - c.dram.hits : 0);
    REQUIRE_EQ(c.nvme.misses, s->nvme.there ? c.origin.hits : 0);
}

static void run(int replacement, uint64_t dram, uint64_t nvme, bool plan)
{
    static struct sim s;
    static uint64_t order[N];
    uint64_t ordinals[BATCH_MAX], state = seed, count[TIERS] = {0}, n;
    struct larder_cache_stats st;
    struct real r;
    char dir[160];

    s = (struct sim){.plan = plan};
    s.dram.fifo = s.nvme.fifo = replacement == LARDER_REPLACE_FIFO;
    snprintf(dir, sizeof(dir), "%s/nvme", tmp_dir());
    if (nvme)
        nvme_bins(&s.nvme, nvme);
    open_real(&r, true, replacement, dram, nvme ? dir : NULL, nvme, plan);
    if (dram != LARDER_DRAM_OFF)
        dram_bins(&s.dram, &r);
    s.exclusive = replacement == LARDER_REPLACE_NONE && nvme != LARGE;
    for (int i = 0; i < 150; i++) {
        n = draw_batch(&state, ordinals);
        compare(&r, &s, ordinals, n, count);
    }
    for (uint64_t e = 0; e < 3; e++) { /* and epochs */
        struct order o = {.n = N, .seed = seed, .shuffle = LARDER_SHUFFLE_FULL};
        uint64_t before = count[TIER_ORIGIN];

        order_fill(&o, e, 0, N, order);
        for (uint64_t i = 0; i < N; i += n) {
            n = MIN((uint64_t)BATCH_MAX, N - i);
            compare(&r, &s, order + i, n, count);
        }
        if (e && replacement == LARDER_REPLACE_NONE)
            CHECK_EQ(count[TIER_ORIGIN] - before, N - s.dram.entries - (s.exclusive ? s.nvme.entries : 0) -
                     (s.exclusive ? 0 : s.nvme.entries - s.dram.entries)); /* all that DRAM has NVMe has too */
    }
    st = stats_of(&r);
    CHECK_EQ(st.dram.hits, s.dram.there ? count[TIER_DRAM] : 0);
    CHECK_EQ(st.nvme.hits, count[TIER_NVME]);
    CHECK_EQ(st.origin.hits, count[TIER_ORIGIN]);
    CHECK_EQ(st.dram.entries, s.dram.entries);
    CHECK_EQ(st.dram.evictions, s.dram.evictions);
    CHECK_EQ(st.nvme.entries, s.nvme.entries);
    CHECK_EQ(st.nvme.evictions, s.nvme.evictions);
    CHECK(replacement == LARDER_REPLACE_NONE || s.dram.evictions + s.nvme.evictions > 0 || nvme == LARGE);
    CHECK(st.dram.used_bytes <= SMALL && st.nvme.used_bytes <= nvme);
    close_real(&r);
}

static void all(int replacement, uint64_t dram, uint64_t nvme)
{
    make();
    for (int plan = 0; plan < 2; plan++)
        run(replacement, dram, nvme, plan);
}

TEST(dram_minio) { all(LARDER_REPLACE_NONE, SMALL, 0); }
TEST(dram_fifo) { all(LARDER_REPLACE_FIFO, SMALL, 0); }
TEST(nvme_minio) { all(LARDER_REPLACE_NONE, LARDER_DRAM_OFF, SMALL); }
TEST(nvme_fifo) { all(LARDER_REPLACE_FIFO, LARDER_DRAM_OFF, SMALL); }
TEST(both_minio) { all(LARDER_REPLACE_NONE, SMALL, SMALL); }
TEST(both_fifo) { all(LARDER_REPLACE_FIFO, SMALL, SMALL); }
TEST(nvme_for_all_minio) { all(LARDER_REPLACE_NONE, SMALL, LARGE); }
TEST(nvme_for_all_fifo) { all(LARDER_REPLACE_FIFO, SMALL, LARGE); }

/* Records of many sizes, without replacement: after the first epoch each comes from the same tier for ever. */
static void same_for_ever(uint64_t dram, uint64_t nvme)
{
    static enum tier before[N], now[N];
    static uint64_t order[N];
    enum tier from[BATCH_MAX];
    uint64_t others = 0, misses = 0;
    struct real r;
    char dir[160];

    make();
    snprintf(dir, sizeof(dir), "%s/nvme", tmp_dir());
    open_real(&r, false, LARDER_REPLACE_NONE, dram, nvme ? dir : NULL, nvme, false);
    for (uint64_t e = 0; e < 5; e++) {
        struct order o = {.n = N, .seed = seed, .shuffle = LARDER_SHUFFLE_FULL};

        order_fill(&o, e, 0, N, order);
        for (uint64_t i = 0, n; i < N; i += n) {
            n = MIN((uint64_t)BATCH_MAX, N - i);
            read_batch(&r, order + i, n, from);
            for (uint64_t k = 0; k < n; k++)
                now[order[i + k]] = from[k];
        }
        misses = 0;
        for (uint64_t i = 0; i < N; i++) {
            others += e > 1 && now[i] != before[i];
            before[i] = now[i];
            misses += now[i] == TIER_ORIGIN;
        }
        if (e)
            CHECK_EQ(misses, N - stats_of(&r).dram.entries - stats_of(&r).nvme.entries);
    }
    CHECK_EQ(others, 0);
    CHECK(misses > 0 && misses < N);
    close_real(&r);
}

TEST(many_sizes_dram) { same_for_ever(SMALL, 0); }
TEST(many_sizes_nvme) { same_for_ever(LARDER_DRAM_OFF, SMALL); }
TEST(many_sizes_both) { same_for_ever(SMALL, SMALL); }

TEST_MAIN();
