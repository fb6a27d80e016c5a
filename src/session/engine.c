#include "session/engine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backend/measure.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/sized.h"
#include "kakeya_study.h"
#include "session/image_rows.h"

static void destroy_locks(kakeya_engine *engine) {
    pthread_mutex_destroy(&engine->scheduler_lock);
    for (int i = 0; i < ENGINE_TURN_PLACES; i++) pthread_cond_destroy(&engine->turn.next[i]);
    pthread_mutex_destroy(&engine->turn.mutex);
}

kakeya_status engine_create(size_t memory_limit_bytes, kakeya_engine **out, kakeya_error *error) {
    *out = NULL;
    kakeya_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return error_set(error, KAKEYA_OUT_OF_MEMORY, "engine: out of memory");
    mem_account_init(&engine->account, NULL, memory_limit_bytes);
    engine->account.ledger = &engine->ledger;
    int failed = pthread_mutex_init(&engine->turn.mutex, NULL) | pthread_mutex_init(&engine->scheduler_lock, NULL);
    for (int i = 0; i < ENGINE_TURN_PLACES; i++) failed |= pthread_cond_init(&engine->turn.next[i], NULL);
    if (failed) {
        destroy_locks(engine);
        free(engine);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "engine lock: out of memory");
    }
    *out = engine;
    return KAKEYA_OK;
}

/* Behind those that wait already. Needs the mutex. */
static void wait_for_turn(engine_turn *turn) {
    unsigned long mine = turn->waited++;
    while (turn->held || turn->served != mine) pthread_cond_wait(&turn->next[mine % ENGINE_TURN_PLACES], &turn->mutex);
    turn->served++;
    turn->passed = false;
}

/* Needs the mutex. */
static void give_turn(engine_turn *turn) {
    turn->held = false;
    if (turn->waited != turn->served) pthread_cond_broadcast(&turn->next[turn->served % ENGINE_TURN_PLACES]);
}

void engine_turn_begin(kakeya_engine *engine) {
    engine_turn *turn = &engine->turn;
    pthread_mutex_lock(&turn->mutex);
    bool others = turn->waited != turn->served;
    if (turn->held || (others && turn->passed))
        wait_for_turn(turn);
    else if (others)
        turn->passed = true;
    turn->held = true;
    pthread_mutex_unlock(&turn->mutex);
}

void engine_turn_end(kakeya_engine *engine) {
    engine_turn *turn = &engine->turn;
    pthread_mutex_lock(&turn->mutex);
    give_turn(turn);
    pthread_mutex_unlock(&turn->mutex);
}

/* A step takes the turn twice, so that two of these pieces can stand between two forwards. */
enum { PIECES_OF_A_STALL = 6 };

double engine_turn_share(kakeya_engine *engine, double *since) {
    const double begin = clock_seconds();
    if (begin - *since < engine->max_stall_ms / (1000.0 * PIECES_OF_A_STALL)) return 0;
    engine_turn *turn = &engine->turn;
    pthread_mutex_lock(&turn->mutex);
    if (turn->waited != turn->served) {
        give_turn(turn);
        wait_for_turn(turn);
        turn->held = true;
    }
    pthread_mutex_unlock(&turn->mutex);
    *since = clock_seconds();
    return *since - begin;
}

/* ----------------------------------------------------------------------------------------------- fingerprint
 * Two engines may exchange snapshots if their K/V mean the same: equal shapes and equal weights. Hashing gigabytes
 * would take longer than opening them, so of each tensor only its beginning, middle and end count. */

static uint64_t hash_int(uint64_t hash, int value) { return hash_fnv1a(hash, &value, sizeof value); }

static uint64_t hash_weight(uint64_t hash, const weight *w) {
    enum { SAMPLE_BYTES = 256 };
    hash = hash_int(hash, w->out);
    hash = hash_int(hash, w->in);
    hash = hash_int(hash, (int)w->format);
    if (!weight_present(w)) return hash;
    const weight_format_info *format = weight_format_find(w->format);
    for (int s = 0; s < format->streams; s++) {
        size_t bytes = weight_stream_bytes(&format->stream[s], w->out, w->in, w->group);
        size_t sample = bytes < SAMPLE_BYTES ? bytes : SAMPLE_BYTES;
        const unsigned char *data = weight_row(w, s, 0);
        hash = hash_fnv1a(hash, data, sample);
        hash = hash_fnv1a(hash, data + (bytes - sample) / 2, sample);
        hash = hash_fnv1a(hash, data + bytes - sample, sample);
    }
    return hash;
}

static uint64_t hash_weights(uint64_t hash, const weight *const *weights, size_t n) {
    for (size_t i = 0; i < n; i++) hash = hash_weight(hash, weights[i]);
    return hash;
}

static uint64_t hash_verifier(uint64_t hash, const language_model *model) {
    const model_config *c = &model->config;
    const int numbers[] = {c->layers, c->hidden, c->heads, c->vocab, c->sliding_window, c->experts, c->ple_width};
    hash = hash_fnv1a(hash, numbers, sizeof numbers);
    hash = hash_weight(hash, &model->weights.embed);
    for (int i = 0; i < c->layers; i++) {
        const layer_weights *l = &model->weights.layer[i];
        const weight *const weights[] = {&l->q_proj,          &l->k_proj,      &l->v_proj,    &l->o_proj,
                                         &l->gate_proj,       &l->up_proj,     &l->down_proj, &l->router_proj,
                                         &l->experts_gate_up, &l->experts_down};
        hash = hash_int(hash, (int)c->layer[i].type);
        hash = hash_weights(hash, weights, sizeof weights / sizeof weights[0]);
        if (weight_present(&l->experts_gate)) hash = hash_weight(hash_weight(hash, &l->experts_gate), &l->experts_up);
    }
    return hash;
}

static uint64_t hash_drafter(uint64_t hash, const block_drafter_model *model) {
    hash = hash_weight(hash_int(hash, model->config.layers), &model->fc);
    for (int i = 0; i < model->config.layers; i++) {
        const block_drafter_layer_weights *l = &model->layer[i];
        const weight *const weights[] = {&l->k_proj, &l->v_proj};
        hash = hash_weights(hash, weights, sizeof weights / sizeof weights[0]);
    }
    return hash;
}

/* What weights do not tell of what sessions hold; nothing for forms of which they tell it all. */
static uint64_t hash_latents(uint64_t hash, const restoration_config *c) {
    if (c->latents != RESTORATION_LATENTS_KV) hash = hash_int(hash, (int)c->latents);
    for (int i = 0; i < c->aux_layers; i++) hash = hash_int(hash, c->aux_layer[i]);
    return hash;
}

static uint64_t hash_f_theta(uint64_t hash, const restoration_model *model) {
    hash = hash_latents(hash, &model->config);
    hash = hash_weight(hash, &model->encoder_k);
    hash = hash_weight(hash, &model->encoder_v);
    for (int i = 0; i < model->config.layers; i++) {
        hash = hash_weight(hash, &model->decoder_k[i]);
        hash = hash_weight(hash, &model->decoder_v[i]);
    }
    return hash;
}

/* -------------------------------------------------------------------------------------------------- life time */

/* Of models beside the verifier, whose files are mapped. */
static size_t mapped_aside(const engine_parts *parts) {
    size_t bytes = 0;
    if (parts->drafter) bytes += parts->drafter->mapped_bytes;
    if (parts->assistant) bytes += parts->assistant->mapped_bytes;
    if (parts->f_theta) bytes += parts->f_theta->mapped_bytes;
    return bytes;
}

kakeya_status engine_complete(kakeya_engine *engine, const engine_parts *parts, kakeya_error *error) {
    engine->ops = parts->ops;
    engine->verifier = parts->verifier;
    engine->drafter = parts->drafter;
    engine->assistant = parts->assistant;
    engine->f_theta = parts->f_theta;
    engine->text = parts->text;
    engine->bytes_lost = parts->bytes_lost;
    engine->call_token = parts->text.tokens ? tokenizer_id(parts->text.tokens, "<|tool_call>") : -1;
    if (engine->call_token >= parts->verifier->config.vocab) engine->call_token = -1;
    engine->description = (kakeya_description){
        .verifier = &parts->verifier->config,
        .drafter = parts->drafter ? &parts->drafter->config : NULL,
        .assistant = parts->assistant ? &parts->assistant->config : NULL,
        .f_theta = parts->f_theta ? &parts->f_theta->config : NULL,
        .vision = parts->verifier->vision,
        .sound = parts->verifier->sound,
    };
    if (parts->verifier->vision)
        engine->description.vision_sizes = vision_model_sizes(parts->verifier->vision, WEIGHT_BF16);
    if (parts->verifier->sound)
        engine->description.audio_sizes = audio_model_sizes(parts->verifier->sound, WEIGHT_BF16);
    kakeya_status refused = backend_precision(parts->ops, parts->verifier->config.checkpoint_format, parts->precision,
                                              &engine->precision, error);
    if (refused) return refused;
    engine->max_batch = parts->max_batch ? parts->max_batch : parts->ops->batch;
    engine->max_stall_ms = parts->max_stall_ms ? parts->max_stall_ms : parts->ops->stall_ms;
    engine->threads = parts->threads;
    engine->on_step = parts->on_step;
    engine->step_user = parts->step_user;
    engine->fingerprint = hash_verifier(hash_int(HASH_FNV1A_START, (int)engine->precision), parts->verifier);
    if (parts->drafter) engine->fingerprint = hash_drafter(engine->fingerprint, parts->drafter);
    if (parts->f_theta) engine->fingerprint = hash_f_theta(engine->fingerprint, parts->f_theta);

    const backend_model_options options = {
        .verifier = parts->verifier,
        .drafter = parts->drafter,
        .assistant = parts->assistant,
        .restoration = parts->f_theta,
        .precision = engine->precision,
        .isa = parts->cpu_isa,
        .threads = parts->threads,
        .devices = parts->devices,
        .n_devices = parts->n_devices,
        .drafter_scaled_embedding = parts->drafter_scaled_embedding,
        .drafter_block_bidirectional = parts->drafter_block_bidirectional,
        .weights_limit = parts->weights_limit,
        .weights_aside = mapped_aside(parts),
        .account = &engine->account,
        .progress = parts->progress,
        .user = parts->user,
    };
    return engine->ops->model_create(&options, &engine->model, error);
}

enum { PARKING_BYTES = 288 << 10 }; /* a buffer of backend/snapshot.h, and a little */

void engine_keep_spare(kakeya_engine *engine) {
    bool wanted = engine->sessions > 1 && engine->account.limit_bytes;
    if (wanted && !engine->spare) engine->spare = mem_alloc(&engine->account, MEM_WORKSPACE, PARKING_BYTES);
    if (!wanted) engine_lend_spare(engine);
}

void engine_lend_spare(kakeya_engine *engine) {
    mem_free(engine->spare);
    engine->spare = NULL;
}

void engine_free(kakeya_engine *engine) {
    mem_free(engine->spare);
    if (engine->model) engine->ops->model_destroy(engine->model);
    if (engine->f_theta) restoration_model_close(engine->f_theta);
    if (engine->drafter) block_drafter_model_close(engine->drafter);
    assistant_model_close(engine->assistant);
    if (engine->verifier) language_model_close(engine->verifier);
    image_rows_close(engine->image_rows);
    free(engine->spill_directory);
    free(engine->drafter_sought);
    free(engine->f_theta_sought);
    tokenizer_release(&engine->text);
    destroy_locks(engine);
    free(engine);
}

size_t engine_file_bytes(FILE *file) {
    struct stat about;
    return fstat(fileno(file), &about) == 0 ? (size_t)about.st_size : 0;
}

void engine_forget_file(kakeya_engine *engine, FILE **file) {
    if (!*file) return;
    atomic_fetch_sub(&engine->spilled_bytes, engine_file_bytes(*file));
    fclose(*file);
    *file = NULL;
}

/* --------------------------------------------------------------------------------------------------- questions */

void kakeya_engine_weights_sized(const kakeya_engine *engine, kakeya_weights *out) {
    kakeya_weights weights = {.size = sizeof weights};
    backend_weights state = {0};
    if (engine->ops->model_weights) engine->ops->model_weights(engine->model, &state);
    weights.limit = state.limit;
    weights.resident = state.resident;
    weights.slot_bytes = state.slot_bytes;
    weights.slots = (size_t)state.slots;
    weights.experts = (size_t)state.experts;
    weights.wanted = state.wanted;
    weights.found = state.found;
    weights.bytes_read = state.bytes;
    weights.failures = state.failures;
    weights.failing = state.failing;
    weights.read_seconds = state.seconds;
    weights.read_method = state.method;
    weights.host_bytes = state.host;
    sized_write(out, &weights, sizeof weights);
}

size_t kakeya_engine_spilled_bytes(const kakeya_engine *engine) { return atomic_load(&engine->spilled_bytes); }

int kakeya_engine_vocab_size(const kakeya_engine *engine) { return engine->verifier->config.vocab; }
int kakeya_engine_hidden_size(const kakeya_engine *engine) { return engine->verifier->config.hidden; }
int kakeya_engine_layers(const kakeya_engine *engine) { return engine->verifier->config.layers; }
int kakeya_engine_max_context(const kakeya_engine *engine) { return engine->verifier->config.max_context; }
kakeya_status engine_check(const kakeya_engine *engine, kakeya_error *error) {
    if (!engine->bytes_lost || !*engine->bytes_lost) return KAKEYA_OK;
    return error_set(error, KAKEYA_BACKEND,
                     "bytes of the model's files are lost: the files were truncated or "
                     "rewritten");
}

bool kakeya_engine_has_tokenizer(const kakeya_engine *engine) { return engine->text.tokens != NULL; }
bool kakeya_engine_has_drafter(const kakeya_engine *engine) { return engine->drafter || engine->assistant; }
bool kakeya_engine_has_f_theta(const kakeya_engine *engine) { return engine->f_theta != NULL; }
bool kakeya_engine_f_theta_loses(const kakeya_engine *engine) { return engine->f_theta && engine->f_theta->note[0]; }

int kakeya_engine_drafter_block_size(const kakeya_engine *engine) {
    return engine->drafter ? engine->drafter->config.block_size : engine->assistant ? ASSISTANT_LONGEST_DRAFT + 1 : 0;
}

backend_drafter engine_drafter(const kakeya_engine *engine) {
    return engine->drafter ? BACKEND_BLOCK_DRAFTER : BACKEND_ASSISTANT;
}

timeline_models engine_models(const kakeya_engine *engine) {
    const kakeya_description *d = &engine->description;
    return (timeline_models){d->verifier, d->drafter, d->f_theta, d->assistant};
}

const kakeya_tokenizer *kakeya_engine_tokenizer(const kakeya_engine *engine) {
    return engine && engine->text.tokens ? &engine->text : NULL;
}

const kakeya_description *kakeya_engine_description(const kakeya_engine *engine) { return &engine->description; }

const char *kakeya_engine_backend(const kakeya_engine *engine) { return engine->ops->model_description(engine->model); }
kakeya_precision kakeya_engine_precision(const kakeya_engine *engine) { return engine->precision; }

bool kakeya_engine_is_stop_token(const kakeya_engine *engine, int32_t token) {
    const model_config *config = &engine->verifier->config;
    for (int i = 0; i < config->n_stop_tokens; i++)
        if (config->stop_tokens[i] == token) return true;
    return false;
}

const char *kakeya_engine_note(const kakeya_engine *engine, size_t i) {
    const char *const notes[] = {
        engine->verifier->note,
        engine->text.tokens ? engine->text.chat.note : "",
        engine->ops->model_note ? engine->ops->model_note(engine->model) : "",
        engine->plugin_note ? engine->plugin_note : "",
        engine->drafter_note,
        engine->f_theta ? engine->f_theta->note : "",
    };
    for (size_t n = 0; n < sizeof notes / sizeof notes[0]; n++)
        if (notes[n][0] && i-- == 0) return notes[n];
    return NULL;
}

const char *kakeya_engine_chat_template(const kakeya_engine *engine) {
    return engine->text.chat_template ? engine->text.chat_template : "";
}

size_t kakeya_engine_kv_room(const kakeya_engine *engine) {
    const mem_account *account = &engine->account;
    const size_t kv = mem_bytes(account, MEM_KV_FULL) + mem_bytes(account, MEM_KV_SLIDING) +
                      mem_bytes(account, MEM_KV_LATENT) + mem_bytes(account, MEM_KV_DRAFT);
    if (account->limit_bytes) {
        size_t others = mem_total(account) - kv;
        return account->limit_bytes > others ? account->limit_bytes - others : 0;
    }
    const backend_measure_ops *measure = backend_measure_find(engine->ops);
    size_t available = measure && measure->free_bytes ? measure->free_bytes(engine->model) : 0;
    return available ? available + kv : 0;
}

size_t kakeya_engine_layer_memory(const kakeya_engine *engine, kakeya_memory_kind kind, int layer) {
    bool known = kakeya_memory_name(kind) && layer >= 0 && layer < MEM_LAYERS;
    return known ? mem_bytes(&engine->account, mem_layer_tag((mem_tag)kind, layer)) : 0;
}

size_t kakeya_engine_memory(const kakeya_engine *engine, kakeya_memory_kind kind) {
    return kakeya_memory_name(kind) ? mem_bytes(&engine->account, (mem_tag)kind) : 0;
}
