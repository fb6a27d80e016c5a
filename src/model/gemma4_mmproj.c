/* Keys and names: those of llama.cpp's converter and of Ollama's. What no file says is
 * a constant of the published models: theta 100, and which of them let the rows of a picture see each other. */
#include "model/gemma4_mmproj.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_choice.h"
#include "formats/gguf_keys.h"
#include "model/gemma4_vision_bind.h"

static const float theta = 100;
enum { DEFAULT_BUDGET = 280, POOLING = 3 };

static const gguf_tensor *tensor_of(const gguf *file, const char *name) {
    ptrdiff_t at = gguf_find_tensor(file, name);
    return at < 0 ? NULL : file->tensors[at];
}

/* ------------------------------------------------------------------------------------------------------- keys */

/* The id of a piece of the vocabulary, or -1. */
static int find_token(const gguf *model, int vocab, const char *text) {
    const gguf_value *tokens = gguf_find(model, "tokenizer.ggml.tokens");
    if (!tokens || !tokens->array || tokens->type != GGUF_STRING) return -1;
    size_t at = 0;
    for (uint64_t i = 0; i < tokens->count; i++) {
        gguf_text piece = gguf_next_string(tokens, &at);
        if (gguf_text_is(piece, text)) return i < (uint64_t)vocab ? (int)i : -1;
    }
    return -1;
}

/* Files of ours say the largest picture where it is not the published models' budget. */
static int read_budget(gguf_keys *k, const gemma4_vision *v) {
    const long long side = (long long)v->patch * v->pooling;
    const long long pixels =
        gguf_keys_int(k, "clip.vision.image_max_pixels", 1, 1LL << 40, DEFAULT_BUDGET * side * side);
    return (int)(pixels / (side * side) > 0 && pixels / (side * side) < 1 << 20 ? pixels / (side * side)
                                                                                : DEFAULT_BUDGET);
}

static void read_tower(gguf_keys *k, gemma4_vision *v) {
    const gguf_tensor *places = tensor_of(k->file, "v.position_embd.weight");
    const gguf_tensor *queries = tensor_of(k->file, "v.blk.0.attn_q.weight");
    v->tower = true;
    v->patch = (int)gguf_keys_int(k, "clip.vision.patch_size", 1, 256, 16);
    v->pooling = (int)gguf_keys_int(k, "clip.vision.projector.scale_factor", 1, 16, POOLING);
    v->layers = (int)gguf_keys_required_int(k, "clip.vision.block_count", 1, GEMMA4_MAX_LAYERS);
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

static void read_embedder(gguf_keys *k, gemma4_vision *v) {
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
static kakeya_status read_keys(const gguf *file, bool own, const gguf *model, const gemma4_config *text,
                               gemma4_vision *v, kakeya_error *error) {
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
    v->image_token = find_token(model, text->vocab, "<|image|>");
    v->begin_token = find_token(model, text->vocab, "<|image>");
    v->end_token = find_token(model, text->vocab, "<image|>");
    if (v->image_token < 0 || v->begin_token < 0 || v->end_token < 0)
        gguf_keys_fail(&k, KAKEYA_FORMAT, "the model's vocabulary lacks <|image|>, <|image> or <image|>");
    return k.status;
}

/* ------------------------------------------------------------------------------------------------------- tensors */

typedef struct source {
    const gguf *file;
    gemma4_vision *v;
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

static bool type_of(const gguf_type *type, dtype *out) {
    *out = type->id == GGUF_TENSOR_F32 ? DTYPE_F32 : type->id == GGUF_TENSOR_F16 ? DTYPE_F16 : DTYPE_BF16;
    return type->id == GGUF_TENSOR_F32 || type->id == GGUF_TENSOR_F16 || type->id == GGUF_TENSOR_BF16;
}

static kakeya_status find(void *file, const vision_slot *slot, int bound, vision_stored *out, kakeya_error *error) {
    const source *s = file;
    char name[VISION_NAME_BYTES];
    if (bound >= 0) vision_bound_name(slot, bound, true, name);
    const gguf_tensor *t = tensor_of(s->file, bound >= 0 ? name : slot->gguf);
    if (!t && bound >= 0) (void)packed_bound(s, slot, bound, out);
    if (!t) return KAKEYA_OK;
    *out = (vision_stored){.name = t->name, .values = 1, .last = t->ne[0], .data = t->data};
    for (int i = 0; i < t->dims; i++) out->values *= t->ne[i];
    if (!type_of(t->type, &out->type)) out->type_name = t->type->name;
    if ((uintptr_t)t->data % sizeof(float) == 0) return KAKEYA_OK;
    gemma4_vision *v = s->v; /* a file may be aligned to single bytes */
    void **owned = realloc(v->owned, (v->n_owned + 1) * sizeof *owned);
    if (owned) v->owned = owned;
    void *copy = owned ? mem_alloc(s->account, MEM_WEIGHTS, t->bytes) : NULL;
    if (!copy) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for tensor %s", t->name);
    v->owned[v->n_owned++] = copy;
    out->data = memcpy(copy, t->data, t->bytes);
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------- opening */

int gemma4_mmproj_token(const gguf *model, const gemma4_config *text) {
    return text->generation == GEMMA_4 ? find_token(model, text->vocab, "<|image|>") : -1;
}

kakeya_status gemma4_mmproj_read(const gguf *file, const gguf *model, const gemma4_config *text, mem_account *account,
                                 gemma4_vision **out, kakeya_error *reason, kakeya_error *error) {
    const bool own = file == model;
    *out = NULL;
    gemma4_vision *v = calloc(1, sizeof *v);
    if (!v) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", gguf_path(file));
    kakeya_status status = KAKEYA_OK;
    source s = {file, v, account};
    if (read_keys(file, own, model, text, v, reason) == KAKEYA_OK)
        status = vision_bind(v, account, find, &s, true, reason, error);
    if (!status && !reason->status)
        *out = v;
    else
        gemma4_vision_close(v);
    return status;
}

static kakeya_status read_named(const char *path, const gguf *model, const gemma4_config *text, mem_account *account,
                                gemma4_vision **out, kakeya_error *reason, kakeya_error *error) {
    gguf *file = NULL;
    kakeya_status status = gguf_open(path, &file, reason);
    if (status) return status == KAKEYA_OUT_OF_MEMORY ? error_set(error, status, "%s", reason->message) : KAKEYA_OK;
    status = gemma4_mmproj_read(file, model, text, account, out, reason, error);
    if (*out)
        (*out)->file = file;
    else
        gguf_close(file);
    return status;
}

static kakeya_status look_beside(const gguf *model, const gemma4_config *text, mem_account *account,
                                 gemma4_vision **out, kakeya_error *reason, kakeya_error *error) {
    gguf_names beside;
    kakeya_status status = gguf_vision_parts(gguf_path(model), &beside, error);
    for (size_t i = 0; !status && !*out && i < beside.n; i++) {
        kakeya_error why = {0};
        status = read_named(beside.names[i], model, text, account, out, &why, error);
        if (why.status && !reason->status) *reason = why; /* of the best one */
    }
    gguf_names_free(&beside);
    if (!status && !*out && !reason->status)
        error_set(reason, KAKEYA_UNSUPPORTED,
                  "no vision part (mmproj-*.gguf) beside the model (name one with --mmproj)");
    return status;
}

kakeya_status gemma4_mmproj_open(const gguf *model, const gemma4_config *text, const char *mmproj, mem_account *account,
                                 gemma4_vision **out, char *reason, size_t reason_bytes, kakeya_error *error) {
    kakeya_error why = {0};
    kakeya_status status;
    *out = NULL;
    *reason = '\0';
    if (mmproj) {
        status = read_named(mmproj, model, text, account, out, &why, error);
        if (status || *out) return status;
        return error_set(error, why.status, "--mmproj %s: %s", mmproj, why.message);
    }
    if (gemma4_mmproj_token(model, text) < 0) return KAKEYA_OK;
    if (tensor_of(model, "v.patch_embd.weight"))
        status = gemma4_mmproj_read(model, model, text, account, out, &why, error);
    else
        status = look_beside(model, text, account, out, &why, error);
    if (!status && !*out) snprintf(reason, reason_bytes, "%s", why.message);
    return status;
}
