#include <math.h>
#include <stdlib.h>

#include "backend/cuda/distil.h"
#include "backend/cuda/weight_rows.h"
#include "backend/weight_values.h"

void *distil_take(distil_arena *a, size_t bytes) {
    enum { ALIGN = 256 };
    void *at = a->base ? a->base + a->bytes : NULL;
    a->bytes += (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

/* Whether products read the engine's matrix, of `out` rows at a time, as it lies. */
static bool is_exact(const cuda_matrix *m, const weight *first, const weight *second, int out) {
    const weight_source source = {.first = first, .second = second};
    return m->form == CUDA_FORM_BF16 && out % 8 == 0 && m->in % 8 == 0 &&
           !weight_source_rounds(&source, CUDA_FORM_BF16);
}

/* What a copy is for. */
typedef enum copy_use { COPY_EXACT, COPY_ROWS, COPY_PRODUCTS } copy_use;

static distil_matrix take_where(backend_restoration_trainer *s, distil_arena *a, const cuda_matrix *m, bool exact,
                                bool present, copy_use use) {
    distil_matrix w = {.out = m->out, .in = m->in, .ld = (size_t)cuda_padded(m->in)};
    if (exact) {
        w.bits = m->data;
        w.ld = (size_t)m->ld;
        return w;
    }
    if (!present) s->lacks = true;
    if (use == COPY_EXACT || !s->o.terms || m->out % 8 || m->in % 8)
        return distil_copy_of(distil_take(a, (size_t)m->out * (size_t)m->in * sizeof(float)), m->out, m->in);
    w.bits = w.copy = distil_take(a, (size_t)m->out * w.ld * sizeof *w.copy);
    if (use == COPY_PRODUCTS) w.turned = distil_take(a, split_turned_values(m->out, m->in) * sizeof *w.turned);
    return w;
}

static distil_matrix take_for(backend_restoration_trainer *s, distil_arena *a, const weight *w, const cuda_matrix *m,
                              copy_use use) {
    if (!w->out) return (distil_matrix){0};
    return take_where(s, a, m, is_exact(m, w, NULL, w->out), weight_present(w), use);
}

static distil_matrix take(backend_restoration_trainer *s, distil_arena *a, const weight *w, const cuda_matrix *m) {
    return take_for(s, a, w, m, COPY_PRODUCTS);
}

/* Experts of `out` rows each, in one matrix or in two. */
static distil_matrix take_experts(backend_restoration_trainer *s, distil_arena *a, const weight *w,
                                  const weight *second, const cuda_matrix *m, int out) {
    bool exact = is_exact(m, w, second, out) && s->m->config->experts <= SPLIT_GROUPS;
    return take_where(s, a, m, exact, weight_present(w), COPY_EXACT);
}

static float *take_vector(distil_arena *a, const float *x, int n) {
    return x ? distil_take(a, (size_t)n * sizeof *x) : NULL;
}

/* A vector of a layer: where the model has it, and where the student does. */
typedef struct layer_vector {
    const float *from;
    float **to;
    int n;
} layer_vector;

enum { LAYER_VECTORS = 11 };

static void vectors_of(backend_restoration_trainer *s, int layer, layer_vector out[LAYER_VECTORS]) {
    const model_config *c = s->m->config;
    const layer_weights *w = &s->m->options.verifier->weights.layer[layer];
    distil_layer *l = &s->layer[layer];
    const layer_vector all[LAYER_VECTORS] = {{w->q_norm, &l->q_norm, c->layer[layer].head_dim},
                                             {w->k_norm, &l->k_norm, c->layer[layer].head_dim},
                                             {w->input_norm, &l->input_norm, c->hidden},
                                             {w->post_attention_norm, &l->post_attention_norm, c->hidden},
                                             {w->pre_ffn_norm, &l->pre_ffn_norm, c->hidden},
                                             {w->post_ffn_norm, &l->post_ffn_norm, c->hidden},
                                             {w->post_ffn_norm_1, &l->post_ffn_norm_1, c->hidden},
                                             {w->pre_ffn_norm_2, &l->pre_ffn_norm_2, c->hidden},
                                             {w->post_ffn_norm_2, &l->post_ffn_norm_2, c->hidden},
                                             {w->post_ple_norm, &l->post_ple_norm, c->hidden},
                                             {w->router_expert_scale, &l->router_expert_scale, c->experts}};
    for (int i = 0; i < LAYER_VECTORS; i++) out[i] = all[i];
}

void train_weights_lay_out(backend_restoration_trainer *s, distil_arena *a) {
    const model_config *c = s->m->config;
    const model_weights *w = &s->m->options.verifier->weights;
    const cuda_weights *there = &s->m->weights;
    s->embed = take_for(s, a, &w->embed, &there->embed, c->tied_head ? COPY_PRODUCTS : COPY_ROWS);
    s->head = c->tied_head ? s->embed : take(s, a, &w->head, &there->head);
    s->ple_embed = take_for(s, a, &w->ple_embed, &there->ple_embed, COPY_ROWS);
    s->ple_model_proj = take(s, a, &w->ple_model_proj, &there->ple_model_proj);
    s->final_norm = take_vector(a, w->final_norm, c->hidden);
    s->ple_proj_norm = take_vector(a, w->ple_proj_norm, c->ple_width);
    for (int i = 0; i < c->layers; i++) {
        const layer_weights *from = &w->layer[i];
        const cuda_layer *engine = &there->layer[i];
        distil_layer *l = &s->layer[i];
        l->q = take(s, a, &from->q_proj, &engine->q);
        l->k = take(s, a, &from->k_proj, &engine->k);
        l->v = take(s, a, &from->v_proj, &engine->v);
        l->o = take(s, a, &from->o_proj, &engine->o);
        l->gate = take(s, a, &from->gate_proj, &engine->gate);
        l->up = take(s, a, &from->up_proj, &engine->up);
        l->down = take(s, a, &from->down_proj, &engine->down);
        l->ple_gate = take(s, a, &from->ple_gate, &engine->ple_gate);
        l->ple_proj = take(s, a, &from->ple_proj, &engine->ple_proj);
        layer_vector vector[LAYER_VECTORS];
        vectors_of(s, i, vector);
        for (int v = 0; v < LAYER_VECTORS; v++) *vector[v].to = take_vector(a, vector[v].from, vector[v].n);
        if (!c->moe) continue;
        const weight *up = from->experts_gate.out ? &from->experts_up : NULL;
        l->router = take(s, a, &from->router_proj, &engine->router);
        l->router_norm = distil_take(a, (size_t)c->hidden * sizeof(float));
        l->experts_gate_up = take_experts(s, a, up ? &from->experts_gate : &from->experts_gate_up, up,
                                          &engine->experts_gate_up, 2 * c->expert_intermediate);
        l->experts_down = take_experts(s, a, &from->experts_down, NULL, &engine->experts_down, c->hidden);
    }
    if (!restoration_needs_drafter(&s->f)) return;
    const block_drafter_model *d = s->m->options.drafter;
    s->fc = take(s, a, &d->fc, &there->fc);
    s->hidden_norm = take_vector(a, d->hidden_norm, d->config.hidden);
    for (int i = 0; i < d->config.layers; i++) {
        s->draft_k[i] = take(s, a, &d->layer[i].k_proj, &there->draft[i].k);
        s->draft_v[i] = take(s, a, &d->layer[i].v_proj, &there->draft[i].v);
    }
}

static size_t turned(size_t most, distil_matrix w, int times) {
    size_t values = w.bits && !w.turned ? (size_t)times * split_turned_values(w.out / times, w.in) : 0;
    return values > most ? values : most;
}

size_t train_turned_values(const backend_restoration_trainer *s) {
    size_t most = turned(0, s->head, 1);
    for (int i = 0; i < s->m->config->layers; i++) {
        const distil_layer *l = &s->layer[i];
        const distil_matrix plain[] = {l->q,  l->k,    l->v,      l->o,        l->gate,
                                       l->up, l->down, l->router, l->ple_gate, l->ple_proj};
        for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) most = turned(most, plain[k], 1);
        int experts = s->m->config->moe ? s->m->config->experts : 1;
        most = turned(turned(most, l->experts_gate_up, experts), l->experts_down, experts);
    }
    return most;
}

/* Rows on their way to the device. */
typedef struct upload {
    const backend_restoration_trainer *s;
    float *rows;
    size_t most;
    kakeya_status status;
    kakeya_error *error;
} upload;

enum { UPLOAD_FLOATS = 1 << 22 };

static void send(upload *u, float *to, const float *from, size_t n) {
    if (u->status) return;
    u->status = cuda_check(cudaMemcpyAsync(to, from, n * sizeof *to, cudaMemcpyHostToDevice, u->s->launch.stream),
                           "copying weights for distillation", u->error);
    if (!u->status) u->status = cuda_finish(&u->s->m->device, "copying weights for distillation", u->error);
}

/* Rows [first, first + n) of w. */
static void fill_rows(upload *u, const weight *w, int first, int n, float *to) {
    size_t in = (size_t)w->in;
    int each = (int)(u->most / in > 0 ? u->most / in : 1);
    for (int done = 0, rows; done < n && !u->status; done += rows) {
        rows = n - done < each ? n - done : each;
        for (int r = 0; r < rows; r++) weight_values(w, first + done + r, 0, w->in, u->rows + (size_t)r * in);
        send(u, to + (size_t)done * in, u->rows, (size_t)rows * in);
    }
}

/* The rows on the device round them. */
static void fill_copy(upload *u, const weight *w, distil_matrix to) {
    const backend_restoration_trainer *s = u->s;
    int each = (int)(u->most / (size_t)w->in > 0 ? u->most / (size_t)w->in : 1);
    for (int done = 0, rows; done < w->out && !u->status; done += rows) {
        rows = w->out - done < each ? w->out - done : each;
        fill_rows(u, w, done, rows, s->partial);
        cuda_split_rows(&s->launch, s->partial, (size_t)w->in, rows, w->in, 1, to.copy + (size_t)done * to.ld, to.ld);
    }
    if (to.turned)
        cuda_split_turn(&s->launch, to.bits, to.ld, w->out, w->in, 1, to.turned, (size_t)cuda_padded(w->out));
}

static void fill(upload *u, const weight *w, distil_matrix to) {
    if (to.data) fill_rows(u, w, 0, w->out, to.data);
    if (to.copy) fill_copy(u, w, to);
}

static void fill_experts(upload *u, const backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    const layer_weights *w = &s->m->options.verifier->weights.layer[layer];
    const distil_layer *l = &s->layer[layer];
    int width = c->expert_intermediate;
    size_t half = (size_t)width * (size_t)c->hidden;
    fill(u, &w->router_proj, l->router);
    fill(u, &w->experts_down, l->experts_down);
    if (weight_present(&w->experts_gate_up)) fill(u, &w->experts_gate_up, l->experts_gate_up);
    for (int e = 0; e < c->experts && weight_present(&w->experts_gate) && l->experts_gate_up.data; e++) {
        fill_rows(u, &w->experts_gate, e * width, width, l->experts_gate_up.data + 2 * (size_t)e * half);
        fill_rows(u, &w->experts_up, e * width, width, l->experts_gate_up.data + (2 * (size_t)e + 1) * half);
    }
    float root = 1.0f / sqrtf((float)c->hidden);
    for (int i = 0; i < c->hidden; i++) u->rows[i] = w->router_scale[i] * root;
    send(u, l->router_norm, u->rows, (size_t)c->hidden);
}

/* inverse frequency j = theta^(-2j / head_dim) / factor, as cpu/rope.c has it */
static void fill_turns(upload *u, const backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    layer_type type = c->layer[layer].type;
    const rope_config *rope = &c->rope[type];
    int pairs = rope->rotated_pairs, each = (int)u->most / (pairs > 0 ? pairs : 1);
    for (int which = 0; which < 2; which++) {
        float *to = which ? s->sine[type] : s->cosine[type];
        for (int done = 0, n; done < s->o.sequence && pairs; done += n) {
            n = s->o.sequence - done < each ? s->o.sequence - done : each;
            for (int i = 0; i < n * pairs; i++) {
                float exponent = (float)(2 * (i % pairs)) / (float)c->layer[layer].head_dim;
                float angle = (float)(done + i / pairs) * (1.0f / powf(rope->theta, exponent) / rope->factor);
                u->rows[i] = which ? sinf(angle) : cosf(angle);
            }
            send(u, to + (size_t)done * (size_t)pairs, u->rows, (size_t)n * (size_t)pairs);
        }
    }
}

kakeya_status train_weights_fill(backend_restoration_trainer *s, kakeya_error *error) {
    const model_config *c = s->m->config;
    const model_weights *w = &s->m->options.verifier->weights;
    upload u = {.s = s, .most = UPLOAD_FLOATS, .error = error};
    u.rows = malloc(u.most * sizeof *u.rows);
    if (!u.rows) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    bool turned[2] = {false, false};
    fill(&u, &w->embed, s->embed);
    if (!c->tied_head) fill(&u, &w->head, s->head);
    fill(&u, &w->ple_embed, s->ple_embed);
    fill(&u, &w->ple_model_proj, s->ple_model_proj);
    send(&u, s->final_norm, w->final_norm, (size_t)c->hidden);
    if (s->ple_proj_norm) send(&u, s->ple_proj_norm, w->ple_proj_norm, (size_t)c->ple_width);
    for (int i = 0; i < c->layers; i++) {
        const layer_weights *from = &w->layer[i];
        const distil_layer *l = &s->layer[i];
        fill(&u, &from->q_proj, l->q);
        fill(&u, &from->k_proj, l->k);
        fill(&u, &from->v_proj, l->v);
        fill(&u, &from->o_proj, l->o);
        fill(&u, &from->gate_proj, l->gate);
        fill(&u, &from->up_proj, l->up);
        fill(&u, &from->down_proj, l->down);
        fill(&u, &from->ple_gate, l->ple_gate);
        fill(&u, &from->ple_proj, l->ple_proj);
        layer_vector vector[LAYER_VECTORS];
        vectors_of(s, i, vector);
        for (int v = 0; v < LAYER_VECTORS; v++) {
            if (vector[v].from) send(&u, *vector[v].to, vector[v].from, (size_t)vector[v].n);
        }
        if (c->moe) fill_experts(&u, s, i);
        if (!turned[c->layer[i].type]) fill_turns(&u, s, i);
        turned[c->layer[i].type] = true;
    }
    if (restoration_needs_drafter(&s->f)) {
        const block_drafter_model *d = s->m->options.drafter;
        fill(&u, &d->fc, s->fc);
        send(&u, s->hidden_norm, d->hidden_norm, (size_t)d->config.hidden);
        for (int i = 0; i < d->config.layers; i++) {
            fill(&u, &d->layer[i].k_proj, s->draft_k[i]);
            fill(&u, &d->layer[i].v_proj, s->draft_v[i]);
        }
    }
    free(u.rows);
    return u.status;
}

/* Multiplications from which on tensor cores are worth the parts. */
static const double least_split = 1 << 28;

void train_exactly(backend_restoration_trainer *s, bool exactly) {
    s->split.terms = s->o.terms && !exactly ? s->o.terms : SPLIT_MOST_TERMS;
    s->split.parts = s->o.terms == 1 && !exactly ? 1 : SPLIT_PARTS;
}

void train_multiply(backend_restoration_trainer *s, train_form form, const train_product *p) {
    if (!split_product(&s->launch, &s->split, form, p, least_split)) cuda_train_product(&s->launch, form, p);
}

static split_matrix bits_of(distil_matrix w) { return (split_matrix){w.bits, w.out, w.in, w.ld, w.turned}; }

void train_forward(backend_restoration_trainer *s, const float *x, size_t ldx, int rows, distil_matrix w, float *y,
                   size_t ldy) {
    if (w.bits) {
        split_forward(&s->launch, &s->split, x, ldx, rows, bits_of(w), y, ldy);
        return;
    }
    const train_product p = {
        .a = x, .lda = ldx, .b = w.data, .ldb = (size_t)w.in, .c = y, .ldc = ldy, .m = rows, .n = w.out, .k = w.in};
    train_multiply(s, TRAIN_NT, &p);
}

void train_back(backend_restoration_trainer *s, const float *d_y, size_t ldy, int rows, distil_matrix w, float *d_x,
                bool add) {
    if (w.bits) {
        split_back(&s->launch, &s->split, d_y, ldy, rows, bits_of(w), d_x, (size_t)w.in, add);
        return;
    }
    const train_product p = {.a = d_y,
                             .lda = ldy,
                             .b = w.data,
                             .ldb = (size_t)w.in,
                             .c = d_x,
                             .ldc = (size_t)w.in,
                             .m = rows,
                             .n = w.in,
                             .k = w.out,
                             .add = add};
    train_multiply(s, TRAIN_NN, &p);
}

void train_outer(backend_restoration_trainer *s, const float *b, int nb, const float *a, int na, int rows, float *sum) {
    const train_product p = {.a = b,
                             .lda = (size_t)nb,
                             .b = a,
                             .ldb = (size_t)na,
                             .c = sum,
                             .ldc = (size_t)na,
                             .m = nb,
                             .n = na,
                             .k = rows,
                             .add = 1,
                             .partial = s->partial,
                             .partial_floats = s->partial_floats};
    if (rows > 0 && !split_outer(&s->launch, &s->split, &p, least_split)) train_multiply(s, TRAIN_TN, &p);
}
