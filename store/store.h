/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - the door of store/: datasets as shards, key index and manifests (FORMAT.md is normative).
 *
 * Reading: store_open pins a generation; store_locate turns ordinals into extents (batched, from cached record-table
 * pages); whoever reads the extent hands its bytes to store_decode. The tiers do both. Writing:
 * shard_writer makes shards, generation_index their key index, generation_commit a generation of them.
 */
#ifndef LARDER_STORE_H
#define LARDER_STORE_H

#include "store/base/base.h"
#include "store/codec/codec.h"

#define STORE_SHARD_SIZE_DEFAULT (64 * MIB)
#define STORE_SHARD_SIZE_MAX (4 * GIB)
#define STORE_PAGE 4096u
#define STORE_ENTRY 24u                       /* bytes of a record-table entry */
#define STORE_PAGE_DATA 4080u                 /* payload of a footer page */
#define STORE_ENTRIES_A_PAGE (STORE_PAGE_DATA / STORE_ENTRY)

/* ---- schema (manifest.c) ---- */

struct schema_field { char *name; int type; char *dtype; uint32_t ndim; int64_t *shape; };
struct schema { uint32_t n; struct schema_field *fields; };
int schema_copy(struct schema *dst, const struct larder_field *fields, size_t n, struct larder_error *err); /* checks too */
int schema_clone(struct schema *dst, const struct schema *src, struct larder_error *err);
static inline struct larder_field schema_at(const struct schema *s, uint32_t i) /* borrows from s */
{
    const struct schema_field *f = &s->fields[i];
    return (struct larder_field){f->name, f->type, f->dtype, f->ndim, f->shape};
}
bool schema_equal(const struct schema *a, const struct schema *b);
int schema_find(const struct schema *s, const char *name); /* index or -1 */
void schema_release(struct schema *s);
static inline unsigned type_width(int type) /* bytes of a scalar; 0: not a scalar */
{
    return type == LARDER_I64 || type == LARDER_F64 ? 8 : type == LARDER_F32 ? 4 : type == LARDER_BOOL ? 1 : 0;
}
static inline bool type_is_media(int type) { return type == LARDER_IMAGE || type == LARDER_AUDIO; }

/* ---- manifest (manifest.c) ---- */

/* A shard as the manifest lists it. */
struct shard_ref {
    char *name;            /* file name below shards/; owned by whoever owns the ref */
    uint64_t base;         /* ordinal of slot 0: computed, not stored */
    uint64_t size;         /* of the file */
    uint64_t footer_off;   /* the record table begins here */
    uint64_t stored_bytes, raw_bytes;
    uint32_t samples;
    uint32_t tag;          /* stands in every footer page of this shard */
    uint32_t trailer_crc;
    uint64_t dict_id;      /* 0: none */
    uint64_t unit;         /* place of its samples in the source: order within a session is (unit, sub) */
    uint32_t sub;
};
void shard_ref_release(struct shard_ref *r);
int shard_ref_copy(struct shard_ref *dst, const struct shard_ref *src, struct larder_error *err);
struct json *shard_ref_json(const struct shard_ref *r); /* an array; for the manifest and the journal */
int shard_ref_parse(const struct json *j, const char *what, struct shard_ref *r, struct larder_error *err);

/* A file of a key-index part: an SST with its key range, or RocksDB's own. */
struct index_file { char *name; uint64_t size; uint32_t crc; uint64_t keys; uint8_t *first, *last; size_t first_len, last_len; };
/* One RocksDB of keys of an ordinal range [lo, hi). */
struct index_part { char *dir; /* below index/ */ uint64_t lo, hi, keys; struct index_file *files; size_t n_files; };
void index_files_release(struct index_file *files, size_t n);
void index_part_release(struct index_part *p);

struct manifest {
    uint8_t uuid[16], lineage[16];
    uint8_t family[16];    /* kept by append and repair, new on repack: which shards belong together when no manifest is left.
                            * All zero in a new dataset: the lineage is taken. */
    uint64_t generation, created_s, samples; /* samples: computed from shards */
    int compression;
    struct schema schema;
    char **classes; size_t n_classes;
    struct shard_ref *shards; size_t n_shards, cap_shards;
    struct index_part *parts; size_t n_parts;
};
void manifest_release(struct manifest *m);
/* Text <-> struct; the text ends in its own CRC32C. what names the file in errors. */
int manifest_encode(const struct manifest *m, struct buf *out, struct larder_error *err);
int manifest_decode(const void *text, size_t len, const char *what, struct manifest *m, struct larder_error *err);
/* What every shard carries of the dataset, so that a manifest can be rebuilt: schema, classes, compression. */
int meta_encode(const struct manifest *m, struct buf *out, struct larder_error *err);
int meta_decode(const void *text, size_t len, const char *what, struct manifest *m, struct larder_error *err);

/* ---- generations (commit.c) ---- */

/* The newest committed generation: hint, then probing upward. ENOTFOUND: no dataset. */
int generation_newest(struct store_io *io, uint64_t *generation, struct larder_error *err);
int generation_load(struct store_io *io, uint64_t generation, struct manifest *m, struct larder_error *err);
/* Both in one: the hint, then the manifests of it and of what came after it in as few steps as can be. */
int generation_load_newest(struct store_io *io, struct manifest *m, struct larder_error *err);
/* All committed generations, ascending; malloc'd. */
int generation_list(struct store_io *io, uint64_t **generations, size_t *n, struct larder_error *err);
/* Makes m visible as m->generation: sync shards/ and index/, create the manifest exclusively, update the hint.
 * EBUSY: somebody else committed that generation. */
int generation_commit(struct store_io *io, struct manifest *m, struct larder_error *err);
/* Whether a commit that failed with rc may have happened all the same, or may yet: its files have to stay. */
bool commit_is_open(struct store_io *io, int rc);

/* ---- writing shards (shard_write.c) ---- */

struct shard_params {
    const struct manifest *meta;  /* uuid, lineage, generation, schema, classes, compression: borrowed while writing */
    uint8_t session[8];           /* the same for all shards of one ingest, resumed ones too */
    uint64_t unit; uint32_t sub, revision;
    uint64_t generation;          /* of the shard that this one is a revision of; 0: meta's */
    int level;
    const void *dict; size_t dict_len; /* zstd-dict: borrowed; kept in the shard */
};
uint64_t dict_id_of(const void *dict, size_t len); /* what shard_ref.dict_id will be; never 0 */
struct shard_writer;
/* name: file name below shards/, never used before (shard_name_new). */
int shard_writer_open(struct store_io *io, const char *name, const struct shard_params *p, struct shard_writer **w,
                      struct larder_error *err);
/* EINVAL leaves the writer usable and nothing added. values: one a schema field. */
int shard_writer_add(struct shard_writer *w, const void *key, size_t key_len, const struct larder_value *values,
                     struct larder_error *err);
/* A record that is encoded already (repair, repack): same schema, same dictionary. */
struct record_ref { const void *stored; uint32_t stored_len, raw_len, crc; uint8_t codec; };
int shard_writer_add_stored(struct shard_writer *w, const void *key, size_t key_len, const struct record_ref *r,
                            struct larder_error *err);
uint64_t shard_writer_bytes(const struct shard_writer *w); /* of records and their share of the footer so far */
uint32_t shard_writer_samples(const struct shard_writer *w);
/* Footer, fsync, visible under its name; *ref (owned by the caller) describes it. Frees w also on failure. May be called
 * from another thread than the adds. */
int shard_writer_finish(struct shard_writer *w, struct shard_ref *ref, struct larder_error *err);
void shard_writer_abort(struct shard_writer *w);
/* "<16 hex digits>-<6 digits>": a random run id and a counter. */
void shard_name_new(uint64_t run, uint32_t counter, char out[32]);

/* ---- the reader (store.c, shard_read.c) ---- */

struct store;
struct store_options { uint64_t generation; size_t table_bytes, index_bytes; };
/* io is borrowed and must outlive the store. */
int store_open(struct store_io *io, const struct store_options *o, struct store **s, struct larder_error *err);
void store_close(struct store *s);
const struct manifest *store_manifest(const struct store *s);
struct store_io *store_io_of(const struct store *s);

/* Where one record lies. */
struct extent {
    uint64_t offset;       /* in the shard file */
    uint32_t shard, slot;
    uint32_t stored_len, raw_len, crc;
    uint8_t codec;         /* enum record_codec */
    bool checked;          /* the bytes were checked against crc already: store_decode does not do it again */
};
/* An extent of bytes that come from a cache and not from a shard: shard is EXTENT_CACHED, offset the ordinal. */
#define EXTENT_CACHED UINT32_MAX
static inline struct extent extent_cached(uint64_t ordinal, uint32_t stored_len, uint32_t raw_len, uint32_t crc, uint8_t codec)
{
    return (struct extent){ordinal, EXTENT_CACHED, 0, stored_len, raw_len, crc, codec, true};
}
/* Extents of n ordinals, any order. ENOTFOUND names the ordinal. Reads missing record-table pages in one batch. */
int store_locate(struct store *s, const uint64_t *ordinals, size_t n, struct extent *out, struct larder_error *err);

/* Working memory for decoding: one a thread. */
struct decoder;
int decoder_new(struct decoder **d, struct larder_error *err);
void decoder_free(struct decoder *d);
/* Bytes of scratch that store_decode needs for e beyond the stored bytes themselves: 0 when nothing is compressed. */
static inline size_t store_decode_scratch(const struct extent *e) { return e->codec == 0 ? 0 : e->raw_len; }
/* Checks the CRC of e's stored bytes and fills values[schema.n] with views into stored or scratch. ECORRUPT names shard, slot
 * and offset. */
int store_decode(struct store *s, struct decoder *d, const struct extent *e, const void *stored, void *scratch,
                 struct larder_value *values, struct larder_error *err);
/* The same for the first of n records as long as they are checked and not compressed: returns how many it did, values[n][schema.n].
 * Stops before a record that store_decode has to see, damaged ones too. */
size_t store_decode_views(const struct store *s, const struct extent *e, const void *const *stored, size_t n,
                          struct larder_value *values);
/* Byte range (relative to the record) that holds a record's head: enough to place its fields; 0: read all of it. */
uint32_t store_head_len(const struct store *s, const struct extent *e);
/* From a record's head: the ranges (relative to the record) that the wanted fields need. ranges[n_fields]. A field in the
 * compressed part needs all of that part. */
struct field_range { uint32_t offset, len; };
int store_field_ranges(struct store *s, const struct extent *e, const void *head, const uint32_t *fields, size_t n_fields,
                       struct field_range *ranges, struct larder_error *err);
/* Values of the wanted fields from their ranges' bytes (parts[i] for fields[i]); checks each field's own CRC. */
int store_decode_fields(struct store *s, struct decoder *d, const struct extent *e, const void *head, const uint32_t *fields,
                        size_t n_fields, const void *const *parts, void *scratch, struct larder_value *values,
                        struct larder_error *err);

int store_key(struct store *s, uint64_t ordinal, void *key, size_t cap, size_t *len, struct larder_error *err);
int store_column(struct store *s, uint32_t field, uint64_t first, uint64_t count, void *values, struct larder_error *err);
/* Batched; LARDER_NO_ORDINAL where absent. Opens the index at first use. */
int store_lookup(struct store *s, const void *const *keys, const size_t *lens, size_t n, uint64_t *ordinals,
                 struct larder_error *err);

/* ---- one shard by itself (shard_read.c): for verify, repair, index building ---- */

struct shard_info { /* from header, trailer and meta */
    uint8_t uuid[16], family[16], session[8];
    uint64_t generation, created_s;
    uint32_t revision;
    struct shard_ref ref;
};
/* Reads and checks header, trailer and directory of shards/<name>. Needs no manifest. meta (may be NULL) gets schema etc. */
int shard_inspect(struct store_io *io, const char *name, struct shard_info *info, struct manifest *meta, struct larder_error *err);
void shard_info_release(struct shard_info *info);

/* Streams a shard in slot order with large reads and bounded memory. */
struct shard_scan;
enum { SCAN_KEYS = 1, SCAN_RECORDS = 2 }; /* what is wanted; the extent goes with the records */
int shard_scan_open(struct store_io *io, const struct shard_ref *ref, int what, struct shard_scan **scan, struct larder_error *err);
struct scan_item { uint32_t slot; const void *key; size_t key_len; const void *stored; struct extent extent; };
/* LARDER_OK, LARDER_END, or ECORRUPT (item->slot says where; the scan can go on with the next slot unless the footer itself
 * is damaged, when every call fails; then item->slot is UINT32_MAX). Borrowed until the next call. */
int shard_scan_next(struct shard_scan *scan, struct scan_item *item, struct larder_error *err);
void shard_scan_close(struct shard_scan *scan);

/* ---- key index (index.c, sole user of RocksDB) ---- */

/* Builds index part `dir` (below index/, not there yet) from sorted keys. next() gives keys in strictly ascending order
 * (LARDER_END after the last). Files are durable on return. Root: local directory of the dataset, or where its files are made. */
typedef int index_next_fn(void *user, const void **key, size_t *key_len, uint64_t *ordinal, struct larder_error *err);
int index_build(const char *root, const char *dir, index_next_fn *next, void *user, struct index_part *part,
                struct larder_error *err);
struct index;
/* Opens all parts for reading; CURRENT and MANIFEST are checked against part CRCs before RocksDB sees them, each SST before it is
 * first read. Of a bucket, the SSTs that cover the keys asked for are copied to io's work_root, within io->work_bytes; io outlives the
 * index then. cache_bytes: block cache for all parts together. */
int index_open(struct store_io *io, const struct index_part *parts, size_t n_parts, size_t cache_bytes, struct index **ix,
               struct larder_error *err);
void index_close(struct index *ix);
int index_lookup(struct index *ix, const void *const *keys, const size_t *lens, size_t n, uint64_t *ordinals,
                 struct larder_error *err); /* thread-safe */
/* All keys of one part in order: for merging. Same contract as index_next_fn. */
struct index_cursor;
int index_cursor_open(struct store_io *io, const struct index_part *part, struct index_cursor **c, struct larder_error *err);
int index_cursor_next(struct index_cursor *c, const void **key, size_t *key_len, uint64_t *ordinal, struct larder_error *err);
void index_cursor_close(struct index_cursor *c);
/* Whole-file check of one file of a part against its size and CRC. */
int index_file_check(struct store_io *io, const struct index_part *part, const struct index_file *f, struct larder_error *err);

/* ---- a new generation (generation.c): what ingest, writer and repair share ---- */

/* How duplicates found while indexing are treated. */
struct index_policy {
    bool drop_duplicates;   /* keep the first; else EEXIST naming the key */
    larder_notice_fn *notice; void *user;
};
/* Indexes shards [first_new, n_shards) of m (keys read from their footers), merging small older parts into the new one so that
 * the number of parts stays logarithmic, and sets m->parts. With drop_duplicates, shards that hold duplicates are rewritten
 * without them (m->shards is updated) first; the old files stay, for whoever calls to remove once the generation is committed.
 * run: names the new files. On failure m is as before. */
int generation_index(struct store_io *io, struct manifest *m, size_t first_new, uint64_t run, const struct index_policy *policy,
                     uint64_t *dropped, struct larder_error *err);

/* ---- keeping (verify.c, repair.c, gc.c, copy.c): implement larder_*_run over an io ---- */

int store_verify(struct store_io *io, const struct larder_verify_options *o, struct larder_verify_report *r, struct larder_error *err);
int store_repair(struct store_io *io, const struct larder_repair_options *o, struct larder_repair_report *r, struct larder_error *err);
int store_gc(struct store_io *io, const struct larder_gc_options *o, struct larder_gc_report *r, struct larder_error *err);
int store_copy(struct store_io *src, struct store_io *dst, const struct larder_copy_options *o, struct larder_copy_report *r,
               struct larder_error *err);

/* ---- the writer's lock and journal marker (session.c) ---- */

/* One writer at a time on a dataset: an exclusive flock on ROOT/journal (created), whose content belongs to the holder. ROOT is the
 * dataset's folder, or of a bucket its folder on this machine: there, writers of other machines are met at the commit.
 * EBUSY names the holder's pid. *fresh: the journal was empty. */
struct session { int fd; char *root; };
/* EEXIST: here is neither a dataset nor room for one: other things lie in the folder, or below the prefix as far as its first names
 * tell. */
int place_check(struct store_io *io, struct larder_error *err);
int session_lock(struct store_io *io, struct session *s, bool *fresh, struct larder_error *err);
void session_unlock(struct session *s, bool remove_journal);
int journal_text(const struct session *s, struct buf *text, struct larder_error *err); /* what is in the journal, appended */

#endif
