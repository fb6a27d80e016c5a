/* One draft of an MTP assistant as a list: a stack of layers whose queries attend the verifier's K/V (order of
 * operations: transformers 5.22, Gemma4AssistantForCausalLM). */
#include "backend/program/build.h"

#include <math.h>

typedef struct builder {
    const assistant_config *config;
    const model_config *verifier;
    program_list list;
} builder;

static program_op *products(builder *b, int layer, program_item in, program_item out, slot_role role) {
    program_op *o = op_add(&b->list, OP_PRODUCTS, layer, in, out);
    o->slot[0] = program_slot(layer < 0 ? 0 : layer, role);
    return o;
}

static program_op *rows(builder *b, int layer) { return op_add_rows(&b->list, layer, b->config->stack.hidden); }

/* The norm that the next product wants: the next layer's, or behind the last one the final norm. */
static void next_norm(builder *b, program_op *o, int layer, int from) {
    bool last = layer + 1 == b->config->stack.layers;
    uint16_t slot = last ? program_slot(0, ROLE_FINAL_NORM) : program_slot(layer + 1, ROLE_INPUT_NORM);
    op_add_step(o, ROW_NORM, 3, from, slot, last ? DATA_NORMED : DATA_X);
}

/* All rows of a type attend the verifier's last layer of that type that has K/V. */
static void attention(builder *b, int layer) {
    const layer_config *l = &b->config->stack.layer[layer];
    int source = assistant_source(b->verifier, l->type);
    products(b, layer, DATA_X, DATA_Q, ROLE_Q);
    program_op *o = op_add(&b->list, OP_HEADS, layer, DATA_Q, DATA_Q);
    o->source = (int16_t)source;
    o->width = l->head_dim;
    o->head[0] =
        (head_rule){.item = DATA_Q, .norm = true, .slot = program_slot(layer, ROLE_Q_NORM), .rope = true, .scale = 1};
    o = op_add(&b->list, OP_ATTEND, layer, DATA_Q, DATA_ATTENDED);
    o->in[1] = DATA_KV;
    o->source = (int16_t)source;
    o->width = l->head_dim;
    o->window = l->type == LAYER_SLIDING ? b->verifier->sliding_window : 0;
    o->before = true;
    products(b, layer, DATA_ATTENDED, DATA_BRANCH, ROLE_O);
}

static void feed_forward(builder *b, int layer) {
    program_op *o = rows(b, layer);
    op_add_step(o, ROW_LOAD, 0, 0, 0, DATA_BRANCH);
    op_add_step(o, ROW_NORM, 0, 0, program_slot(layer, ROLE_POST_ATTENTION_NORM), DATA_NONE);
    op_add_step(o, ROW_LOAD, 1, 1, 0, DATA_H);
    op_add_step(o, ROW_ADD, 1, 0, 0, DATA_H);
    op_add_step(o, ROW_NORM, 2, 1, program_slot(layer, ROLE_PRE_FFN_NORM), DATA_X);
    o = products(b, layer, DATA_X, DATA_ACT, ROLE_GATE);
    o->slot[1] = program_slot(layer, ROLE_UP);
    o->epilogue = EPILOGUE_GATED;
    products(b, layer, DATA_ACT, DATA_BRANCH, ROLE_DOWN);
    o = rows(b, layer);
    op_add_step(o, ROW_LOAD, 0, 0, 0, DATA_BRANCH);
    op_add_step(o, ROW_NORM, 0, 0, program_slot(layer, ROLE_POST_FFN_NORM), DATA_NONE);
    op_add_step(o, ROW_LOAD, 2, 2, 0, DATA_H);
    op_add_step(o, ROW_ADD, 2, 0, 0, DATA_H);
    op_add_step(o, ROW_SCALE, 2, 2, program_slot(layer, ROLE_LAYER_SCALAR), DATA_H);
    next_norm(b, o, layer, 2);
}

int program_most_assistant_ops(const assistant_config *config) {
    enum { OF_A_LAYER = 8, OTHERS = 8 };
    return config->stack.layers * OF_A_LAYER + OTHERS;
}

int program_assistant(const assistant_config *c, const model_config *verifier, program_op *out) {
    builder b = {.config = c, .verifier = verifier, .list = {.ops = out}};
    program_op *o = op_add(&b.list, OP_EMBED, -1, DATA_TOKENS, DATA_PAIR);
    o->slot[0] = program_slot(0, ROLE_EMBED);
    o->scale = sqrtf((float)verifier->hidden);
    products(&b, -1, DATA_PAIR, DATA_H, ROLE_PRE_PROJECTION);
    o = rows(&b, -1);
    op_add_step(o, ROW_LOAD, 2, 2, 0, DATA_H);
    next_norm(&b, o, -1, 2);
    for (int layer = 0; layer < c->stack.layers; layer++) {
        attention(&b, layer);
        feed_forward(&b, layer);
    }
    products(&b, -1, DATA_NORMED, DATA_STATE, ROLE_POST_PROJECTION);
    if (c->clusters) {
        products(&b, -1, DATA_NORMED, DATA_CENTROIDS, ROLE_CENTROIDS);
        op_add(&b.list, OP_CLUSTERS, -1, DATA_CENTROIDS, DATA_CLUSTERS)->width = c->chosen_clusters;
    }
    o = op_add(&b.list, OP_CHOOSE, -1, DATA_NORMED, DATA_CHOICE);
    if (c->clusters) o->in[1] = DATA_CLUSTERS;
    o->slot[0] = program_slot(0, ROLE_HEAD);
    return b.list.n;
}
