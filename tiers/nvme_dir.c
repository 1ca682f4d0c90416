/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_dir.c - the directory of an NVMe cache: its lock, its files, and what `larder cache info|clear` needs of it.
 *
 * The lock is a flock, which lives as long as any descriptor of its open file: those of all processes of a sharing group
 * (share.c hands it on, and closes what a forked child inherits, or a cache would stay locked as long as some worker of a process
 * that was killed). Its text says who they are, a line for each member's slot; it is for messages only.
 *
 * Files that are not the cache's own are never opened, only counted: the limit is on all the directory holds.
 *
 * Threads: any; one at a time for one cache.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/nvme_int.h"

#define NOTE_BYTES 12u

/* ---- the lock ---- */

long nvme_lock_holder(int fd)
{
    char text[SHARE_PROCESSES_MAX * NOTE_BYTES + 1], *at = text, *end;
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);
    for (ssize_t i = 0; i < n; i++)
        text[i] = text[i] >= '0' && text[i] <= '9' ? text[i] : ' ';
    text[MAX(n, 0)] = '\0';
    for (;; at = end) {
        long pid = strtol(at, &end, 10);
        if (end == at)
            return 0;
        if (pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM))
            return pid;
    }
}

void nvme_lock_note(int fd, unsigned slot, bool here)
{
    char text[NOTE_BYTES + 1];
    snprintf(text, sizeof(text), here ? "%-11ld\n" : "%11.0ld\n", here ? (long)getpid() : 0);
    if (pwrite(fd, text, NOTE_BYTES, (off_t)(slot * NOTE_BYTES)) != NOTE_BYTES) {
        /* A full disk: the name is for a message only. */
    }
}

static int try_lock(int fd, const char *dir, struct larder_error *err)
{
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            return err_sys(err, LARDER_EIO, errno, "%s: flock", dir);
        long pid = nvme_lock_holder(fd);
        return pid > 0 ? err_set(err, LARDER_EBUSY, "%s: the cache is in use by process %ld", dir, pid)
                       : err_set(err, LARDER_EBUSY, "%s: the cache is in use by another process", dir);
    }
    if (ftruncate(fd, 0) != 0) {
        /* As above. */
    }
    return LARDER_OK;
}

int nvme_lock_take(int dir_fd, const char *dir, int *out, struct larder_error *err)
{
    AUTO_FD int fd = openat(dir_fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    int rc = fd < 0 ? err_sys(err, LARDER_EIO, errno, "%s/lock: cannot be opened", dir) : try_lock(fd, dir, err);
    *out = rc ? -1 : fd;
    if (!rc)
        fd = -1;
    return rc;
}

/* ---- files ---- */

void nvme_segment_name(unsigned segment, char name[16]) { snprintf(name, 16, "seg-%06u", segment); }

int nvme_segment_number(const char *name)
{
    int n = 0;
    if (strncmp(name, "seg-", 4) != 0 || strlen(name) != 10)
        return -1;
    for (const char *p = name + 4; *p; p++) {
        if (*p < '0' || *p > '9')
            return -1;
        n = n * 10 + (*p - '0');
    }
    return n;
}

int nvme_segment_open(struct nvme *n, unsigned segment, bool create)
{
    char name[16];
    int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0);
    nvme_segment_name(segment, name);
    int fd = openat(n->dir_fd, name, flags | (n->direct ? O_DIRECT : 0), 0666);
    if (fd < 0 && errno == EINVAL && n->direct) {
        n->direct = false;
        fd = openat(n->dir_fd, name, flags, 0666);
    }
    return fd < 0 ? -errno : fd;
}

/* A file system that opens with O_DIRECT and then wants another alignment: buffered from now on. */
static bool undirect(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_DIRECT) && fcntl(fd, F_SETFL, flags & ~O_DIRECT) == 0;
}

bool nvme_pread(int fd, void *buf, size_t len, uint64_t offset)
{
    for (size_t done = 0; done < len;) {
        ssize_t got = pread(fd, (uint8_t *)buf + done, len - done, (off_t)(offset + done));
        if (got < 0 && (errno == EINTR || (errno == EINVAL && undirect(fd))))
            continue;
        if (got <= 0) {
            if (got == 0)
                errno = ENODATA;
            return false;
        }
        done += (size_t)got;
        if (done % NVME_PAGE && done < len)
            undirect(fd); /* the rest begins in the middle of a page */
    }
    return true;
}

int nvme_pwrite(struct nvme *n, int fd, const void *buf, size_t len, uint64_t offset)
{
    unsigned torn = 0;
    for (size_t done = 0; done < len;) {
        ssize_t put = pwrite(fd, (const uint8_t *)buf + done, len - done, (off_t)(offset + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EINVAL && undirect(fd)) {
            n->direct = false;
            continue;
        }
        if (put <= 0 || torn > 100)
            return put < 0 ? -errno : -EIO;
        done += (size_t)put;
        if (done % NVME_PAGE && done < len) { /* direct writes are whole pages: write the torn one again */
            done = round_down(done, NVME_PAGE);
            torn++;
        }
    }
    return 0;
}

int nvme_checkpoint_save(int dir_fd, const uint8_t *p, size_t len)
{
    int fd = openat(dir_fd, "checkpoint.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666), rc = 0;
    if (fd < 0)
        return -errno;
    for (size_t done = 0; done < len && !rc;) {
        ssize_t put = pwrite(fd, p + done, len - done, (off_t)done);
        if (put > 0)
            done += (size_t)put;
        else if (put == 0 || errno != EINTR)
            rc = put ? -errno : -EIO;
    }
    if (!rc && (fdatasync(fd) != 0 || renameat(dir_fd, "checkpoint.new", dir_fd, "checkpoint") != 0))
        rc = -errno;
    if (rc)
        unlinkat(dir_fd, "checkpoint.new", 0);
    close(fd);
    return rc;
}

size_t nvme_checkpoint_load(int dir_fd, uint8_t *p)
{
    AUTO_FD int fd = openat(dir_fd, "checkpoint", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 || st.st_size > (off_t)NVME_CHECKPOINT_MAX ||
        !nvme_pread(fd, p, (size_t)st.st_size, 0))
        return 0;
    return (size_t)st.st_size;
}
