/* SPDX-License-Identifier: Apache-2.0 */
/* LIBS: -ljpeg -lm */
/* test_fault_prep.c - each allocation on the way from outputs to a batch fails in turn: ENOMEM, nothing leaked, and then it works. */
#include "tests/unit/test.h"

#include "tests/fault/fault.h"
#include "tests/unit/images.h"
#include "tests/unit/prep_batch.h"

static struct larder_output output(const char *field, int prep)
{
    struct larder_output o = LARDER_OUTPUT_INIT;
    o.field = field;
    o.prep = prep;
    return o;
}

static const int64_t boxes_shape[] = {-1, 4};
static const struct larder_field fields[] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"boxes", LARDER_NDARRAY, "float32", 2, boxes_shape},
                                             {"text", LARDER_UTF8, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL}, {"voice", LARDER_AUDIO, NULL, 0, NULL}};

static int all_of_it(const struct schema *schema, const struct larder_output *o, size_t n, const struct larder_value *values, uint32_t n_samples,
                     void *memory, uint64_t *digest, struct larder_error *err)
{
    struct prep *p;
    struct prep_worker *w = NULL;
    struct prep_batch b;
    int rc = prep_new(schema, o, n, &p, err);
    if (rc) {
        CHECK(p == NULL);
        return rc;
    }
    rc = prep_worker_new(p, &w, err);
    CHECK(!rc == (w != NULL));
    prep_begin(p, &b, n_samples, 1 << 16, 1 << 15, 1, 1, memory);
    for (uint32_t i = 0; !rc && i < n_samples; i++)
        rc = prep_sample(w, &b, i, i, i, values + (size_t)i * schema->n, err);
    if (!rc)
        rc = prep_end(&b, values, schema->n, err);
    *digest = 0;
    for (size_t k = 0; !rc && k < n; k++)
        *digest = larder_hash64(*digest, b.arrays[k].data, b.arrays[k].len);
    prep_worker_free(w);
    prep_free(p);
    return rc;
}

TEST(allocations)
{
    enum { N = 2 };
    struct larder_output o[] = {output("image", LARDER_PREP_IMAGE), output("boxes", LARDER_PREP_BOXES), output("text", LARDER_PREP_PADDED),
                                output("label", LARDER_PREP_AUTO), output("voice", LARDER_PREP_AUDIO), output("text", LARDER_PREP_RAGGED)};
    struct schema schema;
    struct larder_error err;
    uint8_t wav[44 + 600] = "RIFF\x80\2\0\0WAVEfmt \20\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\20\0data\x58\2\0";
    for (int i = 0; i < 600; i++)
        wav[44 + i] = (uint8_t)(i * 7);
    AUTO_FREE uint8_t *pixels = make_pixels(70, 50, 3, 1);
    size_t len;
    AUTO_FREE uint8_t *file = make_jpeg(pixels, 70, 50, &(struct jpeg_kind){3, 2, 2, false, 0}, &len);
    float boxes[2][4] = {{1, 2, 30, 40}, {5, 5, 6, 6}};
    int64_t label = 9;
    struct larder_value v[N][5] = {{{file, len}, VALUE(boxes), {"text", 4}, {&label, 8}, VALUE(wav)}, {{file, len}, {boxes, 16}, NO_VALUE, NO_VALUE, VALUE(wav)}};
    o[0].image = (struct larder_image){.width = 24, .flip = 0.5, .views = 2};
    o[1].follows = "image";
    o[4].audio = (struct larder_audio){.frames = 200, .rate = 16000};
    o[5].name = "ragged";
    REQUIRE_OK(schema_copy(&schema, fields, 5, &err), &err);
    AUTO_FREE void *memory = aligned_alloc(64, 8 << 20);
    uint64_t want, have;
    REQUIRE_OK(all_of_it(&schema, o, 6, v[0], N, memory, &want, &err), &err);
    long n;
    for (n = 1;; n++) {
        fault_arm(FAULT_ALLOC, n);
        int rc = all_of_it(&schema, o, 6, v[0], N, memory, &have, &err);
        if (!fault_disarm())
            break;
        if (rc == LARDER_OK)
            CHECK_EQ(have, want);
        else
            CHECK_EQ(err.code, LARDER_ENOMEM);
    }
    CHECK(n > 20);
    REQUIRE_OK(all_of_it(&schema, o, 6, v[0], N, memory, &have, &err), &err);
    CHECK_EQ(have, want);
    schema_release(&schema);
}

TEST_MAIN();
