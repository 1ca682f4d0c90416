/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme.c - the NVMe tier: opening and recovering a directory, looking up, checking what was read.
 *
 * What the map says is a hint. A reader takes the place of a record, reads there by whatever engine, and nvme_check compares
 * header and CRC with what was wanted: records that were overwritten meanwhile (FIFO), torn by a power cut or damaged by the disk
 * fail it and count as misses. So recovery needs no log and no care: it may believe anything that is whole, for a wrong
 * belief costs one read.
 *
 * Recovery, a segment: the head names its space; the trailer names the footer, which holds its part of the map, and was
 * written after the data were synced. A segment whose footer is missing or damaged (the active ones after a crash) is walked from
 * record to record. Segments are taken in the order of their sequence numbers, so that the newest copy of a record wins. An
 * active segment goes on being filled where it ends.
 *
 * Threads: lookup, check, admit and stats from any; open and close from one. A forked child may only close.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/nvme_int.h"

#define RESERVE_BYTES (256 * KIB) /* of the limit: checkpoint twice, lock, the directory itself */
#define READ_ERRORS_MAX 64u       /* in a row */

void nvme_warn(struct nvme *n, const char *fmt, ...)
{
    va_list ap;
    if (n->warning[0])
        return;
    va_start(ap, fmt);
    vsnprintf(n->warning, sizeof(n->warning), fmt, ap);
    va_end(ap);
}

/* ---- spaces: under lock ---- */

static bool same_space(const struct cache_space *a, const struct cache_space *b)
{
    return memcmp(a->uuid, b->uuid, 16) == 0 && memcmp(a->lineage, b->lineage, 16) == 0 && a->variant == b->variant;
}

/* The id of a space, taken when it is new; 0: all are taken. */
static uint32_t space_id(struct nvme *n, const struct cache_space *key)
{
    uint32_t unused = 0;
    for (uint32_t i = NVME_SPACES_MAX; i >= 1; i--) {
        if (!n->spaces[i].taken)
            unused = i;
        else if (same_space(&n->spaces[i].key, key))
            return i;
    }
    if (unused)
        n->spaces[unused] = (struct nvme_space){.key = *key, .hash = nvme_space_hash(key), .taken = true};
    return unused;
}

int nvme_space(struct nvme *n, const struct cache_space *space, uint32_t *id, struct larder_error *err)
{
    pthread_mutex_lock(&n->lock);
    *id = space_id(n, space);
    if (*id) {
        n->spaces[*id].live = true;
        n->spaces[*id].last_used_s = now_wall_s();
        n->checkpoint_due = true;
        pthread_cond_signal(&n->work);
    }
    pthread_mutex_unlock(&n->lock);
    return *id ? LARDER_OK : err_set(err, LARDER_ENOMEM, "%s: caches %u datasets already: clear it", n->dir, NVME_SPACES_MAX);
}

/* ---- recovery ---- */

/* One segment being recovered. */
struct recovery { struct nvme *n; unsigned segment; int fd; struct nvme_head head; bool keep, failed; };

static bool read_at(void *user, uint64_t offset, void *buf, size_t len)
{
    struct recovery *r = user;
    return nvme_pread(r->fd, buf, len, offset);
}

static bool found(void *user, const struct nvme_entry *e)
{
    struct recovery *r = user;
    struct nvme_segment *g = &r->n->segments[r->segment];
    if (r->keep) {
        if (GROW(g->entries, g->cap, g->n + 1, NULL)) {
            r->failed = true;
            return false;
        }
        g->entries[g->n++] = *e;
        g->published = g->n;
    }
    if (nvme_entry_add(r->n, g->space, r->segment, e, false))
        r->n->recovered++;
    return true;
}

/* The footer, piece by piece: once for its CRC, once for its entries. */
static bool read_footer(struct recovery *r, const struct nvme_trailer *t, uint8_t *window, bool use)
{
    uint64_t left = (uint64_t)t->n * NVME_ENTRY_BYTES, at = t->footer;
    uint32_t crc = 0;
    struct nvme_entry e;
    while (left) {
        size_t len = MIN(left, NVME_WINDOW);
        if (!nvme_pread(r->fd, window, round_up(len, NVME_PAGE), at))
            return false;
        crc = crc32c(crc, window, len);
        for (size_t i = 0; use && i < len; i += NVME_ENTRY_BYTES)
            if (nvme_entry_decode(window + i, t->footer, &e) && !found(r, &e))
                return false;
        left -= len;
        at += len;
    }
    return crc == t->footer_crc;
}

static void recover_segment(struct recovery *r, uint8_t *window)
{
    struct nvme *n = r->n;
    struct nvme_segment *g = &n->segments[r->segment];
    struct nvme_trailer t;
    uint64_t end = 0;
    uint32_t space = space_id(n, &r->head.space);
    if (!space)
        return; /* stays free */
    g->space = space;
    g->life = (uint32_t)(r->head.seq & 1023);
    g->created_s = r->head.created_s;
    atomic_store(&n->seq[r->segment], r->head.seq);
    n->next_seq = MAX(n->next_seq, r->head.seq + 1);
    n->spaces[space].last_used_s = MAX(n->spaces[space].last_used_s, g->created_s);
    bool whole = nvme_pread(r->fd, window, NVME_PAGE, n->segment_bytes - NVME_PAGE) &&
                 nvme_trailer_decode(window, n->segment_bytes, &t) && t.seq == r->head.seq && read_footer(r, &t, window, false);
    r->keep = !whole || !t.sealed;
    if (whole && read_footer(r, &t, window, true)) {
        end = t.footer;
    } else { /* also when the second reading failed: what it added is found again */
        g->n = g->published = 0;
        nvme_walk(&r->head, window, read_at, found, r, &end);
    }
    uint32_t other = n->spaces[space].active;
    if (r->keep && !r->failed && !other) { /* goes on being filled */
        g->state = NVME_ACTIVE;
        g->end = round_up(end, NVME_PAGE);
        n->spaces[space].active = r->segment + 1;
        return;
    }
    free(g->entries);
    g->entries = NULL;
    g->cap = g->n = g->published = 0;
    g->state = NVME_SEALED;
    if (!g->live)
        nvme_segment_free(n, r->segment);
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const struct recovery *)a)->head.seq, y = ((const struct recovery *)b)->head.seq;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* What an earlier run said of its spaces; nothing when the checkpoint is not whole. */
static int load_checkpoint(struct nvme *n, struct larder_error *err)
{
    AUTO_FREE uint8_t *bytes = malloc(NVME_CHECKPOINT_MAX);
    AUTO_FREE struct nvme_used *used = calloc(NVME_SPACES_MAX, sizeof(*used));
    uint64_t next_seq;
    size_t count, len;
    if (!bytes || !used)
        return err_nomem(err, NVME_CHECKPOINT_MAX, "the checkpoint of an NVMe cache");
    len = nvme_checkpoint_load(n->dir_fd, bytes);
    if (!nvme_checkpoint_decode(bytes, len, &next_seq, used, &count))
        return LARDER_OK;
    n->next_seq = MAX(n->next_seq, MIN(next_seq, UINT64_MAX / 2));
    for (size_t i = 0; i < count; i++) {
        uint32_t id = space_id(n, &used[i].space);
        if (id)
            n->spaces[id].last_used_s = used[i].last_used_s;
    }
    return LARDER_OK;
}

/* ---- the directory ---- */

/* The segments that are there, by number, and the bytes that all other files take. */
static int list_dir(struct nvme *n, bool *there, struct larder_error *err)
{
    int fd = openat(n->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct stat st;
    if (!d) {
        int e = errno;
        if (fd >= 0)
            close(fd);
        return err_sys(err, LARDER_EIO, e, "%s: cannot be listed", n->dir);
    }
    n->other_blocks = fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    for (struct dirent *e; (e = readdir(d));) {
        int number = nvme_segment_number(e->d_name);
        if (number >= 0 && (unsigned)number < NVME_SEGMENTS_MAX)
            there[number] = true;
        else if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                 !S_ISDIR(st.st_mode))
            n->other_blocks += (uint64_t)st.st_blocks * 512;
    }
    closedir(d);
    return LARDER_OK;
}

static void remove_segment(struct nvme *n, unsigned segment)
{
    char name[16];
    if (n->segments[segment].fd >= 0)
        close(n->segments[segment].fd);
    n->segments[segment].fd = -1;
    n->segments[segment].blocks = 0;
    nvme_segment_name(segment, name);
    if (unlinkat(n->dir_fd, name, 0) != 0 && errno != ENOENT)
        n->segments[segment].state = NVME_REFUSED; /* a folder of that name */
}

/* Opens the segments that are there and reads their heads. list gets those that are whole. What this process merely has no
 * descriptors for is no reason to remove it. */
static int read_heads(struct nvme *n, const bool *there, struct recovery *list, size_t *n_list, uint8_t *window, struct larder_error *err)
{
    struct stat st;
    size_t count = *n_list = 0;
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++) {
        struct nvme_segment *g = &n->segments[i];
        if (!there[i])
            continue;
        g->fd = nvme_segment_open(n, i, false);
        if (g->fd == -EMFILE || g->fd == -ENFILE || g->fd == -ENOMEM)
            return err_sys(err, LARDER_EIO, -g->fd, "%s: its segments cannot all be opened (raise ulimit -n)", n->dir);
        if (g->fd < 0 || fstat(g->fd, &st) != 0 || !S_ISREG(st.st_mode)) {
            remove_segment(n, i);
            continue;
        }
        g->blocks = (uint64_t)st.st_blocks * 512;
        struct recovery *r = &list[count];
        *r = (struct recovery){.n = n, .segment = i, .fd = g->fd};
        if (nvme_pread(g->fd, window, NVME_PAGE, 0) && nvme_head_decode(window, &r->head) &&
            r->head.segment_bytes == (uint64_t)st.st_size)
            count++;
        else
            remove_segment(n, i);
    }
    *n_list = count;
    return LARDER_OK;
}

/* How large segments are, and how many: as the directory has them while that suits the limit, else anew. */
static void choose_sizes(struct nvme *n, const struct recovery *list, size_t count)
{
    uint64_t usable = n->budget - RESERVE_BYTES - MIN(n->other_blocks, n->budget - RESERVE_BYTES), have = count ? list[0].head.segment_bytes : 0;
    n->segment_bytes = NVME_SEGMENT_MIN;
    while (n->segment_bytes < NVME_SEGMENT_MAX && n->segment_bytes * NVME_SEGMENTS_WANTED < usable)
        n->segment_bytes *= 2;
    if (have && usable / have >= 3 && usable / have <= 4 * NVME_SEGMENTS_WANTED)
        n->segment_bytes = have;
    n->n_segments = (unsigned)MIN(usable / n->segment_bytes, NVME_SEGMENTS_MAX);
}

/* Removes what does not fit and takes in the rest. */
static void recover(struct nvme *n, struct recovery *list, size_t count, uint8_t *window)
{
    size_t kept = 0;
    qsort(list, count, sizeof(*list), newest_first); /* a limit that shrank takes the oldest; those above it go too */
    choose_sizes(n, list, count);
    for (size_t i = 0; i < count; i++) {
        if (list[i].head.segment_bytes == n->segment_bytes && list[i].segment < n->n_segments)
            list[kept++] = list[i];
        else
            remove_segment(n, list[i].segment);
    }
    for (size_t i = kept; i-- > 0;) /* the oldest first: newer copies win */
        recover_segment(&list[i], window);
}

static int open_dir(struct nvme *n, struct larder_error *err)
{
    if (mkdir(n->dir, 0777) != 0 && errno != EEXIST)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be made", n->dir);
    n->dir_fd = open(n->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (n->dir_fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot be opened", n->dir);
    return nvme_lock_take(n->dir_fd, n->dir, &n->flock, err);
}

static int fill(struct nvme *n, struct larder_error *err)
{
    AUTO_FREE bool *there = calloc(NVME_SEGMENTS_MAX, sizeof(*there));
    AUTO_FREE struct recovery *list = calloc(NVME_SEGMENTS_MAX, sizeof(*list));
    AUTO_FREE uint8_t *window = NULL;
    size_t count;
    if (!there || !list || posix_memalign((void **)&window, NVME_PAGE, NVME_WINDOW) != 0)
        return window = NULL, err_nomem(err, NVME_WINDOW, "recovering an NVMe cache");
    int rc = open_dir(n, err);
    if (!rc)
        rc = list_dir(n, there, err);
    if (!rc)
        rc = nvme_map_init(&n->map, n->budget, n->seq, err);
    if (!rc)
        rc = load_checkpoint(n, err);
    if (!rc)
        rc = read_heads(n, there, list, &count, window, err);
    if (rc)
        return rc;
    recover(n, list, count, window);
    if (n->n_segments == 0)
        return err_set(err, LARDER_EINVAL, "%s: other files leave no room below the limit of %llu bytes", n->dir,
                       (unsigned long long)n->budget);
    return nvme_writer_start(n, err);
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
    n->budget = o->bytes;
    n->replacement = o->replacement;
    n->direct = o->direct;
    n->next_seq = 1;
    n->queue_tail = &n->queue;
    n->flushed_ns = n->checkpoint_ns = now_ns();
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        n->segments[i].fd = -1;
    n->dir = strdup(o->dir);
    int rc = n->dir ? init_locks(n, err) : err_nomem(err, strlen(o->dir) + 1, "a path");
    if (!rc)
        rc = fill(n, err);
    if (rc) {
        nvme_close(n);
        return rc;
    }
    *out = n;
    return LARDER_OK;
}

void nvme_close(struct nvme *n)
{
    if (!n)
        return;
    bool forked = n->pid != getpid();
    if (!forked)
        nvme_writer_stop(n);
    nvme_writer_release(n);
    nvme_map_release(&n->map);
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        if (n->segments[i].fd >= 0)
            close(n->segments[i].fd);
    nvme_lock_release(n->flock, forked);
    if (n->dir_fd >= 0)
        close(n->dir_fd);
    free(n->dir);
    free(n);
}

/* ---- reading ---- */

bool nvme_lookup(const struct nvme *n, uint32_t space, uint64_t ordinal, struct nvme_place *at)
{
    struct nvme_hint h;
    if (space == 0 || space > NVME_SPACES_MAX || ordinal > CACHE_ORDINAL_MAX ||
        unlikely(atomic_load_explicit(&n->broken, memory_order_relaxed)) || !nvme_map_find(&n->map, space, ordinal, &h) || h.pending)
        return false;
    uint64_t seq = atomic_load_explicit(&n->seq[h.segment], memory_order_relaxed);
    uint64_t from = (uint64_t)h.unit * NVME_UNIT, to = from + (uint64_t)h.units * NVME_UNIT, page = round_down(from, NVME_PAGE);
    *at = (struct nvme_place){n->segments[h.segment].fd, page, (uint32_t)(round_up(to, NVME_PAGE) - page), (uint32_t)(from - page),
                              h.segment, (uint32_t)seq};
    return (seq & 1023) == h.generation;
}

/* Drops the entry unless its segment was begun anew: then it is gone already, and nothing was wrong. */
void nvme_drop(struct nvme *n, uint32_t space, uint64_t ordinal, const struct nvme_place *at)
{
    pthread_mutex_lock(&n->lock);
    if ((uint32_t)n->seq[at->segment] == at->generation &&
        nvme_map_drop(&n->map, space, ordinal, at->segment, (uint32_t)((at->offset + at->skip) / NVME_UNIT))) {
        n->healed++;
        nvme_entry_gone(n, at->segment);
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
    if (head && nvme_record_decode(head, &r) && r.space_hash == n->spaces[space].hash && r.ordinal == ordinal &&
        nvme_units(r.stored_len) * NVME_UNIT <= at->len - at->skip && crc32c(0, head + NVME_UNIT, r.stored_len) == r.crc) {
        *hit = (struct cached){head + NVME_UNIT, r.stored_len, r.raw_len, r.crc, r.codec};
        if (atomic_load_explicit(&n->read_errors, memory_order_relaxed))
            atomic_store_explicit(&n->read_errors, 0, memory_order_relaxed);
        return true;
    }
    if (!read)
        read_failed(n);
    nvme_drop(n, space, ordinal, at);
    return false;
}

bool nvme_direct(const struct nvme *n) { return n->direct; }

void nvme_stats(const struct nvme *shown, struct nvme_stats *out)
{
    struct nvme *n = (struct nvme *)(uintptr_t)shown; /* but for its lock it is left alone */
    pthread_mutex_lock(&n->lock);
    *out = (struct nvme_stats){.budget = n->budget, .used = n->other_blocks, .entries = n->entries, .admissions = n->admissions,
                               .refusals = n->refusals, .evictions = n->evictions, .healed = n->healed, .recovered = n->recovered,
                               .bookkeeping = nvme_map_bytes(&n->map), .warning = n->warning[0] ? n->warning : NULL};
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        out->used += n->segments[i].blocks;
    pthread_mutex_unlock(&n->lock);
}
