/* SPDX-License-Identifier: Apache-2.0 */
/*
 * text.c - numbers, sizes, times and bytes as people read them. Pure but for clock_now_ns().
 *
 * Keys are arbitrary bytes and error messages may quote them, so nothing reaches a terminal but through
 * text_escape() or text_line(): an escape sequence in a key must not move anybody's cursor.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/tools.h"

const char *text_count(uint64_t n, char buf[TEXT_MAX])
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%" PRIu64, n), out = 0;

    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0)
            buf[out++] = ',';
        buf[out++] = digits[i];
    }
    buf[out] = 0;
    return buf;
}

/* Below 10 one decimal, else none; 999.7 kB is "1.0 MB". */
static void size_put(double v, const char *suffix, char buf[TEXT_MAX])
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    size_t u = 0;

    while (v >= (u == 0 ? 1000 : 999.5) && u + 1 < sizeof unit / sizeof *unit) {
        v /= 1000;
        u++;
    }
    snprintf(buf, TEXT_MAX, u > 0 && v < 9.95 ? "%.1f %s%s" : "%.0f %s%s", v, unit[u], suffix);
}

const char *text_size(uint64_t bytes, char buf[TEXT_MAX])
{
    size_put((double)bytes, "", buf);
    return buf;
}

const char *text_rate(double bytes_per_s, char buf[TEXT_MAX])
{
    size_put(bytes_per_s, "/s", buf);
    return buf;
}

const char *text_clock(uint64_t seconds, char buf[TEXT_MAX])
{
    uint64_t h = seconds / 3600, m = seconds / 60 % 60, s = seconds % 60;

    if (h > 0)
        snprintf(buf, TEXT_MAX, "%" PRIu64 ":%02" PRIu64 ":%02" PRIu64, h, m, s);
    else
        snprintf(buf, TEXT_MAX, "%" PRIu64 ":%02" PRIu64, m, s);
    return buf;
}

const char *text_double(double v, int is_float, char buf[TEXT_MAX])
{
    int last = is_float ? 9 : 17;

    for (int digits = is_float ? 6 : 15; digits <= last; digits++) {
        snprintf(buf, TEXT_MAX, "%.*g", digits, v);
        if (is_float ? strtof(buf, NULL) == (float)v : strtod(buf, NULL) == v)
            break;
    }
    return buf;
}

const char *text_plural(uint64_t n, const char *noun, char buf[TEXT_MAX])
{
    char number[TEXT_MAX];

    snprintf(buf, TEXT_MAX, "%.30s %.14s%s", text_count(n, number), noun, n == 1 ? "" : "s");
    return buf;
}

size_t text_utf8(const void *p, size_t n, uint32_t *cp)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = p;
    size_t len = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;

    if (len == 0 || len > n)
        return 0;
    *cp = len == 1 ? s[0] : s[0] & (0x7fu >> len);
    for (size_t i = 1; i < len; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        *cp = *cp << 6 | (s[i] & 0x3f);
    }
    if (*cp < least[len] || *cp > 0x10ffff || (*cp >= 0xd800 && *cp < 0xe000))
        return 0;
    return len;
}

int text_is_utf8(const void *p, size_t n)
{
    const char *s = p;
    uint32_t cp;
    size_t len;

    for (size_t i = 0; i < n; i += len) {
        len = text_utf8(s + i, n - i, &cp);
        if (len == 0)
            return 0;
    }
    return 1;
}

/* Neither C0, DEL and C1 nor the marks that reorder a line. */
static int printable(uint32_t cp)
{
    return cp >= 0x20 && cp != 0x7f && !(cp >= 0x80 && cp < 0xa0) && cp != 0x200e && cp != 0x200f &&
           !(cp >= 0x2028 && cp <= 0x202e) && !(cp >= 0x2066 && cp <= 0x2069);
}

static void escape(FILE *f, const unsigned char *s, size_t len, size_t max, int backslash)
{
    size_t n, shown = 0;
    uint32_t cp;

    for (size_t i = 0; i < len; i += n, shown++) {
        if (max > 0 && shown == max) {
            fputs("...", f);
            return;
        }
        n = text_utf8(s + i, len - i, &cp);
        if (n > 0 && printable(cp) && (cp != '\\' || !backslash)) {
            fwrite(s + i, 1, n, f);
            continue;
        }
        n = 1;
        if (s[i] == '\\')
            fputs("\\\\", f);
        else if (s[i] == '\n' || s[i] == '\t' || s[i] == '\r')
            fputs(s[i] == '\n' ? "\\n" : s[i] == '\t' ? "\\t" : "\\r", f);
        else
            fprintf(f, "\\x%02x", s[i]);
    }
}

void text_escape(FILE *f, const void *data, size_t len, size_t max)
{
    escape(f, data, len, max, 1);
}

void text_line(FILE *f, const char *s)
{
    escape(f, (const unsigned char *)s, strlen(s), 0, 0);
}

uint64_t clock_now_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}
