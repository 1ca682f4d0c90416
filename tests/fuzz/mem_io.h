/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mem_io.h - a read-only store_io over one object in memory, whatever its name: for fuzzing what reads shards.
 */
#ifndef FUZZ_MEM_IO_H
#define FUZZ_MEM_IO_H

#include "store/store_int.h"

struct mem_io { struct store_io io; const uint8_t *data; size_t len; };

static int mem_read(struct store_io *io, const struct store_range *r, size_t n, struct larder_error *err)
{
    const struct mem_io *m = (const struct mem_io *)io;
    for (size_t i = 0; i < n; i++) {
        if (r[i].offset > m->len || r[i].len > m->len - r[i].offset)
            return err_set(err, LARDER_ECORRUPT, "%s ends early", r[i].name);
        memcpy(r[i].buf, m->data + r[i].offset, r[i].len);
    }
    return LARDER_OK;
}

static int mem_stat(struct store_io *io, const char *name, uint64_t *size, uint64_t *mtime_s, struct larder_error *err)
{
    (void)name, (void)err;
    *size = ((const struct mem_io *)io)->len;
    *mtime_s = 0;
    return LARDER_OK;
}

static const struct store_io_ops mem_ops = {.read_ranges = mem_read, .stat = mem_stat};

#endif
