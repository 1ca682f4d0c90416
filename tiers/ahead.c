/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ahead.c - records of a remote origin that come before anybody wants them: what lies in the gaps of a GET is admitted where a tier has
 * room.
 *
 * Such a record is delivered from a tier but was read from the origin for this process's first want of it, so that want counts
 * there (DESIGN 6). Two bits an ordinal say how it stands, in memory that is used as it is touched:
 *
 *     NONE --note--> AHEAD --want--> WANTED            NONE --want--> WANTED --note--> CAME
 *
 * A want is noted when its fetch starts, so that wants count in the order in which they are made, whichever is done first. CAME: it was
 * being waited for when it came.
 *
 * What was noted and then found no room is read from the origin when it is wanted, and counts there all the same.
 *
 * Threads: any; the bits are atomic, and each first want is told once.
 */
#include <sys/mman.h>

#include "tiers/stack_int.h"

#define ASK 64u /* neighbours looked at together */

struct ahead {
    _Atomic uint8_t *state; /* four ordinals a byte */
    uint64_t samples;
    size_t bytes;
    _Atomic int64_t n;      /* that are ahead: nobody looks while there are none */
};

int ahead_new(uint64_t samples, struct ahead **out, struct larder_error *err)
{
    *out = NULL;
    struct ahead *a = calloc(1, sizeof(*a));
    if (!a)
        return err_nomem(err, sizeof(*a), "what came ahead");
    a->samples = samples;
    a->bytes = round_up(samples / 4 + 1, 4096);
    void *p = mmap(NULL, a->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        free(a);
        return err_nomem(err, samples / 4, "what came ahead");
    }
    a->state = p;
    *out = a;
    return LARDER_OK;
}

void ahead_free(struct ahead *a)
{
    if (!a)
        return;
    munmap((void *)a->state, a->bytes);
    free(a);
}

static unsigned shift_of(uint64_t ordinal) { return (unsigned)(ordinal % 4) * 2; }

/* Changes the state of an ordinal by `next`, indexed by what it is; returns what it was. */
static enum ahead_state change(struct ahead *a, uint64_t ordinal, const uint8_t next[4])
{
    unsigned shift = shift_of(ordinal), was;
    uint8_t word = atomic_load_explicit(&a->state[ordinal / 4], memory_order_relaxed), is;
    do {
        was = word >> shift & 3;
        if (next[was] == was)
            return was;
        is = (uint8_t)((word & ~(3u << shift)) | (unsigned)next[was] << shift);
    } while (!atomic_compare_exchange_weak_explicit(&a->state[ordinal / 4], &word, is, memory_order_relaxed, memory_order_relaxed));
    if (was == AHEAD || next[was] == AHEAD)
        atomic_fetch_add_explicit(&a->n, was == AHEAD ? -1 : 1, memory_order_relaxed);
    return was;
}

void ahead_note(struct ahead *a, uint64_t ordinal)
{
    static const uint8_t next[4] = {[AHEAD_NONE] = AHEAD, [AHEAD] = AHEAD, [AHEAD_WANTED] = AHEAD_CAME, [AHEAD_CAME] = AHEAD_CAME};
    change(a, ordinal, next);
}

enum ahead_state ahead_want(struct ahead *a, uint64_t ordinal)
{
    static const uint8_t next[4] = {[AHEAD_NONE] = AHEAD_WANTED, [AHEAD] = AHEAD_WANTED, [AHEAD_WANTED] = AHEAD_WANTED,
                                    [AHEAD_CAME] = AHEAD_CAME};
    return change(a, ordinal, next);
}

bool ahead_came(const struct ahead *a, uint64_t ordinal)
{
    return (atomic_load_explicit(&a->state[ordinal / 4], memory_order_relaxed) >> shift_of(ordinal) & 3) == AHEAD_CAME;
}

bool ahead_some(const struct ahead *a) { return a && atomic_load_explicit(&a->n, memory_order_relaxed) > 0; }

/* ---- what lies in the gaps of a GET ---- */

/* FIFO: there is something; its bytes are not wanted. */
static void *is_there(void *user, size_t i, size_t len)
{
    const void **views = user;
    (void)len;
    views[i] = views;
    return NULL;
}

size_t ahead_absent(const struct bound *b, const uint64_t *ordinals, size_t n, bool *absent)
{
    const void *views[ASK] = {NULL};
    struct extent e[ASK];
    struct nvme_place at;
    size_t missing = 0;
    if (b->dram)
        dram_lookup(b->cache->dram, b->dram_space, ordinals, n, e, views, is_there, views);
    for (size_t i = 0; i < n; i++) {
        absent[i] = !views[i];
        for (unsigned d = 0; absent[i] && ordinals[i] <= CACHE_ORDINAL_MAX && d < b->n_nvme; d++)
            absent[i] = !nvme_lookup(b->nvme[d], b->nvme_space[d], ordinals[i], &at);
        missing += absent[i];
    }
    return missing;
}

/* Record `ordinal`, whose bytes came unasked for: into a tier if they are whole. */
bool ahead_admit(struct bound *b, uint64_t ordinal, const struct extent *e, const uint8_t *stored)
{
    if (!stack_wanted(b, ordinal) || crc32c(0, stored, e->stored_len) != e->crc)
        return false;
    struct cached c = {stored, e->stored_len, e->raw_len, e->crc, e->codec};
    ahead_note(b->ahead, ordinal); /* first: somebody may find it at once */
    return stack_admit(b, ordinal, &c, false);
}

/* The records first .. first + n - 1 lie in [begin, end) of their shard, which is at memory. Bytes admitted. */
static size_t admit_gap(struct tiers_fetch *f, uint64_t first, size_t n, uint64_t begin, uint64_t end, const uint8_t *memory)
{
    struct bound *b = f->stack->b;
    uint64_t ordinals[ASK];
    struct extent e[ASK];
    bool absent[ASK];
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        ordinals[i] = first + i;
    if (!ahead_absent(b, ordinals, n, absent) || store_locate(f->t->store, ordinals, n, e, NULL) != LARDER_OK)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (absent[i] && e[i].offset >= begin && e[i].offset <= end && e[i].stored_len <= end - e[i].offset &&
            ahead_admit(b, ordinals[i], &e[i], memory + (e[i].offset - begin)))
            bytes += e[i].stored_len;
    return bytes;
}

/* Gaps whose records may lie on more pages of the record table than their neighbours do are left out: no page is fetched for them. */
bool ahead_settle(struct tiers_fetch *f, size_t budget)
{
    struct fetch_stack *k = f->stack;
    const struct plan *p = f->run;
    if (!k->b->ahead || !p->over_read || k->b->cache->o.replacement != LARDER_REPLACE_NONE)
        return true;
    for (size_t seen = 0; k->gap + 1 < p->n_wants && seen < budget; k->gap++) {
        const struct want *w = &p->wants[k->gap], *next = w + 1;
        if (w->shard != next->shard || next->offset <= w->end || next->offset - w->end > p->gap)
            continue;
        uint64_t first = k->ask[w->index] + 1, n = k->ask[next->index] - first;
        if (k->ask[next->index] <= first || n > STORE_ENTRIES_A_PAGE || !stack_wanted(k->b, first))
            continue;
        const uint8_t *memory = f->run_memory + p->place[w->index] + (w->end - w->offset);
        for (uint64_t i = 0; i < n; i += ASK)
            k->used += admit_gap(f, first + i, MIN(n - i, (uint64_t)ASK), w->end, next->offset, memory);
        seen += next->offset - w->end;
    }
    return k->gap + 1 >= p->n_wants;
}
