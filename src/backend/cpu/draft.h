/* Rows of the drafter, and its context: for every committed position x = hidden_norm(fc(aux)), and per drafter layer
 * raw K = k_proj x, V = v_proj x. k_norm and RoPE make the context K/V out of them; the raw values of all layers are
 * the restoration's input. Formulas: as model/block_drafter.h says. */
#ifndef KAKEYA_BACKEND_CPU_DRAFT_H
#define KAKEYA_BACKEND_CPU_DRAFT_H

#include "backend/cpu/latents.h"

/* Rows of the drafter in work: m->d_state [rows][hidden] is their residual stream, m->d_x their normed input. */
typedef struct draft_step {
    backend_model *model;
    const block_drafter_config *config;
    int rows;
    int layer;
} draft_step;

void draft_embed(draft_step *s, int row, int32_t token);
void draft_norm(draft_step *s, const float *norm);
/* m->d_q holds the attention output: o_proj, MLP and both residual additions. */
void draft_layer_rest(draft_step *s);

/* Context K/V, and latents where they are made of it, of the rows of up to BACKEND_MAX_FORWARD caches, max_rows each
 * at most, in as few products as the workspace allows; of those rows that the stores still hold afterwards. RoPE tables
 * must reach them. */
void draft_extend(backend_model *m, const draft_rows *entries, int n);

#endif
