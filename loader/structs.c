/* SPDX-License-Identifier: Apache-2.0 */
/*
 * structs.c - structs of callers that begin with struct_size, in and out: a caller may have been compiled with another header than ours.
 *
 * A larger one, of a newer header, is taken when what this library does not know is zero; a smaller one is EINVAL. Pure.
 */
#include "loader/loader_int.h"

/* The struct_size that begins every options and result struct. */
static size_t size_of(const void *s)
{
    size_t size;

    memcpy(&size, s, sizeof(size));
    return size;
}

int options_take(const void *opts, void *out, size_t size, const char *what, struct larder_error *err)
{
    const uint8_t *bytes = opts;
    size_t theirs, i;

    if (!opts)
        return 0;
    theirs = size_of(opts);
    if (theirs < size || theirs - size > 4096)
        return err_set(err, LARDER_EINVAL, "%s.struct_size is %zu, not %zu: begin with its ..._INIT", what, theirs, size);
    for (i = size; i < theirs; i++)
        if (bytes[i])
            return err_set(err, LARDER_EINVAL, "%s: an option that larder %s does not know is set (byte %zu)", what,
                           LARDER_VERSION, i);
    memcpy(out, opts, size);
    memcpy(out, &size, sizeof(size));
    return 0;
}

int result_check(const void *result, size_t size, const char *what, struct larder_error *err)
{
    if (!result)
        return err_set(err, LARDER_EINVAL, "%s is NULL", what);
    if (size_of(result) < size || size_of(result) - size > 4096)
        return err_set(err, LARDER_EINVAL, "%s.struct_size is %zu, not %zu: set it before the call", what, size_of(result), size);
    return 0;
}

void result_give(void *result, const void *filled, size_t size)
{
    size_t theirs;

    if (!result)
        return;
    theirs = size_of(result);
    memcpy(result, filled, size);
    memset((uint8_t *)result + size, 0, theirs - size);
    memcpy(result, &theirs, sizeof(theirs));
}
