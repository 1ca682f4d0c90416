/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.c - larder_loader_*: epochs of batches over the staging buffer.
 *
 * The stage delivers one endless run of batches; the loader counts them into epochs, puts LARDER_END between two, and keeps
 * the statistics of the epoch that runs. What an epoch's batches cost (reads, bytes) comes with each batch, so that reads
 * made ahead for the next epoch are counted there.
 *
 * Any number of threads may call: each call takes a turn, in which it has the stage for itself, and the lock guards what is counted. A wait
 * for the turn counts towards the call's timeout, but not as a stall: so that the stalls of an epoch are no more than its time.
 */
#include "loader/prep_int.h"

#include <unistd.h>

#define BATCH_SIZE_DEFAULT 256
#define STAGING_DEFAULT (256 * MIB)
#define TIMEOUT_MS_DEFAULT 120000
#define NOTICE_MS_DEFAULT 30000
#define THREADS_MAX 1024
#define MAX_BAD_DEFAULT 0.001

struct larder_loader {
    struct stage *stage;
    pid_t pid;
    struct recipe recipe;
    uint64_t length;              /* of an epoch */
    struct prep *prep;            /* NULL: values as they are */
    struct trace *trace;          /* NULL: none */
    struct decoded *decoded;      /* NULL: none */
    double max_bad;
    larder_bad_fn *bad;           /* may be NULL */
    void *user;
    uint64_t first_epoch;
    struct larder_loader_estimate first; /* of that one, taken before anything was fetched for it */

    pthread_mutex_t lock;         /* guards all below, which only whose turn it is changes */
    pthread_cond_t turned;
    uint64_t turns, turn;         /* given out; whose it is */
    uint64_t batches;             /* of the epoch that runs or comes next */
    uint64_t position;            /* where that epoch began: 0 but after a resume */
    uint64_t epoch, last_epoch;   /* last_epoch: the one after the last; epoch == last_epoch is the end */
    bool endless;
    uint64_t number;              /* of the next batch */
    uint64_t begin_ns;            /* first call of this epoch; 0: not yet */
    struct larder_loader_stats stats;
    struct bad_count bad_count;   /* since it was opened */
    struct larder_error fail;     /* too many were bad: for ever, or up to a seek; code 0: not so */

    pthread_mutex_t warn_lock;    /* guards the rest */
    bool warned;                  /* it was looked for warnings */
    char **warnings;              /* [n_warnings] */
    size_t n_warnings;
};

static int loader_check(const struct larder_loader *ld, struct larder_error *err)
{
    if (!ld)
        return err_set(err, LARDER_EINVAL, "loader is NULL");
    if (process_id() != ld->pid)
        return err_set(err, LARDER_EFORK, "loader: opened by process %d and used in its child %d: open the dataset and the "
                       "loader again there", (int)ld->pid, (int)getpid());
    return 0;
}

static size_t staging_default(void)
{
    uint64_t quarter = memory_available() / 4;

    return quarter && quarter < STAGING_DEFAULT ? MAX((size_t)quarter, 4 * MIB) : STAGING_DEFAULT;
}

static int options_check(struct larder_loader_options *o, struct larder_error *err)
{
    if (o->shuffle < LARDER_SHUFFLE_FULL || o->shuffle > LARDER_SHUFFLE_BLOCK)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.shuffle: %d is no enum larder_shuffle", o->shuffle);
    if (o->last < LARDER_LAST_AUTO || o->last > LARDER_LAST_PAD)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.last: %d is no enum larder_last", o->last);
    if (!o->world)
        o->world = 1;
    if (o->rank >= o->world)
        return err_set(err, LARDER_EINVAL, "larder_loader_options: rank %u of %u: ranks begin at 0", o->rank, o->world);
    if (o->on_bad_sample != LARDER_ON_BAD_FAIL && o->on_bad_sample != LARDER_ON_BAD_REPLACE)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.on_bad_sample: %d is no enum larder_on_bad", o->on_bad_sample);
    if (!(o->max_bad >= 0 && o->max_bad <= 1))
        return err_set(err, LARDER_EINVAL, "larder_loader_options.max_bad: %g is no share (0 to 1)", o->max_bad);
    if (o->queue_depth > 4096)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.queue_depth: %u is more than 4096", o->queue_depth);
    if (o->threads > THREADS_MAX)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.threads: %u is more than %d", o->threads, THREADS_MAX);
    if (o->n_outputs && !o->outputs)
        return err_set(err, LARDER_EINVAL, "larder_loader_options: n_outputs is %zu and outputs is NULL", o->n_outputs);
    if (o->epochs > UINT64_MAX - o->epoch)
        return err_set(err, LARDER_EINVAL, "larder_loader_options: epoch + epochs is more than 2^64 - 1");
    if (o->staging_bytes && o->staging_bytes < STORE_PAGE)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.staging_bytes: %zu is less than a page of %u",
                       o->staging_bytes, STORE_PAGE);
    if (!o->batch_size)
        o->batch_size = BATCH_SIZE_DEFAULT;
    if (!o->staging_bytes)
        o->staging_bytes = staging_default();
    if (!o->fetch_size)
        o->fetch_size = o->threshold; /* 50/50 */
    if (!o->timeout_ms)
        o->timeout_ms = TIMEOUT_MS_DEFAULT;
    if (!o->notice_ms)
        o->notice_ms = NOTICE_MS_DEFAULT;
    if (o->max_bad == 0)
        o->max_bad = MAX_BAD_DEFAULT;
    return 0;
}

/* Is the state of the run that this loader makes? *saved has it then, without what names its datasets. */
static int state_read(const struct larder_loader *ld, const char *text, struct state *saved, struct larder_error *err)
{
    struct state now;
    int rc = recipe_state(&ld->recipe, &now, err);

    if (rc)
        return rc;
    rc = state_decode(text, strlen(text), saved, err);
    if (!rc) {
        rc = state_check(saved, &now, ld->length, err);
        state_release(saved);
    }
    if (!rc)
        rc = recipe_position(&ld->recipe, saved->position, err);
    state_release(&now);
    return rc;
}

static int state_take(struct larder_loader *ld, const struct larder_loader_options *o, struct larder_error *err)
{
    struct state saved;
    int rc = o->state ? state_read(ld, o->state, &saved, err) : LARDER_OK;

    if (rc || !o->state)
        return rc;
    if (saved.epoch < o->epoch || (o->epochs && saved.epoch > o->epoch + o->epochs))
        return err_set(err, LARDER_EINVAL, "the state stands in epoch %llu; these are %llu epochs from %llu on", (unsigned long long)saved.epoch,
                       (unsigned long long)o->epochs, (unsigned long long)o->epoch);
    ld->position = saved.position;
    if (o->epochs && saved.epoch == o->epoch + o->epochs)
        ld->position = ld->length; /* all is done */
    ld->epoch = saved.epoch;
    return LARDER_OK;
}

/* Bytes of a sample, on average over an epoch: as stored where they have to be read, and unpacked. */
static void sample_sizes(const struct larder_loader *ld, double *stored, double *raw)
{
    const struct recipe *r = &ld->recipe;

    *stored = *raw = 0;
    for (uint32_t k = 0; k < r->n; k++) {
        const struct manifest *m = r->source[k].ds->manifest;
        double share = r->mix ? (double)r->mix->source[k].each / (double)MAX(ld->length, (uint64_t)1) : 1, s = 0, u = 0;
        for (size_t i = 0; i < m->n_shards; i++) {
            u += (double)m->shards[i].raw_bytes;
            s += (double)m->shards[i].stored_bytes;
        }
        *raw += share * u / (double)MAX(m->samples, (uint64_t)1);
        *stored += tiers_has_dram(r->source[k].ds->tiers) ? 0 : share * s / (double)MAX(m->samples, (uint64_t)1);
    }
}

/* A window of samples has to fit the staging buffer together with those that its threshold leaves there, as far as their sizes are known:
 * what DRAM has takes up nothing. */
static int window_check(const struct larder_loader *ld, const struct larder_loader_options *o, struct larder_error *err)
{
    uint64_t most = MIN(o->fetch_size, UINT64_MAX / 4) + MIN(o->threshold, UINT64_MAX / 4), all;
    double stored, raw, need;

    if (!o->fetch_size || ld->length == 0)
        return LARDER_OK;
    if (o->epochs && !__builtin_mul_overflow(ld->length, o->epochs, &all))
        most = MIN(most, all); /* there are no more */
    sample_sizes(ld, &stored, &raw);
    need = (double)most * (8 + ld->recipe.source[0].ds->manifest->schema.n * sizeof(struct larder_value) + stored);
    if (ld->prep && most <= UINT32_MAX) { /* the records make room when the arrays are there */
        double arrays = (double)prep_bytes(ld->prep, (uint32_t)most, (uint64_t)raw * most, (uint64_t)raw);
        need = MAX(need, arrays);
    }
    if (need > (double)o->staging_bytes)
        return err_set(err, LARDER_EINVAL, "fetch_size %llu and threshold %llu: so many samples take about %.0f bytes, and staging_bytes is %zu: "
                       "lower them, or raise it", (unsigned long long)o->fetch_size, (unsigned long long)o->threshold, need, o->staging_bytes);
    return LARDER_OK;
}

static unsigned threads_wanted(const struct larder_loader *ld, const struct larder_loader_options *o)
{
    bool heavy = ld->prep && prep_is_heavy(ld->prep);

    for (uint32_t i = 0; i < ld->recipe.n; i++)
        heavy |= ld->recipe.source[i].ds->manifest->compression != LARDER_COMPRESS_NONE;
    return o->threads ? o->threads : heavy ? cpu_count() : 0;
}

static int decoded_begin(struct larder_loader *ld, const struct larder_loader_options *o, struct larder_error *err)
{
    const struct larder_dataset *ds = ld->recipe.source[0].ds;
    const struct larder_cache_options *pin = tiers_pin_options(ds->tiers);
    AUTO_FREE uint8_t *keep = calloc(1, ds->manifest->schema.n + 1);
    struct decoded_options d = {.manifest = ds->manifest, .name = tiers_cache_name(ds->tiers), .bytes = o->decoded_bytes,
                                .side = o->decoded_side, .compress = o->decoded_compress != 0, .no_pin = pin && pin->no_pin, .keep = keep};

    if (!keep)
        return err_nomem(err, ds->manifest->schema.n + 1, "a decoded cache");
    if (ld->recipe.mix)
        return err_set(err, LARDER_EINVAL, "larder_loader_options.decoded_bytes: there is no decoded cache for mixes");
    if (!ld->prep || !prep_decoded(ld->prep, keep, &d))
        return err_set(err, LARDER_EINVAL, "larder_loader_options.decoded_bytes: no output is an image");
    int rc = decoded_open(&d, &ld->decoded, err);
    return rc ? err_prefix(err, rc, "decoded_bytes") : LARDER_OK;
}

static void loader_free(struct larder_loader *ld)
{
    trace_close(ld->trace);
    recipe_close(&ld->recipe, getpid() != ld->pid);
    decoded_close(ld->decoded);
    prep_free(ld->prep);
    strings_free(ld->warnings, ld->n_warnings);
    free(ld);
}

static int loader_open(const struct larder_mix_source *sources, uint32_t n, bool mix, int exhausted, const struct larder_loader_options *opts,
                       struct larder_loader **out, struct larder_error *err)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct stage_options so = {0};
    struct larder_loader *ld;
    int rc = 0;

    for (uint32_t i = 0; !rc && i < n; i++)
        rc = dataset_check(sources[i].ds, err);
    if (rc == 0)
        rc = options_take(opts, &o, sizeof(o), "larder_loader_options", err);
    if (rc == 0)
        rc = options_check(&o, err);
    if (rc)
        return rc;
    ld = calloc(1, sizeof(*ld));
    if (!ld)
        return err_nomem(err, sizeof(*ld), "loader");
    ld->pid = getpid();
    ld->epoch = o.epoch;
    ld->last_epoch = o.epoch + o.epochs;
    ld->endless = o.epochs == 0;
    rc = recipe_open(sources, n, mix, exhausted, &o, &ld->recipe, err);
    ld->length = rc ? 0 : batch_plan_length(&ld->recipe.plan);
    if (!rc && o.outputs)
        rc = prep_new(&sources[0].ds->manifest->schema, o.outputs, o.n_outputs, &ld->prep, err);
    if (!rc)
        rc = recipe_join(&ld->recipe, o.outputs, o.n_outputs, err);
    if (!rc && o.decoded_bytes)
        rc = decoded_begin(ld, &o, err);
    if (!rc)
        rc = window_check(ld, &o, err);
    if (!rc)
        rc = state_take(ld, &o, err);
    if (rc) {
        loader_free(ld);
        return rc;
    }
    ld->batches = slicing_batches(&ld->recipe.plan.slicing, ld->position, ld->length);
    ld->stats.epoch = ld->epoch;
    ld->stats.order_bytes = ld->recipe.bytes;
    so.store = ld->recipe.stores[0];
    so.tiers = ld->recipe.tiers[0];
    so.n_sources = n;
    so.stores = ld->recipe.stores;
    so.tiers_of = ld->recipe.tiers;
    so.fields = (const uint32_t *const *)ld->recipe.fields;
    so.fields_max = ld->recipe.fields_max;
    so.plan = ld->recipe.plan;
    so.epoch = ld->epoch;
    so.epochs = ld->endless ? 0 : MAX(ld->last_epoch - ld->epoch, (uint64_t)1);
    so.position = ld->position;
    so.queue_depth = o.queue_depth;
    so.staging_bytes = o.staging_bytes;
    so.timeout_ms = o.timeout_ms;
    so.notice_ms = o.notice_ms;
    so.waiting = o.waiting;
    so.user = o.user;
    so.prep = ld->prep;
    so.decoded = ld->decoded;
    so.n_outputs = ld->prep ? (uint32_t)o.n_outputs : 0;
    so.threads = threads_wanted(ld, &o);
    so.fetch_size = o.fetch_size;
    so.threshold = o.threshold;
    so.replace = o.on_bad_sample == LARDER_ON_BAD_REPLACE;
    so.uris = ld->recipe.uris;
    ld->max_bad = o.max_bad;
    ld->bad = o.bad;
    ld->user = o.user;
    ld->first_epoch = ld->epoch;
    estimate_epoch(&ld->recipe, &ld->first);
    if (o.trace)
        rc = trace_open(o.trace, &ld->trace, err);
    so.trace = ld->trace;
    if (!rc)
        rc = stage_open(&so, &ld->stage, err);
    if (rc) {
        loader_free(ld);
        return rc;
    }
    pthread_mutex_init(&ld->lock, NULL);
    pthread_mutex_init(&ld->warn_lock, NULL);
    pthread_cond_init(&ld->turned, NULL);
    *out = ld;
    return 0;
}

int larder_loader_open(struct larder_dataset *ds, const struct larder_loader_options *opts, struct larder_loader **out,
                       struct larder_error *err)
{
    struct larder_mix_source one = {.ds = ds};

    if (!out)
        return err_set(err, LARDER_EINVAL, "larder_loader_open: ld is NULL");
    *out = NULL;
    return loader_open(&one, 1, false, 0, opts, out, err);
}

/* The caller's sources, of a header as old as it may be. */
static int sources_take(const struct larder_mix_source *from, size_t n, struct larder_mix_source *to, struct larder_error *err)
{
    for (size_t i = 0; i < n; i++) {
        int rc = options_take((const uint8_t *)from + i * from->struct_size, &to[i], sizeof(to[i]), "larder_mix_source", err);
        if (rc)
            return err_prefix(err, rc, "source %zu", i);
    }
    return LARDER_OK;
}

int larder_loader_open_mix(const struct larder_mix_source *sources, size_t n_sources, int exhausted, const struct larder_loader_options *opts,
                           struct larder_loader **out, struct larder_error *err)
{
    AUTO_FREE struct larder_mix_source *copy = NULL;
    int rc;

    if (!out)
        return err_set(err, LARDER_EINVAL, "larder_loader_open_mix: ld is NULL");
    *out = NULL;
    if (!sources || n_sources == 0 || n_sources > MIX_SOURCES_MAX)
        return err_set(err, LARDER_EINVAL, "larder_loader_open_mix: %zu sources at %s: 1 to %u can be mixed", n_sources,
                       sources ? "an array" : "NULL", MIX_SOURCES_MAX);
    if (exhausted < LARDER_EXHAUSTED_REPEAT || exhausted > LARDER_EXHAUSTED_STOP)
        return err_set(err, LARDER_EINVAL, "larder_loader_open_mix: exhausted: %d is no enum larder_exhausted", exhausted);
    copy = calloc(n_sources, sizeof(*copy));
    if (!copy)
        return err_nomem(err, n_sources * sizeof(*copy), "a mix");
    rc = sources_take(sources, n_sources, copy, err);
    return rc ? rc : loader_open(copy, (uint32_t)n_sources, true, exhausted, opts, out, err);
}

void larder_loader_close(struct larder_loader *ld)
{
    if (!ld)
        return;
    if (getpid() == ld->pid) {
        stage_close(ld->stage);
        pthread_cond_destroy(&ld->turned);
        pthread_mutex_destroy(&ld->lock);
        pthread_mutex_destroy(&ld->warn_lock);
    } else {
        stage_abandon(ld->stage);
    }
    loader_free(ld);
}

/* ---- turns ---- */

/* Waits for the turn of this call; when it began to wait, 0: it did not. */
static uint64_t turn_take(struct larder_loader *ld)
{
    uint64_t mine, since = 0;

    pthread_mutex_lock(&ld->lock);
    mine = ld->turns++;
    if (ld->turn != mine)
        since = now_ns();
    while (ld->turn != mine)
        pthread_cond_wait(&ld->turned, &ld->lock);
    pthread_mutex_unlock(&ld->lock);
    return since;
}

static void turn_end(struct larder_loader *ld)
{
    pthread_mutex_lock(&ld->lock);
    ld->turn++;
    if (ld->turn != ld->turns)
        pthread_cond_broadcast(&ld->turned);
    pthread_mutex_unlock(&ld->lock);
}

/* For functions that only look: the lock is no part of what a const loader is. */
static void look(const struct larder_loader *ld) { pthread_mutex_lock((pthread_mutex_t *)&ld->lock); }
static void looked(const struct larder_loader *ld) { pthread_mutex_unlock((pthread_mutex_t *)&ld->lock); }

/* ---- batches ---- */

/* What the tiers have come to be used for memory of, between two epochs. */
static void register_tiers(const struct larder_loader *ld)
{
    for (uint32_t i = 0; i < ld->recipe.n; i++)
        tiers_register(ld->recipe.source[i].ds->tiers);
}

/* The first call of an epoch starts its clock. */
static void epoch_begin(struct larder_loader *ld)
{
    ld->stats = (struct larder_loader_stats){.epoch = ld->epoch, .order_bytes = ld->stats.order_bytes};
    ld->begin_ns = now_ns();
    register_tiers(ld);
}

static int epoch_end(struct larder_loader *ld)
{
    register_tiers(ld);
    ld->stats.seconds_ns = now_ns() - ld->begin_ns;
    ld->begin_ns = 0;
    ld->number = 0;
    ld->position = 0;
    ld->epoch++;
    ld->batches = slicing_batches(&ld->recipe.plan.slicing, 0, ld->length);
    return LARDER_END;
}

static void tier_add(struct larder_tier_stats *to, const struct larder_tier_stats *s)
{
    to->hits += s->hits;
    to->misses += s->misses;
    to->bytes += s->bytes;
    to->requests += s->requests;
}

static void count(struct larder_loader *ld, const struct larder_batch *b, const struct stage_cost *cost)
{
    struct larder_loader_stats *s = &ld->stats;

    s->samples += b->valid;
    s->batches++;
    s->bytes += cost->bytes;
    s->fetch_stall_ns += cost->fetch_stall_ns;
    s->prep_stall_ns += cost->prep_stall_ns;
    s->bad += cost->bad->n;
    s->decoded.hits += cost->decoded.hits;
    s->decoded.misses += cost->decoded.misses;
    s->decoded.decode_ns += cost->decoded.decode_ns;
    s->decoded.saved_ns += cost->decoded.saved_ns;
    tier_add(&s->dram, &cost->io.dram);
    tier_add(&s->nvme, &cost->io.nvme);
    tier_add(&s->origin, &cost->io.origin);
}

/* Is there a batch to wait for? LARDER_END: an epoch ends here, or all have ended. */
static int next_begin(struct larder_loader *ld)
{
    if (!ld->endless && ld->epoch == ld->last_epoch)
        return LARDER_END;
    if (!ld->begin_ns)
        epoch_begin(ld);
    return ld->number == ld->batches ? epoch_end(ld) : LARDER_OK;
}

/* The batch's bad samples are told, and counted: too many end the run, and the batch is not given. In this call's turn. */
static int tell_bad(struct larder_loader *ld, const struct larder_batch **batch, const struct bad_notes *b, struct larder_error *err)
{
    int rc;

    for (size_t i = 0; ld->bad && i < b->n; i++) {
        const struct bad_note *note = &b->notes[i];
        struct larder_bad_sample told = {(*batch)->epoch, note->position, note->ordinal, note->substitute, note->source,
                                         note->substitute_source, note->message};
        ld->bad(ld->user, &told);
    }
    pthread_mutex_lock(&ld->lock);
    rc = bad_account(&ld->bad_count, ld->max_bad, (*batch)->n, b, &ld->fail);
    pthread_mutex_unlock(&ld->lock);
    if (rc) {
        stage_release(*batch);
        *batch = NULL;
        if (err)
            *err = ld->fail;
    }
    return rc;
}

/* In this call's turn. */
static int next(struct larder_loader *ld, uint64_t since_ns, const struct larder_batch **batch, struct larder_error *err)
{
    struct stage_cost cost;
    int rc;

    pthread_mutex_lock(&ld->lock);
    rc = ld->fail.code ? ld->fail.code : next_begin(ld);
    if (ld->fail.code && err)
        *err = ld->fail;
    pthread_mutex_unlock(&ld->lock);
    if (rc)
        return rc;
    rc = stage_next(ld->stage, since_ns, batch, &cost, err);
    if (!rc)
        rc = tell_bad(ld, batch, cost.bad, err);
    if (rc)
        return rc;
    pthread_mutex_lock(&ld->lock);
    ld->number++;
    count(ld, *batch, &cost);
    pthread_mutex_unlock(&ld->lock);
    return 0;
}

int larder_loader_next(struct larder_loader *ld, const struct larder_batch **batch, struct larder_error *err)
{
    int rc;

    if (!batch)
        return err_set(err, LARDER_EINVAL, "larder_loader_next: batch is NULL");
    *batch = NULL;
    rc = loader_check(ld, err);
    if (rc)
        return rc;
    rc = next(ld, turn_take(ld), batch, err);
    turn_end(ld);
    return rc;
}

/* In this call's turn. */
static int seek(struct larder_loader *ld, uint64_t epoch, uint64_t position, struct larder_error *err)
{
    uint64_t length = ld->length;
    bool end = !ld->endless && epoch == ld->last_epoch;
    int rc;

    if ((!ld->endless && epoch > ld->last_epoch) || (end && position))
        return err_set(err, LARDER_EINVAL, "seek to position %llu of epoch %llu: the last epoch is %llu", (unsigned long long)position,
                       (unsigned long long)epoch, (unsigned long long)ld->last_epoch - 1);
    rc = recipe_position(&ld->recipe, position, err);
    if (rc)
        return err_prefix(err, rc, "seek");
    rc = stage_seek(ld->stage, epoch, ld->endless ? 0 : MAX(ld->last_epoch - epoch, (uint64_t)1), end ? length : position, err);
    pthread_mutex_lock(&ld->lock);
    ld->epoch = epoch;
    ld->position = position;
    ld->number = 0;
    ld->batches = slicing_batches(&ld->recipe.plan.slicing, position, length);
    ld->begin_ns = 0;
    ld->fail.code = LARDER_OK;
    ld->stats = (struct larder_loader_stats){.epoch = epoch, .order_bytes = ld->stats.order_bytes};
    pthread_mutex_unlock(&ld->lock);
    return rc;
}

int larder_loader_seek(struct larder_loader *ld, uint64_t epoch, uint64_t position, struct larder_error *err)
{
    int rc = loader_check(ld, err);

    if (rc)
        return rc;
    turn_take(ld);
    rc = seek(ld, epoch, position, err);
    turn_end(ld);
    return rc;
}

int larder_loader_load_state(struct larder_loader *ld, const char *text, struct larder_error *err)
{
    struct state saved;
    int rc = loader_check(ld, err);

    if (rc == 0 && !text)
        rc = err_set(err, LARDER_EINVAL, "larder_loader_load_state: text is NULL");
    if (rc == 0)
        rc = state_read(ld, text, &saved, err);
    if (rc)
        return rc;
    turn_take(ld);
    rc = seek(ld, saved.epoch, saved.position, err);
    turn_end(ld);
    return rc;
}

int larder_loader_estimate(struct larder_loader *ld, struct larder_loader_estimate *estimate, struct larder_error *err)
{
    struct larder_loader_estimate e = {0};
    int rc = loader_check(ld, err);
    bool first;

    if (rc == 0)
        rc = result_check(estimate, sizeof(e), "larder_loader_estimate", err);
    if (rc)
        return rc;
    look(ld);
    first = ld->epoch == ld->first_epoch;
    looked(ld);
    if (first)
        e = ld->first;
    else
        estimate_epoch(&ld->recipe, &e);
    result_give(estimate, &e, sizeof(e));
    return 0;
}

void larder_batch_release(const struct larder_batch *batch)
{
    if (batch)
        stage_release(batch);
}

int larder_loader_state(const struct larder_loader *ld, char *text, size_t cap, struct larder_error *err)
{
    AUTO_BUF struct buf out = BUF_INIT;
    struct state s;
    int rc = loader_check(ld, err);

    if (rc)
        return rc;
    if (!text)
        return err_set(err, LARDER_EINVAL, "larder_loader_state: text is NULL");
    rc = recipe_state(&ld->recipe, &s, err);
    if (rc)
        return rc;
    look(ld);
    s.epoch = ld->epoch;
    s.position = slicing_position(&ld->recipe.plan.slicing, ld->position, ld->length, ld->number);
    looked(ld);
    rc = state_encode(&s, &out, err);
    state_release(&s);
    if (rc)
        return rc;
    if (out.len >= cap)
        return err_set(err, LARDER_EINVAL, "larder_loader_state: %zu bytes do not fit into %zu: LARDER_STATE_MAX do, of a mix LARDER_STATE_BYTES(n)",
                       out.len, cap);
    memcpy(text, out.data, out.len);
    text[out.len] = '\0';
    return LARDER_OK;
}

int larder_loader_stats(const struct larder_loader *ld, struct larder_loader_stats *stats, struct larder_error *err)
{
    struct larder_loader_stats s;
    int rc = loader_check(ld, err);

    if (rc == 0)
        rc = result_check(stats, sizeof(s), "larder_loader_stats", err);
    if (rc)
        return rc;
    look(ld);
    s = ld->stats;
    s.epoch_samples = ld->length;
    s.epoch_batches = slicing_batches(&ld->recipe.plan.slicing, 0, ld->length);
    if (ld->decoded) {
        struct tiers_variant_stats d = decoded_stats(ld->decoded);
        s.decoded.entries = d.entries;
        s.decoded.used_bytes = d.used_bytes;
        s.decoded.budget_bytes = d.budget_bytes;
    }
    if (ld->begin_ns)
        s.seconds_ns = now_ns() - ld->begin_ns;
    looked(ld);
    result_give(stats, &s, sizeof(s));
    return 0;
}

/* ---- warnings ---- */

/* With warn_lock held. What cannot be found out is not worth failing for. */
static void look_for_warnings(struct larder_loader *ld)
{
    const struct recipe *r = &ld->recipe;

    ld->warnings = calloc((size_t)r->n + 1, sizeof(*ld->warnings));
    if (ld->warnings && ld->decoded && decoded_stats(ld->decoded).warning) {
        ld->warnings[0] = strdup(decoded_stats(ld->decoded).warning);
        ld->n_warnings = ld->warnings[0] != NULL;
    }
    for (uint32_t i = 0; ld->warnings && i < r->n; i++) {
        AUTO_BUF struct buf text = BUF_INIT;
        const struct order *o = r->mix ? &r->mix->source[i].order : &r->plan.order;
        if (classes_warning(r->source[i].ds, o, &text, NULL) || !text.len)
            continue;
        ld->warnings[ld->n_warnings] = bytes_dup(text.data, text.len);
        ld->n_warnings += ld->warnings[ld->n_warnings] != NULL;
    }
    ld->warned = true;
}

const char *larder_loader_warning(struct larder_loader *ld, size_t i)
{
    const char *text;

    if (loader_check(ld, NULL))
        return NULL;
    pthread_mutex_lock(&ld->warn_lock);
    if (!ld->warned)
        look_for_warnings(ld);
    text = i < ld->n_warnings ? ld->warnings[i] : NULL;
    pthread_mutex_unlock(&ld->warn_lock);
    return text;
}

int larder_loader_metrics(const struct larder_loader *ld, const char *path, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    struct larder_loader_stats s = {.struct_size = sizeof(s)};
    int rc = larder_loader_stats(ld, &s, err);

    if (rc)
        return rc;
    if (!path || !*path)
        return err_set(err, LARDER_EINVAL, "larder_loader_metrics: path is %s", path ? "empty" : "NULL");
    const struct tiers_cache *cache = tiers_cache_of(ld->recipe.tiers[0]);
    rc = metrics_loader(&s, ld->recipe.plan.slicing.rank, &text, err);
    if (!rc && cache)
        rc = tiers_cache_text(cache, &text, err);
    return rc ? rc : metrics_write(path, &text, err);
}
