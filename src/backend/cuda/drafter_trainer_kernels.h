/* The kernels of the trainer (drafter_trainer.c) beside those of the student (train_kernels.h), in the same manner. */
#ifndef KAKEYA_BACKEND_CUDA_DRAFTER_TRAINER_KERNELS_H
#define KAKEYA_BACKEND_CUDA_DRAFTER_TRAINER_KERNELS_H

#include "backend/cuda/train_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Blocks of several sequences: `rows` rows of a sequence's blocks, which see its context and their own block. Columns
 * of a sequence are its context's positions, then its rows. */
typedef struct drafter_trainer_mask {
    const int *position, *first; /* [sequences * rows]: of the row; of its block's first row, -1: the row is nobody's */
    int sequences, rows, context, block;
    int sliding, bidirectional; /* as the drafter's layer has it; 0: everything */
} drafter_trainer_mask;

/* keys and values [sequences][context + rows][n] out of those of contexts and of rows. */
void cuda_drafter_trainer_columns(const cuda_launch *l, const drafter_trainer_mask *mask, int n,
                                  const float *const context[2], const float *const own[2], float *keys, float *values);
/* d_key, d_value [sequences][heads][context + rows][d], summed over the heads of a group: set. */
void cuda_drafter_trainer_columns_back(const cuda_launch *l, const drafter_trainer_mask *mask, int n, int heads, int d,
                                       const float *d_key, const float *d_value, float *const context[2],
                                       float *const own[2]);
/* scores [sequences][heads][rows][context + rows] become attention weights. */
void cuda_drafter_trainer_softmax(const cuda_launch *l, const drafter_trainer_mask *mask, int heads, float *scores);

/* out = silu(gate) * up; gate_up [rows][2 n], gate first. */
void cuda_drafter_trainer_gated(const cuda_launch *l, const float *gate_up, float *out, int rows, int n);
void cuda_drafter_trainer_gated_back(const cuda_launch *l, const float *gate_up, const float *d_out, float *d_gate_up,
                                     int rows, int n);
/* In place: the gradient behind RoPE and `scale` becomes that before them. [rows][heads][d]. */
void cuda_drafter_trainer_unturn(const cuda_launch *l, float *x, float scale, int rows, int heads, int d,
                                 train_turn turn);
/* d_gain [n] += sum over rows of d_out * x / rms(x); partial: room of DRAFTER_TRAINER_GAIN_PARTS * n floats. */
enum { DRAFTER_TRAINER_GAIN_PARTS = 64 };
void cuda_drafter_trainer_gain(const cuda_launch *l, const float *x, const float *d_out, int rows, int n, float eps,
                               float *partial, float *d_gain);

/* Rows of logits before the soft cap become scale * weigh times the gradient of -log softmax at `target` (below 0:
 * zeros). loss [rows], times weigh; right [rows]: whether the largest logit but the mask's is the target's. */
void cuda_drafter_trainer_cross_entropy(const cuda_launch *l, float *logits, const int *target, const float *weigh,
                                        int rows, int vocab, float cap, int mask_token, float scale, double *loss,
                                        int *right);

#ifdef __cplusplus
}
#endif

#endif
