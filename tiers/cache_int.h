/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_int.h - inside tiers/: the caches in front of the origin and what they share.
 *
 *     share.c   one region of memory for all processes of a user on the node that use the same cache name
 *     dram.c    records in that region: a table sized by the budget, slabs, claims for single flight
 *     nvme*.c   records in segments on a local disk; their map in a region of its own, shared likewise
 *     policy.c  pure: admission and replacement, as the simulator runs them
 *     stats.c   counters and latency histograms, and their text
 *     cache.c   the stack: lookup order, admission, single flight
 */
#ifndef LARDER_TIERS_CACHE_INT_H
#define LARDER_TIERS_CACHE_INT_H

#include "tiers/tiers_int.h"

/* ---- what is cached ---- */

/* Whose records: registered once in a cache, which then calls it by a small number. variant 0: the stored bytes. */
struct cache_space { uint8_t uuid[16], lineage[16]; uint64_t variant; };

/* A record as a tier keeps it. Its bytes were checked by their CRC before they came in. */
struct cached {
    const void *bytes;
    uint32_t stored_len, raw_len;
    uint32_t crc;
    uint8_t codec;
};

#define CACHE_ORDINAL_MAX ((1ull << 40) - 1) /* beyond it nothing is cached */

/* ---- share.c: memory of several processes ---- */

#define SHARE_PROCESSES_MAX 256u

struct share;
/* Called exactly once, by the process that makes the region, before any other can join. All bytes are zero. */
typedef int share_init_fn(void *base, uint64_t bytes, void *user, struct larder_error *err);
struct share_options {
    const char *name;      /* 1..64 letters, digits, '-', '_', '.': same user and name = same region. NULL: private */
    uint64_t bytes;        /* of the region if it has to be made; memory is used as it is touched */
    share_init_fn *init; void *user;
    int *carry;            /* NULL: nothing; else init leaves a descriptor there that the region keeps (moved): each member gets one of the
                            * same open file */
};
/* Joins the region of that name, or makes it; a private one when whoever holds it does not answer within 200 ms, or when it has
 * SHARE_PROCESSES_MAX members (share_warning says so). Memory goes back to the kernel with the last process, however it ends; nothing is left in any file system. */
int share_open(const struct share_options *o, struct share **s, struct larder_error *err);
void share_close(struct share *s);
void *share_base(const struct share *s);
uint64_t share_bytes(const struct share *s);       /* of the region that was joined: may differ from what was asked */
bool share_joined(const struct share *s);          /* it was there already */
bool share_private(const struct share *s);
const char *share_warning(const struct share *s);  /* NULL: none */
int share_carried(const struct share *s);          /* -1: none. Borrowed */
/* Zeroes whole pages of the region and gives their memory back. s NULL: private memory. */
void share_clear(const struct share *s, void *at, size_t len);
/* A member is a process that has the region open: slot in the low 8 bits, the slot's use count above. Never 0. */
uint32_t share_member(const struct share *s);
/* Is that member (still) alive? A slot used again by another process is another member. Costs a system call. */
bool share_alive(struct share *s, uint32_t member);
/* Is that member alive but stopped (SIGSTOP, a debugger)? False where it cannot be seen. Costs some system calls. */
bool share_stopped(struct share *s, uint32_t member);
/* Wait while *word == value, at most timeout_ms; wake all who wait on word. Works between processes (futex). */
void share_wait(_Atomic uint32_t *word, uint32_t value, unsigned timeout_ms);
void share_wake(_Atomic uint32_t *word);

/* ---- policy.c: pure ---- */

enum replacement { REPLACE_NONE = 0, REPLACE_FIFO = 1 };
/* A plan: may this ordinal be admitted on this node? NULL admits all, first come. */
typedef bool admit_fn(void *user, uint64_t ordinal);
enum policy_act { POLICY_ADMIT, POLICY_EVICT, POLICY_REFUSE, POLICY_CLOSE };
/* A record of `need` bytes asks in; `room` is free (contiguous), `whole` would be if the cache were empty. POLICY_EVICT: free room,
 * ask again. POLICY_CLOSE: refuse it and whatever comes later, until room is freed. */
enum policy_act policy_admit(enum replacement replacement, bool closed, uint64_t need, uint64_t room, uint64_t whole);

/* ---- dram.c: the arena ---- */

struct dram;
/* Bytes a region needs for a budget of `bytes`, which counts everything: records, table, header. The region is larger, but most of
 * it is never touched: map it without reserving memory (MAP_NORESERVE), at a multiple of 2 MiB if it is to have huge pages. */
uint64_t dram_region_bytes(uint64_t bytes);
/* Lays an arena out in a fresh region (share_init_fn's work), and opens one that is laid out. */
int dram_init(void *base, uint64_t bytes, enum replacement replacement, struct larder_error *err);
int dram_open(struct share *s, struct dram **d, struct larder_error *err);
void dram_close(struct dram *d);
void dram_no_pin(struct dram *d); /* right after opening: this handle locks nothing */
/* Right after opening: this handle registers the arena with CUDA, as larder_cache_options.cuda_device says. Its memory is then
 * handed out so that no record lies across the end of what is registered. */
void dram_cuda(struct dram *d, int device);
/* So many bytes of records will come: prepares memory for a part of them. False: there is nothing to prepare. Any thread that has time for
 * it; those that admit need not then. */
bool dram_prepare(struct dram *d, uint64_t bytes);
void dram_register(struct dram *d); /* also what is too little to be registered by itself: nothing more may come for long */
enum replacement dram_replacement(const struct dram *d); /* as who made the arena chose it */
/* The number of a space, registered at first use. ENOMEM: the registry is full. */
int dram_space(struct dram *d, const struct cache_space *space, uint32_t *id, struct larder_error *err);
/* Batched, lock-free, no system call; how many are there. views[i] is NULL for a miss, which leaves extents[i] alone. Views stay
 * valid while the region is open when nothing is replaced. FIFO: the bytes are copied to where copy() says and validated, so that
 * they stay; views[i] is NULL when copy is called, and left alone when it returns NULL. */
typedef void *dram_copy_fn(void *user, size_t i, size_t len);
size_t dram_lookup(struct dram *d, uint32_t space, const uint64_t *ordinals, size_t n, struct extent *extents, const void **views,
                   dram_copy_fn *copy, void *user);
/* Copies a record in. LARDER_OK: it is there now (also when it was already); LARDER_ENOMEM: no room, admission is closed.
 * *view (NULL allowed) gets the arena's copy; the record itself where that may be replaced, or on failure. */
int dram_admit(struct dram *d, uint32_t space, uint64_t ordinal, const struct cached *record, struct cached *view);
bool dram_closed(const struct dram *d); /* a record was refused and no room was freed since: further admissions are refused */
/* Single flight over all processes. CLAIM_MINE: fetch it, then dram_admit and dram_unclaim. CLAIM_THEIRS: somebody alive is
 * fetching it, or it has just come: dram_wait, then look again. CLAIM_NONE: cannot be claimed (table crowded): fetch it without. */
enum claim { CLAIM_MINE, CLAIM_THEIRS, CLAIM_NONE };
enum claim dram_claim(struct dram *d, uint32_t space, uint64_t ordinal);
void dram_unclaim(struct dram *d, uint32_t space, uint64_t ordinal);
/* Until the claim is gone, its owner is dead, stopped or late, timeout_ms have passed, or w (NULL: none) was woken. */
struct waker { atomic_bool woken; _Atomic(_Atomic uint32_t *) asleep_on; };
void dram_wait(struct dram *d, uint32_t space, uint64_t ordinal, unsigned timeout_ms, struct waker *w);
void dram_wake(struct waker *w); /* any thread: w's dram_wait returns, as each later one does at once */
/* Drops all records of a space and frees their room, unless another live member has it (or this one: then after dram_leave). */
void dram_forget(struct dram *d, uint32_t space);
/* This process uses the space no more: its number and the views of its records are void. dram_close leaves all. */
void dram_leave(struct dram *d, uint32_t space);
/* Forgets every space that nobody alive uses, for room; how many. */
unsigned dram_reclaim(struct dram *d);
struct dram_stats {
    uint64_t budget, used, entries;      /* bytes; used: records and bookkeeping */
    uint64_t bookkeeping;                /* bytes of it that are no record */
    uint64_t admissions, refusals, evictions, locked, collapsed; /* locked, collapsed: bytes */
    uint64_t registered;                 /* with CUDA, bytes of slabs */
    const char *lock_warning;            /* NULL: none; RLIMIT_MEMLOCK too low */
    const char *cuda_warning;            /* NULL: none; valid until close */
};
void dram_stats(const struct dram *d, struct dram_stats *out);

/* ---- nvme.c: segments on a local disk ---- */

struct nvme;
/* name: processes of a user that open a directory with the same one use it together; NULL: private to the handle. */
struct nvme_options { const char *dir; uint64_t bytes; enum replacement replacement; bool direct; const char *name; };
/* Opens or makes the directory (its parent exists), or joins those who use it, and takes limit and replacement as they are. The first
 * one takes its flock and finds what an earlier run left (warm restart), by the maps in its segments or by the records' headers;
 * others that open meanwhile wait. EBUSY: another group uses it; EIO: read-only, not a directory, ...; EVERSION: another version of
 * larder uses it; EINVAL: less than 4 MiB. The caller passes the tier by with the message as a warning. */
int nvme_open(const struct nvme_options *o, struct nvme **n, struct larder_error *err);
void nvme_close(struct nvme *n); /* writes what is queued, the last of a group checkpoints; in a forked child it only gives back memory */
/* The number of a space, registered at first use; while a living process has it registered its records are not reclaimed for
 * others. */
int nvme_space(struct nvme *n, const struct cache_space *space, uint32_t *id, struct larder_error *err);
/* Where a record lies: a hint. [offset, offset + len) of fd is to be read, whole pages, header included, by any engine; the record
 * begins `skip` bytes into it. Lock-free, but when a segment is first used. */
struct nvme_place { int fd; uint64_t offset; uint32_t len, skip; uint32_t segment, generation; };
bool nvme_lookup(struct nvme *n, uint32_t space, uint64_t ordinal, struct nvme_place *at);
/* After the read of the whole range to `read`: does the header match, and the CRC? hit->bytes points into it. read NULL: the read
 * failed. False: a miss, and healed (the entry is dropped); after many failed reads in a row the tier is passed by. Lock-free for
 * a hit. */
bool nvme_check(struct nvme *n, uint32_t space, uint64_t ordinal, const struct nvme_place *at, const void *read, struct cached *hit);
/* The record that was read there is whole, but not the one that the dataset has now: a miss, and the entry is dropped. */
void nvme_drop(struct nvme *n, uint32_t space, uint64_t ordinal, const struct nvme_place *at);
/* Queues a record for writing behind; never waits for the disk. OK also when it is there. ENOMEM: no room on disk
 * (nvme_closed) or, this time, in the write buffer. Found by lookup only once it is written. */
int nvme_admit(struct nvme *n, uint32_t space, uint64_t ordinal, const struct cached *record);
bool nvme_closed(const struct nvme *n, uint32_t space); /* a record was refused for want of room, and none was freed since; or the disk failed */
/* Another process that is alive has admitted it, and it is not written yet: wait, then look it up again. */
bool nvme_coming(const struct nvme *n, uint32_t space, uint64_t ordinal);
void nvme_wait(struct nvme *n, uint32_t space, uint64_t ordinal, unsigned timeout_ms, struct waker *w); /* w: as dram_wait */
void nvme_flush(struct nvme *n);                  /* waits until all that this handle admitted before is written, or given up */
bool nvme_flush_until(struct nvme *n, uint64_t deadline_ns); /* of now_ns(); false: not all is written yet */
bool nvme_room_until(struct nvme *n, uint64_t deadline_ns);  /* waits until a part of the write buffer is free; false: none is */
bool nvme_direct(const struct nvme *n);
enum replacement nvme_replacement(const struct nvme *n); /* as who opened it first chose it */
struct nvme_stats { uint64_t budget, used, entries, admissions, refusals, evictions, healed, recovered, bookkeeping; const char *warning; };
void nvme_stats(const struct nvme *n, struct nvme_stats *out); /* of all processes; used: real bytes on disk.
                                                              * warning: of this one, valid until close */

#endif
