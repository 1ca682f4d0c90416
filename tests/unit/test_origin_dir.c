/* SPDX-License-Identifier: Apache-2.0 */
/* test_origin_dir.c - the cache of open shards: hits, eviction, pins, threads, what is missing; and O_DIRECT. */
#include <pthread.h>
#include <sys/resource.h>

#include "tests/unit/tiers_files.h"

static struct origin *open_origin(const struct files *f, unsigned files_max, int direct)
{
    struct origin *o;
    struct larder_error err;
    struct origin_options opts = {files_max, direct};
    REQUIRE_OK(origin_open(f->dir, f->refs, f->n, &opts, &o, &err), &err);
    return o;
}

/* Reads a little of the shard through the descriptor: is it the right one? */
static bool right_file(const struct files *f, uint32_t shard, int fd)
{
    uint8_t got[64];
    return pread(fd, got, sizeof(got), 0) == sizeof(got) && memcmp(got, f->bytes[shard], sizeof(got)) == 0;
}

TEST(many_shards_few_descriptors)
{
    struct files f = files_make(50, 1000, 1);
    struct origin *o = open_origin(&f, 8, LARDER_DIRECT_OFF);
    struct larder_error err;
    uint64_t seed = 2;
    for (int i = 0; i < 3000; i++) {
        uint32_t shard = (uint32_t)rng_below(&seed, f.n);
        struct origin_file file;
        REQUIRE_OK(origin_get(o, shard, false, &file, &err), &err);
        CHECK(file.slot >= 0 && !file.direct);
        CHECK(right_file(&f, shard, file.fd));
        origin_put(o, &file);
        CHECK(origin_files_open(o) <= 8);
    }
    CHECK_EQ(origin_files_open(o), 8);
    origin_close(o);
    files_release(&f);
}

TEST(hit_keeps_its_descriptor)
{
    struct files f = files_make(3, 1000, 1);
    struct origin *o = open_origin(&f, 8, LARDER_DIRECT_OFF);
    struct larder_error err;
    struct origin_file a, b;
    REQUIRE_OK(origin_get(o, 1, false, &a, &err), &err);
    REQUIRE_OK(origin_get(o, 1, false, &b, &err), &err);
    CHECK_EQ(a.fd, b.fd);
    origin_put(o, &a);
    origin_put(o, &b);
    CHECK_EQ(origin_files_open(o), 1);
    origin_close(o);
    files_release(&f);
}

TEST(pinned_descriptors_stay)
{
    struct files f = files_make(4, 1000, 1);
    struct origin *o = open_origin(&f, 2, LARDER_DIRECT_OFF);
    struct larder_error err;
    struct origin_file a, b, c;
    REQUIRE_OK(origin_get(o, 0, false, &a, &err), &err);
    REQUIRE_OK(origin_get(o, 1, false, &b, &err), &err);
    CHECK_EQ(origin_get(o, 2, false, &c, &err), LARDER_EBUSY);
    REQUIRE_OK(origin_get(o, 2, true, &c, &err), &err); /* beside the cache */
    CHECK_EQ(c.slot, -1);
    CHECK(right_file(&f, 2, c.fd));
    CHECK(right_file(&f, 0, a.fd));
    origin_put(o, &c);
    origin_put(o, &a);
    REQUIRE_OK(origin_get(o, 3, false, &c, &err), &err);
    CHECK(right_file(&f, 3, c.fd));
    CHECK(right_file(&f, 1, b.fd));
    origin_put(o, &b);
    origin_put(o, &c);
    origin_close(o);
    files_release(&f);
}

TEST(missing_shard_is_named)
{
    struct files f = files_make(2, 1000, 1);
    struct origin *o = open_origin(&f, 2, LARDER_DIRECT_OFF);
    struct larder_error err;
    struct origin_file file;
    char path[160];
    unlink(files_path(&f, 1, path));
    CHECK_ERR(origin_get(o, 1, false, &file, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "shard-1") && strstr(err.message, "larder verify"));
    CHECK_EQ(err.sys_errno, ENOENT);
    CHECK_OK(origin_get(o, 0, false, &file, &err), &err);
    origin_put(o, &file);
    origin_close(o);
    files_release(&f);
}

TEST(missing_folder)
{
    struct shard_ref ref = {.name = (char *)"x", .size = 1};
    struct origin_options opts = {0, LARDER_DIRECT_OFF};
    struct origin *o;
    struct larder_error err;
    CHECK_ERR(origin_open("/nonexistent/shards", &ref, 1, &opts, &o, &err), LARDER_ENOTFOUND, &err);
    CHECK(o == NULL);
    CHECK_OK(origin_open("/nonexistent/shards", NULL, 0, &opts, &o, &err), &err); /* an empty dataset */
    origin_close(o);
}

TEST(out_of_descriptors)
{
    struct files f = files_make(40, 1000, 1);
    struct origin *o = open_origin(&f, 40, LARDER_DIRECT_OFF);
    struct larder_error err;
    struct rlimit old, low;
    getrlimit(RLIMIT_NOFILE, &old);
    low = old;
    int next = dup(0);
    close(next);
    low.rlim_cur = (rlim_t)next + 6;
    setrlimit(RLIMIT_NOFILE, &low);
    for (uint32_t i = 0; i < 40; i++) { /* the cache gives its own back rather than fail */
        struct origin_file file;
        CHECK_OK(origin_get(o, i, false, &file, &err), &err);
        CHECK(right_file(&f, i, file.fd));
        origin_put(o, &file);
    }
    setrlimit(RLIMIT_NOFILE, &old);
    CHECK(origin_files_open(o) <= 6);
    origin_close(o);
    files_release(&f);
}

TEST(direct_and_its_refusal)
{
    struct files f = files_make(2, 20000, 1);
    struct origin *o = open_origin(&f, 2, LARDER_DIRECT_ON);
    struct larder_error err;
    struct origin_file a, b;
    if (!origin_direct(o)) {
        origin_close(o);
        files_release(&f);
        TEST_SKIP("no O_DIRECT on this file system");
    }
    REQUIRE_OK(origin_get(o, 0, false, &a, &err), &err);
    CHECK(a.direct);
    CHECK(fcntl(a.fd, F_GETFL) & O_DIRECT);
    origin_direct_refused(o, &a);
    CHECK(!a.direct && !origin_direct(o));
    CHECK(!(fcntl(a.fd, F_GETFL) & O_DIRECT));
    CHECK(right_file(&f, 0, a.fd));
    REQUIRE_OK(origin_get(o, 1, false, &b, &err), &err);
    CHECK(!b.direct);
    origin_put(o, &a);
    origin_put(o, &b);
    REQUIRE_OK(origin_get(o, 0, false, &a, &err), &err);
    CHECK(!a.direct);
    origin_put(o, &a);
    origin_close(o);
    files_release(&f);
}

TEST(auto_is_buffered_for_what_fits_in_memory)
{
    struct files f = files_make(1, 1000, 1);
    struct origin *o = open_origin(&f, 2, LARDER_DIRECT_AUTO);
    CHECK(!origin_direct(o));
    origin_close(o);
    bool can = false;
    o = open_origin(&f, 2, LARDER_DIRECT_ON);
    can = origin_direct(o);
    origin_close(o);
    f.refs[0].size = 1ull << 50;
    o = open_origin(&f, 2, LARDER_DIRECT_AUTO);
    CHECK_EQ(origin_direct(o), can);
    origin_close(o);
    files_release(&f);
}

struct worker { struct origin *o; const struct files *f; uint64_t seed; unsigned wrong; };

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < 1500; i++) {
        uint32_t shard = (uint32_t)rng_below(&w->seed, w->f->n);
        struct origin_file file;
        if (origin_get(w->o, shard, true, &file, NULL)) {
            w->wrong++;
            continue;
        }
        if (!right_file(w->f, shard, file.fd))
            w->wrong++;
        origin_put(w->o, &file);
    }
    return NULL;
}

TEST(threads_evicting_each_other)
{
    struct files f = files_make(12, 1000, 1);
    struct origin *o = open_origin(&f, 4, LARDER_DIRECT_OFF);
    pthread_t th[6];
    struct worker w[6];
    for (int i = 0; i < 6; i++) {
        w[i] = (struct worker){o, &f, 100 + (uint64_t)i, 0};
        pthread_create(&th[i], NULL, work, &w[i]);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(th[i], NULL);
        CHECK_EQ(w[i].wrong, 0);
    }
    CHECK(origin_files_open(o) <= 4);
    origin_close(o);
    files_release(&f);
}

TEST_MAIN();
