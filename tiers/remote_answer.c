/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_answer.c - what an answer means: good, worth another try, or an error, and in which words.
 *
 * A try is repeated when its failure may pass. What a person has to put right is said at once, with what to look at: which credentials
 * were used and where they came from, the region, the bucket. Nothing that was received is believed before it fits what was asked for:
 * status, Content-Range, length and ETag.
 *
 * Threads: loops, with the remote's lock held. Messages hold no header that was sent and no query.
 */
#include <inttypes.h>

#include "tiers/remote_int.h"

#define SECOND_NS 1000000000ull
#define RETRY_AFTER_MAX_S 60u
#define SKEW_MIN_S 300 /* a 403 without a reason, by a clock that differs by less, is no matter of clocks */

/* ---- headers ---- */

static bool digits(const char **text, uint64_t *out)
{
    uint64_t n = 0;
    const char *s = *text;
    if (*s < '0' || *s > '9')
        return false;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (n > (UINT64_MAX - 9) / 10)
            return false;
        n = n * 10 + (uint64_t)(*s - '0');
    }
    *text = s;
    *out = n;
    return true;
}

bool remote_content_range(const char *text, uint64_t *first, uint64_t *last, uint64_t *total)
{
    const char *s = text;
    uint64_t a = 0, b = 0, size = UINT64_MAX;
    if (strncasecmp(s, "bytes", 5) != 0)
        return false;
    s += 5;
    if (*s != ' ' && *s != '=')
        return false;
    s += strspn(s, " =");
    bool unsatisfied = *s == '*';
    if (unsatisfied)
        s++;
    else if (!digits(&s, &a) || *s++ != '-' || !digits(&s, &b) || b < a)
        return false;
    if (*s++ != '/')
        return false;
    if (*s == '*' && !unsatisfied)
        s++;
    else if (!digits(&s, &size))
        return false;
    s += strspn(s, " ");
    if (*s || (!unsatisfied && size != UINT64_MAX && b >= size))
        return false;
    *first = unsatisfied ? UINT64_MAX : a;
    *last = unsatisfied ? UINT64_MAX : b;
    *total = size;
    return true;
}

uint64_t remote_retry_after_s(const char *text, uint64_t now_s)
{
    uint64_t s;
    const char *at = text + strspn(text, " ");
    if (digits(&at, &s))
        return at[strspn(at, " ")] ? 0 : MIN(s, RETRY_AFTER_MAX_S);
    s = http_date(text);
    return s > now_s ? MIN(s - now_s, RETRY_AFTER_MAX_S) : 0;
}

/* ---- words ---- */

const char *answer_where(const struct remote *r, const struct remote_request *q, char out[160])
{
    size_t room = q->name ? MIN(strlen(q->name), 90u) : 0;
    const char *name = q->name ? q->name + strlen(q->name) - room : "";
    snprintf(out, 160, "%.*s%s%s%s", (int)(158 - room - 4), r->uri, q->name ? "/" : "", q->name && room < strlen(q->name) ? "..." : "", name);
    return out;
}

static void fail(struct verdict *v, const struct http_transfer *t, int code, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void fail(struct verdict *v, const struct http_transfer *t, int code, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    err_set(&v->error, code, "%s", text);
    v->error.http_status = t->status;
    v->kind = VERDICT_FAIL;
}

static void again(struct verdict *v, enum cause cause, const char *trouble, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void again(struct verdict *v, enum cause cause, const char *trouble, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v->what, sizeof(v->what), fmt, ap);
    va_end(ap);
    snprintf(v->trouble, sizeof(v->trouble), "%s", trouble);
    v->cause = cause;
    v->kind = VERDICT_RETRY;
}

static void status_text(const struct http_transfer *t, const struct s3_error *e, char out[80])
{
    snprintf(out, 80, "%d%s%.60s", t->status, e->code[0] ? " " : "", e->code);
}

/* "credentials from environment, region us-east-1" */
static void used(const struct remote *r, char out[160])
{
    if (!r->s3)
        snprintf(out, 160, "%s", strchr(r->root + 8, '@') ? "with user and password of the URL" : "without a password");
    else if (r->o.anonymous)
        snprintf(out, 160, "not signed (anonymous), region %.40s", r->place.region);
    else
        snprintf(out, 160, "credentials from %.90s, region %.40s", r->source, r->place.region);
}

/* ---- what does not come again ---- */

/* Where the bucket is, when the server says that it is elsewhere; "" else. */
static const char *other_region(const struct remote *r, const struct http_transfer *t, const struct s3_error *e)
{
    const char *there = t->in.region[0] ? t->in.region : e->region;
    return r->s3 && there[0] && strcmp(there, r->place.region) != 0 ? there : "";
}

static const char *advice(const struct s3_error *e, const struct remote_request *q)
{
    static const struct { const char *code, *text; } table[] = {
        {"InvalidAccessKeyId", "this server does not know the key id: check the profile and AWS_ENDPOINT_URL"},
        {"SignatureDoesNotMatch", "the secret key does not belong to the key id, or something between here and there changes requests"},
        {"ExpiredToken", "the session has expired: get new credentials"},
        {"ExpiredTokenException", "the session has expired: get new credentials"},
        {"TokenRefreshRequired", "the session has expired: get new credentials"},
        {"InvalidToken", "the session token is not valid: check AWS_SESSION_TOKEN"},
        {"RequestTimeTooSkewed", "the clock of this machine is wrong"},
        {"AccountProblem", "the account is not in order"},
        {"InvalidObjectState", "the object is archived: restore it first"},
        {"QuotaExceeded", "the quota is used up"},
        {"EntityTooLarge", "the server does not take objects of this size"},
        {"RequestPayer", "set requester_pays"},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (strcmp(table[i].code, e->code) == 0)
            return table[i].text;
    return q->method == HTTP_GET || q->method == HTTP_HEAD ? "check that they may read here and that it exists" : "check that they may write here";
}

static void fail_refused(const struct remote *r, const struct remote_request *q, const struct http_transfer *t, const struct s3_error *e,
                         struct verdict *v)
{
    char where[160], with[160], status[80];
    const char *region = other_region(r, t, e);
    answer_where(r, q, where);
    used(r, with);
    status_text(t, e, status);
    if (region[0])
        fail(v, t, LARDER_EREMOTE, "%.120s: %s, %s; bucket is in %.32s: set AWS_REGION", where, status, with, region);
    else if (r->s3)
        fail(v, t, LARDER_EREMOTE, "%.120s: %s, %s; %s", where, status, with, advice(e, q));
    else
        fail(v, t, LARDER_EREMOTE, "%s: %s, %s: the server does not let us read it", where, status, with);
}

static void fail_moved(const struct remote *r, const struct remote_request *q, const struct http_transfer *t, const struct s3_error *e,
                       struct verdict *v)
{
    char where[160], status[80];
    const char *region = other_region(r, t, e);
    answer_where(r, q, where);
    status_text(t, e, status);
    if (region[0])
        fail_refused(r, q, t, e, v);
    else if (e->endpoint[0])
        fail(v, t, LARDER_EREMOTE, "%s: %s: the bucket is at %.100s: check AWS_REGION and AWS_ENDPOINT_URL", where, status, e->endpoint);
    else
        fail(v, t, LARDER_EREMOTE, "%s: %s: moved to %.*s: %s", where, status, (int)MIN(strcspn(t->in.location, "?#"), 120u),
             t->in.location, r->s3 ? "check AWS_REGION and AWS_ENDPOINT_URL" : "use that URL");
}

static void fail_missing(const struct remote *r, const struct remote_request *q, const struct http_transfer *t, const struct s3_error *e,
                         struct verdict *v)
{
    char where[160];
    answer_where(r, q, where);
    if (r->s3 && strcmp(e->code, "NoSuchBucket") == 0)
        fail(v, t, LARDER_EREMOTE, "%s: 404 NoSuchBucket: there is no bucket %.63s at %.80s: check its name, AWS_REGION and AWS_ENDPOINT_URL",
             where, r->place.bucket, r->place.host);
    else
        fail(v, t, LARDER_ENOTFOUND, "%s: not found (404%s%.40s)", where, e->code[0] ? " " : "", e->code);
}

static void fail_replaced(const struct remote *r, const struct remote_request *q, const struct http_transfer *t, struct verdict *v)
{
    char where[160];
    answer_where(r, q, where);
    if (q->create) {
        fail(v, t, LARDER_EEXIST, "%s: it is there already", where);
        v->exists = true;
    } else if (q->if_match) {
        fail(v, t, LARDER_EBUSY, "%s: was replaced while it was read: open the dataset again", where);
    } else {
        fail(v, t, LARDER_EBUSY, "%s: %d: it is not what it was expected to be: somebody else wrote it", where, t->status);
    }
}

/* ---- what may come again ---- */

static bool is_one_of(const char *code, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], code) == 0)
            return true;
    return false;
}
#define IS_ONE_OF(code, ...) is_one_of(code, (const char *const[]){__VA_ARGS__}, ARRAY_LEN(((const char *const[]){__VA_ARGS__})))

/* 400, 401, 403: the clock, the key, or a body that was damaged on its way may be put right. True: that was it. */
static bool judge_refused(struct remote *r, struct call *c, const struct http_transfer *t, const struct s3_error *e, struct verdict *v)
{
    char status[80];
    uint64_t date = http_date(t->in.date);
    int64_t ahead = (int64_t)date - (int64_t)now_wall_s();
    int64_t off = ahead - atomic_load(&r->clock_s); /* by what the time that we signed with was wrong */
    status_text(t, e, status);
    if (!r->s3)
        return false;
    bool skewed = IS_ONE_OF(e->code, "RequestTimeTooSkewed", "RequestExpired") ||
                  (!e->code[0] && t->status == 403 && date && (off > SKEW_MIN_S || off < -SKEW_MIN_S));
    if (skewed && date && c->skewed < 2) {
        again(v, CAUSE_CREDENTIALS, "clock", "%s", status);
        v->skewed = v->at_once = true;
        v->clock_s = ahead;
        return true;
    }
    if (IS_ONE_OF(e->code, "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId") &&
        c->key.id[0] && c->refused < 1 && !r->closing && s3_creds_refused(r->creds, &c->key)) {
        again(v, CAUSE_CREDENTIALS, "credentials", "%s", status);
        v->refused = v->at_once = true;
        return true;
    }
    if (IS_ONE_OF(e->code, "RequestTimeout", "IncompleteBody", "RequestTimeoutException")) {
        again(v, CAUSE_CONNECTION, e->code, "%s", status);
        return true;
    }
    if (IS_ONE_OF(e->code, "BadDigest", "XAmzContentSHA256Mismatch", "InvalidDigest", "XAmzContentChecksumMismatch")) {
        again(v, CAUSE_DAMAGED, "damaged", "%s", status);
        return true;
    }
    return false;
}

static void judge_error(struct remote *r, struct call *c, const struct http_transfer *t, struct verdict *v)
{
    struct s3_error e;
    char status[80], trouble[24], where[160];
    s3_error_parse(t->text, t->text_len, &e);
    status_text(t, &e, status);
    snprintf(trouble, sizeof(trouble), "%d", t->status);
    if (t->status == 429 || t->status == 503 || IS_ONE_OF(e.code, "SlowDown", "RequestLimitExceeded", "Throttling", "ThrottlingException")) {
        again(v, CAUSE_THROTTLED, trouble, "%s", status);
        v->wait_ns = remote_retry_after_s(t->in.retry_after, now_wall_s()) * SECOND_NS;
    } else if (t->status >= 500 && t->status != 501 && t->status != 505) {
        again(v, CAUSE_SERVER, trouble, "%s", status);
        v->wait_ns = remote_retry_after_s(t->in.retry_after, now_wall_s()) * SECOND_NS;
        v->lost = true;
    } else if (t->status == 408 || t->status == 425 || IS_ONE_OF(e.code, "ConditionalRequestConflict", "OperationAborted")) {
        again(v, CAUSE_SERVER, trouble, "%s", status);
    } else if (t->status == 400 || t->status == 401 || t->status == 403) {
        if (!judge_refused(r, c, t, &e, v))
            fail_refused(r, c->q, t, &e, v);
    } else if (t->status / 100 == 3 && t->status != 304) {
        fail_moved(r, c->q, t, &e, v);
    } else if (t->status == 404 || t->status == 410) {
        fail_missing(r, c->q, t, &e, v);
    } else if (t->status == 412 || t->status == 409) {
        fail_replaced(r, c->q, t, v);
    } else if (t->status == 416 && c->q->ranged) {
        fail(v, t, LARDER_ECORRUPT, "%s: it ends before byte %" PRIu64 " (416): the dataset is damaged", answer_where(r, c->q, where),
             c->q->offset + c->q->len);
    } else {
        fail(v, t, LARDER_EREMOTE, "%s: %s%s%.80s", answer_where(r, c->q, where), status, e.message[0] ? ": " : "", e.message);
    }
}

/* ---- bodies ---- */

static void judge_206(struct remote *r, const struct remote_request *q, const struct http_transfer *t, struct verdict *v)
{
    uint64_t first, last, total, end = q->offset + q->len;
    char where[160];
    if (!remote_content_range(t->in.content_range, &first, &last, &total) || first != q->offset || last > end - 1) {
        again(v, CAUSE_SHORT, "wrong range", "range \"%.50s\" for bytes %" PRIu64 "-%" PRIu64, t->in.content_range, q->offset, end - 1);
    } else if (total < end) {
        fail(v, t, LARDER_ECORRUPT, "%s: it has %" PRIu64 " bytes, and bytes up to %" PRIu64 " are wanted: the dataset is damaged",
             answer_where(r, q, where), total, end);
    } else if (last != end - 1 || t->got != q->len || t->end == HTTP_TOO_LONG) {
        again(v, CAUSE_SHORT, "short", "%zu of %zu bytes", t->got, q->len);
    } else {
        atomic_store_explicit(&r->ranges, true, memory_order_relaxed);
        v->kind = VERDICT_OK;
    }
}

/* 200 where a part was asked for: the whole object, by a server that does no ranges, or whatever it was that spoilt the status. It is
 * good when the part begins where the object does and has as many bytes, and no range was ever answered as it should be. */
static void judge_full(struct remote *r, struct call *c, const struct http_transfer *t, struct verdict *v)
{
    const struct remote_request *q = c->q;
    bool ranges = atomic_load_explicit(&r->ranges, memory_order_relaxed);
    char where[160];
    if (!ranges && q->offset == 0 && t->end == HTTP_DONE && t->got == q->len && t->in.content_length == q->len)
        v->kind = VERDICT_OK;
    else if (++c->full_answers >= 3 && !ranges)
        fail(v, t, LARDER_EREMOTE, "%s: the server answers 200 with the whole object to every range: it does not do ranges, use another one",
             answer_where(r, q, where));
    else
        again(v, CAUSE_SHORT, "200 for 206", "200 for 206");
}

static bool is_other_etag(const struct remote_request *q, const struct http_transfer *t)
{
    return q->if_match && t->in.etag[0] && strcmp(q->if_match, t->in.etag) != 0;
}

bool answer_fits(const struct remote *r, const struct remote_request *q, const struct http_transfer *t)
{
    uint64_t first, last, total;
    if (is_other_etag(q, t))
        return false;
    if (t->status == 206)
        return remote_content_range(t->in.content_range, &first, &last, &total) && first == q->offset && last == q->offset + q->len - 1;
    return t->status == 200 && q->offset == 0 && t->in.content_length == q->len &&
           !atomic_load_explicit(&r->ranges, memory_order_relaxed);
}

static void judge_success(struct remote *r, struct call *c, const struct http_transfer *t, struct verdict *v)
{
    const struct remote_request *q = c->q;
    char where[160];
    if (is_other_etag(q, t))
        fail_replaced(r, q, t, v);
    else if (q->ranged && t->status == 206)
        judge_206(r, q, t, v);
    else if (q->ranged && t->status == 200)
        judge_full(r, c, t, v);
    else if (t->end == HTTP_TOO_LONG)
        fail(v, t, LARDER_ECORRUPT, "%s: it is larger than %zu bytes, which is more than it may be", answer_where(r, q, where), q->out_max);
    else if (q->method == HTTP_GET && (t->status != 200 || (q->out && t->in.content_length != UINT64_MAX && t->got != t->in.content_length)))
        again(v, CAUSE_SHORT, "short", "%d with %zu bytes", t->status, t->got);
    else
        v->kind = VERDICT_OK;
}

/* What is there now, where a create finds something: is it ours, written by a try whose answer got lost? */
static bool judge_check(const struct call *c, const struct http_transfer *t, struct verdict *v)
{
    const struct remote_request *q = c->q;
    bool whole = t->end == HTTP_DONE && t->status == 200 && (t->in.content_length == UINT64_MAX || t->got == t->in.content_length);
    if (!whole && !(t->end == HTTP_TOO_LONG && t->status == 200))
        return false;
    if (whole && c->check.len == q->body_len && (!q->body_len || memcmp(c->check.data, q->body, q->body_len) == 0)) {
        v->kind = VERDICT_OK;
        return true;
    }
    return false;
}

void answer_judge(struct remote *r, struct call *c, const struct http_transfer *t, struct verdict *v)
{
    char where[160];
    memset(v, 0, sizeof(*v));
    if (c->checking && t->status == 200 && (t->end == HTTP_DONE || t->end == HTTP_TOO_LONG)) {
        if (!judge_check(c, t, v))
            fail_replaced(r, c->q, t, v);
        return;
    }
    switch (t->end) {
    case HTTP_DONE:
    case HTTP_TOO_LONG:
        if (t->status / 100 == 2)
            judge_success(r, c, t, v);
        else
            judge_error(r, c, t, v);
        return;
    case HTTP_CANCELED:
        fail(v, t, LARDER_ECANCELED, "%s: canceled", answer_where(r, c->q, where));
        return;
    case HTTP_TLS:
        fail(v, t, LARDER_EREMOTE, "%s: TLS with %.60s failed: %.90s; AWS_CA_BUNDLE names other certificates", answer_where(r, c->q, where),
             r->place.host, t->why);
        return;
    case HTTP_NOMEM:
        fail(v, t, LARDER_ENOMEM, "%s: out of memory", answer_where(r, c->q, where));
        return;
    case HTTP_LATE:
        again(v, CAUSE_STALLED, "deadline", "no answer in time");
        v->lost = true;
        return;
    case HTTP_STALLED:
        again(v, CAUSE_STALLED, "stalled", "no byte for %u ms", r->o.stall_timeout_ms);
        v->lost = true;
        return;
    case HTTP_SHORT:
        again(v, CAUSE_SHORT, "short", "%s", http_end_name(t->end));
        v->lost = true;
        return;
    case HTTP_NAME:
    case HTTP_CONNECT:
        again(v, CAUSE_CONNECTION, http_end_name(t->end), "%s: %.90s", http_end_name(t->end), t->why);
        return;
    case HTTP_RESET:
    case HTTP_BAD:
        again(v, CAUSE_CONNECTION, http_end_name(t->end), "%s: %.90s", http_end_name(t->end), t->why);
        v->lost = true;
        return;
    }
}

int answer_give_up(const struct remote *r, const struct call *c, const struct verdict *last, bool late, struct larder_error *err)
{
    static const char *const names[CAUSES] = {"429/503", "5xx", "connection", "short", "stalled", "damaged", "credentials"};
    const struct remote_request *q = c->q;
    char where[160], causes[96] = "";
    size_t n = 0;
    for (size_t i = 0; i < CAUSES; i++)
        if (c->causes[i] && n < sizeof(causes))
            n += (size_t)snprintf(causes + n, sizeof(causes) - n, "%s%u %s", n ? ", " : "", c->causes[i], names[i]);
    answer_where(r, q, where);
    int rc = err_set(err, late ? LARDER_ETIMEOUT : LARDER_EREMOTE, "%.110s: given up after %u %s in %.1f s (%s)%s%.70s", where, q->tries,
                     q->tries == 1 ? "try" : "tries", (double)(now_ns() - q->begin_ns) / 1e9, causes[0] ? causes : late ? "deadline" : "?",
                     last->what[0] ? "; last: " : "", last->what);
    if (err)
        err->http_status = q->status;
    return rc;
}
