/* The restoration's input "drafter_kv": raw k_proj/v_proj outputs of a drafter pass over the token embeddings, without
 * context (the reference implementation's form; kept so that its checkpoints can be used).
 *
 * The reference ran that pass over the whole sequence, non-causally, and only ever for a prompt. Here each turn's
 * prompt is one such pass, made when the turn's first decode step evicts, so it does not depend on how the prompt was
 * cut; a generated token is a pass of its own (it attends itself alone), so it does not depend on blocks. */
#ifndef KAKEYA_BACKEND_CPU_TOKEN_LATENTS_H
#define KAKEYA_BACKEND_CPU_TOKEN_LATENTS_H

#include "backend/cpu/draft.h"

/* Memory for a pass over these prompt rows (c->pass), and the pass, which cannot fail and gives it back. */
kakeya_status token_latents_reserve(backend_cache *c, position_range rows, kakeya_error *error);
void token_latents_prompt(backend_cache *c, position_range rows);
/* Latents of rows of n caches, each token by itself; aux is not read. Limits as for draft_extend. */
void token_latents_alone(backend_model *m, const draft_rows *entries, int n);

#endif
