/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ingest.c - one run of larder ingest: source -> shards -> index -> commit.
 *
 *     lock the journal and look --> list the source --> begin, or go on where the journal ends --> dictionary --> pack
 *         --> index --> commit --> remove the journal
 *
 * Until the commit nothing is visible; what fails or is killed before it leaves the journal, and the same call goes on. What a
 * resumed run must agree in stands in the journal's head as text (journal_same). A shard of an earlier process is taken over only
 * if its file is there and says of itself what the journal says of it.
 *
 * Threads: the caller's, plus pack.c's workers and sealer.
 */
#include "ingest/ingest_int.h"

#include <sys/stat.h>
#include <unistd.h>

enum { CHECKS = 8 }; /* shards in a bucket that are looked at at once */

struct run {
    const struct larder_ingest_options *o;
    struct store_io *io;
    struct notes notes;
    struct start start;
    struct source *source;
    uint64_t listed_skipped;
    char *options[JOPT_N];
    struct pack pack;
    uint64_t dropped;
    size_t first_new;
};

/* ---- the source ---- */

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int open_source(struct run *r, const char *const *paths, size_t n, struct larder_error *err)
{
    const struct manifest *base = r->start.m.generation ? &r->start.m : NULL;
    const char *format = r->o->format ? r->o->format : is_folder(paths[0]) ? "dir" : "tar";
    int rc;
    if (!strcmp(format, "tar")) {
        rc = tar_open(paths, n, &r->notes, base, &r->source, err);
    } else if (strcmp(format, "dir")) {
        return err_set(err, LARDER_EINVAL, "format '%.40s' is not known; there are dir and tar", format);
    } else if (n != 1) {
        return err_set(err, LARDER_EINVAL, "a folder is ingested alone; %zu sources are given: append the others afterwards", n);
    } else {
        const char *tmp = io_work_root(r->io, err);
        rc = tmp ? dir_open(paths[0], tmp, &r->notes, base, &r->source, err) : err->code;
    }
    r->listed_skipped = atomic_load(&r->notes.skipped);
    return rc;
}

/* ---- options as the journal keeps them ---- */

static char *hex_text(uint64_t v)
{
    char *s;
    return asprintf(&s, "%016llx", (unsigned long long)v) < 0 ? NULL : s;
}

static char *decimal_text(uint64_t v)
{
    char *s;
    return asprintf(&s, "%llu", (unsigned long long)v) < 0 ? NULL : s;
}

/* Any bytes as ASCII, one to one. */
static char *printable(const char *text)
{
    char *out = malloc(4 * strlen(text) + 1), *p = out;
    for (; out && *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c >= 0x7f || c == '\\')
            p += sprintf(p, "\\x%02x", c);
        else
            *p++ = (char)c;
    }
    if (out)
        *p = 0;
    return out;
}

static uint64_t schema_digest(const struct schema *s)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i < s->n; i++)
        h = hash64(h + (uint64_t)s->fields[i].type, s->fields[i].name, strlen(s->fields[i].name) + 1);
    return h;
}

static uint64_t classes_digest(const struct source *s)
{
    uint64_t h = 0;
    for (size_t i = 0; i < s->n_classes; i++)
        h = hash64(h, s->classes[i], strlen(s->classes[i]) + 1);
    return h;
}

static int describe(struct run *r, struct larder_error *err)
{
    static const char *const compressions[] = {"none", "zstd", "zstd-dict"};
    const struct larder_ingest_options *o = r->o;
    const struct source *s = r->source;
    bool dir = !strcmp(s->format, "dir");
    char **t = r->options;
    t[JOPT_SOURCE] = printable(s->path);
    t[JOPT_FORMAT] = strdup(s->format);
    t[JOPT_APPEND] = strdup(o->append ? "yes" : "no");
    t[JOPT_SHARD_SIZE] = decimal_text(r->pack.shard_size);
    if (asprintf(&t[JOPT_COMPRESSION], "%s:%d", compressions[o->compression], o->compression ? r->pack.params.level : 0) < 0)
        t[JOPT_COMPRESSION] = NULL;
    t[JOPT_FIELDS] = printable(o->fields ? o->fields : "");
    t[JOPT_ORDER] = strdup(!dir ? "" : o->order == LARDER_ORDER_SOURCE ? "source" : "shuffled");
    t[JOPT_SEED] = decimal_text(dir && o->order == LARDER_ORDER_SHUFFLED ? o->seed : 0);
    t[JOPT_CONTENT] = hex_text(s->fingerprint);
    t[JOPT_SCHEMA] = hex_text(schema_digest(&s->schema));
    t[JOPT_CLASSES] = hex_text(classes_digest(s));
    for (size_t i = 0; i < JOPT_N; i++)
        if (!t[i])
            return err_nomem(err, 64, "a journal's head");
    return LARDER_OK;
}

/* ---- beginning and going on ---- */

static int begin(struct run *r, struct larder_error *err)
{
    struct journal *j = &r->start.journal;
    struct manifest *m = &r->start.m;
    int rc = start_check(&r->start, r->o->append, err);
    if (!rc)
        rc = manifest_begin(m, &r->source->schema, r->source->classes, r->source->n_classes, r->o->compression, err);
    if (!rc)
        rc = random_bytes(j->head.session, sizeof(j->head.session), err);
    if (rc)
        return rc;
    j->head.kind = JOURNAL_INGEST;
    memcpy(j->head.uuid, m->uuid, 16);
    memcpy(j->head.lineage, m->lineage, 16);
    memcpy(j->head.options, r->options, sizeof(r->options)); /* moved */
    memset(r->options, 0, sizeof(r->options));
    return journal_begin(j, err);
}

/* Whether the file is there and is what the journal says. */
static int shard_stands(struct run *r, const struct journal_shard *s, bool *same, struct larder_error *err)
{
    struct shard_info info;
    *same = false;
    int rc = shard_inspect(r->io, s->ref.name, &info, NULL, err);
    if (rc)
        return io_is_local(r->io) || rc == LARDER_ENOTFOUND || rc == LARDER_ECORRUPT || rc == LARDER_EVERSION ? LARDER_OK : rc;
    *same = !memcmp(info.uuid, r->start.journal.head.uuid, 16) && !memcmp(info.session, r->start.journal.head.session, 8) &&
                info.ref.size == s->ref.size && info.ref.trailer_crc == s->ref.trailer_crc && info.ref.tag == s->ref.tag &&
                info.ref.samples == s->ref.samples && info.ref.unit == s->ref.unit && info.ref.sub == s->ref.sub;
    shard_info_release(&info);
    return LARDER_OK;
}

struct standing { struct run *r; bool *stands; _Atomic size_t next; };

static int standing_worker(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err)
{
    struct standing *c = user;
    const struct journal *j = &c->r->start.journal;
    int rc = LARDER_OK;
    (void)worker;
    for (size_t i; !rc && !atomic_load(stop) && (i = atomic_fetch_add(&c->next, 1)) < j->n_shards;)
        rc = shard_stands(c->r, &j->shards[i], &c->stands[i], err);
    return rc;
}

/* Keeps of each unit the shards up to the first that does not stand. */
static int check_shards(struct run *r, struct larder_error *err)
{
    struct journal *j = &r->start.journal;
    AUTO_FREE bool *stands = calloc(j->n_shards + 1, sizeof(*stands));
    AUTO_FREE struct journal_unit *drops = calloc(j->n_shards + 1, sizeof(*drops)); /* consumed: the sub */
    struct standing c = {.r = r, .stands = stands};
    size_t n = 0;
    if (!stands || !drops)
        return err_nomem(err, j->n_shards, "a journal's shards");
    if (j->n_shards == 0)
        return LARDER_OK;
    int rc = crew_run(io_is_local(r->io) ? 1 : CHECKS, standing_worker, NULL, &c, err);
    for (size_t i = 0; !rc && i < j->n_shards; i++)
        if (!stands[i])
            drops[n++] = (struct journal_unit){.unit = j->shards[i].ref.unit, .consumed = j->shards[i].ref.sub};
    for (size_t i = 0; !rc && i < n; i++)
        rc = journal_add_drop(j, drops[i].unit, (uint32_t)drops[i].consumed, err);
    return rc;
}

static int go_on(struct run *r, struct larder_error *err)
{
    struct journal *j = &r->start.journal;
    struct manifest *m = &r->start.m;
    int rc = journal_same(j, r->options, err);
    if (!rc)
        rc = start_check(&r->start, r->o->append, err);
    if (!rc && m->generation && (memcmp(m->uuid, j->head.uuid, 16) || memcmp(m->lineage, j->head.lineage, 16)))
        rc = err_set(err, LARDER_EINVAL, "%s: the dataset was repaired or replaced since the ingest that was interrupted began: --restart "
                     "discards what it did", io_where(j->io));
    if (!rc)
        rc = check_shards(r, err);
    if (!rc)
        rc = journal_sweep(j, m->generation ? m : NULL, true, err);
    if (!rc)
        rc = manifest_begin(m, &r->source->schema, r->source->classes, r->source->n_classes, r->o->compression, err);
    if (rc)
        return rc;
    memcpy(m->uuid, j->head.uuid, 16);
    memcpy(m->lineage, j->head.lineage, 16);
    for (size_t i = 0; i < j->n_shards; i++)
        r->pack.resumed += j->shards[i].ref.samples;
    return LARDER_OK;
}

static int make_dict(struct run *r, struct larder_error *err)
{
    struct journal *j = &r->start.journal;
    int rc = LARDER_OK;
    if (r->o->compression != LARDER_COMPRESS_ZSTD_DICT)
        return LARDER_OK;
    if (!j->has_dict) {
        AUTO_FREE void *dict = NULL;
        size_t len;
        struct larder_progress p = {.phase = "dictionary"};
        if (!(rc = notes_progress(&r->notes, &p, true, err)) && !(rc = dict_train(r->source, &dict, &len, err)))
            rc = journal_add_dict(j, dict, len, err);
    }
    r->pack.params.dict = j->dict;
    r->pack.params.dict_len = j->dict_len;
    return rc;
}

static int pack(struct run *r, struct larder_error *err)
{
    struct journal *j = &r->start.journal;
    struct pack *p = &r->pack;
    int rc = make_dict(r, err);
    if (!rc)
        rc = journal_new_run(j, &p->run, err);
    if (rc)
        return rc;
    p->source = r->source;
    p->journal = j;
    p->notes = &r->notes;
    p->params.meta = &r->start.m;
    memcpy(p->params.session, j->head.session, 8);
    p->workers = r->o->workers ? r->o->workers : cpu_count();
    return pack_run(p, err);
}

/* ---- the end ---- */

/* Every sample was skipped: nothing of the session stays. */
static int nothing_added(struct run *r, struct larder_error *err)
{
    struct journal *j = &r->start.journal;
    struct larder_error why;
    uint64_t skipped = r->listed_skipped + r->pack.skipped + r->dropped;
    manifest_release(&r->start.m);
    memset(&r->start.m, 0, sizeof(r->start.m));
    if (!start_newest(r->io, &r->start.m, &why) && !journal_sweep(j, &r->start.m, false, &why))
        journal_reset(j, &why);
    return err_set(err, LARDER_EINVAL, "%s: no sample could be ingested: all %llu were skipped", r->source->path,
                   (unsigned long long)skipped);
}

static int commit(struct run *r, struct larder_error *err)
{
    struct manifest *m = &r->start.m;
    struct index_policy policy = {notes_may_skip(&r->notes), r->o->skipped, r->o->user};
    if (r->start.journal.n_shards == 0)
        return nothing_added(r, err);
    r->first_new = m->n_shards;
    int rc = manifest_add(m, &r->start.journal, err);
    struct larder_progress p = {"index", m->samples, m->samples, r->pack.source_bytes, atomic_load(&r->notes.skipped)};
    if (!rc)
        rc = notes_progress(&r->notes, &p, true, err);
    if (!rc)
        rc = session_index(r->io, &r->start.journal, m, r->first_new, &policy, &r->dropped, err);
    if (rc == LARDER_EEXIST) {
        struct larder_error why = *err;
        return err_set(err, rc, "%s; --on-error skip keeps the first", why.message);
    }
    if (!rc && m->n_shards == r->first_new) /* all duplicates */
        return nothing_added(r, err);
    if (!rc)
        rc = generation_commit(r->io, m, err);
    if (!rc && r->dropped) { /* shards that held duplicates were written anew; were this to fail, gc finds the old ones */
        struct larder_error why;
        journal_sweep(&r->start.journal, m, false, &why);
    }
    return rc;
}

static void report(const struct run *r, struct larder_ingest_report *out)
{
    const struct manifest *m = &r->start.m;
    out->generation = m->generation;
    out->samples = out->added = out->stored_bytes = 0;
    for (size_t i = 0; i < m->n_shards; i++) {
        out->samples += m->shards[i].samples;
        if (i >= r->first_new) {
            out->added += m->shards[i].samples;
            out->stored_bytes += m->shards[i].size;
        }
    }
    out->resumed = MIN(r->pack.resumed, out->added);
    out->skipped = r->listed_skipped + r->pack.skipped + r->dropped;
    out->ignored = atomic_load(&r->notes.ignored);
    out->source_bytes = r->pack.source_bytes;
    out->shards = m->n_shards - r->first_new;
}

static int run(struct run *r, const char *const *sources, size_t n, struct larder_error *err)
{
    struct larder_progress p = {.phase = "list"};
    bool resumable = r->start.journal.has_head;
    int rc = resumable ? LARDER_OK : start_check(&r->start, r->o->append, err); /* before the source is listed, which may take long */
    if (!rc)
        rc = notes_progress(&r->notes, &p, true, err);
    if (!rc)
        rc = open_source(r, sources, n, err);
    if (!rc)
        rc = describe(r, err);
    if (!rc)
        rc = resumable ? go_on(r, err) : begin(r, err);
    if (!rc)
        rc = pack(r, err);
    return rc ? rc : commit(r, err);
}

int ingest_run(const char *const *sources, size_t n_sources, struct store_io *io, const struct larder_ingest_options *o,
               struct larder_ingest_report *out, struct larder_error *err)
{
    struct run r = {.o = o, .io = io};
    struct larder_error why; /* err may be NULL, and messages are built upon here */
    int rc = shard_size_option(o->shard_size, &r.pack.shard_size, &why);
    notes_init(&r.notes, o);
    r.pack.params.level = o->level ? o->level : 3;
    if (!rc && !(rc = start_open(io, o->restart, &r.start, &why))) {
        rc = run(&r, sources, n_sources, &why);
        if (!rc && out)
            report(&r, out);
        start_close(&r.start, rc == LARDER_OK || !r.start.journal.has_head);
    }
    if (r.source)
        r.source->ops->close(r.source);
    for (size_t i = 0; i < JOPT_N; i++)
        free(r.options[i]);
    notes_release(&r.notes);
    if (rc && err)
        *err = why;
    return rc;
}
