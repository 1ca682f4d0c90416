/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - how far a long run is, on stderr.
 *
 *     ingest [#####.....] 612,344/1,281,167  71 GB  1.0 GB/s  ETA 1:12  skipped 3
 *
 * On a terminal the line is drawn over by '\r' from the first second on; elsewhere a line without the bar is
 * printed every 10 s. Nothing is shown of a run that is over sooner. Rate and ETA come from the last few
 * seconds of the same phase: a resumed run begins far along, and a rate from its start would promise too
 * much.
 *
 * progress_update() is called by the thread that runs the verb; progress_hide() and _show() by whichever
 * thread the library tells of a notice. The lock is held from hide to show, so that lines do not tear.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "tools/tools.h"

#define SECOND 1000000000ull
#define FIRST_NS SECOND /* a bar appears after this */
#define REDRAW_NS (SECOND / 5)
#define LINE_NS (10 * SECOND) /* between plain lines */

void progress_init(struct progress *p, FILE *f, int quiet)
{
    memset(p, 0, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->f = f;
    p->mode = quiet ? PROGRESS_NONE : isatty(fileno(f)) ? PROGRESS_BAR : PROGRESS_LINES;
    p->cols = 80;
    p->start_ns = clock_now_ns();
    p->next_ns = p->start_ns + (p->mode == PROGRESS_BAR ? FIRST_NS : LINE_NS);
}

static void find_width(struct progress *p)
{
    struct winsize w;

    if (ioctl(fileno(p->f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        p->cols = w.ws_col;
}

/* Keeps a mark a second, the oldest PROGRESS_MARKS - 1 seconds ago; a new phase begins anew. */
static void mark(struct progress *p, const struct larder_progress *s, uint64_t now_ns)
{
    if (!p->phase || strcmp(p->phase, s->phase) != 0 || s->done < p->marks[p->n_marks - 1].done) {
        p->phase = s->phase;
        p->n_marks = 0;
    } else if (now_ns - p->marks[p->n_marks - 1].ns < SECOND) {
        return;
    }
    if (p->n_marks == PROGRESS_MARKS)
        memmove(p->marks, p->marks + 1, --p->n_marks * sizeof *p->marks);
    p->marks[p->n_marks++] = (struct progress_mark){now_ns, s->done, s->bytes};
}

static void append(char line[PROGRESS_LINE_MAX], const char *before, const char *text)
{
    size_t len = strlen(line);

    snprintf(line + len, PROGRESS_LINE_MAX - len, "%s%s", before, text);
}

static void append_bar(struct progress *p, const struct larder_progress *s, char line[PROGRESS_LINE_MAX])
{
    unsigned cells = p->cols <= 100 ? 10 : p->cols >= 160 ? 40 : 10 + (p->cols - 100) / 2;
    double part = s->total ? (double)s->done / (double)s->total : 0;
    unsigned full = part >= 1 ? cells : (unsigned)(part * cells);
    char bar[48];

    memset(bar, '#', full);
    memset(bar + full, '.', cells - full);
    bar[cells] = 0;
    append(line, " [", bar);
    append(line, "]", "");
}

void progress_format(struct progress *p, const struct larder_progress *s, uint64_t now_ns,
                     char line[PROGRESS_LINE_MAX])
{
    char buf[TEXT_MAX];
    double seconds, rate;

    mark(p, s, now_ns);
    seconds = (double)(now_ns - p->marks[0].ns) / 1e9;
    line[0] = 0;
    append(line, "", s->phase);
    if (p->mode == PROGRESS_BAR && s->total > 0)
        append_bar(p, s, line);
    append(line, " ", text_count(s->done, buf));
    if (s->total > 0)
        append(line, "/", text_count(s->total, buf));
    if (s->bytes > 0)
        append(line, "  ", text_size(s->bytes, buf));
    if (s->bytes > p->marks[0].bytes && seconds > 0)
        append(line, "  ", text_rate((double)(s->bytes - p->marks[0].bytes) / seconds, buf));
    rate = seconds > 0 ? (double)(s->done - p->marks[0].done) / seconds : 0;
    if (s->total >= s->done && s->total > 0 && rate > 0)
        append(line, "  ETA ", text_clock((uint64_t)ceil((double)(s->total - s->done) / rate), buf));
    if (s->skipped > 0)
        append(line, "  skipped ", text_count(s->skipped, buf));
}

static void draw(struct progress *p, char line[PROGRESS_LINE_MAX])
{
    unsigned len;

    if (strlen(line) >= p->cols)
        line[p->cols - 1] = 0; /* a line that wraps could not be drawn over */
    len = (unsigned)strlen(line);
    fprintf(p->f, "\r%-*s", (int)(len > p->drawn ? len : p->drawn), line);
    fflush(p->f);
    p->drawn = len;
}

void progress_update(struct progress *p, const struct larder_progress *s, uint64_t now_ns)
{
    char line[PROGRESS_LINE_MAX];

    if (p->mode == PROGRESS_NONE)
        return;
    pthread_mutex_lock(&p->lock);
    mark(p, s, now_ns);
    if (now_ns >= p->next_ns) {
        if (p->mode == PROGRESS_BAR)
            find_width(p);
        progress_format(p, s, now_ns, line);
        if (p->mode == PROGRESS_BAR)
            draw(p, line);
        else
            fprintf(p->f, "%s\n", line);
        p->next_ns = now_ns + (p->mode == PROGRESS_BAR ? REDRAW_NS : LINE_NS);
    } else if (p->drawn > 0 && s->total > 0 && s->done >= s->total) {
        progress_format(p, s, now_ns, line); /* the last one of a phase: a full bar stays on the screen */
        draw(p, line);
    }
    pthread_mutex_unlock(&p->lock);
}

void progress_hide(struct progress *p)
{
    pthread_mutex_lock(&p->lock);
    if (p->drawn > 0) {
        fprintf(p->f, "\r%*s\r", (int)p->drawn, "");
        fflush(p->f);
        p->drawn = 0;
        p->next_ns = 0;
    }
}

void progress_show(struct progress *p)
{
    pthread_mutex_unlock(&p->lock);
}

void progress_end(struct progress *p)
{
    if (p->mode == PROGRESS_NONE)
        return;
    pthread_mutex_lock(&p->lock);
    if (p->drawn > 0) {
        fputc('\n', p->f);
        p->drawn = 0;
    }
    p->mode = PROGRESS_NONE;
    pthread_mutex_unlock(&p->lock);
}
