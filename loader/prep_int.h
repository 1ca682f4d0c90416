/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prep_int.h - inside loader/: what becomes of stored values on their way into a batch.
 *
 * window.c, transform.c and outputs.c are pure. prep.c makes the arrays of a batch from values; its threads are the stage's. bad.c says what stands
 * in for a sample that cannot be decoded, decoded.c keeps what was decoded.
 */
#ifndef LARDER_PREP_INT_H
#define LARDER_PREP_INT_H

#include "loader/loader_int.h"

/* ---- windows (window.c): pure (DELI III-B) ---- */

/* A window is requested as a whole as soon as what was requested and not yet consumed is no more than the threshold. In samples or in bytes,
 * whatever is counted. */
struct window {
    uint64_t fetch_size, threshold; /* fetch_size 1 or more */
    uint64_t queued;                /* requested, not consumed */
    uint64_t left;                  /* of the window being requested */
};
void window_init(struct window *w, uint64_t fetch_size, uint64_t threshold);
/* How much may be requested now; 0: wait. Begins a window when one is due. */
uint64_t window_due(struct window *w);
void window_request(struct window *w, uint64_t n); /* n was requested: may be more than was due, by less than a batch */
void window_consume(struct window *w, uint64_t n);

/* ---- randomness and geometry (transform.c): pure ---- */

/* Philox 4x32-10 (Salmon et al. 2011): the k-th four numbers of one view of one sample. Geometry takes k below 11. */
struct random_key { uint64_t seed, epoch, position; uint32_t view; };
void random_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);
void random_at(const struct random_key *key, uint32_t k, uint32_t out[4]);

/* What is done to an image: a crop of it (turned by its EXIF orientation first, where that is asked for) is scaled to width x height. CENTER
 * crops of a scaled image are crops of the image itself, with fractions. */
struct geometry {
    uint32_t image_width, image_height; /* as the crop sees it */
    double x, y, w, h;
    uint32_t width, height;
    bool flip;
    int orientation;                    /* applied; 1: none */
};
/* width, height: of the image as stored; orientation: what its EXIF data say, applied when o->exif. o has its defaults filled in.
 * Deterministic in (o, size, key). */
void transform_geometry(const struct larder_image *o, uint32_t width, uint32_t height, int orientation, const struct random_key *key,
                        struct geometry *g);
/* Fills in defaults. EINVAL names the member. */
int transform_check(struct larder_image *o, const char *output, struct larder_error *err);
/* The codec's job for a geometry; borrows o's mean and std. */
void transform_job(const struct larder_image *o, const struct geometry *g, struct image_job *job);
/* Moves a box (x0, y0, x1, y1 in pixels of the image as stored) into pixels of the result, clipped; false: nothing of it is left. */
bool transform_box(const struct geometry *g, const double in[4], float out[4]);

/* ---- the decoded cache (decoded.c) ---- */

/* An image in its stored form: decoded, and scaled so that its shorter side is the cache's, if it is not smaller. */
struct decoded_image {
    const uint8_t *pixels;            /* RGB, 3 * width bytes a row; NULL: the sample has no such image */
    uint32_t width, height;           /* of pixels */
    uint32_t full_width, full_height; /* of the image as it is encoded: what geometry is computed for */
    int orientation;                  /* its EXIF orientation. Neither pixels nor sizes are turned by it. */
};

struct decoded;        /* the cache, and how the stored form is made: constant, shared by threads */
struct decoded_worker; /* a thread's decoder and memory */
struct decoded_options {
    const struct manifest *manifest;  /* borrowed until close, as schema of it names fields */
    const char *name;                 /* of the cache, as tiers_variant_options has it */
    uint64_t bytes;
    uint32_t side;                    /* the shorter side; 1 or more */
    bool compress, no_pin;
    struct larder_image image;        /* filter, no_antialias, exact, pixels_max */
    const uint8_t *keep;              /* [n_fields]: DECODED_RAW, DECODED_PIXELS, both or 0 */
};
enum { DECODED_RAW = 1, DECODED_PIXELS = 2 };
int decoded_open(const struct decoded_options *o, struct decoded **d, struct larder_error *err);
void decoded_close(struct decoded *d); /* NULL is allowed; in a forked child memory only */
/* views[i]: the stored form of ordinals[i] (extents[i].stored_len bytes), until close; NULL: it is not there. Any thread. */
size_t decoded_lookup(struct decoded *d, const uint64_t *ordinals, size_t n, struct extent *extents, const void **views);
/* Of a stored form: bytes of the fields that are kept as they are. */
uint64_t decoded_raw_bytes(const struct decoded *d, const void *view, size_t len);
struct tiers_variant_stats decoded_stats(const struct decoded *d);
int decoded_worker_new(struct decoded *d, struct decoded_worker **w, struct larder_error *err);
void decoded_worker_free(struct decoded_worker *w);
/* A miss: makes the stored form of a sample's values, and puts it. *images: [n_fields], until the worker's next call. *ns: what decoding
 * took. ECORRUPT and EINVAL are the sample's fault, and name the field. */
int decoded_make(struct decoded_worker *w, uint64_t ordinal, const struct larder_value *values, const struct decoded_image **images,
                 uint64_t *ns, struct larder_error *err);
/* A hit: values[n_fields] of the fields that are kept as they are (views, which stay), images likewise. *ns: what decoding took once. */
int decoded_take(struct decoded_worker *w, const void *view, size_t len, struct larder_value *values, const struct decoded_image **images,
                 uint64_t *ns, struct larder_error *err);
/* A geometry of the image becomes the same one of its stored form. */
void decoded_geometry(const struct decoded_image *im, const struct geometry *full, struct geometry *stored);

/* ---- outputs, checked against a schema (outputs.c): pure ---- */

/* A type of numpy's. kind: 'b'ool, 'i'nt, 'u'int, 'f'loat, 'B' for bfloat16. name is static. */
struct dtype { const char *name; uint8_t bytes; char kind; };
const struct dtype *dtype_find(const char *name); /* NULL: none */

struct prep_output {
    struct larder_output o;     /* with defaults filled in; the caller's strings are gone */
    char *name, *field_name;
    int field;                  /* of the schema; -1: none */
    int follows;                /* of the outputs; -1: none */
    bool followed;              /* an image whose geometry others need */
    int type;                   /* of the field */
    const char *dtype;
    size_t item;                /* bytes of an element */
    uint32_t views;             /* of an image and what follows it; else 1 */
    uint32_t ndim;
    int64_t *shape;             /* [ndim] of the array, but for shape[0] and what differs from batch to batch (-1) */
    uint64_t row;               /* bytes of a sample; RAGGED, PADDED: of one step along the dimensions that differ; BOXES: of a box */
    uint32_t n_vary;            /* RAGGED, PADDED: dimensions of the value that differ; the sizes of several stand before its elements */
    const struct dtype *stored; /* BOXES: of the field's elements */
    int64_t n_boxes;            /* BOXES: in every sample; -1: that differs */
};

struct prep {
    struct prep_output *outputs;
    size_t n;
    size_t *order;              /* [n]: images before what follows them */
    bool *wants;                /* [n_fields] */
    uint32_t n_fields;
    bool heavy;
};

/* ---- what stands in for bad samples (bad.c) ---- */

#define BAD_TRIES 64u
/* The position of the same epoch whose sample stands in for the one at `position`, or, when that is bad too, the next try's. Pure; length
 * is 1 or more. */
uint64_t bad_position(uint64_t seed, uint64_t epoch, uint64_t position, uint32_t try, uint64_t length);

/* A bad sample of a batch. */
struct bad_note { uint64_t position, ordinal, substitute; uint32_t source, substitute_source; char message[244]; };
/* Of one batch, in any order until they are sorted. */
struct bad_notes { struct bad_note *notes; size_t n, cap; };
int bad_add(struct bad_notes *b, const struct bad_note *note, struct larder_error *err);
void bad_sort(struct bad_notes *b); /* by position, and then as they were added */
void bad_release(struct bad_notes *b);

/* "sample 'n02_77' (ordinal 40312, shard 17 slot 88), " and why. Reads the key; what cannot be read is left out. source: of a mix, and said
 * then; else -1. */
void bad_describe(struct store *s, int source, uint64_t ordinal, const char *why, char message[244]);
/* FAIL: ECORRUPT with that, and what to do about it. uri: of the dataset, or NULL. */
int bad_refuse(const char *message, const char *uri, uint64_t ordinal, struct larder_error *err);

/* How many there were, of how many that were asked for: since a loader was opened. */
#define BAD_SHARE_FROM 1000u
#define BAD_FIRST 4u
struct bad_count { uint64_t asked, bad; uint64_t first[BAD_FIRST]; /* ordinals, each once */ unsigned n_first; };
/* A batch of so many samples was delivered. ECORRUPT when there are more than max_bad of those asked for, from the BAD_SHARE_FROM-th on: names
 * counts and the first few. */
int bad_account(struct bad_count *c, double max_bad, uint64_t samples, const struct bad_notes *b, struct larder_error *err);

/* ---- what batches went through (trace.c) ---- */

struct trace;
enum { TRACE_PLAN = 1, TRACE_WORK = 2, TRACE_CONSUMER = 1000 }; /* threads: the one that plans; workers from 2 on; the caller's */
/* path is replaced. All other calls take NULL, and do nothing then. */
int trace_open(const char *path, struct trace **t, struct larder_error *err);
/* Writes what is left, and the end. In a forked child memory only. */
void trace_close(struct trace *t);
void trace_thread(struct trace *t, uint32_t thread, const char *name);
/* One thread was at it from begin to end (now_ns()): "plan", "decode". Any thread; never waits for the disk. */
struct trace_batch { uint64_t seq, epoch, number; uint32_t samples; };
void trace_span(struct trace *t, uint32_t thread, const char *what, uint64_t begin_ns, uint64_t end_ns, const struct trace_batch *b);
/* A batch was in that state, beside others: "fetch", "ready", "held". */
void trace_state(struct trace *t, const char *what, uint64_t begin_ns, uint64_t end_ns, const struct trace_batch *b);

/* ---- arrays of a batch (prep.c) ---- */

struct prep_worker; /* a thread's decoders */

/* Copies the outputs. EINVAL, ENOTFOUND name the output. */
int prep_new(const struct schema *schema, const struct larder_output *outputs, size_t n, struct prep **p, struct larder_error *err);
void prep_free(struct prep *p);
bool prep_is_heavy(const struct prep *p); /* something is decoded: more threads pay */
bool prep_wants(const struct prep *p, uint32_t field); /* is the field looked at? */
int prep_worker_new(const struct prep *p, struct prep_worker **w, struct larder_error *err);
void prep_worker_free(struct prep_worker *w);

/* The arrays of one batch, in memory of the staging buffer. */
struct prep_batch {
    const struct prep *prep;
    uint32_t n;
    uint64_t seed, epoch;
    uint8_t *memory;
    struct larder_array *arrays;  /* in memory, as all below */
    void *plan;                   /* prep.c's own */
};
/* Bytes of memory that a batch of n samples takes at most, whose records have raw_bytes together and raw_max at most. */
size_t prep_bytes(const struct prep *p, uint32_t n, uint64_t raw_bytes, uint64_t raw_max);
/* Lays a batch out in memory: prep_bytes(), 64-byte aligned, not initialised. */
void prep_begin(const struct prep *p, struct prep_batch *b, uint32_t n, uint64_t raw_bytes, uint64_t raw_max, uint64_t seed, uint64_t epoch,
                void *memory);
/* Sample i, whose values stay until prep_end: decodes what is to be decoded straight into its place. Several threads, a sample each. The same
 * sample may be done again, with other values. ECORRUPT and EINVAL are the sample's fault, and name the field. */
int prep_sample(struct prep_worker *w, struct prep_batch *b, uint32_t i, uint64_t ordinal, uint64_t position, const struct larder_value *values,
                struct larder_error *err);
/* The decoded cache: what it keeps of each field ([n_fields]: DECODED_RAW, DECODED_PIXELS), and, in *o, how it makes it: as the largest image
 * is made, with a side of 8/7 of that one's where o->side is 0. False: there is no image. */
bool prep_decoded(const struct prep *p, uint8_t *keep, struct decoded_options *o);
/* The worker's samples come with images decoded before ([n_fields], borrowed during prep_sample()), from now on: values need not have them. */
void prep_worker_decoded(struct prep_worker *w, const struct decoded_image *images);
/* After all samples, one thread: values of differing size are put back to back. values: [n][n_fields] of the schema. */
int prep_end(struct prep_batch *b, const struct larder_value *values, uint32_t n_fields, struct larder_error *err);

#endif
