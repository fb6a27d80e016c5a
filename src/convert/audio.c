#include "convert/audio.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "media/log_mel.h"
#include "model/gemma4_audio_gguf.h"

static kakeya_status no_memory(const char *name, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for tensor %s", name);
}

static const weight *matrix_of(const audio_model *a, const audio_slot *slot) {
    return &a->weights[1 + slot->layer].matrix[slot->role];
}

static float bound_of(const audio_model *a, const audio_slot *slot, int i) {
    const vision_bounds *b = &a->weights[1 + slot->layer].bounds[slot->role];
    const float bounds[AUDIO_BOUNDS] = {b->input_min, b->input_max, b->output_min, b->output_max};
    return bounds[i];
}

static size_t values_of(const audio_slot *slot) { return (size_t)(slot->rows * slot->columns); }

/* A weight of which softplus makes y: the one of bf16, if there is one. */
static float before_softplus(float y) {
    const float x = (float)log(expm1((double)y)), narrow = bf16_to_f32(f32_to_bf16(x));
    return (float)log1p(exp((double)narrow)) == y ? narrow : x;
}

typedef enum audio_form { FORM_GGUF, FORM_PUBLISHED, FORM_MLX } audio_form;

/* What is no matrix as it was stored, in the order of a file. malloc'ed. */
static float *values_for(const audio_model *a, const audio_slot *slot, audio_form form) {
    const audio_weights *w = &a->weights[1 + slot->layer];
    const size_t n = values_of(slot);
    float *out = malloc(n * sizeof *out);
    const float *from = slot->role == AUDIO_CONV_1 ? w->matrix[slot->role].stream[0] : w->vector[slot->role];
    for (size_t i = 0; out && i < n; i++) {
        const bool reorder = slot->role == AUDIO_CONV_1 && form != FORM_MLX;
        const bool softplus = slot->role == AUDIO_DIM_SCALE && form != FORM_GGUF;
        out[reorder ? audio_channels_first(a, i) : i] = softplus ? before_softplus(from[i]) : from[i];
    }
    return out;
}

/* ---------------------------------------------------------------------------------------------------------- GGUF */

typedef struct gguf_writing {
    const audio_model *a;
    gguf_output *o;
    uint64_t bytes;
} gguf_writing;

/* llama.cpp's converter widens the matrix behind the convolutions, too. */
static bool is_wide(const audio_model *a, const audio_slot *slot) {
    return !slot->mapped || slot->role == AUDIO_INPUT || matrix_of(a, slot)->format == WEIGHT_F32;
}

static kakeya_status plan_tensor(void *context, const audio_slot *slot, kakeya_error *error) {
    (void)error;
    gguf_writing *w = context;
    const audio_model *a = w->a;
    const bool wide = is_wide(a, slot), conv = slot->role == AUDIO_CONV_0 || slot->role == AUDIO_CONV_1;
    const uint32_t type = wide                                       ? GGUF_TENSOR_F32
                          : matrix_of(a, slot)->format == WEIGHT_F16 ? GGUF_TENSOR_F16
                                                                     : GGUF_TENSOR_BF16;
    const size_t bytes = values_of(slot) * (wide ? 4 : 2);
    const int64_t taps[] = {3, 3, slot->role == AUDIO_CONV_1 ? a->channels[0] : 1, slot->rows};
    const int64_t matrix[] = {slot->columns, slot->rows}, vector[] = {slot->rows}, one[] = {1};
    if (conv)
        gguf_output_tensor(w->o, slot->gguf, type, 4, taps, bytes);
    else if (slot->columns > 1)
        gguf_output_tensor(w->o, slot->gguf, type, 2, matrix, bytes);
    else
        gguf_output_tensor(w->o, slot->gguf, type, 1, vector, bytes);
    w->bytes += bytes;
    for (int i = 0; slot->clipped && i < AUDIO_BOUNDS; i++) {
        char name[AUDIO_NAME_BYTES];
        if (isinf(bound_of(a, slot, i))) continue;
        audio_bound_name(slot, i, true, name);
        gguf_output_tensor(w->o, name, GGUF_TENSOR_F32, 1, one, sizeof(float));
        w->bytes += sizeof(float);
    }
    return KAKEYA_OK;
}

static void add_keys(const audio_model *a, gguf_output *o) {
    const char *type = a->conformer ? "gemma4a" : "gemma4ua";
    gguf_output_bool(o, "clip.has_audio_encoder", true);
    gguf_output_text(o, "clip.audio.projector_type", type, strlen(type));
    gguf_output_u32(o, "clip.audio.num_mel_bins", LOG_MEL_BANDS);
    gguf_output_u32(o, "clip.audio.embedding_length", (uint32_t)(a->conformer ? a->hidden : a->frame));
    gguf_output_u32(o, "clip.audio.feed_forward_length", (uint32_t)a->intermediate);
    gguf_output_u32(o, "clip.audio.block_count", (uint32_t)a->layers);
    gguf_output_u32(o, "clip.audio.attention.head_count", (uint32_t)a->heads);
    gguf_output_f32(o, "clip.audio.attention.layer_norm_epsilon", a->rms_eps);
    gguf_output_u32(o, "clip.audio.projection_dim", (uint32_t)a->text_hidden);
    if (!a->conformer) return;
    if (a->reach != audio_published_reach) gguf_output_u32(o, AUDIO_KEY_CONTEXT, (uint32_t)a->reach + 1);
    if (a->cap != audio_published_cap) gguf_output_f32(o, AUDIO_KEY_CAP, a->cap);
    if (a->residual != audio_published_residual) gguf_output_f32(o, AUDIO_KEY_RESIDUAL, a->residual);
}

void audio_plan_gguf(const audio_model *a, gguf_output *o, uint64_t *bytes) {
    gguf_writing w = {.a = a, .o = o};
    add_keys(a, o);
    (void)audio_model_walk(a, plan_tensor, &w, NULL);
    *bytes = w.bytes;
}

static kakeya_status write_tensor(void *context, const audio_slot *slot, kakeya_error *error) {
    const gguf_writing *w = context;
    const audio_model *a = w->a;
    kakeya_status status;
    if (slot->mapped && (!is_wide(a, slot) || matrix_of(a, slot)->format == WEIGHT_F32)) {
        const weight *from = matrix_of(a, slot);
        status = gguf_output_write(w->o, from->stream[0], weight_bytes(from), error);
    } else {
        const size_t n = values_of(slot);
        float *values = slot->mapped ? vision_matrix_values(matrix_of(a, slot)) : values_for(a, slot, FORM_GGUF);
        if (!values) return no_memory(slot->gguf, error);
        status = gguf_output_write(w->o, values, n * sizeof *values, error);
        free(values);
    }
    for (int i = 0; slot->clipped && i < AUDIO_BOUNDS && status == KAKEYA_OK; i++) {
        const float bound = bound_of(a, slot, i);
        if (!isinf(bound)) status = gguf_output_write(w->o, &bound, sizeof bound, error);
    }
    return status;
}

kakeya_status audio_write_gguf(const audio_model *a, gguf_output *o, kakeya_error *error) {
    gguf_writing w = {.a = a, .o = o};
    return audio_model_walk(a, write_tensor, &w, error);
}

/* --------------------------------------------------------------------------------------------------- safetensors */

static kakeya_status count_entries(void *context, const audio_slot *slot, kakeya_error *error) {
    (void)error;
    *(size_t *)context += slot->clipped ? 1 + AUDIO_BOUNDS : 1;
    return KAKEYA_OK;
}

typedef struct planning {
    const audio_model *a;
    const char *prefix;
    vision_entries *to;
} planning;

/* Shapes as published, or as MLX has them. */
static void set_shape(safetensors_entry *e, const audio_model *a, const audio_slot *slot, bool mlx) {
    const int64_t channels = slot->role == AUDIO_CONV_1 ? a->channels[0] : 1;
    e->shape[0] = slot->rows;
    if (slot->role == AUDIO_CONV_0 || slot->role == AUDIO_CONV_1) {
        e->dims = 4;
        e->shape[1] = mlx ? 3 : channels;
        e->shape[2] = 3;
        e->shape[3] = mlx ? channels : 3;
    } else if (slot->role == AUDIO_CONV_DEPTH) {
        e->dims = 3;
        e->shape[1] = mlx ? slot->columns : 1;
        e->shape[2] = mlx ? 1 : slot->columns;
    } else {
        e->dims = slot->mapped ? 2 : 1;
        if (slot->mapped) e->shape[1] = slot->columns;
    }
}

static kakeya_status plan_entry(void *context, const audio_slot *slot, kakeya_error *error) {
    const planning *p = context;
    const audio_model *a = p->a;
    const bool mlx = !*p->prefix;
    tensor_type type;
    if (slot->mapped) {
        const weight_format format = matrix_of(a, slot)->format;
        type = format == WEIGHT_F32 ? TENSOR_F32 : format == WEIGHT_F16 ? TENSOR_F16 : TENSOR_BF16;
    } else {
        float *values = values_for(a, slot, mlx ? FORM_MLX : FORM_PUBLISHED);
        if (!values) return no_memory(slot->name, error);
        type = vision_values_type(values, values_of(slot));
        free(values);
    }
    set_shape(vision_entry_add(p->to, p->prefix, slot->name, type), a, slot, mlx);
    for (int i = 0; slot->clipped && i < AUDIO_BOUNDS; i++) {
        const float bound = bound_of(a, slot, i);
        char name[AUDIO_NAME_BYTES];
        audio_bound_name(slot, i, false, name);
        if (!isinf(bound)) (void)vision_entry_add(p->to, p->prefix, name, vision_values_type(&bound, 1));
    }
    return KAKEYA_OK;
}

kakeya_status audio_entries_make(const audio_model *a, const char *prefix, vision_entries *out, kakeya_error *error) {
    *out = (vision_entries){0};
    size_t n = 0;
    if (!a) return KAKEYA_OK;
    (void)audio_model_walk(a, count_entries, &n, error);
    kakeya_status status = vision_entries_reserve(out, n, error);
    planning p = {a, prefix, out};
    return status == KAKEYA_OK ? audio_model_walk(a, plan_entry, &p, error) : status;
}

typedef struct safetensors_writing {
    const audio_model *a;
    bool mlx;
    safetensors_writer *writer;
    uint64_t *bytes;
} safetensors_writing;

static kakeya_status write_entry(void *context, const audio_slot *slot, kakeya_error *error) {
    const safetensors_writing *w = context;
    kakeya_status status;
    if (slot->mapped) {
        const weight *from = matrix_of(w->a, slot);
        *w->bytes += weight_bytes(from);
        status = safetensors_writer_write(w->writer, from->stream[0], weight_bytes(from), error);
    } else {
        float *values = values_for(w->a, slot, w->mlx ? FORM_MLX : FORM_PUBLISHED);
        if (!values) return no_memory(slot->name, error);
        status = vision_values_write(w->writer, values, values_of(slot), w->bytes, error);
        free(values);
    }
    for (int i = 0; slot->clipped && i < AUDIO_BOUNDS && status == KAKEYA_OK; i++) {
        const float bound = bound_of(w->a, slot, i);
        if (!isinf(bound)) status = vision_values_write(w->writer, &bound, 1, w->bytes, error);
    }
    return status;
}

kakeya_status audio_to_safetensors(const audio_model *a, bool mlx, safetensors_writer *writer, uint64_t *bytes,
                                   kakeya_error *error) {
    safetensors_writing w = {a, mlx, writer, bytes};
    return a ? audio_model_walk(a, write_entry, &w, error) : KAKEYA_OK;
}
