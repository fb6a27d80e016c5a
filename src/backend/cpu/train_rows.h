/* What the trainers of both kinds of drafters (drafter_trainer.h, chains.h) do with rows: each by itself, on the pool.
 */
#ifndef KAKEYA_BACKEND_CPU_TRAIN_ROWS_H
#define KAKEYA_BACKEND_CPU_TRAIN_ROWS_H

#include "backend/cpu/train_products.h"

/* task(context, row) for each of n rows. */
typedef void (*train_task)(void *context, int row);
void train_each(const backend_model *m, int n, train_task task, void *context);

/* Of a trainer's own weights. */
static inline float *train_values(const weight *w) { return (float *)(uintptr_t)w->stream[0]; }
static inline float *train_vector(const float *v) { return (float *)(uintptr_t)v; }
static inline size_t train_most(size_t a, size_t b) { return a > b ? a : b; }

/* Room for a matrix [out][in] transposed, and its values. */
weight train_take_turned(train_arena *a, int out, int in);
void train_turn_matrix(const train_products *p, const weight *w, const weight *turned);
/* The model's head in float32, into `head`. */
void train_load_head(const backend_model *m, const weight *head);

/* Rows of `width` values that are named, side by side in `picked`, and back to where they were. */
void train_pick(const float *x, const int *rows, int n, size_t width, float *picked);
void train_put(const float *picked, const int *rows, int n, size_t width, float *x);

/* Norms of rows of n values, one behind the other. */
typedef struct train_norms {
    const backend_model *m;
    int rows, n;
    float eps;
} train_norms;

/* onto: added, or NULL. */
void train_norm(train_norms s, const float *x, const float *gain, const float *onto, float *out);
/* Added to d_x, and to d_gain unless that is NULL. */
void train_norm_back(train_norms s, const float *x, const float *gain, const float *d_out, float *d_x,
                     const float *d_gain);

/* Norm, RoPE and scale of the heads of rows: raw [rows][heads][d]. */
typedef struct train_heads {
    const backend_model *m;
    const float *raw, *gain;
    float *out; /* or its gradient, in place that of `raw` */
    const rope_table *rope;
    const int *position; /* NULL: the row's number */
    int heads, d;
    float eps, scale;
} train_heads;

void train_turn_heads(train_heads w, int rows);
void train_turn_heads_back(train_heads w, int rows, const float *d_gain);

/* gate_up [rows][2 * width] through an activation (cpu_kernels.gated), and d_act back to d_gate_up. */
typedef struct train_gates {
    const backend_model *m;
    const float *gate_up;
    float *act;
    const float *d_act;
    float *d_gate_up;
    size_t width;
    bool silu; /* else GELU */
} train_gates;

void train_gate(train_gates w, int rows);
void train_gate_back(train_gates w, int rows);

#endif
