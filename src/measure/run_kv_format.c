/* Formats of K/V side by side. Sessions keep float32; what a format makes of every vector of full-attention layers
 * takes the vector's place before anybody attends it (backend/measure.h, recode). So arms differ in the format alone,
 * and a format is compared before there are kernels for it. Or as stored: sessions keep the formats that the backend's
 * kernels attend, and bf16 is what the others are compared with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/measure.h"
#include "base/clock.h"
#include "kakeya_study.h"
#include "measure/harness.h"
#include "measure/kv_codec.h"
#include "measure/niah.h"
#include "session/divergence.h"

typedef struct needle {
    int32_t *ids;
    size_t n;
} needle;

/* What the vectors of one arm came to. */
typedef struct recoder {
    const kv_codec *codec;
    int64_t vectors, values, bytes;
    double store_seconds, load_seconds;
    double error[MODEL_MAX_LAYERS], energy[MODEL_MAX_LAYERS]; /* by layer of the model */
} recoder;

typedef struct kv_format_run {
    eval_harness harness;
    eval_setup setup; /* the caller's, with sessions that keep float32 */
    const eval_options *options;
    const kv_codec *codec[KV_CODECS]; /* identity first */
    size_t n_codecs;
    bool as_stored;
    eval_sequences sequences;
    niah_dataset drawn;
    needle *needles;       /* [sequences] */
    float *nll;            /* [length - 1] */
    float *exact, *logits; /* [length][vocab]: of identity, of the arm in work */
    size_t length;
} kv_format_run;

/* ---------------------------------------------------------------------------------------------------- vectors */

static void recode(void *user, int layer, float *x, int n) {
    recoder *r = user;
    float back[KV_CODEC_MAX_VALUES];
    unsigned char stored[KV_CODEC_MAX_VALUES * sizeof(float)];
    double start = clock_seconds();
    kv_codec_store(r->codec, x, n, stored);
    double middle = clock_seconds();
    kv_codec_load(r->codec, stored, n, back);
    r->load_seconds += clock_seconds() - middle;
    r->store_seconds += middle - start;
    r->vectors++;
    r->values += n;
    r->bytes += (int64_t)kv_codec_bytes(r->codec, n);
    for (int i = 0; i < n; i++) {
        double own = (double)x[i], difference = (double)back[i] - own;
        r->error[layer] += difference * difference;
        r->energy[layer] += own * own;
    }
    memcpy(x, back, (size_t)n * sizeof *x);
}

static void set_recoding(const kv_format_run *run, const backend_recoding *recoding) {
    kakeya_engine *engine = run->harness.engine;
    if (run->as_stored) return;
    engine_turn_begin(engine);
    backend_measure_find(engine->ops)->recode(engine->model, recoding);
    engine_turn_end(engine);
}

static bool is_recoded(const model_config *config, int layer) {
    return config->layer[layer].type == LAYER_FULL && config->layer[layer].kv_source == layer;
}

/* ------------------------------------------------------------------------------------------------------- arms */

/* What sessions keep K/V in under this name; AUTO: nothing but float32, or nothing at all. */
static kakeya_kv_format kept_in(const char *name) {
    kakeya_kv_format format = KAKEYA_KV_BF16;
    while (format <= KAKEYA_KV_Q4 && strcmp(kakeya_kv_format_name(format), name) != 0) format++;
    return format <= KAKEYA_KV_Q4 ? format : KAKEYA_KV_AUTO;
}

static kakeya_status choose_codecs(kv_format_run *run, kakeya_error *error) {
    const eval_options *o = run->options;
    const model_config *config = &run->harness.engine->verifier->config;
    const backend_measure_ops *measure = backend_measure_find(run->harness.engine->ops);
    run->as_stored = o->as_stored || !measure || !measure->recode;
    run->setup.session.kv_format = run->as_stored ? KAKEYA_KV_AUTO : KAKEYA_KV_F32;
    run->codec[run->n_codecs++] = kv_codec_find(eval_reference_format(run->as_stored));
    for (size_t i = 0; i < (o->n_formats ? o->n_formats : KV_CODECS); i++) {
        const kv_codec *codec = o->n_formats ? kv_codec_find(o->formats[i]) : kv_codec_at((int)i);
        if (!codec) return error_set(error, KAKEYA_INVALID_ARGUMENT, "formats: unknown format '%s'", o->formats[i]);
        if (codec == run->codec[0]) continue;
        if (run->as_stored && kept_in(kv_codec_name(codec)) == KAKEYA_KV_AUTO) {
            if (!o->n_formats) continue;
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "formats: sessions of backend %s store bf16, q8 and q4; %s needs backend cpu, without "
                             "--as-stored",
                             run->harness.engine->ops->name, o->formats[i]);
        }
        for (size_t k = 1; k < run->n_codecs; k++)
            if (run->codec[k] == codec)
                return error_set(error, KAKEYA_INVALID_ARGUMENT, "formats: %s is named twice", kv_codec_name(codec));
        run->codec[run->n_codecs++] = codec;
    }
    for (size_t k = 0; k < run->n_codecs; k++) {
        for (int i = 0; i < config->layers; i++) {
            if (is_recoded(config, i) && !kv_codec_takes(run->codec[k], config->layer[i].head_dim))
                return error_set(error, KAKEYA_UNSUPPORTED, "format %s does not take heads of %d values (layer %d)",
                                 kv_codec_name(run->codec[k]), config->layer[i].head_dim, i);
        }
    }
    return KAKEYA_OK;
}

/* Stretches of the texts, one after the other, as many as are wanted. */
static kakeya_status cut_texts(kv_format_run *run, kakeya_error *error) {
    const eval_options *o = run->options;
    size_t wanted = (size_t)o->sequences;
    run->length = (size_t)o->prompt_length + (size_t)o->score_tokens;
    run->sequences.sequence = calloc(wanted, sizeof *run->sequences.sequence);
    if (!run->sequences.sequence) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for sequences");
    kakeya_status status = KAKEYA_OK;
    for (size_t t = 0; status == KAKEYA_OK && t < o->n_files && run->sequences.n < wanted; t++) {
        eval_sequence text;
        status = harness_read_text(&run->harness, o->files[t], &text, error);
        for (size_t at = 0; status == KAKEYA_OK && at + run->length <= text.n && run->sequences.n < wanted;
             at += run->length) {
            eval_sequence *s = &run->sequences.sequence[run->sequences.n];
            *s = (eval_sequence){.ids = malloc(run->length * sizeof *s->ids), .n = run->length};
            if (!s->ids) {
                status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for sequences");
                break;
            }
            memcpy(s->ids, text.ids + at, run->length * sizeof *s->ids);
            snprintf(s->name, sizeof s->name, "%zu/%.40s", run->sequences.n++, text.name);
            harness_prompt prompt = {.sample = s->name, .ids = s->ids, .n = s->n};
            status = harness_take_prompt(&run->harness, &prompt, error);
        }
        free(text.ids);
    }
    if (status == KAKEYA_OK && run->sequences.n < wanted)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "the texts have only %zu sequences of %d + %d tokens, not %zu: give more text, or use "
                           "fewer --sequences",
                           run->sequences.n, o->prompt_length, o->score_tokens, wanted);
    return status;
}

static kakeya_status make_needles(kv_format_run *run, kakeya_error *error) {
    const eval_options *o = run->options;
    kakeya_status status = niah_rung(o->haystack_lines, o->sequences, o->seed, false, &run->drawn, error);
    run->needles = calloc((size_t)o->sequences, sizeof *run->needles);
    if (status == KAKEYA_OK && !run->needles) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for prompts");
    for (size_t i = 0; status == KAKEYA_OK && i < run->drawn.n; i++) {
        kakeya_message message = {"user", run->drawn.samples[i].prompt};
        status = kakeya_message_tokens(kakeya_engine_tokenizer(run->harness.engine), &message, 1, false,
                                       &run->needles[i].ids, &run->needles[i].n, error);
    }
    return status;
}

static cJSON *options_json(const kv_format_run *run) {
    eval_options o = *run->options;
    const char *names[KV_CODECS];
    for (size_t i = 0; i < run->n_codecs; i++) names[i] = kv_codec_name(run->codec[i]);
    o.formats = names;
    o.n_formats = run->n_codecs;
    o.as_stored = run->as_stored;
    cJSON *object = harness_options(&run->harness, EVAL_KV_FORMAT, &o);
    if (!object) return NULL;
    cJSON_AddItemToObject(object, "samples", harness_sequence_names(&run->sequences));
    return object;
}

/* -------------------------------------------------------------------------------------------------------- runs */

static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    return harness_wants_on(user);
}

static bool on_event(void *user, const kakeya_event *event) {
    (void)event;
    return harness_wants_on(user);
}

/* Logits of the whole sequence, as decode rows behind its prompt. */
static kakeya_status score(kv_format_run *run, const eval_sequence *s, const eval_arm *arm, float *logits,
                           eval_row *row, kakeya_error *error) {
    kakeya_session *session = NULL;
    kakeya_session_options options = harness_session_options(&run->harness, arm, s->n);
    if (arm->as_stored) options.kv_format = kept_in(arm->kv_format);
    kakeya_score_options scoring;
    KAKEYA_INIT(&scoring);
    scoring.prompt_length = (size_t)run->options->prompt_length;
    scoring.nll = run->nll;
    scoring.logits = logits;
    scoring.progress = on_progress;
    scoring.user = &run->harness;
    kakeya_status status = kakeya_session_open(run->harness.engine, &options, &session, error);
    if (status == KAKEYA_OK) status = session_score(session, s->ids, s->n, &scoring, &row->kv, error);
    kakeya_session_close(session);
    return status;
}

/* The answer to a needle prompt, greedily, one token at a time. */
static kakeya_status answer(kv_format_run *run, const needle *prompt, const eval_arm *arm, eval_row *row,
                            kakeya_error *error) {
    kakeya_session *session = NULL;
    kakeya_session_options options =
        harness_session_options(&run->harness, arm, prompt->n + (size_t)run->options->max_tokens);
    options.without_drafter = true;
    if (arm->as_stored) options.kv_format = kept_in(arm->kv_format);
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.max_tokens = run->options->max_tokens;
    generate.mode = KAKEYA_MODE_AR;
    generate.sampling.temperature = 0;
    generate.on_event = on_event;
    generate.user = &run->harness;
    kakeya_stats stats = {0};
    kakeya_status status = kakeya_session_open(run->harness.engine, &options, &session, error);
    if (status == KAKEYA_OK)
        status = kakeya_session_sync(session, prompt->ids, prompt->n, NULL, on_progress, &run->harness, error);
    if (status == KAKEYA_OK) status = session_generate(session, &generate, NULL, &stats, error);
    if (status == KAKEYA_OK && stats.finish == KAKEYA_FINISH_CANCELLED)
        status = error_set(error, KAKEYA_CANCELLED, "interrupted");
    row->verifier_forwards = (int64_t)stats.verifier_forwards;
    row->decode_seconds = stats.decode_seconds;
    size_t n = 0, bytes;
    const int32_t *tokens = session ? kakeya_session_tokens(session, &n) : NULL;
    char *text = NULL;
    if (status == KAKEYA_OK)
        status = kakeya_detokenize(kakeya_engine_tokenizer(run->harness.engine), tokens + prompt->n, n - prompt->n,
                                   false, &text, &bytes, error);
    kakeya_session_close(session);
    if (status != KAKEYA_OK) return status;
    row->text = strdup(text);
    kakeya_free(text);
    if (!row->text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a report row");
    row->correct = eval_answer_correct(row->text, row->expected);
    return KAKEYA_OK;
}

static kakeya_status fill_scores(const kv_format_run *run, const eval_sequence *s, const float *logits, eval_row *row,
                                 kakeya_error *error) {
    size_t vocab = (size_t)kakeya_engine_vocab_size(run->harness.engine), scored = (size_t)run->options->score_tokens;
    row->token_ids = calloc(scored, sizeof *row->token_ids);
    row->token_nll = calloc(scored, sizeof *row->token_nll);
    row->token_kl = calloc(scored, sizeof *row->token_kl);
    if (!row->token_ids || !row->token_nll || !row->token_kl)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a report row");
    for (size_t t = (size_t)run->options->prompt_length - 1; t + 1 < s->n; t++) {
        bool agree;
        int top = 0;
        size_t i = row->n_token_ids++;
        row->token_nll[i] = (double)run->nll[t];
        row->token_kl[i] = logits_divergence(run->exact + t * vocab, logits + t * vocab, (int)vocab, &top, &agree);
        row->token_ids[i] = top;
        row->nll += row->token_nll[i];
        row->kl += row->token_kl[i];
        row->agreements += agree;
        row->scored_tokens++;
    }
    return KAKEYA_OK;
}

/* As stored: of every position, by the format's layout. What a session holds, pages included, are its kv_bytes. */
static void count_stored(const kv_format_run *run, const kv_codec *codec, size_t positions, eval_row *row) {
    const model_config *config = &run->harness.engine->verifier->config;
    for (int i = 0; i < config->layers; i++) {
        const layer_config *l = &config->layer[i];
        if (!is_recoded(config, i)) continue;
        int64_t vectors = (int64_t)positions * l->kv_heads * (l->k_eq_v ? 1 : 2);
        row->stored_vectors += vectors;
        row->stored_values += vectors * l->head_dim;
        row->stored_bytes += vectors * (int64_t)kv_codec_bytes(codec, l->head_dim);
    }
}

static kakeya_status fill_stored(const kv_format_run *run, const recoder *r, eval_row *row, kakeya_error *error) {
    const model_config *config = &run->harness.engine->verifier->config;
    row->stored_vectors = r->vectors;
    row->stored_values = r->values;
    row->stored_bytes = r->bytes;
    row->store_seconds = r->store_seconds;
    row->load_seconds = r->load_seconds;
    row->layer_error = calloc((size_t)config->layers, sizeof *row->layer_error);
    row->layer_energy = calloc((size_t)config->layers, sizeof *row->layer_energy);
    if (!row->layer_error || !row->layer_energy)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a report row");
    for (int i = 0; i < config->layers; i++) {
        if (!is_recoded(config, i)) continue;
        row->layer_error[row->layers] = r->error[i];
        row->layer_energy[row->layers++] = r->energy[i];
    }
    return KAKEYA_OK;
}

static kakeya_status run_one(void *user, eval_row *row, kakeya_error *error) {
    kv_format_run *run = user;
    const kv_codec *codec = kv_codec_find(row->arm.kv_format);
    size_t sample = 0;
    if (!harness_wants(&run->harness, row)) return KAKEYA_OK;
    while (strcmp(run->sequences.sequence[sample].name, row->sample) != 0)
        sample++; /* every one of the plan is there */
    const eval_sequence *s = &run->sequences.sequence[sample];
    float *logits = codec == run->codec[0] ? run->exact : run->logits;
    row->prompt_tokens = run->options->prompt_length;
    row->prompt_hash = harness_prompt_hash(s->ids, s->n);
    recoder scoring = {.codec = codec}, answering = {.codec = codec};
    backend_recoding recoding = {recode, &scoring};
    kakeya_status status = harness_poll(&run->harness, error);
    double start = clock_seconds();
    row->started_seconds = start - run->harness.report->begun_at;
    set_recoding(run, &recoding);
    if (status == KAKEYA_OK) status = score(run, s, &row->arm, logits, row, error);
    recoding.user = &answering;
    if (status == KAKEYA_OK) status = answer(run, &run->needles[sample], &row->arm, row, error);
    set_recoding(run, NULL);
    row->seconds = clock_seconds() - start;
    if (status == KAKEYA_OK) status = fill_scores(run, s, logits, row, error);
    if (status == KAKEYA_OK && run->as_stored)
        count_stored(run, codec, s->n, row);
    else if (status == KAKEYA_OK)
        status = fill_stored(run, &scoring, row, error);
    return status == KAKEYA_OK ? harness_add(&run->harness, row, error) : status;
}

static kakeya_status run_all(kv_format_run *run, kakeya_error *error) {
    size_t row_bytes = (size_t)kakeya_engine_vocab_size(run->harness.engine) * sizeof(float);
    run->nll = malloc(run->length * sizeof *run->nll);
    run->exact = malloc(run->length * row_bytes);
    run->logits = malloc(run->length * row_bytes);
    if (!run->nll || !run->exact || !run->logits)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the logits of %zu positions, %zu bytes",
                         run->length, 2 * run->length * row_bytes);
    return harness_run_plan(&run->harness, run_one, run, error);
}

kakeya_status eval_kv_format(const eval_setup *setup, const eval_options *options, eval_report **out,
                             kakeya_error *error) {
    *out = NULL;
    kv_format_run run = {.options = options, .setup = *setup};
    kakeya_status status = harness_open(&run.harness, &run.setup, 0, error);
    if (status == KAKEYA_OK) status = choose_codecs(&run, error);
    if (status == KAKEYA_OK) status = cut_texts(&run, error);
    if (status == KAKEYA_OK) status = make_needles(&run, error);
    if (status == KAKEYA_OK) status = harness_report(&run.harness, EVAL_KV_FORMAT, options_json(&run), error);
    if (status == KAKEYA_OK) status = run_all(&run, error);
    for (size_t i = 0; run.needles && i < run.drawn.n; i++) kakeya_free(run.needles[i].ids);
    free(run.needles);
    niah_dataset_free(&run.drawn);
    eval_sequences_free(&run.sequences);
    free(run.nll);
    free(run.exact);
    free(run.logits);
    return harness_close(&run.harness, status, out, error);
}
