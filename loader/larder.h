/* SPDX-License-Identifier: Apache-2.0 */
/*
 * larder.h - the public interface of larder, an embedded sample store for training deep networks.
 *
 * THE MODEL
 *
 *   A dataset is a directory of immutable shards, a key index and a manifest for each committed
 *   generation. A sample is one training example: a dense ordinal (0..N-1), a unique key (1..1024
 *   bytes) and the fields that the dataset's schema names. A reader pins the newest generation at
 *   open and never sees a later one; within a lineage an ordinal never changes its meaning.
 *
 *   Writing:   larder_ingest_run() converts a folder or tar files, larder_writer_*() takes samples
 *              from the caller. Nothing is visible before the commit, everything is after it.
 *   Reading:   larder_dataset_read() and larder_dataset_lookup() for random access in batches,
 *              larder_loader_*() for epochs in a known order, fetched ahead (HDMLP 3: the seed fixes
 *              every future access, so nothing has to be predicted).
 *   Keeping:   larder_verify_run(), larder_repair_run(), larder_gc_run(), larder_export_run().
 *
 * CAVEATS
 *
 *   Threads.  A struct larder_dataset and a loader may be used by any number of threads at once; closing is left to one. A batch
 *             and a writer belong to one thread at a time. Functions named *_run use threads of their own and return when those
 *             have ended.
 *   fork().   Handles hold threads and rings. In a forked child every call on an inherited handle
 *             returns LARDER_EFORK, except the close and release calls, which free the child's memory
 *             and leave the parent's work alone. Open again in the child.
 *   Lifetime. Samples and batches borrow from their dataset or loader: release them before closing it.
 *             larder_dataset_close() with samples outstanding is a caller's bug; it is tolerated by
 *             keeping the memory until the last release.
 *   Output.   The library never prints, logs, aborts or exits.
 *   Paths.    A dataset is named by a path, file:///path, s3://bucket/prefix, or http(s)://host/prefix (read only).
 *   Structs.  Options, reports and infos begin with struct_size, which the caller sets (LARDER_..._INIT does). A larger
 *             one, of a newer header, is taken when what this library does not know is zero; a smaller one is EINVAL.
 *
 * ERRORS
 *
 *   What can fail returns an enum larder_code (0 is success, negatives are errors) and takes a
 *   struct larder_error pointer last, which may be NULL. On failure output handles are NULL and other
 *   outputs are untouched, unless a function says otherwise. What reads or writes a dataset in a bucket
 *   or behind a web server may also fail with EREMOTE and ETIMEOUT.
 */
#ifndef LARDER_H
#define LARDER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define LARDER_VERSION_MAJOR 0
#define LARDER_VERSION_MINOR 1
#define LARDER_VERSION_PATCH 0
#define LARDER_VERSION "0.1.0"

#define LARDER_KEY_MAX 1024                 /* bytes in a key, at most */
#define LARDER_NO_ORDINAL UINT64_MAX        /* larder_dataset_lookup: no such key */
#define LARDER_SAMPLE_BYTES_MAX 0xfffffff0u /* all fields of a sample together */
#define LARDER_FIELDS_MAX 4096              /* fields in a schema */

/* A code exists only where a caller would act differently. */
enum larder_code {
    LARDER_END = 1,        /* no more batches: not an error */
    LARDER_OK = 0,
    LARDER_EINVAL = -1,    /* an argument, option or call out of order: the message names it */
    LARDER_ENOMEM = -2,    /* memory, or a stated budget, is exhausted */
    LARDER_EIO = -3,       /* local input or output failed; sys_errno is set */
    LARDER_ENOTFOUND = -4, /* no such dataset, key, ordinal, field or generation */
    LARDER_EEXIST = -5,    /* it is there already */
    LARDER_ECORRUPT = -6,  /* stored bytes fail a check; the message names file, slot and offset */
    LARDER_EVERSION = -7,  /* written by a newer larder, or a feature this build lacks */
    LARDER_EBUSY = -8,     /* another writer is at work, or won */
    LARDER_EREMOTE = -9,   /* a server refused; http_status is set */
    LARDER_ETIMEOUT = -10, /* a deadline passed */
    LARDER_ECANCELED = -11,/* a progress callback asked to stop */
    LARDER_EFORK = -12     /* a handle of the parent used in a forked child */
};

/* What went wrong and where. Fixed size, owned by the caller, copied by value, nothing to free. */
struct larder_error {
    int code;          /* enum larder_code */
    int sys_errno;     /* errno of the failing system call, or 0 */
    int http_status;   /* status of the refused request, or 0 */
    char message[244]; /* one line: what, where, what to do; NUL-terminated */
};

/* "not found" for LARDER_ENOTFOUND, and so on. Never NULL; static. */
const char *larder_code_name(int code);

/* "0.1.0". The version of the library that is linked; LARDER_VERSION is that of this header. */
const char *larder_version(void);

/* XXH3, 64 bits, of len bytes at data. Not a cryptographic hash; stable for ever, so that it may be stored and compared
 * between machines. For order and data digests of what a loader delivered. */
uint64_t larder_hash64(uint64_t seed, const void *data, size_t len);

/* ------------------------------------------------------------------------------------- schema */

/* The values are stored: they never change. */
enum larder_type {
    LARDER_BYTES = 1, /* anything */
    LARDER_IMAGE = 2, /* an encoded image of any codec, sniffed from content, never recompressed */
    LARDER_AUDIO = 3, /* an encoded audio file, never recompressed */
    LARDER_UTF8 = 4,
    LARDER_JSON = 5,
    LARDER_I64 = 6, /* 8 bytes, little-endian */
    LARDER_F64 = 7, /* 8 bytes, IEEE 754, little-endian */
    LARDER_F32 = 8, /* 4 bytes */
    LARDER_BOOL = 9, /* 1 byte, 0 or 1 */
    LARDER_NDARRAY = 10 /* dtype and shape in struct larder_field; a list of scalars has shape {-1} */
};

/* "image" for LARDER_IMAGE. NULL for an unknown value. Static. */
const char *larder_type_name(int type);

/* One field of a schema, as given to a writer or reported by a dataset. Scalars (I64, F64, F32, BOOL)
 * are kept in each record and again as columns, so that the labels of a whole dataset are read without
 * touching a payload. */
struct larder_field {
    const char *name; /* 1..255 bytes of UTF-8 without control characters and '/'; unique. Borrowed. */
    int type;         /* enum larder_type */
    /* LARDER_NDARRAY only, else NULL, 0, NULL: */
    const char *dtype;    /* numpy's name: "bool" "int8".."int64" "uint8".."uint64" "float16" "bfloat16" "float32"
                           * "float64" */
    uint32_t ndim;        /* 0..32 */
    const int64_t *shape; /* [ndim]; -1: differs from sample to sample. The value is the array's bytes in C order,
                           * little-endian; where more than one dimension is -1, all ndim sizes stand before them as
                           * int64. */
};

/* A field's value. data == NULL: the sample has no such field. Borrowed. */
struct larder_value {
    const void *data;
    size_t len; /* bytes */
};

/* A thing that was passed over or found damaged: what (a path, key or file, borrowed) and why. Called from one thread at
 * a time, not always the caller's. */
typedef void larder_notice_fn(void *user, const char *what, const char *why);

/* ------------------------------------------------------------------------------------ cache */

/* What stands in front of the origin: memory (DRAM), then directories on local disks (NVMe). Records are cached as they are
 * stored. All processes of a user on a node that open a cache of the same name share its DRAM, which goes back to the kernel with
 * the last of them, however it ends: nothing is left behind. They share its directories, too: what one brings in the others
 * hit, and what is there stays for the next run. Any of them may be killed at any time. One cache serves any number of
 * datasets. */
struct larder_cache;

enum larder_replacement {
    LARDER_REPLACE_NONE = 0, /* what came in stays: with room for C of F samples each later epoch misses F - C (CoorDL 5.1) */
    LARDER_REPLACE_FIFO = 1  /* what came first makes room (DELI III-A) */
};

#define LARDER_DRAM_DEFAULT 0        /* a quarter of the memory available */
#define LARDER_DRAM_OFF UINT64_MAX

#define LARDER_CUDA_IF_USED 0
#define LARDER_CUDA_DEVICE(n) ((n) + 1)

struct larder_cache_nvme {
    const char *dir; /* made when it is not there; belongs to one cache name of one user at a time */
    uint64_t bytes;  /* hard limit of what the directory takes on disk, by all processes. Who joins takes it as it is. */
};

/* May this ordinal be admitted on this node? Pure; called by any thread. */
typedef int larder_admit_fn(void *user, uint64_t ordinal);

struct larder_cache_options {
    size_t struct_size;
    const char *name;        /* 1..64 letters, digits, '-', '_', '.'; NULL: private to this handle; default "default" */
    uint64_t dram_bytes;     /* of the node, bookkeeping included; LARDER_DRAM_DEFAULT, LARDER_DRAM_OFF, or bytes. More than 80% of the
                              * memory available is EINVAL. Who joins a cache that is there takes it as it is. */
    const struct larder_cache_nvme *nvme; /* [n_nvme], 8 at most; borrowed during the call */
    size_t n_nvme;
    int replacement;         /* enum larder_replacement, of all tiers */
    larder_admit_fn *admit;  /* NULL: all, first come */
    void *admit_user;
    int copy_local;          /* 1: copy records of origins in local directories into NVMe too; else those are read in place */
    int no_pin;              /* 1: this process neither locks DRAM in memory nor registers it with CUDA; default 0: as far as it may */
    int cuda_device;         /* LARDER_CUDA_IF_USED (default): DRAM is registered with CUDA (portable) once this process has a primary context
                              * on a device; neither libcuda nor a context is brought in, which would cost time and device memory, and
                              * CUDA in forked children. LARDER_CUDA_DEVICE(n): libcuda.so.1 is loaded, if there is one, CUDA initialised
                              * and device n's primary context used, made if need be, until the cache is closed. Never a failure: see
                              * larder_cache_warning(). With FIFO no device reads DRAM, and nothing is registered. */
};
#define LARDER_CACHE_OPTIONS_INIT {sizeof(struct larder_cache_options), "default", 0, NULL, 0, 0, NULL, NULL, 0, 0, 0}

/* Opens or joins a cache. opts may be NULL (all defaults). A directory that a cache of another name uses, or that cannot be used, is
 * passed by with a warning: larder_cache_warning().
 * Errors: EINVAL, ENOMEM, EIO. Owned: larder_cache_close(), after the datasets that use it are closed and all their samples
 * released. */
int larder_cache_open(const struct larder_cache_options *opts, struct larder_cache **cache, struct larder_error *err);
void larder_cache_close(struct larder_cache *cache); /* NULL is allowed */

/* One tier of a cache. hits to requests and the latencies are this process's since it opened the cache, the rest is of the
 * tier as all processes made it. */
struct larder_cache_tier {
    uint64_t budget_bytes, used_bytes, entries;
    uint64_t bookkeeping_bytes; /* of used_bytes: no record */
    uint64_t hits, misses;      /* samples: a hit in one tier is a miss in each nearer one */
    uint64_t bytes;             /* fetched from it */
    uint64_t requests;          /* DRAM: lookups, of any number of records; others: reads submitted */
    uint64_t admissions, refusals, evictions, healed;
    uint64_t latency_ns_p50, latency_ns_p90, latency_ns_p99, latency_ns_max; /* of requests */
};

struct larder_cache_stats {
    size_t struct_size;
    struct larder_cache_tier dram, nvme, origin; /* nvme: all directories together */
    uint64_t locked_bytes;  /* of DRAM: pinned by this process */
    int shared;             /* other processes can join it */
    int joined;             /* it was there when it was opened */
    uint64_t registered_bytes; /* of DRAM: with CUDA, by this process */
};

/* Fills *stats (struct_size set). EINVAL, EFORK. Thread-safe. */
int larder_cache_stats(const struct larder_cache *cache, struct larder_cache_stats *stats, struct larder_error *err);

/* Warning number i, from 0: why something is slower than it could be. NULL: there are no more. Borrowed until close. */
const char *larder_cache_warning(const struct larder_cache *cache, size_t i);

/* Writes the statistics as Prometheus text to the file at path, which is replaced atomically. EIO, ENOMEM, EFORK. */
int larder_cache_metrics(const struct larder_cache *cache, const char *path, struct larder_error *err);

/* What a directory of struct larder_cache_nvme holds. */
struct larder_cache_dir_info {
    size_t struct_size;
    uint64_t used_bytes;    /* on disk, of the cache's own files */
    uint64_t segments, segment_bytes; /* segment_bytes: of most; those of longer records are multiples of it */
    uint64_t entries;       /* records; copies that newer ones replaced and damaged ones included */
    uint64_t datasets;
    uint64_t holder;        /* a process that uses it now; 1 when none said so; 0: nobody */
};

/* One dataset in it. */
struct larder_cache_dataset {
    uint8_t uuid[16], lineage[16]; /* as larder_dataset_info() has them */
    uint64_t entries, bytes;       /* bytes: of its segments */
    uint64_t last_used_s;          /* seconds since 1970 */
};

/* Describes a directory, whether it is in use or not: reads the maps of its segments, no record. Sets *info (struct_size set) and
 * the first `cap` of info->datasets elements of datasets (NULL allowed when cap is 0), in no order.
 * Errors: ENOTFOUND (no cache there), EIO, ENOMEM, EINVAL. */
int larder_cache_dir_info(const char *dir, struct larder_cache_dir_info *info, struct larder_cache_dataset *datasets, size_t cap,
                          struct larder_error *err);

/* Removes the cache's files from a directory; files of others stay. *freed (NULL allowed): bytes on disk.
 * Errors: ENOTFOUND (no cache there), EBUSY (a process uses it, and is named), EIO, EINVAL. */
int larder_cache_dir_clear(const char *dir, uint64_t *freed, struct larder_error *err);

/* ------------------------------------------------------------------------------------ remote */

enum larder_s3_addressing { LARDER_S3_AUTO = 0, LARDER_S3_PATH = 1, LARDER_S3_VIRTUAL = 2 };

/* How a bucket or a web server is reached. Everything has a default, and what AWS's own tools read is read: AWS_ENDPOINT_URL_S3,
 * AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION, AWS_PROFILE, AWS_CA_BUNDLE, credentials in the environment (with a session token),
 * in ~/.aws/credentials and ~/.aws/config, from web identity, from a container's endpoint and from IMDSv2, refreshed before they
 * expire. Strings are borrowed during the call that takes the options. */
struct larder_remote_options {
    size_t struct_size;
    const char *endpoint;       /* "https://host[:port][/path]" of any server with S3's dialect; NULL: environment, profile, AWS */
    const char *region;         /* NULL: environment, profile, us-east-1 */
    const char *profile;        /* of the shared files; NULL: AWS_PROFILE, default */
    const char *ca_bundle;      /* file or folder of certificates; NULL: AWS_CA_BUNDLE, the system's */
    int insecure;               /* 1: certificates are not verified */
    int anonymous;              /* 1: requests are not signed, for public buckets */
    int requester_pays;
    int addressing;             /* enum larder_s3_addressing */
    unsigned loops;             /* event-loop threads; 0: 1 */
    unsigned requests_max;      /* in flight at once, a connection each; 0: 64 */
    unsigned connect_timeout_ms; /* 0: 10,000 */
    unsigned stall_timeout_ms;  /* no byte in this time and a request is repeated; 0: 20,000 */
    unsigned timeout_ms;        /* of one request with all its retries; 0: 120,000 */
    unsigned tries_max;         /* of one request; 0: 10 */
    unsigned hedge_percent;     /* the slowest percent of small GETs is asked for a second time, and the first answer taken; 0: none; 20 at most */
    uint64_t gap_bytes;         /* records this near travel in one GET; 0: 256 KiB; UINT64_MAX: never */
    uint64_t get_bytes;         /* a GET's largest size; 0: 8 MiB */
    const char *scratch;        /* local folder for journals and copies of index files; NULL: LARDER_SCRATCH, else the first that can be
                                 * written of XDG_CACHE_HOME/larder, ~/.cache/larder, TMPDIR/larder-UID, /tmp/larder-UID */
    uint64_t scratch_bytes;     /* limit of copies of index files in it; 0: 256 MiB */
    double price_get, price_put, price_gb; /* dollars for 1,000 GETs, 1,000 PUTs and LISTs, and 10^9 bytes out: for estimates */
    int single_writer;          /* 1: nobody else writes this dataset; needed to commit where a server ignores If-None-Match */
};
#define LARDER_REMOTE_OPTIONS_INIT \
    {sizeof(struct larder_remote_options), NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0}

/* What went over the network for one dataset, since it was opened. */
struct larder_remote_stats {
    size_t struct_size;
    uint64_t requests;          /* sent, retries and hedges included */
    uint64_t gets, puts, others; /* of them, by what is paid for: GET and HEAD; PUT, POST and LIST; DELETE */
    uint64_t demand_gets, stream_gets; /* of gets: somebody waited; ahead of need */
    uint64_t bytes_fetched;     /* of bodies received */
    uint64_t bytes_used;        /* of those, delivered to somebody or admitted to a tier */
    uint64_t bytes_sent;
    uint64_t retries;           /* in all, and by cause: */
    uint64_t retries_throttled; /* 429, 503 */
    uint64_t retries_server;    /* other 5xx */
    uint64_t retries_connection; /* refused, reset, name lookup */
    uint64_t retries_short;     /* body too short, wrong range, 200 for 206 */
    uint64_t retries_stalled;   /* no byte for stall_timeout_ms */
    uint64_t retries_damaged;   /* bytes that failed their check */
    uint64_t retries_credentials; /* expired, or the clock was off */
    uint64_t hedges, hedges_won;
    uint64_t failed;            /* requests that were given up */
    uint64_t latency_ns_p50, latency_ns_p90, latency_ns_p99, latency_ns_max; /* of GETs, first try to whole body */
    double dollars;             /* by the options' prices; 0 without */
};
#define LARDER_REMOTE_STATS_INIT {.struct_size = sizeof(struct larder_remote_stats)}

/* ---------------------------------------------------------------------------------- dataset */

struct larder_dataset;

/* How reads of local files go past or through the page cache. */
enum larder_direct {
    LARDER_DIRECT_AUTO = 0, /* O_DIRECT when the dataset is larger than half of the memory available */
    LARDER_DIRECT_ON = 1,   /* O_DIRECT where the file system has it */
    LARDER_DIRECT_OFF = 2
};

struct larder_dataset_options {
    size_t struct_size;      /* sizeof(struct larder_dataset_options) */
    uint64_t generation;     /* pin this one; 0 (default): the newest */
    size_t table_bytes;      /* budget for cached footer pages (record table, keys, columns); 0: 64 MiB.
                              * 24 bytes a sample hold the whole record table. */
    size_t index_bytes;      /* budget for the key index's block cache; 0: 64 MiB */
    unsigned files_max;      /* shard files open at once; 0: 512, less where RLIMIT_NOFILE is low */
    unsigned queue_depth;    /* reads in flight for larder_dataset_read(); 0: 64 */
    int direct;              /* enum larder_direct; default AUTO */
    struct larder_cache *cache; /* NULL: none; must outlive the dataset */
    const struct larder_remote_options *remote; /* of s3:// and http(s)://; NULL: all defaults; borrowed during the call */
};
#define LARDER_DATASET_OPTIONS_INIT {sizeof(struct larder_dataset_options), 0, 0, 0, 0, 0, 0, NULL, NULL}

/* Opens the dataset at uri (a path, "file:///path", "s3://bucket/prefix" or "http(s)://host/prefix") and pins one generation. opts may be NULL (all
 * defaults). Reads the manifest only: time and memory grow with the number of shards, not of samples;
 * the key index is opened by the first lookup.
 * Errors: ENOTFOUND (no dataset there, or no such generation), ECORRUPT (the manifest is damaged:
 * larder_repair_run() rebuilds it), EVERSION, EIO, ENOMEM, EINVAL. *ds is NULL then.
 * Blocks for I/O. *ds is owned: larder_dataset_close(). */
int larder_dataset_open(const char *uri, const struct larder_dataset_options *opts,
                        struct larder_dataset **ds, struct larder_error *err);

/* What went over the network; all 0 for a dataset in a directory. Set struct_size. EINVAL, EFORK. Thread-safe. */
int larder_dataset_remote_stats(const struct larder_dataset *ds, struct larder_remote_stats *stats, struct larder_error *err);

/* Closes; NULL is allowed. Loaders opened on ds are closed first, by the caller. */
void larder_dataset_close(struct larder_dataset *ds);

struct larder_dataset_info {
    size_t struct_size;      /* set by the caller: sizeof(struct larder_dataset_info) */
    uint8_t uuid[16];        /* of the dataset, for ever */
    uint8_t lineage[16];     /* kept by append, new where ordinals change their meaning */
    uint64_t generation;
    uint64_t created_s;      /* seconds since 1970 at which the generation was committed */
    uint64_t samples;
    uint64_t shards;
    uint64_t shard_bytes;    /* size of all shard files */
    uint64_t stored_bytes;   /* of all records as stored */
    uint64_t raw_bytes;      /* of all records before compression */
    uint32_t fields;
    uint32_t compression;    /* enum larder_compression the last writer used */
};

/* Fills *info (struct_size set by the caller). Never fails but on EINVAL, EFORK. Does not block. */
int larder_dataset_info(const struct larder_dataset *ds, struct larder_dataset_info *info,
                        struct larder_error *err);

/* Field i of the schema (0 <= i < info.fields), borrowed until close. ENOTFOUND: i is out of range. */
int larder_dataset_field(const struct larder_dataset *ds, uint32_t i, struct larder_field *field,
                         struct larder_error *err);

/* The name of class `label` of the dataset's class-per-folder labels; NULL when the dataset keeps no
 * names or label is out of range. Borrowed until close. *count, if not NULL, gets how many there are. */
const char *larder_dataset_class(const struct larder_dataset *ds, uint64_t label, uint64_t *count);

/* One sample as read. Zero it before first use or pass it to larder_samples_release() between uses. */
struct larder_sample {
    uint64_t ordinal;
    uint32_t n_fields;                 /* as many as were asked for; 0: empty */
    const struct larder_value *fields; /* in the order asked for; borrowed until release */
    void *owner;                       /* private */
};

struct larder_read_options {
    size_t struct_size;
    const uint32_t *fields; /* schema indices of the fields wanted, in this order; NULL: all, in schema order */
    size_t n_fields;
};
#define LARDER_READ_OPTIONS_INIT {sizeof(struct larder_read_options), NULL, 0}

/* Reads n samples by ordinal, in any order, repeats allowed, into samples[0..n). The primary read: many
 * reads are in flight at once, neighbours travel together, every byte is checked by CRC32C before it is
 * seen. A few fields of a large record are read without the rest of it.
 * opts may be NULL (all fields).
 * Errors: ENOTFOUND (an ordinal is beyond the pinned generation; names it), ECORRUPT (names shard, slot and
 * offset), EIO, ENOMEM, EINVAL, EFORK. On error no sample is filled and there is nothing to release.
 * Thread-safe; blocks for I/O. The samples are owned: larder_samples_release(). */
int larder_dataset_read(struct larder_dataset *ds, const uint64_t *ordinals, size_t n,
                        const struct larder_read_options *opts, struct larder_sample *samples,
                        struct larder_error *err);

/* Releases n samples; empty ones are skipped; they are empty afterwards. Any thread. */
void larder_samples_release(struct larder_sample *samples, size_t n);

/* Finds n keys: ordinals[i] is LARDER_NO_ORDINAL where the pinned generation has no keys[i].
 * Errors: ECORRUPT (the index is damaged: larder_repair_run() rebuilds it), EIO, ENOMEM, EINVAL (a key is empty
 * or too long), EFORK. Thread-safe; blocks for I/O. */
int larder_dataset_lookup(struct larder_dataset *ds, const void *const *keys, const size_t *key_lens, size_t n,
                          uint64_t *ordinals, struct larder_error *err);

/* lookup + read of one key, all fields. ENOTFOUND names the key. */
int larder_dataset_get(struct larder_dataset *ds, const void *key, size_t key_len,
                       struct larder_sample *sample, struct larder_error *err);

/* The key of a sample: copies at most cap bytes (LARDER_KEY_MAX holds any) into key, sets *len to the full
 * length. Errors: ENOTFOUND, ECORRUPT, EIO, EFORK. Thread-safe; blocks for at most a few pages. */
int larder_dataset_key(struct larder_dataset *ds, uint64_t ordinal, void *key, size_t cap, size_t *len,
                       struct larder_error *err);

/* Column of scalar field `field` for count samples from `first`: values gets count elements of the type's width
 * (I64, F64: 8 bytes, F32: 4, BOOL: 1), in native byte order; a missing value reads as 0. Reads columns, no payload.
 * Errors: ENOTFOUND (range, field), EINVAL (not a scalar), ECORRUPT, EIO, EFORK. Thread-safe; blocks. */
int larder_dataset_column(struct larder_dataset *ds, uint32_t field, uint64_t first, uint64_t count,
                          void *values, struct larder_error *err);

/* Where a sample lies, for tools and messages. */
struct larder_location {
    const char *shard;   /* file name below shards/, borrowed until close */
    uint64_t shard_no;   /* position of the shard in the manifest */
    uint32_t slot;       /* record number in the shard */
    uint64_t offset;     /* bytes from the start of the file */
    uint32_t stored_len; /* bytes */
    uint32_t raw_len;    /* bytes before compression */
};
int larder_dataset_locate(struct larder_dataset *ds, uint64_t ordinal, struct larder_location *loc,
                          struct larder_error *err);

/* -------------------------------------------------------------------------------------- prep */

/* What a loader makes of a field for its batches. Without outputs a batch has all fields of its samples as they are stored. */
enum larder_prep {
    LARDER_PREP_AUTO = 0,     /* by the field's type: scalars and ndarrays of one shape DENSE, others BYTES */
    LARDER_PREP_BYTES = 1,    /* as stored: larder_array.values[n] */
    LARDER_PREP_DENSE = 2,    /* scalars, ndarrays of one shape: [n, shape...]; a sample without the field is 0s, and not `present` */
    LARDER_PREP_RAGGED = 3,   /* ndarrays whose first dimension differs, text, bytes: back to back, offsets[n + 1] */
    LARDER_PREP_PADDED = 4,   /* the same, whichever dimension differs: [n, longest...], lengths[n], zeros behind each. Where k > 1
                               * dimensions differ, pad_to is needed, is the length of each, and lengths is [n, k] */
    LARDER_PREP_IMAGE = 5,    /* struct larder_image: [n, views, height, width, 3], or [n, views, 3, height, width]; no views axis for 1 */
    LARDER_PREP_MASK = 6,     /* an image field, one channel (grey, or a palette's indexes), moved as the image `follows`, nearest:
                               * [n, views, height, width] of uint8, or uint16 where dtype says so */
    LARDER_PREP_BOXES = 7,    /* an ndarray [k, 4] of x0, y0, x1, y1 in pixels of the image as stored, moved as the image `follows`: float32
                               * in pixels of the result, clipped, back to back, view after view: offsets[n * views + 1], keep[...] */
    LARDER_PREP_GEOMETRY = 8, /* what was done to the image `follows`: int32 [n, views, 8]: width and height of the image (turned, where exif
                               * asks for it), x, y, w, h of the crop in it, 1 for mirrored, EXIF orientation applied (1..8) */
    LARDER_PREP_AUDIO = 9,    /* struct larder_audio: [n, channels, frames], lengths[n] */
    LARDER_PREP_USER = 10     /* the caller's function: [n, shape...] */
};

enum larder_crop {
    LARDER_CROP_RANDOM = 0, /* a part of random area and ratio, scaled to width x height: torchvision's RandomResizedCrop */
    LARDER_CROP_CENTER = 1, /* the shorter side scaled to `resize`, then the middle width x height of that */
    LARDER_CROP_NONE = 2    /* all of it, scaled to width x height */
};

enum larder_filter { LARDER_BILINEAR = 0, LARDER_BICUBIC = 1, LARDER_NEAREST = 2 };

/* Images as PIL makes them: convert("RGB"), then a crop scaled. 0 in a member means its default. */
struct larder_image {
    uint32_t width, height;      /* of the result; height 0: as width */
    int crop;                    /* enum larder_crop */
    double scale_min, scale_max; /* RANDOM: share of the area; 0, 0: 0.08 to 1 */
    double ratio_min, ratio_max; /* RANDOM: width to height; 0, 0: 3/4 to 4/3 */
    uint32_t resize;             /* CENTER: the shorter side; 0: 8/7 of the result's */
    double flip;                 /* probability that left and right change places */
    int filter;                  /* enum larder_filter */
    int no_antialias;            /* 1: the filter's support does not grow when an image shrinks */
    int exact;                   /* 1: no scaling in the JPEG decoder: pixels within 2 levels of PIL's, slower */
    int exif;                    /* 1: turned as its EXIF orientation says */
    const char *dtype;           /* "uint8" (NULL), "float16", "bfloat16", "float32" */
    int planar;                  /* 1: channels first (NCHW) */
    int normalize;               /* 1: (value / 255 - mean) / std, not for uint8; 0: value / 255 */
    float mean[3], std[3];
    uint32_t views;              /* results of one decode, each with randomness of its own; 0: 1 */
    uint64_t pixels_max;         /* larger images are bad samples; 0: 2^28 */
};

/* Sounds: WAV, AIFF, AU, CAF, FLAC, Ogg (Vorbis, Opus), MP3. Which part of one is taken is random as crops of images are. */
struct larder_audio {
    uint32_t frames;             /* of the result, at `rate`: a longer sample is cropped at a random place, a shorter one padded with 0s */
    uint32_t rate;               /* Hz; 0: as stored, which must then be the same in every sample of a batch's use */
    uint32_t channels;           /* 1: mixed down; n: has to have n, or 1, which is repeated; 0: 1 */
    int center;                  /* 1: the middle instead of a random place */
    const char *dtype;           /* "float32" (NULL, -1 to 1), "int16" */
};

/* What a caller's function gets. Values are borrowed during the call, and lie at any address: not aligned for their types. */
struct larder_prep_in {
    uint64_t ordinal, epoch, position; /* position: in the epoch's order, over all ranks */
    uint64_t random;                   /* a function of (seed, epoch, position): the same with any threads, tiers and world */
    const struct larder_value *values; /* [n_fields], as stored */
    uint32_t n_fields;
};
/* Writes one sample, of the output's shape and dtype, to out (zeros before). Called from several threads at once. Anything but LARDER_OK
 * makes it a bad sample, with err's message. */
typedef int larder_prep_fn(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err);

/* One array of each batch. */
struct larder_output {
    size_t struct_size;
    const char *field;        /* of the schema; GEOMETRY: NULL; USER: the only one it looks at, NULL: any */
    const char *name;         /* in the batch; NULL: field. Unique. */
    int prep;                 /* enum larder_prep */
    struct larder_image image;
    struct larder_audio audio;
    const char *follows;      /* MASK, BOXES, GEOMETRY: the name of the IMAGE output */
    const char *dtype;        /* MASK: "uint8" (NULL), "uint16"; USER: of the result */
    uint32_t ndim;            /* USER */
    const int64_t *shape;     /* USER: [ndim], of one sample */
    uint64_t pad_to;          /* PADDED: the axis is this long, and what is longer is cut off; 0: as the longest of the batch, for which
                               * staging keeps room for n times the largest record: better given where other fields are large */
    larder_prep_fn *fn;
    void *user;
};
#define LARDER_OUTPUT_INIT                                                                                                       \
    {sizeof(struct larder_output), NULL, NULL, 0, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, {0, 0, 0}, {0, 0, 0}, 0, 0}, \
     {0, 0, 0, 0, NULL}, NULL, NULL, 0, NULL, 0, NULL, NULL}

/* One output of a batch. All pointers are borrowed until the batch is released. */
struct larder_array {
    const char *name;
    const char *dtype;         /* numpy's name, or "bfloat16"; BYTES: NULL */
    uint32_t ndim;
    const int64_t *shape;      /* [ndim]; shape[0] is the batch's n, or what all its samples have together (RAGGED, BOXES) */
    const void *data;          /* C order, 64-byte aligned; NULL for BYTES */
    size_t len;                /* bytes */
    const struct larder_value *values; /* BYTES: [n] */
    const uint64_t *offsets;   /* RAGGED, BOXES: in units of the first axis */
    const uint32_t *lengths;   /* PADDED, AUDIO: [n]; what was cut off is not counted */
    const uint8_t *present;    /* DENSE, RAGGED, PADDED, BOXES: [n]: the sample has the field */
    const uint8_t *keep;       /* BOXES: [shape[0]]: 1 where something of the box is left */
};

/* ------------------------------------------------------------------------------------ loader */

struct larder_loader;

enum larder_shuffle {
    LARDER_SHUFFLE_FULL = 0, /* a uniform permutation of everything, new each epoch */
    LARDER_SHUFFLE_NONE = 1,
    LARDER_SHUFFLE_BLOCK = 2 /* blocks of neighbours shuffled, then the samples within each window of blocks: larder_loader_warning() */
};

/* What becomes of the samples behind the last whole global batch. */
enum larder_last {
    LARDER_LAST_AUTO = 0,  /* SHORT for one rank; DROP for several, PAD when they are not shuffled */
    LARDER_LAST_SHORT = 1, /* a smaller batch, shared out as evenly as it goes: a rank's may be empty */
    LARDER_LAST_DROP = 2,
    LARDER_LAST_PAD = 3    /* whole batches, filled up from the beginning of the epoch; batch.valid says how many count */
};

/* What becomes of a bad sample: one that cannot be decoded, or whose bytes are still damaged after they were fetched again. Never of what a
 * disk, a server or memory refused. */
enum larder_on_bad {
    LARDER_ON_BAD_FAIL = 0,   /* larder_loader_next() fails with ECORRUPT, and names it */
    LARDER_ON_BAD_REPLACE = 1 /* another one of the epoch takes its place, label, ordinal and all: a function of (seed, epoch, position); the
                               * next one, when that is bad, too. 64 bad ones in a row are an error. */
};

struct larder_bad_sample {
    uint64_t epoch, position;
    uint64_t ordinal;          /* the bad one */
    uint64_t substitute;       /* in its place */
    uint32_t source, substitute_source; /* of a mix: of which datasets they are */
    const char *message;       /* "sample 'n02_77' (ordinal 40312, shard 17 slot 88), field image: JPEG ends at line 61 of 375" */
};
/* Called by larder_loader_next() for each bad sample of the batch that it is about to give, by position; not to call it again. */
typedef void larder_bad_fn(void *user, const struct larder_bad_sample *bad);

/* A global batch, for who assigns its samples to ranks. Borrowed during the call. */
struct larder_assign_in {
    uint64_t epoch, number, position; /* number: of the batch, in what the loader gives of the epoch; position: of its first sample */
    const uint64_t *ordinals;         /* [n], by position */
    const uint32_t *sources;          /* [n]: which dataset of a mix; NULL: there is one */
    uint32_t n, world;
};
/* Writes the rank that each sample of a global batch goes to into ranks[n]: batch_size samples to each; of a short last batch (LAST_SHORT)
 * n / world to each, and one more to each of the first n % world. A rank has its samples by position. It has to be a function of its
 * arguments, and the same on all ranks: each calls it for itself, for every batch, from a thread of the loader. Anything but LARDER_OK ends
 * the loader with that error. */
typedef int larder_assign_fn(void *user, const struct larder_assign_in *in, uint32_t *ranks, struct larder_error *err);

struct larder_loader_options {
    size_t struct_size;
    uint32_t batch_size;      /* samples a batch; 0: 256. The last batch of an epoch is short. */
    uint64_t seed;            /* the order depends on (seed, epoch, N) only */
    uint64_t epoch;           /* the first epoch */
    uint64_t epochs;          /* how many; 0: without end */
    int shuffle;              /* enum larder_shuffle; default FULL */
    uint32_t queue_depth;     /* reads in flight; 0: 64 */
    size_t staging_bytes;     /* budget of the staging buffer, hard; 0: 256 MiB, at most a quarter of memory */
    uint32_t timeout_ms;      /* larder_loader_next() waits this long at most for a batch; 0: 120,000. ETIMEOUT says what it waited for. */
    uint32_t notice_ms;       /* a wait as long as this is told to `waiting`, once a wait; 0: 30,000 */
    larder_notice_fn *waiting; /* (user, "rank 3 waiting 30 s for batch 4102", "64 GETs in flight, 61 retries (503), 0 B/s for 12 s; fails
                               * at 120 s (timeout=)"): from the calling thread; may be NULL */
    void *user;
    uint32_t rank, world;     /* this process among those that share the epochs; world 0: 1. batch_size is per rank; a global batch is
                               * world x batch_size positions of the order, of which a rank has a contiguous slice. */
    int last;                 /* enum larder_last */
    uint64_t epoch_size;      /* samples an epoch; epochs then walk on through the permutations; 0: all */
    uint64_t block_samples;   /* LARDER_SHUFFLE_BLOCK: neighbours that stay in one window; 0: 1,024 */
    uint64_t window_blocks;   /* ... that are shuffled together; 0: 16 */
    const uint8_t *filter;    /* [(samples + 7) / 8]: bit i of byte i / 8 is set when ordinal i takes part; NULL: all do. This and the
                               * three below are copied: larder_loader_stats.order_bytes. */
    const double *weights;    /* [samples, members of the filter, or n_order]: each position is drawn by weight, independently; NULL: none */
    const uint64_t *order;    /* [n_order]: the caller's own order of ordinals, before the shuffle (give SHUFFLE_NONE to keep it); NULL:
                               * all in turn. Not with filter. */
    uint64_t n_order;
    int order_is_ranks;       /* 1: order is this rank's own, and not cut into slices; world is 1 then */
    const char *state;        /* what larder_loader_state() gave: goes on there, instead of at `epoch`; NULL: no */
    const struct larder_output *outputs; /* [n_outputs]: arrays of each batch, from the fields they name; copied. NULL: all fields as stored */
    size_t n_outputs;
    uint32_t threads;         /* decode threads; 0: one a CPU where there is something to decode */
    uint64_t fetch_size;      /* a window: samples requested together ... */
    uint64_t threshold;       /* ... as soon as those requested and not yet given to the caller are no more than this (DELI III-B). Only one of
                               * them: fetch_size 0 is as threshold (50/50, DELI V-B), threshold 0 lets a window be consumed first. Both 0: half of
                               * staging_bytes each where the records of a window share GETs of a remote origin, else batch after batch,
                               * as there is room. EINVAL when they cannot fit staging_bytes. */
    int on_bad_sample;        /* enum larder_on_bad */
    double max_bad;           /* REPLACE: more than this share of the samples asked for since the loader was opened is an error, from the 1,000th
                               * on; one always may be. 0: 0.001 */
    larder_bad_fn *bad;       /* told of each bad sample; from the thread that calls larder_loader_next(); may be NULL */
    uint64_t decoded_bytes;   /* the decoded cache: memory for images decoded and scaled to a stored side (CoorDL 8), shared by all processes of a
                               * user on the node whose caches have one name ("default" without a cache). 0: none; else 4 MiB or more. With it
                               * every sample goes through that form, so that pixels do not depend on what is cached. It needs an image
                               * output, and one dataset: EINVAL. */
    uint32_t decoded_side;    /* the shorter side of images kept; 0: 8/7 of the largest output's */
    int decoded_compress;     /* 1: kept compressed, losslessly */
    const char *trace;        /* a file for what each batch went through, in Chrome's trace format; replaced; NULL: none */
    double split_begin, split_end; /* only samples whose keys, hashed with split_seed, fall into this part of [0, 1): 0, 0.9 for training and
                               * 0.9, 1 for what is held back share no sample, and none changes sides when the dataset grows. Both 0: all. Keys
                               * are read for it once a dataset handle. With weights: those of all samples, or of the filter's members. Not
                               * with order. */
    uint64_t split_seed;
    const uint32_t *batch_lengths; /* [n_batch_lengths]: order_is_ranks: the batches that `order` is cut into, in turn and as they are; copied.
                               * Together n_order, each 1 or more; with SHUFFLE_NONE, without weights and epoch_size. NULL: batch_size each */
    uint64_t n_batch_lengths;
    larder_assign_fn *assign; /* which rank gets which sample of a global batch; NULL: contiguous slices. Not with order_is_ranks. */
    void *assign_user;
};
#define LARDER_LOADER_OPTIONS_INIT                                                                                                       \
    {sizeof(struct larder_loader_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0, 0, NULL, NULL, 0, \
     0, 0, 0, 0, 0, NULL, 0, 0, 0, NULL, 0, 0, 0, NULL, 0, NULL, NULL}

/* Opens a loader on ds, which must outlive it, and begins to fetch. opts may be NULL.
 * Errors: EINVAL, ENOTFOUND (a field that an output names, an ordinal in options.order), ENOMEM (a batch does not fit staging_bytes is
 * reported by larder_loader_next()), EIO, EFORK.
 * Owned: larder_loader_close(). */
int larder_loader_open(struct larder_dataset *ds, const struct larder_loader_options *opts,
                       struct larder_loader **ld, struct larder_error *err);

/* Stops what is in flight and frees; NULL is allowed. Batches still held become invalid. */
void larder_loader_close(struct larder_loader *ld);

/* A dataset of a mix. */
struct larder_mix_source {
    size_t struct_size;
    struct larder_dataset *ds; /* must outlive the loader; the same one may be a source more than once */
    double weight;             /* its share of the samples is weight / all weights, at any position less than 1 + ln(sources) samples off. All
                                * 0: by the number of samples, so that an epoch has every sample once. */
    const uint8_t *filter;     /* as in larder_loader_options, of this dataset; copied, as is */
    const double *weights;     /* [samples, or members of the filter] */
};
#define LARDER_MIX_SOURCE_INIT {sizeof(struct larder_mix_source), NULL, 0, NULL, NULL}

/* What becomes of a mix with weights when one of its datasets is exhausted. */
enum larder_exhausted {
    LARDER_EXHAUSTED_REPEAT = 0, /* it walks on, through a new permutation; the epoch ends when all have been exhausted */
    LARDER_EXHAUSTED_STOP = 1    /* the epoch ends; the next one begins new permutations of all */
};

/* Opens a loader on up to 256 datasets that are mixed by weight. Each is walked through in an order of its own; whose turn it is is shuffled
 * within 1,024 positions (of SHUFFLE_FULL by size: within the epoch), and with SHUFFLE_NONE as even as can be. The order depends on
 * seed, epoch, sizes, weights and filters alone. Without outputs the datasets have equal schemas, with them the fields that they name are
 * equal. Of the options filter, weights and order are not for mixes; a split is that of each dataset; with epoch_size an epoch has so many
 * samples, and all datasets walk on. exhausted: enum larder_exhausted. Errors and all else as larder_loader_open. */
int larder_loader_open_mix(const struct larder_mix_source *sources, size_t n_sources, int exhausted, const struct larder_loader_options *opts,
                           struct larder_loader **ld, struct larder_error *err);

/* A batch of samples in epoch order, all fields, borrowed until larder_batch_release(). */
struct larder_batch {
    uint64_t epoch;
    uint64_t number;                     /* within the epoch, from 0 */
    uint64_t position;                   /* of samples[0] in the epoch order */
    uint32_t n;                          /* samples */
    uint32_t n_fields;                   /* of each sample: the schema's */
    const uint64_t *ordinals;            /* [n] */
    const struct larder_value *values;   /* [n][n_fields], sample-major */
    void *owner;                         /* private */
    uint32_t valid;                      /* of the n, the first so many: the others fill the batch up (LARDER_LAST_PAD) */
    uint32_t n_arrays;                   /* as outputs say; then values is NULL and n_fields 0 */
    const struct larder_array *arrays;   /* [n_arrays] */
    const uint32_t *sources;             /* [n]: of a mix, which dataset each sample is of; else NULL */
    const uint64_t *positions;           /* [n]: with an assign function, where each sample stands in the epoch order; else NULL */
};

/* The next batch, in order. Waits for it if it is not ready (that time is the fetch stall).
 * Returns LARDER_OK and sets *batch; LARDER_END after the last batch of each epoch (the call after that begins the
 * next epoch; after the last epoch every call returns LARDER_END); or an error. EINVAL, when the batches that the
 * caller holds leave no room for the next one, passes: release a batch and call again; so does ETIMEOUT, when timeout_ms went by
 * without a batch: what was under way goes on. After any other the loader is spent and
 * every further call returns the same error: ECORRUPT (a bad sample, which is named; or too many of them: max_bad), EIO, ENOTFOUND (a shard is missing),
 * EREMOTE, EBUSY (a shard was replaced while it was read), ENOMEM (the batch does not fit the staging budget: says how much it needs),
 * EFORK. Batches before the damaged one are
 * delivered first. *batch is NULL unless LARDER_OK.
 * Several threads may call at once: batches are given in the order of the calls, and one of the calls gets LARDER_END. */
int larder_loader_next(struct larder_loader *ld, const struct larder_batch **batch, struct larder_error *err);

/* Goes on at position (samples of the epoch over all ranks, as in a state) of epoch: the next larder_loader_next() gives a batch that begins
 * there. What is in flight is given up; batches that the caller holds stay valid. Also backwards, and after an error, which it mends.
 * Calls of larder_loader_next() under way in other threads come first.
 * Errors: EINVAL (beyond the epochs or the epoch: nothing has changed), EFORK, ENOMEM, EIO (the loader is spent until another seek). */
int larder_loader_seek(struct larder_loader *ld, uint64_t epoch, uint64_t position, struct larder_error *err);

/* The same, to where a state says. EINVAL when it is not this loader's: as larder_loader_options.state. */
int larder_loader_load_state(struct larder_loader *ld, const char *text, struct larder_error *err);

/* Gives the batch's slot back to be filled; NULL is allowed. Any thread; does not block. */
void larder_batch_release(const struct larder_batch *batch);

/* What one tier delivered. A delivered sample is a hit in one tier and a miss in each nearer one. */
struct larder_tier_stats {
    uint64_t hits, misses; /* delivered samples */
    uint64_t bytes;        /* fetched from it */
    uint64_t requests;     /* reads submitted to it; DRAM: lookups */
};

/* What the next epoch will ask of a remote origin if the tiers stay as they are: before an epoch, so that its cost is known. */
struct larder_loader_estimate {
    size_t struct_size;
    uint64_t samples;          /* of the epoch */
    uint64_t samples_cached;   /* of these, in a tier now */
    uint64_t gets, bytes;      /* of the origin; 0 for a dataset in a directory */
    double dollars;            /* by the prices of the remote options */
};
/* Set struct_size. The first epoch's is what it was when the loader was opened, before it began to fetch. O(1) where nothing is cached, else by
 * a sample of the epoch's ordinals. EINVAL, EFORK, and what locating records gives. */
int larder_loader_estimate(struct larder_loader *ld, struct larder_loader_estimate *estimate, struct larder_error *err);

/* What the decoded cache did in an epoch, and holds. */
struct larder_decoded_stats {
    uint64_t hits, misses;        /* samples: found decoded; decoded for it */
    uint64_t decode_ns, saved_ns; /* decoding to the stored form, all threads together: took so long for the misses, would have for the hits */
    uint64_t entries, used_bytes, budget_bytes; /* now, of all that share it: samples, memory */
};

/* The numbers of one epoch, from the first larder_loader_next() of it to its LARDER_END. */
struct larder_loader_stats {
    size_t struct_size;
    uint64_t epoch;
    uint64_t samples, batches; /* of this rank; samples that only fill up are not counted */
    uint64_t bytes;        /* of the fields delivered */
    uint64_t seconds_ns;   /* wall time */
    uint64_t fetch_stall_ns; /* the consumer waited for bytes (CoorDL 3) */
    uint64_t prep_stall_ns;  /* the consumer waited for decoding (CoorDL 3) */
    struct larder_tier_stats origin;
    struct larder_tier_stats dram, nvme; /* all 0 where the dataset has no such tier */
    uint64_t order_bytes;  /* of memory that filter, split, weights, the caller's order, lengths of batches and room to assign take */
    uint64_t bad;          /* samples that were bad, as options.bad was told */
    struct larder_decoded_stats decoded; /* a hit is one in no tier, but for those that were decoded after their batch was planned; all 0
                            * without a decoded cache */
    uint64_t epoch_samples, epoch_batches; /* of a whole epoch: positions of its order; batches of this rank */
};

/* Where the run stands, counting every batch that larder_loader_next() gave, as text (JSON, NUL-terminated, less than
 * LARDER_STATE_MAX bytes, of a mix LARDER_STATE_BYTES(its sources)) into text[cap]. The same on every rank, and independent of world, batch size
 * and assignment: goes on with others by larder_loader_options.state, which refuses another dataset, lineage, number of samples, weight, seed or
 * order, naming both values. Where order_is_ranks it is that rank's alone, and with batch_lengths it goes on with the same ones.
 * EINVAL (cap too small), ENOMEM, EFORK. */
#define LARDER_STATE_MAX 512
#define LARDER_STATE_BYTES(n_sources) (LARDER_STATE_MAX + 192 * (size_t)(n_sources)) /* of a mix */
int larder_loader_state(const struct larder_loader *ld, char *text, size_t cap, struct larder_error *err);

/* Warning number i, from 0: what makes training worse or slower than it could be. NULL: there are no more. With SHUFFLE_BLOCK: that a window
 * holds fewer than half of the classes (of a field "label" of integers); the first call reads some pages of that column for it, and says
 * nothing where it cannot. With a decoded cache: that others made it with another budget, or that it could not be shared. Borrowed until
 * larder_loader_close(). */
const char *larder_loader_warning(struct larder_loader *ld, size_t i);

/* Statistics of the epoch that is running, or, after LARDER_END, of the one that ended. Set struct_size. */
int larder_loader_stats(const struct larder_loader *ld, struct larder_loader_stats *stats,
                        struct larder_error *err);

/* Writes the statistics as Prometheus text to the file at path, which is replaced atomically: those of the loader, labelled with its rank, and
 * behind them what larder_cache_metrics() writes of its (first) dataset's cache. EIO, ENOMEM, EINVAL, EFORK. */
int larder_loader_metrics(const struct larder_loader *ld, const char *path, struct larder_error *err);

/* ------------------------------------------------------------------------------------ writer */

enum larder_compression {
    LARDER_COMPRESS_NONE = 0,
    LARDER_COMPRESS_ZSTD = 1,      /* each record on its own */
    LARDER_COMPRESS_ZSTD_DICT = 2  /* with a dictionary trained on the first samples and stored in the dataset */
};

struct larder_writer;

struct larder_writer_options {
    size_t struct_size;
    uint64_t shard_size;    /* bytes of records in a shard; 0: 64 MiB. A larger record gets its own shard. */
    int compression;        /* enum larder_compression; media fields are never compressed again */
    int level;              /* zstd level 1..19; 0: 3 */
    int append;             /* 0: create a new dataset; 1: add to an existing one, same schema */
    const char *const *classes; /* names of the labels, or NULL; on append: must extend the existing ones */
    size_t n_classes;
    const struct larder_remote_options *remote; /* as in larder_dataset_options */
};
#define LARDER_WRITER_OPTIONS_INIT {sizeof(struct larder_writer_options), 0, 0, 0, 0, NULL, 0, NULL}

/* Begins a new generation of the dataset at uri. fields/n_fields give the schema; on append they may be NULL/0
 * (take the dataset's) or must equal it. Nothing is visible to readers before larder_writer_commit().
 * Errors: EEXIST (a dataset is there and append is 0, or the directory holds other things), ENOTFOUND (append, nothing
 * there), EBUSY (another writer is at work), EINVAL (schema, options), EIO, ENOMEM. Owned: larder_writer_commit() or
 * larder_writer_close(). */
int larder_writer_open(const char *uri, const struct larder_field *fields, size_t n_fields,
                       const struct larder_writer_options *opts, struct larder_writer **w,
                       struct larder_error *err);

/* Adds one sample; values has one entry a field, in schema order, data NULL where the sample lacks it. Everything is
 * copied before return. Errors: EINVAL (key length, a scalar's width, sample too large: the writer stays usable), EIO,
 * ENOMEM, EFORK (the writer is then spent; close it). Blocks when sealing falls behind. */
int larder_writer_add(struct larder_writer *w, const void *key, size_t key_len,
                      const struct larder_value *values, struct larder_error *err);

/* Seals, indexes and commits all that was added as one generation, durably, then frees w, also on failure.
 * *generation (may be NULL) gets its number. Errors: EEXIST (a key occurs twice, or is in the dataset already: names
 * it), EBUSY (another writer committed first; nothing was committed), EINVAL (nothing was added), EIO, ENOMEM. In a bucket EREMOTE
 * may mean that the answer to the commit was lost and could not be had again: the message says so, and the files stay. */
int larder_writer_commit(struct larder_writer *w, uint64_t *generation, struct larder_error *err);

/* Abandons what was added and frees; NULL is allowed. */
void larder_writer_close(struct larder_writer *w);

/* ------------------------------------------------------------------------------- long-running work */

/* Progress of a *_run function: called about ten times a second from the calling thread, and once at the end. */
struct larder_progress {
    const char *phase;   /* "list", "ingest", "index", "verify", ...: static */
    uint64_t done, total;/* samples (units of work); total 0: not known */
    uint64_t bytes;      /* handled so far */
    uint64_t skipped;    /* left out because of errors */
};

/* Return nonzero to stop: the function undoes what is half done and returns LARDER_ECANCELED. */
typedef int larder_progress_fn(void *user, const struct larder_progress *progress);

enum larder_order { LARDER_ORDER_SHUFFLED = 0, LARDER_ORDER_SOURCE = 1 };
enum larder_on_error { LARDER_ON_ERROR_FAIL = 0, LARDER_ON_ERROR_SKIP = 1 };

struct larder_ingest_options {
    size_t struct_size;
    const char *format;     /* "dir", "tar" or NULL: by the look of the source */
    uint64_t shard_size;    /* as in larder_writer_options */
    int compression, level;
    unsigned workers;       /* 0: one a CPU */
    const char *fields;     /* dir: NAME[:TYPE] of the file's content; tar: NAME[:TYPE][=EXT[|EXT...]], comma-separated,
                             * other files are left out; NULL: inferred from the source */
    int order;              /* enum larder_order; dir only */
    uint64_t seed;          /* of the shuffle */
    int on_error;           /* enum larder_on_error */
    int append;             /* add to an existing dataset */
    int restart;            /* discard an unfinished ingest with other arguments */
    larder_progress_fn *progress; /* may be NULL, as the two below */
    larder_notice_fn *skipped;    /* a sample or file left out (on_error = SKIP) */
    larder_notice_fn *ignored;    /* hidden and non-regular files, never ingested */
    void *user;
    const struct larder_remote_options *remote; /* as in larder_dataset_options */
};
#define LARDER_INGEST_OPTIONS_INIT                                                                    \
    {sizeof(struct larder_ingest_options), NULL, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL}

struct larder_ingest_report {
    size_t struct_size;
    uint64_t generation;
    uint64_t samples;       /* in the dataset now */
    uint64_t added;         /* by this generation, what an interrupted run had sealed included */
    uint64_t resumed;       /* of these, taken over from an interrupted run */
    uint64_t skipped, ignored;
    uint64_t source_bytes;  /* read */
    uint64_t stored_bytes;  /* written */
    uint64_t shards;        /* added */
};

/* Converts sources into one new generation of the dataset at uri. dir: one folder, one sample a file, key = relative path
 * without extension; if all files lie in folders, field `label` is the rank of the top folder's name. tar: WebDataset
 * naming (key = path up to the first dot of the file name, field = the rest), .tar, .gz, .zst, .xz; braces
 * x-{000..009}.tar expand. Run the same call again after a crash and it goes on where the shards sealed so far end; into a bucket
 * on the same machine, whose scratch folder has the journal: elsewhere it starts anew.
 * Errors: EEXIST (dataset there already; duplicate key), EBUSY, EINVAL (empty source, options; source changed since the
 * interrupted run began), EIO (unreadable file), ECORRUPT (a damaged archive), ECANCELED, ENOMEM.
 * report (struct_size set) may be NULL. */
int larder_ingest_run(const char *const *sources, size_t n_sources, const char *uri,
                      const struct larder_ingest_options *opts, struct larder_ingest_report *report,
                      struct larder_error *err);

/* One damaged place. Strings are borrowed during the call. */
struct larder_damage {
    const char *file;    /* relative to the dataset */
    uint64_t shard_no;   /* position in the manifest; UINT64_MAX: not a shard */
    uint64_t slot;       /* record number in the shard; UINT64_MAX: the file as a whole */
    uint64_t ordinal;    /* LARDER_NO_ORDINAL: none */
    const void *key;     /* NULL: unknown */
    size_t key_len;
    const char *why;
};
typedef void larder_damage_fn(void *user, const struct larder_damage *damage);

struct larder_verify_options {
    size_t struct_size;
    uint64_t generation;   /* 0: the newest */
    uint64_t subset_n, subset_t; /* check part n of t (1 <= n <= t) of the shards and index files; 0, 0: all */
    unsigned workers;      /* 0: one a CPU */
    larder_progress_fn *progress;
    larder_damage_fn *damage; /* called from one thread at a time */
    void *user;
    const struct larder_remote_options *remote; /* as in larder_dataset_options */
};
#define LARDER_VERIFY_OPTIONS_INIT {sizeof(struct larder_verify_options), 0, 0, 0, 0, NULL, NULL, NULL, NULL}

struct larder_verify_report {
    size_t struct_size;
    uint64_t generation, shards, samples, bytes; /* checked */
    uint64_t damaged;                            /* places */
};

/* Checks the whole chain manifest -> index -> footers -> records, and that every key is found where its record lies.
 * LARDER_OK: all is well; LARDER_ECORRUPT: report->damaged places were found and told to opts->damage; others as usual. */
int larder_verify_run(const char *uri, const struct larder_verify_options *opts,
                      struct larder_verify_report *report, struct larder_error *err);

struct larder_repair_options {
    size_t struct_size;
    int dry_run;              /* report only */
    larder_progress_fn *progress;
    larder_damage_fn *damage; /* what is dropped */
    void *user;
    const struct larder_remote_options *remote; /* as in larder_dataset_options */
};
#define LARDER_REPAIR_OPTIONS_INIT {sizeof(struct larder_repair_options), 0, NULL, NULL, NULL, NULL}

struct larder_repair_report {
    size_t struct_size;
    uint64_t generation;      /* committed by the repair; 0: nothing needed mending */
    uint64_t samples, dropped;
    uint64_t shards, shards_rewritten, shards_dropped;
    int lineage_changed;      /* samples were dropped, so ordinals moved */
};

/* Rebuilds index and manifest from the shards; drops what fails its checks; never touches a good file: damaged shards
 * stay on disk until larder_gc_run(). Writes nothing when nothing is wrong. */
int larder_repair_run(const char *uri, const struct larder_repair_options *opts,
                      struct larder_repair_report *report, struct larder_error *err);

struct larder_gc_options {
    size_t struct_size;
    uint64_t keep;            /* newest generations to keep; 0: 1 */
    uint64_t min_age_s;       /* a generation superseded, or a stray file written, later than this many seconds ago stays:
                               * a live reader may have it pinned. UINT64_MAX: 24 h */
    int dry_run;
    larder_notice_fn *removed;
    void *user;
    const struct larder_remote_options *remote; /* as in larder_dataset_options */
};
#define LARDER_GC_OPTIONS_INIT {sizeof(struct larder_gc_options), 0, UINT64_MAX, 0, NULL, NULL, NULL}

struct larder_gc_report {
    size_t struct_size;
    uint64_t generations, files, bytes; /* removed */
    uint64_t young;                     /* generations kept because they are young */
};

/* Removes generations beyond the newest `keep` and files that no generation names; of a bucket also uploads that were never finished.
 * An ingest into a bucket that another machine has at work is protected by min_age_s alone. */
int larder_gc_run(const char *uri, const struct larder_gc_options *opts, struct larder_gc_report *report,
                  struct larder_error *err);

struct larder_copy_options {
    size_t struct_size;
    uint64_t generation;      /* the one to copy; 0: the newest */
    unsigned workers;         /* objects under way at once; 0: 8 */
    int checksum;             /* 1: objects that are there already are read and compared, not only by size and trailer */
    larder_progress_fn *progress;
    void *user;
    const struct larder_remote_options *remote; /* of both ends */
};
#define LARDER_COPY_OPTIONS_INIT {sizeof(struct larder_copy_options), 0, 0, 0, NULL, NULL, NULL}

struct larder_copy_report {
    size_t struct_size;
    uint64_t generation, samples, shards;
    uint64_t files, bytes;          /* copied now */
    uint64_t files_there;           /* copied by an earlier run, and whole */
};

/* Copies one generation of the dataset at src to dst, directory or bucket each: shards, index, manifest, in this order, so that dst
 * is a dataset or nothing at any time. uuid, lineage and ordinals are kept: caches of one serve the other. What an interrupted run has
 * brought over is kept. Every byte is checked on its way (record and page CRCs), the result by `verify`.
 * Errors: ENOTFOUND (no dataset at src), EEXIST (another dataset at dst, or a newer generation), EBUSY, ECORRUPT, EIO, EREMOTE, ETIMEOUT,
 * ECANCELED, ENOMEM, EINVAL. */
int larder_copy_run(const char *src, const char *dst, const struct larder_copy_options *opts, struct larder_copy_report *report,
                    struct larder_error *err);

struct larder_export_options {
    size_t struct_size;
    const char *format;       /* "dir", "tar" or NULL: by the look of the destination */
    uint64_t first, count;    /* ordinals; count 0: to the end */
    larder_progress_fn *progress;
    void *user;
};
#define LARDER_EXPORT_OPTIONS_INIT {sizeof(struct larder_export_options), NULL, 0, 0, NULL, NULL}

struct larder_export_report {
    size_t struct_size;
    uint64_t samples, files, bytes;
    uint64_t renamed; /* keys that are not safe as paths ("../x", "/x", bytes that are no file name), percent-encoded */
};

/* Writes samples as files: dir: KEY.EXT below a new or empty folder; tar: the same names as members of one tar
 * (.tar, .tar.gz, .tar.zst, .tar.xz), which ingest reads back. EXT is the field's name (media of a lone image or audio field:
 * the codec's usual extension). Never writes outside the destination, whatever the keys. */
int larder_export_run(struct larder_dataset *ds, const char *dest, const struct larder_export_options *opts,
                      struct larder_export_report *report, struct larder_error *err);

#ifdef __cplusplus
}
#endif
#endif
