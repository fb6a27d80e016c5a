/* Protects: answers taken apart into reasoning, content and tool calls by token ids; text that only looks like control
 * tokens; arguments that are JSON whatever the model wrote; limits. */
#include "chat_hearing.h"

#include "text/chat_json.h"

typedef struct example {
    const char *answer, *expected;
    size_t repairs;
} example;

static void check_examples(const example *examples, size_t n, const chat_parser_options *options, chat_ending ending) {
    tokenizer *t = open_demo_tokenizer();
    for (size_t i = 0; i < n; i++) {
        size_t n_ids;
        int32_t *ids = marked(t, examples[i].answer, &n_ids);
        for (int how = CUT_SINGLE; how <= CUT_RANDOM; how++) {
            heard h = parse_ids(t, ids, n_ids, (cut)how, ending, options);
            assert_heard(examples[i].answer, &h, examples[i].expected);
            if (h.counts.repairs != examples[i].repairs) {
                fail_msg("%s: %zu repairs, expected %zu", examples[i].answer, h.counts.repairs, examples[i].repairs);
            }
            heard_free(&h);
        }
        free(ids);
    }
    tokenizer_close(t);
}

#define CHECK(examples, options, ending) check_examples(examples, sizeof examples / sizeof *examples, options, ending)

/* ------------------------------------------------------------------------------------------------ examples */

static void test_states(void **state) {
    (void)state;
    static const example examples[] = {
        {"", "", 0},
        {"Hello.", "|CHello.", 0},
        {" Hello. \n", "|C Hello. \n", 0},
        {"<|channel>thought\nHm.\n<channel|>\n\nHello.<turn|>", "|RHm.|CHello.", 0},
        {"<|channel>thought\n<channel|>Hello.", "|CHello.", 0},
        {"<|channel>thought\n  deep\n\n thought \n<channel|> \n Hello. ", "|R  deep\n\n thought|CHello. ", 0},
        {"<|channel>thought\none<channel|>a \n<|channel>thought\ntwo\n<channel|> b", "|Rone|Ca \n|R\ntwo|Cb", 0},
        {"<|channel><channel|>Hello.", "|CHello.", 0},
        {"<|channel>final\nHello.", "|Cfinal\nHello.", 1},
        {"<|channel>thoughtful", "|Cthoughtful", 1},
        {"<|channel>analysis\nHm.\n<channel|>Hello.", "|RHm.|CHello.", 0},
        {"<|channel>final\nHello.<channel|>Bye.", "|RHello.|CBye.", 0},
        {"<|channel>thoughts\n<channel|>Hello.", "|CHello.", 0},
        {"<|channel>thoughtful<channel|>x", "|Rthoughtful|Cx", 0},
        {"<|channel>Let me think.\nSo.<channel|>x", "|RLet me think.\nSo.|Cx", 0},
        {"<|channel>\nso\n<channel|>x", "|R\nso|Cx", 0},
        {"a \n<|channel>x1\nsay <|\"|>hi<|\"|><channel|> b", "|Ca \n|Rsay \"hi\"|Cb", 0},
        {"<|channel>plan\none<channel|>a<|channel>thought\ntwo<channel|>b", "|Rone|Ca|R\ntwo|Cb", 0},
        {"<|channel>plan\none<|channel>thought\ntwo<channel|>b", "|Ronethought\ntwo|Cb", 1},
        {"<|channel>plan\nI call.<|tool_call>call:f{}<tool_call|>", "|RI call.|f{}.", 1},
        {"<|channel>Hello.<|tool_call>call:f{}<tool_call|>", "|CHello.|f{}.", 1},
        {"<|channel>plan\nx<turn|>\n<|turn>model\ny", "|Cplan\nx\ny", 2},
        {"Hello.<|channel>", "|CHello.", 0},
        {"Hello.<channel|>", "|CHello.", 0},
        {"Hello.<channel|><turn|>", "|CHello.", 0},
        {"say <|\"|>hi<|\"|>!", "|Csay \"hi\"!", 0},
        {"<|channel>thought\nsay <|\"|>hi<|\"|><|channel>!<channel|>x", "|Rsay \"hi\"!|Cx", 1},
        {"<|channel>thought\nnever closed", "|Rnever closed", 0},
        {"<|turn>model\nHello.", "|CHello.", 1},
        {"<|turn>Hello.", "|CHello.", 1},
        {"<|turn>model", "|Cmodel", 1},
        {"<|channel>thought\nx<|turn>model\nHello.", "|Rx|CHello.", 1},
        {"a<|tool>b<tool|>c<|think|>d<pad>e", "|Cabcde", 4},
        {"one<turn|>\n<|turn>user\ntwo", "|Cone\ntwo", 1},
        {"Let me see.\n\n<|tool_call>call:f{}<tool_call|><|tool_response>", "|CLet me see.\n\n|f{}.", 0},
        {"<|tool_call>call:f{}<tool_call|><|tool_call>call:f{a:1}<tool_call|>", "|f{}.|f{\"a\":1}.", 0},
        {"<|tool_call>call:f{}<tool_call|> \n<tool_call|> and then", "|f{}.|Cand then", 0},
        {"<|channel>thought\nHm. <|tool_call>call:f{}<tool_call|>", "|RHm.|f{}.", 1},
        {"<|tool_call>call:f{a:1}<|channel>thought\nx<channel|>y", "|f{\"a\":1}.|Rx|Cy", 0},
        {"<tool_call|>x", "|Cx", 1},
    };
    CHECK(examples, NULL, CHAT_ENDING_STOP);
    /* Where tools are declared, white space may be all that stands in front of a call. */
    static const example declared[] = {
        {"Let me see.\n\n<|tool_call>call:f{}<tool_call|><|tool_response>", "|CLet me see.|f{}.", 0},
        {"a \n b\n", "|Ca \n b\n", 0},
    };
    const chat_parser_options options = {.tools = weather_tools};
    CHECK(declared, &options, CHAT_ENDING_STOP);
}

/* Behind content, white space is an event of its own at once, unless a call may follow it. */
static void test_white_space(void **state) {
    (void)state;
    const chat_parser_options options = {.tools = weather_tools};
    tokenizer *t = open_demo_tokenizer();
    size_t n;
    int32_t *ids = marked(t, "a\n\n \n b", &n);
    heard at_once = parse_ids(t, ids, n, CUT_SINGLE, CHAT_ENDING_STOP, NULL);
    heard held = parse_ids(t, ids, n, CUT_SINGLE, CHAT_ENDING_STOP, &options);
    assert_string_equal(at_once.all.text, held.all.text);
    assert_true(n > 2);
    assert_int_equal(at_once.events, n);
    assert_int_equal(held.events, 2);
    heard_free(&at_once);
    heard_free(&held);
    free(ids);
    tokenizer_close(t);
}

static void test_calls(void **state) {
    (void)state;
    static const example examples[] = {
        {"<|tool_call>call:f{a:<|\"|>x<|\"|>}<tool_call|>", "|f{\"a\":\"x\"}.", 0},
        {"<|tool_call>f{a:1}<tool_call|>", "|f{\"a\":1}.", 0},
        {"<|tool_call>:f{a:1}<tool_call|>", "|f{\"a\":1}.", 0},
        {"<|tool_call> call: my-tool.v2_x {a:1}<tool_call|>", "|my-tool.v2_x{\"a\":1}.", 0},
        {"<|tool_call>call:f(a:1)<tool_call|>", "|f{\"a\":1}.", 0},
        {"<|tool_call>call:f(a=1, b='x=y')<tool_call|>", "|f{\"a\":1,\"b\":\"'x=y'\"}.", 0},
        {"<|tool_call>call:f{a:(x),b:[1]}<tool_call|>", "|f{\"a\":\"(x)\",\"b\":[1]}.", 0},
        {"<|tool_call>call:f{a:{b:{c:[1,[2,{d:<|\"|><|\"|>}]]}}}<tool_call|>",
         "|f{\"a\":{\"b\":{\"c\":[1,[2,{\"d\":\"\"}]]}}}.", 0},
        {"<|tool_call>call:f{a:1,b:-0.5e3,c:108.25,d:123456789012345678901234567890,e:1e-7,f:-0}<tool_call|>",
         "|f{\"a\":1,\"b\":-0.5e3,\"c\":108.25,\"d\":123456789012345678901234567890,\"e\":1e-7,\"f\":-0}.", 0},
        {"<|tool_call>call:f{a:01,b:1.,c:.5,d:+1,e:1e,f:0x1,g:NaN}<tool_call|>",
         "|f{\"a\":\"01\",\"b\":\"1.\",\"c\":\".5\",\"d\":\"+1\",\"e\":\"1e\",\"f\":\"0x1\",\"g\":\"NaN\"}.", 0},
        {"<|tool_call>call:f{a:true,b:false,c:null,d:None,e:nil,f:bare word,g:True}<tool_call|>",
         "|f{\"a\":true,\"b\":false,\"c\":null,\"d\":null,\"e\":null,\"f\":\"bare word\",\"g\":true}.", 0},
        {"<|tool_call>call:f{ a : 1 , , b : [ 1 , , 2 , ] , }<tool_call|>", "|f{\"a\":1,\"b\":[1,2]}.", 0},
        {"<|tool_call>call:f{<|\"|>a<|\"|>:1,\"b\":2,<|\"|>c:}<|\"|> : 3}<tool_call|>",
         "|f{\"a\":1,\"b\":2,\"c:}\":3}.", 0},
        {"<|tool_call>call:f{a:<|\"|>{,}:[]\"\\\n\t\x01<|\"|>}<tool_call|>",
         "|f{\"a\":\"{,}:[]\\\"\\\\\\n\\t\\u0001\"}.", 0},
        {"<|tool_call>call:f{a:<|\"|>né—漢字😊<|\"|>,naïve:<|\"|>é<|\"|>}<tool_call|>",
         "|f{\"a\":\"né—漢字😊\",\"naïve\":\"é\"}.", 0},
        {"<|tool_call>call:f{a:\"x\",b:\"say \"hi\" to you\",c:\"\\\"\\n\\u00e9\\ud83d\\ude0a\\/\"}<tool_call|>",
         "|f{\"a\":\"x\",\"b\":\"say \\\"hi\\\" to you\",\"c\":\"\\\"\\né😊/\"}.", 5},
        {"<|tool_call>call:f{a:\"\\ud83d!\",b:\"\\ude0a\",c:\"\\q\",d:\"\\u12x\",e:\"\\u0000\"}<tool_call|>",
         "|f{\"a\":\"\xEF\xBF\xBD!\",\"b\":\"\xEF\xBF\xBD\",\"c\":\"\\\\q\",\"d\":\"\xEF\xBF\xBDx\","
         "\"e\":\"\\u0000\"}.",
         7},
        {"<|tool_call>call:f{\"a\\u0000b\":1,\"\\u0000\":{c:2}}<tool_call|>", /* a request has no such keys */
         "|f{\"a\xEF\xBF\xBD"
         "b\":1,\"\xEF\xBF\xBD\":{\"c\":2}}.",
         2},
        {"<|tool_call>call:f{a:\"one<|\"|>,b:1}<tool_call|>", "|f{\"a\":\"one\",\"b\":1}.", 1},
        {"<|tool_call>call:f{a:1 b:2}<tool_call|>", "|f{\"a\":\"1 b:2\"}.", 0},
        {"<|tool_call>call:f{a:<|\"|>1<|\"|>b:2}<tool_call|>", "|f{\"a\":\"1\",\"b\":2}.", 1},
        {"<|tool_call>call:f{a:[<|\"|>1<|\"|><|\"|>2<|\"|>]}<tool_call|>", "|f{\"a\":[\"1\",\"2\"]}.", 1},
        {"<|tool_call>call:f{a:,b:2,c}<tool_call|>", "|f{\"a\":null,\"b\":2,\"c\":null}.", 2},
        {"<|tool_call>call:f{a:[1,2},b:3}<tool_call|>", "|f{\"a\":[1,2],\"b\":3}.", 1},
        {"<|tool_call>call:f{{a:1}}<tool_call|>", "|f{\"a\":1}.", 2},
        {"<|tool_call>call:f{a:{b:[<|\"|>x<tool_call|>", "|f{\"a\":{\"b\":[\"x\"]}}.", 1},
        {"<|tool_call>call:f{a:12<tool_call|>", "|f{\"a\":12}.", 1},
        {"<|tool_call>call:f{a:\"x<tool_call|>", "|f{\"a\":\"x\"}.", 2},
        {"<|tool_call>call:f{a:<tool_call|>", "|f{\"a\":null}.", 1},
        {"<|tool_call>call:f{a<tool_call|>", "|f{\"a\":null}.", 2},
        {"<|tool_call>call:f{a:1,<turn|>", "|f{\"a\":1}.", 1},
        {"<|tool_call>call:f<tool_call|>", "|f{}.", 2},
        {"<|tool_call>call:<tool_call|>x", "|Cx", 1},
        {"<|tool_call><tool_call|>", "", 1},
        {"<|tool_call>call:f{a:1<|tool_call>call:g{}<tool_call|>", "|f{\"a\":1}.|g{}.", 2},
        {"<|tool_call>call:f{a:1}Done.<tool_call|> Yes", "|f{\"a\":1}.|CDone. Yes", 1},
        {"<|tool_call>call:f{a:1<|channel>2<|tool>3}<tool_call|>", "|f{\"a\":123}.", 2},
    };
    CHECK(examples, NULL, CHAT_ENDING_STOP);
}

static void test_cut_answers(void **state) {
    (void)state;
    static const example examples[] = {
        {"Hello. ", "|CHello. ", 0},
        {"<|tool_call>call:f{a:{b:[<|\"|>x", "|f{\"a\":{\"b\":[\"x", 0},
        {"<|tool_call>call:f{a:12", "|f{\"a\":", 0},
        {"<|tool_call>call:f", "", 0},
        {"<|tool_call>call:f{a:1}", "|f{\"a\":1}.", 0},
        {"<|channel>thought\nHm. ", "|RHm.", 0},
        {"<|channel>thou", "", 0},
        {"<|channel>plan\nHm. ", "|RHm.", 0},
        {"<|channel>pla", "|Cpla", 1},
    };
    CHECK(examples, NULL, CHAT_ENDING_CUT);
}

static void test_declared_types(void **state) {
    (void)state;
    static const example examples[] = {
        {"<|tool_call>call:weather{city:12,zip:01,days:3}<tool_call|>",
         "|weather{\"city\":\"12\",\"zip\":\"01\",\"days\":3}.", 0},
        {"<|tool_call>call:weather{zip:null,city:null,days:12ab}<tool_call|>",
         "|weather{\"zip\":null,\"city\":\"null\",\"days\":\"12ab\"}.", 0},
        {"<|tool_call>call:weather{city:Paris, France, days:3}<tool_call|>",
         "|weather{\"city\":\"Paris, France\",\"days\":3}.", 0},
        {"<|tool_call>call:weather{city:Paris, a:b, France,}<tool_call|>", "|weather{\"city\":\"Paris, a:b, France\"}.",
         0},
        {"<|tool_call>call:weather{deep:{code:1,again:{code:true,again:{code:x, code:2}}}}<tool_call|>",
         "|weather{\"deep\":{\"code\":\"1\",\"again\":{\"code\":true,\"again\":{\"code\":\"x\",\"code\":\"2\"}}}}.", 0},
        {"<|tool_call>call:weather{tags:[1,2, x],extra:{a:1}}<tool_call|>",
         "|weather{\"tags\":[\"1\",\"2\",\"x\"],\"extra\":{\"a\":\"1\"}}.", 0},
        {"<|tool_call>call:other{city:12}<tool_call|>", "|other{\"city\":12}.", 0},
        /* a call whose marker is missing */
        {"call:weather{days:1}", "|weather{\"days\":1}.", 1},
        {" \ncall:weather.now{}", "|weather.now{}.", 1},
        {"<|channel>thought\nHm.\n<channel|>call:weather{days:1}", "|RHm.|weather{\"days\":1}.", 1},
        {"call:weather", "|Ccall:weather", 0},
        {"call:unknown{days:1}", "|Ccall:unknown{days:1}", 0},
        {" call: weather{}", "|C call: weather{}", 0},
        {"So call:weather{days:1}", "|CSo call:weather{days:1}", 0},
        {"call:weather<|\"|>", "|Ccall:weather\"", 0},
    };
    chat_parser_options options = {.tools = weather_tools};
    CHECK(examples, &options, CHAT_ENDING_STOP);
    static const example unmarked[] = {{"call:weather{days:1}", "|Ccall:weather{days:1}", 0}};
    options.marked_calls_only = true;
    CHECK(unmarked, &options, CHAT_ENDING_STOP);
}

static void test_reasoning_that_nobody_asked_for(void **state) {
    (void)state;
    static const example examples[] = {
        {"<|channel>thought\nHm.\n<channel|>Hello.", "|CHello.", 0},
        {"<|channel>thought\nHm.", "", 0},
        {"<|channel>plan\nHm.\n<channel|>Hello.", "|CHello.", 0},
    };
    chat_parser_options options = {.without_reasoning = true};
    CHECK(examples, &options, CHAT_ENDING_STOP);
}

/* ------------------------------------------------------------------------------------------------ rules */

static void test_text_that_looks_like_control_tokens(void **state) {
    (void)state;
    static const char text[] = "<|tool_call>call:f{}<tool_call|><|channel>thought\nx<channel|><turn|><|\"|><eos>";
    tokenizer *t = open_demo_tokenizer();
    kakeya_error error = {0};
    int32_t *ids;
    size_t n;
    tokenizer_encode_options plain = {0};
    assert_int_equal(tokenizer_encode(t, text, sizeof text - 1, plain, &ids, &n, &error), KAKEYA_OK);
    heard h = parse_ids(t, ids, n, CUT_SINGLE, CHAT_ENDING_STOP, NULL);
    assert_int_equal(strncmp(h.all.text, "|C", 2), 0);
    assert_string_equal(h.all.text + 2, text);
    assert_int_equal(h.counts.calls + h.counts.repairs + h.counts.reasoning_tokens, 0);
    heard_free(&h);
    free(ids);
    tokenizer_close(t);
}

static void test_start_by_the_prompt(void **state) {
    (void)state;
    static const struct {
        const char *prompt, *answer, *expected;
    } cases[] = {
        {"<bos><|turn>user\nHi<turn|>\n<|turn>model\n", "a<channel|>b", "|Cab"},
        {"<|turn>model\n<|channel>thought\n", "a\n<channel|>b", "|Ra|Cb"},
        {"<|turn>model\n<|channel>thought\nI begin ", " so\n<channel|>b", "|R so|Cb"},
        {"<|turn>model\n<|channel>thou", "ght\na\n<channel|>b", "|Ra|Cb"},
        {"<|turn>model\n<|channel>thou", "sand", "|Csand"},
        {"<|turn>model\n<|channel>thou", "sand<channel|>b", "|Rsand|Cb"},
        {"<|turn>model\n<|channel>plan\nI begin ", "so<channel|>b", "|Rso|Cb"},
        {"<|turn>model\n<|channel>pl", "an\nso<channel|>b", "|Rso|Cb"},
        {"<|turn>model\n<|channel>thought\n<channel|>", "a", "|Ca"},
        {"<|channel>thought\nx<turn|>\n<|turn>model\n", "a", "|Ca"},
        {"<|channel>thought\nx<|tool_call>call:f{}<tool_call|><|tool_response>response:f{}<tool_response|>", "a",
         "|Ca"},
        {"<|tool_response>response:f{}<tool_response|><|channel>thought\n", "a<channel|>b", "|Ra|Cb"},
        {"", "a", "|Ca"},
    };
    tokenizer *t = open_demo_tokenizer();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n_prompt, n;
        int32_t *prompt = marked(t, cases[i].prompt, &n_prompt), *ids = marked(t, cases[i].answer, &n);
        chat_parser_options options = {.prompt = prompt, .n_prompt = n_prompt};
        heard h = parse_ids(t, ids, n, CUT_SINGLE, CHAT_ENDING_STOP, &options);
        assert_heard(cases[i].prompt, &h, cases[i].expected);
        heard_free(&h);
        free(prompt);
        free(ids);
    }
    tokenizer_close(t);
}

static void test_counts_places_and_ids(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    size_t n;
    int32_t *ids = marked(t,
                          "<|channel>thought\nHm.\n<channel|>Hi<|tool_call>call:f{a:1}<tool_call|>"
                          "<|tool_call>call:f{a:1}<tool_call|>",
                          &n);
    heard h = {.last = -1};
    chat_parser_options options = {.on_event = hear, .user = &h, .id_prefix = "toolu_"};
    kakeya_error error = {0};
    chat_parser *parser;
    assert_int_equal(chat_parser_open(t, &options, &parser, &error), KAKEYA_OK);
    size_t in_thought = 0, behind_thought = 0;
    for (size_t i = 0; i < n; i++) {
        chat_place before = chat_parser_place(parser);
        assert_int_equal(chat_parser_feed(parser, ids + i, 1, &error), KAKEYA_OK);
        if (chat_parser_place(parser) == CHAT_PLACE_REASONING || chat_parser_place(parser) == CHAT_PLACE_UNDECIDED)
            in_thought++;
        if (before == CHAT_PLACE_REASONING && chat_parser_place(parser) == CHAT_PLACE_CONTENT) behind_thought = i + 1;
    }
    assert_int_equal(chat_parser_finish(parser, CHAT_ENDING_STOP, &error), KAKEYA_OK);
    chat_parser_counts counts = chat_parser_count(parser);
    assert_int_equal(counts.reasoning_tokens, in_thought + 1); /* <channel|> is the last of them */
    assert_int_equal(counts.reasoning_tokens, behind_thought);
    assert_int_equal(counts.calls, 2);
    assert_int_equal(counts.complete_calls, 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(strncmp(h.ids[i], "toolu_", 6), 0);
        assert_int_equal(strlen(h.ids[i]), 30);
        assert_int_equal(strspn(h.ids[i] + 6, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), 24);
    }
    assert_string_not_equal(h.ids[0], h.ids[1]);
    chat_parser_close(parser);
    heard_free(&h);
    free(ids);
    tokenizer_close(t);
}

static void test_a_callback_ends_it(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    size_t n;
    int32_t *ids = marked(t, "a<|tool_call>call:f{a:1}<tool_call|>", &n);
    for (size_t after = 1; after <= 4; after++) { /* content, begin, arguments, end */
        heard h = {.last = -1, .stop_after = after};
        chat_parser_options options = {.on_event = hear, .user = &h};
        kakeya_error error = {0};
        chat_parser *parser;
        assert_int_equal(chat_parser_open(t, &options, &parser, &error), KAKEYA_OK);
        assert_int_equal(chat_parser_feed(parser, ids, n, &error), KAKEYA_CANCELLED);
        assert_int_equal(chat_parser_feed(parser, ids, n, &error), KAKEYA_CANCELLED);
        assert_int_equal(chat_parser_finish(parser, CHAT_ENDING_STOP, &error), KAKEYA_CANCELLED);
        assert_int_equal(h.events, after);
        chat_parser_close(parser);
        heard_free(&h);
    }
    free(ids);
    tokenizer_close(t);
}

static void test_refused_options(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    static const struct {
        chat_parser_options options;
        const char *expected;
    } cases[] = {
        {{.tools = "{}"}, "tools: not a list"},
        {{.tools = "["}, "tools: byte"},
        {{.id_prefix = "0123456789012345678901234567890123456789"}, "40 bytes, at most 31"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kakeya_error error = {0};
        chat_parser *parser;
        assert_int_not_equal(chat_parser_open(t, &cases[i].options, &parser, &error), KAKEYA_OK);
        assert_null(parser);
        if (!strstr(error.message, cases[i].expected)) fail_msg("%s", error.message);
    }
    tokenizer_close(t);
}

/* ------------------------------------------------------------------------------------------------ limits */

static int32_t *repeated(const tokenizer *t, const char *head, const char *part, size_t times, const char *tail,
                         size_t *n) {
    byte_list all = {0};
    append_text(&all, head);
    for (size_t i = 0; i < times; i++) append_text(&all, part);
    append_text(&all, tail);
    int32_t *ids = marked(t, all.text, n);
    free(all.text);
    return ids;
}

/* What is too long or too deep is closed as JSON, and the answer behind it goes on. */
static void test_limits(void **state) {
    (void)state;
    static const struct {
        const char *head, *part;
        size_t times;
        const char *tail;
        size_t most_bytes;
    } cases[] = {
        {"<|tool_call>call:f{a:", "[", 100, "<tool_call|>Yes", 100},
        {"<|tool_call>call:f{", "a:{", 100, "<tool_call|>Yes", 400},
        {"<|tool_call>call:f{a:<|\"|>", "0123456789", 120000, "<|\"|>}<tool_call|>Yes", (1 << 20) + 64},
        {"<|tool_call>call:f{a:", "0123456789", 120000, "}<tool_call|>Yes", 64},
        {"<|tool_call>call:f{", "0123456789", 120000, ":1}<tool_call|>Yes", 64},
        {"<|tool_call>call:f{a:\"", "\"   ", 300000, "}<tool_call|>Yes", (1 << 20) + 8192},
        {"<|tool_call>call:f{a:[", "1,", 600000, "]}<tool_call|>Yes", (1 << 20) + 64},
    };
    tokenizer *t = open_demo_tokenizer();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n;
        int32_t *ids = repeated(t, cases[i].head, cases[i].part, cases[i].times, cases[i].tail, &n);
        heard h = parse_ids(t, ids, n, CUT_RANDOM, CHAT_ENDING_STOP, NULL);
        assert_int_equal(h.counts.calls, 1);
        assert_int_equal(h.counts.complete_calls, 1);
        assert_true(h.counts.repairs > 0);
        char *end = strstr(h.all.text, ".|CYes");
        assert_non_null(end);
        size_t json_bytes = (size_t)(end - h.all.text) - 2;
        if (json_bytes > cases[i].most_bytes) fail_msg("case %zu: %zu bytes of arguments", i, json_bytes);
        cJSON *json;
        kakeya_error error = {0};
        if (chat_json_parse("arguments", h.all.text + 2, json_bytes, &json, &error)) {
            fail_msg("case %zu: %s: ...%.60s", i, error.message, end - (json_bytes < 50 ? json_bytes : 50));
        }
        cJSON_Delete(json);
        heard_free(&h);
        free(ids);
    }
    /* white space, a name and a role without end are delivered as content */
    static const struct {
        const char *head, *part, *tail;
    } contents[] = {{"a", " \n", "b"}, {"", "\t", ""}, {"", "abc", ""}};
    static const char *const openings[] = {"", "<|tool_call>", "<|turn>", "<|channel>"};
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        for (size_t o = 0; o < sizeof openings / sizeof *openings; o++) {
            bool kept = o == 0 || strcmp(contents[i].part, "abc") == 0;
            if (!kept) continue;
            size_t n, n_expected;
            byte_list head = {0};
            append_text(&head, openings[o]);
            append_text(&head, contents[i].head);
            int32_t *ids = repeated(t, head.text, contents[i].part, 10000, contents[i].tail, &n);
            int32_t *expected_ids =
                repeated(t, contents[i].head, contents[i].part, 10000, contents[i].tail, &n_expected);
            heard h = parse_ids(t, ids, n, CUT_RANDOM, CHAT_ENDING_STOP, NULL);
            heard expected = parse_ids(t, expected_ids, n_expected, CUT_WHOLE, CHAT_ENDING_STOP, NULL);
            assert_heard("content", &h, expected.all.text);
            assert_int_equal(strlen(h.all.text), 2 + strlen(contents[i].head) + 10000 * strlen(contents[i].part) +
                                                     strlen(contents[i].tail));
            heard_free(&h);
            heard_free(&expected);
            free(head.text);
            free(ids);
            free(expected_ids);
        }
    }
    tokenizer_close(t);
}

/* A character whose bytes are tokens of their own appears when it is whole; bytes that make none become U+FFFD. */
static void test_partial_characters(void **state) {
    (void)state;
    tokenizer *t = open_demo_tokenizer();
    int32_t bytes_of[256];
    for (int32_t id = 0; id < tokenizer_vocab_size(t); id++) {
        int byte = tokenizer_byte(t, id);
        if (byte >= 0) bytes_of[byte] = id;
    }
    size_t n;
    int32_t *open_thought = marked(t, "<|channel>thought\n", &n);
    int32_t ids[64];
    memcpy(ids, open_thought, n * sizeof *ids);
    static const unsigned char emoji[] = {0xF0, 0x9F, 0x98, 0x8A}, broken[] = {0xF0, 0x9F};
    for (size_t i = 0; i < sizeof emoji; i++) ids[n++] = bytes_of[emoji[i]];
    ids[n++] = tokenizer_id(t, "<channel|>");
    for (size_t i = 0; i < sizeof broken; i++) ids[n++] = bytes_of[broken[i]];
    heard h = parse_ids(t, ids, n, CUT_SINGLE, CHAT_ENDING_CUT, NULL);
    assert_heard("bytes", &h, "|R😊|C\xEF\xBF\xBD\xEF\xBF\xBD");
    heard_free(&h);
    free(open_thought);

    /* NUL in a string is no argument that a client could read */
    int32_t *call = marked(t, "<|tool_call>call:f{a:<|\"|>", &n);
    memcpy(ids, call, n * sizeof *ids);
    ids[n++] = bytes_of[0];
    ids[n++] = tokenizer_id(t, "<|\"|>");
    h = parse_ids(t, ids, n, CUT_SINGLE, CHAT_ENDING_STOP, NULL);
    assert_heard("NUL", &h, "|f{\"a\":\"\\u0000\"}.");
    heard_free(&h);
    free(call);
    tokenizer_close(t);
}

/* A vocabulary without control tokens: everything is content. */
static void test_vocabulary_without_control_tokens(void **state) {
    (void)state;
    tokenizer *t;
    kakeya_error error = {0};
    assert_int_equal(open_form(&default_form, &t, &error), KAKEYA_OK);
    int32_t ids[64];
    size_t n = 0;
    for (int32_t id = 0; id < tokenizer_vocab_size(t) && n < 64; id++) {
        if (!tokenizer_is_special(t, id)) ids[n++] = id;
    }
    heard h = parse_ids(t, ids, n, CUT_SINGLE, CHAT_ENDING_STOP, NULL);
    assert_int_equal(strncmp(h.all.text, "|C", 2), 0);
    assert_int_equal(h.counts.repairs, 0);
    heard_free(&h);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states),
        cmocka_unit_test(test_white_space),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_cut_answers),
        cmocka_unit_test(test_declared_types),
        cmocka_unit_test(test_reasoning_that_nobody_asked_for),
        cmocka_unit_test(test_text_that_looks_like_control_tokens),
        cmocka_unit_test(test_start_by_the_prompt),
        cmocka_unit_test(test_counts_places_and_ids),
        cmocka_unit_test(test_a_callback_ends_it),
        cmocka_unit_test(test_refused_options),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_partial_characters),
        cmocka_unit_test(test_vocabulary_without_control_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
