/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key_cache.c - ordinals of keys that were looked up before, so that a warm lookup costs one cache line instead of a walk
 * through RocksDB's blocks.
 *
 * A key is kept as its 128-bit hash under a seed drawn at open; 88 bits of it are stored and compared, the rest choose the
 * place. A key that is not there answers for one that is with a chance of about 2^-86 a lookup, which is below that of the
 * memory failing; who does not know the seed cannot do better. Absent keys are not remembered. A key's ordinal never changes
 * within a generation, so an entry is never stale.
 *
 *     set (one line of 64 bytes): 4 x { w0 = h0 ^ w1, w1 = top 24 bits of h1 : ordinal + 1 in 40 bits }
 *
 * No locks: readers and writers use relaxed 64-bit accesses, and a reader that sees the two halves of different entries finds
 * that w0 ^ w1 is no hash of its key [Hyatt and Mann, A lock-less transposition table, 2002]. Entered by any thread. The table is
 * one anonymous mapping that becomes resident as it fills.
 */
#include <sys/mman.h>

#include "store/store_int.h"

enum { WAYS_OF_SET = 4, BATCH = 64 };

#define ORDINAL_BITS 40
#define ORDINAL_MASK ((UINT64_C(1) << ORDINAL_BITS) - 1)

struct key_entry { _Atomic uint64_t w0, w1; };
struct key_set { _Alignas(64) struct key_entry way[WAYS_OF_SET]; };

struct key_cache {
    struct key_set *sets;
    uint64_t n_sets, seed;
};

int key_cache_new(size_t bytes, struct key_cache **out, struct larder_error *err)
{
    *out = NULL;
    struct key_cache *c = calloc(1, sizeof(*c));
    if (!c)
        return err_nomem(err, sizeof(*c), "the key cache");
    c->n_sets = MIN(MAX(bytes / sizeof(struct key_set), (size_t)1), (size_t)UINT32_MAX);
    int rc = random_bytes(&c->seed, sizeof(c->seed), err);
    if (rc) {
        free(c);
        return rc;
    }
    size_t len = c->n_sets * sizeof(struct key_set);
    c->sets = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->sets == MAP_FAILED) {
        free(c);
        return err_nomem(err, len, "the key cache (index_bytes)");
    }
    *out = c;
    return LARDER_OK;
}

void key_cache_free(struct key_cache *c)
{
    if (!c)
        return;
    munmap(c->sets, c->n_sets * sizeof(struct key_set));
    free(c);
}

static struct key_set *set_of(const struct key_cache *c, const uint64_t hash[2])
{
    return &c->sets[(hash[1] & UINT32_MAX) * c->n_sets >> 32];
}

static uint64_t probe(const struct key_set *set, const uint64_t hash[2])
{
    for (int i = 0; i < WAYS_OF_SET; i++) {
        uint64_t w1 = atomic_load_explicit(&set->way[i].w1, memory_order_relaxed);
        uint64_t w0 = atomic_load_explicit(&set->way[i].w0, memory_order_relaxed);
        if ((w0 ^ w1) == hash[0] && w1 >> ORDINAL_BITS == hash[1] >> ORDINAL_BITS && (w1 & ORDINAL_MASK))
            return (w1 & ORDINAL_MASK) - 1;
    }
    return LARDER_NO_ORDINAL;
}

size_t key_cache_get(const struct key_cache *c, const void *const *keys, const size_t *lens, size_t n, uint64_t *ordinals)
{
    uint64_t hash[BATCH][2];
    size_t missing = 0;
    for (size_t first = 0; first < n; first += BATCH) {
        size_t count = MIN(n - first, (size_t)BATCH);
        for (size_t i = 0; i < count; i++) { /* the lines travel while the other keys are hashed */
            hash128(c->seed, keys[first + i], lens[first + i], hash[i]);
            __builtin_prefetch(set_of(c, hash[i]));
        }
        for (size_t i = 0; i < count; i++) {
            ordinals[first + i] = probe(set_of(c, hash[i]), hash[i]);
            missing += ordinals[first + i] == LARDER_NO_ORDINAL;
        }
    }
    return missing;
}

void key_cache_put(struct key_cache *c, const void *key, size_t len, uint64_t ordinal)
{
    uint64_t hash[2];
    if (ordinal >= ORDINAL_MASK)
        return;
    hash128(c->seed, key, len, hash);
    struct key_set *set = set_of(c, hash);
    unsigned way = (unsigned)(hash[1] >> 32) % WAYS_OF_SET; /* of a full set the one that the hash names gives way */
    for (unsigned i = 0; i < WAYS_OF_SET; i++)
        if (!atomic_load_explicit(&set->way[i].w1, memory_order_relaxed)) {
            way = i;
            break;
        }
    uint64_t w1 = (hash[1] & ~ORDINAL_MASK) | (ordinal + 1);
    atomic_store_explicit(&set->way[way].w0, hash[0] ^ w1, memory_order_relaxed);
    atomic_store_explicit(&set->way[way].w1, w1, memory_order_relaxed);
}
