#include "backend/cpu/distil.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/backward.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/restoration_trainer.h"
#include "backend/cpu/train_products.h"
#include "backend/cpu/train_taps.h"

/* -------------------------------------------------------------------------------------------------------- memory */

static bool compares_raw(restoration_loss loss) {
    return loss == RESTORATION_LOSS_MSE || loss == RESTORATION_LOSS_COS_MAG || loss == RESTORATION_LOSS_COMBINED ||
           loss == RESTORATION_LOSS_ATTN_DISTIL_HYBRID;
}

static bool compares_attention(restoration_loss loss) {
    return loss == RESTORATION_LOSS_ATTN_DISTIL || loss == RESTORATION_LOSS_ATTN_DISTIL_HYBRID;
}

static size_t most(size_t a, size_t b) { return a > b ? a : b; }

/* The widest of what layers and the restoration have. */
typedef struct distil_widths {
    size_t q, kv, d, dense, restored, inputs, rank, rows, longest;
} distil_widths;

static distil_widths widths_of(const backend_restoration_trainer *s) {
    const model_config *c = s->m->config;
    distil_widths w = {.inputs = (size_t)restoration_encoder_in(&s->f),
                       .rank = (size_t)s->f.rank,
                       .rows = (size_t)s->o.rows,
                       .dense = (size_t)c->ple_width};
    for (int i = 0; i < c->layers; i++) {
        w.q = most(w.q, distil_q_dim(s, i));
        w.kv = most(w.kv, distil_kv_dim(s, i));
        w.d = most(w.d, (size_t)c->layer[i].head_dim);
        w.dense = most(w.dense, (size_t)c->layer[i].intermediate);
    }
    w.longest = most(most(w.q, w.dense), most((size_t)c->hidden, (size_t)c->expert_intermediate));
    return w;
}

/* Positions that a layer may have restored. */
static size_t restored_rows(const backend_restoration_trainer *s, int layer) {
    size_t seen = (size_t)(s->m->config->sliding_window + s->o.rows), all = (size_t)s->o.sequence;
    return s->m->config->layer[layer].type == LAYER_SLIDING && seen < all ? seen : all;
}

static size_t packed_floats(const backend_restoration_trainer *s, size_t rows, size_t k) {
    return train_packed_floats(s->m, rows, k);
}

/* The input of the largest product. */
static size_t packed_most(const backend_restoration_trainer *s, const distil_widths *w) {
    const model_config *c = s->m->config;
    size_t all = (size_t)s->o.sequence, slots = w->rows * (size_t)(c->moe ? c->experts_per_token : 0);
    size_t n = packed_floats(s, w->rows, (size_t)c->vocab);
    n = most(n, packed_floats(s, w->rows, most(w->longest, most(w->kv, 2 * w->dense))));
    n = most(n, packed_floats(s, slots, most((size_t)c->hidden, 2 * (size_t)c->expert_intermediate)));
    n = most(n, packed_floats(s, w->rows, (size_t)(c->moe ? c->experts : 0)));
    n = most(n, packed_floats(s, all, most(w->inputs, most(w->rank, w->kv))));
    n = most(n, packed_floats(s, most(w->kv, w->rank), all));
    if (restoration_needs_drafter(&s->f)) {
        const block_drafter_config *d = &s->m->options.drafter->config;
        n = most(n, packed_floats(s, all, most((size_t)(d->targets * c->hidden), (size_t)d->hidden)));
    }
    return n;
}

static int *take_ints(train_arena *a, size_t n) { return (int *)(void *)train_take(a, n); }

static void lay_out_teacher(backend_restoration_trainer *s, train_arena *a) {
    const model_config *c = s->m->config;
    size_t all = (size_t)s->o.sequence, hidden = (size_t)c->hidden, inputs = (size_t)restoration_encoder_in(&s->f);
    for (int i = 0; i < c->layers; i++) {
        distil_layer *l = &s->layer[i];
        size_t kv = all * distil_kv_dim(s, i);
        l->native_h = train_take(a, all * hidden);
        l->native_added = train_take(a, all * hidden);
        if (compares_attention(s->o.loss)) {
            l->native_q = train_take(a, all * distil_q_dim(s, i));
            l->native_out = train_take(a, all * hidden);
        }
        for (int half = 0; half < 2 && c->layer[i].kv_source == i; half++) {
            l->native[half] = train_take(a, kv);
            if (compares_raw(s->o.loss)) l->native_raw[half] = train_take(a, kv);
        }
    }
    s->tokens = take_ints(a, all);
    s->inputs[0] = s->inputs[1] = train_take(a, all * inputs);
    if (restoration_needs_drafter(&s->f)) {
        const block_drafter_config *d = &s->m->options.drafter->config;
        s->inputs[1] = train_take(a, all * inputs);
        s->aux = train_take(a, all * (size_t)(d->targets * c->hidden));
        s->context = train_take(a, all * (size_t)d->hidden);
    }
}

static void lay_out_tape(backend_restoration_trainer *s, train_arena *a, const distil_widths *w) {
    const model_config *c = s->m->config;
    distil_tape *t = &s->tape;
    size_t n = w->rows, h = n * (size_t)c->hidden;
    float **hidden[] = {&t->x, &t->out, &t->added, &t->h1, &t->x2, &t->dense, &t->both, &t->h2, &t->ple_out};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) *hidden[i] = train_take(a, h);
    float **query[] = {&t->q_raw, &t->q, &t->o, &s->d_q, &s->d_o};
    for (size_t i = 0; i < sizeof query / sizeof *query; i++) *query[i] = train_take(a, n * w->q);
    t->gate_up = train_take(a, 2 * n * w->dense);
    t->act = train_take(a, n * w->dense);
    s->d_gate_up = train_take(a, 2 * n * w->dense);
    s->d_act = train_take(a, n * w->dense);
    t->ple_gate = train_take(a, n * (size_t)c->ple_width);
    t->ple_act = train_take(a, n * (size_t)c->ple_width);
    s->ple = train_take(a, n * (size_t)c->layers * (size_t)c->ple_width);
    float **gradient[] = {&s->embedded, &s->last, &s->final_x, &s->d_h, &s->d_both, &s->d_branch, &s->d_x};
    for (size_t i = 0; i < sizeof gradient / sizeof *gradient; i++) *gradient[i] = train_take(a, h);
    s->sink = train_take(a, n * most((size_t)c->hidden, (size_t)c->ple_width));
    s->d_kv = train_take(a, 2 * n * w->kv);
    if (!c->moe) return;
    size_t slots = n * (size_t)c->experts_per_token, width = (size_t)c->expert_intermediate;
    t->expert_x = train_take(a, h);
    t->router_x = train_take(a, h);
    t->mixed = train_take(a, h);
    t->router_z = train_take(a, n * (size_t)c->experts);
    s->d_router_z = train_take(a, n * (size_t)c->experts);
    t->share = train_take(a, slots);
    t->chosen = take_ints(a, slots);
    t->slot_of = take_ints(a, slots);
    t->row_of = take_ints(a, slots);
    t->begin = take_ints(a, (size_t)c->experts + 1);
    float **slot[] = {&t->slot_x, &t->slot_out, &s->d_slot, &s->d_slot_x};
    for (size_t i = 0; i < sizeof slot / sizeof *slot; i++) *slot[i] = train_take(a, slots * (size_t)c->hidden);
    t->slot_gate_up = train_take(a, 2 * slots * width);
    s->d_slot_gate_up = train_take(a, 2 * slots * width);
    t->slot_act = train_take(a, slots * width);
    s->d_slot_act = train_take(a, slots * width);
}

static void lay_out_segment(backend_restoration_trainer *s, train_arena *a, const distil_widths *w) {
    const model_config *c = s->m->config;
    size_t all = (size_t)s->o.sequence, n = w->rows, heads = (size_t)c->heads;
    for (int i = 0; i < c->layers; i++) {
        distil_layer *l = &s->layer[i];
        size_t kv = distil_kv_dim(s, i), rows = restored_rows(s, i);
        l->input = i ? train_take(a, n * (size_t)c->hidden) : NULL;
        for (int half = 0; half < 2 && c->layer[i].kv_source == i; half++) {
            float **restored[] = {&l->raw[half], &l->seen[half], &l->d_seen[half]},
                  **own[] = {&l->own_raw[half], &l->own[half], &l->d_own[half]};
            for (int k = 0; k < 3; k++) {
                *restored[k] = train_take(a, rows * kv);
                *own[k] = train_take(a, n * kv);
            }
        }
    }
    s->position = take_ints(a, all);
    s->gathered = train_take(a, all * most(w->inputs, w->kv));
    for (int half = 0; half < 2; half++) {
        if (!s->layout.encoder_there[half]) continue;
        s->latent[half] = train_take(a, all * (size_t)distil_rank(s, half));
        s->d_latent[half] = train_take(a, all * (size_t)distil_rank(s, half));
    }
    s->code = (unsigned char *)(void *)train_take(a, all * 2 * w->rank);
    size_t columns = all + (size_t)(s->o.sink + s->o.window) + n;
    s->column = (distil_column *)(void *)train_take(a, columns * sizeof *s->column / sizeof(float));
    float **gathered[] = {&s->keys, &s->values, &s->keys_t, &s->values_t};
    size_t kv_values = 0;
    for (int i = 0; i < c->layers; i++) kv_values = most(kv_values, distil_kv_dim(s, i));
    for (int i = 0; i < 4; i++) *gathered[i] = train_take(a, columns * kv_values);
    s->shares = train_take(a, heads * n * columns);
    s->d_shares = train_take(a, heads * n * columns);
    s->d_key = train_take(a, w->q * columns);
    s->d_value = train_take(a, w->q * columns);
    s->logits[0] = train_take(a, n * (size_t)c->vocab);
    s->logits[1] = train_take(a, n * (size_t)c->vocab);
    size_t turned = all * (most(w->inputs, w->kv) + w->rank),
           product = most(most(w->rank * w->inputs, w->kv * w->rank),
                          most(all * w->rank, most(n * most((size_t)c->hidden, w->kv), w->longest)));
    s->turned = train_take(a, turned);
    s->product = train_take(a, product);
    s->packed = train_take(a, packed_most(s, w));
    size_t packed = most(packed_floats(s, n, most(columns, w->d)), packed_floats(s, columns, n));
    for (int i = 0; i < s->m->threads; i++) {
        s->thread[i] = train_take(a, (columns + w->d) * n);
        s->thread_packed[i] = train_take(a, packed);
    }
}

static void lay_out(backend_restoration_trainer *s, train_arena *a) {
    distil_widths w = widths_of(s);
    distil_weights_lay_out(s, a);
    s->decoders_t = train_take(a, s->layout.n);
    lay_out_teacher(s, a);
    lay_out_tape(s, a, &w);
    lay_out_segment(s, a, &w);
    s->layer[0].input = s->embedded;
}

static void prepare(backend_restoration_trainer *s, backend_model *m, const restoration_trainer_options *o) {
    memset(s, 0, sizeof *s);
    s->m = m;
    s->o = *o;
    s->f = *o->restoration;
    s->o.restoration = &s->f;
    s->layout = restoration_layout_of(&s->f, m->config);
}

size_t cpu_restoration_trainer_bytes(backend_model *m, const restoration_trainer_options *options) {
    backend_restoration_trainer *s = mem_alloc(m->account, MEM_WORKSPACE, sizeof *s);
    train_arena arena = {0};
    if (!s) return 0;
    prepare(s, m, options);
    lay_out(s, &arena);
    mem_free(s);
    return arena.floats * sizeof(float) + sizeof *s;
}

kakeya_status cpu_restoration_trainer_create(backend_model *m, const restoration_trainer_options *o,
                                             backend_restoration_trainer **out, kakeya_error *error) {
    *out = NULL;
    if (o->rows > DISTIL_MAX_ROWS || (m->config->moe && m->config->experts_per_token > DISTIL_MAX_CHOSEN))
        return error_set(error, KAKEYA_UNSUPPORTED, "distillation supports at most %d rows and %d experts per row",
                         DISTIL_MAX_ROWS, DISTIL_MAX_CHOSEN);
    if (m->input != INPUT_EXACT)
        return error_set(error, KAKEYA_UNSUPPORTED, "distillation computes in float32: use --precision f32");
    backend_restoration_trainer *s = mem_alloc(m->account, MEM_WORKSPACE, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    prepare(s, m, o);
    train_arena arena = {0};
    lay_out(s, &arena);
    size_t bytes = arena.floats * sizeof(float);
    s->memory = mem_alloc(m->account, MEM_WORKSPACE, bytes);
    if (!s->memory) {
        mem_free(s);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: distillation needs %zu bytes", bytes);
    }
    memset(s->memory, 0, bytes);
    arena = (train_arena){.base = s->memory};
    lay_out(s, &arena);
    distil_weights_fill(s);
    *out = s;
    return KAKEYA_OK;
}

void cpu_restoration_trainer_destroy(backend_restoration_trainer *s) {
    if (!s) return;
    mem_free(s->memory);
    mem_free(s);
}

void cpu_restoration_trainer_weights(backend_restoration_trainer *s, const float *weights) {
    s->weights = weights;
    for (int i = 0; i < s->m->config->layers; i++) {
        for (int half = 0; half < 2 && s->layout.decoder_there[i]; half++) {
            size_t at = s->layout.decoder[half][i], rank = (size_t)distil_rank(s, half);
            distil_turn(weights + at, rank, (int)distil_kv_dim(s, i), (int)rank, s->decoders_t + at);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------- teacher */

/* K and V as attention sees them. */
static void see_native(backend_restoration_trainer *s, const train_layer *t, int row) {
    const backend_model *m = s->m;
    const layer_config *c = &m->config->layer[t->layer];
    distil_layer *l = &s->layer[t->layer];
    size_t kv = distil_kv_dim(s, t->layer), from = (size_t)row * kv, to = (size_t)(t->position + row) * kv,
           angle = (size_t)(t->position + row) * (size_t)t->pairs;
    for (size_t h = 0; h < kv; h += (size_t)c->head_dim) {
        m->kernels->rms_norm(t->raw_k + from + h, m->weights->layer[t->layer].k_norm, c->head_dim, m->config->rms_eps,
                             l->native[0] + to + h);
        m->kernels->rope(l->native[0] + to + h, t->half, t->pairs, t->cosine + angle, t->sine + angle);
        norm_values(m, t->raw_v + from + h, c->head_dim, l->native[1] + to + h);
    }
    if (!l->native_raw[0]) return;
    memcpy(l->native_raw[0] + to, t->raw_k + from, kv * sizeof(float));
    memcpy(l->native_raw[1] + to, t->raw_v + from, kv * sizeof(float));
}

static void take_row(backend_restoration_trainer *s, void *context, int row) {
    const train_layer *t = context;
    const backend_model *m = s->m;
    const model_config *c = m->config;
    const restoration_config *f = &s->f;
    const block_drafter_config *d = s->aux ? &m->options.drafter->config : NULL;
    distil_layer *l = &s->layer[t->layer];
    size_t hidden = (size_t)c->hidden, q_dim = distil_q_dim(s, t->layer), from = (size_t)row * hidden,
           position = (size_t)(t->position + row), to = position * hidden;
    if (t->raw_k) see_native(s, t, row);
    memcpy(l->native_h + to, t->h + from, hidden * sizeof(float));
    m->kernels->rms_norm(t->out + from, m->weights->layer[t->layer].post_attention_norm, c->hidden, c->rms_eps,
                         l->native_added + to);
    if (l->native_q) {
        memcpy(l->native_q + position * q_dim, t->q + (size_t)row * q_dim, q_dim * sizeof(float));
        memcpy(l->native_out + to, t->out + from, hidden * sizeof(float));
    }
    for (int tap = 0; tap < (d ? d->targets : f->aux_layers); tap++) {
        if ((d ? d->target_layer[tap] : f->aux_layer[tap]) != t->layer) continue;
        size_t at = (size_t)tap * hidden;
        if (d)
            memcpy(s->aux + position * (size_t)d->targets * hidden + at, t->h + from, hidden * sizeof(float));
        else
            m->kernels->rms_norm(t->h + from, NULL, c->hidden, c->rms_eps,
                                 s->inputs[0] + position * (size_t)restoration_encoder_in(f) + at);
    }
}

static void tap(void *user, const train_layer *layer) {
    distil_rows(user, layer->rows, take_row, (void *)(uintptr_t)layer);
}

static void norm_context(backend_restoration_trainer *s, void *context, int row) {
    (void)context;
    const block_drafter_model *drafter = s->m->options.drafter;
    float *x = s->context + (size_t)row * (size_t)drafter->config.hidden;
    s->m->kernels->rms_norm(x, drafter->hidden_norm, drafter->config.hidden, drafter->config.rms_eps, x);
}

/* What a drafter keeps of each position: raw K and V of its context, all layers. */
static void read_drafter(backend_restoration_trainer *s) {
    const block_drafter_model *drafter = s->m->options.drafter;
    const block_drafter_config *d = &drafter->config;
    size_t width = (size_t)d->targets * (size_t)s->m->config->hidden, hidden = (size_t)d->hidden,
           kv = (size_t)(d->kv_heads * d->head_dim), all = (size_t)d->layers * kv;
    distil_product(s, s->aux, width, s->length, &drafter->fc, s->context, hidden);
    distil_rows(s, s->length, norm_context, NULL);
    for (int i = 0; i < d->layers; i++) {
        distil_product(s, s->context, hidden, s->length, &drafter->layer[i].k_proj, s->inputs[0] + (size_t)i * kv, all);
        distil_product(s, s->context, hidden, s->length, &drafter->layer[i].v_proj, s->inputs[1] + (size_t)i * kv, all);
    }
}

kakeya_status cpu_restoration_trainer_teach(backend_restoration_trainer *s, backend_cache *cache, const int32_t *tokens,
                                            int n, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    s->length = n;
    memcpy(s->tokens, tokens, (size_t)n * sizeof *tokens);
    for (int at = 0, rows; at < n && !status; at += rows) {
        rows = n - at < s->m->max_rows ? n - at : s->m->max_rows;
        status = tapped_forward(s->m, cache, tokens + at, rows, tap, s, error);
    }
    if (!status && s->aux) read_drafter(s);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- segment */

static int later(int a, int b) { return a > b ? a : b; }

/* Restored positions: those that some row does not see as they are. `forced`: all that any row sees. */
static void choose_positions(backend_restoration_trainer *s, bool forced) {
    const model_config *c = s->m->config;
    int first = s->segment.first, behind = forced ? 0 : s->o.sink, evicting = s->segment.prompt ? 0 : s->o.rows,
        end = forced ? first + s->o.rows : first + evicting - s->o.window,
        slides = later(behind, first - c->sliding_window + 1);
    s->n_positions = 0;
    for (int p = s->segment.all_layers ? behind : slides; p < end; p++) s->position[s->n_positions++] = p;
    for (int i = 0; i < c->layers; i++) {
        distil_layer *l = &s->layer[i];
        bool full = c->layer[i].type == LAYER_FULL;
        l->restored = !full || s->segment.all_layers;
        l->first = full || !s->segment.all_layers ? 0 : slides - behind;
        if (l->first > s->n_positions) l->first = s->n_positions;
        l->rows = l->restored ? s->n_positions - l->first : 0;
    }
}

/* As many positions as the segment has rows, evenly over the sequence. */
static void spread_positions(backend_restoration_trainer *s) {
    int step = s->length / s->o.rows, offset = step > 0 ? s->segment.first % step : 0;
    for (int i = 0; i < s->o.rows; i++) s->position[i] = step > 0 ? i * step + offset : i % s->length;
    s->n_positions = s->o.rows;
    for (int i = 0; i < s->m->config->layers; i++) {
        s->layer[i].restored = true;
        s->layer[i].first = 0;
        s->layer[i].rows = s->o.rows;
    }
}

static void clear_own(backend_restoration_trainer *s, int layer) {
    size_t bytes = (size_t)s->o.rows * distil_kv_dim(s, layer) * sizeof(float);
    for (int half = 0; half < 2; half++) memset(s->layer[layer].d_own[half], 0, bytes);
}

static float *output_of(const backend_restoration_trainer *s, int layer) {
    return layer + 1 < s->m->config->layers ? s->layer[layer + 1].input : s->last;
}

static void distil(backend_restoration_trainer *s, float *gradient, restoration_trainer_result *r) {
    const model_config *c = s->m->config;
    float scale = s->segment.scale, layers = (float)c->layers;
    distil_embed(s);
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].kv_source == i) {
            clear_own(s, i);
            distil_decode(s, i);
            r->kv += distil_share_kv(s, i, scale * s->o.kv / layers) / c->layers;
        }
        distil_layer_forward(s, i, output_of(s, i));
        r->hidden += distil_share(s, output_of(s, i), s->layer[i].native_h, 0, s->sink) / c->layers;
        r->attention += distil_share(s, s->tape.added, s->layer[i].native_added, 0, s->sink) / c->layers;
    }
    r->kl = distil_head(s, s->last, gradient ? scale : 0);
    r->loss = (double)s->o.kl * r->kl + (double)s->o.hidden * r->hidden + (double)s->o.attention * r->attention +
              (double)s->o.kv * r->kv;
    for (int i = c->layers - 1; i >= 0 && gradient; i--) {
        distil_share(s, output_of(s, i), s->layer[i].native_h, scale * s->o.hidden / layers, s->d_h);
        distil_layer_back(s, i);
        if (c->layer[i].kv_source == i) distil_decode_back(s, i, gradient);
    }
}

/* What each layer's attention gives by itself, with the teacher's queries and nothing but restored K/V. */
static double compare_attention(backend_restoration_trainer *s, int layer) {
    const model_config *c = s->m->config;
    distil_layer *l = &s->layer[layer];
    size_t hidden = (size_t)c->hidden, q_dim = distil_q_dim(s, layer), n = (size_t)s->o.rows,
           first = (size_t)s->segment.first;
    double counts = 1 / ((double)n * (double)hidden * distil_counted(s));
    memcpy(s->tape.q, l->native_q + first * q_dim, n * q_dim * sizeof(float));
    distil_attend(s, layer, true);
    distil_product(s, s->tape.o, q_dim, s->o.rows, &s->m->weights->layer[layer].o_proj, s->tape.out, hidden);
    memset(s->d_branch, 0, n * hidden * sizeof(float));
    double lost = counts * backward_square(s->tape.out, l->native_out + first * hidden, n * hidden,
                                           (float)((double)s->segment.scale * counts), s->d_branch);
    distil_product(s, s->d_branch, hidden, s->o.rows, &l->o_t, s->d_o, q_dim);
    distil_attend_back(s, layer);
    return lost;
}

static void regress(backend_restoration_trainer *s, float *gradient, restoration_trainer_result *r) {
    const model_config *c = s->m->config;
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].kv_source != i || !s->layer[i].restored) continue;
        distil_decode(s, i);
        r->loss += distil_directions(s, i, s->segment.scale);
    }
    for (int i = 0; i < c->layers && compares_attention(s->o.loss); i++) {
        if (s->layer[i].restored) r->loss += compare_attention(s, i);
    }
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].kv_source == i && s->layer[i].restored) r->loss += distil_decode_back(s, i, gradient);
    }
}

void cpu_restoration_trainer_learn(backend_restoration_trainer *s, const restoration_trainer_segment *segment,
                                   float *gradient, restoration_trainer_result *out) {
    *out = (restoration_trainer_result){0};
    s->segment = *segment;
    if (s->o.loss == RESTORATION_LOSS_DISTIL || compares_attention(s->o.loss))
        choose_positions(s, s->o.loss != RESTORATION_LOSS_DISTIL);
    else
        spread_positions(s);
    distil_encode(s);
    if (s->o.loss == RESTORATION_LOSS_DISTIL)
        distil(s, gradient, out);
    else
        regress(s, gradient, out);
    if (gradient) distil_encode_back(s, gradient);
}
