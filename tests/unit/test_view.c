/* SPDX-License-Identifier: Apache-2.0 */
/* test_view.c - copies from mapped shards: right bytes, only after enough reads, never past a file's end [tiers I5]. */
#include <pthread.h>

#include "tests/unit/tiers_files.h"

static struct origin *open_origin(const struct files *f, struct views **vs)
{
    struct origin *o;
    struct larder_error err;
    struct origin_options opts = {4, LARDER_DIRECT_OFF};
    REQUIRE_OK(origin_open(f->dir, f->refs, f->n, &opts, &o, &err), &err);
    REQUIRE_OK(views_new(o, vs, &err), &err);
    return o;
}

/* Reads until the shard is mapped; leaves the test as skipped where that is not done. */
static void warm_up(const struct files *f, struct origin *o, struct views *vs, uint32_t shard)
{
    uint8_t got[100];
    unsigned before = views_mapped(vs);
    for (uint64_t i = 0; i < f->refs[shard].size / 4096 + 2 && views_mapped(vs) == before; i++)
        CHECK(!view_copy(vs, 1, shard, 0, 100, got));
    if (views_mapped(vs) == before) {
        views_free(vs);
        origin_close(o);
        TEST_SKIP("no mappings on this file system");
    }
}

TEST(copies_are_right_and_come_after_reads)
{
    struct files f = files_make(2, 300000, 4);
    struct views *vs;
    struct origin *o = open_origin(&f, &vs);
    static uint8_t got[20000];
    uint64_t seed = 4, copied = 0;
    CHECK(!view_copy(vs, 1, 0, 0, 100, got));
    CHECK_EQ(views_mapped(vs), 0);
    warm_up(&f, o, vs, 0);
    CHECK_EQ(views_mapped(vs), 1);
    for (int i = 0; i < 2000; i++) {
        struct extent e = files_extent(&f, &seed, sizeof(got));
        e.shard = 0;
        if (!e.stored_len || e.offset + e.stored_len > f.refs[0].size)
            continue;
        memset(got, 0, e.stored_len);
        if (view_copy(vs, (uint64_t)i / 10, 0, e.offset, e.stored_len, got)) {
            copied++;
            CHECK_MEM(got, f.bytes[0] + e.offset, e.stored_len);
        }
    }
    CHECK(copied > 0);
    views_free(vs);
    origin_close(o);
    files_release(&f);
}

TEST(outside_of_the_file)
{
    struct files f = files_make(1, 300000, 4);
    struct views *vs;
    struct origin *o = open_origin(&f, &vs);
    static uint8_t got[8192];
    uint64_t size = f.refs[0].size;
    warm_up(&f, o, vs, 0);
    CHECK(!view_copy(vs, 2, 0, size - 10, 11, got));
    CHECK(!view_copy(vs, 2, 0, size, 1, got));
    CHECK(!view_copy(vs, 2, 0, UINT64_MAX - 5, 10, got));
    if (view_copy(vs, 2, 0, size - 10, 10, got))
        CHECK_MEM(got, f.bytes[0] + size - 10, 10);
    views_free(vs);
    origin_close(o);
    files_release(&f);
}

TEST(cut_short_between_batches)
{
    struct files f = files_make(1, 300000, 4);
    struct views *vs;
    struct origin *o = open_origin(&f, &vs);
    static uint8_t got[8192];
    char path[160];
    warm_up(&f, o, vs, 0);
    uint64_t batch = views_batch(vs);
    view_copy(vs, batch, 0, 200000, 1000, got);
    REQUIRE(truncate(files_path(&f, 0, path), 100000) == 0);
    batch = views_batch(vs);
    CHECK(!view_copy(vs, batch, 0, 200000, 1000, got));
    CHECK(!view_copy(vs, batch, 0, 1000, 1000, got)); /* given up for good */
    views_free(vs);
    origin_close(o);
    files_release(&f);
}

TEST(replaced_by_nothing)
{
    struct files f = files_make(1, 300000, 4);
    struct views *vs;
    struct origin *o = open_origin(&f, &vs);
    uint8_t got[100];
    char path[160];
    unlink(files_path(&f, 0, path)); /* never opened: cannot be mapped either */
    for (int i = 0; i < 100; i++)
        CHECK(!view_copy(vs, 1, 0, 0, 100, got));
    CHECK_EQ(views_mapped(vs), 0);
    views_free(vs);
    origin_close(o);
    files_release(&f);
}

/* Pages that were resident are dropped from the page cache: copies stay right. */
TEST(evicted_pages)
{
    struct files f = files_make(1, 3000000, 4);
    struct views *vs;
    struct origin *o = open_origin(&f, &vs);
    static uint8_t got[4000];
    char path[160];
    int fd = open(files_path(&f, 0, path), O_RDONLY);
    REQUIRE(fd >= 0);
    warm_up(&f, o, vs, 0);
    fsync(fd);
    for (int round = 0; round < 3; round++) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        for (uint64_t at = 0; at < 2900000; at += 3500) {
            if (view_copy(vs, 5, 0, at, sizeof(got), got))
                CHECK_MEM(got, f.bytes[0] + at, sizeof(got));
        }
    }
    close(fd);
    views_free(vs);
    origin_close(o);
    files_release(&f);
}

struct worker { struct views *vs; const struct files *f; uint64_t seed; unsigned wrong, copied; };

static void *work(void *arg)
{
    struct worker *w = arg;
    uint8_t got[3000];
    for (int i = 0; i < 4000; i++) {
        struct extent e = files_extent(w->f, &w->seed, sizeof(got));
        if (!e.stored_len || !view_copy(w->vs, views_batch(w->vs), e.shard, e.offset, e.stored_len, got))
            continue;
        w->copied++;
        if (memcmp(got, w->f->bytes[e.shard] + e.offset, e.stored_len) != 0)
            w->wrong++;
    }
    return NULL;
}

TEST(many_threads)
{
    struct files f = files_make(8, 100000, 4); /* more than the origin keeps open */
    struct views *vs;
    struct origin *o = open_origin(&f, &vs);
    pthread_t th[4];
    struct worker w[4];
    unsigned copied = 0;
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){vs, &f, (uint64_t)i, 0, 0};
        pthread_create(&th[i], NULL, work, &w[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(th[i], NULL);
        CHECK_EQ(w[i].wrong, 0);
        copied += w[i].copied;
    }
    CHECK(copied > 0 || views_mapped(vs) == 0);
    views_free(vs);
    origin_close(o);
    files_release(&f);
}

TEST_MAIN();
