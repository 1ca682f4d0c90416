/* SPDX-License-Identifier: Apache-2.0 */
/* test_trace.c - the file is JSON, closed or not; threads; a full buffer; a place that cannot be written. */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "loader/prep_int.h"
#include "tests/unit/test.h"

static char *text_of(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    REQUIRE(f != NULL);
    char *text = malloc(4 << 20);
    *len = fread(text, 1, (4 << 20) - 1, f);
    text[*len] = '\0';
    fclose(f);
    return text;
}

/* How often it stands in the text. */
static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, what)) != NULL; at++)
        n++;
    return n;
}

/* Is the text JSON, by python's own parser, and an array of that many events? */
static void check_json(const char *path, const char *tail, long events)
{
    char command[512];
    snprintf(command, sizeof(command),
             "python3 -c 'import json, sys; a = json.loads(open(\"%s\").read() + \"%s\"); "
             "assert all(e[\"ph\"] in \"XbeMi\" and e[\"pid\"] > 0 and \"tid\" in e for e in a), a; "
             "assert all(e[\"ts\"] >= 0 and e.get(\"dur\", 0) >= 0 for e in a if e[\"ph\"] != \"M\"); "
             "sys.exit(0 if %ld < 0 or len(a) == %ld else 1)'", path, tail, events, events);
    CHECK_EQ(system(command), 0);
}

static struct trace *open_trace(char path[160])
{
    struct larder_error err;
    struct trace *t = NULL;
    snprintf(path, 160, "%s/trace.json", tmp_dir());
    REQUIRE_OK(trace_open(path, &t, &err), &err);
    return t;
}

TEST(what_was_reported_is_in_the_file)
{
    char path[160];
    size_t len;
    struct trace *t = open_trace(path);
    struct trace_batch b = {7, 1, 3, 256};
    uint64_t now = now_ns();
    trace_thread(t, TRACE_PLAN, "plan and fetch");
    trace_thread(t, TRACE_WORK, "decode 1");
    trace_span(t, TRACE_PLAN, "plan", now, now + 12345, &b);
    trace_span(t, TRACE_WORK, "decode", now + 5000, now + 4000, &b); /* clocks that disagree: no negative times */
    trace_state(t, "fetch", now, now + 2000000, &b);
    trace_close(t);
    check_json(path, "", 8);
    char *text = text_of(path, &len);
    CHECK(strstr(text, "\"name\":\"plan\",\"cat\":\"batch\",\"ph\":\"X\"") != NULL);
    CHECK(strstr(text, "\"dur\":12.345,") != NULL && strstr(text, "\"dur\":0.000,") != NULL);
    CHECK_EQ(count(text, "{\"epoch\":1,\"batch\":3,\"samples\":256}"), 3);
    CHECK_EQ(count(text, "\"id\":7,"), 2);
    CHECK(strstr(text, "\"args\":{\"name\":\"decode 1\"}") != NULL);
    free(text);
}

TEST(nothing_at_all)
{
    char path[160];
    struct trace_batch b = {0, 0, 0, 0};
    struct trace *t = open_trace(path);
    trace_close(t);
    check_json(path, "", 0);
    trace_close(NULL);
    trace_thread(NULL, 1, "nobody");
    trace_span(NULL, 1, "nothing", 0, 0, &b);
    trace_state(NULL, "nothing", 0, 0, &b);
}

TEST(a_place_that_cannot_be_written)
{
    struct larder_error err;
    struct trace *t;
    CHECK_ERR(trace_open("/nowhere/at/all.json", &t, &err), LARDER_EIO, &err);
    CHECK(!t && strstr(err.message, "/nowhere/at/all.json") && err.sys_errno == ENOENT);
    if (access("/dev/full", W_OK) == 0)
        CHECK_ERR(trace_open("/dev/full", &t, &err), LARDER_EIO, &err);
}

static void *report(void *arg)
{
    struct trace *t = arg;
    uint64_t now = now_ns();
    for (uint32_t i = 0; i < 2000; i++) {
        struct trace_batch b = {i, 0, i, 64};
        trace_span(t, TRACE_WORK, "decode", now, now + i, &b);
        trace_state(t, "ready", now, now + i, &b);
    }
    return NULL;
}

TEST(many_threads_and_more_than_a_buffer)
{
    char path[160];
    size_t len;
    pthread_t threads[4];
    struct trace *t = open_trace(path);
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_create(&threads[i], NULL, report, t) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    trace_close(t);
    check_json(path, "", -1);
    char *text = text_of(path, &len); /* what found no room was dropped, and is counted */
    char *last = strstr(text, " events dropped\"");
    unsigned long long dropped = 0;
    if (last) {
        while (last[-1] != '"')
            last--;
        dropped = strtoull(last, NULL, 10);
    }
    CHECK_EQ(count(text, "\"ph\":\"X\"") + count(text, "\"ph\":\"b\"") + dropped, 4 * 4000);
    CHECK_EQ(count(text, "\"ph\":\"b\""), count(text, "\"ph\":\"e\""));
    free(text);
}

TEST(a_process_that_is_killed_leaves_whole_events)
{
    TEST_FORKS();
    char path[160];
    size_t len = 0;
    snprintf(path, sizeof(path), "%s/killed.json", tmp_dir());
    pid_t pid = fork();
    if (pid == 0) {
        struct trace *t;
        struct trace_batch b = {1, 2, 3, 4};
        if (trace_open(path, &t, NULL))
            _exit(1);
        for (;;) {
            trace_span(t, 1, "plan", now_ns(), now_ns(), &b);
            usleep(100);
        }
    }
    size_t before = 0;
    for (int i = 0; i < 600 && (len < 1000 || len != before); i++) { /* until some are there and it is not writing, 60 s at most */
        struct stat st;
        usleep(100000);
        before = len;
        len = stat(path, &st) == 0 ? (size_t)st.st_size : 0;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    CHECK(len >= 1000);
    check_json(path, "]", -1);
}

TEST(a_forked_child_leaves_the_file_alone)
{
    char path[160];
    struct trace *t = open_trace(path);
    struct trace_batch b = {1, 2, 3, 4};
    int status;
    trace_span(t, 1, "plan", now_ns(), now_ns(), &b);
    pid_t pid = fork();
    if (pid == 0) {
        trace_close(t);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    CHECK_EQ(status, 0);
    trace_close(t);
    check_json(path, "", 1);
}

TEST_MAIN();
