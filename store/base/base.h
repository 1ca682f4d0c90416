/* SPDX-License-Identifier: Apache-2.0 */
/*
 * base.h - the door of store/base: what every layer stands on and nothing about samples.
 *
 * Errors, cleanup guards, little-endian access, buffers, CRC32C, hashing, the keyed bijection, external
 * sorting, JSON, and struct store_io with its implementation over a directory.
 */
#ifndef LARDER_STORE_BASE_H
#define LARDER_STORE_BASE_H

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "loader/larder.h"

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

static inline uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }
static inline uint64_t round_down(uint64_t n, uint64_t to) { return n / to * to; }

/* ---- errors (err.c) ---- */

/* Fill *err (NULL allowed) and return code. err_sys adds ": strerror" and sets sys_errno; err_nomem is ENOMEM. */
int err_set(struct larder_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_sys(struct larder_error *err, int code, int sys_errno, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
int err_nomem(struct larder_error *err, size_t bytes, const char *what);
/* The code for an errno: ENOENT -> ENOTFOUND, EEXIST -> EEXIST, ENOMEM -> ENOMEM, else EIO. */
int err_code_of(int sys_errno);
/* Put "prefix: " before the message that is there. Returns err->code (or code when err is NULL). */
int err_prefix(struct larder_error *err, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Key bytes as printable text for messages: at most 60 characters, others as \xNN. Returns out. */
const char *key_text(const void *key, size_t len, char out[256]);

/* ---- guards: locals that clean themselves ---- */

static inline void guard_free(void *p) { free(*(void **)p); }
void guard_fd(int *fd);
#define AUTO_FREE __attribute__((cleanup(guard_free)))
#define AUTO_FD __attribute__((cleanup(guard_fd)))

/* realloc an array to hold `want` elements, growing by half; NULL-safe. Returns 0 or LARDER_ENOMEM. */
int grow_array(void **array, size_t *cap, size_t want, size_t elem, struct larder_error *err);
#define GROW(array, cap, want, err) grow_array((void **)&(array), &(cap), (want), sizeof(*(array)), (err))

/* Arrays of n malloc'd strings. free takes NULL; copy leaves *out NULL on failure. */
void strings_free(char **strings, size_t n);
int strings_copy(char *const *strings, size_t n, char ***out, struct larder_error *err);
void *bytes_dup(const void *data, size_t len); /* with a NUL behind it; NULL: out of memory */
/* The order of keys: bytewise, a prefix first. */
static inline int bytes_cmp(const void *a, size_t a_len, const void *b, size_t b_len)
{
    int c = memcmp(a, b, MIN(a_len, b_len));
    return c ? c : a_len < b_len ? -1 : a_len > b_len;
}

/* ---- little-endian (header only) ---- */

static inline uint16_t get_u16(const void *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline uint32_t get_u32(const void *p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint64_t get_u64(const void *p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline void put_u16(void *p, uint16_t v) { memcpy(p, &v, 2); }
static inline void put_u32(void *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void put_u64(void *p, uint64_t v) { memcpy(p, &v, 8); }
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "larder's formats are little-endian; add byte swaps to get_/put_ before building here"
#endif

/* ---- growable buffer (buf.c) ---- */

struct buf { uint8_t *data; size_t len, cap; };
#define BUF_INIT {NULL, 0, 0}
int buf_reserve(struct buf *b, size_t extra, struct larder_error *err); /* room for extra more bytes */
int buf_append(struct buf *b, const void *data, size_t len, struct larder_error *err);
int buf_printf(struct buf *b, struct larder_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void buf_release(struct buf *b); /* also an AUTO guard */
#define AUTO_BUF __attribute__((cleanup(buf_release)))

/* ---- checksums and hashes (crc32c.c, hash.c) ---- */

/* CRC32C (Castagnoli) of data continued from crc (0 to begin). SSE4.2: three streams at once; else tables. */
uint32_t crc32c(uint32_t crc, const void *data, size_t len);
/* The CRC of A||B from crc(A), crc(B) and B's length. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b);
uint64_t hash64(uint64_t seed, const void *data, size_t len); /* XXH3 */
void hash128(uint64_t seed, const void *data, size_t len, uint64_t out[2]); /* XXH3, both halves */
int random_bytes(void *out, size_t len, struct larder_error *err);
void hex_encode(const void *data, size_t len, char *out); /* 2*len characters and NUL */
bool hex_decode(const char *text, size_t text_len, void *out, size_t len); /* exactly 2*len digits */

/* ---- keyed bijection on [0, n) (perm.c): pure, O(1) memory ---- */

/* 6-round Feistel network with cycle walking. The same (key, tweak, n) gives the same permutation for ever. */
struct perm { uint64_t n, mask_l, mask_r; uint32_t bits_l, bits_r; uint64_t round_key[6]; };
void perm_init(struct perm *p, uint64_t key, uint64_t tweak, uint64_t n); /* n >= 1 */
uint64_t perm_at(const struct perm *p, uint64_t position);      /* position -> value */
uint64_t perm_inverse(const struct perm *p, uint64_t value);    /* value -> position */
void perm_range(const struct perm *p, uint64_t first, size_t count, uint64_t *out); /* perm_at of a run, batched */
void perm_map(const struct perm *p, uint64_t *v, size_t n);     /* perm_at of any positions, in place, batched */

/* ---- external sort (extsort.c) ---- */

/* Sorts byte strings (key, then payload) by memcmp of the key, then by order of addition, within a memory budget;
 * beyond it, sorted runs go to unnamed temporary files in `dir` and are merged. One thread. */
struct extsort;
int extsort_new(const char *dir, size_t budget_bytes, struct extsort **s, struct larder_error *err);
int extsort_add(struct extsort *s, const void *key, size_t key_len, const void *payload, size_t payload_len,
                struct larder_error *err); /* key_len, payload_len < 64 KiB */
int extsort_sort(struct extsort *s, struct larder_error *err); /* no more adds after this */
/* LARDER_OK and the next item (borrowed until the next call), LARDER_END after the last, or an error. */
int extsort_next(struct extsort *s, const void **key, size_t *key_len, const void **payload, size_t *payload_len,
                 struct larder_error *err);
void extsort_free(struct extsort *s);

/* ---- JSON (json.c, sole user of jansson) ---- */

struct json; /* a value; all but json_parse and json_new_* give borrowed ones */
struct json *json_parse(const void *text, size_t len, const char *what, struct larder_error *err);
void json_free(struct json *j);
static inline void guard_json(struct json **j) { json_free(*j); }
#define AUTO_JSON __attribute__((cleanup(guard_json)))
/* Typed access; a missing or wrong member is LARDER_ECORRUPT "what: member 'key' ...". */
int json_get_u64(const struct json *obj, const char *key, const char *what, uint64_t *out, struct larder_error *err);
int json_get_str(const struct json *obj, const char *key, const char *what, const char **out, struct larder_error *err);
int json_get_hex(const struct json *obj, const char *key, const char *what, void *out, size_t len, struct larder_error *err);
int json_get_array(const struct json *obj, const char *key, const char *what, const struct json **out, struct larder_error *err);
bool json_has(const struct json *obj, const char *key);
size_t json_len(const struct json *array);
int json_at_u64(const struct json *array, size_t i, const char *what, uint64_t *out, struct larder_error *err);
int json_at_str(const struct json *array, size_t i, const char *what, const char **out, struct larder_error *err);
int json_at_array(const struct json *array, size_t i, const char *what, const struct json **out, struct larder_error *err);
int json_at_object(const struct json *array, size_t i, const char *what, const struct json **out, struct larder_error *err);
struct json *json_new_object(void); /* NULL: out of memory; the setters accept NULL and return ENOMEM */
struct json *json_new_array(void);
int json_set_u64(struct json *obj, const char *key, uint64_t v);          /* v <= INT64_MAX */
int json_set_str(struct json *obj, const char *key, const char *v);       /* EINVAL when not UTF-8 */
int json_set_hex(struct json *obj, const char *key, const void *v, size_t len);
int json_set(struct json *obj, const char *key, struct json *moved);
int json_add_u64(struct json *array, uint64_t v);
int json_add_str(struct json *array, const char *v);
int json_add(struct json *array, struct json *moved);
int json_dump(const struct json *j, struct buf *out, struct larder_error *err); /* compact, members in order set */

/* ---- struct store_io: all of the store's I/O ---- */

struct store_io;
struct store_out; /* an object being written; invisible until finish */

struct store_range { const char *name; uint64_t offset; void *buf; size_t len; };
/* A whole object of at most max bytes, appended to *out; rc is LARDER_OK or ENOTFOUND. */
struct store_whole { const char *name; size_t max; struct buf *out; int rc; };

typedef int store_list_fn(void *user, const char *name, uint64_t size, uint64_t mtime_s); /* nonzero: stop, returned */

/* Names are '/'-separated, relative to the dataset. All functions are thread-safe; a store_out belongs to one
 * thread at a time. What returns LARDER_OK is durable, except store_out writes before finish. */
struct store_io_ops {
    /* Reads n ranges, all or an error: ENOTFOUND (no such object), ECORRUPT (it ends before the range), EIO. */
    int (*read_ranges)(struct store_io *io, const struct store_range *ranges, size_t n, struct larder_error *err);
    /* Reads n whole objects, each as it was at one moment, together and without asking for their sizes first. One that is not there is
     * ENOTFOUND in its rc and no failure. ECORRUPT: larger than its max. NULL: io_read_whole does it by stat and read_ranges. */
    int (*read_whole)(struct store_io *io, struct store_whole *objects, size_t n, struct larder_error *err);
    int (*stat)(struct store_io *io, const char *name, uint64_t *size, uint64_t *mtime_s, struct larder_error *err);
    int (*put)(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err); /* atomic replace */
    int (*create_exclusive)(struct store_io *io, const char *name, const void *data, size_t len, struct larder_error *err); /* EEXIST */
    int (*list)(struct store_io *io, const char *prefix, store_list_fn *fn, void *user, struct larder_error *err); /* files below prefix/, recursive */
    int (*remove)(struct store_io *io, const char *name, struct larder_error *err); /* and folders left empty; ENOTFOUND */
    int (*begin)(struct store_io *io, const char *name, struct store_out **out, struct larder_error *err);
    int (*write)(struct store_out *out, const void *data, size_t len, struct larder_error *err);
    int (*finish)(struct store_out *out, struct larder_error *err); /* durable, then visible; EEXIST; frees out either way */
    void (*abort)(struct store_out *out);                           /* NULL allowed; leaves nothing */
    int (*sync)(struct store_io *io, const char *dir, struct larder_error *err); /* names in dir/ are durable */
    const char *(*local_root)(struct store_io *io); /* absolute path, or NULL when not a directory */
    const char *(*where)(struct store_io *io);      /* for messages: the path, or "s3://bucket/prefix"; NULL: local_root */
    /* A folder on a local disk for the journal, temporary files and copies of index files, made when it is missing: the dataset's own,
     * or one of this dataset's below the scratch folder. NULL with *err when there is none; NULL op: local_root. */
    const char *(*work_root)(struct store_io *io, struct larder_error *err);
    /* Bytes that came failed their check: counted by who reads for us. False: do not read them again. NULL: yes. */
    bool (*damaged)(struct store_io *io);
    /* Gives up writes of objects, by whomever, that began more than min_age_s ago and were never finished; how many. NULL: io has none
     * that would be seen by nobody and still take up room. */
    int (*drop_unfinished)(struct store_io *io, uint64_t min_age_s, uint64_t *n, struct larder_error *err);
    void (*close)(struct store_io *io);
};
/* tries: how often bytes that fail their check are worth reading before they are called damaged; what travels over a network may
 * have been damaged on its way. 0 counts as 1. work_bytes: limit of copies of index files below work_root, where that is not the
 * dataset itself; 0: 256 MiB. */
struct store_io { const struct store_io_ops *ops; unsigned tries; uint64_t work_bytes; };
static inline unsigned io_tries(const struct store_io *io) { return io->tries ? io->tries : 1; }
static inline uint64_t io_work_bytes(const struct store_io *io) { return io->work_bytes ? io->work_bytes : 256 * MIB; }

/* io.c: over any io */
const char *io_where(struct store_io *io);
const char *io_work_root(struct store_io *io, struct larder_error *err);
static inline bool io_is_local(struct store_io *io) { return io->ops->local_root && io->ops->local_root(io); }
int io_read(struct store_io *io, const char *name, uint64_t offset, void *buf, size_t len, struct larder_error *err);
int io_read_whole(struct store_io *io, struct store_whole *objects, size_t n, struct larder_error *err);
/* One whole object; ENOTFOUND is an error. */
int io_read_all(struct store_io *io, const char *name, size_t max, struct buf *out, struct larder_error *err);
/* Whether range i of a call holds what it should; ECORRUPT: worth reading again. */
typedef int io_check_fn(void *user, size_t i, struct larder_error *err);
/* read_ranges, then check of each range; those that fail are read again, io_tries(io) times in all. The error is that of the first
 * range that stays bad. n at most IO_CHECKED_MAX. */
#define IO_CHECKED_MAX 512u
int io_read_checked(struct store_io *io, const struct store_range *ranges, size_t n, io_check_fn *check, void *user,
                    struct larder_error *err);
/* One whole object that has to pass check (i is 0); out begins empty and is overwritten by each try. */
int io_read_all_checked(struct store_io *io, const char *name, size_t max, struct buf *out, io_check_fn *check, void *user,
                        struct larder_error *err);
/* Whether bytes that failed their check for the (try + 1)th time are worth another try. */
bool io_again(struct store_io *io, unsigned try);

/* io_file.c: over a directory. files_max: descriptors kept open for reading (0: 64). create: mkdir -p it. */
int io_file_open(const char *path, bool create, unsigned files_max, struct store_io **io, struct larder_error *err);
static inline void io_close(struct store_io *io) { if (io) io->ops->close(io); }

/* pread and pwrite that go on after a signal or a short transfer. read_fully: bytes read, less than len at the end of the file
 * only; -1 and errno. write_fully: 0, or -1 and errno. */
ssize_t read_fully(int fd, void *data, size_t len, uint64_t offset);
int write_fully(int fd, const void *data, size_t len, uint64_t offset);
/* Opens a file in folder dir, to write and read, that vanishes with its descriptor. A descriptor, or an error code (negative). */
int unnamed_file(const char *dir, struct larder_error *err);

/* Absolute path of a dataset URI ("/p", "p", "file:///p"): malloc'd. EINVAL for other schemes. */
int uri_to_path(const char *uri, char **path, struct larder_error *err);

/* ---- threads that share work (crew.c) ---- */

/* Runs fn(user, worker, &stop) on `workers` threads and waits for all. tick (NULL allowed) is called on the calling thread about
 * ten times a second and once at the end; when it or a worker returns nonzero, stop becomes true and workers should return soon.
 * Returns the first error: a worker's code and *err, ECANCELED when tick asked to stop, or LARDER_OK. */
typedef int crew_fn(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err);
typedef int crew_tick_fn(void *user);
int crew_run(unsigned workers, crew_fn *fn, crew_tick_fn *tick, void *user, struct larder_error *err);

uint64_t now_ns(void);     /* monotonic */
uint64_t now_wall_s(void); /* seconds since 1970 */
unsigned cpu_count(void);  /* CPUs this process may use */
pid_t process_id(void);    /* getpid without a system call, right in a forked child too */
uint64_t memory_available(void); /* bytes: min(MemAvailable, cgroup limit - usage) */

#endif
