/* kakeya train drafter: a DFlash drafter, or an MTP assistant, from the model's own answers. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/weight_values.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "cli/train_data.h"
#include "cli/train_drafter_report.h"
#include "cli/train_verbs.h"
#include "formats/checkpoint.h"
#include "formats/gguf.h"
#include "measure/niah.h"
#include "model/block_drafter_values.h"
#include "session/auxiliary_models.h"
#include "train/answers.h"
#include "train/assistant_start.h"
#include "train/drafter_files.h"
#include "train/drafting.h"
#include "train/outputs.h"
#include "train/saved.h"

enum { LEAST_PROMPT = 8, NEEDLE_ANSWER = 24, HELD_NEEDLES = 4, MOST_ROWS = 3, USUAL_MASK = 4, USUAL_CHAIN = 8 };
static const double save_seconds = 60;
static const char answers_name[] = "answers.state", state_name[] = "drafter.state", report_name[] = "report.json";
static const saved_kind answers_kind = {"KVANSWR", "the model's answers"};

enum { KIND_DFLASH, KIND_MTP };
static const char *const kind_names[] = {[KIND_DFLASH] = "dflash", [KIND_MTP] = "mtp", NULL};
enum { SCOPE_FULL, SCOPE_FC_NORMS };
static const char *const scope_names[] = {[SCOPE_FULL] = "full", [SCOPE_FC_NORMS] = "fc-norms", NULL};
enum { LOSS_AUTO, LOSS_ENTROPY, LOSS_KL };
static const char *const loss_names[] = {[LOSS_AUTO] = "auto", [LOSS_ENTROPY] = "entropy", [LOSS_KL] = "kl", NULL};
enum { STORE_BF16, STORE_F32 };
static const char *const store_names[] = {[STORE_BF16] = "bf16", [STORE_F32] = "f32", NULL};

typedef struct drafter_command {
    cli_shared shared;
    cli_texts data;
    const char **files; /* of --data, then operands */
    size_t n_files;
    const char *out, *init_from, *answers_path;
    int kind, scope, store, schedule, loss_kind; /* indices of choices; with --init-from the kind is the file's */
    int steps, batch, blocks, prompt_blocks, warm_up, layers, block, taps, mask, hidden, heads, mlp;
    int sequence, answer, prompts, held_out;
    size_t keep;
    float rate, decay, needles, temperature, weight_decay;
    uint64_t seed;

    kakeya_engine *engine;
    corpus asked, held, held_needles, answered;
    drafting_options options;
    assistant_config assistant; /* of KIND_MTP */
    drafting *training;
    float *values; /* of the drafter */
    uint64_t answers_purpose, purpose;
    char *own_answers, *state_path, *present; /* present: the drafter that the model has already */
    terminal_meter meter;                     /* of steps, or of answers */
    double saved;
    drafting_step_result last;
    double loss;
} drafter_command;

static const cli_command command = {
    .name = "train drafter",
    .summary = "Trains a DFlash drafter or an MTP assistant, for speculative decoding, on the model's own answers.",
    .operands = "--data FILE [FILE]...",
    .details = "The files are prompts: text, conversations in OpenAI's form with one per line (.jsonl), or token\n"
               "ids (.json). The model answers them, and the drafter learns to draft these answers, in blocks at\n"
               "random places. A DFlash drafter shares the model's embedding and head, which are not trained. An\n"
               "MTP assistant (--kind mtp) attends the model's own keys and values, and has a head of its own. The\n"
               "drafter and report.json (tokens per forward on held-out prompts) are written to --out. After\n"
               "Ctrl-C answers and weights remain there, and the same command continues to the same drafter.\n",
    .examples =
        "  kakeya train drafter --model M --data chats.jsonl --out M-dflash\n"
        "  kakeya train drafter --model M-Q4_0.gguf --init-from M-dflash --scope fc-norms --data *.py --out aligned\n"
        "  kakeya train drafter --kind mtp --model M --data chats.jsonl --out M-assistant\n",
};

/* ------------------------------------------------------------------------------------------------------- prompts */

/* About one prompt of eight is held out. */
static kakeya_status take_prompt(void *user, const int32_t *tokens, int n, bool *held_out, bool *done,
                                 kakeya_error *error) {
    enum { HELD_SHARE = 8 };
    drafter_command *c = user;
    uint64_t hash =
        hash_fnv1a(hash_fnv1a(HASH_FNV1A_START, &c->seed, sizeof c->seed), tokens, (size_t)n * sizeof *tokens);
    *held_out = c->held.n < (size_t)c->held_out && (hash >> 32) % HELD_SHARE == 0;
    kakeya_status status = corpus_add(*held_out ? &c->held : &c->asked, tokens, n, 0, error);
    if (terminal_interrupted()) return error_set(error, KAKEYA_CANCELLED, "interrupted before the first answer");
    *done = c->asked.n >= (size_t)c->prompts && c->held.n >= (size_t)c->held_out;
    return status;
}

/* Of few prompts the last one is held out, where chance took none. */
static kakeya_status hold_out_one(drafter_command *c, kakeya_error *error) {
    if (c->held.n || c->asked.n < 2) return KAKEYA_OK;
    const corpus_sequence *last = &c->asked.sequence[--c->asked.n];
    return corpus_add(&c->held, c->asked.tokens + last->begin, last->length, 0, error);
}

static kakeya_status add_needles(const drafter_command *c, int wanted, uint64_t seed, corpus *to, kakeya_error *error) {
    niah_options o;
    niah_options_init(&o);
    o.samples = wanted;
    o.min_lines = 10;
    o.max_lines = c->sequence / 30 > o.min_lines ? c->sequence / 30 : o.min_lines;
    o.seed = seed;
    niah_dataset set = {0};
    kakeya_status status = niah_generate(&o, &set, error);
    for (int i = 0; i < wanted && !status; i++) {
        const kakeya_message message = {"user", set.samples[i].prompt};
        int32_t *ids = NULL;
        size_t n = 0;
        status = kakeya_message_tokens(kakeya_engine_tokenizer(c->engine), &message, 1, false, &ids, &n, error);
        if (!status && n + NEEDLE_ANSWER <= (size_t)c->sequence) status = corpus_add(to, ids, (int)n, 0, error);
        kakeya_free(ids);
    }
    niah_dataset_free(&set);
    return status;
}

static kakeya_status collect(drafter_command *c, kakeya_error *error) {
    static const double recipe_share = 0.2;
    const train_data data = {.files = c->files,
                             .n_files = c->n_files,
                             .sequence = c->sequence,
                             .least = c->answer + LEAST_PROMPT,
                             .seed = c->seed,
                             .answer = c->answer,
                             .tokenizer = kakeya_engine_tokenizer(c->engine),
                             .vocab = c->engine->verifier->config.vocab};
    kakeya_status status = train_data_walk(&data, take_prompt, c, error);
    if (!status) status = hold_out_one(c, error);
    if (status) return status;
    if (!c->asked.n || !c->held.n)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "the data are too short: %zu prompts to train on and %zu held out; a prompt needs at least "
                         "%d tokens",
                         c->asked.n, c->held.n, LEAST_PROMPT);
    if (c->asked.n > (size_t)c->prompts) c->asked.n = (size_t)c->prompts;
    bool able = data.tokenizer != NULL;
    double share = c->needles >= 0 ? (double)c->needles : able ? recipe_share : 0;
    if (share > 0 && !able)
        return error_set(error, KAKEYA_UNSUPPORTED, "--needles needs a tokenizer, and the model has none");
    int wanted = (int)(share / (1 - share) * (double)c->asked.n + 0.5);
    uint64_t seed = UINT64_C(1) << 33 | c->seed << 1; /* none that an evaluation draws from */
    if (wanted) status = add_needles(c, wanted, seed, &c->asked, error);
    if (wanted && !status) status = add_needles(c, HELD_NEEDLES, seed | 1, &c->held_needles, error);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- answers */

/* Of the verifier alone: who drafts its answers does not matter. */
static uint64_t hash_verifier(const kakeya_engine *engine) {
    const language_model *v = engine->verifier;
    const int numbers[] = {v->config.hidden, v->config.layers, v->config.vocab, (int)engine->precision};
    float row[256];
    int width = v->config.hidden < 256 ? v->config.hidden : 256;
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, numbers, sizeof numbers);
    hash = hash_fnv1a(hash, v->weights.final_norm, (size_t)v->config.hidden * sizeof(float));
    for (int r = 0; r < 16 && r < v->config.vocab && weight_present(&v->weights.embed); r++) {
        weight_values(&v->weights.embed, r, 0, width, row);
        hash = hash_fnv1a(hash, row, (size_t)width * sizeof *row);
    }
    for (int i = 0; i < v->config.layers && weight_present(&v->weights.layer[i].o_proj); i++) {
        int in = v->weights.layer[i].o_proj.in < 256 ? v->weights.layer[i].o_proj.in : 256;
        weight_values(&v->weights.layer[i].o_proj, 0, 0, in, row);
        hash = hash_fnv1a(hash, row, (size_t)in * sizeof *row);
    }
    return hash;
}

static uint64_t hash_corpus(uint64_t hash, const corpus *c) {
    hash = hash_fnv1a(hash, c->sequence, c->n * sizeof *c->sequence);
    for (size_t i = 0; i < c->n; i++)
        hash = hash_fnv1a(hash, c->tokens + c->sequence[i].begin, (size_t)c->sequence[i].length * sizeof *c->tokens);
    return hash;
}

static kakeya_status save_answers(drafter_command *c, kakeya_error *error) {
    const uint64_t numbers[SAVED_NUMBERS] = {c->answered.n, c->answered.n_tokens};
    const saved_part parts[2] = {{c->answered.sequence, c->answered.n * sizeof *c->answered.sequence},
                                 {c->answered.tokens, c->answered.n_tokens * sizeof *c->answered.tokens}};
    c->saved = clock_seconds();
    return saved_write(&answers_kind, c->answers_path, c->answers_purpose, numbers, parts, 2, error);
}

static kakeya_status load_answers(drafter_command *c, kakeya_error *error) {
    uint64_t numbers[SAVED_NUMBERS];
    saved_part parts[2];
    kakeya_status status = saved_read(&answers_kind, c->answers_path, c->answers_purpose, numbers, parts, 2, error);
    if (status) return status;
    c->answered = (corpus){.sequence = parts[0].data,
                           .tokens = parts[1].data,
                           .n = parts[0].bytes / sizeof *c->answered.sequence,
                           .n_tokens = parts[1].bytes / sizeof *c->answered.tokens};
    c->answered.room = c->answered.n;
    c->answered.room_tokens = c->answered.n_tokens;
    if (c->answered.n) fprintf(stderr, "%zu of %zu prompts have been answered already\n", c->answered.n, c->asked.n);
    return KAKEYA_OK;
}

static kakeya_status answer_all(drafter_command *c, kakeya_error *error) {
    const train_answers_options options = {.at_a_time = TRAIN_ANSWERS_MOST,
                                           .context = c->sequence,
                                           .tokens = c->answer,
                                           .temperature = c->temperature,
                                           .seed = c->seed,
                                           .interrupted = terminal_interrupted};
    const uint64_t numbers[] = {hash_verifier(c->engine), c->seed, (uint64_t)c->answer,
                                (uint64_t)llround(1e6 * (double)c->temperature)};
    c->answers_purpose = hash_corpus(hash_fnv1a(HASH_FNV1A_START, numbers, sizeof numbers), &c->asked);
    /* what cannot be written is to be known before hours of answers */
    kakeya_status status = file_exists(c->answers_path) ? load_answers(c, error) : save_answers(c, error);
    if (status || c->answered.n >= c->asked.n) return status;
    train_answers *answers = NULL;
    status = train_answers_open(c->engine, &options, &answers, error);
    terminal_meter_begin(&c->meter, (double)c->answered.n);
    c->saved = c->meter.begun;
    while (!status && c->answered.n < c->asked.n) {
        size_t left = c->asked.n - c->answered.n;
        terminal_meter_show(&c->meter, (double)c->answered.n, (double)c->asked.n, "answer %zu of %zu", c->answered.n,
                            c->asked.n);
        status =
            train_answers_make_many(answers, &c->asked, c->answered.n,
                                    left < TRAIN_ANSWERS_MOST ? (int)left : TRAIN_ANSWERS_MOST, &c->answered, error);
        if (!status && clock_seconds() - c->saved > save_seconds) status = save_answers(c, error);
    }
    terminal_meter_clear(&c->meter);
    train_answers_close(answers);
    if (!status || status == KAKEYA_CANCELLED) {
        kakeya_status written = save_answers(c, error);
        if (written) return written;
    }
    if (status == KAKEYA_CANCELLED)
        return error_set(error, KAKEYA_CANCELLED,
                         "interrupted after %zu answers; the same command continues from "
                         "there",
                         c->answered.n);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- form */

/* A drafter beside a state has not been measured yet: the command that made it goes on. Answers alone are kept. */
static kakeya_status check_out(const drafter_command *c, kakeya_error *error) {
    static const char *const states[] = {state_name, NULL};
    static const char *const others[] = {answers_name, report_name, "model.safetensors", NULL};
    static const train_files own = {"a drafter", "config.json", states, others};
    kakeya_status status = train_check_out(c->out, &own, error);
    return status ? status : train_make_directory(c->out, error);
}

/* The published form, narrower by what is asked for: all layers but the last slide. */
static kakeya_status assistant_shape(drafter_command *c, kakeya_error *error) {
    const model_config *v = &c->engine->verifier->config;
    model_config *s = &c->assistant.stack;
    int layers = c->layers ? c->layers : 4, hidden = c->hidden ? c->hidden : v->hidden / 6 / 8 * 8;
    assistant_config_published(v, &c->assistant);
    if (hidden < 8) hidden = 8;
    if (layers > ASSISTANT_MAX_LAYERS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--layers %d: an assistant has at most %d", layers,
                         (int)ASSISTANT_MAX_LAYERS);
    const layer_config sliding = s->layer[0], full = s->layer[s->layers - 1];
    s->layers = layers;
    s->hidden = hidden;
    s->heads = c->heads ? c->heads : v->heads;
    for (int i = 0; i < layers; i++) {
        s->layer[i] = i + 1 < layers ? sliding : full;
        s->layer[i].kv_source = i;
        s->layer[i].intermediate = c->mlp ? c->mlp : 4 * hidden;
        if (s->heads % s->layer[i].kv_heads)
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "--heads %d: the model's %d K/V heads must have equally many each", s->heads,
                             s->layer[i].kv_heads);
    }
    c->assistant.clusters = c->assistant.chosen_clusters = 0;
    return assistant_config_fits("--kind mtp", &c->assistant, v, error);
}

static kakeya_status begin_assistant(drafter_command *c, kakeya_error *error) {
    const assistant_model *from = c->engine->assistant;
    if (!c->engine->ops->assistants)
        return error_set(error, KAKEYA_UNSUPPORTED, "--kind mtp: backend %s does not run MTP assistants",
                         c->engine->ops->name);
    kakeya_status status = KAKEYA_OK;
    if (c->init_from)
        c->assistant = from->config;
    else
        status = assistant_shape(c, error);
    if (status) return status;
    c->values = malloc(assistant_values_count(&c->assistant) * sizeof *c->values);
    if (!c->values) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the assistant's weights");
    if (c->init_from) return assistant_read(c->engine, c->values, error);
    return assistant_start(&c->assistant, c->engine->verifier, c->seed, c->values, error);
}

/* The drafter's shape, and what it begins with. */
static kakeya_status begin_drafter(drafter_command *c, kakeya_error *error) {
    block_drafter_config *d = &c->options.config;
    const language_model *v = c->engine->verifier;
    if (c->kind == KIND_MTP) return begin_assistant(c, error);
    if (c->init_from) {
        *d = c->engine->drafter->config;
    } else {
        block_drafter_config_fit(&v->config, c->layers ? c->layers : 5, c->block ? c->block : 16, c->taps, d);
        d->mask_token = c->mask >= 0 ? c->mask : USUAL_MASK;
    }
    if (d->mask_token >= v->config.vocab)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--mask-token %d: the vocabulary has %d tokens", d->mask_token,
                         v->config.vocab);
    c->values = malloc(block_drafter_values_count(d) * sizeof *c->values);
    if (!c->values) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the drafter's weights");
    if (c->init_from) return drafter_read(c->engine, c->values, error);
    block_drafter_values_begin(d, &v->weights, c->seed, c->values);
    return KAKEYA_OK;
}

static void settle(drafter_command *c) {
    static const double align_rate = 2e-4;
    drafting_options *o = &c->options;
    drafting_options_init(o);
    o->assistant = c->kind == KIND_MTP ? &c->assistant : NULL;
    if (o->assistant && c->init_from) o->token_of = c->engine->assistant->weights.token_of;
    o->threads = c->shared.threads;
    o->seed = c->seed;
    o->kept_bytes = c->keep;
    o->trainer.sequence = c->sequence;
    o->trainer.inside_layers = c->scope == SCOPE_FULL;
    o->trainer.scaled_embedding = c->shared.study.drafter_scaled_embedding;
    o->trainer.block_bidirectional = c->shared.study.drafter_block_bidirectional;
    o->trainer.chain = c->block ? c->block : USUAL_CHAIN;
    o->trainer.distribution = c->kind == KIND_MTP && c->loss_kind != LOSS_ENTROPY;
    o->trainer.decay = c->decay >= 0 ? (double)c->decay : 0.5 * drafting_block(o);
    if (c->init_from) o->rate = align_rate;
    if (c->steps) o->steps = c->steps;
    if (c->batch) o->batch = c->batch;
    if (c->blocks) o->trainer.blocks = c->blocks;
    o->prompt_blocks = c->prompt_blocks < o->trainer.blocks ? c->prompt_blocks : o->trainer.blocks - 1;
    if (5 * o->warm_up > 2 * o->steps) o->warm_up = 2 * o->steps / 5;
    if (c->warm_up >= 0) o->warm_up = c->warm_up;
    if (c->rate >= 0) o->rate = (double)c->rate;
    o->constant = c->schedule == TRAIN_CONSTANT;
    o->adamw.decay = (double)c->weight_decay;
    const double numbers[] = {o->steps,
                              o->batch,
                              o->trainer.blocks,
                              o->trainer.decay,
                              o->warm_up,
                              o->rate,
                              o->constant,
                              o->adamw.decay,
                              (double)o->seed,
                              c->sequence,
                              o->trainer.inside_layers,
                              o->trainer.scaled_embedding,
                              o->trainer.block_bidirectional,
                              o->prompt_blocks,
                              c->kind == KIND_MTP ? o->trainer.chain : 0,
                              o->trainer.distribution};
    c->purpose = hash_corpus(hash_fnv1a(c->answers_purpose, numbers, sizeof numbers), &c->answered);
    c->purpose = hash_fnv1a(c->purpose, c->values, drafting_values(o) * sizeof *c->values);
}

/* --------------------------------------------------------------------------------------------------------- steps */

static double expected(const drafter_trainer_result *r) { return r->blocks ? 1 + r->held / r->blocks : 0; }
static double mean_loss(const drafter_trainer_result *r) { return r->counted > 0 ? r->loss / r->counted : 0; }

static bool stop(void *user) {
    drafter_command *c = user;
    char more[80] = "";
    if (c->last.learned.blocks)
        snprintf(more, sizeof more, ", loss %.3f, %.2f tokens a block", mean_loss(&c->last.learned),
                 expected(&c->last.learned));
    const int done = drafting_done(c->training);
    terminal_meter_show(&c->meter, done, c->options.steps, "step %d of %d%s", done + 1, c->options.steps, more);
    return terminal_interrupted();
}

/* Where no line can be rewritten: twenty lines of a run. */
static void tell(const drafter_command *c) {
    enum { LINES = 20 };
    int done = drafting_done(c->training), every = c->options.steps / LINES > 0 ? c->options.steps / LINES : 1;
    if (terminal_rewrites(STDERR_FILENO) || done % every) return;
    fprintf(stderr, "step %d of %d: loss %.4f, %.3f tokens a block, gradient %.3g, %.1f s\n", done, c->options.steps,
            mean_loss(&c->last.learned), expected(&c->last.learned), c->last.gradient,
            clock_seconds() - c->meter.begun);
}

static kakeya_status take_step(drafter_command *c, kakeya_error *error) {
    kakeya_status status = drafting_step(c->training, stop, c, &c->last, error);
    if (status == KAKEYA_CANCELLED) {
        terminal_meter_clear(&c->meter);
        status = drafting_save(c->training, c->state_path, c->purpose, error);
        if (!status)
            status =
                error_set(error, KAKEYA_CANCELLED, "interrupted after %d steps; the same command continues from there",
                          drafting_done(c->training));
    } else if (!status) {
        tell(c);
    }
    return status;
}

static kakeya_status train(drafter_command *c, kakeya_error *error) {
    char bytes[32], tokens[32];
    settle(c);
    kakeya_status status = drafting_create(c->engine, &c->options, &c->answered, c->values, &c->training, error);
    if (status) return status;
    fprintf(stderr, "%zu answers, %s tokens; %d steps of %d sequences; training takes %s beside the model\n",
            c->answered.n, format_count(tokens, c->answered.n_tokens), c->options.steps, c->options.batch,
            format_bytes(bytes, (double)drafting_bytes(c->engine, &c->options)));
    if (file_exists(c->state_path)) {
        status = drafting_load(c->training, c->state_path, c->purpose, error);
        if (!status) fprintf(stderr, "going on after %d steps\n", drafting_done(c->training));
    } else {
        status = drafting_save(c->training, c->state_path, c->purpose, error);
    }
    terminal_meter_begin(&c->meter, status ? 0 : drafting_done(c->training));
    c->saved = c->meter.begun;
    int late = c->options.steps - (c->options.steps + 9) / 10, counted = 0;
    while (!status && drafting_done(c->training) < c->options.steps) {
        status = take_step(c, error);
        if (!status && drafting_done(c->training) > late) {
            c->loss += mean_loss(&c->last.learned);
            counted++;
        }
        if (!status && clock_seconds() - c->saved > save_seconds) {
            status = drafting_save(c->training, c->state_path, c->purpose, error);
            c->saved = clock_seconds();
        }
    }
    if (counted) c->loss /= counted;
    terminal_meter_clear(&c->meter);
    if (status) return status;
    const float *weights = drafting_weights(c->training);
    if (c->kind == KIND_MTP)
        return assistant_write(&c->assistant, c->options.token_of, weights, c->store == STORE_BF16, c->out, error);
    return drafter_write(&c->options.config, weights, c->store == STORE_BF16, c->out, error);
}

/* -------------------------------------------------------------------------------------------------------- report */

static cJSON *report_json(const drafter_command *c, const drafter_row *rows, size_t n, double seconds) {
    cJSON *json = cJSON_CreateObject(), *list = drafter_json(rows, n);
    if (!json || !list) {
        cJSON_Delete(json);
        cJSON_Delete(list);
        return NULL;
    }
    cJSON_AddItemToObject(json, "drafters", list);
    cJSON_AddStringToObject(json, "kind", kind_names[c->kind]);
    cJSON_AddStringToObject(json, "scope", scope_names[c->scope]);
    cJSON_AddStringToObject(json, "loss", c->options.trainer.distribution ? "kl" : "entropy");
    cJSON_AddNumberToObject(json, "answers", (double)c->answered.n);
    cJSON_AddNumberToObject(json, "tokens", (double)c->answered.n_tokens);
    cJSON_AddNumberToObject(json, "steps", c->options.steps);
    cJSON_AddNumberToObject(json, "batch", c->options.batch);
    cJSON_AddNumberToObject(json, "blocks", c->options.trainer.blocks);
    cJSON_AddNumberToObject(json, "rate", c->options.rate);
    cJSON_AddNumberToObject(json, "prompt_blocks", c->options.prompt_blocks);
    cJSON_AddNumberToObject(json, "decay", c->options.trainer.decay);
    cJSON_AddNumberToObject(json, "last_loss", c->loss);
    cJSON_AddNumberToObject(json, "training_seconds", seconds);
    return json;
}

/* Every drafter is measured in an engine of its own. */
static kakeya_status report(drafter_command *c, double seconds, kakeya_error *error) {
    drafter_row rows[MOST_ROWS] = {0};
    size_t n = 0;
    if (c->init_from)
        rows[n++] = (drafter_row){.name = "before", .directory = c->init_from};
    else if (c->present)
        rows[n++] = (drafter_row){.name = "present", .directory = c->present};
    rows[n++] = (drafter_row){.name = "after", .directory = c->out};
    kakeya_engine_options engine;
    kakeya_session_options session;
    const drafter_prompts prompts = {{&c->held, &c->held_needles}, {c->answer, NEEDLE_ANSWER}};
    kakeya_status status = cli_shared_engine_options(&c->shared, &engine, error);
    cli_shared_session_options(&c->shared, &session);
    session.context_tokens = c->sequence;
    for (size_t i = 0; i < n && !status; i++)
        status = drafter_measure(&engine, &session, &prompts, &rows[i], terminal_progress, error);
    terminal_clear_progress();
    if (status == KAKEYA_CANCELLED)
        status =
            error_set(error, KAKEYA_CANCELLED,
                      "interrupted while measuring: the drafter is in %s, and the same command measures it", c->out);
    cJSON *json = status ? NULL : report_json(c, rows, n, seconds);
    char *path = path_join(c->out, report_name);
    if (status) {
        /* said already */
    } else if (!json || !path) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    } else {
        status = train_write_json(path, json, error);
    }
    if (!status && c->shared.json) status = cli_print_json(json, error);
    if (!status && !c->shared.json) {
        printf("%d steps in %.0f s\n", c->options.steps, seconds);
        drafter_print(rows, n);
    }
    for (size_t i = 0; i < n; i++) drafter_row_free(&rows[i]);
    cJSON_Delete(json);
    free(path);
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- verb */

/* Where the drafter that the model has lies, of the kind that is trained. */
static const char *present_drafter(const drafter_command *c) {
    const kakeya_engine *e = c->engine;
    if (c->kind == KIND_DFLASH) return e->drafter && e->drafter->checkpoint ? e->drafter->checkpoint->directory : NULL;
    if (!e->assistant) return NULL;
    if (e->assistant->file) return gguf_path(e->assistant->file);
    return e->assistant->checkpoint ? e->assistant->checkpoint->directory : NULL;
}

/* A DFlash drafter that is made where the model's own would be found (--out MODEL-dflash) is not one before it is
 * finished: the engine is opened without it. */
static kakeya_status ignore_unfinished(drafter_command *c, kakeya_error *error) {
    const char *model = NULL;
    char *directory = NULL, *found = NULL, *config = NULL;
    kakeya_status status = c->shared.drafter.n ? KAKEYA_OK : cli_shared_model(&c->shared, &model, error);
    if (!status && model) status = checkpoint_resolve(model, &directory, error);
    if (!status && directory) status = auxiliary_model_directory(NULL, directory, "-dflash", &found, NULL, error);
    if (!status && found && !(config = path_join(found, "config.json")))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    char *there = status || !found ? NULL : realpath(found, NULL), *out = there ? realpath(c->out, NULL) : NULL;
    if (out && strcmp(there, out) == 0 && !file_exists(config))
        c->shared.drafter = (cli_texts){.text = {"none"}, .n = 1};
    free(directory);
    free(found);
    free(config);
    free(there);
    free(out);
    return status;
}

static kakeya_status open_engine(drafter_command *c, kakeya_error *error) {
    c->shared.f_theta = "none";
    if (c->init_from) c->shared.drafter = (cli_texts){.text = {c->init_from}, .n = 1};
    kakeya_status status = ignore_unfinished(c, error);
    if (!status) status = cli_open_engine(command.name, &c->shared, &c->engine, error);
    if (status) return status;
    const char *present = c->init_from ? NULL : present_drafter(c);
    if (present) {
        c->present = strdup(present);
        if (!c->present) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    }
    if (c->init_from && !kakeya_engine_has_drafter(c->engine))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--init-from %s: no drafter", c->init_from);
    if (c->init_from && c->kind == KIND_MTP && !c->engine->assistant)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--init-from %s: is a DFlash drafter, not an MTP assistant",
                         c->init_from);
    if (c->init_from) c->kind = c->engine->assistant ? KIND_MTP : KIND_DFLASH;
    if (c->init_from && c->kind == KIND_DFLASH && c->block)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--init-from takes layers, block and input from its file");
    if (c->kind == KIND_DFLASH && c->loss_kind == LOSS_KL)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--loss kl: a DFlash drafter learns from tokens alone");
    if (c->kind == KIND_MTP && c->scope == SCOPE_FC_NORMS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--scope fc-norms: an MTP assistant is trained in full");
    if (c->sequence > c->engine->verifier->config.max_context) c->sequence = c->engine->verifier->config.max_context;
    if (c->answer > c->sequence - LEAST_PROMPT)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--answer %d: answers must be shorter than sequences, which have %d tokens", c->answer,
                         c->sequence);
    return KAKEYA_OK;
}

static kakeya_status run(drafter_command *c, kakeya_error *error) {
    double begun = clock_seconds();
    kakeya_status status = KAKEYA_OK;
    c->own_answers = path_join(c->out, answers_name);
    c->state_path = path_join(c->out, state_name);
    if (!c->own_answers || !c->state_path) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (!status) status = check_out(c, error);
    if (!c->answers_path) c->answers_path = c->own_answers;
    if (!status) status = open_engine(c, error);
    if (!status) status = begin_drafter(c, error);
    if (!status) status = collect(c, error);
    if (!status) status = answer_all(c, error);
    if (!status) status = train(c, error);
    double seconds = clock_seconds() - begun;
    drafting_destroy(c->training);
    kakeya_engine_close(c->engine);
    if (!status) status = report(c, seconds, error);
    if (!status && file_exists(c->state_path)) unlink(c->state_path);
    if (!status && c->answers_path == c->own_answers && file_exists(c->own_answers)) unlink(c->own_answers);
    corpus_free(&c->asked);
    corpus_free(&c->held);
    corpus_free(&c->held_needles);
    corpus_free(&c->answered);
    free(c->values);
    free(c->own_answers);
    free(c->state_path);
    free(c->present);
    return status;
}

int cli_train_drafter(int argc, char **argv) {
    drafter_command c = {.sequence = 512,
                         .answer = 192,
                         .prompts = 1000,
                         .held_out = 16,
                         .mask = -1,
                         .keep = (size_t)1 << 30,
                         .rate = -1,
                         .decay = -1,
                         .needles = -1,
                         .warm_up = -1};
    cli_option shared[CLI_SHARED_OPTIONS];
    cli_shared_init(&c.shared, shared);
    const cli_option own[] = {
        CLI_TEXTS("data", "FILE", &c.data,
                  "prompts: text, conversations (.jsonl) or token ids (.json); may be repeated, operands are added"),
        CLI_TEXT("out", "DIR", &c.out, "folder for the drafter, and for answers and weights during training"),
        CLI_TEXT("init-from", "DIR", &c.init_from, "start from this drafter and its shape instead of random weights"),
        CLI_CHOICE("kind", "KIND", &c.kind, kind_names, "a new drafter: dflash, or mtp for an MTP assistant (dflash)"),
        CLI_CHOICE("scope", "WHICH", &c.scope, scope_names,
                   "weights to train: full, or fc-norms for the input projection and the norms outside layers (full)"),
        CLI_INT("layers", "N", &c.layers, 1, BLOCK_DRAFTER_MAX_LAYERS,
                "layers of a new drafter (5; of an assistant 4)"),
        CLI_INT("hidden", "N", &c.hidden, 8, 1 << 14, "hidden size of a new assistant (a sixth of the model's)"),
        CLI_INT("heads", "N", &c.heads, 1, 256, "query heads of a new assistant (the model's)"),
        CLI_INT("mlp", "N", &c.mlp, 8, 1 << 16, "width of a new assistant's MLPs (four times its hidden size)"),
        CLI_INT("block", "N", &c.block, 2, DRAFTER_TRAINER_MAX_BLOCK,
                "block size of a new drafter: one token and the drafts after it (16); of an assistant the "
                "length of the chains it learns from (8)"),
        CLI_INT("taps", "N", &c.taps, 1, BLOCK_DRAFTER_MAX_TARGETS,
                "number of hidden states that a new drafter reads (6)"),
        CLI_INT("mask-token", "ID", &c.mask, 0, 1 << 24,
                "token that marks the places of drafts in a block of a new drafter (4)"),
        CLI_INT("sequence", "N", &c.sequence, 16, 1 << 20,
                "maximum length of a prompt with its answer, in tokens (512)"),
        CLI_INT("answer", "N", &c.answer, 2, 1 << 20, "maximum length of an answer, in tokens (192)"),
        CLI_INT("prompts", "N", &c.prompts, 1, 1 << 24, "maximum number of prompts to answer and train on (1000)"),
        CLI_TEXT("answers", "FILE", &c.answers_path,
                 "file that keeps answers for other runs with the same data (in --out, during training)"),
        CLI_FLOAT("temperature", "T", &c.temperature, 0, 100, "sampling temperature of answers; 0 is greedy (0)"),
        CLI_INT("held-out", "N", &c.held_out, 1, 1 << 16,
                "number of held-out prompts, on which the report is based (16)"),
        TRAIN_STEP_OPTIONS(c, "500", "8", "0.001; 0.0002 with --init-from"),
        CLI_INT("blocks", "N", &c.blocks, 1, 1 << 12, "blocks per sequence, at random places of its answer (32)"),
        CLI_INT("prompt-blocks", "N", &c.prompt_blocks, 0, 1 << 12,
                "number of these at random places of the prompt instead; at least one stays in the answer (0)"),
        CLI_CHOICE("loss", "NAME", &c.loss_kind, loss_names,
                   "entropy: train drafts towards the answer's tokens; kl: train an assistant towards the model's "
                   "probabilities of them; auto: kl if possible (auto)"),
        CLI_FLOAT("decay", "X", &c.decay, 0, 1e6,
                  "weight of draft i of a block is exp(-(i-1)/X); 0: equal weights (half a block)"),
        CLI_CHOICE("store", "TYPE", &c.store, store_names, "format of the weights in the file: bf16 or f32 (bf16)"),
        CLI_BYTES("keep", "BYTES", &c.keep,
                  "memory for hidden states of answers; those beyond it are computed again in every pass (1G)"),
        CLI_UINT64("seed", "N", &c.seed,
                   "random seed for weights, files, held-out prompts, sampled answers and blocks (0)"),
        {.name = NULL},
    };
    int first, status;
    if (!cli_parse(&command, own, shared, argc, argv, &first, &status)) return status;
    if (c.shared.weights_limit) return cli_usage_error(&command, "--weights-limit: training needs all weights");
    size_t operands = (size_t)(argc - first);
    if (c.data.n + operands == 0 || !c.out) return cli_usage_error(&command, "--data and --out are needed");
    if (c.init_from && (c.layers || c.taps || c.hidden || c.heads || c.mlp))
        return cli_usage_error(&command, "--init-from takes layers, block and input from its file");
    if (c.kind == KIND_MTP && (c.taps || c.mask >= 0))
        return cli_usage_error(&command, "--taps and --mask-token are a DFlash drafter's");
    if (c.kind == KIND_DFLASH && (c.hidden || c.heads || c.mlp))
        return cli_usage_error(&command, "--hidden, --heads and --mlp are an assistant's: use --kind mtp");
    if (c.scope == SCOPE_FC_NORMS && !c.init_from)
        return cli_usage_error(&command, "--scope fc-norms needs --init-from: a new drafter must train all weights");
    kakeya_error error = {0};
    kakeya_status trained = train_data_files(&c.data, argv + first, operands, &c.files, &c.n_files, &error);
    if (!trained) trained = run(&c, &error);
    if (trained) train_drop_directory(c.out);
    free(c.files);
    int result = trained ? cli_fail(command.name, &error) : CLI_DONE;
    cli_shared_free(&c.shared);
    return result;
}
