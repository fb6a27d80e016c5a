/* Order of operations: transformers 5.23, Gemma4VisionModel, Gemma4UnifiedVisionEmbedder and Gemma4MultimodalEmbedder.
 */
#include "backend/program/tower.h"

#include <math.h>

#include "backend/program/build.h"

enum { LAYER_OPS = 8, OTHER_OPS = 8 };

typedef struct builder {
    const vision_model *v;
    program_list list;
} builder;

int tower_most_ops(const vision_model *v) { return LAYER_OPS * v->layers + OTHER_OPS; }

static program_op *products(builder *b, int layer, program_item in, program_item out, vision_role role) {
    program_op *o = op_add(&b->list, OP_PRODUCTS, layer, in, out);
    o->slot[0] = tower_slot(layer, role);
    o->exact = true;
    o->clipped = layer >= 0 && b->v->clipped;
    return o;
}

static void load(program_op *o, int into, program_item item) { op_add_step(o, ROW_LOAD, into, into, 0, item); }

static void centre(program_op *o, int into, vision_role norm, vision_role bias, program_item item) {
    op_add_step(o, ROW_CENTRE, into, into, tower_slot(-1, norm), item)->part = tower_slot(-1, bias);
}

/* into += what stands for the patch's place; registers 2 and 3 are used up. */
static void add_place(program_op *o, int into, program_item item) {
    const uint16_t table = tower_slot(-1, VISION_PLACES);
    op_add_step(o, ROW_LOOKUP, 2, 2, table, DATA_NONE)->part = 0;
    op_add_step(o, ROW_LOOKUP, 3, 3, table, DATA_NONE)->part = 1;
    op_add_step(o, ROW_ADD, 2, 3, 0, DATA_NONE);
    op_add_step(o, ROW_ADD, into, 2, 0, item);
}

static void attention(builder *b, int layer) {
    const vision_model *v = b->v;
    program_op *o = products(b, layer, DATA_X, DATA_Q, VISION_Q);
    o->slot[1] = tower_slot(layer, VISION_K);
    o->slot[2] = tower_slot(layer, VISION_V);
    o->out[1] = DATA_K;
    o->out[2] = DATA_V;
    o = op_add(&b->list, OP_HEADS, layer, DATA_Q, DATA_Q);
    o->in[1] = o->out[1] = DATA_K;
    o->in[2] = o->out[2] = DATA_V;
    o->width = v->head_dim;
    o->head[0] =
        (head_rule){.item = DATA_Q, .norm = true, .rope = true, .slot = tower_slot(layer, VISION_Q_NORM), .scale = 1};
    o->head[1] =
        (head_rule){.item = DATA_K, .norm = true, .rope = true, .slot = tower_slot(layer, VISION_K_NORM), .scale = 1};
    o->head[2] = (head_rule){.item = DATA_V, .norm = true, .scale = 1};
    o = op_add(&b->list, OP_ATTEND, layer, DATA_Q, DATA_ATTENDED);
    o->in[1] = DATA_K;
    o->in[2] = DATA_V;
    o->width = v->head_dim;
    products(b, layer, DATA_ATTENDED, DATA_BRANCH, VISION_O);
}

/* h += norm(branch); x = norm(h), where `next` is a norm. */
static void after_block(builder *b, int layer, vision_role norm, uint16_t next) {
    program_op *o = op_add_rows(&b->list, layer, b->v->hidden);
    load(o, 0, DATA_BRANCH);
    op_add_step(o, ROW_NORM, 0, 0, tower_slot(layer, norm), DATA_NONE);
    load(o, 1, DATA_H);
    op_add_step(o, ROW_ADD, 1, 0, 0, DATA_H);
    if (next) op_add_step(o, ROW_NORM, 0, 1, next, DATA_X);
}

static void feed_forward(builder *b, int layer) {
    program_op *o = products(b, layer, DATA_X, DATA_ACT, VISION_GATE);
    o->slot[1] = tower_slot(layer, VISION_UP);
    o->epilogue = EPILOGUE_GATED;
    products(b, layer, DATA_ACT, DATA_BRANCH, VISION_DOWN);
}

static void tower(builder *b) {
    const vision_model *v = b->v;
    program_op *o = op_add_rows(&b->list, -1, vision_model_patch_values(v));
    load(o, 0, DATA_PATCHES);
    op_add_step(o, ROW_SHIFT, 0, 0, 0, DATA_NONE)->scalar = -0.5f;
    op_add_step(o, ROW_SCALE, 0, 0, 0, DATA_PATCHES)->scalar = 2;
    products(b, -1, DATA_PATCHES, DATA_H, VISION_PATCH);
    o = op_add_rows(&b->list, -1, v->hidden);
    load(o, 0, DATA_H);
    add_place(o, 0, DATA_H);
    op_add_step(o, ROW_NORM, 1, 0, tower_slot(0, VISION_INPUT_NORM), DATA_X);
    for (int layer = 0; layer < v->layers; layer++) {
        attention(b, layer);
        after_block(b, layer, VISION_POST_ATTENTION_NORM, tower_slot(layer, VISION_PRE_FFN_NORM));
        feed_forward(b, layer);
        after_block(b, layer, VISION_POST_FFN_NORM,
                    layer + 1 < v->layers ? tower_slot(layer + 1, VISION_INPUT_NORM) : 0);
    }
    op_add(&b->list, OP_POOL, -1, DATA_H, DATA_POOLED)->parts = (int16_t)v->pooling;
    o = op_add_rows(&b->list, -1, v->hidden);
    load(o, 0, DATA_POOLED);
    op_add_step(o, ROW_SCALE, 0, 0, 0, DATA_NONE)->scalar = sqrtf((float)v->hidden);
    if (v->standardize) {
        op_add_step(o, ROW_SHIFT, 0, 0, tower_slot(-1, VISION_STD_BIAS), DATA_NONE)->scalar = -1;
        op_add_step(o, ROW_MULTIPLY, 0, 0, tower_slot(-1, VISION_STD_SCALE), DATA_NONE);
    }
    op_add_step(o, ROW_NORM, 0, 0, 0, DATA_POOLED);
}

static void embedder(builder *b) {
    const vision_model *v = b->v;
    program_op *o = op_add_rows(&b->list, -1, vision_model_patch_values(v));
    load(o, 0, DATA_PATCHES);
    centre(o, 0, VISION_PATCH_NORM, VISION_PATCH_NORM_BIAS, DATA_PATCHES);
    products(b, -1, DATA_PATCHES, DATA_H, VISION_PATCH);
    o = op_add_rows(&b->list, -1, v->hidden);
    load(o, 0, DATA_H);
    op_add_step(o, ROW_SHIFT, 0, 0, tower_slot(-1, VISION_PATCH_BIAS), DATA_NONE);
    centre(o, 0, VISION_HIDDEN_NORM, VISION_HIDDEN_NORM_BIAS, DATA_NONE);
    add_place(o, 0, DATA_NONE);
    centre(o, 0, VISION_PLACE_NORM, VISION_PLACE_NORM_BIAS, DATA_NONE);
    op_add_step(o, ROW_NORM, 0, 0, 0, DATA_POOLED);
}

int program_tower(const vision_model *v, program_op *out) {
    builder b = {.v = v, .list = {.ops = out}};
    if (v->tower)
        tower(&b);
    else
        embedder(&b);
    products(&b, -1, DATA_POOLED, DATA_SOFT, VISION_PROJECTION);
    return b.list.n;
}
