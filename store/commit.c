/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.c - generations: finding the newest, loading one, committing one.
 *
 * A generation exists when manifests/<n>.json exists, and that file is created exactly once: whoever creates it has won
 * [store I4]. larder.json names the newest as a hint: readers probe upward from it, so a hint that is missing, old or
 * damaged costs time, never an answer. Order of writes: shards, index, their folders, manifest, hint (FORMAT.md "Commit").
 */
#include "store/store_int.h"

#define HINT "larder.json"
#define MANIFEST_MAX (1 * GIB)

void manifest_path(uint64_t generation, char out[64])
{
    snprintf(out, 64, "manifests/%llu.json", (unsigned long long)generation);
}

static uint64_t hint_read(struct store_io *io)
{
    AUTO_BUF struct buf text = BUF_INIT;
    AUTO_JSON struct json *o = NULL;
    uint64_t generation = 0;
    if (io_read_all(io, HINT, 64 * KIB, &text, NULL) || sealed_json_parse(text.data, text.len, HINT, &o, NULL) ||
        json_get_u64(o, "generation", HINT, &generation, NULL))
        return 0;
    return generation;
}

int hint_write(struct store_io *io, uint64_t generation, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    AUTO_JSON struct json *o = json_new_object();
    if (!o || json_set_u64(o, "larder", 1) || json_set_u64(o, "generation", generation))
        return err_nomem(err, 0, HINT);
    int rc = sealed_json_dump(o, &text, err);
    return rc ? rc : io->ops->put(io, HINT, text.data, text.len, err);
}

struct found { uint64_t *list; size_t n, cap; struct larder_error *err; };

static int found_add(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    (void)size, (void)mtime_s;
    struct found *f = user;
    unsigned long long g;
    char path[64];
    if (sscanf(name, "manifests/%llu.json", &g) != 1 || g == 0 || g >= INT64_MAX) /* no number that JSON could hold */
        return LARDER_OK;
    manifest_path(g, path);
    if (strcmp(path, name))
        return LARDER_OK;
    int rc = GROW(f->list, f->cap, f->n + 1, f->err);
    if (!rc)
        f->list[f->n++] = g;
    return rc;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

int generation_list(struct store_io *io, uint64_t **generations, size_t *n, struct larder_error *err)
{
    struct found f = {.err = err};
    int rc = io->ops->list(io, "manifests", found_add, &f, err);
    if (rc) {
        free(f.list);
        return rc;
    }
    if (f.n)
        qsort(f.list, f.n, sizeof(*f.list), by_value);
    *generations = f.list;
    *n = f.n;
    return LARDER_OK;
}

static int exists(struct store_io *io, uint64_t generation, struct larder_error *err)
{
    char path[64];
    uint64_t size, mtime;
    manifest_path(generation, path);
    return io->ops->stat(io, path, &size, &mtime, err);
}

int generation_newest(struct store_io *io, uint64_t *generation, struct larder_error *err)
{
    struct larder_error why;
    uint64_t g = hint_read(io);
    int rc = g ? exists(io, g, &why) : LARDER_ENOTFOUND;
    if (rc == LARDER_ENOTFOUND) { /* no hint to go by: look */
        AUTO_FREE uint64_t *list = NULL;
        size_t n = 0;
        if ((rc = generation_list(io, &list, &n, err)))
            return rc;
        if (n == 0)
            return err_set(err, LARDER_ENOTFOUND, "no dataset here (no manifest): larder ingest makes one");
        *generation = list[n - 1];
        return LARDER_OK;
    }
    while (rc == LARDER_OK) {
        *generation = g;
        rc = exists(io, ++g, &why);
    }
    if (rc == LARDER_ENOTFOUND)
        return LARDER_OK;
    if (err)
        *err = why;
    return rc;
}

static int damaged(int rc, struct larder_error *err)
{
    struct larder_error why = {.code = rc};
    if (err)
        why = *err;
    return err_set(err, rc, "%s; larder repair rebuilds it", why.message);
}

int generation_load(struct store_io *io, uint64_t generation, struct manifest *m, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    const char *root = io->ops->local_root(io);
    char path[64];
    *m = (struct manifest){.generation = 0};
    manifest_path(generation, path);
    int rc = io_read_all(io, path, MANIFEST_MAX, &text, err);
    if (rc == LARDER_ENOTFOUND)
        return err_set(err, rc, "%.150s%sno generation %llu here", root ? root : "", root ? ": " : "", (unsigned long long)generation);
    if (rc || (rc = manifest_decode(text.data, text.len, path, m, err)))
        return rc == LARDER_ECORRUPT ? damaged(rc, err) : rc;
    if (m->generation == generation)
        return LARDER_OK;
    rc = err_set(err, LARDER_ECORRUPT, "%s: is the manifest of generation %llu", path, (unsigned long long)m->generation);
    manifest_release(m);
    return rc;
}

int generation_commit(struct store_io *io, struct manifest *m, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    char path[64];
    manifest_path(m->generation, path);
    m->created_s = now_wall_s();
    int rc = manifest_encode(m, &text, err);
    if (rc || (rc = io->ops->sync(io, "shards", err)) || (rc = io->ops->sync(io, "index", err)))
        return rc;
    rc = io->ops->create_exclusive(io, path, text.data, text.len, err);
    if (rc == LARDER_EEXIST)
        return err_set(err, LARDER_EBUSY, "another writer committed generation %llu first: nothing of yours is lost, run the same "
                       "command again to go on top of it", (unsigned long long)m->generation);
    if (rc)
        return rc;
    hint_write(io, m->generation, NULL); /* only a hint: the generation is committed */
    return LARDER_OK;
}
