/* Uses of public functions that no example and no other test shows; test_library.sh checks that each function is used
 * in one of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "vision_support.h"

#include <sched.h>

#include "kakeya_study.h"

static kakeya_engine *open_demo(kakeya_precision precision) {
    kakeya_engine *engine;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_MODELS "/demo";
    options.backend = "cpu";
    options.precision = precision;
    options.threads = 1;
    ok(kakeya_engine_open(&options, &engine, &failure));
    return engine;
}

static kakeya_session *open_with(kakeya_engine *engine, kakeya_attention attention, kakeya_kv_format format) {
    kakeya_session *session;
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.context_tokens = 512;
    options.attention = attention;
    options.kv_format = format;
    ok(kakeya_session_open(engine, &options, &session, &failure));
    return session;
}

/* Two numbers say whether one session can load what another has saved. */
static void test_what_a_saved_session_needs(void **state) {
    (void)state;
    kakeya_engine *engine = open_demo(KAKEYA_PRECISION_F32), *same = open_demo(KAKEYA_PRECISION_F32);
    kakeya_engine *other = open_demo(KAKEYA_PRECISION_BF16);
    assert_int_equal(kakeya_engine_fingerprint(engine), kakeya_engine_fingerprint(same));
    assert_int_not_equal(kakeya_engine_fingerprint(engine), kakeya_engine_fingerprint(other));
    kakeya_session *native = open_with(engine, KAKEYA_ATTENTION_NATIVE, KAKEYA_KV_BF16);
    kakeya_session *twin = open_with(same, KAKEYA_ATTENTION_NATIVE, KAKEYA_KV_BF16);
    kakeya_session *dropping = open_with(engine, KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_KV_BF16);
    kakeya_session *packed = open_with(engine, KAKEYA_ATTENTION_NATIVE, KAKEYA_KV_Q8);
    assert_int_equal(kakeya_session_policy(native), kakeya_session_policy(twin));
    assert_int_not_equal(kakeya_session_policy(native), kakeya_session_policy(dropping));
    assert_int_not_equal(kakeya_session_policy(native), kakeya_session_policy(packed));
    kakeya_session_close(native);
    kakeya_session_close(twin);
    kakeya_session_close(dropping);
    kakeya_session_close(packed);
    kakeya_engine_close(engine);
    kakeya_engine_close(same);
    kakeya_engine_close(other);
}

/* A request is asked whether it is done while its caller does something else. */
static void test_request_that_is_polled(void **state) {
    (void)state;
    kakeya_engine *engine = open_demo(KAKEYA_PRECISION_F32);
    kakeya_session *session = open_with(engine, KAKEYA_ATTENTION_NATIVE, KAKEYA_KV_BF16);
    assert_false(kakeya_engine_f_theta_loses(engine)); /* the demo's helps */
    static const int32_t question[] = {2, 7634, 1353, 846};
    enum { PROMPT = sizeof question / sizeof *question };
    kakeya_generate_options generate;
    KAKEYA_INIT(&generate);
    generate.max_tokens = 4;
    kakeya_request_options options;
    KAKEYA_INIT(&options);
    options.tokens = question;
    options.n_tokens = PROMPT;
    options.generate = &generate;
    kakeya_request *request;
    ok(kakeya_session_submit(session, &options, &request, &failure));
    while (!kakeya_request_is_done(request)) sched_yield();
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    ok(kakeya_request_wait(request, &stats, &failure));
    assert_int_equal(kakeya_engine_spilled_bytes(engine), 0); /* nothing had to wait in a file */

    /* without pictures the keys of the timeline are its tokens */
    size_t n;
    const int32_t *tokens = kakeya_session_tokens(session, &n);
    int32_t keys[PROMPT + 4];
    assert_true(n > PROMPT && n <= sizeof keys / sizeof *keys);
    assert_int_equal(kakeya_session_images(session), 0);
    kakeya_session_keys(session, keys);
    assert_memory_equal(keys, tokens, n * sizeof *keys);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
}

/* Pictures of a prompt: what tells them apart, and a picture that another process has fitted. */
static void test_pictures(void **state) {
    (void)state;
    fixture f = open_model(model_names[0]);
    prompt p = open_prompt(&f, 1);
    kakeya_session *session = open_session(&f, 0);
    int patch = 0, pooling = 0;
    assert_true(kakeya_engine_image_grid(f.engine, &patch, &pooling));
    assert_true(patch > 0 && pooling > 0);
    ok(kakeya_session_sync_media(session, p.ids, p.n, p.media, p.n_media, NULL, NULL, NULL, &failure));
    assert_int_equal(kakeya_session_images(session), p.n_media);
    const kakeya_image_counts counts = kakeya_engine_image_counts(f.engine);
    assert_int_equal(counts.computed, p.n_media);
    assert_true(counts.computed_rows > counts.computed);
    int32_t *keys = malloc(p.n * sizeof *keys), *of_session = malloc(p.n * sizeof *keys);
    ok(kakeya_prompt_keys(f.engine, p.ids, p.n, p.media, p.n_media, keys, &failure));
    kakeya_session_keys(session, of_session);
    assert_memory_equal(keys, of_session, p.n * sizeof *keys);
    for (size_t i = 0; i < p.n; i++) {
        if (p.ids[i] == kakeya_engine_image_token(f.engine))
            assert_true(keys[i] < 0);
        else
            assert_int_equal(keys[i], p.ids[i]);
    }
    free(keys);
    free(of_session);
    kakeya_session_close(session);

    const kakeya_image *photo = p.media[2].image;
    const kakeya_image_facts about = kakeya_image_describe(photo);
    assert_string_equal(about.format, "JPEG");
    assert_true(about.width > 0 && about.height > 0 && about.orientation == 1);
    kakeya_image_fit fit, again;
    KAKEYA_INIT(&fit);
    KAKEYA_INIT(&again);
    assert_false(kakeya_image_fitted(photo, &fit));
    int earlier = 0;
    for (size_t i = 0; kakeya_image_budget(i); i++) {
        const int budget = kakeya_image_budget(i);
        assert_true(budget > earlier);
        earlier = budget;
        ok(kakeya_image_fit_budget(photo, budget, &fit, &failure));
        assert_true(fit.tokens > 0 && fit.tokens <= budget);
        assert_int_equal(fit.patches, fit.tokens * 9); /* 48 x 48 pixels a token, 16 x 16 a patch */
        assert_int_equal(fit.width * fit.height, fit.patches * 256);
    }
    close_prompt(&p);
    close_model(&f);
}

/* A picture in the size that an engine's grid asks for, as a process makes it that decodes for others. */
static void test_picture_that_was_fitted_elsewhere(void **state) {
    (void)state;
    fixture f = open_model(model_names[0]);
    int patch, pooling;
    assert_true(kakeya_engine_image_grid(f.engine, &patch, &pooling));
    const int side = patch * pooling; /* of a token, in pixels */
    enum { WIDE = 10, HIGH = 7, FITTED = WIDE * HIGH };
    assert_int_equal(kakeya_image_budget(0), FITTED);
    const kakeya_image_facts facts = {
        .size = sizeof facts, .format = "PNG", .width = WIDE * side, .height = HIGH * side, .orientation = 1};
    unsigned char *rgb = calloc(3, (size_t)facts.width * (size_t)facts.height);
    kakeya_image *made = NULL;
    ok(kakeya_image_of_fit(f.engine, &facts, FITTED, facts.width, facts.height, rgb, &made, &failure));
    kakeya_image_fit fit;
    KAKEYA_INIT(&fit);
    assert_true(kakeya_image_fitted(made, &fit));
    assert_int_equal(fit.width, facts.width);
    assert_int_equal(fit.height, facts.height);
    int tokens = 0;
    const kakeya_media media = {.image = made, .budget = FITTED};
    ok(kakeya_engine_image_tokens(f.engine, &media, &tokens, &failure));
    assert_int_equal(tokens, FITTED);
    kakeya_image_close(made);
    made = NULL;
    assert_int_equal(
        kakeya_image_of_fit(f.engine, &facts, FITTED, facts.width - side, facts.height, rgb, &made, &failure),
        KAKEYA_INVALID_ARGUMENT);
    assert_null(made);
    free(rgb);
    close_model(&f);
}

static bool ignore(void *user, const kakeya_chat_event *event) {
    (void)user, (void)event;
    return true;
}

/* A server that must not cut a thought off asks where the next token belongs. */
static void test_place_of_the_next_token(void **state) {
    (void)state;
    kakeya_engine *engine = open_demo(KAKEYA_PRECISION_BF16);
    const kakeya_tokenizer *tokenizer = kakeya_engine_tokenizer(engine);
    kakeya_chat_parser_options options;
    KAKEYA_INIT(&options);
    options.on_event = ignore;
    kakeya_chat_parser *parser;
    ok(kakeya_chat_parser_open(tokenizer, &options, &parser, &failure));
    assert_int_equal(kakeya_chat_parser_place(parser), KAKEYA_CHAT_IN_CONTENT);
    static const struct {
        const char *text;
        kakeya_chat_place place;
    } steps[] = {
        {"<|channel>", KAKEYA_CHAT_UNDECIDED},
        {"thought\nHm.", KAKEYA_CHAT_IN_REASONING},
        {"<channel|>Yes.", KAKEYA_CHAT_IN_CONTENT},
        {"<|tool_call>call:f{", KAKEYA_CHAT_IN_CALL},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        int32_t *ids;
        size_t n;
        ok(kakeya_tokenize(tokenizer, steps[i].text, strlen(steps[i].text), KAKEYA_TEXT_PARSE_SPECIAL, &ids, &n,
                           &failure));
        ok(kakeya_chat_parser_feed(parser, ids, n, NULL, &failure));
        kakeya_free(ids);
        assert_int_equal(kakeya_chat_parser_place(parser), steps[i].place);
    }
    kakeya_chat_parser_close(parser);
    kakeya_engine_close(engine);
}

/* Before a model is opened under a limit on its weights: what every token needs, and what an expert takes. */
static void test_what_a_limit_on_weights_comes_to(void **state) {
    (void)state;
    kakeya_weights_needs needs = {.size = sizeof needs};
    ok(kakeya_weights_inspect(KAKEYA_MODELS "/demo", 0, &needs, &failure));
    assert_true(needs.resident > 0 && needs.expert_bytes > 0);
    assert_int_equal(needs.experts, 12 * 16); /* layers, experts of each */
    assert_true(needs.wanted > 0 && needs.wanted < needs.experts && needs.wanted % 12 == 0);
    assert_true(needs.read_bytes_per_second == 0); /* which was not measured */
    assert_int_equal(kakeya_weights_inspect(KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense", 0, &needs, &failure),
                     KAKEYA_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_saved_session_needs),
        cmocka_unit_test(test_request_that_is_polled),
        cmocka_unit_test(test_pictures),
        cmocka_unit_test(test_picture_that_was_fitted_elsewhere),
        cmocka_unit_test(test_place_of_the_next_token),
        cmocka_unit_test(test_what_a_limit_on_weights_comes_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
