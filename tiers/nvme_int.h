/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_int.h - the files of the NVMe tier among themselves, and its tests: the formats on disk (nvme_format.c), the live map
 * (nvme_map.c), the directory (nvme_dir.c), writing behind (nvme_write.c), opening and reading (nvme.c).
 *
 *     DIR/lock          flock: one sharing group at a time; holds its pid as text
 *     DIR/checkpoint    when each dataset was last used, and the next sequence number; replaced by rename
 *     DIR/seg-000000    segments, all of one size, preallocated as they are needed
 *
 *     segment:  | header 4096 | records, 64-byte units ... | footer: the map of this segment | free | trailer 4096 |
 *
 * A segment belongs to one space. Its sequence number is drawn anew whenever it is begun, and every record in it repeats that
 * number: what an earlier life of the segment left behind is never taken for a record of this one.
 */
#ifndef LARDER_TIERS_NVME_INT_H
#define LARDER_TIERS_NVME_INT_H

#include "tiers/cache_int.h"

#define NVME_UNIT 64u             /* records begin at multiples of it */
#define NVME_PAGE 4096u           /* O_DIRECT's */
#define NVME_SEGMENT_MIN MIB      /* powers of two */
#define NVME_SEGMENT_MAX (64 * GIB)
#define NVME_SEGMENTS_WANTED 128u /* of a budget: 64 to 128 segments of it, while they are no smaller than NVME_SEGMENT_MIN */
#define NVME_SEGMENTS_MAX 1024u
#define NVME_SPACES_MAX 1023u     /* ids 1.. */
#define NVME_BYTES_MIN (4 * MIB)

/* ---- formats (nvme_format.c): pure; all integers little-endian; NVME.md has the tables ---- */

struct nvme_head { uint64_t seq, segment_bytes, created_s; struct cache_space space; };
void nvme_head_encode(const struct nvme_head *h, uint8_t page[NVME_PAGE]);
bool nvme_head_decode(const uint8_t page[NVME_PAGE], struct nvme_head *h);

struct nvme_record { uint64_t seq, space_hash, ordinal; uint32_t stored_len, raw_len, crc; uint8_t codec; };
uint64_t nvme_space_hash(const struct cache_space *s);
void nvme_record_encode(const struct nvme_record *r, uint8_t head[NVME_UNIT]);
bool nvme_record_decode(const uint8_t head[NVME_UNIT], struct nvme_record *r);
static inline uint64_t nvme_units(uint64_t stored_len) { return (NVME_UNIT + stored_len + NVME_UNIT - 1) / NVME_UNIT; }

/* One record of a segment, as its footer has it. */
struct nvme_entry { uint64_t ordinal; uint32_t unit, units; };
#define NVME_ENTRY_BYTES 16u
struct nvme_trailer { uint64_t seq, footer; uint32_t n, footer_crc; bool sealed; };
void nvme_trailer_encode(const struct nvme_trailer *t, uint8_t page[NVME_PAGE]);
/* Also: does the footer lie within the segment? */
bool nvme_trailer_decode(const uint8_t page[NVME_PAGE], uint64_t segment_bytes, struct nvme_trailer *t);
void nvme_entry_encode(const struct nvme_entry *e, uint8_t out[NVME_ENTRY_BYTES]);
/* False unless the record lies in [NVME_PAGE, end). */
bool nvme_entry_decode(const uint8_t in[NVME_ENTRY_BYTES], uint64_t end, struct nvme_entry *e);
static inline uint64_t nvme_footer_bytes(uint64_t n) { return round_up(n * NVME_ENTRY_BYTES, NVME_PAGE); }

struct nvme_used { struct cache_space space; uint64_t last_used_s; };
#define NVME_CHECKPOINT_MAX (64u + NVME_SPACES_MAX * 48u)
/* Bytes written to out, which holds NVME_CHECKPOINT_MAX. */
size_t nvme_checkpoint_encode(uint64_t next_seq, const struct nvme_used *used, size_t n, uint8_t *out);
/* used holds NVME_SPACES_MAX. */
bool nvme_checkpoint_decode(const uint8_t *p, size_t len, uint64_t *next_seq, struct nvme_used *used, size_t *n);

/* Where a record of `units` goes when the segment is filled up to `at`: there, or at the next page when that spares a page of
 * reading and costs little. */
uint64_t nvme_record_at(uint64_t at, uint64_t units);

/* Finds the records of segment `seq` by their headers. read: n bytes at offset, false on failure. Calls found for each; *end is
 * where the last one ends. */
typedef bool nvme_read_fn(void *user, uint64_t offset, void *buf, size_t n);
typedef bool nvme_found_fn(void *user, const struct nvme_entry *e); /* false: stop */
void nvme_walk(const struct nvme_head *h, void *window /* NVME_WINDOW bytes, page-aligned */, nvme_read_fn *read, nvme_found_fn *found,
               void *user, uint64_t *end);
#define NVME_WINDOW (256 * KIB)

/* ---- the live map (nvme_map.c): one writer at a time, any number of readers without a lock ---- */

/* A slot is two words, and 0 where it was never used:
 *     | live 1 | pending 1 | generation 10 | space 10 | unused 2 | ordinal 40 |
 *     | segment 12 | unit 30 | units 22 |
 * An entry whose generation is not its segment's counts as gone. */
struct nvme_map {
    uint8_t *base;             /* tables lie at offsets in it: no pointers, so that it may lie in shared memory */
    size_t reserved;
    unsigned level_max;
    _Atomic uint32_t table;    /* level * 2 + side: the one in use */
    uint32_t previous;         /* readers may still be in it; UINT32_MAX: none */
    uint64_t filled;           /* slots of the table that are not 0 */
    const _Atomic uint64_t *seq; /* of each segment */
};
struct nvme_hint { uint32_t segment, generation, unit, units; bool pending; };
#define NVME_UNITS_MAX ((1u << 22) - 1)
/* bytes: of the directory. The map grows with its entries, up to one for each 512 bytes. */
int nvme_map_init(struct nvme_map *m, uint64_t bytes, const _Atomic uint64_t *seq, struct larder_error *err);
void nvme_map_release(struct nvme_map *m);
bool nvme_map_find(const struct nvme_map *m, uint32_t space, uint64_t ordinal, struct nvme_hint *h);
/* Adds or replaces. False: full. */
bool nvme_map_put(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit, uint32_t units, bool pending);
/* Drop it, or end its being pending, if it still lies at that place. False: it does not. */
bool nvme_map_drop(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit);
bool nvme_map_publish(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit);
uint64_t nvme_map_bytes(const struct nvme_map *m); /* of the table in use */

/* ---- the tier ---- */

#define NVME_CHUNK MIB
struct nvme_chunk {
    uint8_t *data;           /* NVME_CHUNK bytes, page-aligned */
    uint32_t segment;
    uint64_t seq, offset;    /* in the segment, page-aligned */
    uint32_t len;
    struct nvme_chunk *next; /* in the queue, or in the free list */
};

/*   FREE --begin--> ACTIVE --full--> SEALING --footer written--> SEALED --recycled, or nothing live in it--> FREE
 *   REFUSED: the disk had no room for it; not tried again until the next open. */
enum nvme_state { NVME_FREE, NVME_ACTIVE, NVME_SEALING, NVME_SEALED, NVME_REFUSED };
struct nvme_segment {
    enum nvme_state state;
    uint32_t space, life;      /* life: how often it was begun; the low bits of its sequence number */
    int fd;                    /* -1: no file yet. Set before the first record of it is published, closed with the tier */
    uint64_t blocks;           /* bytes on disk */
    uint64_t created_s;
    uint64_t end;              /* where the next record goes, at the earliest */
    uint64_t live;             /* entries of the map that lie in it */
    struct nvme_entry *entries; /* until sealed: for the footer; [published, n) are pending in the map */
    size_t n, cap, published;
    struct nvme_chunk *chunk;  /* being filled, or NULL: then end is page-aligned */
    unsigned queued;           /* chunks in the queue or being written */
};

struct nvme_space {
    struct cache_space key;
    uint64_t hash, last_used_s;
    uint32_t active;           /* segment + 1; 0: none */
    bool taken, live;          /* live: registered since open */
    atomic_bool closed;        /* a record was refused for want of room; read without the lock */
};

struct nvme {
    char *dir;
    int dir_fd;
    pid_t pid;
    uint64_t budget, segment_bytes;
    enum replacement replacement;
    unsigned n_segments;              /* what the budget allows */
    _Atomic bool direct, failed, broken; /* failed: no more writing; broken: no more reading */
    _Atomic unsigned read_errors;     /* in a row */
    _Atomic uint64_t seq[NVME_SEGMENTS_MAX];
    struct nvme_map map;              /* written under lock */
    struct nvme_lock *flock;

    pthread_mutex_t lock;             /* guards what follows */
    pthread_cond_t work, written;     /* for the writer; for who waits in nvme_flush or nvme_close */
    bool closing, started, flush_due, seal_due, checkpoint_due;
    unsigned writing;                 /* chunks queued or being written */
    uint64_t flushed_ns, checkpoint_ns; /* when it was last done */
    uint64_t next_seq, other_blocks;  /* other_blocks: bytes on disk in the directory that are no segment */
    struct nvme_segment segments[NVME_SEGMENTS_MAX];
    struct nvme_space spaces[NVME_SPACES_MAX + 1];
    struct nvme_chunk *chunks, *free_chunks, *queue, **queue_tail;
    unsigned n_chunks, n_free;
    uint8_t *buffer;                  /* n_chunks * NVME_CHUNK */
    uint64_t entries, admissions, refusals, evictions, healed, recovered;
    char warning[200];
    pthread_t writer;
};

void nvme_warn(struct nvme *n, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* the first one stays; lock is held */

/* nvme_dir.c: names and files of a directory */
struct nvme_lock;
int nvme_lock_take(int dir_fd, const char *dir, struct nvme_lock **l, struct larder_error *err);
void nvme_lock_release(struct nvme_lock *l, bool forked);
void nvme_segment_name(unsigned segment, char name[16]);
int nvme_segment_number(const char *name); /* -1: no segment */
int nvme_segment_open(struct nvme *n, unsigned segment, bool create); /* a descriptor, or -errno */
bool nvme_pread(int fd, void *buf, size_t len, uint64_t offset);      /* all of it; errno */
/* -errno. Where the file system refuses direct I/O everything becomes buffered. */
int nvme_pwrite(struct nvme *n, int fd, const void *buf, size_t len, uint64_t offset);
int nvme_checkpoint_save(int dir_fd, const uint8_t *p, size_t len); /* -errno */
/* Bytes of a checkpoint read into p (NVME_CHECKPOINT_MAX), 0 when there is none that is whole. */
size_t nvme_checkpoint_load(int dir_fd, uint8_t *p);

/* nvme_write.c */
int nvme_writer_start(struct nvme *n, struct larder_error *err);
void nvme_writer_stop(struct nvme *n); /* writes what is queued, footers of active segments, and the checkpoint */
void nvme_writer_release(struct nvme *n);
/* These want the lock held. */
void nvme_segment_free(struct nvme *n, unsigned segment); /* its records are gone */
void nvme_entry_gone(struct nvme *n, unsigned segment);   /* one of its entries left the map */
bool nvme_entry_add(struct nvme *n, uint32_t space, uint32_t segment, const struct nvme_entry *e, bool pending);
void nvme_seal(struct nvme *n, unsigned segment);

#endif
