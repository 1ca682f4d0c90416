/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tools.h - the door of tools/: the larder command, one cmd_<verb>.c a verb, and the helpers they share.
 *
 * A verb is a row of the table in larder.c. It reads its options with options_next(), whose parsers keep the
 * first complaint in tool->status, calls the library, prints, and returns the exit status.
 */
#ifndef LARDER_TOOLS_H
#define LARDER_TOOLS_H

#include <pthread.h>
#include <stdio.h>

#include "loader/larder.h"

enum exit_status {
    EXIT_DONE = 0,
    EXIT_FAILED = 1,  /* one line on stderr says what, where, what to do */
    EXIT_USAGE = 2,   /* the line names the option and points to --help */
    EXIT_CORRUPT = 3, /* corrupt data found */
};

/* --------------------------------------------------------------------------------- text.c */

#define TEXT_MAX 48 /* holds any number, size or time below */

/* Each returns buf. Sizes are decimal, as the bar's: "512 B", "1.0 GB", "71 GB". */
const char *text_count(uint64_t n, char buf[TEXT_MAX]);        /* "1,281,167" */
const char *text_size(uint64_t bytes, char buf[TEXT_MAX]);     /* "71 GB" */
const char *text_rate(double bytes_per_s, char buf[TEXT_MAX]); /* "1.0 GB/s" */
const char *text_clock(uint64_t seconds, char buf[TEXT_MAX]);  /* "1:12", "2:03:04" */
const char *text_double(double v, int is_float,
                        char buf[TEXT_MAX]); /* the shortest that reads back the same */
const char *text_plural(uint64_t n, const char *noun, char buf[TEXT_MAX]); /* "1 shard", "1,000 shards" */

/* Length of the UTF-8 character at p (n >= 1 bytes there), *cp its code point; 0: not UTF-8. */
size_t text_utf8(const void *p, size_t n, uint32_t *cp);
int text_is_utf8(const void *p, size_t n);

/* Writes bytes so that they fit on one line and no terminal obeys them: printable UTF-8 as it is, a backslash
 * doubled, the rest as \n, \t, \r or \xNN. At most max characters when max is not 0; then "..." follows. */
void text_escape(FILE *f, const void *data, size_t len, size_t max);
void text_line(FILE *f, const char *s); /* the same, backslashes left alone: for messages */

uint64_t clock_now_ns(void); /* CLOCK_MONOTONIC */

/* --------------------------------------------------------------------------------- jsonl.c */

/* jsonl_, for jansson has json_. One object a line: jsonl_begin(), members, jsonl_end(). A name of NULL is
 * for elements of an array. */
struct jsonl {
    FILE *f;   /* borrowed; errors stay in it and are reported at exit */
    int comma; /* a member stands before the next one */
};
void jsonl_begin(struct jsonl *j, FILE *f);
void jsonl_end(struct jsonl *j);
void jsonl_object(struct jsonl *j, const char *name);
void jsonl_array(struct jsonl *j, const char *name);
void jsonl_close(struct jsonl *j, char bracket); /* '}' or ']' */
void jsonl_u64(struct jsonl *j, const char *name, uint64_t v);
void jsonl_i64(struct jsonl *j, const char *name, int64_t v);
void jsonl_double(struct jsonl *j, const char *name, double v, int is_float); /* NaN and infinities: null */
void jsonl_fixed(struct jsonl *j, const char *name, double v, int decimals);
void jsonl_bool(struct jsonl *j, const char *name, int v);
void jsonl_null(struct jsonl *j, const char *name);
void jsonl_hash(struct jsonl *j, const char *name, uint64_t v); /* 16 hex digits as a string */
void jsonl_text(struct jsonl *j, const char *name,
                const char *s); /* NULL: null. Not UTF-8: as jsonl_bytes() */
/* A string; what is not UTF-8 becomes member NAME_hex, two digits a byte. */
void jsonl_bytes(struct jsonl *j, const char *name, const void *data, size_t len);

/* --------------------------------------------------------------------------------- progress.c */

enum progress_mode { PROGRESS_NONE = 0, PROGRESS_BAR = 1, PROGRESS_LINES = 2 };
#define PROGRESS_MARKS 8
#define PROGRESS_LINE_MAX 512

struct progress {
    pthread_mutex_t lock; /* guards what follows: notices may come from the library's threads */
    FILE *f;
    int mode;
    unsigned cols;  /* of the terminal */
    unsigned drawn; /* characters of the bar that is on the screen; 0: none */
    uint64_t start_ns, next_ns;
    const char *phase; /* of the marks */
    struct progress_mark {
        uint64_t ns, done, bytes;
    } marks[PROGRESS_MARKS]; /* oldest first */
    unsigned n_marks;
};

/* A bar on f when f is a terminal, else a line every 10 s; quiet: nothing. */
void progress_init(struct progress *p, FILE *f, int quiet);
void progress_update(struct progress *p, const struct larder_progress *s, uint64_t now_ns);
/* Between these two other lines may be printed without tearing the bar. */
void progress_hide(struct progress *p);
void progress_show(struct progress *p);
void progress_end(struct progress *p); /* leaves the last bar on the screen, ended by a newline */
/* The line for s at now_ns, NUL-terminated: what progress_update() prints. */
void progress_format(struct progress *p, const struct larder_progress *s, uint64_t now_ns,
                     char line[PROGRESS_LINE_MAX]);

/* --------------------------------------------------------------------------------- options.c */

struct option_spec {
    const char *name;    /* without "--"; NULL ends a table */
    int letter;          /* 'o' for -o; 0: none */
    const char *arg;     /* "SIZE"; NULL: a switch */
    const char *initial; /* the default as --help shows it; NULL: off */
    const char *help;
};
#define OPTIONS_MAX 64
#define OPTION_JSON                                                                   \
    {                                                                                 \
        "json", 0, NULL, NULL, "one JSON object a line on stdout, nothing else there" \
    }
#define OPTION_QUIET                                                        \
    {                                                                       \
        "quiet", 'q', NULL, NULL, "no progress and no summary, only errors" \
    }
#define OPTION_NO_PIN                                                                           \
    {                                                                                           \
        "no-pin", 0, NULL, NULL, "do not lock the cache in memory, nor register it with CUDA" \
    }
#define OPTION_END                \
    {                             \
        NULL, 0, NULL, NULL, NULL \
    }

struct tool;
struct verb {
    const char *name, *args, *summary; /* "verify", "DATASET", one line; no args: a topic of help */
    int (*run)(struct tool *t);        /* returns enum exit_status */
    const char *about;                 /* paragraphs of --help */
    const char *example;               /* lines of --help */
    const struct option_spec *options;
};

/* One run of the program. */
struct tool {
    const struct verb *verb;
    int argc;
    char **argv; /* argv[0] is the verb; after options_next() is through, argv holds the arguments alone */
    int status;  /* the first complaint about options, or EXIT_DONE */
    const char *option; /* the one being parsed, "--seed", and */
    const char *value;  /* its argument */
    char option_text[64];
    int json, quiet; /* where a verb has them */
    struct larder_remote_options remote; /* as the options of buckets say; every verb hands it to the library */
    struct progress progress;
};

enum { OPTIONS_END = -1, OPTIONS_STOP = -2 };
/* The next option as its row in the verb's table; OPTIONS_END: t->argc arguments are left in t->argv, between
 * min and max of them; OPTIONS_STOP: return t->status. */
int options_next(struct tool *t, int min, int max);
/* Parsers of the option's value. On failure they print the complaint, set t->status and leave *v alone. */
void option_size(struct tool *t, uint64_t min, uint64_t max, uint64_t *v);
void option_u64(struct tool *t, uint64_t min, uint64_t max, uint64_t *v);
void option_unsigned(struct tool *t, unsigned min, unsigned max, unsigned *v);
void option_duration(struct tool *t, uint64_t *seconds);
void option_choice(struct tool *t, const char *const *names, int *v); /* names end with NULL; *v: which */
void option_subset(struct tool *t, uint64_t *n, uint64_t *of);        /* "1/10" */
void option_compress(struct tool *t, int *compression, int *level);   /* "zstd:9" */
void option_bad(struct tool *t, const char *expected); /* "--x: 'v' is not EXPECTED; see 'larder V --help'" */

/* The bare parsers: 0, or -1 and *v is left alone. */
int parse_size(const char *s, uint64_t *v); /* 4096, 64MiB = 64M = 64m, 8GB = 8 * 10^9, 1.5G */
int parse_u64(const char *s, uint64_t *v);
int parse_duration(const char *s, uint64_t *seconds); /* 90s, 30m, 24h, 7d, 2w, 90 */
int parse_milliseconds(const char *s, uint64_t *ms);  /* the same, and 500ms */

void options_help(const struct verb *v, FILE *f);
/* The name nearest to wrong, or NULL when none is near. next(i) gives names until NULL. */
const char *options_nearest(const char *wrong, const char *(*next)(const void *table, size_t i),
                            const void *table);

/* ---------------------------------------------------------------------------- remote_args.c */

extern const struct option_spec remote_option_specs[]; /* of every verb, beside its own */
void option_remote(struct tool *t, int row);      /* a row of them */
void remote_help(FILE *f);
int remote_is(const char *uri); /* 1: a bucket or a web server */

/* --------------------------------------------------------------------------- remote_stats.c */

/* *s becomes what was counted since *before; latencies stay. */
void remote_stats_since(struct larder_remote_stats *s, const struct larder_remote_stats *before);
void remote_stats_json(struct jsonl *j, const struct larder_remote_stats *s, const struct larder_loader_estimate *e);
void remote_stats_print(FILE *f, const struct larder_remote_stats *s);
/* "epoch 0: about 1,234 GETs, 5.6 GB, $0.01" */
void remote_estimate_print(FILE *f, uint64_t epoch, const struct larder_loader_estimate *e);

/* ----------------------------------------------------------------------------- cache_args.c */

#define CACHE_ARGS_NVME 8
struct cache_args {
    struct larder_cache_options o;
    struct larder_cache_nvme nvme[CACHE_ARGS_NVME];
    char *dirs[CACHE_ARGS_NVME]; /* owned */
    const char *metrics;         /* file, or NULL */
    int wanted;                  /* some tier was given */
    const char *warned[32];      /* what was printed */
    size_t n_warned;
};
void cache_args_init(struct cache_args *a);
void option_dram(struct tool *t, struct cache_args *a);        /* SIZE or "auto" */
void option_nvme(struct tool *t, struct cache_args *a);        /* DIR:SIZE, repeatable */
void option_replacement(struct tool *t, struct cache_args *a); /* none|fifo */
void option_cuda(struct tool *t, struct cache_args *a);        /* N|off */
/* *cache stays NULL when none is wanted. Returns an exit status. Warnings go to stderr. */
int cache_args_open(struct tool *t, struct cache_args *a, struct larder_cache **cache);
/* Those that have come since: a disk is full, memory cannot be locked. */
void cache_args_warn(const struct tool *t, struct cache_args *a, const struct larder_cache *cache);
int cache_args_metrics(struct tool *t, const struct cache_args *a, const struct larder_loader *ld);
void cache_args_release(struct cache_args *a);

/* --------------------------------------------------------------------------------- lists.c */

/* Returns nonzero when memory is exhausted. */
typedef int list_fn(void *user, uint64_t ordinal);
/* The samples whose names stand in a file, one a line, in turn. Both return an exit status. */
int list_names(struct tool *t, struct larder_dataset *ds, const char *path, list_fn *found, void *user);
int list_numbers(struct tool *t, const char *path, uint64_t n, double **v); /* n lines, none negative; *v is owned */

/* ---------------------------------------------------------------------------- loader_args.c */

struct loader_window { uint64_t samples, bytes; }; /* one of the two, or neither */
struct loader_args {
    struct larder_loader_options o;
    int image; /* 1: images become arrays, as `prep` says */
    struct larder_image prep;
    const char *image_only; /* name of an option that needs that; NULL: none was given */
    struct loader_window fetch, threshold;
    const char *filter_file, *weights_file, *order_file, *state_file; /* NULL: none */
    /* owned */
    struct larder_output *outputs;
    uint8_t *bits;
    double *weights;
    uint64_t *list;
    size_t n_list, cap_list;
    char *text;
};
void loader_args_init(struct loader_args *a);
void option_image(struct tool *t, struct loader_args *a); /* raw, rrc:224, center:224x160, full:64 */
void option_flip(struct tool *t, struct loader_args *a);
void option_dtype(struct tool *t, struct loader_args *a);
void option_layout(struct tool *t, struct loader_args *a); /* nhwc|nchw */
void option_resample(struct tool *t, struct loader_args *a);
void option_normalize(struct tool *t, struct loader_args *a); /* imagenet, MEAN,STD */
void option_max_bad(struct tool *t, struct loader_args *a);
void option_split(struct tool *t, struct loader_args *a); /* BEGIN:END */
void option_window(struct tool *t, struct loader_window *w);
/* After the options: do they go together? Then, with the dataset open: reads the files, makes the outputs. Both return an exit status. */
int loader_args_check(struct tool *t, const struct loader_args *a);
int loader_args_take(struct tool *t, struct loader_args *a, struct larder_dataset *ds);
int loader_args_save(struct tool *t, const struct loader_args *a, const struct larder_loader *ld); /* to --state */
void loader_args_release(struct loader_args *a);

/* ------------------------------------------------------------------------------ mix_args.c */

#define MIX_ARGS_MAX 256
struct mix_args {
    struct larder_mix_source source[MIX_ARGS_MAX]; /* the first one is the verb's DATASET */
    char *uri[MIX_ARGS_MAX];                       /* owned, of the others */
    size_t n;
    int stop; /* --mix-stop */
};
void mix_args_init(struct mix_args *a);
void option_mix(struct tool *t, struct mix_args *a);        /* DATASET[:WEIGHT], repeatable */
void option_mix_weight(struct tool *t, struct mix_args *a); /* of the first */
/* After the options; then, with the first one open, opens the others. Both return an exit status. */
int mix_args_check(struct tool *t, const struct mix_args *a);
int mix_args_open(struct tool *t, struct mix_args *a, const struct larder_dataset_options *o, struct larder_dataset *first);
void mix_args_close(struct mix_args *a); /* the others, after the loader */

/* -------------------------------------------------------------------------------- digest.c */

struct digest { uint64_t order, data, samples, bytes; };
void digest_add(struct digest *d, const struct larder_batch *b);

/* --------------------------------------------------------------------------------- larder.c */

/* Each prints one line on stderr and returns the status to exit with. */
int tool_usage(struct tool *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int tool_fail(struct tool *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int tool_error(struct tool *t, const struct larder_error *err);
int tool_nomem(struct tool *t);
/* An error of a run that was told to stop: says so and ends by the signal; other errors: as tool_error().
 * hint: how to go on. */
int tool_run_error(struct tool *t, const struct larder_error *err, const char *hint);

/* Begins a run with progress: the bar, and SIGINT and SIGTERM make tool_progress() return 1. A second signal
 * ends the program at once. */
void tool_begin(struct tool *t);
int tool_progress(struct tool *t, const struct larder_progress *p);
/* 1 when stdout cannot be written any more: stop early, main reports it. */
int tool_output_failed(void);
/* Opens t's dataset at uri, which t->remote says how to reach; 0, or -1 with the status in t->status. */
int tool_open(struct tool *t, const char *uri, const struct larder_dataset_options *o,
              struct larder_dataset **ds);

/* Notices: listed at once as JSON, otherwise the first few are kept for the summary. */
#define NOTICES_KEPT 5
struct notices {
    struct tool *t;
    const char *event; /* "skipped" */
    uint64_t count;
    char *kept[NOTICES_KEPT]; /* owned */
    unsigned n_kept;
};
void notices_add(struct notices *n, const char *what, const char *why);
void notices_print(const struct notices *n, const char *title); /* "skipped 3:" and the lines below it */
void notices_release(struct notices *n);

/* Prints a damaged place: `word FILE slot S ordinal O key K: why`. */
void damage_print(struct tool *t, const char *word, const struct larder_damage *d);

int cmd_ingest(struct tool *t);
int cmd_info(struct tool *t);
int cmd_ls(struct tool *t);
int cmd_get(struct tool *t);
int cmd_export(struct tool *t);
int cmd_verify(struct tool *t);
int cmd_repair(struct tool *t);
int cmd_gc(struct tool *t);
int cmd_copy(struct tool *t);
int cmd_bench(struct tool *t);
int cmd_cache(struct tool *t);

extern const struct option_spec ingest_options[], info_options[], ls_options[], get_options[],
    export_options[], verify_options[], repair_options[], gc_options[], copy_options[], bench_options[], cache_options[];

#endif
