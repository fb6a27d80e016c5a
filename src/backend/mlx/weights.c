/* Weights as arrays on the device: codes and bf16 as they are where there is a product for them, else float32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/groups.h"
#include "backend/mlx/mlx.h"
#include "backend/program/tower.h"
#include "backend/weight_values.h"
#include "model/synthetic_rows.h"

/* Matrices on their way to the device. */
typedef struct loading {
    backend_model *m;
    kakeya_status status;
    kakeya_error *error;
    uint64_t bytes, total_bytes;
} loading;

/* A matrix, and what its values are made of where it has none. */
typedef struct matrix_rows {
    const weight *w;
    uint64_t seed;
} matrix_rows;

/* The head is the first matrix, and the embedding's values are the head's where one matrix is both. */
enum { HEAD_SEED = 0, PLE_SEED = 1 << 30 };

static void load_matrix_row(const void *user, int row, float *to) {
    const matrix_rows *m = user;
    if (weight_present(m->w))
        weight_values(m->w, row, 0, m->w->in, to);
    else
        synthetic_row(m->w, m->seed, row, 0, to);
}

typedef struct vector_values {
    const float *x;
    int n;
} vector_values;

static void load_vector(const void *user, int row, float *to) {
    const vector_values *v = user;
    (void)row;
    memcpy(to, v->x, (size_t)v->n * sizeof *to);
}

static bool tell(loading *l) {
    const backend_model_options *o = &l->m->options;
    if (!o->progress || o->progress(o->user, "copying the weights", l->bytes, l->total_bytes)) return true;
    l->status = error_set(l->error, KAKEYA_CANCELLED, "copying the weights was cancelled");
    return false;
}

/* Counts first: what does not fit is refused before it is made. */
static bool count(loading *l, size_t bytes) {
    backend_model *m = l->m;
    if (l->status || !tell(l)) return false;
    mlx_array **grown = realloc(m->arrays, (size_t)(m->n_arrays + 1) * sizeof *grown);
    if (grown) m->arrays = grown;
    if (!grown || !mem_account_add(m->account, MEM_WEIGHTS, bytes)) {
        l->status = error_set(l->error, KAKEYA_OUT_OF_MEMORY, "out of memory: %zu bytes of weights (%zu more)",
                              m->weight_bytes, bytes);
        return false;
    }
    m->weight_bytes += bytes;
    l->bytes += bytes;
    return true;
}

/* What the device has made of what was counted. */
static const mlx_array *made(loading *l, int status, mlx_array *array, const mlx_failure *failure) {
    l->status = mlx_check(status, failure, l->error);
    if (array) l->m->arrays[l->m->n_arrays++] = array;
    return array;
}

static const mlx_array *create(loading *l, int n, int rows, int columns, mlx_row_fn row, const void *user) {
    mlx_failure failure;
    mlx_array *array = NULL;
    if (!count(l, (size_t)n * (size_t)(rows ? rows : 1) * (size_t)columns * sizeof(float))) return NULL;
    int status = mlx_array_create(l->m->device, n, rows, columns, row, user, &array, &failure);
    return made(l, status, array, &failure);
}

/* ------------------------------------------------------------------------------------------ quantised matrices */

/* MLX's own directories have none beside the scales; other tools' do, and libmlx would not see it. */
static bool has_no_factors(const weight *w) {
    for (int row = 0; row < w->out; row++) {
        float factor;
        memcpy(&factor, weight_row(w, 2, row), sizeof factor);
        if (factor != 1) return false;
    }
    return true;
}

/* Whether libmlx has a product for the codes of a matrix as they are. */
static bool has_codes(const weight *w, mlx_codes *out) {
    static const struct {
        weight_format format;
        mlx_code_form form;
        int bits;
    } known[] = {
        {WEIGHT_AFFINE_2, MLX_AFFINE, 2}, {WEIGHT_AFFINE_3, MLX_AFFINE, 3}, {WEIGHT_AFFINE_4, MLX_AFFINE, 4},
        {WEIGHT_AFFINE_5, MLX_AFFINE, 5}, {WEIGHT_AFFINE_6, MLX_AFFINE, 6}, {WEIGHT_AFFINE_8, MLX_AFFINE, 8},
        {WEIGHT_FP4_E8M0, MLX_MXFP4, 4},  {WEIGHT_FP8_E8M0, MLX_MXFP8, 8},  {WEIGHT_FP4_E4M3, MLX_NVFP4, 4},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (known[i].format != w->format) continue;
        if (known[i].form == MLX_NVFP4) {
            *out = (mlx_codes){MLX_NVFP4, 4, 16};
            return w->in % 16 == 0 && has_no_factors(w);
        }
        int group = known[i].form == MLX_AFFINE ? w->group : 32;
        *out = (mlx_codes){known[i].form, known[i].bits, group};
        return (group == 32 || group == 64 || group == 128) && w->in % group == 0;
    }
    return false;
}

/* A row as the device wants it: scales of 16 bits become float32, which every product would do anew. */
static void load_code_row(const void *user, int row, int stream, void *to) {
    const matrix_rows *m = user;
    const weight *w = m->w;
    size_t bytes = weight_row_bytes(w, stream);
    bool wide = stream > 0 && weight_format_find(w->format)->stream[stream].bytes == 2;
    /* Scales that are made lie in the second half of their float32, which are written from the first on. */
    char *made = (char *)to + (wide ? bytes : 0);
    if (!weight_present(w)) synthetic_row(w, m->seed, row, stream, made);
    const void *from = weight_present(w) ? weight_row(w, stream, row) : made;
    if (!wide) {
        if (from != to) memcpy(to, from, bytes);
        return;
    }
    for (size_t i = 0; i < bytes / 2; i++) ((float *)to)[i] = group_scale(w, from, i);
}

static const mlx_array *create_codes(loading *l, const matrix_rows *m, int n, mlx_codes codes) {
    const weight *w = m->w;
    mlx_failure failure;
    mlx_array *array = NULL;
    size_t groups = (size_t)w->out * (size_t)(w->in / codes.group),
           bytes = (size_t)w->out * (size_t)w->in / 8 * (size_t)codes.bits +
                   groups * (codes.form == MLX_AFFINE ? 2 * sizeof(float) : 1);
    if (!count(l, bytes)) return NULL;
    int status = mlx_array_create_codes(l->m->device, n, w->out / n, w->in, codes, load_code_row, m, &array, &failure);
    return made(l, status, array, &failure);
}

static const mlx_array *create_bf16(loading *l, const matrix_rows *m, int n) {
    const weight *w = m->w;
    mlx_failure failure;
    mlx_array *array = NULL;
    if (!count(l, (size_t)w->out * (size_t)w->in * sizeof(uint16_t))) return NULL;
    int status = mlx_array_create_bf16(l->m->device, n, w->out / n, w->in, load_code_row, m, &array, &failure);
    return made(l, status, array, &failure);
}

/* `n` matrices that lie one behind the other. */
static const mlx_array *stacked(loading *l, const weight *w, int n) {
    const matrix_rows rows = {w, HEAD_SEED + (uint64_t)l->m->n_arrays};
    bool made = !weight_present(w) && w->synthetic > 0;
    mlx_codes codes;
    if (w->out == 0 || l->status || (!made && !weight_present(w))) return NULL;
    if (has_codes(w, &codes) && (!made || synthetic_rows_can(w->format))) return create_codes(l, &rows, n, codes);
    if (w->format == WEIGHT_BF16) return create_bf16(l, &rows, n);
    if (made && w->format != WEIGHT_F32) {
        l->status = error_set(l->error, KAKEYA_UNSUPPORTED,
                              "backend mlx cannot make weights of type %s, only of affine4 and affine8",
                              weight_format_name(w->format));
        return NULL;
    }
    if (w->format != WEIGHT_F32) l->m->widened = w->format;
    return create(l, n, w->out / n, w->in, load_matrix_row, &rows);
}

static const mlx_array *matrix(loading *l, const weight *w) { return stacked(l, w, 1); }

static const mlx_array *vector(loading *l, const float *x, int n) {
    const vector_values v = {x, n};
    return x ? create(l, 1, 0, n, load_vector, &v) : NULL;
}

static void load_layer(loading *l, int index) {
    backend_model *m = l->m;
    const model_config *c = m->config;
    const layer_config *lc = &c->layer[index];
    const layer_weights *w = &m->weights->layer[index];
    const restoration_model *f = m->options.restoration;
    int hidden = c->hidden;
    bool own = lc->kv_source == index;
    mlx_layer *to = &m->form.layer[index];
    *to = (mlx_layer){.full = lc->type == LAYER_FULL,
                      .k_eq_v = lc->k_eq_v,
                      .head_dim = lc->head_dim,
                      .kv_heads = lc->kv_heads,
                      .source = lc->kv_source,
                      .scalar = w->layer_scalar};
    to->q_proj = matrix(l, &w->q_proj);
    to->k_proj = own ? matrix(l, &w->k_proj) : NULL;
    to->v_proj = own && !lc->k_eq_v ? matrix(l, &w->v_proj) : NULL;
    to->o_proj = matrix(l, &w->o_proj);
    to->q_norm = vector(l, w->q_norm, lc->head_dim);
    to->k_norm = own ? vector(l, w->k_norm, lc->head_dim) : NULL;
    to->gate_proj = matrix(l, &w->gate_proj);
    to->up_proj = matrix(l, &w->up_proj);
    to->down_proj = matrix(l, &w->down_proj);
    to->input_norm = vector(l, w->input_norm, hidden);
    to->post_attention_norm = vector(l, w->post_attention_norm, hidden);
    to->pre_ffn_norm = vector(l, w->pre_ffn_norm, hidden);
    to->post_ffn_norm = vector(l, w->post_ffn_norm, hidden);
    if (c->moe) {
        to->post_ffn_norm_1 = vector(l, w->post_ffn_norm_1, hidden);
        to->pre_ffn_norm_2 = vector(l, w->pre_ffn_norm_2, hidden);
        to->post_ffn_norm_2 = vector(l, w->post_ffn_norm_2, hidden);
        to->router_proj = matrix(l, &w->router_proj);
        to->router_scale = vector(l, w->router_scale, hidden);
        to->router_expert_scale = vector(l, w->router_expert_scale, c->experts);
        to->experts_gate_up = stacked(l, &w->experts_gate_up, c->experts);
        to->experts_gate = stacked(l, &w->experts_gate, c->experts);
        to->experts_up = stacked(l, &w->experts_up, c->experts);
        to->experts_down = stacked(l, &w->experts_down, c->experts);
    }
    if (c->ple_width) {
        to->ple_gate = matrix(l, &w->ple_gate);
        to->ple_proj = matrix(l, &w->ple_proj);
        to->post_ple_norm = vector(l, w->post_ple_norm, hidden);
    }
    if (f && own) {
        to->decoder_k = matrix(l, &f->decoder_k[index]);
        to->decoder_v = matrix(l, &f->decoder_v[index]);
    }
}

static void load_verifier(loading *l) {
    backend_model *m = l->m;
    const model_config *c = m->config;
    const model_weights *w = m->weights;
    m->form = (mlx_form){.layers = c->layers,
                         .hidden = c->hidden,
                         .heads = c->heads,
                         .vocab = c->vocab,
                         .experts_per_token = c->moe ? c->experts_per_token : 0,
                         .ple_width = c->ple_width,
                         .eps = c->rms_eps,
                         .softcap = c->logit_softcap};
    m->form.head = matrix(l, &w->head);
    m->form.final_norm = vector(l, w->final_norm, c->hidden);
    if (c->ple_width) {
        m->form.ple_model_proj = matrix(l, &w->ple_model_proj);
        m->form.ple_proj_norm = vector(l, w->ple_proj_norm, c->ple_width);
    }
    for (int i = 0; i < c->layers; i++) load_layer(l, i);
}

static void load_drafter(loading *l) {
    backend_model *m = l->m;
    const block_drafter_model *d = m->options.drafter;
    const block_drafter_config *c = &d->config;
    m->drafter = (mlx_drafter){.layers = c->layers,
                               .hidden = c->hidden,
                               .heads = c->heads,
                               .kv_heads = c->kv_heads,
                               .head_dim = c->head_dim,
                               .eps = c->rms_eps};
    m->drafter.fc = matrix(l, &d->fc);
    m->drafter.hidden_norm = vector(l, d->hidden_norm, c->hidden);
    m->drafter.norm = vector(l, d->norm, c->hidden);
    for (int i = 0; i < c->layers; i++) {
        const block_drafter_layer_weights *w = &d->layer[i];
        m->drafter.layer[i] = (mlx_draft_layer){
            .input_norm = vector(l, w->input_norm, c->hidden),
            .post_attention_norm = vector(l, w->post_attention_norm, c->hidden),
            .q_norm = vector(l, w->q_norm, c->head_dim),
            .k_norm = vector(l, w->k_norm, c->head_dim),
            .q_proj = matrix(l, &w->q_proj),
            .k_proj = matrix(l, &w->k_proj),
            .v_proj = matrix(l, &w->v_proj),
            .o_proj = matrix(l, &w->o_proj),
            .gate_proj = matrix(l, &w->gate_proj),
            .up_proj = matrix(l, &w->up_proj),
            .down_proj = matrix(l, &w->down_proj),
        };
    }
}

/* What is added to logits, so that these tokens are never chosen. */
static const mlx_array *bias(loading *l, const int *tokens, int n) {
    int vocab = l->m->config->vocab;
    float *values = n && !l->status ? calloc((size_t)vocab, sizeof *values) : NULL;
    if (!values) return NULL;
    for (int i = 0; i < n; i++) {
        if (tokens[i] >= 0 && tokens[i] < vocab) values[tokens[i]] = -INFINITY;
    }
    const mlx_array *array = vector(l, values, vocab);
    free(values);
    return array;
}

static uint64_t float_bytes(const weight *w) { return (uint64_t)w->out * (uint64_t)w->in * sizeof(float); }

/* About what there is to copy, for progress. */
static uint64_t total_bytes(const backend_model *m) {
    uint64_t total = float_bytes(&m->weights->head) + float_bytes(&m->weights->ple_model_proj);
    for (int i = 0; i < m->config->layers; i++) {
        const layer_weights *w = &m->weights->layer[i];
        const weight *parts[] = {&w->q_proj,       &w->k_proj,     &w->v_proj,      &w->o_proj,
                                 &w->gate_proj,    &w->up_proj,    &w->down_proj,   &w->experts_gate_up,
                                 &w->experts_gate, &w->experts_up, &w->experts_down};
        for (size_t p = 0; p < sizeof parts / sizeof parts[0]; p++) total += float_bytes(parts[p]);
    }
    return total;
}

/* --------------------------------------------------------------------------------------------------------- RoPE */

typedef struct rope_rows {
    const rope_source *source;
    int pairs;
    bool sine;
} rope_rows;

/* As the CPU backend's tables are made. */
static void load_rope_row(const void *user, int position, float *to) {
    const rope_rows *r = user;
    for (int j = 0; j < r->pairs; j++) {
        float exponent = (float)(2 * j) / (float)r->source->head_dim;
        float angle = (float)position * (1.0f / powf(r->source->theta, exponent) / r->source->factor);
        to[j] = r->sine ? sinf(angle) : cosf(angle);
    }
}

void mlx_rope_row(const backend_model *m, layer_type type, int position, bool sine, float *to) {
    const rope_rows rows = {&m->rope[type], m->form.rope[type].pairs, sine};
    load_rope_row(&rows, position, to);
}

static size_t table_bytes(const rope_source *s, int positions) {
    return 2 * (size_t)positions * (size_t)s->table->pairs * sizeof(float);
}

static kakeya_status grow_table(backend_model *m, rope_source *s, int positions, kakeya_error *error) {
    int grown = (positions + MLX_ROPE_GROWTH - 1) / MLX_ROPE_GROWTH * MLX_ROPE_GROWTH;
    mlx_array *made[2] = {NULL, NULL};
    mlx_failure failure;
    if (!mem_account_add(m->account, MEM_WORKSPACE, table_bytes(s, grown)))
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for RoPE tables of %d positions", grown);
    int status = MLX_DEVICE_OK;
    for (int i = 0; i < 2 && !status; i++) {
        rope_rows rows = {s, s->table->pairs, i == 1};
        status = mlx_array_create(m->device, 1, grown, rows.pairs, load_rope_row, &rows, &made[i], &failure);
    }
    if (status) {
        for (int i = 0; i < 2; i++) mlx_array_free(made[i]);
        mem_account_remove(m->account, MEM_WORKSPACE, table_bytes(s, grown));
        return mlx_check(status, &failure, error);
    }
    mlx_array_free(s->cosine);
    mlx_array_free(s->sine);
    mem_account_remove(m->account, MEM_WORKSPACE, table_bytes(s, s->positions));
    s->table->cosine = s->cosine = made[0];
    s->table->sine = s->sine = made[1];
    s->positions = grown;
    return KAKEYA_OK;
}

kakeya_status mlx_rope_reserve(backend_model *m, int positions, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < 3 && !status; i++) {
        rope_source *s = &m->rope[i];
        if (s->theta > 0 && s->table->pairs && positions > s->positions) status = grow_table(m, s, positions, error);
    }
    return status;
}

static void describe_ropes(backend_model *m) {
    for (int i = 0; i < m->config->layers; i++) {
        layer_type type = m->config->layer[i].type;
        const rope_config *r = &m->config->rope[type];
        m->form.rope[type].pairs = r->rotated_pairs;
        m->rope[type] = (rope_source){
            .theta = r->theta,
            .factor = r->factor,
            .head_dim = m->config->layer[i].head_dim,
            .table = &m->form.rope[type],
        };
    }
    if (!m->options.drafter) return;
    const block_drafter_config *d = &m->options.drafter->config;
    m->drafter.rope.pairs = d->head_dim / 2;
    m->rope[2] = (rope_source){.theta = d->rope_theta, .factor = 1, .head_dim = d->head_dim, .table = &m->drafter.rope};
}

/* ---------------------------------------------------------------------------------------------------- creation */

/* Where a row that is looked up is made, of weights that have no data. */
static kakeya_status create_made_row(backend_model *m, kakeya_error *error) {
    const weight *looked_up[] = {&m->weights->embed, &m->weights->ple_embed};
    size_t most = 0;
    for (size_t i = 0; i < sizeof looked_up / sizeof *looked_up; i++) {
        const weight *w = looked_up[i];
        size_t bytes = 0;
        if (weight_present(w) || !w->out) continue;
        for (int s = 0; s < weight_format_find(w->format)->streams; s++) bytes += weight_row_bytes(w, s);
        if (bytes > most) most = bytes;
    }
    if (!most) return KAKEYA_OK;
    m->made_row = mem_alloc(m->account, MEM_WORKSPACE, most);
    return m->made_row ? KAKEYA_OK : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a row of weights");
}

kakeya_status mlx_weights_create(backend_model *m, kakeya_error *error) {
    loading l = {.m = m, .error = error, .total_bytes = total_bytes(m)};
    const restoration_model *f = m->options.restoration;
    l.status = create_made_row(m, error);
    load_verifier(&l);
    if (m->options.drafter) {
        load_drafter(&l);
        m->never_drafted = bias(&l, &m->options.drafter->config.mask_token, 1);
    }
    m->suppress = bias(&l, m->config->suppress_tokens, m->config->n_suppress_tokens);
    if (f) {
        m->encoders = (mlx_encoders){.rank_k = f->config.rank_k, .rank_v = f->config.rank_v};
        m->encoders.k = matrix(&l, &f->encoder_k);
        m->encoders.v = f->config.shared_latent ? NULL : matrix(&l, &f->encoder_v);
    }
    describe_ropes(m);
    return l.status;
}

/* ------------------------------------------------------------------------------------------------------- pictures */

typedef struct tower_loading {
    loading l;
    const vision_model *vision;
    mlx_tower_weight *weight;
} tower_loading;

/* Rows of the table of places are looked up: they lie there as numbers. */
static const mlx_array *places(loading *l, const weight *w) {
    const matrix_rows rows = {w, 0};
    if (w->format == WEIGHT_BF16) return create_bf16(l, &rows, 1);
    return create(l, 1, w->out, w->in, load_matrix_row, &rows);
}

static kakeya_status load_tower_slot(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)error; /* which `loading` has, too */
    tower_loading *t = context;
    const vision_weights *of = &t->vision->weights[slot->layer + 1];
    const vision_bounds *b = &of->bounds[slot->role];
    const weight *w = &of->matrix[slot->role];
    const mlx_array *array = !slot->matrix                 ? vector(&t->l, of->vector[slot->role], (int)slot->rows)
                             : slot->role == VISION_PLACES ? places(&t->l, w)
                                                           : matrix(&t->l, w);
    t->weight[tower_slot(slot->layer, slot->role)] =
        (mlx_tower_weight){array, b->input_min, b->input_max, b->output_min, b->output_max};
    return t->l.status;
}

static bool no_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user, (void)what, (void)done, (void)total;
    return true;
}

kakeya_status mlx_excluding(backend_model *m, const int32_t *token, const mlx_array **out, kakeya_error *error) {
    *out = m->suppress;
    if (!token || *token < 0 || *token >= m->config->vocab) return KAKEYA_OK;
    if (!m->excluding || m->excluded != *token) {
        int all[MODEL_MAX_SUPPRESS_TOKENS + 1], n = m->config->n_suppress_tokens;
        const kakeya_progress_fn progress = m->options.progress;
        loading l = {.m = m, .error = error};
        for (int i = 0; i < n; i++) all[i] = m->config->suppress_tokens[i];
        all[n] = *token;
        m->options.progress = no_progress;
        const mlx_array *array = bias(&l, all, n + 1);
        m->options.progress = progress;
        if (l.status) return l.status;
        if (!array) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a row of biases");
        m->excluding = array;
        m->excluded = *token;
    }
    *out = m->excluding;
    return KAKEYA_OK;
}

kakeya_status mlx_tower_load(backend_model *m, const vision_model *v, mlx_tower_weight *slots, mlx_rope *rope,
                             kakeya_error *error) {
    tower_loading t = {.l = {.m = m, .error = error}, .vision = v, .weight = slots};
    const kakeya_progress_fn progress = m->options.progress;
    const rope_source half = {.theta = v->rope_theta, .factor = 1, .head_dim = v->head_dim / 2};
    const size_t bytes = m->weight_bytes;
    const int arrays = m->n_arrays;
    m->options.progress = no_progress;
    (void)vision_model_walk(v, load_tower_slot, &t, error);
    rope->pairs = v->tower ? v->head_dim / 4 : 0;
    for (int sine = 0; sine < 2 && rope->pairs; sine++) {
        const rope_rows rows = {&half, rope->pairs, sine};
        *(sine ? &rope->sine : &rope->cosine) = create(&t.l, 1, v->positions, rope->pairs, load_rope_row, &rows);
    }
    m->options.progress = progress;
    if (!t.l.status) return KAKEYA_OK;
    while (m->n_arrays > arrays) mlx_array_free(m->arrays[--m->n_arrays]);
    mem_account_remove(m->account, MEM_WEIGHTS, m->weight_bytes - bytes);
    m->weight_bytes = bytes;
    return t.l.status;
}

void mlx_weights_destroy(backend_model *m) {
    for (int i = 0; i < m->n_arrays; i++) mlx_array_free(m->arrays[i]);
    free(m->arrays);
    mem_free(m->made_row);
    mem_account_remove(m->account, MEM_WEIGHTS, m->weight_bytes);
    for (int i = 0; i < 3; i++) {
        rope_source *s = &m->rope[i];
        if (!s->positions) continue;
        mlx_array_free(s->cosine);
        mlx_array_free(s->sine);
        mem_account_remove(m->account, MEM_WORKSPACE, table_bytes(s, s->positions));
    }
}

/* A row that is looked up on the host. */
static void look_up(const backend_model *m, const weight *w, uint64_t seed, int row, float *to) {
    if (weight_present(w)) {
        weight_values(w, row, 0, w->in, to);
        return;
    }
    const void *streams[WEIGHT_STREAMS] = {NULL};
    char *at = m->made_row;
    for (int i = 0; i < weight_format_find(w->format)->streams; i++) {
        synthetic_row(w, seed, row, i, at);
        streams[i] = at;
        at += weight_row_bytes(w, i);
    }
    weight_row_values(w, streams, 0, w->in, to);
}

void mlx_embed(const backend_model *m, int32_t token, float scale, float *to) {
    look_up(m, &m->weights->embed, HEAD_SEED, token, to);
    for (int i = 0; i < m->config->hidden; i++) to[i] *= scale;
}

void mlx_ple_row(const backend_model *m, int32_t token, float *to) {
    look_up(m, &m->weights->ple_embed, PLE_SEED, token, to);
}
