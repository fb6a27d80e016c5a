#include "session/description.h"

#include <stdlib.h>
#include <string.h>

#include "backend/kv_bytes.h"
#include "backend/synthetic.h"
#include "base/files.h"
#include "base/sized.h"
#include "formats/checkpoint.h"
#include "kakeya_study.h"
#include "model/dflash_gguf.h"
#include "model/gemma4_audio_open.h"
#include "model/gemma4_gguf.h"
#include "model/gemma4_mmproj.h"
#include "model/gemma4_vision_open.h"
#include "model/modules.h"
#include "model/sizes.h"
#include "session/auxiliary_models.h"
#include "session/options.h"

/* ------------------------------------------------------------------------------------------------------- opening */

/* A description that holds its configurations itself. `view` is first: closing frees the whole. */
typedef struct owned_description {
    kakeya_description view;
    model_config verifier;
    block_drafter_config drafter;
    restoration_config f_theta;
    assistant_config assistant;
    vision_model vision;
    audio_model sound;
} owned_description;

/* A configuration file: its path for messages, its text. */
typedef struct config_file {
    char *path, *text; /* malloc'ed */
    size_t bytes;
} config_file;

static void config_file_free(config_file *file) {
    free(file->text);
    free(file->path);
}

/* What reads pictures and sound for a GGUF file, if it has the tensors. */
static kakeya_status read_mmproj(const kakeya_engine_options *o, const gguf *file, owned_description *d,
                                 kakeya_error *error) {
    mem_account account;
    gemma4_mmproj found;
    mem_account_init(&account, NULL, 0);
    kakeya_status status =
        gemma4_mmproj_open(file, &d->verifier, o->mmproj, o->vision == KAKEYA_VISION_OFF, &account, &found, error);
    if (status != KAKEYA_OK) return status;
    if (found.vision) {
        d->view.vision_sizes = vision_model_sizes(found.vision, WEIGHT_BF16);
        d->vision = *found.vision;
        d->vision.weights = NULL;
        d->vision.owned = NULL;
        d->vision.n_owned = 0;
        d->view.vision = &d->vision;
    }
    if (found.sound) {
        d->view.audio_sizes = audio_model_sizes(found.sound, WEIGHT_BF16);
        d->sound = *found.sound;
        d->sound.weights = NULL;
        d->sound.owned = NULL;
        d->sound.n_owned = 0;
        d->view.sound = &d->sound;
    }
    gemma4_mmproj_close(&found);
    return KAKEYA_OK;
}

static kakeya_status read_file(const kakeya_engine_options *o, const char *path, owned_description *d,
                               kakeya_error *error) {
    gguf *file;
    kakeya_status status = gguf_open(path, &file, error);
    if (status != KAKEYA_OK) return status;
    status = gemma4_gguf_config(file, &d->verifier, NULL, error);
    if (status == KAKEYA_OK) status = read_mmproj(o, file, d, error);
    gguf_close(file);
    return status;
}

/* What reads pictures, if config.json says that there is something; its matrices are not quantised. */
static kakeya_status read_vision(const config_file *config, owned_description *d, kakeya_error *error) {
    bool there;
    kakeya_error reason = {0};
    kakeya_status status = vision_model_config(config->path, config->text, config->bytes, &d->verifier, &d->vision,
                                               &there, &reason, error);
    if (status != KAKEYA_OK || !there) return status;
    const weight_format format = d->verifier.checkpoint_format;
    d->view.vision = &d->vision;
    d->view.vision_sizes = vision_model_sizes(&d->vision, weight_format_is_plain(format) ? format : WEIGHT_BF16);
    return KAKEYA_OK;
}

/* What reads sound, likewise. */
static kakeya_status read_sound(const config_file *config, owned_description *d, kakeya_error *error) {
    bool there;
    kakeya_error reason = {0};
    kakeya_status status =
        audio_model_config(config->path, config->text, config->bytes, &d->verifier, &d->sound, &there, &reason, error);
    if (status != KAKEYA_OK || !there) return status;
    const weight_format format = d->verifier.checkpoint_format;
    d->view.sound = &d->sound;
    d->view.audio_sizes = audio_model_sizes(&d->sound, weight_format_is_plain(format) ? format : WEIGHT_BF16);
    return KAKEYA_OK;
}

/* How most matrices of a quantised directory are stored, as its weights say when they are loaded. */
static kakeya_status read_quantisation(const config_file *config, owned_description *d, bool *found,
                                       kakeya_error *error) {
    quantisation *q;
    kakeya_status status = quantisation_parse(config->path, config->text, config->bytes, &q, error);
    *found = status == KAKEYA_OK && q;
    if (*found) {
        const module_scheme scheme = quantisation_find(q, "model.layers.0.mlp.up_proj", true);
        const weight_format format = module_scheme_format(&scheme);
        if (format != WEIGHT_FORMAT_COUNT) d->verifier.checkpoint_format = format;
    }
    quantisation_free(q);
    return status;
}

static kakeya_status read_verifier(const kakeya_engine_options *o, const char *directory, owned_description *d,
                                   kakeya_error *error) {
    if (gguf_is_file(directory)) return read_file(o, directory, d, error);
    config_file config = {0}, generation = {0}, other = {0};
    kakeya_status status =
        checkpoint_text(directory, "config.json", false, &config.path, &config.text, &config.bytes, error);
    if (status == KAKEYA_OK)
        status = checkpoint_text(directory, "generation_config.json", true, &generation.path, &generation.text,
                                 &generation.bytes, error);
    if (status == KAKEYA_OK)
        status = model_config_parse(config.path, config.text, config.bytes, generation.text, generation.bytes,
                                    &d->verifier, error);
    bool found = false;
    if (status == KAKEYA_OK) status = read_quantisation(&config, d, &found, error);
    if (status == KAKEYA_OK && !found) {
        status =
            checkpoint_text(directory, "hf_quant_config.json", true, &other.path, &other.text, &other.bytes, error);
        if (status == KAKEYA_OK && other.text) status = read_quantisation(&other, d, &found, error);
    }
    if (status == KAKEYA_OK && o->vision != KAKEYA_VISION_OFF) status = read_vision(&config, d, error);
    if (status == KAKEYA_OK) status = read_sound(&config, d, error);
    config_file_free(&other);
    config_file_free(&config);
    config_file_free(&generation);
    return status;
}

static kakeya_status read_drafter_file(const char *path, owned_description *d, kakeya_error *error) {
    gguf *file;
    bool scaled;
    kakeya_status status = gguf_open(path, &file, error);
    if (status != KAKEYA_OK) return status;
    status = dflash_gguf_config(file, &d->verifier, &d->drafter, &scaled, error);
    if (status == KAKEYA_OK) d->view.drafter = &d->drafter;
    gguf_close(file);
    return status;
}

static kakeya_status read_assistant(const char *path, owned_description *d, kakeya_error *error) {
    kakeya_status status = assistant_config_read(path, &d->assistant, error);
    if (status == KAKEYA_OK) status = assistant_config_fits(path, &d->assistant, &d->verifier, error);
    if (status == KAKEYA_OK) d->view.assistant = &d->assistant;
    return status;
}

static kakeya_status read_drafter(const char *directory, owned_description *d, kakeya_error *error) {
    if (gguf_is_file(directory)) return read_drafter_file(directory, d, error);
    config_file config = {0};
    kakeya_status status =
        checkpoint_text(directory, "config.json", false, &config.path, &config.text, &config.bytes, error);
    if (status == KAKEYA_OK)
        status = block_drafter_config_parse(config.path, config.text, config.bytes, &d->drafter, error);
    if (status == KAKEYA_OK) d->view.drafter = &d->drafter;
    config_file_free(&config);
    return status;
}

/* One that reads a drafter is of no use without. */
static kakeya_status read_f_theta(const char *directory, owned_description *d, kakeya_error *error) {
    kakeya_status status = restoration_config_read(directory, &d->f_theta, error);
    if (status == KAKEYA_OK && (d->view.drafter || !restoration_needs_drafter(&d->f_theta)))
        d->view.f_theta = &d->f_theta;
    return status;
}

/* The drafter that an option names. */
static kakeya_status read_named(const kakeya_engine_options *o, const char *name, owned_description *d,
                                kakeya_error *error) {
    backend_drafter kind;
    char *path = NULL;
    bool assistant = false;
    if (strcmp(name, "none") == 0) return KAKEYA_OK;
    if (o->study->synthetic && synthetic_is_drafter(name, &kind) && kind == BACKEND_ASSISTANT) {
        assistant_config_published(&d->verifier, &d->assistant);
        d->view.assistant = &d->assistant;
        return KAKEYA_OK;
    }
    kakeya_status status = auxiliary_model_named(name, &path, &assistant, error);
    if (status == KAKEYA_OK) status = (assistant ? read_assistant : read_drafter)(path, d, error);
    free(path);
    return status;
}

/* Those that lie beside the model. */
static kakeya_status read_found(const kakeya_engine_options *o, const char *directory, owned_description *d,
                                kakeya_error *error) {
    char *dflash = NULL, *assistant = NULL;
    kakeya_status status = auxiliary_model_directory(NULL, directory, "-dflash", &dflash, NULL, error);
    if (status == KAKEYA_OK && dflash) status = read_drafter(dflash, d, error);
    if (status == KAKEYA_OK && directory) status = auxiliary_model_assistant(o->model, directory, &assistant, error);
    if (status == KAKEYA_OK && assistant) status = read_assistant(assistant, d, error);
    free(dflash);
    free(assistant);
    return status;
}

static kakeya_status read_all(const kakeya_engine_options *o, owned_description *d, kakeya_error *error) {
    char *directory = NULL, *f_theta = NULL;
    kakeya_status status = KAKEYA_OK;
    if (!o->model == !o->study->synthetic)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "a description needs either `model` or `synthetic`");
    d->view.verifier = &d->verifier;
    if (o->study->synthetic) {
        status = model_config_variant(o->study->synthetic, &d->verifier, error);
    } else {
        status = checkpoint_resolve(o->model, &directory, error);
        if (status == KAKEYA_OK) status = read_verifier(o, directory, d, error);
    }
    if (status == KAKEYA_OK && !o->drafter) status = read_found(o, directory, d, error);
    if (status == KAKEYA_OK && o->drafter) status = read_named(o, o->drafter, d, error);
    if (status == KAKEYA_OK && o->second_drafter) status = read_named(o, o->second_drafter, d, error);
    if (status == KAKEYA_OK)
        status = auxiliary_model_directory(o->f_theta, directory, "-f-theta", &f_theta, NULL, error);
    if (status == KAKEYA_OK && f_theta) status = read_f_theta(f_theta, d, error);
    free(f_theta);
    free(directory);
    return status;
}

kakeya_status kakeya_describe(const kakeya_engine_options *options, kakeya_description **out, kakeya_error *error) {
    *out = NULL;
    kakeya_engine_options resolved;
    kakeya_study_options study;
    kakeya_status status = engine_options_read(options, &resolved, &study, error);
    if (status != KAKEYA_OK) return status;
    owned_description *d = calloc(1, sizeof *d);
    if (!d) return error_set(error, KAKEYA_OUT_OF_MEMORY, "model description: out of memory");
    status = read_all(&resolved, d, error);
    if (status == KAKEYA_OK)
        *out = &d->view;
    else
        free(d);
    return status;
}

void kakeya_description_close(kakeya_description *description) { free(description); }

/* --------------------------------------------------------------------------------------------------------- facts */

static int full_layers(const model_config *c) {
    int n = 0;
    for (int i = 0; i < c->layers; i++) n += c->layer[i].type == LAYER_FULL;
    return n;
}

void kakeya_description_facts_sized(const kakeya_description *d, kakeya_facts *out) {
    const model_config *c = d->verifier;
    parameter_counts parameters = gemma4_parameters(c);
    kakeya_facts facts = {
        .variant = c->variant,
        .weight_type = weight_format_name(c->checkpoint_format),
        .layers = c->layers,
        .sliding_layers = c->layers - full_layers(c),
        .full_attention_layers = full_layers(c),
        .sliding_window = c->sliding_window,
        .hidden = c->hidden,
        .heads = c->heads,
        .vocab = c->vocab,
        .max_context = c->max_context,
        .experts = c->moe ? c->experts : 0,
        .experts_per_token = c->moe ? c->experts_per_token : 0,
        .expert_width = c->moe ? c->expert_intermediate : 0,
        .per_layer_embedding_width = c->ple_width,
        .shared_kv_layers = c->shared_kv_layers,
        .tied_head = c->tied_head,
        .parameters = (uint64_t)parameters.total,
        .active_parameters = (uint64_t)parameters.active,
    };
    facts.has_dflash = d->drafter != NULL;
    if (d->drafter) {
        facts.drafter_layers = d->drafter->layers;
        facts.drafter_block_size = d->drafter->block_size;
        facts.drafter_parameters = (uint64_t)dflash_parameters(d->drafter);
    }
    if (d->assistant) {
        facts.assistant_layers = d->assistant->stack.layers;
        facts.assistant_parameters = (uint64_t)assistant_parameters(d->assistant);
        facts.assistant_draft_parameters = (uint64_t)assistant_draft_parameters(d->assistant);
    }
    if (d->assistant && !d->drafter) {
        facts.drafter_layers = facts.assistant_layers;
        facts.drafter_block_size = ASSISTANT_LONGEST_DRAFT + 1;
        facts.drafter_parameters = facts.assistant_parameters;
    }
    if (d->f_theta) {
        facts.f_theta_rank = d->f_theta->rank_k;
        facts.f_theta_rank_v = d->f_theta->rank_v;
        facts.f_theta_shared = d->f_theta->shared_latent;
        facts.restoration_input = restoration_input_name(d->f_theta->input);
        facts.restoration_latents = restoration_latents_name(d->f_theta->latents);
        facts.f_theta_parameters = (uint64_t)f_theta_parameters(d->f_theta);
    }
    if (d->vision) {
        facts.vision_layers = d->vision->layers;
        facts.vision_hidden = d->vision->hidden;
        facts.vision_budget = d->vision->budget;
        facts.vision_parameters = d->vision_sizes.parameters;
        facts.vision_bytes = d->vision_sizes.bytes;
    }
    if (d->sound) {
        facts.audio_layers = d->sound->layers;
        facts.audio_width = d->sound->conformer ? d->sound->hidden : d->sound->frame;
        facts.audio_parameters = d->audio_sizes.parameters;
        facts.audio_bytes = d->audio_sizes.bytes;
    }
    sized_write(out, &facts, sizeof facts);
}

_Static_assert((int)KAKEYA_PARAMETERS_NORMS + 1 == (int)PARAMETERS_GROUPS &&
                   (int)KAKEYA_PARAMETERS_EXPERTS == (int)PARAMETERS_EXPERTS,
               "the public groups of parameters are those of model/sizes.h");

const char *kakeya_parameter_group_name(kakeya_parameter_group group) {
    return (size_t)group < PARAMETERS_GROUPS ? parameter_group_name((parameter_group)group) : NULL;
}

uint64_t kakeya_description_parameters(const kakeya_description *d, kakeya_parameter_group group) {
    return kakeya_parameter_group_name(group) ? (uint64_t)gemma4_parameters(d->verifier).group[group] : 0;
}

uint64_t kakeya_description_bytes_per_token(const kakeya_description *d, kakeya_precision precision) {
    if (precision != KAKEYA_PRECISION_F32 && precision != KAKEYA_PRECISION_BF16) return 0;
    return (uint64_t)gemma4_bytes_per_token(d->verifier, precision == KAKEYA_PRECISION_F32 ? WEIGHT_F32 : WEIGHT_BF16);
}

/* ------------------------------------------------------------------------------------------------ session memory */

static kv_format format_of(const kakeya_description *d, kakeya_kv_format format) {
    if (format == KAKEYA_KV_AUTO) {
        weight_format weights = d->verifier->checkpoint_format;
        return weights == WEIGHT_BF16 || !weight_format_is_plain(weights) ? KV_FORMAT_BF16 : KV_FORMAT_F32;
    }
    return backend_kv_format(format);
}

timeline description_session(const kakeya_description *d, const kakeya_session_options *o, size_t tokens) {
    const timeline_models models = {d->verifier, d->drafter, d->f_theta, d->assistant};
    const backend_cache_options options = {.attention = o->attention,
                                           .restore_layers = o->restore_layers,
                                           .sink = kakeya_options_sink(o),
                                           .window = kakeya_options_window(o),
                                           .draft_window = kakeya_options_draft_window(o),
                                           .kv_format = format_of(d, o->kv_format),
                                           .keep_draft_context = !o->without_drafter,
                                           .keep_draft_state = !o->without_drafter};
    return timeline_preview(&models, &options, (int)tokens);
}

/* The timeline of such a session. */
static kakeya_status preview(const kakeya_description *d, const kakeya_session_options *options, size_t tokens,
                             timeline *out, kakeya_error *error) {
    kakeya_session_options o;
    kakeya_status status = session_options_read(options, &o, error);
    if (status != KAKEYA_OK) return status;
    if (tokens > (size_t)d->verifier->max_context)
        return error_set(error, KAKEYA_CONTEXT_FULL, "%zu tokens, the model's longest context has %d", tokens,
                         d->verifier->max_context);
    if (!kakeya_attention_name(o.attention) || !kakeya_restore_layers_name(o.restore_layers) ||
        !kakeya_kv_format_name(o.kv_format))
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "session options out of range: attention %d, restore_layers %d, kv_format %d",
                         (int)o.attention, (int)o.restore_layers, (int)o.kv_format);
    if (o.attention == KAKEYA_ATTENTION_RESTORED && !d->f_theta)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "attention 'restored' needs an f_theta, and the model has none");
    *out = description_session(d, &o, tokens);
    return KAKEYA_OK;
}

size_t kakeya_description_layer_bytes(const kakeya_description *d, const kakeya_session_options *options, size_t tokens,
                                      kakeya_memory_kind kind, int layer) {
    timeline t;
    if (layer < 0 || preview(d, options, tokens, &t, NULL) != KAKEYA_OK) return 0;
    if (kind == KAKEYA_MEMORY_KV_DRAFT) return kv_draft_layer_bytes(&t, layer);
    bool there =
        layer < d->verifier->layers && t.layer[layer].kind == (kind == KAKEYA_MEMORY_KV_FULL      ? STORE_PAGES
                                                               : kind == KAKEYA_MEMORY_KV_SLIDING ? STORE_RING
                                                                                                  : STORE_NONE);
    return there ? kv_layer_bytes(&t, layer, 0) : 0;
}

size_t kakeya_description_checkpoint_bytes(const kakeya_description *d, const kakeya_session_options *options,
                                           size_t tokens) {
    timeline t;
    return preview(d, options, tokens, &t, NULL) == KAKEYA_OK ? kv_copied_bytes(&t) : 0;
}

kakeya_status kakeya_description_kv_bytes(const kakeya_description *d, const kakeya_session_options *options,
                                          size_t tokens, kakeya_kv_bytes *out, kakeya_error *error) {
    timeline t;
    kakeya_status status = sized_check("K/V bytes", out, error);
    if (status == KAKEYA_OK) status = preview(d, options, tokens, &t, error);
    if (status != KAKEYA_OK) return status;
    backend_cache_bytes bytes = kv_bytes(&t, 0);
    const kakeya_kv_bytes result = {.full = bytes.full,
                                    .sliding = bytes.sliding,
                                    .latent = bytes.latent,
                                    .draft = bytes.draft,
                                    .total = bytes.total,
                                    .each_token = kv_bytes_per_token(&t)};
    sized_write(out, &result, sizeof result);
    return KAKEYA_OK;
}

size_t kakeya_description_reference_bytes(const kakeya_description *d, kakeya_kv_format format, size_t tokens,
                                          bool rings) {
    if (tokens > (size_t)d->verifier->max_context) return 0;
    return kv_reference_bytes(d->verifier, format_of(d, format), (int)tokens, rings);
}
