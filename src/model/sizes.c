#include "model/sizes.h"

#include "base/alloc.h"
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

parameter_counts gemma4_parameters(const gemma4_config *config) {
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

int64_t dflash_parameters(const dflash_config *config) {
    parameter_counts counts = {0};
    (void)dflash_walk(config, count_slot, &counts, NULL);
    return counts.total;
}

int64_t f_theta_parameters(const f_theta_config *config) {
    parameter_counts counts = {0};
    (void)f_theta_walk(config, count_slot, &counts, NULL);
    return counts.total;
}

int64_t gemma4_bytes_per_token(const gemma4_config *config, weight_format format) {
    const weight_stream *codes = &weight_format_find(format)->stream[0];
    return gemma4_parameters(config).active / codes->values * codes->bytes;
}

/* ------------------------------------------------------------------------------------------ session memory */

int kv_ring_positions(int window) { return (window + KV_RING_SLACK + KV_RING_STEP - 1) / KV_RING_STEP * KV_RING_STEP; }

/* Bytes of K (or V) of one position. */
static size_t row_bytes(const gemma4_layer_config *l, dtype type) {
    return (size_t)l->kv_heads * (size_t)l->head_dim * dtype_bytes(type);
}

static bool is_bounded(const gemma4_layer_config *l, const kv_policy *policy) {
    if (policy->attention == KAKEYA_ATTENTION_NATIVE) return false;
    if (l->type == GEMMA4_SLIDING) return true;
    return policy->attention == KAKEYA_ATTENTION_RESTORED && policy->restore_layers == KAKEYA_RESTORE_ALL;
}

static bool is_restored(const gemma4_layer_config *l, const kv_policy *policy) {
    return policy->attention == KAKEYA_ATTENTION_RESTORED && is_bounded(l, policy);
}

static bool latents_grow(const kv_policy *policy) {
    return policy->attention == KAKEYA_ATTENTION_RESTORED && policy->restore_layers == KAKEYA_RESTORE_ALL;
}

/* Exact K/V of one layer. K = V layers store V alone. Sink and ring are allocations per K and V; a page holds both. */
static size_t layer_bytes(const gemma4_config *config, int layer, const kv_policy *policy, int positions) {
    const gemma4_layer_config *l = &config->layer[layer];
    if (l->kv_source != layer) return 0;
    size_t row = row_bytes(l, policy->type), copies = l->k_eq_v ? 1 : 2, bytes = 0;
    bool bounded = is_bounded(l, policy);
    if (bounded && policy->sink > 0) bytes += copies * mem_rounded(row * (size_t)policy->sink);
    if (l->type == GEMMA4_SLIDING) {
        int window = bounded && policy->window < config->sliding_window ? policy->window : config->sliding_window;
        return bytes + copies * mem_rounded(row * (size_t)kv_ring_positions(window));
    }
    int first = bounded ? positions - policy->window - KV_RING_SLACK : 0;
    int first_page = first > 0 ? first / KV_PAGE_POSITIONS : 0; /* pages that lie below the window are given back */
    int end_page = (positions + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS;
    return bytes + (size_t)(end_page - first_page) * mem_rounded(copies * row * KV_PAGE_POSITIONS);
}

/* A latent row holds the K and the V latent, beside one float per K/V head of every restored layer. */
static void latent_row(const gemma4_config *config, const kv_policy *policy, size_t *codes, size_t *norms) {
    size_t heads = 0;
    for (int i = 0; i < config->layers; i++) {
        const gemma4_layer_config *l = &config->layer[i];
        if (l->kv_source == i && is_restored(l, policy)) heads += (size_t)l->kv_heads;
    }
    *codes = 2 * (size_t)policy->f_theta_rank * dtype_bytes(policy->type);
    *norms = heads * sizeof(float);
}

static size_t latent_bytes(const gemma4_config *config, const kv_policy *policy, int positions) {
    if (policy->attention != KAKEYA_ATTENTION_RESTORED) return 0;
    size_t codes, norms;
    latent_row(config, policy, &codes, &norms);
    if (latents_grow(policy)) {
        size_t pages = ((size_t)positions + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS;
        return pages * mem_rounded((codes + norms) * KV_PAGE_POSITIONS);
    }
    size_t ring = (size_t)kv_ring_positions(config->sliding_window);
    return mem_rounded(codes * ring) + mem_rounded(norms * ring);
}

static size_t draft_bytes(const dflash_config *drafter, const kv_policy *policy) {
    size_t bytes = 0, row = (size_t)drafter->kv_heads * (size_t)drafter->head_dim * dtype_bytes(policy->type);
    for (int i = 0; i < drafter->layers; i++) {
        int own = drafter->sliding_window[i];
        int window = own && own < policy->draft_window ? own : policy->draft_window;
        bytes += 2 * mem_rounded(row * (size_t)kv_ring_positions(window));
    }
    return bytes;
}

kv_bytes kv_session_bytes(const gemma4_config *config, const dflash_config *drafter, const kv_policy *policy,
                          int positions) {
    kv_bytes b = {0};
    for (int i = 0; i < config->layers; i++) {
        size_t bytes = layer_bytes(config, i, policy, positions);
        if (config->layer[i].type == GEMMA4_FULL)
            b.full += bytes;
        else
            b.sliding += bytes;
    }
    b.latent = latent_bytes(config, policy, positions);
    b.draft = drafter ? draft_bytes(drafter, policy) : 0;
    b.total = b.full + b.sliding + b.latent + b.draft;
    return b;
}

size_t kv_bytes_per_token(const gemma4_config *config, const kv_policy *policy) {
    size_t bytes = 0, codes, norms;
    for (int i = 0; i < config->layers; i++) {
        const gemma4_layer_config *l = &config->layer[i];
        if (l->type == GEMMA4_FULL && l->kv_source == i && !is_bounded(l, policy))
            bytes += row_bytes(l, policy->type) * (l->k_eq_v ? 1 : 2);
    }
    if (latents_grow(policy)) {
        latent_row(config, policy, &codes, &norms);
        bytes += codes + norms;
    }
    return bytes;
}

size_t kv_reference_bytes(const gemma4_config *config, dtype type, int positions, bool hybrid) {
    size_t bytes = 0;
    for (int i = 0; i < config->layers; i++) {
        const gemma4_layer_config *l = &config->layer[i];
        if (l->kv_source != i) continue;
        int held = hybrid && l->type == GEMMA4_SLIDING && positions > config->sliding_window ? config->sliding_window
                                                                                             : positions;
        bytes += 2 * row_bytes(l, type) * (size_t)held;
    }
    return bytes;
}
