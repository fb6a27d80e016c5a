/* Steps of the MLX backend on its CPU device: what they need is counted before, and the graph of the next one is made
 * while one runs. */
#include "backend/mlx/mlx.h"
#include "memory_stream.h"
#include "sweep.h"
#include "tiny.h"

/* Short sweeps take every third policy: native, restored, restored in all layers. */
static int next_policy(void) { return sweep_short() ? 3 : 1; }

/* What graphs need is counted before they are made: it is never more than was said, and where there is no room for it,
 * nothing is computed. Other sessions' bits and this one's do not know of the refusal. */
static void workspace_is_counted_before(void **state) {
    (void)state;
    enum { PROMPT = 70, BLOCK = 8 };
    static const struct {
        const char *verifier, *drafter;
        kakeya_precision precision;
        kv_format format;
        int policies;
    } cases[] = {{"gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32, KV_FORMAT_F32, TINY_POLICIES},
                 {"gemma4-tiny-moe", NULL, KAKEYA_PRECISION_BF16, KV_FORMAT_BF16, 2},
                 {"gemma4-tiny-ple", NULL, KAKEYA_PRECISION_F32, KV_FORMAT_Q8, 2},
                 {"gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32, KV_FORMAT_Q4, 1}};
    int32_t tokens[PROMPT + BLOCK], drafts[7];
    tiny_tokens(tokens, PROMPT + BLOCK, 23);
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        for (int i = 0; i < cases[k].policies; i += next_policy()) {
            tiny d;
            tiny_open(&d, cases[k].verifier, cases[k].drafter, cases[k].precision);
            backend_cache *cache = tiny_cache(&d, &tiny_policies[i], cases[k].format);
            for (int step = 0; step < 3; step++) {
                backend_segment rows = step ? tiny_rows(cache, SEGMENT_DECODE, tokens + PROMPT, BLOCK, NULL)
                                            : tiny_rows(cache, SEGMENT_PROMPT, tokens, PROMPT, NULL);
                kakeya_error problem = {0};
                size_t room = step < 2 ? mlx_forward_bytes(d.backend, &rows, 1, false) : 0;
                bool more = room > d.backend->workspace_bytes;
                if (more) {
                    size_t counted = mem_total(&d.account);
                    long waits = mlx_device_waits();
                    d.account.limit_bytes = counted + room - d.backend->workspace_bytes - 64;
                    assert_int_equal(d.ops->forward(d.backend, &rows, 1, &problem), KAKEYA_OUT_OF_MEMORY);
                    assert_int_equal(mem_total(&d.account), counted);
                    assert_int_equal(mlx_device_waits(), waits);
                    assert_int_equal(d.ops->cache_pending(cache), 0);
                    d.account.limit_bytes = 0;
                } else if (!step) {
                    fail_msg("%s, %s: the first step needs nothing", cases[k].verifier, tiny_policies[i].name);
                }
                if (step < 2) {
                    REQUIRE_OK(d.ops->forward(d.backend, &rows, 1, error));
                    REQUIRE_OK(d.ops->cache_commit(cache, rows.n, error));
                } else if (cases[k].drafter) {
                    REQUIRE_OK(backend_draft_one(d.ops, d.backend, cache, tokens[3], 7, drafts, error));
                }
                if (!d.backend->needed_bytes || d.backend->needed_bytes > d.backend->foreseen_bytes)
                    fail_msg("%s, %s, step %d: %zu bytes were needed, %zu foreseen", cases[k].verifier,
                             tiny_policies[i].name, step, d.backend->needed_bytes, d.backend->foreseen_bytes);
            }
            d.ops->cache_destroy(cache);
            tiny_close(&d);
        }
    }
}

static float *logits_for(const tiny *d, int rows) {
    float *logits = calloc((size_t)rows * (size_t)d->verifier->config.vocab, sizeof *logits);
    assert_non_null(logits);
    return logits;
}

static memory_stream snapshot_of(tiny *d, const backend_cache *cache) {
    memory_stream stream = {0};
    REQUIRE_OK(d->ops->cache_snapshot(cache, memory_write, &stream, error));
    assert_int_equal(stream.bytes, d->ops->cache_snapshot_bytes(cache));
    return stream;
}

/* What a session does behind a step whose successor's graph has been made. */
enum { GOES_ON = 0, DROPS, TRUNCATES, FORKS, TAKES_A_BLOCK, TAKES_A_PROMPT, MOVES_BACK, OTHERS };

/* The next step's graph is made while a step runs, and taken where nothing but that row's commit lies between, for any
 * token. Whatever else comes, logits are those of sessions that were computed in blocks. */
static void steps_run_ahead(void **state) {
    (void)state;
    enum { PROMPT = 40, STEPS = 19, MORE = 3, ROWS = PROMPT + STEPS + MORE };
    tiny d;
    tiny_open(&d, "gemma4-tiny-dense", "dflash-tiny", KAKEYA_PRECISION_F32);
    int32_t tokens[ROWS];
    tiny_tokens(tokens, ROWS, 43);
    size_t vocab = (size_t)d.verifier->config.vocab;
    float *one = logits_for(&d, 1), *block = logits_for(&d, MORE), *last = logits_for(&d, STEPS + MORE);
    for (int p = 0; p < TINY_POLICIES; p += next_policy()) {
        const tiny_policy *policy = &tiny_policies[p];
        backend_cache *whole = tiny_cache(&d, policy, KV_FORMAT_F32);
        tiny_step(&d, whole, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, NULL);
        for (int at = 0, n; at < STEPS + MORE; at += n) {
            int most = tiny_block_rows(policy) < 9 ? tiny_block_rows(policy) : 9;
            n = STEPS + MORE - at < most ? STEPS + MORE - at : most;
            tiny_step(&d, whole, SEGMENT_DECODE, tokens + PROMPT + at, n, n, last + (size_t)at * vocab);
        }
        for (int what = GOES_ON; what < OTHERS; what++) {
            if (sweep_short() && what % 3 != p / next_policy() % 3) continue; /* each for one policy */
            backend_cache *cache = tiny_cache(&d, policy, KV_FORMAT_F32), *fork = NULL;
            tiny_step(&d, cache, SEGMENT_PROMPT, tokens, PROMPT, PROMPT, NULL);
            long ahead = d.backend->steps_ahead;
            for (int i = 0; i < STEPS; i++) {
                tiny_step(&d, cache, SEGMENT_DECODE, tokens + PROMPT + i, 1, 1, one);
                assert_same_bits(policy->name, one, last + (size_t)i * vocab, vocab);
            }
            /* A chain ends after some steps, and where latents have to be made first. */
            ahead = d.backend->steps_ahead - ahead;
            if (ahead < STEPS - 8 || ahead >= STEPS) fail_msg("%s: %ld of %d steps", policy->name, ahead, STEPS);
            int32_t other = (tokens[PROMPT] + 5) % 300;
            int at = STEPS;
            ahead = d.backend->steps_ahead;
            if (what == DROPS) {
                tiny_step(&d, cache, SEGMENT_DECODE, &other, 1, 0, one);
            } else if (what == TRUNCATES) { /* to where other tokens have been */
                tiny_step(&d, cache, SEGMENT_DECODE, &other, 1, 1, one);
                tiny_step(&d, cache, SEGMENT_DECODE, &other, 1, 1, one);
                REQUIRE_OK(d.ops->cache_truncate(cache, PROMPT + STEPS, error));
            } else if (what == FORKS) {
                REQUIRE_OK(d.ops->cache_fork(cache, &d.account, &fork, error));
                tiny_step(&d, fork, SEGMENT_DECODE, &other, 1, 1, one);
            } else if (what == TAKES_A_BLOCK) {
                tiny_step(&d, cache, SEGMENT_DECODE, tokens + PROMPT + at, 2, 2, block);
                assert_same_bits(policy->name, block, last + (size_t)at * vocab, 2 * vocab);
                at += 2;
            } else if (what == TAKES_A_PROMPT) {
                tiny_step(&d, cache, SEGMENT_PROMPT, &other, 1, 0, NULL);
                if (d.ops->cache_min_truncate(cache) > d.ops->cache_length(cache)) at = STEPS + MORE; /* it is spoilt */
            } else if (what == MOVES_BACK) {
                memory_stream data = snapshot_of(&d, cache);
                tiny_step(&d, cache, SEGMENT_DECODE, &other, 1, 1, one);
                REQUIRE_OK(d.ops->cache_restore(cache, memory_read, &data, error));
                memory_free(&data);
            }
            if (what != GOES_ON && what != TRUNCATES && what != MOVES_BACK && what != DROPS)
                assert_int_equal(d.backend->steps_ahead, ahead);
            for (; at < STEPS + MORE; at++) {
                tiny_step(&d, cache, SEGMENT_DECODE, tokens + PROMPT + at, 1, 1, one);
                assert_same_bits(policy->name, one, last + (size_t)at * vocab, vocab);
            }
            d.ops->cache_destroy(cache);
            if (fork) d.ops->cache_destroy(fork);
            assert_null(d.backend->ahead);
        }
        d.ops->cache_destroy(whole);
    }
    if (d.backend->needed_bytes > d.backend->foreseen_bytes)
        fail_msg("%zu bytes were needed, %zu foreseen", d.backend->needed_bytes, d.backend->foreseen_bytes);
    free(one);
    free(block);
    free(last);
    tiny_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspace_is_counted_before),
        cmocka_unit_test(steps_run_ahead),
    };
    return cmocka_run_group_tests_name("mlx steps", tests, NULL, NULL);
}
