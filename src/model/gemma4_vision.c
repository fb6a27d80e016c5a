#include "model/gemma4_vision.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "base/json.h"

/* ------------------------------------------------------------------------------------------------ configuration */

static bool text_is(const cJSON *object, const char *key, const char *text) {
    const char *value = cJSON_GetStringValue(json_get(object, key));
    return value && strcmp(value, text) == 0;
}

/* "default" and "axial" are the same here. */
static float read_theta(json_reader *r, const cJSON *vision) {
    const cJSON *rope = json_object(r, vision, "rope_parameters");
    const char *type = json_string(r, rope, "rope_type", "default");
    if (strcmp(type, "default") != 0 && strcmp(type, "axial") != 0)
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: rope_type \"%s\" is not supported (default, axial)", type);
    return (float)json_number(r, rope, "rope_theta", 1, 1e9, 100);
}

static void read_tower(json_reader *r, const cJSON *vision, gemma4_vision *v) {
    v->tower = true;
    v->patch = json_int(r, vision, "patch_size", 1, 256, 16);
    v->pooling = json_int(r, vision, "pooling_kernel_size", 1, 16, 3);
    v->layers = json_required_int(r, vision, "num_hidden_layers", 1, GEMMA4_MAX_LAYERS);
    v->hidden = json_required_int(r, vision, "hidden_size", 4, 1 << 16);
    v->heads = json_required_int(r, vision, "num_attention_heads", 1, 1 << 10);
    v->intermediate = json_required_int(r, vision, "intermediate_size", 1, 1 << 17);
    v->head_dim = json_int(r, vision, "head_dim", 4, 1 << 10, v->heads ? v->hidden / v->heads : 4);
    v->positions = json_int(r, vision, "position_embedding_size", 1, 1 << 20, 10240);
    v->rms_eps = (float)json_number(r, vision, "rms_norm_eps", 0, 1, 1e-6);
    v->rope_theta = read_theta(r, vision);
    v->standardize = json_bool(r, vision, "standardize", false);
    v->clipped = json_bool(r, vision, "use_clipped_linears", false);
    if (json_int(r, vision, "num_key_value_heads", 1, 1 << 10, v->heads) != v->heads)
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: num_key_value_heads differs from num_attention_heads");
    if (v->head_dim % 4)
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: head_dim %d is no multiple of 4", v->head_dim);
    if (!text_is(vision, "hidden_activation", "gelu_pytorch_tanh") && json_get(vision, "hidden_activation"))
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: hidden_activation is not gelu_pytorch_tanh");
    if (json_bool(r, vision, "attention_bias", false))
        json_fail(r, KAKEYA_UNSUPPORTED, "vision_config: attention_bias is not supported");
}

static void read_embedder(json_reader *r, const cJSON *vision, gemma4_vision *v) {
    const int patch = json_int(r, vision, "patch_size", 1, 256, 16);
    v->patch =
        json_int(r, vision, "model_patch_size", 1, 1024, patch * json_int(r, vision, "pooling_kernel_size", 1, 16, 3));
    v->pooling = 1;
    v->hidden = json_required_int(r, vision, "mm_embed_dim", 1, 1 << 16);
    v->positions = json_int(r, vision, "mm_posemb_size", 1, 1 << 20, 1120);
    v->rms_eps = (float)json_number(r, vision, "rms_norm_eps", 0, 1, 1e-6);
}

/* False: no pictures. */
static bool read_config(json_reader *r, const cJSON *top, const gemma4_config *text, gemma4_vision *v) {
    const cJSON *vision = json_object(r, top, "vision_config");
    if (!vision) return false;
    if (text_is(vision, "model_type", "gemma4_unified_vision"))
        read_embedder(r, vision, v);
    else if (text_is(vision, "model_type", "gemma4_vision"))
        read_tower(r, vision, v);
    else
        return false;
    v->text_hidden = text->hidden;
    v->budget = json_int(r, top, "vision_soft_tokens_per_image", 1, 1 << 20, 280);
    v->both_ways = text_is(json_object(r, top, "text_config"), "use_bidirectional_attention", "vision");
    v->image_token = json_int(r, top, "image_token_id", 0, text->vocab - 1, -1);
    v->begin_token = json_int(r, top, "boi_token_id", 0, text->vocab - 1, -1);
    v->end_token = json_int(r, top, "eoi_token_id", 0, text->vocab - 1, -1);
    if (r->status == KAKEYA_OK && (v->image_token < 0 || v->begin_token < 0 || v->end_token < 0))
        json_fail(r, KAKEYA_FORMAT, "image_token_id, boi_token_id or eoi_token_id is missing");
    return true;
}

/* ------------------------------------------------------------------------------------------------------- tensors */

typedef struct vision_tensor {
    vision_role role;
    const char *name; /* behind the part's name, and in layers behind "encoder.layers.N." */
    bool matrix;
    char rows, columns; /* sizes: h hidden, f intermediate, d of a head, p of a patch, t of a text row, 2 twice the
                           positions */
} vision_tensor;

static const vision_tensor tower_tensors[] = {
    {VISION_PATCH, "patch_embedder.input_proj.weight", true, 'h', 'p'},
    {VISION_PLACES, "patch_embedder.position_embedding_table", true, '2', 'h'},
};
static const vision_tensor standard_tensors[] = {
    {VISION_STD_BIAS, "std_bias", false, 'h', 0},
    {VISION_STD_SCALE, "std_scale", false, 'h', 0},
};
static const vision_tensor layer_tensors[] = {
    {VISION_INPUT_NORM, "input_layernorm.weight", false, 'h', 0},
    {VISION_Q, "self_attn.q_proj.linear.weight", true, 'q', 'h'},
    {VISION_K, "self_attn.k_proj.linear.weight", true, 'q', 'h'},
    {VISION_V, "self_attn.v_proj.linear.weight", true, 'q', 'h'},
    {VISION_Q_NORM, "self_attn.q_norm.weight", false, 'd', 0},
    {VISION_K_NORM, "self_attn.k_norm.weight", false, 'd', 0},
    {VISION_O, "self_attn.o_proj.linear.weight", true, 'h', 'q'},
    {VISION_POST_ATTENTION_NORM, "post_attention_layernorm.weight", false, 'h', 0},
    {VISION_PRE_FFN_NORM, "pre_feedforward_layernorm.weight", false, 'h', 0},
    {VISION_GATE, "mlp.gate_proj.linear.weight", true, 'f', 'h'},
    {VISION_UP, "mlp.up_proj.linear.weight", true, 'f', 'h'},
    {VISION_DOWN, "mlp.down_proj.linear.weight", true, 'h', 'f'},
    {VISION_POST_FFN_NORM, "post_feedforward_layernorm.weight", false, 'h', 0},
};
static const vision_tensor embedder_tensors[] = {
    {VISION_PATCH, "patch_dense.weight", true, 'h', 'p'},    {VISION_PATCH_BIAS, "patch_dense.bias", false, 'h', 0},
    {VISION_PATCH_NORM, "patch_ln1.weight", false, 'p', 0},  {VISION_PATCH_NORM_BIAS, "patch_ln1.bias", false, 'p', 0},
    {VISION_HIDDEN_NORM, "patch_ln2.weight", false, 'h', 0}, {VISION_HIDDEN_NORM_BIAS, "patch_ln2.bias", false, 'h', 0},
    {VISION_PLACE_NORM, "pos_norm.weight", false, 'h', 0},   {VISION_PLACE_NORM_BIAS, "pos_norm.bias", false, 'h', 0},
    {VISION_PLACES, "pos_embedding", true, '2', 'h'},
};
static const vision_tensor projection = {VISION_PROJECTION, "embedding_projection.weight", true, 't', 'h'};
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A binding under way. */
typedef struct binder {
    checkpoint *ck;
    gemma4_vision *v;
    mem_account *account;
    kakeya_error *reason; /* why it cannot be used; .status: there is one */
    kakeya_status status; /* a failure that has nothing to do with the files' contents */
    kakeya_error *error;
} binder;

static int64_t size_of(const gemma4_vision *v, char letter) {
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
        return gemma4_vision_patch_values(v);
    case 't':
        return v->text_hidden;
    case '2':
        return 2 * (int64_t)v->positions;
    default:
        return 1;
    }
}

/* Prefixes by dialect: as published, and as MLX directories have it. */
static const tensor *find(const binder *b, const char *part, const char *name) {
    static const char *const prefixes[] = {"model.", ""};
    char path[256];
    for (size_t i = 0; i < COUNT(prefixes); i++) {
        snprintf(path, sizeof path, "%s%s.%s", prefixes[i], part, name);
        ptrdiff_t at = checkpoint_find(b->ck, path);
        if (at >= 0) return b->ck->tensors[at];
    }
    return NULL;
}

/* The tensor's values, or NULL with a reason. Dimensions before the last one are rows. */
static const void *values_of(binder *b, const tensor *t, const char *name, int64_t rows, int64_t columns, dtype *type) {
    if (b->status || b->reason->status) return NULL;
    if (!t) {
        error_set(b->reason, KAKEYA_FORMAT, "%s is missing", name);
        return NULL;
    }
    int64_t n = 1, last = t->dims ? t->shape[t->dims - 1] : 1;
    for (int i = 0; i < t->dims; i++) n *= t->shape[i];
    if (n != rows * columns || (columns > 1 && last != columns)) {
        error_set(b->reason, KAKEYA_FORMAT, "%s is of another shape", t->name);
        return NULL;
    }
    if (!tensor_dtype(t, type)) {
        error_set(b->reason, KAKEYA_UNSUPPORTED, "%s is stored as %s", t->name, tensor_type_name(t->type));
        return NULL;
    }
    const void *data = NULL;
    b->status = checkpoint_aligned(b->ck, t, b->account, &data, b->error);
    return data;
}

static float value_at(const void *data, dtype type, size_t i) {
    if (type == DTYPE_F32) return ((const float *)data)[i];
    const uint16_t bits = ((const uint16_t *)data)[i];
    return type == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static const float *vector_of(binder *b, const void *data, dtype type, size_t n) {
    gemma4_vision *v = b->v;
    float *out = data ? mem_alloc(b->account, MEM_WEIGHTS, n * sizeof *out) : NULL;
    void **owned = out ? realloc(v->owned, (v->n_owned + 1) * sizeof *owned) : NULL;
    if (data && !owned) {
        mem_free(out);
        b->status = error_set(b->error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", b->ck->directory);
        return NULL;
    }
    if (!owned) return NULL;
    v->owned = owned;
    v->owned[v->n_owned++] = out;
    for (size_t i = 0; i < n; i++) out[i] = value_at(data, type, i);
    return out;
}

static void bind_tensor(binder *b, vision_weights *w, const vision_tensor *t, const tensor *found, const char *name) {
    const int64_t rows = size_of(b->v, t->rows), columns = t->matrix ? size_of(b->v, t->columns) : 1;
    static const weight_format formats[] = {
        [DTYPE_F32] = WEIGHT_F32, [DTYPE_F16] = WEIGHT_F16, [DTYPE_BF16] = WEIGHT_BF16};
    dtype type = DTYPE_F32;
    const void *data = values_of(b, found, name, rows, columns, &type);
    if (!data) return;
    if (t->matrix)
        w->matrix[t->role] = weight_matrix(formats[type], data, (int)rows, (int)columns);
    else
        w->vector[t->role] = vector_of(b, data, type, (size_t)rows);
}

/* input_min and so on, beside a linear. */
static void bind_bounds(binder *b, vision_weights *w, const vision_tensor *t, const char *name) {
    static const char *const names[] = {"input_min", "input_max", "output_min", "output_max"};
    vision_bounds *bounds = &w->bounds[t->role];
    float *const to[] = {&bounds->input_min, &bounds->input_max, &bounds->output_min, &bounds->output_max};
    const int stem = (int)(strlen(name) - strlen("linear.weight"));
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[192];
        snprintf(path, sizeof path, "%.*s%s", stem, name, names[i]);
        const tensor *found = find(b, "vision_tower", path);
        *to[i] = i % 2 ? INFINITY : -INFINITY;
        if (!found || !b->v->clipped) continue;
        dtype type = DTYPE_F32;
        const void *data = values_of(b, found, path, 1, 1, &type);
        if (data) *to[i] = value_at(data, type, 0);
    }
}

static void bind_all(binder *b, vision_weights *w, const char *part, const vision_tensor *list, size_t n) {
    for (size_t i = 0; i < n; i++) bind_tensor(b, w, &list[i], find(b, part, list[i].name), list[i].name);
}

static void bind_layer(binder *b, int layer) {
    vision_weights *w = &b->v->weights[1 + layer];
    for (size_t i = 0; i < COUNT(layer_tensors); i++) {
        const vision_tensor *t = &layer_tensors[i];
        char name[128];
        snprintf(name, sizeof name, "encoder.layers.%d.%s", layer, t->name);
        bind_tensor(b, w, t, find(b, "vision_tower", name), name);
        if (t->matrix) bind_bounds(b, w, t, name);
    }
}

/* Checkpoints saved again by transformers 5 have the embedder's tensors beside the projection. */
static void bind_embedder(binder *b) {
    for (size_t i = 0; i < COUNT(embedder_tensors); i++) {
        const vision_tensor *t = &embedder_tensors[i];
        const tensor *found = find(b, "vision_embedder", t->name);
        if (!found) found = find(b, "embed_vision", t->name);
        bind_tensor(b, b->v->weights, t, found, t->name);
    }
}

static void bind_weights(binder *b) {
    gemma4_vision *v = b->v;
    if (v->tower) {
        bind_all(b, v->weights, "vision_tower", tower_tensors, COUNT(tower_tensors));
        if (v->standardize) bind_all(b, v->weights, "vision_tower", standard_tensors, COUNT(standard_tensors));
        for (int i = 0; i < v->layers; i++) bind_layer(b, i);
    } else {
        bind_embedder(b);
    }
    const tensor *found = find(b, "embed_vision", projection.name);
    if (!found) found = find(b, "embed_vision.multimodal_embedder", projection.name);
    bind_tensor(b, v->weights, &projection, found, projection.name);
}

/* ------------------------------------------------------------------------------------------------------- opening */

kakeya_status gemma4_vision_open(checkpoint *ck, const gemma4_config *text, mem_account *account, gemma4_vision **out,
                                 char *reason, size_t reason_bytes, kakeya_error *error) {
    *out = NULL;
    *reason = '\0';
    cJSON *top = NULL;
    kakeya_error why = {0};
    kakeya_status status = json_parse_object(ck->config_path, ck->config, ck->config_bytes, &top, error);
    if (status) return status;
    gemma4_vision *v = calloc(1, sizeof *v);
    if (!v) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", ck->directory);
    json_reader reader = {.name = ck->config_path, .error = &why};
    bool there = v && read_config(&reader, top, text, v);
    cJSON_Delete(top);
    if (there && !reader.status) {
        v->weights = calloc((size_t)v->layers + 1, sizeof *v->weights);
        binder b = {.ck = ck, .v = v, .account = account, .reason = &why, .error = error};
        if (v->weights)
            bind_weights(&b);
        else
            b.status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", ck->directory);
        status = b.status;
    }
    if (!status && there && !why.status) {
        *out = v;
        return KAKEYA_OK;
    }
    if (there && why.status) snprintf(reason, reason_bytes, "%s", why.message);
    gemma4_vision_close(v);
    return status;
}

void gemma4_vision_close(gemma4_vision *v) {
    if (!v) return;
    for (size_t i = 0; i < v->n_owned; i++) mem_free(v->owned[i]);
    free(v->owned);
    free(v->weights);
    free(v);
}
