/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers.c - the stack: what is opened once a dataset, the planning of fetches, and blocking reads.
 *
 * The origin is a local directory, or objects below an URL; a cache in front of it is opened apart (cache.c) and bound to. Objects
 * always have one, if only an empty one: what travels over a network is checked when it comes, and read again. tiers_read takes an idle
 * queue from a stack of them (most recently used first, so that its memory is warm), makes one when there is none, and waits when
 * TIERS_QUEUES_MAX are in use.
 *
 * Threads: tiers_read and tiers_queue_open from any number of threads; a fetch belongs to one at a time; open and close alone.
 * lock guards the idle queues and is not held while reading.
 */
#include <errno.h>
#include <unistd.h>

#include "tiers/remote.h"
#include "tiers/stack_int.h"

#define GAP_MIN 128u /* so that a part of a plan never needs more memory than all of it, rounding included */
#define THREADS_A_CPU 4u /* pread threads mostly sleep in the kernel */

static bool uring_forbidden(void)
{
    const char *v = getenv("LARDER_NO_URING");
    return v && *v && strcmp(v, "0") != 0;
}

/* Opens the first idle queue, which tells whether the kernel lets us have io_uring. */
static int open_engines(struct tiers *t, struct larder_error *err)
{
    struct engine *probe = NULL;
    int rc = pool_new(MIN(t->depth, THREADS_A_CPU * cpu_count()), &t->pool, err);
    if (rc)
        return rc;
    t->uring = !uring_forbidden() && uring_open(t->depth, &probe, NULL) == LARDER_OK;
    if (probe)
        probe->ops->close(probe, false);
    rc = tiers_queue_open(t, 0, &t->idle[0], err);
    if (!rc)
        t->n_idle = t->n_queues = 1;
    return rc;
}

static int check_options(const struct tiers_options *o, struct larder_error *err)
{
    if (o->queue_depth > TIERS_DEPTH_MAX)
        return err_set(err, LARDER_EINVAL, "queue depth %u: the most is %u", o->queue_depth, TIERS_DEPTH_MAX);
    if (o->direct < LARDER_DIRECT_AUTO || o->direct > LARDER_DIRECT_OFF)
        return err_set(err, LARDER_EINVAL, "direct = %d: see enum larder_direct", o->direct);
    return LARDER_OK;
}

static int new_tiers(const struct shard_ref *shards, size_t n, const struct tiers_options *o, struct tiers **out,
                     struct larder_error *err)
{
    int rc = check_options(o, err);
    if (rc)
        return rc;
    struct tiers *t = calloc(1, sizeof(*t));
    if (!t)
        return err_nomem(err, sizeof(*t), "the tiers");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->returned, NULL);
    t->pid = getpid();
    t->depth = o->queue_depth ? o->queue_depth : TIERS_DEPTH_DEFAULT;
    t->shards = shards;
    t->n_shards = n;
    *out = t;
    return LARDER_OK;
}

static int opened(struct tiers *t, int rc, struct tiers **out)
{
    if (rc)
        tiers_close(t);
    *out = rc ? NULL : t;
    return rc;
}

int tiers_open_files(const char *dir, const struct shard_ref *shards, size_t n, const struct tiers_options *o, struct tiers **out,
                     struct larder_error *err)
{
    struct origin_options origin = {o->files_max, o->direct};
    struct tiers *t;
    *out = NULL;
    int rc = new_tiers(shards, n, o, &t, err);
    if (rc)
        return rc;
    rc = origin_open(dir, shards, n, &origin, &t->origin, err);
    if (!rc)
        rc = open_engines(t, err);
    return opened(t, rc, out);
}

/* Neighbours travel in one GET: with a gap as the options have it, and cut at get_bytes. */
static struct plan_rules rules_of(const struct larder_remote_options *o)
{
    uint32_t get = (uint32_t)MIN(MAX(o->get_bytes, (uint64_t)TIERS_ALIGN), (uint64_t)TIERS_GET_MAX);
    uint64_t gap = o->gap_bytes == UINT64_MAX ? 0 : o->gap_bytes;
    return (struct plan_rules){1, (uint32_t)MIN(MAX(gap, (uint64_t)GAP_MIN), (uint64_t)get), get};
}

int tiers_open_remote(struct remote *r, const struct shard_ref *shards, size_t n, const struct tiers_options *o, struct tiers **out,
                      struct larder_error *err)
{
    struct tiers *t;
    *out = NULL;
    int rc = new_tiers(shards, n, o, &t, err);
    if (rc)
        return rc;
    t->remote = r;
    t->rules = rules_of(remote_options(r));
    rc = origin_http_open(r, shards, n, &t->http, err);
    if (!rc)
        rc = open_engines(t, err);
    return opened(t, rc, out);
}

/* Binds to a cache: the caller's, or an empty one. */
static int bind(struct tiers *t, struct tiers_cache *c, struct larder_error *err)
{
    struct larder_cache_options none = LARDER_CACHE_OPTIONS_INIT;
    int rc = LARDER_OK;
    if (!c && t->remote) {
        none.name = NULL;
        none.dram_bytes = LARDER_DRAM_OFF;
        rc = tiers_cache_open(&none, &t->empty, err);
        c = t->empty;
    }
    return rc || !c ? rc : cache_bind(c, store_manifest(t->store), !t->remote, &t->bound, err);
}

int tiers_open(struct store *s, const struct tiers_options *o, struct tiers **out, struct larder_error *err)
{
    *out = NULL;
    const struct manifest *m = store_manifest(s);
    struct store_io *io = store_io_of(s);
    struct remote *r = o->remote;
    const char *root = io->ops->local_root ? io->ops->local_root(io) : NULL;
    AUTO_FREE char *dir = NULL;
    struct tiers *t;
    int rc;
    if (r) {
        rc = tiers_open_remote(r, m->shards, m->n_shards, o, &t, err);
    } else {
        if (!root)
            return err_set(err, LARDER_EINVAL, "the dataset is neither in a local directory nor below an URL");
        if (asprintf(&dir, "%s/shards", root) < 0) {
            dir = NULL;
            return err_nomem(err, strlen(root) + 8, "a path");
        }
        rc = tiers_open_files(dir, m->shards, m->n_shards, o, &t, err);
    }
    if (rc)
        return rc;
    t->store = s;
    return opened(t, bind(t, o->cache, err), out);
}

void tiers_close(struct tiers *t)
{
    if (!t)
        return;
    bool forked = t->pid != getpid();
    for (unsigned i = 0; i < t->n_idle; i++)
        tiers_queue_close(t->idle[i]);
    pool_free(t->pool, forked);
    origin_close(t->origin);
    origin_http_close(t->http);
    cache_unbind(t->bound);
    tiers_cache_close(t->empty);
    if (!forked) {
        pthread_mutex_destroy(&t->lock);
        pthread_cond_destroy(&t->returned);
    }
    free(t);
}

bool tiers_direct(const struct tiers *t) { return t->origin && origin_direct(t->origin); }
const char *tiers_engine(const struct tiers *t) { return t->uring ? "io_uring" : "pread"; }
bool tiers_remote(const struct tiers *t) { return t->remote != NULL; }
bool tiers_read_again(struct tiers *t) { return t->remote && remote_damaged(t->remote); }

bool tiers_state(const struct tiers *t, char out[160])
{
    if (t->remote)
        remote_state(t->remote, out);
    return t->remote != NULL;
}

bool tiers_remote_rules(const struct tiers *t, struct tiers_remote_rules *r)
{
    if (!t->remote)
        return false;
    const struct larder_remote_options *o = remote_options(t->remote);
    *r = (struct tiers_remote_rules){t->rules.gap, t->rules.segment_max, TIERS_OVER_READ_SHARE, o->price_get, o->price_gb};
    return true;
}

size_t tiers_cached(const struct tiers *t, const uint64_t *ordinals, size_t n)
{
    bool absent[64];
    size_t found = 0;
    for (size_t i = 0, some; t->bound && i < n; i += some) {
        some = MIN(n - i, ARRAY_LEN(absent));
        found += some - ahead_absent(t->bound, ordinals + i, some, absent);
    }
    return found;
}

bool tiers_has_dram(const struct tiers *t) { return t->bound && t->bound->dram; }
bool tiers_has_nvme(const struct tiers *t) { return t->bound && t->bound->n_nvme; }

/* ---- fetches ---- */

int tiers_fetch_new(struct tiers *t, struct tiers_fetch **out, struct larder_error *err)
{
    *out = NULL;
    struct tiers_fetch *f = calloc(1, sizeof(*f));
    if (!f)
        return err_nomem(err, sizeof(*f), "a fetch");
    f->t = t;
    f->over_read_max = TIERS_OVER_READ_MAX;
    *out = f;
    return LARDER_OK;
}

void tiers_fetch_free(struct tiers_fetch *f)
{
    if (!f)
        return;
    free(f->extents);
    plan_release(&f->plan);
    stack_free(f->stack);
    free(f);
}

/* f must not be in a queue; makes room for n extents. */
static int prepare(struct tiers_fetch *f, size_t n, struct larder_error *err)
{
    if (f->state == FETCH_STARTED)
        return err_set(err, LARDER_EINVAL, "a started fetch cannot be planned again before it has completed");
    f->state = FETCH_EMPTY;
    f->n = 0;
    f->cached = false;
    return n > f->cap_extents && GROW(f->extents, f->cap_extents, n, err) ? LARDER_ENOMEM : LARDER_OK;
}

int tiers_check_extents(const struct tiers *t, const struct extent *extents, size_t n, struct larder_error *err)
{
    size_t n_shards = t->n_shards;
    for (size_t i = 0; i < n; i++) {
        const struct extent *e = &extents[i];
        if (e->shard >= n_shards)
            return err_set(err, LARDER_EINVAL, "shard %u of %zu", e->shard, n_shards);
        const struct shard_ref *s = &t->shards[e->shard];
        if (e->offset > s->size || e->stored_len > s->size - e->offset)
            return err_set(err, LARDER_ECORRUPT, "shard %s slot %u: its record at offset %llu+%u is outside the file of %llu bytes",
                           s->name, e->slot, (unsigned long long)e->offset, e->stored_len, (unsigned long long)s->size);
    }
    return LARDER_OK;
}

static const struct plan_rules *rules(const struct tiers *t)
{
    static const struct plan_rules direct = {TIERS_ALIGN, TIERS_GAP_DIRECT, TIERS_SEGMENT_MAX};
    static const struct plan_rules buffered = {1, TIERS_GAP_BUFFERED, TIERS_SEGMENT_MAX};
    return t->http ? &t->rules : tiers_direct(t) ? &direct : &buffered;
}

/* What lies in a gap gets memory only where a tier may have a use for it; else the queue's GETs join neighbours by themselves. Many gaps,
 * each worth its bytes in time, may still be more than there is memory for, or cost much that nobody wants: then nearer
 * neighbours only. */
static bool too_much(const struct tiers_fetch *f, const struct plan *p)
{
    uint64_t most = MAX((p->bytes - p->over_read) * TIERS_OVER_READ_SHARE, (uint64_t)TIERS_OVER_READ_FREE);
    return p->over_read > MIN(most, f->over_read_max);
}

int tiers_plan(const struct tiers_fetch *f, struct plan *p, uint32_t gap, const struct extent *extents, const struct field_range *ranges,
               size_t n, struct larder_error *err)
{
    struct plan_rules r = *rules(f->t);
    r.gap = f->t->http && !(f->t->bound && f->t->bound->ahead) ? GAP_MIN : MIN(r.gap, gap);
    int rc = plan_build(p, &r, extents, ranges, n, err);
    while (!rc && f->t->http && r.gap > GAP_MIN && too_much(f, p)) {
        r.gap = MAX(r.gap / 2, GAP_MIN);
        rc = plan_build(p, &r, extents, ranges, n, err);
    }
    return rc;
}

void tiers_fetch_limit(struct tiers_fetch *f, uint64_t over_read_max) { f->over_read_max = MIN(over_read_max, TIERS_OVER_READ_MAX); }

void tiers_fetch_patient(struct tiers_fetch *f) { f->patient = true; }

static int planned(struct tiers_fetch *f, size_t n, size_t memory, size_t *bytes)
{
    f->n = n;
    f->need = memory;
    f->state = FETCH_PLANNED;
    *bytes = memory;
    return LARDER_OK;
}

static int plan_extents(struct tiers_fetch *f, const struct field_range *ranges, size_t n, size_t *bytes, struct larder_error *err)
{
    int rc = tiers_check_extents(f->t, f->extents, n, err);
    if (!rc)
        rc = tiers_plan(f, &f->plan, UINT32_MAX, f->extents, ranges, n, err);
    return rc ? rc : planned(f, n, f->plan.memory, bytes);
}

int tiers_fetch_plan(struct tiers_fetch *f, const uint64_t *ordinals, size_t n, size_t *bytes, struct larder_error *err)
{
    size_t memory = 0;
    int rc = prepare(f, n, err);
    if (!rc && f->t->bound) {
        f->cached = true;
        rc = stack_plan(f, ordinals, n, &memory, err);
        return rc ? rc : planned(f, n, memory, bytes);
    }
    if (!rc)
        rc = store_locate(f->t->store, ordinals, n, f->extents, err);
    return rc ? rc : plan_extents(f, NULL, n, bytes, err);
}

int tiers_fetch_plan_ranges(struct tiers_fetch *f, const struct extent *extents, const struct field_range *ranges, size_t n,
                            size_t *bytes, struct larder_error *err)
{
    int rc = prepare(f, n, err);
    if (rc)
        return rc;
    if (n)
        memcpy(f->extents, extents, n * sizeof(*extents));
    return plan_extents(f, ranges, n, bytes, err);
}

int tiers_fetch_begin(struct tiers_fetch *f, void *memory, struct larder_error *err)
{
    if (f->state != FETCH_PLANNED)
        return err_set(err, LARDER_EINVAL, "a fetch is started once after each plan");
    if (f->need && (!memory || (uintptr_t)memory % TIERS_ALIGN))
        return err_set(err, LARDER_EINVAL, "the memory of a fetch must be aligned to %u bytes", TIERS_ALIGN);
    f->memory = f->run_memory = memory;
    f->run = &f->plan;
    f->next_segment = f->in_flight = 0;
    f->gets = 0, f->fetched = 0;
    f->failed = false;
    if (f->cached)
        stack_wants(f);
    if (!f->cached || stack_all_hit(f))
        return LARDER_OK;
    int rc = stack_start(f, err);
    if (rc) {
        f->failed = true;
        stack_end(f);
        f->state = FETCH_EMPTY;
    }
    return rc;
}

const struct extent *tiers_fetch_extent(const struct tiers_fetch *f, size_t i) { return &f->extents[i]; }
const struct extent *tiers_fetch_extents(const struct tiers_fetch *f) { return f->extents; }
const void *const *tiers_fetch_views(const struct tiers_fetch *f) { return f->cached ? f->stack->views : NULL; }
bool tiers_fetch_is_hit(const struct tiers_fetch *f) { return f->cached && stack_all_hit(f); }

const void *tiers_fetch_record(const struct tiers_fetch *f, size_t i)
{
    if (f->cached)
        return f->stack->views[i];
    return f->memory ? f->memory + f->plan.place[i] : (const uint8_t *)""; /* no memory: all lengths are 0 */
}

struct tiers_stats tiers_fetch_stats(const struct tiers_fetch *f)
{
    return (struct tiers_stats){f->plan.n_segments, f->plan.bytes};
}

struct tiers_counts tiers_fetch_counts(const struct tiers_fetch *f)
{
    if (f->cached)
        return f->stack->counts;
    return (struct tiers_counts){.origin = {f->n, 0, f->t->http ? f->fetched : f->plan.bytes, f->t->http ? f->gets : f->plan.n_segments}};
}

/* ---- blocking reads ---- */

static int take_queue(struct tiers *t, struct tiers_queue **q, struct larder_error *err)
{
    pthread_mutex_lock(&t->lock);
    while (!t->n_idle && t->n_queues == TIERS_QUEUES_MAX)
        pthread_cond_wait(&t->returned, &t->lock);
    bool make = !t->n_idle;
    if (make)
        t->n_queues++;
    else
        *q = t->idle[--t->n_idle];
    pthread_mutex_unlock(&t->lock);
    if (!make)
        return LARDER_OK;
    int rc = tiers_queue_open(t, 0, q, err);
    if (rc) {
        pthread_mutex_lock(&t->lock);
        t->n_queues--;
        pthread_cond_signal(&t->returned);
        pthread_mutex_unlock(&t->lock);
    }
    return rc;
}

static void give_queue(struct tiers *t, struct tiers_queue *q)
{
    pthread_mutex_lock(&t->lock);
    t->idle[t->n_idle++] = q;
    pthread_cond_signal(&t->returned);
    pthread_mutex_unlock(&t->lock);
}

int tiers_read(struct tiers *t, struct tiers_fetch *f, void *memory, struct larder_error *err)
{
    struct tiers_queue *q;
    struct tiers_fetch *done;
    void *tag;
    if (t->pid != process_id())
        return err_set(err, LARDER_EFORK, "a dataset of the parent process cannot be read in a forked child: open it there");
    int rc;
    if (tiers_fetch_is_hit(f)) { /* nothing to read: no queue */
        rc = tiers_fetch_begin(f, memory, err);
        if (!rc)
            stack_end(f);
        f->state = FETCH_EMPTY;
        return rc;
    }
    rc = take_queue(t, &q, err);
    if (rc)
        return rc;
    rc = tiers_fetch_start(q, f, memory, NULL, err);
    if (!rc)
        rc = tiers_queue_next(q, true, &done, &tag, err);
    give_queue(t, q);
    return rc;
}
