#include "model/gemma4_layers.h"

bool gemma4_share_kv(model_config *config, int intermediate, bool double_wide, int *layer) {
    int first_shared = config->layers - config->shared_kv_layers;
    int last[2] = {-1, -1};
    for (int i = 0; i < config->layers; i++) {
        layer_config *l = &config->layer[i];
        bool shared = i >= first_shared;
        if (!shared) last[l->type] = i;
        if (last[l->type] < 0) {
            *layer = i;
            return false;
        }
        l->kv_source = last[l->type];
        l->intermediate = shared && double_wide ? 2 * intermediate : intermediate;
    }
    return true;
}

int gemma4_rotated_pairs(double partial_rotary_factor, int head_dim) {
    return (int)(partial_rotary_factor * head_dim / 2);
}

int gemma4_head_dim(const model_config *config, layer_type type) {
    for (int i = 0; i < config->layers; i++) {
        if (config->layer[i].type == type) return config->layer[i].head_dim;
    }
    return 0;
}

const char *layer_type_name(layer_type type) { return type == LAYER_SLIDING ? "sliding_attention" : "full_attention"; }
