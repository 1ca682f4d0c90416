/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the files of an NVMe cache: checkpoint, a segment's head, trailer and footer, records walked by their headers.
 * Checksums are put right first (bit by bit of the first byte), so that the fuzzer gets past them.
 */
#include "tiers/nvme_int.h"

struct disk { const uint8_t *data; size_t len; uint64_t found; };

static bool disk_read(void *user, uint64_t offset, void *buf, size_t n)
{
    const struct disk *d = user;
    memset(buf, 0, n);
    if (offset < d->len)
        memcpy(buf, d->data + offset, MIN(n, d->len - offset));
    return offset + n <= 8 * MIB;
}

static bool found(void *user, const struct nvme_entry *e)
{
    struct disk *d = user;
    uint8_t bytes[NVME_ENTRY_BYTES];
    struct nvme_entry same;
    nvme_entry_encode(e, bytes);
    if (!nvme_entry_decode(bytes, UINT32_MAX, &same) || same.ordinal != e->ordinal)
        abort();
    return ++d->found < 100000;
}

static void mend(uint8_t *p, size_t len, unsigned how)
{
    if (how & 1 && len >= NVME_PAGE)
        put_u32(p + 8, crc32c(0, p + 16, NVME_PAGE - 16));
    for (size_t at = NVME_PAGE; how & 2 && at + NVME_UNIT <= len; at += NVME_UNIT)
        put_u32(p + at + 4, crc32c(0, p + at + 8, NVME_UNIT - 8));
    if (how & 4 && len >= 16)
        put_u32(p + 8, crc32c(0, p + 12, len - 12));
}

static void checkpoint(const uint8_t *p, size_t len)
{
    struct nvme_used *used = calloc(NVME_SPACES_MAX, sizeof(*used));
    uint8_t *out = malloc(NVME_CHECKPOINT_MAX);
    uint64_t seq;
    size_t n;
    if (nvme_checkpoint_decode(p, len, &seq, used, &n) && nvme_checkpoint_encode(seq, used, n, out) != len)
        abort();
    free(used);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct nvme_head h;
    struct nvme_trailer t;
    struct nvme_entry e;
    struct nvme_record r;
    uint64_t end;
    if (size < 2 || size > MIB)
        return 0;
    size_t len = size - 1;
    uint8_t *p = malloc(len);
    memcpy(p, data + 1, len);
    mend(p, len, data[0]);
    checkpoint(p, len);
    for (size_t at = 0; at + NVME_ENTRY_BYTES <= MIN(len, NVME_PAGE); at += NVME_ENTRY_BYTES)
        if (nvme_entry_decode(p + at, MIB, &e) && ((uint64_t)e.unit + e.units) * NVME_UNIT > MIB)
            abort();
    if (len >= NVME_UNIT)
        nvme_record_decode(p, &r);
    if (len >= NVME_PAGE && nvme_trailer_decode(p, MIB, &t) && t.footer + nvme_footer_bytes(t.n) > MIB - NVME_PAGE)
        abort();
    if (len >= NVME_PAGE && nvme_head_decode(p, &h)) {
        struct disk d = {p, len, 0};
        void *window = malloc(NVME_WINDOW);
        nvme_walk(&h, window, disk_read, found, &d, &end);
        if (end > nvme_head_bytes(&h))
            abort();
        free(window);
    }
    free(p);
    return 0;
}
