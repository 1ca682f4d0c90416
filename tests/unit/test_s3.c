/* SPDX-License-Identifier: Apache-2.0 */
/* From URIs, options, environment and profile to places; what is wrong is said. */
#include "tests/unit/http_fake.h" /* nothing is sent */
#include "tiers/s3.h"

static void clean_environment(void)
{
    static const char *const names[] = {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE",
                                        "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"};

    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unsetenv(names[i]);
    setenv("HOME", tmp_dir(), 1);
    setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
}

/* "scheme host base prefix region" */
static const char *place(const char *uri, const struct larder_remote_options *o, const struct s3_creds *c)
{
    static char text[2048];
    struct larder_error err;
    struct s3_place p;

    if (s3_place_parse(uri, o, c, &p, &err))
        return strcpy(text, err.message);
    snprintf(text, sizeof(text), "%s %s %s '%s' %s%s", p.scheme, p.host, p.base, p.prefix, p.region, p.requester_pays ? " pays" : "");
    s3_place_release(&p);
    return text;
}

TEST(aws)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;

    clean_environment();
    CHECK_STR(place("s3://bkt", &o, NULL), "https bkt.s3.us-east-1.amazonaws.com / '' us-east-1");
    CHECK_STR(place("s3://bkt/", NULL, NULL), "https bkt.s3.us-east-1.amazonaws.com / '' us-east-1");
    CHECK_STR(place("S3://bkt/a/b", &o, NULL), "https bkt.s3.us-east-1.amazonaws.com / 'a/b/' us-east-1");
    CHECK_STR(place("s3://bkt/a b%20?#+/", &o, NULL), "https bkt.s3.us-east-1.amazonaws.com / 'a b%20?#+/' us-east-1");
    CHECK_STR(place("s3://bkt//a//", &o, NULL), "https bkt.s3.us-east-1.amazonaws.com / '/a//' us-east-1");
    o.region = "eu-west-1";
    CHECK_STR(place("s3://my.bkt.x/p", &o, NULL), "https s3.eu-west-1.amazonaws.com /my.bkt.x/ 'p/' eu-west-1");
    o.addressing = LARDER_S3_PATH;
    o.requester_pays = 1;
    CHECK_STR(place("s3://bkt/p", &o, NULL), "https s3.eu-west-1.amazonaws.com /bkt/ 'p/' eu-west-1 pays");
    o.addressing = LARDER_S3_VIRTUAL;
    o.region = "cn-north-1";
    o.requester_pays = 0;
    CHECK_STR(place("s3://my.bkt", &o, NULL), "https my.bkt.s3.cn-north-1.amazonaws.com.cn / '' cn-north-1");
}

TEST(endpoints)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;

    clean_environment();
    o.endpoint = "http://127.0.0.1:9000";
    CHECK_STR(place("s3://bkt/p", &o, NULL), "http 127.0.0.1:9000 /bkt/ 'p/' us-east-1");
    CHECK_STR(place("s3://My_Bucket/p", &o, NULL), "http 127.0.0.1:9000 /My_Bucket/ 'p/' us-east-1");
    o.endpoint = "https://Minio.Example:443//";
    CHECK_STR(place("s3://bkt", &o, NULL), "https minio.example /bkt/ '' us-east-1");
    o.endpoint = "http://h:80/a/b%20c/";
    CHECK_STR(place("s3://bkt", &o, NULL), "http h /a/b%20c/bkt/ '' us-east-1");
    o.addressing = LARDER_S3_VIRTUAL;
    CHECK_STR(place("s3://bkt", &o, NULL), "http bkt.h /a/b%20c/ '' us-east-1");
    o.addressing = LARDER_S3_AUTO;
    o.endpoint = "http://[::1]:9000";
    CHECK_STR(place("s3://bkt", &o, NULL), "http [::1]:9000 /bkt/ '' us-east-1");
    o.endpoint = "https://s3.eu-central-1.amazonaws.com";
    CHECK_STR(place("s3://bkt", &o, NULL), "https bkt.s3.eu-central-1.amazonaws.com / '' us-east-1");
    o.endpoint = "https://acc.r2.cloudflarestorage.com";
    o.region = "auto";
    CHECK_STR(place("s3://bkt/x", &o, NULL), "https acc.r2.cloudflarestorage.com /bkt/ 'x/' auto");
}

TEST(environment)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;

    clean_environment();
    setenv("AWS_DEFAULT_REGION", "eu-west-2", 1);
    CHECK_STR(place("s3://bkt", &o, NULL), "https bkt.s3.eu-west-2.amazonaws.com / '' eu-west-2");
    setenv("AWS_REGION", "eu-west-3", 1);
    setenv("AWS_ENDPOINT_URL", "http://one", 1);
    CHECK_STR(place("s3://bkt", &o, NULL), "http one /bkt/ '' eu-west-3");
    setenv("AWS_ENDPOINT_URL_S3", "http://two", 1);
    CHECK_STR(place("s3://bkt", &o, NULL), "http two /bkt/ '' eu-west-3");
    o.endpoint = "http://three";
    o.region = "r";
    CHECK_STR(place("s3://bkt", &o, NULL), "http three /bkt/ '' r");
    o.endpoint = NULL;
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
    CHECK_STR(place("s3://bkt", &o, NULL), "https bkt.s3.r.amazonaws.com / '' r");
    clean_environment();
}

TEST(profile)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
    struct larder_error err;
    struct s3_creds *c;
    char path[256];

    clean_environment();
    snprintf(path, sizeof(path), "%s/config", tmp_dir());
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    fputs("[default]\nregion = us-west-1\n[profile ml]\nregion = eu-north-1\nendpoint_url = http://all\ns3 =\n  addressing_style = virtual\n"
          "[profile sv]\nservices = my\nendpoint_url = http://all\n[services my]\ns3 =\n  endpoint_url = http://mine:81/x\n"
          "dynamodb =\n  endpoint_url = http://other\n", f);
    REQUIRE(fclose(f) == 0);
    setenv("AWS_CONFIG_FILE", path, 1);
    REQUIRE_OK(s3_creds_open(NULL, NULL, false, &c, &err), &err);
    CHECK_STR(place("s3://bkt", &o, c), "https bkt.s3.us-west-1.amazonaws.com / '' us-west-1");
    s3_creds_close(c);
    REQUIRE_OK(s3_creds_open(NULL, "ml", false, &c, &err), &err);
    CHECK_STR(place("s3://bkt", &o, c), "http bkt.all / '' eu-north-1");
    s3_creds_close(c);
    REQUIRE_OK(s3_creds_open(NULL, "sv", true, &c, &err), &err);
    CHECK_STR(place("s3://bkt", &o, c), "http mine:81 /x/bkt/ '' us-east-1");
    s3_creds_close(c);
    CHECK_ERR(s3_creds_open(NULL, "nobody", false, &c, &err), LARDER_EINVAL, &err);
    CHECK(strstr(err.message, "nobody") && strstr(err.message, path));
    clean_environment();
}

static void refused(const char *uri, const struct larder_remote_options *o, const char *says)
{
    struct larder_error err;
    struct s3_place p;

    CHECK_ERR(s3_place_parse(uri, o, NULL, &p, &err), LARDER_EINVAL, &err);
    if (!strstr(err.message, says))
        CHECK_STR(err.message, says);
    CHECK(!strstr(err.message, "hunter2"));
}

TEST(bad_uris)
{
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;
    char longer[1200];

    clean_environment();
    refused("", &o, "not an S3 URI");
    refused("/a", &o, "not an S3 URI");
    refused("s3:/bkt", &o, "not an S3 URI");
    refused("s3://", &o, "bucket's name is missing");
    refused("s3:///a", &o, "bucket's name is missing");
    refused("s3://ab/x", &o, "3 to 63");
    refused("s3://abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmn", &o, "3 to 63");
    refused("s3://Bucket", &o, "lower-case");
    refused("s3://my_bucket", &o, "lower-case");
    refused("s3://-bkt", &o, "begins and ends");
    refused("s3://bkt.", &o, "begins and ends");
    refused("s3://a..b", &o, "beside another");
    refused("s3://10.0.0.1/x", &o, "IP address");
    refused("s3://127.0.0.1:9000/bkt", &o, "AWS_ENDPOINT_URL");
    refused("s3://AKID:hunter2@bkt/x", &o, "do not belong");
    refused("s3://AKID:hun/hunter2@bkt/x", &o, "do not belong");
    refused("s3://bkt/a/../b", &o, "no folders");
    refused("s3://bkt/.", &o, "no folders");
    refused("s3://bkt/a\nb", &o, "control characters");
    refused("s3://bkt/\xff", &o, "UTF-8");
    refused("s3://bkt/\xed\xa0\x80", &o, "UTF-8");
    memset(longer, 'a', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    memcpy(longer, "s3://bkt/", 9);
    refused(longer, &o, "900 bytes");
}

TEST(bad_options)
{
    static const char *const endpoints[] = {"127.0.0.1:9000", "ftp://h", "http://", "http:///x", "http://h:0", "http://h:65536", "http://h:9x",
                                            "http://h:", "http://[::1", "http://[zz]:1", "http://h h", "http://h/x?y", "http://h/x#y",
                                            "http://h/a/../b", "http://-h", "https://u:hunter2@h", "http://u:hunt/hunter2@h", "u:hunter2@h"};
    struct larder_remote_options o = LARDER_REMOTE_OPTIONS_INIT;

    clean_environment();
    for (size_t i = 0; i < ARRAY_LEN(endpoints); i++) {
        o.endpoint = endpoints[i];
        refused("s3://bkt", &o, "ndpoint");
    }
    o.endpoint = "http://10.0.0.1";
    o.addressing = LARDER_S3_VIRTUAL;
    refused("s3://bkt", &o, "virtual hosts");
    o.addressing = 7;
    refused("s3://bkt", &o, "addressing");
    o.addressing = 0;
    o.region = "a.b/c";
    refused("s3://bkt", &o, "region");
    o.region = "eu\r\nx-evil: 1";
    refused("s3://bkt", &o, "region");
}

TEST_MAIN();
