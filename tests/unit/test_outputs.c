/* SPDX-License-Identifier: Apache-2.0 */
/* test_outputs.c - what is wrong with outputs is said when they are asked for, and what becomes of those that are right. */
#include "tests/unit/test.h"

#include "loader/prep_int.h"

static const int64_t fixed[] = {3, 4}, list[] = {-1}, rows[] = {-1, 5}, columns[] = {3, -1}, both[] = {-1, -1, 3}, none[] = {-1, 0}, boxes[] = {-1, 4};
static const int64_t huge[] = {INT64_MAX / 2, 8};
static const struct larder_field fields[] = {
    {"raw", LARDER_BYTES, NULL, 0, NULL}, {"photo", LARDER_IMAGE, NULL, 0, NULL}, {"voice", LARDER_AUDIO, NULL, 0, NULL},
    {"text", LARDER_UTF8, NULL, 0, NULL}, {"meta", LARDER_JSON, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL},
    {"score", LARDER_F64, NULL, 0, NULL}, {"weight", LARDER_F32, NULL, 0, NULL}, {"good", LARDER_BOOL, NULL, 0, NULL},
    {"fixed", LARDER_NDARRAY, "float16", 2, fixed}, {"list", LARDER_NDARRAY, "int32", 1, list}, {"rows", LARDER_NDARRAY, "float64", 2, rows},
    {"columns", LARDER_NDARRAY, "uint8", 2, columns}, {"both", LARDER_NDARRAY, "uint8", 3, both}, {"none", LARDER_NDARRAY, "int8", 2, none},
    {"boxes", LARDER_NDARRAY, "float32", 2, boxes}, {"huge", LARDER_NDARRAY, "int64", 2, huge}, {"zero", LARDER_NDARRAY, "bfloat16", 0, NULL},
};

static struct larder_output output(const char *field, int prep)
{
    struct larder_output o = LARDER_OUTPUT_INIT;
    o.field = field;
    o.prep = prep;
    o.image.width = 32;
    o.audio.frames = 100;
    return o;
}

static int try_it(const struct larder_output *outputs, size_t n, struct prep **p, struct larder_error *err)
{
    struct schema s;
    REQUIRE_OK(schema_copy(&s, fields, ARRAY_LEN(fields), err), err);
    int rc = prep_new(&s, outputs, n, p, err);
    schema_release(&s); /* nothing of it is borrowed */
    return rc;
}

TEST(refused)
{
    static const struct { const char *field; int prep, code; const char *message; } cases[] = {
        {"nothing", LARDER_PREP_BYTES, LARDER_ENOTFOUND, "output 'nothing': the dataset has no field 'nothing'"},
        {"raw", 11, LARDER_EINVAL, "output 'raw': prep is 11, which is none"},
        {"raw", LARDER_PREP_DENSE, LARDER_EINVAL, "output 'raw': field 'raw' is bytes, of no fixed size: ask for bytes, ragged or padded"},
        {"rows", LARDER_PREP_DENSE, LARDER_EINVAL,
         "output 'rows': dimension 0 of field 'rows' differs from sample to sample: ask for ragged, padded or bytes"},
        {"huge", LARDER_PREP_DENSE, LARDER_EINVAL, "output 'huge': a sample's array would be larger than memory"},
        {"label", LARDER_PREP_RAGGED, LARDER_EINVAL, "output 'label': field 'label' is i64: ask for dense"},
        {"fixed", LARDER_PREP_PADDED, LARDER_EINVAL, "output 'fixed': field 'fixed' has the same shape in every sample: ask for dense"},
        {"none", LARDER_PREP_RAGGED, LARDER_EINVAL, "output 'none': dimension 1 of field 'none' is 0: ask for bytes"},
        {"columns", LARDER_PREP_RAGGED, LARDER_EINVAL,
         "output 'columns': another dimension of field 'columns' than the first differs from sample to sample: ask for padded or bytes"},
        {"both", LARDER_PREP_RAGGED, LARDER_EINVAL,
         "output 'both': another dimension of field 'both' than the first differs from sample to sample: ask for padded or bytes"},
        {"both", LARDER_PREP_PADDED, LARDER_EINVAL,
         "output 'both': 2 dimensions of field 'both' differ: say pad_to, how long each shall be, or ask for bytes"},
        {"text", LARDER_PREP_IMAGE, LARDER_EINVAL, "output 'text': field 'text' is utf8: image takes image or bytes"},
        {"photo", LARDER_PREP_AUDIO, LARDER_EINVAL, "output 'photo': field 'photo' is image: audio takes audio or bytes"},
        {"photo", LARDER_PREP_MASK, LARDER_EINVAL, "output 'photo': mask moves as an image does: `follows` says which output that is"},
        {"photo", LARDER_PREP_USER, LARDER_EINVAL, "output 'photo': fn is NULL"},
    };
    struct larder_error err;
    struct prep *p;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct larder_output o = output(cases[i].field, cases[i].prep);
        CHECK_ERR(try_it(&o, 1, &p, &err), cases[i].code, &err);
        CHECK_STR(err.message, cases[i].message);
        CHECK(p == NULL);
    }
}

static int user_fn(void *user, const struct larder_prep_in *in, void *out, struct larder_error *err)
{
    (void)user, (void)in, (void)out, (void)err;
    return LARDER_OK;
}

/* One member at a time is wrong. */
TEST(refused_members)
{
    struct larder_error err;
    struct prep *p;
    struct larder_output o[3];
#define REFUSED(n, code, text) \
    do { \
        CHECK_ERR(try_it(o, n, &p, &err), code, &err); \
        CHECK_STR(err.message, text); \
    } while (0)
    o[0] = output(NULL, LARDER_PREP_BYTES);
    REFUSED(1, LARDER_EINVAL, "output 0: a name of 1 to 255 bytes is needed");
    o[0].name = "x";
    REFUSED(1, LARDER_EINVAL, "output 'x': the field that it is made of is missing");
    o[0] = output("raw", LARDER_PREP_BYTES);
    o[1] = output("text", LARDER_PREP_BYTES);
    o[1].name = "raw";
    REFUSED(2, LARDER_EINVAL, "output 'raw': output 0 has the same name: give one of them another");
    o[1] = output("text", LARDER_PREP_BYTES);
    o[1].struct_size = 8;
    CHECK_ERR(try_it(o, 2, &p, &err), LARDER_EINVAL, &err);
    o[0] = output("photo", LARDER_PREP_IMAGE);
    o[0].image.width = 0;
    CHECK_ERR(try_it(o, 1, &p, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "photo") != NULL);
    o[0] = output("photo", LARDER_PREP_IMAGE);
    o[1] = output("boxes", LARDER_PREP_BOXES);
    o[1].follows = "foto";
    REFUSED(2, LARDER_ENOTFOUND, "output 'boxes' follows 'foto', which is no output");
    o[1].follows = "boxes";
    REFUSED(2, LARDER_EINVAL, "output 'boxes': follows 'boxes', which is boxes, not image");
    o[1] = output("rows", LARDER_PREP_BOXES);
    o[1].follows = "photo";
    REFUSED(2, LARDER_EINVAL, "output 'rows': field 'rows' is no ndarray of numbers [k, 4]: x0, y0, x1, y1 of each box");
    o[1] = output("raw", LARDER_PREP_MASK);
    o[1].follows = "photo";
    o[1].dtype = "int32";
    REFUSED(2, LARDER_EINVAL, "output 'raw': dtype is 'int32': a mask is uint8 or uint16");
    o[0] = output("voice", LARDER_PREP_AUDIO);
    o[0].audio.frames = 0;
    REFUSED(1, LARDER_EINVAL, "output 'voice': audio.frames is 0: say how long each sample shall be");
    o[0].audio = (struct larder_audio){.frames = 1, .dtype = "float64"};
    REFUSED(1, LARDER_EINVAL, "output 'voice': dtype is 'float64': audio is float32 or int16");
    o[0].audio = (struct larder_audio){.frames = 1, .rate = 1000000};
    REFUSED(1, LARDER_EINVAL, "output 'voice': 1 channels at 1000000 Hz: at most 64, at 768000");
    o[0] = output("text", LARDER_PREP_PADDED);
    o[0].pad_to = 1ull << 40;
    REFUSED(1, LARDER_EINVAL, "output 'text': pad_to is 1099511627776: at most 4294967295");
    o[0] = output("both", LARDER_PREP_PADDED);
    o[0].pad_to = UINT32_MAX;
    REFUSED(1, LARDER_EINVAL, "output 'both': a sample's array would be larger than memory: pad_to is 4294967295");
    o[0] = output(NULL, LARDER_PREP_USER);
    o[0].name = "mine";
    o[0].fn = user_fn;
    REFUSED(1, LARDER_EINVAL, "output 'mine': dtype is '', which is none");
    o[0].dtype = "complex64";
    REFUSED(1, LARDER_EINVAL, "output 'mine': dtype is 'complex64', which is none");
    o[0].dtype = "int16";
    o[0].ndim = 33;
    REFUSED(1, LARDER_EINVAL, "output 'mine': a shape of up to 32 dimensions is needed, not of 33");
    o[0].ndim = 2;
    o[0].shape = columns;
    REFUSED(1, LARDER_EINVAL, "output 'mine': dimension 1 is -1");
#undef REFUSED
}

TEST(by_type)
{
    static const struct { const char *field; int prep; const char *dtype; uint32_t ndim; uint64_t row; } want[] = {
        {"raw", LARDER_PREP_BYTES, NULL, 1, 0}, {"photo", LARDER_PREP_BYTES, NULL, 1, 0}, {"voice", LARDER_PREP_BYTES, NULL, 1, 0},
        {"text", LARDER_PREP_BYTES, NULL, 1, 0}, {"meta", LARDER_PREP_BYTES, NULL, 1, 0}, {"label", LARDER_PREP_DENSE, "int64", 1, 8},
        {"score", LARDER_PREP_DENSE, "float64", 1, 8}, {"weight", LARDER_PREP_DENSE, "float32", 1, 4}, {"good", LARDER_PREP_DENSE, "bool", 1, 1},
        {"fixed", LARDER_PREP_DENSE, "float16", 3, 24}, {"list", LARDER_PREP_BYTES, NULL, 1, 0}, {"rows", LARDER_PREP_BYTES, NULL, 1, 0},
        {"both", LARDER_PREP_BYTES, NULL, 1, 0}, {"zero", LARDER_PREP_DENSE, "bfloat16", 1, 2},
    };
    struct larder_output o[ARRAY_LEN(want)];
    struct larder_error err;
    struct prep *p;
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        o[i] = output(want[i].field, LARDER_PREP_AUTO);
    REQUIRE_OK(try_it(o, ARRAY_LEN(want), &p, &err), &err);
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        const struct prep_output *q = &p->outputs[i];
        CHECK_STR(q->name, want[i].field);
        CHECK_EQ(q->o.prep, want[i].prep);
        CHECK(want[i].dtype ? q->dtype && !strcmp(q->dtype, want[i].dtype) : !q->dtype);
        CHECK_EQ(q->ndim, want[i].ndim);
        CHECK_EQ(q->row, want[i].row);
    }
    CHECK(!prep_is_heavy(p));
    CHECK(prep_wants(p, 0) && prep_wants(p, 3) && !prep_wants(p, 12) && !prep_wants(p, 15));
    prep_free(p);
}

TEST(shapes)
{
    struct larder_output o[8];
    struct larder_error err;
    struct prep *p;
    int64_t user_shape[] = {2, 7};
    o[0] = output("boxes", LARDER_PREP_BOXES); /* before what it follows */
    o[0].follows = "views";
    o[1] = output("photo", LARDER_PREP_IMAGE);
    o[1].name = "views";
    o[1].image.height = 16;
    o[1].image.views = 2;
    o[1].image.planar = 1;
    o[1].image.dtype = "bfloat16";
    o[2] = output("photo", LARDER_PREP_MASK);
    o[2].name = "mask";
    o[2].follows = "views";
    o[2].dtype = "uint16";
    o[3] = output(NULL, LARDER_PREP_GEOMETRY);
    o[3].name = "where";
    o[3].follows = "views";
    o[4] = output("voice", LARDER_PREP_AUDIO);
    o[4].audio.channels = 2;
    o[4].audio.dtype = "int16";
    o[5] = output("rows", LARDER_PREP_RAGGED);
    o[6] = output("columns", LARDER_PREP_PADDED);
    o[7] = output("raw", LARDER_PREP_USER);
    o[7].name = "mine";
    o[7].fn = user_fn;
    o[7].dtype = "uint64";
    o[7].ndim = 2;
    o[7].shape = user_shape;
    static const struct { const char *dtype; uint32_t ndim; int64_t shape[5]; uint64_t row; } want[] = {
        {"float32", 2, {0, 4}, 16}, {"bfloat16", 5, {0, 2, 3, 16, 32}, 2 * 3 * 16 * 32 * 2}, {"uint16", 4, {0, 2, 16, 32}, 2 * 16 * 32 * 2},
        {"int32", 3, {0, 2, 8}, 64}, {"int16", 3, {0, 2, 100}, 400}, {"float64", 2, {-1, 5}, 40}, {"uint8", 3, {0, 3, -1}, 3}, {"uint64", 3, {0, 2, 7}, 112},
    };
    REQUIRE_OK(try_it(o, 8, &p, &err), &err);
    for (size_t i = 0; i < 8; i++) {
        const struct prep_output *q = &p->outputs[i];
        CHECK_STR(q->dtype, want[i].dtype);
        CHECK_EQ(q->ndim, want[i].ndim);
        CHECK_MEM(q->shape, want[i].shape, q->ndim * sizeof(int64_t));
        CHECK_EQ(q->row, want[i].row);
    }
    CHECK(prep_is_heavy(p) && !prep_wants(p, 3) && prep_wants(p, 15));
    CHECK(p->outputs[1].followed && p->outputs[0].follows == 1 && p->order[0] == 1);
    prep_free(p);
    /* Whose field is not named looks at all. */
    o[7].field = NULL;
    REQUIRE_OK(try_it(o + 7, 1, &p, &err), &err);
    for (uint32_t k = 0; k < ARRAY_LEN(fields); k++)
        CHECK(prep_wants(p, k));
    prep_free(p);
    REQUIRE_OK(try_it(NULL, 0, &p, &err), &err);
    CHECK(!prep_wants(p, 0) && !prep_is_heavy(p));
    prep_free(p);
    prep_free(NULL);
}

/* A newer header's struct is larger: its outputs lie further apart. */
TEST(larger_structs)
{
    struct { struct larder_output o; uint64_t more; } theirs[2] = {0};
    struct larder_error err;
    struct prep *p;
    theirs[0].o = output("label", LARDER_PREP_AUTO);
    theirs[1].o = output("text", LARDER_PREP_AUTO);
    theirs[0].o.struct_size = theirs[1].o.struct_size = sizeof(theirs[0]);
    REQUIRE_OK(try_it(&theirs[0].o, 2, &p, &err), &err);
    CHECK_STR(p->outputs[1].name, "text");
    prep_free(p);
    theirs[1].more = 1;
    CHECK_ERR(try_it(&theirs[0].o, 2, &p, &err), LARDER_EINVAL, &err);
}

TEST_MAIN();
