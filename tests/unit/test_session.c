/* Sessions and the decode loop on a toy model whose drafts, failures and limits are scripted: the token stream is the
 * same for every mode, and whatever fails, the session holds a prefix, stays usable and gives its memory back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fake_engine.h"
#include "kakeya_study.h"
#include "session/session.h"
#include "sweep.h"

typedef struct variant {
    kakeya_mode mode;
    int draft_length;
} variant;

static const variant variants[] = {
    {KAKEYA_MODE_AR, 0},    {KAKEYA_MODE_SPECULATIVE, 0},  {KAKEYA_MODE_SPECULATIVE, 1}, {KAKEYA_MODE_SPECULATIVE, 3},
    {KAKEYA_MODE_AUTO, 0},  {KAKEYA_MODE_SPECULATIVE, 16}, {KAKEYA_MODE_NGRAM, 0},       {KAKEYA_MODE_NGRAM, 16},
    {KAKEYA_MODE_AUTO, 16}, {KAKEYA_MODE_AUTO, 2},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

static void test_nan_logits_are_an_error(void **state);
static void test_suppressed_token_never_appears(void **state);

/* ------------------------------------------------------------------------------------------------ losslessness */

static void same_stream_in_every_mode(kakeya_attention attention, int window, float temperature, double right,
                                      int period) {
    enum { PROMPT = 100, NEW = 120 };
    int32_t prompt[PROMPT], expected[FAKE_CONTEXT];
    size_t n_expected = 0;
    fake_prompt(prompt, PROMPT, 5, FAKE_VOCAB);
    for (size_t v = 0; v < VARIANTS; v++) {
        fake_script script = fake_script_default();
        script.draft_right = right;
        script.period = period;
        script.peak = 5;
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.f_theta = true});
        kakeya_session_options so;
        KAKEYA_INIT(&so);
        so.attention = attention;
        so.window = window;
        so.prompt_chunk_tokens = (int)(7 * v) % 50; /* chunking must not matter either */
        kakeya_session *session = fake_session(engine, &so);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = variants[v].mode;
        go.draft_length = variants[v].draft_length;
        go.max_tokens = NEW;
        go.ignore_stop_tokens = true;
        go.sampling.temperature = temperature;
        go.sampling.repetition_penalty = temperature > 0.5f ? 1.3f : 1;
        go.sampling.top_k = temperature > 1 ? 10 : 0;
        go.sampling.seed = 9;
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
        assert_memory_behind(session, 0);
        ok(kakeya_session_generate(session, &go, &stats, error));
        assert_memory_behind(session, 1);
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        if (v == 0) {
            memcpy(expected, tokens, n * sizeof *tokens);
            n_expected = n;
            assert_int_equal(stats.verifier_forwards, NEW - 1);
        } else {
            assert_timeline(session, expected, n_expected, "another mode");
            if (variants[v].mode == KAKEYA_MODE_SPECULATIVE && right > 0.9 && window > 16 && temperature == 0)
                assert_true(stats.verifier_forwards <= (uint64_t)(NEW / 2 + 1));
        }
        assert_int_equal(stats.completion_tokens, NEW);
        assert_int_equal(stats.finish, KAKEYA_FINISH_LENGTH);
        assert_true(stats.accepted_tokens <= stats.drafted_tokens);
        /* every forward yields one token beyond its accepted drafts; only the last one may end on an accepted draft */
        uint64_t yielded = 1 + stats.verifier_forwards + stats.accepted_tokens;
        assert_true(yielded == stats.completion_tokens || yielded == stats.completion_tokens + 1);
        close_all(session, engine, &script);
    }
}

static void test_lossless(void **state) {
    (void)state;
    const float temperatures[] = {0, 0.4f, 1, 1.5f};
    const double rights[] = {0, 0.5, 0.9, 1};
    for (size_t t = 0; t < 4; t++)
        for (size_t r = 0; r < 4; r++) {
            same_stream_in_every_mode(KAKEYA_ATTENTION_NATIVE, 64, temperatures[t], rights[r], 0);
            same_stream_in_every_mode(KAKEYA_ATTENTION_RESTORED, 5, temperatures[t], rights[r], 0);
            same_stream_in_every_mode(KAKEYA_ATTENTION_SINK_WINDOW, 1, temperatures[t], rights[r], 0);
            same_stream_in_every_mode(KAKEYA_ATTENTION_NATIVE, 64, temperatures[t], rights[r], 11);
        }
}

/* A backend may find the greedy choice itself; nothing else changes. */
static void test_backend_that_finds_the_largest_logit(void **state) {
    fake_backend.finds_argmax = true;
    same_stream_in_every_mode(KAKEYA_ATTENTION_NATIVE, 64, 0, 0.9, 0);
    same_stream_in_every_mode(KAKEYA_ATTENTION_RESTORED, 5, 1, 0.9, 0); /* with a penalty the logits are needed */
    test_suppressed_token_never_appears(state);
    test_nan_logits_are_an_error(state);
    fake_backend.finds_argmax = false;
}

/* Tokens of one turn at temperature 1. */
static size_t sampled_stream(kakeya_mode mode, int top_k, int32_t out[FAKE_CONTEXT], int *rows_read) {
    enum { PROMPT = 40, NEW = 100 };
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 5, FAKE_VOCAB);
    fake_script script = fake_script_default();
    script.draft_right = 0.9;
    script.peak = 3;
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL);
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.mode = mode;
    go.max_tokens = NEW;
    go.ignore_stop_tokens = true;
    go.sampling.temperature = 1;
    go.sampling.top_k = top_k;
    go.sampling.seed = 3;
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, &go, &stats, error));
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    memcpy(out, tokens, n * sizeof *tokens);
    *rows_read = engine->model->rows_read;
    close_all(session, engine, &script);
    return n;
}

/* A backend may list the leading logits only: the tokens are those of whole rows, in every mode, and whole rows are
 * read where the leaders do not decide. */
static void test_backend_that_finds_leading_logits(void **state) {
    int32_t expected[FAKE_CONTEXT], found[FAKE_CONTEXT];
    static const kakeya_mode modes[] = {KAKEYA_MODE_AR, KAKEYA_MODE_SPECULATIVE, KAKEYA_MODE_AUTO};
    for (int top_k = 0; top_k <= 3; top_k += 3) {
        int rows_read;
        size_t n = sampled_stream(KAKEYA_MODE_AR, top_k, expected, &rows_read);
        assert_int_equal(rows_read, 0);
        for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
            fake_backend.finds_leaders = true;
            size_t n_found = sampled_stream(modes[m], top_k, found, &rows_read);
            fake_backend.finds_leaders = false;
            assert_int_equal(n_found, n);
            assert_memory_equal(found, expected, n * sizeof *found);
            assert_true(top_k ? rows_read == 0 : rows_read > 0 && rows_read < 100);
        }
    }
    fake_backend.finds_leaders = true;
    same_stream_in_every_mode(KAKEYA_ATTENTION_NATIVE, 64, 0.4f, 0.9, 0);
    same_stream_in_every_mode(KAKEYA_ATTENTION_RESTORED, 5, 1, 0.9, 0); /* with a penalty the logits are needed */
    test_suppressed_token_never_appears(state);
    test_nan_logits_are_an_error(state);
    fake_backend.finds_leaders = false;
}

/* generate(a) then generate(b) continues as generate(a + b) would have, whatever cut the block. */
static void test_generation_can_be_cut_anywhere(void **state) {
    (void)state;
    enum { PROMPT = 20, NEW = 60 };
    int32_t prompt[PROMPT], expected[PROMPT + NEW];
    fake_prompt(prompt, PROMPT, 8, FAKE_VOCAB);
    for (int cut = 0; cut < NEW; cut += 3) {
        fake_script script = fake_script_default();
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
        kakeya_session *session = fake_session(engine, NULL);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = KAKEYA_MODE_SPECULATIVE;
        go.ignore_stop_tokens = true;
        ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
        if (cut) {
            go.max_tokens = cut;
            ok(kakeya_session_generate(session, &go, NULL, error));
            assert_memory_behind(session, 1);
        }
        go.max_tokens = NEW - cut;
        go.mode = cut % 2 ? KAKEYA_MODE_AR : KAKEYA_MODE_AUTO;
        ok(kakeya_session_generate(session, &go, NULL, error));
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        if (cut == 0) memcpy(expected, tokens, sizeof expected);
        assert_timeline(session, expected, PROMPT + NEW, "after a cut");
        close_all(session, engine, &script);
    }
}

static void test_reference_modes_agree(void **state) {
    (void)state;
    enum { PROMPT = 70, NEW = 40 };
    int32_t prompt[PROMPT], expected[PROMPT + NEW];
    fake_prompt(prompt, PROMPT, 15, FAKE_VOCAB);
    for (int reference = SESSION_FUSED; reference <= SESSION_UNFUSED; reference++) {
        fake_script script = fake_script_default();
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.f_theta = true});
        kakeya_session_options so;
        KAKEYA_INIT(&so);
        so.attention = KAKEYA_ATTENTION_RESTORED;
        kakeya_session *session = fake_session(engine, &so);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = reference == SESSION_REFORWARD ? KAKEYA_MODE_AR : KAKEYA_MODE_SPECULATIVE;
        go.ignore_stop_tokens = true;
        go.max_tokens = NEW / 2;
        session_trace trace = {.reference = (session_reference)reference};
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        ok(kakeya_session_sync(session, prompt, PROMPT - 10, NULL, NULL, NULL, error));
        ok(session_generate(session, &go, &trace, &stats, error));
        /* a second turn: its prompt rows stand behind decode rows */
        int32_t turn[PROMPT + NEW];
        size_t n;
        memcpy(turn, kakeya_session_tokens(session, &n), (PROMPT - 10 + NEW / 2) * sizeof *turn);
        memcpy(turn + n, prompt + PROMPT - 10, 10 * sizeof *turn);
        size_t reused;
        ok(kakeya_session_sync(session, turn, n + 10, &reused, NULL, NULL, error));
        assert_int_equal(reused, n - 1);
        ok(session_generate(session, &go, &trace, &stats, error));
        assert_memory_behind(session, 1);
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        if (reference == SESSION_FUSED) memcpy(expected, tokens, sizeof expected);
        assert_timeline(session, expected, PROMPT + NEW, "reference mode");
        close_all(session, engine, &script);
    }
}

/* --------------------------------------------------------------------------------------------- stopping */

typedef struct capture {
    int32_t tokens[FAKE_CONTEXT];
    size_t n, stop_after; /* stop_after: the callback returns false at this token; 0: never */
    char text[8192];
    size_t bytes, position;
    bool finished;
    kakeya_event finish;
    uint64_t forwards; /* at the last event */
} capture;

static bool capture_token(void *user, const kakeya_event *event) {
    capture *c = user;
    assert_int_equal(event->size, sizeof *event);
    assert_false(c->finished); /* the last event is the last */
    assert_true(event->stats->verifier_forwards >= c->forwards && event->stats->verifier_forwards <= c->n);
    c->forwards = event->stats->verifier_forwards;
    if (event->type == KAKEYA_EVENT_FINISH) {
        c->finished = true;
        c->finish = *event;
        return true;
    }
    assert_int_equal(event->type, KAKEYA_EVENT_TOKEN);
    if (c->n) assert_int_equal(event->position, c->position + 1);
    c->position = event->position;
    c->tokens[c->n++] = event->token;
    assert_true(c->bytes + event->text_bytes < sizeof c->text);
    if (event->text_bytes) memcpy(c->text + c->bytes, event->text, event->text_bytes);
    c->bytes += event->text_bytes;
    return c->n != c->stop_after;
}

static void test_stop_token_and_cancel(void **state) {
    (void)state;
    enum { PROMPT = 30 };
    int32_t prompt[PROMPT], expected[FAKE_CONTEXT];
    size_t n_expected = 0;
    fake_prompt(prompt, PROMPT, 3, FAKE_VOCAB);
    for (size_t v = 0; v < VARIANTS; v++) {
        fake_script script = fake_script_default();
        script.draft_right = 0.9;
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
        kakeya_session *session = fake_session(engine, NULL);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = variants[v].mode;
        go.draft_length = variants[v].draft_length;
        capture c = {0};
        go.on_event = capture_token;
        go.user = &c;
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session, &go, &stats, error));
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        if (v == 0) memcpy(expected, tokens, (n_expected = n) * sizeof *tokens);
        assert_timeline(session, expected, n_expected, "until the stop token");
        assert_int_equal(stats.finish, KAKEYA_FINISH_STOP);
        assert_int_equal(tokens[n - 1], FAKE_STOP); /* in the timeline, but not passed on */
        assert_true(c.finished);
        assert_int_equal(c.forwards, stats.verifier_forwards); /* all are known at the end */
        assert_true(c.forwards > 0);
        assert_int_equal(c.finish.finish, KAKEYA_FINISH_STOP);
        assert_int_equal(c.finish.stop_token, FAKE_STOP);
        assert_int_equal(c.finish.stop_string, -1);
        assert_null(c.finish.error);
        assert_int_equal(c.position, n - 2);
        assert_int_equal(c.n, stats.completion_tokens - 1);
        assert_memory_equal(c.tokens, tokens + PROMPT, c.n * sizeof *tokens);
        assert_memory_behind(session, 1);

        for (size_t stop_after = 1; stop_after <= 9; stop_after += 2) {
            c = (capture){.stop_after = stop_after};
            go.ignore_stop_tokens = true;
            ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
            ok(kakeya_session_generate(session, &go, &stats, error));
            assert_int_equal(stats.finish, KAKEYA_FINISH_CANCELLED);
            assert_int_equal(stats.completion_tokens, stop_after);
            assert_true(c.finished);
            assert_int_equal(c.finish.finish, KAKEYA_FINISH_CANCELLED);
            assert_int_equal(c.finish.stop_token, -1);
            assert_memory_equal(c.tokens, kakeya_session_tokens(session, &n) + PROMPT, stop_after * sizeof *tokens);
            assert_int_equal(n, PROMPT + stop_after);
            assert_memory_behind(session, 1);
        }
        close_all(session, engine, &script);
    }
}

static void test_context_end(void **state) {
    (void)state;
    for (size_t v = 0; v < VARIANTS; v++) {
        fake_script script = fake_script_default();
        script.draft_right = 1;
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
        kakeya_session_options so;
        KAKEYA_INIT(&so);
        so.context_tokens = 50;
        kakeya_session *session = fake_session(engine, &so);
        int32_t prompt[51];
        fake_prompt(prompt, 51, 4, FAKE_VOCAB);
        kakeya_error e = {0};
        assert_int_equal(kakeya_session_sync(session, prompt, 51, NULL, NULL, NULL, &e), KAKEYA_CONTEXT_FULL);
        assert_non_null(strstr(e.message, "51"));
        assert_non_null(strstr(e.message, "50"));
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = variants[v].mode;
        go.draft_length = variants[v].draft_length;
        go.ignore_stop_tokens = true;
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        for (size_t length = 33; length < 50; length++) {
            ok(kakeya_session_sync(session, prompt, length, NULL, NULL, NULL, error));
            ok(kakeya_session_generate(session, &go, &stats, error));
            assert_int_equal(stats.finish, KAKEYA_FINISH_LENGTH);
            assert_int_equal(stats.completion_tokens, 50 - length);
            assert_int_equal(kakeya_session_generate(session, &go, &stats, &e), KAKEYA_CONTEXT_FULL);
        }
        close_all(session, engine, &script);
    }
}

/* Text: callbacks together give the text of the tokens; a stop string cuts it in the same place in every mode. */
static void test_stop_strings(void **state) {
    (void)state;
    enum { PROMPT = 10, NEW = 80 };
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 6, 8192);
    for (int round = 0; round < 12; round += sweep_short() ? 4 : 1) {
        char whole[8192] = "", stop[24] = "";
        size_t whole_bytes = 0, stopped_n = 0;
        const char *cut = NULL;
        for (size_t v = 0; v < VARIANTS; v++) {
            fake_script script = fake_script_default();
            script.draft_right = 0.9;
            script.model_seed = (uint64_t)round;
            kakeya_engine *engine = fake_engine(
                &script, (fake_engine_options){.vocab = 8192, .tokenizer = KAKEYA_MODELS "/demo/tokenizer.json"});
            kakeya_session *session = fake_session(engine, NULL);
            kakeya_generate_options go;
            KAKEYA_INIT(&go);
            go.mode = variants[v].mode;
            go.draft_length = variants[v].draft_length;
            go.max_tokens = NEW;
            go.ignore_stop_tokens = true;
            capture c = {0};
            go.on_event = capture_token;
            go.user = &c;
            kakeya_stats stats;
            KAKEYA_INIT(&stats);
            if (v == 0) { /* the whole text, and a stop string somewhere in it */
                ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
                ok(kakeya_session_generate(session, &go, &stats, error));
                assert_int_equal(c.n, NEW);
                size_t n;
                const int32_t *tokens = kakeya_session_tokens(session, &n);
                char *text;
                ok(kakeya_detokenize(kakeya_engine_tokenizer(engine), tokens + PROMPT, NEW, false, &text, &whole_bytes,
                                     error));
                assert_int_equal(c.bytes, whole_bytes);
                assert_memory_equal(c.text, text, whole_bytes);
                memcpy(whole, text, whole_bytes + 1);
                kakeya_free(text);
                size_t from = whole_bytes * (size_t)round / 14, length = 1 + (size_t)round;
                while (from && ((unsigned char)whole[from] & 0xC0) == 0x80) from--;
                while (((unsigned char)whole[from + length] & 0xC0) == 0x80) length++;
                memcpy(stop, whole + from, length);
                cut = strstr(whole, stop);
                assert_non_null(cut);
            }
            const char *const stops[] = {"never in the text \xC3\xA9", stop};
            go.stop_strings = stops;
            go.n_stop_strings = 2;
            c = (capture){0};
            ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
            ok(kakeya_session_generate(session, &go, &stats, error));
            assert_int_equal(stats.finish, KAKEYA_FINISH_STOP);
            assert_true(c.finished);
            assert_int_equal(c.finish.stop_string, 1);
            assert_int_equal(c.finish.stop_token, -1);
            if (c.bytes != (size_t)(cut - whole) || memcmp(c.text, whole, c.bytes) != 0)
                fail_msg("round %d variant %zu: stopped after %zu bytes, '%s' stands at %zu", round, v, c.bytes, stop,
                         (size_t)(cut - whole));
            assert_memory_behind(session, 1);
            if (v == 0) stopped_n = session->timeline.n;
            assert_int_equal(session->timeline.n, stopped_n);
            assert_int_equal(c.n, stats.completion_tokens);
            close_all(session, engine, &script);
        }
    }
}

/* ------------------------------------------------------------------------------------------ sync, fork, snapshot */

/* However the timeline came about, it continues like a fresh one. */
static void test_sync_reuses_and_rebuilds(void **state) {
    (void)state;
    enum { LONG = 200 };
    int32_t a[LONG], b[LONG];
    fake_prompt(a, LONG, 1, FAKE_VOCAB);
    for (int reach = -1; reach <= 40; reach += 41) { /* any truncation; only the last 40 positions */
        for (size_t common = 0; common <= 150; common += 30) {
            fake_script script = fake_script_default();
            script.truncate_reach = reach;
            kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
            kakeya_session *session = fake_session(engine, NULL), *fresh = fake_session(engine, NULL);
            fake_prompt(b, LONG, 2, FAKE_VOCAB);
            memcpy(b, a, common * sizeof *a);
            b[common] = (a[common] + 1) % FAKE_VOCAB;
            kakeya_generate_options go;
            KAKEYA_INIT(&go);
            go.max_tokens = 30;
            go.ignore_stop_tokens = true;
            go.mode = KAKEYA_MODE_AUTO;
            size_t reused;
            ok(kakeya_session_sync(session, a, 150, &reused, NULL, NULL, error));
            assert_int_equal(reused, 0);
            ok(kakeya_session_sync(session, a, 150, &reused, NULL, NULL, error));
            assert_int_equal(reused, 150);
            ok(kakeya_session_generate(session, &go, NULL, error));
            ok(kakeya_session_sync(session, b, 170, &reused, NULL, NULL, error));
            size_t held = 179; /* 150 + 30 tokens, the last one not in memory */
            assert_int_equal(reused, reach < 0 || common + (size_t)reach >= held ? common : 0);
            ok(kakeya_session_sync(fresh, b, 170, NULL, NULL, NULL, error));
            ok(kakeya_session_generate(session, &go, NULL, error));
            ok(kakeya_session_generate(fresh, &go, NULL, error));
            assert_timeline(session, fresh->timeline.tokens, fresh->timeline.n, "after a sync");
            /* a prefix of what there is: its last row has to be computed again */
            ok(kakeya_session_sync(session, b, 165, &reused, NULL, NULL, error));
            assert_int_equal(reused, 164);
            ok(kakeya_session_sync(session, session->timeline.tokens, 100, NULL, NULL, NULL, error));
            assert_timeline(session, b, 100, "own array");
            ok(kakeya_session_sync(session, NULL, 0, &reused, NULL, NULL, error));
            assert_int_equal(session->timeline.n, 0);
            kakeya_session_close(fresh);
            close_all(session, engine, &script);
        }
    }
}

static bool cancel_at(void *user, const char *what, uint64_t done, uint64_t total) {
    assert_string_equal(what, "prompt");
    assert_true(done <= total);
    return done < *(uint64_t *)user;
}

static void test_prompt_cancel_keeps_prefix(void **state) {
    (void)state;
    enum { PROMPT = 150 };
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 12, FAKE_VOCAB);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL), *fresh = fake_session(engine, NULL);
    uint64_t limit = 60;
    kakeya_error error_text = {0};
    assert_int_equal(kakeya_session_sync(session, prompt, PROMPT, NULL, cancel_at, &limit, &error_text),
                     KAKEYA_CANCELLED);
    assert_timeline(session, prompt, 2 * FAKE_CHUNK, "cancelled prompt");
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = 5;
    go.ignore_stop_tokens = true;
    ok(kakeya_session_generate(session, &go, NULL, error)); /* continues the prefix it holds */
    ok(kakeya_session_sync(fresh, prompt, 2 * FAKE_CHUNK, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(fresh, &go, NULL, error));
    assert_timeline(session, fresh->timeline.tokens, fresh->timeline.n, "after a cancelled prompt");
    size_t reused;
    ok(kakeya_session_sync(session, prompt, PROMPT, &reused, NULL, NULL, error));
    assert_int_equal(reused, 2 * FAKE_CHUNK);
    kakeya_session_close(fresh);
    close_all(session, engine, &script);
}

static void test_fork_and_snapshot(void **state) {
    (void)state;
    enum { PROMPT = 60 };
    int32_t prompt[PROMPT];
    fake_prompt(prompt, PROMPT, 12, FAKE_VOCAB);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.f_theta = true});
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.attention = KAKEYA_ATTENTION_SINK_WINDOW;
    kakeya_session *session = fake_session(engine, &so), *other = fake_session(engine, &so), *fork = NULL;
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = 25;
    go.ignore_stop_tokens = true;
    ok(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
    for (int turn = 0; turn < 2; turn++) { /* with the logits of a prompt, then with a pending token */
        void *data = NULL, *again = NULL;
        size_t bytes, bytes_again;
        ok(kakeya_session_fork(session, &fork, error));
        ok(session_to_memory(session, &data, &bytes, error));
        ok(session_from_memory(other, data, bytes, error));
        ok(session_to_memory(other, &again, &bytes_again, error));
        assert_int_equal(bytes, bytes_again);
        assert_memory_equal(data, again, bytes);
        ok(kakeya_session_generate(session, &go, NULL, error));
        go.mode = KAKEYA_MODE_SPECULATIVE;
        ok(kakeya_session_generate(fork, &go, NULL, error));
        go.mode = KAKEYA_MODE_NGRAM;
        ok(kakeya_session_generate(other, &go, NULL, error));
        assert_timeline(fork, session->timeline.tokens, session->timeline.n, "fork");
        assert_timeline(other, session->timeline.tokens, session->timeline.n, "restored snapshot");

        /* any changed byte and any cut is noticed, and the session stays as it was */
        size_t n_before = other->timeline.n;
        for (size_t at = 0; at < bytes; at += 1 + bytes / 97) {
            unsigned char *byte = (unsigned char *)data + at;
            *byte ^= 0x40;
            kakeya_error error = {0};
            assert_int_not_equal(session_from_memory(other, data, bytes, &error), KAKEYA_OK);
            assert_non_null(strstr(error.message, "session data"));
            *byte ^= 0x40;
            assert_int_not_equal(session_from_memory(other, data, at, &error), KAKEYA_OK);
        }
        assert_int_not_equal(session_from_memory(other, NULL, 0, NULL), KAKEYA_OK);
        assert_int_equal(other->timeline.n, n_before);
        ok(kakeya_session_generate(other, &go, NULL, error));
        kakeya_session_close(fork);
        kakeya_free(data);
        kakeya_free(again);
    }

    /* another policy, another model */
    void *data;
    size_t bytes;
    ok(session_to_memory(session, &data, &bytes, error));
    so.window = 65;
    kakeya_session *foreign = fake_session(engine, &so);
    kakeya_error error_text = {0};
    assert_int_equal(session_from_memory(foreign, data, bytes, &error_text), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error_text.message, "window is 64, the session's is 65"));
    kakeya_session_close(foreign);
    fake_script script2 = fake_script_default();
    kakeya_engine *engine2 = fake_engine(&script2, (fake_engine_options){.vocab = 65});
    so.window = 64;
    foreign = fake_session(engine2, &so);
    assert_int_equal(session_from_memory(foreign, data, bytes, &error_text), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error_text.message, "fingerprint"));
    close_all(foreign, engine2, &script2);
    kakeya_free(data);
    kakeya_session_close(other);
    close_all(session, engine, &script);
}

static void test_nan_logits_are_an_error(void **state) {
    (void)state;
    int32_t prompt[10];
    fake_prompt(prompt, 10, 7, FAKE_VOCAB);
    for (int nan_at = 9; nan_at < 20; nan_at++) {
        fake_script script = fake_script_default();
        script.nan_at = nan_at;
        script.draft_right = 1;
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
        kakeya_session *session = fake_session(engine, NULL);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = KAKEYA_MODE_SPECULATIVE;
        go.max_tokens = 30;
        go.ignore_stop_tokens = true;
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        kakeya_error error_text = {0};
        ok(kakeya_session_sync(session, prompt, 10, NULL, NULL, NULL, error));
        assert_int_equal(kakeya_session_generate(session, &go, &stats, &error_text), KAKEYA_BACKEND);
        assert_int_equal(stats.completion_tokens, (size_t)(nan_at + 1 - 10));
        assert_int_equal(session->timeline.n, (size_t)nan_at + 1);
        script.nan_at = -1; /* a disturbed computation, not a broken session */
        ok(kakeya_session_generate(session, &go, &stats, error));
        close_all(session, engine, &script);
    }
}

/* --------------------------------------------------------------------------------------------- scoring, suppression */

static kakeya_status score(kakeya_session *session, const int32_t *tokens, size_t n, size_t prompt, float *nll,
                           float *logits, float *hidden, kakeya_error *error) {
    kakeya_score_options options;
    KAKEYA_INIT(&options);
    options.prompt_length = prompt;
    options.nll = nll;
    options.logits = logits;
    options.hidden_states = hidden;
    return kakeya_session_score(session, tokens, n, &options, error);
}

static void test_score(void **state) {
    (void)state;
    enum { N = 90, LAYERS = 3, HIDDEN = 3 };
    int32_t tokens[N];
    fake_prompt(tokens, N, 31, FAKE_VOCAB);
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.f_theta = true});
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.attention = KAKEYA_ATTENTION_SINK_WINDOW;
    so.window = 6;
    kakeya_session *session = fake_session(engine, &so);
    static float nll[N], logits[N * FAKE_VOCAB], hidden[LAYERS * N * HIDDEN], row[FAKE_VOCAB], nll_only[N];
    for (size_t prompt = 0; prompt <= N; prompt += 45) {
        ok(score(session, tokens, N, prompt, nll, logits, hidden, error));
        ok(score(session, tokens, N, prompt, nll_only, NULL, NULL, error));
        assert_memory_equal(nll, nll_only, (N - 1) * sizeof *nll);
        backend_cache *cache;
        size_t boundary = prompt ? prompt : N;
        ok(decode_timeline_reserve(&session->timeline, N, error));
        memset(session->timeline.row_kind, SEGMENT_DECODE, N);
        for (size_t t = 0; t + 1 < N; t++) { /* against one row at a time */
            fake_cache_create(engine->model, &session->cache_options, &cache, NULL);
            for (size_t i = 0; i <= t; i++) {
                backend_segment segment = {.cache = cache,
                                           .tokens = tokens + i,
                                           .n = 1,
                                           .logits = row,
                                           .kind = i < boundary ? SEGMENT_PROMPT : SEGMENT_DECODE};
                ok(fake_forward(engine->model, &segment, 1, error));
                ok(fake_commit(cache, 1, error));
            }
            assert_memory_equal(row, logits + t * FAKE_VOCAB, sizeof row);
            fake_cache_destroy(cache);
        }
        for (int l = 0; l < LAYERS; l++)
            for (int t = 0; t < N; t++)
                for (int h = 0; h < HIDDEN; h++)
                    assert_true(hidden[(l * N + t) * HIDDEN + h] == (float)(l * 1000000 + t * 100 + h));
    }
    kakeya_error e = {0};
    assert_int_equal(score(session, tokens, 5, 6, nll, NULL, NULL, &e), KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(score(session, tokens, 0, 0, nll, NULL, NULL, &e), KAKEYA_INVALID_ARGUMENT);
    script.nan_at = 20;
    assert_int_equal(score(session, tokens, N, 0, nll, NULL, NULL, &e), KAKEYA_BACKEND);
    close_all(session, engine, &script);
}

static void test_suppressed_token_never_appears(void **state) {
    (void)state;
    int32_t prompt[10];
    fake_prompt(prompt, 10, 55, FAKE_VOCAB);
    for (size_t v = 0; v < VARIANTS; v++) {
        fake_script script = fake_script_default();
        script.draft_right = 1;
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){.suppress = 20});
        kakeya_session *session = fake_session(engine, NULL);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = variants[v].mode;
        go.draft_length = variants[v].draft_length;
        go.ignore_stop_tokens = true;
        ok(kakeya_session_sync(session, prompt, 10, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session, &go, NULL, error));
        for (size_t i = 10; i < session->timeline.n; i++) assert_int_not_equal(session->timeline.tokens[i], 20);
        close_all(session, engine, &script);
    }
}

static void test_without_drafter_context(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    kakeya_session *with = fake_session(engine, &so);
    so.without_drafter = true;
    kakeya_session *session = fake_session(engine, &so);
    ok(kakeya_session_sync(with, NULL, 0, NULL, NULL, NULL, error));
    ok(kakeya_session_sync(session, NULL, 0, NULL, NULL, NULL, error));
    assert_int_equal(kakeya_session_kv_bytes(with).draft, 4096);
    assert_int_equal(kakeya_session_kv_bytes(session).draft, 64);
    kakeya_kv_bytes bytes = kakeya_session_kv_bytes(session);
    assert_int_equal(bytes.total, bytes.full + bytes.sliding + bytes.latent + bytes.draft);
    int32_t prompt[10];
    fake_prompt(prompt, 10, 7, FAKE_VOCAB);
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = 20;
    ok(kakeya_session_sync(session, prompt, 10, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, &go, NULL, error)); /* auto decodes without it */
    assert_int_equal(script.calls[FAKE_DRAFT], 0);
    go.mode = KAKEYA_MODE_SPECULATIVE;
    assert_int_equal(kakeya_session_generate(session, &go, NULL, NULL), KAKEYA_INVALID_ARGUMENT);
    kakeya_session_close(with);
    close_all(session, engine, &script);
}

/* What is reachable can be truncated to, at no cost, and goes on as if the rest had never been; nothing else can. */
static void test_truncate(void **state) {
    (void)state;
    enum { PROMPT = 50, NEW = 20 };
    for (int i = 0; i < 3; i++) {
        int reach = i == 1 ? 30 : -1;
        fake_backend.kinds_differ = i == 2; /* as a backend's with kernels of their own for prompts */
        fake_script script = fake_script_default();
        script.truncate_reach = reach;
        kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
        int32_t tokens[PROMPT + NEW], expected[PROMPT + NEW];
        for (size_t n = 0; n <= PROMPT + NEW; n++) {
            kakeya_session *session = fake_session(engine, NULL);
            fake_prompt(tokens, PROMPT, 5, FAKE_VOCAB);
            ok(kakeya_session_sync(session, tokens, PROMPT, NULL, NULL, NULL, error));
            kakeya_generate_options go;
            KAKEYA_INIT(&go);
            go.max_tokens = NEW;
            go.ignore_stop_tokens = true;
            ok(kakeya_session_generate(session, &go, NULL, error));
            size_t held;
            memcpy(expected, kakeya_session_tokens(session, &held), sizeof expected);
            memcpy(tokens, expected, sizeof tokens);
            if (n < PROMPT + NEW) tokens[n] = (tokens[n] + 1) % FAKE_VOCAB;
            size_t length = PROMPT + NEW - 1, oldest = reach < 0 ? 0 : length - (size_t)reach;
            size_t common = n < length ? n : length;
            assert_int_equal(kakeya_session_reachable(session, tokens, held), common >= oldest ? common : 0);
            assert_int_equal(kakeya_session_reachable(session, tokens, 0), 0);
            kakeya_status status = kakeya_session_truncate(session, n, NULL);
            bool possible = n == 0 || n == held || (n <= length && n >= oldest);
            assert_int_equal(status, possible ? KAKEYA_OK : KAKEYA_INVALID_ARGUMENT);
            assert_timeline(session, expected, possible ? n : held, "truncated");
            if (possible && n > PROMPT && n < held) {
                go.max_tokens = (int)(held - n);
                ok(kakeya_session_generate(session, &go, NULL, error));
                assert_timeline(session, expected, held, "continued");
            }
            kakeya_session_close(session);
        }
        close_all(NULL, engine, &script);
    }
    fake_backend.kinds_differ = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_lossless),
        cmocka_unit_test(test_backend_that_finds_the_largest_logit),
        cmocka_unit_test(test_backend_that_finds_leading_logits),
        cmocka_unit_test(test_generation_can_be_cut_anywhere),
        cmocka_unit_test(test_reference_modes_agree),
        cmocka_unit_test(test_stop_token_and_cancel),
        cmocka_unit_test(test_context_end),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_sync_reuses_and_rebuilds),
        cmocka_unit_test(test_prompt_cancel_keeps_prefix),
        cmocka_unit_test(test_fork_and_snapshot),
        cmocka_unit_test(test_nan_logits_are_an_error),
        cmocka_unit_test(test_score),
        cmocka_unit_test(test_suppressed_token_never_appears),
        cmocka_unit_test(test_without_drafter_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
