/* Any bytes as the configuration of a verifier, a drafter or f_theta: what is accepted must satisfy what the rest of
 * the program takes for granted. The first byte says which parser reads the others; a verifier's text may be followed
 * by a NUL and a generation_config. */
#include <stdlib.h>
#include <string.h>

#include "model/restoration.h"
#include "model/sizes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool condition) {
    if (!condition) abort();
}

static void check_verifier(const char *text, size_t bytes) {
    static model_config c;
    kakeya_error error = {0};
    const char *generation = memchr(text, '\0', bytes);
    size_t config_bytes = generation ? (size_t)(generation - text) : bytes;
    if (generation) generation++;
    size_t generation_bytes = generation ? bytes - config_bytes - 1 : 0;
    kakeya_status status = model_config_parse("fuzz", text, config_bytes, generation, generation_bytes, &c, &error);
    if (status != KAKEYA_OK) {
        require(error.status == status && *error.message);
        return;
    }
    require(c.layers >= 1 && c.layers <= MODEL_MAX_LAYERS && c.hidden >= 1 && c.heads >= 1 && c.vocab >= 1);
    require(!c.moe || (c.experts_per_token >= 1 && c.experts_per_token <= c.experts && c.expert_intermediate >= 1));
    require(c.n_stop_tokens >= 1 && c.n_stop_tokens <= MODEL_MAX_STOP_TOKENS);
    require(c.n_suppress_tokens >= 0 && c.n_suppress_tokens <= MODEL_MAX_SUPPRESS_TOKENS &&
            c.n_suppress_tokens < c.vocab);
    require((c.generation == GEMMA_3) == (c.query_scale > 0) && (c.generation == GEMMA_3) == c.raw_values);
    for (int i = 0; i < c.layers; i++) {
        const layer_config *l = &c.layer[i], *source = &c.layer[l->kv_source];
        require(l->head_dim >= 2 && l->head_dim % 2 == 0 && l->kv_heads >= 1 && c.heads % l->kv_heads == 0);
        require(l->kv_source >= 0 && l->kv_source <= i && source->kv_source == l->kv_source);
        require(source->type == l->type && source->kv_heads == l->kv_heads && source->head_dim == l->head_dim);
        require(c.rope[l->type].theta >= 1 && c.rope[l->type].factor > 0);
        require(c.rope[l->type].rotated_pairs >= 0 && c.rope[l->type].rotated_pairs <= l->head_dim / 2);
    }
    parameter_counts counts = gemma4_parameters(&c);
    require(counts.total > 0 && counts.active > 0 && counts.active <= counts.total);
}

static void check_drafter(const char *text, size_t bytes) {
    block_drafter_config c;
    kakeya_error error = {0};
    if (block_drafter_config_parse("fuzz", text, bytes, &c, &error) != KAKEYA_OK) {
        require(error.status != KAKEYA_OK && *error.message);
        return;
    }
    require(c.layers >= 1 && c.layers <= BLOCK_DRAFTER_MAX_LAYERS && c.heads % c.kv_heads == 0 && c.head_dim % 2 == 0);
    require(c.targets >= 1 && c.targets <= BLOCK_DRAFTER_MAX_TARGETS && c.block_size >= 2 && c.mask_token < c.vocab);
    require(dflash_parameters(&c) > 0);
}

static void check_f_theta(const char *text, size_t bytes) {
    restoration_config c;
    kakeya_error error = {0};
    if (restoration_config_parse("fuzz", text, bytes, &c, &error) != KAKEYA_OK) {
        require(error.status != KAKEYA_OK && *error.message);
        return;
    }
    require(c.layers >= 1 && c.layers <= MODEL_MAX_LAYERS && c.rank >= 1);
    for (int i = 0; i < c.layers; i++) require(c.kv_heads[i] >= 1 && c.head_dim[i] >= 1);
    require(f_theta_parameters(&c) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    if (data[0] == 'v')
        check_verifier(text, size - 1);
    else if (data[0] == 'd')
        check_drafter(text, size - 1);
    else
        check_f_theta(text, size - 1);
    return 0;
}
