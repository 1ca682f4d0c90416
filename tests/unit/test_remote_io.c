/* SPDX-License-Identifier: Apache-2.0 */
/* struct store_io over a bucket in memory (s3_server.h): ranges and how they are joined, small objects, conditions, listings, uploads in
 * parts, what is left after failures, lost answers. tests/bucket does the same with radosgw and boto3. */
#include <sys/wait.h>

#include "tests/unit/s3_server.h"
#include "tiers/remote_io_int.h"

#define PART (8u << 20)

static struct s3_server z;
static struct store_io *io;

static void start(void)
{
    struct larder_error err;

    s3_server_start(&z, "bkt");
    z.options.tries_max = 4;
    z.options.scratch = tmp_dir();
    REQUIRE_OK(remote_io_open(z.uri, &z.options, &io, &err), &err);
}

static void reopen(void)
{
    struct larder_error err;

    io_close(io);
    REQUIRE_OK(remote_io_open(z.uri, &z.options, &io, &err), &err);
}

static void stop(void)
{
    io_close(io);
    io = NULL;
    s3_server_stop(&z);
}

static size_t count_lines(const char *text, const char *part)
{
    size_t n = 0;

    for (; (text = strstr(text, part)); text++)
        n++;
    return n;
}

static uint8_t *random_data(size_t len, uint64_t seed)
{
    uint8_t *data = malloc(len + 1);

    REQUIRE(data);
    rng_fill(&seed, data, len);
    return data;
}

static void put(const char *name, const void *data, size_t len)
{
    struct larder_error err;

    REQUIRE_OK(io->ops->put(io, name, data, len, &err), &err);
}

/* ---- opening ---- */

TEST(opening)
{
    struct larder_error err;
    struct store_io *other = (struct store_io *)1;

    start();
    CHECK_STR(io_where(io), "s3://bkt/pre fix/ds");
    CHECK(!io_is_local(io));
    CHECK_EQ(io_tries(io), 4);
    CHECK_EQ(io->work_bytes, 256 * MIB);
    CHECK(remote_of(io) != NULL);
    CHECK(!remote_of(NULL));
    CHECK_OK(io->ops->sync(io, "shards", &err), &err);
    CHECK_ERR(remote_io_open("s3://x", &z.options, &other, &err), LARDER_EINVAL, &err);
    CHECK(!other);
    CHECK_STR(s3_server_log(&z), ""); /* nothing is sent by opening */
    stop();
}

TEST(names)
{
    static const char *const bad[] = {"", "/a", "a/", "a//b", ".", "..", "a/../b", "a/./b"};
    char longer[1100], buf[4];
    struct larder_error err;
    struct store_out *out;
    struct store_range r = {NULL, 0, buf, 4};

    start();
    memset(longer, 'n', sizeof(longer));
    longer[1020] = '\0';
    for (size_t i = 0; i <= ARRAY_LEN(bad); i++) {
        r.name = i < ARRAY_LEN(bad) ? bad[i] : longer;
        CHECK_ERR(io->ops->put(io, r.name, "x", 1, &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->read_ranges(io, &r, 1, &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->begin(io, r.name, &out, &err), LARDER_EINVAL, &err);
        CHECK_ERR(io->ops->remove(io, r.name, &err), LARDER_EINVAL, &err);
        CHECK(!out);
    }
    CHECK_STR(s3_server_log(&z), "");
    stop();
}

/* ---- reading ---- */

static const char odd_name[] = "sh+ards/a b'(c)*~%&<\xc3\xa9\xe6\x97\xa5.x";

TEST(ranges)
{
    enum { N = 1 << 20 };
    AUTO_FREE uint8_t *data = random_data(N, 1), *into = calloc(1, N);
    struct larder_error err;
    struct store_range r[40];

    start();
    put(odd_name, data, N);
    s3_server_log(&z);
    /* one */
    REQUIRE_OK(io_read(io, odd_name, 5, into, 100, &err), &err);
    CHECK_MEM(into, data + 5, 100);
    CHECK_EQ(count_lines(s3_server_log(&z), "GET "), 1);
    /* neighbours, in any order, overlapping, twice, empty: one GET */
    for (size_t i = 0; i < 40; i++)
        r[i] = (struct store_range){odd_name, (i * 7919 % 40) * 4096 + i, into + i * 8192, i == 9 ? 0 : 8000};
    REQUIRE_OK(io->ops->read_ranges(io, r, 40, &err), &err);
    for (size_t i = 0; i < 40; i++)
        CHECK_MEM(r[i].buf, data + r[i].offset, r[i].len);
    CHECK_EQ(count_lines(s3_server_log(&z), "GET "), 1);
    /* far apart, two objects */
    put("b", data, 1000);
    s3_server_log(&z);
    r[0] = (struct store_range){odd_name, N - 10, into, 10};
    r[1] = (struct store_range){"b", 990, into + 10, 10};
    r[2] = (struct store_range){odd_name, 0, into + 20, 10};
    REQUIRE_OK(io->ops->read_ranges(io, r, 3, &err), &err);
    CHECK_MEM(into, data + N - 10, 10);
    CHECK_MEM(into + 10, data + 990, 10);
    CHECK_MEM(into + 20, data, 10);
    CHECK_EQ(count_lines(s3_server_log(&z), "GET "), 3);
    /* none */
    REQUIRE_OK(io->ops->read_ranges(io, r, 0, &err), &err);
    CHECK_STR(s3_server_log(&z), "");
    stop();
}

TEST(ranges_follow_the_options)
{
    enum { N = 300000 };
    AUTO_FREE uint8_t *data = random_data(N, 2), *into = calloc(1, N);
    struct larder_error err;
    struct store_range r[300];

    start();
    put("a", data, N);
    z.options.get_bytes = 4096;
    z.options.gap_bytes = 100;
    reopen();
    s3_server_log(&z);
    REQUIRE_OK(io_read(io, "a", 1, into, 100000, &err), &err); /* a long one in pieces */
    CHECK_MEM(into, data + 1, 100000);
    CHECK_EQ(count_lines(s3_server_log(&z), "GET "), 25);
    for (size_t i = 0; i < 300; i++) /* 100 bytes apart within get_bytes: four to a GET; more GETs than a wave has */
        r[i] = (struct store_range){"a", i * 1000, into + i * 900, 900};
    REQUIRE_OK(io->ops->read_ranges(io, r, 300, &err), &err);
    for (size_t i = 0; i < 300; i++)
        CHECK_MEM(into + i * 900, data + i * 1000, 900);
    CHECK_EQ(count_lines(s3_server_log(&z), "GET "), 75);
    z.options.gap_bytes = UINT64_MAX;
    reopen();
    s3_server_log(&z);
    REQUIRE_OK(io->ops->read_ranges(io, r, 10, &err), &err);
    CHECK_EQ(count_lines(s3_server_log(&z), "GET "), 10);
    stop();
}

TEST(ranges_that_are_not_there)
{
    struct larder_error err;
    char buf[100];

    start();
    put("a", "0123456789", 10);
    CHECK_ERR(io_read(io, "b", 0, buf, 1, &err), LARDER_ENOTFOUND, &err);
    CHECK(strstr(err.message, "b"));
    CHECK_ERR(io_read(io, "a", 5, buf, 6, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(io_read(io, "a", 10, buf, 1, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(io_read(io, "a", UINT64_MAX, buf, 1, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(io_read(io, "a", INT64_MAX, buf, 1, &err), LARDER_ECORRUPT, &err);
    stop();
}

TEST(whole_objects)
{
    struct buf b[3] = {BUF_INIT, BUF_INIT, BUF_INIT};
    struct store_whole w[3] = {{"a", 10, &b[0], 7}, {"none", 10, &b[1], 7}, {"empty", 10, &b[2], 7}};
    struct larder_error err;

    start();
    put("a", "0123456789", 10);
    put("empty", "", 0);
    s3_server_log(&z);
    REQUIRE_OK(io_read_whole(io, w, 3, &err), &err);
    CHECK_EQ(w[0].rc, LARDER_OK);
    CHECK_EQ(w[1].rc, LARDER_ENOTFOUND);
    CHECK_EQ(w[2].rc, LARDER_OK);
    CHECK_EQ(b[0].len, 10);
    CHECK_MEM(b[0].data, "0123456789", 10);
    CHECK_EQ(b[1].len, 0);
    CHECK_EQ(b[2].len, 0);
    CHECK_EQ(count_lines(s3_server_log(&z), "\n"), 3);
    w[0].max = 9;
    CHECK_ERR(io_read_whole(io, w, 1, &err), LARDER_ECORRUPT, &err);
    REQUIRE_OK(io_read_all(io, "a", 10, &b[0], &err), &err); /* appends */
    CHECK_MEM(b[0].data + b[0].len - 10, "0123456789", 10);
    CHECK_ERR(io_read_all(io, "none", 10, &b[0], &err), LARDER_ENOTFOUND, &err);
    for (int i = 0; i < 3; i++)
        buf_release(&b[i]);
    stop();
}

/* ---- small objects ---- */

TEST(small_objects)
{
    struct larder_error err;
    uint64_t size, mtime_s;

    start();
    put("a/b", "first", 5);
    put("a/b", "2nd", 3);
    REQUIRE_OK(io->ops->stat(io, "a/b", &size, &mtime_s, &err), &err);
    CHECK_EQ(size, 3);
    CHECK_EQ(mtime_s, 1445412480);
    CHECK_ERR(io->ops->stat(io, "a/c", &size, &mtime_s, &err), LARDER_ENOTFOUND, &err);
    CHECK_STR(z.objects[0].key, "pre fix/ds/a/b");
    REQUIRE_OK(io->ops->remove(io, "a/b", &err), &err);
    CHECK_ERR(io->ops->stat(io, "a/b", &size, &mtime_s, &err), LARDER_ENOTFOUND, &err);
    stop();
}

static struct s3_fault lose_creates(struct s3_server *s, const struct s3_request *q)
{
    char v[16];

    if (request_header(q->raw, "If-None-Match", v, sizeof(v)) && !s3_find(s, q->key) && strstr(q->key, ".json"))
        return (struct s3_fault){FAULT_LOSE, 0, NULL};
    return (struct s3_fault){FAULT_NONE, 0, NULL};
}

static struct s3_fault no_conditions(struct s3_server *s, const struct s3_request *q)
{
    char v[16];

    (void)s;
    if (request_header(q->raw, "If-None-Match", v, sizeof(v)))
        return (struct s3_fault){FAULT_BEFORE, 501, "NotImplemented"};
    return (struct s3_fault){FAULT_NONE, 0, NULL};
}

TEST(exclusive)
{
    struct larder_error err;

    start();
    REQUIRE_OK(io->ops->create_exclusive(io, "manifests/1.json", "one", 3, &err), &err);
    CHECK_EQ(z.n_objects, 1); /* the probe is gone */
    CHECK_ERR(io->ops->create_exclusive(io, "manifests/1.json", "two", 3, &err), LARDER_EEXIST, &err);
    CHECK_MEM(z.objects[0].data, "one", 3);
    s3_server_log(&z);
    REQUIRE_OK(io->ops->create_exclusive(io, "manifests/2.json", "two", 3, &err), &err);
    CHECK_EQ(count_lines(s3_server_log(&z), "\n"), 1); /* probed once */
    z.fault = lose_creates; /* the answer is lost: it finds out that the object is its own */
    REQUIRE_OK(io->ops->create_exclusive(io, "manifests/3.json", "three", 5, &err), &err);
    CHECK_ERR(io->ops->create_exclusive(io, "manifests/3.json", "other", 5, &err), LARDER_EEXIST, &err);
    stop();
}

TEST(servers_without_conditions)
{
    struct larder_error err;

    for (int refuses = 0; refuses < 2; refuses++) {
        start();
        z.ignores_conditions = !refuses;
        z.fault = refuses ? no_conditions : NULL;
        CHECK_ERR(io->ops->create_exclusive(io, "manifests/1.json", "one", 3, &err), LARDER_EINVAL, &err);
        CHECK(strstr(err.message, "--single-writer"));
        CHECK_EQ(z.n_objects, 0);
        z.options.single_writer = 1;
        reopen();
        REQUIRE_OK(io->ops->create_exclusive(io, "manifests/1.json", "one", 3, &err), &err);
        CHECK_ERR(io->ops->create_exclusive(io, "manifests/1.json", "two", 3, &err), LARDER_EEXIST, &err);
        CHECK_EQ(z.n_objects, 1);
        CHECK_MEM(z.objects[0].data, "one", 3);
        stop();
    }
}

/* ---- listing ---- */

struct seen { char text[16384]; int n, stop_at; };

static int see(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    struct seen *s = user;
    size_t at = strlen(s->text);

    CHECK_EQ(mtime_s, 1445412480);
    if (s->n < 50)
        snprintf(s->text + at, sizeof(s->text) - at, "%s %" PRIu64 "\n", name, size);
    return ++s->n == s->stop_at ? 77 : 0;
}

TEST(listing)
{
    struct larder_error err;
    struct seen s;
    char name[64];

    for (int encodes = 0; encodes < 2; encodes++) {
        start();
        z.url_encodes = encodes;
        put("a/1", "x", 1);
        put("a/b/2 +&\xc3\xa9", "xx", 2);
        put("ab", "", 0);
        s3_store(&z, "pre fix/ds/a/", (uint8_t *)calloc(1, 1), 0, "\"e\"");  /* made by consoles */
        s3_store(&z, "pre fix/ds/a//c", (uint8_t *)calloc(1, 1), 0, "\"e\"");
        s3_store(&z, "pre fix/ds2/a", (uint8_t *)calloc(1, 1), 0, "\"e\""); /* another dataset */
        s3_store(&z, "other", (uint8_t *)calloc(1, 1), 0, "\"e\"");
        memset(&s, 0, sizeof(s));
        REQUIRE_OK(io->ops->list(io, "", see, &s, &err), &err);
        CHECK_STR(s.text, "a/1 1\na/b/2 +&\xc3\xa9 2\nab 0\n");
        memset(&s, 0, sizeof(s));
        REQUIRE_OK(io->ops->list(io, "a", see, &s, &err), &err);
        CHECK_STR(s.text, "a/1 1\na/b/2 +&\xc3\xa9 2\n");
        memset(&s, 0, sizeof(s));
        REQUIRE_OK(io->ops->list(io, "none", see, &s, &err), &err);
        CHECK_EQ(s.n, 0);
        for (int i = 0; i < 100; i++) {
            snprintf(name, sizeof(name), "many/%03d", i);
            put(name, "x", 1);
        }
        z.page_max = 7;
        memset(&s, 0, sizeof(s));
        s3_server_log(&z);
        REQUIRE_OK(io->ops->list(io, "many", see, &s, &err), &err);
        CHECK_EQ(s.n, 100);
        CHECK(strstr(s.text, "many/000 1\nmany/001 1\nmany/002 1\n"));
        CHECK_EQ(count_lines(s3_server_log(&z), "GET "), 15);
        memset(&s, 0, sizeof(s));
        s.stop_at = 10;
        CHECK_EQ(io->ops->list(io, "many", see, &s, &err), 77);
        CHECK_EQ(s.n, 10);
        CHECK_EQ(count_lines(s3_server_log(&z), "GET "), 2);
        stop();
    }
}

/* ---- uploads ---- */

static int write_all(const char *name, const uint8_t *data, size_t len, size_t step, struct larder_error *err)
{
    struct store_out *out;
    int rc = io->ops->begin(io, name, &out, err);

    for (size_t at = 0; rc == LARDER_OK && at < len; at += step) {
        rc = io->ops->write(out, data + at, MIN(step, len - at), err);
        if (rc)
            io->ops->abort(out);
    }
    return rc ? rc : io->ops->finish(out, err);
}

static void check_object(const char *key, const uint8_t *data, size_t len)
{
    struct s3_object *o = s3_find(&z, key);

    REQUIRE(o);
    CHECK_EQ(o->len, len);
    if (o->len == len)
        CHECK(memcmp(o->data, data, len) == 0);
}

TEST(uploads)
{
    enum { N = 3 * PART + 12345 };
    AUTO_FREE uint8_t *data = random_data(N, 3);
    struct larder_error err;

    start();
    REQUIRE_OK(write_all("empty", data, 0, 1, &err), &err);
    REQUIRE_OK(write_all("small", data, 100000, 777, &err), &err);
    REQUIRE_OK(write_all("one part", data, PART, 1 << 20, &err), &err);
    CHECK(!strstr(s3_server_log(&z), "uploads"));
    REQUIRE_OK(write_all("a bit more", data, PART + 1, PART + 1, &err), &err);
    REQUIRE_OK(write_all(odd_name, data, N, 1000003, &err), &err);
    check_object("pre fix/ds/empty", data, 0);
    check_object("pre fix/ds/small", data, 100000);
    check_object("pre fix/ds/one part", data, PART);
    check_object("pre fix/ds/a bit more", data, PART + 1);
    char key[128];
    snprintf(key, sizeof(key), "pre fix/ds/%s", odd_name);
    check_object(key, data, N);
    CHECK_EQ(z.n_uploads, 0);
    CHECK(z.body_max <= PART);
    /* names that are taken: nothing changes, nothing is left */
    CHECK_ERR(write_all("small", data + 1, 50, 50, &err), LARDER_EEXIST, &err);
    CHECK_ERR(write_all("small", data + 1, PART + 7, PART, &err), LARDER_EEXIST, &err);
    check_object("pre fix/ds/small", data, 100000);
    CHECK_EQ(z.n_uploads, 0);
    CHECK_EQ(z.n_objects, 5);
    stop();
}

TEST(etags_that_are_no_md5)
{
    AUTO_FREE uint8_t *data = random_data(PART + 1, 4);
    struct larder_error err;

    start();
    z.odd_etags = true;
    REQUIRE_OK(write_all("a", data, PART + 1, PART, &err), &err);
    check_object("pre fix/ds/a", data, PART + 1);
    stop();
}

TEST(aborting)
{
    AUTO_FREE uint8_t *data = random_data(2 * PART + 5, 5);
    struct larder_error err;
    struct store_out *out;

    start();
    io->ops->abort(NULL);
    REQUIRE_OK(io->ops->begin(io, "a", &out, &err), &err);
    io->ops->abort(out);
    REQUIRE_OK(io->ops->begin(io, "a", &out, &err), &err);
    REQUIRE_OK(io->ops->write(out, data, 100, &err), &err);
    io->ops->abort(out);
    CHECK_STR(s3_server_log(&z), "");
    REQUIRE_OK(io->ops->begin(io, "a", &out, &err), &err);
    REQUIRE_OK(io->ops->write(out, data, 2 * PART + 5, &err), &err);
    io->ops->abort(out);
    CHECK_EQ(z.n_objects, 0);
    CHECK_EQ(z.n_uploads, 0);
    stop();
}

/* ---- failures ---- */

static const char *fault_at; /* a request that has this in its query */
static const char *fault_method;
static struct s3_fault fault_is;
static int fault_times;

static struct s3_fault fault_now(struct s3_server *s, const struct s3_request *q)
{
    (void)s;
    if (strcmp(q->method, fault_method) == 0 && strstr(q->query, fault_at) && fault_times-- > 0)
        return fault_is;
    return (struct s3_fault){FAULT_NONE, 0, NULL};
}

static void arm(const char *method, const char *at, int how, int status, const char *code, int times)
{
    pthread_mutex_lock(&z.lock);
    fault_method = method;
    fault_at = at;
    fault_is = (struct s3_fault){how, status, code};
    fault_times = times;
    z.fault = fault_now;
    pthread_mutex_unlock(&z.lock);
}

TEST(failures_of_uploads)
{
    static const struct { const char *method, *at; int how, status; const char *code; int times; bool ok; } steps[] = {
        {"POST", "uploads=", FAULT_BEFORE, 403, "AccessDenied", 9, false},
        {"POST", "uploads=", FAULT_AFTER, 200, "InternalError", 9, false},  /* no upload id in it */
        {"POST", "uploads=", FAULT_BEFORE, 500, "InternalError", 1, true},
        {"PUT", "partNumber=2", FAULT_BEFORE, 403, "AccessDenied", 9, false},
        {"PUT", "partNumber=2", FAULT_BEFORE, 503, "SlowDown", 1, true},
        {"PUT", "partNumber=2", FAULT_LOSE, 0, NULL, 1, true},
        {"PUT", "partNumber=2", FAULT_BEFORE, 400, "BadDigest", 1, true},
        {"POST", "uploadId=", FAULT_BEFORE, 403, "AccessDenied", 9, false},
        {"POST", "uploadId=", FAULT_BEFORE, 200, "InternalError", 1, true}, /* sent before the work failed */
        {"POST", "uploadId=", FAULT_BEFORE, 200, "InternalError", 9, false},
        {"POST", "uploadId=", FAULT_LOSE, 0, NULL, 1, true},                /* it was completed, and the repeated one finds nothing */
        {"POST", "uploadId=", FAULT_AFTER, 500, "InternalError", 1, true},
        {"POST", "uploadId=", FAULT_AFTER, 403, "AccessDenied", 1, true},
        {"HEAD", "", FAULT_BEFORE, 403, "AccessDenied", 9, false},
    };
    enum { N = PART + 100 };
    AUTO_FREE uint8_t *data = random_data(N, 6);
    struct larder_error err;

    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        start();
        arm(steps[i].method, steps[i].at, steps[i].how, steps[i].status, steps[i].code, steps[i].times);
        int rc = write_all("a", data, N, N / 3, &err);
        if ((rc == LARDER_OK) != steps[i].ok)
            fprintf(stderr, "step %zu: %s\n%s", i, rc ? err.message : "went well", s3_server_log(&z));
        CHECK_EQ(rc == LARDER_OK, steps[i].ok);
        CHECK_EQ(z.n_objects, steps[i].ok);
        if (i != 1) /* nobody knows the id of that one */
            CHECK_EQ(z.n_uploads, 0);
        if (steps[i].ok)
            check_object("pre fix/ds/a", data, N);
        else
            CHECK(!strstr(err.message, "s3cr3t") && strlen(err.message) > 10);
        stop();
    }
}

TEST(damage_on_the_way)
{
    enum { N = PART + 1 };
    AUTO_FREE uint8_t *data = random_data(N, 7);
    struct larder_error err;

    start();
    /* a server that answers with another object's ETag: nothing stays visible */
    arm("POST", "uploadId=", FAULT_AFTER, 200, "</Code><ETag>\"00000000000000000000000000000000-2\"</ETag><Code>", 1);
    CHECK_ERR(write_all("a", data, N, N, &err), LARDER_ECORRUPT, &err);
    CHECK_EQ(z.n_objects, 0);
    CHECK_EQ(z.n_uploads, 0);
    stop();
}

TEST(a_failed_write_stays_failed)
{
    AUTO_FREE uint8_t *data = random_data(PART + 1, 8);
    struct larder_error err;
    struct store_out *out;

    start();
    arm("POST", "uploads=", FAULT_BEFORE, 403, "AccessDenied", 1);
    REQUIRE_OK(io->ops->begin(io, "a", &out, &err), &err);
    CHECK_ERR(io->ops->write(out, data, PART + 1, &err), LARDER_EREMOTE, &err);
    CHECK_ERR(io->ops->write(out, data, 1, &err), LARDER_EREMOTE, &err);
    CHECK_ERR(io->ops->finish(out, &err), LARDER_EREMOTE, &err);
    CHECK_EQ(z.n_objects, 0);
    stop();
}

TEST(a_forked_child_leaves_it_alone)
{
    AUTO_FREE uint8_t *data = random_data(2 * PART + 1, 9);
    struct larder_error err;
    struct store_out *out;
    int status;

    start();
    REQUIRE_OK(io->ops->begin(io, "a", &out, &err), &err);
    REQUIRE_OK(io->ops->write(out, data, 2 * PART + 1, &err), &err);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        alarm(60);
        bool ok = io->ops->write(out, data, 1, &err) == LARDER_EFORK;
        io->ops->abort(out); /* which waits for nobody, and ends nothing of the parent's */
        _exit(ok ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE_OK(io->ops->finish(out, &err), &err);
    check_object("pre fix/ds/a", data, 2 * PART + 1);
    stop();
}

TEST(unfinished_ones_are_dropped)
{
    struct larder_error err;
    uint64_t n = 99;

    start();
    z.page_max = 3;
    for (int i = 0; i < 10; i++) {
        struct s3_upload *u = &z.uploads[z.n_uploads++];
        *u = (struct s3_upload){.key = strdup(i == 4 ? "other/x" : "pre fix/ds/shards/s")};
        snprintf(u->id, sizeof(u->id), "2~id/%u+=", z.ids++);
    }
    REQUIRE_OK(io->ops->drop_unfinished(io, now_wall_s() - 1000000000, &n, &err), &err);
    CHECK_EQ(n, 0);
    REQUIRE_OK(io->ops->drop_unfinished(io, 86400, &n, &err), &err);
    CHECK_EQ(n, 9);
    CHECK_EQ(z.n_uploads, 1);
    CHECK_STR(z.uploads[0].key, "other/x");
    stop();
}

/* ---- read only, scratch, threads ---- */

TEST(web_servers_are_only_read)
{
    struct larder_error err;
    struct store_out *out;
    uint64_t size, mtime_s;
    char uri[128], buf[8];

    start();
    io_close(io);
    snprintf(uri, sizeof(uri), "%s/bkt/ds", z.endpoint);
    REQUIRE_OK(remote_io_open(uri, &z.options, &io, &err), &err);
    CHECK_ERR(io->ops->put(io, "a", "x", 1, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "only read"));
    CHECK_ERR(io->ops->create_exclusive(io, "a", "x", 1, &err), LARDER_EINVAL, &err);
    CHECK_ERR(io->ops->begin(io, "a", &out, &err), LARDER_EINVAL, &err);
    CHECK_ERR(io->ops->remove(io, "a", &err), LARDER_EINVAL, &err);
    CHECK_ERR(io->ops->list(io, "", see, NULL, &err), LARDER_EINVAL, &err);
    REQUIRE_OK(io->ops->drop_unfinished(io, 0, &size, &err), &err);
    CHECK_STR(s3_server_log(&z), "");
    CHECK_ERR(io->ops->stat(io, "a", &size, &mtime_s, &err), LARDER_EREMOTE, &err); /* that server wants signatures */
    CHECK_ERR(io_read(io, "a", 0, buf, 1, &err), LARDER_EREMOTE, &err);
    stop();
}

static void check_folder(const char *path)
{
    struct stat st;

    REQUIRE(path);
    CHECK(stat(path, &st) == 0 && S_ISDIR(st.st_mode));
    CHECK_EQ(st.st_mode & 07777, 0700);
}

TEST(work_folders)
{
    struct larder_error err;
    char mine[256], other[256];

    start();
    snprintf(mine, sizeof(mine), "%s", io_work_root(io, &err));
    check_folder(mine);
    CHECK(strncmp(mine, z.options.scratch, strlen(z.options.scratch)) == 0);
    CHECK_STR(io_work_root(io, &err), mine);
    reopen();
    CHECK_STR(io_work_root(io, &err), mine); /* the same dataset */
    io_close(io);
    REQUIRE_OK(remote_io_open("s3://bkt/another", &z.options, &io, &err), &err);
    snprintf(other, sizeof(other), "%s", io_work_root(io, &err));
    check_folder(other);
    CHECK(strcmp(other, mine) != 0);
    z.options.scratch = "/proc/none";
    reopen();
    CHECK(!io_work_root(io, &err));
    CHECK_EQ(err.code, LARDER_EIO);
    CHECK(strstr(err.message, "/proc/none"));
    stop();
}

TEST(scratch_folders)
{
    struct larder_error err;
    const char *root = tmp_dir(), *temporary = tmp_dir();
    char want[512], base[300], *path;

    unsetenv("LARDER_SCRATCH");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", root, 1);
    REQUIRE_OK(scratch_make(NULL, "k", &path, &err), &err);
    snprintf(want, sizeof(want), "%s/.cache/larder/", root);
    CHECK(strncmp(path, want, strlen(want)) == 0);
    check_folder(path);
    free(path);
    snprintf(want, sizeof(want), "%s/xdg", root);
    setenv("XDG_CACHE_HOME", want, 1);
    REQUIRE_OK(scratch_make(NULL, "k", &path, &err), &err);
    CHECK(strncmp(path, want, strlen(want)) == 0);
    free(path);
    snprintf(want, sizeof(want), "%s/said/a/b", root);
    setenv("LARDER_SCRATCH", want, 1);
    REQUIRE_OK(scratch_make(NULL, "k", &path, &err), &err);
    CHECK(strncmp(path, want, strlen(want)) == 0);
    free(path);
    setenv("LARDER_SCRATCH", "/proc/none", 1); /* what was said is not passed over */
    CHECK_ERR(scratch_make(NULL, "k", &path, &err), LARDER_EIO, &err);
    CHECK(!path);
    unsetenv("LARDER_SCRATCH");

    /* homes that are none: a serverless worker */
    setenv("XDG_CACHE_HOME", "/proc/none", 1);
    setenv("HOME", "/dev/null", 1);
    setenv("TMPDIR", temporary, 1);
    snprintf(base, sizeof(base), "%s/larder-%lu", temporary, (unsigned long)geteuid());
    REQUIRE_OK(scratch_make(NULL, "k", &path, &err), &err);
    CHECK(strncmp(path, base, strlen(base)) == 0);
    free(path);
    /* somebody laid a link there */
    snprintf(want, sizeof(want), "%s.away", base);
    REQUIRE(rename(base, want) == 0 && symlink(want, base) == 0);
    REQUIRE_OK(scratch_make(NULL, "k", &path, &err), &err);
    CHECK(strncmp(path, "/tmp/larder-", 12) == 0);
    rmdir(path);
    free(path);
    unsetenv("TMPDIR");
    unsetenv("XDG_CACHE_HOME");
}

static void *work(void *user)
{
    unsigned me = *(unsigned *)user;
    uint64_t seed = me + 100;
    struct larder_error err;

    for (unsigned i = 0; i < 6; i++) {
        size_t len = i == 5 ? PART + 10 * me : 1000 + me;
        uint8_t *data = malloc(2 * len);
        char name[64];
        uint64_t size, mtime_s;
        rng_fill(&seed, data, len);
        snprintf(name, sizeof(name), "t%u/%u", me, i);
        CHECK_OK(write_all(name, data, len, 123457, &err), &err);
        CHECK_OK(io->ops->stat(io, name, &size, &mtime_s, &err), &err);
        CHECK_EQ(size, len);
        struct store_range r[2] = {{name, 0, data + len, len / 2}, {name, len / 2, data + len + len / 2, len - len / 2}};
        CHECK_OK(io->ops->read_ranges(io, r, 2, &err), &err);
        CHECK(memcmp(data, data + len, len) == 0);
        free(data);
    }
    return NULL;
}

TEST(many_threads)
{
    pthread_t threads[4];
    unsigned me[4];

    start();
    for (unsigned i = 0; i < 4; i++) {
        me[i] = i;
        REQUIRE(pthread_create(&threads[i], NULL, work, &me[i]) == 0);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(z.n_objects, 24);
    CHECK_EQ(z.n_uploads, 0);
    stop();
}

TEST_MAIN();
