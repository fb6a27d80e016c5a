#include "backend/cuda/step.h"

#include "backend/cuda/matrix.h"
#include "backend/timeline.h"

typedef struct builder {
    const step_shape *shape;
    step_op *ops;
    int n;
    bool chained;         /* decode: restored layers are decoded between the kernels of the step, not beside it */
    bool latents;         /* chained: decode rows attend latents ... */
    bool keys;            /* ... and keys alone are decoded, else nothing is ... */
    bool attends_latents; /* ... and have begun to */
    int held;             /* chained: layer whose positions the restore buffers hold; -1: none */
    int restored;         /* beside: layers whose positions have been asked for ... */
    int attended;         /* ... and of those, layers that have used them */
    int next;             /* beside: first layer that may come after them */
} builder;

/* ------------------------------------------------------------------------------------------------- operations */

static step_op *add(builder *b, step_kind kind, int layer, const char *part, step_items reads, step_items writes) {
    step_op *op = &b->ops[b->n++];
    *op = (step_op){.kind = kind,
                    .layer = layer,
                    .source = -1,
                    .index = -1,
                    .rows = b->shape->rows,
                    .reads = reads,
                    .writes = writes,
                    .part = part};
    return op;
}

static double elements_of(const cuda_matrix *w) { return (double)w->out * w->in; }

static void multiply(step_op *op, const cuda_matrix *w) {
    op->matrix[op->matrices++] = w;
    op->bytes += matrix_read_bytes(w);
    op->operations += 2 * elements_of(w) * op->rows;
}

static step_op *add_product(builder *b, step_kind kind, int layer, const char *part, const cuda_matrix *w,
                            step_items reads, step_items writes) {
    step_op *op = add(b, kind, layer, part, reads, writes);
    multiply(op, w);
    return op;
}

static step_items turns_item(layer_type type) {
    return STEP_ITEM(type == LAYER_FULL ? ITEM_TURNS_FULL : ITEM_TURNS_SLIDING);
}

static step_items restored_item(int set) { return STEP_ITEM(set ? ITEM_RESTORED_1 : ITEM_RESTORED_0); }

/* Several devices: what each has of a sum becomes the sum. */
static void exchange(builder *b, int layer, bool experts) {
    if (model_shard_is_whole(b->shape->shard)) return;
    step_items taken = STEP_ITEM(ITEM_BRANCH), made = STEP_ITEM(ITEM_BRANCH);
    if (experts) {
        taken |= STEP_ITEM(ITEM_EXPERTS_OUT) | STEP_ITEM(ITEM_ROUTE);
        made |= STEP_ITEM(ITEM_MIXED);
    }
    add(b, STEP_EXCHANGE, layer, "exchange", taken, made)->index = experts;
}

/* ------------------------------------------------------------------------------------------------- restoration */

/* Rows from the first one on that do not see one run of exact positions: all decode rows, and some of a prompt. */
static int mixed_rows(const step_shape *s, int layer) {
    if (!s->prompt) return s->rows;
    int before = s->plain_from[layer] - s->position;
    return before < 0 ? 0 : before < s->rows ? before : s->rows;
}

/* Does this layer attend restored positions? */
static bool restores(const step_shape *s, int layer) {
    return s->restore[s->config->layer[layer].kv_source] != RESTORE_NONE && mixed_rows(s, layer) > 0;
}

static void add_restore(builder *b, int source, int set, bool alone) {
    const step_shape *s = b->shape;
    const cuda_matrix *k = &s->weights->decoder_k[source], *v = &s->weights->decoder_v[source];
    bool beside = !b->chained;
    step_items gathered = STEP_ITEM(ITEM_GATHERED), set_item = restored_item(set);
    int first = b->n;
    if (s->restore[source] == RESTORE_PRODUCT || s->restore[source] == RESTORE_KEYS) {
        bool keys = s->restore[source] == RESTORE_KEYS;
        step_op *op = add(b, STEP_RESTORE, source, "decode latents", gathered, set_item);
        int ranks = s->rank_k + (keys ? 0 : s->rank_v);
        double elements = (double)k->out * ranks;
        op->bytes = matrix_read_bytes(k) + (keys ? 0 : matrix_read_bytes(v)) +
                    sizeof(cuda_bf16) * (double)s->restored_positions * ranks;
        op->operations = 2 * elements * s->restored_positions;
        op->alone = alone;
    } else if (s->restore[source] == RESTORE_PRODUCTS) {
        for (int half = 0; half < 2; half++) {
            step_op *op = add(b, half ? STEP_RESTORE_VALUES : STEP_RESTORE_KEYS, source, "decode latents", gathered,
                              STEP_ITEM(half ? ITEM_RAW_VALUES : ITEM_RAW_KEYS));
            int rank = half ? s->rank_v : s->rank_k;
            double elements = (double)(half ? v : k)->out * rank;
            op->bytes = matrix_read_bytes(half ? v : k) + sizeof(cuda_bf16) * (double)s->restored_positions * rank;
            op->operations = 2 * elements * s->restored_positions;
        }
        add(b, STEP_RESTORE_FINISH, source, "restored K/V",
            gathered | STEP_ITEM(ITEM_RAW_KEYS) | STEP_ITEM(ITEM_RAW_VALUES), set_item);
    } else {
        add(b, STEP_RESTORE_ROWS, source, "restored K/V", STEP_ITEM(ITEM_LATENTS), set_item);
    }
    for (int i = first; i < b->n; i++) {
        b->ops[i].source = source;
        b->ops[i].index = set;
        b->ops[i].beside = beside;
    }
}

/* Asks for the next layer that restores, into the buffers that the layer before the last one has left. Layers whose K/V
 * are shared come again with their own queries: then the same positions are decoded again. */
static void restore_next(builder *b) {
    const model_config *c = b->shape->config;
    while (b->next < c->layers && !restores(b->shape, b->next)) b->next++;
    if (b->next == c->layers) return;
    add_restore(b, c->layer[b->next++].kv_source, b->restored++ % 2, false);
}

/* Behind the norms that end `layer` (-1: behind the embedding): decodes what the next layer that restores will attend.
 * It begins while the layer's last products and norms leave multiprocessors idle. The buffers' last readers are long
 * done, as a product lies between, and so will be the decoding when it is read. */
static void restore_in_chain(builder *b, int layer) {
    const model_config *c = b->shape->config;
    if (b->latents && !b->keys) return;
    int next = layer + 1;
    while (next < c->layers && !restores(b->shape, next)) next++;
    if (next == c->layers || c->layer[next].kv_source == b->held) return;
    b->held = c->layer[next].kv_source;
    add_restore(b, b->held, 0, layer < 0); /* what the first one reads has just been gathered */
}

static void start_restoring(builder *b) {
    const step_shape *s = b->shape;
    bool any = false, gathers = false;
    b->chained = !s->prompt;
    for (int i = 0; i < s->config->layers; i++) {
        if (!restores(s, i)) continue;
        restore_form form = s->restore[s->config->layer[i].kv_source];
        any = true;
        gathers |= form != RESTORE_ROWS;
        b->latents |= form == RESTORE_LATENTS || form == RESTORE_KEYS;
        b->keys |= form == RESTORE_KEYS;
        b->chained &= form == RESTORE_PRODUCT || form == RESTORE_LATENTS || form == RESTORE_KEYS;
    }
    if (!any) {
        b->chained = false;
        return;
    }
    if (!b->chained) add(b, STEP_FORK, -1, "restored K/V", 0, 0)->index = 0;
    if (gathers)
        add(b, STEP_RESTORE_GATHER, -1, "restored K/V", STEP_ITEM(ITEM_LATENTS), STEP_ITEM(ITEM_GATHERED))->beside =
            !b->chained;
    if (b->chained)
        restore_in_chain(b, -1);
    else
        restore_next(b);
}

/* --------------------------------------------------------------------------------------------------- attention */

/* What the attention of one decode row reads: the K/V that it sees, once. */
static void count_attention(const step_shape *s, int layer, bool restored, step_op *op) {
    const layer_config *lc = &s->config->layer[layer];
    double row = (double)lc->kv_heads * lc->head_dim, copies = s->config->layer[lc->kv_source].k_eq_v ? 1 : 2;
    int visible = s->position + 1;
    if (lc->type == LAYER_SLIDING && visible > s->config->sliding_window) visible = s->config->sliding_window;
    int exact = visible;
    if (s->bounded[lc->kv_source] && s->exact_positions < visible) exact = s->exact_positions;
    op->bytes = row * (copies * exact + (restored ? 2.0 * (visible - exact) : 0)) * sizeof(cuda_bf16);
    op->operations = 4.0 * s->config->heads * lc->head_dim * visible * op->rows;
}

/* The same of a layer whose evicted positions are latents, from which one product makes keys. */
static void count_latents(const step_shape *s, int layer, step_op *op) {
    const layer_config *lc = &s->config->layer[layer];
    const cuda_matrix *k = &s->weights->decoder_k[lc->kv_source], *v = &s->weights->decoder_v[lc->kv_source];
    count_attention(s, layer, false, op);
    op->bytes += matrix_read_bytes(v) + sizeof(cuda_bf16) * (double)s->restored_positions * s->rank_v;
    if (s->restore[lc->kv_source] == RESTORE_KEYS) {
        op->bytes += sizeof(cuda_bf16) * (double)s->restored_positions * k->out;
        return;
    }
    op->bytes += matrix_read_bytes(k) + sizeof(cuda_bf16) * (double)s->restored_positions * s->rank_k;
    op->operations += 2.0 * k->out * s->rank_k * s->restored_positions;
}

/* Where nothing is decoded, the first of them waits for the latents, which have just been gathered. */
static void attend_latents(builder *b, int layer, const char *part, step_items seen) {
    if (b->keys) seen |= restored_item(0);
    step_op *op = add(b, STEP_ATTEND_LATENTS, layer, part, seen | STEP_ITEM(ITEM_GATHERED), STEP_ITEM(ITEM_ATTENDED));
    op->source = b->shape->config->layer[layer].kv_source;
    op->alone = !b->keys && !b->attends_latents;
    b->attends_latents = true;
    count_latents(b->shape, layer, op);
}

static void store_chunk(builder *b, int source) {
    add(b, STEP_STORE_CHUNK, source, "head norms, RoPE, store", STEP_ITEM(ITEM_CHUNK), STEP_ITEM(ITEM_KV))->source =
        source;
}

static bool stays_in_chunk(const step_shape *s, int source) { return s->prompt && s->ring[source]; }

static bool is_shared(const model_config *c, int source) {
    for (int i = source + 1; i < c->layers; i++) {
        if (c->layer[i].kv_source == source) return true;
    }
    return false;
}

static void attention(builder *b, int layer) {
    const step_shape *s = b->shape;
    const layer_config *lc = &s->config->layer[layer];
    const cuda_layer *w = &s->weights->layer[layer];
    int source = lc->kv_source, mixed = mixed_rows(s, layer);
    bool full = lc->type == LAYER_FULL, own = source == layer, chunk = stays_in_chunk(s, source),
         restored = restores(s, layer);

    step_op *op = add_product(b, STEP_QKV, layer, full ? "q/k/v, full" : "q/k/v, sliding", &w->q, STEP_ITEM(ITEM_X),
                              STEP_ITEM(ITEM_PROJECTED));
    if (own) multiply(op, &w->k);
    if (own && !lc->k_eq_v) multiply(op, &w->v);
    int set = b->chained ? 0 : b->attended % 2;
    if (restored &&
        !b->chained) { /* this layer's positions must be there; the next one's are decoded while it attends */
        add(b, STEP_FORK, layer, "restored K/V", 0, 0)->index = 1;
        restore_next(b);
        add(b, STEP_JOIN, layer, "restored K/V", 0, 0)->index = set;
    }
    op = add(b, STEP_HEAD_ROWS, layer, "head norms, RoPE, store", STEP_ITEM(ITEM_PROJECTED) | turns_item(lc->type),
             STEP_ITEM(ITEM_Q) | (own ? STEP_ITEM(chunk ? ITEM_CHUNK : ITEM_KV) : 0));
    op->source = source;
    op->index = chunk;
    const char *part = full ? "attention, full" : "attention, sliding";
    step_items seen = STEP_ITEM(ITEM_Q) | STEP_ITEM(ITEM_KV) | (chunk ? STEP_ITEM(ITEM_CHUNK) : 0);
    if (mixed > 0 && restored && b->latents) {
        attend_latents(b, layer, part, seen);
    } else if (mixed > 0) {
        op = add(b, STEP_ATTEND, layer, part, seen | (restored ? restored_item(set) : 0), STEP_ITEM(ITEM_ATTENDED));
        op->source = source;
        op->index = restored ? set : -1;
        op->rows = mixed;
        count_attention(s, layer, restored, op);
    }
    if (mixed < s->rows) { /* raw projections are its scratch; it leaves alone what the rows before have attended */
        op = add(b, STEP_PROMPT_ATTEND, layer, part, seen, STEP_ITEM(ITEM_ATTENDED) | STEP_ITEM(ITEM_PROJECTED));
        op->source = source;
        op->first_row = mixed;
        op->rows = s->rows - mixed;
    }
    b->attended += restored;
    /* The ring's new rows are written after its last reader: a layer that shares this K/V may follow. They survive in
     * the one chunk buffer until then: the shared sliding layer is the last one with K/V of its own, full-attention
     * layers do not use it. */
    if (own && chunk && !is_shared(s->config, layer)) store_chunk(b, layer);
    add_product(b, STEP_OUT, layer, full ? "o, full" : "o, sliding", &w->o, STEP_ITEM(ITEM_ATTENDED),
                STEP_ITEM(ITEM_BRANCH));
    exchange(b, layer, false);
}

/* ------------------------------------------------------------------------------------------------ feed forward */

/* The first of the taps from `first` on that is this layer's output; -1: none is. */
static int next_tap(const step_shape *s, int layer, int first) {
    for (int t = first; t < s->taps; t++) {
        if (s->tap[t].layer == layer) return t;
    }
    return -1;
}

/* Of all experts, those that a step reads at most. */
static double expert_share(const step_shape *s) {
    double chosen = (double)s->rows * s->config->experts_per_token;
    return chosen < s->config->experts ? chosen / s->config->experts : 1;
}

static void count_experts(const step_shape *s, step_op *op, const cuda_matrix *w) {
    op->bytes += expert_share(s) * matrix_read_bytes(w);
    op->operations += 2 * elements_of(w) / s->config->experts * s->config->experts_per_token * s->rows;
}

static void decode_feed_forward(builder *b, int layer) {
    const step_shape *s = b->shape;
    const cuda_layer *w = &s->weights->layer[layer];
    bool moe = s->config->moe;
    step_items routed = moe ? STEP_ITEM(ITEM_ROUTE) : 0;
    step_op *op =
        add_product(b, STEP_GATE_UP, layer, "gate/up", &w->gate, STEP_ITEM(ITEM_X) | routed, STEP_ITEM(ITEM_ACT));
    multiply(op, &w->up);
    if (moe) {
        op->matrix[op->matrices++] = &w->experts_gate_up;
        op->reads |= STEP_ITEM(ITEM_X_EXPERTS);
        op->writes |= STEP_ITEM(ITEM_ACT_EXPERTS);
        count_experts(s, op, &w->experts_gate_up);
    }
    op = add_product(b, STEP_DOWN, layer, "down", &w->down, STEP_ITEM(ITEM_ACT) | routed, STEP_ITEM(ITEM_BRANCH));
    if (moe) {
        op->matrix[op->matrices++] = &w->experts_down;
        op->reads |= STEP_ITEM(ITEM_ACT_EXPERTS);
        op->writes |= STEP_ITEM(ITEM_EXPERTS_OUT);
        count_experts(s, op, &w->experts_down);
    }
}

static void prompt_feed_forward(builder *b, int layer) {
    const step_shape *s = b->shape;
    const cuda_layer *w = &s->weights->layer[layer];
    step_op *op =
        add_product(b, STEP_DENSE_GATE_UP, layer, "gate/up", &w->gate, STEP_ITEM(ITEM_X), STEP_ITEM(ITEM_ACT));
    multiply(op, &w->up);
    add_product(b, STEP_DENSE_DOWN, layer, "down", &w->down, STEP_ITEM(ITEM_ACT), STEP_ITEM(ITEM_BRANCH));
    if (!s->config->moe) return;
    /* Rows are gathered where the experts' outputs will lie. */
    op = add(b, STEP_EXPERTS_GATE_UP, layer, "gate/up", STEP_ITEM(ITEM_X_EXPERTS) | STEP_ITEM(ITEM_ROUTE),
             STEP_ITEM(ITEM_ACT_EXPERTS) | STEP_ITEM(ITEM_EXPERTS_OUT));
    op->matrix[op->matrices++] = &w->experts_gate_up;
    count_experts(s, op, &w->experts_gate_up);
    op = add(b, STEP_EXPERTS_DOWN, layer, "down", STEP_ITEM(ITEM_ACT_EXPERTS) | STEP_ITEM(ITEM_ROUTE),
             STEP_ITEM(ITEM_EXPERTS_OUT));
    op->matrix[op->matrices++] = &w->experts_down;
    count_experts(s, op, &w->experts_down);
}

static void feed_forward(builder *b, int layer) {
    const step_shape *s = b->shape;
    const model_config *c = s->config;
    const cuda_layer *w = &s->weights->layer[layer];
    bool routed = c->moe && !s->prompt, last = layer + 1 == c->layers;
    /* Decode rows of routed models keep the residual stream between attention and experts in a buffer of its own. */
    step_items middle = STEP_ITEM(routed ? ITEM_MIDDLE : ITEM_H);

    step_op *op =
        add(b, STEP_AFTER_ATTENTION, layer, "norms after attention", STEP_ITEM(ITEM_H) | STEP_ITEM(ITEM_BRANCH),
            middle | STEP_ITEM(ITEM_X) | (c->moe ? STEP_ITEM(ITEM_X_EXPERTS) | STEP_ITEM(ITEM_MIDDLE) : 0));
    if (routed) {
        multiply(op, &w->router);
        op->writes |= STEP_ITEM(ITEM_ROUTE);
    }
    if (s->prompt && c->moe)
        add_product(b, STEP_ROUTE, layer, "router", &w->router, STEP_ITEM(ITEM_MIDDLE), STEP_ITEM(ITEM_ROUTE));
    if (c->moe && s->weights->bounded)
        add(b, STEP_FETCH, layer, "experts from the host", STEP_ITEM(ITEM_ROUTE), STEP_ITEM(ITEM_ROUTE));
    if (s->prompt)
        prompt_feed_forward(b, layer);
    else
        decode_feed_forward(b, layer);
    exchange(b, layer, c->moe);

    step_items experts =
        model_shard_is_whole(s->shard) ? STEP_ITEM(ITEM_EXPERTS_OUT) | STEP_ITEM(ITEM_ROUTE) : STEP_ITEM(ITEM_MIXED);
    op = add(b, STEP_AFTER_FFN, layer, "norms after feed-forward",
             middle | STEP_ITEM(ITEM_BRANCH) | (c->moe ? experts : 0),
             STEP_ITEM(ITEM_H) | STEP_ITEM(ITEM_X) | (last && !c->ple_width ? STEP_ITEM(ITEM_NORMED) : 0));
    op->index = c->ple_width ? -1 : next_tap(s, layer, 0);
    if (op->index >= 0) op->writes |= STEP_ITEM(ITEM_AUX);
}

/* ---------------------------------------------------------------------------------------- per-layer embeddings */

static void ple_inputs(builder *b) {
    static const char part[] = "per-layer inputs";
    add(b, STEP_PLE_ROUND, -1, part, STEP_ITEM(ITEM_H), STEP_ITEM(ITEM_X_PLE));
    add_product(b, STEP_PLE_PROJECT, -1, part, &b->shape->weights->ple_model_proj, STEP_ITEM(ITEM_X_PLE),
                STEP_ITEM(ITEM_PLE));
    add(b, STEP_PLE_COMBINE, -1, part, STEP_ITEM(ITEM_PLE), STEP_ITEM(ITEM_PLE));
}

static void ple(builder *b, int layer) {
    const step_shape *s = b->shape;
    const cuda_layer *w = &s->weights->layer[layer];
    bool last = layer + 1 == s->config->layers;
    add_product(b, STEP_PLE_GATE, layer, "per-layer gate", &w->ple_gate, STEP_ITEM(ITEM_X), STEP_ITEM(ITEM_PLE_GATE));
    add(b, STEP_PLE_ACTIVATE, layer, "per-layer gate", STEP_ITEM(ITEM_PLE_GATE) | STEP_ITEM(ITEM_PLE),
        STEP_ITEM(ITEM_ACT));
    add_product(b, STEP_PLE_OUT, layer, "per-layer projection", &w->ple_proj, STEP_ITEM(ITEM_ACT),
                STEP_ITEM(ITEM_BRANCH));
    add(b, STEP_PLE_ADD, layer, "per-layer projection", STEP_ITEM(ITEM_BRANCH) | STEP_ITEM(ITEM_H),
        STEP_ITEM(ITEM_H) | STEP_ITEM(ITEM_X) | (last ? STEP_ITEM(ITEM_NORMED) : 0));
}

/* ------------------------------------------------------------------------------------------------- the whole */

static void copy_hidden(builder *b, int index) {
    if (!b->shape->hidden_states) return;
    bool last = index == b->shape->config->layers;
    add(b, STEP_HIDDEN_STATES, -1, "hidden states", STEP_ITEM(last ? ITEM_NORMED : ITEM_H), STEP_ITEM(ITEM_STATES))
        ->index = index;
}

/* Outputs that are kept. The first is the feed-forward block's own where that ends the layer. */
static void copy_aux(builder *b, int layer) {
    const step_shape *s = b->shape;
    int t = next_tap(s, layer, 0);
    if (t >= 0 && !s->config->ple_width) t = next_tap(s, layer, t + 1);
    for (; t >= 0; t = next_tap(s, layer, t + 1))
        add(b, STEP_AUX, layer, "aux hidden states", STEP_ITEM(ITEM_H), STEP_ITEM(ITEM_AUX))->index = t;
}

static void head(builder *b) {
    const step_shape *s = b->shape;
    step_items input = STEP_ITEM(s->last_rows ? ITEM_LAST : ITEM_X);
    if (!s->prompt && s->head == STEP_HEAD_GREEDY) {
        step_op *op = add(b, STEP_CHOOSE, -1, "head", input, STEP_ITEM(ITEM_LOGITS) | STEP_ITEM(ITEM_CHOICE));
        op->matrix[op->matrices++] = &s->weights->head; /* of which an int8 copy is read: the kernels count it */
        return;
    }
    /* Devices write to the logits of the first one, which in a prompt may still be at those before. */
    bool whole = model_shard_is_whole(s->shard);
    if (!whole && s->prompt) add(b, STEP_MEET, -1, "exchange", 0, STEP_ITEM(ITEM_LOGITS));
    add_product(b, STEP_HEAD, -1, "head", &s->weights->head, input, STEP_ITEM(ITEM_LOGITS));
    if (!whole) add(b, STEP_MEET, -1, "exchange", STEP_ITEM(ITEM_LOGITS), STEP_ITEM(ITEM_LOGITS));
    if (s->shard.index) return;
    add(b, STEP_ARGMAX, -1, "head", STEP_ITEM(ITEM_LOGITS), STEP_ITEM(ITEM_CHOICE));
    if (!s->prompt && s->head == STEP_HEAD_LEADERS)
        add(b, STEP_LEADERS, -1, "head", STEP_ITEM(ITEM_LOGITS) | STEP_ITEM(ITEM_CHOICE), STEP_ITEM(ITEM_LEADERS));
}

int step_most_ops(const model_config *config) {
    enum { OF_A_LAYER = 29, OTHERS = 32 };
    return config->layers * OF_A_LAYER + TIMELINE_MAX_TAPS + OTHERS;
}

int step_build(const step_shape *s, step_op *ops) {
    const model_config *c = s->config;
    builder b = {.shape = s, .ops = ops, .held = -1};
    for (int type = 0; type < 2; type++)
        add(&b, STEP_TURNS, -1, "embedding", 0, turns_item((layer_type)type))->index = type;
    add(&b, STEP_EMBED, -1, "embedding", 0, STEP_ITEM(ITEM_H) | STEP_ITEM(ITEM_X));
    copy_hidden(&b, 0);
    start_restoring(&b);
    if (c->ple_width) ple_inputs(&b);
    for (int i = 0; i < c->layers; i++) {
        attention(&b, i);
        feed_forward(&b, i);
        if (c->ple_width) ple(&b, i);
        copy_aux(&b, i);
        if (b.chained) restore_in_chain(&b, i);
        if (i + 1 < c->layers) copy_hidden(&b, i + 1);
    }
    copy_hidden(&b, c->layers);
    if (s->states) add(&b, STEP_KEEP, -1, "hidden states", STEP_ITEM(ITEM_NORMED), STEP_ITEM(ITEM_KEPT));
    /* K/V that later layers shared: nobody reads the chunk any more. */
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].kv_source == i && stays_in_chunk(s, i) && is_shared(c, i)) store_chunk(&b, i);
    }
    if (s->prompt && s->last_rows) add(&b, STEP_LAST_ROWS, -1, "head", STEP_ITEM(ITEM_X), STEP_ITEM(ITEM_LAST));
    if (!s->prompt) head(&b);
    return b.n;
}

int step_build_head(const step_shape *s, step_op *ops) {
    builder b = {.shape = s, .ops = ops};
    head(&b);
    return b.n;
}

bool step_depends(const step_op *later, const step_op *earlier) {
    step_items shared = (later->reads & earlier->writes) | (later->writes & (earlier->reads | earlier->writes));
    if (later->source != earlier->source) shared &= ~STEP_ITEM(ITEM_KV);
    return shared != 0;
}
