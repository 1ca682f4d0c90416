/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_xml.c - the XML that S3 and STS answer with; the only user of expat. Pure: bytes to values.
 *
 * All documents are flat lists of small texts, so one reader serves: it calls back at each end tag with the names of the element
 * and its parent and with its text. Namespaces differ between servers and are left out of names ("s3:Key" is "Key").
 *
 * The bytes come from strangers. A document type is refused, and with it every entity but the five of XML itself; elements nest at most
 * DEPTH_MAX levels and hold at most TEXT_MAX bytes of text each. Memory is expat's few KiB and one text.
 *
 * An error document may be cut short or be no XML at all (a proxy's page): what was read up to there counts.
 *
 * No state: any thread.
 */
#include <expat.h>

#include "tiers/s3.h"

enum { DEPTH_MAX = 16, NAME_MAX_LEN = 48, TEXT_MAX = 16384 };

struct xml;
/* An element ended. text: NUL-terminated, borrowed, may be changed. Nonzero: stop, returned by xml_run. */
typedef int end_fn(struct xml *x, const char *parent, const char *name, char *text);

struct xml {
    XML_Parser parser;
    end_fn *end;
    void *user;
    struct larder_error *err;
    int rc; /* why it was stopped */
    const char *why; /* or so */
    unsigned depth;
    char names[DEPTH_MAX + 1][NAME_MAX_LEN];
    struct buf text;
    bool leaf; /* no end tag since the last start tag */
};

static void stop(struct xml *x, const char *why)
{
    if (!x->why)
        x->why = why;
    XML_StopParser(x->parser, XML_FALSE);
}

static const char *local_name(const char *name)
{
    const char *colon = strrchr(name, ':');
    return colon ? colon + 1 : name;
}

static void XMLCALL on_start(void *user, const char *name, const char **attributes)
{
    struct xml *x = user;

    (void)attributes;
    if (x->depth == DEPTH_MAX) {
        stop(x, "elements nested too deep");
        return;
    }
    x->depth++;
    snprintf(x->names[x->depth], NAME_MAX_LEN, "%s", local_name(name));
    x->text.len = 0;
    x->leaf = true;
}

static void XMLCALL on_text(void *user, const char *text, int len)
{
    struct xml *x = user;

    if (!x->leaf || x->why)
        return;
    if (x->text.len + (size_t)len > TEXT_MAX) {
        stop(x, "an element's text is too long");
    } else if (buf_append(&x->text, text, (size_t)len, x->err) || buf_reserve(&x->text, 1, x->err)) {
        x->rc = LARDER_ENOMEM;
        stop(x, "out of memory");
    }
}

static void XMLCALL on_end(void *user, const char *name)
{
    struct xml *x = user;
    char empty[1] = "", *text = empty;

    (void)name;
    if (x->leaf && x->text.len) {
        x->text.data[x->text.len] = '\0'; /* on_text left room */
        text = (char *)x->text.data;
    }
    if (!x->why)
        x->rc = x->end(x, x->depth > 1 ? x->names[x->depth - 1] : "", x->names[x->depth], text);
    if (x->rc)
        stop(x, "stopped");
    x->depth--;
    x->leaf = false;
    x->text.len = 0;
}

static void XMLCALL on_doctype(void *user, const char *name, const char *system, const char *public, int internal)
{
    (void)name, (void)system, (void)public, (void)internal;
    stop(user, "it has a document type");
}

/* LARDER_OK when the whole text was well-formed; what end returned; ENOMEM; ECORRUPT, and what the reason is. */
static int xml_run(const char *text, size_t len, const char *what, end_fn *end, void *user, struct larder_error *err)
{
    struct xml *x = calloc(1, sizeof(*x));
    int rc;

    if (!x || !(x->parser = XML_ParserCreate(NULL))) {
        free(x);
        return err_nomem(err, sizeof(*x), what);
    }
    x->end = end;
    x->user = user;
    x->err = err;
    XML_SetUserData(x->parser, x);
    XML_SetElementHandler(x->parser, on_start, on_end);
    XML_SetCharacterDataHandler(x->parser, on_text);
    XML_SetStartDoctypeDeclHandler(x->parser, on_doctype);
    bool ok = len <= INT32_MAX && XML_Parse(x->parser, text, (int)len, 1) == XML_STATUS_OK;
    enum XML_Error e = XML_GetErrorCode(x->parser);
    if (ok || x->rc)
        rc = x->rc;
    else if (e == XML_ERROR_NO_MEMORY)
        rc = err_nomem(err, len, what);
    else
        rc = err_set(err, LARDER_ECORRUPT, "%s: the server's answer is not the XML of S3: %s, line %lu", what,
                     x->why ? x->why : XML_ErrorString(e), (unsigned long)XML_GetCurrentLineNumber(x->parser));
    XML_ParserFree(x->parser);
    s3_wipe(x->text.data, x->text.cap); /* STS answers hold secrets */
    buf_release(&x->text);
    free(x);
    return rc;
}

/* ---- small texts ---- */

static bool parse_u64(const char *s, uint64_t *out)
{
    uint64_t v = 0;

    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || v > (UINT64_MAX - 9) / 10)
            return false;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *out = v;
    return true;
}

static int keep(char **to, const char *text, struct larder_error *err)
{
    free(*to);
    *to = strdup(text);
    return *to ? LARDER_OK : err_nomem(err, strlen(text) + 1, "S3 answer");
}

/* Undoes encoding-type=url in place: %NN, and '+' for a space. False: no such text, or one with NUL. */
static bool url_decode(char *s)
{
    char *to = s;

    for (; *s; s++) {
        if (*s == '+') {
            *to++ = ' ';
        } else if (*s == '%') {
            uint8_t byte;
            if (!s[1] || !s[2] || !hex_decode(s + 1, 2, &byte, 1) || !byte)
                return false;
            *to++ = (char)byte;
            s += 2;
        } else {
            *to++ = *s;
        }
    }
    *to = '\0';
    return true;
}

/* Wherever it stands in the document; a '<' in a key would be "&lt;". */
static bool is_url_encoded(const char *text, size_t len)
{
    static const char mark[] = "EncodingType>url<";
    return memmem(text, len, mark, sizeof(mark) - 1) != NULL;
}

/* ---- errors ---- */

static int error_end(struct xml *x, const char *parent, const char *name, char *text)
{
    struct s3_error *e = x->user;

    (void)parent;
    if (strcmp(name, "Code") == 0)
        snprintf(e->code, sizeof(e->code), "%s", text);
    else if (strcmp(name, "Message") == 0)
        snprintf(e->message, sizeof(e->message), "%s", text);
    else if (strcmp(name, "Region") == 0)
        snprintf(e->region, sizeof(e->region), "%s", text);
    else if (strcmp(name, "Endpoint") == 0)
        snprintf(e->endpoint, sizeof(e->endpoint), "%s", text);
    return LARDER_OK;
}

void s3_error_parse(const char *text, size_t len, struct s3_error *e)
{
    memset(e, 0, sizeof(*e));
    xml_run(text, len, "", error_end, e, NULL);
}

/* ---- listings ---- */

struct listing {
    store_list_fn *fn;
    void *user;
    bool url, root, truncated, have_size;
    char *key, *token;
    uint64_t size, mtime_s;
};

static int bad(struct xml *x, const char *what)
{
    return err_set(x->err, LARDER_ECORRUPT, "listing: an object %s", what);
}

static int contents_end(struct xml *x, struct listing *l, const char *name, char *text)
{
    if (strcmp(name, "Key") == 0)
        return l->url && !url_decode(text) ? bad(x, "has a name that is not encoded as it says") : keep(&l->key, text, x->err);
    if (strcmp(name, "Size") == 0) {
        l->have_size = parse_u64(text, &l->size);
        return l->have_size ? LARDER_OK : bad(x, "has a size that is no number");
    }
    if (strcmp(name, "LastModified") == 0)
        l->mtime_s = iso_date(text);
    return LARDER_OK;
}

static int list_end(struct xml *x, const char *parent, const char *name, char *text)
{
    struct listing *l = x->user;
    int rc = LARDER_OK;

    if (strcmp(parent, "Contents") == 0)
        return contents_end(x, l, name, text);
    if (strcmp(name, "Contents") == 0) {
        rc = !l->key || !*l->key || !l->have_size ? bad(x, "has no name or no size") : l->fn(l->user, l->key, l->size, l->mtime_s);
        free(l->key);
        l->key = NULL;
        l->have_size = false;
        l->size = l->mtime_s = 0;
    } else if (strcmp(name, "NextContinuationToken") == 0) {
        rc = keep(&l->token, text, x->err);
    } else if (strcmp(name, "IsTruncated") == 0) {
        l->truncated = strcmp(text, "true") == 0;
    } else if (strcmp(name, "ListBucketResult") == 0 && !*parent) {
        l->root = true;
    }
    return rc;
}

int s3_list_parse(const char *text, size_t len, store_list_fn *fn, void *user, char **token, struct larder_error *err)
{
    struct listing l = {.fn = fn, .user = user, .url = is_url_encoded(text, len)};

    *token = NULL;
    int rc = xml_run(text, len, "listing", list_end, &l, err);
    if (rc == LARDER_OK && !l.root)
        rc = err_set(err, LARDER_ECORRUPT, "listing: the server's answer is none (ListBucketResult is missing): check the endpoint");
    if (rc == LARDER_OK && l.truncated && (!l.token || !*l.token))
        rc = err_set(err, LARDER_ECORRUPT, "listing: there is more, but the server gives no NextContinuationToken (is it ListObjectsV2?)");
    if (rc == LARDER_OK && l.truncated) {
        *token = l.token;
        l.token = NULL;
    }
    free(l.key);
    free(l.token);
    return rc;
}

/* ---- multipart uploads ---- */

struct one { const char *name; char *text; };

static int one_end(struct xml *x, const char *parent, const char *name, char *text)
{
    struct one *o = x->user;

    (void)parent;
    return strcmp(name, o->name) == 0 ? keep(&o->text, text, x->err) : LARDER_OK;
}

/* The text of the element called name; malloc'd. */
static int one_text(const char *text, size_t len, const char *what, const char *name, char **out, struct larder_error *err)
{
    struct one o = {name, NULL};
    int rc = xml_run(text, len, what, one_end, &o, err);

    if (rc == LARDER_OK && (!o.text || !*o.text))
        rc = err_set(err, LARDER_ECORRUPT, "%s: the server's answer has no %s: check that the endpoint speaks S3", what, name);
    if (rc) {
        free(o.text);
        o.text = NULL;
    }
    *out = o.text;
    return rc;
}

int s3_upload_id_parse(const char *text, size_t len, char **id, struct larder_error *err)
{
    return one_text(text, len, "multipart upload", "UploadId", id, err);
}

int s3_complete_parse(const char *text, size_t len, char **etag, struct larder_error *err)
{
    return one_text(text, len, "multipart upload", "ETag", etag, err);
}

struct uploads {
    s3_upload_fn *fn;
    void *user;
    bool url, root, truncated;
    char *key, *id, *next_key, *next_id;
    uint64_t initiated_s;
};

static int upload_done(struct xml *x, struct uploads *u)
{
    int rc = !u->key || !u->id ? bad(x, "that is being uploaded has no name or no id") : u->fn(u->user, u->key, u->id, u->initiated_s);

    free(u->key);
    free(u->id);
    u->key = u->id = NULL;
    u->initiated_s = 0;
    return rc;
}

static int uploads_end(struct xml *x, const char *parent, const char *name, char *text)
{
    struct uploads *u = x->user;
    bool inside = strcmp(parent, "Upload") == 0;

    if ((inside && strcmp(name, "Key") == 0) || strcmp(name, "NextKeyMarker") == 0) {
        if (u->url && !url_decode(text))
            return bad(x, "has a name that is not encoded as it says");
        return keep(inside ? &u->key : &u->next_key, text, x->err);
    }
    if (inside && strcmp(name, "UploadId") == 0)
        return keep(&u->id, text, x->err);
    if (inside && strcmp(name, "Initiated") == 0)
        u->initiated_s = iso_date(text);
    else if (strcmp(name, "Upload") == 0)
        return upload_done(x, u);
    else if (strcmp(name, "NextUploadIdMarker") == 0)
        return keep(&u->next_id, text, x->err);
    else if (strcmp(name, "IsTruncated") == 0)
        u->truncated = strcmp(text, "true") == 0;
    else if (strcmp(name, "ListMultipartUploadsResult") == 0 && !*parent)
        u->root = true;
    return LARDER_OK;
}

int s3_uploads_parse(const char *text, size_t len, s3_upload_fn *fn, void *user, bool *truncated, char **next_key, char **next_id,
                     struct larder_error *err)
{
    struct uploads u = {.fn = fn, .user = user, .url = is_url_encoded(text, len)};

    *next_key = *next_id = NULL;
    *truncated = false;
    int rc = xml_run(text, len, "list of uploads", uploads_end, &u, err);
    if (rc == LARDER_OK && !u.root)
        rc = err_set(err, LARDER_ECORRUPT, "list of uploads: the server's answer is none: check the endpoint");
    if (rc == LARDER_OK && u.truncated && (!u.next_key || !*u.next_key))
        rc = err_set(err, LARDER_ECORRUPT, "list of uploads: there is more, but the server gives no NextKeyMarker");
    if (rc == LARDER_OK && u.truncated) {
        *truncated = true;
        *next_key = u.next_key;
        *next_id = u.next_id;
        u.next_key = u.next_id = NULL;
    }
    free(u.key);
    free(u.id);
    free(u.next_key);
    free(u.next_id);
    return rc;
}

/* ---- STS ---- */

static int sts_end(struct xml *x, const char *parent, const char *name, char *text)
{
    struct s3_key *k = x->user;

    if (strcmp(parent, "Credentials") != 0)
        return LARDER_OK;
    if (strcmp(name, "AccessKeyId") == 0 && strlen(text) < sizeof(k->id))
        memcpy(k->id, text, strlen(text) + 1);
    else if (strcmp(name, "SecretAccessKey") == 0 && strlen(text) < sizeof(k->secret))
        memcpy(k->secret, text, strlen(text) + 1);
    else if (strcmp(name, "SessionToken") == 0)
        return keep(&k->token, text, x->err);
    else if (strcmp(name, "Expiration") == 0)
        k->expires_s = iso_date(text);
    return LARDER_OK;
}

int s3_sts_parse(const char *text, size_t len, struct s3_key *key, struct larder_error *err)
{
    struct s3_key k = {.token = NULL};
    int rc = xml_run(text, len, "STS", sts_end, &k, err);

    if (rc == LARDER_OK && (!*k.id || !*k.secret || !k.token))
        rc = err_set(err, LARDER_ECORRUPT, "STS: the answer holds no credentials");
    if (rc == LARDER_OK) {
        *key = k;
        s3_wipe(&k, sizeof(k));
    } else {
        s3_key_release(&k);
    }
    return rc;
}
