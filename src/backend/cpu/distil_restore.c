/* Restoration in training: latents of the positions that a segment may see restored, their K and V, and the way back.
 */
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/distil.h"
#include "backend/latent_row.h"

static weight encoder_of(const backend_restoration_trainer *s, int half) {
    return distil_matrix(s->weights + s->layout.encoder[half], distil_rank(s, half), restoration_encoder_in(&s->f));
}

/* Rows of what an encoder reads, side by side. */
static void gather(backend_restoration_trainer *s, int half) {
    size_t n = (size_t)restoration_encoder_in(&s->f);
    for (int i = 0; i < s->n_positions; i++)
        memcpy(s->gathered + (size_t)i * n, s->inputs[half] + (size_t)s->position[i] * n, n * sizeof *s->gathered);
}

/* A latent becomes what a session would read back; gradients pass as if it had stayed. */
static void store_latent(backend_restoration_trainer *s, void *context, int row) {
    int half = *(const int *)context, rank = distil_rank(s, half);
    float *e = s->latent[half] + (size_t)row * (size_t)rank;
    unsigned char *code = s->code + (size_t)row * (size_t)s->f.rank * sizeof(float) * 2;
    latent_format format = s->f.latents == RESTORATION_LATENTS_Q8 ? LATENT_Q8 : LATENT_Q4;
    latent_encode(format, e, rank, code);
    latent_decode(format, code, rank, e);
}

void distil_encode(backend_restoration_trainer *s) {
    size_t n = (size_t)restoration_encoder_in(&s->f);
    for (int half = 0; half < 2; half++) {
        if (!s->layout.encoder_there[half]) continue;
        weight encoder = encoder_of(s, half);
        size_t rank = (size_t)distil_rank(s, half);
        gather(s, half);
        distil_product(s, s->gathered, n, s->n_positions, &encoder, s->latent[half], rank);
        if (s->f.latents == RESTORATION_LATENTS_Q8 || s->f.latents == RESTORATION_LATENTS_Q4)
            distil_rows(s, s->n_positions, store_latent, &half);
        memset(s->d_latent[half], 0, (size_t)s->n_positions * rank * sizeof *s->d_latent[half]);
    }
}

void distil_encode_back(backend_restoration_trainer *s, float *gradient) {
    for (int half = 0; half < 2; half++) {
        if (!s->layout.encoder_there[half]) continue;
        gather(s, half);
        distil_outer(s, s->d_latent[half], distil_rank(s, half), s->gathered, restoration_encoder_in(&s->f),
                     s->n_positions, gradient + s->layout.encoder[half]);
    }
}

/* The norms and rotation of a restored row. */
static void see_row(backend_restoration_trainer *s, void *context, int row) {
    int layer = *(const int *)context;
    const backend_model *m = s->m;
    const layer_config *c = &m->config->layer[layer];
    const rope_table *rope = &m->rope[c->type];
    const distil_layer *l = &s->layer[layer];
    size_t kv = distil_kv_dim(s, layer), at = (size_t)row * kv,
           angle = (size_t)s->position[l->first + row] * (size_t)rope->pairs;
    for (size_t h = 0; h < kv; h += (size_t)c->head_dim) {
        m->kernels->rms_norm(l->raw[0] + at + h, m->weights->layer[layer].k_norm, c->head_dim, m->config->rms_eps,
                             l->seen[0] + at + h);
        m->kernels->rope(l->seen[0] + at + h, rope->half, rope->pairs, rope->cosine + angle, rope->sine + angle);
        norm_values(m, l->raw[1] + at + h, c->head_dim, l->seen[1] + at + h);
    }
}

void distil_decode(backend_restoration_trainer *s, int layer) {
    distil_layer *l = &s->layer[layer];
    size_t kv = distil_kv_dim(s, layer);
    for (int half = 0; half < 2; half++) {
        int rank = distil_rank(s, half);
        weight decoder = distil_matrix(s->weights + s->layout.decoder[half][layer], (int)kv, rank);
        distil_product(s, s->latent[distil_code(s, half)] + (size_t)l->first * (size_t)rank, (size_t)rank, l->rows,
                       &decoder, l->raw[half], kv);
        memset(l->d_seen[half], 0, (size_t)l->rows * kv * sizeof *l->d_seen[half]);
    }
    distil_rows(s, l->rows, see_row, &layer);
}

/* d_seen to the gradient of raw values, which lies in s->gathered. */
typedef struct unsee_work {
    int layer, half;
} unsee_work;

static void unsee_row(backend_restoration_trainer *s, void *context, int row) {
    const unsee_work *w = context;
    const backend_model *m = s->m;
    const layer_config *c = &m->config->layer[w->layer];
    const rope_table *rope = &m->rope[c->type];
    const distil_layer *l = &s->layer[w->layer];
    size_t kv = distil_kv_dim(s, w->layer), at = (size_t)row * kv,
           angle = (size_t)s->position[l->first + row] * (size_t)rope->pairs;
    float *d_raw = s->gathered + at;
    memset(d_raw, 0, kv * sizeof *d_raw);
    for (size_t h = 0; h < kv; h += (size_t)c->head_dim) {
        float *d_seen = l->d_seen[w->half] + at + h;
        if (w->half) {
            norm_values_back(m, l->raw[1] + at + h, d_seen, c->head_dim, d_raw + h);
            continue;
        }
        backward_rope(d_seen, rope->half, rope->pairs, rope->cosine + angle, rope->sine + angle);
        backward_rms_norm(l->raw[0] + at + h, m->weights->layer[w->layer].k_norm, d_seen, c->head_dim,
                          m->config->rms_eps, d_raw + h);
    }
}

double distil_decode_back(backend_restoration_trainer *s, int layer, float *gradient) {
    const distil_layer *l = &s->layer[layer];
    size_t kv = distil_kv_dim(s, layer);
    double lost = 0;
    for (int half = 0; half < 2; half++) {
        int rank = distil_rank(s, half), code = distil_code(s, half);
        size_t at = (size_t)l->first * (size_t)rank;
        unsee_work work = {layer, half};
        distil_rows(s, l->rows, unsee_row, &work);
        lost += distil_raw(s, layer, half, s->segment.scale, s->gathered);
        if (!gradient) continue;
        weight decoder_t = distil_matrix(s->decoders_t + s->layout.decoder[half][layer], rank, (int)kv);
        distil_product_add(s, s->gathered, kv, l->rows, &decoder_t, s->d_latent[code] + at, s->product);
        distil_outer(s, s->gathered, (int)kv, s->latent[code] + at, rank, l->rows,
                     gradient + s->layout.decoder[half][layer]);
    }
    return lost;
}
