/* The kernels of what reads pictures (tower.h), but for its products, which are those of prompts. Rows are patches of
 * one picture, and behind the pooling rows of the text model. Widths are multiples of 8, pointers 16-byte aligned. */
#ifndef KAKEYA_BACKEND_CUDA_TOWER_KERNELS_H
#define KAKEYA_BACKEND_CUDA_TOWER_KERNELS_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Instructions of a row program (program.h), with addresses in the place of items and slots. */
typedef enum tower_verb {
    TOWER_LOAD = 0, /* into = row of `load` */
    TOWER_LOOKUP,   /* into = row of `table` that is the patch's place on `axis` */
    TOWER_NORM,     /* into = from / rms(from) * vector (NULL: ones) */
    TOWER_CENTRE,   /* into = (from - mean) / deviation * vector + bias */
    TOWER_ADD,      /* into += from */
    TOWER_SCALE,    /* into *= scalar */
    TOWER_MULTIPLY, /* into *= vector */
    TOWER_SHIFT,    /* into += scalar * vector (NULL: ones) */
} tower_verb;

enum { TOWER_MAX_STEPS = 16, TOWER_REGISTERS = 4 };

typedef struct tower_row_step {
    tower_verb verb;
    int into, from;
    int axis, stride, first; /* LOOKUP: row first + stride * (0: the patch's column; 1: its row) of the table ... */
    int ld;                  /* ... whose rows, or those of `rounded`, lie so far apart */
    float scalar;
    const float *load, *vector, *bias;
    const cuda_bf16 *table;
    float *store;       /* NULL, or the result goes there, too ... */
    cuda_bf16 *rounded; /* ... or there, in bf16 */
} tower_row_step;

typedef struct tower_rows {
    int width, steps, registers; /* registers: that are used */
    int across;                  /* patches of a row of the picture */
    float rms_eps, centre_eps;
    tower_row_step step[TOWER_MAX_STEPS];
} tower_rows;
cudaError_t tower_row_program(const cuda_launch *l, const tower_rows *program, int rows);

/* Norms of heads, and for q and k RoPE: the first half of a head turns by the patch's column, the second by its row. */
typedef struct tower_heads {
    const float *raw;     /* [rows][3][heads][head_dim]: q, k, v */
    const float *norm[3]; /* [head_dim]; NULL: ones */
    const float2 *turns;  /* cosine and sine [position][head_dim / 4] */
    cuda_bf16 *out[3];    /* [heads][rows][head_dim] */
    int heads, head_dim, across;
    float eps;
} tower_heads;
cudaError_t tower_head_rows(const cuda_launch *l, const tower_heads *h, int rows);

/* Every patch sees every patch; scale 1. Scores are never stored: keys are walked in blocks with an online softmax in
 * float32, probabilities meet values as bf16. Where the thread blocks of a picture would fill the device badly, keys
 * are cut into up to TOWER_MOST_PARTS parts, whose results are merged in ascending order. */
enum { TOWER_MOST_PARTS = 3 };
typedef struct tower_attention {
    const cuda_bf16 *q, *k, *v; /* [heads][rows][head_dim] */
    cuda_bf16 *out;             /* [rows][ldo], heads side by side */
    float *partial;             /* room for [TOWER_MOST_PARTS][rows][heads][head_dim] ... */
    float2 *state;              /* ... and, of each part, its maximum and sum: [TOWER_MOST_PARTS][rows][heads] */
    int ldo, rows, heads, head_dim;
} tower_attention;
bool tower_attends(int head_dim); /* is there a kernel? */
cudaError_t tower_attend(const cuda_launch *l, const tower_attention *a);

/* to[p] = mean over squares of `side` x `side` patches. */
void tower_pool(const cuda_launch *l, const float *from, int across, int side, int width, float *to, int rows);

/* Clipped linears: to = what lies in [least, most] of from, [rows][ld] in bf16; in place. */
void tower_clamp_rounded(const cuda_launch *l, const cuda_bf16 *from, cuda_bf16 *to, int ld, int n, float least,
                         float most, int rows);
void tower_clamp(const cuda_launch *l, float *x, int ld, int n, float least, float most, int rows);
/* to[r] = bf16(gelu_tanh(gate[r]) * up[r]) */
void tower_activate(const cuda_launch *l, const float *gate, const float *up, int n, cuda_bf16 *to, int ld, int rows);

#ifdef __cplusplus
}
#endif

#endif
