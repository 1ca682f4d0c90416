/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "store/base/base_int.h"
#include "tests/unit/test.h"

static struct store_io *open_tmp(unsigned files_max)
{
    struct larder_error err;
    struct store_io *io = NULL;

    REQUIRE_OK(io_file_open(tmp_dir(), false, files_max, &io, &err), &err);
    return io;
}

static void put(struct store_io *io, const char *name, const char *text)
{
    struct larder_error err;

    CHECK_OK(io->ops->put(io, name, text, strlen(text), &err), &err);
}

static const char *path_of(struct store_io *io, const char *name)
{
    static char path[512];

    snprintf(path, sizeof(path), "%s/%s", io->ops->local_root(io), name);
    return path;
}

/* Names of a listing, sorted, as "a b c". */
struct names { char *list[64]; size_t n; int stop_after; };

static int collect(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    struct names *names = user;
    char text[600];

    CHECK(mtime_s + 1000 > now_wall_s() && mtime_s < now_wall_s() + 1000);
    snprintf(text, sizeof(text), "%s:%" PRIu64, name, size);
    if (names->n < ARRAY_LEN(names->list))
        names->list[names->n++] = strdup(text);
    return names->stop_after && (int)names->n == names->stop_after ? 1234 : 0;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void list_is(struct store_io *io, const char *prefix, const char *want)
{
    struct larder_error err;
    struct names names = {0};
    char have[4096] = "";

    CHECK_OK(io->ops->list(io, prefix, collect, &names, &err), &err);
    qsort(names.list, names.n, sizeof(char *), by_text);
    for (size_t i = 0; i < names.n; i++) {
        snprintf(have + strlen(have), sizeof(have) - strlen(have), "%s%s", i ? " " : "", names.list[i]);
        free(names.list[i]);
    }
    CHECK_STR(have, want);
}

/* ---- opening ---- */

TEST(open_makes_folders_when_told)
{
    struct larder_error err;
    struct store_io *io = NULL;
    char path[300], slashed[310];
    struct stat st;

    snprintf(path, sizeof(path), "%s/a/b c/d", tmp_dir());
    CHECK_ERR(io_file_open(path, false, 0, &io, &err), LARDER_ENOTFOUND, &err);
    CHECK(io == NULL);
    CHECK(strstr(err.message, path) && strstr(err.message, "check the path"));
    CHECK(stat(path, &st) != 0);
    snprintf(slashed, sizeof(slashed), "%s///", path);
    REQUIRE_OK(io_file_open(slashed, true, 0, &io, &err), &err);
    CHECK_STR(io->ops->local_root(io), path);
    CHECK(stat(path, &st) == 0 && S_ISDIR(st.st_mode));
    io_close(io);
    REQUIRE_OK(io_file_open(path, true, 0, &io, &err), &err); /* there already: no matter */
    io_close(io);
    io_close(NULL);
}

TEST(open_tells_what_is_in_the_way)
{
    struct larder_error err;
    struct store_io *io = open_tmp(0), *none = NULL;
    char inner[600];

    put(io, "file", "x");
    CHECK_ERR(io_file_open(path_of(io, "file"), false, 0, &none, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "not a folder"));
    CHECK(io_file_open(path_of(io, "file"), true, 0, &none, &err) < 0);
    snprintf(inner, sizeof(inner), "%s/x", path_of(io, "file"));
    CHECK(io_file_open(inner, true, 0, &none, &err) < 0);
    CHECK(strstr(err.message, "/file"));
    CHECK_ERR(io_file_open("s3://bucket/x", false, 0, &none, &err), LARDER_EINVAL, &err);
    CHECK(none == NULL);
    io_close(io);
}

TEST(open_survives_rename_of_the_root_and_chdir)
{
    struct larder_error err;
    struct store_io *io = NULL;
    char *cwd = getcwd(NULL, 0), byte;

    REQUIRE(cwd && chdir(tmp_dir()) == 0);
    REQUIRE_OK(io_file_open("one", true, 0, &io, &err), &err);
    CHECK(io->ops->local_root(io)[0] == '/');
    put(io, "x", "1");
    CHECK_EQ(rename("one", "two"), 0);
    CHECK_EQ(chdir(cwd), 0);
    CHECK_OK(io_read(io, "x", 0, &byte, 1, &err), &err);
    put(io, "y", "2");
    list_is(io, "", "x:1 y:1");
    io_close(io);
    free(cwd);
}

TEST(no_rights_is_said)
{
    struct store_io *io = open_tmp(0);

    put(io, "locked/x", "1");
    CHECK_EQ(chmod(path_of(io, "locked"), 0700), 0);
    CHECK_EQ(chmod(io->ops->local_root(io), 0755), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct larder_error err = {0};
        struct store_io *other = NULL;
        char byte;
        if (getuid() == 0 && (setgid(65534) || setuid(65534)))
            _exit(7);
        if (getuid() != 65534)
            _exit(0); /* not root: these are our own files */
        int rc = io_file_open(path_of(io, "locked"), false, 0, &other, &err);
        if (rc != LARDER_EIO || err.sys_errno != EACCES || !strstr(err.message, "give this user"))
            _exit(1);
        rc = io_file_open(io->ops->local_root(io), false, 0, &other, &err);
        if (rc)
            _exit(2);
        rc = io_read(other, "locked/x", 0, &byte, 1, &err);
        if (rc != LARDER_EIO || err.sys_errno != EACCES || !strstr(err.message, "locked/x"))
            _exit(3);
        rc = other->ops->put(other, "new", "1", 1, &err);
        if (rc != LARDER_EIO || err.sys_errno != EACCES)
            _exit(4);
        io_close(other);
        _exit(0);
    }
    int status;
    REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
    CHECK_EQ(status, 0);
    io_close(io);
}

/* ---- names ---- */

TEST(names_cannot_escape)
{
    static const char *const bad[] = {"", "/etc/passwd", "..", "../x", "a/../x", "a/..", ".", "./a", "a/./b", "a//b", "a/", "//"};
    struct store_io *io = open_tmp(0);
    struct larder_error err;
    struct store_out *out;
    uint64_t n;
    char byte = 'b';

    put(io, "a/b", "x");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct store_range two[2] = {{"a/b", 0, &byte, 1}, {bad[i], 0, &byte, 1}};
        CHECK_ERR(io_read(io, bad[i], 0, &byte, 1, &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->read_ranges(io, two, 2, &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->stat(io, bad[i], &n, &n, &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->put(io, bad[i], "x", 1, &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->create_exclusive(io, bad[i], "x", 1, &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->remove(io, bad[i], &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->begin(io, bad[i], &out, &err), LARDER_EINVAL, &err);
        CHECK(out == NULL);
        if (*bad[i]) {
            CHECK_ERR(io->ops->list(io, bad[i], collect, NULL, &err), LARDER_EINVAL, &err);
            CHECK_ERR(io->ops->sync(io, bad[i], &err), LARDER_EINVAL, &err);
        }
    }
    char *longest = malloc(6000);
    REQUIRE(longest);
    memset(longest, 'x', 5999);
    longest[5999] = '\0';
    CHECK_ERR(io_read(io, longest, 0, &byte, 1, &err), LARDER_EINVAL, &err);
    free(longest);
    CHECK_OK(io_name_check("..a/b../...", &err), &err); /* odd, but they stay inside */
    list_is(io, "", "a/b:1");
    io_close(io);
}

/* ---- reading ---- */

TEST(ranges_are_read_whole)
{
    enum { N = 300, SIZE = 200000 };
    struct store_io *io = open_tmp(4);
    struct larder_error err;
    static uint8_t content[SIZE], read[N][1000];
    struct store_range ranges[N];
    uint64_t state = 3;

    rng_fill(&state, content, SIZE);
    CHECK_OK(io->ops->put(io, "s/a", content, SIZE, &err), &err);
    CHECK_OK(io->ops->put(io, "s/b", content + 1, SIZE - 1, &err), &err);
    for (size_t i = 0; i < N; i++)
        ranges[i] = (struct store_range){i % 2 ? "s/b" : "s/a", rng_below(&state, SIZE - 1001), read[i], rng_below(&state, 1001)};
    CHECK_OK(io->ops->read_ranges(io, ranges, N, &err), &err);
    for (size_t i = 0; i < N; i++)
        CHECK_MEM(read[i], content + ranges[i].offset + i % 2, ranges[i].len);
    CHECK_OK(io->ops->read_ranges(io, NULL, 0, &err), &err);
    CHECK_OK(io_read(io, "s/a", SIZE, NULL, 0, &err), &err); /* nothing of what lies at the end */
    io_close(io);
}

TEST(ends_before_the_range)
{
    struct store_io *io = open_tmp(0);
    struct larder_error err;
    char buf[16];
    struct store_range two[2] = {{"x", 0, buf, 5}, {"x", 3, buf, 3}};

    put(io, "x", "hello");
    CHECK_ERR(io_read(io, "x", 2, buf, 4, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "x: 4 bytes at offset 2 wanted, file ends at 5");
    CHECK_ERR(io_read(io, "x", 99, buf, 1, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(io_read(io, "x", UINT64_MAX, buf, 1, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(io_read(io, "x", INT64_MAX, buf, 1, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(io->ops->read_ranges(io, two, 2, &err), LARDER_ECORRUPT, &err);
    CHECK_STR(err.message, "x: 3 bytes at offset 3 wanted, file ends at 5");
    io_close(io);
}

TEST(what_is_no_file)
{
    struct store_io *io = open_tmp(0);
    struct larder_error err;
    uint64_t size = 7, mtime;
    char byte;

    put(io, "dir/x", "1");
    CHECK_EQ(mkfifo(path_of(io, "fifo"), 0600), 0);
    CHECK_ERR(io_read(io, "gone", 0, &byte, 1, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, path_of(io, "gone")));
    CHECK_ERR(io_read(io, "dir/x/y", 0, &byte, 1, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(io_read(io, "dir", 0, &byte, 1, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(io_read(io, "fifo", 0, &byte, 1, &err), LARDER_ECORRUPT, &err); /* and does not wait for a writer */
    CHECK_ERR(io->ops->stat(io, "gone", &size, &mtime, &err), LARDER_ENOTFOUND, &err);
    CHECK_ERR(io->ops->stat(io, "dir", &size, &mtime, &err), LARDER_ECORRUPT, &err);
    CHECK_EQ(size, 7);
    CHECK_OK(io->ops->stat(io, "dir/x", &size, &mtime, &err), &err);
    CHECK_EQ(size, 1);
    CHECK(mtime + 1000 > now_wall_s());
    io_close(io);
}

TEST(read_all_appends_and_bounds)
{
    struct store_io *io = open_tmp(0);
    struct larder_error err;
    AUTO_BUF struct buf b = BUF_INIT;

    put(io, "x", "hello");
    put(io, "empty", "");
    CHECK_OK(buf_append(&b, "> ", 2, &err), &err);
    CHECK_OK(io_read_all(io, "x", 5, &b, &err), &err);
    CHECK_OK(io_read_all(io, "empty", 0, &b, &err), &err);
    CHECK_EQ(b.len, 7);
    CHECK_MEM(b.data, "> hello", 7);
    CHECK_ERR(io_read_all(io, "x", 4, &b, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(io_read_all(io, "gone", 4, &b, &err), LARDER_ENOTFOUND, &err);
    CHECK_EQ(b.len, 7);
    io_close(io);
}

TEST(replaced_by_another_process_is_seen)
{
    struct store_io *io = open_tmp(0), *other = NULL;
    struct larder_error err;
    AUTO_BUF struct buf b = BUF_INIT;

    REQUIRE_OK(io_file_open(io->ops->local_root(io), false, 0, &other, &err), &err);
    for (int i = 0; i < 20; i++) {
        char text[32];
        snprintf(text, sizeof(text), "%0*d", i % 5 + 1, i % 10);
        put(other, "larder.json", text);
        b.len = 0;
        CHECK_OK(io_read_all(io, "larder.json", 100, &b, &err), &err);
        CHECK_EQ(b.len, strlen(text));
        CHECK_MEM(b.data, text, b.len);
    }
    io_close(other);
    io_close(io);
}

struct replacer { struct store_io *io; atomic_bool stop; };

static void *replace_all_the_time(void *arg)
{
    struct replacer *r = arg;
    char text[64];

    for (unsigned i = 0; !atomic_load(&r->stop); i++) { /* i copies of a letter that goes with i */
        memset(text, 'A' + (int)(i % 50), i % 50 + 1);
        CHECK(r->io->ops->put(r->io, "hint", text, i % 50 + 1, NULL) == 0);
    }
    return NULL;
}

TEST(read_all_never_mixes_two_versions)
{
    struct store_io *io = open_tmp(0), *other = NULL;
    struct larder_error err;
    AUTO_BUF struct buf b = BUF_INIT;
    pthread_t thread;

    REQUIRE_OK(io_file_open(io->ops->local_root(io), false, 0, &other, &err), &err);
    put(io, "hint", "A");
    struct replacer r = {other, false};
    REQUIRE(pthread_create(&thread, NULL, replace_all_the_time, &r) == 0);
    for (int i = 0; i < 300; i++) {
        b.len = 0;
        int rc = io_read_all(io, "hint", 100, &b, &err);
        if (rc == LARDER_EBUSY)
            continue;
        CHECK_OK(rc, &err);
        for (size_t k = 0; rc == 0 && k < b.len; k++)
            if (b.data[k] != 'A' + (int)b.len - 1) {
                CHECK_EQ(b.data[k], 'A' + (int)b.len - 1);
                break;
            }
    }
    atomic_store(&r.stop, true);
    pthread_join(thread, NULL);
    io_close(other);
    io_close(io);
}

/* ---- listing ---- */

TEST(lists_everything_below)
{
    struct store_io *io = open_tmp(0);
    struct larder_error err;
    struct names names = {.stop_after = 2};

    list_is(io, "", "");
    list_is(io, "gone", "");
    list_is(io, "gone/deeper", "");
    put(io, "larder.json", "{}");
    put(io, "shards/a", "1");
    put(io, "shards/.tmp-0", "12");
    put(io, "shards/sub/b", "123");
    put(io, "shards-other", "");
    CHECK_EQ(mkdir(path_of(io, "empty"), 0777), 0);
    CHECK_EQ(symlink("..", path_of(io, "shards/loop")), 0);
    CHECK_EQ(symlink("a", path_of(io, "shards/link")), 0);
    CHECK_EQ(mkfifo(path_of(io, "shards/fifo"), 0600), 0);
    list_is(io, "", "larder.json:2 shards-other:0 shards/.tmp-0:2 shards/a:1 shards/sub/b:3");
    list_is(io, "shards", "shards/.tmp-0:2 shards/a:1 shards/sub/b:3");
    list_is(io, "shards/sub", "shards/sub/b:3");
    list_is(io, "empty", "");
    CHECK(io->ops->list(io, "larder.json", collect, &names, &err) < 0);
    CHECK_EQ(io->ops->list(io, "", collect, &names, &err), 1234);
    CHECK_EQ(names.n, 2);
    for (size_t i = 0; i < names.n; i++)
        free(names.list[i]);
    io_close(io);
}

TEST(listing_is_bounded_in_depth)
{
    struct store_io *io = open_tmp(0);
    struct larder_error err;
    char name[400] = "";

    for (int i = 0; i < 60; i++)
        strcat(name, "d/");
    strcat(name, "x");
    put(io, name, "1");
    char want[410];
    snprintf(want, sizeof(want), "%s:1", name);
    list_is(io, "", want);
    name[strlen(name) - 1] = '\0';
    strcat(name, "d/d/d/d/d/d/x");
    put(io, name, "1");
    struct names names = {0};
    CHECK_ERR(io->ops->list(io, "", collect, &names, &err), LARDER_ECORRUPT, &err);
    for (size_t i = 0; i < names.n; i++)
        free(names.list[i]);
    CHECK_OK(io->ops->remove(io, name, &err), &err);
    io_close(io);
}

/* ---- removing ---- */

TEST(remove_takes_empty_folders_along)
{
    struct store_io *io = open_tmp(0);
    struct larder_error err;
    struct stat st;
    char byte;

    put(io, "a/b/c/x", "1");
    put(io, "a/y", "2");
    CHECK_OK(io_read(io, "a/b/c/x", 0, &byte, 1, &err), &err); /* its descriptor is cached now */
    CHECK_OK(io->ops->remove(io, "a/b/c/x", &err), &err);
    CHECK_ERR(io_read(io, "a/b/c/x", 0, &byte, 1, &err), LARDER_ENOTFOUND, &err);
    CHECK(stat(path_of(io, "a/b"), &st) != 0);
    CHECK(stat(path_of(io, "a"), &st) == 0);
    CHECK_ERR(io->ops->remove(io, "a/b/c/x", &err), LARDER_ENOTFOUND, &err);
    CHECK(io->ops->remove(io, "a", &err) < 0); /* a folder is no object */
    list_is(io, "", "a/y:1");
    CHECK_OK(io->ops->remove(io, "a/y", &err), &err);
    CHECK(stat(io->ops->local_root(io), &st) == 0);
    put(io, "top", "3");
    CHECK_OK(io->ops->remove(io, "top", &err), &err);
    CHECK(stat(io->ops->local_root(io), &st) == 0);
    io_close(io);
}

TEST(sync_names_what_is_not_there)
{
    struct store_io *io = open_tmp(0);
    struct larder_error err;

    put(io, "a/b/x", "1");
    CHECK_OK(io->ops->sync(io, "a/b", &err), &err);
    CHECK_OK(io->ops->sync(io, "a", &err), &err);
    CHECK_OK(io->ops->sync(io, "", &err), &err);
    CHECK_ERR(io->ops->sync(io, "gone", &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "/gone"));
    io_close(io);
}

/* ---- many files, few descriptors, several threads ---- */

enum { MANY = 200 };

struct reader { struct store_io *io; uint64_t seed; };

static void *read_many(void *arg)
{
    struct reader *r = arg;
    uint64_t state = r->seed;

    for (int i = 0; i < 400; i++) {
        char names[8][16], want[8][16], got[8][16] = {{0}};
        struct store_range ranges[8];
        size_t n = 1 + rng_below(&state, 8);
        for (size_t k = 0; k < n; k++) {
            unsigned file = (unsigned)rng_below(&state, MANY);
            snprintf(names[k], sizeof(names[k]), "f/%u", file);
            snprintf(want[k], sizeof(want[k]), "content %u", file);
            ranges[k] = (struct store_range){names[k], 0, got[k], strlen(want[k])};
        }
        struct larder_error err = {0};
        int rc = r->io->ops->read_ranges(r->io, ranges, n, &err);
        CHECK_OK(rc, &err);
        for (size_t k = 0; rc == 0 && k < n; k++)
            CHECK_STR(got[k], want[k]);
    }
    return NULL;
}

static void read_in_threads(struct store_io *io)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct reader readers[THREADS];

    for (uint64_t i = 0; i < THREADS; i++) {
        readers[i] = (struct reader){io, i};
        REQUIRE(pthread_create(&threads[i], NULL, read_many, &readers[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void make_many(struct store_io *io)
{
    char name[32], text[32];
    struct larder_error err;
    struct store_out *out;

    for (int i = 0; i < MANY; i++) { /* not put: one fsync of the folder will do */
        snprintf(name, sizeof(name), "f/%d", i);
        snprintf(text, sizeof(text), "content %d", i);
        REQUIRE_OK(io->ops->begin(io, name, &out, &err), &err);
        CHECK_OK(io->ops->write(out, text, strlen(text), &err), &err);
        CHECK_OK(io->ops->finish(out, &err), &err);
    }
    CHECK_OK(io->ops->sync(io, "f", &err), &err);
}

TEST(many_files_through_few_descriptors)
{
    struct store_io *io = open_tmp(3);

    make_many(io);
    read_in_threads(io);
    CHECK(fd_cache_open_count(((struct io_file *)io)->cache) <= 3);
    io_close(io);
}

TEST(many_files_at_the_descriptor_limit)
{
    struct store_io *io = open_tmp(1000);
    struct rlimit old, low;
    int fd = open("/dev/null", O_RDONLY);

    make_many(io);
    REQUIRE(fd >= 0 && getrlimit(RLIMIT_NOFILE, &old) == 0);
    low = old;
    low.rlim_cur = (rlim_t)fd + 5; /* fewer than there are threads */
    close(fd);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
    read_in_threads(io);
    put(io, "f/new", "and writing finds one too");
    list_is(io, "g", "");
    CHECK(fd_cache_open_count(((struct io_file *)io)->cache) <= 6);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    io_close(io);
}

TEST(no_descriptor_at_all_is_an_error)
{
    struct store_io *io = open_tmp(10);
    struct rlimit old, none;
    struct larder_error err = {0};
    char byte;

    put(io, "x", "1");
    REQUIRE(getrlimit(RLIMIT_NOFILE, &old) == 0);
    none = old;
    none.rlim_cur = 0;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    int rc = io_read(io, "x", 0, &byte, 1, &err);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
    CHECK_ERR(rc, LARDER_EIO, &err);
    CHECK_EQ(err.sys_errno, EMFILE);
    CHECK(strstr(err.message, "ulimit -n"));
    CHECK_OK(io_read(io, "x", 0, &byte, 1, &err), &err);
    io_close(io);
}

TEST_MAIN();
