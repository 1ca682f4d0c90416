/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lists.c - files with a line a sample: names, as get takes them ("@17" is an ordinal, "@@x" the key "@x", all else a key), or numbers.
 *
 * Names are looked up some thousand at a time, so that only what is wanted of them is kept, ordinals or bits. Empty lines count for
 * nothing.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

#define TOGETHER 4096

/* ---- lines ---- */

struct lines {
    struct tool *t;
    const char *path;
    uint64_t line; /* its number */
};

static int bad_line(const struct lines *l, uint64_t line, const char *text, const char *why)
{
    return tool_fail(l->t, "%s: line %" PRIu64 ": '%.100s' %s", l->path, line, text, why);
}

/* Calls each() for every line that is not empty, until it returns anything but EXIT_DONE. */
static int each_line(struct lines *l, int (*each)(void *user, const char *text), void *user)
{
    FILE *f = fopen(l->path, "r");
    char *text = NULL;
    size_t cap = 0;
    ssize_t len = 0;
    int rc = EXIT_DONE;

    if (!f)
        return tool_fail(l->t, "%s: %s", l->path, strerror(errno));
    for (l->line = 1; rc == EXIT_DONE && (len = getline(&text, &cap, f)) >= 0; l->line++) {
        while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r'))
            text[--len] = 0;
        if (strlen(text) != (size_t)len)
            rc = bad_line(l, l->line, text, "is followed by a zero byte");
        else if (len > 0)
            rc = each(user, text);
    }
    if (rc == EXIT_DONE && ferror(f))
        rc = tool_fail(l->t, "%s: %s", l->path, strerror(errno));
    free(text);
    fclose(f);
    return rc;
}

/* ---- names ---- */

struct names {
    struct lines lines;
    struct larder_dataset *ds;
    uint64_t samples;
    list_fn *found;
    void *user;
    size_t n, n_keys;         /* that wait to be looked up */
    uint64_t line[TOGETHER], ordinal[TOGETHER], looked_up[TOGETHER]; /* ordinal: LARDER_NO_ORDINAL where a key stands */
    const void *keys[TOGETHER]; /* owned */
    size_t lens[TOGETHER];
};

static void forget(struct names *s)
{
    while (s->n_keys)
        free((void *)(uintptr_t)s->keys[--s->n_keys]);
    s->n = 0;
}

/* Tells found() of all that wait, in turn. */
static int give(struct names *s)
{
    struct larder_error err = {0};

    if (s->n_keys && larder_dataset_lookup(s->ds, s->keys, s->lens, s->n_keys, s->looked_up, &err))
        return tool_error(s->lines.t, &err);
    for (size_t i = 0, k = 0; i < s->n; i++) {
        uint64_t o = s->ordinal[i];

        if (o == LARDER_NO_ORDINAL && (o = s->looked_up[k++]) == LARDER_NO_ORDINAL)
            return bad_line(&s->lines, s->line[i], s->keys[k - 1], "is no key of the dataset; 'larder ls' lists the keys");
        if (s->found(s->user, o))
            return tool_nomem(s->lines.t);
    }
    forget(s);
    return EXIT_DONE;
}

static int add_key(struct names *s, const char *key)
{
    size_t len = strlen(key);

    if (len > LARDER_KEY_MAX)
        return bad_line(&s->lines, s->lines.line, key, "is longer than any key");
    s->ordinal[s->n] = LARDER_NO_ORDINAL;
    s->lens[s->n_keys] = len;
    s->keys[s->n_keys] = strdup(key);
    if (!s->keys[s->n_keys])
        return tool_nomem(s->lines.t);
    s->n_keys++;
    return EXIT_DONE;
}

static int add_name(void *user, const char *text)
{
    struct names *s = user;

    s->line[s->n] = s->lines.line;
    if (text[0] != '@' || text[1] == '@') {
        if (add_key(s, text + (text[0] == '@')))
            return s->lines.t->status;
    } else if (parse_u64(text + 1, &s->ordinal[s->n])) {
        return bad_line(&s->lines, s->lines.line, text, "is not @ORDINAL; a key that begins with '@' is written with one more");
    } else if (s->ordinal[s->n] >= s->samples) {
        return bad_line(&s->lines, s->lines.line, text, "is beyond the samples of the dataset");
    }
    return ++s->n == TOGETHER ? give(s) : EXIT_DONE;
}

int list_names(struct tool *t, struct larder_dataset *ds, const char *path, list_fn *found, void *user)
{
    struct larder_dataset_info in = {.struct_size = sizeof in};
    struct larder_error err = {0};
    struct names *s;
    int rc;

    if (larder_dataset_info(ds, &in, &err))
        return tool_error(t, &err);
    s = calloc(1, sizeof *s);
    if (!s)
        return tool_nomem(t);
    s->lines.t = t;
    s->lines.path = path;
    s->ds = ds;
    s->samples = in.samples;
    s->found = found;
    s->user = user;
    rc = each_line(&s->lines, add_name, s);
    if (rc == EXIT_DONE)
        rc = give(s);
    forget(s);
    free(s);
    return rc;
}

/* ---- numbers ---- */

struct numbers {
    struct lines lines;
    double *v;
    uint64_t n, want;
};

static int add_number(void *user, const char *text)
{
    struct numbers *s = user;
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !(v >= 0) || isinf(v))
        return bad_line(&s->lines, s->lines.line, text, "is no weight: a number such as 1 or 0.25 is needed");
    if (s->n == s->want)
        return tool_fail(s->lines.t, "%s: more than %" PRIu64 " lines: one for each sample is needed", s->lines.path, s->want);
    s->v[s->n++] = v;
    return EXIT_DONE;
}

int list_numbers(struct tool *t, const char *path, uint64_t n, double **v)
{
    struct numbers s = {.lines = {t, path, 0}, .want = n};
    int rc;

    *v = NULL;
    s.v = calloc(n ? n : 1, sizeof *s.v);
    if (!s.v)
        return tool_nomem(t);
    rc = each_line(&s.lines, add_number, &s);
    if (rc == EXIT_DONE && s.n < n)
        rc = tool_fail(t, "%s: %" PRIu64 " lines, not %" PRIu64 ": one for each sample is needed", path, s.n, n);
    if (rc)
        free(s.v);
    else
        *v = s.v;
    return rc;
}
