/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_creds.c - the key to sign with: fetched from where s3_profile.c says, kept, and fetched again before it expires.
 *
 *     no key --get/try--> fetching --well--> a key --5 min before it expires--> a key, fetching --well--> another key
 *                            |                 |                                      |
 *                            +--badly: error   +--refused: no key                     +--badly: the old key until it expires
 *
 * At most one fetch is under way. It walks the chain of sources; what a source asks for is one to three requests (an instance:
 * session token, role's name, key), each event-driven on the loops of http.c: fetch_walk goes on until a request is under
 * way, and its done callback goes on from there. While `fetching` is set the struct fetch belongs to whoever does that and is touched
 * without the lock; `lock` guards the rest. No lock is held while files are read, requests started, or waiters called.
 *
 * A key that was just fetched is used for a minute whatever its date says: it may be our clock that is off. After a failure the same
 * answer is given for a second, so that hundreds of waiting requests do not ask hundreds of times.
 *
 * Instance metadata is the last resort, also on machines that have none: its first request gets one try of a second.
 *
 * Errors and messages hold status codes and the servers' codes, never a body: a body may be a key.
 *
 * Threads: any. s3_creds_get waits and must not be called on a loop's thread.
 */
#include <inttypes.h>
#include <pthread.h>
#include <unistd.h>

#include "tiers/s3_int.h"

#define SECOND_NS UINT64_C(1000000000)

enum {
    REFRESH_S = 300,  /* before it expires */
    AGAIN_S = 10,     /* between refreshes that did not help */
    FRESH_S = 60,     /* a key just fetched is good for so long */
    TRIES = 3,
    HEADERS_MAX = 6,
    ANSWER_MAX = 64 << 10
};

struct waiter { void (*done)(void *user); void *user; struct waiter *next; };

/* One walk over the chain. */
struct fetch {
    size_t stage;             /* source in work */
    int step;                 /* of an instance: 0 token, 1 role, 2 key */
    unsigned tries, tries_max;
    uint64_t timeout_ns;      /* of one try */
    struct s3_key key;        /* of the source before */
    char *token, *role;       /* of an instance */
    struct http_transfer transfer;
    char *url, *headers[HEADERS_MAX];
    size_t n_headers;
    struct buf body, answer;
};

struct s3_creds {
    struct http *http;
    struct s3_chain chain;
    struct s3_endpoint sts;
    char region[48]; /* that STS requests are signed for */
    bool anonymous;
    pid_t pid;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct s3_key key;
    bool have, fetching, closing, sent; /* sent: the fetch's transfer is http.c's */
    unsigned calling; /* threads that tell waiters */
    uint64_t good_until_s, again_ns, fetches;
    struct larder_error failed;
    uint64_t failed_until_ns;
    struct waiter *waiters;
    /* of who fetches */
    struct fetch fetch;
};

enum { STARTED = 1 }; /* a request is under way; else LARDER_OK (the stage has its key) or an error */

/* ---- requests ---- */

static void wipe_free(char *s)
{
    if (s)
        s3_wipe(s, strlen(s));
    free(s);
}

static void buf_wipe(struct buf *b)
{
    if (b->data)
        s3_wipe(b->data, b->cap);
    buf_release(b);
}

static void request_release(struct fetch *f)
{
    free(f->url);
    f->url = NULL;
    for (size_t i = 0; i < f->n_headers; i++)
        wipe_free(f->headers[i]);
    f->n_headers = 0;
    buf_wipe(&f->body);
    buf_wipe(&f->answer);
}

static void fetch_release(struct fetch *f)
{
    request_release(f);
    s3_key_release(&f->key);
    wipe_free(f->token);
    wipe_free(f->role);
    memset(f, 0, sizeof(*f));
}

static int header(struct fetch *f, struct larder_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int header(struct fetch *f, struct larder_error *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vasprintf(&f->headers[f->n_headers], fmt, ap);
    va_end(ap);
    if (n < 0)
        return err_nomem(err, 256, "credentials");
    f->n_headers++;
    return LARDER_OK;
}

static int url(struct fetch *f, struct larder_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int url(struct fetch *f, struct larder_error *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vasprintf(&f->url, fmt, ap);
    va_end(ap);
    if (n < 0)
        f->url = NULL;
    return n < 0 ? err_nomem(err, 256, "credentials") : LARDER_OK;
}

static void on_done(struct http_transfer *t);

/* The lock orders it with closing: what is started later is not canceled. */
static int send_again(struct s3_creds *c, struct larder_error *err)
{
    struct fetch *f = &c->fetch;
    struct http_transfer *t = &f->transfer;
    enum http_method method = t->method;

    pthread_mutex_lock(&c->lock);
    if (c->closing) {
        pthread_mutex_unlock(&c->lock);
        return err_set(err, LARDER_ECANCELED, "credentials: closing");
    }
    memset(t, 0, sizeof(*t));
    f->answer.len = 0;
    t->method = method;
    t->url = f->url;
    t->headers = (const char *const *)f->headers;
    t->n_headers = f->n_headers;
    t->body = f->body.len ? f->body.data : NULL;
    t->body_len = f->body.len;
    t->out = &f->answer;
    t->out_max = ANSWER_MAX;
    t->not_before_ns = f->tries ? now_ns() + (SECOND_NS / 10 << f->tries) : 0;
    t->deadline_ns = MAX(now_ns(), t->not_before_ns) + f->timeout_ns;
    t->urgent = true;
    t->done = on_done;
    t->user = c;
    f->tries++;
    c->sent = true;
    http_start(c->http, t);
    pthread_mutex_unlock(&c->lock);
    return STARTED;
}

static int send_first(struct s3_creds *c, enum http_method method, unsigned tries, uint64_t timeout_ns, struct larder_error *err)
{
    c->fetch.transfer.method = method;
    c->fetch.tries = 0;
    c->fetch.tries_max = tries;
    c->fetch.timeout_ns = timeout_ns;
    return send_again(c, err);
}

/* ---- sources ---- */

static int ask_container(struct s3_creds *c, const struct s3_source *s, struct larder_error *err)
{
    char *token = NULL;
    int rc = s->token_file ? s3_token_read(s->token_file, &token, err) : LARDER_OK;

    if (rc == LARDER_OK)
        rc = url(&c->fetch, err, "%s", s->url);
    if (rc == LARDER_OK)
        rc = header(&c->fetch, err, "accept: application/json");
    if (rc == LARDER_OK && (token || s->token))
        rc = header(&c->fetch, err, "authorization: %s", token ? token : s->token);
    wipe_free(token);
    return rc ? rc : send_first(c, HTTP_GET, TRIES, 5 * SECOND_NS, err);
}

static int ask_instance(struct s3_creds *c, const struct s3_source *s, struct larder_error *err)
{
    static const char base[] = "latest/meta-data/iam/security-credentials";
    struct fetch *f = &c->fetch;
    int rc;

    if (f->step == 0) {
        if ((rc = url(f, err, "%s/latest/api/token", s->url)) ||
            (rc = header(f, err, "x-aws-ec2-metadata-token-ttl-seconds: 21600")))
            return rc;
        return send_first(c, HTTP_PUT, c->fetches > 1 ? TRIES : 1, SECOND_NS, err);
    }
    rc = f->step == 1 ? url(f, err, "%s/%s/", s->url, base) : url(f, err, "%s/%s/%s", s->url, base, f->role);
    if (rc || (rc = header(f, err, "x-aws-ec2-metadata-token: %s", f->token)))
        return rc;
    return send_first(c, HTTP_GET, TRIES, 2 * SECOND_NS, err);
}

static int form_field(struct buf *b, const char *name, const char *value, struct larder_error *err)
{
    int rc = value ? buf_printf(b, err, "&%s=", name) : LARDER_OK;

    return rc || !value ? rc : s3_encode(value, false, b, err);
}

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static const char *setting(const struct s3_creds *c, const char *name) { return s3_chain_setting(&c->chain, name); }

/* Where STS is, decided when the credentials are opened. */
static int sts_find(struct s3_creds *c, struct larder_error *err)
{
    const char *r = env("AWS_REGION"), *given = env("AWS_ENDPOINT_URL_STS");
    char text[128];

    if (!r && !(r = env("AWS_DEFAULT_REGION")))
        r = setting(c, "region");
    snprintf(c->region, sizeof(c->region), "%s", r ? r : "us-east-1");
    if (strspn(c->region, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != strlen(c->region))
        return err_set(err, LARDER_EINVAL, "region \"%s\": it has letters, digits and '-', as us-east-1", c->region);
    if (!given && !(given = env("AWS_ENDPOINT_URL")) && !(given = setting(c, "sts.endpoint_url")))
        given = setting(c, "endpoint_url");
    if (r)
        snprintf(text, sizeof(text), "https://sts.%s.amazonaws.com%s", c->region, strncmp(r, "cn-", 3) == 0 ? ".cn" : "");
    else
        snprintf(text, sizeof(text), "https://sts.amazonaws.com");
    return s3_endpoint_parse(given ? given : text, &c->sts, err);
}

/* Signs the POST to STS with the key of the stage before. */
static int sign_sts(struct s3_creds *c, const char *content_type, struct larder_error *err)
{
    struct fetch *f = &c->fetch;
    char sha[65], date[17], *authorization = NULL;
    AUTO_BUF struct buf path = BUF_INIT;
    int rc = buf_printf(&path, err, "%s/", c->sts.path);

    if (rc)
        return rc;
    sha256_hex(f->body.data, f->body.len, sha);
    struct s3_sign_input in = {.method = "POST", .host = c->sts.host, .path = (char *)path.data, .query = "", .headers = &content_type,
                               .n_headers = 1, .payload_sha256 = sha, .region = c->region, .service = "sts", .time_s = now_wall_s(),
                               .key = &f->key};
    rc = s3_sign(&in, date, &authorization, err);
    if (rc == LARDER_OK)
        rc = header(f, err, "x-amz-date: %s", date);
    if (rc == LARDER_OK && f->key.token)
        rc = header(f, err, "x-amz-security-token: %s", f->key.token);
    if (rc == LARDER_OK)
        rc = header(f, err, "authorization: %s", authorization);
    free(authorization);
    return rc;
}

static int sts_body(struct fetch *f, const struct s3_source *s, bool web, struct larder_error *err)
{
    char *token = NULL, duration[24];
    int rc = web ? s3_token_read(s->token_file, &token, err) : LARDER_OK;

    snprintf(duration, sizeof(duration), "%" PRIu64, s->duration_s);
    if (rc == LARDER_OK)
        rc = buf_printf(&f->body, err, "Action=%s&Version=2011-06-15", web ? "AssumeRoleWithWebIdentity" : "AssumeRole");
    if (rc == LARDER_OK)
        rc = form_field(&f->body, "RoleArn", s->role_arn, err);
    if (rc == LARDER_OK)
        rc = form_field(&f->body, "RoleSessionName", s->session, err);
    if (rc == LARDER_OK)
        rc = form_field(&f->body, "ExternalId", s->external_id, err);
    if (rc == LARDER_OK && s->duration_s)
        rc = form_field(&f->body, "DurationSeconds", duration, err);
    if (rc == LARDER_OK)
        rc = form_field(&f->body, "WebIdentityToken", token, err);
    wipe_free(token);
    return rc;
}

static int ask_sts(struct s3_creds *c, const struct s3_source *s, bool web, struct larder_error *err)
{
    static const char content_type[] = "content-type: application/x-www-form-urlencoded; charset=utf-8";
    struct fetch *f = &c->fetch;
    int rc = sts_body(f, s, web, err);

    if (rc == LARDER_OK)
        rc = url(f, err, "%s://%s%s/", c->sts.scheme, c->sts.host, c->sts.path);
    if (rc == LARDER_OK)
        rc = header(f, err, "%s", content_type);
    if (rc == LARDER_OK && !web)
        rc = sign_sts(c, content_type, err);
    return rc ? rc : send_first(c, HTTP_POST, TRIES, 10 * SECOND_NS, err);
}

static int stage_begin(struct s3_creds *c, struct larder_error *err)
{
    struct fetch *f = &c->fetch;
    const struct s3_source *s = &c->chain.source[f->stage];

    request_release(f);
    if (s->kind != S3_SOURCE_KEY && s->kind != S3_SOURCE_FILE && !c->http)
        return err_set(err, LARDER_EINVAL, "credentials from %s need requests, and there is nobody to send them", c->chain.where);
    switch (s->kind) {
    case S3_SOURCE_KEY:
        s3_key_release(&f->key);
        return s3_key_copy(&f->key, &s->key, err);
    case S3_SOURCE_FILE:
        s3_key_release(&f->key);
        return s3_profile_key(s, &f->key, err);
    case S3_SOURCE_CONTAINER:
        return ask_container(c, s, err);
    case S3_SOURCE_INSTANCE:
        return ask_instance(c, s, err);
    case S3_SOURCE_WEB:
        return ask_sts(c, s, true, err);
    case S3_SOURCE_ROLE:
        return ask_sts(c, s, false, err);
    }
    return LARDER_EINVAL;
}

/* ---- answers ---- */

static const char *asked(const struct s3_creds *c)
{
    switch (c->chain.source[c->fetch.stage].kind) {
    case S3_SOURCE_CONTAINER:
        return "the container's endpoint";
    case S3_SOURCE_INSTANCE:
        return "the instance's metadata";
    default:
        return "STS";
    }
}

/* The key that a container's endpoint or an instance sends. jansson's words could quote the key: they are not used. */
static int json_key(struct s3_creds *c, struct larder_error *err)
{
    struct fetch *f = &c->fetch;
    const char *id, *secret, *token = NULL, *expires = NULL, *code;
    AUTO_JSON struct json *j = json_parse(f->answer.data, f->answer.len, "", NULL);

    if (!j)
        return err_set(err, LARDER_EREMOTE, "credentials from %s: the answer is not JSON", asked(c));
    if (json_get_str(j, "Code", "", &code, NULL) == LARDER_OK && strcmp(code, "Success") != 0)
        return err_set(err, LARDER_EREMOTE, "credentials from %s: it says %.60s", asked(c), code);
    if (json_get_str(j, "AccessKeyId", "", &id, NULL) || json_get_str(j, "SecretAccessKey", "", &secret, NULL))
        return err_set(err, LARDER_EREMOTE, "credentials from %s: the answer holds no key", asked(c));
    json_get_str(j, "Token", "", &token, NULL); /* absent where the key is not a session's */
    json_get_str(j, "Expiration", "", &expires, NULL);
    s3_key_release(&f->key);
    int rc = s3_key_set(&f->key, id, secret, token, asked(c), err);
    if (rc == LARDER_OK && expires)
        f->key.expires_s = iso_date(expires);
    return rc;
}

static int sts_key(struct s3_creds *c, struct larder_error *err)
{
    struct fetch *f = &c->fetch;
    struct s3_key raw;
    int rc = s3_sts_parse((char *)f->answer.data, f->answer.len, &raw, err);

    if (rc)
        return rc;
    s3_key_release(&f->key);
    rc = s3_key_set(&f->key, raw.id, raw.secret, raw.token, "STS", err);
    if (rc == LARDER_OK)
        f->key.expires_s = raw.expires_s;
    s3_key_release(&raw);
    return rc;
}

/* The first line of the answer, a name or token of the metadata service; malloc'd. */
static int first_line(struct fetch *f, char **out, struct larder_error *err)
{
    size_t n = 0;

    while (n < f->answer.len && f->answer.data[n] > 0x20 && f->answer.data[n] < 0x7f)
        n++;
    wipe_free(*out);
    *out = NULL;
    if (n == 0 || (n < f->answer.len && f->answer.data[n] != '\n' && f->answer.data[n] != '\r'))
        return err_set(err, LARDER_EREMOTE, "credentials from the instance's metadata: the answer is not one of its own");
    *out = bytes_dup(f->answer.data, n);
    return *out ? LARDER_OK : err_nomem(err, n + 1, "credentials");
}

static int instance_answer(struct s3_creds *c, struct larder_error *err)
{
    struct fetch *f = &c->fetch;

    if (f->step == 2)
        return json_key(c, err);
    int rc = first_line(f, f->step == 0 ? &f->token : &f->role, err);
    if (rc == LARDER_OK && f->step == 1 && strchr(f->role, '/'))
        rc = err_set(err, LARDER_EREMOTE, "credentials from the instance's metadata: the role's name is none");
    if (rc)
        return rc;
    f->step++;
    return stage_begin(c, err);
}

static int failed_answer(struct s3_creds *c, struct larder_error *err)
{
    const struct http_transfer *t = &c->fetch.transfer;
    const struct s3_source *s = &c->chain.source[c->fetch.stage];
    struct s3_error e;

    if (t->end == HTTP_CANCELED)
        return err_set(err, LARDER_ECANCELED, "credentials: closing");
    if (t->end == HTTP_NOMEM)
        return err_nomem(err, ANSWER_MAX, "credentials");
    if (t->end != HTTP_DONE && s->kind == S3_SOURCE_INSTANCE && c->fetch.step == 0)
        return err_set(err, LARDER_EREMOTE, "no credentials: none in the environment, nor in the shared files (profile %.40s), nor from a "
                       "container's endpoint, and %.40s does not answer (%s)", c->chain.profile, s->url, http_end_name(t->end));
    if (t->end != HTTP_DONE)
        return err_set(err, t->end == HTTP_LATE || t->end == HTTP_STALLED ? LARDER_ETIMEOUT : LARDER_EREMOTE,
                       "credentials from %s (%s): %s, after %u tries", c->chain.where, asked(c), http_end_name(t->end), c->fetch.tries);
    s3_error_parse(t->text, t->text_len, &e);
    if (t->status == 404 && s->kind == S3_SOURCE_INSTANCE)
        err_set(err, LARDER_EREMOTE, "no credentials: none in the environment or the shared files (profile %.40s), and this instance has no "
                "role: attach one, or set AWS_PROFILE", c->chain.profile);
    else
        err_set(err, LARDER_EREMOTE, "credentials from %s: %s answers %d%s%.60s", c->chain.where, asked(c), t->status, *e.code ? " " : "",
                e.code);
    if (err)
        err->http_status = t->status;
    return LARDER_EREMOTE;
}

static bool worth_a_retry(const struct http_transfer *t)
{
    if (t->end == HTTP_DONE)
        return t->status == 429 || t->status >= 500;
    return t->end != HTTP_CANCELED && t->end != HTTP_TLS && t->end != HTTP_BAD && t->end != HTTP_NOMEM && t->end != HTTP_TOO_LONG;
}

static int stage_answer(struct s3_creds *c, struct larder_error *err)
{
    const struct http_transfer *t = &c->fetch.transfer;

    if (worth_a_retry(t) && c->fetch.tries < c->fetch.tries_max)
        return send_again(c, err);
    if (t->end != HTTP_DONE || t->status != 200)
        return failed_answer(c, err);
    switch (c->chain.source[c->fetch.stage].kind) {
    case S3_SOURCE_CONTAINER:
        return json_key(c, err);
    case S3_SOURCE_INSTANCE:
        return instance_answer(c, err);
    default:
        return sts_key(c, err);
    }
}

/* ---- fetching ---- */

/* Takes over the outcome; whoever waits is told, before closing ends. c may be gone when this returns. */
static void fetch_end(struct s3_creds *c, int rc, const struct larder_error *err)
{
    struct fetch *f = &c->fetch;
    struct s3_key key = f->key;

    memset(&f->key, 0, sizeof(f->key));
    fetch_release(f);
    pthread_mutex_lock(&c->lock);
    if (rc == LARDER_OK) {
        s3_key_release(&c->key);
        c->key = key;
        c->have = true;
        c->failed.code = LARDER_OK;
        c->good_until_s = key.expires_s ? MAX(key.expires_s, now_wall_s() + FRESH_S) : UINT64_MAX;
        s3_wipe(&key, sizeof(key));
    } else {
        s3_key_release(&key);
        c->failed = *err;
        c->failed_until_ns = now_ns() + SECOND_NS;
    }
    struct waiter *w = c->waiters;
    c->waiters = NULL;
    c->fetching = false;
    c->calling++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    while (w) {
        struct waiter *next = w->next;
        w->done(w->user);
        free(w);
        w = next;
    }
    pthread_mutex_lock(&c->lock);
    c->calling--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* Goes on where a stage ended with rc, until a request is under way or all is over. */
static void fetch_walk(struct s3_creds *c, int rc, struct larder_error *err)
{
    while (rc == LARDER_OK && ++c->fetch.stage < c->chain.n) {
        c->fetch.step = 0;
        rc = stage_begin(c, err);
    }
    if (rc != STARTED)
        fetch_end(c, rc, err);
}

static void on_done(struct http_transfer *t)
{
    struct s3_creds *c = t->user;
    struct larder_error err = {0};

    pthread_mutex_lock(&c->lock);
    c->sent = false;
    pthread_mutex_unlock(&c->lock);
    fetch_walk(c, stage_answer(c, &err), &err);
}

/* After fetching was set under the lock, without the lock. */
static void fetch_start(struct s3_creds *c)
{
    struct larder_error err = {0};

    fetch_walk(c, stage_begin(c, &err), &err);
}

/* Under lock: claims the fetch. */
static void claim(struct s3_creds *c)
{
    c->fetching = true;
    c->fetches++;
    if (c->have)
        c->again_ns = now_ns() + AGAIN_S * SECOND_NS;
}

/* ---- the door ---- */

static void creds_free(struct s3_creds *c)
{
    s3_key_release(&c->key);
    s3_chain_release(&c->chain);
    s3_endpoint_release(&c->sts);
    free(c);
}

int s3_creds_open(struct http *http, const char *profile, bool anonymous, struct s3_creds **out, struct larder_error *err)
{
    struct s3_creds *c = calloc(1, sizeof(*c));

    *out = NULL;
    if (!c)
        return err_nomem(err, sizeof(*c), "credentials");
    int rc = s3_chain_resolve(profile, anonymous, &c->chain, err);
    bool sts = false;
    for (size_t i = 0; i < c->chain.n; i++)
        sts |= c->chain.source[i].kind == S3_SOURCE_WEB || c->chain.source[i].kind == S3_SOURCE_ROLE;
    if (rc == LARDER_OK && sts)
        rc = sts_find(c, err);
    if (rc) {
        creds_free(c);
        return rc;
    }
    c->http = http;
    c->anonymous = anonymous;
    c->pid = getpid();
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    *out = c;
    return LARDER_OK;
}

void s3_creds_close(struct s3_creds *c)
{
    if (!c)
        return;
    if (c->pid == getpid()) {
        pthread_mutex_lock(&c->lock);
        c->closing = true;
        if (c->sent)
            http_cancel(c->http, &c->fetch.transfer);
        while (c->fetching || c->calling)
            pthread_cond_wait(&c->changed, &c->lock);
        pthread_mutex_unlock(&c->lock);
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->lock);
        fetch_release(&c->fetch);
    }
    creds_free(c);
}

static int nothing_found(const struct s3_creds *c, struct larder_error *err)
{
    return err_set(err, LARDER_EREMOTE, "no credentials; tried: %s. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
                   c->chain.tried ? c->chain.tried : "nothing");
}

/* Under lock. True: *rc says how it is, a key or an error, and *start whether to begin a fetch all the same; false: one has to be
 * waited for. */
static bool answer(struct s3_creds *c, struct s3_key *key, int *rc, bool *start, struct larder_error *err)
{
    uint64_t now_s = now_wall_s();

    *start = false;
    if (c->closing) {
        *rc = err_set(err, LARDER_ECANCELED, "credentials: closing");
        return true;
    }
    if (c->have && now_s < c->good_until_s) {
        *start = !c->fetching && c->key.expires_s && now_s + REFRESH_S >= c->key.expires_s && now_ns() >= c->again_ns;
        *rc = s3_key_copy(key, &c->key, err);
        return true;
    }
    if (!c->fetching && c->failed.code && now_ns() < c->failed_until_ns) {
        *rc = c->failed.code;
        if (err)
            *err = c->failed;
        return true;
    }
    *start = !c->fetching;
    return false;
}

int s3_creds_get(struct s3_creds *c, struct s3_key *key, struct larder_error *err)
{
    bool start;
    int rc = LARDER_OK;

    memset(key, 0, sizeof(*key));
    if (c->anonymous)
        return LARDER_OK;
    if (c->pid != getpid())
        return err_set(err, LARDER_EFORK, "credentials of the parent used in a forked child");
    if (c->chain.n == 0)
        return nothing_found(c, err);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        bool known = answer(c, key, &rc, &start, err);
        if (start) {
            claim(c);
            pthread_mutex_unlock(&c->lock);
            fetch_start(c);
            pthread_mutex_lock(&c->lock);
        }
        if (known)
            break;
        while (c->fetching)
            pthread_cond_wait(&c->changed, &c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

bool s3_creds_try(struct s3_creds *c, struct s3_key *key, int *rc, struct larder_error *err, void (*done)(void *user), void *user)
{
    bool start, known;

    memset(key, 0, sizeof(*key));
    *rc = LARDER_OK;
    if (c->anonymous)
        return true;
    if (c->pid != getpid() || c->chain.n == 0) {
        *rc = c->pid != getpid() ? err_set(err, LARDER_EFORK, "credentials of the parent used in a forked child") : nothing_found(c, err);
        return true;
    }
    pthread_mutex_lock(&c->lock);
    do { /* a fetch that needs no request is over at once: done is never called from in here */
        known = answer(c, key, rc, &start, err);
        if (start) {
            claim(c);
            pthread_mutex_unlock(&c->lock);
            fetch_start(c);
            pthread_mutex_lock(&c->lock);
        }
    } while (start && !known);
    struct waiter *w = known ? NULL : malloc(sizeof(*w));
    if (w) {
        *w = (struct waiter){done, user, c->waiters};
        c->waiters = w;
    } else if (!known) {
        *rc = err_nomem(err, sizeof(*w), "credentials");
    }
    pthread_mutex_unlock(&c->lock);
    return !w;
}

bool s3_creds_refused(struct s3_creds *c, const struct s3_key *key)
{
    bool fetched = false;

    for (size_t i = 0; i < c->chain.n; i++)
        fetched |= c->chain.source[i].kind != S3_SOURCE_KEY;
    if (!fetched)
        return false;
    pthread_mutex_lock(&c->lock);
    const char *mine = c->key.token ? c->key.token : "", *theirs = key->token ? key->token : "";
    if (c->have && strcmp(c->key.id, key->id) == 0 && strcmp(c->key.secret, key->secret) == 0 && strcmp(mine, theirs) == 0)
        c->have = false;
    pthread_mutex_unlock(&c->lock);
    return true;
}

const char *s3_creds_source(const struct s3_creds *c) { return c->chain.where ? c->chain.where : "none"; }

const char *s3_creds_setting(const struct s3_creds *c, const char *name) { return s3_chain_setting(&c->chain, name); }
