/* SPDX-License-Identifier: Apache-2.0 */
/* Signatures against the published vectors (S3 API reference, "Signature Calculations ... Header-Based Auth"; aws4_testsuite) and, for
 * odd keys and queries, against botocore; encoding, digests and dates. */
#include <time.h>

#include "tests/unit/test.h"
#include "tiers/s3.h"

#define EMPTY_SHA "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static struct s3_key example_key(void)
{
    return (struct s3_key){.id = "AKIAIOSFODNN7EXAMPLE", .secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
}

static struct s3_key suite_key(void)
{
    return (struct s3_key){.id = "AKIDEXAMPLE", .secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
}

static void check_signed(const struct s3_sign_input *in, const char *names, const char *signature)
{
    struct larder_error err;
    char date[17], want[512], *got;

    REQUIRE_OK(s3_sign(in, date, &got, &err), &err);
    snprintf(want, sizeof(want), "AWS4-HMAC-SHA256 Credential=%s/%.8s/us-east-1/%s/aws4_request, SignedHeaders=%s, Signature=%s",
             in->key->id, date, in->service, names, signature);
    CHECK_STR(got, want);
    free(got);
}

static struct s3_sign_input s3_example(const struct s3_key *key)
{
    return (struct s3_sign_input){.method = "GET", .host = "examplebucket.s3.amazonaws.com", .path = "/", .query = "",
                                  .payload_sha256 = EMPTY_SHA, .region = "us-east-1", .service = "s3",
                                  .time_s = iso_date("20130524T000000Z"), .key = key};
}

TEST(s3_vectors)
{
    struct s3_key key = example_key();
    struct s3_sign_input in = s3_example(&key);
    const char *range[] = {"Range: bytes=0-9"};
    const char *put[] = {"x-amz-storage-class: REDUCED_REDUNDANCY", "date: Fri, 24 May 2013 00:00:00 GMT"};
    char body_sha[65];

    in.path = "/test.txt";
    in.headers = range;
    in.n_headers = 1;
    check_signed(&in, "host;range;x-amz-content-sha256;x-amz-date", "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");

    in = s3_example(&key);
    sha256_hex("Welcome to Amazon S3.", 21, body_sha);
    CHECK_STR(body_sha, "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072");
    in.method = "PUT";
    in.path = "/test%24file.text";
    in.headers = put;
    in.n_headers = 2;
    in.payload_sha256 = body_sha;
    check_signed(&in, "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                 "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");

    in = s3_example(&key);
    in.query = "lifecycle=";
    check_signed(&in, "host;x-amz-content-sha256;x-amz-date", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
    in.query = "max-keys=2&prefix=J";
    check_signed(&in, "host;x-amz-content-sha256;x-amz-date", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(suite_vectors)
{
    struct s3_key key = suite_key();
    struct s3_sign_input base = {.method = "GET", .host = "example.amazonaws.com", .path = "/", .query = "", .payload_sha256 = EMPTY_SHA,
                                 .region = "us-east-1", .service = "service", .time_s = iso_date("2015-08-30T12:36:00Z"), .key = &key};
    const char *trim[] = {"My-Header1: value1", "My-Header2: \"a   b   c\""};
    const char *twice[] = {"My-Header1: value2", "My-Header1: value2", "My-Header1: value1"};
    struct s3_sign_input in = base;

    check_signed(&in, "host;x-amz-date", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
    in.query = "Param1=value1&Param2=value2";
    check_signed(&in, "host;x-amz-date", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
    in = base;
    in.method = "POST";
    check_signed(&in, "host;x-amz-date", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b");
    in = base;
    in.headers = trim;
    in.n_headers = 2;
    check_signed(&in, "host;my-header1;my-header2;x-amz-date", "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736");
    in.headers = twice;
    in.n_headers = 3;
    check_signed(&in, "host;my-header1;x-amz-date", "c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea");
}

/* ---- botocore ---- */

/* A text of up to max characters out of those that matter. */
static char *odd_text(uint64_t *rng, size_t max, bool slashes, bool empty)
{
    static const char *const bits[] = {"a", "Z", "0", " ", "+", "'", "(", ")", "*", "~", "%", "%20", "-", "_", ".", "!", "@", "#", "$", "&",
                                       "=", ";", ":", ",", "?", "[", "]", "{", "}", "|", "\\", "^", "`", "\"", "<", ">", "\xc3\xa9",
                                       "\xe6\x97\xa5", "\xf0\x9f\x98\x80", "\x7f", "/", "//", "/./", "/../"};
    size_t n = rng_below(rng, max) + !empty, bits_n = ARRAY_LEN(bits) - (slashes ? 0 : 4);
    char *text = calloc(n * 4 + 1, 1);

    for (size_t i = 0; text && i < n; i++)
        strcat(text, bits[rng_below(rng, bits_n)]);
    return text;
}

static void put_hex(FILE *f, const void *data, size_t len, const char *end)
{
    const unsigned char *p = data;

    fputc('x', f); /* so that an empty one is a field too */
    for (size_t i = 0; i < len; i++)
        fprintf(f, "%02x", p[i]);
    fputs(end, f);
}

static void put_text(FILE *f, const char *text, const char *end) { put_hex(f, text, strlen(text), end); }

static void sign_random(FILE *f, uint64_t *rng)
{
    static const char *const methods[] = {"GET", "PUT", "HEAD", "DELETE", "POST"};
    static const char *const hosts[] = {"bucket.s3.amazonaws.com", "127.0.0.1:9000", "h.example"};
    struct s3_key key = suite_key();
    struct larder_error err;
    AUTO_BUF struct buf path = BUF_INIT, query = BUF_INIT;
    AUTO_FREE char *key_name = odd_text(rng, 40, true, false), *value = odd_text(rng, 20, true, true);
    AUTO_FREE char *raw_path = NULL, *raw_query = NULL;
    char sha[65], date[17], *authorization, noise[16], header[64];
    bool with_query = rng_below(rng, 2), with_header = rng_below(rng, 2);
    int header_len = snprintf(header, sizeof(header), "x-amz-meta-%" PRIu64 ":  a  %" PRIu64 " b ", rng_below(rng, 10), rng_below(rng, 99));
    const char *headers[] = {"range: bytes=5-9", header};

    REQUIRE(asprintf(&raw_path, "/%s", key_name) > 0 && asprintf(&raw_query, "prefix=%s%clist-type=2", value, 0) > 0);
    REQUIRE_OK(s3_encode(raw_path, true, &path, &err), &err);
    REQUIRE_OK(buf_printf(&query, &err, "%s", with_query ? "list-type=2&prefix=" : ""), &err);
    if (with_query)
        REQUIRE_OK(s3_encode(value, false, &query, &err), &err);
    rng_fill(rng, noise, sizeof(noise));
    sha256_hex(noise, sizeof(noise), sha);
    key.token = rng_below(rng, 2) ? (char *)"FwoGZXIvYXdzE//token+with/odd==" : NULL;
    struct s3_sign_input in = {.method = methods[rng_below(rng, 5)], .host = hosts[rng_below(rng, 3)], .path = (char *)path.data,
                               .query = (char *)query.data, .headers = headers, .n_headers = with_header ? 2 : 0,
                               .payload_sha256 = rng_below(rng, 2) ? sha : "UNSIGNED-PAYLOAD", .region = "eu-west-1", .service = "s3",
                               .time_s = 1300000000 + rng_below(rng, 1000000000), .key = &key};
    REQUIRE_OK(s3_sign(&in, date, &authorization, &err), &err);
    put_text(f, in.method, " ");
    put_text(f, in.host, " ");
    put_text(f, raw_path, " ");
    put_hex(f, raw_query, with_query ? strlen("prefix=") + strlen(value) + 1 + strlen("list-type=2") : 0, " ");
    if (with_header) {
        char both[128];
        size_t first = strlen(headers[0]) + 1;
        memcpy(both, headers[0], first);
        memcpy(both + first, header, (size_t)header_len);
        put_hex(f, both, first + (size_t)header_len, " ");
    } else {
        put_text(f, "", " ");
    }
    put_text(f, in.payload_sha256, " ");
    put_text(f, in.region, " ");
    put_text(f, key.id, " ");
    put_text(f, key.secret, " ");
    put_text(f, key.token ? key.token : "", " ");
    put_text(f, date, " ");
    put_text(f, in.path, " ");
    put_text(f, in.query, " ");
    put_text(f, authorization, "\n");
    free(authorization);
}

TEST(botocore_signs_alike)
{
    const char *python = getenv("PYTHON");
    char path[256], command[600], said[400] = "";
    uint64_t rng = 4;

    snprintf(path, sizeof(path), "%s/requests", tmp_dir());
    FILE *f = fopen(path, "w");
    REQUIRE(f);
    for (int i = 0; i < 2000; i++)
        sign_random(f, &rng);
    REQUIRE(fclose(f) == 0);
    snprintf(command, sizeof(command), "%s tests/unit/sign_check.py %s 2>&1", python ? python : "/usr/bin/python3", path);
    FILE *p = popen(command, "r");
    REQUIRE(p);
    size_t n = fread(said, 1, sizeof(said) - 1, p);
    said[n] = '\0';
    int status = pclose(p);
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127))
        TEST_SKIP("python3-botocore is not installed");
    CHECK_STR(said, "2000\n");
}

/* ---- small things ---- */

TEST(encoding)
{
    AUTO_BUF struct buf b = BUF_INIT;
    struct larder_error err;

    REQUIRE_OK(s3_encode("a b+c/'(d)*~%-._\xc3\xa9", true, &b, &err), &err);
    CHECK_STR((char *)b.data, "a%20b%2Bc/%27%28d%29%2A~%25-._%C3%A9");
    CHECK_EQ(b.len, strlen((char *)b.data));
    b.len = 0;
    REQUIRE_OK(s3_encode("//a//", true, &b, &err), &err);
    REQUIRE_OK(s3_encode("//a/", false, &b, &err), &err); /* appended */
    CHECK_STR((char *)b.data, "//a//%2F%2Fa%2F");
    b.len = 0;
    REQUIRE_OK(s3_encode("", true, &b, &err), &err);
    CHECK_STR((char *)b.data, "");
}

TEST(digests)
{
    char sha[65], hex[33], base64[25];

    sha256_hex("", 0, sha);
    CHECK_STR(sha, EMPTY_SHA);
    sha256_hex("abc", 3, sha);
    CHECK_STR(sha, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    md5_hex("abc", 3, hex);
    CHECK_STR(hex, "900150983cd24fb0d6963f7d28e17f72");
    md5_base64("", 0, base64);
    CHECK_STR(base64, "1B2M2Y8AsgTpgAmY7PhCfg==");
}

TEST(dates)
{
    CHECK_EQ(http_date("Sun, 06 Nov 1994 08:49:37 GMT"), 784111777);
    CHECK_EQ(http_date("Sunday, 06-Nov-94 08:49:37 GMT"), 784111777);
    CHECK_EQ(http_date("Sun Nov  6 08:49:37 1994"), 784111777);
    CHECK_EQ(http_date("Thu, 29 Feb 2024 23:59:60 GMT"), 1709251200);
    CHECK_EQ(http_date("Fri, 01 Jan 2100 00:00:00 GMT"), 4102444800);
    CHECK_EQ(http_date("Sun, 31 Foo 2025 00:00:00 GMT"), 0);
    CHECK_EQ(http_date("Sun, 06 Nov 1994 25:49:37 GMT"), 0);
    CHECK_EQ(http_date("Sun, 06 Nov 1994 08:49:37 CET"), 0);
    CHECK_EQ(http_date(""), 0);
    CHECK_EQ(http_date("120"), 0);
    CHECK_EQ(iso_date("1994-11-06T08:49:37Z"), 784111777);
    CHECK_EQ(iso_date("1994-11-06T08:49:37.123Z"), 784111777);
    CHECK_EQ(iso_date("1994-11-06T10:49:37+02:00"), 784111777);
    CHECK_EQ(iso_date("1994-11-06T03:49:37.5-05:00"), 784111777);
    CHECK_EQ(iso_date("19941106T084937Z"), 784111777);
    CHECK_EQ(iso_date("1970-01-01T00:00:01"), 1);
    CHECK_EQ(iso_date("1994-11-06"), 0);
    CHECK_EQ(iso_date("1994-13-06T08:49:37Z"), 0);
    CHECK_EQ(iso_date("1994-11-06T08:49:37Zx"), 0);
    CHECK_EQ(iso_date("1994-11-06T08:49:37+2"), 0);
    CHECK_EQ(iso_date(""), 0);
    /* against the C library, every 11th hour of 150 years */
    for (uint64_t t = 1; t < 150u * 366 * 86400; t += 11 * 3600 + 7) {
        time_t when = (time_t)t;
        struct tm tm;
        char text[64];
        gmtime_r(&when, &tm);
        strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm);
        REQUIRE(http_date(text) == t);
        strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &tm);
        REQUIRE(iso_date(text) == t);
    }
}

TEST(keys_are_copied_and_wiped)
{
    struct s3_key a = example_key(), b;
    struct larder_error err;

    a.token = strdup("token");
    a.expires_s = 7;
    REQUIRE_OK(s3_key_copy(&b, &a, &err), &err);
    s3_key_release(&a);
    CHECK(!a.token && !a.id[0] && !a.secret[0] && !a.expires_s);
    CHECK_STR(b.token, "token");
    CHECK_STR(b.id, "AKIAIOSFODNN7EXAMPLE");
    CHECK_EQ(b.expires_s, 7);
    s3_key_release(&b);
}

TEST_MAIN();
