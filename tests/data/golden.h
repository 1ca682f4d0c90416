/* SPDX-License-Identifier: Apache-2.0 */
/*
 * golden.h - what tests/data/golden holds: written once by mkgolden.c, read for ever by tests/unit/test_golden.c.
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include <stdio.h>
#include <string.h>

#include "loader/larder.h"

enum { GOLDEN_FIRST = 5, GOLDEN_ALL = 8, GOLDEN_FIELDS = 5 };
enum { GOLDEN_IMAGE, GOLDEN_LABEL, GOLDEN_TEXT, GOLDEN_BOX, GOLDEN_SCORE };

static const int64_t golden_shape[] = {-1, 4};
static const struct larder_field golden_fields[GOLDEN_FIELDS] = {
    {"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL},   {"text", LARDER_UTF8, NULL, 0, NULL},
    {"box", LARDER_NDARRAY, "float32", 2, golden_shape}, {"score", LARDER_F32, NULL, 0, NULL},
};
static const char *const golden_classes[] = {"apple", "pear", "plum"};

struct golden { uint8_t image[64]; int64_t label; char text[200]; float box[8], score; struct larder_value v[GOLDEN_FIELDS]; };

/* Sample i: no text compresses in 3, no image in 2, no box in even ones, no score in 1. */
static inline void golden_sample(int i, struct golden *g)
{
    static const uint8_t png[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    size_t image = 20 + (size_t)i, text;

    memcpy(g->image, png, 8);
    for (size_t k = 8; k < image; k++)
        g->image[k] = (uint8_t)(k * 37 + (size_t)i * 101);
    g->label = i % 3;
    text = (size_t)(i == 3 ? snprintf(g->text, sizeof g->text, "a pear")
                           : snprintf(g->text, sizeof g->text, "number %d: %s and %s and %s and %s, and once more %s", i, golden_classes[i % 3],
                                      golden_classes[i % 3], golden_classes[i % 3], golden_classes[i % 3], golden_classes[i % 3]));
    for (int k = 0; k < 8; k++)
        g->box[k] = (float)(i * 8 + k) / 4;
    g->score = (float)i / 8;
    g->v[GOLDEN_IMAGE] = (struct larder_value){i == 2 ? NULL : g->image, i == 2 ? 0 : image};
    g->v[GOLDEN_LABEL] = (struct larder_value){&g->label, 8};
    g->v[GOLDEN_TEXT] = (struct larder_value){g->text, text};
    g->v[GOLDEN_BOX] = (struct larder_value){i % 2 ? g->box : NULL, i % 2 ? 16 * (size_t)(1 + i / 4) : 0};
    g->v[GOLDEN_SCORE] = (struct larder_value){i == 1 ? NULL : &g->score, i == 1 ? 0 : 4};
}

static inline size_t golden_key(int i, char key[32])
{
    return (size_t)snprintf(key, 32, "%s/%04d", golden_classes[i % 3], i * 111);
}

#endif
