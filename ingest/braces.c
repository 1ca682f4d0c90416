/* SPDX-License-Identifier: Apache-2.0 */
/*
 * braces.c - names of many archives in one argument: x-{000..009}.tar, {train,val}.tar.
 *
 * The first group of a path is expanded and what comes of it is expanded again, so several groups multiply. A path that
 * exists as written stands for itself; braces that are no group (no comma, no range) are ordinary characters. Numbers keep
 * the zero padding of their bounds. Pure but for that one look at the file system.
 */
#include "ingest/ingest_int.h"

#include <unistd.h>

#define EXPANDED_MAX 1000000u /* archives: a slip such as {0..99999999999} must not eat the memory */
#define GROUPS_MAX 16u

struct list { char **paths; size_t n, cap; };

static int add(struct list *l, char *path, struct larder_error *err)
{
    int rc = path ? LARDER_OK : err_nomem(err, 1, "a path");
    if (!rc && l->n >= EXPANDED_MAX)
        rc = err_set(err, LARDER_EINVAL, "braces expand to more than %u paths", EXPANDED_MAX);
    if (!rc)
        rc = GROW(l->paths, l->cap, l->n + 1, err);
    if (rc) {
        free(path);
        return rc;
    }
    l->paths[l->n++] = path;
    return LARDER_OK;
}

/* Digits at p up to end: their value. */
static bool number(const char *p, const char *end, uint64_t *v)
{
    *v = 0;
    if (p == end || end - p > 18)
        return false;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9')
            return false;
        *v = *v * 10 + (uint64_t)(*p - '0');
    }
    return true;
}

/* "A..B" between the braces. */
static bool range(const char *open, const char *close, uint64_t *a, uint64_t *b, int *width)
{
    const char *dots = memmem(open, (size_t)(close - open), "..", 2);
    if (!dots || !number(open, dots, a) || !number(dots + 2, close, b))
        return false;
    int wa = (int)(dots - open), wb = (int)(close - dots - 2);
    bool padded = (wa > 1 && *open == '0') || (wb > 1 && dots[2] == '0');
    *width = padded ? MAX(wa, wb) : 1;
    return true;
}

static int expand(const char *path, unsigned depth, struct list *l, struct larder_error *err);

static int expand_range(const char *path, const char *open, const char *close, uint64_t a, uint64_t b, int width, unsigned depth,
                        struct list *l, struct larder_error *err)
{
    if ((a < b ? b - a : a - b) >= EXPANDED_MAX)
        return err_set(err, LARDER_EINVAL, "%s: braces expand to more than %u paths", path, EXPANDED_MAX);
    for (uint64_t v = a;; v += a < b ? 1 : UINT64_MAX /* -1 */) {
        char *one = NULL;
        if (asprintf(&one, "%.*s%0*llu%s", (int)(open - path), path, width, (unsigned long long)v, close + 1) < 0)
            return err_nomem(err, strlen(path), "a path");
        int rc = expand(one, depth + 1, l, err);
        free(one);
        if (rc || v == b)
            return rc;
    }
}

static int expand_list(const char *path, const char *open, const char *close, unsigned depth, struct list *l,
                       struct larder_error *err)
{
    for (const char *p = open + 1; p <= close; p++) {
        const char *end = p;
        while (end < close && *end != ',')
            end++;
        char *one = NULL;
        if (asprintf(&one, "%.*s%.*s%s", (int)(open - path), path, (int)(end - p), p, close + 1) < 0)
            return err_nomem(err, strlen(path), "a path");
        int rc = expand(one, depth + 1, l, err);
        free(one);
        if (rc)
            return rc;
        p = end;
    }
    return LARDER_OK;
}

static int expand(const char *path, unsigned depth, struct list *l, struct larder_error *err)
{
    if (depth > GROUPS_MAX)
        return err_set(err, LARDER_EINVAL, "%s: more than %u groups of braces", path, GROUPS_MAX);
    if (access(path, F_OK) == 0)
        return add(l, strdup(path), err);
    for (const char *open = strchr(path, '{'); open; open = strchr(open + 1, '{')) {
        const char *close = open + 1 + strcspn(open + 1, "{}");
        if (*close != '}')
            continue;
        uint64_t a, b;
        int width;
        if (range(open + 1, close, &a, &b, &width))
            return expand_range(path, open, close, a, b, width, depth, l, err);
        if (memchr(open, ',', (size_t)(close - open)))
            return expand_list(path, open, close, depth, l, err);
    }
    return add(l, strdup(path), err);
}

int braces_expand(const char *const *paths, size_t n, char ***out, size_t *n_out, struct larder_error *err)
{
    struct list l = {NULL, 0, 0};
    for (size_t i = 0; i < n; i++) {
        int rc = expand(paths[i], 0, &l, err);
        if (rc) {
            strings_free(l.paths, l.n);
            return rc;
        }
    }
    *out = l.paths;
    *n_out = l.n;
    return LARDER_OK;
}
