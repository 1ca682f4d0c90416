/* SPDX-License-Identifier: Apache-2.0 */
/* test_variant.c - what was made of records: lookups, budget, names, two processes, threads. */
#include <pthread.h>
#include <sys/wait.h>

#include "tests/unit/test.h"
#include "tiers/stack_int.h"

static struct manifest some_manifest(const char *uuid)
{
    struct manifest m = {.samples = 1000};
    memcpy(m.uuid, uuid, 16);
    memcpy(m.lineage, "lineage of tests", 16);
    return m;
}

static struct tiers_variant *variant(const char *uuid, const char *name, uint64_t bytes, uint64_t fingerprint)
{
    struct manifest m = some_manifest(uuid);
    struct tiers_variant_options o = {name, bytes, fingerprint, true};
    struct tiers_variant *v = NULL;
    struct larder_error err;
    REQUIRE_OK(tiers_variant_open(&m, &o, &v, &err), &err);
    return v;
}

static uint32_t len_of(uint64_t ordinal) { return (uint32_t)(ordinal * 2654435761u % 5000); }

static void content(uint64_t ordinal, uint64_t variant, uint8_t *out)
{
    uint64_t seed = ordinal << 8 | variant;
    for (uint32_t i = 0, len = len_of(ordinal); i < len; i += 8) {
        uint64_t x = rng_u64(&seed);
        memcpy(out + i, &x, MIN(8, len - i));
    }
}

static bool put(struct tiers_variant *v, uint64_t ordinal, uint64_t variant)
{
    uint8_t bytes[5000];
    content(ordinal, variant, bytes);
    return tiers_variant_put(v, ordinal, bytes, len_of(ordinal), len_of(ordinal) + 7, (uint8_t)(ordinal % 2));
}

/* How many of [0, n) are there; each of them has to be whole. */
static size_t count(struct tiers_variant *v, uint64_t n, uint64_t variant)
{
    uint64_t *ordinals = calloc(n, sizeof(*ordinals));
    struct extent *e = calloc(n, sizeof(*e));
    const void **views = calloc(n, sizeof(*views));
    size_t seen = 0;
    uint8_t bytes[5000];
    for (uint64_t i = 0; i < n; i++)
        ordinals[i] = n - 1 - i;
    size_t found = tiers_variant_lookup(v, ordinals, n, e, views);
    for (uint64_t i = 0; i < n; i++) {
        if (!views[i])
            continue;
        seen++;
        content(ordinals[i], variant, bytes);
        CHECK_EQ(e[i].stored_len, len_of(ordinals[i]));
        CHECK_EQ(e[i].raw_len, len_of(ordinals[i]) + 7);
        CHECK_EQ(e[i].codec, ordinals[i] % 2);
        CHECK_MEM(views[i], bytes, e[i].stored_len);
    }
    CHECK_EQ(found, seen);
    free(ordinals);
    free(e);
    free(views);
    return found;
}

TEST(what_is_put_is_found)
{
    struct tiers_variant *v = variant("dataset of tests", NULL, 8 * MIB, 1);
    struct tiers_variant_stats s;
    CHECK_EQ(count(v, 500, 0), 0);
    for (uint64_t i = 0; i < 500; i += 2)
        CHECK(put(v, i, 0));
    CHECK_EQ(count(v, 500, 0), 250);
    CHECK(tiers_variant_put(v, 4, "something else", 15, 15, 1)); /* dropped: it is there */
    CHECK_EQ(count(v, 500, 0), 250);
    tiers_variant_stats(v, &s);
    CHECK_EQ(s.entries, 250);
    CHECK_EQ(s.refusals, 0);
    CHECK_EQ(s.budget_bytes, 8 * MIB);
    CHECK(s.used_bytes <= s.budget_bytes && s.used_bytes > 250 * 1000);
    CHECK(!s.shared && !s.joined && !s.warning);
    CHECK(!tiers_variant_full(v));
    tiers_variant_close(v);
    tiers_variant_close(NULL);
}

TEST(the_budget_is_hard_and_nothing_is_replaced)
{
    struct tiers_variant *v = variant("dataset of tests", NULL, 4 * MIB, 1);
    struct tiers_variant_stats s;
    uint64_t n = 0;
    while (put(v, n, 0))
        n++;
    CHECK(n > 1000 && n < 2000); /* 2.5 kB in the mean */
    CHECK(tiers_variant_full(v));
    for (uint64_t i = n; i < n + 500; i++)
        CHECK(!put(v, i, 0));
    CHECK_EQ(count(v, n + 500, 0), n);
    tiers_variant_stats(v, &s);
    CHECK_EQ(s.entries, n);
    CHECK(s.used_bytes <= 4 * MIB);
    CHECK_EQ(s.refusals, 501);
    tiers_variant_close(v);
}

TEST(what_is_made_differently_is_another_space)
{
    struct tiers_variant *a = variant("dataset of tests", "variant-spaces", 8 * MIB, 1);
    struct tiers_variant *b = variant("dataset of tests", "variant-spaces", 8 * MIB, 2);
    struct tiers_variant *c = variant("another dataset.", "variant-spaces", 8 * MIB, 1);
    struct tiers_variant *d = variant("dataset of tests", "variant-other", 8 * MIB, 1);
    struct tiers_variant *e = variant("dataset of tests", "variant-spaces", 8 * MIB, 1);
    for (uint64_t i = 0; i < 100; i++) {
        CHECK(put(a, i, 1));
        CHECK(put(b, i + 50, 2));
    }
    CHECK_EQ(count(a, 200, 1), 100);
    CHECK_EQ(count(b, 200, 2), 100);
    CHECK_EQ(count(c, 200, 1), 0);
    CHECK_EQ(count(d, 200, 1), 0);
    CHECK_EQ(count(e, 200, 1), 100);
    tiers_variant_close(a);
    CHECK_EQ(count(e, 200, 1), 100);
    tiers_variant_close(b);
    tiers_variant_close(c);
    tiers_variant_close(d);
    tiers_variant_close(e);
}

TEST(room_comes_back_when_nobody_uses_a_variant)
{
    TEST_FORKS();
    struct tiers_variant *keep = variant("dataset of tests", "variant-room", 4 * MIB, 1);
    pid_t pid = fork(); /* another process fills the budget, and goes */
    if (pid == 0) {
        struct tiers_variant *v = variant("dataset of tests", "variant-room", 4 * MIB, 2);
        uint64_t n = 0;
        while (put(v, n, 0))
            n++;
        _exit(n > 1000 && tiers_variant_full(v) ? 0 : 1); /* without closing */
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    CHECK(tiers_variant_full(keep));
    struct tiers_variant *next = variant("dataset of tests", "variant-room", 4 * MIB, 3);
    CHECK(!tiers_variant_full(next));
    for (uint64_t i = 0; i < 1000; i++)
        CHECK(put(next, i, 0));
    CHECK_EQ(count(next, 1000, 0), 1000);
    tiers_variant_close(next);
    tiers_variant_close(keep);
}

TEST(processes_share)
{
    TEST_FORKS();
    struct tiers_variant *v = variant("dataset of tests", "variant-shared", 8 * MIB, 1);
    struct tiers_variant_stats s;
    for (uint64_t i = 0; i < 100; i++)
        CHECK(put(v, i, 0));
    pid_t pid = fork();
    if (pid == 0) {
        tiers_variant_close(v); /* the parent's: memory only */
        v = variant("dataset of tests", "variant-shared", 16 * MIB, 1);
        tiers_variant_stats(v, &s);
        bool right = s.shared && s.joined && s.warning && strstr(s.warning, "who makes it sets it") && s.budget_bytes == 8 * MIB;
        right &= count(v, 300, 0) == 100;
        for (uint64_t i = 100; i < 200; i++)
            right &= put(v, i, 0);
        tiers_variant_close(v);
        _exit(right && !test_failures ? 0 : 1);
    }
    int status;
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    CHECK_EQ(count(v, 300, 0), 200);
    tiers_variant_stats(v, &s);
    CHECK(s.shared && !s.joined);
    CHECK_EQ(s.entries, 200);
    tiers_variant_close(v);
}

TEST(long_names_and_bad_ones)
{
    struct manifest m = some_manifest("dataset of tests");
    struct larder_error err;
    struct tiers_variant_options o = {"123456789-123456789-123456789-123456789-123456789-123456789-1234", 4 * MIB, 1, true};
    struct tiers_variant *a, *b, *v;
    REQUIRE_OK(tiers_variant_open(&m, &o, &a, &err), &err);
    REQUIRE_OK(tiers_variant_open(&m, &o, &b, &err), &err);
    CHECK(put(a, 3, 0));
    CHECK_EQ(count(b, 10, 0), 1);
    tiers_variant_close(a);
    tiers_variant_close(b);
    o.name = "no/name";
    CHECK_ERR(tiers_variant_open(&m, &o, &v, &err), LARDER_EINVAL, &err);
    CHECK(!v);
    o.name = NULL;
    o.bytes = 1000;
    CHECK_ERR(tiers_variant_open(&m, &o, &v, &err), LARDER_EINVAL, &err);
    o.bytes = UINT64_MAX;
    CHECK_ERR(tiers_variant_open(&m, &o, &v, &err), LARDER_EINVAL, &err);
    CHECK(!v);
}

TEST(an_arena_that_replaces_is_refused)
{
    struct larder_cache_options c = LARDER_CACHE_OPTIONS_INIT;
    struct manifest m = some_manifest("dataset of tests");
    struct tiers_variant_options o = {"variant-fifo", 4 * MIB, 1, true};
    struct larder_error err;
    struct tiers_cache *cache;
    struct tiers_variant *v;
    c.name = "decoded-variant-fifo";
    c.dram_bytes = 4 * MIB;
    c.replacement = LARDER_REPLACE_FIFO;
    REQUIRE_OK(tiers_cache_open(&c, &cache, &err), &err);
    CHECK_ERR(tiers_variant_open(&m, &o, &v, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "another cache name") != NULL);
    tiers_cache_close(cache);
}

struct racer { struct tiers_variant *v; uint64_t seed; };

static void *race(void *arg)
{
    struct racer *r = arg;
    for (int i = 0; i < 3000; i++) {
        uint64_t ordinal = rng_below(&r->seed, 400);
        struct extent e;
        const void *view;
        uint8_t bytes[5000];
        if (!tiers_variant_lookup(r->v, &ordinal, 1, &e, &view)) {
            put(r->v, ordinal, 0);
        } else if (i % 4 == 0) {
            content(ordinal, 0, bytes);
            CHECK(e.stored_len == len_of(ordinal) && memcmp(view, bytes, e.stored_len) == 0);
        }
    }
    return NULL;
}

TEST(threads_put_and_look_up_at_once)
{
    struct tiers_variant *v = variant("dataset of tests", NULL, 4 * MIB, 1);
    struct racer r[4];
    pthread_t t[4];
    for (int i = 0; i < 4; i++) {
        r[i] = (struct racer){v, 17 + (uint64_t)i};
        REQUIRE(pthread_create(&t[i], NULL, race, &r[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    CHECK_EQ(count(v, 400, 0), 400);
    struct tiers_variant_stats s;
    tiers_variant_stats(v, &s);
    CHECK_EQ(s.entries, 400);
    tiers_variant_close(v);
}

TEST_MAIN();
