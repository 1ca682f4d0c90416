/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keeping.h - a dataset of two generations and several shards, for the tests of verify, repair and gc: set_up makes one, flip
 * damages a byte of a file, verify and repair run with what they tell, check_all compares every sample.
 */
#ifndef TEST_KEEPING_H
#define TEST_KEEPING_H

#include <fcntl.h>

#include "store/store_int.h"
#include "tests/unit/test.h"

enum { N = 500 };

struct fixture { const char *dir; struct store_io *io; struct manifest m; };

static inline void value_of(uint64_t i, char text[64]) { snprintf(text, 64, "the text of sample %llu", (unsigned long long)i * 7919); }

static inline void add(const char *dir, uint64_t first, uint64_t n, bool append)
{
    static const struct larder_field fields[2] = {{"text", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}};
    struct larder_error err = {0};
    struct larder_writer *w;
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    o.shard_size = 6000;
    o.append = append;
    REQUIRE_OK(larder_writer_open(dir, fields, 2, &o, &w, &err), &err);
    for (uint64_t i = first; i < first + n; i++) {
        char key[32], text[64];
        int64_t label = (int64_t)i;
        value_of(i, text);
        struct larder_value v[2] = {{text, strlen(text)}, {&label, 8}};
        REQUIRE_OK(larder_writer_add(w, key, (size_t)snprintf(key, sizeof(key), "key-%llu", (unsigned long long)i), v, &err), &err);
    }
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
}

static inline void set_up(struct fixture *f)
{
    struct larder_error err = {0};
    static char dirs[32][160];
    static int n;
    char *dir = dirs[n++ % 32];
    snprintf(dir, 160, "%s/d", tmp_dir());
    f->dir = dir;
    add(f->dir, 0, N / 2, false);
    add(f->dir, N / 2, N / 2, true);
    REQUIRE_OK(io_file_open(f->dir, false, 0, &f->io, &err), &err);
    REQUIRE_OK(generation_load(f->io, 2, &f->m, &err), &err);
    REQUIRE(f->m.n_shards >= 6);
}

static inline void tear_down(struct fixture *f)
{
    manifest_release(&f->m);
    io_close(f->io);
}

static inline void flip(const struct fixture *f, const char *name, int64_t off)
{
    char path[400];
    uint8_t b;
    snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    int fd = open(path, O_RDWR);
    REQUIRE(fd >= 0);
    off += off < 0 ? lseek(fd, 0, SEEK_END) : 0;
    REQUIRE_EQ(pread(fd, &b, 1, off), 1);
    b ^= 0x21;
    REQUIRE_EQ(pwrite(fd, &b, 1, off), 1);
    close(fd);
}

struct told { int n; uint64_t shard_no, slot, ordinal; char file[200], key[64], why[300]; };

static inline void tell(void *user, const struct larder_damage *d)
{
    struct told *t = user;
    if (t->n++)
        return;
    t->shard_no = d->shard_no;
    t->slot = d->slot;
    t->ordinal = d->ordinal;
    snprintf(t->file, sizeof(t->file), "%s", d->file);
    snprintf(t->key, sizeof(t->key), "%.*s", (int)d->key_len, d->key ? (const char *)d->key : "");
    snprintf(t->why, sizeof(t->why), "%s", d->why);
}

static inline int verify(const struct fixture *f, struct told *t, struct larder_verify_report *r)
{
    struct larder_verify_options o = LARDER_VERIFY_OPTIONS_INIT;
    struct larder_error err = {0};
    memset(t, 0, sizeof(*t));
    *r = (struct larder_verify_report){.struct_size = sizeof(*r)};
    o.damage = tell;
    o.user = t;
    o.workers = 1;
    int rc = larder_verify_run(f->dir, &o, r, &err);
    if (rc && rc != LARDER_ECORRUPT)
        CHECK_OK(rc, &err);
    return rc;
}

static inline struct larder_repair_report repair(const struct fixture *f, bool dry_run)
{
    struct larder_repair_options o = LARDER_REPAIR_OPTIONS_INIT;
    struct larder_repair_report r = {.struct_size = sizeof(r)};
    struct larder_error err = {0};
    o.dry_run = dry_run;
    CHECK_OK(larder_repair_run(f->dir, &o, &r, &err), &err);
    return r;
}

/* Every sample of the dataset has its right text, label and ordinal by key; returns how many there are. `gone` must not be. */
static inline uint64_t check_all(const struct fixture *f, uint64_t gone)
{
    struct larder_error err = {0};
    struct larder_dataset *ds;
    struct larder_dataset_info info = {.struct_size = sizeof(info)};
    REQUIRE_OK(larder_dataset_open(f->dir, NULL, &ds, &err), &err);
    REQUIRE_OK(larder_dataset_info(ds, &info, &err), &err);
    uint64_t found = 0;
    for (uint64_t i = 0; i < N; i++) {
        char key[32], text[64];
        struct larder_sample s = {0, 0, NULL, NULL};
        int rc = larder_dataset_get(ds, key, (size_t)snprintf(key, sizeof(key), "key-%llu", (unsigned long long)i), &s, &err);
        CHECK(rc == LARDER_OK || rc == LARDER_ENOTFOUND);
        CHECK(i != gone || rc == LARDER_ENOTFOUND);
        if (rc)
            continue;
        value_of(i, text);
        REQUIRE_EQ(s.fields[0].len, strlen(text));
        REQUIRE_MEM(s.fields[0].data, text, strlen(text));
        REQUIRE_EQ(get_u64(s.fields[1].data), i);
        larder_samples_release(&s, 1);
        found++;
    }
    CHECK_EQ(found, info.samples);
    larder_dataset_close(ds);
    return found;
}

#endif
