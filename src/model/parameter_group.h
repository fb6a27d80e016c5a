/* What a model's parameters are counted as. */
#ifndef KAKEYA_MODEL_PARAMETER_GROUP_H
#define KAKEYA_MODEL_PARAMETER_GROUP_H

typedef enum parameter_group {
    PARAMETERS_EMBEDDING = 0, /* token table; also the head where tied */
    PARAMETERS_HEAD,
    PARAMETERS_PLE_TABLE,
    PARAMETERS_PLE,
    PARAMETERS_ATTENTION,
    PARAMETERS_DENSE_MLP,
    PARAMETERS_EXPERTS,
    PARAMETERS_ROUTER,
    PARAMETERS_NORMS, /* norms and layer scalars */
    PARAMETERS_GROUPS
} parameter_group;

#endif
