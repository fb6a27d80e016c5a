/* The Gemma 4 turn format, rendered natively: what the checkpoint's chat_template.jinja (revision of 2026-07-09) makes
 * of a conversation with system text, tools, reasoning and tool calls, byte for byte.
 *
 * Only what the format itself writes can become control tokens. Every word that comes from a caller, be it a message, a
 * tool's name or an argument, is encoded as ordinary text, whatever it spells. */
#ifndef KAKEYA_TEXT_CHAT_H
#define KAKEYA_TEXT_CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/tokenizer.h"

/* What opens the model's turn when thinking is off. */
typedef enum chat_style {
    CHAT_STYLE_PLAIN = 0,     /* nothing more: E2B, E4B and the demo model */
    CHAT_STYLE_EMPTY_THOUGHT, /* an empty thought block: 26B-A4B and 31B */
} chat_style;

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

/* Strings are UTF-8, borrowed, and NULL where absent. */
typedef struct chat_message {
    const char *role;         /* "system", "developer", "user", "assistant" or "model", "tool" */
    const char *const *parts; /* the content: one text, or several where it came as a list */
    size_t n_parts;
    bool is_list; /* the parts came as a list: a leading system message then has a space behind each */
    const char *reasoning;
    const chat_tool_call *tool_calls;
    size_t n_tool_calls;
    const chat_tool_response *tool_responses;
    size_t n_tool_responses;
    const char *name;         /* of the tool, in a "tool" message; the call with the same id names it first */
    const char *tool_call_id; /* in a "tool" message */
} chat_message;

typedef struct chat_options {
    chat_style style;
    bool thinking;              /* the model may reason in its thought channel */
    bool preserve_thinking;     /* keep the reasoning of earlier turns that called tools */
    bool add_generation_prompt; /* end with the model's turn opened */
    const char *tools;          /* text of a JSON array of OpenAI tool declarations, NULL: none */
} chat_options;

/* A stretch of the rendered text: one control token, or text that is never read as control tokens. */
typedef struct chat_segment {
    size_t offset, bytes;
    bool control;
} chat_segment;

typedef struct chat_text {
    char *text; /* NUL-terminated */
    size_t bytes;
    chat_segment *segments; /* in order, covering the text; two texts are never adjacent */
    size_t n_segments;
} chat_text;

/* Renders the conversation, <bos> included. *out is released by chat_text_free. */
kakeya_status chat_render(const chat_message *messages, size_t n_messages, const chat_options *options, chat_text *out,
                          kakeya_error *error);
void chat_text_free(chat_text *text);

/* The ids of a rendered conversation, malloc'ed. Fails if the vocabulary lacks a control token that the text uses. */
kakeya_status chat_tokenize(const tokenizer *t, const chat_text *text, int32_t **ids, size_t *n_ids,
                            kakeya_error *error);

/* ---- OpenAI-style JSON ---- */

typedef struct chat_request {
    chat_message *messages;
    size_t n_messages;
    char *tools; /* for chat_options.tools; NULL if there are none */
    struct chat_request_storage *storage;
} chat_request;

/* Reads {"messages": [...], "tools": [...]} (other keys are ignored) or just the array of messages. Contents are texts
 * or lists of {"type": "text"} parts; other parts are KAKEYA_UNSUPPORTED. Messages name the place, such as
 * messages[2].content. *out is released by chat_request_free. */
kakeya_status chat_request_read(const char *json, size_t bytes, chat_request *out, kakeya_error *error);
void chat_request_free(chat_request *request);

/* ---- the checkpoint's template ---- */

typedef struct chat_template_info {
    bool known;       /* a revision whose output chat_render is tested against */
    bool gemma_turns; /* at least it writes this turn format; otherwise chat_render does not fit the model */
    chat_style style;
    char note[256]; /* what to report when it is not known; empty when it is */
} chat_template_info;

/* Looks at the text of a chat_template.jinja. */
chat_template_info chat_template_check(const char *text, size_t bytes);

#endif
