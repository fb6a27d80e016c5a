/* Formulas as in the CPU backend's draft.c. */
#include "backend/cuda/context.h"

#include "backend/cuda/matrix.h"
#include "backend/cuda/restoration.h"

_Static_assert((int)CUDA_CONTEXT_ROWS >= (int)KV_BACKLOG, "the rows of one cache enter together");

/* Products of any number of rows that share their input [rows][ldx]. Prompt rows take the prompt kernels. */
static cudaError_t products(const backend_model *m, const matrix_product *list, int n, const cuda_bf16 *x, int ldx,
                            int rows, bool prompt) {
    if (!prompt) {
        matrix_products(&m->launch, list, n, x, ldx, rows, 0);
        return cudaSuccess; /* launch failures are found when the stream is finished */
    }
    return matrix_prompt_products(&m->launch, &m->rounding, list, n, x, (size_t)ldx, rows);
}

/* Rows on their way into the context and into latents. Products of any of them share a launch. */
typedef struct context_pass {
    backend_model *model;
    bool prompt;
    cuda_context_source context; /* rows that enter the drafter's context */
    cuda_context_source latent;  /* rows that have latents; made of the drafter's K/V: those behind first_latent */
    int first_latent;            /* counted in `context` */
    cuda_taps taps;              /* of latents from aux hidden states */
    int latent_heads[MODEL_MAX_LAYERS]; /* timeline_layer.latent_head */
} context_pass;

/* What the pass has to know of a cache with latents: like the others in what they restore. */
static void take_latents(context_pass *p, const backend_cache *c) {
    for (int i = 0; i < p->model->config->layers; i++) p->latent_heads[i] = c->t.layer[i].latent_head;
    if (!c->t.latents_from_aux) return;
    p->taps.n = c->t.models.restoration->aux_layers;
    for (int i = 0; i < p->taps.n; i++) p->taps.at[cuda_aux_form(c)][i] = (uint8_t)c->t.restoration_tap[i];
}

/* e = encoder * raw context K (V) */
static cudaError_t encode_context(const context_pass *p) {
    backend_model *m = p->model;
    const restoration_config *f = &m->options.restoration->config;
    size_t all = (size_t)m->options.restoration->encoder_in, ld = (size_t)m->weights.encoder_k.ld,
           first = (size_t)p->first_latent;
    cudaError_t status = cudaSuccess;
    for (int half = 0; half < 2 && status == cudaSuccess; half++) {
        const cuda_matrix *encoder = half ? &m->weights.encoder_v : &m->weights.encoder_k;
        cuda_bf16 *in = m->space.latent_in + (size_t)half * (size_t)m->max_rows * ld;
        cuda_round_rows(&m->launch, m->space.d_raw + first * 2 * all + (size_t)half * all, 2 * (int)all, in,
                        encoder->ld, (int)all, p->latent.rows);
        matrix_product e = {
            .w = encoder, .y = m->space.latents + (half ? (size_t)f->rank_k : 0), .ldy = f->rank_k + f->rank_v};
        status = products(m, &e, 1, in, encoder->ld, p->latent.rows, p->prompt);
    }
    return status;
}

/* e = encoder * [rms(aux_1) ... rms(aux_n)]; one encoder where the latent is shared. */
static cudaError_t encode_aux(const context_pass *p) {
    backend_model *m = p->model;
    const cuda_weights *w = &m->weights;
    cuda_latent_row row = cuda_restoration_latents(m);
    cuda_norm_aux(&m->launch, &p->latent, &p->taps, m->config->hidden, m->config->rms_eps, m->space.latent_in,
                  w->encoder_k.ld);
    matrix_product e[2] = {{.w = &w->encoder_k, .y = m->space.latents, .ldy = row.width},
                           {.w = &w->encoder_v, .y = m->space.latents + row.first_v, .ldy = row.width}};
    return products(m, e, row.first_v ? 2 : 1, m->space.latent_in, w->encoder_k.ld, p->latent.rows, p->prompt);
}

/* Encoded latents are stored; and for every restored layer and head the scalar of v_norm, computed from the stored
 * (rounded) latent that attention will read; 1 where values pass no norm. */
static cudaError_t store_latents(const context_pass *p) {
    backend_model *m = p->model;
    cuda_latent_row row = cuda_restoration_latents(m);
    cudaError_t status = cudaSuccess;
    cuda_store_latents(&m->launch, &p->latent, m->space.latents, &row, m->space.latent_half,
                       m->weights.decoder_v[0].ld);
    for (int layer = 0; layer < m->config->layers && status == cudaSuccess; layer++) {
        int head = p->latent_heads[layer];
        if (head < 0) continue;
        const layer_config *lc = &m->config->layer[layer];
        const cuda_matrix *decoder = &m->weights.decoder_v[layer];
        const float *decoded = m->config->raw_values ? NULL : m->space.latent_values;
        matrix_product values = {.w = decoder, .y = m->space.latent_values, .ldy = decoder->out};
        if (decoded) status = products(m, &values, 1, m->space.latent_half, decoder->ld, p->latent.rows, p->prompt);
        if (status != cudaSuccess) break;
        cuda_store_scales(&m->launch, &p->latent, decoded, lc->kv_heads, lc->head_dim, head, m->config->rms_eps);
    }
    return status;
}

static cudaError_t extend_latents_of_aux(const context_pass *p) {
    cudaError_t status = encode_aux(p);
    return status == cudaSuccess ? store_latents(p) : status;
}

static cudaError_t extend_latents_of_context(const context_pass *p) {
    cudaError_t status = encode_context(p);
    return status == cudaSuccess ? store_latents(p) : status;
}

/* The drafter's context, and latents that are made of it. */
static cudaError_t extend_context(const context_pass *p) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    const cuda_weights *w = &m->weights;
    const block_drafter_config *d = &m->options.drafter->config;
    int rows = p->context.rows, kv = d->kv_heads * d->head_dim, all = d->layers * kv;
    cuda_round_aux(&m->launch, &p->context, d->targets * m->config->hidden, s->d_aux, w->fc.ld);
    matrix_product fc = {.w = &w->fc, .y = s->d_x, .ldy = d->hidden};
    cudaError_t status = products(m, &fc, 1, s->d_aux, w->fc.ld, rows, p->prompt);
    cuda_norm_rows(&m->launch, s->d_x, d->hidden, w->hidden_norm, d->rms_eps, s->d_in, w->draft[0].k.ld, d->hidden,
                   rows);
    matrix_product raw[2 * BLOCK_DRAFTER_MAX_LAYERS];
    for (int l = 0; l < d->layers; l++) {
        float *k = s->d_raw + (size_t)(l * kv);
        raw[2 * l] = (matrix_product){.w = &w->draft[l].k, .y = k, .ldy = 2 * all};
        raw[2 * l + 1] = (matrix_product){.w = &w->draft[l].v, .y = k + all, .ldy = 2 * all};
    }
    if (status == cudaSuccess) status = products(m, raw, 2 * d->layers, s->d_in, w->draft[0].k.ld, rows, p->prompt);
    if (status == cudaSuccess && p->latent.rows && !p->taps.n) status = extend_latents_of_context(p);
    if (status != cudaSuccess) return status;
    cuda_context_rows context = {
        .raw = s->d_raw,
        .inverse_frequency = w->draft_inverse_frequency,
        .layers = d->layers,
        .kv_heads = d->kv_heads,
        .head_dim = d->head_dim,
        .eps = d->rms_eps,
        .source = p->context,
    };
    for (int l = 0; l < d->layers; l++) context.k_norm[l] = w->draft[l].k_norm;
    cuda_store_context(&m->launch, &context);
    return cudaSuccess;
}

static kakeya_status extend(const context_pass *p, kakeya_error *error) {
    cudaError_t status = cudaSuccess;
    if (p->latent.rows && p->taps.n) status = extend_latents_of_aux(p);
    if (status == cudaSuccess && p->context.rows) status = extend_context(p);
    return cuda_check(status, "extending the drafter's context and latents", error);
}

/* -------------------------------------------------------------------------------------------------- rows of caches */

/* Rows of a cache that follow its drafter's context and latents, and their aux hidden states, one behind the other. */
typedef struct context_entry {
    const backend_cache *cache;
    const float *aux;
    position_range rows;
} context_entry;

/* The order of rows in the list, whoever they belong to: those that enter the context alone, those that have latents,
 * too, those that have latents alone. So the rows of the context and the rows of latents are neighbours each. */
typedef enum section { CONTEXT_ALONE = 0, CONTEXT_AND_LATENT, LATENT_ALONE, SECTIONS } section;

typedef struct row_list {
    cuda_context_row *row;
    int n, end[SECTIONS];
} row_list;

/* The last rows of an entry are needed, of each kind so many as are kept. */
static void list_section(const context_entry *e, section s, row_list *list) {
    const timeline *t = &e->cache->t;
    int n = e->rows.end - e->rows.begin, latents = timeline_latent_rows(t, n),
        context = t->options.keep_draft_context ? timeline_context_rows(t, n) : 0,
        both = context < latents ? context : latents;
    int begin = n - both, end = n;
    if (s != CONTEXT_AND_LATENT) {
        end = begin;
        begin = n - (s == CONTEXT_ALONE ? context : latents);
    }
    size_t width = timeline_aux_row_bytes(t) / sizeof(float);
    for (int i = begin; i < end; i++)
        list->row[list->n++] = (cuda_context_row){.cache = e->cache->view.data,
                                                  .aux = e->aux + (size_t)i * width,
                                                  .position = e->rows.begin + i,
                                                  .aux_form = cuda_aux_form(e->cache),
                                                  .behind = n - 1 - i};
}

/* Entries that are alike in their latents. `first`: the place of their list. */
static kakeya_status extend_entries(backend_model *m, const context_entry *entries, int n, bool prompt, int first,
                                    kakeya_error *error) {
    context_pass p = {.model = m, .prompt = prompt};
    cuda_context_row *rows = m->space.context_rows + first;
    row_list list = {.row = m->space.staged_context + first};
    for (section s = CONTEXT_ALONE; s < SECTIONS; s++) {
        for (int i = 0; i < n; i++) list_section(&entries[i], s, &list);
        list.end[s] = list.n;
    }
    for (int i = 0; i < n; i++) {
        if (entries[i].cache->t.latents != STORE_NONE) take_latents(&p, entries[i].cache);
    }
    p.first_latent = list.end[CONTEXT_ALONE];
    p.context = (cuda_context_source){.row = rows, .rows = list.end[CONTEXT_AND_LATENT]};
    p.latent = (cuda_context_source){.row = rows + p.first_latent, .rows = list.n - p.first_latent};
    kakeya_status status = cuda_check(
        cudaMemcpyAsync(rows, list.row, (size_t)list.n * sizeof *rows, cudaMemcpyHostToDevice, m->device.stream),
        "listing rows of the context", error);
    return status ? status : extend(&p, error);
}

kakeya_status cuda_context_extend_prompts(backend_cache *const *caches, const int *rows, int n, const float *aux,
                                          kakeya_error *error) {
    context_entry entries[BACKEND_MAX_PROMPTS];
    for (int i = 0; i < n; i++) {
        int from = caches[i]->t.length;
        entries[i] = (context_entry){.cache = caches[i], .aux = aux, .rows = {from, from + rows[i]}};
        aux += (size_t)rows[i] * (timeline_aux_row_bytes(&caches[i]->t) / sizeof(float));
    }
    return extend_entries(caches[0]->model, entries, n, true, CUDA_CONTEXT_ROWS, error);
}

/* Which layers have latents, and where, is the same for all caches that restore the same layers; others have a turn of
 * their own. */
static bool same_latents(const timeline *a, const timeline *b) {
    return a->options.restore_layers == b->options.restore_layers;
}

/* The next caches that go together, and no others. */
static int choose_caches(backend_cache *const *caches, const position_range *rows, int n, bool *taken,
                         context_entry *entries) {
    const backend_model *m = caches[0]->model;
    int most = m->max_rows < CUDA_CONTEXT_ROWS ? m->max_rows : CUDA_CONTEXT_ROWS, chosen = 0, listed = 0;
    const timeline *with_latents = NULL;
    for (int i = 0; i < n; i++) {
        const timeline *t = &caches[i]->t;
        bool latents = t->latents != STORE_NONE;
        if (taken[i] || range_is_empty(rows[i]) || listed + rows[i].end - rows[i].begin > most) continue;
        if (latents && with_latents && !same_latents(t, with_latents)) continue;
        if (latents) with_latents = t;
        taken[i] = true;
        listed += rows[i].end - rows[i].begin;
        entries[chosen++] = (context_entry){.cache = caches[i], .aux = caches[i]->backlog.data, .rows = rows[i]};
    }
    return chosen;
}

kakeya_status cuda_context_extend(backend_cache *const *caches, const position_range *rows, int n,
                                  kakeya_error *error) {
    bool taken[BACKEND_MAX_FORWARD] = {false};
    context_entry entries[BACKEND_MAX_FORWARD];
    backend_model *m = caches[0]->model;
    kakeya_status status = KAKEYA_OK;
    for (bool first = true; !status; first = false) {
        int chosen = choose_caches(caches, rows, n, taken, entries);
        if (!chosen) break;
        if (!first) status = cuda_finish(&m->device, "extending the drafter's context", error); /* the list is read */
        if (!status) status = extend_entries(m, entries, chosen, false, 0, error);
    }
    return status;
}
