/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_open.c - a remote: from URI, options and environment to where requests go; what went over the network so far.
 *
 * An http(s) URI is taken as a browser would: what is percent-encoded stays so, what may not stand in a path is encoded. It may hold
 * user:password@, which is sent to the server and appears nowhere else. A query has no place in it.
 *
 * Closing: first nobody may ask for credentials any more (closing, under the lock), then credentials go, then HTTP, which ends what is in
 * flight; the callbacks that this calls find everything else still there.
 *
 * Threads: opening and closing one; statistics any.
 */
#include <unistd.h>

#include "tiers/remote_int.h"

static char *format_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *format_text(const char *fmt, ...)
{
    char *text;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : text;
}

bool uri_is_remote(const char *uri)
{
    return uri && (strncasecmp(uri, "s3://", 5) == 0 || strncasecmp(uri, "http://", 7) == 0 || strncasecmp(uri, "https://", 8) == 0);
}

/* ---- options ---- */

static int keep_options(struct remote *r, const struct larder_remote_options *o, struct larder_error *err)
{
    static const struct larder_remote_options none = LARDER_REMOTE_OPTIONS_INIT;
    const char *env_ca = getenv("AWS_CA_BUNDLE");
    r->o = o ? *o : none;
    const char **strings[] = {&r->o.endpoint, &r->o.region, &r->o.profile, &r->o.ca_bundle, &r->o.scratch};
    if (!r->o.ca_bundle && env_ca && *env_ca)
        r->o.ca_bundle = env_ca;
    for (size_t i = 0; i < ARRAY_LEN(strings); i++) {
        r->strings[i] = *strings[i] ? strdup(*strings[i]) : NULL;
        if (*strings[i] && !r->strings[i])
            return err_nomem(err, strlen(*strings[i]), "options");
        *strings[i] = r->strings[i];
    }
    r->o.loops = MIN(MAX(r->o.loops, 1u), 64u);
    r->o.requests_max = r->o.requests_max ? MIN(r->o.requests_max, 4096u) : 64;
    r->o.connect_timeout_ms = r->o.connect_timeout_ms ? r->o.connect_timeout_ms : 10000;
    r->o.stall_timeout_ms = r->o.stall_timeout_ms ? r->o.stall_timeout_ms : 20000;
    r->o.timeout_ms = r->o.timeout_ms ? r->o.timeout_ms : 120000;
    r->o.tries_max = r->o.tries_max ? r->o.tries_max : 10;
    r->o.gap_bytes = r->o.gap_bytes ? r->o.gap_bytes : 256 * KIB;
    r->o.get_bytes = r->o.get_bytes ? r->o.get_bytes : 8 * MIB;
    r->o.scratch_bytes = r->o.scratch_bytes ? r->o.scratch_bytes : 256 * MIB;
    if (r->o.hedge_percent > 20)
        return err_set(err, LARDER_EINVAL, "hedge_percent %u: it is 0 to 20", r->o.hedge_percent);
    return LARDER_OK;
}

static int http_new(struct remote *r, struct larder_error *err)
{
    struct http_options h = {.loops = r->o.loops, .connections = r->o.requests_max, .kept_for_urgent = r->o.requests_max / 4,
                             .connect_ms = r->o.connect_timeout_ms, .stall_ms = r->o.stall_timeout_ms, .ca_bundle = r->o.ca_bundle,
                             .insecure = r->o.insecure};
    return http_open(&h, &r->http, err);
}

/* ---- URIs ---- */

/* No slash at the end, and nothing before '@'. */
static char *clean_uri(const char *uri)
{
    const char *authority = strstr(uri, "://") + 3;
    size_t len = strcspn(authority, "/?#");
    const char *at = memrchr(authority, '@', len);
    char *text = format_text("%.*s%s", (int)(authority - uri), uri, at ? at + 1 : authority);
    for (size_t n = text ? strlen(text) : 0; n > (size_t)(authority - uri) && text[n - 1] == '/'; n--)
        text[n - 1] = 0;
    return text;
}

static int encode_path(const char *path, struct buf *out, struct larder_error *err)
{
    int rc = LARDER_OK;
    for (const unsigned char *c = (const unsigned char *)path; *c && rc == LARDER_OK; c++)
        rc = *c <= 0x20 || *c >= 0x7f || strchr("\"<>\\^`{|}", *c) ? buf_printf(out, err, "%%%02X", *c) : buf_append(out, c, 1, err);
    if (rc == LARDER_OK && (!out->len || out->data[out->len - 1] != '/'))
        rc = buf_append(out, "/", 1, err);
    return rc ? rc : buf_append(out, "", 1, err);
}

static int parse_http(struct remote *r, const char *uri, struct larder_error *err)
{
    bool tls = strncasecmp(uri, "https://", 8) == 0;
    const char *authority = uri + (tls ? 8 : 7);
    size_t len = strcspn(authority, "/?#");
    const char *path = authority + len, *at = memrchr(authority, '@', len), *host = at ? at + 1 : authority;
    size_t host_len = (size_t)(path - host);
    AUTO_BUF struct buf encoded = BUF_INIT;
    if (strpbrk(path, "?#"))
        return err_set(err, LARDER_EINVAL, "%s...: a query has no place in the URL of a dataset", r->uri);
    if (!host_len || host_len > 253 || strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._:[]") < host_len)
        return err_set(err, LARDER_EINVAL, "%s: it has no valid host", r->uri);
    for (const char *c = authority; c < host; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f)
            return err_set(err, LARDER_EINVAL, "%s: user and password have to be percent-encoded", r->uri);
    int rc = encode_path(*path ? path : "/", &encoded, err);
    if (rc != LARDER_OK)
        return rc;
    r->place.scheme = strdup(tls ? "https" : "http");
    r->place.host = strndup(host, host_len);
    r->root = format_text("%s://%.*s", tls ? "https" : "http", (int)len, authority);
    r->path = strdup((char *)encoded.data);
    r->bucket_path = strdup((char *)encoded.data);
    return r->place.scheme && r->place.host && r->root && r->path && r->bucket_path ? LARDER_OK : err_nomem(err, len, "URI");
}

static int parse_s3(struct remote *r, const char *uri, struct larder_error *err)
{
    AUTO_BUF struct buf path = BUF_INIT;
    int rc = s3_creds_open(r->http, r->o.profile, r->o.anonymous, &r->creds, err);
    if (rc == LARDER_OK)
        rc = s3_place_parse(uri, &r->o, r->creds, &r->place, err);
    if (rc == LARDER_OK)
        rc = buf_printf(&path, err, "%s", r->place.base);
    if (rc == LARDER_OK)
        rc = s3_encode(r->place.prefix, true, &path, err);
    if (rc == LARDER_OK)
        rc = buf_append(&path, "", 1, err);
    if (rc != LARDER_OK)
        return rc;
    r->root = format_text("%s://%s", r->place.scheme, r->place.host);
    r->path = strdup((char *)path.data);
    r->bucket_path = strdup(r->place.base);
    r->source = strdup(s3_creds_source(r->creds));
    return r->root && r->path && r->bucket_path && r->source ? LARDER_OK : err_nomem(err, path.len, "URI");
}

/* ---- opening and closing ---- */

static int open_all(struct remote *r, const char *uri, const struct larder_remote_options *o, struct larder_error *err)
{
    if (!uri_is_remote(uri))
        return err_set(err, LARDER_EINVAL, "%.100s: not s3://bucket/prefix or http(s)://host/path", uri ? uri : "(none)");
    r->s3 = strncasecmp(uri, "s3://", 5) == 0;
    r->uri = clean_uri(uri);
    if (!r->uri)
        return err_nomem(err, strlen(uri), "URI");
    int rc = keep_options(r, o, err);
    if (rc == LARDER_OK)
        rc = random_bytes(&r->random, sizeof(r->random), err);
    if (rc == LARDER_OK)
        rc = http_new(r, err);
    if (rc == LARDER_OK)
        rc = r->s3 ? parse_s3(r, uri, err) : parse_http(r, uri, err);
    r->tokens = r->tokens_max = MAX(100.0, 4.0 * r->o.requests_max);
    r->tokens_ns = r->sample_ns = now_ns();
    return rc;
}

int remote_open(const char *uri, const struct larder_remote_options *o, struct remote **out, struct larder_error *err)
{
    *out = NULL;
    struct remote *r = calloc(1, sizeof(*r));
    if (!r)
        return err_nomem(err, sizeof(*r), "remote");
    r->pid = getpid();
    pthread_mutex_init(&r->lock, NULL);
    int rc = open_all(r, uri, o, err);
    if (rc == LARDER_OK)
        *out = r;
    else
        remote_close(r);
    return rc;
}

void remote_close(struct remote *r)
{
    if (!r)
        return;
    if (r->pid == getpid()) {
        pthread_mutex_lock(&r->lock);
        r->closing = true;
        pthread_mutex_unlock(&r->lock);
    }
    s3_creds_close(r->creds);
    http_close(r->http);
    if (r->pid == getpid())
        pthread_mutex_destroy(&r->lock);
    s3_place_release(&r->place);
    for (size_t i = 0; i < ARRAY_LEN(r->strings); i++)
        free(r->strings[i]);
    if (r->root)
        s3_wipe(r->root, strlen(r->root));
    free(r->root);
    free(r->path);
    free(r->bucket_path);
    free(r->source);
    free(r->uri);
    free(r);
}

const char *remote_uri(const struct remote *r) { return r->uri; }
bool remote_writable(const struct remote *r) { return r->s3; }
const struct larder_remote_options *remote_options(const struct remote *r) { return &r->o; }

/* ---- statistics ---- */

static uint64_t load(const _Atomic uint64_t *n) { return atomic_load_explicit((_Atomic uint64_t *)n, memory_order_relaxed); }

void remote_used(struct remote *r, uint64_t bytes) { atomic_fetch_add_explicit(&r->bytes_used, bytes, memory_order_relaxed); }

void remote_stats(const struct remote *r, struct larder_remote_stats *out)
{
    uint64_t *by_cause[CAUSES] = {
        [CAUSE_THROTTLED] = &out->retries_throttled, [CAUSE_SERVER] = &out->retries_server, [CAUSE_CONNECTION] = &out->retries_connection,
        [CAUSE_SHORT] = &out->retries_short, [CAUSE_STALLED] = &out->retries_stalled, [CAUSE_DAMAGED] = &out->retries_damaged,
        [CAUSE_CREDENTIALS] = &out->retries_credentials,
    };
    out->requests = load(&r->requests);
    out->gets = load(&r->gets);
    out->puts = load(&r->puts);
    out->others = load(&r->others);
    out->demand_gets = load(&r->demand_gets);
    out->stream_gets = load(&r->stream_gets);
    out->bytes_fetched = load(&r->bytes_fetched);
    out->bytes_used = load(&r->bytes_used);
    out->bytes_sent = load(&r->bytes_sent);
    out->retries = 0;
    for (size_t i = 0; i < CAUSES; i++)
        out->retries += *by_cause[i] = load(&r->retries[i]);
    out->hedges = load(&r->hedges);
    out->hedges_won = load(&r->hedges_won);
    out->failed = load(&r->failed);
    out->latency_ns_p50 = histogram_at(&r->latency, 500);
    out->latency_ns_p90 = histogram_at(&r->latency, 900);
    out->latency_ns_p99 = histogram_at(&r->latency, 990);
    out->latency_ns_max = histogram_at(&r->latency, 1000);
    out->dollars = (double)out->gets / 1e3 * r->o.price_get + (double)out->puts / 1e3 * r->o.price_put +
                   (double)out->bytes_fetched / 1e9 * r->o.price_gb;
}

/* Bytes a second since the last look that is at least a second old. */
static double rate_now(struct remote *r, uint64_t bytes, uint64_t now)
{
    if (now - r->sample_ns >= 1000000000u) {
        r->rate = (double)(bytes - r->sample_bytes) / ((double)(now - r->sample_ns) / 1e9);
        r->sample_ns = now;
        r->sample_bytes = bytes;
    }
    return r->rate;
}

void remote_state(const struct remote *constant, char out[160])
{
    struct remote *r = (struct remote *)constant; /* the rate is kept from look to look */
    struct http_stats s;
    char trouble[24], retries[64] = "", rate[48];
    if (r->pid != getpid()) {
        snprintf(out, 160, "in a forked child");
        return;
    }
    http_stats(r->http, &s);
    uint64_t now = now_ns(), bytes = s.bytes_in + s.bytes_out;
    pthread_mutex_lock(&r->lock);
    double per_s = rate_now(r, bytes, now);
    bool parked = r->parked;
    snprintf(trouble, sizeof(trouble), "%s", r->trouble);
    pthread_mutex_unlock(&r->lock);
    unsigned live = atomic_load(&r->live), gets = atomic_load(&r->live_gets), n = atomic_load(&r->live_retries);
    if (n)
        snprintf(retries, sizeof(retries), ", %u %s (%s)", n, n == 1 ? "retry" : "retries", trouble);
    if (!s.last_byte_ns)
        snprintf(rate, sizeof(rate), ", nothing received yet");
    else if (now > s.last_byte_ns && now - s.last_byte_ns >= 1000000000u)
        snprintf(rate, sizeof(rate), ", 0 B/s for %.0f s", (double)(now - s.last_byte_ns) / 1e9);
    else
        snprintf(rate, sizeof(rate), ", %.1f MB/s", per_s / 1e6);
    snprintf(out, 160, "%u %s in flight%s%s%s", live, gets == live ? "GETs" : "requests", retries, rate,
             parked ? ", waiting for credentials" : "");
}
