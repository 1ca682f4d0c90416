/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stack.c - the way of one fetch through the tiers: DRAM, then NVMe, then the origin.
 *
 *     plan     DRAM is asked for all records at once; those it has are views of the arena and done. The absent ones are looked up
 *              in NVMe, the rest located at the origin; room is planned for what may have to be read.
 *     start    what a shared tier would admit is claimed. Ours is read (first run), theirs waits.
 *     settle   a run was read: each record is checked by its CRC, once and for all, and admitted; its claim goes.
 *     next     theirs is looked up again; what did not come, what NVMe had damaged, and what FIFO evicted since planning is read
 *              from the origin (second run), and so on until nothing is absent.
 *
 *     ABSENT_READ --settle--> ABSENT_DONE            ABSENT_WAIT --next: it came--> ABSENT_DONE
 *          |                                              ^   '---next: ours now--> ABSENT_AGAIN --settle--> ABSENT_DONE
 *          '---- damaged in NVMe, or theirs at start -----'
 *
 * What another process has admitted to NVMe and not written yet is waited for, too; a disk that takes 5 s is waited for no more.
 *
 * Records of a remote origin that streams into the tiers (stream.c) are left to it: they wait like theirs, for its bell. Nothing else of
 * the fetch is read before all of these have come or were given up, but for what may be fetched out of turn.
 *
 * Claims are held from start to settle only, and a queue settles what it claimed before it waits for others: so no two processes
 * ever wait for each other. The second run reads into memory of the fetch and is copied to the room planned for it, which
 * is as long as the record: it is rare.
 *
 * A fetch whose records all hit costs the lookup and one pass over them. Threads: one at a time, as its fetch.
 */
#include <sys/mman.h>

#include "tiers/remote.h"
#include "tiers/stack_int.h"

#define WAIT_MS_MAX 30000u /* in all; a claim lapses earlier when its owner is dead, stopped or late (claim.c) */
#define SETTLE_BYTES (512 * KIB) /* a call, so that the queue is looked after in between */
#define NO_ROOM SIZE_MAX
#define STREAM_WAIT_MS 250u
#define FLUSH_NS_MAX 5000000000ull
#define WRITE_NS_MAX 5000000000ull

void stack_free(struct fetch_stack *k)
{
    if (!k)
        return;
    free(k->ordinals);
    free(k->views);
    free(k->absent);
    free(k->ask);
    free(k->extents);
    free(k->wants);
    free(k->again_memory);
    plan_release(&k->again);
    free(k);
}

static int grow(struct tiers_fetch *f, size_t n, struct larder_error *err)
{
    if (!f->stack && !(f->stack = calloc(1, sizeof(*f->stack))))
        return err_nomem(err, sizeof(*f->stack), "a fetch");
    struct fetch_stack *k = f->stack;
    if ((n > k->cap_ordinals && GROW(k->ordinals, k->cap_ordinals, n, err)) ||
        (n > k->cap_views && GROW(k->views, k->cap_views, n, err)))
        return LARDER_ENOMEM;
    return LARDER_OK;
}

static int grow_absent(struct fetch_stack *k, size_t n, struct larder_error *err)
{
    if ((n > k->cap_absent && GROW(k->absent, k->cap_absent, n, err)) || (n > k->cap_ask && GROW(k->ask, k->cap_ask, n, err)) ||
        (n > k->cap_extents && GROW(k->extents, k->cap_extents, n, err)))
        return LARDER_ENOMEM;
    return LARDER_OK;
}

/* ---- plan ---- */

/* FIFO: planning only asks how long the records are. */
static void *note_len(void *user, size_t i, size_t len)
{
    struct fetch_stack *k = user;
    (void)len;
    k->views[i] = k; /* there is something */
    return NULL;
}

/* FIFO finds nothing now: what it has is copied when the fetch starts. */
static void look_up(struct tiers_fetch *f, size_t n)
{
    struct fetch_stack *k = f->stack;
    const struct bound *b = k->b;
    if (!b->dram) {
        for (size_t i = 0; i < n; i++)
            k->views[i] = NULL;
        return;
    }
    uint64_t begin = now_ns();
    dram_lookup(b->cache->dram, b->dram_space, k->ordinals, n, f->extents, k->views, note_len, k);
    histogram_add(&b->cache->counter[TIER_DRAM].latency, now_ns() - begin);
    k->counts.dram.requests++;
}

bool stack_wanted(const struct bound *b, uint64_t ordinal)
{
    const struct larder_cache_options *o = &b->cache->o;
    bool room = b->dram && !dram_closed(b->cache->dram);
    for (unsigned i = 0; !room && b->fill_nvme && i < b->n_nvme; i++)
        room = !nvme_closed(b->nvme[i], b->nvme_space[i]);
    return room && ordinal <= CACHE_ORDINAL_MAX && (!o->admit || o->admit(o->admit_user, ordinal));
}

/* From a directory, if it is there; coming, if another process is writing it there. */
static void look_up_nvme(struct fetch_stack *k, struct absent *a)
{
    const struct bound *b = k->b;
    uint64_t ordinal = k->ordinals[a->i];
    a->coming = false;
    for (unsigned d = 0; ordinal <= CACHE_ORDINAL_MAX && d < b->n_nvme; d++) {
        if (unlikely(atomic_load_explicit(&b->pace[d].until_ns, memory_order_relaxed)) && pace_passed(&b->pace[d], now_ns()))
            continue;
        bool there = nvme_lookup(b->nvme[d], b->nvme_space[d], ordinal, &a->place);
        a->coming = !there && b->dram && !atomic_load_explicit(&b->slow, memory_order_relaxed) &&
                    nvme_coming(b->nvme[d], b->nvme_space[d], ordinal);
        if (!there && !a->coming) /* it may have come between the two */
            there = nvme_lookup(b->nvme[d], b->nvme_space[d], ordinal, &a->place);
        if (!there && !a->coming)
            continue;
        a->from = there ? FROM_NVME : a->from;
        a->dir = (uint8_t)d;
        return;
    }
}

/* Where the absent records lie at the origin, which says what they are wherever they come from; f->plan for those that are read
 * from there first. */
static int locate(struct tiers_fetch *f, struct larder_error *err)
{
    struct fetch_stack *k = f->stack;
    size_t m = 0;
    for (size_t j = 0; j < k->n_absent; j++)
        k->ask[j] = k->ordinals[k->absent[j].i];
    int rc = store_locate(f->t->store, k->ask, k->n_absent, k->extents, err);
    if (!rc)
        rc = tiers_check_extents(f->t, k->extents, k->n_absent, err);
    if (rc)
        return rc;
    for (size_t j = 0; j < k->n_absent; j++) {
        struct absent *a = &k->absent[j];
        a->wanted = stack_wanted(k->b, k->ordinals[a->i]);
        f->extents[a->i] = a->extent = k->extents[j];
        if (a->from == FROM_ORIGIN)
            look_up_nvme(k, a);
        if (a->from == FROM_NVME && k->b->exclusive)
            a->wanted = false; /* room in DRAM is for what is not here */
        if (a->from == FROM_ORIGIN && !a->coming && f->patient && a->wanted && stream_takes(f->t->stream, a->extent.shard)) {
            a->from = FROM_STREAM;
            a->k = (uint32_t)k->n_stream++;
        }
        if (a->from == FROM_ORIGIN) {
            a->k = (uint32_t)m;
            k->ask[m] = k->ordinals[a->i];
            k->extents[m++] = a->extent; /* m <= j: in place */
        }
    }
    rc = GROW(k->wants, k->cap_wants, k->n_stream, err);
    return rc ? rc : tiers_plan(f, &f->plan, UINT32_MAX, k->extents, NULL, m, err);
}

/* Room behind the plan's for what is not read by it, or may not be. */
static size_t give_room(struct tiers_fetch *f)
{
    struct fetch_stack *k = f->stack;
    size_t bytes = round_up(f->plan.memory, TIERS_ALIGN);
    for (size_t j = 0; j < k->n_absent; j++)
        if (k->absent[j].from == FROM_NVME) {
            k->absent[j].at = bytes;
            bytes += round_up(MAX(k->absent[j].place.len, k->absent[j].extent.stored_len), TIERS_ALIGN);
        }
    for (size_t j = 0; j < k->n_absent; j++) {
        struct absent *a = &k->absent[j];
        if (a->from == FROM_NVME)
            continue;
        bool later = a->from == FROM_COPY || a->from == FROM_STREAM || a->coming;
        a->at = later || (a->wanted && k->b->dram) ? bytes : NO_ROOM;
        bytes += a->at == NO_ROOM ? 0 : round_up(a->extent.stored_len, 64);
    }
    return bytes;
}

static int no_sample(struct tiers_fetch *f, uint64_t ordinal, struct larder_error *err)
{
    struct extent e;
    int rc = store_locate(f->t->store, &ordinal, 1, &e, err);
    return rc ? rc : err_set(err, LARDER_ENOTFOUND, "no sample %llu", (unsigned long long)ordinal);
}

int stack_plan(struct tiers_fetch *f, const uint64_t *ordinals, size_t n, size_t *bytes, struct larder_error *err)
{
    int rc = grow(f, n, err);
    if (rc)
        return rc;
    struct fetch_stack *k = f->stack;
    uint64_t samples = store_manifest(f->t->store)->samples, dram_bytes = 0;
    k->b = f->t->bound;
    k->n = n;
    k->n_absent = k->settled = 0;
    k->n_stream = k->stream_at = 0;
    k->coming = 0;
    k->used = 0;
    k->counts = (struct tiers_counts){0};
    f->plan.n_segments = f->plan.memory = f->plan.bytes = 0;
    if (n)
        memcpy(k->ordinals, ordinals, n * sizeof(*ordinals));
    bool fifo = k->b->dram && k->b->cache->o.replacement == LARDER_REPLACE_FIFO;
    look_up(f, n);
    for (size_t i = 0; i < n; i++) {
        if (unlikely(ordinals[i] >= samples))
            return no_sample(f, ordinals[i], err);
        if (likely(k->views[i] && !fifo)) {
            dram_bytes += f->extents[i].stored_len;
            continue;
        }
        if (k->n_absent >= k->cap_absent && (rc = grow_absent(k, MAX(n - i + k->n_absent, (size_t)16), err)))
            return rc;
        k->absent[k->n_absent++] = (struct absent){.i = (uint32_t)i, .from = k->views[i] ? FROM_COPY : FROM_ORIGIN, .at = NO_ROOM};
    }
    k->counts.dram.bytes = dram_bytes;
    k->counts.dram.hits = n - k->n_absent;
    *bytes = 0;
    if (!k->n_absent)
        return LARDER_OK;
    rc = grow_absent(k, k->n_absent, err);
    if (!rc)
        rc = locate(f, err);
    if (!rc)
        *bytes = give_room(f);
    return rc;
}

bool stack_all_hit(const struct tiers_fetch *f) { return f->stack->n_absent == 0; }

/* ---- a record has come ---- */

/* From DRAM, a view or a copy. */
static void take(struct tiers_fetch *f, struct absent *a, const struct cached *c, enum tier from)
{
    struct fetch_stack *k = f->stack;
    f->extents[a->i] = extent_cached(k->ordinals[a->i], c->stored_len, c->raw_len, c->crc, c->codec);
    k->views[a->i] = c->bytes;
    a->found = (uint8_t)from;
    a->state = ABSENT_DONE;
    if (from == TIER_DRAM)
        k->counts.dram.bytes += c->stored_len;
}

/* The caller has laid its memory out for the extent that was planned. */
static bool as_planned(const struct absent *a, const struct cached *c)
{
    return c->codec == a->extent.codec && c->raw_len == a->extent.raw_len && c->stored_len == a->extent.stored_len &&
           c->crc == a->extent.crc;
}

static void unclaim(struct fetch_stack *k, struct absent *a)
{
    if (a->claimed)
        dram_unclaim(k->b->cache->dram, k->b->dram_space, k->ordinals[a->i]);
    a->claimed = false;
}

/* Waits until all is written, or until there is room to admit more. */
static bool flush(struct bound *b, unsigned d, bool all)
{
    uint64_t deadline = now_ns() + FLUSH_NS_MAX;
    bool done = !atomic_load_explicit(&b->slow, memory_order_relaxed) &&
                (all ? nvme_flush_until(b->nvme[d], deadline) : nvme_room_until(b->nvme[d], deadline));
    if (!done)
        atomic_store_explicit(&b->slow, true, memory_order_relaxed);
    return done;
}

/* A disk that is behind is waited for, so that which records come in depends on room alone; one that takes too long is waited for
 * no more. */
static enum admitted admit_nvme(struct bound *b, unsigned d, uint64_t ordinal, const struct cached *c, bool wait)
{
    bool in = nvme_admit(b->nvme[d], b->nvme_space[d], ordinal, c) == LARDER_OK;
    if (!in && !wait && !nvme_closed(b->nvme[d], b->nvme_space[d]) && !atomic_load_explicit(&b->slow, memory_order_relaxed))
        return ADMITTED_LATER;
    for (int all = 0; !in && wait && all < 2 && !nvme_closed(b->nvme[d], b->nvme_space[d]) && flush(b, d, all); all++)
        in = nvme_admit(b->nvme[d], b->nvme_space[d], ordinal, c) == LARDER_OK;
    if (in)
        atomic_store_explicit(&b->filled, true, memory_order_relaxed);
    return in ? ADMITTED_NVME : ADMITTED_NOT;
}

bool tiers_filling(const struct tiers *t)
{
    return t->bound && (atomic_load_explicit(&t->bound->filled, memory_order_relaxed) ||
                        atomic_load_explicit(&t->bound->coming, memory_order_relaxed) > 0);
}

void tiers_settle(struct tiers *t)
{
    struct bound *b = t->bound;
    if (!b || tiers_stream_runs(t) || !atomic_exchange(&b->filled, false)) /* it may go on admitting for long: DRAM has what it copies */
        return;
    for (unsigned d = 0; d < b->n_nvme; d++)
        flush(b, d, true);
}

const struct larder_cache_options *tiers_pin_options(const struct tiers *t) { return t->bound ? &t->bound->cache->o : NULL; }

void tiers_register(const struct tiers *t)
{
    if (t->bound && t->bound->cache->dram)
        dram_register(t->bound->cache->dram);
}

enum patience { WAIT, NO_WAIT, OWE };

static enum admitted put(struct bound *b, uint64_t ordinal, const struct cached *c, bool from_nvme, enum patience patience)
{
    bool in_dram = b->dram && !dram_closed(b->cache->dram) &&
                   dram_admit(b->cache->dram, b->dram_space, ordinal, c, NULL) == LARDER_OK;
    enum admitted in = in_dram ? ADMITTED_DRAM : ADMITTED_NOT;
    if (!b->fill_nvme || from_nvme || (b->exclusive && in_dram))
        return in;
    if (patience == OWE && in_dram && b->n_nvme)
        return ADMITTED_OWED;
    for (unsigned i = 0, d = (unsigned)(ordinal % MAX(b->n_nvme, 1u)); i < b->n_nvme; i++, d = (d + 1) % b->n_nvme) {
        enum admitted now = admit_nvme(b, d, ordinal, c, patience == WAIT);
        if (now == ADMITTED_LATER)
            return in_dram ? ADMITTED_OWED : now;
        if (now == ADMITTED_NVME)
            return in_dram ? in : now;
    }
    return in;
}

enum admitted stack_admit(struct bound *b, uint64_t ordinal, const struct cached *c, bool from_nvme)
{
    return put(b, ordinal, c, from_nvme, WAIT);
}

enum admitted stack_admit_now(struct bound *b, uint64_t ordinal, const struct cached *c, bool owe)
{
    return put(b, ordinal, c, false, owe ? OWE : NO_WAIT);
}

void stack_copy(struct bound *b, const uint64_t *ordinals, size_t n)
{
    const void *views[64] = {NULL};
    struct extent e[64];
    dram_lookup(b->cache->dram, b->dram_space, ordinals, n, e, views, NULL, NULL);
    for (size_t i = 0; i < n; i++) {
        struct cached c = {views[i], e[i].stored_len, e[i].raw_len, e[i].crc, e[i].codec};
        if (views[i])
            put(b, ordinals[i], &c, false, WAIT);
    }
}

static void admit(struct fetch_stack *k, const struct absent *a, const struct cached *c)
{
    stack_admit(k->b, k->ordinals[a->i], c, a->from == FROM_NVME);
}

/* Bytes of the origin, at `at` in the fetch's memory. Those that fail their CRC are read again where they may have been damaged on
 * their way, and else handed on as they are: store_decode says so. */
static void came_from_origin(struct tiers_fetch *f, struct absent *a, size_t at)
{
    struct fetch_stack *k = f->stack;
    struct extent *e = &f->extents[a->i];
    const uint8_t *stored = f->memory + at;
    *e = a->extent;
    e->checked = (a->wanted || f->t->remote) && crc32c(0, stored, e->stored_len) == e->crc;
    if (!e->checked && f->t->remote && a->again < TIERS_READ_AGAIN && remote_damaged(f->t->remote)) {
        a->again++;
        a->at = at; /* where it lands now, however it comes */
        a->state = ABSENT_WAIT;
        return;
    }
    k->views[a->i] = stored;
    a->found = TIER_ORIGIN;
    a->state = ABSENT_DONE;
    k->used += e->checked ? e->stored_len : 0;
    if (a->wanted && e->checked) {
        struct cached c = {stored, e->stored_len, e->raw_len, e->crc, e->codec};
        admit(k, a, &c);
    }
    unclaim(k, a);
}

/* Pages of NVMe, at `read`. */
static void came_from_nvme(struct tiers_fetch *f, struct absent *a, const uint8_t *read)
{
    struct fetch_stack *k = f->stack;
    struct bound *b = k->b;
    struct cached c;
    bool whole = nvme_check(b->nvme[a->dir], b->nvme_space[a->dir], k->ordinals[a->i], &a->place, read, &c);
    if (!whole || !as_planned(a, &c)) {
        if (whole) /* of a copy of the dataset that went another way */
            nvme_drop(b->nvme[a->dir], b->nvme_space[a->dir], k->ordinals[a->i], &a->place);
        a->from = FROM_ORIGIN; /* healed; the claim stays */
        a->state = ABSENT_WAIT;
        return;
    }
    if (a->state == ABSENT_AGAIN)
        c.bytes = memcpy(f->memory + a->at, c.bytes, c.stored_len);
    take(f, a, &c, TIER_NVME);
    if (a->wanted)
        admit(k, a, &c);
    unclaim(k, a);
}

bool stack_settle(struct tiers_fetch *f)
{
    struct fetch_stack *k = f->stack;
    size_t bytes = 0;
    for (; k->settled < k->n_absent && bytes < SETTLE_BYTES; k->settled++) {
        struct absent *a = &k->absent[k->settled];
        bytes += a->state == ABSENT_READ || a->state == ABSENT_AGAIN ? a->extent.stored_len : 0;
        if (a->state == ABSENT_READ && a->from == FROM_NVME) {
            came_from_nvme(f, a, f->memory + a->at);
        } else if (a->state == ABSENT_AGAIN && a->from == FROM_NVME) {
            came_from_nvme(f, a, k->again_memory + a->again_at);
        } else if (a->state == ABSENT_READ) {
            came_from_origin(f, a, f->plan.place[a->k]);
        } else if (a->state == ABSENT_AGAIN) {
            memcpy(f->memory + a->at, k->again_memory + k->again.place[a->k], a->extent.stored_len);
            came_from_origin(f, a, a->at);
        }
    }
    return k->settled == k->n_absent && ahead_settle(f, SETTLE_BYTES);
}

void stack_took(struct tiers_fetch *f, uint32_t a, uint64_t ns)
{
    struct bound *b = f->stack->b;
    histogram_add(&b->cache->counter[a == UINT32_MAX ? TIER_ORIGIN : TIER_NVME].latency, ns);
    if (a == UINT32_MAX) {
        pace_average(&b->origin_ns, ns);
        return;
    }
    unsigned d = f->stack->absent[a].dir;
    if (pace_read(&b->pace[d], ns, atomic_load_explicit(&b->origin_ns, memory_order_relaxed), now_ns()))
        atomic_store_explicit(&b->cache->slow[b->nvme_at[d]], true, memory_order_relaxed);
}

void stack_nvme_failed(struct tiers_fetch *f, uint32_t a)
{
    struct fetch_stack *k = f->stack;
    struct absent *failed = &k->absent[a];
    struct cached c;
    (void)nvme_check(k->b->nvme[failed->dir], k->b->nvme_space[failed->dir], k->ordinals[failed->i], &failed->place, NULL, &c);
    failed->from = FROM_ORIGIN;
    failed->state = ABSENT_WAIT;
}

/* ---- start ---- */

struct copying { struct tiers_fetch *f; size_t first; };

/* FIFO: where record `i` of those that are asked again goes. */
static void *copy_to(void *user, size_t i, size_t len)
{
    const struct copying *c = user;
    const struct absent *a = &c->f->stack->absent[c->first + i];
    return len == a->extent.stored_len && c->f->memory ? c->f->memory + a->at : NULL;
}

/* Is absent record j in DRAM now? */
static bool look_again(struct tiers_fetch *f, size_t j)
{
    struct fetch_stack *k = f->stack;
    struct absent *a = &k->absent[j];
    struct copying where = {f, j};
    struct extent e;
    const void *view;
    if (!k->b->dram || !dram_lookup(k->b->cache->dram, k->b->dram_space, &k->ordinals[a->i], 1, &e, &view, copy_to, &where))
        return false;
    struct cached hit = {view, e.stored_len, e.raw_len, e.crc, e.codec};
    if (!as_planned(a, &hit))
        return false;
    take(f, a, &hit, TIER_DRAM);
    return true;
}

/* The first run without what others fetch. */
static int plan_ours(struct tiers_fetch *f, struct larder_error *err)
{
    struct fetch_stack *k = f->stack;
    size_t m = 0, before = f->plan.memory;
    for (size_t j = 0; j < k->n_absent; j++) {
        struct absent *a = &k->absent[j];
        if (a->from == FROM_ORIGIN && a->state == ABSENT_READ) {
            a->k = (uint32_t)m;
            k->ask[m] = k->ordinals[a->i];
            k->extents[m++] = a->extent;
        }
    }
    int rc = tiers_plan(f, &f->plan, f->plan.gap, k->extents, NULL, m, err);
    if (!rc && f->plan.memory > before)
        rc = err_set(err, LARDER_EINVAL, "a part of a fetch needs more memory than all of it");
    return rc;
}

/* Adds the read of record j from NVMe to a run, landing at `memory`. */
static int add_nvme(struct fetch_stack *k, struct plan *p, size_t j, size_t memory, struct larder_error *err)
{
    const struct nvme_place *at = &k->absent[j].place;
    if (p->n_segments + 1 > p->cap_segments && GROW(p->segments, p->cap_segments, p->n_segments + 1, err))
        return LARDER_ENOMEM;
    p->segments[p->n_segments++] = (struct segment){at->offset, memory, (uint32_t)j, at->len, at->len, at->fd};
    k->counts.nvme.requests++;
    k->counts.nvme.bytes += at->len;
    return LARDER_OK;
}

/* Has another process put it into NVMe since it was planned? */
static bool since_then(struct fetch_stack *k, struct absent *a)
{
    look_up_nvme(k, a);
    bool there = a->from == FROM_NVME;
    a->from = FROM_ORIGIN; /* as the memory was laid out */
    return there || a->coming;
}

void stack_wants(struct tiers_fetch *f)
{
    struct fetch_stack *k = f->stack;
    struct ahead *ahead = k->b->ahead;
    k->n_first = 0;
    for (size_t j = 0; ahead && j < k->n_absent; j++) {
        struct absent *a = &k->absent[j];
        enum ahead_state was = ahead_want(ahead, k->ordinals[a->i]);
        a->first = was == AHEAD_NONE && a->from != FROM_NVME;
        a->ahead = was == AHEAD;
    }
    for (size_t i = 0, j = 0; ahead_some(ahead) && i < k->n; i++) {
        if (j < k->n_absent && k->absent[j].i == i)
            j++;
        else if (ahead_want(ahead, k->ordinals[i]) == AHEAD)
            k->n_first++;
    }
}

int stack_start(struct tiers_fetch *f, struct larder_error *err)
{
    struct fetch_stack *k = f->stack;
    struct bound *b = k->b;
    bool theirs = false;
    k->settled = k->gap = k->coming = 0;
    k->started = true;
    k->deadline_ns = now_ns() + WAIT_MS_MAX * 1000000ull;
    k->written_ns = now_ns() + WRITE_NS_MAX;
    for (size_t j = 0; j < k->n_absent; j++) {
        struct absent *a = &k->absent[j];
        a->state = ABSENT_READ;
        k->coming += a->from != FROM_NVME && a->wanted && b->fill_nvme;
        if (a->from == FROM_STREAM) {
            a->state = ABSENT_WAIT;
            k->wants[a->k] = (struct stream_want){.ordinal = k->ordinals[a->i], .to = f->memory + a->at, .len = a->extent.stored_len};
            stream_want(f->t->stream, &k->wants[a->k]);
        } else if (a->from == FROM_COPY) {
            if (!look_again(f, j))
                a->state = ABSENT_WAIT;
        } else if (a->coming) {
            a->state = ABSENT_WAIT;
            theirs = true;
        } else if (a->wanted && b->dram && (a->from == FROM_ORIGIN || !dram_closed(b->cache->dram))) {
            enum claim c = dram_claim(b->cache->dram, b->dram_space, k->ordinals[a->i]);
            a->claimed = c == CLAIM_MINE;
            bool wait = c == CLAIM_THEIRS || (a->from == FROM_ORIGIN && since_then(k, a));
            a->state = wait ? ABSENT_WAIT : ABSENT_READ;
            theirs |= wait;
        }
    }
    if (k->coming)
        atomic_fetch_add_explicit(&b->coming, k->coming, memory_order_relaxed);
    int rc = theirs ? plan_ours(f, err) : LARDER_OK;
    k->counts.origin.requests = f->plan.n_segments;
    k->counts.origin.bytes = f->plan.bytes;
    for (size_t j = 0; !rc && j < k->n_absent; j++)
        if (k->absent[j].from == FROM_NVME && k->absent[j].state == ABSENT_READ)
            rc = add_nvme(k, &f->plan, j, k->absent[j].at, err);
    return rc;
}

/* ---- after a run ---- */

/* It is not the stream's any more. True: that has brought it. */
static bool from_stream(struct tiers_fetch *f, struct absent *a)
{
    struct fetch_stack *k = f->stack;
    struct stream_want *w = &k->wants[a->k];
    stream_unwant(f->t->stream, w);
    if (!atomic_load_explicit(&w->came, memory_order_acquire))
        return false;
    struct cached c = {w->to, w->len, a->extent.raw_len, a->extent.crc, a->extent.codec};
    take(f, a, &c, a->first || !k->b->n_nvme ? TIER_ORIGIN : TIER_NVME);
    return true;
}

/* Record j, which waited: is it there, or ours to read? False: still theirs. */
static bool ask_again(struct tiers_fetch *f, size_t j)
{
    struct fetch_stack *k = f->stack;
    struct absent *a = &k->absent[j];
    if (a->from == FROM_STREAM && from_stream(f, a))
        return true;
    if (look_again(f, j)) {
        unclaim(k, a);
        return true;
    }
    if (!a->claimed && !a->coming && a->wanted && k->b->dram && now_ns() < k->deadline_ns) {
        enum claim c = dram_claim(k->b->cache->dram, k->b->dram_space, k->ordinals[a->i]);
        if (c == CLAIM_THEIRS)
            return look_again(f, j);
        a->claimed = c == CLAIM_MINE;
    }
    a->from = FROM_ORIGIN;
    look_up_nvme(k, a); /* it may have come there meanwhile */
    if (a->coming && a->at != NO_ROOM && now_ns() < k->written_ns) {
        unclaim(k, a);
        return false;
    }
    a->coming = false;
    a->state = ABSENT_AGAIN;
    return true;
}

static int plan_again(struct tiers_fetch *f, struct larder_error *err)
{
    struct fetch_stack *k = f->stack;
    struct plan *p = &k->again;
    size_t m = 0;
    for (size_t j = 0; j < k->n_absent; j++)
        if (k->absent[j].state == ABSENT_AGAIN && k->absent[j].from != FROM_NVME) {
            k->absent[j].k = (uint32_t)m;
            k->ask[m] = k->ordinals[k->absent[j].i];
            k->extents[m++] = k->absent[j].extent;
        }
    int rc = tiers_plan(f, p, UINT32_MAX, k->extents, NULL, m, err);
    k->counts.origin.requests += rc ? 0 : p->n_segments;
    k->counts.origin.bytes += rc ? 0 : p->bytes;
    p->memory = round_up(p->memory, TIERS_ALIGN);
    for (size_t j = 0; !rc && j < k->n_absent; j++)
        if (k->absent[j].state == ABSENT_AGAIN && k->absent[j].from == FROM_NVME) {
            k->absent[j].again_at = p->memory;
            rc = add_nvme(k, p, j, p->memory, err);
            p->memory += round_up(k->absent[j].place.len, TIERS_ALIGN);
        }
    if (!rc && p->memory > k->again_cap) {
        free(k->again_memory);
        k->again_cap = p->memory;
        k->again_memory = aligned_alloc(TIERS_ALIGN, k->again_cap);
        if (!k->again_memory) {
            k->again_cap = 0;
            rc = err_nomem(err, p->memory, "records read again");
        }
    }
    f->run = p;
    f->run_memory = k->again_memory;
    f->next_segment = 0;
    k->settled = k->gap = 0;
    return rc;
}

/* Has the record come that the stream was to bring? */
static bool has_come(const struct fetch_stack *k, const struct absent *a)
{
    bool absent;
    return atomic_load_explicit(&k->wants[a->k].came, memory_order_acquire) || ahead_absent(k->b, &k->ordinals[a->i], 1, &absent) == 0;
}

/* Looks how far the stream has come. True: nothing is left to it, and what has come is to be taken. Records that it will not bring, or
 * that may be fetched out of turn, are ours from now on. */
static bool stream_came(struct tiers_fetch *f)
{
    struct fetch_stack *k = f->stack;
    for (; k->stream_at < k->n_absent; k->stream_at++) {
        struct absent *a = &k->absent[k->stream_at];
        if (a->from != FROM_STREAM || has_come(k, a))
            continue;
        if (stream_takes(f->t->stream, a->extent.shard) && !stream_allow(f->t->stream, a->extent.stored_len))
            return false;
        if (!from_stream(f, a))
            a->from = FROM_ORIGIN;
    }
    return true;
}

enum stack_step stack_next(struct tiers_fetch *f)
{
    struct fetch_stack *k = f->stack;
    bool read = false, wait = false;
    int rc = LARDER_OK;
    if (k->n_stream && k->stream_at < k->n_absent) {
        k->bell = atomic_load(stream_bell(f->t->stream));
        wait = !stream_came(f);
    }
    bool streams = wait;
    for (size_t j = 0; j < k->n_absent; j++) {
        if (k->absent[j].state != ABSENT_WAIT || (streams && k->absent[j].from == FROM_STREAM))
            continue;
        wait |= !ask_again(f, j);
        read |= k->absent[j].state == ABSENT_AGAIN;
    }
    if (read)
        rc = plan_again(f, &f->error);
    if (rc) {
        f->failed = true;
        return STACK_FAILED;
    }
    return read ? STACK_READ : wait ? STACK_WAIT : STACK_DONE;
}

void stack_wait(struct tiers_fetch *f, struct waker *w)
{
    struct fetch_stack *k = f->stack;
    if (k->n_stream && k->stream_at < k->n_absent) {
        atomic_store(&w->asleep_on, stream_bell(f->t->stream));
        if (!atomic_load(&w->woken))
            share_wait(stream_bell(f->t->stream), k->bell, STREAM_WAIT_MS);
        atomic_store(&w->asleep_on, NULL);
        return;
    }
    uint64_t now = now_ns(), ms = now < k->deadline_ns ? (k->deadline_ns - now) / 1000000 + 1 : 0;
    uint64_t write_ms = now < k->written_ns ? (k->written_ns - now) / 1000000 + 1 : 0;
    for (size_t j = 0; ms && j < k->n_absent; j++) {
        const struct absent *a = &k->absent[j];
        uint64_t ordinal = k->ordinals[a->i];
        if (a->state != ABSENT_WAIT)
            continue;
        if (a->coming) {
            nvme_wait(k->b->nvme[a->dir], k->b->nvme_space[a->dir], ordinal, (unsigned)write_ms, w);
            if (atomic_load(&w->woken) || !nvme_coming(k->b->nvme[a->dir], k->b->nvme_space[a->dir], ordinal))
                return;
            if (now_ns() >= k->written_ns)
                atomic_store_explicit(&k->b->slow, true, memory_order_relaxed);
            k->written_ns = 0; /* late, or stopped: this fetch waits for no other */
        } else {
            dram_wait(k->b->cache->dram, k->b->dram_space, ordinal, (unsigned)ms, w);
        }
        return;
    }
}

/* ---- the end ---- */

/* The first want of what came ahead counts at the origin. */
static void count_ahead(struct fetch_stack *k)
{
    k->counts.dram.hits -= k->n_first;
    k->counts.origin.hits += k->n_first;
    for (size_t j = 0; j < k->n_absent; j++) {
        struct absent *a = &k->absent[j];
        if (a->ahead || (a->first && ahead_came(k->b->ahead, k->ordinals[a->i])))
            a->found = TIER_ORIGIN;
    }
}

static void count(struct fetch_stack *k, struct remote *r)
{
    struct tiers_counts *c = &k->counts;
    struct tier_counter *total = k->b->cache->counter;
    if (k->b->ahead)
        count_ahead(k);
    for (size_t j = 0; j < k->n_absent; j++) {
        struct larder_tier_stats *const s[TIERS] = {&c->dram, &c->nvme, &c->origin};
        s[k->absent[j].found]->hits++;
    }
    c->dram.misses = k->b->dram ? k->n - c->dram.hits : 0;
    c->nvme.misses = k->b->n_nvme ? c->origin.hits : 0;
    if (k->b->dram)
        counter_add(&total[TIER_DRAM], &c->dram);
    if (k->n_absent == 0 && c->origin.hits == 0)
        return;
    if (r && k->used)
        remote_used(r, k->used);
    counter_add(&total[TIER_NVME], &c->nvme);
    counter_add(&total[TIER_ORIGIN], &c->origin);
}

void stack_end(struct tiers_fetch *f)
{
    struct fetch_stack *k = f->stack;
    for (size_t j = 0; j < k->n_absent; j++)
        unclaim(k, &k->absent[j]);
    for (size_t j = 0; k->started && j < k->n_stream; j++)
        stream_unwant(f->t->stream, &k->wants[j]);
    k->started = false;
    if (k->coming)
        atomic_fetch_sub_explicit(&k->b->coming, k->coming, memory_order_relaxed);
    k->coming = 0;
    if (f->t->remote) { /* as it came to be: many records may share a GET */
        k->counts.origin.requests = f->gets;
        k->counts.origin.bytes = f->fetched;
    }
    if (!f->failed && k->n_stream)
        stream_account(f->t->stream, &k->counts.origin);
    if (!f->failed)
        count(k, f->t->remote);
}
