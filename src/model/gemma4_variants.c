/* The published shapes of both generations, without any weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gemma4_layers.h"

typedef struct variant {
    const char *name;
    int layers, hidden, heads, kv_heads, full_kv_heads, intermediate;
    int pattern; /* every pattern-th layer is a full-attention layer */
    int shared_kv_layers, ple_width, sliding_window, max_context;
    bool k_eq_v, moe, double_wide;
    /* Gemma 3: the width that scores are divided by the root of (0: Gemma 4), one head dimension, factor of full
     * layers' RoPE */
    int query_width, head_dim;
    float rope_factor;
    int vocab;
} variant;

enum {
    VOCAB = 262144,
    HEAD_DIM = 256,
    FULL_HEAD_DIM = 512,
    EXPERTS = 128,
    EXPERTS_PER_TOKEN = 8,
    EXPERT_INTERMEDIATE = 704
};

static const variant variants[] = {
    {.name = "26b-a4b",
     .layers = 30,
     .hidden = 2816,
     .heads = 16,
     .kv_heads = 8,
     .full_kv_heads = 2,
     .intermediate = 2112,
     .pattern = 6,
     .sliding_window = 1024,
     .max_context = 262144,
     .k_eq_v = true,
     .moe = true},
    {.name = "31b",
     .layers = 60,
     .hidden = 5376,
     .heads = 32,
     .kv_heads = 16,
     .full_kv_heads = 4,
     .intermediate = 21504,
     .pattern = 6,
     .sliding_window = 1024,
     .max_context = 262144,
     .k_eq_v = true},
    {.name = "12b",
     .layers = 48,
     .hidden = 3840,
     .heads = 16,
     .kv_heads = 8,
     .full_kv_heads = 1,
     .intermediate = 15360,
     .pattern = 6,
     .sliding_window = 1024,
     .max_context = 262144,
     .k_eq_v = true},
    {.name = "e4b",
     .layers = 42,
     .hidden = 2560,
     .heads = 8,
     .kv_heads = 2,
     .full_kv_heads = 2,
     .intermediate = 10240,
     .pattern = 6,
     .shared_kv_layers = 18,
     .ple_width = 256,
     .sliding_window = 512,
     .max_context = 131072},
    {.name = "e2b",
     .layers = 35,
     .hidden = 1536,
     .heads = 8,
     .kv_heads = 1,
     .full_kv_heads = 1,
     .intermediate = 6144,
     .pattern = 5,
     .shared_kv_layers = 20,
     .ple_width = 256,
     .sliding_window = 512,
     .max_context = 131072,
     .double_wide = true},
    {.name = "gemma3-270m",
     .layers = 18,
     .hidden = 640,
     .heads = 4,
     .kv_heads = 1,
     .intermediate = 2048,
     .pattern = 6,
     .sliding_window = 512,
     .max_context = 32768,
     .query_width = 256,
     .head_dim = 256,
     .rope_factor = 1,
     .vocab = 262144},
    {.name = "gemma3-1b",
     .layers = 26,
     .hidden = 1152,
     .heads = 4,
     .kv_heads = 1,
     .intermediate = 6912,
     .pattern = 6,
     .sliding_window = 512,
     .max_context = 32768,
     .query_width = 256,
     .head_dim = 256,
     .rope_factor = 1,
     .vocab = 262144},
    {.name = "gemma3-4b",
     .layers = 34,
     .hidden = 2560,
     .heads = 8,
     .kv_heads = 4,
     .intermediate = 10240,
     .pattern = 6,
     .sliding_window = 1024,
     .max_context = 131072,
     .query_width = 256,
     .head_dim = 256,
     .rope_factor = 8,
     .vocab = 262208},
    {.name = "gemma3-12b",
     .layers = 48,
     .hidden = 3840,
     .heads = 16,
     .kv_heads = 8,
     .intermediate = 15360,
     .pattern = 6,
     .sliding_window = 1024,
     .max_context = 131072,
     .query_width = 256,
     .head_dim = 256,
     .rope_factor = 8,
     .vocab = 262208},
    {.name = "gemma3-27b",
     .layers = 62,
     .hidden = 5376,
     .heads = 32,
     .kv_heads = 16,
     .intermediate = 21504,
     .pattern = 6,
     .sliding_window = 1024,
     .max_context = 131072,
     .query_width = 168,
     .head_dim = 128,
     .rope_factor = 8,
     .vocab = 262208},
};

enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

/* The first `layers` layers of a variant. Layers that share K/V keep their place: a prefix that ends before the first
 * of them has none, so every sharing layer still finds its source. */
static void fill(const variant *v, int layers, weight_format format, model_config *c) {
    int first_shared = v->layers - v->shared_kv_layers;
    bool gemma3 = v->query_width > 0;
    int head_dim = gemma3 ? v->head_dim : HEAD_DIM, full_head_dim = gemma3 ? v->head_dim : FULL_HEAD_DIM;
    memset(c, 0, sizeof *c);
    *c = (model_config){
        .generation = gemma3 ? GEMMA_3 : GEMMA_4,
        .layers = layers,
        .hidden = v->hidden,
        .heads = v->heads,
        .vocab = gemma3 ? v->vocab : VOCAB,
        .max_context = v->max_context,
        .sliding_window = v->sliding_window,
        .rms_eps = 1e-6f,
        .logit_softcap = gemma3 ? 0 : 30,
        .raw_values = gemma3,
        .query_scale = gemma3 ? 1.0f / sqrtf((float)v->query_width) : 0,
        .tied_head = true,
        .moe = v->moe,
        .experts = v->moe ? EXPERTS : 0,
        .experts_per_token = v->moe ? EXPERTS_PER_TOKEN : 0,
        .expert_intermediate = v->moe ? EXPERT_INTERMEDIATE : 0,
        .ple_width = v->ple_width,
        .ple_vocab = v->ple_width ? VOCAB : 0,
        .shared_kv_layers = layers > first_shared ? layers - first_shared : 0,
        .rope = {[LAYER_SLIDING] = {.theta = 1e4f, .rotated_pairs = head_dim / 2, .factor = 1},
                 [LAYER_FULL] = {.theta = 1e6f,
                                 .rotated_pairs = gemma4_rotated_pairs(gemma3 ? 1 : 0.25, full_head_dim),
                                 .factor = gemma3 ? v->rope_factor : 1}},
        .checkpoint_format = format,
        .bos_token = 2,
        .pad_token = 0,
        .stop_tokens = {1, 106, 50},
        .n_stop_tokens = gemma3 ? 2 : 3,
    };
    snprintf(c->variant, sizeof c->variant, "%s", v->name);
    for (int i = 0; i < layers; i++) {
        bool full = (i + 1) % v->pattern == 0;
        c->layer[i] = (layer_config){
            .type = full ? LAYER_FULL : LAYER_SLIDING,
            .head_dim = full ? full_head_dim : head_dim,
            .kv_heads = full && !gemma3 ? v->full_kv_heads : v->kv_heads,
            .k_eq_v = full && v->k_eq_v,
        };
    }
    int orphan;
    (void)gemma4_share_kv(c, v->intermediate, v->double_wide, &orphan); /* holds for every prefix of the table's rows */
}

/* What option of `length` characters says that matrices are stored in. */
static bool find_stored(const char *option, size_t length, weight_format *format) {
    static const struct {
        const char *name;
        weight_format format;
    } stored[] = {{"dtype=f32", WEIGHT_F32},    {"dtype=bf16", WEIGHT_BF16}, {"q4_0", WEIGHT_Q4_0},
                  {"q8_0", WEIGHT_Q8_0},        {"q4_k_m", WEIGHT_Q4_K},     {"affine4", WEIGHT_AFFINE_4},
                  {"affine8", WEIGHT_AFFINE_8}, {"int4", WEIGHT_INT4},       {"fp8", WEIGHT_FP8},
                  {"mxfp4", WEIGHT_FP4_E8M0},   {"nvfp4", WEIGHT_FP4_E4M3}};
    for (size_t i = 0; i < sizeof stored / sizeof stored[0]; i++) {
        if (strlen(stored[i].name) == length && strncmp(option, stored[i].name, length) == 0) {
            *format = stored[i].format;
            return true;
        }
    }
    return false;
}

kakeya_status model_config_variant(const char *description, model_config *out, kakeya_error *error) {
    size_t name_length = strcspn(description, ":");
    const variant *found = NULL;
    for (int i = 0; i < N_VARIANTS; i++) {
        if (strlen(variants[i].name) == name_length && strncmp(variants[i].name, description, name_length) == 0)
            found = &variants[i];
    }
    if (!found)
        return error_set(
            error, KAKEYA_INVALID_ARGUMENT,
            "synthetic model \"%s\": unknown variant \"%.*s\" (26b-a4b, 31b, 12b, e4b, e2b, gemma3-27b, gemma3-12b, "
            "gemma3-4b, gemma3-1b, gemma3-270m)",
            description, (int)name_length, description);

    int layers = found->layers;
    weight_format format = WEIGHT_BF16;
    for (const char *option = description + name_length; *option;) {
        option++; /* the colon */
        size_t length = strcspn(option, ":");
        char *end = NULL;
        if (strncmp(option, "layers=", 7) == 0) {
            long value = strtol(option + 7, &end, 10);
            if (end == option + 7 || end != option + length || value < 1 || value > found->layers)
                return error_set(error, KAKEYA_INVALID_ARGUMENT,
                                 "synthetic model \"%s\": \"%.*s\" is not layers=1 to layers=%d", description,
                                 (int)length, option, found->layers);
            layers = (int)value;
        } else if (!find_stored(option, length, &format)) {
            return error_set(error, KAKEYA_INVALID_ARGUMENT,
                             "synthetic model \"%s\": unknown option \"%.*s\" (layers=N, dtype=f32, dtype=bf16, q4_0, "
                             "q8_0, q4_k_m, affine4, affine8, int4, fp8, mxfp4, nvfp4)",
                             description, (int)length, option);
        }
        option += length;
    }
    fill(found, layers, format, out);
    return KAKEYA_OK;
}

void gemma4_name_variant(model_config *config) {
    snprintf(config->variant, sizeof config->variant, config->generation == GEMMA_3 ? "gemma3" : "gemma4");
    for (int i = 0; i < N_VARIANTS; i++) {
        const variant *v = &variants[i];
        if (config->layers == v->layers && config->hidden == v->hidden && config->heads == v->heads &&
            config->layer[0].intermediate == v->intermediate && config->moe == v->moe &&
            (config->generation == GEMMA_3) == (v->query_width > 0) &&
            (config->vocab == VOCAB || config->vocab == v->vocab))
            snprintf(config->variant, sizeof config->variant, "%s", v->name);
    }
}
