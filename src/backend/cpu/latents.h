/* Latents: what the restoration's encoders give of a position, and the scalars of v_norm beside it. */
#ifndef KAKEYA_BACKEND_CPU_LATENTS_H
#define KAKEYA_BACKEND_CPU_LATENTS_H

#include "backend/cpu/stores.h"

/* Rows of one cache among the rows in work. */
typedef struct draft_part {
    backend_cache *cache;
    int first_row, rows;
    int position; /* of the first row */
} draft_part;

/* Rows of a cache that are followed up: aux hidden states, timeline_aux_row_bytes each, of positions from `position`
 * on. */
typedef struct draft_rows {
    backend_cache *cache;
    const float *aux;
    int rows, position;
} draft_rows;

/* Latents of the parts' rows from the drafter's raw K/V in m->d_context [...][2 * layers * kv]. The parts are in
 * ascending order. */
void latents_of_context(backend_model *m, const draft_part *parts, int n_parts);
/* Latents of rows of up to BACKEND_MAX_FORWARD caches, max_rows each at most, from aux hidden states themselves; of
 * those rows that the stores still hold afterwards. */
void latents_of_aux(backend_model *m, const draft_rows *entries, int n);

/* One latent of a row that is held, as float32: of keys or of values (the same one where it is shared). */
void latent_load(const backend_cache *c, int position, bool is_k, float *out);

/* Floats of the workspace for a row: m->latent_in, m->latent_out. */
size_t latents_in_floats(const backend_model *m);
size_t latents_out_floats(const backend_model *m);

#endif
