/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nvme_model.c - random admissions, reads, damage and restarts of an NVMe cache against a simulation that knows only the
 * rules: segments of whole pages that belong to one space, footers that must fit, first come without replacement, the oldest
 * full segment with FIFO, admission closed by the first refusal until a segment becomes free. Every result is predicted.
 * Two handles of a group take turns: what one admits the other finds, and goes on filling where that one stopped; each
 * learns by itself that there is no room.
 *
 * Each admission is flushed, so that a record takes whole pages. MODEL_SEED repeats a run.
 */
#include <sys/mman.h>
#include <time.h>

#include "tests/unit/nvme_records.h"

enum { SPACES = 2, HANDLES = 2, ORDINALS = 220, LEN = 60000, SEGMENTS = 16, ENTRIES = 300, OPS = 1500 };

struct sim_entry { unsigned ordinal; };
struct sim_segment {
    bool used, active;         /* in the cache's eyes */
    bool on_disk, disk_active; /* what a restart will find */
    unsigned space, live, n;
    uint64_t born, end;
    unsigned ordinals[ENTRIES];
};
struct sim {
    enum replacement r;
    unsigned n_segments;
    uint64_t segment_bytes, clock;
    struct sim_segment seg[SEGMENTS];
    int active[SPACES];
    bool closed[HANDLES][SPACES];
    int where[SPACES][ORDINALS]; /* segment, or -1 */
};

static void sim_free(struct sim *s, int i)
{
    struct sim_segment *g = &s->seg[i];
    for (unsigned o = 0; o < ORDINALS; o++)
        if (s->where[g->space][o] == i)
            s->where[g->space][o] = -1;
    g->used = g->active = false;
    g->live = 0;
    memset(s->closed, 0, sizeof s->closed);
}

static void sim_drop(struct sim *s, unsigned space, unsigned ordinal)
{
    int i = s->where[space][ordinal];
    s->where[space][ordinal] = -1;
    if (--s->seg[i].live == 0 && s->seg[i].used && !s->seg[i].active)
        sim_free(s, i);
}

static int sim_room(struct sim *s)
{
    int oldest = -1;
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned i = 0; i < s->n_segments; i++)
            if (!s->seg[i].used)
                return (int)i;
        for (unsigned i = 0; i < s->n_segments; i++)
            if (!s->seg[i].active && (oldest < 0 || s->seg[i].born < s->seg[oldest].born))
                oldest = (int)i;
        if (pass || s->r != REPLACE_FIFO || oldest < 0)
            return -1;
        sim_free(s, oldest);
    }
    return -1;
}

static bool sim_admit(struct sim *s, unsigned handle, unsigned space, unsigned ordinal, uint32_t len)
{
    uint64_t pages = (64 + (uint64_t)len + 4095) / 4096 * 4096;
    int i = s->active[space];
    if (s->where[space][ordinal] >= 0)
        return true;
    if (s->closed[handle][space])
        return false;
    struct sim_segment *g = i >= 0 ? &s->seg[i] : NULL;
    if (!g || g->end + pages + ((g->n + 1) * 16 + 4095) / 4096 * 4096 + 4096 > s->segment_bytes) {
        int fresh = sim_room(s);
        if (fresh < 0) {
            s->closed[handle][space] = true;
            return false;
        }
        if (g) {
            g->active = g->disk_active = false;
            if (!g->live)
                sim_free(s, i);
        }
        i = s->active[space] = fresh;
        g = &s->seg[i];
        *g = (struct sim_segment){.used = true, .active = true, .on_disk = true, .disk_active = true, .space = space,
                                  .born = ++s->clock, .end = 4096};
    }
    g->ordinals[g->n++] = ordinal;
    g->live++;
    g->end += pages;
    s->where[space][ordinal] = i;
    for (unsigned h = 0; h < HANDLES; h++) /* there is a segment that is not full: who was refused may ask again */
        s->closed[h][space] = false;
    return true;
}

/* A restart believes what is on the disk, in the order of the segments' birth. */
static void sim_restart(struct sim *s)
{
    bool seen[SEGMENTS] = {false};
    memset(s->closed, 0, sizeof s->closed);
    memset(s->where, -1, sizeof s->where);
    s->active[0] = s->active[1] = -1;
    for (unsigned i = 0; i < s->n_segments; i++)
        s->seg[i].used = s->seg[i].active = false, s->seg[i].live = 0;
    for (;;) {
        int next = -1;
        for (unsigned i = 0; i < s->n_segments; i++)
            if (s->seg[i].on_disk && !seen[i] && (next < 0 || s->seg[i].born < s->seg[next].born))
                next = (int)i;
        if (next < 0)
            return;
        struct sim_segment *g = &s->seg[next];
        seen[next] = g->used = true;
        for (unsigned k = 0; k < g->n; k++) {
            int old = s->where[g->space][g->ordinals[k]];
            s->where[g->space][g->ordinals[k]] = next;
            g->live++;
            if (old >= 0 && --s->seg[old].live == 0 && s->seg[old].used && !s->seg[old].active && old != next)
                sim_free(s, old);
        }
        if (g->disk_active) {
            g->active = true;
            s->active[g->space] = next;
        } else if (!g->live) {
            sim_free(s, next);
        }
    }
}

static uint32_t record_len(unsigned space, uint64_t ordinal)
{
    static uint8_t buf[LEN + 8];
    struct cached c;
    nvme_test_record(space, ordinal, LEN, buf, &c);
    return c.stored_len;
}

/* A read that gives other bytes. */
static void corrupt(struct nvme *n, uint32_t id, uint64_t ordinal)
{
    struct nvme_place at;
    struct cached hit;
    REQUIRE(nvme_lookup(n, id, ordinal, &at));
    uint8_t *bytes = calloc(1, at.len);
    CHECK(!nvme_check(n, id, ordinal, &at, bytes, &hit));
    free(bytes);
}

static void open_all(const char *dir, uint64_t bytes, enum replacement r, struct nvme *n[HANDLES], uint32_t id[SPACES])
{
    char name[64];
    snprintf(name, sizeof name, "model-%d", (int)getpid());
    for (unsigned h = 0; h < HANDLES; h++) {
        n[h] = nvme_test_join(dir, bytes, r, name);
        for (unsigned space = 0; space < SPACES; space++)
            id[space] = nvme_test_id(n[h], space);
    }
}

static void run(uint64_t seed, enum replacement r)
{
    const char *dir = tmp_dir();
    uint64_t bytes = 4 * MIB + rng_below(&seed, 5) * MIB;
    struct sim *s = calloc(1, sizeof *s);
    struct nvme *all[HANDLES], *n;
    uint32_t id[SPACES];
    unsigned entries;
    open_all(dir, bytes, r, all, id);
    n = all[0];
    *s = (struct sim){.r = r, .n_segments = n->h->n_segments, .segment_bytes = n->h->segment_bytes};
    sim_restart(s);
    REQUIRE(n->h->n_segments <= SEGMENTS && n->h->segment_bytes == MIB);
    for (int i = 0; i < OPS && !atomic_load(&test_failures); i++) {
        unsigned space = (unsigned)rng_below(&seed, SPACES), o = (unsigned)rng_below(&seed, ORDINALS), op = (unsigned)rng_below(&seed, 100);
        unsigned h = (unsigned)rng_below(&seed, HANDLES);
        n = all[h];
        if (op < 50) {
            CHECK_EQ(nvme_test_admit(n, id[space], space, o, LEN) == LARDER_OK, sim_admit(s, h, space, o, record_len(space, o)));
            nvme_flush(n);
            CHECK_EQ(nvme_closed(n, id[space]), s->closed[h][space]);
        } else if (op < 85) {
            CHECK_EQ(nvme_test_get(n, id[space], space, o, LEN), s->where[space][o] >= 0 ? NVME_HIT : NVME_MISS);
        } else if (op < 98) {
            if (s->where[space][o] >= 0) {
                corrupt(n, id[space], o);
                sim_drop(s, space, o);
            }
        } else {
            for (h = 0; h < HANDLES; h++)
                nvme_close(all[h]);
            open_all(dir, bytes, r, all, id);
            n = all[0];
            sim_restart(s);
        }
    }
    entries = 0;
    for (unsigned space = 0; space < SPACES; space++)
        for (unsigned o = 0; o < ORDINALS; o++) {
            CHECK_EQ(nvme_test_get(n, id[space], space, o, LEN), s->where[space][o] >= 0 ? NVME_HIT : NVME_MISS);
            entries += s->where[space][o] >= 0;
        }
    struct nvme_stats st;
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, entries);
    CHECK(st.used <= st.budget);
    for (unsigned h = 0; h < HANDLES; h++)
        nvme_close(all[h]);
    CHECK(nvme_test_usage(dir) <= bytes);
    free(s);
}

static uint64_t seed_of_run(void)
{
    const char *text = getenv("MODEL_SEED");
    uint64_t seed = text ? strtoull(text, NULL, 10) : (uint64_t)time(NULL);
    fprintf(stderr, "MODEL_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

TEST(first_come)
{
    uint64_t seed = seed_of_run();
    for (int i = 0; i < 3; i++)
        run(seed + (uint64_t)i, REPLACE_NONE);
}

TEST(fifo)
{
    uint64_t seed = seed_of_run();
    for (int i = 0; i < 3; i++)
        run(seed + (uint64_t)i, REPLACE_FIFO);
}

/* The map alone against an array: growth, generations, drops, replaced entries. */
TEST(map)
{
    enum { N = 60000, SEGS = 8 };
    uint64_t seed = seed_of_run();
    static _Atomic uint64_t seq[NVME_SEGMENTS_MAX];
    static struct { uint64_t seq; uint32_t segment, unit; bool there; } want[N];
    struct nvme_map_state state = {0};
    struct nvme_map m = {NULL, NULL, nvme_map_levels(64 * MIB), &state, seq};
    memset(want, 0, sizeof want);
    for (unsigned i = 0; i < SEGS; i++)
        seq[i] = i + 1;
    m.base = mmap(NULL, nvme_map_bytes_at(m.level_max), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(m.base != MAP_FAILED);
    for (unsigned i = 0; i < 400000; i++) {
        unsigned o = (unsigned)rng_below(&seed, N), op = (unsigned)rng_below(&seed, 1000), g = (unsigned)rng_below(&seed, SEGS);
        struct nvme_hint h;
        bool there = want[o].there && seq[want[o].segment] == want[o].seq;
        if (op < 500) {
            CHECK(nvme_map_put(&m, 1 + o % 3, o, g, i, 7, false));
            want[o].seq = seq[g], want[o].segment = g, want[o].unit = i, want[o].there = true;
        } else if (op < 700) {
            CHECK_EQ(nvme_map_drop(&m, 1 + o % 3, o, want[o].segment, want[o].unit), there);
            want[o].there = false;
        } else if (op < 999) {
            REQUIRE_EQ(nvme_map_find(&m, 1 + o % 3, o, &h), there);
            if (there)
                REQUIRE(h.segment == want[o].segment && h.unit == want[o].unit && h.units == 7);
            CHECK(!nvme_map_find(&m, 1 + (o + 1) % 3, o, &h));
        } else if (rng_below(&seed, 20) == 0) {
            seq[g] = seq[g] + 1; /* a segment begun anew */
        }
    }
    CHECK(nvme_map_bytes(&m) <= 16 * 2 * 131072);
    munmap(m.base, nvme_map_bytes_at(m.level_max));
}

TEST_MAIN();
