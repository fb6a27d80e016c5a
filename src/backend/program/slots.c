#include "backend/program/slots.h"

#include <stddef.h>

typedef enum slot_kind { SLOT_MATRIX = 1, SLOT_VECTOR, SLOT_NUMBER } slot_kind;

typedef struct slot_place {
    const char *name;
    slot_kind kind;
    bool of_layer, of_assistant;
    size_t offset;
} slot_place;

#define OF_MODEL(kind, field)                                                                                          \
    { #field, kind, false, false, offsetof(model_weights, field) }
#define OF_LAYER(kind, field)                                                                                          \
    { #field, kind, true, false, offsetof(layer_weights, field) }
#define OF_ASSISTANT(kind, field)                                                                                      \
    { #field, kind, false, true, offsetof(assistant_weights, field) }

static const slot_place places[SLOT_ROLES] = {
    [ROLE_EMBED] = OF_MODEL(SLOT_MATRIX, embed),
    [ROLE_HEAD] = OF_MODEL(SLOT_MATRIX, head),
    [ROLE_FINAL_NORM] = OF_MODEL(SLOT_VECTOR, final_norm),
    [ROLE_PLE_EMBED] = OF_MODEL(SLOT_MATRIX, ple_embed),
    [ROLE_PLE_MODEL] = OF_MODEL(SLOT_MATRIX, ple_model_proj),
    [ROLE_PLE_NORM] = OF_MODEL(SLOT_VECTOR, ple_proj_norm),
    [ROLE_PRE_PROJECTION] = OF_ASSISTANT(SLOT_MATRIX, pre_projection),
    [ROLE_POST_PROJECTION] = OF_ASSISTANT(SLOT_MATRIX, post_projection),
    [ROLE_CENTROIDS] = OF_ASSISTANT(SLOT_MATRIX, centroids),
    [ROLE_INPUT_NORM] = OF_LAYER(SLOT_VECTOR, input_norm),
    [ROLE_Q] = OF_LAYER(SLOT_MATRIX, q_proj),
    [ROLE_K] = OF_LAYER(SLOT_MATRIX, k_proj),
    [ROLE_V] = OF_LAYER(SLOT_MATRIX, v_proj),
    [ROLE_Q_NORM] = OF_LAYER(SLOT_VECTOR, q_norm),
    [ROLE_K_NORM] = OF_LAYER(SLOT_VECTOR, k_norm),
    [ROLE_O] = OF_LAYER(SLOT_MATRIX, o_proj),
    [ROLE_POST_ATTENTION_NORM] = OF_LAYER(SLOT_VECTOR, post_attention_norm),
    [ROLE_PRE_FFN_NORM] = OF_LAYER(SLOT_VECTOR, pre_ffn_norm),
    [ROLE_PRE_FFN_NORM_2] = OF_LAYER(SLOT_VECTOR, pre_ffn_norm_2),
    [ROLE_ROUTER_SCALE] = OF_LAYER(SLOT_VECTOR, router_scale),
    [ROLE_ROUTER] = OF_LAYER(SLOT_MATRIX, router_proj),
    [ROLE_EXPERT_SCALE] = OF_LAYER(SLOT_VECTOR, router_expert_scale),
    [ROLE_GATE] = OF_LAYER(SLOT_MATRIX, gate_proj),
    [ROLE_UP] = OF_LAYER(SLOT_MATRIX, up_proj),
    [ROLE_DOWN] = OF_LAYER(SLOT_MATRIX, down_proj),
    [ROLE_EXPERTS_GATE_UP] = OF_LAYER(SLOT_MATRIX, experts_gate_up),
    [ROLE_EXPERTS_GATE] = OF_LAYER(SLOT_MATRIX, experts_gate),
    [ROLE_EXPERTS_UP] = OF_LAYER(SLOT_MATRIX, experts_up),
    [ROLE_EXPERTS_DOWN] = OF_LAYER(SLOT_MATRIX, experts_down),
    [ROLE_POST_FFN_NORM_1] = OF_LAYER(SLOT_VECTOR, post_ffn_norm_1),
    [ROLE_POST_FFN_NORM_2] = OF_LAYER(SLOT_VECTOR, post_ffn_norm_2),
    [ROLE_POST_FFN_NORM] = OF_LAYER(SLOT_VECTOR, post_ffn_norm),
    [ROLE_PLE_GATE] = OF_LAYER(SLOT_MATRIX, ple_gate),
    [ROLE_PLE_OUT] = OF_LAYER(SLOT_MATRIX, ple_proj),
    [ROLE_POST_PLE_NORM] = OF_LAYER(SLOT_VECTOR, post_ple_norm),
    [ROLE_LAYER_SCALAR] = OF_LAYER(SLOT_NUMBER, layer_scalar),
};

static const void *place_of(const model_weights *weights, uint16_t slot) {
    const slot_place *place = &places[program_slot_role(slot)];
    const char *from = place->of_layer ? (const char *)&weights->layer[slot / SLOT_ROLES] : (const char *)weights;
    return from + place->offset;
}

const weight *program_matrix(const model_weights *weights, uint16_t slot) { return place_of(weights, slot); }

const weight *program_assistant_matrix(const assistant_weights *weights, uint16_t slot) {
    const slot_place *place = &places[program_slot_role(slot)];
    if (!place->of_assistant) return program_matrix(&weights->stack, slot);
    return (const weight *)(const void *)((const char *)weights + place->offset);
}

const float *program_vector(const model_weights *weights, uint16_t slot) {
    if (!slot) return NULL;
    const void *place = place_of(weights, slot);
    return places[program_slot_role(slot)].kind == SLOT_NUMBER ? (const float *)place : *(const float *const *)place;
}

const char *program_role_name(slot_role role) { return places[role].name; }
bool program_role_is_matrix(slot_role role) { return places[role].kind == SLOT_MATRIX; }
