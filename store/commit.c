/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit.c - generations: finding the newest, loading one, committing one.
 *
 * A generation exists when manifests/<n>.json exists, and that file is created exactly once: whoever creates it has won
 * [store I4]. larder.json names the newest as a hint: readers probe upward from it, so a hint that is missing, old or
 * damaged costs time, never an answer. Order of writes: shards, index, their folders, manifest, hint (FORMAT.md "Commit").
 *
 * Opening a bucket takes two steps: the hint, then its manifest together with the one that may have come after it.
 *
 * In a bucket the answer to the creation of a manifest can get lost. Then the object is looked at: our bytes are a commit, another's
 * are the other's commit, and when there is none the creation is repeated. Only what cannot be asked stays open, and the error says so:
 * a request of ours may still arrive, so whoever gets it keeps the files that the manifest names.
 */
#include "store/store_int.h"

#define HINT "larder.json"
#define MANIFEST_MAX (1 * GIB)

enum { CREATE_TRIES = 3 };

void manifest_path(uint64_t generation, char out[64])
{
    snprintf(out, 64, "manifests/%llu.json", (unsigned long long)generation);
}

/* io_check_fn of an object that is one sealed JSON; what was parsed is *json. */
struct sealed { const struct buf *text; const char *name; struct json *json; };

static int sealed_check(void *user, size_t i, struct larder_error *err)
{
    struct sealed *s = user;
    (void)i;
    return sealed_json_parse(s->text->data, s->text->len, s->name, &s->json, err);
}

int hint_read(struct store_io *io, uint64_t *generation, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    struct sealed s = {&text, HINT, NULL};
    int rc = io_read_all_checked(io, HINT, 64 * KIB, &text, sealed_check, &s, err);
    if (!rc)
        rc = json_get_u64(s.json, "generation", HINT, generation, err);
    json_free(s.json);
    return rc;
}

/* What keeps us from asking at all; anything else that is wrong with a hint only makes us look for ourselves. */
static bool is_network(int rc) { return rc == LARDER_EREMOTE || rc == LARDER_ETIMEOUT || rc == LARDER_ECANCELED; }

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

/* No hint to go by: look. */
static int newest_listed(struct store_io *io, uint64_t *generation, struct larder_error *err)
{
    AUTO_FREE uint64_t *list = NULL;
    size_t n = 0;
    int rc = generation_list(io, &list, &n, err);
    if (rc == LARDER_EINVAL && !io_is_local(io)) /* a web server, which lists nothing */
        return err_set(err, LARDER_ENOTFOUND, "%.150s: no dataset here (no larder.json)", io_where(io));
    if (rc)
        return rc;
    if (n == 0)
        return err_set(err, LARDER_ENOTFOUND, "no dataset here (no manifest): larder ingest makes one");
    *generation = list[n - 1];
    return LARDER_OK;
}

int generation_newest(struct store_io *io, uint64_t *generation, struct larder_error *err)
{
    struct larder_error why;
    uint64_t g = 0;
    int rc = hint_read(io, &g, &why);
    if (!rc && g)
        rc = exists(io, g, &why);
    else if (!is_network(rc))
        rc = LARDER_ENOTFOUND;
    if (rc == LARDER_ENOTFOUND)
        return newest_listed(io, generation, err);
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

/* ---- loading ---- */

static int damaged(int rc, struct larder_error *err)
{
    struct larder_error why = {.code = rc};
    if (err)
        why = *err;
    return err_set(err, rc, "%s; larder repair rebuilds it", why.message);
}

/* io_check_fn: decodes a manifest into m, which stays empty on failure. */
struct taken { const struct buf *text; uint64_t generation; struct manifest *m; };

static int manifest_check(void *user, size_t i, struct larder_error *err)
{
    struct taken *t = user;
    char path[64];
    (void)i;
    manifest_path(t->generation, path);
    int rc = manifest_decode(t->text->data, t->text->len, path, t->m, err);
    if (rc || t->m->generation == t->generation)
        return rc;
    rc = err_set(err, LARDER_ECORRUPT, "%s: is the manifest of generation %llu", path, (unsigned long long)t->m->generation);
    manifest_release(t->m);
    return rc;
}

int generation_load_text(struct store_io *io, uint64_t generation, struct manifest *m, struct buf *text, struct larder_error *err)
{
    struct taken t = {text, generation, m};
    char path[64];
    *m = (struct manifest){.generation = 0};
    manifest_path(generation, path);
    int rc = io_read_all_checked(io, path, MANIFEST_MAX, text, manifest_check, &t, err);
    if (rc == LARDER_ENOTFOUND)
        return err_set(err, rc, "%.150s: no generation %llu here", io_where(io), (unsigned long long)generation);
    return rc == LARDER_ECORRUPT ? damaged(rc, err) : rc;
}

int generation_load(struct store_io *io, uint64_t generation, struct manifest *m, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    return generation_load_text(io, generation, m, &text, err);
}

static void swap(struct buf *a, struct buf *b)
{
    struct buf t = *a;
    *a = *b;
    *b = t;
}

/* io_read_whole into empty buffers, again where an object seemed to end early. */
static int read_whole(struct store_io *io, struct store_whole *w, size_t n, struct larder_error *err)
{
    int rc;
    for (unsigned try = 0;; try++) {
        for (size_t i = 0; i < n; i++)
            w[i].out->len = 0;
        rc = io_read_whole(io, w, n, err);
        if (rc != LARDER_ECORRUPT || !io_again(io, try))
            return rc;
    }
}

/* From generation *g upward: the text of the newest. ENOTFOUND: not even *g is there. */
static int newest_from(struct store_io *io, uint64_t *g, struct buf *text, struct larder_error *err)
{
    AUTO_BUF struct buf next = BUF_INIT;
    char paths[2][64];
    struct store_whole w[2] = {{paths[0], MANIFEST_MAX, text, LARDER_OK}, {paths[1], MANIFEST_MAX, &next, LARDER_OK}};
    manifest_path(*g, paths[0]);
    manifest_path(*g + 1, paths[1]);
    int rc = read_whole(io, w, 2, err);
    if (!rc && w[0].rc)
        return err_set(err, LARDER_ENOTFOUND, "%.150s: no generation %llu here", io_where(io), (unsigned long long)*g);
    while (!rc && !w[1].rc) {
        swap(text, &next);
        manifest_path(++*g + 1, paths[1]);
        rc = read_whole(io, &w[1], 1, err);
    }
    return rc;
}

int generation_load_newest(struct store_io *io, struct manifest *m, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    uint64_t g = 0;
    *m = (struct manifest){.generation = 0};
    int rc = hint_read(io, &g, err);
    if (is_network(rc))
        return rc;
    bool hinted = !rc && g > 0;
    rc = hinted ? newest_from(io, &g, &text, err) : LARDER_ENOTFOUND;
    if (rc == LARDER_ENOTFOUND) {
        if (!(rc = newest_listed(io, &g, err)))
            rc = newest_from(io, &g, &text, err);
    }
    if (rc)
        return rc;
    struct taken t = {&text, g, m};
    rc = manifest_check(&t, 0, err);
    if (rc == LARDER_ECORRUPT && io_again(io, 0))
        return generation_load(io, g, m, err);
    return rc == LARDER_ECORRUPT ? damaged(rc, err) : rc;
}

/* ---- committing ---- */

/* Whose the manifest at path is. LARDER_OK: its bytes are text. EBUSY: another's. ENOTFOUND: nobody's. */
static int whose(struct store_io *io, const char *path, const struct buf *text, struct larder_error *err)
{
    AUTO_BUF struct buf there = BUF_INIT;
    struct sealed s = {&there, path, NULL};
    int rc = io_read_all_checked(io, path, MANIFEST_MAX, &there, sealed_check, &s, err);
    json_free(s.json);
    if (!rc && (there.len != text->len || memcmp(there.data, text->data, text->len)))
        rc = LARDER_EBUSY;
    return rc;
}

/* After a creation that failed with rc: LARDER_OK, EEXIST (another's is there), ENOTFOUND (none is), or EREMOTE (who knows). */
static int settle(struct store_io *io, const char *path, const struct buf *text, struct larder_error *err)
{
    int rc = whose(io, path, text, err);
    return rc == LARDER_OK || rc == LARDER_ENOTFOUND ? rc : rc == LARDER_EBUSY ? LARDER_EEXIST : LARDER_EREMOTE;
}

static bool may_have_happened(int rc) { return rc == LARDER_EEXIST || rc == LARDER_EIO || is_network(rc); }

int manifest_create(struct store_io *io, uint64_t generation, const struct buf *text, struct larder_error *err)
{
    struct larder_error why = {0};
    char path[64];
    manifest_path(generation, path);
    int rc = LARDER_OK;
    bool open = false;
    for (int tries = 0; tries < CREATE_TRIES; tries++) {
        rc = io->ops->create_exclusive(io, path, text->data, text->len, &why);
        if (rc == LARDER_OK || io_is_local(io) || !may_have_happened(rc))
            break;
        int got = settle(io, path, text, &why);
        open = got == LARDER_EREMOTE || (got == LARDER_ENOTFOUND && rc != LARDER_EEXIST);
        if (got != LARDER_ENOTFOUND)
            rc = got;
        if (got != LARDER_ENOTFOUND || !open)
            break;
    }
    if (rc == LARDER_EEXIST)
        return err_set(err, LARDER_EBUSY, "another writer committed generation %llu first: nothing of yours is lost, run the same "
                       "command again to go on top of it", (unsigned long long)generation);
    if (rc && open)
        return err_set(err, LARDER_EREMOTE, "it is not known whether generation %llu was committed (%.110s): larder info tells; the same "
                       "command run again goes on", (unsigned long long)generation, why.message);
    if (rc && err)
        *err = why;
    return rc;
}

bool commit_is_open(struct store_io *io, int rc) { return !io_is_local(io) && rc == LARDER_EREMOTE; }

int generation_commit(struct store_io *io, struct manifest *m, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    m->created_s = now_wall_s();
    int rc = manifest_encode(m, &text, err);
    if (rc || (rc = io->ops->sync(io, "shards", err)) || (rc = io->ops->sync(io, "index", err)) ||
        (rc = manifest_create(io, m->generation, &text, err)))
        return rc;
    hint_write(io, m->generation, NULL); /* only a hint: the generation is committed */
    return LARDER_OK;
}
