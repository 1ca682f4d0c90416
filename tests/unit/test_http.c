/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -lssl */
/* test_http.c - transfers against a scripted server: what arrives, how each fault ends, queueing, canceling, closing. */
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <sys/wait.h>

#include "tests/unit/http_server.h"
#include "tiers/http.h"

#define OBJECT_LEN (3 * MIB + 12345)

static uint8_t *object;

static const uint8_t *the_object(void)
{
    if (!object) {
        uint64_t seed = 7;
        object = malloc(OBJECT_LEN);
        rng_fill(&seed, object, OBJECT_LEN);
    }
    return object;
}

/* A counter that tests wait for. */
struct gate { pthread_mutex_t lock; pthread_cond_t cond; unsigned n; };
#define GATE_INIT {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}

static void gate_add(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->n++;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

static void gate_wait(struct gate *g, unsigned n)
{
    pthread_mutex_lock(&g->lock);
    while (g->n < n)
        pthread_cond_wait(&g->cond, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void on_done(struct http_transfer *t) { gate_add(t->user); }

static struct http *http_with(struct http_options o)
{
    struct larder_error err;
    struct http *h = NULL;
    unsetenv("http_proxy");
    CHECK_OK(http_open(&o, &h, &err), &err);
    if (!h)
        abort();
    return h;
}

static void run(struct http *h, struct http_transfer *t)
{
    struct gate g = GATE_INIT;
    t->done = on_done;
    t->user = &g;
    http_start(h, t);
    gate_wait(&g, 1);
}

/* ---- a whole body ---- */

TEST(get_whole)
{
    struct server s = {.handle = server_object, .object = the_object(), .object_len = OBJECT_LEN, .etag = "\"abc\""};
    struct http *h = http_with((struct http_options){0});
    char url[256];
    uint8_t *buf = malloc(OBJECT_LEN);
    server_start(&s);
    struct http_transfer t = {.url = server_url(&s, "/o", url), .buf = buf, .buf_len = OBJECT_LEN};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_EQ(t.status, 200);
    CHECK_EQ(t.got, OBJECT_LEN);
    CHECK_MEM(buf, object, OBJECT_LEN);
    CHECK_STR(t.in.etag, "\"abc\"");
    CHECK_STR(t.in.last_modified, "Wed, 21 Oct 2015 07:28:00 GMT");
    CHECK_EQ(t.in.content_length, OBJECT_LEN);
    CHECK(t.first_byte_ns && t.first_byte_ns <= t.end_ns);
    CHECK_STR(t.why, "");

    /* a range by a header, into a growing buffer */
    struct buf out = BUF_INIT;
    const char *range[] = {"range: bytes=1000-299999"};
    t = (struct http_transfer){.url = url, .headers = range, .n_headers = 1, .out = &out, .out_max = 299000};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_EQ(t.status, 206);
    CHECK_EQ(out.len, 299000);
    CHECK_MEM(out.data, object + 1000, out.len);
    CHECK_EQ(t.got, 299000);
    char want[64];
    snprintf(want, sizeof(want), "bytes 1000-299999/%zu", (size_t)OBJECT_LEN);
    CHECK_STR(t.in.content_range, want);

    t = (struct http_transfer){.method = HTTP_HEAD, .url = url};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_EQ(t.in.content_length, OBJECT_LEN);
    CHECK_EQ(t.got, 0);
    CHECK_EQ(atomic_load(&s.accepted), 1); /* all on one connection */
    struct http_stats st;
    http_stats(h, &st);
    CHECK_EQ(st.transfers, 3);
    CHECK_EQ(st.bytes_in, OBJECT_LEN + 299000);
    CHECK_EQ(st.connections, 1);
    CHECK_EQ(st.in_flight + st.waiting, 0);
    http_close(h);
    server_stop(&s);
    buf_release(&out);
    free(buf);
}

/* ---- what is sent ---- */

struct seen { char method[12], path[256], head[2048]; size_t body_len; bool same; const uint8_t *body; };

static void remember(struct server *s, const struct request *q, struct answer *a)
{
    struct seen *seen = s->user;
    snprintf(seen->method, sizeof(seen->method), "%s", q->method);
    snprintf(seen->path, sizeof(seen->path), "%.255s", q->path);
    snprintf(seen->head, sizeof(seen->head), "%s", q->head);
    seen->body_len = q->body_len;
    seen->same = q->body_len == 0 || memcmp(q->body, seen->body, q->body_len) == 0;
    a->body = "<x/>";
    a->len = 4;
}

TEST(put_post_delete)
{
    struct seen seen = {.body = the_object()};
    struct server s = {.handle = remember, .user = &seen};
    struct http *h = http_with((struct http_options){.user_agent = "tester/1"});
    char url[256];
    server_start(&s);
    const char *lines[] = {"x-amz-meta-a: b", "content-md5: xyz"};
    size_t lens[] = {0, 1, 70000, OBJECT_LEN};
    for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
        struct http_transfer t = {.method = HTTP_PUT, .url = server_url(&s, "/a/../b/./c%20d+e?uploadId=1&x=%2F", url), .headers = lines,
                                  .n_headers = 2, .body = seen.body, .body_len = lens[i]};
        run(h, &t);
        CHECK_EQ(t.end, HTTP_DONE);
        CHECK_EQ(t.status, 200);
        CHECK_STR(seen.method, "PUT");
        CHECK_STR(seen.path, "/a/../b/./c%20d+e?uploadId=1&x=%2F"); /* as given: a signature covers it */
        CHECK_EQ(seen.body_len, lens[i]);
        CHECK(seen.same);
        CHECK(strstr(seen.head, "x-amz-meta-a: b\r\n") && strstr(seen.head, "content-md5: xyz\r\n"));
        CHECK(strstr(seen.head, "User-Agent: tester/1\r\n"));
        CHECK(!strcasestr(seen.head, "\nexpect:") && !strcasestr(seen.head, "\ncontent-type:"));
    }
    struct buf out = BUF_INIT;
    const char *type[] = {"content-type: application/xml"};
    struct http_transfer t = {.method = HTTP_POST, .url = url, .headers = type, .n_headers = 1, .out = &out, .out_max = 100};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_STR(seen.method, "POST");
    CHECK(strcasestr(seen.head, "\r\nContent-Length: 0\r\n"));
    CHECK(strstr(seen.head, "content-type: application/xml\r\n"));
    CHECK_EQ(out.len, 4);
    t = (struct http_transfer){.method = HTTP_DELETE, .url = url};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_STR(seen.method, "DELETE");
    CHECK_EQ(t.got, 0);
    CHECK_STR(t.text, "<x/>");
    struct http_stats st;
    http_stats(h, &st);
    CHECK_EQ(st.bytes_out, 70001 + OBJECT_LEN);
    CHECK_EQ(atomic_load(&s.accepted), 1);
    http_close(h);
    server_stop(&s);
    buf_release(&out);
}

/* ---- faults: the path says which ---- */

static const char garbage[] = "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n\r\n";
static const char interim[] = "HTTP/1.1 100 Continue\r\nETag: \"interim\"\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
static const char odd_length[] = "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhi";
static const char chunked[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
static const char cut_chunks[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n wo";

static void faults(struct server *s, const struct request *q, struct answer *a)
{
    const char *f = q->path + 1;
#define RAW(text) (a->raw = text, a->raw_len = sizeof(text) - 1)
    server_object(s, q, a);
    if (strcmp(f, "short") == 0)
        a->send_body = a->len / 2, a->then = THEN_CLOSE;
    else if (strcmp(f, "reset") == 0)
        a->send_body = a->len / 2, a->then = THEN_RESET;
    else if (strcmp(f, "reset0") == 0)
        a->send = 0, a->then = THEN_RESET;
    else if (strcmp(f, "close0") == 0)
        a->send = 0, a->then = THEN_CLOSE;
    else if (strcmp(f, "stall") == 0)
        a->send_body = a->len / 2, a->then = THEN_HANG;
    else if (strcmp(f, "hang") == 0)
        a->send = 0, a->then = THEN_HANG;
    else if (strcmp(f, "halfhead") == 0)
        a->send = 30, a->then = THEN_CLOSE;
    else if (strcmp(f, "garbage") == 0)
        RAW(garbage), a->then = THEN_CLOSE;
    else if (strcmp(f, "interim") == 0)
        RAW(interim);
    else if (strcmp(f, "oddlength") == 0)
        RAW(odd_length), a->then = THEN_CLOSE;
    else if (strcmp(f, "chunked") == 0)
        RAW(chunked);
    else if (strcmp(f, "cutchunks") == 0)
        RAW(cut_chunks), a->then = THEN_CLOSE;
    else if (strcmp(f, "endless") == 0)
        a->endless = true;
    else if (strcmp(f, "slowhead") == 0)
        a->pace_ms = 5, a->piece = 1;
    else if (strcmp(f, "longer") == 0)
        a->len = 5000;
    else if (strcmp(f, "longer_untold") == 0)
        a->len = 5000, a->no_length = true, a->then = THEN_CLOSE;
    else if (strcmp(f, "error") == 0)
        a->status = 503, a->body = "<Error>slow</Error>", a->len = 19, answer_header(a, "Retry-After: 7");
    else if (strcmp(f, "bigerror") == 0)
        a->status = 403;
    else if (strcmp(f, "redirect") == 0)
        a->status = 301, a->len = 0, answer_header(a, "Location: http://127.0.0.1:1/x\r\nx-amz-bucket-region: eu-west-1");
#undef RAW
}

struct fault { const char *name; enum http_end end; int status; size_t got; };

TEST(faults_end_as_they_should)
{
    static const struct fault table[] = {
        {"fine", HTTP_DONE, 200, 4000}, {"short", HTTP_SHORT, 200, 2000}, {"reset", HTTP_RESET, 200, SIZE_MAX},
        {"reset0", HTTP_RESET, 0, 0}, {"close0", HTTP_RESET, 0, 0}, {"stall", HTTP_STALLED, 200, 2000}, {"hang", HTTP_STALLED, 0, 0},
        {"halfhead", HTTP_RESET, 200, 0}, {"garbage", HTTP_BAD, 0, 0}, {"interim", HTTP_DONE, 200, 2},
        {"oddlength", HTTP_BAD, 200, 0}, {"chunked", HTTP_DONE, 200, 11}, {"cutchunks", HTTP_SHORT, 200, SIZE_MAX},
        {"endless", HTTP_BAD, 200, 0}, {"longer", HTTP_TOO_LONG, 200, 0}, {"longer_untold", HTTP_TOO_LONG, 200, SIZE_MAX},
        {"error", HTTP_DONE, 503, 0}, {"bigerror", HTTP_DONE, 403, 0}, {"redirect", HTTP_DONE, 301, 0},
    };
    struct server s = {.handle = faults, .object = the_object(), .object_len = 4000};
    struct http *h = http_with((struct http_options){.stall_ms = 400});
    uint8_t buf[4000];
    server_start(&s);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < ARRAY_LEN(table); i++) {
            const struct fault *f = &table[i];
            char url[256], path[64];
            snprintf(path, sizeof(path), "/%s", f->name);
            struct http_transfer t = {.url = server_url(&s, path, url), .buf = buf, .buf_len = sizeof(buf)};
            run(h, &t);
            if (t.end != f->end || t.status != f->status || (f->got != SIZE_MAX && t.got != f->got))
                test_check(0, __FILE__, __LINE__, "%s: %s (%s), status %d, %zu bytes", f->name, http_end_name(t.end), t.why, t.status, t.got);
            if (f->end == HTTP_DONE && f->got == 4000)
                CHECK_MEM(buf, object, 4000);
            if (strcmp(f->name, "interim") == 0)
                CHECK_STR(t.in.etag, "");
            if (strcmp(f->name, "error") == 0) {
                CHECK_STR(t.text, "<Error>slow</Error>");
                CHECK_STR(t.in.retry_after, "7");
            }
            if (strcmp(f->name, "bigerror") == 0)
                CHECK_EQ(t.text_len, sizeof(t.text) - 1);
            if (strcmp(f->name, "redirect") == 0) {
                CHECK_STR(t.in.region, "eu-west-1");
                CHECK_STR(t.in.location, "http://127.0.0.1:1/x");
            }
        }
    http_close(h);
    server_stop(&s);
}

TEST(slow_is_not_stalled)
{
    struct server s = {.handle = faults, .object = the_object(), .object_len = 20};
    struct http *h = http_with((struct http_options){.stall_ms = 2000});
    char url[256];
    uint8_t buf[20];
    server_start(&s);
    struct http_transfer t = {.url = server_url(&s, "/slowhead", url), .buf = buf, .buf_len = 20};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_MEM(buf, object, 20);
    /* but a deadline is one */
    t = (struct http_transfer){.url = url, .buf = buf, .buf_len = 20, .deadline_ns = now_ns() + 60000000};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_LATE);
    CHECK(now_ns() >= t.deadline_ns);
    /* one that has passed before it began */
    t = (struct http_transfer){.url = url, .buf = buf, .buf_len = 20, .deadline_ns = 1};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_LATE);
    /* or that passes in a back-off */
    t = (struct http_transfer){.url = url, .buf = buf, .buf_len = 20, .not_before_ns = now_ns() + 3600000000000ull,
                               .deadline_ns = now_ns() + 20000000};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_LATE);
    http_close(h);
    server_stop(&s);
}

TEST(no_connection)
{
    struct http *h = http_with((struct http_options){.connect_ms = 700});
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* bound, not listening: connects are refused */
    char url[256];
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    snprintf(url, sizeof(url), "http://127.0.0.1:%d/x", ntohs(a.sin_port));
    struct http_transfer t = {.url = url};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_CONNECT);
    CHECK(t.why[0]);
    t = (struct http_transfer){.url = "http://no-such-host.invalid/x"};
    run(h, &t);
    CHECK(t.end == HTTP_NAME || t.end == HTTP_CONNECT); /* where a name server does not answer, connect_ms passes */
    t = (struct http_transfer){.url = "ftp://127.0.0.1/x"};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_BAD);
    t = (struct http_transfer){.url = "http://["};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_BAD);
    http_close(h);
    close(fd);
}

/* Takes connections, in the kernel, and does no more. */
static int deaf_listener(char url[256])
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 16) == 0 &&
            getsockname(fd, (struct sockaddr *)&a, &len) == 0);
    snprintf(url, 256, "http://127.0.0.1:%d/x", ntohs(a.sin_port));
    return fd;
}

TEST(nobody_reads)
{
    struct http *h = http_with((struct http_options){.stall_ms = 300});
    char url[256];
    int fd = deaf_listener(url);
    uint8_t *body = calloc(1, 64 * MIB); /* more than sockets hold */
    struct http_transfer t = {.method = HTTP_PUT, .url = url, .body = body, .body_len = 64 * MIB};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_STALLED);
    CHECK(t.sent > 0 && t.sent < 64 * MIB);
    t = (struct http_transfer){.url = url};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_STALLED);
    http_close(h);
    close(fd);
    free(body);
}

TEST(proxies)
{
    struct seen seen = {.body = (const uint8_t *)""};
    struct server s = {.handle = remember, .user = &seen};
    char url[256];
    server_start(&s);
    unsetenv("no_proxy");
    unsetenv("NO_PROXY");
    struct larder_error err;
    struct http *h;
    setenv("http_proxy", server_url(&s, "", url), 1);
    CHECK_OK(http_open(&(struct http_options){0}, &h, &err), &err);
    setenv("http_proxy", "http://127.0.0.1:1", 1); /* read once */
    struct http_transfer t = {.url = "http://bucket.example/key%20x"};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_STR(seen.path, "http://bucket.example/key%20x");
    CHECK(strstr(seen.head, "Host: bucket.example\r\n"));
    http_close(h);
    setenv("http_proxy", "http://127.0.0.1:1", 1);
    setenv("no_proxy", "127.0.0.1", 1);
    CHECK_OK(http_open(&(struct http_options){0}, &h, &err), &err);
    t = (struct http_transfer){.url = server_url(&s, "/direct", url)};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_STR(seen.path, "/direct");
    http_close(h);
    unsetenv("http_proxy");
    unsetenv("no_proxy");
    server_stop(&s);
}

/* ---- TLS ---- */

/* One connection at a time, any number of requests, each answered by 5 bytes. */
struct tls_server { SSL_CTX *ctx; int listener, port; pthread_t thread; atomic_bool stop; char cert[160]; unsigned long hash; };

static void tls_certificate(struct tls_server *s)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    X509_EXTENSION *san = X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "IP:127.0.0.1");
    X509_EXTENSION *ca = X509V3_EXT_conf_nid(NULL, NULL, NID_basic_constraints, "critical,CA:TRUE");
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC, (const unsigned char *)"larder test", -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509_add_ext(x, san, -1);
    X509_add_ext(x, ca, -1);
    X509_sign(x, key, EVP_sha256());
    s->hash = X509_subject_name_hash(x);
    s->ctx = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(s->ctx, x);
    SSL_CTX_use_PrivateKey(s->ctx, key);
    snprintf(s->cert, sizeof(s->cert), "%s/cert.pem", tmp_dir());
    FILE *f = fopen(s->cert, "w");
    PEM_write_X509(f, x);
    fclose(f);
    X509_EXTENSION_free(san);
    X509_EXTENSION_free(ca);
    X509_free(x);
    EVP_PKEY_free(key);
}

static void *tls_main(void *arg)
{
    struct tls_server *s = arg;
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    for (int fd; (fd = accept(s->listener, NULL, NULL)) >= 0;) {
        SSL *ssl = atomic_load(&s->stop) ? NULL : SSL_new(s->ctx);
        char request[4096];
        if (ssl && SSL_set_fd(ssl, fd) && SSL_accept(ssl) == 1)
            while (SSL_read(ssl, request, sizeof(request)) > 0 && SSL_write(ssl, answer, sizeof(answer) - 1) > 0)
                ;
        SSL_free(ssl);
        close(fd);
        if (atomic_load(&s->stop))
            break;
    }
    return NULL;
}

static void tls_start(struct tls_server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    tls_certificate(s);
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(s->listener >= 0 && bind(s->listener, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(s->listener, 16) == 0 &&
            getsockname(s->listener, (struct sockaddr *)&a, &len) == 0 && pthread_create(&s->thread, NULL, tls_main, s) == 0);
    s->port = ntohs(a.sin_port);
}

static void tls_stop(struct tls_server *s)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)s->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    atomic_store(&s->stop, true);
    CHECK_EQ(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    pthread_join(s->thread, NULL);
    close(fd);
    close(s->listener);
    SSL_CTX_free(s->ctx);
}

static enum http_end tls_get(const struct tls_server *s, const char *host, struct http_options o, char why[256])
{
    struct http *h = http_with(o);
    char url[256], buf[16];
    snprintf(url, sizeof(url), "https://%s:%d/x", host, s->port);
    struct http_transfer t = {.url = url, .buf = buf, .buf_len = sizeof(buf)};
    run(h, &t);
    if (t.end == HTTP_DONE) {
        struct http_stats st;
        CHECK_MEM(buf, "hello", 5);
        http_stats(h, &st);
        uint64_t before = st.connections; /* to localhost two are tried */
        run(h, &t);
        CHECK_EQ(t.end, HTTP_DONE);
        http_stats(h, &st);
        CHECK_EQ(st.connections, before);
    }
    http_close(h);
    snprintf(why, 256, "%s", t.why);
    return t.end;
}

TEST(tls_is_verified)
{
    struct tls_server s = {.listener = -1};
    char why[256];
    tls_start(&s);
    CHECK_EQ(tls_get(&s, "127.0.0.1", (struct http_options){0}, why), HTTP_TLS);
    CHECK(strstr(why, "certificate"));
    CHECK_EQ(tls_get(&s, "127.0.0.1", (struct http_options){.ca_bundle = s.cert}, why), HTTP_DONE);
    CHECK_EQ(tls_get(&s, "localhost", (struct http_options){.ca_bundle = s.cert}, why), HTTP_TLS); /* another name */
    CHECK_EQ(tls_get(&s, "localhost", (struct http_options){.insecure = true}, why), HTTP_DONE);
    char folder[160];
    snprintf(folder, sizeof(folder), "%.*s", (int)(strrchr(s.cert, '/') - s.cert), s.cert); /* it has no names by hash: nothing is found */
    CHECK_EQ(tls_get(&s, "127.0.0.1", (struct http_options){.ca_bundle = folder}, why), HTTP_TLS);
    char link[200];
    snprintf(link, sizeof(link), "%s/%08lx.0", folder, s.hash);
    CHECK_EQ(symlink("cert.pem", link), 0);
    CHECK_EQ(tls_get(&s, "127.0.0.1", (struct http_options){.ca_bundle = folder}, why), HTTP_DONE);
    tls_stop(&s);
}

TEST(tls_with_a_server_that_has_none)
{
    struct server s = {.handle = faults};
    struct http *h = http_with((struct http_options){0});
    char url[256];
    server_start(&s);
    snprintf(url, sizeof(url), "https://127.0.0.1:%d/x", s.port);
    /* it waits for the end of a request; the deadline ends that */
    struct http_transfer t = {.url = url, .deadline_ns = now_ns() + 200000000};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_LATE);
    http_close(h);
    server_stop(&s);
    struct larder_error err;
    h = (void *)1;
    CHECK_ERR(http_open(&(struct http_options){.ca_bundle = "/nonexistent/ca.pem"}, &h, &err), LARDER_ENOTFOUND, &err);
    CHECK(!h && strstr(err.message, "/nonexistent/ca.pem"));
}

/* ---- many ---- */

static void some_delay(struct server *s, const struct request *q, struct answer *a)
{
    server_object(s, q, a);
    a->delay_ms = q->nr % 7;
}

TEST(many_over_few_connections)
{
    enum { N = 200, LEN = 10000 };
    struct server s = {.handle = some_delay, .object = the_object(), .object_len = OBJECT_LEN};
    server_start(&s);
    for (unsigned loops = 1; loops <= 2; loops++) {
        struct http *h = http_with((struct http_options){.connections = 8, .loops = loops});
        struct http_transfer *t = calloc(N, sizeof(*t));
        uint8_t *buf = calloc(N, LEN);
        char url[256], range[N][64];
        const char *lines[N];
        struct gate g = GATE_INIT;
        unsigned before = atomic_load(&s.accepted);
        server_url(&s, "/o", url);
        for (size_t i = 0; i < N; i++) {
            snprintf(range[i], sizeof(range[i]), "range: bytes=%zu-%zu", i * 7919, i * 7919 + LEN - 1);
            lines[i] = range[i];
            t[i] = (struct http_transfer){.url = url, .headers = &lines[i], .n_headers = 1, .buf = buf + i * LEN, .buf_len = LEN,
                                          .done = on_done, .user = &g};
            http_start(h, &t[i]);
        }
        gate_wait(&g, N);
        for (size_t i = 0; i < N; i++) {
            CHECK_EQ(t[i].end, HTTP_DONE);
            CHECK_EQ(t[i].status, 206);
            CHECK_MEM(buf + i * LEN, object + i * 7919, LEN);
        }
        CHECK(atomic_load(&s.accepted) - before <= 8);
        CHECK(atomic_load(&s.answering_max) <= 8);
        http_close(h);
        free(t);
        free(buf);
    }
    server_stop(&s);
}

/* The first one holds the only connection until the others are queued: then urgent ones come first, each kind in order. */
struct order { struct gate gate; unsigned at, place[8]; struct http_transfer *t; };

static void on_ordered(struct http_transfer *t)
{
    struct order *o = t->user;
    o->place[o->at++] = (unsigned)(t - o->t); /* the loop's thread only */
    gate_add(&o->gate);
}

static void slow_first(struct server *s, const struct request *q, struct answer *a)
{
    (void)s;
    a->delay_ms = q->nr == 0 ? 150 : 0;
}

TEST(urgent_first)
{
    struct server s = {.handle = slow_first};
    struct http *h = http_with((struct http_options){.connections = 1});
    struct http_transfer t[8];
    struct order o = {.gate = GATE_INIT, .t = t};
    char url[256];
    server_start(&s);
    server_url(&s, "/", url);
    for (size_t i = 0; i < 8; i++)
        t[i] = (struct http_transfer){.url = url, .urgent = i >= 5, .done = on_ordered, .user = &o};
    http_start(h, &t[0]);
    while (!atomic_load(&s.requests))
        usleep(1000);
    for (size_t i = 1; i < 8; i++)
        http_start(h, &t[i]);
    gate_wait(&o.gate, 8);
    static const unsigned want[8] = {0, 5, 6, 7, 1, 2, 3, 4};
    CHECK_MEM(o.place, want, sizeof(want));
    http_close(h);
    server_stop(&s);
}

static void hang_plain(struct server *s, const struct request *q, struct answer *a)
{
    (void)s;
    if (strcmp(q->path, "/plain") == 0)
        a->send = 0, a->then = THEN_HANG;
}

TEST(connections_kept_for_urgent)
{
    struct server s = {.handle = hang_plain};
    struct http *h = http_with((struct http_options){.connections = 4, .kept_for_urgent = 1});
    struct http_transfer t[10], urgent;
    struct gate g = GATE_INIT;
    char url[256], url2[256];
    server_start(&s);
    server_url(&s, "/plain", url);
    for (size_t i = 0; i < 10; i++) {
        t[i] = (struct http_transfer){.url = url, .done = on_done, .user = &g};
        http_start(h, &t[i]);
    }
    urgent = (struct http_transfer){.url = server_url(&s, "/urgent", url2), .urgent = true};
    run(h, &urgent);
    CHECK_EQ(urgent.end, HTTP_DONE);
    struct http_stats st;
    http_stats(h, &st);
    CHECK_EQ(st.in_flight + st.waiting, 10);
    CHECK(st.in_flight <= 3);
    http_close(h); /* ends what hangs */
    CHECK_EQ(g.n, 10);
    for (size_t i = 0; i < 10; i++)
        CHECK_EQ(t[i].end, HTTP_CANCELED);
    server_stop(&s);
}

/* ---- canceling ---- */

TEST(cancel_anywhere)
{
    struct server s = {.handle = faults, .object = the_object(), .object_len = OBJECT_LEN};
    struct http *h = http_with((struct http_options){.connections = 1});
    struct http_transfer t[4];
    struct gate g = GATE_INIT;
    char url[256];
    uint8_t *buf = malloc(OBJECT_LEN), *others = malloc(OBJECT_LEN);
    struct http_stats st;
    server_start(&s);
    server_url(&s, "/stall", url);
    for (size_t i = 0; i < 4; i++)
        t[i] = (struct http_transfer){.url = url, .buf = buf, .buf_len = OBJECT_LEN, .done = on_done, .user = &g};
    t[1].buf = t[2].buf = t[3].buf = others;
    t[3].not_before_ns = now_ns() + 3600000000000ull;
    http_start(h, &t[0]);
    do { /* until half of its body is there */
        usleep(1000);
        http_stats(h, &st);
    } while (st.bytes_in < OBJECT_LEN / 2);
    for (size_t i = 1; i < 4; i++)
        http_start(h, &t[i]);
    http_cancel(h, &t[3]); /* waits for its time */
    http_cancel(h, &t[2]); /* for a connection */
    http_cancel(h, &t[2]);
    gate_wait(&g, 2);
    CHECK_EQ(t[3].end, HTTP_CANCELED);
    CHECK_EQ(t[2].end, HTTP_CANCELED);
    http_cancel(h, &t[0]); /* in the midst */
    gate_wait(&g, 3);
    CHECK_EQ(t[0].end, HTTP_CANCELED);
    CHECK_EQ(t[0].got, OBJECT_LEN / 2);
    memset(buf, 0, OBJECT_LEN); /* ours again: TSan and ASan watch */
    http_cancel(h, &t[0]); /* over: nothing happens */
    http_cancel(h, &t[1]); /* ready or active, whichever it is by now */
    gate_wait(&g, 4);
    CHECK_EQ(t[1].end, HTTP_CANCELED);
    http_close(h);
    CHECK_EQ(g.n, 4);
    server_stop(&s);
    free(others);
    free(buf);
}

/* Started and canceled before the loop has seen it: one done, and not two. */
TEST(cancel_at_once)
{
    enum { N = 500 };
    struct server s = {.handle = server_object, .object = the_object(), .object_len = 100};
    struct http *h = http_with((struct http_options){.connections = 4});
    struct http_transfer *t = calloc(N, sizeof(*t));
    struct gate g = GATE_INIT;
    char url[256];
    uint8_t buf[100];
    server_start(&s);
    server_url(&s, "/", url);
    for (size_t i = 0; i < N; i++) {
        t[i] = (struct http_transfer){.url = url, .done = on_done, .user = &g, .urgent = i % 2};
        http_start(h, &t[i]);
        http_cancel(h, &t[i]);
    }
    gate_wait(&g, N);
    struct http_transfer last = {.url = url, .buf = buf, .buf_len = 100};
    run(h, &last);
    CHECK_EQ(last.end, HTTP_DONE);
    http_close(h);
    CHECK_EQ(g.n, N);
    server_stop(&s);
    free(t);
}

/* Cancels race with ends: each start is answered by one done. */
struct churn { struct http *h; struct gate gate; atomic_uint ends[16]; };

static void on_churn(struct http_transfer *t)
{
    struct churn *c = t->user;
    atomic_fetch_add(&c->ends[t->end], 1);
    gate_add(&c->gate);
}

TEST(cancels_race_with_ends)
{
    enum { N = 64, ROUNDS = 20 };
    struct server s = {.handle = some_delay, .object = the_object(), .object_len = 100000};
    struct churn c = {.gate = GATE_INIT};
    struct http_transfer *t = calloc(N, sizeof(*t));
    uint8_t *buf = malloc(100000 * (size_t)N);
    uint64_t seed = 5;
    char url[256];
    server_start(&s);
    server_url(&s, "/o", url);
    c.h = http_with((struct http_options){.connections = 16, .loops = 2});
    for (unsigned round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < N; i++) {
            t[i] = (struct http_transfer){.url = url, .buf = buf + i * 100000, .buf_len = 100000, .urgent = i % 3 == 0,
                                          .done = on_churn, .user = &c};
            http_start(c.h, &t[i]);
        }
        for (size_t i = 0; i < N / 2; i++)
            http_cancel(c.h, &t[rng_below(&seed, N)]);
        gate_wait(&c.gate, (round + 1) * N);
        for (size_t i = 0; i < N; i++) {
            CHECK(t[i].end == HTTP_DONE || t[i].end == HTTP_CANCELED);
            if (t[i].end == HTTP_DONE)
                CHECK_MEM(t[i].buf, object, 100000);
        }
    }
    CHECK_EQ(atomic_load(&c.ends[HTTP_DONE]) + atomic_load(&c.ends[HTTP_CANCELED]), N * ROUNDS);
    CHECK(atomic_load(&c.ends[HTTP_DONE]) > 0);
    http_close(c.h);
    server_stop(&s);
    free(t);
    free(buf);
}

/* ---- connections that died while they were kept ---- */

static void close_after_first(struct server *s, const struct request *q, struct answer *a)
{
    server_object(s, q, a);
    if (q->nr_on_conn == 1)
        a->send = 0, a->then = THEN_RESET;
}

TEST(dead_kept_connection_is_replaced)
{
    struct server s = {.handle = close_after_first, .object = the_object(), .object_len = 1000};
    struct http *h = http_with((struct http_options){0});
    char url[256];
    uint8_t buf[1000];
    server_start(&s);
    struct http_transfer t = {.url = server_url(&s, "/o", url), .buf = buf, .buf_len = 1000};
    run(h, &t);
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK(!t.retried);
    run(h, &t); /* the kept one is reset at its second request */
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_MEM(buf, object, 1000);
    CHECK(t.retried);
    CHECK_EQ(atomic_load(&s.accepted), 2);
    CHECK_EQ(atomic_load(&s.requests), 3);
    http_close(h);
    server_stop(&s);
}

/* ---- starting from done, freeing in done ---- */

struct chain { struct http *h; struct gate gate; unsigned left; };

static void on_chain(struct http_transfer *t)
{
    struct chain *c = t->user;
    if (t->end == HTTP_DONE && --c->left > 0) {
        http_start(c->h, t);
        return;
    }
    free(t);
    gate_add(&c->gate);
}

TEST(done_starts_again_and_frees)
{
    struct server s = {.handle = server_object, .object = the_object(), .object_len = 10};
    struct chain c = {.gate = GATE_INIT, .left = 50};
    struct http_transfer *t = calloc(1, sizeof(*t));
    char url[256];
    server_start(&s);
    c.h = http_with((struct http_options){0});
    *t = (struct http_transfer){.url = server_url(&s, "/", url), .done = on_chain, .user = &c};
    http_start(c.h, t);
    gate_wait(&c.gate, 1);
    CHECK_EQ(atomic_load(&s.requests), 50);
    CHECK_EQ(atomic_load(&s.accepted), 1);
    http_close(c.h);
    server_stop(&s);
}

/* ---- fork ---- */

TEST(forked_child_lets_go)
{
#ifdef __SANITIZE_THREAD__
    TEST_SKIP("TSan does not follow a fork of threads");
#endif
    struct server s = {.handle = server_object, .object = the_object(), .object_len = 1000};
    struct http *h = http_with((struct http_options){0});
    char url[256];
    uint8_t buf[1000];
    server_start(&s);
    struct http_transfer t = {.url = server_url(&s, "/o", url), .buf = buf, .buf_len = 1000};
    run(h, &t);
    pid_t child = fork();
    if (child == 0) {
        struct http_transfer c = {.url = url, .buf = buf, .buf_len = 1000};
        run(h, &c);
        http_close(h);
        _exit(c.end == HTTP_CANCELED ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    run(h, &t); /* the parent's connection is alive */
    CHECK_EQ(t.end, HTTP_DONE);
    CHECK_EQ(atomic_load(&s.accepted), 1);
    http_close(h);
    server_stop(&s);
}

TEST(end_names)
{
    for (int e = HTTP_DONE; e <= HTTP_NOMEM; e++)
        CHECK(strlen(http_end_name((enum http_end)e)) > 3);
    http_close(NULL);
}

TEST_MAIN();
