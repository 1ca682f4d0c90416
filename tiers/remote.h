/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h - objects below an URL: s3://bucket/prefix, or http(s)://host/prefix (read only).
 *
 *     remote.c       one request: signing, retries, back-off, deadlines, hedging
 *     remote_answer.c  what an answer means, and in which words an error is said
 *     remote_open.c  URIs and options, opening and closing, statistics
 *     remote_io.c    struct store_io over it: what the store does through an io works on a bucket
 *     origin_http.c  the origin of a stack: its segments travel as ranged GETs
 *
 * A request is retried by itself when its failure may pass: broken connections, short or stalled bodies, 429, 5xx, wrong ranges, a
 * clock that is off (corrected by the server's Date), expired credentials (fetched anew). Waits between tries are drawn from
 * [0, min(20 s, 100 ms * 2^try)] (full jitter), at least what Retry-After says (at most 60 s). Three things bound it: tries a
 * request, the deadline of the request, and the remote's budget of retries, which all its requests share: MAX(100, 4 * requests_max) at
 * once; each costs one, a success brings back a half, and ten come back each second. Where none is left a retry waits for its turn, so
 * a server in trouble is not hammered by hundreds of requests at once, and one that is gone for seconds ends no epoch.
 */
#ifndef LARDER_TIERS_REMOTE_H
#define LARDER_TIERS_REMOTE_H

#include "tiers/s3.h"

struct remote;
bool uri_is_remote(const char *uri); /* "s3://", "http://", "https://" */
/* o may be NULL. Nothing is sent yet. EINVAL: the uri. */
int remote_open(const char *uri, const struct larder_remote_options *o, struct remote **r, struct larder_error *err);
void remote_close(struct remote *r); /* ends what is in flight; after its users. In a forked child memory only. */
const char *remote_uri(const struct remote *r); /* as given, without user:password: for messages */
bool remote_writable(const struct remote *r);   /* s3 */
const struct larder_remote_options *remote_options(const struct remote *r); /* with defaults filled in; strings are borrowed from r */

enum remote_priority {
    REMOTE_DEMAND,  /* somebody waits for it */
    REMOTE_STREAM   /* ahead of need: goes when no demand waits for a connection; a quarter of the connections are kept for demand */
};

/* One request, retries included. Zero it, fill in the first part; it and all that it points to stay until done. */
struct remote_request {
    enum http_method method;
    const char *name;            /* object below the prefix, not encoded; NULL: the bucket itself */
    const char *query;           /* "list-type=2&prefix=a%2F": encoded and sorted; NULL: none. prefix= of a listing is the caller's to add */
    const char *const *headers;  /* further "name: value" lines, lower-case names; */
    size_t n_headers;
    const void *body; size_t body_len;
    bool create;                 /* PUT: If-None-Match: *; LARDER_EEXIST when it is there. A try that was repeated after its answer got lost and
                                  * then finds the object reads it: its own bytes are success. */
    const char *if_match;        /* GET: ETag that it must have; else LARDER_EBUSY: "was replaced while it was read" */
    bool ranged;                 /* GET: exactly [offset, offset + len) into buf; a shorter object is LARDER_ECORRUPT */
    uint64_t offset; size_t len; void *buf;
    /* ranged: in place of buf. Gets the bytes as they come, on a loop's thread; must not block. at: where in the range; 0 again when a try
     * is repeated. What comes is of an answer whose status, range and ETag fit (those are filled in below by then), but the answer is not
     * complete yet: whoever uses its bytes before done has to know by other means that they are right. */
    void (*sink)(struct remote_request *q, size_t at, const void *data, size_t len);
    struct buf *out; size_t out_max; /* else: the whole body */
    enum remote_priority priority;
    uint64_t deadline_ns;        /* of now_ns(); 0: the remote's timeout from start */
    void (*done)(struct remote_request *q); /* on a loop's thread; must not block; may start others, start q again, or free it */
    void *user;
    /* results */
    int rc;                      /* LARDER_OK; ENOTFOUND (404), EEXIST, EBUSY (412), EREMOTE, ETIMEOUT, ECANCELED, ECORRUPT, ENOMEM, EIO */
    struct larder_error error;
    int status;
    char etag[80];               /* as it came, quotes included */
    uint64_t object_size;        /* of Content-Range or Content-Length; UINT64_MAX: not told */
    uint64_t modified_s;
    unsigned tries;
    uint64_t begin_ns, end_ns;
    /* remote.c's */
    struct http_transfer transfer;
    void *own;
    struct remote *remote;
};
void remote_start(struct remote *r, struct remote_request *q); /* never blocks; all outcomes come through done (in a forked child: EFORK, from
                                                                * within the call) */
void remote_cancel(struct remote *r, struct remote_request *q); /* done comes soon, ECANCELED unless it was over */
/* Blocking (so not in done): starts n requests (done and user are remote.c's) and waits for all. Returns the first rc that is not OK, in order, and its
 * error; all are over in any case. */
int remote_run(struct remote *r, struct remote_request *q, size_t n, struct larder_error *err);
/* Bytes that came were not what they should be (CRC, page check): counts a retry of that cause against the budget. False: give up.
 * For callers who check themselves and read again. */
bool remote_damaged(struct remote *r);
/* Bytes of GETs that somebody used: what is fetched and not used is over-read. */
void remote_used(struct remote *r, uint64_t bytes);
void remote_stats(const struct remote *r, struct larder_remote_stats *out); /* all but struct_size */
/* "64 GETs in flight, 61 retries (503), 0 B/s for 12 s": what is going on now. */
void remote_state(const struct remote *r, char out[160]);

/* Of headers; they take any text. "bytes 0-9/100", "bytes 0-9/" "*" (total UINT64_MAX), "bytes *" "/100" (first and last UINT64_MAX). */
bool remote_content_range(const char *text, uint64_t *first, uint64_t *last, uint64_t *total);
uint64_t remote_retry_after_s(const char *text, uint64_t now_s); /* seconds or a date; 0: none; 60 at most */

/* ---- remote_io.c ---- */

/* struct store_io over objects below uri. Multipart uploads of parts of part_bytes (8 MiB and more), at most 4 in flight an object, so
 * that memory is bounded. write_ only for s3 (EINVAL else). work_root: a folder of this uri's own below the scratch folder, made
 * at first use. */
int remote_io_open(const char *uri, const struct larder_remote_options *o, struct store_io **io, struct larder_error *err);
struct remote *remote_of(struct store_io *io); /* NULL: io is no remote one */
/* Aborts multipart uploads below the prefix that began more than min_age_s ago; how many. */
int remote_uploads_abort(struct remote *r, uint64_t min_age_s, uint64_t *n, struct larder_error *err);

#endif
