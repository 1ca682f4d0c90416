/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv_reader.c - larder as a key-value store, many keys in one go: kv_reader DATASET KEY...
 * Build: cc kv_reader.c $(pkg-config --cflags --libs larder)
 */
#include <larder.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 256 };

int main(int argc, char **argv)
{
    size_t n = argc > 2 && argc - 2 <= MOST ? (size_t)argc - 2 : 0, lens[MOST], found = 0;
    const void *keys[MOST];
    uint64_t ordinals[MOST];
    struct larder_sample samples[MOST] = {{0}};
    struct larder_dataset *ds = NULL;
    struct larder_error err = {0};
    int rc = LARDER_EINVAL;

    for (size_t i = 0; i < n; i++)
        keys[i] = argv[i + 2], lens[i] = strlen(argv[i + 2]);
    if (n && (rc = larder_dataset_open(argv[1], NULL, &ds, &err)) == 0)
        rc = larder_dataset_lookup(ds, keys, lens, n, ordinals, &err); /* one batch: far cheaper than one by one */
    for (size_t i = 0; rc == 0 && i < n; i++) {
        if (ordinals[i] == LARDER_NO_ORDINAL)
            printf("%s: not there\n", argv[i + 2]);
        else
            ordinals[found++] = ordinals[i];
    }
    if (rc == 0 && (rc = larder_dataset_read(ds, ordinals, found, NULL, samples, &err)) == 0)
        for (size_t i = 0; i < found; i++)
            printf("@%llu: %zu bytes in the first field\n", (unsigned long long)samples[i].ordinal, samples[i].fields[0].len);
    if (rc < 0)
        fprintf(stderr, "kv_reader DATASET KEY...: %s\n", err.message);
    if (rc == 0)
        larder_samples_release(samples, found);
    larder_dataset_close(ds);
    return rc < 0;
}
