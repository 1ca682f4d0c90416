/* SPDX-License-Identifier: Apache-2.0 */
/* s3_creds.c over http.c: instance metadata, a container's endpoint and STS as servers on loopback; a machine without any, which has to be
 * found out soon. What is asked and how answers are taken is in test_s3_creds.c. */
#include "tests/unit/http_server.h"
#include "tiers/s3.h"

static struct server z;
static struct http *http;
static char seen[8192];
static atomic_bool hang;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of seen */

static void key_answer(struct answer *a)
{
    static const char json[] = "{\"Code\":\"Success\",\"AccessKeyId\":\"ID1\",\"SecretAccessKey\":\"s3cr3t\",\"Token\":\"t0ken\",\"Expiration\":"
                               "\"2099-01-01T00:00:00Z\"}";
    a->body = json;
    a->len = sizeof(json) - 1;
}

static void sts_answer(struct answer *a)
{
    static const char xml[] = "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>STS1</AccessKeyId>"
                              "<SecretAccessKey>s3cr3t</SecretAccessKey><SessionToken>t0ken</SessionToken><Expiration>2099-01-01T00:00:00Z"
                              "</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";
    a->body = xml;
    a->len = sizeof(xml) - 1;
}

static void handle(struct server *s, const struct request *q, struct answer *a)
{
    char v[256] = "";

    (void)s;
    pthread_mutex_lock(&lock);
    size_t at = strlen(seen);
    snprintf(seen + at, sizeof(seen) - at, "%s %s%s%.*s\n", q->method, q->path, q->body_len ? " " : "", (int)q->body_len, (const char *)q->body);
    pthread_mutex_unlock(&lock);
    if (atomic_load(&hang)) {
        a->send = 0;
        a->then = THEN_HANG;
    } else if (strcmp(q->path, "/latest/api/token") == 0 && strcmp(q->method, "PUT") == 0) {
        a->body = "session";
        a->len = request_header(q, "x-aws-ec2-metadata-token-ttl-seconds", v, sizeof(v)) ? 7 : 0;
    } else if (strncmp(q->path, "/latest/meta-data/iam/security-credentials/", 43) == 0) {
        if (!request_header(q, "x-aws-ec2-metadata-token", v, sizeof(v)) || strcmp(v, "session") != 0)
            a->status = 401;
        else if (q->path[43])
            key_answer(a);
        else
            a->body = "role\n", a->len = 5;
    } else if (strcmp(q->method, "POST") == 0) {
        sts_answer(a);
    } else if (request_header(q, "authorization", v, sizeof(v)) && strcmp(v, "Bearer t0ken") == 0) {
        key_answer(a);
    } else {
        a->status = 403;
    }
}

static void check_seen(const char *text)
{
    pthread_mutex_lock(&lock);
    CHECK_STR(seen, text);
    pthread_mutex_unlock(&lock);
}

static void start(void)
{
    static const char *const names[] = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN",
                                        "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                                        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_EC2_METADATA_DISABLED", "AWS_ENDPOINT_URL", "http_proxy"};
    struct http_options o = {.loops = 1};
    struct larder_error err;

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    setenv("HOME", tmp_dir(), 1);
    seen[0] = '\0';
    atomic_store(&hang, false);
    z = (struct server){.handle = handle};
    server_start(&z);
    REQUIRE_OK(http_open(&o, &http, &err), &err);
}

static void stop(void)
{
    http_close(http);
    server_stop(&z);
}

static void check_key(const char *id, const char *source)
{
    struct larder_error err;
    struct s3_creds *c;
    struct s3_key k;

    REQUIRE_OK(s3_creds_open(http, NULL, false, &c, &err), &err);
    CHECK_OK(s3_creds_get(c, &k, &err), &err);
    CHECK_STR(k.id, id);
    CHECK_STR(k.token ? k.token : "", "t0ken");
    CHECK_STR(s3_creds_source(c), source);
    s3_key_release(&k);
    s3_creds_close(c);
}

TEST(instance)
{
    char url[256];

    start();
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server_url(&z, "", url), 1);
    check_key("ID1", "instance metadata");
    check_seen("PUT /latest/api/token\nGET /latest/meta-data/iam/security-credentials/\nGET /latest/meta-data/iam/security-credentials/role\n");
    stop();
}

TEST(container)
{
    char url[256], file[256];

    start();
    snprintf(file, sizeof(file), "%s/token", tmp_dir());
    FILE *f = fopen(file, "w");
    REQUIRE(f);
    fputs("Bearer t0ken\n", f);
    REQUIRE(fclose(f) == 0);
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server_url(&z, "/v1/credentials?x=1", url), 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file, 1);
    check_key("ID1", "container endpoint");
    check_seen("GET /v1/credentials?x=1\n");
    stop();
}

TEST(web_identity)
{
    char url[256], file[256];

    start();
    snprintf(file, sizeof(file), "%s/jwt", tmp_dir());
    FILE *f = fopen(file, "w");
    REQUIRE(f);
    fputs("jwt", f);
    REQUIRE(fclose(f) == 0);
    setenv("AWS_ENDPOINT_URL_STS", server_url(&z, "", url), 1);
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", file, 1);
    setenv("AWS_ROLE_ARN", "arn", 1);
    setenv("AWS_ROLE_SESSION_NAME", "s", 1);
    check_key("STS1", "web identity (AWS_WEB_IDENTITY_TOKEN_FILE)");
    check_seen("POST / Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn&RoleSessionName=s&WebIdentityToken=jwt\n");
    stop();
}

static void check_none(const char *says)
{
    struct larder_error err;
    struct s3_creds *c;
    struct s3_key k;
    uint64_t from = now_ns();

    REQUIRE_OK(s3_creds_open(http, NULL, false, &c, &err), &err);
    CHECK_ERR(s3_creds_get(c, &k, &err), LARDER_EREMOTE, &err);
    if (!strstr(err.message, says))
        CHECK_STR(err.message, says);
    CHECK(now_ns() - from < 20000000000u); /* a second, and what a loaded machine adds */
    s3_creds_close(c);
}

TEST(nobody_answers)
{
    char url[256];

    start();
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server_url(&z, "", url), 1);
    atomic_store(&hang, true);
    check_none("does not answer");
    check_seen("PUT /latest/api/token\n"); /* one try */
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1", 1);
    check_none("does not answer");
    stop();
}

static void was_called(void *user) { atomic_store((atomic_bool *)user, true); }

TEST(closing_in_the_middle)
{
    struct larder_error err;
    struct s3_creds *c;
    struct s3_key k;
    atomic_bool called = false;
    char url[256];
    int rc;

    start();
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server_url(&z, "/c", url), 1);
    atomic_store(&hang, true);
    REQUIRE_OK(s3_creds_open(http, NULL, false, &c, &err), &err);
    CHECK(!s3_creds_try(c, &k, &rc, &err, was_called, &called));
    s3_creds_close(c);
    CHECK(atomic_load(&called));
    stop();
}

TEST_MAIN();
