/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.h - the door of http.c: HTTP transfers, event-driven, over kept connections. One attempt each: who retries, and what a
 * status means, is decided above (remote.c).
 *
 * A struct http runs one or more event loops, a thread each; a transfer belongs to one of them. Bodies land where the caller
 * says, without a copy of larder's own. Nothing here knows S3.
 */
#ifndef LARDER_TIERS_HTTP_H
#define LARDER_TIERS_HTTP_H

#include "store/base/base.h"

enum http_method { HTTP_GET, HTTP_HEAD, HTTP_PUT, HTTP_POST, HTTP_DELETE };

struct http;
struct http_loop;
struct http_options {
    unsigned loops;            /* event-loop threads; 0: 1 */
    unsigned connections;      /* at once, in all; 0: 256. Transfers beyond it wait their turn. */
    unsigned kept_for_urgent;  /* of them, for urgent transfers only */
    unsigned connect_ms;       /* deadline of name lookup, TCP and TLS; 0: 10,000 */
    unsigned stall_ms;         /* no byte in this time ends a transfer; 0: 20,000 */
    const char *ca_bundle;     /* file or folder; NULL: the system's. Borrowed during the call, as all strings here. */
    bool insecure;             /* certificates are not verified */
    const char *user_agent;
};

/* Why a transfer ended without a status that can be trusted. */
enum http_end {
    HTTP_DONE,       /* status and the whole body came, or a status that is not 2xx and as much of its body as anybody reads */
    HTTP_CANCELED,
    HTTP_NAME,       /* the host has no address */
    HTTP_CONNECT,    /* refused, unreachable, or no answer within connect_ms */
    HTTP_TLS,        /* the certificate or the handshake failed: not worth a retry */
    HTTP_RESET,      /* the connection broke before the response was whole */
    HTTP_SHORT,      /* the body ended before Content-Length */
    HTTP_STALLED,    /* stall_ms without a byte */
    HTTP_LATE,       /* deadline_ns passed */
    HTTP_TOO_LONG,   /* more bytes than there is room for */
    HTTP_BAD,        /* not HTTP, or a URL that cannot be used */
    HTTP_NOMEM
};
const char *http_end_name(enum http_end end); /* "connection reset", ...: static */

/* The response headers that anybody asks for, as they came, cut to fit; "" where absent. */
struct http_headers {
    char etag[80], content_range[64], retry_after[40], date[40], last_modified[40], content_type[48], region[32], location[256],
        request_id[64];
    uint64_t content_length;   /* UINT64_MAX: not given */
};

/* One transfer. The caller owns it and keeps it, and all that it points to, unchanged from http_start until done is called. */
struct http_transfer {
    enum http_method method;
    const char *url;               /* complete and encoded */
    const char *const *headers;    /* "Name: value" lines, n_headers of them; "Name:" suppresses one that would be sent */
    size_t n_headers;
    const void *body;              /* PUT, POST */
    size_t body_len;
    void *buf;                     /* where a 2xx body goes: room for buf_len bytes; */
    size_t buf_len;
    void (*sink)(struct http_transfer *t, const void *data, size_t len); /* or is handed on as it comes, at most buf_len bytes: on the
                                    * loop's thread, must not block; `got` bytes came before */
    struct buf *out;               /* or, when buf is NULL, appended here, at most out_max bytes */
    size_t out_max;
    uint64_t not_before_ns;        /* of now_ns(): starts then (a back-off); 0: at once */
    uint64_t deadline_ns;          /* of now_ns(): over then, whatever happens; 0: none */
    bool urgent;                   /* before waiting transfers that are not */
    void (*done)(struct http_transfer *t); /* on the loop's thread; must not block. It may start t again, or free it. */
    void *user;
    /* results, valid in done */
    enum http_end end;
    int status;                    /* 0: none came */
    size_t got;                    /* bytes in buf, handed on, or appended to out */
    struct http_headers in;
    char text[1024];               /* beginning of a body that is not 2xx, NUL-terminated (S3's error document) */
    size_t text_len;
    char why[256];                 /* libcurl's words, when end is not HTTP_DONE; holds no header and no query */
    uint64_t begin_ns, first_byte_ns, end_ns; /* of now_ns(); begin: it left the queue; 0: it never did, or no byte came */
    bool retried;                  /* a kept connection was dead and another was used, once: curl does that by itself */
    /* the loop's */
    void *easy, *lines;
    struct http_loop *loop;
    struct http_transfer *next, *prev;
    uint64_t heap_key; size_t heap_at;
    atomic_int state;
    bool canceled, settled, sending, headed; /* canceled: under the loop's lock */
    struct http_transfer *cancel_next;
    uint64_t last_ns;              /* of the last byte, either way */
    uint64_t sent;
    size_t header_bytes, dropped;
};

int http_open(const struct http_options *o, struct http **h, struct larder_error *err);
/* Ends all transfers (HTTP_CANCELED; one that is started again from done, too) and the loops, at once. Not from done. In a forked
 * child: gives back memory and descriptors, calls nobody. */
void http_close(struct http *h);
/* Never blocks; any thread, done callbacks too. All outcomes, out of memory too, come through done. In a forked child done is
 * called at once, with HTTP_CANCELED. */
void http_start(struct http *h, struct http_transfer *t);
/* Ends t soon: done comes with HTTP_CANCELED, unless it is over already. Any thread; t has to be alive. */
void http_cancel(struct http *h, struct http_transfer *t);
struct http_stats { uint64_t transfers, bytes_in, bytes_out, connections; unsigned in_flight, waiting; uint64_t last_byte_ns; };
void http_stats(struct http *h, struct http_stats *out); /* bytes of bodies that were wanted; connections tried */

#endif
