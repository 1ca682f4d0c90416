/* SPDX-License-Identifier: Apache-2.0 */
/* Everything runs twice: with nameless temporary files, and with named ones, as on file systems without O_TMPFILE. */
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "store/base/base_int.h"
#include "tests/unit/test.h"

static const unsigned modes[2] = {0, IO_FILE_NAMED_ONLY};
#define BOTH(mode) (size_t mode = 0; mode < 2; mode++)

static struct store_io *open_mode(size_t mode)
{
    struct larder_error err;
    struct store_io *io = NULL;

    REQUIRE_OK(io_file_open_flags(tmp_dir(), modes[mode], 0, &io, &err), &err);
    return io;
}

static int count_one(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    (void)name;
    (void)size;
    (void)mtime_s;
    ++*(int *)user;
    return 0;
}

static int count(struct store_io *io)
{
    struct larder_error err;
    int n = 0;

    CHECK_OK(io->ops->list(io, "", count_one, &n, &err), &err);
    return n;
}

static void content_is(struct store_io *io, const char *name, const void *want, size_t len)
{
    struct larder_error err;
    AUTO_BUF struct buf b = BUF_INIT;

    CHECK_OK(io_read_all(io, name, 64 * MIB, &b, &err), &err);
    CHECK_EQ(b.len, len);
    if (b.len == len)
        CHECK_MEM(b.data, want, len);
}

TEST(writes_of_all_sizes_come_out_as_one)
{
    enum { SIZE = 20 << 20 };
    static uint8_t data[SIZE];
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 65535, 65536, 65537, 1 << 20, (1 << 20) - 1, (1 << 20) + 1, 9 << 20};
    uint64_t state = 11;
    struct larder_error err;

    rng_fill(&state, data, SIZE);
    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        struct store_out *out;
        size_t at = 0;
        REQUIRE_OK(io->ops->begin(io, "shards/mixed", &out, &err), &err);
        while (at < SIZE) {
            size_t n = rng_below(&state, 3) ? rng_below(&state, 300000) : sizes[rng_below(&state, ARRAY_LEN(sizes))];
            n = MIN(n, SIZE - at);
            CHECK_OK(io->ops->write(out, data + at, n, &err), &err);
            at += n;
        }
        CHECK_OK(io->ops->finish(out, &err), &err);
        content_is(io, "shards/mixed", data, SIZE);
        for (size_t i = 0; i < ARRAY_LEN(sizes); i++) { /* each size alone, after one byte */
            char name[32];
            snprintf(name, sizeof(name), "one/%zu", i);
            REQUIRE_OK(io->ops->begin(io, name, &out, &err), &err);
            CHECK_OK(io->ops->write(out, data, 1, &err), &err);
            CHECK_OK(io->ops->write(out, data + 1, sizes[i], &err), &err);
            CHECK_OK(io->ops->write(out, data, 0, &err), &err);
            CHECK_OK(io->ops->finish(out, &err), &err);
            content_is(io, name, data, sizes[i] + 1);
        }
        CHECK_EQ(count(io), 1 + ARRAY_LEN(sizes));
        io_close(io);
    }
}

TEST(nothing_is_seen_before_finish)
{
    struct larder_error err;

    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        struct store_out *out;
        uint64_t size, mtime;
        REQUIRE_OK(io->ops->begin(io, "a/x", &out, &err), &err);
        CHECK_OK(io->ops->write(out, "hello", 5, &err), &err);
        CHECK_ERR(io->ops->stat(io, "a/x", &size, &mtime, &err), LARDER_ENOTFOUND, &err);
        CHECK_EQ(count(io), mode); /* the named temporary file */
        CHECK_OK(io->ops->finish(out, &err), &err);
        content_is(io, "a/x", "hello", 5);
        CHECK_EQ(count(io), 1);
        io_close(io);
    }
}

TEST(abort_leaves_nothing)
{
    static uint8_t big[3 << 20];
    struct larder_error err;

    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        struct store_out *out;
        REQUIRE_OK(io->ops->begin(io, "x", &out, &err), &err);
        io->ops->abort(out);
        REQUIRE_OK(io->ops->begin(io, "x", &out, &err), &err);
        CHECK_OK(io->ops->write(out, big, sizeof(big), &err), &err);
        CHECK_OK(io->ops->write(out, big, 7, &err), &err);
        io->ops->abort(out);
        io->ops->abort(NULL);
        CHECK_EQ(count(io), 0);
        io_close(io);
    }
}

TEST(finish_refuses_a_name_that_is_taken)
{
    struct larder_error err;

    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        struct store_out *first, *second;
        REQUIRE_OK(io->ops->begin(io, "d/x", &first, &err), &err);
        REQUIRE_OK(io->ops->begin(io, "d/x", &second, &err), &err);
        CHECK_OK(io->ops->write(first, "first", 5, &err), &err);
        CHECK_OK(io->ops->write(second, "second", 6, &err), &err);
        CHECK_OK(io->ops->finish(second, &err), &err);
        CHECK_ERR(io->ops->finish(first, &err), LARDER_EEXIST, &err);
        CHECK(strstr(err.message, "d/x: it is there already"));
        content_is(io, "d/x", "second", 6);
        CHECK_EQ(count(io), 1);
        CHECK_ERR(io->ops->create_exclusive(io, "d/x", "third", 5, &err), LARDER_EEXIST, &err);
        content_is(io, "d/x", "second", 6);
        CHECK_EQ(count(io), 1);
        io_close(io);
    }
}

TEST(create_and_put)
{
    static uint8_t big[(2 << 20) + 5];
    uint64_t state = 1;
    struct larder_error err;

    rng_fill(&state, big, sizeof(big));
    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        CHECK_OK(io->ops->create_exclusive(io, "manifests/1.json", "{}", 2, &err), &err);
        content_is(io, "manifests/1.json", "{}", 2);
        CHECK_OK(io->ops->create_exclusive(io, "empty", NULL, 0, &err), &err);
        content_is(io, "empty", "", 0);
        CHECK_OK(io->ops->put(io, "larder.json", "one", 3, &err), &err);
        content_is(io, "larder.json", "one", 3);
        CHECK_OK(io->ops->put(io, "larder.json", big, sizeof(big), &err), &err);
        content_is(io, "larder.json", big, sizeof(big));
        CHECK_OK(io->ops->put(io, "larder.json", NULL, 0, &err), &err);
        content_is(io, "larder.json", "", 0);
        CHECK_EQ(count(io), 3);
        CHECK(io->ops->put(io, "manifests", "x", 1, &err) < 0); /* a folder */
        CHECK(io->ops->put(io, "empty/x", "x", 1, &err) < 0);   /* below a file */
        CHECK(io->ops->create_exclusive(io, "manifests", "x", 1, &err) < 0);
        CHECK_EQ(count(io), 3);
        io_close(io);
    }
}

TEST(mode_follows_umask)
{
    struct larder_error err;

    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        struct stat st;
        char path[300];
        mode_t old = umask(027);
        CHECK_OK(io->ops->create_exclusive(io, "a/x", "1", 1, &err), &err);
        CHECK_OK(io->ops->put(io, "a/y", "1", 1, &err), &err);
        umask(old);
        snprintf(path, sizeof(path), "%s/a/x", io->ops->local_root(io));
        CHECK(stat(path, &st) == 0);
        CHECK_EQ(st.st_mode & 0777, 0640);
        path[strlen(path) - 1] = 'y';
        CHECK(stat(path, &st) == 0);
        CHECK_EQ(st.st_mode & 0777, 0640);
        io_close(io);
    }
}

/* In a child: limits on file size bind the whole process. */
static int write_beyond_limit(struct store_io *io)
{
    static uint8_t data[64 << 10];
    struct rlimit limit = {1 << 20, 1 << 20};
    struct larder_error err = {0}, again = {0};
    struct store_out *out;
    int rc = 0;

    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit))
        return 10;
    for (size_t piece = 1000; piece <= sizeof(data); piece = piece == 1000 ? sizeof(data) : piece + 1) {
        if (io->ops->begin(io, "shards/x", &out, &err))
            return 11;
        for (size_t at = 0; at < 3u << 20 && rc == 0; at += piece)
            rc = io->ops->write(out, data, piece, &err);
        if (rc != LARDER_EIO || err.sys_errno != EFBIG || !strstr(err.message, "shards/x"))
            return 12;
        if (io->ops->write(out, data, 1, &again) != LARDER_EIO || strcmp(err.message, again.message) != 0)
            return 13;
        again.message[0] = '\0';
        if (io->ops->finish(out, &again) != LARDER_EIO || strcmp(err.message, again.message) != 0)
            return 14;
        rc = 0;
    }
    /* a failure that comes to light only in finish */
    if (io->ops->begin(io, "shards/x", &out, &err))
        return 15;
    for (size_t at = 0; at < (1u << 20) + 1000; at += 1000)
        if (io->ops->write(out, data, 1000, &err))
            return 16;
    if (io->ops->finish(out, &err) != LARDER_EIO || err.sys_errno != EFBIG)
        return 17;
    static uint8_t big[2 << 20];
    if (io->ops->put(io, "hint", big, sizeof(big), &err) != LARDER_EIO)
        return 18;
    if (io->ops->create_exclusive(io, "m/1", big, sizeof(big), &err) != LARDER_EIO)
        return 19;
    return 0;
}

TEST(failing_writes_leave_no_file)
{
    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        struct larder_error err;
        int status;

        CHECK_OK(io->ops->put(io, "hint", "old", 3, &err), &err);
        pid_t pid = fork();
        if (pid == 0)
            _exit(write_beyond_limit(io));
        REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), 0);
        CHECK_EQ(count(io), 1);
        content_is(io, "hint", "old", 3);
        io_close(io);
    }
}

TEST(killed_writer_leaves_no_object)
{
    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        struct larder_error err;
        uint64_t size, mtime;
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            struct store_out *out;
            if (io->ops->begin(io, "a/x", &out, NULL) || io->ops->write(out, "hello", 5, NULL))
                _exit(1);
            raise(SIGKILL);
        }
        REQUIRE(pid > 0 && waitpid(pid, &status, 0) == pid);
        CHECK(WIFSIGNALED(status));
        CHECK_ERR(io->ops->stat(io, "a/x", &size, &mtime, &err), LARDER_ENOTFOUND, &err);
        CHECK_EQ(count(io), mode); /* named: .tmp-... waits for gc */
        io_close(io);
    }
}

TEST(folder_that_vanishes_is_made_again)
{
    struct larder_error err;

    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        struct store_out *out;
        char path[300];
        if (mode == 1) { /* a folder with the temporary file in it does not vanish */
            io_close(io);
            continue;
        }
        REQUIRE_OK(io->ops->begin(io, "a/b/x", &out, &err), &err);
        CHECK_OK(io->ops->write(out, "1", 1, &err), &err);
        snprintf(path, sizeof(path), "%s/a/b", io->ops->local_root(io));
        CHECK_EQ(rmdir(path), 0);
        path[strlen(path) - 2] = '\0';
        CHECK_EQ(rmdir(path), 0);
        CHECK_OK(io->ops->finish(out, &err), &err);
        content_is(io, "a/b/x", "1", 1);
        io_close(io);
    }
}

struct churner { struct store_io *io; int id; };

static void *churn(void *arg)
{
    struct churner *c = arg;
    struct larder_error err = {0};
    char name[32];

    for (int i = 0; i < 40; i++) {
        struct store_out *out;
        snprintf(name, sizeof(name), "d/e/%d-%d", c->id, i);
        int rc = c->io->ops->begin(c->io, name, &out, &err);
        CHECK_OK(rc, &err);
        if (rc)
            continue;
        CHECK_OK(c->io->ops->write(out, name, sizeof(name), &err), &err);
        CHECK_OK(c->io->ops->finish(out, &err), &err);
        content_is(c->io, name, name, sizeof(name));
        CHECK_OK(c->io->ops->remove(c->io, name, &err), &err);
    }
    return NULL;
}

TEST(writers_and_removers_side_by_side)
{
    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        pthread_t threads[4];
        struct churner churners[4];
        for (int i = 0; i < 4; i++) {
            churners[i] = (struct churner){io, i};
            REQUIRE(pthread_create(&threads[i], NULL, churn, &churners[i]) == 0);
        }
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        CHECK_EQ(count(io), 0);
        io_close(io);
    }
}

struct racer { struct store_io *io; atomic_int *won; };

static void *race(void *arg)
{
    struct racer *r = arg;
    struct larder_error err;

    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof(name), "manifests/%d", i);
        int rc = r->io->ops->create_exclusive(r->io, name, &i, sizeof(i), &err);
        CHECK(rc == LARDER_OK || rc == LARDER_EEXIST);
        atomic_fetch_add(r->won, rc == LARDER_OK);
    }
    return NULL;
}

TEST(exclusive_creation_has_one_winner)
{
    for BOTH(mode) {
        struct store_io *io = open_mode(mode);
        pthread_t threads[4];
        atomic_int won = 0;
        struct racer r = {io, &won};
        for (int i = 0; i < 4; i++)
            REQUIRE(pthread_create(&threads[i], NULL, race, &r) == 0);
        for (int i = 0; i < 4; i++)
            pthread_join(threads[i], NULL);
        CHECK_EQ(atomic_load(&won), 20);
        CHECK_EQ(count(io), 20);
        io_close(io);
    }
}

TEST_MAIN();
