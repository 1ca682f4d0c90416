/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.h - the Nth allocation or the Nth system call fails.
 *
 * Programs in tests/fault are linked with -Wl,--wrap=NAME for the functions below (WRAPS in the Makefile), so that every
 * call from liblarder and from the test comes here first. Calls inside libc, RocksDB, zstd, libarchive and jansson do not:
 * they are not ours to handle. One file of each program includes this header.
 *
 *     for (long n = 1;; n++) {
 *         fault_arm(FAULT_ALLOC, n);          // the nth allocation from here on fails, with ENOMEM
 *         rc = the_operation(&err);
 *         if (!fault_disarm())                // it never came to n: the sweep is over
 *             break;
 *         CHECK(rc < 0 ...);                  // or it got by without: then its result must be right
 *     }
 *
 * FAULT_IO: open, pread, pwrite, fsync, rename, link, unlink, mkdir, fstat and their kin fail with EIO; every third write
 * that fails is a full disk instead (ENOSPC). FAULT_SHORT: the Nth read or write transfers half of what was asked, which is
 * legal and must be gone on from. FAULT_THREAD: pthread_create, EAGAIN.
 * Counting is over all threads; a sweep over an operation with threads is therefore not the same twice, but still covers.
 */
#ifndef FAULT_H
#define FAULT_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <stdio.h>
#include <dirent.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum fault_kind { FAULT_ALLOC, FAULT_IO, FAULT_SHORT, FAULT_THREAD, FAULT_KINDS };

static atomic_long fault_left[FAULT_KINDS]; /* calls until the failure; 0: disarmed */
static atomic_bool fault_hit;
static atomic_long fault_calls[FAULT_KINDS];
static const char *_Atomic fault_where; /* the function that was made to fail */

__attribute__((unused)) static void fault_arm(enum fault_kind kind, long nth)
{
    atomic_store(&fault_hit, false);
    atomic_store(&fault_where, NULL);
    atomic_store(&fault_left[kind], nth);
}

/* True when the failure took place. */
__attribute__((unused)) static bool fault_disarm(void)
{
    for (int k = 0; k < FAULT_KINDS; k++)
        atomic_store(&fault_left[k], 0);
    return atomic_load(&fault_hit);
}

/* Descriptors of this process. */
__attribute__((unused)) static int open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Function that failed last, for messages. */
__attribute__((unused)) static const char *fault_name(void)
{
    const char *name = atomic_load(&fault_where);

    return name ? name : "nothing";
}

static inline bool fault_now(enum fault_kind kind, const char *where)
{
    long left = atomic_load(&fault_left[kind]);

    atomic_fetch_add(&fault_calls[kind], 1);
    while (left > 0)
        if (atomic_compare_exchange_weak(&fault_left[kind], &left, left - 1))
            break;
    if (left != 1)
        return false;
    atomic_store(&fault_where, where);
    atomic_store(&fault_hit, true);
    return true;
}

#define FAULT_DECLARE(ret, name, ...)                                                                                 \
    ret __real_##name(__VA_ARGS__);                                                                                   \
    ret __wrap_##name(__VA_ARGS__);                                                                                   \
    ret __wrap_##name(__VA_ARGS__)

/* ---- allocations ---- */

FAULT_DECLARE(void *, malloc, size_t n)
{
    return fault_now(FAULT_ALLOC, "malloc") ? (errno = ENOMEM, NULL) : __real_malloc(n);
}
FAULT_DECLARE(void *, calloc, size_t n, size_t size)
{
    return fault_now(FAULT_ALLOC, "calloc") ? (errno = ENOMEM, NULL) : __real_calloc(n, size);
}
FAULT_DECLARE(void *, realloc, void *p, size_t n)
{
    return fault_now(FAULT_ALLOC, "realloc") ? (errno = ENOMEM, NULL) : __real_realloc(p, n);
}
FAULT_DECLARE(int, posix_memalign, void **p, size_t align, size_t n)
{
    return fault_now(FAULT_ALLOC, "posix_memalign") ? ENOMEM : __real_posix_memalign(p, align, n);
}
FAULT_DECLARE(void *, aligned_alloc, size_t align, size_t n)
{
    return fault_now(FAULT_ALLOC, "aligned_alloc") ? (errno = ENOMEM, NULL) : __real_aligned_alloc(align, n);
}
FAULT_DECLARE(char *, strdup, const char *s)
{
    return fault_now(FAULT_ALLOC, "strdup") ? (errno = ENOMEM, NULL) : __real_strdup(s);
}
FAULT_DECLARE(char *, strndup, const char *s, size_t n)
{
    return fault_now(FAULT_ALLOC, "strndup") ? (errno = ENOMEM, NULL) : __real_strndup(s, n);
}
int __wrap_asprintf(char **out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int __wrap_asprintf(char **out, const char *fmt, ...)
{
    va_list ap;
    int n;

    if (fault_now(FAULT_ALLOC, "asprintf"))
        return errno = ENOMEM, -1;
    va_start(ap, fmt);
    n = vasprintf(out, fmt, ap);
    va_end(ap);
    return n;
}
FAULT_DECLARE(void *, mmap, void *at, size_t len, int prot, int flags, int fd, off_t off)
{
    return fault_now(FAULT_ALLOC, "mmap") ? (errno = ENOMEM, MAP_FAILED)
                                          : __real_mmap(at, len, prot, flags, fd, off);
}

/* ---- threads ---- */

FAULT_DECLARE(int, pthread_create, pthread_t *t, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
    return fault_now(FAULT_THREAD, "pthread_create") ? EAGAIN : __real_pthread_create(t, attr, fn, arg);
}

/* ---- files ---- */

#define FAULT_IO_OR(call, name) (fault_now(FAULT_IO, name) ? (errno = EIO, -1) : (call))

FAULT_DECLARE(ssize_t, pread, int fd, void *buf, size_t n, off_t off)
{
    if (fault_now(FAULT_IO, "pread"))
        return errno = EIO, -1;
    return __real_pread(fd, buf, n > 1 && fault_now(FAULT_SHORT, "pread") ? n / 2 : n, off);
}
FAULT_DECLARE(ssize_t, preadv2, int fd, const struct iovec *iov, int n, off_t off, int flags)
{
    if (fault_now(FAULT_IO, "preadv2"))
        return errno = EIO, -1;
    if (iov[0].iov_len > 1 && fault_now(FAULT_SHORT, "preadv2")) {
        struct iovec half = {iov[0].iov_base, iov[0].iov_len / 2};
        return __real_preadv2(fd, &half, 1, off, flags);
    }
    return __real_preadv2(fd, iov, n, off, flags);
}
static inline ssize_t fault_write_error(void)
{
    errno = atomic_load(&fault_calls[FAULT_IO]) % 3 ? EIO : ENOSPC;
    return -1;
}
FAULT_DECLARE(ssize_t, write, int fd, const void *buf, size_t n)
{
    if (fd <= 2) /* the test's own output */
        return __real_write(fd, buf, n);
    if (fault_now(FAULT_IO, "write"))
        return fault_write_error();
    return __real_write(fd, buf, n > 1 && fault_now(FAULT_SHORT, "write") ? n / 2 : n);
}
static _Atomic unsigned fault_pwrite_ms; /* how long each takes, for disks that are slow */
FAULT_DECLARE(ssize_t, pwrite, int fd, const void *buf, size_t n, off_t off)
{
    if (fault_now(FAULT_IO, "pwrite"))
        return fault_write_error();
    unsigned ms = atomic_load(&fault_pwrite_ms);
    struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
    if (ms)
        nanosleep(&t, NULL);
    return __real_pwrite(fd, buf, n > 1 && fault_now(FAULT_SHORT, "pwrite") ? n / 2 : n, off);
}
FAULT_DECLARE(ssize_t, pwritev, int fd, const struct iovec *iov, int n, off_t off)
{
    if (fault_now(FAULT_IO, "pwritev"))
        return fault_write_error();
    for (unsigned ms = atomic_load(&fault_pwrite_ms); ms; ms = 0)
        nanosleep(&(struct timespec){ms / 1000, (long)(ms % 1000) * 1000000}, NULL);
    if (iov[0].iov_len > 1 && fault_now(FAULT_SHORT, "pwritev"))
        return __real_pwrite(fd, iov[0].iov_base, iov[0].iov_len / 2, off);
    return __real_pwritev(fd, iov, n, off);
}
int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list ap;
    mode_t mode = 0;

    va_start(ap, flags);
    if (flags & (O_CREAT | __O_TMPFILE))
        mode = va_arg(ap, mode_t);
    va_end(ap);
    return FAULT_IO_OR(__real_open(path, flags, mode), "open");
}
int __real_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...);
int __wrap_openat(int dir, const char *path, int flags, ...)
{
    va_list ap;
    mode_t mode = 0;

    va_start(ap, flags);
    if (flags & (O_CREAT | __O_TMPFILE))
        mode = va_arg(ap, mode_t);
    va_end(ap);
    return FAULT_IO_OR(__real_openat(dir, path, flags, mode), "openat");
}
FAULT_DECLARE(int, fsync, int fd)
{
    return FAULT_IO_OR(__real_fsync(fd), "fsync");
}
FAULT_DECLARE(int, sync_file_range, int fd, off64_t off, off64_t n, unsigned flags)
{
    return FAULT_IO_OR(__real_sync_file_range(fd, off, n, flags), "sync_file_range");
}
FAULT_DECLARE(int, fdatasync, int fd)
{
    return FAULT_IO_OR(__real_fdatasync(fd), "fdatasync");
}
FAULT_DECLARE(int, rename, const char *from, const char *to)
{
    return FAULT_IO_OR(__real_rename(from, to), "rename");
}
FAULT_DECLARE(int, renameat, int fd, const char *from, int fd2, const char *to)
{
    return FAULT_IO_OR(__real_renameat(fd, from, fd2, to), "renameat");
}
FAULT_DECLARE(int, renameat2, int fd, const char *from, int fd2, const char *to, unsigned flags)
{
    return FAULT_IO_OR(__real_renameat2(fd, from, fd2, to, flags), "renameat2");
}
FAULT_DECLARE(int, link, const char *from, const char *to)
{
    return FAULT_IO_OR(__real_link(from, to), "link");
}
FAULT_DECLARE(int, linkat, int fd, const char *from, int fd2, const char *to, int flags)
{
    return FAULT_IO_OR(__real_linkat(fd, from, fd2, to, flags), "linkat");
}
FAULT_DECLARE(int, unlink, const char *path)
{
    return FAULT_IO_OR(__real_unlink(path), "unlink");
}
FAULT_DECLARE(int, unlinkat, int fd, const char *path, int flags)
{
    return FAULT_IO_OR(__real_unlinkat(fd, path, flags), "unlinkat");
}
FAULT_DECLARE(int, ftruncate, int fd, off_t len)
{
    return FAULT_IO_OR(__real_ftruncate(fd, len), "ftruncate");
}
FAULT_DECLARE(int, mkdir, const char *path, mode_t mode)
{
    return FAULT_IO_OR(__real_mkdir(path, mode), "mkdir");
}
FAULT_DECLARE(int, mkdirat, int fd, const char *path, mode_t mode)
{
    return FAULT_IO_OR(__real_mkdirat(fd, path, mode), "mkdirat");
}
FAULT_DECLARE(int, fstat, int fd, struct stat *st)
{
    return FAULT_IO_OR(__real_fstat(fd, st), "fstat");
}
FAULT_DECLARE(int, fstatat, int fd, const char *path, struct stat *st, int flags)
{
    return FAULT_IO_OR(__real_fstatat(fd, path, st, flags), "fstatat");
}
FAULT_DECLARE(DIR *, fdopendir, int fd)
{
    return fault_now(FAULT_IO, "fdopendir") ? (errno = EIO, NULL) : __real_fdopendir(fd);
}
FAULT_DECLARE(int, flock, int fd, int how)
{
    return FAULT_IO_OR(__real_flock(fd, how), "flock");
}

#endif
