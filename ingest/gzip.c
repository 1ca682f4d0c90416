/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gzip.c - bytes out of a gzip file, checked. libarchive decodes gzip too, but passes over the CRC-32 and the length that end each
 * member: damage in compressed data mostly decodes to other bytes without any error, and would become samples. zlib's reader looks at
 * both, reads members that follow each other as one stream, and passes over what is no gzip after the last. Sole user of zlib.
 *
 * Threads: one at a time.
 */
#include "ingest/ingest_int.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#define GZIP_BUFFER (128u * 1024)

struct gzip { gzFile file; };

bool gzip_like(int fd)
{
    uint8_t magic[2];
    return pread(fd, magic, sizeof(magic), 0) == sizeof(magic) && magic[0] == 0x1f && magic[1] == 0x8b;
}

int gzip_open(int fd, struct gzip **out, struct larder_error *err)
{
    *out = NULL;
    struct gzip *g = calloc(1, sizeof(*g));
    if (!g)
        return err_nomem(err, sizeof(*g), "a gzip file");
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) {
        free(g);
        return err_sys(err, LARDER_EIO, errno, "a gzip file: its descriptor cannot be doubled");
    }
    if (!(g->file = gzdopen(own, "rb"))) {
        close(own);
        free(g);
        return err_nomem(err, GZIP_BUFFER, "a gzip file");
    }
    gzbuffer(g->file, GZIP_BUFFER);
    *out = g;
    return LARDER_OK;
}

void gzip_close(struct gzip *g)
{
    if (!g)
        return;
    gzclose_r(g->file);
    free(g);
}

ssize_t gzip_read(struct gzip *g, void *buf, size_t len, int *sys_errno, const char **why)
{
    int code = Z_OK, n = gzread(g->file, buf, (unsigned)MIN(len, (size_t)1 << 30));
    *sys_errno = 0;
    if (n > 0)
        return n;
    const char *text = gzerror(g->file, &code), *colon = strstr(text, ">: ");
    *why = colon ? colon + 3 : text; /* zlib begins with "<fd:N>: " */
    if (n == 0 && code != Z_BUF_ERROR) /* that one: the file ends within a member */
        return 0;
    if (code == Z_ERRNO)
        *sys_errno = errno ? errno : EIO;
    if (code == Z_MEM_ERROR)
        *sys_errno = ENOMEM;
    return -1;
}
