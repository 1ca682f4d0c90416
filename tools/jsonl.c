/* SPDX-License-Identifier: Apache-2.0 */
/*
 * jsonl.c - writes JSON, one object a line: {"name": value, ...}.
 *
 * Strings are escaped and always valid UTF-8: bytes that are not UTF-8 become a member NAME_hex of hex
 * digits, so that a key survives the trip exactly and a reader that forgets about it gets no wrong key. Write
 * errors stay in the stream; main looks at it before exit.
 */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tools/tools.h"

static void put_string(struct jsonl *j, const char *s, size_t len)
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

static void put_name(struct jsonl *j, const char *name, const char *suffix)
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

void jsonl_begin(struct jsonl *j, FILE *f)
{
    *j = (struct jsonl){f, 0};
    fputc('{', f);
}

void jsonl_end(struct jsonl *j)
{
    fputs("}\n", j->f);
}

void jsonl_object(struct jsonl *j, const char *name)
{
    put_name(j, name, "");
    fputc('{', j->f);
    j->comma = 0;
}

void jsonl_array(struct jsonl *j, const char *name)
{
    put_name(j, name, "");
    fputc('[', j->f);
    j->comma = 0;
}

void jsonl_close(struct jsonl *j, char bracket)
{
    fputc(bracket, j->f);
    j->comma = 1;
}

void jsonl_u64(struct jsonl *j, const char *name, uint64_t v)
{
    put_name(j, name, "");
    fprintf(j->f, "%" PRIu64, v);
}

void jsonl_i64(struct jsonl *j, const char *name, int64_t v)
{
    put_name(j, name, "");
    fprintf(j->f, "%" PRId64, v);
}

void jsonl_double(struct jsonl *j, const char *name, double v, int is_float)
{
    char buf[TEXT_MAX];

    put_name(j, name, "");
    fputs(isfinite(v) ? text_double(v, is_float, buf) : "null", j->f);
}

void jsonl_fixed(struct jsonl *j, const char *name, double v, int decimals)
{
    put_name(j, name, "");
    if (isfinite(v))
        fprintf(j->f, "%.*f", decimals, v);
    else
        fputs("null", j->f);
}

void jsonl_bool(struct jsonl *j, const char *name, int v)
{
    put_name(j, name, "");
    fputs(v ? "true" : "false", j->f);
}

void jsonl_null(struct jsonl *j, const char *name)
{
    put_name(j, name, "");
    fputs("null", j->f);
}

void jsonl_hash(struct jsonl *j, const char *name, uint64_t v)
{
    put_name(j, name, "");
    fprintf(j->f, "\"%016" PRIx64 "\"", v);
}

void jsonl_text(struct jsonl *j, const char *name, const char *s)
{
    if (s)
        jsonl_bytes(j, name, s, strlen(s));
    else
        jsonl_null(j, name);
}

void jsonl_bytes(struct jsonl *j, const char *name, const void *data, size_t len)
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
