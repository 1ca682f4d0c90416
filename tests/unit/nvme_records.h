/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvme_records.h - records whose length and bytes follow from (space, ordinal), to put into an NVMe cache and to know again.
 */
#ifndef NVME_RECORDS_H
#define NVME_RECORDS_H

#include <fcntl.h>

#include "tests/unit/test.h"
#include "tiers/nvme_int.h"

enum nvme_outcome { NVME_MISS, NVME_HIT, NVME_HEALED, NVME_WRONG };

TEST_UNUSED static struct cache_space nvme_test_space(unsigned i)
{
    struct cache_space s = {{0}, {0}, i};
    memset(s.uuid, (int)i, 16);
    memset(s.lineage, 0x55, 16);
    return s;
}

/* Bytes of a record; *c borrows them until the next call with the same buf (len_max bytes). */
TEST_UNUSED static void nvme_test_record(unsigned space, uint64_t ordinal, uint32_t len_max, uint8_t *buf, struct cached *c)
{
    uint64_t seed = (uint64_t)space << 40 ^ ordinal * 0x9e3779b97f4a7c15u;
    uint32_t len = (uint32_t)(rng_u64(&seed) % len_max) + 1;
    rng_fill(&seed, buf, len);
    *c = (struct cached){buf, len, len + 7, crc32c(0, buf, len), (uint8_t)(ordinal & 3)};
}

TEST_UNUSED static int nvme_test_admit(struct nvme *n, uint32_t id, unsigned space, uint64_t ordinal, uint32_t len_max)
{
    uint8_t *buf = malloc(len_max + 8);
    struct cached c;
    nvme_test_record(space, ordinal, len_max, buf, &c);
    int rc = nvme_admit(n, id, ordinal, &c);
    free(buf);
    return rc;
}

/* Looks a record up, reads it with pread, checks it, and compares every byte. */
TEST_UNUSED static enum nvme_outcome nvme_test_get(struct nvme *n, uint32_t id, unsigned space, uint64_t ordinal, uint32_t len_max)
{
    struct nvme_place at;
    struct cached hit, want;
    void *mem;
    if (!nvme_lookup(n, id, ordinal, &at))
        return NVME_MISS;
    if (posix_memalign(&mem, NVME_PAGE, at.len) != 0)
        abort();
    bool read = pread(at.fd, mem, at.len, (off_t)at.offset) == (ssize_t)at.len;
    enum nvme_outcome out = NVME_HEALED;
    if (nvme_check(n, id, ordinal, &at, read ? mem : NULL, &hit)) {
        uint8_t *buf = malloc(len_max + 8);
        nvme_test_record(space, ordinal, len_max, buf, &want);
        out = hit.stored_len == want.stored_len && hit.raw_len == want.raw_len && hit.crc == want.crc && hit.codec == want.codec &&
                      memcmp(hit.bytes, want.bytes, want.stored_len) == 0
                  ? NVME_HIT
                  : NVME_WRONG;
        free(buf);
    }
    free(mem);
    return out;
}

TEST_UNUSED static struct nvme *nvme_test_join(const char *dir, uint64_t bytes, enum replacement r, const char *name)
{
    struct nvme_options o = {dir, bytes, r, true, name};
    struct larder_error err;
    struct nvme *n;
    REQUIRE_OK(nvme_open(&o, &n, &err), &err);
    return n;
}

TEST_UNUSED static struct nvme *nvme_test_open(const char *dir, uint64_t bytes, enum replacement r)
{
    return nvme_test_join(dir, bytes, r, NULL);
}

TEST_UNUSED static uint32_t nvme_test_id(struct nvme *n, unsigned space)
{
    struct cache_space s = nvme_test_space(space);
    struct larder_error err;
    uint32_t id;
    REQUIRE_OK(nvme_space(n, &s, &id, &err), &err);
    return id;
}

/* Bytes that the files of a directory take on the disk. */
TEST_UNUSED static uint64_t nvme_test_usage(const char *dir)
{
    char cmd[200];
    unsigned long long n = 0;
    snprintf(cmd, sizeof cmd, "du -s --block-size=1 %s", dir);
    FILE *f = popen(cmd, "r");
    if (!f || fscanf(f, "%llu", &n) != 1)
        n = 0;
    pclose(f);
    return n;
}

#endif
