/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a member's name, as a key to export under each set of rules, as --fields, as a brace pattern and as a file's contents
 * of each type. What comes out of export_name must be split by tar_name_split as it was put together, and stay below its folder.
 */
#include "ingest/ingest_int.h"

static void check_safe(const char *name)
{
    if (name[0] == '/' || name[0] == 0)
        abort();
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (n == 1 && *p == '.') || (n == 2 && !memcmp(p, "..", 2)))
            abort();
        p += n + (p[n] == '/');
    }
}

static void names(const uint8_t *data, size_t size)
{
    static const char *const exts[] = {"jpg", "seg.png", "%2E"};
    static const struct name_rules rules[] = {{false, true, exts, 1}, {true, false, exts, 3}, {true, true, exts, 3}};
    size_t key_len, ext_len;
    const char *ext;

    if (!tar_name_split((const char *)data, size, &key_len, &ext, &ext_len) &&
        (key_len == 0 || ext_len == 0 || key_len + 1 + ext_len != size || (const char *)data + key_len + 1 != ext))
        abort();
    if (size == 0 || size > LARDER_KEY_MAX)
        return;
    for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
        struct buf out = BUF_INIT;
        bool renamed;
        if (!export_name(&rules[i], data, size, exts[i], &out, &renamed, NULL)) {
            const char *name = (char *)out.data;
            check_safe(name);
            if (i == 1 && (tar_name_split(name, strlen(name), &key_len, &ext, &ext_len) || strcmp(ext, exts[i])))
                abort();
        }
        buf_release(&out);
    }
}

static void texts(const char *text, const uint8_t *data, size_t size)
{
    struct field_specs f;
    struct buf ext = BUF_INIT;
    char **paths;
    size_t n;

    if (!fields_parse(text, &f, NULL)) {
        if (f.n == 0 || !f.specs[0].name[0] || f.specs[0].n_exts == 0)
            abort();
        fields_release(&f);
    }
    if (!export_ext(text, &ext, NULL) && strchr((char *)ext.data, '/'))
        abort();
    buf_release(&ext);
    if (size < 24 && !braces_expand((const char *const *)&text, 1, &paths, &n, NULL)) /* long ones only take long */
        strings_free(paths, n);
    for (int type = LARDER_BYTES; type < LARDER_NDARRAY; type++) {
        struct larder_value v;
        uint8_t scratch[8];
        char back[40];
        if (!fields_value(type, data, size, scratch, &v, NULL) && type_width(type) && fields_text(type, &v, back) > 40)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = bytes_dup(data, size);

    names(data, size);
    if (text)
        texts(text, data, size);
    free(text);
    return 0;
}
