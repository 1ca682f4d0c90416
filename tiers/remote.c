/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c - one request, from its first try to done.
 *
 *     remote_start -> send --no credentials yet--> parked --they came--> send
 *                      | build, sign, http_start
 *                      v
 *                 transfer (and, where it is slow, the hedge) --over--> decide -> done
 *                      ^                                                  |
 *                      \---------- back-off, within tries, deadline, budget
 *
 * A wait is a transfer with a not_before, and parking is one that only has a deadline: canceling, deadlines and closing then work the same
 * in every state, and no thread of ours sleeps.
 *
 * Hedging: a small GET that somebody waits for gets a timer at the time within which all but the slowest percent were answered. When it
 * rings, the same request is sent again, into a spare buffer; whichever answer is good first ends the other, and only when both are
 * over are bytes copied and done called. So the caller's memory has one writer.
 *
 * Threads: any starts and cancels; the rest runs on loops. Where it says "lock", that is the remote's. It is taken before locks of
 * http.c and s3_creds.c, and never held when done is called. Creds are asked under it, so that closing knows when nobody does.
 */
#include <unistd.h>

#include "tiers/remote_int.h"

#define MS 1000000ull
#define WAIT_FIRST_NS (100 * MS)
#define WAIT_MAX_NS (20000 * MS)
#define TOKENS_PER_S 10.0
#define TOKENS_PER_SUCCESS 0.5

static const char *const method_names[] = {"GET", "HEAD", "PUT", "POST", "DELETE"};
static const char empty_sha256[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

static void send_try(struct remote *r, struct call *c, uint64_t wait_ns);
static void decide(struct remote *r, struct call *c);

static void count(_Atomic uint64_t *n, uint64_t by) { atomic_fetch_add_explicit(n, by, memory_order_relaxed); }
static uint64_t counted(_Atomic uint64_t *n) { return atomic_load_explicit(n, memory_order_relaxed); }

/* ---- the end ---- */

static void deliver(struct remote *r, struct call *c)
{
    struct remote_request *q = c->q;
    bool get = q->method == HTTP_GET || q->method == HTTP_HEAD;
    q->end_ns = now_ns();
    if (q->rc == LARDER_OK && q->method == HTTP_GET)
        histogram_add(&r->latency, q->end_ns - q->begin_ns);
    if (q->rc == LARDER_EREMOTE || q->rc == LARDER_ETIMEOUT || q->rc == LARDER_ECORRUPT)
        count(&r->failed, 1);
    pthread_mutex_lock(&r->lock);
    q->own = NULL;
    pthread_mutex_unlock(&r->lock);
    atomic_fetch_sub(&r->live, 1);
    atomic_fetch_sub(&r->live_gets, get);
    atomic_fetch_sub(&r->live_retries, c->retries);
    s3_key_release(&c->key);
    if (c->text.data)
        s3_wipe(c->text.data, c->text.len); /* a session's token may be in it */
    buf_release(&c->text);
    buf_release(&c->check);
    free(c);
    q->done(q);
}

static void on_deferred(struct http_transfer *t)
{
    struct remote_request *q = t->user;
    deliver(q->remote, q->own);
}

/* A transfer that ends at once, on a loop's thread, unsent. */
static void defer(struct remote *r, struct remote_request *q, void (*done)(struct http_transfer *t))
{
    memset(&q->transfer, 0, sizeof(q->transfer));
    q->transfer.url = "";
    q->transfer.deadline_ns = 1;
    q->transfer.done = done;
    q->transfer.user = q;
    http_start(r->http, &q->transfer);
}

static void finish(struct remote *r, struct call *c, int rc)
{
    c->q->rc = rc;
    if (rc == LARDER_OK)
        c->q->error = (struct larder_error){0};
    if (c->on_loop) {
        deliver(r, c);
        return;
    }
    pthread_mutex_lock(&r->lock); /* somebody may cancel it meanwhile */
    defer(r, c->q, on_deferred);
    pthread_mutex_unlock(&r->lock);
}

static void finish_canceled(struct remote *r, struct call *c)
{
    char where[160];
    finish(r, c, err_set(&c->q->error, LARDER_ECANCELED, "%s: canceled", answer_where(r, c->q, where)));
}

/* ---- building a try ---- */

struct lines { size_t at[LINES_MAX]; size_t n; };

static int add_line(struct call *c, struct lines *l, struct larder_error *err, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static int add_line(struct call *c, struct lines *l, struct larder_error *err, const char *fmt, ...)
{
    va_list ap;
    char *text;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return err_nomem(err, 256, "request");
    l->at[l->n++] = c->text.len;
    int rc = buf_append(&c->text, text, (size_t)n + 1, err);
    s3_wipe(text, (size_t)n);
    free(text);
    return rc;
}

static int add_url(struct remote *r, struct call *c, struct buf *path, struct larder_error *err)
{
    const struct remote_request *q = c->q;
    bool query = q->query && q->query[0] && !c->checking;
    int rc = buf_printf(path, err, "%s", q->name ? r->path : r->bucket_path);
    if (rc == LARDER_OK && q->name)
        rc = s3_encode(q->name, true, path, err);
    if (rc == LARDER_OK)
        rc = buf_append(path, "", 1, err);
    if (rc == LARDER_OK)
        rc = buf_printf(&c->text, err, "%s%s%s%s", r->root, (char *)path->data, query ? "?" : "", query ? q->query : "");
    return rc ? rc : buf_append(&c->text, "", 1, err);
}

/* A weak ETag never matches If-Match: it is compared when the answer is there. */
static int add_conditions(struct remote *r, struct call *c, struct lines *l, struct larder_error *err)
{
    const struct remote_request *q = c->q;
    int rc = LARDER_OK;
    if (q->ranged)
        rc = add_line(c, l, err, "range: bytes=%llu-%llu", (unsigned long long)q->offset, (unsigned long long)(q->offset + q->len - 1));
    if (rc == LARDER_OK && q->if_match && strncmp(q->if_match, "W/", 2) != 0)
        rc = add_line(c, l, err, "if-match: %s", q->if_match);
    if (rc == LARDER_OK && q->create && !c->checking)
        rc = add_line(c, l, err, "if-none-match: *");
    if (rc == LARDER_OK && r->place.requester_pays)
        rc = add_line(c, l, err, "x-amz-request-payer: requester");
    return rc;
}

/* The body is hashed where TLS does not already see to it that it arrives as it was sent. */
static const char *payload(struct remote *r, struct call *c)
{
    const struct remote_request *q = c->q;
    if (c->checking || !q->body_len)
        return empty_sha256;
    if (strcmp(r->place.scheme, "https") == 0)
        return "UNSIGNED-PAYLOAD";
    if (!c->sha[0])
        sha256_hex(q->body, q->body_len, c->sha);
    return c->sha;
}

/* Signed are the request's own lines and x-amz-*. Not Range and conditions: who changes those on the way is found out by the answer, and
 * gets another try, while a signature that does not match would end the request. */
static int add_signature(struct remote *r, struct call *c, const char *path, uint64_t time_s, struct lines *l, struct larder_error *err)
{
    const struct remote_request *q = c->q;
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++)
        if (strncmp((char *)c->text.data + l->at[i], "x-amz-", 6) == 0)
            c->lines[n++] = (char *)c->text.data + l->at[i];
    for (size_t i = 0; i < q->n_headers && !c->checking; i++)
        c->lines[n++] = q->headers[i];
    const char *sha = payload(r, c);
    struct s3_sign_input in = {.method = method_names[c->checking ? HTTP_GET : q->method], .host = r->place.host, .path = path,
                               .query = q->query && !c->checking ? q->query : "", .headers = c->lines, .n_headers = n,
                               .payload_sha256 = sha, .region = r->place.region, .service = "s3", .time_s = time_s, .key = &c->key};
    char date[17], *authorization = NULL;
    int rc = sha[0] ? s3_sign(&in, date, &authorization, err) : err_set(err, LARDER_EIO, "OpenSSL refuses SHA-256");
    if (rc == LARDER_OK)
        rc = add_line(c, l, err, "x-amz-date: %s", date);
    if (rc == LARDER_OK)
        rc = add_line(c, l, err, "x-amz-content-sha256: %s", sha);
    if (rc == LARDER_OK && c->key.token)
        rc = add_line(c, l, err, "x-amz-security-token: %s", c->key.token);
    if (rc == LARDER_OK)
        rc = add_line(c, l, err, "authorization: %s", authorization);
    free(authorization);
    return rc;
}

static void take_results(struct remote_request *q, const struct http_transfer *t)
{
    uint64_t first, last, total = UINT64_MAX;
    q->status = t->status;
    snprintf(q->etag, sizeof(q->etag), "%s", t->in.etag);
    q->modified_s = http_date(t->in.last_modified);
    if (t->status == 206 && remote_content_range(t->in.content_range, &first, &last, &total))
        q->object_size = total;
    else if (!q->ranged) /* 200 for a range may be anything */
        q->object_size = t->method == HTTP_GET || t->method == HTTP_HEAD ? t->in.content_length : UINT64_MAX;
}

static void on_body(struct http_transfer *t, const void *data, size_t len)
{
    struct remote_request *q = t->user;
    struct call *c = q->own;
    if (t->got == 0 && (c->fits = answer_fits(q->remote, q, t)))
        take_results(q, t);
    if (c->fits)
        q->sink(q, t->got, data, len);
}

static void aim(struct call *c, struct http_transfer *t, uint64_t not_before_ns)
{
    const struct remote_request *q = c->q;
    memset(t, 0, sizeof(*t));
    t->method = c->checking ? HTTP_GET : q->method;
    t->url = (char *)c->text.data;
    t->headers = c->lines;
    t->n_headers = c->n_lines;
    t->not_before_ns = not_before_ns;
    t->deadline_ns = c->deadline_ns;
    t->urgent = q->priority == REMOTE_DEMAND;
    t->user = c->q;
    if (c->checking) {
        c->check.len = 0;
        t->out = &c->check;
        t->out_max = q->body_len;
        return;
    }
    t->body = q->body;
    t->body_len = q->body_len;
    if (q->ranged) {
        t->buf = q->sink ? NULL : q->buf;
        t->sink = q->sink ? on_body : NULL;
        t->buf_len = q->len;
    } else if (q->out) {
        q->out->len = c->out_len;
        t->out = q->out;
        t->out_max = q->out_max;
    }
}

static int build(struct remote *r, struct call *c, uint64_t wait_ns, struct larder_error *err)
{
    const struct remote_request *q = c->q;
    AUTO_BUF struct buf path = BUF_INIT;
    struct lines l = {.n = 0};
    c->text.len = 0;
    int rc = add_url(r, c, &path, err);
    if (rc == LARDER_OK)
        rc = add_conditions(r, c, &l, err);
    if (rc == LARDER_OK && c->key.id[0]) {
        uint64_t time_s = now_wall_s() + wait_ns / 1000000000u + (uint64_t)atomic_load(&r->clock_s);
        rc = add_signature(r, c, (char *)path.data, time_s, &l, err);
    }
    c->n_lines = 0;
    for (size_t i = 0; i < l.n && rc == LARDER_OK; i++)
        c->lines[c->n_lines++] = (char *)c->text.data + l.at[i];
    for (size_t i = 0; i < q->n_headers && rc == LARDER_OK && !c->checking; i++)
        c->lines[c->n_lines++] = q->headers[i];
    return rc;
}

/* ---- hedging ---- */

static void count_try(struct remote *r, const struct remote_request *q, const struct http_transfer *t)
{
    uint64_t n = 1 + t->retried;
    if (!t->begin_ns)
        return;
    bool list = q->method == HTTP_GET && !q->name;
    bool get = t->method == HTTP_HEAD || (t->method == HTTP_GET && !list);
    count(&r->requests, n);
    count(get ? &r->gets : q->method == HTTP_DELETE ? &r->others : &r->puts, n);
    if (get)
        count(q->priority == REMOTE_DEMAND ? &r->demand_gets : &r->stream_gets, n);
    count(&r->retries[CAUSE_CONNECTION], t->retried);
    count(&r->bytes_fetched, t->got);
    count(&r->bytes_sent, t->sent);
}

static bool may_hedge(const struct remote *r, const struct call *c)
{
    const struct remote_request *q = c->q;
    return r->o.hedge_percent && !q->sink && q->method == HTTP_GET && q->ranged && q->priority == REMOTE_DEMAND && q->len <= HEDGE_BYTES_MAX;
}

/* After how long a GET belongs to the slowest percent; 0: not known. */
static uint64_t slow_ns(struct remote *r)
{
    return counted(&r->hedgeable) < HEDGE_SAMPLES_MIN ? 0 : histogram_at(&r->small, 1000 - 10 * r->o.hedge_percent);
}

/* No more than the percent that is wanted, and none where requests queue: there a second one makes it worse. Under lock. */
static bool hedge_allowed(struct remote *r)
{
    struct http_stats s;
    http_stats(r->http, &s);
    return r->spares < HEDGES_MAX && s.in_flight < r->o.requests_max &&
           counted(&r->hedges) * 100 < (counted(&r->hedgeable) + 800) * r->o.hedge_percent;
}

static void on_hedge(struct http_transfer *t)
{
    struct remote_request *q = t->user;
    struct remote *r = q->remote;
    struct call *c = q->own;
    struct verdict v = {.kind = VERDICT_FAIL};
    count_try(r, q, t);
    pthread_mutex_lock(&r->lock);
    if (c->hedge_state == HEDGE_SENT)
        answer_judge(r, c, t, &v);
    if (c->hedge_state == HEDGE_SENT && !t->begin_ns)
        count(&r->hedges, UINT64_MAX); /* one less: the first answer came before this one had left */
    bool again = c->hedge_state == HEDGE_TIMER && t->end == HTTP_LATE && !c->main_over && !c->canceled && !r->closing && hedge_allowed(r);
    c->spare = again ? malloc(q->len) : c->spare;
    if (again && c->spare) {
        aim(c, t, 0);
        t->buf = c->spare;
        t->done = on_hedge;
        c->hedge_state = HEDGE_SENT;
        r->spares++;
        count(&r->hedges, 1);
        http_start(r->http, t);
        pthread_mutex_unlock(&r->lock);
        return;
    }
    c->hedge_state = HEDGE_NONE;
    c->hedge_good = v.kind == VERDICT_OK;
    bool last = c->main_over;
    if (!last && c->hedge_good)
        http_cancel(r->http, &q->transfer);
    pthread_mutex_unlock(&r->lock);
    if (last)
        decide(r, c);
}

/* Starts the clock after which the try that is being sent counts as slow. Under lock. */
static void hedge_prepare(struct remote *r, struct call *c, uint64_t from_ns)
{
    uint64_t slow = may_hedge(r, c) ? slow_ns(r) : 0;
    if (!slow || from_ns + slow >= c->deadline_ns)
        return;
    memset(&c->hedge, 0, sizeof(c->hedge));
    c->hedge.url = "";
    c->hedge.not_before_ns = c->hedge.deadline_ns = from_ns + slow;
    c->hedge.done = on_hedge;
    c->hedge.user = c->q;
    c->hedge_state = HEDGE_TIMER;
    http_start(r->http, &c->hedge);
}

/* ---- sending ---- */

static void on_main(struct http_transfer *t)
{
    struct remote_request *q = t->user;
    struct remote *r = q->remote;
    struct call *c = q->own;
    c->on_loop = true;
    count_try(r, q, t);
    pthread_mutex_lock(&r->lock);
    answer_judge(r, c, t, &c->verdict);
    c->main_over = true;
    bool last = c->hedge_state == HEDGE_NONE;
    if (!last && (c->hedge_state == HEDGE_TIMER || c->verdict.kind != VERDICT_RETRY))
        http_cancel(r->http, &c->hedge);
    pthread_mutex_unlock(&r->lock);
    if (last)
        decide(r, c);
}

static void unpark(struct remote *r, struct call *c)
{
    if (!c->parked)
        return;
    c->parked = false;
    if (c->parked_prev)
        c->parked_prev->parked_next = c->parked_next;
    else
        r->parked = c->parked_next;
    if (c->parked_next)
        c->parked_next->parked_prev = c->parked_prev;
}

static void on_parked(struct http_transfer *t)
{
    struct remote_request *q = t->user;
    struct remote *r = q->remote;
    struct call *c = q->own;
    c->on_loop = true;
    pthread_mutex_lock(&r->lock);
    unpark(r, c);
    pthread_mutex_unlock(&r->lock);
    if (t->end == HTTP_LATE) {
        snprintf(c->verdict.what, sizeof(c->verdict.what), "waiting for credentials from %.60s", r->source);
        finish(r, c, answer_give_up(r, c, &c->verdict, true, &q->error));
    } else if (t->end == HTTP_NOMEM) {
        finish(r, c, err_nomem(&q->error, 0, "request"));
    } else {
        send_try(r, c, 0); /* which sees whether it was canceled */
    }
}

/* Credentials came, or none will: those who wait look again. On a loop's thread, or where credentials are closed. */
static void on_creds(void *user)
{
    struct remote *r = user;
    pthread_mutex_lock(&r->lock);
    for (struct call *c; (c = r->parked);) {
        unpark(r, c);
        http_cancel(r->http, &c->q->transfer);
    }
    pthread_mutex_unlock(&r->lock);
}

/* Under lock, by which on_creds comes after this. */
static void park(struct remote *r, struct call *c)
{
    struct http_transfer *t = &c->q->transfer;
    memset(t, 0, sizeof(*t));
    t->url = "";
    t->not_before_ns = t->deadline_ns = c->deadline_ns;
    t->done = on_parked;
    t->user = c->q;
    c->parked = true;
    c->parked_prev = NULL;
    c->parked_next = r->parked;
    if (r->parked)
        r->parked->parked_prev = c;
    r->parked = c;
    http_start(r->http, t);
}

enum got_key { KEY_HERE, KEY_LATER, KEY_FAILED, KEY_CANCELED };

static enum got_key get_key(struct remote *r, struct call *c)
{
    enum got_key got = KEY_HERE;
    int rc = LARDER_OK;
    s3_key_release(&c->key);
    pthread_mutex_lock(&r->lock);
    if (r->closing || c->canceled)
        got = KEY_CANCELED;
    else if (r->creds && !s3_creds_try(r->creds, &c->key, &rc, &c->q->error, on_creds, r)) {
        park(r, c);
        got = KEY_LATER;
    } else if (rc != LARDER_OK) {
        c->q->rc = rc;
        got = KEY_FAILED;
    }
    pthread_mutex_unlock(&r->lock);
    return got;
}

static void send_try(struct remote *r, struct call *c, uint64_t wait_ns)
{
    struct remote_request *q = c->q;
    enum got_key got = get_key(r, c);
    if (got == KEY_LATER)
        return;
    if (got != KEY_HERE) {
        if (got == KEY_FAILED)
            finish(r, c, q->rc);
        else
            finish_canceled(r, c);
        return;
    }
    int rc = build(r, c, wait_ns, &q->error);
    if (rc != LARDER_OK) {
        finish(r, c, rc);
        return;
    }
    pthread_mutex_lock(&r->lock);
    bool canceled = r->closing || c->canceled;
    if (!canceled) {
        uint64_t at = now_ns() + wait_ns;
        c->main_over = c->hedge_good = false;
        q->tries++;
        aim(c, &q->transfer, wait_ns ? at : 0);
        q->transfer.done = on_main;
        if (!c->checking)
            hedge_prepare(r, c, at);
        http_start(r->http, &q->transfer);
    }
    pthread_mutex_unlock(&r->lock);
    if (canceled)
        finish_canceled(r, c);
}

/* ---- deciding ---- */

/* The budget as it is now. Under lock. */
static double tokens_now(struct remote *r)
{
    uint64_t now = now_ns();
    r->tokens = MIN(r->tokens_max, r->tokens + (double)(now - r->tokens_ns) / 1e9 * TOKENS_PER_S);
    r->tokens_ns = now;
    return r->tokens;
}

static uint64_t random_below(struct remote *r, uint64_t n)
{
    uint64_t z = (r->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % n;
}

/* How long the next try waits: the server's wish and full jitter, or until the budget has a token for it. */
static uint64_t back_off(struct remote *r, const struct call *c, const struct verdict *v)
{
    unsigned doublings = MIN(c->retries, 10u);
    pthread_mutex_lock(&r->lock);
    uint64_t wait = v->at_once ? 0 : v->wait_ns + random_below(r, MIN(WAIT_FIRST_NS << doublings, WAIT_MAX_NS));
    double left = tokens_now(r) - 1;
    r->tokens = left;
    snprintf(r->trouble, sizeof(r->trouble), "%s", v->trouble);
    pthread_mutex_unlock(&r->lock);
    return left < 0 ? MAX(wait, (uint64_t)(-left / TOKENS_PER_S * 1e9)) : wait;
}

static void retry(struct remote *r, struct call *c)
{
    struct remote_request *q = c->q;
    struct verdict *v = &c->verdict;
    bool late = q->transfer.end == HTTP_LATE;
    c->causes[v->cause]++;
    c->lost |= v->lost && q->create && !c->checking;
    c->refused += v->refused;
    c->skewed += v->skewed;
    if (v->skewed)
        atomic_store(&r->clock_s, v->clock_s);
    if (late || q->tries >= r->o.tries_max) {
        finish(r, c, answer_give_up(r, c, v, late, &q->error));
        return;
    }
    uint64_t wait = back_off(r, c, v);
    if (now_ns() + wait >= c->deadline_ns) {
        finish(r, c, answer_give_up(r, c, v, true, &q->error));
        return;
    }
    c->retries++;
    atomic_fetch_add(&r->live_retries, 1);
    count(&r->retries[v->cause], 1);
    send_try(r, c, wait);
}

static void succeed(struct remote *r, struct call *c, const struct http_transfer *t)
{
    take_results(c->q, t);
    if (may_hedge(r, c) && t->status / 100 == 2) {
        histogram_add(&r->small, t->end_ns - c->q->transfer.begin_ns);
        count(&r->hedgeable, 1);
    }
    pthread_mutex_lock(&r->lock);
    r->tokens = MIN(r->tokens_max, tokens_now(r) + TOKENS_PER_SUCCESS);
    pthread_mutex_unlock(&r->lock);
    finish(r, c, LARDER_OK);
}

/* All transfers of the try are over. */
static void decide(struct remote *r, struct call *c)
{
    struct remote_request *q = c->q;
    struct verdict *v = &c->verdict;
    bool hedged = c->hedge_good && v->kind != VERDICT_OK;
    c->on_loop = true;
    c->lost |= q->create && q->transfer.retried; /* the dead connection may have carried it */
    q->status = q->transfer.status;
    if (hedged) {
        memcpy(q->buf, c->spare, q->len);
        count(&r->hedges_won, 1);
    }
    if (c->spare) {
        free(c->spare);
        c->spare = NULL;
        pthread_mutex_lock(&r->lock);
        r->spares--;
        pthread_mutex_unlock(&r->lock);
    }
    if (hedged)
        succeed(r, c, &c->hedge);
    else if (v->kind == VERDICT_OK)
        succeed(r, c, &q->transfer);
    else if (v->kind == VERDICT_RETRY)
        retry(r, c);
    else if (v->exists && c->lost && !c->checking) {
        c->checking = true;
        send_try(r, c, 0);
    } else if (c->checking && v->error.code == LARDER_ENOTFOUND) { /* and now it is gone */
        c->checking = false;
        v->cause = CAUSE_SERVER;
        snprintf(v->what, sizeof(v->what), "it is there, and then it is not");
        retry(r, c);
    } else {
        q->error = v->error;
        finish(r, c, v->error.code);
    }
}

/* ---- the door ---- */

static void on_refused(struct http_transfer *t)
{
    struct remote_request *q = t->user;
    q->done(q);
}

static int check_request(const struct remote *r, const struct remote_request *q, struct larder_error *err)
{
    char where[160];
    if (!r->s3 && q->method != HTTP_GET && q->method != HTTP_HEAD)
        return err_set(err, LARDER_EINVAL, "%s: it is read only: write to s3://", answer_where(r, q, where));
    if (q->ranged && q->len && ((!q->buf && !q->sink) || q->offset + q->len < q->offset))
        return err_set(err, LARDER_EINVAL, "%s: a range without memory, or beyond 2^64", answer_where(r, q, where));
    return LARDER_OK;
}

void remote_start(struct remote *r, struct remote_request *q)
{
    q->rc = LARDER_OK;
    q->error = (struct larder_error){0};
    q->status = 0;
    q->etag[0] = 0;
    q->object_size = UINT64_MAX;
    q->modified_s = 0;
    q->tries = 0;
    q->begin_ns = now_ns();
    q->end_ns = 0;
    q->remote = r;
    q->own = NULL;
    if (r->pid != getpid()) {
        q->rc = err_set(&q->error, LARDER_EFORK, "%s: opened by another process: open it again in the child", r->uri);
        q->done(q);
        return;
    }
    q->rc = check_request(r, q, &q->error);
    struct call *c = q->rc ? NULL : calloc(1, sizeof(*c) + (LINES_MAX + q->n_headers) * sizeof(c->lines[0]));
    if (!c) {
        if (q->rc == LARDER_OK)
            q->rc = err_nomem(&q->error, sizeof(*c), "request");
        defer(r, q, on_refused);
        return;
    }
    c->q = q;
    c->deadline_ns = q->deadline_ns ? q->deadline_ns : q->begin_ns + r->o.timeout_ms * MS;
    c->out_len = q->out ? q->out->len : 0;
    atomic_fetch_add(&r->live, 1);
    atomic_fetch_add(&r->live_gets, q->method == HTTP_GET || q->method == HTTP_HEAD);
    pthread_mutex_lock(&r->lock);
    q->own = c;
    pthread_mutex_unlock(&r->lock);
    if (q->ranged && q->len == 0)
        finish(r, c, LARDER_OK);
    else
        send_try(r, c, 0);
}

void remote_cancel(struct remote *r, struct remote_request *q)
{
    if (r->pid != getpid())
        return;
    pthread_mutex_lock(&r->lock);
    struct call *c = q->own;
    if (c) {
        c->canceled = true;
        http_cancel(r->http, &q->transfer);
        if (c->hedge_state != HEDGE_NONE)
            http_cancel(r->http, &c->hedge);
    }
    pthread_mutex_unlock(&r->lock);
}

struct run { pthread_mutex_t lock; pthread_cond_t over; size_t left; };

static void on_run(struct remote_request *q)
{
    struct run *run = q->user;
    pthread_mutex_lock(&run->lock);
    if (--run->left == 0)
        pthread_cond_signal(&run->over); /* under the lock: the waiter takes run away once it is unlocked */
    pthread_mutex_unlock(&run->lock);
}

int remote_run(struct remote *r, struct remote_request *q, size_t n, struct larder_error *err)
{
    struct run run = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, n};
    for (size_t i = 0; i < n; i++) {
        q[i].done = on_run;
        q[i].user = &run;
        remote_start(r, &q[i]);
    }
    pthread_mutex_lock(&run.lock);
    while (run.left)
        pthread_cond_wait(&run.over, &run.lock);
    pthread_mutex_unlock(&run.lock);
    for (size_t i = 0; i < n; i++)
        if (q[i].rc != LARDER_OK) {
            if (err)
                *err = q[i].error;
            return q[i].rc;
        }
    return LARDER_OK;
}

bool remote_damaged(struct remote *r)
{
    if (r->pid != getpid())
        return false;
    pthread_mutex_lock(&r->lock);
    bool may = tokens_now(r) >= 1;
    if (may)
        r->tokens -= 1;
    pthread_mutex_unlock(&r->lock);
    if (may)
        count(&r->retries[CAUSE_DAMAGED], 1);
    return may;
}
