/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of remote.c to radosgw through the fault proxy: every fault at 1% and 10% of the requests and at 100% for one, with 1, 16 and
 * 64 in flight. Every byte right, as often tried as it must be, and errors where it cannot be. */
#include <pthread.h>
#include <stdbool.h>

#include "tests/unit/test.h"
#include "tiers/remote.h"

#define OBJECT_LEN ((size_t)4 * MIB)
#define LEN 20000u
#define N 64u

static char proxy[64], proxy_tls[64], ca[256];
static uint8_t object[OBJECT_LEN];

/* ---- the proxy ---- */

struct told { pthread_mutex_t lock; pthread_cond_t cond; bool over; };

static void on_told(struct http_transfer *t)
{
    struct told *g = t->user;
    pthread_mutex_lock(&g->lock);
    g->over = true;
    pthread_cond_signal(&g->cond);
    pthread_mutex_unlock(&g->lock);
}

static void set_faults(const char *text)
{
    static struct http *h;
    struct told g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    char url[128];
    struct larder_error err;
    if (!h)
        REQUIRE_OK(http_open(&(struct http_options){0}, &h, &err), &err);
    snprintf(url, sizeof(url), "%s/__larder/faults", proxy);
    struct http_transfer t = {.method = HTTP_PUT, .url = url, .body = text, .body_len = strlen(text), .done = on_told, .user = &g};
    http_start(h, &t);
    pthread_mutex_lock(&g.lock);
    while (!g.over)
        pthread_cond_wait(&g.cond, &g.lock);
    pthread_mutex_unlock(&g.lock);
    REQUIRE(t.end == HTTP_DONE && t.status / 100 == 2);
}

static void take(const char *line, const char *name, char *out, size_t size)
{
    const char *at = strstr(line, name);
    if (at)
        snprintf(out, size, "%.*s", (int)strcspn(at + strlen(name), " \n"), at + strlen(name));
}

/* A proxy of our own, which ends with us. */
static void proxy_start(void)
{
    char line[512], command[256];
    if (proxy[0])
        return;
    snprintf(command, sizeof(command), "tests/bucket/server.sh proxy %s/proxy %d", tmp_dir(), (int)getpid());
    FILE *f = popen(command, "r");
    REQUIRE(f);
    while (fgets(line, sizeof(line), f)) {
        take(line, "S3_PROXY=", proxy, sizeof(proxy));
        take(line, "S3_PROXY_TLS=", proxy_tls, sizeof(proxy_tls));
        take(line, "S3_CA=", ca, sizeof(ca));
    }
    REQUIRE(pclose(f) == 0 && proxy[0]);
}

static struct remote *remote_at(const char *endpoint, unsigned in_flight)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
    struct larder_error err;
    struct remote *r = NULL;
    char uri[128];
    o.endpoint = endpoint;
    o.ca_bundle = endpoint == proxy_tls ? ca : NULL;
    o.requests_max = in_flight;
    o.stall_timeout_ms = 400;
    o.tries_max = 20;
    snprintf(uri, sizeof(uri), "s3://requests-%d/a b", (int)getpid());
    REQUIRE_OK(remote_open(uri, &o, &r, &err), &err);
    return r;
}

static void make_object(void)
{
    uint64_t seed = 1;
    struct larder_error err;
    const char *endpoint = getenv("S3_ENDPOINT");
    if (!endpoint)
        TEST_SKIP("no server: run by tests/bucket/run.sh");
    proxy_start();
    struct remote *r = remote_at(endpoint, 4);
    rng_fill(&seed, object, OBJECT_LEN);
    struct remote_request bucket = {.method = HTTP_PUT};
    CHECK_OK(remote_run(r, &bucket, 1, &err), &err);
    struct remote_request q = {.method = HTTP_PUT, .name = "obj+1", .body = object, .body_len = OBJECT_LEN};
    CHECK_OK(remote_run(r, &q, 1, &err), &err);
    remote_close(r);
}

/* ---- the matrix ---- */

/* All ranges, read again while their bytes are damaged, as those who have checksums do. */
static void read_all(const char *endpoint, const char *fault, const char *faults, unsigned in_flight)
{
    struct remote *r = remote_at(endpoint, in_flight);
    struct remote_request *q = calloc(N, sizeof(*q));
    uint8_t *buf = calloc(N, LEN);
    struct larder_error err = {0};
    size_t left = N;
    uint64_t begin = now_ns();
    set_faults(faults);
    for (size_t i = 0; i < N; i++)
        q[i] = (struct remote_request){.name = "obj+1", .ranged = true, .offset = i * 65000, .len = LEN, .buf = buf + i * LEN,
                                       .priority = i % 2 ? REMOTE_STREAM : REMOTE_DEMAND};
    for (unsigned round = 0; left && round < 20; round++) {
        size_t again = 0;
        int rc = remote_run(r, q, left, &err);
        test_check(rc == LARDER_OK, __FILE__, __LINE__, "%s, %u in flight: %s", fault, in_flight, err.message);
        for (size_t i = 0; i < left; i++)
            if (memcmp(q[i].buf, object + q[i].offset, LEN) != 0 && remote_damaged(r))
                q[again++] = q[i];
        test_check(again == 0 || strncmp(fault, "flip", 4) == 0, __FILE__, __LINE__, "%s, %u in flight: %zu with other bytes", fault,
                   in_flight, again);
        left = again;
    }
    CHECK_EQ(left, 0);
    for (size_t i = 0; i < N; i++)
        test_check(memcmp(buf + i * LEN, object + i * 65000, LEN) == 0, __FILE__, __LINE__, "%s: range %zu", fault, i);
    struct larder_remote_stats st = LARDER_REMOTE_STATS_INIT;
    remote_stats(r, &st);
    CHECK_EQ(st.failed, 0);
    CHECK(st.requests <= 3 * N);
    CHECK(now_ns() - begin < 60ull * 1000000000u);
    remote_close(r);
    free(q);
    free(buf);
}

TEST(every_fault)
{
    static const char *const faults[] = {"slowdown", "bare503", "toomany", "err500", "err502", "close", "hang", "reset", "trunc", "stall",
                                         "flip", "full200", "norange", "wrongrange", "skew"};
    static const char *const rates[] = {"%s=0.01\nretryafter=0\n", "%s=0.1\nretryafter=0\n", "%s=1\nlimit=1\nretryafter=1\n"};
    static const unsigned in_flight[] = {1, 16, 64};
    make_object();
    for (size_t f = 0; f < ARRAY_LEN(faults); f++)
        for (size_t p = 0; p < ARRAY_LEN(rates); p++)
            for (size_t d = 0; d < ARRAY_LEN(in_flight); d++) {
                char text[80];
                snprintf(text, sizeof(text), rates[p], faults[f]);
                read_all(proxy, faults[f], text, in_flight[d]);
            }
    set_faults("");
}

TEST(all_faults_together)
{
    make_object();
    for (unsigned in_flight = 4; in_flight <= 64; in_flight *= 4)
        read_all(in_flight == 16 ? proxy_tls : proxy, "flip and others", "slowdown=0.05\nretryafter=0\ntrunc=0.05\nreset=0.05\nflip=0.02\nclose=0.05\nwrongrange=0.02\n"
                 "latmin=5\nlatmax=20\n", in_flight);
    set_faults("");
}

/* What does not pass is said, in bounded time. */
TEST(for_ever)
{
    static const char *const faults[] = {"slowdown", "err500", "close", "trunc", "stall", "norange", "wrongrange"};
    make_object();
    for (size_t f = 0; f < ARRAY_LEN(faults); f++) {
        struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
        struct remote *r;
        struct larder_error err;
        char uri[128], text[80];
        uint8_t buf[LEN];
        o.endpoint = proxy;
        o.stall_timeout_ms = 300;
        o.tries_max = 3;
        snprintf(uri, sizeof(uri), "s3://requests-%d/a b", (int)getpid());
        REQUIRE_OK(remote_open(uri, &o, &r, &err), &err);
        snprintf(text, sizeof(text), "%s=1\nretryafter=0\n", faults[f]);
        set_faults(text);
        struct remote_request q = {.name = "obj+1", .ranged = true, .offset = 3, .len = LEN, .buf = buf};
        CHECK_EQ(remote_run(r, &q, 1, &err), LARDER_EREMOTE);
        CHECK_EQ(q.tries, 3);
        CHECK(strstr(err.message, "/a b/obj+1: "));
        remote_close(r);
    }
    set_faults("");
}

TEST_MAIN();
