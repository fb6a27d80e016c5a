#include "backend/cpu/rope.h"

#include <math.h>
#include <string.h>

kakeya_status rope_table_create(backend_model *m, rope_table *table, float theta, float factor, int head_dim, int pairs,
                                kakeya_error *error) {
    table->pairs = pairs;
    table->half = head_dim / 2;
    table->positions = 0;
    table->inverse_frequency = mem_alloc(m->account, MEM_WORKSPACE, (size_t)(pairs > 0 ? pairs : 1) * sizeof(float));
    if (!table->inverse_frequency) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for RoPE tables");
    for (int j = 0; j < pairs; j++) {
        float exponent = (float)(2 * j) / (float)head_dim;
        table->inverse_frequency[j] = 1.0f / powf(theta, exponent) / factor;
    }
    return KAKEYA_OK;
}

kakeya_status rope_table_reserve(backend_model *m, rope_table *table, int positions, kakeya_error *error) {
    if (positions <= table->positions) return KAKEYA_OK;
    int grown = (positions + CPU_ROPE_GROWTH - 1) / CPU_ROPE_GROWTH * CPU_ROPE_GROWTH;
    size_t row = (size_t)table->pairs, bytes = (size_t)grown * row * sizeof(float);
    float *cosine = mem_alloc(m->account, MEM_WORKSPACE, bytes);
    float *sine = mem_alloc(m->account, MEM_WORKSPACE, bytes);
    if (!cosine || !sine) {
        mem_free(cosine);
        mem_free(sine);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for RoPE tables of %d positions", grown);
    }
    size_t old = (size_t)table->positions * row;
    if (old) {
        memcpy(cosine, table->cosine, old * sizeof(float));
        memcpy(sine, table->sine, old * sizeof(float));
    }
    for (int p = table->positions; p < grown; p++) {
        for (int j = 0; j < table->pairs; j++) {
            float angle = (float)p * table->inverse_frequency[j];
            cosine[(size_t)p * row + (size_t)j] = cosf(angle);
            sine[(size_t)p * row + (size_t)j] = sinf(angle);
        }
    }
    mem_free(table->cosine);
    mem_free(table->sine);
    table->cosine = cosine;
    table->sine = sine;
    table->positions = grown;
    return KAKEYA_OK;
}

void rope_table_destroy(rope_table *table) {
    mem_free(table->inverse_frequency);
    mem_free(table->cosine);
    mem_free(table->sine);
}
