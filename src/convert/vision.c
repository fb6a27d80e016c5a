#include "convert/vision.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"

static kakeya_status no_memory(const char *name, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for tensor %s", name);
}

static const weight *matrix_of(const vision_model *v, const vision_slot *slot) {
    return &v->weights[1 + slot->layer].matrix[slot->role];
}

static const float *vector_of(const vision_model *v, const vision_slot *slot) {
    return v->weights[1 + slot->layer].vector[slot->role];
}

static float bound_of(const vision_model *v, const vision_slot *slot, int i) {
    const vision_bounds *b = &v->weights[1 + slot->layer].bounds[slot->role];
    const float bounds[VISION_BOUNDS] = {b->input_min, b->input_max, b->output_min, b->output_max};
    return bounds[i];
}

static float value_at(const weight *w, int64_t row, int64_t column) {
    const size_t at = (size_t)row * (size_t)w->in + (size_t)column;
    if (w->format == WEIGHT_F32) return ((const float *)w->stream[0])[at];
    const uint16_t bits = ((const uint16_t *)w->stream[0])[at];
    return w->format == WEIGHT_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

/* ---------------------------------------------------------------------------------------------------------- GGUF */

char *vision_path(const char *out) {
    const char *slash = strrchr(out, '/'), *name = slash ? slash + 1 : out, *ending = strrchr(name, '.');
    const bool named = ending && strcmp(ending, ".gguf") == 0;
    char *path = NULL;
    if (asprintf(&path, "%.*smmproj-%s%s", (int)(name - out), out, name, named ? "" : ".gguf") < 0) return NULL;
    return path;
}

typedef struct gguf_writing {
    const vision_model *v;
    gguf_output *o;
    uint64_t bytes;
} gguf_writing;

/* Readers expect the patches' matrix and the table of places in float32. */
static bool is_wide(const vision_slot *slot) {
    return !slot->matrix || slot->role == VISION_PATCH || slot->role == VISION_PLACES;
}

static kakeya_status plan_gguf(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)error;
    gguf_writing *w = context;
    const vision_model *v = w->v;
    const int64_t matrix[] = {slot->columns, slot->rows}, vector[] = {slot->rows}, one[] = {1};
    const int64_t places[] = {v->hidden, v->positions, 2}, patch[] = {v->patch, v->patch, 3, v->hidden};
    const weight_format format = slot->matrix ? matrix_of(v, slot)->format : WEIGHT_F32;
    const uint32_t type = is_wide(slot) || format == WEIGHT_F32 ? GGUF_TENSOR_F32
                          : format == WEIGHT_F16                ? GGUF_TENSOR_F16
                                                                : GGUF_TENSOR_BF16;
    const size_t bytes = (size_t)(slot->rows * slot->columns) * (type == GGUF_TENSOR_F32 ? 4 : 2);
    if (slot->role == VISION_PLACES)
        gguf_output_tensor(w->o, slot->gguf, type, 3, places, bytes);
    else if (slot->role == VISION_PATCH && v->tower)
        gguf_output_tensor(w->o, slot->gguf, type, 4, patch, bytes);
    else
        gguf_output_tensor(w->o, slot->gguf, type, slot->matrix ? 2 : 1, slot->matrix ? matrix : vector, bytes);
    w->bytes += bytes;
    for (int i = 0; slot->clipped && i < VISION_BOUNDS; i++) {
        char name[VISION_NAME_BYTES];
        if (isinf(bound_of(v, slot, i))) continue;
        vision_bound_name(slot, i, true, name);
        gguf_output_tensor(w->o, name, GGUF_TENSOR_F32, 1, one, sizeof(float));
        w->bytes += sizeof(float);
    }
    return KAKEYA_OK;
}

static kakeya_status write_gguf(void *context, const vision_slot *slot, kakeya_error *error) {
    const gguf_writing *w = context;
    const vision_model *v = w->v;
    const size_t n = (size_t)(slot->rows * slot->columns);
    kakeya_status status;
    if (is_wide(slot)) {
        float *values = malloc(n * sizeof *values);
        if (!values) return no_memory(slot->gguf, error);
        for (int64_t row = 0; row < slot->rows; row++)
            for (int64_t column = 0; column < slot->columns; column++)
                values[vision_gguf_index(v, slot, row, column)] =
                    slot->matrix ? value_at(matrix_of(v, slot), row, column) : vector_of(v, slot)[row];
        status = gguf_output_write(w->o, values, n * sizeof *values, error);
        free(values);
    } else {
        const weight *from = matrix_of(v, slot);
        status = gguf_output_write(w->o, from->stream[0], weight_bytes(from), error);
    }
    for (int i = 0; slot->clipped && i < VISION_BOUNDS && !status; i++) {
        const float bound = bound_of(v, slot, i);
        if (!isinf(bound)) status = gguf_output_write(w->o, &bound, sizeof bound, error);
    }
    return status;
}

static void add_keys(gguf_output *o, const vision_model *v) {
    static const float mean[3] = {0, 0, 0}, deviation[3] = {1, 1, 1};
    enum { DEFAULT_BUDGET = 280, IMAGE_SIZE = 224 /* has no meaning, but readers want one */ };
    /* The embedder's patches are known as those of a tower that are taken together. */
    const int pooling = v->tower ? v->pooling : v->patch % 3 == 0 ? 3 : 1;
    const int patch = v->tower ? v->patch : v->patch / pooling;
    const char *type = v->tower ? "gemma4v" : "gemma4uv";
    gguf_output_bool(o, "clip.has_vision_encoder", true);
    gguf_output_text(o, "clip.vision.projector_type", type, strlen(type));
    gguf_output_u32(o, "clip.vision.image_size", IMAGE_SIZE);
    gguf_output_u32(o, "clip.vision.patch_size", (uint32_t)patch);
    gguf_output_u32(o, "clip.vision.projector.scale_factor", (uint32_t)pooling);
    gguf_output_u32(o, "clip.vision.embedding_length", (uint32_t)v->hidden);
    gguf_output_u32(o, "clip.vision.feed_forward_length", (uint32_t)v->intermediate);
    gguf_output_u32(o, "clip.vision.block_count", (uint32_t)v->layers);
    gguf_output_u32(o, "clip.vision.attention.head_count", (uint32_t)v->heads);
    gguf_output_f32(o, "clip.vision.attention.layer_norm_epsilon", v->rms_eps);
    gguf_output_u32(o, "clip.vision.projection_dim", (uint32_t)v->text_hidden);
    gguf_output_array(o, "clip.vision.image_mean", GGUF_F32, 3, mean, sizeof mean);
    gguf_output_array(o, "clip.vision.image_std", GGUF_F32, 3, deviation, sizeof deviation);
    const int side = v->patch * v->pooling;
    if (v->budget != DEFAULT_BUDGET)
        gguf_output_u32(o, "clip.vision.image_max_pixels", (uint32_t)v->budget * (uint32_t)side * (uint32_t)side);
}

void vision_plan_gguf(const vision_model *v, gguf_output *o, uint64_t *bytes) {
    gguf_writing w = {.v = v, .o = o};
    add_keys(o, v);
    (void)vision_model_walk(v, plan_gguf, &w, NULL);
    *bytes = w.bytes;
}

kakeya_status vision_write_gguf(const vision_model *v, gguf_output *o, kakeya_error *error) {
    gguf_writing w = {.v = v, .o = o};
    return vision_model_walk(v, write_gguf, &w, error);
}

/* --------------------------------------------------------------------------------------------------- safetensors */

tensor_type vision_values_type(const float *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        if (bits & 0xffff) return TENSOR_F32;
    }
    return TENSOR_BF16;
}

static kakeya_status count_entries(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)error;
    *(size_t *)context += slot->clipped ? 1 + VISION_BOUNDS : 1;
    return KAKEYA_OK;
}

kakeya_status vision_entries_reserve(vision_entries *entries, size_t n, kakeya_error *error) {
    entries->entries = calloc(n, sizeof *entries->entries);
    entries->names = calloc(n, sizeof *entries->names);
    return entries->entries && entries->names
               ? KAKEYA_OK
               : error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the names of %zu tensors", n);
}

safetensors_entry *vision_entry_add(vision_entries *entries, const char *prefix, const char *name, tensor_type type) {
    safetensors_entry *e = &entries->entries[entries->n];
    char *own = entries->names[entries->n++];
    snprintf(own, sizeof *entries->names, "%s%s", prefix, name);
    *e = (safetensors_entry){.name = own, .type = type};
    return e;
}

typedef struct planning {
    const vision_model *v;
    const char *prefix;
    vision_entries *to;
} planning;

static kakeya_status plan_entry(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)error;
    const planning *p = context;
    const vision_model *v = p->v;
    if (slot->matrix) {
        const weight_format format = matrix_of(v, slot)->format;
        const tensor_type type = format == WEIGHT_F32 ? TENSOR_F32 : format == WEIGHT_F16 ? TENSOR_F16 : TENSOR_BF16;
        const bool places = slot->role == VISION_PLACES;
        safetensors_entry *e = vision_entry_add(p->to, p->prefix, slot->name, type);
        e->dims = places ? 3 : 2;
        e->shape[0] = places ? v->tower ? 2 : v->positions : slot->rows;
        e->shape[1] = places ? v->tower ? v->positions : 2 : slot->columns;
        if (places) e->shape[2] = slot->columns;
    } else {
        const tensor_type type = vision_values_type(vector_of(v, slot), (size_t)slot->rows);
        safetensors_entry *e = vision_entry_add(p->to, p->prefix, slot->name, type);
        e->dims = 1;
        e->shape[0] = slot->rows;
    }
    for (int i = 0; slot->clipped && i < VISION_BOUNDS; i++) {
        const float bound = bound_of(v, slot, i);
        char name[VISION_NAME_BYTES];
        vision_bound_name(slot, i, false, name);
        if (!isinf(bound)) (void)vision_entry_add(p->to, p->prefix, name, vision_values_type(&bound, 1));
    }
    return KAKEYA_OK;
}

kakeya_status vision_entries_make(const vision_model *v, const char *prefix, vision_entries *out, kakeya_error *error) {
    *out = (vision_entries){0};
    size_t n = 0;
    if (!v) return KAKEYA_OK;
    (void)vision_model_walk(v, count_entries, &n, error);
    kakeya_status status = vision_entries_reserve(out, n, error);
    planning p = {v, prefix, out};
    return status == KAKEYA_OK ? vision_model_walk(v, plan_entry, &p, error) : status;
}

void vision_entries_free(vision_entries *entries) {
    free(entries->entries);
    free(entries->names);
    *entries = (vision_entries){0};
}

static kakeya_status put(safetensors_writer *writer, const void *data, size_t n, uint64_t *bytes, kakeya_error *error) {
    *bytes += n;
    return safetensors_writer_write(writer, data, n, error);
}

kakeya_status vision_values_write(safetensors_writer *writer, const float *values, size_t n, uint64_t *bytes,
                                  kakeya_error *error) {
    if (vision_values_type(values, n) == TENSOR_F32) return put(writer, values, n * sizeof *values, bytes, error);
    kakeya_status status = KAKEYA_OK;
    for (size_t i = 0; i < n && !status; i++) {
        const uint16_t narrow = f32_to_bf16(values[i]);
        status = put(writer, &narrow, sizeof narrow, bytes, error);
    }
    return status;
}

float *vision_matrix_values(const weight *w) {
    const size_t n = (size_t)w->in * (size_t)w->out;
    float *values = malloc(n * sizeof *values);
    for (int row = 0; values && row < w->out; row++)
        for (int column = 0; column < w->in; column++)
            values[(size_t)row * (size_t)w->in + (size_t)column] = value_at(w, row, column);
    return values;
}

typedef struct safetensors_writing {
    const vision_model *v;
    safetensors_writer *writer;
    uint64_t *bytes;
} safetensors_writing;

static kakeya_status write_entry(void *context, const vision_slot *slot, kakeya_error *error) {
    const safetensors_writing *w = context;
    kakeya_status status;
    if (slot->matrix) {
        const weight *from = matrix_of(w->v, slot);
        status = put(w->writer, from->stream[0], weight_bytes(from), w->bytes, error);
    } else {
        status = vision_values_write(w->writer, vector_of(w->v, slot), (size_t)slot->rows, w->bytes, error);
    }
    for (int i = 0; slot->clipped && i < VISION_BOUNDS && !status; i++) {
        const float bound = bound_of(w->v, slot, i);
        if (!isinf(bound)) status = vision_values_write(w->writer, &bound, 1, w->bytes, error);
    }
    return status;
}

kakeya_status vision_to_safetensors(const vision_model *v, safetensors_writer *writer, uint64_t *bytes,
                                    kakeya_error *error) {
    safetensors_writing w = {v, writer, bytes};
    return v ? vision_model_walk(v, write_entry, &w, error) : KAKEYA_OK;
}
