#include "train/closed_form.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train/linear.h"
#include "train/products.h"
#include "train/subspace.h"

/* What full-attention layers count for: under S5 they stay exact. */
static const double full_layer_share = 0.3;
/* Of the diagonal of C, added to it: directions that text hardly has. */
static const double ridge = 1e-4;
static const double least_input = 1e-6; /* of the mean: what an input that is always 0 has at least */

/* -------------------------------------------------------------------------------------------------------- sums */

static size_t square(int n) { return (size_t)n * (size_t)n; }

kakeya_status closed_form_sums_create(const model_config *verifier, int inputs, closed_form_sums *out,
                                      kakeya_error *error) {
    *out = (closed_form_sums){.verifier = verifier, .inputs = inputs};
    closed_form_sums *s = out;
    for (int i = 0; i < verifier->layers; i++) {
        const layer_config *l = &verifier->layer[i];
        s->target[i] = l->kv_source == i ? s->keys : -1;
        if (l->kv_source == i) s->keys += l->kv_heads * l->head_dim;
    }
    s->targets = 2 * s->keys;
    size_t n = 1 + square(inputs) + (size_t)s->targets * (size_t)inputs + (size_t)s->targets;
    for (int i = 0; i < verifier->layers; i++) {
        const layer_config *l = &verifier->layer[i];
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
        const layer_config *l = &verifier->layer[i];
        s->metric_k[i] = at;
        s->metric_v[i] = at + (size_t)l->kv_heads * square(l->head_dim);
        s->added[i] = s->metric_v[i] + verifier->heads;
        at = s->added[i] + 2;
    }
    return KAKEYA_OK;
}

void closed_form_sums_destroy(closed_form_sums *s) {
    free(s->all);
    *s = (closed_form_sums){0};
}

/* ------------------------------------------------------------------------------------------------------ solving */

/* What an encoder reads, n values: statistics over it, and the Cholesky factor of xx. */
typedef struct closed_form_statistics {
    int n;
    const double *xx, *yx; /* [n][n], [targets][n] */
    double *mapped[2];     /* those of an encoder that reads W x; NULL: the sums' own */
    double *factor;        /* [n][n]; for a device E[x x'] until the matrix is made */
} closed_form_statistics;

/* A run of y with the metric of its heads. */
typedef struct closed_form_side {
    int first, count;
    double *metric; /* blocks [head_dim][head_dim], in the order of y */
} closed_form_side;

/* Adds the layer's metric to the blocks of the K/V that it attends. */
static void add_metric(const closed_form_sums *s, int layer, const float *gram, bool values, double *block) {
    const model_config *c = s->verifier;
    const layer_config *l = &c->layer[layer];
    int group = c->heads / l->kv_heads;
    size_t dims = square(l->head_dim);
    double rows = s->added[layer][1], added = s->added[layer][0];
    if (!(rows > 0) || !(added > 0)) return;
    double scale = (l->type == LAYER_FULL ? full_layer_share : 1.0) / added; /* mean over rows of both: rows cancel */
    for (int h = 0; h < l->kv_heads; h++, block += dims) {
        for (size_t i = 0; i < dims && !values; i++) block[i] += scale * s->metric_k[layer][(size_t)h * dims + i];
        for (int a = h * group; a < (h + 1) * group && values; a++) {
            for (size_t i = 0; i < dims; i++)
                block[i] += scale * s->metric_v[layer][a] * (double)gram[(size_t)a * dims + i];
        }
    }
}

/* The blocks of a layer count as much as their trace says for y as large as it is; that is raised to the power. */
static void temper_metric(const closed_form_sums *s, int layer, bool values, double power, double *block) {
    const layer_config *l = &s->verifier->layer[layer];
    size_t d = (size_t)l->head_dim, first = (size_t)(s->target[layer] + (values ? s->keys : 0));
    double counts = 0;
    for (size_t h = 0; h < (size_t)l->kv_heads; h++) {
        double square_of_raw = d > 1 ? s->size[first + h * d + 1] / s->tokens[0] : 0, trace = 0;
        for (size_t i = 0; i < d; i++) trace += block[h * d * d + i * d + i];
        counts += trace * (square_of_raw > 0 ? square_of_raw : 1);
    }
    if (!(counts > 0)) return;
    double scale = pow(counts, power - 1);
    for (size_t i = 0; i < (size_t)l->kv_heads * d * d; i++) block[i] *= scale;
}

static double *metric_of(const closed_form_sums *s, float *const *gram, bool keys, bool values, double temper) {
    const model_config *c = s->verifier;
    size_t n = 0, at[MODEL_MAX_LAYERS] = {0}, side = 0;
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
    for (int i = 0; i < c->layers && metric && temper > 0; i++) {
        if (s->target[i] < 0) continue;
        if (keys) temper_metric(s, i, false, temper, metric + at[i]);
        if (values) temper_metric(s, i, true, temper, metric + (keys ? side : 0) + at[i]);
    }
    return metric;
}

/* One latent's column of the decoders of keys or values, out of row = P' B. Decoders give raw K/V, not their
 * directions: they are scaled by the mean rms of the head's raw rows. */
static void write_column(const closed_form_sums *s, const closed_form_side *side, const double *row, int r, int rank,
                         bool values, float *const *decoders) {
    const model_config *c = s->verifier;
    for (int i = 0; i < c->layers; i++) {
        if (s->target[i] < 0) continue;
        int d = c->layer[i].head_dim, first = s->target[i] + (values ? s->keys : 0);
        for (int o = 0; o < c->layer[i].kv_heads * d; o++) {
            double size = s->size[first + o / d * d] / s->tokens[0];
            decoders[i][(size_t)o * (size_t)rank + (size_t)r] = (float)(size * row[first - side->first + o]);
        }
    }
}

/* Where the latents of a side go: rows [rank][n] of encoders, and what decoders make of them. */
typedef struct closed_form_latents {
    int rank;
    bool keys, values;
    float *encoder;
    closed_form_weights *out;
} closed_form_latents;

static void write_decoders(const closed_form_sums *s, const closed_form_side *side, const double *row, int r,
                           const closed_form_latents *to) {
    if (to->keys) write_column(s, side, row, r, to->rank, false, to->out->decoder[0]);
    if (to->values) write_column(s, side, row, r, to->rank, true, to->out->decoder[1]);
}

static kakeya_status no_solution(kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "the closed form has no solution: its sums are not finite");
}

/* g [n][n] += y' z of rows of y and z [rows][n]; what lies above the diagonal is left alone. */
static void add_gram(thread_pool *pool, const double *y, const double *z, int rows, int n, double scale, double *g) {
    size_t ld = (size_t)n;
    const products_job job = {.a = y,
                              .b = z,
                              .c = g,
                              .lda = ld,
                              .ldb = ld,
                              .ldc = ld,
                              .m = n,
                              .n = n,
                              .k = rows,
                              .a_turned = true,
                              .scale = scale,
                              .lower = true};
    products_run(pool, &job);
}

/* g [n][n] = E[x y'] M E[y x'], from as many heads at a time as make a deep product. z [deepest_rows][n]. */
static int deepest_rows(const closed_form_sums *s) {
    enum { DEEP = 512 };
    int most = 0;
    for (int i = 0; i < s->verifier->layers; i++) {
        if (s->verifier->layer[i].head_dim > most) most = s->verifier->layer[i].head_dim;
    }
    return DEEP + most;
}

static void seen_statistics(const closed_form_problem *p, const closed_form_statistics *m, const closed_form_side *side,
                            double *z, double *g) {
    const closed_form_sums *s = p->sums;
    const double *block = side->metric, *y = m->yx + (size_t)side->first * (size_t)m->n, *first = y;
    size_t n = (size_t)m->n;
    double scale = 1 / (s->tokens[0] * s->tokens[0]);
    int rows = 0, deepest = deepest_rows(s), halves = side->count == s->targets ? 2 : 1;
    memset(g, 0, n * n * sizeof *g);
    for (int item = 0; item < halves * s->verifier->layers; item++) { /* layers lie one behind the other in y */
        const layer_config *l = &s->verifier->layer[item % s->verifier->layers];
        if (s->target[item % s->verifier->layers] < 0) continue;
        for (int h = 0; h < l->kv_heads; h++) {
            int d = l->head_dim;
            if (rows + d > deepest) {
                add_gram(p->pool, first, z, rows, m->n, scale, g);
                first = y;
                rows = 0;
            }
            linear_combine(p->pool, block, d, y, m->n, d, z + (size_t)rows * n);
            block += square(d);
            y += (size_t)d * n;
            rows += d;
        }
    }
    add_gram(p->pool, first, z, rows, m->n, scale, g);
    linear_mirror(p->pool, g, m->n);
}

/* g = L^-1 g L^-T */
static void whiten(const closed_form_problem *p, const closed_form_statistics *m, double *g) {
    linear_solve_lower_rows(p->pool, m->factor, m->n, g, m->n);
    linear_transpose(p->pool, g, m->n);
    linear_solve_lower_rows(p->pool, m->factor, m->n, g, m->n);
}

typedef struct closed_form_operator {
    const closed_form_problem *problem;
    const double *g; /* NULL: on the device */
    int n;
    kakeya_status status; /* of the device */
    kakeya_error *error;
} closed_form_operator;

static void apply_operator(void *context, const double *x, int rows, double *out) {
    closed_form_operator *o = context;
    const closed_form_problem *p = o->problem;
    if (o->g) {
        linear_combine(p->pool, x, rows, o->g, o->n, o->n, out);
        return;
    }
    if (!o->status) o->status = p->ops->statistics_apply(p->statistics, x, rows, out, o->error);
    if (o->status) out[0] = NAN; /* ends the iteration */
}

/* The eigenvectors of the largest eigenvalues, in the first rows of vectors. */
static kakeya_status find_vectors(const closed_form_problem *p, const closed_form_statistics *m, int rank, double *g,
                                  double *vectors, int block, kakeya_error *error) {
    enum { MOST_DENSE = 2048 };
    double *values = malloc(2 * (size_t)m->n * sizeof *values);
    bool out_of_memory = !values, found = false;
    bool dense = p->solver == CLOSED_FORM_DENSE || (p->solver == CLOSED_FORM_AUTO && m->n <= MOST_DENSE);
    closed_form_operator o = {.problem = p, .g = g, .n = m->n, .error = error};
    if (values && dense && g) {
        found = linear_eigen(g, m->n, values, values + m->n);
        memcpy(vectors, g, (size_t)rank * (size_t)m->n * sizeof *g);
    } else if (values) {
        found = subspace_eigen(p->pool, m->n, rank, block, apply_operator, &o, vectors, values, &out_of_memory);
    }
    free(values);
    if (o.status) return o.status;
    if (out_of_memory) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the closed form's iteration");
    if (found) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT,
                     "the closed form has no solution: its sums are not finite, or do not converge");
}

/* The matrix whose eigenvectors are wanted, in *g; NULL where it is the device's. The factor is made by then. */
static kakeya_status make_matrix(const closed_form_problem *p, closed_form_statistics *m, const closed_form_side *side,
                                 double **g, kakeya_error *error) {
    size_t n = (size_t)m->n;
    *g = NULL;
    if (p->statistics) {
        double tokens = p->sums->tokens[0];
        kakeya_status status = p->ops->statistics_seen(p->statistics, side->first, side->count, side->metric,
                                                       1 / (tokens * tokens), error);
        return status ? status : p->ops->statistics_whiten(p->statistics, m->factor, error);
    }
    double *z = malloc((size_t)deepest_rows(p->sums) * n * sizeof *z);
    *g = malloc(n * n * sizeof **g);
    if (*g && z) {
        seen_statistics(p, m, side, z, *g);
        whiten(p, m, *g);
    }
    bool complete = *g && z;
    free(z);
    if (complete) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the closed form needs %zu bytes", n * n * sizeof **g);
}

/* y [rows][count] = E[x y'] as encoders in rows of x see it. */
static kakeya_status see_targets(const closed_form_problem *p, const closed_form_statistics *m,
                                 const closed_form_side *side, const double *x, int rows, double *y,
                                 kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    if (p->statistics)
        status = p->ops->statistics_targets(p->statistics, side->first, side->count, x, rows, y, error);
    else
        linear_dots(p->pool, x, rows, m->yx + (size_t)side->first * (size_t)m->n, side->count, m->n, y);
    for (size_t i = 0; i < (size_t)rows * (size_t)side->count && !status; i++) y[i] /= p->sums->tokens[0];
    return status;
}

static kakeya_status solve_statistics(const closed_form_problem *p, closed_form_statistics *m,
                                      const closed_form_side *side, const closed_form_latents *to,
                                      kakeya_error *error) {
    enum { MORE = 64, TOGETHER = 64 };
    size_t n = (size_t)m->n, count = (size_t)side->count, rank = (size_t)to->rank,
           block = rank + MORE < n ? rank + MORE : n;
    double *g = NULL, *vectors = NULL, *y = NULL;
    kakeya_status status = make_matrix(p, m, side, &g, error);
    if (!status) {
        vectors = malloc(block * n * sizeof *vectors);
        y = malloc(TOGETHER * count * sizeof *y);
        if (!vectors || !y)
            status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the closed form needs %zu bytes",
                               (block * n + TOGETHER * count) * sizeof *y);
    }
    if (!status) status = find_vectors(p, m, to->rank, g, vectors, (int)block, error);
    if (!status) {
        linear_solve_upper_rows(p->pool, m->factor, m->n, vectors, to->rank);
        for (size_t i = 0; i < rank * n; i++) to->encoder[i] = (float)vectors[i];
    }
    for (size_t r = 0; r < rank && !status; r += TOGETHER) {
        size_t rows = rank - r < TOGETHER ? rank - r : TOGETHER;
        status = see_targets(p, m, side, vectors + r * n, (int)rows, y, error);
        for (size_t i = 0; i < rows && !status; i++) write_decoders(p->sums, side, y + i * count, (int)(r + i), to);
    }
    free(g);
    free(vectors);
    free(y);
    return status;
}

/* ------------------------------------------------------------------------------------------------------ statistics */

static kakeya_status factorise(const closed_form_problem *p, closed_form_statistics *m, kakeya_error *error) {
    const closed_form_sums *s = p->sums;
    size_t n = (size_t)m->n;
    double *factor = malloc(n * n * sizeof *factor), mean = 0;
    if (!factor)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the closed form needs %zu bytes", n * n * 8);
    m->factor = factor;
    for (size_t i = 0; i < n; i++) mean += m->xx[i * n + i] / s->tokens[0] / (double)n;
    for (size_t i = 0; i < n * n; i++) factor[i] = m->xx[i] / s->tokens[0];
    for (size_t i = 0; i < n; i++) {
        double own = factor[i * n + i] + least_input * mean;
        factor[i * n + i] += ridge * (p->form.by_input ? own : mean);
    }
    if (p->statistics) return KAKEYA_OK; /* with the matrix */
    return linear_cholesky(p->pool, factor, m->n) ? KAKEYA_OK : no_solution(error);
}

/* Statistics of W x. */
static kakeya_status map_statistics(const closed_form_problem *p, const float *map, closed_form_statistics *m,
                                    kakeya_error *error) {
    const closed_form_sums *s = p->sums;
    size_t n = (size_t)m->n, inputs = (size_t)s->inputs;
    double *w = malloc(n * inputs * sizeof *w), *half = malloc(n * inputs * sizeof *half);
    m->mapped[0] = malloc(n * n * sizeof *m->mapped[0]);
    m->mapped[1] = malloc((size_t)s->targets * n * sizeof *m->mapped[1]);
    bool complete = w && half && m->mapped[0] && m->mapped[1];
    if (complete) {
        for (size_t i = 0; i < n * inputs; i++) w[i] = (double)map[i];
        linear_dots(p->pool, s->xx, s->inputs, w, m->n, s->inputs, half);
        linear_combine(p->pool, w, m->n, half, m->n, s->inputs, m->mapped[0]);
        linear_dots(p->pool, s->yx, s->targets, w, m->n, s->inputs, m->mapped[1]);
    }
    free(w);
    free(half);
    m->xx = m->mapped[0];
    m->yx = m->mapped[1];
    if (complete) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the closed form needs %zu bytes",
                     (n * n + (size_t)s->targets * n) * sizeof *w);
}

static void statistics_free(closed_form_statistics *m) {
    free(m->mapped[0]);
    free(m->mapped[1]);
    free(m->factor);
    *m = (closed_form_statistics){0};
}

static kakeya_status statistics_of(const closed_form_problem *p, int half, closed_form_statistics *m,
                                   kakeya_error *error) {
    *m = (closed_form_statistics){.n = restoration_encoder_in(p->config), .xx = p->sums->xx, .yx = p->sums->yx};
    kakeya_status status = p->map[half] ? map_statistics(p, p->map[half], m, error) : KAKEYA_OK;
    return status ? status : factorise(p, m, error);
}

/* ------------------------------------------------------------------------------------------------------ weights */

bool closed_form_weights_create(const restoration_config *c, closed_form_weights *out) {
    *out = (closed_form_weights){0};
    bool complete = true;
    for (int half = 0; half < 2; half++) {
        size_t rank = (size_t)(half ? c->rank_v : c->rank_k);
        if (!(half && c->shared_latent)) {
            out->encoder[half] = calloc(rank * (size_t)restoration_encoder_in(c), sizeof(float));
            complete &= out->encoder[half] != NULL;
        }
        for (int i = 0; i < c->layers; i++) {
            out->decoder[half][i] = calloc((size_t)(c->kv_heads[i] * c->head_dim[i]) * rank, sizeof(float));
            complete &= out->decoder[half][i] != NULL;
        }
    }
    return complete;
}

bool closed_form_weights_create_sizes(const restoration_config *c, closed_form_weights *out) {
    out->input_size = calloc((size_t)restoration_encoder_in(c), sizeof *out->input_size);
    out->value_size = calloc((size_t)c->layers, sizeof *out->value_size);
    return out->input_size && out->value_size;
}

void closed_form_weights_free(closed_form_weights *w) {
    free(w->input_size);
    free(w->value_size);
    for (int half = 0; half < 2; half++) {
        free(w->encoder[half]);
        for (int i = 0; i < MODEL_MAX_LAYERS; i++) free(w->decoder[half][i]);
    }
    *w = (closed_form_weights){0};
}

/* One side, keys or values or both. */
static kakeya_status solve_side(const closed_form_problem *p, closed_form_statistics *m, bool keys, bool values,
                                closed_form_weights *out, kakeya_error *error) {
    const closed_form_sums *s = p->sums;
    closed_form_side side = {.first = keys ? 0 : s->keys,
                             .count = keys && values ? s->targets : s->keys,
                             .metric = metric_of(s, p->gram, keys, values, p->form.temper)};
    if (!side.metric) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the metric of the closed form");
    const closed_form_latents to = {.rank = keys ? p->config->rank_k : p->config->rank_v,
                                    .keys = keys,
                                    .values = values,
                                    .encoder = out->encoder[keys ? 0 : 1],
                                    .out = out};
    kakeya_status status = solve_statistics(p, m, &side, &to, error);
    free(side.metric);
    return status;
}

/* The root mean square of a layer's raw values, which the sums have of vectors longer than one. */
static double value_size(const closed_form_sums *s, int layer) {
    const layer_config *l = &s->verifier->layer[layer];
    double squares = 0;
    if (!s->verifier->raw_values || s->target[layer] < 0 || l->head_dim < 2) return 1;
    const double *size = s->size + s->target[layer] + s->keys;
    for (int h = 0; h < l->kv_heads; h++) squares += size[h * l->head_dim + 1] / s->tokens[0] / l->kv_heads;
    return squares > 0 ? sqrt(squares) : 1;
}

static kakeya_status measure_sizes(const closed_form_problem *p, closed_form_weights *out, kakeya_error *error) {
    const closed_form_sums *s = p->sums;
    size_t n = (size_t)s->inputs;
    double mean = 0;
    if (!closed_form_weights_create_sizes(p->config, out))
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the sizes of inputs");
    for (size_t i = 0; i < n; i++) mean += s->xx[i * n + i] / s->tokens[0] / (double)n;
    for (size_t i = 0; i < n; i++) out->input_size[i] = (float)sqrt(s->xx[i * n + i] / s->tokens[0] + ridge * mean);
    for (int i = 0; i < p->config->layers; i++) out->value_size[i] = (float)value_size(s, i);
    return KAKEYA_OK;
}

kakeya_status closed_form_solve(const closed_form_problem *p, closed_form_weights *out, kakeya_error *error) {
    *out = (closed_form_weights){0};
    const closed_form_sums *s = p->sums;
    const restoration_config *config = p->config;
    if (s->tokens[0] < 2.0 * s->inputs)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "%.0f tokens are too few for %d input values: use at least %d, better %d", s->tokens[0],
                         s->inputs, 2 * s->inputs, 100 * s->inputs);
    if (config->rank > s->inputs || config->rank > restoration_encoder_in(config))
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "rank %d is above the %d values of input", config->rank,
                         s->inputs);
    bool shared = config->shared_latent;
    kakeya_status status = KAKEYA_OK;
    if (!closed_form_weights_create(config, out))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the weights of the closed form");
    closed_form_statistics statistics = {0};
    for (int half = 0; half < (shared ? 1 : 2) && !status; half++) {
        if (!half || p->map[half] || p->statistics) {
            statistics_free(&statistics);
            status = statistics_of(p, half, &statistics, error);
        }
        if (!status) status = solve_side(p, &statistics, !half, half || shared, out, error);
    }
    if (!status && !p->map[0]) status = measure_sizes(p, out, error);
    if (status) closed_form_weights_free(out);
    statistics_free(&statistics);
    return status;
}
