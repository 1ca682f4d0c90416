/* SPDX-License-Identifier: Apache-2.0 */
/*
 * extsort.c - sorts (key, payload) byte strings within a memory budget, on disk beyond it.
 *
 * One block of the budget's size is all the memory there is, beside the handle and 16 bytes a run. While items are
 * added it holds
 *
 *     | output buffer | items, packed, growing up -->      free      <-- references, growing down |
 *
 * When the two meet, the references are sorted and the items written in that order: a run. All runs lie in one
 * unnamed file. extsort_sort() merges adjacent runs, their result going to the end of the file, until one merge
 * can take all that are left; extsort_next() is that merge. The block is then
 *
 *     | readers | heap | read buffers, one a run | output buffer, unless it is the last merge |
 *
 * with at least 64 KiB a buffer (a quarter of the budget where that is less), which bounds how many runs a
 * merge takes. Ranges of the file that were merged are given back to the file system where it can.
 *
 * Order: keys by memcmp, a prefix before the longer, equal keys as they were added. In memory by an item's
 * position in the block, between runs by the run: only adjacent runs are ever merged.
 *
 * Sorting is a quicksort in three parts over 16-byte references that carry eight bytes of the key: the part of
 * equal words goes on with the next eight bytes, so that a common prefix is looked at once and not in every
 * comparison. An item in the block and in a run is key_len (2 bytes), payload_len (2), key, payload.
 *
 * One thread at a time.
 */
#include "store/base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum {
    BUDGET_MIN = 4096,
    ITEM_HEAD = 4,
    LEN_MAX = 65535,
    BUFFER_MIN = 64 << 10, /* of a run being merged */
    SMALL = 16,            /* references sorted by insertion */
    WORD = 8
};

struct ref {
    uint64_t word; /* eight bytes of the key from some depth, big-endian, zeros behind its end */
    uint64_t at;   /* the item's offset in the block */
};

struct run {
    uint64_t start, end; /* in the file */
};

struct reader {
    uint64_t at, end; /* what of the run is not in the buffer yet */
    uint8_t *buf;
    size_t pos, len; /* the item at pos is the head of the run; len bytes are valid */
    uint64_t word;   /* the first eight bytes of its key */
};

enum state { ADDING, IN_MEMORY, MERGING, ENDED, FAILED };

struct extsort {
    char *dir;
    enum state state;
    uint8_t *block;
    size_t budget;         /* of the block, a multiple of 16 */
    size_t used, n_refs;   /* items end at block + used; references begin at block + budget - 16 n_refs */
    size_t item_max;       /* the largest item */
    size_t next;           /* IN_MEMORY: the next reference */
    /* output, one run at a time */
    uint8_t *out;
    size_t out_len, out_cap;
    uint64_t file_end;
    int fd; /* -1: nothing was spilled */
    struct run *runs;
    size_t n_runs, runs_cap;
    /* a merge, all in the block */
    struct reader *readers;
    uint32_t *heap; /* of readers, the smallest head at the top */
    size_t n_heap, buffer_bytes;
    bool head_taken; /* the top's item was handed out: step over it first */
};

/* ---- items ---- */

static inline size_t key_len_of(const uint8_t *item)
{
    return get_u16(item);
}

static inline size_t item_bytes(const uint8_t *item)
{
    return ITEM_HEAD + (size_t)get_u16(item) + get_u16(item + 2);
}

/* Up to eight bytes of the key from `depth`, big-endian, so that words compare as the bytes do. */
static uint64_t key_word(const uint8_t *item, size_t depth)
{
    size_t len = key_len_of(item);
    uint64_t word = 0;

    if (depth >= len)
        return 0;
    memcpy(&word, item + ITEM_HEAD + depth, MIN(len - depth, (size_t)WORD));
    return __builtin_bswap64(word);
}

static int compare_keys(const uint8_t *a, const uint8_t *b, size_t depth)
{
    size_t len_a = key_len_of(a), len_b = key_len_of(b), both = MIN(len_a, len_b);
    int order = both > depth ? memcmp(a + ITEM_HEAD + depth, b + ITEM_HEAD + depth, both - depth) : 0;

    return order ? order : (len_a > len_b) - (len_a < len_b);
}

/* ---- sorting references ---- */

static inline void swap_refs(struct ref *a, struct ref *b)
{
    struct ref t = *a;

    *a = *b;
    *b = t;
}

/* Keys are equal up to depth, and words are those at depth. */
static bool ref_less(const uint8_t *block, const struct ref *a, const struct ref *b, size_t depth)
{
    int order;

    if (a->word != b->word)
        return a->word < b->word;
    order = compare_keys(block + a->at, block + b->at, depth);
    return order ? order < 0 : a->at < b->at;
}

static void insertion_sort(const uint8_t *block, struct ref *r, size_t n, size_t depth)
{
    for (size_t i = 1; i < n; i++) {
        struct ref one = r[i];
        size_t j = i;

        for (; j > 0 && ref_less(block, &one, &r[j - 1], depth); j--)
            r[j] = r[j - 1];
        r[j] = one;
    }
}

/* The middle word of three at places that depend on n: no simple input is bad for all of them. */
static uint64_t pivot_word(const struct ref *r, size_t n)
{
    uint64_t mixed = (n + 1) * 0x9e3779b97f4a7c15u;
    uint64_t a = r[mixed % n].word, b = r[(mixed >> 20) % n].word, c = r[(mixed >> 40) % n].word;

    return MAX(MIN(a, b), MIN(MAX(a, b), c));
}

/* Three parts: words below the pivot r[0..*below), equal r[*below..*above), above. */
static void partition(struct ref *r, size_t n, size_t *below, size_t *above)
{
    uint64_t pivot = pivot_word(r, n);
    size_t lo = 0, hi = n;

    for (size_t i = 0; i < hi;) {
        if (r[i].word < pivot)
            swap_refs(&r[i++], &r[lo++]);
        else if (r[i].word > pivot)
            swap_refs(&r[i], &r[--hi]);
        else
            i++;
    }
    *below = lo;
    *above = hi;
}

/* Orders references by word and then by place alone: for words that are unique or say all there is. */
static void sort_plain(struct ref *r, size_t n)
{
    while (n > 1) {
        size_t below, above;

        partition(r, n, &below, &above);
        if (below < n - above) {
            sort_plain(r, below);
            r += above;
            n -= above;
        } else {
            sort_plain(r + above, n - above);
            n = below;
        }
    }
}

/*
 * References whose keys are equal up to the end of the word at depth. Keys that end within the word differ in
 * length only and come before all longer ones: they are ordered by (length, place), packed into the word, and
 * counted; the others get their next word.
 */
static size_t split_ended(const uint8_t *block, struct ref *r, size_t n, size_t depth)
{
    size_t ended = 0;

    for (size_t i = 0; i < n; i++) {
        size_t len = key_len_of(block + r[i].at);

        if (len <= depth + WORD) {
            r[i].word = (uint64_t)(len - MIN(len, depth)) << 56 | r[i].at;
            swap_refs(&r[i], &r[ended++]);
        }
    }
    sort_plain(r, ended);
    for (size_t i = ended; i < n; i++)
        r[i].word = key_word(block + r[i].at, depth + WORD);
    return ended;
}

/* Recurses into the two smaller parts and goes on with the largest: at most log2(n) deep. */
static void sort_refs(const uint8_t *block, struct ref *r, size_t n, size_t depth)
{
    while (n > SMALL) {
        struct {
            struct ref *r;
            size_t n, depth;
        } part[3], last;
        size_t below, above, ended;

        partition(r, n, &below, &above);
        ended = split_ended(block, r + below, above - below, depth);
        part[0].r = r;
        part[0].n = below;
        part[1].r = r + below + ended;
        part[1].n = above - below - ended;
        part[2].r = r + above;
        part[2].n = n - above;
        part[0].depth = part[2].depth = depth;
        part[1].depth = depth + WORD;
        for (int i = 0; i < 2; i++)
            if (part[i].n > part[2].n) {
                last = part[i];
                part[i] = part[2];
                part[2] = last;
            }
        sort_refs(block, part[0].r, part[0].n, part[0].depth);
        sort_refs(block, part[1].r, part[1].n, part[1].depth);
        r = part[2].r;
        n = part[2].n;
        depth = part[2].depth;
    }
    insertion_sort(block, r, n, depth);
}

static struct ref *refs_of(const struct extsort *s)
{
    return (struct ref *)(void *)(s->block + s->budget) - s->n_refs;
}

static void sort_block(struct extsort *s)
{
    struct ref *r = refs_of(s);

    for (size_t i = 0; i < s->n_refs; i++)
        r[i].word = key_word(s->block + r[i].at, 0);
    sort_refs(s->block, r, s->n_refs, 0);
}

/* ---- the file ---- */

static int write_at_end(struct extsort *s, const uint8_t *data, size_t len, struct larder_error *err)
{
    if (write_fully(s->fd, data, len, s->file_end))
        return err_sys(err, LARDER_EIO, errno, "writing %zu bytes at %llu of the temporary file for sorting in %s", len,
                       (unsigned long long)s->file_end, s->dir);
    s->file_end += len;
    return LARDER_OK;
}

static int flush_out(struct extsort *s, struct larder_error *err)
{
    size_t len = s->out_len;

    s->out_len = 0;
    return write_at_end(s, s->out, len, err);
}

static int write_item(struct extsort *s, const uint8_t *item, struct larder_error *err)
{
    size_t len = item_bytes(item);

    if (len > s->out_cap - s->out_len) {
        int rc = flush_out(s, err);

        if (rc)
            return rc;
        if (len > s->out_cap)
            return write_at_end(s, item, len, err);
    }
    memcpy(s->out + s->out_len, item, len);
    s->out_len += len;
    return LARDER_OK;
}

static size_t spill_buffer_bytes(size_t budget)
{
    return MIN(MAX(budget / 16, (size_t)512), MIB);
}

static void begin_adding(struct extsort *s)
{
    s->used = spill_buffer_bytes(s->budget);
    s->n_refs = 0;
    s->out = s->block;
    s->out_cap = s->used;
    s->out_len = 0;
}

/* Sorts what the block holds and writes it out as a run. */
static int spill(struct extsort *s, struct larder_error *err)
{
    const struct ref *r = refs_of(s);
    uint64_t start = s->file_end;
    int rc = LARDER_OK;

    if (s->fd < 0 && (s->fd = unnamed_file(s->dir, err)) < 0) {
        rc = s->fd;
        s->fd = -1;
    }
    if (!rc)
        rc = GROW(s->runs, s->runs_cap, s->n_runs + 1, err);
    if (rc)
        return rc;
    sort_block(s);
    for (size_t i = 0; i < s->n_refs && !rc; i++)
        rc = write_item(s, s->block + r[i].at, err);
    if (!rc)
        rc = flush_out(s, err);
    if (rc)
        return rc;
    s->runs[s->n_runs++] = (struct run){start, s->file_end};
    begin_adding(s);
    return LARDER_OK;
}

/* ---- merging ---- */

static int read_ended(const struct extsort *s, const struct reader *r, struct larder_error *err)
{
    return err_set(err, LARDER_EIO, "the temporary file for sorting in %s is damaged before %llu", s->dir,
                   (unsigned long long)r->at);
}

/* Moves what is left to the front of the buffer and reads behind it as much as there is room for. */
static int refill(struct extsort *s, struct reader *r, struct larder_error *err)
{
    size_t left = r->len - r->pos, room, want;

    memmove(r->buf, r->buf + r->pos, left);
    r->pos = 0;
    r->len = left;
    room = s->buffer_bytes - left;
    want = r->end - r->at < room ? (size_t)(r->end - r->at) : room;
    ssize_t n = read_fully(s->fd, r->buf + r->len, want, r->at);

    if (n < 0)
        return err_sys(err, LARDER_EIO, errno, "reading the temporary file for sorting in %s at %llu", s->dir,
                       (unsigned long long)r->at);
    r->at += (uint64_t)n;
    r->len += (size_t)n;
    return (size_t)n < want ? read_ended(s, r, err) : LARDER_OK;
}

static bool item_whole(const struct reader *r)
{
    size_t left = r->len - r->pos;

    return left >= ITEM_HEAD && left >= item_bytes(r->buf + r->pos);
}

/* Makes the item at pos whole. LARDER_END: the run is over. */
static int reader_load(struct extsort *s, struct reader *r, struct larder_error *err)
{
    if (!item_whole(r)) {
        int rc;

        if (r->pos == r->len && r->at == r->end)
            return LARDER_END;
        rc = refill(s, r, err);
        if (rc)
            return rc;
        if (!item_whole(r))
            return read_ended(s, r, err);
    }
    r->word = key_word(r->buf + r->pos, 0);
    return LARDER_OK;
}

static bool reader_less(const struct extsort *s, uint32_t a, uint32_t b)
{
    const struct reader *x = &s->readers[a], *y = &s->readers[b];
    int order;

    if (x->word != y->word)
        return x->word < y->word;
    order = compare_keys(x->buf + x->pos, y->buf + y->pos, 0);
    return order ? order < 0 : a < b;
}

static void sift_down(struct extsort *s, size_t i)
{
    uint32_t moving = s->heap[i];

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= s->n_heap)
            break;
        if (child + 1 < s->n_heap && reader_less(s, s->heap[child + 1], s->heap[child]))
            child++;
        if (!reader_less(s, s->heap[child], moving))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = moving;
}

/* How many buffers, for reading and writing together, the budget has room for. An item fits into each. At least
 * three, as BUFFER_MIN counts and items have at most a quarter of the budget. */
static size_t buffers_max(const struct extsort *s)
{
    size_t buffer = round_up(MAX(MIN((size_t)BUFFER_MIN, s->budget / 4), s->item_max), 16);
    size_t n = (s->budget - 16) / (buffer + sizeof(struct reader) + sizeof(uint32_t));

    return MIN(n, (size_t)UINT32_MAX);
}

/* Lays the block out for merging n runs, with an output buffer or without, and reads their beginnings. */
static int merge_begin(struct extsort *s, const struct run *runs, size_t n, bool output, struct larder_error *err)
{
    size_t head = round_up(n * (sizeof(struct reader) + sizeof(uint32_t)), 16);
    uint8_t *at = s->block + head;

    s->readers = (struct reader *)(void *)s->block;
    s->heap = (uint32_t *)(void *)(s->block + n * sizeof(struct reader));
    s->buffer_bytes = round_down((s->budget - head) / (n + output), 16);
    s->n_heap = 0;
    s->head_taken = false;
    for (size_t i = 0; i < n; i++, at += s->buffer_bytes) {
        int rc;

        s->readers[i] = (struct reader){.at = runs[i].start, .end = runs[i].end, .buf = at};
        rc = reader_load(s, &s->readers[i], err);
        if (rc < 0)
            return rc;
        if (rc == LARDER_OK)
            s->heap[s->n_heap++] = (uint32_t)i;
    }
    s->out = at;
    s->out_len = 0;
    s->out_cap = output ? s->buffer_bytes : 0;
    for (size_t i = s->n_heap / 2; i-- > 0;)
        sift_down(s, i);
    return LARDER_OK;
}

/* The smallest item that is left, valid until the next call. */
static int merge_next(struct extsort *s, const uint8_t **item, struct larder_error *err)
{
    struct reader *r;

    if (s->head_taken) {
        int rc;

        s->head_taken = false;
        r = &s->readers[s->heap[0]];
        r->pos += item_bytes(r->buf + r->pos);
        rc = reader_load(s, r, err);
        if (rc < 0)
            return rc;
        if (rc == LARDER_END)
            s->heap[0] = s->heap[--s->n_heap];
        if (s->n_heap)
            sift_down(s, 0);
    }
    if (!s->n_heap)
        return LARDER_END;
    r = &s->readers[s->heap[0]];
    *item = r->buf + r->pos;
    s->head_taken = true;
    return LARDER_OK;
}

/* Merges n adjacent runs into one at the end of the file. */
static int merge_runs(struct extsort *s, const struct run *runs, size_t n, struct run *merged,
                      struct larder_error *err)
{
    uint64_t start = s->file_end, from = runs[0].start, to = runs[n - 1].end;
    const uint8_t *item;
    int rc = merge_begin(s, runs, n, true, err);

    while (!rc && !(rc = merge_next(s, &item, err)))
        rc = write_item(s, item, err);
    if (rc == LARDER_END)
        rc = flush_out(s, err);
    if (rc)
        return rc;
    *merged = (struct run){start, s->file_end};
    for (size_t i = 1; i < n; i++)
        if (runs[i].start != runs[i - 1].end)
            return LARDER_OK; /* not one range: keep the space */
    (void)fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)from, (off_t)(to - from));
    return LARDER_OK;
}

/* One pass from left to right over all runs; stops merging once few enough are left for the last merge. */
static int merge_pass(struct extsort *s, size_t last_max, struct larder_error *err)
{
    size_t fan = buffers_max(s) - 1, kept = 0, i = 0;

    while (i < s->n_runs) {
        size_t left = s->n_runs - i, over = kept + left > last_max ? kept + left - last_max : 0;
        size_t n = MIN(MIN(fan, left), over + 1);
        struct run merged;
        int rc;

        if (n == 1) {
            s->runs[kept++] = s->runs[i++];
            continue;
        }
        rc = merge_runs(s, s->runs + i, n, &merged, err);
        if (rc)
            return rc;
        s->runs[kept++] = merged;
        i += n;
    }
    s->n_runs = kept;
    return LARDER_OK;
}

/* ---- the door ---- */

int extsort_new(const char *dir, size_t budget_bytes, struct extsort **out, struct larder_error *err)
{
    struct extsort *s;

    *out = NULL;
    if (budget_bytes < BUDGET_MIN)
        return err_set(err, LARDER_EINVAL, "sorting: budget of %zu bytes, at least %d are needed", budget_bytes,
                       BUDGET_MIN);
    s = calloc(1, sizeof(*s));
    if (!s)
        return err_nomem(err, sizeof(*s), "sorting");
    s->fd = -1;
    s->budget = round_down(budget_bytes, 16);
    s->dir = strdup(dir);
    s->block = malloc(s->budget);
    if (!s->dir || !s->block) {
        extsort_free(s);
        return err_nomem(err, budget_bytes, "sorting");
    }
    begin_adding(s);
    *out = s;
    return LARDER_OK;
}

static int check_add(const struct extsort *s, size_t key_len, size_t payload_len, struct larder_error *err)
{
    if (s->state != ADDING)
        return err_set(err, LARDER_EINVAL, "sorting: an item is added after the sort");
    if (key_len > LEN_MAX || payload_len > LEN_MAX)
        return err_set(err, LARDER_EINVAL, "sorting: key of %zu and payload of %zu bytes, at most %d each", key_len,
                       payload_len, LEN_MAX);
    if (ITEM_HEAD + key_len + payload_len > s->budget / 4)
        return err_set(err, LARDER_ENOMEM, "sorting: an item of %zu bytes needs a budget of four times that, not %zu",
                       ITEM_HEAD + key_len + payload_len, s->budget);
    return LARDER_OK;
}

int extsort_add(struct extsort *s, const void *key, size_t key_len, const void *payload, size_t payload_len,
                struct larder_error *err)
{
    size_t len = ITEM_HEAD + key_len + payload_len;
    uint8_t *item;
    int rc = check_add(s, key_len, payload_len, err);

    if (rc)
        return rc;
    if (len + sizeof(struct ref) > s->budget - s->used - s->n_refs * sizeof(struct ref)) {
        rc = spill(s, err);
        if (rc) {
            s->state = FAILED;
            return rc;
        }
    }
    item = s->block + s->used;
    put_u16(item, (uint16_t)key_len);
    put_u16(item + 2, (uint16_t)payload_len);
    if (key_len)
        memcpy(item + ITEM_HEAD, key, key_len);
    if (payload_len)
        memcpy(item + ITEM_HEAD + key_len, payload, payload_len);
    s->n_refs++;
    refs_of(s)->at = s->used;
    s->used += len;
    s->item_max = MAX(s->item_max, len);
    return LARDER_OK;
}

static int sort_runs(struct extsort *s, struct larder_error *err)
{
    int rc = s->n_refs ? spill(s, err) : LARDER_OK;

    while (!rc && s->n_runs > buffers_max(s))
        rc = merge_pass(s, buffers_max(s), err);
    return rc ? rc : merge_begin(s, s->runs, s->n_runs, false, err);
}

int extsort_sort(struct extsort *s, struct larder_error *err)
{
    int rc;

    if (s->state != ADDING)
        return err_set(err, LARDER_EINVAL, "sorting: sorted already, or failed before");
    if (!s->n_runs) {
        sort_block(s);
        s->state = IN_MEMORY;
        return LARDER_OK;
    }
    rc = sort_runs(s, err);
    s->state = rc ? FAILED : MERGING;
    return rc;
}

static int next_item(struct extsort *s, const uint8_t **item, struct larder_error *err)
{
    int rc;

    switch (s->state) {
    case IN_MEMORY:
        if (s->next == s->n_refs)
            return LARDER_END;
        *item = s->block + refs_of(s)[s->next++].at;
        return LARDER_OK;
    case MERGING:
        rc = merge_next(s, item, err);
        if (rc)
            s->state = rc == LARDER_END ? ENDED : FAILED;
        return rc;
    case ENDED:
        return LARDER_END;
    default:
        return err_set(err, LARDER_EINVAL, "sorting: the next item is asked for before the sort, or after a failure");
    }
}

int extsort_next(struct extsort *s, const void **key, size_t *key_len, const void **payload, size_t *payload_len,
                 struct larder_error *err)
{
    const uint8_t *item = NULL;
    int rc = next_item(s, &item, err);

    if (rc)
        return rc;
    *key_len = key_len_of(item);
    *payload_len = get_u16(item + 2);
    *key = item + ITEM_HEAD;
    *payload = item + ITEM_HEAD + *key_len;
    return LARDER_OK;
}

void extsort_free(struct extsort *s)
{
    if (!s)
        return;
    guard_fd(&s->fd);
    free(s->runs);
    free(s->block);
    free(s->dir);
    free(s);
}
