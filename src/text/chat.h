/* The Gemma 4 turn format, rendered natively: what the checkpoint's chat_template.jinja (revision of 2026-07-09) makes
 * of a conversation with system text, tools, reasoning and tool calls, byte for byte. Gemma 3's: text/chat_gemma3.h.
 */
#ifndef KAKEYA_TEXT_CHAT_H
#define KAKEYA_TEXT_CHAT_H

#include <string.h>

#include "text/chat_template.h"
#include "text/chat_text.h"

typedef struct chat_tool_call {
    const char *id; /* may be NULL */
    const char *name;
    const char *arguments; /* text of a JSON object; NULL or "": none */
} chat_tool_call;

/* A tool's answer written into the message that called it (Gemma's own form; OpenAI's is a message of role "tool"). */
typedef struct chat_tool_response {
    const char *name;     /* NULL: "unknown" */
    const char *response; /* text of any JSON value */
} chat_tool_response;

/* A part of a message that is a picture, or a sound: the ids that stand for it. */
typedef struct chat_picture {
    const int32_t *ids;
    size_t n_ids;
} chat_picture;

/* Strings are UTF-8, borrowed, and NULL where absent. */
typedef struct chat_message {
    const char *role;         /* "system", "developer", "user", "assistant" or "model", "tool" */
    const char *const *parts; /* the content: one text, or several where it came as a list */
    size_t n_parts;
    const chat_picture *pictures; /* NULL, or [n_parts]: those of parts that are pictures or sounds, whose text is "" */
    bool is_list;                 /* the parts came as a list: a leading system message then has a space behind each */
    const char *reasoning;
    const chat_tool_call *tool_calls;
    size_t n_tool_calls;
    const chat_tool_response *tool_responses;
    size_t n_tool_responses;
    const char *name;         /* of the tool, in a "tool" message; the call with the same id names it first */
    const char *tool_call_id; /* in a "tool" message */
    /* Of a model's message: the ids that it consists of, in place of reasoning, calls and content, with its thoughts
     * and without. NULL: what the template writes. */
    const int32_t *ids, *ids_without_thoughts;
    size_t n_ids, n_ids_without_thoughts;
    bool ids_open_turn; /* they begin with the turn's opening; used only where the template opens one as well */
} chat_message;

typedef struct chat_options {
    chat_style style;
    bool thinking;              /* the model may reason in its thought channel */
    bool preserve_thinking;     /* keep the reasoning of earlier turns that called tools */
    bool add_generation_prompt; /* end with the model's turn opened */
    const char *tools;          /* text of a JSON array of OpenAI tool declarations, NULL: none */
} chat_options;

/* Whether all roles are known ones. */
kakeya_status chat_check_roles(const chat_message *messages, size_t n_messages, kakeya_error *error);

/* Renders the conversation, <bos> included. *out is released by chat_text_free. */
kakeya_status chat_render(const chat_message *messages, size_t n_messages, const chat_options *options, chat_text *out,
                          kakeya_error *error);

/* Whether any tools are declared: an empty list is none. */
static inline bool chat_offers_tools(const chat_options *options) {
    static const char space[] = " \t\r\n";
    const char *json = options->tools;
    if (!json) return false;
    json += strspn(json, space);
    return *json != '[' || json[1 + strspn(json + 1, space)] != ']';
}

#endif
