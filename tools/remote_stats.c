/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_stats.c - what went over the network between two moments, and what an epoch is going to ask for, as text and as JSON.
 *
 * Counters are since the dataset was opened, so an epoch's are a difference; latencies are over all the time.
 */
#include <inttypes.h>

#include "tools/tools.h"

void remote_stats_since(struct larder_remote_stats *s, const struct larder_remote_stats *before)
{
    s->requests -= before->requests;
    s->gets -= before->gets;
    s->puts -= before->puts;
    s->others -= before->others;
    s->demand_gets -= before->demand_gets;
    s->stream_gets -= before->stream_gets;
    s->bytes_fetched -= before->bytes_fetched;
    s->bytes_used -= before->bytes_used;
    s->bytes_sent -= before->bytes_sent;
    s->retries -= before->retries;
    s->retries_throttled -= before->retries_throttled;
    s->retries_server -= before->retries_server;
    s->retries_connection -= before->retries_connection;
    s->retries_short -= before->retries_short;
    s->retries_stalled -= before->retries_stalled;
    s->retries_damaged -= before->retries_damaged;
    s->retries_credentials -= before->retries_credentials;
    s->hedges -= before->hedges;
    s->hedges_won -= before->hedges_won;
    s->failed -= before->failed;
    s->dollars -= before->dollars;
}

static const struct cause {
    const char *name, *text;
    size_t offset; /* in struct larder_remote_stats */
} causes[] = {
    {"throttled", "throttled", offsetof(struct larder_remote_stats, retries_throttled)},
    {"server", "server errors", offsetof(struct larder_remote_stats, retries_server)},
    {"connection", "lost connections", offsetof(struct larder_remote_stats, retries_connection)},
    {"short", "short or wrong answers", offsetof(struct larder_remote_stats, retries_short)},
    {"stalled", "stalled", offsetof(struct larder_remote_stats, retries_stalled)},
    {"damaged", "damaged", offsetof(struct larder_remote_stats, retries_damaged)},
    {"credentials", "credentials or clock", offsetof(struct larder_remote_stats, retries_credentials)},
};
#define N_CAUSES (sizeof causes / sizeof *causes)

static uint64_t retries_of(const struct larder_remote_stats *s, const struct cause *c)
{
    return *(const uint64_t *)((const char *)s + c->offset);
}

void remote_stats_json(struct jsonl *j, const struct larder_remote_stats *s, const struct larder_loader_estimate *e)
{
    jsonl_object(j, "remote");
    jsonl_u64(j, "requests", s->requests);
    jsonl_u64(j, "gets", s->gets);
    jsonl_u64(j, "demand_gets", s->demand_gets);
    jsonl_u64(j, "stream_gets", s->stream_gets);
    jsonl_u64(j, "puts", s->puts);
    jsonl_u64(j, "others", s->others);
    jsonl_u64(j, "bytes_fetched", s->bytes_fetched);
    jsonl_u64(j, "bytes_used", s->bytes_used);
    jsonl_object(j, "retries");
    jsonl_u64(j, "all", s->retries);
    for (size_t i = 0; i < N_CAUSES; i++)
        jsonl_u64(j, causes[i].name, retries_of(s, &causes[i]));
    jsonl_close(j, '}');
    jsonl_u64(j, "hedges", s->hedges);
    jsonl_u64(j, "hedges_won", s->hedges_won);
    jsonl_u64(j, "failed", s->failed);
    jsonl_object(j, "latency_ms");
    jsonl_fixed(j, "p50", (double)s->latency_ns_p50 / 1e6, 3);
    jsonl_fixed(j, "p90", (double)s->latency_ns_p90 / 1e6, 3);
    jsonl_fixed(j, "p99", (double)s->latency_ns_p99 / 1e6, 3);
    jsonl_fixed(j, "max", (double)s->latency_ns_max / 1e6, 3);
    jsonl_close(j, '}');
    jsonl_fixed(j, "dollars", s->dollars, 6);
    jsonl_u64(j, "estimated_gets", e->gets);
    jsonl_u64(j, "estimated_bytes", e->bytes);
    jsonl_fixed(j, "estimated_dollars", e->dollars, 6);
    jsonl_close(j, '}');
}

void remote_stats_print(FILE *f, const struct larder_remote_stats *s)
{
    char a[TEXT_MAX], b[TEXT_MAX], c[TEXT_MAX], d[TEXT_MAX];
    const char *between = ": ";

    fprintf(f, "      %s GETs (%s waited for, %s ahead), %s fetched, ", text_count(s->gets, a), text_count(s->demand_gets, b),
            text_count(s->stream_gets, c), text_size(s->bytes_fetched, d));
    fprintf(f, "%s used; %s repeated", text_size(s->bytes_used, a), text_count(s->retries, b));
    for (size_t i = 0; i < N_CAUSES; i++)
        if (retries_of(s, &causes[i]) > 0) {
            fprintf(f, "%s%s %s", between, text_count(retries_of(s, &causes[i]), a), causes[i].text);
            between = ", ";
        }
    if (s->hedges > 0)
        fprintf(f, "; %s asked twice, %s of them the second was first", text_count(s->hedges, a), text_count(s->hedges_won, b));
    if (s->dollars > 0)
        fprintf(f, "; $%.4f", s->dollars);
    fputc('\n', f);
}

void remote_estimate_print(FILE *f, uint64_t epoch, const struct larder_loader_estimate *e)
{
    char a[TEXT_MAX], b[TEXT_MAX];

    fprintf(f, "epoch %" PRIu64 ": about %s GETs, %s", epoch, text_count(e->gets, a), text_size(e->bytes, b));
    if (e->dollars > 0)
        fprintf(f, ", $%.*f", e->dollars < 0.01 ? 6 : 2, e->dollars);
    if (e->samples_cached > 0)
        fprintf(f, "; %s of %s samples are cached", text_count(e->samples_cached, a), text_count(e->samples, b));
    fputc('\n', f);
}
