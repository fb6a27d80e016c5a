#include "train/drafting.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/block_drafter_values.h"
#include "train/passes.h"
#include "train/saved.h"
#include "train/seen.h"

enum { LEAST_ANSWER = 2 /* a block's first token and a draft */, LEAST_READ = 8 };

struct drafting {
    kakeya_engine *engine;
    const backend_train_ops *ops, *trainer_ops; /* hidden states; the trainer */
    backend_model *host;                        /* of the trainer, where it is not the engine's; else NULL */
    drafting_options o;
    assistant_seen seen; /* of an assistant */
    const corpus *data;
    backend_drafter_trainer *trainer;
    thread_pool *pool;
    size_t n, trained; /* weights; those that change: the first ones */
    float *weights, *gradient, *moment[2];
    float *aux;    /* [batch][sequence][aux_width] */
    float *states; /* [layers + 1][rows of a forward][hidden], where the backend shows them so; else NULL */
    float *heard;  /* where the sequence in work has its hidden states */
    float **kept;  /* hidden states of sequences of the corpus; NULL: not kept */
    size_t kept_bytes;
    train_passes passes; /* through the sequences that are long enough */
    int *first;          /* [batch][blocks] */
    drafter_trainer_sequence *sequences;
    drafter_trainer_result *results; /* [batch] */
    int done;
};

/* ----------------------------------------------------------------------------------------------------- creation */

void drafting_options_init(drafting_options *o) {
    block_drafter_config config = o->config;
    *o = (drafting_options){.config = config,
                            .trainer = {.sequence = 512, .blocks = 32, .decay = 4, .chain = 8, .inside_layers = true},
                            .batch = 8,
                            .steps = 500,
                            .warm_up = 40,
                            .rate = 1e-3,
                            .adamw = {.beta = {0.9, 0.99}, .eps = 1e-8, .clip = 1}};
}

static drafter_trainer_options drafter_trainer_of(const drafting_options *o) {
    drafter_trainer_options l = o->trainer;
    l.drafter = &o->config;
    l.assistant = o->assistant;
    l.token_of = o->token_of;
    l.sequences = o->batch;
    return l;
}

size_t drafting_values(const drafting_options *o) {
    return o->assistant ? assistant_values_count(o->assistant) : block_drafter_values_count(&o->config);
}

int drafting_block(const drafting_options *o) { return o->assistant ? o->trainer.chain : o->config.block_size; }

static size_t aux_width(const drafting *d) {
    return d->o.assistant ? d->seen.width : (size_t)d->o.config.targets * (size_t)d->o.config.hidden;
}

static bool shows_layers(const backend_train_ops *ops) { return ops && ops->forward; }
static bool chooses(const backend_train_ops *ops) { return ops && ops->chooses; }
static bool has_trainer(const backend_train_ops *ops, const drafting_options *o) {
    return ops && ops->drafter_trainer_create && (!o->assistant || ops->trains_assistants);
}

static kakeya_status find_usable(drafting *d, kakeya_error *error) {
    d->kept = calloc(d->data->n + 1, sizeof *d->kept);
    if (!train_passes_create(&d->passes, d->data->n, d->o.seed) || !d->kept)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    for (size_t i = 0; i < d->data->n; i++) {
        const corpus_sequence *s = &d->data->sequence[i];
        if (s->answer > 0 && s->length - s->answer >= LEAST_ANSWER) train_passes_add(&d->passes, i);
    }
    if (d->passes.n) return KAKEYA_OK;
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "the data are too short: none of %zu answers has the %d tokens that a block needs", d->data->n,
                     LEAST_ANSWER);
}

/* What hidden states are copied to and from. */
static void *host_memory(const drafting *d, size_t bytes) {
    return d->ops && d->ops->host_memory ? d->ops->host_memory(bytes) : malloc(bytes);
}

static void free_host_memory(const drafting *d, void *memory) {
    if (d->ops && d->ops->free_host_memory)
        d->ops->free_host_memory(memory);
    else
        free(memory);
}

/* The trainer, on the engine's model or on one of the CPU's with the same weights. */
static kakeya_status open_trainer(drafting *d, kakeya_error *error) {
    backend_model *host = d->engine->model;
    d->trainer_ops = d->ops;
    if (!has_trainer(d->ops, &d->o)) {
        const backend_ops *cpu = backend_find("cpu", error);
        if (!cpu) return KAKEYA_UNSUPPORTED;
        const backend_model_options options = {.verifier = d->engine->verifier,
                                               .precision = KAKEYA_PRECISION_F32,
                                               .threads = d->o.threads,
                                               .account = &d->engine->account};
        kakeya_status status = cpu->model_create(&options, &d->host, error);
        if (status) return status;
        d->trainer_ops = backend_train_find(cpu);
        host = d->host;
    }
    drafter_trainer_options options = drafter_trainer_of(&d->o);
    return d->trainer_ops->drafter_trainer_create(host, &options, &d->trainer, error);
}

size_t drafting_bytes(kakeya_engine *engine, const drafting_options *options) {
    const backend_train_ops *ops = backend_train_find(engine->ops);
    drafter_trainer_options l = drafter_trainer_of(options);
    size_t bytes = 4 * drafting_values(options) * sizeof(float) + options->kept_bytes;
    return bytes + (has_trainer(ops, options) ? ops->drafter_trainer_bytes(engine->model, &l) : 0);
}

/* Whether the backend shows what is read. */
static kakeya_status check_backend(const kakeya_engine *engine, const drafting_options *o, kakeya_error *error) {
    if (shows_layers(backend_train_find(engine->ops))) return KAKEYA_OK;
    if (o->assistant)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "backend %s does not expose keys and values, which an MTP assistant learns from: use "
                         "--backend cpu",
                         engine->ops->name);
    for (int i = 0; i < o->config.targets; i++) {
        if (o->config.target_layer[i] == engine->verifier->config.layers - 1)
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "backend %s does not expose the last layer's output, which the drafter reads: use "
                             "--backend cpu",
                             engine->ops->name);
    }
    return KAKEYA_OK;
}

kakeya_status drafting_create(kakeya_engine *engine, const drafting_options *options, const corpus *data,
                              const float *start, drafting **out, kakeya_error *error) {
    *out = NULL;
    const backend_train_ops *ops = backend_train_find(engine->ops);
    int layers = engine->verifier->config.layers;
    kakeya_status status = check_backend(engine, options, error);
    if (status) return status;
    drafting *d = calloc(1, sizeof *d);
    if (!d) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    d->engine = engine;
    d->ops = ops;
    d->o = *options;
    d->data = data;
    d->n = drafting_values(&d->o);
    d->trained =
        d->o.assistant || d->o.trainer.inside_layers ? d->n : block_drafter_values_outside_layers(&d->o.config);
    if (d->o.assistant) d->seen = assistant_sees(d->o.assistant, &engine->verifier->config);
    size_t bytes = d->n * sizeof(float);
    d->weights = malloc(bytes);
    d->gradient = malloc(bytes);
    for (int i = 0; i < 2; i++) d->moment[i] = calloc(d->trained, sizeof(float));
    size_t batch = (size_t)d->o.batch, rows = (size_t)engine->ops->model_prompt_chunk(engine->model);
    d->aux = host_memory(d, batch * (size_t)d->o.trainer.sequence * aux_width(d) * sizeof *d->aux);
    d->first = malloc(batch * (size_t)d->o.trainer.blocks * sizeof *d->first);
    d->sequences = malloc(batch * sizeof *d->sequences);
    d->results = malloc(batch * sizeof *d->results);
    if (!shows_layers(ops) && !chooses(ops))
        d->states = malloc((size_t)(layers + 1) * rows * (size_t)engine->verifier->config.hidden * sizeof *d->states);
    if (!d->weights || !d->gradient || !d->moment[0] || !d->moment[1] || !d->aux || !d->first || !d->sequences ||
        !d->results || (!shows_layers(ops) && !chooses(ops) && !d->states))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: training needs %zu bytes", 4 * bytes);
    if (!status) status = find_usable(d, error);
    if (!status) status = thread_pool_create(d->o.threads, &d->pool, error);
    engine_turn_begin(engine);
    if (!status) status = open_trainer(d, error);
    engine_turn_end(engine);
    if (status) {
        drafting_destroy(d);
        return status;
    }
    memcpy(d->weights, start, bytes);
    *out = d;
    return KAKEYA_OK;
}

void drafting_destroy(drafting *d) {
    if (!d) return;
    if (d->trainer) d->trainer_ops->drafter_trainer_destroy(d->trainer);
    if (d->host) backend_find("cpu", NULL)->model_destroy(d->host);
    if (d->pool) thread_pool_destroy(d->pool);
    for (size_t i = 0; d->kept && i < d->data->n; i++) free(d->kept[i]);
    free(d->kept);
    free(d->weights);
    free(d->gradient);
    free(d->moment[0]);
    free(d->moment[1]);
    free_host_memory(d, d->aux);
    free(d->states);
    free(d->sequences);
    free(d->results);
    train_passes_free(&d->passes);
    free(d->first);
    free(d);
}

int drafting_done(const drafting *d) { return d->done; }
const float *drafting_weights(const drafting *d) { return d->weights; }

/* --------------------------------------------------------------------------------------------------------- steps */

/* Where `blocks` blocks begin: one place in each of as many equal parts of [from, to). */
static int place_in(const drafting *d, uint64_t number, int drawn, int from, int to, int blocks, int *first) {
    int places = to > from ? to - from : 0;
    if (blocks > places) blocks = places;
    for (int i = 0; i < blocks; i++) {
        int begin = (int)((int64_t)places * i / blocks), end = (int)((int64_t)places * (i + 1) / blocks);
        first[i] =
            from + begin + (int)(train_draw(~d->o.seed, number, (uint64_t)(drawn + i)) % (uint64_t)(end - begin));
    }
    return blocks;
}

/* Where the blocks of a sequence begin: in its prompt, behind so much that there is something to read, and in its
 * answer. Every first token has one behind it. */
static int place_blocks(drafting *d, const corpus_sequence *s, uint64_t number, int *first) {
    int in_prompt = place_in(d, number, 0, LEAST_READ, s->answer, d->o.prompt_blocks, first);
    int in_answer = d->o.trainer.blocks - d->o.prompt_blocks;
    return in_prompt + place_in(d, number, in_prompt, s->answer, s->length - 1, in_answer, first + in_prompt);
}

/* A layer's output of rows from `position` on. */
static void hear(drafting *d, int layer, int position, int rows, const float *h) {
    const block_drafter_config *c = &d->o.config;
    size_t hidden = (size_t)c->hidden, width = aux_width(d);
    for (int i = 0; i < c->targets; i++) {
        if (c->target_layer[i] != layer) continue;
        for (int r = 0; r < rows; r++)
            memcpy(d->heard + (size_t)(position + r) * width + (size_t)i * hidden, h + (size_t)r * hidden,
                   hidden * sizeof *h);
    }
}

static void tap(void *user, const train_layer *layer) {
    drafting *d = user;
    if (d->o.assistant)
        seen_take(&d->seen, d->engine->verifier, layer, d->heard);
    else
        hear(d, layer->layer, layer->position, layer->rows, layer->h);
}

/* A forward of rows behind the cache's committed ones, which are committed. */
static kakeya_status forward(drafting *d, backend_cache *cache, const int32_t *tokens, int position, int rows,
                             kakeya_error *error) {
    const backend_ops *ops = d->engine->ops;
    backend_model *m = d->engine->model;
    if (shows_layers(d->ops)) return d->ops->forward(m, cache, tokens, rows, tap, d, error);
    backend_segment segment = {.cache = cache,
                               .tokens = tokens,
                               .n = rows,
                               .kind = SEGMENT_PROMPT,
                               .first_logit_row = rows,
                               .hidden_states = d->states};
    if (chooses(d->ops)) {
        segment.chosen_layers = d->o.config.target_layer;
        segment.chosen = d->o.config.targets;
        segment.hidden_states = d->heard + (size_t)position * aux_width(d);
    }
    kakeya_status status = ops->forward(m, &segment, 1, error);
    if (!status) status = ops->cache_commit(cache, rows, error);
    if (chooses(d->ops)) return status;
    size_t layer = (size_t)rows * (size_t)d->o.config.hidden;
    for (int i = 0; i < d->engine->verifier->config.layers && !status; i++) /* the embedding comes first */
        hear(d, i, position, rows, d->states + (size_t)(i + 1) * layer);
    return status;
}

/* The verifier's hidden states of a sequence: *aux lies in `room` or among those that are kept. */
static kakeya_status listen(drafting *d, size_t index, float *room, const float **aux, kakeya_error *error) {
    const corpus_sequence *s = &d->data->sequence[index];
    *aux = d->kept[index] ? d->kept[index] : room;
    if (d->kept[index]) return KAKEYA_OK;
    const backend_cache_options options = {.context_tokens = s->length,
                                           .attention = KAKEYA_ATTENTION_NATIVE,
                                           .kv_format = d->engine->precision == KAKEYA_PRECISION_F32 ? KV_FORMAT_F32
                                                                                                     : KV_FORMAT_BF16,
                                           .account = &d->engine->account};
    backend_cache *cache = NULL;
    int most = d->engine->ops->model_prompt_chunk(d->engine->model);
    d->heard = room;
    kakeya_status status = d->engine->ops->cache_create(d->engine->model, &options, &cache, error);
    for (int at = 0, rows; at < s->length && !status; at += rows) {
        rows = s->length - at < most ? s->length - at : most;
        status = forward(d, cache, d->data->tokens + s->begin + at, at, rows, error);
    }
    if (cache) d->engine->ops->cache_destroy(cache);
    size_t bytes = (size_t)s->length * aux_width(d) * sizeof *room;
    if (status || bytes > d->o.kept_bytes - d->kept_bytes) return status;
    d->kept[index] = malloc(bytes);
    if (!d->kept[index]) return KAKEYA_OK; /* they are computed again */
    d->kept_bytes += bytes;
    memcpy(d->kept[index], room, bytes);
    return KAKEYA_OK;
}

static void add_result(drafter_trainer_result *to, const drafter_trainer_result *r) {
    to->loss += r->loss;
    to->counted += r->counted;
    to->blocks += r->blocks;
    to->held += r->held;
    for (int i = 0; i < DRAFTER_TRAINER_MAX_BLOCK; i++) {
        to->drafts[i] += r->drafts[i];
        to->right[i] += r->right[i];
    }
}

/* What the drafts of all blocks of a step count together, where each block has all of them. */
static double whole_step(const drafting *d) {
    double block = 0;
    for (int i = 0; i < drafting_block(&d->o) - 1; i++)
        block += d->o.trainer.decay > 0 ? exp(-i / d->o.trainer.decay) : 1;
    return block * d->o.trainer.blocks * d->o.batch;
}

/* Sequence `i` of the next step. */
static kakeya_status prepare(drafting *d, int i, kakeya_error *error) {
    uint64_t number = (uint64_t)d->done * (uint64_t)d->o.batch + (uint64_t)i;
    size_t index = train_passes_sequence(&d->passes, number);
    const corpus_sequence *s = &d->data->sequence[index];
    int *first = d->first + (size_t)i * (size_t)d->o.trainer.blocks;
    float *room = d->aux + (size_t)i * (size_t)d->o.trainer.sequence * aux_width(d);
    drafter_trainer_sequence *q = &d->sequences[i];
    *q = (drafter_trainer_sequence){.tokens = d->data->tokens + s->begin,
                                    .n = s->length,
                                    .first = first,
                                    .blocks = place_blocks(d, s, number, first),
                                    .result = &d->results[i]};
    engine_turn_begin(d->engine); /* sessions of the engine may be open */
    kakeya_status status = listen(d, index, room, &q->aux, error);
    engine_turn_end(d->engine);
    return status;
}

kakeya_status drafting_step(drafting *d, bool (*interrupted)(void *user), void *user, drafting_step_result *out,
                            kakeya_error *error) {
    int step = d->done + 1;
    kakeya_status status = KAKEYA_OK;
    *out = (drafting_step_result){0};
    memset(d->gradient, 0, d->n * sizeof *d->gradient);
    for (int i = 0; i < d->o.batch && !status; i++) {
        if (interrupted && interrupted(user)) return error_set(error, KAKEYA_CANCELLED, "interrupted");
        status = prepare(d, i, error);
    }
    if (status) return status;
    engine_turn_begin(d->engine);
    d->trainer_ops->drafter_trainer_weights(d->trainer, d->weights);
    status = d->trainer_ops->drafter_trainer_learn(d->trainer, d->sequences, d->o.batch, (float)(1 / whole_step(d)),
                                                   d->gradient, error);
    engine_turn_end(d->engine);
    if (status) return status;
    for (int i = 0; i < d->o.batch; i++) add_result(&out->learned, &d->results[i]);
    out->gradient = adamw_length(d->pool, d->gradient, d->trained);
    if (!isfinite(out->learned.loss) || !isfinite(out->gradient))
        return error_set(error, KAKEYA_FORMAT, "step %d: the loss is not a number; use a smaller --rate", step);
    double rate = adamw_rate(d->o.constant, d->o.rate, d->o.warm_up, step, d->o.steps);
    adamw_step(d->pool, &d->o.adamw, rate, step, out->gradient, d->gradient, NULL, d->trained, d->weights, d->moment[0],
               d->moment[1]);
    d->done = step;
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------- saved states */

enum { PARTS = 3 };
static const saved_kind kind = {"KVDRAFT", "the state of a drafter's training"};

kakeya_status drafting_save(const drafting *d, const char *path, uint64_t purpose, kakeya_error *error) {
    const uint64_t numbers[SAVED_NUMBERS] = {(uint64_t)d->done, d->n, d->trained};
    const saved_part parts[PARTS] = {{d->weights, d->n * sizeof(float)},
                                     {d->moment[0], d->trained * sizeof(float)},
                                     {d->moment[1], d->trained * sizeof(float)}};
    return saved_write(&kind, path, purpose, numbers, parts, PARTS, error);
}

kakeya_status drafting_load(drafting *d, const char *path, uint64_t purpose, kakeya_error *error) {
    uint64_t numbers[SAVED_NUMBERS];
    saved_part parts[PARTS];
    kakeya_status status = saved_read(&kind, path, purpose, numbers, parts, PARTS, error);
    if (status) return status;
    if (numbers[1] != d->n || numbers[2] != d->trained) {
        status = error_set(error, KAKEYA_FORMAT, "%s: has %llu weights, the drafter has %zu", path,
                           (unsigned long long)numbers[1], d->n);
    } else {
        memcpy(d->weights, parts[0].data, parts[0].bytes);
        memcpy(d->moment[0], parts[1].data, parts[1].bytes);
        memcpy(d->moment[1], parts[2].data, parts[2].bytes);
        d->done = (int)numbers[0];
    }
    saved_free(parts, PARTS);
    return status;
}
