/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_info.c - larder info DATASET: what the manifest says, in human units or exactly.
 */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "tools/tools.h"

enum { GENERATION, JSON };

const struct option_spec info_options[] = {
    [GENERATION] = {"generation", 0, "G", "newest", "describe this one"},
    [JSON] = OPTION_JSON,
    OPTION_END,
};

/* RFC 4122's form of 16 bytes. */
static void uuid_text(const uint8_t id[16], char out[37])
{
    int n = 0;

    for (int i = 0; i < 16; i++)
        n += snprintf(out + n, (size_t)(37 - n), "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                      id[i]);
}

static void time_text(uint64_t seconds, char out[32])
{
    time_t when = (time_t)seconds;
    struct tm tm;

    if (!gmtime_r(&when, &tm) || strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0)
        snprintf(out, 32, "?");
}

static const char *compression_name(uint32_t c)
{
    static const char *const names[] = {"none", "zstd", "zstd-dict"};

    return c < sizeof names / sizeof *names ? names[c] : "unknown";
}

static void field_json(struct jsonl *j, const struct larder_field *f)
{
    const char *type = larder_type_name(f->type);

    jsonl_object(j, NULL);
    jsonl_text(j, "name", f->name);
    jsonl_text(j, "type", type ? type : "unknown");
    if (f->type == LARDER_NDARRAY) {
        jsonl_text(j, "dtype", f->dtype);
        jsonl_array(j, "shape");
        for (uint32_t i = 0; i < f->ndim; i++)
            jsonl_i64(j, NULL, f->shape[i]);
        jsonl_close(j, ']');
    }
    jsonl_close(j, '}');
}

static int print_json(struct tool *t, struct larder_dataset *ds, const struct larder_dataset_info *in,
                      uint64_t classes)
{
    char uuid[37], lineage[37], created[32];
    struct larder_error err = {0};
    struct larder_field f;
    struct jsonl j;

    uuid_text(in->uuid, uuid);
    uuid_text(in->lineage, lineage);
    time_text(in->created_s, created);
    jsonl_begin(&j, stdout);
    jsonl_text(&j, "dataset", t->argv[0]);
    jsonl_text(&j, "uuid", uuid);
    jsonl_text(&j, "lineage", lineage);
    jsonl_u64(&j, "generation", in->generation);
    jsonl_text(&j, "created", created);
    jsonl_u64(&j, "samples", in->samples);
    jsonl_u64(&j, "shards", in->shards);
    jsonl_u64(&j, "shard_bytes", in->shard_bytes);
    jsonl_u64(&j, "stored_bytes", in->stored_bytes);
    jsonl_u64(&j, "raw_bytes", in->raw_bytes);
    jsonl_fixed(&j, "ratio", in->stored_bytes ? (double)in->raw_bytes / (double)in->stored_bytes : 1, 3);
    jsonl_text(&j, "compression", compression_name(in->compression));
    jsonl_u64(&j, "classes", classes);
    jsonl_array(&j, "schema");
    for (uint32_t i = 0; i < in->fields; i++) {
        if (larder_dataset_field(ds, i, &f, &err))
            break;
        field_json(&j, &f);
    }
    jsonl_close(&j, ']');
    jsonl_end(&j);
    return err.code ? tool_error(t, &err) : EXIT_DONE;
}

static void print_size(const char *name, uint64_t bytes, const char *after)
{
    char a[TEXT_MAX], b[TEXT_MAX];

    printf("%-12s %s (%s bytes)%s\n", name, text_size(bytes, a), text_count(bytes, b), after);
}

static void print_field(const struct larder_field *f)
{
    const char *type = larder_type_name(f->type);

    fputs("  ", stdout);
    text_escape(stdout, f->name, strlen(f->name), 0);
    printf(": %s", type ? type : "unknown");
    if (f->type == LARDER_NDARRAY) {
        printf(" %s [", f->dtype);
        for (uint32_t i = 0; i < f->ndim; i++)
            printf("%s%" PRId64, i ? ", " : "", f->shape[i]);
        putchar(']');
    }
    putchar('\n');
}

static int print_text(struct tool *t, struct larder_dataset *ds, const struct larder_dataset_info *in,
                      uint64_t classes)
{
    char uuid[37], lineage[37], created[32], buf[TEXT_MAX];
    struct larder_error err = {0};
    struct larder_field f;

    uuid_text(in->uuid, uuid);
    uuid_text(in->lineage, lineage);
    time_text(in->created_s, created);
    printf("uuid         %s\nlineage      %s\ngeneration   %" PRIu64 "\ncreated      %s\n", uuid, lineage,
           in->generation, created);
    printf("samples      %s\n", text_count(in->samples, buf));
    printf("shards       %s\n", text_count(in->shards, buf));
    print_size("size", in->shard_bytes, "");
    print_size("records", in->stored_bytes, "");
    print_size("raw", in->raw_bytes, "");
    printf("ratio        %.2f\n", in->stored_bytes ? (double)in->raw_bytes / (double)in->stored_bytes : 1.0);
    printf("compression  %s\n", compression_name(in->compression));
    printf("classes      %s\n", text_count(classes, buf));
    printf("schema\n");
    for (uint32_t i = 0; i < in->fields; i++) {
        if (larder_dataset_field(ds, i, &f, &err))
            return tool_error(t, &err);
        print_field(&f);
    }
    return EXIT_DONE;
}

int cmd_info(struct tool *t)
{
    struct larder_dataset_options o = LARDER_DATASET_OPTIONS_INIT;
    struct larder_dataset_info in = {.struct_size = sizeof in};
    struct larder_error err = {0};
    struct larder_dataset *ds;
    uint64_t classes = 0;
    int row;

    while ((row = options_next(t, 1, 1)) >= 0)
        switch (row) {
        case GENERATION: option_u64(t, 1, UINT64_MAX, &o.generation); break;
        case JSON: t->json = 1; break;
        }
    if (row == OPTIONS_STOP || tool_open(t, t->argv[0], &o, &ds))
        return t->status;
    if (larder_dataset_info(ds, &in, &err)) {
        tool_error(t, &err);
    } else {
        larder_dataset_class(ds, 0, &classes);
        t->status = t->json ? print_json(t, ds, &in, classes) : print_text(t, ds, &in, classes);
    }
    larder_dataset_close(ds);
    return t->status;
}
