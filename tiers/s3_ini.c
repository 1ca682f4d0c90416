/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_ini.c - the syntax of ~/.aws/config and ~/.aws/credentials. Pure: bytes to settings.
 *
 *     [default]                   sections; "profile" and a name, in quotes or not, in config
 *     region = eu-west-1          # a comment after white space
 *     s3 =
 *       endpoint_url = https://h  a deeper line below an empty value: s3.endpoint_url
 *
 * Files are written by hand and by many tools: whatever is not a setting is passed over, never an error; CRLF, a byte order mark,
 * indented sections and spaces anywhere are fine; of a name given twice the caller hears twice. The line in work is wiped at the
 * end, for values are secrets.
 *
 * No state: any thread.
 */
#include "tiers/s3.h"

struct ini {
    s3_ini_fn *fn;
    void *user;
    struct buf line, section, parent; /* NUL-terminated; parent: the setting with an empty value that deeper lines belong to */
    bool in_section;
    bool any;        /* a setting came in this section; */
    size_t indent;   /* its indentation */
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

static char *skip_blanks(char *s)
{
    while (is_blank(*s))
        s++;
    return s;
}

static void trim_end(char *s)
{
    size_t n = strlen(s);

    while (n > 0 && is_blank(s[n - 1]))
        s[--n] = '\0';
}

static int set_text(struct buf *b, const char *text, struct larder_error *err)
{
    b->len = 0;
    return buf_append(b, text, strlen(text) + 1, err);
}

/* "[ profile  "a b" ]" -> "profile a b". */
static int section_line(struct ini *p, char *s, struct larder_error *err)
{
    char *end = strchr(s, ']');
    char *name = skip_blanks(s + 1);

    p->in_section = p->any = false;
    p->parent.len = 0;
    if (!end)
        return LARDER_OK;
    *end = '\0';
    trim_end(name);
    size_t word = strcspn(name, " \t");
    char *rest = skip_blanks(name + word);
    if (*rest) { /* two words: kind and name */
        size_t n = strlen(rest);
        if (n >= 2 && (*rest == '"' || *rest == '\'') && rest[n - 1] == *rest) {
            rest[n - 1] = '\0';
            rest++;
        }
        name[word] = '\0';
        p->section.len = 0;
        int rc = buf_printf(&p->section, err, "%s %s", name, rest);
        if (rc)
            return rc;
    } else {
        int rc = set_text(&p->section, name, err);
        if (rc)
            return rc;
    }
    p->in_section = true;
    return p->fn(p->user, (char *)p->section.data, "", "");
}

static void cut_comment(char *value)
{
    for (char *c = value; *c; c++)
        if ((*c == '#' || *c == ';') && c > value && is_blank(c[-1])) {
            *c = '\0';
            return;
        }
}

static int setting_line(struct ini *p, char *s, size_t indent, struct larder_error *err)
{
    char *equals = strchr(s, '=');
    bool nested = p->any && indent > p->indent;
    AUTO_BUF struct buf name = BUF_INIT;
    int rc;

    if (!equals || equals == s || (nested && p->parent.len == 0))
        return LARDER_OK; /* no setting, or the continuation of a value: nothing that is used has more than one line */
    *equals = '\0';
    trim_end(s);
    for (char *c = s; *c; c++)
        if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    char *value = skip_blanks(equals + 1);
    if (*value == '#' || *value == ';')
        *value = '\0';
    cut_comment(value);
    trim_end(value);
    if (!nested) {
        p->any = true;
        p->indent = indent;
        p->parent.len = 0;
        rc = *value ? LARDER_OK : set_text(&p->parent, s, err);
        return rc ? rc : p->fn(p->user, (char *)p->section.data, s, value);
    }
    rc = buf_printf(&name, err, "%s.%s", (char *)p->parent.data, s);
    return rc ? rc : p->fn(p->user, (char *)p->section.data, (char *)name.data, value);
}

static int take_line(struct ini *p, const char *text, size_t len, struct larder_error *err)
{
    p->line.len = 0;
    int rc = buf_append(&p->line, text, len, err);
    if (rc == LARDER_OK)
        rc = buf_append(&p->line, "", 1, err);
    if (rc)
        return rc;
    char *line = (char *)p->line.data, *s = skip_blanks(line);
    if (!*s || *s == '#' || *s == ';')
        return LARDER_OK;
    trim_end(s);
    if (*s == '[')
        return section_line(p, s, err);
    return p->in_section ? setting_line(p, s, (size_t)(s - line), err) : LARDER_OK;
}

int s3_ini_parse(const char *text, size_t len, s3_ini_fn *fn, void *user, struct larder_error *err)
{
    struct ini p = {.fn = fn, .user = user};
    int rc = LARDER_OK;

    if (len >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        len -= 3;
    }
    while (len > 0 && rc == LARDER_OK) {
        const char *end = memchr(text, '\n', len);
        size_t n = end ? (size_t)(end - text) : len;
        rc = take_line(&p, text, n, err);
        n += end != NULL;
        text += n;
        len -= n;
    }
    s3_wipe(p.line.data, p.line.cap);
    buf_release(&p.line);
    buf_release(&p.section);
    buf_release(&p.parent);
    return rc;
}
