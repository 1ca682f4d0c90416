/* SPDX-License-Identifier: Apache-2.0 */
/*
 * err.c - filling struct larder_error.
 *
 * A message is one line of at most 243 bytes. Text is made in a local buffer first, so that arguments may point into the
 * error that is being filled (err_prefix does that). What does not fit is cut at a character boundary and ends in "...";
 * the system's reason (err_sys) is kept whole and the text before it is cut instead. Control bytes, which file names
 * from outside may hold, become '?': a message never breaks a line or drives a terminal.
 *
 * No state: any thread.
 */
#include <errno.h>

#include "store/base/base.h"

enum { MESSAGE_SIZE = sizeof(((struct larder_error *)0)->message) };

/* Cuts text (len bytes, NUL follows) to at most max bytes, "..." included, without splitting a UTF-8 character. */
static void cut(char *text, size_t len, size_t max)
{
    if (len <= max)
        return;
    size_t at = max - 3;
    while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80)
        at--;
    memcpy(text + at, "...", 4);
}

static void clean(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

/* Formats into out; at most max bytes and NUL. */
static void format(char *out, size_t out_size, size_t max, const char *fmt, va_list ap)
{
    int n = vsnprintf(out, out_size, fmt, ap);

    if (n < 0)
        snprintf(out, out_size, "(the message could not be formatted)");
    cut(out, strlen(out), max);
    clean(out);
}

int err_set(struct larder_error *err, int code, const char *fmt, ...)
{
    if (!err)
        return code;

    char text[MESSAGE_SIZE + 8];
    va_list ap;
    va_start(ap, fmt);
    format(text, sizeof(text), MESSAGE_SIZE - 1, fmt, ap);
    va_end(ap);

    memset(err, 0, sizeof(*err));
    err->code = code;
    memcpy(err->message, text, strlen(text));
    return code;
}

int err_sys(struct larder_error *err, int code, int sys_errno, const char *fmt, ...)
{
    if (!err)
        return code;

    char reason_buf[96], text[MESSAGE_SIZE + 8];
    const char *reason = strerror_r(sys_errno, reason_buf, sizeof(reason_buf));
    size_t reason_len = MIN(strlen(reason), sizeof(reason_buf));
    va_list ap;
    va_start(ap, fmt);
    format(text, sizeof(text), MESSAGE_SIZE - 1 - 2 - reason_len, fmt, ap);
    va_end(ap);

    memset(err, 0, sizeof(*err));
    err->code = code;
    err->sys_errno = sys_errno;
    size_t len = strlen(text);
    memcpy(err->message, text, len);
    memcpy(err->message + len, ": ", 2);
    memcpy(err->message + len + 2, reason, reason_len);
    return code;
}

int err_nomem(struct larder_error *err, size_t bytes, const char *what)
{
    err_set(err, LARDER_ENOMEM, "%s: out of memory, %zu bytes wanted", what, bytes);
    if (err)
        err->sys_errno = ENOMEM;
    return LARDER_ENOMEM;
}

int err_code_of(int sys_errno)
{
    switch (sys_errno) {
    case ENOENT:
        return LARDER_ENOTFOUND;
    case EEXIST:
        return LARDER_EEXIST;
    case ENOMEM:
        return LARDER_ENOMEM;
    default:
        return LARDER_EIO;
    }
}

int err_prefix(struct larder_error *err, int code, const char *fmt, ...)
{
    if (!err)
        return code;

    char prefix[MESSAGE_SIZE + 8], text[2 * MESSAGE_SIZE + 16];
    va_list ap;
    va_start(ap, fmt);
    format(prefix, sizeof(prefix), MESSAGE_SIZE - 1, fmt, ap);
    va_end(ap);

    int n = snprintf(text, sizeof(text), "%s: %.*s", prefix, (int)MESSAGE_SIZE, err->message);
    cut(text, (size_t)MAX(n, 0), MESSAGE_SIZE - 1);
    memset(err->message, 0, sizeof(err->message));
    memcpy(err->message, text, strlen(text));
    if (err->code == LARDER_OK)
        err->code = code;
    return err->code;
}

const char *key_text(const void *key, size_t len, char out[256])
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *k = key;
    size_t at = 0;

    for (size_t i = 0; i < len && i < 60; i++) {
        if (k[i] >= 0x20 && k[i] < 0x7f && k[i] != '\\') {
            out[at++] = (char)k[i];
        } else {
            out[at++] = '\\';
            out[at++] = 'x';
            out[at++] = digits[k[i] >> 4];
            out[at++] = digits[k[i] & 15];
        }
    }
    memcpy(out + at, len > 60 ? "..." : "", len > 60 ? 4 : 1);
    return out;
}
