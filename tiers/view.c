/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c - small warm reads without a system call: a copy out of a mapping of the shard, where its pages are known to be in
 * memory.
 *
 * A read of the page cache costs the same whether it goes through pread or io_uring, and for small records most of it is not
 * the copy. So a shard that is read often gets a mapping and a bitmap of its pages that were in the page cache when mincore(2)
 * was asked last; a segment whose pages are all in the bitmap is copied from the mapping, any other is left to the
 * engine. Mappings are made first come, first served up to VIEWS_MAX and stay until close.
 *
 * A mapped file is dangerous: a page that cannot be had is SIGBUS. Hence [tiers I5]: a mapping is only ever touched inside
 * view_copy; only in pages that were resident; after fstat in the same batch has shown the file at its full length; and only on
 * local file systems. What remains is a file that somebody cuts short during the copy, and a page that was evicted since the
 * last sample from a disk that now fails.
 *
 * The cost of sampling is held to a fraction of the reads it follows: a shard of n pages is sampled after n / SAMPLE_EVERY
 * reads that found no bit, and after n reads that did.
 *
 * Threads: view_copy from any number at once. Bits are relaxed atomics: a stale one costs a page fault or a read. lock
 * guards n_views and making a view, and is only tried: who does not get it reads; view.sampling admits one sampler.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tiers/tiers_int.h"

#define VIEWS_MAX 4096u
#define PAGE 4096u
#define SAMPLE_EVERY 16u
#define SAMPLE_PAGES 4096u /* of one mincore call */

struct view {
    const uint8_t *map;
    uint64_t size;
    size_t n_pages;
    _Atomic uint64_t checked;      /* the last batch that saw the file at its full length */
    _Atomic uint32_t hits, misses; /* since the last sample */
    _Atomic bool dead;             /* the file was seen short */
    atomic_flag sampling;
    _Atomic uint64_t bits[];
};

struct views {
    struct origin *origin;
    size_t n_shards;
    _Atomic uint64_t batch;
    pthread_mutex_t lock;
    unsigned n_views;
    _Atomic bool full;              /* no more views */
    struct view *_Atomic *by_shard; /* NULL: not mapped */
    _Atomic uint32_t *reads;        /* of unmapped shards */
};

/* Where mapped pages come from a disk of this machine, or from memory. */
static bool local_file_system(int fd)
{
    static const uint32_t local[] = {0xef53 /* ext */, 0x58465342 /* xfs */, 0x9123683e /* btrfs */, 0x01021994 /* tmpfs */,
                                     0xf2f52010 /* f2fs */, 0x794c7630 /* overlayfs */, 0x2fc12fc1 /* zfs */};
    struct statfs s;
    if (fstatfs(fd, &s) != 0)
        return false;
    for (size_t i = 0; i < ARRAY_LEN(local); i++) {
        if ((uint32_t)s.f_type == local[i])
            return true;
    }
    return false;
}

static bool mincore_honest(int fd, const struct stat *st)
{
    return st->st_uid == geteuid() || faccessat(fd, "", W_OK, AT_EMPTY_PATH | AT_EACCESS) == 0;
}

static size_t pages_of(uint64_t size) { return (size_t)((size + PAGE - 1) / PAGE); }

/* Asks which pages are resident. One thread at a time; others go on with the old bits. */
static void sample(struct view *v)
{
    uint8_t resident[SAMPLE_PAGES];
    if (atomic_flag_test_and_set_explicit(&v->sampling, memory_order_acquire))
        return;
    for (size_t at = 0; at < v->n_pages; at += SAMPLE_PAGES) {
        size_t n = MIN((size_t)SAMPLE_PAGES, v->n_pages - at);
        bool ok = mincore((void *)(v->map + at * PAGE), n * PAGE, resident) == 0;
        for (size_t i = 0; i < n; i += 64) {
            uint64_t word = 0;
            for (size_t k = 0; ok && k < 64 && i + k < n; k++)
                word |= (uint64_t)(resident[i + k] & 1) << k;
            atomic_store_explicit(&v->bits[(at + i) / 64], word, memory_order_relaxed);
        }
    }
    atomic_store_explicit(&v->hits, 0, memory_order_relaxed);
    atomic_store_explicit(&v->misses, 0, memory_order_relaxed);
    atomic_flag_clear_explicit(&v->sampling, memory_order_release);
}

static struct view *view_map(struct views *vs, uint32_t shard)
{
    uint64_t size = origin_shard(vs->origin, shard)->size;
    struct origin_file file;
    struct stat st;
    size_t n = pages_of(size), words = (n + 63) / 64;
    void *map = MAP_FAILED;
    if (origin_get(vs->origin, shard, false, &file, NULL))
        return NULL;
    if (fstat(file.fd, &st) == 0 && (uint64_t)st.st_size >= size && mincore_honest(file.fd, &st) && local_file_system(file.fd))
        map = mmap(NULL, n * PAGE, PROT_READ, MAP_SHARED, file.fd, 0);
    origin_put(vs->origin, &file);
    if (map == MAP_FAILED)
        return NULL;
    struct view *v = calloc(1, sizeof(*v) + words * sizeof(v->bits[0]));
    if (!v) {
        munmap(map, n * PAGE);
        return NULL;
    }
    v->map = map;
    v->size = size;
    v->n_pages = n;
    atomic_flag_clear(&v->sampling);
    sample(v);
    return v;
}

/* Counts a read of an unmapped shard; maps it when it was read often. */
static void consider(struct views *vs, uint32_t shard)
{
    uint64_t size = origin_shard(vs->origin, shard)->size;
    uint32_t reads = atomic_fetch_add_explicit(&vs->reads[shard], 1, memory_order_relaxed);
    if (!size || reads < pages_of(size) / SAMPLE_EVERY || atomic_load_explicit(&vs->full, memory_order_relaxed))
        return;
    if (pthread_mutex_trylock(&vs->lock) != 0)
        return;
    if (!atomic_load_explicit(&vs->by_shard[shard], memory_order_relaxed)) {
        struct view *v = view_map(vs, shard);
        atomic_store_explicit(&vs->by_shard[shard], v, memory_order_release);
        atomic_store_explicit(&vs->reads[shard], 0, memory_order_relaxed); /* refused: tried again after as many */
        if (v && ++vs->n_views == VIEWS_MAX)
            atomic_store_explicit(&vs->full, true, memory_order_relaxed);
    }
    pthread_mutex_unlock(&vs->lock);
}

static bool all_resident(struct view *v, uint64_t offset, uint32_t len)
{
    for (uint64_t p = offset / PAGE; p <= (offset + len - 1) / PAGE; p++) {
        if (!(atomic_load_explicit(&v->bits[p / 64], memory_order_relaxed) >> p % 64 & 1))
            return false;
    }
    return true;
}

/* Whether the file still has its length; asked once a batch, for truncated pages are SIGBUS. */
static bool still_whole(struct views *vs, struct view *v, uint32_t shard, uint64_t batch)
{
    struct origin_file file;
    struct stat st;
    if (atomic_load_explicit(&v->checked, memory_order_relaxed) == batch)
        return true;
    if (origin_get(vs->origin, shard, false, &file, NULL))
        return false;
    bool ok = fstat(file.fd, &st) == 0 && (uint64_t)st.st_size >= v->size;
    origin_put(vs->origin, &file);
    if (ok)
        atomic_store_explicit(&v->checked, batch, memory_order_relaxed);
    else
        atomic_store_explicit(&v->dead, true, memory_order_relaxed);
    return ok;
}

uint64_t views_batch(struct views *vs) { return atomic_fetch_add_explicit(&vs->batch, 1, memory_order_relaxed) + 1; }

bool view_copy(struct views *vs, uint64_t batch, uint32_t shard, uint64_t offset, uint32_t len, void *to)
{
    struct view *v = atomic_load_explicit(&vs->by_shard[shard], memory_order_acquire);
    if (!v) {
        consider(vs, shard);
        return false;
    }
    if (atomic_load_explicit(&v->dead, memory_order_relaxed) || offset > v->size || len > v->size - offset)
        return false;
    if (!all_resident(v, offset, len)) {
        if (atomic_fetch_add_explicit(&v->misses, 1, memory_order_relaxed) >= v->n_pages / SAMPLE_EVERY)
            sample(v);
        return false;
    }
    if (!still_whole(vs, v, shard, batch))
        return false;
    memcpy(to, v->map + offset, len);
    if (atomic_fetch_add_explicit(&v->hits, 1, memory_order_relaxed) >= v->n_pages)
        sample(v);
    return true;
}

int views_new(struct origin *o, struct views **out, struct larder_error *err)
{
    *out = NULL;
    struct views *vs = calloc(1, sizeof(*vs));
    size_t n = MAX(origin_shards(o), (size_t)1);
    if (!vs)
        return err_nomem(err, sizeof(*vs), "the shard mappings");
    pthread_mutex_init(&vs->lock, NULL);
    vs->origin = o;
    vs->n_shards = origin_shards(o);
    vs->by_shard = calloc(n, sizeof(*vs->by_shard));
    vs->reads = calloc(n, sizeof(*vs->reads));
    if (!vs->by_shard || !vs->reads) {
        views_free(vs);
        return err_nomem(err, n * (sizeof(*vs->by_shard) + sizeof(*vs->reads)), "the shard mappings");
    }
    atomic_store(&vs->full, sysconf(_SC_PAGESIZE) != PAGE);
    *out = vs;
    return LARDER_OK;
}

unsigned views_mapped(struct views *vs)
{
    pthread_mutex_lock(&vs->lock);
    unsigned n = vs->n_views;
    pthread_mutex_unlock(&vs->lock);
    return n;
}

void views_free(struct views *vs)
{
    if (!vs)
        return;
    for (size_t i = 0; vs->by_shard && i < vs->n_shards; i++) {
        struct view *v = atomic_load(&vs->by_shard[i]);
        if (v) {
            munmap((void *)v->map, v->n_pages * PAGE);
            free(v);
        }
    }
    pthread_mutex_destroy(&vs->lock);
    free(vs->by_shard);
    free(vs->reads);
    free(vs);
}
