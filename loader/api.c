/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api.c - larder.h's dataset, writer and *_run functions: argument checks and glue over store/, tiers/ and ingest/.
 *
 * Every public function checks its arguments here, so that the layers below may trust them: NULL, struct_size, the process
 * (a handle used in a forked child is LARDER_EFORK). What needs more than a few lines lies elsewhere: batched reads in
 * read.c, the loader in loader.c.
 *
 * Any thread enters. A dataset's own state is constant after open but for the list of idle readers, under its lock.
 */
#include "loader/loader_int.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ingest/ingest.h"
#include "tiers/remote.h"

#define BLOCKS_KEEP_BYTES (64 * MIB)

/* ---- options and results ---- */

/* Reports of *_run functions may be NULL. */
static int report_check(const void *report, size_t size, const char *what, struct larder_error *err)
{
    return report ? result_check(report, size, what, err) : 0;
}

/* ---- places ---- */

/* A dataset's directory or bucket, opened. */
struct place {
    char *path;     /* for messages too: "s3://bucket/prefix" of a bucket */
    struct store_io *io;
    bool made;      /* a folder, by us */
};

static void place_close(struct place *p)
{
    io_close(p->io);
    free(p->path);
    *p = (struct place){0};
}

/* Closes after a failure: a folder that we made and that is still empty goes again. */
static void place_undo(struct place *p)
{
    io_close(p->io);
    p->io = NULL;
    if (p->made)
        (void)rmdir(p->path);
    place_close(p);
}

static int no_dataset(const char *path, struct larder_error *err)
{
    return err_set(err, LARDER_ENOTFOUND, "%s: no dataset here (no manifest); larder ingest SOURCE %s makes one", path, path);
}

static int place_open_remote(const char *uri, const struct larder_remote_options *opts, struct place *p, struct larder_error *err)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
    int rc = options_take(opts, &o, sizeof(o), "larder_remote_options", err);

    if (rc == 0)
        rc = remote_io_open(uri, &o, &p->io, err);
    if (rc)
        return rc;
    p->path = strdup(io_where(p->io));
    if (p->path)
        return 0;
    place_close(p);
    return err_nomem(err, strlen(uri), "uri");
}

static int place_open_folder(const char *uri, bool create, struct place *p, struct larder_error *err)
{
    struct stat st;
    int rc = uri_to_path(uri, &p->path, err);

    if (rc)
        return rc;
    p->made = create && lstat(p->path, &st) != 0;
    rc = io_file_open(p->path, create, 0, &p->io, err);
    if (rc == LARDER_ENOTFOUND && !create && stat(p->path, &st) != 0 && errno == ENOENT)
        rc = no_dataset(p->path, err);
    if (rc)
        place_undo(p);
    return rc;
}

static int place_open(const char *uri, bool create, const struct larder_remote_options *remote, struct place *p, struct larder_error *err)
{
    *p = (struct place){0};
    if (!uri || !*uri)
        return err_set(err, LARDER_EINVAL, "the dataset's uri is %s", uri ? "empty" : "NULL");
    return uri_is_remote(uri) ? place_open_remote(uri, remote, p, err) : place_open_folder(uri, create, p, err);
}

/* The same for who is going to write. */
static int place_open_writable(const char *uri, bool create, const struct larder_remote_options *remote, struct place *p,
                               struct larder_error *err)
{
    int rc = place_open(uri, create, remote, p, err);

    if (rc == 0 && remote_of(p->io) && !remote_writable(remote_of(p->io))) {
        rc = err_set(err, LARDER_EINVAL, "%s: a web server is only read; name the dataset by a path or s3://bucket/prefix", p->path);
        place_close(p);
    }
    return rc;
}

/* A place without any generation is no dataset: says so in place of the error that led here. */
static int place_explain(struct place *p, int rc, struct larder_error *err)
{
    struct larder_error e;
    uint64_t generation;

    if (rc == LARDER_ENOTFOUND && generation_newest(p->io, &generation, &e) == LARDER_ENOTFOUND)
        return no_dataset(p->path, err);
    return rc;
}

/* ---- dataset ---- */

int dataset_check(const struct larder_dataset *ds, struct larder_error *err)
{
    if (!ds)
        return err_set(err, LARDER_EINVAL, "dataset is NULL");
    if (process_id() != ds->pid)
        return err_set(err, LARDER_EFORK, "%s: opened by process %d and used in its child %d: open it again there", ds->path,
                       (int)ds->pid, (int)getpid());
    return 0;
}

static int dataset_open_layers(struct larder_dataset *ds, const struct larder_dataset_options *o, struct larder_error *err)
{
    struct store_options so = {o->generation, o->table_bytes, o->index_bytes};
    struct tiers_options to = {.queue_depth = o->queue_depth, .files_max = o->files_max, .direct = o->direct, .cache = cache_of(o->cache),
                               .remote = remote_of(ds->io)};
    int rc;

    rc = store_open(ds->io, &so, &ds->store, err);
    if (rc)
        return rc;
    ds->manifest = store_manifest(ds->store);
    rc = tiers_open(ds->store, &to, &ds->tiers, err);
    if (rc == 0)
        rc = block_pool_new(BLOCKS_KEEP_BYTES, &ds->blocks, err);
    return rc;
}

int larder_dataset_open(const char *uri, const struct larder_dataset_options *opts, struct larder_dataset **out,
                        struct larder_error *err)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;
    struct place p;
    int rc;

    if (!out)
        return err_set(err, LARDER_EINVAL, "larder_dataset_open: ds is NULL");
    *out = NULL;
    rc = options_take(opts, &o, sizeof(o), "larder_dataset_options", err);
    if (rc)
        return rc;
    if (o.direct < LARDER_DIRECT_AUTO || o.direct > LARDER_DIRECT_OFF)
        return err_set(err, LARDER_EINVAL, "larder_dataset_options.direct: %d is no enum larder_direct", o.direct);
    if (o.queue_depth > 4096)
        return err_set(err, LARDER_EINVAL, "larder_dataset_options.queue_depth: %u is more than 4096", o.queue_depth);
    if (o.cache && (rc = tiers_cache_check(cache_of(o.cache), err)))
        return rc;
    rc = place_open(uri, false, o.remote, &p, err);
    if (rc)
        return rc;
    ds = calloc(1, sizeof(*ds));
    if (!ds) {
        place_close(&p);
        return err_nomem(err, sizeof(*ds), "dataset");
    }
    pthread_mutex_init(&ds->lock, NULL);
    ds->pid = getpid();
    ds->path = p.path;
    ds->io = p.io;
    rc = dataset_open_layers(ds, &o, err);
    if (rc) {
        rc = place_explain(&p, rc, err);
        larder_dataset_close(ds);
        return rc;
    }
    *out = ds;
    return 0;
}

int larder_dataset_remote_stats(const struct larder_dataset *ds, struct larder_remote_stats *stats, struct larder_error *err)
{
    struct larder_remote_stats s = {0};
    const struct remote *r;
    int rc;

    rc = dataset_check(ds, err);
    if (rc == 0)
        rc = result_check(stats, sizeof(s), "larder_remote_stats", err);
    if (rc)
        return rc;
    r = remote_of(ds->io);
    if (r)
        remote_stats(r, &s);
    result_give(stats, &s, sizeof(s));
    return 0;
}

/* In a forked child the layers below hold threads, locks and rings of the parent: only memory of ours is freed. */
void larder_dataset_close(struct larder_dataset *ds)
{
    struct reader *r;

    if (!ds)
        return;
    block_pool_free(ds->blocks);
    split_close(ds);
    if (getpid() == ds->pid) {
        while ((r = ds->readers)) {
            ds->readers = r->next;
            reader_free(r);
        }
        tiers_close(ds->tiers);
        store_close(ds->store);
        io_close(ds->io);
        pthread_mutex_destroy(&ds->lock);
    }
    free(ds->path);
    free(ds);
}

int larder_dataset_info(const struct larder_dataset *ds, struct larder_dataset_info *info, struct larder_error *err)
{
    struct larder_dataset_info i = {0};
    const struct manifest *m;
    size_t k;
    int rc;

    rc = dataset_check(ds, err);
    if (rc == 0)
        rc = result_check(info, sizeof(i), "larder_dataset_info", err);
    if (rc)
        return rc;
    m = ds->manifest;
    memcpy(i.uuid, m->uuid, sizeof(i.uuid));
    memcpy(i.lineage, m->lineage, sizeof(i.lineage));
    i.generation = m->generation;
    i.created_s = m->created_s;
    i.samples = m->samples;
    i.shards = m->n_shards;
    i.fields = m->schema.n;
    i.compression = (uint32_t)m->compression;
    for (k = 0; k < m->n_shards; k++) {
        i.shard_bytes += m->shards[k].size;
        i.stored_bytes += m->shards[k].stored_bytes;
        i.raw_bytes += m->shards[k].raw_bytes;
    }
    result_give(info, &i, sizeof(i));
    return 0;
}

int larder_dataset_field(const struct larder_dataset *ds, uint32_t i, struct larder_field *field, struct larder_error *err)
{
    int rc = dataset_check(ds, err);

    if (rc)
        return rc;
    if (!field)
        return err_set(err, LARDER_EINVAL, "larder_dataset_field: field is NULL");
    if (i >= ds->manifest->schema.n)
        return err_set(err, LARDER_ENOTFOUND, "%s: no field %u: the schema has %u", ds->path, i, ds->manifest->schema.n);
    *field = schema_at(&ds->manifest->schema, i);
    return 0;
}

const char *larder_dataset_class(const struct larder_dataset *ds, uint64_t label, uint64_t *count)
{
    uint64_t n = ds ? ds->manifest->n_classes : 0;

    if (count)
        *count = n;
    return label < n ? ds->manifest->classes[label] : NULL;
}

static int ordinal_check(const struct larder_dataset *ds, uint64_t ordinal, struct larder_error *err)
{
    if (ordinal >= ds->manifest->samples)
        return err_set(err, LARDER_ENOTFOUND, "%s: no ordinal %llu: generation %llu has %llu samples", ds->path,
                       (unsigned long long)ordinal, (unsigned long long)ds->manifest->generation,
                       (unsigned long long)ds->manifest->samples);
    return 0;
}

int larder_dataset_key(struct larder_dataset *ds, uint64_t ordinal, void *key, size_t cap, size_t *len,
                       struct larder_error *err)
{
    int rc = dataset_check(ds, err);

    if (rc == 0)
        rc = ordinal_check(ds, ordinal, err);
    if (rc)
        return rc;
    if (!len || (!key && cap))
        return err_set(err, LARDER_EINVAL, "larder_dataset_key: %s is NULL", len ? "key" : "len");
    return store_key(ds->store, ordinal, key, cap, len, err);
}

int larder_dataset_column(struct larder_dataset *ds, uint32_t field, uint64_t first, uint64_t count, void *values,
                          struct larder_error *err)
{
    const struct manifest *m;
    int rc = dataset_check(ds, err);

    if (rc)
        return rc;
    m = ds->manifest;
    if (field >= m->schema.n)
        return err_set(err, LARDER_ENOTFOUND, "%s: no field %u: the schema has %u", ds->path, field, m->schema.n);
    if (!type_width(m->schema.fields[field].type))
        return err_set(err, LARDER_EINVAL, "%s: field '%s' is no scalar (%s), so it has no column", ds->path,
                       m->schema.fields[field].name, larder_type_name(m->schema.fields[field].type));
    if (first > m->samples || count > m->samples - first)
        return err_set(err, LARDER_ENOTFOUND, "%s: samples %llu + %llu are beyond the %llu there are", ds->path,
                       (unsigned long long)first, (unsigned long long)count, (unsigned long long)m->samples);
    if (count == 0)
        return 0;
    if (!values)
        return err_set(err, LARDER_EINVAL, "larder_dataset_column: values is NULL");
    return store_column(ds->store, field, first, count, values, err);
}

int larder_dataset_locate(struct larder_dataset *ds, uint64_t ordinal, struct larder_location *loc, struct larder_error *err)
{
    struct extent e;
    int rc = dataset_check(ds, err);

    if (rc == 0)
        rc = ordinal_check(ds, ordinal, err);
    if (rc)
        return rc;
    if (!loc)
        return err_set(err, LARDER_EINVAL, "larder_dataset_locate: loc is NULL");
    rc = store_locate(ds->store, &ordinal, 1, &e, err);
    if (rc)
        return rc;
    *loc = (struct larder_location){ds->manifest->shards[e.shard].name, e.shard, e.slot, e.offset, e.stored_len, e.raw_len};
    return 0;
}

/* ---- writer ---- */

struct larder_writer {
    struct place place;
    struct writer *writer;
    pid_t pid;
};

static int write_options_check(int compression, int level, struct larder_error *err)
{
    if (compression < LARDER_COMPRESS_NONE || compression > LARDER_COMPRESS_ZSTD_DICT)
        return err_set(err, LARDER_EINVAL, "compression: %d is no enum larder_compression", compression);
    if (level < 0 || level > 19)
        return err_set(err, LARDER_EINVAL, "compression level %d is not within 1..19 (0: the default, 3)", level);
    return 0;
}

static int writer_options_check(const struct larder_writer_options *o, const struct larder_field *fields, size_t n_fields,
                                struct larder_error *err)
{
    size_t i;

    if (n_fields > LARDER_FIELDS_MAX || (n_fields && !fields))
        return err_set(err, LARDER_EINVAL, "larder_writer_open: %zu fields at %s; a schema has 1..%d", n_fields,
                       fields ? "an array" : "NULL", LARDER_FIELDS_MAX);
    if (n_fields == 0 && !o->append)
        return err_set(err, LARDER_EINVAL, "larder_writer_open: a new dataset needs a schema of at least one field");
    if (o->n_classes && !o->classes)
        return err_set(err, LARDER_EINVAL, "larder_writer_options: classes is NULL and n_classes %zu", o->n_classes);
    for (i = 0; i < o->n_classes; i++)
        if (!o->classes[i])
            return err_set(err, LARDER_EINVAL, "larder_writer_options.classes[%zu] is NULL", i);
    return write_options_check(o->compression, o->level, err);
}

int larder_writer_open(const char *uri, const struct larder_field *fields, size_t n_fields,
                       const struct larder_writer_options *opts, struct larder_writer **out, struct larder_error *err)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    int rc;

    if (!out)
        return err_set(err, LARDER_EINVAL, "larder_writer_open: w is NULL");
    *out = NULL;
    rc = options_take(opts, &o, sizeof(o), "larder_writer_options", err);
    if (rc == 0)
        rc = writer_options_check(&o, fields, n_fields, err);
    if (rc)
        return rc;
    w = calloc(1, sizeof(*w));
    if (!w)
        return err_nomem(err, sizeof(*w), "writer");
    w->pid = getpid();
    rc = place_open_writable(uri, !o.append, o.remote, &w->place, err);
    if (rc == 0) {
        rc = writer_open(w->place.io, fields, n_fields, &o, &w->writer, err);
        if (rc && o.append)
            rc = place_explain(&w->place, rc, err);
        if (rc)
            place_undo(&w->place);
    }
    if (rc) {
        free(w);
        return rc;
    }
    *out = w;
    return 0;
}

static int writer_check(const struct larder_writer *w, struct larder_error *err)
{
    if (!w)
        return err_set(err, LARDER_EINVAL, "writer is NULL");
    if (getpid() != w->pid)
        return err_set(err, LARDER_EFORK, "%s: the writer was opened by process %d and used in its child %d", w->place.path,
                       (int)w->pid, (int)getpid());
    return 0;
}

int larder_writer_add(struct larder_writer *w, const void *key, size_t key_len, const struct larder_value *values,
                      struct larder_error *err)
{
    int rc = writer_check(w, err);

    if (rc)
        return rc;
    if (!key || key_len == 0 || key_len > LARDER_KEY_MAX)
        return err_set(err, LARDER_EINVAL, "larder_writer_add: the key is NULL, or its length %zu is not within 1..%d", key_len,
                       LARDER_KEY_MAX);
    if (!values)
        return err_set(err, LARDER_EINVAL, "larder_writer_add: values is NULL");
    return writer_add(w->writer, key, key_len, values, err);
}

int larder_writer_commit(struct larder_writer *w, uint64_t *generation, struct larder_error *err)
{
    uint64_t g = 0;
    int rc = writer_check(w, err);

    if (rc) {
        larder_writer_close(w);
        return rc;
    }
    rc = writer_commit(w->writer, &g, err);
    if (rc)
        place_undo(&w->place);
    else
        place_close(&w->place);
    free(w);
    if (rc == 0 && generation)
        *generation = g;
    return rc;
}

void larder_writer_close(struct larder_writer *w)
{
    if (!w)
        return;
    if (getpid() == w->pid) {
        writer_close(w->writer);
        place_undo(&w->place);
    } else {
        free(w->place.path); /* the rest is the parent's work */
    }
    free(w);
}

/* ---- long-running work ---- */

static int sources_check(const char *const *sources, size_t n, struct larder_error *err)
{
    size_t i;

    if (!sources || n == 0)
        return err_set(err, LARDER_EINVAL, "larder_ingest_run: no sources");
    for (i = 0; i < n; i++)
        if (!sources[i] || !*sources[i])
            return err_set(err, LARDER_EINVAL, "larder_ingest_run: source %zu is %s", i, sources[i] ? "empty" : "NULL");
    return 0;
}

static int ingest_options_check(const struct larder_ingest_options *o, struct larder_error *err)
{
    if (o->order != LARDER_ORDER_SHUFFLED && o->order != LARDER_ORDER_SOURCE)
        return err_set(err, LARDER_EINVAL, "larder_ingest_options.order: %d is no enum larder_order", o->order);
    if (o->on_error != LARDER_ON_ERROR_FAIL && o->on_error != LARDER_ON_ERROR_SKIP)
        return err_set(err, LARDER_EINVAL, "larder_ingest_options.on_error: %d is no enum larder_on_error", o->on_error);
    return write_options_check(o->compression, o->level, err);
}

int larder_ingest_run(const char *const *sources, size_t n_sources, const char *uri, const struct larder_ingest_options *opts,
                      struct larder_ingest_report *report, struct larder_error *err)
{
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report r = {.struct_size = sizeof(r)};
    struct place p;
    int rc;

    rc = options_take(opts, &o, sizeof(o), "larder_ingest_options", err);
    if (rc == 0)
        rc = ingest_options_check(&o, err);
    if (rc == 0)
        rc = report_check(report, sizeof(r), "larder_ingest_report", err);
    if (rc == 0)
        rc = sources_check(sources, n_sources, err);
    if (rc == 0)
        rc = place_open_writable(uri, !o.append, o.remote, &p, err);
    if (rc)
        return rc;
    rc = ingest_run(sources, n_sources, p.io, &o, &r, err);
    if (rc && o.append)
        rc = place_explain(&p, rc, err);
    if (rc) {
        place_undo(&p);
        return rc;
    }
    place_close(&p);
    result_give(report, &r, sizeof(r));
    return 0;
}

int larder_verify_run(const char *uri, const struct larder_verify_options *opts, struct larder_verify_report *report,
                      struct larder_error *err)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof(r)};
    struct place p;
    int rc;

    rc = options_take(opts, &o, sizeof(o), "larder_verify_options", err);
    if (rc == 0)
        rc = report_check(report, sizeof(r), "larder_verify_report", err);
    if (rc)
        return rc;
    if (o.subset_n > o.subset_t || (o.subset_t && !o.subset_n))
        return err_set(err, LARDER_EINVAL, "subset %llu/%llu: n of t needs 1 <= n <= t", (unsigned long long)o.subset_n,
                       (unsigned long long)o.subset_t);
    rc = place_open(uri, false, o.remote, &p, err);
    if (rc)
        return rc;
    rc = place_explain(&p, store_verify(p.io, &o, &r, err), err);
    place_close(&p);
    if (rc == 0 || rc == LARDER_ECORRUPT)
        result_give(report, &r, sizeof(r));
    return rc;
}

int larder_repair_run(const char *uri, const struct larder_repair_options *opts, struct larder_repair_report *report,
                      struct larder_error *err)
{
    struct larder_repair_options o = LARDER_REPAIR_OPTIONS_INIT;
    struct larder_repair_report r = {.struct_size = sizeof(r)};
    struct place p;
    int rc;

    rc = options_take(opts, &o, sizeof(o), "larder_repair_options", err);
    if (rc == 0)
        rc = report_check(report, sizeof(r), "larder_repair_report", err);
    if (rc == 0)
        rc = place_open_writable(uri, false, o.remote, &p, err);
    if (rc)
        return rc;
    rc = store_repair(p.io, &o, &r, err); /* its own ENOTFOUND: neither manifest nor shards */
    place_close(&p);
    if (rc == 0)
        result_give(report, &r, sizeof(r));
    return rc;
}

int larder_gc_run(const char *uri, const struct larder_gc_options *opts, struct larder_gc_report *report,
                  struct larder_error *err)
{
    struct larder_gc_options o = LARDER_GC_OPTIONS_INIT;
    struct larder_gc_report r = {.struct_size = sizeof(r)};
    struct place p;
    int rc;

    rc = options_take(opts, &o, sizeof(o), "larder_gc_options", err);
    if (rc == 0)
        rc = report_check(report, sizeof(r), "larder_gc_report", err);
    if (rc == 0)
        rc = place_open_writable(uri, false, o.remote, &p, err);
    if (rc)
        return rc;
    rc = place_explain(&p, store_gc(p.io, &o, &r, err), err);
    place_close(&p);
    if (rc == 0)
        result_give(report, &r, sizeof(r));
    return rc;
}

int larder_copy_run(const char *src, const char *dst, const struct larder_copy_options *opts, struct larder_copy_report *report,
                    struct larder_error *err)
{
    struct larder_copy_options o = LARDER_COPY_OPTIONS_INIT;
    struct larder_copy_report r = {.struct_size = sizeof(r)};
    struct place from, to;
    int rc;

    rc = options_take(opts, &o, sizeof(o), "larder_copy_options", err);
    if (rc == 0)
        rc = report_check(report, sizeof(r), "larder_copy_report", err);
    if (rc == 0)
        rc = place_open(src, false, o.remote, &from, err);
    if (rc)
        return rc;
    rc = place_open_writable(dst, true, o.remote, &to, err);
    if (rc) {
        place_close(&from);
        return rc;
    }
    rc = store_copy(from.io, to.io, &o, &r, err);
    if (rc)
        rc = place_explain(&from, rc, err);
    place_close(&from);
    if (rc) {
        place_undo(&to);
        return rc;
    }
    place_close(&to);
    result_give(report, &r, sizeof(r));
    return 0;
}

int larder_export_run(struct larder_dataset *ds, const char *dest, const struct larder_export_options *opts,
                      struct larder_export_report *report, struct larder_error *err)
{
    struct larder_export_options o = LARDER_EXPORT_OPTIONS_INIT;
    struct larder_export_report r = {.struct_size = sizeof(r)};
    int rc;

    rc = dataset_check(ds, err);
    if (rc == 0)
        rc = options_take(opts, &o, sizeof(o), "larder_export_options", err);
    if (rc == 0)
        rc = report_check(report, sizeof(r), "larder_export_report", err);
    if (rc)
        return rc;
    if (!dest || !*dest)
        return err_set(err, LARDER_EINVAL, "larder_export_run: dest is %s", dest ? "empty" : "NULL");
    if (o.first > ds->manifest->samples || o.count > ds->manifest->samples - o.first)
        return err_set(err, LARDER_ENOTFOUND, "%s: samples %llu + %llu are beyond the %llu there are", ds->path,
                       (unsigned long long)o.first, (unsigned long long)o.count, (unsigned long long)ds->manifest->samples);
    rc = export_run(ds->store, ds->tiers, dest, &o, &r, err);
    if (rc == 0)
        result_give(report, &r, sizeof(r));
    return rc;
}
