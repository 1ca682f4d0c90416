/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mix_args.c - the options of bench that mix datasets: --mix DATASET[:WEIGHT], as often as there are more, --mix-weight of the first one.
 *
 * What stands behind the last colon is a weight when it is a number above 0; so names may have colons, as buckets' have. Either all
 * datasets have a weight or none has: then they are mixed by size.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

static int parse_weight(const char *s, double *w)
{
    char *end;

    *w = strtod(s, &end);
    return *s && !*end && *w > 0 && *w < 1e300 ? 0 : -1;
}

void option_mix_weight(struct tool *t, struct mix_args *a)
{
    if (parse_weight(t->value, &a->source[0].weight))
        option_bad(t, "a weight above 0 such as 0.7");
}

void option_mix(struct tool *t, struct mix_args *a)
{
    const char *colon = strrchr(t->value, ':');
    size_t len = strlen(t->value);
    double weight = 0;

    if (a->n == MIX_ARGS_MAX) {
        tool_usage(t, "--mix: %d datasets are the most", MIX_ARGS_MAX);
        return;
    }
    if (colon && parse_weight(colon + 1, &weight) == 0)
        len = (size_t)(colon - t->value);
    if (len == 0) {
        option_bad(t, "DATASET or DATASET:WEIGHT such as /data/more:0.3");
        return;
    }
    a->uri[a->n] = strndup(t->value, len);
    if (!a->uri[a->n]) {
        tool_nomem(t);
        return;
    }
    a->source[a->n++].weight = weight;
}

void mix_args_init(struct mix_args *a)
{
    *a = (struct mix_args){.n = 1};
    for (size_t i = 0; i < MIX_ARGS_MAX; i++)
        a->source[i] = (struct larder_mix_source)LARDER_MIX_SOURCE_INIT;
}

int mix_args_check(struct tool *t, const struct mix_args *a)
{
    if (a->n == 1 && (a->source[0].weight > 0 || a->stop))
        return tool_usage(t, "--%s needs --mix DATASET", a->stop ? "mix-stop" : "mix-weight");
    for (size_t i = 1; i < a->n; i++)
        if ((a->source[i].weight > 0) != (a->source[0].weight > 0))
            return tool_usage(t, "--mix: either all datasets have a weight, the first one by --mix-weight, or none has");
    return EXIT_DONE;
}

int mix_args_open(struct tool *t, struct mix_args *a, const struct larder_dataset_options *o, struct larder_dataset *first)
{
    a->source[0].ds = first;
    for (size_t i = 1; i < a->n; i++)
        if (tool_open(t, a->uri[i], o, &a->source[i].ds))
            return t->status;
    return EXIT_DONE;
}

void mix_args_close(struct mix_args *a)
{
    for (size_t i = 1; i < a->n; i++) {
        larder_dataset_close(a->source[i].ds);
        a->source[i].ds = NULL;
        free(a->uri[i]);
    }
    a->n = 1;
}
