/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - what the benches share: data folders, timing, and the JSON line.
 *
 * A bench program is tests/bench/bench_NAME.c and answers to NAME and NAME/CASE (its argument; without a case it runs all).
 * Both sides of a comparison run in turn in one process, `rounds` (5 at least) times after one round that does not count;
 * the line gives the medians and the ratio of these, larger is better:
 *
 *     {"bench": "get_key", "larder": 512345, "baseline": 731001, "baseline_name": "lmdb", "ratio": 0.701, "unit": "1/s",
 *      "larder_min": ..., "larder_max": ..., "baseline_min": ..., "baseline_max": ..., "rounds": 7, ...}
 *
 * Data lies below BENCH_DATA (build/bench-data), is made once with fixed seeds, and is used again by the next run.
 */
#ifndef BENCH_H
#define BENCH_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "loader/larder.h"

#define BENCH_UNUSED __attribute__((unused))
enum { BENCH_ROUNDS_MAX = 31 };

__attribute__((noreturn, format(printf, 1, 2))) static inline void bench_die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fprintf(stderr, "bench: ");
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    exit(1);
}

/* For calls of larder.h: bench_ok(larder_x(..., &err), &err). */
static inline void bench_ok(int rc, const struct larder_error *err)
{
    if (rc != LARDER_OK)
        bench_die("%s: %s", larder_code_name(rc), err->message);
}

static inline double bench_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* splitmix64 */
static inline uint64_t bench_rng(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Incompressible bytes; len is rounded up to 8 in buf. */
BENCH_UNUSED static void bench_fill(uint64_t *state, void *buf, size_t len)
{
    uint64_t *p = buf;

    for (size_t i = 0; i < (len + 7) / 8; i++)
        p[i] = bench_rng(state);
}

static inline int bench_cmp(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

BENCH_UNUSED static double bench_median(double *v, int n) /* sorts v */
{
    qsort(v, (size_t)n, sizeof *v, bench_cmp);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* Path of NAME in the data folder (created); kept until the program ends. */
BENCH_UNUSED static const char *bench_path(const char *name)
{
    const char *base = getenv("BENCH_DATA");
    char *path = NULL;

    if (!base || !*base) {
        base = "build/bench-data";
        mkdir("build", 0777);
    }
    if (mkdir(base, 0777) != 0 && errno != EEXIST)
        bench_die("%s: %s", base, strerror(errno));
    if (asprintf(&path, "%s/%s", base, name) < 0)
        bench_die("no memory");
    return path;
}

static inline int bench_rm_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    return flag == FTW_DP ? rmdir(path) : unlink(path);
}

BENCH_UNUSED static void bench_rm(const char *path)
{
    nftw(path, bench_rm_one, 32, FTW_DEPTH | FTW_PHYS);
}

/* True when PATH.made is there; bench_made() makes it: so that a half-made data set is made again. */
BENCH_UNUSED static bool bench_is_made(const char *path)
{
    char mark[600];

    snprintf(mark, sizeof mark, "%s.made", path);
    if (access(mark, F_OK) == 0 && access(path, F_OK) == 0)
        return true;
    bench_rm(path);
    return false;
}

BENCH_UNUSED static void bench_made(const char *path)
{
    char mark[600];
    int fd;

    snprintf(mark, sizeof mark, "%s.made", path);
    fd = open(mark, O_CREAT | O_WRONLY, 0666);
    if (fd < 0)
        bench_die("%s: %s", mark, strerror(errno));
    close(fd);
}

/* Runs a program and dies unless it succeeds; its stdout goes to stderr. */
BENCH_UNUSED static void bench_spawn(const char *const *argv)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        dup2(2, 1);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        bench_die("%s failed", argv[0]);
}

/* Did the user ask for this case? arg: NULL, NAME or NAME/CASE. */
BENCH_UNUSED static bool bench_wanted(int argc, char **argv, const char *name)
{
    size_t len;

    if (argc < 2)
        return true;
    len = strlen(argv[1]);
    return strncmp(name, argv[1], len) == 0 && (name[len] == '/' || name[len] == '\0');
}

struct bench_side {
    double v[BENCH_ROUNDS_MAX];
    double median, min, max;
};

static inline void bench_side_sum(struct bench_side *s, int rounds)
{
    s->median = bench_median(s->v, rounds);
    s->min = s->v[0];
    s->max = s->v[rounds - 1];
}

/* One JSON line; more: further members as `"a": 1`, or "". */
BENCH_UNUSED static void bench_line(const char *name, const struct bench_side *larder, double baseline, const char *baseline_name,
                                    double ratio, const char *unit, int rounds, const char *more)
{
    printf("{\"bench\": \"%s\", \"larder\": %.6g, \"baseline\": %.6g, \"baseline_name\": \"%s\", \"ratio\": %.3f, "
           "\"unit\": \"%s\", \"larder_min\": %.6g, \"larder_max\": %.6g, \"rounds\": %d%s%s}\n",
           name, larder->median, baseline, baseline_name, ratio, unit, larder->min, larder->max, rounds, *more ? ", " : "",
           more);
    fflush(stdout);
}

typedef double bench_fn(void *ctx); /* a rate: larger is better */

/* Runs both in turn (baseline first, then the other first, and so on) and prints the line. */
BENCH_UNUSED static void bench_pair(const char *name, bench_fn *larder, bench_fn *baseline, const char *baseline_name,
                                    const char *unit, int rounds, void *ctx, const char *more)
{
    struct bench_side a, b;
    char text[1024];

    for (int i = -1; i < rounds; i++) {
        double x = 0, y = 0;

        if (i & 1)
            y = baseline(ctx);
        x = larder(ctx);
        if (!(i & 1))
            y = baseline(ctx);
        if (i < 0)
            continue;
        a.v[i] = x;
        b.v[i] = y;
    }
    bench_side_sum(&a, rounds);
    bench_side_sum(&b, rounds);
    snprintf(text, sizeof text, "\"baseline_min\": %.6g, \"baseline_max\": %.6g%s%s", b.min, b.max, *more ? ", " : "", more);
    bench_line(name, &a, b.median, baseline_name, b.median > 0 ? a.median / b.median : 0, unit, rounds, text);
}

#endif
