#include "backend/cuda/distil.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/restoration_trainer.h"

/* -------------------------------------------------------------------------------------------------------- memory */

/* Chunks of sequences are as large as this allows and half of what the device has beside the weights, and one sequence
 * at least. */
static const size_t most_chunk_bytes = (size_t)40 << 30, least_chunk_bytes = (size_t)1 << 30;
/* Of room for products in parts, where matrices do not need more. */
static const size_t most_split_values = (size_t)1 << 29;
enum { PARTIAL_FLOATS = 1 << 24 };

static size_t most(size_t a, size_t b) { return a > b ? a : b; }
static size_t least(size_t a, size_t b) { return a < b ? a : b; }
static float *take(distil_arena *a, size_t n) { return distil_take(a, n * sizeof(float)); }

/* The widest of what layers and the restoration have. */
typedef struct widths {
    size_t q, kv, d, dense, sequence, teacher, rows, segments, either, hidden;
} widths;

static widths widths_of(const backend_restoration_trainer *s) {
    const model_config *c = s->m->config;
    size_t sequence = (size_t)s->o.sequence, b = (size_t)s->together;
    widths w = {.sequence = sequence,
                .teacher = b * sequence,
                .segments = b * (size_t)s->o.segments,
                .dense = (size_t)c->ple_width,
                .hidden = (size_t)c->hidden};
    w.rows = w.segments * (size_t)s->o.rows;
    w.either = most(w.rows, w.teacher);
    for (int i = 0; i < c->layers; i++) {
        w.q = most(w.q, (size_t)distil_q_dim(s, i));
        w.kv = most(w.kv, (size_t)distil_kv_dim(s, i));
        w.d = most(w.d, (size_t)c->layer[i].head_dim);
        w.dense = most(w.dense, (size_t)c->layer[i].intermediate);
    }
    return w;
}

static void lay_out_layer(backend_restoration_trainer *s, distil_arena *a, const widths *w, int layer) {
    distil_layer *l = &s->layer[layer];
    const layer_config *c = &s->m->config->layer[layer];
    size_t kv = (size_t)distil_kv_dim(s, layer), restored = w->segments * (size_t)train_most_restored(s, (int)c->type);
    l->native_h = take(a, w->rows * w->hidden);
    l->native_added = take(a, w->rows * w->hidden);
    l->input = layer ? take(a, w->rows * w->hidden) : NULL;
    if (distil_compares_attention(s->o.loss)) {
        l->native_q = take(a, w->rows * (size_t)distil_q_dim(s, layer));
        l->native_out = take(a, w->rows * w->hidden);
    }
    for (int half = 0; half < 2 && c->kv_source == layer; half++) {
        l->native[half] = take(a, w->teacher * kv);
        if (distil_compares_raw(s->o.loss)) l->native_raw[half] = take(a, w->teacher * kv);
        float **of_restored[] = {&l->raw[half], &l->seen[half], &l->d_seen[half]},
              **of_own[] = {&l->own_raw[half], &l->own[half], &l->d_own[half]};
        for (int k = 0; k < 3; k++) {
            *of_restored[k] = take(a, restored * kv);
            *of_own[k] = take(a, w->rows * kv);
        }
    }
}

/* Of n rows. */
static void lay_out_tape(backend_restoration_trainer *s, distil_arena *a, const widths *w, distil_tape *t, size_t n) {
    const model_config *c = s->m->config;
    float **hidden[] = {&t->x, &t->out, &t->added, &t->h1, &t->x2, &t->dense, &t->both, &t->h2};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) *hidden[i] = take(a, n * w->hidden);
    float **query[] = {&t->q_raw, &t->q, &t->o};
    for (size_t i = 0; i < sizeof query / sizeof *query; i++) *query[i] = take(a, n * w->q);
    for (int half = 0; half < 2; half++) t->raw[half] = take(a, n * w->kv);
    t->gate_up = take(a, 2 * n * w->dense);
    t->act = take(a, n * w->dense);
    if (c->ple_width) {
        t->ple_gate = take(a, n * (size_t)c->ple_width);
        t->ple_act = take(a, n * (size_t)c->ple_width);
        t->ple_out = take(a, n * w->hidden);
    }
    if (!c->moe) return;
    size_t k = (size_t)c->experts_per_token, slots = n * k, experts = (size_t)c->experts,
           width = (size_t)c->expert_intermediate;
    t->expert_x = take(a, n * w->hidden);
    t->router_x = take(a, n * w->hidden);
    t->mixed = take(a, n * w->hidden);
    t->router_z = take(a, n * experts);
    t->slot_x = take(a, slots * w->hidden);
    t->slot_out = take(a, slots * w->hidden);
    t->slot_gate_up = take(a, 2 * slots * width);
    t->slot_act = take(a, slots * width);
    t->routing = (train_routing){.share = take(a, slots), .experts = c->experts, .k = c->experts_per_token};
    t->routing.chosen = distil_take(a, slots * sizeof(int));
    t->routing.slot_of = distil_take(a, slots * sizeof(int));
    t->routing.row_of = distil_take(a, slots * sizeof(int));
    t->routing.begin = distil_take(a, (experts + 1) * sizeof(int));
    t->routing.counts = distil_take(a, experts * sizeof(int));
}

static void lay_out_experts(backend_restoration_trainer *s, distil_arena *a, const widths *w) {
    const model_config *c = s->m->config;
    size_t slots = w->rows * (size_t)c->experts_per_token, width = (size_t)c->expert_intermediate;
    s->d_router_z = take(a, w->rows * (size_t)c->experts);
    s->d_slot = take(a, slots * w->hidden);
    s->d_slot_x = take(a, slots * w->hidden);
    s->d_slot_act = take(a, slots * width);
    s->d_slot_gate_up = take(a, 2 * slots * width);
}

/* Columns of all items of a pass, times what one has. */
static size_t columns_room(const backend_restoration_trainer *s, const widths *w, size_t of_teacher,
                           size_t of_student) {
    size_t teacher = (size_t)s->together * w->sequence * of_teacher, student = 0;
    for (int type = 0; type < 2; type++)
        student = most(student, w->segments * (size_t)train_most_columns(s, type) * of_student);
    return most(teacher, student);
}

/* What layers compute and the way back through them reads. */
static void lay_out_tapes(backend_restoration_trainer *s, distil_arena *a, const widths *w) {
    const model_config *c = s->m->config;
    size_t heads = (size_t)c->heads;
    lay_out_tape(s, a, w, &s->common, w->either);
    s->common.keys = take(a, columns_room(s, w, 0, w->kv));
    s->common.values = take(a, columns_room(s, w, 0, w->kv));
    s->common.shares = take(a, columns_room(s, w, heads * w->sequence, heads * (size_t)s->o.rows));
    s->tape = s->common;
    for (int i = 0; i < c->layers && s->keeps; i++) {
        distil_tape *t = &s->kept[i];
        size_t columns = w->segments * (size_t)train_most_columns(s, (int)c->layer[i].type);
        lay_out_tape(s, a, w, t, w->rows);
        t->keys = take(a, columns * w->kv);
        t->values = take(a, columns * w->kv);
        t->shares = take(a, columns * heads * (size_t)s->o.rows);
    }
    if (c->ple_width) s->ple = take(a, w->either * (size_t)c->layers * (size_t)c->ple_width);
    if (c->moe) lay_out_experts(s, a, w);
}

static void lay_out_rest(backend_restoration_trainer *s, distil_arena *a, const widths *w) {
    const model_config *c = s->m->config;
    size_t heads = (size_t)c->heads, inputs = (size_t)restoration_encoder_in(&s->f), n = w->rows,
           restored = w->segments * (size_t)s->o.sequence;
    s->weights = take(a, s->layout.n);
    s->gradient = take(a, s->layout.n);
    for (int type = 0; type < 2; type++) {
        size_t turns = (size_t)s->o.sequence * (size_t)c->rope[type].rotated_pairs;
        s->cosine[type] = take(a, turns);
        s->sine[type] = take(a, turns);
    }
    for (int i = 0; i < 2; i++) s->teacher_h[i] = take(a, w->teacher * w->hidden);
    s->inputs[0] = s->inputs[1] = take(a, w->teacher * inputs);
    if (restoration_needs_drafter(&s->f)) {
        const block_drafter_config *d = &s->m->options.drafter->config;
        s->inputs[1] = take(a, w->teacher * inputs);
        s->aux = take(a, w->teacher * (size_t)(d->targets * c->hidden));
        s->context = take(a, w->teacher * (size_t)d->hidden);
    }
    s->gathered = take(a, restored * most(inputs, w->kv));
    for (int half = 0; half < 2; half++) {
        if (!s->layout.encoder_there[half]) continue;
        size_t rank = (size_t)distil_rank(s, half);
        s->latent[half] = take(a, restored * rank);
        s->d_latent[half] = take(a, restored * rank);
        for (int type = 0; type < 2; type++) {
            size_t rows = w->segments * (size_t)train_most_restored(s, type);
            s->restored[type].latent[half] = take(a, rows * rank);
            s->restored[type].d_latent[half] = take(a, rows * rank);
        }
    }
    s->d_shares = take(a, columns_room(s, w, 0, heads * (size_t)s->o.rows));
    s->d_key = take(a, columns_room(s, w, 0, w->q));
    s->d_value = take(a, columns_room(s, w, 0, w->q));
    float **hidden[] = {&s->embedded, &s->last, &s->final_x, &s->spare, &s->d_h, &s->d_both, &s->d_branch, &s->d_x};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) *hidden[i] = take(a, n * w->hidden);
    for (int i = 0; i < 2; i++) {
        s->logits[i] = take(a, least(n, DISTIL_HEAD_ROWS) * (size_t)c->vocab);
        s->d_kv[i] = take(a, n * w->kv);
    }
    s->d_act = take(a, n * w->dense);
    s->d_gate_up = take(a, 2 * n * w->dense);
    s->d_q = take(a, n * w->q);
    s->d_o = take(a, n * w->q);
    s->partial_floats = PARTIAL_FLOATS;
    s->partial = take(a, s->partial_floats);
    s->kl = distil_take(a, n * sizeof(double));
    s->results = distil_take(a, w->segments * DISTIL_RESULTS * sizeof(double));
    s->share_parts = distil_take(a, w->segments * TRAIN_SHARE_PARTS * 2 * sizeof(double));
    s->tables.most = train_table_ints(s);
    s->tables.device = distil_take(a, s->tables.most * sizeof(int));
}

/* Experts are multiplied all at once, other products in as many pieces as it takes. */
static void lay_out_split(backend_restoration_trainer *s, distil_arena *a, const widths *w) {
    const model_config *c = s->m->config;
    size_t terms = s->o.terms ? (size_t)s->o.terms : SPLIT_MOST_TERMS,
           widest = (size_t)cuda_padded((int)most(most(w->hidden, w->q), most(w->dense, w->kv))),
           vocab = (size_t)cuda_padded(c->vocab), slots = c->moe ? w->either * (size_t)c->experts_per_token : 0,
           slot = (size_t)cuda_padded((int)most(w->hidden, 2 * (size_t)c->expert_intermediate)),
           rows = most(w->either * widest, least(w->rows, DISTIL_HEAD_ROWS) * vocab),
           encoded = w->segments * (size_t)s->o.sequence * (size_t)restoration_encoder_in(&s->f),
           encoding = least(SPLIT_PARTS * encoded, most_split_values), sums = most_split_values / 2;
    split_room *room = &s->split;
    room->a_values = most(least(terms * rows, most_split_values), encoding);
    room->a_values = most(room->a_values, terms * most(slots * slot, vocab));
    room->b_values = most(train_turned_values(s), encoding);
    room->c_values = most(least(terms * rows, sums), terms * most(slots * slot, vocab));
    room->a = distil_take(a, room->a_values * sizeof *room->a);
    room->b = distil_take(a, room->b_values * sizeof *room->b);
    room->c = take(a, room->c_values);
    room->begin = distil_take(a, (SPLIT_GROUPS + 1) * sizeof *room->begin);
    room->counter = distil_take(a, sizeof *room->counter);
}

static size_t chunk_bytes(const backend_restoration_trainer *s) {
    size_t all = s->m->device.total_bytes, weights = s->m->weights.memory.bytes;
    return most(least(all > weights ? (all - weights) / 2 : 0, most_chunk_bytes), least_chunk_bytes);
}

static size_t lay_out(backend_restoration_trainer *s, char *base) {
    distil_arena arena = {.base = base};
    train_weights_lay_out(s, &arena);
    size_t weights = arena.bytes;
    widths w = widths_of(s);
    for (int i = 0; i < s->m->config->layers; i++) lay_out_layer(s, &arena, &w, i);
    lay_out_tapes(s, &arena, &w);
    lay_out_rest(s, &arena, &w);
    lay_out_split(s, &arena, &w);
    s->layer[0].input = s->embedded;
    bool fits = base || arena.bytes - weights <= chunk_bytes(s);
    if (fits || (!s->keeps && s->together == 1)) return arena.bytes;
    if (!s->keeps) s->together = (s->together + 1) / 2;
    s->keeps = false;
    return lay_out(s, NULL);
}

static void prepare(backend_restoration_trainer *s, backend_model *m, const restoration_trainer_options *o) {
    memset(s, 0, sizeof *s);
    s->m = m;
    s->o = *o;
    s->f = *o->restoration;
    s->o.restoration = &s->f;
    s->layout = restoration_layout_of(&s->f, m->config);
    s->launch = m->launch;
    s->launch.programmatic = 0;
    s->together = o->sequences > 0 ? o->sequences : 1;
    s->keeps = o->loss == RESTORATION_LOSS_DISTIL && !o->spares_memory;
    if (s->o.segments < 1) s->o.segments = 1;
    s->o.sequence = (o->sequence + 7) / 8 * 8; /* as products on tensor cores take them */
}

size_t cuda_restoration_trainer_bytes(backend_model *m, const restoration_trainer_options *options) {
    backend_restoration_trainer *s = malloc(sizeof *s);
    if (!s) return 0;
    prepare(s, m, options);
    size_t bytes = lay_out(s, NULL);
    free(s);
    return bytes;
}

static kakeya_status check(const backend_model *m, kakeya_error *error) {
    if (m->tp_group)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "distillation uses a single device: name only one with "
                         "--devices");
    if (m->weights.bounded)
        return error_set(error, KAKEYA_UNSUPPORTED, "weights limit: distillation needs all weights on the device");
    if (m->config->moe && m->config->experts_per_token > TRAIN_MAX_CHOSEN)
        return error_set(error, KAKEYA_UNSUPPORTED, "distillation supports at most %d experts per row",
                         (int)TRAIN_MAX_CHOSEN);
    return KAKEYA_OK;
}

kakeya_status cuda_restoration_trainer_create(backend_model *m, const restoration_trainer_options *o,
                                              backend_restoration_trainer **out, kakeya_error *error) {
    *out = NULL;
    kakeya_status status = check(m, error);
    if (status) return status;
    backend_restoration_trainer *s = malloc(sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    prepare(s, m, o);
    size_t bytes = lay_out(s, NULL);
    if (s->lacks)
        status =
            error_set(error, KAKEYA_UNSUPPORTED, "distillation needs synthetic weights in bf16: omit the quantisation");
    s->tables.host = malloc(s->tables.most * sizeof(int));
    if (!status && !s->tables.host) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    if (!status) status = cuda_device_use(&m->device, error);
    if (!status)
        status = cuda_buffer_create(&s->memory, &m->device, m->account, MEM_WORKSPACE, bytes, "distillation", error);
    if (!status) {
        lay_out(s, s->memory.data);
        status = train_weights_fill(s, error);
    }
    if (status) {
        cuda_restoration_trainer_destroy(s);
        return status;
    }
    *out = s;
    return KAKEYA_OK;
}

void cuda_restoration_trainer_destroy(backend_restoration_trainer *s) {
    if (!s) return;
    if (s->memory.data) (void)cudaSetDevice(s->m->device.index);
    cuda_buffer_destroy(&s->memory);
    train_forget_times(s);
    free(s->tables.host);
    free(s);
}

void cuda_restoration_trainer_weights(backend_restoration_trainer *s, const float *weights) { s->given = weights; }

void cuda_restoration_trainer_seconds(const backend_restoration_trainer *s, double seconds[RESTORATION_PARTS]) {
    memcpy(seconds, s->times.seconds, RESTORATION_PARTS * sizeof *seconds);
}

/* ------------------------------------------------------------------------------------------------------- teacher */

/* What the encoders read of a layer's output. */
static void tap(backend_restoration_trainer *s, int layer, const float *h) {
    const model_config *c = s->m->config;
    const block_drafter_config *d = s->aux ? &s->m->options.drafter->config : NULL;
    size_t hidden = (size_t)c->hidden;
    for (int i = 0; i < (d ? d->targets : s->f.aux_layers); i++) {
        if ((d ? d->target_layer[i] : s->f.aux_layer[i]) != layer) continue;
        size_t at = (size_t)i * hidden;
        if (d)
            cuda_train_gather(&s->launch, h, hidden, NULL, 1, s->aux + at, (size_t)d->targets * hidden, s->teacher.rows,
                              c->hidden);
        else
            cuda_train_norm(&s->launch, h, hidden, NULL, NULL, s->inputs[0] + at, (size_t)restoration_encoder_in(&s->f),
                            s->teacher.rows, c->hidden, c->rms_eps);
    }
}

/* What a drafter keeps of each position: raw K and V of its context, all layers. */
static void read_drafter(backend_restoration_trainer *s) {
    const block_drafter_config *d = &s->m->options.drafter->config;
    size_t width = (size_t)(d->targets * s->m->config->hidden), hidden = (size_t)d->hidden,
           kv = (size_t)(d->kv_heads * d->head_dim), all = (size_t)d->layers * kv;
    int rows = s->teacher.rows;
    train_forward(s, s->aux, width, rows, s->fc, s->context, hidden);
    cuda_train_norm(&s->launch, s->context, hidden, s->hidden_norm, NULL, s->context, hidden, rows, d->hidden,
                    d->rms_eps);
    for (int i = 0; i < d->layers; i++) {
        train_forward(s, s->context, hidden, rows, s->draft_k[i], s->inputs[0] + (size_t)i * kv, all);
        train_forward(s, s->context, hidden, rows, s->draft_v[i], s->inputs[1] + (size_t)i * kv, all);
    }
}

static void teach(backend_restoration_trainer *s) {
    const model_config *c = s->m->config;
    const distil_pass *p = &s->teacher;
    size_t hidden = (size_t)c->hidden;
    int rows = s->student.rows;
    train_embed(s, p, s->teacher_h[0]);
    for (int i = 0; i < c->layers; i++) {
        const distil_layer *l = &s->layer[i];
        float *out = s->teacher_h[(i + 1) % 2];
        train_layer_forward(s, p, i, s->teacher_h[i % 2], out);
        cuda_train_gather(&s->launch, out, hidden, s->row_native, 1, l->native_h, hidden, rows, c->hidden);
        cuda_train_gather(&s->launch, s->tape.added, hidden, s->row_native, 1, l->native_added, hidden, rows,
                          c->hidden);
        if (l->native_q) {
            size_t q_dim = (size_t)distil_q_dim(s, i);
            cuda_train_gather(&s->launch, s->tape.q, q_dim, s->row_native, 1, l->native_q, q_dim, rows, (int)q_dim);
            cuda_train_gather(&s->launch, s->tape.out, hidden, s->row_native, 1, l->native_out, hidden, rows,
                              c->hidden);
        }
        tap(s, i, out);
    }
    if (s->aux) read_drafter(s);
}

/* ------------------------------------------------------------------------------------------------------ segments */

static float *output_of(const backend_restoration_trainer *s, int layer) {
    return layer + 1 < s->m->config->layers ? s->layer[layer + 1].input : s->last;
}

static void distil(backend_restoration_trainer *s, bool learns) {
    const model_config *c = s->m->config;
    const distil_pass *p = &s->student;
    double share = 1.0 / c->layers;
    float by = s->scale / (float)c->layers;
    train_embed(s, p, s->embedded);
    for (int i = 0; i < c->layers; i++) {
        const distil_layer *l = &s->layer[i];
        if (c->layer[i].kv_source == i) {
            for (int half = 0; half < 2; half++)
                distil_zero(s, l->d_own[half], (size_t)p->rows * (size_t)distil_kv_dim(s, i));
            train_begin_part(s, RESTORATION_PART_RESTORED);
            train_decode(s, i);
            train_share_kv(s, i);
        }
        train_begin_part(s, RESTORATION_PART_FORWARD);
        train_layer_forward(s, p, i, l->input, output_of(s, i));
        train_compare(s, output_of(s, i), l->native_h, RESULT_HIDDEN, share, 0, NULL);
        train_compare(s, s->tape.added, l->native_added, RESULT_ATTENTION, share, 0, NULL);
    }
    train_begin_part(s, RESTORATION_PART_HEAD);
    train_head(s, s->last, learns);
    for (int i = c->layers - 1; i >= 0 && learns; i--) {
        train_begin_part(s, RESTORATION_PART_BACK);
        train_compare(s, output_of(s, i), s->layer[i].native_h, -1, 0, by * s->o.hidden, s->d_h);
        train_layer_back(s, i);
        train_begin_part(s, RESTORATION_PART_GRADIENT);
        if (c->layer[i].kv_source == i) train_decode_back(s, i, true);
    }
}

static void regress(backend_restoration_trainer *s, bool learns) {
    const model_config *c = s->m->config;
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].kv_source != i) continue;
        train_decode(s, i);
        train_directions(s, i);
    }
    for (int i = 0; i < c->layers && distil_compares_attention(s->o.loss); i++) train_compare_attention(s, i, learns);
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].kv_source == i) train_decode_back(s, i, learns);
    }
}

/* Sums of a segment as the caller wants them. */
static void tell(const backend_restoration_trainer *s, const double *from, restoration_trainer_result *out) {
    *out = (restoration_trainer_result){.loss = from[RESULT_LOSS],
                                        .kl = from[RESULT_KL],
                                        .hidden = from[RESULT_HIDDEN],
                                        .attention = from[RESULT_ATTENTION],
                                        .kv = from[RESULT_KV]};
    if (s->o.loss == RESTORATION_LOSS_DISTIL)
        out->loss = (double)s->o.kl * out->kl + (double)s->o.hidden * out->hidden +
                    (double)s->o.attention * out->attention + (double)s->o.kv * out->kv;
}

static kakeya_status learn_chunk(backend_restoration_trainer *s, const restoration_trainer_sequence *sequences, int n,
                                 bool learns, kakeya_error *error) {
    kakeya_status status = train_lay_tables(s, sequences, n, error);
    if (status) return status;
    size_t results = (size_t)s->student.items * DISTIL_RESULTS;
    (void)cudaMemsetAsync(s->results, 0, results * sizeof(double), s->launch.stream);
    train_exactly(s, false);
    train_begin_part(s, RESTORATION_PART_TEACHER);
    teach(s);
    train_begin_part(s, RESTORATION_PART_RESTORED);
    train_encode(s);
    if (s->o.loss == RESTORATION_LOSS_DISTIL)
        distil(s, learns);
    else
        regress(s, learns);
    train_begin_part(s, RESTORATION_PART_GRADIENT);
    if (learns) train_encode_back(s);
    train_end_parts(s);
    double *told = malloc(results * sizeof *told);
    if (!told) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for distillation");
    status = cuda_check(s->split.status, "multiplying in a step of distillation", error);
    s->split.status = cudaSuccess;
    if (!status)
        status = cuda_check(
            cudaMemcpyAsync(told, s->results, results * sizeof *told, cudaMemcpyDeviceToHost, s->launch.stream),
            "reading what was lost", error);
    if (!status) status = cuda_finish(&s->m->device, "a step of distillation", error);
    if (!status) train_read_times(s);
    for (int i = 0, at = 0; i < n && !status; i++) {
        for (int k = 0; k < sequences[i].n_segments; k++)
            tell(s, told + (size_t)at++ * DISTIL_RESULTS, &sequences[i].results[k]);
    }
    free(told);
    return status;
}

kakeya_status cuda_restoration_trainer_learn_many(backend_restoration_trainer *s,
                                                  const restoration_trainer_sequence *sequences, int n, float *gradient,
                                                  kakeya_error *error) {
    size_t bytes = s->layout.n * sizeof(float);
    kakeya_status status = cuda_device_use(&s->m->device, error);
    if (!status)
        status = cuda_check(cudaMemcpyAsync(s->weights, s->given, bytes, cudaMemcpyHostToDevice, s->launch.stream),
                            "copying the weights of the restoration", error);
    distil_zero(s, s->gradient, s->layout.n);
    for (int done = 0, some; done < n && !status; done += some) {
        some = n - done < s->together ? n - done : s->together;
        status = learn_chunk(s, sequences + done, some, gradient != NULL, error);
    }
    if (status || !gradient) return status;
    status = cuda_check(cudaMemcpyAsync(gradient, s->gradient, bytes, cudaMemcpyDeviceToHost, s->launch.stream),
                        "reading the gradient", error);
    return status ? status : cuda_finish(&s->m->device, "reading the gradient", error);
}
