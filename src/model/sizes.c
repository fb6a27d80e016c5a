#include "model/sizes.h"

#include "model/tensors.h"

/* --------------------------------------------------------------------------------------------- parameters */

const char *parameter_group_name(parameter_group group) {
    static const char *const names[PARAMETERS_GROUPS] = {
        "embedding", "head",   "per-layer embedding table", "per-layer embedding", "attention", "dense MLP",
        "experts",   "router", "norms and scalars",
    };
    return group < PARAMETERS_GROUPS ? names[group] : "unknown";
}

static kakeya_status count_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    parameter_counts *counts = context;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    int64_t n = tensor_slot_elements(slot);
    counts->group[slot->group] += n;
    counts->total += n;
    return KAKEYA_OK;
}

parameter_counts gemma4_parameters(const model_config *config) {
    parameter_counts counts = {0};
    (void)gemma4_walk(config, count_slot, &counts, NULL); /* counting cannot fail */
    counts.active = counts.total;
    if (config->moe) {
        int64_t experts = counts.group[PARAMETERS_EXPERTS];
        counts.active += experts / config->experts * config->experts_per_token - experts;
    }
    if (!config->tied_head) counts.active += config->hidden - counts.group[PARAMETERS_EMBEDDING];
    if (config->ple_width)
        counts.active += (int64_t)config->layers * config->ple_width - counts.group[PARAMETERS_PLE_TABLE];
    return counts;
}

int64_t dflash_parameters(const block_drafter_config *config) {
    parameter_counts counts = {0};
    (void)dflash_walk(config, count_slot, &counts, NULL);
    return counts.total;
}

int64_t assistant_parameters(const assistant_config *config) {
    parameter_counts counts = {0};
    (void)assistant_walk(config, count_slot, &counts, NULL);
    return counts.total;
}

int64_t assistant_draft_parameters(const assistant_config *config) {
    int64_t all = assistant_parameters(config), head = (int64_t)config->stack.vocab * config->stack.hidden;
    return config->clusters ? all - head + head / config->clusters * config->chosen_clusters : all;
}

int64_t f_theta_parameters(const restoration_config *config) {
    parameter_counts counts = {0};
    (void)restoration_walk(config, count_slot, &counts, NULL);
    return counts.total;
}

int64_t gemma4_bytes_per_token(const model_config *config, weight_format format) {
    const weight_stream *codes = &weight_format_find(format)->stream[0];
    return gemma4_parameters(config).active / codes->values * codes->bytes;
}
