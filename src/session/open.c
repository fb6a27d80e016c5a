/* Opening an engine from directories: which models belong together, and in which order they are read. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/registry.h"
#include "backend/synthetic.h"
#include "base/device_list.h"
#include "base/files.h"
#include "formats/checkpoint.h"
#include "model/gemma4_facts.h"
#include "session/auxiliary_models.h"
#include "session/engine.h"
#include "session/image_rows.h"
#include "session/options.h"
#include "session/prompt_media.h"
#include "session/scheduler.h"

enum { LOADING_STEPS = 4 }; /* verifier, drafter, f_theta, backend */

static kakeya_status loading(const kakeya_engine_options *options, uint64_t done, kakeya_error *error) {
    if (!options->progress || options->progress(options->user, "loading", done, LOADING_STEPS)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "loading was cancelled");
}

static bool runs_assistants(const engine_parts *parts) { return parts->ops->assistants && parts->n_devices <= 1; }

static kakeya_status no_assistants(const char *path, const engine_parts *parts, kakeya_error *error) {
    if (parts->ops->assistants)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "%s is an MTP assistant, which drafts on one device, not on %d: choose one, or drafter none",
                         path, parts->n_devices);
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "%s is an MTP assistant, which backend %s does not support: choose backend cpu, or drafter "
                     "none",
                     path, parts->ops->name);
}

static kakeya_status two_of_a_kind(const kakeya_engine_options *options, const char *kind, kakeya_error *error) {
    return error_set(error, KAKEYA_INVALID_ARGUMENT,
                     "drafters %s and %s are both %s: a session uses at most one of each kind", options->drafter,
                     options->second_drafter, kind);
}

/* The drafter that an option names. */
static kakeya_status open_named(kakeya_engine *engine, const kakeya_engine_options *options, const char *name,
                                engine_parts *parts, kakeya_error *error) {
    const model_config *verifier = &parts->verifier->config;
    char *path = NULL;
    bool assistant = false;
    backend_drafter kind;
    kakeya_status status = KAKEYA_OK;
    const bool made = options->study->synthetic && synthetic_is_drafter(name, &kind);
    if (made)
        assistant = kind == BACKEND_ASSISTANT;
    else
        status = auxiliary_model_named(name, &path, &assistant, error);
    if (status == KAKEYA_OK && assistant && !runs_assistants(parts))
        status = no_assistants(made ? name : path, parts, error);
    else if (status == KAKEYA_OK && assistant && parts->assistant)
        status = two_of_a_kind(options, "MTP assistants", error);
    else if (status == KAKEYA_OK && assistant)
        status = made ? synthetic_assistant(verifier, &engine->account, &parts->assistant, error)
                      : assistant_model_open(path, verifier, &engine->account, &parts->assistant, error);
    else if (status == KAKEYA_OK && parts->drafter)
        status = two_of_a_kind(options, "DFlash drafters", error);
    else if (status == KAKEYA_OK)
        status = made ? synthetic_drafter(parts->ops, verifier, &engine->account, &parts->drafter, error)
                      : block_drafter_model_open(path, verifier, &engine->account, &parts->drafter, error);
    free(path);
    return status;
}

/* Those that lie beside the model. */
static kakeya_status open_found(kakeya_engine *engine, const kakeya_engine_options *options, const char *directory,
                                engine_parts *parts, kakeya_error *error) {
    const model_config *verifier = &parts->verifier->config;
    char *dflash = NULL, *assistant = NULL;
    kakeya_status status =
        auxiliary_model_directory(NULL, directory, "-dflash", &dflash, &engine->drafter_sought, error);
    if (status == KAKEYA_OK && dflash)
        status = block_drafter_model_open(dflash, verifier, &engine->account, &parts->drafter, error);
    if (status == KAKEYA_OK && directory)
        status = auxiliary_model_assistant(options->model, directory, &assistant, error);
    if (status == KAKEYA_OK && assistant && runs_assistants(parts))
        status = assistant_model_open(assistant, verifier, &engine->account, &parts->assistant, error);
    else if (status == KAKEYA_OK && assistant && !dflash && parts->ops->assistants)
        snprintf(engine->drafter_note, sizeof engine->drafter_note,
                 "the MTP assistant beside the model is not used: it drafts on one device, and %d are there",
                 parts->n_devices);
    else if (status == KAKEYA_OK && assistant && !dflash)
        snprintf(engine->drafter_note, sizeof engine->drafter_note,
                 "the MTP assistant beside the model is not used: backend %s does not run it, backend cpu does",
                 parts->ops->name);
    free(dflash);
    free(assistant);
    return status;
}

static kakeya_status open_drafters(kakeya_engine *engine, const kakeya_engine_options *options, const char *directory,
                                   engine_parts *parts, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (!options->drafter)
        status = open_found(engine, options, directory, parts, error);
    else if (strcmp(options->drafter, "none") != 0)
        status = open_named(engine, options, options->drafter, parts, error);
    if (status == KAKEYA_OK && options->second_drafter)
        status = open_named(engine, options, options->second_drafter, parts, error);
    if (status == KAKEYA_OK && parts->drafter) parts->drafter_scaled_embedding |= parts->drafter->scaled_embedding;
    return status;
}

static kakeya_status open_f_theta(kakeya_engine *engine, const kakeya_engine_options *options, const char *directory,
                                  engine_parts *parts, kakeya_error *error) {
    char *f_theta = NULL;
    const block_drafter_config *drafter = parts->drafter ? &parts->drafter->config : NULL;
    restoration_config config;
    if (options->study->synthetic && options->f_theta && synthetic_is_f_theta(options->f_theta))
        return synthetic_f_theta(parts->ops, options->f_theta, &parts->verifier->config, drafter, &engine->account,
                                 &parts->f_theta, error);
    kakeya_status status =
        auxiliary_model_directory(options->f_theta, directory, "-f-theta", &f_theta, &engine->f_theta_sought, error);
    bool fits = true;
    if (status == KAKEYA_OK && f_theta && !drafter) {
        status = restoration_config_read(f_theta, &config, error);
        fits = status == KAKEYA_OK && !restoration_needs_drafter(&config);
        /* a sibling that nobody asked for is of no use without the drafter that it reads */
        if (status == KAKEYA_OK && !fits && options->f_theta)
            status = parts->assistant
                         ? error_set(error, KAKEYA_INVALID_ARGUMENT,
                                     "f_theta %s reads a DFlash drafter's context (input %s), which an MTP assistant "
                                     "does not have: give it a DFlash drafter, or an f_theta of input aux_hidden",
                                     f_theta, restoration_input_name(config.input))
                         : error_set(error, KAKEYA_INVALID_ARGUMENT, "f_theta %s needs a drafter, and there is none",
                                     f_theta);
    }
    if (status == KAKEYA_OK && f_theta && fits)
        status = restoration_model_open(f_theta, &parts->verifier->config, drafter, &engine->account, &parts->f_theta,
                                        error);
    free(f_theta);
    return status;
}

/* What ends an answer in turns that this program writes, whatever the files say: directories often do not name them,
 * and GGUF files give some of them another type or another id. */
static void add_turn_ends(const tokenizer *tokens, model_config *config) {
    static const char *const texts[] = {"<eos>", "<turn|>", "<|tool_response>", "<end_of_turn>"};
    for (size_t i = 0; tokens && i < sizeof texts / sizeof texts[0]; i++)
        gemma4_add_turn_end(config, tokenizer_id(tokens, texts[i]));
}

/* Reads everything into *parts; what was read is there also on failure. */
static kakeya_status open_parts(kakeya_engine *engine, const kakeya_engine_options *options, const char *directory,
                                engine_parts *parts, kakeya_error *error) {
    kakeya_status status = loading(options, 0, error);
    if (status == KAKEYA_OK && options->study->synthetic)
        status = synthetic_verifier(parts->ops, options->study->synthetic, &engine->account, &parts->verifier, error);
    else if (status == KAKEYA_OK)
        status = language_model_open_parts(
            directory, &(gemma4_parts){.mmproj = options->mmproj, .no_vision = options->vision == KAKEYA_VISION_OFF},
            &engine->account, &parts->verifier, error);
    if (status == KAKEYA_OK && parts->verifier->config.raw_values && !parts->ops->raw_values)
        status = error_set(error, KAKEYA_UNSUPPORTED,
                           "%s is a Gemma 3, which backend %s does not support: choose backend cpu",
                           directory ? directory : options->study->synthetic, parts->ops->name);
    if (status == KAKEYA_OK && directory)
        status = tokenizer_read(directory, parts->verifier->config.variant, &parts->text, error);
    if (status == KAKEYA_OK) add_turn_ends(parts->text.tokens, &parts->verifier->config);
    if (status == KAKEYA_OK) status = loading(options, 1, error);
    if (status == KAKEYA_OK) status = open_drafters(engine, options, directory, parts, error);
    if (status == KAKEYA_OK) status = loading(options, 2, error);
    if (status == KAKEYA_OK) status = open_f_theta(engine, options, directory, parts, error);
    if (status == KAKEYA_OK) status = loading(options, 3, error);
    return status;
}

static kakeya_status check_options(const kakeya_engine_options *options, kakeya_error *error) {
    if (!options->model && !options->study->synthetic)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "no model given: set `model`");
    if (options->model && options->study->synthetic)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "model '%s' and synthetic '%s' are both given", options->model,
                         options->study->synthetic);
    if (options->second_drafter &&
        (!options->drafter || strcmp(options->drafter, "none") == 0 || strcmp(options->second_drafter, "none") == 0))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "drafter '%s' and '%s': two drafters must be a DFlash drafter and an MTP assistant",
                         options->drafter ? options->drafter : "", options->second_drafter);
    if (options->mmproj && !options->model)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "mmproj '%s' is for a GGUF file, not for synthetic '%s'",
                         options->mmproj, options->study->synthetic);
    if (!kakeya_vision_name(options->vision))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "vision is %d, none of auto, on, off", (int)options->vision);
    if (options->threads < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "threads is %d, must be at least 0", options->threads);
    if (options->max_batch < 0 || options->max_batch > BACKEND_MAX_SEGMENTS)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "max_batch is %d, must be 1 to %d, or 0 for the default",
                         options->max_batch, (int)BACKEND_MAX_SEGMENTS);
    if (options->max_stall_ms < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "max_stall_ms is %d, must be at least 0",
                         options->max_stall_ms);
    if (options->precision < KAKEYA_PRECISION_AUTO || options->precision > KAKEYA_PRECISION_FP8)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "precision %d is none of auto, f32, bf16, int8, fp8",
                         (int)options->precision);
    return KAKEYA_OK;
}

static kakeya_status read_devices(const char *text, const backend_ops *ops, int devices[DEVICE_LIST_MOST], int *n,
                                  kakeya_error *error) {
    *n = 0;
    if (!text || !*text) return KAKEYA_OK;
    if (!ops->most_devices)
        return error_set(error, KAKEYA_UNSUPPORTED, "devices '%s': backend %s has none that can be chosen", text,
                         ops->name);
    return device_list_read(text, ops->most_devices, devices, n, error);
}

/* It is to take files, before anybody has to wait. */
static kakeya_status set_spill_directory(kakeya_engine *engine, const char *directory, kakeya_error *error) {
    if (!directory) return KAKEYA_OK;
    FILE *file = file_unnamed(directory);
    if (!file) return error_set(error, KAKEYA_IO, "spill directory %s: %s", directory, strerror(errno));
    fclose(file);
    engine->spill_directory = strdup(directory);
    return engine->spill_directory ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "engine: out of memory");
}

static kakeya_status open_engine(const kakeya_engine_options *options, kakeya_engine **out, kakeya_error *error) {
    kakeya_engine *engine = NULL;
    char *directory = NULL;
    engine_parts parts = {
        .precision = options->precision,
        .cpu_isa = options->study->cpu_isa,
        .threads = options->threads,
        .drafter_scaled_embedding = options->study->drafter_scaled_embedding,
        .drafter_block_bidirectional = options->study->drafter_block_bidirectional,
        .weights_limit = options->weights_limit_bytes,
        .max_batch = options->max_batch,
        .max_stall_ms = options->max_stall_ms,
        .on_step = options->on_step,
        .bytes_lost = options->bytes_lost,
        .step_user = options->step_user,
        .progress = options->progress,
        .user = options->user,
    };
    kakeya_status status = check_options(options, error);
    if (status == KAKEYA_OK) {
        parts.ops = backend_find(options->backend, error);
        if (!parts.ops) status = KAKEYA_UNSUPPORTED;
    }
    if (status == KAKEYA_OK && parts.weights_limit && !parts.ops->bounds_weights)
        status = error_set(error, KAKEYA_UNSUPPORTED,
                           "weights limit: backend %s has all weights in its memory: choose backend cpu or cuda",
                           parts.ops->name);
    int devices[DEVICE_LIST_MOST];
    if (status == KAKEYA_OK) status = read_devices(options->devices, parts.ops, devices, &parts.n_devices, error);
    parts.devices = devices;
    if (status == KAKEYA_OK && options->model) status = checkpoint_resolve(options->model, &directory, error);
    if (status == KAKEYA_OK) status = engine_create(options->memory_limit_bytes, &engine, error);
    if (status == KAKEYA_OK && (!options->backend || strcmp(options->backend, "auto") == 0))
        engine->plugin_note = backend_refused_plugin();
    if (status == KAKEYA_OK) status = set_spill_directory(engine, options->spill_directory, error);
    if (status == KAKEYA_OK && options->image_rows_bytes) {
        engine->image_rows = image_rows_open(options->image_rows_bytes);
        if (!engine->image_rows) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "engine: out of memory");
    }
    if (status == KAKEYA_OK) {
        engine->vision_off = options->vision == KAKEYA_VISION_OFF;
        engine->relieve = options->relieve;
        engine->relieve_user = options->relieve_user;
        status = open_parts(engine, options, directory, &parts, error);
        if (status == KAKEYA_OK) {
            status = engine_complete(engine, &parts, error);
        } else { /* the engine owns what was read so far and closes it */
            engine->verifier = parts.verifier;
            engine->drafter = parts.drafter;
            engine->assistant = parts.assistant;
            engine->f_theta = parts.f_theta;
            engine->text = parts.text;
        }
    }
    if (status == KAKEYA_OK && options->vision == KAKEYA_VISION_ON) status = prompt_media_load(engine, error);
    if (status == KAKEYA_OK) status = loading(options, LOADING_STEPS, error);
    if (status == KAKEYA_OK) status = engine_check(engine, error);
    free(directory);
    if (status != KAKEYA_OK) {
        kakeya_engine_close(engine);
        return status;
    }
    *out = engine;
    return KAKEYA_OK;
}

kakeya_status kakeya_engine_open(const kakeya_engine_options *options, kakeya_engine **out, kakeya_error *error) {
    *out = NULL;
    kakeya_engine_options resolved;
    kakeya_study_options study;
    kakeya_status status = engine_options_read(options, &resolved, &study, error);
    return status == KAKEYA_OK ? open_engine(&resolved, out, error) : status;
}

void kakeya_engine_close(kakeya_engine *engine) {
    if (!engine) return;
    if (engine->scheduler) scheduler_close(engine->scheduler);
    engine_free(engine);
}
