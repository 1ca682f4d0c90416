/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_get.c - larder get DATASET KEY|@ORDINAL...: describes samples, or writes the bytes of one field.
 *
 * All names are resolved before anything is printed, in one batched lookup, so a key that is not there fails
 * the whole command. Samples are then read one at a time: a sample may be large. With --field only that field
 * is read.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/tools.h"

enum { FIELD, OUTPUT, JSON };

const struct option_spec get_options[] = {
    [FIELD] = {"field", 'f', "NAME", NULL, "write this field's bytes; scalars as text and a newline"},
    [OUTPUT] = {"output", 'o', "FILE", "-, stdout", "write the bytes to FILE; needs --field"},
    [JSON] = OPTION_JSON,
    OPTION_END,
};

struct get {
    struct tool *t;
    struct larder_dataset *ds;
    uint64_t samples;
    uint32_t n_fields;
    const char *field; /* NULL: describe */
    uint32_t field_no;
    const char *output; /* NULL: stdout */
    FILE *out;
};

static int is_scalar(int type)
{
    return type == LARDER_I64 || type == LARDER_F64 || type == LARDER_F32 || type == LARDER_BOOL;
}

static uint64_t le64(const void *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof v);
    return le64toh(v);
}

static double scalar_double(int type, const void *p)
{
    uint64_t bits64;
    uint32_t bits32;
    double d;
    float f;

    if (type == LARDER_F64) {
        bits64 = le64(p);
        memcpy(&d, &bits64, sizeof d);
        return d;
    }
    memcpy(&bits32, p, sizeof bits32);
    bits32 = le32toh(bits32);
    memcpy(&f, &bits32, sizeof f);
    return (double)f;
}

/* The width was checked when the record was decoded; a value of another width has no text. */
static int scalar_width_ok(int type, size_t len)
{
    return len == (type == LARDER_BOOL ? 1u : type == LARDER_F32 ? 4u : 8u);
}

static void scalar_print(FILE *f, int type, const struct larder_value *v)
{
    char buf[TEXT_MAX];

    if (!scalar_width_ok(type, v->len))
        fputc('?', f);
    else if (type == LARDER_I64)
        fprintf(f, "%" PRId64, (int64_t)le64(v->data));
    else if (type == LARDER_BOOL)
        fputs(*(const unsigned char *)v->data ? "true" : "false", f);
    else
        fputs(text_double(scalar_double(type, v->data), type == LARDER_F32, buf), f);
}

static void scalar_json(struct jsonl *j, int type, const struct larder_value *v)
{
    if (!scalar_width_ok(type, v->len))
        jsonl_null(j, "value");
    else if (type == LARDER_I64)
        jsonl_i64(j, "value", (int64_t)le64(v->data));
    else if (type == LARDER_BOOL)
        jsonl_bool(j, "value", *(const unsigned char *)v->data);
    else
        jsonl_double(j, "value", scalar_double(type, v->data), type == LARDER_F32);
}

/* The class a label stands for, or NULL. */
static const char *class_of(const struct get *g, const struct larder_field *f, const struct larder_value *v)
{
    int64_t label;

    if (f->type != LARDER_I64 || strcmp(f->name, "label") != 0 || v->len != 8)
        return NULL;
    label = (int64_t)le64(v->data);
    return label >= 0 ? larder_dataset_class(g->ds, (uint64_t)label, NULL) : NULL;
}

static void field_json(const struct get *g, struct jsonl *j, const struct larder_field *f,
                       const struct larder_value *v)
{
    const char *type = larder_type_name(f->type), *name;

    if (!v->data) {
        jsonl_null(j, f->name);
        return;
    }
    jsonl_object(j, f->name);
    jsonl_text(j, "type", type ? type : "unknown");
    jsonl_u64(j, "bytes", v->len);
    if (is_scalar(f->type))
        scalar_json(j, f->type, v);
    name = class_of(g, f, v);
    if (name)
        jsonl_text(j, "class", name);
    jsonl_close(j, '}');
}

static void field_print(const struct get *g, const struct larder_field *f, const struct larder_value *v)
{
    const char *type = larder_type_name(f->type), *name;
    char a[TEXT_MAX], b[TEXT_MAX];

    fputs("  ", stdout);
    text_escape(stdout, f->name, strlen(f->name), 0);
    printf(": %s", type ? type : "unknown");
    if (f->type == LARDER_NDARRAY)
        printf(" %s", f->dtype);
    if (!v->data) {
        puts(", not in this sample");
        return;
    }
    if (is_scalar(f->type)) {
        putchar(' ');
        scalar_print(stdout, f->type, v);
        name = class_of(g, f, v);
        if (name) {
            fputs(" (", stdout);
            text_line(stdout, name);
            putchar(')');
        }
    } else {
        printf(", %s (%s bytes)", text_size(v->len, a), text_count(v->len, b));
        if ((f->type == LARDER_UTF8 || f->type == LARDER_JSON) && v->len > 0) {
            fputs(": ", stdout);
            text_escape(stdout, v->data, v->len, 60);
        }
    }
    putchar('\n');
}

static int describe_fields(const struct get *g, const struct larder_sample *s, struct jsonl *j)
{
    struct larder_error err = {0};
    struct larder_field f;

    for (uint32_t i = 0; i < s->n_fields; i++) {
        if (larder_dataset_field(g->ds, i, &f, &err))
            return tool_error(g->t, &err);
        if (j)
            field_json(g, j, &f, &s->fields[i]);
        else
            field_print(g, &f, &s->fields[i]);
    }
    return EXIT_DONE;
}

static int describe(const struct get *g, const struct larder_sample *s)
{
    char key[LARDER_KEY_MAX], a[TEXT_MAX], b[TEXT_MAX];
    struct larder_error err = {0};
    struct larder_location loc;
    struct jsonl j;
    size_t len;
    int rc;

    if (larder_dataset_key(g->ds, s->ordinal, key, sizeof key, &len, &err) ||
        larder_dataset_locate(g->ds, s->ordinal, &loc, &err))
        return tool_error(g->t, &err);
    if (!g->t->json) {
        fputs("key ", stdout);
        text_escape(stdout, key, len, 0);
        printf("\n  ordinal %" PRIu64 ", shard %s, slot %" PRIu32 ", offset %" PRIu64 ", %s stored, %s raw\n",
               s->ordinal, loc.shard, loc.slot, loc.offset, text_size(loc.stored_len, a),
               text_size(loc.raw_len, b));
        return describe_fields(g, s, NULL);
    }
    jsonl_begin(&j, stdout);
    jsonl_u64(&j, "ordinal", s->ordinal);
    jsonl_bytes(&j, "key", key, len);
    jsonl_text(&j, "shard", loc.shard);
    jsonl_u64(&j, "slot", loc.slot);
    jsonl_u64(&j, "offset", loc.offset);
    jsonl_u64(&j, "stored_bytes", loc.stored_len);
    jsonl_u64(&j, "raw_bytes", loc.raw_len);
    jsonl_object(&j, "fields");
    rc = describe_fields(g, s, &j);
    jsonl_close(&j, '}');
    jsonl_end(&j);
    return rc;
}

static int write_field(const struct get *g, const struct larder_sample *s)
{
    const struct larder_value *v = &s->fields[0];
    struct larder_error err = {0};
    struct larder_field f;

    if (larder_dataset_field(g->ds, g->field_no, &f, &err))
        return tool_error(g->t, &err);
    if (!v->data)
        return tool_fail(g->t, "sample %" PRIu64 " has no field '%s'; without --field get shows what it has",
                         s->ordinal, g->field);
    if (is_scalar(f.type)) {
        scalar_print(g->out, f.type, v);
        fputc('\n', g->out);
        return EXIT_DONE;
    }
    if (isatty(fileno(g->out)) && f.type != LARDER_UTF8 && f.type != LARDER_JSON)
        return tool_usage(g->t, "field '%s' is %zu bytes of %s, not for a terminal: use -o FILE or a pipe",
                          g->field, v->len, larder_type_name(f.type));
    if (fwrite(v->data, 1, v->len, g->out) != v->len && g->output)
        return tool_fail(g->t, "cannot write %s: %s", g->output, strerror(errno));
    return EXIT_DONE;
}

static int find_field(struct get *g)
{
    struct larder_error err = {0};
    struct larder_field f;

    for (g->field_no = 0; g->field_no < g->n_fields; g->field_no++) {
        if (larder_dataset_field(g->ds, g->field_no, &f, &err))
            return tool_error(g->t, &err);
        if (!strcmp(f.name, g->field))
            return EXIT_DONE;
    }
    return tool_fail(g->t, "no field '%s' in the schema of %s; 'larder info' shows the fields", g->field,
                     g->t->argv[0]);
}

/* "@17" is an ordinal, "@@x" the key "@x", all else a key. 1: ordinal, 0: key, -1: complained. */
static int parse_name(const struct get *g, const char *arg, const void **key, size_t *len, uint64_t *ordinal)
{
    if (arg[0] == '@' && arg[1] != '@') {
        if (parse_u64(arg + 1, ordinal)) {
            tool_usage(g->t, "'%s' is not @ORDINAL; a key that begins with '@' is given as '@%s'", arg, arg);
            return -1;
        }
        if (*ordinal < g->samples)
            return 1;
        tool_fail(g->t, "ordinal %" PRIu64 " is beyond the %" PRIu64 " samples of %s", *ordinal, g->samples,
                  g->t->argv[0]);
        return -1;
    }
    *key = arg[0] == '@' ? arg + 1 : arg;
    *len = strlen(*key);
    if (*len >= 1 && *len <= LARDER_KEY_MAX)
        return 0;
    tool_usage(g->t, "a key has 1 to %d bytes, not %zu", LARDER_KEY_MAX, *len);
    return -1;
}

/* The ordinals of all arguments. n names: keys, lens and found have room for as many. */
static int resolve(struct get *g, const void **keys, size_t *lens, uint64_t *found, uint64_t *ordinals)
{
    size_t n = (size_t)g->t->argc - 1, n_keys = 0;
    char *const *args = g->t->argv + 1;
    struct larder_error err = {0};

    for (size_t i = 0; i < n; i++) {
        int kind = parse_name(g, args[i], &keys[n_keys], &lens[n_keys], &ordinals[i]);

        if (kind < 0)
            return g->t->status;
        if (kind == 0) {
            ordinals[i] = LARDER_NO_ORDINAL;
            n_keys++;
        }
    }
    if (n_keys > 0 && larder_dataset_lookup(g->ds, keys, lens, n_keys, found, &err))
        return tool_error(g->t, &err);
    for (size_t i = 0, k = 0; i < n; i++) {
        if (ordinals[i] != LARDER_NO_ORDINAL)
            continue;
        ordinals[i] = found[k++];
        if (ordinals[i] == LARDER_NO_ORDINAL)
            return tool_fail(g->t, "no key '%s' in %s; 'larder ls' lists the keys", (const char *)keys[k - 1],
                             g->t->argv[0]);
    }
    return EXIT_DONE;
}

static int read_all(struct get *g, const uint64_t *ordinals, size_t n)
{
    struct larder_read_options o = LARDER_READ_OPTIONS_INIT;
    struct larder_error err = {0};
    int rc = EXIT_DONE;

    if (g->field) {
        o.fields = &g->field_no;
        o.n_fields = 1;
    }
    for (size_t i = 0; i < n && rc == EXIT_DONE && !tool_output_failed(); i++) {
        struct larder_sample s = {0};

        if (larder_dataset_read(g->ds, &ordinals[i], 1, &o, &s, &err))
            return tool_error(g->t, &err);
        rc = g->field ? write_field(g, &s) : describe(g, &s);
        larder_samples_release(&s, 1);
    }
    return rc;
}

static int open_output(struct get *g)
{
    g->out = stdout;
    if (!g->output)
        return EXIT_DONE;
    g->out = fopen(g->output, "we");
    return g->out ? EXIT_DONE : tool_fail(g->t, "cannot open %s: %s", g->output, strerror(errno));
}

static int close_output(struct get *g, int rc)
{
    if (!g->output || !g->out)
        return rc;
    if (fclose(g->out) && rc == EXIT_DONE)
        return tool_fail(g->t, "cannot write %s: %s", g->output, strerror(errno));
    return rc;
}

static int run(struct get *g)
{
    size_t n = (size_t)g->t->argc - 1;
    const void **keys = calloc(n, sizeof *keys);
    size_t *lens = calloc(n, sizeof *lens);
    uint64_t *ordinals = calloc(2 * n, sizeof *ordinals);
    int rc;

    if (!keys || !lens || !ordinals)
        rc = tool_nomem(g->t);
    else
        rc = resolve(g, keys, lens, ordinals + n, ordinals);
    if (rc == EXIT_DONE && g->field)
        rc = find_field(g);
    if (rc == EXIT_DONE && (rc = open_output(g)) == EXIT_DONE)
        rc = close_output(g, read_all(g, ordinals, n));
    free(keys);
    free(lens);
    free(ordinals);
    return rc;
}

int cmd_get(struct tool *t)
{
    struct larder_dataset_info in = {.struct_size = sizeof in};
    struct larder_error err = {0};
    struct get g = {.t = t};
    int row;

    while ((row = options_next(t, 2, 0)) >= 0)
        switch (row) {
        case FIELD: g.field = t->value; break;
        case OUTPUT: g.output = strcmp(t->value, "-") != 0 ? t->value : NULL; break;
        case JSON: t->json = 1; break;
        }
    if (row == OPTIONS_STOP)
        return t->status;
    if (g.output && !g.field)
        return tool_usage(t, "--output needs --field");
    if (t->json && g.field)
        return tool_usage(t, "--json and --field exclude each other: one describes, the other writes bytes");
    if (tool_open(t, t->argv[0], NULL, &g.ds))
        return t->status;
    if (larder_dataset_info(g.ds, &in, &err)) {
        tool_error(t, &err);
    } else {
        g.samples = in.samples;
        g.n_fields = in.fields;
        t->status = run(&g);
    }
    larder_dataset_close(g.ds);
    return t->status;
}
