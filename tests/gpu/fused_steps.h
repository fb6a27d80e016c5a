/* The list of a CUDA step, made of the verifier's list (backend/program/program.h): fusions as this backend declares
 * them (backend/cuda/machine.h), what is private to its kernels (turns, rounding, which attention kernel takes which
 * rows), and the order of its two streams. What a layer consists of, and which weights are multiplied where, comes from
 * the program alone. */
#ifndef KAKEYA_TESTS_FUSED_STEPS_H
#define KAKEYA_TESTS_FUSED_STEPS_H

#include "backend/cuda/machine.h"
#include "backend/cuda/matrix.h"
#include "backend/cuda/step.h"
#include "backend/program/program.h"

typedef struct fused_steps {
    const step_shape *shape;
    const program_op *ops;
    int n_ops;
    step_op *out;
    int n;
    bool chained, latents, keys, attends_latents;
    int held, asked, attended, next; /* next: the first operation that a later restoration may be for */
} fused_steps;

#define SET(item) STEP_ITEM(ITEM_##item)

static inline const cuda_matrix *fused_matrix(const fused_steps *f, uint16_t slot) {
    const cuda_weights *w = f->shape->weights;
    const cuda_layer *l = &w->layer[slot / SLOT_ROLES];
    switch (program_slot_role(slot)) {
    case ROLE_Q:
        return &l->q;
    case ROLE_K:
        return &l->k;
    case ROLE_V:
        return &l->v;
    case ROLE_O:
        return &l->o;
    case ROLE_GATE:
        return &l->gate;
    case ROLE_UP:
        return &l->up;
    case ROLE_DOWN:
        return &l->down;
    case ROLE_ROUTER:
        return &l->router;
    case ROLE_EXPERTS_GATE_UP:
        return &l->experts_gate_up;
    case ROLE_EXPERTS_DOWN:
        return &l->experts_down;
    case ROLE_PLE_GATE:
        return &l->ple_gate;
    case ROLE_PLE_OUT:
        return &l->ple_proj;
    case ROLE_PLE_MODEL:
        return &w->ple_model_proj;
    case ROLE_HEAD:
        return &w->head;
    default:
        return NULL; /* gate and up of experts apart: this backend has them in one */
    }
}

static inline step_op *put(fused_steps *f, step_kind kind, int layer, const char *part, step_items reads,
                           step_items writes) {
    step_op *s = &f->out[f->n++];
    *s = (step_op){.kind = kind,
                   .layer = layer,
                   .source = -1,
                   .index = -1,
                   .rows = f->shape->rows,
                   .reads = reads,
                   .writes = writes,
                   .part = part};
    return s;
}

/* The matrices of an operation, and what they take. */
static inline void multiplies(const fused_steps *f, step_op *s, const program_op *o) {
    const model_config *c = f->shape->config;
    bool experts = o->kind == OP_EXPERT_PRODUCTS;
    double chosen = experts ? (double)s->rows * c->experts_per_token : 0;
    for (int i = 0; i < PROGRAM_MATRICES && o->slot[i]; i++) {
        const cuda_matrix *w = fused_matrix(f, o->slot[i]);
        if (!w) continue;
        double elements = (double)w->out * w->in, bytes = (double)matrix_read_bytes(w);
        s->matrix[s->matrices++] = w;
        s->bytes += experts ? (chosen < c->experts ? chosen / c->experts : 1) * bytes : bytes;
        s->operations += experts ? 2 * elements / c->experts * c->experts_per_token * s->rows : 2 * elements * s->rows;
    }
}

/* --------------------------------------------------------------------------------------------- restored positions */

static inline int fused_mixed(const step_shape *s, int layer) {
    if (!s->prompt) return s->rows;
    int before = s->plain_from[layer] - s->position;
    return before < 0 ? 0 : before < s->rows ? before : s->rows;
}

static inline bool fused_restores(const step_shape *s, int layer) {
    return s->restore[s->config->layer[layer].kv_source] != RESTORE_NONE && fused_mixed(s, layer) > 0;
}

static inline void put_restore(fused_steps *f, int source, int set, bool alone) {
    const step_shape *s = f->shape;
    const cuda_matrix *decoder[2] = {&s->weights->decoder_k[source], &s->weights->decoder_v[source]};
    const int rank[2] = {s->rank_k, s->rank_v};
    restore_form form = s->restore[source];
    step_items to = set ? SET(RESTORED_1) : SET(RESTORED_0);
    int first = f->n;
    double seen = s->restored_positions;
    if (form == RESTORE_PRODUCT || form == RESTORE_KEYS) {
        int halves = form == RESTORE_KEYS ? 1 : 2, ranks = 0;
        step_op *r = put(f, STEP_RESTORE, source, "decode latents", SET(GATHERED), to);
        for (int i = 0; i < halves; i++) {
            ranks += rank[i];
            r->bytes += (double)matrix_read_bytes(decoder[i]);
        }
        r->bytes += sizeof(cuda_bf16) * seen * ranks;
        r->operations = 2 * ((double)decoder[0]->out * ranks) * seen;
        r->alone = alone;
    } else if (form == RESTORE_PRODUCTS) {
        for (int i = 0; i < 2; i++) {
            step_op *r = put(f, i ? STEP_RESTORE_VALUES : STEP_RESTORE_KEYS, source, "decode latents", SET(GATHERED),
                             i ? SET(RAW_VALUES) : SET(RAW_KEYS));
            r->bytes = (double)matrix_read_bytes(decoder[i]) + sizeof(cuda_bf16) * seen * rank[i];
            r->operations = 2 * ((double)decoder[i]->out * rank[i]) * seen;
        }
        put(f, STEP_RESTORE_FINISH, source, "restored K/V", SET(GATHERED) | SET(RAW_KEYS) | SET(RAW_VALUES), to);
    } else {
        put(f, STEP_RESTORE_ROWS, source, "restored K/V", SET(LATENTS), to);
    }
    for (int i = first; i < f->n; i++) {
        f->out[i].source = source;
        f->out[i].index = set;
        f->out[i].beside = !f->chained;
    }
}

/* The next OP_RESTORE from an operation on; n_ops: none. */
static inline int next_restore(const fused_steps *f, int from) {
    while (from < f->n_ops && f->ops[from].kind != OP_RESTORE) from++;
    return from;
}

static inline void restore_beside(fused_steps *f) {
    int at = next_restore(f, f->next);
    f->next = at + 1;
    if (at < f->n_ops) put_restore(f, f->ops[at].source, f->asked++ % 2, false);
}

static inline void restore_between(fused_steps *f, int from, bool first) {
    int at = next_restore(f, from);
    if (!f->chained || (f->latents && !f->keys) || at >= f->n_ops || f->ops[at].source == f->held) return;
    f->held = f->ops[at].source;
    put_restore(f, f->held, 0, first);
}

static inline void begin_restoring(fused_steps *f) {
    bool gathers = false;
    f->chained = !f->shape->prompt;
    for (int i = next_restore(f, 0); i < f->n_ops; i = next_restore(f, i + 1)) {
        restore_form form = f->shape->restore[f->ops[i].source];
        gathers |= form != RESTORE_ROWS;
        f->latents |= form == RESTORE_LATENTS || form == RESTORE_KEYS;
        f->keys |= form == RESTORE_KEYS;
        f->chained &= form == RESTORE_PRODUCT || form == RESTORE_LATENTS || form == RESTORE_KEYS;
    }
    if (next_restore(f, 0) == f->n_ops) {
        f->chained = false;
        return;
    }
    if (!f->chained) put(f, STEP_FORK, -1, "restored K/V", 0, 0)->index = 0;
    if (gathers) put(f, STEP_RESTORE_GATHER, -1, "restored K/V", SET(LATENTS), SET(GATHERED))->beside = !f->chained;
    if (!f->chained) restore_beside(f);
    restore_between(f, 0, true);
}

static inline void join_restored(fused_steps *f, int layer) {
    if (f->chained) return;
    put(f, STEP_FORK, layer, "restored K/V", 0, 0)->index = 1;
    restore_beside(f);
    put(f, STEP_JOIN, layer, "restored K/V", 0, 0)->index = f->attended % 2;
}

/* --------------------------------------------------------------------------------------------------- attention */

static inline bool fused_full(const program_op *o) { return o->window == 0; }

static inline void put_heads(fused_steps *f, const program_op *o, bool stored) {
    const model_config *c = f->shape->config;
    bool own = o->head[1].item != DATA_NONE;
    step_items turns = c->layer[o->layer].type == LAYER_FULL ? SET(TURNS_FULL) : SET(TURNS_SLIDING);
    step_op *s = put(f, STEP_HEAD_ROWS, o->layer, "head norms, RoPE, store", SET(PROJECTED) | turns,
                     SET(Q) | (!own     ? 0
                               : stored ? SET(KV)
                                        : SET(CHUNK)));
    s->source = o->source;
    s->index = f->shape->prompt && f->shape->ring[o->source];
}

static inline void put_attend(fused_steps *f, const program_op *o) {
    const step_shape *s = f->shape;
    const layer_config *source = &s->config->layer[o->source];
    bool restored = o->in[2] == DATA_RESTORED, chunk = s->prompt && s->ring[o->source];
    const char *part = fused_full(o) ? "attention, full" : "attention, sliding";
    int mixed = fused_mixed(s, o->layer), set = f->chained ? 0 : f->attended % 2;
    step_items seen = SET(Q) | SET(KV) | (chunk ? SET(CHUNK) : 0);
    if (mixed) {
        bool latents = restored && f->latents;
        step_items other = latents    ? SET(GATHERED) | (f->keys ? SET(RESTORED_0) : 0)
                           : restored ? (set ? SET(RESTORED_1) : SET(RESTORED_0))
                                      : 0;
        step_op *a = put(f, latents ? STEP_ATTEND_LATENTS : STEP_ATTEND, o->layer, part, seen | other, SET(ATTENDED));
        a->source = o->source;
        a->index = restored && !latents ? set : -1;
        a->alone = latents && !f->keys && !f->attends_latents;
        f->attends_latents |= latents;
        int visible = s->position + 1;
        if (o->window && visible > o->window) visible = o->window;
        int exact = s->bounded[o->source] && s->exact_positions < visible ? s->exact_positions : visible;
        double row = (double)source->kv_heads * source->head_dim, positions = s->restored_positions;
        if (!latents) a->rows = mixed;
        a->bytes = row *
                   ((source->k_eq_v ? 1 : 2) * (double)exact + (restored && !latents ? 2.0 * (visible - exact) : 0)) *
                   sizeof(cuda_bf16);
        a->operations = 4.0 * s->config->heads * o->width * visible * a->rows;
        if (latents) {
            const cuda_matrix *k = &s->weights->decoder_k[o->source], *v = &s->weights->decoder_v[o->source];
            a->bytes += (double)matrix_read_bytes(v) + sizeof(cuda_bf16) * positions * s->rank_v;
            if (f->keys) {
                a->bytes += sizeof(cuda_bf16) * positions * k->out;
            } else {
                a->bytes += (double)matrix_read_bytes(k) + sizeof(cuda_bf16) * positions * s->rank_k;
                a->operations += 2.0 * k->out * s->rank_k * positions;
            }
        }
    }
    if (mixed < s->rows) {
        step_op *a = put(f, STEP_PROMPT_ATTEND, o->layer, part, seen, SET(ATTENDED) | SET(PROJECTED));
        a->source = o->source;
        a->first_row = mixed;
        a->rows = s->rows - mixed;
    }
    f->attended += restored;
}

/* -------------------------------------------------------------------------------------------------- the others */

static inline void put_products(fused_steps *f, const program_op *o) {
    const model_config *c = f->shape->config;
    bool full = o->layer >= 0 && c->layer[o->layer].type == LAYER_FULL;
    step_op *s = NULL;
    switch (program_slot_role(o->slot[0])) {
    case ROLE_Q:
        s = put(f, STEP_QKV, o->layer, full ? "q/k/v, full" : "q/k/v, sliding", SET(X), SET(PROJECTED));
        break;
    case ROLE_O:
        s = put(f, STEP_OUT, o->layer, full ? "o, full" : "o, sliding", SET(ATTENDED), SET(BRANCH));
        break;
    case ROLE_GATE:
        s = put(f, f->shape->prompt ? STEP_DENSE_GATE_UP : STEP_GATE_UP, o->layer, "gate/up", SET(X), SET(ACT));
        break;
    case ROLE_DOWN:
        s = put(f, f->shape->prompt ? STEP_DENSE_DOWN : STEP_DOWN, o->layer, "down", SET(ACT), SET(BRANCH));
        break;
    case ROLE_PLE_MODEL: /* the residual stream is rounded for it alone */
        put(f, STEP_PLE_ROUND, -1, "per-layer inputs", SET(H), SET(X_PLE));
        s = put(f, STEP_PLE_PROJECT, -1, "per-layer inputs", SET(X_PLE), SET(PLE));
        break;
    case ROLE_PLE_GATE:
        s = put(f, STEP_PLE_GATE, o->layer, "per-layer gate", SET(X), SET(PLE_GATE));
        break;
    default:
        s = put(f, STEP_PLE_OUT, o->layer, "per-layer projection", SET(ACT), SET(BRANCH));
        break;
    }
    multiplies(f, s, o);
}

static inline void put_experts(fused_steps *f, const program_op *o) {
    bool gated = o->epilogue == EPILOGUE_GATED;
    step_op *s = gated ? put(f, STEP_EXPERTS_GATE_UP, o->layer, "gate/up", SET(X_EXPERTS) | SET(ROUTE),
                             SET(ACT_EXPERTS) | SET(EXPERTS_OUT))
                       : put(f, STEP_EXPERTS_DOWN, o->layer, "down", SET(ACT_EXPERTS) | SET(ROUTE), SET(EXPERTS_OUT));
    multiplies(f, s, o);
}

/* The first tap of a layer from `first` on. */
static inline int fused_tap(const step_shape *s, int layer, int first) {
    while (first < s->taps && s->tap[first].layer != layer) first++;
    return first < s->taps ? first : -1;
}

/* Of two programs with the same verbs the one behind per-layer embeddings has a name of its own. */
static inline void put_rows(fused_steps *f, const program_op *o) {
    const step_shape *s = f->shape;
    const model_config *c = s->config;
    bool last = o->layer + 1 == c->layers;
    if (o->parts > 1) {
        put(f, STEP_PLE_COMBINE, -1, "per-layer inputs", SET(PLE), SET(PLE));
    } else if (o->width == c->ple_width) {
        put(f, STEP_PLE_ACTIVATE, o->layer, "per-layer gate", SET(PLE_GATE) | SET(PLE), SET(ACT));
    } else if (c->ple_width && o->steps == 6) {
        put(f, STEP_PLE_ADD, o->layer, "per-layer projection", SET(BRANCH) | SET(H),
            SET(H) | SET(X) | (last ? SET(NORMED) : 0));
    } else {
        bool whole = model_shard_is_whole(s->shard);
        step_items experts = !c->moe ? 0 : whole ? SET(EXPERTS_OUT) | SET(ROUTE) : SET(MIXED);
        step_op *r = put(f, STEP_AFTER_FFN, o->layer, "norms after feed-forward",
                         (c->moe && !s->prompt ? SET(MIDDLE) : SET(H)) | SET(BRANCH) | experts,
                         SET(H) | SET(X) | (last && !c->ple_width ? SET(NORMED) : 0));
        r->index = c->ple_width ? -1 : fused_tap(s, o->layer, 0);
        if (r->index >= 0) r->writes |= SET(AUX);
    }
}

static inline void put_norms(fused_steps *f, const program_op *o, const program_op *router) {
    bool moe = f->shape->config->moe;
    step_op *s = put(f, STEP_AFTER_ATTENTION, o->layer, "norms after attention", SET(H) | SET(BRANCH),
                     (router ? SET(MIDDLE) : SET(H)) | SET(X) | (moe ? SET(X_EXPERTS) | SET(MIDDLE) : 0));
    if (!router) return;
    multiplies(f, s, router);
    s->writes |= SET(ROUTE);
}

static inline void put_side_by_side(fused_steps *f, const program_op *dense, const program_op *experts) {
    put_products(f, dense);
    step_op *s = &f->out[f->n - 1];
    bool gated = dense->epilogue == EPILOGUE_GATED;
    s->reads |= SET(ROUTE) | (gated ? SET(X_EXPERTS) : SET(ACT_EXPERTS));
    s->writes |= gated ? SET(ACT_EXPERTS) : SET(EXPERTS_OUT);
    multiplies(f, s, experts);
}

static inline void put_tap(fused_steps *f, const program_op *o) {
    const step_shape *s = f->shape;
    if (o->index == TAP_STATES) {
        put(f, STEP_HIDDEN_STATES, -1, "hidden states", o->in[0] == DATA_NORMED ? SET(NORMED) : SET(H), SET(STATES))
            ->index = o->part;
        return;
    }
    int t = fused_tap(s, o->layer, 0);
    if (t >= 0 && !s->config->ple_width) t = fused_tap(s, o->layer, t + 1); /* the first is the norms' own */
    for (; t >= 0; t = fused_tap(s, o->layer, t + 1))
        put(f, STEP_AUX, o->layer, "aux hidden states", SET(H), SET(AUX))->index = t;
}

static inline void put_head(fused_steps *f, const program_op *o) {
    const step_shape *s = f->shape;
    step_items input = s->last_rows ? SET(LAST) : SET(X);
    bool greedy = s->head == STEP_HEAD_GREEDY, whole = model_shard_is_whole(s->shard);
    if (o->kind == OP_CHOOSE && greedy) {
        step_op *h = put(f, STEP_CHOOSE, -1, "head", input, SET(LOGITS) | SET(CHOICE));
        h->matrix[h->matrices++] = fused_matrix(f, o->slot[0]);
    } else if (o->kind == OP_LOGITS && !greedy) {
        multiplies(f, put(f, STEP_HEAD, -1, "head", input, SET(LOGITS)), o);
        if (!whole) put(f, STEP_MEET, -1, "exchange", SET(LOGITS), SET(LOGITS));
    } else if (o->kind == OP_CHOOSE && !s->shard.index) {
        put(f, STEP_ARGMAX, -1, "head", SET(LOGITS), SET(CHOICE));
        if (s->head == STEP_HEAD_LEADERS) put(f, STEP_LEADERS, -1, "head", SET(LOGITS) | SET(CHOICE), SET(LEADERS));
    }
}

static inline void put_launch(fused_steps *f, const program_op *o, int fused) {
    switch (fused) {
    case FUSE_EMBED:
        put(f, STEP_EMBED, -1, "embedding", 0, SET(H) | SET(X));
        return;
    case FUSE_NORMS_ROUTED:
        put_norms(f, o, o + 1);
        return;
    case FUSE_NORMS_MOE:
    case FUSE_NORMS:
        put_norms(f, o, NULL);
        return;
    case FUSE_ROUTER:
        multiplies(f, put(f, STEP_ROUTE, o->layer, "router", SET(MIDDLE), SET(ROUTE)), o);
        return;
    case FUSE_GATE_UP:
    case FUSE_DOWN:
        put_side_by_side(f, o, o + 1);
        return;
    case FUSE_MIX_AGREE:
        put(f, STEP_EXCHANGE, o->layer, "exchange", SET(BRANCH) | SET(EXPERTS_OUT) | SET(ROUTE),
            SET(BRANCH) | SET(MIXED))
            ->index = 1;
        return;
    case FUSE_HEADS_STORE:
        put_heads(f, o, true);
        return;
    default:
        break;
    }
    switch ((op_kind)o->kind) {
    case OP_PRODUCTS:
        put_products(f, o);
        break;
    case OP_EXPERT_PRODUCTS:
        put_experts(f, o);
        break;
    case OP_HEADS:
        put_heads(f, o, false);
        break;
    case OP_STORE:
        put(f, STEP_STORE_CHUNK, o->layer, "head norms, RoPE, store", SET(CHUNK), SET(KV))->source = o->source;
        break;
    case OP_RESTORE:
        join_restored(f, o->layer);
        break;
    case OP_ATTEND:
        put_attend(f, o);
        break;
    case OP_ROWS:
        put_rows(f, o);
        break;
    case OP_TAP:
        put_tap(f, o);
        break;
    case OP_AGREE:
        put(f, STEP_EXCHANGE, o->layer, "exchange", SET(BRANCH), SET(BRANCH))->index = 0;
        break;
    default:
        put_head(f, o);
    }
}

/* ops, launches: room of program_most_ops. */
static inline int fused_steps_make(const step_shape *s, program_op *ops, program_launch *launches, step_op *out) {
    program_shape shape = {.shard = s->shard, .rows = s->prompt ? ROWS_PROMPT : ROWS_DECODE};
    shape.wants = (s->hidden_states ? PROGRAM_WANTS(TAP_STATES) : 0) | (s->taps ? PROGRAM_WANTS(TAP_AUX) : 0);
    for (int t = 0; t < s->taps; t++) layer_add(&shape.aux, s->tap[t].layer);
    for (int i = 0; i < s->config->layers; i++) {
        if (s->ring[i]) layer_add(&shape.rings, i);
        if (fused_restores(s, i)) layer_add(&shape.restores, i);
    }
    fused_steps f = {.shape = s, .ops = ops, .out = out, .held = -1};
    f.n_ops = program_verifier(s->config, &shape, ops);
    int n = program_launches(cuda_machine(s->prompt), ops, f.n_ops, launches);
    for (int type = 0; type < 2; type++)
        put(&f, STEP_TURNS, -1, "embedding", 0, type == LAYER_FULL ? SET(TURNS_FULL) : SET(TURNS_SLIDING))->index =
            type;
    bool begun = false;
    for (int i = 0; i < n; i++) {
        const program_op *o = &ops[launches[i].first];
        int fusion = launches[i].fusion;
        if (fusion >= 0 && s->prompt) fusion += CUDA_PROMPT_FUSIONS;
        bool prologue = fusion == FUSE_EMBED || (o->kind == OP_TAP && o->layer < 0);
        bool head = o->kind == OP_LOGITS || o->kind == OP_CHOOSE;
        if (!begun && !prologue) {
            begin_restoring(&f);
            begun = true;
        }
        if (s->prompt && head) continue; /* last rows wait for a head that comes later */
        put_launch(&f, o, fusion);
        /* Behind a layer's last norms, and what is kept of them. */
        const program_op *next = &ops[launches[i].first + launches[i].n];
        bool ends = (o->kind == OP_ROWS && o->out[1] && launches[i].fusion < 0 && o->parts == 1 && o->layer >= 0) ||
                    (o->kind == OP_TAP && o->index == TAP_AUX);
        if (ends && !(next->kind == OP_TAP && next->index == TAP_AUX))
            restore_between(&f, launches[i].first + launches[i].n, false);
    }
    if (s->prompt && s->last_rows) put(&f, STEP_LAST_ROWS, -1, "head", SET(X), SET(LAST));
    return f.n;
}

#endif
