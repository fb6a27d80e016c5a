#include "train/distiller.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/restoration_layout.h"
#include "base/clock.h"
#include "train/passes.h"
#include "train/saved.h"

struct distiller {
    kakeya_engine *engine;
    const backend_train_ops *ops;
    distiller_options o;
    restoration_layout layout;
    const corpus *data;
    backend_restoration_trainer *trainer;
    thread_pool *pool;
    float *weights, *gradient, *moment[2]; /* [layout.n]; the second moment lies behind the first */
    float *unit;                           /* [layout.n] of each weight, or NULL: 1 */
    closed_form_weights sizes;             /* they alone: those of the start */
    train_passes passes;                   /* through the sequences that are long enough */
    int done;
    distiller_seconds seconds;
};

/* ----------------------------------------------------------------------------------------------------- creation */

void distiller_options_init(distiller_options *o, const model_config *verifier) {
    int rows = verifier->sliding_window * 3 / 8; /* 96 of 256: as many as the recipe was found with */
    *o = (distiller_options){.trainer = {.rows = rows > 96  ? 96
                                                 : rows < 4 ? 4
                                                            : rows,
                                         .kl = 1,
                                         .hidden = 1,
                                         .attention = 1,
                                         .kv = 0.03f,
                                         .terms = 1},
                             .batch = 16,
                             .segments = 2,
                             .steps = 100,
                             .warm_up = 40,
                             .rate = 3e-4,
                             .adamw = {.beta = {0.9, 0.99}, .eps = 1e-8, .clip = 1},
                             .all_layers = 0.5};
}

static restoration_trainer_options trainer_options_of(const distiller_options *o) {
    restoration_trainer_options s = o->trainer;
    s.restoration = &o->config;
    s.sequences = o->batch;
    s.segments = o->segments;
    return s;
}

/* The first row that a segment may begin with: before it nothing is evicted. */
static int earliest(const distiller_options *o) { return o->trainer.sink + o->trainer.window; }

size_t distiller_bytes(kakeya_engine *engine, const distiller_options *options) {
    const backend_train_ops *ops = backend_train_find(engine->ops);
    restoration_trainer_options s = trainer_options_of(options);
    size_t n = restoration_layout_of(&options->config, &engine->verifier->config).n;
    return 5 * n * sizeof(float) +
           (ops && ops->restoration_trainer_bytes ? ops->restoration_trainer_bytes(engine->model, &s) : 0);
}

static size_t decoder_values(const distiller *d, int layer, int half) {
    const restoration_config *f = &d->o.config;
    return (size_t)(f->kv_heads[layer] * f->head_dim[layer]) * (size_t)(half ? f->rank_v : f->rank_k);
}

static void copy_sizes(const restoration_config *f, const closed_form_weights *from, closed_form_weights *to) {
    memcpy(to->input_size, from->input_size, (size_t)restoration_encoder_in(f) * sizeof *to->input_size);
    memcpy(to->value_size, from->value_size, (size_t)f->layers * sizeof *to->value_size);
}

/* The root mean square of what a decoder makes of latents of unit variance. */
static double decoded_size(const float *decoder, size_t values, int rank) {
    double squares = 0;
    for (size_t i = 0; i < values; i++) squares += (double)decoder[i] * (double)decoder[i];
    return squares > 0 ? sqrt(squares / (double)(values / (size_t)rank)) : 1;
}

/* Steps are as long in all weights as if inputs, keys and values had unit variance: Adam's are of one length, however
 * much a weight's input or output counts. What passes a norm has no size of its own, so its decoder's says which. */
static kakeya_status make_units(distiller *d, const closed_form_weights *start, kakeya_error *error) {
    if (!start->input_size || !start->value_size) return KAKEYA_OK;
    size_t inputs = (size_t)restoration_encoder_in(&d->o.config);
    d->unit = malloc(d->layout.n * sizeof *d->unit);
    if (!d->unit || !closed_form_weights_create_sizes(&d->o.config, &d->sizes))
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    copy_sizes(&d->o.config, start, &d->sizes);
    for (size_t i = 0; i < d->layout.n; i++) d->unit[i] = 1;
    for (int half = 0; half < 2; half++) {
        size_t values = (size_t)(half ? d->o.config.rank_v : d->o.config.rank_k) * inputs;
        float *unit = d->unit + d->layout.encoder[half];
        for (size_t i = 0; i < values && d->layout.encoder_there[half]; i++)
            unit[i] = 1 / d->sizes.input_size[i % inputs];
    }
    const bool raw_values = d->engine->verifier->config.raw_values;
    for (int i = 0; i < d->o.config.layers; i++) {
        for (int half = 0; half < 2 && d->layout.decoder_there[i]; half++) {
            size_t values = decoder_values(d, i, half);
            int rank = half ? d->o.config.rank_v : d->o.config.rank_k;
            float *unit = d->unit + d->layout.decoder[half][i],
                  size = half && raw_values ? d->sizes.value_size[i]
                                            : (float)decoded_size(start->decoder[half][i], values, rank);
            for (size_t k = 0; k < values; k++) unit[k] = size;
        }
    }
    return KAKEYA_OK;
}

static kakeya_status find_usable(distiller *d, kakeya_error *error) {
    int least = earliest(&d->o) + d->o.trainer.rows;
    if (!train_passes_create(&d->passes, d->data->n, d->o.seed))
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    for (size_t i = 0; i < d->data->n; i++) {
        if (d->data->sequence[i].length >= least) train_passes_add(&d->passes, i);
    }
    if (d->passes.n) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "the data are too short: none of %zu sequences has the %d tokens that distillation needs",
                     d->data->n, least);
}

/* Between the optimiser's array and matrices of their own. */
static void copy_weights(const distiller *d, const closed_form_weights *w, bool out) {
    for (int half = 0; half < 2; half++) {
        size_t values = (size_t)(half ? d->o.config.rank_v : d->o.config.rank_k) *
                        (size_t)restoration_encoder_in(&d->o.config) * sizeof(float);
        float *flat = d->weights + d->layout.encoder[half];
        if (d->layout.encoder_there[half]) memcpy(out ? w->encoder[half] : flat, out ? flat : w->encoder[half], values);
        for (int i = 0; i < d->o.config.layers; i++) {
            flat = d->weights + d->layout.decoder[half][i];
            if (d->layout.decoder_there[i])
                memcpy(out ? w->decoder[half][i] : flat, out ? flat : w->decoder[half][i],
                       decoder_values(d, i, half) * sizeof(float));
        }
    }
}

kakeya_status distiller_check(const kakeya_engine *engine, kakeya_error *error) {
    const backend_train_ops *ops = backend_train_find(engine->ops);
    if (ops && ops->restoration_trainer_create) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "backend %s cannot distil: use --backend cpu", engine->ops->name);
}

/* Memory that goes to and from a device in every step. */
static void *allocate(const backend_train_ops *ops, size_t bytes) {
    return ops->host_memory ? ops->host_memory(bytes) : malloc(bytes);
}

static void release(const backend_train_ops *ops, void *memory) {
    if (ops->free_host_memory)
        ops->free_host_memory(memory);
    else
        free(memory);
}

kakeya_status distiller_create(kakeya_engine *engine, const distiller_options *options, const corpus *data,
                               const closed_form_weights *start, distiller **out, kakeya_error *error) {
    *out = NULL;
    const backend_train_ops *ops = backend_train_find(engine->ops);
    kakeya_status able = distiller_check(engine, error);
    if (able) return able;
    distiller *d = calloc(1, sizeof *d);
    if (!d) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    d->engine = engine;
    d->ops = ops;
    d->o = *options;
    d->data = data;
    d->layout = restoration_layout_of(&d->o.config, &engine->verifier->config);
    size_t bytes = d->layout.n * sizeof(float);
    d->weights = allocate(ops, bytes);
    d->gradient = allocate(ops, bytes);
    d->moment[0] = calloc(2 * d->layout.n, sizeof(float));
    kakeya_status status = KAKEYA_OK;
    if (d->moment[0]) d->moment[1] = d->moment[0] + d->layout.n;
    if (!d->weights || !d->gradient || !d->moment[0])
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: distillation needs %zu bytes", 4 * bytes);
    if (!status) status = find_usable(d, error);
    if (!status) status = make_units(d, start, error);
    if (!status) status = thread_pool_create(d->o.threads, &d->pool, error);
    restoration_trainer_options trainer = trainer_options_of(&d->o);
    engine_turn_begin(engine);
    if (!status) status = ops->restoration_trainer_create(engine->model, &trainer, &d->trainer, error);
    engine_turn_end(engine);
    if (status) {
        distiller_destroy(d);
        return status;
    }
    copy_weights(d, start, false);
    *out = d;
    return KAKEYA_OK;
}

void distiller_destroy(distiller *d) {
    if (!d) return;
    d->ops->restoration_trainer_destroy(d->trainer);
    if (d->pool) thread_pool_destroy(d->pool);
    release(d->ops, d->weights);
    release(d->ops, d->gradient);
    free(d->moment[0]);
    free(d->unit);
    closed_form_weights_free(&d->sizes);
    train_passes_free(&d->passes);
    free(d);
}

int distiller_done(const distiller *d) { return d->done; }

void distiller_time(const distiller *d, distiller_seconds *out) {
    *out = d->seconds;
    out->parts = d->ops->restoration_trainer_seconds != NULL;
    if (out->parts) d->ops->restoration_trainer_seconds(d->trainer, out->part);
}

kakeya_status distiller_weights(const distiller *d, closed_form_weights *out, kakeya_error *error) {
    bool complete = closed_form_weights_create(&d->o.config, out) &&
                    (!d->unit || closed_form_weights_create_sizes(&d->o.config, out));
    if (!complete) {
        closed_form_weights_free(out);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the weights of an f_theta");
    }
    copy_weights(d, out, true);
    if (d->unit) copy_sizes(&d->o.config, &d->sizes, out);
    return KAKEYA_OK;
}

/* --------------------------------------------------------------------------------------------------------- steps */

/* Segments of a sequence begin in as many stretches of it, one in each, so that they have few rows in common. The first
 * one of a sequence with an answer begins there, or up to two tokens before. */
static restoration_trainer_segment segment_of(const distiller *d, const corpus_sequence *s, uint64_t number,
                                              int segment) {
    enum { KINDS = 2, BEFORE_ANSWER = 3 };
    uint64_t of = (number * (uint64_t)d->o.segments + (uint64_t)segment) * KINDS;
    int first = earliest(&d->o), last = s->length - d->o.trainer.rows;
    uint64_t place = train_draw(~d->o.seed, of, 0), coin = train_draw(~d->o.seed, of + 1, 0) % (1 << 20),
             turn = train_draw(~d->o.seed, of + 1, 1) % (1 << 20);
    int places = last - first + 1, begin = (int)((int64_t)places * segment / d->o.segments),
        end = (int)((int64_t)places * (segment + 1) / d->o.segments);
    int at = first + begin + (end > begin ? (int)(place % (uint64_t)(end - begin)) : 0);
    if (segment == 0 && s->answer) {
        turn = 1 << 20; /* answers are decoded */
        at = s->answer - (int)(place % BEFORE_ANSWER);
        at = at < first ? first : at > last ? last : at;
    }
    return (restoration_trainer_segment){.first = at,
                                         .all_layers = (double)coin < d->o.all_layers * (1 << 20),
                                         .prompt = (double)turn < d->o.later_turns * (1 << 20),
                                         .scale = 1.0f / (float)(d->o.batch * d->o.segments)};
}

static kakeya_status teach(distiller *d, const corpus_sequence *s, kakeya_error *error) {
    const backend_cache_options options = {.context_tokens = s->length,
                                           .attention = KAKEYA_ATTENTION_NATIVE,
                                           .kv_format = KV_FORMAT_F32,
                                           .account = &d->engine->account};
    backend_cache *cache = NULL;
    kakeya_status status = d->engine->ops->cache_create(d->engine->model, &options, &cache, error);
    if (!status)
        status = d->ops->restoration_trainer_teach(d->trainer, cache, d->data->tokens + s->begin, s->length, error);
    if (cache) d->engine->ops->cache_destroy(cache);
    return status;
}

static void add_result(distiller_step_result *to, const restoration_trainer_segment *segment,
                       const restoration_trainer_result *r) {
    const double share = (double)segment->scale;
    to->lost.loss += share * r->loss;
    to->lost.kl += share * r->kl;
    to->lost.hidden += share * r->hidden;
    to->lost.attention += share * r->attention;
    to->lost.kv += share * r->kv;
    to->kl[segment->all_layers] += r->kl;
    to->segments[segment->all_layers]++;
}

/* The whole batch at once, for backends that compute only so. */
static kakeya_status learn_batch(distiller *d, uint64_t first, distiller_step_result *out, kakeya_error *error) {
    size_t batch = (size_t)d->o.batch, of_one = (size_t)d->o.segments;
    restoration_trainer_sequence *sequences = malloc(batch * sizeof *sequences);
    restoration_trainer_segment *segments = malloc(batch * of_one * sizeof *segments);
    restoration_trainer_result *results = malloc(batch * of_one * sizeof *results);
    kakeya_status status = KAKEYA_OK;
    if (!sequences || !segments || !results)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    for (size_t i = 0; i < batch && !status; i++) {
        const corpus_sequence *s = &d->data->sequence[train_passes_sequence(&d->passes, first + i)];
        for (size_t k = 0; k < of_one; k++) segments[i * of_one + k] = segment_of(d, s, first + i, (int)k);
        sequences[i] = (restoration_trainer_sequence){.tokens = d->data->tokens + s->begin,
                                                      .n = s->length,
                                                      .segments = segments + i * of_one,
                                                      .results = results + i * of_one,
                                                      .n_segments = d->o.segments};
    }
    engine_turn_begin(d->engine);
    if (!status) status = d->ops->restoration_trainer_learn_many(d->trainer, sequences, d->o.batch, d->gradient, error);
    engine_turn_end(d->engine);
    for (size_t i = 0; i < batch * of_one && !status; i++) add_result(out, &segments[i], &results[i]);
    free(sequences);
    free(segments);
    free(results);
    return status;
}

static kakeya_status learn_sequence(distiller *d, uint64_t number, distiller_step_result *out, kakeya_error *error) {
    const corpus_sequence *s = &d->data->sequence[train_passes_sequence(&d->passes, number)];
    engine_turn_begin(d->engine); /* sessions of the engine may be open */
    kakeya_status status = teach(d, s, error);
    for (int i = 0; i < d->o.segments && !status; i++) {
        restoration_trainer_segment segment = segment_of(d, s, number, i);
        restoration_trainer_result r;
        d->ops->restoration_trainer_learn(d->trainer, &segment, d->gradient, &r);
        add_result(out, &segment, &r);
    }
    engine_turn_end(d->engine);
    return status;
}

enum { BLOCK = 1 << 14 };

static void count_in_units(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const distiller *d = context;
    for (size_t i = begin; i < end; i++) d->gradient[i] *= d->unit[i];
}

kakeya_status distiller_step(distiller *d, bool (*interrupted)(void *user), void *user, distiller_step_result *out,
                             kakeya_error *error) {
    int step = d->done + 1;
    kakeya_status status = KAKEYA_OK;
    double begun = clock_seconds();
    *out = (distiller_step_result){0};
    bool together = d->ops->restoration_trainer_learn_many != NULL;
    if (!together) memset(d->gradient, 0, d->layout.n * sizeof *d->gradient);
    d->ops->restoration_trainer_weights(d->trainer, d->weights);
    uint64_t first = (uint64_t)d->done * (uint64_t)d->o.batch;
    for (int i = 0; i < (together ? 1 : d->o.batch) && !status; i++) {
        if (interrupted && interrupted(user)) return error_set(error, KAKEYA_CANCELLED, "interrupted");
        status = together ? learn_batch(d, first, out, error) : learn_sequence(d, first + (uint64_t)i, out, error);
    }
    if (status) return status;
    double learned = clock_seconds();
    if (d->unit) thread_pool_for(d->pool, d->layout.n, BLOCK, count_in_units, d);
    out->gradient = adamw_length(d->pool, d->gradient, d->layout.n);
    if (!isfinite(out->lost.loss) || !isfinite(out->gradient))
        return error_set(error, KAKEYA_FORMAT, "step %d: the loss is not a number; use a smaller --rate", step);
    double rate = adamw_rate(d->o.constant, d->o.rate, d->o.warm_up, step, d->o.steps);
    adamw_step(d->pool, &d->o.adamw, rate, step, out->gradient, d->gradient, d->unit, d->layout.n, d->weights,
               d->moment[0], d->moment[1]);
    d->done = step;
    d->seconds.learning += learned - begun;
    d->seconds.optimiser += clock_seconds() - learned;
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------- saved states */

enum { SEQUENCES, TOKENS, WEIGHTS, STATISTICS, PARTS };
static const saved_kind kind = {"KVDSTIL", "the state of a distillation"};

kakeya_status distiller_save(const distiller *d, const char *path, uint64_t purpose, kakeya_error *error) {
    size_t values = d->layout.n * sizeof(float);
    const uint64_t numbers[SAVED_NUMBERS] = {(uint64_t)d->done, d->layout.n};
    const saved_part parts[PARTS] = {
        [SEQUENCES] = {d->data->sequence, d->data->n * sizeof *d->data->sequence},
        [TOKENS] = {d->data->tokens, d->data->n_tokens * sizeof *d->data->tokens},
        [WEIGHTS] = {d->weights, values},
        [STATISTICS] = {d->moment[0], 2 * values},
    };
    return saved_write(&kind, path, purpose, numbers, parts, PARTS, error);
}

kakeya_status distiller_load_corpus(const char *path, uint64_t purpose, corpus *out, kakeya_error *error) {
    uint64_t numbers[SAVED_NUMBERS];
    saved_part parts[PARTS];
    kakeya_status status = saved_read(&kind, path, purpose, numbers, parts, PARTS, error);
    if (status) return status;
    size_t n = parts[SEQUENCES].bytes / sizeof *out->sequence, tokens = parts[TOKENS].bytes / sizeof *out->tokens;
    *out = (corpus){.sequence = parts[SEQUENCES].data,
                    .tokens = parts[TOKENS].data,
                    .n = n,
                    .n_tokens = tokens,
                    .room = n,
                    .room_tokens = tokens};
    saved_free(parts + WEIGHTS, PARTS - WEIGHTS);
    return KAKEYA_OK;
}

kakeya_status distiller_load(distiller *d, const char *path, uint64_t purpose, kakeya_error *error) {
    uint64_t numbers[SAVED_NUMBERS];
    saved_part parts[PARTS];
    kakeya_status status = saved_read(&kind, path, purpose, numbers, parts, PARTS, error);
    if (status) return status;
    size_t values = d->layout.n * sizeof(float);
    if (parts[WEIGHTS].bytes != values || parts[STATISTICS].bytes != 2 * values) {
        status = error_set(error, KAKEYA_FORMAT, "%s: has %llu weights, the f_theta has %zu", path,
                           (unsigned long long)numbers[1], d->layout.n);
    } else {
        memcpy(d->weights, parts[WEIGHTS].data, values);
        memcpy(d->moment[0], parts[STATISTICS].data, 2 * values);
        d->done = (int)numbers[0];
    }
    saved_free(parts, PARTS);
    return status;
}
