#include "train/assistant_start.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/weight_values.h"
#include "train/linear.h"

enum { MOST_ROWS = 1 << 14 /* of the head, that its second moment is summed over */ };

static float *floats_of(const weight *w) { return (float *)(uintptr_t)w->stream[0]; }

/* The row of a matrix times the final norm's gain: what a hidden state before that gain is multiplied by. */
static void gained_row(const language_model *v, int row, float *out) {
    const weight *head = weight_present(&v->weights.head) ? &v->weights.head : &v->weights.embed;
    weight_values(head, row, 0, v->config.hidden, out);
    for (int i = 0; i < v->config.hidden; i++) out[i] *= v->weights.final_norm[i];
}

/* Directions of hidden states that move logits most, in the rows of `moment` [H][H]. */
static bool directions(const language_model *v, double *moment, float *row) {
    int hidden = v->config.hidden, rows = v->config.vocab < MOST_ROWS ? v->config.vocab : MOST_ROWS;
    double *values = malloc(2 * (size_t)hidden * sizeof *values);
    if (!values) return false;
    for (int r = 0; r < rows; r++) {
        gained_row(v, (int)((int64_t)r * v->config.vocab / rows), row);
        for (int i = 0; i < hidden; i++) {
            double *to = moment + (size_t)i * (size_t)hidden, at = (double)row[i];
            for (int j = 0; j <= i; j++) to[j] += at * (double)row[j];
        }
    }
    for (int i = 0; i < hidden; i++) {
        for (int j = i + 1; j < hidden; j++)
            moment[(size_t)i * (size_t)hidden + (size_t)j] = moment[(size_t)j * (size_t)hidden + (size_t)i];
    }
    bool found = linear_eigen(moment, hidden, values, values + hidden);
    free(values);
    return found;
}

/* z = E G s = (E G U) (U' s) for hidden states s before the final norm's gain G, with U the leading directions. The
 * assistant's last norm then is U' s, and the state G U of that. */
static void start_head(const language_model *v, const assistant_weights *w, const double *u, float *row) {
    size_t from = (size_t)v->config.hidden, to = (size_t)w->stack.head.in;
    for (int token = 0; token < w->stack.head.out; token++) {
        float *out = floats_of(&w->stack.head) + (size_t)token * to;
        gained_row(v, token, row);
        for (size_t i = 0; i < to; i++) {
            double sum = 0;
            for (size_t j = 0; j < from; j++) sum += (double)row[j] * u[i * from + j];
            out[i] = (float)sum;
        }
    }
    float *post = floats_of(&w->post_projection);
    for (size_t j = 0; j < from; j++) {
        for (size_t i = 0; i < to; i++) post[j * to + i] = (float)((double)v->weights.final_norm[j] * u[i * from + j]);
    }
}

static double mean_square(const language_model *v, float *row) {
    enum { ROWS = 256 };
    double sum = 0;
    int rows = v->config.vocab < ROWS ? v->config.vocab : ROWS, hidden = v->config.hidden;
    for (int r = 0; r < rows; r++) {
        weight_values(&v->weights.embed, (int)((int64_t)r * v->config.vocab / rows), 0, hidden, row);
        for (int i = 0; i < hidden; i++) sum += (double)row[i] * (double)row[i]; /* of the scaled row: times H */
    }
    return sum / rows;
}

/* Values of the embedding, and of states divided by their gain, become about 1. */
static void start_input(const language_model *v, const assistant_weights *w, float *row) {
    const weight *pre = &w->pre_projection;
    int hidden = v->config.hidden;
    double size = sqrt(mean_square(v, row));
    for (int r = 0; r < pre->out; r++) {
        float *at = floats_of(pre) + (size_t)r * (size_t)pre->in;
        for (int i = 0; i < hidden; i++) {
            float gain = v->weights.final_norm[i];
            if (size > 0) at[i] = (float)((double)at[i] / size);
            if (fabsf(gain) > 1e-3f) at[hidden + i] /= gain;
        }
    }
}

static void start_queries(const assistant_config *c, const language_model *v, const assistant_weights *w) {
    for (int i = 0; i < c->stack.layers; i++) {
        const layer_config *l = &c->stack.layer[i];
        const float *norm = v->weights.layer[assistant_source(&v->config, l->type)].q_norm;
        memcpy((float *)(uintptr_t)w->stack.layer[i].q_norm, norm, (size_t)l->head_dim * sizeof *norm);
    }
}

kakeya_status assistant_start(const assistant_config *c, const language_model *v, uint64_t seed, float *values,
                              kakeya_error *error) {
    size_t hidden = (size_t)v->config.hidden;
    bool fits = v->config.hidden <= ASSISTANT_START_WIDEST && c->stack.hidden <= v->config.hidden;
    double *moment = fits ? calloc(hidden * hidden, sizeof *moment) : NULL;
    float *row = malloc(hidden * sizeof *row);
    assistant_values to;
    kakeya_status status = KAKEYA_OK;
    if (!row || (fits && !moment) || (fits && !directions(v, moment, row)))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the assistant's first weights");
    if (!status) {
        assistant_values_begin(c, seed, values);
        assistant_values_bind(c, values, &to);
        start_input(v, &to.weights, row);
        start_queries(c, v, &to.weights);
        if (fits) start_head(v, &to.weights, moment, row);
    }
    free(moment);
    free(row);
    return status;
}
