/* SPDX-License-Identifier: Apache-2.0 */
/*
 * limits.c - how many CPUs and how much memory this process may use.
 *
 * In a container the machine's figures are not ours: the cgroups this process is in may allow less. Both hierarchies are
 * looked at, version 1 (one mount a controller) and 2 (one mount for all), since hosts mix them. /proc/self/cgroup says
 * where in a hierarchy we are and /proc/self/mountinfo where that hierarchy is mounted and which of its groups is the
 * mount's root. Limits of all groups from ours up to the mount's root bind us; the strictest counts.
 *
 * Whatever cannot be read counts as no limit. Pages of the file cache that a group is charged for are taken back under
 * pressure, so they count as available, as MemAvailable has it for the machine.
 *
 * No state: any thread. Not for a fast path: a call opens some ten files.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <unistd.h>

#include "store/base/base_int.h"

/* A small file of /proc or /sys as text; NULL: it is not there or cannot be read. */
static char *slurp(const char *path)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    AUTO_BUF struct buf b = BUF_INIT;

    if (fd < 0)
        return NULL;
    for (;;) {
        if (b.len > MIB || buf_reserve(&b, 4 * KIB, NULL))
            return NULL;
        ssize_t n = read(fd, b.data + b.len, b.cap - b.len - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return NULL;
        b.len += (size_t)n;
        if (n == 0)
            break;
    }
    b.data[b.len] = '\0';
    char *text = (char *)b.data;
    b = (struct buf)BUF_INIT;
    return text;
}

/* SYSROOT/DIR/FILE as text. */
static char *slurp_at(const char *sysroot, const char *dir, const char *file)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s%s/%s", sysroot, dir, file);

    return n > 0 && (size_t)n < sizeof(path) ? slurp(path) : NULL;
}

/* First number of a text; "max", a negative one or nothing: none. */
static uint64_t number(const char *text, uint64_t none)
{
    char *end;

    if (!text || *text < '0' || *text > '9')
        return none;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    return errno || end == text ? none : v;
}

static uint64_t file_number(const char *sysroot, const char *dir, const char *file, uint64_t none)
{
    AUTO_FREE char *text = slurp_at(sysroot, dir, file);

    return number(text, none);
}

/* The number after "name " (or "name:") at the beginning of a line. */
static uint64_t line_number(const char *text, const char *name, uint64_t none)
{
    size_t len = strlen(name);

    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        if (strncmp(line, name, len) == 0 && (line[len] == ' ' || line[len] == ':'))
            return number(line + len + 1 + strspn(line + len + 1, " \t"), none);
    return none;
}

/* ---- which group, and where it is mounted ---- */

/* Whether word is one of the comma-separated words of list. */
static bool has_word(const char *list, const char *word)
{
    size_t len = strlen(word);

    for (const char *s = list; s; s = strchr(s, ','), s += s != NULL)
        if (strncmp(s, word, len) == 0 && (s[len] == ',' || s[len] == '\0'))
            return true;
    return false;
}

/* The group's path in the hierarchy of controller (NULL: version 2) out of /proc/self/cgroup: lines "id:controllers:path". */
static bool group_path(const char *sysroot, const char *controller, char out[PATH_MAX])
{
    AUTO_FREE char *text = slurp_at(sysroot, "/proc/self", "cgroup");
    char *save = NULL;

    for (char *line = text ? strtok_r(text, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        list++;
        if (controller ? !has_word(list, controller) : *list != '\0')
            continue;
        return (size_t)snprintf(out, PATH_MAX, "%s", path) < PATH_MAX;
    }
    return false;
}

/* Undoes mountinfo's \040 and the like, in place. */
static void octal_decode(char *s)
{
    char *to = s;

    while (*s) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
            s += 4;
        } else {
            *to++ = *s++;
        }
    }
    *to = '\0';
}

/* Splits a mountinfo line "id parent dev root mountpoint options [tags] - type source superoptions". */
static bool mount_fields(char *line, char **root, char **point, char **type, char **super)
{
    char *tail = strstr(line, " - "), *save = NULL, *word[5];

    if (!tail)
        return false;
    *tail = '\0';
    for (int i = 0; i < 5; i++)
        if (!(word[i] = strtok_r(i ? NULL : line, " ", &save)))
            return false;
    *root = word[3];
    *point = word[4];
    *type = strtok_r(tail + 3, " ", &save);
    char *source = strtok_r(NULL, " ", &save);
    *super = strtok_r(NULL, " ", &save);
    return *type && source && *super;
}

/* Folder of our group (dir) and how many of its first bytes are the mount point, above which nothing is. */
static bool group_dir(const char *sysroot, const char *controller, char dir[PATH_MAX], size_t *mount_len)
{
    char path[PATH_MAX];
    AUTO_FREE char *text = slurp_at(sysroot, "/proc/self", "mountinfo");
    char *save = NULL;

    if (!text || !group_path(sysroot, controller, path))
        return false;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *root, *point, *type, *super;
        if (!mount_fields(line, &root, &point, &type, &super))
            continue;
        if (controller ? strcmp(type, "cgroup") != 0 || !has_word(super, controller) : strcmp(type, "cgroup2") != 0)
            continue;
        octal_decode(root);
        octal_decode(point);
        size_t root_len = strcmp(root, "/") ? strlen(root) : 0;
        bool below = strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || path[root_len] == '\0');
        *mount_len = strlen(point);
        int n = snprintf(dir, PATH_MAX, "%s%s", point, below ? path + root_len : "");
        return n > 0 && n < PATH_MAX;
    }
    return false;
}

/* Calls fn for our group's folder and all above it, up to the mount point. */
static void each_group(const char *sysroot, const char *controller,
                       void (*fn)(const char *sysroot, const char *dir, void *user), void *user)
{
    char dir[PATH_MAX];
    size_t mount_len;

    if (!group_dir(sysroot, controller, dir, &mount_len))
        return;
    for (size_t len = strlen(dir);;) {
        while (len > mount_len && dir[len - 1] == '/')
            dir[--len] = '\0';
        fn(sysroot, dir, user);
        if (len <= mount_len)
            return;
        while (len > mount_len && dir[len - 1] != '/')
            dir[--len] = '\0';
    }
}

/* ---- CPUs ---- */

static void quota_apply(uint64_t quota, uint64_t period, unsigned *cpus)
{
    if (period == 0 || quota == UINT64_MAX || quota / period >= UINT_MAX)
        return;
    unsigned n = (unsigned)(quota / period + (quota % period != 0));
    *cpus = MIN(*cpus, MAX(n, 1u));
}

static void quota_v2(const char *sysroot, const char *dir, void *user)
{
    AUTO_FREE char *text = slurp_at(sysroot, dir, "cpu.max"); /* "max 100000" or "150000 100000" */
    const char *period = text ? strchr(text, ' ') : NULL;

    if (period)
        quota_apply(number(text, UINT64_MAX), number(period + 1, 0), user);
}

static void quota_v1(const char *sysroot, const char *dir, void *user)
{
    quota_apply(file_number(sysroot, dir, "cpu.cfs_quota_us", UINT64_MAX), file_number(sysroot, dir, "cpu.cfs_period_us", 0),
                user);
}

unsigned limits_cpu_quota(const char *sysroot)
{
    unsigned cpus = UINT_MAX;

    each_group(sysroot, NULL, quota_v2, &cpus);
    each_group(sysroot, "cpu", quota_v1, &cpus);
    return cpus;
}

static unsigned affinity_count(void)
{
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) { /* EINVAL: the kernel's mask is larger */
        size_t size = CPU_ALLOC_SIZE(cpus);
        cpu_set_t *set = malloc(size);
        if (!set)
            break;
        memset(set, 0, size);
        int rc = sched_getaffinity(0, size, set);
        int n = rc == 0 ? CPU_COUNT_S(size, set) : 0;
        free(set);
        if (n > 0)
            return (unsigned)n;
        if (rc == 0 || errno != EINVAL)
            break;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (unsigned)n : 1;
}

unsigned cpu_count(void)
{
    unsigned quota = limits_cpu_quota(""), affinity = affinity_count();

    return MIN(quota, affinity);
}

/* ---- memory ---- */

/* What a group with this limit still has: usage less the file cache in it. */
static void memory_apply(uint64_t limit, uint64_t usage, uint64_t cache, uint64_t *left)
{
    if (limit == UINT64_MAX)
        return;
    usage -= MIN(usage, cache);
    *left = MIN(*left, limit - MIN(limit, usage));
}

static void memory_v2(const char *sysroot, const char *dir, void *user)
{
    uint64_t max = file_number(sysroot, dir, "memory.max", UINT64_MAX);
    uint64_t high = file_number(sysroot, dir, "memory.high", UINT64_MAX);
    AUTO_FREE char *stat = slurp_at(sysroot, dir, "memory.stat");

    memory_apply(MIN(max, high), file_number(sysroot, dir, "memory.current", 0),
                 line_number(stat, "inactive_file", 0) + line_number(stat, "active_file", 0), user);
}

static void memory_v1(const char *sysroot, const char *dir, void *user)
{
    AUTO_FREE char *stat = slurp_at(sysroot, dir, "memory.stat"); /* total_: with the groups below */

    memory_apply(file_number(sysroot, dir, "memory.limit_in_bytes", UINT64_MAX),
                 file_number(sysroot, dir, "memory.usage_in_bytes", 0),
                 line_number(stat, "total_inactive_file", 0) + line_number(stat, "total_active_file", 0), user);
}

uint64_t limits_memory_available(const char *sysroot)
{
    AUTO_FREE char *meminfo = slurp_at(sysroot, "/proc", "meminfo");
    uint64_t kib = line_number(meminfo, "MemAvailable", UINT64_MAX), left;

    if (kib <= UINT64_MAX / KIB) {
        left = kib * KIB;
    } else {
        long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
        left = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    }
    each_group(sysroot, NULL, memory_v2, &left);
    each_group(sysroot, "memory", memory_v1, &left);
    return left;
}

uint64_t memory_available(void) { return limits_memory_available(""); }
