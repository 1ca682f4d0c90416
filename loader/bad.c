/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bad.c - samples that cannot be decoded, or are damaged where they are stored: what stands in for them, what is said, how many may be.
 *
 * The substitute is a function of (seed, epoch, position): another position of the same epoch, drawn by hash, whose sample comes with its own
 * label, ordinal and key; when that is bad too the next draw. So it depends on no rank, thread, tier, batch size or timing, and no two ranks need
 * talk about it. What is random about a sample stays that of the position it stands at.
 *
 * A sample is bad when its bytes passed their check and make no sense, or failed it again after they were fetched again (work.c). Counted
 * is where batches are delivered, in order, so that a run with too many of them ends at the same batch every time.
 *
 * Threads: pure but for bad_describe, which reads; any.
 */
#include "loader/prep_int.h"

#define URI_SHOWN 60u

uint64_t bad_position(uint64_t seed, uint64_t epoch, uint64_t position, uint32_t try, uint64_t length)
{
    const uint64_t words[] = {seed, epoch, position, try};
    return (uint64_t)((unsigned __int128)hash64(0x626164, words, sizeof(words)) * length >> 64); /* "bad" */
}

/* ---- notes ---- */

int bad_add(struct bad_notes *b, const struct bad_note *note, struct larder_error *err)
{
    if (b->n == b->cap && GROW(b->notes, b->cap, b->n + 1, err))
        return LARDER_ENOMEM;
    b->notes[b->n++] = *note;
    return LARDER_OK;
}

void bad_sort(struct bad_notes *b)
{
    for (size_t i = 1; i < b->n; i++) { /* there are few, or the run ends */
        struct bad_note x = b->notes[i];
        size_t j = i;
        for (; j > 0 && b->notes[j - 1].position > x.position; j--)
            b->notes[j] = b->notes[j - 1];
        b->notes[j] = x;
    }
}

void bad_release(struct bad_notes *b)
{
    free(b->notes);
    *b = (struct bad_notes){NULL, 0, 0};
}

/* ---- what is said ---- */

/* Without the place that the messages of others begin with: it is said already. */
static const char *behind_place(const char *why)
{
    const char *end = strncmp(why, "source ", 7) == 0 ? strstr(why, ": ") : NULL;
    if (end)
        why = end + 2;
    end = strncmp(why, "shards/", 7) == 0 ? strstr(why, "): ") : NULL;
    return end ? end + 3 : why;
}

void bad_describe(struct store *s, int source, uint64_t ordinal, const char *why, char message[244])
{
    const struct manifest *m = store_manifest(s);
    uint8_t key[LARDER_KEY_MAX];
    char shown[256], of[32] = "", because[244];
    size_t len = 0, shard = 0;
    snprintf(because, sizeof(because), "%s", behind_place(why));
    char *advice = strstr(because, "; larder verify"); /* there is another one */
    if (advice)
        *advice = '\0';
    if (source >= 0)
        snprintf(of, sizeof(of), "source %d, ", source);
    while (shard + 1 < m->n_shards && m->shards[shard + 1].base <= ordinal)
        shard++;
    uint64_t slot = m->n_shards ? ordinal - m->shards[shard].base : 0;
    int n;
    if (store_key(s, ordinal, key, sizeof(key), &len, NULL) == LARDER_OK)
        n = snprintf(message, 244, "sample '%.63s' (%sordinal %llu, shard %zu slot %llu), ", key_text(key, MIN(len, sizeof(key)), shown), of,
                     (unsigned long long)ordinal, shard, (unsigned long long)slot);
    else
        n = snprintf(message, 244, "sample with ordinal %llu (%sshard %zu slot %llu), ", (unsigned long long)ordinal, of, shard,
                     (unsigned long long)slot);
    size_t take = MIN(strlen(because), 243 - (size_t)n);
    memcpy(message + n, because, take);
    message[(size_t)n + take] = '\0';
}

int bad_refuse(const char *message, const char *uri, uint64_t ordinal, struct larder_error *err)
{
    char advice[160];
    const char *name = !uri || strlen(uri) > URI_SHOWN ? "DATASET" : uri;
    snprintf(advice, sizeof(advice), "; on_bad_sample=replace goes on; larder get %s @%llu shows it", name, (unsigned long long)ordinal);
    int room = (int)(sizeof(err->message) - 1 - strlen(advice));
    return err_set(err, LARDER_ECORRUPT, "%.*s%s", room, message, advice);
}

/* ---- how many ---- */

static void note_first(struct bad_count *c, uint64_t ordinal)
{
    for (unsigned i = 0; i < c->n_first; i++)
        if (c->first[i] == ordinal)
            return;
    if (c->n_first < BAD_FIRST)
        c->first[c->n_first++] = ordinal;
}

int bad_account(struct bad_count *c, double max_bad, uint64_t samples, const struct bad_notes *b, struct larder_error *err)
{
    char list[BAD_FIRST * 24] = "";
    size_t len = 0;
    c->asked += samples;
    c->bad += b->n;
    for (size_t i = 0; i < b->n; i++)
        note_first(c, b->notes[i].ordinal);
    if (b->n == 0 || c->asked < BAD_SHARE_FROM || (double)c->bad <= MAX(max_bad * (double)c->asked, 1.0))
        return LARDER_OK;
    for (unsigned i = 0; i < c->n_first; i++)
        len += (size_t)snprintf(list + len, sizeof(list) - len, "%s%llu", i ? ", " : "", (unsigned long long)c->first[i]);
    return err_set(err, LARDER_ECORRUPT, "%llu of %llu samples asked for were bad, more than max_bad=%g: ordinals %s%s; repair the dataset "
                   "(larder verify lists damage), or raise max_bad", (unsigned long long)c->bad, (unsigned long long)c->asked, max_bad, list,
                   c->bad > c->n_first ? ", ..." : "");
}
