/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_int.h - inside store/: the bytes of FORMAT.md as pure encode/decode functions, the page cache, the reader's struct.
 */
#ifndef LARDER_STORE_INT_H
#define LARDER_STORE_INT_H

#include <pthread.h>

#include "store/store.h"

#define FORMAT_MAJOR 1
#define FORMAT_MINOR 0
#define HEADER_MAGIC "LARDSHD1"
#define TRAILER_MAGIC "LARDTRL1"
#define PAGE_HEAD 16u
#define TRAILER_PAGE UINT32_MAX   /* number of the trailer page in the page cache */
#define SECTIONS_MAX 240u         /* directory entries in a trailer */
#define SCALARS_MAX 100u          /* scalar fields in a schema: a column and a bitmap each */
#define FIELD_ABSENT UINT32_MAX
#define FIELD_CRC_BYTES 65536u    /* records of this stored length or more carry a CRC a field */

enum record_codec { CODEC_NONE = 0, CODEC_ZSTD = 1, CODEC_ZSTD_DICT = 2 }; /* 0 is known to store.h, too */
enum record_flags { RECORD_FIELD_CRCS = 1 };

/* ---- format.c: pure ---- */

enum section_kind {
    SECTION_TABLE = 1,    /* record table: STORE_ENTRY bytes a slot */
    SECTION_KEY_ENDS = 2, /* u32 a slot: end of its key in SECTION_KEYS */
    SECTION_KEYS = 3,
    SECTION_COLUMN = 4,   /* values of scalar field `field` */
    SECTION_PRESENT = 5,  /* one bit a slot: the field is there; only written when some are absent */
    SECTION_META = 6,     /* JSON: schema, classes, compression */
    SECTION_DICT = 7
};

struct shard_header {
    uint32_t tag, revision, sub;
    uint8_t uuid[16], family[16], session[8];
    uint64_t generation, unit, created_s;
};
struct section { uint16_t kind, field; uint32_t first_page; uint64_t len; };
struct trailer {
    uint32_t tag, pages, samples, pages_crc, header_crc, n_sections;
    uint64_t footer_off, file_size, stored_bytes, raw_bytes, dict_id;
    struct section sections[SECTIONS_MAX];
};

void header_encode(const struct shard_header *h, uint8_t page[STORE_PAGE]);
int header_decode(const uint8_t page[STORE_PAGE], const char *what, struct shard_header *h, struct larder_error *err);
/* Frames a page whose payload lies at page + PAGE_HEAD already. */
void page_seal(uint8_t page[STORE_PAGE], uint32_t tag, uint32_t number, uint16_t kind, uint16_t field, uint16_t used);
int page_check(const uint8_t page[STORE_PAGE], uint32_t tag, uint32_t number, const char *what, struct larder_error *err);
void trailer_encode(const struct trailer *t, uint8_t page[STORE_PAGE]);
int trailer_decode(const uint8_t page[STORE_PAGE], const char *what, struct trailer *t, struct larder_error *err);
const struct section *trailer_find(const struct trailer *t, int kind, uint32_t field);
static inline uint32_t page_crc_of(const uint8_t page[STORE_PAGE]) { return get_u32(page); }
static inline uint32_t trailer_crc_of(const uint8_t page[STORE_PAGE]) { return get_u32(page + STORE_PAGE - 4); }

void entry_encode(const struct extent *e, uint8_t out[STORE_ENTRY]);
/* Checks e against the shard's bounds: the record lies between header and footer. */
int entry_decode(const uint8_t in[STORE_ENTRY], uint64_t footer_off, struct extent *e);

/* ---- manifest.c ---- */

/* The family of m, or its lineage where none is set yet. */
const uint8_t *manifest_family(const struct manifest *m);
/* A JSON object whose last member "crc32c" covers every byte before that member's comma, and a newline. */
int sealed_json_dump(const struct json *o, struct buf *out, struct larder_error *err);
int sealed_json_parse(const void *text, size_t len, const char *what, struct json **o, struct larder_error *err);
bool name_ok(const char *name); /* a file name of ours: no '/', no control bytes, no leading dot */

/* ---- key_cache.c ---- */

struct key_cache;
int key_cache_new(size_t bytes, struct key_cache **c, struct larder_error *err);
void key_cache_free(struct key_cache *c);
/* Ordinals of the keys it remembers, LARDER_NO_ORDINAL for the others; returns how many those are. */
size_t key_cache_get(const struct key_cache *c, const void *const *keys, const size_t *lens, size_t n, uint64_t *ordinals);
void key_cache_put(struct key_cache *c, const void *key, size_t len, uint64_t ordinal);

/* ---- index_copies.c: index files of a bucket on this machine ---- */

struct index_copies;
int index_copies_open(struct store_io *io, struct index_copies **ic, struct larder_error *err); /* io is borrowed */
void index_copies_close(struct index_copies *ic); /* NULL allowed; what was taken goes */
const char *index_copies_own(const struct index_copies *ic); /* a folder of this user alone, which vanishes with it */
/* Puts a checked copy of index/<part>/<f->name> at `to`, a path below the own folder: a link to one that is here, else fetched. EBUSY:
 * no room, all copies are in use; with force the limit is exceeded then. */
int index_copies_take(struct index_copies *ic, const char *part, const struct index_file *f, const char *to, bool force,
                      struct larder_error *err);
/* Reads an object of that size and CRC through, as often as the io has it; fd -1, or a file that gets it. ECORRUPT: missing too. */
int index_object_stream(struct store_io *io, const char *name, uint64_t size, uint32_t crc, int fd, struct larder_error *err);

/* ---- commit.c ---- */

void manifest_path(uint64_t generation, char out[64]); /* "manifests/<generation>.json" */
int hint_write(struct store_io *io, uint64_t generation, struct larder_error *err);
/* ECORRUPT, ENOTFOUND: there is no hint to go by. */
int hint_read(struct store_io *io, uint64_t *generation, struct larder_error *err);
/* generation_load that also gives the manifest's bytes; text begins empty. */
int generation_load_text(struct store_io *io, uint64_t generation, struct manifest *m, struct buf *text, struct larder_error *err);
/* Creates manifests/<generation>.json of these bytes. EBUSY: another's is there; its own bytes are success where an answer may get lost. */
int manifest_create(struct store_io *io, uint64_t generation, const struct buf *text, struct larder_error *err);

/* ---- session.c ---- */

#define RUN_DIGITS 16u /* a run id in hexadecimal, with which the names of a session's files begin */
/* Whether it names the run that a file of this name belongs to. */
bool journal_claims(const struct buf *text, const char *name);

/* ---- record.c: pure ---- */

/* A record ready to be written: `front` holds the head and, where it was compressed, the packed part. Then follow, where the
 * caller has them, the packed values (packed_apart) and the media values, each in schema order. */
struct record_parts { uint32_t stored_len, raw_len, crc; uint8_t codec; bool packed_apart; };
/* front is overwritten. comp NULL: no compression. tmp: scratch, kept between calls. */
int record_encode(const struct schema *schema, const struct larder_value *values, struct zcomp *comp, uint8_t codec,
                  struct buf *front, struct buf *tmp, struct record_parts *parts, struct larder_error *err);
/* Lengths and places from a record's head. */
struct record_layout { uint32_t head_len, packed_len, packed_raw; bool field_crcs; };
/* head: at least MIN(len, full head) bytes. lens[i] is FIELD_ABSENT or a length; ends checked against stored_len/raw_len. */
int record_layout_decode(const struct schema *schema, const struct extent *e, const uint8_t *head, size_t head_len,
                         struct record_layout *l, struct larder_error *err);
uint32_t record_field_len(const uint8_t *head, uint32_t field);
int record_decode(const struct schema *schema, const struct extent *e, const uint8_t *stored, struct zdecomp *d,
                  const struct zdict *dict, void *scratch, struct larder_value *values, struct larder_error *err);
/* Views of the fields of n records, as far as they are checked, not compressed, and their heads add up (record_decode explains where
 * one does not): how many. */
size_t record_views(const struct schema *schema, const struct extent *e, const void *const *stored, size_t n,
                    struct larder_value *values);
uint32_t record_head_max(const struct schema *schema); /* with field CRCs */

/* ---- pages.c: footer pages under a byte budget, shared by threads ---- */

struct pages;
int pages_new(size_t bytes, struct pages **p, struct larder_error *err);
void pages_free(struct pages *p);
/* Copies len bytes at off within the page's 4096 when it is cached. */
/* A lookup of that page follows: fetch its set, then, when all sets were announced, its bytes. */
void pages_announce(struct pages *p, uint32_t shard, uint32_t page);
void pages_announce_at(struct pages *p, uint32_t shard, uint32_t page, size_t off);
bool pages_get(struct pages *p, uint32_t shard, uint32_t page, size_t off, void *out, size_t len);
void pages_put(struct pages *p, uint32_t shard, uint32_t page, const uint8_t data[STORE_PAGE]);

/* ---- shard_read.c: one shard's footer ---- */

struct footer { /* a shard being read: where its pages are */
    struct store_io *io;
    const char *name;      /* below shards/ */
    const struct shard_ref *ref;
    struct pages *cache;   /* NULL: none */
    uint32_t shard_no;
};
int footer_trailer(const struct footer *f, struct trailer *t, struct larder_error *err);
#define FOOTERS_MAX 64u
/* Brings the trailers of n <= FOOTERS_MAX shards of one cache into it with one read. */
int footer_trailers(const struct footer *f, size_t n, struct larder_error *err);
/* Footer pages [first, first + n) of a shard, of which the first `need` have to be whole. */
struct footer_pages { const struct footer *f; uint32_t first, need, n; };
/* n <= FOOTERS_MAX runs with one read into data, back to back; what is whole goes into the shards' caches too. */
int footer_fetch(const struct footer_pages *p, size_t n, uint8_t *data, struct larder_error *err);
uint32_t section_pages(const struct section *s);
/* Bytes [off, off + len) of a section. */
int footer_read(const struct footer *f, const struct section *s, uint64_t off, void *out, size_t len, struct larder_error *err);
int footer_section(const struct footer *f, int kind, struct buf *out, struct larder_error *err); /* whole, appended */
void shard_path(const char *name, char out[320]);

/* Finds a shard's directory from its pages alone, when the trailer is damaged: every page must be whole. footer_off 0: look for
 * the first page from the end. */
int trailer_rebuild(struct store_io *io, const char *path, uint64_t size, uint64_t footer_off, struct trailer *t,
                    struct larder_error *err);

/* ---- verify.c ---- */

/* What the store itself lacks or holds wrong; other errors are the machine's, and no reason to drop anything. */
static inline bool is_damage(int rc) { return rc == LARDER_ECORRUPT || rc == LARDER_ENOTFOUND; }

/* Order does not matter to it: two sets of (key, ordinal) with the same sum are the same. */
struct key_sum { _Atomic uint64_t n, lo, hi; };

/* Threads that read shards through, where nobody says how many: those of a bucket mostly wait. */
static inline unsigned io_workers(struct store_io *io) { return io_is_local(io) ? cpu_count() : MAX(cpu_count(), 8u); }

/* What a check of one shard tells. Lookups of keys go to ix when it is not NULL. */
struct shard_check {
    struct store_io *io;
    struct store *store;        /* decodes records; NULL: CRCs and layout of the footer only */
    struct index *ix;
    struct key_sum *sum;        /* of all keys that pass; NULL: none */
    const struct shard_ref *ref;
    uint64_t shard_no;
    larder_damage_fn *damage;   /* called by the checking thread */
    void *user;
    const atomic_bool *stop;
    uint64_t bytes, samples, damaged; /* out */
};
/* Reads every byte of the shard. Damage is counted and told, and is no error; an error is I/O or memory. */
int shard_check_run(struct shard_check *c, struct larder_error *err);

/* ---- store.c ---- */

struct dict_node { uint64_t id; struct zdict *dict; struct dict_node *next; };
struct store {
    struct store_io *io;       /* borrowed */
    struct manifest m;
    struct pages *pages;
    size_t index_bytes;        /* for RocksDB's blocks */
    struct key_cache *key_cache;
    pthread_mutex_t lock;      /* guards opening the index and adding dictionaries */
    struct index *_Atomic index;
    struct dict_node *_Atomic dicts; /* append-only; read without the lock */
};

#endif
