/* Tables of RoPE's cosines and sines, grown on demand. */
#ifndef KAKEYA_BACKEND_CPU_ROPE_H
#define KAKEYA_BACKEND_CPU_ROPE_H

#include "backend/cpu/cpu.h"

/* inverse frequency j = theta^(-2j / head_dim) / factor; the denominator is the whole head even where only some pairs
 * turn (proportional RoPE, transformers modeling_rope_utils). */
kakeya_status rope_table_create(backend_model *m, rope_table *table, float theta, float factor, int head_dim, int pairs,
                                kakeya_error *error);
/* Makes the table reach positions [0, positions). On failure it is as it was. */
kakeya_status rope_table_reserve(backend_model *m, rope_table *table, int positions, kakeya_error *error);
void rope_table_destroy(rope_table *table);

#endif
