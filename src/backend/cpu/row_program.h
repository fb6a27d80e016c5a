/* The interpreter of row programs, and where the items of a list lie. */
#ifndef KAKEYA_BACKEND_CPU_ROW_PROGRAM_H
#define KAKEYA_BACKEND_CPU_ROW_PROGRAM_H

#include "backend/cpu/cpu.h"
#include "backend/program/program.h"

/* Rows of an item in the workspace, one behind the other. Items whose lives do not meet share memory. */
float *cpu_item(const backend_model *m, program_item item);

/* Whose list it is: where items lie, whose weights slots name. */
typedef struct row_place {
    float *(*item)(const backend_model *m, program_item item);
    const model_weights *weights;
    float rms_eps;
} row_place;

/* tokens: of each row. */
void row_program_run(backend_model *m, const row_place *place, const program_op *o, const int32_t *tokens, int rows);

#endif
