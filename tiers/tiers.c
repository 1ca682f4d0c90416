/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers.c - the stack: what is opened once a dataset, the planning of fetches, and blocking reads.
 *
 * The origin is a local directory; a cache in front of it is opened apart (cache.c) and bound to. tiers_read takes an idle queue from a stack of them (most recently
 * used first, so that its memory is warm), makes one when there is none, and waits when TIERS_QUEUES_MAX are in use.
 *
 * Threads: tiers_read and tiers_queue_open from any number of threads; a fetch belongs to one at a time; open and close alone.
 * lock guards the idle queues and is not held while reading.
 */
#include <errno.h>
#include <unistd.h>

#include "tiers/stack_int.h"

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

int tiers_open_files(const char *dir, const struct shard_ref *shards, size_t n, const struct tiers_options *o, struct tiers **out,
                     struct larder_error *err)
{
    *out = NULL;
    if (o->queue_depth > TIERS_DEPTH_MAX)
        return err_set(err, LARDER_EINVAL, "queue depth %u: the most is %u", o->queue_depth, TIERS_DEPTH_MAX);
    if (o->direct < LARDER_DIRECT_AUTO || o->direct > LARDER_DIRECT_OFF)
        return err_set(err, LARDER_EINVAL, "direct = %d: see enum larder_direct", o->direct);
    struct tiers *t = calloc(1, sizeof(*t));
    if (!t)
        return err_nomem(err, sizeof(*t), "the tiers");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->returned, NULL);
    t->pid = getpid();
    t->depth = o->queue_depth ? o->queue_depth : TIERS_DEPTH_DEFAULT;
    struct origin_options origin = {o->files_max, o->direct};
    int rc = origin_open(dir, shards, n, &origin, &t->origin, err);
    if (!rc)
        rc = open_engines(t, err);
    if (rc) {
        tiers_close(t);
        return rc;
    }
    *out = t;
    return LARDER_OK;
}

int tiers_open(struct store *s, const struct tiers_options *o, struct tiers **t, struct larder_error *err)
{
    *t = NULL;
    const struct manifest *m = store_manifest(s);
    struct store_io *io = store_io_of(s);
    const char *root = io->ops->local_root ? io->ops->local_root(io) : NULL;
    if (!root)
        return err_set(err, LARDER_EINVAL, "the dataset is not in a local directory: only those can be read so far");
    AUTO_FREE char *dir = NULL;
    if (asprintf(&dir, "%s/shards", root) < 0) {
        dir = NULL;
        return err_nomem(err, strlen(root) + 8, "a path");
    }
    int rc = tiers_open_files(dir, m->shards, m->n_shards, o, t, err);
    if (rc)
        return rc;
    (*t)->store = s;
    if (o->cache)
        rc = cache_bind(o->cache, m, root != NULL, &(*t)->bound, err);
    if (rc) {
        tiers_close(*t);
        *t = NULL;
    }
    return rc;
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
    free(t->bound);
    if (!forked) {
        pthread_mutex_destroy(&t->lock);
        pthread_cond_destroy(&t->returned);
    }
    free(t);
}

bool tiers_direct(const struct tiers *t) { return origin_direct(t->origin); }
const char *tiers_engine(const struct tiers *t) { return t->uring ? "io_uring" : "pread"; }
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
    size_t n_shards = origin_shards(t->origin);
    for (size_t i = 0; i < n; i++) {
        const struct extent *e = &extents[i];
        if (e->shard >= n_shards)
            return err_set(err, LARDER_EINVAL, "shard %u of %zu", e->shard, n_shards);
        const struct shard_ref *s = origin_shard(t->origin, e->shard);
        if (e->offset > s->size || e->stored_len > s->size - e->offset)
            return err_set(err, LARDER_ECORRUPT, "shard %s slot %u: its record at offset %llu+%u is outside the file of %llu bytes",
                           s->name, e->slot, (unsigned long long)e->offset, e->stored_len, (unsigned long long)s->size);
    }
    return LARDER_OK;
}

const struct plan_rules *tiers_rules(const struct tiers *t)
{
    static const struct plan_rules direct = {TIERS_ALIGN, TIERS_GAP_DIRECT, TIERS_SEGMENT_MAX};
    static const struct plan_rules buffered = {1, TIERS_GAP_BUFFERED, TIERS_SEGMENT_MAX};
    return tiers_direct(t) ? &direct : &buffered;
}

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
        rc = plan_build(&f->plan, tiers_rules(f->t), f->extents, ranges, n, err);
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
    f->failed = false;
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
    return (struct tiers_counts){.origin = {f->n, 0, f->plan.bytes, f->plan.n_segments}};
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
    if (t->pid != getpid())
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
