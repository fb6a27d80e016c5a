/* Restoration in training: latents of the positions that segments may see restored, their K and V, and the way back;
 * and what is compared. */
#include <string.h>

#include "backend/cuda/distil.h"

static const double least_size = 1e-6;     /* what a mean square or a variance is at least, as a divisor */
static const double combined_square = 0.1; /* of the squared error, beside directions and magnitudes */
static const float full_share = 0.3f;      /* what K and V of a full-attention layer count */

static distil_matrix encoder_of(const backend_restoration_trainer *s, int half, float *weights) {
    return distil_copy_of(weights + s->layout.encoder[half], distil_rank(s, half), restoration_encoder_in(&s->f));
}

static distil_matrix decoder_of(const backend_restoration_trainer *s, int half, int layer, float *weights) {
    return distil_copy_of(weights + s->layout.decoder[half][layer], distil_kv_dim(s, layer), distil_rank(s, half));
}

static size_t restored_values(const backend_restoration_trainer *s, int half) {
    return (size_t)s->n_restored * (size_t)distil_rank(s, half);
}

/* ------------------------------------------------------------------------------------------------------- latents */

static void gather(backend_restoration_trainer *s, int half) {
    size_t n = (size_t)restoration_encoder_in(&s->f);
    cuda_train_gather(&s->launch, s->inputs[half], n, s->restored_native, 1, s->gathered, n, s->n_restored, (int)n);
}

void train_encode(backend_restoration_trainer *s) {
    size_t n = (size_t)restoration_encoder_in(&s->f);
    int bits = s->f.latents == RESTORATION_LATENTS_Q8 ? 8 : s->f.latents == RESTORATION_LATENTS_Q4 ? 4 : 0;
    for (int half = 0; half < 2; half++) {
        if (!s->layout.encoder_there[half]) continue;
        size_t rank = (size_t)distil_rank(s, half);
        gather(s, half);
        train_exactly(s, true);
        train_forward(s, s->gathered, n, s->n_restored, encoder_of(s, half, s->weights), s->latent[half], rank);
        train_exactly(s, false);
        if (bits) cuda_train_round(&s->launch, bits, s->latent[half], s->n_restored, (int)rank);
        distil_zero(s, s->d_latent[half], restored_values(s, half));
        for (int type = 0; type < 2; type++) {
            distil_restored *r = &s->restored[type];
            cuda_train_gather(&s->launch, s->latent[half], rank, r->index, 1, r->latent[half], rank, r->rows,
                              (int)rank);
            distil_zero(s, r->d_latent[half], (size_t)r->rows * rank);
        }
    }
}

void train_encode_back(backend_restoration_trainer *s) {
    train_exactly(s, true);
    for (int half = 0; half < 2; half++) {
        if (!s->layout.encoder_there[half]) continue;
        int rank = distil_rank(s, half);
        for (int type = 0; type < 2; type++) {
            distil_restored *r = &s->restored[type];
            cuda_train_scatter(&s->launch, r->d_latent[half], r->index, s->d_latent[half], r->rows, rank);
        }
        gather(s, half);
        train_outer(s, s->d_latent[half], rank, s->gathered, restoration_encoder_in(&s->f), s->n_restored,
                    s->gradient + s->layout.encoder[half]);
    }
}

/* --------------------------------------------------------------------------------------------------- K and V */

static train_turn turn_of(backend_restoration_trainer *s, int layer) {
    layer_type type = s->m->config->layer[layer].type;
    return (train_turn){.cosine = s->cosine[type],
                        .sine = s->sine[type],
                        .position = s->restored[type].position,
                        .half = s->m->config->layer[layer].head_dim / 2,
                        .pairs = s->m->config->rope[type].rotated_pairs};
}

void train_decode(backend_restoration_trainer *s, int layer) {
    const layer_config *c = &s->m->config->layer[layer];
    distil_layer *l = &s->layer[layer];
    const distil_restored *r = distil_restored_of(s, layer);
    size_t kv = (size_t)distil_kv_dim(s, layer);
    train_exactly(s, true);
    for (int half = 0; half < 2; half++) {
        train_forward(s, r->latent[distil_code(s, half)], (size_t)distil_rank(s, half), r->rows,
                      decoder_of(s, half, layer, s->weights), l->raw[half], kv);
        distil_zero(s, l->d_seen[half], (size_t)r->rows * kv);
    }
    train_exactly(s, false);
    cuda_train_heads(&s->launch, l->raw[0], l->k_norm, l->seen[0], r->rows, c->kv_heads, c->head_dim,
                     s->m->config->rms_eps, turn_of(s, layer));
    train_values(s, layer, l->raw[1], r->rows, l->seen[1]);
}

static int counted(const backend_restoration_trainer *s) {
    const model_config *c = s->m->config;
    int n = 0;
    for (int i = 0; i < c->layers; i++) n += s->o.loss == RESTORATION_LOSS_DISTIL || c->layer[i].kv_source == i;
    return n > 0 ? n : 1;
}

/* Weights of the parts of a loss of raw vectors (distil_loss.c of the CPU). */
static train_parts parts_of(const backend_restoration_trainer *s, int half, int d) {
    double n = counted(s);
    switch (s->o.loss) {
    case RESTORATION_LOSS_MSE:
        return (train_parts){.square = 1 / (2 * n), .d = d};
    case RESTORATION_LOSS_COS_MAG:
        return (train_parts){.direction = 1 / (2 * n), .magnitude = 1 / (2 * n), .d = d};
    case RESTORATION_LOSS_COMBINED:
        return (train_parts){combined_square / (2 * n), 1 / (2 * n), 1 / (2 * n), 1, d};
    case RESTORATION_LOSS_ATTN_DISTIL_HYBRID:
        return (train_parts){.magnitude = (double)s->o.lambda[2 + half], .d = d};
    default:
        return (train_parts){.d = d};
    }
}

/* Restored vectors with the teacher's. */
static void compare_vectors(backend_restoration_trainer *s, int layer, const float *x, const float *native, float *d,
                            train_parts parts) {
    const distil_restored *r = distil_restored_of(s, layer);
    const train_share share = {
        .x = x,
        .target = native,
        .index = r->native,
        .d = d,
        .begin = r->begin,
        .segments = s->student.items,
        .n = distil_kv_dim(s, layer),
        .out = s->results + RESULT_LOSS,
        .stride = DISTIL_RESULTS,
        .parts = s->share_parts,
        .by = 1,
        .scale = s->scale,
        .least = least_size,
        .factor = distil_compares_attention(s->o.loss) ? s->factor[s->m->config->layer[layer].type] : NULL};
    cuda_train_raw(&s->launch, &share, parts);
}

void train_directions(backend_restoration_trainer *s, int layer) {
    const distil_layer *l = &s->layer[layer];
    if (s->o.loss != RESTORATION_LOSS_ATTN_DISTIL_HYBRID) return;
    for (int half = 0; half < 2; half++)
        compare_vectors(
            s, layer, l->seen[half], l->native[half], l->d_seen[half],
            (train_parts){.direction = (double)s->o.lambda[half], .d = s->m->config->layer[layer].head_dim});
}

void train_decode_back(backend_restoration_trainer *s, int layer, bool learns) {
    const layer_config *c = &s->m->config->layer[layer];
    const distil_layer *l = &s->layer[layer];
    const distil_restored *r = distil_restored_of(s, layer);
    size_t kv = (size_t)distil_kv_dim(s, layer);
    for (int half = 0; half < 2; half++) {
        int rank = distil_rank(s, half), code = distil_code(s, half);
        float *d_raw = s->gathered;
        if (half)
            train_values_back(s, layer, l->raw[1], l->d_seen[1], r->rows, false, d_raw);
        else
            cuda_train_heads_back(&s->launch, l->raw[0], l->k_norm, l->d_seen[0], d_raw, 0, r->rows, c->kv_heads,
                                  c->head_dim, s->m->config->rms_eps, turn_of(s, layer));
        if (distil_compares_raw(s->o.loss))
            compare_vectors(s, layer, l->raw[half], l->native_raw[half], d_raw, parts_of(s, half, c->head_dim));
        if (!learns) continue;
        train_exactly(s, true);
        train_back(s, d_raw, kv, r->rows, decoder_of(s, half, layer, s->weights), r->d_latent[code], true);
        train_outer(s, d_raw, (int)kv, r->latent[code], rank, r->rows, s->gradient + s->layout.decoder[half][layer]);
        train_exactly(s, false);
    }
}

/* -------------------------------------------------------------------------------------------------- comparisons */

/* Of rows from `first` on: their KL, and, where it learns, d_x. */
static void compare_logits(backend_restoration_trainer *s, const float *const from[2], int first, int rows,
                           bool learns) {
    const model_config *c = s->m->config;
    size_t hidden = (size_t)c->hidden, at = (size_t)first * hidden;
    for (int which = 0; which < 2; which++) {
        cuda_train_norm(&s->launch, from[which] + at, hidden, s->final_norm, NULL, s->final_x, hidden, rows, c->hidden,
                        c->rms_eps);
        train_forward(s, s->final_x, hidden, rows, s->head, s->logits[which], (size_t)c->vocab);
    }
    cuda_train_kl(&s->launch, s->logits[0], s->logits[1], rows, c->vocab, c->logit_softcap,
                  s->o.kl * s->scale / (float)s->o.rows, s->kl + first);
    if (learns) train_back(s, s->logits[1], (size_t)c->vocab, rows, s->head, s->d_x + at, false);
}

void train_head(backend_restoration_trainer *s, const float *h, bool learns) {
    const model_config *c = s->m->config;
    const float *const from[2] = {s->layer[c->layers - 1].native_h, h};
    int rows = s->student.rows;
    for (int first = 0; first < rows; first += DISTIL_HEAD_ROWS)
        compare_logits(s, from, first, rows - first < DISTIL_HEAD_ROWS ? rows - first : DISTIL_HEAD_ROWS, learns);
    cuda_train_sum_rows(&s->launch, s->kl, s->student.items, s->o.rows, 1.0 / s->o.rows, s->results + RESULT_KL,
                        DISTIL_RESULTS);
    if (learns) cuda_train_norm_back(&s->launch, h, s->final_norm, s->d_x, s->d_h, 1, rows, c->hidden, c->rms_eps);
}

void train_compare(backend_restoration_trainer *s, const float *x, const float *native, int result, double by,
                   float scale, float *d) {
    const train_share share = {.x = x,
                               .target = native,
                               .d = d,
                               .segments = s->student.items,
                               .rows = s->o.rows,
                               .n = s->m->config->hidden,
                               .out = s->results + (result < 0 ? 0 : result),
                               .stride = DISTIL_RESULTS,
                               .parts = s->share_parts,
                               .by = by,
                               .scale = scale,
                               .least = least_size};
    cuda_train_square_share(&s->launch, &share);
}

void train_share_kv(backend_restoration_trainer *s, int layer) {
    const distil_layer *l = &s->layer[layer];
    const distil_restored *r = distil_restored_of(s, layer);
    double counts = s->m->config->layer[layer].type == LAYER_FULL ? (double)full_share : 1,
           by = counts / s->m->config->layers;
    for (int half = 0; half < 2 && r->rows; half++) {
        const train_share share = {.x = l->seen[half],
                                   .target = l->native[half],
                                   .index = r->native,
                                   .d = l->d_seen[half],
                                   .begin = r->begin,
                                   .segments = s->student.items,
                                   .n = distil_kv_dim(s, layer),
                                   .out = s->results + RESULT_KV,
                                   .stride = DISTIL_RESULTS,
                                   .parts = s->share_parts,
                                   .by = by,
                                   .scale = (float)((double)(s->scale * s->o.kv) * by),
                                   .least = least_size};
        cuda_train_square_share(&s->launch, &share);
    }
}
