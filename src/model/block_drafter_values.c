#include "model/block_drafter_values.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "model/tensors.h"

/* A walk over an array: `n` values lie before the slot that is visited. */
typedef struct values_walk {
    const block_drafter_config *config;
    float *values;
    block_drafter_model *out; /* NULL: values are counted */
    const model_weights *verifier;
    uint64_t seed;
    size_t n, outside;
} values_walk;

static bool in_layer(const tensor_slot *slot) { return slot->offset >= offsetof(block_drafter_model, layer); }

static kakeya_status bind(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    values_walk *w = context;
    float *at = w->values ? w->values + w->n : NULL;
    w->n += (size_t)tensor_slot_elements(slot);
    if (!in_layer(slot)) w->outside = w->n;
    if (!w->out) return KAKEYA_OK;
    char *to = (char *)w->out + slot->offset;
    if (slot->kind == SLOT_MATRIX) {
        weight matrix = weight_matrix(WEIGHT_F32, at, (int)slot->shape[0], (int)slot->shape[1]);
        memcpy(to, &matrix, sizeof matrix);
    } else {
        const float *vector = at;
        memcpy(to, &vector, sizeof vector);
    }
    return KAKEYA_OK;
}

static values_walk walk(const block_drafter_config *c, float *values, block_drafter_model *out) {
    values_walk w = {.config = c, .values = values, .out = out};
    dflash_walk(c, bind, &w, NULL); /* a visit that never fails */
    return w;
}

size_t block_drafter_values_count(const block_drafter_config *c) { return walk(c, NULL, NULL).n; }
size_t block_drafter_values_outside_layers(const block_drafter_config *c) { return walk(c, NULL, NULL).outside; }

void block_drafter_values_bind(const block_drafter_config *c, float *values, block_drafter_model *out) {
    memset(out, 0, sizeof *out);
    out->config = *c;
    walk(c, values, out);
}

/* ------------------------------------------------------------------------------------------------- from nothing */

/* Matrices keep the size of what they are given; those that end a branch add little to the residual stream at first. */
static kakeya_status begin(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    values_walk *w = context;
    float *at = w->values + w->n;
    size_t n = (size_t)tensor_slot_elements(slot);
    bool ends_branch = in_layer(slot) && (strstr(slot->name, "o_proj") || strstr(slot->name, "down_proj"));
    double deviation = 1;
    if (slot->kind == SLOT_MATRIX) {
        deviation = 1 / sqrt((double)slot->shape[1]);
        if (ends_branch) deviation /= sqrt(2.0 * w->config->layers);
    }
    for (size_t i = 0; i < n; i++)
        at[i] = slot->kind == SLOT_MATRIX ? (float)(deviation * random_normal_at(w->seed, w->n + i)) : 1;
    if (slot->offset == offsetof(block_drafter_model, norm)) memcpy(at, w->verifier->final_norm, n * sizeof *at);
    w->n += n;
    return KAKEYA_OK;
}

void block_drafter_values_begin(const block_drafter_config *c, const model_weights *verifier, uint64_t seed,
                                float *values) {
    values_walk w = {.config = c, .values = values, .verifier = verifier, .seed = seed};
    dflash_walk(c, begin, &w, NULL);
}
