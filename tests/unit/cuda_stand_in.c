/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_stand_in.c - a libcuda.so.1 without a device, for test_cuda.c: does the driver's bookkeeping of contexts and registered memory,
 * refuses what the driver refuses, and writes each call into a file.
 *
 *     STAND_IN_LOG       the file: a line a call, "name pid argument argument flags context result"
 *     STAND_IN_DEVICES   how many there are (1)
 *     STAND_IN_INIT      what cuInit returns (0)
 *     STAND_IN_RETAIN    what cuDevicePrimaryCtxRetain returns (0)
 *     STAND_IN_REGISTER  what cuMemHostRegister returns from call number STAND_IN_FROM (0) on
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES_MAX 8
#define PIECES_MAX 4096

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
       ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, UNKNOWN = 999 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static pid_t owner;                                      /* who initialised; 0: nobody */
static int retained[DEVICES_MAX];
static struct { uintptr_t at, bytes; } pieces[PIECES_MAX];
static int n_pieces, n_register;
static __thread uintptr_t current[16]; /* contexts: 0x1000 + device */
static __thread int depth;

int cuInit(unsigned flags);
int cuDeviceGetCount(int *n);
int cuDeviceGet(int *device, int ordinal);
int cuGetErrorName(int error, const char **name);
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags);
int cuMemHostUnregister(void *p);

static int number(const char *name, int otherwise)
{
    const char *v = getenv(name);
    return v ? atoi(v) : otherwise;
}

static int told(const char *name, uintptr_t a, uintptr_t b, unsigned flags, int result)
{
    char line[256];
    const char *path = getenv("STAND_IN_LOG");
    int len = snprintf(line, sizeof line, "%s %d %lx %lx %u %lx %d\n", name, (int)getpid(), (unsigned long)a, (unsigned long)b, flags,
                       (unsigned long)(depth ? current[depth - 1] : 0), result);
    int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (fd >= 0 && write(fd, line, (size_t)len) != len)
        abort();
    if (fd >= 0)
        close(fd);
    return result;
}

/* The driver does not survive a fork. */
static int ready(void) { return owner == getpid() ? OK : NOT_INITIALIZED; }
static int good_device(int d) { return d >= 0 && d < number("STAND_IN_DEVICES", 1) ? ready() : ready() ? ready() : INVALID_DEVICE; }

int cuInit(unsigned flags)
{
    pthread_mutex_lock(&lock);
    int rc = number("STAND_IN_INIT", OK);
    if (!rc && flags)
        rc = INVALID_VALUE;
    if (!rc && owner && owner != getpid())
        rc = NOT_INITIALIZED;
    if (!rc)
        owner = getpid();
    pthread_mutex_unlock(&lock);
    return told("cuInit", 0, 0, flags, rc);
}

int cuDeviceGetCount(int *n)
{
    pthread_mutex_lock(&lock);
    int rc = ready();
    pthread_mutex_unlock(&lock);
    if (!rc)
        *n = number("STAND_IN_DEVICES", 1);
    return told("cuDeviceGetCount", 0, 0, 0, rc);
}

int cuDeviceGet(int *device, int ordinal)
{
    pthread_mutex_lock(&lock);
    int rc = good_device(ordinal);
    pthread_mutex_unlock(&lock);
    if (!rc)
        *device = ordinal;
    return told("cuDeviceGet", (uintptr_t)ordinal, 0, 0, rc);
}

int cuGetErrorName(int error, const char **name)
{
    static const struct { int error; const char *name; } names[] = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"}, {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}, {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"}, {UNKNOWN, "CUDA_ERROR_UNKNOWN"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].error == error) {
            *name = names[i].name;
            return OK;
        }
    }
    return INVALID_VALUE;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    pthread_mutex_lock(&lock);
    int rc = good_device(device);
    if (!rc) {
        *flags = 0;
        *active = retained[device] > 0;
    }
    pthread_mutex_unlock(&lock);
    return told("cuDevicePrimaryCtxGetState", (uintptr_t)device, 0, 0, rc);
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    pthread_mutex_lock(&lock);
    int rc = good_device(device);
    if (!rc)
        rc = number("STAND_IN_RETAIN", OK);
    if (!rc) {
        retained[device]++;
        *context = (void *)(uintptr_t)(0x1000 + device);
    }
    pthread_mutex_unlock(&lock);
    return told("cuDevicePrimaryCtxRetain", (uintptr_t)device, 0, 0, rc);
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    pthread_mutex_lock(&lock);
    int rc = good_device(device);
    if (!rc && --retained[device] < 0)
        rc = INVALID_CONTEXT;
    pthread_mutex_unlock(&lock);
    return told("cuDevicePrimaryCtxRelease_v2", (uintptr_t)device, 0, 0, rc);
}

int cuCtxPushCurrent_v2(void *context)
{
    uintptr_t c = (uintptr_t)context;
    pthread_mutex_lock(&lock);
    int rc = ready();
    if (!rc && (c < 0x1000 || c >= 0x1000 + DEVICES_MAX || retained[c - 0x1000] <= 0 || depth == 16))
        rc = INVALID_CONTEXT;
    pthread_mutex_unlock(&lock);
    if (!rc)
        current[depth++] = c;
    return told("cuCtxPushCurrent_v2", c, 0, 0, rc);
}

int cuCtxPopCurrent_v2(void **context)
{
    int rc = depth ? OK : INVALID_CONTEXT;
    if (!rc)
        *context = (void *)current[--depth];
    return told("cuCtxPopCurrent_v2", 0, 0, 0, rc);
}

int cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags)
{
    uintptr_t at = (uintptr_t)p;
    pthread_mutex_lock(&lock);
    int rc = ready();
    if (!rc && !depth)
        rc = INVALID_CONTEXT;
    if (!rc && n_register++ >= number("STAND_IN_FROM", 0))
        rc = number("STAND_IN_REGISTER", OK);
    for (int i = 0; !rc && i < n_pieces; i++)
        if (at < pieces[i].at + pieces[i].bytes && pieces[i].at < at + bytes)
            rc = ALREADY_REGISTERED;
    if (!rc && (!bytes || n_pieces == PIECES_MAX))
        rc = INVALID_VALUE;
    if (!rc) {
        for (size_t i = 0; i < bytes; i += 4096)
            (void)*(volatile uint8_t *)(at + i); /* it has to be there */
        pieces[n_pieces].at = at;
        pieces[n_pieces++].bytes = bytes;
    }
    pthread_mutex_unlock(&lock);
    return told("cuMemHostRegister_v2", at, bytes, flags, rc);
}

int cuMemHostUnregister(void *p)
{
    pthread_mutex_lock(&lock);
    int rc = ready(), i;
    for (i = 0; i < n_pieces && pieces[i].at != (uintptr_t)p; i++)
        ;
    if (!rc && !depth)
        rc = INVALID_CONTEXT;
    if (!rc && i == n_pieces)
        rc = NOT_REGISTERED;
    if (!rc)
        pieces[i] = pieces[--n_pieces];
    pthread_mutex_unlock(&lock);
    return told("cuMemHostUnregister", (uintptr_t)p, 0, 0, rc);
}
