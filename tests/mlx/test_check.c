/* The MLX backend with its own kernels in the graph (on fibers), and the check at load that chooses how each operation
 * is computed: an operation whose rows depend on the rows beside them is found and replaced, and bits are kept. */
#include "backend/mlx/mlx.h"
#include "memory_stream.h"
#include "mlx/host_kernels.h"
#include "quantised_models.h"
#include "sweep.h"
#include "tiny.h"

enum { PROMPT = 10, ANSWER = 18, ALL = PROMPT + ANSWER };

/* A prompt, then an answer in blocks, of every other one only half is kept. */
static void run_answer(tiny *d, backend_cache *cache, const int32_t *tokens, int chunk, int block, float *logits) {
    size_t vocab = (size_t)d->verifier->config.vocab;
    float *rows = calloc((size_t)ALL * vocab, sizeof *rows);
    assert_non_null(rows);
    for (int at = 0, round = 0, kept; at < ALL; at += kept, round++) {
        segment_kind kind = at < PROMPT ? SEGMENT_PROMPT : SEGMENT_DECODE;
        int left = at < PROMPT ? PROMPT - at : ALL - at, size = at < PROMPT ? chunk : block;
        int n = left < size ? left : size;
        int32_t taken[ALL];
        kept = kind == SEGMENT_DECODE && n > 1 && round % 2 ? n / 2 : n;
        for (int i = 0; i < n; i++) taken[i] = i < kept ? tokens[at + i] : (tokens[at + i] + 7) % 300;
        tiny_step(d, cache, kind, taken, n, kept, rows);
        memcpy(logits + (size_t)at * vocab, rows, (size_t)kept * vocab * sizeof *rows);
    }
    free(rows);
}

static void check_ways(const tiny *d, const char *expected) {
    const char *said = d->ops->model_description(d->backend), *ways = strstr(said, "rows by ");
    assert_non_null(ways);
    if (strcmp(ways, expected) != 0) fail_msg("\"%s\", expected \"%s\"", ways, expected);
}

/* An answer in blocks of some sizes has the bits of the answer row by row. */
static float *check_blocks(tiny *d, const char *what, const tiny_policy *p, kv_format format, const int *blocks,
                           int n) {
    int32_t tokens[ALL];
    tiny_tokens(tokens, ALL, 5);
    size_t vocab = (size_t)d->verifier->config.vocab;
    float *alone = calloc((size_t)ALL * vocab, sizeof *alone), *parts = calloc((size_t)ALL * vocab, sizeof *parts);
    assert_true(alone && parts);
    for (int i = -1; i < n; i++) {
        backend_cache *cache = tiny_cache(d, p, format);
        int most = tiny_block_rows(p), block = i < 0 ? 1 : blocks[i];
        run_answer(d, cache, tokens, i < 0 ? PROMPT : 7, block < most ? block : most, i < 0 ? alone : parts);
        d->ops->cache_destroy(cache);
        if (i >= 0) assert_same_bits(what, parts, alone, (size_t)ALL * vocab);
        assert_true(d->backend->needed_bytes && d->backend->needed_bytes <= d->backend->foreseen_bytes);
    }
    free(parts);
    return alone;
}

static float *check_model(const char *verifier, const char *drafter, kakeya_precision precision, kv_format format,
                          const tiny_policy *p, const char *ways) {
    static const int blocks[] = {17};
    tiny d;
    tiny_open(&d, verifier, drafter, precision);
    check_ways(&d, ways);
    float *logits = check_blocks(&d, verifier, p, format, blocks, 1);
    tiny_close(&d);
    return logits;
}

static int with_kernels(void **state) {
    (void)state;
    mlx_kernels_run_with(host_kernels_run);
    return 0;
}

static int without_kernels(void **state) {
    (void)state;
    mlx_kernels_run_with(NULL);
    mlx_device_inject(NULL);
    return 0;
}

static void own_kernels_compute_the_same(void **state) {
    (void)state;
    static const struct {
        const char *verifier, *drafter;
        kv_format format;
        int policy;
    } cases[] = {{"gemma4-tiny-dense", "dflash-tiny", KV_FORMAT_F32, 3},
                 {"gemma4-tiny-moe", NULL, KV_FORMAT_BF16, 1},
                 {"gemma4-tiny-ple", NULL, KV_FORMAT_Q8, 0},
                 {"gemma4-tiny-dense", NULL, KV_FORMAT_Q4, 0},
                 {"gemma4-tiny-dense", "dflash-tiny", KV_FORMAT_BF16, 6}};
    size_t last = sizeof cases / sizeof cases[0] - sweep_short();
    for (size_t i = 0; i < last; i++) {
        const tiny_policy *p = &tiny_policies[cases[i].policy];
        float *logits[2];
        for (int own = 0; own < 2; own++) {
            mlx_kernels_run_with(own ? host_kernels_run : NULL);
            logits[own] = check_model(cases[i].verifier, cases[i].drafter, KAKEYA_PRECISION_F32, cases[i].format, p,
                                      own ? "rows by own kernel" : "rows by tiles");
        }
        /* A random model lets small differences grow from row to row. */
        assert_close_relative(cases[i].verifier, logits[1] + PROMPT * 300, logits[0] + PROMPT * 300, 4 * 300, 1e-2);
        for (int own = 0; own < 2; own++) free(logits[own]);
    }
}

static void codes_are_multiplied_as_they_are(void **state) {
    (void)state;
    static const int blocks[] = {9};
    static const stored_form forms[] = {STORED_AFFINE, STORED_MLX_MXFP4};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (sweep_short() && i) break;
        made_model("gemma4-tiny-moe", forms[i]);
        float *logits[2];
        for (int own = 0; own < 2; own++) {
            tiny d = {.ops = backend_find("mlx", NULL)};
            mlx_kernels_run_with(own ? host_kernels_run : NULL);
            mem_account_init(&d.account, NULL, 0);
            REQUIRE_OK(language_model_open(scratch_path("quantised"), &d.account, &d.verifier, error));
            tiny_complete(&d, KAKEYA_PRECISION_BF16, NULL, 0);
            check_ways(&d, own ? "rows by own kernel" : "rows by tiles");
            logits[own] = check_blocks(&d, "codes", &tiny_policies[0], KV_FORMAT_F32, blocks, 1);
            tiny_close(&d);
        }
        assert_close_relative("codes", logits[1] + PROMPT * 300, logits[0] + PROMPT * 300, 2 * 300, 3e-2);
        for (int own = 0; own < 2; own++) free(logits[own]);
    }
}

/* A fault in an own kernel leaves tiles; in both, rows one by one. Bits are kept in any case. */
static void faults_are_found(void **state) {
    (void)state;
    for (int op = 0; op < MLX_OPS; op++) {
        for (int both = 0; both < 2; both++) {
            if (both && !sweep_whole() && op != MLX_OP_ATTENTION && op != MLX_OP_HEAD) continue;
            const mlx_fault fault = {(mlx_op)op, {true, both, false}};
            char ways[192];
            const char *name = mlx_op_name((mlx_op)op);
            if (!both)
                snprintf(ways, sizeof ways, "rows by own kernel (%s: tiles)", name);
            else if (op == MLX_OP_HEAD)
                snprintf(ways, sizeof ways, "rows by own kernel (%s: row by row)", name);
            else
                snprintf(ways, sizeof ways, "rows by own kernel (%s: row by row), prompts by tiles (%s: row by row)",
                         name, name);
            mlx_device_inject(&fault);
            tiny d; /* what is found, of each; that it was replaced, of one of each kind */
            tiny_open(&d, "gemma4-tiny-moe", NULL, KAKEYA_PRECISION_F32);
            check_ways(&d, ways);
            static const int blocks[] = {5};
            if (op == (both ? MLX_OP_ATTENTION : MLX_OP_PRODUCT))
                free(check_blocks(&d, ways, &tiny_policies[1], KV_FORMAT_F32, blocks, 1));
            tiny_close(&d);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(own_kernels_compute_the_same, with_kernels, without_kernels),
        cmocka_unit_test_setup_teardown(codes_are_multiplied_as_they_are, with_kernels, without_kernels),
        cmocka_unit_test_setup_teardown(faults_are_found, with_kernels, without_kernels),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
