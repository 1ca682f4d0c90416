/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repair.c - makes a whole generation out of what is left: from a good manifest where there is one, from shards alone otherwise.
 *
 *     newest good manifest --+
 *                            +--> candidate shards --check--> good: kept as they are
 *     shard files on disk  --+                          \---> damaged: good records move to a new shard; nothing good: dropped
 *                                                              |
 *                               new index <--- new manifest <--+   (generation = newest number + 1)
 *
 * A file that is good is never touched and none is removed: what is damaged stays for gc. When samples are dropped, ordinals
 * move, so the lineage is new. Shards of an unfinished ingest (their run stands in the journal) are left to it. Everything runs
 * under the writer's lock.
 */
#include <unistd.h>

#include "store/store_int.h"

struct candidate { struct shard_ref ref; uint8_t session[8], family[16], uuid[16]; uint64_t generation; uint32_t revision; bool known, bad; };

struct repair {
    struct store_io *io;
    const struct larder_repair_options *o;
    struct larder_repair_report *r;
    struct manifest base;          /* generation 0: no good manifest */
    uint64_t newest;               /* number of the newest manifest, good or not */
    bool base_is_newest;
    struct buf journal;            /* text of an unfinished session's journal */
    struct candidate *list;
    size_t n, cap;
    struct store *store;           /* for decoding: over `base`; NULL without */
    pthread_mutex_t lock;          /* guards the calls of o->damage */
    _Atomic uint64_t next, samples, bytes;
    uint64_t run;
    uint32_t counter;
    bool changed;                  /* shards differ from the base's */
    bool holes;                    /* the order of samples may have gaps */
};

/* ---- candidates ---- */

static int add_candidate(struct repair *p, const struct shard_ref *ref, const struct shard_info *info, struct larder_error *err)
{
    int rc = GROW(p->list, p->cap, p->n + 1, err);
    if (rc)
        return rc;
    struct candidate *c = &p->list[p->n];
    *c = (struct candidate){.known = info == NULL};
    if (info) {
        memcpy(c->session, info->session, 8);
        memcpy(c->family, info->family, 16);
        memcpy(c->uuid, info->uuid, 16);
        c->generation = info->generation;
        c->revision = info->revision;
    }
    if ((rc = shard_ref_copy(&c->ref, ref, err)))
        return rc;
    p->n++;
    return LARDER_OK;
}

static void tell_file(struct repair *p, const char *file, const char *why)
{
    struct larder_damage d = {file, UINT64_MAX, UINT64_MAX, LARDER_NO_ORDINAL, NULL, 0, why};
    if (p->o->damage)
        p->o->damage(p->o->user, &d);
}

struct found_shards { struct repair *p; struct buf names; struct larder_error *err; };

static int found_shard(void *user, const char *name, uint64_t size, uint64_t mtime_s)
{
    (void)size, (void)mtime_s;
    struct found_shards *f = user;
    const char *base = name + strlen("shards/");
    if (!name_ok(base) || journal_claims(&f->p->journal, base))
        return LARDER_OK;
    return buf_append(&f->names, base, strlen(base) + 1, f->err);
}

static bool in_base(const struct repair *p, const char *name)
{
    for (size_t i = 0; i < p->base.n_shards; i++)
        if (!strcmp(p->base.shards[i].name, name))
            return true;
    return false;
}

/* A shard's meta stands in for a manifest; a good manifest's shards and lineage stay. */
static void take_meta(struct repair *p, const struct shard_info *info, struct manifest *meta)
{
    struct manifest old = p->base;
    p->base = *meta;
    memcpy(p->base.uuid, info->uuid, 16);
    memcpy(p->base.lineage, old.generation ? old.lineage : info->family, 16);
    memcpy(p->base.family, info->family, 16);
    p->base.generation = info->generation;
    p->base.created_s = info->created_s;
    p->base.shards = old.shards;
    p->base.n_shards = old.n_shards;
    p->base.cap_shards = old.cap_shards;
    p->base.samples = old.samples;
    old.shards = NULL;
    old.n_shards = 0;
    manifest_release(&old);
}

/* The newest meta that can be read among the shards found. */
static int find_meta(struct repair *p, struct larder_error *err)
{
    for (size_t i = 0; i < p->n; i++) {
        struct shard_info info;
        struct manifest meta;
        struct larder_error why;
        if (p->list[i].known || p->list[i].generation <= p->base.generation)
            continue;
        int got = shard_inspect(p->io, p->list[i].ref.name, &info, &meta, &why);
        if (got == LARDER_ECORRUPT || got == LARDER_EVERSION)
            continue;
        if (got)
            return err_set(err, got, "%s", why.message);
        take_meta(p, &info, &meta);
        shard_info_release(&info);
    }
    return LARDER_OK;
}

static int by_uuid(const void *a, const void *b)
{
    return memcmp(((const struct candidate *)a)->uuid, ((const struct candidate *)b)->uuid, 16);
}

/* Without a manifest, the dataset is the one that most samples belong to; shards of others were copied here by mistake. */
static void drop_foreign(struct repair *p)
{
    uint64_t samples = 0, best = 0;
    uint8_t uuid[16] = {0};
    size_t kept = 0;
    if (p->n)
        qsort(p->list, p->n, sizeof(*p->list), by_uuid);
    for (size_t i = 0; i < p->n; i++) {
        samples = (i && by_uuid(&p->list[i - 1], &p->list[i]) == 0 ? samples : 0) + p->list[i].ref.samples;
        if (samples > best) {
            best = samples;
            memcpy(uuid, p->list[i].uuid, 16);
        }
    }
    for (size_t i = 0; i < p->n; i++) {
        char file[320];
        if (!memcmp(p->list[i].uuid, uuid, 16)) {
            p->list[kept++] = p->list[i];
            continue;
        }
        shard_path(p->list[i].ref.name, file);
        tell_file(p, file, "belongs to another dataset");
        shard_ref_release(&p->list[i].ref);
    }
    p->n = kept;
}

/* Shards on disk that the good manifest (if any) does not know: those of later, lost generations, or all. */
static int find_shards(struct repair *p, struct larder_error *err)
{
    struct found_shards f = {p, BUF_INIT, err};
    uint64_t good = p->base.generation;
    uint8_t family[16];
    memcpy(family, manifest_family(&p->base), 16);
    int rc = p->io->ops->list(p->io, "shards", found_shard, &f, err);
    for (size_t at = 0; !rc && at < f.names.len;) {
        const char *name = (const char *)f.names.data + at;
        struct shard_info info;
        struct larder_error why;
        char file[320];
        at += strlen(name) + 1;
        if (in_base(p, name))
            continue;
        int got = shard_inspect(p->io, name, &info, NULL, &why);
        shard_path(name, file);
        if (got == LARDER_ECORRUPT || got == LARDER_EVERSION) {
            if (!good) { /* otherwise it may be of no generation at all */
                tell_file(p, file, why.message);
                p->holes = true;
            }
            continue;
        }
        if (got) {
            rc = err_set(err, got, "%s", why.message);
            break;
        }
        if (!good || (info.generation > good && !memcmp(info.family, family, 16))) /* else superseded, dropped before, foreign */
            rc = add_candidate(p, &info.ref, &info, err);
        shard_info_release(&info);
    }
    buf_release(&f.names);
    if (!rc && !good)
        drop_foreign(p);
    return rc ? rc : find_meta(p, err);
}

/* Known shards keep the manifest's order; found ones go behind, by generation, session, unit, sub, newest revision first. */
static int by_place(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->known != y->known)
        return x->known ? -1 : 1;
    if (x->known)
        return x->ref.base < y->ref.base ? -1 : x->ref.base > y->ref.base;
    if (x->generation != y->generation)
        return x->generation < y->generation ? -1 : 1;
    int s = memcmp(x->session, y->session, 8);
    if (s)
        return s;
    if (x->ref.unit != y->ref.unit)
        return x->ref.unit < y->ref.unit ? -1 : 1;
    if (x->ref.sub != y->ref.sub)
        return x->ref.sub < y->ref.sub ? -1 : 1;
    return x->revision > y->revision ? -1 : x->revision < y->revision;
}

static bool same_place(const struct candidate *a, const struct candidate *b)
{
    return !a->known && !b->known && a->generation == b->generation && !memcmp(a->session, b->session, 8) &&
           a->ref.unit == b->ref.unit && a->ref.sub == b->ref.sub;
}

/* Without a manifest: shards of another family (before a repack) are no part of the newest state, and of the same samples the
 * newest revision counts. */
static void drop_superseded(struct repair *p)
{
    if (p->n)
        qsort(p->list, p->n, sizeof(*p->list), by_place);
    size_t kept = 0;
    uint64_t bases = 0;
    for (size_t i = 0; i < p->n; i++) {
        bool other = !p->list[i].known && memcmp(p->list[i].family, manifest_family(&p->base), 16);
        if (other) {
            shard_ref_release(&p->list[i].ref);
            continue;
        }
        if (kept && same_place(&p->list[kept - 1], &p->list[i])) {
            shard_ref_release(&p->list[i].ref); /* an older revision of the same samples */
            p->holes = true;
            continue;
        }
        p->list[kept] = p->list[i];
        p->list[kept].ref.base = bases;
        bases += p->list[kept].ref.samples;
        if (!p->list[kept].known && p->list[kept].revision)
            p->holes = true;
        kept++;
    }
    p->n = kept;
}

/* Whether a manifest speaks of what lies here: one of another dataset, or of shards that are all lost, is of no use. */
static bool any_shard_here(const struct repair *p)
{
    for (size_t i = 0; i < p->base.n_shards; i++) {
        char file[320];
        uint64_t size, mtime_s;
        shard_path(p->base.shards[i].name, file);
        if (p->io->ops->stat(p->io, file, &size, &mtime_s, NULL) != LARDER_ENOTFOUND)
            return true;
    }
    return false;
}

static int gather(struct repair *p, struct larder_error *err)
{
    AUTO_FREE uint64_t *list = NULL;
    size_t n = 0;
    struct larder_error why;
    int rc = generation_list(p->io, &list, &n, err);
    if (rc)
        return rc;
    p->newest = n ? list[n - 1] : 0;
    for (size_t i = n; i > 0 && !p->base.generation; i--) {
        char file[64];
        manifest_path(list[i - 1], file);
        rc = generation_load(p->io, list[i - 1], &p->base, &why);
        if (rc == LARDER_ECORRUPT) {
            tell_file(p, file, why.message);
        } else if (rc) {
            return err_set(err, rc, "%s", why.message);
        } else if (!any_shard_here(p)) {
            tell_file(p, file, "none of its shards is here");
            manifest_release(&p->base);
        }
    }
    p->base_is_newest = p->base.generation && p->base.generation == p->newest;
    rc = LARDER_OK;
    for (size_t i = 0; !rc && i < p->base.n_shards; i++)
        rc = add_candidate(p, &p->base.shards[i], NULL, err);
    if (!rc && !p->base_is_newest) {
        p->changed = true;
        rc = find_shards(p, err);
    }
    if (!rc && p->n == 0)
        rc = n ? err_set(err, LARDER_ECORRUPT, "not one sample can be read: nothing to rebuild from")
               : err_set(err, LARDER_ENOTFOUND, "%.150s: no dataset here: neither a manifest nor a readable shard",
                         io_where(p->io));
    if (!rc && !p->base.generation)
        rc = err_set(err, LARDER_ECORRUPT, "no shard tells its schema: nothing to rebuild from");
    if (rc)
        return rc;
    drop_superseded(p);
    return rc;
}

/* ---- checking ---- */

static void note_damage(void *user, const struct larder_damage *d)
{
    struct repair *p = user;
    pthread_mutex_lock(&p->lock);
    if (p->o->damage)
        p->o->damage(p->o->user, d);
    pthread_mutex_unlock(&p->lock);
}

static int check_worker(void *user, unsigned worker, const atomic_bool *stop, struct larder_error *err)
{
    (void)worker;
    struct repair *p = user;
    for (uint64_t i; !atomic_load(stop) && (i = atomic_fetch_add(&p->next, 1)) < p->n;) {
        struct candidate *c = &p->list[i];
        struct shard_check check = {.io = p->io, .store = p->store, .ref = &c->ref, .shard_no = i, .damage = note_damage, .user = p,
                                    .stop = stop};
        int rc = shard_check_run(&check, err);
        if (rc)
            return rc;
        c->bad = check.damaged > 0;
        atomic_fetch_add(&p->samples, check.samples);
        atomic_fetch_add(&p->bytes, check.bytes);
    }
    return LARDER_OK;
}

static int tick(void *user)
{
    struct repair *p = user;
    uint64_t total = 0;
    for (size_t i = 0; i < p->n; i++)
        total += p->list[i].ref.samples;
    struct larder_progress pr = {"repair", atomic_load(&p->samples), total, atomic_load(&p->bytes), p->r->dropped};
    return p->o->progress ? p->o->progress(p->o->user, &pr) : 0;
}

/* Damage of the index of the newest generation. Only asked when its manifest is good. */
static int index_bad(struct repair *p, bool *bad, struct larder_error *err)
{
    struct larder_error why;
    struct index *ix = NULL;
    int rc = LARDER_OK;
    *bad = false;
    for (size_t i = 0; i < p->base.n_parts; i++)
        for (size_t k = 0; k < p->base.parts[i].n_files; k++) {
            char file[600];
            if (!(rc = index_file_check(p->io, &p->base.parts[i], &p->base.parts[i].files[k], &why)))
                continue;
            if (!is_damage(rc))
                return err_set(err, rc, "%s", why.message);
            snprintf(file, sizeof(file), "index/%s/%s", p->base.parts[i].dir, p->base.parts[i].files[k].name);
            tell_file(p, file, why.message);
            *bad = true;
        }
    if (*bad)
        return LARDER_OK;
    rc = index_open(p->io, p->base.parts, p->base.n_parts, MIB, &ix, &why);
    index_close(ix);
    if (rc && !is_damage(rc))
        return err_set(err, rc, "%s", why.message);
    if (rc)
        tell_file(p, "index", why.message);
    *bad = rc != LARDER_OK;
    return LARDER_OK;
}

/* ---- rebuilding ---- */

static int shard_dict(struct repair *p, const struct candidate *c, struct buf *dict, bool *lost, struct larder_error *err)
{
    struct footer f = {p->io, c->ref.name, &c->ref, NULL, 0};
    int rc = c->ref.dict_id ? footer_section(&f, SECTION_DICT, dict, err) : LARDER_OK;
    *lost = is_damage(rc);
    return *lost ? LARDER_OK : rc;
}

/* Moves what can be read of a damaged shard into a new one. *added false: nothing could. */
static int salvage(struct repair *p, struct candidate *c, struct manifest *m, struct larder_error *err)
{
    AUTO_BUF struct buf dict = BUF_INIT;
    char name[32];
    struct shard_writer *w = NULL;
    struct shard_scan *scan = NULL;
    struct scan_item item;
    struct larder_error why;
    bool dict_lost;
    int rc = shard_dict(p, c, &dict, &dict_lost, err), got;
    if (rc)
        return rc;
    struct shard_params params = {.meta = m, .unit = c->ref.unit, .sub = c->ref.sub, .revision = c->revision + 1, .dict = dict.data,
                                  .dict_len = dict_lost ? 0 : dict.len};
    struct shard_info info;
    if (!(got = shard_inspect(p->io, c->ref.name, &info, NULL, &why))) {
        memcpy(params.session, info.session, 8);
        params.revision = info.revision + 1;
        params.generation = info.generation; /* its place in the order stays */
        shard_info_release(&info);
    } else if (!is_damage(got)) {
        return err_set(err, got, "%s", why.message);
    }
    shard_name_new(p->run, p->counter++, name);
    rc = shard_scan_open(p->io, &c->ref, SCAN_KEYS | SCAN_RECORDS, &scan, err);
    if (!rc)
        rc = shard_writer_open(p->io, name, &params, &w, err);
    while (!rc && (got = shard_scan_next(scan, &item, &why)) != LARDER_END) {
        if (is_damage(got) && item.slot == UINT32_MAX)
            break;
        struct record_ref ref = {item.stored, item.extent.stored_len, item.extent.raw_len, item.extent.crc, item.extent.codec};
        if (got == LARDER_ECORRUPT || (got == LARDER_OK && dict_lost && ref.codec == CODEC_ZSTD_DICT))
            continue;
        if (got)
            rc = err_set(err, got, "%s", why.message);
        else if ((got = shard_writer_add_stored(w, item.key, item.key_len, &ref, &why)) && got != LARDER_ECORRUPT)
            rc = err_set(err, got, "%s", why.message);
    }
    shard_scan_close(scan);
    uint32_t saved = rc ? 0 : shard_writer_samples(w);
    p->r->dropped += rc ? 0 : c->ref.samples - saved;
    if (rc || saved == 0) {
        shard_writer_abort(w);
        p->r->shards_dropped += !rc;
        return rc;
    }
    p->r->shards_rewritten++;
    if ((rc = GROW(m->shards, m->cap_shards, m->n_shards + 1, err))) {
        shard_writer_abort(w);
        return rc;
    }
    if (!(rc = shard_writer_finish(w, &m->shards[m->n_shards], err)))
        m->n_shards++;
    return rc;
}

static int rebuild(struct repair *p, struct larder_error *err)
{
    struct manifest m = p->base; /* schema and classes are borrowed from base */
    m.shards = NULL;
    m.n_shards = m.cap_shards = m.n_parts = 0;
    m.parts = NULL;
    m.samples = 0;
    m.generation = MAX(p->newest, p->base.generation) + 1;
    struct index_policy policy = {.drop_duplicates = true};
    uint64_t doubles = 0;
    int rc = random_bytes(&p->run, sizeof(p->run), err);
    for (size_t i = 0; !rc && i < p->n; i++) {
        struct candidate *c = &p->list[i];
        if (c->bad) {
            rc = salvage(p, c, &m, err);
        } else if (!(rc = GROW(m.shards, m.cap_shards, m.n_shards + 1, err)) &&
                   !(rc = shard_ref_copy(&m.shards[m.n_shards], &c->ref, err))) {
            m.n_shards++;
        }
    }
    if (!rc && m.n_shards == 0)
        rc = err_set(err, LARDER_ECORRUPT, "not one sample can be read: nothing to rebuild from");
    for (size_t i = 0; !rc && i < m.n_shards; i++) {
        m.shards[i].base = m.samples;
        m.samples += m.shards[i].samples;
    }
    uint64_t run2 = p->run + 1; /* its shards are numbered from 0 again */
    if (!rc)
        rc = generation_index(p->io, &m, 0, run2, &policy, &doubles, err);
    p->r->dropped += doubles;
    if (!rc && (p->r->dropped || p->holes)) {
        p->r->lineage_changed = 1;
        rc = random_bytes(m.lineage, 16, err);
    }
    if (!rc)
        rc = generation_commit(p->io, &m, err);
    if (!rc) {
        p->r->generation = m.generation;
        p->r->samples = m.samples;
        p->r->shards = m.n_shards;
    }
    for (size_t i = 0; i < m.n_shards; i++)
        shard_ref_release(&m.shards[i]);
    free(m.shards);
    for (size_t i = 0; i < m.n_parts; i++)
        index_part_release(&m.parts[i]);
    free(m.parts);
    return rc;
}

/* The hint by itself is mended in place: it is no part of a generation. */
static bool hint_bad(struct repair *p)
{
    uint64_t g = 0;
    struct larder_error why;
    int rc = hint_read(p->io, &g, &why);
    if (rc && !is_damage(rc)) /* readers do without it, and so does repair */
        return false;
    if (rc)
        tell_file(p, "larder.json", why.message);
    return rc || g != p->newest;
}

static int repair_locked(struct repair *p, struct larder_error *err)
{
    int rc = gather(p, err);
    if (rc)
        return rc;
    struct candidate *list = p->list;
    if (p->base_is_newest && (rc = store_open(p->io, &(struct store_options){.generation = p->newest}, &p->store, err)))
        return rc;
    if ((rc = crew_run(io_workers(p->io), check_worker, tick, p, err)))
        return rc;
    uint64_t lost = 0;
    for (size_t i = 0; i < p->n; i++) {
        p->changed |= list[i].bad;
        lost += list[i].bad;
        p->r->samples += list[i].ref.samples;
    }
    p->r->shards = p->n;
    bool rehint = p->base_is_newest && hint_bad(p);
    bool bad_index = false;
    if (!p->changed && (rc = index_bad(p, &bad_index, err)))
        return rc;
    if (!p->changed && !bad_index) {
        if (rehint && !p->o->dry_run)
            rc = hint_write(p->io, p->newest, err);
        return rc;
    }
    p->r->shards_rewritten = p->o->dry_run ? lost : 0;
    return p->o->dry_run ? LARDER_OK : rebuild(p, err);
}

int store_repair(struct store_io *io, const struct larder_repair_options *o, struct larder_repair_report *r, struct larder_error *err)
{
    struct repair p = {.io = io, .o = o, .r = r, .lock = PTHREAD_MUTEX_INITIALIZER};
    struct session session;
    bool fresh;
    int rc = session_lock(io, &session, &fresh, err);
    if (rc)
        return rc;
    if (!fresh)
        rc = journal_text(&session, &p.journal, err);
    if (!rc)
        rc = repair_locked(&p, err);
    session_unlock(&session, fresh);
    for (size_t i = 0; i < p.n; i++)
        shard_ref_release(&p.list[i].ref);
    free(p.list);
    buf_release(&p.journal);
    store_close(p.store);
    manifest_release(&p.base);
    return rc;
}
