/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bucket_bench.h - what the benches of buckets share: the servers of tests/bucket/server.sh, a dataset in a bucket, and the sides that
 * larder is compared with: bare loops of libcurl.
 *
 * One bucket, whose datasets are made below BENCH_DATA once and copied to the fresh server of each run. The bare loops sign with
 * libcurl's own SigV4, keep their connections, and throw away what they read, or (struct bucket_keep) keep it.
 */
#ifndef BUCKET_BENCH_H
#define BUCKET_BENCH_H

#include <ctype.h>
#include <curl/curl.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <sys/mman.h>

#include "tests/bench/bench.h"

#define BUCKET "bench"

struct bucket_object {
    char *url;
    uint64_t size;
};

struct bucket {
    const char *direct, *proxy; /* endpoints */
    char scratch[64];
};

/* "export A=B C=D" lines of server.sh into the environment. */
BENCH_UNUSED static void bucket_export(char *line)
{
    for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
        char *eq = strchr(word, '=');

        if (!eq)
            continue;
        *eq = 0;
        setenv(word, eq + 1, 1);
    }
}

static inline size_t bucket_drop(char *data, size_t size, size_t n, void *user)
{
    (void)data;
    (void)user;
    return size * n;
}

struct bucket_text {
    char *data;
    size_t len;
};

static inline size_t bucket_keep(char *data, size_t size, size_t n, void *user)
{
    struct bucket_text *t = user;
    char *bigger = realloc(t->data, t->len + n * size + 1);

    if (!bigger)
        return 0;
    t->data = bigger;
    memcpy(t->data + t->len, data, n * size);
    t->len += n * size;
    t->data[t->len] = 0;
    return n * size;
}

/* A handle that signs. */
static inline CURL *bucket_easy(struct curl_slist **headers)
{
    CURL *e = curl_easy_init();
    char *user;

    if (!e || asprintf(&user, "%s:%s", getenv("AWS_ACCESS_KEY_ID"), getenv("AWS_SECRET_ACCESS_KEY")) < 0)
        bench_die("no memory");
    *headers = curl_slist_append(NULL, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
    curl_easy_setopt(e, CURLOPT_USERPWD, user);
    curl_easy_setopt(e, CURLOPT_AWS_SIGV4, "aws:amz:us-east-1:s3");
    curl_easy_setopt(e, CURLOPT_HTTPHEADER, *headers);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 512L << 10);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, bucket_drop);
    free(user);
    return e;
}

static inline void bucket_check(CURL *e, CURLcode rc, const char *what)
{
    long status = 0;

    curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
    if (rc != CURLE_OK || status < 200 || status > 299)
        bench_die("%s: %s, status %ld", what, curl_easy_strerror(rc), status);
}

/* The answer to a request; freed by the caller. body: NULL, or it is a PUT of it. */
BENCH_UNUSED static char *bucket_request(const char *url, const char *body)
{
    struct bucket_text text = {NULL, 0};
    struct curl_slist *headers;
    CURL *e = bucket_easy(&headers);

    curl_easy_setopt(e, CURLOPT_URL, url);
    if (body) {
        curl_easy_setopt(e, CURLOPT_CUSTOMREQUEST, "PUT");
        curl_easy_setopt(e, CURLOPT_POSTFIELDS, body);
    }
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, bucket_keep);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, &text);
    bucket_check(e, curl_easy_perform(e), url);
    curl_easy_cleanup(e);
    curl_slist_free_all(headers);
    return text.data ? text.data : strdup("");
}

/* What the proxy does to requests, "latmin=20\nlatmax=50"; begins a new log. */
BENCH_UNUSED static void bucket_faults(const struct bucket *b, const char *settings)
{
    char url[200];

    snprintf(url, sizeof url, "%s/__larder/faults", b->proxy);
    free(bucket_request(url, settings));
}

/* Starts the servers and makes the bucket; false: a line says why `name` is skipped. */
BENCH_UNUSED static bool bucket_start(struct bucket *b, const char *name)
{
    char command[300], line[1000], first[400] = "";
    FILE *f;

    curl_global_init(CURL_GLOBAL_ALL);
    snprintf(b->scratch, sizeof b->scratch, "/tmp/larder-bench.XXXXXX");
    if (!mkdtemp(b->scratch))
        bench_die("%s: %s", b->scratch, strerror(errno));
    snprintf(command, sizeof command, "tests/bucket/server.sh start %s/s %d 2>&1", b->scratch, (int)getpid());
    f = popen(command, "r");
    if (!f)
        bench_die("popen: %s", strerror(errno));
    while (fgets(line, sizeof line, f)) {
        if (!strncmp(line, "export ", 7))
            bucket_export(line + 7);
        else
            snprintf(first, sizeof first, "%.*s", (int)strcspn(line, "\n\""), line);
    }
    if (pclose(f) != 0) {
        printf("{\"bench\": \"%s\", \"skipped\": \"%s\"}\n", name, first);
        bench_rm(b->scratch);
        return false;
    }
    b->direct = getenv("S3_ENDPOINT");
    b->proxy = getenv("S3_PROXY");
    setenv("LARDER_SCRATCH", b->scratch, 1);
    snprintf(command, sizeof command, "%s/" BUCKET, b->direct);
    free(bucket_request(command, ""));
    return true;
}

BENCH_UNUSED static void bucket_stop(struct bucket *b)
{
    char dir[100];

    snprintf(dir, sizeof dir, "%s/s", b->scratch);
    bench_spawn((const char *const[]){"tests/bucket/server.sh", "stop", dir, NULL});
    bench_rm(b->scratch);
}

/* n records of len incompressible bytes under s3://bench/PREFIX. */
BENCH_UNUSED static void bucket_dataset(const struct bucket *b, const char *prefix, uint64_t n, size_t len)
{
    struct larder_field field = {.name = "value", .type = LARDER_BYTES};
    struct larder_remote_options remote = LARDER_REMOTE_OPTIONS_INIT;
    struct larder_copy_options copy = LARDER_COPY_OPTIONS_INIT;
    const char *path;
    struct larder_writer *w;
    struct larder_error err;
    char name[100], uri[200];

    snprintf(name, sizeof name, "bucket-%" PRIu64 "x%zu", n, len);
    path = bench_path(name);
    if (!bench_is_made(path)) {
        uint8_t *value = malloc(len + 8);

        bench_ok(larder_writer_open(path, &field, 1, NULL, &w, &err), &err);
        for (uint64_t i = 0; i < n; i++) {
            struct larder_value v = {value, len};
            uint64_t state = i;

            bench_fill(&state, value, len);
            bench_ok(larder_writer_add(w, &i, sizeof i, &v, &err), &err);
        }
        bench_ok(larder_writer_commit(w, NULL, &err), &err);
        bench_made(path);
        free(value);
    }
    snprintf(uri, sizeof uri, "s3://" BUCKET "/%s", prefix);
    remote.endpoint = b->direct;
    copy.remote = &remote;
    bench_ok(larder_copy_run(path, uri, &copy, NULL, &err), &err);
}

/* The shards of a dataset, by ListObjectsV2, as URLs of `endpoint`. */
BENCH_UNUSED static size_t bucket_shards(const struct bucket *b, const char *endpoint, const char *prefix, struct bucket_object *o, size_t max)
{
    char url[300], *list, *at;
    size_t n = 0;

    snprintf(url, sizeof url, "%s/" BUCKET "?list-type=2&prefix=%s%%2Fshards%%2F", b->direct, prefix);
    list = at = bucket_request(url, NULL);
    while ((at = strstr(at, "<Key>")) && n < max) {
        size_t len = strcspn(at + 5, "<");
        char *size = strstr(at, "<Size>");

        if (!size || asprintf(&o[n].url, "%s/" BUCKET "/%.*s", endpoint, (int)len, at + 5) < 0)
            bench_die("cannot read the listing");
        o[n++].size = strtoull(size + 6, NULL, 10);
        at = size;
    }
    free(list);
    if (!n)
        bench_die("no shards below %s", prefix);
    return n;
}

/* What a bare loop does with the bytes: nothing, or it keeps them in fresh memory, or in a file, past the page cache, and then reads that once
 * in random pieces of `piece` bytes. */
struct bucket_keep {
    uint8_t *memory;
    const char *path;
    size_t piece;
    int fd;
    struct io_uring ring;
    uint8_t **unused;
    unsigned n_unused, writing;
};

#define BUCKET_ALIGN(n) (((n) + 4095) & ~(size_t)4095)

/* A transfer of the multi loop, on one range after the other. */
struct bucket_slot {
    CURL *easy;
    struct curl_slist *headers;
    uint8_t *to; /* of the range under way */
    size_t got;
    uint64_t at; /* of the range, were all of them laid one behind the other */
};

struct bucket_ranges {
    const struct bucket_object *objects;
    size_t n_objects, object;
    uint64_t offset, step, at;
};

/* Puts the next range on a slot; false: there is none. */
static inline bool bucket_next(struct bucket_ranges *r, struct bucket_slot *s)
{
    char range[64];
    uint64_t end;

    if (r->object == r->n_objects)
        return false;
    end = r->offset + r->step < r->objects[r->object].size ? r->offset + r->step : r->objects[r->object].size;
    snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, r->offset, end - 1);
    curl_easy_setopt(s->easy, CURLOPT_URL, r->objects[r->object].url);
    curl_easy_setopt(s->easy, CURLOPT_RANGE, range);
    s->got = 0;
    s->at = r->at;
    r->at += BUCKET_ALIGN(end - r->offset);
    r->offset = end;
    if (r->offset == r->objects[r->object].size) {
        r->offset = 0;
        r->object++;
    }
    return true;
}

static inline size_t bucket_store(char *data, size_t size, size_t n, void *user)
{
    struct bucket_slot *s = user;

    memcpy(s->to + s->got, data, size * n);
    s->got += size * n;
    return size * n;
}

/* Takes one write that is over; its buffer is unused again. */
static inline void bucket_written(struct bucket_keep *k)
{
    struct io_uring_cqe *c;

    if (io_uring_wait_cqe(&k->ring, &c) != 0 || c->res < 0)
        bench_die("%s: writing failed", k->path);
    k->unused[k->n_unused++] = io_uring_cqe_get_data(c);
    io_uring_cqe_seen(&k->ring, c);
    k->writing--;
}

/* Where the bytes of s go. */
static inline void bucket_place(struct bucket_keep *k, struct bucket_slot *s)
{
    if (k->memory) {
        s->to = k->memory + s->at;
        return;
    }
    while (!k->n_unused)
        bucket_written(k);
    s->to = k->unused[--k->n_unused];
}

/* A range has come. */
static inline void bucket_write(struct bucket_keep *k, struct bucket_slot *s)
{
    struct io_uring_sqe *e;

    if (!k->path)
        return;
    e = io_uring_get_sqe(&k->ring);
    io_uring_prep_write(e, k->fd, s->to, (unsigned)BUCKET_ALIGN(s->got), s->at);
    io_uring_sqe_set_data(e, s->to);
    io_uring_submit(&k->ring);
    k->writing++;
}

/* All of the file in random order, 64 reads in flight. */
static inline void bucket_read_back(struct bucket_keep *k, uint64_t bytes)
{
    size_t len = BUCKET_ALIGN(k->piece), n = bytes / len, next = 0, over = 0;
    uint8_t *to = aligned_alloc(4096, 64 * len);
    uint32_t *order = malloc(n * sizeof *order), state = 1;
    struct io_uring_cqe *c;

    for (size_t i = 0; i < n; i++) {
        size_t j = (state = state * 1664525u + 1013904223u) % (i + 1);

        order[i] = order[j];
        order[j] = (uint32_t)i;
    }
    while (over < n) {
        for (; next < n && next < over + 64; next++)
            io_uring_prep_read(io_uring_get_sqe(&k->ring), k->fd, to + next % 64 * len, (unsigned)len, order[next] * (uint64_t)len);
        io_uring_submit_and_wait(&k->ring, 1);
        for (; io_uring_peek_cqe(&k->ring, &c) == 0; over++) {
            if (c->res != (int)len)
                bench_die("%s: reading failed", k->path);
            io_uring_cqe_seen(&k->ring, c);
        }
    }
    free(to);
    free(order);
}

static inline void bucket_keep_start(struct bucket_keep *k, unsigned in_flight, uint64_t step, uint64_t bytes)
{
    unsigned n = 3 * in_flight;

    if (!k->path) {
        k->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        madvise(k->memory, bytes, MADV_HUGEPAGE);
        return;
    }
    k->fd = open(k->path, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0666);
    if (k->fd < 0 || posix_fallocate(k->fd, 0, (off_t)bytes) != 0 || io_uring_queue_init(64, &k->ring, 0) != 0)
        bench_die("%s: %s", k->path, strerror(errno));
    k->unused = malloc(n * sizeof *k->unused);
    for (unsigned i = 0; i < n; i++)
        k->unused[i] = aligned_alloc(2 << 20, (step + (2 << 20) - 1) / (2 << 20) * (2 << 20));
    k->n_unused = n;
}

static inline void bucket_keep_end(struct bucket_keep *k, uint64_t bytes)
{
    if (!k->path) {
        munmap(k->memory, bytes);
        k->memory = NULL;
        return;
    }
    while (k->n_unused)
        free(k->unused[--k->n_unused]);
    free(k->unused);
    io_uring_queue_exit(&k->ring);
    close(k->fd);
    unlink(k->path);
}

/* Reads all objects in ranges of `step` bytes with in_flight requests at once, one thread; returns seconds. keep: NULL, or where the bytes
 * go. */
BENCH_UNUSED static double bucket_bare(const struct bucket_object *objects, size_t n, uint64_t step, unsigned in_flight,
                                       struct bucket_keep *keep)
{
    struct bucket_ranges r = {objects, n, 0, 0, step, 0};
    struct bucket_slot *slots = calloc(in_flight, sizeof *slots);
    CURLM *m = curl_multi_init();
    uint64_t bytes = 0;
    int running = 0, left;
    CURLMsg *msg;
    double t;

    for (size_t i = 0; i < n; i++)
        bytes += BUCKET_ALIGN(objects[i].size) + (objects[i].size / step + 1) * 4096;
    t = bench_now();
    if (keep)
        bucket_keep_start(keep, in_flight, step, bytes);
    curl_multi_setopt(m, CURLMOPT_MAXCONNECTS, (long)in_flight);
    for (unsigned i = 0; i < in_flight; i++) {
        struct bucket_slot *s = &slots[i];

        s->easy = bucket_easy(&s->headers);
        curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
        if (keep) {
            curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, bucket_store);
            curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
        }
        if (!bucket_next(&r, s))
            continue;
        if (keep)
            bucket_place(keep, s);
        curl_multi_add_handle(m, s->easy);
    }
    do {
        curl_multi_perform(m, &running);
        while ((msg = curl_multi_info_read(m, &left)))
            if (msg->msg == CURLMSG_DONE) {
                CURL *e = msg->easy_handle;
                void *slot;

                bucket_check(e, msg->data.result, "bare loop");
                curl_multi_remove_handle(m, e);
                curl_easy_getinfo(e, CURLINFO_PRIVATE, (char **)&slot);
                if (keep)
                    bucket_write(keep, slot);
                if (bucket_next(&r, slot)) {
                    if (keep)
                        bucket_place(keep, slot);
                    curl_multi_add_handle(m, e);
                    running++;
                }
            }
        if (running)
            curl_multi_poll(m, NULL, 0, 1000, NULL);
    } while (running);
    while (keep && keep->writing)
        bucket_written(keep);
    if (keep && keep->path)
        bucket_read_back(keep, r.at);
    t = bench_now() - t;
    if (keep)
        bucket_keep_end(keep, bytes);
    for (unsigned i = 0; i < in_flight; i++) {
        curl_easy_cleanup(slots[i].easy);
        curl_slist_free_all(slots[i].headers);
    }
    curl_multi_cleanup(m);
    free(slots);
    return t;
}

/* Whole epochs of a loader over ds; seconds. */
BENCH_UNUSED static double bucket_epoch(struct larder_dataset *ds, const struct larder_loader_options *options, uint64_t *bytes)
{
    struct larder_loader_options o = *options;
    const struct larder_batch *b;
    struct larder_loader *ld;
    struct larder_error err;
    volatile uint64_t sum = 0;
    double t = bench_now();
    int rc;

    o.epochs = 1;
    *bytes = 0;
    bench_ok(larder_loader_open(ds, &o, &ld, &err), &err);
    while ((rc = larder_loader_next(ld, &b, &err)) == LARDER_OK) {
        for (uint32_t i = 0; i < b->n * b->n_fields; i++) {
            *bytes += b->values[i].len;
            sum += ((const uint8_t *)b->values[i].data)[b->values[i].len / 2];
        }
        larder_batch_release(b);
    }
    if (rc != LARDER_END)
        bench_ok(rc, &err);
    t = bench_now() - t;
    larder_loader_close(ld);
    return t;
}

#endif
