#include "model/assistant_values.h"

#include <math.h>
#include <string.h>

#include "base/random.h"
#include "model/tensors.h"

assistant_seen assistant_sees(const assistant_config *c, const model_config *verifier) {
    assistant_seen s = {.width = (size_t)c->backbone, .source = {-1, -1}};
    for (int i = 0; i < c->stack.layers; i++) {
        const layer_config *l = &c->stack.layer[i];
        if (s.source[l->type] >= 0) continue;
        s.source[l->type] = assistant_source(verifier, l->type);
        s.kv[l->type] = (size_t)(l->kv_heads * l->head_dim);
        s.k[l->type] = s.width;
        s.v[l->type] = s.width + s.kv[l->type];
        s.width += 2 * s.kv[l->type];
    }
    return s;
}

/* A walk over an array: `n` values lie before the slot that is visited. */
typedef struct values_walk {
    const assistant_config *config;
    float *values;
    assistant_values *out; /* NULL: values are counted */
    uint64_t seed;
    size_t n;
} values_walk;

static int layer_of(const tensor_slot *slot) {
    return (int)((slot->offset - offsetof(assistant_weights, stack.layer)) / sizeof(layer_weights));
}

static kakeya_status bind(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    values_walk *w = context;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    float *at = w->out ? w->values + w->n : NULL;
    w->n += (size_t)tensor_slot_elements(slot);
    if (!w->out) return KAKEYA_OK;
    char *to = (char *)&w->out->weights + slot->offset;
    if (slot->kind == SLOT_MATRIX) {
        weight matrix = weight_matrix(WEIGHT_F32, at, (int)slot->shape[0], (int)slot->shape[1]);
        memcpy(to, &matrix, sizeof matrix);
    } else if (slot->kind == SLOT_VECTOR) {
        const float *vector = at;
        memcpy(to, &vector, sizeof vector);
    } else {
        memcpy(to, at, sizeof *at);
        w->out->scalar[layer_of(slot)] = at;
    }
    return KAKEYA_OK;
}

size_t assistant_values_count(const assistant_config *c) {
    values_walk w = {.config = c};
    (void)assistant_walk(c, bind, &w, NULL); /* a visit that never fails */
    return w.n;
}

void assistant_values_bind(const assistant_config *c, float *values, assistant_values *out) {
    values_walk w = {.config = c, .values = values, .out = out};
    memset(out, 0, sizeof *out);
    (void)assistant_walk(c, bind, &w, NULL);
}

/* ------------------------------------------------------------------------------------------------- from nothing */

static kakeya_status begin(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    values_walk *w = context;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    float *at = w->values + w->n;
    size_t n = (size_t)tensor_slot_elements(slot);
    double deviation = slot->kind == SLOT_MATRIX ? 1 / sqrt((double)slot->shape[1]) : 0;
    bool ends = strstr(slot->name, "post_attention_layernorm") || strstr(slot->name, "post_feedforward_layernorm");
    float ones = ends ? (float)(1 / sqrt(2.0 * w->config->stack.layers)) : 1;
    for (size_t i = 0; i < n; i++)
        at[i] = slot->kind == SLOT_MATRIX ? (float)(deviation * random_normal_at(w->seed, w->n + i)) : ones;
    w->n += n;
    return KAKEYA_OK;
}

void assistant_values_begin(const assistant_config *c, uint64_t seed, float *values) {
    values_walk w = {.config = c, .values = values, .seed = seed};
    (void)assistant_walk(c, begin, &w, NULL);
}
