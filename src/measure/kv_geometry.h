/* The sizes in a model's configuration on which the K/V memory of a session depends, as a report records them, so that
 * the gate can say what every row must hold. */
#ifndef KAKEYA_MEASURE_KV_GEOMETRY_H
#define KAKEYA_MEASURE_KV_GEOMETRY_H

#include <cjson/cJSON.h>

#include "backend/backend.h"
#include "measure/rows.h"

typedef struct kv_geometry {
    model_config verifier; /* layers and sliding_window alone */
    bool has_drafter;
    block_drafter_config drafter; /* layers, kv_heads, head_dim and sliding_window alone */
    int state_values;             /* of the row that a session keeps for an MTP assistant; 0: there is none */
    restoration_config f_theta;   /* input, ranks, shared_latent, latents and aux_layers alone; rank 0: none */
    kv_format format;             /* of resident K/V and latents */
    int devices;                  /* that share the model, 1 or more; sizes are those of the whole model */
    size_t page_granule; /* bytes that growing stores take from a device at a time; 0: every page is an allocation of
                            its own */
} kv_geometry;

/* f_theta and drafter may be NULL. Without an assistant, whose state_values the caller sets. */
void kv_geometry_of(const model_config *verifier, const block_drafter_config *drafter,
                    const restoration_config *f_theta, kv_format format, kv_geometry *out);

/* The object "kv_geometry" of a report's environment, with a fingerprint of its own; NULL when out of memory. */
cJSON *kv_geometry_to_json(const kv_geometry *geometry);
/* KAKEYA_FORMAT says what is missing, out of range or unlike the fingerprint. */
kakeya_status kv_geometry_from_json(const cJSON *json, kv_geometry *out, kakeya_error *error);

/* What a session of this arm holds when `positions` tokens are committed, at least one of them decoded. */
backend_cache_bytes kv_geometry_bytes(const kv_geometry *geometry, const eval_arm *arm, int positions);

#endif
