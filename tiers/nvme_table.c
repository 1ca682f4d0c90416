/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_table.c - what the processes of a sharing group know together of a directory: its segments, its spaces, its members.
 *
 *     | struct nvme_shared | entries of each segment (sparse) | the live map (sparse) |
 *
 * Everything is changed under one robust lock, for microseconds: never across I/O, but for the recovery at the first open. Reading the
 * map and the sequence numbers takes none. Whoever is killed while holding the lock leaves it to the next one, who repairs
 * (EOWNERDEAD): counts are added up anew from the map, and a segment whose sequence number is 0 is free. For that, steps are
 * ordered: a sequence number is set last and cleared first; a segment's entry is noted before it enters the map; a space
 * is taken last. Repairing again what was half repaired does no harm. Who holds the lock and does not go on (stopped) costs
 * the others 1 s once; then they admit nothing until it does.
 *
 * A segment that is being filled belongs to a member. What a dead one leaves is taken over by whoever needs room, opens, registers a
 * dataset or closes: entries that were never published leave the map, the rest of the segment is OPEN for anybody. Its
 * entries lie in the region, so that this costs no reading, and whoever goes on filling it can write the footer.
 *
 * Threads: any; h->lock is taken with nvme.lock held, but in opening and closing, when there is only one thread.
 */
#include <errno.h>
#include <time.h>

#include "tiers/nvme_int.h"

#define SHARED_MAGIC 0x31766e6472616c02ull
#define STUCK_MS 1000u
#define RECORD_MEAN_MIN 256u /* of a segment: that is when its entries are full */

uint64_t nvme_shared_bytes(uint64_t budget)
{
    uint64_t head = round_up(sizeof(struct nvme_shared), NVME_PAGE);
    return head + round_up(budget / RECORD_MEAN_MIN * sizeof(struct nvme_entry), NVME_PAGE) + nvme_map_bytes_at(nvme_map_levels(budget));
}

int nvme_shared_init(void *base, uint64_t budget, enum replacement r, struct larder_error *err)
{
    struct nvme_shared *h = base;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    int rc = pthread_mutex_init(&h->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    if (rc)
        return err_sys(err, LARDER_EIO, rc, "a lock between processes");
    h->magic = SHARED_MAGIC;
    h->budget = budget;
    h->replacement = r;
    h->level_max = nvme_map_levels(budget);
    h->off_entries = round_up(sizeof(*h), NVME_PAGE);
    h->off_map = h->off_entries + round_up(budget / RECORD_MEAN_MIN * sizeof(struct nvme_entry), NVME_PAGE);
    return LARDER_OK;
}

bool nvme_shared_good(const struct nvme_shared *h, uint64_t bytes)
{
    return h->magic == SHARED_MAGIC && bytes >= nvme_shared_bytes(h->budget);
}

void nvme_table_reset(struct nvme *n)
{
    struct nvme_shared *h = n->h;
    for (unsigned i = 0; i < NVME_SEGMENTS_MAX; i++)
        atomic_store(&h->seq[i], 0);
    memset(h->segments, 0, sizeof(h->segments));
    memset(h->spaces, 0, sizeof(h->spaces));
    memset(h->members, 0, sizeof(h->members));
    share_clear(n->share, (uint8_t *)h + h->off_entries, h->off_map - h->off_entries);
    nvme_map_clear(&n->map);
    atomic_store(&h->entries, 0);
    atomic_store(&h->recovered, 0);
    h->next_seq = 1;
    h->entries_max = h->n_segments = 0;
    h->checkpoint_ns = now_ns();
}

/* ---- the lock ---- */

static void repair(struct nvme *n)
{
    struct nvme_shared *h = n->h;
    uint64_t live[NVME_SEGMENTS_MAX];
    if (!h->ready)
        return; /* who opens begins anew */
    atomic_store(&h->entries, nvme_map_repair(&n->map, live));
    for (unsigned i = 0; i < h->n_segments; i++) {
        struct nvme_segment *g = &h->segments[i];
        g->live = live[i];
        if (h->seq[i] == 0 && g->state != NVME_REFUSED && g->state != NVME_LENT) {
            g->state = NVME_FREE;
            g->owner = 0;
        }
    }
    for (unsigned i = 0; i < h->n_segments; i++)
        if (h->seq[i] == 0 && h->segments[i].file_span <= 1)
            nvme_give_places_back(n, i, 1);
}

bool nvme_table_lock_wait(struct nvme *n, unsigned wait_ms)
{
    struct timespec t;
    int rc = pthread_mutex_trylock(&n->h->lock);
    if (rc == EBUSY && wait_ms) {
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_sec += wait_ms / 1000;
        rc = pthread_mutex_timedlock(&n->h->lock, &t);
    }
    if (rc == EOWNERDEAD) {
        repair(n);
        rc = pthread_mutex_consistent(&n->h->lock);
    }
    n->stuck = rc != 0;
    return rc == 0;
}

bool nvme_table_lock(struct nvme *n)
{
    bool was = n->stuck, got = nvme_table_lock_wait(n, was ? 0 : STUCK_MS);
    if (!got && !was)
        nvme_warn(n, "%s: a process that uses it does not go on: nothing is admitted until it does", n->dir);
    return got;
}

void nvme_table_unlock(struct nvme *n) { pthread_mutex_unlock(&n->h->lock); }

/* ---- entries ---- */

struct nvme_entry *nvme_entries(const struct nvme *n, unsigned segment)
{
    struct nvme_entry *all = (struct nvme_entry *)(void *)((uint8_t *)n->h + n->h->off_entries);
    return all + (uint64_t)segment * n->h->entries_max;
}

uint64_t nvme_bytes_of(const struct nvme *n, unsigned segment) { return n->h->segment_bytes * n->h->segments[segment].span; }

void nvme_ring(struct nvme *n)
{
    atomic_fetch_add(&n->h->bell, 1);
    if (atomic_load(&n->h->waiters))
        share_wake(&n->h->bell);
}

void nvme_entry_gone(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->h->segments[segment];
    atomic_fetch_sub(&n->h->entries, 1);
    g->live -= g->live > 0;
    if (g->live == 0 && g->state == NVME_SEALED)
        nvme_segment_free(n, segment);
}

bool nvme_entry_add(struct nvme *n, uint32_t space, uint32_t segment, const struct nvme_entry *e, bool pending)
{
    struct nvme_hint old;
    bool had = nvme_map_find(&n->map, space, e->ordinal, &old);
    if (!nvme_map_put(&n->map, space, e->ordinal, segment, e->unit, e->units, pending))
        return false;
    n->h->segments[segment].live++;
    atomic_fetch_add(&n->h->entries, 1);
    if (had)
        nvme_entry_gone(n, old.segment);
    return true;
}

void nvme_forget_pending(struct nvme *n, unsigned segment)
{
    struct nvme_segment *g = &n->h->segments[segment];
    const struct nvme_entry *e = nvme_entries(n, segment);
    for (uint32_t i = g->published; i < g->n; i++)
        if (nvme_map_drop(&n->map, g->space, e[i].ordinal, segment, e[i].unit))
            nvme_entry_gone(n, segment);
    g->n = g->published;
}

/* ---- segments ---- */

void nvme_segment_free(struct nvme *n, unsigned segment)
{
    struct nvme_shared *h = n->h;
    struct nvme_segment *g = &h->segments[segment];
    atomic_store_explicit(&h->seq[segment], 0, memory_order_release); /* all its entries are gone */
    atomic_fetch_sub(&h->entries, g->live);
    if (g->n)
        share_clear(n->share, nvme_entries(n, segment), h->entries_max * sizeof(struct nvme_entry));
    g->live = g->n = g->published = 0;
    g->owner = 0;
    g->state = NVME_FREE;
    nvme_give_places_back(n, segment, g->file_span); /* the rest when its file is cut */
    atomic_fetch_add(&h->freed, 1);
}

static bool lent_to(const struct nvme_shared *h, unsigned i, unsigned lender)
{
    return h->segments[i].state == NVME_LENT && h->segments[i].lender == lender;
}

/* Up to `count` places without a file that are lent to segment `from` go to segment `to`; UINT32_MAX: all, with or without. */
static uint32_t lend_on(struct nvme_shared *h, unsigned from, unsigned to, uint32_t count)
{
    uint32_t moved = 0;
    for (unsigned i = 0; i < h->n_segments && moved < count; i++)
        if (lent_to(h, i, from) && (count == UINT32_MAX || h->segments[i].file_span == 0)) {
            h->segments[i].lender = to;
            moved++;
        }
    return moved;
}

/* A place that still has its file goes with as many others as the file takes. What is lent to a segment and what files there are
 * always make up its places. */
void nvme_give_places_back(struct nvme *n, unsigned segment, uint32_t keep)
{
    struct nvme_shared *h = n->h;
    uint32_t lent = 1;
    for (unsigned i = 0; i < h->n_segments; i++)
        if (lent_to(h, i, segment) && h->segments[i].file_span) {
            lend_on(h, segment, i, h->segments[i].file_span - 1);
            h->segments[i].state = NVME_FREE;
            atomic_fetch_add(&h->freed, 1);
        }
    for (unsigned i = 0; i < h->n_segments; i++)
        if (lent_to(h, i, segment) && ++lent > keep) {
            h->segments[i].state = NVME_FREE;
            atomic_fetch_add(&h->freed, 1);
        }
}

void nvme_segment_begin(struct nvme *n, unsigned segment, uint32_t space, uint32_t span)
{
    struct nvme_shared *h = n->h;
    struct nvme_segment *g = &h->segments[segment];
    uint32_t lent = 1 + lend_on(h, segment, segment, UINT32_MAX);
    for (unsigned i = h->n_segments; lent < span && i-- > 0;) {
        if (i == segment || h->segments[i].state != NVME_FREE)
            continue;
        lent += 1 + lend_on(h, i, segment, UINT32_MAX);
        h->segments[i].lender = segment;
        h->segments[i].state = NVME_LENT;
    }
    g->state = NVME_ACTIVE;
    g->owner = n->member;
    g->space = space;
    g->span = span;
    g->life++;
    g->n = g->published = 0;
    g->live = 0;
    g->created_s = now_wall_s();
    uint64_t seq = h->next_seq + (((uint64_t)g->life - h->next_seq) & 1023); /* ends in life: [nvme_map.c, generations] */
    h->next_seq = seq + 1;
    atomic_store_explicit(&h->seq[segment], seq, memory_order_release);
}

void nvme_segment_open_up(struct nvme *n, unsigned segment, bool tell)
{
    struct nvme_segment *g = &n->h->segments[segment];
    g->state = NVME_OPEN;
    g->owner = 0;
    if (tell)
        atomic_fetch_add(&n->h->spaces[g->space].opened, 1);
}

/* What a dead member was filling. */
static void take_over(struct nvme *n, unsigned segment)
{
    nvme_forget_pending(n, segment);
    if (n->h->segments[segment].published == 0)
        nvme_segment_free(n, segment); /* its head may not be on the disk */
    else
        nvme_segment_open_up(n, segment, true);
}

/* ---- room ---- */

/* Frees all segments of the space that was used longest ago, of those nobody uses. */
static bool reclaim_space(struct nvme *n)
{
    struct nvme_shared *h = n->h;
    uint32_t oldest = 0;
    for (uint32_t i = 1; i <= NVME_SPACES_MAX; i++)
        if (h->spaces[i].taken && (!oldest || h->spaces[i].last_used_s < h->spaces[oldest].last_used_s) && !nvme_space_used(n, i) &&
            nvme_space_holds(n, i))
            oldest = i;
    if (!oldest)
        return false;
    for (unsigned i = 0; i < h->n_segments; i++) {
        if (!h->seq[i] || h->segments[i].space != oldest)
            continue;
        atomic_fetch_add(&h->evictions, h->segments[i].live);
        nvme_segment_free(n, i);
    }
    h->spaces[oldest].taken = false;
    return true;
}

/* The oldest sealed one; where there is none, one that nobody fills. */
static bool recycle_oldest(struct nvme *n)
{
    static const enum nvme_state states[] = {NVME_SEALED, NVME_OPEN};
    struct nvme_shared *h = n->h;
    for (unsigned s = 0; s < ARRAY_LEN(states); s++) {
        unsigned oldest = NVME_SEGMENTS_MAX;
        for (unsigned i = 0; i < h->n_segments; i++)
            if (h->segments[i].state == states[s] && (oldest == NVME_SEGMENTS_MAX || h->seq[i] < h->seq[oldest]))
                oldest = i;
        if (oldest == NVME_SEGMENTS_MAX)
            continue;
        atomic_fetch_add(&h->evictions, h->segments[oldest].live);
        nvme_segment_free(n, oldest);
        return true;
    }
    return false;
}

/* Free places. *best: the first segment with the longest file among them, so that it is used or cut before another needs its room. */
static unsigned count_free(const struct nvme *n, unsigned *best)
{
    const struct nvme_segment *all = n->h->segments;
    unsigned count = 0;
    *best = NVME_SEGMENTS_MAX;
    for (unsigned i = 0; i < n->h->n_segments; i++) {
        count += all[i].state == NVME_FREE || (all[i].state == NVME_LENT && all[all[i].lender].state == NVME_FREE);
        if (all[i].state == NVME_FREE &&
            (*best == NVME_SEGMENTS_MAX || MAX(all[i].file_span, 1u) > MAX(all[*best].file_span, 1u)))
            *best = i;
    }
    return count;
}

unsigned nvme_find_room(struct nvme *n, uint32_t span)
{
    unsigned best;
    while (count_free(n, &best) < span)
        if (!reclaim_space(n) && !(n->h->replacement == REPLACE_FIFO && recycle_oldest(n)))
            return NVME_SEGMENTS_MAX;
    return best;
}

/* ---- spaces ---- */

static bool same_space(const struct cache_space *a, const struct cache_space *b)
{
    return memcmp(a->uuid, b->uuid, 16) == 0 && memcmp(a->lineage, b->lineage, 16) == 0 && a->variant == b->variant;
}

uint32_t nvme_space_id(struct nvme *n, const struct cache_space *key)
{
    struct nvme_space *spaces = n->h->spaces;
    uint32_t unused = 0;
    for (uint32_t i = NVME_SPACES_MAX; i >= 1; i--) {
        if (!spaces[i].taken)
            unused = i;
        else if (same_space(&spaces[i].key, key))
            return i;
    }
    if (unused) {
        struct nvme_space *s = &spaces[unused];
        s->key = *key;
        s->hash = nvme_space_hash(key);
        s->last_used_s = 0;
        memset(s->users, 0, sizeof(s->users));
        s->taken = true;
    }
    return unused;
}

bool nvme_space_used(const struct nvme *n, uint32_t space)
{
    const uint64_t *users = n->h->spaces[space].users;
    return users[0] || users[1] || users[2] || users[3];
}

bool nvme_space_holds(const struct nvme *n, uint32_t space)
{
    for (unsigned i = 0; i < n->h->n_segments; i++)
        if (n->h->seq[i] && n->h->segments[i].space == space)
            return true;
    return false;
}

/* ---- members ---- */

/* Member of a slot is gone: so are its uses of spaces, and what it filled is anybody's. */
static void bury(struct nvme *n, unsigned slot)
{
    struct nvme_shared *h = n->h;
    uint32_t member = h->members[slot].member;
    for (uint32_t i = 1; i <= NVME_SPACES_MAX; i++) {
        uint64_t *word = &h->spaces[i].users[slot / 64], bit = 1ull << slot % 64;
        if (h->spaces[i].taken && (*word & bit)) {
            h->spaces[i].last_used_s = now_wall_s();
            *word &= ~bit;
        }
    }
    for (unsigned i = 0; i < h->n_segments; i++)
        if (h->segments[i].owner == member)
            take_over(n, i);
    if (h->checkpointer == member)
        h->checkpointer = 0;
    h->members[slot].member = h->members[slot].handles = 0;
}

bool nvme_reap(struct nvme *n)
{
    bool any = false;
    for (unsigned slot = 0; slot < SHARE_PROCESSES_MAX; slot++) {
        uint32_t member = n->h->members[slot].member;
        if (!member || member == n->member || share_alive(n->share, member))
            continue;
        bury(n, slot);
        any = true;
    }
    if (any)
        nvme_ring(n);
    return any;
}

void nvme_register(struct nvme *n)
{
    unsigned slot = n->member & 0xff;
    nvme_reap(n);
    if (n->h->members[slot].member && n->h->members[slot].member != n->member)
        bury(n, slot); /* who had the slot before */
    n->h->members[slot].member = n->member;
    n->h->members[slot].handles++;
    n->registered = true;
}

bool nvme_alone(struct nvme *n)
{
    unsigned handles = 0;
    nvme_reap(n);
    for (unsigned i = 0; i < SHARE_PROCESSES_MAX; i++)
        handles += n->h->members[i].handles;
    return handles == 1;
}

void nvme_leave(struct nvme *n)
{
    unsigned slot = n->member & 0xff;
    n->registered = false;
    if (--n->h->members[slot].handles == 0)
        bury(n, slot);
}
