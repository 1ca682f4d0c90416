/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nvme.c - the NVMe tier on a directory: what is admitted is found again, byte for byte, in this run and in the next; the
 * limit holds; whatever happens to its files costs misses and nothing else.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/unit/nvme_records.h"

enum { LEN = 20000 };

static unsigned hits(struct nvme *n, uint32_t id, unsigned space, uint64_t first, uint64_t count, uint32_t len, unsigned *healed)
{
    unsigned h = 0;
    for (uint64_t i = first; i < first + count; i++) {
        enum nvme_outcome o = nvme_test_get(n, id, space, i, len);
        CHECK(o != NVME_WRONG);
        h += o == NVME_HIT;
        if (healed)
            *healed += o == NVME_HEALED;
    }
    return h;
}

static unsigned admit(struct nvme *n, uint32_t id, unsigned space, uint64_t first, uint64_t count, uint32_t len)
{
    unsigned ok = 0;
    for (uint64_t i = first; i < first + count; i++) {
        ok += nvme_test_admit(n, id, space, i, len) == LARDER_OK;
        if (i % (len < 1000 ? 4096 : 64) == 63) /* the write buffer holds so many */
            nvme_flush(n);
    }
    nvme_flush(n);
    return ok;
}

static void segment_path(const char *dir, unsigned i, char path[200])
{
    snprintf(path, 200, "%s/seg-%06u", dir, i);
}

static void damage(const char *path, off_t at, size_t len)
{
    int fd = open(path, O_RDWR);
    uint8_t b;
    REQUIRE(fd >= 0);
    for (size_t i = 0; i < len; i++) {
        REQUIRE(pread(fd, &b, 1, at + (off_t)i) == 1);
        b ^= 0x40;
        REQUIRE(pwrite(fd, &b, 1, at + (off_t)i) == 1);
    }
    close(fd);
}

TEST(round_trip)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 16 * MIB, REPLACE_NONE);
    uint32_t a = nvme_test_id(n, 1), b = nvme_test_id(n, 2);
    struct nvme_stats st;
    CHECK(a != b);
    CHECK_EQ(nvme_test_id(n, 1), a);
    CHECK_EQ(admit(n, a, 1, 0, 200, LEN), 200);
    CHECK_EQ(admit(n, b, 2, 100, 200, LEN), 200);
    CHECK_EQ(hits(n, a, 1, 0, 200, LEN, NULL), 200);
    CHECK_EQ(hits(n, b, 2, 100, 200, LEN, NULL), 200);
    CHECK_EQ(hits(n, a, 1, 200, 100, LEN, NULL), 0);
    CHECK_EQ(hits(n, b, 2, 0, 100, LEN, NULL), 0);
    CHECK_EQ(nvme_test_admit(n, a, 1, 5, LEN), LARDER_OK); /* again: nothing happens */
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, 400);
    CHECK_EQ(st.admissions, 400);
    CHECK_EQ(st.refusals, 0);
    CHECK_EQ(st.healed, 0);
    CHECK(st.used <= st.budget && st.warning == NULL);
    nvme_close(n);
}

TEST(lengths_at_edges)
{
    static const uint32_t lens[] = {0, 1, 63, 64, 65, 4031, 4032, 4033, 4096, MIB - 4160, MIB - 64, MIB, 3 * MIB};
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 600 * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 1);
    uint8_t *bytes = malloc(4 * MIB);
    uint64_t seed = 5;
    rng_fill(&seed, bytes, 4 * MIB);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
            struct cached c = {bytes + i, lens[i], 1, crc32c(0, bytes + i, lens[i]), 0};
            CHECK_EQ(nvme_admit(n, id, i, &c), LARDER_OK);
        }
        nvme_flush(n);
        for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
            struct nvme_place at;
            struct cached hit;
            void *mem = NULL;
            REQUIRE(nvme_lookup(n, id, i, &at));
            REQUIRE(posix_memalign(&mem, 4096, at.len) == 0);
            CHECK_EQ(pread(at.fd, mem, at.len, (off_t)at.offset), at.len);
            CHECK(nvme_check(n, id, i, &at, mem, &hit));
            CHECK_EQ(hit.stored_len, lens[i]);
            CHECK_MEM(hit.bytes, bytes + i, lens[i]);
            free(mem);
        }
        nvme_close(n);
        n = nvme_test_open(dir, 600 * MIB, REPLACE_NONE);
        CHECK_EQ(nvme_test_id(n, 1), id);
    }
    CHECK_EQ(n->h->segment_bytes, 8 * MIB);
    struct cached big = {bytes, 600 * MIB, 1, 0, 0}; /* never fits: refused before a byte is read, and closes nothing */
    CHECK_EQ(nvme_admit(n, id, 100, &big), LARDER_ENOMEM);
    CHECK(!nvme_closed(n, id));
    CHECK_EQ(nvme_admit(n, id, CACHE_ORDINAL_MAX + 1, &big), LARDER_ENOMEM);
    nvme_close(n);
    free(bytes);
}

TEST(warm_restart)
{
    const char *dir = tmp_dir();
    for (int run = 0; run < 4; run++) {
        struct nvme *n = nvme_test_open(dir, 32 * MIB, REPLACE_NONE);
        uint32_t id = nvme_test_id(n, 1);
        struct nvme_stats st;
        nvme_stats(n, &st);
        CHECK_EQ(st.recovered, run * 300);
        CHECK_EQ(hits(n, id, 1, 0, (uint64_t)run * 300, LEN, NULL), run * 300);
        CHECK_EQ(admit(n, id, 1, (uint64_t)run * 300, 300, LEN), 300);
        nvme_close(n);
    }
}

/* Small records: several to a page, footers of some size. */
TEST(small_records)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 8 * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_stats st;
    CHECK_EQ(admit(n, id, 1, 0, 12000, 200), 12000);
    CHECK_EQ(hits(n, id, 1, 0, 12000, 200, NULL), 12000);
    nvme_close(n);
    n = nvme_test_open(dir, 8 * MIB, REPLACE_NONE);
    nvme_stats(n, &st);
    CHECK_EQ(st.recovered, 12000);
    CHECK_EQ(hits(n, nvme_test_id(n, 1), 1, 0, 12000, 200, NULL), 12000);
    nvme_close(n);
}

TEST(limit_is_hard)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 5 * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 1);
    unsigned in = admit(n, id, 1, 0, 1000, LEN), more;
    struct nvme_stats st;
    CHECK(in > 300 && in < 520); /* of 10 kB on average */
    CHECK(nvme_closed(n, id));
    CHECK_EQ(hits(n, id, 1, 0, 1000, LEN, NULL), in);
    CHECK_EQ(hits(n, id, 1, 0, in, LEN, NULL), in); /* without replacement: the first come */
    CHECK_EQ(admit(n, id, 1, 1000, 100, 1), 0);     /* closed: small ones too */
    nvme_stats(n, &st);
    CHECK_EQ(st.evictions, 0);
    CHECK_EQ(st.refusals, 1000 - in + 100);
    nvme_close(n);
    CHECK(nvme_test_usage(dir) <= 5 * MIB);
    n = nvme_test_open(dir, 5 * MIB, REPLACE_NONE);
    more = hits(n, nvme_test_id(n, 1), 1, 0, 1000, LEN, NULL);
    CHECK_EQ(more, in);
    nvme_close(n);
}

TEST(fifo)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 5 * MIB, REPLACE_FIFO);
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_stats st;
    unsigned healed = 0;
    CHECK_EQ(admit(n, id, 1, 0, 3000, LEN), 3000);
    unsigned h = hits(n, id, 1, 0, 3000, LEN, &healed);
    CHECK(h > 280 && h < 520);
    CHECK_EQ(healed, 0);
    CHECK_EQ(hits(n, id, 1, 3000 - h, h, LEN, NULL), h); /* the newest */
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, h);
    CHECK_EQ(st.evictions, 3000 - h);
    CHECK(!nvme_closed(n, id));
    nvme_close(n);
    CHECK(nvme_test_usage(dir) <= 5 * MIB);
    n = nvme_test_open(dir, 5 * MIB, REPLACE_FIFO);
    id = nvme_test_id(n, 1);
    CHECK_EQ(hits(n, id, 1, 0, 3000, LEN, &healed), h);
    CHECK_EQ(admit(n, id, 1, 3000, 1000, LEN), 1000);
    CHECK_EQ(healed, 0);
    nvme_close(n);
}

/* A place that was looked up before its segment was begun anew is a miss, and heals nothing. */
TEST(stale_place)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 5 * MIB, REPLACE_FIFO);
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_place at;
    struct nvme_stats st;
    struct cached hit;
    void *mem = NULL;
    admit(n, id, 1, 0, 10, LEN);
    REQUIRE(nvme_lookup(n, id, 3, &at));
    admit(n, id, 1, 10, 2000, LEN);
    REQUIRE(posix_memalign(&mem, 4096, at.len) == 0);
    CHECK_EQ(pread(at.fd, mem, at.len, (off_t)at.offset), at.len);
    CHECK(!nvme_check(n, id, 3, &at, mem, &hit));
    CHECK(!nvme_lookup(n, id, 3, &at));
    nvme_stats(n, &st);
    CHECK_EQ(st.healed, 0);
    free(mem);
    nvme_close(n);
}

TEST(unused_datasets_make_room_oldest_first)
{
    const char *dir = tmp_dir();
    for (unsigned s = 1; s <= 3; s++) {
        struct nvme *n = nvme_test_open(dir, 8 * MIB, REPLACE_NONE);
        CHECK_EQ(admit(n, nvme_test_id(n, s), s, 0, 150, LEN), 150);
        nvme_close(n);
        char path[200]; /* each an hour after the one before */
        struct nvme_used used[NVME_SPACES_MAX];
        uint8_t bytes[NVME_CHECKPOINT_MAX];
        uint64_t seq;
        size_t count, len = 0;
        snprintf(path, sizeof path, "%s/checkpoint", dir);
        FILE *f = fopen(path, "r+");
        REQUIRE(f);
        len = fread(bytes, 1, sizeof bytes, f);
        REQUIRE(nvme_checkpoint_decode(bytes, len, &seq, used, &count));
        CHECK_EQ(count, s);
        for (size_t i = 0; i < count; i++)
            used[i].last_used_s = 4000000000u + 3600u * (unsigned)used[i].space.variant;
        rewind(f);
        fwrite(bytes, 1, nvme_checkpoint_encode(seq, used, count, bytes), f);
        fclose(f);
    }
    struct nvme *n = nvme_test_open(dir, 8 * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 4), first = nvme_test_id(n, 1);
    CHECK_EQ(admit(n, id, 4, 0, 230, LEN), 230);
    CHECK_EQ(hits(n, id, 4, 0, 230, LEN, NULL), 230);
    CHECK_EQ(hits(n, first, 1, 0, 150, LEN, NULL), 150); /* in use */
    CHECK_EQ(hits(n, nvme_test_id(n, 3), 3, 0, 150, LEN, NULL), 150);
    CHECK_EQ(hits(n, nvme_test_id(n, 2), 2, 0, 150, LEN, NULL), 0);
    nvme_close(n);
}

TEST(one_at_a_time)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 8 * MIB, REPLACE_NONE), *other;
    struct nvme_options o = {dir, 8 * MIB, REPLACE_NONE, true, NULL};
    struct larder_error err;
    char pid[32];
    CHECK_ERR(nvme_open(&o, &other, &err), LARDER_EBUSY, &err);
    CHECK(other == NULL);
    snprintf(pid, sizeof pid, "process %ld", (long)getpid());
    CHECK(strstr(err.message, pid) != NULL);
    nvme_close(n);
    REQUIRE_OK(nvme_open(&o, &other, &err), &err);
    nvme_close(other);
    o.bytes = MIB;
    CHECK_ERR(nvme_open(&o, &other, &err), LARDER_EINVAL, &err);
}

/* The lock goes with its owner although a child that it forked lives on; and the child may close. */
static void fork_under(const char *name)
{
    const char *dir = tmp_dir();
    struct nvme_options o = {dir, 8 * MIB, REPLACE_NONE, true, name};
    int ready[2], end[2];
    char c;
    REQUIRE(pipe(ready) == 0 && pipe(end) == 0);
    pid_t owner = fork();
    if (owner == 0) {
        struct nvme *n;
        close(end[1]);
        if (nvme_open(&o, &n, NULL))
            _exit(1);
        if (fork() == 0) {
            nvme_close(n);
            if (write(ready[1], "x", 1) != 1 || read(end[0], &c, 1) != 0)
                _exit(1);
            _exit(0);
        }
        pause();
    }
    close(end[0]);
    REQUIRE(read(ready[0], &c, 1) == 1);
    struct nvme *n = NULL;
    struct larder_error err;
    o.name = NULL;
    CHECK_ERR(nvme_open(&o, &n, &err), LARDER_EBUSY, &err);
    kill(owner, SIGKILL);
    waitpid(owner, NULL, 0);
    CHECK_OK(nvme_open(&o, &n, &err), &err);
    nvme_close(n);
    close(end[1]);
    close(ready[0]);
    close(ready[1]);
}

TEST(forked_child)
{
    char name[64];
    snprintf(name, sizeof name, "test-fork-%d", (int)getpid());
    fork_under(NULL);
    fork_under(name);
}

/* Every page of a segment is damaged in turn; also cut off, emptied, and filled with noise. */
TEST(damaged_segment)
{
    const char *dir = tmp_dir();
    char path[200];
    struct nvme *n = nvme_test_open(dir, 4 * MIB, REPLACE_NONE);
    unsigned in = admit(n, nvme_test_id(n, 1), 1, 0, 200, LEN);
    nvme_close(n);
    CHECK_EQ(in, 200);
    segment_path(dir, 0, path);
    for (off_t page = 0; page < 256; page += page < 3 || page > 246 ? 1 : 25) {
        unsigned healed = 0;
        damage(path, page * 4096 + 17, 3);
        n = nvme_test_open(dir, 4 * MIB, REPLACE_NONE);
        uint32_t id = nvme_test_id(n, 1);
        unsigned h = hits(n, id, 1, 0, 200, LEN, &healed);
        CHECK(h >= 90); /* the other segment is untouched */
        for (uint64_t i = 0; i < 200; i++) /* what was lost comes again */
            nvme_test_admit(n, id, 1, i, LEN);
        nvme_flush(n);
        CHECK_EQ(hits(n, id, 1, 0, 200, LEN, NULL), 200);
        nvme_close(n);
    }
    CHECK_EQ(truncate(path, 500000), 0);
    n = nvme_test_open(dir, 4 * MIB, REPLACE_NONE);
    CHECK(hits(n, nvme_test_id(n, 1), 1, 0, 200, LEN, NULL) > 0);
    nvme_close(n);
}

TEST(damaged_checkpoint)
{
    const char *dir = tmp_dir();
    char path[200];
    struct stat st;
    struct nvme *n = nvme_test_open(dir, 4 * MIB, REPLACE_NONE);
    admit(n, nvme_test_id(n, 1), 1, 0, 50, LEN);
    nvme_close(n);
    snprintf(path, sizeof path, "%s/checkpoint", dir);
    REQUIRE(stat(path, &st) == 0);
    for (off_t at = 0; at < st.st_size; at += 13) {
        damage(path, at, 1);
        n = nvme_test_open(dir, 4 * MIB, REPLACE_NONE);
        CHECK_EQ(hits(n, nvme_test_id(n, 1), 1, 0, 50, LEN, NULL), 50);
        nvme_close(n);
    }
    CHECK_EQ(truncate(path, 0), 0);
    n = nvme_test_open(dir, 4 * MIB, REPLACE_NONE);
    nvme_close(n);
    CHECK_EQ(unlink(path), 0);
    n = nvme_test_open(dir, 4 * MIB, REPLACE_NONE);
    CHECK_EQ(hits(n, nvme_test_id(n, 1), 1, 0, 50, LEN, NULL), 50);
    nvme_close(n);
}

/* Footers and heads of every sort of noise, and files that are none of the cache's. */
TEST(odd_directory)
{
    const char *dir = tmp_dir();
    char path[200];
    struct nvme_options o = {dir, 8 * MIB, REPLACE_NONE, true, NULL};
    struct larder_error err;
    struct nvme *n;
    segment_path(dir, 1, path);
    REQUIRE(mkdir(path, 0777) == 0);
    segment_path(dir, 2, path);
    REQUIRE(symlink("/etc/passwd", path) == 0);
    snprintf(path, sizeof path, "%s/notes.txt", dir);
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    for (unsigned i = 0; i < 2 * MIB; i++)
        fputc('x', f);
    fclose(f);
    REQUIRE_OK(nvme_open(&o, &n, &err), &err);
    uint32_t id = nvme_test_id(n, 1);
    unsigned in = admit(n, id, 1, 0, 900, LEN);
    CHECK(in > 100);
    CHECK_EQ(hits(n, id, 1, 0, 900, LEN, NULL), in);
    nvme_close(n);
    CHECK(nvme_test_usage(dir) <= 8 * MIB); /* the stranger's file counts */
    CHECK(access(path, F_OK) == 0 && access("/etc/passwd", F_OK) == 0);
}

TEST(bad_paths)
{
    struct nvme_options o = {"/proc/nothing/here", 8 * MIB, REPLACE_NONE, true, NULL};
    struct larder_error err;
    struct nvme *n;
    CHECK_ERR(nvme_open(&o, &n, &err), LARDER_EIO, &err);
    o.dir = "/etc/passwd";
    CHECK_ERR(nvme_open(&o, &n, &err), LARDER_EIO, &err);
    CHECK(strstr(err.message, "/etc/passwd") != NULL);
    o.dir = "/proc"; /* nobody can make a file there */
    CHECK_ERR(nvme_open(&o, &n, &err), LARDER_EIO, &err);
}

/* The directory is removed under the cache: what is written is read on, no more is admitted beyond the open segments. */
TEST(vanished)
{
    char dir[200], cmd[256];
    snprintf(dir, sizeof dir, "%s/cache", tmp_dir());
    struct nvme *n = nvme_test_open(dir, 16 * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_stats st;
    unsigned in = admit(n, id, 1, 0, 150, LEN);
    snprintf(cmd, sizeof cmd, "rm -r %s", dir);
    REQUIRE(system(cmd) == 0);
    CHECK_EQ(hits(n, id, 1, 0, 150, LEN, NULL), in);
    admit(n, id, 1, 150, 800, LEN);
    CHECK(hits(n, id, 1, 0, 950, LEN, NULL) >= in);
    nvme_stats(n, &st);
    CHECK(st.warning != NULL);
    CHECK_EQ(st.entries, hits(n, id, 1, 0, 950, LEN, NULL));
    CHECK(nvme_closed(n, id));
    nvme_close(n);
}

TEST(limit_changes)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 16 * MIB, REPLACE_NONE);
    admit(n, nvme_test_id(n, 1), 1, 0, 1000, LEN);
    nvme_close(n);
    n = nvme_test_open(dir, 40 * MIB, REPLACE_NONE);
    CHECK_EQ(hits(n, nvme_test_id(n, 1), 1, 0, 1000, LEN, NULL), 1000);
    nvme_close(n);
    n = nvme_test_open(dir, 6 * MIB, REPLACE_NONE);
    unsigned h = hits(n, nvme_test_id(n, 1), 1, 0, 1000, LEN, NULL);
    CHECK(h > 300 && h < 700);
    nvme_close(n);
    CHECK(nvme_test_usage(dir) <= 6 * MIB);
}

/* Reads fail: misses that heal; after many in a row the tier is passed by. */
TEST(failing_reads)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 16 * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_place at;
    struct nvme_stats st;
    struct cached hit;
    admit(n, id, 1, 0, 200, LEN);
    for (uint64_t i = 0; i < 30; i++) {
        REQUIRE(nvme_lookup(n, id, i, &at));
        CHECK(!nvme_check(n, id, i, &at, NULL, &hit));
        CHECK(!nvme_lookup(n, id, i, &at));
    }
    CHECK_EQ(nvme_test_get(n, id, 1, 30, LEN), NVME_HIT); /* one that succeeds: from the start */
    for (uint64_t i = 31; i < 31 + 64; i++) {
        REQUIRE(nvme_lookup(n, id, i, &at));
        nvme_check(n, id, i, &at, NULL, &hit);
    }
    CHECK(!nvme_lookup(n, id, 150, &at));
    CHECK_EQ(nvme_test_admit(n, id, 1, 500, LEN), LARDER_ENOMEM);
    nvme_stats(n, &st);
    CHECK_EQ(st.healed, 94);
    CHECK(st.warning && strstr(st.warning, "passed by"));
    nvme_close(n);
}

/* ---- records longer than a segment, or than the write buffer ---- */

/* Record i, of len bytes, there or not. */
static bool long_there(struct nvme *n, uint32_t id, uint64_t i, const uint8_t *bytes, uint32_t len)
{
    struct nvme_place at;
    struct cached hit;
    void *mem = NULL;
    if (!nvme_lookup(n, id, i, &at))
        return false;
    REQUIRE(posix_memalign(&mem, 4096, at.len) == 0);
    CHECK_EQ(pread(at.fd, mem, at.len, (off_t)at.offset), at.len);
    bool whole = nvme_check(n, id, i, &at, mem, &hit);
    CHECK(!whole || (hit.stored_len == len && memcmp(hit.bytes, bytes, len) == 0));
    free(mem);
    return whole;
}

static int long_admit(struct nvme *n, uint32_t id, uint64_t i, const uint8_t *bytes, uint32_t len)
{
    struct cached c = {bytes, len, len, crc32c(0, bytes, len), 0};
    int rc = nvme_admit(n, id, i, &c);
    nvme_flush(n);
    return rc;
}

TEST(long_records)
{
    enum { N = 6 };
    static const uint32_t lens[N] = {MIB - 3 * 4096 - 64, MIB - 3 * 4096 - 63, 3 * MIB, 7 * MIB, 100, 11 * MIB + 77};
    const char *dir = tmp_dir();
    uint8_t *bytes = malloc(12 * MIB);
    uint64_t seed = 8;
    rng_fill(&seed, bytes, 12 * MIB);
    struct nvme *n = nvme_test_open(dir, 32 * MIB, REPLACE_NONE);
    CHECK_EQ(n->h->segment_bytes, MIB);
    for (int run = 0; run < 3; run++) {
        uint32_t id = nvme_test_id(n, 1);
        struct nvme_stats st;
        for (uint64_t i = 0; i < N; i++) {
            CHECK_EQ(long_there(n, id, i, bytes + i, lens[i]), run > 0);
            CHECK_EQ(long_admit(n, id, i, bytes + i, lens[i]), LARDER_OK);
            CHECK(long_there(n, id, i, bytes + i, lens[i]));
        }
        CHECK_EQ(admit(n, id, 1, 100 + (uint64_t)run * 100, 100, LEN), 100); /* what is left in them is used */
        nvme_stats(n, &st);
        CHECK(st.used <= st.budget && st.warning == NULL);
        CHECK_EQ(st.recovered, run ? N + run * 100 : 0);
        CHECK(nvme_test_usage(dir) <= 32 * MIB);
        nvme_close(n);
        n = nvme_test_open(dir, 32 * MIB, REPLACE_NONE);
    }
    nvme_close(n);
    free(bytes);
}

/* Long and short ones push each other out; the disk never holds more than the limit, and no place is lost. */
TEST(long_records_under_fifo)
{
    const char *dir = tmp_dir();
    uint8_t *bytes = malloc(10 * MIB);
    uint64_t seed = 9;
    rng_fill(&seed, bytes, 10 * MIB);
    struct nvme *n = nvme_test_open(dir, 12 * MIB, REPLACE_FIFO);
    uint32_t id = nvme_test_id(n, 1);
    for (uint64_t i = 0; i < 60; i++) {
        uint32_t len = rng_below(&seed, 3) ? (uint32_t)rng_below(&seed, 300000) : (uint32_t)rng_below(&seed, 9 * MIB);
        CHECK_EQ(long_admit(n, id, i, bytes + i, len), LARDER_OK);
        CHECK(long_there(n, id, i, bytes + i, len));
        CHECK(nvme_test_usage(dir) <= 12 * MIB);
        if (i % 20 == 19) {
            nvme_close(n);
            n = nvme_test_open(dir, 12 * MIB, REPLACE_FIFO);
            id = nvme_test_id(n, 1);
            CHECK(long_there(n, id, i, bytes + i, len));
        }
    }
    CHECK_EQ(admit(n, id, 1, 1000, 2000, LEN), 2000); /* all places hold short ones again */
    unsigned in = hits(n, id, 1, 1000, 2000, LEN, NULL);
    CHECK(in > 800 && in < 1300);
    nvme_close(n);
    free(bytes);
}

/* ---- processes of one group ---- */

static const char *group(void)
{
    static char name[64]; /* of the parent, in its children too */
    if (!name[0])
        snprintf(name, sizeof name, "test-nvme-%d", (int)getpid());
    return name;
}

/* Another process of the group does what it is told, a word at a time. */
struct order { unsigned what, space; uint64_t first, count; };
struct other { pid_t pid; int say, hear; struct order order; };
enum { DO_ADMIT = 1, DO_COUNT, DO_CLOSE, DO_ADMIT_ONLY };

static void obey(struct other *o, const char *dir, const char *name, enum replacement r, uint64_t bytes)
{
    struct nvme *n = nvme_test_join(dir, bytes, r, name);
    unsigned done = 0;
    while (write(o->hear, &done, sizeof done) == sizeof done && read(o->say, &o->order, sizeof o->order) == sizeof o->order) {
        uint32_t id = nvme_test_id(n, o->order.space);
        if (o->order.what == DO_ADMIT)
            done = admit(n, id, o->order.space, o->order.first, o->order.count, LEN);
        else if (o->order.what == DO_COUNT)
            done = hits(n, id, o->order.space, o->order.first, o->order.count, LEN, NULL);
        for (uint64_t i = 0; o->order.what == DO_ADMIT_ONLY && i < o->order.count; i++)
            nvme_test_admit(n, id, o->order.space, o->order.first + i, LEN);
        if (o->order.what == DO_CLOSE) {
            nvme_close(n);
            _exit(atomic_load(&test_failures) ? 1 : 0);
        }
    }
    _exit(atomic_load(&test_failures) ? 1 : 0);
}

static unsigned answer(struct other *o)
{
    unsigned done = 0;
    REQUIRE(read(o->hear, &done, sizeof done) == sizeof done);
    return done;
}

static void start_other(struct other *o, const char *dir, const char *name, enum replacement r, uint64_t bytes)
{
    int say[2], hear[2];
    REQUIRE(pipe(say) == 0 && pipe(hear) == 0);
    o->pid = fork();
    if (o->pid == 0) {
        close(say[1]), close(hear[0]);
        o->say = say[0], o->hear = hear[1];
        obey(o, dir, name, r, bytes);
    }
    close(say[0]), close(hear[1]);
    o->say = say[1], o->hear = hear[0];
    answer(o);
}

static void tell(struct other *o, unsigned what, unsigned space, uint64_t first, uint64_t count)
{
    struct order order = {what, space, first, count};
    REQUIRE(write(o->say, &order, sizeof order) == sizeof order);
}

static unsigned ask(struct other *o, unsigned what, unsigned space, uint64_t first, uint64_t count)
{
    tell(o, what, space, first, count);
    return answer(o);
}

static void end_other(struct other *o, bool killed)
{
    int status;
    if (killed)
        kill(o->pid, SIGKILL);
    else
        tell(o, DO_CLOSE, 1, 0, 0);
    REQUIRE(waitpid(o->pid, &status, 0) == o->pid);
    CHECK(killed ? WIFSIGNALED(status) : status == 0);
    close(o->say);
    close(o->hear);
}

TEST(what_one_process_admits_the_other_hits)
{
    TEST_FORKS();
    const char *dir = tmp_dir();
    struct other o;
    struct nvme_stats st;
    start_other(&o, dir, group(), REPLACE_NONE, 16 * MIB);
    CHECK_EQ(ask(&o, DO_ADMIT, 1, 0, 200), 200);
    struct nvme *n = nvme_test_join(dir, 999 * MIB, REPLACE_FIFO, group()); /* taken as it is */
    uint32_t id = nvme_test_id(n, 1);
    CHECK_EQ(n->h->budget, 16 * MIB);
    CHECK_EQ(nvme_replacement(n), REPLACE_NONE);
    CHECK_EQ(hits(n, id, 1, 0, 200, LEN, NULL), 200);
    CHECK_EQ(admit(n, id, 1, 100, 200, LEN), 200);
    CHECK_EQ(admit(n, nvme_test_id(n, 2), 2, 0, 100, LEN), 100);
    CHECK_EQ(ask(&o, DO_COUNT, 1, 0, 300), 300);
    CHECK_EQ(ask(&o, DO_COUNT, 2, 0, 300), 100);
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, 400);
    CHECK_EQ(st.admissions, 400);
    struct nvme_options other = {dir, 16 * MIB, REPLACE_NONE, true, "test-another"};
    struct nvme *stranger;
    struct larder_error err;
    CHECK_ERR(nvme_open(&other, &stranger, &err), LARDER_EBUSY, &err);
    other.name = NULL;
    CHECK_ERR(nvme_open(&other, &stranger, &err), LARDER_EBUSY, &err);
    end_other(&o, false); /* who opened it first goes, and the directory stays ours */
    CHECK_ERR(nvme_open(&other, &stranger, &err), LARDER_EBUSY, &err);
    char me[64];
    snprintf(me, sizeof me, "process %ld", (long)getpid());
    CHECK(strstr(err.message, me) != NULL);
    CHECK_EQ(hits(n, id, 1, 0, 300, LEN, NULL), 300);
    CHECK_EQ(admit(n, id, 1, 300, 100, LEN), 100);
    nvme_close(n);
    n = nvme_test_open(dir, 16 * MIB, REPLACE_NONE); /* and the next run is warm, by footers */
    nvme_stats(n, &st);
    CHECK_EQ(st.recovered, 500);
    CHECK_EQ(hits(n, nvme_test_id(n, 1), 1, 0, 500, LEN, NULL), 400);
    CHECK_EQ(hits(n, nvme_test_id(n, 2), 2, 0, 500, LEN, NULL), 100);
    nvme_close(n);
}

/* Four fill at once, the same records: each comes in once, and what fits the limit is what one process alone would fit. */
static void fill_together(enum replacement r, unsigned count, unsigned low, unsigned high)
{
    const char *dir = tmp_dir();
    struct other o[4];
    struct nvme_stats st;
    unsigned there = 0;
    for (int i = 0; i < 4; i++)
        start_other(&o[i], dir, group(), r, 10 * MIB);
    for (int i = 0; i < 4; i++)
        tell(&o[i], DO_ADMIT, 1, 0, count);
    for (int i = 0; i < 4; i++)
        answer(&o[i]);
    struct nvme *n = nvme_test_join(dir, 10 * MIB, r, group());
    there = hits(n, nvme_test_id(n, 1), 1, 0, count, LEN, NULL);
    CHECK(there >= low && there <= high);
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, there);
    CHECK_EQ(st.healed, 0);
    CHECK(st.used <= 10 * MIB && st.warning == NULL);
    CHECK(nvme_test_usage(dir) <= 10 * MIB);
    if (r == REPLACE_NONE)
        CHECK_EQ(st.admissions, there);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(ask(&o[i], DO_COUNT, 1, 0, count), there);
        end_other(&o[i], i % 2);
    }
    CHECK_EQ(hits(n, nvme_test_id(n, 1), 1, 0, count, LEN, NULL), there);
    nvme_close(n);
    CHECK(nvme_test_usage(dir) <= 10 * MIB);
}

TEST(several_fill_at_once)
{
    TEST_FORKS();
    fill_together(REPLACE_NONE, 600, 600, 600);
    fill_together(REPLACE_NONE, 1300, 800, 1000);
    fill_together(REPLACE_FIFO, 1300, 200, 1000);
}

/* Who is killed while it fills segments leaves what was written, and room for the rest. */
TEST(killed_while_filling)
{
    TEST_FORKS();
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_join(dir, 8 * MIB, REPLACE_NONE, group());
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_stats st;
    for (uint64_t round = 0; round < 30; round++) {
        struct other o;
        start_other(&o, dir, group(), REPLACE_NONE, 8 * MIB);
        CHECK_EQ(ask(&o, DO_ADMIT, 1, round * 5, 3), 3);
        ask(&o, DO_ADMIT_ONLY, 1, round * 5 + 3, 2); /* in its buffer, perhaps */
        end_other(&o, true);
        CHECK_EQ(hits(n, id, 1, round * 5, 3, LEN, NULL), 3);
    }
    CHECK_EQ(admit(n, id, 1, 0, 150, LEN), 150); /* what was pending is gone, so it can come again */
    CHECK_EQ(hits(n, id, 1, 0, 150, LEN, NULL), 150);
    unsigned in = admit(n, id, 1, 150, 1000, LEN);
    CHECK(150 + in > 620); /* as many as ever: no segment was lost */
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, 150 + in);
    CHECK_EQ(st.healed, 0);
    nvme_close(n);
    CHECK(nvme_test_usage(dir) <= 8 * MIB);
}

/* What another is writing can be waited for, also when it dies. */
TEST(waiting_for_what_another_writes)
{
    TEST_FORKS();
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_join(dir, 8 * MIB, REPLACE_NONE, group());
    uint32_t id = nvme_test_id(n, 1);
    struct other o;
    start_other(&o, dir, group(), REPLACE_NONE, 8 * MIB);
    for (uint64_t i = 0; i < 4; i++) {
        CHECK_EQ(ask(&o, DO_ADMIT_ONLY, 1, i, 1), 0);
        nvme_wait(n, id, i, 60000, NULL);
        CHECK(!nvme_coming(n, id, i));
        CHECK_EQ(nvme_test_get(n, id, 1, i, LEN), NVME_HIT);
    }
    ask(&o, DO_ADMIT_ONLY, 1, 100, 1);
    end_other(&o, true);
    nvme_wait(n, id, 100, 60000, NULL);
    CHECK(!nvme_coming(n, id, 100));
    enum nvme_outcome out = nvme_test_get(n, id, 1, 100, LEN);
    CHECK(out == NVME_HIT || out == NVME_MISS);
    CHECK_EQ(nvme_test_admit(n, id, 1, 100, LEN), LARDER_OK);
    nvme_flush(n);
    CHECK_EQ(nvme_test_get(n, id, 1, 100, LEN), NVME_HIT);
    nvme_close(n);
}

/* A member that dies while it changes what is shared leaves it to be repaired. */
TEST(killed_with_the_lock_held)
{
    TEST_FORKS();
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_join(dir, 8 * MIB, REPLACE_NONE, group());
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_stats st;
    int status;
    CHECK_EQ(admit(n, id, 1, 0, 200, LEN), 200);
    pid_t pid = fork();
    if (pid == 0) {
        struct nvme *c = nvme_test_join(dir, 8 * MIB, REPLACE_NONE, group());
        pthread_mutex_lock(&c->lock);
        if (!nvme_table_lock(c))
            _exit(1);
        atomic_store(&c->h->entries, 7);
        c->h->segments[0].live = 3;
        c->h->map.filled = 1;
        c->h->segments[5].state = NVME_ACTIVE; /* begun, but for its number */
        c->h->segments[6].state = NVME_LENT;
        c->h->segments[6].lender = 5;
        kill(getpid(), SIGKILL);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status));
    nvme_stats(n, &st);
    CHECK_EQ(nvme_test_id(n, 1), id);
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, 200);
    CHECK(n->h->segments[5].state == NVME_FREE && n->h->segments[6].state == NVME_FREE);
    CHECK_EQ(hits(n, id, 1, 0, 200, LEN, NULL), 200);
    CHECK(admit(n, id, 1, 200, 1000, LEN) > 400);
    nvme_close(n);
}

/* A member that is stopped while it changes what is shared: the others read on, and admit again when it does go on. */
TEST(stopped_with_the_lock_held)
{
    TEST_FORKS();
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_join(dir, 8 * MIB, REPLACE_NONE, group());
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_stats st;
    int status;
    CHECK_EQ(admit(n, id, 1, 0, 100, LEN), 100);
    pid_t pid = fork();
    if (pid == 0) {
        struct nvme *c = nvme_test_join(dir, 8 * MIB, REPLACE_NONE, group());
        pthread_mutex_lock(&c->lock);
        if (!nvme_table_lock(c))
            _exit(1);
        kill(getpid(), SIGSTOP);
        nvme_table_unlock(c);
        pthread_mutex_unlock(&c->lock);
        nvme_close(c);
        _exit(0);
    }
    REQUIRE(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
    CHECK_EQ(hits(n, id, 1, 0, 100, LEN, NULL), 100);
    for (uint64_t i = 100; i < 1000; i++)
        CHECK_EQ(nvme_test_admit(n, id, 1, i, LEN), LARDER_ENOMEM); /* the first one waits, the others do not */
    CHECK(!nvme_closed(n, id));
    nvme_stats(n, &st);
    CHECK(st.warning && strstr(st.warning, "does not go on"));
    kill(pid, SIGCONT);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    CHECK_EQ(admit(n, id, 1, 100, 100, LEN), 100);
    CHECK_EQ(hits(n, id, 1, 0, 200, LEN, NULL), 200);
    nvme_close(n);
}

/* ---- threads ---- */

static void *fill_and_read(void *arg)
{
    const char *dir = arg;
    struct nvme *n = nvme_test_join(dir, 10 * MIB, REPLACE_FIFO, group());
    uint32_t id = nvme_test_id(n, 1);
    CHECK(admit(n, id, 1, 0, 300, LEN) > 0);
    hits(n, id, 1, 0, 300, LEN, NULL); /* the other may be far ahead, and these evicted */
    CHECK(admit(n, id, 1, 300, 1200, LEN) > 0);
    hits(n, id, 1, 0, 1500, LEN, NULL);
    nvme_close(n);
    return NULL;
}

/* Handles of one process share as processes do. */
TEST(two_handles_in_a_process)
{
    const char *dir = tmp_dir();
    pthread_t t[2];
    group();
    for (int i = 0; i < 2; i++)
        REQUIRE(pthread_create(&t[i], NULL, fill_and_read, (void *)(uintptr_t)dir) == 0);
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    struct nvme *n = nvme_test_join(dir, 10 * MIB, REPLACE_FIFO, group());
    CHECK(hits(n, nvme_test_id(n, 1), 1, 0, 1500, LEN, NULL) > 300);
    nvme_close(n);
    CHECK(nvme_test_usage(dir) <= 10 * MIB);
}

struct shared { struct nvme *n; uint32_t id; unsigned worker; atomic_uint hits, wrong; };

static void *churn(void *arg)
{
    struct shared *s = arg;
    uint64_t seed = atomic_fetch_add(&s->hits, 0) + (uintptr_t)&seed;
    for (int i = 0; i < 3000; i++) {
        uint64_t ordinal = rng_below(&seed, 900);
        enum nvme_outcome o = nvme_test_get(s->n, s->id, 1, ordinal, LEN);
        atomic_fetch_add(&s->hits, o == NVME_HIT);
        atomic_fetch_add(&s->wrong, o == NVME_WRONG);
        if (o != NVME_HIT)
            nvme_test_admit(s->n, s->id, 1, ordinal, LEN);
        if (i % 300 == 299) /* however slow the disk is */
            nvme_flush(s->n);
    }
    return NULL;
}

TEST(threads_under_fifo)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 6 * MIB, REPLACE_FIFO);
    struct shared s = {n, nvme_test_id(n, 1), 0, 0, 0};
    struct nvme_stats st;
    pthread_t t[4];
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&t[i], NULL, churn, &s) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    nvme_flush(n);
    nvme_stats(n, &st);
    CHECK_EQ(s.wrong, 0);
    CHECK(s.hits > 500);
    CHECK_EQ(st.healed, 0);
    CHECK_EQ(st.entries, hits(n, s.id, 1, 0, 900, LEN, NULL));
    nvme_close(n);
}

TEST_MAIN();
