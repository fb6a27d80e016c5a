/* Opening an engine from directories: which models belong together, and in which order they are read. */
#include <stdlib.h>
#include <string.h>

#include "backend/synthetic.h"
#include "base/files.h"
#include "formats/checkpoint.h"
#include "session/engine.h"

void kakeya_engine_options_init(kakeya_engine_options *options) { *options = (kakeya_engine_options){0}; }

/* The directory of a companion model: what the option names, "none", or the model directory's sibling if that exists.
 * *directory stays NULL where there is none. */
static kakeya_status companion_directory(const char *option, const char *model_directory, const char *suffix,
                                         char **directory, kakeya_error *error) {
    *directory = NULL;
    if (option && strcmp(option, "none") == 0) return KAKEYA_OK;
    if (option) return checkpoint_resolve(option, directory, error);
    if (!model_directory) return KAKEYA_OK;
    size_t length = strlen(model_directory);
    while (length > 1 && model_directory[length - 1] == '/') length--;
    char *sibling = malloc(length + strlen(suffix) + 1);
    if (!sibling) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", model_directory);
    memcpy(sibling, model_directory, length);
    strcpy(sibling + length, suffix);
    if (directory_exists(sibling))
        *directory = sibling;
    else
        free(sibling);
    return KAKEYA_OK;
}

static kakeya_status open_tokenizer(const char *directory, tokenizer **out, kakeya_error *error) {
    char *path = path_join(directory, "tokenizer.json");
    if (!path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    kakeya_status status = file_exists(path) ? tokenizer_open(path, out, error) : KAKEYA_OK;
    free(path);
    return status;
}

/* How the model's turns are written: as its chat_template.jinja says, else as its published siblings do. */
static kakeya_status read_chat_template(const char *directory, const gemma4_config *config, chat_template_info *out,
                                        kakeya_error *error) {
    const size_t max_bytes = (size_t)4 << 20;
    bool empty_thought = strcmp(config->variant, "26b-a4b") == 0 || strcmp(config->variant, "31b") == 0;
    *out = (chat_template_info){
        .known = true, .gemma_turns = true, .style = empty_thought ? CHAT_STYLE_EMPTY_THOUGHT : CHAT_STYLE_PLAIN};
    char *path = path_join(directory, "chat_template.jinja"), *text = NULL;
    if (!path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    kakeya_status status = KAKEYA_OK;
    size_t bytes = 0;
    if (file_exists(path)) {
        status = file_read(path, max_bytes, &text, &bytes, error);
        if (status == KAKEYA_OK) *out = chat_template_check(text, bytes);
    }
    free(text);
    free(path);
    return status;
}

enum { LOADING_STEPS = 4 }; /* verifier, drafter, f_theta, backend */

static kakeya_status loading(const kakeya_engine_options *options, uint64_t done, kakeya_error *error) {
    if (!options->progress || options->progress(options->user, "loading", done, LOADING_STEPS)) return KAKEYA_OK;
    return error_set(error, KAKEYA_CANCELLED, "loading was cancelled");
}

static kakeya_status open_drafter(kakeya_engine *engine, const kakeya_engine_options *options, const char *directory,
                                  engine_parts *parts, kakeya_error *error) {
    const gemma4_config *verifier = &parts->verifier->config;
    char *drafter = NULL;
    kakeya_status status;
    if (options->synthetic && options->drafter && strcmp(options->drafter, "synthetic") == 0)
        return synthetic_drafter(parts->ops, verifier, &engine->account, &parts->drafter, error);
    status = companion_directory(options->drafter, directory, "-dflash", &drafter, error);
    if (status == KAKEYA_OK && drafter)
        status = dflash_model_open(drafter, verifier, &engine->account, &parts->drafter, error);
    free(drafter);
    return status;
}

static kakeya_status open_f_theta(kakeya_engine *engine, const kakeya_engine_options *options, const char *directory,
                                  engine_parts *parts, kakeya_error *error) {
    char *f_theta = NULL;
    if (options->synthetic && parts->drafter && options->f_theta && strcmp(options->f_theta, "synthetic") == 0)
        return synthetic_f_theta(parts->ops, &parts->verifier->config, &parts->drafter->config, &engine->account,
                                 &parts->f_theta, error);
    kakeya_status status = companion_directory(options->f_theta, directory, "-f-theta", &f_theta, error);
    if (status == KAKEYA_OK && f_theta && !parts->drafter) {
        /* a sibling that nobody asked for is of no use without the drafter */
        if (options->f_theta)
            status =
                error_set(error, KAKEYA_INVALID_ARGUMENT, "f_theta %s needs a drafter, and there is none", f_theta);
    } else if (status == KAKEYA_OK && f_theta) {
        status = f_theta_model_open(f_theta, &parts->verifier->config, &parts->drafter->config, &engine->account,
                                    &parts->f_theta, error);
    }
    free(f_theta);
    return status;
}

/* Reads everything into *parts; what was read is there also on failure. */
static kakeya_status open_parts(kakeya_engine *engine, const kakeya_engine_options *options, const char *directory,
                                engine_parts *parts, kakeya_error *error) {
    kakeya_status status = loading(options, 0, error);
    if (status == KAKEYA_OK && options->synthetic)
        status = synthetic_verifier(parts->ops, options->synthetic, &engine->account, &parts->verifier, error);
    else if (status == KAKEYA_OK)
        status = gemma4_model_open(directory, &engine->account, &parts->verifier, error);
    if (status == KAKEYA_OK && directory) status = open_tokenizer(directory, &parts->tokenizer, error);
    if (status == KAKEYA_OK && directory)
        status = read_chat_template(directory, &parts->verifier->config, &parts->chat, error);
    if (status == KAKEYA_OK) status = loading(options, 1, error);
    if (status == KAKEYA_OK) status = open_drafter(engine, options, directory, parts, error);
    if (status == KAKEYA_OK) status = loading(options, 2, error);
    if (status == KAKEYA_OK) status = open_f_theta(engine, options, directory, parts, error);
    if (status == KAKEYA_OK) status = loading(options, 3, error);
    return status;
}

static kakeya_status check_options(const kakeya_engine_options *options, kakeya_error *error) {
    if (!options->model && !options->synthetic)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "no model given: set `model` or `synthetic`");
    if (options->model && options->synthetic)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "model '%s' and synthetic '%s' are both given", options->model,
                         options->synthetic);
    if (options->threads < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "threads is %d, must be at least 0", options->threads);
    if (options->precision < KAKEYA_PRECISION_AUTO || options->precision > KAKEYA_PRECISION_BF16)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "precision %d is none of auto, f32, bf16",
                         (int)options->precision);
    return KAKEYA_OK;
}

kakeya_status kakeya_engine_open(const kakeya_engine_options *options, kakeya_engine **out, kakeya_error *error) {
    *out = NULL;
    kakeya_engine *engine = NULL;
    char *directory = NULL;
    engine_parts parts = {
        .precision = options->precision,
        .cpu_isa = options->cpu_isa,
        .threads = options->threads,
        .drafter_scaled_embedding = options->drafter_scaled_embedding,
        .drafter_block_bidirectional = options->drafter_block_bidirectional,
        .progress = options->progress,
        .user = options->user,
    };
    kakeya_status status = check_options(options, error);
    if (status == KAKEYA_OK) {
        parts.ops = backend_find(options->backend, error);
        if (!parts.ops) status = KAKEYA_UNSUPPORTED;
    }
    if (status == KAKEYA_OK && options->model) status = checkpoint_resolve(options->model, &directory, error);
    if (status == KAKEYA_OK) status = engine_create(options->memory_limit_bytes, &engine, error);
    if (status == KAKEYA_OK) {
        status = open_parts(engine, options, directory, &parts, error);
        if (status == KAKEYA_OK) {
            status = engine_complete(engine, &parts, error);
        } else { /* the engine owns what was read so far and closes it */
            engine->verifier = parts.verifier;
            engine->drafter = parts.drafter;
            engine->f_theta = parts.f_theta;
            engine->tokenizer = parts.tokenizer;
        }
    }
    if (status == KAKEYA_OK) status = loading(options, LOADING_STEPS, error);
    free(directory);
    if (status != KAKEYA_OK) {
        kakeya_engine_close(engine);
        return status;
    }
    *out = engine;
    return KAKEYA_OK;
}
