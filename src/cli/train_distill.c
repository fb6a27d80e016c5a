#include "cli/train_distill.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/hash.h"
#include "cli/terminal.h"
#include "cli/train_verbs.h"
#include "measure/niah.h"

static const double save_seconds = 60;

/* The loss of the recipe with all its parts, its first part alone, then those that earlier trainers had; at last its
 * first part and half of its second. */
enum { LOSS_MIXED, LOSS_KL, LOSS_MSE, LOSS_KL_HIDDEN = LOSS_MSE + RESTORATION_LOSSES - RESTORATION_LOSS_MSE };
static const float half_hidden = 0.5f;
static const char *const loss_names[] = {
    [LOSS_MIXED] = "mixed", [LOSS_KL] = "kl",      [LOSS_MSE] = "mse", "cos_mag", "combined",
    "attn_distill",         "attn_distill_hybrid", "kl_hidden",        NULL};

const char *const train_schedules[] = {[TRAIN_COSINE] = "cosine", [TRAIN_CONSTANT] = "constant", NULL};

static restoration_loss loss_of(const train_distill *d) {
    bool of_logits = d->loss < LOSS_MSE || d->loss == LOSS_KL_HIDDEN;
    return of_logits ? RESTORATION_LOSS_DISTIL : (restoration_loss)(RESTORATION_LOSS_MSE + d->loss - LOSS_MSE);
}

/* ------------------------------------------------------------------------------------------------------- choices */

size_t train_distill_init(train_distill *d, cli_option table[TRAIN_DISTILL_OPTIONS]) {
    *d = (train_distill){.rate = -1, .needles = -1, .warm_up = -1, .all_layers = -1, .lambda = {-1, -1, -1, -1}};
    const cli_option own[] = {
        CLI_FLAG("distill", &d->on,
                 "continue by gradient descent through the frozen model: compare restored decoding with native"),
        CLI_TEXT("init-from", "DIR", &d->init_from, "start from this f_theta and its shape instead of the closed form"),
        TRAIN_STEP_OPTIONS(*d, "100", "16", "0.0003"),
        CLI_INT("segments", "N", &d->segments, 1, 1 << 10,
                "segments per sequence; each is a run of rows that decode from a position of its own (2)"),
        CLI_INT("rows", "N", &d->rows, 1, 512, "rows per segment (96, or 3/8 of a shorter sliding window)"),
        CLI_CHOICE("loss", "NAME", &d->loss, loss_names,
                   "loss: mixed, kl, kl_hidden, mse, cos_mag, combined, attn_distill or attn_distill_hybrid (mixed)"),
        CLI_FLOAT("all-layers", "X", &d->all_layers, 0, 1,
                  "share of segments that restore full-attention layers, too, as restored-all does (0.5)"),
        CLI_FLOAT("later-turns", "X", &d->later_turns, 0, 1,
                  "share of segments that are prompts of later turns instead of decoded rows (0)"),
        CLI_FLOAT("lambda-kd", "X", &d->lambda[0], 0, 1e6, "attn_distill_hybrid: weight of the directions of keys (1)"),
        CLI_FLOAT("lambda-vd", "X", &d->lambda[1], 0, 1e6,
                  "attn_distill_hybrid: weight of the directions of values (1)"),
        CLI_FLOAT("lambda-km", "X", &d->lambda[2], 0, 1e6,
                  "attn_distill_hybrid: weight of the magnitudes of keys (0.1)"),
        CLI_FLOAT("lambda-vm", "X", &d->lambda[3], 0, 1e6,
                  "attn_distill_hybrid: weight of the magnitudes of values (0.1)"),
    };
    memcpy(table, own, sizeof own);
    return sizeof own / sizeof *own;
}

const char *train_distill_refuse(const train_distill *d) {
    bool lambda = false;
    for (int i = 0; i < 4; i++) lambda |= d->lambda[i] >= 0;
    if (!d->on) {
        if (d->init_from || d->steps || d->batch || d->segments || d->rows || d->loss || d->schedule || d->rate >= 0 ||
            d->warm_up >= 0 || d->weight_decay > 0 || d->needles >= 0 || d->later_turns > 0 || d->all_layers >= 0 ||
            lambda)
            return "--init-from, --steps, --loss and what belongs to them are for --distill";
        return NULL;
    }
    if (lambda && loss_of(d) != RESTORATION_LOSS_ATTN_DISTIL_HYBRID)
        return "--lambda-... are for --loss attn_distill_hybrid";
    if ((d->later_turns > 0 || d->all_layers >= 0) && loss_of(d) != RESTORATION_LOSS_DISTIL)
        return "--later-turns and --all-layers are for --loss mixed, kl and kl_hidden";
    return NULL;
}

kakeya_status train_distill_settle(train_distill_job *job, int sequence, int sink, int window, int threads,
                                   uint64_t seed, kakeya_error *error) {
    static const float lambda[4] = {1, 1, 0.1f, 0.1f};
    static const double plain_beta = 0.999; /* what regression was trained with */
    const train_distill *d = job->chosen;
    restoration_config config = job->options.config;
    distiller_options *o = &job->options;
    distiller_options_init(o, &job->engine->verifier->config);
    o->config = config;
    o->seed = seed;
    o->threads = threads;
    o->trainer.sequence = sequence;
    o->trainer.sink = sink;
    o->trainer.window = window;
    o->trainer.loss = loss_of(d);
    if (d->loss == LOSS_KL || d->loss == LOSS_KL_HIDDEN) o->trainer.attention = o->trainer.kv = 0;
    if (d->loss != LOSS_MIXED) o->trainer.hidden = d->loss == LOSS_KL_HIDDEN ? half_hidden : 0;
    for (int i = 0; i < 4; i++) o->trainer.lambda[i] = d->lambda[i] >= 0 ? d->lambda[i] : lambda[i];
    if (o->trainer.loss != RESTORATION_LOSS_DISTIL) o->adamw.beta[1] = plain_beta;
    if (d->rows) o->trainer.rows = d->rows;
    if (d->batch) o->batch = d->batch;
    if (d->segments) o->segments = d->segments;
    if (d->steps) o->steps = d->steps;
    if (5 * o->warm_up > 2 * o->steps) o->warm_up = 2 * o->steps / 5;
    if (d->warm_up >= 0) o->warm_up = d->warm_up;
    if (d->rate >= 0) o->rate = (double)d->rate;
    o->constant = d->schedule == TRAIN_CONSTANT;
    o->adamw.decay = (double)d->weight_decay;
    o->later_turns = (double)d->later_turns;
    if (d->all_layers >= 0) o->all_layers = (double)d->all_layers;
    if (o->trainer.sink + o->trainer.window + o->trainer.rows > sequence)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "--rows %d: after %d evicted positions they do not fit into sequences of %d tokens",
                         o->trainer.rows, sink + window, sequence);
    const double numbers[] = {o->trainer.rows,
                              o->batch,
                              o->segments,
                              o->steps,
                              o->warm_up,
                              o->rate,
                              o->constant,
                              d->loss,
                              o->adamw.decay,
                              (double)d->needles,
                              o->later_turns,
                              o->all_layers,
                              (double)o->trainer.lambda[0],
                              (double)o->trainer.lambda[1],
                              (double)o->trainer.lambda[2],
                              (double)o->trainer.lambda[3]};
    const int form[] = {config.rank_k, config.rank_v, config.shared_latent, (int)config.latents, (int)config.input};
    job->purpose = hash_fnv1a(hash_fnv1a(job->purpose, numbers, sizeof numbers), form, sizeof form);
    if (d->init_from) job->purpose = hash_fnv1a(job->purpose, d->init_from, strlen(d->init_from) + 1);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------- needles */

/* One question with its answer, and another question behind it, so that rows follow. */
static kakeya_status add_needle(train_distill_job *job, const niah_sample *sample, const niah_sample *next,
                                kakeya_error *error) {
    const kakeya_tokenizer *text = kakeya_engine_tokenizer(job->engine);
    const kakeya_message messages[] = {{"user", sample->prompt}, {"assistant", sample->answer}, {"user", next->prompt}};
    int32_t *asked = NULL, *all = NULL;
    size_t n_asked = 0, n = 0, most = (size_t)job->options.trainer.sequence;
    kakeya_status status = kakeya_message_tokens(text, messages, 1, false, &asked, &n_asked, error);
    if (!status) status = kakeya_message_tokens(text, messages, 3, false, &all, &n, error);
    if (n > most) n = most;
    if (!status && n_asked < n) status = corpus_add(&job->data, all, (int)n, (int)n_asked, error);
    kakeya_free(asked);
    kakeya_free(all);
    return status;
}

kakeya_status train_distill_needles(train_distill_job *job, kakeya_error *error) {
    static const double recipe_share = 0.2;
    bool able = kakeya_engine_tokenizer(job->engine) != NULL;
    double share = job->chosen->needles >= 0 ? (double)job->chosen->needles : able ? recipe_share : 0;
    if (share > 0 && !able)
        return error_set(error, KAKEYA_UNSUPPORTED, "--needles needs a tokenizer, and the model has none");
    int wanted = (int)(share / (1 - share) * (double)job->data.n + 0.5);
    if (wanted < 1) return KAKEYA_OK;
    niah_options o;
    niah_options_init(&o);
    o.samples = wanted + 1;
    o.min_lines = 10;
    o.max_lines = job->options.trainer.sequence / 30 > o.min_lines ? job->options.trainer.sequence / 30 : o.min_lines;
    o.seed = UINT64_C(1) << 32 | job->options.seed; /* none that an evaluation draws from */
    niah_dataset set = {0};
    kakeya_status status = niah_generate(&o, &set, error);
    for (int i = 0; i < wanted && !status; i++) status = add_needle(job, &set.samples[i], &set.samples[i + 1], error);
    niah_dataset_free(&set);
    return status;
}

/* --------------------------------------------------------------------------------------------------------- steps */

typedef struct distill_progress {
    distiller *d;
    int steps, here; /* all; done by this process */
    terminal_meter meter;
    distiller_step_result last;
    distiller_step_result since; /* sums over the steps since the last line */
    int steps_since;
} distill_progress;

static void add_step(distiller_step_result *to, const distiller_step_result *step) {
    to->lost.loss += step->lost.loss;
    to->lost.kl += step->lost.kl;
    for (int i = 0; i < 2; i++) {
        to->kl[i] += step->kl[i];
        to->segments[i] += step->segments[i];
    }
}

/* Where no line can be rewritten: ten lines of a run, with means over the steps of each. */
static void tell(distill_progress *p, bool of_logits) {
    static const char *const kinds[] = {"sliding layers", "all layers"};
    int done = distiller_done(p->d), every = p->steps / 10 > 0 ? p->steps / 10 : 1;
    add_step(&p->since, &p->last);
    p->steps_since++;
    if (terminal_rewrites(STDERR_FILENO) || done % every) return;
    fprintf(stderr, "step %d of %d: loss %.4f, KL %.4f", done, p->steps, p->since.lost.loss / p->steps_since,
            p->since.lost.kl / p->steps_since);
    for (int i = 0; i < 2 && of_logits; i++) {
        if (p->since.segments[i])
            fprintf(stderr, ", of %s %.4f", kinds[i], p->since.kl[i] / (double)p->since.segments[i]);
    }
    fprintf(stderr, ", gradient %.3g\n", p->last.gradient);
    p->since = (distiller_step_result){0};
    p->steps_since = 0;
}

static bool stop(void *user) {
    distill_progress *p = user;
    const int done = distiller_done(p->d);
    char lost[64] = "";
    if (p->here) snprintf(lost, sizeof lost, ", loss %.4f", p->last.lost.loss);
    terminal_meter_show(&p->meter, done, p->steps, "step %d of %d%s", done + 1, p->steps, lost);
    return terminal_interrupted();
}

/* The next step. An interrupt leaves what the last one has left. */
static kakeya_status take_step(train_distill_job *job, distill_progress *p, kakeya_error *error) {
    kakeya_status status = distiller_step(p->d, stop, p, &p->last, error);
    if (status == KAKEYA_CANCELLED) {
        terminal_meter_clear(&p->meter);
        status = distiller_save(p->d, job->state_path, job->purpose, error);
        if (!status)
            status = error_set(error, KAKEYA_CANCELLED,
                               "interrupted after %d steps; the same command continues from "
                               "there",
                               distiller_done(p->d));
    } else if (!status) {
        p->here++;
        tell(p, job->options.trainer.loss == RESTORATION_LOSS_DISTIL);
    }
    return status;
}

/* Milliseconds of a step, means over those of this process. */
static void put_times(cJSON *json, const distiller_seconds *times, int steps) {
    static const char *const names[RESTORATION_PARTS] = {
        [RESTORATION_PART_TEACHER] = "teacher", [RESTORATION_PART_RESTORED] = "restored_kv",
        [RESTORATION_PART_FORWARD] = "forward", [RESTORATION_PART_HEAD] = "head_and_kl",
        [RESTORATION_PART_BACK] = "backward",   [RESTORATION_PART_GRADIENT] = "gradient"};
    if (!steps) return;
    cJSON *of = cJSON_AddObjectToObject(json, "step_ms");
    double by = 1e3 / steps;
    fprintf(stderr, "a step took %.0f ms", (times->learning + times->optimiser) * by);
    for (int i = 0; i < RESTORATION_PARTS && times->parts; i++) {
        cJSON_AddNumberToObject(of, names[i], times->part[i] * by);
        fprintf(stderr, "%s %s %.1f", i ? "," : ":", names[i], times->part[i] * by);
    }
    fprintf(stderr, "; learning %.1f, optimiser %.1f\n", times->learning * by, times->optimiser * by);
    cJSON_AddNumberToObject(of, "learning", times->learning * by);
    cJSON_AddNumberToObject(of, "optimiser", times->optimiser * by);
}

static void put_result(cJSON *told, const train_distill_job *job, const distiller_step_result *mean, double seconds,
                       const distiller_seconds *times, int here) {
    cJSON *json = cJSON_AddObjectToObject(told, "distillation");
    cJSON_AddStringToObject(json, "loss", loss_names[job->chosen->loss]);
    cJSON_AddNumberToObject(json, "steps", job->options.steps);
    cJSON_AddNumberToObject(json, "batch", job->options.batch);
    cJSON_AddNumberToObject(json, "segments", job->options.segments);
    cJSON_AddNumberToObject(json, "rows", job->options.trainer.rows);
    cJSON_AddNumberToObject(json, "rate", job->options.rate);
    cJSON_AddNumberToObject(json, "sequences", (double)job->data.n);
    cJSON_AddNumberToObject(json, "seconds", seconds);
    cJSON_AddNumberToObject(json, "all_layers", job->options.all_layers);
    cJSON_AddNumberToObject(json, "last_loss", mean->lost.loss);
    cJSON_AddNumberToObject(json, "last_kl", mean->lost.kl);
    static const char *const kinds[] = {"last_kl_sliding", "last_kl_all_layers"};
    for (int i = 0; i < 2 && job->options.trainer.loss == RESTORATION_LOSS_DISTIL; i++) {
        if (mean->segments[i]) cJSON_AddNumberToObject(json, kinds[i], mean->kl[i] / mean->segments[i]);
    }
    put_times(json, times, here);
}

kakeya_status train_distill_run(train_distill_job *job, closed_form_weights *weights, cJSON *told,
                                kakeya_error *error) {
    distill_progress p = {.steps = job->options.steps};
    const double begun = clock_seconds();
    char bytes[32];
    fprintf(stderr, "%d steps of %d sequences; distillation takes %s beside the model\n", p.steps, job->options.batch,
            format_bytes(bytes, (double)distiller_bytes(job->engine, &job->options)));
    kakeya_status status = distiller_create(job->engine, &job->options, &job->data, weights, &p.d, error);
    if (!status && file_exists(job->state_path)) {
        status = distiller_load(p.d, job->state_path, job->purpose, error);
        if (!status) fprintf(stderr, "going on after %d steps\n", distiller_done(p.d));
    } else if (!status) {
        status = distiller_save(p.d, job->state_path, job->purpose, error);
    }
    double saved = clock_seconds();
    terminal_meter_begin(&p.meter, status ? 0 : distiller_done(p.d));
    distiller_step_result mean = {0};
    int counted = 0, late = p.steps - (p.steps + 9) / 10;
    while (!status && distiller_done(p.d) < p.steps) {
        status = take_step(job, &p, error);
        if (!status && distiller_done(p.d) > late) {
            add_step(&mean, &p.last);
            counted++;
        }
        if (!status && clock_seconds() - saved > save_seconds) {
            status = distiller_save(p.d, job->state_path, job->purpose, error);
            saved = clock_seconds();
        }
    }
    terminal_meter_clear(&p.meter);
    if (!status) {
        closed_form_weights_free(weights);
        status = distiller_weights(p.d, weights, error);
        mean.lost.loss /= counted ? counted : 1;
        mean.lost.kl /= counted ? counted : 1;
        distiller_seconds times;
        distiller_time(p.d, &times);
        put_result(told, job, &mean, clock_seconds() - begun, &times, p.here);
    }
    distiller_destroy(p.d);
    return status;
}
