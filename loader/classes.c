/* SPDX-License-Identifier: Apache-2.0 */
/*
 * classes.c - does a block shuffle mix the classes? Samples that lie together are often of one class, and then a window of blocks has few of
 * them: batches say little of the whole.
 *
 * A window is shuffled uniformly, so its first samples are a random choice of its own. Some are looked up in the labels' column, as runs of
 * neighbours, in a few windows that are spread over the pass. A sample of 4 a class sees nearly all classes that are there; classes are
 * those that the dataset has names for, else the different labels of some samples from anywhere.
 *
 * Threads: one. Reads pages of the footers, no record; never more than LOOKS_MAX labels a window.
 */
#include "loader/loader_int.h"

#define WINDOWS 3u
#define LOOKS_MIN 1024u
#define LOOKS_MAX 65536u
#define LOOKS_A_CLASS 4u
#define PLACES 64u          /* where there are no names: so many runs of neighbours, anywhere */
#define NEIGHBOURS 32u
#define GAP_MAX 1024u       /* labels between two that are read together */
#define RUN_MAX 65536u

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t distinct(uint64_t *v, size_t n)
{
    uint64_t k = n > 0;
    qsort(v, n, sizeof(*v), by_value);
    for (size_t i = 1; i < n; i++)
        k += v[i] != v[i - 1];
    return k;
}

/* Ordinals become labels, in no order. */
static int labels_of(struct larder_dataset *ds, uint32_t field, uint64_t *v, size_t n, struct larder_error *err)
{
    AUTO_FREE uint64_t *run = malloc(RUN_MAX * sizeof(*run));
    if (!run)
        return err_nomem(err, RUN_MAX * sizeof(*run), "labels");
    qsort(v, n, sizeof(*v), by_value);
    for (size_t i = 0; i < n;) {
        uint64_t first = v[i];
        size_t k = i + 1;
        while (k < n && v[k] - v[k - 1] <= GAP_MAX && v[k] - first < RUN_MAX)
            k++;
        int rc = store_column(ds->store, field, first, v[k - 1] - first + 1, run, err);
        if (rc)
            return rc;
        for (; i < k; i++)
            v[i] = run[v[i] - first];
    }
    return LARDER_OK;
}

/* How many classes there are; fewer, where they have no names and lie together. */
static int classes_in_all(struct larder_dataset *ds, uint32_t field, uint64_t *classes, struct larder_error *err)
{
    const struct manifest *m = ds->manifest;
    uint64_t runs = (m->samples + NEIGHBOURS - 1) / NEIGHBOURS, v[PLACES * NEIGHBOURS], n = 0;
    struct perm perm;
    *classes = m->n_classes;
    if (*classes || !runs)
        return LARDER_OK;
    perm_init(&perm, 0, 0, runs); /* at regular distances labels in turn would look like few */
    for (uint64_t k = 0; k < MIN(runs, (uint64_t)PLACES); k++)
        for (uint64_t first = perm_at(&perm, k) * NEIGHBOURS, i = first; i < first + NEIGHBOURS && i < m->samples; i++)
            v[n++] = i;
    int rc = labels_of(ds, field, v, n, err);
    *classes = rc ? 0 : distinct(v, n);
    return rc;
}

int classes_in_windows(struct larder_dataset *ds, const struct order *o, uint32_t field, uint64_t *seen, uint64_t *classes,
                       struct larder_error *err)
{
    uint64_t window = MIN(o->block * MIN(o->window, o->n / o->block + 1), o->n), windows = o->n / MAX(window, (uint64_t)1), sum = 0;
    unsigned looked = 0;
    int rc = classes_in_all(ds, field, classes, err);
    uint64_t n = MIN(MIN(window, (uint64_t)LOOKS_MAX), MAX(*classes * LOOKS_A_CLASS, (uint64_t)LOOKS_MIN));
    AUTO_FREE uint64_t *v = malloc(MAX(n, (uint64_t)1) * sizeof(*v));
    if (!rc && !v)
        rc = err_nomem(err, n * sizeof(*v), "labels");
    for (uint64_t k = 0; !rc && k < windows && k < WINDOWS; k++) {
        struct order pass = *o;
        pass.epoch_size = 0;
        order_fill(&pass, 0, windows * k / WINDOWS * window, n, v);
        rc = labels_of(ds, field, v, n, err);
        sum += rc ? 0 : distinct(v, n);
        looked++;
    }
    *seen = looked ? sum / looked : *classes;
    return rc;
}

int classes_warning(struct larder_dataset *ds, const struct order *o, struct buf *out, struct larder_error *err)
{
    int field = schema_find(&ds->manifest->schema, "label");
    uint64_t seen, classes;
    if (o->shuffle != LARDER_SHUFFLE_BLOCK || o->alias || field < 0 || ds->manifest->schema.fields[field].type != LARDER_I64 ||
        o->n <= o->block * o->window)
        return LARDER_OK;
    int rc = classes_in_windows(ds, o, (uint32_t)field, &seen, &classes, err);
    if (rc || seen * 2 >= classes)
        return rc;
    return buf_printf(out, err, "%s: a window of the block shuffle (%llu blocks of %llu samples) holds about %llu of %llu classes: samples of a class "
                      "lie together; raise window_blocks, lower block_samples, or ingest in shuffled order", ds->path,
                      (unsigned long long)o->window, (unsigned long long)o->block, (unsigned long long)seen, (unsigned long long)classes);
}
