/* Each call beneath the MLX backend fails once: every function of its C face, every buffer, every evaluation, every
 * object of C++, at the first call, the second, and so on until none is left. Each time the verb says so in one line,
 * nothing has changed, and the session goes on with the bits that it has without failures. */
#include "backend/mlx/mlx_device.h"
#include "mlx/failing_libmlx.h"
#include "model/vision_model.h"
#include "sweep.h"
#include "tiny.h"

enum { VOCAB_ROWS = 8, STEPS = 7, DRAFTS = 4, MAX_CALLS = 1 << 20 };

/* One step of a session: rows of a prompt, decoded rows of which some are kept, or drafts. */
static const struct {
    segment_kind kind;
    int rows, kept; /* rows 0: drafts */
} steps[STEPS] = {
    {SEGMENT_PROMPT, 37, 37}, {SEGMENT_PROMPT, 20, 20}, {SEGMENT_DECODE, 6, 3}, {SEGMENT_DECODE, 6, 6},
    {SEGMENT_DECODE, 0, 0},   {SEGMENT_PROMPT, 12, 12}, {SEGMENT_DECODE, 5, 5},
};

/* What a session's steps have given: the logits of their last rows, and drafts. */
typedef struct outcome {
    float *logits; /* [STEPS][VOCAB_ROWS][vocab] */
    int32_t drafts[DRAFTS];
} outcome;

static size_t vocab_of(const tiny *d) { return (size_t)d->verifier->config.vocab; }

static kakeya_status take_step(tiny *d, backend_cache *cache, int step, const int32_t *tokens, outcome *out,
                               kakeya_error *problem) {
    if (!steps[step].rows) return backend_draft_one(d->ops, d->backend, cache, tokens[1], DRAFTS, out->drafts, problem);
    int n = steps[step].rows, rows = n < VOCAB_ROWS ? n : VOCAB_ROWS;
    backend_segment segment = {.cache = cache,
                               .tokens = tokens,
                               .n = n,
                               .kind = steps[step].kind,
                               .first_logit_row = n - rows,
                               .logits = out->logits + (size_t)step * VOCAB_ROWS * vocab_of(d)};
    return d->ops->forward(d->backend, &segment, 1, problem);
}

static bool is_told(failing what, kakeya_status status, const char *message) {
    if (what == FAILING_NO_BUFFER || what == FAILING_ALLOCATOR || what == FAILING_NEW)
        return status == KAKEYA_OUT_OF_MEMORY && strcmp(message, "libmlx: out of memory") == 0;
    const char *text = what == FAILING_UNKNOWN ? "libmlx: unknown exception" : "libmlx: failure asked for by a test";
    return status == KAKEYA_BACKEND && strcmp(message, text) == 0;
}

/* Objects of C++ are made by the thousand, and many a buffer: the first ones one by one, then ever further apart. Whole
 * runs leave out no buffer. */
static int next_call(failing what, int calls) {
    if (what == FAILING_NEW) return calls < 4 ? calls + 1 : calls * 3;
    bool buffers = what == FAILING_NO_BUFFER || what == FAILING_ALLOCATOR;
    return calls + 1 + (buffers && !sweep_whole() ? calls / 2 : 0);
}

/* A session whose every step fails in every way before it succeeds; without failures where kinds is 0. */
static int run_session(tiny *d, const tiny_policy *policy, const int32_t *tokens, int kinds, outcome *out) {
    backend_cache *cache = tiny_cache(d, policy, KV_FORMAT_F32);
    int failures = 0;
    for (int step = 0, at = 0; step < STEPS; at += steps[step++].kept) {
        int length = d->ops->cache_length(cache);
        bool done = false;
        for (int kind = 0; kind < kinds; kind++) {
            for (int calls = 0; !done || calls < MAX_CALLS; calls = next_call((failing)kind, calls)) {
                kakeya_error problem = {0};
                fail_after((failing)kind, calls);
                kakeya_status status = take_step(d, cache, step, tokens + at, out, &problem);
                fail_after((failing)kind, -1);
                done = !status;
                if (done) break;
                failures++;
                if (!is_told((failing)kind, status, problem.message) || d->ops->cache_length(cache) != length ||
                    d->ops->cache_pending(cache) != 0)
                    fail_msg("%s, step %d, %s %d fails: status %d, '%s', %d tokens of %d", policy->name, step,
                             failing_name((failing)kind), calls, (int)status, problem.message,
                             d->ops->cache_length(cache), length);
            }
            /* The step was taken: it is put back, so that the next kind of failure meets it, too. */
            if (kind + 1 < kinds && steps[step].rows) REQUIRE_OK(d->ops->cache_commit(cache, 0, error));
        }
        if (!kinds) REQUIRE_OK(take_step(d, cache, step, tokens + at, out, error));
        if (steps[step].rows) REQUIRE_OK(d->ops->cache_commit(cache, steps[step].kept, error));
    }
    d->ops->cache_destroy(cache);
    return failures;
}

static void every_call_fails_once(void **state) {
    (void)state;
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    size_t all = (size_t)STEPS * VOCAB_ROWS * vocab_of(&d);
    int32_t tokens[128];
    tiny_tokens(tokens, 128, 41);
    static const int policies[] = {3, 5, 0}; /* restored, restored in all layers, native */
    for (int p = 0; p < (sweep_whole() ? 3 : 1); p++) {
        outcome plain = {.logits = calloc(all, sizeof(float))}, failed = {.logits = calloc(all, sizeof(float))};
        assert_true(plain.logits && failed.logits);
        size_t held = mlx_device_active_bytes();
        run_session(&d, &tiny_policies[policies[p]], tokens, 0, &plain);
        int failures = run_session(&d, &tiny_policies[policies[p]], tokens, FAILING_KINDS, &failed);
        print_message("%s: %d failures\n", tiny_policies[policies[p]].name, failures);
        assert_true(failures > 150);
        assert_same_bits(tiny_policies[policies[p]].name, failed.logits, plain.logits, all);
        assert_memory_equal(failed.drafts, plain.drafts, sizeof plain.drafts);
        if (p) assert_int_equal(mlx_device_active_bytes(), held); /* RoPE tables have grown before */
        free(plain.logits);
        free(failed.logits);
    }
    tiny_close(&d);
}

/* A model of which something cannot be made is none, and leaves nothing. */
static void creation_fails_cleanly(void **state) {
    (void)state;
    tiny d;
    tiny_open_weights(&d, "gemma4-tiny-moe", NULL);
    size_t counted = mem_total(&d.account), held = mlx_device_active_bytes();
    backend_model_options options = {.verifier = d.verifier, .precision = KAKEYA_PRECISION_BF16, .account = &d.account};
    for (int kind = 0; kind < FAILING_KINDS; kind++) {
        int failures = 0;
        for (int calls = 0; calls < MAX_CALLS; calls = calls < 4 ? calls + 1 : calls * 2) {
            kakeya_error problem = {0};
            fail_after((failing)kind, calls);
            kakeya_status status = d.ops->model_create(&options, &d.backend, &problem);
            fail_after((failing)kind, -1);
            if (!status) break;
            failures++;
            if (!is_told((failing)kind, status, problem.message))
                fail_msg("%s %d: status %d, '%s'", failing_name((failing)kind), calls, (int)status, problem.message);
            assert_null(d.backend);
            assert_int_equal(mem_total(&d.account), counted);
            assert_int_equal(mlx_device_active_bytes(), held);
        }
        if (kind < FAILING_EVALUATION || kind == FAILING_NEW) assert_true(failures > 4);
        assert_non_null(d.backend);
        d.ops->model_destroy(d.backend);
        d.backend = NULL;
        assert_int_equal(mlx_device_active_bytes(), held);
    }
    tiny_complete(&d, KAKEYA_PRECISION_BF16, NULL, 0);
    tiny_close(&d);
}

/* What reads pictures is loaded and a picture becomes rows in spite of every failure, with the bits that it has
 * without.
 */
static void a_picture_fails_cleanly(void **state) {
    (void)state;
    enum { ACROSS = 6, DOWN = 9, ROWS = ACROSS / 3 * DOWN / 3 };
    tiny d = {.ops = backend_find("mlx", NULL)};
    mem_account_init(&d.account, NULL, 0);
    REQUIRE_OK(language_model_open(KAKEYA_TEST_DATA "/vision/tiny-tower", &d.account, &d.verifier, error));
    const vision_model *v = d.verifier->vision;
    const size_t values = (size_t)(ACROSS * DOWN * vision_model_patch_values(v));
    const size_t all = (size_t)(ROWS * v->text_hidden);
    float *patches = malloc(values * sizeof *patches), *plain = malloc(all * sizeof *plain),
          *rows = malloc(all * sizeof *rows);
    assert_true(patches && plain && rows);
    for (size_t i = 0; i < values; i++) patches[i] = (float)(i * 37 % 256) / 255;
    const backend_image picture = {.vision = v, .across = ACROSS, .down = DOWN, .patches = patches};
    for (int kind = -1; kind < FAILING_KINDS; kind++) {
        int failures = 0;
        tiny_complete(&d, KAKEYA_PRECISION_F32, NULL, 0);
        size_t held = mlx_device_active_bytes(), weights = mem_bytes(&d.account, MEM_WEIGHTS);
        for (int calls = 0; kind >= 0 && calls < MAX_CALLS; calls = next_call((failing)kind, calls)) {
            kakeya_error problem = {0};
            fail_after((failing)kind, calls);
            kakeya_status status = d.ops->embed_image(d.backend, &picture, rows, &problem);
            fail_after((failing)kind, -1);
            if (!status) break;
            failures++;
            if (!is_told((failing)kind, status, problem.message))
                fail_msg("%s %d: status %d, '%s'", failing_name((failing)kind), calls, (int)status, problem.message);
            if (mem_bytes(&d.account, MEM_WEIGHTS) != weights) { /* what reads pictures is there now */
                weights = mem_bytes(&d.account, MEM_WEIGHTS);
                held = mlx_device_active_bytes();
            }
            assert_int_equal(mlx_device_active_bytes(), held);
        }
        if (kind >= 0) assert_true(failures > 3);
        REQUIRE_OK(d.ops->embed_image(d.backend, &picture, kind < 0 ? plain : rows, error));
        if (kind >= 0) assert_same_bits("rows of a picture", rows, plain, all);
        d.ops->model_destroy(d.backend);
    }
    free(patches);
    free(plain);
    free(rows);
    tiny_complete(&d, KAKEYA_PRECISION_F32, NULL, 0);
    tiny_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails_once),
        cmocka_unit_test(creation_fails_cleanly),
        cmocka_unit_test(a_picture_fails_cleanly),
    };
    return cmocka_run_group_tests_name("mlx failures", tests, NULL, NULL);
}
