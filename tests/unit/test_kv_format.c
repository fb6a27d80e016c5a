/* Protects K/V in 8 and 4 bits: what a stored vector is, that its bytes depend on its position alone, that states of
 * another format are refused by name, and what it costs in divergence. */
#include <float.h>

#include "backend/cpu/stores.h"
#include "backend/kv_q4.h"
#include "base/files.h"
#include "kakeya_study.h"
#include "kernel_operands.h"
#include "memory_stream.h"
#include "session/session.h"
#include "tiny.h"

/* ------------------------------------------------------------------------------------------------- one vector */

static float scale_of(const unsigned char *stored) {
    float scale;
    memcpy(&scale, stored, sizeof scale);
    return scale;
}

static int code_of(const unsigned char *stored, int i) { return (int8_t)stored[KV_Q8_CODES_AT + i]; }

static void a_vector_is_what_the_header_says(void **state) {
    (void)state;
    static const int sizes[] = {1, 3, 16, 64, 100, 256, 512};
    static const float widths[] = {1e-20f, 0.03f, 1.0f, 4e4f, 1e37f};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n = sizes[s];
        size_t bytes = kv_format_row_bytes(KV_FORMAT_Q8, 1, (size_t)n);
        assert_true(bytes % sizeof(float) == 0 && bytes >= sizeof(float) + (size_t)n &&
                    bytes < 2 * sizeof(float) + (size_t)n);
        unsigned char *stored = malloc(bytes), *other = malloc(bytes);
        float *back = malloc((size_t)n * sizeof *back);
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            float *x = random_floats((size_t)n, 31 * s + w, widths[w]), largest = 0;
            for (int i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
            memset(stored, 0xaa, bytes);
            kv_q8_store(x, n, stored);
            kv_q8_load(stored, n, back);
            float scale = largest / 127, inverse = 127 / largest;
            assert_true(memcmp(stored, &scale, sizeof scale) == 0);
            int top = 0;
            for (int i = 0; i < n; i++) {
                assert_int_equal(code_of(stored, i), (int)rintf(x[i] * inverse));
                if (abs(code_of(stored, i)) > top) top = abs(code_of(stored, i));
                assert_true(fabs((double)x[i] - (double)back[i]) <= (double)scale * (0.5 + 1e-4));
            }
            assert_int_equal(top, 127);
            for (size_t i = KV_Q8_CODES_AT + (size_t)n; i < bytes; i++) assert_int_equal(stored[i], 0);
            for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) {
                memset(other, 0x55, bytes);
                cpu_kernels_find(*isa)->kv[KV_FORMAT_Q8].store(x, n, other);
                if (memcmp(stored, other, bytes) != 0) fail_msg("table %s stores other bytes, n %d", *isa, n);
            }
            free(x);
        }
        free(stored), free(other), free(back);
    }
}

static void edges_of_a_vector(void **state) {
    (void)state;
    enum { N = 8 };
    unsigned char stored[KV_Q8_CODES_AT + N];
    float back[N], x[N] = {0};
    kv_q8_store(x, N, stored);
    assert_true(scale_of(stored) >= 0 && scale_of(stored) <= 0);
    x[3] = -0x1.fffffep-101f; /* below the least magnitude */
    kv_q8_store(x, N, stored);
    kv_q8_load(stored, N, back);
    for (int i = 0; i < N; i++) assert_true(back[i] >= 0 && back[i] <= 0);
    x[3] = -0x1p-100f;
    kv_q8_store(x, N, stored);
    assert_int_equal(code_of(stored, 3), -127);
    x[5] = FLT_MAX;
    kv_q8_store(x, N, stored);
    kv_q8_load(stored, N, back);
    assert_int_equal(code_of(stored, 5), 127);
    assert_true(isfinite(back[5]));
    const float strange[] = {NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 3; k++) { /* nobody may take such a vector for one of numbers */
        for (int at = 0; at < N; at += 7) {
            float y[N] = {1, 2, 3, 4, 5, 6, 7, 8};
            y[at] = strange[k];
            kv_q8_store(y, N, stored);
            kv_q8_load(stored, N, back);
            for (int i = 0; i < N; i++) assert_true(isnan(back[i]));
        }
    }
}

/* In 4 bits: every table has the bytes and the values of kv_q4.c, heads of models and others; what comes back is near,
 * and nobody takes a vector that is no vector of numbers for one. */
static void vectors_in_4_bits_are_the_same_everywhere(void **state) {
    (void)state;
    static const int sizes[] = {1, 3, 16, 33, 48, 64, 100, 128, 256, 384, 512, 704, 1024};
    static const float widths[] = {1e-20f, 0.03f, 1.0f, 4e4f, 1e36f};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n = sizes[s];
        size_t bytes = kv_format_row_bytes(KV_FORMAT_Q4, 1, (size_t)n), width = (size_t)n * sizeof(float);
        assert_true(bytes % sizeof(float) == 0);
        if (n == 512) assert_int_equal(bytes, 292);
        unsigned char *stored = malloc(bytes), *other = malloc(bytes);
        float *expected = malloc(width), *back = malloc(width);
        for (size_t w = 0; w < sizeof widths / sizeof *widths + 3; w++) {
            bool ordinary = w < sizeof widths / sizeof *widths;
            float *x = random_floats((size_t)n, 37 * s + w, ordinary ? widths[w] : 1.0f);
            if (w == 5) memset(x, 0, width);
            if (w == 6) x[n / 2] = NAN;
            if (w == 7) x[n - 1] = -INFINITY;
            memset(stored, 0xaa, bytes);
            kv_q4_store(x, n, stored);
            kv_q4_load(stored, n, expected);
            double error = 0, energy = 0;
            for (int i = 0; i < n; i++) {
                error += ((double)x[i] - (double)expected[i]) * ((double)x[i] - (double)expected[i]);
                energy += (double)x[i] * (double)x[i];
                if (w == 5) assert_true(expected[i] >= 0 && expected[i] <= 0);
                if (w > 5) assert_true(isnan(expected[i]));
            }
            if (ordinary && !(error < 0.05 * energy))
                fail_msg("n %d, width %g: error %g of %g", n, (double)widths[w], error, energy);
            for (const char *const *isa = cpu_kernels_supported(); *isa; isa++) {
                const cpu_kv_kernels *kv = &cpu_kernels_find(*isa)->kv[KV_FORMAT_Q4];
                memset(other, 0x55, bytes);
                kv->store(x, n, other);
                if (memcmp(stored, other, bytes) != 0) fail_msg("table %s stores other bytes, n %d, %zu", *isa, n, w);
                kv->load(stored, n, back);
                if (w <= 5 && memcmp(expected, back, width) != 0)
                    fail_msg("table %s loads other values, n %d, %zu", *isa, n, w);
                for (int i = 0; i < n; i++) assert_true(w <= 5 || isnan(back[i]));
            }
            free(x);
        }
        free(stored), free(other), free(expected), free(back);
    }
}

/* -------------------------------------------------------------------------------------------------- one state */

enum { LENGTH = 150 };

static void state_of(tiny *d, backend_cache *cache, memory_stream *stream) {
    REQUIRE_OK(d->ops->cache_snapshot(cache, memory_write, stream, error));
    d->ops->cache_destroy(cache);
}

/* The rows of full-attention layers as they lie in memory; the cache goes. */
static void rows_of(tiny *d, backend_cache *cache, kv_format format, memory_stream *stream) {
    assert_int_equal(cache->t.length, LENGTH);
    for (int layer = 0; layer < d->verifier->config.layers; layer++) {
        const timeline_layer *l = &cache->t.layer[layer];
        if (l->kind != STORE_PAGES) continue;
        assert_int_equal(l->format, format);
        for (int p = 0; p < LENGTH; p++) {
            for (int is_k = 0; is_k < (l->has_keys ? 2 : 1); is_k++)
                REQUIRE_OK(memory_write(stream, kv_row(cache, layer, p, is_k), l->row_bytes, error));
        }
    }
    assert_true(stream->bytes > LENGTH);
    d->ops->cache_destroy(cache);
}

static void expect_same(const char *what, memory_stream *found, const memory_stream *expected) {
    if (found->bytes != expected->bytes || memcmp(found->data, expected->data, found->bytes) != 0)
        fail_msg("%s: other bytes", what);
    memory_free(found);
}

/* However a position came to be: in chunks, behind drafts that were dropped, in a fork, where another text had been,
 * and whatever rows are computed with it. */
static void bytes_of_a_position_are_its_own(void **state) {
    (void)state;
    static const char *const models[] = {"gemma4-tiny-dense", "gemma4-tiny-ple", "gemma4-tiny-moe"};
    static const int chunks[] = {1, 7, 64, 33, 45};
    for (int k = 0; k < 6; k++) {
        const kv_format format = k < 3 ? KV_FORMAT_Q8 : KV_FORMAT_Q4;
        tiny d;
        tiny_open(&d, models[k % 3], NULL, KAKEYA_PRECISION_BF16);
        int32_t tokens[LENGTH], other[LENGTH];
        tiny_tokens(tokens, LENGTH, 11);
        tiny_tokens(other, LENGTH, 12);
        memory_stream expected = {0}, found = {0};
        backend_cache *cache = tiny_cache(&d, &tiny_policies[0], format), *fork = NULL;
        tiny_step(&d, cache, SEGMENT_PROMPT, tokens, LENGTH, LENGTH, NULL);
        rows_of(&d, cache, format, &expected);

        cache = tiny_cache(&d, &tiny_policies[0], format);
        for (int at = 0, i = 0; at < LENGTH; at += chunks[i++])
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens + at, chunks[i], chunks[i], NULL);
        rows_of(&d, cache, format, &found);
        expect_same("chunks", &found, &expected);

        cache = tiny_cache(&d, &tiny_policies[0], format);
        tiny_step(&d, cache, SEGMENT_PROMPT, tokens, 20, 20, NULL);
        tiny_step(&d, cache, SEGMENT_PROMPT, other, 17, 17, NULL);
        REQUIRE_OK(d.ops->cache_truncate(cache, 20, error));
        REQUIRE_OK(d.ops->cache_fork(cache, &d.account, &fork, error));
        tiny_step(&d, cache, SEGMENT_PROMPT, other, 90, 90, NULL);
        tiny_step(&d, fork, SEGMENT_PROMPT, tokens + 20, 100, 100, NULL);
        for (int at = 120; at < LENGTH; at += 3) {
            tiny_step(&d, fork, SEGMENT_DECODE, other, 5, 0, NULL);
            tiny_step(&d, fork, SEGMENT_DECODE, tokens + at, 3, 3, NULL);
        }
        d.ops->cache_destroy(cache);
        rows_of(&d, fork, format, &found);
        expect_same("a fork, truncated, with dropped rows", &found, &expected);
        memory_free(&expected);
        tiny_close(&d);
    }
}

static void another_format_is_refused_by_name(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", NULL, KAKEYA_PRECISION_BF16);
    int32_t tokens[LENGTH];
    tiny_tokens(tokens, LENGTH, 5);
    for (kv_format from = 0; from < KV_FORMAT_COUNT; from++) {
        for (kv_format to = 0; to < KV_FORMAT_COUNT; to++) {
            memory_stream stream = {0};
            backend_cache *cache = tiny_cache(&d, &tiny_policies[0], from),
                          *into = tiny_cache(&d, &tiny_policies[0], to);
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens, LENGTH, LENGTH, NULL);
            state_of(&d, cache, &stream);
            kakeya_error problem = {0};
            kakeya_status status = d.ops->cache_restore(into, memory_read, &stream, &problem);
            char wanted[64];
            snprintf(wanted, sizeof wanted, "K/V format is %s there and %s here", kv_format_name(from),
                     kv_format_name(to));
            if (from == to)
                assert_int_equal(status, KAKEYA_OK);
            else if (status != KAKEYA_FORMAT || !strstr(problem.message, wanted))
                fail_msg("%s into %s: status %d, \"%s\"", kv_format_name(from), kv_format_name(to), (int)status,
                         problem.message);
            d.ops->cache_destroy(into);
            memory_free(&stream);
        }
    }
    tiny_close(&d);
}

/* ------------------------------------------------------------------------------------------------- what it costs */

/* Logits [n][vocab] of the text under a K/V format. */
static void score(kakeya_engine *engine, kakeya_kv_format format, const int32_t *ids, size_t n, float *logits) {
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.context_tokens = (int)n;
    options.kv_format = format;
    kakeya_session *session = NULL;
    REQUIRE_OK(kakeya_session_open(engine, &options, &session, error));
    kakeya_score_options scoring;
    KAKEYA_INIT(&scoring);
    scoring.prompt_length = 1;
    scoring.logits = logits;
    REQUIRE_OK(kakeya_session_score(session, ids, n, &scoring, error));
    kakeya_session_close(session);
}

static double log_sum(const float *row, int n) {
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) top = fmax(top, (double)row[i]);
    for (int i = 0; i < n; i++) sum += exp((double)row[i] - top);
    return top + log(sum);
}

static double divergence(const float *exact, const float *stored, size_t tokens, int vocab) {
    double kl = 0;
    for (size_t t = 0; t < tokens; t++) {
        const float *a = exact + t * (size_t)vocab, *b = stored + t * (size_t)vocab;
        double log_a = log_sum(a, vocab), log_b = log_sum(b, vocab);
        for (int i = 0; i < vocab; i++)
            kl += exp((double)a[i] - log_a) * ((double)a[i] - log_a - ((double)b[i] - log_b));
    }
    return kl / (double)tokens;
}

/* Mean divergence from bf16 K/V over a text of the demo: not nothing, at most 0.001 in 8 bits, and in 4 bits what the
 * gate asks of formats that sessions offer. */
static void divergence_is_small(void **state) {
    (void)state;
    enum { TOKENS = 512 };
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.drafter = options.f_theta = "none";
    kakeya_engine *engine = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    char *text;
    size_t bytes, n_ids = 0;
    int32_t *ids = NULL;
    REQUIRE_OK(file_read(KAKEYA_MODELS "/../examples/code/hash_table.c", 1 << 20, &text, &bytes, error));
    REQUIRE_OK(kakeya_tokenize(kakeya_engine_tokenizer(engine), text, bytes, 0, &ids, &n_ids, error));
    free(text);
    assert_true(n_ids >= TOKENS);
    int vocab = kakeya_engine_vocab_size(engine);
    size_t n = (size_t)TOKENS * (size_t)vocab;
    float *exact = malloc(n * sizeof *exact), *stored = malloc(n * sizeof *stored);
    score(engine, KAKEYA_KV_BF16, ids, TOKENS, exact);
    for (int i = 0; i < 2; i++) {
        const double most = i ? 0.005 : 0.001;
        score(engine, i ? KAKEYA_KV_Q4 : KAKEYA_KV_Q8, ids, TOKENS, stored);
        double kl = divergence(exact, stored, TOKENS - 1, vocab);
        if (!(kl > 1e-7 && kl <= most))
            fail_msg("%d bits: mean KL %.6f, wanted above 0 and at most %g", i ? 4 : 8, kl, most);
    }
    free(exact);
    free(stored);
    kakeya_free(ids);
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_vector_is_what_the_header_says),          cmocka_unit_test(edges_of_a_vector),
        cmocka_unit_test(vectors_in_4_bits_are_the_same_everywhere), cmocka_unit_test(bytes_of_a_position_are_its_own),
        cmocka_unit_test(another_format_is_refused_by_name),         cmocka_unit_test(divergence_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
