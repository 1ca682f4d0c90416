/* SPDX-License-Identifier: Apache-2.0 */
/*
 * buf.c - a growable run of bytes.
 *
 * It grows by doubling, so that appending n bytes costs O(n) in all. What is beyond len is not initialised. When growing
 * fails, the buffer is as it was.
 *
 * A buffer belongs to one thread at a time.
 */
#include "store/base/base.h"

int buf_reserve(struct buf *b, size_t extra, struct larder_error *err)
{
    if (extra <= b->cap - b->len)
        return LARDER_OK;
    if (extra > SIZE_MAX / 2 || b->len > SIZE_MAX / 2 - extra)
        return err_nomem(err, extra, "buffer");

    size_t cap = MAX(b->len + extra, (size_t)64);
    if (b->cap <= SIZE_MAX / 4)
        cap = MAX(cap, 2 * b->cap);
    uint8_t *data = realloc(b->data, cap);
    if (!data)
        return err_nomem(err, cap, "buffer");
    b->data = data;
    b->cap = cap;
    return LARDER_OK;
}

int buf_append(struct buf *b, const void *data, size_t len, struct larder_error *err)
{
    if (len == 0)
        return LARDER_OK;
    int rc = buf_reserve(b, len, err);
    if (rc)
        return rc;
    memcpy(b->data + b->len, data, len);
    b->len += len;
    return LARDER_OK;
}

int buf_printf(struct buf *b, struct larder_error *err, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);

    int rc = n < 0 ? err_set(err, LARDER_EINVAL, "buffer: the text could not be formatted")
                   : buf_reserve(b, (size_t)n + 1, err); /* vsnprintf adds a NUL, which does not count */
    if (rc == LARDER_OK) {
        vsnprintf((char *)b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return rc;
}

void buf_release(struct buf *b)
{
    free(b->data);
    *b = (struct buf)BUF_INIT;
}
