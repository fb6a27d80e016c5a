#include "model/gemma4_modules.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MODULE_BYTES = SLOT_NAME_BYTES + 96 };

const char *gemma4_prefix(const checkpoint *ck) {
    static const char *const prefixes[] = {"model.language_model.", "language_model.model."};
    static const char *const names[] = {"embed_tokens.weight", "embed_tokens.weight_packed"};
    char name[96];
    for (size_t i = 0; i < 2; i++) {
        for (size_t k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%s%s", prefixes[i], names[k]);
            if (checkpoint_find(ck, name) >= 0) return prefixes[i];
        }
    }
    return "model.";
}

bool gemma4_has_own_head(const checkpoint *ck, const char *prefix) {
    char name[96];
    if (checkpoint_find(ck, "lm_head.weight_packed") >= 0) return true;
    snprintf(name, sizeof name, "%sembed_tokens.weight", prefix);
    ptrdiff_t embed = checkpoint_find(ck, name), head = checkpoint_find(ck, "lm_head.weight");
    if (embed < 0 || head < 0) return false;
    const tensor *e = ck->tensors[embed], *h = ck->tensors[head];
    if (e->type == h->type && e->dims == 2 && h->dims == 2 && e->shape[0] == h->shape[0] && e->shape[1] == h->shape[1])
        return memcmp(e->data, h->data, e->bytes) != 0;
    /* Of another type or width: a quantised head beside a plain embedding, or the other way round. */
    return e->dims == 2 && h->dims == 2 && e->shape[0] == h->shape[0] && e->type != h->type;
}

kakeya_status gemma4_quantisation(const checkpoint *ck, quantisation **out, kakeya_error *error) {
    kakeya_status status = quantisation_parse(ck->config_path, ck->config, ck->config_bytes, out, error);
    if (status != KAKEYA_OK || *out) return status;
    char *path, *text;
    size_t bytes;
    status = checkpoint_text(ck->directory, "hf_quant_config.json", true, &path, &text, &bytes, error);
    if (text) status = quantisation_parse(path, text, bytes, out, error);
    free(text);
    free(path);
    return status;
}

static void count(gemma4_modules *m, const weight *w) {
    size_t bytes = weight_bytes(w);
    m->bytes[w->format] += bytes;
    if (weight_format_is_plain(w->format)) return;
    m->quantised_bytes += bytes;
    if (m->bytes[w->format] > m->bytes[m->main_format] || weight_format_is_plain(m->main_format))
        m->main_format = w->format;
}

/* One matrix of all experts: stacked under any of the names in use, or a module per expert. */
static kakeya_status bind_experts(gemma4_modules *m, const tensor_binding *b, const char *layer, const char *matrix,
                                  module_shape shape, weight *out, bool *bound, kakeya_error *error) {
    static const char *const places[] = {"experts.switch_glu.", "experts."};
    char module[MODULE_BYTES], before[MODULE_BYTES], behind[32];
    for (size_t i = 0; i < 2; i++) {
        snprintf(module, sizeof module, "%s%s%s", layer, places[i], matrix);
        kakeya_status status = module_bind(b, m->quantised, module, false, shape, out, bound, error);
        if (status != KAKEYA_OK || *bound) return status;
    }
    snprintf(before, sizeof before, "%sexperts.", layer);
    snprintf(behind, sizeof behind, ".%s", matrix);
    return module_bind_experts(b, m->quantised, before, behind, shape, out, bound, error);
}

/* The experts' slots are "LAYER.experts.gate_up_proj" and "LAYER.experts.down_proj". */
static kakeya_status bind_expert_slot(gemma4_modules *m, const tensor_binding *b, const tensor_slot *slot,
                                      const char *name, bool *bound, kakeya_error *error) {
    char layer[MODULE_BYTES];
    const char *matrix = strstr(name, "experts.");
    snprintf(layer, sizeof layer, "%.*s", (int)(matrix - name), name);
    matrix += strlen("experts.");
    module_shape shape = {(int)slot->shape[0], (int)slot->shape[1], (int)slot->shape[2]};
    weight *w = (weight *)(void *)(b->base + slot->offset);
    if (checkpoint_find(b->ck, name) >= 0) return KAKEYA_OK; /* a plain tensor, bound as such */
    kakeya_status status = bind_experts(m, b, layer, matrix, shape, w, bound, error);
    if (status != KAKEYA_OK || *bound || strcmp(matrix, "gate_up_proj") != 0) {
        if (*bound) count(m, w);
        return status;
    }
    layer_weights *weights = (layer_weights *)(void *)((char *)w - offsetof(layer_weights, experts_gate_up));
    bool up = false;
    shape.out /= 2;
    status = bind_experts(m, b, layer, "gate_proj", shape, &weights->experts_gate, bound, error);
    if (status != KAKEYA_OK || !*bound) return status;
    status = bind_experts(m, b, layer, "up_proj", shape, &weights->experts_up, &up, error);
    if (status == KAKEYA_OK && !up)
        status =
            error_set(error, KAKEYA_FORMAT, "%s: %sexperts has a gate_proj, but no up_proj", b->ck->directory, layer);
    if (status != KAKEYA_OK) return status;
    count(m, &weights->experts_gate);
    count(m, &weights->experts_up);
    return KAKEYA_OK;
}

kakeya_status gemma4_bind_modules(void *context, const tensor_binding *b, const tensor_slot *slot, const char *name,
                                  bool *bound, kakeya_error *error) {
    gemma4_modules *m = context;
    char module[MODULE_BYTES];
    size_t length = strlen(name), suffix = strlen(".weight");
    if (slot->kind != SLOT_MATRIX && slot->kind != SLOT_IGNORED) return KAKEYA_OK;
    if (slot->dims == 3) return bind_expert_slot(m, b, slot, name, bound, error);
    if (length < suffix || strcmp(name + length - suffix, ".weight") != 0) return KAKEYA_OK;
    snprintf(module, sizeof module, "%.*s", (int)(length - suffix), name);
    if (slot->kind == SLOT_IGNORED) {
        module_ignore(b, module);
        return KAKEYA_OK;
    }
    bool table = slot->group == PARAMETERS_EMBEDDING || slot->group == PARAMETERS_PLE_TABLE;
    const module_shape shape = {.out = (int)slot->shape[0], .in = (int)slot->shape[1]};
    weight *w = (weight *)(void *)(b->base + slot->offset);
    kakeya_status status = module_bind(b, m->quantised, module, table, shape, w, bound, error);
    if (*bound) count(m, w);
    return status;
}
