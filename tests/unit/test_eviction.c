/* Protects: under a limit on weights, the experts that are in memory are nearly as often the right ones as they could
 * be. Answers of the demo in Q4_0 with half of its experts in memory find at least 0.8 of what Belady's rule would
 * find, which makes room where the next use is furthest. Prints both hit rates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "convert/convert.h"
#include "kakeya_study.h"
#include "model/expert_store.h"
#include "scratch.h"

enum { ANSWER = 300, MOST_USES = 1 << 16, LAYER_EXPERTS = 128, KEYS = 64 * LAYER_EXPERTS };

/* Uses in their order; those of one call are wanted together. */
static struct use {
    int key, call;
    int next; /* use of the same expert; MOST_USES: none */
} use[MOST_USES];
static int uses, calls;

void __real_expert_store_begin(expert_store *store, int layer, const int *experts, int n);
void __wrap_expert_store_begin(expert_store *store, int layer, const int *experts, int n);
void __wrap_expert_store_begin(expert_store *store, int layer, const int *experts, int n) {
    for (int i = 0; i < n && uses < MOST_USES; i++)
        use[uses++] = (struct use){.key = layer * LAYER_EXPERTS + experts[i], .call = calls};
    calls++;
    __real_expert_store_begin(store, layer, experts, n);
}

static void find_next_uses(void) {
    static int last[KEYS];
    for (int k = 0; k < KEYS; k++) last[k] = MOST_USES;
    for (int i = uses - 1; i >= 0; i--) {
        use[i].next = last[use[i].key];
        last[use[i].key] = i;
    }
}

/* The share of uses that Belady's rule finds in memory. */
static double best_hit_rate(int slots) {
    static int holds[KEYS], next[KEYS], wanted_by[KEYS]; /* holds: keys in slots, next and wanted_by: by slot */
    int held = 0, found = 0;
    find_next_uses();
    for (int i = 0; i < uses; i++) { /* what the call wants stays */
        if (i == 0 || use[i].call != use[i - 1].call)
            for (int j = i; j < uses && use[j].call == use[i].call; j++)
                for (int s = 0; s < held; s++)
                    if (holds[s] == use[j].key) wanted_by[s] = use[i].call;
        int at = 0, furthest = -1;
        while (at < held && holds[at] != use[i].key) at++;
        if (at < held) found++;
        if (at == held && held == slots) {
            for (int s = 0; s < held; s++)
                if (wanted_by[s] != use[i].call && (furthest < 0 || next[s] > next[furthest])) furthest = s;
            at = furthest;
        } else if (at == held) {
            held++;
        }
        holds[at] = use[i].key;
        next[at] = use[i].next;
        wanted_by[at] = use[i].call;
    }
    return (double)found / uses;
}

static kakeya_error error;

static kakeya_engine *open_at(const char *model, size_t limit) {
    kakeya_engine_options options;
    kakeya_engine *engine = NULL;
    KAKEYA_INIT(&options);
    options.model = model;
    options.backend = "cpu";
    options.drafter = options.f_theta = "none";
    options.threads = 2;
    options.weights_limit_bytes = limit;
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    return engine;
}

static void answer(kakeya_engine *engine, const char *prompt) {
    kakeya_session_options options;
    kakeya_session *session = NULL;
    kakeya_generate_options generate;
    int32_t *ids = NULL;
    size_t n = 0;
    KAKEYA_INIT(&options);
    options.context_tokens = ANSWER + 64;
    KAKEYA_INIT(&generate);
    generate.mode = KAKEYA_MODE_AR;
    generate.max_tokens = ANSWER;
    generate.ignore_stop_tokens = true;
    assert_ok(
        kakeya_tokenize(kakeya_engine_tokenizer(engine), prompt, strlen(prompt), KAKEYA_TEXT_PROMPT, &ids, &n, &error));
    assert_ok(kakeya_session_open(engine, &options, &session, &error));
    assert_ok(kakeya_session_sync(session, ids, n, NULL, NULL, NULL, &error));
    assert_ok(kakeya_session_generate(session, &generate, NULL, &error));
    kakeya_session_close(session);
    kakeya_free(ids);
}

static void test_against_the_best(void **state) {
    (void)state;
    static const char *const prompts[] = {"def quicksort(items):", "int main(int argc, char **argv) {", "import os"};
    const char *path = scratch_path("demo.gguf");
    char model[512];
    snprintf(model, sizeof model, "%s", path);
    convert_report report;
    const convert_options to = {.to = CONVERT_Q4_0, .threads = 2};
    assert_ok(convert_model(KAKEYA_MODELS "/demo", model, &to, &report, &error));
    kakeya_engine *engine = open_at(model, (size_t)1 << 30);
    const kakeya_weights all = kakeya_engine_weights(engine);
    kakeya_engine_close(engine);
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        engine = open_at(model, all.resident + all.experts / 2 * all.slot_bytes);
        uses = calls = 0;
        answer(engine, prompts[i]);
        const kakeya_weights weights = kakeya_engine_weights(engine);
        kakeya_engine_close(engine);
        assert_int_equal(weights.slots, all.experts / 2);
        assert_true(uses < MOST_USES && (uint64_t)uses == weights.wanted);
        const double found = (double)weights.found / (double)weights.wanted, best = best_hit_rate((int)weights.slots);
        print_message("%-36s hit rate %.3f, Belady's %.3f, share %.3f\n", prompts[i], found, best, found / best);
        assert_true(found <= best && found >= 0.8 * best);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_against_the_best)};
    return cmocka_run_group_tests_name("eviction", tests, scratch_setup, scratch_teardown);
}
