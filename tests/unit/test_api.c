/* The public API on the bundled demo model and the CPU backend: reference continuations, the same token stream whatever
 * mode, chunking, thread count or earlier history, and a memory account that returns to nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kakeya_study.h"
#include "packed.h"
#include "session/session.h"
#include "sweep.h"

#define ok(call)                                                                                                       \
    do {                                                                                                               \
        kakeya_error error_ = {0};                                                                                     \
        kakeya_error *error = &error_;                                                                                 \
        if ((call) != KAKEYA_OK) fail_msg("%s: %s", #call, error_.message);                                            \
    } while (0)

typedef struct ids {
    int32_t token[8192];
    size_t n;
} ids;

static cJSON *golden;      /* demo_golden.json.gz */
static kakeya_engine *f32; /* reference precision, one thread */

static kakeya_engine *open_demo(kakeya_precision precision, int threads) {
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo/";
    options.precision = precision;
    options.threads = threads;
    ok(kakeya_engine_open(&options, &engine, error));
    return engine;
}

static int setup(void **state) {
    (void)state;
    size_t bytes;
    char *text = packed_read(KAKEYA_TEST_DATA "/golden/demo_golden.json.gz", &bytes);
    golden = cJSON_ParseWithLength(text, bytes);
    free(text);
    f32 = open_demo(KAKEYA_PRECISION_F32, 1);
    return golden ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    cJSON_Delete(golden);
    kakeya_engine_close(f32);
    return 0;
}

static void read_ids(const cJSON *row, const char *key, ids *out) {
    out->n = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItem(row, key)) out->token[out->n++] = (int32_t)item->valuedouble;
}

/* The i-th row of the reference file. */
static const cJSON *golden_row(int i) { return cJSON_GetArrayItem(cJSON_GetObjectItem(golden, "rows"), i); }
enum { NEEDLE_ROW = 0, CODE_ROW = 16, ROWS = 27 };

static kakeya_session *open_session(kakeya_engine *engine, const kakeya_session_options *options) {
    kakeya_session *session = NULL;
    ok(kakeya_session_open(engine, options, &session, error));
    return session;
}

static void assert_same_tokens(const char *what, const int32_t *found, size_t n_found, const int32_t *expected,
                               size_t n_expected) {
    for (size_t i = 0; i < n_found && i < n_expected; i++)
        if (found[i] != expected[i]) fail_msg("%s: token %zu is %d, expected %d", what, i, found[i], expected[i]);
    if (n_found != n_expected) fail_msg("%s: %zu tokens, expected %zu", what, n_found, n_expected);
}

/* --------------------------------------------------------------------------------------------- references */

typedef struct lengths {
    int taken[256], accepted[256];
    size_t n;
} lengths;

static void note_block(void *user, const decode_trace_block *block) {
    lengths *l = user;
    l->taken[l->n] = block->taken;
    l->accepted[l->n++] = block->block.accepted;
}

static void compare_acceptance(const cJSON *row, const lengths *l, const char *what) {
    const cJSON *expected = cJSON_GetObjectItem(row, "spec_accept_lengths");
    size_t n = (size_t)cJSON_GetArraySize(expected); /* of the first 64 tokens */
    if (l->n < n) fail_msg("%s: %zu blocks, the reference has %zu", what, l->n, n);
    for (size_t i = 0; i < n; i++) {
        int length = (int)cJSON_GetArrayItem(expected, (int)i)->valuedouble;
        bool last = i + 1 == l->n; /* the answer ends inside it; the reference counts what stood behind */
        if (last ? l->taken[i] > length : l->taken[i] != length)
            fail_msg("%s, block %zu: %d tokens, the reference committed %d", what, i, l->taken[i], length);
    }
}

/* Hugging Face's greedy continuations, in the plain loop and in blocks of eight; the latter also accept as many tokens
 * per block as the DFlash authors' own class. */
static void test_reference_continuations(void **state) {
    (void)state;
    static ids prompt, greedy;
    static const int rows[] = {0, 3, 7, 15, 16, 17, 18, 19, 20, 21, 22, 25};
    /* a short run has one row of code; test_run.sh has a needle */
    for (size_t r = sweep_short() ? 7 : 0; r < sizeof rows / sizeof rows[0]; r += sweep_short()   ? 7
                                                                                  : sweep_whole() ? 1
                                                                                                  : 3) {
        const cJSON *row = golden_row(rows[r]);
        read_ids(row, "input_ids", &prompt);
        read_ids(row, "greedy", &greedy);
        kakeya_session_options so;
        KAKEYA_INIT(&so);
        so.draft_window = 8192; /* the reference drafter sees the whole prompt */
        kakeya_session *session = open_session(f32, &so);
        for (int speculative = 0; speculative < 2; speculative++) {
            char what[64];
            snprintf(what, sizeof what, "row %d, %s", rows[r], speculative ? "speculative" : "ar");
            kakeya_generate_options go;
            KAKEYA_INIT(&go);
            go.mode = speculative ? KAKEYA_MODE_SPECULATIVE : KAKEYA_MODE_AR;
            go.draft_length = speculative ? 7 : 0;
            go.max_tokens = (int)greedy.n;
            lengths l = {0};
            session_trace trace = {.block = note_block, .user = &l};
            kakeya_stats stats;
            KAKEYA_INIT(&stats);
            size_t n;
            ok(kakeya_session_sync(session, prompt.token, prompt.n, NULL, NULL, NULL, error));
            ok(session_generate(session, &go, &trace, &stats, error));
            const int32_t *tokens = kakeya_session_tokens(session, &n);
            assert_same_tokens(what, tokens + prompt.n, n - prompt.n, greedy.token, greedy.n);
            assert_int_equal(stats.prompt_tokens, prompt.n);
            if (speculative) compare_acceptance(row, &l, what);
        }
        kakeya_session_close(session);
    }
}

/* -------------------------------------------------------------------------------------------- losslessness */

typedef struct arm {
    kakeya_mode mode;
    int draft_length, chunk, threads;
} arm;

/* One token stream for all arms, at every temperature, under every policy. */
static void same_stream(kakeya_precision precision, kakeya_attention attention, kakeya_restore_layers layers, int row,
                        float temperature, uint64_t seed, int max_tokens) {
    static const arm arms[] = {
        {KAKEYA_MODE_AR, 0, 0, 1},   {KAKEYA_MODE_SPECULATIVE, 7, 0, 2},  {KAKEYA_MODE_SPECULATIVE, 3, 33, 1},
        {KAKEYA_MODE_AUTO, 0, 7, 1}, {KAKEYA_MODE_SPECULATIVE, 16, 0, 1}, {KAKEYA_MODE_NGRAM, 0, 100, 1},
    };
    static ids prompt, expected;
    read_ids(golden_row(row), "input_ids", &prompt);
    if (prompt.n > 200) prompt.n = 200;
    if (sweep_short()) prompt.n = 90, max_tokens = 12;
    kakeya_engine *engines[2] = {open_demo(precision, 1), open_demo(precision, 2)};
    for (size_t a = 0; a < sizeof arms / sizeof arms[0]; a++) {
        kakeya_session_options so;
        KAKEYA_INIT(&so);
        so.context_tokens = 1024;
        so.attention = attention;
        so.restore_layers = layers;
        so.prompt_chunk_tokens = arms[a].chunk;
        kakeya_session *session = open_session(engines[arms[a].threads - 1], &so);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = arms[a].mode;
        go.draft_length = arms[a].draft_length;
        go.max_tokens = max_tokens;
        go.ignore_stop_tokens = true;
        go.sampling = (kakeya_sampling){.temperature = temperature,
                                        .top_k = 64,
                                        .top_p = 0.95f,
                                        .repetition_penalty = seed % 2 ? 1.1f : 1,
                                        .seed = seed};
        ok(kakeya_session_sync(session, prompt.token, prompt.n, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session, &go, NULL, error));
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        if (a == 0) memcpy(expected.token, tokens, (expected.n = n) * sizeof *tokens);
        char what[128];
        snprintf(what, sizeof what, "precision %d attention %d row %d temperature %g seed %d arm %zu", (int)precision,
                 (int)attention, row, (double)temperature, (int)seed, a);
        assert_same_tokens(what, tokens, n, expected.token, expected.n);
        kakeya_session_close(session);
    }
    for (int i = 0; i < 2; i++) kakeya_engine_close(engines[i]);
}

static void test_lossless_native(void **state) {
    (void)state;
    same_stream(KAKEYA_PRECISION_BF16, KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, CODE_ROW + 2, 0.8f, 3, 48);
    if (sweep_short()) return;
    same_stream(KAKEYA_PRECISION_F32, KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, CODE_ROW, 0, 0, 48);
    same_stream(KAKEYA_PRECISION_F32, KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, NEEDLE_ROW, 1.2f, 4, 40);
}

static void test_lossless_bounded(void **state) {
    (void)state;
    same_stream(KAKEYA_PRECISION_F32, KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_SLIDING, CODE_ROW, 0, 0, 48);
    if (sweep_short()) return;
    same_stream(KAKEYA_PRECISION_BF16, KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_ALL, CODE_ROW, 0.7f, 5, 48);
    same_stream(KAKEYA_PRECISION_F32, KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, CODE_ROW + 1, 0, 0, 48);
    same_stream(KAKEYA_PRECISION_BF16, KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, CODE_ROW + 3, 0.7f, 6, 48);
}

/* ------------------------------------------------------------------------------------------- asked-for choices */

typedef struct choices {
    int32_t token[64];
    double log_probability[64], best[64];
    size_t n, masked;
} choices;

static bool note_choice(void *user, const kakeya_event *event) {
    choices *c = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    c->token[c->n] = event->token;
    c->log_probability[c->n] = event->log_probability;
    c->best[c->n++] = event->top[0].log_probability;
    return true;
}

/* Every seventh token is forbidden, other ones behind every token. */
static bool mask_choice(void *user, const int32_t *tokens, size_t n, uint32_t *allowed, size_t n_words) {
    choices *c = user;
    c->masked++;
    for (int32_t t = 0; t < (int32_t)n_words * 32; t++)
        if ((t + tokens[n - 1]) % 7) allowed[t / 32] |= 1u << (t % 32);
    return true;
}

/* Masks, biases and log-probabilities: the same stream and the same figures in every mode, and those of scoring. */
static void same_choices(int row, float temperature) {
    static ids prompt;
    static choices expected, found;
    static float nll[512];
    static const kakeya_logit_bias biases[] = {{100, -INFINITY}, {200, 2}};
    static const arm arms[] = {{KAKEYA_MODE_AR, 0, 0, 1},
                               {KAKEYA_MODE_SPECULATIVE, 7, 0, 1},
                               {KAKEYA_MODE_AUTO, 0, 0, 1},
                               {KAKEYA_MODE_NGRAM, 0, 0, 1}};
    read_ids(golden_row(row), "input_ids", &prompt);
    if (prompt.n > 200) prompt.n = sweep_short() ? 60 : 200;
    for (size_t a = 0; a < sizeof arms / sizeof arms[0]; a++) {
        choices *c = a ? &found : &expected;
        *c = (choices){0};
        kakeya_session *session = open_session(f32, NULL);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = arms[a].mode;
        go.draft_length = arms[a].draft_length;
        go.max_tokens = 40;
        go.ignore_stop_tokens = true;
        go.sampling.temperature = temperature;
        go.top_log_probabilities = 3;
        go.on_event = note_choice;
        go.token_mask = mask_choice;
        go.user = go.token_mask_user = c;
        go.logit_bias = biases;
        go.n_logit_bias = 2;
        ok(kakeya_session_sync(session, prompt.token, prompt.n, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session, &go, NULL, error));
        assert_int_equal(c->n, 40);
        assert_int_equal(c->masked, 40);
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        for (size_t i = prompt.n; i < n; i++) assert_int_not_equal((tokens[i] + tokens[i - 1]) % 7, 0);
        if (a) assert_memory_equal(c, &expected, sizeof expected);
        if (!a) {
            kakeya_score_options score;
            KAKEYA_INIT(&score);
            score.prompt_length = prompt.n;
            score.nll = nll;
            ok(kakeya_session_score(session, tokens, n, &score, error));
            for (size_t i = 0; i < c->n; i++) {
                if (!(fabs(c->log_probability[i] + (double)nll[prompt.n + i - 1]) < 6e-6))
                    fail_msg("token %zu: log-probability %.8f, scoring gives %.8f", i, c->log_probability[i],
                             -(double)nll[prompt.n + i - 1]);
                assert_true(c->best[i] >= c->log_probability[i]);
            }
        }
        kakeya_session_close(session);
    }
}

static void test_lossless_choices(void **state) {
    (void)state;
    if (!sweep_short()) same_choices(CODE_ROW, 0);
    same_choices(CODE_ROW + 1, 0.8f);
}

/* The harness's slow references: recomputing everything for each token, and a drafter context rebuilt for each block.
 */
static void test_reference_modes(void **state) {
    (void)state;
    static ids prompt, expected;
    read_ids(golden_row(CODE_ROW), "input_ids", &prompt);
    prompt.n = sweep_short() ? 80 : 150; /* more than a window, so that something is restored */
    lengths fused = {0};
    for (int reference = SESSION_FUSED; reference <= SESSION_UNFUSED; reference++) {
        kakeya_session_options so;
        KAKEYA_INIT(&so);
        so.context_tokens = 512;
        so.attention = KAKEYA_ATTENTION_RESTORED;
        kakeya_session *session = open_session(f32, &so);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.mode = KAKEYA_MODE_SPECULATIVE;
        go.max_tokens = sweep_short() ? 6 : 24;
        go.ignore_stop_tokens = true;
        lengths l = {0};
        session_trace trace = {.reference = (session_reference)reference, .block = note_block, .user = &l};
        ok(kakeya_session_sync(session, prompt.token, prompt.n, NULL, NULL, NULL, error));
        ok(session_generate(session, &go, &trace, NULL, error));
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        if (reference == SESSION_FUSED) {
            memcpy(expected.token, tokens, (expected.n = n) * sizeof *tokens);
            fused = l;
        }
        assert_same_tokens(reference == SESSION_UNFUSED ? "unfused" : "reforward", tokens, n, expected.token,
                           expected.n);
        if (reference == SESSION_UNFUSED) /* a rebuilt drafter context drafts the same tokens */
            assert_memory_equal(&l, &fused, sizeof l);
        kakeya_session_close(session);
    }
}

/* ------------------------------------------------------------------------------------------------ timelines */

/* Continues `session`, and `other` too unless it is already ahead: the timelines are equal then. */
static void continue_and_compare(kakeya_session *session, kakeya_session *other, const char *what) {
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = 20;
    go.ignore_stop_tokens = true;
    go.mode = KAKEYA_MODE_SPECULATIVE;
    size_t before, n, m;
    (void)kakeya_session_tokens(session, &before);
    (void)kakeya_session_tokens(other, &m);
    ok(kakeya_session_generate(session, &go, NULL, error));
    go.mode = KAKEYA_MODE_AR;
    if (m == before) ok(kakeya_session_generate(other, &go, NULL, error));
    const int32_t *a = kakeya_session_tokens(session, &n), *b = kakeya_session_tokens(other, &m);
    assert_same_tokens(what, a, n, b, m);
}

static void test_truncate_fork_snapshot(void **state) {
    (void)state;
    static ids prompt, edited;
    static const kakeya_attention policies[] = {KAKEYA_ATTENTION_NATIVE, KAKEYA_ATTENTION_SINK_WINDOW,
                                                KAKEYA_ATTENTION_RESTORED};
    read_ids(golden_row(CODE_ROW + 1), "input_ids", &prompt);
    prompt.n = sweep_short() ? 200 : 340;
    for (size_t p = sweep_short() ? 2 : 0; p < 3; p++) {
        kakeya_session_options so;
        KAKEYA_INIT(&so);
        so.context_tokens = 700;
        so.attention = policies[p];
        kakeya_session *session = open_session(f32, &so), *other = open_session(f32, &so), *fork = NULL;
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.max_tokens = sweep_short() ? 15 : 30;
        go.ignore_stop_tokens = true;
        ok(kakeya_session_sync(session, prompt.token, prompt.n, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session, &go, NULL, error));

        void *data;
        size_t bytes;
        ok(kakeya_session_fork(session, &fork, error));
        ok(session_to_memory(session, &data, &bytes, error));
        ok(session_from_memory(other, data, bytes, error));
        continue_and_compare(fork, session, "fork");
        continue_and_compare(other, session, "snapshot");
        kakeya_session_close(fork);
        kakeya_session_close(other);

        /* another turn on the edited history: as if it had been computed from nothing (native), where it can be
         * reached; the bounded policies keep what they evicted, so there only the tokens before count */
        size_t n;
        memcpy(edited.token, kakeya_session_tokens(session, &n), prompt.n * sizeof *edited.token);
        edited.n = prompt.n + 15;
        memcpy(edited.token + prompt.n - 5, prompt.token + 20, 20 * sizeof *edited.token);
        size_t reused;
        ok(kakeya_session_sync(session, edited.token, edited.n, &reused, NULL, NULL, error));
        if (policies[p] == KAKEYA_ATTENTION_NATIVE || reused == 0) {
            other = open_session(f32, &so);
            ok(kakeya_session_sync(other, edited.token, edited.n, NULL, NULL, NULL, error));
            continue_and_compare(session, other, "edited history");
            kakeya_session_close(other);
        }
        kakeya_free(data);
        kakeya_session_close(session);
    }
}

/* Scoring: the negative log-likelihoods of the greedy continuation are those of the reference, under prompt rows and
 * decode rows alike. */
static void test_score_reference_logprobs(void **state) {
    (void)state;
    static ids all, greedy;
    static float nll[8192], nll_decode[8192];
    for (int r = CODE_ROW; r < CODE_ROW + (sweep_short() ? 1 : 2); r++) {
        const cJSON *row = golden_row(r);
        read_ids(row, "input_ids", &all);
        read_ids(row, "greedy", &greedy);
        size_t prompt = all.n;
        memcpy(all.token + all.n, greedy.token, greedy.n * sizeof *greedy.token);
        all.n += greedy.n;
        kakeya_session *session = open_session(f32, NULL);
        kakeya_score_options options;
        KAKEYA_INIT(&options);
        options.nll = nll;
        ok(kakeya_session_score(session, all.token, all.n, &options, error));
        options.prompt_length = prompt;
        options.nll = nll_decode;
        ok(kakeya_session_score(session, all.token, all.n, &options, error));
        assert_memory_equal(nll, nll_decode, (all.n - 1) * sizeof *nll);
        const cJSON *logprobs = cJSON_GetObjectItem(row, "logprobs");
        for (size_t i = 0; i < greedy.n; i++) {
            double expected = -cJSON_GetArrayItem(logprobs, (int)i)->valuedouble, found = (double)nll[prompt - 1 + i];
            if (!(found > expected - 2e-3 && found < expected + 2e-3))
                fail_msg("row %d token %zu: nll %.6f, reference %.6f", r, i, found, expected);
        }
        kakeya_session_close(session);
    }
}

typedef struct speaker {
    kakeya_session *session;
    const ids *prompt;
    kakeya_mode mode;
    kakeya_status status;
} speaker;

static void *speak(void *user) {
    speaker *s = user;
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = 24;
    go.ignore_stop_tokens = true;
    go.mode = s->mode;
    s->status = kakeya_session_sync(s->session, s->prompt->token, s->prompt->n, NULL, NULL, NULL, NULL);
    if (s->status == KAKEYA_OK) s->status = kakeya_session_generate(s->session, &go, NULL, NULL);
    return NULL;
}

/* Sessions of one engine on threads of their own say what they would have said alone. */
static void test_sessions_take_turns(void **state) {
    (void)state;
    enum { SPEAKERS = 3 };
    static ids prompts[SPEAKERS];
    static const kakeya_mode modes[SPEAKERS] = {KAKEYA_MODE_SPECULATIVE, KAKEYA_MODE_AR, KAKEYA_MODE_AUTO};
    speaker alone[SPEAKERS], together[SPEAKERS];
    pthread_t threads[SPEAKERS];
    for (int i = 0; i < SPEAKERS; i++) {
        read_ids(golden_row(CODE_ROW + i), "input_ids", &prompts[i]);
        prompts[i].n = sweep_short() ? 60 : 120;
        alone[i] = (speaker){.session = open_session(f32, NULL), .prompt = &prompts[i], .mode = KAKEYA_MODE_AR};
        speak(&alone[i]);
        together[i] = (speaker){.session = open_session(f32, NULL), .prompt = &prompts[i], .mode = modes[i]};
    }
    for (int i = 0; i < SPEAKERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, speak, &together[i]), 0);
    for (int i = 0; i < SPEAKERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < SPEAKERS; i++) {
        size_t n, m;
        const int32_t *a = kakeya_session_tokens(together[i].session, &n),
                      *b = kakeya_session_tokens(alone[i].session, &m);
        assert_int_equal(together[i].status, KAKEYA_OK);
        assert_same_tokens("together", a, n, b, m);
        kakeya_session_close(together[i].session);
        kakeya_session_close(alone[i].session);
    }
}

/* ---------------------------------------------------------------------------------------------------- text */

typedef struct streamed {
    char text[4096];
    size_t bytes;
} streamed;

static bool append_text(void *user, const kakeya_event *event) {
    streamed *s = user;
    if (event->text_bytes) memcpy(s->text + s->bytes, event->text, event->text_bytes);
    s->bytes += event->text_bytes;
    return true;
}

static void test_needle_chat(void **state) {
    (void)state;
    const cJSON *row = golden_row(NEEDLE_ROW);
    static ids prompt;
    read_ids(row, "input_ids", &prompt);
    const kakeya_message message = {"user", cJSON_GetObjectItem(row, "prompt")->valuestring};
    const kakeya_tokenizer *t = kakeya_engine_tokenizer(f32);
    int32_t *tokens;
    size_t n;
    ok(kakeya_message_tokens(t, &message, 1, false, &tokens, &n, error));
    assert_same_tokens("chat", tokens, n, prompt.token, prompt.n);

    kakeya_session *session = open_session(f32, NULL);
    streamed s = {0};
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.on_event = append_text;
    go.user = &s;
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    ok(kakeya_session_sync(session, tokens, n, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, &go, &stats, error));
    assert_int_equal(stats.finish, KAKEYA_FINISH_STOP);
    assert_non_null(strstr(s.text, cJSON_GetObjectItem(row, "answer")->valuestring));
    kakeya_free(tokens);
    kakeya_session_close(session);

    kakeya_error e = {0};
    assert_int_equal(kakeya_tokenize(t, "\xff", 1, KAKEYA_TEXT_PROMPT, &tokens, &n, &e), KAKEYA_INVALID_ARGUMENT);
    const kakeya_message strange = {"oracle", "hello"}, empty = {"user", NULL};
    assert_int_equal(kakeya_message_tokens(t, &strange, 1, false, &tokens, &n, &e), KAKEYA_INVALID_ARGUMENT);
    ok(kakeya_message_tokens(t, &empty, 1, false, &tokens, &n, error));
    kakeya_free(tokens);
}

/* ------------------------------------------------------------------------------------------ opening and memory */

static void test_engine_facts(void **state) {
    (void)state;
    assert_int_equal(kakeya_engine_vocab_size(f32), 8192);
    assert_int_equal(kakeya_engine_hidden_size(f32), 256);
    assert_int_equal(kakeya_engine_layers(f32), 12);
    assert_int_equal(kakeya_engine_max_context(f32), 8192);
    assert_int_equal(kakeya_engine_drafter_block_size(f32), 8);
    assert_true(kakeya_engine_has_tokenizer(f32) && kakeya_engine_has_drafter(f32) && kakeya_engine_has_f_theta(f32));
    assert_true(kakeya_engine_is_stop_token(f32, 1) && kakeya_engine_is_stop_token(f32, 16));
    assert_false(kakeya_engine_is_stop_token(f32, 2));
    assert_int_equal(strncmp(kakeya_engine_backend(f32), "cpu", 3), 0);
    assert_int_equal(kakeya_engine_precision(f32), KAKEYA_PRECISION_F32);
    kakeya_engine *engine = open_demo(KAKEYA_PRECISION_AUTO, 1);
    assert_int_equal(kakeya_engine_precision(engine), KAKEYA_PRECISION_BF16);
    kakeya_engine_close(engine);
}

static bool stop_loading(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)total;
    assert_string_equal(what, "loading");
    return done < *(uint64_t *)user;
}

static void expect_open_failure(kakeya_engine_options *options, kakeya_status status, const char *text) {
    kakeya_engine *engine = (kakeya_engine *)options;
    kakeya_error error = {0};
    assert_int_equal(kakeya_engine_open(options, &engine, &error), status);
    assert_null(engine);
    if (!strstr(error.message, text)) fail_msg("'%s' does not name '%s'", error.message, text);
}

static void test_open_failures(void **state) {
    (void)state;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    expect_open_failure(&options, KAKEYA_INVALID_ARGUMENT, "model");
    options.model = "/no/such/model";
    expect_open_failure(&options, KAKEYA_IO, "/no/such/model");
    options.model = KAKEYA_MODELS "/demo";
    options.drafter = KAKEYA_MODELS "/demo-f-theta";
    expect_open_failure(&options, KAKEYA_IO, "demo-f-theta");
    options.drafter = "none";
    options.f_theta = KAKEYA_TEST_DATA "/golden/demo-f-theta-regression";
    expect_open_failure(&options, KAKEYA_INVALID_ARGUMENT, "drafter");
    options.drafter = NULL;
    options.f_theta = NULL;
    options.backend = "abacus";
    expect_open_failure(&options, KAKEYA_UNSUPPORTED, "abacus");
    options.backend = NULL;
    options.threads = -1;
    expect_open_failure(&options, KAKEYA_INVALID_ARGUMENT, "threads");
    options.threads = 1;
    options.progress = stop_loading;
    uint64_t limit;
    options.user = &limit;
    for (limit = 0; limit < 5; limit++) expect_open_failure(&options, KAKEYA_CANCELLED, "cancelled");
    options.progress = NULL;
    options.memory_limit_bytes = 1000;
    expect_open_failure(&options, KAKEYA_OUT_OF_MEMORY, "memory");
}

/* A session and its fork, opened, used and closed. */
static void use_sessions(kakeya_mode mode, int draft_length) {
    static ids prompt;
    read_ids(golden_row(CODE_ROW), "input_ids", &prompt);
    prompt.n = 150;
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.attention = KAKEYA_ATTENTION_RESTORED;
    kakeya_session *session = open_session(f32, &so), *fork;
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.mode = mode;
    go.draft_length = draft_length;
    go.max_tokens = 20;
    go.sampling.temperature = 1;
    ok(kakeya_session_sync(session, prompt.token, prompt.n, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, &go, NULL, error));
    ok(kakeya_session_fork(session, &fork, error));
    kakeya_kv_bytes bytes = kakeya_session_kv_bytes(session);
    backend_cache_bytes formula = f32->ops->cache_bytes(session->timeline.cache);
    assert_int_equal(bytes.full, formula.full);
    assert_int_equal(bytes.sliding, formula.sliding);
    assert_int_equal(bytes.latent, formula.latent);
    assert_int_equal(bytes.draft, formula.draft);
    assert_true(bytes.full > 0 && bytes.sliding > 0 && bytes.latent > 0 && bytes.draft > 0);
    kakeya_session_close(session);
    kakeya_session_close(fork);
}

static void test_account_returns_to_zero(void **state) {
    (void)state;
    /* The engine keeps a row of logits for each row of the longest block that it has sampled from; which lengths the
     * other modes try depends on how fast they are. */
    use_sessions(KAKEYA_MODE_SPECULATIVE, BACKEND_MAX_DRAFT);
    size_t before = mem_total(&f32->account);
    for (int mode = KAKEYA_MODE_AUTO; mode <= KAKEYA_MODE_NGRAM; mode++) use_sessions((kakeya_mode)mode, 0);
    assert_int_equal(mem_total(&f32->account), before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_facts),
        cmocka_unit_test(test_reference_continuations),
        cmocka_unit_test(test_lossless_native),
        cmocka_unit_test(test_lossless_bounded),
        cmocka_unit_test(test_lossless_choices),
        cmocka_unit_test(test_reference_modes),
        cmocka_unit_test(test_truncate_fork_snapshot),
        cmocka_unit_test(test_sessions_take_turns),
        cmocka_unit_test(test_score_reference_logprobs),
        cmocka_unit_test(test_needle_chat),
        cmocka_unit_test(test_open_failures),
        cmocka_unit_test(test_account_returns_to_zero),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
