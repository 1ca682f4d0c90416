/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest.h - the door of ingest/: sources become shards, samples become files again.
 */
#ifndef LARDER_INGEST_H
#define LARDER_INGEST_H

#include "store/store.h"
#include "tiers/tiers.h"

/* larder_ingest_run over an io: same contract; who calls has checked the arguments (loader/api.c). */
int ingest_run(const char *const *sources, size_t n_sources, struct store_io *io, const struct larder_ingest_options *o,
               struct larder_ingest_report *report, struct larder_error *err);

/* larder_export_run over an opened store. */
int export_run(struct store *s, struct tiers *t, const char *dest, const struct larder_export_options *o,
               struct larder_export_report *report, struct larder_error *err);

/* larder_writer_* over an io (borrowed; outlives the writer). */
struct writer;
int writer_open(struct store_io *io, const struct larder_field *fields, size_t n_fields,
                const struct larder_writer_options *o, struct writer **w, struct larder_error *err);
int writer_add(struct writer *w, const void *key, size_t key_len, const struct larder_value *values, struct larder_error *err);
int writer_commit(struct writer *w, uint64_t *generation, struct larder_error *err); /* frees w */
void writer_close(struct writer *w);

#endif
