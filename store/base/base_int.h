/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base_int.h - what the files of store/base and their tests share, and nobody else includes.
 */
#ifndef LARDER_STORE_BASE_INT_H
#define LARDER_STORE_BASE_INT_H

#include "store/base/base.h"

const char *crc32c_impl(void); /* what crc32c() uses here: "sse4.2 x3" or "table" */
/* crc32c() by tables alone, whatever the processor has. */
uint32_t crc32c_table(uint32_t crc, const void *data, size_t len);

/* One step of the walk for n values (a multiple of 16) in place, by the code for vectors of 0 (whatever the target
 * has), 256 or 512 bits. False, and nothing done, where the processor lacks them. */
bool perm_encrypt_as(int vector_bits, const struct perm *p, uint64_t *v, size_t n);

/* ---- limits.c ---- */

/* As cpu_count() and memory_available(), reading SYSROOT/proc/... and SYSROOT/<cgroup mount>/... ("" in earnest). */
unsigned limits_cpu_quota(const char *sysroot); /* CPUs that the cgroups' quotas come to, rounded up; UINT_MAX: none */
uint64_t limits_memory_available(const char *sysroot);

/* ---- fd_cache.c: descriptors of files being read ---- */

struct fd_cache;
struct fd_entry { /* a file open for reading; fd stays open until fd_cache_put */
    int fd;
    uint64_t dev, ino;
    unsigned refs;
    bool forgotten; /* no longer found by name */
    char *name;
    struct fd_entry *next_hash, *newer, *older; /* newer, older: while idle */
};
/* root: descriptor of the folder that names are relative to, borrowed; root_path: for messages, borrowed. */
int fd_cache_new(int root, const char *root_path, unsigned max, struct fd_cache **c, struct larder_error *err);
void fd_cache_free(struct fd_cache *c); /* NULL allowed; nothing is in use any more */
/* A thread holds one entry at a time: with descriptors short, get waits for another thread's put. */
int fd_cache_get(struct fd_cache *c, const char *name, struct fd_entry **e, struct larder_error *err);
void fd_cache_put(struct fd_cache *c, struct fd_entry *e);
void fd_cache_forget(struct fd_cache *c, const char *name);
/* Forgets name if what is open under it is another file than this: somebody replaced it. */
void fd_cache_forget_other(struct fd_cache *c, const char *name, uint64_t dev, uint64_t ino);
size_t fd_cache_shrink(struct fd_cache *c); /* closes what is idle; how many */
size_t fd_cache_open_count(struct fd_cache *c);

/* ---- io_file.c, io_out.c ---- */

struct io_file {
    struct store_io io;
    int root;           /* the folder; fixed while open */
    bool named_only;    /* pretend that O_TMPFILE is not there */
    char *path;         /* absolute */
    struct fd_cache *cache;
};
enum { IO_FILE_CREATE = 1, IO_FILE_NAMED_ONLY = 2 };
int io_file_open_flags(const char *path, unsigned flags, unsigned files_max, struct store_io **io, struct larder_error *err);
/* EINVAL unless name stays below the root: relative, no empty, "." or ".." component. */
int io_name_check(const char *name, struct larder_error *err);
/* err_sys for a failed call on root/name, with advice where errno allows any. Returns the code. */
int io_failed(const char *root, const char *name, int sys_errno, const char *verb, struct larder_error *err);
/* openat below the root with O_CLOEXEC; short of descriptors, gives up cached ones. -1 and errno. */
int io_file_openat(struct io_file *f, const char *name, int flags, unsigned mode);
/* Makes the folders that name lies in. 0 or an errno. */
int io_file_make_parents(struct io_file *f, const char *name);
/* Names in dir and in each folder above it, up to the root, are durable. dir_len bytes of dir; 0: the root alone. */
int io_file_sync_dirs(struct io_file *f, const char *dir, size_t dir_len, struct larder_error *err);
size_t io_parent_len(const char *name); /* "a/b/c" -> 3, "a" -> 0 */

int io_out_begin(struct store_io *io, const char *name, struct store_out **out, struct larder_error *err);
int io_out_write(struct store_out *out, const void *data, size_t len, struct larder_error *err);
int io_out_finish(struct store_out *out, struct larder_error *err);
void io_out_abort(struct store_out *out);
int io_out_put(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err);
int io_out_create_exclusive(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err);

#endif
