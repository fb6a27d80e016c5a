#include "model/dflash_gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/gguf_keys.h"
#include "model/gguf_binding.h"

enum {
    MAX_WIDTH = 1 << 17,
    MAX_HEADS = 1024,
    MAX_HEAD_DIM = 4096,
    MAX_CONTEXT = 1 << 28,
    MAX_BLOCK = 256,
    MAX_VOCAB = 1 << 24
};

/* ------------------------------------------------------------------------------------------------ configuration */

static void check_architecture(gguf_keys *r) {
    gguf_text name = {0};
    char shown[GGUF_SHOWN_BYTES];
    if (!gguf_keys_architecture(r, &name) || gguf_text_is(name, "dflash")) return;
    gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "general.architecture is %s, but only DFlash drafters draft (dflash)",
                   gguf_show(name.data, name.bytes, shown));
}

/* What changes the arithmetic and is not done here. */
static void check_unchanged(gguf_keys *r, const block_drafter_config *c) {
    double usual = 1 / sqrt((double)c->head_dim);
    double scale = gguf_keys_number(r, "dflash.attention.scale", -1e30, 1e30, usual);
    if (!(fabs(scale - usual) <= 1e-5 * usual))
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key dflash.attention.scale is %g, expected 1/sqrt(%d)", scale,
                       c->head_dim);
    double logits = gguf_keys_number(r, "dflash.logit_scale", -1e30, 1e30, 1);
    if (!(logits == 1)) gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key dflash.logit_scale is %g, expected 1", logits);
    if (gguf_keys_bool(r, "dflash.attention.causal", false))
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED,
                       "key dflash.attention.causal is true: drafts that see no later ones are "
                       "not supported");
    long long turned = gguf_keys_int(r, "dflash.rope.dimension_count", 0, MAX_HEAD_DIM, c->head_dim);
    if (turned != c->head_dim)
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key dflash.rope.dimension_count is %lld, expected the head dimension %d",
                       turned, c->head_dim);
    gguf_text scaling = {0};
    if (gguf_keys_text(r, "dflash.rope.scaling.type", &scaling) && !gguf_text_is(scaling, "none"))
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key dflash.rope.scaling.type: scaled positions are not supported");
    double factor = gguf_keys_number(r, "dflash.rope.scaling.factor", 0, 1e30, 1);
    if (!scaling.bytes && !(factor == 1) && !(factor == 0))
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED,
                       "key dflash.rope.scaling.factor is %g: scaled positions are not supported", factor);
}

static void read_heads(gguf_keys *r, block_drafter_config *c) {
    c->heads = (int)gguf_keys_required_int(r, "dflash.attention.head_count", 1, MAX_HEADS);
    c->kv_heads = (int)gguf_keys_int(r, "dflash.attention.head_count_kv", 1, MAX_HEADS, c->heads);
    if (r->status != KAKEYA_OK) return;
    c->head_dim = (int)gguf_keys_int(r, "dflash.attention.key_length", 2, MAX_HEAD_DIM, c->hidden / c->heads);
    long long values = gguf_keys_int(r, "dflash.attention.value_length", 2, MAX_HEAD_DIM, c->head_dim);
    if (values != c->head_dim)
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED,
                       "key dflash.attention.value_length is %lld, but keys have %d: they must "
                       "be equal",
                       values, c->head_dim);
    if (c->heads % c->kv_heads)
        gguf_keys_fail(r, KAKEYA_FORMAT, "key dflash.attention.head_count_kv is %d, which %d heads cannot share evenly",
                       c->kv_heads, c->heads);
    if (c->head_dim < 2 || c->head_dim % 2)
        gguf_keys_fail(r, KAKEYA_FORMAT,
                       "head dimension %d (dflash.attention.key_length) is not a positive even number", c->head_dim);
}

static void read_windows(gguf_keys *r, block_drafter_config *c) {
    static const char key[] = "dflash.attention.sliding_window";
    bool sliding[BLOCK_DRAFTER_MAX_LAYERS];
    int window = (int)gguf_keys_int(r, key, 0, MAX_CONTEXT, 0);
    if (!window && !gguf_find(r->file, "dflash.attention.sliding_window_pattern")) return; /* all full */
    gguf_keys_bools(r, "dflash.attention.sliding_window_pattern", c->layers, sliding);
    for (int i = 0; i < c->layers && r->status == KAKEYA_OK; i++) {
        if (sliding[i] && !window) gguf_keys_fail(r, KAKEYA_FORMAT, "layer %d slides, but key %s is missing", i, key);
        c->sliding_window[i] = sliding[i] ? window : 0;
    }
}

/* Counted as llama.cpp counts: the input of layer n is the output of layer n - 1. */
static void read_targets(gguf_keys *r, block_drafter_config *c) {
    static const char key[] = "dflash.target_layers";
    const gguf_value *targets = gguf_find(r->file, key);
    if (!targets || !targets->array || targets->count < 1 || targets->count > BLOCK_DRAFTER_MAX_TARGETS) {
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is not an array of 1 to %d numbers", key,
                       (int)BLOCK_DRAFTER_MAX_TARGETS);
        return;
    }
    c->targets = (int)targets->count;
    gguf_keys_ints(r, key, c->targets, 1, MODEL_MAX_LAYERS, c->target_layer);
    for (int i = 0; i < c->targets; i++) c->target_layer[i]--;
}

static void read_vocab(gguf_keys *r, const model_config *verifier, block_drafter_config *c) {
    const gguf_value *tokens = gguf_keys_array(r, "tokenizer.ggml.tokens", GGUF_STRING);
    bool listed = tokens && tokens->count > 0 && tokens->count <= MAX_VOCAB;
    c->vocab =
        (int)gguf_keys_int(r, "dflash.vocab_size", 1, MAX_VOCAB, listed ? (long long)tokens->count : verifier->vocab);
    c->mask_token = (int)gguf_keys_required_int(r, "tokenizer.ggml.mask_token_id", 0, c->vocab - 1);
}

static void read_config(gguf_keys *r, const model_config *verifier, block_drafter_config *c, bool *scaled) {
    check_architecture(r);
    if (r->status != KAKEYA_OK) return;
    c->layers = (int)gguf_keys_required_int(r, "dflash.block_count", 1, BLOCK_DRAFTER_MAX_LAYERS);
    c->hidden = (int)gguf_keys_required_int(r, "dflash.embedding_length", 1, MAX_WIDTH);
    c->intermediate = (int)gguf_keys_required_int(r, "dflash.feed_forward_length", 1, MAX_WIDTH);
    c->block_size = (int)gguf_keys_required_int(r, "dflash.block_size", 2, MAX_BLOCK);
    c->rms_eps = (float)gguf_keys_number(r, "dflash.attention.layer_norm_rms_epsilon", 1e-30, 1, 1e-6);
    c->rope_theta = (float)gguf_keys_number(r, "dflash.rope.freq_base", 1, 1e12, 1e6);
    c->logit_softcap = (float)gguf_keys_number(r, "dflash.final_logit_softcapping", 0, 1e6, 0);
    if (r->status != KAKEYA_OK) return; /* the numbers are not to be trusted */
    read_heads(r, c);
    if (r->status != KAKEYA_OK) return;
    read_windows(r, c);
    read_targets(r, c);
    read_vocab(r, verifier, c);
    check_unchanged(r, c);
    double root = sqrt((double)c->hidden), scale = gguf_keys_number(r, "dflash.embedding_scale", 0, 1e6, 1);
    *scaled = fabs(scale - root) <= 1e-2 * root;
    if (!*scaled && !(scale == 1))
        gguf_keys_fail(r, KAKEYA_UNSUPPORTED, "key dflash.embedding_scale is %g, expected 1 or sqrt(%d)", scale,
                       c->hidden);
}

kakeya_status dflash_gguf_config(const gguf *file, const model_config *verifier, block_drafter_config *out,
                                 bool *scaled, kakeya_error *error) {
    gguf_keys r = {.file = file, .error = error};
    memset(out, 0, sizeof *out);
    *scaled = false;
    read_config(&r, verifier, out, scaled);
    return r.status;
}

/* ------------------------------------------------------------------------------------------------------ tensors */

static bool tensor_name(const char *slot, char *out, size_t out_bytes) {
    static const struct {
        const char *slot, *gguf;
    } names[] = {
        {"fc.weight", "fc.weight"},
        {"hidden_norm.weight", "enc.output_norm.weight"},
        {"norm.weight", "output_norm.weight"},
        {"input_layernorm.weight", "attn_norm.weight"},
        {"post_attention_layernorm.weight", "ffn_norm.weight"},
        {"self_attn.q_proj.weight", "attn_q.weight"},
        {"self_attn.k_proj.weight", "attn_k.weight"},
        {"self_attn.v_proj.weight", "attn_v.weight"},
        {"self_attn.o_proj.weight", "attn_output.weight"},
        {"self_attn.q_norm.weight", "attn_q_norm.weight"},
        {"self_attn.k_norm.weight", "attn_k_norm.weight"},
        {"mlp.gate_proj.weight", "ffn_gate.weight"},
        {"mlp.up_proj.weight", "ffn_up.weight"},
        {"mlp.down_proj.weight", "ffn_down.weight"},
    };
    int layer = -1, read = 0;
    if (sscanf(slot, "layers.%d.%n", &layer, &read) == 1 && read > 0) slot += read;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i].slot, slot) != 0) continue;
        if (layer < 0)
            snprintf(out, out_bytes, "%s", names[i].gguf);
        else
            snprintf(out, out_bytes, "blk.%d.%s", layer, names[i].gguf);
        return true;
    }
    return false;
}

static kakeya_status bind_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    gguf_binding *b = context;
    char name[SLOT_NAME_BYTES];
    if (!tensor_name(slot->name, name, sizeof name))
        return error_set(error, KAKEYA_UNSUPPORTED, "%s: GGUF files have no name for %s", gguf_path(b->file),
                         slot->name);
    const gguf_tensor *t = gguf_binding_find(b, name);
    if (!t) {
        name_list_add(&b->missing, name, "");
        return KAKEYA_OK;
    }
    if (slot->kind == SLOT_VECTOR) return gguf_binding_numbers(b, slot, t, error);
    kakeya_status status = gguf_binding_check_shape(b, t, slot->dims, slot->shape, error);
    if (status != KAKEYA_OK) return status;
    return gguf_binding_matrix(b, t, (weight *)(void *)(b->base + slot->offset), error);
}

kakeya_status dflash_gguf_open(const char *path, const model_config *verifier, mem_account *account,
                               block_drafter_model *model, kakeya_error *error) {
    tensor_memory memory = {0};
    kakeya_status status = gguf_open(path, &model->file, error);
    if (status == KAKEYA_OK)
        status = dflash_gguf_config(model->file, verifier, &model->config, &model->scaled_embedding, error);
    if (status == KAKEYA_OK) status = block_drafter_config_fits(path, &model->config, verifier, error);
    if (status != KAKEYA_OK) return status;
    gguf_binding b = {.file = model->file, .base = (char *)model, .account = account, .memory = &memory};
    status = gguf_binding_begin(&b, dflash_walk, &model->config, error);
    if (status == KAKEYA_OK) status = dflash_walk(&model->config, bind_slot, &b, error);
    status = gguf_binding_end(&b, status, NULL, error);
    model->owned = memory.owned;
    model->n_owned = memory.n_owned;
    model->mapped_bytes = memory.mapped_bytes;
    return status;
}
