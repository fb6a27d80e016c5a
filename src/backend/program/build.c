#include "backend/program/build.h"

program_op *op_add(program_list *list, op_kind kind, int layer, program_item in, program_item out) {
    program_op *o = &list->ops[list->n++];
    *o = (program_op){.kind = (uint8_t)kind,
                      .layer = (int16_t)layer,
                      .source = -1,
                      .part = -1,
                      .parts = 1,
                      .in = {(uint8_t)in},
                      .out = {(uint8_t)out},
                      .scale = 1};
    return o;
}

program_op *op_add_rows(program_list *list, int layer, int width) {
    program_op *o = op_add(list, OP_ROWS, layer, DATA_NONE, DATA_NONE);
    o->width = width;
    return o;
}

row_step *op_add_step(program_op *o, row_verb verb, int into, int from, uint16_t slot, program_item item) {
    row_step *s = &o->step[o->steps++];
    *s = (row_step){.verb = (uint8_t)verb,
                    .item = (uint8_t)item,
                    .into = (uint8_t)into,
                    .from = (uint8_t)from,
                    .slot = slot,
                    .scalar = 1};
    if (item == DATA_NONE) return s;
    uint8_t *items = verb == ROW_LOAD || verb == ROW_MIX ? o->in : o->out;
    while (*items && *items != (uint8_t)item) items++;
    *items = (uint8_t)item;
    return s;
}
