/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_sign.c - AWS signature version 4, percent-encoding, digests and dates; the only user of OpenSSL. Pure: no I/O, no clock.
 *
 *     canonical request = method, path, query, headers (lower case, sorted, trimmed), their names, SHA-256 of the body
 *     string to sign    = algorithm, time, scope, SHA-256 of the canonical request
 *     signature         = HMAC chain over date, region, service, "aws4_request", then the string to sign
 *
 * Path and query are taken as they are sent: encoded once, never normalised, for S3 allows keys with "//", "." and a leading slash.
 * The host header, x-amz-date, x-amz-content-sha256 (for service s3) and x-amz-security-token (where the key has a token) are signed by
 * themselves: the caller sends them, with the values used here.
 *
 * Where OpenSSL refuses a digest (MD5 on FIPS systems) its text is "": no Content-MD5 is sent then, and no ETag is compared.
 *
 * Derived keys and secrets are wiped before memory is given back. No state: any thread.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <time.h>

#include "tiers/s3.h"

enum { SHA_LEN = 32, MD5_LEN = 16 };

void s3_key_release(struct s3_key *k)
{
    if (k->token) {
        OPENSSL_cleanse(k->token, strlen(k->token));
        free(k->token);
    }
    OPENSSL_cleanse(k, sizeof(*k));
}

int s3_key_copy(struct s3_key *to, const struct s3_key *from, struct larder_error *err)
{
    char *token = from->token ? strdup(from->token) : NULL;

    if (from->token && !token)
        return err_nomem(err, strlen(from->token) + 1, "session token");
    *to = *from;
    to->token = token;
    return LARDER_OK;
}

void s3_wipe(void *data, size_t len) { OPENSSL_cleanse(data, len); }

/* ---- text ---- */

static bool unreserved(unsigned char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_' || c == '~';
}

int s3_encode(const char *text, bool slash, struct buf *out, struct larder_error *err)
{
    static const char digits[] = "0123456789ABCDEF";
    int rc = buf_reserve(out, 3 * strlen(text) + 1, err);

    if (rc)
        return rc;
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        if (unreserved(*s) || (slash && *s == '/')) {
            out->data[out->len++] = *s;
        } else {
            out->data[out->len++] = '%';
            out->data[out->len++] = (uint8_t)digits[*s >> 4];
            out->data[out->len++] = (uint8_t)digits[*s & 15];
        }
    }
    out->data[out->len] = '\0';
    return LARDER_OK;
}

/* ---- digests ---- */

/* The digest in hexadecimal, or "" where OpenSSL fails. */
static void digest_hex(const EVP_MD *md, const void *data, size_t len, char *out)
{
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned int n = 0;

    *out = '\0';
    if (EVP_Digest(len ? data : "", len, raw, &n, md, NULL) == 1)
        hex_encode(raw, n, out);
}

void sha256_hex(const void *data, size_t len, char out[65]) { digest_hex(EVP_sha256(), data, len, out); }

void md5_hex(const void *data, size_t len, char out[33]) { digest_hex(EVP_md5(), data, len, out); }

void md5_base64(const void *data, size_t len, char out[25])
{
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned int n = 0;

    out[0] = '\0';
    if (EVP_Digest(len ? data : "", len, raw, &n, EVP_md5(), NULL) == 1 && n == MD5_LEN)
        EVP_EncodeBlock((unsigned char *)out, raw, MD5_LEN); /* 24 characters and NUL */
}

static bool hmac(const void *key, size_t key_len, const char *text, size_t len, unsigned char out[SHA_LEN])
{
    unsigned int n = SHA_LEN;

    return HMAC(EVP_sha256(), key, (int)key_len, (const unsigned char *)text, len, out, &n) && n == SHA_LEN;
}

/* ---- headers ---- */

struct header { char *name, *value; /* value: trimmed, inner runs of spaces are one */ size_t order; };
struct header_list { struct header *items; size_t n; };

static void headers_release(struct header_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->items[i].name);
        if (l->items[i].value)
            OPENSSL_cleanse(l->items[i].value, strlen(l->items[i].value)); /* one may be the session token */
        free(l->items[i].value);
    }
    free(l->items);
}

static void squeeze(char *s)
{
    char *to = s;

    for (; *s; s++)
        if (*s != ' ' && *s != '\t')
            *to++ = *s;
        else if (s[1] && s[1] != ' ' && s[1] != '\t')
            *to++ = ' ';
    *to = '\0';
}

/* items has room. */
static int add(struct header_list *l, const char *name, size_t name_len, const char *value, struct larder_error *err)
{
    struct header *h = &l->items[l->n];

    h->order = l->n++;
    h->name = strndup(name, name_len);
    h->value = strdup(value + strspn(value, " \t"));
    if (!h->name || !h->value)
        return err_nomem(err, name_len + strlen(value), "signature");
    for (char *c = h->name; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    squeeze(h->value);
    return LARDER_OK;
}

static int by_name(const void *a, const void *b)
{
    const struct header *x = a, *y = b;
    int c = strcmp(x->name, y->name);

    return c ? c : x->order < y->order ? -1 : x->order > y->order;
}

static int collect(const struct s3_sign_input *in, const char *amz_date, struct header_list *l, struct larder_error *err)
{
    l->items = calloc(in->n_headers + 4, sizeof(*l->items));
    if (!l->items)
        return err_nomem(err, (in->n_headers + 4) * sizeof(*l->items), "signature");
    int rc = add(l, "host", 4, in->host, err);
    if (rc == LARDER_OK)
        rc = add(l, "x-amz-date", 10, amz_date, err);
    if (rc == LARDER_OK && strcmp(in->service, "s3") == 0)
        rc = add(l, "x-amz-content-sha256", 20, in->payload_sha256, err);
    if (rc == LARDER_OK && in->key->token)
        rc = add(l, "x-amz-security-token", 20, in->key->token, err);
    for (size_t i = 0; i < in->n_headers && rc == LARDER_OK; i++) {
        const char *colon = strchr(in->headers[i], ':');
        if (!colon)
            return err_set(err, LARDER_EINVAL, "a header to be signed has no ':'");
        rc = add(l, in->headers[i], (size_t)(colon - in->headers[i]), colon + 1, err);
    }
    if (rc == LARDER_OK)
        qsort(l->items, l->n, sizeof(*l->items), by_name);
    return rc;
}

/* ---- the signature ---- */

static int list_names(const struct header_list *l, struct buf *out, struct larder_error *err)
{
    int rc = LARDER_OK;

    for (size_t i = 0; i < l->n && rc == LARDER_OK; i++)
        if (i == 0 || strcmp(l->items[i].name, l->items[i - 1].name) != 0)
            rc = buf_printf(out, err, "%s%s", i ? ";" : "", l->items[i].name);
    return rc;
}

/* Values of one name that came in several lines are one, joined by commas. */
static int canonical(const struct s3_sign_input *in, const struct header_list *l, const char *names, struct buf *out,
                     struct larder_error *err)
{
    int rc = buf_printf(out, err, "%s\n%s\n%s\n", in->method, in->path, in->query ? in->query : "");

    for (size_t i = 0; i < l->n && rc == LARDER_OK; i++) {
        bool again = i > 0 && strcmp(l->items[i].name, l->items[i - 1].name) == 0;
        bool last = i + 1 == l->n || strcmp(l->items[i].name, l->items[i + 1].name) != 0;
        rc = buf_printf(out, err, "%s%s%s%s", again ? "," : l->items[i].name, again ? "" : ":", l->items[i].value, last ? "\n" : "");
    }
    return rc ? rc : buf_printf(out, err, "\n%s\n%s", names, in->payload_sha256);
}

/* False: OpenSSL failed. */
static bool signature(const struct s3_sign_input *in, const char *amz_date, const char *to_sign, size_t len, char out[65])
{
    char first[4 + sizeof(in->key->secret)];
    unsigned char k[SHA_LEN];
    int n = snprintf(first, sizeof(first), "AWS4%s", in->key->secret);
    bool ok = hmac(first, (size_t)n, amz_date, 8, k) && hmac(k, SHA_LEN, in->region, strlen(in->region), k) &&
              hmac(k, SHA_LEN, in->service, strlen(in->service), k) && hmac(k, SHA_LEN, "aws4_request", 12, k) &&
              hmac(k, SHA_LEN, to_sign, len, k);

    if (ok)
        hex_encode(k, SHA_LEN, out);
    OPENSSL_cleanse(first, sizeof(first));
    OPENSSL_cleanse(k, sizeof(k));
    return ok;
}

static int format_date(uint64_t time_s, char out[17], struct larder_error *err)
{
    time_t t = (time_t)time_s;
    struct tm tm;
    char text[32];

    if (!gmtime_r(&t, &tm) || strftime(text, sizeof(text), "%Y%m%dT%H%M%SZ", &tm) != 16)
        return err_set(err, LARDER_EINVAL, "the clock's time cannot be signed: set the date of this machine");
    memcpy(out, text, 17);
    return LARDER_OK;
}

static int sign_with(const struct s3_sign_input *in, const char *amz_date, const struct header_list *l, struct buf *request,
                     char **authorization, struct larder_error *err)
{
    AUTO_BUF struct buf names = BUF_INIT, to_sign = BUF_INIT, out = BUF_INIT;
    char digest[65], sign[65];
    int rc = list_names(l, &names, err);

    if (rc == LARDER_OK)
        rc = canonical(in, l, (char *)names.data, request, err);
    if (rc)
        return rc;
    sha256_hex(request->data, request->len, digest);
    rc = buf_printf(&to_sign, err, "AWS4-HMAC-SHA256\n%s\n%.8s/%s/%s/aws4_request\n%s", amz_date, amz_date, in->region, in->service,
                    digest);
    if (rc)
        return rc;
    if (!*digest || !signature(in, amz_date, (char *)to_sign.data, to_sign.len, sign))
        return err_set(err, LARDER_ENOMEM, "OpenSSL could not compute SHA-256: out of memory, or its configuration forbids it");
    rc = buf_printf(&out, err, "AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request, SignedHeaders=%s, Signature=%s", in->key->id,
                    amz_date, in->region, in->service, (char *)names.data, sign);
    if (rc == LARDER_OK) {
        *authorization = (char *)out.data;
        out.data = NULL;
    }
    return rc;
}

int s3_sign(const struct s3_sign_input *in, char amz_date[17], char **authorization, struct larder_error *err)
{
    struct header_list l = {NULL, 0};
    struct buf request = BUF_INIT;

    *authorization = NULL;
    int rc = format_date(in->time_s, amz_date, err);
    if (rc == LARDER_OK)
        rc = collect(in, amz_date, &l, err);
    if (rc == LARDER_OK)
        rc = sign_with(in, amz_date, &l, &request, authorization, err);
    if (request.data)
        OPENSSL_cleanse(request.data, request.len); /* holds the session token */
    buf_release(&request);
    headers_release(&l);
    return rc;
}

/* ---- dates ---- */

/* Days since 1970-01-01 in the Gregorian calendar; m 1..12. */
static int64_t days(int64_t y, int64_t m, int64_t d)
{
    y -= m <= 2;
    int64_t era = y / 400, yoe = y - era * 400; /* y > 0 here */
    int64_t doy = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

static uint64_t seconds(int y, int m, int d, int hour, int min, int sec)
{
    static const int length[12] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};

    if (y < 1970 || y > 9999 || m < 1 || m > 12 || d < 1 || d > length[m - 1] || hour < 0 || hour > 23 || min < 0 || min > 59 ||
        sec < 0 || sec > 60)
        return 0;
    return (uint64_t)(days(y, m, d) * 86400 + hour * 3600 + min * 60 + sec);
}

static int month_of(const char *name)
{
    static const char names[] = "JanFebMarAprMayJunJulAugSepOctNovDec";

    for (int i = 0; i < 12; i++)
        if (strncmp(name, names + 3 * i, 3) == 0)
            return i + 1;
    return 0;
}

uint64_t http_date(const char *text)
{
    int d, y, hour, min, sec;
    char month[4], zone[4];

    if (sscanf(text, "%*3[A-Za-z], %2d %3[A-Za-z] %4d %2d:%2d:%2d %3[A-Z]", &d, month, &y, &hour, &min, &sec, zone) == 7 &&
        strcmp(zone, "GMT") == 0)
        return seconds(y, month_of(month), d, hour, min, sec);
    if (sscanf(text, "%*9[A-Za-z], %2d-%3[A-Za-z]-%2d %2d:%2d:%2d %3[A-Z]", &d, month, &y, &hour, &min, &sec, zone) == 7 && y >= 0 &&
        strcmp(zone, "GMT") == 0)
        return seconds(y + (y < 70 ? 2000 : 1900), month_of(month), d, hour, min, sec);
    if (sscanf(text, "%*3[A-Za-z] %3[A-Za-z] %2d %2d:%2d:%2d %4d", month, &d, &hour, &min, &sec, &y) == 6)
        return seconds(y, month_of(month), d, hour, min, sec);
    return 0;
}

/* "", "Z", ".123Z", "+02:00": the offset in seconds; false: something else. */
static bool zone_of(const char *s, int *offset)
{
    int hour, min, end = 0;

    *offset = 0;
    if (*s == '.' || *s == ',')
        s += 1 + strspn(s + 1, "0123456789");
    if (!*s || strcmp(s, "Z") == 0 || strcmp(s, "z") == 0)
        return true;
    if ((*s != '+' && *s != '-') || sscanf(s + 1, "%2d:%2d%n", &hour, &min, &end) != 2 || s[1 + end])
        return false;
    *offset = (hour * 3600 + min * 60) * (*s == '-' ? -1 : 1);
    return hour >= 0 && hour < 24 && min >= 0 && min < 60;
}

uint64_t iso_date(const char *text)
{
    int y, m, d, hour, min, sec, end = 0, offset;

    if (sscanf(text, "%4d-%2d-%2d%*1[Tt ]%2d:%2d:%2d%n", &y, &m, &d, &hour, &min, &sec, &end) != 6 &&
        sscanf(text, "%4d%2d%2d%*1[Tt]%2d%2d%2d%n", &y, &m, &d, &hour, &min, &sec, &end) != 6)
        return 0;
    uint64_t t = seconds(y, m, d, hour, min, sec);
    if (t == 0 || !zone_of(text + end, &offset) || (int64_t)t < offset)
        return 0;
    return (uint64_t)((int64_t)t - offset);
}
