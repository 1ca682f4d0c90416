/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_crash_cache.c - processes that share memory and a directory under random kill -9, and some SIGSTOP.
 *
 * Two to eight workers read random samples of a dataset through one cache, each byte of each sample is checked, and what the tiers
 * lack is admitted; now and then a worker closes all and opens it again. One after the other is killed at a random moment, also
 * while it opens, recovers, fills a segment or holds a lock, and is replaced. In `alone` nobody else uses the cache, so that it is
 * also recovered again and again; in the others a process that sleeps keeps it from beginning anew, and finds in the end that nothing is
 * lost: its room is there, what was half admitted comes in, the limit holds.
 *
 * Then every sample is read once more by a fresh process, from the directory alone. `long` is the directory's tier by itself, with
 * records of many lengths, some longer than a segment. LARDER_CRASH_SECONDS: of all together (20).
 */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/dataset.h"
#include "tests/unit/nvme_records.h"

enum { WORKERS = 8, BATCH = 32, STORMS = 4 };
#define LIMIT (10 * MIB)

static const struct dataset_spec spec = {700, 200, 1000, 60000, 40, LARDER_COMPRESS_NONE}; /* 22 MB */
static const char *dataset;

struct storm { const char *name, *dir; int replacement; bool alone, tier; unsigned workers; };

/* ---- a worker ---- */

static struct larder_cache *open_cache(const struct storm *s, bool dram)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    struct larder_cache_nvme n = {s->dir, LIMIT};
    struct larder_cache *c;
    o.name = s->name;
    o.dram_bytes = dram ? 6 * MIB : LARDER_DRAM_OFF;
    o.replacement = s->replacement;
    o.copy_local = 1;
    o.nvme = &n, o.n_nvme = 1;
    return larder_cache_open(&o, &c, NULL) ? NULL : c;
}

static struct larder_dataset *open_ds(struct larder_cache *c)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    o.cache = c;
    return larder_dataset_open(dataset, &o, &ds, NULL) ? NULL : ds;
}

/* 0: all is right. */
static int read_batch(struct larder_dataset *ds, const uint64_t *ordinals, size_t n)
{
    struct larder_sample samples[BATCH] = {{0}};
    int rc = larder_dataset_read(ds, ordinals, n, NULL, samples, NULL) ? 4 : 0;
    for (size_t i = 0; !rc && i < n; i++)
        rc = sample_is(&spec, ordinals[i], samples[i].fields) ? 0 : 3;
    larder_samples_release(samples, n);
    return rc;
}

static void work(const struct storm *s, uint64_t seed)
{
    for (;;) {
        struct larder_cache *c = open_cache(s, rng_below(&seed, 4) > 0);
        struct larder_dataset *ds = c ? open_ds(c) : NULL;
        if (!ds)
            _exit(5);
        for (uint64_t i = 0, n = 1 + rng_below(&seed, 200); i < n; i++) {
            uint64_t ordinals[BATCH], count = 1 + rng_below(&seed, BATCH);
            for (uint64_t k = 0; k < count; k++)
                ordinals[k] = rng_below(&seed, spec.n);
            int rc = read_batch(ds, ordinals, count);
            if (rc)
                _exit(rc);
        }
        larder_dataset_close(ds);
        larder_cache_close(c);
    }
}

/* ---- the tier by itself ---- */

enum { KEYS = 400 };

static uint32_t long_len(uint64_t key) { return key % 20 == 0 ? (uint32_t)(key * 7919 % (3 * MIB)) : (uint32_t)(key * 7919 % 40000); }

static void long_bytes(uint64_t key, uint8_t *out) { rng_fill(&key, out, long_len(key)); }

static uint8_t truth[3 * MIB + 8];

/* As nvme_test_get. */
static enum nvme_outcome long_get(struct nvme *n, uint32_t id, uint64_t key)
{
    struct nvme_place at;
    struct cached hit;
    void *mem = NULL;
    if (!nvme_lookup(n, id, key, &at))
        return NVME_MISS;
    if (posix_memalign(&mem, NVME_PAGE, at.len) != 0)
        abort();
    enum nvme_outcome out = NVME_HEALED;
    bool read = pread(at.fd, mem, at.len, (off_t)at.offset) == (ssize_t)at.len;
    if (nvme_check(n, id, key, &at, read ? mem : NULL, &hit)) {
        long_bytes(key, truth);
        out = hit.stored_len == long_len(key) && memcmp(hit.bytes, truth, hit.stored_len) == 0 ? NVME_HIT : NVME_WRONG;
    }
    free(mem);
    return out;
}

static bool long_admit(struct nvme *n, uint32_t id, uint64_t key)
{
    uint32_t len = long_len(key);
    long_bytes(key, truth);
    struct cached c = {truth, len, len, crc32c(0, truth, len), 0};
    return nvme_admit(n, id, key, &c) == LARDER_OK;
}

static uint32_t long_id(struct nvme *n)
{
    struct cache_space space = nvme_test_space(5);
    uint32_t id = 0;
    return nvme_space(n, &space, &id, NULL) ? 0 : id;
}

static void work_tier(const struct storm *s, uint64_t seed)
{
    for (;;) {
        struct nvme_options o = {s->dir, LIMIT, (enum replacement)s->replacement, true, s->name};
        struct nvme *n;
        if (nvme_open(&o, &n, NULL))
            continue; /* the one that answers was stopped or killed just now */
        uint32_t id = long_id(n);
        if (!id)
            _exit(5);
        for (uint64_t i = 0, count = 1 + rng_below(&seed, 3000); i < count; i++) {
            uint64_t key = rng_below(&seed, KEYS);
            enum nvme_outcome out = long_get(n, id, key);
            if (out == NVME_WRONG)
                _exit(3);
            if (out != NVME_HIT && !long_admit(n, id, key) && rng_below(&seed, 10) == 0)
                nvme_flush(n);
        }
        nvme_close(n);
    }
}

/* ---- the storm ---- */

static pid_t start(const struct storm *s, uint64_t seed)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
    if (s->tier)
        work_tier(s, seed);
    else
        work(s, seed);
    _exit(6);
}

static void end(pid_t pid)
{
    int status = 0;
    kill(pid, SIGKILL);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(WIFSIGNALED(status) ? 0 : WEXITSTATUS(status), 0); /* 3: a byte was wrong; 4, 5: it could not go on */
}

static void pause_us(uint64_t us)
{
    struct timespec t = {0, (long)us * 1000};
    nanosleep(&t, NULL);
}

static unsigned rage(const struct storm *s, uint64_t until_ns, uint64_t *rng)
{
    pid_t workers[WORKERS];
    unsigned kills = 0;
    for (unsigned i = 0; i < s->workers; i++)
        workers[i] = start(s, rng_u64(rng));
    while ((now_ns() < until_ns || kills < 10) && !atomic_load(&test_failures)) {
        unsigned i = (unsigned)rng_below(rng, s->workers);
        pause_us(rng_below(rng, 5) ? 1000 + rng_below(rng, 30000) : 1000 + rng_below(rng, 200000));
        if (rng_below(rng, 10) == 0) {
            kill(workers[i], SIGSTOP);
            pause_us(20000);
            kill(workers[i], SIGCONT);
            continue;
        }
        if (s->alone && rng_below(rng, 6) == 0) { /* all at once: the next one recovers */
            for (unsigned k = 0; k < s->workers; k++) {
                end(workers[k]);
                workers[k] = start(s, rng_u64(rng));
            }
        }
        end(workers[i]);
        workers[i] = start(s, rng_u64(rng));
        kills++;
    }
    for (unsigned i = 0; i < s->workers; i++)
        end(workers[i]);
    return kills;
}

/* A process of the group that does nothing meanwhile looks at what is left. */
static void nothing_lost(struct nvme *n, uint32_t id)
{
    struct nvme_shared *h = n->h;
    struct nvme_stats st;
    unsigned free_places = 0, there = 0;
    uint64_t bytes = 0, pending = 0;
    CHECK(long_id(n) == id); /* takes over what the dead have left */
    for (unsigned i = 0; i < h->n_segments; i++) {
        const struct nvme_segment *g = &h->segments[i];
        CHECK_EQ(g->owner, 0);
        CHECK(g->state == NVME_FREE || g->state == NVME_SEALED || g->state == NVME_OPEN || g->state == NVME_LENT);
        CHECK_EQ(h->seq[i] != 0, g->state == NVME_SEALED || g->state == NVME_OPEN);
        free_places += g->state == NVME_FREE;
        pending += g->n - g->published;
    }
    CHECK_EQ(pending, 0);
    nvme_stats(n, &st);
    CHECK(st.used <= st.budget);
    for (uint32_t i = 1; i <= NVME_SPACES_MAX; i++) /* nobody uses what the workers used: it makes room */
        CHECK(!h->spaces[i].taken || i == id || !nvme_space_used(n, i));
    for (uint64_t key = 10000; !nvme_closed(n, id) && key < 12000; key++) {
        if (key % 20 == 0)
            continue; /* short ones, so that it can be told how many fit */
        bool in = long_admit(n, id, key);
        if (!in && !nvme_closed(n, id)) {
            nvme_flush(n);
            in = long_admit(n, id, key);
        }
    }
    nvme_flush(n);
    for (uint64_t key = 0; key < 12000; key++) {
        enum nvme_outcome out = long_get(n, id, key);
        CHECK(out != NVME_WRONG);
        there += out == NVME_HIT;
        bytes += out == NVME_HIT ? long_len(key) : 0;
    }
    nvme_stats(n, &st);
    CHECK(bytes > (h->n_segments - 1) * (h->segment_bytes * 7 / 8)); /* the last segment may be all but empty */
    CHECK(st.used <= st.budget && there <= st.entries);
    CHECK_STR(st.warning ? st.warning : "", "");
    for (unsigned i = 0; getenv("CRASH_VERBOSE") && i < h->n_segments; i++) {
        const struct nvme_segment *g = &h->segments[i];
        printf("  %u: state %u, span %u (file %u), lender %u, %u entries, %llu live, life %llu\n", i, g->state, g->span, g->file_span,
               g->lender, g->n, (unsigned long long)g->live, (unsigned long long)h->seq[i]);
    }
    if (getenv("CRASH_VERBOSE"))
        printf("  %u places were free; then %u records of %llu bytes\n", free_places, there, (unsigned long long)bytes);
}

/* From the directory alone, in a fresh group: what is there is right, and the rest comes from the origin. */
static void read_all(const struct storm *s)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct storm fresh = *s;
        fresh.name = NULL;
        struct larder_cache *c = open_cache(&fresh, false);
        struct larder_dataset *ds = c ? open_ds(c) : NULL;
        int rc = ds && larder_cache_warning(c, 0) == NULL ? 0 : 5;
        for (uint64_t i = 0; !rc && i < spec.n; i++)
            rc = read_batch(ds, &i, 1);
        larder_dataset_close(ds);
        larder_cache_close(c);
        _exit(rc);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : 99, 0);
    CHECK(nvme_test_usage(s->dir) <= LIMIT);
}

static void storm(struct storm s)
{
    const char *text = getenv("LARDER_CRASH_SECONDS");
    uint64_t rng = (uint64_t)time(NULL) ^ (uint64_t)getpid() << 20, seconds = text ? strtoull(text, NULL, 10) : 20;
    uint64_t until = now_ns() + seconds * 1000000000ull / STORMS;
    char name[64], dir[200];
    fprintf(stderr, "seed %llu\n", (unsigned long long)rng);
    if (!dataset)
        dataset = dataset_make(&spec);
    snprintf(name, sizeof name, "crash-cache-%d-%d%d", (int)getpid(), s.replacement, s.alone);
    snprintf(dir, sizeof dir, "%s/cache", tmp_dir());
    s.name = name, s.dir = dir;
    s.workers = 2 + (unsigned)rng_below(&rng, WORKERS - 1);
    struct nvme_options o = {s.dir, LIMIT, (enum replacement)s.replacement, true, s.name};
    struct nvme *keeper = NULL;
    uint32_t id = 0;
    if (!s.alone) {
        REQUIRE(nvme_open(&o, &keeper, NULL) == LARDER_OK);
        id = long_id(keeper);
    }
    unsigned kills = rage(&s, until, &rng);
    if (keeper) {
        nothing_lost(keeper, id);
        nvme_close(keeper);
    }
    CHECK(nvme_test_usage(s.dir) <= LIMIT);
    if (!s.tier)
        read_all(&s);
    fprintf(stderr, "%u workers, %u kills\n", s.workers, kills);
}

TEST(kept) { storm((struct storm){.replacement = LARDER_REPLACE_NONE}); }
TEST(replaced) { storm((struct storm){.replacement = LARDER_REPLACE_FIFO}); }
TEST(alone) { storm((struct storm){.replacement = LARDER_REPLACE_NONE, .alone = true}); }
TEST(of_many_lengths) { storm((struct storm){.replacement = LARDER_REPLACE_FIFO, .tier = true}); }

TEST_MAIN();
