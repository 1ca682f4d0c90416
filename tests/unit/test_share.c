/* SPDX-License-Identifier: Apache-2.0 */
/* Regions shared by processes: joining, dying at any time, forking, stopping, strangers. */
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/unit/test.h"
#include "tiers/cache_int.h"

struct cell { _Atomic uint32_t go, seen[8]; uint32_t laid_out, value; };

static int lay_out(void *base, uint64_t bytes, void *user, struct larder_error *err)
{
    struct cell *c = base;
    (void)err;
    CHECK(bytes >= sizeof(*c));
    CHECK_EQ(c->laid_out, 0);
    c->laid_out = 1;
    ++*(int *)user;
    return LARDER_OK;
}

static const char *fresh_name(void)
{
    static char names[16][64];
    static int n;
    char *name = names[n++ % 16];
    snprintf(name, 64, "test-%d-%d-%llx", (int)getpid(), n, (unsigned long long)now_ns());
    return name;
}

static struct share *open_region(const char *name, uint64_t bytes, int *inits)
{
    struct share_options o = {name, bytes, lay_out, inits, NULL};
    struct larder_error err = {0};
    struct share *s = NULL;
    int rc = share_open(&o, &s, &err);
    CHECK_OK(rc, &err);
    return s;
}

/* A process that opens the region, says so, and waits for its end. */
static pid_t spawn_member(const char *name, unsigned who)
{
    int ready[2];
    char c;
    REQUIRE_EQ(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        int inits = 0;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody behind */
        close(ready[0]);
        struct share *s = open_region(name, 100000, &inits);
        if (!s)
            _exit(1);
        struct cell *cell = share_base(s);
        atomic_store(&cell->seen[who], share_member(s));
        if (write(ready[1], "x", 1) != 1)
            _exit(2);
        for (;;)
            pause();
    }
    close(ready[1]);
    REQUIRE(pid > 0);
    REQUIRE_EQ(read(ready[0], &c, 1), 1);
    close(ready[0]);
    return pid;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void halt(pid_t pid)
{
    int status;
    kill(pid, SIGSTOP);
    waitpid(pid, &status, WUNTRACED);
    CHECK(WIFSTOPPED(status));
}

TEST(private_memory)
{
    int inits = 0;
    struct share *s = open_region(NULL, 5 * MIB, &inits);
    REQUIRE(s);
    CHECK(share_private(s) && !share_joined(s));
    CHECK_EQ(inits, 1);
    CHECK_EQ(share_bytes(s), 5 * MIB);
    CHECK_EQ((uintptr_t)share_base(s) % (2 * MIB), 0);
    memset((uint8_t *)share_base(s) + sizeof(struct cell), 7, 5 * MIB - sizeof(struct cell));
    CHECK(share_alive(s, share_member(s)));
    CHECK(!share_alive(s, 12345));
    share_close(s);
    share_close(NULL);
}

TEST(one_region_a_name_in_a_process)
{
    int inits = 0;
    const char *name = fresh_name();
    struct share *a = open_region(name, 100000, &inits), *b = open_region(name, 100000, &inits);
    CHECK(a == b);
    CHECK_EQ(inits, 1);
    share_close(a);
    CHECK_EQ(((struct cell *)share_base(b))->laid_out, 1);
    share_close(b);
    b = open_region(name, 100000, &inits); /* gone with its last user: laid out anew */
    CHECK_EQ(inits, 2);
    share_close(b);
}

TEST(bad_names)
{
    struct larder_error err;
    struct share *s;
    static const char *const bad[] = {"", "a/b", "x y", "0123456789012345678901234567890123456789012345678901234567890123456789"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct share_options o = {bad[i], 1000, NULL, NULL, NULL};
        CHECK_ERR(share_open(&o, &s, &err), LARDER_EINVAL, &err);
    }
}

TEST(processes_share_and_outlive_each_other)
{
    TEST_FORKS();
    int inits = 0;
    const char *name = fresh_name();
    pid_t first = spawn_member(name, 0); /* makes it */
    struct share *s = open_region(name, 200000, &inits);
    REQUIRE(s);
    struct cell *cell = share_base(s);
    CHECK(share_joined(s) && !share_private(s));
    CHECK_EQ(inits, 0);
    CHECK_EQ(share_bytes(s), 100000); /* who makes it sets its size */
    CHECK(share_warning(s) == NULL);
    uint32_t a = atomic_load(&cell->seen[0]);
    CHECK(a != share_member(s));
    CHECK(share_alive(s, a));
    cell->value = 77;
    end(first);
    CHECK(!share_alive(s, a));
    pid_t second = spawn_member(name, 1); /* answered by us, the maker being dead */
    uint32_t b = atomic_load(&cell->seen[1]);
    CHECK(b && share_alive(s, b) && !share_alive(s, a));
    CHECK_EQ(b & 0xff, a & 0xff); /* the slot is used again, by another member */
    share_close(s);
    s = open_region(name, 100000, &inits); /* answered by the second */
    CHECK_EQ(((struct cell *)share_base(s))->value, 77);
    share_close(s);
    end(second);
    s = open_region(name, 100000, &inits); /* everybody is dead: nothing is left, without any cleaning */
    CHECK_EQ(inits, 1);
    CHECK_EQ(((struct cell *)share_base(s))->value, 0);
    share_close(s);
}

TEST(a_stopped_member_keeps_nobody_waiting)
{
    TEST_FORKS();
    int inits = 0;
    const char *name = fresh_name();
    pid_t a = spawn_member(name, 0), b = spawn_member(name, 1);
    halt(a);
    struct share *s = open_region(name, 100000, &inits);
    CHECK(share_joined(s));
    const struct cell *cell = share_base(s);
    CHECK(share_alive(s, atomic_load(&cell->seen[0]))); /* stopped is not dead */
    CHECK(share_stopped(s, atomic_load(&cell->seen[0])));
    CHECK(!share_stopped(s, atomic_load(&cell->seen[1])) && !share_stopped(s, share_member(s)));
    share_close(s);
    halt(b);
    uint64_t began = now_ns();
    s = open_region(name, 100000, &inits); /* nobody can answer: alone, and in time */
    CHECK(share_private(s) && share_warning(s) != NULL);
    CHECK(now_ns() - began < 2000000000u);
    share_close(s);
    end(a);
    end(b);
}

/* One more than can share a region works alone, and with them again when one has gone. */
TEST(more_processes_than_it_takes)
{
    TEST_FORKS();
    int inits = 0;
    const char *name = fresh_name();
    static pid_t members[SHARE_PROCESSES_MAX];
    for (unsigned i = 0; i < SHARE_PROCESSES_MAX; i++)
        members[i] = spawn_member(name, i % 8);
    struct share *s = open_region(name, 70000, &inits);
    REQUIRE(s);
    CHECK(share_private(s) && !share_joined(s));
    CHECK_EQ(inits, 1);
    CHECK_EQ(share_bytes(s), 70000);
    CHECK(share_warning(s) && strstr(share_warning(s), "256 processes share it already"));
    CHECK(share_alive(s, share_member(s)));
    share_close(s);
    end(members[7]);
    s = open_region(name, 70000, &inits);
    CHECK(!share_private(s) && share_joined(s) && !share_warning(s));
    CHECK_EQ(inits, 1);
    share_close(s);
    for (unsigned i = 0; i < SHARE_PROCESSES_MAX; i++)
        if (i != 7)
            end(members[i]);
}

TEST(a_forked_child_answers_for_nobody)
{
    TEST_FORKS();
    int inits = 0;
    const char *name = fresh_name();
    pid_t maker = fork();
    if (maker == 0) { /* opens, forks a child that lives on, and dies */
        struct share *s = open_region(name, 100000, &inits);
        pid_t child = fork();
        if (child == 0) {
            struct cell *c = share_base(s); /* memory it had stays usable */
            sleep(2);
            _exit(c->laid_out == 1 ? 0 : 1);
        }
        _exit(0);
    }
    waitpid(maker, NULL, 0);
    uint64_t began = now_ns();
    struct share *s = open_region(name, 100000, &inits);
    CHECK(!share_private(s) && !share_joined(s)); /* the name was free */
    CHECK(now_ns() - began < 150000000u || getenv("SLOW"));
    share_close(s);
}

TEST(a_forked_child_opens_for_itself)
{
    TEST_FORKS();
    int inits = 0, status = 0;
    const char *name = fresh_name();
    struct share *s = open_region(name, 100000, &inits);
    struct cell *cell = share_base(s);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct share *mine = open_region(name, 100000, &inits);
        bool ok = mine && mine != s && share_joined(mine) && share_member(mine) != share_member(s) && share_alive(mine, share_member(s));
        share_close(s); /* the parent's handle, inherited: gives back memory only */
        struct cell *c = share_base(mine); /* the same memory */
        atomic_store(&c->seen[2], share_member(mine));
        atomic_store(&c->go, ok ? 1 : 2);
        share_wake(&c->go);
        for (;;)
            pause();
    }
    for (int i = 0; i < 4 && atomic_load(&cell->go) == 0; i++)
        share_wait(&cell->go, 0, 5000);
    CHECK_EQ(atomic_load(&cell->go), 1);
    uint32_t m = atomic_load(&cell->seen[2]);
    CHECK(share_alive(s, m)); /* its lock survived the closing of what it inherited */
    end(child);
    CHECK(!share_alive(s, m));
    (void)status;
    share_close(s);
}

TEST(another_user_has_another_region)
{
    TEST_FORKS();
    int inits = 0, status;
    if (geteuid() != 0)
        TEST_SKIP("needs root to be two users");
    const char *name = fresh_name();
    struct share *s = open_region(name, 100000, &inits);
    pid_t child = fork();
    if (child == 0) {
        if (setresuid(65534, 65534, 65534))
            _exit(9);
        int mine = 0;
        struct share *t = open_region(name, 100000, &mine);
        _exit(t && !share_joined(t) && mine == 1 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    CHECK_EQ(WEXITSTATUS(status), 0);
    share_close(s);
}

static void *open_close(void *arg)
{
    for (int i = 0; i < 30; i++) {
        int inits = 0;
        struct share *s = open_region(arg, 100000, &inits);
        CHECK(s && ((struct cell *)share_base(s))->laid_out == 1);
        share_close(s);
    }
    return NULL;
}

TEST(many_come_and_go)
{
    TEST_FORKS();
    const char *name = fresh_name();
    pthread_t t[4];
    pid_t p[3];
    for (int i = 0; i < 3; i++)
        if ((p[i] = fork()) == 0) {
            for (int k = 0; k < 60; k++) {
                int inits = 0;
                struct share *s = open_region(name, 100000, &inits);
                if (!s || ((struct cell *)share_base(s))->laid_out != 1)
                    _exit(1);
                share_close(s);
            }
            _exit(0);
        }
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, open_close, (void *)(uintptr_t)name);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 3; i++) {
        int status;
        waitpid(p[i], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

TEST_MAIN();
