/* The kernels that MTP assistants need beside those of the model (assistant.cu). As in kernels.h all pointers are
 * device memory, and all launches are asynchronous and can be captured. */
#ifndef KAKEYA_BACKEND_CUDA_ASSISTANT_KERNELS_H
#define KAKEYA_BACKEND_CUDA_ASSISTANT_KERNELS_H

#include "backend/cuda/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The views of all caches are these. Rows are [hidden] of the model behind its final norm. */
typedef struct cuda_state_view {
    cuda_cache_view cache;
    const float *state; /* of the last committed position; NULL: the cache keeps none */
    float *pending;     /* [CUDA_DECODE_ROWS]: that of position p is row p % CUDA_DECODE_ROWS */
} cuda_state_view;

/* Decode rows [rows][hidden], or of a prompt pass the last row of each of its `rows` segments, to where their caches
 * keep them. */
void cuda_keep_states(const cuda_launch *l, const cuda_batch *batch, int prompt, const float *normed, int hidden,
                      int rows);

/* x = bf16 of the token's embedding times the scale, and behind it of the state; [rows][ldx]. */
typedef struct cuda_pair {
    const cuda_batch *batch;
    const int32_t *drafted; /* [rows]; NULL: the batch's tokens and the states of its rows' caches */
    const float *states;    /* [rows][hidden]; with `drafted` */
    float scale;
    cuda_bf16 *x;
    int ldx, hidden;
} cuda_pair;
void cuda_pair_rows(const cuda_launch *l, const cuda_matrix *table, const cuda_pair *pair, int rows);

/* The clusters of an assistant's head. */
typedef struct cuda_clusters {
    const int32_t *token_of; /* [head->out]: of the head's rows, which lie cluster by cluster */
    int clusters, wanted;    /* of all, so many are chosen for a row */
    int *chosen;             /* [rows][wanted], in any order */
    /* Zero between launches: */
    unsigned long long *best; /* [rows] */
    unsigned *finished;       /* [rows] */
} cuda_clusters;
/* The clusters with the largest logits [rows][clusters], the lower one of equals. */
void cuda_choose_clusters(const cuda_launch *l, const cuda_clusters *c, const float *logits, int rows);
/* The token of the largest logit among the chosen clusters' rows, the lowest one of equals, never an excluded one; -1
 * where a logit is not a number. x is [rows][head->ld], the head bf16. */
void cuda_choose_inside(const cuda_launch *l, const cuda_clusters *c, const cuda_matrix *head,
                        const cuda_excluded *excluded, const cuda_bf16 *x, int rows, int32_t *choice);

#ifdef __cplusplus
}
#endif

#endif
