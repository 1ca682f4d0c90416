/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiers_int.h - what the files of tiers/ and their tests share: the planner, the files of the origin, the two engines that
 * read, and the fetch itself. README.md has the invariants cited as [tiers In].
 */
#ifndef LARDER_TIERS_INT_H
#define LARDER_TIERS_INT_H

#include <pthread.h>
#include <sys/types.h>

#include "tiers/tiers.h"

#define TIERS_ALIGN 4096u               /* of memory, and of offset and length under O_DIRECT */
#define TIERS_SEGMENT_MAX ((uint32_t)MIB)
#define TIERS_GAP_DIRECT (16u * 1024)   /* neighbours this near travel in one read */
#define TIERS_GAP_BUFFERED (4u * 1024)
#define TIERS_DEPTH_DEFAULT 64u
#define TIERS_DEPTH_MAX 4096u
#define TIERS_FILES_DEFAULT 512u
#define TIERS_QUEUES_MAX 64u            /* of the stack's own, for tiers_read */
#define TIERS_GET_OPS 2048u             /* of a remote origin: reads that a queue may have under way, in fewer GETs */
#define TIERS_GET_MAX ((uint32_t)GIB)   /* of a remote origin: a GET's largest size */
#define TIERS_OVER_READ_MAX (64 * MIB)  /* gaps that a fetch of a remote origin reads at most, all together */
#define TIERS_OVER_READ_FREE MIB        /* beyond it, */
#define TIERS_OVER_READ_SHARE 16u       /* so many times what is wanted */
#define TIERS_READ_AGAIN 4u             /* records of a remote origin that fail their CRC */

/* ---- planning (segment.c): pure ---- */

struct plan_rules { uint32_t align, gap, segment_max; }; /* align divides segment_max; align 1: buffered */

/* One read. need: bytes that must come; the rest is padding and may lie behind the end of the file. */
struct segment {
    uint64_t offset;
    size_t memory;
    uint32_t shard, len, need;
    int nvme;          /* -1: the shard's file; else the descriptor to read, and `shard` is the number of the absent record */
};

struct want { uint64_t offset, end; uint32_t shard, index; };
struct plan {
    struct segment *segments; /* ascending in (shard, offset), and disjoint */
    size_t *place;            /* of want i: its offset in the fetch's memory */
    size_t n_segments, memory;
    uint64_t bytes;           /* of all segments */
    uint64_t over_read;       /* of these, in gaps between wants */
    uint32_t gap;             /* that it was made with */
    struct want *wants, *scratch;
    size_t n_wants;           /* sorted by (shard, offset) once the plan is made */
    size_t cap_segments, cap_place, cap_wants, cap_scratch;
};
/* Wants are extents[i], or ranges[i] within it when ranges is not NULL. Those of length 0 need no memory: their place is 0. */
int plan_build(struct plan *p, const struct plan_rules *rules, const struct extent *extents, const struct field_range *ranges,
               size_t n, struct larder_error *err);
void plan_release(struct plan *p);

/* ---- files (origin_dir.c): thread-safe ---- */

struct origin;
struct origin_options { unsigned files_max; int direct; };
/* dir holds the shards; shards[n] is borrowed and must outlive the origin. */
int origin_open(const char *dir, const struct shard_ref *shards, size_t n, const struct origin_options *o, struct origin **out,
                struct larder_error *err);
void origin_close(struct origin *o);
bool origin_direct(const struct origin *o);
const struct shard_ref *origin_shard(const struct origin *o, uint32_t shard); /* shard < origin_shards() */
size_t origin_shards(const struct origin *o);
unsigned origin_files_open(struct origin *o); /* descriptors held by the cache now */

/* An open shard, pinned: put it back after its last read. */
struct origin_file { int fd; int32_t slot; /* -1: not cached, closed by put */ bool direct; };
/* EBUSY: every descriptor is pinned, try again after a put; with force it is opened beside the cache instead. */
int origin_get(struct origin *o, uint32_t shard, bool force, struct origin_file *f, struct larder_error *err);
void origin_put(struct origin *o, const struct origin_file *f);
/* The file system refused a direct read of f: this descriptor and all later ones are buffered. */
void origin_direct_refused(struct origin *o, struct origin_file *f);

/* ---- shards as objects (origin_http.c): thread-safe ---- */

struct remote;
struct remote_request;
struct engine;
struct origin_http;
/* r and shards[n] are borrowed and must outlive the origin. */
int origin_http_open(struct remote *r, const struct shard_ref *shards, size_t n, struct origin_http **out, struct larder_error *err);
void origin_http_close(struct origin_http *o);
struct remote *origin_http_remote(const struct origin_http *o);
/* Ranged GETs, `gets` at once: ops, up to depth, name a shard instead of a descriptor. Those that are added together and lie within
 * `gap` travel in one. */
int origin_http_engine(struct origin_http *o, unsigned depth, unsigned gets, uint64_t gap, struct engine **e, struct larder_error *err);
/* For who starts requests of its own: fills in what a GET of a range of a shard is (name holds ORIGIN_NAME bytes and stays with q, and
 * buf), and says whether what came is of the object that all others saw. */
#define ORIGIN_NAME 320u
void origin_http_prepare(struct origin_http *o, uint32_t shard, uint64_t offset, void *buf, size_t len, char *name,
                         struct remote_request *q);
int origin_http_check(struct origin_http *o, uint32_t shard, struct remote_request *q); /* q->rc, or what is wrong: in q->error too */

/* ---- engines (uring.c, pool.c, origin_http.c): each belongs to one queue ---- */

/* One read in an engine's hands; the queue owns the memory. */
struct read_op {
    uint64_t offset;
    void *buf;
    uint32_t len;
    int fd;
    uint32_t shard;       /* of a remote origin, in place of fd */
    bool buffered;        /* may be tried without blocking first */
    int32_t result;       /* bytes, 0 at the end of the file, or -errno */
    struct larder_error error; /* of a remote origin, when the result is negative */
    uint32_t gets; uint64_t fetched; /* and what it cost there: 0 for those that travelled with another */
    uint64_t order;       /* the engine's */
    struct read_op *next; /* the engine's */
    void *owner;          /* the engine's */
};

struct engine;
/* The I/O table: tests put their own in front of a queue's. None of these fails: errors come back as results. */
struct engine_ops {
    const char *name;
    /* Takes op; never blocks. At most depth ops are in the engine at once. It may stay unsent until flush or a waiting reap. */
    void (*add)(struct engine *e, struct read_op *op);
    void (*flush)(struct engine *e);
    /* Finished ops, at most max. wait: sends what was added and blocks until there is one; some op must be in the engine. */
    unsigned (*reap)(struct engine *e, bool wait, struct read_op **done, unsigned max);
    void (*register_memory)(struct engine *e, void *memory, size_t len); /* a hint */
    /* No op is in the engine, unless forked: then the caller is a child, and only memory and descriptors are given back. */
    void (*close)(struct engine *e, bool forked);
    /* poll(2) finds it readable when an op has finished, if all were flushed: for waiting on two engines at once. NULL or -1: there is
     * none. */
    int (*descriptor)(struct engine *e);
    /* Any thread: a reap that waits returns, perhaps with nothing. NULL: reads end soon by themselves. */
    void (*wake)(struct engine *e);
    void (*cancel)(struct engine *e); /* what is in the engine comes back soon; NULL: it does anyway */
};
struct engine { const struct engine_ops *ops; };

/* EIO with sys_errno: the kernel refuses io_uring, or lacks what we need of it. */
int uring_open(unsigned depth, struct engine **e, struct larder_error *err);

/* Threads shared by the engines of a stack; started when there is work. */
struct pool;
int pool_new(unsigned threads_max, struct pool **p, struct larder_error *err);
void pool_free(struct pool *p, bool forked); /* after its engines */
unsigned pool_threads(struct pool *p);       /* running now */
int pool_engine_open(struct pool *p, struct engine **e, struct larder_error *err);

/* ---- the stack and its fetches (tiers.c), the queue (queue.c) ---- */

struct tiers {
    struct store *store;       /* NULL in tests that plan by extents */
    const struct shard_ref *shards; /* [n_shards], borrowed */
    size_t n_shards;
    struct origin *origin;     /* a local directory, or NULL: then */
    struct origin_http *http;  /* objects, */
    struct remote *remote;     /* reached by this; borrowed */
    struct plan_rules rules;   /* of objects */
    struct stream *stream;     /* running ahead, for the loaders that started it (stream.c); under lock for who holds none */
    unsigned streamers;
    struct tiers_cache *empty; /* of objects that have no cache in front: with it their records are checked as they come */
    struct pool *pool;         /* reads where io_uring is refused; idle otherwise */
    unsigned depth;
    bool uring;
    pid_t pid;                 /* of the creator: handles are not for forked children */
    pthread_mutex_t lock;      /* guards idle, n_idle, n_queues, stream, streamers */
    pthread_cond_t returned;   /* a queue came back to idle */
    struct tiers_queue *idle[TIERS_QUEUES_MAX];
    unsigned n_idle, n_queues;
    struct bound *bound;       /* to a cache; NULL: none */
};
/* tiers_open over plain files: dir holds shards[n], both borrowed until close (dir only during the call). */
int tiers_open_files(const char *dir, const struct shard_ref *shards, size_t n, const struct tiers_options *o, struct tiers **t,
                     struct larder_error *err);

enum fetch_state { FETCH_EMPTY, FETCH_PLANNED, FETCH_STARTED };
struct fetch_stack;
struct tiers_fetch {
    uint64_t over_read_max;    /* bytes in gaps, of a remote origin */
    uint32_t gets; uint64_t fetched; /* of a remote origin, since it was started */
    bool patient;              /* waits for what streams */
    struct tiers *t;
    struct extent *extents;
    size_t n, cap_extents;
    struct plan plan;
    uint8_t *memory;
    enum fetch_state state;
    struct fetch_stack *stack; /* its way through the tiers (stack.c); NULL: never planned with a cache */
    size_t need;               /* bytes of memory planned */
    bool cached;               /* the plan asks the cache: `stack` holds */
    const struct plan *run;    /* what is being read: plan, or the stack's second one */
    uint8_t *run_memory;
    /* the queue's while started: */
    void *tag;
    size_t next_segment;       /* the first not yet given to the engine */
    size_t in_flight;          /* segments in the engine */
    bool failed;
    struct larder_error error; /* the first failure */
    struct tiers_fetch *next;
};

/* Extents come from record tables or callers: each must lie in its shard. */
/* tiers_open over objects: shards[n] below r, both borrowed. */
int tiers_open_remote(struct remote *r, const struct shard_ref *shards, size_t n, const struct tiers_options *o, struct tiers **t,
                      struct larder_error *err);
int tiers_check_extents(const struct tiers *t, const struct extent *extents, size_t n, struct larder_error *err);
/* plan_build by the rules of f's origin. gap: neighbours further apart travel alone; UINT32_MAX: as the origin has it. */
int tiers_plan(const struct tiers_fetch *f, struct plan *p, uint32_t gap, const struct extent *extents, const struct field_range *ranges,
               size_t n, struct larder_error *err);
/* What starting does before the queue: checks memory, claims what a shared tier would admit. */
int tiers_fetch_begin(struct tiers_fetch *f, void *memory, struct larder_error *err);
struct engine **tiers_queue_engine(struct tiers_queue *q); /* for tests: put an I/O table in front */

#endif
