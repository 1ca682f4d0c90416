/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - one generation of a dataset from one place to another, directory or bucket each.
 *
 *     manifest of src --> shards, index files (many at once, each through a window) --> folders durable --> manifest --> hint
 *
 * The manifest is created last and byte for byte as it was, so that uuid, lineage and ordinals are the same and dst is a dataset or
 * nothing at any time. Names are never reused, so what an earlier run brought over is kept if it is whole: a shard by its trailer,
 * which a shard that was cut does not have, an index file by its size; with `checksum` all of it is read. Records, footer pages and
 * index files are checked on their way; what fails at the source ends the copy. A dataset at dst may only be an earlier generation of
 * the same: one whose shards begin the list, or one whose manifest src has too.
 *
 * The journal's lock of dst is held throughout. Memory: a scan's window and a run of pages a worker, and what io keeps of an upload.
 */
#include <unistd.h>

#include "store/store_int.h"

enum { WORKERS_DEFAULT = 8, PAGES_RUN = 64, INDEX_CHUNK = 1 << 20 };

struct copy {
    struct store_io *src, *dst;
    const struct larder_copy_options *o;
    struct manifest m;
    uint64_t units;                   /* shards, then index files */
    _Atomic uint64_t next, samples, files, bytes, files_there, moved;
};

/* ---- one shard ---- */

/* A shard under way. */
struct moving {
    const struct copy *c;
    const struct shard_ref *ref;
    struct store_out *out;
    struct trailer t;
    char path[320];
    uint8_t *pages;                   /* [PAGES_RUN] */
    uint32_t first, n;                /* those in pages */
    uint64_t offset;                  /* written */
};

static int put(struct moving *v, const void *data, size_t len, struct larder_error *err)
{
    v->offset += len;
    return v->c->dst->ops->write(v->out, data, len, err);
}

/* io_check_fn of the header page. */
static int header_check(void *user, size_t i, struct larder_error *err)
{
    const struct moving *v = user;
    struct shard_header h;
    (void)i;
    int rc = header_decode(v->pages, v->path, &h, err);
    if (!rc && (h.tag != v->ref->tag || trailer_crc_of(v->pages) != v->t.header_crc))
        rc = err_set(err, LARDER_ECORRUPT, "%s: header page belongs to another shard", v->path);
    return rc;
}

/* io_check_fn of a run of footer pages. */
static int run_check(void *user, size_t i, struct larder_error *err)
{
    const struct moving *v = user;
    int rc = LARDER_OK;
    (void)i;
    for (uint32_t p = 0; !rc && p < v->n; p++)
        rc = page_check(v->pages + (size_t)p * STORE_PAGE, v->ref->tag, v->first + p, v->path, err);
    return rc;
}

/* io_check_fn of the trailer, which the manifest names by its CRC. */
static int trailer_check(void *user, size_t i, struct larder_error *err)
{
    const struct moving *v = user;
    struct larder_error why;
    struct trailer t;
    (void)i;
    if (!trailer_decode(v->pages, v->path, &t, &why) && trailer_crc_of(v->pages) == v->ref->trailer_crc)
        return LARDER_OK;
    return err_set(err, LARDER_ECORRUPT, "%s: trailer is not the one the manifest names", v->path);
}

static int move_page(struct moving *v, uint64_t at, uint32_t n, io_check_fn *check, struct larder_error *err)
{
    struct store_range r = {v->path, at, v->pages, (size_t)n * STORE_PAGE};
    v->n = n;
    int rc = io_read_checked(v->c->src, &r, 1, check, v, err);
    return rc ? rc : put(v, v->pages, r.len, err);
}

static int move_records(struct moving *v, struct larder_error *err)
{
    static const uint8_t zeros[STORE_PAGE];
    struct shard_scan *scan;
    struct scan_item item;
    int rc = shard_scan_open(v->c->src, v->ref, SCAN_RECORDS, &scan, err);
    if (rc)
        return rc;
    while ((rc = shard_scan_next(scan, &item, err)) == LARDER_OK) {
        if (item.extent.offset != v->offset)
            rc = err_set(err, LARDER_ECORRUPT, "%s: record of slot %u does not begin where the one before ends", v->path, item.slot);
        else
            rc = put(v, item.stored, item.extent.stored_len, err);
        if (rc)
            break;
    }
    shard_scan_close(scan);
    if (rc != LARDER_END)
        return rc;
    if (v->offset > v->t.footer_off || v->t.footer_off - v->offset >= STORE_PAGE)
        return err_set(err, LARDER_ECORRUPT, "%s: records and footer do not meet", v->path);
    return put(v, zeros, (size_t)(v->t.footer_off - v->offset), err);
}

static int move_footer(struct moving *v, struct larder_error *err)
{
    uint32_t crcs = 0;
    int rc = LARDER_OK;
    for (v->first = 0; !rc && v->first < v->t.pages; v->first += PAGES_RUN) {
        rc = move_page(v, v->offset, MIN((uint32_t)PAGES_RUN, v->t.pages - v->first), run_check, err);
        for (uint32_t p = 0; !rc && p < v->n; p++)
            crcs = crc32c(crcs, v->pages + (size_t)p * STORE_PAGE, 4);
    }
    if (!rc && crcs != v->t.pages_crc)
        rc = err_set(err, LARDER_ECORRUPT, "%s: footer pages are not those the trailer was written for", v->path);
    return rc ? rc : move_page(v, v->offset, 1, trailer_check, err);
}

static int move_bytes(struct moving *v, struct larder_error *err)
{
    int rc = move_page(v, 0, 1, header_check, err);
    if (!rc)
        rc = move_records(v, err);
    return rc ? rc : move_footer(v, err);
}

static int damaged_source(int rc, struct larder_error *err)
{
    return is_damage(rc) ? err_prefix(err, rc, "the source is damaged, see larder verify") : rc;
}

static int move_shard(const struct copy *c, const struct shard_ref *ref, struct larder_error *err)
{
    AUTO_FREE struct moving *v = calloc(1, sizeof(*v));
    AUTO_FREE uint8_t *pages = malloc((size_t)PAGES_RUN * STORE_PAGE);
    struct footer f = {c->src, ref->name, ref, NULL, 0};
    if (!v || !pages)
        return err_nomem(err, (size_t)PAGES_RUN * STORE_PAGE, "a shard on its way");
    v->c = c;
    v->ref = ref;
    v->pages = pages;
    shard_path(ref->name, v->path);
    int rc = footer_trailer(&f, &v->t, err);
    if (rc)
        return damaged_source(rc, err);
    if ((rc = c->dst->ops->begin(c->dst, v->path, &v->out, err)))
        return rc;
    if (!(rc = move_bytes(v, err)))
        return c->dst->ops->finish(v->out, err);
    c->dst->ops->abort(v->out);
    return damaged_source(rc, err);
}

/* Whether the shard is at dst and whole. */
static int shard_there(const struct copy *c, const struct shard_ref *ref, const atomic_bool *stop, bool *there, struct larder_error *err)
{
    struct footer f = {c->dst, ref->name, ref, NULL, 0};
    AUTO_FREE struct trailer *t = malloc(sizeof(*t));
    if (!t)
        return err_nomem(err, sizeof(*t), "a trailer");
    int rc = footer_trailer(&f, t, err);
    *there = !rc;
    if (!rc && c->o->checksum) {
        struct shard_check check = {.io = c->dst, .ref = ref, .stop = stop};
        rc = shard_check_run(&check, err);
        *there = check.damaged == 0;
    }
    return is_damage(rc) ? LARDER_OK : rc;
}

static int make_way(const struct copy *c, const char *name, struct larder_error *err)
{
    int rc = c->dst->ops->remove(c->dst, name, err);
    return rc == LARDER_ENOTFOUND ? LARDER_OK : rc;
}

static int copy_shard(struct copy *c, const struct shard_ref *ref, const atomic_bool *stop, struct larder_error *err)
{
    char path[320];
    bool there = false;
    shard_path(ref->name, path);
    int rc = shard_there(c, ref, stop, &there, err);
    if (!rc && !there && !(rc = make_way(c, path, err)) && !(rc = move_shard(c, ref, err))) {
        atomic_fetch_add(&c->files, 1);
        atomic_fetch_add(&c->bytes, ref->size);
    }
    if (rc)
        return rc;
    atomic_fetch_add(&c->files_there, there);
    atomic_fetch_add(&c->moved, ref->size);
    atomic_fetch_add(&c->samples, ref->samples);
    return LARDER_OK;
}

/* ---- one index file ---- */

static int unchecked(void *user, size_t i, struct larder_error *err)
{
    (void)user, (void)i, (void)err;
    return LARDER_OK;
}

static int move_file(const struct copy *c, const char *name, const struct index_file *f, struct larder_error *err)
{
    AUTO_FREE uint8_t *data = malloc(INDEX_CHUNK);
    struct store_out *out;
    uint32_t crc = 0;
    int rc = data ? c->dst->ops->begin(c->dst, name, &out, err) : err_nomem(err, INDEX_CHUNK, "an index file");
    if (rc)
        return rc;
    for (uint64_t at = 0; !rc && at < f->size; at += INDEX_CHUNK) {
        struct store_range r = {name, at, data, (size_t)MIN(f->size - at, (uint64_t)INDEX_CHUNK)};
        rc = io_read_checked(c->src, &r, 1, unchecked, NULL, err);
        crc = rc ? 0 : crc32c(crc, data, r.len);
        rc = rc ? rc : c->dst->ops->write(out, data, r.len, err);
    }
    if (!rc && crc != f->crc)
        rc = err_set(err, LARDER_ECORRUPT, "%s: CRC32C is %08x instead of %08x", name, crc, f->crc);
    if (!rc)
        return c->dst->ops->finish(out, err);
    c->dst->ops->abort(out);
    return rc;
}

static int file_there(const struct copy *c, const struct index_part *p, const struct index_file *f, const char *name, bool *there,
                      struct larder_error *err)
{
    uint64_t size, mtime_s;
    int rc = c->dst->ops->stat(c->dst, name, &size, &mtime_s, err);
    *there = !rc && size == f->size;
    if (*there && c->o->checksum) {
        rc = index_file_check(c->dst, p, f, err);
        *there = !rc;
    }
    return is_damage(rc) ? LARDER_OK : rc;
}

static int copy_index_file(struct copy *c, uint64_t i, struct larder_error *err)
{
    const struct index_part *p = c->m.parts;
    char name[600];
    bool there = false;
    for (; i >= p->n_files; p++)
        i -= p->n_files;
    const struct index_file *f = &p->files[i];
    snprintf(name, sizeof(name), "index/%s/%s", p->dir, f->name);
    int rc = file_there(c, p, f, name, &there, err);
    if (!rc && !there)
        rc = make_way(c, name, err);
    for (unsigned try = 0; !rc && !there; try++) {
        rc = move_file(c, name, f, err);
        if (rc == LARDER_ECORRUPT && io_again(c->src, try)) {
            rc = LARDER_OK;
            continue;
        }
        if (rc)
            return damaged_source(rc, err);
        atomic_fetch_add(&c->files, 1);
        atomic_fetch_add(&c->bytes, f->size);
        break;
    }
    if (rc)
        return rc;
    atomic_fetch_add(&c->files_there, there);
    atomic_fetch_add(&c->moved, f->size);
    return LARDER_OK;
}

/* ---- all of it ---- */

static int copy_worker(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err)
{
    struct copy *c = user;
    int rc = LARDER_OK;
    (void)worker;
    for (uint64_t i; !rc && !atomic_load(stop) && (i = atomic_fetch_add(&c->next, 1)) < c->units;)
        rc = i < c->m.n_shards ? copy_shard(c, &c->m.shards[i], stop, err) : copy_index_file(c, i - c->m.n_shards, err);
    return rc;
}

static int copy_tick(void *user)
{
    struct copy *c = user;
    struct larder_progress p = {"copy", atomic_load(&c->samples), c->m.samples, atomic_load(&c->moved), 0};
    return c->o->progress ? c->o->progress(c->o->user, &p) : 0;
}

/* Whether `have` is an earlier state of m: m goes on where it ends, or src knows it. */
static int is_earlier(const struct copy *c, const struct manifest *have, const struct buf *have_text, bool *earlier, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    struct manifest same;
    *earlier = have->n_shards <= c->m.n_shards && !memcmp(have->lineage, c->m.lineage, 16);
    for (size_t i = 0; *earlier && i < have->n_shards; i++)
        *earlier = !strcmp(have->shards[i].name, c->m.shards[i].name);
    if (*earlier)
        return LARDER_OK;
    int rc = generation_load_text(c->src, have->generation, &same, &text, err);
    *earlier = !rc && text.len == have_text->len && !memcmp(text.data, have_text->data, text.len);
    manifest_release(&same);
    return is_damage(rc) ? LARDER_OK : rc;
}

/* Nothing, an earlier generation of the same, or this one (*done) may be at dst. */
static int check_there(const struct copy *c, const struct buf *text, bool *done, struct larder_error *err)
{
    AUTO_BUF struct buf have_text = BUF_INIT;
    struct manifest have;
    bool earlier;
    const char *where = io_where(c->dst);
    uint64_t newest;
    int rc = generation_newest(c->dst, &newest, err);
    if (rc)
        return rc == LARDER_ENOTFOUND ? LARDER_OK : rc;
    if ((rc = generation_load_text(c->dst, newest, &have, &have_text, err)))
        return rc;
    *done = newest == c->m.generation && have_text.len == text->len && !memcmp(have_text.data, text->data, text->len);
    if (*done) {
        manifest_release(&have);
        return LARDER_OK;
    }
    if (memcmp(have.uuid, c->m.uuid, 16))
        rc = err_set(err, LARDER_EEXIST, "%.150s: holds another dataset: give a new or empty place", where);
    else if (newest >= c->m.generation)
        rc = err_set(err, LARDER_EEXIST, "%.150s: holds %s generation %llu of this dataset: generation %llu is not put over it", where,
                     newest == c->m.generation ? "another" : "the newer", (unsigned long long)newest, (unsigned long long)c->m.generation);
    else if (!(rc = is_earlier(c, &have, &have_text, &earlier, err)) && !earlier)
        rc = err_set(err, LARDER_EEXIST, "%.150s: its generation %llu holds samples of its own, so generation %llu is not put over it",
                     where, (unsigned long long)newest, (unsigned long long)c->m.generation);
    manifest_release(&have);
    return rc;
}

static int copy_locked(struct copy *c, const struct buf *text, struct larder_error *err)
{
    const struct store_io_ops *ops = c->dst->ops;
    bool done = false;
    int rc = check_there(c, text, &done, err);
    if (rc)
        return rc;
    c->units = c->m.n_shards;
    for (size_t i = 0; i < c->m.n_parts; i++)
        c->units += c->m.parts[i].n_files;
    rc = crew_run(c->o->workers ? c->o->workers : WORKERS_DEFAULT, copy_worker, copy_tick, c, err);
    for (size_t i = 0; !rc && i < c->m.n_parts; i++) {
        char dir[300];
        snprintf(dir, sizeof(dir), "index/%.255s", c->m.parts[i].dir);
        rc = c->m.parts[i].n_files ? ops->sync(c->dst, dir, err) : LARDER_OK;
    }
    if (!rc && c->m.n_shards)
        rc = ops->sync(c->dst, "shards", err);
    if (!rc && !done)
        rc = manifest_create(c->dst, c->m.generation, text, err);
    return rc ? rc : hint_write(c->dst, c->m.generation, err);
}

/* Holds dst against other writers while it is copied to. */
static int copy_held(struct copy *c, const struct buf *text, struct larder_error *err)
{
    struct session session;
    bool fresh;
    int rc = place_check(c->dst, err);
    if (rc || (rc = session_lock(c->dst, &session, &fresh, err)))
        return rc;
    if (!fresh)
        rc = err_set(err, LARDER_EBUSY, "%.150s: holds an unfinished ingest: finish it by running it again, or discard it with larder "
                     "ingest --restart", io_where(c->dst));
    if (!rc)
        rc = copy_locked(c, text, err);
    session_unlock(&session, fresh);
    return rc;
}

int store_copy(struct store_io *src, struct store_io *dst, const struct larder_copy_options *o, struct larder_copy_report *r,
               struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    struct larder_error why = {.code = LARDER_OK};
    struct copy c = {.src = src, .dst = dst, .o = o};
    uint64_t generation = o->generation;
    int rc = LARDER_OK;
    if (!generation && !(rc = generation_load_newest(src, &c.m, &why))) {
        generation = c.m.generation;
        manifest_release(&c.m);
    }
    if (!rc)
        rc = generation_load_text(src, generation, &c.m, &text, &why);
    if (!rc)
        rc = copy_held(&c, &text, &why);
    if (!rc) {
        r->generation = c.m.generation;
        r->samples = c.m.samples;
        r->shards = c.m.n_shards;
        r->files = c.files;
        r->bytes = c.bytes;
        r->files_there = c.files_there;
    }
    manifest_release(&c.m);
    if (rc && err)
        *err = why;
    return rc;
}
