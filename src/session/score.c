#include <math.h>
#include <string.h>

#include "base/sized.h"
#include "base/threads.h"
#include "formats/safetensors.h"
#include "kakeya_study.h"
#include "session/divergence.h"
#include "session/prompt_media.h"
#include "session/session.h"

/* Logits of a whole prompt chunk would be large for a large vocabulary: scoring takes fewer rows at a time instead. */
static const size_t logits_limit_bytes = (size_t)64 << 20;

typedef struct scoring {
    kakeya_session *session;
    thread_pool *pool; /* a row is a thread's: which one computes it changes no bit */
    backend_cache *cache;
    const int32_t *tokens;
    size_t n;
    prompt_media media;
    float *chunk_logits; /* [rows][vocab]; NULL where the caller takes all logits */
    float *chunk_hidden; /* [layers + 1][rows][hidden]; NULL where not wanted */
    size_t rows;
    float *nll, *logits, *hidden;
    float *own_hidden;        /* [layers + 1][n][hidden]: for the file, where the caller wants none */
    safetensors_writer *file; /* NULL: none */
    safetensors *against;     /* NULL: nothing to compare with */
    const float *reference;   /* [n][vocab]: the logits in it */
    float *against_nll, *against_kl;
    uint8_t *against_top_same;
} scoring;

/* -log softmax(row)[target] in double precision; NaN where the row holds none of finite value. */
static double negative_log_likelihood(const float *row, int vocab, int32_t target) {
    double maximum = -INFINITY, sum = 0;
    for (int i = 0; i < vocab; i++)
        if ((double)row[i] > maximum) maximum = (double)row[i];
    for (int i = 0; i < vocab; i++) sum += exp((double)row[i] - maximum);
    return log(sum) + maximum - (double)row[target];
}

/* Rows, and which tokens they are to predict. */
typedef struct likelihood_work {
    const float *rows;
    int vocab;
    const int32_t *targets;
    float *nll;
} likelihood_work;

static void take_likelihoods(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const likelihood_work *w = context;
    for (size_t i = begin; i < end; i++)
        w->nll[i] = (float)negative_log_likelihood(w->rows + i * (size_t)w->vocab, w->vocab, w->targets[i]);
}

/* Compares the rows of positions [from, from + n) with the reference's. */
static kakeya_status compare(scoring *s, const float *rows, size_t from, size_t n, kakeya_error *error) {
    const int vocab = s->session->engine->verifier->config.vocab;
    for (size_t i = 0; i < n; i++) {
        const size_t t = from + i;
        const float *reference = s->reference + t * (size_t)vocab;
        double nll = t + 1 < s->n ? negative_log_likelihood(reference, vocab, s->tokens[t + 1]) : 0;
        int top;
        bool same;
        double kl = logits_divergence(reference, rows + i * (size_t)vocab, vocab, &top, &same);
        if (isnan(nll) || isnan(kl))
            return error_set(error, KAKEYA_FORMAT, "%s: logits of position %zu are not finite numbers",
                             s->against->path, t);
        if (s->against_nll && t + 1 < s->n) s->against_nll[t] = (float)nll;
        if (s->against_kl) s->against_kl[t] = (float)kl;
        if (s->against_top_same) s->against_top_same[t] = same;
    }
    return KAKEYA_OK;
}

/* Computes positions [from, from + n) as rows of one kind and takes their results. */
static kakeya_status score_chunk(scoring *s, size_t from, size_t n, segment_kind kind, kakeya_error *error) {
    const decode_timeline *t = &s->session->timeline;
    const model_config *config = &s->session->engine->verifier->config;
    size_t vocab = (size_t)config->vocab, hidden = (size_t)config->hidden, layers = (size_t)config->layers + 1;
    float *rows = s->logits ? s->logits + from * vocab : s->chunk_logits;
    backend_segment segment = {.cache = s->cache,
                               .tokens = s->tokens + from,
                               .n = (int)n,
                               .kind = kind,
                               .logits = rows,
                               .hidden_states = s->chunk_hidden};
    bool ready;
    engine_turn_begin(s->session->engine);
    kakeya_status status = prompt_media_give(&s->media, s->session->engine, &s->session->account, from, from + n, NULL,
                                             &ready, &segment.given, &segment.n_given, error);
    if (status == KAKEYA_OK) status = t->ops->forward(t->model, &segment, 1, error);
    if (status == KAKEYA_OK) status = engine_check(s->session->engine, error);
    if (status == KAKEYA_OK) status = t->ops->cache_commit(s->cache, (int)n, error);
    engine_turn_end(s->session->engine);
    if (status != KAKEYA_OK) return status;

    if (s->file) status = safetensors_writer_write(s->file, rows, n * vocab * sizeof *rows, error);
    if (status != KAKEYA_OK) return status;
    for (size_t layer = 0; s->hidden && layer < layers; layer++)
        memcpy(s->hidden + (layer * s->n + from) * hidden, s->chunk_hidden + layer * n * hidden,
               n * hidden * sizeof(float));
    size_t scored = from + n < s->n ? n : s->n - 1 - from;
    likelihood_work work = {rows, config->vocab, s->tokens + from + 1, s->nll ? s->nll + from : NULL};
    if (s->nll) thread_pool_for(s->pool, scored, 1, take_likelihoods, &work);
    for (size_t i = 0; s->nll && i < scored; i++) {
        if (isnan(s->nll[from + i]))
            return error_set(error, KAKEYA_BACKEND, "scoring: the logits of position %zu are not finite numbers",
                             from + i);
    }
    return s->reference ? compare(s, rows, from, n, error) : KAKEYA_OK;
}

static kakeya_status score_allocate(scoring *s, kakeya_error *error) {
    kakeya_session *session = s->session;
    const model_config *config = &session->engine->verifier->config;
    size_t row_bytes = (size_t)config->vocab * sizeof(float);
    s->rows = logits_limit_bytes / row_bytes;
    if (s->rows < BACKEND_MAX_DECODE_ROWS) s->rows = BACKEND_MAX_DECODE_ROWS;
    if (s->rows > (size_t)session->options.prompt_chunk_tokens) s->rows = (size_t)session->options.prompt_chunk_tokens;
    size_t buffer_rows = s->rows > BACKEND_MAX_DECODE_ROWS ? s->rows : BACKEND_MAX_DECODE_ROWS;
    for (size_t i = 0; i < s->media.n; i++)
        if (s->media.medium[i].place.n > buffer_rows) buffer_rows = s->media.medium[i].place.n;
    size_t hidden_bytes = ((size_t)config->layers + 1) * buffer_rows * (size_t)config->hidden * sizeof(float);
    if (!s->logits) s->chunk_logits = mem_alloc(&session->account, MEM_WORKSPACE, buffer_rows * row_bytes);
    if (s->hidden) s->chunk_hidden = mem_alloc(&session->account, MEM_WORKSPACE, hidden_bytes);
    if ((s->logits || s->chunk_logits) && (!s->hidden || s->chunk_hidden)) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "scoring workspace of %zu bytes: out of memory",
                     (s->logits ? 0 : buffer_rows * row_bytes) + (s->hidden ? hidden_bytes : 0));
}

static size_t hidden_bytes(const scoring *s) {
    const model_config *config = &s->session->engine->verifier->config;
    return ((size_t)config->layers + 1) * s->n * (size_t)config->hidden * sizeof(float);
}

/* Before anything is computed, so that a path that cannot be written fails at once. */
static kakeya_status open_file(scoring *s, const kakeya_score_options *o, kakeya_error *error) {
    const model_config *config = &s->session->engine->verifier->config;
    if (o->file_hidden_states && !s->hidden) {
        s->own_hidden = mem_alloc(&s->session->account, MEM_WORKSPACE, hidden_bytes(s));
        if (!s->own_hidden)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: %zu bytes of hidden states: out of memory", o->file,
                             hidden_bytes(s));
        s->hidden = s->own_hidden;
    }
    const safetensors_entry entries[] = {
        {.name = "logits", .type = TENSOR_F32, .dims = 2, .shape = {(int64_t)s->n, config->vocab}},
        {.name = "hidden_states",
         .type = TENSOR_F32,
         .dims = 3,
         .shape = {(int64_t)config->layers + 1, (int64_t)s->n, config->hidden}},
    };
    return safetensors_writer_open(o->file, entries, o->file_hidden_states ? 2 : 1, &s->file, error);
}

/* Before anything is computed, like open_file. */
static kakeya_status open_against(scoring *s, const char *path, kakeya_error *error) {
    const int64_t shape[] = {(int64_t)s->n, s->session->engine->verifier->config.vocab};
    kakeya_status status = safetensors_open(path, &s->against, error);
    if (status != KAKEYA_OK) return status;
    const tensor *logits = safetensors_find(s->against, "logits");
    char wanted[64], found[64];
    if (!logits || logits->type != TENSOR_F32)
        return error_set(error, KAKEYA_FORMAT, "%s: no tensor \"logits\" in F32, as scoring writes it to a file", path);
    if (logits->dims != 2 || logits->shape[0] != shape[0] || logits->shape[1] != shape[1])
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%s: the logits are %s, but these tokens and this vocabulary make %s", path,
                         tensor_shape_text(logits->dims, logits->shape, found, sizeof found),
                         tensor_shape_text(2, shape, wanted, sizeof wanted));
    if ((uintptr_t)logits->data % sizeof(float) != 0)
        return error_set(error, KAKEYA_FORMAT, "%s: the logits do not lie at a multiple of four bytes", path);
    s->reference = (const float *)(const void *)logits->data;
    return KAKEYA_OK;
}

/* Completes the file, or removes it. */
static kakeya_status close_file(scoring *s, const kakeya_score_options *o, kakeya_status status, kakeya_error *error) {
    if (!s->file) return status;
    if (status == KAKEYA_OK && o->file_hidden_states)
        status = safetensors_writer_write(s->file, s->hidden, hidden_bytes(s), error);
    if (status == KAKEYA_OK) return safetensors_writer_commit(s->file, error);
    safetensors_writer_abort(s->file);
    return status;
}

static kakeya_kv_bytes difference(kakeya_kv_bytes with, kakeya_kv_bytes without) {
    return (kakeya_kv_bytes){.full = with.full - without.full,
                             .sliding = with.sliding - without.sliding,
                             .latent = with.latent - without.latent,
                             .draft = with.draft - without.draft,
                             .total = with.total - without.total};
}

/* The kind of the rows from position `from` on, and where they end. */
static segment_kind rows_at(size_t from, size_t n, size_t prompt_length, size_t earlier_turns, size_t *end) {
    size_t part = n - prompt_length, first = prompt_length - 2 * earlier_turns * part;
    bool prompt = from < prompt_length;
    *end = prompt ? prompt_length : n;
    if (!prompt || !earlier_turns) return prompt ? SEGMENT_PROMPT : SEGMENT_DECODE;
    *end = first;
    if (from < first) return SEGMENT_PROMPT;
    /* as in a session, which computes an answer's newest token with the prompt behind it */
    size_t turn = (from - first) / (2 * part), answer = first + turn * 2 * part + part - 1;
    *end = from < answer ? answer : first + (turn + 1) * 2 * part;
    return from < answer ? SEGMENT_DECODE : SEGMENT_PROMPT;
}

static kakeya_status score_tokens(kakeya_session *session, const int32_t *tokens, size_t n,
                                  const kakeya_score_options *options, kakeya_kv_bytes *held, kakeya_error *error) {
    const decode_timeline *t = &session->timeline;
    kakeya_score_options o = {.size = sizeof o};
    kakeya_status status = sized_read("score options", options, &o, sizeof o, error);
    if (status == KAKEYA_OK) status = session_check_tokens(session, tokens, n, error);
    if (status != KAKEYA_OK) return status;
    if (n == 0) return error_set(error, KAKEYA_INVALID_ARGUMENT, "scoring: there are no tokens");
    size_t prompt_length = o.prompt_length;
    if (prompt_length > n)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "scoring: prompt_length %zu exceeds the %zu tokens",
                         prompt_length, n);
    if (prompt_length == 0) prompt_length = n;
    if (o.earlier_turns && (n == prompt_length || o.earlier_turns > (prompt_length - 1) / 2 / (n - prompt_length)))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "scoring: a prompt of %zu tokens is too short for %zu earlier turns of %zu and %zu",
                         prompt_length, o.earlier_turns, n - prompt_length, n - prompt_length);

    scoring s = {
        .session = session, .tokens = tokens, .n = n, .nll = o.nll, .logits = o.logits, .hidden = o.hidden_states};
    const kakeya_kv_bytes before = kakeya_session_kv_bytes(session);
    status = prompt_media_create(session->engine, tokens, n, o.media, o.n_media, false, &s.media, error);
    for (size_t i = 0; i < s.media.n && status == KAKEYA_OK; i++)
        if (s.media.medium[i].place.begin + s.media.medium[i].place.n > prompt_length)
            status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                               "scoring: image %zu does not lie in the prompt of %zu tokens", i, prompt_length);
    s.against_nll = o.against_nll;
    s.against_kl = o.against_kl;
    s.against_top_same = o.against_top_same;
    if (status == KAKEYA_OK && o.against) status = open_against(&s, o.against, error);
    if (status == KAKEYA_OK && o.file) status = open_file(&s, &o, error);
    if (status == KAKEYA_OK) status = score_allocate(&s, error);
    if (status == KAKEYA_OK) status = thread_pool_create(session->engine->threads, &s.pool, error);
    if (status == KAKEYA_OK) {
        engine_turn_begin(session->engine);
        status = t->ops->cache_create(t->model, &session->cache_options, &s.cache, error);
        engine_turn_end(session->engine);
    }
    for (size_t from = 0; status == KAKEYA_OK && from < n;) {
        if (atomic_load(&session->cancelled)) {
            status = error_set(error, KAKEYA_CANCELLED, "scoring was cancelled after %zu of %zu tokens", from, n);
            break;
        }
        size_t end;
        segment_kind kind = rows_at(from, n, prompt_length, o.earlier_turns, &end);
        size_t rows = kind == SEGMENT_PROMPT ? s.rows : (size_t)session_decode_rows(session);
        size_t count = end - from < rows ? end - from : rows;
        count = prompt_media_end(&s.media, from, from + count) - from;
        status = score_chunk(&s, from, count, kind, error);
        from += count;
        if (status == KAKEYA_OK && o.progress && !o.progress(o.user, "score", from, n) && from < n)
            status = error_set(error, KAKEYA_CANCELLED, "scoring was cancelled after %zu of %zu tokens", from, n);
    }
    if (held && status == KAKEYA_OK) *held = difference(kakeya_session_kv_bytes(session), before);
    if (s.cache) {
        engine_turn_begin(session->engine);
        t->ops->cache_destroy(s.cache);
        engine_turn_end(session->engine);
    }
    status = close_file(&s, &o, status, error);
    safetensors_close(s.against);
    prompt_media_free(&s.media);
    if (s.pool) thread_pool_destroy(s.pool);
    mem_free(s.own_hidden);
    mem_free(s.chunk_logits);
    mem_free(s.chunk_hidden);
    return status;
}

kakeya_status session_score(kakeya_session *session, const int32_t *tokens, size_t n,
                            const kakeya_score_options *options, kakeya_kv_bytes *held, kakeya_error *error) {
    return session_return(session, score_tokens(session, tokens, n, options, held, error));
}

kakeya_status kakeya_session_score(kakeya_session *session, const int32_t *tokens, size_t n,
                                   const kakeya_score_options *options, kakeya_error *error) {
    return session_score(session, tokens, n, options, NULL, error);
}
