/* SPDX-License-Identifier: Apache-2.0 */
/* The Nth allocation, system call or thread of opening a remote, reading, creating and closing fails: an error or the right bytes,
 * every request is done once, and nothing is left behind. The server is another process, where nothing fails. */
#include <signal.h>
#include <sys/wait.h>

#include "tests/unit/http_server.h"

#include "tests/fault/fault.h"
#include "tiers/remote.h"

#define LEN 5000u

static uint8_t object[4 * LEN];
static int port;
static pid_t child;

static void handle(struct server *s, const struct request *q, struct answer *a)
{
    if (strcmp(q->method, "PUT") == 0)
        answer_header(a, "ETag: \"new\"");
    else if (q->nr % 7 == 0)
        a->status = 500; /* so that trying again is swept, too */
    else
        server_object(s, q, a);
}

static void start(void)
{
    uint64_t seed = 3;
    int p[2];
    rng_fill(&seed, object, sizeof(object));
    REQUIRE(pipe(p) == 0);
    child = fork();
    if (child == 0) {
        static struct server s = {.handle = handle, .object = object, .object_len = sizeof(object), .etag = "\"e\""};
        server_start(&s);
        if (write(p[1], &s.port, sizeof(s.port)) != (ssize_t)sizeof(s.port))
            _exit(1);
        pthread_join(s.thread, NULL);
        _exit(0);
    }
    REQUIRE(read(p[0], &port, sizeof(port)) == (ssize_t)sizeof(port));
    close(p[0]);
    close(p[1]);
    setenv("AWS_ACCESS_KEY_ID", "AKID", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
}

static void stop(void)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static int use(const char *uri, uint8_t buf[3 * LEN], struct larder_error *err)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
    struct remote *r;
    char endpoint[64];
    AUTO_BUF struct buf out = BUF_INIT;
    snprintf(endpoint, sizeof(endpoint), "http://127.0.0.1:%d", port);
    o.endpoint = endpoint;
    int rc = remote_open(uri, &o, &r, err);
    if (rc != LARDER_OK)
        return rc;
    struct remote_request q[5];
    for (size_t i = 0; i < 3; i++)
        q[i] = (struct remote_request){.name = "a b", .ranged = true, .offset = i * LEN, .len = LEN, .buf = buf + i * LEN, .if_match = "\"e\""};
    q[3] = (struct remote_request){.name = "x", .out = &out, .out_max = sizeof(object)};
    q[4] = (struct remote_request){.method = HTTP_PUT, .name = "y", .create = true, .body = "hello", .body_len = 5};
    rc = remote_run(r, q, strncmp(uri, "s3", 2) == 0 ? 5 : 4, err);
    for (size_t i = 0; i < 3; i++)
        CHECK(q[i].rc != LARDER_OK || memcmp(buf + i * LEN, object + i * LEN, LEN) == 0);
    CHECK(q[3].rc != LARDER_OK || (out.len == sizeof(object) && memcmp(out.data, object, out.len) == 0));
    remote_close(r);
    return rc;
}

static void sweep(const char *uri, enum fault_kind kind)
{
    static uint8_t buf[3 * LEN];
    struct larder_error err;
    CHECK_OK(use(uri, buf, &err), &err); /* what is set up once */
    int fds = open_fds();
    long n = 1;
    for (; n < 3000; n++) {
        memset(&err, 0, sizeof(err));
        fault_arm(kind, n);
        int rc = use(uri, buf, &err);
        bool hit = fault_disarm();
        test_check(rc == LARDER_OK || (hit && err.code == rc && err.message[0]), __FILE__, __LINE__, "%s, kind %d, %ld: %d %s (%s)", uri,
                   (int)kind, n, rc, err.message, hit ? fault_name() : "no fault");
        test_check(open_fds() == fds, __FILE__, __LINE__, "%s, kind %d, %ld (%s): descriptors", uri, (int)kind, n, fault_name());
        if (!hit)
            break;
    }
    CHECK(n < 3000);
}

TEST(bucket)
{
    start();
    sweep("s3://bkt/pre fix", FAULT_ALLOC);
    sweep("s3://bkt/pre fix", FAULT_THREAD);
    stop();
}

TEST(web_server)
{
    char uri[64];
    start();
    snprintf(uri, sizeof(uri), "http://me:pw@127.0.0.1:%d/x", port);
    sweep(uri, FAULT_ALLOC);
    stop();
}

TEST_MAIN();
