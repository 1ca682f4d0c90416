/* SPDX-License-Identifier: Apache-2.0 */
/* test_progress.c - the progress line: its shape, rate, ETA, width, phases; when it is drawn. */
#include "tests/unit/test.h"

#include "tools/progress.c"
#include "tools/text.c"

#define S SECOND

static char line[PROGRESS_LINE_MAX];

static struct progress bar(unsigned cols)
{
    struct progress p = {.f = NULL, .mode = PROGRESS_BAR, .cols = cols};

    return p;
}

TEST(shape)
{
    struct progress p = bar(80);
    struct larder_progress a = {"ingest", 540344, 1281167, 63000000000, 3};
    struct larder_progress b = {"ingest", 612344, 1281167, 70500000000, 3};

    progress_format(&p, &a, 100 * S, line);
    CHECK_STR(line, "ingest [####......] 540,344/1,281,167  63 GB  skipped 3");
    progress_format(&p, &b, 107 * S, line);
    CHECK_STR(line, "ingest [####......] 612,344/1,281,167  70 GB  1.1 GB/s  ETA 1:06  skipped 3");
}

TEST(resumed_run_promises_what_it_does)
{
    struct progress p = bar(80);
    struct larder_progress s = {"ingest", 900000, 1000000, 0, 0};

    progress_format(&p, &s, 0, line); /* 900,000 were there already */
    s.done += 1000;
    progress_format(&p, &s, 1 * S, line);
    CHECK_STR(line, "ingest [#########.] 901,000/1,000,000  ETA 1:39");
}

TEST(rate_forgets)
{
    struct progress p = bar(80);
    struct larder_progress s = {"ingest", 0, 100000, 0, 0};

    for (uint64_t t = 0; t < 60; t++, s.done += t < 30 ? 100 : 10)
        progress_format(&p, &s, t * S, line);
    CHECK_EQ(p.n_marks, PROGRESS_MARKS);
    CHECK_STR(strstr(line, "ETA"), "ETA 2:41:20");
}

TEST(unknown_total)
{
    struct progress p = bar(80);
    struct larder_progress s = {"list", 1234, 0, 0, 0};

    progress_format(&p, &s, 0, line);
    CHECK_STR(line, "list 1,234");
}

TEST(new_phase_begins_anew)
{
    struct progress p = bar(80);
    struct larder_progress s = {"ingest", 1000, 1000, 5000, 0}, t = {"index", 10, 1000, 0, 0};

    progress_format(&p, &s, 0, line);
    progress_format(&p, &t, 5 * S, line);
    CHECK_STR(line, "index [..........] 10/1,000");
}

TEST(full_and_overfull)
{
    struct progress p = bar(80);
    struct larder_progress s = {"verify", 10, 10, 0, 0};

    progress_format(&p, &s, 0, line);
    CHECK_STR(line, "verify [##########] 10/10");
    s.done = 11;
    progress_format(&p, &s, S, line);
    CHECK_STR(line, "verify [##########] 11/10");
}

TEST(width)
{
    struct larder_progress s = {"verify", 5, 10, 0, 0};
    struct progress p = bar(120);

    progress_format(&p, &s, 0, line);
    CHECK_STR(line, "verify [##########..........] 5/10");
    p = bar(1000);
    progress_format(&p, &s, 0, line);
    CHECK_STR(line, "verify [####################....................] 5/10");
}

TEST(lines_have_no_bar)
{
    struct larder_progress s = {"verify", 5, 10, 0, 0};
    struct progress p = bar(80);

    p.mode = PROGRESS_LINES;
    progress_format(&p, &s, 0, line);
    CHECK_STR(line, "verify 5/10");
}

/* What updates at the given times print. */
static const char *drawn(struct progress *p, int mode, const uint64_t *times_ns, size_t n)
{
    static char out[4096];
    FILE *f;

    memset(out, 0, sizeof out);
    f = fmemopen(out, sizeof out, "w");
    progress_init(p, f, 0);
    p->mode = mode;
    p->start_ns = 0;
    p->next_ns = mode == PROGRESS_BAR ? FIRST_NS : LINE_NS;
    p->cols = 80;
    for (size_t i = 0; i < n; i++) {
        struct larder_progress s = {"gc", 10 - i, 100, 0, 0};

        s.done = i + 1;
        progress_update(p, &s, times_ns[i]);
    }
    progress_end(p);
    fclose(f);
    return out;
}

TEST(nothing_before_a_second)
{
    uint64_t t[] = {1, S / 2, S - 1};
    struct progress p;

    CHECK_STR(drawn(&p, PROGRESS_BAR, t, 3), "");
}

TEST(bar_is_drawn_over)
{
    uint64_t t[] = {1, S, S + 1, 2 * S};
    struct progress p;

    CHECK_STR(drawn(&p, PROGRESS_BAR, t, 4),
              "\rgc [..........] 2/100  ETA 1:38\rgc [..........] 4/100  ETA 1:04\n");
}

TEST(lines_every_ten_seconds)
{
    uint64_t t[] = {1, 9 * S, 10 * S, 11 * S, 20 * S};
    struct progress p;

    CHECK_STR(drawn(&p, PROGRESS_LINES, t, 5), "gc 3/100  ETA 8:05\ngc 5/100  ETA 7:55\n");
}

TEST(hidden_bar_leaves_no_trace)
{
    char out[512] = "";
    struct larder_progress s = {"gc", 1, 2, 0, 0};
    struct progress p;
    FILE *f = fmemopen(out, sizeof out, "w");

    progress_init(&p, f, 0);
    p.mode = PROGRESS_BAR;
    p.next_ns = 0;
    progress_update(&p, &s, S);
    progress_hide(&p);
    fputs("line\n", f);
    progress_show(&p);
    progress_end(&p);
    fclose(f);
    CHECK_STR(out, "\rgc [#####.....] 1/2\r                   \rline\n");
}

TEST_MAIN();
