/* Protects sessions that have a DFlash drafter, an MTP assistant and their own text to draft from: whoever drafts a
 * block, and however many tokens, the answer is the model's own; alone and in a batch, under every policy. */
#include "golden.h"
#include "packed.h"

#include "kakeya.h"
#include "measure/draft_blocks.h"
#include "session/session.h"
#include "session/step_costs.h"
#include "sweep.h"

enum { PROMPT = 48, NEW = 60, CONTEXT = 160, SESSIONS = 6 };

static const char verifier[] = KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense";

static const char *dflash(void) { return unpacked_folder(KAKEYA_TEST_DATA "/golden/dflash-tiny"); }
static const char *assistant(void) { return unpacked_folder(KAKEYA_TEST_DATA "/golden/mtp/dense"); }

static kakeya_engine *open_engine(const char *drafter, const char *second) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = verifier;
    options.drafter = drafter;
    options.second_drafter = second;
    options.f_theta = "none";
    options.backend = "cpu";
    options.threads = 1;
    kakeya_engine *engine = NULL;
    REQUIRE_OK(kakeya_engine_open(&options, &engine, error));
    return engine;
}

static uint64_t draw(uint64_t *random, uint64_t n) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (*random >> 33) % n;
}

/* Some repeat themselves, so that the text has something to draft. */
static void make_prompt(uint64_t seed, int32_t prompt[PROMPT]) {
    uint64_t random = seed * 977 + 3;
    int period = seed % 3 ? 5 + (int)draw(&random, 12) : PROMPT;
    for (int i = 0; i < PROMPT; i++) prompt[i] = i < period ? 3 + (int32_t)draw(&random, 300) : prompt[i - period];
}

/* What an answer is made of. */
typedef struct way {
    kakeya_session_options session;
    kakeya_generate_options generate;
} way;

static way make_way(uint64_t seed) {
    static const kakeya_attention attentions[] = {KAKEYA_ATTENTION_NATIVE, KAKEYA_ATTENTION_SINK_WINDOW};
    static const kakeya_kv_format formats[] = {KAKEYA_KV_F32, KAKEYA_KV_BF16, KAKEYA_KV_Q8};
    way w;
    KAKEYA_INIT(&w.session);
    w.session.context_tokens = CONTEXT;
    w.session.attention = attentions[seed % 2];
    w.session.sink = 2;
    w.session.window = 9;
    w.session.draft_window = 24;
    w.session.kv_format = formats[seed / 2 % 3];
    KAKEYA_INIT(&w.generate);
    w.generate.max_tokens = NEW;
    w.generate.ignore_stop_tokens = true;
    w.generate.sampling.temperature = seed / 6 % 2 ? 1.0f : 0.0f;
    w.generate.sampling.seed = seed;
    return w;
}

static void answer(kakeya_engine *engine, const way *w, kakeya_mode mode, uint64_t seed, const session_trace *trace,
                   kakeya_stats *stats, int32_t said[NEW]) {
    int32_t prompt[PROMPT];
    size_t n;
    make_prompt(seed, prompt);
    kakeya_session *session = NULL;
    kakeya_generate_options generate = w->generate;
    generate.mode = mode;
    REQUIRE_OK(kakeya_session_open(engine, &w->session, &session, error));
    REQUIRE_OK(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
    KAKEYA_INIT(stats);
    const session_trace none = {0};
    REQUIRE_OK(session_generate(session, &generate, trace ? trace : &none, stats, error));
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    assert_int_equal(n, PROMPT + NEW);
    memcpy(said, tokens + PROMPT, NEW * sizeof *said);
    kakeya_session_close(session);
}

static void assert_same(const int32_t *said, const int32_t *expected, uint64_t seed, const char *how) {
    for (int i = 0; i < NEW; i++)
        if (said[i] != expected[i])
            fail_msg("seed %d, %s: token %d is %d, plain decoding says %d", (int)seed, how, i, (int)said[i],
                     (int)expected[i]);
}

typedef struct sources {
    long blocks[DRAFT_NGRAM + 1], drafted[DRAFT_NGRAM + 1], looked_up[DRAFT_NGRAM + 1];
} sources;

static void count_block(void *user, const decode_trace_block *b) {
    sources *s = user;
    s->blocks[b->block.source]++;
    s->drafted[b->block.source] += b->block.drafted;
    s->looked_up[b->block.source] += b->block.looked_up;
}

/* Every block from a source, of a length and with a continuation that chance chooses. */
static void any_source_may_draft_any_block(void **state) {
    (void)state;
    const uint64_t runs = sweep_whole() ? 400 : sweep_short() ? 24 : 60;
    kakeya_engine *plain = open_engine("none", NULL), *both = open_engine(dflash(), assistant());
    sources counted = {0};
    for (uint64_t seed = 0; seed < runs; seed++) {
        const way w = make_way(seed);
        uint64_t random = seed + 17;
        draft_block follow[NEW];
        for (int i = 0; i < NEW; i++) {
            draft_block *b = &follow[i];
            *b = (draft_block){.source = (draft_source)draw(&random, DRAFT_NGRAM + 1)};
            int n = 1 + (int)draw(&random, 7);
            if (draft_source_asks(b->source)) b->asked = n;
            b->drafted = b->source == DRAFT_NONE ? 0 : n;
            if (draft_source_asks(b->source) && draw(&random, 2)) {
                b->looked_up = 1 + (int)draw(&random, 4);
                b->drafted = 1 + (int)draw(&random, (uint64_t)n) + b->looked_up;
            }
        }
        int32_t expected[NEW], said[NEW];
        kakeya_stats stats;
        answer(plain, &w, KAKEYA_MODE_AR, seed, NULL, &stats, expected);
        const session_trace trace = {.block = count_block, .user = &counted, .follow = follow, .n_follow = NEW};
        answer(both, &w, KAKEYA_MODE_AUTO, seed, &trace, &stats, said);
        assert_same(said, expected, seed, "chosen by chance");
    }
    kakeya_engine_close(plain);
    kakeya_engine_close(both);
    for (draft_source s = DRAFT_DFLASH; s <= DRAFT_NGRAM; s++) assert_true(counted.drafted[s] > (long)runs);
    assert_true(counted.looked_up[DRAFT_DFLASH] > 0 && counted.looked_up[DRAFT_ASSISTANT] > 0);
}

/* Modes of a session of its own; in auto the measured times choose. */
static void every_mode_says_the_same(void **state) {
    (void)state;
    static const struct {
        kakeya_mode mode;
        const char *name;
    } modes[] = {{KAKEYA_MODE_AUTO, "auto"}, {KAKEYA_MODE_SPECULATIVE, "speculative"}, {KAKEYA_MODE_NGRAM, "ngram"}};
    const uint64_t runs = sweep_whole() ? 120 : 12;
    kakeya_engine *plain = open_engine("none", NULL);
    kakeya_engine *engine[] = {open_engine(dflash(), assistant()), open_engine(assistant(), dflash()),
                               open_engine(assistant(), NULL)};
    sources counted = {0};
    for (uint64_t seed = 0; seed < runs; seed++) {
        const way w = make_way(seed);
        int32_t expected[NEW], said[NEW];
        kakeya_stats stats;
        answer(plain, &w, KAKEYA_MODE_AR, seed, NULL, &stats, expected);
        for (int m = 0; m < 3; m++) {
            const session_trace trace = {.block = count_block, .user = &counted};
            answer(engine[seed % 3], &w, modes[m].mode, seed, &trace, &stats, said);
            assert_same(said, expected, seed, modes[m].name);
        }
    }
    for (int i = 0; i < 3; i++) kakeya_engine_close(engine[i]);
    kakeya_engine_close(plain);
    assert_true(counted.blocks[DRAFT_DFLASH] > 0 && counted.blocks[DRAFT_ASSISTANT] > 0);
}

/* The drafters of a batch are asked for all sessions at once, each for those that chose it. */
static void batches_say_the_same(void **state) {
    (void)state;
    const uint64_t runs = sweep_whole() ? 40 : sweep_short() ? 3 : 8;
    kakeya_engine *plain = open_engine("none", NULL), *both = open_engine(dflash(), assistant());
    for (uint64_t run = 0; run < runs; run++) {
        kakeya_session *session[SESSIONS];
        kakeya_request *request[SESSIONS];
        int32_t expected[SESSIONS][NEW], prompt[SESSIONS][PROMPT];
        way w[SESSIONS];
        for (int i = 0; i < SESSIONS; i++) {
            const uint64_t seed = run * SESSIONS + (uint64_t)i;
            kakeya_stats stats;
            w[i] = make_way(run + 6 * seed);
            w[i].generate.mode = i % 3 == 2 ? KAKEYA_MODE_SPECULATIVE : KAKEYA_MODE_AUTO;
            w[i].session.without_drafter = i == 3;
            answer(plain, &w[i], KAKEYA_MODE_AR, seed, NULL, &stats, expected[i]);
            make_prompt(seed, prompt[i]);
            REQUIRE_OK(kakeya_session_open(both, &w[i].session, &session[i], error));
        }
        for (int i = 0; i < SESSIONS; i++) {
            kakeya_request_options options;
            KAKEYA_INIT(&options);
            options.tokens = prompt[i];
            options.n_tokens = PROMPT;
            options.generate = &w[i].generate;
            REQUIRE_OK(kakeya_session_submit(session[i], &options, &request[i], error));
        }
        for (int i = 0; i < SESSIONS; i++) {
            size_t n;
            REQUIRE_OK(kakeya_request_wait(request[i], NULL, error));
            const int32_t *tokens = kakeya_session_tokens(session[i], &n);
            assert_int_equal(n, PROMPT + NEW);
            assert_same(tokens + PROMPT, expected[i], run * SESSIONS + (uint64_t)i, "in a batch");
        }
        for (int i = 0; i < SESSIONS; i++) kakeya_session_close(session[i]);
    }
    kakeya_engine_close(plain);
    kakeya_engine_close(both);
}

/* A session with both keeps the drafter's context and one row for the assistant; its snapshot has both. */
static void snapshots_hold_both(void **state) {
    (void)state;
    kakeya_engine *both = open_engine(dflash(), assistant());
    way w = make_way(0);
    int32_t prompt[PROMPT], expected[2 * NEW];
    size_t n;
    make_prompt(1, prompt);
    w.generate.mode = KAKEYA_MODE_AUTO;
    w.generate.max_tokens = 30;
    kakeya_session *session = NULL, *other = NULL;
    void *data = NULL;
    size_t bytes = 0;
    REQUIRE_OK(kakeya_session_open(both, &w.session, &session, error));
    REQUIRE_OK(kakeya_session_open(both, &w.session, &other, error));
    REQUIRE_OK(kakeya_session_sync(session, prompt, PROMPT, NULL, NULL, NULL, error));
    REQUIRE_OK(kakeya_session_generate(session, &w.generate, NULL, error));
    REQUIRE_OK(session_to_memory(session, &data, &bytes, error));
    REQUIRE_OK(kakeya_session_generate(session, &w.generate, NULL, error));
    memcpy(expected, kakeya_session_tokens(session, &n), (PROMPT + 60) * sizeof *expected);
    REQUIRE_OK(session_from_memory(other, data, bytes, error));
    REQUIRE_OK(kakeya_session_generate(other, &w.generate, NULL, error));
    assert_memory_equal(kakeya_session_tokens(other, &n), expected, n * sizeof *expected);
    assert_int_equal(n, PROMPT + 60);
    kakeya_free(data);
    kakeya_session_close(session);
    kakeya_session_close(other);
    kakeya_engine_close(both);
}

/* What drafts cost in a batch is remembered by drafter and by how many drafted together; where a number was not
 * measured, the nearest that was tells. */
static void prices_follow_the_batch(void **state) {
    (void)state;
    step_costs costs = {0};
    assert_true(step_costs_prices(&costs, 4).drafts[BACKEND_ASSISTANT] > 1e9); /* nothing is known: no drafts */
    for (int i = 0; i < 40; i++) step_costs_add(&costs, 4 + i % 5, 4, 1e-3 * (1 + 0.25 * (4 + i % 5)));
    const draft_prices unknown = step_costs_prices(&costs, 4);
    const double token = costs.seconds / costs.tokens;
    assert_true(fabs(unknown.row * token - 0.25e-3) < 1e-6);
    for (int d = 0; d < BACKEND_DRAFTERS; d++) /* as dear as a row, until it was asked */
        assert_true(fabs(unknown.drafts[d] - unknown.row) < 1e-9);
    step_costs_add_drafts(&costs, BACKEND_BLOCK_DRAFTER, 4, 28, 4e-3); /* 1 ms for a session's block */
    step_costs_add_drafts(&costs, BACKEND_ASSISTANT, 4, 8, 4e-3);      /* 0.5 ms for a draft */
    step_costs_add_drafts(&costs, BACKEND_ASSISTANT, 64, 128, 8e-3);   /* and less where many draft together */
    static const struct {
        int sessions;
        double dflash, assistant;
    } expected[] = {
        {4, 1e-3, 0.5e-3}, {5, 1e-3, 0.5e-3}, {2, 1e-3, 0.5e-3}, {64, 1e-3, 0.0625e-3}, {40, 1e-3, 0.0625e-3}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const draft_prices prices = step_costs_prices(&costs, expected[i].sessions);
        const double dflash = prices.drafts[BACKEND_BLOCK_DRAFTER] * token;
        const double assistant = prices.drafts[BACKEND_ASSISTANT] * token;
        if (fabs(dflash - expected[i].dflash) > 1e-9 || fabs(assistant - expected[i].assistant) > 1e-9)
            fail_msg("%d sessions: %g s a block and %g s a draft", expected[i].sessions, dflash, assistant);
    }
}

/* Reports name each block's source. */
static void blocks_are_words(void **state) {
    (void)state;
    static const char text[] = "0 a4 d7:3+2 n5 a7:2+0";
    draft_blocks blocks;
    REQUIRE_OK(draft_blocks_from_text(text, &blocks, error));
    assert_int_equal(blocks.n, 5);
    assert_int_equal(blocks.block[1].source, DRAFT_ASSISTANT);
    assert_int_equal(blocks.block[1].asked, 4);
    assert_int_equal(blocks.block[4].drafted, 2);
    char *again = draft_blocks_to_text(&blocks);
    assert_string_equal(again, text);
    free(again);
    draft_blocks_free(&blocks);
    assert_int_equal(draft_blocks_from_text("b4", &blocks, NULL), KAKEYA_FORMAT);
    draft_blocks_free(&blocks);
}

static void expect_refused(const char *drafter, const char *second, const char *words) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = verifier;
    options.drafter = drafter;
    options.second_drafter = second;
    options.backend = "cpu";
    kakeya_engine *engine = NULL;
    kakeya_error e = {0};
    assert_int_equal(kakeya_engine_open(&options, &engine, &e), KAKEYA_INVALID_ARGUMENT);
    if (!strstr(e.message, words)) fail_msg("\"%s\" does not say '%s'", e.message, words);
    assert_null(engine);
}

static void one_of_each_kind(void **state) {
    (void)state;
    expect_refused(dflash(), dflash(), "both DFlash drafters");
    expect_refused(assistant(), assistant(), "both MTP assistants");
    expect_refused("none", dflash(), "two drafters must be a DFlash drafter and an MTP assistant");
    expect_refused(NULL, dflash(), "two drafters must be a DFlash drafter and an MTP assistant");
    expect_refused(dflash(), "none", "two drafters must be a DFlash drafter and an MTP assistant");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_source_may_draft_any_block),
        cmocka_unit_test(every_mode_says_the_same),
        cmocka_unit_test(batches_say_the_same),
        cmocka_unit_test(snapshots_hold_both),
        cmocka_unit_test(blocks_are_words),
        cmocka_unit_test(one_of_each_kind),
        cmocka_unit_test(prices_follow_the_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
