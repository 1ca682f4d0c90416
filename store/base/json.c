/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.c - reading and writing JSON; the only user of jansson. struct json is json_t under another name.
 *
 * Reading is strict, since the text may come from a stranger: RFC 8259 with UTF-8 checked, no duplicate members, no
 * U+0000, nothing after the value, the outermost value an object or array, integers within int64 (jansson refuses larger
 * ones), and at most DEPTH_MAX levels (jansson recurses, on stacks that may be small). Values are typed by the getter: a
 * member that is missing or of another type is LARDER_ECORRUPT and the message names both `what` (the file) and the member.
 *
 * Writing keeps members in the order in which they were set. Setters take NULL for a value that could not be made, so
 * that a tree is built without a check at every step: the first failure (ENOMEM, EINVAL) is returned by the setter.
 *
 * A tree belongs to one thread while it changes; reading it is safe from many.
 */
#include <jansson.h>

#include "store/base/base.h"

enum { DEPTH_MAX = 64 };

static inline const json_t *in(const struct json *j) { return (const json_t *)j; }
static inline json_t *mut(struct json *j) { return (json_t *)j; }
static inline struct json *out_of(json_t *j) { return (struct json *)j; }

/* ---- parsing ---- */

/* Brackets outside strings, counted without a parser: of text that is not JSON, the parser tells what is wrong. */
static bool too_deep(const char *text, size_t len)
{
    size_t depth = 0;
    bool string = false;

    for (size_t i = 0; i < len; i++) {
        char c = text[i];
        if (string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                string = false;
        } else if (c == '"') {
            string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > DEPTH_MAX)
                return true;
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return false;
}

struct json *json_parse(const void *text, size_t len, const char *what, struct larder_error *err)
{
    if (too_deep(text, len)) {
        err_set(err, LARDER_ECORRUPT, "%s: JSON nested deeper than %d levels", what, DEPTH_MAX);
        return NULL;
    }

    json_error_t e;
    json_t *j = json_loadb(len ? text : "", len, JSON_REJECT_DUPLICATES, &e);
    if (!j && json_error_code(&e) == json_error_out_of_memory)
        err_nomem(err, len, what);
    else if (!j)
        err_set(err, LARDER_ECORRUPT, "%s: not valid JSON, line %d column %d: %s", what, e.line, e.column, e.text);
    return out_of(j);
}

void json_free(struct json *j) { json_decref(mut(j)); }

/* ---- reading members and elements ---- */

/* Where a value stands, for messages: a member of an object or an element of an array. */
struct place { const char *what, *key; size_t i; };

static int wrong(const struct place *p, const char *how, struct larder_error *err)
{
    if (p->key)
        return err_set(err, LARDER_ECORRUPT, "%s: member '%s' %s", p->what, p->key, how);
    return err_set(err, LARDER_ECORRUPT, "%s: element %zu %s", p->what, p->i, how);
}

static int member(const struct json *obj, const struct place *p, const json_t **v, struct larder_error *err)
{
    if (!json_is_object(in(obj)))
        return wrong(p, "is wanted of what is not an object", err);
    *v = json_object_get(in(obj), p->key);
    return *v ? LARDER_OK : wrong(p, "is missing", err);
}

static int element(const struct json *array, const struct place *p, const json_t **v, struct larder_error *err)
{
    if (!json_is_array(in(array)))
        return wrong(p, "is wanted of what is not an array", err);
    *v = json_array_get(in(array), p->i);
    return *v ? LARDER_OK : wrong(p, "is missing", err);
}

static int take_u64(const json_t *v, const struct place *p, uint64_t *out, struct larder_error *err)
{
    if (!json_is_integer(v))
        return wrong(p, "is not an integer", err);
    if (json_integer_value(v) < 0)
        return wrong(p, "is negative", err);
    *out = (uint64_t)json_integer_value(v);
    return LARDER_OK;
}

static int take_str(const json_t *v, const struct place *p, const char **out, struct larder_error *err)
{
    if (!json_is_string(v))
        return wrong(p, "is not a string", err);
    if (strlen(json_string_value(v)) != json_string_length(v))
        return wrong(p, "holds a NUL", err);
    *out = json_string_value(v);
    return LARDER_OK;
}

static int take_array(const json_t *v, const struct place *p, const struct json **out, struct larder_error *err)
{
    if (!json_is_array(v))
        return wrong(p, "is not an array", err);
    *out = (const struct json *)v;
    return LARDER_OK;
}

static int take_object(const json_t *v, const struct place *p, const struct json **out, struct larder_error *err)
{
    if (!json_is_object(v))
        return wrong(p, "is not an object", err);
    *out = (const struct json *)v;
    return LARDER_OK;
}

int json_get_u64(const struct json *obj, const char *key, const char *what, uint64_t *out, struct larder_error *err)
{
    struct place p = {what, key, 0};
    const json_t *v;
    int rc = member(obj, &p, &v, err);
    return rc ? rc : take_u64(v, &p, out, err);
}

int json_get_str(const struct json *obj, const char *key, const char *what, const char **out, struct larder_error *err)
{
    struct place p = {what, key, 0};
    const json_t *v;
    int rc = member(obj, &p, &v, err);
    return rc ? rc : take_str(v, &p, out, err);
}

int json_get_hex(const struct json *obj, const char *key, const char *what, void *out, size_t len, struct larder_error *err)
{
    struct place p = {what, key, 0};
    const char *text;
    int rc = json_get_str(obj, key, what, &text, err);
    if (rc)
        return rc;
    if (!hex_decode(text, strlen(text), out, len))
        return err_set(err, LARDER_ECORRUPT, "%s: member '%s' is not %zu hexadecimal digits", p.what, p.key, 2 * len);
    return LARDER_OK;
}

int json_get_array(const struct json *obj, const char *key, const char *what, const struct json **out, struct larder_error *err)
{
    struct place p = {what, key, 0};
    const json_t *v;
    int rc = member(obj, &p, &v, err);
    return rc ? rc : take_array(v, &p, out, err);
}

bool json_has(const struct json *obj, const char *key) { return json_object_get(in(obj), key) != NULL; }

size_t json_len(const struct json *array) { return json_array_size(in(array)); }

int json_at_u64(const struct json *array, size_t i, const char *what, uint64_t *out, struct larder_error *err)
{
    struct place p = {what, NULL, i};
    const json_t *v;
    int rc = element(array, &p, &v, err);
    return rc ? rc : take_u64(v, &p, out, err);
}

int json_at_str(const struct json *array, size_t i, const char *what, const char **out, struct larder_error *err)
{
    struct place p = {what, NULL, i};
    const json_t *v;
    int rc = element(array, &p, &v, err);
    return rc ? rc : take_str(v, &p, out, err);
}

int json_at_array(const struct json *array, size_t i, const char *what, const struct json **out, struct larder_error *err)
{
    struct place p = {what, NULL, i};
    const json_t *v;
    int rc = element(array, &p, &v, err);
    return rc ? rc : take_array(v, &p, out, err);
}

int json_at_object(const struct json *array, size_t i, const char *what, const struct json **out, struct larder_error *err)
{
    struct place p = {what, NULL, i};
    const json_t *v;
    int rc = element(array, &p, &v, err);
    return rc ? rc : take_object(v, &p, out, err);
}

/* ---- building ---- */

/* RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. jansson checks too, but does not tell bad text
 * from want of memory. */
static bool is_utf8(const char *text)
{
    const uint8_t *s = (const uint8_t *)text;

    while (*s) {
        int more = *s < 0x80 ? 0 : *s >= 0xc2 && *s <= 0xdf ? 1 : (*s & 0xf0) == 0xe0 ? 2 : *s >= 0xf0 && *s <= 0xf4 ? 3 : -1;
        if (more < 0)
            return false;
        uint8_t lo = *s == 0xe0 ? 0xa0 : *s == 0xf0 ? 0x90 : 0x80; /* what the second byte may be */
        uint8_t hi = *s == 0xed ? 0x9f : *s == 0xf4 ? 0x8f : 0xbf;
        s++;
        for (; more > 0; more--, s++, lo = 0x80, hi = 0xbf)
            if (*s < lo || *s > hi) /* the NUL at the end too */
                return false;
    }
    return true;
}

struct json *json_new_object(void) { return out_of(json_object()); }

struct json *json_new_array(void) { return out_of(json_array()); }

int json_set(struct json *obj, const char *key, struct json *moved)
{
    if (!is_utf8(key) || (obj && !json_is_object(mut(obj))) || (obj && obj == moved)) {
        json_free(obj == moved ? NULL : moved);
        return LARDER_EINVAL;
    }
    return json_object_set_new_nocheck(mut(obj), key, mut(moved)) ? LARDER_ENOMEM : LARDER_OK;
}

int json_set_u64(struct json *obj, const char *key, uint64_t v)
{
    if (v > INT64_MAX)
        return LARDER_EINVAL;
    return json_set(obj, key, out_of(json_integer((json_int_t)v)));
}

int json_set_str(struct json *obj, const char *key, const char *v)
{
    if (!is_utf8(v))
        return LARDER_EINVAL;
    return json_set(obj, key, out_of(json_string_nocheck(v)));
}

int json_set_hex(struct json *obj, const char *key, const void *v, size_t len)
{
    if (len > SIZE_MAX / 2 - 1)
        return LARDER_ENOMEM;
    AUTO_FREE char *text = malloc(2 * len + 1);
    if (!text)
        return LARDER_ENOMEM;
    hex_encode(v, len, text);
    return json_set(obj, key, out_of(json_stringn_nocheck(text, 2 * len)));
}

int json_add(struct json *array, struct json *moved)
{
    if ((array && !json_is_array(mut(array))) || (array && array == moved)) {
        json_free(array == moved ? NULL : moved);
        return LARDER_EINVAL;
    }
    return json_array_append_new(mut(array), mut(moved)) ? LARDER_ENOMEM : LARDER_OK;
}

int json_add_u64(struct json *array, uint64_t v)
{
    if (v > INT64_MAX)
        return LARDER_EINVAL;
    return json_add(array, out_of(json_integer((json_int_t)v)));
}

int json_add_str(struct json *array, const char *v)
{
    if (!is_utf8(v))
        return LARDER_EINVAL;
    return json_add(array, out_of(json_string_nocheck(v)));
}

/* ---- dumping ---- */

struct dump { struct buf *out; struct larder_error *err; int rc; };

static int dump_some(const char *text, size_t len, void *user)
{
    struct dump *d = user;

    if (d->rc == LARDER_OK) /* jansson goes on after some failures */
        d->rc = buf_append(d->out, text, len, d->err);
    return d->rc ? -1 : 0;
}

int json_dump(const struct json *j, struct buf *out, struct larder_error *err)
{
    struct dump d = {out, err, LARDER_OK};
    size_t before = out->len;

    if (!j)
        return err_nomem(err, 0, "JSON");
    /* Without JSON_SORT_KEYS jansson keeps the order of insertion; the flag JSON_PRESERVE_ORDER was for before 2.8. */
    if (json_dump_callback(in(j), dump_some, &d, JSON_COMPACT | JSON_PRESERVE_ORDER) == 0 && d.rc == LARDER_OK)
        return LARDER_OK;
    out->len = before;
    return d.rc ? d.rc : err_nomem(err, 0, "JSON"); /* the text was checked when it was set: memory it is */
}
