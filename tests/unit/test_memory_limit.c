/* Protects --memory-limit: where some bytes suffice, more do. What is optional (the head's int8 copy) must not take the
 * memory that a session needs. A sweep of limits, in small steps, from too little to more than enough, over every
 * policy and every way of choosing tokens.
 * Whole runs only: test_session and test_scheduler meet limits, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/error.h"
#include "session/session.h"
#include "sweep.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { STEP = 1000000 };
#else
enum { STEP = 200000 };
#endif
enum { BELOW = 300000, ABOVE = 3500000, TOKENS = 4, PROMPT = 24 };
/* Held by other sessions: so much that the copy and this session do not both fit where the copy is made. */
enum { OTHERS = 3000000 };

typedef struct attempt {
    kakeya_attention attention;
    kakeya_restore_layers layers;
    kakeya_mode mode;
    float temperature;
} attempt;

/* A short sweep takes longer steps, three of them at least, and every policy with one of the choices. */
static size_t step_bytes(void) { return sweep_short() ? ABOVE / 3 : STEP; }

/* Answers under a limit. The status, and in *held what the engine held at most. */
static kakeya_status answer(const attempt *a, size_t limit, size_t *held, kakeya_error *error) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.threads = 2;
    options.memory_limit_bytes = limit;
    kakeya_engine *engine = NULL;
    kakeya_session *session = NULL;
    kakeya_status status = kakeya_engine_open(&options, &engine, error);
    kakeya_session_options session_options;
    KAKEYA_INIT(&session_options);
    session_options.attention = a->attention;
    session_options.restore_layers = a->layers;
    session_options.context_tokens = 256;
    void *others = status == KAKEYA_OK ? mem_alloc(&engine->account, MEM_KV_FULL, OTHERS) : NULL;
    if (status == KAKEYA_OK && !others) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "other sessions");
    if (status == KAKEYA_OK) status = kakeya_session_open(engine, &session_options, &session, error);
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = 300 + 37 * i % 4000;
    if (status == KAKEYA_OK) status = kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error);
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.max_tokens = TOKENS;
    generate.mode = a->mode;
    generate.sampling.temperature = a->temperature;
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    if (status == KAKEYA_OK) status = kakeya_session_generate(session, &generate, &stats, error);
    *held = engine ? atomic_load(&engine->account.peak_bytes) : 0;
    kakeya_session_close(session);
    mem_free(others);
    kakeya_engine_close(engine);
    return status;
}

static void more_memory_is_never_worse(void **state) {
    (void)state;
    static const struct {
        kakeya_attention attention;
        kakeya_restore_layers layers;
        const char *name;
    } policies[] = {{KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, "native"},
                    {KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, "sink-window"},
                    {KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, "restored"},
                    {KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, "restored-all"}};
    static const struct {
        kakeya_mode mode;
        float temperature;
        const char *name;
    } choices[] = {{KAKEYA_MODE_AUTO, 0, "greedy"}, {KAKEYA_MODE_AUTO, 0.5f, "sampled"}};
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        for (size_t c = 0; c < sizeof choices / sizeof choices[0]; c++) {
            if (sweep_short() && c != p % 2) continue;
            attempt a = {policies[p].attention, policies[p].layers, choices[c].mode, choices[c].temperature};
            kakeya_error error = {0};
            size_t most, held, worked = 0, refused = 0;
            if (answer(&a, 0, &most, &error) != KAKEYA_OK) fail_msg("%s", error.message);
            /* With a limit of all that it holds, the engine may do without the copy: less suffices. */
            for (size_t limit = most - 4 * (size_t)BELOW; limit > 0 && answer(&a, limit, &held, &error) == KAKEYA_OK;
                 limit -= BELOW)
                most = limit;
            for (size_t limit = most - BELOW; limit < most + ABOVE; limit += step_bytes()) {
                kakeya_status status = answer(&a, limit, &held, &error);
                if (status != KAKEYA_OK && status != KAKEYA_OUT_OF_MEMORY) fail_msg("%s", error.message);
                if (held > limit) fail_msg("%zu bytes held under a limit of %zu", held, limit);
                if (status == KAKEYA_OK && !worked) worked = limit;
                if (status != KAKEYA_OK) refused = limit;
                if (worked && refused > worked)
                    fail_msg("%s, %s: %zu bytes suffice, %zu do not: %s", policies[p].name, choices[c].name, worked,
                             refused, error.message);
            }
            assert_true(worked && refused); /* the sweep met the border */
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_memory_is_never_worse)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
