/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_profile.c - whose credentials: environment, shared files, endpoints of containers and instances, in the order that s3.h gives.
 *
 * Only reading happens here, of the environment and of files; what needs a request is described by a struct s3_source for s3_creds.c.
 * Profiles may refer to each other (role_arn with source_profile): that makes a chain of sources, the innermost first.
 *
 * What is in reach but cannot be used (single sign-on, credential_process, MFA) is an error that says what to do instead of
 * being passed over: the next source would be somebody else's credentials.
 *
 * Files that are missing or may not be read count as empty: a worker's home often has none. No message holds a secret.
 *
 * No state: any thread. The environment is read by s3_chain_resolve only, when credentials are opened: later, the application may be
 * changing it.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "tiers/s3_int.h"

#define FILE_MAX ((size_t)1 << 20)
#define TOKEN_MAX ((size_t)32 << 10)

/* ---- small texts ---- */

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static bool printable(const char *s)
{
    for (; *s; s++)
        if (*s <= 0x20 || *s >= 0x7f)
            return false;
    return true;
}

static int dup_text(char **to, const char *text, struct larder_error *err)
{
    if (!text)
        return LARDER_OK;
    *to = strdup(text);
    return *to ? LARDER_OK : err_nomem(err, strlen(text) + 1, "credentials");
}

static int print_text(char **to, struct larder_error *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int print_text(char **to, struct larder_error *err, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    int n = vasprintf(to, fmt, ap);
    va_end(ap);
    if (n < 0)
        *to = NULL;
    return n < 0 ? err_nomem(err, 256, "credentials") : LARDER_OK;
}

/* text without white space around it, NULL when that is nothing; malloc'd. */
static int trimmed(const char *text, char **out, struct larder_error *err)
{
    *out = NULL;
    if (!text)
        return LARDER_OK;
    text += strspn(text, " \t\r\n");
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\r\n", text[n - 1]))
        n--;
    if (n == 0)
        return LARDER_OK;
    *out = strndup(text, n);
    return *out ? LARDER_OK : err_nomem(err, n + 1, "credentials");
}

static void wipe_free(char *s)
{
    if (s)
        s3_wipe(s, strlen(s));
    free(s);
}

int s3_key_set(struct s3_key *key, const char *id, const char *secret, const char *token, const char *what, struct larder_error *err)
{
    char *i = NULL, *s = NULL, *t = NULL;
    int rc = trimmed(id, &i, err);

    if (rc == LARDER_OK)
        rc = trimmed(secret, &s, err);
    if (rc == LARDER_OK)
        rc = trimmed(token, &t, err);
    if (rc == LARDER_OK && (!i || !s))
        rc = err_set(err, LARDER_EINVAL, "credentials from %s: the %s is missing", what, i ? "secret access key" : "access key id");
    if (rc == LARDER_OK && (strlen(i) >= sizeof(key->id) || strlen(s) >= sizeof(key->secret) || (t && strlen(t) > TOKEN_MAX)))
        rc = err_set(err, LARDER_EINVAL, "credentials from %s: longer than any that AWS gives out", what);
    if (rc == LARDER_OK && (!printable(i) || !printable(s) || (t && !printable(t)) || strpbrk(i, "/,=")))
        rc = err_set(err, LARDER_EINVAL, "credentials from %s: characters that no key has (quotes? line breaks?)", what);
    if (rc == LARDER_OK) {
        memset(key, 0, sizeof(*key));
        memcpy(key->id, i, strlen(i) + 1);
        memcpy(key->secret, s, strlen(s) + 1);
        key->token = t;
        t = NULL;
    }
    free(i);
    wipe_free(s);
    wipe_free(t);
    return rc;
}

/* ---- files ---- */

/* A whole file of at most max bytes, NUL-terminated. ENOENT and the like: empty, unless must. */
static int read_file(const char *path, size_t max, bool must, struct buf *out, struct larder_error *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    ssize_t n = 0;

    if (fd < 0 && must)
        return err_sys(err, err_code_of(errno), errno, "%s: cannot read the token", path);
    int rc = buf_reserve(out, 1, err);
    while (rc == LARDER_OK && fd >= 0 && out->len <= max) {
        rc = buf_reserve(out, 4097, err);
        n = rc ? 0 : read(fd, out->data + out->len, 4096); /* not pread: tokens may come from a pipe */
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        out->len += (size_t)n;
    }
    if (rc)
        return rc;
    if (n < 0 && must)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot read the token", path);
    if (out->len > max)
        return err_set(err, LARDER_EINVAL, "%s: larger than %zu bytes: is it the right file?", path, max);
    out->data[out->len] = '\0';
    return LARDER_OK;
}

int s3_token_read(const char *path, char **token, struct larder_error *err)
{
    struct buf text = BUF_INIT;
    char *t = NULL;
    int rc = read_file(path, TOKEN_MAX, true, &text, err);

    if (rc == LARDER_OK)
        rc = trimmed((char *)text.data, &t, err);
    if (rc == LARDER_OK && (!t || !printable(strncmp(t, "Bearer ", 7) == 0 || strncmp(t, "Basic ", 6) == 0 ? strchr(t, ' ') + 1 : t)))
        rc = err_set(err, LARDER_EINVAL, "%s: it is empty or not a token", path);
    if (text.data)
        s3_wipe(text.data, text.cap);
    buf_release(&text);
    if (rc) {
        wipe_free(t);
        t = NULL;
    }
    *token = t;
    return rc;
}

/* All settings of both files. */
struct setting { bool config; char *section, *name, *value; };
struct files {
    struct setting *settings;
    size_t n, cap;
    char *path[2]; /* config, credentials; NULL: no home */
    const char *home; /* to be shortened in messages; NULL: not known */
    bool reading;  /* config */
    struct larder_error *err;
};
enum { CONFIG, CREDENTIALS };

static void files_release(struct files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        free(f->settings[i].section);
        free(f->settings[i].name);
        wipe_free(f->settings[i].value);
    }
    free(f->settings);
    free(f->path[CONFIG]);
    free(f->path[CREDENTIALS]);
}

static int take_setting(void *user, const char *section, const char *name, const char *value)
{
    struct files *f = user;
    int rc = GROW(f->settings, f->cap, f->n + 1, f->err);

    if (rc)
        return rc;
    struct setting *s = &f->settings[f->n++];
    *s = (struct setting){f->reading, strdup(section), strdup(name), strdup(value)};
    return s->section && s->name && s->value ? LARDER_OK : err_nomem(f->err, 256, "shared file");
}

static int path_of(const char *variable, const char *name, char **path, struct larder_error *err)
{
    const char *given = env(variable), *home = env("HOME");

    if (given && strncmp(given, "~/", 2) == 0 && home)
        return print_text(path, err, "%s%s", home, given + 1);
    if (given)
        return dup_text(path, given, err);
    return home ? print_text(path, err, "%s/.aws/%s", home, name) : LARDER_OK;
}

/* Where the files are; the environment is read here and nowhere else. */
static int files_find(struct files *f, struct larder_error *err)
{
    int rc = path_of("AWS_CONFIG_FILE", "config", &f->path[CONFIG], err);

    f->home = env("HOME");
    return rc ? rc : path_of("AWS_SHARED_CREDENTIALS_FILE", "credentials", &f->path[CREDENTIALS], err);
}

static int files_read(struct files *f, struct larder_error *err)
{
    int rc = LARDER_OK;

    f->err = err;
    for (int i = CONFIG; i <= CREDENTIALS && rc == LARDER_OK; i++) {
        struct buf text = BUF_INIT;
        f->reading = i == CONFIG;
        rc = f->path[i] ? read_file(f->path[i], FILE_MAX, false, &text, err) : LARDER_OK;
        if (rc == LARDER_OK && text.data)
            rc = s3_ini_parse((char *)text.data, text.len, take_setting, f, err);
        if (text.data)
            s3_wipe(text.data, text.cap);
        buf_release(&text);
    }
    return rc;
}

/* Whether a section is that of a profile: [profile x] in config, [x] in credentials; [default] in both. */
static bool of_profile(const struct setting *s, const char *profile)
{
    if (!s->config || strcmp(profile, "default") == 0) {
        if (strcmp(s->section, profile) == 0)
            return true;
    }
    return s->config && strncmp(s->section, "profile ", 8) == 0 && strcmp(s->section + 8, profile) == 0;
}

/* The last one given, credentials before config; "" counts as absent. */
static const struct setting *find(const struct files *f, const char *profile, const char *name)
{
    for (size_t i = f->n; i-- > 0;)
        if (of_profile(&f->settings[i], profile) && strcmp(f->settings[i].name, name) == 0 && *f->settings[i].value)
            return &f->settings[i];
    return NULL;
}

static const char *lookup(const struct files *f, const char *profile, const char *name)
{
    const struct setting *s = find(f, profile, name);
    return s ? s->value : NULL;
}

static bool has_profile(const struct files *f, const char *profile)
{
    for (size_t i = 0; i < f->n; i++)
        if (of_profile(&f->settings[i], profile))
            return true;
    return false;
}

/* "~/.aws/credentials" of where name of profile is. */
static const char *file_of(const struct files *f, const char *profile, const char *name, char out[128])
{
    const struct setting *s = find(f, profile, name);
    const char *home = f->home, *path = f->path[s && s->config ? CONFIG : CREDENTIALS];

    if (!path)
        path = "~/.aws/credentials";
    size_t n = home ? strlen(home) : 0;
    if (n > 1 && strncmp(path, home, n) == 0 && path[n] == '/')
        snprintf(out, 128, "~%s", path + n);
    else
        snprintf(out, 128, "%s", path);
    return out;
}

/* The three parts out of one file: half of one key and half of another are none. */
static int key_of(const struct files *f, const char *profile, struct s3_key *key, struct larder_error *err)
{
    static const char *const names[] = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"};
    const struct setting *id = find(f, profile, names[0]);
    const char *part[ARRAY_LEN(names)] = {NULL};
    char file[128], what[256];

    for (size_t i = f->n; i-- > 0;)
        for (size_t k = 0; k < ARRAY_LEN(names); k++)
            if (!part[k] && (!id || f->settings[i].config == id->config) && of_profile(&f->settings[i], profile) &&
                strcmp(f->settings[i].name, names[k]) == 0 && *f->settings[i].value)
                part[k] = f->settings[i].value;
    snprintf(what, sizeof(what), "%s (profile %s)", file_of(f, profile, names[0], file), profile);
    return s3_key_set(key, part[0], part[1], part[2], what, err);
}

int s3_profile_key(const struct s3_source *s, struct s3_key *key, struct larder_error *err)
{
    struct files f = {.settings = NULL};
    int rc = dup_text(&f.path[CONFIG], s->files[CONFIG], err);

    if (rc == LARDER_OK)
        rc = dup_text(&f.path[CREDENTIALS], s->files[CREDENTIALS], err);
    if (rc == LARDER_OK)
        rc = files_read(&f, err);
    if (rc == LARDER_OK)
        rc = key_of(&f, s->profile, key, err);
    files_release(&f);
    return rc;
}

/* ---- the chain ---- */

void s3_chain_release(struct s3_chain *c)
{
    for (size_t i = 0; i < c->n; i++) {
        struct s3_source *s = &c->source[i];
        s3_key_release(&s->key);
        free(s->profile);
        free(s->files[CONFIG]);
        free(s->files[CREDENTIALS]);
        free(s->role_arn);
        free(s->session);
        free(s->external_id);
        free(s->token_file);
        wipe_free(s->token);
        free(s->url);
    }
    for (size_t i = 0; i < c->n_settings; i++) {
        free(c->settings[i].name);
        free(c->settings[i].value);
    }
    free(c->settings);
    free(c->where);
    free(c->tried);
    free(c->profile);
    memset(c, 0, sizeof(*c));
}

const char *s3_chain_setting(const struct s3_chain *c, const char *name)
{
    for (size_t i = c->n_settings; i-- > 0;)
        if (strcmp(c->settings[i].name, name) == 0 && *c->settings[i].value)
            return c->settings[i].value;
    return NULL;
}

static int push(struct s3_chain *c, enum s3_source_kind kind, struct s3_source **out, struct larder_error *err)
{
    if (c->n == S3_SOURCES_MAX)
        return err_set(err, LARDER_EINVAL, "profile %s: more than %d roles follow each other, or in a circle: check source_profile",
                       c->profile, S3_SOURCES_MAX);
    *out = &c->source[c->n++];
    memset(*out, 0, sizeof(**out));
    (*out)->kind = kind;
    return LARDER_OK;
}

static int push_environment(struct s3_chain *c, struct larder_error *err)
{
    struct s3_source *s = NULL;
    int rc = push(c, S3_SOURCE_KEY, &s, err);

    if (rc)
        return rc;
    if (!env("AWS_SECRET_ACCESS_KEY"))
        return err_set(err, LARDER_EINVAL, "AWS_ACCESS_KEY_ID is set, but AWS_SECRET_ACCESS_KEY is not");
    return s3_key_set(&s->key, env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY"), env("AWS_SESSION_TOKEN"), "the environment", err);
}

static int push_web(struct s3_chain *c, const char *role, const char *session, const char *token_file, struct larder_error *err)
{
    struct s3_source *s = NULL;
    int rc = push(c, S3_SOURCE_WEB, &s, err);

    if (rc || (rc = dup_text(&s->role_arn, role, err)) || (rc = dup_text(&s->token_file, token_file, err)))
        return rc;
    return session ? dup_text(&s->session, session, err) : print_text(&s->session, err, "larder-%ld", (long)getpid());
}

/* Plain HTTP is for addresses that do not leave the machine; tokens travel there. */
static bool container_url_ok(const char *url)
{
    static const char *const hosts[] = {"localhost", "[::1]", "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};

    if (!printable(url))
        return false;
    if (strncasecmp(url, "https://", 8) == 0)
        return url[8] != '\0';
    if (strncasecmp(url, "http://", 7) != 0)
        return false;
    const char *host = url + 7;
    size_t len = strcspn(host, "/?#");
    if (memchr(host, '@', len))
        return false;
    const char *end = memchr(host, ']', len);
    size_t n = end ? (size_t)(end - host) + 1 : strcspn(host, ":/?#");
    for (size_t i = 0; i < ARRAY_LEN(hosts); i++)
        if (strlen(hosts[i]) == n && strncasecmp(host, hosts[i], n) == 0)
            return true;
    return n >= 9 && strncmp(host, "127.", 4) == 0 && n == strspn(host, "0123456789.");
}

static bool has_container(void) { return env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") || env("AWS_CONTAINER_CREDENTIALS_FULL_URI"); }

static int push_container(struct s3_chain *c, struct larder_error *err)
{
    const char *relative = env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"), *full = env("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    struct s3_source *s = NULL;
    int rc = push(c, S3_SOURCE_CONTAINER, &s, err);

    if (rc)
        return rc;
    if (relative && (*relative != '/' || !printable(relative)))
        return err_set(err, LARDER_EINVAL, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI does not begin with '/'");
    if (!relative && !full)
        return err_set(err, LARDER_EINVAL, "profile %s wants a container's credentials, but there is no AWS_CONTAINER_CREDENTIALS_*_URI",
                       c->profile);
    if (!relative && !container_url_ok(full))
        return err_set(err, LARDER_EINVAL, "AWS_CONTAINER_CREDENTIALS_FULL_URI: it has to be https, or of the loopback or container "
                       "addresses (169.254.170.2, 169.254.170.23)");
    rc = relative ? print_text(&s->url, err, "http://169.254.170.2%s", relative) : dup_text(&s->url, full, err);
    if (rc == LARDER_OK)
        rc = dup_text(&s->token_file, env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"), err);
    if (rc == LARDER_OK && !s->token_file)
        rc = trimmed(env("AWS_CONTAINER_AUTHORIZATION_TOKEN"), &s->token, err);
    if (rc == LARDER_OK && s->token && strpbrk(s->token, "\r\n"))
        rc = err_set(err, LARDER_EINVAL, "AWS_CONTAINER_AUTHORIZATION_TOKEN holds a line break");
    return rc;
}

static bool instance_disabled(void)
{
    const char *v = env("AWS_EC2_METADATA_DISABLED");
    return v && strcasecmp(v, "true") == 0;
}

static int push_instance(struct s3_chain *c, struct larder_error *err)
{
    const char *endpoint = env("AWS_EC2_METADATA_SERVICE_ENDPOINT"), *mode = env("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    struct s3_source *s = NULL;
    int rc = push(c, S3_SOURCE_INSTANCE, &s, err);

    if (rc)
        return rc;
    if (!endpoint)
        endpoint = mode && strcasecmp(mode, "ipv6") == 0 ? "http://[fd00:ec2::254]" : "http://169.254.169.254";
    if ((strncasecmp(endpoint, "http://", 7) != 0 && strncasecmp(endpoint, "https://", 8) != 0) || !printable(endpoint))
        return err_set(err, LARDER_EINVAL, "AWS_EC2_METADATA_SERVICE_ENDPOINT: it is no http:// URL");
    rc = dup_text(&s->url, endpoint, err);
    for (size_t n = rc ? 0 : strlen(s->url); n > 8 && s->url[n - 1] == '/'; n--)
        s->url[n - 1] = '\0';
    return rc;
}

/* ---- profiles ---- */

static int push_profile(struct s3_chain *c, const struct files *f, const char *profile, bool roles, struct larder_error *err);

static int push_named_source(struct s3_chain *c, const char *profile, const char *name, struct larder_error *err)
{
    if (strcasecmp(name, "Environment") == 0)
        return env("AWS_ACCESS_KEY_ID") ? push_environment(c, err)
                                        : err_set(err, LARDER_EINVAL, "profile %s: credential_source is Environment, but AWS_ACCESS_KEY_ID "
                                                  "is not set", profile);
    if (strcasecmp(name, "EcsContainer") == 0)
        return push_container(c, err);
    if (strcasecmp(name, "Ec2InstanceMetadata") == 0)
        return push_instance(c, err);
    return err_set(err, LARDER_EINVAL, "profile %s: credential_source %.40s: it is Environment, EcsContainer or Ec2InstanceMetadata", profile,
                   name);
}

static int push_role(struct s3_chain *c, const struct files *f, const char *profile, struct larder_error *err)
{
    const char *role = lookup(f, profile, "role_arn"), *session = lookup(f, profile, "role_session_name");
    const char *web = lookup(f, profile, "web_identity_token_file"), *from = lookup(f, profile, "source_profile");
    const char *named = lookup(f, profile, "credential_source"), *duration = lookup(f, profile, "duration_seconds");
    struct s3_source *s = NULL;
    int rc;

    if (web)
        return push_web(c, role, session, web, err);
    if (lookup(f, profile, "mfa_serial"))
        return err_set(err, LARDER_EINVAL, "profile %s: the role wants MFA, which nobody is here to type: set the environment from `aws "
                       "configure export-credentials`", profile);
    if (from && !has_profile(f, from))
        return err_set(err, LARDER_EINVAL, "profile %s: its source_profile %s is in neither of the shared files", profile, from);
    if (from)
        rc = push_profile(c, f, from, strcmp(from, profile) != 0, err);
    else if (named)
        rc = push_named_source(c, profile, named, err);
    else
        rc = err_set(err, LARDER_EINVAL, "profile %s: role_arn without source_profile or credential_source", profile);
    if (rc == LARDER_OK && c->n == 0)
        rc = err_set(err, LARDER_EINVAL, "profile %s: its source_profile %s has no credentials", profile, from);
    if (rc || (rc = push(c, S3_SOURCE_ROLE, &s, err)) || (rc = dup_text(&s->role_arn, role, err)) ||
        (rc = dup_text(&s->external_id, lookup(f, profile, "external_id"), err)))
        return rc;
    s->duration_s = duration ? strtoull(duration, NULL, 10) : 0;
    return session ? dup_text(&s->session, session, err) : print_text(&s->session, err, "larder-%ld", (long)getpid());
}

/* Pushes what profile says; nothing when it says nothing. */
static int push_profile(struct s3_chain *c, const struct files *f, const char *profile, bool roles, struct larder_error *err)
{
    struct s3_source *s = NULL;
    int rc;

    if (roles && lookup(f, profile, "role_arn"))
        return push_role(c, f, profile, err);
    if (lookup(f, profile, "aws_access_key_id") || lookup(f, profile, "aws_secret_access_key")) {
        if ((rc = push(c, S3_SOURCE_FILE, &s, err)) || (rc = dup_text(&s->profile, profile, err)) ||
            (rc = dup_text(&s->files[CONFIG], f->path[CONFIG], err)) ||
            (rc = dup_text(&s->files[CREDENTIALS], f->path[CREDENTIALS], err)))
            return rc;
        return key_of(f, profile, &s->key, err); /* whether it is one */
    }
    if (lookup(f, profile, "sso_start_url") || lookup(f, profile, "sso_session") || lookup(f, profile, "credential_process"))
        return err_set(err, LARDER_EINVAL, "profile %s: single sign-on and credential_process are not run: set the environment from `aws "
                       "configure export-credentials --format env`", profile);
    return LARDER_OK;
}

/* A circle of source_profile would recurse for ever: follow it first. */
static int check_circle(const struct files *f, const char *profile, struct larder_error *err)
{
    const char *at = profile;

    for (int n = 0; n < S3_SOURCES_MAX; n++) {
        const char *next = lookup(f, at, "role_arn") ? lookup(f, at, "source_profile") : NULL;
        if (!next || strcmp(next, at) == 0)
            return LARDER_OK;
        at = next;
    }
    return err_set(err, LARDER_EINVAL, "profile %s: source_profile leads through more than %d profiles, or in a circle", profile,
                   S3_SOURCES_MAX - 1);
}

static bool is_secret(const char *name)
{
    return !*name || strncmp(name, "aws_", 4) == 0 || strstr(name, "secret") || strstr(name, "token") || strstr(name, "password");
}

static int keep_setting(struct s3_chain *c, const char *name, const char *value, struct larder_error *err)
{
    int rc = GROW(c->settings, c->cap_settings, c->n_settings + 1, err);

    if (rc)
        return rc;
    struct s3_setting *s = &c->settings[c->n_settings++];
    *s = (struct s3_setting){strdup(name), strdup(value)};
    return s->name && s->value ? LARDER_OK : err_nomem(err, strlen(name) + strlen(value), "profile");
}

/* The profile's settings, and those of its services section, which go before. */
static int keep_settings(struct s3_chain *c, const struct files *f, struct larder_error *err)
{
    const char *services = lookup(f, c->profile, "services");
    int rc = LARDER_OK;

    for (size_t i = 0; i < f->n && rc == LARDER_OK; i++)
        if (of_profile(&f->settings[i], c->profile) && !is_secret(f->settings[i].name))
            rc = keep_setting(c, f->settings[i].name, f->settings[i].value, err);
    for (size_t i = 0; services && i < f->n && rc == LARDER_OK; i++)
        if (f->settings[i].config && strncmp(f->settings[i].section, "services ", 9) == 0 &&
            strcmp(f->settings[i].section + 9, services) == 0 && strchr(f->settings[i].name, '.'))
            rc = keep_setting(c, f->settings[i].name, f->settings[i].value, err);
    return rc;
}

static int from_profile(struct s3_chain *c, const struct files *f, struct larder_error *err)
{
    char file[128];
    int rc = check_circle(f, c->profile, err);

    if (rc == LARDER_OK)
        rc = push_profile(c, f, c->profile, true, err);
    if (rc || c->n == 0)
        return rc;
    bool key = c->source[c->n - 1].kind == S3_SOURCE_FILE;
    return print_text(&c->where, err, "%s (profile %s%s)", file_of(f, c->profile, key ? "aws_access_key_id" : "role_arn", file), c->profile,
                      key ? "" : ", role");
}

static int from_environment(struct s3_chain *c, struct larder_error *err)
{
    int rc = push_environment(c, err);

    return rc ? rc : dup_text(&c->where, "environment", err);
}

static int from_web(struct s3_chain *c, struct larder_error *err)
{
    int rc;

    if (!env("AWS_ROLE_ARN"))
        return err_set(err, LARDER_EINVAL, "AWS_WEB_IDENTITY_TOKEN_FILE is set, but AWS_ROLE_ARN is not");
    rc = push_web(c, env("AWS_ROLE_ARN"), env("AWS_ROLE_SESSION_NAME"), env("AWS_WEB_IDENTITY_TOKEN_FILE"), err);
    return rc ? rc : dup_text(&c->where, "web identity (AWS_WEB_IDENTITY_TOKEN_FILE)", err);
}

static int from_machine(struct s3_chain *c, struct larder_error *err)
{
    int rc;

    if (has_container()) {
        rc = push_container(c, err);
        return rc ? rc : dup_text(&c->where, "container endpoint", err);
    }
    if (instance_disabled())
        return print_text(&c->tried, err, "environment, shared files (profile %s), container endpoint; instance metadata is disabled",
                          c->profile);
    rc = push_instance(c, err);
    return rc ? rc : dup_text(&c->where, "instance metadata", err);
}

static int resolve(const char *explicit, bool anonymous, struct s3_chain *c, const struct files *f, struct larder_error *err)
{
    const char *name = explicit ? explicit : env("AWS_PROFILE");
    int rc = dup_text(&c->profile, name ? name : "default", err);

    if (rc)
        return rc;
    bool known = has_profile(f, c->profile);
    if (explicit && !known)
        return err_set(err, LARDER_EINVAL, "profile %.60s: it is in neither %.60s nor %.60s", explicit,
                       f->path[CONFIG] ? f->path[CONFIG] : "~/.aws/config", f->path[CREDENTIALS] ? f->path[CREDENTIALS] : "~/.aws/credentials");
    rc = keep_settings(c, f, err);
    if (rc || anonymous)
        return rc ? rc : dup_text(&c->where, "none (anonymous)", err);
    if (explicit && ((rc = from_profile(c, f, err)) || c->n > 0))
        return rc;
    if (env("AWS_ACCESS_KEY_ID"))
        return from_environment(c, err);
    if (env("AWS_WEB_IDENTITY_TOKEN_FILE"))
        return from_web(c, err);
    if (name && !known)
        return err_set(err, LARDER_EINVAL, "AWS_PROFILE=%.60s: there is no such profile in the shared files", name);
    if (!explicit && ((rc = from_profile(c, f, err)) || c->n > 0))
        return rc;
    return from_machine(c, err);
}

int s3_chain_resolve(const char *profile, bool anonymous, struct s3_chain *c, struct larder_error *err)
{
    struct files f = {.settings = NULL};

    memset(c, 0, sizeof(*c));
    int rc = files_find(&f, err);
    if (rc == LARDER_OK)
        rc = files_read(&f, err);
    if (rc == LARDER_OK)
        rc = resolve(profile && *profile ? profile : NULL, anonymous, c, &f, err);
    files_release(&f);
    if (rc)
        s3_chain_release(c);
    return rc;
}
