/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_cache.c - larder cache info|warm|clear: what lies in directories on local disks, and filling them ahead of a job.
 *
 * warm reads the dataset once through a cache, in the order of its ordinals; the DRAM part lives only as long as another
 * process holds it. clear removes the files that larder made in a directory that no process uses, and nothing else.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/tools.h"

enum { DRAM, NVME, CACHE_NAME, JSON, QUIET };

const struct option_spec cache_options[] = {
    [DRAM] = {"dram", 0, "SIZE|auto", NULL, "warm: fill memory too"},
    [NVME] = {"nvme", 0, "DIR:SIZE", NULL, "warm: fill this directory; may be given again"},
    [CACHE_NAME] = {"cache-name", 0, "NAME", "default", "of the memory that processes share"},
    [JSON] = OPTION_JSON,
    [QUIET] = OPTION_QUIET,
    OPTION_END,
};

/* What a file of ours is called: see tiers/README.md. */
static int is_ours(const char *name)
{
    return strcmp(name, "lock") == 0 || strcmp(name, "checkpoint") == 0 || strcmp(name, "checkpoint.new") == 0 ||
           strncmp(name, "seg-", 4) == 0;
}

static int is_segment(const char *name)
{
    return strncmp(name, "seg-", 4) == 0;
}

struct found { uint64_t files, segments, bytes; int in_use, foreign; };

/* Looks at (or clears) a directory. 0, or an errno. */
static int scan(const char *dir, int clear, struct found *f)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), lock, rc = 0;
    struct dirent *e;
    struct stat st;
    DIR *d;

    memset(f, 0, sizeof *f);
    if (fd < 0)
        return errno;
    lock = openat(fd, "lock", O_RDWR | O_CLOEXEC);
    f->in_use = lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) != 0;
    d = fdopendir(fd);
    if (!d) {
        close(fd);
        rc = ENOMEM;
    }
    while (d && (e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (!is_ours(e->d_name)) {
            f->foreign++;
            continue;
        }
        if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
            continue;
        f->files++;
        f->segments += (uint64_t)is_segment(e->d_name);
        f->bytes += (uint64_t)st.st_blocks * 512;
        if (clear && !f->in_use && lock >= 0 && strcmp(e->d_name, "lock") != 0 && unlinkat(fd, e->d_name, 0) != 0)
            rc = errno;
    }
    if (d)
        closedir(d);
    if (lock >= 0)
        close(lock);
    return rc;
}

static int no_cache(struct tool *t, const char *dir)
{
    return tool_fail(t, "%s: no cache of larder is here (it has no file 'lock')", dir);
}

static int directory(struct tool *t, const char *dir, int clear)
{
    char size[TEXT_MAX], files[TEXT_MAX];
    struct found f;
    struct jsonl j;
    int rc = scan(dir, clear, &f);

    if (rc)
        return tool_fail(t, "%s: %s", dir, strerror(rc));
    if (!f.files)
        return no_cache(t, dir);
    if (clear && f.in_use)
        return tool_fail(t, "%s: a process is using it: end that first", dir);
    if (t->json) {
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", clear ? "cleared" : "cache");
        jsonl_text(&j, "dir", dir);
        jsonl_u64(&j, "files", f.files);
        jsonl_u64(&j, "segments", f.segments);
        jsonl_u64(&j, "bytes", f.bytes);
        jsonl_bool(&j, "in_use", f.in_use);
        jsonl_end(&j);
    } else if (!t->quiet) {
        printf("%s%s: %s, %s on disk%s\n", clear ? "cleared " : "", dir, text_plural(f.segments, "segment", files),
               text_size(f.bytes, size), f.in_use ? ", in use" : "");
    }
    return EXIT_DONE;
}

/* ---- warm ---- */

static int read_once(struct tool *t, struct larder_dataset *ds)
{
    struct larder_loader_options o = LARDER_LOADER_OPTIONS_INIT;
    struct larder_progress p = {.phase = "warm"};
    struct larder_dataset_info in = {.struct_size = sizeof in};
    const struct larder_batch *b;
    struct larder_error err = {0};
    struct larder_loader *ld;
    int rc;

    o.shuffle = LARDER_SHUFFLE_NONE;
    o.epochs = 1;
    if (larder_dataset_info(ds, &in, &err) || larder_loader_open(ds, &o, &ld, &err))
        return tool_error(t, &err);
    p.total = in.samples;
    tool_begin(t);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
        p.done += b->n;
        for (size_t i = 0; i < (size_t)b->n * b->n_fields; i++)
            p.bytes += b->values[i].len;
        larder_batch_release(b);
        if (tool_progress(t, &p)) {
            err = (struct larder_error){.code = rc = LARDER_ECANCELED, .message = "interrupted"};
            break;
        }
    }
    progress_end(&t->progress);
    larder_loader_close(ld);
    return rc == LARDER_END ? EXIT_DONE : tool_run_error(t, &err, NULL);
}

static int report(struct tool *t, const struct larder_cache *cache)
{
    struct larder_cache_stats s = {.struct_size = sizeof s};
    struct larder_error err = {0};
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], d[TEXT_MAX];
    struct jsonl j;

    if (larder_cache_stats(cache, &s, &err))
        return tool_error(t, &err);
    if (t->json) {
        jsonl_begin(&j, stdout);
        jsonl_text(&j, "event", "warm");
        jsonl_u64(&j, "dram_entries", s.dram.entries);
        jsonl_u64(&j, "dram_bytes", s.dram.used_bytes);
        jsonl_u64(&j, "nvme_entries", s.nvme.entries);
        jsonl_u64(&j, "nvme_bytes", s.nvme.used_bytes);
        jsonl_end(&j);
    } else if (!t->quiet) {
        printf("dram %s in %s, nvme %s in %s\n", text_plural(s.dram.entries, "record", a), text_size(s.dram.used_bytes, b),
               text_plural(s.nvme.entries, "record", c), text_size(s.nvme.used_bytes, d));
    }
    return EXIT_DONE;
}

static int warm(struct tool *t, const char *uri, struct cache_args *a)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset *ds;

    if (!a->wanted)
        return tool_usage(t, "warm needs --nvme DIR:SIZE or --dram SIZE");
    if (cache_args_open(t, a, &o.cache) != EXIT_DONE)
        return t->status;
    if (tool_open(t, uri, &o, &ds) == 0) {
        t->status = read_once(t, ds);
        larder_dataset_close(ds);
        if (t->status == EXIT_DONE)
            t->status = report(t, o.cache);
    }
    larder_cache_close(o.cache);
    return t->status;
}

int cmd_cache(struct tool *t)
{
    struct cache_args a;
    int row;

    cache_args_init(&a);
    while ((row = options_next(t, 2, 2)) >= 0)
        switch (row) {
        case DRAM: option_dram(t, &a); break;
        case NVME: option_nvme(t, &a); break;
        case CACHE_NAME: a.o.name = t->value; break;
        case JSON: t->json = 1; break;
        case QUIET: t->quiet = 1; break;
        }
    if (row != OPTIONS_STOP) {
        if (strcmp(t->argv[0], "info") == 0)
            t->status = directory(t, t->argv[1], 0);
        else if (strcmp(t->argv[0], "clear") == 0)
            t->status = directory(t, t->argv[1], 1);
        else if (strcmp(t->argv[0], "warm") == 0)
            t->status = warm(t, t->argv[1], &a);
        else
            tool_usage(t, "'%s' is not info, warm or clear", t->argv[0]);
    }
    cache_args_release(&a);
    return t->status;
}
