#include "session/session.h"

#include <stdlib.h>
#include <string.h>

#include "backend/kv_bytes.h"
#include "base/clock.h"
#include "base/sized.h"
#include "session/options.h"

/* ---------------------------------------------------------------------------------------------------- opening */

static kakeya_status check_options(const kakeya_engine *engine, kakeya_session_options *o, kakeya_error *error) {
    int maximum = engine->verifier->config.max_context;
    if (o->context_tokens == 0) o->context_tokens = maximum;
    if (o->context_tokens < 1 || o->context_tokens > maximum)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "context of %d tokens, must be 1 to %d, the model's maximum",
                         o->context_tokens, maximum);
    if (o->attention < KAKEYA_ATTENTION_NATIVE || o->attention > KAKEYA_ATTENTION_RESTORED)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "attention %d is none of native, sink-window, restored",
                         (int)o->attention);
    if (o->attention == KAKEYA_ATTENTION_RESTORED && !engine->f_theta)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "attention 'restored' needs an f_theta, and the engine was opened without one%s%s",
                         engine->f_theta_sought ? ": looked for " : "",
                         engine->f_theta_sought ? engine->f_theta_sought : "");
    if (o->restore_layers < KAKEYA_RESTORE_SLIDING || o->restore_layers > KAKEYA_RESTORE_ALL)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "restore_layers %d is none of sliding, all",
                         (int)o->restore_layers);
    if (o->kv_format < KAKEYA_KV_AUTO || o->kv_format > KAKEYA_KV_Q4)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "kv_format %d is none of auto, f32, bf16, q8, q4",
                         (int)o->kv_format);
    if (o->kv_format == KAKEYA_KV_AUTO)
        o->kv_format = engine->precision == KAKEYA_PRECISION_F32 ? KAKEYA_KV_F32 : KAKEYA_KV_BF16;
    int largest = engine->ops->model_prompt_chunk(engine->model);
    if (o->prompt_chunk_tokens < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "prompt_chunk_tokens is %d, must be at least 0",
                         o->prompt_chunk_tokens);
    if (o->prompt_chunk_tokens == 0 || o->prompt_chunk_tokens > largest) o->prompt_chunk_tokens = largest;
    return KAKEYA_OK;
}

static backend_cache_options cache_options_of(kakeya_session *session) {
    const kakeya_session_options *o = &session->options;
    const kakeya_engine *engine = session->engine;
    bool restores = o->attention == KAKEYA_ATTENTION_RESTORED && restoration_needs_drafter(&engine->f_theta->config);
    return (backend_cache_options){
        .context_tokens = o->context_tokens,
        .attention = o->attention,
        .restore_layers = o->restore_layers,
        .sink = kakeya_options_sink(o),
        .window = o->window,
        .draft_window = o->draft_window,
        .kv_format = backend_kv_format(o->kv_format),
        .keep_draft_context = engine->drafter && (!o->without_drafter || restores),
        .keep_draft_state = engine->assistant && !o->without_drafter,
        .account = &session->account,
    };
}

/* What all ways of making a session share; the cache is still missing. */
static kakeya_status session_allocate(kakeya_engine *engine, const kakeya_session_options *options,
                                      kakeya_session **out, kakeya_error *error) {
    kakeya_session *session = calloc(1, sizeof *session);
    if (!session) return error_set(error, KAKEYA_OUT_OF_MEMORY, "session: out of memory");
    session->engine = engine;
    session->options = *options;
    mem_account_init(&session->account, &engine->account, 0);

    const model_config *config = &engine->verifier->config;
    size_t capacity = (size_t)options->context_tokens;
    decode_timeline *t = &session->timeline;
    *t = (decode_timeline){.ops = engine->ops,
                           .model = engine->model,
                           .account = &session->account,
                           .capacity = capacity,
                           .vocab = config->vocab};
    session->workspace.account = &session->account;
    sampler_init(&session->workspace.sampler, config->vocab, config->suppress_tokens, config->n_suppress_tokens, NULL);
    *out = session;
    return KAKEYA_OK;
}

/* The longest drafts are what a drafter was trained for. Experience of earlier sessions needs the turn. */
static void init_control(kakeya_session *session, const draft_experience *experience) {
    const backend_cache_options *o = &session->cache_options;
    const int longest[BACKEND_DRAFTERS] = {
        [BACKEND_BLOCK_DRAFTER] = o->keep_draft_context ? session->engine->drafter->config.block_size - 1 : 0,
        [BACKEND_ASSISTANT] = o->keep_draft_state ? ASSISTANT_LONGEST_DRAFT : 0,
    };
    draft_control_init(&session->workspace.control, NULL, longest, experience);
}

kakeya_status kakeya_session_open(kakeya_engine *engine, const kakeya_session_options *options, kakeya_session **out,
                                  kakeya_error *error) {
    *out = NULL;
    kakeya_session_options resolved;
    kakeya_session *session = NULL;
    kakeya_status status = session_options_read(options, &resolved, error);
    if (status == KAKEYA_OK) status = check_options(engine, &resolved, error);
    if (status == KAKEYA_OK) status = session_allocate(engine, &resolved, &session, error);
    if (status != KAKEYA_OK) return status;

    session->cache_options = cache_options_of(session);
    init_control(session, NULL);
    if (engine->ops->cache_check) status = engine->ops->cache_check(engine->model, &session->cache_options, error);
    if (status != KAKEYA_OK) {
        session_free(session);
        return status;
    }
    *out = session;
    return KAKEYA_OK;
}

void session_drop_parked(kakeya_session *session) { engine_forget_file(session->engine, &session->parked); }

static void count_session(kakeya_session *session) {
    session->begun = true;
    session->engine->sessions++;
    engine_keep_spare(session->engine);
}

void session_begin(kakeya_session *session) {
    if (session->begun) return;
    init_control(session, &session->engine->experience[session->options.attention]);
    count_session(session);
}

/* One that has never begun waits for nobody: a forward may be under way. */
static void end_session(kakeya_session *session) {
    if (!session->begun) return;
    engine_turn_begin(session->engine);
    if (session->timeline.cache) session->engine->ops->cache_destroy(session->timeline.cache);
    session->engine->sessions--;
    engine_keep_spare(session->engine);
    engine_turn_end(session->engine);
}

void session_free(kakeya_session *session) {
    end_session(session);
    session_drop_parked(session);
    decode_workspace_free(&session->workspace);
    decode_timeline_free(&session->timeline);
    free(session);
}

int session_decode_rows(const kakeya_session *session) {
    if (session->options.attention == KAKEYA_ATTENTION_NATIVE) return BACKEND_MAX_DECODE_ROWS;
    int window = session->options.window;
    return window < BACKEND_MAX_DECODE_ROWS ? window : BACKEND_MAX_DECODE_ROWS;
}

kakeya_status session_reset_cache(kakeya_session *session, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    kakeya_engine *engine = session->engine;
    ngram_truncate(&session->workspace.ngram, t->tokens, 0);
    t->n = 0;
    decode_timeline_cut_images(t, 0);
    decode_timeline_drop_logits(t);
    if (t->cache) engine->ops->cache_destroy(t->cache);
    t->cache = NULL;
    session_drop_parked(session);
    session_begin(session);
    return engine->ops->cache_create(engine->model, &session->cache_options, &t->cache, error);
}

/* ------------------------------------------------------------------------------------------------------ prompts */

kakeya_status session_check_tokens(const kakeya_session *session, const int32_t *tokens, size_t n,
                                   kakeya_error *error) {
    if (n && !tokens) return error_set(error, KAKEYA_INVALID_ARGUMENT, "%zu tokens, but the array is NULL", n);
    if (n > session->timeline.capacity)
        return error_set(error, KAKEYA_CONTEXT_FULL, "%zu tokens do not fit into the session's context of %zu", n,
                         session->timeline.capacity);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= session->timeline.vocab)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "token %zu is %d, the vocabulary has ids 0 to %d", i,
                             (int)tokens[i], session->timeline.vocab - 1);
    return KAKEYA_OK;
}

void kakeya_session_clear_cancel(kakeya_session *session) { atomic_store(&session->cancelled, false); }

kakeya_status session_return(kakeya_session *session, kakeya_status status) {
    atomic_store(&session->cancelled, false);
    atomic_store(&session->paused, false);
    return status;
}

const int32_t *kakeya_session_tokens(const kakeya_session *session, size_t *n) {
    *n = session->timeline.n;
    return session->timeline.tokens;
}

/* ------------------------------------------------------------------------------------------------- measurement */

void kakeya_session_kv_bytes_sized(const kakeya_session *session, kakeya_kv_bytes *out) {
    backend_cache_bytes held = {0};
    if (session->timeline.cache) held = session->timeline.ops->cache_bytes(session->timeline.cache);
    kakeya_kv_bytes bytes = {
        .full = mem_bytes(&session->account, MEM_KV_FULL) + held.shared_full,
        .sliding = mem_bytes(&session->account, MEM_KV_SLIDING),
        .latent = mem_bytes(&session->account, MEM_KV_LATENT) + held.shared_latent,
        .draft = mem_bytes(&session->account, MEM_KV_DRAFT),
        .shared = held.shared_full + held.shared_latent,
    };
    timeline t = description_session(&session->engine->description, &session->options, session->timeline.n);
    bytes.total = bytes.full + bytes.sliding + bytes.latent + bytes.draft;
    bytes.each_token = kv_bytes_per_token(&t);
    sized_write(out, &bytes, sizeof bytes);
}

size_t kakeya_session_memory(const kakeya_session *session, kakeya_memory_kind kind) {
    return kakeya_memory_name(kind) ? mem_bytes(&session->account, (mem_tag)kind) : 0;
}

/* -------------------------------------------------------------------------------------------------------- fork */

kakeya_status kakeya_session_fork(const kakeya_session *session, kakeya_session **out, kakeya_error *error) {
    *out = NULL;
    kakeya_session *copy = NULL;
    const decode_timeline *from = &session->timeline;
    if (!from->cache && session->begun)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "fork: %s",
                         session->parked ? "the session is parked"
                                         : "the session lost its memory in an earlier failure, sync it");
    kakeya_status status = session_allocate(session->engine, &session->options, &copy, error);
    if (status != KAKEYA_OK) return status;
    copy->cache_options = session->cache_options;
    copy->cache_options.account = &copy->account;
    copy->workspace.control = session->workspace.control;
    if (!session->begun) {
        *out = copy;
        return KAKEYA_OK;
    }

    decode_timeline *to = &copy->timeline;
    status = decode_timeline_reserve(to, from->n, error);
    for (size_t i = 0; i < from->n_images && status == KAKEYA_OK; i++)
        status = decode_timeline_add_image(to, &from->images[i], error);
    if (status == KAKEYA_OK && from->has_logits) status = decode_timeline_keep_logits(to, error);
    engine_turn_begin(session->engine);
    if (status == KAKEYA_OK) status = to->ops->cache_fork(from->cache, &copy->account, &to->cache, error);
    count_session(copy);
    engine_turn_end(session->engine);
    if (status != KAKEYA_OK) {
        session_free(copy);
        return status;
    }
    if (from->n) { /* an empty timeline may have no arrays */
        memcpy(to->tokens, from->tokens, from->n * sizeof *to->tokens);
        memcpy(to->row_kind, from->row_kind, from->n);
    }
    if (from->has_logits) memcpy(to->logits, from->logits, (size_t)to->vocab * sizeof *to->logits);
    to->n = from->n;
    to->has_logits = from->has_logits;
    *out = copy;
    return KAKEYA_OK;
}
