/* Latents on a device: in their rows what backend/latent_row.c writes, to the byte; decode rows and later prompts that
 * attend them as close to the reference as the CPU's, for every form of f_theta that reads aux hidden states. Run by
 * `make test-gpu`; without a device every test is skipped. */
#include "backend/cuda/kernels.h"
#include "backend/latent_row.h"
#include "base/float16.h"
#include "gpu/random_pair.h"
#include "sweep.h"

/* ------------------------------------------------------------------------------------------------------- rows */

enum { ROWS = 48, MOST_VALUES = 600 };

static void *to_device(const void *data, size_t bytes) {
    void *copy = NULL;
    assert_int_equal(cudaMalloc(&copy, bytes), cudaSuccess);
    assert_int_equal(cudaMemcpy(copy, data, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return copy;
}

/* Ordinary values, one row of zeros, one of equal magnitudes, tiny ones, huge ones, and what is no number. */
static void fill_latents(float *x, int width) {
    uint32_t seed = 17;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < width; i++) {
            seed = seed * 1664525u + 1013904223u;
            float v = ((float)(seed >> 8) / 8388608.0f - 1.0f) * (float)(1 + r % 5);
            if (r == 1) v = 0;
            if (r == 2) v = i % 2 ? 1.0f : -1.0f;
            if (r == 3) v *= 1e-41f;
            if (r == 4) v *= 3e38f;
            if (r == 5 && i % 37 == 3) v = NAN;
            if (r == 6 && i % 41 == 5) v = INFINITY;
            if (r == 7) v = (float)(i % 17 - 8); /* codes in the middle between two */
            x[r * width + i] = v;
        }
    }
}

static void check_rows(int rank_k, int rank_v, bool shared, restoration_latents latents) {
    restoration_config config = {.rank_k = rank_k, .rank_v = rank_v, .shared_latent = shared, .latents = latents};
    latent_row row = latent_row_of(&config, KV_FORMAT_BF16);
    cuda_latent_form form = latents == RESTORATION_LATENTS_Q8 ? CUDA_LATENT_Q8 : CUDA_LATENT_Q4;
    cuda_latent_row on_device = {.form = form,
                                 .rank_k = rank_k,
                                 .rank_v = rank_v,
                                 .width = shared ? rank_k : rank_k + rank_v,
                                 .first_v = shared ? 0 : rank_k,
                                 .bytes = (int)row.bytes,
                                 .v_at = (int)row.values_at};
    static float x[ROWS * MOST_VALUES], decoded[MOST_VALUES];
    static unsigned char expected[MOST_VALUES * 4], found[ROWS * MOST_VALUES * 4];
    static uint16_t half[ROWS * MOST_VALUES];
    size_t bytes = ROWS * row.bytes, half_bytes = (size_t)(ROWS * rank_v) * sizeof *half;
    fill_latents(x, on_device.width);
    static cuda_cache_view view;
    view = (cuda_cache_view){.latent = {.heads = 1}};
    void *codes = NULL, *v_half = NULL, *values = to_device(x, sizeof x);
    assert_int_equal(cudaMalloc(&codes, bytes), cudaSuccess);
    assert_int_equal(cudaMalloc(&v_half, half_bytes), cudaSuccess);
    view.latent.codes = codes;
    void *cache = to_device(&view, sizeof view);
    cuda_launch launch = {.multiprocessors = 1};
    static cuda_context_row rows[ROWS];
    for (int i = 0; i < ROWS; i++) rows[i] = (cuda_context_row){.cache = cache, .position = i};
    cuda_context_source source = {.row = to_device(rows, sizeof rows), .rows = ROWS};
    cuda_store_latents(&launch, &source, values, &on_device, v_half, rank_v);
    assert_int_equal(cudaMemcpy(found, codes, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    assert_int_equal(cudaMemcpy(half, v_half, half_bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int r = 0; r < ROWS; r++) {
        const float *from = x + r * on_device.width;
        latent_encode(row.format, from, rank_k, expected);
        if (!shared) latent_encode(row.format, from + rank_k, rank_v, expected + row.values_at);
        for (size_t i = 0; i < row.bytes; i++) {
            if (found[(size_t)r * row.bytes + i] != expected[i])
                fail_msg("ranks %d and %d in %s, row %d: byte %zu is %d, expected %d", rank_k, rank_v,
                         restoration_latents_name(latents), r, i, found[(size_t)r * row.bytes + i], expected[i]);
        }
        latent_decode(row.format, expected + row.values_at, rank_v, decoded);
        for (int i = 0; i < rank_v; i++) {
            uint16_t is = half[r * rank_v + i], should = f32_to_bf16(decoded[i]);
            bool both_nan = isnan(decoded[i]) && isnan(bf16_to_f32(is));
            if (is != should && !both_nan)
                fail_msg("row %d: value %d is %04x, expected %04x", r, i, (unsigned)is, (unsigned)should);
        }
    }
    (void)cudaFree(codes), (void)cudaFree(v_half), (void)cudaFree(values), (void)cudaFree(cache);
}

static void rows_have_the_bytes_of_the_host(void **state) {
    (void)state;
    if (!device_present()) skip();
    static const int ranks[][2] = {{256, 256}, {8, 40}, {72, 200}, {96, 160}, {104, 104}};
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        for (int shared = 0; shared <= (ranks[i][0] == ranks[i][1]); shared++) {
            check_rows(ranks[i][0], ranks[i][1], shared, RESTORATION_LATENTS_Q8);
            check_rows(ranks[i][0], ranks[i][1], shared, RESTORATION_LATENTS_Q4);
        }
    }
}

/* -------------------------------------------------------------------------------------------- against the CPU */

/* A prompt, an answer, a prompt that finds positions evicted, an answer. */
enum { FIRST = 330, ANSWER = 70, LATER = 60, LAST = 21, ALL = FIRST + ANSWER + LATER + LAST };

static void converse(pair *p, int b, const policy *how, bool drafter, const int32_t *tokens, int block, float *logits) {
    size_t vocab = (size_t)p->verifier->config.vocab;
    backend_cache *cache = new_cache(p, b, how, 1024, drafter);
    step(p, b, cache, tokens, FIRST, FIRST, SEGMENT_PROMPT, NULL);
    for (int at = FIRST, n; at < ALL; at += n) {
        bool prompt = at >= FIRST + ANSWER && at < FIRST + ANSWER + LATER;
        int end = prompt ? FIRST + ANSWER + LATER : at < FIRST + ANSWER ? FIRST + ANSWER : ALL;
        n = !prompt && end - at > block ? block : end - at;
        step(p, b, cache, tokens + at, n, n, prompt ? SEGMENT_PROMPT : SEGMENT_DECODE,
             logits + (size_t)(at - FIRST) * vocab);
    }
    p->ops[b]->cache_destroy(cache);
}

static void against_cpu(void **state) {
    (void)state;
    model_config forms[] = {wide_form(), shared_form(), gemma3_form()};
    static const char *const names[] = {"heads of 256", "heads of 64", "values without norm"};
    forms[0].sliding_window = forms[2].sliding_window = 192;
    int32_t tokens[ALL];
    fill_tokens(tokens, ALL, forms[0].vocab, 43);
    for (int f = 0; f < AUX_FORMS; f++) {
        for (int form = 0; form < 3; form++) {
            if (sweep_short() && (f + form) % 2) continue;
            pair p;
            pair_random_aux(&p, &forms[form], &aux_forms[f]);
            size_t rows = ALL - FIRST, vocab = (size_t)p.verifier->config.vocab;
            float *logits[MODELS], *again = calloc(rows * vocab, sizeof *again);
            for (int b = 0; b < MODELS; b++) logits[b] = calloc(rows * vocab, sizeof(float));
            for (int k = 2; k < POLICIES; k++) {
                for (int b = 0; b < MODELS; b++) converse(&p, b, &policies[k], false, tokens, 7, logits[b]);
                char what[96];
                snprintf(what, sizeof what, "%s, %s, %s", policies[k].name, aux_forms[f].name, names[form]);
                assert_as_close(what, logits[CUDA], logits[CPU], logits[REFERENCE], rows * vocab);
                converse(&p, CUDA, &policies[k], true, tokens, 17, again);
                assert_same_bits(what, again, logits[CUDA], rows * vocab);
            }
            for (int b = 0; b < MODELS; b++) free(logits[b]);
            free(again);
            pair_close(&p);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_bytes_of_the_host),
        cmocka_unit_test(against_cpu),
    };
    return cmocka_run_group_tests_name("latents", tests, NULL, NULL);
}
