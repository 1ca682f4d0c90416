/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - options of a verb: one table a verb gives getopt_long() its options and --help its text. The options of buckets are every
 * verb's: they are taken here and go to remote_args.c.
 *
 * The parsers of values complain on their own: they print one line that names the option, keep the status in
 * the tool, and the next options_next() stops. So a verb's loop is a plain switch. Sizes follow GNU: K, M, G,
 * T and KiB, MiB, GiB, TiB are powers of 1024; kB, MB, GB, TB are powers of 1000.
 */
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

int parse_u64(const char *s, uint64_t *v)
{
    char *end;
    unsigned long long n;

    if (!isdigit((unsigned char)s[0])) /* strtoull takes signs and spaces */
        return -1;
    errno = 0;
    n = strtoull(s, &end, 10);
    if (errno || *end)
        return -1;
    *v = n;
    return 0;
}

/* A number such as 12 or 1.5 at s; *end is what follows it. Exact for whole numbers below 2^64. */
static int parse_number(const char *s, const char **end, long double *v)
{
    size_t n = strspn(s, "0123456789");
    size_t fraction = s[n] == '.' ? 1 + strspn(s + n + 1, "0123456789") : 0;
    char buf[40];

    if (n == 0 || fraction == 1 || n + fraction >= sizeof buf)
        return -1;
    memcpy(buf, s, n + fraction);
    buf[n + fraction] = 0;
    *v = strtold(buf, NULL);
    *end = s + n + fraction;
    return 0;
}

static int to_u64(long double d, uint64_t *v)
{
    d = roundl(d);
    if (!(d >= 0 && d < 18446744073709551616.0L))
        return -1;
    *v = (uint64_t)d;
    return 0;
}

int parse_size(const char *s, uint64_t *v)
{
    static const char letters[] = "kmgtpe";
    const char *end, *letter;
    long double d, unit = 1;
    int power;

    if (parse_number(s, &end, &d))
        return -1;
    if (*end == ' ')
        end++;
    letter = *end ? strchr(letters, tolower((unsigned char)*end)) : NULL;
    power = letter ? (int)(letter - letters) + 1 : 0;
    if (letter)
        end++;
    if (!strcasecmp(end, "b") && power > 0)
        unit = powl(1000, power);
    else if (*end == 0 || !strcasecmp(end, "b") || (power > 0 && !strcasecmp(end, "ib")))
        unit = powl(1024, power);
    else
        return -1;
    return to_u64(d * unit, v);
}

/* A time in units of 1 / per_second seconds. */
static int parse_time(const char *s, long double per_second, uint64_t *v)
{
    static const struct {
        const char *name;
        long double s;
    } units[] = {
        {"", 1}, {"s", 1}, {"m", 60}, {"min", 60}, {"h", 3600}, {"d", 86400}, {"w", 7 * 86400}, {"ms", 0.001L},
    };
    const char *end;
    long double d;

    if (parse_number(s, &end, &d))
        return -1;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].name) && units[i].s * per_second > 0.5L)
            return to_u64(d * units[i].s * per_second, v);
    return -1;
}

int parse_duration(const char *s, uint64_t *seconds)
{
    return parse_time(s, 1, seconds);
}

int parse_milliseconds(const char *s, uint64_t *ms)
{
    return parse_time(s, 1000, ms);
}

void option_bad(struct tool *t, const char *expected)
{
    tool_usage(t, "%s: '%s' is not %s", t->option, t->value, expected);
}

void option_size(struct tool *t, uint64_t min, uint64_t max, uint64_t *v)
{
    uint64_t n;

    if (parse_size(t->value, &n))
        option_bad(t, "a size such as 64MiB, 8GB or 4096");
    else if (n < min || n > max)
        tool_usage(t, "%s: %s is out of range, %llu to %llu bytes are allowed", t->option, t->value,
                   (unsigned long long)min, (unsigned long long)max);
    else
        *v = n;
}

void option_u64(struct tool *t, uint64_t min, uint64_t max, uint64_t *v)
{
    uint64_t n;

    if (parse_u64(t->value, &n))
        option_bad(t, "a whole number");
    else if (n < min || n > max)
        tool_usage(t, "%s: %s is out of range, %llu to %llu are allowed", t->option, t->value,
                   (unsigned long long)min, (unsigned long long)max);
    else
        *v = n;
}

void option_unsigned(struct tool *t, unsigned min, unsigned max, unsigned *v)
{
    uint64_t n = *v;

    option_u64(t, min, max, &n);
    *v = (unsigned)n;
}

void option_duration(struct tool *t, uint64_t *seconds)
{
    if (parse_duration(t->value, seconds))
        option_bad(t, "a time such as 24h, 7d, 30m or 90s");
}

void option_choice(struct tool *t, const char *const *names, int *v)
{
    char list[128] = "";

    for (int i = 0; names[i]; i++) {
        if (!strcmp(t->value, names[i])) {
            *v = i;
            return;
        }
        if (i > 0)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s", names[i + 1] ? ", " : " or ");
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s", names[i]);
    }
    option_bad(t, list);
}

void option_subset(struct tool *t, uint64_t *n, uint64_t *of)
{
    const char *slash = strchr(t->value, '/');
    char first[24];
    uint64_t a, b;

    if (!slash || (size_t)(slash - t->value) >= sizeof first) {
        option_bad(t, "a part such as 1/10");
        return;
    }
    memcpy(first, t->value, (size_t)(slash - t->value));
    first[slash - t->value] = 0;
    if (parse_u64(first, &a) || parse_u64(slash + 1, &b) || a < 1 || a > b) {
        option_bad(t, "a part n/t with 1 <= n <= t, such as 1/10");
        return;
    }
    *n = a;
    *of = b;
}

void option_compress(struct tool *t, int *compression, int *level)
{
    static const char *const names[] = {"none", "zstd", "zstd-dict"};
    static const int values[] = {LARDER_COMPRESS_NONE, LARDER_COMPRESS_ZSTD, LARDER_COMPRESS_ZSTD_DICT};
    size_t len = strcspn(t->value, ":");
    uint64_t n = 0;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) != len || strncmp(t->value, names[i], len) != 0)
            continue;
        if (t->value[len] && (i == 0 || parse_u64(t->value + len + 1, &n) || n < 1 || n > 19))
            break;
        *compression = values[i];
        *level = (int)n;
        return;
    }
    option_bad(t, "none, zstd, zstd:LEVEL, zstd-dict or zstd-dict:LEVEL with a level of 1 to 19");
}

/* ------------------------------------------------------------------------------------ suggestions */

/* Edits (insert, delete, replace) that turn a into b; longer than 31 bytes: many. */
static unsigned distance(const char *a, const char *b)
{
    unsigned row[33], la = (unsigned)strlen(a), lb = (unsigned)strlen(b);

    if (la > 31 || lb > 31)
        return 99;
    for (unsigned k = 0; k <= lb; k++)
        row[k] = k;
    for (unsigned i = 1; i <= la; i++) {
        unsigned diagonal = row[0];

        row[0] = i;
        for (unsigned k = 1; k <= lb; k++) {
            unsigned replaced = diagonal + (a[i - 1] != b[k - 1]), least;

            least = row[k] < row[k - 1] ? row[k] + 1 : row[k - 1] + 1;
            diagonal = row[k];
            row[k] = replaced < least ? replaced : least;
        }
    }
    return row[lb];
}

const char *options_nearest(const char *wrong, const char *(*next)(const void *table, size_t i),
                            const void *table)
{
    const char *best = NULL, *name;
    unsigned best_distance = 3;

    for (size_t i = 0; (name = next(table, i)); i++) {
        size_t len = strlen(wrong);
        unsigned d = len >= 2 && !strncmp(name, wrong, len) ? 1 : distance(wrong, name);

        if (d < best_distance && d < strlen(name)) {
            best = name;
            best_distance = d;
        }
    }
    return best;
}

/* The verb's options, then those of buckets. */
static const char *option_name(const void *table, size_t i)
{
    const struct option_spec *o = table;
    size_t n = 0;

    while (o[n].name)
        n++;
    return i < n ? o[i].name : remote_option_specs[i - n].name;
}

/* -------------------------------------------------------------------------------------- getopt */

#define LONG_FIRST 256 /* + row of the verb's table; then those of remote_option_specs; --help is beyond both */
#define LONG_REMOTE (LONG_FIRST + OPTIONS_MAX)
#define LONG_HELP (LONG_REMOTE + OPTIONS_MAX)

static const struct option_spec *spec_of(const struct tool *t, int c)
{
    return c < LONG_REMOTE ? &t->verb->options[c - LONG_FIRST] : &remote_option_specs[c - LONG_REMOTE];
}

/* getopt_long's tables of a verb: remote_option_specs and --help are everybody's. */
static void build(const struct option_spec *specs, struct option longs[2 * OPTIONS_MAX + 2],
                  char shorts[2 * OPTIONS_MAX + 4])
{
    int n = 0, k = 0;

    shorts[k++] = ':';
    for (; specs[n].name; n++) {
        longs[n] = (struct option){specs[n].name, specs[n].arg ? required_argument : no_argument, NULL,
                                   LONG_FIRST + n};
        if (!specs[n].letter)
            continue;
        shorts[k++] = (char)specs[n].letter;
        if (specs[n].arg)
            shorts[k++] = ':';
    }
    for (int i = 0; remote_option_specs[i].name; i++)
        longs[n++] = (struct option){remote_option_specs[i].name, remote_option_specs[i].arg ? required_argument : no_argument, NULL,
                                     LONG_REMOTE + i};
    longs[n] = (struct option){"help", no_argument, NULL, LONG_HELP};
    memset(&longs[n + 1], 0, sizeof longs[0]);
    shorts[k++] = 'h';
    shorts[k] = 0;
}

static int row_of(const struct option_spec *specs, int c)
{
    for (int i = 0; specs[i].name; i++)
        if (specs[i].letter == c)
            return i;
    return -1;
}

static void complain(struct tool *t, int c)
{
    const char *given = t->argv[optind - 1], *near;
    char name[64];

    if (c == ':' && optopt < LONG_FIRST) {
        tool_usage(t, "-%c needs a value", optopt);
    } else if (c == ':') {
        tool_usage(t, "--%s needs a value", spec_of(t, optopt)->name);
    } else if (optopt == LONG_HELP) {
        tool_usage(t, "--help takes no value");
    } else if (optopt >= LONG_FIRST) {
        tool_usage(t, "--%s takes no value", spec_of(t, optopt)->name);
    } else if (optopt > 0) {
        tool_usage(t, "unknown option '-%c'", isprint(optopt) ? optopt : '?');
    } else {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(given + 2, "="), given + 2);
        near = options_nearest(name, option_name, t->verb->options);
        if (near)
            tool_usage(t, "unknown option '--%s'; did you mean '--%s'?", name, near);
        else
            tool_usage(t, "unknown option '--%s'", name);
    }
}

/* The name of the i-th argument in "SOURCE... DATASET"; the last one again beyond. */
static void argument_name(const char *args, int i, char name[32])
{
    size_t len;

    for (;;) {
        len = strcspn(args, " ");
        if (i-- == 0 || !args[len])
            break;
        args += len + 1;
    }
    snprintf(name, 32, "%.*s", (int)strcspn(args, " .|["), args);
}

static int finish(struct tool *t, int min, int max)
{
    char name[32];

    t->argv += optind;
    t->argc -= optind;
    if (t->argc < min) {
        argument_name(t->verb->args, t->argc, name);
        tool_usage(t, "%s is missing", name);
    } else if (max > 0 && t->argc > max) {
        tool_usage(t, "'%s' is one argument too many", t->argv[max]);
    }
    return t->status ? OPTIONS_STOP : OPTIONS_END;
}

/* The next option as getopt_long() numbers it, t->option and t->value set; below 0: there is none, or it was complained about. */
static int next_option(struct tool *t)
{
    struct option longs[2 * OPTIONS_MAX + 2];
    char shorts[2 * OPTIONS_MAX + 4];
    int c, row;

    build(t->verb->options, longs, shorts);
    opterr = 0;
    optopt = 0;
    c = getopt_long(t->argc, t->argv, shorts, longs, NULL);
    if (c == -1)
        return OPTIONS_END;
    if (c == 'h' || c == LONG_HELP) {
        options_help(t->verb, stdout);
        return OPTIONS_STOP;
    }
    if (c < LONG_FIRST) {
        row = row_of(t->verb->options, c);
        if (c == '?' || c == ':' || row < 0) {
            complain(t, c);
            return OPTIONS_STOP;
        }
        c = LONG_FIRST + row;
    }
    snprintf(t->option_text, sizeof t->option_text, "--%s", spec_of(t, c)->name);
    t->option = t->option_text;
    t->value = optarg;
    return c;
}

int options_next(struct tool *t, int min, int max)
{
    while (!t->status) {
        int c = next_option(t);

        if (c == OPTIONS_STOP)
            return OPTIONS_STOP;
        if (c == OPTIONS_END)
            return finish(t, min, max);
        if (c < LONG_REMOTE)
            return c - LONG_FIRST;
        option_remote(t, c - LONG_REMOTE);
    }
    return OPTIONS_STOP;
}

void options_help(const struct verb *v, FILE *f)
{
    char left[64];

    if (v->args)
        fprintf(f, "usage: larder %s [OPTION...] %s\n", v->name, v->args);
    fprintf(f, "%s\n\n%s\n", v->summary, v->about);
    fputs("Options:\n", f);
    for (const struct option_spec *o = v->options; o->name; o++) {
        snprintf(left, sizeof left, "%s%c%s--%s%s%s", o->letter ? "-" : " ", o->letter ? o->letter : ' ',
                 o->letter ? ", " : "  ", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
        fprintf(f, "  %-29s %s%s%s%s\n", left, o->help, o->initial ? " [" : "", o->initial ? o->initial : "",
                o->initial ? "]" : "");
    }
    if (v->args)
        fprintf(f, "  %-29s %s\n\nAnd those of buckets, which 'larder help remote' explains.\n", "-h, --help", "this text");
    fputc('\n', f);
    fprintf(f, "Example%s:\n%s", strchr(v->example, '\n')[1] ? "s" : "", v->example);
}
