/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tar archives as a source: written by Python's tarfile, by the WebDataset library (data/formats/wds, where it is there), by hand.
 * And as a sink: read back by Python's tarfile and by the source.
 */
#include "tests/unit/ingest_tests.h"

/* Runs a Python program; `add(name, bytes, **attributes)` puts a member into the archive argv[1]. */
static void python_tar(const char *path, const char *mode, const char *body)
{
    static const char head[] =
        "import tarfile, io, sys, os\n"
        "t = tarfile.open(sys.argv[1], sys.argv[2], format=getattr(tarfile, sys.argv[3]))\n"
        "def add(name, data=b'x', **k):\n"
        "    i = tarfile.TarInfo(name if isinstance(name, str) else name.decode('utf-8', 'surrogateescape'))\n"
        "    for a, v in k.items(): setattr(i, a, v)\n"
        "    i.size = len(data) if i.isreg() else 0\n"
        "    t.addfile(i, io.BytesIO(data) if i.isreg() else None)\n";
    char script[8192];
    const char *python = getenv("PYTHON") ? getenv("PYTHON") : "/usr/bin/python3", *format = "PAX_FORMAT";
    int status;

    if (!strncmp(mode, "gnu:", 4)) {
        format = "GNU_FORMAT";
        mode += 4;
    }
    snprintf(script, sizeof(script), "%s%s\nt.close()\n", head, body);
    pid_t pid = fork();
    if (pid == 0) {
        execl(python, python, "-c", script, path, mode, format, (char *)NULL);
        _exit(127);
    }
    REQUIRE(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
        TEST_SKIP("no python3");
    REQUIRE_EQ(status, 0);
}

struct opened { struct notes notes; struct larder_ingest_options o; struct heard h; struct source *s; };

static int open_tar(struct opened *t, const char *path, const struct manifest *base, struct larder_error *err)
{
    notes_init(&t->notes, &t->o);
    return tar_open(&path, 1, &t->notes, base, &t->s, err);
}

static void close_tar(struct opened *t)
{
    if (t->s)
        t->s->ops->close(t->s);
    notes_release(&t->notes);
    heard_release(&t->h);
    memset(t, 0, sizeof(*t));
}

/* All samples of a unit as "key field=value field=value; " with the values as text; errors as "!". */
static char *dump(struct opened *t, uint64_t unit, uint64_t skip)
{
    struct buf b = BUF_INIT;
    struct source_cursor *c;
    struct source_item item;
    struct larder_error err;
    int rc;

    REQUIRE_OK(t->s->ops->open_unit(t->s, unit, skip, &c, &err), &err);
    while ((rc = t->s->ops->next(c, &item, &err)) != LARDER_END) {
        if (rc) {
            REQUIRE(buf_printf(&b, NULL, item.what ? "!%d; " : "dead %d; ", rc) == 0);
            if (!item.what)
                break;
            continue;
        }
        REQUIRE(buf_append(&b, item.key, item.key_len, NULL) == 0);
        for (uint32_t i = 0; i < t->s->schema.n; i++) {
            if (!item.values[i].data)
                continue;
            REQUIRE(buf_printf(&b, NULL, " %s=", t->s->schema.fields[i].name) == 0);
            if (t->s->schema.fields[i].type == LARDER_I64)
                REQUIRE(buf_printf(&b, NULL, "#%lld", (long long)get_u64(item.values[i].data)) == 0);
            else
                REQUIRE(buf_append(&b, item.values[i].data, MIN(item.values[i].len, (size_t)40), NULL) == 0);
        }
        REQUIRE(buf_append(&b, "; ", 2, NULL) == 0);
    }
    t->s->ops->close_unit(c);
    REQUIRE(buf_append(&b, "", 1, NULL) == 0);
    return (char *)b.data;
}

static void expect(struct opened *t, uint64_t unit, uint64_t skip, const char *want)
{
    char *have = dump(t, unit, skip);

    CHECK_STR(have, want);
    free(have);
}

static const char plain[] = "add('a/x.jpg', b'J1')\nadd('a/x.cls', b' 3\\n')\nadd('a/x.seg.png', b'P1')\n"
                            "add('b.c/y.JPG', b'J2')\nadd('b.c/y.cls', b'-4')\nadd('z.jpg', b'J3')\n";

TEST(grouping_and_inference)
{
    static const char *const modes[][2] = {{"x.tar", "w"}, {"x.tar.gz", "w:gz"}, {"x.tar.xz", "w:xz"}, {"x.tar.bz2", "w:bz2"},
                                           {"gnu.tar", "gnu:w"}};
    const char *dir = tmp_dir();

    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        char *path = path_of(dir, modes[i][0]);
        struct opened t = {0};
        struct larder_error err;

        python_tar(path, modes[i][1], plain);
        t.o = heard_options(&t.h);
        REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
        REQUIRE_EQ(t.s->schema.n, 3);
        CHECK_STR(t.s->schema.fields[0].name, "jpg");
        CHECK_EQ(t.s->schema.fields[0].type, LARDER_IMAGE);
        CHECK_EQ(t.s->schema.fields[1].type, LARDER_I64);
        CHECK_STR(t.s->schema.fields[2].name, "seg.png");
        CHECK_EQ(t.s->schema.fields[2].type, LARDER_IMAGE);
        expect(&t, 0, 0, "a/x jpg=J1 cls=#3 seg.png=P1; b.c/y jpg=J2 cls=#-4; z jpg=J3; ");
        expect(&t, 0, 1, "b.c/y jpg=J2 cls=#-4; z jpg=J3; ");
        expect(&t, 0, 3, "");
        close_tar(&t);
        free(path);
    }
}

TEST(zstd_archives)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar.zst");
    struct sink *k;
    struct opened t = {0};
    struct larder_error err;

    REQUIRE_OK(tar_sink_open(path, &k, &err), &err);
    CHECK_OK(k->ops->file(k, "a.jpg", "J", 1, NULL, 0, &err), &err);
    CHECK_OK(k->ops->finish(k, &err), &err);
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    expect(&t, 0, 0, "a jpg=J; ");
    close_tar(&t);
    free(path);
}

TEST(names)
{
    static const struct { const char *path, *key, *ext; } good[] = {
        {"000.jpg", "000", "jpg"}, {"a.b/c.d.e", "a.b/c", "d.e"}, {"/abs.x", "/abs", "x"}, {"../../up.x", "../../up", "x"},
        {"./x.y", "./x", "y"},     {"a//b.c", "a//b", "c"},       {"x..y", "x", ".y"}};
    static const char *const bad[] = {"", "README", "dir/README", "dir/", ".hidden.jpg", "dir/.hidden", "x.", "..", "a/.."};

    for (size_t i = 0; i < ARRAY_LEN(good); i++) {
        size_t key_len = 0, ext_len = 0;
        const char *ext = NULL;

        CHECK(tar_name_split(good[i].path, strlen(good[i].path), &key_len, &ext, &ext_len) == NULL);
        CHECK_EQ(key_len, strlen(good[i].key));
        CHECK_MEM(good[i].path, good[i].key, key_len);
        CHECK_EQ(ext_len, strlen(good[i].ext));
        CHECK_MEM(ext, good[i].ext, ext_len);
    }
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        size_t key_len, ext_len;
        const char *ext;

        CHECK(tar_name_split(bad[i], strlen(bad[i]), &key_len, &ext, &ext_len) != NULL);
    }
}

TEST(strange_members)
{
    static const char body[] =
        "add(b'q\\xff\\xfe.txt', b'raw')\nadd('\\u00e4/\\u00f6.txt', b'umlaut')\nadd('x'*300 + '.txt', b'long')\n"
        "add('/abs.txt', b'abs')\nadd('../up.txt', b'up')\nadd('d', type=tarfile.DIRTYPE)\nadd('.h.txt')\nadd('noext')\n"
        "add('l.txt', type=tarfile.SYMTYPE, linkname='up.txt')\nadd('hl.txt', type=tarfile.LNKTYPE, linkname='../up.txt')\n"
        "add('p.txt', type=tarfile.FIFOTYPE)\nadd('e.txt', b'')";
    char want[600], x[301];
    const char *dir = tmp_dir();

    memset(x, 'x', 300);
    x[300] = 0;
    snprintf(want, sizeof(want), "q\xff\xfe txt=raw; \xc3\xa4/\xc3\xb6 txt=umlaut; %s txt=long; /abs txt=abs; ../up txt=up; e txt=; ", x);
    for (int gnu = 0; gnu < 2; gnu++) {
        char *path = path_of(dir, gnu ? "g.tar" : "p.tar");
        struct opened t = {0};
        struct larder_error err;

        python_tar(path, gnu ? "gnu:w" : "w", body);
        t.o = heard_options(&t.h);
        REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
        CHECK_EQ(t.h.n_ignored, 0); /* inference is quiet */
        expect(&t, 0, 0, want);
        CHECK_EQ(t.h.n_ignored, 5);
        CHECK(strstr(heard_text(&t.h.ignored), "hl.txt: a hard link\n") != NULL);
        CHECK(strstr(heard_text(&t.h.ignored), "noext: its name has no extension\n") != NULL);
        close_tar(&t);
        free(path);
    }
}

TEST(bad_samples)
{
    static const char body[] = "add('1.jpg', b'J')\nadd('1.cls', b'x')\nadd('2.jpg', b'J')\nadd('2.JPG', b'K')\nadd('3.jpg', b'')\n"
                               "add('4.txt', b'\\xff')\nadd('5.jpg', b'J')\nadd('5.txt', b'ok')\nadd('k' * 1025 + '.jpg', b'J')\n";
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar");
    struct opened t = {0};
    struct larder_error err;

    python_tar(path, "w", body);
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    expect(&t, 0, 0, "!-1; !-1; !-1; !-1; 5 jpg=J txt=ok; !-1; ");
    expect(&t, 0, 3, "!-1; 5 jpg=J txt=ok; !-1; "); /* bad ones count when they are passed over */
    expect(&t, 0, 5, "!-1; ");
    struct source_cursor *c;
    struct source_item item;
    REQUIRE_OK(t.s->ops->open_unit(t.s, 0, 0, &c, &err), &err);
    CHECK_ERR(t.s->ops->next(c, &item, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "x.tar: 1.cls: 'x' is no i64") != NULL);
    CHECK_ERR(t.s->ops->next(c, &item, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "'jpg' twice") != NULL);
    t.s->ops->close_unit(c);
    close_tar(&t);
    free(path);
}

TEST(later_fields)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar");
    struct opened t = {0};
    struct larder_error err;

    python_tar(path, "w", "for i in range(120): add('%03d.jpg' % i, b'J')\nadd('120.jpg')\nadd('120.new')\nadd('121.jpg', b'L')");
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    CHECK_EQ(t.s->schema.n, 1);
    expect(&t, 0, 119, "119 jpg=J; !-1; 121 jpg=L; ");
    struct source_cursor *c;
    struct source_item item;
    REQUIRE_OK(t.s->ops->open_unit(t.s, 0, 120, &c, &err), &err);
    CHECK_ERR(t.s->ops->next(c, &item, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "120.new") && strstr(err.message, "--fields"));
    t.s->ops->close_unit(c);
    close_tar(&t);
    free(path);
}

TEST(fields_option)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar");
    struct opened t = {0};
    struct larder_error err;

    python_tar(path, "w", "add('0.txt', b'left out')\nadd('1.jpg', b'J')\nadd('1.txt')\nadd('1.cls', b'1')\nadd('2.txt')\nadd('3.PNG', b'P')");
    t.o = heard_options(&t.h);
    t.o.fields = "image=jpg|png,label:i64=cls";
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    REQUIRE_EQ(t.s->schema.n, 2);
    CHECK_EQ(t.s->schema.fields[0].type, LARDER_IMAGE);
    expect(&t, 0, 0, "1 image=J label=#1; 3 image=P; ");
    expect(&t, 0, 1, "3 image=P; ");
    close_tar(&t);
    t.o = heard_options(&t.h);
    t.o.fields = "mixed=jpg|txt";
    CHECK_ERR(open_tar(&t, path, NULL, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "mixed:TYPE") != NULL);
    close_tar(&t);
    free(path);
}

TEST(append)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar");
    struct opened t = {0};
    struct larder_error err;
    const char *names[] = {"label", "image"}, *same[] = {"cls", "jpg"};
    int types[] = {LARDER_I64, LARDER_IMAGE};
    struct manifest base = {.generation = 1};

    python_tar(path, "w", "add('1.jpg', b'J')\nadd('1.cls', b'1')");
    REQUIRE_OK(fields_schema(&base.schema, names, types, 2, &err), &err);
    t.o = heard_options(&t.h);
    CHECK_ERR(open_tar(&t, path, &base, &err), LARDER_EINVAL, &err);
    close_tar(&t);
    t.o = heard_options(&t.h);
    t.o.fields = "image=jpg,label=cls"; /* another order, types taken from the dataset */
    REQUIRE_OK(open_tar(&t, path, &base, &err), &err);
    expect(&t, 0, 0, "1 label=#1 image=J; ");
    close_tar(&t);
    t.o = heard_options(&t.h);
    t.o.fields = "image=jpg,label:utf8=cls";
    CHECK_ERR(open_tar(&t, path, &base, &err), LARDER_EINVAL, &err);
    close_tar(&t);
    t.o = heard_options(&t.h);
    t.o.fields = "image=jpg";
    CHECK_ERR(open_tar(&t, path, &base, &err), LARDER_EINVAL, &err);
    close_tar(&t);
    schema_release(&base.schema);
    REQUIRE_OK(fields_schema(&base.schema, same, types, 2, &err), &err);
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, &base, &err), &err);
    expect(&t, 0, 0, "1 cls=#1 jpg=J; ");
    close_tar(&t);
    schema_release(&base.schema);
    free(path);
}

TEST(cut_short_and_damaged)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar"), *gz = path_of(dir, "x.tar.gz");
    struct opened t = {0};
    struct larder_error err;
    struct stat st;
    char byte;

    /* members of 1024 bytes each: header and one block */
    python_tar(path, "w", "for i in range(20): add('%02d.txt' % i, b'x' * 512)");
    REQUIRE(truncate(path, 10 * 1024 + 700) == 0); /* in the data of 10 */
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    char *text = dump(&t, 0, 8);
    CHECK(strstr(text, "08 ") && strstr(text, "09 ") && !strstr(text, "10 ") && strstr(text, "dead -6"));
    free(text);
    close_tar(&t);
    REQUIRE(truncate(path, 10 * 1024) == 0); /* between 9 and 10: no error for libarchive */
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    text = dump(&t, 0, 8);
    CHECK(strstr(text, "08 ") && strstr(text, "dead -6"));
    free(text);
    close_tar(&t);
    python_tar(path, "w", "for i in range(20): add('%02d.txt' % i, b'x' * 512)");
    int fd = open(path, O_RDWR);
    REQUIRE(pread(fd, &byte, 1, 12 * 1024 + 3) == 1);
    byte ^= 0x10; /* in a header: its checksum */
    REQUIRE(pwrite(fd, &byte, 1, 12 * 1024 + 3) == 1);
    close(fd);
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    text = dump(&t, 0, 10);
    CHECK(strstr(text, "10 ") && !strstr(text, "13 ") && strstr(text, "dead -6"));
    free(text);
    close_tar(&t);
    python_tar(gz, "w:gz", "for i in range(200): add('%02d.txt' % i, os.urandom(300).hex().encode())");
    REQUIRE(stat(gz, &st) == 0 && truncate(gz, st.st_size / 2) == 0);
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, gz, NULL, &err), &err);
    text = dump(&t, 0, 0);
    CHECK(strstr(text, "dead -6") != NULL);
    free(text);
    close_tar(&t);
    write_text(dir, "no.tar", "this is no archive at all, only some text that somebody gave that name");
    free(path);
    path = path_of(dir, "no.tar");
    t.o = heard_options(&t.h);
    CHECK_ERR(open_tar(&t, path, NULL, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "no.tar") != NULL);
    close_tar(&t);
    write_text(dir, "no.tar", "");
    t.o = heard_options(&t.h);
    CHECK(open_tar(&t, path, NULL, &err) != LARDER_OK);
    close_tar(&t);
    free(path);
    free(gz);
}

/* Decoded again after any one byte was changed, a gzip file gives the same samples or an error, never other ones. */
TEST(gzip_is_checked)
{
    const char *dir = tmp_dir();
    AUTO_FREE char *gz = path_of(dir, "x.tar.gz");
    struct opened t = {0};
    struct larder_error err;
    struct stat st;
    uint8_t byte;

    python_tar(gz, "w:gz", "for i in range(20): add('%02d.txt' % i, os.urandom(300).hex().encode())");
    REQUIRE(stat(gz, &st) == 0);
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, gz, NULL, &err), &err);
    AUTO_FREE char *good = dump(&t, 0, 0);
    close_tar(&t);
    unsigned errors = 0, tried = 0;
    for (off_t at = 16; at < st.st_size; at += at < st.st_size - 8 ? 97 : 1, tried++) {
        int fd = open(gz, O_RDWR);
        REQUIRE(pread(fd, &byte, 1, at) == 1);
        byte ^= 0x04;
        REQUIRE(pwrite(fd, &byte, 1, at) == 1);
        t.o = heard_options(&t.h);
        if (open_tar(&t, gz, NULL, &err)) {
            errors++;
        } else {
            AUTO_FREE char *text = dump(&t, 0, 0);
            bool dead = strstr(text, "dead -6") != NULL;
            errors += dead;
            CHECK(dead || !strcmp(text, good));
        }
        close_tar(&t);
        byte ^= 0x04;
        REQUIRE(pwrite(fd, &byte, 1, at) == 1);
        close(fd);
    }
    CHECK(tried > 60 && errors > tried / 2);
}

TEST(concatenated_archives)
{
    const char *dir = tmp_dir();
    char *a = path_of(dir, "a.tar"), *b = path_of(dir, "b.tar"), command[512];
    struct opened t = {0};
    struct larder_error err;

    python_tar(a, "w", "add('1.txt', b'one')");
    python_tar(b, "w", "add('2.txt', b'two')");
    snprintf(command, sizeof(command), "cat %s >>%s", b, a);
    REQUIRE(system(command) == 0);
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, a, NULL, &err), &err);
    expect(&t, 0, 0, "1 txt=one; 2 txt=two; ");
    close_tar(&t);
    free(a);
    free(b);
}

TEST(huge_claims)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar");
    struct opened t = {0};
    struct larder_error err;

    /* a header that claims 8 EiB, by hand; what follows is not there */
    python_tar(path, "w",
               "add('1.txt', b'one')\n"
               "i = tarfile.TarInfo('2.txt'); i.size = 1 << 62\n"
               "t.fileobj.write(i.tobuf(tarfile.GNU_FORMAT))\nt.fileobj.write(b'x' * 512)");
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    char *text = dump(&t, 0, 0);
    CHECK(strstr(text, "1 txt=one") != NULL);
    CHECK(strstr(text, "!-1") || strstr(text, "dead -6"));
    free(text);
    close_tar(&t);
    free(path);
}

TEST(sparse_members)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar"), command[512];
    struct opened t = {0};
    struct source_cursor *c;
    struct source_item item;
    struct larder_error err;

    snprintf(command, sizeof(command), "cd %s && printf begin >1.bin && truncate -s 300000 1.bin && printf middle >>1.bin && "
             "truncate -s 500000 1.bin && tar -c -S -f x.tar 1.bin", dir);
    REQUIRE(system(command) == 0);
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    REQUIRE_OK(t.s->ops->open_unit(t.s, 0, 0, &c, &err), &err);
    REQUIRE_OK(t.s->ops->next(c, &item, &err), &err);
    REQUIRE_EQ(item.values[0].len, 500000);
    const char *p = item.values[0].data;
    CHECK_MEM(p, "begin\0", 6);
    CHECK_MEM(p + 300000, "middle\0", 7);
    size_t nonzero = 0;
    for (size_t i = 0; i < 500000; i++)
        nonzero += p[i] != 0;
    CHECK_EQ(nonzero, 11);
    t.s->ops->close_unit(c);
    close_tar(&t);
    free(path);
}

TEST(a_changed_archive)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar");
    struct opened t = {0};
    struct source_cursor *c;
    struct larder_error err;

    python_tar(path, "w", "add('1.txt', b'one')");
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    python_tar(path, "w", "for i in range(99): add('%d.txt' % i, b'one')");
    CHECK_ERR(t.s->ops->open_unit(t.s, 0, 0, &c, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "changed") && c == NULL);
    close_tar(&t);
    CHECK_ERR(open_tar(&t, "/no/such.tar", NULL, &err), LARDER_ENOTFOUND, &err);
    close_tar(&t);
    CHECK_ERR(open_tar(&t, dir, NULL, &err), LARDER_EINVAL, &err);
    close_tar(&t);
    free(path);
}

TEST(sink_round_trip)
{
    static const uint8_t odd[] = {'.', '.', '/', 0, 0xff, '\n', '='};
    static const char *const ends[] = {"x.tar", "x.tar.gz", "x.tgz", "x.tar.xz", "x.tar.zst"};
    const char *dir = tmp_dir();

    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        char *path = path_of(dir, ends[i]);
        struct sink *k;
        struct opened t = {0};
        struct larder_error err;
        struct source_cursor *c;
        struct source_item item;

        CHECK(tar_name_like(path));
        REQUIRE_OK(tar_sink_open(path, &k, &err), &err);
        CHECK_OK(k->ops->file(k, "a/1.txt", "one", 3, NULL, 0, &err), &err);
        CHECK_OK(k->ops->file(k, "\xc3\xa4\xff.txt", "raw", 3, NULL, 0, &err), &err);
        CHECK_OK(k->ops->file(k, "encoded.txt", "odd", 3, odd, sizeof(odd), &err), &err);
        CHECK_OK(k->ops->finish(k, &err), &err);
        CHECK_EQ(count_files(dir, "."), i + 1); /* no temporary file is left */
        t.o = heard_options(&t.h);
        REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
        REQUIRE_OK(t.s->ops->open_unit(t.s, 0, 2, &c, &err), &err);
        REQUIRE_OK(t.s->ops->next(c, &item, &err), &err);
        CHECK_EQ(item.key_len, sizeof(odd));
        CHECK_MEM(item.key, odd, sizeof(odd));
        t.s->ops->close_unit(c);
        char *text = dump(&t, 0, 0);
        CHECK(!strncmp(text, "a/1 txt=one; \xc3\xa4\xff txt=raw; ../", 31));
        free(text);
        close_tar(&t);
        CHECK_ERR(tar_sink_open(path, &k, &err), LARDER_EEXIST, &err);
        free(path);
    }
    CHECK(!tar_name_like("x.zip") && !tar_name_like("tar") && !tar_name_like(".tar"));
}

TEST(sink_abort)
{
    const char *dir = tmp_dir();
    char *path = path_of(dir, "x.tar");
    struct sink *k;
    struct larder_error err;

    REQUIRE_OK(tar_sink_open(path, &k, &err), &err);
    CHECK_OK(k->ops->file(k, "a/1.txt", "one", 3, NULL, 0, &err), &err);
    k->ops->abort(k);
    CHECK_EQ(count_files(dir, "."), 0);
    REQUIRE_OK(tar_sink_open(path, &k, &err), &err);
    CHECK_OK(k->ops->file(k, "a/1.txt", "one", 3, NULL, 0, &err), &err);
    write_text(dir, "x.tar", "somebody else's"); /* meanwhile */
    CHECK_ERR(k->ops->finish(k, &err), LARDER_EEXIST, &err);
    CHECK_EQ(count_files(dir, "."), 1);
    free(path);
}

TEST(written_by_the_webdataset_library)
{
    const char *data = getenv("LARDER_DATA");
    char path[4096];
    struct opened t = {0};
    struct larder_error err;

    snprintf(path, sizeof(path), "%s/formats/wds/c-{000..003}.tar", data ? data : "../shared/data");
    char *first = path_of(data ? data : "../shared/data", "formats/wds/c-000.tar");
    int there = access(first, R_OK);
    free(first);
    if (there)
        TEST_SKIP("no formats/wds; LARDER_DATA names the folder that holds it");
    t.o = heard_options(&t.h);
    REQUIRE_OK(open_tar(&t, path, NULL, &err), &err);
    CHECK_EQ(t.s->units, 4);
    REQUIRE_EQ(t.s->schema.n, 4);
    uint64_t n = 0;
    for (uint64_t u = 0; u < 4; u++) {
        struct source_cursor *c;
        struct source_item item;
        REQUIRE_OK(t.s->ops->open_unit(t.s, u, 0, &c, &err), &err);
        while (t.s->ops->next(c, &item, &err) == LARDER_OK) {
            char key[16];
            CHECK_EQ(snprintf(key, sizeof(key), "%06llu", (unsigned long long)n++), item.key_len);
            CHECK_MEM(key, item.key, item.key_len);
            int jpg = schema_find(&t.s->schema, "jpg");
            CHECK_STR(sniff_extension(item.values[jpg].data, item.values[jpg].len), "jpg");
        }
        t.s->ops->close_unit(c);
    }
    CHECK_EQ(n, 40);
    close_tar(&t);
}

TEST_MAIN();
