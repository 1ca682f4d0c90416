/* SPDX-License-Identifier: Apache-2.0 */
/* What servers answer: errors, listings, uploads, STS; documents that are damaged, hostile, or something else. */
#include "tests/unit/test.h"
#include "tiers/s3.h"

#define XML "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"

static struct s3_error error_of(const char *text)
{
    struct s3_error e;

    memset(&e, 'x', sizeof(e));
    s3_error_parse(text, strlen(text), &e);
    return e;
}

TEST(errors)
{
    struct s3_error e = error_of(XML "<Error><Code>NoSuchKey</Code><Message>The key &lt;a&gt; &amp; more</Message><Key>a</Key></Error>");

    CHECK_STR(e.code, "NoSuchKey");
    CHECK_STR(e.message, "The key <a> & more");
    CHECK_STR(e.region, "");
    e = error_of(XML "<Error><Code>PermanentRedirect</Code><Message>m</Message><Endpoint>b.s3-eu-west-1.amazonaws.com</Endpoint>"
                     "<Region>eu-west-1</Region><Bucket>b</Bucket></Error>");
    CHECK_STR(e.endpoint, "b.s3-eu-west-1.amazonaws.com");
    CHECK_STR(e.region, "eu-west-1");
    e = error_of("<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type>"
                 "<Code>ExpiredTokenException</Code><Message>m</Message></Error></ErrorResponse>");
    CHECK_STR(e.code, "ExpiredTokenException");
    /* cut short, as http_transfer.text may be; no XML; nothing */
    e = error_of(XML "<Error><Code>SlowDown</Code><Message>Please red");
    CHECK_STR(e.code, "SlowDown");
    CHECK_STR(e.message, "");
    e = error_of("<html><body><h1>502 Bad Gateway</h1></body></html>");
    CHECK_STR(e.code, "");
    e = error_of("\xff\xfe\x01 no XML");
    CHECK_STR(e.code, "");
    e = error_of("");
    CHECK_STR(e.code, "");
}

TEST(long_error_is_cut)
{
    char text[1024];
    struct s3_error e;

    snprintf(text, sizeof(text), "<Error><Code>%0200d</Code><Message>%0300d</Message></Error>", 1, 2);
    e = error_of(text);
    CHECK_EQ(strlen(e.code), sizeof(e.code) - 1);
    CHECK_EQ(strlen(e.message), sizeof(e.message) - 1);
}

/* ---- listings ---- */

struct seen { char text[2048]; int n, stop_at; };

static int see(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    struct seen *s = user;
    size_t at = strlen(s->text);

    snprintf(s->text + at, sizeof(s->text) - at, "%s %" PRIu64 " %" PRIu64 "\n", name, size, mtime_s);
    return ++s->n == s->stop_at ? 77 : 0;
}

static int list(const char *text, struct seen *s, char **token, struct larder_error *err)
{
    memset(s, 0, sizeof(*s));
    return s3_list_parse(text, strlen(text), see, s, token, err);
}

TEST(listing)
{
    struct larder_error err;
    struct seen s;
    char *token;

    REQUIRE_OK(list(XML "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>b</Name><Prefix>in/</Prefix>"
                        "<KeyCount>2</KeyCount><IsTruncated>true</IsTruncated><NextContinuationToken>1/a+b=</NextContinuationToken>"
                        "<Contents><Key>in/a &amp; b%20+\xc3\xa9</Key><LastModified>1994-11-06T08:49:37.000Z</LastModified>"
                        "<ETag>&quot;x&quot;</ETag><Size>12</Size><StorageClass>STANDARD</StorageClass>"
                        "<Owner><ID>Key</ID></Owner></Contents>"
                        "<Contents><Size>18446744073709551609</Size><Key>in/c</Key></Contents>"
                        "<CommonPrefixes><Prefix>x/</Prefix></CommonPrefixes></ListBucketResult>", &s, &token, &err), &err);
    CHECK_STR(s.text, "in/a & b%20+\xc3\xa9 12 784111777\nin/c 18446744073709551609 0\n");
    CHECK_STR(token, "1/a+b=");
    free(token);

    /* encoding-type=url, said after the names; the last page */
    REQUIRE_OK(list("<ListBucketResult><Contents><Key>a+b%2B%25%01%C3%A9/</Key><Size>0</Size></Contents>"
                    "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated></ListBucketResult>", &s, &token, &err), &err);
    CHECK_STR(s.text, "a b+%\x01\xc3\xa9/ 0 0\n");
    CHECK(!token);
    REQUIRE_OK(list("<ListBucketResult/>", &s, &token, &err), &err);
    CHECK(!token && s.n == 0);
}

TEST(listing_stops_when_told)
{
    struct larder_error err;
    struct seen s = {.stop_at = 2};
    char *token;
    const char *text = "<ListBucketResult><Contents><Key>a</Key><Size>1</Size></Contents><Contents><Key>b</Key><Size>1</Size></Contents>"
                       "<Contents><Key>c</Key><Size>1</Size></Contents></ListBucketResult>";

    CHECK_EQ(s3_list_parse(text, strlen(text), see, &s, &token, &err), 77);
    CHECK_STR(s.text, "a 1 0\nb 1 0\n");
    CHECK(!token);
}

TEST(no_listing)
{
    static const char *const bad[] = {
        "", "x", "<html/>", "<Error><Code>AccessDenied</Code></Error>", "<ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>-1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a</Key><Size>18446744073709551616</Size></Contents></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%0</Key><Size>1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a%00b</Key><Size>1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>a\x01</Key><Size>1</Size></Contents></ListBucketResult>",
        "<ListBucketResult><Contents><Key>\xff</Key><Size>1</Size></Contents></ListBucketResult>",
    };
    struct larder_error err;
    struct seen s;
    char *token;

    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        CHECK_ERR(list(bad[i], &s, &token, &err), LARDER_ECORRUPT, &err);
        CHECK(!token);
    }
}

TEST(hostile_xml)
{
    struct larder_error err;
    struct seen s;
    char *token, *deep;

    CHECK_ERR(list("<!DOCTYPE x [<!ENTITY a \"aaaaaaaaaa\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;\">]>"
                   "<ListBucketResult><Contents><Key>&b;</Key><Size>1</Size></Contents></ListBucketResult>", &s, &token, &err),
              LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "document type"));
    CHECK_ERR(list("<!DOCTYPE x SYSTEM \"file:///etc/passwd\"><ListBucketResult/>", &s, &token, &err), LARDER_ECORRUPT, &err);
    CHECK_EQ(s.n, 0);

    deep = calloc(1, 100000);
    REQUIRE(deep);
    for (int i = 0; i < 30000; i++)
        memcpy(deep + 3 * i, "<a>", 3);
    CHECK_ERR(list(deep, &s, &token, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "deep"));
    memset(deep, 'k', 99999);
    memcpy(deep, "<ListBucketResult><Contents><Key>", 33);
    CHECK_ERR(list(deep, &s, &token, &err), LARDER_ECORRUPT, &err);
    CHECK(strstr(err.message, "too long"));
    free(deep);
}

/* ---- multipart uploads and STS ---- */

static int see_upload(void *user, const char *name, const char *id, uint64_t initiated_s)
{
    struct seen *s = user;
    size_t at = strlen(s->text);

    snprintf(s->text + at, sizeof(s->text) - at, "%s %s %" PRIu64 "\n", name, id, initiated_s);
    return 0;
}

TEST(uploads)
{
    struct larder_error err;
    struct seen s = {.n = 0};
    char *id, *etag, *key;
    bool more;
    const char *text = "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>2~x/y+z</UploadId></InitiateMultipartUploadResult>";

    REQUIRE_OK(s3_upload_id_parse(text, strlen(text), &id, &err), &err);
    CHECK_STR(id, "2~x/y+z");
    free(id);
    CHECK_ERR(s3_upload_id_parse("<a/>", 4, &id, &err), LARDER_ECORRUPT, &err);
    CHECK(!id);

    text = "<CompleteMultipartUploadResult><Location>l</Location><ETag>\"0123-2\"</ETag></CompleteMultipartUploadResult>";
    REQUIRE_OK(s3_complete_parse(text, strlen(text), &etag, &err), &err);
    CHECK_STR(etag, "\"0123-2\"");
    free(etag);
    text = XML "<Error><Code>InternalError</Code></Error>";
    CHECK_ERR(s3_complete_parse(text, strlen(text), &etag, &err), LARDER_ECORRUPT, &err);

    text = "<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k2</NextKeyMarker><NextUploadIdMarker>i2</NextUploadIdMarker>"
           "<Upload><Key>k1</Key><UploadId>i1</UploadId><Initiator><ID>Key</ID></Initiator><Initiated>1994-11-06T08:49:37Z</Initiated></Upload>"
           "<Upload><UploadId>i2</UploadId><Key>k2</Key></Upload></ListMultipartUploadsResult>";
    REQUIRE_OK(s3_uploads_parse(text, strlen(text), see_upload, &s, &more, &key, &id, &err), &err);
    CHECK_STR(s.text, "k1 i1 784111777\nk2 i2 0\n");
    CHECK(more);
    CHECK_STR(key, "k2");
    CHECK_STR(id, "i2");
    free(key);
    free(id);
    text = "<ListMultipartUploadsResult><Upload><Key>k</Key></Upload></ListMultipartUploadsResult>";
    CHECK_ERR(s3_uploads_parse(text, strlen(text), see_upload, &s, &more, &key, &id, &err), LARDER_ECORRUPT, &err);
    CHECK_ERR(s3_uploads_parse("<x/>", 4, see_upload, &s, &more, &key, &id, &err), LARDER_ECORRUPT, &err);
}

TEST(sts)
{
    struct larder_error err;
    struct s3_key k;
    const char *text = "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><AssumedRoleUser><Arn>a</Arn>"
                       "</AssumedRoleUser><Credentials><AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>s/+</SecretAccessKey>"
                       "<SessionToken>tok==</SessionToken><Expiration>1994-11-06T08:49:37Z</Expiration></Credentials></AssumeRoleResult>"
                       "</AssumeRoleResponse>";

    REQUIRE_OK(s3_sts_parse(text, strlen(text), &k, &err), &err);
    CHECK_STR(k.id, "ASIA1");
    CHECK_STR(k.secret, "s/+");
    CHECK_STR(k.token, "tok==");
    CHECK_EQ(k.expires_s, 784111777);
    s3_key_release(&k);
    text = "<r><Credentials><AccessKeyId>ASIA1</AccessKeyId><SecretAccessKey>verysecret</SecretAccessKey></Credentials></r>";
    CHECK_ERR(s3_sts_parse(text, strlen(text), &k, &err), LARDER_ECORRUPT, &err);
    CHECK(!strstr(err.message, "verysecret"));
}

TEST_MAIN();
