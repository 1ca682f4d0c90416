/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gc.c - removes generations that were superseded long ago, and files that no generation names.
 *
 * Order of removal: old manifests first, so that nobody can open what is about to go, then the files that only they named. A
 * crash in between leaves stray files, which the next gc removes. A file is removed only when no kept manifest names it, the
 * journal of an unfinished ingest does not claim it, and it is older than the stated age: a live reader may have pinned its
 * generation. A kept manifest that cannot be read ends gc before anything is removed.
 *
 * In a bucket the journal seen is that of this machine: what an ingest elsewhere has uploaded is protected by its age alone, and one
 * that lost files notices when it indexes them.
 */
#include <errno.h>

#include "store/store_int.h"

#define MIN_AGE_DEFAULT (24 * 3600)

struct gc {
    struct store_io *io;
    const struct larder_gc_options *o;
    struct larder_gc_report *r;
    uint64_t now, min_age;
    uint64_t *list;           /* generations, ascending */
    uint64_t *mtime;          /* of their manifests: when the one before was superseded */
    size_t n, first_kept;
    struct buf journal;
    char **keep;              /* names below the root, sorted */
    size_t n_keep, cap_keep;
    struct larder_error *err;
};

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int keep_name(struct gc *g, const char *fmt, const char *a, const char *b)
{
    char name[700];
    snprintf(name, sizeof(name), fmt, a, b);
    int rc = GROW(g->keep, g->cap_keep, g->n_keep + 1, g->err);
    if (!rc && !(g->keep[g->n_keep++] = strdup(name)))
        rc = err_nomem(g->err, strlen(name), "the names to keep");
    return rc;
}

static int keep_generation(struct gc *g, uint64_t generation)
{
    struct manifest m;
    int rc = generation_load(g->io, generation, &m, g->err);
    for (size_t i = 0; !rc && i < m.n_shards; i++)
        rc = keep_name(g, "shards/%s%s", m.shards[i].name, "");
    for (size_t i = 0; !rc && i < m.n_parts; i++)
        for (size_t k = 0; !rc && k < m.parts[i].n_files; k++)
            rc = keep_name(g, "index/%s/%s", m.parts[i].dir, m.parts[i].files[k].name);
    manifest_release(&m);
    return rc;
}

static bool young(const struct gc *g, uint64_t since) { return g->min_age && (since > g->now || g->now - since < g->min_age); }

static int note_removed(struct gc *g, const char *name, const char *why, uint64_t size)
{
    g->r->files++;
    g->r->bytes += size;
    if (g->o->removed)
        g->o->removed(g->o->user, name, why);
    if (g->o->dry_run)
        return LARDER_OK;
    int rc = g->io->ops->remove(g->io, name, g->err);
    return rc == LARDER_ENOTFOUND ? LARDER_OK : rc;
}

/* Which generations stay: the newest `keep`, and every one that was superseded too lately (and so all after it). */
static int choose(struct gc *g, struct larder_error *err)
{
    uint64_t size, keep = MAX(g->o->keep, (uint64_t)1);
    int rc = generation_list(g->io, &g->list, &g->n, err);
    if (rc)
        return rc;
    if (g->n == 0)
        return err_set(err, LARDER_ENOTFOUND, "no dataset here (no manifest)");
    if (!(g->mtime = calloc(g->n, sizeof(*g->mtime))))
        return err_nomem(err, g->n * sizeof(*g->mtime), "manifest times");
    for (size_t i = 0; i < g->n; i++) {
        char name[64];
        manifest_path(g->list[i], name);
        if ((rc = g->io->ops->stat(g->io, name, &size, &g->mtime[i], err)))
            return rc;
    }
    g->first_kept = g->n > keep ? g->n - (size_t)keep : 0;
    for (size_t i = 0; i < g->first_kept; i++)
        if (young(g, g->mtime[i + 1])) {
            g->r->young = g->first_kept - i;
            g->first_kept = i;
        }
    return LARDER_OK;
}

struct strays { struct gc *g; struct buf names; };

static bool kept(const struct gc *g, const char *name)
{
    return g->n_keep && bsearch(&name, g->keep, g->n_keep, sizeof(*g->keep), by_name);
}

static bool claimed(const struct gc *g, const char *name)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name;
    const char *dash = strncmp(name, "index/", 6) == 0 ? strchr(name + 6, '-') : NULL; /* index/<generation>-<run>/file */
    return journal_claims(&g->journal, dash ? dash + 1 : base);
}

static int stray(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    struct strays *s = user;
    uint8_t head[8];
    if (kept(s->g, name) || claimed(s->g, name) || young(s->g, mtime_s))
        return LARDER_OK;
    put_u64(head, size);
    int rc = buf_append(&s->names, head, sizeof(head), s->g->err);
    return rc ? rc : buf_append(&s->names, name, strlen(name) + 1, s->g->err);
}

/* What a writer that died left of a hint or manifest it was writing; the other folders' are strays as any. */
static int stray_temp(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    static const char below[] = "manifests/";
    const char *base = strncmp(name, below, strlen(below)) ? name : name + strlen(below);
    if (strchr(base, '/') || strncmp(base, ".tmp-", 5))
        return LARDER_OK;
    return stray(user, name, size, mtime_s);
}

/* Names first, removal after: a folder is not changed while it is read. */
static int remove_strays(struct gc *g, const char *folder, store_list_fn *which)
{
    struct strays s = {g, BUF_INIT};
    int rc = g->io->ops->list(g->io, folder, which, &s, g->err);
    if (rc == LARDER_EIO && !*folder && (g->err->sys_errno == EACCES || g->err->sys_errno == EPERM))
        rc = LARDER_OK; /* a file system's lost+found, which is not ours to read */
    for (size_t at = 0; !rc && at < s.names.len;) {
        uint64_t size = get_u64(s.names.data + at);
        const char *name = (const char *)s.names.data + at + 8;
        at += 8 + strlen(name) + 1;
        rc = note_removed(g, name, "no generation names it", size);
    }
    buf_release(&s.names);
    return rc;
}

static int remove_generations(struct gc *g)
{
    int rc = g->o->dry_run || !g->first_kept ? LARDER_OK : hint_write(g->io, g->list[g->n - 1], g->err);
    for (size_t i = 0; !rc && i < g->first_kept; i++) {
        char name[64];
        uint64_t size = 0, mtime;
        manifest_path(g->list[i], name);
        g->io->ops->stat(g->io, name, &size, &mtime, NULL);
        rc = note_removed(g, name, "superseded", size);
        g->r->generations++;
    }
    if (!rc && g->r->generations && !g->o->dry_run)
        rc = g->io->ops->sync(g->io, "manifests", g->err);
    return rc;
}

/* Uploads that nobody finished take up room in a bucket and are seen by nobody. */
static int drop_unfinished(struct gc *g)
{
    uint64_t n = 0;
    if (g->o->dry_run || !g->io->ops->drop_unfinished)
        return LARDER_OK;
    int rc = g->io->ops->drop_unfinished(g->io, g->min_age, &n, g->err);
    if (!rc && n && g->o->removed) {
        char what[64];
        snprintf(what, sizeof(what), "%llu upload%s", (unsigned long long)n, n == 1 ? "" : "s");
        g->o->removed(g->o->user, what, "never finished");
    }
    return rc;
}

static int gc_locked(struct gc *g, struct larder_error *err)
{
    int rc = choose(g, err);
    for (size_t i = g->first_kept; !rc && i < g->n; i++)
        rc = keep_generation(g, g->list[i]);
    if (rc)
        return rc;
    if (g->n_keep)
        qsort(g->keep, g->n_keep, sizeof(*g->keep), by_name);
    if (!(rc = remove_generations(g)) && !(rc = remove_strays(g, "shards", stray)) && !(rc = remove_strays(g, "index", stray)))
        rc = io_is_local(g->io) ? remove_strays(g, "", stray_temp) : drop_unfinished(g);
    return rc;
}

int store_gc(struct store_io *io, const struct larder_gc_options *o, struct larder_gc_report *r, struct larder_error *err)
{
    struct larder_error why = {.code = LARDER_OK};
    struct gc g = {.io = io, .o = o, .r = r, .now = now_wall_s(), .err = &why};
    struct session session;
    bool fresh;
    g.min_age = o->min_age_s == UINT64_MAX ? MIN_AGE_DEFAULT : o->min_age_s;
    int rc = session_lock(io, &session, &fresh, err);
    if (rc)
        return rc;
    if (!fresh)
        rc = journal_text(&session, &g.journal, &why);
    if (!rc)
        rc = gc_locked(&g, &why);
    session_unlock(&session, fresh);
    strings_free(g.keep, g.n_keep);
    free(g.list);
    free(g.mtime);
    buf_release(&g.journal);
    if (rc && err)
        *err = why;
    return rc;
}
