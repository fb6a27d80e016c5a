/* The public functions between text and tokens. */
#include <stdlib.h>

#include "session/engine.h"
#include "text/chat_request.h"
#include "text/detokenizer.h"

void kakeya_free(void *pointer) { free(pointer); }

static kakeya_status need_tokenizer(const kakeya_engine *engine, kakeya_error *error) {
    if (engine->tokenizer) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "the model has no tokenizer.json: it takes and gives token ids only");
}

kakeya_status kakeya_tokenize(const kakeya_engine *engine, const char *text, size_t text_bytes, bool special,
                              int32_t **ids, size_t *n_ids, kakeya_error *error) {
    *ids = NULL;
    *n_ids = 0;
    kakeya_status status = need_tokenizer(engine, error);
    if (status != KAKEYA_OK) return status;
    const tokenizer_encode_options options = {.add_special = special, .parse_special = special};
    return tokenizer_encode(engine->tokenizer, text, text_bytes, options, ids, n_ids, error);
}

kakeya_status kakeya_detokenize(const kakeya_engine *engine, const int32_t *ids, size_t n_ids, bool keep_special,
                                char **text, size_t *text_bytes, kakeya_error *error) {
    *text = NULL;
    *text_bytes = 0;
    kakeya_status status = need_tokenizer(engine, error);
    if (status != KAKEYA_OK) return status;
    return detokenize(engine->tokenizer, ids, n_ids, keep_special, text, text_bytes, error);
}

kakeya_status kakeya_chat_tokens(const kakeya_engine *engine, const kakeya_message *messages, size_t n_messages,
                                 bool thinking, int32_t **ids, size_t *n_ids, kakeya_error *error) {
    *ids = NULL;
    *n_ids = 0;
    kakeya_status status = need_tokenizer(engine, error);
    if (status != KAKEYA_OK) return status;
    if (!engine->chat.gemma_turns)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "chat: the model's chat_template.jinja does not write Gemma 4 turns%s%s",
                         engine->chat.note[0] ? ": " : "", engine->chat.note);
    chat_message *turns = calloc(n_messages ? n_messages : 1, sizeof *turns);
    if (!turns) return error_set(error, KAKEYA_OUT_OF_MEMORY, "chat of %zu messages: out of memory", n_messages);
    for (size_t i = 0; i < n_messages; i++)
        turns[i] = (chat_message){
            .role = messages[i].role, .parts = &messages[i].content, .n_parts = messages[i].content != NULL};
    const chat_options options = {.style = engine->chat.style, .thinking = thinking, .add_generation_prompt = true};
    chat_text text = {0};
    status = chat_render(turns, n_messages, &options, &text, error);
    if (status == KAKEYA_OK) status = chat_tokenize(engine->tokenizer, &text, ids, n_ids, NULL, error);
    chat_text_free(&text);
    free(turns);
    return status;
}
