/* SPDX-License-Identifier: Apache-2.0 */
/* Brace expansion against what bash makes of the same words. */
#include "tests/unit/ingest_tests.h"

static char *joined(const char *word, int *rc)
{
    char **out = NULL;
    size_t n = 0;
    struct buf b = BUF_INIT;
    struct larder_error err;

    *rc = braces_expand(&word, 1, &out, &n, &err);
    for (size_t i = 0; !*rc && i < n; i++)
        REQUIRE(buf_printf(&b, NULL, "%s%s", i ? " " : "", out[i]) == 0);
    strings_free(out, *rc ? 0 : n);
    REQUIRE(buf_append(&b, "", 1, NULL) == 0);
    return (char *)b.data;
}

TEST(as_bash)
{
    static const char *const words[] = {"/no/x-{000..009}.tar", "/no/x-{0..12}.tar", "/no/{9..0}", "/no/{08..11}", "/no/{5..5}",
                                        "/no/{a,b}.tar", "/no/{a,b}-{0..2}{x,y}", "/no/{a,}", "/no/plain.tar", "/no/a{b", "/no/a}b",
                                        "/no/a{b}c", "/no/a{}c", "/no/{1..03}", "/no/{train,val}-{00..01}.tar.gz"};

    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        char command[256], want[4096] = "";
        int rc;
        snprintf(command, sizeof(command), "bash -c 'echo %s'", words[i]);
        FILE *p = popen(command, "r");
        REQUIRE(p && fgets(want, sizeof(want), p));
        pclose(p);
        want[strcspn(want, "\n")] = 0;
        char *have = joined(words[i], &rc);
        CHECK_EQ(rc, 0);
        CHECK_STR(have, want);
        free(have);
    }
}

TEST(a_literal_path_wins)
{
    char *path = path_of(tmp_dir(), "x-{0..3}.tar");
    int fd = open(path, O_CREAT | O_WRONLY, 0666), rc;

    REQUIRE(fd >= 0);
    close(fd);
    char *have = joined(path, &rc);
    CHECK_STR(have, path);
    free(have);
    free(path);
}

TEST(bounds)
{
    int rc;
    char *have = joined("/no/{0..99999999}", &rc);

    CHECK_EQ(rc, LARDER_EINVAL);
    free(have);
    have = joined("/no/{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}{1,2}", &rc);
    CHECK_EQ(rc, LARDER_EINVAL);
    free(have);
}

TEST_MAIN();
