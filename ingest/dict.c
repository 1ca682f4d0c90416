/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dict.c - what a zstd dictionary is trained on: the fields of samples that would be compressed, laid back to back.
 *
 * An ingest takes its samples from units spread over the source, read ahead of the packing; the writer, which cannot know what will
 * come, those it was given first. Memory: TRAIN_BYTES of material, and one sample. One thread.
 */
#include "ingest/ingest_int.h"

#define TRAIN_BYTES (4 * MIB)        /* of material for a dictionary */
#define TRAIN_SAMPLE_MAX (64 * KIB)  /* of one sample */
#define TRAIN_UNITS 16u
#define TRAIN_SOURCE_MAX (64 * MIB)  /* of the source read for it */
#define DICT_MIN (16 * KIB)
#define DICT_MAX (112 * KIB)
#define SAMPLES_MIN 8u               /* below these two a dictionary would be larger than what it saves */
#define MATERIAL_MIN 1024u

int material_add(struct material *m, const struct schema *schema, const struct larder_value *values, struct larder_error *err)
{
    size_t start = m->bytes.len;
    int rc = GROW(m->sizes, m->cap, m->n + 1, err);
    for (uint32_t i = 0; !rc && i < schema->n; i++)
        if (values[i].data && !type_is_media(schema->fields[i].type)) {
            size_t room = TRAIN_SAMPLE_MAX - (m->bytes.len - start);
            rc = buf_append(&m->bytes, values[i].data, MIN(values[i].len, room), err);
        }
    if (!rc && m->bytes.len > start)
        m->sizes[m->n++] = m->bytes.len - start;
    return rc;
}

int material_train(const struct material *m, void **dict, size_t *len, struct larder_error *err)
{
    size_t total = m->bytes.len, cap = MIN(MAX(total / 100, DICT_MIN), DICT_MAX);
    *dict = NULL;
    *len = 0;
    if (m->n < SAMPLES_MIN || total < MATERIAL_MIN)
        return LARDER_OK;
    void *out = malloc(cap);
    if (!out)
        return err_nomem(err, cap, "a dictionary");
    int rc = zdict_train(m->bytes.data, m->sizes, m->n, out, cap, len, err);
    if (rc || *len == 0)
        free(out);
    else
        *dict = out;
    return rc;
}

void material_release(struct material *m)
{
    buf_release(&m->bytes);
    free(m->sizes);
    *m = (struct material){BUF_INIT, NULL, 0, 0};
}

/* Up to `budget` bytes of material from the beginning of one unit. Bad samples are passed over: packing reports them. */
static int material_from(struct material *m, struct source *s, uint64_t unit, size_t budget, struct larder_error *err)
{
    struct source_cursor *c;
    struct source_item item;
    size_t end = m->bytes.len + budget;
    uint64_t read = 0;
    int rc = s->ops->open_unit(s, unit, 0, &c, err);
    if (rc)
        return rc == LARDER_ENOMEM ? rc : LARDER_OK;
    while (m->bytes.len < end && read < TRAIN_SOURCE_MAX / TRAIN_UNITS) {
        rc = s->ops->next(c, &item, err);
        if (rc == LARDER_ENOMEM || (rc && !item.what))
            break;
        read += item.source_bytes + 1;
        if (!rc && (rc = material_add(m, &s->schema, item.values, err)))
            break;
    }
    s->ops->close_unit(c);
    return rc == LARDER_ENOMEM ? rc : LARDER_OK;
}

int dict_train(struct source *s, void **dict, size_t *len, struct larder_error *err)
{
    struct material m = {BUF_INIT, NULL, 0, 0};
    bool any = false;
    int rc = LARDER_OK;
    *dict = NULL;
    *len = 0;
    for (uint32_t i = 0; i < s->schema.n; i++)
        any |= !type_is_media(s->schema.fields[i].type) && !type_width(s->schema.fields[i].type);
    if (!any) /* media, and scalars that are smaller than a frame's overhead */
        return LARDER_OK;
    uint64_t take = MIN(s->units, (uint64_t)TRAIN_UNITS);
    s->quiet = true;
    for (uint64_t i = 0; !rc && i < take; i++)
        rc = material_from(&m, s, (uint64_t)((double)i * (double)s->units / (double)take), TRAIN_BYTES / take, err);
    s->quiet = false;
    if (!rc)
        rc = material_train(&m, dict, len, err);
    material_release(&m);
    return rc;
}
