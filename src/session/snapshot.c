/* A session's whole state as a stream of bytes. All numbers are little-endian:
 *   magic "KAKEYA-S", version u32, policy (see policy_of), tokens u64, has_logits u32, cache bytes u64,
 *   token ids i32[n], row kinds u8[n], logits f32[vocab] if any, the backend's bytes, checksum u64 of everything
 *   before: XXH3-64. Versions 2 and 3 know two kinds of rows, and the checksum of version 2 is that of hash_stream;
 * both are read as well. Version 5 has pictures behind the row kinds: their number u64, and of each its first token
 * and its tokens, both u64, and its digest u8[32]; a session without any is of version 4.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "session/park.h"
#include "session/session.h"

static const char magic[8] = {'K', 'A', 'K', 'E', 'Y', 'A', '-', 'S'};
enum { VERSION_OF_IMAGES = 5, VERSION = 4, VERSION_OF_TWO_KINDS = 3, VERSION_OF_HASH_STREAM = 2, CHECKSUM_BYTES = 8 };

/* ------------------------------------------------------------------------------------------------------ streams */

typedef struct writer {
    kakeya_write_fn write; /* NULL: only counts */
    void *user;
    uint64_t at;
    bool failed;
    XXH3_state_t hash;
    kakeya_engine *engine; /* whose turn is held since `since`; NULL: it is not */
    double since;
} writer;

static void write_bytes(writer *w, const void *bytes, size_t n) {
    if (w->failed) return;
    if (w->write && n) (void)XXH3_64bits_update(&w->hash, bytes, n);
    if (w->write && n && !w->write(w->user, bytes, n))
        w->failed = true;
    else
        w->at += n;
}

static void write_number(writer *w, uint64_t value, int bytes) {
    unsigned char out[8];
    for (int i = 0; i < bytes; i++) out[i] = (unsigned char)(value >> (8 * i));
    write_bytes(w, out, (size_t)bytes);
}

enum { WORDS_AT_ONCE = 1024 };

/* Words of 4 bytes in the machine's order are written in little-endian order. */
static void write_words(writer *w, const void *words, size_t n) {
    unsigned char piece[4 * WORDS_AT_ONCE];
    const unsigned char *p = words;
    for (size_t from = 0; from < n; from += WORDS_AT_ONCE) {
        size_t count = n - from < WORDS_AT_ONCE ? n - from : WORDS_AT_ONCE;
        for (size_t i = 0; i < count; i++) {
            uint32_t word;
            memcpy(&word, p + 4 * (from + i), 4);
            for (int b = 0; b < 4; b++) piece[4 * i + (size_t)b] = (unsigned char)(word >> (8 * b));
        }
        write_bytes(w, piece, 4 * count);
    }
}

typedef struct reader {
    kakeya_read_fn read;
    void *user;
    uint64_t at;
    bool ended;
    uint64_t version; /* 0: not read yet, both checksums are kept */
    hash_stream old_hash;
    XXH3_state_t hash;
    kakeya_engine *engine; /* whose turn is held since `since` */
    double since, waited;
} reader;

static uint64_t checksum_of(const reader *r) {
    return r->version == VERSION_OF_HASH_STREAM ? hash_stream_value(&r->old_hash) : XXH3_64bits_digest(&r->hash);
}

/* Fills all n bytes, with zeros where the stream has ended. */
static void read_bytes(reader *r, void *bytes, size_t n) {
    unsigned char *p = bytes;
    size_t done = 0;
    while (done < n && !r->ended) {
        size_t got = r->read(r->user, p + done, n - done);
        if (got == 0 || got > n - done)
            r->ended = true;
        else
            done += got;
    }
    if (r->version == 0 || r->version == VERSION_OF_HASH_STREAM) hash_stream_add(&r->old_hash, p, done);
    if (r->version != VERSION_OF_HASH_STREAM && done) (void)XXH3_64bits_update(&r->hash, p, done);
    r->at += done;
    if (done < n) memset(p + done, 0, n - done);
}

static uint64_t read_number(reader *r, int bytes) {
    unsigned char p[8];
    uint64_t value = 0;
    read_bytes(r, p, (size_t)bytes);
    for (int i = 0; i < bytes; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}

static void read_words(reader *r, void *words, size_t n) {
    unsigned char *p = words;
    read_bytes(r, p, 4 * n);
    for (size_t i = 0; i < n; i++) {
        uint32_t word = 0;
        for (int b = 0; b < 4; b++) word |= (uint32_t)p[4 * i + (size_t)b] << (8 * b);
        memcpy(p + 4 * i, &word, 4);
    }
}

static kakeya_status cut_off(const reader *r, kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "session data: cut off at byte %" PRIu64, r->at);
}

/* ------------------------------------------------------------------------------------------------------- saving */

/* What must agree between the session that wrote and the one that reads. */
enum { POLICY_FIELDS = 8 };
typedef struct policy {
    uint64_t field[POLICY_FIELDS];
} policy;

static const char *const policy_names[POLICY_FIELDS] = {
    "model fingerprint", "attention", "restore_layers",  "sink", "window",
    "draft_window",      "kv_format", "drafter context",
};
enum { POLICY_KV_FORMAT = 6 };

static policy policy_of(const kakeya_session *session) {
    const kakeya_session_options *o = &session->options;
    return (policy){{session->engine->fingerprint, (uint64_t)o->attention, (uint64_t)o->restore_layers,
                     (uint64_t)kakeya_options_sink(o), (uint64_t)o->window, (uint64_t)o->draft_window,
                     (uint64_t)o->kv_format, (uint64_t)session->cache_options.keep_draft_context}};
}

uint64_t kakeya_engine_fingerprint(const kakeya_engine *engine) { return engine->fingerprint; }

uint64_t kakeya_session_policy(const kakeya_session *session) {
    policy p = policy_of(session);
    return hash_fnv1a(HASH_FNV1A_START, &p.field[1], (POLICY_FIELDS - 1) * sizeof p.field[1]);
}

static kakeya_status write_failed(const writer *w, kakeya_error *error) {
    return error_set(error, KAKEYA_IO, "session data: the writer takes no more at byte %" PRIu64, w->at);
}

/* The backend's bytes: as many as it has announced. Between two pieces others may compute: nobody else uses the
 * session, and what it shares with forks is never written. */
static kakeya_status write_state_bytes(void *user, const void *data, size_t bytes, kakeya_error *error) {
    writer *w = user;
    if (w->engine) (void)engine_turn_share(w->engine, &w->since);
    write_bytes(w, data, bytes);
    return w->failed ? write_failed(w, error) : KAKEYA_OK;
}

static kakeya_status need_cache(const kakeya_session *session, kakeya_error *error) {
    if (session->timeline.cache || session->parked || !session->begun) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "session data: the session lost its memory in an earlier failure, sync it");
}

/* The K/V memory, which a parked session has in its file in the same form. */
static kakeya_status save_cache(const kakeya_session *session, const backend_cache *cache, writer *w,
                                kakeya_error *error) {
    if (session->parked) return park_copy(session, write_state_bytes, w, error);
    engine_turn_begin(session->engine);
    w->engine = session->engine;
    w->since = clock_seconds();
    kakeya_status status = session->timeline.ops->cache_snapshot(cache, write_state_bytes, w, error);
    w->engine = NULL;
    engine_turn_end(session->engine);
    return status;
}

static kakeya_status save_with(const kakeya_session *session, const backend_cache *cache, writer *w,
                               kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    size_t cache_bytes = session->parked ? park_bytes(session) : t->ops->cache_snapshot_bytes(cache);
    policy p = policy_of(session);
    write_bytes(w, magic, sizeof magic);
    write_number(w, t->n_images ? VERSION_OF_IMAGES : VERSION, 4);
    for (int i = 0; i < POLICY_FIELDS; i++) write_number(w, p.field[i], 8);
    write_number(w, t->n, 8);
    write_number(w, t->has_logits, 4);
    write_number(w, cache_bytes, 8);
    write_words(w, t->tokens, t->n);
    write_bytes(w, t->row_kind, t->n);
    if (t->n_images) write_number(w, t->n_images, 8);
    for (size_t i = 0; i < t->n_images; i++) {
        write_number(w, t->images[i].begin, 8);
        write_number(w, t->images[i].n, 8);
        write_bytes(w, t->images[i].digest, sizeof t->images[i].digest);
    }
    if (t->has_logits) write_words(w, t->logits, (size_t)t->vocab);
    kakeya_status status = KAKEYA_OK;
    if (!w->write)
        w->at += cache_bytes;
    else if (!w->failed)
        status = save_cache(session, cache, w, error);
    write_number(w, w->write ? XXH3_64bits_digest(&w->hash) : 0, CHECKSUM_BYTES);
    if (status == KAKEYA_OK && w->failed) status = write_failed(w, error);
    return status;
}

/* A session that has had no prompt yet is saved as an empty one. */
static kakeya_status save(const kakeya_session *session, writer *w, kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    if (t->cache || session->parked) return save_with(session, t->cache, w, error);
    backend_cache *empty = NULL;
    engine_turn_begin(session->engine);
    kakeya_status status = t->ops->cache_create(t->model, &session->cache_options, &empty, error);
    engine_turn_end(session->engine);
    if (status != KAKEYA_OK) return status;
    status = save_with(session, empty, w, error);
    engine_turn_begin(session->engine);
    t->ops->cache_destroy(empty);
    engine_turn_end(session->engine);
    return status;
}

kakeya_status kakeya_session_save(const kakeya_session *session, kakeya_write_fn write, void *user,
                                  kakeya_error *error) {
    writer w = {.write = write, .user = user};
    (void)XXH3_64bits_reset(&w.hash);
    kakeya_status status = need_cache(session, error);
    return status == KAKEYA_OK ? save(session, &w, error) : status;
}

uint64_t kakeya_session_save_bytes(const kakeya_session *session) {
    writer w = {.write = NULL};
    if (need_cache(session, NULL) == KAKEYA_OK) (void)save(session, &w, NULL);
    return w.at;
}

/* ------------------------------------------------------------------------------------------------------ loading */

/* What a stream holds, until all of it has been found good. */
typedef struct contents {
    size_t n, cache_bytes;
    bool has_logits;
    int32_t *tokens;         /* [n] */
    unsigned char *row_kind; /* [n] */
    timeline_image *images;  /* [n_images], malloc'ed */
    size_t n_images;
    float *logits; /* [vocab], with has_logits */
    backend_cache *cache;
    FILE *parked; /* instead of the cache */
} contents;

static kakeya_status read_header(const kakeya_session *session, reader *r, contents *c, kakeya_error *error) {
    char found[sizeof magic];
    read_bytes(r, found, sizeof found);
    if (memcmp(found, magic, sizeof magic) != 0)
        return error_set(error, KAKEYA_FORMAT, "session data: not a saved session");
    uint64_t version = read_number(r, 4);
    if (r->ended) return cut_off(r, error);
    if (version < VERSION_OF_HASH_STREAM || version > VERSION_OF_IMAGES)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "session data: version %" PRIu64 ", this build reads versions %d and %d", version,
                         (int)VERSION_OF_HASH_STREAM, (int)VERSION_OF_IMAGES);
    r->version = version;
    policy own = policy_of(session);
    for (int i = 0; i < POLICY_FIELDS; i++) {
        uint64_t value = read_number(r, 8);
        if (r->ended || value == own.field[i]) continue;
        const char *theirs = value <= KAKEYA_KV_Q4 ? kakeya_kv_format_name((kakeya_kv_format)value) : "unknown";
        if (i == POLICY_KV_FORMAT)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "session data: its kv_format is %s, the session's is %s",
                             theirs, kakeya_kv_format_name(session->options.kv_format));
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "session data: its %s is %" PRIu64 ", the session's is %" PRIu64, policy_names[i], value,
                         own.field[i]);
    }
    uint64_t n = read_number(r, 8), has_logits = read_number(r, 4), cache_bytes = read_number(r, 8);
    if (r->ended) return cut_off(r, error);
    if (n > session->timeline.capacity)
        return error_set(error, KAKEYA_CONTEXT_FULL,
                         "session data: %" PRIu64 " tokens do not fit into the context of %zu", n,
                         session->timeline.capacity);
    if (has_logits > 1 || cache_bytes > SIZE_MAX)
        return error_set(error, KAKEYA_FORMAT,
                         "session data: %" PRIu64 " rows of logits, %" PRIu64 " bytes of K/V memory", has_logits,
                         cache_bytes);
    c->n = (size_t)n;
    c->has_logits = has_logits == 1;
    c->cache_bytes = (size_t)cache_bytes;
    return KAKEYA_OK;
}

/* Ascending, without a token in common. */
static kakeya_status read_images(reader *r, contents *c, kakeya_error *error) {
    if (r->version != VERSION_OF_IMAGES) return KAKEYA_OK;
    const uint64_t n = read_number(r, 8);
    if (r->ended) return cut_off(r, error);
    if (n < 1 || n > c->n)
        return error_set(error, KAKEYA_FORMAT, "session data: %" PRIu64 " images among %zu tokens", n, c->n);
    c->images = calloc((size_t)n, sizeof *c->images);
    if (!c->images) return error_set(error, KAKEYA_OUT_OF_MEMORY, "session data: out of memory");
    uint64_t end = 0;
    for (; c->n_images < n; c->n_images++) {
        timeline_image *made = &c->images[c->n_images];
        const uint64_t begin = read_number(r, 8), tokens = read_number(r, 8);
        read_bytes(r, made->digest, sizeof made->digest);
        if (r->ended) return cut_off(r, error);
        if (begin < end || begin >= c->n || tokens < 1 || tokens > c->n - begin)
            return error_set(error, KAKEYA_FORMAT,
                             "session data: image %zu has %" PRIu64 " tokens from token %" PRIu64 " on", c->n_images,
                             tokens, begin);
        made->begin = (size_t)begin;
        made->n = (size_t)tokens;
        end = begin + tokens;
    }
    return KAKEYA_OK;
}

static kakeya_status read_tokens(kakeya_session *session, reader *r, contents *c, kakeya_error *error) {
    int vocab = session->timeline.vocab;
    size_t logits_bytes = c->has_logits ? (size_t)vocab * sizeof *c->logits : 0;
    c->tokens = mem_alloc(&session->account, MEM_WORKSPACE, c->n * sizeof *c->tokens);
    c->row_kind = mem_alloc(&session->account, MEM_WORKSPACE, c->n);
    c->logits = mem_alloc(&session->account, MEM_WORKSPACE, logits_bytes);
    if (!c->tokens || !c->row_kind || !c->logits)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "session data: %zu tokens: out of memory", c->n);
    read_words(r, c->tokens, c->n);
    read_bytes(r, c->row_kind, c->n);
    kakeya_status status = read_images(r, c, error);
    if (status != KAKEYA_OK) return status;
    if (c->has_logits) read_words(r, c->logits, (size_t)vocab);
    if (r->ended) return cut_off(r, error);
    for (size_t i = 0; i < c->n; i++) {
        if (c->tokens[i] < 0 || c->tokens[i] >= vocab)
            return error_set(error, KAKEYA_FORMAT, "session data: token %zu is %d, the vocabulary has ids 0 to %d", i,
                             (int)c->tokens[i], vocab - 1);
        if (c->row_kind[i] > (r->version <= VERSION_OF_TWO_KINDS ? ROW_DECODE : ROW_BEHIND_ANSWER))
            return error_set(error, KAKEYA_FORMAT, "session data: the kind of row %zu is unknown", i);
        bool turns = i && c->row_kind[i] == ROW_PROMPT && c->row_kind[i - 1] == ROW_DECODE;
        if (turns && r->version <= VERSION_OF_TWO_KINDS) c->row_kind[i] = ROW_BEHIND_ANSWER;
    }
    return KAKEYA_OK;
}

/* Between two pieces others may compute: nobody else knows the cache that they go to. */
static kakeya_status read_state_bytes(void *user, void *data, size_t bytes, kakeya_error *error) {
    reader *r = user;
    if (r->engine) r->waited += engine_turn_share(r->engine, &r->since);
    read_bytes(r, data, bytes);
    return r->ended ? cut_off(r, error) : KAKEYA_OK;
}

/* Into a cache of its own, so that a failure leaves the session as it was. */
static kakeya_status read_cache(kakeya_session *session, reader *r, contents *c, kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    uint64_t begin = r->at;
    const double asked = clock_seconds();
    engine_turn_begin(session->engine);
    r->engine = session->engine;
    r->since = clock_seconds();
    r->waited = r->since - asked;
    session_begin(session);
    kakeya_status status = t->ops->cache_create(t->model, &session->cache_options, &c->cache, error);
    if (status == KAKEYA_OK) status = t->ops->cache_restore(c->cache, read_state_bytes, r, error);
    engine_turn_end(session->engine);
    if (status == KAKEYA_OK && r->at - begin != c->cache_bytes)
        status = error_set(error, KAKEYA_FORMAT, "session data: K/V memory of %" PRIu64 " bytes where %zu are stated",
                           r->at - begin, c->cache_bytes);
    return status;
}

/* Its length is known when it is read back. */
static kakeya_status read_parked(kakeya_session *session, reader *r, contents *c, kakeya_error *error) {
    engine_turn_begin(session->engine);
    session_begin(session);
    engine_turn_end(session->engine);
    return park_fill(session->engine, &c->parked, c->cache_bytes, read_state_bytes, r, error);
}

static kakeya_status read_end(reader *r, kakeya_error *error) {
    uint64_t computed = checksum_of(r), stated = read_number(r, CHECKSUM_BYTES);
    if (r->ended) return cut_off(r, error);
    if (stated == computed) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT,
                     "session data: damaged, checksum %016" PRIx64 " where %016" PRIx64 " is stated", computed, stated);
}

static kakeya_status check_length(const kakeya_session *session, const contents *c, kakeya_error *error) {
    if (c->parked) return KAKEYA_OK;
    size_t length = (size_t)session->timeline.ops->cache_length(c->cache);
    if (length == c->n || (!c->has_logits && length + 1 == c->n)) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT, "session data: memory of %zu positions for %zu tokens", length, c->n);
}

/* The session becomes what was read; the old memory is c's to free. */
static kakeya_status take_contents(kakeya_session *session, contents *c, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    kakeya_status status = decode_timeline_reserve(t, c->n, error);
    if (status == KAKEYA_OK && c->has_logits) status = decode_timeline_keep_logits(t, error);
    if (status != KAKEYA_OK) return status;
    ngram_truncate(&session->workspace.ngram, t->tokens, 0);
    backend_cache *old = t->cache;
    t->cache = c->cache;
    c->cache = old;
    session_drop_parked(session);
    session->parked = c->parked;
    c->parked = NULL;
    if (c->n) { /* an empty timeline may have no arrays */
        memcpy(t->tokens, c->tokens, c->n * sizeof *t->tokens);
        memcpy(t->row_kind, c->row_kind, c->n);
    }
    if (c->has_logits)
        memcpy(t->logits, c->logits, (size_t)t->vocab * sizeof *t->logits);
    else
        decode_timeline_drop_logits(t);
    t->n = c->n;
    t->has_logits = c->has_logits;
    free(t->images);
    t->images = c->images;
    t->n_images = c->n_images;
    c->images = NULL;
    return KAKEYA_OK;
}

static kakeya_status load(kakeya_session *session, kakeya_read_fn read, void *user, bool parked, kakeya_error *error) {
    reader r = {.read = read, .user = user, .old_hash = HASH_STREAM_START};
    (void)XXH3_64bits_reset(&r.hash);
    contents c = {0};
    kakeya_status status = read_header(session, &r, &c, error);
    if (status == KAKEYA_OK) status = read_tokens(session, &r, &c, error);
    if (status == KAKEYA_OK) status = (parked ? read_parked : read_cache)(session, &r, &c, error);
    if (status == KAKEYA_OK) status = read_end(&r, error);
    if (status == KAKEYA_OK) status = check_length(session, &c, error);
    if (status == KAKEYA_OK) status = take_contents(session, &c, error);
    if (c.cache) {
        engine_turn_begin(session->engine);
        session->timeline.ops->cache_destroy(c.cache);
        engine_turn_end(session->engine);
    }
    engine_forget_file(session->engine, &c.parked);
    free(c.images);
    mem_free(c.tokens);
    mem_free(c.row_kind);
    mem_free(c.logits);
    session->load_waited = r.waited;
    return status;
}

kakeya_status kakeya_session_load(kakeya_session *session, kakeya_read_fn read, void *user, kakeya_error *error) {
    return load(session, read, user, false, error);
}

kakeya_status kakeya_session_load_parked(kakeya_session *session, kakeya_read_fn read, void *user,
                                         kakeya_error *error) {
    return load(session, read, user, true, error);
}

double kakeya_session_load_waited(const kakeya_session *session) { return session->load_waited; }

/* ------------------------------------------------------------------------------------------------ memory and files */

typedef struct memory {
    unsigned char *data;
    size_t bytes, at;
} memory;

static bool write_memory(void *user, const void *data, size_t bytes) {
    memory *m = user;
    if (m->bytes - m->at < bytes) return false;
    memcpy(m->data + m->at, data, bytes);
    m->at += bytes;
    return true;
}

static size_t read_memory(void *user, void *data, size_t bytes) {
    memory *m = user;
    size_t left = m->bytes - m->at, n = bytes < left ? bytes : left;
    if (n) memcpy(data, m->data + m->at, n);
    m->at += n;
    return n;
}

kakeya_status session_to_memory(const kakeya_session *session, void **data, size_t *bytes, kakeya_error *error) {
    *data = NULL;
    *bytes = 0;
    kakeya_status status = need_cache(session, error);
    if (status != KAKEYA_OK) return status;
    memory m = {.bytes = (size_t)kakeya_session_save_bytes(session)};
    m.data = malloc(m.bytes);
    if (!m.data) return error_set(error, KAKEYA_OUT_OF_MEMORY, "session data: %zu bytes: out of memory", m.bytes);
    status = kakeya_session_save(session, write_memory, &m, error);
    if (status != KAKEYA_OK) {
        free(m.data);
        return status;
    }
    *data = m.data;
    *bytes = m.at;
    return KAKEYA_OK;
}

kakeya_status session_from_memory(kakeya_session *session, const void *data, size_t bytes, kakeya_error *error) {
    memory m = {.data = (unsigned char *)(uintptr_t)data, .bytes = data ? bytes : 0};
    return kakeya_session_load(session, read_memory, &m, error);
}

typedef struct file_target {
    file_writer *file;
    kakeya_error *error;
} file_target;

static bool write_file(void *user, const void *data, size_t bytes) {
    file_target *target = user;
    return file_writer_write(target->file, data, bytes, target->error) == KAKEYA_OK;
}

kakeya_status kakeya_session_save_file(const kakeya_session *session, const char *path, kakeya_error *error) {
    kakeya_error failure = {0};
    file_target target = {.error = &failure};
    kakeya_status status = need_cache(session, error);
    if (status == KAKEYA_OK) status = file_writer_open(path, &target.file, error);
    if (status != KAKEYA_OK) return status;
    status = kakeya_session_save(session, write_file, &target, error);
    if (status == KAKEYA_OK) return file_writer_commit(target.file, error);
    file_writer_abort(target.file);
    return failure.status ? error_set(error, failure.status, "%s", failure.message)
                          : error_prefix(error, status, "%s", path);
}

static size_t read_file(void *user, void *data, size_t bytes) { return fread(data, 1, bytes, user); }

kakeya_status kakeya_session_load_file(kakeya_session *session, const char *path, kakeya_error *error) {
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(error, KAKEYA_IO, "%s: %s", path, strerror(errno));
    kakeya_status status = kakeya_session_load(session, read_file, file, error);
    if (status == KAKEYA_FORMAT && ferror(file))
        status = error_set(error, KAKEYA_IO, "%s: reading fails at byte %ld", path, ftell(file));
    else if (status != KAKEYA_OK)
        (void)error_prefix(error, status, "%s", path);
    fclose(file);
    return status;
}
