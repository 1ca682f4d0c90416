/* SPDX-License-Identifier: Apache-2.0 */
/*
 * process.c - which process this is, without a system call.
 *
 * Handles ask at every call whether they are in a forked child, also where the call costs less than getpid. So the id is kept
 * in a page that the kernel empties in every child, however that is made; where it cannot (before Linux 4.14), getpid is asked.
 *
 * Any thread; in a forked child too.
 */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "store/base/base.h"

static struct { pthread_once_t once; _Atomic pid_t *page; } self = {PTHREAD_ONCE_INIT, NULL};

static void map_page(void)
{
    size_t len = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return;
    if (madvise(page, len, MADV_WIPEONFORK) == 0)
        self.page = page;
    else
        munmap(page, len);
}

pid_t process_id(void)
{
    pid_t pid;

    pthread_once(&self.once, map_page);
    if (!self.page)
        return getpid();
    pid = atomic_load_explicit(self.page, memory_order_relaxed);
    if (unlikely(pid == 0)) {
        pid = getpid();
        atomic_store_explicit(self.page, pid, memory_order_relaxed);
    }
    return pid;
}
