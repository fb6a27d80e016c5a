/* Protects the public face of conversations: JSON to tokens, tokens to events, stop strings in the content alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kakeya.h"

static kakeya_tokenizer *open_demo(void) {
    kakeya_error error = {0};
    kakeya_tokenizer *t;
    if (kakeya_tokenizer_open(KAKEYA_MODELS "/demo", &t, &error)) fail_msg("%s", error.message);
    return t;
}

static void assert_status(kakeya_status status, const kakeya_error *error) {
    if (status) fail_msg("%s", error->message);
}

/* ------------------------------------------------------------------------------------------------ prompts */

static int32_t *tokens_of(const kakeya_tokenizer *t, const char *json, const kakeya_chat_options *options, size_t *n,
                          size_t *n_stable) {
    kakeya_error error = {0};
    int32_t *ids;
    assert_status(kakeya_chat_tokens(t, json, strlen(json), options, &ids, n, n_stable, &error), &error);
    return ids;
}

static void assert_text(const kakeya_tokenizer *t, const int32_t *ids, size_t n, const char *expected) {
    kakeya_error error = {0};
    char *text;
    size_t bytes;
    assert_status(kakeya_detokenize(t, ids, n, true, &text, &bytes, &error), &error);
    assert_string_equal(text, expected);
    kakeya_free(text);
}

static void test_json_equals_pairs(void **state) {
    (void)state;
    kakeya_tokenizer *t = open_demo();
    const kakeya_message pairs[] = {
        {"system", "Be <turn|> brief."}, {"user", "Hi"}, {"model", "Hello"}, {"user", "So?"}};
    static const char json[] =
        "[{\"role\":\"system\",\"content\":\"Be <turn|> brief.\"},{\"role\":\"user\",\"content\":"
        "[{\"type\":\"text\",\"text\":\"Hi\"}]},{\"role\":\"assistant\",\"content\":\"Hello\"},"
        "{\"role\":\"user\",\"content\":\"So?\"}]";
    for (int thinking = 0; thinking < 2; thinking++) {
        kakeya_error error = {0};
        kakeya_chat_options options;
        KAKEYA_INIT(&options);
        options.thinking = thinking;
        int32_t *expected;
        size_t n_expected, n, n_stable, n_alone;
        assert_status(kakeya_message_tokens(t, pairs, 4, thinking, &expected, &n_expected, &error), &error);
        int32_t *ids = tokens_of(t, json, &options, &n, &n_stable);
        assert_int_equal(n, n_expected);
        assert_memory_equal(ids, expected, n * sizeof *ids);
        options.without_turn = true;
        int32_t *alone = tokens_of(t, json, &options, &n_alone, NULL);
        assert_int_equal(n_alone, n_stable);
        assert_true(n_stable < n);
        assert_memory_equal(alone, ids, n_stable * sizeof *ids);
        kakeya_free(alone);
        kakeya_free(ids);
        kakeya_free(expected);
    }
    kakeya_tokenizer_close(t);
}

static void test_tools(void **state) {
    (void)state;
    kakeya_tokenizer *t = open_demo();
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"g\",\"description\":\"G.\"}}]";
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"model\":\"x\",\"tools\":[{"
                                  "\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"F.\"}}]}";
    size_t n;
    int32_t *ids = tokens_of(t, request, NULL, &n, NULL);
    assert_text(t, ids, n,
                "<bos><|turn>system\n<|tool>declaration:f{description:<|\"|>F.<|\"|>}<tool|><turn|>\n<|turn>user\nHi"
                "<turn|>\n<|turn>model\n");
    static char marked[sizeof request + 3] = "\xef\xbb\xbf"; /* as editors on Windows save it */
    strcat(marked, request);
    size_t n_marked;
    int32_t *same = tokens_of(t, marked, NULL, &n_marked, NULL);
    assert_int_equal(n_marked, n);
    assert_memory_equal(same, ids, n * sizeof *ids);
    kakeya_free(same);
    kakeya_free(ids);
    kakeya_chat_options options;
    KAKEYA_INIT(&options);
    options.tools = tools;
    options.tools_bytes = sizeof tools - 1;
    ids = tokens_of(t, request, &options, &n, NULL);
    assert_text(t, ids, n,
                "<bos><|turn>system\n<|tool>declaration:g{description:<|\"|>G.<|\"|>}<tool|><turn|>\n<|turn>user\nHi"
                "<turn|>\n<|turn>model\n");
    kakeya_free(ids);
    kakeya_tokenizer_close(t);
}

/* The answer goes on with what the last message has begun to say. */
static void test_continue_last(void **state) {
    (void)state;
    kakeya_tokenizer *t = open_demo();
    static const struct {
        const char *rest, *last, *text; /* text NULL: refused */
    } cases[] = {
        {"{\"role\":\"user\",\"content\":\"Hi\"}", "{\"role\":\"assistant\",\"content\":\"Hel\"}", "Hel"},
        {"{\"role\":\"user\",\"content\":\"Hi\"}",
         "{\"role\":\"model\",\"reasoning_content\":\"hm\",\"content\":[{\"type\":\"text\",\"text\":\" a\"},"
         "{\"type\":\"text\",\"text\":\"<turn|> \\n\"}]}",
         " a<turn|> \n"},
        {"{\"role\":\"user\",\"content\":\"Hi\"}", "{\"role\":\"assistant\",\"content\":null}", ""},
        {"{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":"
         "{\"name\":\"f\",\"arguments\":\"{}\"}}]},{\"role\":\"tool\",\"content\":\"21\"}",
         "{\"role\":\"assistant\",\"content\":\"It is \"}", "It is "},
        {"{\"role\":\"assistant\",\"content\":\"A\"}", "{\"role\":\"user\",\"content\":\"Hi\"}", NULL},
        {"{\"role\":\"user\",\"content\":\"Hi\"}",
         "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\"}}]}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[600];
        kakeya_chat_options options;
        KAKEYA_INIT(&options);
        options.continue_last = true;
        options.without_turn = i % 2;
        int32_t *ids = NULL, *more;
        size_t n = 0, n_stable, n_rest, n_rest_stable, n_more;
        kakeya_error error = {0};
        snprintf(json, sizeof json, "[%s,%s]", cases[i].rest, cases[i].last);
        if (!cases[i].text) {
            assert_int_equal(kakeya_chat_tokens(t, json, strlen(json), &options, &ids, &n, &n_stable, &error),
                             KAKEYA_INVALID_ARGUMENT);
            assert_non_null(strstr(error.message, "messages[1]"));
            assert_null(ids);
            continue;
        }
        ids = tokens_of(t, json, &options, &n, &n_stable);
        snprintf(json, sizeof json, "[%s]", cases[i].rest);
        int32_t *rest = tokens_of(t, json, NULL, &n_rest, &n_rest_stable);
        const char *text = cases[i].text;
        assert_status(kakeya_tokenize(t, text, strlen(text), KAKEYA_TEXT_LITERAL, &more, &n_more, &error), &error);
        assert_int_equal(n_stable, n_rest_stable);
        assert_int_equal(n, n_rest + n_more);
        assert_memory_equal(ids, rest, n_rest * sizeof *ids);
        if (n_more) assert_memory_equal(ids + n_rest, more, n_more * sizeof *ids);
        kakeya_free(more);
        kakeya_free(rest);
        kakeya_free(ids);
    }
    kakeya_tokenizer_close(t);
}

/* Messages with all that they may hold come to the tokens of their JSON form. */
static void test_messages_equal_json(void **state) {
    (void)state;
    kakeya_tokenizer *t = open_demo();
    static const char json[] =
        "[{\"role\":\"developer\",\"content\":[{\"type\":\"text\",\"text\":\" a \"},{\"type\":\"text\",\"text\":"
        "\"b\"}]},{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"reasoning\":\"hm\",\"content\":"
        "null,\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":{\"x\":1.50}}},{\"id\":"
        "\"2\",\"function\":{\"name\":\"g\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":\"21\"},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":[]},{\"role\":\"assistant\",\"tool_calls\":"
        "[{\"function\":{\"name\":\"h\"}}],\"tool_responses\":[{\"name\":\"h\",\"response\":{\"y\":[1e2]}}]},"
        "{\"role\":\"assistant\",\"content\":\"\"}]";
    static const kakeya_chat_part parts[] = {{.text = " a "}, {.text = "b"}}, none[1];
    static const kakeya_chat_call calls[] = {{"1", "f", "{\"x\":1.50}"}, {"2", "g", NULL}, {NULL, "h", ""}};
    static const kakeya_chat_response response = {"h", "{\"y\":[1e2]}"};
    enum { MESSAGES = 7 };
    struct { /* as a later version of the library may have it */
        kakeya_chat_message m;
        size_t more;
    } later[MESSAGES];
    kakeya_chat_message messages[MESSAGES];
    for (int i = 0; i < MESSAGES; i++) KAKEYA_INIT(&messages[i]);
    messages[0].role = "developer";
    messages[0].parts = parts;
    messages[0].n_parts = 2;
    messages[1].role = "user";
    messages[1].content = "Hi";
    messages[2].role = messages[5].role = messages[6].role = "assistant";
    messages[2].reasoning = "hm";
    messages[2].calls = calls;
    messages[2].n_calls = 2;
    messages[3].role = messages[4].role = "tool";
    messages[3].call_id = "2";
    messages[3].content = "21";
    messages[4].call_id = "1";
    messages[4].parts = none;
    messages[5].calls = &calls[2];
    messages[5].responses = &response;
    messages[5].n_calls = messages[5].n_responses = 1;
    messages[6].content = "";
    for (int i = 0; i < MESSAGES; i++) {
        later[i].m = messages[i];
        later[i].m.size = sizeof later[i];
        later[i].more = 0;
    }
    int32_t *expected, *ids;
    size_t n_expected, n_stable, n, stable;
    kakeya_error error = {0};
    expected = tokens_of(t, json, NULL, &n_expected, &n_stable);
    assert_status(kakeya_conversation_tokens(t, messages, MESSAGES, NULL, &ids, &n, &stable, &error), &error);
    assert_int_equal(n, n_expected);
    assert_int_equal(stable, n_stable);
    assert_memory_equal(ids, expected, n * sizeof *ids);
    kakeya_free(ids);
    assert_status(kakeya_conversation_tokens(t, &later[0].m, MESSAGES, NULL, &ids, &n, NULL, &error), &error);
    assert_int_equal(n, n_expected);
    assert_memory_equal(ids, expected, n * sizeof *ids);
    kakeya_free(ids);
    later[3].more = 1;
    assert_int_equal(kakeya_conversation_tokens(t, &later[0].m, MESSAGES, NULL, &ids, &n, NULL, &error),
                     KAKEYA_UNSUPPORTED);
    kakeya_free(expected);
    kakeya_tokenizer_close(t);
}

/* What no message may hold, and where an error is. */
static void test_wrong_messages(void **state) {
    (void)state;
    kakeya_tokenizer *t = open_demo();
    static const int32_t id = 300, none = -1;
    static const kakeya_chat_part text = {.text = NULL}, image = {.type = KAKEYA_CHAT_IMAGE},
                                  unknown = {.type = (kakeya_chat_part_type)9, .text = "x"};
    const struct {
        kakeya_chat_message message;
        const char *expected;
        size_t place_bytes;
    } cases[] = {
        {{.role = "king"}, "messages[0].role is \"king\"", 16},
        {{.role = "tool", .content = "x"}, "messages[0].role: a tool message must follow", 16},
        {{.content = "x"}, "messages[0] has no role", 11},
        {{.role = "assistant", .calls = &(kakeya_chat_call){.id = "1"}, .n_calls = 1},
         "messages[0]: a tool call has no name",
         11},
        {{.role = "assistant", .responses = &(kakeya_chat_response){"f", "{"}, .n_responses = 1},
         "messages[0]: tool response 0",
         11},
        {{.role = "user", .ids = &id, .n_ids = 1}, "messages[0].ids", 0},
        {{.role = "assistant", .ids = &none, .n_ids = 1}, "messages[0].ids[0] is -1", 0},
        {{.role = "user", .parts = &text, .n_parts = 1}, "messages[0].parts[0]: the text is NULL", 0},
        {{.role = "user", .parts = &unknown, .n_parts = 1}, "messages[0].parts[0]: unknown type 9", 0},
        {{.role = "system", .parts = &image, .n_parts = 1}, "holds no images", 0},
        {{.role = "user", .parts = &image, .n_parts = 1}, "messages[0].parts[0] is 0", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kakeya_chat_message message = cases[i].message;
        size_t n = 7, place_bytes = 7;
        int32_t *ids = NULL;
        kakeya_error error = {0};
        kakeya_chat_options options;
        KAKEYA_INIT(&options);
        options.place_bytes = &place_bytes;
        assert_int_equal(kakeya_conversation_tokens(t, &message, 1, &options, &ids, &n, NULL, &error),
                         KAKEYA_INVALID_ARGUMENT); /* no size */
        message.size = sizeof message;
        assert_int_not_equal(kakeya_conversation_tokens(t, &message, 1, &options, &ids, &n, NULL, &error), KAKEYA_OK);
        if (!strstr(error.message, cases[i].expected)) fail_msg("case %zu: %s", i, error.message);
        assert_int_equal(place_bytes, cases[i].place_bytes);
        assert_int_equal(n, 0);
        assert_null(ids);
    }
    kakeya_tokenizer_close(t);
}

/* Runs that do not fit are refused, or are as if they were not there. */
static void test_runs(void **state) {
    (void)state;
    kakeya_tokenizer *t = open_demo();
    static const char json[] = "[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Hello\"},"
                               "{\"role\":\"user\",\"content\":\"So?\"}]";
    int32_t turn = kakeya_tokenizer_find(t, "<|turn>"), ids[3] = {turn, 300, 301}, *out;
    size_t n, n_plain, n_stable;
    kakeya_error error = {0};
    kakeya_chat_run run = {.message = 1, .ids = ids, .n_ids = 3};
    kakeya_chat_options options;
    KAKEYA_INIT(&options);
    options.runs = &run;
    options.n_runs = 1;
    int32_t *plain = tokens_of(t, json, NULL, &n_plain, NULL);
    out = tokens_of(t, json, &options, &n, &n_stable);
    size_t found = 0;
    for (size_t i = 0; i + 3 <= n; i++) found += memcmp(out + i, ids, sizeof ids) == 0;
    assert_int_equal(found, 1);
    assert_true(n_stable < n);
    kakeya_free(out);
    run.ids = ids + 1; /* does not open a turn where the format opens one */
    run.n_ids = 2;
    out = tokens_of(t, json, &options, &n, NULL);
    assert_int_equal(n, n_plain);
    assert_memory_equal(out, plain, n * sizeof *out);
    kakeya_free(out);
    kakeya_free(plain);
    ids[1] = kakeya_tokenizer_vocab_size(t);
    assert_int_equal(kakeya_chat_tokens(t, json, sizeof json - 1, &options, &out, &n, NULL, &error),
                     KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "runs[0].ids[0]"));
    ids[1] = 300;
    run.message = 2;
    assert_int_equal(kakeya_chat_tokens(t, json, sizeof json - 1, &options, &out, &n, NULL, &error),
                     KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "messages[2]"));
    options.runs = NULL;
    assert_int_equal(kakeya_chat_tokens(t, json, sizeof json - 1, &options, &out, &n, NULL, &error),
                     KAKEYA_INVALID_ARGUMENT);
    kakeya_tokenizer_close(t);
}

static void test_refusals(void **state) {
    (void)state;
    kakeya_tokenizer *t = open_demo();
    static const struct {
        const char *json, *tools, *expected;
        kakeya_status status;
    } cases[] = {
        {"hello", NULL, "chat request: byte", KAKEYA_FORMAT},
        {"[]", NULL, "there are no messages", KAKEYA_INVALID_ARGUMENT},
        {"{}", NULL, "\"messages\" is not a list", KAKEYA_INVALID_ARGUMENT},
        {"[{\"role\":\"king\"}]", NULL, "messages[0].role is \"king\"", KAKEYA_INVALID_ARGUMENT},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"image_url\"}]}]", NULL,
         "messages[0].content[1] is a part of type \"image_url\"", KAKEYA_UNSUPPORTED},
        {"[{\"role\":\"user\",\"content\":\"a\"}]", "{\"a\":1}", "tools: not a list", KAKEYA_FORMAT},
        {"[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"tool\",\"content\":\"b\"}]", NULL,
         "messages[1].role: a tool message must follow", KAKEYA_INVALID_ARGUMENT},
        {"[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\"}}]},"
         "{\"role\":\"tool\",\"content\":\"b\"},{\"role\":\"user\",\"content\":\"a\"},"
         "{\"role\":\"tool\",\"content\":\"c\"}]",
         NULL, "messages[3].role: a tool message must follow", KAKEYA_INVALID_ARGUMENT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kakeya_error error = {0};
        kakeya_chat_options options;
        KAKEYA_INIT(&options);
        options.tools = cases[i].tools;
        options.tools_bytes = cases[i].tools ? strlen(cases[i].tools) : 0;
        int32_t *ids;
        size_t n;
        kakeya_status status =
            kakeya_chat_tokens(t, cases[i].json, strlen(cases[i].json), &options, &ids, &n, NULL, &error);
        assert_int_equal(status, cases[i].status);
        assert_null(ids);
        if (!strstr(error.message, cases[i].expected)) fail_msg("%s: %s", cases[i].json, error.message);
    }
    kakeya_error error = {0};
    kakeya_chat_options unset = {0};
    kakeya_chat_parser_options parser_unset = {0};
    kakeya_chat_parser *parser;
    int32_t *ids;
    size_t n;
    assert_int_equal(kakeya_chat_tokens(t, "[]", 2, &unset, &ids, &n, NULL, &error), KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(kakeya_chat_tokens(NULL, "[]", 2, NULL, &ids, &n, NULL, &error), KAKEYA_UNSUPPORTED);
    assert_int_equal(kakeya_chat_parser_open(t, &parser_unset, &parser, &error), KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(kakeya_chat_parser_open(NULL, NULL, &parser, &error), KAKEYA_UNSUPPORTED);
    const char *empty = "";
    kakeya_chat_parser_options options;
    KAKEYA_INIT(&options);
    options.stop_strings = &empty;
    options.n_stop_strings = 1;
    assert_int_equal(kakeya_chat_parser_open(t, &options, &parser, &error), KAKEYA_INVALID_ARGUMENT);
    assert_null(parser);
    kakeya_tokenizer_close(t);
}

/* ------------------------------------------------------------------------------------------------ answers */

typedef struct heard {
    char text[4096];
    size_t events, refuse_at; /* refuse_at: 0 for never */
    int last;
} heard;

static bool hear(void *user, const kakeya_chat_event *event) {
    static const char *const marks[] = {"|C", "|R", "|", "", "."};
    heard *h = user;
    size_t used = strlen(h->text);
    assert_int_equal(event->size, sizeof *event);
    const char *mark = event->type < KAKEYA_CHAT_CALL_BEGIN && h->last == (int)event->type ? "" : marks[event->type];
    int bytes = (int)event->text_bytes;
    snprintf(h->text + used, sizeof h->text - used, "%s%s%.*s", mark,
             event->type == KAKEYA_CHAT_CALL_BEGIN ? event->name : "", bytes, bytes ? event->text : "");
    h->last = (int)event->type;
    return ++h->events != h->refuse_at;
}

/* Parses text in which control tokens are control tokens, in blocks. */
static kakeya_status parse(const kakeya_tokenizer *t, const char *answer, const char *const *stops, size_t n_stops,
                           size_t block, kakeya_finish finish, heard *h, kakeya_chat_summary *summary) {
    kakeya_error error = {0};
    int32_t *ids;
    size_t n;
    assert_status(kakeya_tokenize(t, answer, strlen(answer), KAKEYA_TEXT_PARSE_SPECIAL, &ids, &n, &error), &error);
    kakeya_chat_parser_options options;
    KAKEYA_INIT(&options);
    options.stop_strings = stops;
    options.n_stop_strings = n_stops;
    options.on_event = hear;
    options.user = h;
    h->last = -1;
    kakeya_chat_parser *parser;
    assert_status(kakeya_chat_parser_open(t, &options, &parser, &error), &error);
    kakeya_status status = KAKEYA_OK;
    bool stopped = false;
    for (size_t at = 0; at < n && !status; at += block) {
        status = kakeya_chat_parser_feed(parser, ids + at, block < n - at ? block : n - at, &stopped, &error);
    }
    KAKEYA_INIT(summary);
    if (!status) status = kakeya_chat_parser_finish(parser, finish, summary, &error);
    if (!status) assert_int_equal(stopped, summary->stop_string >= 0);
    kakeya_chat_parser_close(parser);
    kakeya_free(ids);
    return status;
}

static void test_answers(void **state) {
    (void)state;
    static const char *const stops[] = {"END", "\n\n", "漢字漢"};
    static const struct {
        const char *answer, *expected, *finish_reason;
        kakeya_finish finish;
        int stop_string;
        size_t calls, complete_calls;
    } cases[] = {
        {"Hello.", "|CHello.", "stop", KAKEYA_FINISH_STOP, -1, 0, 0},
        {"Hello.", "|CHello.", "length", KAKEYA_FINISH_LENGTH, -1, 0, 0},
        {"Hello.", "|CHello.", "cancelled", KAKEYA_FINISH_CANCELLED, -1, 0, 0},
        {"This is the END of it.", "|CThis is the ", "stop", KAKEYA_FINISH_CANCELLED, 0, 0, 0},
        {"one\n\ntwo", "|Cone", "stop", KAKEYA_FINISH_STOP, 1, 0, 0},
        {"漢字漢字 and so", "|C", "stop", KAKEYA_FINISH_STOP, 2, 0, 0},
        {"漢字 and EN", "|C漢字 and EN", "stop", KAKEYA_FINISH_STOP, -1, 0, 0},
        {"<|channel>thought\nthe END\n\nof it<channel|>Yes.", "|Rthe END\n\nof it|CYes.", "stop", KAKEYA_FINISH_STOP,
         -1, 0, 0},
        {"the EN<|tool_call>call:f{a:<|\"|>END<|\"|>}<tool_call|>", "|Cthe EN|f{\"a\":\"END\"}.", "tool_calls",
         KAKEYA_FINISH_STOP, -1, 1, 1},
        {"the EN<|tool_call>call:f{}<tool_call|>D", "|Cthe EN|f{}.|CD", "tool_calls", KAKEYA_FINISH_STOP, -1, 1, 1},
        {"<|tool_call>call:f{a:<|\"|>x", "|f{\"a\":\"x\"}.", "tool_calls", KAKEYA_FINISH_STOP, -1, 1, 1},
        {"<|tool_call>call:f{a:<|\"|>x", "|f{\"a\":\"x", "length", KAKEYA_FINISH_LENGTH, -1, 1, 0},
        {"x END<|tool_call>call:f{}<tool_call|>", "|Cx ", "stop", KAKEYA_FINISH_STOP, 0, 0, 0},
    };
    kakeya_tokenizer *t = open_demo();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t block = 1; block < 12; block += 2) {
            heard h = {0};
            kakeya_chat_summary summary;
            assert_int_equal(parse(t, cases[i].answer, stops, 3, block, cases[i].finish, &h, &summary), KAKEYA_OK);
            const char *expected = strcmp(cases[i].expected, "|C") == 0 ? "" : cases[i].expected;
            if (strcmp(h.text, expected) != 0) {
                fail_msg("%s in blocks of %zu: %s, expected %s", cases[i].answer, block, h.text, expected);
            }
            assert_string_equal(summary.finish_reason, cases[i].finish_reason);
            assert_int_equal(summary.stop_string, cases[i].stop_string);
            assert_int_equal(summary.calls, cases[i].calls);
            assert_int_equal(summary.complete_calls, cases[i].complete_calls);
        }
    }
    kakeya_tokenizer_close(t);
}

static void test_names(void **state) {
    (void)state;
    static const char *const names[] = {"content", "reasoning", "call-begin", "call-arguments", "call-end"};
    for (int i = 0; i < 5; i++) assert_string_equal(kakeya_chat_event_name((kakeya_chat_event_type)i), names[i]);
    assert_null(kakeya_chat_event_name((kakeya_chat_event_type)5));
    assert_null(kakeya_chat_event_name((kakeya_chat_event_type)-1));
}

static void test_a_callback_ends_it(void **state) {
    (void)state;
    static const char *const stops[] = {"ENDE"}, *const answers[] = {"the END<|tool_call>call:f{}<tool_call|>",
                                                                     "the EN"};
    kakeya_tokenizer *t = open_demo();
    for (size_t i = 0; i < 2; i++) {
        heard all = {0};
        kakeya_chat_summary summary;
        assert_int_equal(parse(t, answers[i], stops, 1, 100, KAKEYA_FINISH_STOP, &all, &summary), KAKEYA_OK);
        assert_true(all.events >= 2);
        for (size_t refuse_at = 1; refuse_at <= all.events; refuse_at++) {
            heard h = {.refuse_at = refuse_at};
            assert_int_equal(parse(t, answers[i], stops, 1, 100, KAKEYA_FINISH_STOP, &h, &summary), KAKEYA_CANCELLED);
            assert_int_equal(h.events, refuse_at);
        }
    }
    kakeya_tokenizer_close(t);
}

/* Several answers to one request read its tools once, and need neither the text nor the first parser any more. */
static void test_parsers_share_tools(void **state) {
    (void)state;
    kakeya_tokenizer *t = open_demo();
    char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                   "\"properties\":{\"a\":{\"type\":\"string\"}}}}}]";
    kakeya_error error = {0};
    heard h = {.last = -1};
    kakeya_chat_parser_options options;
    KAKEYA_INIT(&options);
    options.on_event = hear;
    options.user = &h;
    options.tools = tools;
    options.tools_bytes = strlen(tools);
    kakeya_chat_parser *first, *second, *third;
    assert_status(kakeya_chat_parser_open(t, &options, &first, &error), &error);
    memset(tools, 'x', strlen(tools));
    options.like = first;
    assert_status(kakeya_chat_parser_open(t, &options, &second, &error), &error);
    kakeya_chat_parser_close(first);
    options.like = second;
    assert_status(kakeya_chat_parser_open(t, &options, &third, &error), &error);
    kakeya_chat_parser_close(second);
    /* declared, so that its marker may be missing, and 1 is a text */
    const char *answer = "call:f{a:1}";
    int32_t *ids;
    size_t n;
    assert_status(kakeya_tokenize(t, answer, strlen(answer), KAKEYA_TEXT_PARSE_SPECIAL, &ids, &n, &error), &error);
    assert_status(kakeya_chat_parser_feed(third, ids, n, NULL, &error), &error);
    assert_status(kakeya_chat_parser_finish(third, KAKEYA_FINISH_STOP, NULL, &error), &error);
    assert_string_equal(h.text, "|f{\"a\":\"1\"}.");
    kakeya_chat_parser_close(third);
    /* one without tools has none to share */
    KAKEYA_INIT(&options);
    options.on_event = hear;
    options.user = &h;
    assert_status(kakeya_chat_parser_open(t, &options, &first, &error), &error);
    options.like = first;
    assert_status(kakeya_chat_parser_open(t, &options, &second, &error), &error);
    kakeya_chat_parser_close(first);
    h = (heard){.last = -1};
    assert_status(kakeya_chat_parser_feed(second, ids, n, NULL, &error), &error);
    assert_string_equal(h.text, "|Ccall:f{a:1}");
    kakeya_chat_parser_close(second);
    kakeya_free(ids);
    kakeya_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_equals_pairs),
        cmocka_unit_test(test_continue_last),
        cmocka_unit_test(test_messages_equal_json),
        cmocka_unit_test(test_wrong_messages),
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_tools),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_parsers_share_tools),
        cmocka_unit_test(test_a_callback_ends_it),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
