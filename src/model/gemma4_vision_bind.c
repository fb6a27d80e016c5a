#include "model/gemma4_vision_bind.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"

typedef struct binder {
    vision_model *v;
    mem_account *account;
    vision_find find;
    void *file;
    bool is_gguf;
    kakeya_error *reason; /* .status: there is one */
} binder;

float vision_value(const void *data, dtype type, size_t i) {
    if (type == DTYPE_F32) return ((const float *)data)[i];
    const uint16_t bits = ((const uint16_t *)data)[i];
    return type == DTYPE_BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static bool type_of(const gguf_type *type, dtype *out) {
    *out = type->id == GGUF_TENSOR_F32 ? DTYPE_F32 : type->id == GGUF_TENSOR_F16 ? DTYPE_F16 : DTYPE_BF16;
    return type->id == GGUF_TENSOR_F32 || type->id == GGUF_TENSOR_F16 || type->id == GGUF_TENSOR_BF16;
}

kakeya_status vision_stored_gguf(const gguf_tensor *t, mem_account *account, void ***owned, size_t *n_owned,
                                 vision_stored *out, kakeya_error *error) {
    *out = (vision_stored){.name = t->name, .values = 1, .last = t->ne[0], .data = t->data};
    for (int i = 0; i < t->dims; i++) out->values *= t->ne[i];
    if (!type_of(t->type, &out->type)) out->type_name = t->type->name;
    if ((uintptr_t)t->data % sizeof(float) == 0) return KAKEYA_OK;
    void **larger = realloc(*owned, (*n_owned + 1) * sizeof *larger); /* a file may be aligned to single bytes */
    if (larger) *owned = larger;
    void *copy = larger ? mem_alloc(account, MEM_WEIGHTS, t->bytes) : NULL;
    if (!copy) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for tensor %s", t->name);
    larger[(*n_owned)++] = copy;
    out->data = memcpy(copy, t->data, t->bytes);
    return KAKEYA_OK;
}

static void *own(binder *b, size_t bytes) {
    vision_model *v = b->v;
    void **owned = realloc(v->owned, (v->n_owned + 1) * sizeof *owned);
    if (!owned) return NULL;
    v->owned = owned;
    void *block = mem_alloc(b->account, MEM_WEIGHTS, bytes);
    if (block) owned[v->n_owned++] = block;
    return block;
}

static kakeya_status no_memory(const char *name, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for tensor %s", name);
}

/* False with a reason where the tensor is of no use. Dimensions before the last one are rows; a patch may have three.
 */
static bool fits(const binder *b, const vision_slot *slot, const vision_stored *t, int64_t rows, int64_t columns) {
    if (!t->name) {
        error_set(b->reason, KAKEYA_FORMAT, "%s is missing", b->is_gguf ? slot->gguf : slot->name);
        return false;
    }
    const bool folded = b->is_gguf && slot->order == VISION_PIXELS;
    if (t->values != rows * columns || (columns > 1 && t->last != columns && !folded)) {
        error_set(b->reason, KAKEYA_FORMAT, "%s is of another shape", t->name);
        return false;
    }
    if (t->type_name) error_set(b->reason, KAKEYA_UNSUPPORTED, "%s is stored as %s", t->name, t->type_name);
    return !t->type_name;
}

static bool is_bf16(const vision_stored *t) {
    bool exact = t->type != DTYPE_F16;
    const uint32_t *bits = t->data;
    for (int64_t i = 0; exact && t->type == DTYPE_F32 && i < t->values; i++) exact = !(bits[i] & 0xffff);
    return exact;
}

/* A matrix in our order. What came from bf16 becomes it again: converters widen some of these. */
static kakeya_status reorder(binder *b, const vision_slot *slot, const vision_stored *t, weight *out,
                             kakeya_error *error) {
    const bool narrow = is_bf16(t);
    void *made = own(b, (size_t)t->values * (narrow ? sizeof(uint16_t) : sizeof(float)));
    if (!made) return no_memory(t->name, error);
    size_t i = 0;
    for (int64_t row = 0; row < slot->rows; row++) {
        for (int64_t column = 0; column < slot->columns; column++, i++) {
            const float x = vision_value(t->data, t->type, vision_gguf_index(b->v, slot, row, column));
            if (narrow)
                ((uint16_t *)made)[i] = f32_to_bf16(x);
            else
                ((float *)made)[i] = x;
        }
    }
    *out = weight_matrix(narrow ? WEIGHT_BF16 : WEIGHT_F32, made, (int)slot->rows, (int)slot->columns);
    return KAKEYA_OK;
}

static kakeya_status bind_matrix(binder *b, const vision_slot *slot, const vision_stored *t, weight *out,
                                 kakeya_error *error) {
    static const weight_format formats[] = {
        [DTYPE_F32] = WEIGHT_F32, [DTYPE_F16] = WEIGHT_F16, [DTYPE_BF16] = WEIGHT_BF16};
    if (b->is_gguf && slot->order != VISION_AS_IS) return reorder(b, slot, t, out, error);
    *out = weight_matrix(formats[t->type], t->data, (int)slot->rows, (int)slot->columns);
    return KAKEYA_OK;
}

static kakeya_status bind_vector(binder *b, const vision_slot *slot, const vision_stored *t, const float **out,
                                 kakeya_error *error) {
    float *made = own(b, (size_t)slot->rows * sizeof *made);
    if (!made) return no_memory(t->name, error);
    for (int64_t i = 0; i < slot->rows; i++)
        made[i] = vision_value(t->data, t->type, b->is_gguf ? vision_gguf_index(b->v, slot, i, 0) : (size_t)i);
    *out = made;
    return KAKEYA_OK;
}

/* What a file does not say is no bound. */
static kakeya_status bind_bounds(binder *b, const vision_slot *slot, vision_bounds *bounds, kakeya_error *error) {
    float *const to[VISION_BOUNDS] = {&bounds->input_min, &bounds->input_max, &bounds->output_min, &bounds->output_max};
    for (int i = 0; i < VISION_BOUNDS; i++) {
        vision_stored t = {0};
        *to[i] = i % 2 ? INFINITY : -INFINITY;
        if (!slot->clipped) continue;
        kakeya_status status = b->find(b->file, slot, i, &t, error);
        if (status) return status;
        if (t.name && fits(b, slot, &t, 1, 1)) *to[i] = vision_value(t.data, t.type, 0);
    }
    return KAKEYA_OK;
}

static kakeya_status bind_slot(void *context, const vision_slot *slot, kakeya_error *error) {
    binder *b = context;
    if (b->reason->status) return KAKEYA_OK;
    vision_weights *w = &b->v->weights[1 + slot->layer];
    vision_stored t = {0};
    kakeya_status status = b->find(b->file, slot, -1, &t, error);
    if (status || !fits(b, slot, &t, slot->rows, slot->columns)) return status;
    if (!slot->matrix) return bind_vector(b, slot, &t, &w->vector[slot->role], error);
    status = bind_matrix(b, slot, &t, &w->matrix[slot->role], error);
    return status || slot->layer < 0 ? status : bind_bounds(b, slot, &w->bounds[slot->role], error);
}

kakeya_status vision_bind(vision_model *v, mem_account *account, vision_find find, void *file, bool is_gguf,
                          kakeya_error *reason, kakeya_error *error) {
    binder b = {v, account, find, file, is_gguf, reason};
    v->weights = calloc((size_t)v->layers + 1, sizeof *v->weights);
    if (!v->weights) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the tensors of the vision encoder");
    return vision_model_walk(v, bind_slot, &b, error);
}
