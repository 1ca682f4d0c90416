/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up /proc and cgroup tree stands in for the machine's, so that both hierarchies and all nestings are met. */
#include <limits.h>
#include <sched.h>

#include "store/base/base_int.h"
#include "tests/unit/test.h"

static void put_file(const char *root, const char *path, const char *text)
{
    char full[512];

    snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *s = strchr(full + strlen(root) + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = '\0';
        mkdir(full, 0777);
        *s = '/';
    }
    FILE *f = fopen(full, "w");
    REQUIRE(f);
    REQUIRE(fputs(text, f) >= 0);
    REQUIRE(fclose(f) == 0);
}

#define V2_MOUNT "31 23 0:28 / /proc rw - proc proc rw\n41 31 0:38 / /cg rw,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

TEST(this_machine)
{
    cpu_set_t set;

    REQUIRE(sched_getaffinity(0, sizeof(set), &set) == 0);
    CHECK(cpu_count() >= 1 && cpu_count() <= (unsigned)CPU_COUNT(&set));
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    CHECK(memory_available() > 0 && memory_available() < total);
}

TEST(affinity_counts)
{
    cpu_set_t all, one;

    REQUIRE(sched_getaffinity(0, sizeof(all), &all) == 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    CHECK_EQ(cpu_count(), 1);
    CHECK_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(nothing_known_is_no_limit)
{
    const char *root = tmp_dir();

    CHECK_EQ(limits_cpu_quota(root), UINT_MAX);
    CHECK(limits_memory_available(root) > 0); /* sysconf's */
    put_file(root, "/proc/meminfo", "MemTotal:       24684140 kB\nMemFree:  1 kB\nMemAvailable:   24225484 kB\n");
    CHECK_EQ(limits_memory_available(root), 24225484ull * 1024);
}

TEST(v2_strictest_of_the_path_counts)
{
    const char *root = tmp_dir();

    put_file(root, "/proc/meminfo", "MemAvailable: 1000000 kB\n");
    put_file(root, "/proc/self/mountinfo", V2_MOUNT);
    put_file(root, "/proc/self/cgroup", "0::/job/task\n");
    put_file(root, "/cg/job/task/cpu.max", "max 100000\n");
    put_file(root, "/cg/job/task/memory.max", "max\n");
    CHECK_EQ(limits_cpu_quota(root), UINT_MAX);
    CHECK_EQ(limits_memory_available(root), 1000000ull * 1024);

    put_file(root, "/cg/job/cpu.max", "250000 100000\n");
    CHECK_EQ(limits_cpu_quota(root), 3);
    put_file(root, "/cg/cpu.max", "200000 100000\n");
    CHECK_EQ(limits_cpu_quota(root), 2);
    put_file(root, "/cg/job/task/cpu.max", "1000 100000\n");
    CHECK_EQ(limits_cpu_quota(root), 1);

    put_file(root, "/cg/job/memory.max", "500000000\n");
    put_file(root, "/cg/job/memory.current", "300000000\n");
    CHECK_EQ(limits_memory_available(root), 200000000);
    put_file(root, "/cg/job/memory.stat", "anon 1\nfile 9\ninactive_file 40000000\nactive_file 60000000\n");
    CHECK_EQ(limits_memory_available(root), 300000000);
    put_file(root, "/cg/job/task/memory.high", "250000000\n"); /* memory.max is there and "max" */
    put_file(root, "/cg/job/task/memory.current", "240000000\n");
    CHECK_EQ(limits_memory_available(root), 10000000);
    put_file(root, "/cg/job/task/memory.current", "990000000\n"); /* over it */
    CHECK_EQ(limits_memory_available(root), 0);
}

TEST(v1_controllers_have_their_own_paths)
{
    const char *root = tmp_dir();

    put_file(root, "/proc/meminfo", "MemAvailable: 1000000 kB\n");
    put_file(root, "/proc/self/mountinfo",
             "1 0 0:1 / /cg/cpu rw - cgroup cgroup rw,cpuacct,cpu\n2 0 0:2 / /cg/my\\040memory rw shared:1 - cgroup cgroup rw,memory\n"
             "3 0 0:3 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n");
    put_file(root, "/proc/self/cgroup", "9:cpuset:/no\n4:memory:/mem/a\n3:cpuacct,cpu:/c\n0::/\n");
    put_file(root, "/cg/cpu/c/cpu.cfs_quota_us", "-1\n");
    put_file(root, "/cg/cpu/c/cpu.cfs_period_us", "100000\n");
    CHECK_EQ(limits_cpu_quota(root), UINT_MAX);
    put_file(root, "/cg/cpu/c/cpu.cfs_quota_us", "350000\n");
    CHECK_EQ(limits_cpu_quota(root), 4);

    put_file(root, "/cg/my memory/mem/memory.limit_in_bytes", "9223372036854771712\n"); /* v1's "none" */
    put_file(root, "/cg/my memory/mem/a/memory.limit_in_bytes", "800000000\n");
    put_file(root, "/cg/my memory/mem/a/memory.usage_in_bytes", "700000000\n");
    put_file(root, "/cg/my memory/mem/a/memory.stat", "inactive_file 5\ntotal_inactive_file 50000000\ntotal_active_file 1\n");
    CHECK_EQ(limits_memory_available(root), 150000001);
}

TEST(container_sees_its_group_as_the_mount_root)
{
    const char *root = tmp_dir();

    put_file(root, "/proc/meminfo", "MemAvailable: 1000000 kB\n");
    put_file(root, "/proc/self/mountinfo", "2 0 0:2 /docker/abc /cg/memory ro - cgroup cgroup rw,memory\n");
    put_file(root, "/proc/self/cgroup", "4:memory:/docker/abc\n");
    put_file(root, "/cg/memory/memory.limit_in_bytes", "100000000\n");
    put_file(root, "/cg/memory/memory.usage_in_bytes", "30000000\n");
    CHECK_EQ(limits_memory_available(root), 70000000);
    put_file(root, "/proc/self/cgroup", "4:memory:/docker/abc/inner\n");
    put_file(root, "/cg/memory/inner/memory.limit_in_bytes", "5000\n");
    CHECK_EQ(limits_memory_available(root), 5000);
    put_file(root, "/proc/self/cgroup", "4:memory:/docker/abcd\n"); /* not below: the mount's root is all we see */
    CHECK_EQ(limits_memory_available(root), 70000000);
}

TEST(nonsense_is_no_limit)
{
    const char *root = tmp_dir();

    put_file(root, "/proc/meminfo", "MemAvailable: 1000 kB\n");
    put_file(root, "/proc/self/mountinfo", "x\n\n - \n1 2 - cgroup2 a b\n" V2_MOUNT);
    put_file(root, "/proc/self/cgroup", "junk\n:\n0:x\n0::/job\n");
    put_file(root, "/cg/job/cpu.max", "");
    put_file(root, "/cg/job/memory.max", "99999999999999999999999999\n");
    CHECK_EQ(limits_cpu_quota(root), UINT_MAX);
    put_file(root, "/cg/job/cpu.max", "100000 0\n");
    CHECK_EQ(limits_cpu_quota(root), UINT_MAX);
    CHECK_EQ(limits_memory_available(root), 1024000);
}

TEST_MAIN();
