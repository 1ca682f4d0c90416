/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - one region of memory for all processes of a user on the node that open a cache of the same name.
 *
 *     nobody there:   bind the name, make a sealed memfd, lay it out, then answer
 *     somebody there: connect, get the memfd and the listening socket from whoever answers, then answer too
 *
 * The name is an abstract socket, the memory a memfd: both are gone with the last process that holds them, also after kill -9, and
 * no file system ever sees them. Every member polls the same listening socket, so a name is answered as long as one member
 * lives and runs: poll wakes all of them, and one that is stopped keeps nobody waiting. The region is answered for only after
 * it was laid out. Who is not answered within 200 ms (strangers hold the name, all members are stopped), or finds
 * SHARE_PROCESSES_MAX members there, works in private memory and says so.
 *
 * A member holds a POSIX record lock on its byte of the memfd, which the kernel releases when it dies; its use count, in the
 * region's last page, tells it from earlier owners of the byte. Those locks belong to the process, and closing any descriptor of
 * the file gives them up: so a process opens a region once and counts its users.
 *
 * The list of open regions is the one variable of this library that is no constant: two opens in a process must find each other,
 * and the fork handler takes no argument. It is guarded by regions.lock, which is held while opening (at most 200 ms). In a forked child the
 * listening socket is closed at once (else connects to it would never be answered) and its regions are forgotten: the
 * child's own open joins as any other process does.
 *
 * A region may carry a descriptor, of which each member gets one of the same open file: a flock on it lasts until the last
 * member is gone, however they end. A forked child closes it at once, too.
 *
 * Threads: share_open and share_close from any; the answering thread; the rest touches what is const after open.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "tiers/cache_int.h"

#define HEAD_BYTES 4096u
#define HUGE_PAGE (2 * MIB)
#define ANSWER_MS 200u
#define NO_FDS_MS 100
#define HEAD_MAGIC 0x3165726168736c64u /* "dlshare1" */

/* The region's last page. */
struct share_head {
    uint64_t magic, bytes;
    _Atomic uint32_t uses[SHARE_PROCESSES_MAX];
};

struct share {
    char name[80];
    unsigned users;            /* guarded by regions.lock */
    uint8_t *map;              /* 2 MiB-aligned, so that offsets align alike in every process */
    size_t map_len;
    uint64_t bytes;
    struct share_head *head;
    int memfd, listener, stop; /* -1: private; stop: eventfd that ends the answering thread */
    int carried;               /* -1: none */
    bool joined, answering;
    uint32_t member;
    pthread_t thread;
    pid_t pid;
    char warning[200];
    struct share *next;
};

static struct { pthread_mutex_t lock; pthread_once_t once; struct share *list; } regions = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_ONCE_INIT, NULL};

/* ---- fork ---- */

static void before_fork(void) { pthread_mutex_lock(&regions.lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&regions.lock); }

static void after_fork_child(void)
{
    for (struct share *s = regions.list; s; s = s->next) {
        if (s->listener >= 0)
            close(s->listener);
        if (s->memfd >= 0)
            close(s->memfd); /* now, for later it would give up the child's own locks; the mapping stays */
        if (s->carried >= 0)
            close(s->carried);
        s->listener = s->memfd = s->carried = -1;
    }
    regions.list = NULL; /* the parent's: its close in the child gives back what is the child's */
    pthread_mutex_unlock(&regions.lock);
}

static void watch_forks(void) { pthread_atfork(before_fork, after_fork_parent, after_fork_child); }

/* ---- memory ---- */

/* Maps len bytes at a multiple of 2 MiB. */
static void *map_aligned(size_t len, int fd)
{
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    uint8_t *room = mmap(NULL, len + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return MAP_FAILED;
    uint8_t *at = (uint8_t *)(uintptr_t)round_up((uintptr_t)room, HUGE_PAGE);
    if (mmap(at, len, PROT_READ | PROT_WRITE, flags | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
        munmap(room, len + HUGE_PAGE);
        return MAP_FAILED;
    }
    if (at > room)
        munmap(room, (size_t)(at - room));
    munmap(at + len, (size_t)(room + HUGE_PAGE - at));
    return at;
}

static int map_region(struct share *s, uint64_t bytes, struct larder_error *err)
{
    s->bytes = bytes;
    s->map_len = (size_t)(round_up(bytes, HEAD_BYTES) + HEAD_BYTES);
    s->map = map_aligned(s->map_len, s->memfd);
    if (s->map == MAP_FAILED) {
        s->map = NULL;
        return err_sys(err, LARDER_ENOMEM, errno, "mapping a cache of %llu bytes", (unsigned long long)bytes);
    }
    s->head = (struct share_head *)(void *)(s->map + s->map_len - HEAD_BYTES);
    return LARDER_OK;
}

/* A fresh region, private or not, laid out by its user. */
static int make_region(struct share *s, const struct share_options *o, struct larder_error *err)
{
    int rc = map_region(s, o->bytes, err);
    if (rc)
        return rc;
    s->head->magic = HEAD_MAGIC;
    s->head->bytes = o->bytes;
    rc = o->init ? o->init(s->map, o->bytes, o->user, err) : LARDER_OK;
    if (!rc && o->carry)
        s->carried = *o->carry;
    return rc;
}

static int make_memfd(struct share *s, const struct share_options *o, struct larder_error *err)
{
    s->memfd = memfd_create("larder-cache", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->memfd < 0)
        return err_sys(err, LARDER_EIO, errno, "making the memory of cache '%s'", o->name);
    struct rlimit files;
    uint64_t size = round_up(o->bytes, HEAD_BYTES) + HEAD_BYTES;
    if (getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur != RLIM_INFINITY && files.rlim_cur < size) /* it would be a signal */
        return err_set(err, LARDER_EIO, "cache '%s' takes %llu bytes of addresses and the limit on the size of files is %llu: raise it "
                       "(ulimit -f)", o->name, (unsigned long long)size, (unsigned long long)files.rlim_cur);
    if (ftruncate(s->memfd, (off_t)size) ||
        fcntl(s->memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) /* nobody can cut it under our feet */
        return err_sys(err, LARDER_EIO, errno, "sizing the memory of cache '%s' to %llu bytes", o->name, (unsigned long long)o->bytes);
    return make_region(s, o, err);
}

/* ---- members ---- */

static bool lock_byte(int fd, unsigned slot, short type)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(fd, F_SETLK, &l) == 0;
}

static int become_member(struct share *s, struct larder_error *err)
{
    for (unsigned slot = 0; slot < SHARE_PROCESSES_MAX; slot++)
        if (lock_byte(s->memfd, slot, F_WRLCK)) {
            uint32_t use = (atomic_fetch_add(&s->head->uses[slot], 1) + 1) & 0xffffff;
            if (use == 0) /* never 0 */
                use = (atomic_fetch_add(&s->head->uses[slot], 1) + 1) & 0xffffff;
            s->member = use << 8 | slot;
            return LARDER_OK;
        }
    return err_set(err, LARDER_EBUSY, "%u processes share the cache '%s' already", SHARE_PROCESSES_MAX, s->name);
}

uint32_t share_member(const struct share *s) { return s->member; }

bool share_alive(struct share *s, uint32_t member)
{
    unsigned slot = member & 0xff;
    if (member == s->member)
        return true;
    if (member == 0 || s->memfd < 0 || (atomic_load(&s->head->uses[slot]) & 0xffffff) != member >> 8)
        return false;
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
    return fcntl(s->memfd, F_GETLK, &l) != 0 || l.l_type != F_UNLCK; /* in doubt it lives: waits have deadlines */
}

/* The kernel names the holder of the lock in our own numbers; 0: it lives where we see no processes. */
bool share_stopped(struct share *s, uint32_t member)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = member & 0xff, .l_len = 1};
    char path[40], text[128];
    if (member == s->member || s->memfd < 0 || fcntl(s->memfd, F_GETLK, &l) != 0 || l.l_type == F_UNLCK || l.l_pid <= 0)
        return false;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)l.l_pid);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : -1;
    if (n <= 0)
        return false;
    text[n] = '\0';
    const char *state = strrchr(text, ')'); /* pid (name) state; the name may hold anything, but is short */
    return state && state[1] == ' ' && (state[2] == 'T' || state[2] == 't');
}

/* ---- handing over ---- */

static socklen_t address_of(const struct share *s, struct sockaddr_un *a)
{
    memset(a, 0, sizeof(*a));
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof(a->sun_path) - 1, "larder-cache-%u-%s", (unsigned)geteuid(), s->name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static bool same_user(int fd)
{
    struct ucred c;
    socklen_t len = sizeof(c);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len) == 0 && c.uid == geteuid();
}

union control { char room[CMSG_SPACE(3 * sizeof(int))]; struct cmsghdr align; };

static void send_region(const struct share *s, int fd)
{
    uint64_t bytes = s->bytes;
    struct iovec v = {&bytes, sizeof(bytes)};
    union control c = {.room = {0}};
    int fds[3] = {s->memfd, s->listener, s->carried};
    size_t len = s->carried >= 0 ? sizeof(fds) : 2 * sizeof(int);
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = CMSG_SPACE(len)};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(len);
    memcpy(CMSG_DATA(h), fds, len);
    sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT); /* who asked and went away is no concern of ours */
}

static void *answer_main(void *arg)
{
    struct share *s = arg;
    struct pollfd p[2] = {{s->listener, POLLIN, 0}, {s->stop, POLLIN, 0}};
    for (;;) {
        if (poll(p, 2, -1) < 0 && errno != EINTR)
            return NULL;
        if (p[1].revents)
            return NULL;
        AUTO_FD int fd = accept4(p[0].fd, NULL, NULL, SOCK_CLOEXEC); /* the listener does not block: another may have been first */
        if (fd >= 0 && same_user(fd))
            send_region(s, fd);
        else if (fd < 0 && errno != EAGAIN && poll(&p[1], 1, NO_FDS_MS) > 0) /* no descriptors: who asks still waits there */
            return NULL;
    }
}

static int start_answering(struct share *s, struct larder_error *err)
{
    sigset_t all, old;
    s->stop = eventfd(0, EFD_CLOEXEC);
    if (s->stop < 0)
        return err_sys(err, LARDER_EIO, errno, "sharing cache '%s'", s->name);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int e = pthread_create(&s->thread, NULL, answer_main, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (e)
        return err_sys(err, LARDER_EIO, e, "starting the thread that shares cache '%s'", s->name);
    s->answering = true;
    return LARDER_OK;
}

/* Takes memfd, listener and what is carried from whoever answers. False: nobody did in time, or not one of us. */
static bool receive_region(struct share *s, int fd, uint64_t *bytes)
{
    struct iovec v = {bytes, sizeof(*bytes)};
    union control c;
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof(c.room)};
    ssize_t n = recvmsg(fd, &m, MSG_CMSG_CLOEXEC);
    struct cmsghdr *h = n == (ssize_t)sizeof(*bytes) ? CMSG_FIRSTHDR(&m) : NULL;
    int fds[3] = {-1, -1, -1};
    if (!h || h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS ||
        (h->cmsg_len != CMSG_LEN(sizeof(fds)) && h->cmsg_len != CMSG_LEN(2 * sizeof(int))))
        return false;
    memcpy(fds, CMSG_DATA(h), h->cmsg_len - CMSG_LEN(0));
    s->memfd = fds[0];
    s->listener = fds[1];
    s->carried = fds[2];
    return true;
}

enum meeting { MEET_JOINED, MEET_NOBODY, MEET_AGAIN, MEET_STRANGER };

static enum meeting join(struct share *s, unsigned left_ms, uint64_t *bytes)
{
    struct sockaddr_un a;
    socklen_t len = address_of(s, &a);
    struct timeval t = {0, (suseconds_t)left_ms * 1000};
    AUTO_FD int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return MEET_STRANGER;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof(t));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t));
    if (connect(fd, (struct sockaddr *)&a, len) != 0)
        return errno == ECONNREFUSED ? MEET_NOBODY : errno == EAGAIN || errno == EINTR ? MEET_AGAIN : MEET_STRANGER;
    if (!same_user(fd))
        return MEET_STRANGER;
    return receive_region(s, fd, bytes) ? MEET_JOINED : MEET_AGAIN; /* the last member may just have gone */
}

/* Binds the name: from then on connects wait for us. Nobody answers before the region is laid out. */
static bool take_name(struct share *s)
{
    struct sockaddr_un a;
    socklen_t len = address_of(s, &a);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, len) != 0 || listen(fd, 128) != 0) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    s->listener = fd;
    return true;
}

static void nap(unsigned us) /* between two tries to meet a process that is just coming or going */
{
    struct timespec t = {0, (long)us * 1000};
    nanosleep(&t, NULL);
}

/* Joins or makes the region, within ANSWER_MS. s->memfd stays -1 when neither could be done. */
static int meet(struct share *s, const struct share_options *o, struct larder_error *err)
{
    uint64_t began = now_ns(), bytes = 0;
    for (unsigned us = 100;; us = MIN(us * 2, 10000u)) {
        unsigned spent = (unsigned)((now_ns() - began) / 1000000);
        if (spent >= ANSWER_MS)
            return LARDER_OK;
        switch (join(s, ANSWER_MS - spent, &bytes)) {
        case MEET_JOINED:
            s->joined = true;
            return map_region(s, bytes, err);
        case MEET_NOBODY:
            if (take_name(s))
                return make_memfd(s, o, err);
            break;
        case MEET_AGAIN:
            break;
        case MEET_STRANGER:
            return LARDER_OK;
        }
        nap(us);
    }
}

/* ---- open and close ---- */

static void dispose(struct share *s)
{
    bool ours = s->pid == getpid();
    if (s->answering && ours) {
        eventfd_write(s->stop, 1);
        pthread_join(s->thread, NULL);
    }
    if (s->carried >= 0)
        close(s->carried); /* before the name is free: who takes it finds the lock free */
    if (s->listener >= 0)
        close(s->listener);
    if (s->stop >= 0)
        close(s->stop);
    if (s->memfd >= 0)
        close(s->memfd); /* and with it the lock on our byte */
    if (s->map)
        munmap(s->map, s->map_len);
    free(s);
}

static bool name_good(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.");
    return n >= 1 && n <= 64 && name[n] == '\0';
}

static int open_private(struct share *s, const struct share_options *o, struct larder_error *err)
{
    s->memfd = s->listener = -1;
    s->member = 1u << 8;
    return make_region(s, o, err);
}

/* What was joined is left again. */
static void unjoin(struct share *s)
{
    munmap(s->map, s->map_len);
    close(s->listener);
    close(s->memfd);
    if (s->carried >= 0)
        close(s->carried);
    s->map = NULL;
    s->head = NULL;
    s->joined = false;
    s->memfd = s->listener = s->carried = -1;
}

static int open_shared(struct share *s, const struct share_options *o, struct larder_error *err)
{
    int rc = meet(s, o, err);
    if (!rc && s->memfd < 0) {
        snprintf(s->warning, sizeof(s->warning), "cache '%s': nobody of this user answers for it within %u ms: the memory is not "
                 "shared with other processes", o->name, ANSWER_MS);
        return open_private(s, o, err);
    }
    if (!rc && s->head->magic != HEAD_MAGIC)
        rc = err_set(err, LARDER_EVERSION, "cache '%s' is in use by another version of larder: use another name", o->name);
    if (!rc)
        rc = become_member(s, err);
    if (rc == LARDER_EBUSY && s->joined) {
        unjoin(s);
        snprintf(s->warning, sizeof(s->warning), "cache '%s': %u processes share it already, and more cannot: this one's memory is "
                 "its own", o->name, SHARE_PROCESSES_MAX);
        return open_private(s, o, err);
    }
    return rc ? rc : start_answering(s, err);
}

static struct share *find_open(const char *name)
{
    for (struct share *s = regions.list; s; s = s->next)
        if (strcmp(s->name, name) == 0) {
            s->users++;
            return s;
        }
    return NULL;
}

int share_open(const struct share_options *o, struct share **out, struct larder_error *err)
{
    *out = NULL;
    if ((o->name && !name_good(o->name)) || o->bytes == 0 || o->bytes > INT64_MAX / 2)
        return err_set(err, LARDER_EINVAL, "a cache needs a size, and a name of 1 to 64 letters, digits, '-', '_' or '.'");
    pthread_once(&regions.once, watch_forks);
    pthread_mutex_lock(&regions.lock); /* held while opening: two opens of a name in one process must not both join */
    if (o->name && (*out = find_open(o->name))) {
        pthread_mutex_unlock(&regions.lock);
        return LARDER_OK;
    }
    struct share *s = calloc(1, sizeof(*s));
    int rc = s ? LARDER_OK : err_nomem(err, sizeof(*s), "a cache");
    if (s) {
        s->memfd = s->listener = s->stop = s->carried = -1;
        s->users = 1;
        s->pid = getpid();
        snprintf(s->name, sizeof(s->name), "%s", o->name ? o->name : "");
        rc = o->name ? open_shared(s, o, err) : open_private(s, o, err);
    }
    if (!rc) {
        s->next = regions.list;
        regions.list = s;
    }
    pthread_mutex_unlock(&regions.lock);
    if (rc && s)
        dispose(s);
    *out = rc ? NULL : s;
    return rc;
}

void share_close(struct share *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&regions.lock);
    bool last = --s->users == 0;
    for (struct share **p = &regions.list; last && *p; p = &(*p)->next)
        if (*p == s) {
            *p = s->next;
            break;
        }
    pthread_mutex_unlock(&regions.lock);
    if (last)
        dispose(s);
}

void *share_base(const struct share *s) { return s->map; }
uint64_t share_bytes(const struct share *s) { return s->bytes; }
bool share_joined(const struct share *s) { return s->joined; }
bool share_private(const struct share *s) { return s->memfd < 0; }
int share_carried(const struct share *s) { return s->carried; }
const char *share_warning(const struct share *s) { return s->warning[0] ? s->warning : NULL; }

void share_clear(const struct share *s, void *at, size_t len)
{
    bool private = !s || s->memfd < 0;
    if (madvise(at, len, private ? MADV_DONTNEED : MADV_REMOVE) != 0)
        memset(at, 0, len);
}

/* ---- waiting ---- */

void share_wait(_Atomic uint32_t *word, uint32_t value, unsigned timeout_ms)
{
    struct timespec t = {timeout_ms / 1000, (long)(timeout_ms % 1000) * 1000000};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &t, NULL, 0);
}

void share_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }
