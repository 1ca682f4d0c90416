/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - what each batch went through, as a file for chrome://tracing and its kin (Trace Event Format, the array form).
 *
 * Threads that do something are rows of spans ("X"); the states of batches overlap, so they are asynchronous events ("b", "e") with the batch's
 * number as id. An event is formatted into a buffer under a lock and written by a thread of its own, when half of the buffer is full or a
 * second has passed: whoever reports one never waits for a disk. When the buffer is full events are dropped, and the last one says how many.
 *
 * The file ends with a whole event at any time but while it is written to, and each event but the first begins with the comma: a run that is
 * killed leaves an array that lacks its bracket, which viewers accept; closing writes it. A write that fails ends the trace, not the run.
 *
 * Threads: any. lock guards the buffer; the file is the writer's, and the closer's when it has ended.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "loader/prep_int.h"

#define BUFFER (256 * KIB)
#define EVENT_MAX 512u
#define WRITE_AFTER_S 1

struct trace {
    int fd;
    pid_t pid;
    uint64_t begin_ns;       /* events count from here */
    char *other;             /* the writer's: what it writes */
    pthread_t thread;
    pthread_mutex_t lock;    /* guards all below */
    pthread_cond_t work;
    char *buffer;
    size_t len;
    bool any, stop, failed;
    uint64_t dropped;
};

/* ---- the writer ---- */

static bool write_all(int fd, const char *text, size_t len)
{
    while (len) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        len -= (size_t)n;
    }
    return true;
}

/* Until there is enough, a second has passed, or it is over. With the lock held. */
static void wait_for_work(struct trace *t)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += WRITE_AFTER_S;
    while (!t->stop && t->len < BUFFER / 2)
        if (pthread_cond_timedwait(&t->work, &t->lock, &until) == ETIMEDOUT) {
            if (t->len)
                return;
            until.tv_sec += WRITE_AFTER_S;
        }
}

static void *write_main(void *arg)
{
    struct trace *t = arg;
    pthread_mutex_lock(&t->lock);
    for (bool stop = false; !stop;) {
        wait_for_work(t);
        char *full = t->buffer;
        size_t len = t->len;
        stop = t->stop;
        t->buffer = t->other;
        t->len = 0;
        t->other = full;
        bool failed = t->failed;
        pthread_mutex_unlock(&t->lock);
        failed = failed || !write_all(t->fd, full, len);
        pthread_mutex_lock(&t->lock);
        t->failed = failed;
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

/* ---- events ---- */

/* Takes one or two events as one: both or none. */
static void add(struct trace *t, const char *text, size_t len)
{
    pthread_mutex_lock(&t->lock);
    if (t->failed || t->len + len + 4 > BUFFER) {
        t->dropped++;
    } else {
        memcpy(t->buffer + t->len, t->any ? ",\n" : "\n", t->any ? 2 : 1);
        t->len += t->any ? 2 : 1;
        memcpy(t->buffer + t->len, text, len);
        t->len += len;
        t->any = true;
        if (t->len >= BUFFER / 2)
            pthread_cond_signal(&t->work);
    }
    pthread_mutex_unlock(&t->lock);
}

/* Microseconds since the trace began, as text with three decimals. */
struct stamp { char text[32]; };
static struct stamp stamp_of(uint64_t ns)
{
    struct stamp s;
    snprintf(s.text, sizeof(s.text), "%llu.%03u", (unsigned long long)(ns / 1000), (unsigned)(ns % 1000));
    return s;
}

static uint64_t since(const struct trace *t, uint64_t ns) { return ns > t->begin_ns ? ns - t->begin_ns : 0; }

void trace_thread(struct trace *t, uint32_t thread, const char *name)
{
    char text[EVENT_MAX];
    if (!t)
        return;
    int n = snprintf(text, sizeof(text), "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"args\":{\"name\":\"%.40s\"}},\n"
                     "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"args\":{\"sort_index\":%u}}", (int)t->pid, thread, name,
                     (int)t->pid, thread, thread);
    add(t, text, (size_t)n);
}

void trace_span(struct trace *t, uint32_t thread, const char *what, uint64_t begin_ns, uint64_t end_ns, const struct trace_batch *b)
{
    char text[EVENT_MAX];
    if (!t)
        return;
    struct stamp at = stamp_of(since(t, begin_ns)), took = stamp_of(end_ns > begin_ns ? end_ns - begin_ns : 0);
    int n = snprintf(text, sizeof(text), "{\"name\":\"%.20s\",\"cat\":\"batch\",\"ph\":\"X\",\"ts\":%s,\"dur\":%s,\"pid\":%d,\"tid\":%u,"
                     "\"args\":{\"epoch\":%llu,\"batch\":%llu,\"samples\":%u}}", what, at.text, took.text, (int)t->pid, thread,
                     (unsigned long long)b->epoch, (unsigned long long)b->number, b->samples);
    add(t, text, (size_t)n);
}

void trace_state(struct trace *t, const char *what, uint64_t begin_ns, uint64_t end_ns, const struct trace_batch *b)
{
    char text[EVENT_MAX];
    if (!t)
        return;
    struct stamp from = stamp_of(since(t, begin_ns)), to = stamp_of(since(t, MAX(begin_ns, end_ns)));
    int n = snprintf(text, sizeof(text), "{\"name\":\"%.20s\",\"cat\":\"batch\",\"ph\":\"b\",\"id\":%llu,\"ts\":%s,\"pid\":%d,\"tid\":%u,"
                     "\"args\":{\"epoch\":%llu,\"batch\":%llu,\"samples\":%u}},\n"
                     "{\"name\":\"%.20s\",\"cat\":\"batch\",\"ph\":\"e\",\"id\":%llu,\"ts\":%s,\"pid\":%d,\"tid\":%u}",
                     what, (unsigned long long)b->seq, from.text, (int)t->pid, TRACE_PLAN, (unsigned long long)b->epoch,
                     (unsigned long long)b->number, b->samples, what, (unsigned long long)b->seq, to.text, (int)t->pid, TRACE_PLAN);
    add(t, text, (size_t)n);
}

/* ---- open and close ---- */

static void dispose(struct trace *t)
{
    if (t->fd >= 0)
        close(t->fd);
    free(t->buffer);
    free(t->other);
    pthread_cond_destroy(&t->work);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

static int start_writer(struct trace *t, const char *path, struct larder_error *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&t->thread, NULL, write_main, t);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return e ? err_sys(err, LARDER_EIO, e, "%s: starting the thread that writes the trace", path) : LARDER_OK;
}

int trace_open(const char *path, struct trace **out, struct larder_error *err)
{
    pthread_condattr_t attr;
    struct trace *t = calloc(1, sizeof(*t));
    *out = NULL;
    if (!t)
        return err_nomem(err, sizeof(*t), "a trace");
    t->pid = getpid();
    t->begin_ns = now_ns();
    pthread_mutex_init(&t->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&t->work, &attr);
    pthread_condattr_destroy(&attr);
    t->buffer = malloc(BUFFER);
    t->other = malloc(BUFFER);
    t->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    int rc = !t->buffer || !t->other ? err_nomem(err, BUFFER, "a trace") :
             t->fd < 0 ? err_sys(err, LARDER_EIO, errno, "%s: cannot write a trace there", path) : LARDER_OK;
    if (!rc && !write_all(t->fd, "[", 1))
        rc = err_sys(err, LARDER_EIO, errno, "%s: cannot write a trace there", path);
    if (!rc)
        rc = start_writer(t, path, err);
    if (rc) {
        dispose(t);
        return rc;
    }
    *out = t;
    return LARDER_OK;
}

void trace_close(struct trace *t)
{
    char text[EVENT_MAX];
    if (!t)
        return;
    if (t->pid != getpid()) { /* its thread is the parent's, and its lock may be held for ever */
        close(t->fd);
        free(t->buffer);
        free(t->other);
        free(t);
        return;
    }
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->work);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    int n = 0;
    if (t->dropped)
        n = snprintf(text, sizeof(text), "%s{\"name\":\"%llu events dropped\",\"ph\":\"i\",\"s\":\"g\",\"ts\":%s,\"pid\":%d,\"tid\":%u}",
                     t->any ? ",\n" : "\n", (unsigned long long)t->dropped, stamp_of(since(t, now_ns())).text, (int)t->pid, TRACE_PLAN);
    if (!t->failed && write_all(t->fd, text, (size_t)n))
        (void)write_all(t->fd, "\n]\n", 3);
    dispose(t);
}
