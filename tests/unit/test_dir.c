/* SPDX-License-Identifier: Apache-2.0 */
/* A folder as a source, read straight through the source interface and through whole ingests; a folder as a sink. */
#include "tests/unit/ingest_tests.h"

struct opened { struct notes notes; struct larder_ingest_options o; struct heard h; struct source *s; };

static int open_dir(struct opened *d, const char *path, const struct manifest *base, struct larder_error *err)
{
    notes_init(&d->notes, &d->o);
    return dir_open(path, tmp_dir(), &d->notes, base, &d->s, err);
}

static void close_dir(struct opened *d)
{
    if (d->s)
        d->s->ops->close(d->s);
    notes_release(&d->notes);
    heard_release(&d->h);
}

/* Keys in the order of units, joined by blanks. */
static char *keys_of(struct source *s)
{
    struct buf b = BUF_INIT;
    struct larder_error err;
    for (uint64_t u = 0; u < s->units; u++) {
        struct source_cursor *c;
        struct source_item item;
        int rc;
        REQUIRE_OK(s->ops->open_unit(s, u, 0, &c, &err), &err);
        while ((rc = s->ops->next(c, &item, &err)) == LARDER_OK) {
            REQUIRE(b.len == 0 || buf_append(&b, " ", 1, NULL) == 0);
            REQUIRE(buf_append(&b, item.key, item.key_len, NULL) == 0);
        }
        CHECK_EQ(rc, LARDER_END);
        s->ops->close_unit(c);
    }
    REQUIRE(buf_append(&b, "", 1, NULL) == 0);
    return (char *)b.data;
}

TEST(order_classes_labels)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    d.o = heard_options(&d.h);
    d.o.order = LARDER_ORDER_SOURCE;
    write_text(dir, "b/2.txt", "two");
    write_text(dir, "b-c/1.txt", "one");
    write_text(dir, "a/deep/er/x.y.txt", "deep");
    write_text(dir, "b/1", "no extension");
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    CHECK_EQ(d.s->samples, 4);
    REQUIRE_EQ(d.s->n_classes, 3);
    CHECK_STR(d.s->classes[0], "a");
    CHECK_STR(d.s->classes[1], "b");
    CHECK_STR(d.s->classes[2], "b-c");
    REQUIRE_EQ(d.s->schema.n, 2);
    CHECK_STR(d.s->schema.fields[0].name, "data"); /* a file without extension: bytes */
    CHECK_EQ(d.s->schema.fields[1].type, LARDER_I64);
    char *keys = keys_of(d.s);
    CHECK_STR(keys, "a/deep/er/x.y b-c/1 b/1 b/2"); /* '-' sorts before '/' */
    free(keys);
    struct source_cursor *c;
    struct source_item item;
    REQUIRE_OK(d.s->ops->open_unit(d.s, 0, 1, &c, &err), &err);
    REQUIRE_OK(d.s->ops->next(c, &item, &err), &err);
    CHECK_EQ(get_u64(item.values[1].data), 2); /* b-c */
    CHECK_EQ(item.values[0].len, 3);
    CHECK(strstr(item.what, "b-c/1.txt") != NULL && item.what[0] == '/');
    d.s->ops->close_unit(c);
    close_dir(&d);
}

TEST(content_field_by_extension)
{
    static const struct { const char *files[3], *name; int type; } cases[] = {
        {{"1.jpg", "2.PNG", "3.jpeg"}, "image", LARDER_IMAGE}, {{"1.wav", "2.mp3", "3.flac"}, "audio", LARDER_AUDIO},
        {{"1.txt", "2.txt", "3.txt"}, "text", LARDER_UTF8},    {{"1.json", "2.json", "3.json"}, "json", LARDER_JSON},
        {{"1.jpg", "2.txt", "3.jpg"}, "data", LARDER_BYTES},   {{"1.cls", "2.cls", "3.cls"}, "data", LARDER_BYTES}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const char *dir = tmp_dir();
        struct opened d = {0};
        struct larder_error err;
        d.o = heard_options(&d.h);
        for (int k = 0; k < 3; k++)
            write_text(dir, cases[i].files[k], "7");
        REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
        REQUIRE_EQ(d.s->schema.n, 1);
        CHECK_STR(d.s->schema.fields[0].name, cases[i].name);
        CHECK_EQ(d.s->schema.fields[0].type, cases[i].type);
        CHECK_EQ(d.s->n_classes, 0);
        close_dir(&d);
    }
}

TEST(fields_option)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    write_text(dir, "a/1.bin", "12");
    write_text(dir, "a/2.bin", " 13\n");
    d.o = heard_options(&d.h);
    d.o.fields = "number:i64";
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    CHECK_STR(d.s->schema.fields[0].name, "number");
    CHECK_EQ(d.s->schema.fields[0].type, LARDER_I64);
    close_dir(&d);
    static const char *const bad[] = {"a,b", "x=bin", "label", "label:bytes", "x:nothing"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        memset(&d, 0, sizeof(d));
        d.o = heard_options(&d.h);
        d.o.fields = bad[i];
        CHECK_ERR(open_dir(&d, dir, NULL, &err), LARDER_EINVAL, &err);
        close_dir(&d);
    }
}

TEST(ignored_and_unreadable)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    char *link = path_of(dir, "good.bin"), *dangling = path_of(dir, "gone.bin"), *loop = path_of(dir, "loop"), *fifo = path_of(dir, "pipe");
    write_text(dir, "x/real.bin", "real");
    write_text(dir, ".hidden", "h");
    write_text(dir, ".git/config", "c");
    REQUIRE(symlink("x/real.bin", link) == 0 && symlink(".", loop) == 0 && mkfifo(fifo, 0666) == 0);
    d.o = heard_options(&d.h);
    d.o.order = LARDER_ORDER_SOURCE;
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    CHECK_EQ(d.h.n_ignored, 4);
    CHECK(strstr(heard_text(&d.h.ignored), ".git: hidden\n") != NULL);
    CHECK(strstr(heard_text(&d.h.ignored), "loop: a symbolic link to a folder\n") != NULL);
    CHECK(strstr(heard_text(&d.h.ignored), "pipe: not a regular file\n") != NULL);
    char *keys = keys_of(d.s);
    CHECK_STR(keys, "good x/real");
    free(keys);
    close_dir(&d);
    REQUIRE(symlink("nowhere", dangling) == 0);
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, dir, NULL, &err), LARDER_EIO, &err);
    CHECK(strstr(err.message, "gone.bin") != NULL);
    close_dir(&d);
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    d.o.on_error = LARDER_ON_ERROR_SKIP;
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    CHECK_EQ(d.h.n_skipped, 1);
    CHECK_EQ(d.s->samples, 2);
    close_dir(&d);
    free(link);
    free(dangling);
    free(loop);
    free(fifo);
}

TEST(empty_sources)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, dir, NULL, &err), LARDER_EINVAL, &err);
    close_dir(&d);
    write_text(dir, ".only", "hidden");
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, dir, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "1 ignored") != NULL);
    close_dir(&d);
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, "/no/such/folder", NULL, &err), LARDER_ENOTFOUND, &err);
    close_dir(&d);
}

TEST(duplicates)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    write_text(dir, "c/a.jpg", "jpg");
    write_text(dir, "c/a.png", "png");
    write_text(dir, "c/a", "none"); /* "c/a" without extension: the same key, first in order */
    write_text(dir, "c/a.b.jpg", "other");
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, dir, NULL, &err), LARDER_EEXIST, &err);
    CHECK(strstr(err.message, "c/a ") && strstr(err.message, "c/a.jpg"));
    close_dir(&d);
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    d.o.on_error = LARDER_ON_ERROR_SKIP;
    d.o.order = LARDER_ORDER_SOURCE;
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    CHECK_EQ(d.h.n_skipped, 2);
    CHECK(strstr(heard_text(&d.h.skipped), "c/a.png: has the same key as c/a\n") != NULL);
    char *keys = keys_of(d.s);
    CHECK_STR(keys, "c/a c/a.b");
    free(keys);
    close_dir(&d);
}

TEST(names_that_are_not_utf8)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    write_text(dir, "ok/\xff\xfe.bin", "x");
    d.o = heard_options(&d.h);
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    char *keys = keys_of(d.s);
    CHECK_STR(keys, "ok/\xff\xfe");
    free(keys);
    close_dir(&d);
    write_text(dir, "\xff/1.bin", "x");
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, dir, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "rename") != NULL);
    close_dir(&d);
}

TEST(long_keys)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    struct buf path = BUF_INIT;
    char part[201];
    memset(part, 'k', 200);
    part[200] = 0;
    for (int i = 0; i < 5; i++)
        REQUIRE(buf_printf(&path, NULL, "%s/", part) == 0);
    write_text(dir, "short.bin", "s");
    REQUIRE(buf_printf(&path, NULL, "nineteen-characters.bin%c", 0) == 0); /* 1005 + 19: a key of 1024 */
    write_text(dir, (char *)path.data, "fits");
    d.o = heard_options(&d.h);
    d.o.on_error = LARDER_ON_ERROR_SKIP;
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    CHECK_EQ(d.s->samples, 2);
    CHECK_EQ(d.h.n_skipped, 0);
    close_dir(&d);
    path.len -= 5;
    REQUIRE(buf_printf(&path, NULL, "s.bin%c", 0) == 0);
    write_text(dir, (char *)path.data, "does not");
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    d.o.on_error = LARDER_ON_ERROR_SKIP;
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    CHECK_EQ(d.s->samples, 2);
    CHECK_EQ(d.h.n_skipped, 1);
    close_dir(&d);
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, dir, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "longer than 1024 bytes") != NULL); /* however long the path is */
    close_dir(&d);
    buf_release(&path);
}

TEST(names_that_end_in_a_dot)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    d.o = heard_options(&d.h);
    d.o.order = LARDER_ORDER_SOURCE;
    write_text(dir, "a.", "dot");
    write_text(dir, "b", "none");
    write_text(dir, "b.c.", "two");
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    AUTO_FREE char *keys = keys_of(d.s); /* reads each file under its name */
    CHECK_STR(keys, "a b b.c");
    close_dir(&d);
    write_text(dir, "b.", "the key of b again");
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, dir, NULL, &err), LARDER_EEXIST, &err);
    CHECK(strstr(err.message, "b and b. have the same key") != NULL);
    close_dir(&d);
}

TEST(dataset_in_its_source)
{
    const char *dir = tmp_dir();
    AUTO_FREE char *dest = path_of(dir, "out");
    struct larder_ingest_report r = {.struct_size = sizeof(r)};
    struct larder_ingest_options o;
    struct larder_error err;
    struct heard h;
    write_text(dir, "x.txt", "text");
    o = heard_options(&h);
    REQUIRE_OK(ingest_one(dir, dest, &o, &r, &err), &err);
    CHECK_EQ(r.samples, 1);
    CHECK_STR(heard_text(&h.ignored), "out: the dataset itself\n");
    o.append = 1;
    CHECK_ERR(ingest_one(dest, dest, &o, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "is the dataset itself") != NULL);
    heard_release(&h);
}

TEST(units_and_shuffle)
{
    const char *dir = tmp_dir();
    struct opened d = {0}, e = {0};
    struct larder_error err;
    uint8_t data[3000];
    for (int i = 0; i < 200; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%d/%03d.bin", i % 3, i);
        fill((uint64_t)i, data, sizeof(data));
        write_file(dir, name, data, 500 + (size_t)(i * 37) % 2500);
    }
    d.o = heard_options(&d.h);
    d.o.shard_size = 20000;
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    CHECK(d.s->units > 15 && d.s->units < 40);
    char *shuffled = keys_of(d.s);
    e.o = heard_options(&e.h);
    e.o.order = LARDER_ORDER_SOURCE;
    REQUIRE_OK(open_dir(&e, dir, NULL, &err), &err);
    CHECK_EQ(e.s->units, 1);
    CHECK_EQ(e.s->fingerprint, d.s->fingerprint);
    CHECK_EQ(e.s->bytes, d.s->bytes);
    char *sorted = keys_of(e.s);
    CHECK(strcmp(shuffled, sorted) != 0 && strlen(shuffled) == strlen(sorted));
    close_dir(&e);
    memset(&e, 0, sizeof(e));
    e.o = heard_options(&e.h);
    e.o.seed = 1;
    REQUIRE_OK(open_dir(&e, dir, NULL, &err), &err);
    char *other = keys_of(e.s);
    CHECK(strcmp(shuffled, other) != 0 && strlen(shuffled) == strlen(other));
    close_dir(&e);
    close_dir(&d);
    free(shuffled);
    free(sorted);
    free(other);
}

TEST(a_file_that_changes)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    struct source_cursor *c;
    struct source_item item;
    write_text(dir, "a.bin", "first");
    write_text(dir, "b.bin", "second");
    write_text(dir, "c.bin", "third");
    d.o = heard_options(&d.h);
    d.o.order = LARDER_ORDER_SOURCE;
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    char *b = path_of(dir, "b.bin"), *third = path_of(dir, "c.bin");
    write_text(dir, "b.bin", "grown longer");
    REQUIRE(unlink(third) == 0 && mkfifo(third, 0666) == 0);
    REQUIRE_OK(d.s->ops->open_unit(d.s, 0, 0, &c, &err), &err);
    REQUIRE_OK(d.s->ops->next(c, &item, &err), &err);
    CHECK_ERR(d.s->ops->next(c, &item, &err), LARDER_EINVAL, &err);
    CHECK(item.what != NULL && strstr(err.message, "changed while it was read (listed with 6 bytes, now 12)") != NULL);
    CHECK_ERR(d.s->ops->next(c, &item, &err), LARDER_EINVAL, &err); /* a pipe now: no hanging */
    CHECK_EQ(d.s->ops->next(c, &item, &err), LARDER_END);
    d.s->ops->close_unit(c);
    close_dir(&d);
    free(b);
    free(third);
}

TEST(empty_media)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    struct source_cursor *c;
    struct source_item item;
    write_text(dir, "a.jpg", "");
    d.o = heard_options(&d.h);
    REQUIRE_OK(open_dir(&d, dir, NULL, &err), &err);
    REQUIRE_OK(d.s->ops->open_unit(d.s, 0, 0, &c, &err), &err);
    CHECK_ERR(d.s->ops->next(c, &item, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "a.jpg: is empty") != NULL);
    d.s->ops->close_unit(c);
    close_dir(&d);
}

TEST(append_classes)
{
    const char *dir = tmp_dir();
    struct opened d = {0};
    struct larder_error err;
    char *names[] = {"zebra", "cat"};
    const char *fields[] = {"image", "label"}, *photo[] = {"photo", "label"};
    int types[] = {LARDER_IMAGE, LARDER_I64};
    struct manifest base = {.generation = 1, .classes = names, .n_classes = 2};
    write_text(dir, "ant/1.jpg", "x");
    write_text(dir, "cat/1.jpg", "x");
    REQUIRE_OK(fields_schema(&base.schema, fields, types, 2, &err), &err);
    d.o = heard_options(&d.h);
    REQUIRE_OK(open_dir(&d, dir, &base, &err), &err);
    REQUIRE_EQ(d.s->n_classes, 3);
    CHECK_STR(d.s->classes[0], "zebra");
    CHECK_STR(d.s->classes[2], "ant");
    struct source_cursor *c;
    struct source_item item;
    REQUIRE_OK(d.s->ops->open_unit(d.s, 0, 0, &c, &err), &err);
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(d.s->ops->next(c, &item, &err), &err);
        CHECK_EQ(get_u64(item.values[1].data), memcmp(item.key, "ant", 3) ? 1 : 2);
    }
    d.s->ops->close_unit(c);
    close_dir(&d);
    schema_release(&base.schema);
    /* the dataset's own name for its images is taken */
    REQUIRE_OK(fields_schema(&base.schema, photo, types, 2, &err), &err);
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    REQUIRE_OK(open_dir(&d, dir, &base, &err), &err);
    CHECK_STR(d.s->schema.fields[0].name, "photo");
    close_dir(&d);
    schema_release(&base.schema);
    types[0] = LARDER_AUDIO;
    REQUIRE_OK(fields_schema(&base.schema, photo, types, 2, &err), &err);
    memset(&d, 0, sizeof(d));
    d.o = heard_options(&d.h);
    CHECK_ERR(open_dir(&d, dir, &base, &err), LARDER_EINVAL, &err);
    close_dir(&d);
    schema_release(&base.schema);
}

TEST(sink)
{
    const char *dir = tmp_dir();
    struct sink *k;
    struct larder_error err;
    char *dest = path_of(dir, "out"), *there = path_of(dir, "out/a/b.txt"), text[8] = "";
    REQUIRE_OK(dir_sink_open(dest, &k, &err), &err);
    CHECK_OK(k->ops->file(k, "a/b.txt", "hello", 5, NULL, 0, &err), &err);
    CHECK_OK(k->ops->file(k, "a/c/d.txt", "", 0, NULL, 0, &err), &err);
    CHECK_OK(k->ops->file(k, "top.txt", "x", 1, NULL, 0, &err), &err);
    CHECK_ERR(k->ops->file(k, "a/b.txt", "again", 5, NULL, 0, &err), LARDER_EEXIST, &err);
    CHECK_OK(k->ops->finish(k, &err), &err);
    int fd = open(there, O_RDONLY);
    CHECK_EQ(read(fd, text, 8), 5);
    CHECK_MEM(text, "hello", 5);
    close(fd);
    CHECK_EQ(count_files(dest, "."), 3);
    CHECK_ERR(dir_sink_open(dest, &k, &err), LARDER_EEXIST, &err); /* not empty */
    CHECK_ERR(dir_sink_open(there, &k, &err), LARDER_EEXIST, &err); /* a file */
    free(dest);
    free(there);
}

TEST(sink_abort_and_links)
{
    const char *dir = tmp_dir(), *outside = tmp_dir();
    struct sink *k;
    struct larder_error err;
    struct stat st;
    char *dest = path_of(dir, "out"), *link = path_of(dir, "out/evil"), *foreign = path_of(dir, "out/a/foreign");
    REQUIRE_OK(dir_sink_open(dest, &k, &err), &err);
    REQUIRE(symlink(outside, link) == 0); /* put there by somebody else meanwhile */
    CHECK_ERR(k->ops->file(k, "evil/x.txt", "x", 1, NULL, 0, &err), LARDER_EIO, &err);
    CHECK_OK(k->ops->file(k, "a/b.txt", "x", 1, NULL, 0, &err), &err);
    CHECK_OK(k->ops->file(k, "a/d/e/f.txt", "x", 1, NULL, 0, &err), &err);
    write_text(dir, "out/a/foreign", "not ours");
    k->ops->abort(k);
    CHECK_EQ(count_files(outside, "."), 0);
    CHECK(stat(foreign, &st) == 0);
    CHECK_EQ(count_files(dest, "."), 1);
    unlink(foreign);
    unlink(link);
    free(dest);
    dest = path_of(dir, "out2");
    REQUIRE_OK(dir_sink_open(dest, &k, &err), &err);
    CHECK_OK(k->ops->file(k, "a/d/e/f.txt", "x", 1, NULL, 0, &err), &err);
    k->ops->abort(k);
    CHECK(stat(dest, &st) != 0);
    free(dest);
    free(link);
    free(foreign);
}

TEST_MAIN();
