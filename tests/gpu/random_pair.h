/* Random models in forms that the bundled ones do not have. */
#ifndef KAKEYA_TESTS_GPU_RANDOM_PAIR_H
#define KAKEYA_TESTS_GPU_RANDOM_PAIR_H

#include "gpu/pair.h"
#include "model/gemma4_layers.h"
#include "model/tensors.h"

/* The E2B form at a width that takes the tensor-core kernels of prompts: layers 5 to 9 attend the K/V of layers 3
 * (sliding) and 4 (full). */
static inline model_config shared_form(void) {
    enum { LAYERS = 10, SHARED = 5, INTERMEDIATE = 192 };
    model_config c = {.layers = LAYERS,
                      .hidden = 256,
                      .heads = 4,
                      .vocab = 640,
                      .max_context = 4096,
                      .sliding_window = 96,
                      .rms_eps = 1e-6f,
                      .logit_softcap = 30,
                      .tied_head = true,
                      .ple_width = 32,
                      .ple_vocab = 640,
                      .shared_kv_layers = SHARED,
                      .checkpoint_format = WEIGHT_BF16,
                      .rope = {[LAYER_SLIDING] = {.theta = 1e4f, .rotated_pairs = 32, .factor = 1},
                               [LAYER_FULL] = {.theta = 1e6f, .rotated_pairs = 16, .factor = 1}}};
    for (int i = 0; i < LAYERS; i++) {
        bool full = (i + 1) % 5 == 0;
        c.layer[i] =
            (layer_config){.type = full ? LAYER_FULL : LAYER_SLIDING, .head_dim = full ? 128 : 64, .kv_heads = 2};
    }
    int orphan;
    assert_true(gemma4_share_kv(&c, INTERMEDIATE, true, &orphan));
    return c;
}

/* The same with the head dimension of the published models' sliding layers, whose latents are decoded by a kernel of
 * their own, and with a window of many tiles. */
static inline model_config wide_form(void) {
    model_config c = shared_form();
    c.sliding_window = 1024;
    c.rope[LAYER_SLIDING].rotated_pairs = 128;
    for (int i = 0; i < c.layers; i++) c.layer[i].head_dim = c.layer[i].type == LAYER_FULL ? 128 : 256;
    return c;
}

/* The same with the full-attention layers of the published models: head dimension 512, K = V. */
static inline model_config tall_form(void) {
    model_config c = wide_form();
    c.rope[LAYER_FULL].rotated_pairs = 64;
    for (int i = 0; i < c.layers; i++) {
        if (c.layer[i].type != LAYER_FULL) continue;
        c.layer[i].head_dim = 512;
        c.layer[i].k_eq_v = true;
    }
    return c;
}

/* The same with eight queries to a K/V head, as 26B-A4B has: blocks of more than 2, 8 and 16 rows cross edges of the
 * kernels of attention. */
static inline model_config grouped_form(void) {
    model_config c = tall_form();
    c.heads = 16;
    return c;
}

/* The form of Gemma 3: values pass no norm, scores have a scale, full-attention layers have the heads of the others and
 * turn them all, nothing caps the logits, and the last layer slides. Widths are those of the 270M. */
static inline model_config gemma3_form(void) {
    enum { LAYERS = 10, PATTERN = 6, INTERMEDIATE = 2048 };
    model_config c = {.generation = GEMMA_3,
                      .layers = LAYERS,
                      .hidden = 640,
                      .heads = 4,
                      .vocab = 640,
                      .max_context = 4096,
                      .sliding_window = 512,
                      .rms_eps = 1e-6f,
                      .raw_values = true,
                      .query_scale = 1.0f / 16,
                      .tied_head = true,
                      .checkpoint_format = WEIGHT_BF16,
                      .rope = {[LAYER_SLIDING] = {.theta = 1e4f, .rotated_pairs = 128, .factor = 1},
                               [LAYER_FULL] = {.theta = 1e6f, .rotated_pairs = 128, .factor = 8}}};
    for (int i = 0; i < LAYERS; i++)
        c.layer[i] =
            (layer_config){.type = (i + 1) % PATTERN ? LAYER_SLIDING : LAYER_FULL, .head_dim = 256, .kv_heads = 1};
    int orphan;
    assert_true(gemma4_share_kv(&c, INTERMEDIATE, false, &orphan));
    return c;
}

/* The form of the 26B-A4B: experts instead of per-layer inputs. */
static inline model_config routed_form(void) {
    model_config c = shared_form();
    c.ple_width = c.ple_vocab = 0;
    c.moe = true;
    c.experts = 16;
    c.experts_per_token = 4;
    c.expert_intermediate = 64;
    return c;
}

/* What the weights of random verifiers are kept in. */
static weight_format random_weights = WEIGHT_BF16;

/* What opening a file of Gemma 3 does (model/gemma4_weights.c): no file has layers' scalars, and q_norm has the scale.
 */
static inline void settle_gemma3(language_model *m) {
    const model_config *c = &m->config;
    for (int i = 0; c->generation == GEMMA_3 && i < c->layers; i++) {
        float *q_norm = (float *)(uintptr_t)m->weights.layer[i].q_norm;
        for (int k = 0; k < c->layer[i].head_dim; k++) q_norm[k] *= c->query_scale;
        m->weights.layer[i].layer_scalar = 1;
    }
}

/* A random verifier of this form and, with windows, a random drafter whose layers slide by so much; 0: all of the
 * context. With f_theta a random one, too. */
static inline void random_models(pair *p, const model_config *form, const int windows[3], bool f_theta) {
    memset(p, 0, sizeof *p);
    if (!device_present()) skip();
    mem_account_init(&p->account, NULL, 0);
    tensor_memory memory = {0};
    p->verifier = calloc(1, sizeof *p->verifier);
    p->verifier->config = *form;
    p->verifier->config.checkpoint_format = random_weights;
    REQUIRE_OK(tensors_synthesize(gemma4_walk, &p->verifier->config, &p->verifier->weights, random_weights, &p->account,
                                  &memory, error));
    p->verifier->owned = memory.owned;
    p->verifier->n_owned = memory.n_owned;
    p->verifier->weights.head = p->verifier->weights.embed;
    settle_gemma3(p->verifier);
    if (windows) {
        memory = (tensor_memory){0};
        p->drafter = calloc(1, sizeof *p->drafter);
        p->drafter->config = (block_drafter_config){.layers = 3,
                                                    .hidden = form->hidden,
                                                    .heads = 4,
                                                    .kv_heads = 2,
                                                    .head_dim = 64,
                                                    .intermediate = 320,
                                                    .vocab = form->vocab,
                                                    .rms_eps = 1e-6f,
                                                    .rope_theta = 1e4f,
                                                    .block_size = 16,
                                                    .mask_token = 4,
                                                    .targets = 2,
                                                    .target_layer = {1, 7},
                                                    .sliding_window = {windows[0], windows[1], windows[2]}};
        REQUIRE_OK(
            tensors_synthesize(dflash_walk, &p->drafter->config, p->drafter, WEIGHT_BF16, &p->account, &memory, error));
        p->drafter->owned = memory.owned;
        p->drafter->n_owned = memory.n_owned;
    }
    if (f_theta)
        REQUIRE_OK(restoration_model_synthesize(form, &p->drafter->config, RESTORATION_PUBLISHED_RANK,
                                                RESTORATION_PUBLISHED_RANK, false, &p->account, &p->f_theta, error));
}

/* The same with an f_theta whose latents of keys and of values have these ranks. */
static inline void pair_random_ranks(pair *p, const model_config *form, const int windows[3], int rank_k, int rank_v) {
    random_models(p, form, windows, false);
    const block_drafter_config *d = &p->drafter->config;
    restoration_config c = {.input = RESTORATION_DRAFTER_CONTEXT_KV};
    restoration_config_fit(&c, form, rank_k, rank_v, false);
    c.drafter_layers = d->layers;
    c.drafter_kv_heads = d->kv_heads;
    c.drafter_head_dim = d->head_dim;
    REQUIRE_OK(restoration_model_synthesize_as(&c, WEIGHT_BF16, false, &p->account, &p->f_theta, error));
    pair_create(p, false);
}

/* f_thetas that read aux hidden states, in all forms of latents, beside a drafter (which reads two layers) and without
 * one. */
typedef struct aux_form {
    const char *name;
    int rank_k, rank_v, taps;
    bool shared, drafter;
    restoration_latents latents;
} aux_form;

static const aux_form aux_forms[] = {
    {"shared q8 without a drafter", 256, 256, 3, true, false, RESTORATION_LATENTS_Q8},
    {"separate q4 beside a drafter", 72, 200, 4, false, true, RESTORATION_LATENTS_Q4},
    {"shared bf16 beside a drafter", 136, 136, 2, true, true, RESTORATION_LATENTS_BF16},
    {"separate q8 without a drafter", 40, 72, 3, false, false, RESTORATION_LATENTS_Q8},
    {"shared q4 without a drafter", 200, 200, 1, true, false, RESTORATION_LATENTS_Q4},
};
enum { AUX_FORMS = sizeof aux_forms / sizeof aux_forms[0] };

static inline void pair_random_aux(pair *p, const model_config *form, const aux_form *f) {
    static const int windows[3] = {0, 40, 0};
    random_models(p, form, f->drafter ? windows : NULL, false);
    restoration_config c = {.input = RESTORATION_AUX_HIDDEN, .latents = f->latents, .hidden = form->hidden};
    restoration_config_fit(&c, form, f->rank_k, f->rank_v, f->shared);
    c.aux_layers = restoration_default_taps(form, f->taps, c.aux_layer);
    REQUIRE_OK(restoration_model_synthesize_as(&c, WEIGHT_BF16, false, &p->account, &p->f_theta, error));
    pair_create(p, false);
}

static inline void pair_random(pair *p, const model_config *form, const int windows[3], bool bidirectional,
                               bool f_theta) {
    random_models(p, form, windows, f_theta);
    pair_create(p, bidirectional);
}

#endif
