/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writer.c - larder_writer_*: samples from the caller instead of a source.
 *
 * One shard is open at a time; full ones go to a sealing thread. The session's journal says "writer": nobody can go on with it,
 * so the next session takes away what a dead writer left. With a dictionary the first samples are kept back until there is
 * enough of them to train on; they pass through a shard writer of their own first (and that shard is dropped), so that a bad
 * sample is refused when it is added, by the store's own rules, and not later.
 *
 * Threads: one at a time in the functions; the sealer behind them.
 */
#include "ingest/ingest_int.h"

#define HELD_BYTES (2 * MIB) /* of samples kept back for the dictionary */
#define SEAL_QUEUE 2u

struct writer {
    struct store_io *io;
    struct start start;
    struct sealer *sealer;
    struct shard_params params;
    uint64_t shard_size, run;
    uint32_t names, subs;
    struct shard_writer *shard;   /* open, or NULL */
    bool holding;                 /* samples wait for the dictionary; `shard` is the one that only checks them */
    struct buf held;              /* key length, key, then length + 1 and bytes of each field; 0: absent */
    void *dict;
    int spent;                    /* the error after which nothing works any more */
    struct larder_error why;
};

static void writer_free(struct writer *w, bool keep_journal)
{
    shard_writer_abort(w->shard);
    sealer_abort(w->sealer);
    start_close(&w->start, !keep_journal);
    buf_release(&w->held);
    free(w->dict);
    free(w);
}

/* In the sealing thread. */
static int sealed(void *user, const struct seal_item *item, struct shard_ref *ref, struct larder_error *err)
{
    struct writer *w = user;
    struct journal_shard s = {*ref, item->consumed, 0, 0};
    int rc = journal_add_shard(&w->start.journal, &s, err);
    shard_ref_release(ref);
    return rc;
}

static int classes_check(const struct manifest *m, const struct larder_writer_options *o, struct larder_error *err)
{
    if (!o->classes)
        return LARDER_OK;
    if (o->n_classes < m->n_classes)
        return err_set(err, LARDER_EINVAL, "%zu classes given, the dataset has %zu: give those first, then new ones", o->n_classes,
                       m->n_classes);
    for (size_t i = 0; i < m->n_classes; i++)
        if (strcmp(o->classes[i], m->classes[i]))
            return err_set(err, LARDER_EINVAL, "class %zu is '%.60s' in the dataset and '%.60s' here: classes never change", i, m->classes[i],
                           o->classes[i]);
    for (size_t i = 0; i < o->n_classes; i++)
        if (!utf8_valid(o->classes[i], strlen(o->classes[i])))
            return err_set(err, LARDER_EINVAL, "the name of class %zu is not valid UTF-8", i);
    return LARDER_OK;
}

static int make_manifest(struct writer *w, const struct larder_field *fields, size_t n, const struct larder_writer_options *o,
                         struct larder_error *err)
{
    struct manifest *m = &w->start.m;
    struct schema schema = {0, NULL};
    int rc = start_check(&w->start, o->append, err);
    if (!rc)
        rc = classes_check(m, o, err);
    if (!rc && (n || !m->generation) && !(rc = schema_copy(&schema, fields, n, err)) && m->generation)
        rc = fields_same(&m->schema, &schema, err);
    if (!rc) {
        AUTO_FREE char **classes = calloc(MAX(o->n_classes, m->n_classes) + 1, sizeof(*classes));
        size_t n_classes = o->classes ? o->n_classes : m->n_classes;
        if (!classes)
            rc = err_nomem(err, n_classes * sizeof(*classes), "class names");
        for (size_t i = 0; !rc && i < n_classes; i++)
            classes[i] = o->classes ? (char *)(uintptr_t)o->classes[i] : m->classes[i];
        if (!rc)
            rc = manifest_begin(m, &schema, classes, n_classes, o->compression, err);
    }
    schema_release(&schema);
    return rc;
}

static int begin_journal(struct writer *w, struct larder_error *err)
{
    struct journal *j = &w->start.journal;
    int rc = random_bytes(j->head.session, 8, err);
    if (rc)
        return rc;
    j->head.kind = JOURNAL_WRITER;
    memcpy(j->head.uuid, w->start.m.uuid, 16);
    memcpy(j->head.lineage, w->start.m.lineage, 16);
    if ((rc = journal_begin(j, err)) || (rc = journal_new_run(j, &w->run, err)))
        return rc;
    w->params.meta = &w->start.m;
    memcpy(w->params.session, j->head.session, 8);
    return LARDER_OK;
}

int writer_open(struct store_io *io, const struct larder_field *fields, size_t n_fields, const struct larder_writer_options *o,
                struct writer **out, struct larder_error *err)
{
    *out = NULL;
    struct writer *w = calloc(1, sizeof(*w));
    if (!w)
        return err_nomem(err, sizeof(*w), "a writer");
    w->io = io;
    w->params.level = o->level ? o->level : 3;
    int rc = shard_size_option(o->shard_size, &w->shard_size, err);
    if (!rc)
        rc = start_open(io, false, &w->start, err);
    if (rc) {
        free(w);
        return rc;
    }
    bool unfinished = w->start.journal.has_head;
    if (unfinished)
        rc = err_set(err, LARDER_EBUSY, "%s: holds an unfinished ingest: finish it by running it again, or discard it with larder ingest "
                     "--restart", io_where(io));
    if (!rc)
        rc = make_manifest(w, fields, n_fields, o, err);
    if (!rc)
        rc = begin_journal(w, err);
    if (!rc)
        rc = sealer_start(SEAL_QUEUE, sealed, w, &w->sealer, err);
    if (rc) {
        writer_free(w, unfinished);
        return rc;
    }
    w->holding = o->compression == LARDER_COMPRESS_ZSTD_DICT;
    *out = w;
    return LARDER_OK;
}

/* ---- adding ---- */

static int push(struct writer *w, struct larder_error *err)
{
    struct seal_item item = {.w = w->shard};
    if (!w->shard)
        return LARDER_OK;
    w->shard = NULL;
    if (shard_writer_samples(item.w) == 0) {
        shard_writer_abort(item.w);
        return LARDER_OK;
    }
    w->subs++;
    return sealer_push(w->sealer, &item, err);
}

static int open_shard(struct writer *w, struct larder_error *err)
{
    char name[32];
    shard_name_new(w->run, w->names++, name);
    w->params.sub = w->subs;
    return shard_writer_open(w->io, name, &w->params, &w->shard, err);
}

static int put(struct writer *w, const void *key, size_t key_len, const struct larder_value *values, struct larder_error *err)
{
    uint32_t n = w->start.m.schema.n;
    int rc = LARDER_OK;
    if (w->shard && !w->holding && shard_writer_samples(w->shard) &&
        shard_writer_bytes(w->shard) + sample_weight(n, key_len, values_bytes(values, n)) > w->shard_size)
        rc = push(w, err);
    if (!rc && !w->shard)
        rc = open_shard(w, err);
    return rc ? rc : shard_writer_add(w->shard, key, key_len, values, err);
}

static int hold(struct writer *w, const void *key, size_t key_len, const struct larder_value *values, struct larder_error *err)
{
    uint8_t number[8];
    size_t start = w->held.len;
    put_u64(number, key_len);
    int rc = buf_append(&w->held, number, 8, err);
    if (!rc)
        rc = buf_append(&w->held, key, key_len, err);
    for (uint32_t i = 0; !rc && i < w->start.m.schema.n; i++) {
        put_u64(number, values[i].data ? (uint64_t)values[i].len + 1 : 0);
        if (!(rc = buf_append(&w->held, number, 8, err)) && values[i].data)
            rc = buf_append(&w->held, values[i].data, values[i].len, err);
    }
    if (rc)
        w->held.len = start;
    return rc;
}

/* The held sample at *at; moves on. */
static void held_next(const struct writer *w, size_t *at, const void **key, size_t *key_len, struct larder_value *values)
{
    const uint8_t *p = w->held.data + *at;
    *key_len = get_u64(p);
    *key = p + 8;
    p += 8 + *key_len;
    for (uint32_t i = 0; i < w->start.m.schema.n; i++) {
        uint64_t n = get_u64(p);
        p += 8;
        values[i] = (struct larder_value){n ? p : NULL, n ? n - 1 : 0};
        p += n ? n - 1 : 0;
    }
    *at = (size_t)(p - w->held.data);
}

static int train(struct writer *w, struct larder_value *values, struct larder_error *err)
{
    struct material m = {BUF_INIT, NULL, 0, 0};
    const void *key;
    size_t key_len;
    int rc = LARDER_OK;
    for (size_t at = 0; !rc && at < w->held.len;) {
        held_next(w, &at, &key, &key_len, values);
        rc = material_add(&m, &w->start.m.schema, values, err);
    }
    if (!rc)
        rc = material_train(&m, &w->dict, &w->params.dict_len, err);
    w->params.dict = w->dict;
    material_release(&m);
    return rc;
}

/* Trains, then writes what was held back. */
static int let_go(struct writer *w, struct larder_error *err)
{
    AUTO_FREE struct larder_value *values = calloc(w->start.m.schema.n, sizeof(*values));
    if (!values)
        return err_nomem(err, w->start.m.schema.n * sizeof(*values), "a sample");
    shard_writer_abort(w->shard);
    w->shard = NULL;
    w->holding = false;
    int rc = train(w, values, err);
    const void *key;
    size_t key_len;
    for (size_t at = 0; !rc && at < w->held.len;) {
        held_next(w, &at, &key, &key_len, values);
        rc = put(w, key, key_len, values, err);
    }
    buf_release(&w->held);
    w->held = (struct buf)BUF_INIT;
    return rc;
}

int writer_add(struct writer *w, const void *key, size_t key_len, const struct larder_value *values, struct larder_error *err)
{
    struct larder_error why = {.code = LARDER_OK};
    if (w->spent) {
        if (err)
            *err = w->why;
        return w->spent;
    }
    int rc = put(w, key, key_len, values, &why);
    bool of_sample = rc == LARDER_EINVAL;
    if (!rc && w->holding) {
        rc = hold(w, key, key_len, values, &why);
        if (!rc && w->held.len >= HELD_BYTES)
            rc = let_go(w, &why);
    }
    if (rc && !of_sample) {
        w->spent = rc;
        w->why = why;
    }
    if (rc && err)
        *err = why;
    return rc;
}

/* ---- ending ---- */

/* Takes away what was sealed. */
static void discard(struct writer *w, const struct manifest *newest)
{
    struct larder_error why;
    shard_writer_abort(w->shard);
    w->shard = NULL;
    sealer_abort(w->sealer);
    w->sealer = NULL;
    bool gone = journal_sweep(&w->start.journal, newest, false, &why) == LARDER_OK;
    writer_free(w, !gone); /* what could not be removed stays in the journal for the next session */
}

static int finish(struct writer *w, struct larder_error *err)
{
    if (w->spent) {
        if (err)
            *err = w->why;
        return w->spent;
    }
    int rc = w->holding ? let_go(w, err) : LARDER_OK;
    if (!rc)
        rc = push(w, err);
    struct sealer *s = w->sealer;
    w->sealer = NULL;
    if (rc)
        sealer_abort(s);
    else
        rc = sealer_finish(s, err);
    if (!rc && w->start.journal.n_shards == 0)
        rc = err_set(err, LARDER_EINVAL, "nothing was added, so there is nothing to commit");
    return rc;
}

int writer_commit(struct writer *w, uint64_t *generation, struct larder_error *err)
{
    struct manifest *m = &w->start.m;
    struct index_policy policy = {.drop_duplicates = false};
    uint64_t dropped = 0;
    size_t first_new = m->n_shards;
    int rc = finish(w, err);
    if (!rc)
        rc = manifest_add(m, &w->start.journal, err);
    if (!rc)
        rc = session_index(w->io, &w->start.journal, m, first_new, &policy, &dropped, err);
    if (!rc)
        rc = generation_commit(w->io, m, err);
    if (!rc) {
        if (generation)
            *generation = m->generation;
        writer_free(w, false);
        return LARDER_OK;
    }
    struct manifest newest = {.generation = 0}; /* m lists the new shards by now: what is kept is what is committed */
    struct larder_error why;
    if (!commit_is_open(w->io, rc) && start_newest(w->io, &newest, &why) == LARDER_OK)
        discard(w, &newest);
    else
        writer_free(w, true);
    manifest_release(&newest);
    return rc;
}

void writer_close(struct writer *w)
{
    if (w)
        discard(w, &w->start.m);
}
