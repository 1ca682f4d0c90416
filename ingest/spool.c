/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spool.c - an append-only list of bytes whose memory is bounded: the first `budget` bytes stay in memory, what comes after
 * that goes to an unnamed file, which vanishes with its descriptor.
 *
 * Items never straddle the two parts. Appends come from one thread; after spool_seal any number of threads read. The file is
 * read with pread and not mapped: a failing or full disk is then an error and not a signal.
 */
#include "ingest/ingest_int.h"

#include <errno.h>
#include <unistd.h>

#define TAIL_BYTES (256 * KIB)

void spool_init(struct spool *s, const char *dir, size_t budget)
{
    memset(s, 0, sizeof(*s));
    s->fd = -1;
    s->dir = dir;
    s->budget = budget;
}

static int flush(struct spool *s, struct larder_error *err)
{
    if (write_fully(s->fd, s->tail.data, s->tail.len, s->flushed))
        return err_sys(err, LARDER_EIO, errno, "%s: writing a temporary file", s->dir);
    s->flushed += s->tail.len;
    s->tail.len = 0;
    return LARDER_OK;
}

int spool_append(struct spool *s, const void *data, size_t len, struct larder_error *err)
{
    int rc;
    if (s->fd < 0 && s->mem_len + len <= s->budget) {
        if ((rc = GROW(s->mem, s->mem_cap, s->mem_len + len, err)))
            return rc;
        memcpy(s->mem + s->mem_len, data, len);
        s->mem_len += len;
        s->len += len;
        return LARDER_OK;
    }
    if (s->fd < 0 && (s->fd = unnamed_file(s->dir, err)) < 0) {
        rc = s->fd;
        s->fd = -1;
        return rc;
    }
    if (s->tail.len && s->tail.len + len > TAIL_BYTES && (rc = flush(s, err)))
        return rc;
    if ((rc = buf_append(&s->tail, data, len, err)))
        return rc;
    s->len += len;
    return LARDER_OK;
}

int spool_seal(struct spool *s, struct larder_error *err)
{
    int rc = s->fd < 0 ? LARDER_OK : flush(s, err);
    buf_release(&s->tail);
    s->tail = (struct buf)BUF_INIT;
    return rc;
}

int spool_read(const struct spool *s, uint64_t offset, void *out, size_t len, size_t *got, struct larder_error *err)
{
    if (offset < s->mem_len) {
        *got = MIN(len, s->mem_len - (size_t)offset);
        memcpy(out, s->mem + offset, *got);
        return LARDER_OK;
    }
    ssize_t n = s->fd < 0 ? 0 : read_fully(s->fd, out, len, offset - s->mem_len);
    if (n < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: reading a temporary file", s->dir);
    *got = (size_t)n;
    return LARDER_OK;
}

void spool_release(struct spool *s)
{
    if (s->fd >= 0)
        close(s->fd);
    buf_release(&s->tail);
    free(s->mem);
    memset(s, 0, sizeof(*s));
    s->fd = -1;
}
