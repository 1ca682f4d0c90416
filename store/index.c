/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - the key index: key -> ordinal in RocksDB. The only file that knows RocksDB.
 *
 * A part is one RocksDB below index/, written once and never changed: the keys of an ordinal range in ascending order, cut into
 * SSTs that do not overlap, each value the ordinal as 8 bytes. The manifest lists every file with size and CRC32C, and each
 * SST's key count and range.
 *
 * Building writes the SSTs, lets a fresh database adopt them, and keeps only what reading needs (CURRENT, MANIFEST, SSTs). All
 * of it happens in <dir>.tmp, which gets its name when every file is durable, so a part is whole or not there.
 *
 * RocksDB trusts its files more than we do, and this Debian build aborts where it meets what it holds impossible. Hence:
 *   I1  no file reaches RocksDB before its size is checked, CURRENT and MANIFEST not before their CRC;
 *   I2  a lookup asks the manifest's key ranges which SST may hold the key, and checks that SST's CRC before the first use in
 *       this process (a bit in part.checked). RocksDB reads the tails of up to 16 SSTs of its own choice while it opens; where
 *       a part has no more than those they are checked before that, else its own block checksums have to do for the tails;
 *   I3  a file that is not listed (a write-ahead log would be replayed) refuses the part;
 *   I4  nothing is ever written below a part: databases are opened read-only, without a log file.
 *
 * Of a bucket only the SSTs that cover the keys asked for are brought here. A part is then an empty database in the reader's own folder
 * on this machine (index_copies.c), which adopts the copy of an SST when a key first needs it, and gives up those used longest ago when
 * there is no room for another. RocksDB's own files of the part are not needed:
 *
 *     ABSENT --> COMING --(CRC held, adopted)--> HERE (users) --(no users, room is needed)--> LEAVING --> ABSENT
 *
 * Threads: index_lookup may be entered by any number at once. In a directory it takes no lock of ours; two that meet an unchecked SST
 * both check it. Of a bucket remote.lock guards the states of the SSTs and is not held across transfers or RocksDB. All else belongs to
 * one thread. RocksDB keeps two idle threads a process.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <rocksdb/c.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/store_int.h"

enum {
    SST_BYTES = 8 << 20,      /* an SST is closed at about this size */
    BLOCK_BYTES = 4096,
    CHECK_BYTES = 1 << 20,    /* read at once while checking a file */
    LOOKUP_BATCH = 256,
    PRELOAD_FILES = 16,       /* tables that RocksDB may read while it opens: kInitialLoadLimit */
    OPEN_FILES_MAX = 1024,
    SMALL_FILE_MAX = 16 << 20, /* CURRENT and MANIFEST are far smaller */
    CURSOR_READAHEAD = 1 << 20,
    VALUE_BYTES = 8,
    LONG_ENTRY_BYTES = 100    /* above this mean, blocks of SST indexes go to the cache, which bounds them */
};

struct sst {
    const char *name;
    const uint8_t *first, *last;
    uint32_t first_len, last_len;
    uint64_t keys, size;
    uint32_t crc;
};

/* An SST of a bucket as it is here. */
enum sst_state { SST_ABSENT, SST_COMING, SST_HERE, SST_LEAVING };
struct sst_here { uint8_t state; uint32_t users; uint64_t used; };

/* What the parts of a bucket that one index or cursor reads share. */
struct remote {
    struct index_copies *copies;
    pthread_mutex_t lock;   /* guards all sst_here and clock */
    pthread_cond_t changed; /* a state */
    uint64_t clock;
    struct part *parts;     /* [n]: whose SSTs may have to leave */
    size_t n;
};

/* A part that is open for reading. */
struct part {
    struct remote *remote; /* NULL: in a directory */
    struct sst_here *here; /* of a bucket, one an SST */
    char *dir;             /* of a bucket: its name below index/ */
    char *path;
    struct sst *ssts; /* by key; names and keys lie behind them in the same allocation */
    size_t n;
    uint64_t keys, bytes;
    _Atomic uint64_t *checked; /* bit i: ssts[i] was found whole */
    rocksdb_options_t *options;
    rocksdb_readoptions_t *read;
    rocksdb_t *db;
    rocksdb_column_family_handle_t *cf;
};

struct index {
    rocksdb_cache_t *cache;
    struct remote *remote; /* of a bucket */
    size_t n;
    struct part parts[]; /* largest first */
};

struct index_cursor {
    struct remote *remote; /* of a bucket */
    struct part part;
    rocksdb_cache_t *cache;
    rocksdb_iterator_t *it;
    size_t sst;         /* where the iterator stands */
    uint64_t left;      /* keys of that SST not returned yet */
};

/* Takes RocksDB's message. */
static int rocks_failed(char *message, const char *path, struct larder_error *err)
{
    int rc;

    if (strstr(message, "Corruption"))
        rc = err_set(err, LARDER_ECORRUPT, "%s: %.100s; larder repair rebuilds the index", path, message);
    else if (strstr(message, "No space left"))
        rc = err_sys(err, LARDER_EIO, ENOSPC, "%s: the index cannot be written", path);
    else
        rc = err_set(err, LARDER_EIO, "%s: RocksDB: %.120s", path, message);
    rocksdb_free(message);
    return rc;
}

static int make_path(char **out, struct larder_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int make_path(char **out, struct larder_error *err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0 || !(*out = malloc((size_t)n + 1))) {
        *out = NULL;
        return err_nomem(err, (size_t)MAX(n, 0) + 1, "a path");
    }
    va_start(args, fmt);
    vsnprintf(*out, (size_t)n + 1, fmt, args);
    va_end(args);
    return LARDER_OK;
}

/* ---- files ---- */

static bool is_sst(const char *name)
{
    size_t n = strlen(name);

    return n > 4 && strcmp(name + n - 4, ".sst") == 0;
}

/* Size and CRC of a whole file; with flush also makes it durable. A missing one is ECORRUPT: it is listed. */
static int file_sum(const char *path, bool flush, uint64_t *size, uint32_t *crc, struct larder_error *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    uint64_t at = 0;
    uint32_t sum = 0;

    if (fd < 0 && errno == ENOENT)
        return err_set(err, LARDER_ECORRUPT, "%s is missing; larder repair rebuilds the index", path);
    if (fd < 0 || fstat(fd, &st))
        return err_sys(err, LARDER_EIO, errno, "%s: open", path);
    size_t cap = st.st_size < CHECK_BYTES ? (size_t)st.st_size + 1 : CHECK_BYTES;
    AUTO_FREE uint8_t *buf = malloc(cap);
    if (!buf)
        return err_nomem(err, cap, "checking an index file");
    for (;;) {
        ssize_t n = read_fully(fd, buf, cap, at);
        if (n < 0)
            return err_sys(err, LARDER_EIO, errno, "%s: read at %llu", path, (unsigned long long)at);
        sum = crc32c(sum, buf, (size_t)n);
        at += (uint64_t)n;
        if ((size_t)n < cap)
            break;
    }
    if (flush && fsync(fd))
        return err_sys(err, LARDER_EIO, errno, "%s: fsync", path);
    *size = at;
    *crc = sum;
    return LARDER_OK;
}

static int file_check(const char *dir, const char *name, uint64_t size, uint32_t crc, struct larder_error *err)
{
    AUTO_FREE char *path = NULL;
    uint64_t size_found;
    uint32_t crc_found;
    int rc = make_path(&path, err, "%s/%s", dir, name);

    if (rc || (rc = file_sum(path, false, &size_found, &crc_found, err)))
        return rc;
    if (size_found != size)
        return err_set(err, LARDER_ECORRUPT, "%s has %llu bytes instead of %llu; larder repair rebuilds the index", path,
                       (unsigned long long)size_found, (unsigned long long)size);
    if (crc_found != crc)
        return err_set(err, LARDER_ECORRUPT, "%s: CRC32C is %08x instead of %08x; larder repair rebuilds the index", path,
                       crc_found, crc);
    return LARDER_OK;
}

int index_file_check(struct store_io *io, const struct index_part *part, const struct index_file *f, struct larder_error *err)
{
    AUTO_FREE char *dir = NULL;
    uint64_t size, mtime_s;

    if (io_is_local(io)) {
        int rc = make_path(&dir, err, "%s/index/%s", io->ops->local_root(io), part->dir);
        return rc ? rc : file_check(dir, f->name, f->size, f->crc, err);
    }
    int rc = make_path(&dir, err, "index/%s/%s", part->dir, f->name);
    if (rc || (rc = io->ops->stat(io, dir, &size, &mtime_s, err)))
        return rc;
    if (size != f->size)
        return err_set(err, LARDER_ECORRUPT, "%s has %llu bytes instead of %llu; larder repair rebuilds the index", dir,
                       (unsigned long long)size, (unsigned long long)f->size);
    return index_object_stream(io, dir, f->size, f->crc, -1, err);
}

static int dir_sync(const char *path, struct larder_error *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0 || fsync(fd))
        return err_sys(err, LARDER_EIO, errno, "%s: fsync", path);
    return LARDER_OK;
}

/* Removes a directory of files and at most one level of directories below it; as far as that goes. */
static void dir_remove(int at, const char *name, int depth)
{
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && unlinkat(fd, e->d_name, 0) && depth > 0)
            dir_remove(fd, e->d_name, depth - 1);
    if (d)
        closedir(d);
    else if (fd >= 0)
        close(fd);
    unlinkat(at, name, AT_REMOVEDIR);
}

/* ---- options ---- */

static int open_files_max(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) || r.rlim_cur == RLIM_INFINITY)
        return OPEN_FILES_MAX;
    return (int)MIN((rlim_t)OPEN_FILES_MAX, MAX(r.rlim_cur / 4, (rlim_t)32));
}

/* The same tables for writing and reading. cache NULL: a small one of RocksDB's. */
static rocksdb_options_t *make_options(rocksdb_cache_t *cache, bool cache_indexes)
{
    rocksdb_options_t *o = rocksdb_options_create();
    rocksdb_block_based_table_options_t *t = rocksdb_block_based_options_create();

    rocksdb_block_based_options_set_block_size(t, BLOCK_BYTES);
    rocksdb_block_based_options_set_format_version(t, 5);
    rocksdb_block_based_options_set_checksum(t, 4); /* XXH3, as RocksDB itself chooses */
    rocksdb_block_based_options_set_data_block_index_type(
        t, rocksdb_block_based_table_data_block_index_type_binary_search_and_hash);
    rocksdb_block_based_options_set_data_block_hash_ratio(t, 0.75);
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(t, cache_indexes);
    if (cache)
        rocksdb_block_based_options_set_block_cache(t, cache);
    rocksdb_options_set_block_based_table_factory(o, t);
    rocksdb_block_based_options_destroy(t);
    rocksdb_options_set_compression(o, rocksdb_no_compression);
    rocksdb_options_set_paranoid_checks(o, 1);
    rocksdb_options_set_disable_auto_compactions(o, 1);
    rocksdb_options_set_max_background_jobs(o, 1);
    rocksdb_options_set_max_open_files(o, open_files_max());
    rocksdb_options_set_max_file_opening_threads(o, 1);
    rocksdb_options_set_skip_stats_update_on_db_open(o, 1);
    rocksdb_options_set_skip_checking_sst_file_sizes_on_db_open(o, 1); /* part_check_files did */
    rocksdb_options_set_stats_dump_period_sec(o, 0);
    rocksdb_options_set_stats_persist_period_sec(o, 0);
    rocksdb_options_set_info_log_level(o, 4); /* fatal */
    return o;
}

/* ---- opening a part for reading ---- */

static void part_close(struct part *p)
{
    if (p->cf)
        rocksdb_column_family_handle_destroy(p->cf);
    if (p->db)
        rocksdb_close(p->db);
    if (p->read)
        rocksdb_readoptions_destroy(p->read);
    if (p->options)
        rocksdb_options_destroy(p->options);
    free(p->path);
    free(p->dir);
    free(p->here);
    free(p->ssts);
    free(p->checked);
    *p = (struct part){0};
}

static uint8_t *keep(uint8_t **arena, const void *data, size_t len)
{
    uint8_t *at = *arena;

    if (len)
        memcpy(at, data, len);
    *arena += len;
    return at;
}

/* Our own compact copy of what the manifest says about the SSTs, in order of their keys. */
static int part_copy(struct part *p, const struct index_part *src, struct larder_error *err)
{
    size_t bytes = 0, n = 0;

    for (size_t i = 0; i < src->n_files; i++) {
        const struct index_file *f = &src->files[i];
        if (is_sst(f->name)) {
            n++;
            bytes += strlen(f->name) + 1 + f->first_len + f->last_len;
        }
    }
    p->ssts = malloc(n * sizeof(*p->ssts) + bytes + 1);
    p->checked = calloc(n / 64 + 1, sizeof(*p->checked));
    if (!p->ssts || !p->checked)
        return err_nomem(err, n * sizeof(*p->ssts) + bytes, "the key ranges of an index");
    uint8_t *arena = (uint8_t *)(p->ssts + n);
    for (size_t i = 0; i < src->n_files; i++) {
        const struct index_file *f = &src->files[i];
        if (!is_sst(f->name))
            continue;
        struct sst *s = &p->ssts[p->n++];
        *s = (struct sst){.first_len = (uint32_t)f->first_len, .last_len = (uint32_t)f->last_len, .keys = f->keys,
                          .size = f->size, .crc = f->crc};
        s->first = keep(&arena, f->first, f->first_len);
        s->last = keep(&arena, f->last, f->last_len);
        s->name = (char *)keep(&arena, f->name, strlen(f->name) + 1);
        bool apart = p->n == 1 || bytes_cmp(s[-1].last, s[-1].last_len, s->first, s->first_len) < 0;
        if (!apart || s->keys == 0 || f->first_len > LARDER_KEY_MAX || f->last_len > LARDER_KEY_MAX ||
            bytes_cmp(s->first, s->first_len, s->last, s->last_len) > 0)
            return err_set(err, LARDER_ECORRUPT, "%s: the manifest's key ranges are not in order; larder repair rebuilds the index",
                           p->path);
        p->keys += s->keys;
        p->bytes += s->size;
    }
    if (p->keys != src->keys)
        return err_set(err, LARDER_ECORRUPT, "%s: files of %llu keys listed for a part of %llu; larder repair rebuilds the index",
                       p->path, (unsigned long long)p->keys, (unsigned long long)src->keys);
    return LARDER_OK;
}

static bool harmless(const char *name) /* left by tools that looked at the database, or by NFS */
{
    return name[0] == '.' || strcmp(name, "LOCK") == 0 || strcmp(name, "LOG") == 0 || strncmp(name, "LOG.old.", 8) == 0;
}

static bool listed(const struct index_part *src, const char *name)
{
    for (size_t i = 0; i < src->n_files; i++)
        if (strcmp(src->files[i].name, name) == 0)
            return true;
    return false;
}

/* As many files as are listed, all with the right size, and so no others [I1, I3]. */
static int part_check_files(const struct part *p, const struct index_part *src, struct larder_error *err)
{
    DIR *d = opendir(p->path);
    struct dirent *e;
    size_t found = 0;
    int rc = LARDER_OK;

    if (!d && errno == ENOENT)
        return err_set(err, LARDER_ECORRUPT, "%s is missing; larder repair rebuilds the index", p->path);
    if (!d)
        return err_sys(err, LARDER_EIO, errno, "%s: open", p->path);
    for (size_t i = 0; !rc && i < src->n_files; i++) {
        const struct index_file *f = &src->files[i];
        struct stat st;
        if (fstatat(dirfd(d), f->name, &st, 0))
            rc = errno == ENOENT ? err_set(err, LARDER_ECORRUPT, "%s/%s is missing; larder repair rebuilds the index", p->path,
                                           f->name)
                                 : err_sys(err, LARDER_EIO, errno, "%s/%s: stat", p->path, f->name);
        else if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->size)
            rc = err_set(err, LARDER_ECORRUPT, "%s/%s has %llu bytes instead of %llu; larder repair rebuilds the index", p->path,
                         f->name, (unsigned long long)st.st_size, (unsigned long long)f->size);
    }
    while (!rc && (e = readdir(d)))
        found += !harmless(e->d_name);
    if (!rc && found != src->n_files) {
        rewinddir(d);
        while ((e = readdir(d)) && (harmless(e->d_name) || listed(src, e->d_name)))
            ;
        rc = err_set(err, LARDER_ECORRUPT, "%s: '%.64s' does not belong there; remove it, or larder repair rebuilds the index",
                     p->path, e ? e->d_name : "?");
    }
    closedir(d);
    return rc;
}

/* Checks SST i unless this process has done so before [I2]. */
static int part_check_sst(struct part *p, size_t i, struct larder_error *err)
{
    uint64_t bit = (uint64_t)1 << (i % 64);

    if (atomic_load_explicit(&p->checked[i / 64], memory_order_acquire) & bit)
        return LARDER_OK;
    int rc = file_check(p->path, p->ssts[i].name, p->ssts[i].size, p->ssts[i].crc, err);
    if (!rc)
        atomic_fetch_or_explicit(&p->checked[i / 64], bit, memory_order_release);
    return rc;
}

static int part_open_db(struct part *p, rocksdb_cache_t *cache, struct larder_error *err)
{
    static const char *const names[] = {"default"};
    char *failed = NULL;

    p->options = make_options(cache, p->bytes / p->keys > LONG_ENTRY_BYTES);
    p->read = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(p->read, 1);
    const rocksdb_options_t *options[] = {p->options};
    p->db = rocksdb_open_for_read_only_column_families(p->options, p->path, 1, names, options, &p->cf, 1, &failed);
    if (failed) {
        p->db = NULL;
        p->cf = NULL;
        return rocks_failed(failed, p->path, err);
    }
    return LARDER_OK;
}

static int part_open_local(const char *root, const struct index_part *src, rocksdb_cache_t *cache, struct part *p,
                           struct larder_error *err)
{
    int rc = make_path(&p->path, err, "%s/index/%s", root, src->dir);

    if (rc || (rc = part_copy(p, src, err)) || p->keys == 0)
        return rc;
    if ((rc = part_check_files(p, src, err)))
        return rc;
    for (size_t i = 0; !rc && i < src->n_files; i++) {
        const struct index_file *f = &src->files[i];
        if (!is_sst(f->name) && f->size > SMALL_FILE_MAX + p->n * 4 * LARDER_KEY_MAX)
            rc = err_set(err, LARDER_ECORRUPT, "%s/%s: %llu bytes are too many; larder repair rebuilds the index", p->path, f->name,
                         (unsigned long long)f->size);
        else if (!is_sst(f->name))
            rc = file_check(p->path, f->name, f->size, f->crc, err);
    }
    for (size_t i = 0; !rc && p->n <= PRELOAD_FILES && i < p->n; i++)
        rc = part_check_sst(p, i, err);
    return rc ? rc : part_open_db(p, cache, err);
}

/* ---- parts of a bucket ---- */

static int remote_new(struct store_io *io, struct part *parts, size_t n, struct remote **out, struct larder_error *err)
{
    struct remote *r = calloc(1, sizeof(*r));

    if (!(*out = r))
        return err_nomem(err, sizeof(*r), "an index");
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->parts = parts;
    r->n = n;
    return index_copies_open(io, &r->copies, err);
}

static void remote_free(struct remote *r)
{
    if (!r)
        return;
    index_copies_close(r->copies);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* An empty database that will adopt SSTs. */
static int part_open_empty(struct part *p, rocksdb_cache_t *cache, struct larder_error *err)
{
    static const char *const names[] = {"default"};
    char *failed = NULL;

    p->options = make_options(cache, p->bytes / p->keys > LONG_ENTRY_BYTES);
    rocksdb_options_set_create_if_missing(p->options, 1);
    rocksdb_options_set_error_if_exists(p->options, 1);
    rocksdb_options_set_write_buffer_size(p->options, 64 << 10); /* nothing is ever written by key */
    p->read = rocksdb_readoptions_create();
    rocksdb_readoptions_set_verify_checksums(p->read, 1);
    const rocksdb_options_t *options[] = {p->options};
    p->db = rocksdb_open_column_families(p->options, p->path, 1, names, options, &p->cf, &failed);
    if (failed) {
        p->db = NULL;
        p->cf = NULL;
        return rocks_failed(failed, p->path, err);
    }
    return LARDER_OK;
}

static int part_open_remote(struct remote *r, const struct index_part *src, rocksdb_cache_t *cache, struct part *p,
                            struct larder_error *err)
{
    int rc = make_path(&p->path, err, "%s/%s", index_copies_own(r->copies), src->dir);

    if (!rc)
        rc = make_path(&p->dir, err, "%s", src->dir);
    if (rc || (rc = part_copy(p, src, err)) || p->keys == 0)
        return rc;
    if (!(p->here = calloc(p->n, sizeof(*p->here))))
        return err_nomem(err, p->n * sizeof(*p->here), "an index");
    p->remote = r;
    return part_open_empty(p, cache, err);
}

/* On failure the caller closes p. A part without keys has no files and no database. */
static int part_open(struct store_io *io, struct remote *r, const struct index_part *src, rocksdb_cache_t *cache, struct part *p,
                     struct larder_error *err)
{
    *p = (struct part){0};
    return r ? part_open_remote(r, src, cache, p, err) : part_open_local(io->ops->local_root(io), src, cache, p, err);
}

/* Lets the SST go that was used longest ago and that nobody uses now. False: there is none. */
static bool remote_make_room(struct remote *r)
{
    struct part *of = NULL;
    size_t at = 0;
    char *failed = NULL;

    pthread_mutex_lock(&r->lock);
    for (size_t k = 0; k < r->n; k++)
        for (size_t i = 0; r->parts[k].here && i < r->parts[k].n; i++) {
            const struct sst_here *h = &r->parts[k].here[i];
            if (h->state == SST_HERE && h->users == 0 && (!of || h->used < of->here[at].used)) {
                of = &r->parts[k];
                at = i;
            }
        }
    if (of)
        of->here[at].state = SST_LEAVING;
    pthread_mutex_unlock(&r->lock);
    if (!of)
        return false;
    const struct sst *s = &of->ssts[at];
    rocksdb_delete_file_in_range_cf(of->db, of->cf, (const char *)s->first, s->first_len, (const char *)s->last, s->last_len, &failed);
    pthread_mutex_lock(&r->lock);
    of->here[at].state = failed ? SST_HERE : SST_ABSENT;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (failed)
        rocksdb_free(failed);
    return !failed;
}

/* Brings SST i here and into the database. */
static int sst_bring(struct part *p, size_t i, struct larder_error *err)
{
    const struct sst *s = &p->ssts[i];
    const struct index_file f = {.name = (char *)(uintptr_t)s->name, .size = s->size, .crc = s->crc};
    AUTO_FREE char *to = NULL;
    char *failed = NULL;
    bool force = false;
    int rc = make_path(&to, err, "%s/in-%zu.sst", p->path, i);

    while (!rc && (rc = index_copies_take(p->remote->copies, p->dir, &f, to, force, err)) == LARDER_EBUSY && !force) {
        rc = LARDER_OK;
        force = !remote_make_room(p->remote);
    }
    if (rc)
        return rc;
    const char *const names[] = {to};
    rocksdb_ingestexternalfileoptions_t *o = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingestexternalfileoptions_set_move_files(o, 1);
    rocksdb_ingestexternalfileoptions_set_allow_global_seqno(o, 0);
    rocksdb_ingest_external_file_cf(p->db, p->cf, names, 1, o, &failed);
    rocksdb_ingestexternalfileoptions_destroy(o);
    unlink(to); /* RocksDB has a name of its own for it */
    return failed ? rocks_failed(failed, p->path, err) : LARDER_OK;
}

/* Has SST i in the database until sst_put. */
static int sst_get(struct part *p, size_t i, struct larder_error *err)
{
    struct remote *r = p->remote;
    struct sst_here *h = &p->here[i];
    int rc = LARDER_OK;

    pthread_mutex_lock(&r->lock);
    while (h->state == SST_COMING || h->state == SST_LEAVING)
        pthread_cond_wait(&r->changed, &r->lock);
    if (h->state == SST_ABSENT) {
        h->state = SST_COMING;
        pthread_mutex_unlock(&r->lock);
        rc = sst_bring(p, i, err);
        pthread_mutex_lock(&r->lock);
        h->state = rc ? SST_ABSENT : SST_HERE;
        pthread_cond_broadcast(&r->changed);
    }
    if (!rc) {
        h->users++;
        h->used = ++r->clock;
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

static void sst_put(struct part *p, size_t i)
{
    pthread_mutex_lock(&p->remote->lock);
    p->here[i].users--;
    pthread_mutex_unlock(&p->remote->lock);
}

/* ---- lookup ---- */

static int larger_first(const void *a, const void *b)
{
    const struct part *x = a, *y = b;

    return x->keys < y->keys ? 1 : x->keys > y->keys ? -1 : 0;
}

int index_open(struct store_io *io, const struct index_part *parts, size_t n_parts, size_t cache_bytes, struct index **out,
               struct larder_error *err)
{
    *out = NULL;
    struct index *ix = calloc(1, sizeof(*ix) + n_parts * sizeof(ix->parts[0]));
    int rc = LARDER_OK;

    if (!ix)
        return err_nomem(err, sizeof(*ix) + n_parts * sizeof(ix->parts[0]), "an index");
    ix->cache = rocksdb_cache_create_lru(MAX(cache_bytes, MIB));
    if (!io_is_local(io))
        rc = remote_new(io, ix->parts, n_parts, &ix->remote, err);
    for (size_t i = 0; !rc && i < n_parts; i++)
        rc = part_open(io, ix->remote, &parts[i], ix->cache, &ix->parts[ix->n++], err);
    if (rc) {
        index_close(ix);
        return rc;
    }
    qsort(ix->parts, ix->n, sizeof(ix->parts[0]), larger_first);
    *out = ix;
    return LARDER_OK;
}

void index_close(struct index *ix)
{
    if (!ix)
        return;
    for (size_t i = 0; i < ix->n; i++)
        part_close(&ix->parts[i]);
    rocksdb_cache_destroy(ix->cache);
    remote_free(ix->remote);
    free(ix);
}

/* A key that is looked for. */
struct probe {
    uint64_t prefix; /* the first 8 bytes, big-endian: decides most comparisons */
    const char *key;
    uint32_t len;
    uint32_t at;     /* in the caller's arrays */
};

static uint64_t key_prefix(const void *key, size_t len)
{
    uint8_t b[8] = {0};

    memcpy(b, key, MIN(len, sizeof(b)));
    return __builtin_bswap64(get_u64(b));
}

static int probe_cmp(const void *a, const void *b)
{
    const struct probe *x = a, *y = b;

    if (x->prefix != y->prefix)
        return x->prefix < y->prefix ? -1 : 1;
    return bytes_cmp(x->key, x->len, y->key, y->len);
}

/* The SST whose range may hold the key, or SIZE_MAX. */
static size_t part_find(const struct part *p, const char *key, size_t len)
{
    size_t lo = 0, hi = p->n;

    while (lo < hi) { /* the first SST that ends at or behind the key */
        size_t mid = lo + (hi - lo) / 2;
        if (bytes_cmp(p->ssts[mid].last, p->ssts[mid].last_len, key, len) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < p->n && bytes_cmp(p->ssts[lo].first, p->ssts[lo].first_len, key, len) <= 0 ? lo : SIZE_MAX;
}

/* Some probes of one part, as RocksDB wants them. */
struct asked {
    size_t n;
    const char *keys[LOOKUP_BATCH];
    size_t lens[LOOKUP_BATCH], ssts[LOOKUP_BATCH];
    uint32_t probe[LOOKUP_BATCH];
    rocksdb_pinnableslice_t *values[LOOKUP_BATCH];
    char *failed[LOOKUP_BATCH];
};

/* Takes what RocksDB answered: everything is freed, the first failure is told. */
static int take_answers(const struct part *p, struct asked *a, const struct probe *probes, uint64_t *ordinals,
                        struct larder_error *err)
{
    int rc = LARDER_OK;

    for (size_t i = 0; i < a->n; i++) {
        const char *name = p->ssts[a->ssts[i]].name;
        char where[320];
        size_t len = 0;
        const char *v = a->values[i] ? rocksdb_pinnableslice_value(a->values[i], &len) : NULL;
        if (a->failed[i] && !rc) {
            snprintf(where, sizeof(where), "%.200s/%.100s", p->path, name);
            rc = rocks_failed(a->failed[i], where, err);
        } else if (a->failed[i]) {
            rocksdb_free(a->failed[i]);
        } else if (v && len == VALUE_BYTES) {
            ordinals[probes[a->probe[i]].at] = get_u64(v);
        } else if (v && !rc) {
            rc = err_set(err, LARDER_ECORRUPT, "%s/%s: a value has %zu bytes; larder repair rebuilds the index", p->path, name,
                         len);
        }
        if (a->values[i])
            rocksdb_pinnableslice_destroy(a->values[i]);
    }
    return rc;
}

static int ask(struct part *p, struct asked *a, const struct probe *probes, uint64_t *ordinals, struct larder_error *err)
{
    rocksdb_batched_multi_get_cf(p->db, p->read, p->cf, a->n, a->keys, a->lens, a->values, a->failed, true);
    return take_answers(p, a, probes, ordinals, err);
}

/* Of a bucket: the probes of one SST after the other, which is here meanwhile. The probes are sorted, and so are the SSTs. */
static int ask_by_sst(struct part *p, const struct asked *all, const struct probe *probes, uint64_t *ordinals, struct larder_error *err)
{
    struct asked a;
    int rc = LARDER_OK;

    for (size_t i = 0; !rc && i < all->n; i += a.n) {
        size_t s = all->ssts[i];
        for (a.n = 0; i + a.n < all->n && all->ssts[i + a.n] == s; a.n++) {
            a.keys[a.n] = all->keys[i + a.n];
            a.lens[a.n] = all->lens[i + a.n];
            a.ssts[a.n] = s;
            a.probe[a.n] = all->probe[i + a.n];
        }
        if ((rc = sst_get(p, s, err)))
            break;
        rc = ask(p, &a, probes, ordinals, err);
        sst_put(p, s);
    }
    return rc;
}

/* Looks for the probes in one part and keeps in probes[] those that it does not have. */
static int part_lookup(struct part *p, struct probe *probes, size_t *n, uint64_t *ordinals, struct larder_error *err)
{
    struct asked a;
    size_t left = 0;

    a.n = 0;
    for (size_t i = 0; i < *n; i++) {
        size_t s = part_find(p, probes[i].key, probes[i].len);
        int rc = s == SIZE_MAX || p->remote ? LARDER_OK : part_check_sst(p, s, err);
        if (rc)
            return rc;
        if (s == SIZE_MAX)
            continue;
        a.keys[a.n] = probes[i].key;
        a.lens[a.n] = probes[i].len;
        a.ssts[a.n] = s;
        a.probe[a.n++] = (uint32_t)i;
    }
    if (a.n == 0)
        return LARDER_OK;
    int rc = p->remote ? ask_by_sst(p, &a, probes, ordinals, err) : ask(p, &a, probes, ordinals, err);
    for (size_t i = 0; i < *n; i++)
        if (ordinals[probes[i].at] == LARDER_NO_ORDINAL)
            probes[left++] = probes[i];
    *n = left;
    return rc;
}

static int lookup_batch(struct index *ix, const void *const *keys, const size_t *lens, size_t n, uint64_t *ordinals,
                        struct larder_error *err)
{
    struct probe probes[LOOKUP_BATCH];
    size_t left = 0;
    int rc = LARDER_OK;

    for (size_t i = 0; i < n; i++) {
        ordinals[i] = LARDER_NO_ORDINAL;
        if (lens[i] > 0 && lens[i] <= LARDER_KEY_MAX)
            probes[left++] = (struct probe){key_prefix(keys[i], lens[i]), keys[i], (uint32_t)lens[i], (uint32_t)i};
    }
    qsort(probes, left, sizeof(probes[0]), probe_cmp);
    for (size_t i = 0; !rc && i < ix->n && left > 0; i++)
        if (ix->parts[i].keys > 0)
            rc = part_lookup(&ix->parts[i], probes, &left, ordinals, err);
    return rc;
}

int index_lookup(struct index *ix, const void *const *keys, const size_t *lens, size_t n, uint64_t *ordinals,
                 struct larder_error *err)
{
    int rc = LARDER_OK;

    for (size_t at = 0; !rc && at < n; at += LOOKUP_BATCH)
        rc = lookup_batch(ix, keys + at, lens + at, MIN(n - at, (size_t)LOOKUP_BATCH), ordinals + at, err);
    return rc;
}

/* ---- cursor ---- */

/* Gives up the iterator, and of a bucket the SST that it stands in: no other is here then. */
static void cursor_leave(struct index_cursor *c)
{
    if (!c->it)
        return;
    rocksdb_iter_destroy(c->it);
    c->it = NULL;
    if (!c->remote)
        return;
    sst_put(&c->part, c->sst);
    remote_make_room(c->remote);
}

/* Makes SST i the one that the iterator goes through next. In a directory there is one iterator for all. */
static int cursor_enter(struct index_cursor *c, size_t i, struct larder_error *err)
{
    if (c->remote)
        cursor_leave(c);
    int rc = c->remote ? sst_get(&c->part, i, err) : part_check_sst(&c->part, i, err);
    if (rc)
        return rc;
    c->sst = i;
    c->left = c->part.ssts[i].keys;
    if (c->it)
        return LARDER_OK;
    rocksdb_readoptions_set_fill_cache(c->part.read, 0);
    rocksdb_readoptions_set_readahead_size(c->part.read, CURSOR_READAHEAD);
    c->it = rocksdb_create_iterator_cf(c->part.db, c->part.read, c->part.cf);
    return LARDER_OK;
}

int index_cursor_open(struct store_io *io, const struct index_part *part, struct index_cursor **out, struct larder_error *err)
{
    *out = NULL;
    struct index_cursor *c = calloc(1, sizeof(*c));
    int rc = LARDER_OK;

    if (!c)
        return err_nomem(err, sizeof(*c), "an index cursor");
    c->cache = rocksdb_cache_create_lru(4 * MIB);
    if (!io_is_local(io))
        rc = remote_new(io, &c->part, 1, &c->remote, err);
    if (rc || (rc = part_open(io, c->remote, part, c->cache, &c->part, err)) || (c->part.n > 0 && (rc = cursor_enter(c, 0, err)))) {
        index_cursor_close(c);
        return rc;
    }
    *out = c;
    return LARDER_OK;
}

/* Moves to the next key; an SST is checked before the iterator enters it. */
static int cursor_step(struct index_cursor *c, struct larder_error *err)
{
    char *failed = NULL;

    const struct sst *s = &c->part.ssts[c->sst];
    if (c->left == s->keys && (c->sst == 0 || c->remote)) {
        rocksdb_iter_seek(c->it, (const char *)s->first, s->first_len);
    } else {
        if (c->left == 0 && c->sst + 1 < c->part.n) {
            int rc = cursor_enter(c, c->sst + 1, err);
            if (rc)
                return rc;
            if (c->remote)
                return cursor_step(c, err);
        }
        rocksdb_iter_next(c->it);
    }
    rocksdb_iter_get_error(c->it, &failed);
    if (failed)
        return rocks_failed(failed, c->part.path, err);
    return LARDER_OK;
}

int index_cursor_next(struct index_cursor *c, const void **key, size_t *key_len, uint64_t *ordinal, struct larder_error *err)
{
    if (c->part.n == 0 || (c->left == 0 && c->sst + 1 == c->part.n))
        return LARDER_END;
    int rc = cursor_step(c, err);
    if (rc)
        return rc;
    const struct sst *s = &c->part.ssts[c->sst];
    size_t value_len = 0;
    bool valid = rocksdb_iter_valid(c->it);
    if (valid) {
        *key = rocksdb_iter_key(c->it, key_len);
        const char *v = rocksdb_iter_value(c->it, &value_len);
        if (value_len == VALUE_BYTES)
            *ordinal = get_u64(v);
    }
    c->left--;
    if (!valid || value_len != VALUE_BYTES || *key_len == 0 || *key_len > LARDER_KEY_MAX ||
        (c->left == 0 && bytes_cmp(*key, *key_len, s->last, s->last_len)))
        return err_set(err, LARDER_ECORRUPT, "%s/%s does not hold the keys that it is listed with; larder repair rebuilds the index",
                       c->part.path, s->name);
    return LARDER_OK;
}

void index_cursor_close(struct index_cursor *c)
{
    if (!c)
        return;
    cursor_leave(c);
    part_close(&c->part);
    if (c->cache)
        rocksdb_cache_destroy(c->cache);
    remote_free(c->remote);
    free(c);
}

/* ---- building ---- */

struct build {
    char *tmp;                 /* ROOT/index/<dir>.tmp */
    rocksdb_options_t *options;
    rocksdb_envoptions_t *env;
    rocksdb_sstfilewriter_t *sst;
    struct index_file *files;  /* SSTs in order; name is that in tmp/in/ at first */
    size_t n, cap;
    uint64_t keys, lo, hi;
    uint8_t last[LARDER_KEY_MAX];
    size_t last_len;
};

static void build_release(struct build *b)
{
    if (b->sst)
        rocksdb_sstfilewriter_destroy(b->sst);
    if (b->env)
        rocksdb_envoptions_destroy(b->env);
    if (b->options)
        rocksdb_options_destroy(b->options);
    index_files_release(b->files, b->n);
    free(b->tmp);
}

static int key_dup(uint8_t **out, size_t *out_len, const void *key, size_t len, struct larder_error *err)
{
    if (!(*out = malloc(MAX(len, (size_t)1))))
        return err_nomem(err, len, "a key");
    memcpy(*out, key, len);
    *out_len = len;
    return LARDER_OK;
}

static int sst_begin(struct build *b, const void *key, size_t len, struct larder_error *err)
{
    char *failed = NULL;
    int rc = GROW(b->files, b->cap, b->n + 1, err);

    if (rc)
        return rc;
    struct index_file *f = &b->files[b->n++];
    *f = (struct index_file){0};
    if ((rc = make_path(&f->name, err, "%s/in/%06zu.sst", b->tmp, b->n)) ||
        (rc = key_dup(&f->first, &f->first_len, key, len, err)))
        return rc;
    b->sst = rocksdb_sstfilewriter_create(b->env, b->options);
    rocksdb_sstfilewriter_open(b->sst, f->name, &failed);
    return failed ? rocks_failed(failed, f->name, err) : LARDER_OK;
}

static int sst_end(struct build *b, struct larder_error *err)
{
    struct index_file *f = &b->files[b->n - 1];
    char *failed = NULL;
    int rc = key_dup(&f->last, &f->last_len, b->last, b->last_len, err);

    if (rc)
        return rc;
    rocksdb_sstfilewriter_finish(b->sst, &failed);
    if (failed)
        return rocks_failed(failed, f->name, err);
    rocksdb_sstfilewriter_destroy(b->sst);
    b->sst = NULL;
    return LARDER_OK;
}

static int build_add(struct build *b, const void *key, size_t len, uint64_t ordinal, struct larder_error *err)
{
    uint8_t value[VALUE_BYTES];
    uint64_t size;
    char *failed = NULL, text[256];
    int rc;

    if (len == 0 || len > LARDER_KEY_MAX || (b->keys > 0 && bytes_cmp(b->last, b->last_len, key, len) >= 0))
        return err_set(err, LARDER_EINVAL, "index key '%s' is out of order", key_text(key, len, text));
    if (!b->sst && (rc = sst_begin(b, key, len, err)))
        return rc;
    put_u64(value, ordinal);
    rocksdb_sstfilewriter_put(b->sst, key, len, (const char *)value, sizeof(value), &failed);
    if (failed)
        return rocks_failed(failed, b->files[b->n - 1].name, err);
    memcpy(b->last, key, len);
    b->last_len = len;
    b->keys++;
    b->files[b->n - 1].keys++;
    b->lo = MIN(b->lo, ordinal);
    b->hi = MAX(b->hi, ordinal + 1);
    rocksdb_sstfilewriter_file_size(b->sst, &size);
    return size >= SST_BYTES ? sst_end(b, err) : LARDER_OK;
}

/* A database of nothing but the SSTs. */
static int build_adopt(struct build *b, struct larder_error *err)
{
    AUTO_FREE const char **names = malloc(b->n * sizeof(*names));
    char *failed = NULL;

    if (!names)
        return err_nomem(err, b->n * sizeof(*names), "an index");
    for (size_t i = 0; i < b->n; i++)
        names[i] = b->files[i].name;
    rocksdb_options_set_create_if_missing(b->options, 1);
    rocksdb_options_set_error_if_exists(b->options, 1);
    rocksdb_t *db = rocksdb_open(b->options, b->tmp, &failed);
    if (failed)
        return rocks_failed(failed, b->tmp, err);
    rocksdb_ingestexternalfileoptions_t *o = rocksdb_ingestexternalfileoptions_create();
    rocksdb_ingestexternalfileoptions_set_move_files(o, 1);
    rocksdb_ingestexternalfileoptions_set_allow_global_seqno(o, 0);
    rocksdb_ingest_external_file(db, names, b->n, o, &failed);
    rocksdb_ingestexternalfileoptions_destroy(o);
    rocksdb_close(db);
    return failed ? rocks_failed(failed, b->tmp, err) : LARDER_OK;
}

/* The name of the MANIFEST that CURRENT names. */
static int current_manifest(const struct build *b, char name[64], struct larder_error *err)
{
    AUTO_FREE char *path = NULL;
    int rc = make_path(&path, err, "%s/CURRENT", b->tmp);

    if (rc)
        return rc;
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read_fully(fd, name, 63, 0);
    if (n < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: read", path);
    name[n] = 0;
    name[strcspn(name, "\n")] = 0;
    if (strncmp(name, "MANIFEST-", 9) || strchr(name, '/'))
        return err_set(err, LARDER_EIO, "%s: RocksDB left no manifest name", path);
    return LARDER_OK;
}

/* Removes what reading does not need: logs, locks, options, old manifests. A write-ahead log with content would be needed. */
static int build_strip(const struct build *b, const char *manifest, struct larder_error *err)
{
    DIR *d = opendir(b->tmp);
    struct dirent *e;
    int rc = LARDER_OK;

    if (!d)
        return err_sys(err, LARDER_EIO, errno, "%s: open", b->tmp);
    dir_remove(dirfd(d), "in", 0);
    while (!rc && (e = readdir(d))) {
        size_t n = strlen(e->d_name);
        struct stat st;
        if (e->d_name[0] == '.' || is_sst(e->d_name) || strcmp(e->d_name, "CURRENT") == 0 || strcmp(e->d_name, manifest) == 0)
            continue;
        if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW))
            rc = errno == ENOENT ? LARDER_OK : err_sys(err, LARDER_EIO, errno, "%s/%s: stat", b->tmp, e->d_name);
        else if (n > 4 && strcmp(e->d_name + n - 4, ".log") == 0 && st.st_size > 0)
            rc = err_set(err, LARDER_EIO, "%s/%s: RocksDB left an unexpected log", b->tmp, e->d_name);
        else if (unlinkat(dirfd(d), e->d_name, 0))
            rc = err_sys(err, LARDER_EIO, errno, "%s/%s: remove", b->tmp, e->d_name);
    }
    closedir(d);
    return rc;
}

/* Which of RocksDB's files is our i-th: they are known by their first keys. */
static int name_ssts(struct build *b, const rocksdb_livefiles_t *live, struct larder_error *err)
{
    int n = rocksdb_livefiles_count(live);

    if ((size_t)n != b->n)
        return err_set(err, LARDER_EIO, "%s: RocksDB took %d files of %zu", b->tmp, n, b->n);
    for (int i = 0; i < n; i++) {
        size_t first_len, last_len, lo = 0, hi = b->n;
        const char *first = rocksdb_livefiles_smallestkey(live, i, &first_len);
        const char *last = rocksdb_livefiles_largestkey(live, i, &last_len);
        const char *name = rocksdb_livefiles_name(live, i);
        while (hi - lo > 1) {
            size_t mid = lo + (hi - lo) / 2;
            if (bytes_cmp(b->files[mid].first, b->files[mid].first_len, first, first_len) <= 0)
                lo = mid;
            else
                hi = mid;
        }
        struct index_file *f = &b->files[lo];
        if (bytes_cmp(f->first, f->first_len, first, first_len) || bytes_cmp(f->last, f->last_len, last, last_len) || !is_sst(name))
            return err_set(err, LARDER_EIO, "%s: RocksDB lists %s with other keys than were written", b->tmp, name);
        free(f->name);
        if (!(f->name = strdup(name + (name[0] == '/'))))
            return err_nomem(err, strlen(name), "a file name");
    }
    return LARDER_OK;
}

/* Opens the stripped database as a reader will, and finds the ends of every SST in it. */
static int build_prove(struct build *b, struct larder_error *err)
{
    struct part p = {.keys = b->keys, .path = b->tmp};
    int rc = part_open_db(&p, NULL, err);

    if (!rc) {
        const rocksdb_livefiles_t *live = rocksdb_livefiles(p.db);
        rc = name_ssts(b, live, err);
        rocksdb_livefiles_destroy(live);
    }
    for (size_t i = 0; !rc && i < 2 * b->n; i++) {
        const struct index_file *f = &b->files[i / 2];
        char *failed = NULL;
        rocksdb_pinnableslice_t *v = rocksdb_get_pinned_cf(p.db, p.read, p.cf, (const char *)(i % 2 ? f->last : f->first),
                                                           i % 2 ? f->last_len : f->first_len, &failed);
        if (failed)
            rc = rocks_failed(failed, b->tmp, err);
        else if (!v)
            rc = err_set(err, LARDER_EIO, "%s: RocksDB does not find a key just written to %s", b->tmp, f->name);
        if (v)
            rocksdb_pinnableslice_destroy(v);
    }
    p.path = NULL;
    part_close(&p);
    return rc;
}

/* Fills f for RocksDB's own file. */
static int own_file(struct index_file *f, const char *name, struct larder_error *err)
{
    f->name = strdup(name);
    f->first = malloc(1);
    f->last = malloc(1);
    return f->name && f->first && f->last ? LARDER_OK : err_nomem(err, strlen(name), "an index file's name");
}

/* Sizes and CRCs of everything, durable; then the name. */
static int build_seal(struct build *b, const char *manifest, const char *root, const char *dir, struct index_part *part,
                      struct larder_error *err)
{
    AUTO_FREE char *to = NULL, *parent = NULL;
    struct index_part p = {.lo = b->lo, .hi = b->hi, .keys = b->keys};
    int rc = LARDER_OK;

    p.files = calloc(b->n + 2, sizeof(*p.files));
    if (!p.files || !(p.dir = strdup(dir))) {
        free(p.files);
        return err_nomem(err, b->n * sizeof(*p.files), "an index part");
    }
    p.n_files = b->n + 2;
    memcpy(p.files + 2, b->files, b->n * sizeof(*p.files));
    b->n = 0; /* moved */
    if (!(rc = own_file(&p.files[0], "CURRENT", err)))
        rc = own_file(&p.files[1], manifest, err);
    for (size_t i = 0; !rc && i < p.n_files; i++) {
        AUTO_FREE char *path = NULL;
        if (!(rc = make_path(&path, err, "%s/%s", b->tmp, p.files[i].name)))
            rc = file_sum(path, true, &p.files[i].size, &p.files[i].crc, err);
    }
    if (!rc && !(rc = dir_sync(b->tmp, err)) && !(rc = make_path(&to, err, "%s/index/%s", root, dir)) &&
        !(rc = make_path(&parent, err, "%s/index", root))) {
        if (rename(b->tmp, to))
            rc = err_sys(err, errno == ENOTEMPTY || errno == EEXIST ? LARDER_EEXIST : LARDER_EIO, errno, "%s: rename", to);
        else if ((rc = dir_sync(parent, err)))
            dir_remove(AT_FDCWD, to, 0);
    }
    if (rc) {
        index_part_release(&p);
        return rc;
    }
    *part = p;
    return LARDER_OK;
}

static int build_run(struct build *b, index_next_fn *next, void *user, struct larder_error *err)
{
    const void *key;
    size_t len;
    uint64_t ordinal;
    int rc;

    while ((rc = next(user, &key, &len, &ordinal, err)) == LARDER_OK)
        if ((rc = build_add(b, key, len, ordinal, err)))
            return rc;
    return rc != LARDER_END ? rc : b->sst ? sst_end(b, err) : LARDER_OK;
}

/* Makes ROOT/index and an empty <dir>.tmp in it. */
static int build_begin(struct build *b, const char *root, const char *dir, struct larder_error *err)
{
    AUTO_FREE char *parent = NULL, *to = NULL, *in = NULL;
    struct stat st;
    int rc;

    if ((rc = make_path(&parent, err, "%s/index", root)) || (rc = make_path(&to, err, "%s/%s", parent, dir)) ||
        (rc = make_path(&b->tmp, err, "%s.tmp", to)) || (rc = make_path(&in, err, "%s/in", b->tmp)))
        return rc;
    if (mkdir(parent, 0777) && errno != EEXIST)
        return err_sys(err, LARDER_EIO, errno, "%s: mkdir", parent);
    if (lstat(to, &st) == 0)
        return err_set(err, LARDER_EEXIST, "%s is there already", to);
    dir_remove(AT_FDCWD, b->tmp, 1); /* of a run that was killed */
    if (mkdir(b->tmp, 0777) || mkdir(in, 0777))
        return err_sys(err, LARDER_EIO, errno, "%s: mkdir", b->tmp);
    b->env = rocksdb_envoptions_create();
    b->options = make_options(NULL, false);
    b->lo = UINT64_MAX;
    return LARDER_OK;
}

int index_build(const char *root, const char *dir, index_next_fn *next, void *user, struct index_part *part,
                struct larder_error *err)
{
    struct build b = {0};
    char manifest[64];
    int rc = build_begin(&b, root, dir, err);

    if (!rc)
        rc = build_run(&b, next, user, err);
    if (!rc && b.keys == 0) { /* nothing to keep, and nothing to open later */
        char *name = strdup(dir);
        if (name)
            *part = (struct index_part){.dir = name};
        else
            rc = err_nomem(err, strlen(dir), "an index part");
    } else if (!rc && !(rc = build_adopt(&b, err)) && !(rc = current_manifest(&b, manifest, err)) &&
               !(rc = build_strip(&b, manifest, err)) && !(rc = build_prove(&b, err))) {
        rc = build_seal(&b, manifest, root, dir, part, err);
    }
    if (b.sst) { /* it removes its file on its way out: before the folder goes */
        rocksdb_sstfilewriter_destroy(b.sst);
        b.sst = NULL;
    }
    if (b.tmp)
        dir_remove(AT_FDCWD, b.tmp, 1);
    build_release(&b);
    return rc;
}
