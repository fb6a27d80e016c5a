/* The one list of what towers and the 12B's embedder consist of: names in safetensors and in GGUF files, and shapes. */
#include "model/vision_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct vision_tensor {
    vision_role role;
    const char *name; /* in layers behind "encoder.layers.N." */
    const char *gguf; /* in layers behind "v.blk.N." */
    bool matrix;
    char rows, columns; /* sizes: h hidden, f intermediate, d of a head, q of all heads, p of a patch, t of a text row,
                           2 twice the positions */
    vision_order order;
} vision_tensor;

static const vision_tensor tower_tensors[] = {
    {VISION_PATCH, "patch_embedder.input_proj.weight", "v.patch_embd.weight", true, 'h', 'p', VISION_PIXELS},
    {VISION_PLACES, "patch_embedder.position_embedding_table", "v.position_embd.weight", true, '2', 'h', VISION_AS_IS},
};
static const vision_tensor standard_tensors[] = {
    {VISION_STD_BIAS, "std_bias", "v.std_bias", false, 'h', 0, VISION_AS_IS},
    {VISION_STD_SCALE, "std_scale", "v.std_scale", false, 'h', 0, VISION_AS_IS},
};
static const vision_tensor layer_tensors[] = {
    {VISION_INPUT_NORM, "input_layernorm.weight", "ln1.weight", false, 'h', 0, VISION_AS_IS},
    {VISION_Q, "self_attn.q_proj.linear.weight", "attn_q.weight", true, 'q', 'h', VISION_AS_IS},
    {VISION_K, "self_attn.k_proj.linear.weight", "attn_k.weight", true, 'q', 'h', VISION_AS_IS},
    {VISION_V, "self_attn.v_proj.linear.weight", "attn_v.weight", true, 'q', 'h', VISION_AS_IS},
    {VISION_Q_NORM, "self_attn.q_norm.weight", "attn_q_norm.weight", false, 'd', 0, VISION_AS_IS},
    {VISION_K_NORM, "self_attn.k_norm.weight", "attn_k_norm.weight", false, 'd', 0, VISION_AS_IS},
    {VISION_O, "self_attn.o_proj.linear.weight", "attn_out.weight", true, 'h', 'q', VISION_AS_IS},
    {VISION_POST_ATTENTION_NORM, "post_attention_layernorm.weight", "attn_post_norm.weight", false, 'h', 0,
     VISION_AS_IS},
    {VISION_PRE_FFN_NORM, "pre_feedforward_layernorm.weight", "ln2.weight", false, 'h', 0, VISION_AS_IS},
    {VISION_GATE, "mlp.gate_proj.linear.weight", "ffn_gate.weight", true, 'f', 'h', VISION_AS_IS},
    {VISION_UP, "mlp.up_proj.linear.weight", "ffn_up.weight", true, 'f', 'h', VISION_AS_IS},
    {VISION_DOWN, "mlp.down_proj.linear.weight", "ffn_down.weight", true, 'h', 'f', VISION_AS_IS},
    {VISION_POST_FFN_NORM, "post_feedforward_layernorm.weight", "ffn_post_norm.weight", false, 'h', 0, VISION_AS_IS},
};
static const vision_tensor embedder_tensors[] = {
    {VISION_PATCH, "patch_dense.weight", "v.patch_embd.weight", true, 'h', 'p', VISION_PIXELS},
    {VISION_PATCH_BIAS, "patch_dense.bias", "v.patch_embd.bias", false, 'h', 0, VISION_AS_IS},
    {VISION_PATCH_NORM, "patch_ln1.weight", "v.patch_norm.0.weight", false, 'p', 0, VISION_PIXELS},
    {VISION_PATCH_NORM_BIAS, "patch_ln1.bias", "v.patch_norm.0.bias", false, 'p', 0, VISION_PIXELS},
    {VISION_HIDDEN_NORM, "patch_ln2.weight", "v.patch_norm.1.weight", false, 'h', 0, VISION_AS_IS},
    {VISION_HIDDEN_NORM_BIAS, "patch_ln2.bias", "v.patch_norm.1.bias", false, 'h', 0, VISION_AS_IS},
    {VISION_PLACE_NORM, "pos_norm.weight", "v.patch_norm.2.weight", false, 'h', 0, VISION_AS_IS},
    {VISION_PLACE_NORM_BIAS, "pos_norm.bias", "v.patch_norm.2.bias", false, 'h', 0, VISION_AS_IS},
    {VISION_PLACES, "pos_embedding", "v.position_embd.weight", true, '2', 'h', VISION_PLACE_PAIRS},
};
static const vision_tensor projection_tensors[] = {
    {VISION_PROJECTION, "embedding_projection.weight", "mm.input_projection.weight", true, 't', 'h', VISION_AS_IS},
};
#define COUNT(array) (sizeof(array) / sizeof *(array))

static int64_t size_of(const vision_model *v, char letter) {
    switch (letter) {
    case 'h':
        return v->hidden;
    case 'f':
        return v->intermediate;
    case 'd':
        return v->head_dim;
    case 'q':
        return (int64_t)v->heads * v->head_dim;
    case 'p':
        return vision_model_patch_values(v);
    case 't':
        return v->text_hidden;
    case '2':
        return 2 * (int64_t)v->positions;
    default:
        return 1;
    }
}

typedef struct walk {
    const vision_model *v;
    vision_visit visit;
    void *context;
    kakeya_status status;
    kakeya_error *error;
} walk;

/* `again`: the module that may have the tensor instead, or NULL. */
static void visit_all(walk *w, const char *module, const char *again, int layer, const vision_tensor *list, size_t n) {
    for (size_t i = 0; i < n && !w->status; i++) {
        const vision_tensor *t = &list[i];
        vision_slot slot = {.role = t->role,
                            .layer = layer,
                            .matrix = t->matrix,
                            .clipped = layer >= 0 && t->matrix && w->v->clipped,
                            .rows = size_of(w->v, t->rows),
                            .columns = size_of(w->v, t->columns),
                            .order = t->order};
        char within[32] = "", block[32] = "";
        if (layer >= 0) {
            snprintf(within, sizeof within, "encoder.layers.%d.", layer);
            snprintf(block, sizeof block, "v.blk.%d.", layer);
        }
        snprintf(slot.name, sizeof slot.name, "%s.%s%s", module, within, t->name);
        if (again) snprintf(slot.again, sizeof slot.again, "%s.%s", again, t->name);
        snprintf(slot.gguf, sizeof slot.gguf, "%s%s", block, t->gguf);
        w->status = w->visit(w->context, &slot, w->error);
    }
}

kakeya_status vision_model_walk(const vision_model *v, vision_visit visit, void *context, kakeya_error *error) {
    walk w = {v, visit, context, KAKEYA_OK, error};
    if (v->tower) {
        visit_all(&w, "vision_tower", NULL, -1, tower_tensors, COUNT(tower_tensors));
        if (v->standardize) visit_all(&w, "vision_tower", NULL, -1, standard_tensors, COUNT(standard_tensors));
        for (int i = 0; i < v->layers; i++) visit_all(&w, "vision_tower", NULL, i, layer_tensors, COUNT(layer_tensors));
    } else {
        /* checkpoints saved again by transformers 5 have the embedder's tensors beside the projection */
        visit_all(&w, "vision_embedder", "embed_vision", -1, embedder_tensors, COUNT(embedder_tensors));
    }
    visit_all(&w, "embed_vision", "embed_vision.multimodal_embedder", -1, projection_tensors,
              COUNT(projection_tensors));
    return w.status;
}

void vision_bound_name(const vision_slot *slot, int i, bool in_gguf, char out[VISION_NAME_BYTES]) {
    static const char *const names[VISION_BOUNDS] = {"input_min", "input_max", "output_min", "output_max"};
    const char *name = in_gguf ? slot->gguf : slot->name;
    const int stem = (int)(strlen(name) - strlen(in_gguf ? "weight" : "linear.weight"));
    snprintf(out, VISION_NAME_BYTES, "%.*s%s", stem, name, names[i]);
}

size_t vision_gguf_index(const vision_model *v, const vision_slot *slot, int64_t row, int64_t column) {
    const int64_t pixels = (int64_t)v->patch * v->patch;
    if (slot->order == VISION_PLACE_PAIRS) row = row % 2 * v->positions + row / 2;
    if (slot->order == VISION_PIXELS && slot->matrix) column = column % 3 * pixels + column / 3;
    if (slot->order == VISION_PIXELS && !slot->matrix) row = row % 3 * pixels + row / 3;
    return (size_t)(row * slot->columns + column);
}

typedef struct sum {
    const vision_model *v;
    weight_format format;
    vision_sizes sizes;
} sum;

static kakeya_status add_slot(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)error;
    sum *s = context;
    const size_t values = (size_t)(slot->rows * slot->columns);
    const vision_weights *w = s->v->weights ? &s->v->weights[1 + slot->layer] : NULL;
    const weight_format format = w && slot->matrix ? w->matrix[slot->role].format : s->format;
    const weight_stream *stream = &weight_format_find(format)->stream[0];
    s->sizes.parameters += values;
    s->sizes.bytes +=
        slot->matrix ? weight_stream_bytes(stream, (int)slot->rows, (int)slot->columns, 0) : values * sizeof(float);
    return KAKEYA_OK;
}

vision_sizes vision_model_sizes(const vision_model *v, weight_format format) {
    sum s = {.v = v, .format = format};
    (void)vision_model_walk(v, add_slot, &s, NULL);
    return s.sizes;
}

enum { PAGE_STEP = 4096 }; /* no system has smaller pages */

static void touch(const weight *w) {
    const size_t bytes = weight_row_bytes(w, 0) * (size_t)w->out;
    const volatile unsigned char *data = weight_row(w, 0, 0);
    for (size_t i = 0; i < bytes; i += PAGE_STEP) (void)data[i];
    if (bytes) (void)data[bytes - 1];
}

void vision_model_read(const vision_model *v) {
    for (int layer = 0; layer <= v->layers; layer++)
        for (int role = 0; role < VISION_ROLES; role++)
            if (weight_present(&v->weights[layer].matrix[role])) touch(&v->weights[layer].matrix[role]);
}

void vision_model_close(vision_model *v) {
    if (!v) return;
    for (size_t i = 0; i < v->n_owned; i++) mem_free(v->owned[i]);
    free(v->owned);
    free(v->weights);
    free(v);
}
