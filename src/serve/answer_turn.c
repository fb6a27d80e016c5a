#include "serve/answer_turn.h"

#include <string.h>

#include "base/json_text.h"
void answer_turn_free(answer_turn *t) {
    text_free(&t->content);
    text_free(&t->calls);
    text_free(&t->head);
    text_free(&t->arguments);
}

/* ------------------------------------------------------------------------------------------------------------ events
 */

static void begin_call(answer_turn *t, const kakeya_chat_event *event) {
    text_clear(&t->head);
    text_clear(&t->arguments);
    text_add(&t->head, "{\"id\":");
    text_json_string(&t->head, event->id);
    text_add(&t->head, ",\"function\":{\"name\":");
    text_json_string(&t->head, event->name);
    text_add(&t->head, ",\"arguments\":");
}

static void end_call(answer_turn *t) {
    if (t->calls.n) text_add(&t->calls, ",");
    text_bytes(&t->calls, t->head.data ? t->head.data : "", t->head.n);
    text_json(&t->calls, t->arguments.data ? t->arguments.data : "", t->arguments.n);
    text_add(&t->calls, "}}");
    t->calls.failed |= t->head.failed || t->arguments.failed;
    text_clear(&t->head);
}

void answer_turn_event(answer_turn *t, const kakeya_chat_event *event) {
    switch (event->type) {
    case KAKEYA_CHAT_CONTENT:
        text_bytes(&t->content, event->text, event->text_bytes);
        break;
    case KAKEYA_CHAT_CALL_BEGIN:
        begin_call(t, event);
        break;
    case KAKEYA_CHAT_CALL_ARGUMENTS:
        text_bytes(&t->arguments, event->text, event->text_bytes);
        break;
    case KAKEYA_CHAT_CALL_END:
        end_call(t);
        break;
    case KAKEYA_CHAT_REASONING:
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------------ memory
 */

/* Whether `open` stands in ids[0..n) without `close` behind it. */
static bool is_open(const kakeya_tokenizer *tokenizer, const char *open, const char *close, const int32_t *ids,
                    size_t n) {
    int32_t opening = kakeya_tokenizer_find(tokenizer, open), closing = kakeya_tokenizer_find(tokenizer, close);
    for (size_t i = n; i-- > 0;) {
        if (ids[i] == closing) return false;
        if (ids[i] == opening) return true;
    }
    return false;
}

void answer_turn_remember(const answer_turn *t, turn_memory *memory, const kakeya_tokenizer *tokenizer,
                          const cJSON *messages, size_t n_messages, const int32_t *ids, size_t n_stable, size_t n) {
    if (n <= n_stable || t->head.n) return;
    if (is_open(tokenizer, "<|channel>", "<channel|>", ids + n_stable, n - n_stable) ||
        is_open(tokenizer, "<|tool_call>", "<tool_call|>", ids + n_stable, n - n_stable))
        return;
    text_buffer json = {0};
    text_add(&json, "{\"role\":\"assistant\",\"content\":");
    text_json(&json, t->content.data ? t->content.data : "", t->content.n);
    text_add(&json, ",\"tool_calls\":[");
    text_bytes(&json, t->calls.data ? t->calls.data : "", t->calls.n);
    text_add(&json, "]}");
    bool whole = !json.failed && !t->content.failed && !t->calls.failed;
    cJSON *answer = whole ? json_text_read(json.data, json.n) : NULL;
    if (answer) turn_memory_put(memory, messages, n_messages, answer, ids, n_stable, n);
    cJSON_Delete(answer);
    text_free(&json);
}
