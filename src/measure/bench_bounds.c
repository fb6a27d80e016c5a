/* The work that one call cannot avoid: bytes that must be read, operations that must be done. */
#include <math.h>

#include "backend/kv_bytes.h"
#include "kakeya_study.h"
#include "measure/bench.h"
#include "model/sizes.h"

/* What greedy decoding reads of the head. */
static double head_bytes(const kakeya_engine *engine) {
    const backend_measure_ops *measure = backend_measure_find(engine->ops);
    return measure && measure->greedy_head_bytes ? (double)measure->greedy_head_bytes(engine->model)
                                                 : (double)weight_bytes(&engine->verifier->weights.head);
}

static double weight_elements(const weight *w) { return (double)w->out * (double)w->in; }

/* Distinct experts that `rows` rows choose on average when every choice is equally likely. */
static double expected_experts(const model_config *c, int rows) {
    double n = c->experts, k = c->experts_per_token;
    return n * (1 - pow(1 - k / n, rows));
}

enum { SHARED_MATRICES = 10 };

/* The matrices of a layer that every row passes. */
static void shared_matrices(const layer_weights *l, const weight *out[SHARED_MATRICES]) {
    const weight *const all[SHARED_MATRICES] = {&l->q_proj,    &l->k_proj,  &l->v_proj,    &l->o_proj,
                                                &l->gate_proj, &l->up_proj, &l->down_proj, &l->router_proj,
                                                &l->ple_gate,  &l->ple_proj};
    for (int i = 0; i < SHARED_MATRICES; i++) out[i] = all[i];
}

static int min_int(int a, int b) { return a < b ? a : b; }

/* The timeline of a session whose last row, a decoded one, has `context` positions. */
static timeline timeline_at(const kakeya_engine *engine, const kakeya_session_options *session, int context) {
    const timeline_models models = engine_models(engine);
    const backend_cache_options options = {
        .attention = session->attention,
        .restore_layers = session->restore_layers,
        .sink = kakeya_options_sink(session),
        .window = kakeya_options_window(session),
        .draft_window = kakeya_options_draft_window(session),
        .kv_format = backend_kv_format(session->kv_format),
        .keep_draft_context = true,
        .keep_draft_state = true,
    };
    return timeline_preview(&models, &options, context);
}

/* Of a forward of `rows` rows, K/V aside. */
static double weight_bytes_read(const kakeya_engine *engine, int rows) {
    const model_config *c = &engine->verifier->config;
    const model_weights *w = &engine->verifier->weights;
    double bytes = head_bytes(engine) + (double)weight_bytes(&w->ple_model_proj);
    double experts = c->moe ? expected_experts(c, rows) / c->experts : 0;
    for (int i = 0; i < c->layers; i++) {
        const layer_weights *l = &w->layer[i];
        const weight *shared[SHARED_MATRICES];
        shared_matrices(l, shared);
        for (int m = 0; m < SHARED_MATRICES; m++) bytes += (double)weight_bytes(shared[m]);
        bytes += experts * ((double)weight_bytes(&l->experts_gate_up) + (double)weight_bytes(&l->experts_gate) +
                            (double)weight_bytes(&l->experts_up) + (double)weight_bytes(&l->experts_down));
    }
    return bytes;
}

/* Of one cache whose last row has `context` positions. */
static double kv_bytes_read(const kakeya_engine *engine, const kakeya_session_options *session, int context) {
    timeline t = timeline_at(engine, session, context);
    double bytes = 0;
    for (int i = 0; i < engine->verifier->config.layers; i++) bytes += (double)kv_read_bytes(&t, i);
    return bytes;
}

double bench_forward_bytes(const kakeya_engine *engine, const kakeya_session_options *session, int context, int rows) {
    return weight_bytes_read(engine, rows) + kv_bytes_read(engine, session, context);
}

double bench_together_bytes(const kakeya_engine *engine, const kakeya_session_options *session, int context,
                            int sessions, int prompt_rows) {
    return weight_bytes_read(engine, sessions + prompt_rows) + sessions * kv_bytes_read(engine, session, context);
}

double bench_forward_operations(const kakeya_engine *engine, int context, int rows, int logit_rows) {
    const model_config *c = &engine->verifier->config;
    const model_weights *w = &engine->verifier->weights;
    double per_row = weight_elements(&w->ple_model_proj), attended = 0;
    double chosen = c->moe ? (double)c->experts_per_token / c->experts : 0;
    double mean_context = context + (rows + 1) / 2.0;
    for (int i = 0; i < c->layers; i++) {
        const layer_weights *l = &w->layer[i];
        const weight *shared[SHARED_MATRICES];
        shared_matrices(l, shared);
        for (int m = 0; m < SHARED_MATRICES; m++) per_row += weight_elements(shared[m]);
        per_row += chosen * (weight_elements(&l->experts_gate_up) + weight_elements(&l->experts_gate) +
                             weight_elements(&l->experts_up) + weight_elements(&l->experts_down));
        double visible = mean_context;
        if (c->layer[i].type == LAYER_SLIDING && visible > c->sliding_window) visible = c->sliding_window;
        attended += 2 * (double)c->heads * c->layer[i].head_dim * visible; /* queries by keys, weights by values */
    }
    return 2 * (rows * (per_row + attended) + logit_rows * weight_elements(&w->head));
}

enum { DRAFT_MATRICES = 7 };

static void draft_matrices(const block_drafter_layer_weights *l, const weight *out[DRAFT_MATRICES]) {
    const weight *const all[DRAFT_MATRICES] = {&l->q_proj,    &l->k_proj,  &l->v_proj,   &l->o_proj,
                                               &l->gate_proj, &l->up_proj, &l->down_proj};
    for (int i = 0; i < DRAFT_MATRICES; i++) out[i] = all[i];
}

/* Positions of context K/V that a drafter layer attends. */
static int draft_context(const block_drafter_config *c, const kakeya_session_options *session, int layer, int context) {
    int own = c->sliding_window[layer];
    return min_int(context,
                   own ? min_int(own, kakeya_options_draft_window(session)) : kakeya_options_draft_window(session));
}

/* Weights that one draft of the assistant reads. */
static double assistant_bytes(const kakeya_engine *engine) {
    const assistant_model *a = engine->assistant;
    const backend_measure_ops *measure = backend_measure_find(engine->ops);
    double bytes = (double)assistant_draft_bytes(a);
    if (a->config.clusters || !measure || !measure->assistant_head_bytes) return bytes;
    return bytes - (double)weight_bytes(&a->weights.stack.head) + (double)measure->assistant_head_bytes(engine->model);
}

double bench_draft_bytes(const kakeya_engine *engine, const kakeya_session_options *session, int context) {
    const block_drafter_model *d = engine->drafter;
    timeline t = timeline_at(engine, session, context);
    if (!d) /* one draft after the other */
        return ASSISTANT_LONGEST_DRAFT * (assistant_bytes(engine) + (double)kv_assistant_read_bytes(&t));
    double bytes = head_bytes(engine) + (double)kv_draft_read_bytes(&t);
    for (int i = 0; i < d->config.layers; i++) {
        const weight *matrices[DRAFT_MATRICES];
        draft_matrices(&d->layer[i], matrices);
        for (int m = 0; m < DRAFT_MATRICES; m++) bytes += (double)weight_bytes(matrices[m]);
    }
    return bytes;
}

static double assistant_operations(const kakeya_engine *engine, const kakeya_session_options *session, int context) {
    const assistant_config *c = &engine->assistant->config;
    timeline t = timeline_at(engine, session, context);
    double each = (double)assistant_draft_parameters(c);
    for (int i = 0; i < c->stack.layers; i++) {
        timeline_view view =
            timeline_assistant_sees(&t, assistant_source(&engine->verifier->config, c->stack.layer[i].type));
        double visible = view.exact.end - view.exact.begin;
        each += 2 * (double)c->stack.heads * c->stack.layer[i].head_dim * visible;
    }
    return 2 * each;
}

double bench_draft_operations(const kakeya_engine *engine, const kakeya_session_options *session, int context,
                              int drafts) {
    const block_drafter_model *d = engine->drafter;
    if (!d) return drafts * assistant_operations(engine, session, context);
    double per_row = 0, rows = drafts + 1; /* the bonus token and a mask for each draft */
    for (int i = 0; i < d->config.layers; i++) {
        const weight *matrices[DRAFT_MATRICES];
        draft_matrices(&d->layer[i], matrices);
        for (int m = 0; m < DRAFT_MATRICES; m++) per_row += weight_elements(matrices[m]);
        double visible = draft_context(&d->config, session, i, context) + rows;
        per_row += 2 * (double)d->config.heads * d->config.head_dim * visible;
    }
    return 2 * (rows * per_row + drafts * weight_elements(&engine->verifier->weights.head));
}

double bench_kernel_bound(const bench_result *result, const backend_profile_row *row) {
    double by_bytes = row->bytes / result->read_bytes_per_second.median;
    double by_operations = row->operations / result->flops_per_second.median;
    return by_bytes > by_operations ? by_bytes : by_operations;
}
