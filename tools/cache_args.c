/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_args.c - the options that describe a cache: --dram, --nvme, --cache-name, --replacement, --no-pin,
 * --cuda, --metrics.
 *
 * Without --dram and --nvme there is no cache; with --nvme alone its DRAM is off. Who names a directory wants it used:
 * records of local datasets are copied there too.
 */
#include <stdlib.h>
#include <string.h>

#include "tools/tools.h"

void cache_args_init(struct cache_args *a)
{
    *a = (struct cache_args){.o = LARDER_CACHE_OPTIONS_INIT};
    a->o.dram_bytes = LARDER_DRAM_OFF;
    a->o.copy_local = 1;
}

void option_dram(struct tool *t, struct cache_args *a)
{
    if (strcmp(t->value, "auto") == 0) {
        a->o.dram_bytes = LARDER_DRAM_DEFAULT;
        a->wanted = 1;
        return;
    }
    uint64_t bytes = 0;

    option_size(t, 1, UINT64_MAX - 1, &bytes);
    a->o.dram_bytes = bytes;
    a->wanted = 1;
}

/* DIR:SIZE; the last colon counts. */
void option_nvme(struct tool *t, struct cache_args *a)
{
    const char *colon = strrchr(t->value, ':');
    struct larder_cache_nvme *n = &a->nvme[a->o.n_nvme];

    if (a->o.n_nvme == CACHE_ARGS_NVME) {
        tool_usage(t, "--nvme: %d directories are the most", CACHE_ARGS_NVME);
        return;
    }
    if (!colon || colon == t->value || parse_size(colon + 1, &n->bytes) || n->bytes == 0) {
        option_bad(t, "DIR:SIZE such as /nvme/cache:200GB");
        return;
    }
    n->dir = a->dirs[a->o.n_nvme] = strndup(t->value, (size_t)(colon - t->value));
    if (!n->dir) {
        tool_nomem(t);
        return;
    }
    a->o.n_nvme++;
    a->wanted = 1;
}

void option_replacement(struct tool *t, struct cache_args *a)
{
    static const char *const names[] = {"none", "fifo", NULL};

    option_choice(t, names, &a->o.replacement);
}

void option_cuda(struct tool *t, struct cache_args *a)
{
    unsigned device = 0;

    if (strcmp(t->value, "off") == 0) {
        a->o.cuda_device = LARDER_CUDA_IF_USED; /* and nothing here uses it */
        return;
    }
    option_unsigned(t, 0, 1023, &device);
    a->o.cuda_device = LARDER_CUDA_DEVICE((int)device);
}

int cache_args_open(struct tool *t, struct cache_args *a, struct larder_cache **cache)
{
    struct larder_error err = {0};

    *cache = NULL;
    if (!a->wanted)
        return EXIT_DONE;
    a->o.nvme = a->nvme;
    if (larder_cache_open(&a->o, cache, &err))
        return tool_error(t, &err);
    cache_args_warn(t, a, *cache);
    return EXIT_DONE;
}

/* A warning's text stays where it is until the cache is closed. */
void cache_args_warn(const struct tool *t, struct cache_args *a, const struct larder_cache *cache)
{
    const char *warning;

    for (size_t i = 0; cache && (warning = larder_cache_warning(cache, i)); i++) {
        size_t k = 0;

        while (k < a->n_warned && a->warned[k] != warning)
            k++;
        if (k < a->n_warned || k == sizeof(a->warned) / sizeof(a->warned[0]))
            continue;
        a->warned[a->n_warned++] = warning;
        fprintf(stderr, "larder %s: warning: %s\n", t->verb->name, warning);
    }
}

void cache_args_release(struct cache_args *a)
{
    for (int i = 0; i < CACHE_ARGS_NVME; i++)
        free(a->dirs[i]);
}

int cache_args_metrics(struct tool *t, const struct cache_args *a, const struct larder_loader *ld)
{
    struct larder_error err = {0};

    if (!a->metrics)
        return EXIT_DONE;
    return larder_loader_metrics(ld, a->metrics, &err) ? tool_error(t, &err) : EXIT_DONE;
}
