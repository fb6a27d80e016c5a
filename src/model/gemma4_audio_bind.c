#include "model/gemma4_audio_bind.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"

typedef struct binder {
    audio_model *a;
    mem_account *account;
    audio_find find;
    void *file;
    bool is_gguf;
    kakeya_error *reason; /* .status: there is one */
} binder;

static void *own(binder *b, const char *name, size_t bytes, kakeya_error *error) {
    audio_model *a = b->a;
    void **owned = realloc(a->owned, (a->n_owned + 1) * sizeof *owned);
    if (owned) a->owned = owned;
    void *block = owned ? mem_alloc(b->account, MEM_WEIGHTS, bytes) : NULL;
    if (block)
        owned[a->n_owned++] = block;
    else
        error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for tensor %s", name);
    return block;
}

/* False with a reason where the tensor is of no use. */
static bool fits(const binder *b, const audio_slot *slot, const vision_stored *t, int64_t values) {
    if (!t->name) {
        error_set(b->reason, KAKEYA_FORMAT, "%s is missing", b->is_gguf ? slot->gguf : slot->name);
        return false;
    }
    if (t->values != values || (slot->mapped && values > 1 && t->last != slot->columns)) {
        error_set(b->reason, KAKEYA_FORMAT, "%s is of another shape", t->name);
        return false;
    }
    if (t->type_name) error_set(b->reason, KAKEYA_UNSUPPORTED, "%s is stored as %s", t->name, t->type_name);
    return !t->type_name;
}

static bool is_exact_bf16(const vision_stored *t) {
    bool exact = t->type == DTYPE_F32;
    for (int64_t i = 0; exact && i < t->values; i++) {
        uint32_t bits;
        memcpy(&bits, (const char *)t->data + (size_t)i * sizeof bits, sizeof bits);
        exact = !(bits & 0xffff);
    }
    return exact;
}

/* A matrix as it is stored, but that converters to GGUF widen one, which becomes bf16 again. */
static kakeya_status bind_matrix(binder *b, const audio_slot *slot, const vision_stored *t, weight *out,
                                 kakeya_error *error) {
    static const weight_format formats[] = {
        [DTYPE_F32] = WEIGHT_F32, [DTYPE_F16] = WEIGHT_F16, [DTYPE_BF16] = WEIGHT_BF16};
    if (!b->is_gguf || slot->role != AUDIO_INPUT || !is_exact_bf16(t)) {
        *out = weight_matrix(formats[t->type], t->data, (int)slot->rows, (int)slot->columns);
        return KAKEYA_OK;
    }
    uint16_t *made = own(b, t->name, (size_t)t->values * sizeof *made, error);
    if (!made) return KAKEYA_OUT_OF_MEMORY;
    for (int64_t i = 0; i < t->values; i++) made[i] = f32_to_bf16(vision_value(t->data, t->type, (size_t)i));
    *out = weight_matrix(WEIGHT_BF16, made, (int)slot->rows, (int)slot->columns);
    return KAKEYA_OK;
}

static kakeya_status bind_values(binder *b, const audio_slot *slot, const vision_stored *t, audio_weights *w,
                                 kakeya_error *error) {
    const bool reorder = slot->role == AUDIO_CONV_1 && (b->is_gguf || t->last == 3);
    const bool softplus = slot->role == AUDIO_DIM_SCALE && !b->is_gguf;
    float *made = own(b, t->name, (size_t)t->values * sizeof *made, error);
    if (!made) return KAKEYA_OUT_OF_MEMORY;
    for (size_t i = 0; i < (size_t)t->values; i++) {
        const float x = vision_value(t->data, t->type, reorder ? audio_channels_first(b->a, i) : i);
        made[i] = softplus ? (float)log1p(exp((double)x)) : x;
    }
    if (slot->role == AUDIO_CONV_1)
        w->matrix[slot->role] = weight_matrix(WEIGHT_F32, made, (int)slot->rows, (int)slot->columns);
    else
        w->vector[slot->role] = made;
    return KAKEYA_OK;
}

/* What a file does not say is no bound. */
static kakeya_status bind_bounds(binder *b, const audio_slot *slot, vision_bounds *bounds, kakeya_error *error) {
    float *const to[AUDIO_BOUNDS] = {&bounds->input_min, &bounds->input_max, &bounds->output_min, &bounds->output_max};
    for (int i = 0; i < AUDIO_BOUNDS; i++) {
        vision_stored t = {0};
        *to[i] = i % 2 ? INFINITY : -INFINITY;
        if (!slot->clipped) continue;
        kakeya_status status = b->find(b->file, slot, i, &t, error);
        if (status != KAKEYA_OK) return status;
        if (t.name && fits(b, slot, &t, 1)) *to[i] = vision_value(t.data, t.type, 0);
    }
    return KAKEYA_OK;
}

static kakeya_status bind_slot(void *context, const audio_slot *slot, kakeya_error *error) {
    binder *b = context;
    if (b->reason->status) return KAKEYA_OK;
    audio_weights *w = &b->a->weights[1 + slot->layer];
    vision_stored t = {0};
    kakeya_status status = b->find(b->file, slot, -1, &t, error);
    if (status != KAKEYA_OK || !fits(b, slot, &t, slot->rows * slot->columns)) return status;
    if (!slot->mapped) return bind_values(b, slot, &t, w, error);
    status = bind_matrix(b, slot, &t, &w->matrix[slot->role], error);
    return status == KAKEYA_OK && slot->layer >= 0 ? bind_bounds(b, slot, &w->bounds[slot->role], error) : status;
}

kakeya_status audio_bind(audio_model *a, mem_account *account, audio_find find, void *file, bool is_gguf,
                         kakeya_error *reason, kakeya_error *error) {
    binder b = {a, account, find, file, is_gguf, reason};
    a->weights = calloc((size_t)a->layers + 1, sizeof *a->weights);
    if (!a->weights) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the tensors of the audio encoder");
    return audio_model_walk(a, bind_slot, &b, error);
}
