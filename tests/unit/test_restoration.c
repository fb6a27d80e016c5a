/* Drafter, f_theta and restored attention against reference vectors (float32), and what must hold for any policy:
 * decode rows one by one = blocks, rejected rows leave no trace, truncation, fork and snapshot are exact. */
#include "golden.h"

#include "backend/cpu/block.h"
#include "backend/cpu/draft.h"
#include "backend/cpu/rope.h"
#include "backend/measure.h"
#include "memory_stream.h"
#include "packed.h"
#include "sweep.h"

typedef struct demo {
    mem_account account;
    language_model *verifier;
    block_drafter_model *drafter;
    restoration_model *f_theta;
    backend_model *backend;
    const backend_ops *ops;
} demo;

/* What the reference vectors were made with: an f_theta fitted to K/V themselves. */
#define REFERENCE_F_THETA KAKEYA_TEST_DATA "/golden/demo-f-theta-regression"

static void demo_open_with(demo *d, kakeya_precision precision, const char *isa, const char *f_theta) {
    memset(d, 0, sizeof *d);
    mem_account_init(&d->account, NULL, 0);
    REQUIRE_OK(language_model_open(KAKEYA_MODELS "/demo", &d->account, &d->verifier, error));
    REQUIRE_OK(
        block_drafter_model_open(KAKEYA_MODELS "/demo-dflash", &d->verifier->config, &d->account, &d->drafter, error));
    REQUIRE_OK(
        restoration_model_open(f_theta, &d->verifier->config, &d->drafter->config, &d->account, &d->f_theta, error));
    d->ops = backend_find("cpu", NULL);
    backend_model_options options = {.verifier = d->verifier,
                                     .drafter = d->drafter,
                                     .restoration = d->f_theta,
                                     .precision = precision,
                                     .isa = isa,
                                     .threads = 1,
                                     .account = &d->account};
    REQUIRE_OK(d->ops->model_create(&options, &d->backend, error));
}

static void demo_open(demo *d, kakeya_precision precision, const char *isa) {
    demo_open_with(d, precision, isa, REFERENCE_F_THETA);
}

static void demo_close(demo *d) {
    d->ops->model_destroy(d->backend);
    restoration_model_close(d->f_theta);
    block_drafter_model_close(d->drafter);
    language_model_close(d->verifier);
    assert_int_equal(mem_total(&d->account), 0);
}

static backend_cache *cache_of(demo *d, kakeya_attention attention, kakeya_restore_layers layers, kv_format kv,
                               int window) {
    backend_cache *cache = NULL;
    backend_cache_options options = {.context_tokens = 2048,
                                     .attention = attention,
                                     .restore_layers = layers,
                                     .sink = 4,
                                     .window = window,
                                     .draft_window = 1024,
                                     .kv_format = kv,
                                     .keep_draft_context = true,
                                     .account = &d->account};
    REQUIRE_OK(d->ops->cache_create(d->backend, &options, &cache, error));
    return cache;
}

/* Rows [at, at + n) of one kind; keeps `kept` of them. */
static void step(demo *d, backend_cache *cache, const int32_t *tokens, int n, int kept, segment_kind kind,
                 float *logits) {
    backend_segment segment = {
        .cache = cache, .tokens = tokens, .n = n, .kind = kind, .first_logit_row = logits ? 0 : n, .logits = logits};
    REQUIRE_OK(d->ops->forward(d->backend, &segment, 1, error));
    REQUIRE_OK(d->ops->cache_commit(cache, kept, error));
}

static const float *floats(safetensors *file, const char *name, size_t count) {
    const tensor *t = safetensors_find(file, name);
    if (!t || t->bytes != count * 4) fail_msg("vector '%s' is missing or has another size", name);
    return (const float *)(const void *)t->data;
}

/* The logits of a vector, malloc'ed. Those of the demo may be stored as 16-bit multiples of NAME.step: *error is how
 * far they may be from the reference by that, and every bound below is smaller by it. */
static float *stored_logits(safetensors *file, const char *name, size_t count, double *error) {
    const tensor *t = safetensors_find(file, name);
    float *out = malloc(count * sizeof *out);
    assert_non_null(out);
    *error = 0;
    if (t && t->type == TENSOR_I16 && t->bytes == count * 2) {
        char step_name[64];
        snprintf(step_name, sizeof step_name, "%s.step", name);
        const float step = *floats(file, step_name, 1);
        const int16_t *multiples = (const int16_t *)(const void *)t->data;
        for (size_t i = 0; i < count; i++) out[i] = (float)multiples[i] * step;
        *error = 0.501 * (double)step; /* the rest for the rounding of the product */
    } else {
        memcpy(out, floats(file, name, count), count * sizeof *out);
    }
    return out;
}

/* ------------------------------------------------------------------------------------------ reference vectors */

static void check_drafter(demo *d, const char *vectors, const char *hidden_name, const char *logits_name, int context,
                          int block) {
    safetensors *file = NULL;
    REQUIRE_OK(safetensors_open(unpacked_file(vectors), &file, error));
    const block_drafter_config *c = &d->drafter->config;
    size_t hidden = (size_t)c->hidden, vocab = (size_t)d->verifier->config.vocab;
    const float *aux = floats(file, "aux", (size_t)(context * c->targets) * (size_t)d->verifier->config.hidden);
    const int32_t *ids = (const int32_t *)(const void *)safetensors_find(file, "block_ids")->data;
    float *found = calloc((size_t)block * hidden, sizeof *found), *logits = calloc(vocab, sizeof *logits);
    int32_t drafts[BACKEND_MAX_DRAFT];

    /* The context built in one go, and in uneven pieces: the same block. */
    for (int pieces = 0; pieces < 2; pieces++) {
        backend_cache *cache = cache_of(d, KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, KV_FORMAT_F32, 64);
        REQUIRE_OK(rope_table_reserve(d->backend, &d->backend->draft_rope, context + 64, error));
        for (int at = 0; at < context;) {
            int n = pieces == 0 ? context : at % 7 + 1 < context - at ? at % 7 + 1 : context - at;
            draft_rows rows = {cache, aux + (size_t)(at * c->targets) * (size_t)d->verifier->config.hidden, n, at};
            draft_extend(d->backend, &rows, 1);
            at += n;
        }
        cache->t.length = cache->t.draft_length = context;
        REQUIRE_OK(draft_block_hidden(cache, ids[0], block - 1, found, error));
        assert_close("drafter hidden", found, floats(file, hidden_name, (size_t)block * hidden), (size_t)block * hidden,
                     2e-3);
        REQUIRE_OK(backend_draft_one(d->ops, d->backend, cache, ids[0], block - 1, drafts, error));
        double stored;
        float *raw = stored_logits(file, logits_name, (size_t)block * vocab, &stored);
        for (int i = 1; i < block; i++) {
            const float *row = raw + (size_t)i * vocab;
            int best = 0;
            for (int v = 1; v < (int)vocab; v++) {
                if (v != c->mask_token && row[v] > row[best]) best = v;
            }
            if (drafts[i - 1] != best && (double)row[best] - (double)row[drafts[i - 1]] > 1e-3 - 2 * stored) {
                fail_msg("draft %d is %d, expected %d", i, (int)drafts[i - 1], best);
            }
        }
        free(raw);
        d->ops->cache_destroy(cache);
    }
    free(found);
    free(logits);
    safetensors_close(file);
}

static void drafter_of_demo(void **state) {
    (void)state;
    demo d;
    demo_open(&d, KAKEYA_PRECISION_F32, NULL);
    check_drafter(&d, KAKEYA_TEST_DATA "/golden/demo_dflash_golden.safetensors", "hidden", "logits_raw", 50, 8);
    demo_close(&d);
}

static void drafter_tiny(void **state) {
    (void)state;
    demo d;
    memset(&d, 0, sizeof d);
    mem_account_init(&d.account, NULL, 0);
    safetensors *file = NULL;
    REQUIRE_OK(safetensors_open(KAKEYA_TEST_DATA "/golden/dflash-tiny/golden.safetensors", &file, error));
    REQUIRE_OK(language_model_open(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", &d.account, &d.verifier, error));
    /* The vectors bring their own embedding. */
    d.verifier->weights.embed.stream[0] = safetensors_find(file, "embed")->data;
    d.verifier->weights.head = d.verifier->weights.embed;
    REQUIRE_OK(block_drafter_model_open(KAKEYA_TEST_DATA "/golden/dflash-tiny", &d.verifier->config, &d.account,
                                        &d.drafter, error));
    d.ops = backend_find("cpu", NULL);
    backend_model_options options = {.verifier = d.verifier,
                                     .drafter = d.drafter,
                                     .precision = KAKEYA_PRECISION_F32,
                                     .threads = 1,
                                     .account = &d.account};
    REQUIRE_OK(d.ops->model_create(&options, &d.backend, error));
    check_drafter(&d, KAKEYA_TEST_DATA "/golden/dflash-tiny/golden.safetensors", "hidden", "logits_raw", 37, 6);
    demo_close(&d);
    safetensors_close(file);
}

/* Sliding layers with a window shorter than the block, under both rules inside the block
 * (tools/make_drafter_golden.py). */
static void drafter_sliding(void **state) {
    (void)state;
    static const char *const names[2][2] = {{"hidden_causal", "logits_causal"},
                                            {"hidden_bidirectional", "logits_bidirectional"}};
    for (int bidirectional = 0; bidirectional < 2; bidirectional++) {
        demo d;
        memset(&d, 0, sizeof d);
        mem_account_init(&d.account, NULL, 0);
        REQUIRE_OK(language_model_open(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", &d.account, &d.verifier, error));
        REQUIRE_OK(block_drafter_model_open(unpacked_folder(KAKEYA_TEST_DATA "/golden/dflash-sliding"),
                                            &d.verifier->config, &d.account, &d.drafter, error));
        d.ops = backend_find("cpu", NULL);
        backend_model_options options = {.verifier = d.verifier,
                                         .drafter = d.drafter,
                                         .precision = KAKEYA_PRECISION_F32,
                                         .drafter_block_bidirectional = bidirectional,
                                         .threads = 2,
                                         .account = &d.account};
        REQUIRE_OK(d.ops->model_create(&options, &d.backend, error));
        check_drafter(&d, KAKEYA_TEST_DATA "/golden/dflash-sliding/golden.safetensors", names[bidirectional][0],
                      names[bidirectional][1], 37, 8);
        demo_close(&d);
    }
}

static void product(const cpu_kernels *k, const weight *w, const float *x, int rows, float *y) {
    const cpu_product *exact = &k->weight[w->format].product[INPUT_EXACT];
    void *packed = aligned_alloc(64, k->packing[exact->packing].row_bytes(w->in) * (size_t)rows);
    k->packing[exact->packing].pack(x, (size_t)w->in, rows, w->in, packed);
    exact->multiply(packed, rows, w, y, (size_t)w->out);
    free(packed);
}

static void f_theta_map(void **state) {
    (void)state;
    demo d;
    demo_open_with(&d, KAKEYA_PRECISION_F32, NULL, REFERENCE_F_THETA);
    safetensors *file = NULL;
    REQUIRE_OK(safetensors_open(unpacked_file(KAKEYA_TEST_DATA "/golden/restored_golden.safetensors"), &file, error));
    const restoration_model *f = d.f_theta;
    enum { ROWS = 4 };
    for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) {
        const cpu_kernels *k = cpu_kernels_find(*isa);
        float *latent = calloc(ROWS * (size_t)f->config.rank, sizeof *latent), *raw = calloc(ROWS * 4096, sizeof *raw);
        for (int half = 0; half < 2; half++) {
            product(k, half ? &f->encoder_v : &f->encoder_k,
                    floats(file, half ? "f_theta.drafter_v" : "f_theta.drafter_k", ROWS * (size_t)f->encoder_in), ROWS,
                    latent);
            for (int i = 0; i < f->config.layers; i++) {
                const weight *decoder = half ? &f->decoder_v[i] : &f->decoder_k[i];
                char name[64];
                snprintf(name, sizeof name, "f_theta.%c.%d", half ? 'v' : 'k', i);
                product(k, decoder, latent, ROWS, raw);
                assert_close(name, raw, floats(file, name, ROWS * (size_t)decoder->out), ROWS * (size_t)decoder->out,
                             2e-3);
            }
        }
        free(latent);
        free(raw);
    }
    safetensors_close(file);
    demo_close(&d);
}

/* Rows kept in the vectors: C-1, C+2, the last but three and the last. */
static void check_policy(demo *d, safetensors *file, int index, const char *policy, kakeya_attention attention) {
    char name[64];
    snprintf(name, sizeof name, "case%d.input_ids", index);
    const tensor *ids_tensor = safetensors_find(file, name);
    const int32_t *ids = (const int32_t *)(const void *)ids_tensor->data;
    int total = (int)ids_tensor->shape[0];
    snprintf(name, sizeof name, "case%d.prompt_len", index);
    int prompt = *(const int32_t *)(const void *)safetensors_find(file, name)->data;
    size_t vocab = (size_t)d->verifier->config.vocab;
    float *logits = calloc((size_t)total * vocab, sizeof *logits);
    backend_cache *cache = cache_of(d, attention, KAKEYA_RESTORE_SLIDING, KV_FORMAT_F32, 64);
    for (int at = 0; at < prompt;) {
        int n = prompt - at < 400 ? prompt - at : 400;
        step(d, cache, ids + at, n, n, SEGMENT_PROMPT, logits + (size_t)at * vocab);
        at += n;
    }
    for (int at = prompt; at < total;) {
        int n = total - at < 1 + at % 5 ? total - at : 1 + at % 5;
        step(d, cache, ids + at, n, n, SEGMENT_DECODE, logits + (size_t)at * vocab);
        at += n;
    }
    snprintf(name, sizeof name, "case%d.%s.logits", index, policy);
    const int kept[] = {prompt - 1, prompt + 2, total - 4, total - 1};
    double stored;
    float *expected = stored_logits(file, name, 4 * vocab, &stored);
    for (int i = 0; i < 4; i++) {
        int row = kept[i];
        char what[96];
        snprintf(what, sizeof what, "%s, row %d", name, row);
        assert_close(what, logits + (size_t)row * vocab, expected + (size_t)i * vocab, vocab, 2e-3 - stored);
    }
    free(expected);
    free(logits);
    d->ops->cache_destroy(cache);
}

static void policies_of_reference(void **state) {
    (void)state;
    demo d;
    demo_open_with(&d, KAKEYA_PRECISION_F32, NULL, REFERENCE_F_THETA);
    safetensors *file = NULL;
    REQUIRE_OK(safetensors_open(unpacked_file(KAKEYA_TEST_DATA "/golden/restored_golden.safetensors"), &file, error));
    check_policy(&d, file, 0, "native", KAKEYA_ATTENTION_NATIVE);
    check_policy(&d, file, 0, "drop", KAKEYA_ATTENTION_SINK_WINDOW);
    for (int i = 0; i < (sweep_whole() ? 3 : 1); i++) check_policy(&d, file, i, "restored", KAKEYA_ATTENTION_RESTORED);
    safetensors_close(file);
    demo_close(&d);
}

static void demo_hidden_states(void **state) {
    (void)state;
    demo d;
    demo_open(&d, KAKEYA_PRECISION_F32, NULL);
    safetensors *file = NULL;
    REQUIRE_OK(safetensors_open(unpacked_file(KAKEYA_TEST_DATA "/golden/demo_hidden.safetensors"), &file, error));
    enum { T = 356, LAST = 8, SCORED = 4 };
    size_t vocab = (size_t)d.verifier->config.vocab, hidden = (size_t)d.verifier->config.hidden;
    size_t layers = (size_t)d.verifier->config.layers;
    const int32_t *ids = (const int32_t *)(const void *)safetensors_find(file, "input_ids")->data;
    float *logits = calloc(SCORED * vocab, sizeof *logits), *states = calloc((layers + 1) * T * hidden, sizeof *states);
    backend_cache *cache = cache_of(&d, KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, KV_FORMAT_F32, 64);
    backend_segment segment = {.cache = cache,
                               .tokens = ids,
                               .n = T,
                               .kind = SEGMENT_PROMPT,
                               .first_logit_row = T - SCORED,
                               .logits = logits,
                               .hidden_states = states};
    REQUIRE_OK(d.ops->forward(d.backend, &segment, 1, error));
    assert_close("logits", logits, floats(file, "logits_last4", SCORED * vocab), SCORED * vocab, 5e-4);
    const float *expected = floats(file, "hidden_states_last8", (layers + 1) * LAST * hidden);
    for (size_t i = 0; i <= layers; i++) {
        assert_close_relative("hidden states", states + (i * T + T - LAST) * hidden, expected + i * LAST * hidden,
                              LAST * hidden, 3e-4);
    }
    d.ops->cache_destroy(cache);
    free(logits);
    free(states);
    safetensors_close(file);
    demo_close(&d);
}

/* ----------------------------------------------------------------------------------------------- properties */

typedef struct policy_case {
    const char *name;
    kakeya_attention attention;
    kakeya_restore_layers layers;
    int window;
    restoration_input input;
} policy_case;

static const policy_case policies[] = {
    {"native", KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, 64, RESTORATION_DRAFTER_CONTEXT_KV},
    {"sink-window 64", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 64, RESTORATION_DRAFTER_CONTEXT_KV},
    {"sink-window 20", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 20, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored 64", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 64, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored 24", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 24, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored all 64", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 64, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored all 17", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 17, RESTORATION_DRAFTER_CONTEXT_KV},
    {"restored 24 from tokens", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, 24, RESTORATION_DRAFTER_TOKEN_KV},
    {"restored all 40 from tokens", KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 40, RESTORATION_DRAFTER_TOKEN_KV},
};
enum { POLICIES = sizeof policies / sizeof policies[0] };

/* The first answer begins before anything is evicted and ends behind it; the last wraps the demo's ring of 272
 * positions. */
enum { TURNS = 3, FIRST_PROMPT = 40, PROMPT = 110, ANSWER = 40, SHORT_ANSWER = 20 };
static int prompt_tokens(int turn) { return turn == 0 ? FIRST_PROMPT : PROMPT; }
static int answer_tokens(void) { return sweep_whole() ? ANSWER : SHORT_ANSWER; }

static uint32_t next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

static void random_tokens(int32_t *tokens, int n, int vocab, uint32_t seed) {
    for (int i = 0; i < n; i++) tokens[i] = (int32_t)((next_random(&seed) >> 8) % (uint32_t)vocab);
}

/* Three turns of prompt and answer. style 0: whole prompts, single decode rows. style 1: uneven prompt chunks, the
 * longest blocks, with wrong drafts behind the right tokens, rejected. style 2: blocks of any length, with detours
 * through truncation, fork and snapshot. */
static void run_turns(demo *d, const policy_case *p, kv_format kv, int style, const int32_t *tokens, float *logits) {
    size_t vocab = (size_t)d->verifier->config.vocab;
    backend_cache *cache = cache_of(d, p->attention, p->layers, kv, p->window);
    float *discard = calloc(BACKEND_MAX_DECODE_ROWS * vocab, sizeof *discard);
    uint32_t random = 99;
    int at = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int end = at + prompt_tokens(turn); at < end;) {
            int n = style == 0 ? end - at : 1 + (int)((next_random(&random) >> 8) % 70u);
            if (n > end - at) n = end - at;
            step(d, cache, tokens + at, n, n, SEGMENT_PROMPT, logits + (size_t)at * vocab);
            at += n;
        }
        for (int end = at + answer_tokens(); at < end;) {
            int most = p->window < BACKEND_MAX_DECODE_ROWS ? p->window : BACKEND_MAX_DECODE_ROWS;
            int n = style == 0 ? 1 : style == 1 ? most : 1 + (int)((next_random(&random) >> 8) % (uint32_t)most);
            int kept = style == 0 ? 1 : 1 + (int)((next_random(&random) >> 8) % (uint32_t)n);
            if (kept > end - at) kept = end - at;
            int32_t block[BACKEND_MAX_DECODE_ROWS];
            for (int i = 0; i < n; i++)
                block[i] = i < kept ? tokens[at + i] : (int32_t)((next_random(&random) >> 8) % vocab);
            step(d, cache, block, n, kept, SEGMENT_DECODE, discard);
            memcpy(logits + (size_t)at * vocab, discard, (size_t)kept * vocab * sizeof *logits);
            at += kept;
            if (style < 2) continue;
            int least = d->ops->cache_min_truncate(cache);
            if (next_random(&random) >> 30 == 0 && at - 3 >= least && at - 3 > end - answer_tokens()) {
                REQUIRE_OK(d->ops->cache_truncate(cache, at - 3, error));
                for (int i = at - 3; i < at; i++) step(d, cache, tokens + i, 1, 1, SEGMENT_DECODE, discard);
            }
            if (next_random(&random) >> 30 == 0) {
                backend_cache *copy = NULL;
                REQUIRE_OK(d->ops->cache_fork(cache, &d->account, &copy, error));
                memory_stream first = {0}, second = {0};
                REQUIRE_OK(d->ops->cache_snapshot(cache, memory_write, &first, error));
                REQUIRE_OK(d->ops->cache_snapshot(copy, memory_write, &second, error));
                assert_int_equal(first.bytes, d->ops->cache_snapshot_bytes(cache));
                assert_int_equal(second.bytes, first.bytes);
                assert_memory_equal(first.data, second.data, first.bytes);
                memory_free(&first);
                memory_free(&second);
                d->ops->cache_destroy(cache);
                cache = copy;
            }
        }
        backend_cache_bytes formula = d->ops->cache_bytes(cache);
        assert_int_equal(formula.full, mem_bytes(&d->account, MEM_KV_FULL));
        assert_int_equal(formula.sliding, mem_bytes(&d->account, MEM_KV_SLIDING));
        assert_int_equal(formula.latent, mem_bytes(&d->account, MEM_KV_LATENT));
        assert_int_equal(formula.draft, mem_bytes(&d->account, MEM_KV_DRAFT));
    }
    free(discard);
    d->ops->cache_destroy(cache);
}

static void lossless_across_blocks(void **state) {
    (void)state;
    enum { TOTAL = TURNS * (PROMPT + ANSWER) - PROMPT + FIRST_PROMPT };
    for (int kind = sweep_short(); kind < KV_FORMAT_COUNT; kind++) {
        demo d;
        bool precision = kind > 0;
        demo_open(&d, precision ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32, NULL);
        size_t vocab = (size_t)d.verifier->config.vocab;
        float *reference = calloc(TOTAL * vocab, sizeof *reference), *other = calloc(TOTAL * vocab, sizeof *other);
        int32_t tokens[TOTAL];
        random_tokens(tokens, TOTAL, (int)vocab, 7);
        for (int p = sweep_short() ? 3 : 0; p < POLICIES; p += sweep_short() ? 3 : 1) {
            /* in 8 bits every other policy: what they change is in the two others' pairs */
            if (!sweep_short() && !sweep_whole() && kind > 1 && p % 2 == 0) continue;
            kv_format kv = (kv_format)kind;
            d.f_theta->config.input = policies[p].input;
            run_turns(&d, &policies[p], kv, 0, tokens, reference);
            for (int style = 1; style < 3; style++) {
                if (!sweep_whole() && style == (sweep_short() ? 1 : 1 + (p + precision) % 2))
                    continue; /* one is enough for each */
                run_turns(&d, &policies[p], kv, style, tokens, other);
                for (int t = 0; t < TOTAL; t++) {
                    char what[96];
                    snprintf(what, sizeof what, "%s, style %d, %s, row %d", policies[p].name, style, kv_format_name(kv),
                             t);
                    assert_same_bits(what, other + (size_t)t * vocab, reference + (size_t)t * vocab, vocab);
                }
            }
        }
        free(reference);
        free(other);
        demo_close(&d);
    }
}

/* Identity restore: with mix_alpha 1 evicted positions carry the layer's own K/V, so restored = native up to rounding.
 */
static void identity_restore_is_native(void **state) {
    (void)state;
    demo d;
    demo_open(&d, KAKEYA_PRECISION_F32, NULL);
    enum { TOTAL = 500 };
    /* a short run has 5 blocks of decoded rows behind the evicted ones, the whole has 20 */
    const int first = sweep_short() ? 300 : 400, total = sweep_short() ? 325 : TOTAL;
    const backend_measure_ops *measure = backend_measure_find(d.ops);
    size_t vocab = (size_t)d.verifier->config.vocab;
    int32_t tokens[TOTAL];
    random_tokens(tokens, TOTAL, (int)vocab, 21);
    float *native = calloc(TOTAL * vocab, sizeof *native), *identity = calloc(TOTAL * vocab, sizeof *identity);
    for (int which = 0; which < 2; which++) {
        backend_cache *cache = NULL;
        backend_cache_options options = {.context_tokens = 512,
                                         .sink = 4,
                                         .window = 64,
                                         .draft_window = 256,
                                         .attention = which ? KAKEYA_ATTENTION_RESTORED : KAKEYA_ATTENTION_NATIVE,
                                         .restore_layers = KAKEYA_RESTORE_ALL,
                                         .kv_format = KV_FORMAT_F32,
                                         .keep_draft_context = true,
                                         .account = &d.account};
        REQUIRE_OK(d.ops->cache_create(d.backend, &options, &cache, error));
        kakeya_error refusal = {0};
        if (which)
            REQUIRE_OK(measure->cache_mix_own(cache, 1, error));
        else
            assert_int_equal(measure->cache_mix_own(cache, 1, &refusal), KAKEYA_INVALID_ARGUMENT);
        float *logits = which ? identity : native;
        step(&d, cache, tokens, first, first, SEGMENT_PROMPT, logits);
        for (int at = first; at < total; at += 5)
            step(&d, cache, tokens + at, 5, 5, SEGMENT_DECODE, logits + (size_t)at * vocab);
        if (which) {
            assert_int_equal(measure->cache_mix_own(cache, 1, &refusal), KAKEYA_INVALID_ARGUMENT); /* not empty */
            double error_by_type[2] = {0, 0};
            REQUIRE_OK(measure->cache_restoration_error(cache, error_by_type, error));
            assert_true(error_by_type[0] > 0.01 && error_by_type[0] < 2);
            assert_true(error_by_type[1] > 0.01 && error_by_type[1] < 2);
        }
        d.ops->cache_destroy(cache);
    }
    assert_close("identity restore", identity, native, (size_t)total * vocab, 2e-3);
    free(native);
    free(identity);
    demo_close(&d);
}

/* Keys that were decoded from latents are kept from forward to forward. Behind a truncation other tokens have other
 * ones, and two caches in turns each have their own. A truncation reaches back into what was evicted only where the
 * window is smaller than the slack of the rings. */
static void another_text_behind_a_truncation(void **state) {
    (void)state;
    enum {
        ROWS = 4,
        WINDOW = ROWS,
        PROMPT_ROWS = 10 * ROWS,
        DROPPED = 30 * ROWS,
        TOTAL = 36 * ROWS,
        TURNS_FROM = 34 * ROWS
    };
    demo d;
    demo_open(&d, KAKEYA_PRECISION_F32, NULL);
    size_t vocab = (size_t)d.verifier->config.vocab;
    int32_t dropped[DROPPED], tokens[TOTAL];
    random_tokens(dropped, DROPPED, (int)vocab, 3);
    random_tokens(tokens, TOTAL, (int)vocab, 4);
    float *found = calloc(ROWS * vocab, sizeof *found), *expected = calloc(ROWS * vocab, sizeof *expected);
    backend_cache *one = cache_of(&d, KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, KV_FORMAT_F32, WINDOW);
    backend_cache *other = cache_of(&d, KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, KV_FORMAT_F32, WINDOW);
    step(&d, one, dropped, PROMPT_ROWS, PROMPT_ROWS, SEGMENT_PROMPT, NULL);
    for (int at = PROMPT_ROWS; at < DROPPED; at += ROWS) step(&d, one, dropped + at, ROWS, ROWS, SEGMENT_DECODE, found);
    int common = d.ops->cache_min_truncate(one);
    common += (ROWS - common % ROWS) % ROWS;
    assert_true(common < DROPPED - 2 * WINDOW);
    memcpy(tokens, dropped, (size_t)common * sizeof *tokens);
    REQUIRE_OK(d.ops->cache_truncate(one, common, error));
    for (int at = common; at < TURNS_FROM; at += ROWS) step(&d, one, tokens + at, ROWS, ROWS, SEGMENT_DECODE, found);
    step(&d, other, tokens, PROMPT_ROWS, PROMPT_ROWS, SEGMENT_PROMPT, NULL);
    for (int at = PROMPT_ROWS; at < TURNS_FROM; at += ROWS)
        step(&d, other, tokens + at, ROWS, ROWS, SEGMENT_DECODE, expected);
    assert_same_bits("alone", found, expected, ROWS * vocab);
    for (int at = TURNS_FROM; at < TOTAL; at += ROWS) {
        step(&d, one, tokens + at, ROWS, ROWS, SEGMENT_DECODE, found);
        step(&d, other, tokens + at, ROWS, ROWS, SEGMENT_DECODE, expected);
        assert_same_bits("in turns", found, expected, ROWS * vocab);
    }
    free(found);
    free(expected);
    d.ops->cache_destroy(one);
    d.ops->cache_destroy(other);
    demo_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demo_hidden_states),
        cmocka_unit_test(drafter_tiny),
        cmocka_unit_test(drafter_sliding),
        cmocka_unit_test(drafter_of_demo),
        cmocka_unit_test(f_theta_map),
        cmocka_unit_test(policies_of_reference),
        cmocka_unit_test(lossless_across_blocks),
        cmocka_unit_test(identity_restore_is_native),
        cmocka_unit_test(another_text_behind_a_truncation),
    };
    return cmocka_run_group_tests_name("restoration", tests, NULL, NULL);
}
