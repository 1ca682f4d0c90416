/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a shard: inspected without a manifest, scanned, a lost trailer rebuilt. The CRCs of header, pages and trailer
 * are put right first (bit by bit of the first byte), so that the fuzzer gets past them to what they protect.
 */
#include "tests/fuzz/mem_io.h"

static void mend(uint8_t *p, size_t len, unsigned how)
{
    if (how & 1 && len >= STORE_PAGE)
        put_u32(p + STORE_PAGE - 4, crc32c(0, p, STORE_PAGE - 4));
    if (how & 2 && len >= 2 * STORE_PAGE) {
        uint8_t *t = p + len - STORE_PAGE;
        put_u32(t + STORE_PAGE - 4, crc32c(0, t, STORE_PAGE - 4));
    }
    for (size_t at = STORE_PAGE; how & 4 && at + STORE_PAGE < len; at += STORE_PAGE)
        put_u32(p + at, crc32c(0, p + at + 4, STORE_PAGE - 4));
}

static void scan(struct store_io *io, const struct shard_ref *ref, const struct schema *schema)
{
    struct shard_scan *s;
    struct scan_item item;
    struct zdecomp *z = NULL;
    struct larder_value values[LARDER_FIELDS_MAX];
    int rc;
    if (zdecomp_new(&z, NULL) || shard_scan_open(io, ref, SCAN_KEYS | SCAN_RECORDS, &s, NULL)) {
        zdecomp_free(z);
        return;
    }
    for (int n = 0; n < 5000 && (rc = shard_scan_next(s, &item, NULL)) != LARDER_END && item.slot != UINT32_MAX; n++) {
        if (rc || !schema->n || item.extent.raw_len > 4 * MIB)
            continue;
        void *scratch = malloc(item.extent.raw_len + 1);
        if (record_decode(schema, &item.extent, item.stored, z, NULL, scratch, values, NULL) == LARDER_OK)
            for (uint32_t i = 0; i < schema->n; i++)
                if (values[i].data && hash64(0, values[i].data, values[i].len) == 1)
                    abort();
        free(scratch);
    }
    shard_scan_close(s);
    zdecomp_free(z);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shard_info info;
    struct manifest meta;
    struct trailer t;
    if (size < 2 || size > MIB)
        return 0;
    size_t len = size - 1;
    uint8_t *p = malloc(len);
    memcpy(p, data + 1, len);
    mend(p, len, data[0]);
    struct mem_io m = {.io = {.ops = &mem_ops}, .data = p, .len = len};
    if (shard_inspect(&m.io, "x", &info, &meta, NULL) == LARDER_OK) {
        scan(&m.io, &info.ref, &meta.schema);
        manifest_release(&meta);
        shard_info_release(&info);
    }
    trailer_rebuild(&m.io, "x", len, 0, &t, NULL);
    free(p);
    return 0;
}
