/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test.h - the whole test harness: one header, no library.
 *
 *     #include "tests/unit/test.h"
 *
 *     TEST(adds)
 *     {
 *         struct larder_error err;
 *
 *         CHECK_EQ(add(1, 2), 3);
 *         CHECK_OK(do_it(tmp_dir(), &err), &err);
 *     }
 *
 *     TEST_MAIN();
 *
 * TEST(name) registers itself; tests run in the order of the file. CHECK, CHECK_EQ (integers and pointers),
 * CHECK_STR, CHECK_MEM(a, b, len), CHECK_OK(rc, &err) and CHECK_ERR(rc, code, &err) print what they found with
 * file and line, fail the test and go on. Their REQUIRE_... twins leave the test at once (by longjmp: use them in
 * the thread that runs the test, and never with a lock held). The CHECKs may be used from any thread.
 *
 * TEST_SKIP("reason") leaves the test as skipped. TEST_FORKS() does under TSan, for tests whose forked children use threads or shared locks. tmp_dir() is a fresh directory per call, removed at exit.
 * rng_u64(&state) is splitmix64, rng_below(&state, n) is 0..n-1; seed the state with a constant.
 *
 * A program runs all its tests, or those named as arguments; -l lists them. It prints one line,
 * "test_x: 12 tests ok", and exits 0 (ok), 1 (something failed) or 77 (all were skipped, with the reason).
 * It also appends "passed failed skipped" to the file named by TEST_COUNTS, for tests/run.sh.
 */
#ifndef TEST_H
#define TEST_H

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/larder.h"

struct test_case {
    const char *name;
    void (*fn)(void);
    struct test_case *next;
};

static struct test_case *test_list, **test_tail = &test_list;
static const char *test_name = "";
static jmp_buf test_leave;
static atomic_int test_failures; /* of the running test */
static char test_reason[256];
static char test_dirs[256][96];
static int test_n_dirs;
static pid_t test_pid;

#define TEST_UNUSED __attribute__((unused))

#define TEST(name)                                                                                                    \
    static void test_fn_##name(void);                                                                                 \
    static struct test_case test_case_##name = {#name, test_fn_##name, NULL};                                         \
    __attribute__((constructor)) static void test_reg_##name(void)                                                    \
    {                                                                                                                 \
        *test_tail = &test_case_##name;                                                                               \
        test_tail = &test_case_##name.next;                                                                           \
    }                                                                                                                 \
    static void test_fn_##name(void)

/* True when ok; else prints "file:line: test: text" and counts. */
__attribute__((format(printf, 4, 5))) static inline int test_check(int ok, const char *file, int line,
                                                                    const char *fmt, ...)
{
    char text[2048];
    va_list ap;

    if (ok)
        return 1;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, test_name, text);
    atomic_fetch_add(&test_failures, 1);
    return 0;
}

static inline int test_eq(long long a, long long b, const char *ta, const char *tb, const char *file, int line)
{
    return test_check(a == b, file, line, "%s == %s: %lld (0x%llx) and %lld (0x%llx)", ta, tb, a,
                      (unsigned long long)a, b, (unsigned long long)b);
}

static inline int test_str(const char *a, const char *b, const char *ta, const char *file, int line)
{
    int same = a == b || (a && b && strcmp(a, b) == 0);

    return test_check(same, file, line, "%s:\n  have \"%s\"\n  want \"%s\"", ta, a ? a : "(null)", b ? b : "(null)");
}

static inline int test_mem(const void *a, const void *b, size_t len, const char *ta, const char *file, int line)
{
    const unsigned char *x = a, *y = b;
    size_t i = 0;

    if (len == 0)
        return 1;
    if (!a || !b)
        return test_check(0, file, line, "%s: NULL", ta);
    while (i < len && x[i] == y[i])
        i++;
    return test_check(i == len, file, line, "%s: byte %zu of %zu: have 0x%02x, want 0x%02x", ta, i, len,
                      i < len ? x[i] : 0, i < len ? y[i] : 0);
}

static inline int test_ok(int rc, const struct larder_error *err, const char *text, const char *file, int line)
{
    return test_check(rc == 0, file, line, "%s: code %d: %s", text, rc, rc && err ? err->message : "");
}

static inline int test_err(int rc, int want, const struct larder_error *err, const char *text, const char *file,
                           int line)
{
    return test_check(rc == want, file, line, "%s: have code %d, want %d: %s", text, rc, want,
                      rc < 0 && err ? err->message : "");
}

#define TEST_OR_LEAVE(x) ((x) ? (void)0 : longjmp(test_leave, 1))

#define CHECK(cond) ((void)test_check(!!(cond), __FILE__, __LINE__, "%s", #cond))
#define CHECK_EQ(a, b) ((void)test_eq((long long)(a), (long long)(b), #a, #b, __FILE__, __LINE__))
#define CHECK_STR(a, b) ((void)test_str((a), (b), #a, __FILE__, __LINE__))
#define CHECK_MEM(a, b, len) ((void)test_mem((a), (b), (len), #a, __FILE__, __LINE__))
#define CHECK_OK(rc, err) ((void)test_ok((rc), (err), #rc, __FILE__, __LINE__))
#define CHECK_ERR(rc, code, err) ((void)test_err((rc), (code), (err), #rc, __FILE__, __LINE__))

#define REQUIRE(cond) TEST_OR_LEAVE(test_check(!!(cond), __FILE__, __LINE__, "%s", #cond))
#define REQUIRE_EQ(a, b) TEST_OR_LEAVE(test_eq((long long)(a), (long long)(b), #a, #b, __FILE__, __LINE__))
#define REQUIRE_STR(a, b) TEST_OR_LEAVE(test_str((a), (b), #a, __FILE__, __LINE__))
#define REQUIRE_MEM(a, b, len) TEST_OR_LEAVE(test_mem((a), (b), (len), #a, __FILE__, __LINE__))
#define REQUIRE_OK(rc, err) TEST_OR_LEAVE(test_ok((rc), (err), #rc, __FILE__, __LINE__))
#define REQUIRE_ERR(rc, code, err) TEST_OR_LEAVE(test_err((rc), (code), (err), #rc, __FILE__, __LINE__))

#define TEST_SKIP(reason) (snprintf(test_reason, sizeof test_reason, "%s", (reason)), longjmp(test_leave, 2))
#ifdef __SANITIZE_THREAD__
#define TEST_FORKS() TEST_SKIP("the sanitizer does not follow threads of a forked child")
#else
#define TEST_FORKS() ((void)0)
#endif

static inline int test_rm(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    return flag == FTW_DP ? rmdir(path) : unlink(path);
}

static inline void test_cleanup(void)
{
    if (getpid() != test_pid) /* a forked child leaves them to its parent */
        return;
    for (int i = 0; i < test_n_dirs; i++)
        nftw(test_dirs[i], test_rm, 16, FTW_DEPTH | FTW_PHYS);
    test_n_dirs = 0;
}

/* A fresh directory below $TMPDIR (/tmp), removed at exit; the string lives until then. */
TEST_UNUSED static const char *tmp_dir(void)
{
    const char *base = getenv("TMPDIR");
    char *dir = test_dirs[test_n_dirs];

    if (test_n_dirs == sizeof test_dirs / sizeof test_dirs[0]) {
        fprintf(stderr, "tmp_dir: too many directories\n");
        exit(1);
    }
    snprintf(dir, sizeof test_dirs[0], "%.70s/larder-test-XXXXXX", base && *base ? base : "/tmp");
    if (!mkdtemp(dir)) {
        fprintf(stderr, "tmp_dir: %s: %s\n", dir, strerror(errno));
        exit(1);
    }
    test_n_dirs++;
    return dir;
}

/* splitmix64 */
TEST_UNUSED static uint64_t rng_u64(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

TEST_UNUSED static uint64_t rng_below(uint64_t *state, uint64_t n)
{
    return n ? rng_u64(state) % n : 0;
}

TEST_UNUSED static void rng_fill(uint64_t *state, void *buf, size_t len)
{
    unsigned char *p = buf;

    for (; len >= 8; p += 8, len -= 8) {
        uint64_t v = rng_u64(state);

        memcpy(p, &v, 8);
    }
    if (len) {
        uint64_t v = rng_u64(state);

        memcpy(p, &v, len);
    }
}

static inline int test_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return argc == 1;
}

static inline void test_report(const char *prog, int ok, int failed, int skipped)
{
    const char *counts = getenv("TEST_COUNTS");
    FILE *f = counts ? fopen(counts, "a") : NULL;

    if (f) {
        fprintf(f, "%d %d %d\n", ok, failed, skipped);
        fclose(f);
    }
    printf("%s: %d tests ok", prog, ok);
    if (failed)
        printf(", %d FAILED", failed);
    if (skipped)
        printf(", %d skipped (%s)", skipped, test_reason);
    printf("\n");
}

TEST_UNUSED static int test_main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *prog = slash ? slash + 1 : argv[0];
    volatile int ok = 0, failed = 0, skipped = 0;

    test_pid = getpid();
    setvbuf(stdout, NULL, _IOLBF, 0);
    atexit(test_cleanup);
    if (argc == 2 && strcmp(argv[1], "-l") == 0) {
        for (struct test_case *t = test_list; t; t = t->next)
            printf("%s\n", t->name);
        return 0;
    }
    for (struct test_case *volatile t = test_list; t; t = t->next) {
        int left;

        if (!test_wanted(t->name, argc, argv))
            continue;
        test_name = t->name;
        atomic_store(&test_failures, 0);
        left = setjmp(test_leave);
        if (left == 0)
            t->fn();
        if (atomic_load(&test_failures)) {
            fprintf(stderr, "%s: %s FAILED\n", prog, t->name);
            failed++;
        } else if (left == 2) {
            skipped++;
        } else {
            ok++;
        }
    }
    if (ok + failed + skipped == 0) {
        fprintf(stderr, "%s: no such test\n", prog);
        return 1;
    }
    test_report(prog, ok, failed, skipped);
    return failed ? 1 : ok ? 0 : 77;
}

#define TEST_MAIN()                                                                                                   \
    int main(int argc, char **argv)                                                                                   \
    {                                                                                                                 \
        return test_main(argc, argv);                                                                                 \
    }                                                                                                                 \
    _Static_assert(1, "wants a semicolon")

#endif
