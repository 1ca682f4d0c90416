/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - one writer at a time on a dataset: an exclusive flock on ROOT/journal. Of a bucket, ROOT is the dataset's folder on this
 * machine (io_work_root): writers of one machine keep out of each other's way here, those of two meet at the commit.
 *
 * The kernel drops the lock with its holder, however that ends, so nothing stale is ever left. The file's content is the
 * holder's; an empty one means that nothing is to be resumed. Whoever finishes removes the file while it holds the lock; who
 * opened it before that has locked a file without a name then, notices (the name is gone or another file), and tries again.
 * So at most one process has locked the file that bears the name.
 *
 * Where the file system has no locks (some network ones) writing goes on without: the commit by exclusive creation still
 * lets one writer win.
 *
 * Any thread; a struct session belongs to one at a time. A forked child shares the lock until it closes or ends.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "store/store_int.h"

#define JOURNAL_MAX GIB

enum { PLACE_NAMES_MAX = 1000 }; /* of a bucket are looked at: a page of a listing */
enum { TRIES_MAX = 1000 }; /* each lost try means that another writer came and went */

/* The process that holds an flock on the file, from /proc/locks; 0: not to be found. Some file systems show another device there
 * than stat does, so a lock with the right inode alone is second choice. */
static long holder_pid(int fd)
{
    struct stat st;
    FILE *locks = fstat(fd, &st) == 0 ? fopen("/proc/locks", "re") : NULL;
    char line[256];
    long found = 0;

    while (locks && fgets(line, sizeof(line), locks)) {
        unsigned dev_major, dev_minor;
        unsigned long long inode;
        long pid;
        if (sscanf(line, "%*[^:]: FLOCK %*s WRITE %ld %x:%x:%llu", &pid, &dev_major, &dev_minor, &inode) != 4)
            continue;
        if (inode != st.st_ino || pid <= 0)
            continue;
        found = pid;
        if (dev_major == major(st.st_dev) && dev_minor == minor(st.st_dev))
            break;
    }
    if (locks)
        fclose(locks);
    return found;
}

static int busy(int fd, const char *where, struct larder_error *err)
{
    long pid = holder_pid(fd);

    if (pid > 0)
        return err_set(err, LARDER_EBUSY, "%s: another writer is at work, process %ld; wait for it or stop it", where, pid);
    return err_set(err, LARDER_EBUSY, "%s: another writer is at work; wait for it or stop it", where);
}

/* Whether fd is the file that root/journal names. */
static bool is_named(int root, int fd)
{
    struct stat mine, there;

    return fstat(fd, &mine) == 0 && mine.st_nlink > 0 && fstatat(root, "journal", &there, AT_SYMLINK_NOFOLLOW) == 0 &&
           mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

/* Opens and locks root/journal into *out. where: the dataset. */
static int lock_journal(int root, const char *path, const char *where, int *out, struct larder_error *err)
{
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        AUTO_FD int fd = openat(root, "journal", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
        if (fd < 0)
            return err_sys(err, err_code_of(errno), errno, "%s/journal: cannot open it, which writing to a dataset needs", path);
        int rc;
        do
            rc = flock(fd, LOCK_EX | LOCK_NB);
        while (rc != 0 && errno == EINTR);
        if (rc != 0 && errno == EWOULDBLOCK) {
            if (!is_named(root, fd))
                continue; /* its holder is just finishing */
            return busy(fd, where, err);
        }
        if (rc != 0 && errno != ENOLCK && errno != EOPNOTSUPP && errno != ENOSYS)
            return err_sys(err, LARDER_EIO, errno, "%s/journal: cannot lock it", path);
        if (is_named(root, fd)) {
            *out = fd;
            fd = -1;
            return LARDER_OK;
        }
    }
    return err_set(err, LARDER_EBUSY, "%s: other writers come and go too quickly; try again", where);
}

static int sync_folder(int fd, const char *path, struct larder_error *err)
{
    while (fsync(fd) != 0)
        if (errno != EINTR)
            return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP
                       ? LARDER_OK : err_sys(err, LARDER_EIO, errno, "%s: cannot sync the folder", path);
    return LARDER_OK;
}

int session_lock(struct store_io *io, struct session *s, bool *fresh, struct larder_error *err)
{
    struct larder_error why = {.code = LARDER_EIO};
    const char *path = io_work_root(io, &why);

    *s = (struct session){-1, NULL};
    if (!path) {
        if (err)
            *err = why;
        return why.code;
    }
    AUTO_FREE char *root_path = strdup(path);
    if (!root_path)
        return err_nomem(err, strlen(path) + 1, "path");
    AUTO_FD int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return err_sys(err, err_code_of(errno), errno, "%s: cannot open the folder", path);

    AUTO_FD int fd = -1;
    int rc = lock_journal(root, path, io_where(io), &fd, err);
    if (rc)
        return rc;
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_sys(err, LARDER_EIO, errno, "%s/journal: cannot look at it", path);
    if (!S_ISREG(st.st_mode))
        return err_set(err, LARDER_ECORRUPT, "%s/journal: not a regular file, remove it", path);
    if (st.st_size == 0) { /* what the holder writes and syncs is to be found again */
        rc = io_is_local(io) ? io->ops->sync(io, "", err) : sync_folder(root, path, err);
        if (rc)
            return rc;
    }
    *fresh = st.st_size == 0;
    s->fd = fd;
    s->root = root_path;
    fd = -1;
    root_path = NULL;
    return LARDER_OK;
}

int journal_text(const struct session *s, struct buf *text, struct larder_error *err)
{
    struct stat st;
    if (fstat(s->fd, &st))
        return err_sys(err, LARDER_EIO, errno, "%s/journal: cannot be read", s->root);
    if ((uint64_t)st.st_size > JOURNAL_MAX)
        return err_set(err, LARDER_ECORRUPT, "%s/journal: larger than 1 GiB: no journal; remove it", s->root);
    int rc = buf_reserve(text, (size_t)st.st_size, err);
    if (rc)
        return rc;
    ssize_t n = read_fully(s->fd, text->data + text->len, (size_t)st.st_size, 0);
    if (n < 0)
        return err_sys(err, LARDER_EIO, errno, "%s/journal: cannot be read", s->root);
    text->len += (size_t)n;
    return LARDER_OK;
}

bool journal_claims(const struct buf *text, const char *name)
{
    return text->len >= RUN_DIGITS && strlen(name) >= RUN_DIGITS && memmem(text->data, text->len, name, RUN_DIGITS);
}

void session_unlock(struct session *s, bool remove_journal)
{
    if (!s->root)
        return;
    if (remove_journal) {
        AUTO_FD int root = open(s->root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (root >= 0 && is_named(root, s->fd) && unlinkat(root, "journal", 0) == 0)
            fsync(root); /* before this a power cut can bring it back, as one just before the unlink would */
    }
    close(s->fd);
    free(s->root);
    *s = (struct session){-1, NULL};
}

/* ---- the place ---- */

/* What a dataset's folder may hold. */
static bool known_name(const char *name, size_t len)
{
    static const char *const known[] = {"", ".", "..", "journal", "larder.json", "manifests", "shards", "index", "lost+found"};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (strlen(known[i]) == len && !memcmp(known[i], name, len))
            return true;
    return !strncmp(name, ".tmp-", 5) || !strncmp(name, ".nfs", 4);
}

static int foreign(const char *where, const char *name, struct larder_error *err)
{
    return err_set(err, LARDER_EEXIST, "%.150s: holds '%.40s', so it is no dataset: give a new or empty folder", where, name);
}

struct looked { const char *where; unsigned names; struct larder_error *err; };

static int look(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    struct looked *l = user;
    (void)size;
    (void)mtime_s;
    if (!known_name(name, strcspn(name, "/")))
        return foreign(l->where, name, l->err);
    return ++l->names < PLACE_NAMES_MAX ? LARDER_OK : LARDER_END;
}

/* Of a folder only what lies in it is looked at. */
static int place_check_folder(const char *root, struct larder_error *err)
{
    DIR *d = opendir(root);
    int rc = LARDER_OK;
    if (!d)
        return err_sys(err, err_code_of(errno), errno, "%s: cannot be opened", root);
    for (struct dirent *e; !rc && (e = readdir(d));)
        if (!known_name(e->d_name, strlen(e->d_name)))
            rc = foreign(root, e->d_name, err);
    closedir(d);
    return rc;
}

int place_check(struct store_io *io, struct larder_error *err)
{
    uint64_t generation;
    int got = generation_newest(io, &generation, err);
    if (got != LARDER_ENOTFOUND)
        return got;
    if (io_is_local(io))
        return place_check_folder(io->ops->local_root(io), err);
    struct looked l = {.where = io_where(io), .err = err};
    got = io->ops->list(io, "", look, &l, err);
    return got == LARDER_END ? LARDER_OK : got;
}
