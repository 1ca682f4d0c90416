/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_int.h - the files of the NVMe tier among themselves, and its tests: the formats on disk (nvme_format.c), the live map
 * (nvme_map.c), what the processes of a group share (nvme_table.c), the directory (nvme_dir.c), admission (nvme_admit.c),
 * writing behind (nvme_write.c, nvme_file.c), recovery (nvme_recover.c), opening and reading (nvme.c).
 *
 *     DIR/lock          flock: one sharing group at a time; holds its pids as text
 *     DIR/checkpoint    when each dataset was last used, and the next sequence number; replaced by rename
 *     DIR/seg-000000    segments, all of one size or multiples of it, preallocated as they are needed
 *
 *     segment:  | header 4096 | records, 64-byte units ... | footer: the map of this segment | free | trailer 4096 |
 *
 * A segment belongs to one space, and is filled by one process at a time. Its sequence number is drawn anew whenever it is begun,
 * and every record in it repeats that number: what an earlier life of the segment left behind is never taken for a record of
 * this one.
 */
#ifndef LARDER_TIERS_NVME_INT_H
#define LARDER_TIERS_NVME_INT_H

#include <pthread.h>

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

/* span: a segment for a longer record takes that many times segment_bytes, and as many places among the segments. */
struct nvme_head { uint64_t seq, segment_bytes, created_s; uint32_t span; struct cache_space space; };
static inline uint64_t nvme_head_bytes(const struct nvme_head *h) { return h->segment_bytes * h->span; }
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
struct nvme_map_state {        /* in shared memory */
    _Atomic uint32_t table;    /* level * 2 + side: the one in use */
    uint32_t previous;         /* + 1: readers may still be in it; 0: none */
    uint64_t filled;           /* slots of the table that are not 0 */
};
struct nvme_map {              /* of this process */
    const struct share *share; /* NULL: base is private memory */
    uint8_t *base;             /* tables lie at offsets in it */
    unsigned level_max;
    struct nvme_map_state *state;
    const _Atomic uint64_t *seq; /* of each segment */
};
struct nvme_hint { uint32_t segment, generation, unit, units; bool pending; };
#define NVME_UNITS_MAX ((1u << 22) - 1)
/* The map grows with its entries, up to one for each 512 bytes of the directory: the levels that takes, and their addresses. */
unsigned nvme_map_levels(uint64_t dir_bytes);
uint64_t nvme_map_bytes_at(unsigned level_max);
bool nvme_map_find(const struct nvme_map *m, uint32_t space, uint64_t ordinal, struct nvme_hint *h);
/* Adds or replaces. False: full. */
bool nvme_map_put(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit, uint32_t units, bool pending);
/* Drop it, or end its being pending, if it still lies at that place. False: it does not. */
bool nvme_map_drop(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit);
bool nvme_map_publish(struct nvme_map *m, uint32_t space, uint64_t ordinal, uint32_t segment, uint32_t unit);
void nvme_map_clear(struct nvme_map *m);
/* After a writer died at it: what it left half done goes, and the entries of each segment are counted anew. Returns how many. */
uint64_t nvme_map_repair(struct nvme_map *m, uint64_t live[NVME_SEGMENTS_MAX]);
uint64_t nvme_map_bytes(const struct nvme_map *m); /* of the table in use */

/* ---- in shared memory (nvme_table.c): written under nvme_shared.lock unless it is atomic ---- */

/*   FREE --begin--> ACTIVE --footer due--> SEALING --footer written--> SEALED --recycled, or nothing live in it--> FREE
 *                    |  ^                     |
 *                    v  |                     |        OPEN: nobody fills it; its owner had nothing more for it, closed, or died
 *                    OPEN <---owner died------+
 *   LENT: its place is taken by the longer segment `lender`, or by what that left of a file.
 *   REFUSED: the disk had no room for it; not tried again until the next open. */
enum nvme_state { NVME_FREE, NVME_ACTIVE, NVME_SEALING, NVME_SEALED, NVME_OPEN, NVME_LENT, NVME_REFUSED };
struct nvme_segment {
    uint32_t state, space;
    _Atomic uint32_t owner;    /* member that fills it or writes its footer; 0: nobody */
    uint32_t life;             /* how often it was begun; the low bits of its sequence number */
    uint32_t span, lender;
    uint32_t file_span;        /* its file takes that many times segment_bytes at most; 0: no file, or an empty one */
    bool made, had_file;       /* made: it has all its length. had_file: somebody may have it open */
    uint32_t n, published;     /* entries, for the footer; [published, n) are pending in the map */
    uint64_t blocks;           /* bytes on disk */
    uint64_t created_s;
    uint64_t live;             /* entries of the map that lie in it */
};

struct nvme_space {
    struct cache_space key;
    uint64_t hash, last_used_s;
    uint64_t users[SHARE_PROCESSES_MAX / 64]; /* a bit for each member's slot */
    _Atomic uint64_t opened;   /* segments of it that became OPEN */
    bool taken;
};

struct nvme_shared {
    uint64_t magic, budget;    /* const from init */
    uint32_t replacement, level_max;
    uint64_t off_entries, off_map;
    pthread_mutex_t lock;      /* robust: who finds its owner dead repairs what follows; [nvme_table.c] */
    bool ready;                /* recovered; then const: */
    uint32_t n_segments, entries_max; /* what the budget allows; entries of one segment */
    uint64_t segment_bytes;

    uint64_t next_seq, other_blocks;  /* other_blocks: bytes on disk in the directory that are no segment */
    _Atomic uint64_t checkpoint_ns;
    _Atomic uint32_t opener;   /* member that is recovering the directory; 0: nobody */
    uint32_t checkpointer;     /* member that writes one; 0: nobody */
    struct nvme_map_state map;
    struct { uint32_t member, handles; } members[SHARE_PROCESSES_MAX];
    _Atomic uint64_t freed;    /* segments freed */
    _Atomic uint32_t bell, waiters; /* rung when pending entries are published, or go */
    _Atomic uint64_t entries, admissions, refusals, evictions, healed, recovered;
    _Atomic uint64_t seq[NVME_SEGMENTS_MAX]; /* 0: nothing in it */
    struct nvme_segment segments[NVME_SEGMENTS_MAX];
    struct nvme_space spaces[NVME_SPACES_MAX + 1];
    /* then the entries of the segments, then the map */
};

/* ---- of this process ---- */

#define NVME_CHUNK MIB
struct nvme_chunk {
    uint8_t *data;           /* NVME_CHUNK bytes, page-aligned */
    uint32_t segment;
    uint64_t seq, offset;    /* in the segment, page-aligned */
    uint32_t len;
    struct nvme_chunk *next; /* in the queue, or in the free list */
};

struct nvme_own {            /* what this process has of a segment; guarded by nvme.lock */
    _Atomic int fd;          /* -1: not open. Set once, closed with the tier */
    uint64_t no_fd;          /* the life of the segment in which it could not be opened */
    bool mine;               /* filled by this handle: */
    uint64_t seq, end;       /* end: where the next record goes, at the earliest */
    struct nvme_chunk *chunk; /* being filled, or NULL: then end is page-aligned */
    unsigned queued;         /* chunks in the queue or being written */
};

struct nvme {
    char *dir;
    int dir_fd;
    pid_t pid;
    struct share *share;
    struct nvme_shared *h;
    struct nvme_map map;
    uint32_t member;
    bool registered;                  /* among h->members */
    _Atomic bool direct, failed, broken; /* failed: no more writing; broken: no more reading */
    _Atomic unsigned read_errors;     /* in a row */
    _Atomic uint64_t closed[NVME_SPACES_MAX + 1]; /* a record was refused for want of room: 1 + what was freed until then */

    pthread_mutex_t lock;             /* guards what follows; taken before h->lock */
    pthread_cond_t work, written, room; /* for the writer; for who waits in nvme_flush or nvme_close; in nvme_room_until */
    unsigned room_waits;
    bool closing, started, flush_due, seal_due, checkpoint_due, stuck; /* stuck: who holds h->lock does not go on */
    unsigned writing;                 /* chunks queued or being written */
    uint64_t flushed_ns;              /* when it was last done */
    uint64_t close_ms, close_by_ns;   /* closing writes what is queued so long, and drops the rest; when that is over */
    uint32_t active[NVME_SPACES_MAX + 1]; /* segment + 1 that this handle fills; 0: none */
    struct nvme_own own[NVME_SEGMENTS_MAX];
    struct nvme_chunk *chunks, *free_chunks, *queue, **queue_tail;
    struct nvme_chunk big;            /* for a record longer than the buffer; data NULL: unused */
    unsigned n_chunks, n_free;
    uint8_t *buffer;                  /* n_chunks * NVME_CHUNK */
    char warning[200];
    pthread_t writer;
};

void nvme_warn(struct nvme *n, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* the first one stays; lock is held */

/* nvme_dir.c: names and files of a directory */
/* A descriptor with the flock; EBUSY names a process that has it. The caller sees to it that no forked child keeps it. */
int nvme_lock_take(int dir_fd, const char *dir, int *fd, struct larder_error *err);
/* Writes the process into, or out of, the place of a member's slot. */
void nvme_lock_note(int fd, unsigned slot, bool here);
long nvme_lock_holder(int fd); /* a living process that is noted there; 0: none */
void nvme_segment_name(unsigned segment, char name[16]);
int nvme_segment_number(const char *name); /* -1: no segment */
int nvme_segment_open(struct nvme *n, unsigned segment, bool create); /* a descriptor, or -errno */
bool nvme_pread(int fd, void *buf, size_t len, uint64_t offset);      /* all of it; errno */
/* -errno. Where the file system refuses direct I/O everything becomes buffered. */
int nvme_pwrite(struct nvme *n, int fd, const void *buf, size_t len, uint64_t offset);
int nvme_checkpoint_save(int dir_fd, const uint8_t *p, size_t len); /* -errno */
/* Bytes of a checkpoint read into p (NVME_CHECKPOINT_MAX), 0 when there is none that is whole. */
size_t nvme_checkpoint_load(int dir_fd, uint8_t *p);

/* nvme_table.c */
uint64_t nvme_shared_bytes(uint64_t budget);
int nvme_shared_init(void *base, uint64_t budget, enum replacement r, struct larder_error *err);
bool nvme_shared_good(const struct nvme_shared *h, uint64_t bytes); /* laid out by this version */
/* False: who holds it does not go on (1 s once, then at once until it does). wait_ms: of a caller that can wait longer. */
bool nvme_table_lock(struct nvme *n);
bool nvme_table_lock_wait(struct nvme *n, unsigned wait_ms);
void nvme_table_unlock(struct nvme *n);
/* These want h->lock held. */
void nvme_table_reset(struct nvme *n); /* as init left it */
void nvme_register(struct nvme *n);    /* this handle is one of the users */
void nvme_leave(struct nvme *n);       /* it is no more */
bool nvme_alone(struct nvme *n);       /* nobody else alive is */
bool nvme_reap(struct nvme *n);        /* takes over what the dead have left; true: there was something */
uint32_t nvme_space_id(struct nvme *n, const struct cache_space *key); /* taken when it is new; 0: all are taken */
bool nvme_space_used(const struct nvme *n, uint32_t space);            /* by a member */
bool nvme_space_holds(const struct nvme *n, uint32_t space);           /* a segment */
struct nvme_entry *nvme_entries(const struct nvme *n, unsigned segment);
uint64_t nvme_bytes_of(const struct nvme *n, unsigned segment);        /* of its file */
void nvme_segment_free(struct nvme *n, unsigned segment);              /* its records are gone */
void nvme_segment_open_up(struct nvme *n, unsigned segment, bool tell); /* nobody fills it any more; tell: those who were refused */
void nvme_forget_pending(struct nvme *n, unsigned segment);
void nvme_entry_gone(struct nvme *n, unsigned segment);                /* one of its entries left the map */
bool nvme_entry_add(struct nvme *n, uint32_t space, uint32_t segment, const struct nvme_entry *e, bool pending);
/* Room for a segment of that span, found or made: it is FREE, and there are span - 1 other places. NVME_SEGMENTS_MAX: none. */
unsigned nvme_find_room(struct nvme *n, uint32_t span);
/* Begins it: ACTIVE, ours, nothing in it. */
void nvme_segment_begin(struct nvme *n, unsigned segment, uint32_t space, uint32_t span);
void nvme_give_places_back(struct nvme *n, unsigned segment, uint32_t keep); /* LENT to it, more than its file needs */
void nvme_ring(struct nvme *n); /* without the lock: pending entries were published, or went */

/* nvme_recover.c: what the directory holds, into a table that was just reset. h->lock is held. */
int nvme_recover(struct nvme *n, struct larder_error *err);

/* nvme_admit.c: under nvme.lock */
void nvme_chunk_free(struct nvme *n, struct nvme_chunk *c);
void nvme_segment_flush(struct nvme *n, unsigned segment); /* queues what its chunk has */
/* This handle fills it, from its end on, or is to seal it; and does so no more, and its chunk is dropped. Table's lock as well. */
void nvme_segment_adopt(struct nvme *n, unsigned segment, enum nvme_state state);
void nvme_segment_disown(struct nvme *n, unsigned segment);

/* nvme_file.c */
/* nvme_table_lock for the writer, which nobody waits for but at close. n->lock is given up in between. */
bool nvme_lock_patiently(struct nvme *n);
/* Makes the file of a segment that this handle has begun. 0, or -errno. Both locks are held, and given up in between; -ENOLCK: the
 * table's is lost. */
int nvme_make_file(struct nvme *n, unsigned segment);

/* nvme_write.c */
int nvme_writer_start(struct nvme *n, struct larder_error *err);
void nvme_writer_stop(struct nvme *n); /* writes what is queued; who is the last one leaves footers and the checkpoint */
void nvme_writer_release(struct nvme *n);

#endif
