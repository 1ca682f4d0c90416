/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_nvme_kill.c - a process that fills and reads an NVMe cache dies by kill -9 at random moments, for KILL_SECONDS (15); then by a
 * power cut (a loop-mounted ext4 that is shut down: what was not synced is gone). After each the cache opens, every record that
 * is found has the right bytes, nearly all that were written are found, and the directory keeps to its limit.
 */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/nvme_records.h"

enum { ORDINALS = 3000, LEN = 30000, LIMIT = 24 };

static struct nvme *open_cache(const char *dir, enum replacement r, uint32_t id[2])
{
    struct nvme_options o = {dir, LIMIT * MIB, r, true, NULL};
    struct nvme *n;
    if (nvme_open(&o, &n, NULL))
        return NULL;
    for (unsigned s = 0; s < 2; s++) {
        struct cache_space space = nvme_test_space(s);
        if (nvme_space(n, &space, &id[s], NULL))
            abort();
    }
    return n;
}

/* Until it is killed: reads, admits what is missing, now and then closes and opens. 3: bytes were wrong. */
static void work(const char *dir, enum replacement r, uint64_t seed, int tell)
{
    for (;;) {
        uint32_t id[2];
        struct nvme *n = open_cache(dir, r, id);
        if (!n)
            _exit(2);
        if (tell >= 0 && write(tell, "x", 1) != 1)
            _exit(2);
        tell = -1;
        for (uint64_t i = 0, ops = 200 + rng_below(&seed, 4000); i < ops; i++) {
            unsigned s = (unsigned)rng_below(&seed, 2);
            uint64_t o = rng_below(&seed, ORDINALS);
            enum nvme_outcome out = nvme_test_get(n, id[s], s, o, LEN);
            if (out == NVME_WRONG)
                _exit(3);
            if (out != NVME_HIT)
                nvme_test_admit(n, id[s], s, o, LEN);
        }
        nvme_close(n);
    }
}

/* Every record found has its bytes. Returns how many there are; *healed those that were believed and were not whole. */
static unsigned verify(const char *dir, enum replacement r, unsigned *healed)
{
    uint32_t id[2];
    unsigned hits = 0;
    struct nvme_stats st;
    struct nvme *n = open_cache(dir, r, id);
    REQUIRE(n != NULL);
    for (unsigned s = 0; s < 2; s++)
        for (uint64_t o = 0; o < ORDINALS; o++) {
            enum nvme_outcome out = nvme_test_get(n, id[s], s, o, LEN);
            CHECK(out != NVME_WRONG);
            hits += out == NVME_HIT;
            *healed += out == NVME_HEALED;
        }
    nvme_stats(n, &st);
    CHECK_EQ(st.entries, hits);
    CHECK(st.used <= LIMIT * MIB);
    nvme_close(n);
    CHECK(nvme_test_usage(dir) <= LIMIT * MIB);
    return hits;
}

static pid_t start(const char *dir, enum replacement r, uint64_t seed)
{
    int fds[2];
    char c;
    REQUIRE(pipe(fds) == 0);
    pid_t pid = fork();
    if (pid == 0)
        work(dir, r, seed, fds[1]);
    close(fds[1]);
    CHECK(read(fds[0], &c, 1) == 1);
    close(fds[0]);
    return pid;
}

/* gone: its disk was taken away, so it may have found no way to go on. */
static void stop(pid_t pid, bool gone)
{
    int status;
    kill(pid, SIGKILL);
    REQUIRE(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : gone && WEXITSTATUS(status) == 2);
}

static void pause_ms(uint64_t ms)
{
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

static void kill_loop(enum replacement r)
{
    const char *text = getenv("KILL_SECONDS");
    uint64_t seed = (uint64_t)time(NULL), until = now_ns() + strtoull(text ? text : "15", NULL, 10) * 500000000ull;
    const char *dir = tmp_dir();
    unsigned rounds = 0, hits = 0;
    fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
    while ((now_ns() < until || rounds < 4) && !atomic_load(&test_failures)) { /* four at least, however slow the machine */
        unsigned healed = 0;
        pid_t pid = start(dir, r, seed + rounds);
        pause_ms(rng_below(&seed, 200));
        stop(pid, false);
        unsigned now = verify(dir, r, &healed);
        CHECK(r == REPLACE_FIFO || now + healed >= hits); /* nothing that was there is lost without a reason */
        CHECK(healed <= 2 * MIB / LEN * 4); /* a write that was cut off: one chunk at most, a space */
        hits = now;
        rounds++;
    }
    fprintf(stderr, "%u kills, %u records at the end\n", rounds, hits);
    CHECK(rounds > 3 && hits > 300);
}

TEST(killed) { kill_loop(REPLACE_NONE); }
TEST(killed_fifo) { kill_loop(REPLACE_FIFO); }

static bool sh(const char *fmt, const char *a, const char *b)
{
    char cmd[600];
    snprintf(cmd, sizeof cmd, fmt, a, b);
    return system(cmd) == 0;
}

TEST(power_cut)
{
    char mnt[200], img[200], dir[256];
    const char *base = tmp_dir();
    unsigned found = 0;
    snprintf(img, sizeof img, "%s/disk", base);
    snprintf(mnt, sizeof mnt, "%s/mnt", base);
    snprintf(dir, sizeof dir, "%s/cache", mnt);
    if (geteuid() != 0)
        TEST_SKIP("a power cut needs root for a loop mount");
    REQUIRE(mkdir(mnt, 0777) == 0);
    if (!sh("command -v xfs_io mkfs.ext4 >/dev/null && truncate -s 80M %s && mkfs.ext4 -q -F %s >/dev/null 2>&1", img, img) ||
        !sh("mount -o loop %s %s 2>/dev/null", img, mnt))
        TEST_SKIP("a power cut needs loop mounts, mkfs.ext4 and xfs_io");
    uint64_t seed = 11;
    for (int round = 0; round < 5; round++) {
        enum replacement r = round % 2 ? REPLACE_FIFO : REPLACE_NONE;
        unsigned healed = 0;
        pid_t pid = start(dir, r, (uint64_t)round);
        pause_ms(300 + rng_below(&seed, 400));
        bool cut = sh("xfs_io -x -c shutdown %s%s", mnt, "");
        stop(pid, true);
        bool again = sh("umount %s%s", mnt, "") && sh("mount -o loop %s %s", img, mnt);
        CHECK(cut);
        REQUIRE(again);
        found += verify(dir, r, &healed);
    }
    CHECK(sh("umount %s%s", mnt, ""));
    CHECK(found > 100);
}

TEST_MAIN();
