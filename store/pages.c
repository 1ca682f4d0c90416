/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pages.c - footer pages in memory under a byte budget.
 *
 * An 8-way set-associative cache with a clock hand a set: one hash, one short lock, one copy of the few bytes wanted. Pages
 * were checked before they came in. The frames are one anonymous mapping that becomes resident as it is used, so a large
 * budget costs nothing at open. Entered by any thread; a set's lock guards its keys, marks and frames, and is never held
 * across I/O. A warm lookup is two cache misses, the set and the frame: who has many to make announces them first.
 */
#include <sys/mman.h>

#include "store/store_int.h"

enum { WAYS = 8 };

struct set {
    _Alignas(64) pthread_mutex_t lock;
    _Atomic uint64_t key[WAYS]; /* shard << 32 | page, plus 1; 0: empty. Written under the lock */
    uint8_t used[WAYS];  /* read since the hand passed */
    uint8_t hand;
};

struct pages {
    struct set *sets;
    uint8_t *frames;
    size_t n_sets;
};

static size_t frames_bytes(const struct pages *p) { return p->n_sets * WAYS * STORE_PAGE; }

int pages_new(size_t bytes, struct pages **out, struct larder_error *err)
{
    *out = NULL;
    struct pages *p = calloc(1, sizeof(*p));
    if (!p)
        return err_nomem(err, sizeof(*p), "the page cache");
    p->n_sets = MAX(bytes / (WAYS * STORE_PAGE + sizeof(struct set)), (size_t)1);
    p->sets = aligned_alloc(64, p->n_sets * sizeof(*p->sets));
    if (p->sets)
        memset(p->sets, 0, p->n_sets * sizeof(*p->sets));
    p->frames = mmap(NULL, frames_bytes(p), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!p->sets || p->frames == MAP_FAILED) {
        if (p->frames == MAP_FAILED)
            p->frames = NULL;
        size_t want = frames_bytes(p);
        pages_free(p);
        return err_nomem(err, want, "the page cache (table_bytes)");
    }
    for (size_t i = 0; i < p->n_sets; i++)
        pthread_mutex_init(&p->sets[i].lock, NULL);
    *out = p;
    return LARDER_OK;
}

void pages_free(struct pages *p)
{
    if (!p)
        return;
    if (p->frames)
        munmap(p->frames, frames_bytes(p));
    for (size_t i = 0; p->sets && i < p->n_sets; i++)
        pthread_mutex_destroy(&p->sets[i].lock);
    free(p->sets);
    free(p);
}

static uint64_t key_of(uint32_t shard, uint32_t page) { return ((uint64_t)shard << 32 | page) + 1; }

static struct set *set_of(struct pages *p, uint64_t key)
{
    uint64_t h = key * 0x9e3779b97f4a7c15u;
    return &p->sets[(uint64_t)(((unsigned __int128)(h ^ h >> 29) * p->n_sets) >> 64)];
}

static int find(const struct set *s, uint64_t key)
{
    for (int i = 0; i < WAYS; i++)
        if (atomic_load_explicit(&s->key[i], memory_order_relaxed) == key)
            return i;
    return -1;
}

static uint8_t *frame(struct pages *p, const struct set *s, int way)
{
    return p->frames + ((size_t)(s - p->sets) * WAYS + (size_t)way) * STORE_PAGE;
}

void pages_announce(struct pages *p, uint32_t shard, uint32_t page)
{
    const struct set *s = set_of(p, key_of(shard, page));
    __builtin_prefetch(s, 1);
    __builtin_prefetch((const uint8_t *)s + 64, 1);
}

void pages_announce_at(struct pages *p, uint32_t shard, uint32_t page, size_t off)
{
    uint64_t key = key_of(shard, page);
    const struct set *s = set_of(p, key);
    int way = find(s, key); /* without the lock: it may be wrong by the time of the lookup, which costs a miss */
    if (way >= 0)
        __builtin_prefetch(frame(p, s, way) + off);
}

bool pages_get(struct pages *p, uint32_t shard, uint32_t page, size_t off, void *out, size_t len)
{
    uint64_t key = key_of(shard, page);
    struct set *s = set_of(p, key);
    pthread_mutex_lock(&s->lock);
    int way = find(s, key);
    if (way >= 0) {
        memcpy(out, frame(p, s, way) + off, len);
        s->used[way] = 1;
    }
    pthread_mutex_unlock(&s->lock);
    return way >= 0;
}

void pages_put(struct pages *p, uint32_t shard, uint32_t page, const uint8_t data[STORE_PAGE])
{
    uint64_t key = key_of(shard, page);
    struct set *s = set_of(p, key);
    pthread_mutex_lock(&s->lock);
    int way = find(s, key);
    if (way < 0) {
        while (atomic_load_explicit(&s->key[s->hand], memory_order_relaxed) && s->used[s->hand]) {
            s->used[s->hand] = 0;
            s->hand = (s->hand + 1) % WAYS;
        }
        way = s->hand;
        s->hand = (s->hand + 1) % WAYS;
        atomic_store_explicit(&s->key[way], key, memory_order_relaxed);
        s->used[way] = 0;
        memcpy(frame(p, s, way), data, STORE_PAGE);
    }
    pthread_mutex_unlock(&s->lock);
}
