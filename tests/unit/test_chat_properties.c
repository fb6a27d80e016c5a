/* Protects: what an answer means does not depend on how its tokens arrive or which tokens spell it, and a conversation
 * that was rendered comes back as it was. */
#include "chat_hearing.h"

#include "text/chat.h"
#include "text/chat_json.h"
#include "text/spaces.h"

/* Any tokens at all: the events do not depend on the cut, arguments of calls that ended are JSON objects, and without
 * control tokens the content is the text. */
static void test_any_tokens(void **state) {
    (void)state;
    static const char *const pieces[] = {
        "<|channel>",
        "<channel|>",
        "<|tool_call>",
        "<tool_call|>",
        "<|\"|>",
        "<|turn>",
        "<turn|>",
        "<|tool_response>",
        "<|tool>",
        "thought\n",
        "thought",
        "call:",
        "call:weather{",
        "f{",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ":",
        ",",
        "\"",
        "\\",
        "\\u00",
        "e9",
        "\\ud83d",
        "\\n",
        " ",
        "\n",
        "a",
        "city",
        "days",
        "null",
        "true",
        "12",
        "-1.5e3",
        "é",
        "漢",
        "😊",
        "\xC2\xA0",
        "model\n",
    };
    enum { PIECES = sizeof pieces / sizeof *pieces, ROUNDS = 3000 };
    tokenizer *t = open_demo_tokenizer();
    chat_parser_options options = {.tools = weather_tools};
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        random_state = seed;
        int32_t ids[400];
        size_t n = 0, length = 1 + random_below(60);
        for (size_t i = 0; i < length && n + 32 < sizeof ids / sizeof *ids; i++) {
            if (random_below(20) == 0) {
                ids[n++] = (int32_t)random_below((uint64_t)tokenizer_vocab_size(t) + 3) - 1;
                continue;
            }
            size_t n_more;
            int32_t *more = marked(t, pieces[random_below(PIECES)], &n_more);
            memcpy(ids + n, more, n_more * sizeof *ids);
            n += n_more;
            free(more);
        }
        chat_ending ending = random_below(2) ? CHAT_ENDING_STOP : CHAT_ENDING_CUT;
        heard single = parse_ids(t, ids, n, CUT_SINGLE, ending, &options);
        for (int how = CUT_WHOLE; how <= CUT_RANDOM; how++) {
            heard other = parse_ids(t, ids, n, (cut)how, ending, &options);
            if (strcmp(single.all.text, other.all.text) != 0) {
                fail_msg("seed %llu\none by one: %s\nin blocks:  %s", (unsigned long long)seed, single.all.text,
                         other.all.text);
            }
            assert_memory_equal(&single.counts, &other.counts, sizeof single.counts);
            heard_free(&other);
        }
        if (ending == CHAT_ENDING_STOP) assert_int_equal(single.counts.complete_calls, single.counts.calls);
        heard_free(&single);
    }
    tokenizer_close(t);
}

/* One call's events, to look at its arguments alone. */
typedef struct call_record {
    char name[300];
    byte_list arguments;
    bool ended;
} call_record;

typedef struct answer_record {
    byte_list content, reasoning;
    call_record calls[8];
    size_t n_calls;
} answer_record;

static bool record(void *user, const chat_event *event) {
    answer_record *r = user;
    switch (event->kind) {
    case CHAT_EVENT_CONTENT:
        append(&r->content, event->text, event->bytes);
        break;
    case CHAT_EVENT_REASONING:
        append(&r->reasoning, event->text, event->bytes);
        break;
    case CHAT_EVENT_CALL_BEGIN:
        assert_true(r->n_calls < 8);
        snprintf(r->calls[r->n_calls++].name, sizeof r->calls[0].name, "%s", event->name);
        break;
    case CHAT_EVENT_CALL_ARGUMENTS:
        append(&r->calls[event->call].arguments, event->text, event->bytes);
        break;
    case CHAT_EVENT_CALL_END:
        r->calls[event->call].ended = true;
        break;
    }
    return true;
}

static void record_free(answer_record *r) {
    free(r->content.text);
    free(r->reasoning.text);
    for (size_t i = 0; i < r->n_calls; i++) free(r->calls[i].arguments.text);
}

/* Words of many scripts, with what JSON and the turn format are made of. */
static const char *random_words(byte_list *out, size_t most, const char *const *words, size_t n_words) {
    out->n = 0;
    append_text(out, "");
    for (size_t n = random_below(most + 1); n-- > 0;) append_text(out, words[random_below(n_words)]);
    return out->text;
}

static const char *const any_words[] = {
    "hello",
    " ",
    "\n",
    "  ",
    "\t",
    "\"",
    "\\",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "(",
    ")",
    "'",
    "null",
    "12",
    "<|tool_call>",
    "<tool_call|>",
    "<|\"|>",
    "call:f{",
    "<turn|>",
    "thought\n",
    "naïve",
    "Größe",
    "Привет",
    "שלום",
    "مرحبا",
    "नमस्ते",
    "สวัสดี",
    "漢字",
    "かな",
    "한국어",
    "😊",
    "👨\u200d👩\u200d👧",
    "e\u0301",
    "\u00a0",
    "\u2028",
    "\x01",
    "\x7f",
    "\U0010FFFF",
    "ﷺ",
};
static const char *const key_words[] = {"a",     "key",  "_",  "-", ".",   "$", "0",
                                        "Größe", "ключ", "鍵", "😊", "x y", "A", "K"};
enum { ANY_WORDS = sizeof any_words / sizeof *any_words, KEY_WORDS = sizeof key_words / sizeof *key_words };

/* Numbers as Python writes them, which is how the turn format has them. */
static const char *const numbers[] = {
    "0", "-1", "7", "108.25", "1e-07", "1.5e+300", "-0.5", "123456789012345678901234567890", "1e+16", "0.0001", "3.0"};

static cJSON *random_value(int depth) {
    byte_list text = {0};
    cJSON *value, *item;
    switch (random_below(depth ? 8 : 6)) {
    case 0:
        value = cJSON_CreateNull();
        break;
    case 1:
        value = cJSON_CreateBool((cJSON_bool)random_below(2));
        break;
    case 2:
        value = cJSON_CreateRaw(numbers[random_below(sizeof numbers / sizeof *numbers)]);
        break;
    case 6:
        value = cJSON_CreateArray();
        for (size_t n = random_below(4); n-- > 0;) {
            item = random_value(depth - 1);
            cJSON_AddItemToArray(value, item);
        }
        break;
    case 7:
        value = cJSON_CreateObject();
        for (size_t n = random_below(4); n-- > 0;) {
            const char *key = random_words(&text, 3, key_words, KEY_WORDS);
            if (cJSON_GetObjectItemCaseSensitive(value, key)) continue;
            cJSON_AddItemToObject(value, key, random_value(depth - 1));
        }
        break;
    default:
        value = cJSON_CreateString(random_words(&text, 6, any_words, ANY_WORDS));
        break;
    }
    free(text.text);
    assert_non_null(value);
    return value;
}

/* Without <|channel> in it, which the template would cut out of a content. */
static void trim_copy(byte_list *out, const char *text, bool left) {
    size_t n = strlen(text);
    const char *start = text;
    space_trim(&start, &n);
    if (!left && n) {
        n += (size_t)(start - text);
        start = text;
    }
    out->n = 0;
    append(out, start, n);
}

/* A tool loop: the model thinks, says something, calls, and ends its turn or goes on. What is rendered for the model's
 * turn, read as an answer, is what was put in. */
static void test_round_trip(void **state) {
    (void)state;
    enum { ROUNDS = 1500 };
    tokenizer *t = open_demo_tokenizer();
    size_t calls_seen = 0, reasoning_seen = 0, contents_seen = 0;
    for (uint64_t seed = 1; seed <= ROUNDS; seed++) {
        random_state = seed;
        kakeya_error error = {0};
        byte_list content = {0}, reasoning = {0}, question = {0}, expected = {0};
        const char *question_text = random_words(&question, 6, any_words, ANY_WORDS);
        const char *content_text = random_words(&content, 8, any_words, ANY_WORDS);
        const char *reasoning_text = random_words(&reasoning, 8, any_words, ANY_WORDS);
        kakeya_chat_call calls[3] = {0};
        char *arguments[3] = {0}, names[3][64];
        size_t n_calls = random_below(4);
        for (size_t i = 0; i < n_calls; i++) {
            cJSON *object = cJSON_CreateObject();
            byte_list key = {0};
            for (size_t n = random_below(5); n-- > 0;) {
                random_words(&key, 3, key_words, KEY_WORDS);
                if (!cJSON_GetObjectItemCaseSensitive(object, key.text)) {
                    cJSON_AddItemToObject(object, key.text, random_value(3));
                }
            }
            free(key.text);
            arguments[i] = cJSON_PrintUnformatted(object);
            cJSON_Delete(object);
            snprintf(names[i], sizeof names[i], "tool_%d.Größe-%s", (int)random_below(9), random_below(2) ? "鍵" : "x");
            calls[i] = (kakeya_chat_call){.name = names[i], .arguments = arguments[i]};
        }
        /* Contents stand behind calls in the template, so an answer has one or the other. */
        bool with_content = n_calls == 0;
        const kakeya_chat_message messages[] = {
            {.role = "user", .content = question_text},
            {.role = "assistant",
             .content = with_content ? content_text : NULL,
             .reasoning = reasoning_text,
             .calls = calls,
             .n_calls = n_calls},
        };
        chat_options options = {.add_generation_prompt = true, .thinking = true};
        chat_text prompt, whole;
        int32_t *prompt_ids, *ids;
        size_t n_prompt, n, place_bytes;
        if (chat_render(messages, 1, &options, &prompt, &place_bytes, &error)) fail_msg("%s", error.message);
        options.add_generation_prompt = false;
        if (chat_render(messages, 2, &options, &whole, &place_bytes, &error))
            fail_msg("seed %d: %s", (int)seed, error.message);
        if (chat_tokenize(t, &prompt, 0, &prompt_ids, &n_prompt, NULL, &error)) fail_msg("%s", error.message);
        if (chat_tokenize(t, &whole, 0, &ids, &n, NULL, &error)) fail_msg("%s", error.message);
        assert_true(n > n_prompt);
        assert_memory_equal(ids, prompt_ids, n_prompt * sizeof *ids);

        /* The answer ends with its stop token; what the template writes behind it is no answer. */
        size_t end = n;
        while (!tokenizer_is_special(t, ids[end - 1])) end--;
        answer_record r = {0};
        chat_parser_options parse = {.prompt = prompt_ids, .n_prompt = n_prompt, .on_event = record, .user = &r};
        chat_parser *parser;
        if (chat_parser_open(t, &parse, &parser, &error)) fail_msg("%s", error.message);
        for (size_t at = n_prompt; at < end;) {
            size_t block = 1 + random_below(7);
            if (block > end - at) block = end - at;
            if (chat_parser_feed(parser, ids + at, block, &error)) fail_msg("%s", error.message);
            at += block;
        }
        if (chat_parser_finish(parser, CHAT_ENDING_STOP, &error)) fail_msg("%s", error.message);
        if (chat_parser_count(parser).repairs) fail_msg("seed %d: repairs in %s", (int)seed, whole.text);
        chat_parser_close(parser);

        trim_copy(&expected, reasoning_text, false);
        if (strcmp(r.reasoning.n ? r.reasoning.text : "", expected.text) != 0) {
            fail_msg("seed %d: reasoning \"%s\", expected \"%s\"", (int)seed, r.reasoning.text, expected.text);
        }
        trim_copy(&expected, with_content ? content_text : "", true);
        if (strcmp(r.content.n ? r.content.text : "", expected.text) != 0) {
            fail_msg("seed %d: content \"%s\", expected \"%s\"", (int)seed, r.content.text, expected.text);
        }
        assert_int_equal(r.n_calls, n_calls);
        for (size_t i = 0; i < n_calls; i++) {
            assert_true(r.calls[i].ended);
            assert_string_equal(r.calls[i].name, names[i]);
            cJSON *got, *want;
            if (chat_json_parse("parsed", r.calls[i].arguments.text, r.calls[i].arguments.n, &got, &error)) {
                fail_msg("seed %d: %s: %s", (int)seed, error.message, r.calls[i].arguments.text);
            }
            assert_int_equal(chat_json_parse("given", arguments[i], strlen(arguments[i]), &want, &error), KAKEYA_OK);
            if (!cJSON_Compare(got, want, true)) {
                fail_msg("seed %d\nparsed: %s\ngiven:  %s", (int)seed, r.calls[i].arguments.text, arguments[i]);
            }
            cJSON_Delete(got);
            cJSON_Delete(want);
            cJSON_free(arguments[i]);
        }
        calls_seen += r.n_calls;
        reasoning_seen += r.reasoning.n > 0;
        contents_seen += r.content.n > 0;
        record_free(&r);
        chat_text_free(&prompt);
        chat_text_free(&whole);
        free(prompt_ids);
        free(ids);
        free(content.text);
        free(reasoning.text);
        free(question.text);
        free(expected.text);
    }
    assert_true(calls_seen > ROUNDS && reasoning_seen > ROUNDS / 2 && contents_seen > ROUNDS / 10);
    tokenizer_close(t);
}

/* The same text in other tokens means the same. */
static void test_any_tokenisation(void **state) {
    (void)state;
    static const char *const answers[] = {
        ("<|channel>thought\nI should ask. \n<channel|>\n Let me see.\n<|tool_call>call:weather{city:<|\"|>São "
         "Paulo \"x\"<|\"|>,days:108.25,tags:[<|\"|>漢字😊<|\"|>,<|\"|><|\"|>],deep:{code:true,again:{}}}<tool_call|>"),
        "call:weather{city:Paris, France, days:12, zip:null}",
        "Straße, naïve, 漢字 and 😊:\n\n  def f(x):\n    return x\n<turn|>",
        "<|tool_call>call:f{\"a\" : \"x\\ud83d\\ude0a \"y\" z\" , b:[1 ,22, true]}<tool_call|>",
    };
    tokenizer *t = open_demo_tokenizer();
    chat_parser_options options = {.tools = weather_tools};
    for (size_t a = 0; a < sizeof answers / sizeof *answers; a++) {
        size_t n, n_ids = 0;
        int32_t *ids = marked(t, answers[a], &n);
        heard expected = parse_ids(t, ids, n, CUT_WHOLE, CHAT_ENDING_STOP, &options);
        free(ids);
        for (int round = 0; round < 200; round++) {
            random_state = (uint64_t)round + 1;
            int32_t other[2048];
            n_ids = 0;
            for (const char *at = answers[a]; *at;) {
                size_t bytes_here = 0;
                if (at[0] == '<') { /* a control token stays whole */
                    const char *close = strchr(at, '>');
                    if (close && (at[1] == '|' || close[-1] == '|')) bytes_here = (size_t)(close - at) + 1;
                }
                for (size_t more = 1 + random_below(5); bytes_here == 0 || more > 1; more--) {
                    if (bytes_here && (at[bytes_here] == '<' || at[0] == '<' || !at[bytes_here])) break;
                    bytes_here += utf8_length(at + bytes_here, strlen(at + bytes_here));
                }
                char part[64];
                snprintf(part, sizeof part, "%.*s", (int)bytes_here, at);
                int32_t *more_ids = marked(t, part, &n);
                memcpy(other + n_ids, more_ids, n * sizeof *other);
                n_ids += n;
                free(more_ids);
                at += bytes_here;
            }
            heard h = parse_ids(t, other, n_ids, CUT_RANDOM, CHAT_ENDING_STOP, &options);
            assert_heard(answers[a], &h, expected.all.text);
            heard_free(&h);
        }
        heard_free(&expected);
    }
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_tokens),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_any_tokenisation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
