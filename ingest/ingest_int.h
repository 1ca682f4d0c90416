/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest_int.h - inside ingest/: the one source interface, the one sink interface, the packer and the journal.
 *
 * A source is cut into units, each readable on its own, in order and again after a crash: a run of files for dir, one
 * archive for tar. A worker takes the next unit and writes its samples into shards of its own, (unit, sub 0), (unit, sub 1)...
 * So no bytes cross threads, memory is bounded by workers x (one sample + one shard's write buffer), and the dataset's order
 * does not depend on the number of workers.
 */
#ifndef LARDER_INGEST_INT_H
#define LARDER_INGEST_INT_H

#include <pthread.h>
#include <sys/stat.h>

#include "ingest/ingest.h"

/* ---- notes (notes.c): what the caller is told while the work goes on ---- */

struct notes {
    const struct larder_ingest_options *o;
    pthread_mutex_t lock; /* serialises the two notices, as larder.h promises: held across them, never together with another */
    atomic_uint_least64_t skipped, ignored;
    uint64_t last_ns;     /* calling thread only: when progress was last told */
};
void notes_init(struct notes *n, const struct larder_ingest_options *o);
void notes_release(struct notes *n);
void notes_skipped(struct notes *n, const char *what, const char *why);
void notes_ignored(struct notes *n, const char *what, const char *why);
static inline bool notes_may_skip(const struct notes *n) { return n->o->on_error == LARDER_ON_ERROR_SKIP; }
/* Tells o->progress when a tenth of a second has passed, or at once. ECANCELED when it says stop. Calling thread only. */
int notes_progress(struct notes *n, const struct larder_progress *p, bool at_once, struct larder_error *err);

/* ---- spool (spool.c): an append-only list of bytes, the first `budget` of them in memory, the rest in an unnamed file ---- */

struct spool {
    uint8_t *mem;
    size_t mem_len, mem_cap, budget;
    struct buf tail;     /* of the file, not written yet */
    uint64_t len, flushed; /* bytes in all; bytes of the file written */
    int fd;              /* -1 until the budget is used up */
    const char *dir;     /* borrowed */
};
void spool_init(struct spool *s, const char *dir, size_t budget);
int spool_append(struct spool *s, const void *data, size_t len, struct larder_error *err); /* one item: never straddles */
int spool_seal(struct spool *s, struct larder_error *err); /* before the first read; no appends after it */
/* Up to len bytes from offset (an item's beginning): *got tells. Thread-safe. */
int spool_read(const struct spool *s, uint64_t offset, void *out, size_t len, size_t *got, struct larder_error *err);
void spool_release(struct spool *s);

/* ---- fields (fields.c): --fields, file contents <-> values ---- */

struct field_spec { char *name; int type; /* 0: not given */ char **exts; size_t n_exts; };
struct field_specs { struct field_spec *specs; size_t n; };
/* NAME[:TYPE][=EXT[|EXT...]],... Extensions are lowercased; without any, the name itself is the extension. */
int fields_parse(const char *text, struct field_specs *out, struct larder_error *err);
void fields_release(struct field_specs *f);
/* A file's bytes as a value of `type`: a view, or a scalar parsed from text into scratch. EINVAL says why not. */
int fields_value(int type, const void *data, size_t len, uint8_t scratch[8], struct larder_value *v, struct larder_error *err);
/* A scalar as text: the inverse of fields_value. Returns its length. */
size_t fields_text(int type, const struct larder_value *v, char out[40]);
bool utf8_valid(const void *data, size_t len);
/* EINVAL naming the first difference between the dataset's schema and the source's. */
int fields_same(const struct schema *base, const struct schema *src, struct larder_error *err);
int fields_schema(struct schema *s, const char *const *names, const int *types, size_t n, struct larder_error *err);

/* ---- braces (braces.c) ---- */

/* x-{000..009}.tar, {a,b}.tar: expanded in order, for strings_free; a path that exists as written stands for itself. */
int braces_expand(const char *const *paths, size_t n, char ***out, size_t *n_out, struct larder_error *err);

/* ---- sources (dir.c, tar.c) ---- */

static inline int64_t mtime_ns(const struct stat *st) { return (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec; }

struct source;
struct source_cursor; /* reads one unit; one thread */

struct source_item {               /* borrowed until the next call on the cursor */
    const void *key; size_t key_len;
    const struct larder_value *values; /* one a schema field */
    const char *what;              /* path (and member) for messages */
    uint64_t source_bytes;
};

struct source_ops {
    /* skip: pass over that many samples first, unread. */
    int (*open_unit)(struct source *s, uint64_t unit, uint64_t skip, struct source_cursor **c, struct larder_error *err);
    /* LARDER_OK, LARDER_END, or an error: with item->what set it concerns this sample only and the cursor can go on (the caller
     * decides by on_error); with item->what NULL the unit cannot be read further. */
    int (*next)(struct source_cursor *c, struct source_item *item, struct larder_error *err);
    void (*close_unit)(struct source_cursor *c);
    void (*close)(struct source *s);
};

struct source {
    const struct source_ops *ops;
    struct schema schema;        /* what it yields */
    char **classes; size_t n_classes;
    char *path;                  /* absolute, of the folder or the first archive: names the source in the journal */
    const char *format;          /* "dir", "tar" */
    uint64_t units, samples;     /* samples 0: not known */
    uint64_t bytes;              /* in all, 0: not known */
    uint64_t fingerprint;        /* of names, sizes, times: a resumed run must find the same */
    bool quiet;                  /* somebody is reading ahead: cursors report nothing */
    bool lossy_units;            /* with on_error = SKIP a unit that cannot be read further loses its rest, not the run */
};

/* Lists and checks the source. base: the dataset's manifest on append, else NULL (its schema and classes are kept and extended).
 * tmp: a folder for unnamed temporary files. notes and tmp are borrowed until close. */
int dir_open(const char *path, const char *tmp, struct notes *notes, const struct manifest *base, struct source **s,
             struct larder_error *err);
int tar_open(const char *const *paths, size_t n, struct notes *notes, const struct manifest *base, struct source **s,
             struct larder_error *err);
void source_release(struct source *s); /* what the fields above own; for the implementations' close */

/* gzip.c: a gzip file's bytes with its checks. The descriptor stays the caller's. */
struct gzip;
bool gzip_like(int fd); /* begins as one */
int gzip_open(int fd, struct gzip **g, struct larder_error *err);
/* Bytes read, 0 at the end, -1: damaged, or *sys_errno is set; *why is borrowed until the next call. */
ssize_t gzip_read(struct gzip *g, void *buf, size_t len, int *sys_errno, const char **why);
void gzip_close(struct gzip *g); /* NULL allowed */

/* A member's path as WebDataset reads it: the key is everything up to the first dot of the base name, the extension what follows.
 * NULL, or why the member is no part of a sample. */
const char *tar_name_split(const char *path, size_t len, size_t *key_len, const char **ext, size_t *ext_len);

/* ---- sinks of export (dir.c, tar.c) ---- */

struct sink;
struct sink_ops {
    /* name is safe already. key: the sample's, when the name does not tell it; a sink may keep it. */
    int (*file)(struct sink *k, const char *name, const void *data, size_t len, const void *key, size_t key_len,
                struct larder_error *err);
    int (*finish)(struct sink *k, struct larder_error *err); /* durable; frees */
    void (*abort)(struct sink *k);                           /* removes what it made, as far as it made it; frees */
};
struct sink { const struct sink_ops *ops; };
int dir_sink_open(const char *path, struct sink **k, struct larder_error *err);
int tar_sink_open(const char *path, struct sink **k, struct larder_error *err);
bool tar_name_like(const char *path); /* ends in .tar, .tar.gz, .tgz, .tar.zst, .tar.xz */

/* Names of exported files (export.c): KEY.EXT, percent-encoded where a path could not hold the key, so that no two samples or fields
 * meet and nothing leaves the destination. */
struct name_rules {
    bool dots;   /* encode dots of the base name too: the first one then ends the key */
    bool split;  /* cut components that a file system could not hold */
    const char *const *exts; size_t n_exts; /* every extension that a file of this export may have, encoded: no folder ends in one */
};
/* out: the path with its NUL. *renamed: it does not show the key as it is. ext is encoded already. */
int export_name(const struct name_rules *r, const void *key, size_t key_len, const char *ext, struct buf *out, bool *renamed,
                struct larder_error *err);
int export_ext(const char *name, struct buf *out, struct larder_error *err); /* a field's name as an extension, with its NUL */

/* ---- the journal (journal.c): ROOT/journal, what is needed to go on after a crash, or to clean up ---- */

enum journal_kind { JOURNAL_INGEST = 1, JOURNAL_WRITER = 2 };
/* What a resumed run must agree in, as text. */
enum journal_option { JOPT_SOURCE, JOPT_FORMAT, JOPT_APPEND, JOPT_SHARD_SIZE, JOPT_COMPRESSION, JOPT_FIELDS, JOPT_ORDER, JOPT_SEED,
                      JOPT_CONTENT, JOPT_SCHEMA, JOPT_CLASSES, JOPT_N };
struct journal_head {
    int kind;
    uint8_t session[8], uuid[16], lineage[16];
    char *options[JOPT_N]; /* owned; NULL for a writer */
};
struct journal_shard { struct shard_ref ref; uint64_t consumed, skipped, source_bytes; }; /* of the unit, up to the shard's end */
struct journal_unit { uint64_t unit, consumed, skipped, source_bytes; };
struct journal {
    struct store_io *io;     /* borrowed */
    struct session session;
    bool locked, has_head, has_dict;
    uint64_t size;           /* where the next line goes */
    struct journal_head head;
    uint64_t *runs; size_t n_runs, cap_runs;
    void *dict; size_t dict_len;
    struct journal_shard *shards; size_t n_shards, cap_shards;
    struct journal_unit *units; size_t n_units, cap_units; /* finished ones */
};
/* Locks the dataset against other writers and reads what is there; a torn end is cut off. EBUSY. */
int journal_open(struct store_io *io, struct journal *j, struct larder_error *err);
int journal_begin(struct journal *j, struct larder_error *err); /* writes j->head, filled by the caller, to an empty journal */
int journal_add_run(struct journal *j, uint64_t run, struct larder_error *err); /* durable before any file bears it */
int journal_add_dict(struct journal *j, const void *dict, size_t len, struct larder_error *err); /* len 0: there is none */
int journal_add_shard(struct journal *j, const struct journal_shard *s, struct larder_error *err);
int journal_add_unit(struct journal *j, const struct journal_unit *u, struct larder_error *err);
/* Forgets the unit's shards from `sub` on, and that it was finished: they are not what the journal says. */
int journal_add_drop(struct journal *j, uint64_t unit, uint32_t sub, struct larder_error *err);
/* EINVAL naming the first option that differs. */
int journal_same(const struct journal *j, char *const options[JOPT_N], struct larder_error *err);
bool journal_committed(const struct journal *j, const struct manifest *m); /* m holds files of this session */
/* Removes the session's files that are neither in `newest` nor, with keep_shards, among j->shards. */
int journal_sweep(struct journal *j, const struct manifest *newest, bool keep_shards, struct larder_error *err);
int journal_reset(struct journal *j, struct larder_error *err); /* empties it */
void journal_close(struct journal *j, bool remove);

/* ---- sealing (seal.c): one thread that finishes shards, so that fsync is off the threads that read ---- */

struct seal_item {
    struct shard_writer *w;  /* moved; NULL: only a place in the unit */
    uint64_t unit, consumed, skipped, source_bytes;
    bool unit_done;
};
/* Called in the sealing thread, in order of pushes. ref (NULL without a shard) is moved. */
typedef int sealed_fn(void *user, const struct seal_item *item, struct shard_ref *ref, struct larder_error *err);
struct sealer;
int sealer_start(unsigned queue, sealed_fn *fn, void *user, struct sealer **s, struct larder_error *err);
/* Blocks while the queue is full. Takes item->w in any case; fails with the first error that sealing met. */
int sealer_push(struct sealer *s, const struct seal_item *item, struct larder_error *err);
int sealer_finish(struct sealer *s, struct larder_error *err); /* seals what is queued, joins, frees; NULL is allowed */
void sealer_abort(struct sealer *s);                           /* drops what is queued, joins, frees; NULL is allowed */

/* ---- packing (pack.c) ---- */

struct pack {
    struct source *source;
    struct journal *journal;  /* gets the sealed shards; whole units and beginnings of units in it are taken over */
    struct notes *notes;
    struct shard_params params; /* meta, session, level, dictionary */
    uint64_t run, shard_size;
    unsigned workers;
    uint64_t consumed, skipped, source_bytes; /* out: of all units, those taken over included */
    uint64_t resumed;         /* in: samples taken over, for the progress */
};
int pack_run(struct pack *p, struct larder_error *err);

static inline uint64_t values_bytes(const struct larder_value *v, uint32_t n)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += v[i].data ? v[i].len : 0;
    return sum;
}
/* What a sample takes up in a shard, from above: values, key, the record's head, its share of the footer. */
static inline uint64_t sample_weight(uint64_t fields, uint64_t key_len, uint64_t value_bytes)
{
    return value_bytes + key_len + 16 + 8 * fields + STORE_ENTRY + 4 + 9 * fields;
}

/* ---- dictionaries (dict.c) ---- */

/* What of some samples would be compressed, back to back. */
struct material { struct buf bytes; size_t *sizes; size_t n, cap; };
int material_add(struct material *m, const struct schema *schema, const struct larder_value *values, struct larder_error *err);
int material_train(const struct material *m, void **dict, size_t *len, struct larder_error *err); /* *len 0: too little of it */
void material_release(struct material *m);
/* From samples spread over the source. */
int dict_train(struct source *source, void **dict, size_t *len, struct larder_error *err);

/* ---- what ingest and writer share (session.c is the store's; begin.c is ours) ---- */

/* Where a session starts: the dataset's newest generation, and the journal, locked. */
struct start {
    struct journal journal;
    struct manifest m;      /* newest generation; zero (generation 0) when there is none */
};
/* Looks at what is there; takes away what a dead writer or a committed session left behind. EEXIST for a folder that holds other
 * things, EBUSY while another writer is at work. Then the caller decides, and ends with start_close in any case. */
int start_open(struct store_io *io, bool restart, struct start *st, struct larder_error *err);
int start_newest(struct store_io *io, struct manifest *m, struct larder_error *err); /* generation 0: there is none */
/* EEXIST or ENOTFOUND: there is a dataset, or none, and append says otherwise. */
int start_check(const struct start *st, bool append, struct larder_error *err);
void start_close(struct start *st, bool remove_journal);
int shard_size_option(uint64_t given, uint64_t *size, struct larder_error *err); /* 0: the default; EINVAL: too large */
/* Turns m into the generation to come: the next number, or 1 of a new dataset with fresh ids. schema is copied when m has none. */
int manifest_begin(struct manifest *m, const struct schema *schema, char *const *classes, size_t n_classes, int compression,
                   struct larder_error *err);
/* Appends the journal's shards to m in order of (unit, sub). */
int manifest_add(struct manifest *m, const struct journal *j, struct larder_error *err);
int journal_new_run(struct journal *j, uint64_t *run, struct larder_error *err); /* random, noted */
/* generation_index with a noted run of its own: shards of m from first_new on are new. */
int session_index(struct store_io *io, struct journal *j, struct manifest *m, size_t first_new, const struct index_policy *policy,
                  uint64_t *dropped, struct larder_error *err);

#endif
