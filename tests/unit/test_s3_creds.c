/* SPDX-License-Identifier: Apache-2.0 */
/* The chain of credential sources over a pretended network: which source wins, what is asked of whom, refreshing, refusal, failures, many
 * threads; and that no message holds a secret. tests/bucket asks a real server. */
#include <time.h>

#include "tests/unit/http_fake.h"
#include "tiers/s3.h"

#define SECRET "s3cr3t/secret+key"
#define TOKEN "t0ken/value+=="

static const char *const variables[] = {
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME",
    "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "AWS_ENDPOINT_URL_STS",
    "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"};

static const char *home;

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    REQUIRE(f);
    fputs(text, f);
    REQUIRE(fclose(f) == 0);
}

/* An empty environment, and shared files of these texts; NULL: none. */
static void world(const char *config, const char *credentials)
{
    char path[256];

    for (size_t i = 0; i < ARRAY_LEN(variables); i++)
        unsetenv(variables[i]);
    home = tmp_dir();
    setenv("HOME", home, 1);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    snprintf(path, sizeof(path), "%s/.aws", home);
    REQUIRE(mkdir(path, 0700) == 0);
    snprintf(path, sizeof(path), "%s/.aws/config", home);
    if (config)
        write_file(path, config);
    snprintf(path, sizeof(path), "%s/.aws/credentials", home);
    if (credentials)
        write_file(path, credentials);
    fake_settle();
}

static const char *home_file(const char *name, const char *text)
{
    static char path[256];

    snprintf(path, sizeof(path), "%s/%s", home, name);
    write_file(path, text);
    return path;
}

static void check_silent(const struct larder_error *err)
{
    CHECK(!strstr(err->message, "s3cr3t") && !strstr(err->message, "t0ken"));
}

/* Opens, asks once, says "source: id secret token", or the error's message. */
static const char *got(const char *profile)
{
    static char text[1024];
    struct larder_error err = {0};
    struct s3_creds *c = NULL;
    struct s3_key k = {.token = NULL};
    struct http *http = (struct http *)&fake_lock; /* not NULL */

    if (s3_creds_open(http, profile, false, &c, &err) || s3_creds_get(c, &k, &err))
        snprintf(text, sizeof(text), "%s", err.message);
    else
        snprintf(text, sizeof(text), "%s: %s %s %s", s3_creds_source(c), k.id, k.secret, k.token ? k.token : "-");
    check_silent(&err);
    s3_key_release(&k);
    s3_creds_close(c);
    return text;
}

static void check_says(const char *text, const char *part)
{
    if (!strstr(text, part))
        CHECK_STR(text, part);
}

/* ---- environment and files ---- */

TEST(environment)
{
    world(NULL, "[default]\naws_access_key_id = FILE\naws_secret_access_key = " SECRET "\n");
    CHECK_STR(got(NULL), "~/.aws/credentials (profile default): FILE " SECRET " -");
    setenv("AWS_ACCESS_KEY_ID", " AKID\n", 1);
    check_says(got(NULL), "AWS_SECRET_ACCESS_KEY is not");
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    CHECK_STR(got(NULL), "environment: AKID " SECRET " -");
    setenv("AWS_SESSION_TOKEN", TOKEN, 1);
    CHECK_STR(got(NULL), "environment: AKID " SECRET " " TOKEN);
    setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t with blanks", 1);
    check_says(got(NULL), "characters");
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    setenv("AWS_ACCESS_KEY_ID", "AK/ID", 1);
    check_says(got(NULL), "characters");
    CHECK_EQ(fake_settle(), 0);
}

TEST(profiles)
{
    world("[profile both]\naws_access_key_id = CONFIG\naws_secret_access_key = " SECRET "\naws_session_token = " TOKEN "\n"
          "[profile conf]\naws_access_key_id = CONF\naws_secret_access_key = " SECRET "\n[profile empty]\nregion = r\n"
          "[both]\naws_access_key_id = NOTME\n",
          "[both]\naws_access_key_id = CRED\naws_secret_access_key = " SECRET "\n"
          "[half]\naws_access_key_id = HALF\n[profile conf]\naws_access_key_id = NOTME\n");
    CHECK_STR(got("both"), "~/.aws/credentials (profile both): CRED " SECRET " -");
    CHECK_STR(got("conf"), "~/.aws/config (profile conf): CONF " SECRET " -");
    check_says(got("half"), "secret access key is missing");
    check_says(got("none"), "it is in neither");
    check_says(got(NULL), "profile default");
    setenv("AWS_PROFILE", "both", 1);
    CHECK_STR(got(NULL), "~/.aws/credentials (profile both): CRED " SECRET " -");
    setenv("AWS_PROFILE", "none", 1);
    check_says(got(NULL), "AWS_PROFILE=none");
    setenv("AWS_ACCESS_KEY_ID", "AKID", 1); /* the environment goes before AWS_PROFILE, not before a profile asked for */
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    CHECK_STR(got(NULL), "environment: AKID " SECRET " -");
    CHECK_STR(got("both"), "~/.aws/credentials (profile both): CRED " SECRET " -");
    CHECK_STR(got("empty"), "environment: AKID " SECRET " -");
    CHECK_EQ(fake_settle(), 0);
}

TEST(files_elsewhere)
{
    char path[256];

    world(NULL, NULL);
    snprintf(path, sizeof(path), "%s/creds", home);
    write_file(path, "[default]\naws_access_key_id = ELSE\naws_secret_access_key = " SECRET "\n");
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    CHECK_STR(got(NULL), "~/creds (profile default): ELSE " SECRET " -");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "~/creds", 1);
    CHECK_STR(got(NULL), "~/creds (profile default): ELSE " SECRET " -");
    unsetenv("HOME"); /* as on some serverless workers */
    setenv("AWS_SHARED_CREDENTIALS_FILE", path, 1);
    check_says(got(NULL), "creds (profile default): ELSE ");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/", 1);
    check_says(got(NULL), "no credentials");
}

TEST(what_cannot_be_used)
{
    world("[profile sso]\nsso_start_url = https://x\n[profile proc]\ncredential_process = /bin/x --secret s3cr3t\n"
          "[profile mfa]\nrole_arn = arn\nsource_profile = keys\nmfa_serial = m\n[profile lost]\nrole_arn = arn\n"
          "[profile gone]\nrole_arn = arn\nsource_profile = nobody\n[profile c1]\nrole_arn = arn\nsource_profile = c2\n"
          "[profile c2]\nrole_arn = arn\nsource_profile = c1\n[profile odd]\nrole_arn = arn\ncredential_source = Moon\n"
          "[profile hollow]\nrole_arn = arn\nsource_profile = void\n[profile void]\nregion = r\n",
          "[keys]\naws_access_key_id = K\naws_secret_access_key = " SECRET "\n");
    check_says(got("sso"), "export-credentials");
    check_says(got("proc"), "export-credentials");
    check_says(got("mfa"), "MFA");
    check_says(got("lost"), "without source_profile");
    check_says(got("gone"), "nobody");
    check_says(got("c1"), "circle");
    check_says(got("odd"), "Moon");
    check_says(got("hollow"), "void has no credentials");
    CHECK_EQ(fake_settle(), 0);
}

TEST(anonymous_and_settings)
{
    struct larder_error err;
    struct s3_creds *c;
    struct s3_key k;

    world("[profile p]\nregion = eu\nendpoint_url = http://e\naws_secret_access_key = " SECRET "\n", NULL);
    REQUIRE_OK(s3_creds_open(NULL, "p", true, &c, &err), &err);
    REQUIRE_OK(s3_creds_get(c, &k, &err), &err);
    CHECK_STR(k.id, "");
    CHECK_STR(s3_creds_setting(c, "region"), "eu");
    CHECK_STR(s3_creds_setting(c, "endpoint_url"), "http://e");
    CHECK(!s3_creds_setting(c, "aws_secret_access_key"));
    CHECK(!s3_creds_setting(c, "nothing"));
    CHECK(!s3_creds_refused(c, &k));
    s3_creds_close(c);
    s3_creds_close(NULL);
}

TEST(refused_file_is_read_again)
{
    struct larder_error err;
    struct s3_creds *c;
    struct s3_key k, k2;
    char path[256];

    world(NULL, "[default]\naws_access_key_id = OLD\naws_secret_access_key = " SECRET "\n");
    REQUIRE_OK(s3_creds_open(NULL, NULL, false, &c, &err), &err);
    REQUIRE_OK(s3_creds_get(c, &k, &err), &err);
    CHECK_STR(k.id, "OLD");
    snprintf(path, sizeof(path), "%s/.aws/credentials", home);
    write_file(path, "[default]\naws_access_key_id = NEW\naws_secret_access_key = " SECRET "\n");
    REQUIRE_OK(s3_creds_get(c, &k2, &err), &err);
    CHECK_STR(k2.id, "OLD");
    s3_key_release(&k2);
    CHECK(s3_creds_refused(c, &k));
    REQUIRE_OK(s3_creds_get(c, &k2, &err), &err);
    CHECK_STR(k2.id, "NEW");
    s3_key_release(&k2);
    CHECK(s3_creds_refused(c, &k)); /* the old one, once more: nothing changes */
    write_file(path, "[default]\n");
    REQUIRE_OK(s3_creds_get(c, &k2, &err), &err);
    CHECK_STR(k2.id, "NEW");
    s3_key_release(&k2);
    s3_key_release(&k);
    s3_creds_close(c);

    setenv("AWS_ACCESS_KEY_ID", "AKID", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    REQUIRE_OK(s3_creds_open(NULL, NULL, false, &c, &err), &err);
    REQUIRE_OK(s3_creds_get(c, &k, &err), &err);
    CHECK(!s3_creds_refused(c, &k)); /* the environment has no other */
    s3_key_release(&k);
    s3_creds_close(c);
}

/* ---- servers ---- */

static atomic_int serial;      /* of the keys given out */
static atomic_int lifetime_s;  /* of the next one; 0: no date */
static atomic_int fail_status; /* 0: answer well */
static atomic_int fail_count;  /* only so many times; -1: always */
static char last_text[4096];   /* what was asked, in order; under fake_lock */

static void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *fmt, ...)
{
    va_list ap;

    pthread_mutex_lock(&fake_lock);
    size_t at = strlen(last_text);
    va_start(ap, fmt);
    vsnprintf(last_text + at, sizeof(last_text) - at, fmt, ap);
    va_end(ap);
    pthread_mutex_unlock(&fake_lock);
}

static void date_text(char out[32])
{
    time_t t = time(NULL) + atomic_load(&lifetime_s);
    struct tm tm;

    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
}

static void reply_json(struct http_transfer *t)
{
    char body[512], date[32];

    date_text(date);
    snprintf(body, sizeof(body), "{\"Code\":\"Success\",\"AccessKeyId\":\"ID%d\",\"SecretAccessKey\":\"" SECRET "\",\"Token\":\"" TOKEN
             "\"%s%s%s}", atomic_fetch_add(&serial, 1), atomic_load(&lifetime_s) ? ",\"Expiration\":\"" : "",
             atomic_load(&lifetime_s) ? date : "", atomic_load(&lifetime_s) ? "\"" : "");
    fake_reply(t, 200, body);
}

static void reply_sts(struct http_transfer *t)
{
    char body[1024], date[32];

    date_text(date);
    snprintf(body, sizeof(body), "<R><Result><Credentials><AccessKeyId>ID%d</AccessKeyId><SecretAccessKey>" SECRET "</SecretAccessKey>"
             "<SessionToken>" TOKEN "</SessionToken><Expiration>%s</Expiration></Credentials></Result></R>",
             atomic_fetch_add(&serial, 1), date);
    fake_reply(t, 200, body);
}

static bool failing(struct http_transfer *t)
{
    int status = atomic_load(&fail_status);

    if (!status || atomic_load(&fail_count) == 0)
        return false;
    if (atomic_load(&fail_count) > 0)
        atomic_fetch_sub(&fail_count, 1);
    if (status == -1)
        t->end = HTTP_CONNECT;
    else if (status == -2)
        t->end = FAKE_HANG;
    else
        fake_reply(t, status, "<ErrorResponse><Error><Code>Broken</Code><Message>s3cr3t t0ken</Message></Error></ErrorResponse>");
    return true;
}

static void serve(struct http_transfer *t)
{
    static const char imds[] = "http://169.254.169.254/latest/";

    note("%s %s%s%s\n", t->method == HTTP_GET ? "GET" : t->method == HTTP_PUT ? "PUT" : "POST", t->url,
         *fake_header(t, "authorization") ? " auth " : "", *fake_header(t, "authorization") ? fake_header(t, "authorization") : "");
    if (t->method == HTTP_POST)
        note("%.*s\n", (int)t->body_len, (const char *)t->body);
    if (failing(t))
        return;
    if (strncmp(t->url, imds, sizeof(imds) - 1) == 0) {
        const char *path = t->url + sizeof(imds) - 1;
        if (strcmp(path, "api/token") == 0 && t->method == HTTP_PUT)
            fake_reply(t, *fake_header(t, "x-aws-ec2-metadata-token-ttl-seconds") ? 200 : 400, "session-0");
        else if (strcmp(fake_header(t, "x-aws-ec2-metadata-token"), "session-0") != 0)
            fake_reply(t, 401, "");
        else if (strcmp(path, "meta-data/iam/security-credentials/") == 0)
            fake_reply(t, 200, "my-role\n");
        else if (strcmp(path, "meta-data/iam/security-credentials/my-role") == 0)
            reply_json(t);
        else
            fake_reply(t, 404, "");
    } else if (t->method == HTTP_POST) {
        reply_sts(t);
    } else {
        reply_json(t);
    }
}

static bool held; /* under fake_lock */

/* Holds the answer back until serve_now. */
static void serve_later(struct http_transfer *t)
{
    pthread_mutex_lock(&fake_lock);
    while (held)
        pthread_cond_wait(&fake_changed, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
    serve(t);
}

static void serve_now(void)
{
    pthread_mutex_lock(&fake_lock);
    held = false;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

static void serving(void)
{
    fake_answer = serve;
    held = true;
    atomic_store(&serial, 1);
    atomic_store(&lifetime_s, 3600);
    atomic_store(&fail_status, 0);
    atomic_store(&fail_count, -1);
    last_text[0] = '\0';
}

TEST(container)
{
    world(NULL, NULL);
    serving();
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x", 1);
    CHECK_STR(got(NULL), "container endpoint: ID1 " SECRET " " TOKEN);
    CHECK_STR(last_text, "GET http://169.254.170.2/v2/x\n");
    CHECK_EQ(fake_settle(), 1);
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "@evil/", 1);
    check_says(got(NULL), "does not begin");
    unsetenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");

    static const char *const good[] = {"http://127.0.0.1:8080/c", "http://localhost/c", "http://[::1]:1/c", "http://169.254.170.23/v1/credentials",
                                       "http://[fd00:ec2::23]/v1", "https://anywhere.example/c"};
    static const char *const bad[] = {"http://example.com/c", "http://127.0.0.1.example.com/c", "http://127.0.0.1@example.com/c", "ftp://localhost/",
                                      "http://localhost.example/", "http://10.0.0.1/", "http://[::2]/", "/c"};
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "Basic " TOKEN, 1);
    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", good[i], 1);
        last_text[0] = '\0';
        check_says(got(NULL), "container endpoint: ID");
        check_says(last_text, good[i]);
        check_says(last_text, " auth Basic " TOKEN "\n");
    }
    CHECK_EQ(fake_settle(), ARRAY_LEN(good));
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", bad[i], 1);
        check_says(got(NULL), "AWS_CONTAINER_CREDENTIALS_FULL_URI");
    }
    CHECK_EQ(fake_settle(), 0);

    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", good[0], 1);
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", home_file("auth", "from-file" TOKEN "\n"), 1);
    last_text[0] = '\0';
    got(NULL);
    check_says(last_text, " auth from-file" TOKEN "\n");
    setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/nonexistent/auth", 1);
    check_says(got(NULL), "/nonexistent/auth");
}

TEST(instance)
{
    world(NULL, NULL);
    serving();
    unsetenv("AWS_EC2_METADATA_DISABLED");
    CHECK_STR(got(NULL), "instance metadata: ID1 " SECRET " " TOKEN);
    CHECK_STR(last_text, "PUT http://169.254.169.254/latest/api/token\n"
                         "GET http://169.254.169.254/latest/meta-data/iam/security-credentials/\n"
                         "GET http://169.254.169.254/latest/meta-data/iam/security-credentials/my-role\n");
    fake_settle();
    atomic_store(&fail_status, -1); /* a machine without: one try */
    check_says(got(NULL), "169.254.169.254 does not answer (no connection)");
    CHECK_EQ(fake_settle(), 1);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1/", 1);
    last_text[0] = '\0';
    got(NULL);
    CHECK_STR(last_text, "PUT http://127.0.0.1:1/latest/api/token\n");
    fake_settle();
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "localhost", 1);
    check_says(got(NULL), "AWS_EC2_METADATA_SERVICE_ENDPOINT");
    CHECK_EQ(fake_settle(), 0);
}

static void no_role(struct http_transfer *t) { fake_reply(t, t->method == HTTP_PUT ? 200 : 404, "session-0"); }
static void html(struct http_transfer *t) { fake_reply(t, 200, "<html><body>s3cr3t t0ken</body></html>"); }
static void half_json(struct http_transfer *t) { fake_reply(t, 200, "{\"AccessKeyId\":\"ID\",\"SecretAccessKey\":s3cr3t}"); }
static void no_key(struct http_transfer *t) { fake_reply(t, 200, "{\"Code\":\"Success\",\"SecretAccessKey\":\"s3cr3t\"}"); }
static void not_success(struct http_transfer *t) { fake_reply(t, 200, "{\"Code\":\"AssumeRoleUnauthorizedAccess\",\"Message\":\"t0ken\"}"); }
static void odd_key(struct http_transfer *t) { fake_reply(t, 200, "{\"AccessKeyId\":\"I\\nD\",\"SecretAccessKey\":\"s3cr3t\"}"); }

TEST(strange_answers)
{
    static void (*const answers[])(struct http_transfer *t) = {html, half_json, no_key, not_success, odd_key};
    static const char *const says[] = {"not JSON", "not JSON", "no key", "AssumeRoleUnauthorizedAccess", "characters"};

    world(NULL, NULL);
    serving();
    unsetenv("AWS_EC2_METADATA_DISABLED");
    fake_answer = no_role;
    check_says(got(NULL), "has no role");
    fake_answer = html;
    check_says(got(NULL), "not one of its own");
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x", 1);
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        fake_answer = answers[i];
        check_says(got(NULL), says[i]);
    }
}

TEST(retries)
{
    world(NULL, NULL);
    serving();
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x", 1);
    atomic_store(&fail_status, 500);
    atomic_store(&fail_count, 2);
    check_says(got(NULL), "container endpoint: ID1");
    CHECK_EQ(fake_settle(), 3);
    atomic_store(&fail_count, -1);
    check_says(got(NULL), "answers 500 Broken");
    CHECK_EQ(fake_settle(), 3);
    atomic_store(&fail_status, 403);
    check_says(got(NULL), "answers 403 Broken");
    CHECK_EQ(fake_settle(), 1);
    atomic_store(&fail_status, -1);
    check_says(got(NULL), "no connection, after 3 tries");
    CHECK_EQ(fake_settle(), 3);
}

TEST(web_identity)
{
    world(NULL, NULL);
    serving();
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", home_file("jwt", "ey.J+0/=\n"), 1);
    check_says(got(NULL), "AWS_ROLE_ARN is not");
    setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/my role", 1);
    setenv("AWS_ROLE_SESSION_NAME", "me", 1);
    CHECK_STR(got(NULL), "web identity (AWS_WEB_IDENTITY_TOKEN_FILE): ID1 " SECRET " " TOKEN);
    CHECK_STR(last_text, "POST https://sts.amazonaws.com/\nAction=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3A"
                         "role%2Fmy%20role&RoleSessionName=me&WebIdentityToken=ey.J%2B0%2F%3D\n");
    last_text[0] = '\0';
    setenv("AWS_REGION", "cn-north-1", 1);
    got(NULL);
    check_says(last_text, "POST https://sts.cn-north-1.amazonaws.com.cn/\n");
    setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:99/sts/", 1);
    last_text[0] = '\0';
    got(NULL);
    check_says(last_text, "POST http://127.0.0.1:99/sts/\n");
    atomic_store(&fail_status, 400);
    check_says(got(NULL), "STS answers 400 Broken");
    home_file("jwt", "");
    check_says(got(NULL), "not a token");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/jwt", 1);
    check_says(got(NULL), "/nonexistent/jwt");
}

TEST(roles)
{
    world("[profile deploy]\nrole_arn = arn:r1\nsource_profile = keys\nexternal_id = x/1\nrole_session_name = s\nduration_seconds = 900\n"
          "[profile twice]\nrole_arn = arn:r2\nsource_profile = deploy\nregion = eu-west-1\nrole_session_name = s\n"
          "[profile self]\nrole_arn = arn:r3\nsource_profile = self\nrole_session_name = s\n"
          "[profile env]\nrole_arn = arn:r4\ncredential_source = Environment\n"
          "[profile ecs]\nrole_arn = arn:r5\ncredential_source = EcsContainer\n"
          "[profile web]\nrole_arn = arn:r6\nweb_identity_token_file = /nonexistent/jwt\n",
          "[keys]\naws_access_key_id = KEYS\naws_secret_access_key = " SECRET "\n[self]\naws_access_key_id = SELF\naws_secret_access_key = "
          SECRET "\n");
    serving();
    CHECK_STR(got("deploy"), "~/.aws/config (profile deploy, role): ID1 " SECRET " " TOKEN);
    check_says(last_text, "POST https://sts.amazonaws.com/ auth AWS4-HMAC-SHA256 Credential=KEYS/");
    check_says(last_text, "/us-east-1/sts/aws4_request, SignedHeaders=content-type;host;x-amz-date, Signature=");
    check_says(last_text, "\nAction=AssumeRole&Version=2011-06-15&RoleArn=arn%3Ar1&RoleSessionName=s&ExternalId=x%2F1&DurationSeconds=900\n");
    last_text[0] = '\0';
    check_says(got("twice"), "~/.aws/config (profile twice, role): ID3 ");
    check_says(last_text, "POST https://sts.eu-west-1.amazonaws.com/ auth AWS4-HMAC-SHA256 Credential=KEYS/");
    check_says(last_text, "Credential=ID2/");
    check_says(last_text, "content-type;host;x-amz-date;x-amz-security-token");
    check_says(got("self"), "ID4");
    check_says(got("env"), "AWS_ACCESS_KEY_ID is not set");
    setenv("AWS_ACCESS_KEY_ID", "AKID", 1);
    setenv("AWS_SECRET_ACCESS_KEY", SECRET, 1);
    last_text[0] = '\0';
    check_says(got("env"), "ID5");
    check_says(last_text, "Credential=AKID/");
    check_says(got("ecs"), "there is no AWS_CONTAINER");
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x", 1);
    check_says(got("ecs"), "ID7");
    check_says(got("web"), "/nonexistent/jwt");
    fake_settle();
}

/* ---- keeping and refreshing ---- */

static struct s3_creds *open_container(void)
{
    struct larder_error err;
    struct s3_creds *c = NULL;

    world(NULL, NULL);
    serving();
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x", 1);
    CHECK_OK(s3_creds_open((struct http *)&fake_lock, NULL, false, &c, &err), &err);
    return c;
}

static void check_key(struct s3_creds *c, const char *id)
{
    struct larder_error err;
    struct s3_key k;

    REQUIRE_OK(s3_creds_get(c, &k, &err), &err);
    CHECK_STR(k.id, id);
    CHECK_STR(k.token, TOKEN);
    s3_key_release(&k);
}

TEST(kept_while_it_is_good)
{
    struct s3_creds *c = open_container();
    struct larder_error err;
    struct s3_key k;

    for (int i = 0; i < 100; i++)
        check_key(c, "ID1");
    CHECK_EQ(fake_settle(), 1);
    REQUIRE_OK(s3_creds_get(c, &k, &err), &err);
    CHECK(s3_creds_refused(c, &k));
    CHECK(s3_creds_refused(c, &k));
    s3_key_release(&k);
    check_key(c, "ID2");
    CHECK_EQ(fake_settle(), 1);
    s3_creds_close(c);
}

TEST(refreshed_ahead)
{
    struct s3_creds *c = open_container();

    atomic_store(&lifetime_s, 200); /* under five minutes: at once, while the old one goes on being used */
    check_key(c, "ID1");
    atomic_store(&lifetime_s, 3600);
    CHECK_EQ(fake_settle(), 2);
    check_key(c, "ID2");
    check_key(c, "ID2");
    CHECK_EQ(fake_settle(), 0);
    s3_creds_close(c);
}

TEST(failed_refresh_keeps_the_old_one)
{
    struct s3_creds *c = open_container();

    atomic_store(&lifetime_s, 200);
    check_key(c, "ID1");
    fake_settle(); /* ID2, as short-lived, was fetched: the next refresh is due in ten seconds */
    atomic_store(&fail_status, 403);
    for (int i = 0; i < 10; i++)
        check_key(c, "ID2");
    CHECK(fake_settle() <= 1);
    s3_creds_close(c);

    c = open_container();
    atomic_store(&lifetime_s, 200);
    atomic_store(&fail_count, 0);
    struct larder_error err;
    struct s3_key k;
    int rc;
    /* the first fetch, without the refresh that an answer would begin */
    fake_answer = serve_later;
    CHECK(!s3_creds_try(c, &k, &rc, &err, free, NULL));
    serve_now();
    CHECK_EQ(fake_settle(), 1);
    atomic_store(&fail_status, 403);
    atomic_store(&fail_count, -1);
    for (int i = 0; i < 10; i++)
        check_key(c, "ID1");
    CHECK_EQ(fake_settle(), 1);
    s3_creds_close(c);
}

TEST(a_fresh_key_is_used_whatever_its_date)
{
    struct s3_creds *c = open_container();

    atomic_store(&lifetime_s, -7200); /* our clock is off */
    check_key(c, "ID1");
    CHECK_EQ(fake_settle(), 2);
    check_key(c, "ID2");
    CHECK(fake_settle() <= 1);
    s3_creds_close(c);
}

TEST(failures_are_not_repeated_at_once)
{
    struct s3_creds *c = open_container();
    struct larder_error err;
    struct s3_key k;

    atomic_store(&fail_status, 403);
    uint64_t from = now_ns();
    for (int i = 0; i < 100; i++) {
        CHECK_ERR(s3_creds_get(c, &k, &err), LARDER_EREMOTE, &err);
        CHECK_EQ(err.http_status, 403);
    }
    CHECK(fake_settle() <= 1 + (int)((now_ns() - from) / 1000000000u));
    s3_creds_close(c);
}

struct asker { struct s3_creds *c; atomic_int called; };

static void was_called(void *user) { atomic_fetch_add(&((struct asker *)user)->called, 1); }

TEST(without_waiting)
{
    struct asker a = {open_container(), 0};
    struct larder_error err;
    struct s3_key k;
    int rc, asked = 0;

    fake_answer = serve_later;
    for (int i = 0; i < 5; i++)
        asked += !s3_creds_try(a.c, &k, &rc, &err, was_called, &a);
    CHECK_EQ(asked, 5);
    serve_now();
    CHECK_EQ(fake_settle(), 1);
    CHECK_EQ(atomic_load(&a.called), asked);
    CHECK(s3_creds_try(a.c, &k, &rc, &err, was_called, &a));
    REQUIRE_OK(rc, &err);
    CHECK_STR(k.id, "ID1");
    CHECK(s3_creds_refused(a.c, &k));
    s3_key_release(&k);
    atomic_store(&fail_status, 403);
    held = true; /* nothing runs */
    CHECK(!s3_creds_try(a.c, &k, &rc, &err, was_called, &a));
    serve_now();
    fake_settle();
    CHECK_EQ(atomic_load(&a.called), asked + 1);
    s3_creds_close(a.c);

    /* where no request is needed it never has to be asked again */
    world(NULL, "[default]\naws_access_key_id = FILE\naws_secret_access_key = " SECRET "\n");
    REQUIRE_OK(s3_creds_open(NULL, NULL, false, &a.c, &err), &err);
    CHECK(s3_creds_try(a.c, &k, &rc, &err, was_called, &a));
    CHECK_STR(k.id, "FILE");
    s3_key_release(&k);
    s3_creds_close(a.c);
    unsetenv("HOME");
    REQUIRE_OK(s3_creds_open(NULL, NULL, false, &a.c, &err), &err);
    CHECK(s3_creds_try(a.c, &k, &rc, &err, was_called, &a));
    CHECK_ERR(rc, LARDER_EREMOTE, &err);
    check_says(err.message, "instance metadata is disabled");
    s3_creds_close(a.c);
    CHECK_EQ(atomic_load(&a.called), asked + 1);
}

static void *ask_often(void *user)
{
    struct s3_creds *c = user;
    struct larder_error err;
    struct s3_key k;

    for (int i = 0; i < 50; i++) {
        int rc = s3_creds_get(c, &k, &err);
        CHECK_OK(rc, &err);
        if (rc)
            break;
        CHECK(strncmp(k.id, "ID", 2) == 0 && strcmp(k.secret, SECRET) == 0);
        if (i % 10 == 9)
            s3_creds_refused(c, &k);
        s3_key_release(&k);
    }
    return NULL;
}

TEST(many_threads)
{
    struct s3_creds *c = open_container();
    pthread_t threads[8];

    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        REQUIRE(pthread_create(&threads[i], NULL, ask_often, c) == 0);
    for (size_t i = 0; i < ARRAY_LEN(threads); i++)
        pthread_join(threads[i], NULL);
    CHECK(fake_settle() <= 1 + 5 * (int)ARRAY_LEN(threads));
    s3_creds_close(c);
}

TEST(closing_while_a_server_hangs)
{
    struct asker a = {open_container(), 0};
    struct larder_error err;
    struct s3_key k;
    int rc;

    atomic_store(&fail_status, -2);
    CHECK(!s3_creds_try(a.c, &k, &rc, &err, was_called, &a));
    s3_creds_close(a.c);
    CHECK_EQ(fake_settle(), 1);
    CHECK_EQ(atomic_load(&a.called), 1);
}

TEST_MAIN();
