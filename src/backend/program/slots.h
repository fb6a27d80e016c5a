/* Slots: what a list of operations calls a model's weights, and where they lie. The only place that names them all. */
#ifndef KAKEYA_BACKEND_PROGRAM_SLOTS_H
#define KAKEYA_BACKEND_PROGRAM_SLOTS_H

#include <stdint.h>

#include "model/assistant.h"

typedef enum slot_role {
    ROLE_NONE = 0,
    /* of the model */
    ROLE_EMBED,
    ROLE_HEAD,
    ROLE_FINAL_NORM,
    ROLE_PLE_EMBED,
    ROLE_PLE_MODEL,
    ROLE_PLE_NORM,
    /* of an assistant */
    ROLE_PRE_PROJECTION,
    ROLE_POST_PROJECTION,
    ROLE_CENTROIDS,
    /* of a layer */
    ROLE_INPUT_NORM,
    ROLE_Q,
    ROLE_K,
    ROLE_V,
    ROLE_Q_NORM,
    ROLE_K_NORM,
    ROLE_O,
    ROLE_POST_ATTENTION_NORM,
    ROLE_PRE_FFN_NORM,
    ROLE_PRE_FFN_NORM_2,
    ROLE_ROUTER_SCALE,
    ROLE_ROUTER,
    ROLE_EXPERT_SCALE,
    ROLE_GATE,
    ROLE_UP,
    ROLE_DOWN,
    ROLE_EXPERTS_GATE_UP,
    ROLE_EXPERTS_GATE,
    ROLE_EXPERTS_UP,
    ROLE_EXPERTS_DOWN,
    ROLE_POST_FFN_NORM_1,
    ROLE_POST_FFN_NORM_2,
    ROLE_POST_FFN_NORM,
    ROLE_PLE_GATE,
    ROLE_PLE_OUT,
    ROLE_POST_PLE_NORM,
    ROLE_LAYER_SCALAR,
    SLOT_ROLES
} slot_role;

/* A slot is a role in a layer; 0: none. Those of the model lie in layer 0. */
static inline uint16_t program_slot(int layer, slot_role role) { return (uint16_t)(layer * SLOT_ROLES + (int)role); }
static inline slot_role program_slot_role(uint16_t slot) { return (slot_role)(slot % SLOT_ROLES); }

/* Where a slot's weights lie: a matrix, or float32 values. A role that the model has not: a matrix that is not present,
 * or NULL. */
const weight *program_matrix(const model_weights *weights, uint16_t slot);
const float *program_vector(const model_weights *weights, uint16_t slot);
/* The same of an assistant's matrices; its vectors are those of its stack. */
const weight *program_assistant_matrix(const assistant_weights *weights, uint16_t slot);
/* As the file calls it, without its layer: "q_proj". */
const char *program_role_name(slot_role role);
bool program_role_is_matrix(slot_role role);

#endif
