/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a manifest, as a hint and as a shard's meta. The CRC at the end is put right first. */
#include "store/store_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct manifest m, again;
    struct buf text = BUF_INIT, out = BUF_INIT;
    size_t body = size;
    if (size > 22 && !memcmp(data + size - 22, ",\"crc32c\":\"", 11))
        body = size - 22;
    else if (size && data[size - 1] == '}')
        body = size - 1;
    if (buf_append(&text, data, body, NULL) == LARDER_OK &&
        buf_printf(&text, NULL, ",\"crc32c\":\"%08x\"}\n", crc32c(0, data, body)) == LARDER_OK &&
        manifest_decode(text.data, text.len, "m", &m, NULL) == LARDER_OK) {
        /* what was read can be written, and read again as the same */
        if (manifest_encode(&m, &out, NULL) || manifest_decode(out.data, out.len, "m", &again, NULL))
            abort();
        if (again.samples != m.samples || again.n_shards != m.n_shards || !schema_equal(&again.schema, &m.schema))
            abort();
        manifest_release(&again);
        manifest_release(&m);
    }
    if (meta_decode(data, size, "meta", &m, NULL) == LARDER_OK)
        manifest_release(&m);
    buf_release(&text);
    buf_release(&out);
    return 0;
}
