/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_fake.h - tiers/http.h without a network, for tests of what stands on it: include it once, before TEST_MAIN.
 *
 * Each transfer is answered on a thread of its own by fake_answer, which fills in status and body (fake_reply) or the way it ended. A
 * transfer with end FAKE_HANG is over when it is canceled. All are over when fake_settle returns.
 */
#ifndef HTTP_FAKE_H
#define HTTP_FAKE_H

#include <pthread.h>

#include "tests/unit/test.h"
#include "tiers/http.h"

#define FAKE_HANG ((enum http_end)99)

static void (*fake_answer)(struct http_transfer *t);
static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;
static int fake_running, fake_started; /* under fake_lock */
static struct http_transfer *fake_canceled;

TEST_UNUSED static void fake_reply(struct http_transfer *t, int status, const char *body)
{
    t->end = HTTP_DONE;
    t->status = status;
    if (status / 100 == 2 && t->out)
        CHECK(buf_append(t->out, body, strlen(body), NULL) == LARDER_OK);
    else
        t->text_len = (size_t)snprintf(t->text, sizeof(t->text), "%s", body);
}

/* The value of a header that is sent; "" where absent. */
TEST_UNUSED static const char *fake_header(const struct http_transfer *t, const char *name)
{
    size_t n = strlen(name);

    for (size_t i = 0; i < t->n_headers; i++)
        if (strncasecmp(t->headers[i], name, n) == 0 && t->headers[i][n] == ':')
            return t->headers[i] + n + 1 + strspn(t->headers[i] + n + 1, " ");
    return "";
}

static void *fake_thread(void *user)
{
    struct http_transfer *t = user;

    fake_answer(t);
    if (t->end == FAKE_HANG) {
        pthread_mutex_lock(&fake_lock);
        while (fake_canceled != t)
            pthread_cond_wait(&fake_changed, &fake_lock);
        fake_canceled = NULL;
        pthread_mutex_unlock(&fake_lock);
        t->end = HTTP_CANCELED;
    }
    t->done(t);
    pthread_mutex_lock(&fake_lock);
    fake_running--;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

void http_start(struct http *h, struct http_transfer *t)
{
    pthread_t thread;

    (void)h;
    pthread_mutex_lock(&fake_lock);
    fake_running++;
    fake_started++;
    pthread_mutex_unlock(&fake_lock);
    if (pthread_create(&thread, NULL, fake_thread, t) != 0)
        abort();
    pthread_detach(thread);
}

void http_cancel(struct http *h, struct http_transfer *t)
{
    (void)h;
    pthread_mutex_lock(&fake_lock);
    fake_canceled = t;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
}

const char *http_end_name(enum http_end end) { return end == HTTP_CONNECT ? "no connection" : "ended"; }

/* Waits until all transfers are over; how many were started since the last call. */
TEST_UNUSED static int fake_settle(void)
{
    pthread_mutex_lock(&fake_lock);
    while (fake_running > 0)
        pthread_cond_wait(&fake_changed, &fake_lock);
    int n = fake_started;
    fake_started = 0;
    fake_canceled = NULL;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

#endif
