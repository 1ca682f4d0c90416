/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme.c - the NVMe tier: opening a directory or joining those who use it, looking up, checking what was read.
 *
 *     nobody uses it:   make the region of (cache name, directory), lock the directory, recover what it holds
 *     others of the group do:   join the region; the lock comes with it
 *     another group does:       EBUSY
 *
 * What the map says is a hint. A reader takes the place of a record, reads there by whatever engine, and nvme_check compares
 * header and CRC with what was wanted: records that were overwritten meanwhile (FIFO), torn by a power cut or damaged by the disk
 * fail it and count as misses.
 *
 * Each process opens the segments' files itself, when it first needs them. A segment's file stays the same file while the region
 * lives: it grows, shrinks and is overwritten, but it is not removed once anybody may have it open.
 *
 * Threads: lookup, check, admit and stats from any; open and close from one. A forked child may only close.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tiers/nvme_int.h"

#define READ_ERRORS_MAX 64u      /* in a row */
#define MEET_MS 200u             /* for a group that is just going */
#define LOOK_UP_MS 200u
#define LEAVE_MS 2000u

void nvme_warn(struct nvme *n, const char *fmt, ...)
{
    va_list ap;
    if (n->warning[0])
        return;
    va_start(ap, fmt);
    vsnprintf(n->warning, sizeof(n->warning), fmt, ap);
    va_end(ap);
}

int nvme_space(struct nvme *n, const struct cache_space *space, uint32_t *id, struct larder_error *err)
{
    *id = 0;
    pthread_mutex_lock(&n->lock);
    bool locked = nvme_table_lock(n);
    if (locked) {
        nvme_reap(n);
        *id = nvme_space_id(n, space);
        if (*id) {
            struct nvme_space *s = &n->h->spaces[*id];
            unsigned slot = n->member & 0xff;
            s->users[slot / 64] |= 1ull << slot % 64;
            s->last_used_s = now_wall_s();
        }
        nvme_table_unlock(n);
        n->checkpoint_due = true;
        pthread_cond_signal(&n->work);
    }
    pthread_mutex_unlock(&n->lock);
    if (!locked)
        return err_set(err, LARDER_EBUSY, "%s: a process that uses the cache does not go on", n->dir);
    return *id ? LARDER_OK : err_set(err, LARDER_ENOMEM, "%s: caches %u datasets already: clear it", n->dir, NVME_SPACES_MAX);
}

/* ---- open and close ---- */

struct making { struct nvme *n; const struct nvme_options *o; int lock; };

static int make_shared(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    struct making *m = user;
    (void)bytes;
    int rc = nvme_shared_init(base, m->o->bytes, m->o->replacement, err);
    return rc ? rc : nvme_lock_take(m->n->dir_fd, m->o->dir, &m->lock, err);
}

/* Joins or makes the region. A group whose last process is just going still holds the directory: it is asked again. */
static int meet(struct nvme *n, const struct nvme_options *o, struct larder_error *err)
{
    struct making m = {n, o, -1};
    struct stat st;
    char name[32];
    if (fstat(n->dir_fd, &st) != 0)
        return err_sys(err, LARDER_EIO, errno, "%s: fstat", n->dir);
    uint64_t id[2] = {(uint64_t)st.st_dev, (uint64_t)st.st_ino};
    snprintf(name, sizeof(name), "nvme-%016llx",
             (unsigned long long)hash64(hash64(0, id, sizeof(id)), o->name ? o->name : "", o->name ? strlen(o->name) : 0));
    struct share_options so = {o->name ? name : NULL, nvme_shared_bytes(o->bytes), make_shared, &m, &m.lock};
    uint64_t until = now_ns() + MEET_MS * 1000000ull;
    for (long us = 1000;; us *= 2) {
        int rc = share_open(&so, &n->share, err);
        if (rc != LARDER_EBUSY || now_ns() >= until)
            return rc;
        struct timespec t = {0, us * 1000};
        nanosleep(&t, NULL);
    }
}

/* Waits for who opens the directory first to find out what is in it, unless that one is stopped. */
static bool wait_for_opener(struct nvme *n)
{
    while (!nvme_table_lock_wait(n, 1000)) {
        uint32_t opener = atomic_load(&n->h->opener);
        if (!opener || share_stopped(n->share, opener))
            return nvme_table_lock_wait(n, 1000);
    }
    return true;
}

static int join(struct nvme *n, struct larder_error *err)
{
    struct nvme_shared *h = n->h;
    int rc = LARDER_OK;
    if (!wait_for_opener(n))
        return err_set(err, LARDER_EBUSY, "%s: a process that uses the cache does not go on", n->dir);
    if (!h->ready) {
        atomic_store(&h->opener, n->member);
        nvme_table_reset(n);
        rc = nvme_recover(n, err);
        h->ready = !rc;
        atomic_store(&h->opener, 0);
    }
    if (!rc) {
        nvme_register(n);
        nvme_lock_note(share_carried(n->share), n->member & 0xff, true);
    }
    nvme_table_unlock(n);
    return rc;
}

static int open_dir(struct nvme *n, const struct nvme_options *o, struct larder_error *err)
{
    if (mkdir(n->dir, 0777) != 0 && errno != EEXIST)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be made", n->dir);
    n->dir_fd = open(n->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (n->dir_fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be opened", n->dir);
    int rc = meet(n, o, err);
    if (rc)
        return rc;
    struct nvme_shared *h = share_base(n->share);
    if (!nvme_shared_good(h, share_bytes(n->share)))
        return err_set(err, LARDER_EVERSION, "%s: the cache is in use by another version of larder", n->dir);
    n->h = h;
    n->member = share_member(n->share);
    n->map = (struct nvme_map){n->share, (uint8_t *)h + h->off_map, h->level_max, &h->map, h->seq};
    if (o->name && share_private(n->share))
        nvme_warn(n, "%s: nobody who uses cache '%s' answers: it is not shared with other processes", n->dir, o->name);
    rc = join(n, err);
    return rc ? rc : nvme_writer_start(n, err);
}

static int init_locks(struct nvme *n, struct larder_error *err)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int rc = pthread_mutex_init(&n->lock, NULL);
    if (!rc)
        rc = pthread_cond_init(&n->work, &attr);
    if (!rc)
        rc = pthread_cond_init(&n->written, NULL);
    if (!rc)
        rc = pthread_cond_init(&n->room, NULL);
    pthread_condattr_destroy(&attr);
    return rc ? err_sys(err, LARDER_ENOMEM, rc, "a lock") : LARDER_OK;
}

int nvme_open(const struct nvme_options *o, struct nvme **out, struct larder_error *err)
{
    *out = NULL;
    if (o->bytes < NVME_BYTES_MIN)
        return err_set(err, LARDER_EINVAL, "%s: an NVMe cache needs 4 MiB or more", o->dir);
    struct nvme *n = calloc(1, sizeof(*n));
    if (!n)
        return err_nomem(err, sizeof(*n), "an NVMe cache");
    n->dir_fd = -1;
    n->pid = getpid();
    n->direct = o->direct;
    n->queue_tail = &n->queue;
    n->flushed_ns = now_ns();
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        n->own[i].fd = -1;
    n->dir = strdup(o->dir);
    int rc = n->dir ? init_locks(n, err) : err_nomem(err, strlen(o->dir) + 1, "a path");
    if (!rc)
        rc = open_dir(n, o, err);
    if (rc) {
        nvme_close(n);
        return rc;
    }
    *out = n;
    return LARDER_OK;
}

/* It is none of the users any more; what it filled and could not hand over is taken for a dead one's. */
static void leave(struct nvme *n)
{
    if (!nvme_table_lock_wait(n, LEAVE_MS))
        return;
    if (n->h->members[n->member & 0xff].handles == 1)
        nvme_lock_note(share_carried(n->share), n->member & 0xff, false);
    nvme_leave(n);
    nvme_table_unlock(n);
}

void nvme_close(struct nvme *n)
{
    if (!n)
        return;
    if (n->pid == getpid()) {
        nvme_writer_stop(n);
        if (n->registered)
            leave(n);
    }
    nvme_writer_release(n);
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        if (n->own[i].fd >= 0)
            close(n->own[i].fd);
    share_close(n->share);
    if (n->dir_fd >= 0)
        close(n->dir_fd);
    free(n->dir);
    free(n);
}

/* ---- reading ---- */

/* The file of a segment that another process made, or an earlier run. -1: none. */
static int open_file(struct nvme *n, unsigned segment, uint64_t seq)
{
    struct nvme_own *own = &n->own[segment];
    pthread_mutex_lock(&n->lock);
    if (own->fd < 0 && own->no_fd != seq) {
        int fd = nvme_segment_open(n, segment, false);
        if (fd >= 0) {
            atomic_store_explicit(&own->fd, fd, memory_order_release);
        } else {
            own->no_fd = seq;
            nvme_warn(n, "%s: a segment cannot be opened (%s): its records are passed by", n->dir, strerror(-fd));
        }
    }
    int fd = own->fd;
    pthread_mutex_unlock(&n->lock);
    return fd;
}

bool nvme_lookup(struct nvme *n, uint32_t space, uint64_t ordinal, struct nvme_place *at)
{
    struct nvme_hint h;
    if (space == 0 || space > NVME_SPACES_MAX || ordinal > CACHE_ORDINAL_MAX ||
        unlikely(atomic_load_explicit(&n->broken, memory_order_relaxed)) || !nvme_map_find(&n->map, space, ordinal, &h) || h.pending)
        return false;
    uint64_t seq = atomic_load_explicit(&n->h->seq[h.segment], memory_order_relaxed);
    uint64_t from = (uint64_t)h.unit * NVME_UNIT, to = from + (uint64_t)h.units * NVME_UNIT, page = round_down(from, NVME_PAGE);
    int fd = atomic_load_explicit(&n->own[h.segment].fd, memory_order_acquire);
    if (unlikely(fd < 0) && (fd = open_file(n, h.segment, seq)) < 0)
        return false;
    *at = (struct nvme_place){fd, page, (uint32_t)(round_up(to, NVME_PAGE) - page), (uint32_t)(from - page), h.segment, (uint32_t)seq};
    return (seq & 1023) == h.generation;
}

/* Drops the entry unless its segment was begun anew: then it is gone already, and nothing was wrong. */
void nvme_drop(struct nvme *n, uint32_t space, uint64_t ordinal, const struct nvme_place *at)
{
    pthread_mutex_lock(&n->lock);
    if (nvme_table_lock(n)) {
        if ((uint32_t)n->h->seq[at->segment] == at->generation &&
            nvme_map_drop(&n->map, space, ordinal, at->segment, (uint32_t)((at->offset + at->skip) / NVME_UNIT))) {
            atomic_fetch_add(&n->h->healed, 1);
            nvme_entry_gone(n, at->segment);
        }
        nvme_table_unlock(n);
    }
    pthread_mutex_unlock(&n->lock);
}

static void read_failed(struct nvme *n)
{
    if (atomic_fetch_add(&n->read_errors, 1) + 1 < READ_ERRORS_MAX || atomic_exchange(&n->broken, true))
        return;
    n->failed = true;
    pthread_mutex_lock(&n->lock);
    nvme_warn(n, "%s: %u reads failed one after the other: the cache is passed by", n->dir, READ_ERRORS_MAX);
    pthread_mutex_unlock(&n->lock);
}

bool nvme_check(struct nvme *n, uint32_t space, uint64_t ordinal, const struct nvme_place *at, const void *read, struct cached *hit)
{
    const uint8_t *head = read ? (const uint8_t *)read + at->skip : NULL;
    struct nvme_record r;
    if (head && nvme_record_decode(head, &r) && r.space_hash == n->h->spaces[space].hash && r.ordinal == ordinal &&
        nvme_units(r.stored_len) * NVME_UNIT <= at->len - at->skip && crc32c(0, head + NVME_UNIT, r.stored_len) == r.crc) {
        *hit = (struct cached){head + NVME_UNIT, r.stored_len, r.raw_len, r.crc, r.codec};
        if (atomic_load_explicit(&n->read_errors, memory_order_relaxed))
            atomic_store_explicit(&n->read_errors, 0, memory_order_relaxed);
        return true;
    }
    if (!read && (uint32_t)atomic_load(&n->h->seq[at->segment]) == at->generation) /* else its file may have been cut */
        read_failed(n);
    nvme_drop(n, space, ordinal, at);
    return false;
}

/* ---- what another process is writing ---- */

static uint32_t writer_of(const struct nvme *n, uint32_t space, uint64_t ordinal)
{
    struct nvme_hint h;
    if (space == 0 || space > NVME_SPACES_MAX || ordinal > CACHE_ORDINAL_MAX || atomic_load_explicit(&n->broken, memory_order_relaxed) ||
        !nvme_map_find(&n->map, space, ordinal, &h) || !h.pending)
        return 0;
    uint32_t owner = atomic_load(&n->h->segments[h.segment].owner);
    return owner == n->member ? 0 : owner;
}

bool nvme_coming(const struct nvme *n, uint32_t space, uint64_t ordinal) { return writer_of(n, space, ordinal) != 0; }

void nvme_wait(struct nvme *n, uint32_t space, uint64_t ordinal, unsigned timeout_ms, struct waker *w)
{
    uint64_t end = now_ns() + timeout_ms * 1000000ull;
    atomic_fetch_add(&n->h->waiters, 1); /* who is killed here leaves it: the bell is then rung for nobody */
    for (;;) {
        uint32_t bell = atomic_load(&n->h->bell), writer = writer_of(n, space, ordinal);
        uint64_t now = now_ns();
        if (w)
            atomic_store(&w->asleep_on, &n->h->bell);
        if (now >= end || !writer || (w && atomic_load(&w->woken)))
            break;
        if (share_stopped(n->share, writer))
            break;
        if (share_alive(n->share, writer)) {
            share_wait(&n->h->bell, bell, (unsigned)MIN((end - now) / 1000000 + 1, LOOK_UP_MS));
            continue;
        }
        pthread_mutex_lock(&n->lock);
        bool locked = nvme_table_lock(n);
        if (locked) {
            nvme_reap(n);
            nvme_table_unlock(n);
        }
        pthread_mutex_unlock(&n->lock);
        if (!locked)
            break;
    }
    if (w)
        atomic_store(&w->asleep_on, NULL);
    atomic_fetch_sub(&n->h->waiters, 1);
}

/* ---- statistics ---- */

bool nvme_direct(const struct nvme *n) { return n->direct; }
enum replacement nvme_replacement(const struct nvme *n) { return (enum replacement)n->h->replacement; }

void nvme_stats(const struct nvme *shown, struct nvme_stats *out)
{
    struct nvme *n = (struct nvme *)(uintptr_t)shown; /* but for its lock it is left alone */
    struct nvme_shared *h = n->h;
    *out = (struct nvme_stats){.budget = h->budget, .entries = h->entries, .admissions = h->admissions, .refusals = h->refusals,
                               .evictions = h->evictions, .healed = h->healed, .recovered = h->recovered,
                               .bookkeeping = nvme_map_bytes(&n->map)};
    pthread_mutex_lock(&n->lock);
    if (nvme_table_lock(n)) {
        out->used = h->other_blocks;
        for (unsigned i = 0; i < h->n_segments; i++)
            out->used += h->segments[i].blocks;
        nvme_table_unlock(n);
    }
    out->warning = n->warning[0] ? n->warning : NULL;
    pthread_mutex_unlock(&n->lock);
}
