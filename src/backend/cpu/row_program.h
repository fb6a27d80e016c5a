/* The interpreter of row programs, and where the items of a list lie. */
#ifndef KAKEYA_BACKEND_CPU_ROW_PROGRAM_H
#define KAKEYA_BACKEND_CPU_ROW_PROGRAM_H

#include "backend/cpu/cpu.h"
#include "backend/program/program.h"

/* Rows of an item in the workspace, one behind the other. Items whose lives do not meet share memory. */
float *cpu_item(const backend_model *m, program_item item);
/* tokens: of each row. */
void row_program_run(backend_model *m, const program_op *o, const int32_t *tokens, int rows);

#endif
