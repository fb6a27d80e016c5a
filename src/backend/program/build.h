/* What builders of lists have in common: operations are added one behind the other, and instructions to row programs.
 */
#ifndef KAKEYA_BACKEND_PROGRAM_BUILD_H
#define KAKEYA_BACKEND_PROGRAM_BUILD_H

#include "backend/program/program.h"

typedef struct program_list {
    program_op *ops; /* the caller's; has room for the longest list of its kind */
    int n;
} program_list;

/* An operation with one item in and one out; DATA_NONE: none. layer -1: of the model. Valid until the list ends. */
program_op *op_add(program_list *list, op_kind kind, int layer, program_item in, program_item out);
/* A row program over rows of `width` numbers, without instructions. */
program_op *op_add_rows(program_list *list, int layer, int width);
/* The next instruction. An item that it loads, mixes or stores becomes one of the operation's. */
row_step *op_add_step(program_op *o, row_verb verb, int into, int from, uint16_t slot, program_item item);

#endif
