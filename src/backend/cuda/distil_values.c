/* Values on their way to attention: models of one generation norm them, those of the other leave them as they are. */
#include "backend/cuda/distil.h"

void train_values(backend_restoration_trainer *s, int layer, const float *raw, int rows, float *out) {
    const model_config *c = s->m->config;
    const layer_config *lc = &c->layer[layer];
    if (c->raw_values)
        distil_copy(s, out, raw, (size_t)rows * (size_t)distil_kv_dim(s, layer));
    else
        cuda_train_heads(&s->launch, raw, NULL, out, rows, lc->kv_heads, lc->head_dim, c->rms_eps, (train_turn){0});
}

void train_values_back(backend_restoration_trainer *s, int layer, const float *raw, const float *d_out, int rows,
                       bool add, float *d_v) {
    const model_config *c = s->m->config;
    const layer_config *lc = &c->layer[layer];
    size_t n = (size_t)rows * (size_t)distil_kv_dim(s, layer);
    if (!c->raw_values)
        cuda_train_heads_back(&s->launch, raw, NULL, d_out, d_v, add, rows, lc->kv_heads, lc->head_dim, c->rms_eps,
                              (train_turn){0});
    else if (add)
        cuda_train_add(&s->launch, d_out, d_v, n);
    else
        distil_copy(s, d_v, d_out, n);
}
