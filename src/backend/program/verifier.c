/* The verifier as a list (order of operations: transformers 5.17, Gemma4TextDecoderLayer). */
#include <math.h>
#include <stddef.h>

#include "backend/program/build.h"

typedef struct builder {
    const model_config *config;
    const program_shape *shape;
    program_list list;
    int layer; /* in work; 0 before the first, so that a slot of the model is one of it */
} builder;

static uint16_t slot(const builder *b, slot_role role) { return program_slot(b->layer, role); }

static void also(uint8_t *items, program_item item) {
    while (*items) items++;
    *items = (uint8_t)item;
}

static program_op *products(builder *b, int layer, program_item in, program_item out, slot_role role) {
    program_op *o = op_add(&b->list, OP_PRODUCTS, layer, in, out);
    o->slot[0] = program_slot(layer < 0 ? 0 : layer, role);
    return o;
}

/* ------------------------------------------------------------------------------------------------ row programs */

static void load(program_op *o, int into, program_item item) { op_add_step(o, ROW_LOAD, into, into, 0, item); }
static void norm(program_op *o, int into, int from, uint16_t vector, program_item item) {
    op_add_step(o, ROW_NORM, into, from, vector, item);
}
static void sum(program_op *o, int into, int from, program_item item) { op_add_step(o, ROW_ADD, into, from, 0, item); }
static void scale(program_op *o, int into, float by, program_item item) {
    op_add_step(o, ROW_SCALE, into, into, 0, item)->scalar = by;
}

/* --------------------------------------------------------------------------------------------------------- taps */

static bool wanted(const builder *b, tap_reason reason) { return b->shape->wants & PROGRAM_WANTS(reason); }

static void tap(builder *b, tap_reason reason, int layer, int part, program_item item) {
    if (!wanted(b, reason)) return;
    program_op *o = op_add(&b->list, OP_TAP, layer, item, reason == TAP_RECODE ? DATA_NEW_KV : DATA_OUTSIDE);
    o->index = (uint8_t)reason;
    o->part = (int16_t)part;
}

static bool is_whole(const builder *b) { return model_shard_is_whole(b->shape->shard); }

static program_op *agree(builder *b, int layer, program_item item) {
    return op_add(&b->list, OP_AGREE, layer, item, item);
}

/* ----------------------------------------------------------------------------------------- per-layer embeddings */

/* (norm(W h0 / sqrt(hidden)) + sqrt(width) * table[token]) / sqrt(2), of all layers at once. */
static void per_layer_inputs(builder *b) {
    const model_config *c = b->config;
    products(b, -1, DATA_H, DATA_PLE, ROLE_PLE_MODEL);
    program_op *o = op_add_rows(&b->list, -1, c->ple_width);
    o->parts = (int16_t)c->layers;
    op_add_step(o, ROW_LOAD, 0, 0, 0, DATA_PLE)->part = ROW_OWN_PART;
    scale(o, 0, 1.0f / sqrtf((float)c->hidden), DATA_NONE);
    norm(o, 0, 0, slot(b, ROLE_PLE_NORM), DATA_NONE);
    op_add_step(o, ROW_LOOKUP, 1, 1, slot(b, ROLE_PLE_EMBED), DATA_NONE);
    scale(o, 1, sqrtf((float)c->ple_width), DATA_NONE);
    sum(o, 0, 1, DATA_NONE);
    scale(o, 0, sqrtf(0.5f), DATA_PLE);
    also(o->in, DATA_TOKENS);
}

static void per_layer_block(builder *b, int layer) {
    products(b, layer, DATA_H, DATA_PLE_GATE, ROLE_PLE_GATE);
    program_op *o = op_add_rows(&b->list, layer, b->config->ple_width);
    load(o, 0, DATA_PLE_GATE);
    op_add_step(o, ROW_LOAD, 1, 1, 0, DATA_PLE)->part = (uint16_t)layer;
    op_add_step(o, ROW_GATED, 0, 1, 0, DATA_PLE_GATE);
    products(b, layer, DATA_PLE_GATE, DATA_BRANCH, ROLE_PLE_OUT);
}

/* ---------------------------------------------------------------------------------------------------- attention */

static bool is_shared(const model_config *c, int source) {
    for (int i = source + 1; i < c->layers; i++) {
        if (c->layer[i].kv_source == source) return true;
    }
    return false;
}

/* Is there anything to be stored at this time? */
static bool stores(const builder *b, int layer, store_time time) {
    bool late = b->shape->rows == ROWS_PROMPT && layer_in(&b->shape->rings, layer);
    return b->shape->rows == ROWS_ALL || late == (time == STORE_BEHIND_READERS);
}

/* K/V that later layers share are stored behind the last of these. Of full-attention layers this holds where their rows
 * are a list of their own. */
static bool waits_for_all(const builder *b, int layer) {
    bool ring = b->config->layer[layer].type == LAYER_SLIDING || b->shape->rows != ROWS_ALL;
    return ring && is_shared(b->config, layer);
}

static void store(builder *b, int layer, store_time time) {
    program_op *o = op_add(&b->list, OP_STORE, layer, DATA_NEW_KV, DATA_KV);
    o->source = (int16_t)layer;
    o->index = (uint8_t)time;
}

static void heads(builder *b, int layer) {
    const layer_config *lc = &b->config->layer[layer];
    program_op *o = op_add(&b->list, OP_HEADS, layer, DATA_Q, DATA_Q);
    o->source = (int16_t)lc->kv_source;
    o->width = lc->head_dim;
    o->head[0] = (head_rule){.item = DATA_Q, .norm = true, .slot = slot(b, ROLE_Q_NORM), .rope = true, .scale = 1};
    if (lc->kv_source != layer) return;
    also(o->in, DATA_K);
    also(o->out, DATA_NEW_KV);
    /* Values come first: where they are keys as well, they are the raw projection, and keys are derived from them when
     * they are attended. */
    o->head[1] =
        (head_rule){.item = lc->k_eq_v ? DATA_K : DATA_V, .norm = !b->config->raw_values, .scale = 1, .stored = true};
    if (lc->k_eq_v) return;
    also(o->in, DATA_V);
    o->head[2] = (head_rule){
        .item = DATA_K, .norm = true, .slot = slot(b, ROLE_K_NORM), .rope = true, .scale = 1, .stored = true};
}

static void attention(builder *b, int layer) {
    const layer_config *lc = &b->config->layer[layer];
    bool own = lc->kv_source == layer, sliding = lc->type == LAYER_SLIDING;
    program_op *o = products(b, layer, DATA_X, DATA_Q, ROLE_Q);
    if (own) {
        o->slot[1] = slot(b, ROLE_K);
        also(o->out, DATA_K);
        if (!lc->k_eq_v) {
            o->slot[2] = slot(b, ROLE_V);
            also(o->out, DATA_V);
        }
        tap(b, TAP_RAW, layer, -1, DATA_K);
        tap(b, TAP_TRAINING, layer, 0, DATA_K);
        tap(b, TAP_TRAINING, layer, 1, lc->k_eq_v ? DATA_K : DATA_V);
    }
    bool restored = layer_in(&b->shape->restores, layer);
    if (restored) op_add(&b->list, OP_RESTORE, layer, DATA_LATENTS, DATA_RESTORED)->source = (int16_t)lc->kv_source;
    heads(b, layer);
    tap(b, TAP_TRAINING, layer, -1, DATA_Q);
    if (own && !sliding) tap(b, TAP_RECODE, layer, -1, DATA_NEW_KV);
    if (own && stores(b, layer, STORE_BEFORE_ATTENTION)) store(b, layer, STORE_BEFORE_ATTENTION);
    o = op_add(&b->list, OP_ATTEND, layer, DATA_Q, DATA_ATTENDED);
    also(o->in, DATA_KV);
    if (restored) also(o->in, DATA_RESTORED);
    o->source = (int16_t)lc->kv_source;
    o->width = lc->head_dim;
    o->window = sliding ? b->config->sliding_window : 0;
    if (b->config->layer[lc->kv_source].k_eq_v) o->slot[0] = program_slot(lc->kv_source, ROLE_K_NORM);
    if (own && stores(b, layer, STORE_BEHIND_READERS) && !waits_for_all(b, layer))
        store(b, layer, STORE_BEHIND_READERS);
    tap(b, TAP_TRAINING, layer, -1, DATA_ATTENDED);
    products(b, layer, DATA_ATTENDED, DATA_BRANCH, ROLE_O);
    tap(b, TAP_TRAINING, layer, -1, DATA_BRANCH);
    if (!is_whole(b)) agree(b, layer, DATA_BRANCH);
}

/* ------------------------------------------------------------------------------------------------- feed forward */

static void after_attention(builder *b, int layer) {
    const model_config *c = b->config;
    program_op *o = op_add_rows(&b->list, layer, c->hidden);
    load(o, 0, DATA_BRANCH);
    norm(o, 0, 0, slot(b, ROLE_POST_ATTENTION_NORM), DATA_NONE);
    load(o, 1, DATA_H);
    sum(o, 1, 0, DATA_H);
    norm(o, 2, 1, slot(b, ROLE_PRE_FFN_NORM), DATA_X);
    if (!c->moe) return;
    norm(o, 3, 1, slot(b, ROLE_PRE_FFN_NORM_2), DATA_X_EXPERTS);
    norm(o, 0, 1, 0, DATA_X_ROUTER);
    op_add_step(o, ROW_MULTIPLY, 0, 0, slot(b, ROLE_ROUTER_SCALE), DATA_X_ROUTER);
    scale(o, 0, 1.0f / sqrtf((float)c->hidden), DATA_X_ROUTER);
}

static void dense_down(builder *b, int layer) { products(b, layer, DATA_ACT, DATA_BRANCH, ROLE_DOWN); }

/* Prompt rows of a class of their own take one block after the other; elsewhere products of both can share a launch. */
static void feed_forward(builder *b, int layer) {
    bool moe = b->config->moe, apart = b->shape->rows == ROWS_PROMPT;
    after_attention(b, layer);
    if (moe) {
        products(b, layer, DATA_X_ROUTER, DATA_ROUTER, ROLE_ROUTER)->exact = true;
        op_add(&b->list, OP_ROUTE, layer, DATA_ROUTER, DATA_ROUTE)->slot[0] = slot(b, ROLE_EXPERT_SCALE);
    }
    program_op *o = products(b, layer, DATA_X, DATA_ACT, ROLE_GATE);
    o->slot[1] = slot(b, ROLE_UP);
    o->epilogue = EPILOGUE_GATED;
    if (apart) dense_down(b, layer);
    if (moe) {
        o = op_add(&b->list, OP_EXPERT_PRODUCTS, layer, DATA_X_EXPERTS, DATA_ACT_EXPERTS);
        also(o->in, DATA_ROUTE);
        o->epilogue = EPILOGUE_GATED;
        o->slot[0] = slot(b, ROLE_EXPERTS_GATE_UP);
        o->slot[1] = slot(b, ROLE_EXPERTS_GATE);
        o->slot[2] = slot(b, ROLE_EXPERTS_UP);
    }
    if (!apart) dense_down(b, layer);
    if (moe) {
        o = op_add(&b->list, OP_EXPERT_PRODUCTS, layer, DATA_ACT_EXPERTS, DATA_EXPERTS_OUT);
        also(o->in, DATA_ROUTE);
        o->slot[0] = slot(b, ROLE_EXPERTS_DOWN);
    }
    if (is_whole(b)) return;
    if (!moe) {
        agree(b, layer, DATA_BRANCH);
        return;
    }
    o = op_add_rows(&b->list, layer, b->config->hidden); /* what is exchanged is a row, not a row of each expert */
    op_add_step(o, ROW_MIX, 0, 0, 0, DATA_EXPERTS_OUT);
    also(o->in, DATA_ROUTE);
    scale(o, 0, 1, DATA_MIXED);
    o = agree(b, layer, DATA_BRANCH);
    also(o->in, DATA_MIXED);
    also(o->out, DATA_MIXED);
}

/* The norm that the next product wants: the next layer's, or behind the last one the head's. */
static void next_norm(builder *b, program_op *o, int layer, int from) {
    if (layer + 1 < b->config->layers)
        norm(o, 3, from, program_slot(layer + 1, ROLE_INPUT_NORM), DATA_X);
    else
        norm(o, 3, from, program_slot(0, ROLE_FINAL_NORM), DATA_NORMED);
}

static void after_feed_forward(builder *b, int layer) {
    const model_config *c = b->config;
    program_op *o = op_add_rows(&b->list, layer, c->hidden);
    load(o, 0, DATA_BRANCH);
    if (c->moe) {
        norm(o, 0, 0, slot(b, ROLE_POST_FFN_NORM_1), DATA_NONE);
        if (is_whole(b)) {
            op_add_step(o, ROW_MIX, 1, 1, 0, DATA_EXPERTS_OUT);
            also(o->in, DATA_ROUTE);
        } else {
            load(o, 1, DATA_MIXED);
        }
        norm(o, 1, 1, slot(b, ROLE_POST_FFN_NORM_2), DATA_NONE);
        sum(o, 0, 1, DATA_NONE);
    }
    norm(o, 0, 0, slot(b, ROLE_POST_FFN_NORM), DATA_NONE);
    load(o, 2, DATA_H);
    sum(o, 2, 0, DATA_H);
    if (c->ple_width) {
        per_layer_block(b, layer);
        o = op_add_rows(&b->list, layer, c->hidden);
        load(o, 0, DATA_BRANCH);
        norm(o, 0, 0, slot(b, ROLE_POST_PLE_NORM), DATA_NONE);
        load(o, 2, DATA_H);
        sum(o, 2, 0, DATA_NONE);
    }
    op_add_step(o, ROW_SCALE, 2, 2, slot(b, ROLE_LAYER_SCALAR), DATA_H);
    next_norm(b, o, layer, 2);
}

/* ------------------------------------------------------------------------------------------------------ the whole */

int program_most_ops(const model_config *config) {
    enum { OF_A_LAYER = 32, OTHERS = 16 };
    return config->layers * OF_A_LAYER + OTHERS;
}

int program_verifier(const model_config *c, const program_shape *shape, program_op *out) {
    builder b = {.config = c, .shape = shape, .list = {.ops = out}};
    program_op *o = op_add(&b.list, OP_EMBED, -1, DATA_TOKENS, DATA_H);
    o->slot[0] = slot(&b, ROLE_EMBED);
    o->scale = sqrtf((float)c->hidden);
    o = op_add_rows(&b.list, -1, c->hidden);
    load(o, 2, DATA_H);
    next_norm(&b, o, -1, 2);
    tap(&b, TAP_STATES, -1, 0, DATA_H);
    if (c->ple_width) per_layer_inputs(&b);
    for (int layer = 0; layer < c->layers; layer++) {
        b.layer = layer;
        attention(&b, layer);
        feed_forward(&b, layer);
        after_feed_forward(&b, layer);
        if (layer_in(&shape->aux, layer)) tap(&b, TAP_AUX, layer, -1, DATA_H);
        tap(&b, TAP_TRAINING, layer, -1, DATA_H);
        bool last = layer + 1 == c->layers;
        tap(&b, TAP_STATES, layer, layer + 1, last ? DATA_NORMED : DATA_H);
    }
    /* K/V that later layers share: nobody reads what these rows overwrite any more. */
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].kv_source == i && stores(&b, i, STORE_BEHIND_READERS) && waits_for_all(&b, i))
            store(&b, i, STORE_BEHIND_READERS);
    }
    b.layer = 0;
    tap(&b, TAP_STATE, -1, -1, DATA_NORMED);
    op_add(&b.list, OP_LOGITS, -1, DATA_NORMED, DATA_LOGITS)->slot[0] = slot(&b, ROLE_HEAD);
    op_add(&b.list, OP_CHOOSE, -1, DATA_NORMED, DATA_CHOICE)->slot[0] = slot(&b, ROLE_HEAD);
    return b.list.n;
}
