/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_ingest_dir.c - ingesting a warm folder of 10,000 JPEG images, durably, against tar.
 *
 * larder: larder_ingest_run with two workers, in one order of the source (shuffled, the default), until the commit has
 * returned: everything is fsynced then. Baseline: `tar cf FILE FOLDER` and sync of the file and its folder. Both write to
 * the same file system; before each run what the last one left is deleted and the disk is quiet (sync). Bytes are
 * those of the images.
 */
#include "tests/bench/bench.h"

struct ctx {
    const char *images, *folder;
    char dest[512], tar[512];
    double bytes;
};

static double total;

static int add_size(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    static char buf[1 << 16];
    int fd;

    (void)ftw;
    if (flag != FTW_F)
        return 0;
    total += (double)st->st_size;
    fd = open(path, O_RDONLY); /* warm */
    while (fd >= 0 && read(fd, buf, sizeof buf) > 0)
        ;
    close(fd);
    return 0;
}

static void quiet(struct ctx *c)
{
    bench_rm(c->dest);
    unlink(c->tar);
    sync();
}

static void sync_path(const char *path)
{
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fsync(fd) != 0)
        bench_die("%s: %s", path, strerror(errno));
    close(fd);
}

static double run_larder(void *arg)
{
    struct ctx *c = arg;
    struct larder_ingest_options opts = LARDER_INGEST_OPTIONS_INIT;
    struct larder_ingest_report report = {.struct_size = sizeof report};
    struct larder_error err;
    double t;

    quiet(c);
    opts.workers = 2;
    t = bench_now();
    bench_ok(larder_ingest_run(&c->images, 1, c->dest, &opts, &report, &err), &err);
    t = bench_now() - t;
    if ((double)report.source_bytes != c->bytes)
        bench_die("ingest_dir: %" PRIu64 " bytes ingested of %.0f", report.source_bytes, c->bytes);
    return c->bytes / t;
}

static double run_tar(void *arg)
{
    struct ctx *c = arg;
    const char *argv[] = {"tar", "cf", c->tar, "-C", c->images, ".", NULL};
    double t;

    quiet(c);
    t = bench_now();
    bench_spawn(argv);
    sync_path(c->tar);
    sync_path(c->folder);
    return c->bytes / (bench_now() - t);
}

int main(int argc, char **argv)
{
    struct ctx c = {.images = bench_path("jpegs"), .folder = bench_path(".")};
    const char *build = getenv("BUILD");
    char maker[512];

    (void)argc, (void)argv;
    snprintf(c.dest, sizeof c.dest, "%s", bench_path("ingest_dir.larder"));
    snprintf(c.tar, sizeof c.tar, "%s", bench_path("ingest_dir.tar"));
    snprintf(maker, sizeof maker, "%s/tests/data/mkjpegs", build ? build : "build/release");
    if (!bench_is_made(c.images)) {
        const char *make[] = {maker, c.images, "10000", "1", NULL};

        bench_spawn(make);
        bench_made(c.images);
    }
    if (nftw(c.images, add_size, 32, FTW_PHYS) != 0)
        bench_die("%s: %s", c.images, strerror(errno));
    c.bytes = total;
    bench_pair("ingest_dir", run_larder, run_tar, "tar cf + fsync", "B/s", 5, &c, "\"files\": 10000, \"workers\": 2");
    quiet(&c);
    return 0;
}
