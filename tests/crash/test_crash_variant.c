/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_crash_variant.c - processes that share a decoded cache, killed while they put.
 *
 * Four workers look up and put under two fingerprints; every hit is checked byte for byte. One after the other is killed at a random moment
 * and replaced. In the end all are killed: what is there is whole, the budget holds, and the cache still takes what has room.
 * Seconds: CRASH_SECONDS (3).
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/test.h"
#include "tiers/stack_int.h"

enum { WORKERS = 4, KEYS = 3000, LEN_MAX = 300000 };
#define BUDGET (24 * MIB)

static char cache_name[64];

static struct tiers_variant *join(uint64_t fingerprint)
{
    struct manifest m = {.samples = KEYS, .uuid = "crash"};
    struct tiers_variant_options o = {cache_name, BUDGET, fingerprint, true};
    struct tiers_variant_stats s;
    struct tiers_variant *v;
    if (tiers_variant_open(&m, &o, &v, NULL) != LARDER_OK)
        return NULL;
    tiers_variant_stats(v, &s);
    if (s.shared)
        return v;
    tiers_variant_close(v); /* who answers was killed just now */
    return NULL;
}

static uint32_t content(uint64_t fingerprint, uint64_t key, uint8_t *out)
{
    uint64_t seed = key << 8 | fingerprint;
    uint32_t len = (uint32_t)(key * 2654435761u % (key % 50 == 0 ? LEN_MAX : 12000));
    for (uint32_t i = 0; i < len; i += 8) {
        uint64_t x = rng_u64(&seed);
        memcpy(out + i, &x, MIN(8, len - i));
    }
    return len;
}

static uint8_t truth[LEN_MAX + 8];

/* 0: not there; 1: right; -1: wrong */
static int look(struct tiers_variant *v, uint64_t fingerprint, uint64_t key)
{
    struct extent e;
    const void *view;
    if (!tiers_variant_lookup(v, &key, 1, &e, &view))
        return 0;
    uint32_t len = content(fingerprint, key, truth);
    return e.stored_len == len && e.raw_len == len + 1 && e.codec == key % 2 && memcmp(view, truth, len) == 0 ? 1 : -1;
}

/* Until it is killed; exits by itself only when something is wrong. */
static void work(uint64_t rng)
{
    struct tiers_variant *v = NULL;
    uint64_t fingerprint = 0;
    for (;;) {
        if (v && rng_below(&rng, 20000) == 0) {
            tiers_variant_close(v);
            v = NULL;
        }
        if (!v) {
            fingerprint = rng_below(&rng, 2);
            v = join(fingerprint);
            continue;
        }
        uint64_t key = rng_below(&rng, KEYS);
        int found = look(v, fingerprint, key);
        if (found < 0)
            _exit(4);
        if (!found) {
            uint32_t len = content(fingerprint, key, truth);
            tiers_variant_put(v, key, truth, len, len + 1, (uint8_t)(key % 2));
        }
    }
}

static pid_t start(uint64_t seed)
{
    pid_t pid = fork();
    if (pid == 0)
        work(seed);
    return pid;
}

static void end(pid_t pid)
{
    int status = 0;
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* else it found something wrong */
}

TEST(killed_while_they_put)
{
    TEST_FORKS();
    const char *seconds = getenv("CRASH_SECONDS");
    uint64_t rng = (uint64_t)getpid(), kills = 0, there = 0, until;
    pid_t workers[WORKERS];
    snprintf(cache_name, sizeof(cache_name), "crash-variant-%d", (int)getpid());
    struct tiers_variant *v[2] = {join(0), join(1)};
    struct tiers_variant_stats s;
    REQUIRE(v[0] && v[1]);
    for (int i = 0; i < WORKERS; i++)
        workers[i] = start(rng_u64(&rng));
    until = now_ns() + (seconds ? strtoull(seconds, NULL, 10) : 3) * 1000000000ull;
    for (; now_ns() < until && !test_failures; kills++) {
        struct timespec t = {0, (long)(1 + rng_below(&rng, 15)) * 1000000};
        int i = (int)rng_below(&rng, WORKERS);
        nanosleep(&t, NULL);
        end(workers[i]);
        workers[i] = start(rng_u64(&rng));
    }
    for (int i = 0; i < WORKERS; i++)
        end(workers[i]);
    for (uint64_t f = 0; f < 2; f++)
        for (uint64_t key = 0; key < KEYS; key++) {
            int found = look(v[f], f, key);
            CHECK(found >= 0);
            there += found > 0;
        }
    tiers_variant_stats(v[0], &s);
    CHECK(there > 0 && kills > 10);
    CHECK(s.used_bytes <= BUDGET);
    CHECK(s.entries >= there); /* who was killed in between is counted and not there */
    tiers_variant_close(v[1]);
    tiers_variant_close(v[0]);
    v[0] = join(2); /* a fresh one, for the last process has gone */
    REQUIRE(v[0] != NULL);
    uint32_t len = content(2, 7, truth);
    CHECK(tiers_variant_put(v[0], 7, truth, len, len + 1, 1));
    CHECK_EQ(look(v[0], 2, 7), 1);
    tiers_variant_close(v[0]);
}

TEST_MAIN();
