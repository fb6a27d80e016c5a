/* The MLX backend on its CPU device, in float32 and in bf16: reference vectors, the CPU backend as oracle, and what
 * must hold on bits: any chunking of a prompt, any number of decode rows of which some are rejected, truncation, fork,
 * snapshots that move between backends, sessions side by side. */
#include "backend/backend_train.h"
#include "backend/mlx/mlx_device.h"
#include "memory_stream.h"
#include "model/tensors.h"
#include "quantised_models.h"
#include "sweep.h"
#include "tiny.h"

/* Short sweeps take every third policy: native, restored, restored in all layers. */
static int next_policy(void) { return sweep_short() ? 3 : 1; }

/* The same models on two backends. */
enum { CPU = 0, MLX, BACKENDS };

typedef struct pair {
    tiny on[BACKENDS]; /* weights are the first one's */
} pair;

static void pair_open(pair *p, const char *verifier, const char *drafter, kakeya_precision precision) {
    for (int b = 0; b < BACKENDS; b++) {
        tiny *d = &p->on[b];
        tiny_open_weights(d, verifier, drafter);
        d->ops = backend_find(b == MLX ? "mlx" : "cpu", NULL);
        assert_non_null(d->ops);
        if (drafter)
            REQUIRE_OK(restoration_model_synthesize(&d->verifier->config, &d->drafter->config, 24, 40, false,
                                                    &d->account, &d->f_theta, error));
        tiny_complete(d, precision, NULL, b == MLX ? 0 : 1);
    }
}

static void pair_close(pair *p) {
    for (int b = 0; b < BACKENDS; b++) tiny_close(&p->on[b]);
}

static size_t vocab_of(const tiny *d) { return (size_t)d->verifier->config.vocab; }

static float *logits_for(const tiny *d, int rows) {
    float *logits = calloc((size_t)rows * vocab_of(d), sizeof *logits);
    assert_non_null(logits);
    return logits;
}

/* ------------------------------------------------------------------------------------------- reference vectors */

static int greedy_of(const float *row, size_t vocab) {
    size_t best = 0;
    for (size_t v = 1; v < vocab; v++) {
        if (row[v] > row[best]) best = v;
    }
    return (int)best;
}

static void check_vectors(const char *name) {
    enum { T = 60, GREEDY = 12 };
    char path[512];
    tiny d = {0};
    mem_account_init(&d.account, NULL, 0);
    snprintf(path, sizeof path, "%s/golden/%s", KAKEYA_TEST_DATA, name);
    REQUIRE_OK(language_model_open(path, &d.account, &d.verifier, error));
    d.ops = backend_find("mlx", NULL);
    tiny_complete(&d, KAKEYA_PRECISION_F32, NULL, 0);
    safetensors *file = NULL;
    snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", KAKEYA_TEST_DATA, name);
    REQUIRE_OK(safetensors_open(path, &file, error));
    const int32_t *ids = (const int32_t *)(const void *)safetensors_find(file, "input_ids")->data,
                  *greedy = (const int32_t *)(const void *)safetensors_find(file, "greedy")->data;
    const float *expected = (const float *)(const void *)safetensors_find(file, "logits")->data,
                *expected_states = (const float *)(const void *)safetensors_find(file, "hidden_states")->data;
    size_t vocab = vocab_of(&d), hidden = (size_t)d.verifier->config.hidden, layers = (size_t)d.verifier->config.layers;
    float *logits = logits_for(&d, T), *row = logits_for(&d, 1),
          *states = calloc((layers + 1) * T * hidden, sizeof *states);
    backend_cache *cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
    int32_t choice[T];
    backend_segment prompt = {
        .cache = cache, .tokens = ids, .n = T, .logits = logits, .argmax = choice, .hidden_states = states};
    REQUIRE_OK(d.ops->forward(d.backend, &prompt, 1, error));
    REQUIRE_OK(d.ops->cache_commit(cache, T, error));
    assert_close(name, logits, expected, T * vocab, 3e-3);
    for (size_t i = 0; i <= layers; i++)
        assert_close_relative(name, states + i * T * hidden, expected_states + i * T * hidden, T * hidden, 3e-4);
    for (size_t t = 0; t < T; t++) assert_int_equal(choice[t], greedy_of(logits + t * vocab, vocab));
    for (int i = 0; i < GREEDY; i++) {
        int32_t token = i ? greedy_of(row, vocab) : choice[T - 1];
        assert_int_equal(token, greedy[i]);
        tiny_step(&d, cache, SEGMENT_DECODE, &token, 1, 1, row);
    }
    d.ops->cache_destroy(cache);
    cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
    memset(logits, 0, T * vocab * sizeof *logits);
    for (int at = 0; at < T; at += 12)
        tiny_step(&d, cache, SEGMENT_DECODE, ids + at, 12, 12, logits + (size_t)at * vocab);
    assert_close("decode rows", logits, expected, T * vocab, 3e-3);
    d.ops->cache_destroy(cache);
    free(logits);
    free(row);
    free(states);
    safetensors_close(file);
    tiny_close(&d);
}

static void vectors(void **state) {
    (void)state;
    check_vectors("gemma4-tiny-dense");
    check_vectors("gemma4-tiny-moe");
    check_vectors("gemma4-tiny-ple");
}

/* ------------------------------------------------------------------------------------------------ CPU as oracle */

enum { FIRST = 70, ANSWER = 21, LATER = 35, SECOND = 10, ALL = FIRST + ANSWER + LATER + SECOND };

/* Two turns; prompts in pieces of `chunk`, answers in blocks of `block` rows, of every other one only half is kept, the
 * rest being other tokens. */
static void run_turns(tiny *d, backend_cache *cache, const tiny_policy *p, const int32_t *tokens, int chunk, int block,
                      float *logits) {
    static const int ends[] = {FIRST, FIRST + ANSWER, FIRST + ANSWER + LATER, ALL};
    size_t vocab = vocab_of(d);
    float *rows = logits_for(d, LATER > FIRST ? LATER : FIRST);
    int most = tiny_block_rows(p);
    for (int turn = 0, at = 0, round = 0; turn < 4; turn++) {
        segment_kind kind = turn % 2 ? SEGMENT_DECODE : SEGMENT_PROMPT;
        for (; at < ends[turn]; round++) {
            int size = kind == SEGMENT_PROMPT ? chunk : block < most ? block : most;
            int n = ends[turn] - at < size ? ends[turn] - at : size;
            int kept = kind == SEGMENT_DECODE && n > 1 && round % 2 ? n / 2 : n;
            int32_t taken[FIRST];
            for (int i = 0; i < n; i++) taken[i] = i < kept ? tokens[at + i] : (tokens[at + i] + 7) % 300;
            tiny_step(d, cache, kind, taken, n, kept, rows);
            memcpy(logits + (size_t)at * vocab, rows, (size_t)kept * vocab * sizeof *rows);
            at += kept;
        }
    }
    free(rows);
}

static void against_cpu(void **state) {
    (void)state;
    pair p;
    pair_open(&p, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[ALL], drafts[BACKENDS][7];
    tiny_tokens(tokens, ALL, 3);
    size_t vocab = vocab_of(&p.on[0]);
    float *logits[BACKENDS] = {logits_for(&p.on[0], ALL), logits_for(&p.on[1], ALL)};
    int equal = 0, all = 0;
    for (int i = 0; i < TINY_POLICIES; i += next_policy()) {
        for (int b = 0; b < BACKENDS; b++) {
            backend_cache *cache = tiny_cache(&p.on[b], &tiny_policies[i], KV_FORMAT_F32);
            run_turns(&p.on[b], cache, &tiny_policies[i], tokens, FIRST, 8, logits[b]);
            REQUIRE_OK(backend_draft_one(p.on[b].ops, p.on[b].backend, cache, tokens[3], 7, drafts[b], error));
            backend_cache_bytes formula = p.on[b].ops->cache_bytes(cache);
            assert_int_equal(formula.full, mem_bytes(&p.on[b].account, MEM_KV_FULL));
            assert_int_equal(formula.sliding, mem_bytes(&p.on[b].account, MEM_KV_SLIDING));
            assert_int_equal(formula.latent, mem_bytes(&p.on[b].account, MEM_KV_LATENT));
            assert_int_equal(formula.draft, mem_bytes(&p.on[b].account, MEM_KV_DRAFT));
            p.on[b].ops->cache_destroy(cache);
        }
        assert_close_relative(tiny_policies[i].name, logits[MLX], logits[CPU], ALL * vocab, 1e-2);
        for (int k = 0; k < 7; k++, all++) equal += drafts[CPU][k] == drafts[MLX][k];
    }
    if (equal * 10 < all * 9) fail_msg("%d of %d drafts are the CPU's", equal, all);
    for (int b = 0; b < BACKENDS; b++) free(logits[b]);
    pair_close(&p);
}

/* Directories as MLX's own tools write them: the codes are multiplied as they are. */
static void quantised(void **state) {
    (void)state;
    enum { ROWS = 40, BLOCK = 9 };
    static const struct {
        const char *model;
        stored_form form;
        size_t most; /* bytes of weights: as float32 they would be several times as many */
    } cases[] = {{"gemma4-tiny-moe", STORED_AFFINE, 1600000},
                 {"gemma4-tiny-dense", STORED_MLX_MXFP4, 200000},
                 {"gemma4-tiny-dense", STORED_MLX_MXFP8, 400000},
                 {"gemma4-tiny-dense", STORED_MLX_NVFP4, 200000}};
    int32_t tokens[ROWS + BLOCK];
    tiny_tokens(tokens, ROWS + BLOCK, 31);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        made_model(cases[k].model, cases[k].form);
        float *logits[BACKENDS], *one = NULL;
        size_t vocab = 0, weights[BACKENDS];
        for (int b = 0; b < BACKENDS; b++) { /* the CPU computes what the codes mean */
            tiny d = {.ops = backend_find(b == MLX ? "mlx" : "cpu", NULL)};
            mem_account_init(&d.account, NULL, 0);
            REQUIRE_OK(
                language_model_open(scratch_path(b == MLX ? "quantised" : "meant"), &d.account, &d.verifier, error));
            tiny_complete(&d, KAKEYA_PRECISION_F32, NULL, b == MLX ? 0 : 1);
            weights[b] = mem_bytes(&d.account, MEM_WEIGHTS);
            vocab = vocab_of(&d);
            logits[b] = logits_for(&d, ROWS + BLOCK);
            backend_cache *cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens, ROWS, ROWS, logits[b]);
            tiny_step(&d, cache, SEGMENT_DECODE, tokens + ROWS, BLOCK, 0, logits[b] + (size_t)ROWS * vocab);
            if (b == MLX) {
                one = logits_for(&d, BLOCK);
                for (int i = 0; i < BLOCK; i++)
                    tiny_step(&d, cache, SEGMENT_DECODE, tokens + ROWS + i, 1, 1, one + (size_t)i * vocab);
            }
            d.ops->cache_destroy(cache);
            tiny_close(&d);
        }
        assert_close(cases[k].model, logits[MLX], logits[CPU], (ROWS + BLOCK) * vocab, 3e-3);
        assert_same_bits("one by one", one, logits[MLX] + ROWS * vocab, BLOCK * vocab);
        if (weights[MLX] > cases[k].most) fail_msg("form %d: %zu bytes of weights", (int)cases[k].form, weights[MLX]);
        free(logits[CPU]);
        free(logits[MLX]);
        free(one);
    }
}

/* The bundled models, whose numbers do not drift apart as those of random ones do. */
static void demo(void **state) {
    (void)state;
    enum { PROMPT = 50, BLOCK = 8 };
    static const tiny_policy policies[] = {
        {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, 0, 0, RESTORATION_DRAFTER_CONTEXT_KV},
        {"restored all", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 4, 16, RESTORATION_DRAFTER_CONTEXT_KV},
    };
    tiny d[BACKENDS];
    float *logits[BACKENDS];
    int32_t tokens[PROMPT + 2 * BLOCK], drafts[BACKENDS][7];
    tiny_tokens(tokens, PROMPT + 2 * BLOCK, 29);
    for (int b = 0; b < BACKENDS; b++) {
        d[b] = (tiny){.ops = backend_find(b == MLX ? "mlx" : "cpu", NULL)};
        mem_account_init(&d[b].account, NULL, 0);
        REQUIRE_OK(language_model_open(KAKEYA_MODELS "/demo", &d[b].account, &d[b].verifier, error));
        REQUIRE_OK(block_drafter_model_open(KAKEYA_MODELS "/demo-dflash", &d[b].verifier->config, &d[b].account,
                                            &d[b].drafter, error));
        REQUIRE_OK(restoration_model_open(KAKEYA_TEST_DATA "/golden/demo-f-theta-regression", &d[b].verifier->config,
                                          &d[b].drafter->config, &d[b].account, &d[b].f_theta, error));
        tiny_complete(&d[b], KAKEYA_PRECISION_F32, NULL, b == MLX ? 0 : 1);
        logits[b] = logits_for(&d[b], PROMPT + 2 * BLOCK);
    }
    size_t vocab = vocab_of(&d[0]);
    for (int i = 0; i < 2; i++) {
        for (int b = 0; b < BACKENDS; b++) {
            backend_cache_options options = tiny_options(&d[b], &policies[i], KV_FORMAT_F32);
            backend_cache *cache = NULL;
            REQUIRE_OK(d[b].ops->cache_create(d[b].backend, &options, &cache, error));
            tiny_step(&d[b], cache, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, logits[b]);
            for (int at = PROMPT; at < PROMPT + 2 * BLOCK; at += BLOCK)
                tiny_step(&d[b], cache, SEGMENT_DECODE, tokens + at, BLOCK, BLOCK, logits[b] + (size_t)at * vocab);
            REQUIRE_OK(backend_draft_one(d[b].ops, d[b].backend, cache, tokens[3], 7, drafts[b], error));
            d[b].ops->cache_destroy(cache);
        }
        assert_close(policies[i].name, logits[MLX], logits[CPU], (PROMPT + 2 * BLOCK) * vocab, 5e-4);
        assert_memory_equal(drafts[MLX], drafts[CPU], sizeof drafts[CPU]);
    }
    for (int b = 0; b < BACKENDS; b++) {
        free(logits[b]);
        tiny_close(&d[b]);
    }
}

/* ---------------------------------------------------------------------------------------------------- on bits */

/* Rows alone, and of the other ways one for each policy. Chunks of one row, each a tile, are much work: with `tiles`,
 * for the last policy. Whole runs have all ways for all policies, and tiles for each model. */
static void check_bits(const char *verifier, const char *drafter, kakeya_precision precision, kv_format format,
                       int policies, bool tiles) {
    static const int how[][2] = {{FIRST, 1}, {33, 17}, {7, 5}, {1, 16}};
    tiny d;
    tiny_open(&d, verifier, drafter, precision);
    int32_t tokens[ALL];
    tiny_tokens(tokens, ALL, 11);
    size_t vocab = vocab_of(&d);
    float *whole = logits_for(&d, ALL), *parts = logits_for(&d, ALL);
    for (int i = 0; i < policies; i += next_policy()) {
        for (int k = 0; k < 4; k++) {
            if (k == 3 ? i < policies - 1 || !(tiles || sweep_whole()) : k == 1 + i % 2 && !sweep_whole()) continue;
            backend_cache *cache = tiny_cache(&d, &tiny_policies[i], format);
            run_turns(&d, cache, &tiny_policies[i], tokens, how[k][0], how[k][1], k ? parts : whole);
            d.ops->cache_destroy(cache);
            char what[96];
            snprintf(what, sizeof what, "%s, %s, chunks of %d, blocks of %d", verifier, tiny_policies[i].name,
                     how[k][0], how[k][1]);
            if (k) assert_same_bits(what, parts, whole, ALL * vocab);
        }
    }
    free(whole);
    free(parts);
    tiny_close(&d);
}

static void rows_and_chunks_change_no_bit(void **state) {
    (void)state;
    check_bits("gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32, KV_FORMAT_F32, TINY_POLICIES, true);
    check_bits("gemma4-tiny-moe", NULL, KAKEYA_PRECISION_BF16, KV_FORMAT_BF16, 2, false);
    check_bits("gemma4-tiny-ple", NULL, KAKEYA_PRECISION_F32, KV_FORMAT_Q8, 2, false);
    check_bits("gemma4-tiny-dense", NULL, KAKEYA_PRECISION_F32, KV_FORMAT_Q4, 1, false);
}

/* f_theta fed by aux hidden states, on layers that attend the K/V of others: as the CPU, and on bits. */
static void latents_from_aux(void **state) {
    (void)state;
    static const tiny_policy policies[] = {
        {"restored 16", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 2, 16, RESTORATION_AUX_HIDDEN},
        {"restored all 9", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 4, 9, RESTORATION_AUX_HIDDEN},
    };
    tiny d[BACKENDS];
    float *logits[BACKENDS], *parts;
    int32_t tokens[ALL];
    tiny_tokens(tokens, ALL, 37);
    for (int b = 0; b < BACKENDS; b++) {
        tiny_open_weights(&d[b], "gemma4-tiny-ple", NULL);
        const model_config *form = &d[b].verifier->config;
        restoration_config c = {
            .input = RESTORATION_AUX_HIDDEN, .latents = RESTORATION_LATENTS_KV, .hidden = form->hidden};
        restoration_config_fit(&c, form, 20, 20, true);
        c.aux_layers = restoration_default_taps(form, 3, c.aux_layer);
        REQUIRE_OK(restoration_model_synthesize_as(&c, WEIGHT_F32, false, &d[b].account, &d[b].f_theta, error));
        d[b].ops = backend_find(b == MLX ? "mlx" : "cpu", NULL);
        tiny_complete(&d[b], KAKEYA_PRECISION_F32, NULL, b == MLX ? 0 : 1);
        logits[b] = logits_for(&d[b], ALL);
    }
    size_t vocab = vocab_of(&d[MLX]);
    parts = logits_for(&d[MLX], ALL);
    for (int i = 0; i < 2; i++) {
        for (int run = 0; run < 3; run++) {
            tiny *on = &d[run == CPU ? CPU : MLX];
            backend_cache *cache = tiny_cache(on, &policies[i], KV_FORMAT_F32);
            run_turns(on, cache, &policies[i], tokens, run < 2 ? FIRST : 23, run < 2 ? 1 : 7,
                      run == CPU   ? logits[CPU]
                      : run == MLX ? logits[MLX]
                                   : parts);
            on->ops->cache_destroy(cache);
        }
        /* A random model lets small differences grow from row to row: the first rows that attend latents are compared.
         */
        assert_close_relative(policies[i].name, logits[MLX] + FIRST * vocab, logits[CPU] + FIRST * vocab, 5 * vocab,
                              1e-2);
        assert_same_bits(policies[i].name, parts, logits[MLX], ALL * vocab);
    }
    for (int b = 0; b < BACKENDS; b++) {
        free(logits[b]);
        tiny_close(&d[b]);
    }
    free(parts);
}

/* A row of an answer, and a block of them inside one tile, is one evaluation: layers, logits and the choice. */
static void a_step_is_one_evaluation(void **state) {
    (void)state;
    enum { PROMPT = 32, BLOCK = 8 };
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", NULL, KAKEYA_PRECISION_F32);
    int32_t tokens[PROMPT + BLOCK], choice[BLOCK], again[BLOCK];
    tiny_tokens(tokens, PROMPT + BLOCK, 7);
    float *logits = logits_for(&d, BLOCK);
    backend_cache *cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
    tiny_step(&d, cache, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, NULL);
    for (int first = 0; first < BLOCK; first += 3) { /* logits of all rows, or of some */
        backend_segment rows = tiny_rows(cache, SEGMENT_DECODE, tokens + PROMPT, BLOCK, logits);
        rows.first_logit_row = first;
        rows.argmax = choice + first;
        long before = mlx_device_waits();
        REQUIRE_OK(d.ops->forward(d.backend, &rows, 1, error));
        assert_int_equal(mlx_device_waits() - before, 1);
        REQUIRE_OK(d.ops->cache_commit(cache, 0, error));
        for (int i = first; i < BLOCK; i++)
            assert_int_equal(choice[i], greedy_of(logits + (size_t)(i - first) * vocab_of(&d), vocab_of(&d)));
    }
    for (int i = 0; i < BLOCK; i++) {
        backend_segment row = tiny_rows(cache, SEGMENT_DECODE, tokens + PROMPT + i, 1, NULL);
        row.first_logit_row = 0;
        row.argmax = again + i;
        long before = mlx_device_waits();
        REQUIRE_OK(d.ops->forward(d.backend, &row, 1, error));
        assert_int_equal(mlx_device_waits() - before, 1);
        REQUIRE_OK(d.ops->cache_commit(cache, 1, error));
    }
    assert_memory_equal(again, choice, sizeof again);
    d.ops->cache_destroy(cache);
    free(logits);
    tiny_close(&d);
}

/* Drafts, too: the drafter's layers, logits and the choice. What follows rows has been made before. */
static void a_block_of_drafts_is_one_evaluation(void **state) {
    (void)state;
    enum { PROMPT = 20 };
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[PROMPT], drafts[2][7];
    tiny_tokens(tokens, PROMPT, 7);
    backend_cache *cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
    tiny_step(&d, cache, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, NULL);
    REQUIRE_OK(backend_draft_one(d.ops, d.backend, cache, tokens[3], 7, drafts[0], error));
    long before = mlx_device_waits();
    REQUIRE_OK(backend_draft_one(d.ops, d.backend, cache, tokens[3], 7, drafts[1], error));
    assert_int_equal(mlx_device_waits() - before, 1);
    assert_memory_equal(drafts[1], drafts[0], sizeof drafts[0]);
    d.ops->cache_destroy(cache);
    tiny_close(&d);
}

/* However many tiles and sessions a forward has, there is something to compute until its end. */
static void a_forward_waits_once(void **state) {
    (void)state;
    enum { PROMPT = 70, BLOCK = 17, SESSIONS = 2 }; /* three tiles, and two */
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", NULL, KAKEYA_PRECISION_F32);
    int32_t tokens[PROMPT + BLOCK], choice[SESSIONS][BLOCK];
    tiny_tokens(tokens, PROMPT + BLOCK, 9);
    backend_cache *caches[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) caches[i] = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
    for (int part = 0; part < 2; part++) {
        backend_segment segments[SESSIONS];
        for (int i = 0; i < SESSIONS; i++) {
            segments[i] = part ? tiny_rows(caches[i], SEGMENT_DECODE, tokens + PROMPT, BLOCK, NULL)
                               : tiny_rows(caches[i], SEGMENT_PROMPT, tokens, PROMPT, NULL);
            segments[i].first_logit_row = part ? 0 : PROMPT;
            segments[i].argmax = part ? choice[i] : NULL;
        }
        long before = mlx_device_waits();
        REQUIRE_OK(d.ops->forward(d.backend, segments, SESSIONS, error));
        assert_int_equal(mlx_device_waits() - before, 1);
        for (int i = 0; i < SESSIONS; i++) REQUIRE_OK(d.ops->cache_commit(caches[i], part ? BLOCK : PROMPT, error));
    }
    assert_memory_equal(choice[0], choice[1], sizeof choice[0]);
    for (int i = 0; i < SESSIONS; i++) d.ops->cache_destroy(caches[i]);
    tiny_close(&d);
}

/* A block whose rows cross the border where full-attention layers get more slots. */
static void borders_change_no_bit(void **state) {
    (void)state;
    enum { PROMPT = 1016, BLOCK = 16 };
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", NULL, KAKEYA_PRECISION_F32);
    size_t vocab = vocab_of(&d);
    int32_t tokens[PROMPT + BLOCK];
    tiny_tokens(tokens, PROMPT + BLOCK, 5);
    float *block = logits_for(&d, BLOCK), *one = logits_for(&d, BLOCK);
    backend_cache *caches[2];
    for (int c = 0; c < 2; c++) {
        backend_cache_options options = tiny_options(&d, &tiny_policies[0], KV_FORMAT_F32);
        options.context_tokens = PROMPT + BLOCK;
        REQUIRE_OK(d.ops->cache_create(d.backend, &options, &caches[c], error));
        for (int at = 0; at < PROMPT; at += 508) tiny_step(&d, caches[c], SEGMENT_PROMPT, tokens + at, 508, 508, NULL);
    }
    tiny_step(&d, caches[0], SEGMENT_DECODE, tokens + PROMPT, BLOCK, BLOCK, block);
    for (int i = 0; i < BLOCK; i++)
        tiny_step(&d, caches[1], SEGMENT_DECODE, tokens + PROMPT + i, 1, 1, one + (size_t)i * vocab);
    assert_same_bits("across the border", block, one, BLOCK * vocab);
    for (int c = 0; c < 2; c++) d.ops->cache_destroy(caches[c]);
    free(block);
    free(one);
    tiny_close(&d);
}

/* ---------------------------------------------------------------------------------------------------- snapshots */

static memory_stream snapshot_of(tiny *d, const backend_cache *cache) {
    memory_stream stream = {0};
    REQUIRE_OK(d->ops->cache_snapshot(cache, memory_write, &stream, error));
    assert_int_equal(stream.bytes, d->ops->cache_snapshot_bytes(cache));
    return stream;
}

/* A session moves to the CPU backend and back: the same bytes, the same future. */
static void snapshots_move(void **state) {
    (void)state;
    static const kv_format formats[] = {KV_FORMAT_Q4, KV_FORMAT_F32, KV_FORMAT_Q8};
    pair p;
    pair_open(&p, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    tiny *mlx = &p.on[MLX], *cpu = &p.on[CPU];
    size_t vocab = vocab_of(mlx);
    int32_t tokens[ALL];
    tiny_tokens(tokens, ALL, 13);
    float *logits = logits_for(mlx, ALL), *here = logits_for(mlx, 5), *there = logits_for(mlx, 5);
    for (int i = 0; i < TINY_POLICIES; i += next_policy()) {
        const tiny_policy *policy = &tiny_policies[i];
        kv_format format = formats[i / next_policy() % 3];
        backend_cache *cache = tiny_cache(mlx, policy, format), *moved = tiny_cache(cpu, policy, format),
                      *back = tiny_cache(mlx, policy, format), *fork = NULL;
        run_turns(mlx, cache, policy, tokens, FIRST, 8, logits);
        memory_stream data = snapshot_of(mlx, cache);
        REQUIRE_OK(cpu->ops->cache_restore(moved, memory_read, &data, error));
        memory_stream again = snapshot_of(cpu, moved);
        assert_int_equal(data.bytes, again.bytes);
        assert_memory_equal(data.data, again.data, data.bytes);
        REQUIRE_OK(mlx->ops->cache_restore(back, memory_read, &again, error));
        REQUIRE_OK(mlx->ops->cache_fork(cache, &mlx->account, &fork, error));

        tiny_step(mlx, cache, SEGMENT_DECODE, tokens, 5, 5, here);
        tiny_step(mlx, back, SEGMENT_DECODE, tokens, 5, 5, there);
        assert_same_bits("after a restore", there, here, 5 * vocab);
        tiny_step(mlx, fork, SEGMENT_DECODE, tokens, 5, 5, there);
        assert_same_bits("after a fork", there, here, 5 * vocab);
        tiny_step(cpu, moved, SEGMENT_DECODE, tokens, 5, 5, there);
        assert_close_relative("on the other backend", there, here, 5 * vocab, 1e-2);
        int length = mlx->ops->cache_length(cache);
        REQUIRE_OK(mlx->ops->cache_truncate(cache, length - 3, error));
        tiny_step(mlx, cache, SEGMENT_DECODE, tokens + 2, 3, 3, there);
        assert_same_bits("after a truncation", there, here + 2 * vocab, 3 * vocab);
        mlx->ops->cache_destroy(cache);
        mlx->ops->cache_destroy(back);
        mlx->ops->cache_destroy(fork);
        cpu->ops->cache_destroy(moved);
        memory_free(&data);
        memory_free(&again);
    }
    free(logits);
    free(here);
    free(there);
    pair_close(&p);
}

/* --------------------------------------------------------------------------------------------- several segments */

static void segments_do_not_mix(void **state) {
    (void)state;
    enum { PROMPT = 37, BLOCK = 6 };
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    size_t vocab = vocab_of(&d);
    int32_t tokens[PROMPT + BLOCK], together[3][4], alone[3][4];
    tiny_tokens(tokens, PROMPT + BLOCK, 17);
    float *many = logits_for(&d, 3 * BLOCK), *one = logits_for(&d, 3 * BLOCK);
    static const int policies[3] = {0, 1, 3};
    for (int how = 0; how < 2; how++) {
        backend_cache *caches[3];
        backend_segment segments[3];
        backend_draft_request requests[3];
        for (int i = 0; i < 3; i++) {
            caches[i] = tiny_cache(&d, &tiny_policies[policies[i]], KV_FORMAT_F32);
            tiny_step(&d, caches[i], SEGMENT_PROMPT, tokens + i, PROMPT - i, PROMPT - i, NULL);
            segments[i] = tiny_rows(caches[i], SEGMENT_DECODE, tokens + PROMPT, BLOCK - i,
                                    (how ? one : many) + (size_t)(i * BLOCK) * vocab);
            requests[i] = (backend_draft_request){
                .cache = caches[i], .bonus = tokens[i], .n = 4, .drafts = how ? alone[i] : together[i]};
        }
        for (int i = 0; i < (how ? 3 : 1); i++) REQUIRE_OK(d.ops->forward(d.backend, segments + i, how ? 1 : 3, error));
        for (int i = 0; i < 3; i++) REQUIRE_OK(d.ops->cache_commit(caches[i], BLOCK - i, error));
        for (int i = 0; i < (how ? 3 : 1); i++) REQUIRE_OK(d.ops->draft(d.backend, requests + i, how ? 1 : 3, error));
        for (int i = 0; i < 3; i++) d.ops->cache_destroy(caches[i]);
    }
    assert_same_bits("three sessions in one forward", many, one, 3 * BLOCK * vocab);
    assert_memory_equal(together, alone, sizeof together);
    free(many);
    free(one);
    tiny_close(&d);
}

/* ------------------------------------------------------------------------------------------ memory and failures */

/* What libmlx holds beside a model's weights and tables comes and goes with each step. */
static void memory_is_flat(void **state) {
    (void)state;
    tiny d;
    size_t before = mlx_device_active_bytes();
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[ALL];
    tiny_tokens(tokens, ALL, 19);
    backend_cache *cache = tiny_cache(&d, &tiny_policies[3], KV_FORMAT_F32);
    tiny_step(&d, cache, SEGMENT_PROMPT, tokens, FIRST, FIRST, NULL);
    tiny_step(&d, cache, SEGMENT_DECODE, tokens, 8, 8, NULL);
    size_t held = mlx_device_active_bytes(), counted = mem_total(&d.account);
    assert_true(held > before);
    for (int i = 0; i < 6; i++) {
        tiny_step(&d, cache, SEGMENT_DECODE, tokens, 8, 3, NULL);
        assert_int_equal(mlx_device_active_bytes(), held);
    }
    /* Pages of full-attention layers and the workspace of the largest graph may grow; nothing else does. */
    size_t grown = mem_total(&d.account) - counted;
    assert_true(grown < 2 * mem_bytes(&d.account, MEM_WORKSPACE));
    d.ops->cache_destroy(cache);
    tiny_close(&d);
    assert_int_equal(mlx_device_active_bytes(), before);
}

/* A model for which there is too little memory is none, and leaves nothing. */
static void too_little_memory_is_told(void **state) {
    (void)state;
    tiny d;
    tiny_open_weights(&d, "gemma4-tiny-dense", "dflash-tiny");
    size_t counted = mem_total(&d.account), held = mlx_device_active_bytes();
    backend_model_options options = {
        .verifier = d.verifier, .drafter = d.drafter, .precision = KAKEYA_PRECISION_F32, .account = &d.account};
    for (size_t more = 1000; more < 1 << 20; more *= 3) {
        kakeya_error error = {0};
        d.account.limit_bytes = counted + more;
        assert_int_equal(d.ops->model_create(&options, &d.backend, &error), KAKEYA_OUT_OF_MEMORY);
        assert_int_equal(mem_total(&d.account), counted);
        assert_int_equal(mlx_device_active_bytes(), held);
    }
    d.account.limit_bytes = 0;
    tiny_complete(&d, KAKEYA_PRECISION_F32, NULL, 0);
    tiny_close(&d);
}

static void refuse_model(tiny *d, kakeya_precision precision, const char *isa, const char *expected) {
    backend_model_options options = {
        .verifier = d->verifier, .precision = precision, .isa = isa, .account = &d->account};
    kakeya_error error = {0};
    assert_int_equal(d->ops->model_create(&options, &d->backend, &error), KAKEYA_UNSUPPORTED);
    assert_string_equal(error.message, expected);
}

static void what_it_does_not_do_is_refused(void **state) {
    (void)state;
    tiny d;
    tiny_open_weights(&d, "gemma4-tiny-dense", "dflash-tiny");
    refuse_model(&d, KAKEYA_PRECISION_INT8, NULL, "backend mlx computes in precision f32 or bf16, not in int8");
    refuse_model(&d, KAKEYA_PRECISION_F32, "avx2", "kernel set 'avx2' belongs to backend cpu, not to mlx");
    REQUIRE_OK(restoration_model_synthesize(&d.verifier->config, &d.drafter->config, 8, 8, false, &d.account,
                                            &d.f_theta, error));
    tiny_complete(&d, KAKEYA_PRECISION_F32, NULL, 0);
    const tiny_policy from_tokens = {"restored", KAKEYA_ATTENTION_RESTORED,   KAKEYA_RESTORE_SLIDING, 3,
                                     16,         RESTORATION_DRAFTER_TOKEN_KV};
    d.f_theta->config.input = from_tokens.input;
    backend_cache_options options = tiny_options(&d, &from_tokens, KV_FORMAT_F32);
    backend_cache *cache = NULL;
    kakeya_error error = {0};
    assert_int_equal(d.ops->cache_create(d.backend, &options, &cache, &error), KAKEYA_UNSUPPORTED);
    assert_string_equal(error.message, "backend mlx does not restore from input drafter_kv");
    tiny_close(&d);
}

/* The small model in a format, whose values somebody makes up; layers add nothing to what they are given. */
static void open_made(tiny *d, weight_format format, bool outline, tensor_memory *memory) {
    static const float zeros[64];
    tiny_open_weights(d, "gemma4-tiny-dense", NULL);
    model_config *c = &d->verifier->config;
    model_weights *w = &d->verifier->weights;
    c->checkpoint_format = format;
    for (int i = 0; i < c->layers; i++) c->layer[i].intermediate = 192; /* whole groups */
    REQUIRE_OK((outline ? tensors_outline : tensors_synthesize)(gemma4_walk, c, w, format, &d->account, memory, error));
    w->head = w->embed;
    assert_int_equal(c->hidden, 64);
    for (int i = 0; i < c->layers; i++) w->layer[i].post_attention_norm = w->layer[i].post_ffn_norm = zeros;
}

/* Weights without a checkpoint: made here, or given as any others. Both in codes, and the row of a token that is looked
 * up is the row that the head has for it: without layers each token predicts itself. */
static void made_weights(void **state) {
    (void)state;
    enum { N = 20 };
    static const weight_format formats[] = {WEIGHT_AFFINE_4, WEIGHT_AFFINE_8, WEIGHT_BF16, WEIGHT_F32};
    int32_t tokens[N], choice[N];
    tiny_tokens(tokens, N, 23);
    size_t held[2] = {0, 0};
    for (int i = 0; i < 8; i++) {
        tiny d;
        tensor_memory memory = {0};
        open_made(&d, formats[i / 2], i % 2 == 0, &memory);
        size_t before = mem_bytes(&d.account, MEM_WEIGHTS);
        tiny_complete(&d, KAKEYA_PRECISION_F32, NULL, 0);
        held[i % 2] = mem_bytes(&d.account, MEM_WEIGHTS) - before;
        backend_cache *cache = tiny_cache(&d, &tiny_policies[0], KV_FORMAT_F32);
        backend_segment rows = {.cache = cache, .tokens = tokens, .n = N, .argmax = choice};
        REQUIRE_OK(d.ops->forward(d.backend, &rows, 1, error));
        for (int t = 0; t < N; t++) assert_int_equal(choice[t], tokens[t]);
        d.ops->cache_destroy(cache);
        tensor_memory_release(&memory);
        tiny_close(&d);
        if (i % 2) assert_int_equal(held[0], held[1]);
    }
    tiny d;
    tensor_memory memory = {0};
    open_made(&d, WEIGHT_Q4_0, true, &memory);
    refuse_model(&d, KAKEYA_PRECISION_F32, NULL,
                 "backend mlx cannot make weights of type Q8_0, only of affine4 and affine8");
    tensor_memory_release(&memory);
    language_model_close(d.verifier);
    assert_int_equal(mem_total(&d.account), 0);
}

/* ------------------------------------------------------------------------------------------------------ training */

/* All that a forward shows, one behind the other. */
typedef struct shown {
    const model_config *config;
    float *values;
    size_t n;
} shown;

static void show(shown *s, const float *x, size_t rows, size_t width) {
    if (!x) return;
    s->values = realloc(s->values, (s->n + rows * width) * sizeof *x);
    assert_non_null(s->values);
    memcpy(s->values + s->n, x, rows * width * sizeof *x);
    s->n += rows * width;
}

static void tap(void *user, const train_layer *l) {
    shown *s = user;
    const layer_config *c = &s->config->layer[l->layer];
    size_t rows = (size_t)l->rows, kv = (size_t)(c->kv_heads * c->head_dim),
           q = (size_t)(s->config->heads * c->head_dim), hidden = (size_t)s->config->hidden,
           positions = (size_t)l->position + rows;
    const float place[] = {(float)l->layer, (float)l->position, (float)l->half, (float)l->pairs};
    show(s, place, 1, 4);
    show(s, l->raw_k, rows, kv);
    show(s, l->raw_v, rows, kv);
    show(s, l->q, rows, q);
    show(s, l->o, rows, q);
    show(s, l->out, rows, hidden);
    show(s, l->h, rows, hidden);
    show(s, l->cosine, positions, (size_t)l->pairs);
    show(s, l->sine, positions, (size_t)l->pairs);
}

/* What the closed form of f_theta is made of: inner values of every layer, across tiles and forwards, and sums. */
static void training_sees_what_the_cpu_shows(void **state) {
    (void)state;
    static const char *const models[] = {"gemma4-tiny-dense", "gemma4-tiny-moe", "gemma4-tiny-ple"};
    static const int forwards[] = {45, 20};
    int32_t tokens[65];
    tiny_tokens(tokens, 65, 29);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        pair p;
        shown seen[BACKENDS] = {{0}};
        float sums[BACKENDS][3 * 7];
        pair_open(&p, models[i], NULL, KAKEYA_PRECISION_F32);
        for (int b = 0; b < BACKENDS; b++) {
            tiny *d = &p.on[b];
            const backend_train_ops *train = backend_train_find(d->ops);
            backend_cache *cache = tiny_cache(d, &tiny_policies[0], KV_FORMAT_F32);
            seen[b].config = &d->verifier->config;
            for (int at = 0, f = 0; f < 2; at += forwards[f++])
                REQUIRE_OK(train->forward(d->backend, cache, tokens + at, forwards[f], tap, &seen[b], error));
            assert_int_equal(d->ops->cache_length(cache), 65);
            if (b == MLX) { /* a failure changes nothing */
                shown none = {.config = seen[b].config};
                kakeya_error problem;
                mlx_device_fail_after(0);
                assert_int_equal(train->forward(d->backend, cache, tokens, 10, tap, &none, &problem), KAKEYA_BACKEND);
                assert_int_equal(none.n, 0);
                assert_int_equal(d->ops->cache_length(cache), 65);
                mlx_device_fail_after(0);
                assert_int_equal(
                    train->outer(d->backend, seen[b].values, 1, seen[b].values, 1, 1, 1, sums[b], &problem),
                    KAKEYA_BACKEND);
                mlx_device_fail_after(-1);
            }
            d->ops->cache_destroy(cache);
            /* rows of 7 values, and of 3 among 5 */
            REQUIRE_OK(train->outer(d->backend, seen[0].values, 7, seen[0].values + 100, 5, 3, 40, sums[b], error));
        }
        assert_int_equal(seen[CPU].n, seen[MLX].n);
        assert_close_relative(models[i], seen[MLX].values, seen[CPU].values, seen[CPU].n, 1e-4);
        assert_close_relative("sums of products", sums[MLX], sums[CPU], 3 * 7, 1e-5);
        for (int b = 0; b < BACKENDS; b++) free(seen[b].values);
        pair_close(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors),
        cmocka_unit_test(against_cpu),
        cmocka_unit_test(demo),
        cmocka_unit_test(quantised),
        cmocka_unit_test(rows_and_chunks_change_no_bit),
        cmocka_unit_test(latents_from_aux),
        cmocka_unit_test(a_step_is_one_evaluation),
        cmocka_unit_test(a_block_of_drafts_is_one_evaluation),
        cmocka_unit_test(a_forward_waits_once),
        cmocka_unit_test(borders_change_no_bit),
        cmocka_unit_test(snapshots_move),
        cmocka_unit_test(segments_do_not_mix),
        cmocka_unit_test(memory_is_flat),
        cmocka_unit_test(too_little_memory_is_told),
        cmocka_unit_test(what_it_does_not_do_is_refused),
        cmocka_unit_test(made_weights),
        cmocka_unit_test(training_sees_what_the_cpu_shows),
    };
    const char *wanted = getenv("MLX_TEST_FILTER"); /* a pattern of names */
    if (wanted) cmocka_set_test_filter(wanted);
    return cmocka_run_group_tests_name("mlx", tests, scratch_setup, scratch_teardown);
}
