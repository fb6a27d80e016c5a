/* A session's whole state as bytes. All numbers are little-endian:
 *   magic "KAKEYA-S", version u32, policy (see write_policy), tokens u64, has_logits u32, cache bytes u64,
 *   token ids i32[n], row kinds u8[n], logits f32[vocab] if any, the backend's bytes, FNV-1a 64 of everything before.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "session/session.h"

static const char magic[8] = {'K', 'A', 'K', 'E', 'Y', 'A', '-', 'S'};
enum { VERSION = 1, CHECKSUM_BYTES = 8 };

/* Writes where data is, or only counts with data == NULL. */
typedef struct writer {
    unsigned char *data;
    size_t at;
} writer;

static void write_bytes(writer *w, const void *bytes, size_t n) {
    if (w->data && n) memcpy(w->data + w->at, bytes, n);
    w->at += n;
}

static void write_number(writer *w, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)(value >> (8 * i));
        write_bytes(w, &byte, 1);
    }
}

/* Words of 4 bytes in the machine's order are written in little-endian order. */
static void write_words(writer *w, const void *words, size_t n) {
    const unsigned char *p = words;
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, p + 4 * i, 4);
        write_number(w, word, 4);
    }
}

/* The backend's bytes: as many as it has announced. */
static kakeya_status write_state_bytes(void *user, const void *data, size_t bytes, kakeya_error *error) {
    (void)error;
    write_bytes(user, data, bytes);
    return KAKEYA_OK;
}

typedef struct reader {
    const unsigned char *data;
    size_t bytes, at;
    bool failed;
} reader;

static const unsigned char *read_bytes(reader *r, size_t n) {
    if (r->failed || r->bytes - r->at < n) {
        r->failed = true;
        return NULL;
    }
    r->at += n;
    return r->data + r->at - n;
}

static kakeya_status read_state_bytes(void *user, void *data, size_t bytes, kakeya_error *error) {
    const unsigned char *found = read_bytes(user, bytes);
    if (!found) return error_set(error, KAKEYA_FORMAT, "snapshot: the memory of the session is cut off");
    memcpy(data, found, bytes);
    return KAKEYA_OK;
}

static uint64_t read_number(reader *r, int bytes) {
    const unsigned char *p = read_bytes(r, (size_t)bytes);
    uint64_t value = 0;
    for (int i = 0; p && i < bytes; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static void read_words(reader *r, void *words, size_t n) {
    unsigned char *p = words;
    for (size_t i = 0; i < n && !r->failed; i++) {
        uint32_t word = (uint32_t)read_number(r, 4);
        memcpy(p + 4 * i, &word, 4);
    }
}

/* What must agree between the session that wrote and the one that reads. */
enum { POLICY_FIELDS = 8 };
typedef struct policy {
    uint64_t field[POLICY_FIELDS];
} policy;

static const char *const policy_names[POLICY_FIELDS] = {
    "model fingerprint", "attention", "restore_layers",  "sink", "window",
    "draft_window",      "kv_format", "drafter context",
};

static policy policy_of(const kakeya_session *session) {
    const kakeya_session_options *o = &session->options;
    return (policy){{session->engine->fingerprint, (uint64_t)o->attention, (uint64_t)o->restore_layers,
                     (uint64_t)o->sink, (uint64_t)o->window, (uint64_t)o->draft_window, (uint64_t)o->kv_format,
                     (uint64_t)session->cache_options.keep_draft_context}};
}

static kakeya_status write_state(const kakeya_session *session, size_t cache_bytes, writer *w, kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    policy p = policy_of(session);
    write_bytes(w, magic, sizeof magic);
    write_number(w, VERSION, 4);
    for (int i = 0; i < POLICY_FIELDS; i++) write_number(w, p.field[i], 8);
    write_number(w, t->n, 8);
    write_number(w, t->has_logits, 4);
    write_number(w, cache_bytes, 8);
    write_words(w, t->tokens, t->n);
    write_bytes(w, t->row_kind, t->n);
    if (t->has_logits) write_words(w, t->logits, (size_t)t->vocab);
    kakeya_status status = KAKEYA_OK;
    if (w->data) {
        pthread_mutex_lock(t->turn);
        status = t->ops->cache_snapshot(t->cache, write_state_bytes, w, error);
        pthread_mutex_unlock(t->turn);
    } else {
        w->at += cache_bytes;
    }
    write_number(w, w->data ? hash_fnv1a(HASH_FNV1A_START, w->data, w->at) : 0, CHECKSUM_BYTES);
    return status;
}

kakeya_status kakeya_session_snapshot(const kakeya_session *session, void **data, size_t *bytes, kakeya_error *error) {
    *data = NULL;
    *bytes = 0;
    const decode_timeline *t = &session->timeline;
    if (!t->cache)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "snapshot: the session lost its memory in an earlier failure, sync it");
    size_t cache_bytes = t->ops->cache_snapshot_bytes(t->cache);
    writer count = {0};
    (void)write_state(session, cache_bytes, &count, NULL);
    writer w = {.data = malloc(count.at)};
    if (!w.data) return error_set(error, KAKEYA_OUT_OF_MEMORY, "snapshot of %zu bytes: out of memory", count.at);
    kakeya_status status = write_state(session, cache_bytes, &w, error);
    if (status != KAKEYA_OK) {
        free(w.data);
        return status;
    }
    *data = w.data;
    *bytes = w.at;
    return KAKEYA_OK;
}

typedef struct contents {
    size_t n, cache_bytes;
    bool has_logits;
    size_t tokens_at; /* offset of the token ids */
} contents;

static kakeya_status read_header(const kakeya_session *session, reader *r, contents *c, kakeya_error *error) {
    const unsigned char *found = read_bytes(r, sizeof magic);
    if (!found || memcmp(found, magic, sizeof magic) != 0)
        return error_set(error, KAKEYA_FORMAT, "snapshot: not a session snapshot (%zu bytes)", r->bytes);
    uint64_t version = read_number(r, 4);
    if (!r->failed && version != VERSION)
        return error_set(error, KAKEYA_UNSUPPORTED, "snapshot: version %" PRIu64 ", this build reads version %d",
                         version, (int)VERSION);
    if (r->bytes < r->at + CHECKSUM_BYTES)
        return error_set(error, KAKEYA_FORMAT, "snapshot: cut off at %zu bytes", r->bytes);
    reader end = {.data = r->data, .bytes = r->bytes, .at = r->bytes - CHECKSUM_BYTES};
    uint64_t stated = read_number(&end, CHECKSUM_BYTES);
    uint64_t computed = hash_fnv1a(HASH_FNV1A_START, r->data, r->bytes - CHECKSUM_BYTES);
    if (stated != computed)
        return error_set(error, KAKEYA_FORMAT,
                         "snapshot: damaged, checksum %016" PRIx64 " where %016" PRIx64 " is stated", computed, stated);
    r->bytes -= CHECKSUM_BYTES;

    policy own = policy_of(session);
    for (int i = 0; i < POLICY_FIELDS; i++) {
        uint64_t value = read_number(r, 8);
        if (!r->failed && value != own.field[i])
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "snapshot: its %s is %" PRIu64 ", the session's is %" PRIu64, policy_names[i], value,
                             own.field[i]);
    }
    uint64_t n = read_number(r, 8), has_logits = read_number(r, 4), cache_bytes = read_number(r, 8);
    if (!r->failed && n > session->timeline.capacity)
        return error_set(error, KAKEYA_CONTEXT_FULL, "snapshot: %" PRIu64 " tokens do not fit into the context of %zu",
                         n, session->timeline.capacity);
    c->n = (size_t)n;
    c->has_logits = has_logits == 1;
    c->cache_bytes = (size_t)cache_bytes;
    c->tokens_at = r->at;
    size_t expected = c->n * 5 + (c->has_logits ? (size_t)session->timeline.vocab * sizeof(float) : 0);
    if (r->failed || has_logits > 1 || cache_bytes > r->bytes || expected != r->bytes - r->at - c->cache_bytes)
        return error_set(error, KAKEYA_FORMAT,
                         "snapshot: lengths disagree (%" PRIu64 " tokens, %" PRIu64 " cache bytes in %zu bytes)", n,
                         cache_bytes, r->bytes);
    return KAKEYA_OK;
}

static kakeya_status check_contents(const kakeya_session *session, reader r, const contents *c, kakeya_error *error) {
    for (size_t i = 0; i < c->n; i++) {
        int32_t token = (int32_t)(uint32_t)read_number(&r, 4);
        if (token < 0 || token >= session->timeline.vocab)
            return error_set(error, KAKEYA_FORMAT, "snapshot: token %zu is %d, the vocabulary has ids 0 to %d", i,
                             (int)token, session->timeline.vocab - 1);
    }
    for (size_t i = 0; i < c->n; i++)
        if (read_number(&r, 1) > SEGMENT_DECODE)
            return error_set(error, KAKEYA_FORMAT, "snapshot: the kind of row %zu is unknown", i);
    return KAKEYA_OK;
}

kakeya_status kakeya_session_restore(kakeya_session *session, const void *data, size_t bytes, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    reader r = {.data = data, .bytes = data ? bytes : 0};
    contents c = {0};
    kakeya_status status = read_header(session, &r, &c, error);
    if (status == KAKEYA_OK) status = check_contents(session, r, &c, error);
    if (status != KAKEYA_OK) return status;

    /* into a cache of its own, so that a failure leaves the session as it was */
    reader state = {.data = r.data + r.bytes - c.cache_bytes, .bytes = c.cache_bytes};
    backend_cache *cache = NULL;
    pthread_mutex_lock(t->turn);
    status = t->ops->cache_create(t->model, &session->cache_options, &cache, error);
    if (status == KAKEYA_OK) status = t->ops->cache_restore(cache, read_state_bytes, &state, error);
    if (status == KAKEYA_OK && state.at != state.bytes)
        status = error_set(error, KAKEYA_FORMAT, "snapshot: memory of %zu bytes where %zu are stated", state.at,
                           state.bytes);
    if (status == KAKEYA_OK) {
        size_t length = (size_t)t->ops->cache_length(cache);
        bool fits = length == c.n || (!c.has_logits && length + 1 == c.n);
        if (!fits)
            status = error_set(error, KAKEYA_FORMAT, "snapshot: memory of %zu positions for %zu tokens", length, c.n);
    }
    backend_cache *unused = cache;
    if (status == KAKEYA_OK) {
        unused = t->cache;
        t->cache = cache;
    }
    if (unused) t->ops->cache_destroy(unused);
    pthread_mutex_unlock(t->turn);
    if (status != KAKEYA_OK) return status;

    ngram_truncate(&session->workspace.ngram, t->tokens, 0);
    read_words(&r, t->tokens, c.n);
    memcpy(t->row_kind, read_bytes(&r, c.n), c.n);
    if (c.has_logits) read_words(&r, t->logits, (size_t)t->vocab);
    t->n = c.n;
    t->has_logits = c.has_logits;
    return KAKEYA_OK;
}
