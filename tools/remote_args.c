/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_args.c - the options that say how a bucket or a web server is reached, the same for every verb that takes a dataset.
 *
 * options_next() adds remote_option_specs to the table of such a verb and keeps what it reads in tool->remote, so a verb's own loop never sees
 * them; `larder help remote` lists them. What is not given stays 0 or NULL: the library's default, after the environment and the shared
 * files of AWS's tools.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

enum { ENDPOINT, REGION, PROFILE, CA_BUNDLE, INSECURE, ANONYMOUS, REQUESTER_PAYS, ADDRESSING, LOOPS, REQUESTS, CONNECT_TIMEOUT,
       STALL_TIMEOUT, TIMEOUT, TRIES, HEDGE, GAP, GET_SIZE, SCRATCH, SCRATCH_SIZE, PRICE_GET, PRICE_PUT, PRICE_GB, SINGLE_WRITER };

const struct option_spec remote_option_specs[] = {
    [ENDPOINT] = {"endpoint", 0, "URL", "AWS_ENDPOINT_URL, AWS", "server with S3's dialect"},
    [REGION] = {"region", 0, "NAME", "AWS_REGION, us-east-1", "where the bucket is"},
    [PROFILE] = {"profile", 0, "NAME", "AWS_PROFILE, default", "of ~/.aws/credentials and ~/.aws/config"},
    [CA_BUNDLE] = {"ca-bundle", 0, "FILE", "AWS_CA_BUNDLE", "certificates to trust, instead of the system's"},
    [INSECURE] = {"insecure", 0, NULL, NULL, "do not verify the server's certificate"},
    [ANONYMOUS] = {"anonymous", 0, NULL, NULL, "do not sign requests, for public buckets"},
    [REQUESTER_PAYS] = {"requester-pays", 0, NULL, NULL, "agree to pay for a requester-pays bucket"},
    [ADDRESSING] = {"addressing", 0, "HOW", "auto", "auto, path (host/bucket) or virtual (bucket.host)"},
    [LOOPS] = {"loops", 0, "N", "1", "threads that move bytes"},
    [REQUESTS] = {"requests", 0, "N", "64", "in flight at once, a connection each"},
    [CONNECT_TIMEOUT] = {"connect-timeout", 0, "TIME", "10s", "to be connected"},
    [STALL_TIMEOUT] = {"stall-timeout", 0, "TIME", "20s", "without a byte, then a request is repeated"},
    [TIMEOUT] = {"timeout", 0, "TIME", "120s", "of a request with its retries; bench: of a batch too"},
    [TRIES] = {"tries", 0, "N", "10", "of a request, then it fails"},
    [HEDGE] = {"hedge", 0, "PERCENT", "0", "ask again for the slowest percent, 20 at most"},
    [GAP] = {"gap", 0, "SIZE|never", "256KiB", "records this near travel in one GET"},
    [GET_SIZE] = {"get-size", 0, "SIZE", "8MiB", "largest GET"},
    [SCRATCH] = {"scratch", 0, "DIR", "LARDER_SCRATCH, ~/.cache/larder", "for journals and parts of indexes"},
    [SCRATCH_SIZE] = {"scratch-size", 0, "SIZE", "256MiB", "limit of those parts of indexes"},
    [PRICE_GET] = {"price-get", 0, "DOLLARS", NULL, "for 1,000 GETs, for estimates"},
    [PRICE_PUT] = {"price-put", 0, "DOLLARS", NULL, "for 1,000 PUTs"},
    [PRICE_GB] = {"price-gb", 0, "DOLLARS", NULL, "for 10^9 bytes that leave the bucket"},
    [SINGLE_WRITER] = {"single-writer", 0, NULL, NULL, "nobody else writes: for servers that ignore If-None-Match"},
    OPTION_END,
};

static const struct verb remote_topic = {
    .name = "remote",
    .summary = "Buckets and web servers, for every verb that takes a DATASET.",
    .about = "A dataset is named s3://BUCKET/PREFIX, or http://HOST/PREFIX and https://HOST/PREFIX,\n"
             "which are only read. Credentials and places are found as AWS's own tools find them:\n"
             "the environment, ~/.aws/credentials and ~/.aws/config, web identity, the endpoints of\n"
             "containers and of EC2. They never come from options, which others can see.\n",
    .example = "  larder ingest photos/ s3://bucket/photos --region eu-west-1\n"
               "  larder bench s3://bucket/photos --endpoint https://minio.example:9000 --nvme /nvme:200GB\n"
               "  larder ls https://data.example/photos\n",
    .options = remote_option_specs,
};

void remote_help(FILE *f)
{
    options_help(&remote_topic, f);
}

int remote_is(const char *uri)
{
    return !strncmp(uri, "s3://", 5) || !strncmp(uri, "http://", 7) || !strncmp(uri, "https://", 8);
}

static void option_timeout(struct tool *t, unsigned *ms)
{
    uint64_t v;

    if (parse_milliseconds(t->value, &v) || v == 0 || v > UINT32_MAX)
        option_bad(t, "a time such as 20s, 500ms or 2m");
    else
        *ms = (unsigned)v;
}

static void option_dollars(struct tool *t, double *v)
{
    char *end;
    double d = strtod(t->value, &end);

    if (*end || end == t->value || !isfinite(d) || d < 0)
        option_bad(t, "a price in dollars such as 0.0004");
    else
        *v = d;
}

static void option_gap(struct tool *t, uint64_t *v)
{
    if (!strcmp(t->value, "never"))
        *v = UINT64_MAX;
    else
        option_size(t, 1, UINT64_MAX - 1, v);
}

void option_remote(struct tool *t, int row)
{
    static const char *const addressings[] = {"auto", "path", "virtual", NULL};
    struct larder_remote_options *o = &t->remote;

    switch (row) {
    case ENDPOINT: o->endpoint = t->value; break;
    case REGION: o->region = t->value; break;
    case PROFILE: o->profile = t->value; break;
    case CA_BUNDLE: o->ca_bundle = t->value; break;
    case INSECURE: o->insecure = 1; break;
    case ANONYMOUS: o->anonymous = 1; break;
    case REQUESTER_PAYS: o->requester_pays = 1; break;
    case ADDRESSING: option_choice(t, addressings, &o->addressing); break;
    case LOOPS: option_unsigned(t, 1, 64, &o->loops); break;
    case REQUESTS: option_unsigned(t, 1, 4096, &o->requests_max); break;
    case CONNECT_TIMEOUT: option_timeout(t, &o->connect_timeout_ms); break;
    case STALL_TIMEOUT: option_timeout(t, &o->stall_timeout_ms); break;
    case TIMEOUT: option_timeout(t, &o->timeout_ms); break;
    case TRIES: option_unsigned(t, 1, 1000, &o->tries_max); break;
    case HEDGE: option_unsigned(t, 0, 20, &o->hedge_percent); break;
    case GAP: option_gap(t, &o->gap_bytes); break;
    case GET_SIZE: option_size(t, 4096, 1u << 30, &o->get_bytes); break;
    case SCRATCH: o->scratch = t->value; break;
    case SCRATCH_SIZE: option_size(t, 1, UINT64_MAX, &o->scratch_bytes); break;
    case PRICE_GET: option_dollars(t, &o->price_get); break;
    case PRICE_PUT: option_dollars(t, &o->price_put); break;
    case PRICE_GB: option_dollars(t, &o->price_gb); break;
    case SINGLE_WRITER: o->single_writer = 1; break;
    }
}
