#include "backend/cpu/fine_layers.h"

#include <stdlib.h>

enum { PART_OF_LAYERS = 6 };

kakeya_status fine_layers_mark(backend_model *m, kakeya_error *error) {
    if (m->input != INPUT_INT8) return KAKEYA_OK;
    m->own_weights = malloc(sizeof *m->own_weights);
    if (!m->own_weights) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for a list of weights");
    *m->own_weights = *m->weights;
    m->weights = m->own_weights;
    const int fine = (m->config->layers + PART_OF_LAYERS - 1) / PART_OF_LAYERS;
    for (int i = 0; i < fine; i++) {
        layer_weights *l = &m->own_weights->layer[i];
        weight *const matrices[] = {&l->q_proj,    &l->k_proj,       &l->v_proj,   &l->o_proj,
                                    &l->down_proj, &l->experts_down, &l->ple_gate, &l->ple_proj};
        for (size_t j = 0; j < sizeof matrices / sizeof matrices[0]; j++) matrices[j]->fine_input = true;
    }
    return KAKEYA_OK;
}
