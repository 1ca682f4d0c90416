/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_loop.c - the inside of a training program: train_loop DATASET EPOCHS.
 * Build: cc train_loop.c $(pkg-config --cflags --libs larder)
 */
#include <larder.h>
#include <stdio.h>
#include <stdlib.h>

static double train_step(const struct larder_batch *b)
{
    double sum = 0; /* sample i's field f is b->values[i * b->n_fields + f]; it is yours until the release */

    for (size_t i = 0; i < (size_t)b->n * b->n_fields; i++)
        sum += (double)b->values[i].len;
    return sum;
}

int main(int argc, char **argv)
{
    struct larder_loader_options opts = LARDER_LOADER_OPTIONS_INIT;
    struct larder_loader_stats st = {.struct_size = sizeof st};
    const struct larder_batch *batch;
    struct larder_dataset *ds = NULL;
    struct larder_loader *ld = NULL;
    struct larder_error err = {0};
    int rc = LARDER_EINVAL;

    opts.batch_size = 64, opts.seed = 1, opts.epochs = argc == 3 ? strtoull(argv[2], NULL, 10) : 1;
    if (argc == 3 && (rc = larder_dataset_open(argv[1], NULL, &ds, &err)) == 0)
        rc = larder_loader_open(ds, &opts, &ld, &err);
    for (uint64_t e = 0; rc >= 0 && e < opts.epochs; e++) {
        while ((rc = larder_loader_next(ld, &batch, &err)) == LARDER_OK) {
            train_step(batch);
            larder_batch_release(batch);
        }
        larder_loader_stats(ld, &st, NULL); /* of the epoch that ended */
        printf("epoch %llu: %llu samples, %llu bytes\n", (unsigned long long)st.epoch, (unsigned long long)st.samples,
               (unsigned long long)st.bytes);
    }
    if (rc < 0)
        fprintf(stderr, "train_loop DATASET EPOCHS: %s\n", err.message);
    larder_loader_close(ld);
    larder_dataset_close(ds);
    return rc < 0;
}
