/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_server.h - a bucket in memory behind http_server.h, for tests of what writes to one. Include it once, before TEST_MAIN.
 *
 *     struct s3_server z; s3_server_start(&z, "bkt");  ... z.options, z.uri ...  s3_server_stop(&z);
 *
 * It knows PUT, GET (ranges), HEAD, DELETE, If-None-Match, If-Match, Content-MD5, multipart uploads, ListObjectsV2 by pages of page_max,
 * and ListMultipartUploads. Every request's signature is computed again from what came over the wire: a wrong one is 403.
 *
 * fault, called on the server's thread before a request is carried out, may have it answered by a status (FAULT_BEFORE), or carried out
 * and its answer lost (FAULT_LOSE) or replaced by a status (FAULT_AFTER).
 */
#ifndef S3_SERVER_H
#define S3_SERVER_H

#include "tests/unit/http_server.h"
#include "tiers/remote.h"

enum { OBJECTS_MAX = 4096 };

struct s3_part { uint8_t *data; size_t len; char md5[33]; };
struct s3_object { char *key, *type; uint8_t *data; size_t len; char etag[80]; };
struct s3_upload { char *key; char id[32]; struct s3_part parts[16]; };
struct s3_request { const char *method, *key, *query; const struct request *raw; };
struct s3_fault { enum { FAULT_NONE, FAULT_BEFORE, FAULT_AFTER, FAULT_LOSE } how; int status; const char *code; };

struct s3_server {
    struct server http;
    const char *bucket;
    char endpoint[64], uri[128];
    struct larder_remote_options options;
    struct s3_fault (*fault)(struct s3_server *z, const struct s3_request *q);
    bool ignores_conditions, odd_etags, url_encodes;
    size_t page_max;
    pthread_mutex_t lock; /* guards what follows */
    struct s3_object objects[OBJECTS_MAX];
    size_t n_objects;
    struct s3_upload uploads[64];
    size_t n_uploads;
    unsigned ids;
    void *garbage[65536]; /* bodies of answers, kept until the end */
    size_t n_garbage;
    char log[65536]; /* "METHOD key?query\n" */
    size_t body_max; /* the largest body that came */
    unsigned parts_at_once, parts_max;
};

static void *s3_keep(struct s3_server *z, void *p)
{
    if (z->n_garbage == ARRAY_LEN(z->garbage))
        abort();
    return z->garbage[z->n_garbage++] = p;
}

static struct s3_object *s3_find(struct s3_server *z, const char *key)
{
    for (size_t i = 0; i < z->n_objects; i++)
        if (strcmp(z->objects[i].key, key) == 0)
            return &z->objects[i];
    return NULL;
}

static int s3_by_key(const void *a, const void *b)
{
    return strcmp(((const struct s3_object *)a)->key, ((const struct s3_object *)b)->key);
}

static void s3_store(struct s3_server *z, const char *key, uint8_t *data, size_t len, const char *etag)
{
    struct s3_object *o = s3_find(z, key);

    if (!o) {
        if (z->n_objects == OBJECTS_MAX)
            abort();
        o = &z->objects[z->n_objects++];
        *o = (struct s3_object){.key = strdup(key)};
    } else {
        s3_keep(z, o->data);
    }
    o->data = data;
    o->len = len;
    snprintf(o->etag, sizeof(o->etag), "%s", etag);
    qsort(z->objects, z->n_objects, sizeof(z->objects[0]), s3_by_key);
}

static void s3_delete(struct s3_server *z, struct s3_object *o)
{
    s3_keep(z, o->key);
    s3_keep(z, o->data);
    memmove(o, o + 1, (size_t)(z->objects + z->n_objects - o - 1) * sizeof(*o));
    z->n_objects--;
}

/* ---- small things ---- */

static void s3_decode(const char *from, size_t len, char *out)
{
    for (size_t i = 0; i < len; i++) {
        uint8_t byte;
        if (from[i] == '%' && i + 2 < len && hex_decode(from + i + 1, 2, &byte, 1)) {
            *out++ = (char)byte;
            i += 2;
        } else {
            *out++ = from[i];
        }
    }
    *out = '\0';
}

/* The decoded value of a query's argument; NULL: absent. */
static const char *s3_argument(struct s3_server *z, const char *query, const char *name)
{
    size_t n = strlen(name);

    for (const char *at = query; *at; at += strcspn(at, "&"), at += *at == '&')
        if (strncmp(at, name, n) == 0 && at[n] == '=') {
            size_t len = strcspn(at + n + 1, "&");
            char *out = s3_keep(z, malloc(len + 1));
            s3_decode(at + n + 1, len, out);
            return out;
        }
    return NULL;
}

__attribute__((format(printf, 4, 5))) static void s3_answer(struct s3_server *z, struct answer *a, int status, const char *fmt, ...)
{
    char *text;
    va_list ap;

    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        abort();
    va_end(ap);
    a->status = status;
    a->body = s3_keep(z, text);
    a->len = strlen(text);
}

static void s3_error_answer(struct s3_server *z, struct answer *a, int status, const char *code)
{
    s3_answer(z, a, status, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>it says so</Message></Error>", code);
}

static void s3_head_cut(const struct request *q, struct answer *a)
{
    if (strcmp(q->method, "HEAD") == 0)
        a->send_body = 0;
}

/* ---- signatures ---- */

/* Signs what came, with the headers it says were signed; the Authorization has to be the same. */
static bool s3_signed(struct s3_server *z, const struct request *q, const char *path, const char *query)
{
    static const struct s3_key key = {.id = "AKIDEXAMPLE", .secret = "s3cr3t/secret"};
    char given[1024], names[512] = "", date[32], sha[80], want_sha[65], lines[16][1200];
    const char *headers[16];
    char *authorization = NULL;
    size_t n = 0;

    if (!request_header(q, "Authorization", given, sizeof(given)) || !request_header(q, "x-amz-date", date, sizeof(date)) ||
        !request_header(q, "x-amz-content-sha256", sha, sizeof(sha)))
        return false;
    char *from = strstr(given, "SignedHeaders=");
    if (!from || sscanf(from, "SignedHeaders=%511[^,]", names) != 1)
        return false;
    for (char *save, *name = strtok_r(names, ";", &save); name && n < 16; name = strtok_r(NULL, ";", &save)) {
        char value[1100];
        if (strcmp(name, "host") == 0 || strcmp(name, "x-amz-date") == 0 || strcmp(name, "x-amz-content-sha256") == 0)
            continue;
        if (!request_header(q, name, value, sizeof(value)))
            return false;
        snprintf(lines[n], sizeof(lines[n]), "%s: %s", name, value);
        headers[n] = lines[n];
        n++;
    }
    sha256_hex(q->body, q->body_len, want_sha);
    if (strcmp(sha, "UNSIGNED-PAYLOAD") != 0 && strcmp(sha, want_sha) != 0)
        return false;
    char again[17];
    struct s3_sign_input in = {.method = q->method, .host = z->endpoint + strlen("http://"), .path = path, .query = query, .headers = headers,
                               .n_headers = n, .payload_sha256 = sha, .region = "us-east-1", .service = "s3", .time_s = iso_date(date),
                               .key = &key};
    bool same = s3_sign(&in, again, &authorization, NULL) == LARDER_OK && strcmp(authorization, given) == 0;
    free(authorization);
    return same;
}

/* ---- objects ---- */

static void s3_put(struct s3_server *z, const struct s3_request *q, struct answer *a)
{
    char hex[33], etag[80], v[128];

    if (!z->ignores_conditions && request_header(q->raw, "If-None-Match", v, sizeof(v)) && s3_find(z, q->key)) {
        s3_error_answer(z, a, 412, "PreconditionFailed");
        return;
    }
    md5_hex(q->raw->body, q->raw->body_len, hex);
    snprintf(etag, sizeof(etag), "\"%s\"", hex);
    uint8_t *data = malloc(q->raw->body_len + 1);
    memcpy(data, q->raw->body, q->raw->body_len);
    s3_store(z, q->key, data, q->raw->body_len, etag);
    answer_header(a, "ETag: %s", etag);
}

static void s3_get(struct s3_server *z, const struct s3_request *q, struct answer *a)
{
    struct s3_object *o = s3_find(z, q->key);

    if (!o) {
        s3_error_answer(z, a, 404, "NoSuchKey");
        s3_head_cut(q->raw, a);
        return;
    }
    z->http.object = o->data;
    z->http.object_len = o->len;
    z->http.etag = o->etag;
    server_object(&z->http, q->raw, a);
}

/* ---- multipart uploads ---- */

static struct s3_upload *s3_find_upload(struct s3_server *z, const char *id)
{
    for (size_t i = 0; id && i < z->n_uploads; i++)
        if (strcmp(z->uploads[i].id, id) == 0)
            return &z->uploads[i];
    return NULL;
}

static void s3_drop_upload(struct s3_server *z, struct s3_upload *u)
{
    for (size_t i = 0; i < ARRAY_LEN(u->parts); i++)
        s3_keep(z, u->parts[i].data);
    s3_keep(z, u->key);
    *u = z->uploads[--z->n_uploads];
}

static void s3_put_part(struct s3_server *z, const struct s3_request *q, struct s3_upload *u, unsigned number, struct answer *a)
{
    if (number < 1 || number > ARRAY_LEN(u->parts)) {
        s3_error_answer(z, a, 400, "InvalidPart");
        return;
    }
    struct s3_part *p = &u->parts[number - 1];
    s3_keep(z, p->data);
    p->data = malloc(q->raw->body_len + 1);
    memcpy(p->data, q->raw->body, q->raw->body_len);
    p->len = q->raw->body_len;
    md5_hex(p->data, p->len, p->md5);
    answer_header(a, "ETag: \"%s%s\"", z->odd_etags ? "x" : "", p->md5);
}

static void s3_complete(struct s3_server *z, const struct s3_request *q, struct s3_upload *u, struct answer *a)
{
    char *body = s3_keep(z, strndup((const char *)q->raw->body, q->raw->body_len)), want[200], hex[33], etag[80];
    uint8_t md5s[16 * ARRAY_LEN(u->parts)];
    size_t n = 0, total = 0;

    for (; n < ARRAY_LEN(u->parts) && u->parts[n].data; n++) {
        snprintf(want, sizeof(want), "<Part><PartNumber>%zu</PartNumber><ETag>\"%s%s\"</ETag></Part>", n + 1, z->odd_etags ? "x" : "",
                 u->parts[n].md5);
        hex_decode(u->parts[n].md5, 32, md5s + 16 * n, 16);
        total += u->parts[n].len;
        body = body ? strstr(body, want) : NULL;
        if (!body || (n > 0 && u->parts[n - 1].len < 5u << 20)) {
            s3_error_answer(z, a, 400, body ? "EntityTooSmall" : "InvalidPart");
            return;
        }
    }
    uint8_t *data = malloc(total + 1);
    for (size_t i = 0, at = 0; i < n; at += u->parts[i++].len)
        memcpy(data + at, u->parts[i].data, u->parts[i].len);
    md5_hex(md5s, 16 * n, hex);
    snprintf(etag, sizeof(etag), z->odd_etags ? "\"odd-%s\"" : "\"%s-%zu\"", hex, n);
    s3_store(z, q->key, data, total, etag);
    s3_drop_upload(z, u);
    s3_answer(z, a, 200, "<CompleteMultipartUploadResult><ETag>%s</ETag></CompleteMultipartUploadResult>", etag);
}

static void s3_initiate(struct s3_server *z, const struct s3_request *q, struct answer *a)
{
    struct s3_upload *u = &z->uploads[z->n_uploads++];

    *u = (struct s3_upload){.key = strdup(q->key)};
    snprintf(u->id, sizeof(u->id), "2~id/%u+=", z->ids++);
    s3_answer(z, a, 200, "<InitiateMultipartUploadResult><UploadId>%s</UploadId></InitiateMultipartUploadResult>", u->id);
}

/* ---- listings ---- */

static void s3_append_key(struct s3_server *z, struct buf *b, const char *key)
{
    if (z->url_encodes) {
        CHECK(s3_encode(key, true, b, NULL) == LARDER_OK);
        return;
    }
    for (; *key; key++)
        CHECK(buf_printf(b, NULL, *key == '&' ? "&amp;" : *key == '<' ? "&lt;" : "%c", *key) == LARDER_OK);
}

static void s3_list(struct s3_server *z, const struct s3_request *q, struct answer *a)
{
    const char *prefix = s3_argument(z, q->query, "prefix"), *token = s3_argument(z, q->query, "continuation-token");
    struct buf b = BUF_INIT;
    size_t n = 0, i = token ? strtoul(token, NULL, 10) : 0;

    buf_printf(&b, NULL, "<?xml version=\"1.0\"?><ListBucketResult>%s", z->url_encodes ? "<EncodingType>url</EncodingType>" : "");
    for (; i < z->n_objects && n < z->page_max; i++) {
        if (strncmp(z->objects[i].key, prefix ? prefix : "", prefix ? strlen(prefix) : 0) != 0)
            continue;
        buf_printf(&b, NULL, "<Contents><Key>");
        s3_append_key(z, &b, z->objects[i].key);
        buf_printf(&b, NULL, "</Key><LastModified>2015-10-21T07:28:00.000Z</LastModified><Size>%zu</Size></Contents>", z->objects[i].len);
        n++;
    }
    if (i < z->n_objects)
        buf_printf(&b, NULL, "<IsTruncated>true</IsTruncated><NextContinuationToken>%zu/+=</NextContinuationToken>", i);
    buf_printf(&b, NULL, "</ListBucketResult>");
    a->body = s3_keep(z, b.data);
    a->len = b.len;
}

static void s3_list_uploads(struct s3_server *z, const struct s3_request *q, struct answer *a)
{
    const char *prefix = s3_argument(z, q->query, "prefix"), *marker = s3_argument(z, q->query, "upload-id-marker");
    struct buf b = BUF_INIT;
    size_t i = 0;

    for (; marker && i < z->n_uploads; i++)
        if (strcmp(z->uploads[i].id, marker) == 0)
            break;
    i += marker != NULL;
    buf_printf(&b, NULL, "<ListMultipartUploadsResult>");
    for (size_t n = 0; i < z->n_uploads && n < z->page_max; i++) {
        if (strncmp(z->uploads[i].key, prefix, strlen(prefix)) != 0)
            continue;
        buf_printf(&b, NULL, "<Upload><Key>%s</Key><UploadId>%s</UploadId><Initiated>2015-10-21T07:28:00.000Z</Initiated></Upload>",
                   z->uploads[i].key, z->uploads[i].id);
        if (++n == z->page_max && i + 1 < z->n_uploads)
            buf_printf(&b, NULL, "<IsTruncated>true</IsTruncated><NextKeyMarker>%s</NextKeyMarker><NextUploadIdMarker>%s</NextUploadIdMarker>",
                       z->uploads[i].key, z->uploads[i].id);
    }
    buf_printf(&b, NULL, "</ListMultipartUploadsResult>");
    a->body = s3_keep(z, b.data);
    a->len = b.len;
}

/* ---- requests ---- */

static void s3_act(struct s3_server *z, const struct s3_request *q, struct answer *a)
{
    const char *id = s3_argument(z, q->query, "uploadId"), *part = s3_argument(z, q->query, "partNumber");
    struct s3_upload *u = s3_find_upload(z, id);
    struct s3_object *o;

    if (id && (!u || strcmp(u->key, q->key) != 0))
        s3_error_answer(z, a, 404, "NoSuchUpload");
    else if (strcmp(q->method, "PUT") == 0 && part)
        s3_put_part(z, q, u, (unsigned)atoi(part), a);
    else if (strcmp(q->method, "PUT") == 0)
        s3_put(z, q, a);
    else if (strcmp(q->method, "POST") == 0 && id)
        s3_complete(z, q, u, a);
    else if (strcmp(q->method, "POST") == 0 && strcmp(q->query, "uploads=") == 0)
        s3_initiate(z, q, a);
    else if (strcmp(q->method, "DELETE") == 0 && id)
        s3_drop_upload(z, u), a->status = 204;
    else if (strcmp(q->method, "DELETE") == 0)
        (o = s3_find(z, q->key)) ? s3_delete(z, o) : (void)0, a->status = 204;
    else if (!*q->key && s3_argument(z, q->query, "list-type"))
        s3_list(z, q, a);
    else if (!*q->key && s3_argument(z, q->query, "uploads"))
        s3_list_uploads(z, q, a);
    else
        s3_get(z, q, a);
}

static bool s3_md5_right(const struct request *q)
{
    char given[64], want[25];

    if (!request_header(q, "Content-MD5", given, sizeof(given)))
        return true;
    md5_base64(q->body, q->body_len, want);
    return strcmp(given, want) == 0;
}

static void s3_handle(struct server *s, const struct request *raw, struct answer *a)
{
    struct s3_server *z = s->user;
    char path[2048], key[2048];
    const char *query = strchr(raw->path, '?');
    size_t path_len = query ? (size_t)(query - raw->path) : strlen(raw->path), bucket = strlen(z->bucket);

    pthread_mutex_lock(&z->lock);
    snprintf(path, sizeof(path), "%.*s", (int)path_len, raw->path);
    query = query ? query + 1 : "";
    if (path[0] != '/' || strncmp(path + 1, z->bucket, bucket) != 0 || path[1 + bucket] != '/') {
        s3_error_answer(z, a, 404, "NoSuchBucket");
        pthread_mutex_unlock(&z->lock);
        return;
    }
    s3_decode(path + bucket + 2, strlen(path + bucket + 2), key);
    struct s3_request q = {raw->method, key, query, raw};
    struct s3_fault f = z->fault ? z->fault(z, &q) : (struct s3_fault){FAULT_NONE, 0, NULL};
    size_t at = strlen(z->log);
    snprintf(z->log + at, sizeof(z->log) - at, "%s %s%s%s\n", raw->method, key, *query ? "?" : "", query);
    z->body_max = raw->body_len > z->body_max ? raw->body_len : z->body_max;
    if (!s3_signed(z, raw, path, query))
        s3_error_answer(z, a, 403, "SignatureDoesNotMatch");
    else if (f.how == FAULT_BEFORE)
        s3_error_answer(z, a, f.status, f.code);
    else if (!s3_md5_right(raw))
        s3_error_answer(z, a, 400, "BadDigest");
    else
        s3_act(z, &q, a);
    if (f.how == FAULT_AFTER) {
        a->headers[0] = '\0';
        s3_error_answer(z, a, f.status, f.code);
    } else if (f.how == FAULT_LOSE) {
        a->send = 0;
        a->then = THEN_RESET;
    }
    s3_head_cut(raw, a);
    pthread_mutex_unlock(&z->lock);
}

TEST_UNUSED static void s3_server_start(struct s3_server *z, const char *bucket)
{
    memset(z, 0, sizeof(*z));
    z->bucket = bucket;
    z->page_max = 1000;
    pthread_mutex_init(&z->lock, NULL);
    z->http.handle = s3_handle;
    z->http.user = z;
    server_start(&z->http);
    snprintf(z->endpoint, sizeof(z->endpoint), "http://127.0.0.1:%d", z->http.port);
    snprintf(z->uri, sizeof(z->uri), "s3://%s/pre fix/ds", bucket);
    z->options = (struct larder_remote_options)LARDER_REMOTE_OPTIONS_INIT;
    z->options.endpoint = z->endpoint;
    z->options.region = "us-east-1";
    setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "s3cr3t/secret", 1);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("AWS_PROFILE");
}

TEST_UNUSED static void s3_server_stop(struct s3_server *z)
{
    server_stop(&z->http);
    while (z->n_uploads)
        s3_drop_upload(z, &z->uploads[0]);
    while (z->n_objects)
        s3_delete(z, &z->objects[0]);
    for (size_t i = 0; i < z->n_garbage; i++)
        free(z->garbage[i]);
    pthread_mutex_destroy(&z->lock);
}

/* What was asked since the last call. */
TEST_UNUSED static const char *s3_server_log(struct s3_server *z)
{
    static char text[sizeof(z->log)];

    pthread_mutex_lock(&z->lock);
    memcpy(text, z->log, sizeof(text));
    z->log[0] = '\0';
    pthread_mutex_unlock(&z->lock);
    return text;
}

#endif
