/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cuda.c - what is registered with CUDA, when and in which pieces, by what a stand-in for the driver's library was asked.
 *
 * Each test runs this program again with the stand-in's folder first in LD_LIBRARY_PATH, to play one of the parts below, and then reads
 * what the stand-in wrote. test_cuda_device.c does the same with a real device.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/test.h"
#include "tiers/stack_int.h"
#include "tiers/dram_int.h"

#define BUDGET (80 * MIB)
#define RECORD 100000u

/* ---- in the second program ---- */

static uint8_t record[6 << 20];

/* A process that uses CUDA: on this device. */
static void use_cuda(int device)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = NULL, (*retain)(void **, int) = NULL;
    void *context;
    if (lib) {
        *(void **)&init = dlsym(lib, "cuInit");
        *(void **)&retain = dlsym(lib, "cuDevicePrimaryCtxRetain");
    }
    REQUIRE(init && retain);
    REQUIRE_EQ(init(0), 0);
    REQUIRE_EQ(retain(&context, device), 0);
}

static struct tiers_cache *open_cache(int device, int replacement, int no_pin)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    struct larder_error err;
    struct tiers_cache *c = NULL;
    o.name = NULL;
    o.dram_bytes = BUDGET;
    o.cuda_device = device;
    o.replacement = replacement;
    o.no_pin = no_pin;
    REQUIRE_OK(tiers_cache_open(&o, &c, &err), &err);
    return c;
}

static uint64_t area(const struct tiers_cache *c) { return (uint32_t)atomic_load(&c->dram->h->alloc) * ARENA_PAGE; }

static uint32_t space_of(struct tiers_cache *c)
{
    struct cache_space space = {.uuid = "dataset", .lineage = "one"};
    struct larder_error err;
    uint32_t id = UINT32_MAX;
    REQUIRE_OK(dram_space(c->dram, &space, &id, &err), &err);
    return id;
}

static uint32_t length(uint64_t ordinal) { return ordinal % 100 == 99 ? 5000000 : RECORD + (uint32_t)(ordinal * 7919 % 1000); }

/* Admits records until `bytes` of the area are handed out, or until there is no more room; the next ordinal. */
static uint64_t fill(struct tiers_cache *c, uint64_t ordinal, uint64_t bytes)
{
    for (; area(c) < bytes; ordinal++) {
        struct cached r = {record, length(ordinal), length(ordinal), (uint32_t)ordinal, 0};
        memset(record, (int)ordinal, r.stored_len);
        if (dram_admit(c->dram, space_of(c), ordinal, &r, NULL) != LARDER_OK)
            break;
    }
    return ordinal;
}

static struct larder_cache_stats stats_of(const struct tiers_cache *c)
{
    struct larder_cache_stats s;
    tiers_cache_stats(c, &s);
    return s;
}

/* Waits for the thread that registers: until so many bytes are, or it has said why not. */
static void wait_registered(const struct tiers_cache *c, uint64_t bytes)
{
    const struct timespec nap = {0, 2000000};
    for (int i = 0; i < 15000 && stats_of(c).registered_bytes < bytes && !tiers_cache_warning(c, 0); i++)
        nanosleep(&nap, NULL);
    CHECK_EQ(stats_of(c).registered_bytes, bytes);
}

/* Waits until anything is. */
static void wait_some(const struct tiers_cache *c)
{
    const struct timespec nap = {0, 2000000};
    for (int i = 0; i < 15000 && !stats_of(c).registered_bytes; i++)
        nanosleep(&nap, NULL);
    CHECK(stats_of(c).registered_bytes >= 32 * MIB && stats_of(c).registered_bytes <= area(c));
}

struct call { char name[64]; int pid; unsigned long a, b; unsigned flags; unsigned long context; int result; };

static size_t read_log(struct call *calls, size_t cap)
{
    FILE *f = fopen(getenv("STAND_IN_LOG"), "r");
    size_t n = 0;
    while (f && n < cap && fscanf(f, "%63s %d %lx %lx %u %lx %d\n", calls[n].name, &calls[n].pid, &calls[n].a, &calls[n].b,
                                  &calls[n].flags, &calls[n].context, &calls[n].result) == 7)
        n++;
    if (f)
        fclose(f);
    return n;
}

static struct call calls[20000];

/* No record lies across the end of a registration, and all are there. */
static void check_records(struct tiers_cache *c, uint64_t n)
{
    size_t n_calls = read_log(calls, ARRAY_LEN(calls)), ends = 0;
    for (uint64_t o = 0; o < n; o++) {
        const void *view;
        struct extent e;
        CHECK_EQ(dram_lookup(c->dram, space_of(c), &o, 1, &e, &view, NULL, NULL), 1);
        if (!view)
            continue;
        memset(record, (int)o, length(o));
        CHECK_MEM(view, record, length(o));
        for (size_t i = 0; i < n_calls; i++) {
            unsigned long end = calls[i].a + calls[i].b;
            if (strcmp(calls[i].name, "cuMemHostRegister_v2") != 0)
                continue;
            ends++;
            CHECK(!((uintptr_t)view < end && end < (uintptr_t)view + e.stored_len));
        }
    }
    CHECK(n == 0 || ends > 0);
}

static void part_used(void)
{
    use_cuda(1);
    struct tiers_cache *c = open_cache(LARDER_CUDA_IF_USED, LARDER_REPLACE_NONE, 0);
    uint64_t n = fill(c, 0, 40 * MIB);
    wait_some(c);
    n = fill(c, n, UINT64_MAX);
    dram_register(c->dram);
    wait_registered(c, area(c));
    CHECK(area(c) > 70 * MIB);
    check_records(c, n);
    tiers_cache_close(c);
}

static void part_late(void)
{
    struct tiers_cache *c = open_cache(LARDER_CUDA_IF_USED, LARDER_REPLACE_NONE, 0);
    uint64_t n = fill(c, 0, 50 * MIB);
    dram_register(c->dram);
    CHECK_EQ(stats_of(c).registered_bytes, 0);
    CHECK_EQ(read_log(calls, ARRAY_LEN(calls)), 0);
    use_cuda(0);
    dram_register(c->dram); /* nothing grows any more: the next epoch begins */
    wait_registered(c, area(c));
    n = fill(c, n, UINT64_MAX);
    dram_register(c->dram);
    wait_registered(c, area(c));
    check_records(c, n);
    tiers_cache_close(c);
}

static void part_unused(void)
{
    struct tiers_cache *c = open_cache(LARDER_CUDA_IF_USED, LARDER_REPLACE_NONE, 0);
    fill(c, 0, UINT64_MAX);
    dram_register(c->dram);
    CHECK_EQ(stats_of(c).registered_bytes, 0);
    CHECK(!dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
    tiers_cache_close(c);
}

static void part_named(void)
{
    struct tiers_cache *c = open_cache(LARDER_CUDA_DEVICE(2), LARDER_REPLACE_NONE, 0);
    uint64_t n = fill(c, 0, UINT64_MAX);
    dram_register(c->dram);
    wait_registered(c, area(c));
    check_records(c, n);
    tiers_cache_close(c);
}

/* Nothing can be registered, and that is no reason to complain. */
static void part_nothing(void)
{
    const struct timespec nap = {0, 2000000};
    struct tiers_cache *c = open_cache(LARDER_CUDA_DEVICE(0), LARDER_REPLACE_NONE, 0);
    uint64_t n = fill(c, 0, UINT64_MAX);
    dram_register(c->dram);
    for (int i = 0; i < 15000 && getenv("TRIES") && read_log(calls, ARRAY_LEN(calls)) == 0; i++)
        nanosleep(&nap, NULL);
    tiers_cache_close(c);
    c = open_cache(LARDER_CUDA_DEVICE(0), LARDER_REPLACE_NONE, 0);
    CHECK_EQ(fill(c, 0, UINT64_MAX), n);
    for (size_t i = 0; tiers_cache_warning(c, i); i++)
        CHECK(strstr(tiers_cache_warning(c, i), "CUDA") == NULL);
    CHECK_EQ(stats_of(c).registered_bytes, 0);
    tiers_cache_close(c);
}

/* The driver fails: argument, what the warning says, and how much was registered before (0 or 1 piece). */
static void part_fails(void)
{
    const struct timespec nap = {0, 2000000};
    const char *want = getenv("WANT"), *warning = NULL;
    struct tiers_cache *c = open_cache(LARDER_CUDA_DEVICE(atoi(getenv("DEVICE"))), LARDER_REPLACE_NONE, 0);
    uint64_t n = fill(c, 0, 40 * MIB);
    bool some = atoi(getenv("PIECES")) > 0;
    if (some)
        wait_some(c);
    n = fill(c, n, UINT64_MAX);
    dram_register(c->dram);
    for (int i = 0; i < 15000 && !warning; i++) {
        for (size_t k = 0; !warning && tiers_cache_warning(c, k); k++)
            if (strncmp(tiers_cache_warning(c, k), "CUDA: ", 6) == 0)
                warning = tiers_cache_warning(c, k);
        nanosleep(&nap, NULL);
    }
    CHECK(warning && strstr(warning, want));
    CHECK(some ? stats_of(c).registered_bytes >= 32 * MIB && stats_of(c).registered_bytes < area(c) : !stats_of(c).registered_bytes);
    for (uint64_t o = 0; o < n; o++) {
        const void *view;
        struct extent e;
        CHECK_EQ(dram_lookup(c->dram, space_of(c), &o, 1, &e, &view, NULL, NULL), 1);
    }
    tiers_cache_close(c);
}

static void part_no_pin(void)
{
    use_cuda(0);
    struct tiers_cache *c = open_cache(LARDER_CUDA_DEVICE(0), LARDER_REPLACE_NONE, 1);
    fill(c, 0, UINT64_MAX);
    dram_register(c->dram);
    CHECK_EQ(stats_of(c).registered_bytes, 0);
    CHECK_EQ(stats_of(c).locked_bytes, 0);
    tiers_cache_close(c);
}

static void part_fifo(void)
{
    use_cuda(0);
    struct tiers_cache *c = open_cache(LARDER_CUDA_DEVICE(0), LARDER_REPLACE_FIFO, 0);
    for (uint64_t o = 0; o < 1000; o++) {
        struct cached r = {record, RECORD, RECORD, 0, 0};
        CHECK_EQ(dram_admit(c->dram, space_of(c), o, &r, NULL), LARDER_OK);
    }
    dram_register(c->dram);
    CHECK_EQ(stats_of(c).registered_bytes, 0);
    tiers_cache_close(c);
}

static void part_fork(void)
{
    use_cuda(0);
    struct tiers_cache *c = open_cache(LARDER_CUDA_IF_USED, LARDER_REPLACE_NONE, 0);
    fill(c, 0, UINT64_MAX);
    dram_register(c->dram);
    wait_registered(c, area(c));
    size_t n = read_log(calls, ARRAY_LEN(calls));
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        dram_register(c->dram);
        slab_grown(c->dram);
        CHECK_EQ(stats_of(c).registered_bytes, 0);
        tiers_cache_close(c);
        c = open_cache(LARDER_CUDA_IF_USED, LARDER_REPLACE_NONE, 0); /* its own: the driver is loaded, but not for children */
        fill(c, 0, UINT64_MAX);
        dram_register(c->dram);
        CHECK_EQ(stats_of(c).registered_bytes, 0);
        CHECK(!tiers_cache_warning(c, 0) || !strstr(tiers_cache_warning(c, 0), "CUDA"));
        tiers_cache_close(c);
        _exit(atomic_load(&test_failures) ? 1 : 0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    size_t after = read_log(calls, ARRAY_LEN(calls));
    for (size_t i = n; i < after; i++) /* the child's own cache may look; nothing else */
        CHECK(calls[i].pid == pid && strcmp(calls[i].name, "cuDeviceGetCount") == 0 && calls[i].result == 3);
    tiers_cache_close(c);
}

/* The door of the loader's region. */
static void part_region(void)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    const struct timespec nap = {0, 2000000};
    struct larder_error err;
    struct pinned_stats s;
    struct pinned *p;
    size_t len = 24 * MIB;
    use_cuda(0);
    uint8_t *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(m != MAP_FAILED);
    REQUIRE_OK(pinned_new(m, NULL, &p, &err), &err);
    static const uint64_t ends[] = {4096, 8 * MIB, 8 * MIB, 4 * MIB, 24 * MIB};
    for (size_t k = 0, most = 0; k < ARRAY_LEN(ends); k++) {
        most = MAX(most, ends[k]);
        pinned_grow(p, ends[k]);
        pinned_stats(p, &s);
        CHECK(s.locked == most || s.lock_warning);
        for (int i = 0; i < 15000 && s.registered < most; i++) {
            nanosleep(&nap, NULL);
            pinned_stats(p, &s);
        }
        CHECK_EQ(s.registered, most);
        CHECK(s.cuda_warning == NULL);
    }
    pinned_free(p);
    REQUIRE_OK(pinned_new(m, &o, &p, &err), &err); /* once more, all in one piece, and nothing is locked */
    pinned_register(p, len);
    pinned_register(p, len);
    pinned_stats(p, &s);
    for (int i = 0; i < 15000 && !s.registered; i++) {
        nanosleep(&nap, NULL);
        pinned_stats(p, &s);
    }
    CHECK(s.registered == len && s.locked == 0);
    pinned_free(p);
    size_t n = read_log(calls, ARRAY_LEN(calls));
    o.no_pin = 1;
    REQUIRE_OK(pinned_new(m, &o, &p, &err), &err);
    pinned_grow(p, len);
    pinned_register(p, len);
    pinned_register(NULL, len);
    pinned_stats(p, &s);
    CHECK(s.locked == 0 && s.registered == 0 && !s.lock_warning && !s.cuda_warning);
    pinned_free(p);
    pinned_free(NULL);
    CHECK_EQ(read_log(calls, ARRAY_LEN(calls)), n);
    munmap(m, len);
}

static const struct { const char *name; void (*play)(void); } parts[] = {
    {"used", part_used}, {"late", part_late}, {"unused", part_unused}, {"named", part_named}, {"nothing", part_nothing},
    {"fails", part_fails}, {"no_pin", part_no_pin}, {"fifo", part_fifo}, {"fork", part_fork}, {"region", part_region},
};

/* ---- in the first one ---- */

/* Runs this program as `part`, with settings "NAME=VALUE" up to NULL; the calls that it made. */
static size_t play(const char *part, const char *const *settings)
{
    char exe[4096], dir[4096], path[4200], log[256];
    ssize_t len = readlink("/proc/self/exe", exe, sizeof exe - 1);
    REQUIRE(len > 0);
    exe[len] = '\0';
    snprintf(dir, sizeof dir, "%s", exe);
    strrchr(dir, '/')[0] = '\0';
    snprintf(path, sizeof path, "%s/stand_in", dir);
    REQUIRE(access(path, X_OK) == 0);
    snprintf(log, sizeof log, "%s/log", tmp_dir());
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        setenv("LD_LIBRARY_PATH", path, 1);
        setenv("STAND_IN_LOG", log, 1);
        for (; settings && *settings; settings++)
            putenv((char *)(uintptr_t)*settings);
        execl(exe, exe, "--play", part, (char *)NULL);
        _exit(9);
    }
    REQUIRE_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    setenv("STAND_IN_LOG", log, 1);
    return read_log(calls, ARRAY_LEN(calls));
}

static size_t count(size_t n, const char *name, int result)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++)
        found += strcmp(calls[i].name, name) == 0 && calls[i].result == result;
    return found;
}

/* What was registered lies end to end, each piece in the device's context and portable; all of it is taken back, each piece once, and
 * every context pushed or retained by us is given back. *bytes: together. The number of pieces. */
static size_t check_pieces(size_t n, unsigned long context, uint64_t *bytes)
{
    unsigned long end = 0, begin = 0;
    size_t pieces = 0, back = 0;
    *bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(calls[i].name, "cuMemHostRegister_v2") == 0 && calls[i].result == 0) {
            CHECK(!end || calls[i].a == end);
            begin = begin ? begin : calls[i].a;
            end = calls[i].a + calls[i].b;
            *bytes += calls[i].b;
            pieces++;
            CHECK_EQ(calls[i].flags, 1);
            CHECK_EQ(calls[i].context, context);
            CHECK_EQ(calls[i].a % 4096, 0);
        } else if (strcmp(calls[i].name, "cuMemHostUnregister") == 0) {
            CHECK_EQ(calls[i].result, 0); /* registered, and not yet taken back */
            CHECK_EQ(calls[i].context, context);
            back++;
        }
    }
    CHECK_EQ(back, pieces);
    CHECK_EQ(count(n, "cuCtxPushCurrent_v2", 0), count(n, "cuCtxPopCurrent_v2", 0));
    CHECK_EQ(count(n, "cuMemHostRegister_v2", 712), 0);
    return pieces;
}

TEST(all_of_it_is_registered_once_in_the_context_in_use)
{
    uint64_t bytes;
    const char *const two[] = {"STAND_IN_DEVICES=2", NULL};
    size_t n = play("used", two), pieces = check_pieces(n, 0x1001, &bytes);
    CHECK(bytes > 70 * MIB && bytes <= BUDGET);
    CHECK(pieces >= 2 && pieces <= 4);
    CHECK_EQ(count(n, "cuInit", 0), 1); /* by the program itself */
    CHECK_EQ(count(n, "cuDevicePrimaryCtxRetain", 0), 2);
    CHECK_EQ(count(n, "cuDevicePrimaryCtxRelease_v2", 0), 1); /* ours */
}

TEST(a_context_that_comes_late_gets_all)
{
    uint64_t bytes;
    size_t n = play("late", NULL), pieces = check_pieces(n, 0x1000, &bytes);
    CHECK(bytes > 70 * MIB && bytes <= BUDGET);
    CHECK(pieces >= 2 && pieces <= 4);
}

TEST(a_process_without_cuda_is_left_alone)
{
    CHECK_EQ(play("unused", NULL), 0);
}

TEST(a_named_device_is_brought_in)
{
    uint64_t bytes;
    const char *const three[] = {"STAND_IN_DEVICES=3", NULL};
    size_t n = play("named", three), pieces = check_pieces(n, 0x1002, &bytes);
    CHECK(pieces >= 1 && bytes > 70 * MIB && bytes <= BUDGET);
    CHECK_EQ(count(n, "cuInit", 0), 1);
    CHECK_EQ(count(n, "cuDevicePrimaryCtxRetain", 0), 1);
    CHECK_EQ(count(n, "cuDevicePrimaryCtxRelease_v2", 0), 1);
}

TEST(no_device_is_nothing_to_complain_about)
{
    static const char *const ways[][3] = {{"STAND_IN_INIT=100", "TRIES=1"}, {"STAND_IN_DEVICES=0", "TRIES=1"}, {"LD_LIBRARY_PATH=/nonexistent"}};
    void *real = dlopen("libcuda.so.1", RTLD_NOW);
    if (real)
        dlclose(real);
    for (size_t i = 0; i < ARRAY_LEN(ways) - (real ? 1 : 0); i++) {
        size_t n = play("nothing", ways[i]);
        CHECK_EQ(count(n, "cuMemHostRegister_v2", 0), 0);
        CHECK_EQ(count(n, "cuDevicePrimaryCtxRetain", 0), 0);
        CHECK(i == 2 ? n == 0 : n > 0);
    }
}

TEST(failures_are_warnings)
{
    static const struct { const char *settings[6]; size_t pieces; } ways[] = {
        {{"DEVICE=0", "PIECES=0", "STAND_IN_INIT=999", "WANT=cuInit says CUDA_ERROR_UNKNOWN (999)"}, 0},
        {{"DEVICE=3", "PIECES=0", "WANT=cuDeviceGet says CUDA_ERROR_INVALID_DEVICE (101)"}, 0},
        {{"DEVICE=0", "PIECES=0", "STAND_IN_RETAIN=2", "WANT=cuDevicePrimaryCtxRetain says CUDA_ERROR_OUT_OF_MEMORY (2)"}, 0},
        {{"DEVICE=0", "PIECES=0", "STAND_IN_REGISTER=2", "WANT=cuMemHostRegister says CUDA_ERROR_OUT_OF_MEMORY (2)"}, 0},
        {{"DEVICE=0", "PIECES=1", "STAND_IN_REGISTER=12345", "STAND_IN_FROM=1", "WANT=cuMemHostRegister says an unknown error (12345)"}, 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        uint64_t bytes;
        size_t n = play("fails", ways[i].settings);
        CHECK_EQ(check_pieces(n, 0x1000, &bytes), ways[i].pieces);
        CHECK(ways[i].pieces == 0 || bytes >= 32 * MIB);
        CHECK_EQ(count(n, "cuDevicePrimaryCtxRetain", 0), count(n, "cuDevicePrimaryCtxRelease_v2", 0));
        size_t refused = 0;
        for (size_t k = 0; k < n; k++)
            refused += strcmp(calls[k].name, "cuMemHostRegister_v2") == 0 && calls[k].result != 0;
        CHECK_EQ(refused, i < 3 ? 0 : 1); /* what is refused is not tried again */
    }
}

TEST(what_somebody_else_registered_is_his)
{
    const char *const other[] = {"STAND_IN_DEVICES=3", "STAND_IN_REGISTER=712", NULL};
    size_t n = play("named", other);
    CHECK(count(n, "cuMemHostRegister_v2", 712) >= 1);
    CHECK_EQ(count(n, "cuMemHostRegister_v2", 0), 0);
    CHECK_EQ(count(n, "cuMemHostUnregister", 0), 0);
}

TEST(no_pin_switches_it_off)
{
    CHECK_EQ(play("no_pin", NULL), 2); /* the program's own */
}

TEST(what_is_copied_out_is_not_registered)
{
    CHECK_EQ(play("fifo", NULL), 2);
}

TEST(forked_children_ask_nothing)
{
    uint64_t bytes;
    TEST_FORKS();
    size_t n = play("fork", NULL);
    CHECK(check_pieces(n, 0x1000, &bytes) >= 1);
}

TEST(regions_of_the_loader)
{
    static const uint64_t pieces[] = {4096, 8 * MIB - 4096, 16 * MIB, 24 * MIB};
    size_t n = play("region", NULL), k = 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(calls[i].name, "cuMemHostRegister_v2") != 0)
            continue;
        CHECK(k < ARRAY_LEN(pieces) && calls[i].b == pieces[k] && calls[i].result == 0 && calls[i].flags == 1);
        CHECK_EQ(count(i, "cuMemHostUnregister", 0), k == 3 ? 3 : 0);
        k++;
    }
    CHECK_EQ(k, ARRAY_LEN(pieces));
    CHECK_EQ(count(n, "cuMemHostUnregister", 0), 4);
}

static int play_part(const char *name)
{
    void (*volatile play_it)(void) = NULL;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (strcmp(name, parts[i].name) == 0)
            play_it = parts[i].play;
    test_pid = getpid();
    if (!play_it)
        return 9;
    if (setjmp(test_leave) == 0)
        play_it();
    return atomic_load(&test_failures) ? 1 : 0;
}

int main(int argc, char **argv)
{
    return argc == 3 && strcmp(argv[1], "--play") == 0 ? play_part(argv[2]) : test_main(argc, argv);
}
