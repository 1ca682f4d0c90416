/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3.h - the S3 dialect: where an object's URL is, how a request is signed, whose credentials sign it, what an answer means.
 *
 *     s3_sign.c    pure: SigV4, key encoding, the times it needs (sole user of OpenSSL)
 *     s3_creds.c   the chain of credential sources, refreshed before they expire
 *     s3_ini.c     pure: the syntax of the shared files
 *     s3.c         buckets and keys to URLs, headers of a request
 *     s3_xml.c     error documents, listings, multipart answers (sole user of expat)
 *
 * Secrets never leave these files: no error, trace or statistic holds one.
 */
#ifndef LARDER_TIERS_S3_H
#define LARDER_TIERS_S3_H

#include "store/base/base.h"
#include "tiers/http.h"

/* ---- s3_sign.c: pure ---- */

struct s3_key { char id[160], secret[160]; char *token; /* owned; NULL: none */ uint64_t expires_s; /* 0: never */ };
void s3_key_release(struct s3_key *k); /* wipes it */
int s3_key_copy(struct s3_key *to, const struct s3_key *from, struct larder_error *err);
void s3_wipe(void *data, size_t len); /* a memset that the compiler keeps */

/* Percent-encoding as SigV4 wants it: all but A-Z a-z 0-9 - . _ ~, and '/' where slash. Appended, with NUL (not counted). */
int s3_encode(const char *text, bool slash, struct buf *out, struct larder_error *err);

struct s3_sign_input {
    const char *method;            /* "GET" */
    const char *host;              /* as the Host header has it, port included when it is not the scheme's */
    const char *path;              /* encoded, begins with '/' */
    const char *query;             /* encoded and sorted by name, without '?'; "" */
    const char *const *headers;    /* further "name: value" lines that are to be signed, sorted or not. Signed by themselves: host, x-amz-date,
                                    * x-amz-content-sha256 (service s3), x-amz-security-token (a key with a token) */
    size_t n_headers;
    const char *payload_sha256;    /* hex, or "UNSIGNED-PAYLOAD" */
    const char *region, *service;  /* "us-east-1", "s3" */
    uint64_t time_s;               /* seconds since 1970 */
    const struct s3_key *key;
};
/* *authorization gets the Authorization header's value; amz_date "YYYYMMDDTHHMMSSZ". malloc'd, owned. */
int s3_sign(const struct s3_sign_input *in, char amz_date[17], char **authorization, struct larder_error *err);
/* "" where OpenSSL refuses the digest: MD5 on FIPS systems. */
void sha256_hex(const void *data, size_t len, char out[65]);
void md5_base64(const void *data, size_t len, char out[25]); /* Content-MD5 */
void md5_hex(const void *data, size_t len, char out[33]);    /* what a single PUT's ETag is */
/* RFC 7231 and ISO 8601 dates to seconds since 1970; 0: no date. */
uint64_t http_date(const char *text);
uint64_t iso_date(const char *text);

/* ---- s3_ini.c: pure ---- */

/* Each setting of a shared file, in order: section without brackets ("default", "profile ml"), name in lower case ("region";
 * "s3.endpoint_url" where nested), value. A section itself comes with name and value "". Whatever else stands there is passed over.
 * fn: nonzero stops and is returned. */
typedef int s3_ini_fn(void *user, const char *section, const char *name, const char *value);
int s3_ini_parse(const char *text, size_t len, s3_ini_fn *fn, void *user, struct larder_error *err);

/* ---- s3_creds.c ---- */

struct s3_creds;
/* Looks for credentials in this order: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; web identity
 * (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN); the profile in the shared files (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE; profile, else
 * AWS_PROFILE, else "default"; its credential_process is not run); the container's endpoint (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or
 * _FULL_URI, with AWS_CONTAINER_AUTHORIZATION_TOKEN or _FILE); IMDSv2 unless AWS_EC2_METADATA_DISABLED=true. A profile given explicitly
 * goes before the environment. Nothing is fetched here. http (borrowed) is used where credentials are fetched.
 * endpoint_override of tests: AWS_EC2_METADATA_SERVICE_ENDPOINT, AWS_ENDPOINT_URL_STS. */
int s3_creds_open(struct http *http, const char *profile, bool anonymous, struct s3_creds **c, struct larder_error *err);
void s3_creds_close(struct s3_creds *c);
/* The key to sign with now. Blocks at the first call, where it has to be fetched; later ones return the key they have, and one is
 * refreshed in the background from 5 minutes before it expires. *key is a copy: s3_key_release. LARDER_EREMOTE: there are none, and what was
 * tried. Anonymous: LARDER_OK with an empty id. Thread-safe. */
int s3_creds_get(struct s3_creds *c, struct s3_key *key, struct larder_error *err);
/* The same without blocking: false when they have to be fetched first (a fetch is then begun; done(user) is called on a loop's
 * thread when it ended, well or not: ask again). */
bool s3_creds_try(struct s3_creds *c, struct s3_key *key, int *rc, struct larder_error *err, void (*done)(void *user), void *user);
/* A server says that this key is expired or unknown: it is fetched anew before the next use. False: there is no other to be had. */
bool s3_creds_refused(struct s3_creds *c, const struct s3_key *key);
/* "environment", "~/.aws/credentials (profile ml)", ...: for messages. Static or borrowed. */
const char *s3_creds_source(const struct s3_creds *c);
/* From the profile, when it says so: "region", "endpoint_url", "s3.endpoint_url" (its services section too), "s3.addressing_style",
 * ...; never a secret; NULL else. Borrowed. */
const char *s3_creds_setting(const struct s3_creds *c, const char *name);

/* ---- s3.c ---- */

/* Where a bucket is. */
struct s3_place {
    char *scheme, *host;     /* "https", "bucket.s3.eu-west-1.amazonaws.com" or "127.0.0.1:9000" */
    char *base;              /* path before a key, encoded, ends with '/': "/" or "/bucket/", with the endpoint's own path before */
    char *bucket, *prefix;   /* prefix: not encoded; "" or ends with '/' */
    char *region;
    bool requester_pays;
};
/* uri: s3://bucket[/prefix]. endpoint NULL: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's, else AWS itself (dual-stack not used).
 * region NULL: AWS_REGION, AWS_DEFAULT_REGION, the profile's, else us-east-1. Addressing: enum larder_s3_addressing; AUTO: virtual
 * hosts at AWS for names without dots, else paths. EINVAL says what is wrong with the uri (bucket names: 3 to 63 ...). */
int s3_place_parse(const char *uri, const struct larder_remote_options *o, const struct s3_creds *c, struct s3_place *p,
                   struct larder_error *err);
void s3_place_release(struct s3_place *p);
/* What an endpoint's URL says: scheme, host as a Host header has it (no port that is the scheme's), path without '/' at its end. */
struct s3_endpoint { char *scheme, *host, *path; bool aws, address; };
int s3_endpoint_parse(const char *url, struct s3_endpoint *e, struct larder_error *err);
void s3_endpoint_release(struct s3_endpoint *e);

/* ---- s3_xml.c ---- */

/* What an error document says. */
struct s3_error { char code[64], message[128], region[32], endpoint[128]; };
void s3_error_parse(const char *text, size_t len, struct s3_error *e); /* any bytes; fields are "" where absent */

/* A ListObjectsV2 page. fn as store_list_fn, names still with the prefix. *token: malloc'd, NULL at the end. ECORRUPT: no listing. */
int s3_list_parse(const char *text, size_t len, store_list_fn *fn, void *user, char **token, struct larder_error *err);
/* <UploadId> of InitiateMultipartUpload; <Key>/<UploadId>/<Initiated> of ListMultipartUploads. */
int s3_upload_id_parse(const char *text, size_t len, char **id, struct larder_error *err);
typedef int s3_upload_fn(void *user, const char *name, const char *id, uint64_t initiated_s);
int s3_uploads_parse(const char *text, size_t len, s3_upload_fn *fn, void *user, bool *truncated, char **next_key, char **next_id,
                     struct larder_error *err);
/* <ETag> of CompleteMultipartUpload, quotes included. An answer with status 200 may be an error document: ECORRUPT then. */
int s3_complete_parse(const char *text, size_t len, char **etag, struct larder_error *err);
/* The key in the answer of AssumeRole or AssumeRoleWithWebIdentity. */
int s3_sts_parse(const char *text, size_t len, struct s3_key *key, struct larder_error *err);

#endif
