/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scratch.c - the local folder that goes with a dataset in a bucket: journals, temporary files, copies of index files.
 *
 *     <scratch folder>/<hash of the dataset's place>/      mode 0700, this user's
 *
 * The scratch folder is what the caller says, or LARDER_SCRATCH; else the first that can be written of the caches of the user and
 * the temporary folders. It is made where it is missing. Workers with a read-only root, without a home or with somebody else's come to
 * a temporary folder. Those are everybody's: "larder-<user id>" there has to be a folder that belongs to this user and not a
 * link, else somebody could have us write where they like.
 *
 * No state: any thread; two processes may make the same folder.
 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tiers/remote_io_int.h"

static const char *env(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

/* mkdir -p; 0 or an errno. */
static int make_all(const char *path)
{
    AUTO_FREE char *p = strdup(path);

    if (!p)
        return ENOMEM;
    for (char *end = p; *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        char saved = *end;
        struct stat st;
        *end = '\0';
        if (mkdir(p, 0700) != 0 && errno != EEXIST) {
            int failed = errno;
            if (stat(p, &st) != 0) /* EACCES, EROFS of a folder that is there are no matter */
                return failed;
        }
        *end = saved;
    }
    return 0;
}

/* A folder that this user can write to, and, where own, nobody else could have made or swapped. 0 or an errno. */
static int usable(const char *path, bool own)
{
    struct stat st;

    if ((own ? lstat : stat)(path, &st) != 0)
        return errno;
    if (!S_ISDIR(st.st_mode))
        return own && S_ISLNK(st.st_mode) ? ELOOP : ENOTDIR;
    if (own && st.st_uid != geteuid())
        return EPERM;
    return access(path, W_OK | X_OK) == 0 ? 0 : errno;
}

/* The dataset's folder below base; *path: malloc'd, or NULL and an errno comes back. shared: base lies where all may write. */
static int make_in(const char *base, bool shared, const char *hash, char **path)
{
    int failed = make_all(base);

    *path = NULL;
    if (failed == 0)
        failed = usable(base, shared);
    if (failed)
        return failed;
    if (asprintf(path, "%s/%s", base, hash) < 0) {
        *path = NULL;
        return ENOMEM;
    }
    if (mkdir(*path, 0700) != 0 && errno != EEXIST)
        failed = errno;
    else
        failed = usable(*path, true);
    if (failed) {
        free(*path);
        *path = NULL;
    }
    return failed;
}

static int make_said(const char *base, const char *who, const char *hash, char **path, struct larder_error *err)
{
    int failed = make_in(base, false, hash, path);

    if (failed == ENOMEM)
        return err_nomem(err, 256, "scratch folder");
    return failed ? err_sys(err, LARDER_EIO, failed, "%s: cannot be used as scratch folder (%s); name another one", base, who) : LARDER_OK;
}

/* What larder.h lists, in order. */
static int candidate(int i, char out[4096], bool *shared)
{
    const char *cache = env("XDG_CACHE_HOME"), *home = env("HOME"), *temporary = env("TMPDIR");

    *shared = i >= 2;
    switch (i) {
    case 0:
        return cache && *cache == '/' && snprintf(out, 4096, "%s/larder", cache) < 4096;
    case 1:
        return home && *home == '/' && snprintf(out, 4096, "%s/.cache/larder", home) < 4096;
    case 2:
        return temporary && *temporary == '/' && snprintf(out, 4096, "%s/larder-%lu", temporary, (unsigned long)geteuid()) < 4096;
    default:
        snprintf(out, 4096, "/tmp/larder-%lu", (unsigned long)geteuid());
        return 1;
    }
}

int scratch_make(const char *wanted, const char *key, char **path, struct larder_error *err)
{
    uint64_t digest[2];
    char hash[33], base[4096];
    bool shared;
    int failed = 0;

    *path = NULL;
    hash128(0, key, strlen(key), digest);
    hex_encode(digest, sizeof(digest), hash);
    if (wanted && *wanted)
        return make_said(wanted, "the options name it", hash, path, err);
    if (env("LARDER_SCRATCH"))
        return make_said(env("LARDER_SCRATCH"), "LARDER_SCRATCH names it", hash, path, err);
    for (int i = 0; i < 4; i++) {
        if (!candidate(i, base, &shared))
            continue;
        failed = make_in(base, shared, hash, path);
        if (failed == 0)
            return LARDER_OK;
        if (failed == ENOMEM)
            return err_nomem(err, 256, "scratch folder");
    }
    return err_sys(err, LARDER_EIO, failed, "no scratch folder: neither ~/.cache/larder nor %s can be written: set LARDER_SCRATCH", base);
}
