#include "model/gguf_binding.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "model/gemma4_gguf.h"

enum { NAME_BYTES = 96 };

kakeya_status gguf_binding_begin(gguf_binding *b, tensor_walk walk, const void *shape, kakeya_error *error) {
    b->used = calloc(b->file->n_tensors + 1, sizeof *b->used);
    if (!b->used)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its tensor list", gguf_path(b->file));
    return tensor_vector_block(walk, shape, b->account, b->memory, &b->vectors, error);
}

static kakeya_status check_names(gguf_binding *b, tensor_skip skip, kakeya_error *error) {
    name_list unexpected = {0};
    char shown[GGUF_SHOWN_BYTES];
    for (size_t i = 0; i < b->file->n_tensors; i++) {
        const char *name = b->file->tensors[i]->name;
        if (b->used[i]) continue;
        if (skip && skip(name))
            b->memory->skipped++;
        else
            name_list_add(&unexpected, gguf_show(name, strlen(name), shown), "");
    }
    return name_lists_check(gguf_path(b->file), &b->missing, &unexpected, error);
}

kakeya_status gguf_binding_end(gguf_binding *b, kakeya_status status, tensor_skip skip, kakeya_error *error) {
    if (status == KAKEYA_OK) status = check_names(b, skip, error);
    free(b->used);
    b->used = NULL;
    return status;
}

const gguf_tensor *gguf_binding_find(gguf_binding *b, const char *name) {
    ptrdiff_t index = gguf_find_tensor(b->file, name);
    if (index < 0) return NULL;
    b->used[index] = true;
    return b->file->tensors[index];
}

kakeya_status gguf_binding_no_memory(const gguf_binding *b, const char *name, size_t bytes, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu bytes of tensor %s", gguf_path(b->file), bytes,
                     name);
}

kakeya_status gguf_binding_check_shape(const gguf_binding *b, const gguf_tensor *t, int dims, const int64_t *shape,
                                       kakeya_error *error) {
    bool same = t->dims == dims;
    for (int i = 0; same && i < dims; i++) same = t->ne[dims - 1 - i] == shape[i];
    if (same) return KAKEYA_OK;
    gguf_tensor expected = {.dims = dims};
    for (int i = 0; i < dims; i++) expected.ne[i] = shape[dims - 1 - i];
    char found[96], wanted[96];
    return error_set(error, KAKEYA_FORMAT, "%s: tensor %s has shape %s, expected %s", gguf_path(b->file), t->name,
                     gguf_shape_text(t, found, sizeof found), gguf_shape_text(&expected, wanted, sizeof wanted));
}

static kakeya_status format_of(const gguf_binding *b, const gguf_tensor *t, weight_format *out, kakeya_error *error) {
    if (gemma4_gguf_format(t->type, out)) return KAKEYA_OK;
    bool small = strncmp(t->type->name, "IQ", 2) == 0 || strncmp(t->type->name, "TQ", 2) == 0;
    return error_set(error, KAKEYA_UNSUPPORTED, "%s: tensor %s is of type %s, which is not supported: take a %s file",
                     gguf_path(b->file), t->name, t->type->name, small ? "Q3_K_M or Q4_K_M" : "Q4_K_M or Q8_0");
}

/* The factor beside an NVFP4 matrix, as one number per row: NAME.scale holds one for all of it, or one per expert. */
static kakeya_status bind_factors(gguf_binding *b, const gguf_tensor *t, weight *w, kakeya_error *error) {
    char name[NAME_BYTES];
    int stem = (int)(strlen(t->name) - strlen(".weight"));
    float *factors = tensor_memory_block(b->memory, b->account, (size_t)w->out * sizeof *factors);
    if (!factors) return gguf_binding_no_memory(b, t->name, (size_t)w->out * sizeof *factors, error);
    for (int i = 0; i < w->out; i++) factors[i] = 1;
    w->stream[1] = factors;
    snprintf(name, sizeof name, "%.*s.input_scale", stem, t->name);
    (void)gguf_binding_find(b, name); /* of 4-bit activations */
    /* The router takes this one: the converter has multiplied it with the experts' own factors. */
    if (strstr(t->name, ".ffn_down_exps.")) return KAKEYA_OK;
    snprintf(name, sizeof name, "%.*s.scale", stem, t->name);
    const gguf_tensor *scale = gguf_binding_find(b, name);
    if (!scale) return KAKEYA_OK;
    int64_t parts = t->dims == 3 ? t->ne[2] : 1;
    if (scale->type->id != GGUF_TENSOR_F32 || scale->dims != 1 || (scale->ne[0] != 1 && scale->ne[0] != parts))
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is %s of %lld, expected F32 of 1 or %lld",
                         gguf_path(b->file), name, scale->type->name, (long long)scale->ne[0], (long long)parts);
    int rows = w->out / (int)scale->ne[0];
    for (int i = 0; i < w->out; i++) {
        memcpy(&factors[i], scale->data + (size_t)(i / rows) * sizeof *factors, sizeof *factors);
        if (!isfinite(factors[i]))
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is not finite", gguf_path(b->file), name);
    }
    return KAKEYA_OK;
}

kakeya_status gguf_binding_matrix(gguf_binding *b, const gguf_tensor *t, weight *out, kakeya_error *error) {
    weight_format format;
    kakeya_status status = format_of(b, t, &format, error);
    if (status != KAKEYA_OK) return status;
    const weight_stream *stream = &weight_format_find(format)->stream[0];
    int64_t rows = 1;
    for (int i = 1; i < t->dims; i++) rows *= t->ne[i];
    const void *data = t->data;
    if ((uintptr_t)data % (uintptr_t)stream->alignment) {
        void *copy = tensor_memory_block(b->memory, b->account, t->bytes);
        if (!copy) return gguf_binding_no_memory(b, t->name, t->bytes, error);
        memcpy(copy, t->data, t->bytes);
        data = copy;
    } else {
        b->memory->mapped_bytes += t->bytes;
    }
    *out = weight_matrix(format, data, (int)rows, (int)t->ne[0]);
    return format == WEIGHT_NVFP4 ? bind_factors(b, t, out, error) : KAKEYA_OK;
}

kakeya_status gguf_binding_numbers(gguf_binding *b, const tensor_slot *slot, const gguf_tensor *t,
                                   kakeya_error *error) {
    kakeya_status status = gguf_binding_check_shape(b, t, slot->dims, slot->shape, error);
    if (status != KAKEYA_OK) return status;
    size_t n = (size_t)tensor_slot_elements(slot);
    float *out = slot->kind == SLOT_VECTOR ? b->vectors : (float *)(void *)(b->base + slot->offset);
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        if (t->type->id == GGUF_TENSOR_F32) {
            memcpy(&out[i], t->data + i * sizeof *out, sizeof *out);
        } else if (t->type->id == GGUF_TENSOR_F16 || t->type->id == GGUF_TENSOR_BF16) {
            memcpy(&half, t->data + i * sizeof half, sizeof half);
            out[i] = t->type->id == GGUF_TENSOR_F16 ? f16_to_f32(half) : bf16_to_f32(half);
        } else {
            return error_set(error, KAKEYA_UNSUPPORTED, "%s: tensor %s is of type %s, expected F32, F16 or BF16",
                             gguf_path(b->file), t->name, t->type->name);
        }
        if (!isfinite(out[i]))
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s[%zu] is not a finite number", gguf_path(b->file),
                             t->name, i);
    }
    if (slot->kind == SLOT_VECTOR) {
        *(const float **)(void *)(b->base + slot->offset) = b->vectors;
        b->vectors += tensor_vector_floats(slot);
    }
    return KAKEYA_OK;
}
