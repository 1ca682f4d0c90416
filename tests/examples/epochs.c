/* SPDX-License-Identifier: Apache-2.0 */
/*
 * epochs.c - larder.h in fifty lines: epochs DATASET [EPOCHS].
 *
 * Opens a dataset, prints its schema, reads epochs in batches and looks the first delivered sample up by its key.
 * Build it with: cc epochs.c $(pkg-config --cflags --libs larder)
 */
#include <larder.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const struct larder_error *err)
{
    fprintf(stderr, "%s: %s: %s\n", what, larder_code_name(err->code), err->message);
    return 1;
}

static int read_epochs(struct larder_dataset *ds, uint64_t epochs, uint64_t *first)
{
    struct larder_loader_options opts = LARDER_LOADER_OPTIONS_INIT;
    const struct larder_batch *batch;
    struct larder_loader *ld;
    struct larder_error err;
    int rc;

    opts.batch_size = 64;
    opts.seed = 1;
    opts.epochs = epochs;
    if (larder_loader_open(ds, &opts, &ld, &err))
        return fail("larder_loader_open", &err);
    for (uint64_t e = 0; e < epochs; e++) {
        uint64_t samples = 0, bytes = 0;

        while ((rc = larder_loader_next(ld, &batch, &err)) == LARDER_OK) {
            if (e == 0 && batch->position == 0)
                *first = batch->ordinals[0];
            for (size_t i = 0; i < (size_t)batch->n * batch->n_fields; i++)
                bytes += batch->values[i].len;
            samples += batch->n;
            larder_batch_release(batch);
        }
        if (rc < 0) {
            larder_loader_close(ld);
            return fail("larder_loader_next", &err);
        }
        printf("epoch %llu: %llu samples, %llu bytes\n", (unsigned long long)e, (unsigned long long)samples,
               (unsigned long long)bytes);
    }
    larder_loader_close(ld);
    return 0;
}

int main(int argc, char **argv)
{
    struct larder_dataset_info info = {.struct_size = sizeof info};
    struct larder_sample sample = {0};
    struct larder_dataset *ds;
    struct larder_error err;
    char key[LARDER_KEY_MAX];
    uint64_t first = 0;
    size_t len;

    if (argc < 2 || larder_dataset_open(argv[1], NULL, &ds, &err))
        return argc < 2 ? 2 : fail(argv[1], &err);
    larder_dataset_info(ds, &info, NULL);
    for (uint32_t i = 0; i < info.fields; i++) {
        struct larder_field field;

        if (larder_dataset_field(ds, i, &field, &err) == LARDER_OK)
            printf("field %s: %s\n", field.name, larder_type_name(field.type));
    }
    if (read_epochs(ds, argc > 2 ? strtoull(argv[2], NULL, 10) : 1, &first))
        return 1;
    if (larder_dataset_key(ds, first, key, sizeof key, &len, &err) ||
        larder_dataset_get(ds, key, len, &sample, &err))
        return fail("lookup", &err);
    printf("key of the first: %.*s (%s)\n", (int)len, key, sample.ordinal == first ? "found again" : "LOST");
    larder_samples_release(&sample, 1);
    larder_dataset_close(ds);
    return 0;
}
