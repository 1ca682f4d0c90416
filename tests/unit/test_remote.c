/* SPDX-License-Identifier: Apache-2.0 */
/* test_remote.c - requests against a scripted server that fails in all the ways that servers and networks do. */
#include <sys/wait.h>

#include "tests/unit/http_server.h"
#include "tiers/remote_int.h"

#define OBJECT_LEN (1 * MIB + 777)

static uint8_t *object;

static const uint8_t *the_object(void)
{
    if (!object) {
        uint64_t seed = 11;
        object = malloc(OBJECT_LEN);
        rng_fill(&seed, object, OBJECT_LEN);
    }
    return object;
}

/* ---- a server with a script: which fault for which request ---- */

enum fault {
    FINE, SHORT_BODY, RESET_BODY, RESET_FIRST, CLOSE_FIRST, STALL_BODY, HANG, HALF_HEAD, GARBAGE, SLOW_DOWN, TOO_MANY, ERROR_500, ERROR_502,
    WRONG_RANGE, NO_RANGE, FULL_200, ENDLESS_HEAD, FAULTS
};

struct script {
    unsigned times;             /* the first so many requests */
    enum fault fault;           /* get this one, */
    unsigned percent;           /* or this many percent of all any one, by */
    uint64_t seed;
    atomic_uint faults;
    const char *need_auth;      /* the key id that is accepted */
    int64_t clock_s;            /* the server's clock is this much ahead, and requests of another time are refused */
    /* PUT */
    uint8_t *stored;
    size_t stored_len;
    bool has_stored, lose_answers; /* carried out, and then the connection breaks */
    char query[256];            /* of the last request */
    char head[4096];
    int status;                 /* if set, of all answers, */
    const char *headers, *xml;  /* with these */
    const char *keys[4];        /* what the container's endpoint gives out, in turn; NULL: it hangs */
    atomic_uint keys_given;
    unsigned slow_first;        /* the first so many requests of /slow hang */
    atomic_uint slow;
    unsigned delay_percent, delay_ms;
};

static const char garbage[] = "220 mail.example.org ESMTP\r\n";
static const char slow_down[] = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
static const char internal[] = "<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>";
static const char skewed[] = "<Error><Code>RequestTimeTooSkewed</Code><Message>The difference is too large.</Message></Error>";
static const char unknown_key[] = "<Error><Code>InvalidAccessKeyId</Code><Message>The key does not exist in our records.</Message></Error>";

static void error_body(struct answer *a, int status, const char *xml)
{
    a->headers[0] = 0;
    a->status = status;
    a->body = xml;
    a->len = strlen(xml);
}

static void play(enum fault f, const struct request *q, struct answer *a)
{
    char range[128];
    bool head = strcmp(q->method, "HEAD") == 0;
    switch (f) {
    case FINE: case FAULTS: break;
    case SHORT_BODY: a->send_body = head ? 0 : a->len / 2, a->then = THEN_CLOSE; break;
    case RESET_BODY: a->send_body = head ? 0 : a->len / 2, a->then = THEN_RESET; break;
    case RESET_FIRST: a->send = 0, a->then = THEN_RESET; break;
    case CLOSE_FIRST: a->send = 0, a->then = THEN_CLOSE; break;
    case STALL_BODY: a->send_body = a->len / 2, a->then = THEN_HANG; break;
    case HANG: a->send = 0, a->then = THEN_HANG; break;
    case HALF_HEAD: a->send = 40, a->then = THEN_CLOSE; break;
    case GARBAGE: a->raw = garbage, a->raw_len = sizeof(garbage) - 1, a->then = THEN_CLOSE; break;
    case SLOW_DOWN:
        error_body(a, 503, slow_down);
        if (strstr(q->path, "later"))
            answer_header(a, "Retry-After: 1");
        break;
    case TOO_MANY: error_body(a, 429, ""); break;
    case ERROR_500: error_body(a, 500, internal); break;
    case ERROR_502: error_body(a, 502, "<html>bad gateway</html>"); break;
    case WRONG_RANGE:
    case NO_RANGE:
        a->headers[0] = 0;
        if (f == WRONG_RANGE && request_header(q, "Range", range, sizeof(range)))
            answer_header(a, "Content-Range: bytes 1-%zu/99999999", a->len);
        break;
    case FULL_200: {
        static const struct answer zero;
        *a = zero;
        a->status = 200;
        a->announced = a->send = a->send_body = SIZE_MAX;
        a->body = the_object();
        a->len = OBJECT_LEN;
        break;
    }
    case ENDLESS_HEAD: a->endless = true; break;
    }
}

static void date_header(struct answer *a, uint64_t time_s)
{
    char text[64];
    time_t t = (time_t)time_s;
    struct tm tm;
    gmtime_r(&t, &tm);
    strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm);
    answer_header(a, "Date: %s", text);
}

/* Refuses as S3 does; true: it did. */
static bool refuse(struct script *x, const struct request *q, struct answer *a)
{
    char v[512], date[32];
    if (x->need_auth && (!request_header(q, "Authorization", v, sizeof(v)) || !strstr(v, x->need_auth))) {
        error_body(a, 403, unknown_key);
        return true;
    }
    if (x->clock_s && request_header(q, "x-amz-date", date, sizeof(date))) {
        struct tm tm = {0};
        sscanf(date, "%4d%2d%2dT%2d%2d%2dZ", &tm.tm_year, &tm.tm_mon, &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec);
        tm.tm_year -= 1900, tm.tm_mon -= 1;
        int64_t theirs = (int64_t)timegm(&tm), ours = (int64_t)time(NULL) + x->clock_s;
        if (theirs - ours > 900 || ours - theirs > 900) {
            error_body(a, 403, skewed);
            date_header(a, (uint64_t)ours);
            return true;
        }
    }
    return false;
}

static void put(struct script *x, const struct request *q, struct answer *a)
{
    char v[64];
    if (request_header(q, "If-None-Match", v, sizeof(v)) && x->has_stored) {
        a->status = 412;
        return;
    }
    free(x->stored);
    x->stored = malloc(q->body_len + 1);
    memcpy(x->stored, q->body, q->body_len);
    x->stored_len = q->body_len;
    x->has_stored = true;
    answer_header(a, "ETag: \"stored\"");
    if (x->lose_answers)
        a->send = 0, a->then = THEN_RESET;
}

static void give_key(struct script *x, struct answer *a)
{
    unsigned n = atomic_fetch_add(&x->keys_given, 1);
    const char *key = n < ARRAY_LEN(x->keys) ? x->keys[n] : NULL;
    if (key)
        a->body = key, a->len = strlen(key);
    else
        a->send = 0, a->then = THEN_HANG;
}

static void handle(struct server *s, const struct request *q, struct answer *a)
{
    struct script *x = s->user;
    if (strcmp(q->path, "/creds") == 0) {
        give_key(x, a);
        return;
    }
    const char *query = strchr(q->path, '?');
    snprintf(x->query, sizeof(x->query), "%.255s", query ? query + 1 : "");
    snprintf(x->head, sizeof(x->head), "%s", q->head);
    enum fault f = q->nr < x->times ? x->fault : FINE;
    if (x->percent && rng_below(&x->seed, 100) < x->percent)
        f = (enum fault)(1 + rng_below(&x->seed, FAULTS - 1));
    if (refuse(x, q, a))
        return;
    if (x->status) {
        a->status = x->status;
        a->body = x->xml;
        a->len = x->xml && strcmp(q->method, "HEAD") != 0 ? strlen(x->xml) : 0;
        if (x->headers)
            answer_header(a, "%s", x->headers);
        return;
    }
    if (strcmp(q->method, "PUT") == 0)
        put(x, q, a);
    else if (x->has_stored)
        a->body = x->stored, a->len = x->stored_len;
    else
        server_object(s, q, a);
    if (f != FINE)
        atomic_fetch_add(&x->faults, 1);
    play(f, q, a);
    if (strstr(q->path, "slow") && atomic_fetch_add(&x->slow, 1) < x->slow_first)
        a->send = 0, a->then = THEN_HANG;
    if (x->delay_percent && rng_below(&x->seed, 100) < x->delay_percent)
        a->delay_ms = x->delay_ms;
}

struct world { struct server s; struct script x; struct remote *r; bool container; char uri[128], endpoint[128]; };

static void world_open(struct world *w, const char *uri, struct larder_remote_options o)
{
    struct larder_error err;
    unsetenv("http_proxy");
    setenv("AWS_ACCESS_KEY_ID", "AKIDTEST", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "very-secret-indeed", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    unsetenv("AWS_ENDPOINT_URL");
    unsetenv("AWS_REGION");
    w->s.handle = handle;
    w->s.user = &w->x;
    w->s.object = the_object();
    w->s.object_len = OBJECT_LEN;
    w->s.etag = "\"e1\"";
    server_start(&w->s);
    snprintf(w->endpoint, sizeof(w->endpoint), "http://127.0.0.1:%d", w->s.port);
    unsetenv("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (w->container) {
        char full[160];
        snprintf(full, sizeof(full), "%s/creds", w->endpoint);
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", full, 1);
        unsetenv("AWS_ACCESS_KEY_ID");
        unsetenv("AWS_SECRET_ACCESS_KEY");
    }
    snprintf(w->uri, sizeof(w->uri), "%s%s", uri, strncmp(uri, "s3://", 5) == 0 ? "" : w->endpoint + strlen("http://"));
    o.struct_size = sizeof(o);
    if (strncmp(uri, "s3://", 5) == 0)
        o.endpoint = w->endpoint;
    else
        snprintf(w->uri + strlen(w->uri), sizeof(w->uri) - strlen(w->uri), "/data set");
    CHECK_OK(remote_open(w->uri, &o, &w->r, &err), &err);
    if (!w->r)
        abort();
}

static void world_close(struct world *w)
{
    remote_close(w->r);
    server_stop(&w->s);
    free(w->x.stored);
}

static int get(struct world *w, struct remote_request *q, uint64_t offset, size_t len, void *buf)
{
    struct larder_error err;
    *q = (struct remote_request){.name = "shards/a b+c.shard", .ranged = true, .offset = offset, .len = len, .buf = buf};
    return remote_run(w->r, q, 1, &err);
}

static struct remote *run_one_of;

static void *run_one(void *q)
{
    remote_run(run_one_of, q, 1, NULL);
    return NULL;
}

/* ---- headers ---- */

TEST(content_range)
{
    static const struct { const char *text; bool ok; uint64_t first, last, total; } table[] = {
        {"bytes 0-9/100", true, 0, 9, 100}, {"bytes 5-5/6", true, 5, 5, 6}, {"bytes 0-9/*", true, 0, 9, UINT64_MAX},
        {"bytes */100", true, UINT64_MAX, UINT64_MAX, 100}, {"BYTES  1-2/3 ", true, 1, 2, 3}, {"bytes=1-2/3", true, 1, 2, 3},
        {"bytes 18446744073709551599-18446744073709551600/*", true, 18446744073709551599u, 18446744073709551600u, UINT64_MAX},
        {"", false, 0, 0, 0}, {"bytes", false, 0, 0, 0}, {"bytes ", false, 0, 0, 0}, {"bytes 9-0/100", false, 0, 0, 0},
        {"bytes 0-100/100", false, 0, 0, 0}, {"bytes 0-9/", false, 0, 0, 0}, {"bytes 0-9", false, 0, 0, 0}, {"bytes -9/10", false, 0, 0, 0},
        {"bytes 0-/10", false, 0, 0, 0}, {"bytes */*", false, 0, 0, 0}, {"bytes 0-9/100x", false, 0, 0, 0}, {"items 0-9/100", false, 0, 0, 0},
        {"bytes 99999999999999999999-99999999999999999999/*", false, 0, 0, 0}, {"bytes -1--1/-1", false, 0, 0, 0},
        {"bytes 0x1-9/10", false, 0, 0, 0}, {"bytes\t0-9/10", false, 0, 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        uint64_t first = 0, last = 0, total = 0;
        bool ok = remote_content_range(table[i].text, &first, &last, &total);
        if (ok != table[i].ok || first != table[i].first || last != table[i].last || total != table[i].total)
            test_check(0, __FILE__, __LINE__, "\"%s\": %d %llu %llu %llu", table[i].text, ok, (unsigned long long)first,
                       (unsigned long long)last, (unsigned long long)total);
    }
}

TEST(retry_after)
{
    const uint64_t now = 1445412480; /* Wed, 21 Oct 2015 07:28:00 GMT */
    CHECK_EQ(remote_retry_after_s("", now), 0);
    CHECK_EQ(remote_retry_after_s("7", now), 7);
    CHECK_EQ(remote_retry_after_s(" 7 ", now), 7);
    CHECK_EQ(remote_retry_after_s("0", now), 0);
    CHECK_EQ(remote_retry_after_s("3600", now), 60);
    CHECK_EQ(remote_retry_after_s("99999999999999999999999", now), 0);
    CHECK_EQ(remote_retry_after_s("-5", now), 0);
    CHECK_EQ(remote_retry_after_s("7 apples", now), 0);
    CHECK_EQ(remote_retry_after_s("Wed, 21 Oct 2015 07:28:30 GMT", now), 30);
    CHECK_EQ(remote_retry_after_s("Wed, 21 Oct 2015 09:28:30 GMT", now), 60);
    CHECK_EQ(remote_retry_after_s("Wed, 21 Oct 2015 07:27:30 GMT", now), 0);
    CHECK_EQ(remote_retry_after_s("tomorrow", now), 0);
}

/* ---- URIs ---- */

TEST(uris)
{
    struct larder_error err;
    struct remote *r = NULL;
    CHECK(uri_is_remote("s3://b") && uri_is_remote("HTTPS://h/x") && uri_is_remote("http://h"));
    CHECK(!uri_is_remote("/s3://b") && !uri_is_remote("file:///x") && !uri_is_remote("s3:/b") && !uri_is_remote(NULL));
    CHECK_OK(remote_open("https://me:pass%20word@host.example:8443/a b/c%20d//", NULL, &r, &err), &err);
    CHECK_STR(remote_uri(r), "https://host.example:8443/a b/c%20d");
    CHECK(!remote_writable(r));
    CHECK_STR(r->path, "/a%20b/c%20d//");
    CHECK_STR(r->root, "https://me:pass%20word@host.example:8443");
    CHECK_EQ(remote_options(r)->requests_max, 64);
    CHECK_EQ(remote_options(r)->get_bytes, 8 * MIB);
    remote_close(r);
    CHECK_ERR(remote_open("http://host/x?y=1", NULL, &r, &err), LARDER_EINVAL, &err);
    CHECK(!r && strstr(err.message, "query"));
    CHECK_ERR(remote_open("http:///x", NULL, &r, &err), LARDER_EINVAL, &err);
    CHECK_ERR(remote_open("http://ho st/x", NULL, &r, &err), LARDER_EINVAL, &err);
    CHECK_ERR(remote_open("/tmp/x", NULL, &r, &err), LARDER_EINVAL, &err);
    CHECK_ERR(remote_open("s3://A", NULL, &r, &err), LARDER_EINVAL, &err);
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
    o.hedge_percent = 21;
    CHECK_ERR(remote_open("http://host/x", &o, &r, &err), LARDER_EINVAL, &err);
    remote_close(NULL);
}

/* ---- what is right ---- */

TEST(reads_of_a_web_server)
{
    struct world w = {.x = {0}};
    struct remote_request q;
    struct larder_error err;
    uint8_t *buf = malloc(OBJECT_LEN);
    world_open(&w, "http://", (struct larder_remote_options){0});
    CHECK_OK(get(&w, &q, 1000, 5000, buf), &q.error);
    CHECK_MEM(buf, object + 1000, 5000);
    CHECK_STR(q.etag, "\"e1\"");
    CHECK_EQ(q.object_size, OBJECT_LEN);
    CHECK_EQ(q.modified_s, 1445412480);
    CHECK_EQ(q.tries, 1);
    CHECK_EQ(q.status, 206);
    CHECK(strstr(w.x.head, "GET /data%20set/shards/a%20b%2Bc.shard HTTP/1.1\r\n"));
    CHECK(strstr(w.x.head, "range: bytes=1000-5999\r\n") && !strcasestr(w.x.head, "authorization"));
    /* all of it, as a range and as a body */
    CHECK_OK(get(&w, &q, 0, OBJECT_LEN, buf), &q.error);
    CHECK_MEM(buf, object, OBJECT_LEN);
    struct buf out = BUF_INIT;
    CHECK_OK(buf_append(&out, "before", 6, NULL), NULL);
    q = (struct remote_request){.name = "x", .out = &out, .out_max = OBJECT_LEN};
    CHECK_OK(remote_run(w.r, &q, 1, &err), &err);
    CHECK_EQ(out.len, 6 + OBJECT_LEN);
    CHECK_MEM(out.data, "before", 6);
    CHECK_MEM(out.data + 6, object, OBJECT_LEN);
    CHECK_EQ(q.object_size, OBJECT_LEN);
    q = (struct remote_request){.name = "x", .out = &out, .out_max = OBJECT_LEN - 1};
    CHECK_ERR(remote_run(w.r, &q, 1, &err), LARDER_ECORRUPT, &err);
    q = (struct remote_request){.method = HTTP_HEAD, .name = "x"};
    CHECK_OK(remote_run(w.r, &q, 1, &err), &err);
    CHECK_EQ(q.object_size, OBJECT_LEN);
    CHECK_OK(get(&w, &q, 5, 0, NULL), &q.error); /* nothing: not asked for */
    CHECK_EQ(q.tries, 0);
    q = (struct remote_request){.method = HTTP_PUT, .name = "x", .body = "b", .body_len = 1};
    CHECK_ERR(remote_run(w.r, &q, 1, &err), LARDER_EINVAL, &err);
    /* beyond the end */
    CHECK_EQ(get(&w, &q, OBJECT_LEN - 10, 20, buf), LARDER_ECORRUPT);
    CHECK(strstr(q.error.message, "damaged"));
    CHECK_EQ(get(&w, &q, OBJECT_LEN + 10, 20, buf), LARDER_ECORRUPT);
    CHECK_EQ(q.tries, 1);
    /* pinned */
    q = (struct remote_request){.name = "x", .ranged = true, .len = 10, .buf = buf, .if_match = "\"e1\""};
    CHECK_OK(remote_run(w.r, &q, 1, &err), &err);
    q.if_match = "\"e0\"";
    CHECK_ERR(remote_run(w.r, &q, 1, &err), LARDER_EBUSY, &err);
    CHECK(strstr(err.message, "replaced"));
    struct larder_remote_stats st = LARDER_REMOTE_STATS_INIT;
    remote_used(w.r, 6000);
    remote_stats(w.r, &st);
    CHECK_EQ(st.requests, 9);
    CHECK_EQ(st.gets, 9);
    CHECK_EQ(st.demand_gets, 9);
    CHECK_EQ(st.retries, 0);
    CHECK_EQ(st.bytes_used, 6000);
    CHECK(st.bytes_fetched >= 5000 + 2 * OBJECT_LEN + 10 && st.bytes_fetched <= 5000 + 2 * OBJECT_LEN + 20);
    CHECK(st.latency_ns_p50 > 0 && st.latency_ns_p50 <= st.latency_ns_max);
    world_close(&w);
    buf_release(&out);
    free(buf);
}

TEST(a_bucket_is_signed_for)
{
    struct world w = {.x = {.need_auth = "Credential=AKIDTEST/"}};
    struct remote_request q;
    struct larder_error err;
    uint8_t buf[100];
    world_open(&w, "s3://bkt/train set", (struct larder_remote_options){.requester_pays = 1});
    CHECK(remote_writable(w.r));
    CHECK_OK(get(&w, &q, 7, 100, buf), &q.error);
    CHECK_MEM(buf, object + 7, 100);
    CHECK(strstr(w.x.head, "GET /bkt/train%20set/shards/a%20b%2Bc.shard HTTP/1.1\r\n"));
    CHECK(strstr(w.x.head, "x-amz-content-sha256: e3b0c442") && strstr(w.x.head, "x-amz-request-payer: requester\r\n"));
    CHECK(strstr(w.x.head, "/us-east-1/s3/aws4_request"));
    const char *more[] = {"x-amz-meta-a: b"};
    q = (struct remote_request){.method = HTTP_PUT, .name = "o", .body = "hello", .body_len = 5, .headers = more, .n_headers = 1};
    CHECK_OK(remote_run(w.r, &q, 1, &err), &err);
    CHECK(strstr(w.x.head, "x-amz-content-sha256: 2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824\r\n"));
    CHECK(strstr(w.x.head, "x-amz-meta-a;") && strstr(w.x.head, "x-amz-meta-a: b\r\n"));
    CHECK_EQ(w.x.stored_len, 5);
    CHECK_STR(q.etag, "\"stored\"");
    q = (struct remote_request){.name = NULL, .query = "list-type=2&prefix=train%20set%2F"};
    CHECK_OK(remote_run(w.r, &q, 1, &err), &err);
    CHECK(strstr(w.x.head, "GET /bkt/?list-type=2&prefix=train%20set%2F HTTP/1.1\r\n"));
    struct larder_remote_stats st;
    remote_stats(w.r, &st);
    CHECK_EQ(st.gets, 1);
    CHECK_EQ(st.puts, 2);
    CHECK_EQ(st.bytes_sent, 5);
    world_close(&w);
}

/* A server that does not do ranges can be read where all is asked for. */
TEST(no_ranges_but_whole)
{
    struct world w = {.x = {.times = UINT32_MAX, .fault = FULL_200}};
    struct remote_request q;
    uint8_t *buf = malloc(OBJECT_LEN);
    world_open(&w, "http://", (struct larder_remote_options){0});
    CHECK_OK(get(&w, &q, 0, OBJECT_LEN, buf), &q.error);
    CHECK_MEM(buf, object, OBJECT_LEN);
    CHECK_EQ(q.object_size, UINT64_MAX);
    CHECK_EQ(get(&w, &q, 0, OBJECT_LEN - 1, buf), LARDER_EREMOTE);
    CHECK_EQ(q.tries, 3);
    world_close(&w);
    free(buf);
}

/* ---- each fault, once and for ever ---- */

static void expect_retries(const struct larder_remote_stats *st, enum fault f, unsigned n)
{
    uint64_t have;
    switch (f) {
    case SHORT_BODY: case WRONG_RANGE: case NO_RANGE: case FULL_200: have = st->retries_short; break;
    case STALL_BODY: case HANG: have = st->retries_stalled; break;
    case SLOW_DOWN: case TOO_MANY: have = st->retries_throttled; break;
    case ERROR_500: case ERROR_502: have = st->retries_server; break;
    default: have = st->retries_connection;
    }
    if (have != n || st->retries != n)
        test_check(0, __FILE__, __LINE__, "fault %d: %llu retries of its cause, %llu in all; want %u", f, (unsigned long long)have,
                   (unsigned long long)st->retries, n);
}

TEST(each_fault_passes)
{
    uint8_t *buf = malloc(100000);
    for (enum fault f = SHORT_BODY; f < FAULTS; f++) {
        struct world w = {.x = {.times = 1, .fault = f}};
        struct remote_request q;
        struct larder_remote_stats st;
        world_open(&w, f % 2 ? "s3://bkt/p" : "http://", (struct larder_remote_options){.stall_timeout_ms = 300});
        memset(buf, 0, 100000);
        CHECK_OK(get(&w, &q, 3, 100000, buf), &q.error);
        CHECK_MEM(buf, object + 3, 100000);
        remote_stats(w.r, &st);
        CHECK_EQ(q.tries, 2);
        CHECK_EQ(st.requests, 2);
        CHECK_EQ(st.failed, 0);
        expect_retries(&st, f, 1);
        world_close(&w);
    }
    free(buf);
}

TEST(each_fault_stays)
{
    uint8_t *buf = malloc(100000);
    for (enum fault f = SHORT_BODY; f < FAULTS; f++) {
        unsigned tries = f == FULL_200 ? 3 : 2;
        struct world w = {.x = {.times = UINT32_MAX, .fault = f}};
        struct remote_request q;
        struct larder_remote_stats st;
        world_open(&w, f % 2 ? "s3://bkt/p" : "http://", (struct larder_remote_options){.stall_timeout_ms = 200, .tries_max = tries});
        CHECK_EQ(get(&w, &q, 3, 100000, buf), LARDER_EREMOTE);
        CHECK_EQ(q.tries, tries);
        CHECK(strstr(q.error.message, "shards/a b+c.shard: ") && strncmp(q.error.message, f % 2 ? "s3://bkt/p/" : "http://127", 10) == 0);
        if (f == FULL_200)
            CHECK(strstr(q.error.message, "does not do ranges"));
        else
            CHECK(strstr(q.error.message, "given up after 2 tries in ") && strstr(q.error.message, "; last: "));
        if (f == SLOW_DOWN) {
            CHECK(strstr(q.error.message, "(2 429/503); last: 503 SlowDown"));
            CHECK_EQ(q.error.http_status, 503);
        }
        remote_stats(w.r, &st);
        CHECK_EQ(st.requests, tries);
        CHECK_EQ(st.failed, 1);
        expect_retries(&st, f, tries - 1);
        world_close(&w);
    }
    free(buf);
}

TEST(deadline)
{
    struct world w = {.x = {.times = UINT32_MAX, .fault = HANG}};
    struct remote_request q;
    struct larder_error err;
    uint8_t buf[10];
    world_open(&w, "http://", (struct larder_remote_options){.timeout_ms = 300});
    CHECK_EQ(get(&w, &q, 0, 10, buf), LARDER_ETIMEOUT);
    CHECK(strstr(q.error.message, "given up after 1 try in 0.") && strstr(q.error.message, "no answer in time"));
    CHECK(q.end_ns - q.begin_ns >= 300000000u);
    /* one that would pass in a back-off ends at once */
    pthread_mutex_lock(&w.s.lock);
    w.x.fault = SLOW_DOWN;
    pthread_mutex_unlock(&w.s.lock);
    q = (struct remote_request){.name = "x", .ranged = true, .len = 10, .buf = buf, .deadline_ns = now_ns() + 2000};
    CHECK_EQ(remote_run(w.r, &q, 1, &err), LARDER_ETIMEOUT);
    world_close(&w);
}

TEST(retry_after_is_waited_for)
{
    struct world w = {.x = {.times = 1, .fault = SLOW_DOWN}};
    struct larder_error err;
    uint8_t buf[10];
    char state[160];
    world_open(&w, "http://", (struct larder_remote_options){0});
    struct remote_request q = {.name = "later", .ranged = true, .len = 10, .buf = buf};
    CHECK_OK(remote_run(w.r, &q, 1, &err), &err);
    CHECK(q.end_ns - q.begin_ns >= 1000000000u);
    CHECK_EQ(q.tries, 2);
    CHECK_MEM(buf, object, 10);
    /* what is going on, while it waits */
    pthread_mutex_lock(&w.s.lock);
    w.x.times = UINT32_MAX;
    pthread_mutex_unlock(&w.s.lock);
    run_one_of = w.r;
    q = (struct remote_request){.name = "later", .ranged = true, .len = 10, .buf = buf, .deadline_ns = now_ns() + 1200000000u};
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, run_one, &q) == 0);
    for (unsigned ms = 0; ms < 10000; ms++) {
        remote_state(w.r, state);
        if (strstr(state, "retry"))
            break;
        usleep(1000);
    }
    CHECK(strncmp(state, "1 GETs in flight, 1 retry (503), ", 33) == 0);
    pthread_join(thread, NULL);
    CHECK_EQ(q.rc, LARDER_ETIMEOUT);
    world_close(&w);
}

/* Heads of answers with bytes changed and cut anywhere: nothing but an answer or an error comes of it. */
static void mutate(struct server *s, const struct request *q, struct answer *a)
{
    static const char head[] = "HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\nContent-Range: bytes 7-106/1049353\r\nETag: \"e1\"\r\n"
                               "Retry-After: 0\r\nDate: Wed, 21 Oct 2015 07:28:00 GMT\r\nx-amz-bucket-region: us-east-1\r\n\r\n";
    struct script *x = s->user;
    static char text[sizeof(head) + 100];
    size_t len = sizeof(head) - 1 + 100;
    (void)q;
    memcpy(text, head, sizeof(head) - 1);
    memcpy(text + sizeof(head) - 1, the_object() + 7, 100);
    for (unsigned n = (unsigned)rng_below(&x->seed, 4); n > 0; n--)
        text[rng_below(&x->seed, sizeof(head) - 1)] =
            rng_below(&x->seed, 2) ? (char)rng_below(&x->seed, 256) : "\r\n: 0/-\0"[rng_below(&x->seed, 8)];
    a->raw = text;
    a->raw_len = rng_below(&x->seed, 3) ? len : rng_below(&x->seed, len + 1);
    a->then = rng_below(&x->seed, 3) ? THEN_CLOSE : THEN_RESET;
}

TEST(mutated_answers)
{
    enum { N = 600 };
    struct world w = {.x = {.seed = 77}};
    struct remote_request q;
    uint8_t buf[100];
    unsigned good = 0;
    world_open(&w, "http://", (struct larder_remote_options){.tries_max = 1, .stall_timeout_ms = 300});
    pthread_mutex_lock(&w.s.lock);
    w.s.handle = mutate;
    pthread_mutex_unlock(&w.s.lock);
    for (unsigned i = 0; i < N; i++) {
        int rc = get(&w, &q, 7, 100, buf);
        good += rc == LARDER_OK;
        CHECK(rc == LARDER_OK || rc == LARDER_EREMOTE || rc == LARDER_ECORRUPT || rc == LARDER_ENOTFOUND || rc == LARDER_EBUSY);
        CHECK(rc == LARDER_OK || q.error.message[0]);
    }
    CHECK(good > N / 10);
    world_close(&w);
}

/* ---- many with faults ---- */

TEST(many_with_faults)
{
    enum { N = 200, LEN = 5000 };
    struct world w = {.x = {.percent = 20, .seed = 3}};
    struct remote_request *q = calloc(N, sizeof(*q));
    uint8_t *buf = calloc(N, LEN);
    struct larder_error err;
    struct larder_remote_stats st;
    world_open(&w, "s3://bkt/p", (struct larder_remote_options){.stall_timeout_ms = 500, .requests_max = 16, .loops = 2, .tries_max = 30});
    for (size_t i = 0; i < N; i++)
        q[i] = (struct remote_request){.name = "o", .ranged = true, .offset = i * 5003, .len = LEN, .buf = buf + i * LEN,
                                       .priority = i % 2 ? REMOTE_STREAM : REMOTE_DEMAND, .if_match = "\"e1\""};
    CHECK_OK(remote_run(w.r, q, N, &err), &err);
    for (size_t i = 0; i < N; i++)
        CHECK_MEM(buf + i * LEN, object + i * 5003, LEN);
    remote_stats(w.r, &st);
    CHECK(st.retries > 0);
    CHECK_EQ(st.gets, st.demand_gets + st.stream_gets);
    CHECK(st.stream_gets >= N / 2 && st.demand_gets >= N / 2);
    CHECK(atomic_load(&w.s.answering_max) > 0);
    world_close(&w);
    free(q);
    free(buf);
}

/* ---- errors that say what to check ---- */

static struct larder_error refusal(int status, const char *headers, const char *xml, struct larder_remote_options o, enum http_method method)
{
    struct world w = {.x = {.status = status, .headers = headers, .xml = xml}};
    uint8_t buf[10];
    struct larder_error err = {0};
    struct larder_remote_stats st;
    struct remote_request q = {.method = method, .name = "larder.json", .ranged = method == HTTP_GET, .len = 10, .buf = buf};
    world_open(&w, "s3://bkt/train", o);
    CHECK(remote_run(w.r, &q, 1, &err) != LARDER_OK);
    CHECK_EQ(err.http_status, status);
    CHECK(!strstr(err.message, "very-secret") && !strstr(err.message, "Signature="));
    remote_stats(w.r, &st);
    CHECK_EQ(st.retries, 0);
    CHECK_EQ(st.requests, 1);
    world_close(&w);
    return err;
}

TEST(errors_say_what_to_check)
{
#define XML(code, more) "<?xml version=\"1.0\"?>\n<Error><Code>" code "</Code><Message>The words of the server.</Message>" more "</Error>"
    static const char denied[] = "s3://bkt/train/larder.json: 403 AccessDenied, credentials from environment, region us-east-1; "
                                 "check that they may read here and that it exists";
    struct larder_remote_options o = {0}, anonymous = {.anonymous = 1};
    struct larder_error e = refusal(403, NULL, XML("AccessDenied", ""), o, HTTP_GET);
    CHECK_EQ(e.code, LARDER_EREMOTE);
    CHECK_STR(e.message, denied);
    e = refusal(403, NULL, XML("AccessDenied", ""), anonymous, HTTP_GET);
    CHECK(strstr(e.message, "not signed (anonymous), region us-east-1"));
    e = refusal(403, "x-amz-bucket-region: eu-west-1", NULL, o, HTTP_HEAD);
    CHECK_STR(e.message, "s3://bkt/train/larder.json: 403, credentials from environment, region us-east-1; bucket is in eu-west-1: "
                         "set AWS_REGION");
    e = refusal(301, "x-amz-bucket-region: eu-west-1", XML("PermanentRedirect", "<Endpoint>bkt.s3.eu-west-1.amazonaws.com</Endpoint>"), o, HTTP_GET);
    CHECK_EQ(e.code, LARDER_EREMOTE);
    CHECK(strstr(e.message, "bucket is in eu-west-1: set AWS_REGION"));
    e = refusal(400, NULL, XML("AuthorizationHeaderMalformed", "<Region>ap-south-1</Region>"), o, HTTP_GET);
    CHECK(strstr(e.message, "bucket is in ap-south-1: set AWS_REGION"));
    e = refusal(307, "Location: https://elsewhere.example/x?X-Amz-Signature=abc", XML("TemporaryRedirect", ""), o, HTTP_GET);
    CHECK(strstr(e.message, "moved to https://elsewhere.example/x: check") && !strstr(e.message, "X-Amz"));
    e = refusal(403, NULL, XML("SignatureDoesNotMatch", "<StringToSign>very-secret-indeed</StringToSign>"), o, HTTP_GET);
    CHECK(strstr(e.message, "403 SignatureDoesNotMatch") && strstr(e.message, "secret key does not belong"));
    e = refusal(403, NULL, XML("InvalidAccessKeyId", ""), o, HTTP_GET); /* of the environment: there is no other to be had */
    CHECK(strstr(e.message, "does not know the key id"));
    e = refusal(400, NULL, XML("ExpiredToken", ""), o, HTTP_GET);
    CHECK(strstr(e.message, "400 ExpiredToken") && strstr(e.message, "the session has expired: get new credentials"));
    e = refusal(404, NULL, XML("NoSuchKey", ""), o, HTTP_GET);
    CHECK_EQ(e.code, LARDER_ENOTFOUND);
    CHECK_STR(e.message, "s3://bkt/train/larder.json: not found (404 NoSuchKey)");
    e = refusal(404, NULL, XML("NoSuchBucket", ""), o, HTTP_GET);
    CHECK_EQ(e.code, LARDER_EREMOTE);
    CHECK(strstr(e.message, "there is no bucket bkt at 127.0.0.1:"));
    e = refusal(404, NULL, NULL, o, HTTP_HEAD);
    CHECK_EQ(e.code, LARDER_ENOTFOUND);
    e = refusal(501, NULL, XML("NotImplemented", ""), o, HTTP_GET);
    CHECK(strstr(e.message, "501 NotImplemented: The words of the server."));
    e = refusal(418, NULL, "<html>short and stout", o, HTTP_GET);
    CHECK(strstr(e.message, "larder.json: 418"));
    e = refusal(403, NULL, XML("AccessDenied", ""), o, HTTP_DELETE);
    CHECK(strstr(e.message, "check that they may write here"));
}

TEST(a_web_server_that_refuses)
{
    struct world w = {.x = {.status = 401}};
    struct remote_request q;
    uint8_t buf[10];
    world_open(&w, "http://me:hush@", (struct larder_remote_options){0});
    CHECK_EQ(get(&w, &q, 0, 10, buf), LARDER_EREMOTE);
    CHECK(strstr(q.error.message, ": 401, with user and password of the URL: the server") && !strstr(q.error.message, "hush"));
    CHECK(strstr(w.x.head, "Authorization: Basic bWU6aHVzaA==\r\n"));
    CHECK(!strstr(remote_uri(w.r), "hush"));
    pthread_mutex_lock(&w.s.lock);
    w.x.status = 301, w.x.headers = "Location: https://new.example/data";
    pthread_mutex_unlock(&w.s.lock);
    CHECK_EQ(get(&w, &q, 0, 10, buf), LARDER_EREMOTE);
    CHECK(strstr(q.error.message, "moved to https://new.example/data: use that URL"));
    world_close(&w);
}

TEST(long_names_fit)
{
    struct world w = {.x = {.status = 403, .xml = XML("AccessDenied", "")}};
    char name[300];
    uint8_t buf[1];
    struct remote_request q = {.name = name, .ranged = true, .len = 1, .buf = buf};
    struct larder_error err;
    memset(name, 'n', sizeof(name) - 1);
    name[299] = 0;
    world_open(&w, "s3://bkt/a-prefix-that-is-not-short-but-so-long-that-it-fills-most-of-a-message", (struct larder_remote_options){0});
    CHECK_EQ(remote_run(w.r, &q, 1, &err), LARDER_EREMOTE);
    CHECK(strstr(err.message, "s3://bkt/a-prefix") && strstr(err.message, "403 AccessDenied, credentials from environment"));
    world_close(&w);
}

/* ---- clocks and keys ---- */

TEST(clock_skew_is_corrected)
{
    for (int64_t skew = -7200; skew <= 7200; skew += 14400) {
        struct world w = {.x = {.clock_s = skew}};
        struct remote_request q;
        struct larder_remote_stats st;
        uint8_t buf[10];
        world_open(&w, "s3://bkt/p", (struct larder_remote_options){0});
        CHECK_OK(get(&w, &q, 0, 10, buf), &q.error);
        CHECK_EQ(q.tries, 2);
        CHECK_OK(get(&w, &q, 0, 10, buf), &q.error);
        CHECK_EQ(q.tries, 1);
        remote_stats(w.r, &st);
        CHECK_EQ(st.retries_credentials, 1);
        CHECK_EQ(st.retries, 1);
        world_close(&w);
    }
}

#define KEY(id) "{\"AccessKeyId\":\"" id "\",\"SecretAccessKey\":\"s\",\"Token\":\"tok-" id "\",\"Expiration\":\"2099-01-01T00:00:00Z\"}"

TEST(a_refused_key_is_fetched_anew)
{
    enum { N = 10 };
    struct world w = {.container = true, .x = {.need_auth = "Credential=NEWKEY/", .keys = {KEY("OLDKEY"), KEY("NEWKEY")}}};
    struct remote_request q[N];
    struct larder_remote_stats st;
    struct larder_error err;
    uint8_t buf[N];
    world_open(&w, "s3://bkt/p", (struct larder_remote_options){0});
    for (size_t i = 0; i < N; i++)
        q[i] = (struct remote_request){.name = "x", .ranged = true, .offset = i, .len = 1, .buf = buf + i};
    CHECK_OK(remote_run(w.r, q, N, &err), &err);
    CHECK_MEM(buf, object, N);
    CHECK(strstr(w.x.head, "x-amz-security-token: tok-NEWKEY\r\n"));
    remote_stats(w.r, &st);
    CHECK(st.retries_credentials >= 1 && st.retries_credentials <= N);
    CHECK_EQ(atomic_load(&w.x.keys_given), 2); /* all wait for one fetch */
    world_close(&w);
    /* one that stays refused is an error */
    w = (struct world){.container = true, .x = {.need_auth = "Credential=NEWKEY/", .keys = {KEY("OLDKEY"), KEY("OLDERKEY"), KEY("KEY")}}};
    world_open(&w, "s3://bkt/p", (struct larder_remote_options){0});
    CHECK_EQ(get(&w, &q[0], 0, 1, buf), LARDER_EREMOTE);
    CHECK(strstr(q[0].error.message, "InvalidAccessKeyId"));
    CHECK_EQ(q[0].tries, 2);
    world_close(&w);
}

/* ---- canceling, closing ---- */

struct gate { pthread_mutex_t lock; pthread_cond_t cond; unsigned n; };
#define GATE_INIT {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}

static void gate_add(struct remote_request *q)
{
    struct gate *g = q->user;
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

TEST(cancel_in_any_state)
{
    static const enum fault faults[] = {HANG, STALL_BODY, SLOW_DOWN, FINE};
    for (size_t i = 0; i < ARRAY_LEN(faults) + 1; i++) {
        bool parked = i == ARRAY_LEN(faults);
        struct world w = {.container = parked, .x = {.times = UINT32_MAX, .fault = parked ? FINE : faults[i]}};
        struct gate g = GATE_INIT;
        uint8_t *buf = malloc(100000);
        char state[160];
        world_open(&w, "s3://bkt/p", (struct larder_remote_options){.tries_max = 1000});
        struct remote_request q = {.name = "x", .ranged = true, .len = 100000, .buf = buf, .done = gate_add, .user = &g};
        remote_start(w.r, &q);
        for (int ms = 0; !parked && atomic_load(&w.s.requests) == 0 && ms < 10000; ms++)
            usleep(1000);
        usleep(1000 * (unsigned)(5 * i));
        remote_state(w.r, state);
        if (faults[MIN(i, ARRAY_LEN(faults) - 1)] != FINE)
            CHECK(strncmp(state, "1 GETs in flight", 16) == 0);
        remote_cancel(w.r, &q);
        gate_wait(&g, 1);
        CHECK(q.rc == LARDER_ECANCELED || (!parked && faults[i] == FINE && q.rc == LARDER_OK));
        CHECK(q.rc != LARDER_ECANCELED || strcmp(q.error.message, "s3://bkt/p/x: canceled") == 0);
        remote_cancel(w.r, &q); /* over */
        remote_state(w.r, state);
        CHECK(strncmp(state, "0 GETs in flight", 16) == 0);
        world_close(&w);
        free(buf);
    }
}

TEST(close_ends_what_is_in_flight)
{
    enum { N = 40 };
    for (int parked = 0; parked <= 1; parked++) {
        struct world w = {.container = parked, .x = {.times = UINT32_MAX, .fault = HANG}};
        struct gate g = GATE_INIT;
        struct remote_request q[N];
        uint8_t buf[10];
        world_open(&w, "s3://bkt/p", (struct larder_remote_options){.requests_max = 8});
        for (size_t i = 0; i < N; i++) {
            q[i] = (struct remote_request){.name = "x", .ranged = true, .len = 10, .buf = buf, .done = gate_add, .user = &g,
                                           .priority = i % 2 ? REMOTE_DEMAND : REMOTE_STREAM};
            remote_start(w.r, &q[i]);
        }
        world_close(&w);
        CHECK_EQ(g.n, N);
        for (size_t i = 0; i < N; i++)
            CHECK_EQ(q[i].rc, LARDER_ECANCELED);
    }
}

TEST(streams_leave_room_for_demand)
{
    enum { N = 20 };
    struct world w = {.x = {.slow_first = UINT32_MAX}};
    struct gate g = GATE_INIT;
    struct remote_request q[N], urgent;
    uint8_t buf[10], mine[10];
    world_open(&w, "http://", (struct larder_remote_options){.requests_max = 4});
    for (size_t i = 0; i < N; i++) {
        q[i] = (struct remote_request){.name = "slow", .ranged = true, .len = 10, .buf = buf, .done = gate_add, .user = &g,
                                       .priority = REMOTE_STREAM};
        remote_start(w.r, &q[i]);
    }
    CHECK_OK(get(&w, &urgent, 0, 10, mine), &urgent.error);
    CHECK_MEM(mine, object, 10);
    world_close(&w);
    CHECK_EQ(g.n, N);
}

/* ---- creating ---- */

static int create(struct world *w, struct remote_request *q, const char *text)
{
    struct larder_error err;
    *q = (struct remote_request){.method = HTTP_PUT, .name = "larder.json", .create = true, .body = text, .body_len = strlen(text)};
    return remote_run(w->r, q, 1, &err);
}

TEST(create_once)
{
    struct world w = {.x = {0}};
    struct remote_request q;
    world_open(&w, "s3://bkt/p", (struct larder_remote_options){0});
    CHECK_OK(create(&w, &q, "mine"), &q.error);
    CHECK(strstr(w.x.head, "if-none-match: *\r\n"));
    CHECK_EQ(create(&w, &q, "mine"), LARDER_EEXIST); /* no answer got lost: somebody else's, though the same */
    CHECK_EQ(q.tries, 1);
    CHECK(strstr(q.error.message, "it is there already"));
    world_close(&w);

    /* carried out, the answer lost */
    w = (struct world){.x = {.lose_answers = true}};
    world_open(&w, "s3://bkt/p", (struct larder_remote_options){0});
    CHECK_OK(create(&w, &q, "mine"), &q.error);
    CHECK_EQ(q.tries, 3); /* PUT, PUT, GET to compare */
    CHECK_EQ(w.x.stored_len, 4);
    world_close(&w);

    /* not carried out, and then somebody else was first: other bytes, of the same length, shorter, longer */
    static const char *const others[] = {"his.", "it", "something longer", ""};
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        w = (struct world){.x = {.stored = (uint8_t *)strdup(others[i]), .stored_len = strlen(others[i]), .has_stored = true,
                                 .fault = RESET_FIRST, .times = 1}};
        world_open(&w, "s3://bkt/p", (struct larder_remote_options){0});
        CHECK_EQ(create(&w, &q, "mine"), LARDER_EEXIST);
        CHECK_EQ(q.tries, 3);
        world_close(&w);
    }
    /* an empty object */
    w = (struct world){.x = {.lose_answers = true}};
    world_open(&w, "s3://bkt/p", (struct larder_remote_options){0});
    CHECK_OK(create(&w, &q, ""), &q.error);
    world_close(&w);
}

/* ---- hedging ---- */

TEST(hedge_wins)
{
    enum { N = 150 };
    struct world w = {.x = {.slow_first = 1}};
    struct remote_request q;
    struct larder_error err;
    struct larder_remote_stats st;
    uint8_t buf[1000];
    world_open(&w, "http://", (struct larder_remote_options){.hedge_percent = 5});
    for (size_t i = 0; i < N; i++)
        CHECK_OK(get(&w, &q, i, 1000, buf), &q.error);
    remote_stats(w.r, &st);
    uint64_t before = st.hedges;
    CHECK(before <= N);
    /* the first request for it hangs until stall_timeout_ms (20 s) */
    q = (struct remote_request){.name = "slow", .ranged = true, .offset = 5, .len = 1000, .buf = buf};
    CHECK_OK(remote_run(w.r, &q, 1, &err), &err);
    CHECK_MEM(buf, object + 5, 1000);
    CHECK_EQ(q.tries, 1);
    CHECK_STR(q.etag, "\"e1\"");
    remote_stats(w.r, &st);
    CHECK_EQ(st.hedges, before + 1);
    CHECK(st.hedges_won >= 1);
    CHECK_EQ(st.retries, 0);
    /* not for what is large, or ahead of need */
    atomic_store(&w.x.slow, 0);
    struct gate g = GATE_INIT;
    q = (struct remote_request){.name = "slow", .ranged = true, .len = 1000, .buf = buf, .priority = REMOTE_STREAM, .done = gate_add, .user = &g};
    remote_start(w.r, &q);
    for (int ms = 0; atomic_load(&w.x.slow) == 0 && ms < 10000; ms++)
        usleep(1000);
    usleep(20000);
    remote_cancel(w.r, &q);
    gate_wait(&g, 1);
    CHECK_EQ(q.rc, LARDER_ECANCELED);
    CHECK_EQ(atomic_load(&w.x.slow), 1);
    world_close(&w);
}

TEST(hedges_among_many)
{
    enum { N = 200, ROUNDS = 4, LEN = 3000 };
    struct world w = {.x = {.delay_percent = 20, .delay_ms = 15, .seed = 9, .percent = 3}};
    struct remote_request *q = calloc(N, sizeof(*q));
    uint8_t *buf = malloc(N * LEN);
    struct larder_error err;
    struct larder_remote_stats st;
    world_open(&w, "http://", (struct larder_remote_options){.hedge_percent = 20, .loops = 2, .stall_timeout_ms = 400, .tries_max = 30,
                                                             .requests_max = 256});
    for (unsigned round = 0; round < ROUNDS; round++) {
        memset(buf, 0, N * LEN);
        for (size_t i = 0; i < N; i++)
            q[i] = (struct remote_request){.name = "o", .ranged = true, .offset = i * 3001, .len = LEN, .buf = buf + i * LEN};
        CHECK_OK(remote_run(w.r, q, N, &err), &err);
        for (size_t i = 0; i < N; i++)
            CHECK_MEM(buf + i * LEN, object + i * 3001, LEN);
    }
    remote_stats(w.r, &st);
    CHECK(st.hedges * 100 <= (N * ROUNDS + 900) * 20);
    CHECK(st.hedges_won <= st.hedges);
    CHECK(st.requests >= N * ROUNDS + st.hedges);
    CHECK_EQ(st.failed, 0);
    world_close(&w);
    free(q);
    free(buf);
}

/* ---- the budget ---- */

TEST(the_budget_is_shared)
{
    enum { N = 64 };
    struct world w = {.x = {.times = UINT32_MAX, .fault = ERROR_500}};
    struct remote_request *q = calloc(N, sizeof(*q));
    struct larder_error err;
    uint8_t buf[10];
    world_open(&w, "http://", (struct larder_remote_options){.requests_max = 8, .timeout_ms = 1500, .tries_max = 1000});
    for (size_t i = 0; i < N; i++)
        q[i] = (struct remote_request){.name = "x", .ranged = true, .len = 10, .buf = buf};
    uint64_t begin = now_ns();
    CHECK_EQ(remote_run(w.r, q, N, &err), LARDER_ETIMEOUT);
    double s = (double)(now_ns() - begin) / 1e9;
    CHECK(atomic_load(&w.s.requests) <= N + 100 + 10 * s + 2);
    for (size_t i = 0; i < N; i++)
        CHECK_EQ(q[i].rc, LARDER_ETIMEOUT);
    world_close(&w);
    free(q);
}

TEST(damage_counts)
{
    struct world w = {.x = {0}};
    struct larder_remote_stats st;
    unsigned n = 0;
    world_open(&w, "http://", (struct larder_remote_options){.requests_max = 8});
    uint64_t begin = now_ns();
    while (n < 1000 && remote_damaged(w.r))
        n++;
    CHECK(n >= 100 && n <= 101 + 10 * (double)(now_ns() - begin) / 1e9);
    remote_stats(w.r, &st);
    CHECK_EQ(st.retries_damaged, n);
    CHECK_EQ(st.retries, n);
    world_close(&w);
}

/* ---- starting again from done ---- */

struct chain { struct gate gate; unsigned left; };

static void on_chain(struct remote_request *q)
{
    struct chain *c = q->user;
    CHECK_EQ(q->rc, LARDER_OK);
    if (--c->left > 0) {
        remote_start(q->remote, q);
        return;
    }
    q->user = &c->gate;
    gate_add(q);
}

TEST(done_starts_again)
{
    struct world w = {.x = {0}};
    struct chain c = {.gate = GATE_INIT, .left = 30};
    uint8_t buf[10];
    world_open(&w, "s3://bkt", (struct larder_remote_options){0});
    struct remote_request q = {.name = "x", .ranged = true, .len = 10, .buf = buf, .done = on_chain, .user = &c};
    remote_start(w.r, &q);
    gate_wait(&c.gate, 1);
    CHECK_EQ(atomic_load(&w.s.requests), 30);
    CHECK_EQ(atomic_load(&w.s.accepted), 1);
    CHECK(strstr(w.x.head, "GET /bkt/x HTTP/1.1\r\n"));
    world_close(&w);
}

TEST(forked_child)
{
#ifdef __SANITIZE_THREAD__
    TEST_SKIP("TSan does not follow a fork of threads");
#endif
    struct world w = {.x = {0}};
    struct remote_request q;
    uint8_t buf[10];
    world_open(&w, "s3://bkt/p", (struct larder_remote_options){0});
    CHECK_OK(get(&w, &q, 0, 10, buf), &q.error);
    pid_t child = fork();
    if (child == 0) {
        int rc = get(&w, &q, 0, 10, buf);
        char state[160];
        remote_state(w.r, state);
        remote_close(w.r);
        _exit(rc == LARDER_EFORK ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_OK(get(&w, &q, 0, 10, buf), &q.error);
    world_close(&w);
}

TEST(nobody_there)
{
    struct remote *r;
    struct larder_error err;
    uint8_t buf[10];
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
    o.tries_max = 2;
    CHECK_OK(remote_open("http://127.0.0.1:1/x", &o, &r, &err), &err);
    struct remote_request q = {.name = "y", .ranged = true, .len = 10, .buf = buf};
    CHECK_EQ(remote_run(r, &q, 1, &err), LARDER_EREMOTE);
    CHECK(strstr(err.message, "http://127.0.0.1:1/x/y: given up after 2 tries in 0.") && strstr(err.message, "(2 connection); last: no connection"));
    remote_close(r);
}

TEST_MAIN();
