/* kakeya train f-theta: the closed form over text, in memory that does not grow with it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/backend_train.h"
#include "backend/latent_row.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "cli/train_data.h"
#include "cli/train_distill.h"
#include "cli/train_report.h"
#include "cli/train_verbs.h"
#include "train/answers.h"
#include "train/outputs.h"
#include "train/trainer.h"

enum {
    LARGEST_RANK = 512, /* of those that are tried where none is given */
    LARGEST_RANK_APART = 256,
    DISTILLED_RANK = 256,
    DISTILLED_RANK_APART = 128,
    DEFAULT_TAPS = 6,
    HELD_OUT = 16,
    SCORED = 64,
    LEAST_TOKENS = 32,
    REPORTED_RANKS = 4
};
static const double save_seconds = 60, save_bytes = 1e9; /* between two savings; as long again for so much to save */
static const char state_name[] = "training.state", held_name[] = "held_out.json", distill_name[] = "distill.state",
                  start_name[] = "start", candidate_name[] = "candidate";

/* Closed forms; held-out text says which is better. */
enum { FORM_PLAIN, FORM_TEMPERED, FORMS };
static const closed_form_form forms[FORMS] = {[FORM_TEMPERED] = {.by_input = true, .temper = 0.5}};
static const char *const form_names[FORMS] = {[FORM_PLAIN] = "plain", [FORM_TEMPERED] = "tempered"};

typedef struct train_command {
    cli_shared shared;
    cli_texts data;
    const char **files; /* of --data, then operands */
    size_t n_files;
    cli_ints taps;
    const char *out;
    int input; /* index into input_names */
    int rank, rank_k, rank_v, latents, tokens, sequence, metric_tokens, held_out, ranks;
    int self; /* tokens of the model's own answers, at most; 0: the data are trained on as they are */
    float temperature;
    uint64_t seed;
    bool closed_form;   /* and no distillation, whatever the backend can */
    bool even_if_worse; /* than dropping: it is written all the same */
    train_distill distill;

    kakeya_engine *engine;
    trainer *trainer;       /* NULL: an f_theta that is there is distilled */
    train_answers *answers; /* NULL: the data are trained on as they are */
    trainer_options options;
    closed_form_weights solved[FORMS]; /* the closed forms, until one is chosen */
    bool free_rank;                    /* none was given: held-out text chooses */
    size_t scalar_bytes;               /* v_norm's of an evicted position */
    bool reads_text;                   /* the model has a tokenizer */
    uint64_t trained_tokens;
    int held_tokens; /* of a held-out sequence */
    uint64_t purpose;
    char *state_path, *held_path;
    cJSON *held;                  /* array of arrays of ids */
    uint64_t seen[2], resumed[2]; /* sequences that were trained on, and a hash of their tokens */
    terminal_meter meter;
    double saved;
    train_distill_job job; /* with --distill: what is learned from, and how */
    char *distill_path, *start_path;
    cJSON *told; /* what the report says of the closed form and of the distillation */
} train_command;

enum { INPUT_AUX, INPUT_DRAFTER };
static const char *const input_names[] = {[INPUT_AUX] = "aux", [INPUT_DRAFTER] = "drafter", NULL};
static const char *const latents_names[] = {"kv", "bf16", "q8", "q4", NULL};

enum { F_THETA, DRAFTER };
static const cli_word subjects[] = {
    [F_THETA] = {"f-theta", "a low-rank map that restores evicted K/V, for restored attention"},
    [DRAFTER] = {"drafter", "a DFlash drafter or an MTP assistant, for speculative decoding"},
    {0},
};

static const cli_command command = {
    .name = "train",
    .words = subjects,
    .summary = "Trains what a model needs: f-theta, for restored attention; drafter, for speculative decoding.",
    .operands = "f-theta --data FILE [FILE]...",
    .details = "For a drafter see kakeya train drafter --help.\n"
               "f-theta trains the low-rank map that restores evicted K/V from the model's own hidden states. It\n"
               "needs no drafter, but can read one with --input drafter. The solution has a closed form, computed\n"
               "from statistics over forwards of the text, without a gradient. --out receives the f_theta, a folder\n"
               "rank-N with the solution of each other rank, and report.json, which compares restoring with\n"
               "dropping on held-out sequences. Without --rank these sequences also choose the rank. If the f_theta\n"
               "is worse than dropping, the command writes none and fails, unless --even-if-worse is given. After\n"
               "Ctrl-C the statistics remain in --out, and the same command continues from them.\n"
               "--distill continues by gradient descent: rows decode with restored K/V and are compared with native\n"
               "ones, and f_theta learns from the difference through the whole model. DIR/start keeps the initial\n"
               "f_theta. This is the default on a GPU that can do it.\n"
               "Files are text, conversations in OpenAI's form with one per line (.jsonl), or token ids (.json).\n",
    .examples = "  kakeya train f-theta --data *.py --out my-f-theta\n"
                "  kakeya train f-theta --data prompts.jsonl --self 256 --temperature 1 --out my-f-theta\n"
                "  kakeya train f-theta --model M --data chats.jsonl --rank-k 96 --rank-v 160 --out M-f-theta\n"
                "  kakeya train f-theta --distill --steps 200 --latent-format q8 --data *.py --out my-f-theta\n",
};

/* ---------------------------------------------------------------------------------------------------- progress */

static uint64_t tokens_done(const train_command *c) {
    return c->trainer ? trainer_tokens(c->trainer) : c->job.data.n_tokens;
}

static void show_progress(train_command *c) {
    char count[2][32];
    const uint64_t done = tokens_done(c);
    terminal_meter_show(&c->meter, (double)done, c->tokens, "%s of %s tokens", format_count(count[0], done),
                        format_count(count[1], (uint64_t)c->tokens));
}

/* -------------------------------------------------------------------------------------------------------- sums */

static kakeya_status save(train_command *c, kakeya_error *error) {
    const uint64_t place[TRAINER_PLACE] = {c->seen[0], c->seen[1]};
    c->saved = clock_seconds();
    return trainer_save(c->trainer, c->state_path, c->purpose, place, error);
}

static kakeya_status interrupted(train_command *c, kakeya_error *error) {
    terminal_meter_clear(&c->meter);
    if (!c->trainer) return error_set(error, KAKEYA_CANCELLED, "interrupted before the first step");
    /* before what was saved has been passed, the file says more than this process knows */
    kakeya_status status = c->seen[0] < c->resumed[0] ? KAKEYA_OK : save(c, error);
    if (status) return status;
    return error_set(error, KAKEYA_CANCELLED, "interrupted after %llu tokens; the same command continues from there",
                     (unsigned long long)trainer_tokens(c->trainer));
}

static kakeya_status hold_out(train_command *c, const int32_t *tokens, int n, kakeya_error *error) {
    cJSON *ids = cJSON_CreateIntArray(tokens, n);
    if (ids && cJSON_AddItemToArray(c->held, ids)) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: held-out sequences");
}

/* The sequence becomes the prompt with its answer. */
static kakeya_status answer(train_command *c, const int32_t **tokens, int *n, kakeya_error *error) {
    kakeya_status status = train_answers_make(c->answers, *tokens, *n, tokens, n, error);
    show_progress(c);
    if (status == KAKEYA_CANCELLED) return interrupted(c, error);
    return status;
}

static double seconds_between_savings(const train_command *c) {
    return save_seconds * (1 + (double)(trainer_sums(c->trainer)->n_all * sizeof(double)) / save_bytes);
}

static bool has_enough(const train_command *c) {
    return c->seen[0] >= c->resumed[0] && tokens_done(c) >= (uint64_t)c->tokens;
}

/* Sequences are counted, and hashed, as the data hold them: an answer follows from its prompt. */
static kakeya_status take_sequence(void *user, const int32_t *tokens, int n, bool *held_out, bool *done,
                                   kakeya_error *error) {
    train_command *c = user;
    const int32_t *sequence = tokens;
    int length = n;
    bool again = c->seen[0] < c->resumed[0], enough = has_enough(c);
    kakeya_status status = KAKEYA_OK;
    if (enough && !*held_out) return KAKEYA_OK; /* looks for one to hold out, without which there is no report */
    if (c->answers && (*held_out || !again || c->distill.on)) status = answer(c, &sequence, &length, error);
    if (status) return status;
    if (*held_out && length >= c->held_tokens) {
        *done = enough;
        return hold_out(c, sequence, c->held_tokens, error);
    }
    *held_out = false;
    if (enough) return KAKEYA_OK;
    uint64_t hash = hash_fnv1a(c->seen[1], tokens, (size_t)n * sizeof *tokens);
    if (c->distill.on) status = corpus_add(&c->job.data, sequence, length, 0, error);
    if (!again && c->trainer && !status) status = trainer_add(c->trainer, sequence, length, error);
    if (status) return status;
    c->seen[0]++;
    c->seen[1] = hash;
    if (again) {
        if (c->seen[0] == c->resumed[0] && c->seen[1] != c->resumed[1])
            return error_set(error, KAKEYA_FORMAT,
                             "%s: the data have changed since it was written; remove it to start over", c->state_path);
    } else {
        show_progress(c);
        if (terminal_interrupted()) return interrupted(c, error);
        if (c->trainer && clock_seconds() - c->saved > seconds_between_savings(c)) status = save(c, error);
        if (status) return status;
    }
    *done = has_enough(c) && cJSON_GetArraySize(c->held);
    return KAKEYA_OK;
}

/* The sums are kept until there is a result that is worth writing. */
static kakeya_status keep_sums(train_command *c, kakeya_error *error) {
    return c->trainer && c->seen[0] > c->resumed[0] ? save(c, error) : KAKEYA_OK;
}

static kakeya_status collect(train_command *c, kakeya_error *error) {
    const model_config *verifier = &c->engine->verifier->config;
    c->held_tokens = 2 * verifier->sliding_window + 152; /* so many rows see evicted positions */
    if (c->held_tokens > c->sequence) c->held_tokens = c->sequence;
    const train_data data = {.files = c->files,
                             .n_files = c->n_files,
                             .sequence = c->sequence,
                             .least = LEAST_TOKENS,
                             .seed = c->seed,
                             .held_out = c->held_out,
                             .held_tokens = c->held_tokens,
                             .answer = c->self,
                             .tokenizer = kakeya_engine_tokenizer(c->engine),
                             .vocab = verifier->vocab};
    c->seen[1] = HASH_FNV1A_START;
    c->held = cJSON_CreateArray();
    if (!c->held) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (c->trainer && file_exists(c->state_path)) {
        uint64_t place[TRAINER_PLACE];
        kakeya_status status = trainer_load(c->trainer, c->state_path, c->purpose, place, error);
        if (status) return status;
        memcpy(c->resumed, place, sizeof c->resumed);
        fprintf(stderr, "going on after %llu tokens\n", (unsigned long long)trainer_tokens(c->trainer));
    }
    terminal_meter_begin(&c->meter, (double)tokens_done(c));
    c->saved = c->meter.begun;
    kakeya_status status = train_data_walk(&data, take_sequence, c, error);
    terminal_meter_clear(&c->meter);
    if (!status && c->seen[0] < c->resumed[0])
        status = error_set(error, KAKEYA_FORMAT,
                           "%s: the data have changed since it was written; remove it to start over", c->state_path);
    if (!status && !cJSON_GetArraySize(c->held))
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "the data are too short: one in eight sequences of at least %d tokens is held out, and %llu "
                           "tokens gave none; use more data or another --seed",
                           data.held_tokens, (unsigned long long)tokens_done(c));
    c->trained_tokens = tokens_done(c);
    return status;
}

/* ----------------------------------------------------------------------------------------------------- results */

static kakeya_status write_held_out(train_command *c, kakeya_error *error) {
    cJSON *json = cJSON_CreateObject();
    if (!json) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    int length = cJSON_GetArraySize(cJSON_GetArrayItem(c->held, 0)), scored = length > 2 * SCORED ? SCORED : length / 2;
    cJSON_AddNumberToObject(json, "prompt_length", length - scored);
    cJSON_AddItemToObject(json, "sequences", c->held);
    c->held = NULL;
    kakeya_status status = train_write_json(c->held_path, json, error);
    cJSON_Delete(json);
    return status;
}

/* An f_theta in a directory of its own, as a row of the report. `directory` is the row's from then on. */
static kakeya_status write_rank(const train_command *c, const closed_form_weights *weights,
                                const restoration_config *config, char *directory, train_rank *rank,
                                kakeya_error *error) {
    if (!directory) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    latent_row row = latent_row_of(config, KV_FORMAT_BF16);
    *rank = (train_rank){.directory = directory,
                         .rank_k = config->rank_k,
                         .rank_v = config->rank_v,
                         .latent_bytes = row.bytes + c->scalar_bytes};
    kakeya_status status = train_make_directory(directory, error);
    if (!status) status = trainer_write(&c->options.config, weights, config, directory, error);
    return status;
}

static char *rank_directory(const train_command *c, const restoration_config *config) {
    char name[64];
    snprintf(name, sizeof name, config->rank_k == config->rank_v ? "rank-%d" : "rank-%d-%d", config->rank_k,
             config->rank_v);
    return path_join(c->out, name);
}

/* The trained rank, and the halves of it. */
static kakeya_status write_ranks(train_command *c, const closed_form_weights *weights, train_rank ranks[REPORTED_RANKS],
                                 size_t *n, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < c->ranks && !status; i++) {
        restoration_config config = c->options.config;
        config.rank_k >>= i;
        config.rank_v >>= i;
        config.rank >>= i;
        if (config.rank_k < 1 || config.rank_v < 1) break;
        status = write_rank(c, weights, &config, rank_directory(c, &config), &ranks[(*n)++], error);
    }
    return status;
}

static kakeya_status open_engine(train_command *c, kakeya_error *error) {
    int precision = c->shared.precision;
    c->shared.f_theta = "none";
    /* The student computes in float32 wherever it is, but some backends open models in bf16 alone. */
    const backend_ops *ops = backend_find(c->shared.backend, NULL);
    if (c->distill.on && ops && !ops->bf16_only) c->shared.precision = KAKEYA_PRECISION_F32;
    kakeya_status status = cli_open_engine(command.name, &c->shared, &c->engine, error);
    c->shared.precision = precision;
    return status;
}

static void close_engine(train_command *c) {
    train_answers_close(c->answers);
    trainer_destroy(c->trainer);
    kakeya_engine_close(c->engine);
    c->answers = NULL;
    c->trainer = NULL;
    c->engine = NULL;
}

/* How results are measured: in engines of their own. */
static kakeya_status measuring(train_command *c, kakeya_engine_options *engine, kakeya_session_options *session,
                               kakeya_error *error) {
    kakeya_status status = cli_shared_engine_options(&c->shared, engine, error);
    if (status) return status;
    cli_shared_session_options(&c->shared, session);
    if (c->input == INPUT_AUX) {
        engine->drafter = "none";
        engine->second_drafter = NULL;
    }
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------ the closed form */

static kakeya_status solve_forms(train_command *c, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < FORMS && !status; i++) status = trainer_solve(c->trainer, &forms[i], &c->solved[i], error);
    return status ? status : keep_sums(c, error);
}

/* The one that is nearest to native where the rank is the largest. The engine has been closed. */
static kakeya_status choose_solution(train_command *c, const train_report *report, int *chosen, kakeya_error *error) {
    kakeya_engine_options engine;
    kakeya_session_options session;
    char *directory = path_join(c->out, candidate_name);
    cJSON *told = cJSON_AddObjectToObject(c->told, "closed_form"),
          *kls = cJSON_AddObjectToObject(told, "kl_from_native");
    double least = INFINITY;
    kakeya_status status = kls ? measuring(c, &engine, &session, error)
                               : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the report");
    *chosen = FORM_PLAIN;
    for (int i = 0; i < FORMS && !status; i++) {
        train_rank candidate;
        double kl = NAN;
        status = write_rank(c, &c->solved[i], &c->options.config, directory, &candidate, error);
        if (!status)
            status = train_report_kl(report, directory, &engine, &session, c->held_path, terminal_progress, &kl, error);
        terminal_clear_progress();
        if (status) break;
        cJSON_AddNumberToObject(kls, form_names[i], kl);
        if (kl < least) {
            least = kl;
            *chosen = i;
        }
    }
    if (!status) cJSON_AddStringToObject(told, "form", form_names[*chosen]);
    if (directory) train_report_drop(directory);
    free(directory);
    return status;
}

static void drop_solutions(train_command *c) {
    for (int i = 0; i < FORMS; i++) closed_form_weights_free(&c->solved[i]);
}

static kakeya_status solve(train_command *c, train_report *report, kakeya_error *error) {
    int chosen;
    kakeya_status status = collect(c, error);
    if (!status) status = solve_forms(c, error);
    if (!status) status = write_held_out(c, error);
    close_engine(c);
    if (!status) status = choose_solution(c, report, &chosen, error);
    if (!status) status = write_ranks(c, &c->solved[chosen], report->rank, &report->n, error);
    return status;
}

/* -------------------------------------------------------------------------------------------------- distillation */

/* What the distillation begins with, kept in a folder of its own, and the sequences that it sees. */
static kakeya_status prepare_distillation(train_command *c, const train_report *report, train_rank *rank,
                                          kakeya_error *error) {
    closed_form_weights read = {0};
    restoration_config config = c->options.config;
    int chosen = 0;
    kakeya_status status = collect(c, error);
    if (!status) {
        status = c->distill.init_from ? trainer_read(c->engine, c->distill.init_from, &config, &read, error)
                                      : solve_forms(c, error);
    }
    if (!status) status = write_held_out(c, error);
    if (!status && !c->distill.init_from) { /* engines that measure need the room of this one */
        close_engine(c);
        status = choose_solution(c, report, &chosen, error);
        if (!status) status = open_engine(c, error);
        c->job.engine = c->engine;
    }
    if (!status) status = train_distill_needles(&c->job, error);
    if (!status)
        status = write_rank(c, c->distill.init_from ? &read : &c->solved[chosen], &c->options.config,
                            strdup(c->start_path), rank, error);
    closed_form_weights_free(&read);
    return status;
}

/* Both f_thetas as rows: the distilled one, and what it began with. */
static kakeya_status distil(train_command *c, train_report *report, kakeya_error *error) {
    train_rank *ranks = report->rank;
    closed_form_weights weights = {0};
    restoration_config config;
    bool resumed = file_exists(c->distill_path);
    report->n = 2;
    kakeya_status status = resumed ? distiller_load_corpus(c->distill_path, c->job.purpose, &c->job.data, error)
                                   : prepare_distillation(c, report, &ranks[1], error);
    if (!status && resumed) c->trained_tokens = c->job.data.n_tokens;
    if (!status) status = trainer_read(c->engine, c->start_path, &config, &weights, error);
    if (!status && resumed) status = write_rank(c, &weights, &config, strdup(c->start_path), &ranks[1], error);
    if (!status) status = train_distill_run(&c->job, &weights, c->told, error);
    if (!status)
        status = write_rank(c, &weights, &c->options.config, rank_directory(c, &c->options.config), &ranks[0], error);
    ranks[1].note = "start";
    closed_form_weights_free(&weights);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ the report */

static kakeya_status refuse_worse(const train_command *c, const train_report *r, kakeya_error *error) {
    if (!r->rank[0].left_out) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "%s: no f_theta was written: on held-out text restoring has a KL of %.4f from native and "
                     "dropping %.4f; use more data, a larger --rank or --even-if-worse, which all continue from "
                     "these sums",
                     c->out, train_kl(&r->rank[0].restored), train_kl(&r->dropped));
}

/* Every rank is measured in an engine of its own. */
static kakeya_status report_ranks(train_command *c, train_report *report, double seconds, kakeya_error *error) {
    kakeya_engine_options engine;
    kakeya_session_options session;
    kakeya_status status = measuring(c, &engine, &session, error);
    if (!status)
        status = train_report_measure(report, &engine, &session, c->held_path, c->reads_text, terminal_progress, error);
    terminal_clear_progress();
    if (status) return status;
    if (c->free_rank) train_report_choose(report);
    cJSON_AddNumberToObject(c->told, "trained_tokens", (double)c->trained_tokens);
    cJSON_AddNumberToObject(c->told, "training_seconds", seconds);
    status = train_report_keep(report, c->out, c->even_if_worse, error);
    if (!status) status = train_report_write(report, c->told, c->out, error);
    if (!status && c->shared.json) {
        cJSON *json = train_report_json(report), *item;
        while ((item = cJSON_DetachItemFromArray(c->told, 0))) cJSON_AddItemToObject(json, item->string, item);
        status = cli_print_json(json, error);
        cJSON_Delete(json);
    } else if (!status) {
        printf("%llu tokens in %.0f s", (unsigned long long)c->trained_tokens, seconds);
        train_report_print(report);
    }
    return status ? status : refuse_worse(c, report, error);
}

/* -------------------------------------------------------------------------------------------------------- verb */

/* The hidden states that are read. */
static kakeya_status choose_taps(train_command *c, restoration_config *f, kakeya_error *error) {
    const model_config *verifier = &c->engine->verifier->config;
    f->input = RESTORATION_AUX_HIDDEN;
    f->hidden = verifier->hidden;
    f->aux_layers = restoration_default_taps(
        verifier, c->engine->drafter ? c->engine->drafter->config.targets : DEFAULT_TAPS, f->aux_layer);
    if (c->taps.n) f->aux_layers = 0;
    for (size_t i = 0; i < c->taps.n; i++) {
        if (c->taps.value[i] >= verifier->layers || (i && c->taps.value[i] <= c->taps.value[i - 1]))
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "--aux-layers: %d: layers must ascend and be below %d",
                             c->taps.value[i], verifier->layers);
        f->aux_layer[f->aux_layers++] = c->taps.value[i];
    }
    if (f->rank > restoration_encoder_in(f))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "rank %d is above the %d values of %d hidden states", f->rank,
                         restoration_encoder_in(f), f->aux_layers);
    return KAKEYA_OK;
}

static kakeya_status choose_drafter(const train_command *c, restoration_config *f, kakeya_error *error) {
    if (!c->engine->drafter)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--input drafter: the model has no drafter (--drafter DIR)");
    const block_drafter_config *d = &c->engine->drafter->config;
    f->input = RESTORATION_DRAFTER_CONTEXT_KV;
    f->drafter_layers = d->layers;
    f->drafter_kv_heads = d->kv_heads;
    f->drafter_head_dim = d->head_dim;
    int most = restoration_encoder_in(f) < d->hidden ? restoration_encoder_in(f) : d->hidden;
    if (f->rank > most)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "rank %d is above the %d values of the drafter's context",
                         f->rank, most);
    return KAKEYA_OK;
}

/* Where none was given: as many values as a hidden state has, at most. */
static int largest_rank(const train_command *c, bool shared) {
    const block_drafter_model *drafter = c->engine->drafter;
    int rank = shared ? LARGEST_RANK : LARGEST_RANK_APART,
        most = c->input == INPUT_DRAFTER && drafter ? drafter->config.hidden : c->engine->verifier->config.hidden;
    while (rank > most) rank /= 2;
    return rank;
}

static kakeya_status choose_form(train_command *c, restoration_config *f, kakeya_error *error) {
    *f = (restoration_config){.latents = (restoration_latents)c->latents};
    if (c->distill.init_from) {
        closed_form_weights weights;
        kakeya_status status = trainer_read(c->engine, c->distill.init_from, f, &weights, error);
        if (!status) closed_form_weights_free(&weights);
        if (c->latents) f->latents = (restoration_latents)c->latents;
        c->input = restoration_needs_drafter(f) ? INPUT_DRAFTER : INPUT_AUX;
        return status;
    }
    bool shared = c->input == INPUT_AUX && !c->rank_k;
    int rank = c->rank ? c->rank : shared ? DISTILLED_RANK : DISTILLED_RANK_APART;
    if (c->free_rank) rank = largest_rank(c, shared);
    restoration_config_fit(f, &c->engine->verifier->config, c->rank_k ? c->rank_k : rank, c->rank_v ? c->rank_v : rank,
                           shared);
    return c->input == INPUT_AUX ? choose_taps(c, f, error) : choose_drafter(c, f, error);
}

static kakeya_status lay_out(train_command *c, kakeya_error *error) {
    const model_config *verifier = &c->engine->verifier->config;
    restoration_config *f = &c->options.config;
    c->free_rank = !c->rank && !c->rank_k && !c->distill.on;
    kakeya_status status = choose_form(c, f, error);
    if (status) return status;
    c->reads_text = kakeya_engine_tokenizer(c->engine) != NULL;
    for (int l = 0; l < verifier->layers; l++) {
        const layer_config *lc = &verifier->layer[l];
        if (lc->kv_source == l && lc->type == LAYER_SLIDING) c->scalar_bytes += (size_t)lc->kv_heads * sizeof(float);
    }
    if (c->sequence > verifier->max_context) c->sequence = verifier->max_context;
    if (c->sequence < 2 * verifier->sliding_window)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--sequence %d: must be %d or more, twice the model's sliding window, to see what is evicted",
                         c->sequence, 2 * verifier->sliding_window);
    if (c->self >= c->sequence)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--self %d: answers must be shorter than sequences, which have %d tokens", c->self,
                         c->sequence);
    c->options.sequence = c->sequence;
    c->options.sink = c->shared.sink;
    c->options.window = c->shared.window;
    c->options.metric_tokens = c->metric_tokens;
    c->options.threads = c->shared.threads;

    const uint64_t numbers[] = {c->engine->fingerprint,     c->seed,
                                (uint64_t)c->sequence,      (uint64_t)c->metric_tokens,
                                (uint64_t)c->held_out,      (uint64_t)c->shared.sink,
                                (uint64_t)c->shared.window, (uint64_t)c->input,
                                (uint64_t)c->self,          (uint64_t)llround(1e6 * (double)c->temperature)};
    c->purpose = hash_fnv1a(HASH_FNV1A_START, numbers, sizeof numbers);
    c->purpose = hash_fnv1a(c->purpose, f->aux_layer, (size_t)f->aux_layers * sizeof *f->aux_layer);
    for (size_t i = 0; i < c->n_files; i++) c->purpose = hash_fnv1a(c->purpose, c->files[i], strlen(c->files[i]) + 1);
    c->state_path = path_join(c->out, state_name);
    c->held_path = path_join(c->out, held_name);
    c->distill_path = path_join(c->out, distill_name);
    c->start_path = path_join(c->out, start_name);
    c->told = cJSON_CreateObject();
    if (!c->state_path || !c->held_path || !c->distill_path || !c->start_path || !c->told)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory");
    if (c->distill.on) {
        kakeya_status able = distiller_check(c->engine, error); /* before the closed form, which may take hours */
        if (able) return able;
        const uint64_t amount[] = {c->purpose, (uint64_t)c->tokens};
        c->job = (train_distill_job){.chosen = &c->distill,
                                     .engine = c->engine,
                                     .state_path = c->distill_path,
                                     .purpose = hash_fnv1a(HASH_FNV1A_START, amount, sizeof amount)};
        c->job.options.config = *f;
        status = train_distill_settle(&c->job, c->sequence, c->shared.sink, c->shared.window, c->shared.threads,
                                      c->seed, error);
        if (status) return status;
    }
    return train_make_directory(c->out, error);
}

/* The sums of the closed form, and answers to train on. What goes on in the middle of a distillation needs neither. */
static kakeya_status begin(train_command *c, kakeya_error *error) {
    if (c->distill.on && file_exists(c->distill_path)) return KAKEYA_OK;
    kakeya_status status =
        c->distill.init_from ? KAKEYA_OK : trainer_create(c->engine, &c->options, &c->trainer, error);
    if (status || !c->self) return status;
    const train_answers_options options = {.at_a_time = 1,
                                           .context = c->sequence,
                                           .tokens = c->self,
                                           .temperature = c->temperature,
                                           .seed = c->seed,
                                           .interrupted = terminal_interrupted};
    return train_answers_open(c->engine, &options, &c->answers, error);
}

/* On backends that take many sequences at once it costs minutes, and is what makes a small rank worth its bytes. */
static void distil_where_a_gpu_is(train_command *c) {
    const backend_ops *ops = backend_find(c->shared.backend, NULL);
    const backend_train_ops *ways = ops ? backend_train_find(ops) : NULL;
    if (c->distill.on || c->closed_form || !ways || !ways->restoration_trainer_learn_many) return;
    c->distill.on = true;
    fprintf(stderr, "the closed form is distilled on backend %s; --closed-form leaves it at that\n", ops->name);
}

static kakeya_status train(train_command *c, kakeya_error *error) {
    train_rank ranks[REPORTED_RANKS] = {0};
    static const char *const words[] = {"kakeya", "train", "f-theta"};
    train_report report = {.rank = ranks, .argc = 3, .argv = words};
    static const char *const states[] = {state_name, distill_name, NULL};
    static const char *const others[] = {held_name,          TRAIN_REPORT_NAME, start_name, candidate_name,
                                         TRAIN_WEIGHTS_NAME, TRAIN_SIZES_NAME,  "rank-*",   NULL};
    static const train_files own = {"an f_theta", TRAIN_CONFIG_NAME, states, others};
    double begun = clock_seconds();
    kakeya_status status = train_check_out(c->out, &own, error);
    if (!status) distil_where_a_gpu_is(c);
    if (!status) status = open_engine(c, error);
    if (!status) status = lay_out(c, error);
    if (!status) status = begin(c, error);
    if (!status) status = c->distill.on ? distil(c, &report, error) : solve(c, &report, error);
    close_engine(c);
    drop_solutions(c);
    if (!status) status = report_ranks(c, &report, clock_seconds() - begun, error);
    if (!status && file_exists(c->state_path)) unlink(c->state_path);
    if (!status && file_exists(c->distill_path)) unlink(c->distill_path);
    for (size_t i = 0; i < REPORTED_RANKS; i++) free(ranks[i].directory);
    cJSON_Delete(c->held);
    cJSON_Delete(c->told);
    corpus_free(&c->job.data);
    free(c->state_path);
    free(c->held_path);
    free(c->distill_path);
    free(c->start_path);
    return status;
}

int cli_train(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], subjects[DRAFTER].name) == 0) return cli_train_drafter(argc - 1, argv + 1);
    train_command c = {.rank = 0,
                       .tokens = 400000,
                       .sequence = 1024,
                       .metric_tokens = 10000,
                       .held_out = HELD_OUT,
                       .ranks = REPORTED_RANKS,
                       .seed = 0};
    cli_option shared[CLI_SHARED_OPTIONS];
    cli_shared_init(&c.shared, shared);
    const cli_option closed[] = {
        CLI_TEXTS("data", "FILE", &c.data,
                  "text (.jsonl: conversations, .json: token ids); may be repeated, operands are added"),
        CLI_TEXT("out", "DIR", &c.out, "folder for the f_theta, and for the accumulated sums during training"),
        CLI_INT("self", "N", &c.self, 1, 1 << 20,
                "treat the data as prompts; train on them and the model's own answers of up to N tokens"),
        CLI_FLOAT("temperature", "T", &c.temperature, 0, 100, "sampling temperature of these answers; 0 is greedy (0)"),
        CLI_CHOICE("input", "TYPE", &c.input, input_names,
                   "what f_theta reads: aux, the model's hidden states, or drafter, the drafter's context (aux)"),
        CLI_INT("rank", "N", &c.rank, 1, 1 << 16,
                "size of the latent that keys and values share, or with a drafter of "
                "each of the two (chosen by held-out text, up to 512 and 256; 256 and 128 with --distill)"),
        CLI_INT("rank-k", "N", &c.rank_k, 1, 1 << 16,
                "use two latents; size of the latent of keys, which decoding pays for"),
        CLI_INT("rank-v", "N", &c.rank_v, 1, 1 << 16, "use two latents; size of the latent of values"),
        CLI_CHOICE("latent-format", "TYPE", &c.latents, latents_names,
                   "format in which sessions keep latents: kv, bf16, q8 or q4 (kv: that of their K/V)"),
        CLI_INTS("aux-layers", "LIST", &c.taps, 0, MODEL_MAX_LAYERS - 1,
                 "layers whose outputs f_theta reads (as many as the drafter reads, else 6, evenly spaced)"),
        CLI_INT("tokens", "N", &c.tokens, 1, 1 << 30, "maximum number of tokens to train on (400000)"),
        CLI_INT("sequence", "N", &c.sequence, 64, 1 << 20,
                "tokens per sequence, at least twice the sliding window (1024)"),
        CLI_INT("metric-tokens", "N", &c.metric_tokens, 1, 1 << 30,
                "number of tokens whose attention weights the errors (10000)"),
        CLI_INT("held-out", "N", &c.held_out, 1, 1 << 16,
                "number of held-out sequences, on which the report is based (16)"),
        CLI_INT("ranks", "N", &c.ranks, 1, REPORTED_RANKS,
                "number of ranks to write and compare: this one, half of it, and so on (4)"),
        CLI_FLAG("even-if-worse", &c.even_if_worse, "write the f_theta even if it is worse than dropping"),
        CLI_FLAG("closed-form", &c.closed_form, "do not distill, even on a GPU, where distillation is the default"),
        CLI_UINT64("seed", "N", &c.seed,
                   "random seed for the order of files, held-out sequences, sampled answers and steps (0)"),
    };
    enum { CLOSED = sizeof closed / sizeof *closed };
    cli_option own[CLOSED + TRAIN_DISTILL_OPTIONS + 1] = {0};
    memcpy(own, closed, sizeof closed);
    train_distill_init(&c.distill, own + CLOSED);
    int first, status;
    if (!cli_parse(&command, own, shared, argc, argv, &first, &status)) return status;
    if (c.shared.weights_limit) return cli_usage_error(&command, "--weights-limit: training needs all weights");
    if (first == argc || strcmp(argv[first], subjects[F_THETA].name) != 0)
        return cli_usage_error(&command, "say what to train: f-theta or drafter");
    size_t operands = (size_t)(argc - ++first);
    if (c.data.n + operands == 0 || !c.out) return cli_usage_error(&command, "--data and --out are needed");
    if (c.temperature > 0 && !c.self) return cli_usage_error(&command, "--temperature needs --self");
    if (!c.rank_k != !c.rank_v) return cli_usage_error(&command, "--rank-k and --rank-v need each other");
    if (c.rank_k && c.rank)
        return cli_usage_error(&command, "--rank (one latent) excludes --rank-k and --rank-v "
                                         "(two)");
    if (c.closed_form && c.distill.on)
        return cli_usage_error(&command, "--closed-form and --distill exclude each other");
    const char *refusal = train_distill_refuse(&c.distill);
    if (refusal) return cli_usage_error(&command, "%s", refusal);
    if (c.distill.init_from && (c.rank || c.rank_k || c.taps.n || c.input))
        return cli_usage_error(&command, "--init-from takes ranks, layers and input from its file");
    if (c.input == INPUT_DRAFTER && c.taps.n)
        return cli_usage_error(&command, "--aux-layers needs --input aux; a drafter reads its own choice of layers");

    kakeya_error error = {0};
    kakeya_status trained = train_data_files(&c.data, argv + first, operands, &c.files, &c.n_files, &error);
    if (!trained) trained = train(&c, &error);
    if (trained) train_drop_directory(c.out);
    free(c.files);
    int result = trained ? cli_fail(command.name, &error) : CLI_DONE;
    cli_shared_free(&c.shared);
    return result;
}
