/* SPDX-License-Identifier: Apache-2.0 */
/* test_dram.c - the arena: every call, sizes, edges of budgets, spaces, claims, eviction; threads for the thread checker. */
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/test.h"
#include "tiers/dram_int.h"

static int lay_out(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    return dram_init(base, bytes, *(enum replacement *)user, err);
}

static struct dram *arena(uint64_t budget, enum replacement replacement, const char *name)
{
    struct share_options o = {name, dram_region_bytes(budget), lay_out, &replacement, NULL};
    struct larder_error err;
    struct share *s;
    struct dram *d = NULL;
    REQUIRE_OK(share_open(&o, &s, &err), &err);
    REQUIRE_OK(dram_open(s, &d, &err), &err);
    return d;
}

static void arena_close(struct dram *d)
{
    struct share *s = d->share;
    dram_close(d);
    share_close(s);
}

static uint32_t space_of(struct dram *d, uint64_t variant)
{
    struct cache_space space = {.uuid = "dataset", .lineage = "one", .variant = variant};
    struct larder_error err;
    uint32_t id = UINT32_MAX;
    REQUIRE_OK(dram_space(d, &space, &id, &err), &err);
    return id;
}

/* The bytes of a record follow from its key. */
static void content(uint64_t seed, uint8_t *out, size_t len)
{
    for (size_t i = 0; i < len; i += 8) {
        uint64_t v = rng_u64(&seed);
        memcpy(out + i, &v, MIN(8, len - i));
    }
}

static uint8_t scratch[6 << 20];

static int admit(struct dram *d, uint32_t space, uint64_t ordinal, uint32_t len)
{
    struct cached r = {scratch, len, len + (ordinal % 3 == 0 ? 17 : 0), (uint32_t)ordinal ^ 0xabcd, (uint8_t)(ordinal % 5)};
    content(ordinal << 8 | space, scratch, len);
    return dram_admit(d, space, ordinal, &r, NULL);
}

static uint8_t copied[6 << 20];
static void *copy_to(void *user, size_t i, size_t len)
{
    (void)user, (void)i;
    return len <= sizeof copied ? copied : NULL;
}

/* One record; false and hit->bytes NULL: it is not there. */
static bool look(struct dram *d, uint32_t space, uint64_t ordinal, struct cached *hit, dram_copy_fn *copy, void *user)
{
    struct extent e;
    size_t found = dram_lookup(d, space, &ordinal, 1, &e, &hit->bytes, copy, user);
    CHECK_EQ(found, hit->bytes != NULL);
    if (found)
        *hit = (struct cached){hit->bytes, e.stored_len, e.raw_len, e.crc, e.codec};
    return found;
}

/* Is it there, and are its bytes and numbers right? */
static bool there(struct dram *d, uint32_t space, uint64_t ordinal, uint32_t len)
{
    struct cached hit;
    if (!look(d, space, ordinal, &hit, copy_to, NULL)) {
        CHECK(!hit.bytes);
        return false;
    }
    content(ordinal << 8 | space, scratch, len);
    CHECK_EQ(hit.stored_len, len);
    CHECK_EQ(hit.raw_len, len + (ordinal % 3 == 0 ? 17 : 0));
    CHECK_EQ(hit.crc, (uint32_t)ordinal ^ 0xabcd);
    CHECK_EQ(hit.codec, ordinal % 5);
    CHECK_MEM(hit.bytes, scratch, len);
    return true;
}

TEST(records_of_all_sizes)
{
    static const uint32_t sizes[] = {0, 1, 3, 4, 100, 4095, 65536, 2097152 - 16, 2097152, 2097153, 5 << 20, 7, 3000000};
    for (int fifo = 0; fifo < 2; fifo++) {
        struct dram *d = arena(64 * MIB, fifo ? REPLACE_FIFO : REPLACE_NONE, NULL);
        uint32_t space = space_of(d, 0);
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
            CHECK(!there(d, space, i, sizes[i]));
            CHECK_EQ(admit(d, space, i, sizes[i]), LARDER_OK);
            CHECK_EQ(admit(d, space, i, sizes[i]), LARDER_OK); /* it is there already */
        }
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
            CHECK(there(d, space, i, sizes[i]));
        struct dram_stats st;
        dram_stats(d, &st);
        CHECK_EQ(st.entries, ARRAY_LEN(sizes));
        CHECK_EQ(st.admissions, ARRAY_LEN(sizes));
        CHECK_EQ(st.refusals, 0);
        CHECK(st.used <= st.budget && st.budget == 64 * MIB);
        CHECK_EQ(admit(d, space, CACHE_ORDINAL_MAX + 1, 5), LARDER_ENOMEM);
        CHECK(!there(d, space, CACHE_ORDINAL_MAX + 1, 5));
        CHECK_EQ(admit(d, space, CACHE_ORDINAL_MAX, 5), LARDER_OK);
        CHECK(there(d, space, CACHE_ORDINAL_MAX, 5));
        CHECK(!dram_closed(d));
        arena_close(d);
    }
}

TEST(a_view_is_the_arenas)
{
    struct dram *d = arena(8 * MIB, REPLACE_NONE, NULL);
    uint32_t space = space_of(d, 0);
    uint8_t bytes[40] = "forty bytes that may go away";
    struct cached r = {bytes, 40, 40, 1, 2}, view, hit;
    uint64_t ordinal = 77;
    CHECK_EQ(dram_admit(d, space, ordinal, &r, &view), LARDER_OK);
    CHECK(view.bytes != bytes && view.stored_len == 40 && view.raw_len == 40 && view.crc == 1 && view.codec == 2);
    CHECK_MEM(view.bytes, bytes, 40);
    CHECK(look(d, space, ordinal, &hit, NULL, NULL));
    CHECK(hit.bytes == view.bytes);
    arena_close(d);
}

/* With equal sizes exactly as many stay as came before the first refusal, the same ones for ever. */
TEST(minio_is_exact)
{
    struct dram *d = arena(8 * MIB, REPLACE_NONE, NULL);
    uint32_t space = space_of(d, 0);
    static uint8_t first[20000];
    uint64_t kept = 0, n = sizeof first;
    for (int epoch = 0; epoch < 3; epoch++) {
        uint64_t misses = 0;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t o = (i * 7919 + (uint64_t)epoch * 31) % n;
            if (there(d, space, o, 1000)) {
                CHECK(epoch == 0 || first[o]);
                continue;
            }
            misses++;
            CHECK(epoch == 0 || !first[o]);
            if (admit(d, space, o, 1000) == LARDER_OK)
                first[o] = 1, kept++;
        }
        if (epoch)
            CHECK_EQ(misses, n - kept);
    }
    CHECK(dram_closed(d));
    struct dram_stats st;
    dram_stats(d, &st);
    CHECK_EQ(st.entries, kept);
    CHECK(st.used <= st.budget);
    CHECK(st.used + 8192 > st.budget); /* nothing left lying */
    CHECK_EQ(admit(d, space, n + 1, 1), LARDER_ENOMEM); /* closed also for the smallest */
    arena_close(d);
}

TEST(budgets_at_the_edge)
{
    static const uint64_t budgets[] = {0, 1, 4096, 20000, 65536, 1 << 20, (1 << 20) + 4096, (2 << 20) + 12345, (5 << 20) - 1};
    for (size_t i = 0; i < ARRAY_LEN(budgets); i++) {
        for (int fifo = 0; fifo < 2; fifo++) {
            struct dram *d = arena(budgets[i], fifo ? REPLACE_FIFO : REPLACE_NONE, NULL);
            uint32_t space = space_of(d, 0);
            struct dram_stats st;
            CHECK_EQ(admit(d, space, 0, 5 << 20), LARDER_ENOMEM); /* never could be: closes nothing */
            CHECK(!dram_closed(d));
            uint64_t n = 0;
            for (uint64_t o = 1; o < 600; o++)
                n += admit(d, space, o, 10000) == LARDER_OK;
            dram_stats(d, &st);
            CHECK(st.used <= MAX(st.budget, 32768));
            CHECK_EQ(st.entries + st.evictions, n);
            if (budgets[i] >= 1 << 20) {
                CHECK(st.entries > budgets[i] * 8 / 10 / 10020 - (fifo ? 7 : 0));
                CHECK(there(d, space, fifo ? 599 : 1, 10000));
            }
            if (budgets[i] >= 1 << 20 && fifo)
                CHECK(!there(d, space, 1, 10000));
            arena_close(d);
        }
    }
}

/* A probe that comes back to where it was finds a full table at 82% load. */
TEST(probes_go_everywhere)
{
    static struct table_line lines[512];
    struct part p = {lines, 512};
    uint64_t rng = 3;
    for (int round = 0; round < 100000; round++) {
        uint64_t hash = round ? rng_u64(&rng) : 0x8dddb335ffed897aull, seen[8] = {0};
        int distinct = 0;
        for (unsigned i = 0; i < PROBE_LINES; i++) {
            size_t line = (size_t)(part_line(&p, hash, i) - lines);
            REQUIRE(line < 512);
            distinct += !(seen[line / 64] >> (line % 64) & 1);
            seen[line / 64] |= 1ull << (line % 64);
        }
        CHECK(distinct >= 16);
    }
}

TEST(bookkeeping_is_small)
{
    static const uint32_t sizes[] = {128, 2500, 110000};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct dram *d = arena(i == 0 ? 32 * MIB : 128 * MIB, REPLACE_NONE, NULL);
        uint32_t space = space_of(d, 0);
        struct cached r = {scratch, sizes[i], sizes[i], 0, 0};
        for (uint64_t o = 0; dram_admit(d, space, o, &r, NULL) == LARDER_OK; o++) {
        }
        struct dram_stats st;
        dram_stats(d, &st);
        CHECK(st.budget - st.used < sizes[i] + 4096);
        if (sizes[i] < 100000) /* what is fixed is spread over few there */
            CHECK(st.bookkeeping <= 32 * st.entries + 700 * 1024);
        CHECK(st.bookkeeping - 700 * 1024 <= 32 * st.entries || st.bookkeeping < 700 * 1024);
        arena_close(d);
    }
}

TEST(spaces_are_apart)
{
    struct dram *d = arena(16 * MIB, REPLACE_NONE, NULL);
    uint32_t a = space_of(d, 0), b = space_of(d, 1);
    CHECK(a != b);
    CHECK_EQ(space_of(d, 0), a);
    for (uint64_t o = 0; o < 100; o++)
        CHECK_EQ(admit(d, a, o, 300), LARDER_OK);
    for (uint64_t o = 0; o < 100; o++)
        CHECK(there(d, a, o, 300) && !there(d, b, o, 300));
    arena_close(d);
}

TEST(the_registry_is_finite)
{
    struct dram *d = arena(0, REPLACE_NONE, NULL);
    struct cache_space space = {.variant = 1000};
    struct larder_error err;
    uint32_t id;
    for (uint32_t i = 0; i < d->h->spaces_max; i++)
        CHECK_EQ(space_of(d, i), i);
    CHECK_ERR(dram_space(d, &space, &id, &err), LARDER_ENOMEM, &err);
    CHECK_EQ(space_of(d, 3), 3);
    dram_leave(d, 5);
    CHECK_EQ(dram_reclaim(d), 1);
    REQUIRE_OK(dram_space(d, &space, &id, &err), &err);
    CHECK_EQ(id, 5);
    /* a registration that a dead process began */
    dram_leave(d, 7);
    dram_forget(d, 7);
    struct cache_space late = {.variant = 2000};
    uint64_t hash = hash64(0, &late, sizeof late) & ((1ull << 62) - 1);
    atomic_store(&d->spaces[7].state, 1ull << 62 | hash);
    REQUIRE_OK(dram_space(d, &late, &id, &err), &err);
    CHECK_EQ(id, 7);
    arena_close(d);
}

TEST(forgetting_frees_room)
{
    for (int fifo = 0; fifo < 2; fifo++) {
        struct dram *d = arena(16 * MIB, fifo ? REPLACE_FIFO : REPLACE_NONE, NULL);
        uint32_t a = space_of(d, 0), b = space_of(d, 1);
        uint64_t n = 0, again = 0;
        CHECK_EQ(admit(d, b, 1, 5000), LARDER_OK);
        for (uint64_t o = 0; o < 200; o++)
            n += admit(d, a, o, 110000) == LARDER_OK;
        dram_forget(d, a); /* in use: stays */
        CHECK(there(d, a, fifo ? 199 : 1, 110000));
        dram_leave(d, a);
        dram_forget(d, a);
        CHECK(!there(d, a, 1, 110000) && !there(d, a, 199, 110000));
        CHECK(fifo || there(d, b, 1, 5000));
        struct dram_stats st;
        dram_stats(d, &st);
        CHECK_EQ(st.entries, fifo ? 0 : 1);
        uint32_t c = space_of(d, 2);
        CHECK_EQ(c, a); /* the number is free again */
        for (uint64_t o = 0; o < 200; o++)
            again += admit(d, c, o, 110000) == LARDER_OK;
        CHECK_EQ(again, n);
        for (uint64_t o = 0; o < 200; o++)
            CHECK(fifo || there(d, c, o, 110000) == (o < again));
        arena_close(d);
    }
}

/* As a process leaves it that is stopped while it evicts. */
TEST(what_is_on_its_way_out_can_be_claimed)
{
    struct dram *d = arena(16 * MIB, REPLACE_FIFO, NULL);
    uint32_t space = space_of(d, 0);
    CHECK_EQ(admit(d, space, 1, 10000), LARDER_OK);
    CHECK_EQ(dram_claim(d, space, 1), CLAIM_THEIRS);
    uint64_t state = atomic_load(&d->states[0].state);
    atomic_store(&d->states[0].state, (state & ~(7ull << 61)) | 5ull << 61); /* SLAB_EVICT */
    CHECK(!there(d, space, 1, 10000));
    CHECK_EQ(dram_claim(d, space, 1), CLAIM_MINE);
    dram_unclaim(d, space, 1);
    atomic_store(&d->states[0].state, state);
    CHECK(there(d, space, 1, 10000));
    CHECK_EQ(dram_claim(d, space, 1), CLAIM_THEIRS);
    arena_close(d);
}

TEST(fifo_drops_the_oldest)
{
    struct dram *d = arena(8 * MIB, REPLACE_FIFO, NULL);
    uint32_t space = space_of(d, 0);
    uint64_t oldest = 0;
    for (uint64_t o = 0; o < 4000; o++) {
        uint32_t len = (uint32_t)(o * 2654435761u % 9000);
        REQUIRE_EQ(admit(d, space, o, len), LARDER_OK);
        CHECK(there(d, space, o, len));
        while (!there(d, space, oldest, (uint32_t)(oldest * 2654435761u % 9000)))
            oldest++;
        if (o % 97 == 0) { /* nothing younger is gone */
            for (uint64_t k = oldest; k <= o; k++)
                CHECK(there(d, space, k, (uint32_t)(k * 2654435761u % 9000)));
        }
    }
    struct dram_stats st;
    dram_stats(d, &st);
    CHECK_EQ(st.entries + st.evictions, 4000);
    CHECK_EQ(st.entries, 4000 - oldest);
    CHECK(st.entries * 4500 > 6 * MIB);
    arena_close(d);
}

TEST(batches_with_misses_and_duplicates)
{
    struct dram *d = arena(32 * MIB, REPLACE_NONE, NULL);
    uint32_t space = space_of(d, 0);
    static uint64_t ordinals[1000];
    static struct extent extents[1000];
    static const void *views[1000];
    uint64_t rng = 5;
    for (uint64_t o = 0; o < 30000; o += 2)
        REQUIRE_EQ(admit(d, space, o, 100 + (uint32_t)o % 50), LARDER_OK);
    for (int round = 0; round < 20; round++) {
        size_t n = rng_below(&rng, 1000), expect = 0;
        for (size_t i = 0; i < n; i++) {
            ordinals[i] = rng_below(&rng, 31000);
            expect += ordinals[i] % 2 == 0 && ordinals[i] < 30000;
        }
        CHECK_EQ(dram_lookup(d, space, ordinals, n, extents, views, NULL, NULL), expect);
        for (size_t i = 0; i < n; i++) {
            CHECK_EQ(views[i] != NULL, ordinals[i] % 2 == 0 && ordinals[i] < 30000);
            if (views[i]) {
                content(ordinals[i] << 8 | space, scratch, 150);
                CHECK(extents[i].shard == EXTENT_CACHED && extents[i].offset == ordinals[i] && extents[i].checked);
                CHECK_EQ(extents[i].stored_len, 100 + ordinals[i] % 50);
                CHECK_MEM(views[i], scratch, extents[i].stored_len);
            }
        }
    }
    arena_close(d);
}

/* ---- claims ---- */

TEST(claims_are_single)
{
    struct dram *d = arena(8 * MIB, REPLACE_NONE, NULL);
    uint32_t space = space_of(d, 0);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_THEIRS);
    CHECK_EQ(dram_claim(d, space, 6), CLAIM_MINE);
    dram_unclaim(d, space, 5);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    CHECK_EQ(admit(d, space, 5, 100), LARDER_OK);
    dram_unclaim(d, space, 5);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_THEIRS); /* it has come */
    dram_wait(d, space, 5, 10000, NULL); /* returns at once */
    uint64_t before = now_ns();
    dram_wait(d, space, 6, 30, NULL);
    CHECK(now_ns() - before >= 29000000);
    dram_unclaim(d, space, 6);
    CHECK_EQ(dram_claim(d, space, CACHE_ORDINAL_MAX + 1), CLAIM_NONE);
    /* a crowd: more than there are places for, each at most once, none lost */
    uint64_t mine = 0, end = 100 + 10ull * d->h->claim_sets;
    for (uint64_t o = 100; o < end; o++)
        mine += dram_claim(d, space, o) == CLAIM_MINE;
    CHECK(mine > d->h->claim_sets * 5 && mine <= d->h->claim_sets * 7);
    for (uint64_t o = 100; o < end; o++)
        dram_unclaim(d, space, o);
    for (uint32_t i = 0; i < d->h->claim_sets; i++)
        for (int k = 0; k < CLAIM_WAYS; k++)
            CHECK_EQ(atomic_load(&d->claims[i].claim[k]), 0);
    arena_close(d);
}

static void age_claims(struct dram *d, unsigned ticks)
{
    for (uint32_t i = 0; i < d->h->claim_sets; i++)
        for (int k = 0; k < CLAIM_WAYS; k++) {
            uint64_t w = atomic_load(&d->claims[i].claim[k]);
            if (w)
                atomic_store(&d->claims[i].claim[k], (w & ~0xfffull) | ((w - ticks) & 0xfff));
        }
}

/* Late is eight times what the slowest claim took lately, between 4 and 30 s (of 250 ms ticks). */
TEST(what_is_late_follows_the_origin)
{
    struct dram *d = arena(1 << 20, REPLACE_NONE, NULL);
    uint32_t space = space_of(d, 0);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    age_claims(d, 14);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_THEIRS);
    age_claims(d, 4);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    age_claims(d, 8); /* 2 s: 16 s are late now */
    dram_unclaim(d, space, 5);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    age_claims(d, 40);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_THEIRS);
    age_claims(d, 34);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    atomic_store(&d->h->slowest, 0xffff); /* never more than 30 s */
    age_claims(d, 110);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_THEIRS);
    age_claims(d, 12);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    for (int i = 0; i < 400 && (uint16_t)atomic_load(&d->h->slowest) > 0; i++) { /* fast ones make it short again, tick by tick */
        dram_unclaim(d, space, 5);
        CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
        atomic_fetch_xor(&d->h->slowest, 1u << 16); /* another tick than now */
        atomic_fetch_xor(&d->h->slowest, 2u << 16);
    }
    CHECK_EQ((uint16_t)atomic_load(&d->h->slowest), 0);
    age_claims(d, 18);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    arena_close(d);
}

struct sleeper { struct dram *d; uint32_t space; struct waker w; };

static void *sleep_main(void *arg)
{
    struct sleeper *s = arg;
    dram_wait(s->d, s->space, 7, 20000, &s->w);
    return NULL;
}

TEST(a_waiter_can_be_woken)
{
    struct dram *d = arena(1 << 20, REPLACE_NONE, NULL);
    struct sleeper s = {.d = d, .space = space_of(d, 0)};
    CHECK_EQ(dram_claim(d, s.space, 7), CLAIM_MINE);
    atomic_store(&d->h->slowest, 0xffff);
    for (int i = 0; i < 20; i++) {
        pthread_t t;
        uint64_t from = now_ns();
        atomic_store(&s.w.woken, false);
        REQUIRE_EQ(pthread_create(&t, NULL, sleep_main, &s), 0);
        while (i % 2 && !atomic_load(&s.w.asleep_on)) /* else woken before it sleeps, or not */
            nanosleep(&(struct timespec){0, 100000}, NULL);
        dram_wake(&s.w);
        pthread_join(t, NULL);
        CHECK(now_ns() - from < 10000000000u);
        CHECK(atomic_load(&s.w.asleep_on) == NULL);
    }
    arena_close(d);
}

TEST(claims_of_the_late_and_the_dead_lapse)
{
    struct dram *d = arena(8 * MIB, REPLACE_NONE, NULL);
    uint32_t space = space_of(d, 0);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    for (uint32_t i = 0; i < d->h->claim_sets; i++)
        for (int k = 0; k < CLAIM_WAYS; k++) {
            uint64_t w = atomic_load(&d->claims[i].claim[k]);
            if (w) /* began 31 s ago */
                atomic_store(&d->claims[i].claim[k], (w & ~0xfffull) | ((w - 124) & 0xfff));
        }
    dram_wait(d, space, 5, 10000, NULL);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    for (uint32_t i = 0; i < d->h->claim_sets; i++)
        for (int k = 0; k < CLAIM_WAYS; k++) {
            uint64_t w = atomic_load(&d->claims[i].claim[k]);
            if (w) /* of a member that never was */
                atomic_store(&d->claims[i].claim[k], (w & 0xffffffffu) | 0x77700ull << 32);
        }
    dram_wait(d, space, 5, 10000, NULL);
    CHECK_EQ(dram_claim(d, space, 5), CLAIM_MINE);
    arena_close(d);
}

struct waiter { struct dram *d; uint32_t space; atomic_int up; double waited; };

static void *wait_main(void *arg)
{
    struct waiter *w = arg;
    uint64_t from = now_ns();
    atomic_store(&w->up, 1);
    dram_wait(w->d, w->space, 9, 20000, NULL);
    w->waited = (double)(now_ns() - from) * 1e-9;
    return NULL;
}

TEST(waiters_are_woken)
{
    struct dram *d = arena(8 * MIB, REPLACE_NONE, NULL);
    struct waiter w = {.d = d, .space = space_of(d, 0)};
    struct timespec t = {0, 50000000};
    pthread_t thread;
    CHECK_EQ(dram_claim(d, w.space, 9), CLAIM_MINE);
    REQUIRE_EQ(pthread_create(&thread, NULL, wait_main, &w), 0);
    nanosleep(&t, NULL);
    dram_unclaim(d, w.space, 9);
    pthread_join(thread, NULL);
    CHECK(w.waited < 10);
    arena_close(d);
}

/* ---- threads ---- */

enum { THREADS = 4, KEYS = 3000 };

struct worker { struct dram *d; uint32_t space; uint64_t seed; uint64_t hits, fetched; uint8_t *from, *to; };

static void *worker_copy(void *user, size_t i, size_t len)
{
    (void)i, (void)len;
    return ((struct worker *)user)->to;
}

static uint32_t len_of(uint64_t o) { return 50 + (uint32_t)(o * 40503 % 3000); }

static void *work_main(void *arg)
{
    struct worker *w = arg;
    uint64_t rng = w->seed;
    for (int i = 0; i < 4000; i++) {
        uint64_t o = rng_below(&rng, KEYS);
        uint32_t len = len_of(o);
        struct cached hit;
        content(o, w->from, len);
        if (look(w->d, w->space, o, &hit, worker_copy, w)) {
            w->hits++;
            CHECK(hit.stored_len == len && memcmp(hit.bytes, w->from, len) == 0);
            continue;
        }
        enum claim claim = dram_claim(w->d, w->space, o);
        if (claim == CLAIM_THEIRS) {
            dram_wait(w->d, w->space, o, 100, NULL);
            continue;
        }
        struct cached r = {w->from, len, len, 0, 0};
        w->fetched += dram_admit(w->d, w->space, o, &r, NULL) == LARDER_OK;
        if (claim == CLAIM_MINE)
            dram_unclaim(w->d, w->space, o);
    }
    return NULL;
}

static void run_threads(struct dram *d, uint64_t *fetched)
{
    struct worker w[THREADS];
    pthread_t threads[THREADS];
    uint32_t space = space_of(d, 0);
    *fetched = 0;
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct worker){.d = d, .space = space, .seed = (uint64_t)i, .from = malloc(8192), .to = malloc(8192)};
        REQUIRE_EQ(pthread_create(&threads[i], NULL, work_main, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        *fetched += w[i].fetched;
        CHECK(w[i].hits > 0);
        free(w[i].from);
        free(w[i].to);
    }
}

TEST(threads_share_it)
{
    struct dram *d = arena(32 * MIB, REPLACE_NONE, NULL);
    struct dram_stats st;
    uint64_t fetched;
    run_threads(d, &fetched);
    dram_stats(d, &st);
    CHECK_EQ(st.entries, fetched); /* each once */
    CHECK_EQ(st.admissions, fetched);
    arena_close(d);
}

TEST(threads_share_it_while_it_replaces)
{
    struct dram *d = arena(3 * MIB, REPLACE_FIFO, NULL);
    struct dram_stats st;
    uint64_t fetched;
    run_threads(d, &fetched);
    dram_stats(d, &st);
    CHECK(st.evictions > 0);
    CHECK_EQ(st.entries + st.evictions, st.admissions);
    arena_close(d);
}

/* ---- pinning ---- */

/* What is locked after some admissions by a user who may lock 64 KiB, and whether there is a warning. */
static int lock_as_nobody(bool no_pin)
{
    struct rlimit low = {64 * KIB, 64 * KIB};
    struct dram_stats st;
    if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534) || setrlimit(RLIMIT_MEMLOCK, &low))
        return 9;
    struct dram *d = arena(32 * MIB, REPLACE_NONE, NULL);
    if (no_pin)
        dram_no_pin(d);
    uint32_t space = space_of(d, 0);
    for (uint64_t o = 0; o < 200; o++)
        CHECK_EQ(admit(d, space, o, 50000), LARDER_OK);
    dram_stats(d, &st);
    CHECK(no_pin ? st.lock_warning == NULL : st.lock_warning && strstr(st.lock_warning, "RLIMIT_MEMLOCK"));
    CHECK(st.locked <= (no_pin ? 0 : 64 * KIB));
    arena_close(d);
    return atomic_load(&test_failures) ? 1 : 0;
}

TEST(pinning_may_be_refused_or_off)
{
    struct dram_stats st;
    for (int no_pin = 0; no_pin < 2; no_pin++) {
        struct dram *d = arena(8 * MIB, REPLACE_NONE, NULL);
        if (no_pin)
            dram_no_pin(d);
        CHECK_EQ(admit(d, space_of(d, 0), 1, 50000), LARDER_OK);
        dram_stats(d, &st);
        CHECK(no_pin ? st.locked == 0 && !st.lock_warning : st.locked > 0 || st.lock_warning);
        arena_close(d);
    }
    bool real = true;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    real = false; /* sanitizers make mlock do nothing */
#endif
    for (int no_pin = 0; no_pin < 2 && real && geteuid() == 0; no_pin++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0)
            _exit(lock_as_nobody(no_pin));
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_EQ(status, 0);
    }
}

/* ---- pieces that no record lies across ---- */

struct lies { uint64_t at, end; };

/* Where the records [0, n) of a space lie in the slab area. */
static void where_they_lie(struct dram *d, uint32_t space, uint64_t n, struct lies *out)
{
    struct cached hit;
    for (uint64_t o = 0; o < n; o++) {
        REQUIRE(look(d, space, o, &hit, NULL, NULL));
        out[o].at = (uint64_t)((const uint8_t *)hit.bytes - d->slabs);
        out[o].end = out[o].at + hit.stored_len;
    }
}

static uint32_t piece_length(uint64_t *rng) { return (uint32_t)rng_below(rng, 16) ? (uint32_t)rng_below(rng, 200000) : (uint32_t)rng_below(rng, 5u << 20); }

TEST(no_record_lies_across_a_cut)
{
    static uint32_t lens[4000];
    static struct lies at[4000];
    uint64_t rng = 5, n = 0, cuts[64] = {0}, theirs = 0, n_cuts = 1;
    struct dram *d = arena(96 * MIB, REPLACE_NONE, NULL), *e;
    struct larder_error err;
    uint32_t space = space_of(d, 0);
    REQUIRE_OK(dram_open(d->share, &e, &err), &err); /* another who cuts */
    CHECK_EQ(slab_cut(d, 0, 1), 0); /* nothing there yet */
    for (; n < ARRAY_LEN(lens); n++) {
        lens[n] = piece_length(&rng);
        if (admit(d, space, n, lens[n]) != LARDER_OK)
            break;
        uint64_t from = cuts[n_cuts - 1], to = slab_cut(d, from, n > 100 ? 8 * MIB : 1);
        CHECK(to == from || to >= from + (n > 100 ? 8 * MIB : 1));
        if (to > from && n_cuts < 64)
            cuts[n_cuts++] = to;
        for (uint64_t last = UINT64_MAX; n % 50 == 0 && theirs != last;)
            theirs = slab_cut(e, last = theirs, 3 * MIB);
    }
    CHECK(n > 200 && n_cuts > 5 && theirs > 40 * MIB);
    where_they_lie(d, space, n, at);
    for (uint64_t o = 0; o < n; o++) {
        CHECK(there(d, space, o, lens[o]));
        for (uint64_t i = 0; i < n_cuts; i++)
            CHECK(at[o].end <= cuts[i] || cuts[i] <= at[o].at);
        CHECK(at[o].end <= theirs || theirs <= at[o].at);
    }
    for (uint64_t i = 1; i < n_cuts; i++)
        CHECK(cuts[i] > cuts[i - 1] && (cuts[i] % d->slab_bytes == 0 || i == n_cuts - 1));
    /* in an arena that was filled without, the whole of it is one piece */
    dram_close(e);
    arena_close(d);
    d = arena(32 * MIB, REPLACE_NONE, NULL);
    space = space_of(d, 0);
    for (n = 0; admit(d, space, n, 150000) == LARDER_OK; n++)
        ;
    uint64_t area = (uint32_t)atomic_load(&d->h->alloc) * ARENA_PAGE;
    CHECK_EQ(slab_cut(d, 0, 2 * MIB), area);
    CHECK_EQ(slab_cut(d, area, 1), area);
    arena_close(d);
}

/* Threads that admit and one that cuts, for the thread checker. */
struct cutting { struct dram *d; uint32_t space; uint64_t cuts[2000]; size_t n; atomic_bool over; atomic_uint_fast64_t next; };

static void *cutter(void *arg)
{
    struct cutting *c = arg;
    for (uint64_t from = 0; !atomic_load(&c->over) && c->n < ARRAY_LEN(c->cuts);) {
        uint64_t to = slab_cut(c->d, from, 1);
        if (to > from)
            c->cuts[c->n++] = from = to;
    }
    return NULL;
}

static void *admitter(void *arg)
{
    struct cutting *c = arg;
    static const uint8_t zeros[40000];
    for (;;) {
        struct cached r = {zeros, 39001, 39001, 0, 0};
        if (dram_admit(c->d, c->space, atomic_fetch_add(&c->next, 1), &r, NULL) != LARDER_OK)
            return NULL;
    }
}

TEST(cutting_beside_admissions)
{
    static struct lies at[3000];
    static struct cutting c;
    pthread_t threads[3];
    c.d = arena(40 * MIB, REPLACE_NONE, NULL);
    c.space = space_of(c.d, 0);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, i ? admitter : cutter, &c);
    pthread_join(threads[1], NULL);
    pthread_join(threads[2], NULL);
    atomic_store(&c.over, true);
    pthread_join(threads[0], NULL);
    uint64_t n = 0;
    struct cached hit;
    for (uint64_t o = 0; o < atomic_load(&c.next); o++) {
        if (!look(c.d, c.space, o, &hit, NULL, NULL))
            continue;
        REQUIRE(n < ARRAY_LEN(at));
        at[n].at = (uint64_t)((const uint8_t *)hit.bytes - c.d->slabs);
        at[n].end = at[n].at + hit.stored_len;
        n++;
    }
    CHECK(n > 900);
    for (uint64_t o = 0; o < n; o++)
        for (size_t i = 0; i < c.n; i++)
            CHECK(at[o].end <= c.cuts[i] || c.cuts[i] <= at[o].at);
    arena_close(c.d);
}

/* ---- processes ---- */

TEST(processes_share_it)
{
    char name[64];
#ifdef __SANITIZE_THREAD__
    TEST_SKIP("the thread checker allows no threads in a forked child");
#endif
    snprintf(name, sizeof name, "test-dram-%d", (int)getpid());
    struct dram *d = arena(32 * MIB, REPLACE_NONE, name);
    uint32_t space = space_of(d, 0);
    for (uint64_t o = 0; o < 100; o++)
        CHECK_EQ(admit(d, space, o, 1000), LARDER_OK);
    pid_t pid = fork();
    if (pid == 0) {
        struct dram *e = arena(8 * MIB, REPLACE_NONE, name); /* it has the size that it has */
        bool good = space_of(e, 0) == space && e->member != d->member;
        for (uint64_t o = 0; o < 100; o++)
            good &= there(e, space, o, 1000);
        for (uint64_t o = 100; o < 200; o++)
            good &= admit(e, space, o, 1000) == LARDER_OK;
        good &= dram_claim(e, space, 1000) == CLAIM_MINE; /* and dies */
        good &= space_of(e, 9) == 1 && admit(e, 1, 5, 50) == LARDER_OK;
        _exit(good ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    for (uint64_t o = 0; o < 200; o++)
        CHECK(there(d, space, o, 1000));
    dram_wait(d, space, 1000, 10000, NULL);
    CHECK_EQ(dram_claim(d, space, 1000), CLAIM_MINE);
    CHECK_EQ(dram_reclaim(d), 1); /* its own space has no user any more */
    arena_close(d);
}

TEST_MAIN();
