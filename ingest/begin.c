/* SPDX-License-Identifier: Apache-2.0 */
/*
 * begin.c - how a session that makes a generation begins and ends: what ingest and writer share.
 *
 * A session holds the journal's lock from start_open to its end. What it finds in the journal is one of: nothing; a session that
 * committed and died before it could remove its journal; a writer that died, which nobody can go on with; or an ingest that can.
 * The first three are cleared away here. The generation is visible once generation_commit has returned, and only then is the
 * journal removed. Threads: one at a time.
 */
#include "ingest/ingest_int.h"

static int found(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    (void)name;
    (void)size;
    (void)mtime_s;
    *(bool *)user = true;
    return LARDER_END;
}

/* Shards that belong to no manifest and no journal. In a bucket they may be what a machine left whose journal is gone with it: a run
 * elsewhere starts anew, and gc removes them. */
static int check_strays(struct store_io *io, struct larder_error *err)
{
    bool any = false;
    int rc = io->ops->list(io, "shards", found, &any, err);
    if (any)
        rc = err_set(err, LARDER_EEXIST, "%s: holds shards but no manifest: larder repair makes a dataset of them, or give another folder",
                     io_where(io));
    return rc;
}

int start_newest(struct store_io *io, struct manifest *m, struct larder_error *err)
{
    int rc = generation_load_newest(io, m, err);
    return rc == LARDER_ENOTFOUND ? LARDER_OK : rc;
}

int start_open(struct store_io *io, bool restart, struct start *st, struct larder_error *err)
{
    memset(st, 0, sizeof(*st));
    st->journal.session.fd = -1;
    int rc = place_check(io, err);
    if (rc || (rc = journal_open(io, &st->journal, err)))
        return rc;
    struct journal *j = &st->journal;
    bool found_any = j->has_head;
    rc = start_newest(io, &st->m, err);
    bool committed = !rc && j->has_head && st->m.generation && journal_committed(j, &st->m);
    if (!rc && j->has_head && (committed || restart || j->head.kind == JOURNAL_WRITER)) {
        rc = journal_sweep(j, st->m.generation ? &st->m : NULL, false, err);
        if (!rc)
            rc = journal_reset(j, err);
    }
    if (!rc && !st->m.generation && !found_any && io_is_local(io))
        rc = check_strays(io, err);
    if (rc)
        start_close(st, !found_any);
    return rc;
}

void start_close(struct start *st, bool remove_journal)
{
    if (st->journal.locked)
        journal_close(&st->journal, remove_journal);
    manifest_release(&st->m);
    memset(&st->m, 0, sizeof(st->m));
}

int start_check(const struct start *st, bool append, struct larder_error *err)
{
    const char *where = io_where(st->journal.io);
    if (append && !st->m.generation)
        return err_set(err, LARDER_ENOTFOUND, "%s: no dataset here to append to", where);
    if (!append && st->m.generation)
        return err_set(err, LARDER_EEXIST, "%s: a dataset is here already (generation %llu, %llu samples): --append adds to it, or give "
                       "another folder", where, (unsigned long long)st->m.generation, (unsigned long long)st->m.samples);
    return LARDER_OK;
}

int manifest_begin(struct manifest *m, const struct schema *schema, char *const *classes, size_t n_classes, int compression,
                   struct larder_error *err)
{
    char **copy;
    int rc = LARDER_OK;
    if (!m->generation && !(rc = random_bytes(m->uuid, 16, err)))
        rc = random_bytes(m->lineage, 16, err);
    if (!rc && !m->schema.n)
        rc = schema_clone(&m->schema, schema, err);
    if (!rc)
        rc = strings_copy(classes, n_classes, &copy, err);
    if (rc)
        return rc;
    strings_free(m->classes, m->n_classes);
    m->classes = copy;
    m->n_classes = n_classes;
    m->generation++;
    m->compression = compression;
    return LARDER_OK;
}

int shard_size_option(uint64_t given, uint64_t *size, struct larder_error *err)
{
    if (given > STORE_SHARD_SIZE_MAX)
        return err_set(err, LARDER_EINVAL, "shard size %llu is more than 4 GiB", (unsigned long long)given);
    *size = given ? given : STORE_SHARD_SIZE_DEFAULT;
    return LARDER_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct shard_ref *x = &((const struct journal_shard *)a)->ref, *y = &((const struct journal_shard *)b)->ref;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    return x->sub < y->sub ? -1 : x->sub > y->sub;
}

int manifest_add(struct manifest *m, const struct journal *j, struct larder_error *err)
{
    if (j->n_shards == 0)
        return LARDER_OK;
    qsort(j->shards, j->n_shards, sizeof(*j->shards), by_place);
    int rc = GROW(m->shards, m->cap_shards, m->n_shards + j->n_shards, err);
    for (size_t i = 0; !rc && i < j->n_shards; i++) {
        struct shard_ref *ref = &m->shards[m->n_shards];
        if ((rc = shard_ref_copy(ref, &j->shards[i].ref, err)))
            break;
        ref->base = m->samples;
        m->samples += ref->samples;
        m->n_shards++;
    }
    return rc;
}

int session_index(struct store_io *io, struct journal *j, struct manifest *m, size_t first_new, const struct index_policy *policy,
                  uint64_t *dropped, struct larder_error *err)
{
    uint64_t run;
    int rc = journal_new_run(j, &run, err);
    return rc ? rc : generation_index(io, m, first_new, run, policy, dropped, err);
}
