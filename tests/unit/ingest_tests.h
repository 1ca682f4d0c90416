/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest_tests.h - what the tests of ingest/ share: files to ingest, runs with their notices counted, a dataset read back through
 * larder.h as "key -> field -> bytes".
 */
#ifndef INGEST_TESTS_H
#define INGEST_TESTS_H

#include <fcntl.h>
#include <sys/wait.h>

#include "ingest/ingest_int.h"
#include "tests/unit/test.h"

static inline char *path_of(const char *dir, const char *name)
{
    char *p = NULL;

    REQUIRE(asprintf(&p, "%s/%s", dir, name) > 0);
    return p;
}

/* Makes the folders on the way too. */
static inline void write_file(const char *dir, const char *name, const void *data, size_t len)
{
    char path[4096];

    REQUIRE(snprintf(path, sizeof(path), "%s/%s", dir, name) < (int)sizeof(path));
    for (size_t i = strlen(dir) + 1; path[i]; i++)
        if (path[i] == '/') {
            path[i] = 0;
            (void)mkdir(path, 0777);
            path[i] = '/';
        }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    REQUIRE(fd >= 0);
    REQUIRE_EQ(write(fd, data, len), len);
    close(fd);
}

static inline void write_text(const char *dir, const char *name, const char *text) { write_file(dir, name, text, strlen(text)); }

static inline char *sub_dir(const char *dir, const char *name)
{
    char *path = path_of(dir, name);

    REQUIRE(mkdir(path, 0777) == 0);
    return path;
}

static inline void fill(uint64_t seed, uint8_t *out, size_t len)
{
    uint64_t state = seed * 2 + 1;

    rng_fill(&state, out, len);
}

/* The notices of a run, as lines "what: why". */
struct heard {
    struct buf skipped, ignored;
    unsigned n_skipped, n_ignored, ticks;
    unsigned stop_at;   /* progress call that asks to stop; 0: none */
    const char *stop_in; /* phase that asks to stop; NULL: none */
};

static inline void heard_skipped(void *user, const char *what, const char *why)
{
    struct heard *h = user;

    h->n_skipped++;
    (void)buf_printf(&h->skipped, NULL, "%s: %s\n", what, why);
}

static inline void heard_ignored(void *user, const char *what, const char *why)
{
    struct heard *h = user;

    h->n_ignored++;
    (void)buf_printf(&h->ignored, NULL, "%s: %s\n", what, why);
}

static inline int heard_progress(void *user, const struct larder_progress *p)
{
    struct heard *h = user;

    h->ticks++;
    return (h->stop_at && h->ticks >= h->stop_at) || (h->stop_in && !strcmp(p->phase, h->stop_in));
}

static inline const char *heard_text(struct buf *b)
{
    REQUIRE(buf_append(b, "", 1, NULL) == LARDER_OK);
    b->len--;
    return (char *)b->data;
}

static inline void heard_release(struct heard *h)
{
    buf_release(&h->skipped);
    buf_release(&h->ignored);
    memset(h, 0, sizeof(*h));
}

static inline struct larder_ingest_options heard_options(struct heard *h)
{
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;

    memset(h, 0, sizeof(*h));
    o.progress = heard_progress;
    o.skipped = heard_skipped;
    o.ignored = heard_ignored;
    o.user = h;
    return o;
}

static inline int ingest_one(const char *source, const char *dest, const struct larder_ingest_options *o,
                             struct larder_ingest_report *r, struct larder_error *err)
{
    struct larder_ingest_report none;

    r = r ? r : &none;
    *r = (struct larder_ingest_report){.struct_size = sizeof(*r)};
    return larder_ingest_run(&source, 1, dest, o, r, err);
}

/* The sample of a key: all fields. Released by the caller. */
static inline struct larder_sample get_sample(struct larder_dataset *ds, const char *key)
{
    struct larder_sample s = {0};
    struct larder_error err;

    CHECK_OK(larder_dataset_get(ds, key, strlen(key), &s, &err), &err);
    return s;
}

static inline void check_value(const struct larder_sample *s, uint32_t field, const void *data, size_t len)
{
    REQUIRE(field < s->n_fields);
    REQUIRE(s->fields[field].data != NULL);
    REQUIRE_EQ(s->fields[field].len, len);
    CHECK_MEM(s->fields[field].data, data, len);
}

static inline int64_t value_i64(const struct larder_sample *s, uint32_t field)
{
    REQUIRE(field < s->n_fields && s->fields[field].data && s->fields[field].len == 8);
    return (int64_t)get_u64(s->fields[field].data);
}

static inline struct larder_dataset *open_ds(const char *path)
{
    struct larder_dataset *ds = NULL;
    struct larder_error err;

    REQUIRE_OK(larder_dataset_open(path, NULL, &ds, &err), &err);
    return ds;
}

static inline uint64_t count_samples(const char *path)
{
    struct larder_dataset *ds = open_ds(path);
    struct larder_dataset_info info = {.struct_size = sizeof(info)};

    CHECK_EQ(larder_dataset_info(ds, &info, NULL), 0);
    larder_dataset_close(ds);
    return info.samples;
}

static inline void verify_ds(const char *path)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_verify_report r = {.struct_size = sizeof(r)};
    struct larder_error err;

    CHECK_OK(larder_verify_run(path, &o, &r, &err), &err);
}

/* Files below a folder whose name begins with `prefix`, hidden ones not counted. */
static inline unsigned count_files(const char *dir, const char *sub)
{
    char *path = path_of(dir, sub);
    unsigned n = 0;
    char command[512];
    FILE *p;

    snprintf(command, sizeof(command), "find '%s' -type f 2>/dev/null | wc -l", path);
    p = popen(command, "r");
    REQUIRE(p && fscanf(p, "%u", &n) == 1);
    pclose(p);
    free(path);
    return n;
}

/* Sum over all samples of a hash of (key, fields), so that two datasets can be compared whatever their order. */
static inline uint64_t digest_ds(const char *path)
{
    struct larder_dataset *ds = open_ds(path);
    struct larder_dataset_info info = {.struct_size = sizeof(info)};
    struct larder_error err;
    uint64_t sum = 0;

    REQUIRE(larder_dataset_info(ds, &info, NULL) == 0);
    for (uint64_t i = 0; i < info.samples; i++) {
        struct larder_sample s = {0};
        uint8_t key[LARDER_KEY_MAX];
        size_t len;

        REQUIRE_OK(larder_dataset_read(ds, &i, 1, NULL, &s, &err), &err);
        REQUIRE_OK(larder_dataset_key(ds, i, key, sizeof(key), &len, &err), &err);
        uint64_t h = hash64(1, key, len);
        for (uint32_t f = 0; f < s.n_fields; f++)
            h = hash64(h + s.fields[f].len, s.fields[f].data ? s.fields[f].data : "-", s.fields[f].data ? s.fields[f].len : 1);
        sum += h;
        larder_samples_release(&s, 1);
    }
    larder_dataset_close(ds);
    return sum;
}

#endif
