#include "serve/answer_turn.h"

#include <stdlib.h>
#include <string.h>

#include "base/nul.h"

void answer_turn_free(answer_turn *t) {
    text_free(&t->content);
    text_free(&t->arguments);
    chat_conversation_free(&t->calls);
}

/* ---------------------------------------------------------------------------------------------------------- events */

/* A text of events as messages have it. */
static const char *keep(answer_turn *t, const text_buffer *text) {
    char *spelled = text->failed ? NULL : nul_spell(text->data ? text->data : "", text->n);
    const char *kept = spelled ? chat_keep(&t->calls, spelled, strlen(spelled)) : NULL;
    free(spelled);
    t->calls.failed |= !kept;
    return kept;
}

static void begin_call(answer_turn *t, const kakeya_chat_event *event) {
    text_clear(&t->arguments);
    t->call = (kakeya_chat_call){.id = chat_keep(&t->calls, event->id, strlen(event->id)),
                                 .name = chat_keep(&t->calls, event->name, strlen(event->name))};
}

static void end_call(answer_turn *t) {
    kakeya_chat_message *message = t->calls.n ? t->calls.messages : chat_add(&t->calls, "assistant");
    t->call.arguments = keep(t, &t->arguments);
    chat_add_call(&t->calls, message, t->call);
    t->call = (kakeya_chat_call){0};
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

void answer_turn_remember(answer_turn *t, turn_memory *memory, const kakeya_tokenizer *tokenizer,
                          const kakeya_chat_message *messages, size_t n_messages, const int32_t *ids, size_t n_stable,
                          size_t n) {
    if (n <= n_stable || t->call.name) return;
    if (is_open(tokenizer, "<|channel>", "<channel|>", ids + n_stable, n - n_stable) ||
        is_open(tokenizer, "<|tool_call>", "<tool_call|>", ids + n_stable, n - n_stable))
        return;
    kakeya_chat_message *answer = t->calls.n ? t->calls.messages : chat_add(&t->calls, "assistant");
    const char *content = keep(t, &t->content);
    if (t->calls.failed) return;
    answer->content = content;
    turn_memory_put(memory, messages, n_messages, answer, ids, n_stable, n);
}
