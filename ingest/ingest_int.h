/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest_int.h - inside ingest/: the one source interface, the one sink interface, the packer and the journal.
 *
 * A source is cut into units, each readable on its own, in order and again after a crash: a run of files for dir, one
 * archive for tar. A worker takes the next unit and writes its samples into shards of its own, (unit, sub 0), (unit, sub 1)...
 * So no bytes cross threads, memory is bounded by workers x (one sample + one shard's write buffer), and the dataset's order
 * does not depend on the number of workers.
 */
#ifndef LARDER_INGEST_INT_H
#define LARDER_INGEST_INT_H

#include "ingest/ingest.h"

struct source;
struct source_cursor; /* reads one unit; one thread */

struct source_item {               /* borrowed until the next call on the cursor */
    const void *key; size_t key_len;
    const struct larder_value *values; /* one a schema field */
    const char *what;              /* path (and member) for messages */
    uint64_t source_bytes;
};

struct source_ops {
    /* LARDER_OK, LARDER_END; an error concerns this item only when *item->what is set and the cursor can go on: the caller
     * decides by on_error; otherwise the unit cannot be read further. skip: pass over that many samples first, unread. */
    int (*open_unit)(struct source *s, uint64_t unit, uint64_t skip, struct source_cursor **c, struct larder_error *err);
    int (*next)(struct source_cursor *c, struct source_item *item, struct larder_error *err);
    void (*close_unit)(struct source_cursor *c);
    void (*close)(struct source *s);
};

struct source {
    const struct source_ops *ops;
    struct schema schema;        /* what it yields */
    char **classes; size_t n_classes;
    uint64_t units, samples;     /* samples 0: not known */
    uint64_t bytes;              /* in all, 0: not known */
    uint64_t fingerprint;        /* of names, sizes, times: a resumed run must find the same */
    uint64_t ignored;
};

/* Lists and checks the source. base: the dataset's manifest on append, else NULL (its schema and classes are kept and extended). */
int dir_open(const char *path, const struct larder_ingest_options *o, const struct manifest *base, struct source **s,
             struct larder_error *err);
int tar_open(const char *const *paths, size_t n, const struct larder_ingest_options *o, const struct manifest *base,
             struct source **s, struct larder_error *err);

/* A sink of export: names are already safe. */
struct sink;
struct sink_ops {
    int (*file)(struct sink *k, const char *name, const void *data, size_t len, struct larder_error *err);
    int (*finish)(struct sink *k, struct larder_error *err); /* durable; frees */
    void (*abort)(struct sink *k);                           /* removes what it made, as far as it made it; frees */
};
struct sink { const struct sink_ops *ops; };
int dir_sink_open(const char *path, struct sink **k, struct larder_error *err);
int tar_sink_open(const char *path, struct sink **k, struct larder_error *err);

#endif
