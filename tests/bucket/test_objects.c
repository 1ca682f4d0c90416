/* SPDX-License-Identifier: Apache-2.0 */
/* struct store_io on radosgw, judged by boto3 (objects.py): what is written is there as it should be under names of all kinds, what
 * others wrote is listed and read, uploads leave nothing behind, one of many creators wins; the same through a proxy with faults. */
#include <pthread.h>

#include "tests/unit/test.h"
#include "tiers/remote.h"

#define MIB_ ((size_t)1 << 20)

static char bucket[64];
static const char prefix[] = "pr\xc3\xa9 fix/it's+ds/";
static struct store_io *io;

__attribute__((format(printf, 1, 2))) static int python(const char *fmt, ...)
{
    const char *python3 = getenv("PYTHON");
    char args[1024], command[1400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(args, sizeof(args), fmt, ap);
    va_end(ap);
    snprintf(command, sizeof(command), "%s tests/bucket/objects.py %s", python3 ? python3 : "/usr/bin/python3", args);
    return system(command);
}

static struct larder_remote_options options(void)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;

    o.endpoint = getenv("S3_ENDPOINT");
    o.scratch = tmp_dir();
    o.single_writer = getenv("S3_NO_CONDITIONS") != NULL; /* a server that ignores If-None-Match */
    return o;
}

static void start(const char *name, const struct larder_remote_options *o)
{
    struct larder_error err;
    char uri[256];

    if (!o->endpoint)
        TEST_SKIP("no server: run by tests/bucket/run.sh");
    snprintf(bucket, sizeof(bucket), "objects-%s-%d", name, (int)getpid());
    REQUIRE(python("make %s", bucket) == 0);
    snprintf(uri, sizeof(uri), "s3://%s/%s", bucket, prefix);
    REQUIRE_OK(remote_io_open(uri, o, &io, &err), &err);
}

static void put_hex(FILE *f, const char *text)
{
    for (; *text; text++)
        fprintf(f, "%02x", (unsigned char)*text);
}

static void note(FILE *f, const char *name, const uint8_t *data, size_t len, const char *etag)
{
    char sha[65];

    sha256_hex(data, len, sha);
    put_hex(f, name);
    fprintf(f, " %zu %s %s\n", len, sha, etag);
}

static int upload(const char *name, const uint8_t *data, size_t len, struct larder_error *err)
{
    struct store_out *out;
    int rc = io->ops->begin(io, name, &out, err);

    for (size_t at = 0; rc == LARDER_OK && at < len; at += 1000003) {
        rc = io->ops->write(out, data + at, MIN((size_t)1000003, len - at), err);
        if (rc) {
            io->ops->abort(out);
            return rc;
        }
    }
    return rc ? rc : io->ops->finish(out, err);
}

/* The ETag of parts of 8 MiB, by the rule that S3 documents for multipart uploads. */
static void multipart_etag(const uint8_t *data, size_t len, char out[80])
{
    uint8_t md5s[16 * 16];
    char hex[33];
    size_t n = 0;

    for (size_t at = 0; at < len; at += 8 * MIB_, n++) {
        md5_hex(data + at, MIN(8 * MIB_, len - at), hex);
        hex_decode(hex, 32, md5s + 16 * n, 16);
    }
    md5_hex(md5s, 16 * n, hex);
    snprintf(out, 80, "%s-%zu", hex, n);
}

static const char *const odd_names[] = {
    "plain", "a b", "a+b", "it's (odd)*", "~tilde", "100%", "%20", "a%2Fb", "q?x=1&y=2", "h#ash", "semi;colon", "a=b", "a:b@c", "d$", "e,f!",
    "<x>&amp;\"", "br[a]c{e}s|^`\\", "\xc3\xa9\xe6\x97\xa5\xf0\x9f\x98\x80", ".hidden", "..dots..", "...", "dir.x/..y/z.", "trailing ", " leading",
    "deep/er/and/deep/er"};

TEST(what_larder_writes)
{
    size_t big = 20 * MIB_ + 123;
    AUTO_FREE uint8_t *data = malloc(big);
    struct larder_remote_options o = options();
    struct larder_error err;
    uint64_t rng = 1, size, mtime_s;
    char list[256], etag[80];

    start("writes", &o);
    REQUIRE(data);
    rng_fill(&rng, data, big);
    snprintf(list, sizeof(list), "%s/list", tmp_dir());
    FILE *f = fopen(list, "w");
    REQUIRE(f);
    for (size_t i = 0; i < ARRAY_LEN(odd_names); i++) {
        const uint8_t *from = data + 1000 * i;
        int rc = i % 3 == 0 ? io->ops->put(io, odd_names[i], from, 10 * i, &err)
                 : i % 3 == 1 ? io->ops->create_exclusive(io, odd_names[i], from, 10 * i, &err) : upload(odd_names[i], from, 10 * i, &err);
        CHECK_OK(rc, &err);
        note(f, odd_names[i], from, 10 * i, "-");
        CHECK_OK(io->ops->stat(io, odd_names[i], &size, &mtime_s, &err), &err);
        CHECK_EQ(size, 10 * i);
        CHECK(mtime_s + 3600 > now_wall_s() && mtime_s < now_wall_s() + 3600);
    }
    static const size_t sizes[] = {8 * MIB_, 8 * MIB_ + 1, 16 * MIB_, 20 * MIB_ + 123};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        char name[64];
        snprintf(name, sizeof(name), "large/%zu +%%", sizes[i]);
        REQUIRE_OK(upload(name, data, sizes[i], &err), &err);
        multipart_etag(data, sizes[i], etag);
        note(f, name, data, sizes[i], sizes[i] > 8 * MIB_ ? etag : "-");
        CHECK_ERR(upload(name, data, sizes[i], &err), LARDER_EEXIST, &err);
    }
    struct store_out *out;
    REQUIRE_OK(io->ops->begin(io, "aborted", &out, &err), &err);
    REQUIRE_OK(io->ops->write(out, data, big, &err), &err);
    io->ops->abort(out);
    REQUIRE_OK(io->ops->put(io, "removed", "x", 1, &err), &err);
    REQUIRE_OK(io->ops->remove(io, "removed", &err), &err);
    REQUIRE(fclose(f) == 0);
    CHECK(python("check %s \"%s\" %s", bucket, prefix, list) == 0);

    /* and read back, by many ranges at once */
    AUTO_FREE uint8_t *into = malloc(big);
    struct store_range r[200];
    for (size_t i = 0; i < ARRAY_LEN(r); i++)
        r[i] = (struct store_range){"large/20971643 +%", i * 100000, into + i * 100000, i % 9 == 0 ? 100000 : 50000};
    REQUIRE_OK(io->ops->read_ranges(io, r, ARRAY_LEN(r), &err), &err);
    for (size_t i = 0; i < ARRAY_LEN(r); i++)
        CHECK(memcmp(r[i].buf, data + r[i].offset, r[i].len) == 0);
    REQUIRE_OK(io_read(io, "large/20971643 +%", 3, into, big - 3, &err), &err);
    CHECK(memcmp(into, data + 3, big - 3) == 0);
    io_close(io);
}

/* ---- what others wrote ---- */

struct known { char (*names)[256]; uint64_t *sizes; char (*shas)[65]; size_t n; bool *seen; };

static int see(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    struct known *k = user;

    (void)mtime_s;
    for (size_t i = 0; i < k->n; i++)
        if (strcmp(k->names[i], name) == 0) {
            CHECK_EQ(k->sizes[i], size);
            CHECK(!k->seen[i]);
            k->seen[i] = true;
            return 0;
        }
    CHECK_STR(name, "a name that is known");
    return 0;
}

TEST(what_others_wrote)
{
    enum { N = 1050 }; /* two pages */
    struct larder_remote_options o = options();
    struct larder_error err;
    struct known k = {calloc(N, 256), calloc(N, 8), calloc(N, 65), 0, calloc(N, 1)};
    char list[256], hex[600];

    start("reads", &o);
    snprintf(list, sizeof(list), "%s/list", tmp_dir());
    REQUIRE(python("fill %s \"%s\" %s %d", bucket, prefix, list, N) == 0);
    FILE *f = fopen(list, "r");
    REQUIRE(f);
    while (k.n < N && fscanf(f, "%599s %" SCNu64 " %64s -", hex, &k.sizes[k.n], k.shas[k.n]) == 3) {
        REQUIRE(hex_decode(hex, strlen(hex), k.names[k.n], strlen(hex) / 2));
        k.n++;
    }
    fclose(f);
    CHECK(k.n > N - 20);
    REQUIRE_OK(io->ops->list(io, "", see, &k, &err), &err);
    for (size_t i = 0; i < k.n; i++)
        if (!k.seen[i])
            CHECK_STR(k.names[i], "listed");
    AUTO_BUF struct buf b = BUF_INIT;
    for (size_t i = 0; i < k.n; i += 10) {
        char sha[65];
        b.len = 0;
        CHECK_OK(io_read_all(io, k.names[i], 100, &b, &err), &err);
        sha256_hex(b.data, b.len, sha);
        CHECK_STR(sha, k.shas[i]);
    }
    free(k.names);
    free(k.sizes);
    free(k.shas);
    free(k.seen);
    io_close(io);
}

TEST(uploads_that_nobody_finished)
{
    struct larder_remote_options o = options();
    struct larder_error err;
    uint64_t n = 0;
    char out[256], text[256] = "";

    start("uploads", &o);
    REQUIRE(python("begin %s \"%sshards/1\" \"%sshards/2 +\" \"%sx\" other/y", bucket, prefix, prefix, prefix) == 0);
    REQUIRE_OK(io->ops->drop_unfinished(io, 3600, &n, &err), &err);
    CHECK_EQ(n, 0);
    REQUIRE_OK(io->ops->drop_unfinished(io, 0, &n, &err), &err);
    CHECK_EQ(n, 3);
    snprintf(out, sizeof(out), "%s/out", tmp_dir());
    REQUIRE(python("uploads %s >%s", bucket, out) == 0);
    FILE *f = fopen(out, "r");
    REQUIRE(f && fgets(text, sizeof(text), f));
    fclose(f);
    CHECK_STR(text, "other/y\n");
    io_close(io);
}

/* ---- one wins ---- */

static atomic_int won, lost;

static void *create(void *user)
{
    struct larder_error err;
    char text[16];

    snprintf(text, sizeof(text), "%d", *(int *)user);
    int rc = io->ops->create_exclusive(io, "manifests/1.json", text, strlen(text), &err);
    atomic_fetch_add(rc ? &lost : &won, 1);
    if (rc)
        CHECK_ERR(rc, LARDER_EEXIST, &err);
    return NULL;
}

TEST(one_creator_wins)
{
    struct larder_remote_options o = options();
    pthread_t threads[12];
    int me[12];

    if (o.single_writer)
        TEST_SKIP("this server ignores If-None-Match");
    start("creators", &o);
    for (int i = 0; i < 12; i++) {
        me[i] = i;
        REQUIRE(pthread_create(&threads[i], NULL, create, &me[i]) == 0);
    }
    for (int i = 0; i < 12; i++)
        pthread_join(threads[i], NULL);
    CHECK_EQ(atomic_load(&won), 1);
    CHECK_EQ(atomic_load(&lost), 11);
    io_close(io);
}

/* ---- faults, TLS, refusals ---- */

TEST(through_a_bad_network)
{
    size_t big = 9 * MIB_;
    AUTO_FREE uint8_t *data = malloc(big), *into = malloc(big);
    struct larder_remote_options o = options();
    struct larder_error err;
    uint64_t rng = 5;
    char list[256];

    start("faults", &o);
    io_close(io);
    REQUIRE(data && into && getenv("S3_PROXY"));
    rng_fill(&rng, data, big);
    o.endpoint = getenv("S3_PROXY");
    o.tries_max = 30;
    char uri[256];
    snprintf(uri, sizeof(uri), "s3://%s/%s", bucket, prefix);
    REQUIRE_OK(remote_io_open(uri, &o, &io, &err), &err);
    REQUIRE(python("faults close=0.1 err500=0.1 slowdown=0.05 trunc=0.1 reset=0.1") == 0);
    snprintf(list, sizeof(list), "%s/list", tmp_dir());
    FILE *f = fopen(list, "w");
    REQUIRE(f);
    for (int i = 0; i < 12; i++) {
        char name[32];
        size_t len = i % 4 == 3 ? big - (size_t)i : (size_t)i * 5000;
        snprintf(name, sizeof(name), "o%d", i);
        int rc = i % 2 ? upload(name, data, len, &err) : io->ops->create_exclusive(io, name, data, len, &err);
        CHECK_OK(rc, &err);
        note(f, name, data, len, "-");
        struct store_range r[8];
        for (size_t k = 0; k < 8; k++)
            r[k] = (struct store_range){name, len / 8 * k, into + len / 8 * k, len / 8};
        CHECK_OK(io->ops->read_ranges(io, r, 8, &err), &err);
        CHECK(memcmp(into, data, len / 8 * 8) == 0);
    }
    REQUIRE(python("faults") == 0);
    uint64_t n;
    CHECK_OK(io->ops->drop_unfinished(io, 0, &n, &err), &err); /* of uploads whose beginning was answered to nobody */
    REQUIRE(fclose(f) == 0);
    CHECK(python("check %s \"%s\" %s", bucket, prefix, list) == 0);
    io_close(io);
}

TEST(tls_and_refusals)
{
    struct larder_remote_options o = options();
    struct larder_error err;
    struct store_io *x;
    char uri[256], buf[4], *secret = strdup(getenv("AWS_SECRET_ACCESS_KEY") ? getenv("AWS_SECRET_ACCESS_KEY") : "");

    start("refused", &o);
    REQUIRE_OK(io->ops->put(io, "a", "0123", 4, &err), &err);
    snprintf(uri, sizeof(uri), "s3://%s/%s", bucket, prefix);
    o.endpoint = getenv("S3_PROXY_TLS");
    o.ca_bundle = getenv("S3_CA");
    REQUIRE_OK(remote_io_open(uri, &o, &x, &err), &err);
    REQUIRE_OK(io_read(x, "a", 0, buf, 4, &err), &err);
    CHECK_MEM(buf, "0123", 4);
    REQUIRE_OK(x->ops->put(x, "b", "0123", 4, &err), &err); /* UNSIGNED-PAYLOAD */
    io_close(x);
    o.ca_bundle = NULL;
    REQUIRE_OK(remote_io_open(uri, &o, &x, &err), &err);
    CHECK_ERR(io_read(x, "a", 0, buf, 4, &err), LARDER_EREMOTE, &err);
    CHECK(strstr(err.message, "TLS"));
    io_close(x);

    o.endpoint = getenv("S3_ENDPOINT");
    setenv("AWS_SECRET_ACCESS_KEY", "wr0ngsecret", 1);
    REQUIRE_OK(remote_io_open(uri, &o, &x, &err), &err);
    CHECK_ERR(io_read(x, "a", 0, buf, 4, &err), LARDER_EREMOTE, &err);
    CHECK_EQ(err.http_status, 403);
    CHECK(!strstr(err.message, "wr0ng") && strstr(err.message, "environment"));
    io_close(x);
    setenv("AWS_SECRET_ACCESS_KEY", secret, 1);
    free(secret);
    REQUIRE_OK(remote_io_open("s3://no-such-bucket-here/x", &o, &x, &err), &err);
    CHECK_ERR(io_read(x, "a", 0, buf, 4, &err), LARDER_EREMOTE, &err);
    CHECK(strstr(err.message, "no-such-bucket-here"));
    io_close(x);
    io_close(io);
}

TEST_MAIN();
