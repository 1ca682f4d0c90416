/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fd_cache.c - descriptors of files open for reading, by name, at most `max` of them idle or in use.
 *
 * get() finds or opens, put() gives back; what nobody uses stays open, in order of its last use, until room is needed.
 *
 *   opened --> in use (refs > 0) <--> idle (in the list) --> closed
 *                    |
 *              forgotten (removed or replaced under that name) --> closed by the last put
 *
 * Invariants: an entry is in the idle list exactly when refs == 0; in the hash table exactly when not forgotten;
 * n_open counts entries that have a descriptor. More than max are open only while more than max are in use.
 *
 * EMFILE and ENFILE cost an idle descriptor, or a wait until another thread (n_used, n_busy) is done with one. A thread that
 * waits holds none, and one that finds nobody else at it fails, so that this ends.
 *
 * Any thread. The mutex guards everything in struct fd_cache and all entries but `fd` and `name`, which never change. It is
 * not held across open, read or close.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/base_int.h"

struct fd_cache {
    pthread_mutex_t lock;
    pthread_cond_t released; /* n_used or n_busy fell */
    int root;
    const char *root_path;
    unsigned max;
    size_t n_open, n_used;
    size_t n_busy; /* threads that are opening or closing a file, and may have a descriptor that is not counted */
    size_t n_buckets; /* a power of two */
    struct fd_entry **buckets;
    struct fd_entry *newest, *oldest; /* idle ones */
};

/* ---- under the lock ---- */

static struct fd_entry **bucket(struct fd_cache *c, const char *name)
{
    return &c->buckets[hash64(0, name, strlen(name)) & (c->n_buckets - 1)];
}

static struct fd_entry *find(struct fd_cache *c, const char *name)
{
    struct fd_entry *e = *bucket(c, name);

    while (e && strcmp(e->name, name) != 0)
        e = e->next_hash;
    return e;
}

static void idle_remove(struct fd_cache *c, struct fd_entry *e)
{
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
    e->newer = e->older = NULL;
}

static void idle_add(struct fd_cache *c, struct fd_entry *e)
{
    e->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
}

static void unhash(struct fd_cache *c, struct fd_entry *e)
{
    struct fd_entry **at = bucket(c, e->name);

    while (*at != e)
        at = &(*at)->next_hash;
    *at = e->next_hash;
    e->next_hash = NULL;
    e->forgotten = true;
}

static void use(struct fd_cache *c, struct fd_entry *e)
{
    if (e->refs++ == 0) {
        idle_remove(c, e);
        c->n_used++;
    }
}

/* Takes the entry idle longest out of the cache; the caller closes it. NULL: none is idle. */
static struct fd_entry *evict(struct fd_cache *c)
{
    struct fd_entry *e = c->oldest;

    if (e) {
        idle_remove(c, e);
        unhash(c, e);
        c->n_open--;
    }
    return e;
}

/* ---- without the lock ---- */

static void entry_free(struct fd_entry *e)
{
    if (e) {
        if (e->fd >= 0)
            close(e->fd);
        free(e->name);
        free(e);
    }
}

static struct fd_entry *entry_new(const char *name)
{
    struct fd_entry *e = calloc(1, sizeof(*e));

    if (!e)
        return NULL;
    e->fd = -1;
    e->name = strdup(name);
    if (!e->name) {
        entry_free(e);
        return NULL;
    }
    return e;
}

/* Opens root/NAME, a regular file and nothing that could block. 0 or an errno; EBADF: not a regular file. */
static int open_file(int root, struct fd_entry *e)
{
    struct stat st;

    do
        e->fd = openat(root, e->name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    while (e->fd < 0 && errno == EINTR);
    if (e->fd < 0)
        return errno;
    int failed = fstat(e->fd, &st) ? errno : S_ISREG(st.st_mode) ? 0 : EBADF;
    if (failed) {
        close(e->fd);
        e->fd = -1;
        return failed;
    }
    e->dev = st.st_dev;
    e->ino = st.st_ino;
    return 0;
}

/* Closes e, which is out of the cache already; NULL allowed. Under the lock, which is released meanwhile. */
static void close_entry(struct fd_cache *c, struct fd_entry *e)
{
    if (!e)
        return;
    c->n_busy++;
    pthread_mutex_unlock(&c->lock);
    entry_free(e);
    pthread_mutex_lock(&c->lock);
    c->n_busy--;
    pthread_cond_broadcast(&c->released);
}

/* ---- the door ---- */

/* A quarter of the descriptors that the process may have: the key index and the reading of shards need theirs. */
static unsigned within_limit(unsigned max)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return max;
    return (unsigned)MAX(MIN((rlim_t)max, limit.rlim_cur / 4), (rlim_t)1);
}

int fd_cache_new(int root, const char *root_path, unsigned max, struct fd_cache **out, struct larder_error *err)
{
    struct fd_cache *c = calloc(1, sizeof(*c));

    if (!c)
        return err_nomem(err, sizeof(*c), "descriptor cache");
    c->root = root;
    c->root_path = root_path;
    c->max = within_limit(max ? max : 64);
    c->n_buckets = 64;
    while (c->n_buckets < c->max && c->n_buckets < 65536)
        c->n_buckets *= 2;
    c->buckets = calloc(c->n_buckets, sizeof(*c->buckets));
    if (!c->buckets) {
        free(c);
        return err_nomem(err, 65536 * sizeof(*c->buckets), "descriptor cache");
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->released, NULL);
    *out = c;
    return LARDER_OK;
}

void fd_cache_free(struct fd_cache *c)
{
    if (!c)
        return;
    for (struct fd_entry *e; (e = evict(c));)
        entry_free(e);
    pthread_cond_destroy(&c->released);
    pthread_mutex_destroy(&c->lock);
    free(c->buckets);
    free(c);
}

/* Descriptors are short. True: one may be free now, try again. False: nobody else here has any. Under the lock, by a thread
 * that is counted in n_busy. */
static bool make_room(struct fd_cache *c)
{
    struct fd_entry *victim = evict(c);

    if (victim) {
        close_entry(c, victim);
        return true;
    }
    if (c->n_used == 0 && c->n_busy == 1)
        return false;
    c->n_busy--; /* may leave another one alone, which has just been trying and will see it */
    pthread_cond_wait(&c->released, &c->lock);
    c->n_busy++;
    return true;
}

/* Opens fresh->name and enters it, unless another thread has meanwhile: then *e is that one's. Under the lock, which is
 * released for the opening. Returns 0 or an errno. */
static int open_entry(struct fd_cache *c, struct fd_entry *fresh, struct fd_entry **e)
{
    for (;;) {
        if (c->n_open >= c->max)
            close_entry(c, evict(c));
        pthread_mutex_unlock(&c->lock);
        int rc = open_file(c->root, fresh);
        pthread_mutex_lock(&c->lock);
        *e = find(c, fresh->name);
        if (*e) {
            use(c, *e);
            return 0;
        }
        if (rc == 0)
            break;
        if ((rc != EMFILE && rc != ENFILE) || !make_room(c))
            return rc;
    }
    struct fd_entry **at = bucket(c, fresh->name);
    fresh->next_hash = *at;
    *at = fresh;
    fresh->refs = 1;
    c->n_open++;
    c->n_used++;
    *e = fresh;
    return 0;
}

int fd_cache_get(struct fd_cache *c, const char *name, struct fd_entry **out, struct larder_error *err)
{
    struct fd_entry *e;

    pthread_mutex_lock(&c->lock);
    e = find(c, name);
    if (e)
        use(c, e);
    pthread_mutex_unlock(&c->lock);
    if (e) {
        *out = e;
        return LARDER_OK;
    }

    struct fd_entry *fresh = entry_new(name);
    if (!fresh)
        return err_nomem(err, sizeof(*fresh) + strlen(name) + 1, "descriptor cache");
    pthread_mutex_lock(&c->lock);
    c->n_busy++;
    int rc = open_entry(c, fresh, &e);
    if (rc || e != fresh)
        close_entry(c, fresh);
    c->n_busy--;
    pthread_cond_broadcast(&c->released);
    pthread_mutex_unlock(&c->lock);
    if (rc == EBADF)
        return err_set(err, LARDER_ECORRUPT, "%s/%s: not a regular file", c->root_path, name);
    if (rc)
        return io_failed(c->root_path, name, rc, "open", err);
    *out = e;
    return LARDER_OK;
}

void fd_cache_put(struct fd_cache *c, struct fd_entry *e)
{
    bool drop = false;

    pthread_mutex_lock(&c->lock);
    if (--e->refs == 0) {
        c->n_used--;
        drop = e->forgotten || c->n_open > c->max;
        if (drop && !e->forgotten)
            unhash(c, e);
        if (drop)
            c->n_open--;
        else
            idle_add(c, e);
    }
    if (drop)
        close_entry(c, e);
    pthread_cond_broadcast(&c->released);
    pthread_mutex_unlock(&c->lock);
}

/* Takes e out of the hash table, and out of the cache unless it is in use. Returns what the caller closes, or NULL. */
static struct fd_entry *forget(struct fd_cache *c, struct fd_entry *e)
{
    unhash(c, e);
    if (e->refs > 0)
        return NULL;
    idle_remove(c, e);
    c->n_open--;
    return e;
}

void fd_cache_forget(struct fd_cache *c, const char *name)
{
    pthread_mutex_lock(&c->lock);
    struct fd_entry *e = find(c, name), *doomed = e ? forget(c, e) : NULL;
    close_entry(c, doomed);
    pthread_mutex_unlock(&c->lock);
}

void fd_cache_forget_other(struct fd_cache *c, const char *name, uint64_t dev, uint64_t ino)
{
    pthread_mutex_lock(&c->lock);
    struct fd_entry *e = find(c, name);
    struct fd_entry *doomed = e && (e->dev != dev || e->ino != ino) ? forget(c, e) : NULL;
    close_entry(c, doomed);
    pthread_mutex_unlock(&c->lock);
}

size_t fd_cache_shrink(struct fd_cache *c)
{
    size_t n = 0;

    pthread_mutex_lock(&c->lock);
    for (struct fd_entry *e; (e = evict(c)); n++)
        close_entry(c, e);
    pthread_mutex_unlock(&c->lock);
    return n;
}

size_t fd_cache_open_count(struct fd_cache *c)
{
    pthread_mutex_lock(&c->lock);
    size_t n = c->n_open;
    pthread_mutex_unlock(&c->lock);
    return n;
}
