/* SPDX-License-Identifier: Apache-2.0 */
/* skew.c - for LD_PRELOAD: the time of day is SKEW_SECONDS off, the monotonic clock as it is. test_errors.sh builds it. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *t)
{
    const char *skew = getenv("SKEW_SECONDS");
    int rc = (int)syscall(SYS_clock_gettime, clock, t);

    if (rc == 0 && skew && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        t->tv_sec += atol(skew);
    return rc;
}

time_t time(time_t *out)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec t;

    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    *tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}
