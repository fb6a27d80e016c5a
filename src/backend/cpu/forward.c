/* The verifier's list of operations (backend/program/program.h) over the rows of all segments. Matrix products run over
 * all rows at once, attention takes its work from one list over the segments; only what goes into K/V stores goes
 * segment by segment. Everything that can fail (memory, token ids, room in a context) is checked before the first cache
 * changes. */
#include "backend/cpu/forward.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/cpu/attention.h"
#include "backend/cpu/bounded.h"
#include "backend/cpu/cache.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/head.h"
#include "backend/cpu/restored_keys.h"
#include "backend/cpu/rope.h"
#include "backend/cpu/row_program.h"
#include "backend/cpu/taps.h"
#include "backend/cpu/workspace.h"
#include "backend/measure.h"
#include "backend/segments.h"
#include "base/float16.h"

typedef struct forward_step {
    backend_model *model;
    attention_segment segments[BACKEND_MAX_FORWARD];
    timeline_step steps[BACKEND_MAX_FORWARD];
    backend_segment *requests;
    int n_segments;
    int rows;
    int positions[CPU_MAX_ROWS];      /* per row */
    int32_t tokens[CPU_MAX_ROWS];     /* the same */
    const float *given[CPU_MAX_ROWS]; /* the same: what stands in the place of the token's embedding; NULL: nothing */
    const program_op *op;             /* in work */
    atomic_bool burst;                /* a new K or V is not a finite number; once so, a row stays so */
    bool in_parts;                    /* a layer's experts were more than are in memory at once: all is done */
    bool few;                         /* few of them were read, and their second products are still to be made */
    expert_list late;                 /* these */
    kakeya_status status;             /* experts could not be read; what rows have from then on means nothing */
    kakeya_error *error;
} forward_step;

/* ------------------------------------------------------------------------------------- embedding and products */

static void embed_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    const weight *e = program_matrix(m->weights, f->op->slot[0]);
    /* rounded to the weights' type as the reference does when it computes in bf16 */
    float scale = m->input == INPUT_BF16 ? bf16_to_f32(f32_to_bf16(f->op->scale)) : f->op->scale;
    size_t hidden = (size_t)m->config->hidden;
    for (size_t row = begin; row < end; row++) {
        float *h = m->h + row * hidden;
        if (f->given[row]) {
            memcpy(h, f->given[row], hidden * sizeof *h);
            continue;
        }
        load_row(m, e, f->tokens[row], 0, (int)hidden, h);
        m->kernels->scale(scale, (int)hidden, h);
    }
}

static void run_embed(forward_step *f, const program_op *o) {
    (void)o;
    rows_run(f->model, f->rows, f->model->config->hidden, embed_rows, f);
}

/* Packs the input of an OP_PRODUCTS, and says what is to be multiplied. */
static int product_jobs(forward_step *f, const program_op *o, matrix_job *jobs) {
    backend_model *m = f->model;
    const weight *w[PROGRAM_MATRICES];
    packing_set packings = 0;
    int n = 0;
    for (; n < PROGRAM_MATRICES && o->slot[n]; n++) {
        w[n] = program_matrix(m->weights, o->slot[n]);
        packings |= o->exact ? packing_exact(m, w[n]) : packing_of(m, w[n]);
    }
    bool act = o->in[0] == DATA_ACT, gated = o->epilogue == EPILOGUE_GATED;
    packed_rows *packed = act ? &m->packed_act : &m->packed;
    pack(m, packed, cpu_item(m, (program_item)o->in[0]), (size_t)w[0]->in * (act ? 2 : 1), f->rows, w[0]->in, packings);
    for (int i = 0; i < n; i++) {
        size_t out = (size_t)w[i]->out;
        float *y = cpu_item(m, (program_item)o->out[gated ? 0 : i]) + (gated ? (size_t)i * out : 0);
        jobs[i] = matrix_product(packed, f->rows, w[i], y, gated ? 2 * out : out);
        jobs[i].exact_input = o->exact;
    }
    return n;
}

static void finish_products(forward_step *f, const program_op *o) {
    if (o->epilogue == EPILOGUE_GATED)
        activate(f->model, cpu_item(f->model, (program_item)o->out[0]), f->rows,
                 program_matrix(f->model->weights, o->slot[0])->out);
}

static void run_products(forward_step *f, const program_op *o) {
    matrix_job *jobs = f->model->jobs;
    matrix_run(f->model, jobs, product_jobs(f, o, jobs));
    finish_products(f, o);
}

/* A batch of products ends with that of its last piece: the dense ones come first, as they are cut into the larger
 * pieces, and the small ones at the end leave no thread waiting long. */
static void run_gate_up(forward_step *f, const program_op *dense, const program_op *experts, expert_list list) {
    backend_model *m = f->model;
    matrix_job *jobs = m->jobs;
    int n = dense ? product_jobs(f, dense, jobs) : 0;
    n += experts_gate_up(m, experts, list, (weight *)(void *)(m->jobs + m->max_jobs), jobs + n);
    matrix_run(m, jobs, n);
    if (dense) finish_products(f, dense);
    experts_activate(m, list);
}

static void run_down(forward_step *f, const program_op *dense, int layer, expert_list list) {
    backend_model *m = f->model;
    matrix_job *jobs = m->jobs;
    int n = dense ? product_jobs(f, dense, jobs) : 0;
    n += experts_down(m, layer, list, (weight *)(void *)(m->jobs + m->max_jobs), jobs + n);
    matrix_run(m, jobs, n);
    if (dense) finish_products(f, dense);
}

/* With so many rows for each expert a prompt's next layer chooses nearly all. */
enum { ROWS_FOR_ALL = 4 };

/* For few rows, where a layer reads few experts. Experts that are in memory go through both products meanwhile, the
 * others through the first one while their second matrix is read. Then the disk reads what the next layer will miss. */
static void run_few(forward_step *f, const program_op *dense, const program_op *experts, expert_list list, int there) {
    backend_model *m = f->model;
    const int layer = experts->layer;
    const expert_list known = {list.expert, there};
    f->few = true;
    f->late = (expert_list){list.expert + there, list.n - there};
    bounded_begin(m, layer, list.expert, list.n);
    if (there || dense) run_gate_up(f, dense, experts, known);
    if (there) run_down(f, NULL, layer, known);
    const bool looks = layer + 1 < m->config->layers && bounded_looks_ahead(m);
    const int likely = looks ? experts_likely(m, layer + 1, f->rows) : -1;
    f->status = bounded_wait_gate_up(m, f->error);
    if (f->status) return;
    if (likely >= 0) bounded_expect(m, layer + 1, likely);
    if (f->late.n) run_gate_up(f, NULL, experts, f->late);
}

/* What is left of it. */
static expert_list late_experts(forward_step *f) {
    if (!f->status) f->status = bounded_wait(f->model, f->model->config->experts, f->error);
    return f->status ? (expert_list){0} : f->late;
}

/* Experts that are in memory are multiplied while the others are read, and those that have been read while more are.
 * Where memory does not hold all that rows have chosen, it has some after the others, for both products. */
static void run_bounded(forward_step *f, const program_op *dense, const program_op *experts, expert_list list) {
    backend_model *m = f->model;
    const int layer = experts->layer, slots = bounded_slots(m), all = list.n;
    const bool many = f->rows * m->config->experts_per_token >= ROWS_FOR_ALL * m->config->experts;
    int there = f->status ? 0 : bounded_order(m, layer, list.expert, all);
    f->in_parts = all > slots;
    f->few = false;
    if (!f->in_parts && !many && !f->status && all - there <= EXPERTS_TOGETHER) {
        run_few(f, dense, experts, list, there);
        return;
    }
    for (int done = 0; done < all; done += list.n, list.expert += list.n) {
        list.n = all - done < slots ? all - done : slots;
        if (there > list.n) there = list.n;
        if (!f->status) bounded_begin(m, layer, list.expert, list.n);
        if (there || (dense && !done)) run_gate_up(f, done ? NULL : dense, experts, (expert_list){list.expert, there});
        for (int ready = there, next; ready < list.n && !f->status; ready = next) {
            next = list.n - ready > EXPERTS_TOGETHER ? ready + EXPERTS_TOGETHER : list.n;
            f->status = bounded_wait(m, next, f->error);
            if (!f->status && next == list.n && many && !f->in_parts) bounded_expect_all(m, layer);
            if (!f->status) run_gate_up(f, NULL, experts, (expert_list){list.expert + ready, next - ready});
        }
        if (f->status) {
            f->in_parts = true;
            return;
        }
        if (f->in_parts) run_down(f, NULL, layer, list);
        there = 0;
    }
}

static void run_expert_products(forward_step *f, const program_op *dense, const program_op *experts) {
    backend_model *m = f->model;
    const bool gated = experts->epilogue == EPILOGUE_GATED;
    expert_list list = !gated && m->bounded && f->few ? late_experts(f) : experts_chosen(m);
    if (gated) experts_pack(m, experts, f->rows);
    if (gated && m->bounded)
        run_bounded(f, dense, experts, list);
    else if (gated)
        run_gate_up(f, dense, experts, list);
    else
        run_down(f, dense, experts->layer, m->bounded && f->in_parts ? (expert_list){0} : list);
}

static void run_experts_alone(forward_step *f, const program_op *o) { run_expert_products(f, NULL, o); }
static void run_side_by_side(forward_step *f, const program_op *o) { run_expert_products(f, o, o + 1); }

static void run_route(forward_step *f, const program_op *o) {
    experts_route(f->model, program_vector(f->model->weights, o->slot[0]), f->rows);
}

static void run_row_program(forward_step *f, const program_op *o) {
    const row_place place = {cpu_item, f->model->weights, f->model->config->rms_eps};
    row_program_run(f->model, &place, o, f->tokens, f->rows);
}

/* ---------------------------------------------------------------------------------------------------- attention */

static bool is_finite(const cpu_kernels *kernels, const float *x, size_t n) {
    return !isnan(kernels->maximum(x, (int)n));
}

/* K or V of one row, head by head, in the layer's stored form. */
static void store_row(const forward_step *f, size_t row, const float *values, bool is_k) {
    const backend_cache *cache = f->segments[0].cache;
    int layer = f->op->layer, d = f->op->width;
    const timeline_layer *l = &cache->t.layer[layer];
    const cpu_kv_kernels *stored = kv_kernels(cache, layer);
    unsigned char *to = chunk_rows(f->model, layer, is_k) + row * l->row_bytes;
    for (int h = 0; h < l->values / d; h++, values += d, to += l->head_bytes) stored->store(values, d, to);
}

/* Head norms and RoPE; new K/V go, in the stored type, into the chunk buffers. */
static void head_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    forward_step *f = context;
    backend_model *m = f->model;
    const cpu_kernels *kernels = m->kernels;
    const program_op *o = f->op;
    const layer_config *lc = &m->config->layer[o->layer];
    const rope_table *rope = &m->rope[lc->type];
    int d = o->width;
    for (size_t row = begin; row < end; row++) {
        size_t angle = (size_t)f->positions[row] * (size_t)rope->pairs;
        for (int r = 0; r < PROGRAM_MATRICES && o->head[r].item; r++) {
            const head_rule *rule = &o->head[r];
            const float *norm = program_vector(m->weights, rule->slot);
            int heads = rule->item == DATA_Q ? m->config->heads : lc->kv_heads;
            size_t width = (size_t)(heads * d);
            float *values = cpu_item(m, (program_item)rule->item) + row * width;
            for (float *x = values; x < values + width; x += d) {
                if (rule->norm) kernels->rms_norm(x, norm, d, m->config->rms_eps, x);
                if (rule->rope) kernels->rope(x, rope->half, rope->pairs, rope->cosine + angle, rope->sine + angle);
                if (rule->scale != 1) kernels->scale(rule->scale, d, x);
            }
            if (!rule->stored) continue;
            if (!is_finite(kernels, values, width)) atomic_store(&f->burst, true);
            store_row(f, row, values, rule->rope); /* keys turn, values do not */
        }
    }
}

static void run_heads(forward_step *f, const program_op *o) {
    const layer_config *lc = &f->model->config->layer[o->layer];
    rows_run(f->model, f->rows, (f->model->config->heads + 2 * lc->kv_heads) * o->width, head_rows, f);
}

/* While formats are compared: what a format under test would give back takes the place of new rows. */
static void recode_rows(const forward_step *f) {
    backend_model *m = f->model;
    const backend_cache *cache = f->segments[0].cache;
    const backend_recoding *recoding = m->recoding;
    int layer = f->op->layer, kv_heads = m->config->layer[layer].kv_heads, d = m->config->layer[layer].head_dim;
    const timeline_layer *l = &cache->t.layer[layer];
    const cpu_kv_kernels *stored = kv_kernels(cache, layer);
    float *values = m->scratch[0].row;
    for (int is_k = 0; is_k < (l->has_keys ? 2 : 1); is_k++) {
        unsigned char *row = chunk_rows(m, layer, is_k);
        for (int i = 0; i < f->rows * kv_heads; i++, row += l->head_bytes) {
            stored->load(row, d, values);
            recoding->vector(recoding->user, layer, values, d);
            stored->store(values, d, row);
        }
    }
}

/* Diagnostics caches keep every position's raw K and V. */
static void keep_own_raw(const forward_step *f) {
    backend_model *m = f->model;
    const layer_config *lc = &m->config->layer[f->op->layer];
    size_t kv_dim = (size_t)(lc->kv_heads * lc->head_dim);
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        if (!a->cache->own_raw) continue;
        for (int i = 0; i < a->rows; i++) {
            float *to = a->cache->own_raw[f->op->layer] + (size_t)(a->position + i) * 2 * kv_dim;
            size_t row = (size_t)(a->first_row + i) * kv_dim;
            memcpy(to, m->k + row, kv_dim * sizeof(float));
            memcpy(to + kv_dim, (lc->k_eq_v ? m->k : m->v) + row, kv_dim * sizeof(float));
        }
    }
}

/* The last `stored` rows of a segment from the chunk buffers into the store of `layer`, and all of them into its sink.
 */
static void store_chunk(backend_model *m, const attention_segment *a, int layer, int stored) {
    backend_cache *c = a->cache;
    const timeline_layer *l = &c->t.layer[layer];
    size_t bytes = kv_row_bytes(c, layer);
    int sink = l->bounded ? c->t.options.sink : 0;
    for (int is_k = 0; is_k < (l->has_keys ? 2 : 1); is_k++) {
        const unsigned char *row = chunk_rows(m, layer, is_k) + (size_t)a->first_row * bytes;
        for (int i = 0; i < a->rows; i++, row += bytes) {
            int position = a->position + i;
            if (position < sink) memcpy(kv_sink_row(c, layer, position, is_k), row, bytes);
            if (i >= a->rows - stored) memcpy(kv_row(c, layer, position, is_k), row, bytes);
        }
    }
}

static bool chunk_stays(const attention_segment *a, int layer) {
    return a->kind == SEGMENT_PROMPT && a->cache->t.layer[layer].kind == STORE_RING;
}

/* Prompt rows of a ring are stored when nobody attends any more what they overwrite. Everything else is stored before
 * attention. */
static void run_store(forward_step *f, const program_op *o) {
    bool behind = o->index == STORE_BEHIND_READERS;
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        if (chunk_stays(a, o->layer) != behind) continue;
        store_chunk(f->model, a, o->layer, behind ? f->steps[s].stored : a->rows);
    }
}

static void run_attend(forward_step *f, const program_op *o) {
    const attention_queries queries = {.q = f->model->q, .heads = f->model->config->heads, .layer = o->layer};
    attention_run(f->model, &queries, f->segments, f->n_segments, f->burst);
}

/* -------------------------------------------------------------------------------------------------- outputs */

static void copy_hidden(const forward_step *f) {
    size_t hidden = (size_t)f->model->config->hidden;
    const float *from = cpu_item(f->model, (program_item)f->op->in[0]);
    for (int s = 0; s < f->n_segments; s++) {
        const backend_segment *r = &f->requests[s];
        if (!r->hidden_states) continue;
        memcpy(r->hidden_states + (size_t)f->op->part * (size_t)r->n * hidden,
               from + (size_t)f->segments[s].first_row * hidden, (size_t)r->n * hidden * sizeof(float));
    }
}

/* Aux rows of a prompt's segment; those of every segment lie side by side, as wide as its own cache wants them. */
static float *aux_rows(const backend_model *m, const attention_segment *a) {
    return m->aux + (size_t)a->first_row * (size_t)m->max_taps * (size_t)m->config->hidden;
}

/* Outputs of tapped layers: prompt rows into the model's buffer (used before this forward returns), decode rows behind
 * the cache's backlog (used when they are committed). */
static void copy_aux(const forward_step *f) {
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden;
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        const timeline *t = &a->cache->t;
        if (t->taps == 0) continue; /* there may be no buffer at all */
        size_t width = kv_aux_row_bytes(a->cache) / sizeof(float);
        float *to = a->kind == SEGMENT_PROMPT ? aux_rows(m, a)
                                              : a->cache->backlog + (size_t)(a->position - t->draft_length) * width;
        for (int tap = 0; tap < t->taps; tap++) {
            if (t->tap[tap] != f->op->layer) continue;
            for (int i = 0; i < a->rows; i++) {
                memcpy(to + (size_t)i * width + (size_t)tap * hidden, m->h + (size_t)(a->first_row + i) * hidden,
                       hidden * sizeof(float));
            }
        }
    }
}

/* Training looks at the layer that has just been computed. */
static void show_layer(const forward_step *f) {
    const backend_model *m = f->model;
    const forward_taps *taps = m->taps;
    int layer = f->op->layer;
    const rope_table *rope = &m->rope[m->config->layer[layer].type];
    bool own_kv = m->config->layer[layer].kv_source == layer;
    const train_layer shown = {.layer = layer,
                               .rows = f->rows,
                               .position = f->positions[0],
                               .raw_k = own_kv ? taps->raw_k : NULL,
                               .raw_v = own_kv ? taps->raw_v : NULL,
                               .q = taps->q,
                               .o = taps->o,
                               .out = taps->out,
                               .h = m->h,
                               .cosine = rope->cosine,
                               .sine = rope->sine,
                               .half = rope->half,
                               .pairs = rope->pairs};
    taps->tap(taps->user, &shown);
}

static void tap_layer(const forward_step *f) {
    const backend_model *m = f->model;
    const forward_taps *taps = m->taps;
    const layer_config *lc = &m->config->layer[f->op->layer];
    program_item item = (program_item)f->op->in[0];
    int q_dim = m->config->heads * lc->head_dim, kv_dim = lc->kv_heads * lc->head_dim;
    float *to = item == DATA_Q          ? taps->q
                : item == DATA_ATTENDED ? taps->o
                : item == DATA_BRANCH   ? taps->out
                : f->op->part           ? taps->raw_v
                                        : taps->raw_k;
    int width = item == DATA_Q || item == DATA_ATTENDED ? q_dim : item == DATA_BRANCH ? m->config->hidden : kv_dim;
    if (item == DATA_H)
        show_layer(f);
    else
        taps_copy(to, cpu_item(m, item), (size_t)f->rows, (size_t)width);
}

/* Of decode rows any may become the last that is kept; a prompt is kept whole. */
static void copy_state(const forward_step *f) {
    size_t hidden = (size_t)f->model->config->hidden;
    const float *from = cpu_item(f->model, (program_item)f->op->in[0]);
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        if (!a->cache->t.keeps_state) continue;
        int rows = a->kind == SEGMENT_PROMPT ? 1 : a->rows, first = a->first_row + a->rows - rows;
        memcpy(a->cache->pending_state, from + (size_t)first * hidden, (size_t)rows * hidden * sizeof *from);
    }
}

static void run_tap(forward_step *f, const program_op *o) {
    switch ((tap_reason)o->index) {
    case TAP_STATES:
        copy_hidden(f);
        break;
    case TAP_AUX:
        copy_aux(f);
        break;
    case TAP_TRAINING:
        tap_layer(f);
        break;
    case TAP_RAW:
        keep_own_raw(f);
        break;
    case TAP_STATE:
        copy_state(f);
        break;
    default:
        recode_rows(f);
    }
}

/* The rows that want logits are one product, those that want their greedy choice another, whoever they belong to. */
static void run_logits(forward_step *f, const program_op *o) {
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden, vocab = (size_t)m->config->vocab;
    const float *normed = cpu_item(m, (program_item)o->in[0]);
    float *to[CPU_MAX_ROWS];
    int n = 0;
    for (int s = 0; s < f->n_segments; s++) {
        const backend_segment *r = &f->requests[s];
        for (int i = r->first_logit_row; r->logits && i < r->n; i++) {
            memcpy(m->x + (size_t)n * hidden, normed + (size_t)(f->segments[s].first_row + i) * hidden,
                   hidden * sizeof *m->x);
            to[n++] = r->logits + (size_t)(i - r->first_logit_row) * vocab;
        }
    }
    if (n) head_logits(m, &m->packed, m->x, n, to);
}

static void run_choose(forward_step *f, const program_op *o) {
    backend_model *m = f->model;
    size_t hidden = (size_t)m->config->hidden;
    const float *normed = cpu_item(m, (program_item)o->in[0]);
    const size_t words = ((size_t)m->config->vocab + 31) / 32;
    int32_t choice[CPU_MAX_ROWS], own[CPU_MAX_ROWS];
    const uint32_t *allowed[CPU_MAX_ROWS];
    int32_t *owner[CPU_MAX_ROWS];
    int n = 0;
    for (int s = 0; s < f->n_segments; s++) {
        const backend_segment *r = &f->requests[s];
        for (int i = r->first_logit_row; r->argmax && i < r->n; i++) {
            memcpy(m->x + (size_t)n * hidden, normed + (size_t)(f->segments[s].first_row + i) * hidden,
                   hidden * sizeof *m->x);
            own[n] = r->excluded ? *r->excluded : -1;
            allowed[n] = r->allowed ? r->allowed + (size_t)(i - r->first_logit_row) * words : NULL;
            owner[n++] = r->argmax + (i - r->first_logit_row);
        }
    }
    const head_limits limits = {m->config->suppress_tokens, m->config->n_suppress_tokens, own, allowed};
    if (n) head_choose(m, &m->packed, m->x, n, &limits, choice);
    for (int i = 0; i < n; i++) *owner[i] = choice[i];
}

/* -------------------------------------------------------------------------------------------------- the machine */

typedef void (*op_kernel)(forward_step *f, const program_op *o);

/* NULL: nothing happens on one device. */
static const op_kernel kernels[OP_KINDS] = {
    [OP_EMBED] = run_embed,   [OP_PRODUCTS] = run_products, [OP_EXPERT_PRODUCTS] = run_experts_alone,
    [OP_ROUTE] = run_route,   [OP_HEADS] = run_heads,       [OP_STORE] = run_store,
    [OP_ATTEND] = run_attend, [OP_ROWS] = run_row_program,  [OP_TAP] = run_tap,
    [OP_LOGITS] = run_logits, [OP_CHOOSE] = run_choose,
};

enum { FUSIONS = 2 };
static const op_kernel fused[FUSIONS] = {run_side_by_side, run_side_by_side};

const program_machine *cpu_machine(bool prompt) {
    (void)prompt; /* one list of both */
    static const program_fusion fusions[FUSIONS] = {
        {"side by side", 2, {{OP_PRODUCTS, EPILOGUE_GATED, NULL}, {OP_EXPERT_PRODUCTS, EPILOGUE_GATED, NULL}}},
        {"side by side", 2, {{OP_PRODUCTS, EPILOGUE_NONE, NULL}, {OP_EXPERT_PRODUCTS, EPILOGUE_NONE, NULL}}},
    };
    static const program_machine machine = {
        .kernel = {[OP_EMBED] = "rows of a table",
                   [OP_PRODUCTS] = "batch of products",
                   [OP_EXPERT_PRODUCTS] = "batch of products",
                   [OP_ROUTE] = "choice of experts",
                   [OP_HEADS] = "heads",
                   [OP_STORE] = "rows into stores",
                   [OP_ATTEND] = "flash attention",
                   [OP_ROWS] = "row program",
                   [OP_TAP] = "copy",
                   [OP_LOGITS] = "head",
                   [OP_CHOOSE] = "head by int8 bounds",
                   [OP_AGREE] = "nothing"},
        .fusion = fusions,
        .fusions = FUSIONS,
        .most_rows = CPU_PROMPT_ROWS,
    };
    return &machine;
}

static uint64_t wants_of(const forward_step *f) {
    const backend_model *m = f->model;
    uint64_t wants = PROGRAM_WANTS(TAP_AUX);
    if (m->taps) wants |= PROGRAM_WANTS(TAP_TRAINING);
    if (m->recoding) wants |= PROGRAM_WANTS(TAP_RECODE);
    for (int s = 0; s < f->n_segments; s++) {
        if (f->requests[s].hidden_states) wants |= PROGRAM_WANTS(TAP_STATES);
        if (f->requests[s].cache->own_raw) wants |= PROGRAM_WANTS(TAP_RAW);
        if (f->requests[s].cache->t.keeps_state) wants |= PROGRAM_WANTS(TAP_STATE);
    }
    return wants;
}

static program_shape shape_of(const forward_step *f) {
    program_shape shape = {.wants = wants_of(f)};
    for (int s = 0; s < f->n_segments; s++) {
        const timeline *t = &f->segments[s].cache->t;
        for (int tap = 0; tap < t->taps; tap++) layer_add(&shape.aux, t->tap[tap]);
    }
    return shape;
}

static void run_list(forward_step *f) {
    backend_model *m = f->model;
    program_shape shape = shape_of(f);
    if (!m->launches || memcmp(&shape, &m->shape, sizeof shape) != 0) {
        m->shape = shape;
        m->launches =
            program_launches(cpu_machine(false), m->ops, program_verifier(m->config, &shape, m->ops), m->launch);
    }
    for (int i = 0; i < m->launches; i++) {
        const program_launch *l = &m->launch[i];
        f->op = &m->ops[l->first];
        if (m->bounded) bounded_poll(m);
        (l->fusion < 0 ? kernels[f->op->kind] : fused[l->fusion])(f, f->op);
    }
}

/* --------------------------------------------------------------------------------------------------- driver */

static kakeya_status check_segments(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    kakeya_status status = backend_check_segments(m->config, segments, n_segments, m->most_rows, error);
    for (int s = 0; s < n_segments && !status; s++) {
        const backend_segment *r = &segments[s];
        if (r->cache->model != m)
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: cache of another model", s);
        if (r->cache->t.options.kv_format != segments[0].cache->t.options.kv_format) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT, "segment %d: K/V formats %s and %s in one forward", s,
                             kv_format_name(r->cache->t.options.kv_format),
                             kv_format_name(segments[0].cache->t.options.kv_format));
        }
    }
    return status;
}

/* Rows in the place of embeddings; per-layer inputs are those of the token that pads. */
static void take_given(forward_step *f, const backend_segment *r) {
    const model_config *c = f->model->config;
    for (int i = 0; i < r->n_given; i++) {
        const backend_given *g = &r->given[i];
        for (int row = 0; row < g->n; row++) {
            const int at = f->rows + g->first + row;
            f->given[at] = g->rows + (size_t)row * (size_t)c->hidden;
            f->tokens[at] = c->pad_token >= 0 ? c->pad_token : 0;
        }
    }
}

/* Steps 1 and 2 of backend/timeline.h: nothing that fails here leaves a trace in any cache. */
static kakeya_status plan_and_reserve(forward_step *f, kakeya_error *error) {
    backend_model *m = f->model;
    int furthest = 0, reserved = 0;
    kakeya_status status = KAKEYA_OK;
    for (int s = 0; !status && s < f->n_segments; s++) {
        backend_segment *r = &f->requests[s];
        const timeline *t = &r->cache->t;
        status = r->status = timeline_plan(t, r->kind, r->n, &f->steps[s], error);
        f->segments[s] = (attention_segment){r->cache, f->rows, r->n, t->length, r->kind, r->given, r->n_given};
        take_given(f, r);
        for (int i = 0; i < r->n; i++) {
            if (!f->given[f->rows]) f->tokens[f->rows] = r->tokens[i];
            f->positions[f->rows++] = t->length + i;
        }
        if (t->length + r->n > furthest) furthest = t->length + r->n;
    }
    for (int type = 0; !status && type < 2; type++) {
        if (m->rope[type].inverse_frequency)
            status = rope_table_reserve(m, &m->rope[type], furthest + ATTENTION_BLOCK, error);
    }
    if (!status && m->options.drafter)
        status = rope_table_reserve(m, &m->draft_rope, furthest + ATTENTION_BLOCK, error);
    for (; !status && reserved < f->n_segments; reserved++) {
        backend_segment *r = &f->requests[reserved];
        status = r->status = cache_reserve(r->cache, &f->steps[reserved], error);
    }
    for (int s = 0; status && s < reserved; s++) cache_release(f->requests[s].cache);
    return status;
}

static void begin_segments(forward_step *f) {
    backend_cache *caches[BACKEND_MAX_FORWARD];
    for (int s = 0; s < f->n_segments; s++) caches[s] = f->requests[s].cache;
    caches_begin(caches, f->steps, f->n_segments);
    for (int s = 0; s < f->n_segments; s++) {
        backend_cache *c = caches[s];
        if (c->tokens)
            memcpy(c->tokens + c->t.length, f->requests[s].tokens, (size_t)f->requests[s].n * sizeof *c->tokens);
    }
    int n_keeping = 0;
    for (int s = 0; s < f->n_segments; s++) {
        bool restores = caches[s]->t.options.attention == KAKEYA_ATTENTION_RESTORED;
        if (restores && f->segments[s].rows <= BACKEND_MAX_DECODE_ROWS) caches[n_keeping++] = caches[s];
    }
    restored_keys_take(f->model, caches, n_keeping);
}

/* The rows become pending. What follows prompt rows is made here, while their aux hidden states are there. */
static void mark_segments(forward_step *f) {
    backend_model *m = f->model;
    draft_rows entries[BACKEND_MAX_FORWARD];
    int n = 0;
    for (int s = 0; s < f->n_segments; s++) {
        const attention_segment *a = &f->segments[s];
        backend_cache *c = a->cache;
        if (a->kind == SEGMENT_PROMPT && c->t.keeps_backlog)
            entries[n++] = (draft_rows){c, aux_rows(m, a), a->rows, a->position};
    }
    caches_follow(m, entries, n);
    for (int s = 0; s < f->n_segments; s++) timeline_computed(&f->segments[s].cache->t, &f->steps[s]);
}

kakeya_status cpu_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error) {
    kakeya_status status = check_segments(m, segments, n_segments, error);
    int rows = 0;
    for (int s = 0; s < n_segments && !status; s++) rows += segments[s].n;
    if (!status && rows > m->max_rows) status = workspace_grow(m, rows, error);
    if (status) return status;
    forward_step f = {.model = m, .requests = segments, .n_segments = n_segments, .error = error};
    status = plan_and_reserve(&f, error);
    if (status) return status;
    begin_segments(&f);
    run_list(&f);
    mark_segments(&f);
    for (int s = 0; f.status && s < n_segments; s++) (void)host_cache_commit(segments[s].cache, 0, NULL);
    return f.status;
}
