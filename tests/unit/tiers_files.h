/* SPDX-License-Identifier: Apache-2.0 */
/* tiers_files.h - shard-like files with known content, and extents into them, for the tests of tiers/. */
#ifndef TIERS_FILES_H
#define TIERS_FILES_H

#include <fcntl.h>

#include "tests/unit/test.h"
#include "tiers/tiers_int.h"

struct files {
    const char *dir;
    size_t n;
    struct shard_ref *refs;
    uint8_t **bytes; /* what lies in file i */
};

/* n files of about size bytes each, none a multiple of a block. */
TEST_UNUSED static struct files files_make(size_t n, size_t size, uint64_t seed)
{
    struct files f = {tmp_dir(), n, calloc(n, sizeof(*f.refs)), calloc(n, sizeof(*f.bytes))};
    for (size_t i = 0; i < n; i++) {
        char path[160];
        f.refs[i].size = size + rng_below(&seed, 4000) + 1;
        f.refs[i].name = malloc(32);
        snprintf(f.refs[i].name, 32, "shard-%zu", i);
        f.bytes[i] = malloc(f.refs[i].size);
        rng_fill(&seed, f.bytes[i], f.refs[i].size);
        snprintf(path, sizeof(path), "%s/%s", f.dir, f.refs[i].name);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd < 0 || write(fd, f.bytes[i], f.refs[i].size) != (ssize_t)f.refs[i].size)
            abort();
        close(fd);
    }
    return f;
}

TEST_UNUSED static void files_release(struct files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->refs[i].name);
        free(f->bytes[i]);
    }
    free(f->refs);
    free(f->bytes);
}

TEST_UNUSED static char *files_path(const struct files *f, size_t i, char path[160])
{
    snprintf(path, 160, "%s/%s", f->dir, f->refs[i].name);
    return path;
}

/* A random extent of at most len_max bytes. */
TEST_UNUSED static struct extent files_extent(const struct files *f, uint64_t *seed, size_t len_max)
{
    struct extent e = {.shard = (uint32_t)rng_below(seed, f->n)};
    uint64_t size = f->refs[e.shard].size;
    uint64_t len = rng_below(seed, len_max + 1);
    e.stored_len = (uint32_t)MIN(len, size);
    e.offset = rng_below(seed, size - e.stored_len + 1);
    if (rng_below(seed, 16) == 0)
        e.offset = size - e.stored_len; /* at the end of the file */
    return e;
}

/* Whether all n records of a completed fetch have their bytes. */
TEST_UNUSED static bool files_match(const struct files *f, const struct tiers_fetch *fetch, const struct extent *e, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (memcmp(tiers_fetch_record(fetch, i), f->bytes[e[i].shard] + e[i].offset, e[i].stored_len) != 0) {
            fprintf(stderr, "record %zu: shard %u offset %llu len %u differs\n", i, e[i].shard,
                    (unsigned long long)e[i].offset, e[i].stored_len);
            return false;
        }
    }
    return true;
}

#endif
