/* Rules on formats of K/V: what was stored is what the format says, arms differ, answers were judged as they are, and a
 * format that sessions offer is faithful. */
#include <math.h>
#include <string.h>

#include "measure/gate_private.h"
#include "measure/kv_codec.h"

/* Sessions keep K/V in these. */
static const char *const offered[] = {"bf16", "q8", "q4"};

typedef struct stored {
    double vectors, values, bytes;
    int layers;
} stored;

/* Of one position, in all full-attention layers. */
static stored stored_of(const kv_geometry *g, const kv_codec *codec) {
    stored s = {0};
    for (int i = 0; i < g->verifier.layers; i++) {
        const layer_config *l = &g->verifier.layer[i];
        if (l->type != LAYER_FULL || l->kv_source != i) continue;
        double vectors = (double)l->kv_heads * (l->k_eq_v ? 1 : 2);
        s.layers++;
        s.vectors += vectors;
        s.values += vectors * l->head_dim;
        if (kv_codec_takes(codec, l->head_dim)) s.bytes += vectors * (double)kv_codec_bytes(codec, l->head_dim);
    }
    return s;
}

static void check_stored(gate_context *context, size_t i, const kv_codec *codec) {
    const eval_row *row = &context->rows.row[i];
    stored s = stored_of(&context->geometry, codec);
    double positions = (double)(row->prompt_tokens + row->scored_tokens);
    if (fabs((double)row->stored_vectors - positions * s.vectors) > 0 ||
        fabs((double)row->stored_values - positions * s.values) > 0 ||
        fabs((double)row->stored_bytes - positions * s.bytes) > 0)
        gate_violate(
            context, "STORED_BYTES",
            "rows[%zu] (%s, %s): %lld vectors of %lld values in %lld bytes; %.0f positions give %.0f, %.0f and %.0f", i,
            row->sample, row->arm.kv_format, (long long)row->stored_vectors, (long long)row->stored_values,
            (long long)row->stored_bytes, positions, positions * s.vectors, positions * s.values, positions * s.bytes);
    if (row->arm.as_stored) {
        bool answered = row->verifier_forwards == 0 || row->decode_seconds > 0;
        if (!answered || row->decode_seconds > row->seconds)
            gate_violate(context, "TIMING", "rows[%zu] (%s): %lld forwards took %g s of %g s", i, row->sample,
                         (long long)row->verifier_forwards, row->decode_seconds, row->seconds);
        return;
    }
    if (row->layers != s.layers)
        gate_violate(context, "STORED_BYTES",
                     "rows[%zu] (%s): errors of %d layers, the model has %d with full attention", i, row->sample,
                     row->layers, s.layers);
    if (!(row->store_seconds > 0) || !(row->load_seconds > 0) || row->store_seconds + row->load_seconds > row->seconds)
        gate_violate(context, "TIMING", "rows[%zu] (%s): storing took %g s and loading %g s of %g s", i, row->sample,
                     row->store_seconds, row->load_seconds, row->seconds);
}

/* What is stored as it is has no error; whatever else is stored has one. */
static void check_errors(gate_context *context, size_t i) {
    const eval_row *row = &context->rows.row[i];
    bool exact = gate_is_reference(context, row);
    for (int k = 0; k < row->layers; k++) {
        double error = row->layer_error[k], energy = row->layer_energy[k];
        bool possible = energy > 0 && (exact ? error >= 0 && error <= 0 : error > 0);
        if (possible) continue;
        gate_violate(context, "SELF_COMPARISON", "rows[%zu] (%s, %s): layer %d of %d has an error of %g in %g", i,
                     row->sample, row->arm.kv_format, k, row->layers, error, energy);
        return;
    }
}

static void check_answer(gate_context *context, size_t i) {
    const eval_row *row = &context->rows.row[i];
    int visible = 0;
    for (const char *c = row->expected ? row->expected : ""; *c; c++) visible += (unsigned char)*c > ' ';
    if (visible < GATE_MIN_ANSWER)
        gate_violate(context, "EMPTY_EXPECTED",
                     "rows[%zu] (%s): no expected answer of %d characters, so any text would count", i, row->sample,
                     GATE_MIN_ANSWER);
    else if (row->correct != eval_answer_correct(row->text, row->expected))
        gate_violate(context, "RECALL_FLAG", "rows[%zu] (%s): \"correct\" is %s, but the text says otherwise", i,
                     row->sample, row->correct ? "true" : "false");
}

typedef struct outcome {
    double rows, correct, tokens, kl;
} outcome;

static outcome outcome_of(const gate_context *context, const char *format) {
    outcome o = {0};
    for (size_t i = 0; i < context->rows.n; i++) {
        const eval_row *row = &context->rows.row[i];
        if (!gate_measured(row) || strcmp(row->arm.kv_format, format) != 0) continue;
        o.rows++;
        o.correct += eval_answer_correct(row->text, row->expected);
        o.tokens += (double)row->scored_tokens;
        o.kl += row->kl;
    }
    return o;
}

static void check_offered(gate_context *context, const char *format, const char *reference) {
    outcome exact = outcome_of(context, reference), own = outcome_of(context, format);
    if (own.rows <= 0 || exact.rows <= 0) return;
    if (own.kl > GATE_KV_DIVERGENCE * own.tokens)
        gate_violate(context, "KV_FORMAT_UNFAITHFUL", "%s: mean divergence %.6f, at most %.3f is needed", format,
                     own.kl / own.tokens, GATE_KV_DIVERGENCE);
    if (own.correct / own.rows < exact.correct / exact.rows - GATE_RECALL_TOLERANCE - 1e-9)
        gate_violate(context, "RECALL", "%s: recall %.3f, that of %s is %.3f", format, own.correct / own.rows,
                     reference, exact.correct / exact.rows);
}

/* CUDA and MLX do not pack and unpack beside a session. What is measured through a backend's own sessions is said, with
 * what that leaves out. */
static void check_backend(gate_context *context, bool as_stored) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(context->environment, "backend");
    const char *backend = cJSON_IsString(item) ? item->valuestring : "cpu";
    bool stores = strncmp(backend, "cuda", 4) == 0 || strncmp(backend, "mlx", 3) == 0;
    if (!as_stored && stores)
        gate_violate(context, "ENVIRONMENT", "backend %.40s does not pack and unpack K/V beside its sessions", backend);
    if (as_stored)
        gate_note(context,
                  "K/V as sessions of backend %.40s keep them, relative to bf16: no errors by layer, no float32, no "
                  "format that sessions do not keep",
                  backend);
}

void gate_rule_kv_formats(gate_context *context) {
    bool as_stored = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(context->options, "as_stored"));
    const char *reference = eval_reference_format(as_stored);
    check_backend(context, as_stored);
    for (size_t i = 0; i < context->rows.n; i++) {
        const kv_codec *codec = kv_codec_find(context->rows.row[i].arm.kv_format);
        if (context->has_geometry && codec) check_stored(context, i, codec);
        if (!context->rows.row[i].arm.as_stored) check_errors(context, i);
        check_answer(context, i);
    }
    outcome exact = outcome_of(context, reference);
    if (exact.rows > 0 && exact.correct <= 0)
        gate_violate(context, "RECALL_UNPROVEN", "%s finds no needle, so recall shows nothing", reference);
    for (size_t i = 0; i < sizeof offered / sizeof offered[0]; i++) check_offered(context, offered[i], reference);
}
