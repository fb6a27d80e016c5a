#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend_train.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/threads.h"
#include "train/linear.h"
#include "train/products.h"

enum {
    OFFSETS = 24, /* evicted positions of a row that the metric looks at, evenly spaced over the window */
    OUTER = 2048, /* values of y whose products with x are summed together: those of all would take gigabytes */
};
static const double negligible_weight = 1e-5; /* of attention: its square is below what float32 sums can tell */

struct trainer {
    kakeya_engine *engine;
    const model_config *config;
    const backend_train_ops *ops;
    trainer_options options;
    thread_pool *pool;
    closed_form_sums sums;
    backend_statistics *statistics; /* or NULL: the sums but `tokens` are on a device; those here are copies of them */
    float *gram[MODEL_MAX_LAYERS];  /* [heads][head_dim][head_dim] */
    float *x, *y;                   /* [chunk][inputs], [chunk][targets] of the forward in work */
    /* Where the drafter's context is read: */
    float *aux;    /* [chunk][drafter's targets * hidden], the hidden states that it is made of */
    float *fc;     /* [inputs][drafter's targets * hidden] */
    float *map[2]; /* [restoration_encoder_in][inputs]: k_proj and v_proj of the drafter's layers */
    float *outer;  /* [OUTER][inputs] */
    float *keys[MODEL_MAX_LAYERS], *values[MODEL_MAX_LAYERS]; /* [sequence][kv_dim] as attention sees them */
    float *scratch;                                           /* [threads][sequence + 4 * head_dim] */
    size_t scratch_row;
    bool metric; /* of the sequence in work */
    int offset[OFFSETS], n_offsets;
};

static size_t kv_dim(const model_config *c, int layer) {
    return (size_t)(c->layer[layer].kv_heads * c->layer[layer].head_dim);
}

/* ---------------------------------------------------------------------------------------------------- creation */

/* G_a = W_a' W_a with W_a = diag(post-attention norm) o_proj[:, a]. */
static void make_gram(const trainer *t, int layer, float *row, double *w, double *product) {
    const model_config *c = t->config;
    const layer_weights *from = &t->engine->verifier->weights.layer[layer];
    size_t d = (size_t)c->layer[layer].head_dim, width = (size_t)c->heads * d;
    for (int o = 0; o < c->hidden; o++) {
        t->ops->weight_row(t->engine->model, &from->o_proj, o, row);
        double gain = (double)from->post_attention_norm[o], *to = w + (size_t)o * width;
        for (size_t k = 0; k < width; k++) to[k] = gain * (double)row[k];
    }
    for (int a = 0; a < c->heads; a++) {
        const double *part = w + (size_t)a * d;
        const products_job job = {.a = part,
                                  .b = part,
                                  .c = product,
                                  .lda = width,
                                  .ldb = width,
                                  .ldc = d,
                                  .m = (int)d,
                                  .n = (int)d,
                                  .k = c->hidden,
                                  .a_turned = true,
                                  .scale = 1,
                                  .set = true,
                                  .lower = true};
        products_run(t->pool, &job);
        linear_mirror(t->pool, product, (int)d);
        for (size_t i = 0; i < d * d; i++) t->gram[layer][(size_t)a * d * d + i] = (float)product[i];
    }
}

static kakeya_status make_grams(trainer *t, kakeya_error *error) {
    const model_config *c = t->config;
    size_t dim = 0, heads = (size_t)c->heads;
    bool complete = true;
    for (int i = 0; i < c->layers; i++) {
        size_t d = (size_t)c->layer[i].head_dim;
        if (d > dim) dim = d;
        t->gram[i] = malloc(heads * d * d * sizeof *t->gram[i]);
        complete &= t->gram[i] != NULL;
    }
    float *row = malloc(heads * dim * sizeof *row);
    double *w = malloc((size_t)c->hidden * heads * dim * sizeof *w), *product = malloc(dim * dim * sizeof *product);
    complete &= row && w && product;
    for (int i = 0; i < c->layers && complete; i++) make_gram(t, i, row, w, product);
    free(row);
    free(w);
    free(product);
    return complete ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the metric of training");
}

static size_t aux_width(const trainer *t) {
    return (size_t)t->engine->drafter->config.targets * (size_t)t->config->hidden;
}

/* The drafter's matrix as numbers, and memory for what it is applied to. */
static kakeya_status prepare_context(trainer *t, size_t chunk, kakeya_error *error) {
    const block_drafter_model *drafter = t->engine->drafter;
    const block_drafter_config *d = &drafter->config;
    size_t width = aux_width(t), inputs = (size_t)d->hidden;
    t->aux = malloc(chunk * width * sizeof *t->aux);
    t->fc = malloc(inputs * width * sizeof *t->fc);
    if (!t->aux || !t->fc)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training on the drafter's context");
    for (size_t i = 0; i < inputs; i++) t->ops->weight_row(t->engine->model, &drafter->fc, (int)i, t->fc + i * width);
    return KAKEYA_OK;
}

/* What its layers make of its context. */
static kakeya_status prepare_maps(trainer *t, kakeya_error *error) {
    const block_drafter_model *drafter = t->engine->drafter;
    const block_drafter_config *d = &drafter->config;
    size_t inputs = (size_t)d->hidden, kv = (size_t)(d->kv_heads * d->head_dim), all = (size_t)d->layers * kv;
    if (!weight_present(&drafter->fc) && t->ops->statistics_create)
        return error_set(error, KAKEYA_UNSUPPORTED, "the closed form reads no synthetic drafter on backend %s",
                         t->engine->ops->name);
    for (int half = 0; half < 2; half++) t->map[half] = malloc(all * inputs * sizeof *t->map[half]);
    if (!t->map[0] || !t->map[1])
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training on the drafter's context");
    for (size_t i = 0; i < all; i++) {
        const block_drafter_layer_weights *w = &drafter->layer[i / kv];
        t->ops->weight_row(t->engine->model, &w->k_proj, (int)(i % kv), t->map[0] + i * inputs);
        t->ops->weight_row(t->engine->model, &w->v_proj, (int)(i % kv), t->map[1] + i * inputs);
    }
    return KAKEYA_OK;
}

/* Sums that the backend keeps. */
static kakeya_status make_statistics(trainer *t, kakeya_error *error) {
    const restoration_config *f = &t->options.config;
    const closed_form_sums *s = &t->sums;
    const block_drafter_config *d = restoration_needs_drafter(f) ? &t->engine->drafter->config : NULL;
    statistics_options o = {.tap = d ? d->target_layer : f->aux_layer,
                            .taps = d ? d->targets : f->aux_layers,
                            .context = d != NULL,
                            .inputs = s->inputs,
                            .targets = s->targets,
                            .keys = s->keys,
                            .target = s->target,
                            .n = s->n_all,
                            .xx = (size_t)(s->xx - s->all),
                            .yx = (size_t)(s->yx - s->all),
                            .size = (size_t)(s->size - s->all),
                            .gram = t->gram,
                            .sequence = t->options.sequence,
                            .sink = t->options.sink,
                            .offsets = t->n_offsets,
                            .negligible = (float)negligible_weight};
    for (int i = 0; i < t->config->layers; i++) {
        o.metric_k[i] = (size_t)(s->metric_k[i] - s->all);
        o.metric_v[i] = (size_t)(s->metric_v[i] - s->all);
        o.added[i] = (size_t)(s->added[i] - s->all);
    }
    memcpy(o.offset, t->offset, sizeof t->offset);
    return t->ops->statistics_create(t->engine->model, &o, &t->statistics, error);
}

static kakeya_status allocate(trainer *t, kakeya_error *error) {
    const model_config *c = t->config;
    size_t chunk = (size_t)t->engine->ops->model_prompt_chunk(t->engine->model), n = (size_t)t->sums.inputs,
           targets = (size_t)t->sums.targets, dim = 0;
    bool complete = true;
    for (int i = 0; i < c->layers; i++) {
        if ((size_t)c->layer[i].head_dim > dim) dim = (size_t)c->layer[i].head_dim;
        if (c->layer[i].kv_source != i) continue;
        t->keys[i] = malloc((size_t)t->options.sequence * kv_dim(c, i) * sizeof(float));
        t->values[i] = malloc((size_t)t->options.sequence * kv_dim(c, i) * sizeof(float));
        complete &= t->keys[i] && t->values[i];
    }
    t->scratch_row = (size_t)t->options.sequence + 4 * dim;
    t->x = malloc(chunk * n * sizeof *t->x);
    t->y = malloc(chunk * targets * sizeof *t->y);
    t->outer = malloc(OUTER * n * sizeof *t->outer);
    t->scratch = malloc((size_t)thread_pool_size(t->pool) * t->scratch_row * sizeof *t->scratch);
    if (!complete || !t->x || !t->y || !t->outer || !t->scratch)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training on sequences of %d tokens",
                         t->options.sequence);
    return restoration_needs_drafter(&t->options.config) ? prepare_context(t, chunk, error) : KAKEYA_OK;
}

kakeya_status trainer_create(kakeya_engine *engine, const trainer_options *options, trainer **out,
                             kakeya_error *error) {
    *out = NULL;
    const backend_train_ops *ops = backend_train_find(engine->ops);
    if (!ops || !(ops->forward || ops->statistics_create))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "backend %s has no sums for the closed form: use --backend cpu, or --init-from a folder "
                         "that was made with it",
                         engine->ops->name);
    const restoration_config *f = &options->config;
    if (f->input == RESTORATION_DRAFTER_TOKEN_KV)
        return error_set(error, KAKEYA_UNSUPPORTED, "an f_theta with input \"%s\" cannot be trained",
                         restoration_input_name(f->input));
    if (restoration_needs_drafter(f) && !engine->drafter)
        return error_set(error, KAKEYA_UNSUPPORTED, "an f_theta with input \"%s\" needs a drafter, and there is none",
                         restoration_input_name(f->input));
    trainer *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for training");
    t->engine = engine;
    t->config = &engine->verifier->config;
    t->ops = ops;
    t->options = *options;
    int last = t->config->sliding_window - 1, step = (last - options->window) / OFFSETS;
    if (step < 1) step = 1;
    for (int d = options->window; d <= last && t->n_offsets < OFFSETS; d += step) t->offset[t->n_offsets++] = d;
    kakeya_status status = KAKEYA_OK;
    if (!t->n_offsets)
        status =
            error_set(error, KAKEYA_INVALID_ARGUMENT, "window %d leaves nothing to restore of a sliding window of %d",
                      options->window, t->config->sliding_window);
    if (!status) status = thread_pool_create(options->threads, &t->pool, error);
    int inputs = restoration_needs_drafter(f) ? engine->drafter->config.hidden : restoration_encoder_in(f);
    if (!status) status = closed_form_sums_create(t->config, inputs, &t->sums, error);
    if (!status && !ops->statistics_create) status = allocate(t, error);
    if (!status && restoration_needs_drafter(f)) status = prepare_maps(t, error);
    if (!status) status = make_grams(t, error);
    if (!status && ops->statistics_create) status = make_statistics(t, error);
    if (status) {
        trainer_destroy(t);
        return status;
    }
    *out = t;
    return KAKEYA_OK;
}

void trainer_destroy(trainer *t) {
    if (!t) return;
    if (t->statistics) t->ops->statistics_destroy(t->statistics);
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) {
        free(t->gram[i]);
        free(t->keys[i]);
        free(t->values[i]);
    }
    closed_form_sums_destroy(&t->sums);
    if (t->pool) thread_pool_destroy(t->pool);
    free(t->x);
    free(t->y);
    free(t->aux);
    free(t->fc);
    free(t->map[0]);
    free(t->map[1]);
    free(t->outer);
    free(t->scratch);
    free(t);
}

const closed_form_sums *trainer_sums(const trainer *t) { return &t->sums; }
uint64_t trainer_tokens(const trainer *t) { return (uint64_t)t->sums.tokens[0]; }

/* ----------------------------------------------------------------------------------------------------- statistics */

/* In eight sums, which compilers keep in vectors. */
static float dot(const float *a, const float *b, int n) {
    enum { LANES = 8 };
    float sum[LANES] = {0};
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) sum[k] += a[i + k] * b[i + k];
    }
    for (; i < n; i++) sum[0] += a[i] * b[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static float rms_of(const float *x, size_t n, float eps) {
    double squares = 0;
    for (size_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    return (float)sqrt(squares / (double)n + (double)eps);
}

/* The layer's part of y, and its K/V as attention sees them. */
static void take_targets(trainer *t, const train_layer *l) {
    const model_config *c = t->config;
    const layer_config *lc = &c->layer[l->layer];
    const float *k_norm = t->engine->verifier->weights.layer[l->layer].k_norm;
    size_t d = (size_t)lc->head_dim, width = kv_dim(c, l->layer), targets = (size_t)t->sums.targets;
    for (int r = 0; r < l->rows; r++) {
        for (int half = 0; half < 2; half++) {
            const float *raw = (half ? l->raw_v : l->raw_k) + (size_t)r * width;
            size_t first = (size_t)(t->sums.target[l->layer] + (half ? t->sums.keys : 0));
            float *y = t->y + (size_t)r * targets + first;
            for (size_t h = 0; h < width; h += d) {
                float rms = half && c->raw_values ? 1 : rms_of(raw + h, d, c->rms_eps);
                t->sums.size[first + h] += (double)rms;
                if (half && c->raw_values && d > 1) {
                    double square = (double)rms_of(raw + h, d, 0);
                    t->sums.size[first + h + 1] += square * square;
                }
                for (size_t i = 0; i < d; i++) y[h + i] = raw[h + i] / rms;
            }
            if (!t->metric) continue;
            size_t position = (size_t)(l->position + r);
            float *seen = (half ? t->values : t->keys)[l->layer] + position * width;
            memcpy(seen, y, width * sizeof *seen);
            for (size_t h = 0; h < width && !half; h += d) {
                const float *cosine = l->cosine + position * (size_t)l->pairs,
                            *sine = l->sine + position * (size_t)l->pairs;
                float *k = seen + h;
                for (size_t i = 0; i < d; i++) k[i] *= k_norm[i];
                for (int j = 0; j < l->pairs; j++) {
                    float a = k[j], b = k[j + l->half];
                    k[j] = a * cosine[j] - b * sine[j];
                    k[j + l->half] = b * cosine[j] + a * sine[j];
                }
            }
        }
    }
}

static void take_inputs(trainer *t, const train_layer *l) {
    const restoration_config *f = &t->options.config;
    const block_drafter_config *d = t->aux ? &t->engine->drafter->config : NULL;
    size_t hidden = (size_t)t->config->hidden;
    for (int tap = 0; tap < (d ? d->targets : f->aux_layers); tap++) {
        if ((d ? d->target_layer[tap] : f->aux_layer[tap]) != l->layer) continue;
        for (int r = 0; r < l->rows; r++) {
            const float *h = l->h + (size_t)r * hidden;
            if (d) {
                memcpy(t->aux + (size_t)r * aux_width(t) + (size_t)tap * hidden, h, hidden * sizeof *h);
                continue;
            }
            float *x = t->x + (size_t)r * (size_t)t->sums.inputs + (size_t)tap * hidden,
                  rms = rms_of(h, hidden, t->config->rms_eps);
            for (size_t i = 0; i < hidden; i++) x[i] = h[i] / rms;
        }
    }
}

/* ------------------------------------------------------------------------------------------------------ metric */

typedef struct metric_work {
    trainer *t;
    const train_layer *layer;
} metric_work;

/* u' G u */
static double form(const float *gram, const float *u, int d, float *product) {
    for (int j = 0; j < d; j++) product[j] = 0;
    for (int i = 0; i < d; i++) {
        const float *row = gram + (size_t)i * (size_t)d;
        for (int j = 0; j < d; j++) product[j] += u[i] * row[j];
    }
    return (double)dot(product, u, d);
}

/* What one query head at row r contributes. */
static void take_query(trainer *t, const train_layer *l, int head, int r, double mean_square, float *scratch) {
    const model_config *c = t->config;
    const layer_config *lc = &c->layer[l->layer];
    int source = lc->kv_source, group = c->heads / lc->kv_heads, kv_head = head / group, d = lc->head_dim;
    size_t width = kv_dim(c, source), at = (size_t)(kv_head * d);
    int position = l->position + r,
        oldest = lc->type == LAYER_SLIDING && position >= c->sliding_window ? position - c->sliding_window + 1 : 0;
    if (position - t->offset[0] < (oldest > t->options.sink ? oldest : t->options.sink)) return;
    const float *q = l->q + ((size_t)r * (size_t)c->heads + (size_t)head) * (size_t)d;
    const float *o = l->o + ((size_t)r * (size_t)c->heads + (size_t)head) * (size_t)d;
    const float *k_norm = t->engine->verifier->weights.layer[source].k_norm;
    const float *gram = t->gram[l->layer] + (size_t)head * (size_t)d * (size_t)d;
    float *seen = scratch, *u = scratch + t->options.sequence, *g = u + d, *product = g + d, largest = -INFINITY;
    double sum = 0;
    for (int p = oldest; p <= position; p++) {
        float score = dot(q, t->keys[source] + (size_t)p * width + at, d);
        seen[p - oldest] = score;
        if (score > largest) largest = score;
    }
    for (int p = oldest; p <= position; p++) sum += (double)(seen[p - oldest] = expf(seen[p - oldest] - largest));
    double *metric = t->sums.metric_k[l->layer] + (size_t)kv_head * (size_t)d * (size_t)d;
    for (int n = 0; n < t->n_offsets; n++) {
        int p = position - t->offset[n];
        if (p < oldest || p < t->options.sink) break;
        double share = (double)seen[p - oldest] / sum;
        if (share < negligible_weight) continue;
        double scale = share * share / mean_square;
        t->sums.metric_v[l->layer][head] += scale;
        const float *v = t->values[source] + (size_t)p * width + at;
        for (int i = 0; i < d; i++) u[i] = v[i] - o[i];
        double change = form(gram, u, d, product);
        /* R_p' q: rotated back */
        const float *cosine = l->cosine + (size_t)p * (size_t)l->pairs, *sine = l->sine + (size_t)p * (size_t)l->pairs;
        memcpy(g, q, (size_t)d * sizeof *g);
        for (int j = 0; j < l->pairs; j++) {
            g[j] = q[j] * cosine[j] + q[j + l->half] * sine[j];
            g[j + l->half] = q[j + l->half] * cosine[j] - q[j] * sine[j];
        }
        for (int i = 0; i < d; i++) g[i] *= k_norm[i];
        for (int i = 0; i < d; i++) {
            double part = scale * change * (double)g[i], *row = metric + (size_t)i * (size_t)d;
            for (int j = 0; j < d; j++) row[j] += part * (double)g[j];
        }
    }
}

/* Items are K/V heads: each has its own sums, so they do not depend on threads. */
static void take_heads(void *context, size_t begin, size_t end, int thread) {
    const metric_work *work = context;
    trainer *t = work->t;
    const train_layer *l = work->layer;
    size_t hidden = (size_t)t->config->hidden;
    int group = t->config->heads / t->config->layer[l->layer].kv_heads;
    float *scratch = t->scratch + (size_t)thread * t->scratch_row;
    for (size_t item = begin; item < end; item++) {
        for (int r = 0; r < l->rows; r++) {
            double rms = (double)rms_of(l->out + (size_t)r * hidden, hidden, t->config->rms_eps);
            for (int a = (int)item * group; a < ((int)item + 1) * group; a++)
                take_query(t, l, a, r, rms * rms, scratch);
        }
    }
}

static void take_metric(trainer *t, const train_layer *l) {
    size_t hidden = (size_t)t->config->hidden;
    const float *norm = t->engine->verifier->weights.layer[l->layer].post_attention_norm;
    for (int r = 0; r < l->rows; r++) {
        const float *out = l->out + (size_t)r * hidden;
        double rms = (double)rms_of(out, hidden, t->config->rms_eps);
        for (size_t i = 0; i < hidden; i++) {
            double added = (double)out[i] / rms * (double)norm[i];
            t->sums.added[l->layer][0] += added * added;
        }
        t->sums.added[l->layer][1] += 1;
    }
    metric_work work = {t, l};
    thread_pool_for(t->pool, (size_t)t->config->layer[l->layer].kv_heads, 1, take_heads, &work);
}

/* -------------------------------------------------------------------------------------------------- a sequence */

static void tap(void *user, const train_layer *l) {
    trainer *t = user;
    if (l->raw_k) take_targets(t, l);
    take_inputs(t, l);
    if (t->metric) take_metric(t, l);
}

/* x = hidden_norm(fc(aux)) */
static void make_context(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    trainer *t = context;
    const block_drafter_model *drafter = t->engine->drafter;
    size_t n = (size_t)t->sums.inputs, width = aux_width(t);
    for (size_t r = begin; r < end; r++) {
        float *x = t->x + r * n;
        for (size_t i = 0; i < n; i++) x[i] = dot(t->fc + i * width, t->aux + r * width, (int)width);
        float rms = rms_of(x, n, drafter->config.rms_eps);
        for (size_t i = 0; i < n; i++) x[i] = x[i] / rms * drafter->hidden_norm[i];
    }
}

typedef struct sum_work {
    double *to;
    const float *from;
} sum_work;

static void add_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sum_work *w = context;
    for (size_t i = begin; i < end; i++) w->to[i] += (double)w->from[i];
}

/* to [nb][inputs] += sum over rows of b x', some of b's values at a time. */
static kakeya_status add_outer(trainer *t, const float *b, int nb, int rows, double *to, kakeya_error *error) {
    int n = t->sums.inputs;
    for (int first = 0, some; first < nb; first += some) {
        some = nb - first < OUTER ? nb - first : OUTER;
        kakeya_status status =
            t->ops->outer(t->engine->model, t->x, n, b + first, (size_t)nb, some, rows, t->outer, error);
        if (status) return status;
        sum_work work = {to + (size_t)first * (size_t)n, t->outer};
        thread_pool_for(t->pool, (size_t)some * (size_t)n, 1 << 16, add_range, &work);
    }
    return KAKEYA_OK;
}

static kakeya_status add_statistics(trainer *t, int rows, kakeya_error *error) {
    closed_form_sums *s = &t->sums;
    if (t->aux) thread_pool_for(t->pool, (size_t)rows, 8, make_context, t);
    kakeya_status status = add_outer(t, t->x, s->inputs, rows, s->xx, error);
    if (!status) status = add_outer(t, t->y, s->targets, rows, s->yx, error);
    if (!status) s->tokens[0] += rows;
    return status;
}

kakeya_status trainer_add(trainer *t, const int32_t *tokens, int n, kakeya_error *error) {
    const backend_cache_options options = {.context_tokens = n,
                                           .attention = KAKEYA_ATTENTION_NATIVE,
                                           .kv_format = t->engine->ops->bf16_only ? KV_FORMAT_BF16 : KV_FORMAT_F32,
                                           .account = &t->engine->account};
    backend_cache *cache = NULL;
    int chunk = t->engine->ops->model_prompt_chunk(t->engine->model);
    t->metric = t->sums.tokens[0] < t->options.metric_tokens;
    engine_turn_begin(t->engine); /* sessions of the engine may be open */
    kakeya_status status = t->engine->ops->cache_create(t->engine->model, &options, &cache, error);
    for (int at = 0, rows; at < n && !status; at += rows) {
        rows = n - at < chunk ? n - at : chunk;
        if (t->statistics) {
            status = t->ops->statistics_add(t->statistics, cache, tokens + at, rows, t->metric, error);
            if (!status) t->sums.tokens[0] += rows;
            continue;
        }
        status = t->ops->forward(t->engine->model, cache, tokens + at, rows, tap, t, error);
        if (!status) status = add_statistics(t, rows, error);
    }
    if (cache) t->engine->ops->cache_destroy(cache);
    engine_turn_end(t->engine);
    return status;
}

/* Sums [first, end) out of the backend. */
static kakeya_status fetch(const trainer *t, const double *first, const double *end, kakeya_error *error) {
    double *to = t->sums.all + (first - t->sums.all);
    return t->ops->statistics_read(t->statistics, (size_t)(first - t->sums.all), (size_t)(end - first), to, error);
}

kakeya_status trainer_solve(const trainer *t, const closed_form_form *form, closed_form_weights *out,
                            kakeya_error *error) {
    const closed_form_sums *s = &t->sums;
    *out = (closed_form_weights){0};
    /* What the drafter makes of x is solved on the host: it is as wide as a hidden state. */
    bool on_device = t->statistics && !t->map[0];
    kakeya_status status = t->statistics ? fetch(t, s->xx, on_device ? s->yx : s->size, error) : KAKEYA_OK;
    if (t->statistics && !status) status = fetch(t, s->size, s->all + s->n_all, error);
    if (status) return status;
    const closed_form_problem problem = {.sums = &t->sums,
                                         .config = &t->options.config,
                                         .form = *form,
                                         .gram = t->gram,
                                         .map = {t->map[0], t->map[1]},
                                         .pool = t->pool,
                                         .ops = t->ops,
                                         .statistics = on_device ? t->statistics : NULL};
    return closed_form_solve(&problem, out, error);
}

/* ------------------------------------------------------------------------------------------------- saved sums */

typedef struct saved_head {
    char magic[8];
    uint64_t purpose, values, place[TRAINER_PLACE];
} saved_head;

static const char saved_magic[8] = "KVTRAIN";

kakeya_status trainer_save(const trainer *t, const char *path, uint64_t purpose, const uint64_t place[TRAINER_PLACE],
                           kakeya_error *error) {
    saved_head head = {.purpose = purpose, .values = t->sums.n_all};
    memcpy(head.magic, saved_magic, sizeof head.magic);
    memcpy(head.place, place, sizeof head.place);
    size_t bytes = t->sums.n_all * sizeof *t->sums.all;
    kakeya_status status = t->statistics ? fetch(t, t->sums.xx, t->sums.all + t->sums.n_all, error) : KAKEYA_OK;
    if (status) return status;
    uint64_t hash = hash_fnv1a(hash_fnv1a(HASH_FNV1A_START, &head, sizeof head), t->sums.all, bytes);
    file_writer *writer = NULL;
    status = file_writer_open(path, &writer, error);
    if (status) return status;
    status = file_writer_write(writer, &head, sizeof head, error);
    if (!status) status = file_writer_write(writer, t->sums.all, bytes, error);
    if (!status) status = file_writer_write(writer, &hash, sizeof hash, error);
    if (!status) return file_writer_commit(writer, error);
    file_writer_abort(writer);
    return status;
}

kakeya_status trainer_load(trainer *t, const char *path, uint64_t purpose, uint64_t place[TRAINER_PLACE],
                           kakeya_error *error) {
    file_map map;
    kakeya_status status = file_map_open(path, &map, error);
    if (status) return status;
    saved_head head;
    size_t bytes = t->sums.n_all * sizeof *t->sums.all;
    uint64_t hash = 0;
    bool whole = map.bytes == sizeof head + bytes + sizeof hash;
    if (map.bytes >= sizeof head) memcpy(&head, map.data, sizeof head);
    if (map.bytes < sizeof head || memcmp(head.magic, saved_magic, sizeof saved_magic) != 0) {
        status = error_set(error, KAKEYA_FORMAT, "%s: not the state of a training", path);
    } else if (head.purpose != purpose) {
        status = error_set(error, KAKEYA_FORMAT,
                           "%s: the state of a training with another model, other options or other data; remove it "
                           "to start over",
                           path);
    } else {
        if (whole) memcpy(&hash, map.data + sizeof head + bytes, sizeof hash);
        if (!whole || hash != hash_fnv1a(HASH_FNV1A_START, map.data, sizeof head + bytes))
            status = error_set(error, KAKEYA_FORMAT, "%s: is damaged; remove it to start over", path);
    }
    if (!status) {
        memcpy(t->sums.all, map.data + sizeof head, bytes);
        memcpy(place, head.place, sizeof head.place);
    }
    if (!status && t->statistics)
        status = t->ops->statistics_write(t->statistics, 0, t->sums.n_all, t->sums.all, error);
    file_map_close(&map);
    return status;
}
