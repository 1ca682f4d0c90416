/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_recover.c - what a directory of the NVMe tier holds, found out by the first process of a group that opens it.
 *
 * A segment: the head names its space; the trailer names the footer, which holds its part of the map, and was written after the
 * data were synced. A segment whose footer is missing or damaged (those being filled at a crash) is walked from record to
 * record. Segments are taken in the order of their sequence numbers, so that the newest copy of a record wins. One that was not
 * sealed is OPEN: whoever has a record for it goes on filling it where it ends.
 *
 * It needs no log and no care, and may believe anything that is whole: a reader compares header and CRC of every record with what
 * was wanted [N1], so a wrong belief costs one read. What does not fit the limit is removed.
 *
 * Threads: one, with h->lock held: others that open wait for it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/nvme_int.h"

#define RESERVE_BYTES (256 * KIB) /* of the limit: checkpoint twice, lock, the directory itself */

/* One segment being recovered. */
struct recovery { struct nvme *n; unsigned segment; int fd; struct nvme_head head; bool keep; };

static bool read_at(void *user, uint64_t offset, void *buf, size_t len)
{
    struct recovery *r = user;
    return nvme_pread(r->fd, buf, len, offset);
}

static bool found(void *user, const struct nvme_entry *e)
{
    struct recovery *r = user;
    struct nvme_segment *g = &r->n->h->segments[r->segment];
    if (r->keep && g->n == r->n->h->entries_max)
        r->keep = false; /* full */
    if (r->keep) {
        nvme_entries(r->n, r->segment)[g->n++] = *e;
        g->published = g->n;
    }
    if (nvme_entry_add(r->n, g->space, r->segment, e, false))
        atomic_fetch_add(&r->n->h->recovered, 1);
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
    struct nvme_shared *h = r->n->h;
    struct nvme_segment *g = &h->segments[r->segment];
    uint64_t end, bytes = nvme_head_bytes(&r->head);
    struct nvme_trailer t;
    uint32_t space = nvme_space_id(r->n, &r->head.space);
    if (!space) {
        nvme_segment_free(r->n, r->segment);
        return;
    }
    g->space = space;
    g->state = NVME_OPEN;
    g->life = (uint32_t)(r->head.seq & 1023);
    g->created_s = r->head.created_s;
    atomic_store(&h->seq[r->segment], r->head.seq);
    h->next_seq = MAX(h->next_seq, r->head.seq + 1);
    h->spaces[space].last_used_s = MAX(h->spaces[space].last_used_s, g->created_s);
    bool whole = nvme_pread(r->fd, window, NVME_PAGE, bytes - NVME_PAGE) && nvme_trailer_decode(window, bytes, &t) &&
                 t.seq == r->head.seq && read_footer(r, &t, window, false);
    r->keep = !whole || !t.sealed;
    if (!whole || !read_footer(r, &t, window, true)) { /* also when the second reading failed: what it added is found again */
        g->n = g->published = 0;
        nvme_walk(&r->head, window, read_at, found, r, &end);
    }
    if (r->keep && g->n)
        return; /* goes on being filled */
    if (!r->keep) {
        g->n = g->published = 0;
        g->state = NVME_SEALED;
    }
    if (!g->live)
        nvme_segment_free(r->n, r->segment);
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
    n->h->next_seq = MAX(n->h->next_seq, MIN(next_seq, UINT64_MAX / 2));
    for (size_t i = 0; i < count; i++) {
        uint32_t id = nvme_space_id(n, &used[i].space);
        if (id)
            n->h->spaces[id].last_used_s = used[i].last_used_s;
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
    n->h->other_blocks = fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    for (struct dirent *e; (e = readdir(d));) {
        int number = nvme_segment_number(e->d_name);
        if (number >= 0 && (unsigned)number < NVME_SEGMENTS_MAX)
            there[number] = true;
        else if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                 !S_ISDIR(st.st_mode))
            n->h->other_blocks += (uint64_t)st.st_blocks * 512;
    }
    closedir(d);
    return LARDER_OK;
}

static void remove_segment(struct nvme *n, unsigned segment)
{
    char name[16];
    if (n->own[segment].fd >= 0)
        close(n->own[segment].fd);
    n->own[segment].fd = -1;
    nvme_segment_name(segment, name);
    if (unlinkat(n->dir_fd, name, 0) != 0 && errno != ENOENT)
        n->h->segments[segment].state = NVME_REFUSED; /* a folder of that name */
}

/* Opens the segments that are there and reads their heads. list gets those that are whole. What this process merely has no
 * descriptors for is no reason to remove it. */
static int read_heads(struct nvme *n, const bool *there, struct recovery *list, size_t *n_list, uint8_t *window, struct larder_error *err)
{
    struct stat st;
    size_t count = *n_list = 0;
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++) {
        if (!there[i])
            continue;
        int fd = nvme_segment_open(n, i, false);
        if (fd == -EMFILE || fd == -ENFILE || fd == -ENOMEM)
            return err_sys(err, LARDER_EIO, -fd, "%s: its segments cannot all be opened (raise ulimit -n)", n->dir);
        n->own[i].fd = MAX(fd, -1);
        if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
            remove_segment(n, i);
            continue;
        }
        struct recovery *r = &list[count];
        *r = (struct recovery){.n = n, .segment = i, .fd = fd};
        if (nvme_pread(fd, window, NVME_PAGE, 0) && nvme_head_decode(window, &r->head) &&
            nvme_head_bytes(&r->head) == (uint64_t)st.st_size) {
            n->h->segments[i].blocks = (uint64_t)st.st_blocks * 512;
            count++;
        } else {
            remove_segment(n, i);
        }
    }
    *n_list = count;
    return LARDER_OK;
}

/* How large segments are, and how many: as the directory has them while that suits the limit, else anew. */
static void choose_sizes(struct nvme_shared *h, const struct recovery *list, size_t count)
{
    uint64_t usable = h->budget - RESERVE_BYTES - MIN(h->other_blocks, h->budget - RESERVE_BYTES);
    uint64_t have = count ? list[0].head.segment_bytes : 0;
    h->segment_bytes = NVME_SEGMENT_MIN;
    while (h->segment_bytes < NVME_SEGMENT_MAX && h->segment_bytes * NVME_SEGMENTS_WANTED < usable)
        h->segment_bytes *= 2;
    if (have && usable / have >= 3 && usable / have <= 4 * NVME_SEGMENTS_WANTED)
        h->segment_bytes = have;
    h->n_segments = (uint32_t)MIN(usable / h->segment_bytes, NVME_SEGMENTS_MAX);
    h->entries_max = h->n_segments ? (uint32_t)MIN((h->off_map - h->off_entries) / sizeof(struct nvme_entry) / h->n_segments / 256 * 256,
                                                   (uint64_t)UINT32_MAX / 256 * 256) : 0; /* whole pages */
}

/* A place among the segments for each that is kept, and for what longer ones take besides. */
static void place(struct nvme_shared *h, const struct recovery *r)
{
    struct nvme_segment *g = &h->segments[r->segment];
    g->span = g->file_span = r->head.span;
    g->made = g->had_file = true;
    g->state = NVME_OPEN;
}

static void lend(struct nvme_shared *h, const struct recovery *r)
{
    for (unsigned i = h->n_segments, left = r->head.span - 1; left && i-- > 0;)
        if (h->segments[i].state == NVME_FREE) {
            h->segments[i].state = NVME_LENT;
            h->segments[i].lender = r->segment;
            left--;
        }
}

/* Removes what does not fit and takes in the rest. */
static void take_in(struct nvme *n, struct recovery *list, size_t count, uint8_t *window)
{
    struct nvme_shared *h = n->h;
    size_t kept = 0;
    unsigned places = 0;
    qsort(list, count, sizeof(*list), newest_first); /* a limit that shrank takes the oldest; those above it go too */
    choose_sizes(h, list, count);
    for (unsigned i = 0; i < h->n_segments; i++)
        places += h->segments[i].state == NVME_FREE; /* but for folders of a segment's name */
    for (size_t i = 0; i < count; i++) {
        if (list[i].head.segment_bytes == h->segment_bytes && list[i].segment < h->n_segments && list[i].head.span <= places) {
            places -= list[i].head.span;
            place(h, &list[i]);
            list[kept++] = list[i];
        } else {
            h->segments[list[i].segment].blocks = 0;
            remove_segment(n, list[i].segment);
        }
    }
    for (size_t i = 0; i < kept; i++)
        lend(h, &list[i]);
    for (size_t i = kept; i-- > 0;) /* the oldest first: newer copies win */
        recover_segment(&list[i], window);
}

int nvme_recover(struct nvme *n, struct larder_error *err)
{
    AUTO_FREE bool *there = calloc(NVME_SEGMENTS_MAX, sizeof(*there));
    AUTO_FREE struct recovery *list = calloc(NVME_SEGMENTS_MAX, sizeof(*list));
    AUTO_FREE uint8_t *window = NULL;
    size_t count;
    if (!there || !list || posix_memalign((void **)&window, NVME_PAGE, NVME_WINDOW) != 0)
        return window = NULL, err_nomem(err, NVME_WINDOW, "recovering an NVMe cache");
    int rc = list_dir(n, there, err);
    if (!rc)
        rc = load_checkpoint(n, err);
    if (!rc)
        rc = read_heads(n, there, list, &count, window, err);
    if (rc)
        return rc;
    take_in(n, list, count, window);
    if (n->h->n_segments == 0)
        return err_set(err, LARDER_EINVAL, "%s: other files leave no room below the limit of %llu bytes", n->dir,
                       (unsigned long long)n->h->budget);
    return LARDER_OK;
}
