/* kakeya_session_generate, and the slow references that the evaluation holds it to. */
#include <math.h>
#include <string.h>

#include "base/sized.h"
#include "session/answer.h"
#include "session/scheduler.h"

/* Drafts from a drafter context that was rebuilt by recomputing the timeline up to the bonus token. */
static kakeya_status draft_unfused(void *user, int32_t bonus, int n, int32_t *drafts, kakeya_error *error) {
    kakeya_session *session = user;
    const decode_timeline *t = &session->timeline;
    backend_cache *cache = NULL;
    kakeya_status status = session_replay(session, t->tokens, t->n - 1, NULL, &cache, error);
    if (status != KAKEYA_OK) return status;
    engine_turn_begin(session->engine);
    status = backend_draft_by(t->ops, t->model, engine_drafter(session->engine), cache, bonus, n, drafts, error);
    t->ops->cache_destroy(cache);
    engine_turn_end(session->engine);
    return status;
}

/* Every token from the logits of a fresh cache that recomputes the whole timeline. */
static kakeya_status generate_by_reforward(kakeya_session *session, answer_work *answer, kakeya_error *error) {
    decode_timeline *t = &session->timeline;
    const decode_options *o = &answer->decode;
    decode_output *output = &answer->output;
    kakeya_stats *stats = &answer->counted;
    output_verdict verdict = OUTPUT_TAKEN;
    kakeya_status status = KAKEYA_OK;
    for (size_t done = 1; status == KAKEYA_OK && verdict == OUTPUT_TAKEN; done++) {
        backend_cache *cache = NULL;
        output_token next = {.token = -1, .position = t->n, .log_probabilities.chosen = (double)NAN};
        if (atomic_load(&session->cancelled)) {
            status = output_cut(output, KAKEYA_FINISH_CANCELLED, error);
            break;
        }
        status = decode_timeline_reserve(t, t->n + 1, error);
        if (status == KAKEYA_OK) status = decode_timeline_keep_logits(t, error);
        if (status == KAKEYA_OK) status = session_replay(session, t->tokens, t->n, t->logits, &cache, error);
        if (status != KAKEYA_OK) break;
        t->has_logits = true;
        status = sampler_sample(&session->workspace.sampler, t->logits, t->tokens, t->n, &next.token, error);
        if (status == KAKEYA_OK && o->log_probabilities)
            log_probabilities_of_row(t->logits, t->vocab, next.token, o->top_log_probabilities,
                                     &next.log_probabilities);
        if (status == KAKEYA_OK) status = output_take(output, &next, done == o->max_tokens, &verdict, error);
        bool taken = status == KAKEYA_OK && verdict != OUTPUT_REFUSED;
        /* the recomputed memory becomes the timeline's: it holds all tokens but the new one */
        size_t held = taken ? (size_t)t->ops->cache_length(t->cache) : t->n;
        engine_turn_begin(session->engine);
        t->ops->cache_destroy(taken ? t->cache : cache);
        engine_turn_end(session->engine);
        if (!taken) {
            t->has_logits = held == (size_t)t->ops->cache_length(t->cache);
            break;
        }
        t->cache = cache;
        if (held < t->n) memset(t->row_kind + held, ROW_DECODE, t->n - held);
        t->tokens[t->n++] = next.token;
        t->has_logits = false;
        stats->verifier_forwards++;
        stats->completion_tokens++;
    }
    stats->finish = output->finish;
    return status;
}

static kakeya_status reforward(kakeya_session *session, answer_work *answer, kakeya_error *error) {
    decode_buffers buffers;
    decode_buffers_init(&buffers, session->timeline.vocab, &session->account);
    kakeya_status status = answer_open(session, answer, &buffers, error);
    if (status == KAKEYA_OK) status = generate_by_reforward(session, answer, error);
    status = answer_close(session, answer, status, error);
    decode_buffers_free(&buffers);
    return status;
}

kakeya_status session_generate(kakeya_session *session, const kakeya_generate_options *options,
                               const session_trace *trace, kakeya_stats *stats, kakeya_error *error) {
    kakeya_error own = {0}; /* for the last event, also where the caller wants none */
    if (!error) error = &own;
    kakeya_request request = {.session = session, .answers = true};
    answer_work *answer = &request.answer;
    if (trace) answer->trace = *trace;
    kakeya_status status = answer_prepare(session, options, answer, error);
    if (status == KAKEYA_OK && answer->trace.reference == SESSION_UNFUSED) {
        answer->decode.draft = draft_unfused;
        answer->decode.draft_user = session;
    }
    if (status == KAKEYA_OK)
        status = answer->trace.reference == SESSION_REFORWARD ? reforward(session, answer, error)
                                                              : scheduler_run(&request, error);
    if (stats) *stats = answer->counted;
    return session_return(session, status);
}

kakeya_status kakeya_session_generate(kakeya_session *session, const kakeya_generate_options *options,
                                      kakeya_stats *stats, kakeya_error *error) {
    kakeya_stats counted = {0};
    kakeya_status status = stats ? sized_check("stats", stats, error) : KAKEYA_OK;
    if (status != KAKEYA_OK) return status;
    status = session_generate(session, options, NULL, &counted, error);
    if (stats) sized_write(stats, &counted, sizeof counted);
    return status;
}
