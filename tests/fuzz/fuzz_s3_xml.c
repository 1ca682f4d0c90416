/* SPDX-License-Identifier: Apache-2.0 */
/* Any text as each of the answers of S3 and STS. */
#include "tiers/s3.h"

static int object(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    uint64_t *n = user;
    *n += strlen(name) + (size & 1) + (mtime_s & 1);
    return *n > 100000;
}

static int upload(void *user, const char *name, const char *id, uint64_t initiated_s)
{
    uint64_t *n = user;
    *n += strlen(name) + strlen(id) + (initiated_s & 1);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    uint64_t n = 0;
    struct s3_error e;
    struct s3_key k;
    char *a, *b;
    bool more;

    s3_error_parse(text, size, &e);
    if (strlen(e.code) >= sizeof(e.code) || strlen(e.message) >= sizeof(e.message))
        abort();
    if (s3_list_parse(text, size, object, &n, &a, NULL) && a)
        abort();
    free(a);
    s3_upload_id_parse(text, size, &a, NULL);
    free(a);
    s3_complete_parse(text, size, &a, NULL);
    free(a);
    s3_uploads_parse(text, size, upload, &n, &more, &a, &b, NULL);
    if (more && !a)
        abort();
    free(a);
    free(b);
    if (s3_sts_parse(text, size, &k, NULL) == LARDER_OK)
        s3_key_release(&k);
    return 0;
}
