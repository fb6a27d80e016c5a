/* What clients send back becomes the tokens that were sampled: in tool loops, with arguments in another order, without
 * the reasoning. What they have edited does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "chat_reading.h"
#include "serve/answer_turn.h"
#include "serve/turn_digest.h"
#include "serve/turn_memory.h"

static kakeya_tokenizer *t;

static int open_tokenizer(void **state) {
    (void)state;
    return kakeya_tokenizer_open(KAKEYA_MODELS "/demo", &t, NULL) == KAKEYA_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    kakeya_tokenizer_close(t);
    return 0;
}

static read_chat parse(const char *json) {
    read_chat chat;
    kakeya_error error = {0};
    if (read_chat_open(json, strlen(json), &chat, &error)) fail_msg("%s: %s", error.message, json);
    return chat;
}

typedef struct prompt {
    int32_t *ids;
    size_t n, n_stable, hits;
} prompt;

/* The prompt of a conversation as a server renders it. memory NULL: as the template does. */
static prompt render(turn_memory *memory, const char *json, bool thinking) {
    prompt p = {0};
    kakeya_chat_options options;
    KAKEYA_INIT(&options);
    options.thinking = thinking;
    read_chat chat = parse(json);
    if (memory) p.hits = turn_memory_find(memory, &chat.c);
    kakeya_error error = {0};
    if (kakeya_conversation_tokens(t, chat.c.messages, chat.c.n, &options, &p.ids, &p.n, &p.n_stable, &error))
        fail_msg("%s", error.message);
    read_chat_close(&chat);
    return p;
}

/* The timeline behind an answer: the prompt and what was sampled, letter by letter, as no tokenizer would split it. */
typedef struct timeline {
    int32_t ids[2000];
    size_t n;
} timeline;

static void append(timeline *to, const char *text, int how) {
    int32_t *ids;
    size_t n;
    if (kakeya_tokenize(t, text, strlen(text), how, &ids, &n, NULL)) fail_msg("%s", text);
    memcpy(to->ids + to->n, ids, n * sizeof *ids);
    to->n += n;
    kakeya_free(ids);
}

static void sample(timeline *to, const char *text) {
    while (*text) {
        char piece[64] = {*text, 0};
        const char *end = *text == '<' ? strchr(text, '>') : NULL;
        if (end) {
            memcpy(piece, text, (size_t)(end - text) + 1);
            piece[end - text + 1] = 0;
        }
        for (size_t i = 1; !end && ((unsigned char)text[i] & 0xC0) == 0x80; i++) piece[i] = text[i]; /* whole letters */
        append(to, piece, end ? KAKEYA_TEXT_PARSE_SPECIAL : KAKEYA_TEXT_LITERAL);
        text += strlen(piece);
    }
}

/* A turn: the prompt, the answer, and what the server remembers of it. */
static timeline answer(turn_memory *memory, const char *json, bool thinking, const char *sampled, const char *message) {
    prompt p = render(memory, json, thinking);
    timeline line = {.n = p.n};
    memcpy(line.ids, p.ids, p.n * sizeof *p.ids);
    sample(&line, sampled);
    char list[2000];
    snprintf(list, sizeof list, "[%s]", message);
    read_chat messages = parse(json), given = parse(list);
    turn_memory_put(memory, messages.c.messages, messages.c.n, given.c.messages, line.ids, p.n_stable, line.n);
    read_chat_close(&messages);
    read_chat_close(&given);
    kakeya_free(p.ids);
    return line;
}

static void assert_begins(const prompt *p, const timeline *line, const char *what) {
    for (size_t i = 0; i < line->n; i++)
        if (i >= p->n || p->ids[i] != line->ids[i]) fail_msg("%s: differs at %zu of %zu ids", what, i, line->n);
}

static void assert_same(const char *json, const prompt *p, bool thinking, const char *what) {
    prompt plain = render(NULL, json, thinking);
    if (plain.n != p->n || memcmp(plain.ids, p->ids, p->n * sizeof *p->ids) != 0)
        fail_msg("%s: not what the template writes", what);
    kakeya_free(plain.ids);
}

#define USER "{\"role\":\"user\",\"content\":\"How warm is it in Kyoto?\"}"
#define CALL(arguments)                                                                                                \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\",\"function\":{" \
    "\"name\":\"weather\",\"arguments\":" arguments "}}]}"
#define RESULT "{\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"content\":\"21\"}"
#define GIVEN  "\"{\\\"city\\\":\\\"Kyoto\\\",\\\"days\\\":2,\\\"deep\\\":{\\\"b\\\":[1,2.50],\\\"a\\\":null}}\""
static const char sampled_call[] = "<|tool_call>call:weather{city:<|\"|>Kyoto<|\"|>,days:2,deep:{b:[1,2.50],a:null}}"
                                   "<tool_call|>";

/* Call, result, answer, with and without thinking; the client drops the reasoning and spells the arguments anew. */
static void test_tool_loop(void **state) {
    (void)state;
    static const char *const spelled[] = {
        GIVEN,
        "\"{\\\"deep\\\": {\\\"a\\\": null, \\\"b\\\": [1.0, 2.5]},\\n \\\"days\\\": 2, \\\"city\\\": \\\"Kyoto\\\"}\"",
        "{\"days\":2,\"deep\":{\"a\":null,\"b\":[1,2.5]},\"city\":\"Ky\\u006fto\"}",
    };
    for (int thinking = 0; thinking < 2; thinking++) {
        for (size_t s = 0; s < 3; s++) {
            turn_memory *memory = turn_memory_open(TURN_MEMORY_ENTRIES, TURN_MEMORY_BYTES);
            char sampled[400], json[2000];
            snprintf(sampled, sizeof sampled, "%s%s", thinking ? "<|channel>thought\nI ask.\n<channel|>" : "",
                     sampled_call);
            timeline first = answer(memory, "[" USER "]", thinking, sampled, CALL(GIVEN));
            snprintf(json, sizeof json,
                     "[" USER ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"call_1\",\"function\":{\"arguments\":"
                     "%s,\"name\":\"weather\"}}]}," RESULT "]",
                     spelled[s]);
            prompt p = render(memory, json, thinking);
            assert_int_equal(p.hits, 1);
            assert_begins(&p, &first, "the call");
            kakeya_free(p.ids);
            timeline second =
                answer(memory, json, thinking, thinking ? "Warm.\n<channel|>It is 21 degrees." : "It is 21 degrees.",
                       "{\"role\":\"assistant\",\"content\":\"It is 21 degrees.\"}");
            assert_begins(&(prompt){.ids = second.ids, .n = second.n}, &first, "the second turn");
            /* the loop is over: the format leaves its reasoning out, and so do the remembered turns */
            json[strlen(json) - 1] = 0;
            strcat(json,
                   ",{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\" It is 21 degrees.\\n\"}]}"
                   ",{\"role\":\"user\",\"content\":\"And in Nara?\"}]");
            p = render(memory, json, thinking);
            assert_int_equal(p.hits, 2);
            if (!thinking) assert_begins(&p, &second, "the answer");
            int32_t thought = kakeya_tokenizer_find(t, "<|channel>");
            for (size_t i = 0; i < p.n; i++) assert_int_not_equal(p.ids[i], thought);
            char *text, *plain_text;
            size_t bytes;
            assert_int_equal(kakeya_detokenize(t, p.ids, p.n, true, &text, &bytes, NULL), KAKEYA_OK);
            assert_non_null(strstr(text, "<tool_call|><|tool_response>response:weather{value:<|\"|>21<|\"|>}"
                                         "<tool_response|>It is 21 degrees.<turn|>\n<|turn>user\nAnd in Nara?"));
            prompt plain = render(NULL, json, thinking);
            assert_int_equal(kakeya_detokenize(t, plain.ids, plain.n, true, &plain_text, &bytes, NULL), KAKEYA_OK);
            assert_string_not_equal(text, plain_text); /* keys in the order of the model, not sorted */
            kakeya_free(text);
            kakeya_free(plain_text);
            kakeya_free(plain.ids);
            kakeya_free(p.ids);
            turn_memory_close(memory);
        }
    }
}

#define EDITED(city, days, deep)                                                                                       \
    "[" USER "," CALL("\"{\\\"city\\\":\\\"" city "\\\",\\\"days\\\":" days ",\\\"deep\\\":{\\\"b\\\":" deep           \
                      "\"") "," RESULT "]"

/* What was edited is rendered by the template. */
static void test_edited(void **state) {
    (void)state;
    static const char *const edited[] = {
        EDITED("Nara", "2", "[1,2.50],\\\"a\\\":null}}"),
        EDITED("Kyoto", "3", "[1,2.50],\\\"a\\\":null}}"),
        EDITED("Kyoto", "2", "[2.50,1],\\\"a\\\":null}}"),
        EDITED("Kyoto", "\\\"2\\\"", "[1,2.50],\\\"a\\\":null}}"),
        EDITED("Kyoto", "2", "[1,2.50],\\\"a\\\":null},\\\"x\\\":1}"),
        EDITED("Kyoto", "2", "[1,2.50]"),
        "[" USER ",{\"role\":\"assistant\",\"content\":\"Wait.\",\"tool_calls\":[{\"id\":\"call_1\",\"function\":{"
        "\"name\":\"weather\",\"arguments\":" GIVEN "}}]}," RESULT "]",
        "[" USER ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"call_1\",\"function\":{\"name\":\"wether\","
        "\"arguments\":" GIVEN "}}]}," RESULT "]",
    };
    turn_memory *memory = turn_memory_open(TURN_MEMORY_ENTRIES, TURN_MEMORY_BYTES);
    (void)answer(memory, "[" USER "]", false, sampled_call, CALL(GIVEN));
    for (size_t i = 0; i < sizeof edited / sizeof edited[0]; i++) {
        prompt p = render(memory, edited[i], false);
        if (p.hits) fail_msg("edit %zu is taken for what was sampled", i);
        assert_same(edited[i], &p, false, edited[i]);
        kakeya_free(p.ids);
    }
    turn_memory_close(memory);
}

/* Numbers that a double cannot tell apart. */
static void test_digests(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        bool same;
    } cases[] = {
        {"{\\\"x\\\":12345678901234567890}", "{\\\"x\\\":12345678901234567891}", false},
        {"{\\\"x\\\":12345678901234567890}", "{ \\\"x\\\" : 12345678901234567890 }", true},
        {"{\\\"x\\\":\\\"12345678901234567890\\\"}", "{\\\"x\\\":12345678901234567890}", false},
        {"{\\\"x\\\":\\\"a \\\\\\\" 12345678901234567890\\\"}", "{\\\"x\\\":\\\"a \\\\\\\" 12345678901234567891\\\"}",
         false},
        {"{\\\"x\\\":1e3}", "{\\\"x\\\":1000.0}", true},
        {"{\\\"x\\\":-0}", "{\\\"x\\\":0}", true},
        {"{\\\"x\\\":[[],{}]}", "{\\\"x\\\":[{},[]]}", false},
        {"{\\\"x\\\":[1],\\\"y\\\":[2]}", "{\\\"y\\\":[2],\\\"x\\\":[1]}", true},
        {"{\\\"x\\\":[1],\\\"y\\\":[2]}", "{\\\"y\\\":[1],\\\"x\\\":[2]}", false},
        {"", "{}", true},
        {"{", "{{", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        turn_digest digests[2];
        for (int k = 0; k < 2; k++) {
            char json[500];
            snprintf(json, sizeof json, "[{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"%s\"}}]}]",
                     k ? cases[i].b : cases[i].a);
            read_chat message = parse(json);
            digests[k] = turn_digest_said(message.c.messages);
            read_chat_close(&message);
        }
        if (turn_digest_equal(digests[0], digests[1]) != cases[i].same) fail_msg("%s and %s", cases[i].a, cases[i].b);
    }
}

/* Plain turns are found by the conversation in front of them; the same words elsewhere are others. */
static void test_plain_turns(void **state) {
    (void)state;
    turn_memory *memory = turn_memory_open(TURN_MEMORY_ENTRIES, TURN_MEMORY_BYTES);
    timeline first = answer(memory, "[" USER "]", false, " Warm enough. ",
                            "{\"role\":\"assistant\",\"content\":\" Warm enough. \"}");
    static const char again[] =
        "[" USER ",{\"role\":\"assistant\",\"content\":\"Warm enough.\"},{\"role\":\"user\",\"content\":\"Thanks\"}]";
    prompt p = render(memory, again, false);
    assert_int_equal(p.hits, 1);
    assert_begins(&p, &first, "a plain turn");
    kakeya_free(p.ids);
    static const char elsewhere[] = "[{\"role\":\"user\",\"content\":\"Other\"},{\"role\":\"assistant\",\"content\":\""
                                    "Warm enough.\"},{\"role\":\"user\",\"content\":\"Thanks\"}]";
    p = render(memory, elsewhere, false);
    assert_int_equal(p.hits, 0);
    assert_same(elsewhere, &p, false, "elsewhere");
    kakeya_free(p.ids);
    /* a system message more: the turn is remembered for another conversation; two user messages in a row change nothing
     */
    static const char prefixed[] =
        "[{\"role\":\"system\",\"content\":\"S\"}," USER ",{\"role\":\"assistant\",\"content\":\"Warm enough.\"}]";
    p = render(memory, prefixed, false);
    assert_int_equal(p.hits, 0);
    kakeya_free(p.ids);
    turn_memory_close(memory);
}

/* Ids of several turns in one message, or a call id that nobody gave. */
static void test_call_ids(void **state) {
    (void)state;
    turn_memory *memory = turn_memory_open(TURN_MEMORY_ENTRIES, TURN_MEMORY_BYTES);
#define TWO(a, b)                                                                                                      \
    "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"" a "\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"    \
    ",{\"id\":\"" b "\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}"
    static const char calls[] = "<|tool_call>call:f{}<tool_call|><|tool_call>call:f{}<tool_call|>";
    (void)answer(memory, "[{\"role\":\"user\",\"content\":\"1\"}]", false, calls, TWO("a1", "a2"));
    (void)answer(memory, "[{\"role\":\"user\",\"content\":\"2\"}]", false, calls, TWO("b1", "b2"));
    (void)answer(memory, "[{\"role\":\"user\",\"content\":\"3\"}]", false, calls, TWO("c", "c"));
    static const struct {
        const char *json;
        size_t hits;
    } cases[] = {
        {"[{\"role\":\"user\",\"content\":\"x\"}," TWO("a1", "a2") "]", 1}, /* wherever it stands */
        {"[{\"role\":\"user\",\"content\":\"x\"}," TWO("c", "c") "]", 1},
        {"[{\"role\":\"user\",\"content\":\"x\"}," TWO("a1", "b2") "]", 0},
        {"[{\"role\":\"user\",\"content\":\"x\"}," TWO("a1", "z") "]", 0},
        {"[{\"role\":\"user\",\"content\":\"2\"}," TWO("new-1", "new-2") "]", 1}, /* by its place */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        prompt p = render(memory, cases[i].json, false);
        if (p.hits != cases[i].hits) fail_msg("case %zu: %zu hits", i, p.hits);
        kakeya_free(p.ids);
    }
    turn_memory_close(memory);
}

/* The least lately used are forgotten, and what a file keeps is known again. */
static void test_bounds_and_files(void **state) {
    (void)state;
    turn_memory *memory = turn_memory_open(10, TURN_MEMORY_BYTES);
    timeline lines[20];
    char json[200];
    for (int i = 0; i < 20; i++) {
        snprintf(json, sizeof json, "[{\"role\":\"user\",\"content\":\"%d\"}]", i);
        lines[i] = answer(memory, json, false, "Yes.", "{\"role\":\"assistant\",\"content\":\"Yes.\"}");
        assert_int_equal(turn_memory_entries(memory), i < 10 ? i + 1 : 10);
        /* number 5 is asked for all the time */
        if (i >= 5) {
            prompt p = render(
                memory, "[{\"role\":\"user\",\"content\":\"5\"},{\"role\":\"assistant\",\"content\":\"Yes.\"}]", false);
            assert_int_equal(p.hits, 1);
            kakeya_free(p.ids);
        }
    }
    char *turns = turn_memory_export(memory, lines[19].ids, lines[19].n);
    assert_non_null(turns);
    assert_null(turn_memory_export(memory, lines[19].ids, lines[19].n - 1));
    assert_null(turn_memory_export(memory, lines[3].ids, lines[3].n)); /* forgotten */
    char metadata[4000];
    snprintf(metadata, sizeof metadata, "{\"turns\":%s}", turns);
    free(turns);
    turn_memory *other = turn_memory_open(10, TURN_MEMORY_BYTES);
    turn_memory_import(other, metadata);
    assert_int_equal(turn_memory_entries(other), 1);
    prompt p = render(other,
                      "[{\"role\":\"user\",\"content\":\"19\"},{\"role\":\"assistant\",\"content\":\"Yes.\"},"
                      "{\"role\":\"user\",\"content\":\"And?\"}]",
                      false);
    assert_int_equal(p.hits, 1);
    assert_begins(&p, &lines[19], "imported");
    kakeya_free(p.ids);
    /* nothing that is malformed is taken, whatever is cut off or changed */
    for (size_t i = 0; metadata[i]; i++) {
        char cut[4000];
        memcpy(cut, metadata, sizeof cut);
        cut[i] = 0;
        turn_memory_import(other, cut);
        memcpy(cut, metadata, sizeof cut);
        cut[i] = (char)(cut[i] ^ 1);
        turn_memory_import(other, cut);
        assert_true(turn_memory_entries(other) <= 10);
    }
    turn_memory_close(other);
    /* a budget of bytes */
    other = turn_memory_open(1000, 2000);
    for (int i = 0; i < 20; i++) {
        snprintf(json, sizeof json, "[{\"role\":\"user\",\"content\":\"%d\"}]", i);
        (void)answer(other, json, false, "Yes.", "{\"role\":\"assistant\",\"content\":\"Yes.\"}");
    }
    assert_in_range(turn_memory_entries(other), 2, 19);
    turn_memory_close(other);
    turn_memory_close(memory);
}

/* ------------------------------------------------------------------------------------- what an answer has said */

static bool note_event(void *user, const kakeya_chat_event *event) {
    answer_turn_event(user, event);
    return true;
}

/* Parses what was sampled, as a server does, and remembers it. How many turns are known afterwards. */
static size_t remember(turn_memory *memory, const char *sampled, kakeya_finish finish) {
    prompt p = render(NULL, "[" USER "]", false);
    timeline line = {.n = p.n};
    memcpy(line.ids, p.ids, p.n * sizeof *p.ids);
    sample(&line, sampled);
    answer_turn turn = {0};
    kakeya_chat_parser_options options;
    KAKEYA_INIT(&options);
    options.on_event = note_event;
    options.user = &turn;
    kakeya_chat_parser *parser = NULL;
    assert_int_equal(kakeya_chat_parser_open(t, &options, &parser, NULL), KAKEYA_OK);
    assert_int_equal(kakeya_chat_parser_feed(parser, line.ids + p.n, line.n - p.n, NULL, NULL), KAKEYA_OK);
    assert_int_equal(kakeya_chat_parser_finish(parser, finish, NULL, NULL), KAKEYA_OK);
    kakeya_chat_parser_close(parser);
    read_chat messages = parse("[" USER "]");
    answer_turn_remember(&turn, memory, t, messages.c.messages, messages.c.n, line.ids, p.n_stable, line.n);
    read_chat_close(&messages);
    answer_turn_free(&turn);
    kakeya_free(p.ids);
    return turn_memory_entries(memory);
}

/* An answer that was cut inside a thought or a call is not what the format goes on behind. */
static void test_cut_answers(void **state) {
    (void)state;
    static const struct {
        const char *sampled;
        bool kept;
    } cases[] = {
        {"War", true},
        {"<|channel>thought\nI ask.<channel|>War", true},
        {"<|channel>thought\nI ask.<channel|>", true},
        {"<|channel>thought\nI as", false},
        {"So: <|tool_call>call:f{a:1}<tool_call|>", true},
        {"<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{}<tool_call|>", true},
        {"<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:g{", false},
        {"<|tool_call>call:f{a:1", false},
        {"<|tool_call>call:f{a:1}", false},
    };
    static const kakeya_finish finishes[] = {KAKEYA_FINISH_LENGTH, KAKEYA_FINISH_STOP};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < 2; k++) {
            turn_memory *memory = turn_memory_open(10, TURN_MEMORY_BYTES);
            size_t n = remember(memory, cases[i].sampled, finishes[k]);
            if (n != cases[i].kept) fail_msg("%s: %zu turns", cases[i].sampled, n);
            turn_memory_close(memory);
        }
    }
    turn_memory *memory = turn_memory_open(10, TURN_MEMORY_BYTES);
    assert_int_equal(
        remember(memory, " So: <|tool_call>call:f{a:1,b:<|\"|>x\"y<|\"|>}<tool_call|>", KAKEYA_FINISH_STOP), 1);
    prompt p = render(memory,
                      "[" USER ",{\"role\":\"assistant\",\"content\":\"So:\",\"tool_calls\":[{\"id\":\"other\","
                      "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"b\\\":\\\"x\\\\\\\"y\\\",\\\"a\\\":1}\"}}]}]",
                      false);
    assert_int_equal(p.hits, 1); /* by its place and what it says */
    kakeya_free(p.ids);
    turn_memory_close(memory);
}

/* ------------------------------------------------------------------------------------------------- random talks */

static uint64_t random_state;

static unsigned draw(unsigned n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)((random_state >> 33) % n);
}

static const char *const words[] = {"warm", "rain ", "\xe5\xba\xa7", "call:f{}", "a\"b", "<turn|>", "21.5", "\n"};

static void random_words(char *out, size_t most) {
    out[0] = 0;
    for (size_t i = 0, n = 1 + draw((unsigned)most); i < n; i++) strcat(out, words[draw(8)]);
}

/* What a client makes of the message that it was given. */
static cJSON *sent_back(const cJSON *given) {
    cJSON *message = cJSON_Duplicate(given, true);
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(message, "content");
    if (cJSON_IsString(content)) {
        char text[600];
        snprintf(text, sizeof text, "%s%s%s", draw(2) ? " " : "", content->valuestring, draw(2) ? "\n" : "");
        cJSON *changed = cJSON_CreateString(text);
        if (draw(2)) {
            cJSON *part = cJSON_CreateObject(), *list = cJSON_CreateArray();
            cJSON_AddStringToObject(part, "type", "text");
            cJSON_AddItemToObject(part, "text", changed);
            cJSON_AddItemToArray(list, part);
            changed = list;
        }
        cJSON_ReplaceItemInObjectCaseSensitive(message, "content", changed);
    }
    cJSON *call = cJSON_GetObjectItemCaseSensitive(message, "tool_calls");
    if (call && draw(2)) { /* members of the arguments in the other order, and other spaces */
        cJSON *function = cJSON_GetObjectItemCaseSensitive(call->child, "function");
        cJSON *arguments = cJSON_Parse(cJSON_GetObjectItemCaseSensitive(function, "arguments")->valuestring);
        cJSON *turned = cJSON_CreateObject();
        while (arguments->child) {
            cJSON *last = arguments->child;
            while (last->next) last = last->next;
            cJSON *moved = cJSON_DetachItemViaPointer(arguments, last);
            char key[20];
            snprintf(key, sizeof key, "%s", moved->string);
            cJSON_AddItemToObject(turned, key, moved);
        }
        char *text = cJSON_Print(turned);
        cJSON_ReplaceItemInObjectCaseSensitive(function, "arguments", cJSON_CreateString(text));
        cJSON_free(text);
        cJSON_Delete(arguments);
        cJSON_Delete(turned);
    }
    return message;
}

/* One answer: what is sampled, and the message that is given out for it. */
static cJSON *random_answer(bool calls, int number, bool thinking, bool in_turn, char *sampled, size_t bytes) {
    char said[300], thought[300] = "";
    random_words(said, 6);
    /* behind a result the prompt has opened the thought already */
    if (thinking) snprintf(thought, sizeof thought, "%sI think.\n<channel|>", in_turn ? "" : "<|channel>thought\n");
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", "assistant");
    if (!calls) {
        char visible[320];
        snprintf(visible, sizeof visible, "ok %s.", strstr(said, "<turn|>") ? "yes" : said);
        snprintf(sampled, bytes, "%s%s", thought, visible);
        cJSON_AddStringToObject(message, "content", visible);
        return message;
    }
    unsigned days = draw(100);
    snprintf(sampled, bytes, "%s<|tool_call>call:weather{days:%u,city:<|\"|>Nara<|\"|>}<tool_call|>", thought, days);
    char arguments[100], id[20];
    snprintf(arguments, sizeof arguments, "{\"days\":%u,\"city\":\"Nara\"}", days);
    snprintf(id, sizeof id, "call_%d", number);
    cJSON *call = cJSON_CreateObject(), *function = cJSON_AddObjectToObject(call, "function");
    cJSON_AddNullToObject(message, "content");
    cJSON_AddStringToObject(call, "id", id);
    cJSON_AddStringToObject(function, "name", "weather");
    cJSON_AddStringToObject(function, "arguments", arguments);
    cJSON_AddItemToArray(cJSON_AddArrayToObject(message, "tool_calls"), call);
    return message;
}

static void add_text(cJSON *messages, const char *role, const char *text, const char *id) {
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddStringToObject(message, "content", text);
    if (id) cJSON_AddStringToObject(message, "tool_call_id", id);
    cJSON_AddItemToArray(messages, message);
}

/* Each prompt begins with the timeline before it; only where a loop is over does the format leave its thoughts out.
 * What is remembered for nobody is rendered as the template says. */
static void random_talk(bool thinking) {
    turn_memory *memory = turn_memory_open(TURN_MEMORY_ENTRIES, TURN_MEMORY_BYTES);
    cJSON *messages = cJSON_CreateArray();
    timeline last = {.n = 0};
    bool in_turn = false;
    size_t answers = 0;
    char text[400];
    for (int turn = 0; turn < 8; turn++) {
        if (!in_turn) {
            random_words(text, 5);
            add_text(messages, "user", text, NULL);
        }
        char *json = cJSON_PrintUnformatted(messages), sampled[800];
        prompt p = render(memory, json, thinking);
        assert_int_equal(p.hits, answers);
        if (!thinking || in_turn) assert_begins(&p, &last, json);
        kakeya_free(p.ids);
        p = render(NULL, json, thinking);
        turn_memory *empty = turn_memory_open(10, 1000);
        prompt none = render(empty, json, thinking);
        assert_int_equal(none.n, p.n);
        assert_memory_equal(none.ids, p.ids, p.n * sizeof *p.ids);
        kakeya_free(none.ids);
        kakeya_free(p.ids);
        turn_memory_close(empty);
        bool calls = draw(2);
        cJSON *given = random_answer(calls, turn, thinking, in_turn, sampled, sizeof sampled);
        char *message = cJSON_PrintUnformatted(given);
        last = answer(memory, json, thinking, sampled, message);
        answers++;
        cJSON_free(message);
        cJSON_free(json);
        cJSON_AddItemToArray(messages, sent_back(given));
        cJSON_Delete(given);
        in_turn = calls;
        if (calls) {
            char id[20];
            snprintf(id, sizeof id, "call_%d", turn);
            random_words(text, 3);
            add_text(messages, "tool", text, id);
        }
    }
    cJSON_Delete(messages);
    turn_memory_close(memory);
}

static void test_random_talks(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        random_state = seed;
        random_talk(seed % 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tool_loop),   cmocka_unit_test(test_edited),
        cmocka_unit_test(test_digests),     cmocka_unit_test(test_plain_turns),
        cmocka_unit_test(test_call_ids),    cmocka_unit_test(test_bounds_and_files),
        cmocka_unit_test(test_cut_answers), cmocka_unit_test(test_random_talks),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
