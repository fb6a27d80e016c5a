/* Flash attention of the verifier over the stores of caches. */
#ifndef KAKEYA_BACKEND_CPU_ATTENTION_H
#define KAKEYA_BACKEND_CPU_ATTENTION_H

#include "backend/cpu/stores.h"

typedef struct attention_segment {
    backend_cache *cache;
    int first_row, rows; /* rows of the forward */
    int position;        /* of first_row */
    segment_kind kind;
    const backend_given *given; /* [n_given] as in backend_segment */
    int n_given;
} attention_segment;
/* Whose queries, and what they see. */
typedef struct attention_queries {
    float *q;    /* [rows][heads * head_dim], normed and rotated; the output takes their place */
    int heads;   /* a multiple of the layer's K/V heads */
    int layer;   /* of the verifier, whose K/V, or those that it shares, are attended */
    bool before; /* an assistant's: each segment is one row, at the position behind the committed ones, and sees those
                    (timeline_assistant_sees) */
} attention_queries;

/* `burst`: a row of the segments has K or V that are no finite numbers. Then every row is computed alone, so that those
 * before it see nothing of it. */
void attention_run(backend_model *m, const attention_queries *queries, const attention_segment *segments,
                   int n_segments, bool burst);
size_t attention_partial_floats(const backend_model *m, int context);
size_t attention_state_floats(const backend_model *m);
int attention_max_queries(const backend_model *m);
/* Where K or V of the forward's new rows of a layer lie. */
unsigned char *chunk_rows(const backend_model *m, int layer, bool is_k);

#endif
