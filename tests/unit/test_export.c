/* SPDX-License-Identifier: Apache-2.0 */
/* Export: names that never meet and never leave the destination; what comes out goes in again as the same samples. */
#include "tests/unit/ingest_tests.h"

static const char *const exts[] = {"jpg", "vec.npy", "x"};
static const struct name_rules dir_rules = {false, true, exts, 1}, tar_rules = {true, false, exts, 3}, dotted = {true, true, exts, 3};

static char *name_of(const struct name_rules *r, const void *key, size_t len, const char *ext, bool *renamed)
{
    struct buf out = BUF_INIT;
    struct larder_error err;

    REQUIRE_OK(export_name(r, key, len, ext, &out, renamed, &err), &err);
    return (char *)out.data;
}

TEST(names)
{
    static const struct { const char *key, *dir, *tar; } cases[] = {
        {"a", "a.jpg", "a.jpg"},
        {"cat/0001", "cat/0001.jpg", "cat/0001.jpg"},
        {"v1.0/a.b", "v1.0/a.b.jpg", "v1.0/a%2Eb.jpg"},
        {"../../x", "%2E./%2E./x.jpg", "%2E./%2E./x.jpg"},
        {"/etc/passwd", "%2Fetc/passwd.jpg", "%2Fetc/passwd.jpg"},
        {"a//b", "a/%2Fb.jpg", "a/%2Fb.jpg"},
        {"a/", "a%2F.jpg", "a%2F.jpg"},
        {"/", "%2F.jpg", "%2F.jpg"},
        {".", "%2E.jpg", "%2E.jpg"},
        {"..", "%2E..jpg", "%2E%2E.jpg"},
        {".hidden", "%2Ehidden.jpg", "%2Ehidden.jpg"},
        {"a\nb", "a%0Ab.jpg", "a%0Ab.jpg"},
        {"100%", "100%25.jpg", "100%25.jpg"},
        {"5% of", "5% of.jpg", "5% of.jpg"},
        {"%2E", "%252E.jpg", "%252E.jpg"},
        {"a.jpg/b", "a%2Ejpg/b.jpg", "a%2Ejpg/b.jpg"},
        {"gr\xc3\xbc\xff", "gr\xc3\xbc\xff.jpg", "gr\xc3\xbc\xff.jpg"}};

    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        bool renamed;
        char *d = name_of(&dir_rules, cases[i].key, strlen(cases[i].key), "jpg", &renamed);
        CHECK_STR(d, cases[i].dir);
        CHECK_EQ(renamed, memcmp(d, cases[i].key, strlen(cases[i].key)) != 0 || d[strlen(cases[i].key)] != '.');
        free(d);
        d = name_of(&tar_rules, cases[i].key, strlen(cases[i].key), "jpg", &renamed);
        CHECK_STR(d, cases[i].tar);
        free(d);
    }
}

/* The inverse of export_name: undoes escapes and cuts. */
static size_t decode(const char *name, size_t len, uint8_t *out)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++) {
        unsigned v;
        char hex[3] = {0};
        if (name[i] == '%' && i + 1 < len && name[i + 1] == '/') {
            i++;
            continue;
        }
        if (name[i] == '%' && i + 2 < len) {
            memcpy(hex, name + i + 1, 2);
            if (strspn(hex, "0123456789ABCDEFabcdef") == 2 && sscanf(hex, "%x", &v) == 1) {
                out[n++] = (uint8_t)v;
                i += 2;
                continue;
            }
        }
        out[n++] = (uint8_t)name[i];
    }
    return n;
}

/* No component is empty, ".", ".." or too long; nothing begins with a slash. */
static bool safe(const char *name, bool split)
{
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "/");
        if (n == 0 || (split && n > 255) || (n == 1 && p[0] == '.') || (n == 2 && !memcmp(p, "..", 2)))
            return false;
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)p[i] < 0x20 || p[i] == 0x7f)
                return false;
        p += n + (p[n] == '/');
    }
    return name[0] != '/' && name[strlen(name) - 1] != '/';
}

TEST(any_bytes)
{
    static const char alphabet[] = "a%/.25E\1\0b%%";
    static const struct name_rules *const rules[] = {&dir_rules, &tar_rules, &dotted};
    static uint8_t key[1024], back[8192];
    uint64_t state = 11;

    for (int i = 0; i < 30000; i++) {
        const struct name_rules *r = rules[i % 3];
        size_t len = 1 + (i % 50 == 0 ? rng_below(&state, 1024) : rng_below(&state, 12));
        uint64_t kind = rng_below(&state, 5);
        for (size_t k = 0; k < len; k++)
            key[k] = kind == 0 ? (uint8_t)rng_u64(&state) : kind == 1 ? '.' : kind == 2 ? '%' : (uint8_t)alphabet[rng_below(&state, sizeof(alphabet) - 1)];
        const char *ext = exts[rng_below(&state, r->n_exts)];
        bool renamed;
        char *name = name_of(r, key, len, ext, &renamed);
        REQUIRE(safe(name, r->split));
        size_t n = decode(name, strlen(name), back);
        REQUIRE_EQ(n, len + 1 + strlen(ext));
        REQUIRE_MEM(back, key, len);
        REQUIRE(back[len] == '.' && !memcmp(back + len + 1, ext, strlen(ext)));
        CHECK_EQ(renamed, strlen(name) != n || memcmp(name, key, len) != 0);
        if (r == &tar_rules) { /* the first dot of the base name ends the key */
            size_t key_len, ext_len;
            const char *found;
            REQUIRE(tar_name_split(name, strlen(name), &key_len, &found, &ext_len) == NULL);
            REQUIRE_EQ(ext_len, strlen(ext));
            REQUIRE_MEM(found, ext, ext_len);
        }
        if (r == &dir_rules) /* no folder on the way could be a file */
            for (char *slash = strchr(name, '/'); slash; slash = strchr(slash + 1, '/'))
                REQUIRE(slash - name < 4 || memcmp(slash - 4, ".jpg", 4));
        free(name);
    }
}

TEST(extensions)
{
    static const struct { const char *name, *ext; } cases[] = {{"image", "image"}, {"vec.npy", "vec.npy"}, {"a/b", "a%2Fb"},
                                                               {"..", "%2E."},     {"50%", "50%25"},       {"x%41", "x%2541"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct buf b = BUF_INIT;
        CHECK_EQ(export_ext(cases[i].name, &b, NULL), 0);
        CHECK_STR((char *)b.data, cases[i].ext);
        buf_release(&b);
    }
}

static const struct larder_field fields[] = {{"image", LARDER_IMAGE, NULL, 0, NULL}, {"label", LARDER_I64, NULL, 0, NULL},
                                             {"json", LARDER_JSON, NULL, 0, NULL}};
static const uint8_t jpeg[] = {0xff, 0xd8, 0xff, 0xe0, 0, 16, 'J', 'F', 'I', 'F'};

/* Keys that try to get out, and an ordinary one. */
static const char *const keys[] = {"plain", "../../escape", "/abs", "a", "a.jpg/b", "a/b.c", "..", "x\ny", "%2E%2E", "a//b", "deep/er/still"};

static void make(const char *dest)
{
    struct larder_writer_options o = LARDER_WRITER_OPTIONS_INIT;
    struct larder_writer *w;
    struct larder_error err;

    REQUIRE_OK(larder_writer_open(dest, fields, 3, &o, &w, &err), &err);
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        uint8_t image[64];
        int64_t label = (int64_t)i - 3;
        char text[32];
        fill(i, image, sizeof(image));
        memcpy(image, jpeg, sizeof(jpeg));
        struct larder_value v[3] = {{image, sizeof(image)}, {&label, 8}, {text, (size_t)sprintf(text, "{\"i\": %zu}", i)}};
        if (i == 4)
            v[2].data = NULL;
        REQUIRE_OK(larder_writer_add(w, keys[i], strlen(keys[i]), v, &err), &err);
    }
    REQUIRE_OK(larder_writer_commit(w, NULL, &err), &err);
}

static void export_to(const char *ds_path, const char *dest, const struct larder_export_options *o, struct larder_export_report *r)
{
    struct larder_export_options none = LARDER_EXPORT_OPTIONS_INIT;
    struct larder_dataset *ds = open_ds(ds_path);
    struct larder_error err;

    *r = (struct larder_export_report){.struct_size = sizeof(*r)};
    REQUIRE_OK(larder_export_run(ds, dest, o ? o : &none, r, &err), &err);
    larder_dataset_close(ds);
}

TEST(to_a_folder)
{
    const char *base = tmp_dir();
    char *ds = path_of(base, "ds"), *out = path_of(base, "out/put"), *outer = sub_dir(base, "out");
    struct larder_export_report r;

    make(ds);
    export_to(ds, out, NULL, &r);
    CHECK_EQ(r.samples, ARRAY_LEN(keys));
    CHECK_EQ(r.files, 3 * ARRAY_LEN(keys) - 1);
    CHECK_EQ(r.renamed, 7);
    CHECK_EQ(count_files(out, "."), r.files);
    CHECK_EQ(count_files(base, "out"), r.files); /* nothing beside it */
    static const char *const there[] = {"plain.jpg", "plain.label", "plain.json", "a.jpg", "a%2Ejpg/b.label", "%2Fabs.jpg", "a/b.c.jpg"};
    for (size_t i = 0; i < ARRAY_LEN(there); i++) {
        char *path = path_of(out, there[i]);
        CHECK(access(path, F_OK) == 0);
        free(path);
    }
    struct larder_export_options o = LARDER_EXPORT_OPTIONS_INIT;
    struct larder_error err;
    struct larder_dataset *d = open_ds(ds);
    CHECK_ERR(larder_export_run(d, out, &o, &r, &err), LARDER_EEXIST, &err);
    o.first = 11;
    CHECK_ERR(larder_export_run(d, base, &o, &r, &err), LARDER_ENOTFOUND, &err);
    o.first = 10;
    o.count = 2;
    CHECK_ERR(larder_export_run(d, base, &o, &r, &err), LARDER_ENOTFOUND, &err);
    larder_dataset_close(d);
    free(ds);
    free(out);
    free(outer);
}

TEST(tar_and_back)
{
    static const char *const ends[] = {"x.tar", "x.tar.gz", "x.tar.zst"};
    const char *base = tmp_dir();
    char *ds = path_of(base, "ds");

    make(ds);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
        struct larder_export_report r;
        struct larder_error err;
        char name[16];
        snprintf(name, sizeof(name), "back%zu", i);
        char *tar = path_of(base, ends[i]), *back = path_of(base, name), command[512];
        export_to(ds, tar, NULL, &r);
        CHECK_EQ(r.renamed, 8); /* "a/b.c" too: its dot would end the key */
        o.fields = "image=jpg,label:i64=cls,json";
        REQUIRE_OK(ingest_one(tar, back, &o, NULL, &err), &err);
        CHECK_EQ(digest_ds(ds), digest_ds(back));
        struct larder_dataset *d = open_ds(back);
        for (uint64_t k = 0; k < ARRAY_LEN(keys); k++) {
            uint8_t key[64];
            size_t len;
            REQUIRE_OK(larder_dataset_key(d, k, key, sizeof(key), &len, &err), &err);
            CHECK_EQ(len, strlen(keys[k])); /* the same order, too */
            CHECK_MEM(key, keys[k], len);
        }
        larder_dataset_close(d);
        snprintf(command, sizeof(command), "tar tf %s | grep -q '^a/b%%2Ec.cls$'", tar);
        CHECK_EQ(system(command), 0);
        /* reproducible: the same bytes again */
        snprintf(name, sizeof(name), "y%s", strchr(ends[i], '.'));
        char *again = path_of(base, name);
        export_to(ds, again, NULL, &r);
        snprintf(command, sizeof(command), "cmp %s %s", tar, again);
        CHECK_EQ(system(command), 0);
        free(again);
        free(tar);
        free(back);
    }
    free(ds);
}

TEST(class_folders_and_back)
{
    const char *src = tmp_dir(), *base = tmp_dir();
    char *ds = path_of(base, "ds"), *out = path_of(base, "out"), *back = path_of(base, "back"), name[64];
    struct larder_ingest_options o = LARDER_INGEST_OPTIONS_INIT;
    struct larder_export_report r;
    struct larder_error err;
    uint8_t data[2000];

    for (int i = 0; i < 300; i++) { /* more than a batch */
        snprintf(name, sizeof(name), "%s/%03d.x.JPEG", i % 2 ? "v1.0" : "b", i);
        fill((uint64_t)i, data, sizeof(data));
        memcpy(data, jpeg, sizeof(jpeg));
        write_file(src, name, data, 100 + (size_t)i * 5);
    }
    REQUIRE_OK(ingest_one(src, ds, &o, NULL, &err), &err);
    export_to(ds, out, NULL, &r);
    CHECK_EQ(r.files, 300); /* the folder tells the label */
    CHECK_EQ(r.renamed, 0);
    REQUIRE_OK(ingest_one(out, back, &o, NULL, &err), &err);
    CHECK_EQ(digest_ds(ds), digest_ds(back));
    free(ds);
    free(out);
    free(back);
}

static int stop(void *user, const struct larder_progress *p)
{
    (void)user;
    CHECK_STR(p->phase, "export");
    return 1;
}

TEST(cancel)
{
    const char *base = tmp_dir();
    char *ds = path_of(base, "ds"), *out = path_of(base, "out"), *tar = path_of(base, "out.tar");
    struct larder_export_options o = LARDER_EXPORT_OPTIONS_INIT;
    struct larder_export_report r = {.struct_size = sizeof(r)};
    struct larder_error err;
    struct stat st;

    make(ds);
    struct larder_dataset *d = open_ds(ds);
    o.progress = stop;
    CHECK_ERR(larder_export_run(d, out, &o, &r, &err), LARDER_ECANCELED, &err);
    CHECK_ERR(larder_export_run(d, tar, &o, &r, &err), LARDER_ECANCELED, &err);
    CHECK(stat(out, &st) != 0 && stat(tar, &st) != 0);
    larder_dataset_close(d);
    free(ds);
    free(out);
    free(tar);
}

TEST_MAIN();
