/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_line.c - writes JSON, one object a line: {"name": value, ...}.
 *
 * Strings are escaped and always valid UTF-8: bytes that are not UTF-8 become a member NAME_hex of hex digits, so that a
 * key survives the trip exactly and a reader that forgets about it gets no wrong key. Write errors stay in the stream; main
 * looks at it before exit.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tools/tools.h"

static void put_string(struct json *j, const char *s, size_t len)
{
    fputc('"', j->f);
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];

        if (c == '"' || c == '\\')
            fprintf(j->f, "\\%c", c);
        else if (c == '\n')
            fputs("\\n", j->f);
        else if (c == '\t')
            fputs("\\t", j->f);
        else if (c < 0x20 || c == 0x7f)
            fprintf(j->f, "\\u%04x", c);
        else
            fputc(c, j->f);
    }
    fputc('"', j->f);
}

static void put_name(struct json *j, const char *name, const char *suffix)
{
    char full[300];

    if (j->comma)
        fputs(", ", j->f);
    j->comma = 1;
    if (!name)
        return;
    /* Names are ours or a schema's, at most 255 bytes. */
    put_string(j, full, (size_t)snprintf(full, sizeof full, "%.255s%s", name, suffix));
    fputs(": ", j->f);
}

void json_begin(struct json *j, FILE *f)
{
    *j = (struct json){f, 0};
    fputc('{', f);
}

void json_end(struct json *j)
{
    fputs("}\n", j->f);
}

void json_object(struct json *j, const char *name)
{
    put_name(j, name, "");
    fputc('{', j->f);
    j->comma = 0;
}

void json_array(struct json *j, const char *name)
{
    put_name(j, name, "");
    fputc('[', j->f);
    j->comma = 0;
}

void json_close(struct json *j, char bracket)
{
    fputc(bracket, j->f);
    j->comma = 1;
}

void json_u64(struct json *j, const char *name, uint64_t v)
{
    put_name(j, name, "");
    fprintf(j->f, "%" PRIu64, v);
}

void json_i64(struct json *j, const char *name, int64_t v)
{
    put_name(j, name, "");
    fprintf(j->f, "%" PRId64, v);
}

void json_double(struct json *j, const char *name, double v, int is_float)
{
    char buf[TEXT_MAX];

    put_name(j, name, "");
    fputs(isfinite(v) ? text_double(v, is_float, buf) : "null", j->f);
}

void json_fixed(struct json *j, const char *name, double v, int decimals)
{
    put_name(j, name, "");
    if (isfinite(v))
        fprintf(j->f, "%.*f", decimals, v);
    else
        fputs("null", j->f);
}

void json_bool(struct json *j, const char *name, int v)
{
    put_name(j, name, "");
    fputs(v ? "true" : "false", j->f);
}

void json_null(struct json *j, const char *name)
{
    put_name(j, name, "");
    fputs("null", j->f);
}

void json_hash(struct json *j, const char *name, uint64_t v)
{
    put_name(j, name, "");
    fprintf(j->f, "\"%016" PRIx64 "\"", v);
}

void json_text(struct json *j, const char *name, const char *s)
{
    if (s)
        json_bytes(j, name, s, strlen(s));
    else
        json_null(j, name);
}

void json_bytes(struct json *j, const char *name, const void *data, size_t len)
{
    const unsigned char *p = data;

    if (text_is_utf8(data, len)) {
        put_name(j, name, "");
        put_string(j, data, len);
        return;
    }
    put_name(j, name, "_hex");
    fputc('"', j->f);
    for (size_t i = 0; i < len; i++)
        fprintf(j->f, "%02x", p[i]);
    fputc('"', j->f);
}
