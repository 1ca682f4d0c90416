/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_upload.c - writing objects of struct store_io to a bucket: as one PUT while they are small, else as a multipart upload.
 *
 *     begin --> write: fill a part --full--> start the upload, once --> PUT the part, SLOTS at most under way
 *                        ^                                                  |
 *                        \---------------- another slot ---------------------/
 *     finish:  less than a part: one PUT If-None-Match: *
 *              else: the last part, wait for all, look whether the name is taken, complete, compare the ETag
 *     abort, or a failure: cancel the parts, wait for them, abort the upload
 *
 * Nothing is visible before finish has it completed, and nothing is left behind but by a process that is killed or a server that cannot
 * be reached any more: remote_uploads_abort gives those up later. Every part carries its MD5; where the server's ETags are MD5s, the
 * whole object's has to be the MD5 of these, so that no part can be missing or doubled.
 *
 * A completion whose answer got lost leaves two possibilities. Aborting decides: when the upload is still there, nothing was
 * completed, and nothing can be any more; when it is gone, the object's ETag tells whether it is ours.
 *
 * Memory: SLOTS parts an object at most, grown as they fill. A part has PART_BYTES; objects beyond FIRST_PARTS of them get larger ones, so
 * that 10,000 parts hold 350 GiB. Parts of one object have one size up to there, as some servers want it.
 *
 * Threads: one calls; the parts' callbacks come on loops. `lock` guards what those share: busy, rc and error of the slots' requests.
 */
#include <inttypes.h>

#include "tiers/remote_io_int.h"

#define PART_BYTES (8 * MIB)
#define LARGE_PART_BYTES (64 * MIB)
#define FIRST_BYTES (64 * KIB)
#define ANSWER_MAX ((size_t)64 << 10)
#define ABORT_NS UINT64_C(10000000000) /* nobody waits longer for the end of what failed */
#define PAGE_MAX (8 * MIB)

enum { SLOTS = 4, PARTS_MAX = 10000, FIRST_PARTS = 5000, COMPLETE_TRIES = 3 };

struct slot {
    struct store_out *o;
    uint8_t *data;
    size_t len, cap;
    unsigned number;        /* of the part, from 1 */
    bool busy;              /* under lock: the server has it in work */
    char md5[48];
    const char *headers[1];
    struct buf query;
    struct remote_request q;
};

struct store_out {
    struct remote_io *x;
    char *name;
    char *id;               /* of the upload, percent-encoded; NULL: not begun */
    struct slot slots[SLOTS];
    struct slot *fill;      /* the one being filled; NULL: none */
    unsigned parts;         /* begun */
    uint64_t bytes;
    char (*etags)[80];      /* as the server gave them, by part */
    size_t etags_cap;
    struct buf md5s;        /* 16 bytes a part */
    bool md5_etags;         /* the server's ETags of parts are their MD5s */
    struct larder_error failed; /* code 0: none yet; the first one sticks */
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* In a forked child nobody answers for the parts that are under way, and the upload is the parent's. */
static bool forked(const struct store_out *o) { return o->x->r->pid != process_id(); }

static int fail_forked(const struct store_out *o, struct larder_error *err)
{
    return err_set(err, LARDER_EFORK, "%.100s/%.100s: the parent is writing it, not this forked child", remote_uri(o->x->r), o->name);
}

static int fail_with(struct store_out *o, const struct larder_error *err)
{
    if (!o->failed.code)
        o->failed = *err;
    return o->failed.code;
}

/* ---- the upload ---- */

static int upload_query(const struct store_out *o, unsigned part, struct buf *query, struct larder_error *err)
{
    query->len = 0;
    return part ? buf_printf(query, err, "partNumber=%u&uploadId=%s", part, o->id) : buf_printf(query, err, "uploadId=%s", o->id);
}

static int upload_begin(struct store_out *o, struct larder_error *err)
{
    static const char *const headers[] = {"content-type: application/octet-stream"};
    AUTO_BUF struct buf answer = BUF_INIT, encoded = BUF_INIT;
    AUTO_FREE char *id = NULL;
    struct remote_request q = {.method = HTTP_POST, .name = o->name, .query = "uploads=", .headers = headers, .n_headers = 1, .out = &answer,
                               .out_max = ANSWER_MAX, .priority = REMOTE_DEMAND};
    int rc = remote_run(o->x->r, &q, 1, err);

    if (rc == LARDER_OK)
        rc = s3_upload_id_parse((char *)answer.data, answer.len, &id, err);
    if (rc == LARDER_OK)
        rc = s3_encode(id, false, &encoded, err);
    if (rc == LARDER_OK) {
        o->id = (char *)encoded.data;
        encoded.data = NULL;
    }
    return rc;
}

/* LARDER_OK: it is given up, and nothing of it becomes visible; ENOTFOUND: the server knows none such. */
static int upload_abort(struct remote *r, const char *name, const char *encoded_id, struct larder_error *err)
{
    AUTO_BUF struct buf query = BUF_INIT;
    int rc = buf_printf(&query, err, "uploadId=%s", encoded_id);

    if (rc)
        return rc;
    struct remote_request q = {.method = HTTP_DELETE, .name = name, .query = (char *)query.data, .priority = REMOTE_DEMAND,
                               .deadline_ns = now_ns() + ABORT_NS};
    return remote_run(r, &q, 1, err);
}

/* ---- parts ---- */

static uint64_t part_bytes(unsigned number) { return number <= FIRST_PARTS ? PART_BYTES : LARGE_PART_BYTES; }

static void part_done(struct remote_request *q)
{
    struct slot *s = q->user;
    struct store_out *o = s->o;

    pthread_mutex_lock(&o->lock);
    s->busy = false;
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

/* What became of a part that is no longer busy; in the caller's thread. */
static void part_settle(struct store_out *o, struct slot *s)
{
    char hex[33], bare[80];
    size_t n;

    if (!s->number)
        return;
    if (s->q.rc) {
        fail_with(o, &s->q.error);
    } else if (!s->q.etag[0] || strpbrk(s->q.etag, "<>&")) {
        struct larder_error err;
        err_set(&err, LARDER_EREMOTE, "%.80s/%.80s: the server gives a part no ETag", remote_uri(o->x->r), o->name);
        fail_with(o, &err);
    } else {
        memcpy(o->etags[s->number - 1], s->q.etag, sizeof(s->q.etag));
        n = strlen(s->q.etag);
        snprintf(bare, sizeof(bare), "%.*s", (int)(n > 2 ? n - 2 : 0), s->q.etag + (*s->q.etag == '"'));
        hex_encode(o->md5s.data + 16 * (size_t)(s->number - 1), 16, hex);
        o->md5_etags &= strcasecmp(bare, hex) == 0;
    }
    s->number = 0;
    s->len = 0;
}

/* Waits until a slot is free (all: until every one is) and settles those that are; the free one. */
static struct slot *part_wait(struct store_out *o, bool all)
{
    struct slot *free_slot = NULL;

    pthread_mutex_lock(&o->lock);
    for (;;) {
        unsigned busy = 0;
        free_slot = NULL;
        for (int i = 0; i < SLOTS; i++) {
            busy += o->slots[i].busy;
            if (!o->slots[i].busy && (!free_slot || (!free_slot->cap && o->slots[i].cap))) /* one that has memory, if any */
                free_slot = &o->slots[i];
        }
        if (busy == 0 || (free_slot && !all))
            break;
        pthread_cond_wait(&o->changed, &o->lock);
    }
    bool busy_now[SLOTS];
    for (int i = 0; i < SLOTS; i++)
        busy_now[i] = o->slots[i].busy;
    pthread_mutex_unlock(&o->lock);
    for (int i = 0; i < SLOTS; i++)
        if (!busy_now[i] && &o->slots[i] != o->fill)
            part_settle(o, &o->slots[i]);
    return free_slot;
}

static int part_prepare(struct store_out *o, struct slot *s, struct larder_error *err)
{
    char hex[33], base64[25];
    uint8_t raw[16] = {0};
    int rc;

    if (o->parts == PARTS_MAX)
        return err_set(err, LARDER_EINVAL, "%.150s: it is larger than an object can be (350 GiB)", o->name);
    s->number = o->parts + 1;
    if ((rc = GROW(o->etags, o->etags_cap, s->number, err)) || (rc = upload_query(o, s->number, &s->query, err)))
        return rc;
    memset(o->etags[s->number - 1], 0, sizeof(o->etags[0]));
    md5_hex(s->data, s->len, hex);
    o->md5_etags &= hex_decode(hex, strlen(hex), raw, sizeof(raw)); /* not where MD5 is forbidden */
    rc = buf_append(&o->md5s, raw, sizeof(raw), err);
    md5_base64(s->data, s->len, base64);
    snprintf(s->md5, sizeof(s->md5), "content-md5: %s", base64);
    s->headers[0] = s->md5;
    s->q = (struct remote_request){.method = HTTP_PUT, .name = o->name, .query = (char *)s->query.data, .headers = s->headers,
                                   .n_headers = *base64 ? 1 : 0, .body = s->data, .body_len = s->len, .priority = REMOTE_DEMAND,
                                   .done = part_done, .user = s};
    return rc;
}

/* Sends what is in the slot being filled. */
static int part_send(struct store_out *o, struct larder_error *err)
{
    struct slot *s = o->fill;
    int rc = o->id ? LARDER_OK : upload_begin(o, err);

    if (rc == LARDER_OK)
        rc = part_prepare(o, s, err);
    if (rc) {
        s->number = 0;
        return rc;
    }
    o->parts++;
    o->fill = NULL;
    pthread_mutex_lock(&o->lock);
    s->busy = true;
    pthread_mutex_unlock(&o->lock);
    remote_start(o->x->r, &s->q);
    return LARDER_OK;
}

/* Room for at least one more byte in the slot being filled. */
static int part_room(struct store_out *o, size_t want, struct larder_error *err)
{
    uint64_t max = part_bytes(o->parts + 1);

    if (!o->fill) {
        struct slot *s = part_wait(o, false);
        if (o->failed.code) {
            if (err)
                *err = o->failed;
            return o->failed.code;
        }
        o->fill = s;
    }
    struct slot *s = o->fill;
    size_t cap = (size_t)MIN(max, (uint64_t)MAX(s->len + want, FIRST_BYTES));
    if (s->len < s->cap || cap <= s->cap)
        return LARDER_OK;
    cap = (size_t)MIN(max, (uint64_t)MAX(cap, 2 * s->cap));
    uint8_t *data = realloc(s->data, cap);
    if (!data)
        return err_nomem(err, cap, o->name);
    s->data = data;
    s->cap = cap;
    return LARDER_OK;
}

/* ---- begin, write ---- */

static void out_free(struct store_out *o)
{
    for (int i = 0; i < SLOTS; i++) {
        free(o->slots[i].data);
        buf_release(&o->slots[i].query);
    }
    if (!forked(o)) {
        pthread_cond_destroy(&o->changed);
        pthread_mutex_destroy(&o->lock);
    }
    buf_release(&o->md5s);
    free(o->etags);
    free(o->id);
    free(o->name);
    free(o);
}

int remote_out_begin(struct store_io *io, const char *name, struct store_out **out, struct larder_error *err)
{
    struct remote_io *x = remote_io_of(io);
    int rc = remote_name_check(x, name, true, err);

    *out = NULL;
    if (rc)
        return rc;
    struct store_out *o = calloc(1, sizeof(*o));
    if (!o)
        return err_nomem(err, sizeof(*o), name);
    o->x = x;
    o->md5_etags = true;
    o->name = strdup(name);
    if (!o->name) {
        free(o);
        return err_nomem(err, strlen(name) + 1, name);
    }
    for (int i = 0; i < SLOTS; i++)
        o->slots[i].o = o;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
    *out = o;
    return LARDER_OK;
}

/* A slot is sent when more comes, not when it is full: an object of exactly one part is small. */
static int put_bytes(struct store_out *o, const uint8_t *data, size_t len, struct larder_error *err)
{
    int rc = LARDER_OK;

    while (len > 0 && rc == LARDER_OK) {
        if (o->fill && o->fill->len >= part_bytes(o->parts + 1)) {
            rc = part_send(o, err);
            continue;
        }
        rc = part_room(o, len, err);
        if (rc)
            break;
        struct slot *s = o->fill;
        size_t n = MIN(len, (size_t)MIN((uint64_t)s->cap, part_bytes(o->parts + 1)) - s->len);
        memcpy(s->data + s->len, data, n);
        s->len += n;
        o->bytes += n;
        data += n;
        len -= n;
    }
    return rc;
}

int remote_out_write(struct store_out *out, const void *data, size_t len, struct larder_error *err)
{
    struct larder_error why = {0};

    if (forked(out))
        return fail_forked(out, err);
    int rc = out->failed.code ? out->failed.code : put_bytes(out, data, len, &why);
    if (rc)
        rc = fail_with(out, out->failed.code ? &out->failed : &why);
    if (rc && err)
        *err = out->failed;
    return rc;
}

/* ---- finish ---- */

/* "md5 of the parts' md5s-number", as S3 makes a multipart ETag; "" where it cannot be told. */
static void expected_etag(const struct store_out *o, char out[80])
{
    char hex[33];

    out[0] = '\0';
    if (!o->md5_etags)
        return;
    md5_hex(o->md5s.data, o->md5s.len, hex);
    if (*hex)
        snprintf(out, 80, "%s-%u", hex, o->parts);
}

static bool same_etag(const char *etag, const char *want)
{
    size_t n = strlen(want);

    if (*etag == '"')
        etag++;
    return strncasecmp(etag, want, n) == 0 && (!etag[n] || strcmp(etag + n, "\"") == 0);
}

/* 32 digits, '-', a number: an ETag that is made of MD5s. */
static bool is_multipart_etag(const char *etag)
{
    etag += *etag == '"';
    return strspn(etag, "0123456789abcdefABCDEF") == 32 && etag[32] == '-';
}

/* Whether the object that is there now is the one of this upload. */
static int check_result(struct store_out *o, const char *etag, uint64_t size, struct larder_error *err)
{
    char want[80];

    expected_etag(o, want);
    if (*want && is_multipart_etag(etag) ? same_etag(etag, want) : size == UINT64_MAX || size == o->bytes)
        return LARDER_OK;
    return err_set(err, LARDER_ECORRUPT, "%.70s/%.70s: what the server has is not what was sent (ETag %.44s, expected %.36s)",
                   remote_uri(o->x->r), o->name, etag, *want ? want : "another size");
}

static int complete_body(const struct store_out *o, struct buf *body, struct larder_error *err)
{
    int rc = buf_printf(body, err, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");

    for (unsigned i = 0; i < o->parts && rc == LARDER_OK; i++)
        rc = buf_printf(body, err, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", i + 1, o->etags[i]);
    return rc ? rc : buf_printf(body, err, "</CompleteMultipartUpload>");
}

/* An answer with status 200 may be an error: it is sent before the work is done. */
static int complete_once(struct store_out *o, const struct buf *body, const struct buf *query, char **etag, struct larder_error *err)
{
    static const char *const headers[] = {"content-type: application/xml"};
    AUTO_BUF struct buf answer = BUF_INIT;
    struct remote_request q = {.method = HTTP_POST, .name = o->name, .query = (char *)query->data, .headers = headers, .n_headers = 1,
                               .body = body->data, .body_len = body->len, .out = &answer, .out_max = ANSWER_MAX, .priority = REMOTE_DEMAND};
    struct s3_error e;
    int rc = remote_run(o->x->r, &q, 1, err);

    if (rc)
        return rc;
    rc = s3_complete_parse((char *)answer.data, answer.len, etag, err);
    s3_error_parse((char *)answer.data, answer.len, &e);
    if (rc == LARDER_ECORRUPT && e.code[0])
        rc = err_set(err, LARDER_EREMOTE, "%.80s/%.80s: completing it: %.60s", remote_uri(o->x->r), o->name, e.code);
    return rc;
}

/* After a completion that failed with rc. */
static int complete_decide(struct store_out *o, int rc, struct larder_error *err)
{
    struct larder_error why;
    uint64_t size;
    char etag[80];

    if (upload_abort(o->x->r, o->name, o->id, &why) != LARDER_ENOTFOUND)
        return rc; /* given up, or out of reach */
    if (remote_head(o->x, o->name, &size, NULL, etag, &why) || size != o->bytes || check_result(o, etag, size, &why))
        return rc;
    if (err)
        *err = (struct larder_error){0};
    return LARDER_OK;
}

static int complete(struct store_out *o, struct larder_error *err)
{
    AUTO_BUF struct buf body = BUF_INIT, query = BUF_INIT;
    AUTO_FREE char *etag = NULL;
    int rc = complete_body(o, &body, err);

    if (rc == LARDER_OK)
        rc = upload_query(o, 0, &query, err);
    if (rc) {
        upload_abort(o->x->r, o->name, o->id, NULL);
        return rc;
    }
    rc = LARDER_EREMOTE;
    for (int tries = 0; rc == LARDER_EREMOTE && tries < COMPLETE_TRIES; tries++) {
        struct larder_error why = {0};
        rc = complete_once(o, &body, &query, &etag, &why);
        if (err)
            *err = why;
        if (why.http_status / 100 == 4 || rc == LARDER_ETIMEOUT)
            break;
    }
    if (rc)
        return complete_decide(o, rc, err);
    rc = check_result(o, etag, UINT64_MAX, err);
    if (rc) { /* it is ours: nobody's but ours has this upload's id */
        struct remote_request q = {.method = HTTP_DELETE, .name = o->name, .priority = REMOTE_DEMAND};
        remote_run(o->x->r, &q, 1, NULL);
    }
    return rc;
}

static int finish_parts(struct store_out *o, struct larder_error *err)
{
    struct larder_error why = {0};
    int rc = !o->failed.code && o->fill && o->fill->len ? part_send(o, &why) : LARDER_OK;

    if (rc)
        fail_with(o, &why);
    part_wait(o, true);
    if (!o->failed.code) {
        rc = remote_head(o->x, o->name, NULL, NULL, NULL, &why);
        if (rc == LARDER_OK)
            err_set(&why, LARDER_EEXIST, "%.110s/%.110s: it is there already", remote_uri(o->x->r), o->name);
        if (rc != LARDER_ENOTFOUND)
            fail_with(o, &why);
    }
    if (!o->failed.code)
        return complete(o, err);
    if (o->id)
        upload_abort(o->x->r, o->name, o->id, NULL);
    if (err)
        *err = o->failed;
    return o->failed.code;
}

int remote_out_finish(struct store_out *out, struct larder_error *err)
{
    const struct slot *s = out->fill;
    int rc;

    if (forked(out))
        rc = fail_forked(out, err);
    else if (out->id || out->failed.code)
        rc = finish_parts(out, err);
    else
        rc = remote_put_new(out->x, out->name, s ? s->data : NULL, s ? s->len : 0, err);
    out_free(out);
    return rc;
}

void remote_out_abort(struct store_out *out)
{
    bool busy[SLOTS];

    if (!out)
        return;
    if (forked(out)) {
        out_free(out);
        return;
    }
    pthread_mutex_lock(&out->lock);
    for (int i = 0; i < SLOTS; i++)
        busy[i] = out->slots[i].busy;
    pthread_mutex_unlock(&out->lock);
    for (int i = 0; i < SLOTS; i++)
        if (busy[i])
            remote_cancel(out->x->r, &out->slots[i].q);
    part_wait(out, true);
    if (out->id)
        upload_abort(out->x->r, out->name, out->id, NULL);
    out_free(out);
}

/* ---- what others never finished ---- */

struct old { char *name, *id; };
struct olds {
    const struct remote *r;
    uint64_t before_s;
    struct old *items;
    size_t n, cap;
    struct larder_error *err;
};

static int take_old(void *user, const char *key, const char *id, uint64_t initiated_s)
{
    struct olds *l = user;
    size_t prefix = strlen(l->r->place.prefix);

    if (strncmp(key, l->r->place.prefix, prefix) != 0 || !key[prefix] || !initiated_s || initiated_s > l->before_s)
        return LARDER_OK;
    int rc = GROW(l->items, l->cap, l->n + 1, l->err);
    if (rc)
        return rc;
    AUTO_BUF struct buf encoded = BUF_INIT;
    rc = s3_encode(id, false, &encoded, l->err);
    if (rc)
        return rc;
    char *name = strdup(key + prefix);
    if (!name)
        return err_nomem(l->err, strlen(key), "upload");
    l->items[l->n++] = (struct old){name, (char *)encoded.data};
    encoded.data = NULL;
    return LARDER_OK;
}

/* Without encoding-type: radosgw encodes names then and does not say so. */
static int uploads_query(const struct remote *r, const char *key, const char *id, struct buf *query, struct larder_error *err)
{
    int rc = LARDER_OK;

    query->len = 0;
    if (key && (rc = buf_printf(query, err, "key-marker=")) == LARDER_OK && (rc = s3_encode(key, false, query, err)) == LARDER_OK)
        rc = buf_printf(query, err, "&");
    if (rc == LARDER_OK && (rc = buf_printf(query, err, "max-uploads=1000&prefix=")) == LARDER_OK)
        rc = s3_encode(r->place.prefix, false, query, err);
    if (rc == LARDER_OK && id && (rc = buf_printf(query, err, "&upload-id-marker=")) == LARDER_OK)
        rc = s3_encode(id, false, query, err);
    return rc ? rc : buf_printf(query, err, "&uploads=");
}

static int uploads_page(struct remote *r, struct olds *l, char **key, char **id, bool *more, struct larder_error *err)
{
    AUTO_BUF struct buf query = BUF_INIT, page = BUF_INIT;
    char *next_key = NULL, *next_id = NULL;
    int rc = uploads_query(r, *key, *id, &query, err);

    if (rc)
        return rc;
    struct remote_request q = {.method = HTTP_GET, .query = (char *)query.data, .out = &page, .out_max = PAGE_MAX, .priority = REMOTE_DEMAND};
    rc = remote_run(r, &q, 1, err);
    if (rc == LARDER_OK)
        rc = s3_uploads_parse((char *)page.data, page.len, take_old, l, more, &next_key, &next_id, err);
    if (rc == LARDER_OK && *more && *key && strcmp(*key, next_key) == 0 && *id && next_id && strcmp(*id, next_id) == 0)
        rc = err_set(err, LARDER_ECORRUPT, "%.150s: the server gives the same page of its uploads for ever", remote_uri(r));
    free(*key);
    free(*id);
    *key = next_key;
    *id = next_id;
    return rc;
}

int remote_uploads_abort(struct remote *r, uint64_t min_age_s, uint64_t *n, struct larder_error *err)
{
    uint64_t now_s = now_wall_s();
    /* 0: all, whatever the clocks say; some servers round up to whole seconds */
    struct olds l = {.r = r, .before_s = !min_age_s ? UINT64_MAX : now_s > min_age_s ? now_s - min_age_s : 0, .err = err};
    AUTO_FREE char *key = NULL, *id = NULL;
    bool more = true;
    int rc = LARDER_OK;

    *n = 0;
    if (!remote_writable(r))
        return LARDER_OK;
    while (more && rc == LARDER_OK)
        rc = uploads_page(r, &l, &key, &id, &more, err);
    for (size_t i = 0; i < l.n; i++) {
        int got = rc ? rc : upload_abort(r, l.items[i].name, l.items[i].id, err);
        *n += got == LARDER_OK;
        if (got != LARDER_ENOTFOUND) /* finished meanwhile */
            rc = got;
        free(l.items[i].name);
        free(l.items[i].id);
    }
    free(l.items);
    return rc;
}
