/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_extsort.c - external sorting against qsort, with budgets so small that merges take many passes.
 *
 * open, pwrite and pread are this program's own: they can refuse unnamed files, move a few bytes at a time and fail
 * at a chosen call.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include <dirent.h>

#include "store/base/base.h"
#include "tests/unit/test.h"

/* ---- the system calls ---- */

static struct {
    bool no_tmpfile; /* O_TMPFILE is not supported */
    bool piecemeal;  /* short transfers and EINTR */
    long fail_write, fail_read; /* the how manyth call fails, from 1; 0: none */
    int fail_errno;  /* 0: returns 0 */
    long writes, reads;
} fake;

int open(const char *path, int flags, ...)
{
    va_list ap;
    mode_t mode = 0;

    va_start(ap, flags);
    if (flags & (O_CREAT | __O_TMPFILE))
        mode = va_arg(ap, mode_t);
    va_end(ap);
    if (fake.no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* True when this call is to end with *n as its result; else *len may have become less. */
static bool meddle(long call, long fail, ssize_t *n, size_t *len)
{
    if (fail && call == fail) {
        errno = fake.fail_errno;
        *n = fake.fail_errno ? -1 : 0;
        return true;
    }
    if (fake.piecemeal) {
        if (call % 5 == 0) {
            errno = EINTR;
            *n = -1;
            return true;
        }
        *len = MIN(*len, (size_t)(call % 7 * 100 + 1));
    }
    return false;
}

ssize_t pwrite(int fd, const void *buf, size_t len, off_t at)
{
    ssize_t n;

    return meddle(++fake.writes, fake.fail_write, &n, &len) ? n : syscall(SYS_pwrite64, fd, buf, len, at);
}

ssize_t pread(int fd, void *buf, size_t len, off_t at)
{
    ssize_t n;

    return meddle(++fake.reads, fake.fail_read, &n, &len) ? n : syscall(SYS_pread64, fd, buf, len, at);
}

static void no_faults(void)
{
    memset(&fake, 0, sizeof(fake));
}

/* ---- items and the oracle ---- */

struct item {
    uint8_t *key;
    size_t key_len, n; /* n: the how manyth; payload_of makes the payload of it */
};

static size_t payload_of(size_t n, uint8_t *out, size_t max)
{
    uint64_t seed = n;
    size_t len = rng_below(&seed, max + 1);

    rng_fill(&seed, out, len);
    return len;
}

static int by_key_then_place(const void *x, const void *y)
{
    const struct item *a = x, *b = y;
    int order = memcmp(a->key, b->key, MIN(a->key_len, b->key_len));

    if (order)
        return order;
    if (a->key_len != b->key_len)
        return a->key_len < b->key_len ? -1 : 1;
    return (a->n > b->n) - (a->n < b->n);
}

enum kind { RANDOM, FEW, PREFIXED, ZEROS, SORTED, REVERSED, SAME, KINDS };

static size_t make_key(enum kind kind, size_t i, size_t n, uint64_t *seed, uint8_t *key)
{
    size_t len = 0;

    switch (kind) {
    case RANDOM:
        len = rng_below(seed, 40);
        rng_fill(seed, key, len);
        break;
    case FEW: /* 0..3 letters of 2 */
        len = rng_below(seed, 4);
        for (size_t k = 0; k < len; k++)
            key[k] = (uint8_t)(rng_u64(seed) & 1 ? 0xff : 'a');
        break;
    case PREFIXED:
        len = (size_t)sprintf((char *)key, "train/n0%07d/some_common_name_%llu.jpg", (int)rng_below(seed, 3),
                              (unsigned long long)rng_below(seed, 10 * n));
        break;
    case ZEROS: /* a prefix and any number of zeros, around the ends of words */
        len = rng_below(seed, 30);
        memset(key, 0, len);
        if (len && rng_below(seed, 4) == 0)
            key[rng_below(seed, len)] = 1;
        break;
    case SORTED:
    case REVERSED:
        len = (size_t)sprintf((char *)key, "%08zu", kind == SORTED ? i : n - i);
        break;
    default:
        len = 20;
        memset(key, 'x', len);
    }
    return len;
}

static struct item *make_items(enum kind kind, size_t n, uint64_t seed)
{
    struct item *items = calloc(n + 1, sizeof(*items));
    uint8_t key[256];

    for (size_t i = 0; items && i < n; i++) {
        items[i].key_len = make_key(kind, i, n, &seed, key);
        items[i].key = malloc(items[i].key_len + 1);
        items[i].n = i;
        memcpy(items[i].key, key, items[i].key_len);
    }
    return items;
}

static void free_items(struct item *items, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(items[i].key);
    free(items);
}

/* Adds n items, sorts, compares with qsort. Returns the first error. */
static int sort_and_compare(enum kind kind, size_t n, size_t budget, size_t payload_max, const char *dir,
                            struct larder_error *err)
{
    struct item *items = make_items(kind, n, n + budget);
    uint8_t payload[5000];
    struct extsort *s = NULL;
    size_t got = 0;
    int rc = extsort_new(dir, budget, &s, err);

    for (size_t i = 0; i < n && !rc; i++)
        rc = extsort_add(s, items[i].key, items[i].key_len, payload, payload_of(i, payload, payload_max), err);
    if (!rc)
        rc = extsort_sort(s, err);
    qsort(items, n, sizeof(*items), by_key_then_place);
    while (!rc) {
        const void *k, *p;
        size_t k_len, p_len, want_len;

        rc = extsort_next(s, &k, &k_len, &p, &p_len, err);
        if (rc)
            break;
        if (got < n) {
            want_len = payload_of(items[got].n, payload, payload_max);
            if (k_len != items[got].key_len || memcmp(k, items[got].key, k_len) || p_len != want_len ||
                memcmp(p, payload, p_len)) {
                fprintf(stderr, "kind %d, n %zu, budget %zu: item %zu differs\n", kind, n, budget, got);
                CHECK(!"the order of qsort");
                break;
            }
        }
        got++;
    }
    if (rc == LARDER_END) {
        const void *k;
        size_t len;

        CHECK_EQ(got, n);
        CHECK_EQ(extsort_next(s, &k, &len, &k, &len, err), LARDER_END);
        rc = LARDER_OK;
    }
    extsort_free(s);
    free_items(items, n);
    return rc;
}

static size_t entries(const char *dir)
{
    DIR *d = opendir(dir);
    size_t n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n - 2;
}

/* ---- tests ---- */

TEST(in_memory)
{
    static const size_t counts[] = {0, 1, 2, 3, 16, 17, 18, 100, 5000};
    const char *dir = tmp_dir();
    struct larder_error err;

    no_faults();
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < ARRAY_LEN(counts); i++)
            CHECK_OK(sort_and_compare((enum kind)kind, counts[i], MIB, 20, dir, &err), &err);
    CHECK_EQ(fake.writes, 0);
}

TEST(one_pass)
{
    const char *dir = tmp_dir();
    struct larder_error err;

    no_faults();
    for (int kind = 0; kind < KINDS; kind++)
        CHECK_OK(sort_and_compare((enum kind)kind, 9000, 300 * KIB, 20, dir, &err), &err);
    CHECK(fake.writes > 0);
    CHECK_EQ(entries(dir), 0);
}

TEST(many_passes)
{
    static const size_t budgets[] = {4096, 5000, 16 * KIB, 64 * KIB};
    const char *dir = tmp_dir();
    struct larder_error err;

    no_faults();
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t i = 0; i < ARRAY_LEN(budgets); i++)
            CHECK_OK(sort_and_compare((enum kind)kind, 3000 + i, budgets[i], 20, dir, &err), &err);
    CHECK_EQ(entries(dir), 0);
}

/* From one run to some more than a merge takes: the boundaries of "one more pass". */
TEST(few_runs)
{
    const char *dir = tmp_dir();
    struct larder_error err;

    no_faults();
    for (size_t n = 50; n < 900; n += 7)
        CHECK_OK(sort_and_compare(RANDOM, n, 4096, 8, dir, &err), &err);
}

TEST(large_items)
{
    const char *dir = tmp_dir();
    struct larder_error err;

    no_faults();
    for (int kind = 0; kind < KINDS; kind++)
        CHECK_OK(sort_and_compare((enum kind)kind, 200, 16 * KIB, 4000, dir, &err), &err);
}

/* Long keys with a long common part: equal words are passed eight bytes at a time. */
TEST(long_keys)
{
    enum { LEN = 3000, N = 300 };
    const char *dir = tmp_dir();
    uint8_t key[LEN];
    struct larder_error err;

    no_faults();
    for (size_t budget = 64 * KIB; budget <= 4 * MIB; budget *= 64) {
        struct extsort *s;
        const void *k, *p;
        size_t k_len, p_len;

        memset(key, 'k', LEN);
        REQUIRE_OK(extsort_new(dir, budget, &s, &err), &err);
        for (uint32_t i = 0; i < N; i++) {
            uint32_t place = i * 7919 % N;

            key[LEN - 2] = (uint8_t)(place >> 8);
            key[LEN - 1] = (uint8_t)place;
            REQUIRE_OK(extsort_add(s, key, LEN, &place, 4, &err), &err);
        }
        REQUIRE_OK(extsort_sort(s, &err), &err);
        for (uint32_t i = 0; i < N; i++) {
            REQUIRE_OK(extsort_next(s, &k, &k_len, &p, &p_len, &err), &err);
            REQUIRE_EQ(k_len, LEN);
            REQUIRE_EQ(get_u32(p), i);
        }
        CHECK_EQ(extsort_next(s, &k, &k_len, &p, &p_len, &err), LARDER_END);
        extsort_free(s);
    }
}

TEST(largest_lengths)
{
    AUTO_FREE uint8_t *bytes = calloc(1, 65536);
    const void *k, *p;
    size_t k_len, p_len;
    struct larder_error err;
    struct extsort *s;

    REQUIRE(bytes != NULL);
    no_faults();
    REQUIRE_OK(extsort_new(tmp_dir(), MIB, &s, &err), &err);
    for (int i = 0; i < 20; i++) {
        bytes[0] = (uint8_t)(20 - i);
        REQUIRE_OK(extsort_add(s, bytes, 65535, bytes, 65535, &err), &err);
    }
    CHECK_ERR(extsort_add(s, bytes, 65536, bytes, 1, &err), LARDER_EINVAL, &err);
    CHECK_ERR(extsort_add(s, bytes, 1, bytes, 65536, &err), LARDER_EINVAL, &err);
    REQUIRE_OK(extsort_sort(s, &err), &err);
    for (int i = 0; i < 20; i++) {
        REQUIRE_OK(extsort_next(s, &k, &k_len, &p, &p_len, &err), &err);
        CHECK_EQ(k_len, 65535);
        CHECK_EQ(p_len, 65535);
        CHECK_EQ(*(const uint8_t *)k, i + 1);
        CHECK_EQ(*(const uint8_t *)p, i + 1);
    }
    extsort_free(s);
}

TEST(piecemeal_transfers_and_named_files)
{
    const char *dir = tmp_dir();
    struct larder_error err;

    no_faults();
    fake.no_tmpfile = true;
    fake.piecemeal = true;
    CHECK_OK(sort_and_compare(PREFIXED, 4000, 16 * KIB, 30, dir, &err), &err);
    CHECK_EQ(entries(dir), 0);
    no_faults();
}

/* The first, second, third ... write and read fail: an error that says so, or the right result; nothing leaks. */
TEST(every_transfer_fails_once)
{
    static const int reasons[] = {ENOSPC, EIO, 0};
    const char *dir = tmp_dir();
    struct larder_error err;

    for (int reading = 0; reading < 2; reading++)
        for (long at = 1;; at += at < 30 ? 1 : 11) {
            int rc;

            no_faults();
            *(reading ? &fake.fail_read : &fake.fail_write) = at;
            fake.fail_errno = reasons[at % 3];
            rc = sort_and_compare(RANDOM, 700, 4096, 20, dir, &err);
            if (rc == LARDER_OK) {
                CHECK((reading ? fake.reads : fake.writes) < at);
                break;
            }
            REQUIRE_ERR(rc, LARDER_EIO, &err);
            CHECK(strstr(err.message, dir) != NULL);
            if (fake.fail_errno)
                CHECK_EQ(err.sys_errno, fake.fail_errno);
        }
    CHECK_EQ(entries(dir), 0);
    no_faults();
}

TEST(misuse)
{
    struct extsort *s = (struct extsort *)1;
    const void *k;
    size_t len;
    uint8_t big[1100] = {0};
    struct larder_error err;

    no_faults();
    CHECK_ERR(extsort_new(tmp_dir(), 4095, &s, &err), LARDER_EINVAL, &err);
    CHECK(s == NULL);
    REQUIRE_OK(extsort_new(tmp_dir(), 4096, &s, &err), &err);
    CHECK_ERR(extsort_next(s, &k, &len, &k, &len, &err), LARDER_EINVAL, &err);
    CHECK_OK(extsort_add(s, big, 1000, big, 20, &err), &err);
    CHECK_ERR(extsort_add(s, big, 1000, big, 21, &err), LARDER_ENOMEM, &err); /* more than a quarter */
    CHECK_OK(extsort_sort(s, &err), &err);
    CHECK_ERR(extsort_add(s, big, 1, big, 1, &err), LARDER_EINVAL, &err);
    CHECK_ERR(extsort_sort(s, &err), LARDER_EINVAL, &err);
    CHECK_OK(extsort_next(s, &k, &len, &k, &len, &err), &err);
    CHECK_EQ(extsort_next(s, &k, &len, &k, &len, &err), LARDER_END);
    extsort_free(s);
    extsort_free(NULL);
}

TEST(no_such_directory)
{
    struct larder_error err;

    no_faults();
    CHECK_ERR(sort_and_compare(RANDOM, 1000, 4096, 20, "/nonexistent/larder", &err), LARDER_EIO, &err);
    CHECK_EQ(err.sys_errno, ENOENT);
    CHECK(strstr(err.message, "/nonexistent/larder") != NULL);
}

TEST_MAIN();
