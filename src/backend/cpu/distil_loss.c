/* What a student loses, and the gradients that this begins with. */
#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/distil.h"

static const double least_size = 1e-6;     /* what a mean square or a variance is at least, as a divisor */
static const double combined_square = 0.1; /* of the squared error, beside directions and magnitudes */
static const float full_share = 0.3f;      /* what K and V of a full-attention layer count */

static bool is_attention(restoration_loss loss) {
    return loss == RESTORATION_LOSS_ATTN_DISTIL || loss == RESTORATION_LOSS_ATTN_DISTIL_HYBRID;
}

int distil_counted(const backend_restoration_trainer *s) {
    const model_config *c = s->m->config;
    int n = 0;
    for (int i = 0; i < c->layers; i++) {
        if (is_attention(s->o.loss))
            n += s->layer[i].restored;
        else
            n += s->o.loss == RESTORATION_LOSS_DISTIL || c->layer[i].kv_source == i;
    }
    return n > 0 ? n : 1;
}

/* --------------------------------------------------------------------------------------------------------- logits */

typedef struct head_work {
    double *kl; /* [N] */
    float scale;
} head_work;

static void head_row(backend_restoration_trainer *s, void *context, int row) {
    const head_work *w = context;
    const model_config *c = s->m->config;
    size_t at = (size_t)row * (size_t)c->vocab;
    for (int which = 0; which < 2 && c->logit_softcap > 0; which++)
        s->m->kernels->soft_cap(c->logit_softcap, c->vocab, s->logits[which] + at);
    w->kl[row] = backward_kl(s->logits[0] + at, s->logits[1] + at, c->vocab, c->logit_softcap, w->scale);
}

double distil_head(backend_restoration_trainer *s, const float *h, float scale) {
    const backend_model *m = s->m;
    const model_config *c = m->config;
    size_t hidden = (size_t)c->hidden, n = (size_t)s->o.rows;
    const float *from[2] = {s->layer[c->layers - 1].native_h + (size_t)s->segment.first * hidden, h};
    double kl[DISTIL_MAX_ROWS], sum = 0;
    for (int which = 0; which < 2; which++) {
        for (size_t r = 0; r < n; r++)
            m->kernels->rms_norm(from[which] + r * hidden, m->weights->final_norm, c->hidden, c->rms_eps,
                                 s->final_x + r * hidden);
        distil_product(s, s->final_x, hidden, s->o.rows, &m->weights->head, s->logits[which], (size_t)c->vocab);
    }
    head_work work = {kl, s->o.kl * scale / (float)s->o.rows};
    distil_rows(s, s->o.rows, head_row, &work);
    for (size_t r = 0; r < n; r++) sum += kl[r];
    if (scale == 0) return sum / (double)n;
    distil_product(s, s->logits[1], (size_t)c->vocab, s->o.rows, &s->head_t, s->d_x, hidden);
    memset(s->d_h, 0, n * hidden * sizeof *s->d_h);
    for (size_t r = 0; r < n; r++)
        backward_rms_norm(h + r * hidden, m->weights->final_norm, s->d_x + r * hidden, c->hidden, c->rms_eps,
                          s->d_h + r * hidden);
    return sum / (double)n;
}

/* --------------------------------------------------------------------------------------------------------- shares */

static double squares(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

double distil_share(const backend_restoration_trainer *s, const float *x, const float *native, float scale, float *d) {
    size_t hidden = (size_t)s->m->config->hidden, n = (size_t)s->o.rows * hidden;
    const float *target = native + (size_t)s->segment.first * hidden;
    double size = fmax(squares(target, n), least_size);
    return backward_square(x, target, n, (float)((double)scale / size), d) / size;
}

/* The teacher's row of a restored one. */
static const float *native_row(const backend_restoration_trainer *s, float *const *native, int layer, int half,
                               int row) {
    const distil_layer *l = &s->layer[layer];
    return native[half] + (size_t)s->position[l->first + row] * distil_kv_dim(s, layer);
}

double distil_share_kv(backend_restoration_trainer *s, int layer, float scale) {
    const distil_layer *l = &s->layer[layer];
    size_t kv = distil_kv_dim(s, layer);
    float counts = s->m->config->layer[layer].type == LAYER_FULL ? full_share : 1;
    double lost = 0;
    for (int half = 0; half < 2; half++) {
        double size = least_size, sum = 0;
        for (int r = 0; r < l->rows; r++) size += squares(native_row(s, l->native, layer, half, r), kv);
        for (int r = 0; r < l->rows; r++) {
            size_t at = (size_t)r * kv;
            sum += backward_square(l->seen[half] + at, native_row(s, l->native, layer, half, r), kv,
                                   (float)((double)(scale * counts) / size), l->d_seen[half] + at);
        }
        lost += (double)counts * sum / size;
    }
    return lost;
}

/* -------------------------------------------------------------------------------------------------- K and V alone */

double distil_directions(backend_restoration_trainer *s, int layer, float scale) {
    if (s->o.loss != RESTORATION_LOSS_ATTN_DISTIL_HYBRID) return 0;
    const distil_layer *l = &s->layer[layer];
    size_t kv = distil_kv_dim(s, layer), d = (size_t)s->m->config->layer[layer].head_dim;
    double lost = 0, vectors = (double)l->rows * (double)(kv / d);
    for (int half = 0; half < 2; half++) {
        double sum = 0, counts = (double)s->o.lambda[half] / (vectors * distil_counted(s));
        for (int r = 0; r < l->rows; r++) {
            for (size_t h = 0; h < kv; h += d) {
                size_t at = (size_t)r * kv + h;
                sum += backward_direction(l->seen[half] + at, native_row(s, l->native, layer, half, r) + h, (int)d,
                                          (float)((double)scale * counts), l->d_seen[half] + at);
            }
        }
        lost += counts * sum;
    }
    return lost;
}

/* Weights of the parts of a loss of raw vectors. */
typedef struct raw_parts {
    double square, direction, magnitude;
} raw_parts;

static raw_parts parts_of(const backend_restoration_trainer *s, int half) {
    double n = distil_counted(s);
    switch (s->o.loss) {
    case RESTORATION_LOSS_MSE:
        return (raw_parts){.square = 1 / (2 * n)};
    case RESTORATION_LOSS_COS_MAG:
        return (raw_parts){.direction = 1 / (2 * n), .magnitude = 1 / (2 * n)};
    case RESTORATION_LOSS_COMBINED:
        return (raw_parts){combined_square / (2 * n), 1 / (2 * n), 1 / (2 * n)};
    case RESTORATION_LOSS_ATTN_DISTIL_HYBRID:
        return (raw_parts){.magnitude = (double)s->o.lambda[2 + half] / n};
    default:
        return (raw_parts){0};
    }
}

double distil_raw(backend_restoration_trainer *s, int layer, int half, float scale, float *d_raw) {
    raw_parts parts = parts_of(s, half);
    if (parts.square == 0 && parts.direction == 0 && parts.magnitude == 0) return 0;
    const distil_layer *l = &s->layer[layer];
    size_t kv = distil_kv_dim(s, layer), d = (size_t)s->m->config->layer[layer].head_dim;
    double values = (double)l->rows * (double)kv, vectors = values / (double)d, sum = 0, size = 0, lost = 0;
    for (int r = 0; r < l->rows; r++) {
        const float *t = native_row(s, l->native_raw, layer, half, r);
        for (size_t i = 0; i < kv; i++) sum += (double)t[i];
        size += squares(t, kv);
    }
    double mean_square = fmax(size / vectors, least_size), variance = 1;
    if (s->o.loss == RESTORATION_LOSS_COMBINED)
        variance = fmax((size - sum * sum / values) / fmax(values - 1, 1), least_size);
    double square = parts.square / (values * variance), direction = parts.direction / vectors,
           magnitude = parts.magnitude / (vectors * mean_square);
    for (int r = 0; r < l->rows; r++) {
        const float *t = native_row(s, l->native_raw, layer, half, r);
        for (size_t h = 0; h < kv; h += d) {
            const float *p = l->raw[half] + (size_t)r * kv + h;
            float *to = d_raw + (size_t)r * kv + h;
            if (square > 0) lost += square * backward_square(p, t + h, d, (float)((double)scale * square), to);
            if (direction > 0)
                lost += direction * backward_direction(p, t + h, (int)d, (float)((double)scale * direction), to);
            if (magnitude > 0)
                lost += magnitude * backward_magnitude(p, t + h, (int)d, (float)((double)scale * magnitude), to);
        }
    }
    return lost;
}
