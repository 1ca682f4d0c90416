/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache_api.c - larder.h's cache: argument checks and glue over tiers/cache.c.
 *
 * struct larder_cache is struct tiers_cache by another name: the loader has nothing to add to it. Any thread enters after
 * opening.
 */
#include "loader/loader_int.h"

struct tiers_cache *cache_of(const struct larder_cache *c) { return (struct tiers_cache *)(uintptr_t)c; }

int larder_cache_open(const struct larder_cache_options *opts, struct larder_cache **out, struct larder_error *err)
{
    struct larder_cache_options o = LARDER_CACHE_OPTIONS_INIT;
    struct tiers_cache *c;
    int rc;

    if (!out)
        return err_set(err, LARDER_EINVAL, "larder_cache_open: cache is NULL");
    *out = NULL;
    rc = options_take(opts, &o, sizeof(o), "larder_cache_options", err);
    if (rc == 0)
        rc = tiers_cache_open(&o, &c, err);
    if (rc == 0)
        *out = (struct larder_cache *)c;
    return rc;
}

void larder_cache_close(struct larder_cache *c)
{
    tiers_cache_close(cache_of(c));
}

int larder_cache_stats(const struct larder_cache *c, struct larder_cache_stats *stats, struct larder_error *err)
{
    struct larder_cache_stats s;
    int rc = tiers_cache_check(cache_of(c), err);

    if (rc == 0)
        rc = result_check(stats, sizeof(s), "larder_cache_stats", err);
    if (rc)
        return rc;
    tiers_cache_stats(cache_of(c), &s);
    result_give(stats, &s, sizeof(s));
    return 0;
}

const char *larder_cache_warning(const struct larder_cache *c, size_t i)
{
    return tiers_cache_check(cache_of(c), NULL) ? NULL : tiers_cache_warning(cache_of(c), i);
}

int larder_cache_metrics(const struct larder_cache *c, const char *path, struct larder_error *err)
{
    AUTO_BUF struct buf text = BUF_INIT;
    int rc = tiers_cache_check(cache_of(c), err);

    if (rc)
        return rc;
    if (!path || !*path)
        return err_set(err, LARDER_EINVAL, "larder_cache_metrics: path is %s", path ? "empty" : "NULL");
    rc = tiers_cache_text(cache_of(c), &text, err);
    return rc ? rc : metrics_write(path, &text, err);
}

int larder_cache_dir_info(const char *dir, struct larder_cache_dir_info *info, struct larder_cache_dataset *datasets, size_t cap,
                          struct larder_error *err)
{
    struct larder_cache_dir_info i = {.struct_size = sizeof(i)};
    int rc = result_check(info, sizeof(i), "larder_cache_dir_info", err);

    if (rc == 0 && (!dir || !*dir || (cap && !datasets)))
        rc = err_set(err, LARDER_EINVAL, "larder_cache_dir_info: %s", !dir || !*dir ? "no directory" : "datasets is NULL");
    if (rc == 0)
        rc = tiers_cache_dir_info(dir, &i, datasets, cap, err);
    if (rc == 0)
        result_give(info, &i, sizeof(i));
    return rc;
}

int larder_cache_dir_clear(const char *dir, uint64_t *freed, struct larder_error *err)
{
    uint64_t bytes = 0;
    int rc = dir && *dir ? tiers_cache_dir_clear(dir, &bytes, err) : err_set(err, LARDER_EINVAL, "larder_cache_dir_clear: no directory");

    if (rc == 0 && freed)
        *freed = bytes;
    return rc;
}
