/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader_args.c - the options of bench that describe a loader: what becomes of images, which samples take part, windows, threads, states.
 *
 * The parsers only note what was asked: files are read, and outputs made for the fields that there are, once the dataset is open
 * (loader_args_take). With --image other than raw, the first image field becomes an array, and all other fields come beside it, scalars as
 * arrays too.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/tools.h"

void loader_args_init(struct loader_args *a)
{
    *a = (struct loader_args){.o = LARDER_LOADER_OPTIONS_INIT};
}

void loader_args_release(struct loader_args *a)
{
    free(a->outputs);
    free(a->bits);
    free(a->weights);
    free(a->list);
    free(a->text);
}

/* ---- images ---- */

/* 224 or 224x160 (width x height). */
static int parse_extent(const char *s, struct larder_image *im)
{
    uint64_t w, h;
    const char *x = strchr(s, 'x');
    char width[24];

    if (!x)
        x = s + strlen(s);
    if ((size_t)(x - s) >= sizeof width)
        return -1;
    memcpy(width, s, (size_t)(x - s));
    width[x - s] = 0;
    if (parse_u64(width, &w) || w < 1 || w > 65535)
        return -1;
    h = w;
    if (*x && (parse_u64(x + 1, &h) || h < 1 || h > 65535))
        return -1;
    im->width = (uint32_t)w;
    im->height = (uint32_t)h;
    return 0;
}

void option_image(struct tool *t, struct loader_args *a)
{
    static const struct { const char *name; int crop; } ways[] = {
        {"rrc:", LARDER_CROP_RANDOM}, {"center:", LARDER_CROP_CENTER}, {"full:", LARDER_CROP_NONE},
    };

    a->image = strcmp(t->value, "raw") != 0;
    for (size_t i = 0; a->image && i < sizeof ways / sizeof *ways; i++) {
        size_t len = strlen(ways[i].name);

        if (strncmp(t->value, ways[i].name, len) == 0 && parse_extent(t->value + len, &a->prep) == 0) {
            a->prep.crop = ways[i].crop;
            return;
        }
    }
    if (a->image)
        option_bad(t, "raw, rrc:SIDE, center:SIDE or full:SIDE, with a SIDE such as 224 or 224x160 (width x height)");
}

/* A number in [low, high] at *s, which is moved behind it and a comma. */
static int take_number(const char **s, double low, double high, double *v)
{
    char *end;

    errno = 0;
    *v = strtod(*s, &end);
    if (end == *s || errno || !(*v >= low && *v <= high) || (*end && *end != ','))
        return -1;
    *s = end + (*end == ',');
    return 0;
}

static void option_share(struct tool *t, double low, double *v)
{
    const char *s = t->value;
    double share;

    if (take_number(&s, low, 1, &share) || *s || strchr(t->value, ','))
        option_bad(t, low > 0 ? "a share above 0, 1 at most, such as 0.001" : "a number from 0 to 1 such as 0.5");
    else
        *v = share;
}

void option_flip(struct tool *t, struct loader_args *a)
{
    option_share(t, 0, &a->prep.flip);
}

void option_max_bad(struct tool *t, struct loader_args *a)
{
    option_share(t, 1e-12, &a->o.max_bad);
}

void option_dtype(struct tool *t, struct loader_args *a)
{
    static const char *const names[] = {"uint8", "float16", "bfloat16", "float32", NULL};
    int which = 0;

    option_choice(t, names, &which);
    a->prep.dtype = names[which];
}

void option_layout(struct tool *t, struct loader_args *a)
{
    static const char *const names[] = {"nhwc", "nchw", NULL};

    option_choice(t, names, &a->prep.planar);
}

void option_resample(struct tool *t, struct loader_args *a)
{
    static const char *const names[] = {"bilinear", "bicubic", "nearest", NULL};

    option_choice(t, names, &a->prep.filter);
}

/* "imagenet", MEAN,STD for all channels, or three of each. */
void option_normalize(struct tool *t, struct loader_args *a)
{
    static const float imagenet[6] = {0.485f, 0.456f, 0.406f, 0.229f, 0.224f, 0.225f};
    float v[6];
    const char *s = t->value;
    size_t n = 0;

    if (strcmp(t->value, "imagenet") == 0) {
        memcpy(v, imagenet, sizeof v);
        n = 6;
    }
    for (double d; n < 6 && *s && take_number(&s, -1e6, 1e6, &d) == 0;)
        v[n++] = (float)d;
    if (strcmp(t->value, "imagenet") != 0 && (*s || s[-1] == ',' || (n != 2 && n != 6))) {
        option_bad(t, "imagenet, MEAN,STD such as 0.5,0.25, or three means and three standard deviations");
        return;
    }
    for (size_t i = 0; i < 3; i++) {
        a->prep.mean[i] = n == 2 ? v[0] : v[i];
        a->prep.std[i] = n == 2 ? v[1] : v[3 + i];
        if (!(a->prep.std[i] > 0)) {
            option_bad(t, "a normalization: a standard deviation has to be above 0");
            return;
        }
    }
    a->prep.normalize = 1;
}

/* ---- windows ---- */

/* A count of samples, or a size: of samples as they are stored, on average. */
void option_window(struct tool *t, struct loader_window *w)
{
    uint64_t v;

    *w = (struct loader_window){0};
    if (parse_u64(t->value, &v) == 0 && v >= 1 && v <= UINT64_MAX / 4)
        w->samples = v;
    else if (parse_u64(t->value, &v) != 0 && parse_size(t->value, &v) == 0 && v >= 1)
        w->bytes = v;
    else
        option_bad(t, "a number of samples such as 1024, or a size such as 64MiB");
}

static uint64_t window_samples(const struct loader_window *w, const struct larder_dataset_info *in)
{
    double mean = in->samples ? (double)in->stored_bytes / (double)in->samples : 1;

    if (!w->bytes)
        return w->samples;
    return mean > 0 && (double)w->bytes / mean >= 1 ? (uint64_t)((double)w->bytes / mean) : 1;
}

/* ---- which samples ---- */

/* "0:0.9": what hashes of keys fall into this part of [0, 1). */
void option_split(struct tool *t, struct loader_args *a)
{
    char *end, *last = NULL;
    double begin = strtod(t->value, &end), to = *end == ':' ? strtod(end + 1, &last) : 0;

    if (end == t->value || *end != ':' || last == end + 1 || *last || !(begin >= 0 && begin < to && to <= 1)) {
        option_bad(t, "BEGIN:END, a part of 0:1 such as 0:0.9");
        return;
    }
    a->o.split_begin = begin;
    a->o.split_end = to;
}

static int set_bit(void *user, uint64_t ordinal)
{
    uint8_t *bits = user;

    bits[ordinal / 8] |= (uint8_t)(1u << ordinal % 8);
    return 0;
}

static int append(void *user, uint64_t ordinal)
{
    struct loader_args *a = user;

    if (a->n_list == a->cap_list) {
        size_t cap = a->cap_list ? a->cap_list * 2 : 1024;
        uint64_t *more = realloc(a->list, cap * sizeof *more);

        if (!more)
            return -1;
        a->list = more;
        a->cap_list = cap;
    }
    a->list[a->n_list++] = ordinal;
    return 0;
}

static int take_samples(struct tool *t, struct loader_args *a, struct larder_dataset *ds, uint64_t samples)
{
    uint64_t members = samples;

    if (a->filter_file) {
        a->bits = calloc(samples / 8 + 1, 1);
        if (!a->bits)
            return tool_nomem(t);
        if (list_names(t, ds, a->filter_file, set_bit, a->bits))
            return t->status;
        members = 0;
        for (uint64_t i = 0; i < samples / 8 + 1; i++)
            members += (uint64_t)__builtin_popcount(a->bits[i]);
        a->o.filter = a->bits;
    }
    if (a->order_file) {
        if (list_names(t, ds, a->order_file, append, a))
            return t->status;
        if (!a->n_list)
            return tool_fail(t, "%s: no names of samples", a->order_file);
        a->o.order = a->list;
        a->o.n_order = members = a->n_list;
    }
    if (a->weights_file && list_numbers(t, a->weights_file, members, &a->weights))
        return t->status;
    a->o.weights = a->weights;
    return EXIT_DONE;
}

/* ---- outputs ---- */

static int take_outputs(struct tool *t, struct loader_args *a, struct larder_dataset *ds, uint32_t n)
{
    int image = -1;

    a->outputs = calloc(n ? n : 1, sizeof *a->outputs);
    if (!a->outputs)
        return tool_nomem(t);
    for (uint32_t i = 0; i < n; i++) {
        struct larder_output *out = &a->outputs[i];
        struct larder_field field;
        struct larder_error err = {0};

        if (larder_dataset_field(ds, i, &field, &err))
            return tool_error(t, &err);
        *out = (struct larder_output)LARDER_OUTPUT_INIT;
        out->field = field.name;
        if (field.type == LARDER_IMAGE && image < 0) {
            image = (int)i;
            out->prep = LARDER_PREP_IMAGE;
            out->image = a->prep;
        }
    }
    if (image < 0)
        return tool_fail(t, "%s has no image field: leave --image out, or give it as raw", t->argv[0]);
    a->o.outputs = a->outputs;
    a->o.n_outputs = n;
    return EXIT_DONE;
}

int loader_args_check(struct tool *t, const struct loader_args *a)
{
    if (a->image_only && !a->image)
        return tool_usage(t, "--%s needs --image rrc:SIDE, center:SIDE or full:SIDE", a->image_only);
    if (a->filter_file && a->order_file)
        return tool_usage(t, "--filter and --order exclude each other: leave out of the order what is not wanted");
    if (a->o.max_bad > 0 && a->o.on_bad_sample != LARDER_ON_BAD_REPLACE)
        return tool_usage(t, "--max-bad needs --on-bad-sample replace");
    return EXIT_DONE;
}

/* ---- states ---- */

/* No file: the run begins at the beginning. */
static int take_state(struct tool *t, struct loader_args *a)
{
    size_t most = LARDER_STATE_BYTES(MIX_ARGS_MAX), n;
    FILE *f;

    if (!a->state_file)
        return EXIT_DONE;
    f = fopen(a->state_file, "r");
    if (!f)
        return errno == ENOENT ? EXIT_DONE : tool_fail(t, "%s: %s", a->state_file, strerror(errno));
    a->text = calloc(1, most + 1);
    n = a->text ? fread(a->text, 1, most + 1, f) : 0;
    fclose(f);
    if (!a->text)
        return tool_nomem(t);
    if (n == 0 || n > most || memchr(a->text, 0, n))
        return tool_fail(t, "%s is no state of a loader; remove it to begin anew", a->state_file);
    a->o.state = a->text;
    return EXIT_DONE;
}

int loader_args_save(struct tool *t, const struct loader_args *a, const struct larder_loader *ld)
{
    char text[LARDER_STATE_BYTES(MIX_ARGS_MAX)], *temp = NULL;
    struct larder_error err = {0};
    FILE *f;
    int bad;

    if (!a->state_file)
        return EXIT_DONE;
    if (larder_loader_state(ld, text, sizeof text, &err))
        return tool_error(t, &err);
    if (asprintf(&temp, "%s.%d.tmp", a->state_file, (int)getpid()) < 0)
        return tool_nomem(t);
    f = fopen(temp, "w");
    bad = !f || fputs(text, f) < 0 || fflush(f) || fsync(fileno(f));
    if (f && fclose(f))
        bad = 1;
    if (bad || rename(temp, a->state_file)) {
        tool_fail(t, "%s: the state cannot be written: %s", a->state_file, strerror(errno));
        unlink(temp);
    }
    free(temp);
    return t->status;
}

/* ---- all of it ---- */

int loader_args_take(struct tool *t, struct loader_args *a, struct larder_dataset *ds)
{
    struct larder_dataset_info in = {.struct_size = sizeof in};
    struct larder_error err = {0};

    if (larder_dataset_info(ds, &in, &err))
        return tool_error(t, &err);
    a->o.fetch_size = window_samples(&a->fetch, &in);
    a->o.threshold = window_samples(&a->threshold, &in);
    if (a->image && take_outputs(t, a, ds, in.fields))
        return t->status;
    if (take_samples(t, a, ds, in.samples) || take_state(t, a))
        return t->status;
    return EXIT_DONE;
}
