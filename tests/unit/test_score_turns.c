/* Scoring a later turn: rows of earlier turns see what a session's own rows see, when it answers, gets the next prompt
 * and answers again. */
#include <stdlib.h>

#include "golden.h"
#include "kakeya_study.h"
#include "session/engine.h"

enum { FIRST = 40, PART = 10, TURNS = 3, PROMPT = FIRST + 2 * (TURNS - 1) * PART, ALL = PROMPT + PART };

static kakeya_engine *open_engine(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/golden/gemma4-tiny-dense", KAKEYA_TEST_DATA);
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = path;
    options.drafter = options.f_theta = "none";
    options.precision = KAKEYA_PRECISION_F32;
    options.threads = 1;
    kakeya_engine *engine = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    return engine;
}

static kakeya_session *open_session(kakeya_engine *engine, kakeya_attention attention) {
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.attention = attention;
    options.sink = 1;
    options.window = 4;
    options.context_tokens = ALL;
    kakeya_session *session = NULL;
    REQUIRE_OK(kakeya_session_open(engine, &options, &session, error));
    return session;
}

/* A conversation in one session: answers are its own, greedy. */
static void converse(kakeya_session *session, int32_t tokens[ALL]) {
    uint64_t random = 5;
    int n = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        for (int end = n + (turn ? PART : FIRST); n < end; n++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            tokens[n] = (int32_t)(5 + (random >> 40) % 300);
        }
        REQUIRE_OK(kakeya_session_sync(session, tokens, (size_t)n, NULL, NULL, NULL, error));
        kakeya_generate_options generate;
        KAKEYA_INIT(&generate);
        generate.mode = KAKEYA_MODE_AR;
        generate.max_tokens = PART;
        generate.ignore_stop_tokens = true;
        REQUIRE_OK(kakeya_session_generate(session, &generate, NULL, error));
        size_t all;
        const int32_t *found = kakeya_session_tokens(session, &all);
        n += PART;
        assert_int_equal(all, n);
        memcpy(tokens, found, all * sizeof *tokens);
    }
}

static void score(kakeya_session *session, const int32_t *tokens, size_t prompt, size_t earlier, float *logits) {
    kakeya_score_options options;
    KAKEYA_INIT(&options);
    options.prompt_length = prompt;
    options.earlier_turns = earlier;
    options.logits = logits;
    REQUIRE_OK(kakeya_session_score(session, tokens, ALL, &options, error));
}

static int32_t likeliest(const float *row, int vocab) {
    int32_t best = 0;
    for (int i = 1; i < vocab; i++) {
        if (row[i] > row[best]) best = i;
    }
    return best;
}

static void turns(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine();
    int vocab = kakeya_engine_vocab_size(engine);
    size_t bytes = (size_t)ALL * (size_t)vocab * sizeof(float);
    float *played = malloc(bytes), *plain = malloc(bytes);
    for (int windowed = 0; windowed < 2; windowed++) {
        kakeya_session *session =
            open_session(engine, windowed ? KAKEYA_ATTENTION_SINK_WINDOW : KAKEYA_ATTENTION_NATIVE);
        int32_t tokens[ALL];
        converse(session, tokens);
        score(session, tokens, PROMPT, TURNS - 1, played);
        for (int turn = 0; turn < TURNS; turn++) {
            for (int i = 0, at = FIRST + 2 * turn * PART; i < PART; i++, at++) {
                int32_t next = likeliest(played + (size_t)(at - 1) * (size_t)vocab, vocab);
                if (next != tokens[at])
                    fail_msg("attention %d, turn %d: token %d was answered %d, scored %d", windowed, turn + 1, i,
                             tokens[at], next);
            }
        }
        /* one turn is another matter, where anything is evicted */
        score(session, tokens, PROMPT, 0, plain);
        size_t scored = (size_t)PROMPT * (size_t)vocab;
        assert_int_equal(memcmp(played + scored, plain + scored, bytes - scored * sizeof(float)) == 0, !windowed);
        kakeya_session_close(session);
    }
    free(played);
    free(plain);
    kakeya_engine_close(engine);
}

static void too_short(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine();
    kakeya_session *session = open_session(engine, KAKEYA_ATTENTION_NATIVE);
    int32_t tokens[ALL] = {0};
    kakeya_score_options options;
    KAKEYA_INIT(&options);
    kakeya_error problem = {0};
    options.prompt_length = ALL - PART;
    options.earlier_turns = PROMPT / (2 * PART);
    assert_int_equal(kakeya_session_score(session, tokens, ALL, &options, &problem), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(problem.message, "a prompt of 80 tokens is too short for 4 earlier turns of 10 and 10"));
    options.earlier_turns = SIZE_MAX;
    assert_int_equal(kakeya_session_score(session, tokens, ALL, &options, &problem), KAKEYA_INVALID_ARGUMENT);
    options.earlier_turns = 1;
    options.prompt_length = ALL;
    assert_int_equal(kakeya_session_score(session, tokens, ALL, &options, &problem), KAKEYA_INVALID_ARGUMENT);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(turns), cmocka_unit_test(too_short)};
    return cmocka_run_group_tests_name("scored turns", tests, NULL, NULL);
}
