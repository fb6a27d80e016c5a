/*     <bos><start_of_turn>user\n{system}\n\n{text,
 * trimmed}<end_of_turn>\n<start_of_turn>model\n{text}<end_of_turn>\n...
 *
 * There is no system role: the first message's text stands, as it is, in front of the first user's. Turns of user and
 * model alternate, as the template demands. */
#include "text/chat_gemma3.h"

#include <string.h>

#include "text/spaces.h"

static bool role_is(const chat_message *message, const char *role) { return strcmp(message->role, role) == 0; }
static bool is_model(const chat_message *message) { return role_is(message, "assistant") || role_is(message, "model"); }
static bool is_system(const chat_message *message) {
    return role_is(message, "system") || role_is(message, "developer");
}

/* A text, or texts put one after the other, of which each one of a list is trimmed. */
static void put_content(chat_writer *w, const chat_message *message) {
    for (size_t i = 0; i < message->n_parts; i++) {
        const char *text = message->parts[i];
        size_t bytes = strlen(text);
        space_trim(&text, &bytes);
        chat_put(w, text, bytes);
    }
}

static void open_turn(chat_writer *w, bool model) {
    chat_put_control(w, chat_style_turn(CHAT_STYLE_GEMMA3));
    chat_puts(w, model ? "model\n" : "user\n");
}

static void put_message(chat_writer *w, size_t index, const chat_message *message, const chat_message *system) {
    if (message->n_tool_calls || message->n_tool_responses || role_is(message, "tool")) {
        chat_fail(w, KAKEYA_UNSUPPORTED, "messages[%zu]: the turns of Gemma 3 have no tools", index);
        return;
    }
    if (message->ids && message->ids_open_turn) {
        chat_put_ids(w, message->ids, message->n_ids);
    } else {
        open_turn(w, is_model(message));
        for (size_t i = 0; system && i < system->n_parts; i++) chat_puts(w, system->parts[i]);
        if (system) chat_puts(w, "\n\n");
        put_content(w, message);
    }
    chat_put_control(w, "<end_of_turn>");
    chat_puts(w, "\n");
}

kakeya_status chat_render_gemma3(const chat_message *messages, size_t n_messages, const chat_options *options,
                                 chat_text *out, kakeya_error *error) {
    *out = (chat_text){0};
    kakeya_status status = chat_check_roles(messages, n_messages, error);
    if (status) return status;
    chat_writer writer = {.error = error}, *w = &writer;
    const size_t first = n_messages && is_system(&messages[0]);
    if (chat_offers_tools(options))
        chat_fail(w, KAKEYA_UNSUPPORTED, "tools: the turns of Gemma 3 have none, and it was not trained to call any");
    chat_put_control(w, "<bos>");
    for (size_t i = first; i < n_messages && !w->status; i++) {
        bool model = (i - first) % 2;
        if (is_model(&messages[i]) != model && !role_is(&messages[i], "tool"))
            chat_fail(w, KAKEYA_INVALID_ARGUMENT,
                      "messages[%zu].role is \"%s\", expected \"%s\": the turns of Gemma 3 alternate, the user's first",
                      i, messages[i].role, model ? "assistant" : "user");
        put_message(w, i, &messages[i], first && i == first ? &messages[0] : NULL);
    }
    if (first && n_messages == 1)
        chat_fail(w, KAKEYA_INVALID_ARGUMENT,
                  "messages: the turns of Gemma 3 put a system text before the first user's, and there is none");
    w->out.stable_segments = w->out.n_segments;
    if (options->add_generation_prompt) open_turn(w, true);
    return chat_writer_end(w, out);
}
