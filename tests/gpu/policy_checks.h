/* Whole models on the device against reference vectors and the CPU, and on bits: any chunking of a prompt, any number
 * of decode rows, under every policy. */
#ifndef KAKEYA_TESTS_GPU_POLICY_CHECKS_H
#define KAKEYA_TESTS_GPU_POLICY_CHECKS_H

#include "base/float16.h"
#include "gpu/random_pair.h"
#include "packed.h"

enum { CONTEXT = 1024 };

typedef struct rounded_weights {
    pair *p;
    tensor_memory memory;
} rounded_weights;

static inline kakeya_status round_matrix(void *context, const tensor_slot *slot, kakeya_error *error) {
    rounded_weights *r = context;
    weight *w = (weight *)(void *)((char *)&r->p->verifier->weights + slot->offset);
    if (slot->kind != SLOT_MATRIX || w->format != WEIGHT_F32) return KAKEYA_OK;
    size_t n = (size_t)w->out * (size_t)w->in;
    float *values = tensor_memory_block(&r->memory, &r->p->account, n * sizeof *values);
    if (!values) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for rounded weights");
    for (size_t i = 0; i < n; i++) values[i] = bf16_to_f32(f32_to_bf16(((const float *)w->stream[0])[i]));
    w->stream[0] = values;
    return KAKEYA_OK;
}

/* Matrices in float32 get the values that the device keeps of them, in float32 still. The CPU in bf16 rounds what it
 * multiplies with such matrices, not the matrices themselves; of a small random model their rounding alone can cost
 * more than all the rest, which is what the comparison is about. */
static inline void round_weights(pair *p) {
    language_model *v = p->verifier;
    rounded_weights r = {.p = p, .memory = {.owned = v->owned, .n_owned = v->n_owned}};
    REQUIRE_OK(gemma4_walk(&v->config, round_matrix, &r, error));
    v->owned = r.memory.owned;
    v->n_owned = r.memory.n_owned;
    if (v->config.tied_head) v->weights.head = v->weights.embed;
}

/* A model's tokens and its first layer's output as they are stored beside it; logits against the CPU in float32. */
static inline void check_form(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/golden/%s", KAKEYA_TEST_DATA, name);
    pair p;
    pair_open_verifier(&p, unpacked_folder(path));
    round_weights(&p);
    pair_create(&p, false);
    snprintf(path, sizeof path, "%s/golden/%s/golden.safetensors", KAKEYA_TEST_DATA, name);
    safetensors *file = NULL;
    REQUIRE_OK(safetensors_open(unpacked_file(path), &file, error));
    const model_config *c = &p.verifier->config;
    enum { CONTEXT_OF_FORMS = 128 };
    const int T = (int)safetensors_find(file, "input_ids")->shape[0];
    assert_true(T <= CONTEXT_OF_FORMS);
    size_t vocab = (size_t)c->vocab, hidden = (size_t)c->hidden, layers = (size_t)c->layers;
    const int32_t *ids = (const int32_t *)(const void *)safetensors_find(file, "input_ids")->data;
    float *expected = calloc((size_t)T * vocab, sizeof *expected);
    float *logits = calloc((size_t)T * vocab, sizeof *logits), *again = calloc((size_t)T * vocab, sizeof *again);
    float *cpu = calloc((size_t)T * vocab, sizeof *cpu),
          *states = calloc((layers + 1) * (size_t)T * hidden, sizeof *states);

    backend_cache *cache = new_cache(&p, CUDA, &policies[0], CONTEXT_OF_FORMS, false);
    backend_segment segment = {.cache = cache, .tokens = ids, .n = T, .logits = logits, .hidden_states = states};
    REQUIRE_OK(p.ops[CUDA]->forward(p.model[CUDA], &segment, 1, error));
    REQUIRE_OK(p.ops[CUDA]->cache_commit(cache, T, error));
    backend_cache *cpu_cache = new_cache(&p, CPU, &policies[0], CONTEXT_OF_FORMS, false);
    step(&p, CPU, cpu_cache, ids, T, T, SEGMENT_PROMPT, cpu);
    backend_cache *reference_cache = new_cache(&p, REFERENCE, &policies[0], CONTEXT_OF_FORMS, false);
    step(&p, REFERENCE, reference_cache, ids, T, T, SEGMENT_PROMPT, expected);
    const float *reference = (const float *)(const void *)safetensors_find(file, "hidden_states")->data;
    assert_as_close(name, logits, cpu, expected, (size_t)T * vocab);
    /* The first layer's output has passed every kernel once, before small differences grow in a random model. */
    assert_close_relative("first layer", states + (size_t)T * hidden, reference + (size_t)T * hidden,
                          (size_t)T * hidden, 2e-2);
    static const int chunks[] = {1, 7, 16, 17, 23, 59};
    for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
        backend_cache *other = new_cache(&p, CUDA, &policies[0], CONTEXT_OF_FORMS, false);
        for (int at = 0; at < T; at += chunks[k]) {
            int n = T - at < chunks[k] ? T - at : chunks[k];
            step(&p, CUDA, other, ids + at, n, n, SEGMENT_PROMPT, again + (size_t)at * vocab);
        }
        assert_same_bits("chunked prompt", again, logits, (size_t)T * vocab);
        p.ops[CUDA]->cache_destroy(other);
    }
    /* Decode rows from the first position on. */
    float *one = calloc((size_t)T * vocab, sizeof *one);
    for (int block = 1; block <= BACKEND_MAX_DECODE_ROWS; block += 4) {
        backend_cache *other = new_cache(&p, CUDA, &policies[0], CONTEXT_OF_FORMS, false);
        float *to = block == 1 ? one : again;
        for (int at = 0; at < T; at += block) {
            int n = T - at < block ? T - at : block;
            step(&p, CUDA, other, ids + at, n, n, SEGMENT_DECODE, to + (size_t)at * vocab);
        }
        if (block == 1)
            assert_as_close("decode rows", one, cpu, expected, (size_t)T * vocab);
        else
            assert_same_bits("decode blocks", again, one, (size_t)T * vocab);
        p.ops[CUDA]->cache_destroy(other);
    }
    p.ops[CUDA]->cache_destroy(cache);
    p.ops[CPU]->cache_destroy(cpu_cache);
    p.ops[REFERENCE]->cache_destroy(reference_cache);
    free(expected);
    free(logits);
    free(again);
    free(one);
    free(cpu);
    free(states);
    safetensors_close(file);
    pair_close(&p);
}

/* A later turn's prompt: some rows see evicted positions or the sink beside exact ones, some see one run of exact ones,
 * and they take different kernels. In chunks of any size the bits are the same, and they are as close to the reference
 * as the CPU's. */
static inline void check_later_prompts(pair *p, const char *what, int window) {
    enum { FIRST = 100, ANSWER = 40, LATER = 330, SECOND_ANSWER = 8 };
    static const int chunks[] = {LATER, 1, 33, 64, 250};
    size_t vocab = (size_t)p->verifier->config.vocab;
    int32_t tokens[FIRST + ANSWER + LATER + SECOND_ANSWER];
    fill_tokens(tokens, (int)(sizeof tokens / sizeof *tokens), (int)vocab, 47);
    float *logits[MODELS], *parts = calloc((LATER + SECOND_ANSWER) * vocab, sizeof *parts);
    for (int b = 0; b < MODELS; b++) logits[b] = calloc((LATER + SECOND_ANSWER) * vocab, sizeof(float));
    for (int k = 1; k < POLICIES; k++) {
        char name[96];
        snprintf(name, sizeof name, "%s, window %d, %s", what, window, policies[k].name);
        for (int run = 0; run < MODELS - 1 + (int)(sizeof chunks / sizeof chunks[0]); run++) {
            /* The CPU and the reference once, the device in chunks. */
            int b = run == 0 ? CPU : run == 1 ? REFERENCE : CUDA, chunk = b == CUDA ? chunks[run - 2] : LATER;
            float *to = run > 2 ? parts : logits[b];
            backend_cache *cache = new_cache(p, b, &policies[k], CONTEXT, true);
            step(p, b, cache, tokens, FIRST, FIRST, SEGMENT_PROMPT, NULL);
            for (int at = 0; at < ANSWER; at += 8) step(p, b, cache, tokens + FIRST + at, 8, 8, SEGMENT_DECODE, NULL);
            const int32_t *later = tokens + FIRST + ANSWER;
            for (int at = 0; at < LATER; at += chunk) {
                int n = LATER - at < chunk ? LATER - at : chunk;
                step(p, b, cache, later + at, n, n, SEGMENT_PROMPT, to + (size_t)at * vocab);
            }
            step(p, b, cache, later + LATER, SECOND_ANSWER, SECOND_ANSWER, SEGMENT_DECODE, to + LATER * vocab);
            p->ops[b]->cache_destroy(cache);
            if (run > 2) assert_same_bits(name, parts, logits[CUDA], (LATER + SECOND_ANSWER) * vocab);
        }
        assert_as_close(name, logits[CUDA], logits[CPU], logits[REFERENCE], (LATER + SECOND_ANSWER) * vocab);
    }
    for (int b = 0; b < MODELS; b++) free(logits[b]);
    free(parts);
}

/* Decode rows behind a full window, some layers attending the positions of others: as close to the reference as the
 * CPU, and the same bits in blocks of any size. ranks: of f_theta's keys and values; NULL: one. */
static inline void check_window(const model_config *form, const policy *how, int chunks, const int *ranks,
                                const char *name) {
    enum { CHUNK = 230, MAX_CHUNKS = 20, MORE = 70 };
    static const int windows[3] = {0, 0, 0}, blocks[] = {1, 2, 3, 8, 9, 16, 17};
    pair p;
    if (ranks)
        pair_random_ranks(&p, form, windows, ranks[0], ranks[1]);
    else
        pair_random(&p, form, windows, false, true);
    size_t vocab = (size_t)p.verifier->config.vocab;
    int rows = chunks * CHUNK;
    assert_true(chunks <= MAX_CHUNKS);
    int32_t tokens[MAX_CHUNKS * CHUNK + MORE];
    fill_tokens(tokens, rows + MORE, (int)vocab, 41);
    float *logits[MODELS], *again = calloc(MORE * vocab, sizeof *again);
    for (int b = 0; b < MODELS; b++) {
        logits[b] = calloc(MORE * vocab, sizeof(float));
        backend_cache *cache = new_cache(&p, b, how, form->max_context, true);
        for (int at = 0; at < rows; at += CHUNK) step(&p, b, cache, tokens + at, CHUNK, CHUNK, SEGMENT_PROMPT, NULL);
        for (int at = 0; at < MORE; at += 7)
            step(&p, b, cache, tokens + rows + at, 7, 7, SEGMENT_DECODE, logits[b] + (size_t)at * vocab);
        p.ops[b]->cache_destroy(cache);
    }
    assert_as_close(name, logits[CUDA], logits[CPU], logits[REFERENCE], MORE * vocab);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        backend_cache *cache = new_cache(&p, CUDA, how, form->max_context, true);
        for (int at = 0; at < rows; at += CHUNK) step(&p, CUDA, cache, tokens + at, CHUNK, CHUNK, SEGMENT_PROMPT, NULL);
        for (int at = 0; at < MORE; at += blocks[i]) {
            int n = MORE - at < blocks[i] ? MORE - at : blocks[i];
            step(&p, CUDA, cache, tokens + rows + at, n, n, SEGMENT_DECODE, again + (size_t)at * vocab);
        }
        p.ops[CUDA]->cache_destroy(cache);
        char what[64];
        snprintf(what, sizeof what, "%s, blocks of %d rows", name, blocks[i]);
        assert_same_bits(what, again, logits[CUDA], MORE * vocab);
    }
    for (int b = 0; b < MODELS; b++) free(logits[b]);
    free(again);
    pair_close(&p);
}

#endif
