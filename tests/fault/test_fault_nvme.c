/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault_nvme.c - every allocation, system call and thread start of an NVMe cache's life fails in turn; and a disk that is
 * full for real. Opening fails with a message or the cache works with less; nothing stays open; no byte is ever wrong; what
 * was on the disk before is read after.
 */
#include "tests/fault/fault.h"

#include <signal.h>
#include <sys/resource.h>

#include "tests/unit/nvme_records.h"
#include "tiers/nvme_int.h"

enum { RECORDS = 150, OLD = 40, LEN = 30000, LIMIT = 5 };

/* One life: opens, reads what is there, admits more, reads it, closes. */
static int life(const char *dir, unsigned *hits, struct larder_error *err)
{
    struct nvme_options o = {dir, LIMIT * MIB, REPLACE_FIFO, true, NULL};
    struct cache_space space = nvme_test_space(1);
    struct nvme_stats st;
    struct nvme *n;
    uint32_t id;
    int rc = nvme_open(&o, &n, err);
    *hits = 0;
    if (rc) {
        CHECK(n == NULL);
        return rc;
    }
    CHECK_OK(nvme_space(n, &space, &id, err), err);
    for (unsigned round = 0; round < 2; round++) {
        *hits = 0;
        for (uint64_t i = 0; i < RECORDS; i++) {
            static uint8_t buf[LEN + 8];
            struct nvme_place at;
            struct cached c, hit;
            void *mem = NULL;
            nvme_test_record(1, i, LEN, buf, &c);
            if (round == 0)
                nvme_admit(n, id, i, &c);
            if (!nvme_lookup(n, id, i, &at) || __real_posix_memalign(&mem, 4096, at.len) != 0)
                continue;
            bool read = __real_pread(at.fd, mem, at.len, (off_t)at.offset) == (ssize_t)at.len;
            if (nvme_check(n, id, i, &at, read ? mem : NULL, &hit)) {
                CHECK(hit.stored_len == c.stored_len && memcmp(hit.bytes, buf, c.stored_len) == 0);
                ++*hits;
            }
            free(mem);
        }
        nvme_flush(n);
    }
    nvme_stats(n, &st);
    CHECK(st.used <= st.budget);
    CHECK(st.entries >= *hits);
    nvme_close(n);
    return LARDER_OK;
}

static void sweep(enum fault_kind kind)
{
    const char *dir = tmp_dir();
    struct larder_error err;
    unsigned hits;
    long n;
    CHECK_OK(life(dir, &hits, &err), &err);
    CHECK_EQ(hits, RECORDS);
    for (n = 1; n < 2000; n++) {
        int fds = open_fds();
        fault_arm(kind, n);
        int rc = life(dir, &hits, &err);
        bool hit = fault_disarm();
        CHECK_EQ(open_fds(), fds);
        if (rc)
            CHECK(hit && err.code == rc && err.message[0]);
        if (!hit || kind == FAULT_SHORT)
            CHECK_EQ(hits, RECORDS);
        CHECK_OK(life(dir, &hits, &err), &err); /* the failure is over, and left nothing behind */
        CHECK_EQ(hits, RECORDS);
        if (!hit)
            break;
        if (n % 3 == 0) { /* also from an empty directory */
            char cmd[300];
            snprintf(cmd, sizeof cmd, "rm -f %s/seg-* %s/checkpoint", dir, dir);
            CHECK(system(cmd) == 0);
        }
    }
    CHECK(n > 1 && n < 2000);
}

TEST(allocations) { sweep(FAULT_ALLOC); }
TEST(system_calls) { sweep(FAULT_IO); }
TEST(short_transfers) { sweep(FAULT_SHORT); }
TEST(threads) { sweep(FAULT_THREAD); }

/* ---- records longer than a segment, by a handle that shares its directory ---- */

static uint32_t long_len(uint64_t i) { return i % 4 == 1 ? 1500000 : 9000; }

static int long_life(const char *dir, unsigned *hits, struct larder_error *err)
{
    static uint8_t bytes[1500000 + 100];
    char name[64];
    snprintf(name, sizeof name, "fault-%d", (int)getpid());
    struct nvme_options o = {dir, 8 * MIB, REPLACE_FIFO, true, name};
    struct cache_space space = nvme_test_space(1);
    struct nvme_stats st;
    struct nvme *n;
    uint32_t id;
    int rc = nvme_open(&o, &n, err);
    *hits = 0;
    if (rc)
        return rc;
    CHECK_OK(nvme_space(n, &space, &id, err), err);
    for (uint64_t i = 0; i < 24; i++) { /* twice what there is room for */
        memset(bytes, (int)i, sizeof bytes);
        struct cached c = {bytes, long_len(i), 1, crc32c(0, bytes, long_len(i)), 0}, hit;
        struct nvme_place at;
        void *mem = NULL;
        nvme_admit(n, id, i, &c);
        nvme_flush(n);
        if (!nvme_lookup(n, id, i, &at) || __real_posix_memalign(&mem, 4096, at.len) != 0)
            continue;
        bool read = __real_pread(at.fd, mem, at.len, (off_t)at.offset) == (ssize_t)at.len;
        if (nvme_check(n, id, i, &at, read ? mem : NULL, &hit)) {
            CHECK(hit.stored_len == c.stored_len && memcmp(hit.bytes, bytes, c.stored_len) == 0);
            ++*hits;
        }
        free(mem);
    }
    nvme_stats(n, &st);
    CHECK(st.used <= st.budget);
    nvme_close(n);
    return LARDER_OK;
}

static void long_sweep(enum fault_kind kind)
{
    const char *dir = tmp_dir();
    struct larder_error err;
    unsigned hits;
    char cmd[300];
    long n;
    CHECK_OK(long_life(dir, &hits, &err), &err);
    CHECK_EQ(hits, 24);
    for (n = 1; n < 2000; n += 1 + n / 40) {
        int fds = open_fds();
        fault_arm(kind, n);
        int rc = long_life(dir, &hits, &err);
        bool hit = fault_disarm();
        CHECK_EQ(open_fds(), fds);
        CHECK(!rc || (hit && err.code == rc && err.message[0]));
        CHECK(nvme_test_usage(dir) <= 8 * MIB);
        CHECK_OK(long_life(dir, &hits, &err), &err);
        CHECK_EQ(hits, 24);
        if (!hit)
            break;
        snprintf(cmd, sizeof cmd, "rm -f %s/seg-* %s/checkpoint", dir, dir);
        if (n % 2 == 0)
            CHECK(system(cmd) == 0);
    }
    CHECK(n > 1 && n < 2000);
}

TEST(long_allocations) { long_sweep(FAULT_ALLOC); }
TEST(long_system_calls) { long_sweep(FAULT_IO); }

/* No file may grow beyond 0 bytes: nothing is admitted that can be found, with a warning. */
TEST(no_room_at_all)
{
    const char *dir = tmp_dir();
    struct rlimit old, none;
    struct nvme_stats st;
    signal(SIGXFSZ, SIG_IGN);
    REQUIRE(getrlimit(RLIMIT_FSIZE, &old) == 0);
    none = (struct rlimit){0, old.rlim_max};
    struct nvme *n = nvme_test_open(dir, LIMIT * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 1);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &none) == 0);
    for (uint64_t i = 0; i < 100; i++)
        nvme_test_admit(n, id, 1, i, LEN);
    nvme_flush(n);
    for (uint64_t i = 0; i < 100; i++)
        CHECK_EQ(nvme_test_get(n, id, 1, i, LEN), NVME_MISS);
    nvme_test_admit(n, id, 1, 200, LEN);
    CHECK(nvme_closed(n, id));
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, 0);
    CHECK(st.warning && strstr(st.warning, "no room"));
    nvme_close(n);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &old) == 0);
}

/* A disk that takes long for each write holds up who closes for no longer than the limit; what was written before is there. */
TEST(closing_waits_for_a_slow_disk_only_so_long)
{
    const char *dir = tmp_dir();
    struct nvme *n = nvme_test_open(dir, 200 * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 1);
    for (uint64_t i = 0; i < 100; i++)
        nvme_test_admit(n, id, 1, i, LEN);
    nvme_flush(n);
    atomic_store(&fault_pwrite_ms, 200);
    for (uint64_t i = 100; i < 280; i++) /* a write buffer full: several seconds of writes */
        nvme_test_admit(n, id, 1, i, LEN);
    n->close_ms = 300;
    nvme_close(n);
    atomic_store(&fault_pwrite_ms, 0);
    n = nvme_test_open(dir, 200 * MIB, REPLACE_NONE);
    id = nvme_test_id(n, 1);
    unsigned late = 0;
    for (uint64_t i = 0; i < 280; i++) {
        enum nvme_outcome o = nvme_test_get(n, id, 1, i, LEN);
        if (i < 100)
            CHECK_EQ(o, NVME_HIT);
        late += i >= 100 && o == NVME_HIT;
    }
    CHECK(late < 180); /* the limit was reached, and the rest dropped */
    nvme_close(n);
}

/* A small file system that others fill: the cache stays within what there is, and its records are read. */
TEST(full_disk)
{
    char mnt[200], dir[256], cmd[600];
    const char *base = tmp_dir();
    snprintf(mnt, sizeof mnt, "%s/mnt", base);
    snprintf(dir, sizeof dir, "%s/cache", mnt);
    REQUIRE(mkdir(mnt, 0777) == 0);
    snprintf(cmd, sizeof cmd, "truncate -s 24M %s/disk && mkfs.ext4 -q -F %s/disk >/dev/null 2>&1 && mount -o loop %s/disk %s 2>/dev/null", base,
             base, base, mnt);
    if (geteuid() != 0 || system(cmd) != 0)
        TEST_SKIP("a full disk needs a loop mount, and that root");
    struct nvme *n = nvme_test_open(dir, 200 * MIB, REPLACE_NONE);
    uint32_t id = nvme_test_id(n, 1);
    struct nvme_stats st;
    unsigned hits = 0;
    for (uint64_t i = 0; i < 3000; i++) {
        nvme_test_admit(n, id, 1, i, LEN);
        if (i % 50 == 0)
            nvme_flush(n);
    }
    nvme_flush(n);
    for (uint64_t i = 0; i < 3000; i++) {
        enum nvme_outcome o = nvme_test_get(n, id, 1, i, LEN);
        CHECK(o == NVME_HIT || o == NVME_MISS);
        hits += o == NVME_HIT;
    }
    nvme_stats(n, &st);
    CHECK(hits > 500 && hits == st.entries);
    CHECK(st.warning != NULL);
    CHECK(nvme_closed(n, id));
    nvme_close(n);
    n = nvme_test_open(dir, 200 * MIB, REPLACE_NONE);
    id = nvme_test_id(n, 1);
    for (uint64_t i = 0; i < 3000; i++)
        hits -= nvme_test_get(n, id, 1, i, LEN) == NVME_HIT;
    CHECK_EQ(hits, 0);
    nvme_close(n);

    snprintf(cmd, sizeof cmd, "mount -o remount,ro %s", mnt); /* read-only: passed by, with a message */
    struct nvme_options o = {dir, 200 * MIB, REPLACE_NONE, true, NULL};
    struct larder_error err;
    REQUIRE(system(cmd) == 0);
    CHECK_ERR(nvme_open(&o, &n, &err), LARDER_EIO, &err);
    CHECK_EQ(err.sys_errno, EROFS);
    snprintf(cmd, sizeof cmd, "umount %s", mnt);
    CHECK(system(cmd) == 0);
}

TEST_MAIN();
