/* SPDX-License-Identifier: Apache-2.0 */
/* Any page as a trailer, a header, a footer page and a record table; any bytes as a record of a fixed schema. CRCs put right. */
#include "tests/fuzz/mem_io.h"

static const int64_t shape[2] = {-1, -1};
static const struct larder_field fields[5] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL},
                                              {"text", LARDER_UTF8, NULL, 0, NULL}, {"sound", LARDER_AUDIO, NULL, 0, NULL},
                                              {"m", LARDER_NDARRAY, "uint8", 2, shape}};

static void record(const uint8_t *data, size_t len)
{
    struct schema s;
    struct zdecomp *z;
    struct larder_value v[5];
    if (len < 12 || schema_copy(&s, fields, 5, NULL))
        return;
    uint32_t raw = (uint32_t)len - 4 + get_u16(data) % 5000;
    struct extent e = {.offset = 4096, .stored_len = (uint32_t)len - 4, .raw_len = raw, .codec = data[2] % 2};
    void *scratch = malloc(raw + 1), *stored = malloc(len - 4);
    memcpy(stored, data + 4, len - 4);
    if (!zdecomp_new(&z, NULL)) {
        if (record_decode(&s, &e, stored, z, NULL, scratch, v, NULL) == LARDER_OK)
            for (int i = 0; i < 5; i++)
                if (v[i].data && hash64(0, v[i].data, v[i].len) == 1)
                    abort();
        zdecomp_free(z);
    }
    free(scratch);
    free(stored);
    schema_release(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t page[STORE_PAGE] = {0};
    struct shard_header h;
    struct trailer t;
    struct extent e;
    memcpy(page, data, MIN(size, sizeof(page)));
    put_u32(page + STORE_PAGE - 4, crc32c(0, page, STORE_PAGE - 4));
    header_decode(page, "x", &h, NULL);
    if (trailer_decode(page, "x", &t, NULL) == LARDER_OK && (!trailer_find(&t, SECTION_TABLE, 0) || t.n_sections > SECTIONS_MAX))
        abort();
    put_u32(page, crc32c(0, page + 4, STORE_PAGE - 4));
    if (page_check(page, get_u32(page + 4), get_u32(page + 8), "x", NULL) == LARDER_OK)
        for (size_t at = PAGE_HEAD; at + STORE_ENTRY <= STORE_PAGE; at += STORE_ENTRY)
            if (entry_decode(page + at, 1 << 20, &e) == LARDER_OK && e.offset + e.stored_len > 1 << 20)
                abort();
    record(data, size);
    return 0;
}
