/* SPDX-License-Identifier: Apache-2.0 */
/*
 * origin_dir.c - the shard files of a dataset in a local directory, kept open within a bound.
 *
 * by_shard[shard] names the slot that holds the shard's descriptor, or none. A slot's state is one 64-bit atomic,
 *
 *     | shard + 1, 0: empty : 32 | used : 1 | pins : 31 |
 *
 * so that a hit is two loads and one compare-and-swap that pins the slot only while it still holds that shard. A slot is emptied
 * by a swap that succeeds only at zero pins, so a descriptor is never closed under a read [tiers I4]. Eviction is CLOCK: the
 * hand clears `used` once before it takes a slot. Opening and closing happen outside the lock; two threads that miss the same
 * shard at once both open it, and the second drops its own.
 *
 * Direct: decided at open (LARDER_DIRECT_*, and whether the file system has O_DIRECT at 4096 bytes) and given up for the whole
 * dataset at the first refusal; descriptors that are open then lose O_DIRECT by fcntl when they are next refused.
 *
 * Threads: all functions but open and close, any number at once. lock guards: the hand, slot.fd while the slot is empty,
 * by_shard writes.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/tiers_int.h"

#define PINS_MASK 0x7fffffffull
#define USED 0x80000000ull
#define STATE(shard) (((uint64_t)(shard) + 1) << 32)

struct slot {
    _Atomic uint64_t state;
    int fd;              /* stable while pinned */
    _Atomic bool direct; /* fd has O_DIRECT */
};

struct origin {
    int dir;
    const struct shard_ref *shards;
    size_t n_shards;
    unsigned n_slots, hand;
    _Atomic bool direct;
    pthread_mutex_t lock;
    struct slot *slots;
    _Atomic uint32_t *by_shard; /* slot + 1; 0: not open */
};

static bool state_holds(uint64_t state, uint32_t shard) { return state >> 32 == (uint64_t)shard + 1; }

/* Pins the slot if it holds the shard. */
static bool pin(struct slot *s, uint32_t shard)
{
    uint64_t state = atomic_load_explicit(&s->state, memory_order_relaxed);
    while (state_holds(state, shard) && (state & PINS_MASK) != PINS_MASK) {
        if (atomic_compare_exchange_weak_explicit(&s->state, &state, (state + 1) | USED, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    }
    return false;
}

static bool lookup(struct origin *o, uint32_t shard, struct origin_file *f)
{
    uint32_t at = atomic_load_explicit(&o->by_shard[shard], memory_order_relaxed);
    if (!at || !pin(&o->slots[at - 1], shard))
        return false;
    struct slot *s = &o->slots[at - 1];
    *f = (struct origin_file){s->fd, (int32_t)(at - 1), atomic_load_explicit(&s->direct, memory_order_relaxed)};
    return true;
}

/* Empties a slot by CLOCK and returns it, or NULL when all are pinned. full: not one that is empty. lock is held. */
static struct slot *evict(struct origin *o, bool full, int *old_fd)
{
    for (unsigned i = 0; i < 2 * o->n_slots + 1; i++) {
        struct slot *s = &o->slots[o->hand];
        o->hand = (o->hand + 1) % o->n_slots;
        uint64_t state = atomic_load_explicit(&s->state, memory_order_relaxed);
        if ((state & PINS_MASK) || (full && !state))
            continue;
        if (state & USED) {
            atomic_compare_exchange_strong_explicit(&s->state, &state, state & ~USED, memory_order_relaxed,
                                                    memory_order_relaxed);
            continue;
        }
        /* acquire: pairs with the release of put, so that the fd is closed after the last read through it */
        if (!atomic_compare_exchange_strong_explicit(&s->state, &state, 0, memory_order_acquire, memory_order_relaxed))
            continue;
        *old_fd = state ? s->fd : -1;
        if (state)
            atomic_store_explicit(&o->by_shard[(state >> 32) - 1], 0, memory_order_relaxed);
        return s;
    }
    return NULL;
}

static void advise(int fd, bool direct)
{
    if (!direct)
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM); /* readahead of random reads is waste */
}

/* A descriptor or -errno. */
static int open_shard(struct origin *o, uint32_t shard, bool *direct)
{
    const char *name = o->shards[shard].name;
    *direct = atomic_load_explicit(&o->direct, memory_order_relaxed);
    int fd = openat(o->dir, name, O_RDONLY | O_CLOEXEC | (*direct ? O_DIRECT : 0));
    if (fd < 0 && errno == EINVAL && *direct) {
        atomic_store_explicit(&o->direct, false, memory_order_relaxed);
        *direct = false;
        fd = openat(o->dir, name, O_RDONLY | O_CLOEXEC);
    }
    if (fd < 0)
        return -errno;
    advise(fd, *direct);
    return fd;
}

static int open_failed(const struct origin *o, uint32_t shard, int sys, struct larder_error *err)
{
    const char *name = o->shards[shard].name;
    if (sys == ENOENT)
        return err_sys(err, LARDER_ENOTFOUND, sys, "shard %s is missing; 'larder verify' lists the damage", name);
    if (sys == EMFILE || sys == ENFILE)
        return err_sys(err, LARDER_EIO, sys, "opening shard %s: raise the limit of open files (ulimit -n)", name);
    return err_sys(err, err_code_of(sys), sys, "opening shard %s; 'larder verify' tells what is damaged", name);
}

/* Puts an open descriptor into a slot, pinned. False: all are pinned. *spare: a descriptor to close, or -1. */
static bool publish(struct origin *o, uint32_t shard, int fd, bool direct, struct origin_file *f, int *spare)
{
    bool ok = true;
    *spare = -1;
    pthread_mutex_lock(&o->lock);
    if (lookup(o, shard, f)) { /* another thread was faster */
        *spare = fd;
    } else {
        struct slot *s = evict(o, false, spare);
        ok = s != NULL;
        if (ok) {
            uint32_t at = (uint32_t)(s - o->slots);
            s->fd = fd;
            atomic_store_explicit(&s->direct, direct, memory_order_relaxed);
            atomic_store_explicit(&s->state, STATE(shard) | USED | 1, memory_order_release);
            atomic_store_explicit(&o->by_shard[shard], at + 1, memory_order_relaxed);
            *f = (struct origin_file){fd, (int32_t)at, direct};
        }
    }
    pthread_mutex_unlock(&o->lock);
    return ok;
}

/* Frees one descriptor when the process has no more. */
static bool shed(struct origin *o)
{
    int fd = -1;
    pthread_mutex_lock(&o->lock);
    evict(o, true, &fd);
    pthread_mutex_unlock(&o->lock);
    if (fd >= 0)
        close(fd);
    return fd >= 0;
}

int origin_get(struct origin *o, uint32_t shard, bool force, struct origin_file *f, struct larder_error *err)
{
    if (likely(lookup(o, shard, f)))
        return LARDER_OK;
    bool direct;
    int spare, fd = open_shard(o, shard, &direct);
    while ((fd == -EMFILE || fd == -ENFILE) && shed(o))
        fd = open_shard(o, shard, &direct);
    if ((fd == -EMFILE || fd == -ENFILE) && !force)
        return LARDER_EBUSY;
    if (fd < 0)
        return open_failed(o, shard, -fd, err);
    if (publish(o, shard, fd, direct, f, &spare)) {
        if (spare >= 0)
            close(spare);
        return LARDER_OK;
    }
    if (force) {
        *f = (struct origin_file){fd, -1, direct};
        return LARDER_OK;
    }
    close(fd);
    return LARDER_EBUSY;
}

void origin_put(struct origin *o, const struct origin_file *f)
{
    if (f->slot >= 0)
        atomic_fetch_sub_explicit(&o->slots[f->slot].state, 1, memory_order_release);
    else
        close(f->fd);
}

void origin_direct_refused(struct origin *o, struct origin_file *f)
{
    atomic_store_explicit(&o->direct, false, memory_order_relaxed);
    int flags = fcntl(f->fd, F_GETFL);
    if (flags >= 0 && (flags & O_DIRECT))
        fcntl(f->fd, F_SETFL, flags & ~O_DIRECT);
    advise(f->fd, false);
    if (f->slot >= 0)
        atomic_store_explicit(&o->slots[f->slot].direct, false, memory_order_relaxed);
    f->direct = false;
}

bool origin_direct(const struct origin *o) { return atomic_load_explicit(&o->direct, memory_order_relaxed); }
const struct shard_ref *origin_shard(const struct origin *o, uint32_t shard) { return &o->shards[shard]; }
size_t origin_shards(const struct origin *o) { return o->n_shards; }

unsigned origin_files_open(struct origin *o)
{
    unsigned n = 0;
    for (unsigned i = 0; i < o->n_slots; i++)
        n += atomic_load_explicit(&o->slots[i].state, memory_order_relaxed) != 0;
    return n;
}

/* Whether the file system takes direct reads at multiples of TIERS_ALIGN; asked of the first shard. */
static bool direct_supported(struct origin *o)
{
    int fd = openat(o->dir, o->shards[0].name, O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0)
        return errno != EINVAL; /* a missing shard is for the read that wants it */
    bool ok = true;
#ifdef STATX_DIOALIGN
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &st) == 0 && (st.stx_mask & STATX_DIOALIGN))
        ok = st.stx_dio_offset_align && TIERS_ALIGN % st.stx_dio_offset_align == 0 && st.stx_dio_mem_align <= TIERS_ALIGN;
#endif
    close(fd);
    return ok;
}

static bool choose_direct(struct origin *o, int want)
{
    uint64_t bytes = 0;
    if (want == LARDER_DIRECT_OFF || !o->n_shards)
        return false;
    for (size_t i = 0; i < o->n_shards; i++)
        bytes += o->shards[i].size;
    if (want == LARDER_DIRECT_AUTO && bytes <= memory_available() / 2)
        return false;
    return direct_supported(o);
}

/* At most the half of what the process may open. */
static unsigned slots_of(unsigned files_max, size_t n_shards)
{
    struct rlimit limit;
    uint64_t n = files_max ? files_max : TIERS_FILES_DEFAULT;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        n = MIN(n, limit.rlim_cur / 2);
    return (unsigned)MAX(1u, MIN(MIN(n, n_shards), (uint64_t)INT32_MAX));
}

int origin_open(const char *dir, const struct shard_ref *shards, size_t n, const struct origin_options *options,
                struct origin **out, struct larder_error *err)
{
    *out = NULL;
    if (n >= UINT32_MAX)
        return err_set(err, LARDER_EINVAL, "%s: %zu shards: the most is %u", dir, n, UINT32_MAX - 1);
    struct origin *o = calloc(1, sizeof(*o));
    if (!o)
        return err_nomem(err, sizeof(*o), "the origin");
    pthread_mutex_init(&o->lock, NULL);
    o->shards = shards;
    o->n_shards = n;
    o->n_slots = slots_of(options->files_max, n);
    o->slots = calloc(o->n_slots, sizeof(*o->slots));
    o->by_shard = calloc(MAX(n, (size_t)1), sizeof(*o->by_shard));
    o->dir = n ? open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1; /* a dataset without shards may lack the folder */
    int sys = errno, rc = LARDER_OK;
    if (!o->slots || !o->by_shard)
        rc = err_nomem(err, o->n_slots * sizeof(*o->slots) + n * sizeof(*o->by_shard), "the table of open shards");
    else if (n && o->dir < 0)
        rc = err_sys(err, err_code_of(sys), sys, "opening %s; 'larder verify' lists the damage", dir);
    if (rc) {
        origin_close(o);
        return rc;
    }
    atomic_store(&o->direct, choose_direct(o, options->direct));
    *out = o;
    return LARDER_OK;
}

void origin_close(struct origin *o)
{
    if (!o)
        return;
    for (unsigned i = 0; o->slots && i < o->n_slots; i++) {
        if (atomic_load(&o->slots[i].state))
            close(o->slots[i].fd);
    }
    if (o->dir >= 0)
        close(o->dir);
    pthread_mutex_destroy(&o->lock);
    free(o->slots);
    free(o->by_shard);
    free(o);
}
