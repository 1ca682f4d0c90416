/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_io_int.h - between the files of struct store_io over a bucket:
 *
 *     remote_io.c      opening, reading, listing, small objects
 *     remote_upload.c  objects of any size, in parts; giving up what others never finished
 *     scratch.c        the local folder that goes with it
 */
#ifndef LARDER_TIERS_REMOTE_IO_INT_H
#define LARDER_TIERS_REMOTE_IO_INT_H

#include "tiers/remote_int.h"

/* Whether the server keeps to If-None-Match: * of a PUT. */
enum conditions { CONDITIONS_UNKNOWN, CONDITIONS_KEPT, CONDITIONS_IGNORED };

struct remote_io {
    struct store_io io;
    struct remote *r;
    atomic_int conditions; /* enum conditions */
    pthread_mutex_t lock;  /* guards work */
    char *work;            /* NULL until it was wanted */
};

static inline struct remote_io *remote_io_of(struct store_io *io) { return (struct remote_io *)io; }

/* EINVAL: a name that no object of a dataset has, or, where it is to be written, a remote that is only read. */
int remote_name_check(const struct remote_io *x, const char *name, bool write, struct larder_error *err);
/* HEAD. size may be NULL. */
int remote_head(struct remote_io *x, const char *name, uint64_t *size, uint64_t *mtime_s, char etag[80], struct larder_error *err);
/* One PUT of a new object; EEXIST. Where the server ignores the condition: a look, then a PUT. */
int remote_put_new(struct remote_io *x, const char *name, const void *data, size_t len, struct larder_error *err);
/* The key as the server knows it: prefix and name. NULL: not below the prefix. */
const char *remote_below(const struct remote_io *x, const char *key);

int remote_out_begin(struct store_io *io, const char *name, struct store_out **out, struct larder_error *err);
int remote_out_write(struct store_out *out, const void *data, size_t len, struct larder_error *err);
int remote_out_finish(struct store_out *out, struct larder_error *err);
void remote_out_abort(struct store_out *out);

/* scratch.c: a folder of the user's own below the scratch folder, for one dataset; key: what tells it from others. wanted: of the
 * options, NULL: the first that can be written of those that larder.h names. malloc'd. EIO says what was tried. */
int scratch_make(const char *wanted, const char *key, char **path, struct larder_error *err);

#endif
