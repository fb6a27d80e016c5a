/* A picture's way to rows of the text model as a list of operations: towers, and the 12B's embedder. Rows are patches
 * up to OP_POOL, and rows of the text model behind it (the embedder's are both). Slots are those of a vision_model:
 * tower_slot. OP_HEADS turns the two halves of a head by a patch's column and row; OP_ATTEND sees all patches of the
 * picture; ROW_LOOKUP finds the place of a patch: part 0 its column's, part 1 its row's. */
#ifndef KAKEYA_BACKEND_PROGRAM_TOWER_H
#define KAKEYA_BACKEND_PROGRAM_TOWER_H

#include "backend/program/program.h"
#include "model/vision_model.h"

/* A role in a layer; the model's lie in layer -1. 0 is no slot. */
static inline uint16_t tower_slot(int layer, vision_role role) {
    return (uint16_t)((layer + 1) * VISION_ROLES + (int)role);
}
static inline const weight *tower_matrix(const vision_model *v, uint16_t slot) {
    return &v->weights[slot / VISION_ROLES].matrix[slot % VISION_ROLES];
}
static inline const vision_bounds *tower_bounds(const vision_model *v, uint16_t slot) {
    return &v->weights[slot / VISION_ROLES].bounds[slot % VISION_ROLES];
}
/* NULL for slot 0. */
static inline const float *tower_vector(const vision_model *v, uint16_t slot) {
    return slot ? v->weights[slot / VISION_ROLES].vector[slot % VISION_ROLES] : NULL;
}

/* Room that a list needs. */
int tower_most_ops(const vision_model *v);
/* Returns the number of operations. */
int program_tower(const vision_model *v, program_op *out);

#endif
