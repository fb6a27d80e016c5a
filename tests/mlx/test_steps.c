/* Steps of the MLX backend on its CPU device: what they need is counted before. */
#include "backend/mlx/mlx.h"
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
                 {"gemma4-tiny-ple", NULL, KAKEYA_PRECISION_F32, KV_FORMAT_Q8, 2}};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workspace_is_counted_before),
    };
    return cmocka_run_group_tests_name("mlx steps", tests, NULL, NULL);
}
