/* What follows committed rows: launchers of the drafter's context and of latents, which move tags (fake_device.h). */
#include "gpu/fake/fake_tags.h"

/* The rows whose drafter context and latents are being computed. */
static _Thread_local struct {
    tag row[MOST_ROWS];
    int rows;
} context;

/* What follows is made of the aux hidden states that are read last. */
static void take_aux(int row, const float *aux) {
    context.row[row] = (tag){(int32_t)aux[0], (int32_t)aux[1], (int32_t)aux[2], 0};
}

void cuda_round_aux(const cuda_launch *l, const cuda_context_source *source, int width, cuda_bf16 *x, int ldx) {
    (void)l, (void)width, (void)x, (void)ldx;
    context.rows = source->rows;
    for (int r = 0; r < source->rows; r++) take_aux(r, source->row[r].aux);
}

/* All tapped layers of a row have left the same tag. */
void cuda_norm_aux(const cuda_launch *l, const cuda_context_source *source, const cuda_taps *taps, int hidden,
                   float eps, cuda_bf16 *x, int ldx) {
    (void)l, (void)eps, (void)x, (void)ldx;
    context.rows = source->rows;
    for (int r = 0; r < source->rows; r++) {
        cuda_context_row row = source->row[r];
        for (int i = 0; i < taps->n; i++) {
            const float *aux = row.aux + (size_t)taps->at[row.aux_form][i] * (size_t)hidden;
            if ((int)aux[0] != row.position) fake_broken("a tap of another position", (int)aux[0], row.position);
            take_aux(r, aux);
        }
    }
}

static tag context_tag(int row, int position) {
    if (row >= context.rows || context.row[row].position != position)
        fake_broken("an aux row of another position", row < context.rows ? context.row[row].position : -1, position);
    return context.row[row];
}

void cuda_store_context(const cuda_launch *l, const cuda_context_rows *c) {
    (void)l;
    int values = c->kv_heads * c->head_dim;
    for (int layer = 0; layer < c->layers; layer++) {
        for (int r = 0; r < c->source.rows; r++) {
            cuda_context_row row = c->source.row[r];
            const cuda_draft_view *draft = &row.cache->draft[layer];
            if (row.behind >= draft->capacity) continue;
            int p = row.position;
            tag t = context_tag(r, p);
            put(row_of(draft->k, p % draft->capacity, values), p, t.token, t.ill, KEY);
            put(row_of(draft->v, p % draft->capacity, values), p, t.token, t.ill, VALUE);
        }
    }
}

/* Of the drafter's K/V: rows without latents come first. */
void cuda_store_latents(const cuda_launch *l, const cuda_context_source *source, const float *latents,
                        const cuda_latent_row *form, cuda_bf16 *v_half, int ldv) {
    (void)l, (void)latents, (void)v_half, (void)ldv;
    int skipped = context.rows - source->rows;
    for (int r = 0; r < source->rows; r++) {
        cuda_context_row row = source->row[r];
        const cuda_latent_view *latent = &row.cache->latent;
        tag t = context_tag(skipped + r, row.position);
        put(latent->codes + (size_t)latent_row(latent, row.position) * (size_t)form->bytes, row.position, t.token,
            t.ill, CODE);
    }
}

void cuda_store_scales(const cuda_launch *l, const cuda_context_source *source, const float *values, int kv_heads,
                       int head_dim, int head, float eps) {
    (void)l, (void)values, (void)head_dim, (void)eps;
    for (int r = 0; r < source->rows; r++) {
        cuda_context_row row = source->row[r];
        const cuda_latent_view *latent = &row.cache->latent;
        size_t at = (size_t)latent_row(latent, row.position) * (size_t)latent->heads;
        for (int h = 0; h < kv_heads; h++) latent->scales[at + (size_t)(head + h)] = (float)row.position;
    }
}
