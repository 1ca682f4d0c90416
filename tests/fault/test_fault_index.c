/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fault_index.c - the Nth allocation or system call fails while a generation is indexed (an append that absorbs one part, is
 * checked against another and drops duplicates) and while its index is read.
 *
 * Whatever fails: an error with its message and a manifest as it was, or the right index; nothing leaks.
 */
#include "store/store.h"
#include "tests/fault/fault.h"
#include "tests/unit/test.h"

static const struct larder_field fields[] = {{"text", LARDER_UTF8, NULL, 0, NULL}};

static uint32_t counter;

static void add_shard(struct store_io *io, struct manifest *m, unsigned lo, unsigned n)
{
    struct shard_params p = {.meta = m, .unit = counter};
    struct shard_writer *w;
    struct larder_error err = {0};
    char name[32], key[32];

    shard_name_new(7, counter++, name);
    REQUIRE_OK(shard_writer_open(io, name, &p, &w, &err), &err);
    for (unsigned i = lo; i < lo + n; i++) {
        int len = snprintf(key, sizeof(key), "key%u", i);
        struct larder_value v = {key, (size_t)len};
        REQUIRE_OK(shard_writer_add(w, key, (size_t)len, &v, &err), &err);
    }
    REQUIRE_OK(GROW(m->shards, m->cap_shards, m->n_shards + 1, &err), &err);
    REQUIRE_OK(shard_writer_finish(w, &m->shards[m->n_shards], &err), &err);
    m->n_shards++;
}

static int index_new(struct store_io *io, struct manifest *m, size_t first_new, uint64_t run, uint64_t *dropped,
                     struct larder_error *err)
{
    struct index_policy p = {.drop_duplicates = true};

    return generation_index(io, m, first_new, run, &p, dropped, err);
}

/* Keys 0..n-1 are found, each once, by lookup and by cursor. */
static int read_all(struct store_io *io, const struct manifest *m, uint64_t n, struct larder_error *err)
{
    struct index *ix;
    uint64_t sum = 0, seen = 0;
    int rc = index_open(io, m->parts, m->n_parts, MIB, &ix, err);

    if (rc)
        return rc;
    for (unsigned i = 0; rc == 0 && i < n; i++) {
        char key[32];
        const void *k = key;
        size_t len = (size_t)snprintf(key, sizeof(key), "key%u", i);
        uint64_t found;
        if ((rc = index_lookup(ix, &k, &len, 1, &found, err)) == 0) {
            CHECK(found < n);
            sum += found;
        }
    }
    index_close(ix);
    if (rc == 0)
        CHECK_EQ(sum, n * (n - 1) / 2);
    for (size_t i = 0; rc == 0 && i < m->n_parts; i++) {
        struct index_cursor *c;
        const void *k;
        size_t len;
        uint64_t ordinal;
        if ((rc = index_cursor_open(io, &m->parts[i], &c, err)))
            break;
        while ((rc = index_cursor_next(c, &k, &len, &ordinal, err)) == LARDER_OK)
            seen++;
        rc = rc == LARDER_END ? LARDER_OK : rc;
        index_cursor_close(c);
    }
    if (rc == 0)
        CHECK_EQ(seen, n);
    return rc;
}

/* A manifest like m, its lists copied. */
static void copy(struct manifest *to, const struct manifest *m)
{
    struct larder_error err = {0};

    *to = *m;
    to->shards = calloc(m->n_shards, sizeof(*m->shards));
    to->cap_shards = m->n_shards;
    to->parts = calloc(m->n_parts, sizeof(*m->parts));
    for (size_t i = 0; i < m->n_shards; i++)
        REQUIRE_OK(shard_ref_copy(&to->shards[i], &m->shards[i], &err), &err);
    for (size_t i = 0; i < m->n_parts; i++) {
        struct index_part *p = &to->parts[i];
        *p = m->parts[i];
        p->dir = strdup(p->dir);
        p->files = calloc(p->n_files, sizeof(*p->files));
        for (size_t k = 0; k < p->n_files; k++) {
            struct index_file *f = &p->files[k];
            *f = m->parts[i].files[k];
            f->name = strdup(f->name);
            f->first = bytes_dup(f->first, f->first_len);
            f->last = bytes_dup(f->last, f->last_len);
        }
    }
}

static void lists_release(struct manifest *m)
{
    for (size_t i = 0; i < m->n_shards; i++)
        shard_ref_release(&m->shards[i]);
    for (size_t i = 0; i < m->n_parts; i++)
        index_part_release(&m->parts[i]);
    free(m->shards);
    free(m->parts);
}

/* Fails kind number n; false when it never came to n. */
static bool try(struct store_io *io, const struct manifest *base, size_t first_new, enum fault_kind kind, long n)
{
    struct manifest m;
    struct larder_error err = {0};
    uint64_t dropped = 99;

    copy(&m, base);
    fault_arm(kind, n);
    int rc = index_new(io, &m, first_new, 1000 + (uint64_t)n + 100000 * (uint64_t)kind, &dropped, &err);
    bool hit = fault_disarm();
    if (rc) {
        CHECK(hit);
        CHECK(err.code == rc && err.message[0]);
        CHECK(kind != FAULT_SHORT);
        CHECK_EQ(m.n_shards, base->n_shards);
        CHECK_EQ(m.n_parts, base->n_parts);
        CHECK_EQ(dropped, 99);
        for (size_t i = 0; i < m.n_shards; i++)
            CHECK_STR(m.shards[i].name, base->shards[i].name);
    } else {
        CHECK_EQ(dropped, 15);
        CHECK_EQ(m.samples, 125);
        CHECK_EQ(m.n_parts, 2);
        CHECK_EQ(read_all(io, &m, 125, &err), 0);
        fault_arm(kind, n);
        rc = read_all(io, &m, 125, &err);
        hit |= fault_disarm();
        if (rc)
            CHECK(err.code == rc && err.message[0] && kind != FAULT_SHORT);
    }
    lists_release(&m);
    return hit;
}

TEST(every_failure)
{
    struct manifest m = {.generation = 1, .uuid = {1}, .lineage = {2}};
    struct larder_error err = {0};
    struct store_io *io;
    uint64_t dropped;

    REQUIRE_OK(io_file_open(tmp_dir(), true, 0, &io, &err), &err);
    REQUIRE_OK(schema_copy(&m.schema, fields, 1, &err), &err);
    add_shard(io, &m, 0, 100);
    REQUIRE_OK(index_new(io, &m, 0, 1, &dropped, &err), &err);
    m.generation++;
    add_shard(io, &m, 100, 10);
    REQUIRE_OK(index_new(io, &m, 1, 2, &dropped, &err), &err);
    m.generation++;
    REQUIRE_EQ(m.n_parts, 2);
    add_shard(io, &m, 95, 20);  /* five in the first part, ten in the second, which is absorbed */
    add_shard(io, &m, 115, 10);
    for (int kind = FAULT_ALLOC; kind <= FAULT_SHORT; kind++)
        for (long n = 1; try(io, &m, 2, (enum fault_kind)kind, n); n++)
            ;
    manifest_release(&m);
    io_close(io);
}

TEST_MAIN();
