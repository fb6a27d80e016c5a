#include "train/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/linear.h"

/* What full-attention layers count for: under S5 they stay exact. */
static const double full_layer_share = 0.3;
/* Of the mean diagonal of C, added to it: directions that text hardly has. */
static const double ridge = 1e-4;

/* -------------------------------------------------------------------------------------------------------- sums */

static size_t square(int n) { return (size_t)n * (size_t)n; }

kakeya_status fit_sums_create(const gemma4_config *verifier, int inputs, fit_sums *out, kakeya_error *error) {
    *out = (fit_sums){.verifier = verifier, .inputs = inputs};
    fit_sums *s = out;
    for (int i = 0; i < verifier->layers; i++) {
        const gemma4_layer_config *l = &verifier->layer[i];
        s->target[i] = l->kv_source == i ? s->keys : -1;
        if (l->kv_source == i) s->keys += l->kv_heads * l->head_dim;
    }
    s->targets = 2 * s->keys;
    size_t n = 1 + square(inputs) + (size_t)s->targets * (size_t)inputs + (size_t)s->targets;
    for (int i = 0; i < verifier->layers; i++) {
        const gemma4_layer_config *l = &verifier->layer[i];
        n += (size_t)l->kv_heads * square(l->head_dim) + (size_t)verifier->heads + 2;
    }
    s->all = calloc(n, sizeof *s->all);
    if (!s->all)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the sums of training need %zu bytes",
                         n * sizeof *s->all);
    s->n_all = n;
    s->tokens = s->all;
    s->xx = s->tokens + 1;
    s->yx = s->xx + square(inputs);
    s->size = s->yx + (size_t)s->targets * (size_t)inputs;
    double *at = s->size + s->targets;
    for (int i = 0; i < verifier->layers; i++) {
        const gemma4_layer_config *l = &verifier->layer[i];
        s->metric_k[i] = at;
        s->metric_v[i] = at + (size_t)l->kv_heads * square(l->head_dim);
        s->added[i] = s->metric_v[i] + verifier->heads;
        at = s->added[i] + 2;
    }
    return KAKEYA_OK;
}

void fit_sums_destroy(fit_sums *s) {
    free(s->all);
    *s = (fit_sums){0};
}

/* ------------------------------------------------------------------------------------------------------ solving */

/* A run of y with the metric of its heads. */
typedef struct fit_side {
    int first, count;
    double *metric; /* blocks [head_dim][head_dim], in the order of y */
} fit_side;

/* Adds the layer's metric to the blocks of the K/V that it attends. */
static void add_metric(const fit_sums *s, int layer, const float *gram, bool values, double *block) {
    const gemma4_config *c = s->verifier;
    const gemma4_layer_config *l = &c->layer[layer];
    int group = c->heads / l->kv_heads;
    size_t dims = square(l->head_dim);
    double rows = s->added[layer][1], added = s->added[layer][0];
    if (!(rows > 0) || !(added > 0)) return;
    double scale = (l->type == GEMMA4_FULL ? full_layer_share : 1.0) / added; /* mean over rows of both: rows cancel */
    for (int h = 0; h < l->kv_heads; h++, block += dims) {
        for (size_t i = 0; i < dims && !values; i++) block[i] += scale * s->metric_k[layer][(size_t)h * dims + i];
        for (int a = h * group; a < (h + 1) * group && values; a++) {
            for (size_t i = 0; i < dims; i++)
                block[i] += scale * s->metric_v[layer][a] * (double)gram[(size_t)a * dims + i];
        }
    }
}

static double *metric_of(const fit_sums *s, float *const *gram, bool keys, bool values) {
    const gemma4_config *c = s->verifier;
    size_t n = 0, at[GEMMA4_MAX_LAYERS] = {0}, side = 0;
    for (int i = 0; i < c->layers; i++) {
        at[i] = side;
        if (s->target[i] >= 0) side += (size_t)c->layer[i].kv_heads * square(c->layer[i].head_dim);
    }
    n = keys && values ? 2 * side : side;
    double *metric = calloc(n, sizeof *metric);
    for (int i = 0; i < c->layers && metric; i++) {
        size_t block = at[c->layer[i].kv_source];
        if (keys) add_metric(s, i, gram[i], false, metric + block);
        if (values) add_metric(s, i, gram[i], true, metric + (keys ? side : 0) + block);
    }
    return metric;
}

/* out [n][count] = b [n][count] times the block-diagonal metric. */
static void times_metric(const fit_sums *s, const fit_side *side, const double *b, double *out) {
    const gemma4_config *c = s->verifier;
    const double *block = side->metric;
    int halves = side->count == s->targets ? 2 : 1;
    for (int half = 0, base = 0; half < halves; half++, base += s->keys) {
        for (int i = 0; i < c->layers; i++) {
            if (s->target[i] < 0) continue;
            int d = c->layer[i].head_dim;
            for (int h = 0; h < c->layer[i].kv_heads; h++, block += square(d)) {
                size_t column = (size_t)(base + s->target[i] + h * d);
                for (int row = 0; row < s->inputs; row++) {
                    const double *from = b + (size_t)row * (size_t)side->count + column;
                    double *to = out + (size_t)row * (size_t)side->count + column;
                    for (int j = 0; j < d; j++) to[j] = 0;
                    for (int k = 0; k < d; k++) {
                        for (int j = 0; j < d; j++) to[j] += from[k] * block[(size_t)k * (size_t)d + (size_t)j];
                    }
                }
            }
        }
    }
}

/* One latent's column of the decoders of keys or values, out of row = P' B. Decoders give raw K/V, not their
 * directions: they are scaled by the mean rms of the head's raw rows. */
static void write_column(const fit_sums *s, const fit_side *side, const double *row, int r, int rank, bool values,
                         float *const *decoders) {
    const gemma4_config *c = s->verifier;
    for (int i = 0; i < c->layers; i++) {
        if (s->target[i] < 0) continue;
        int d = c->layer[i].head_dim, first = s->target[i] + (values ? s->keys : 0);
        for (int o = 0; o < c->layer[i].kv_heads * d; o++) {
            double size = s->size[first + o / d * d] / s->tokens[0];
            decoders[i][(size_t)o * (size_t)rank + (size_t)r] = (float)(size * row[first - side->first + o]);
        }
    }
}

/* b [n][count] = E[x y'] of the side. */
static void load_targets(const fit_sums *s, const fit_side *side, double *b) {
    for (int y = 0; y < side->count; y++) {
        const double *row = s->yx + (size_t)(side->first + y) * (size_t)s->inputs;
        for (int i = 0; i < s->inputs; i++) b[(size_t)i * (size_t)side->count + (size_t)y] = row[i] / s->tokens[0];
    }
}

/* g = b m b'. */
static void product(const double *bm, const double *b, int n, int count, double *g) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++) {
            const double *x = bm + (size_t)i * (size_t)count, *y = b + (size_t)j * (size_t)count;
            double sum[4] = {0, 0, 0, 0};
            int k = 0;
            for (; k + 4 <= count; k += 4) {
                for (int l = 0; l < 4; l++) sum[l] += x[k + l] * y[k + l];
            }
            for (; k < count; k++) sum[0] += x[k] * y[k];
            g[(size_t)i * (size_t)n + (size_t)j] = g[(size_t)j * (size_t)n + (size_t)i] =
                (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
    }
}

/* One side, keys or values or both. */
static kakeya_status solve_side(const fit_sums *s, const double *factor, fit_side side, int rank, bool keys,
                                bool values, float *encoder, fit_weights *out, kakeya_error *error) {
    size_t n = (size_t)s->inputs, count = (size_t)side.count;
    double *b = malloc(n * count * sizeof *b), *bm = malloc(n * count * sizeof *bm), *g = malloc(n * n * sizeof *g),
           *eigenvalues = malloc(2 * n * sizeof *eigenvalues), *e = malloc(n * (size_t)rank * sizeof *e);
    kakeya_status status = KAKEYA_OK;
    if (!b || !bm || !g || !eigenvalues || !e) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the closed form needs %zu bytes",
                           (2 * n * count + n * n) * sizeof *b);
        goto done;
    }
    load_targets(s, &side, b);
    linear_solve_lower(factor, s->inputs, b, side.count);
    times_metric(s, &side, b, bm);
    product(bm, b, s->inputs, side.count, g);
    if (!linear_eigen(g, s->inputs, eigenvalues, eigenvalues + n)) {
        status = error_set(error, KAKEYA_FORMAT, "the closed form has no solution: its sums are no finite numbers");
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        for (int r = 0; r < rank; r++) e[i * (size_t)rank + (size_t)r] = g[(size_t)r * n + i];
    }
    linear_solve_upper(factor, s->inputs, e, rank);
    for (int r = 0; r < rank; r++) {
        for (size_t i = 0; i < n; i++) encoder[(size_t)r * n + i] = (float)e[i * (size_t)rank + (size_t)r];
    }
    for (int r = 0; r < rank; r++) {
        double *row = bm; /* free by now */
        for (size_t y = 0; y < count; y++) row[y] = 0;
        for (size_t k = 0; k < n; k++) {
            for (size_t y = 0; y < count; y++) row[y] += g[(size_t)r * n + k] * b[k * count + y];
        }
        if (keys) write_column(s, &side, row, r, rank, false, out->decoder[0]);
        if (values) write_column(s, &side, row, r, rank, true, out->decoder[1]);
    }
done:
    free(b);
    free(bm);
    free(g);
    free(eigenvalues);
    free(e);
    return status;
}

static kakeya_status factor_of(const fit_sums *s, double **out, kakeya_error *error) {
    size_t n = (size_t)s->inputs;
    double *factor = malloc(n * n * sizeof *factor), mean = 0;
    if (!factor)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the closed form needs %zu bytes", n * n * 8);
    for (size_t i = 0; i < n; i++) mean += s->xx[i * n + i] / s->tokens[0] / (double)n;
    for (size_t i = 0; i < n * n; i++) factor[i] = s->xx[i] / s->tokens[0];
    for (size_t i = 0; i < n; i++) factor[i * n + i] += ridge * mean;
    if (!linear_cholesky(factor, s->inputs)) {
        free(factor);
        return error_set(error, KAKEYA_FORMAT, "the closed form has no solution: its sums are no finite numbers");
    }
    *out = factor;
    return KAKEYA_OK;
}

static bool weights_allocate(const fit_sums *s, const f_theta_config *c, fit_weights *out) {
    bool complete = true;
    for (int half = 0; half < 2; half++) {
        size_t rank = (size_t)(half ? c->rank_v : c->rank_k);
        if (!(half && c->shared_latent)) {
            out->encoder[half] = calloc(rank * (size_t)s->inputs, sizeof(float));
            complete &= out->encoder[half] != NULL;
        }
        for (int i = 0; i < c->layers; i++) {
            out->decoder[half][i] = calloc((size_t)(c->kv_heads[i] * c->head_dim[i]) * rank, sizeof(float));
            complete &= out->decoder[half][i] != NULL;
        }
    }
    return complete;
}

void fit_weights_free(fit_weights *w) {
    for (int half = 0; half < 2; half++) {
        free(w->encoder[half]);
        for (int i = 0; i < GEMMA4_MAX_LAYERS; i++) free(w->decoder[half][i]);
    }
    *w = (fit_weights){0};
}

kakeya_status fit_solve(const fit_sums *s, const f_theta_config *config, float *const *gram, fit_weights *out,
                        kakeya_error *error) {
    *out = (fit_weights){0};
    if (s->tokens[0] < 2.0 * s->inputs)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%.0f tokens are too few for %d values of input: give %d or more, better %d", s->tokens[0],
                         s->inputs, 2 * s->inputs, 100 * s->inputs);
    if (config->rank > s->inputs)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "rank %d is above the %d values of input", config->rank,
                         s->inputs);
    double *factor = NULL, *metric[2] = {NULL, NULL};
    kakeya_status status = factor_of(s, &factor, error);
    bool shared = config->shared_latent;
    if (!status) {
        metric[0] = metric_of(s, gram, true, shared);
        metric[1] = shared ? NULL : metric_of(s, gram, false, true);
        if (!metric[0] || (!shared && !metric[1]) || !weights_allocate(s, config, out))
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the weights of the closed form");
    }
    if (!status)
        status = solve_side(s, factor, (fit_side){0, shared ? s->targets : s->keys, metric[0]}, config->rank_k, true,
                            shared, out->encoder[0], out, error);
    if (!status && !shared)
        status = solve_side(s, factor, (fit_side){s->keys, s->keys, metric[1]}, config->rank_v, false, true,
                            out->encoder[1], out, error);
    if (status) fit_weights_free(out);
    free(factor);
    free(metric[0]);
    free(metric[1]);
    return status;
}
