#include "train/seen.h"

#include <math.h>
#include <string.h>

/* gain NULL: ones. */
static void norm(const float *x, const float *gain, int n, float eps, float *out) {
    double squares = 0;
    for (int i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    float scale = (float)(1 / sqrt(squares / n + (double)eps));
    for (int i = 0; i < n; i++) out[i] = gain ? x[i] * scale * gain[i] : x[i] * scale;
}

static void turn(const train_layer *l, int position, float *k) {
    const float *cosine = l->cosine + (size_t)position * (size_t)l->pairs,
                *sine = l->sine + (size_t)position * (size_t)l->pairs;
    for (int j = 0; j < l->pairs; j++) {
        float a = k[j], b = k[j + l->half];
        k[j] = a * cosine[j] - b * sine[j];
        k[j + l->half] = b * cosine[j] + a * sine[j];
    }
}

static void take_kv(const assistant_seen *s, const language_model *v, const train_layer *l, int row, float *seen) {
    const layer_config *c = &v->config.layer[l->layer];
    size_t from = (size_t)row * s->kv[c->type];
    for (int head = 0; head < c->kv_heads; head++) {
        size_t at = (size_t)(head * c->head_dim);
        float *k = seen + s->k[c->type] + at, *value = seen + s->v[c->type] + at;
        norm(l->raw_k + from + at, v->weights.layer[l->layer].k_norm, c->head_dim, v->config.rms_eps, k);
        turn(l, l->position + row, k);
        norm(l->raw_v + from + at, NULL, c->head_dim, v->config.rms_eps, value);
    }
}

void seen_take(const assistant_seen *s, const language_model *verifier, const train_layer *l, float *seen) {
    const model_config *c = &verifier->config;
    size_t hidden = (size_t)c->hidden;
    bool source = s->source[c->layer[l->layer].type] == l->layer, last = l->layer == c->layers - 1;
    for (int row = 0; row < l->rows && (source || last); row++) {
        float *to = seen + (size_t)(l->position + row) * s->width;
        if (last) norm(l->h + (size_t)row * hidden, verifier->weights.final_norm, c->hidden, c->rms_eps, to);
        if (source) take_kv(s, verifier, l, row, to);
    }
}
