/* Models opened and made: which files they come from, and what of a checkpoint is not the text model's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_keys.h"
#include "model/gemma4_audio_open.h"
#include "model/gemma4_gguf.h"
#include "model/gemma4_mmproj.h"
#include "model/gemma4_modules.h"
#include "model/gemma4_vision_open.h"
#include "model/tensors.h"
#include "model/vision_model.h"

static bool has_ending(const char *name, const char *ending) {
    size_t length = strlen(name), n = strlen(ending);
    return length >= n && strcmp(name + length - n, ending) == 0;
}

/* Frequencies that older versions of transformers stored beside the weights; they follow from the configuration. */
static bool is_rotary_buffer(const char *name) { return strstr(name, "rotary_emb.") && has_ending(name, "inv_freq"); }

/* Vision and audio towers, and their clipping bounds. */
static bool is_other_modality(const char *name) {
    static const char *const parts[] = {"vision_tower.", "embed_vision.",    "audio_tower.",
                                        "embed_audio.",  "vision_embedder.", "multi_modal_projector."};
    static const char *const endings[] = {".input_min", ".input_max", ".output_min", ".output_max"};
    const char *inner = strncmp(name, "model.", 6) == 0 ? name + 6 : name;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strncmp(inner, parts[i], strlen(parts[i])) == 0) return true;
    }
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (has_ending(name, endings[i])) return true;
    }
    return false;
}

/* Scales of a K/V cache in FP8, which some quantised checkpoints bring along. */
static bool is_cache_scale(const char *name) { return has_ending(name, ".k_scale") || has_ending(name, ".v_scale"); }

static bool is_skipped(const char *name) {
    return is_rotary_buffer(name) || is_other_modality(name) || is_cache_scale(name);
}

/* Norms of Gemma 3 as they are used: checkpoints store what is added to 1, in float32 after widening; the scale of
 * attention is part of q_norm. GGUF files hold the sum. */
typedef struct norms_pass {
    language_model *model;
    bool stored_less_one;
} norms_pass;

static kakeya_status settle_norm(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    const norms_pass *pass = context;
    if (slot->kind != SLOT_VECTOR) return KAKEYA_OK;
    float *const *bound = (float *const *)(const void *)((char *)&pass->model->weights + slot->offset);
    bool query = has_ending(slot->name, "self_attn.q_norm.weight") && pass->model->config.query_scale > 0;
    for (int64_t i = 0; i < slot->shape[0]; i++) {
        if (pass->stored_less_one) (*bound)[i] += 1.0f;
        if (query) (*bound)[i] *= pass->model->config.query_scale;
    }
    return KAKEYA_OK;
}

/* What no file of Gemma 3 says. */
static void settle_scalars(language_model *model) {
    for (int i = 0; model->config.generation == GEMMA_3 && i < model->config.layers; i++)
        model->weights.layer[i].layer_scalar = 1;
}

static void adopt(language_model *model, const tensor_memory *memory) {
    model->owned = memory->owned;
    model->n_owned = memory->n_owned;
    model->mapped_bytes = memory->mapped_bytes;
    if (model->config.tied_head) model->weights.head = model->weights.embed;
    bool other_modality = false; /* buffers alone are not worth a note */
    for (size_t i = 0; memory->skipped && i < model->checkpoint->n_tensors; i++)
        other_modality |= is_other_modality(model->checkpoint->tensors[i]->name);
    if (other_modality)
        snprintf(model->note, sizeof model->note, "%zu vision and audio tensors skipped: text only", memory->skipped);
}

/* What stands for a picture's or a sound's rows is never an answer's token. */
static void suppress(model_config *c, int token) {
    for (int i = 0; i < c->n_suppress_tokens; i++)
        if (c->suppress_tokens[i] == token) return;
    if (c->n_suppress_tokens < MODEL_MAX_SUPPRESS_TOKENS) c->suppress_tokens[c->n_suppress_tokens++] = token;
}

static bool is_audio(const char *name) {
    if (strncmp(name, "model.", 6) == 0) name += 6;
    return strncmp(name, "audio_tower.", 12) == 0 || strncmp(name, "embed_audio.", 12) == 0;
}

/* Tensors of what reads sound, or of what reads pictures. */
static size_t count_tensors(const checkpoint *ck, bool audio) {
    size_t n = 0;
    for (size_t i = 0; i < ck->n_tensors; i++)
        n += is_other_modality(ck->tensors[i]->name) && is_audio(ck->tensors[i]->name) == audio;
    return n;
}

/* Of a GGUF file, whose vocabulary names them; a directory's configuration does so itself. */
static void suppress_placeholders(language_model *model) {
    static const char *const texts[] = {"<|image|>", "<|audio|>", "<|video|>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const int token = gguf_keys_token(model->file, model->config.vocab, texts[i]);
        if (token >= 0) suppress(&model->config, token);
    }
}

static void add_note(language_model *model, const char *what, const char *reason) {
    const size_t used = strlen(model->note);
    if (*reason) snprintf(model->note + used, sizeof model->note - used, "%s%s: %s", used ? "; " : "", what, reason);
}

static void note_audio(language_model *model, size_t skipped) {
    const size_t used = strlen(model->note);
    snprintf(model->note + used, sizeof model->note - used, "%s%zu audio tensors skipped", used ? "; " : "", skipped);
}

/* What reads pictures, unless it is left out, and sound for a GGUF file. */
static kakeya_status open_mmproj(const gemma4_parts *parts, mem_account *account, language_model *model,
                                 kakeya_error *error) {
    gemma4_mmproj found;
    kakeya_status status =
        gemma4_mmproj_open(model->file, &model->config, parts->mmproj, parts->no_vision, account, &found, error);
    if (status != KAKEYA_OK) return status;
    model->mmproj = found.file;
    model->vision = found.vision;
    model->sound = found.sound;
    snprintf(model->no_sound, sizeof model->no_sound, "%s", found.no_sound);
    if (model->vision || model->sound || parts->no_vision) suppress_placeholders(model);
    add_note(model, "no pictures", found.no_pictures);
    size_t skipped = 0;
    for (size_t i = 0; !found.sound && i < model->file->n_tensors; i++)
        skipped += gemma4_gguf_is_audio(model->file->tensors[i]->name);
    if (found.sound_is_broken)
        add_note(model, "no sound", found.no_sound);
    else if (skipped)
        note_audio(model, skipped);
    return KAKEYA_OK;
}

/* What of a checkpoint is left out, once it is known what reads pictures and sound. */
static void note_skipped(language_model *model) {
    const size_t pictures = model->vision ? 0 : count_tensors(model->checkpoint, false);
    const size_t audio = model->sound ? 0 : count_tensors(model->checkpoint, true);
    if (!model->vision && !model->sound) return; /* says so already */
    model->note[0] = '\0';
    if (audio) snprintf(model->note, sizeof model->note, "%zu audio tensors skipped: text and images", audio);
    if (pictures) snprintf(model->note, sizeof model->note, "%zu vision tensors skipped: text and sound", pictures);
}

/* What reads pictures, unless it is left out, and what reads sound. */
static kakeya_status open_towers(const gemma4_parts *parts, mem_account *account, language_model *model,
                                 kakeya_error *error) {
    char no_pictures[160] = "", no_sound[160] = "";
    const checkpoint *ck = model->checkpoint;
    kakeya_status status = KAKEYA_OK;
    if (!parts->no_vision)
        status = vision_model_open(model->checkpoint, &model->config, account, &model->vision, no_pictures,
                                   sizeof no_pictures, error);
    if (status == KAKEYA_OK)
        status = audio_model_open(model->checkpoint, &model->config, account, &model->sound, no_sound, sizeof no_sound,
                                  error);
    if (status != KAKEYA_OK) return status;
    note_skipped(model);
    add_note(model, "no pictures", no_pictures);
    /* repositories that have been quantised often lack the tensors, which is worth no line unless there are some */
    if (count_tensors(ck, true)) add_note(model, "no sound", no_sound);
    return KAKEYA_OK;
}

static kakeya_status open_checkpoint(const char *directory, const gemma4_parts *parts, mem_account *account,
                                     language_model *model, kakeya_error *error) {
    quantisation *quantised = NULL;
    kakeya_status status = checkpoint_open(directory, "config.json", "model.safetensors", &model->checkpoint, error);
    const checkpoint *ck = model->checkpoint;
    if (status == KAKEYA_OK)
        status = model_config_parse(ck->config_path, ck->config, ck->config_bytes, ck->generation_config,
                                    ck->generation_config_bytes, &model->config, error);
    if (status == KAKEYA_OK) status = gemma4_quantisation(ck, &quantised, error);
    if (status == KAKEYA_OK) {
        tensor_memory memory = {0};
        gemma4_modules modules = {.quantised = quantised, .prefix = gemma4_prefix(ck)};
        if (gemma4_has_own_head(ck, modules.prefix)) model->config.tied_head = false;
        const tensor_hook hook = {gemma4_bind_modules, &modules};
        status = tensors_bind(model->checkpoint, modules.prefix, gemma4_walk, &model->config, &model->weights, &hook,
                              is_skipped, account, &memory, error);
        adopt(model, &memory);
        if (status == KAKEYA_OK && modules.quantised_bytes) model->config.checkpoint_format = modules.main_format;
    }
    if (status == KAKEYA_OK) status = open_towers(parts, account, model, error);
    quantisation_free(quantised);
    return status;
}

static kakeya_status open_model(const char *directory, bool as_stored, const gemma4_parts *parts, mem_account *account,
                                language_model **out, kakeya_error *error) {
    *out = NULL;
    language_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the model", directory);
    kakeya_status status = KAKEYA_OK;
    const bool is_gguf = gguf_is_file(directory);
    if (is_gguf)
        status = gemma4_gguf_open(directory, account, model, error);
    else if (parts->mmproj)
        status = error_set(error, KAKEYA_INVALID_ARGUMENT,
                           "--mmproj is for GGUF files: %s is a directory, which holds its own vision part", directory);
    else
        status = open_checkpoint(directory, parts, account, model, error);
    if (is_gguf && status == KAKEYA_OK) status = open_mmproj(parts, account, model, error);
    if (status != KAKEYA_OK) {
        language_model_close(model);
        return status;
    }
    if (model->config.generation == GEMMA_3 && !as_stored) {
        norms_pass pass = {model, model->checkpoint != NULL};
        (void)gemma4_walk(&model->config, settle_norm, &pass, NULL);
    }
    settle_scalars(model);
    if (model->config.checkpoint_format == WEIGHT_FORMAT_COUNT)
        model->config.checkpoint_format = model->weights.embed.format;
    *out = model;
    return KAKEYA_OK;
}

kakeya_status language_model_open(const char *directory, mem_account *account, language_model **out,
                                  kakeya_error *error) {
    return open_model(directory, false, &(gemma4_parts){0}, account, out, error);
}

kakeya_status language_model_open_stored(const char *directory, mem_account *account, language_model **out,
                                         kakeya_error *error) {
    return open_model(directory, true, &(gemma4_parts){0}, account, out, error);
}

kakeya_status language_model_open_parts(const char *directory, const gemma4_parts *parts, mem_account *account,
                                        language_model **out, kakeya_error *error) {
    return open_model(directory, false, parts, account, out, error);
}

static kakeya_status synthesize(const char *description, bool outline, mem_account *account, language_model **out,
                                kakeya_error *error) {
    *out = NULL;
    language_model *model = calloc(1, sizeof *model);
    if (!model) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for the model", description);
    kakeya_status status = model_config_variant(description, &model->config, error);
    if (status == KAKEYA_OK) {
        tensor_memory memory = {0};
        status = (outline ? tensors_outline : tensors_synthesize)(
            gemma4_walk, &model->config, &model->weights, model->config.checkpoint_format, account, &memory, error);
        adopt(model, &memory);
    }
    if (status != KAKEYA_OK) {
        language_model_close(model);
        return status;
    }
    settle_scalars(model);
    *out = model;
    return KAKEYA_OK;
}

kakeya_status language_model_synthesize(const char *description, mem_account *account, language_model **out,
                                        kakeya_error *error) {
    return synthesize(description, false, account, out, error);
}

kakeya_status language_model_outline(const char *description, mem_account *account, language_model **out,
                                     kakeya_error *error) {
    return synthesize(description, true, account, out, error);
}

void language_model_close(language_model *model) {
    if (!model) return;
    tensor_memory memory = {.owned = model->owned, .n_owned = model->n_owned};
    tensor_memory_release(&memory);
    vision_model_close(model->vision);
    audio_model_close(model->sound);
    gguf_close(model->mmproj);
    checkpoint_close(model->checkpoint);
    gguf_close(model->file);
    free(model);
}

char *language_model_beside(const language_model *model, const char *ending) {
    const char *path = model->file ? gguf_path(model->file) : model->checkpoint ? model->checkpoint->directory : NULL;
    if (!path) return NULL;
    const char *name = model->file ? "" : "/model";
    size_t bytes = strlen(path) + strlen(name) + strlen(ending) + 1;
    char *out = malloc(bytes);
    if (out) snprintf(out, bytes, "%s%s%s", path, name, ending);
    return out;
}

void language_model_unneeded(const language_model *model, const void *data, size_t bytes) {
    if (model->file) gguf_unneeded(model->file, data, bytes);
}

void language_model_release(const language_model *model) {
    for (size_t i = 0; model->file && i < model->file->n_parts; i++) {
        const file_map *map = &model->file->parts[i].map;
        file_map_unneeded(map, map->data, map->bytes);
    }
    for (size_t i = 0; model->checkpoint && i < model->checkpoint->n_shards; i++) {
        const file_map *map = &model->checkpoint->shards[i]->map;
        file_map_unneeded(map, map->data, map->bytes);
    }
}

bool language_model_locate(const language_model *model, const void *data, size_t bytes, const char **path,
                           uint64_t *offset) {
    for (size_t i = 0; model->file && i < model->file->n_parts; i++) {
        *path = model->file->parts[i].path;
        if (file_map_offset(&model->file->parts[i].map, data, bytes, offset)) return true;
    }
    for (size_t i = 0; model->checkpoint && i < model->checkpoint->n_shards; i++) {
        *path = model->checkpoint->shards[i]->path;
        if (file_map_offset(&model->checkpoint->shards[i]->map, data, bytes, offset)) return true;
    }
    return false;
}
