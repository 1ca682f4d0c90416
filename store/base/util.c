/* SPDX-License-Identifier: Apache-2.0 */
/*
 * util.c - small things that every layer needs: guards, arrays, clocks, random bytes, whole reads and writes, unnamed files, hexadecimal, dataset
 * URIs.
 *
 * No state: any thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "store/base/base.h"

void guard_fd(int *fd)
{
    if (*fd >= 0) {
        int saved = errno;
        close(*fd);
        errno = saved;
        *fd = -1;
    }
}

int grow_array(void **array, size_t *cap, size_t want, size_t elem, struct larder_error *err)
{
    if (want <= *cap)
        return LARDER_OK;
    size_t max = SIZE_MAX / 2 / elem;
    if (want > max)
        return err_nomem(err, SIZE_MAX, "array");

    size_t grown = MAX(want, (size_t)8);
    if (*cap < max / 2)
        grown = MAX(grown, *cap + *cap / 2);
    void *old;
    memcpy(&old, array, sizeof(old)); /* *array is a T * of the caller's */
    void *p = realloc(old, grown * elem);
    if (!p)
        return err_nomem(err, grown * elem, "array");
    memcpy(array, &p, sizeof(p));
    *cap = grown;
    return LARDER_OK;
}

void strings_free(char **strings, size_t n)
{
    for (size_t i = 0; strings && i < n; i++)
        free(strings[i]);
    free(strings);
}

int strings_copy(char *const *strings, size_t n, char ***out, struct larder_error *err)
{
    char **copy = calloc(n + 1, sizeof(*copy));

    *out = NULL;
    if (!copy)
        return err_nomem(err, n * sizeof(*copy), "strings");
    for (size_t i = 0; i < n; i++)
        if (!(copy[i] = strdup(strings[i]))) {
            strings_free(copy, i);
            return err_nomem(err, strlen(strings[i]) + 1, "a string");
        }
    *out = copy;
    return LARDER_OK;
}

void *bytes_dup(const void *data, size_t len)
{
    uint8_t *copy = malloc(len + 1);

    if (!copy)
        return NULL;
    if (len)
        memcpy(copy, data, len);
    copy[len] = 0;
    return copy;
}

ssize_t read_fully(int fd, void *data, size_t len, uint64_t offset)
{
    size_t done = 0;

    while (done < len) {
        ssize_t n = pread(fd, (uint8_t *)data + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int write_fully(int fd, const void *data, size_t len, uint64_t offset)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = pwrite(fd, (const uint8_t *)data + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = ENOSPC;
        if (n <= 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

int unnamed_file(const char *dir, struct larder_error *err)
{
    AUTO_BUF struct buf path = BUF_INIT;
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd >= 0)
        return fd;
    int rc = buf_printf(&path, err, "%s/.tmp-XXXXXX", dir);
    if (rc)
        return rc;
    fd = mkostemp((char *)path.data, O_CLOEXEC);
    if (fd < 0)
        return err_sys(err, LARDER_EIO, errno, "%s: cannot make a temporary file", dir);
    unlink((char *)path.data);
    return fd;
}

uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now_wall_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec > 0 ? (uint64_t)t.tv_sec : 0;
}

int random_bytes(void *out, size_t len, struct larder_error *err)
{
    uint8_t *p = out;

    while (len > 0) {
        ssize_t n = getrandom(p, len, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_sys(err, LARDER_EIO, n < 0 ? errno : EIO, "getrandom: no random bytes from the kernel");
        p += n;
        len -= (size_t)n;
    }
    return LARDER_OK;
}

/* ---- hexadecimal ---- */

void hex_encode(const void *data, size_t len, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = data;

    for (size_t i = 0; i < len; i++) {
        *out++ = digits[p[i] >> 4];
        *out++ = digits[p[i] & 15];
    }
    *out = '\0';
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

bool hex_decode(const char *text, size_t text_len, void *out, size_t len)
{
    if (text_len / 2 != len || text_len % 2)
        return false;
    for (size_t i = 0; i < text_len; i++)
        if (hex_digit(text[i]) < 0)
            return false;
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)out)[i] = (uint8_t)(hex_digit(text[2 * i]) << 4 | hex_digit(text[2 * i + 1]));
    return true;
}

/* ---- dataset URIs ---- */

static bool is_alpha(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* Length of "scheme" when uri begins with "scheme://" (RFC 3986, 3.1), else 0. */
static size_t scheme_len(const char *uri)
{
    size_t n = 0;

    if (!is_alpha(uri[0]))
        return 0;
    while (is_alpha(uri[n]) || (uri[n] >= '0' && uri[n] <= '9') || (uri[n] && strchr("+-.", uri[n])))
        n++;
    return strncmp(uri + n, "://", 3) == 0 ? n : 0;
}

/* Undoes %NN in place. False: not two digits, or a NUL. */
static bool percent_decode(char *s)
{
    char *to = s;

    for (; *s; s++) {
        if (*s != '%') {
            *to++ = *s;
            continue;
        }
        int hi = hex_digit(s[1]), lo = hi < 0 ? -1 : hex_digit(s[2]);
        if (lo < 0 || (hi == 0 && lo == 0))
            return false;
        *to++ = (char)(hi << 4 | lo);
        s += 2;
    }
    *to = '\0';
    return true;
}

/* "cwd/path"; malloc'd. */
static int absolute(const char *path, char **out, struct larder_error *err)
{
    AUTO_FREE char *cwd = getcwd(NULL, 0);

    if (!cwd)
        return err_sys(err, err_code_of(errno), errno, "%s: the current directory cannot be told, give an absolute path", path);
    while (path[0] == '.' && (path[1] == '/' || path[1] == '\0')) {
        path++;
        path += strspn(path, "/");
    }
    size_t len = strlen(cwd) + 1 + strlen(path) + 1;
    *out = malloc(len);
    if (!*out)
        return err_nomem(err, len, "path");
    snprintf(*out, len, "%s%s%s", cwd, strcmp(cwd, "/") ? "/" : "", path);
    return LARDER_OK;
}

int uri_to_path(const char *uri, char **path, struct larder_error *err)
{
    if (!uri || !*uri)
        return err_set(err, LARDER_EINVAL, "the dataset's name is empty: give /path or file:///path");

    size_t scheme = scheme_len(uri);
    if (scheme && (scheme != 4 || strncasecmp(uri, "file", 4) != 0))
        return err_set(err, LARDER_EINVAL, "%s: scheme %.*s:// is not supported, only /path and file:///path are", uri,
                       (int)scheme, uri);
    if (scheme && uri[7] != '/')
        return err_set(err, LARDER_EINVAL, "%s: a file URI has three slashes: file:///path", uri);

    AUTO_FREE char *p = NULL;
    if (scheme || uri[0] == '/') {
        p = strdup(scheme ? uri + 7 : uri);
        if (!p)
            return err_nomem(err, strlen(uri) + 1, "path");
        if (scheme && !percent_decode(p))
            return err_set(err, LARDER_EINVAL, "%s: '%%' is not followed by two hexadecimal digits", uri);
    } else {
        int rc = absolute(uri, &p, err);
        if (rc)
            return rc;
    }
    size_t len = strlen(p);
    while (len > 1 && p[len - 1] == '/')
        p[--len] = '\0';
    *path = p;
    p = NULL;
    return LARDER_OK;
}
