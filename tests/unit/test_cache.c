/* SPDX-License-Identifier: Apache-2.0 */
#include "loader/loader_int.h"
#include "tests/unit/dataset.h"
#include "tiers/cache_int.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* Ordinal % 11 == 7 has no image. */
static const struct dataset_spec spec = {3000, 500, 3900, 0, 20, LARDER_COMPRESS_NONE};
static const struct dataset_spec packed = {600, 200, 100, 3000, 900, LARDER_COMPRESS_ZSTD};

static const char *dir_of(const struct dataset_spec *d)
{
    static const char *dirs[2]; /* made once for all tests of this file */
    const char **at = &dirs[d == &packed];

    return *at ? *at : (*at = dataset_make(d));
}

static struct larder_cache *open_cache(const char *name, uint64_t dram, const char *nvme, uint64_t nvme_bytes, int replacement)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    struct larder_cache_nvme n = {nvme, nvme_bytes};
    struct larder_cache *c;
    struct larder_error err;

    o.name = name;
    o.dram_bytes = dram;
    o.replacement = replacement;
    o.copy_local = 1;
    if (nvme)
        o.nvme = &n, o.n_nvme = 1;
    REQUIRE_OK(larder_cache_open(&o, &c, &err), &err);
    return c;
}

static struct larder_dataset *open_ds(const struct dataset_spec *d, struct larder_cache *c, int direct)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct larder_error err;

    o.cache = c;
    o.direct = direct;
    REQUIRE_OK(larder_dataset_open(dir_of(d), &o, &ds, &err), &err);
    return ds;
}

static struct larder_loader *open_ld(struct larder_dataset *ds, uint64_t epochs)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader *ld;
    struct larder_error err;

    o.batch_size = 64;
    o.epochs = epochs;
    o.seed = 5;
    REQUIRE_OK(larder_loader_open(ds, &o, &ld, &err), &err);
    return ld;
}

/* Reads an epoch and checks every byte of it. */
static struct larder_loader_stats epoch(const struct dataset_spec *d, struct larder_loader *ld)
{
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    const struct larder_batch *b;
    struct larder_error err;
    uint64_t n = 0;
    int rc;

    while ((rc = larder_loader_next(ld, &b, &err)) == 0) {
        for (uint32_t i = 0; i < b->n; i++)
            CHECK(sample_is(d, b->ordinals[i], b->values + (size_t)i * b->n_fields));
        n += b->n;
        larder_batch_release(b);
    }
    CHECK_ERR(rc, LARDER_END, &err);
    CHECK_EQ(n, d->n);
    CHECK_OK(larder_loader_stats(ld, &s, &err), &err);
    CHECK_EQ(s.dram.hits + s.nvme.hits + s.origin.hits, d->n);
    CHECK_EQ(s.origin.misses, 0);
    return s;
}

static struct larder_cache_stats stats_of(const struct larder_cache *c)
{
    struct larder_cache_stats s = {.struct_size = sizeof(s)};
    struct larder_error err;

    CHECK_OK(larder_cache_stats(c, &s, &err), &err);
    return s;
}

TEST(room_for_part_misses_the_rest)
{
    struct larder_cache *c = open_cache(NULL, 6 * MIB, NULL, 0, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    struct larder_loader *ld = open_ld(ds, 4);
    struct larder_loader_stats s = epoch(&spec, ld);
    uint64_t held = stats_of(c).dram.entries;

    CHECK_EQ(s.dram.hits, 0);
    CHECK_EQ(s.origin.hits, spec.n);
    CHECK(held > 1200 && held < 2000);
    for (int e = 1; e < 4; e++) {
        s = epoch(&spec, ld);
        CHECK_EQ(s.dram.hits, held);
        CHECK_EQ(s.dram.misses, spec.n - held);
        CHECK_EQ(s.origin.hits, spec.n - held);
        CHECK_EQ(stats_of(c).dram.entries, held);
    }
    CHECK(stats_of(c).dram.used_bytes <= 6 * MIB);
    CHECK_EQ(stats_of(c).dram.evictions, 0);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

/* However far it is ahead when it is asked. */
TEST(the_first_estimate_is_of_what_was_cached_at_open)
{
    struct larder_cache *c = open_cache(NULL, 40 * MIB, NULL, 0, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    struct larder_loader *ld = open_ld(ds, 2);
    struct larder_loader_estimate e = {.struct_size = sizeof(e)};
    const struct larder_batch *b;
    struct larder_error err;

    REQUIRE_OK(larder_loader_next(ld, &b, &err), &err);
    CHECK(stats_of(c).dram.entries > 0);
    CHECK_OK(larder_loader_estimate(ld, &e, &err), &err);
    CHECK_EQ(e.samples, spec.n);
    CHECK_EQ(e.samples_cached, 0);
    larder_batch_release(b);
    larder_loader_close(ld);
    ld = open_ld(ds, 1);
    epoch(&spec, ld);
    CHECK_OK(larder_loader_estimate(ld, &e, &err), &err);
    CHECK_EQ(e.samples_cached, spec.n);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST(room_for_all_reads_each_record_once)
{
    struct larder_cache *c = open_cache(NULL, 40 * MIB, NULL, 0, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_ON);
    struct larder_loader *ld = open_ld(ds, 3);
    struct larder_cache_stats s;

    CHECK_EQ(epoch(&spec, ld).origin.hits, spec.n);
    for (int e = 1; e < 3; e++)
        CHECK_EQ(epoch(&spec, ld).dram.hits, spec.n);
    s = stats_of(c);
    CHECK_EQ(s.origin.hits, spec.n);
    CHECK_EQ(s.dram.hits, 2 * spec.n);
    CHECK_EQ(s.dram.entries, spec.n);
    CHECK(s.origin.latency_ns_p50 > 0 && s.origin.latency_ns_p50 <= s.origin.latency_ns_p99);
    CHECK(s.origin.latency_ns_p99 <= s.origin.latency_ns_max);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST(fifo_delivers_right_bytes)
{
    for (int zstd = 0; zstd < 2; zstd++) {
        const struct dataset_spec *d = zstd ? &packed : &spec;
        struct larder_cache *c = open_cache(NULL, 4 * MIB, NULL, 0, LARDER_REPLACE_FIFO);
        struct larder_dataset *ds = open_ds(d, c, LARDER_DIRECT_OFF);
        struct larder_loader *ld = open_ld(ds, 3);

        for (int e = 0; e < 3; e++)
            epoch(d, ld);
        CHECK(zstd || stats_of(c).dram.evictions > 0);
        larder_loader_close(ld);
        larder_dataset_close(ds);
        larder_cache_close(c);
    }
}

TEST(compressed_records_come_from_the_cache)
{
    struct larder_cache *c = open_cache(NULL, 16 * MIB, NULL, 0, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&packed, c, LARDER_DIRECT_OFF);
    struct larder_loader *ld = open_ld(ds, 2);

    epoch(&packed, ld);
    CHECK_EQ(epoch(&packed, ld).dram.hits, packed.n);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

static void read_some(struct larder_dataset *ds, uint64_t first, size_t n, size_t step)
{
    struct larder_sample samples[64] = {{0}};
    uint64_t ordinals[64] = {0};
    struct larder_error err;

    for (size_t i = 0; i < n; i++)
        ordinals[i] = (first + i * step) % spec.n;
    CHECK_OK(larder_dataset_read(ds, ordinals, n, NULL, samples, &err), &err);
    for (size_t i = 0; i < n; i++)
        CHECK(sample_is(&spec, ordinals[i], samples[i].fields));
    larder_samples_release(samples, n);
}

TEST(random_reads_repeats_and_fields)
{
    struct larder_cache *c = open_cache(NULL, 40 * MIB, NULL, 0, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    const uint32_t want[2] = {F_TEXT, F_LABEL};
    struct larder_read_options o = LARDER_READ_OPTIONS_INIT;
    uint64_t same[3] = {9, 9, 9}, beyond[2] = {1, spec.n};
    struct larder_sample s[3] = {{0}};
    struct larder_error err;
    int64_t label;

    read_some(ds, 0, 64, 1);
    read_some(ds, 0, 64, 1); /* hits */
    read_some(ds, 32, 64, 1); /* both */
    CHECK_EQ(stats_of(c).dram.hits, 64 + 32);
    CHECK_EQ(stats_of(c).origin.hits, 64 + 32);
    larder_samples_release(s, 3);
    same[0] = same[1] = same[2] = 500; /* three times one that is absent: read once */
    CHECK_OK(larder_dataset_read(ds, same, 3, NULL, s, &err), &err);
    for (int i = 0; i < 3; i++)
        CHECK(sample_is(&spec, 500, s[i].fields));
    larder_samples_release(s, 3);
    CHECK_EQ(stats_of(c).origin.hits, 64 + 32 + 1);
    o.fields = want;
    o.n_fields = 2;
    CHECK_OK(larder_dataset_read(ds, same, 1, &o, s, &err), &err);
    CHECK_EQ(s[0].fields[0].len, spec.text_len);
    memcpy(&label, s[0].fields[1].data, 8);
    CHECK_EQ(label, 0);
    larder_samples_release(s, 1);
    CHECK_ERR(larder_dataset_read(ds, beyond, 2, NULL, s, &err), LARDER_ENOTFOUND, &err);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

static int even(void *user, uint64_t ordinal)
{
    (void)user;
    return ordinal % 2 == 0;
}

TEST(a_plan_says_what_is_admitted)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    struct larder_cache *c;
    struct larder_error err;

    o.name = NULL;
    o.dram_bytes = 40 * MIB;
    o.admit = even;
    REQUIRE_OK(larder_cache_open(&o, &c, &err), &err);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    struct larder_loader *ld = open_ld(ds, 2);
    epoch(&spec, ld);
    CHECK_EQ(epoch(&spec, ld).dram.hits, spec.n / 2);
    CHECK_EQ(stats_of(c).dram.entries, spec.n / 2);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST(options_are_checked)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    struct larder_cache *c;
    struct larder_error err;

    o.name = NULL;
    o.dram_bytes = memory_available() / 10 * 9;
    CHECK_ERR(larder_cache_open(&o, &c, &err), LARDER_EINVAL, &err);
    CHECK(c == NULL && strstr(err.message, "80%"));
    o.dram_bytes = 1000;
    CHECK_ERR(larder_cache_open(&o, &c, &err), LARDER_EINVAL, &err);
    o.dram_bytes = 8 * MIB;
    o.replacement = 7;
    CHECK_ERR(larder_cache_open(&o, &c, &err), LARDER_EINVAL, &err);
    o.replacement = 0;
    o.n_nvme = 1;
    CHECK_ERR(larder_cache_open(&o, &c, &err), LARDER_EINVAL, &err);
    o.n_nvme = 0;
    o.name = "";
    CHECK_ERR(larder_cache_open(&o, &c, &err), LARDER_EINVAL, &err);
    o.name = "a/b";
    CHECK_ERR(larder_cache_open(&o, &c, &err), LARDER_EINVAL, &err);
    CHECK_ERR(larder_cache_open(&o, NULL, &err), LARDER_EINVAL, &err);
    o.name = NULL;
    o.dram_bytes = LARDER_DRAM_OFF; /* a cache of nothing is allowed */
    REQUIRE_OK(larder_cache_open(&o, &c, &err), &err);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    read_some(ds, 3, 64, 7);
    CHECK_EQ(stats_of(c).origin.hits, 64);
    larder_dataset_close(ds);
    larder_cache_close(c);
    larder_cache_close(NULL);
}

TEST(nothing_is_pinned_when_told_so)
{
    for (int no_pin = 0; no_pin < 2; no_pin++) {
        struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
        struct larder_cache *c;
        struct larder_error err;

        o.name = NULL;
        o.dram_bytes = 8 * MIB;
        o.no_pin = no_pin;
        REQUIRE_OK(larder_cache_open(&o, &c, &err), &err);
        struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
        read_some(ds, 0, 64, 1);
        read_some(ds, 0, 64, 1);
        CHECK_EQ(stats_of(c).dram.hits, 64);
        CHECK(no_pin ? stats_of(c).locked_bytes == 0 : stats_of(c).locked_bytes > 0 || larder_cache_warning(c, 0));
        CHECK(!no_pin || larder_cache_warning(c, 0) == NULL);
        larder_dataset_close(ds);
        larder_cache_close(c);
    }
}

TEST(metrics_are_written)
{
    char path[256], text[8192];
    struct larder_cache *c = open_cache(NULL, 8 * MIB, NULL, 0, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    struct larder_error err;
    FILE *f;

    snprintf(path, sizeof(path), "%s/metrics", tmp_dir());
    read_some(ds, 0, 64, 1);
    CHECK_OK(larder_cache_metrics(c, path, &err), &err);
    f = fopen(path, "r");
    REQUIRE(f != NULL);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    CHECK(strstr(text, "\nlarder_cache_hits_total{cache=\"private\",tier=\"origin\"} 64\n") != NULL);
    CHECK(strstr(text, "\nlarder_cache_entries{cache=\"private\",tier=\"dram\"} 64\n") != NULL);
    CHECK(strstr(text, "tier=\"nvme\"") == NULL);
    CHECK_ERR(larder_cache_metrics(c, "/nowhere/at/all", &err), LARDER_EIO, &err);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

/* Who joins with other wishes gets the arena as it is, knows it, and reads from it. */
TEST(who_joins_takes_it_as_it_is)
{
    static const int made_as[] = {LARDER_REPLACE_FIFO, LARDER_REPLACE_NONE};

    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof(name), "test-as-%d-%d", (int)getpid(), i);
        struct larder_cache *a = open_cache(name, 40 * MIB, NULL, 0, made_as[i]);
        struct larder_cache *b = open_cache(name, 60 * MIB, NULL, 0, made_as[1 - i]);
        struct larder_dataset *ds = open_ds(&spec, b, LARDER_DIRECT_OFF);
        struct larder_loader *ld = open_ld(ds, 2);
        uint64_t began = now_ns();

        CHECK(larder_cache_warning(a, 0) == NULL);
        CHECK(strstr(larder_cache_warning(b, 0), " budget of 41943040 bytes, not the 62914560 ") != NULL);
        CHECK(strstr(larder_cache_warning(b, 1), i ? "none, not FIFO" : "FIFO, not none") != NULL);
        CHECK_EQ(epoch(&spec, ld).origin.hits, spec.n);
        CHECK_EQ(epoch(&spec, ld).dram.hits, spec.n);
        CHECK(now_ns() - began < 10000000000u);
        larder_loader_close(ld);
        larder_dataset_close(ds);
        larder_cache_close(b);
        larder_cache_close(a);
    }
}

/* ---- NVMe ---- */

TEST(fifo_fills_both_tiers)
{
    char dir[256];

    snprintf(dir, sizeof(dir), "%s/fifo", tmp_dir());
    struct larder_cache *c = open_cache(NULL, 4 * MIB, dir, 10 * MIB, LARDER_REPLACE_FIFO);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    struct larder_loader *ld = open_ld(ds, 4);
    uint64_t hits = 0;

    for (int e = 0; e < 4; e++)
        hits += epoch(&spec, ld).nvme.hits;
    CHECK(hits > spec.n / 4);
    CHECK(stats_of(c).nvme.used_bytes <= 10 * MIB);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST(without_descriptors_nothing_is_removed)
{
    char dir[256];
    struct rlimit was, low;

    snprintf(dir, sizeof(dir), "%s/fds", tmp_dir());
    for (int run = 0; run < 2; run++) {
        struct larder_cache *c = open_cache(NULL, LARDER_DRAM_OFF, dir, 64 * MIB, LARDER_REPLACE_NONE);
        struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
        struct larder_loader *ld = open_ld(ds, 1);

        CHECK_EQ(epoch(&spec, ld).nvme.hits, run ? spec.n : 0);
        larder_loader_close(ld);
        larder_dataset_close(ds);
        larder_cache_close(c);
        int next = dup(0);
        close(next);
        REQUIRE_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
        low = was;
        low.rlim_cur = (rlim_t)next + 5;
        REQUIRE_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
        c = open_cache(NULL, LARDER_DRAM_OFF, dir, 64 * MIB, LARDER_REPLACE_NONE);
        REQUIRE_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
        const char *warning = larder_cache_warning(c, 0);
        CHECK(warning && strstr(warning, "ulimit -n"));
        larder_cache_close(c);
    }
}

TEST(nvme_starts_warm)
{
    char dir[256];

    snprintf(dir, sizeof(dir), "%s/nvme", tmp_dir());
    for (int run = 0; run < 2; run++) {
        struct larder_cache *c = open_cache(NULL, LARDER_DRAM_OFF, dir, 64 * MIB, LARDER_REPLACE_NONE);
        struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
        struct larder_loader *ld = open_ld(ds, 2);

        CHECK_EQ(epoch(&spec, ld).origin.hits, run == 0 ? spec.n : 0);
        CHECK_EQ(epoch(&spec, ld).nvme.hits, spec.n);
        larder_loader_close(ld);
        larder_dataset_close(ds);
        larder_cache_close(c);
    }
}

TEST(both_tiers_hold_more_than_one)
{
    char dir[256];
    uint64_t dram, nvme;

    snprintf(dir, sizeof(dir), "%s/both", tmp_dir());
    for (int run = 0; run < 2; run++) {
        struct larder_cache *c = open_cache(NULL, 4 * MIB, dir, 6 * MIB, LARDER_REPLACE_NONE);
        struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
        struct larder_loader *ld = open_ld(ds, 3);
        struct larder_loader_stats s;

        epoch(&spec, ld);
        for (int e = 1; e < 3; e++) {
            s = epoch(&spec, ld);
            dram = stats_of(c).dram.entries, nvme = stats_of(c).nvme.entries;
            CHECK(dram > 500 && nvme > 500);
            CHECK_EQ(s.dram.hits, dram);
            CHECK_EQ(s.nvme.hits, nvme);
            CHECK_EQ(s.nvme.misses, spec.n - dram - nvme);
            CHECK_EQ(s.origin.hits, spec.n - dram - nvme);
        }
        larder_loader_close(ld);
        larder_dataset_close(ds);
        larder_cache_close(c);
    }
}

static void damage(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    REQUIRE(d != NULL);
    while ((e = readdir(d)))
        if (strncmp(e->d_name, "seg-", 4) == 0) {
            int fd = openat(dirfd(d), e->d_name, O_RDWR);

            for (off_t at = 8192 + 100; at < 900 * 1024; at += 40960)
                CHECK_EQ(pwrite(fd, "damage", 6, at), 6);
            close(fd);
        }
    closedir(d);
}

TEST(damage_in_nvme_heals)
{
    char dir[256];

    snprintf(dir, sizeof(dir), "%s/damaged", tmp_dir());
    for (int run = 0; run < 2; run++) {
        struct larder_cache *c = open_cache(NULL, LARDER_DRAM_OFF, dir, 64 * MIB, LARDER_REPLACE_NONE);
        struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
        struct larder_loader *ld = open_ld(ds, 2);
        struct larder_loader_stats s = epoch(&spec, ld);

        CHECK(run == 0 || (s.origin.hits > 0 && s.origin.hits < spec.n / 2));
        CHECK(run == 0 || stats_of(c).nvme.healed == s.origin.hits);
        CHECK_EQ(epoch(&spec, ld).nvme.hits, spec.n);
        larder_loader_close(ld);
        larder_dataset_close(ds);
        larder_cache_close(c);
        if (run == 0)
            damage(dir);
    }
}

/* Two datasets of one uuid and lineage, as copies that were appended to apart have them. */
TEST(copies_of_a_dataset_that_differ)
{
    struct dataset_spec b = {.n = 700, .shard_samples = 200, .len_min = 3900, .text_len = 21};
    struct larder_error err;
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds[2];
    const char *copy = dataset_make(&b);
    char dir[256];

    for (int kind = 0; kind < 3; kind++) { /* DRAM, NVMe, both */
        snprintf(dir, sizeof(dir), "%s/copies%d", tmp_dir(), kind);
        struct larder_cache *c = open_cache(NULL, kind == 1 ? LARDER_DRAM_OFF : 40 * MIB, kind ? dir : NULL, 64 * MIB,
                                            LARDER_REPLACE_NONE);
        ds[0] = open_ds(&spec, c, LARDER_DIRECT_OFF);
        o.cache = c;
        REQUIRE_OK(larder_dataset_open(copy, &o, &ds[1], &err), &err);
        for (int round = 0; round < 4; round++) {
            struct larder_loader *ld = open_ld(ds[round % 2], 1);
            struct larder_loader_stats s = epoch(round % 2 ? &b : &spec, ld);
            CHECK(s.origin.hits >= (round == 0 ? spec.n : round == 1 ? b.n : 0));
            larder_loader_close(ld);
        }
        larder_dataset_close(ds[0]);
        larder_dataset_close(ds[1]);
        larder_cache_close(c);
    }
}

TEST(a_directory_in_use_is_passed_by)
{
    char dir[256];

    snprintf(dir, sizeof(dir), "%s/used", tmp_dir());
    struct larder_cache *a = open_cache(NULL, LARDER_DRAM_OFF, dir, 64 * MIB, LARDER_REPLACE_NONE);
    struct larder_cache *b = open_cache(NULL, LARDER_DRAM_OFF, dir, 64 * MIB, LARDER_REPLACE_NONE);

    CHECK(larder_cache_warning(a, 0) == NULL);
    CHECK(larder_cache_warning(b, 0) != NULL);
    CHECK_EQ(stats_of(b).nvme.budget_bytes, 0);
    larder_cache_close(b);
    larder_cache_close(a);
}

/* ---- threads and processes ---- */

static void *read_thread(void *arg)
{
    for (size_t i = 0; i < 40; i++)
        read_some(arg, i * 137, 64, 1 + i % 5);
    return NULL;
}

TEST(threads_share_a_cache)
{
    struct larder_cache *c = open_cache(NULL, 6 * MIB, NULL, 0, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    pthread_t t[3];

    for (int i = 0; i < 3; i++)
        REQUIRE_EQ(pthread_create(&t[i], NULL, read_thread, ds), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(t[i], NULL);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

TEST(a_forked_child_opens_its_own)
{
    struct larder_cache *c = open_cache(NULL, 8 * MIB, NULL, 0, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    struct larder_cache_stats s = {.struct_size = sizeof(s)};
    struct larder_error err;
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        int rc = larder_cache_stats(c, &s, &err);
        int open_rc = larder_cache_metrics(c, "/tmp/x", &err);

        larder_dataset_close(ds);
        larder_cache_close(c);
        _exit(rc == LARDER_EFORK && open_rc == LARDER_EFORK ? 0 : 1);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    read_some(ds, 0, 64, 1);
    larder_dataset_close(ds);
    larder_cache_close(c);
}

/* A process that reads epochs with a cache of that name, and tells what the origin gave it. */
static pid_t reader(const char *name, uint64_t dram, const char *dir, uint64_t epochs, int fd)
{
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    struct larder_cache *c = open_cache(name, dram, dir, 64 * MIB, LARDER_REPLACE_NONE);
    struct larder_dataset *ds = open_ds(&spec, c, LARDER_DIRECT_OFF);
    struct larder_loader *ld = open_ld(ds, epochs);
    uint64_t origin = 0;

    for (uint64_t e = 0; e < epochs; e++)
        origin += epoch(&spec, ld).origin.hits;
    if (write(fd, &origin, sizeof(origin)) != sizeof(origin))
        _exit(2);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    larder_cache_close(c);
    _exit(atomic_load(&test_failures) ? 1 : 0);
}

TEST(two_processes_read_each_record_once)
{
    struct larder_cache *c;
    char name[64];
    uint64_t origin[2];
    int fds[2], status;
    pid_t pids[2];

    dir_of(&spec);
    snprintf(name, sizeof(name), "test-cache-%d", (int)getpid());
    REQUIRE_EQ(pipe(fds), 0);
    for (int i = 0; i < 2; i++)
        pids[i] = reader(name, 40 * MIB, NULL, 2, fds[1]);
    c = open_cache(name, 40 * MIB, NULL, 0, LARDER_REPLACE_NONE); /* holds the region between the two */
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
        CHECK_EQ(status, 0);
        CHECK_EQ(read(fds[0], &origin[i], 8), 8);
    }
    CHECK_EQ(origin[0] + origin[1], spec.n);
    CHECK_EQ(stats_of(c).dram.entries, spec.n);
    larder_cache_close(c);
    close(fds[0]);
    close(fds[1]);
}

/* Memory holds a part, and the directory all: what one process has admitted and not yet written the other waits for. */
TEST(two_processes_fill_one_directory)
{
    char name[64], dir[256];
    uint64_t origin[2];
    int fds[2], status;
    pid_t pids[2];

    TEST_FORKS();
    dir_of(&spec);
    REQUIRE_EQ(pipe(fds), 0);
    for (int round = 0; round < 2; round++) {
        snprintf(dir, sizeof(dir), "%s/shared", tmp_dir());
        snprintf(name, sizeof(name), "test-nvme-%d-%d", (int)getpid(), round);
        for (int i = 0; i < 2; i++)
            pids[i] = reader(name, round ? 5 * MIB : 40 * MIB, dir, 3, fds[1]);
        struct larder_cache *c = open_cache(name, round ? 5 * MIB : 40 * MIB, dir, 64 * MIB, LARDER_REPLACE_NONE);
        for (int i = 0; i < 2; i++) {
            CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
            CHECK_EQ(status, 0);
            CHECK_EQ(read(fds[0], &origin[i], 8), 8);
        }
        CHECK_EQ(origin[0] + origin[1], spec.n);
        CHECK_EQ(stats_of(c).nvme.entries, spec.n);
        CHECK(stats_of(c).nvme.used_bytes <= 64 * MIB);
        CHECK(larder_cache_warning(c, 0) == NULL);
        larder_cache_close(c);
        c = open_cache(NULL, LARDER_DRAM_OFF, dir, 64 * MIB, LARDER_REPLACE_NONE); /* and the next run is warm */
        CHECK_EQ(stats_of(c).nvme.entries, spec.n);
        larder_cache_close(c);
    }
    close(fds[0]);
    close(fds[1]);
}

TEST(a_killed_process_harms_nobody)
{
    char name[64], dir[256];
    uint64_t state = 99, origin;
    int fds[2], status;

    TEST_FORKS();
    dir_of(&spec);
    REQUIRE_EQ(pipe(fds), 0);
    for (int round = 0; round < 6; round++) {
        snprintf(name, sizeof(name), "test-kill-%d-%d", (int)getpid(), round);
        snprintf(dir, sizeof(dir), "%s/shared", tmp_dir());
        const char *nvme = round % 2 ? dir : NULL;
        pid_t victim = reader(name, 40 * MIB, nvme, 1000, fds[1]), other = reader(name, 40 * MIB, nvme, 3, fds[1]);
        struct timespec ts = {0, (long)(2000000 + rng_below(&state, 40000000))};

        nanosleep(&ts, NULL);
        kill(victim, SIGKILL);
        CHECK_EQ(waitpid(victim, &status, 0), victim);
        CHECK_EQ(waitpid(other, &status, 0), other);
        CHECK_EQ(status, 0);
        CHECK_EQ(read(fds[0], &origin, 8), 8);
        CHECK(origin <= spec.n);
    }
    close(fds[0]);
    close(fds[1]);
}

TEST_MAIN();
