/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda.c - registers memory of this process with CUDA, so that devices fetch it themselves and copies run beside the program.
 *
 * The driver's library is never linked. A process that uses CUDA has it loaded, and a primary context: then a thread of ours
 * registers what is there, and what is added later. One that does not use CUDA has no use for registered memory, and pays nothing:
 * initialising the driver would take it a part of a second, a context some hundred MB of the device, and children that it forks
 * could not use CUDA any more. So the driver is looked for whenever memory was added (cuda_pins_poke), and only who names a device
 * (larder_cache_options.cuda_device) has it loaded, initialised and given a context here.
 *
 * [cuda I1] Every byte is registered at most once, as portable memory (good in all contexts), and unregistered before its memory goes.
 * [cuda I2] A registration ends where the owner says that nothing lies across: the driver refuses to copy what is registered in part.
 * [cuda I3] Whatever the driver says, nothing fails: a warning names its error, and the rest stays unregistered.
 * [cuda I4] In a forked child nothing is asked of the driver.
 *
 * Threads: poke and stats from any; one thread of ours a region, which alone calls the driver until cuda_pins_free has joined it.
 */
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "tiers/pin_int.h"

#define REGISTER_PORTABLE 1u
enum { CUDA_OK = 0, CUDA_NO_DEVICE = 100, CUDA_ALREADY_REGISTERED = 712 };

/* All return CUresult. Names as the library exports them: cuda.h maps the plain ones to these. */
struct driver {
    int (*init)(unsigned flags);
    int (*count)(int *n);
    int (*get)(int *device, int ordinal);
    int (*error_name)(int error, const char **name);
    int (*state)(int device, unsigned *flags, int *active);
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*push)(void *context);
    int (*pop)(void **context);
    int (*register_)(void *p, size_t bytes, unsigned flags);
    int (*unregister)(void *p);
};

struct cuda_pins {
    uint8_t *base;
    int wanted; /* larder_cache_options.cuda_device */
    cuda_cut_fn *cut;
    void *user;
    pid_t pid;
    pthread_mutex_t lock; /* guards what follows, to `warning` */
    pthread_cond_t wake;
    bool running, stop, poked, all, off;
    uint64_t end;        /* what was poked for */
    uint64_t registered; /* bytes */
    char warning[200];
    _Atomic uint64_t done; /* from the beginning; the thread writes it */
    pthread_t thread;
    /* the thread's own */
    void *lib;
    struct driver d;
    void *context; /* retained; NULL: none yet */
    int device;
    void **pieces;
    size_t n_pieces, cap_pieces;
};

/* ---- the driver ---- */

static bool load(struct cuda_pins *c)
{
    static const struct { const char *name, *older; size_t at; } calls[] = {
        {"cuInit", NULL, offsetof(struct driver, init)},
        {"cuDeviceGetCount", NULL, offsetof(struct driver, count)},
        {"cuDeviceGet", NULL, offsetof(struct driver, get)},
        {"cuGetErrorName", NULL, offsetof(struct driver, error_name)},
        {"cuDevicePrimaryCtxGetState", NULL, offsetof(struct driver, state)},
        {"cuDevicePrimaryCtxRetain", NULL, offsetof(struct driver, retain)},
        {"cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease", offsetof(struct driver, release)},
        {"cuCtxPushCurrent_v2", NULL, offsetof(struct driver, push)},
        {"cuCtxPopCurrent_v2", NULL, offsetof(struct driver, pop)},
        {"cuMemHostRegister_v2", "cuMemHostRegister", offsetof(struct driver, register_)},
        {"cuMemHostUnregister", NULL, offsetof(struct driver, unregister)},
    };
    c->lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL | (c->wanted ? 0 : RTLD_NOLOAD));
    for (size_t i = 0; c->lib && i < ARRAY_LEN(calls); i++) {
        void *f = dlsym(c->lib, calls[i].name);
        if (!f && calls[i].older)
            f = dlsym(c->lib, calls[i].older);
        if (!f) { /* no driver that we know */
            dlclose(c->lib);
            c->lib = NULL;
            return false;
        }
        memcpy((uint8_t *)&c->d + calls[i].at, &f, sizeof(f));
    }
    return c->lib != NULL;
}

static void give_up(struct cuda_pins *c, const char *call, int error)
{
    const char *name = NULL;
    if (c->d.error_name(error, &name) != CUDA_OK || !name)
        name = "an unknown error";
    pthread_mutex_lock(&c->lock);
    c->off = true;
    snprintf(c->warning, sizeof(c->warning), "CUDA: %s says %s (%d): memory is not registered from here on, and copies of it to a device go "
             "through buffers of the driver", call, name, error);
    pthread_mutex_unlock(&c->lock);
}

static void quiet(struct cuda_pins *c)
{
    pthread_mutex_lock(&c->lock);
    c->off = true;
    pthread_mutex_unlock(&c->lock);
}

/* The device that was named: no device at all is no reason to complain. */
static bool find_named(struct cuda_pins *c)
{
    int n = 0, error = c->d.init(0);
    const char *call = "cuInit";
    if (error == CUDA_OK) {
        call = "cuDeviceGetCount";
        error = c->d.count(&n);
    }
    if (error == CUDA_OK && n > 0) {
        call = "cuDeviceGet";
        error = c->d.get(&c->device, c->wanted - 1);
    }
    if (error != CUDA_OK && error != CUDA_NO_DEVICE)
        give_up(c, call, error);
    else if (error == CUDA_NO_DEVICE || n == 0)
        quiet(c);
    return error == CUDA_OK && n > 0;
}

/* The first device with a context that this process uses. Not initialised: there is none yet. */
static bool find_used(struct cuda_pins *c)
{
    int n = 0;
    if (c->d.count(&n) != CUDA_OK)
        return false;
    for (int i = 0; i < n; i++) {
        unsigned flags;
        int active = 0;
        if (c->d.get(&c->device, i) == CUDA_OK && c->d.state(c->device, &flags, &active) == CUDA_OK && active)
            return true;
    }
    return false;
}

/* A context to register in: it is kept until the end, for what is registered goes with it. */
static bool connect_driver(struct cuda_pins *c)
{
    if (c->context)
        return true;
    if (!c->lib && !load(c)) {
        if (c->wanted)
            quiet(c);
        return false;
    }
    if (!(c->wanted ? find_named(c) : find_used(c)))
        return false;
    int error = c->d.retain(&c->context, c->device);
    if (error == CUDA_OK)
        return true;
    c->context = NULL;
    give_up(c, "cuDevicePrimaryCtxRetain", error);
    return false;
}

/* ---- the thread ---- */

static void register_to(struct cuda_pins *c, uint64_t end)
{
    uint64_t done = atomic_load(&c->done);
    void *at = c->base + done, *was;
    int error = GROW(c->pieces, c->cap_pieces, c->n_pieces + 1, NULL) == LARDER_OK ? c->d.push(c->context) : -1;
    if (error == -1) {
        quiet(c);
        return;
    }
    const char *call = "cuCtxPushCurrent";
    if (error == CUDA_OK) {
        call = "cuMemHostRegister";
        error = c->d.register_(at, end - done, REGISTER_PORTABLE);
        c->d.pop(&was);
    }
    if (error != CUDA_OK && error != CUDA_ALREADY_REGISTERED) {
        give_up(c, call, error);
        return;
    }
    if (error == CUDA_OK) /* else it is somebody else's, who takes it back */
        c->pieces[c->n_pieces++] = at;
    pthread_mutex_lock(&c->lock);
    c->registered += end - done;
    pthread_mutex_unlock(&c->lock);
    atomic_store(&c->done, end);
}

static void *pins_main(void *arg)
{
    struct cuda_pins *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->stop && !c->off) {
        if (!c->poked) {
            pthread_cond_wait(&c->wake, &c->lock);
            continue;
        }
        uint64_t done = atomic_load(&c->done), end = c->end;
        bool all = c->all;
        c->poked = c->all = false;
        pthread_mutex_unlock(&c->lock);
        bool ready = connect_driver(c);
        if (ready && c->cut)
            end = c->cut(c->user, done, all);
        if (ready && end > done)
            register_to(c, end);
        pthread_mutex_lock(&c->lock);
        if (ready && end > done && c->cut && !c->off) { /* there may be more */
            c->poked = true;
            c->all |= all;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static int is_driver(struct dl_phdr_info *lib, size_t size, void *user)
{
    const char *slash = strrchr(lib->dlpi_name, '/');
    (void)size, (void)user;
    return strncmp(slash ? slash + 1 : lib->dlpi_name, "libcuda.so", 10) == 0;
}

/* Has this process loaded it? Asked often, and so without dlopen, which would look for the file each time. */
static bool in_use(void) { return dl_iterate_phdr(is_driver, NULL) != 0; }

/* Under the lock. */
static void start_thread(struct cuda_pins *c)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    c->running = pthread_create(&c->thread, NULL, pins_main, c) == 0;
    c->off = !c->running;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
}

void cuda_pins_poke(struct cuda_pins *c, uint64_t end, bool all)
{
    if (!c || end <= atomic_load_explicit(&c->done, memory_order_relaxed) || c->pid != process_id())
        return;
    pthread_mutex_lock(&c->lock);
    if (!c->off && (c->running || in_use())) {
        c->end = MAX(c->end, end);
        c->poked = true;
        c->all |= all;
        if (c->running)
            pthread_cond_signal(&c->wake);
        else
            start_thread(c);
    }
    pthread_mutex_unlock(&c->lock);
}

/* ---- new, free ---- */

struct cuda_pins *cuda_pins_new(void *base, int device, cuda_cut_fn *cut, void *user)
{
    struct cuda_pins *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->base = base;
    c->wanted = device;
    c->cut = cut;
    c->user = user;
    c->pid = process_id();
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    if (device) { /* it takes a while: beside the first reads */
        pthread_mutex_lock(&c->lock);
        c->poked = true;
        start_thread(c);
        pthread_mutex_unlock(&c->lock);
    }
    return c;
}

static void take_back(struct cuda_pins *c)
{
    void *was;
    if (!c->context)
        return;
    if (c->d.push(c->context) == CUDA_OK) { /* else the driver has shut down: it is the end of the process */
        for (size_t i = 0; i < c->n_pieces; i++)
            c->d.unregister(c->pieces[i]);
        c->d.pop(&was);
    }
    c->d.release(c->device);
}

void cuda_pins_free(struct cuda_pins *c)
{
    if (!c)
        return;
    if (c->pid == process_id()) {
        pthread_mutex_lock(&c->lock);
        c->stop = true;
        pthread_cond_signal(&c->wake);
        pthread_mutex_unlock(&c->lock);
        if (c->running)
            pthread_join(c->thread, NULL);
        take_back(c);
        if (c->lib)
            dlclose(c->lib);
        pthread_cond_destroy(&c->wake);
        pthread_mutex_destroy(&c->lock);
    }
    free(c->pieces);
    free(c);
}

uint64_t cuda_pins_stats(struct cuda_pins *c, const char **warning)
{
    uint64_t bytes = 0;
    *warning = NULL;
    if (c && c->pid == process_id()) {
        pthread_mutex_lock(&c->lock);
        bytes = c->registered;
        *warning = c->warning[0] ? c->warning : NULL; /* written once, before off */
        pthread_mutex_unlock(&c->lock);
    }
    return bytes;
}
