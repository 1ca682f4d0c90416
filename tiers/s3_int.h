/* SPDX-License-Identifier: Apache-2.0 */
/* s3_int.h - between s3_profile.c, which finds out whose credentials are to be used, and s3_creds.c, which fetches and keeps them. */
#ifndef LARDER_TIERS_S3_INT_H
#define LARDER_TIERS_S3_INT_H

#include "tiers/s3.h"

/* One way to come by a key. Strings are owned; NULL: not given. */
enum s3_source_kind {
    S3_SOURCE_KEY,       /* key, from the environment */
    S3_SOURCE_FILE,      /* the key of profile in the shared files, read again when it is refused */
    S3_SOURCE_WEB,       /* STS for the token in token_file and role_arn */
    S3_SOURCE_CONTAINER, /* GET url, with token or what is in token_file as authorization */
    S3_SOURCE_INSTANCE,  /* IMDSv2 at url */
    S3_SOURCE_ROLE       /* STS for role_arn, signed with the key of the source before */
};
struct s3_source {
    enum s3_source_kind kind;
    struct s3_key key;
    char *profile, *role_arn, *session, *external_id, *token_file, *token, *url;
    char *files[2];      /* FILE: config and credentials */
    uint64_t duration_s; /* of the session; 0: the server's default */
};

/* What options, environment and files say. The first source gives a key, each later one trades it for another. */
enum { S3_SOURCES_MAX = 6 };
struct s3_chain {
    struct s3_source source[S3_SOURCES_MAX];
    size_t n;      /* 0: none found */
    char *where;   /* for messages: "environment", "~/.aws/credentials (profile ml)" */
    char *tried;   /* where n is 0: what was looked at */
    char *profile; /* its name */
    struct s3_setting { char *name, *value; } *settings; /* the profile's, without secrets */
    size_t n_settings, cap_settings;
};
int s3_chain_resolve(const char *profile, bool anonymous, struct s3_chain *c, struct larder_error *err);
void s3_chain_release(struct s3_chain *c);
const char *s3_chain_setting(const struct s3_chain *c, const char *name);
/* Reads the key of a FILE again. */
int s3_profile_key(const struct s3_source *s, struct s3_key *key, struct larder_error *err);
/* Ids and secrets as they may stand in a header: printable, no blanks, not too long. what: for the message, never the text. */
int s3_key_set(struct s3_key *key, const char *id, const char *secret, const char *token, const char *what, struct larder_error *err);
/* A small text file, trimmed, printable; malloc'd, never empty. */
int s3_token_read(const char *path, char **token, struct larder_error *err);

#endif
