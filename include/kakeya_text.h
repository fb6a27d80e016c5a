/* Text: tokenizers, conversations, parsing of answers, and grammars that constrain answers. A part of kakeya.h, which
 * programs include. */
#ifndef KAKEYA_TEXT_H
#define KAKEYA_TEXT_H

#ifndef KAKEYA_H
#error "include kakeya.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* --------------------------------------------------------------------------------------------- tokenizer */

typedef struct kakeya_tokenizer kakeya_tokenizer;

/* Reads only a model's tokenizer and chat template. model: as in kakeya_engine_options. The caller owns *out. */
KAKEYA_API kakeya_status kakeya_tokenizer_open(const char *model, kakeya_tokenizer **out, kakeya_error *error);
KAKEYA_API void kakeya_tokenizer_close(kakeya_tokenizer *tokenizer);

/* Ids are 0 .. size - 1. For a NULL tokenizer (a model without one) these return 0, NULL, -1 and false. */
KAKEYA_API int kakeya_tokenizer_vocab_size(const kakeya_tokenizer *tokenizer);
/* A token as the vocabulary spells it (spaces as U+2581, bytes as "<0xNN>"); NULL outside the vocabulary. */
KAKEYA_API const char *kakeya_tokenizer_piece(const kakeya_tokenizer *tokenizer, int32_t token);
/* The id of the token with exactly this spelling, -1 if there is none. */
KAKEYA_API int32_t kakeya_tokenizer_find(const kakeya_tokenizer *tokenizer, const char *piece);
/* True for control tokens (turns, tools, <bos>), which spell no text. */
KAKEYA_API bool kakeya_tokenizer_is_special(const kakeya_tokenizer *tokenizer, int32_t token);

enum {
    KAKEYA_TEXT_LITERAL = 0,       /* everything is text, whatever it spells */
    KAKEYA_TEXT_PARSE_SPECIAL = 1, /* special-token strings become their ids */
    KAKEYA_TEXT_ADD_SPECIAL = 2,   /* adds what the model expects around a text: <bos> before it */
    KAKEYA_TEXT_ADD_ONCE = 4,      /* but not if the text already begins with it */
    KAKEYA_TEXT_PROMPT = 7,        /* all three */
};

/* Text to ids. *ids is freed with kakeya_free. how: KAKEYA_TEXT_*. A NULL tokenizer is refused. */
KAKEYA_API kakeya_status kakeya_tokenize(const kakeya_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                         int how, int32_t **ids, size_t *n_ids, kakeya_error *error);
/* The same with a limit. More than `most` tokens return KAKEYA_CONTEXT_FULL and set *n_ids to a lower bound of the true
 * count. 0: no limit. */
KAKEYA_API kakeya_status kakeya_tokenize_at_most(const kakeya_tokenizer *tokenizer, const char *text, size_t text_bytes,
                                                 int how, size_t most, int32_t **ids, size_t *n_ids,
                                                 kakeya_error *error);
/* Ids to text, always valid UTF-8. *text is NUL-terminated, freed with kakeya_free. */
KAKEYA_API kakeya_status kakeya_detokenize(const kakeya_tokenizer *tokenizer, const int32_t *ids, size_t n_ids,
                                           bool keep_special, char **text, size_t *text_bytes, kakeya_error *error);

/* ----------------------------------------------------------------------------------------- conversations */

/* Conversations are converted to tokens, and an answer's tokens back to content, reasoning and tool calls. Callers
 * never see the model's turn format. Only the format itself produces control tokens: text that spells one stays text.
 */

/* One message of a conversation; role: "system", "user", "model" (or "assistant"). */
typedef struct kakeya_message {
    const char *role;
    const char *content;
} kakeya_message;

/* The tokens of a conversation of texts; at its end the model's turn is opened. *ids is freed with kakeya_free. */
KAKEYA_API kakeya_status kakeya_message_tokens(const kakeya_tokenizer *tokenizer, const kakeya_message *messages,
                                               size_t n_messages, bool thinking, int32_t **ids, size_t *n_ids,
                                               kakeya_error *error);

/* The exact tokens of an earlier answer. Tokenizing what a client sends back may give other tokens: the text may be
 * split differently, arguments may be spelled or ordered differently, and reasoning is dropped. */
typedef struct kakeya_chat_run {
    size_t message; /* index of the model's message that is this answer */
    /* The ids of its prompt after the first *n_stable ones, then the answer without its stop token. */
    const int32_t *ids;
    size_t n_ids;
} kakeya_chat_run;

/* A part of a message. Never changes. */
typedef enum kakeya_chat_part_type {
    KAKEYA_CHAT_TEXT = 0,
    KAKEYA_CHAT_IMAGE, /* in a message of a user or a tool */
    KAKEYA_CHAT_SOUND, /* in a message of a user */
} kakeya_chat_part_type;

typedef struct kakeya_chat_part {
    kakeya_chat_part_type type;
    int n_tokens;     /* of a picture or a sound: kakeya_engine_image_tokens, kakeya_engine_sound_tokens */
    const char *text; /* of a text */
    const void *user; /* the caller's own; not read */
} kakeya_chat_part;

/* A call of a tool in a message of the model. Never changes. */
typedef struct kakeya_chat_call {
    const char *id; /* may be NULL */
    const char *name;
    const char *arguments; /* text of a JSON object; NULL or "": none */
} kakeya_chat_call;

/* A tool's answer in the message that called it (Gemma's own form; OpenAI's is a message of role "tool"). Never
 * changes. */
typedef struct kakeya_chat_response {
    const char *name;     /* NULL: "unknown" */
    const char *response; /* text of any JSON value; NULL: null */
} kakeya_chat_response;

/* A message of a conversation with all that it may hold. Texts are NULL where they are absent. */
typedef struct kakeya_chat_message {
    size_t size;
    const char *role;              /* "system", "developer", "user", "assistant" or "model", "tool" */
    const char *content;           /* one text; NULL: the parts */
    const kakeya_chat_part *parts; /* [n_parts]; NULL: there is no content, be it an empty one */
    size_t n_parts;
    const char *reasoning; /* of the model, before it said the content */
    const kakeya_chat_call *calls;
    size_t n_calls;
    const kakeya_chat_response *responses;
    size_t n_responses;
    const char *name;    /* of the tool, in its message; the call with the same id names it first */
    const char *call_id; /* in a tool's message */
    /* The exact tokens of an answer, in a message of the model: as kakeya_chat_run has them. NULL: what the format
     * makes of the message. */
    const int32_t *ids;
    size_t n_ids;
} kakeya_chat_message;

typedef struct kakeya_chat_options {
    size_t size;
    bool thinking;          /* the model may reason before it answers */
    bool preserve_thinking; /* keep the reasoning of earlier turns that called tools */
    bool without_turn;      /* do not open the model's turn after the conversation */
    const char *tools; /* JSON text of a list of OpenAI tool declarations; NULL: the request's own, if it has any */
    size_t tools_bytes;
    /* Ids to use in place of what the format makes of these messages, without thoughts where the format leaves out
     * reasoning. A run that does not begin where the format begins the message is ignored. */
    const kakeya_chat_run *runs; /* [n_runs], in any order; at most one for a message */
    size_t n_runs;
    /* The last message is the model's, and the answer continues its text: the model's turn is opened with exactly that
     * text in it, whatever without_turn says; its reasoning is left out. *n_stable ends before it. */
    bool continue_last;
    /* Exceeding it returns KAKEYA_CONTEXT_FULL and sets *n_ids to a lower bound of the true count. 0: no limit. */
    size_t most_tokens;
    /* Lengths of pictures (kakeya_engine_image_tokens): the i-th part of type image, image_url or input_image in a
     * user's message becomes a run of image_tokens[i] image tokens between those that begin and end a picture, whatever
     * the part contains. A different number of such parts is KAKEYA_INVALID_ARGUMENT. NULL: such parts are refused. */
    const int *image_tokens;
    size_t n_images;
    /* The same of sounds (kakeya_engine_sound_tokens): parts of type audio or input_audio. */
    const int *sound_tokens;
    size_t n_sounds;
    /* Receives how many bytes of an error's message are the place in the conversation that it is about, such as
     * messages[2].content; the reason follows. 0: it is about none. NULL: nobody asks. */
    size_t *place_bytes;
} kakeya_chat_options;

/* The tokens of a conversation. messages: each set up by KAKEYA_INIT. tools: those of the options; image_tokens and
 * sound_tokens are not read, because parts have their own. Otherwise as kakeya_chat_tokens. */
KAKEYA_API kakeya_status kakeya_conversation_tokens(const kakeya_tokenizer *tokenizer,
                                                    const kakeya_chat_message *messages, size_t n_messages,
                                                    const kakeya_chat_options *options, int32_t **ids, size_t *n_ids,
                                                    size_t *n_stable, kakeya_error *error);

/* The same of a conversation in the JSON form of OpenAI's chat completions: a list of messages, or an object with
 * "messages" and perhaps "tools", whose other members are ignored. Messages have a role (system, developer, user,
 * assistant, tool), content (a text, or a list of text parts), reasoning_content or reasoning, tool_calls,
 * tool_call_id. Parts that are not text are KAKEYA_UNSUPPORTED. A tool message without an earlier message with
 * tool_calls is KAKEYA_INVALID_ARGUMENT; errors name the place, such as messages[2].content[0].
 *
 * *ids is freed with kakeya_free. *n_stable (may be NULL) receives the number of ids that are the conversation itself:
 * the conversation's next request begins with them, while the ids that open the model's turn may differ. options NULL:
 * all defaults. */
KAKEYA_API kakeya_status kakeya_chat_tokens(const kakeya_tokenizer *tokenizer, const char *json, size_t json_bytes,
                                            const kakeya_chat_options *options, int32_t **ids, size_t *n_ids,
                                            size_t *n_stable, kakeya_error *error);

typedef enum kakeya_chat_event_type {
    KAKEYA_CHAT_CONTENT = 0,    /* text */
    KAKEYA_CHAT_REASONING,      /* text */
    KAKEYA_CHAT_CALL_BEGIN,     /* call, id, name */
    KAKEYA_CHAT_CALL_ARGUMENTS, /* call, text: more of the arguments' JSON text */
    KAKEYA_CHAT_CALL_END,       /* call: its arguments are complete, and a JSON object */
} kakeya_chat_event_type;

/* "content", "reasoning", "call-begin", "call-arguments", "call-end"; NULL for a value that this library does not know.
 */
KAKEYA_API const char *kakeya_chat_event_name(kakeya_chat_event_type type);

/* A piece of an answer. Texts are whole UTF-8 characters, never empty, not NUL-terminated. */
typedef struct kakeya_chat_event {
    size_t size;
    kakeya_chat_event_type type;
    const char *text;
    size_t text_bytes;
    size_t call;      /* 0 for the answer's first call, and so on */
    const char *id;   /* of the call; cannot be guessed */
    const char *name; /* of the function as the model wrote it, whether declared or not */
} kakeya_chat_event;

/* Everything that the event points to is valid only during the call. Return false to stop: the parser then returns
 * KAKEYA_CANCELLED. The callback must not use the parser. */
typedef bool (*kakeya_chat_event_fn)(void *user, const kakeya_chat_event *event);

typedef struct kakeya_chat_parser kakeya_chat_parser;

typedef struct kakeya_chat_parser_options {
    size_t size;
    const char
        *tools; /* JSON text of the tools that the prompt declares: a list, or a request that holds one; NULL: none */
    size_t tools_bytes;
    const int32_t *prompt; /* the tokens before the answer, which may end with an open thought; NULL: none */
    size_t n_prompt;
    bool without_reasoning;          /* count reasoning, but report no events for it */
    bool marked_calls_only;          /* content that begins with call:NAME{ is content, even if NAME is declared */
    const char *const *stop_strings; /* texts that end the content and are not part of it */
    size_t n_stop_strings;
    const char *id_prefix; /* of call ids, at most 31 bytes; NULL: "call_" */
    kakeya_chat_event_fn on_event;
    void *user; /* for on_event */
    /* An open parser whose tools are this one's too, without reading them again: for several answers to one request.
     * It may be closed before this one. NULL: the tools above. */
    const kakeya_chat_parser *like;
} kakeya_chat_parser_options;

/* Counts of what an answer contained. */
typedef struct kakeya_chat_summary {
    size_t size;
    size_t calls;              /* begun */
    size_t complete_calls;     /* ended */
    size_t reasoning_tokens;   /* from the thought's opening to its end, both included */
    size_t repairs;            /* tokens dropped and parts of calls repaired */
    int32_t stop_string;       /* index of the stop string that ended the content; -1: none did */
    const char *finish_reason; /* "stop", "length", "tool_calls" or "cancelled", as OpenAI's clients know them */
    size_t call_repairs;       /* of the repairs: parts of calls */
} kakeya_chat_summary;

/* Reads an answer token by token: content, reasoning and tool calls become events as soon as they are certain. The
 * concatenated events do not depend on how tokens are split between calls. Memory is bounded. One parser is used by one
 * thread at a time; the tokenizer must outlive it. */
KAKEYA_API kakeya_status kakeya_chat_parser_open(const kakeya_tokenizer *tokenizer,
                                                 const kakeya_chat_parser_options *options, kakeya_chat_parser **out,
                                                 kakeya_error *error);
KAKEYA_API void kakeya_chat_parser_close(kakeya_chat_parser *parser);

/* Feeds the next tokens. *stopped (may be NULL) tells whether a stop string is complete: the answer is then over, and
 * later tokens are ignored. */
KAKEYA_API kakeya_status kakeya_chat_parser_feed(kakeya_chat_parser *parser, const int32_t *tokens, size_t n,
                                                 bool *stopped, kakeya_error *error);
/* Where the next token belongs. */
typedef enum kakeya_chat_place {
    KAKEYA_CHAT_IN_CONTENT = 0,
    KAKEYA_CHAT_UNDECIDED, /* after <|channel> or <|turn>: what is held back is reasoning, a role, or else content */
    KAKEYA_CHAT_IN_REASONING,
    KAKEYA_CHAT_IN_CALL,
} kakeya_chat_place;

KAKEYA_API kakeya_chat_place kakeya_chat_parser_place(const kakeya_chat_parser *parser);

/* Ends the answer and delivers what was held back. `finish` says why it ended: after KAKEYA_FINISH_STOP an open call is
 * closed and complete; otherwise it stays as it is and gets no KAKEYA_CHAT_CALL_END. Only kakeya_chat_parser_close may
 * follow. summary may be NULL. */
KAKEYA_API kakeya_status kakeya_chat_parser_finish(kakeya_chat_parser *parser, kakeya_finish finish,
                                                   kakeya_chat_summary *summary, kakeya_error *error);

/* --------------------------------------------------------------------------------------------- grammars */

/* What an answer may contain (docs/reference/grammar.md). A grammar constrains sampling: tokens that it does not allow
 * are never chosen, and where only a stop token may follow, the answer ends. A complete answer is valid; one that
 * max_tokens or a stop string cuts short is the beginning of a valid one. The choice depends only on the logits, the
 * earlier tokens, the seed and the position: it is the same for every mode, draft length and batch. */
typedef struct kakeya_grammar kakeya_grammar;

/* What the text of an answer may be. */
typedef enum kakeya_grammar_kind {
    KAKEYA_GRAMMAR_TEXT = 0,    /* anything */
    KAKEYA_GRAMMAR_JSON_OBJECT, /* a JSON object */
    KAKEYA_GRAMMAR_JSON_SCHEMA, /* a JSON value that is valid under the schema `text` */
    KAKEYA_GRAMMAR_REGEX,       /* a text that the regular expression `text` matches as a whole */
    KAKEYA_GRAMMAR_CHOICE,      /* one of the texts in the JSON list `text` */
    KAKEYA_GRAMMAR_RULES,       /* a text that the rules in `text` generate, in llama.cpp's GBNF or in Lark's syntax */
} kakeya_grammar_kind;

/* Which tool calls an answer may contain. */
typedef enum kakeya_grammar_calls {
    KAKEYA_CALLS_FREE = 0, /* any if the text is free, otherwise none */
    KAKEYA_CALLS_NONE,     /* none */
    KAKEYA_CALLS_AUTO,     /* the model may call the tools, with arguments as declared */
    KAKEYA_CALLS_REQUIRED, /* the answer is one or more calls, and nothing else; kind: KAKEYA_GRAMMAR_TEXT */
} kakeya_grammar_calls;

typedef struct kakeya_grammar_options {
    size_t size;
    kakeya_grammar_kind kind;
    const char *text;
    size_t text_bytes;
    kakeya_grammar_calls calls;
    const char *tools; /* JSON text of OpenAI tool declarations: a list, or a request that holds one. A function with
                        * "custom": {"syntax": "lark" or "regex", "definition": ...} beside it takes one argument,
                        * "input", a text that matches the definition */
    size_t tools_bytes;
    const char *const *tool_names; /* n_tool_names of the declared names that may be called; 0: all */
    size_t n_tool_names;
    int max_calls;       /* the answer ends after this many; 0: no limit */
    bool loosen;         /* ignore and note what cannot be enforced of tools without "strict": true */
    bool thinking;       /* a thought may come first; otherwise only if the text is free */
    int thinking_tokens; /* a thought ends after this many tokens, including the one that opens it; 0: no limit */
    bool any_order; /* members come in any order, with undeclared ones wherever a schema allows them; otherwise in the
                     * schema's order, followed by undeclared ones if it allows them explicitly. Calls: any order */
    /* How messages and notes number the declared tools: the i-th one is tools[tool_places[i]]; those from n_tool_places
     * on as they come. */
    const size_t *tool_places;
    size_t n_tool_places;
    const char *parameters; /* what they call the parameters of a tool; NULL: "parameters" */
} kakeya_grammar_options;

/* Compiles a grammar. It is immutable and may be used by any number of answers, at the same time, of any engine whose
 * tokenizer spells the same vocabulary. The tokenizer must outlive it. A tokenizer's first grammar takes longer,
 * because a table of the tokens is built.
 *
 * A grammar that cannot be compiled is refused, with a JSON pointer to the cause: KAKEYA_FORMAT if it is malformed,
 * KAKEYA_UNSUPPORTED if it is not understood or too large, KAKEYA_INVALID_ARGUMENT if no answer could be valid.
 * Release *out with kakeya_grammar_close once no answer uses it. */
KAKEYA_API kakeya_status kakeya_grammar_open(const kakeya_tokenizer *tokenizer, const kakeya_grammar_options *options,
                                             kakeya_grammar **out, kakeya_error *error);
KAKEYA_API void kakeya_grammar_close(kakeya_grammar *grammar);
/* The index-th part of the schemas that is ignored, as a JSON pointer ("schema#/properties/a/format"): keywords of
 * tools, with `loosen`, and formats that no standard defines. NULL after the last one; owned by the grammar. */
KAKEYA_API const char *kakeya_grammar_note(const kakeya_grammar *grammar, size_t index);
/* The memory that the grammar occupies, without what belongs to its tokenizer. */
KAKEYA_API size_t kakeya_grammar_bytes(const kakeya_grammar *grammar);

#ifdef __cplusplus
}
#endif

#endif
