/* SPDX-License-Identifier: Apache-2.0 */
/* The key index: what is built is found, by any number of threads, and no damage to its files passes unseen or ends the process. */
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

#include <dirent.h>

#include "store/store.h"
#include "tests/unit/test.h"

/* ---- keys: key i is a function of i, in ascending order of bytes ---- */

enum { SHORT, RANDOM };

struct keys { uint64_t n, at, lo, step; int kind; uint8_t buf[LARDER_KEY_MAX]; };

/* The first four bytes ascend; what follows is random in length and content, with many 0x00 and 0xff. */
static size_t make_key(int kind, uint64_t i, uint8_t out[LARDER_KEY_MAX])
{
    uint64_t s = i * 31 + 7;
    size_t len = kind == SHORT ? 4 + rng_below(&s, 20) : 4 + rng_below(&s, rng_below(&s, 8) ? 60 : LARDER_KEY_MAX - 3);

    for (int k = 0; k < 4; k++)
        out[k] = (uint8_t)(i >> (24 - 8 * k));
    for (size_t k = 4; k < len; k++) {
        uint64_t r = rng_below(&s, 6);
        out[k] = r == 0 ? 0x00 : r == 1 ? 0xff : (uint8_t)rng_below(&s, 256);
    }
    return len;
}

static uint64_t ordinal_of(uint64_t i) { return i * 7919 % 1000003; }

static int keys_next(void *user, const void **key, size_t *len, uint64_t *ordinal, struct larder_error *err)
{
    struct keys *k = user;

    (void)err;
    if (k->at == k->n)
        return LARDER_END;
    uint64_t i = k->lo + k->step * k->at++;
    *len = make_key(k->kind, i, k->buf);
    *key = k->buf;
    *ordinal = ordinal_of(i);
    return LARDER_OK;
}

static void part_free(struct index_part *p)
{
    for (size_t i = 0; i < p->n_files; i++) {
        free(p->files[i].name);
        free(p->files[i].first);
        free(p->files[i].last);
    }
    free(p->files);
    free(p->dir);
}

/* The functions that take an io, over a folder. */
static int open_at(const char *root, const struct index_part *p, size_t n, size_t bytes, struct index **ix, struct larder_error *err)
{
    struct store_io *io;
    int rc = io_file_open(root, false, 0, &io, err);
    if (rc == 0) {
        rc = index_open(io, p, n, bytes, ix, err);
        io_close(io);
    }
    return rc;
}

static int cursor_at(const char *root, const struct index_part *p, struct index_cursor **c, struct larder_error *err)
{
    struct store_io *io;
    int rc = io_file_open(root, false, 0, &io, err);
    if (rc == 0) {
        rc = index_cursor_open(io, p, c, err);
        io_close(io);
    }
    return rc;
}

static int check_at(const char *root, const struct index_part *p, const struct index_file *f, struct larder_error *err)
{
    struct store_io *io;
    int rc = io_file_open(root, false, 0, &io, err);
    if (rc == 0) {
        rc = index_file_check(io, p, f, err);
        io_close(io);
    }
    return rc;
}

static struct index_part build(const char *root, const char *dir, struct keys k)
{
    struct larder_error err = {0};
    struct index_part p = {0};

    REQUIRE_OK(index_build(root, dir, keys_next, &k, &p, &err), &err);
    CHECK_EQ(p.keys, k.n);
    CHECK_STR(p.dir, dir);
    return p;
}

/* Looks up n keys from i = lo in batches and counts the answers. Any found answer must be the right one. */
struct tally { uint64_t found, absent, wrong; int rc; struct larder_error err; };

static struct tally look(struct index *ix, int kind, uint64_t lo, uint64_t n, uint64_t step)
{
    enum { B = 300 };
    uint8_t (*bytes)[LARDER_KEY_MAX] = malloc(B * sizeof(*bytes));
    const void *keys[B];
    size_t lens[B];
    uint64_t ordinals[B];
    struct tally t = {0};

    for (uint64_t at = 0; at < n && t.rc == 0; at += B) {
        size_t m = (size_t)MIN(n - at, (uint64_t)B);
        for (size_t k = 0; k < m; k++) {
            lens[k] = make_key(kind, lo + step * (at + (m - 1 - k)), bytes[k]); /* falling */
            keys[k] = bytes[k];
        }
        t.rc = index_lookup(ix, keys, lens, m, ordinals, &t.err);
        for (size_t k = 0; k < m && t.rc == 0; k++) {
            if (ordinals[k] == LARDER_NO_ORDINAL)
                t.absent++;
            else if (ordinals[k] == ordinal_of(lo + step * (at + (m - 1 - k))))
                t.found++;
            else
                t.wrong++;
        }
    }
    free(bytes);
    return t;
}

static void check_all(struct index *ix, int kind, uint64_t lo, uint64_t n, uint64_t step)
{
    struct tally t = look(ix, kind, lo, n, step);

    CHECK_OK(t.rc, &t.err);
    CHECK_EQ(t.found, n);
    CHECK_EQ(t.wrong, 0);
}

static void check_none(struct index *ix, int kind, uint64_t lo, uint64_t n, uint64_t step)
{
    struct tally t = look(ix, kind, lo, n, step);

    CHECK_OK(t.rc, &t.err);
    CHECK_EQ(t.absent, n);
}

static void check_cursor(const char *root, const struct index_part *p, struct keys k)
{
    struct larder_error err = {0};
    struct index_cursor *c;
    const void *a, *b;
    size_t a_len = 0, b_len = 0;
    uint64_t x = 0, y = 0;
    int rc;

    REQUIRE_OK(cursor_at(root, p, &c, &err), &err);
    while ((rc = index_cursor_next(c, &a, &a_len, &x, &err)) == LARDER_OK) {
        REQUIRE_EQ(keys_next(&k, &b, &b_len, &y, &err), LARDER_OK);
        REQUIRE_EQ(a_len, b_len);
        REQUIRE_MEM(a, b, a_len);
        REQUIRE_EQ(x, y);
    }
    CHECK_EQ(rc, LARDER_END);
    CHECK_EQ(k.at, k.n);
    index_cursor_close(c);
}

static uint64_t n_entries(const char *path)
{
    DIR *d = opendir(path);
    uint64_t n = 0;

    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

TEST(builds_and_finds)
{
    static const struct { uint64_t n; int kind; } cases[] = {{0, SHORT}, {1, SHORT}, {2, RANDOM}, {3000, RANDOM}, {100000, RANDOM}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *root = tmp_dir();
        struct keys k = {.n = cases[i].n, .kind = cases[i].kind, .lo = 1, .step = 2};
        struct index_part p = build(root, "1-00000000000000aa", k);
        struct larder_error err = {0};
        struct index *ix;
        char path[200];
        REQUIRE_OK(open_at(root, &p, 1, 16 * MIB, &ix, &err), &err);
        check_all(ix, k.kind, 1, k.n, 2);
        check_none(ix, k.kind, 0, k.n, 2); /* between and before */
        check_none(ix, k.kind, 2 * k.n + 1, 10, 2); /* behind */
        index_close(ix);
        check_cursor(root, &p, k);
        snprintf(path, sizeof(path), "%s/index/%s", root, p.dir);
        CHECK_EQ(n_entries(path), p.n_files); /* reading has left nothing */
        CHECK_EQ(p.n_files == 0, k.n == 0);
        for (size_t f = 0; f < p.n_files; f++)
            CHECK_OK(check_at(root, &p, &p.files[f], &err), &err);
        part_free(&p);
    }
}

TEST(lists_what_is_there)
{
    const char *root = tmp_dir();
    struct index_part p = build(root, "3-01", (struct keys){.n = 60000, .kind = RANDOM, .step = 1});
    uint8_t key[LARDER_KEY_MAX];
    uint64_t sum = 0, ssts = 0, next = 0;
    char path[200];

    for (size_t i = 0; i < p.n_files; i++) {
        struct stat st;
        snprintf(path, sizeof(path), "%s/index/3-01/%s", root, p.files[i].name);
        REQUIRE_EQ(stat(path, &st), 0);
        CHECK_EQ((uint64_t)st.st_size, p.files[i].size);
        if (p.files[i].keys == 0)
            continue;
        ssts++;
        sum += p.files[i].keys;
        size_t len = make_key(RANDOM, next, key);
        REQUIRE_EQ(p.files[i].first_len, len);
        CHECK_MEM(p.files[i].first, key, len);
        next += p.files[i].keys;
        len = make_key(RANDOM, next - 1, key);
        REQUIRE_EQ(p.files[i].last_len, len);
        CHECK_MEM(p.files[i].last, key, len);
        CHECK(p.files[i].size < 10 * MIB);
    }
    CHECK_EQ(sum, 60000);
    CHECK_EQ(p.files[0].keys + p.files[1].keys, 0);
    CHECK_STR(p.files[0].name, "CURRENT");
    CHECK_EQ(ssts, p.n_files - 2);
    part_free(&p);
}

TEST(odd_keys)
{
    const char *root = tmp_dir();
    struct larder_error err = {0};
    struct index_part p = build(root, "1-02", (struct keys){.n = 10, .kind = SHORT, .step = 1});
    struct index *ix;
    uint8_t big[LARDER_KEY_MAX + 1] = {0}, key[LARDER_KEY_MAX];
    size_t len = make_key(SHORT, 3, key);
    const void *keys[] = {"", big, key, key, key};
    size_t lens[] = {0, sizeof(big), len, len - 1, len};
    uint64_t found[5];

    REQUIRE_OK(open_at(root, &p, 1, MIB, &ix, &err), &err);
    REQUIRE_OK(index_lookup(ix, keys, lens, 5, found, &err), &err);
    CHECK(found[0] == LARDER_NO_ORDINAL && found[1] == LARDER_NO_ORDINAL && found[3] == LARDER_NO_ORDINAL);
    CHECK_EQ(found[2], ordinal_of(3));
    CHECK_EQ(found[4], ordinal_of(3)); /* twice in a batch */
    CHECK_OK(index_lookup(ix, keys, lens, 0, found, &err), &err);
    index_close(ix);
    part_free(&p);
}

TEST(several_parts)
{
    const char *root = tmp_dir();
    struct larder_error err = {0};
    struct index_part p[4] = {build(root, "1-1", (struct keys){.n = 5000, .kind = RANDOM, .lo = 0, .step = 4}),
                              build(root, "2-1", (struct keys){.n = 300, .kind = RANDOM, .lo = 1, .step = 4}),
                              build(root, "3-1", (struct keys){.n = 0, .kind = RANDOM, .step = 4}),
                              build(root, "4-1", (struct keys){.n = 9000, .kind = RANDOM, .lo = 2, .step = 4})};
    struct index *ix;

    REQUIRE_OK(open_at(root, p, 4, 8 * MIB, &ix, &err), &err);
    check_all(ix, RANDOM, 0, 5000, 4);
    check_all(ix, RANDOM, 1, 300, 4);
    check_all(ix, RANDOM, 2, 9000, 4);
    check_none(ix, RANDOM, 3, 9000, 4);
    check_none(ix, RANDOM, 1201, 1000, 4);
    index_close(ix);
    REQUIRE_OK(open_at(root, p, 0, 8 * MIB, &ix, &err), &err);
    check_none(ix, RANDOM, 0, 10, 1);
    index_close(ix);
    for (int i = 0; i < 4; i++)
        part_free(&p[i]);
}

static void long_key(uint64_t i, uint8_t out[LARDER_KEY_MAX])
{
    memset(out, 'k', LARDER_KEY_MAX);
    for (int k = 9; k >= 0; k--, i /= 10)
        out[k] = (uint8_t)('0' + i % 10);
}

/* More SSTs than RocksDB reads by itself while opening. */
static int long_next(void *user, const void **key, size_t *len, uint64_t *ordinal, struct larder_error *err)
{
    struct keys *k = user;

    (void)err;
    if (k->at == k->n)
        return LARDER_END;
    long_key(k->at, k->buf);
    *key = k->buf;
    *len = LARDER_KEY_MAX;
    *ordinal = k->at++;
    return LARDER_OK;
}

TEST(many_files)
{
    const char *root = tmp_dir();
    struct larder_error err = {0};
    struct keys k = {.n = 150000};
    struct index_part p;
    struct index *ix;
    struct index_cursor *c;
    uint8_t key[LARDER_KEY_MAX];
    const void *kp = key, *got;
    size_t len = sizeof(key);
    uint64_t ordinal, n = 0;
    char path[200];
    int rc;

    REQUIRE_OK(index_build(root, "1-1", long_next, &k, &p, &err), &err);
    REQUIRE(p.n_files > 18);
    REQUIRE_OK(open_at(root, &p, 1, 8 * MIB, &ix, &err), &err);
    for (uint64_t i = 0; i < k.n; i += 997) {
        long_key(i, key);
        REQUIRE_OK(index_lookup(ix, &kp, &len, 1, &ordinal, &err), &err);
        REQUIRE_EQ(ordinal, i);
    }
    index_close(ix);
    REQUIRE_OK(cursor_at(root, &p, &c, &err), &err);
    while ((rc = index_cursor_next(c, &got, &len, &ordinal, &err)) == LARDER_OK)
        n += ordinal == n;
    CHECK_EQ(rc, LARDER_END);
    CHECK_EQ(n, k.n);
    index_cursor_close(c);
    /* Damage in the middle of the last SST hurts only who needs that one. */
    snprintf(path, sizeof(path), "%s/index/1-1/%s", root, p.files[p.n_files - 1].name);
    int fd = open(path, O_RDWR);
    REQUIRE_EQ(pwrite(fd, "damage", 6, 5000), 6);
    close(fd);
    REQUIRE_OK(open_at(root, &p, 1, 8 * MIB, &ix, &err), &err);
    len = sizeof(key);
    long_key(0, key);
    CHECK_OK(index_lookup(ix, &kp, &len, 1, &ordinal, &err), &err);
    long_key(k.n - 1, key);
    CHECK_ERR(index_lookup(ix, &kp, &len, 1, &ordinal, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, p.files[p.n_files - 1].name) && strstr(err.message, "larder repair"));
    CHECK_ERR(index_lookup(ix, &kp, &len, 1, &ordinal, &err), LARDER_ECORRUPT, &err); /* and again */
    index_close(ix);
    REQUIRE_OK(cursor_at(root, &p, &c, &err), &err);
    for (n = 0; (rc = index_cursor_next(c, &got, &len, &ordinal, &err)) == LARDER_OK; n++)
        ;
    CHECK_EQ(rc, LARDER_ECORRUPT);
    CHECK_EQ(n, k.n - p.files[p.n_files - 1].keys);
    index_cursor_close(c);
    part_free(&p);
}

struct seeker { struct index *ix; int bad; };

static void *seek(void *user)
{
    struct seeker *s = user;
    struct tally t = look(s->ix, RANDOM, 0, 20000, 1);

    s->bad = t.rc || t.found != 20000 || t.wrong;
    return NULL;
}

TEST(threads)
{
    const char *root = tmp_dir();
    struct larder_error err = {0};
    struct index_part p[2] = {build(root, "1-1", (struct keys){.n = 10000, .kind = RANDOM, .lo = 0, .step = 2}),
                              build(root, "2-1", (struct keys){.n = 10000, .kind = RANDOM, .lo = 1, .step = 2})};
    struct seeker s[4];
    pthread_t t[4];
    struct index *ix;

    REQUIRE_OK(open_at(root, p, 2, MIB, &ix, &err), &err);
    for (int i = 0; i < 4; i++) {
        s[i] = (struct seeker){ix, 1};
        REQUIRE_EQ(pthread_create(&t[i], NULL, seek, &s[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        CHECK_EQ(s[i].bad, 0);
    }
    index_close(ix);
    part_free(&p[0]);
    part_free(&p[1]);
}

/* ---- damage ---- */

enum { SMALL = 300 };

/* 0: right answers; 1: refused as corrupt; 2: wrong, or another error. */
static int verdict(const char *root, const struct index_part *p)
{
    struct larder_error err = {0};
    struct index *ix;
    int rc = open_at(root, p, 1, MIB, &ix, &err);

    if (rc)
        return rc == LARDER_ECORRUPT && strstr(err.message, "larder repair") ? 1 : 2;
    struct tally t = look(ix, SHORT, 0, SMALL, 1);
    index_close(ix);
    if (t.rc)
        return t.rc == LARDER_ECORRUPT && strstr(t.err.message, "larder repair") ? 1 : 2;
    return t.found == SMALL && t.wrong == 0 ? 0 : 2;
}

static uint8_t *slurp(const char *path, size_t *len)
{
    int fd = open(path, O_RDONLY);
    struct stat st;
    REQUIRE(fd >= 0 && fstat(fd, &st) == 0);
    uint8_t *data = malloc((size_t)st.st_size + 1);
    REQUIRE_EQ(pread(fd, data, (size_t)st.st_size, 0), st.st_size);
    close(fd);
    *len = (size_t)st.st_size;
    return data;
}

TEST(every_byte_flipped)
{
    const char *root = tmp_dir();
    struct index_part p = build(root, "1-1", (struct keys){.n = SMALL, .kind = SHORT, .step = 1});
    struct larder_error err = {0};
    uint64_t state = 3;

    for (size_t f = 0; f < p.n_files; f++) {
        char path[200];
        size_t len;
        snprintf(path, sizeof(path), "%s/index/1-1/%s", root, p.files[f].name);
        uint8_t *data = slurp(path, &len);
        int fd = open(path, O_RDWR);
        for (size_t i = 0; i < len; i++) {
            uint8_t bad = data[i] ^ (uint8_t)(1u << rng_below(&state, 8));
            REQUIRE_EQ(pwrite(fd, &bad, 1, (off_t)i), 1);
            REQUIRE_EQ(verdict(root, &p), 1);
            REQUIRE_EQ(check_at(root, &p, &p.files[f], &err), LARDER_ECORRUPT);
            REQUIRE_EQ(pwrite(fd, &data[i], 1, (off_t)i), 1);
        }
        close(fd);
        free(data);
    }
    CHECK_EQ(verdict(root, &p), 0);
    part_free(&p);
}

TEST(truncated_missing_and_extra)
{
    const char *root = tmp_dir();
    struct index_part p = build(root, "1-1", (struct keys){.n = SMALL, .kind = SHORT, .step = 1});
    struct larder_error err = {0};
    char path[200], aside[200];

    for (size_t f = 0; f < p.n_files; f++) {
        size_t len;
        snprintf(path, sizeof(path), "%s/index/1-1/%s", root, p.files[f].name);
        uint8_t *data = slurp(path, &len);
        for (size_t cut = 1; cut <= len; cut += 1 + len / 10) {
            REQUIRE_EQ(truncate(path, (off_t)(len - cut)), 0);
            CHECK_EQ(verdict(root, &p), 1);
        }
        int fd = open(path, O_RDWR);
        REQUIRE_EQ(pwrite(fd, data, len, 0), (ssize_t)len);
        REQUIRE_EQ(pwrite(fd, "x", 1, (off_t)len), 1);
        CHECK_EQ(verdict(root, &p), 1);
        REQUIRE_EQ(ftruncate(fd, (off_t)len), 0);
        close(fd);
        snprintf(aside, sizeof(aside), "%s/aside", root);
        REQUIRE_EQ(rename(path, aside), 0);
        CHECK_EQ(verdict(root, &p), 1);
        CHECK_ERR(check_at(root, &p, &p.files[f], &err), LARDER_ECORRUPT, &err);
        REQUIRE_EQ(rename(aside, path), 0);
        CHECK_EQ(verdict(root, &p), 0);
        free(data);
    }
    static const char *const extra[] = {"000011.log", "MANIFEST-000099", "000077.sst", "x"};
    static const char *const harmless[] = {"LOG", "LOCK", "LOG.old.17", ".nfs0001"};
    for (int i = 0; i < 8; i++) {
        snprintf(path, sizeof(path), "%s/index/1-1/%s", root, i < 4 ? extra[i] : harmless[i - 4]);
        close(open(path, O_CREAT | O_WRONLY, 0644));
        CHECK_EQ(verdict(root, &p), i < 4);
        REQUIRE_EQ(unlink(path), 0);
    }
    snprintf(path, sizeof(path), "%s/index/1-1", root);
    REQUIRE_EQ(rename(path, aside), 0);
    CHECK_EQ(verdict(root, &p), 1);
    part_free(&p);
}

TEST(manifest_that_contradicts)
{
    const char *root = tmp_dir();
    struct index_part p = build(root, "1-1", (struct keys){.n = SMALL, .kind = SHORT, .step = 1});

    p.keys++;
    CHECK_EQ(verdict(root, &p), 1);
    p.keys--;
    struct index_file whole = p.files[2], *f = &p.files[2];
    f->first = whole.last; /* a range upside down */
    f->first_len = whole.last_len;
    f->last = whole.first;
    f->last_len = whole.first_len;
    CHECK_EQ(verdict(root, &p), 1);
    *f = whole;
    CHECK_EQ(verdict(root, &p), 0);
    part_free(&p);
}

/* In a child without root's rights, where root runs the test. */
TEST(read_only_directory)
{
    const char *root = tmp_dir();
    struct index_part p = build(root, "1-1", (struct keys){.n = SMALL, .kind = SHORT, .step = 1});
    char path[200];

    snprintf(path, sizeof(path), "%s/index/1-1", root);
    REQUIRE_EQ(chmod(root, 0755), 0);
    REQUIRE_EQ(chmod(path, 0555), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (getuid() == 0 && (setgid(65534) || setuid(65534)))
            _exit(9);
        _exit(access(path, W_OK) == 0 ? 8 : verdict(root, &p));
    }
    int status = -1;
    REQUIRE_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_EQ(n_entries(path), p.n_files);
    CHECK_EQ(chmod(path, 0755), 0);
    part_free(&p);
}

/* ---- building that fails ---- */

static int falling_next(void *user, const void **key, size_t *len, uint64_t *ordinal, struct larder_error *err)
{
    static const char *const keys[] = {"a", "c", "c", "b", ""};
    int *mode = user, at = *mode >> 8;

    *mode += 256;
    *ordinal = (uint64_t)at;
    if (at < 2) {
        *key = keys[at];
        *len = 1;
        return LARDER_OK;
    }
    if ((*mode & 255) == 3)
        return err_set(err, LARDER_ECANCELED, "stop");
    *key = keys[2 + (*mode & 255)];
    *len = strlen(*key);
    return LARDER_OK;
}

TEST(failed_builds_leave_nothing)
{
    static const int want[] = {LARDER_EINVAL, LARDER_EINVAL, LARDER_EINVAL, LARDER_ECANCELED}; /* equal, falling, empty, stop */
    const char *root = tmp_dir();
    struct index_part p = {.keys = 77};
    struct larder_error err = {0};
    char path[200];

    snprintf(path, sizeof(path), "%s/index", root);
    for (int mode = 0; mode < 4; mode++) {
        int user = mode;
        CHECK_ERR(index_build(root, "1-1", falling_next, &user, &p, &err), want[mode], &err);
        CHECK_EQ(p.keys, 77);
        CHECK_EQ(n_entries(path), 0);
    }
    struct index_part first = build(root, "1-1", (struct keys){.n = 5, .kind = SHORT, .step = 1});
    struct keys k = {.n = 9, .kind = SHORT, .step = 1};
    CHECK_ERR(index_build(root, "1-1", keys_next, &k, &p, &err), LARDER_EEXIST, &err);
    CHECK_EQ(n_entries(path), 1);
    /* What a killed run left in the temporary place is no obstacle. */
    snprintf(path, sizeof(path), "%s/index/2-1.tmp", root);
    REQUIRE_EQ(mkdir(path, 0755), 0);
    snprintf(path, sizeof(path), "%s/index/2-1.tmp/in", root);
    REQUIRE_EQ(mkdir(path, 0755), 0);
    snprintf(path, sizeof(path), "%s/index/2-1.tmp/in/000001.sst", root);
    close(open(path, O_CREAT | O_WRONLY, 0644));
    struct index_part second = build(root, "2-1", (struct keys){.n = 5, .kind = SHORT, .step = 1});
    snprintf(path, sizeof(path), "%s/index", root);
    CHECK_EQ(n_entries(path), 2);
    part_free(&first);
    part_free(&second);
}

TEST_MAIN();
