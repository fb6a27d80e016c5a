/* K/V in 8 and in 4 bits on a device: rows have the bytes of backend/kv_format.h, and decode rows and prompts that
 * attend them are as close to the reference as the CPU's, whatever block they are computed in. Run by `make test-gpu`;
 * without a device every test is skipped. */
#include "backend/cuda/kernels.h"
#include "backend/kv_q4.h"
#include "gpu/random_pair.h"
#include "sweep.h"

/* -------------------------------------------------------------------------------------------------------- rows */

enum { ROWS = 40, HEADS = 2, MOST_DIM = 512 };

static void *to_device(const void *data, size_t bytes) {
    void *copy = NULL;
    assert_int_equal(cudaMalloc(&copy, bytes), cudaSuccess);
    assert_int_equal(cudaMemcpy(copy, data, bytes, cudaMemcpyHostToDevice), cudaSuccess);
    return copy;
}

/* Ordinary values; zeros; equal magnitudes; tiny ones about the least that is kept; huge ones; what is no number. */
static void fill_vectors(float *x, int dim) {
    uint32_t seed = 19;
    for (int r = 0; r < ROWS * HEADS; r++) {
        for (int i = 0; i < dim; i++) {
            seed = seed * 1664525u + 1013904223u;
            float v = ((float)(seed >> 8) / 8388608.0f - 1.0f) * (float)(1 + r % 7);
            if (r == 1) v = 0;
            if (r == 2) v = i % 2 ? 3.0f : -3.0f;
            if (r == 3) v *= 0x1p-101f;
            if (r == 4) v *= 0x1p-108f;
            if (r == 5) v = i % 5 ? v : 3.4028234e38f;
            if (r == 6 && i % 37 == 3) v = NAN;
            if (r == 7 && i % 41 == 5) v = -INFINITY;
            x[r * dim + i] = v;
        }
    }
}

static void check_rows(kv_format format, int dim) {
    static float x[ROWS * HEADS * MOST_DIM];
    static unsigned char expected[MOST_DIM + 8], found[ROWS * HEADS * (MOST_DIM + 4)];
    static cuda_cache_view view;
    static cuda_batch batch;
    size_t vector = kv_format_row_bytes(format, 1, (size_t)dim), bytes = ROWS * HEADS * vector;
    fill_vectors(x, dim);
    void *rows = NULL, *queries = NULL, *raw = to_device(x, sizeof x);
    assert_int_equal(cudaMalloc(&rows, bytes), cudaSuccess);
    assert_int_equal(cudaMalloc(&queries, (size_t)(ROWS * HEADS * dim) * sizeof(uint16_t)), cudaSuccess);
    view.layer[0] = (cuda_layer_view){.v = rows, .values = HEADS * dim, .row_bytes = HEADS * (int)vector};
    void *cache = to_device(&view, sizeof view);
    batch.step[0] = (cuda_step){.cache = cache, .rows = ROWS, .prompt = 1};
    void *step = to_device(&batch, sizeof batch), *turns = to_device(x, sizeof x);
    float ones[MOST_DIM];
    for (int i = 0; i < dim; i++) ones[i] = 1;
    void *norm = to_device(ones, sizeof ones);
    cuda_launch launch = {.multiprocessors = 1};
    cuda_heads heads = {.q = raw,
                        .k = raw,
                        .q_norm = norm,
                        .turns = turns,
                        .heads = HEADS,
                        .kv_heads = HEADS,
                        .head_dim = dim,
                        .q_scale = 1,
                        .eps = 1e-6f,
                        .q_out = queries,
                        .codes = format == KV_FORMAT_Q4 ? CUDA_KV_Q4 : CUDA_KV_Q8};
    cuda_head_rows(&launch, step, 1, &heads, ROWS);
    assert_int_equal(cudaMemcpy(found, rows, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int r = 0; r < ROWS * HEADS; r++) {
        (format == KV_FORMAT_Q4 ? kv_q4_store : kv_q8_store)(x + r * dim, dim, expected);
        for (size_t i = 0; i < vector; i++) {
            if (found[(size_t)r * vector + i] != expected[i])
                fail_msg("%s, heads of %d, vector %d: byte %zu is %d, expected %d", kv_format_name(format), dim, r, i,
                         found[(size_t)r * vector + i], expected[i]);
        }
    }
    (void)cudaFree(rows), (void)cudaFree(queries), (void)cudaFree(raw), (void)cudaFree(cache);
    (void)cudaFree(step), (void)cudaFree(turns), (void)cudaFree(norm);
}

static void rows_have_the_bytes_of_the_host(void **state) {
    (void)state;
    if (!device_present()) skip();
    static const int dims[] = {16, 32, 64, 128, 256, 512};
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        check_rows(KV_FORMAT_Q8, dims[i]);
        check_rows(KV_FORMAT_Q4, dims[i]);
    }
}

/* -------------------------------------------------------------------------------------------- against the CPU */

enum { FIRST = 330, ANSWER = 51, LATER = 60, LAST = 20, ALL = FIRST + ANSWER + LATER + LAST };

static void converse(pair *p, int b, const policy *how, const int32_t *tokens, int block, float *logits) {
    size_t vocab = (size_t)p->verifier->config.vocab;
    backend_cache *cache = new_cache(p, b, how, 1024, true);
    for (int at = 0, n; at < ALL; at += n) {
        bool prompt = at < FIRST || (at >= FIRST + ANSWER && at < FIRST + ANSWER + LATER);
        int end = at < FIRST                    ? FIRST
                  : at < FIRST + ANSWER         ? FIRST + ANSWER
                  : at < FIRST + ANSWER + LATER ? FIRST + ANSWER + LATER
                                                : ALL,
            most = prompt ? 11 * block : block;
        n = end - at > most ? most : end - at;
        step(p, b, cache, tokens + at, n, n, prompt ? SEGMENT_PROMPT : SEGMENT_DECODE, logits + (size_t)at * vocab);
    }
    p->ops[b]->cache_destroy(cache);
}

static void check_form(pair *p, const char *name) {
    size_t vocab = (size_t)p->verifier->config.vocab;
    int32_t tokens[ALL];
    fill_tokens(tokens, ALL, (int)vocab, 47);
    float *logits[MODELS], *again = calloc(ALL * vocab, sizeof *again);
    for (int b = 0; b < MODELS; b++) logits[b] = calloc(ALL * vocab, sizeof(float));
    for (int k = 0; k < POLICIES; k += k ? 2 : 1) {
        for (int b = 0; b < MODELS; b++) converse(p, b, &policies[k], tokens, 17, logits[b]);
        char what[96];
        snprintf(what, sizeof what, "%s, %s, K/V in %s", name, policies[k].name, kv_format_name(pair_kv_format));
        assert_as_close(what, logits[CUDA], logits[CPU], logits[REFERENCE], ALL * vocab);
        static const int blocks[] = {1, 2, 5, 16, 9};
        for (size_t i = sweep_short() ? 3 : 0; i < sizeof blocks / sizeof blocks[0]; i++) {
            converse(p, CUDA, &policies[k], tokens, blocks[i], again);
            assert_same_bits(what, again, logits[CUDA], ALL * vocab);
        }
    }
    for (int b = 0; b < MODELS; b++) free(logits[b]);
    free(again);
    pair_close(p);
}

static void against_cpu(kv_format format) {
    static const int windows[3] = {0, 40, 0};
    pair p;
    pair_kv_format = format;
    pair_open(&p, demo_path(), true);
    check_form(&p, "demo");
    model_config forms[] = {tall_form(), grouped_form(), shared_form(), gemma3_form()};
    static const char *const names[] = {"heads of 512", "eight queries to a head of 512", "keys and values",
                                        "values without norm"};
    for (int i = 0; i < 4; i++) {
        pair_random(&p, &forms[i], windows, false, true);
        check_form(&p, names[i]);
    }
    pair_kv_format = KV_FORMAT_BF16;
}

static void against_cpu_in_8_bits(void **state) {
    (void)state;
    against_cpu(KV_FORMAT_Q8);
}

static void against_cpu_in_4_bits(void **state) {
    (void)state;
    against_cpu(KV_FORMAT_Q4);
}

/* ------------------------------------------------------------------------------------------------ long contexts */

/* Rows alone and in blocks behind short, fine and coarse partitions, on both sides of every choice of a kernel. */
static void check_depth(pair *p, kv_format format, int depth) {
    enum { BLOCK = 17 };
    static const int blocks[] = {17, 1, 2, 3, 8, 16};
    size_t vocab = (size_t)p->verifier->config.vocab;
    int32_t *tokens = calloc((size_t)depth + BLOCK, sizeof *tokens);
    float *logits = calloc(2 * BLOCK * vocab, sizeof *logits), *again = logits + BLOCK * vocab;
    fill_tokens(tokens, depth + BLOCK, (int)vocab, 53);
    pair_kv_format = format;
    backend_cache *cache = new_cache(p, CUDA, &policies[0], depth + BLOCK, false);
    for (int at = 0, n; at < depth; at += n) {
        n = depth - at < 512 ? depth - at : 512;
        step(p, CUDA, cache, tokens + at, n, n, SEGMENT_PROMPT, NULL);
    }
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        backend_cache *fork = NULL;
        REQUIRE_OK(p->ops[CUDA]->cache_fork(cache, &p->account, &fork, error));
        for (int at = 0, n; at < BLOCK; at += n) {
            n = BLOCK - at < blocks[i] ? BLOCK - at : blocks[i];
            step(p, CUDA, fork, tokens + depth + at, n, n, SEGMENT_DECODE, (i ? again : logits) + (size_t)at * vocab);
        }
        p->ops[CUDA]->cache_destroy(fork);
        char what[96];
        snprintf(what, sizeof what, "%s, behind %d tokens, blocks of %d", kv_format_name(format), depth, blocks[i]);
        if (i) assert_same_bits(what, again, logits, BLOCK * vocab);
    }
    p->ops[CUDA]->cache_destroy(cache);
    pair_kv_format = KV_FORMAT_BF16;
    free(tokens);
    free(logits);
}

static void rows_have_their_bits_in_every_block(void **state) {
    (void)state;
    static const kv_format formats[] = {KV_FORMAT_BF16, KV_FORMAT_Q8, KV_FORMAT_Q4};
    static const int depths[] = {100, 3000, 9001, 62000};
    pair p;
    model_config form = grouped_form();
    form.max_context = 65536;
    pair_random(&p, &form, NULL, false, false);
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
        for (size_t d = 0; d < sizeof depths / sizeof depths[0]; d++) check_depth(&p, formats[f], depths[d]);
    pair_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_their_bits_in_every_block),
        cmocka_unit_test(rows_have_the_bytes_of_the_host),
        cmocka_unit_test(against_cpu_in_8_bits),
        cmocka_unit_test(against_cpu_in_4_bits),
    };
    return cmocka_run_group_tests_name("K/V in codes", tests, NULL, NULL);
}
