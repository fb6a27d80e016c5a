/* Sizes known before anything is loaded: parameters, bytes read per token, and the K/V memory of a session under every
 * policy. Pure arithmetic. Backends take the layout's constants from here; a test compares the formula with what their
 * allocator holds. */
#ifndef KAKEYA_MODEL_SIZES_H
#define KAKEYA_MODEL_SIZES_H

#include "base/dtype.h"
#include "model/f_theta.h"

/* --------------------------------------------------------------------------------------------- parameters */

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

const char *parameter_group_name(parameter_group group); /* "embedding", "experts", ... */

typedef struct parameter_counts {
    int64_t group[PARAMETERS_GROUPS];
    int64_t total;
    int64_t
        active; /* what the forward of one token reads: the chosen experts, one table row per lookup, the whole head */
} parameter_counts;

parameter_counts gemma4_parameters(const gemma4_config *config);
int64_t dflash_parameters(const dflash_config *config);
int64_t f_theta_parameters(const f_theta_config *config);

/* Weight bytes that one decoded token reads, stored as `type` throughout. */
int64_t gemma4_bytes_per_token(const gemma4_config *config, weight_format format);

/* ------------------------------------------------------------------------------------------------ layout */

enum {
    KV_RING_SLACK = 16,     /* a rejected block must not overwrite what the accepted length still needs */
    KV_RING_STEP = 16,      /* rings are whole multiples of so many positions */
    KV_PAGE_POSITIONS = 64, /* stores that grow do so by pages */
};

/* Positions of the ring that serves a window. */
int kv_ring_positions(int window);

/* What a session's memory depends on beside the models. */
typedef struct kv_policy {
    kakeya_attention attention;
    kakeya_restore_layers restore_layers;
    int sink, window, draft_window;
    int f_theta_rank; /* restored only */
    dtype type;       /* of resident K/V and latents */
} kv_policy;

/* ------------------------------------------------------------------------------------------ session memory */

typedef struct kv_bytes {
    size_t full, sliding, latent, draft, total;
} kv_bytes;

/* What a session that has begun to decode holds at `positions` tokens; drafter NULL: no drafter context. Counted as the
 * allocator counts. */
kv_bytes kv_session_bytes(const gemma4_config *config, const dflash_config *drafter, const kv_policy *policy,
                          int positions);

/* Bytes by which a session grows per position, for good: exact K/V of unbounded layers, latents where nothing else is
 * kept. */
size_t kv_bytes_per_token(const gemma4_config *config, const kv_policy *policy);

/* References, with K and V both stored: `hybrid` holds the window only in sliding layers, as common engines do;
 * otherwise every layer holds every position. */
size_t kv_reference_bytes(const gemma4_config *config, dtype type, int positions, bool hybrid);

#endif
