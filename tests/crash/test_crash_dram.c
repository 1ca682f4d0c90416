/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_crash_dram.c - processes that share an arena under random kill -9 and SIGSTOP.
 *
 * Six workers look up, claim, admit, forget and join anew; the content of a record follows from its key, and every hit is
 * checked byte for byte. Meanwhile one worker after the other is killed or stopped at a random moment and replaced. In the end all
 * are killed, every record left is checked, nothing exceeds the budget, and admission, claims and forgetting work as ever.
 * Seconds for each policy: CRASH_SECONDS (5).
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/test.h"
#include "tiers/dram_int.h"

enum { WORKERS = 6, KEYS = 6000, SPACES = 10, LEN_MAX = 400000 };
#define BUDGET (24 * MIB)

static char region_name[64];

static int lay_out(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    return dram_init(base, bytes, *(enum replacement *)user, err);
}

static struct dram *join(enum replacement replacement)
{
    struct share_options o = {region_name, dram_region_bytes(BUDGET), lay_out, &replacement, NULL};
    struct larder_error err;
    struct share *s;
    struct dram *d;
    if (share_open(&o, &s, &err) != LARDER_OK)
        return NULL;
    if (share_private(s) || dram_open(s, &d, &err) != LARDER_OK) {
        share_close(s);
        return NULL;
    }
    return d;
}

static void leave(struct dram *d)
{
    struct share *s = d->share;
    dram_close(d);
    share_close(s);
}

static bool space_of(struct dram *d, uint32_t variant, uint32_t *id)
{
    struct cache_space space = {.uuid = "crash", .variant = variant};
    return dram_space(d, &space, id, NULL) == LARDER_OK;
}

static uint32_t len_of(uint32_t variant, uint64_t key)
{
    uint64_t x = key * 2654435761u + variant;
    return x % 200 == 0 ? (uint32_t)(x % LEN_MAX) : (uint32_t)(x % 9000);
}

static void content(uint32_t variant, uint64_t key, uint8_t *out, size_t len)
{
    uint64_t seed = key << 8 | variant;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t v = rng_u64(&seed);
        memcpy(out + i, &v, MIN(8, len - i));
    }
}

static uint8_t truth[LEN_MAX], copied[LEN_MAX];

static void *copy_to(void *user, size_t i, size_t len)
{
    (void)user, (void)i;
    return len <= sizeof copied ? copied : NULL;
}

/* 0: not there; 1: right; -1: wrong */
static int look(struct dram *d, uint32_t variant, uint32_t id, uint64_t key)
{
    uint32_t len = len_of(variant, key);
    struct extent hit;
    const void *view;
    if (!dram_lookup(d, id, &key, 1, &hit, &view, copy_to, NULL))
        return 0;
    content(variant, key, truth, len);
    return hit.stored_len == len && hit.raw_len == len + key % 2 && hit.crc == (uint32_t)key && hit.codec == key % 3 &&
           memcmp(view, truth, len) == 0 ? 1 : -1;
}

static int put(struct dram *d, uint32_t variant, uint32_t id, uint64_t key)
{
    uint32_t len = len_of(variant, key);
    struct cached r = {truth, len, len + key % 2, (uint32_t)key, (uint8_t)(key % 3)};
    content(variant, key, truth, len);
    return dram_admit(d, id, key, &r, NULL);
}

/* Runs until it is killed; exits by itself only when something is wrong. */
static void work(uint64_t seed, enum replacement replacement)
{
    uint64_t rng = seed;
    struct dram *d = NULL;
    uint32_t id = 0, v = SPACES;
    for (;;) {
        if (d && rng_below(&rng, 20000) == 0) {
            leave(d);
            d = NULL;
        }
        if (!d) {
            v = SPACES;
            d = join(replacement);
            if (!d)
                continue; /* the one that answers was stopped or killed just now */
        }
        if (v < SPACES && rng_below(&rng, dram_closed(d) ? 50 : 2000) == 0) {
            dram_leave(d, id);
            dram_forget(d, id); /* unless another uses it */
            v = SPACES;
        }
        if (v == SPACES) {
            v = (uint32_t)rng_below(&rng, SPACES);
            if (!space_of(d, v, &id))
                _exit(3);
        }
        uint64_t key = rng_below(&rng, KEYS);
        int found = look(d, v, id, key);
        if (found < 0)
            _exit(4);
        if (found)
            continue;
        enum claim claim = dram_claim(d, id, key);
        if (claim == CLAIM_THEIRS) {
            dram_wait(d, id, key, 5, NULL);
            continue;
        }
        put(d, v, id, key);
        if (claim == CLAIM_MINE)
            dram_unclaim(d, id, key);
    }
}

static pid_t start(uint64_t seed, enum replacement replacement)
{
    pid_t pid = fork();
    if (pid == 0)
        work(seed, replacement);
    return pid;
}

static void end(pid_t pid)
{
    int status = 0;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* else it found something wrong */
}

static void pause_us(uint64_t us)
{
    struct timespec t = {0, (long)us * 1000};
    nanosleep(&t, NULL);
}

static void check_all(struct dram *d, uint64_t *there)
{
    *there = 0;
    for (uint32_t v = 0; v < SPACES; v++) {
        uint32_t id;
        REQUIRE(space_of(d, v, &id));
        for (uint64_t key = 0; key < KEYS; key++) {
            int found = look(d, v, id, key);
            CHECK(found >= 0);
            *there += found > 0;
        }
    }
}

static void storm(enum replacement replacement, unsigned seconds)
{
    pid_t workers[WORKERS];
    uint64_t rng = (uint64_t)getpid(), there, kills = 0, end_ns;
    snprintf(region_name, sizeof region_name, "crash-dram-%d-%d", (int)getpid(), (int)replacement);
    struct dram *d = join(replacement);
    struct dram_stats st;
    REQUIRE(d != NULL);
    for (int i = 0; i < WORKERS; i++)
        workers[i] = start(rng_u64(&rng), replacement);
    end_ns = now_ns() + seconds * 1000000000ull;
    while (now_ns() < end_ns && !test_failures) {
        int i = (int)rng_below(&rng, WORKERS);
        pause_us(1000 + rng_below(&rng, 20000));
        if (rng_below(&rng, 8) == 0) {
            kill(workers[i], SIGSTOP);
            pause_us(30000);
            kill(workers[i], SIGCONT);
            continue;
        }
        end(workers[i]);
        workers[i] = start(rng_u64(&rng), replacement);
        kills++;
    }
    for (int i = 0; i < WORKERS; i++)
        end(workers[i]);
    CHECK(kills > seconds * 2);
    check_all(d, &there);
    dram_stats(d, &st);
    CHECK(st.admissions > 0 && st.entries >= there);
    CHECK(st.used <= st.budget);
    CHECK((uint32_t)atomic_load(&d->h->alloc) + (atomic_load(&d->h->alloc) >> 32) + d->h->fixed_pages <= d->h->budget_pages);
    if (getenv("CRASH_VERBOSE"))
        printf("%" PRIu64 " kills, %" PRIu64 " admissions, %" PRIu64 " refusals, %" PRIu64 " evictions, %" PRIu64 " entries (%" PRIu64
               " found)\n", kills, st.admissions, st.refusals, st.evictions, st.entries, there);

    /* nobody but us now, and nothing of the dead in the way: all is forgotten, all its room is there again */
    for (uint32_t i = 0; i < d->h->spaces_max; i++)
        dram_leave(d, i);
    if (replacement == REPLACE_NONE) {
        uint32_t id;
        uint64_t key = 0, bytes = 0;
        dram_reclaim(d);
        dram_reclaim(d);
        CHECK_EQ(slab_used(d), 0);
        REQUIRE(space_of(d, 77, &id));
        while (put(d, 77, id, key) == LARDER_OK)
            bytes += len_of(77, key++);
        CHECK(bytes > BUDGET * 8 / 10);
    }
    for (uint32_t v = 0; v < SPACES; v++) {
        uint32_t id;
        REQUIRE(space_of(d, v, &id));
        for (uint64_t key = 0; key < KEYS; key++) {
            if (look(d, v, id, key))
                continue;
            CHECK_EQ(dram_claim(d, id, key), CLAIM_MINE); /* the dead hold none */
            dram_unclaim(d, id, key);
            if (replacement == REPLACE_FIFO) {
                CHECK_EQ(put(d, v, id, key), LARDER_OK);
                CHECK_EQ(look(d, v, id, key), 1);
            }
        }
    }
    leave(d);
}

static unsigned seconds_each(void) { return getenv("CRASH_SECONDS") ? (unsigned)atoi(getenv("CRASH_SECONDS")) : 5; }

TEST(kept) { storm(REPLACE_NONE, seconds_each()); }
TEST(replaced) { storm(REPLACE_FIFO, seconds_each()); }

TEST_MAIN();
