/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - a first epoch over a remote origin with room for all of it: the shards come in large GETs, behind those that somebody waits
 * for, straight into the tiers. So every byte travels about once, though the order of the epoch is a full shuffle.
 *
 *     shards, in order --window of slots--> blocks: the records of get_bytes of a shard
 *     block    --what no tier has: up to RUNS_MAX ranges--> GETs --> checked, admitted --> bell
 *                                                            ^---- damaged: again ----'
 *
 * A block of one range has no memory: each record is checked, admitted, and copied to the fetches that wait for it, as soon as its last
 * byte came, out of curl's buffer or a carry of one record. On the loop's thread nothing waits: what NVMe's write buffer has no room for is
 * copied there at the end, from DRAM, or lies in the block's memory until the settler has brought it there. So a disk that is slower
 * than the network holds the stream up only where there is no DRAM. What comes when the end is near is copied at the end, too: the
 * CPUs are busy receiving, and no more than that is lost if the process is killed before.
 *
 * Fetches of loaders (patient ones) leave records that are still to come to the stream, with room for them (wants), and look again when
 * the bell rings. What it costs to fetch single records out of turn, many small GETs, is bounded: stream_allow gives a first batch its
 * own, and later ones a share of what has streamed; nothing while all will have come soon.
 *
 * Processes of a node divide the blocks among themselves: each is claimed, by a key behind all ordinals. What others had claimed is
 * looked at again at the end, and read when it did not come.
 *
 * Memory is bounded by the blocks: MEMORY_MAX, or an eighth of what is available, if all of them are held up or have holes. The stream ends when all is there, when no tier has
 * room any more, after FAILURES_MAX blocks that could not be read (who wants their records will be told why), or when the last loader
 * closes; then whoever waits reads for himself.
 *
 * Threads: two of its own. The walker locates, claims and sends; the settler does what is left of blocks that came, and
 * prepares DRAM's memory for what was sent for, so that the loop's thread finds it ready. A block belongs to
 * the walker from unused to sent, to the remote (on_bytes, on a loop's thread) until its last GET is over, then to the settler.
 * `lock` guards the lists, flying, open and the flags; `wants_lock` the wants, and copying to them. Never two at once. stream_takes,
 * stream_allow, stream_want, stream_unwant, stream_bell: any thread.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tiers/remote.h"
#include "tiers/stack_int.h"

#define WINDOW_PAGES 48u
#define WINDOW (WINDOW_PAGES * STORE_ENTRIES_A_PAGE)
#define WARM_PAGES 256u              /* of the record table, at once */
#define RUNS_MAX 16u
#define HOLE_MAX (256u * 1024)       /* records that are there already, and that it pays to read over */
#define MEMORY_MAX (128 * MIB)
#define HUGE_PAGE (2 * MIB)
#define BLOCKS_MAX 256u
#define FAILURES_MAX 3u
#define COMING_NS 2000000000ull      /* from a tier's write buffer to the tier */
#define ALLOW_SHARE 32u              /* of the dataset at once, and of what has streamed: fetched out of turn */
#define ALLOW_BYTES_MIN (8 * MIB)
#define ALLOW_BYTES_MAX (64 * MIB)
#define ALLOW_GET MIB                /* what a small GET costs, in bytes of large ones: `make bench BENCH=bucket_stream` */
#define SOON_NS 2000000000ull        /* who waits no longer than that fetches nothing out of turn */
#define STALL_NS 500000000ull        /* and while blocks come that often */
#define SETTLE_NS 2000000000ull      /* between two epochs */
#define CLOSE_NS 10000000000ull      /* as nvme_write.c has it */
#define LOOK 64u
#define WANTS 4096u                  /* lists of them, by ordinal */
#define MISSING_LEAST 50u            /* one of so many samples must be missing, or it does not pay */

struct run { uint64_t offset; size_t at, len; };

struct block {
    struct stream *stream;
    uint32_t shard;
    uint64_t first;          /* ordinal of e[0] */
    struct extent *e;
    bool *missing;           /* of e[i]: no tier has it */
    bool *held;              /* it came, and lies in memory until a disk takes it */
    size_t n, cap_e, cap_missing, cap_held;
    uint8_t *memory;         /* of the runs */
    size_t cap_memory, bytes; /* bytes: of the runs */
    uint64_t stored;         /* of the records that have not passed */
    struct run runs[RUNS_MAX];
    unsigned n_runs, again;
    bool sinks;              /* its one run is taken as it comes; then, of the loop that has its GET until that is over: */
    bool other;              /* the answer is of another object */
    size_t record, carried, cap_carry; /* the record that comes next; how much of it lies in carry */
    uint8_t *carry;
    uint64_t used;           /* bytes that a tier took */
    _Atomic unsigned left;   /* GETs that are not over */
    struct remote_request q[RUNS_MAX];
    char names[RUNS_MAX][ORIGIN_NAME];
    bool claimed;
    bool sent;               /* under the stream's lock: its GETs can be cancelled */
    struct block *next;      /* in unused or finished */
};

struct stream {
    struct tiers *t;
    struct bound *b;
    pthread_t walker, settler;
    uint64_t get_bytes, allow_bytes;
    uint64_t stored, begin_ns; /* of the dataset; the stream's start */
    uint64_t warm;             /* the walker's: pages of the record table were read up to this ordinal */
    _Atomic uint64_t *over_ns; /* of a shard: all of it was looked at and read, then; 0: not yet */
    uint32_t *open;            /* of a shard: blocks under way, and what others have claimed */
    struct block **blocks;
    unsigned n_blocks, flying; /* flying: blocks that are not unused */
    _Atomic unsigned failures;
    struct extent *window;
    uint64_t *ordinals;
    struct waker waker;
    _Atomic uint32_t bell;
    _Atomic uint64_t streamed, allowed, requests, bytes; /* requests, bytes: not counted by any fetch yet */
    _Atomic uint64_t coming;    /* bytes that were sent for */
    _Atomic uint64_t passed, passed_ns; /* bytes of records that have come or were there; when that last grew */
    atomic_bool over, owes;    /* owes: there are records in DRAM that NVMe is to have as well */
    pthread_mutex_t lock;
    pthread_cond_t came, freed; /* finished or quit; unused, flying or stop changed */
    pthread_mutex_t wants_lock; /* guards wants, and the copying to them */
    struct stream_want *wants[WANTS];
    bool stop, quit;            /* quit: there is no more to settle */
    bool prepare;               /* there may be memory to prepare for what comes */
    uint64_t stop_ns;           /* when it was told to stop */
    struct block *unused, *finished, **last; /* finished: the first that was over first */
};

/* ---- what fetches ask ---- */

static bool runs(const struct stream *s) { return s && !atomic_load_explicit(&s->over, memory_order_acquire); }

bool stream_takes(const struct stream *s, uint32_t shard)
{
    if (!runs(s))
        return false;
    uint64_t over = atomic_load_explicit(&s->over_ns[shard], memory_order_relaxed);
    return !over || now_ns() < over + COMING_NS;
}

/* Will all have come soon, as far as can be told from what has? */
static bool soon(const struct stream *s)
{
    uint64_t now = now_ns(), passed = atomic_load_explicit(&s->passed, memory_order_relaxed);
    if (now > atomic_load_explicit(&s->passed_ns, memory_order_relaxed) + STALL_NS)
        return false;
    return !passed || (double)(s->stored - MIN(passed, s->stored)) / (double)passed * (double)(now - s->begin_ns) < (double)SOON_NS;
}

bool stream_allow(struct stream *s, uint64_t bytes)
{
    uint64_t cost = bytes + ALLOW_GET;
    uint64_t most = s->allow_bytes + atomic_load_explicit(&s->streamed, memory_order_relaxed) / ALLOW_SHARE;
    uint64_t now = atomic_load_explicit(&s->allowed, memory_order_relaxed);
    while (now + cost <= most && !soon(s))
        if (atomic_compare_exchange_weak_explicit(&s->allowed, &now, now + cost, memory_order_relaxed, memory_order_relaxed))
            return true;
    return false;
}

void stream_want(struct stream *s, struct stream_want *w)
{
    struct stream_want **list = &s->wants[w->ordinal % WANTS];
    pthread_mutex_lock(&s->wants_lock);
    w->next = *list;
    w->listed = true;
    *list = w;
    pthread_mutex_unlock(&s->wants_lock);
}

void stream_unwant(struct stream *s, struct stream_want *w)
{
    pthread_mutex_lock(&s->wants_lock);
    for (struct stream_want **at = &s->wants[w->ordinal % WANTS]; w->listed && *at; at = &(*at)->next)
        if (*at == w) {
            *at = w->next;
            break;
        }
    w->listed = false;
    pthread_mutex_unlock(&s->wants_lock);
}

/* To all who wait for it. False: nobody does. */
static bool hand_out(struct stream *s, uint64_t ordinal, const uint8_t *stored, uint32_t len)
{
    bool some = false;
    pthread_mutex_lock(&s->wants_lock);
    for (struct stream_want **at = &s->wants[ordinal % WANTS], *w; (w = *at);) {
        if (w->ordinal != ordinal || w->len != len) {
            at = &w->next;
            continue;
        }
        if (len)
            memcpy(w->to, stored, len);
        *at = w->next;
        w->listed = false;
        atomic_store_explicit(&w->came, true, memory_order_release);
        some = true;
    }
    pthread_mutex_unlock(&s->wants_lock);
    return some;
}

_Atomic uint32_t *stream_bell(struct stream *s) { return &s->bell; }

bool tiers_stream_runs(const struct tiers *t) { return runs(t->stream); }

void tiers_stream_settle(struct tiers *t)
{
    uint64_t now, end = now_ns() + SETTLE_NS;
    while (runs(t->stream) && (now = now_ns()) < end) {
        uint32_t bell = atomic_load(&t->stream->bell);
        if (runs(t->stream))
            share_wait(&t->stream->bell, bell, (unsigned)((end - now) / 1000000 + 1));
    }
}

void stream_account(struct stream *s, struct larder_tier_stats *origin)
{
    origin->requests += atomic_exchange_explicit(&s->requests, 0, memory_order_relaxed);
    origin->bytes += atomic_exchange_explicit(&s->bytes, 0, memory_order_relaxed);
}

static void ring(struct stream *s)
{
    atomic_fetch_add(&s->bell, 1);
    share_wake(&s->bell);
}

/* ---- blocks ---- */

/* One less that keeps b from being over. */
static void over(struct block *b)
{
    struct stream *s = b->stream;
    if (atomic_fetch_sub(&b->left, 1) != 1)
        return;
    pthread_mutex_lock(&s->lock);
    b->next = NULL;
    *s->last = b;
    s->last = &b->next;
    pthread_cond_signal(&s->came);
    pthread_mutex_unlock(&s->lock);
}

static void done(struct remote_request *q) { over(q->user); }

/* The ranges that hold what is missing, with holes of at most `hole` bytes. How many there are; the first RUNS_MAX are noted. */
static size_t find_runs(struct block *b, uint64_t hole)
{
    size_t n = 0;
    struct run r = {0};
    b->bytes = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct extent *e = &b->e[i];
        if (!b->missing[i] || !e->stored_len)
            continue;
        if (n && e->offset >= r.offset && e->offset <= r.offset + r.len + hole) {
            r.len = MAX(r.len, e->offset + e->stored_len - r.offset);
        } else {
            b->bytes += r.len;
            r = (struct run){e->offset, b->bytes, e->stored_len};
            n++;
        }
        if (n <= RUNS_MAX)
            b->runs[n - 1] = r;
    }
    b->bytes += r.len;
    return n;
}

static bool stopped(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    bool stop = s->stop;
    pthread_mutex_unlock(&s->lock);
    return stop;
}

static void cancel_block(struct block *b)
{
    for (unsigned i = 0; i < b->n_runs; i++)
        remote_cancel(b->stream->t->remote, &b->q[i]);
}

/* Memory that is used again and again, in huge pages: filling fresh small ones costs as much as what is done with their bytes. */
static bool make_room(struct block *b)
{
    if (b->bytes <= b->cap_memory)
        return true;
    free(b->memory);
    size_t align = b->bytes >= HUGE_PAGE ? HUGE_PAGE : TIERS_ALIGN;
    b->cap_memory = round_up(b->bytes + b->bytes / 8, align);
    b->memory = aligned_alloc(align, b->cap_memory);
    if (!b->memory)
        b->cap_memory = 0;
    else if (align == HUGE_PAGE)
        (void)madvise(b->memory, b->cap_memory, MADV_HUGEPAGE); /* a hint */
    return b->memory != NULL;
}

/* ---- what comes ---- */

/* Bytes of records of b have come, or were there. */
static void pass(struct block *b, uint64_t stored)
{
    b->stored -= stored;
    atomic_fetch_add_explicit(&b->stream->passed, stored, memory_order_relaxed);
    atomic_store_explicit(&b->stream->passed_ns, now_ns(), memory_order_relaxed);
}

static void take_later(struct block *b, size_t i, const uint8_t *stored)
{
    if (!make_room(b))
        return; /* read again */
    memcpy(b->memory + (b->e[i].offset - b->runs[0].offset), stored, b->e[i].stored_len);
    b->held[i] = true;
}

/* A record is there: checked, and to the tiers. Those that are damaged stay missing. */
static void take(struct block *b, size_t i, const uint8_t *stored, bool wait)
{
    const struct extent *e = &b->e[i];
    struct bound *to = b->stream->b;
    struct cached c = {stored, e->stored_len, e->raw_len, e->crc, e->codec};
    enum admitted in = ADMITTED_NOT;
    if (crc32c(0, stored, e->stored_len) != e->crc)
        return;
    if (stack_wanted(to, b->first + i)) {
        ahead_note(to->ahead, b->first + i);
        in = wait ? stack_admit(to, b->first + i, &c, false) : stack_admit_now(to, b->first + i, &c, soon(b->stream));
    }
    bool wanted = in < ADMITTED_DRAM && hand_out(b->stream, b->first + i, stored, e->stored_len);
    if (in == ADMITTED_LATER) {
        take_later(b, i, stored);
    } else {
        b->missing[i] = false;
        pass(b, e->stored_len);
    }
    b->used += in >= ADMITTED_NVME || (wanted && in == ADMITTED_NOT) ? e->stored_len : 0;
    if (in == ADMITTED_OWED)
        atomic_store_explicit(&b->stream->owes, true, memory_order_relaxed);
}

/* Bytes of the run of b, in order. A record that came whole is taken from where curl has it, others are put together in carry: either way
 * it is checked and copied while it is in the CPU's cache. */
static void on_bytes(struct remote_request *q, size_t at, const void *data, size_t len)
{
    struct block *b = q->user;
    uint64_t from = b->runs[0].offset + at, to = from + len;
    const uint8_t *bytes = data;
    if (at == 0) { /* of each try */
        b->record = b->carried = 0;
        b->other = origin_http_check(b->stream->t->http, b->shard, q) != LARDER_OK;
    }
    for (; b->record < b->n && !b->other; b->record++) {
        const struct extent *e = &b->e[b->record];
        if (!b->missing[b->record] || b->held[b->record] || !e->stored_len || (!b->carried && e->offset < from))
            continue;
        if (e->offset >= to)
            return;
        size_t part = MIN(to - (e->offset + b->carried), (uint64_t)(e->stored_len - b->carried));
        const uint8_t *stored = bytes + (e->offset + b->carried - from);
        if (part < e->stored_len) {
            memcpy(b->carry + b->carried, stored, part);
            b->carried += part;
            if (b->carried < e->stored_len)
                return;
            stored = b->carry;
        }
        b->carried = 0;
        take(b, b->record, stored, false);
    }
}

static bool make_carry(struct block *b)
{
    size_t longest = 0;
    for (size_t i = 0; i < b->n; i++)
        longest = b->missing[i] ? MAX(longest, (size_t)b->e[i].stored_len) : longest;
    return GROW(b->carry, b->cap_carry, longest, NULL) == LARDER_OK;
}

/* Sends the GETs of what is missing: then the block is not the caller's any more. False: there is nothing to read, or no memory for
 * it. */
static bool send_block(struct block *b)
{
    struct stream *s = b->stream;
    size_t n = find_runs(b, HOLE_MAX);
    for (uint64_t hole = HOLE_MAX; n > RUNS_MAX; hole *= 2)
        n = find_runs(b, hole * 2);
    b->sinks = n == 1;
    if (!n || !(b->sinks ? make_carry(b) : make_room(b)))
        return false;
    b->n_runs = (unsigned)n;
    atomic_store(&b->left, b->n_runs + 1); /* one for us: it is not over before all were started */
    for (unsigned i = 0; i < n; i++) {
        const struct run *r = &b->runs[i];
        b->q[i] = (struct remote_request){.priority = REMOTE_STREAM, .sink = b->sinks ? on_bytes : NULL, .done = done, .user = b};
        origin_http_prepare(s->t->http, b->shard, r->offset, b->sinks ? NULL : b->memory + r->at, r->len, b->names[i], &b->q[i]);
        remote_start(s->t->remote, &b->q[i]);
    }
    atomic_fetch_add_explicit(&s->coming, b->bytes, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    b->sent = true;
    s->prepare = s->b->dram;
    pthread_cond_signal(&s->came);
    bool stop = s->stop; /* set before: whoever stops may not have seen it */
    pthread_mutex_unlock(&s->lock);
    if (stop)
        cancel_block(b);
    over(b);
    return true;
}

static uint64_t claim_key(const struct block *b) { return CACHE_ORDINAL_MAX - b->first; }

/* Lock held. */
static void close_one(struct stream *s, uint32_t shard)
{
    if (--s->open[shard] == 0)
        atomic_store_explicit(&s->over_ns[shard], now_ns(), memory_order_relaxed);
}

/* b is unused again. opened: it counted among those of its shard. */
static void free_block(struct block *b, bool opened)
{
    struct stream *s = b->stream;
    if (b->claimed)
        dram_unclaim(s->b->cache->dram, s->b->dram_space, claim_key(b));
    b->claimed = false;
    pthread_mutex_lock(&s->lock);
    if (opened) {
        close_one(s, b->shard);
        pass(b, b->stored);
    }
    b->sent = false;
    b->next = s->unused;
    s->unused = b;
    s->flying--;
    pthread_cond_signal(&s->freed);
    pthread_mutex_unlock(&s->lock);
    if (opened)
        ring(s);
}

/* Did all GETs of b do well? Counts them. */
static bool came(struct block *b)
{
    struct stream *s = b->stream;
    bool well = true;
    for (unsigned i = 0; i < b->n_runs; i++) {
        well &= origin_http_check(s->t->http, b->shard, &b->q[i]) == LARDER_OK;
        if (b->q[i].rc == LARDER_OK)
            atomic_fetch_add_explicit(&s->bytes, b->q[i].len, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&s->requests, b->n_runs, memory_order_relaxed);
    return well;
}

/* Takes the records of a block that came, or of one that did not those that are held; those that are damaged stay missing. How many. */
static size_t settle_records(struct block *b, bool well)
{
    size_t damaged = 0;
    unsigned r = 0;
    for (size_t i = 0; i < b->n; i++) {
        const struct extent *e = &b->e[i];
        if (!b->missing[i])
            continue;
        while (well && e->stored_len && e->offset >= b->runs[r].offset + b->runs[r].len)
            r++;
        if (b->held[i] || (well && (!b->sinks || !e->stored_len)))
            take(b, i, e->stored_len ? b->memory + b->runs[r].at + (e->offset - b->runs[r].offset) : b->carry, true);
        b->held[i] = false;
        damaged += b->missing[i];
    }
    remote_used(b->stream->t->remote, b->used);
    b->used = 0;
    atomic_fetch_add_explicit(&b->stream->streamed, b->bytes, memory_order_relaxed);
    return damaged;
}

static void settle_block(struct block *b)
{
    struct stream *s = b->stream;
    pthread_mutex_lock(&s->lock);
    b->sent = false;
    pthread_mutex_unlock(&s->lock);
    bool well = came(b);
    atomic_fetch_sub_explicit(&s->coming, b->bytes, memory_order_relaxed);
    size_t damaged = settle_records(b, well);
    if (!well)
        atomic_fetch_add(&s->failures, 1);
    else if (damaged && b->again++ < TIERS_READ_AGAIN && !stopped(s) && remote_damaged(s->t->remote) && send_block(b))
        return;
    free_block(b, true);
}

static void *settler_main(void *arg)
{
    struct stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->finished && !s->quit && !s->prepare)
            pthread_cond_wait(&s->came, &s->lock);
        struct block *b = s->finished;
        if (!b && s->quit)
            break;
        if (!b) {
            s->prepare = false;
            pthread_mutex_unlock(&s->lock);
            bool more = dram_prepare(s->b->cache->dram, atomic_load_explicit(&s->coming, memory_order_relaxed));
            pthread_mutex_lock(&s->lock);
            s->prepare |= more;
            continue;
        }
        s->finished = b->next;
        if (!s->finished)
            s->last = &s->finished;
        pthread_mutex_unlock(&s->lock);
        settle_block(b);
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* A block to fill, waited for; NULL: told to stop. */
static struct block *take_block(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    while (!s->unused && !s->stop)
        pthread_cond_wait(&s->freed, &s->lock);
    struct block *b = s->stop ? NULL : s->unused;
    if (b) {
        s->unused = b->next;
        s->flying++;
    }
    pthread_mutex_unlock(&s->lock);
    return b;
}

/* ---- the walk over the shards ---- */

/* Which records of b are missing? */
static bool look(struct block *b)
{
    struct stream *s = b->stream;
    bool some = false;
    for (size_t i = 0; i < b->n; i += LOOK) {
        size_t n = MIN(b->n - i, (size_t)LOOK);
        for (size_t j = 0; j < n; j++)
            s->ordinals[j] = b->first + i + j;
        some |= ahead_absent(s->b, s->ordinals, n, b->missing + i) > 0;
    }
    return some;
}

/* MINE: also where there are no claims. wait: until it is. */
static enum claim claim_block(struct block *b, bool wait)
{
    struct stream *s = b->stream;
    if (!s->b->dram || claim_key(b) < store_manifest(s->t->store)->samples)
        return CLAIM_NONE;
    for (;;) {
        enum claim c = dram_claim(s->b->cache->dram, s->b->dram_space, claim_key(b));
        b->claimed = c == CLAIM_MINE;
        if (c != CLAIM_THEIRS || !wait || atomic_load(&s->waker.woken))
            return c;
        dram_wait(s->b->cache->dram, s->b->dram_space, claim_key(b), 1000, &s->waker);
        if (!look(b))
            return CLAIM_NONE;
    }
}

/* b describes the records of a block: sends for what is missing. False: stop. */
static bool stream_block(struct block *b, bool last_pass)
{
    struct stream *s = b->stream;
    if (!look(b)) {
        pass(b, b->stored);
        free_block(b, false);
        return true;
    }
    if (!stack_wanted(s->b, b->first)) { /* no room any more */
        free_block(b, false);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    s->open[b->shard]++;
    pthread_mutex_unlock(&s->lock);
    if (claim_block(b, last_pass) == CLAIM_THEIRS)
        free_block(b, false); /* its shard stays open */
    else if (!send_block(b))
        free_block(b, true);
    return atomic_load(&s->failures) < FAILURES_MAX;
}

/* window[from, to) are the records of a block, from ordinal `first` on. */
static bool fill_block(struct stream *s, uint32_t shard, uint64_t first, size_t from, size_t to, bool last_pass)
{
    struct block *b = take_block(s);
    if (!b)
        return false;
    b->n = to - from;
    b->shard = shard;
    b->first = first;
    b->again = 0;
    b->used = 0;
    if (GROW(b->e, b->cap_e, b->n, NULL) || GROW(b->missing, b->cap_missing, b->n, NULL) || GROW(b->held, b->cap_held, b->n, NULL)) {
        free_block(b, false);
        return false;
    }
    memset(b->held, 0, b->n * sizeof(*b->held));
    memcpy(b->e, s->window + from, b->n * sizeof(*b->e));
    b->stored = 0;
    for (size_t i = 0; i < b->n; i++)
        b->stored += b->e[i].stored_len;
    return stream_block(b, last_pass);
}

/* Has the pages of the record table read ahead, many in one go, of the following shards too: from slot `slot` on. */
static bool warm(struct stream *s, uint32_t shard, uint32_t slot)
{
    size_t pages = 0;
    for (; shard < s->t->n_shards && pages < WARM_PAGES; shard++, slot = 0)
        for (; slot < s->t->shards[shard].samples && pages < WARM_PAGES; slot += STORE_ENTRIES_A_PAGE) {
            s->ordinals[pages++] = s->t->shards[shard].base + slot;
            s->warm = s->t->shards[shard].base + MIN((uint64_t)slot + STORE_ENTRIES_A_PAGE, (uint64_t)s->t->shards[shard].samples);
        }
    return store_locate(s->t->store, s->ordinals, pages, s->window, NULL) == LARDER_OK;
}

/* Locates n slots from `slot` on. */
static bool locate(struct stream *s, uint32_t shard, uint32_t slot, size_t n)
{
    uint64_t first = s->t->shards[shard].base + slot;
    if (first + n > s->warm && !warm(s, shard, slot))
        return false;
    for (size_t i = 0; i < n; i++)
        s->ordinals[i] = first + i;
    return store_locate(s->t->store, s->ordinals, n, s->window, NULL) == LARDER_OK &&
           tiers_check_extents(s->t, s->window, n, NULL) == LARDER_OK;
}

static bool stream_shard(struct stream *s, uint32_t shard, bool last_pass)
{
    const struct shard_ref *r = &s->t->shards[shard];
    bool go_on = true;
    pthread_mutex_lock(&s->lock);
    s->open[shard] = 1; /* while we walk */
    pthread_mutex_unlock(&s->lock);
    for (uint32_t slot = 0; go_on && slot < r->samples; slot += WINDOW) {
        size_t n = MIN(r->samples - slot, WINDOW), from = 0;
        if (stopped(s) || !locate(s, shard, slot, n)) {
            atomic_fetch_add(&s->failures, 1);
            break;
        }
        for (size_t to = 1; go_on && to <= n; to++)
            if (to == n || s->window[to].offset / s->get_bytes != s->window[from].offset / s->get_bytes) {
                go_on = fill_block(s, shard, r->base + slot + from, from, to, last_pass);
                from = to;
            }
    }
    pthread_mutex_lock(&s->lock);
    close_one(s, shard);
    pthread_mutex_unlock(&s->lock);
    return go_on && atomic_load(&s->failures) < FAILURES_MAX;
}

static bool is_open(struct stream *s, uint32_t shard)
{
    pthread_mutex_lock(&s->lock);
    bool open = s->open[shard] > 0;
    pthread_mutex_unlock(&s->lock);
    return open;
}

/* Waits until no block is under way. When told to stop, what is in flight comes back cancelled. False: told to stop. */
static bool drain(struct stream *s)
{
    bool canceled = false;
    pthread_mutex_lock(&s->lock);
    while (s->flying) {
        for (unsigned i = 0; s->stop && !canceled && i < s->n_blocks; i++)
            if (s->blocks[i]->sent) {
                pthread_mutex_unlock(&s->lock);
                cancel_block(s->blocks[i]);
                pthread_mutex_lock(&s->lock);
            }
        canceled |= s->stop;
        if (s->flying)
            pthread_cond_wait(&s->freed, &s->lock);
    }
    bool go_on = !s->stop;
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

static void end_settler(struct stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_signal(&s->came);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->settler, NULL);
}

/* What NVMe's write buffer had no room for while it came. Who closes waits for it as long as for that buffer. */
static void pay_back(struct stream *s)
{
    uint64_t samples = MIN(store_manifest(s->t->store)->samples, (uint64_t)CACHE_ORDINAL_MAX + 1);
    if (!atomic_load_explicit(&s->owes, memory_order_relaxed))
        return;
    for (uint64_t first = 0, n; first < samples; first += n) {
        pthread_mutex_lock(&s->lock);
        bool late = s->stop && now_ns() > s->stop_ns + CLOSE_NS;
        pthread_mutex_unlock(&s->lock);
        if (late)
            return;
        n = MIN(samples - first, (uint64_t)LOOK);
        for (uint64_t i = 0; i < n; i++)
            s->ordinals[i] = first + i;
        stack_copy(s->b, s->ordinals, n);
    }
}

static void *walker_main(void *arg)
{
    struct stream *s = arg;
    bool go_on = true;
    for (uint32_t shard = 0; go_on && shard < s->t->n_shards; shard++)
        go_on = stream_shard(s, shard, false);
    go_on = drain(s) && go_on;
    s->warm = 0;
    for (uint32_t shard = 0; go_on && shard < s->t->n_shards; shard++) /* what others had claimed */
        if (is_open(s, shard))
            go_on = stream_shard(s, shard, true);
    go_on = drain(s) && go_on;
    end_settler(s);
    pay_back(s);
    for (unsigned d = 0; go_on && d < s->b->n_nvme; d++)
        nvme_flush_until(s->b->nvme[d], now_ns() + COMING_NS);
    atomic_store_explicit(&s->over, true, memory_order_release);
    ring(s);
    return NULL;
}

/* ---- start and stop ---- */

static bool room_for(const struct bound *b, double missing)
{
    uint64_t room = 0;
    if (!b->exclusive) /* NVMe holds all of it */
        return true;
    if (b->dram) {
        struct dram_stats d;
        dram_stats(b->cache->dram, &d);
        room += d.budget - MIN(d.used, d.budget);
    }
    for (unsigned i = 0; b->fill_nvme && i < b->n_nvme; i++) {
        struct nvme_stats n;
        nvme_stats(b->nvme[i], &n);
        room += n.budget - MIN(n.used, n.budget);
    }
    return room > missing * 1.1;
}

bool tiers_streams(const struct tiers *t)
{
    const struct bound *b = t->bound;
    uint64_t ordinals[LOOK], samples = t->store ? store_manifest(t->store)->samples : 0, stored = 0;
    bool absent[LOOK];
    size_t looks = 0, missing = 0;
    if (!t->remote || !b || !b->ahead || b->cache->o.admit || samples < 2 || !stack_wanted(b, 0))
        return false;
    for (unsigned i = 0; i < 16; i++) {
        size_t n = 0;
        for (; n < LOOK && looks < samples; n++, looks++)
            ordinals[n] = samples <= 16 * LOOK ? looks : (uint64_t)((double)looks / (16 * LOOK) * samples);
        missing += n ? ahead_absent(b, ordinals, n, absent) : 0;
    }
    for (size_t i = 0; i < t->n_shards; i++)
        stored += t->shards[i].stored_bytes + t->shards[i].samples * 20ull;
    return missing * MISSING_LEAST >= looks && room_for(b, (double)stored * missing / looks);
}

static void stream_free(struct stream *s)
{
    for (unsigned i = 0; s->blocks && i < s->n_blocks; i++)
        if (s->blocks[i]) {
            free(s->blocks[i]->e);
            free(s->blocks[i]->missing);
            free(s->blocks[i]->held);
            free(s->blocks[i]->carry);
            free(s->blocks[i]->memory);
            free(s->blocks[i]);
        }
    free(s->blocks);
    free(s->window);
    free(s->ordinals);
    free(s->open);
    free((void *)s->over_ns);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->wants_lock);
    pthread_cond_destroy(&s->came);
    pthread_cond_destroy(&s->freed);
    free(s);
}

static struct stream *stream_new(struct tiers *t)
{
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->wants_lock, NULL);
    pthread_cond_init(&s->came, NULL);
    pthread_cond_init(&s->freed, NULL);
    s->t = t;
    s->b = t->bound;
    s->last = &s->finished;
    s->get_bytes = t->rules.segment_max;
    for (size_t i = 0; i < t->n_shards; i++)
        s->stored += t->shards[i].stored_bytes;
    s->allow_bytes = MIN(MAX(s->stored / ALLOW_SHARE, (uint64_t)ALLOW_BYTES_MIN), (uint64_t)ALLOW_BYTES_MAX);
    s->begin_ns = now_ns();
    atomic_store(&s->passed_ns, s->begin_ns);
    uint64_t memory = MIN((uint64_t)MEMORY_MAX, memory_available() / 8);
    unsigned connections = remote_options(t->remote)->requests_max;
    s->n_blocks = (unsigned)MAX((uint64_t)1, MIN(MIN(memory / s->get_bytes, (uint64_t)(connections - connections / 4)),
                                                 (uint64_t)BLOCKS_MAX));
    s->blocks = calloc(s->n_blocks, sizeof(*s->blocks));
    s->window = malloc(WINDOW * sizeof(*s->window));
    s->ordinals = malloc(WINDOW * sizeof(*s->ordinals));
    s->open = calloc(t->n_shards, sizeof(*s->open));
    s->over_ns = calloc(t->n_shards, sizeof(*s->over_ns));
    bool ok = s->blocks && s->window && s->ordinals && s->open && s->over_ns;
    for (unsigned i = 0; ok && i < s->n_blocks; i++) {
        ok = (s->blocks[i] = calloc(1, sizeof(*s->blocks[i]))) != NULL;
        if (ok) {
            s->blocks[i]->stream = s;
            s->blocks[i]->next = s->unused;
            s->unused = s->blocks[i];
        }
    }
    if (ok)
        return s;
    stream_free(s);
    return NULL;
}

static bool start_threads(struct stream *s)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    bool ok = pthread_create(&s->settler, NULL, settler_main, s) == 0;
    if (ok && pthread_create(&s->walker, NULL, walker_main, s) != 0) {
        end_settler(s);
        ok = false;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (ok) {
        pthread_setname_np(s->walker, "larder-stream");
        pthread_setname_np(s->settler, "larder-settle");
    }
    return ok;
}

bool tiers_stream_start(struct tiers *t)
{
    pthread_mutex_lock(&t->lock);
    if (!t->stream && tiers_streams(t)) {
        struct stream *s = stream_new(t);
        if (s && start_threads(s))
            t->stream = s;
        else if (s)
            stream_free(s);
    }
    bool there = t->stream != NULL;
    t->streamers += there;
    pthread_mutex_unlock(&t->lock);
    return there;
}

void tiers_stream_stop(struct tiers *t)
{
    pthread_mutex_lock(&t->lock);
    struct stream *s = --t->streamers == 0 ? t->stream : NULL;
    if (s)
        t->stream = NULL;
    pthread_mutex_unlock(&t->lock);
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    s->stop_ns = now_ns();
    pthread_cond_signal(&s->freed);
    pthread_mutex_unlock(&s->lock);
    dram_wake(&s->waker);
    pthread_join(s->walker, NULL);
    stream_free(s);
}
