/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_process.c - process_id says what getpid says: in threads, in children and in theirs, however they are made.
 */
#include "tests/unit/test.h"

#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "store/base/base.h"

static void *in_thread(void *arg)
{
    *(pid_t *)arg = process_id();
    return NULL;
}

/* A child of fork, or of the bare system call, which runs no handlers; it has a child of its own. 0: all right. */
static int child_status(bool bare)
{
    int status = -1;
    pid_t pid = bare ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0) : fork();

    if (pid == 0) {
        bool right = process_id() == (pid_t)syscall(SYS_getpid);
        pid_t grandchild = fork();

        if (grandchild == 0)
            _exit(process_id() == (pid_t)syscall(SYS_getpid) ? 0 : 1);
        waitpid(grandchild, &status, 0);
        _exit(right && process_id() == (pid_t)syscall(SYS_getpid) && status == 0 ? 0 : 1);
    }
    REQUIRE_EQ(waitpid(pid, &status, 0), pid);
    return status;
}

TEST(it_is_getpid)
{
    pthread_t t;
    pid_t there = 0;

    CHECK_EQ(process_id(), getpid());
    CHECK_EQ(process_id(), getpid());
    REQUIRE_EQ(pthread_create(&t, NULL, in_thread, &there), 0);
    pthread_join(t, NULL);
    CHECK_EQ(there, getpid());
}

TEST(in_children)
{
    CHECK_EQ(process_id(), getpid());
    CHECK_EQ(child_status(false), 0);
    CHECK_EQ(process_id(), getpid());
}

TEST(in_children_made_without_handlers)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    TEST_SKIP("sanitizers want to see every fork");
#endif
    CHECK_EQ(process_id(), getpid());
    CHECK_EQ(child_status(true), 0);
    CHECK_EQ(process_id(), getpid());
}

TEST_MAIN();
