/* SPDX-License-Identifier: Apache-2.0 */
/* The Nth allocation fails in what s3*.c does without a network: signing, answers, places, profiles; and the Nth allocation or system
 * call in making a scratch folder. Either it fails cleanly, with a code and a message, or the result is right. */
#include "tests/fault/fault.h"
#include "tests/unit/test.h"
#include "tiers/remote_io_int.h"

static int do_sign(struct larder_error *err)
{
    struct s3_key key = {.id = "AKIDEXAMPLE", .secret = "secret", .token = (char *)"token"};
    const char *headers[] = {"range: bytes=0-9", "x-amz-request-payer: requester"};
    struct s3_sign_input in = {.method = "GET", .host = "h", .path = "/k", .query = "", .headers = headers, .n_headers = 2,
                               .payload_sha256 = "UNSIGNED-PAYLOAD", .region = "r", .service = "s3", .time_s = 1440938160, .key = &key};
    char date[17], *authorization;
    int rc = s3_sign(&in, date, &authorization, err);

    if (rc == LARDER_OK)
        CHECK(strstr(authorization, "Signature="));
    else
        CHECK(!authorization);
    free(authorization);
    return rc;
}

static int do_place(struct larder_error *err)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
    struct s3_place p = {NULL};

    o.endpoint = "http://h:81/x";
    int rc = s3_place_parse("s3://bkt/a/b", &o, NULL, &p, err);
    if (rc == LARDER_OK)
        CHECK_STR(p.base, "/x/bkt/");
    else
        CHECK(!p.scheme && !p.prefix);
    s3_place_release(&p);
    return rc;
}

static int do_creds(struct larder_error *err)
{
    struct s3_creds *c;
    struct s3_key k = {.token = NULL};
    int rc = s3_creds_open(NULL, "ml", false, &c, err);

    if (rc == LARDER_OK)
        rc = s3_creds_get(c, &k, err);
    if (rc == LARDER_OK)
        CHECK_STR(k.id, "ID");
    s3_key_release(&k);
    s3_creds_close(c);
    return rc;
}

static int object(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    (void)name, (void)size, (void)mtime_s;
    ++*(int *)user;
    return 0;
}

static int upload(void *user, const char *name, const char *id, uint64_t initiated_s)
{
    (void)name, (void)id, (void)initiated_s;
    ++*(int *)user;
    return 0;
}

static int do_answers(struct larder_error *err)
{
    static const char list[] = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><Contents>"
                               "<Key>a</Key><Size>1</Size></Contents></ListBucketResult>";
    static const char uploads[] = "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
                                  "<NextUploadIdMarker>i</NextUploadIdMarker><Upload><Key>k</Key><UploadId>i</UploadId></Upload>"
                                  "</ListMultipartUploadsResult>";
    static const char sts[] = "<r><Credentials><AccessKeyId>A</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
                              "</Credentials></r>";
    char *a = NULL, *b = NULL;
    struct s3_key k;
    bool more;
    int n = 0, rc = s3_list_parse(list, sizeof(list) - 1, object, &n, &a, err);

    CHECK(rc == LARDER_OK ? n == 1 && a : !a);
    free(a);
    if (rc == LARDER_OK) {
        rc = s3_uploads_parse(uploads, sizeof(uploads) - 1, upload, &n, &more, &a, &b, err);
        CHECK(rc == LARDER_OK ? n == 2 && a && b : !a && !b);
        free(a);
        free(b);
    }
    if (rc == LARDER_OK && (rc = s3_sts_parse(sts, sizeof(sts) - 1, &k, err)) == LARDER_OK)
        s3_key_release(&k);
    return rc;
}

static const char *scratch;

static int do_scratch(struct larder_error *err)
{
    char *path;
    int rc = scratch_make(scratch, "key", &path, err);

    CHECK((rc == LARDER_OK) == (path != NULL));
    if (path)
        rmdir(path);
    free(path);
    return rc;
}

static void sweep(enum fault_kind kind, int (*what)(struct larder_error *err))
{
    for (long n = 1; n < 1000; n++) {
        struct larder_error err = {0};
        fault_arm(kind, n);
        int rc = what(&err);
        if (!fault_disarm()) {
            CHECK_OK(rc, &err);
            CHECK(n > 1);
            return;
        }
        if (rc) {
            CHECK(rc == (kind == FAULT_ALLOC ? LARDER_ENOMEM : LARDER_EIO));
            CHECK(err.code == rc && err.message[0]);
        }
    }
    CHECK(!"the sweep ends");
}

TEST(allocations)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/config", tmp_dir());
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    fputs("[profile ml]\naws_access_key_id = ID\naws_secret_access_key = s\naws_session_token = t\nregion = r\nservices = x\n[services x]\n"
          "s3 =\n  endpoint_url = http://h\n", f);
    REQUIRE(fclose(f) == 0);
    setenv("AWS_CONFIG_FILE", path, 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
    scratch = tmp_dir();
    sweep(FAULT_ALLOC, do_sign);
    sweep(FAULT_ALLOC, do_place);
    sweep(FAULT_ALLOC, do_creds);
    sweep(FAULT_ALLOC, do_answers);
    sweep(FAULT_ALLOC, do_scratch);
}

TEST(folders)
{
    scratch = tmp_dir();
    sweep(FAULT_IO, do_scratch);
}

TEST_MAIN();
