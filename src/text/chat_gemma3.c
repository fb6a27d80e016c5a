/*     <bos><start_of_turn>user\n{system}\n\n{text,
 * trimmed}<end_of_turn>\n<start_of_turn>model\n{text}<end_of_turn>\n...
 *
 * There is no system role: the first message's text stands, as it is, in front of the first user's. Turns of user and
 * model alternate, as the template demands. */
#include "text/chat_gemma3.h"

#include <string.h>

#include "text/spaces.h"

static bool is_system(const kakeya_chat_message *message) {
    return chat_is_role(message, "system") || chat_is_role(message, "developer");
}

/* A text, or texts put one after the other, of which each one of a list is trimmed. */
static void put_content(chat_writer *w, const kakeya_chat_message *message) {
    for (size_t i = 0; i < chat_n_parts(message); i++) {
        const char *text = chat_part(message, i).text;
        size_t bytes = text ? strlen(text) : 0;
        space_trim(&text, &bytes);
        chat_put(w, text, bytes);
    }
}

static void open_turn(chat_writer *w, bool model) {
    chat_put_control(w, chat_style_turn(CHAT_STYLE_GEMMA3));
    chat_puts(w, model ? "model\n" : "user\n");
}

static void put_message(chat_writer *w, size_t index, const kakeya_chat_message *message,
                        const kakeya_chat_message *system, const chat_options *options) {
    if (message->n_calls || message->n_responses || chat_is_role(message, "tool")) {
        chat_fail_at(w, KAKEYA_UNSUPPORTED, index, "", ": the turns of Gemma 3 have no tools");
        return;
    }
    if (message->n_ids && message->ids[0] == options->turn) {
        chat_put_ids(w, message->ids, message->n_ids);
    } else {
        open_turn(w, chat_is_model(message));
        for (size_t i = 0; system && i < chat_n_parts(system); i++) chat_puts(w, chat_part(system, i).text);
        if (system) chat_puts(w, "\n\n");
        put_content(w, message);
    }
    chat_put_control(w, "<end_of_turn>");
    chat_puts(w, "\n");
}

kakeya_status chat_render_gemma3(const kakeya_chat_message *messages, size_t n_messages, const chat_options *options,
                                 chat_text *out, size_t *place_bytes, kakeya_error *error) {
    *out = (chat_text){0};
    kakeya_status status = chat_check_roles(messages, n_messages, place_bytes, error);
    if (status) return status;
    chat_writer writer = {.error = error}, *w = &writer;
    const size_t first = n_messages && is_system(&messages[0]);
    if (chat_offers_tools(options))
        chat_fail(w, KAKEYA_UNSUPPORTED, "tools: the turns of Gemma 3 have none, and it was not trained to call any");
    chat_put_control(w, "<bos>");
    for (size_t i = first; i < n_messages && !w->status; i++) {
        bool model = (i - first) % 2;
        if (chat_is_model(&messages[i]) != model && !chat_is_role(&messages[i], "tool"))
            chat_fail_at(w, KAKEYA_INVALID_ARGUMENT, i, ".role",
                         " is \"%s\", expected \"%s\": the turns of Gemma 3 alternate, the user's first",
                         messages[i].role, model ? "assistant" : "user");
        put_message(w, i, &messages[i], first && i == first ? &messages[0] : NULL, options);
    }
    if (first && n_messages == 1)
        chat_fail(w, KAKEYA_INVALID_ARGUMENT,
                  "messages: the turns of Gemma 3 put a system text before the first user's, and there is none");
    w->out.stable_segments = w->out.n_segments;
    if (options->add_generation_prompt) open_turn(w, true);
    *place_bytes = w->place_bytes;
    return chat_writer_end(w, out);
}
