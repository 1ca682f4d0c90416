/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_server.h - a scripted HTTP server on a loopback port of the kernel's choice, for the tests of http.c and what stands on it.
 *
 *     static void handle(struct server *s, const struct request *q, struct answer *a) { a->status = 200; a->body = ...; }
 *     struct server s = {.handle = handle};
 *     server_start(&s);  ... server_url(&s, "/x", url) ...  server_stop(&s);
 *
 * One thread, poll(2). handle is called on it with each whole request and fills in what is answered: a status, headers, a body,
 * how much of it is really sent and how fast, and what becomes of the connection then. server_object answers as a bucket would
 * for one object: ranges, If-Match, HEAD.
 */
#ifndef HTTP_SERVER_H
#define HTTP_SERVER_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include "tests/unit/test.h"

#define SERVER_CONNS_MAX 512

struct request {
    char method[12], path[2048];
    const char *head; /* all of it, NUL-terminated */
    const uint8_t *body;
    size_t body_len;
    unsigned nr, conn, nr_on_conn; /* 0, 1, ...: of all, of its connection */
};

enum then { THEN_KEEP, THEN_CLOSE, THEN_RESET, THEN_HANG };
struct answer {
    int status;
    char headers[2048];     /* further lines, each with its end */
    const void *body;
    size_t len;
    size_t announced;       /* Content-Length; SIZE_MAX: len */
    bool no_length;         /* none is sent */
    size_t send;            /* bytes of head and body after which `then` comes early; SIZE_MAX: all */
    size_t send_body;       /* the same, of the body */
    enum then then;
    unsigned delay_ms;      /* before the first byte */
    unsigned pace_ms;       /* between pieces of `piece` bytes; 0: all at once */
    size_t piece;
    const char *raw;        /* instead of head and body */
    size_t raw_len;
    bool endless;           /* header lines for ever */
};

struct server_conn {
    int fd;                 /* -1: free */
    unsigned nr, requests;
    uint8_t *in;
    size_t in_len, in_cap;
    bool answering, deaf;   /* deaf: left open, nothing is read or written */
    struct answer a;
    char *head;
    size_t head_len, sent, end;
    uint64_t next_ns;       /* not before */
};

struct server {
    void (*handle)(struct server *s, const struct request *q, struct answer *a); /* on the server's thread */
    void *user;
    pthread_mutex_t lock;  /* held around handle: the test takes it where it changes what handle reads */
    const uint8_t *object; /* server_object's */
    size_t object_len;
    const char *etag;
    /* the server's */
    int listener, wake[2], port;
    pthread_t thread;
    struct server_conn conns[SERVER_CONNS_MAX];
    atomic_uint accepted, requests, answering, answering_max, open;
    unsigned next_conn;
};

static inline uint64_t server_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The value of a header, cut to size; NULL: it is not there. */
static inline const char *request_header(const struct request *q, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);
    for (const char *line = strchr(q->head, '\n'); line; line = strchr(line, '\n')) {
        line++;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            line += n + 1;
            line += strspn(line, " ");
            snprintf(out, size, "%.*s", (int)strcspn(line, "\r\n"), line);
            return out;
        }
    }
    return NULL;
}

__attribute__((format(printf, 2, 3))) static inline void answer_header(struct answer *a, const char *fmt, ...)
{
    size_t n = strlen(a->headers);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(a->headers + n, sizeof(a->headers) - n, fmt, ap);
    va_end(ap);
    n = strlen(a->headers);
    snprintf(a->headers + n, sizeof(a->headers) - n, "\r\n");
}

/* GET and HEAD of the server's object. */
static inline void server_object(struct server *s, const struct request *q, struct answer *a)
{
    char v[256];
    unsigned long long from, to;
    if (s->etag)
        answer_header(a, "ETag: %s", s->etag);
    answer_header(a, "Last-Modified: Wed, 21 Oct 2015 07:28:00 GMT");
    if (request_header(q, "If-Match", v, sizeof(v)) && s->etag && strcmp(v, s->etag) != 0) {
        a->status = 412;
        return;
    }
    a->status = 200;
    a->body = s->object;
    a->len = s->object_len;
    if (request_header(q, "Range", v, sizeof(v)) && sscanf(v, "bytes=%llu-%llu", &from, &to) == 2) {
        if (from >= s->object_len) {
            a->status = 416;
            a->len = 0;
            answer_header(a, "Content-Range: bytes */%zu", s->object_len);
            return;
        }
        if (to >= s->object_len)
            to = s->object_len - 1;
        a->status = 206;
        a->body = s->object + from;
        a->len = to - from + 1;
        answer_header(a, "Content-Range: bytes %llu-%llu/%zu", from, to, s->object_len);
    }
    if (strcmp(q->method, "HEAD") == 0)
        a->send_body = 0;
}

static inline void server_conn_end(struct server *s, struct server_conn *c, bool reset)
{
    struct linger l = {1, 0};
    if (reset)
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
    close(c->fd);
    free(c->in);
    free(c->head);
    if (c->answering)
        atomic_fetch_sub(&s->answering, 1);
    atomic_fetch_sub(&s->open, 1);
    *c = (struct server_conn){.fd = -1};
}

static inline void server_accept(struct server *s)
{
    for (int fd; (fd = accept4(s->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        size_t i = 0;
        int one = 1;
        while (i < SERVER_CONNS_MAX && s->conns[i].fd >= 0)
            i++;
        if (i == SERVER_CONNS_MAX) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        s->conns[i] = (struct server_conn){.fd = fd, .nr = s->next_conn++};
        atomic_fetch_add(&s->accepted, 1);
        atomic_fetch_add(&s->open, 1);
    }
}

/* Asks the script, when a request is whole. */
static inline void server_request(struct server *s, struct server_conn *c)
{
    uint8_t *end = c->in_len ? memmem(c->in, c->in_len, "\r\n\r\n", 4) : NULL;
    if (!end || c->answering)
        return;
    char v[64];
    char *head = strndup((char *)c->in, (size_t)(end - c->in) + 4);
    struct request q = {.head = head};
    size_t head_len = strlen(head), body_len = 0;
    if (request_header(&q, "Content-Length", v, sizeof(v)))
        body_len = strtoull(v, NULL, 10);
    if (c->in_len < head_len + body_len) {
        free(head);
        return;
    }
    q.body = c->in + head_len;
    q.body_len = body_len;
    q.nr = atomic_fetch_add(&s->requests, 1);
    q.conn = c->nr;
    q.nr_on_conn = c->requests++;
    sscanf(head, "%11s %2047s", q.method, q.path);
    c->a = (struct answer){.status = 200, .announced = SIZE_MAX, .send = SIZE_MAX, .send_body = SIZE_MAX};
    pthread_mutex_lock(&s->lock);
    s->handle(s, &q, &c->a);
    pthread_mutex_unlock(&s->lock);
    struct answer *a = &c->a;
    char length[64] = "";
    if (!a->no_length)
        snprintf(length, sizeof(length), "Content-Length: %zu\r\n", a->announced == SIZE_MAX ? a->len : a->announced);
    if (a->raw) {
        c->head = malloc(a->raw_len + 1);
        memcpy(c->head, a->raw, a->raw_len);
        c->head_len = a->raw_len;
        a->len = 0;
    } else if (asprintf(&c->head, "HTTP/1.1 %d Whatever\r\n%s%s%s", a->status, length, a->headers, a->endless ? "" : "\r\n") >= 0) {
        c->head_len = strlen(c->head);
    }
    c->end = c->head_len + (a->send_body < a->len ? a->send_body : a->len);
    c->end = a->send < c->end ? a->send : c->end;
    c->sent = 0;
    c->next_ns = server_now() + a->delay_ms * 1000000ull;
    c->answering = true;
    unsigned n = atomic_fetch_add(&s->answering, 1) + 1;
    if (n > atomic_load(&s->answering_max))
        atomic_store(&s->answering_max, n);
    memmove(c->in, c->in + head_len + body_len, c->in_len - head_len - body_len);
    c->in_len -= head_len + body_len;
    free(head);
}

static inline void server_read(struct server *s, struct server_conn *c)
{
    if (c->in_len + 65536 > c->in_cap) {
        c->in_cap = 2 * c->in_cap + 65536;
        c->in = realloc(c->in, c->in_cap);
    }
    ssize_t n = recv(c->fd, c->in + c->in_len, c->in_cap - c->in_len, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
        server_conn_end(s, c, false);
        return;
    }
    c->in_len += n > 0 ? (size_t)n : 0;
    server_request(s, c);
}

static inline void server_answered(struct server *s, struct server_conn *c)
{
    switch (c->a.then) {
    case THEN_KEEP:
        free(c->head);
        c->head = NULL;
        c->answering = false;
        atomic_fetch_sub(&s->answering, 1);
        server_request(s, c);
        return;
    case THEN_HANG:
        c->deaf = true;
        return;
    default:
        server_conn_end(s, c, c->a.then == THEN_RESET);
    }
}

static inline void server_write(struct server *s, struct server_conn *c)
{
    static const char filler[] = "X-Filler: all work and no play makes the parser a dull machine, all work and no play\r\n";
    struct answer *a = &c->a;
    while (c->answering && !c->deaf && c->fd >= 0 && server_now() >= c->next_ns) {
        bool in_head = c->sent < c->head_len;
        const char *from = in_head ? c->head + c->sent : (const char *)a->body + (c->sent - c->head_len);
        size_t n = (in_head && c->head_len < c->end ? c->head_len : c->end) - c->sent;
        if (c->sent == c->end && a->endless)
            from = filler, n = sizeof(filler) - 1;
        if (n == 0) {
            server_answered(s, c);
            continue;
        }
        if (a->pace_ms && n > a->piece)
            n = a->piece;
        ssize_t w = send(c->fd, from, n, MSG_NOSIGNAL);
        if (w < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (w < 0) {
            server_conn_end(s, c, false);
            return;
        }
        if (c->sent < c->end)
            c->sent += (size_t)w;
        if (a->pace_ms)
            c->next_ns = server_now() + a->pace_ms * 1000000ull;
    }
}

static void *server_main(void *arg)
{
    struct server *s = arg;
    struct pollfd p[SERVER_CONNS_MAX + 2];
    size_t who[SERVER_CONNS_MAX + 2];
    for (;;) {
        size_t n = 2;
        int timeout = -1;
        p[0] = (struct pollfd){s->listener, POLLIN, 0};
        p[1] = (struct pollfd){s->wake[0], POLLIN, 0};
        uint64_t now = server_now();
        for (size_t i = 0; i < SERVER_CONNS_MAX; i++) {
            struct server_conn *c = &s->conns[i];
            if (c->fd < 0)
                continue;
            bool later = c->answering && !c->deaf && c->next_ns > now;
            int ms = later ? (int)((c->next_ns - now) / 1000000) + 1 : -1;
            if (ms >= 0 && (timeout < 0 || ms < timeout))
                timeout = ms;
            who[n] = i;
            p[n++] = (struct pollfd){c->fd, (short)(c->deaf ? POLLRDHUP : POLLIN | (c->answering && !later ? POLLOUT : 0)), 0};
        }
        poll(p, n, timeout);
        if (p[1].revents)
            return NULL;
        for (size_t i = 2; i < n; i++) {
            struct server_conn *c = &s->conns[who[i]];
            if (c->deaf && p[i].revents)
                server_conn_end(s, c, false);
            if (c->fd >= 0 && !c->deaf && p[i].revents & (POLLIN | POLLHUP | POLLERR))
                server_read(s, c);
            if (c->fd >= 0)
                server_write(s, c);
        }
        if (p[0].revents)
            server_accept(s);
    }
}

TEST_UNUSED static void server_start(struct server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    pthread_mutex_init(&s->lock, NULL);
    for (size_t i = 0; i < SERVER_CONNS_MAX; i++)
        s->conns[i].fd = -1;
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (s->listener < 0 || bind(s->listener, (struct sockaddr *)&a, sizeof(a)) != 0 || listen(s->listener, 512) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&a, &len) != 0 || pipe2(s->wake, O_CLOEXEC) != 0 ||
        pthread_create(&s->thread, NULL, server_main, s) != 0) {
        perror("http_server");
        exit(1);
    }
    s->port = ntohs(a.sin_port);
}

TEST_UNUSED static void server_stop(struct server *s)
{
    if (write(s->wake[1], "x", 1) != 1)
        perror("http_server");
    pthread_join(s->thread, NULL);
    for (size_t i = 0; i < SERVER_CONNS_MAX; i++)
        if (s->conns[i].fd >= 0)
            server_conn_end(s, &s->conns[i], false);
    close(s->listener);
    close(s->wake[0]);
    close(s->wake[1]);
}

TEST_UNUSED static char *server_url(const struct server *s, const char *path, char out[256])
{
    snprintf(out, 256, "http://127.0.0.1:%d%s", s->port, path);
    return out;
}

#endif
