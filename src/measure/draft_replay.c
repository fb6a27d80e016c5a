#include <stdlib.h>
#include <string.h>

#include "decode/speculate.h"
#include "measure/draft_study.h"

/* ----------------------------------------------------------------------------- a backend that plays a recording back
 */

struct backend_model {
    const draft_trace *trace;
    double seconds; /* the clock */
    int verify_used[BACKEND_MAX_DECODE_ROWS + 1], draft_used[BACKEND_MAX_DRAFT + 1];
    bool strayed; /* the loop asked for rows that are not the recorded text */
};

struct backend_cache {
    backend_model *model;
    int length, pending;
};

/* Measured times in their order, round and round. */
static double next_seconds(const trace_cost *cost, int *used) { return (double)cost->seconds[(*used)++ % cost->n]; }

static int recorded_length(const backend_cache *c) { return c->length; }

/* Greedy choices behind the rows: the recorded text, as long as the rows are that text. */
static kakeya_status recorded_forward(backend_model *m, backend_segment *segments, int n_segments,
                                      kakeya_error *error) {
    (void)n_segments, (void)error;
    const draft_trace *t = m->trace;
    backend_segment *s = &segments[0];
    int at = s->cache->length;
    if (s->tokens[0] != t->tokens[at]) m->strayed = true;
    for (int i = 0; i < s->n; i++) s->argmax[i] = at + i + 1 < t->n ? t->tokens[at + i + 1] : 0;
    m->seconds += next_seconds(&t->verify[s->n], &m->verify_used[s->n]);
    s->cache->pending = s->n;
    return KAKEYA_OK;
}

static kakeya_status recorded_commit(backend_cache *c, int n, kakeya_error *error) {
    (void)error;
    c->length += n;
    c->pending = 0;
    return KAKEYA_OK;
}

static kakeya_status recorded_draft(backend_model *m, backend_draft_request *requests, int n_requests,
                                    kakeya_error *error) {
    (void)n_requests, (void)error;
    const backend_draft_request *r = &requests[0];
    memcpy(r->drafts, draft_trace_drafts(m->trace, r->cache->length + 1, r->n), (size_t)r->n * sizeof *r->drafts);
    m->seconds += next_seconds(&m->trace->draft[r->n], &m->draft_used[r->n]);
    return KAKEYA_OK;
}

static const backend_ops recorded_ops = {
    .name = "recorded",
    .finds_argmax = true,
    .cache_length = recorded_length,
    .forward = recorded_forward,
    .cache_commit = recorded_commit,
    .draft = recorded_draft,
};

static double recorded_seconds(void *user) { return ((const backend_model *)user)->seconds; }

/* --------------------------------------------------------------------------------------------------------- replay */

static int vocabulary_of(const draft_traces *traces) {
    int32_t most = 0;
    for (int i = 0; i < traces->n; i++) {
        const draft_trace *t = &traces->trace[i];
        int drafts = (t->n - t->prompt_tokens) * t->max_drafts * t->max_drafts;
        for (int j = 0; j < t->n; j++) most = t->tokens[j] > most ? t->tokens[j] : most;
        for (int j = 0; j < drafts; j++) most = t->drafts[j] > most ? t->drafts[j] : most;
    }
    return (int)most + 1;
}

static bool takes_part(const draft_trace *t, const char *workload, const char *attention) {
    return (!workload || strcmp(workload, t->workload) == 0) && (!attention || strcmp(attention, t->policy) == 0);
}

static kakeya_status replay_text(const draft_trace *trace, int vocab, const decode_options *wanted,
                                 const draft_policy *policy, draft_experience *experience, draft_control *going_on,
                                 draft_replay_result *out, kakeya_error *error) {
    mem_account account;
    mem_account_init(&account, NULL, 0);
    backend_model model = {.trace = trace};
    backend_cache cache = {.model = &model, .length = trace->prompt_tokens};
    size_t capacity = (size_t)trace->n + BACKEND_MAX_DECODE_ROWS;
    decode_timeline t = {
        .ops = &recorded_ops,
        .model = &model,
        .cache = &cache,
        .account = &account,
        .tokens = mem_alloc(&account, MEM_WORKSPACE, capacity * sizeof *t.tokens),
        .row_kind = mem_alloc(&account, MEM_WORKSPACE, capacity),
        .n = (size_t)trace->prompt_tokens +
             1, /* the first token is chosen from the prompt's logits, whatever the policy */
        .capacity = capacity,
        .allocated = capacity,
        .vocab = vocab,
    };
    decode_workspace w = {.account = &account};
    decode_buffers buffers;
    decode_buffers_init(&buffers, vocab, &account);
    decode_options options = *wanted;
    options.max_tokens = (size_t)(trace->n - trace->prompt_tokens - 1);
    options.seconds = recorded_seconds;
    options.seconds_user = &model;
    decode_output output = {0};
    output_begin(&output);
    kakeya_sampling greedy = {.top_p = 1, .repetition_penalty = 1};
    kakeya_stats stats = {0};
    kakeya_status status = KAKEYA_OK;
    if (!t.tokens || !t.row_kind) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a replay");
    sampler_init(&w.sampler, vocab, NULL, 0, &buffers.sampling);
    draft_control_init(&w.control, policy, (const int[BACKEND_DRAFTERS]){[BACKEND_BLOCK_DRAFTER] = trace->max_drafts},
                       experience);
    if (going_on && going_on->policy) w.control = *going_on;
    if (!status) memcpy(t.tokens, trace->tokens, t.n * sizeof *t.tokens);
    if (!status) status = sampler_configure(&w.sampler, &greedy, NULL, error);
    if (!status && options.max_tokens) status = decode_run(&t, &w, &buffers, &options, &output, &stats, error);
    if (!status && (model.strayed || memcmp(t.tokens, trace->tokens, (size_t)trace->n * sizeof *t.tokens) != 0)) {
        status = error_set(error, KAKEYA_BACKEND, "the replay of '%s' gave another text", trace->name);
    }
    if (!status && options.mode == KAKEYA_MODE_AUTO) draft_control_share(&w.control, experience);
    if (going_on) *going_on = w.control;
    out->seconds += model.seconds;
    out->tokens += (int64_t)stats.completion_tokens;
    out->forwards += (int64_t)stats.verifier_forwards;
    decode_workspace_free(&w);
    decode_buffers_free(&buffers);
    decode_timeline_free(&t);
    return status;
}

/* The traces that take part, those of different kinds mixed: steps of about a golden ratio visit all kinds in turns. */
static int order_of(const draft_traces *traces, const char *workload, const char *attention, int *order) {
    int n = 0, step = 1;
    int *found = order + traces->n;
    for (int i = 0; i < traces->n; i++)
        if (takes_part(&traces->trace[i], workload, attention)) found[n++] = i;
    for (int candidate = 1; candidate < n; candidate++) {
        int a = candidate, b = n;
        while (b) {
            int rest = a % b;
            a = b;
            b = rest;
        }
        if (a == 1 && abs(candidate * 1000 - n * 618) < abs(step * 1000 - n * 618)) step = candidate;
    }
    for (int i = 0; i < n; i++) order[i] = found[(int)((int64_t)i * step % n)];
    return n;
}

kakeya_status draft_replay(const draft_traces *traces, bool one_text, const char *workload, const char *attention,
                           kakeya_mode mode, int draft_length, const draft_policy *policy, draft_replay_result *out,
                           kakeya_error *error) {
    *out = (draft_replay_result){0};
    int vocab = vocabulary_of(traces);
    decode_options options = {.mode = mode, .draft_length = draft_length, .max_rows = BACKEND_MAX_DECODE_ROWS};
    int *order = malloc(2 * (size_t)traces->n * sizeof *order);
    if (!order) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a replay");
    kakeya_status status = KAKEYA_OK;
    int n = order_of(traces, workload, attention, order);
    for (int first = 0; first < n && !status; first++) {
        draft_experience experience = {0};
        draft_control control = {0};
        for (int i = 0; i < n && !status; i++)
            status = replay_text(&traces->trace[order[(first + i) % n]], vocab, &options, policy, &experience,
                                 one_text ? &control : NULL, out, error);
    }
    free(order);
    return status;
}
