/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_prep.c - prep_sample() and prep_end() over values from outside: as if a record had passed its check and held nonsense.
 *
 * Input: for each of up to four samples and each field a u16, which is its length (0xffff: it is missing), and so many bytes. Memory of
 * the batch is exactly prep_bytes(). Never a byte outside it, never a code but LARDER_OK, LARDER_ECORRUPT and LARDER_EINVAL, arrays that agree
 * with themselves, and the same ones the second time.
 */
#include "loader/prep_int.h"

enum { IMAGE, MASK, BOXES, LABEL, TEXT, ROWS, CUBE, FIXED, N_FIELDS, N_OUTPUTS = 12, SAMPLES = 4, SIDE = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        __builtin_trap();
}

static struct prep *open_prep(struct schema *schema)
{
    static const int64_t boxes[] = {-1, 4}, rows[] = {3, -1}, cube[] = {-1, 2, -1}, fixed[] = {2, 2};
    static const struct larder_field fields[N_FIELDS] = {
        {"image", LARDER_IMAGE, NULL, 0, NULL}, {"mask", LARDER_IMAGE, NULL, 0, NULL}, {"boxes", LARDER_NDARRAY, "float16", 2, boxes},
        {"label", LARDER_BOOL, NULL, 0, NULL}, {"text", LARDER_UTF8, NULL, 0, NULL}, {"rows", LARDER_NDARRAY, "int16", 2, rows},
        {"cube", LARDER_NDARRAY, "uint8", 3, cube}, {"fixed", LARDER_NDARRAY, "int32", 2, fixed},
    };
    static const struct { const char *field, *name; int prep; uint64_t pad_to; } kinds[N_OUTPUTS] = {
        {"image", NULL, LARDER_PREP_IMAGE, 0}, {"mask", NULL, LARDER_PREP_MASK, 0}, {"boxes", NULL, LARDER_PREP_BOXES, 0},
        {NULL, "where", LARDER_PREP_GEOMETRY, 0}, {"label", NULL, LARDER_PREP_DENSE, 0}, {"text", NULL, LARDER_PREP_RAGGED, 0},
        {"text", "padded", LARDER_PREP_PADDED, 0}, {"text", "cut", LARDER_PREP_PADDED, 5}, {"rows", NULL, LARDER_PREP_PADDED, 0},
        {"cube", NULL, LARDER_PREP_PADDED, 3}, {"fixed", NULL, LARDER_PREP_DENSE, 0}, {"text", "raw", LARDER_PREP_BYTES, 0},
    };
    struct larder_output o[N_OUTPUTS];
    struct prep *p;
    for (int i = 0; i < N_OUTPUTS; i++) {
        o[i] = (struct larder_output)LARDER_OUTPUT_INIT;
        o[i].field = kinds[i].field;
        o[i].name = kinds[i].name;
        o[i].prep = kinds[i].prep;
        o[i].pad_to = kinds[i].pad_to;
        o[i].follows = i >= 1 && i <= 3 ? "image" : NULL;
    }
    o[0].image = (struct larder_image){.width = SIDE, .flip = 0.5, .views = 2, .exif = 1, .pixels_max = 1 << 16};
    require(schema_copy(schema, fields, N_FIELDS, NULL) == LARDER_OK);
    require(prep_new(schema, o, N_OUTPUTS, &p, NULL) == LARDER_OK);
    return p;
}

static uint32_t take_values(const uint8_t *data, size_t size, struct larder_value v[SAMPLES][N_FIELDS])
{
    uint32_t n = 0;
    for (; n < SAMPLES && size >= 2; n++)
        for (int k = 0; k < N_FIELDS; k++) {
            size_t len = size < 2 ? 0xffff : get_u16(data), head = MIN(size, 2u);
            v[n][k] = (struct larder_value){NULL, 0};
            data += head;
            size -= head;
            if (len == 0xffff)
                continue;
            v[n][k] = (struct larder_value){data, MIN(len, size)};
            data += v[n][k].len;
            size -= v[n][k].len;
        }
    return n;
}

static void check_array(const struct larder_array *a, uint32_t n)
{
    uint64_t bytes = a->dtype ? dtype_find(a->dtype)->bytes : 0, parts = a->keep ? 2 * n : n;
    for (uint32_t k = 0; k < a->ndim; k++) {
        require(a->shape[k] >= 0);
        bytes *= (uint64_t)a->shape[k];
    }
    require(a->len == bytes);
    for (uint64_t k = 0; a->offsets && k < parts; k++)
        require(a->offsets[k] <= a->offsets[k + 1] && a->offsets[parts] == (uint64_t)a->shape[0]);
}

static uint64_t run(const struct prep *p, struct larder_value v[SAMPLES][N_FIELDS], uint32_t n, uint8_t rubbish)
{
    struct prep_worker *w;
    struct prep_batch b;
    uint64_t all = 0, most = 0, digest = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t raw = 0;
        for (int k = 0; k < N_FIELDS; k++)
            raw += v[i][k].len;
        all += raw;
        most = MAX(most, raw);
    }
    size_t bytes = prep_bytes(p, n, all, most);
    uint8_t *memory = NULL;
    require(posix_memalign((void **)&memory, 64, bytes) == 0);
    memset(memory, rubbish, bytes);
    require(prep_worker_new(p, &w, NULL) == LARDER_OK);
    prep_begin(p, &b, n, all, most, 1, 2, memory);
    int rc = LARDER_OK;
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = prep_sample(w, &b, i, i, i, v[i], NULL);
    require(rc == LARDER_OK || rc == LARDER_ECORRUPT || rc == LARDER_EINVAL);
    if (!rc) {
        require(prep_end(&b, v[0], N_FIELDS, NULL) == LARDER_OK);
        for (int k = 0; k < N_OUTPUTS; k++) {
            check_array(&b.arrays[k], n);
            if (b.arrays[k].data)
                digest = larder_hash64(digest, b.arrays[k].data, b.arrays[k].len);
        }
    }
    prep_worker_free(w);
    free(memory);
    return digest;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct larder_value v[SAMPLES][N_FIELDS];
    struct schema schema;
    uint32_t n = take_values(data, size, v);
    struct prep *p = open_prep(&schema);
    require(run(p, v, n, 0) == run(p, v, n, 0xa5));
    prep_free(p);
    schema_release(&schema);
    return 0;
}
