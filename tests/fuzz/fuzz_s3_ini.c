/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as a shared credentials file. */
#include "tiers/s3.h"

static int take(void *user, const char *section, const char *name, const char *value)
{
    size_t *n = user;

    *n += strlen(section) + strlen(name) + strlen(value);
    if (strpbrk(name, "=\n") || strchr(value, '\n') || strpbrk(section, "]\n"))
        abort();
    return *n > (size_t)1 << 30;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n = 0;

    s3_ini_parse((const char *)data, size, take, &n, NULL);
    return 0;
}
