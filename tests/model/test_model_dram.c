/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_model_dram.c - the arena against a simple simulation of it: every hit, miss and refusal is predicted.
 *
 * Seeded random lookups, admissions and forgettings in several spaces, under both policies, with equal, small and large records.
 * The simulation is a list of runs of slabs with the keys in them; of the arena it asks only how many pages its table has. It says
 * what is held after each admission: without replacement until the first refusal, with FIFO until the run is evicted.
 */
#include "tests/unit/test.h"
#include "tiers/dram_int.h"

enum { SLABS = 4096, KEYS = 4000, SPACES = 3 };

struct run { bool used; uint32_t space; uint64_t first, slabs, bytes; };
struct model {
    bool fifo, closed;
    uint64_t slab_bytes, slab_pages, pages; /* of the slab area: handed out */
    uint64_t ring;
    int run_of[SLABS];      /* of a slab; -1: free */
    struct run runs[SLABS]; /* by first slab */
    int current[SPACES];    /* FIFO: [0] */
    int held[SPACES][KEYS]; /* the run, or -1 */
    uint32_t len[SPACES][KEYS];
    uint64_t entries, evictions;
};

static int lay_out(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    return dram_init(base, bytes, *(enum replacement *)user, err);
}

static uint64_t count_of(const struct model *m) { return (m->pages * ARENA_PAGE + m->slab_bytes - 1) / m->slab_bytes; }

static bool take_slab(struct model *m, uint64_t room, uint64_t least)
{
    uint64_t take = MIN(room, m->slab_pages);
    if (m->pages % m->slab_pages || !take || take * ARENA_PAGE < least)
        return false;
    m->run_of[count_of(m)] = -1;
    m->pages += take;
    return true;
}

/* room: pages of the budget that nobody has; it shrinks with each slab. */
static bool extend(struct model *m, struct run *r, uint64_t need, uint64_t *room)
{
    uint64_t to = r->first * m->slab_bytes + r->bytes + need;
    while ((r->first + r->slabs) * m->slab_bytes < to) {
        uint64_t i = r->first + r->slabs, before = m->pages;
        if (i == count_of(m)) {
            if (!take_slab(m, *room, MIN(to - i * m->slab_bytes, m->slab_bytes)))
                return false;
            *room -= m->pages - before;
        }
        if (m->run_of[i] >= 0)
            return false;
        m->run_of[i] = (int)r->first;
        r->slabs++;
    }
    if (to > m->pages * ARENA_PAGE)
        return false;
    r->bytes += need;
    return true;
}

static struct run *begin(struct model *m, uint64_t i, uint32_t space)
{
    m->runs[i] = (struct run){true, space, i, 1, 0};
    m->run_of[i] = (int)i;
    m->current[m->fifo ? 0 : space] = (int)i;
    return &m->runs[i];
}

static bool row_is_free(const struct model *m, uint64_t i, uint64_t need)
{
    uint64_t to = i * m->slab_bytes + need;
    bool good = to <= m->pages * ARENA_PAGE;
    for (; good && i * m->slab_bytes < to; i++)
        good = m->run_of[i] < 0;
    return good;
}

static int place_kept(struct model *m, uint32_t space, uint64_t need, uint64_t room)
{
    int c = m->current[space];
    if (c >= 0 && extend(m, &m->runs[c], need, &room))
        return c;
    if (need <= room * ARENA_PAGE && m->pages % m->slab_pages == 0) {
        uint64_t i = count_of(m), before = m->pages;
        REQUIRE(take_slab(m, room, 0));
        room -= m->pages - before;
        if (extend(m, begin(m, i, space), need, &room))
            return (int)i;
    }
    for (uint64_t i = 0, n = count_of(m); i < n; i++) {
        if (m->run_of[i] < 0 && row_is_free(m, i, need))
            begin(m, i, space);
        else if (m->run_of[i] != (int)i || m->runs[i].space != space)
            continue;
        if (extend(m, &m->runs[i], need, &room))
            return (int)i;
    }
    return -1;
}

static void drop_run(struct model *m, int r)
{
    for (int s = 0; s < SPACES; s++)
        for (int k = 0; k < KEYS; k++)
            if (m->held[s][k] == r) {
                m->held[s][k] = -1;
                m->entries--;
                m->evictions++;
            }
    for (uint64_t i = 0; i < m->runs[r].slabs; i++)
        m->run_of[m->runs[r].first + i] = -1;
    m->runs[r].used = false;
}

static int place_fifo(struct model *m, uint64_t need, uint64_t room)
{
    int c = m->current[0];
    uint64_t n = (need + m->slab_bytes - 1) / m->slab_bytes, i;
    if (c >= 0) {
        struct run *r = &m->runs[c];
        uint64_t end = MIN((r->first + r->slabs) * m->slab_bytes, m->pages * ARENA_PAGE);
        if (r->first * m->slab_bytes + r->bytes + need <= end) {
            r->bytes += need;
            return c;
        }
    }
    if (need <= room * ARENA_PAGE && m->pages % m->slab_pages == 0) {
        i = count_of(m);
        for (uint64_t j = 0; j < n; j++) {
            uint64_t before = m->pages;
            REQUIRE(take_slab(m, room, 0));
            room -= m->pages - before;
        }
    } else {
        for (;;) {
            i = m->ring % count_of(m);
            if (i + n <= count_of(m) && i * m->slab_bytes + need <= m->pages * ARENA_PAGE)
                break;
            m->ring += count_of(m) - i;
        }
        m->ring += n;
        for (uint64_t j = i; j < i + n; j++)
            if (m->run_of[j] >= 0)
                drop_run(m, m->run_of[j]);
    }
    struct run *r = begin(m, i, 0);
    r->slabs = n;
    r->bytes = need;
    for (uint64_t j = i; j < i + n; j++)
        m->run_of[j] = (int)i;
    return (int)i;
}

/* What the arena will say to this record. */
static bool model_admit(struct model *m, const struct dram *d, uint32_t space, uint32_t key, uint32_t len)
{
    uint64_t table = atomic_load(&d->h->alloc) >> 32, need = record_need(len, false);
    uint64_t whole = d->h->budget_pages - d->h->fixed_pages - table;
    if (need > whole * ARENA_PAGE || m->closed)
        return false;
    int r = m->fifo ? place_fifo(m, need, whole - m->pages) : place_kept(m, space, need, whole - m->pages);
    if (r < 0) {
        m->closed = true;
        return false;
    }
    m->held[space][key] = r;
    m->len[space][key] = len;
    m->entries++;
    return true;
}

static void model_forget(struct model *m, uint32_t space)
{
    for (int k = 0; k < KEYS; k++) {
        m->entries -= m->held[space][k] >= 0;
        m->held[space][k] = -1;
    }
    m->closed = false;
    for (int i = 0; i < SLABS && !m->fifo; i++)
        if (m->runs[i].used && m->runs[i].space == space)
            drop_run(m, i);
    if (!m->fifo)
        m->current[space] = -1;
}

static uint8_t bytes_a[5 << 20], bytes_b[5 << 20];

static void content(uint64_t seed, uint8_t *out, size_t len)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t v = rng_u64(&seed);
        memcpy(out + i, &v, MIN(8, len - i));
    }
}

static void *copy_to(void *user, size_t i, size_t len)
{
    (void)user, (void)i;
    return len <= sizeof bytes_b ? bytes_b : NULL;
}

static uint32_t size_for(uint64_t *rng, int kind)
{
    switch (kind) {
    case 0:
        return 3000;
    case 1:
        return (uint32_t)rng_below(rng, 4000);
    case 2:
        return 50000 + (uint32_t)rng_below(rng, 100000);
    default:
        return rng_below(rng, 20) ? (uint32_t)rng_below(rng, 20000) : (uint32_t)rng_below(rng, 5000000);
    }
}

static void check_lookup(struct dram *d, const struct model *m, uint32_t space, uint32_t id, uint64_t key, bool bytes)
{
    struct extent hit;
    const void *view;
    bool found = dram_lookup(d, id, &key, 1, &hit, &view, copy_to, NULL), expect = m->held[space][key] >= 0;
    REQUIRE_EQ(found, expect);
    if (!found || !bytes)
        return;
    REQUIRE_EQ(hit.stored_len, m->len[space][key]);
    content(key * 7 + space, bytes_a, hit.stored_len);
    CHECK_MEM(view, bytes_a, hit.stored_len);
}

static void run_model(uint64_t seed, bool fifo)
{
    static struct model m;
    uint64_t rng = seed, budget = (3 + rng_below(&rng, 30)) * MIB + rng_below(&rng, MIB);
    enum replacement replacement = fifo ? REPLACE_FIFO : REPLACE_NONE;
    struct share_options o = {NULL, dram_region_bytes(budget), lay_out, &replacement, NULL};
    int kind = (int)rng_below(&rng, 4), ops = kind >= 2 ? 1500 : 12000;
    uint32_t id[SPACES], spaces = 1 + (uint32_t)rng_below(&rng, SPACES);
    struct dram_stats st;
    struct larder_error err;
    struct share *s;
    struct dram *d;
    REQUIRE_OK(share_open(&o, &s, &err), &err);
    REQUIRE_OK(dram_open(s, &d, &err), &err);
    memset(&m, 0, sizeof m);
    memset(m.run_of, 0xff, sizeof m.run_of);
    memset(m.held, 0xff, sizeof m.held);
    memset(m.current, 0xff, sizeof m.current);
    m.fifo = fifo;
    m.slab_bytes = d->slab_bytes;
    m.slab_pages = d->slab_bytes / ARENA_PAGE;
    for (uint32_t i = 0; i < spaces; i++) {
        struct cache_space space = {.uuid = "model", .variant = i};
        REQUIRE_OK(dram_space(d, &space, &id[i], &err), &err);
    }
    for (int i = 0; i < ops; i++) {
        uint32_t space = (uint32_t)rng_below(&rng, spaces), key = (uint32_t)rng_below(&rng, KEYS);
        if (rng_below(&rng, 3000) == 0) {
            struct cache_space again = {.uuid = "model", .variant = space};
            dram_leave(d, id[space]);
            dram_forget(d, id[space]);
            model_forget(&m, space);
            REQUIRE_OK(dram_space(d, &again, &id[space], &err), &err);
        }
        check_lookup(d, &m, space, id[space], key, true);
        if (m.held[space][key] >= 0)
            continue;
        uint32_t len = size_for(&rng, kind);
        struct cached r = {bytes_a, len, len, 0, 0};
        content(key * 7 + space, bytes_a, len);
        bool expect = model_admit(&m, d, space, key, len);
        REQUIRE_EQ(dram_admit(d, id[space], key, &r, NULL) == LARDER_OK, expect);
        REQUIRE_EQ(dram_closed(d), m.closed);
    }
    for (uint32_t space = 0; space < spaces; space++)
        for (uint32_t key = 0; key < KEYS; key++)
            check_lookup(d, &m, space, id[space], key, false);
    dram_stats(d, &st);
    CHECK_EQ(st.entries, m.entries);
    CHECK(st.used <= st.budget);
    dram_close(d);
    share_close(s);
}

static uint64_t running; /* the seed; left nonzero by a test that failed */

static void say_seed(void)
{
    if (running)
        fprintf(stderr, "test_model_dram: again with MODEL_SEED=%" PRIu64 "\n", running);
}

static void run_seeds(bool fifo)
{
    const char *given = getenv("MODEL_SEED");
    atexit(say_seed);
    for (uint64_t seed = 1; seed <= 12; seed++) {
        if (given)
            seed = strtoull(given, NULL, 0);
        running = seed;
        run_model(seed, fifo);
        running = 0;
        if (given)
            break;
    }
}

TEST(minio_as_simulated) { run_seeds(false); }
TEST(fifo_as_simulated) { run_seeds(true); }

TEST_MAIN();
