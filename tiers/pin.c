/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pin.c - makes the arena's memory good to read from as it is taken into use: huge pages, locked, registered with CUDA.
 *
 * Nothing is prepared ahead, so a large budget costs no pause at the start: whenever the arena has grown, what is new is
 * collapsed into 2 MiB pages, locked as far as RLIMIT_MEMLOCK goes, and registered if this process has a CUDA context (it
 * then has libcuda loaded; nothing is loaded, and no context made, for this). All of it is a help, none of it a need: what is
 * refused is not tried again, and a warning says what was lost.
 *
 * Threads: pin.lock is tried by whoever let the arena grow; if another thread is at it, the next growth catches up.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>

#include "tiers/dram_int.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* since Linux 5.14 */
#endif
#define REGISTER_BYTES (16 * ARENA_HUGE) /* at once */
#define REGISTER_PORTABLE 1u

struct cuda_calls {
    int (*device_get)(int *device, int ordinal);
    int (*context_state)(int device, unsigned *flags, int *active);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_push)(void *context);
    int (*context_pop)(void **context);
    int (*mem_register)(void *p, size_t bytes, unsigned flags);
    int (*mem_unregister)(void *p);
    int device;
};

void pin_init(struct pin *p)
{
    *p = (struct pin){0};
    pthread_mutex_init(&p->lock, NULL);
}

void dram_no_pin(struct dram *d) { d->pin.no_lock = d->pin.no_cuda = true; }

/* ---- CUDA ---- */

static void *call_named(void *lib, const char *name, const char *newer)
{
    void *f = newer ? dlsym(lib, newer) : NULL;
    return f ? f : dlsym(lib, name);
}

/* The driver's functions, when this process has loaded it already. */
static struct cuda_calls *cuda_load(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    struct cuda_calls *c = lib ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return NULL;
    *(void **)&c->device_get = call_named(lib, "cuDeviceGet", NULL);
    *(void **)&c->context_state = call_named(lib, "cuDevicePrimaryCtxGetState", NULL);
    *(void **)&c->context_retain = call_named(lib, "cuDevicePrimaryCtxRetain", NULL);
    *(void **)&c->context_release = call_named(lib, "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2");
    *(void **)&c->context_push = call_named(lib, "cuCtxPushCurrent", "cuCtxPushCurrent_v2");
    *(void **)&c->context_pop = call_named(lib, "cuCtxPopCurrent", "cuCtxPopCurrent_v2");
    *(void **)&c->mem_register = call_named(lib, "cuMemHostRegister", "cuMemHostRegister_v2");
    *(void **)&c->mem_unregister = call_named(lib, "cuMemHostUnregister", NULL);
    if (c->device_get && c->context_state && c->context_retain && c->context_release && c->context_push && c->context_pop &&
        c->mem_register && c->mem_unregister)
        return c; /* the library stays loaded by this reference */
    free(c);
    dlclose(lib);
    return NULL;
}

/* Makes the primary context current that the process has on its first device with one. */
static bool cuda_enter(struct cuda_calls *c)
{
    for (int i = 0; i < 64; i++) {
        unsigned flags;
        int device, active = 0;
        void *context;
        if (c->device_get(&device, i) != 0)
            return false;
        if (c->context_state(device, &flags, &active) != 0 || !active)
            continue;
        if (c->context_retain(&context, device) != 0)
            return false;
        if (c->context_push(context) == 0) {
            c->device = device;
            return true;
        }
        c->context_release(device);
        return false;
    }
    return false;
}

static void cuda_leave(struct cuda_calls *c)
{
    void *context;
    c->context_pop(&context);
    c->context_release(c->device);
}

static void cuda_register(struct pin *p, uint8_t *slabs, uint64_t end)
{
    if (p->no_cuda || end - p->cuda_done < REGISTER_BYTES)
        return;
    if (!p->cuda)
        p->cuda = cuda_load();
    if (!p->cuda || !cuda_enter(p->cuda))
        return;
    struct cuda_calls *c = p->cuda;
    uint64_t bytes = round_down(end - p->cuda_done, ARENA_HUGE);
    if (GROW(p->registered, p->cap_registered, p->n_registered + 1, NULL) != LARDER_OK ||
        c->mem_register(slabs + p->cuda_done, bytes, REGISTER_PORTABLE) != 0) {
        p->no_cuda = true;
        if (!p->warning)
            p->warning = "CUDA refused to register the cache's memory: copies to the device go through its own buffers";
    } else {
        p->registered[p->n_registered++] = slabs + p->cuda_done;
        p->cuda_done += bytes;
    }
    cuda_leave(c);
}

void pin_release(struct pin *p)
{
    struct cuda_calls *c = p->cuda;
    if (p->n_registered && cuda_enter(c)) {
        for (size_t i = 0; i < p->n_registered; i++)
            c->mem_unregister(p->registered[i]);
        cuda_leave(c);
    }
    free(p->registered);
    free(p->cuda);
    pthread_mutex_destroy(&p->lock);
}

/* ---- pages ---- */

/* [from, to) at base is in use now: whole huge pages first, then the lock, which would fill it with small ones. */
static void settle(struct pin *p, uint8_t *base, uint64_t from, uint64_t to)
{
    bool aligned = (uintptr_t)base % ARENA_HUGE == 0;
    for (uint64_t at = round_down(from, ARENA_HUGE); aligned && !p->no_collapse && at + ARENA_HUGE <= to; at += ARENA_HUGE) {
        madvise(base + at, ARENA_PAGE, MADV_POPULATE_WRITE); /* private memory has to have a page there */
        if (madvise(base + at, ARENA_HUGE, MADV_COLLAPSE) == 0)
            p->collapsed += ARENA_HUGE;
        else if (errno == EINVAL && p->collapsed == 0)
            p->no_collapse = true;
    }
    if (p->no_lock || from == to)
        return;
    if (mlock(base + from, to - from) == 0) {
        p->locked += to - from;
    } else {
        p->no_lock = true;
        p->warning = "RLIMIT_MEMLOCK is lower than the cache: the rest of it is not locked and may be swapped out "
                     "(raise it with ulimit -l, LimitMEMLOCK= or docker --ulimit memlock=-1)";
    }
}

void pin_grow(struct dram *d)
{
    struct pin *p = &d->pin;
    if (pthread_mutex_trylock(&p->lock) != 0)
        return;
    uint64_t alloc = atomic_load(&d->h->alloc), table = (alloc >> 32) * ARENA_PAGE, slabs = (uint32_t)alloc * ARENA_PAGE;
    if (table > p->table_done) {
        settle(p, d->table, p->table_done, table);
        p->table_done = table;
    }
    if (slabs > p->slabs_done) {
        settle(p, d->slabs, p->slabs_done, slabs);
        p->slabs_done = slabs;
        cuda_register(p, d->slabs, slabs);
    }
    pthread_mutex_unlock(&p->lock);
}
