/* Sizes known before anything is loaded: parameters, and bytes read per token. Pure arithmetic. The K/V memory of a
 * session is backend/kv_bytes.h. */
#ifndef KAKEYA_MODEL_SIZES_H
#define KAKEYA_MODEL_SIZES_H

#include "base/dtype.h"
#include "model/assistant.h"
#include "model/parameter_group.h"
#include "model/restoration.h"

/* --------------------------------------------------------------------------------------------- parameters */

const char *parameter_group_name(parameter_group group); /* "embedding", "experts", ... */

typedef struct parameter_counts {
    int64_t group[PARAMETERS_GROUPS];
    int64_t total;
    int64_t
        active; /* what the forward of one token reads: the chosen experts, one table row per lookup, the whole head */
} parameter_counts;

parameter_counts gemma4_parameters(const model_config *config);
int64_t dflash_parameters(const block_drafter_config *config);
int64_t assistant_parameters(const assistant_config *config);
/* Those that one draft reads: of a clustered head the chosen clusters. */
int64_t assistant_draft_parameters(const assistant_config *config);
int64_t f_theta_parameters(const restoration_config *config);

/* Weight bytes that one decoded token reads, stored as `type` throughout. */
int64_t gemma4_bytes_per_token(const model_config *config, weight_format format);

#endif
