/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote_int.h - between the files of one remote:
 *
 *     remote_open.c    URIs, options, opening and closing, statistics
 *     remote.c         a request: its tries, from signing to done
 *     remote_answer.c  what an answer means, and how it is said
 */
#ifndef LARDER_TIERS_REMOTE_INT_H
#define LARDER_TIERS_REMOTE_INT_H

#include <pthread.h>

#include "tiers/remote.h"
#include "tiers/stack_int.h"

/* Why a try is repeated: the order of struct larder_remote_stats. */
enum cause { CAUSE_THROTTLED, CAUSE_SERVER, CAUSE_CONNECTION, CAUSE_SHORT, CAUSE_STALLED, CAUSE_DAMAGED, CAUSE_CREDENTIALS, CAUSES };

#define HEDGES_MAX 8u               /* spare buffers */
#define HEDGE_BYTES_MAX (256 * KIB) /* what is larger is bound by bandwidth, not latency */
#define HEDGE_SAMPLES_MIN 100u      /* GETs seen before the slow ones are known */

struct remote {
    /* constant after opening */
    char *uri;                      /* for messages: no user:password, no slash at the end */
    struct larder_remote_options o;
    char *strings[5];               /* that o points to */
    bool s3;
    struct s3_place place;          /* http(s): scheme and host only */
    char *root;                     /* "https://user:password@host", before the path */
    char *path;                     /* of what is below, encoded, ends with '/' */
    char *bucket_path;              /* of the bucket itself */
    char *source;                   /* of the credentials */
    struct http *http;
    struct s3_creds *creds;         /* NULL: http(s) */
    pid_t pid;
    double tokens_max;
    pthread_mutex_t lock;           /* guards what follows, and what struct call says; no lock but http.c's and s3_creds.c's is taken under it */
    bool closing;
    double tokens;                  /* of the budget of retries; below 0: what waits for some */
    uint64_t tokens_ns;             /* when it was right */
    uint64_t random;
    struct call *parked;            /* those that wait for credentials */
    unsigned spares;                /* in use */
    char trouble[24];               /* the last cause: "503" */
    uint64_t sample_ns, sample_bytes; /* remote_state: where the rate is counted from */
    double rate;
    /* counters */
    _Atomic int64_t clock_s;        /* the server's clock less ours */
    atomic_bool ranges;             /* it answered 206 once */
    atomic_uint live, live_gets, live_retries;
    _Atomic uint64_t requests, gets, puts, others, demand_gets, stream_gets, bytes_fetched, bytes_used, bytes_sent, retries[CAUSES],
        hedges, hedges_won, hedgeable, failed;
    struct histogram latency, small; /* of GETs; of the tries of small demand GETs */
};

/* ---- remote_answer.c ---- */

enum verdict_kind { VERDICT_OK, VERDICT_RETRY, VERDICT_FAIL };
struct call;
struct verdict {
    enum verdict_kind kind;
    enum cause cause;               /* RETRY: */
    uint64_t wait_ns;               /* that the server asked for */
    bool at_once;                   /* no back-off: what was wrong is put right */
    bool refused;                   /* the key is no longer good */
    int64_t clock_s;                /* with skewed: what the server's clock is ahead */
    bool skewed;
    bool lost;                      /* the server may have done it */
    bool exists;                    /* create: something is there already, FAIL unless it is ours */
    char what[128];                 /* "503 SlowDown": for the message of giving up */
    char trouble[24];               /* "503" */
    struct larder_error error;      /* FAIL */
};
/* The head of an answer to a ranged GET: may its body be what was asked for? */
bool answer_fits(const struct remote *r, const struct remote_request *q, const struct http_transfer *t);
/* lock is held. */
void answer_judge(struct remote *r, struct call *c, const struct http_transfer *t, struct verdict *v);
/* The error of a request that is given up; late: its deadline passed or would. */
int answer_give_up(const struct remote *r, const struct call *c, const struct verdict *last, bool late, struct larder_error *err);
/* "s3://bucket/prefix/name", for messages. */
const char *answer_where(const struct remote *r, const struct remote_request *q, char out[160]);

/* ---- remote.c ---- */

/* A request under way. Whoever has the request owns it, one at a time: the one who starts it, then the callback that came last. While
 * there are two transfers, the lock decides which one that is. */
struct call {
    struct remote_request *q;
    uint64_t deadline_ns;
    size_t out_len;                 /* of q->out before the request */
    struct s3_key key;              /* that signed the last try */
    struct buf text;                /* URL and header lines of the last try */
    char sha[65];                   /* of the body; "" until it is needed */
    unsigned causes[CAUSES], retries;
    unsigned full_answers;          /* 200 where 206 was asked */
    unsigned refused, skewed;       /* tries that ended so */
    bool on_loop;                   /* a callback runs: done may be called */
    bool fits;                      /* what comes goes to the request's sink */
    bool lost;                      /* a try of a create may have been carried out, unheard */
    bool checking;                  /* of such one: what is there now is read into `check`, to compare */
    struct buf check;
    struct verdict verdict;         /* of the last try */
    /* under lock: */
    bool canceled, parked;
    struct call *parked_next, *parked_prev;
    enum hedge_state { HEDGE_NONE, HEDGE_TIMER, HEDGE_SENT } hedge_state;
    bool main_over, hedge_good;
    struct http_transfer hedge;     /* the second request; before it is sent, the timer for it */
    uint8_t *spare;
    size_t n_lines;
    const char *lines[];            /* the request's own, and LINES_MAX of ours */
};
#define LINES_MAX 10

#endif
