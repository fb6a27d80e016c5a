/* What the model writes, as it writes it: reasoning, content and tool calls out of token ids.
 *
 *     [<|channel>thought\n ... <channel|>] content [<|tool_call>call:NAME{...}<tool_call|>]* <turn|>
 *
 * What lies between <|channel> and <channel|> is reasoning, whatever its label, which is the first line; it is held
 * back while the label is another one than thought, since a marker that nothing closes is followed by content.
 *
 * Token ids decide. A control token is one only if it was generated as one; text that spells <|tool_call> is content.
 * Every token is taken by itself, so the events of a stream, joined, do not depend on how it was cut into calls of
 * chat_parser_feed. Malformed answers are repaired: nothing that was meant as content gets lost, and the arguments of a
 * call that ends are always a JSON object. Memory is bounded: by CHAT_ARGUMENTS_MAX_BYTES, by 64 kilobytes of what
 * is undecided, and by the longest run of byte tokens, whose characters are not known earlier. */
#ifndef KAKEYA_TEXT_CHAT_PARSER_H
#define KAKEYA_TEXT_CHAT_PARSER_H

#include "text/tokenizer.h"

typedef enum chat_event_kind {
    CHAT_EVENT_CONTENT = 0,    /* text */
    CHAT_EVENT_REASONING,      /* text */
    CHAT_EVENT_CALL_BEGIN,     /* call, id, name */
    CHAT_EVENT_CALL_ARGUMENTS, /* call, text: more of the arguments' JSON text */
    CHAT_EVENT_CALL_END,       /* call: its arguments are complete */
} chat_event_kind;

/* Borrowed until the callback returns. Texts are whole UTF-8 characters, never empty, not NUL-terminated. */
typedef struct chat_event {
    chat_event_kind kind;
    const char *text;
    size_t bytes;
    size_t call;      /* 0 for the answer's first call, and so on */
    const char *id;   /* "call_" and 24 characters that nobody can guess */
    const char *name; /* as the model wrote it, declared or not */
} chat_event;

/* Return false to hear nothing more: the feed then returns KAKEYA_CANCELLED. Must not use the parser. */
typedef bool (*chat_event_fn)(void *user, const chat_event *event);

typedef struct chat_parser chat_parser;

typedef struct chat_parser_options {
    const char *tools;  /* JSON text of the tools that the prompt declares, as chat_tools_parse reads it; NULL: none */
    size_t tools_bytes; /* 0: up to its NUL */
    const chat_parser *like; /* an open parser whose tools are this one's, read once for both; NULL: those above */
    const int32_t *prompt;   /* the tokens in front of the answer: they may end with an open thought */
    size_t n_prompt;
    bool without_reasoning; /* reasoning is counted, but no event */
    bool marked_calls_only; /* do not read call:NAME{ at the start of the content as a call whose marker is missing */
    const char *id_prefix;  /* of call ids, at most 31 bytes; NULL: "call_" */
    chat_event_fn on_event;
    void *user;
} chat_parser_options;

/* Where the next token stands. */
typedef enum chat_place {
    CHAT_PLACE_CONTENT = 0,
    CHAT_PLACE_UNDECIDED, /* behind <|channel> or <|turn>: a label or a role, or else content */
    CHAT_PLACE_REASONING,
    CHAT_PLACE_CALL,
} chat_place;

/* Why there are no more tokens. */
typedef enum chat_ending {
    CHAT_ENDING_STOP, /* the model ended its turn: an open call is closed and delivered */
    CHAT_ENDING_CUT,  /* it was cut short: an open call stays as it is and gets no CHAT_EVENT_CALL_END */
} chat_ending;

typedef struct chat_parser_counts {
    size_t calls;            /* begun */
    size_t complete_calls;   /* ended */
    size_t reasoning_tokens; /* from <|channel> to <channel|>, both included */
    size_t repairs;          /* tokens dropped and pieces of calls mended */
    size_t call_repairs;     /* the latter */
} chat_parser_counts;

/* The tokenizer must outlive the parser; the options' texts and tokens are not needed afterwards. */
kakeya_status chat_parser_open(const tokenizer *t, const chat_parser_options *options, chat_parser **out,
                               kakeya_error *error);
void chat_parser_close(chat_parser *parser); /* NULL is fine */

/* The next tokens. A stop token ends what is open, as CHAT_ENDING_STOP does; what follows it is content. */
kakeya_status chat_parser_feed(chat_parser *parser, const int32_t *ids, size_t n, kakeya_error *error);
/* The answer is over: gives what was held back. Only chat_parser_close may follow. */
kakeya_status chat_parser_finish(chat_parser *parser, chat_ending ending, kakeya_error *error);

chat_place chat_parser_place(const chat_parser *parser);
chat_parser_counts chat_parser_count(const chat_parser *parser);

#endif
