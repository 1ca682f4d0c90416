/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mkgolden.c - writes the dataset that stands in tests/data/golden: mkgolden DIR. Once for each version of the format; a released
 * one is never written again (store/FORMAT.md, "Versions and promise").
 */
#include "tests/data/golden.h"

static int write_samples(const char *dir, int first, int end, int n_classes, struct larder_error *err)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct golden g;
    char key[32];

    o.append = first > 0;
    o.compression = LARDER_COMPRESS_ZSTD;
    o.classes = golden_classes;
    o.n_classes = (size_t)n_classes;
    int rc = larder_writer_open(dir, golden_fields, GOLDEN_FIELDS, &o, &w, err);
    for (int i = first; rc == 0 && i < end; i++) {
        size_t len = golden_key(i, key);
        golden_sample(i, &g);
        if ((rc = larder_writer_add(w, key, len, g.v, err)))
            larder_writer_close(w);
    }
    return rc ? rc : larder_writer_commit(w, NULL, err);
}

int main(int argc, char **argv)
{
    struct larder_error err;

    if (argc != 2) {
        fprintf(stderr, "usage: mkgolden DIR\n");
        return 2;
    }
    if (write_samples(argv[1], 0, GOLDEN_FIRST, 2, &err) || write_samples(argv[1], GOLDEN_FIRST, GOLDEN_ALL, 3, &err)) {
        fprintf(stderr, "mkgolden: %s\n", err.message);
        return 1;
    }
    return 0;
}
