/* The weights of an f_theta in training as one array of float32, which optimisers see as a row of numbers: the
 * encoders, then the decoders of each layer that has K/V of its own. Matrices are row-major, as in f_theta's file. */
#ifndef KAKEYA_BACKEND_RESTORATION_LAYOUT_H
#define KAKEYA_BACKEND_RESTORATION_LAYOUT_H

#include "model/restoration.h"

typedef struct restoration_layout {
    bool encoder_there[2], decoder_there[MODEL_MAX_LAYERS];
    size_t encoder[2]; /* where [rank][restoration_encoder_in] begins; a shared latent has the first */
    size_t decoder[2][MODEL_MAX_LAYERS]; /* where [kv_heads * head_dim][rank] begins */
    size_t n;                            /* values in all */
} restoration_layout;

static inline restoration_layout restoration_layout_of(const restoration_config *f, const model_config *verifier) {
    restoration_layout l = {.encoder_there = {true, !f->shared_latent}};
    size_t rank[2] = {(size_t)f->rank_k, (size_t)f->rank_v};
    for (int half = 0; half < 2; half++) {
        l.encoder[half] = l.n;
        if (l.encoder_there[half]) l.n += rank[half] * (size_t)restoration_encoder_in(f);
    }
    for (int i = 0; i < f->layers; i++) {
        l.decoder_there[i] = verifier->layer[i].kv_source == i;
        for (int half = 0; half < 2; half++) {
            l.decoder[half][i] = l.n;
            if (l.decoder_there[i]) l.n += (size_t)(f->kv_heads[i] * f->head_dim[i]) * rank[half];
        }
    }
    return l;
}

#endif
