/* SPDX-License-Identifier: Apache-2.0 */
/*
 * metrics.c - numbers as Prometheus text, for files that a node exporter collects.
 *
 * A file is replaced as a whole: whoever reads it sees one state. Of a loader it has the numbers of the epoch that runs, or ended last, as
 * gauges, and behind them those of its dataset's cache. Threads: any.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "loader/loader_int.h"

/* ---- files ---- */

static int write_all(int fd, const struct buf *b)
{
    size_t done = 0;

    while (done < b->len) {
        ssize_t n = write(fd, b->data + done, b->len - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

int metrics_write(const char *path, const struct buf *text, struct larder_error *err)
{
    AUTO_FREE char *temp = NULL;
    int rc = 0, fd;

    if (asprintf(&temp, "%s.%d.tmp", path, (int)getpid()) < 0) {
        temp = NULL;
        return err_nomem(err, strlen(path) + 16, "a path");
    }
    fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot write metrics", temp);
    rc = write_all(fd, text);
    if (close(fd) != 0 || rc || rename(temp, path) != 0) {
        rc = err_sys(err, LARDER_EIO, errno, "%s: cannot write metrics", path);
        (void)unlink(temp);
    }
    return rc;
}

/* ---- a loader ---- */

struct metric { const char *name, *help; size_t at; bool ns; };

#define METRIC(name, member, help) {name, help, offsetof(struct larder_loader_stats, member), false}
#define SECONDS(name, member, help) {name, help, offsetof(struct larder_loader_stats, member), true}
static const struct metric epoch[] = {
    METRIC("larder_loader_epoch_number", epoch, "The epoch that runs, or ended last."),
    METRIC("larder_loader_epoch_samples", samples, "Samples delivered in it."),
    METRIC("larder_loader_epoch_batches", batches, "Batches delivered in it."),
    METRIC("larder_loader_epoch_bytes", bytes, "Bytes delivered in it."),
    SECONDS("larder_loader_epoch_seconds", seconds_ns, "Wall time of it."),
    SECONDS("larder_loader_epoch_fetch_stall_seconds", fetch_stall_ns, "Time that the consumer waited for bytes."),
    SECONDS("larder_loader_epoch_prep_stall_seconds", prep_stall_ns, "Time that the consumer waited for decoding."),
    METRIC("larder_loader_epoch_bad_samples", bad, "Samples that were bad."),
    METRIC("larder_loader_order_bytes", order_bytes, "Memory that filters, weights and orders take."),
};
static const struct metric decoded[] = {
    METRIC("larder_loader_decoded_found_samples", decoded.hits, "Samples of the epoch that were found decoded."),
    METRIC("larder_loader_decoded_made_samples", decoded.misses, "Samples of the epoch that were decoded for the decoded cache."),
    SECONDS("larder_loader_decoded_made_seconds", decoded.decode_ns, "Time that decoding the misses took."),
    SECONDS("larder_loader_decoded_saved_seconds", decoded.saved_ns, "Time that decoding the hits would have taken."),
    METRIC("larder_loader_decoded_entries", decoded.entries, "Samples held decoded."),
    METRIC("larder_loader_decoded_used_bytes", decoded.used_bytes, "Memory that they take."),
    METRIC("larder_loader_decoded_budget_bytes", decoded.budget_bytes, "Limit of that memory."),
};

static int put_all(const struct metric *m, size_t n, const struct larder_loader_stats *s, uint32_t rank, struct buf *out, struct larder_error *err)
{
    int rc = LARDER_OK;

    for (size_t i = 0; !rc && i < n; i++) {
        uint64_t v;
        memcpy(&v, (const uint8_t *)s + m[i].at, sizeof(v));
        rc = buf_printf(out, err, "# HELP %s %s\n# TYPE %s gauge\n%s{rank=\"%u\"} ", m[i].name, m[i].help, m[i].name, m[i].name, rank);
        if (!rc)
            rc = m[i].ns ? buf_printf(out, err, "%.9f\n", (double)v / 1e9) : buf_printf(out, err, "%" PRIu64 "\n", v);
    }
    return rc;
}

int metrics_loader(const struct larder_loader_stats *s, uint32_t rank, struct buf *out, struct larder_error *err)
{
    int rc = put_all(epoch, ARRAY_LEN(epoch), s, rank, out, err);

    return rc || !s->decoded.budget_bytes ? rc : put_all(decoded, ARRAY_LEN(decoded), s, rank, out, err);
}
