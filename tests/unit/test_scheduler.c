/* Many sessions at once: every one says what it says alone, whatever runs beside it and whatever happens to the others.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "scratch.h"
#include "session/session.h"
#include "sweep.h"

static kakeya_error error;

enum { MOST_SPEAKERS = 32, MOST_TOKENS = 400 };

/* One session, its prompt and its answer. */
typedef struct speaker {
    kakeya_session_options session;
    kakeya_generate_options generate;
    int32_t prompt[MOST_TOKENS];
    size_t n_prompt;
    int32_t said[MOST_TOKENS]; /* events */
    double log_probability[MOST_TOKENS];
    size_t n_said;
    kakeya_session *cancels; /* by this one's first event */
    int ends;                /* FINISH events */
    kakeya_finish finish;
} speaker;

static bool listen(void *user, const kakeya_event *event) {
    speaker *s = user;
    if (event->type == KAKEYA_EVENT_FINISH) {
        s->ends++;
        s->finish = event->finish;
        return true;
    }
    if (s->cancels) kakeya_session_cancel(s->cancels);
    s->cancels = NULL;
    if (s->n_said == MOST_TOKENS) return false;
    s->said[s->n_said] = event->token;
    s->log_probability[s->n_said++] = event->log_probability;
    return true;
}

static uint64_t draw(uint64_t seed, uint64_t *at, uint64_t n) {
    return (uint64_t)(random_uniform_at(seed, (*at)++) * (double)n);
}

/* A session of any policy, mode and temperature. */
static void make_speaker(speaker *s, uint64_t seed, uint64_t *at, bool drafts, bool f_theta, int most_prompt) {
    static const kakeya_mode modes[] = {KAKEYA_MODE_AUTO, KAKEYA_MODE_AR, KAKEYA_MODE_NGRAM, KAKEYA_MODE_SPECULATIVE};
    memset(s, 0, sizeof *s);
    KAKEYA_INIT(&s->session);
    KAKEYA_INIT(&s->generate);
    s->session.context_tokens = MOST_TOKENS;
    s->session.attention = (kakeya_attention)draw(seed, at, f_theta ? 3 : 2);
    s->session.window = 8 + (int)draw(seed, at, 40);
    s->session.kv_format = draw(seed, at, 4) ? KAKEYA_KV_AUTO : KAKEYA_KV_BF16;
    s->session.prompt_chunk_tokens = draw(seed, at, 3) ? 0 : 1 + (int)draw(seed, at, 40);
    s->generate.mode = modes[draw(seed, at, drafts ? 4 : 3)];
    s->generate.sampling.temperature = draw(seed, at, 2) ? 0.9f : 0;
    s->generate.sampling.repetition_penalty = draw(seed, at, 4) ? 1 : 1.1f;
    s->generate.sampling.seed = draw(seed, at, 1000);
    s->generate.log_probabilities = draw(seed, at, 3) == 0;
    s->generate.max_tokens = 1 + (int)draw(seed, at, 40);
    s->generate.ignore_stop_tokens = true;
    s->generate.on_event = listen;
    s->n_prompt = 1 + draw(seed, at, (uint64_t)most_prompt);
    size_t period = 3 + draw(seed, at, 40); /* short ones let n-grams hold */
    for (size_t i = 0; i < s->n_prompt; i++) s->prompt[i] = 110 + (int32_t)(i % period * 7 % 120);
}

static int stall_ms = 1; /* prompts in the smallest pieces */

static kakeya_engine *open_engine(const char *model, const char *drafter, size_t limit, int max_batch) {
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    options.drafter = drafter;
    options.backend = "cpu";
    options.threads = 2;
    options.memory_limit_bytes = limit;
    options.max_batch = max_batch;
    options.max_stall_ms = stall_ms;
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    return engine;
}

static void speak_alone(kakeya_engine *engine, speaker *s) {
    kakeya_session *session = NULL;
    s->generate.user = s;
    assert_ok(kakeya_session_open(engine, &s->session, &session, &error));
    assert_ok(kakeya_session_sync(session, s->prompt, s->n_prompt, NULL, NULL, NULL, &error));
    assert_ok(kakeya_session_generate(session, &s->generate, NULL, &error));
    kakeya_session_close(session);
}

static kakeya_request *submit(kakeya_session *session, speaker *s) {
    kakeya_request *request = NULL;
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    options.tokens = s->prompt;
    options.n_tokens = s->n_prompt;
    options.generate = &s->generate;
    s->generate.user = s;
    assert_ok(kakeya_session_submit(session, &options, &request, &error));
    return request;
}

static void assert_same(const speaker *together, const speaker *alone, const char *what) {
    if (together->n_said != alone->n_said ||
        memcmp(together->said, alone->said, alone->n_said * sizeof *alone->said) != 0)
        fail_msg("%s: other tokens (%zu, alone %zu)", what, together->n_said, alone->n_said);
    if (memcmp(together->log_probability, alone->log_probability, alone->n_said * sizeof(double)) != 0)
        fail_msg("%s: other log-probabilities", what);
    assert_int_equal(together->ends, 1);
    assert_int_equal(together->finish, alone->finish);
}

static void compose(const char *model, const char *drafter_model, bool f_theta, uint64_t seed, int speakers,
                    int max_batch, int most_prompt) {
    static speaker alone[MOST_SPEAKERS], together[MOST_SPEAKERS];
    kakeya_session *session[MOST_SPEAKERS];
    kakeya_request *request[MOST_SPEAKERS];
    uint64_t at = 0;
    kakeya_engine *engine = open_engine(model, drafter_model, 0, 0);
    for (int i = 0; i < speakers; i++) {
        make_speaker(&alone[i], seed, &at, strcmp(drafter_model ? drafter_model : "", "none") != 0, f_theta,
                     most_prompt);
        together[i] = alone[i];
        speak_alone(engine, &alone[i]);
    }
    kakeya_engine_close(engine);
    engine = open_engine(model, drafter_model, 0, max_batch);
    for (int i = 0; i < speakers; i++)
        assert_ok(kakeya_session_open(engine, &together[i].session, &session[i], &error));
    for (int i = 0; i < speakers; i++) request[i] = submit(session[i], &together[i]);
    for (int i = 0; i < speakers; i++) {
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        assert_ok(kakeya_request_wait(request[i], &stats, &error));
        assert_int_equal(stats.completion_tokens, alone[i].n_said);
        assert_int_equal(stats.prompt_tokens, alone[i].n_prompt);
        char what[64];
        snprintf(what, sizeof what, "seed %d, session %d of %d", (int)seed, i, speakers);
        assert_same(&together[i], &alone[i], what);
    }
    for (int i = 0; i < speakers; i++) kakeya_session_close(session[i]);
    kakeya_engine_close(engine);
}

static const char tiny[] = KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe";
static const char dense[] = KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense";
static const char drafter[] = KAKEYA_TEST_DATA "/golden/dflash-tiny";
static const char demo[] = KAKEYA_MODELS "/demo";

static void random_compositions(void **state) {
    (void)state;
    int seeds = sweep_short() ? 1 : sweep_whole() ? 8 : 4;
    for (uint64_t seed = 1; seed <= (uint64_t)seeds; seed++) {
        int speakers = 1 + (int)(random_uniform_at(77, seed) * MOST_SPEAKERS);
        compose(dense, drafter, false, seed, speakers, 0, 200);
        compose(tiny, "none", false, seed + 100, speakers, 3, 200);
    }
}

/* Many prompts in one forward, whole, in pieces, and beside answers. */
static void random_compositions_of_short_prompts(void **state) {
    (void)state;
    const int seeds = sweep_short() ? 1 : sweep_whole() ? 32 : 4; /* 2,048 streams */
    for (uint64_t seed = 1; seed <= (uint64_t)seeds; seed++) {
        stall_ms = seed % 2 ? 1000 : 1;
        compose(dense, drafter, false, seed + 300, MOST_SPEAKERS, (int)(random_uniform_at(78, seed) * 40), 40);
        compose(tiny, "none", false, seed + 400, MOST_SPEAKERS, 0, 12);
    }
    stall_ms = 1;
}

static void random_compositions_of_the_demo(void **state) {
    (void)state;
    int seeds = sweep_whole() ? 3 : 1;
    for (uint64_t seed = 1; seed <= (uint64_t)seeds; seed++)
        compose(demo, NULL, true, seed, sweep_short() ? 4 : 8 + (int)seed * 3, 0, sweep_short() ? 80 : 340);
}

/* Some are cancelled by what others say: they have said the beginning of what they say alone. */
static void cancelled_ones(void **state) {
    (void)state;
    enum { N = 12 };
    static speaker alone[N], together[N];
    kakeya_session *session[N];
    kakeya_request *request[N];
    uint64_t at = 0;
    kakeya_engine *engine = open_engine(dense, drafter, 0, 0);
    for (int i = 0; i < N; i++) {
        make_speaker(&alone[i], 500, &at, true, false, 100);
        alone[i].generate.max_tokens = i % 3 ? 20 : 60;
        together[i] = alone[i];
        speak_alone(engine, &alone[i]);
        assert_ok(kakeya_session_open(engine, &together[i].session, &session[i], &error));
    }
    for (int i = 0; i < N; i++) {
        if (i % 3 == 1) together[i].cancels = session[i - 1];
        request[i] = submit(session[i], &together[i]);
    }
    for (int i = 0; i < N; i++) {
        kakeya_status status = kakeya_request_wait(request[i], NULL, &error);
        if (i % 3 == 0) {
            /* in its prompt, or in its answer */
            if (status != KAKEYA_CANCELLED) assert_ok(status);
            assert_true(together[i].n_said <= alone[i].n_said);
            assert_memory_equal(together[i].said, alone[i].said, together[i].n_said * sizeof(int32_t));
            continue;
        }
        assert_ok(status);
        assert_same(&together[i], &alone[i], "beside cancelled ones");
    }
    for (int i = 0; i < N; i++) kakeya_session_close(session[i]);
    kakeya_engine_close(engine);
}

static bool allow_nothing(void *user, const int32_t *tokens, size_t n, uint32_t *allowed, size_t n_words) {
    (void)user, (void)tokens, (void)n, (void)allowed, (void)n_words;
    return true;
}

/* What is one session's own fault ends that session's answer alone. */
static void failing_ones(void **state) {
    (void)state;
    enum { N = 9 };
    static speaker alone[N], together[N];
    kakeya_session *session[N];
    kakeya_request *request[N];
    uint64_t at = 0;
    kakeya_engine *engine = open_engine(tiny, "none", 0, 0);
    for (int i = 0; i < N; i++) {
        make_speaker(&alone[i], 900, &at, false, false, 100);
        together[i] = alone[i];
        speak_alone(engine, &alone[i]);
        if (i % 3 == 2) together[i].generate.token_mask = allow_nothing;
        assert_ok(kakeya_session_open(engine, &together[i].session, &session[i], &error));
    }
    for (int i = 0; i < N; i++) request[i] = submit(session[i], &together[i]);
    for (int i = 0; i < N; i++) {
        kakeya_status status = kakeya_request_wait(request[i], NULL, &error);
        if (i % 3 == 2) {
            assert_int_equal(status, KAKEYA_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "token mask"));
            assert_int_equal(together[i].finish, KAKEYA_FINISH_FAILED);
            assert_int_equal(together[i].ends, 1);
        } else {
            assert_ok(status);
            assert_same(&together[i], &alone[i], "beside failing ones");
        }
    }
    for (int i = 0; i < N; i++) kakeya_session_close(session[i]);
    kakeya_engine_close(engine);
}

static size_t engine_bytes(const kakeya_engine *engine) {
    size_t bytes = 0;
    for (int i = 0; kakeya_memory_name((kakeya_memory_kind)i); i++)
        bytes += kakeya_engine_memory(engine, (kakeya_memory_kind)i);
    return bytes;
}

typedef struct long_answer {
    int32_t *said;
    size_t n, pause; /* pause: with go_on, it waits behind so many tokens for what is posted there */
    sem_t *go_on;
} long_answer;

static bool listen_long(void *user, const kakeya_event *event) {
    long_answer *l = user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    l->said[l->n++] = event->token;
    while (l->go_on && l->n == l->pause && sem_wait(l->go_on) != 0) continue;
    return true;
}

/* Answers that grow beyond what was reckoned with: the last one waits in a file until two sessions are closed, and all
 * say what they say alone. None is ahead of the others: the first waits behind its first token until all have been
 * submitted, and the third behind its last but few until others' memory has been given back. */
static void memory_runs_out(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    if (sweep_short()) skip(); /* the threads are those of the other tests, and this one is long */
#endif
    enum { N = 4, LONG = 1500, LONGER = 60, PAUSE = LONG + 30, CONTEXT = 1600, PROMPT = 8 };
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.context_tokens = CONTEXT;
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.mode = KAKEYA_MODE_AR; /* all at the same pace */
    generate.ignore_stop_tokens = true;
    generate.sampling.temperature = 1;
    generate.on_event = listen_long;
    int32_t prompt[PROMPT] = {120, 130, 140, 150, 120, 130, 140, 150};
    sem_t submitted, go_on;
    assert_int_equal(sem_init(&submitted, 0, 0), 0);
    assert_int_equal(sem_init(&go_on, 0, 0), 0);
    long_answer alone[N], together[N];
    size_t need = 0, begun = 0;
    for (int limited = 0; limited < 2; limited++) {
        /* room for the first thousand tokens of all, and for the rest of three */
        kakeya_engine *engine = open_engine(dense, "none", limited ? begun + N * need * 19 / 20 : 0, 0);
        long_answer *answers = limited ? together : alone;
        kakeya_session *session[N];
        kakeya_request *request[N];
        for (int i = 0; i < N; i++) {
            answers[i] = (long_answer){.said = calloc(LONG + LONGER, sizeof(int32_t)), .pause = i ? PAUSE : 1};
            assert_non_null(answers[i].said);
            if (limited && i % 2 == 0) answers[i].go_on = i ? &go_on : &submitted;
            assert_ok(kakeya_session_open(engine, &options, &session[i], &error));
        }
        begun = engine_bytes(engine);
        for (int i = 0; i < N; i++) {
            kakeya_request_options r;
            KAKEYA_INIT(&r);
            generate.sampling.seed = (uint64_t)i;
            generate.user = &answers[i];
            generate.max_tokens = i == 2 ? LONG + LONGER : LONG;
            r.tokens = prompt;
            r.n_tokens = PROMPT;
            r.generate = &generate;
            assert_ok(kakeya_session_submit(session[i], &r, &request[i], &error));
            if (!limited) assert_ok(kakeya_request_wait(request[i], NULL, &error));
        }
        if (!limited)
            need = (engine_bytes(engine) - begun) / N;
        else
            assert_int_equal(sem_post(&submitted), 0);
        uint64_t waits = 0;
        for (int i = 0; i < N; i++) {
            kakeya_stats stats;
            KAKEYA_INIT(&stats);
            if (limited) {
                assert_ok(kakeya_request_wait(request[i], &stats, &error));
                waits += stats.waits;
                assert_int_equal(together[i].n, alone[i].n);
                assert_memory_equal(together[i].said, alone[i].said, alone[i].n * sizeof(int32_t));
            }
            kakeya_session_close(session[i]);
            if (limited && i == 1) assert_int_equal(sem_post(&go_on), 0);
        }
        if (limited) assert_true(waits > 0);
        kakeya_engine_close(engine);
    }
    for (int i = 0; i < N; i++) {
        free(alone[i].said);
        free(together[i].said);
    }
    sem_destroy(&submitted);
    sem_destroy(&go_on);
}

/* The first token of an answer is held back until somebody has posted `user`. */
static bool wait_for_the_other(void *user, const kakeya_event *event) {
    (void)event;
    sem_t *other = user;
    if (other != NULL) {
        while (sem_wait(other) != 0) continue;
        sem_post(other);
    }
    return true;
}

/* Two answers, of which the second waits in a file; the first one's session stays open, so that there is no memory to
 * take the second up again. It fails, and goes on in a later request with the tokens that it has alone. */
static void memory_comes_back_later(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    if (sweep_short()) skip(); /* as above */
#endif
    enum { LONG = 1500, CONTEXT = 1600, PROMPT = 8 };
    static const int32_t prompt[PROMPT] = {120, 130, 140, 150, 120, 130, 140, 150};
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.context_tokens = CONTEXT;
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.mode = KAKEYA_MODE_AR; /* both at the same pace */
    generate.ignore_stop_tokens = true;
    generate.sampling.temperature = 1;
    generate.answer_start = PROMPT;
    generate.presence_penalty = 0.5f; /* of all that was said, before and after */
    generate.max_tokens = LONG;
    kakeya_request_options r;
    KAKEYA_INIT(&r);
    r.tokens = prompt;
    r.n_tokens = PROMPT;
    r.generate = &generate;
    int32_t alone[LONG];
    size_t need = 0, begun = 0, n;
    sem_t submitted;
    assert_int_equal(sem_init(&submitted, 0, 0), 0);
    generate.on_event = wait_for_the_other;
    for (int limited = 0; limited < 2; limited++) {
        kakeya_engine *engine = open_engine(dense, "none", limited ? begun + need * 8 / 5 : 0, 0);
        kakeya_session *first, *second, *fork;
        kakeya_request *request[2];
        assert_ok(kakeya_session_open(engine, &options, &first, &error));
        assert_ok(kakeya_session_open(engine, &options, &second, &error));
        begun = engine_bytes(engine);
        generate.user = limited ? &submitted : NULL; /* neither is ahead of the other when memory ends */
        assert_ok(kakeya_session_submit(first, &r, &request[0], &error));
        generate.user = NULL;
        if (!limited) {
            assert_ok(kakeya_request_wait(request[0], NULL, &error));
            need = engine_bytes(engine) - begun;
            memcpy(alone, kakeya_session_tokens(first, &n) + PROMPT, sizeof alone);
        } else {
            assert_ok(kakeya_session_submit(second, &r, &request[1], &error));
            assert_int_equal(sem_post(&submitted), 0);
            assert_ok(kakeya_request_wait(request[0], NULL, &error));
            assert_int_equal(kakeya_request_wait(request[1], NULL, &error), KAKEYA_OUT_OF_MEMORY);
            size_t said;
            const int32_t *tokens = kakeya_session_tokens(second, &said);
            assert_in_range(said, PROMPT + LONG / 2, PROMPT + LONG - 1);
            assert_memory_equal(tokens + PROMPT, alone, (said - PROMPT) * sizeof *tokens);
            generate.max_tokens = LONG - (int)(said - PROMPT);
            r.tokens = NULL;
            r.n_tokens = 0;
            for (int tries = 0; tries < 2; tries++) { /* it can be tried again */
                assert_ok(kakeya_session_submit(second, &r, &request[1], &error));
                assert_int_equal(kakeya_request_wait(request[1], NULL, &error), KAKEYA_OUT_OF_MEMORY);
            }
            assert_true(kakeya_session_is_parked(second));
            assert_int_equal(kakeya_session_kv_bytes(second).total, 0);
            assert_int_equal(kakeya_session_fork(second, &fork, &error), KAKEYA_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "parked"));
            void *saved;
            size_t bytes;
            assert_ok(session_to_memory(second, &saved, &bytes, &error)); /* from its file */
            assert_int_equal(bytes, kakeya_session_save_bytes(second));
            /* the first one can be parked, too, at any time; then there is memory */
            size_t full = engine_bytes(engine);
            assert_ok(kakeya_session_park(first, &error));
            assert_in_range(engine_bytes(engine), 0, full - need / 2);
            assert_ok(kakeya_session_submit(second, &r, &request[1], &error));
            assert_ok(kakeya_request_wait(request[1], NULL, &error));
            kakeya_session_close(first);
            assert_false(kakeya_session_is_parked(second));
            tokens = kakeya_session_tokens(second, &n);
            assert_int_equal(n, PROMPT + LONG);
            assert_memory_equal(tokens + PROMPT, alone, sizeof alone);
            kakeya_session_close(second);
            assert_ok(kakeya_session_open(engine, &options, &second, &error));
            assert_ok(session_from_memory(second, saved, bytes, &error)); /* where it was parked */
            kakeya_free(saved);
            tokens = kakeya_session_tokens(second, &n);
            assert_int_equal(n, said);
            assert_ok(kakeya_session_submit(second, &r, &request[1], &error));
            assert_ok(kakeya_request_wait(request[1], NULL, &error));
            tokens = kakeya_session_tokens(second, &n);
            assert_int_equal(n, PROMPT + LONG);
            assert_memory_equal(tokens + PROMPT, alone, sizeof alone);
            first = NULL;
        }
        kakeya_session_close(first);
        kakeya_session_close(second);
        kakeya_engine_close(engine);
    }
    sem_destroy(&submitted);
}

typedef struct meddler {
    kakeya_session *other;
    kakeya_request *request;
    kakeya_status submitted, twice, waited, generated;
} meddler;

/* From the engine's own thread: submitting is possible, waiting is not. */
static bool meddle(void *user, const kakeya_event *event) {
    meddler *m = user;
    if (event->type != KAKEYA_EVENT_TOKEN || m->request) return true;
    m->generated = kakeya_session_generate(m->other, NULL, NULL, NULL);
    kakeya_request *second = NULL;
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    options.tokens = (int32_t[]){120, 121, 122, 123};
    options.n_tokens = 4;
    m->submitted = kakeya_session_submit(m->other, &options, &m->request, NULL);
    m->twice = kakeya_session_submit(m->other, &options, &second, NULL);
    m->waited = kakeya_request_wait(m->request, NULL, NULL);
    return true;
}

static void what_is_refused(void **state) {
    (void)state;
    kakeya_engine *engine = open_engine(tiny, "none", 0, 0);
    meddler m = {0};
    kakeya_session *own = NULL;
    kakeya_request *second = NULL;
    assert_ok(kakeya_session_open(engine, NULL, &own, &error));
    assert_ok(kakeya_session_open(engine, NULL, &m.other, &error));
    int32_t tokens[3] = {120, 121, 122};
    assert_ok(kakeya_session_sync(own, tokens, 3, NULL, NULL, NULL, &error));
    assert_ok(kakeya_session_sync(m.other, tokens, 3, NULL, NULL, NULL, &error));
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    assert_int_equal(kakeya_session_submit(own, &options, &second, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "neither"));
    options.n_tokens = 3;
    assert_int_equal(kakeya_session_submit(own, &options, &second, &error), KAKEYA_INVALID_ARGUMENT);
    options.tokens = (int32_t[]){1, 2, -3};
    assert_int_equal(kakeya_session_submit(own, &options, &second, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "-3"));
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.sampling.temperature = -1;
    options = (kakeya_request_options){.size = sizeof options, .generate = &generate};
    assert_int_equal(kakeya_session_submit(own, &options, &second, &error), KAKEYA_INVALID_ARGUMENT);
    assert_null(second);
    generate.sampling.temperature = 0;
    generate.max_tokens = 5;
    generate.ignore_stop_tokens = true;
    generate.on_event = meddle;
    generate.user = &m;
    assert_ok(kakeya_session_generate(own, &generate, NULL, &error));
    assert_int_equal(m.generated, KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(m.submitted, KAKEYA_OK);
    assert_int_equal(m.twice, KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(m.waited, KAKEYA_INVALID_ARGUMENT);
    assert_ok(kakeya_request_wait(m.request, NULL, &error));
    size_t n = 0;
    kakeya_session_tokens(m.other, &n);
    assert_int_equal(n, 4);
    kakeya_session_close(m.other);
    kakeya_session_close(own);
    kakeya_engine_close(engine);
    kakeya_engine_options bad;
    KAKEYA_INIT(&bad);
    bad.model = tiny;
    bad.max_batch = 257;
    assert_int_equal(kakeya_engine_open(&bad, &engine, &error), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "max_batch is 257"));
    bad.max_batch = 0;
    bad.max_stall_ms = -1;
    assert_int_equal(kakeya_engine_open(&bad, &engine, &error), KAKEYA_INVALID_ARGUMENT);
}

typedef struct news {
    sem_t told;
    int times, ends; /* ends: FINISH events before the news */
    bool refuse;     /* the prompt's progress */
    int ended;
} news;

static void hear_done(void *user) {
    news *n = user;
    n->times++;
    n->ends = n->ended;
    sem_post(&n->told);
}

static bool hear_event(void *user, const kakeya_event *event) {
    news *n = user;
    if (event->type == KAKEYA_EVENT_FINISH) n->ended++;
    return true;
}

static bool hear_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    return !((news *)user)->refuse;
}

/* Nobody waits in the library: a prompt alone, an answer alone, both, and a prompt that is cancelled tell that they are
 * done, once, behind their last event. */
static void done_is_told(void **state) {
    (void)state;
    enum { N = 4 };
    kakeya_engine *engine = open_engine(tiny, "none", 0, 0);
    kakeya_session *session[N];
    kakeya_request *request[N];
    news heard[N];
    int32_t tokens[64];
    for (int i = 0; i < 64; i++) tokens[i] = 110 + i;
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.max_tokens = 20;
    generate.ignore_stop_tokens = true;
    generate.on_event = hear_event;
    for (int i = 0; i < N; i++) {
        memset(&heard[i], 0, sizeof heard[i]);
        sem_init(&heard[i].told, 0, 0);
        kakeya_session_options pieces;
        KAKEYA_INIT(&pieces);
        pieces.prompt_chunk_tokens = 32; /* so that there is something left to refuse */
        assert_ok(kakeya_session_open(engine, &pieces, &session[i], &error));
        if (i == 1) assert_ok(kakeya_session_sync(session[i], tokens, 64, NULL, NULL, NULL, &error));
        kakeya_request_options options;
        KAKEYA_INIT(&options);
        options.tokens = i == 1 ? NULL : tokens;
        options.n_tokens = i == 1 ? 0 : 64;
        generate.user = &heard[i];
        if (i == 1 || i == 2) options.generate = &generate;
        heard[i].refuse = i == 3;
        options.progress = hear_progress;
        options.progress_user = &heard[i];
        options.on_done = hear_done;
        options.done_user = &heard[i];
        assert_ok(kakeya_session_submit(session[i], &options, &request[i], &error));
    }
    for (int i = 0; i < N; i++) {
        while (sem_wait(&heard[i].told) != 0) continue;
        assert_int_equal(kakeya_request_wait(request[i], NULL, &error), i == 3 ? KAKEYA_CANCELLED : KAKEYA_OK);
        assert_int_equal(heard[i].ends, i == 1 || i == 2);
    }
    for (int i = 0; i < N; i++) kakeya_session_close(session[i]);
    kakeya_engine_close(engine);
    for (int i = 0; i < N; i++) {
        assert_int_equal(heard[i].times, 1);
        sem_destroy(&heard[i].told);
    }
}

/* What a session keeps between answers is its K/V memory, its tokens and an index of them: no vocabulary. */
static void idle_sessions_are_small(void **state) {
    (void)state;
    enum { MOST = 30, PROMPT = 40 };
    const int n = sweep_short() ? 8 : MOST;
    kakeya_engine *engine = open_engine(demo, NULL, 0, 0);
    kakeya_session *session[MOST];
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.max_tokens = 2;
    generate.sampling.temperature = 1;
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = 110 + i;
    size_t before = 0, kv = 0;
    for (int i = 0; i < n; i++) {
        if (i == 1) before = engine_bytes(engine); /* the first one makes what all share */
        assert_ok(kakeya_session_open(engine, NULL, &session[i], &error));
        assert_ok(kakeya_session_sync(session[i], prompt, PROMPT, NULL, NULL, NULL, &error));
        assert_ok(kakeya_session_generate(session[i], &generate, NULL, &error));
        if (i) kv += kakeya_session_kv_bytes(session[i]).total;
    }
    size_t beyond = (engine_bytes(engine) - before - kv) / (size_t)(n - 1);
    if (beyond > 256 << 10) fail_msg("%zu bytes beyond its K/V memory", beyond);
    for (int i = 0; i < n; i++) kakeya_session_close(session[i]);
    kakeya_engine_close(engine);
}

typedef struct steps {
    size_t n, prompt_positions, answer_positions, most;
    double seconds;
} steps;

static void count_step(void *user, const kakeya_step *step) {
    steps *all = user;
    all->n++;
    all->prompt_positions += step->prompt_positions;
    all->answer_positions += step->answer_positions;
    all->seconds += step->seconds;
    if (step->requests > all->most) all->most = step->requests;
}

/* Every position that is computed is in one step: those of prompts, and per forward of an answer one and its drafts. */
static void steps_are_told(void **state) {
    (void)state;
    enum { N = 3, PROMPT = 100 };
    steps all = {0};
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = demo;
    options.threads = 2;
    options.on_step = count_step;
    options.step_user = &all;
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    speaker who[N] = {0};
    kakeya_session *session[N];
    kakeya_request *request[N];
    size_t positions = 0;
    for (int i = 0; i < N; i++) {
        KAKEYA_INIT(&who[i].generate);
        who[i].generate.max_tokens = 30;
        who[i].generate.mode = i ? KAKEYA_MODE_NGRAM : KAKEYA_MODE_AR;
        who[i].generate.ignore_stop_tokens = true;
        who[i].generate.on_event = listen;
        who[i].n_prompt = PROMPT;
        for (int k = 0; k < PROMPT; k++) who[i].prompt[k] = 110 + k % 7;
        assert_ok(kakeya_session_open(engine, NULL, &session[i], &error));
    }
    for (int i = 0; i < N; i++) request[i] = submit(session[i], &who[i]);
    for (int i = 0; i < N; i++) {
        kakeya_stats stats;
        KAKEYA_INIT(&stats);
        assert_ok(kakeya_request_wait(request[i], &stats, &error));
        positions += stats.verifier_forwards + stats.drafted_tokens;
        if (i) assert_true(stats.drafted_tokens > 0);
    }
    assert_int_equal(all.prompt_positions, N * PROMPT);
    assert_int_equal(all.answer_positions, positions);
    assert_in_range(all.most, 1, N);
    assert_true(all.n > 0 && all.seconds > 0);
    for (int i = 0; i < N; i++) kakeya_session_close(session[i]);
    kakeya_engine_close(engine);
}

/* What a limit leaves beside weights and workspace is what all K/V memory can have. */
static void room_of_kv(void **state) {
    (void)state;
    enum { LIMIT = 60 << 20 };
    kakeya_engine *engine = open_engine(demo, NULL, LIMIT, 0);
    kakeya_session *session = NULL;
    int32_t prompt[40];
    for (int i = 0; i < 40; i++) prompt[i] = 110 + i;
    assert_ok(kakeya_session_open(engine, NULL, &session, &error));
    assert_ok(kakeya_session_sync(session, prompt, 40, NULL, NULL, NULL, &error));
    assert_int_equal(kakeya_engine_kv_room(engine), LIMIT - kakeya_engine_memory(engine, KAKEYA_MEMORY_WEIGHTS) -
                                                        kakeya_engine_memory(engine, KAKEYA_MEMORY_WORKSPACE));
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    engine = open_engine(demo, NULL, 0, 0);
    assert_true(kakeya_engine_kv_room(engine) > 0);
    kakeya_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_compositions),
        cmocka_unit_test(random_compositions_of_short_prompts),
        cmocka_unit_test(random_compositions_of_the_demo),
        cmocka_unit_test(cancelled_ones),
        cmocka_unit_test(failing_ones),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(memory_comes_back_later),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(idle_sessions_are_small),
        cmocka_unit_test(done_is_told),
        cmocka_unit_test(steps_are_told),
        cmocka_unit_test(room_of_kv),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
