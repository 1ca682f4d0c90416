/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http.c - HTTP transfers over kept connections; the only file that includes curl/curl.h.
 *
 * A loop is a thread with an epoll set, a curl multi handle driven by curl_multi_socket_action, and its share of the connections.
 * A transfer belongs to one loop, the one with the least to do when it was started:
 *
 *     http_start -> inbox --take--> waiting (not_before) --> ready --admit--> active --> over: done(t)
 *                             \------------------------------/ urgent first      (curl has it)
 *
 * A heap holds the next moment at which something is due for a transfer: its not_before, its deadline, or, while active, the
 * moment at which it would have stalled. That one is looked at lazily: when it comes, the last byte says whether it counts.
 *
 * Invariants: the thread of a loop alone touches curl, lists and heap; inbox, cancels and the canceled flags are under its lock,
 * which is never held across a callback. A transfer is in exactly one of inbox, ready list, active list, or, waiting, in the heap alone.
 * done is called once for each start, with no lock held, when curl has let go of the transfer: nothing writes into its memory
 * any more. At most LOOKUPS_MAX transfers are between their admission and a socket, because curl looks a name up in a thread.
 *
 * Threads: http_start, http_cancel and http_stats from any, done callbacks included. Signals are blocked in the loops.
 */
#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/http.h"

#if LIBCURL_VERSION_NUM < 0x075700
#error "libcurl 7.87 or newer is needed: curl_global_init that threads may call, CURLOPT_QUICK_EXIT"
#endif

#define EVENTS_MAX 256
#define LOOKUPS_MAX 8u
#define LOOPS_MAX 64u
#define HEADER_BYTES_MAX (256u * 1024) /* of one response, interim ones included */
#define DROPPED_MAX (256u * 1024)      /* of a body that nobody wants: read, so that the connection is kept */
#define BUFFERS_BYTES (64u * 1024 * 1024) /* of all connections together, at most 512 KiB each */
#define MS 1000000ull

enum state { IDLE, INBOX, WAITING, READY, ACTIVE, OVER };

struct transfer_list { struct http_transfer *head, *tail; };

struct http_loop {
    struct http *http;
    pthread_t thread;
    bool running;
    CURLM *multi;
    CURLSH *share;                      /* TLS sessions, so that a new connection resumes one */
    int epoll, event;
    uint64_t curl_at;                   /* when curl wants to be called; UINT64_MAX: not */
    struct transfer_list ready[2], active; /* ready[1]: urgent */
    struct http_transfer **heap;
    size_t n_heap, cap_heap;
    CURL **idle;                        /* handles to use again */
    size_t n_known;                     /* taken in and not over */
    unsigned n_idle, n_active, n_plain, n_unsettled; /* n_plain: active and not urgent */
    unsigned limit, limit_plain;
    int *sockets;                       /* open ones, or -1: a forked child closes them */
    size_t n_sockets;
    pthread_mutex_t lock;               /* guards the rest, but for atomics */
    struct transfer_list inbox;
    struct http_transfer *cancels;
    bool stop;
    _Atomic uint64_t transfers, bytes_in, bytes_out, connections, last_byte_ns;
    atomic_uint in_flight, waiting;
};

struct http {
    struct http_options o;
    char *ca_bundle, *user_agent;
    char *proxy[2], *no_proxy; /* of the environment; proxy[1]: for https. "": none */
    bool ca_folder, curl_ready;
    long buffer_bytes;
    pid_t pid;
    unsigned n_loops;
    struct http_loop *loops;
};

const char *http_end_name(enum http_end end)
{
    static const char *const names[] = {
        [HTTP_DONE] = "done", [HTTP_CANCELED] = "canceled", [HTTP_NAME] = "host name not found", [HTTP_CONNECT] = "no connection",
        [HTTP_TLS] = "TLS failed", [HTTP_RESET] = "connection reset", [HTTP_SHORT] = "body too short", [HTTP_STALLED] = "stalled",
        [HTTP_LATE] = "deadline passed", [HTTP_TOO_LONG] = "body too long", [HTTP_BAD] = "not HTTP", [HTTP_NOMEM] = "out of memory",
    };
    return (size_t)end < ARRAY_LEN(names) ? names[end] : "?";
}

/* ---- lists and the heap ---- */

static void list_push(struct transfer_list *l, struct http_transfer *t)
{
    t->next = NULL;
    t->prev = l->tail;
    if (l->tail)
        l->tail->next = t;
    else
        l->head = t;
    l->tail = t;
}

static void list_remove(struct transfer_list *l, struct http_transfer *t)
{
    if (t->prev)
        t->prev->next = t->next;
    else
        l->head = t->next;
    if (t->next)
        t->next->prev = t->prev;
    else
        l->tail = t->prev;
    t->next = t->prev = NULL;
}

static void heap_put(struct http_loop *l, size_t i, struct http_transfer *t)
{
    l->heap[i] = t;
    t->heap_at = i + 1;
}

static void heap_sift(struct http_loop *l, size_t i)
{
    struct http_transfer *t = l->heap[i];
    while (i > 0 && l->heap[(i - 1) / 2]->heap_key > t->heap_key) {
        heap_put(l, i, l->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    for (size_t child; (child = 2 * i + 1) < l->n_heap; i = child) {
        if (child + 1 < l->n_heap && l->heap[child + 1]->heap_key < l->heap[child]->heap_key)
            child++;
        if (l->heap[child]->heap_key >= t->heap_key)
            break;
        heap_put(l, i, l->heap[child]);
    }
    heap_put(l, i, t);
}

static void heap_remove(struct http_loop *l, struct http_transfer *t)
{
    if (!t->heap_at)
        return;
    size_t i = t->heap_at - 1;
    t->heap_at = 0;
    if (i == --l->n_heap)
        return;
    heap_put(l, i, l->heap[l->n_heap]);
    heap_sift(l, i);
}

/* Something is due for t at that time; UINT64_MAX: never. There is room: take_in saw to it. */
static void heap_set(struct http_loop *l, struct http_transfer *t, uint64_t at)
{
    if (at == UINT64_MAX) {
        heap_remove(l, t);
        return;
    }
    t->heap_key = at;
    if (!t->heap_at)
        heap_put(l, l->n_heap++, t);
    heap_sift(l, t->heap_at - 1);
}

/* ---- what curl calls ---- */

static void count(_Atomic uint64_t *n, uint64_t by) { atomic_fetch_add_explicit(n, by, memory_order_relaxed); }

/* Heads and errors keep a transfer from stalling; what is asked for is what statistics call bytes. */
static void touched(struct http_transfer *t, bool wanted)
{
    t->last_ns = now_ns();
    if (wanted)
        atomic_store_explicit(&t->loop->last_byte_ns, t->last_ns, memory_order_relaxed);
}

/* It has a connection, or the address for one: no lookup is needed any more. */
static void settle(struct http_transfer *t)
{
    if (!t->settled)
        t->loop->n_unsettled--;
    t->settled = true;
}

/* A descriptor may have been closed and opened again since it was last seen. Never fails: -1 would end curl's multi handle for
 * good, while a transfer whose socket cannot be watched stalls and is repeated. */
static int on_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *known)
{
    struct http_loop *l = user;
    (void)easy, (void)known;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(l->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    struct epoll_event e = {.data.fd = fd};
    e.events = (what & CURL_POLL_IN ? (unsigned)EPOLLIN : 0) | (what & CURL_POLL_OUT ? (unsigned)EPOLLOUT : 0);
    if (epoll_ctl(l->epoll, EPOLL_CTL_MOD, fd, &e) != 0)
        epoll_ctl(l->epoll, EPOLL_CTL_ADD, fd, &e);
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *user)
{
    struct http_loop *l = user;
    (void)multi;
    l->curl_at = ms < 0 ? UINT64_MAX : now_ns() + (uint64_t)ms * MS;
    return 0;
}

static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *a)
{
    struct http_transfer *t = user;
    struct http_loop *l = t->loop;
    (void)purpose;
    settle(t);
    int fd = socket(a->family, a->socktype | SOCK_CLOEXEC, a->protocol);
    if (fd < 0)
        return CURL_SOCKET_BAD;
    count(&l->connections, 1);
    for (size_t i = 0; i < l->n_sockets; i++)
        if (l->sockets[i] < 0) {
            l->sockets[i] = fd;
            break;
        }
    return fd;
}

static int close_socket(void *user, curl_socket_t fd)
{
    struct http_loop *l = user;
    for (size_t i = 0; i < l->n_sockets; i++)
        if (l->sockets[i] == fd)
            l->sockets[i] = -1;
    return close(fd);
}

/* The request is about to be sent. A second time means that a kept connection turned out to be dead. */
static int on_request(void *user, char *to, char *from, int to_port, int from_port)
{
    struct http_transfer *t = user;
    (void)to, (void)from, (void)to_port, (void)from_port;
    settle(t);
    t->retried = t->sending;
    t->sending = true;
    t->last_ns = now_ns();
    return CURL_PREREQFUNC_OK;
}

static int on_progress(void *user, curl_off_t down_all, curl_off_t down, curl_off_t up_all, curl_off_t up)
{
    struct http_transfer *t = user;
    (void)down_all, (void)down, (void)up_all;
    if ((uint64_t)up > t->sent) {
        count(&t->loop->bytes_out, (uint64_t)up - t->sent);
        touched(t, true);
    }
    t->sent = (uint64_t)up;
    return 0;
}

static uint64_t parse_length(const char *text)
{
    uint64_t n = 0;
    if (*text < '0' || *text > '9')
        return UINT64_MAX;
    for (; *text >= '0' && *text <= '9'; text++) {
        if (n > (UINT64_MAX - 9) / 10)
            return UINT64_MAX;
        n = n * 10 + (uint64_t)(*text - '0');
    }
    return *text ? UINT64_MAX : n;
}

static void keep_header(struct http_headers *in, const char *name, size_t name_len, const char *value, size_t len)
{
    static const struct { const char *name; size_t at, size; } wanted[] = {
#define HEADER(name, member) {name, offsetof(struct http_headers, member), sizeof(((struct http_headers *)0)->member)}
        HEADER("etag", etag), HEADER("content-range", content_range), HEADER("retry-after", retry_after), HEADER("date", date),
        HEADER("last-modified", last_modified), HEADER("content-type", content_type), HEADER("x-amz-bucket-region", region),
        HEADER("location", location), HEADER("x-amz-request-id", request_id),
#undef HEADER
    };
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
        if (strlen(wanted[i].name) == name_len && strncasecmp(wanted[i].name, name, name_len) == 0)
            snprintf((char *)in + wanted[i].at, wanted[i].size, "%.*s", (int)len, value);
    if (name_len == 14 && strncasecmp(name, "content-length", 14) == 0) {
        char digits[24];
        snprintf(digits, sizeof(digits), "%.*s", (int)len, value);
        in->content_length = parse_length(digits);
    }
}

/* One line of the head, its end included. An interim response (100) is followed by another status line. */
static size_t on_header(char *line, size_t one, size_t len, void *user)
{
    struct http_transfer *t = user;
    (void)one;
    touched(t, false);
    if (!t->first_byte_ns)
        t->first_byte_ns = t->last_ns;
    t->header_bytes += len;
    if (t->header_bytes > HEADER_BYTES_MAX) {
        t->end = HTTP_BAD;
        return 0;
    }
    if (len > 5 && memcmp(line, "HTTP/", 5) == 0) {
        const char *space = memchr(line, ' ', len);
        memset(&t->in, 0, sizeof(t->in));
        t->in.content_length = UINT64_MAX;
        t->status = 0;
        t->headed = false;
        for (size_t i = 1; space && i <= 3 && space + i < line + len && space[i] >= '0' && space[i] <= '9'; i++)
            t->status = t->status * 10 + (space[i] - '0');
        return len;
    }
    t->headed |= *line == '\r' || *line == '\n';
    const char *colon = memchr(line, ':', len), *value = colon ? colon + 1 : NULL, *end = line + len;
    if (!colon)
        return len;
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    while (end > value && ((unsigned char)end[-1] <= ' '))
        end--;
    keep_header(&t->in, line, (size_t)(colon - line), value, (size_t)(end - value));
    return len;
}

/* A body that is not 2xx, or that nobody asked for: its beginning is kept, the rest read as far as that is cheaper than a new
 * connection. */
static size_t drop_body(struct http_transfer *t, const char *data, size_t len)
{
    size_t keep = MIN(len, sizeof(t->text) - 1 - t->text_len);
    memcpy(t->text + t->text_len, data, keep);
    t->text_len += keep;
    t->text[t->text_len] = 0;
    t->dropped += len;
    return t->dropped > DROPPED_MAX ? 0 : len;
}

static size_t on_body(char *data, size_t one, size_t len, void *user)
{
    struct http_transfer *t = user;
    bool wanted = t->status / 100 == 2 && (t->buf || t->sink || t->out);
    (void)one;
    touched(t, wanted);
    if (!wanted)
        return drop_body(t, data, len);
    count(&t->loop->bytes_in, len);
    size_t room = t->buf || t->sink ? t->buf_len : t->out_max;
    if (len > room - t->got || (t->in.content_length != UINT64_MAX && t->in.content_length > room)) {
        t->end = HTTP_TOO_LONG;
        return 0;
    }
    if (t->sink)
        t->sink(t, data, len);
    else if (t->buf)
        memcpy((uint8_t *)t->buf + t->got, data, len);
    else if (buf_append(t->out, data, len, NULL) != LARDER_OK) {
        t->end = HTTP_NOMEM;
        return 0;
    }
    t->got += len;
    return len;
}

/* ---- one transfer through curl ---- */

static CURL *easy_get(struct http_loop *l)
{
    if (l->n_idle)
        return l->idle[--l->n_idle];
    CURL *easy = curl_easy_init();
    if (easy)
        curl_easy_setopt(easy, CURLOPT_SHARE, l->share);
    return easy;
}

/* A handle that never got a connection still holds a buffer, and refuses CURLOPT_BUFFERSIZE: away with it. */
static void easy_put(struct http_loop *l, CURL *easy, bool used)
{
    if (used && l->n_idle < l->limit) {
        curl_easy_reset(easy);
        l->idle[l->n_idle++] = easy;
    } else {
        curl_easy_cleanup(easy);
    }
}

/* The environment is read when h is opened: curl would read it for every transfer, while the application may be changing it. What is
 * on this link, as where clouds give out credentials, is not asked through a proxy. */
static const char *proxy_for(const struct http *h, const char *url)
{
    bool link = strncmp(url, "http://169.254.", 15) == 0 || strncmp(url, "http://[fd00:ec2::", 18) == 0;
    return link ? "" : h->proxy[strncasecmp(url, "https:", 6) == 0];
}

/* What all transfers have in common. */
static bool set_common(struct http *h, struct http_loop *l, CURL *e, struct http_transfer *t)
{
    bool ok = true;
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, h->buffer_bytes); /* may be refused; then it is a smaller one */
#define SET(option, value) (ok &= curl_easy_setopt(e, option, value) == CURLE_OK)
    SET(CURLOPT_NOSIGNAL, 1L);
    SET(CURLOPT_QUICK_EXIT, 1L); /* canceling does not wait for a name server */
    SET(CURLOPT_PROTOCOLS_STR, "http,https");
    SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    SET(CURLOPT_PATH_AS_IS, 1L); /* a key may hold "/../", and the signature is over what is sent */
    SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    SET(CURLOPT_DNS_SHUFFLE_ADDRESSES, 1L);
    SET(CURLOPT_TCP_KEEPALIVE, 1L);
    SET(CURLOPT_CONNECTTIMEOUT_MS, (long)h->o.connect_ms);
    SET(CURLOPT_ERRORBUFFER, t->why);
    SET(CURLOPT_PRIVATE, t);
    SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
    SET(CURLOPT_OPENSOCKETDATA, t);
    SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
    SET(CURLOPT_CLOSESOCKETDATA, l);
    SET(CURLOPT_PREREQFUNCTION, on_request);
    SET(CURLOPT_PREREQDATA, t);
    SET(CURLOPT_HEADERFUNCTION, on_header);
    SET(CURLOPT_HEADERDATA, t);
    SET(CURLOPT_WRITEFUNCTION, on_body);
    SET(CURLOPT_WRITEDATA, t);
    SET(CURLOPT_USERAGENT, h->user_agent);
    SET(CURLOPT_PROXY, proxy_for(h, t->url));
    SET(CURLOPT_NOPROXY, h->no_proxy);
    if (h->ca_bundle) { /* those and no others: NULL takes away curl's own */
        SET(CURLOPT_CAPATH, h->ca_folder ? h->ca_bundle : NULL);
        SET(CURLOPT_CAINFO, h->ca_folder ? NULL : h->ca_bundle);
    }
    if (h->o.insecure) {
        SET(CURLOPT_SSL_VERIFYPEER, 0L);
        SET(CURLOPT_SSL_VERIFYHOST, 0L);
    }
    return ok;
}

/* The caller's lines behind our own, without copying them: curl only reads the list. */
static bool set_headers(CURL *e, struct http_transfer *t)
{
    bool ok = true;
    struct curl_slist *list = malloc((t->n_headers + 2) * sizeof(*list));
    t->lines = list;
    if (!list)
        return false;
    for (size_t i = 0; i < t->n_headers; i++)
        list[i] = (struct curl_slist){(char *)t->headers[i], &list[i + 1]};
    list[t->n_headers] = (struct curl_slist){(char *)"Expect:", &list[t->n_headers + 1]};
    list[t->n_headers + 1] = (struct curl_slist){(char *)"Content-Type:", NULL};
    SET(CURLOPT_HTTPHEADER, list);
    return ok;
}

static bool set_method(CURL *e, struct http_transfer *t)
{
    bool ok = true;
    switch (t->method) {
    case HTTP_GET:
        SET(CURLOPT_HTTPGET, 1L);
        break;
    case HTTP_HEAD:
        SET(CURLOPT_NOBODY, 1L);
        break;
    case HTTP_DELETE:
        SET(CURLOPT_CUSTOMREQUEST, "DELETE");
        break;
    case HTTP_PUT:
    case HTTP_POST:
        if (t->method == HTTP_PUT)
            SET(CURLOPT_CUSTOMREQUEST, "PUT");
        SET(CURLOPT_POST, 1L);
        SET(CURLOPT_POSTFIELDS, t->body_len ? (const char *)t->body : "");
        SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->body_len);
        SET(CURLOPT_UPLOAD_BUFFERSIZE, 256L * 1024);
        SET(CURLOPT_NOPROGRESS, 0L);
        SET(CURLOPT_XFERINFOFUNCTION, on_progress);
        SET(CURLOPT_XFERINFODATA, t);
        break;
    }
    return ok;
}
#undef SET

/* Over: nothing of the loop refers to t any more. */
static void over(struct http_loop *l, struct http_transfer *t, enum http_end end)
{
    heap_remove(l, t);
    l->n_known--;
    pthread_mutex_lock(&l->lock);
    if (t->canceled)
        for (struct http_transfer **at = &l->cancels; *at; at = &(*at)->cancel_next)
            if (*at == t) {
                *at = t->cancel_next;
                break;
            }
    atomic_store(&t->state, OVER);
    pthread_mutex_unlock(&l->lock);
    t->end = end;
    t->end_ns = now_ns();
    count(&l->transfers, 1);
    t->done(t);
}

/* Takes an active transfer out of curl. A connection in the middle of a response is closed by that. */
static void deactivate(struct http_loop *l, struct http_transfer *t)
{
    settle(t);
    if (t->easy) {
        curl_multi_remove_handle(l->multi, t->easy);
        easy_put(l, t->easy, t->sending);
    }
    t->easy = NULL;
    free(t->lines);
    t->lines = NULL;
    list_remove(&l->active, t);
    l->n_active--;
    l->n_plain -= !t->urgent;
    atomic_fetch_sub(&l->in_flight, 1);
}

/* Ends t from wherever it is. */
static void end(struct http_loop *l, struct http_transfer *t, enum http_end why)
{
    int state = atomic_load(&t->state);
    if (state == ACTIVE) {
        deactivate(l, t);
    } else {
        if (state == READY)
            list_remove(&l->ready[t->urgent], t);
        atomic_fetch_sub(&l->waiting, 1);
    }
    over(l, t, why);
}

static uint64_t deadline_of(const struct http_transfer *t) { return t->deadline_ns ? t->deadline_ns : UINT64_MAX; }

/* When to look at an active transfer: at its deadline, or when it will have stalled. */
static uint64_t look_at(const struct http_loop *l, const struct http_transfer *t)
{
    return MIN(deadline_of(t), t->last_ns + l->http->o.stall_ms * MS);
}

static void begin(struct http_loop *l, struct http_transfer *t)
{
    list_remove(&l->ready[t->urgent], t);
    atomic_fetch_sub(&l->waiting, 1);
    list_push(&l->active, t);
    atomic_store(&t->state, ACTIVE);
    l->n_active++;
    l->n_plain += !t->urgent;
    l->n_unsettled++;
    atomic_fetch_add(&l->in_flight, 1);
    t->begin_ns = t->last_ns = now_ns();
    t->easy = easy_get(l);
    if (!t->easy || !set_common(l->http, l, t->easy, t) || !set_headers(t->easy, t) || !set_method(t->easy, t) ||
        curl_easy_setopt(t->easy, CURLOPT_URL, t->url) != CURLE_OK || curl_multi_add_handle(l->multi, t->easy) != CURLM_OK)
        end(l, t, HTTP_NOMEM);
    else
        heap_set(l, t, look_at(l, t));
}

/* A handshake that broke off says so without OpenSSL's "error:...": that is the network, not the certificate. */
static enum http_end tls_end(const struct http_transfer *t)
{
    return strstr(t->why, "error:") || strstr(t->why, "certificate") ? HTTP_TLS : HTTP_CONNECT;
}

static enum http_end end_of(const struct http_transfer *t, CURLcode rc)
{
    switch (rc) {
    case CURLE_OK: return t->headed ? HTTP_DONE : HTTP_RESET; /* a connection that ends within the head is fine with curl */
    case CURLE_WRITE_ERROR: return t->end; /* on_header or on_body stopped it and said why; HTTP_DONE: enough of an error's body */
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY: return HTTP_NAME;
    case CURLE_COULDNT_CONNECT:
    case CURLE_PROXY:
    case CURLE_OPERATION_TIMEDOUT: return HTTP_CONNECT;
    case CURLE_SSL_CONNECT_ERROR: return tls_end(t);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CRL_BADFILE:
    case CURLE_SSL_ENGINE_NOTFOUND:
    case CURLE_SSL_ENGINE_SETFAILED:
    case CURLE_SSL_ENGINE_INITFAILED:
    case CURLE_SSL_INVALIDCERTSTATUS:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH: return HTTP_TLS;
    case CURLE_PARTIAL_FILE: return HTTP_SHORT;
    case CURLE_GOT_NOTHING:
    case CURLE_RECV_ERROR:
    case CURLE_SEND_ERROR:
    case CURLE_SEND_FAIL_REWIND:
    case CURLE_SSL_SHUTDOWN_FAILED:
    case CURLE_NO_CONNECTION_AVAILABLE: return HTTP_RESET;
    case CURLE_OUT_OF_MEMORY: return HTTP_NOMEM;
    default: return HTTP_BAD;
    }
}

static void explain(struct http_transfer *t, CURLcode rc, enum http_end why)
{
    if (why == HTTP_DONE)
        t->why[0] = 0;
    else if (t->header_bytes > HEADER_BYTES_MAX)
        snprintf(t->why, sizeof(t->why), "the head of the answer is longer than %u bytes", HEADER_BYTES_MAX);
    else if (why == HTTP_TOO_LONG)
        snprintf(t->why, sizeof(t->why), "the answer is longer than the %zu bytes asked for", t->buf || t->sink ? t->buf_len : t->out_max);
    else if (rc == CURLE_OK)
        snprintf(t->why, sizeof(t->why), "the connection ended within the head of the answer");
    else if (!t->why[0])
        snprintf(t->why, sizeof(t->why), "%s", curl_easy_strerror(rc));
}

static void reap(struct http_loop *l)
{
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(l->multi, &left));) {
        char *private = NULL;
        CURLcode rc = m->data.result;
        if (m->msg != CURLMSG_DONE || curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &private) != CURLE_OK)
            continue;
        struct http_transfer *t = (struct http_transfer *)(void *)private;
        enum http_end why = end_of(t, rc);
        explain(t, rc, why);
        end(l, t, why);
    }
}

/* ---- the loop ---- */

static void make_ready(struct http_loop *l, struct http_transfer *t)
{
    atomic_store(&t->state, READY);
    list_push(&l->ready[t->urgent], t);
    heap_set(l, t, deadline_of(t));
}

/* Takes what was started. */
static void take_in(struct http_loop *l)
{
    pthread_mutex_lock(&l->lock);
    struct transfer_list in = l->inbox;
    l->inbox = (struct transfer_list){NULL, NULL};
    for (struct http_transfer *t = in.head; t; t = t->next)
        atomic_store(&t->state, WAITING);
    pthread_mutex_unlock(&l->lock);
    uint64_t now = in.head ? now_ns() : 0;
    for (struct http_transfer *t; (t = in.head);) {
        list_remove(&in, t);
        /* room for all that may be in the heap, so that no later step can fail */
        if (GROW(l->heap, l->cap_heap, ++l->n_known, NULL) != LARDER_OK)
            end(l, t, HTTP_NOMEM);
        else if (t->not_before_ns > now)
            heap_set(l, t, MIN(t->not_before_ns, deadline_of(t)));
        else
            make_ready(l, t);
    }
}

static void take_cancels(struct http_loop *l)
{
    for (;;) {
        pthread_mutex_lock(&l->lock);
        struct http_transfer *t = l->cancels;
        if (t)
            l->cancels = t->cancel_next;
        if (t && atomic_load(&t->state) == INBOX) { /* started and canceled since take_in */
            list_remove(&l->inbox, t);
            atomic_store(&t->state, WAITING);
            l->n_known++;
        }
        pthread_mutex_unlock(&l->lock);
        if (!t)
            return;
        end(l, t, HTTP_CANCELED);
    }
}

static void expire(struct http_loop *l)
{
    for (uint64_t now = now_ns(); l->n_heap && l->heap[0]->heap_key <= now; ) {
        struct http_transfer *t = l->heap[0];
        int state = atomic_load(&t->state);
        if (now >= deadline_of(t))
            end(l, t, HTTP_LATE);
        else if (state == WAITING)
            make_ready(l, t);
        else if (!t->sending) { /* curl's CONNECTTIMEOUT counts */
            t->last_ns = now;
            heap_set(l, t, look_at(l, t));
        } else if (now >= look_at(l, t))
            end(l, t, HTTP_STALLED);
        else
            heap_set(l, t, look_at(l, t));
    }
}

static struct http_transfer *may_begin(const struct http_loop *l)
{
    if (l->n_active >= l->limit || l->n_unsettled >= LOOKUPS_MAX)
        return NULL;
    if (l->ready[1].head)
        return l->ready[1].head;
    return l->n_plain < l->limit_plain ? l->ready[0].head : NULL;
}

static int sleep_ms(const struct http_loop *l)
{
    uint64_t at = MIN(l->curl_at, l->n_heap ? l->heap[0]->heap_key : UINT64_MAX), now = now_ns();
    if (at <= now || may_begin(l))
        return 0;
    if (at == UINT64_MAX)
        return -1;
    return (int)MIN((at - now + MS - 1) / MS, 60000u);
}

/* Sleeps until something is due or arrives, and lets curl work. All that has arrived is read before anything can count as stalled,
 * however late this thread is. */
static void work(struct http_loop *l)
{
    struct epoll_event events[EVENTS_MAX];
    int running, n = epoll_wait(l->epoll, events, EVENTS_MAX, sleep_ms(l));
    for (;;) {
        for (int i = 0; i < n; i++) {
            uint64_t wakes;
            if (events[i].data.fd == l->event) {
                while (read(l->event, &wakes, sizeof(wakes)) < 0 && errno == EINTR)
                    ;
                continue;
            }
            /* what broke is found out by reading and writing */
            unsigned e = events[i].events & (EPOLLERR | EPOLLHUP) ? EPOLLIN | EPOLLOUT : events[i].events;
            curl_multi_socket_action(l->multi, events[i].data.fd,
                                     (e & EPOLLIN ? CURL_CSELECT_IN : 0) | (e & EPOLLOUT ? CURL_CSELECT_OUT : 0), &running);
        }
        if (n < EVENTS_MAX)
            break;
        n = epoll_wait(l->epoll, events, EVENTS_MAX, 0);
    }
    if (l->curl_at <= now_ns()) {
        l->curl_at = UINT64_MAX;
        curl_multi_socket_action(l->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
}

static bool stopping(struct http_loop *l)
{
    pthread_mutex_lock(&l->lock);
    bool stop = l->stop;
    pthread_mutex_unlock(&l->lock);
    return stop;
}

static void end_all(struct http_loop *l)
{
    for (;;) {
        struct http_transfer *t = l->active.head ? l->active.head : l->ready[1].head ? l->ready[1].head :
                                  l->ready[0].head ? l->ready[0].head : l->n_heap ? l->heap[0] : NULL;
        if (t) {
            end(l, t, HTTP_CANCELED);
            continue;
        }
        pthread_mutex_lock(&l->lock);
        bool more = l->inbox.head;
        pthread_mutex_unlock(&l->lock);
        if (!more)
            return;
        take_in(l);
    }
}

static void *loop_main(void *arg)
{
    struct http_loop *l = arg;
    while (!stopping(l)) {
        take_in(l);
        take_cancels(l);
        expire(l);
        for (struct http_transfer *t; (t = may_begin(l));)
            begin(l, t);
        work(l);
        reap(l);
    }
    end_all(l);
    while (l->n_idle)
        curl_easy_cleanup(l->idle[--l->n_idle]);
    curl_multi_cleanup(l->multi);
    curl_share_cleanup(l->share);
    return NULL;
}

/* ---- opening and closing ---- */

static void wake(struct http_loop *l)
{
    uint64_t one = 1;
    while (write(l->event, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static int loop_open(struct http *h, struct http_loop *l, struct larder_error *err)
{
    l->http = h;
    l->epoll = l->event = -1;
    l->curl_at = UINT64_MAX;
    pthread_mutex_init(&l->lock, NULL);
    l->limit = MAX(h->o.connections / h->o.loops, 1u);
    l->limit_plain = MAX(l->limit - MIN(h->o.kept_for_urgent / h->o.loops, l->limit), 1u);
    l->n_sockets = 2 * (size_t)l->limit + 16;
    l->sockets = malloc(l->n_sockets * sizeof(*l->sockets));
    l->idle = malloc(l->limit * sizeof(CURL *));
    l->multi = curl_multi_init();
    l->share = curl_share_init();
    if (!l->sockets || !l->idle || !l->multi || !l->share)
        return err_nomem(err, l->n_sockets * sizeof(*l->sockets), "an HTTP loop");
    for (size_t i = 0; i < l->n_sockets; i++)
        l->sockets[i] = -1;
    curl_share_setopt(l->share, CURLSHOPT_SHARE, CURL_LOCK_DATA_SSL_SESSION);
    curl_multi_setopt(l->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(l->multi, CURLMOPT_SOCKETDATA, l);
    curl_multi_setopt(l->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(l->multi, CURLMOPT_TIMERDATA, l);
    curl_multi_setopt(l->multi, CURLMOPT_MAXCONNECTS, (long)l->limit);
    curl_multi_setopt(l->multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = l->event};
    if (l->epoll < 0 || l->event < 0 || epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->event, &e) != 0)
        return err_sys(err, LARDER_EIO, errno, "an HTTP loop's descriptors");
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&l->thread, NULL, loop_main, l);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0)
        return err_sys(err, rc == ENOMEM ? LARDER_ENOMEM : LARDER_EIO, rc, "an HTTP loop's thread");
    pthread_setname_np(l->thread, "larder-http");
    l->running = true;
    return LARDER_OK;
}

static void loop_close(struct http_loop *l, bool forked)
{
    if (l->running && !forked) {
        pthread_mutex_lock(&l->lock);
        l->stop = true;
        pthread_mutex_unlock(&l->lock);
        wake(l);
        pthread_join(l->thread, NULL);
    } else if (!l->running) {
        if (l->multi)
            curl_multi_cleanup(l->multi);
        if (l->share)
            curl_share_cleanup(l->share);
    }
    /* A child leaves what is curl's: the loop may have been in the midst of it, and ending TLS would end the parent's connections. */
    for (size_t i = 0; forked && l->sockets && i < l->n_sockets; i++)
        if (l->sockets[i] >= 0)
            close(l->sockets[i]);
    if (l->epoll >= 0)
        close(l->epoll);
    if (l->event >= 0)
        close(l->event);
    pthread_mutex_destroy(&l->lock);
    free(l->heap);
    free(l->idle);
    free(l->sockets);
}

/* The first of the names that is set; "" where none is. HTTP_PROXY is not asked: a web server may set it for whom it starts. */
static char *first_env(const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *v = getenv(names[i]);
        if (v && *v)
            return strdup(v);
    }
    return strdup("");
}

static bool copy_proxies(struct http *h)
{
    static const char *const plain[] = {"http_proxy", "all_proxy", "ALL_PROXY"};
    static const char *const tls[] = {"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"};
    static const char *const none[] = {"no_proxy", "NO_PROXY"};
    h->proxy[0] = first_env(plain, ARRAY_LEN(plain));
    h->proxy[1] = first_env(tls, ARRAY_LEN(tls));
    h->no_proxy = first_env(none, ARRAY_LEN(none));
    return h->proxy[0] && h->proxy[1] && h->no_proxy;
}

static int copy_options(struct http *h, const struct http_options *o, struct larder_error *err)
{
    h->o = *o;
    h->o.connections = o->connections ? o->connections : 256;
    h->o.connect_ms = o->connect_ms ? o->connect_ms : 10000;
    h->o.stall_ms = o->stall_ms ? o->stall_ms : 20000;
    h->o.loops = MIN(MIN(MAX(o->loops, 1u), LOOPS_MAX), h->o.connections);
    h->buffer_bytes = (long)MAX(MIN(BUFFERS_BYTES / h->o.connections, 512 * KIB), 64 * KIB);
    h->o.ca_bundle = h->o.user_agent = NULL;
    h->user_agent = strdup(o->user_agent ? o->user_agent : "larder/" LARDER_VERSION);
    if (o->ca_bundle) {
        struct stat st;
        if (stat(o->ca_bundle, &st) != 0)
            return err_sys(err, err_code_of(errno), errno, "%s: the file of certificates", o->ca_bundle);
        h->ca_folder = S_ISDIR(st.st_mode);
        h->ca_bundle = strdup(o->ca_bundle);
    }
    if (!copy_proxies(h) || !h->user_agent || (o->ca_bundle && !h->ca_bundle))
        return err_nomem(err, 0, "HTTP options");
    h->loops = calloc(h->o.loops, sizeof(*h->loops));
    return h->loops ? LARDER_OK : err_nomem(err, h->o.loops * sizeof(*h->loops), "HTTP loops");
}

static int open_all(struct http *h, const struct http_options *o, struct larder_error *err)
{
    int rc = copy_options(h, o, err);
    if (rc != LARDER_OK)
        return rc;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return err_set(err, LARDER_ENOMEM, "libcurl could not be initialised");
    h->curl_ready = true;
    for (; h->n_loops < h->o.loops && rc == LARDER_OK; h->n_loops++)
        rc = loop_open(h, &h->loops[h->n_loops], err);
    return rc;
}

int http_open(const struct http_options *o, struct http **out, struct larder_error *err)
{
    *out = NULL;
    struct http *h = calloc(1, sizeof(*h));
    if (!h)
        return err_nomem(err, sizeof(*h), "HTTP");
    h->pid = getpid();
    int rc = open_all(h, o, err);
    if (rc == LARDER_OK)
        *out = h;
    else
        http_close(h);
    return rc;
}

void http_close(struct http *h)
{
    if (!h)
        return;
    bool forked = h->pid != getpid();
    for (unsigned i = 0; h->curl_ready && i < h->n_loops; i++)
        loop_close(&h->loops[i], forked);
    if (h->curl_ready && !forked)
        curl_global_cleanup();
    free(h->loops);
    free(h->ca_bundle);
    free(h->proxy[0]);
    free(h->proxy[1]);
    free(h->no_proxy);
    free(h->user_agent);
    free(h);
}

/* ---- transfers ---- */

static struct http_loop *least_busy(struct http *h)
{
    struct http_loop *best = &h->loops[0];
    for (unsigned i = 1; i < h->n_loops; i++) {
        struct http_loop *l = &h->loops[i];
        if (atomic_load(&l->in_flight) + atomic_load(&l->waiting) < atomic_load(&best->in_flight) + atomic_load(&best->waiting))
            best = l;
    }
    return best;
}

void http_start(struct http *h, struct http_transfer *t)
{
    struct http_loop *l = least_busy(h);
    t->end = HTTP_DONE;
    t->status = 0;
    t->got = t->text_len = t->header_bytes = t->dropped = t->heap_at = 0;
    memset(&t->in, 0, sizeof(t->in));
    t->in.content_length = UINT64_MAX;
    t->text[0] = t->why[0] = 0;
    t->begin_ns = t->first_byte_ns = t->end_ns = t->sent = 0;
    t->retried = t->canceled = t->settled = t->sending = t->headed = false;
    t->easy = t->lines = NULL;
    t->loop = l;
    if (h->pid != getpid()) {
        t->end = HTTP_CANCELED;
        t->done(t);
        return;
    }
    atomic_fetch_add(&l->waiting, 1);
    pthread_mutex_lock(&l->lock);
    bool first = !l->inbox.head;
    atomic_store(&t->state, INBOX);
    list_push(&l->inbox, t);
    if (first)
        wake(l); /* under the lock: the loop cannot be gone while t is in its inbox */
    pthread_mutex_unlock(&l->lock);
}

void http_cancel(struct http *h, struct http_transfer *t)
{
    struct http_loop *l = t->loop;
    if (h->pid != getpid() || !l)
        return;
    pthread_mutex_lock(&l->lock);
    if (atomic_load(&t->state) != OVER && !t->canceled) {
        t->canceled = true;
        t->cancel_next = l->cancels;
        l->cancels = t;
        wake(l);
    }
    pthread_mutex_unlock(&l->lock);
}

void http_stats(struct http *h, struct http_stats *out)
{
    *out = (struct http_stats){0};
    for (unsigned i = 0; i < h->n_loops; i++) {
        struct http_loop *l = &h->loops[i];
        out->transfers += atomic_load_explicit(&l->transfers, memory_order_relaxed);
        out->bytes_in += atomic_load_explicit(&l->bytes_in, memory_order_relaxed);
        out->bytes_out += atomic_load_explicit(&l->bytes_out, memory_order_relaxed);
        out->connections += atomic_load_explicit(&l->connections, memory_order_relaxed);
        out->in_flight += atomic_load(&l->in_flight);
        out->waiting += atomic_load(&l->waiting);
        out->last_byte_ns = MAX(out->last_byte_ns, atomic_load_explicit(&l->last_byte_ns, memory_order_relaxed));
    }
}
