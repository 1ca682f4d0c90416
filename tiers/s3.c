/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3.c - from "s3://bucket/prefix", options, environment and profile to where requests go.
 *
 *     AWS, virtual host   https://bucket.s3.region.amazonaws.com/            base "/"
 *     AWS, path           https://s3.region.amazonaws.com/bucket/            base "/bucket/"   (names with dots: TLS)
 *     endpoint E          E/bucket/                                          base "/path-of-E/bucket/"
 *     endpoint, virtual   scheme://bucket.host/                              base "/path-of-E/"
 *
 * The prefix is taken as it is typed, not percent-decoded, as aws and gsutil do: keys may hold '%', '?' and '#'. All that ends up in a URL
 * or a Host header is checked here, so that no later place has to. Messages never repeat what stands before '@': that may be a password.
 *
 * No state: any thread; the environment is read.
 */
#include <arpa/inet.h>

#include "tiers/s3.h"

enum { BUCKET_MIN = 3, BUCKET_MAX_LEN = 63, RELAXED_MAX_LEN = 222, PREFIX_MAX_LEN = 900 }; /* keys: 1,024 bytes; names below need some */

void s3_place_release(struct s3_place *p)
{
    free(p->scheme);
    free(p->host);
    free(p->base);
    free(p->bucket);
    free(p->prefix);
    free(p->region);
    memset(p, 0, sizeof(*p));
}

static bool is_alnum(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }
static bool is_lower(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

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

/* ---- bucket and prefix ---- */

/* RFC 3629; control characters count as bad: no tool shows them, and XML listings cannot hold them. */
static bool is_clean_utf8(const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s;) {
        int more = *s >= 0x20 && *s < 0x7f ? 0 : *s >= 0xc2 && *s <= 0xdf ? 1 : (*s & 0xf0) == 0xe0 ? 2 : *s >= 0xf0 && *s <= 0xf4 ? 3 : -1;
        unsigned char lo = *s == 0xe0 ? 0xa0 : *s == 0xf0 ? 0x90 : 0x80, hi = *s == 0xed ? 0x9f : *s == 0xf4 ? 0x8f : 0xbf;
        if (more < 0)
            return false;
        for (s++; more > 0; more--, s++, lo = 0x80, hi = 0xbf)
            if (*s < lo || *s > hi)
                return false;
    }
    return true;
}

static bool has_dot_part(const char *path)
{
    for (const char *part = path;; part++) {
        size_t len = strcspn(part, "/");
        if ((len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.'))
            return true;
        part += len;
        if (!*part)
            return false;
    }
}

/* Why name is no bucket of AWS's rules, or of the wider ones of other servers; NULL: it is one. */
static const char *bucket_fault(const char *name, bool relaxed)
{
    size_t len = strlen(name);
    struct in_addr ip;

    if (len < BUCKET_MIN || len > (relaxed ? RELAXED_MAX_LEN : BUCKET_MAX_LEN))
        return relaxed ? "has 3 to 222 characters" : "has 3 to 63 characters";
    for (const char *c = name; *c; c++)
        if (!(relaxed ? is_alnum(*c) || *c == '_' : is_lower(*c)) && *c != '-' && *c != '.')
            return relaxed ? "has letters, digits, '-', '_' and '.'" : "has lower-case letters, digits, '-' and '.'";
    if (!is_alnum(name[0]) || !is_alnum(name[len - 1]))
        return "begins and ends with a letter or digit";
    if (strstr(name, "..") || strstr(name, ".-") || strstr(name, "-."))
        return "has no '.' beside another '.' or a '-'";
    if (inet_pton(AF_INET, name, &ip) == 1)
        return "is no IP address";
    return NULL;
}

static int split_uri(const char *uri, struct s3_place *p, struct larder_error *err)
{
    if (!uri || strncasecmp(uri, "s3://", 5) != 0)
        return err_set(err, LARDER_EINVAL, "not an S3 URI: give s3://bucket or s3://bucket/prefix");
    const char *name = uri + 5;
    size_t len = strcspn(name, "/");
    const char *rest = name[len] ? name + len + 1 : "";

    if (memchr(name, '@', len) || (memchr(name, ':', len) && strchr(name, '@')))
        return err_set(err, LARDER_EINVAL, "s3://...@...: credentials do not belong in an URI: set AWS_ACCESS_KEY_ID and "
                       "AWS_SECRET_ACCESS_KEY, or a profile");
    if (!is_clean_utf8(uri))
        return err_set(err, LARDER_EINVAL, "%s: an S3 URI is UTF-8 without control characters", uri);
    if (len == 0)
        return err_set(err, LARDER_EINVAL, "%s: the bucket's name is missing: s3://bucket/prefix", uri);
    if (memchr(name, ':', len))
        return err_set(err, LARDER_EINVAL, "%s: host and port go into the endpoint (AWS_ENDPOINT_URL), s3:// is followed by the bucket", uri);
    if (has_dot_part(rest))
        return err_set(err, LARDER_EINVAL, "%s: '.' and '..' are no folders in a bucket", uri);
    if (strlen(rest) > PREFIX_MAX_LEN)
        return err_set(err, LARDER_EINVAL, "%.100s...: the prefix has more than %d bytes", uri, PREFIX_MAX_LEN);
    p->bucket = strndup(name, len);
    p->prefix = *rest ? format_text("%s%s", rest, rest[strlen(rest) - 1] == '/' ? "" : "/") : strdup("");
    return p->bucket && p->prefix ? LARDER_OK : err_nomem(err, strlen(uri), "URI");
}

/* ---- endpoint ---- */

void s3_endpoint_release(struct s3_endpoint *e)
{
    free(e->scheme);
    free(e->host);
    free(e->path);
    memset(e, 0, sizeof(*e));
}

static bool port_ok(const char *digits, size_t len, unsigned *port)
{
    *port = 0;
    for (size_t i = 0; i < len; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return false;
        *port = *port * 10 + (unsigned)(digits[i] - '0');
        if (*port > 65535)
            return false;
    }
    return *port > 0;
}

static bool name_ok(const char *host, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!is_alnum(host[i]) && host[i] != '-' && host[i] != '.' && host[i] != '_')
            return false;
    return len > 0 && len <= 253 && is_alnum(host[0]) && host[len - 1] != '-';
}

/* Encoded once already: what an URL may hold between slashes. */
static bool path_ok(const char *path)
{
    for (const char *c = path; *c; c++)
        if (!is_alnum(*c) && !strchr("/-._~%!$&'()*+,;=:", *c))
            return false;
    return !has_dot_part(path);
}

/* "host:port" or "[v6]:port" of len bytes: the parts; false: neither. port 0: none. */
static bool split_host(const char *text, size_t len, size_t *host_len, unsigned *port)
{
    char v6[64];
    struct in6_addr ip;
    size_t n;

    *port = 0;
    if (*text == '[') {
        const char *end = memchr(text, ']', len);
        n = end ? (size_t)(end - text) : 0;
        if (n < 2 || n > sizeof(v6))
            return false;
        memcpy(v6, text + 1, n - 1);
        v6[n - 1] = '\0';
        if (inet_pton(AF_INET6, v6, &ip) != 1)
            return false;
        n++;
    } else {
        const char *colon = memchr(text, ':', len);
        n = colon ? (size_t)(colon - text) : len;
        if (!name_ok(text, n))
            return false;
    }
    *host_len = n;
    return n == len || (text[n] == ':' && port_ok(text + n + 1, len - n - 1, port));
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcasecmp(text + n - m, end) == 0;
}

int s3_endpoint_parse(const char *url, struct s3_endpoint *e, struct larder_error *err)
{
    bool tls = strncasecmp(url, "https://", 8) == 0;
    const char *from = tls ? url + 8 : url + 7;
    struct in_addr ip;
    size_t host_len;
    unsigned port;

    memset(e, 0, sizeof(*e));
    if (!tls && strncasecmp(url, "http://", 7) != 0)
        return err_set(err, LARDER_EINVAL, "endpoint: give http://host[:port] or https://host[:port][/path], not \"%.40s\"",
                       strchr(url, '@') ? "..." : url);
    size_t len = strcspn(from, "/?#");
    if (strchr(from, '@'))
        return err_set(err, LARDER_EINVAL, "endpoint: user:password@ does not belong in it: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    const char *path = from + len;
    if (!split_host(from, len, &host_len, &port))
        return err_set(err, LARDER_EINVAL, "endpoint %.80s: it has no valid host and port", url);
    if (!path_ok(path))
        return err_set(err, LARDER_EINVAL, "endpoint %.80s: only a plain path may follow the host", url);
    size_t path_len = strlen(path);
    while (path_len > 0 && path[path_len - 1] == '/')
        path_len--;
    e->scheme = strdup(tls ? "https" : "http");
    e->host = port == 0 || port == (tls ? 443 : 80) ? strndup(from, host_len) : format_text("%.*s:%u", (int)host_len, from, port);
    e->path = strndup(path, path_len);
    if (!e->scheme || !e->host || !e->path)
        return err_nomem(err, strlen(url), "endpoint"); /* the caller releases in any case */
    for (char *c = e->host; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    AUTO_FREE char *bare = strndup(e->host, strcspn(e->host, ":"));
    if (!bare)
        return err_nomem(err, strlen(url), "endpoint");
    e->address = e->host[0] == '[' || inet_pton(AF_INET, bare, &ip) == 1;
    e->aws = ends_with(bare, ".amazonaws.com") || ends_with(bare, ".amazonaws.com.cn");
    return LARDER_OK;
}

static int aws_endpoint(const char *region, struct s3_endpoint *e, struct larder_error *err)
{
    e->scheme = strdup("https");
    e->host = format_text("s3.%s.amazonaws.com%s", region, strncmp(region, "cn-", 3) == 0 ? ".cn" : "");
    e->path = strdup("");
    e->aws = true;
    return e->scheme && e->host && e->path ? LARDER_OK : err_nomem(err, 256, "endpoint");
}

static bool ignore_configured(const struct s3_creds *c)
{
    const char *v = env("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");

    if (!v && c)
        v = s3_creds_setting(c, "ignore_configured_endpoint_urls");
    return v && strcasecmp(v, "true") == 0;
}

static const char *endpoint_of(const struct larder_remote_options *o, const struct s3_creds *c)
{
    const char *url = o && o->endpoint && *o->endpoint ? o->endpoint : NULL;

    if (url || ignore_configured(c))
        return url;
    if (!(url = env("AWS_ENDPOINT_URL_S3")) && !(url = env("AWS_ENDPOINT_URL")) && c && !(url = s3_creds_setting(c, "s3.endpoint_url")))
        url = s3_creds_setting(c, "endpoint_url");
    return url;
}

/* ---- region and addressing ---- */

static int region_of(const struct larder_remote_options *o, const struct s3_creds *c, char **region, struct larder_error *err)
{
    const char *r = o && o->region && *o->region ? o->region : NULL;

    if (!r && !(r = env("AWS_REGION")) && !(r = env("AWS_DEFAULT_REGION")) && c)
        r = s3_creds_setting(c, "region");
    if (!r || !*r)
        r = "us-east-1";
    for (const char *s = r; *s; s++)
        if ((!is_alnum(*s) && *s != '-' && *s != '_') || s - r >= 40)
            return err_set(err, LARDER_EINVAL, "region \"%.40s\": it has letters, digits and '-', as us-east-1", r);
    *region = strdup(r);
    return *region ? LARDER_OK : err_nomem(err, strlen(r), "region");
}

static int addressing_of(const struct larder_remote_options *o, const struct s3_creds *c)
{
    const char *style = c ? s3_creds_setting(c, "s3.addressing_style") : NULL;

    if (o && o->addressing != LARDER_S3_AUTO)
        return o->addressing;
    if (style && strcasecmp(style, "path") == 0)
        return LARDER_S3_PATH;
    return style && strcasecmp(style, "virtual") == 0 ? LARDER_S3_VIRTUAL : LARDER_S3_AUTO;
}

static int place_at(const char *uri, const struct s3_endpoint *e, int addressing, struct s3_place *p, struct larder_error *err)
{
    bool virtual = addressing == LARDER_S3_VIRTUAL || (addressing == LARDER_S3_AUTO && e->aws && !strchr(p->bucket, '.'));
    const char *fault = bucket_fault(p->bucket, !e->aws && !virtual);

    if (addressing < LARDER_S3_AUTO || addressing > LARDER_S3_VIRTUAL)
        return err_set(err, LARDER_EINVAL, "addressing %d: it is 0 (auto), 1 (path) or 2 (virtual host)", addressing);
    if (fault)
        return err_set(err, LARDER_EINVAL, "%.100s: a bucket's name %s", uri, fault);
    if (virtual && e->address)
        return err_set(err, LARDER_EINVAL, "%.80s: endpoint %.60s is an address, which has no virtual hosts: use path addressing", uri, e->host);
    p->scheme = strdup(e->scheme);
    p->host = virtual ? format_text("%s.%s", p->bucket, e->host) : strdup(e->host);
    p->base = virtual ? format_text("%s/", e->path) : format_text("%s/%s/", e->path, p->bucket);
    return p->scheme && p->host && p->base ? LARDER_OK : err_nomem(err, 256, "URI");
}

int s3_place_parse(const char *uri, const struct larder_remote_options *o, const struct s3_creds *c, struct s3_place *p,
                   struct larder_error *err)
{
    struct s3_endpoint e = {.scheme = NULL};
    struct s3_place out = {.requester_pays = o && o->requester_pays};
    const char *url = endpoint_of(o, c);
    int rc = split_uri(uri, &out, err);

    if (rc == LARDER_OK)
        rc = region_of(o, c, &out.region, err);
    if (rc == LARDER_OK)
        rc = url ? s3_endpoint_parse(url, &e, err) : aws_endpoint(out.region, &e, err);
    if (rc == LARDER_OK)
        rc = place_at(uri, &e, addressing_of(o, c), &out, err);
    s3_endpoint_release(&e);
    if (rc)
        s3_place_release(&out);
    else
        *p = out;
    return rc;
}
