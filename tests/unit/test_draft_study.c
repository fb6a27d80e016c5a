/* Recorded texts: a replay gives the recorded text in every mode and as many forwards as the mode needs, a recording
 * survives its file, and damaged files are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "measure/draft_study.h"

enum { PROMPT = 20, TOKENS = 60, DRAFTS = 5 };

/* A text that repeats itself; its drafts hold for `right` tokens. */
static void fill(draft_traces *traces, const char *workload, int right) {
    draft_trace *t = draft_traces_add(traces);
    assert_non_null(t);
    assert_int_equal(draft_trace_allocate(t, TOKENS, PROMPT, DRAFTS, NULL), KAKEYA_OK);
    snprintf(t->name, sizeof t->name, "text");
    snprintf(t->workload, sizeof t->workload, "%s", workload);
    snprintf(t->policy, sizeof t->policy, "native");
    for (int i = 0; i < TOKENS; i++) t->tokens[i] = 10 + i * i % 97;
    for (int n = PROMPT + 1; n <= TOKENS; n++) {
        for (int k = 1; k <= DRAFTS; k++) {
            for (int i = 0; i < k; i++) {
                bool known = i < right && n + i < TOKENS;
                draft_trace_drafts(t, n, k)[i] = known ? t->tokens[n + i] : 5;
            }
        }
    }
    for (int rows = 1; rows <= BACKEND_MAX_DECODE_ROWS; rows++) {
        t->verify[rows] = (trace_cost){.seconds = {1 + 0.1f * (float)rows, 1.05f + 0.1f * (float)rows}, .n = 2};
    }
    for (int k = 1; k <= DRAFTS; k++) t->draft[k] = (trace_cost){.seconds = {0.25f}, .n = 1};
}

static draft_replay_result replay(const draft_traces *traces, kakeya_mode mode, int length,
                                  const draft_policy *policy) {
    draft_replay_result result;
    kakeya_error error = {0};
    kakeya_status status = draft_replay(traces, false, NULL, NULL, mode, length, policy, &result, &error);
    if (status) fail_msg("mode %d, length %d: %s", (int)mode, length, error.message);
    return result;
}

static void test_replay_gives_the_recorded_text(void **state) {
    (void)state;
    for (int right = 0; right <= DRAFTS; right++) {
        draft_traces traces = {0};
        fill(&traces, "code", right);
        const int64_t generated = TOKENS - PROMPT - 1;
        draft_replay_result ar = replay(&traces, KAKEYA_MODE_AR, 0, NULL);
        assert_int_equal(ar.tokens, generated);
        assert_int_equal(ar.forwards, generated);
        for (int length = 1; length <= DRAFTS; length++) {
            draft_replay_result fixed = replay(&traces, KAKEYA_MODE_SPECULATIVE, length, NULL);
            int per_block = (right < length ? right : length) + 1;
            assert_int_equal(fixed.tokens, generated);
            assert_int_equal(fixed.forwards, (generated + per_block - 1) / per_block);
        }
        draft_replay_result chosen = replay(&traces, KAKEYA_MODE_AUTO, BACKEND_MAX_DRAFT, NULL);
        assert_int_equal(chosen.tokens, generated);
        if (right == DRAFTS) assert_true(chosen.seconds < 0.5 * ar.seconds);
        draft_variant variants[DRAFT_MAX_VARIANTS];
        int n = draft_variants(variants);
        assert_true(n > 20 && n <= DRAFT_MAX_VARIANTS);
        for (int i = 0; i < n; i++) {
            assert_int_equal(replay(&traces, KAKEYA_MODE_AUTO, BACKEND_MAX_DRAFT, &variants[i].policy).tokens,
                             generated);
        }
        draft_traces_free(&traces);
    }
}

static void write_file(const draft_traces *traces, const char *path) {
    file_writer *writer = NULL;
    assert_int_equal(file_writer_open(path, &writer, NULL), KAKEYA_OK);
    assert_int_equal(draft_traces_write(traces, writer, NULL), KAKEYA_OK);
    assert_int_equal(file_writer_commit(writer, NULL), KAKEYA_OK);
}

static void test_recordings_survive_their_file(void **state) {
    (void)state;
    char directory[] = "/tmp/kakeya-draft-study-XXXXXX", path[64];
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/t.json", directory);
    draft_traces traces = {0}, loaded;
    fill(&traces, "code", 3);
    fill(&traces, "needle", 5);
    size_t bytes;
    char *text = NULL;
    write_file(&traces, path);
    assert_int_equal(file_read(path, 1 << 24, &text, &bytes, NULL), KAKEYA_OK);
    kakeya_error error = {0};
    assert_int_equal(draft_traces_load(path, &loaded, &error), KAKEYA_OK);
    assert_int_equal(loaded.n, 2);
    for (int i = 0; i < 2; i++) {
        const draft_trace *a = &traces.trace[i], *b = &loaded.trace[i];
        assert_string_equal(a->workload, b->workload);
        assert_memory_equal(a->tokens, b->tokens, TOKENS * sizeof *a->tokens);
        assert_memory_equal(a->drafts, b->drafts, (TOKENS - PROMPT) * DRAFTS * DRAFTS * sizeof *a->drafts);
        assert_memory_equal(a->verify, b->verify, sizeof a->verify);
    }
    draft_traces_free(&loaded);

    /* Damage: a file cut short anywhere is refused, and so are numbers that would lead outside. */
    for (size_t cut = 0; cut < bytes - 1; cut += 1 + bytes / 60) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fwrite(text, 1, cut, f);
        fclose(f);
        assert_int_not_equal(draft_traces_load(path, &loaded, &error), KAKEYA_OK);
    }
    static const char *const damage[][2] = {{"\"prompt_tokens\":20", "\"prompt_tokens\":90"},
                                            {"\"max_drafts\":5", "\"max_drafts\":6"},
                                            {"\"tokens\":[10,", "\"tokens\":[-1,"},
                                            {"draft-traces", "something-el"}};
    for (size_t i = 0; i < sizeof damage / sizeof damage[0]; i++) {
        char *at = strstr(text, damage[i][0]);
        assert_non_null(at);
        char kept[64];
        size_t n = strlen(damage[i][0]);
        memcpy(kept, at, n);
        memcpy(at, damage[i][1], n);
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fwrite(text, 1, bytes, f);
        fclose(f);
        memcpy(at, kept, n);
        assert_int_not_equal(draft_traces_load(path, &loaded, &error), KAKEYA_OK);
        assert_non_null(strstr(error.message, path));
    }
    free(text);
    draft_traces_free(&traces);
    remove(path);
    remove(directory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replay_gives_the_recorded_text),
        cmocka_unit_test(test_recordings_survive_their_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
