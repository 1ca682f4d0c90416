/* SPDX-License-Identifier: Apache-2.0 */
/*
 * larder.c - main of the larder command: the table of verbs, --help, --version, the error line, signals, and
 * what several verbs share.
 *
 * Exit status: 0 done, 1 failed, 2 wrong usage, 3 corrupt data found. A failure is one line on stderr,
 * `larder VERB: what, where, what to do`. stdout carries results only, and a write to it that fails is a
 * failure too.
 *
 * Signals: a run with progress callbacks is told to stop by the first SIGINT or SIGTERM, ends in order, and
 * then dies by that signal, so that a shell sees it; the second ends the program at once. `caught` is the one
 * variable that is not somebody's field, since a handler gets no argument.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/tools.h"

static volatile sig_atomic_t caught;

static const struct verb verbs[] = {
    {"ingest", "SOURCE... DATASET", "Convert a folder or tar files into a dataset.", cmd_ingest,
     "Nothing is visible before the end, when everything is committed as one generation.\n"
     "After a crash, an interrupt or a power cut run the same command again: it goes on\n"
     "where it stopped.\n"
     "\n"
     "dir: one sample a file, its key the relative path without the extension. When all\n"
     "files lie in folders, field 'label' is the rank of the top folder's name.\n"
     "tar: WebDataset naming, the files with one stem are one sample; .tar, .tar.gz,\n"
     ".tar.zst and .tar.xz; braces such as x-{000..009}.tar stand for a range.\n",
     "  larder ingest photos/ /data/photos\n"
     "  larder ingest 'train-{000..127}.tar' /data/train --compress zstd\n",
     ingest_options},
    {"info", "DATASET", "Describe a dataset: size, schema, generation.", cmd_info,
     "Reads the manifest only.\n", "  larder info /data/photos\n", info_options},
    {"ls", "DATASET", "List keys in the order of their ordinals.", cmd_ls,
     "One key a line. Bytes that are not printable UTF-8 are shown as \\n, \\t, \\r or\n"
     "\\xNN, a backslash as \\\\; --json gives them exactly.\n",
     "  larder ls /data/photos --first 1000 --count 10 --long\n", ls_options},
    {"get", "DATASET KEY|@ORDINAL...", "Show samples, or write the bytes of a field.", cmd_get,
     "Without --field: each sample's place, fields, sizes and scalar values. With --field:\n"
     "the field's bytes exactly as they were ingested, scalars (i64, f64, f32, bool) as\n"
     "text and a newline; several samples follow each other.\n"
     "@17 is the sample with ordinal 17; a key that begins with '@' is given with one '@'\n"
     "more.\n",
     "  larder get /data/photos cats/0001\n"
     "  larder get /data/photos @17 --field image -o 17.jpg\n",
     get_options},
    {"export", "DATASET DEST", "Write samples as files into a folder or a tar.", cmd_export,
     "KEY.FIELD below DEST, media under their usual extension. DEST is a new or empty\n"
     "folder, or a file .tar, .tar.gz, .tar.zst or .tar.xz, which 'larder ingest' reads\n"
     "back. Whatever the keys are, nothing is written outside DEST: keys that are not safe\n"
     "as paths are percent-encoded.\n",
     "  larder export /data/photos sample.tar --count 100\n", export_options},
    {"verify", "DATASET", "Check every byte: manifest, index, shards.", cmd_verify,
     "Lists what is damaged as shard, slot, ordinal and key, and exits with status 3 if\n"
     "anything is.\n",
     "  larder verify /data/photos\n"
     "  larder verify /data/photos --subset 1/7   # a seventh, one each day of the week\n",
     verify_options},
    {"repair", "DATASET", "Rebuild index and manifest, drop what is damaged.", cmd_repair,
     "Works from the shards alone. Good files are never touched, and nothing is written\n"
     "when nothing is wrong. When samples are dropped, ordinals move and the dataset gets a\n"
     "new lineage. Damaged shards stay on disk until 'larder gc'. With --dry-run the exit\n"
     "status is 3 if something is to mend.\n",
     "  larder repair /data/photos --dry-run\n", repair_options},
    {"gc", "DATASET", "Remove old generations and stray files.", cmd_gc,
     "Generations superseded only lately stay, whatever --keep says: a training job may be\n"
     "reading one.\n",
     "  larder gc /data/photos --keep 2 --older-than 7d\n", gc_options},
    {"copy", "SRC DST", "Copy a dataset between directories and buckets.", cmd_copy,
     "One generation: shards, index, manifest, in this order, so that DST is a dataset or\n"
     "nothing at any time. Every byte is checked on its way. After a crash or an interrupt\n"
     "run the same command again: what has arrived stays. Keys, ordinals and identity are\n"
     "kept, so a cache of one serves the other.\n",
     "  larder copy /data/photos s3://bucket/photos\n"
     "  larder copy s3://bucket/photos /nvme/photos --workers 16\n", copy_options},
    {"bench", "DATASET", "Run the loader and report each epoch.", cmd_bench,
     "order_hash is the hash of the ordinals in the order of delivery, data_hash the sum of\n"
     "the hashes of (ordinal, delivered bytes): the same in every order. Fetch stall is the\n"
     "time spent waiting for bytes, prep stall for decoding.\n",
     "  larder bench /data/photos --epochs 3 --batch-size 256 --compute-ms 5\n"
     "  larder bench /data/photos --epochs 3 --dram 8GB --nvme /nvme/cache:200GB\n"
     "  larder bench /data/photos --image rrc:224 --flip 0.5 --threads 8 --state run.json\n",
     bench_options},
    {"cache", "info|warm|clear DIR|DATASET", "Look at, fill or empty caches on local disks.", cmd_cache,
     "info DIR: what larder keeps in a cache directory. clear DIR: removes it, unless a\n"
     "process is using it; other files are left alone. warm DATASET: reads every record once\n"
     "through the cache that the options name, so that a job starts with it filled.\n",
     "  larder cache warm /data/photos --nvme /nvme/cache:200GB\n"
     "  larder cache info /nvme/cache\n",
     cache_options},
};
#define N_VERBS (sizeof verbs / sizeof *verbs)

/* -------------------------------------------------------------------------------- error line */

static void print_line(struct tool *t, const char *text, int usage)
{
    progress_end(&t->progress);
    fflush(stdout); /* results first when both go to one place */
    fprintf(stderr, "larder%s%s: ", t->verb ? " " : "", t->verb ? t->verb->name : "");
    text_line(stderr, text);
    if (usage)
        fprintf(stderr, "%s see 'larder %s%s--help'", text[strlen(text) - 1] == '?' ? "" : ";",
                t->verb ? t->verb->name : "", t->verb ? " " : "");
    fputc('\n', stderr);
}

int tool_usage(struct tool *t, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line(t, text, 1);
    return t->status = EXIT_USAGE;
}

int tool_fail(struct tool *t, const char *fmt, ...)
{
    char text[1024];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line(t, text, 0);
    return t->status = EXIT_FAILED;
}

int tool_error(struct tool *t, const struct larder_error *err)
{
    print_line(t, err->message[0] ? err->message : larder_code_name(err->code), 0);
    return t->status = err->code == LARDER_ECORRUPT ? EXIT_CORRUPT : EXIT_FAILED;
}

int tool_nomem(struct tool *t)
{
    return tool_fail(t, "out of memory");
}

/* ----------------------------------------------------------------------------- signals, runs */

static void on_signal(int sig)
{
    if (caught) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    caught = sig;
}

static void catch_signal(int sig)
{
    struct sigaction old, sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    sigemptyset(&sa.sa_mask);
    /* nohup and background jobs ignore it. */
    if (sigaction(sig, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(sig, &sa, NULL);
}

void tool_begin(struct tool *t)
{
    progress_init(&t->progress, stderr, t->quiet);
    catch_signal(SIGINT);
    catch_signal(SIGTERM);
}

int tool_progress(struct tool *t, const struct larder_progress *p)
{
    progress_update(&t->progress, p, clock_now_ns());
    return caught != 0;
}

int tool_run_error(struct tool *t, const struct larder_error *err, const char *hint)
{
    int sig = caught;

    if (err->code != LARDER_ECANCELED || !sig)
        return tool_error(t, err);
    tool_fail(t, "interrupted; %s", hint);
    fflush(NULL);
    signal(sig, SIG_DFL);
    raise(sig);
    return EXIT_FAILED;
}

int tool_output_failed(void)
{
    return ferror(stdout);
}

int tool_open(struct tool *t, const char *uri, const struct larder_dataset_options *o,
              struct larder_dataset **ds)
{
    struct larder_dataset_options options = LARDER_DATASET_OPTIONS_INIT;
    struct larder_error err = {0};

    if (o)
        options = *o;
    options.remote = &t->remote;
    if (larder_dataset_open(uri, &options, ds, &err) == LARDER_OK)
        return 0;
    tool_error(t, &err);
    return -1;
}

/* ------------------------------------------------------------------------ notices and damage */

static char *notice_text(const char *what, const char *why)
{
    size_t size = strlen(what) + (why ? strlen(why) : 0) + 3;
    char *text = malloc(size);

    if (text)
        snprintf(text, size, "%s%s%s", what, why && *why ? ": " : "", why ? why : "");
    return text;
}

void notices_add(struct notices *n, const char *what, const char *why)
{
    struct jsonl j;
    char *text;

    n->count++;
    if (n->t->json) {
        progress_hide(&n->t->progress);
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", n->event);
        jsonl_text(&j, "what", what);
        jsonl_text(&j, "why", why);
        jsonl_end(&j);
        progress_show(&n->t->progress);
    } else if (n->n_kept < NOTICES_KEPT && (text = notice_text(what, why))) {
        n->kept[n->n_kept++] = text; /* without memory the count still stands */
    }
}

void notices_print(const struct notices *n, const char *title)
{
    char buf[TEXT_MAX];

    if (n->count == 0 || n->t->json)
        return;
    printf("%s %s:\n", title, text_count(n->count, buf));
    for (unsigned i = 0; i < n->n_kept; i++) {
        fputs("  ", stdout);
        text_line(stdout, n->kept[i]);
        putchar('\n');
    }
    if (n->count > n->n_kept)
        printf("  and %s more%s\n", text_count(n->count - n->n_kept, buf),
               n->n_kept == NOTICES_KEPT ? "; --json lists them all" : "");
}

void notices_release(struct notices *n)
{
    while (n->n_kept > 0)
        free(n->kept[--n->n_kept]);
}

static void damage_json(const char *event, const struct larder_damage *d)
{
    struct jsonl j;

    jsonl_begin(&j, stdout);
    jsonl_text(&j, "event", event);
    jsonl_text(&j, "file", d->file);
    if (d->shard_no != UINT64_MAX)
        jsonl_u64(&j, "shard", d->shard_no);
    if (d->slot != UINT64_MAX)
        jsonl_u64(&j, "slot", d->slot);
    if (d->ordinal != LARDER_NO_ORDINAL)
        jsonl_u64(&j, "ordinal", d->ordinal);
    if (d->key)
        jsonl_bytes(&j, "key", d->key, d->key_len);
    jsonl_text(&j, "why", d->why);
    jsonl_end(&j);
}

void damage_print(struct tool *t, const char *word, const struct larder_damage *d)
{
    progress_hide(&t->progress);
    if (t->json) {
        damage_json(word, d);
    } else {
        printf("%s ", word);
        text_line(stdout, d->file ? d->file : "?");
        if (d->slot != UINT64_MAX)
            printf(" slot %llu", (unsigned long long)d->slot);
        if (d->ordinal != LARDER_NO_ORDINAL)
            printf(" ordinal %llu", (unsigned long long)d->ordinal);
        if (d->key) {
            fputs(" key ", stdout);
            text_escape(stdout, d->key, d->key_len, 0);
        }
        fputs(": ", stdout);
        text_line(stdout, d->why ? d->why : "damaged");
        putchar('\n');
    }
    fflush(stdout);
    progress_show(&t->progress);
}

/* --------------------------------------------------------------------------------------- main */

static const char *verb_name(const void *table, size_t i)
{
    return i < N_VERBS ? ((const struct verb *)table)[i].name : NULL;
}

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < N_VERBS; i++)
        if (!strcmp(verbs[i].name, name))
            return &verbs[i];
    return NULL;
}

static void print_help(FILE *f)
{
    fprintf(f, "usage: larder VERB [OPTION...] ARGUMENT...\n"
               "A store of training samples: packed, indexed, checked, read ahead in epochs.\n\n");
    for (size_t i = 0; i < N_VERBS; i++)
        fprintf(f, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
    fprintf(f, "\nA DATASET is a path, s3://BUCKET/PREFIX, or http(s)://HOST/PREFIX to read; 'larder help remote' tells more.\n"
               "'larder VERB --help' tells a verb's options. Sizes: 64MiB = 64M, 8GB = 8 * 10^9.\n"
               "Times: 24h, 7d, 30m, 90s.\n"
               "Exit status: 0 done, 1 failed, 2 wrong usage, 3 corrupt data found.\n");
}

/* A file that is opened must not become stdout, so 0, 1 and 2 are taken; their use fails as that of the
 * closed one would. */
static void fill_standard_fds(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(EXIT_FAILED);
}

/* Buffered output may fail only now, on a full disk even as late as close(). */
static int close_stdout(struct tool *t, int status)
{
    int failed = ferror(stdout), saved;

    errno = 0;
    if (fflush(stdout))
        failed = 1;
    saved = errno;
    if (close(STDOUT_FILENO) && errno != EBADF) {
        failed = 1;
        saved = errno;
    }
    if (!failed)
        return status;
    tool_fail(t, "cannot write to standard output%s%s", saved ? ": " : "", saved ? strerror(saved) : "");
    return status == EXIT_DONE ? EXIT_FAILED : status;
}

static int run_verb(struct tool *t, const char *name)
{
    const char *near = options_nearest(name, verb_name, verbs);
    const struct verb *v = find_verb(name);

    if (!v && near)
        return tool_usage(t, "unknown verb '%s'; did you mean '%s'?", name, near);
    if (!v)
        return tool_usage(t, "unknown verb '%s'", name);
    t->verb = v;
    return v->run(t);
}

static int run(struct tool *t)
{
    const char *first = t->argc > 0 ? t->argv[0] : NULL;

    if (!first) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    if (!strcmp(first, "help") && t->argc > 1) {
        const struct verb *v = find_verb(t->argv[1]);

        if (!strcmp(t->argv[1], "remote")) {
            remote_help(stdout);
            return EXIT_DONE;
        }
        if (!v)
            return run_verb(t, t->argv[1]); /* complains */
        options_help(v, stdout);
        return EXIT_DONE;
    }
    if (!strcmp(first, "--help") || !strcmp(first, "-h") || !strcmp(first, "help")) {
        print_help(stdout);
        return EXIT_DONE;
    }
    if (!strcmp(first, "--version") || !strcmp(first, "-V")) {
        printf("larder %s\n", larder_version());
        return EXIT_DONE;
    }
    if (first[0] == '-')
        return tool_usage(t, "unknown option '%s'; the verb comes first", first);
    return run_verb(t, first);
}

int main(int argc, char **argv)
{
    struct tool t = {.argc = argc - 1, .argv = argv + 1, .remote = LARDER_REMOTE_OPTIONS_INIT};

    fill_standard_fds();
    signal(SIGXFSZ, SIG_IGN); /* a file too large is an error that is told, EFBIG */
    progress_init(&t.progress, stderr, 1);
    return close_stdout(&t, run(&t));
}
