/* A conversation with a tool: the model calls it, the program answers the call, and the model goes on.
 *   cc chat.c $(pkg-config --cflags --libs kakeya) -o chat && ./chat models/demo */
#include <stdio.h>
#include <string.h>

#include <kakeya.h>

#define QUESTION "{\"role\":\"user\",\"content\":\"How warm is it in Oslo?\"}"
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"temperature\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"city\":{\"enum\":[\"Oslo\",\"Rome\"]}},\"required\":[\"city\"],"
    "\"additionalProperties\":false}}}]";

typedef struct turn {
    kakeya_chat_parser *parser; /* tokens to content and calls */
    char id[64], name[64], arguments[256];
    kakeya_error error;
} turn;

static void append(char *text, size_t room, const char *piece, size_t bytes) {
    size_t n = strlen(text);
    if (n + bytes < room) memcpy(text + n, piece, bytes), text[n + bytes] = '\0';
}

static bool on_piece(void *user, const kakeya_chat_event *event) {
    turn *t = (turn *)user;
    switch (event->type) {
    case KAKEYA_CHAT_CONTENT:
        fwrite(event->text, 1, event->text_bytes, stdout);
        break;
    case KAKEYA_CHAT_CALL_BEGIN:
        snprintf(t->id, sizeof t->id, "%s", event->id);
        snprintf(t->name, sizeof t->name, "%s", event->name);
        break;
    case KAKEYA_CHAT_CALL_ARGUMENTS:
        append(t->arguments, sizeof t->arguments, event->text, event->text_bytes);
        break;
    default:
        break;
    }
    return true;
}

static bool on_token(void *user, const kakeya_event *event) {
    turn *t = (turn *)user;
    if (event->type != KAKEYA_EVENT_TOKEN) return true;
    return kakeya_chat_parser_feed(t->parser, &event->token, 1, NULL, &t->error) == KAKEYA_OK;
}

/* One turn of the model. The session computes only what the conversation has more than before. */
static kakeya_status speak(kakeya_engine *engine, kakeya_session *session, const char *messages,
                           kakeya_grammar_calls calls, turn *t, kakeya_error *error) {
    const kakeya_tokenizer *tokenizer = kakeya_engine_tokenizer(engine);
    int32_t *ids = NULL;
    size_t n_ids = 0;
    kakeya_grammar *grammar = NULL;
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    kakeya_chat_options form;
    KAKEYA_INIT(&form);
    kakeya_grammar_options rules;
    KAKEYA_INIT(&rules);
    form.tools = rules.tools = tools;
    form.tools_bytes = rules.tools_bytes = sizeof tools - 1;
    rules.calls = calls;
    rules.max_calls = 1;
    kakeya_generate_options answer;
    KAKEYA_INIT(&answer);
    answer.max_tokens = 48;
    answer.on_event = on_token;
    answer.user = t;

    kakeya_status status = kakeya_chat_tokens(tokenizer, messages, strlen(messages), &form, &ids, &n_ids, NULL, error);
    kakeya_chat_parser_options parser;
    KAKEYA_INIT(&parser);
    parser.tools = tools;
    parser.tools_bytes = sizeof tools - 1;
    parser.prompt = ids;
    parser.n_prompt = n_ids;
    parser.on_event = on_piece;
    parser.user = t;
    if (!status) status = kakeya_grammar_open(tokenizer, &rules, &grammar, error);
    if (!status) status = kakeya_chat_parser_open(tokenizer, &parser, &t->parser, error);
    if (!status) status = kakeya_session_sync(session, ids, n_ids, NULL, NULL, NULL, error);
    answer.grammar = grammar;
    if (!status) status = kakeya_session_generate(session, &answer, &stats, error);
    if (!status) status = kakeya_chat_parser_finish(t->parser, stats.finish, NULL, error);
    kakeya_chat_parser_close(t->parser);
    kakeya_grammar_close(grammar);
    kakeya_free(ids);
    return status;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: chat MODEL-DIRECTORY\n"), 2;
    kakeya_error error;
    kakeya_engine *engine = NULL;
    kakeya_session *session = NULL;
    turn first = {0}, second = {0};
    char messages[1024];
    kakeya_engine_options model;
    KAKEYA_INIT(&model);
    model.model = argv[1];

    kakeya_status status = kakeya_engine_open(&model, &engine, &error);
    if (!status) status = kakeya_session_open(engine, NULL, &session, &error);
    if (!status) status = speak(engine, session, "[" QUESTION "]", KAKEYA_CALLS_REQUIRED, &first, &error);
    if (!status) {
        printf("%s(%s)\n", first.name, first.arguments);
        const char *city = strstr(first.arguments, "Rome") ? "Rome" : "Oslo";
        snprintf(messages, sizeof messages,
                 "[" QUESTION
                 ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"%s\",\"type\":\"function\",\"function\":"
                 "{\"name\":\"%s\",\"arguments\":{\"city\":\"%s\"}}}]},"
                 "{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"-3 degrees\"}]",
                 first.id, first.name, city, first.id);
        status = speak(engine, session, messages, KAKEYA_CALLS_FREE, &second, &error);
    }
    printf("\n");
    if (status) fprintf(stderr, "chat: %s\n", error.message);
    kakeya_session_close(session);
    kakeya_engine_close(engine);
    return status ? 1 : 0;
}
