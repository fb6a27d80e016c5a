/* Keys and names: those of llama.cpp's converter and of Ollama's. What no file says is
 * a constant of the published models: theta 100, and which of them let the rows of a picture see each other. */
#include "model/gemma4_mmproj.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_choice.h"
#include "formats/gguf_keys.h"
#include "model/gemma4_audio_gguf.h"
#include "model/gemma4_vision_bind.h"

static const float theta = 100;
enum { DEFAULT_BUDGET = 280, POOLING = 3 };

static const gguf_tensor *tensor_of(const gguf *file, const char *name) {
    ptrdiff_t at = gguf_find_tensor(file, name);
    return at < 0 ? NULL : file->tensors[at];
}

/* ------------------------------------------------------------------------------------------------------- keys */

/* Files of ours say the largest picture where it is not the published models' budget. */
static int read_budget(gguf_keys *k, const vision_model *v) {
    const long long side = (long long)v->patch * v->pooling;
    const long long pixels =
        gguf_keys_int(k, "clip.vision.image_max_pixels", 1, 1LL << 40, DEFAULT_BUDGET * side * side);
    return (int)(pixels / (side * side) > 0 && pixels / (side * side) < 1 << 20 ? pixels / (side * side)
                                                                                : DEFAULT_BUDGET);
}

static void read_tower(gguf_keys *k, vision_model *v) {
    const gguf_tensor *places = tensor_of(k->file, "v.position_embd.weight");
    const gguf_tensor *queries = tensor_of(k->file, "v.blk.0.attn_q.weight");
    v->tower = true;
    v->patch = (int)gguf_keys_int(k, "clip.vision.patch_size", 1, 256, 16);
    v->pooling = (int)gguf_keys_int(k, "clip.vision.projector.scale_factor", 1, 16, POOLING);
    v->layers = (int)gguf_keys_required_int(k, "clip.vision.block_count", 1, MODEL_MAX_LAYERS);
    v->hidden = (int)gguf_keys_required_int(k, "clip.vision.embedding_length", 4, 1 << 16);
    v->heads = (int)gguf_keys_required_int(k, "clip.vision.attention.head_count", 1, 1 << 10);
    v->intermediate = (int)gguf_keys_required_int(k, "clip.vision.feed_forward_length", 1, 1 << 17);
    v->rms_eps = (float)gguf_keys_number(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, 1e-6);
    v->rope_theta = theta;
    v->positions = places && places->dims == 3 && places->ne[1] <= 1 << 20 ? (int)places->ne[1] : 0;
    v->head_dim = v->heads && queries->dims == 2 && queries->ne[1] <= 1 << 20 ? (int)(queries->ne[1] / v->heads) : 0;
    v->standardize = tensor_of(k->file, "v.std_bias") != NULL;
    v->clipped = tensor_of(k->file, "v.blk.0.attn_q.input_max") || tensor_of(k->file, "v.clamp_data");
    if (!k->status && (v->head_dim < 4 || v->head_dim % 4 || v->head_dim > 1 << 10))
        gguf_keys_fail(k, KAKEYA_UNSUPPORTED, "tensor v.blk.0.attn_q.weight makes heads of %d values", v->head_dim);
    if (!k->status && !v->positions)
        gguf_keys_fail(k, KAKEYA_FORMAT, "tensor v.position_embd.weight is missing, or of another shape");
}

static void read_embedder(gguf_keys *k, vision_model *v) {
    const gguf_tensor *places = tensor_of(k->file, "v.position_embd.weight");
    const gguf_tensor *patch = tensor_of(k->file, "v.patch_embd.weight");
    const gguf_tensor *norm = tensor_of(k->file, "v.patch_norm.0.weight");
    const int64_t values = norm->ne[0];
    v->pooling = 1;
    v->rms_eps = (float)gguf_keys_number(k, "clip.vision.attention.layer_norm_epsilon", 0, 1, 1e-6);
    v->patch = values <= 3 << 20 ? (int)lround(sqrt((double)values / 3)) : 0;
    v->hidden =
        patch && patch->dims >= 2 && patch->ne[patch->dims - 1] <= 1 << 16 ? (int)patch->ne[patch->dims - 1] : 0;
    v->positions = places && places->dims == 3 && places->ne[1] <= 1 << 20 ? (int)places->ne[1] : 0;
    if (!k->status && (v->patch < 1 || !v->hidden || !v->positions))
        gguf_keys_fail(k, KAKEYA_FORMAT, "tensors v.patch_embd, v.patch_norm.0 and v.position_embd do not fit");
}

static void check_kind(gguf_keys *k) {
    gguf_text kind = {0};
    char shown[GGUF_SHOWN_BYTES];
    if (!gguf_keys_architecture(k, &kind)) return;
    if (!gguf_text_is(kind, "clip")) {
        gguf_keys_fail(k, KAKEYA_UNSUPPORTED, "general.architecture is %s, not clip: no vision part (mmproj)",
                       gguf_show(kind.data, kind.bytes, shown));
        return;
    }
    const bool there = gguf_keys_text(k, "clip.vision.projector_type", &kind) ||
                       (!k->status && gguf_keys_text(k, "clip.projector_type", &kind));
    if (!there && !k->status) gguf_keys_fail(k, KAKEYA_FORMAT, "key clip.vision.projector_type is missing");
    if (there && !gguf_text_is(kind, "gemma4v") && !gguf_text_is(kind, "gemma4uv"))
        gguf_keys_fail(k, KAKEYA_UNSUPPORTED, "clip.vision.projector_type is %s, not gemma4v or gemma4uv",
                       gguf_show(kind.data, kind.bytes, shown));
}

/* `own`: the language model's file. */
static kakeya_status read_keys(const gguf *file, bool own, const gguf *model, const model_config *text, vision_model *v,
                               kakeya_error *error) {
    gguf_keys k = {.file = file, .error = error};
    if (!own) check_kind(&k);
    if (own) {
        k.asked = "clip.vision.";
        k.written = "gemma4.vision.";
    }
    if (k.status) return k.status;
    if (tensor_of(file, "v.blk.0.attn_q.weight"))
        read_tower(&k, v);
    else if (tensor_of(file, "v.patch_norm.0.weight"))
        read_embedder(&k, v);
    else
        gguf_keys_fail(&k, KAKEYA_FORMAT,
                       "it has neither a tower (v.blk.0.attn_q.weight) nor an embedder "
                       "(v.patch_norm.0.weight)");
    if (k.status) return k.status;
    v->text_hidden = text->hidden;
    v->budget = read_budget(&k, v);
    v->both_ways = text->ple_width == 0; /* E2B and E4B are causal */
    v->image_token = gguf_keys_token(model, text->vocab, "<|image|>");
    v->begin_token = gguf_keys_token(model, text->vocab, "<|image>");
    v->end_token = gguf_keys_token(model, text->vocab, "<image|>");
    if (v->image_token < 0 || v->begin_token < 0 || v->end_token < 0)
        gguf_keys_fail(&k, KAKEYA_FORMAT, "the model's vocabulary lacks <|image|>, <|image> or <image|>");
    return k.status;
}

/* ------------------------------------------------------------------------------------------------------- tensors */

typedef struct source {
    const gguf *file;
    vision_model *v;
    mem_account *account;
} source;

/* Bound `bound` of a linear where the file keeps those of all layers in one tensor: [layers][linears][bounds]. */
static bool packed_bound(const source *s, const vision_slot *slot, int bound, vision_stored *out) {
    static const vision_role linears[] = {VISION_Q, VISION_K, VISION_V, VISION_O, VISION_GATE, VISION_UP, VISION_DOWN};
    enum { LINEARS = sizeof linears / sizeof *linears };
    const gguf_tensor *t = tensor_of(s->file, "v.clamp_data");
    if (!t || t->type->id != GGUF_TENSOR_F32 ||
        t->bytes < (size_t)s->v->layers * LINEARS * VISION_BOUNDS * sizeof(float))
        return false;
    for (size_t i = 0; i < LINEARS; i++) {
        if (linears[i] != slot->role) continue;
        const size_t at = ((size_t)slot->layer * LINEARS + i) * VISION_BOUNDS + (size_t)bound;
        *out = (vision_stored){
            .name = t->name, .values = 1, .last = 1, .type = DTYPE_F32, .data = t->data + at * sizeof(float)};
        return true;
    }
    return false;
}

static kakeya_status find(void *file, const vision_slot *slot, int bound, vision_stored *out, kakeya_error *error) {
    const source *s = file;
    char name[VISION_NAME_BYTES];
    if (bound >= 0) vision_bound_name(slot, bound, true, name);
    const gguf_tensor *t = tensor_of(s->file, bound >= 0 ? name : slot->gguf);
    if (!t && bound >= 0) (void)packed_bound(s, slot, bound, out);
    if (!t) return KAKEYA_OK;
    return vision_stored_gguf(t, s->account, &s->v->owned, &s->v->n_owned, out, error);
}

/* ------------------------------------------------------------------------------------------------------- opening */

kakeya_status gemma4_mmproj_read(const gguf *file, const gguf *model, const model_config *text, mem_account *account,
                                 vision_model **out, kakeya_error *reason, kakeya_error *error) {
    const bool own = file == model;
    *out = NULL;
    vision_model *v = calloc(1, sizeof *v);
    if (!v) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", gguf_path(file));
    kakeya_status status = KAKEYA_OK;
    source s = {file, v, account};
    if (read_keys(file, own, model, text, v, reason) == KAKEYA_OK)
        status = vision_bind(v, account, find, &s, true, reason, error);
    if (!status && !reason->status)
        *out = v;
    else
        vision_model_close(v);
    return status;
}

/* What is asked for, and the best answer so far. */
typedef struct looking {
    const gguf *model;
    const model_config *text;
    bool no_vision;
    mem_account *account;
    gemma4_mmproj *out;
    kakeya_error no_pictures, no_sound; /* of the first file */
    bool has_vision, has_sound;         /* the last file; whether or not they can be used */
} looking;

static void keep_first(const kakeya_error *why, kakeya_error *first) {
    if (why->status && !first->status) *first = *why;
}

/* A file's parts, where they can be used. *reason: it is no file of this kind. */
static kakeya_status read_parts(looking *l, const char *path, gemma4_mmproj *out, kakeya_error *reason,
                                kakeya_error *error) {
    kakeya_error no_pictures = {0}, no_sound = {0};
    *out = (gemma4_mmproj){0};
    l->has_vision = l->has_sound = false;
    kakeya_status status = gguf_open(path, &out->file, reason);
    if (status == KAKEYA_OUT_OF_MEMORY) return error_set(error, status, "%s", reason->message);
    if (status != KAKEYA_OK) {
        keep_first(reason, &l->no_pictures);
        keep_first(reason, &l->no_sound);
        return KAKEYA_OK;
    }
    l->has_vision = tensor_of(out->file, "v.patch_embd.weight") || gguf_find(out->file, "clip.vision.projector_type");
    if (!l->no_vision)
        status = gemma4_mmproj_read(out->file, l->model, l->text, l->account, &out->vision, &no_pictures, error);
    if (status == KAKEYA_OK)
        status = audio_model_gguf_read(out->file, l->model, l->text, l->account, &out->sound, &l->has_sound, &no_sound,
                                       error);
    keep_first(&no_pictures, &l->no_pictures);
    keep_first(&no_sound, &l->no_sound);
    *reason = no_pictures.status ? no_pictures : no_sound;
    if (status != KAKEYA_OK) gemma4_mmproj_close(out);
    return status;
}

/* The file that --mmproj names: what it has must be of use. */
static kakeya_status read_named(looking *l, const char *path, kakeya_error *error) {
    kakeya_error reason = {0};
    kakeya_status status = read_parts(l, path, l->out, &reason, error);
    if (status != KAKEYA_OK) return status;
    const gemma4_mmproj *found = l->out;
    const bool pictures = found->vision || l->no_vision || (!l->has_vision && found->sound);
    if (found->file && pictures && (found->sound || !l->has_sound)) return KAKEYA_OK;
    gemma4_mmproj_close(l->out);
    if (pictures && l->no_sound.status) reason = l->no_sound;
    return error_set(error, reason.status, "--mmproj %s: %s", path, reason.message);
}

/* The first file that has what reads pictures, or, where none has, the first that has what reads sound. */
static kakeya_status look_beside(looking *l, kakeya_error *error) {
    gguf_names beside;
    kakeya_status status = gguf_vision_parts(gguf_path(l->model), &beside, error);
    for (size_t i = 0; status == KAKEYA_OK && !l->out->vision && i < beside.n; i++) {
        kakeya_error reason = {0};
        gemma4_mmproj found;
        status = read_parts(l, beside.names[i], &found, &reason, error);
        if (status != KAKEYA_OK) break;
        if (!found.vision && (!found.sound || l->out->sound)) {
            gemma4_mmproj_close(&found);
            continue;
        }
        gemma4_mmproj_close(l->out);
        *l->out = found;
        if (l->no_vision) break;
    }
    gguf_names_free(&beside);
    static const char none[] = "no vision part (mmproj-*.gguf) beside the model (name one with --mmproj)";
    if (!l->no_pictures.status) error_set(&l->no_pictures, KAKEYA_UNSUPPORTED, none);
    if (!l->no_sound.status) error_set(&l->no_sound, KAKEYA_UNSUPPORTED, none);
    return status;
}

static kakeya_status read_own(looking *l, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (!l->no_vision)
        status = gemma4_mmproj_read(l->model, l->model, l->text, l->account, &l->out->vision, &l->no_pictures, error);
    if (status != KAKEYA_OK) return status;
    return audio_model_gguf_read(l->model, l->model, l->text, l->account, &l->out->sound, &l->has_sound, &l->no_sound,
                                 error);
}

/* The token of pictures in the model's vocabulary; -1: it knows none. */
static int image_token(const gguf *model, const model_config *text) {
    return text->generation == GEMMA_4 ? gguf_keys_token(model, text->vocab, "<|image|>") : -1;
}

kakeya_status gemma4_mmproj_open(const gguf *model, const model_config *text, const char *mmproj, bool no_vision,
                                 mem_account *account, gemma4_mmproj *out, kakeya_error *error) {
    looking l = {.model = model, .text = text, .no_vision = no_vision, .account = account, .out = out};
    *out = (gemma4_mmproj){0};
    if (!mmproj && image_token(model, text) < 0) return KAKEYA_OK;
    kakeya_status status = mmproj                                    ? read_named(&l, mmproj, error)
                           : tensor_of(model, "v.patch_embd.weight") ? read_own(&l, error)
                                                                     : look_beside(&l, error);
    if (status != KAKEYA_OK) {
        gemma4_mmproj_close(out);
        return status;
    }
    if (!out->vision && !no_vision)
        snprintf(out->no_pictures, sizeof out->no_pictures, "%.159s", l.no_pictures.message);
    if (!out->sound) snprintf(out->no_sound, sizeof out->no_sound, "%.159s", l.no_sound.message);
    out->sound_is_broken = !out->sound && l.has_sound;
    return KAKEYA_OK;
}

void gemma4_mmproj_close(gemma4_mmproj *parts) {
    vision_model_close(parts->vision);
    audio_model_close(parts->sound);
    gguf_close(parts->file);
    *parts = (gemma4_mmproj){0};
}
