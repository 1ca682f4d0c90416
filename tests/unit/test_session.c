/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "store/store.h"
#include "tests/model/sim_s3.h"
#include "tests/unit/test.h"

static struct store_io *open_dir(const char *dir)
{
    struct larder_error err;
    struct store_io *io = NULL;

    REQUIRE_OK(io_file_open(dir, false, 0, &io, &err), &err);
    return io;
}

TEST(journal_tells_fresh_from_interrupted)
{
    const char *dir = tmp_dir();
    struct store_io *io = open_dir(dir);
    struct larder_error err;
    struct session s;
    bool fresh = false;
    char path[300];
    struct stat st;

    snprintf(path, sizeof(path), "%s/journal", dir);
    REQUIRE_OK(session_lock(io, &s, &fresh, &err), &err);
    CHECK(fresh);
    CHECK_STR(s.root, dir);
    CHECK_EQ(write(s.fd, "work", 4), 4);
    session_unlock(&s, false);
    CHECK(s.root == NULL && s.fd == -1);
    session_unlock(&s, true); /* of nothing: nothing */
    CHECK(stat(path, &st) == 0 && st.st_size == 4);

    REQUIRE_OK(session_lock(io, &s, &fresh, &err), &err);
    CHECK(!fresh);
    char text[5] = "";
    CHECK_EQ(read(s.fd, text, 4), 4);
    CHECK_STR(text, "work");
    session_unlock(&s, true);
    CHECK(stat(path, &st) != 0 && errno == ENOENT);

    REQUIRE_OK(session_lock(io, &s, &fresh, &err), &err);
    CHECK(fresh);
    session_unlock(&s, true);
    io_close(io);
}

TEST(second_writer_is_told_who_is_first)
{
    struct store_io *io = open_dir(tmp_dir());
    struct larder_error err;
    struct session s, other;
    bool fresh = false;
    char want[400];
    int pipes[2], status;

    REQUIRE_OK(session_lock(io, &s, &fresh, &err), &err);
    fresh = false;
    CHECK_ERR(session_lock(io, &other, &fresh, &err), LARDER_EBUSY, &err);
    CHECK(!fresh && other.root == NULL && other.fd == -1);
    snprintf(want, sizeof(want), "%s: another writer is at work, process %d; wait for it or stop it",
             io->ops->local_root(io), (int)getpid());
    if (access("/proc/locks", R_OK) == 0)
        CHECK_STR(err.message, want);
    session_unlock(&other, true); /* does not disturb the holder */
    CHECK_ERR(session_lock(io, &other, &fresh, &err), LARDER_EBUSY, &err);
    session_unlock(&s, true);

    REQUIRE(pipe(pipes) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte = session_lock(io, &s, &fresh, NULL) == 0;
        if (write(pipes[1], &byte, 1) == 1)
            pause();
        _exit(0);
    }
    char byte = 0;
    REQUIRE(pid > 0 && read(pipes[0], &byte, 1) == 1 && byte == 1);
    CHECK_ERR(session_lock(io, &other, &fresh, &err), LARDER_EBUSY, &err);
    snprintf(want, sizeof(want), "process %d;", (int)pid);
    if (access("/proc/locks", R_OK) == 0)
        CHECK(strstr(err.message, want));
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_OK(session_lock(io, &s, &fresh, &err), &err); /* nothing stale is left */
    CHECK(fresh);
    session_unlock(&s, true);
    close(pipes[0]);
    close(pipes[1]);
    io_close(io);
}

/* Each locks, counts up a file that only the lock protects, and leaves with or without the journal. */
static int come_and_go(const char *dir, int times)
{
    struct store_io *io = NULL;
    struct session s;
    bool fresh;
    char path[300];

    if (io_file_open(dir, false, 0, &io, NULL))
        return 1;
    snprintf(path, sizeof(path), "%s/count", dir);
    for (int done = 0; done < times;) {
        int rc = session_lock(io, &s, &fresh, NULL);
        if (rc == LARDER_EBUSY) {
            usleep(50);
            continue;
        }
        if (rc)
            return 2;
        int fd = open(path, O_RDWR | O_CREAT, 0666), n = 0;
        if (fd < 0 || pread(fd, &n, sizeof(n), 0) < 0)
            return 3;
        n++;
        usleep(20);
        if (pwrite(fd, &n, sizeof(n), 0) != sizeof(n))
            return 4;
        close(fd);
        session_unlock(&s, done++ % 3 != 0);
    }
    io_close(io);
    return 0;
}

TEST(one_at_a_time_although_the_file_comes_and_goes)
{
    enum { CHILDREN = 4, TIMES = 40 };
    const char *dir = tmp_dir();
    pid_t pids[CHILDREN];
    char path[300];
    int n = 0, status;

    for (int i = 0; i < CHILDREN; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            _exit(come_and_go(dir, TIMES));
        REQUIRE(pids[i] > 0);
    }
    for (int i = 0; i < CHILDREN; i++) {
        REQUIRE(waitpid(pids[i], &status, 0) == pids[i]);
        CHECK_EQ(status, 0);
    }
    snprintf(path, sizeof(path), "%s/count", dir);
    int fd = open(path, O_RDONLY);
    CHECK_EQ(read(fd, &n, sizeof(n)), sizeof(n));
    close(fd);
    CHECK_EQ(n, CHILDREN * TIMES);
}

static const char *no_root(struct store_io *io)
{
    (void)io;
    return NULL;
}

TEST(only_local_folders)
{
    static const struct store_io_ops ops = {.local_root = no_root};
    struct store_io io = {.ops = &ops};
    struct larder_error err;
    struct session s;
    bool fresh;

    CHECK_ERR(session_lock(&io, &s, &fresh, &err), LARDER_EINVAL, &err);
    session_unlock(&s, true);
}

TEST(odd_journals)
{
    const char *dir = tmp_dir();
    struct store_io *io = open_dir(dir);
    struct larder_error err;
    struct session s;
    bool fresh;
    char path[300];

    snprintf(path, sizeof(path), "%s/journal", dir);
    REQUIRE(mkdir(path, 0777) == 0);
    CHECK_ERR(session_lock(io, &s, &fresh, &err), LARDER_EIO, &err);
    CHECK(strstr(err.message, path));
    REQUIRE(rmdir(path) == 0);
    REQUIRE(symlink("/etc/hostname", path) == 0); /* what it names is not ours to write */
    CHECK_ERR(session_lock(io, &s, &fresh, &err), LARDER_EIO, &err);
    REQUIRE(unlink(path) == 0);
    REQUIRE(mkfifo(path, 0600) == 0);
    CHECK_ERR(session_lock(io, &s, &fresh, &err), LARDER_ECORRUPT, &err);
    CHECK(s.fd == -1 && s.root == NULL);
    io_close(io);
}

TEST(of_a_bucket)
{
    struct sim_bucket *b = sim_bucket_new();
    const char *one = tmp_dir(), *two = tmp_dir();
    struct sim_io *a = sim_open(b, 1, one), *same = sim_open(b, 2, one), *elsewhere = sim_open(b, 3, two), *none = sim_open(b, 4, NULL);
    struct larder_error err;
    struct session s, t;
    bool fresh;

    REQUIRE_OK(session_lock(&a->io, &s, &fresh, &err), &err);
    CHECK_STR(s.root, one);
    CHECK_ERR(session_lock(&same->io, &t, &fresh, &err), LARDER_EBUSY, &err);
    CHECK(strstr(err.message, "s3://sim/data: another writer") != NULL);
    REQUIRE_OK(session_lock(&elsewhere->io, &t, &fresh, &err), &err); /* the commit decides */
    session_unlock(&t, true);
    CHECK_ERR(session_lock(&none->io, &t, &fresh, &err), LARDER_EIO, &err);
    session_unlock(&s, true);
    CHECK_EQ(a->trips, 0);
    sim_store(b, "manifests-of-something-else", "x", 1);
    CHECK_ERR(place_check(&a->io, &err), LARDER_EEXIST, &err);
    CHECK(strstr(err.message, "manifests-of-something-else") != NULL);
    sim_drop(b, "manifests-of-something-else");
    for (int i = 0; i < 5000; i++) { /* of a run elsewhere; not all of it is looked at */
        char name[40];
        snprintf(name, sizeof(name), "shards/%d", i);
        sim_store(b, name, "x", 1);
    }
    CHECK_OK(place_check(&a->io, &err), &err);
    CHECK(a->lists < 30);
    struct sim_io *all[] = {a, same, elsewhere, none};
    for (int i = 0; i < 4; i++)
        io_close(&all[i]->io);
    sim_bucket_free(b);
}

TEST_MAIN();
