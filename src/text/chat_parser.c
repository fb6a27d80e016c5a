#include "text/chat_parser.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "text/chat_arguments.h"
#include "text/chat_request.h"
#include "text/chat_text.h"
#include "text/detokenizer.h"
#include "text/spaces.h"

/* What an id means here. Everything else is text. */
typedef enum control {
    CONTROL_NONE = 0,
    CONTROL_OTHER, /* a control token without a meaning in an answer: dropped */
    CONTROL_THOUGHT_OPEN,
    CONTROL_THOUGHT_CLOSE,
    CONTROL_CALL_OPEN,
    CONTROL_CALL_CLOSE,
    CONTROL_QUOTE,
    CONTROL_TURN_OPEN,
    CONTROL_END,
} control;

static const struct {
    const char *piece;
    control meaning;
} control_pieces[] = {
    {"<|channel>", CONTROL_THOUGHT_OPEN},
    {"<channel|>", CONTROL_THOUGHT_CLOSE},
    {"<|tool_call>", CONTROL_CALL_OPEN},
    {"<tool_call|>", CONTROL_CALL_CLOSE},
    {CHAT_QUOTE, CONTROL_QUOTE},
    {"<|turn>", CONTROL_TURN_OPEN},
    {"<turn|>", CONTROL_END},
    {"<start_of_turn>", CONTROL_TURN_OPEN},
    {"<end_of_turn>", CONTROL_END},
    {"<|tool_response>", CONTROL_END},
    {"<eos>", CONTROL_END},
};
enum { CONTROL_PIECES = sizeof control_pieces / sizeof *control_pieces };

typedef enum state {
    IN_CONTENT = 0,
    IN_UNMARKED_CALL, /* content that has so far been the beginning of call:NAME{ for a declared NAME */
    IN_LABEL,         /* behind <|channel>, in front of the end of "thought\n" */
    IN_CHANNEL, /* behind <|channel> and something else: a thought once <channel|> comes, content if it never does */
    IN_REASONING,
    IN_CALL_NAME, /* behind <|tool_call>, in front of { */
    IN_ARGUMENTS,
    IN_DROPPED,  /* the rest of a call that was too large */
    BEHIND_CALL, /* white space and brackets too many are dropped, another text is content */
    IN_ROLE,     /* behind <|turn>: a role and a line end are dropped */
} state;

static const char label[] = "thought\n", call_word[] = "call:";

enum {
    OUT_BYTES = 4096,       /* an event is delivered when so much text has come together */
    MAX_SPACE_BYTES = 4096, /* of white space that may turn out to be the end; more of it is delivered */
    MAX_NAME_BYTES = 256,   /* of what stands between <|tool_call> and {: more of it is content */
    MAX_ROLE_BYTES = 16,
    MAX_LABEL_BYTES = 32,
    MAX_CHANNEL_BYTES = 65536, /* of a channel that may turn out to be content: a longer one is a thought */
    ID_CHARACTERS = 24,
    MAX_PREFIX_BYTES = 31,
};

/* What parsers of one request have together. */
typedef struct declared_tools {
    atomic_int users;
    cJSON *root;
    const cJSON *list; /* NULL: there are none */
} declared_tools;

struct chat_parser {
    const tokenizer *t;
    detokenizer *detokenizer;
    declared_tools *declared;
    const cJSON *tools; /* their list */
    chat_event_fn on_event;
    void *user;
    bool without_reasoning, muted; /* muted: the prompt is being read */
    char id_prefix[MAX_PREFIX_BYTES + 1];
    int32_t control_ids[CONTROL_PIECES];

    state state;
    bool may_be_unmarked;        /* nothing has come yet: a call without its marker may begin here */
    bool without_tools;          /* none was declared */
    bool drop_space;             /* white space at the start of what comes next is dropped */
    bool content_started;        /* some content has been given */
    bool reasoned, new_thought;  /* some reasoning has been given; another thought begins on a new line */
    bool thinking;               /* between <|channel> and <channel|>, for the count of tokens */
    char space[MAX_SPACE_BYTES]; /* white space that more text may follow */
    size_t space_bytes;
    char head[MAX_NAME_BYTES]; /* a label, a role, or the name of a call, so far */
    size_t head_bytes;
    size_t head_of_prompt; /* bytes of a label that stand in the prompt already */
    char *channel;         /* [channel_room]: text of a channel that is not decided */
    size_t channel_bytes, channel_room, channel_tokens;
    chat_arguments arguments;
    char name[MAX_NAME_BYTES + 1];
    char id[MAX_PREFIX_BYTES + ID_CHARACTERS + 1];

    chat_event_kind out_kind;
    size_t out_bytes;
    char out[OUT_BYTES];

    chat_parser_counts counts;
    kakeya_status status; /* the first failure sticks */
};

/* ------------------------------------------------------------------------------------------------ events */

static void emit(chat_parser *p, chat_event event) {
    if (p->status || p->muted) return;
    event.call = p->counts.calls ? p->counts.calls - 1 : 0;
    if (!p->on_event(p->user, &event)) p->status = KAKEYA_CANCELLED;
}

static void flush(chat_parser *p) {
    size_t bytes = p->out_bytes;
    p->out_bytes = 0;
    if (bytes) emit(p, (chat_event){.kind = p->out_kind, .text = p->out, .bytes = bytes});
}

static void put(chat_parser *p, chat_event_kind kind, const char *text, size_t bytes) {
    if (p->out_kind != kind) flush(p);
    p->out_kind = kind;
    while (bytes) {
        if (p->out_bytes == OUT_BYTES) flush(p);
        size_t part = OUT_BYTES - p->out_bytes;
        if (part > bytes) {
            part = bytes;
        } else {
            while (part && part < bytes && ((unsigned char)text[part] & 0xC0) == 0x80) part--; /* whole characters */
        }
        if (part == 0) {
            flush(p);
            continue;
        }
        memcpy(p->out + p->out_bytes, text, part);
        p->out_bytes += part;
        text += part;
        bytes -= part;
    }
}

static void put_arguments(void *user, const char *text, size_t bytes) {
    put(user, CHAT_EVENT_CALL_ARGUMENTS, text, bytes);
}

/* ------------------------------------------------------------------------------------------------ texts */

static void put_text(chat_parser *p, bool reasoning, const char *text, size_t bytes) {
    if (bytes == 0 || (reasoning && p->without_reasoning)) return;
    put(p, reasoning ? CHAT_EVENT_REASONING : CHAT_EVENT_CONTENT, text, bytes);
}

static void release_space(chat_parser *p, bool reasoning) {
    put_text(p, reasoning, p->space, p->space_bytes);
    p->space_bytes = 0;
}

static void begin_text(chat_parser *p, bool reasoning) {
    p->drop_space = false;
    if (reasoning) {
        if (p->new_thought && p->reasoned) put_text(p, true, "\n", 1);
        p->new_thought = false;
        p->reasoned = true;
    } else {
        p->content_started = true;
    }
    release_space(p, reasoning);
}

/* Content or reasoning. White space at its end waits for what follows, which may be a call, or no content at all; where
 * no tool was declared it is delivered as it comes. */
static void take_text(chat_parser *p, bool reasoning, const char *text, size_t bytes) {
    size_t start = 0;
    for (size_t at = 0; at < bytes;) {
        size_t space = space_length(text + at, bytes - at);
        if (p->drop_space && space) {
            at += space;
            start = at;
            continue;
        }
        if (space == 0) {
            begin_text(p, reasoning);
            while (at < bytes && space_length(text + at, bytes - at) == 0) at++;
            put_text(p, reasoning, text + start, at - start);
        } else if (!reasoning && p->without_tools && p->content_started) {
            put_text(p, false, text + at, space);
            at += space;
        } else {
            if (p->space_bytes + space > MAX_SPACE_BYTES) release_space(p, reasoning);
            memcpy(p->space + p->space_bytes, text + at, space);
            p->space_bytes += space;
            at += space;
        }
        start = at;
    }
}

static void enter(chat_parser *p, state next) {
    p->state = next;
    p->head_bytes = 0;
}

/* Collects into the head; false where it is full. */
static bool collect(chat_parser *p, char c) {
    if (p->head_bytes == sizeof p->head) return false;
    p->head[p->head_bytes++] = c;
    return true;
}

/* What was collected is content after all. */
static void head_is_content(chat_parser *p) {
    size_t bytes = p->head_bytes, known = p->head_of_prompt;
    p->head_of_prompt = 0;
    enter(p, IN_CONTENT);
    take_text(p, false, p->head + known, bytes - known);
}

/* ------------------------------------------------------------------------------------------------ channels */

static void open_thought(chat_parser *p) {
    p->head_of_prompt = 0;
    if (p->content_started) release_space(p, false); /* it stands between two contents */
    p->space_bytes = 0;
    p->new_thought = true;
    p->drop_space = false;
    enter(p, IN_REASONING);
}

/* Bytes of the channel's first line where that is a label; 0: it has none. */
static size_t label_bytes(const chat_parser *p) {
    for (size_t i = 0; i < p->channel_bytes && i <= MAX_LABEL_BYTES; i++) {
        const char c = p->channel[i];
        if (c == '\n') return i ? i + 1 : 0;
        bool letter =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
        if (!letter) return 0;
    }
    return 0;
}

static void decide_channel(chat_parser *p, bool thought) {
    size_t start = thought ? label_bytes(p) : 0, known = p->head_of_prompt, bytes = p->channel_bytes;
    if (start < known) start = known;
    p->channel_bytes = 0;
    if (thought) {
        open_thought(p);
    } else { /* a marker without meaning */
        p->counts.repairs++;
        p->counts.reasoning_tokens -= p->channel_tokens;
        p->thinking = false;
        p->head_of_prompt = 0;
        enter(p, IN_CONTENT);
    }
    p->channel_tokens = 0;
    take_text(p, thought, p->channel + start, bytes - start);
}

static size_t step_channel(chat_parser *p, const char *text, size_t bytes) {
    size_t room = p->channel_room ? p->channel_room : OUT_BYTES;
    if (p->channel_bytes + bytes > MAX_CHANNEL_BYTES) {
        decide_channel(p, true);
        return 0;
    }
    while (room < p->channel_bytes + bytes) room *= 2;
    if (room > p->channel_room) {
        char *grown = realloc(p->channel, room);
        if (!grown) {
            p->status = KAKEYA_OUT_OF_MEMORY;
            return bytes;
        }
        p->channel = grown;
        p->channel_room = room;
    }
    memcpy(p->channel + p->channel_bytes, text, bytes);
    p->channel_bytes += bytes;
    return bytes;
}

/* ------------------------------------------------------------------------------------------------ calls */

static void new_id(chat_parser *p) {
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    enum { BASE = sizeof digits - 1, FAIR_BELOW = 256 / BASE * BASE };
    size_t n = strlen(p->id_prefix), end = n + ID_CHARACTERS;
    memcpy(p->id, p->id_prefix, n);
    while (n < end && !p->status) {
        unsigned char bytes[2 * ID_CHARACTERS];
        if (getentropy(bytes, sizeof bytes) != 0) p->status = KAKEYA_IO;
        for (size_t i = 0; i < sizeof bytes && n < end && !p->status; i++) {
            if (bytes[i] < FAIR_BELOW) p->id[n++] = digits[bytes[i] % BASE];
        }
    }
    p->id[n] = 0;
}

static void open_call(chat_parser *p) {
    p->space_bytes = 0; /* white space in front of a call is not content */
    p->may_be_unmarked = false;
    p->thinking = false;
    flush(p); /* content is told while the place is content */
    enter(p, IN_CALL_NAME);
}

/* The name in the head, perhaps behind "call:". */
static const char *called_name(const chat_parser *p, size_t *name_bytes) {
    const char *name = p->head;
    size_t bytes = p->head_bytes;
    space_trim(&name, &bytes);
    if (bytes >= sizeof call_word - 1 && memcmp(name, call_word, sizeof call_word - 1) == 0) {
        name += sizeof call_word - 1;
        bytes -= sizeof call_word - 1;
    } else if (bytes && *name == ':') {
        name++;
        bytes--;
    }
    space_trim(&name, &bytes);
    *name_bytes = bytes;
    return name;
}

static void begin_call(chat_parser *p, char opening) {
    size_t bytes;
    const char *name = called_name(p, &bytes);
    memcpy(p->name, name, bytes);
    p->name[bytes] = 0;
    flush(p);
    p->counts.calls++;
    new_id(p);
    emit(p, (chat_event){.kind = CHAT_EVENT_CALL_BEGIN, .id = p->id, .name = p->name});
    p->may_be_unmarked = false;
    enter(p, IN_ARGUMENTS);
    chat_arguments_begin(&p->arguments, chat_schema_of_tool(p->tools, p->name, bytes), opening);
}

static void end_call(chat_parser *p) {
    flush(p);
    p->counts.complete_calls++;
    emit(p, (chat_event){.kind = CHAT_EVENT_CALL_END, .id = p->id, .name = p->name});
    p->drop_space = true;
    enter(p, p->arguments.too_large ? IN_DROPPED : BEHIND_CALL);
}

static void check_arguments(chat_parser *p) {
    if (p->arguments.out_of_memory && !p->status) p->status = KAKEYA_OUT_OF_MEMORY;
    if (p->arguments.done) end_call(p);
}

/* A call whose end has come, whether its brackets are closed or not. */
static void close_call(chat_parser *p) {
    if (p->state == IN_CALL_NAME) {
        size_t name_bytes;
        called_name(p, &name_bytes);
        p->counts.repairs++;
        if (name_bytes) begin_call(p, '{');
    }
    if (p->state == IN_ARGUMENTS) {
        chat_arguments_close(&p->arguments);
        check_arguments(p);
    }
    enter(p, BEHIND_CALL);
}

static bool in_call(const chat_parser *p) {
    return p->state == IN_CALL_NAME || p->state == IN_ARGUMENTS || p->state == IN_DROPPED;
}

/* ------------------------------------------------------------------------------------------------ text tokens */

/* Whether the head is the beginning of "call:NAME{" for a declared name; *whole: it is all of it. */
static bool may_be_call(const chat_parser *p, bool *whole) {
    size_t word = sizeof call_word - 1;
    *whole = false;
    if (p->head_bytes <= word) return memcmp(p->head, call_word, p->head_bytes) == 0;
    if (memcmp(p->head, call_word, word) != 0) return false;
    const char *rest = p->head + word;
    size_t rest_bytes = p->head_bytes - word;
    const cJSON *tool;
    cJSON_ArrayForEach(tool, p->tools) {
        const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(function, "name");
        if (!cJSON_IsString(name)) continue;
        size_t bytes = strlen(name->valuestring);
        size_t common = bytes < rest_bytes ? bytes : rest_bytes;
        if (memcmp(name->valuestring, rest, common) != 0) continue;
        if (rest_bytes <= bytes) return true;
        if (rest_bytes == bytes + 1 && rest[bytes] == '{') return *whole = true;
    }
    return false;
}

static size_t step_content(chat_parser *p, const char *text, size_t bytes) {
    if (p->may_be_unmarked) {
        size_t space = space_length(text, bytes);
        if (space == 0) {
            p->may_be_unmarked = false;
            enter(p, IN_UNMARKED_CALL);
            return 0;
        }
        take_text(p, false, text, space);
        return space;
    }
    take_text(p, false, text, bytes);
    return bytes;
}

static size_t step_unmarked(chat_parser *p, char c) {
    bool whole;
    if (!collect(p, c)) {
        head_is_content(p);
        return 0;
    }
    if (!may_be_call(p, &whole)) {
        head_is_content(p);
    } else if (whole) {
        p->head_bytes--;
        p->space_bytes = 0;
        p->counts.repairs++;
        begin_call(p, '{');
    }
    return 1;
}

static size_t step_label(chat_parser *p, char c) {
    if (c != label[p->head_bytes]) { /* another label, or none */
        p->state = IN_CHANNEL;
        (void)step_channel(p, p->head, p->head_bytes);
        return 0;
    }
    collect(p, c);
    if (p->head_bytes == sizeof label - 1) open_thought(p);
    return 1;
}

static size_t step_name(chat_parser *p, char c) {
    if (c == '{' || c == '(') {
        begin_call(p, c);
        return 1;
    }
    if (collect(p, c)) return 1;
    p->counts.repairs++;
    head_is_content(p);
    return 0;
}

static size_t step_behind_call(chat_parser *p, const char *text, size_t bytes) {
    size_t space = space_length(text, bytes);
    if (space) return space;
    if (strchr("}])", *text) && *text) {
        p->counts.repairs++;
        return 1;
    }
    enter(p, IN_CONTENT);
    return 0;
}

static size_t step_role(chat_parser *p, char c) {
    if (c == '\n') {
        enter(p, IN_CONTENT);
        return 1;
    }
    if (c >= 'a' && c <= 'z' && p->head_bytes < MAX_ROLE_BYTES) {
        collect(p, c);
        return 1;
    }
    head_is_content(p);
    return 0;
}

static size_t step(chat_parser *p, const char *text, size_t bytes) {
    size_t taken;
    switch (p->state) {
    case IN_CONTENT:
        return step_content(p, text, bytes);
    case IN_UNMARKED_CALL:
        return step_unmarked(p, *text);
    case IN_LABEL:
        return step_label(p, *text);
    case IN_CHANNEL:
        return step_channel(p, text, bytes);
    case IN_REASONING:
        take_text(p, true, text, bytes);
        return bytes;
    case IN_CALL_NAME:
        return step_name(p, *text);
    case IN_ARGUMENTS:
        taken = chat_arguments_text(&p->arguments, text, bytes);
        check_arguments(p);
        return taken;
    case IN_DROPPED:
        return bytes;
    case BEHIND_CALL:
        return step_behind_call(p, text, bytes);
    case IN_ROLE:
        return step_role(p, *text);
    }
    return bytes;
}

static void take(chat_parser *p, const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes && !p->status;) at += step(p, text + at, bytes - at);
}

/* ------------------------------------------------------------------------------------------------ control tokens */

/* A control token ends what was only collected so far. */
static void settle(chat_parser *p) {
    if (p->state == IN_UNMARKED_CALL || p->state == IN_ROLE) head_is_content(p);
}

static void leave_reasoning(chat_parser *p) {
    p->space_bytes = 0;
    p->head_of_prompt = 0;
    p->drop_space = true;
    p->thinking = false;
    enter(p, IN_CONTENT);
}

static void on_thought_open(chat_parser *p) {
    if (in_call(p) || p->state == IN_REASONING || p->state == IN_CHANNEL) {
        p->counts.repairs++;
        return;
    }
    p->thinking = true;
    p->channel_tokens = 0;
    p->head_of_prompt = 0;
    enter(p, IN_LABEL);
}

static void on_thought_close(chat_parser *p) {
    if (p->state == IN_CHANNEL) decide_channel(p, true);
    if (p->state == IN_REASONING || p->state == IN_LABEL) {
        size_t held = p->state == IN_LABEL ? p->space_bytes : 0;
        bool drop = p->drop_space || !p->content_started || p->state == IN_REASONING;
        leave_reasoning(p);
        p->space_bytes = held; /* an empty thought changes nothing about the content around it */
        p->drop_space = drop;
        return;
    }
    if (!in_call(p)) return; /* a stray one at the end of an answer is common */
    p->counts.repairs++;
}

static void on_call_open(chat_parser *p) {
    if (in_call(p)) {
        p->counts.repairs++;
        close_call(p);
    }
    if (p->state == IN_CHANNEL) decide_channel(p, label_bytes(p) > 0); /* a call closes a thought, too */
    if (p->state == IN_REASONING || p->state == IN_LABEL) {
        p->counts.repairs++;
        leave_reasoning(p);
    }
    open_call(p);
}

static void on_call_close(chat_parser *p) {
    if (in_call(p)) {
        close_call(p);
    } else if (p->state != BEHIND_CALL) {
        p->counts.repairs++;
    }
}

static void on_quote(chat_parser *p) {
    if (p->state == IN_ARGUMENTS) {
        chat_arguments_quote(&p->arguments);
        check_arguments(p);
    } else if (p->state == IN_CALL_NAME || p->state == IN_DROPPED) {
        p->counts.repairs++;
    } else {
        take(p, "\"", 1);
    }
}

static void on_turn_open(chat_parser *p) {
    p->counts.repairs++;
    if (in_call(p)) close_call(p);
    if (p->state == IN_CHANNEL) decide_channel(p, false);
    if (p->state == IN_REASONING || p->state == IN_LABEL) leave_reasoning(p);
    flush(p);
    enter(p, IN_ROLE);
}

/* The turn is over. Whatever an answer goes on with that does not stop here is content. */
static void on_end(chat_parser *p) {
    if (in_call(p)) close_call(p);
    if (p->state == IN_CHANNEL) decide_channel(p, false);
    if (p->state == IN_REASONING || p->state == IN_LABEL) leave_reasoning(p);
    release_space(p, false);
    enter(p, IN_CONTENT);
}

static control control_of(const chat_parser *p, int32_t id) {
    if (!tokenizer_is_special(p->t, id)) return CONTROL_NONE;
    for (size_t i = 0; i < CONTROL_PIECES; i++) {
        if (p->control_ids[i] == id) return control_pieces[i].meaning;
    }
    return CONTROL_OTHER;
}

static void take_control(chat_parser *p, control meaning) {
    if (meaning != CONTROL_QUOTE) settle(p);
    switch (meaning) {
    case CONTROL_NONE:
        break;
    case CONTROL_OTHER:
        p->counts.repairs++;
        break;
    case CONTROL_THOUGHT_OPEN:
        on_thought_open(p);
        break;
    case CONTROL_THOUGHT_CLOSE:
        on_thought_close(p);
        break;
    case CONTROL_CALL_OPEN:
        on_call_open(p);
        break;
    case CONTROL_CALL_CLOSE:
        on_call_close(p);
        break;
    case CONTROL_QUOTE:
        on_quote(p);
        break;
    case CONTROL_TURN_OPEN:
        on_turn_open(p);
        break;
    case CONTROL_END:
        on_end(p);
        break;
    }
}

static void take_token(chat_parser *p, int32_t id) {
    const char *text;
    size_t bytes;
    control meaning = control_of(p, id);
    bool thinking = p->thinking;
    if (meaning == CONTROL_NONE) {
        kakeya_status status = detokenizer_push(p->detokenizer, id, &text, &bytes, NULL);
        if (status) p->status = status;
        if (!status) take(p, text, bytes);
    } else {
        detokenizer_finish(p->detokenizer, &text, &bytes);
        take(p, text, bytes);
        take_control(p, meaning);
    }
    bool counts = thinking || p->thinking;
    p->counts.reasoning_tokens += counts;
    if (p->state == IN_LABEL || p->state == IN_CHANNEL) p->channel_tokens += counts;
}

/* ------------------------------------------------------------------------------------------------ the face */

/* An answer begins inside a thought where the prompt has opened one and nothing has ended it. */
static void read_prompt(chat_parser *p, const int32_t *prompt, size_t n) {
    for (size_t at = n; at-- > 0;) {
        control meaning = control_of(p, prompt[at]);
        if (meaning == CONTROL_NONE || meaning == CONTROL_OTHER || meaning == CONTROL_QUOTE) continue;
        if (meaning != CONTROL_THOUGHT_OPEN) break;
        p->muted = true;
        for (; at < n; at++) take_token(p, prompt[at]);
        const char *text;
        size_t bytes;
        detokenizer_finish(p->detokenizer, &text, &bytes);
        take(p, text, bytes);
        flush(p);
        p->space_bytes = 0;
        p->reasoned = p->content_started = p->drop_space = false;
        if (p->state == IN_LABEL) p->head_of_prompt = p->head_bytes;
        if (p->state == IN_CHANNEL) p->head_of_prompt = p->channel_bytes;
        p->channel_tokens = 0;
        p->counts = (chat_parser_counts){0};
        p->muted = false;
        break;
    }
}

static kakeya_status failure(const chat_parser *p, kakeya_error *error) {
    switch (p->status) {
    case KAKEYA_OK:
        return KAKEYA_OK;
    case KAKEYA_CANCELLED:
        return error_set(error, p->status, "the callback ended the parsing of an answer");
    case KAKEYA_OUT_OF_MEMORY:
        return error_set(error, p->status, "out of memory while parsing an answer");
    default:
        return error_set(error, p->status, "the system has no random numbers for the id of a tool call");
    }
}

static kakeya_status open_tools(const chat_parser_options *o, declared_tools **out, kakeya_error *error) {
    if (o->like) {
        *out = o->like->declared;
        if (*out) atomic_fetch_add(&(*out)->users, 1);
        return KAKEYA_OK;
    }
    if (!o->tools) return KAKEYA_OK;
    *out = calloc(1, sizeof **out);
    if (!*out) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a list of tools");
    (*out)->users = 1;
    return chat_tools_parse(o->tools, o->tools_bytes ? o->tools_bytes : strlen(o->tools), &(*out)->root, &(*out)->list,
                            error);
}

static void close_tools(declared_tools *declared) {
    if (!declared || atomic_fetch_sub(&declared->users, 1) > 1) return;
    cJSON_Delete(declared->root);
    free(declared);
}

kakeya_status chat_parser_open(const tokenizer *t, const chat_parser_options *options, chat_parser **out,
                               kakeya_error *error) {
    *out = NULL;
    chat_parser *p = calloc(1, sizeof *p);
    if (!p) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for the parser of answers");
    const char *prefix = options->id_prefix ? options->id_prefix : "call_";
    kakeya_status status = KAKEYA_OK;
    if (strlen(prefix) > MAX_PREFIX_BYTES) {
        status =
            error_set(error, KAKEYA_INVALID_ARGUMENT, "the prefix of call ids has %zu bytes, at most %d are allowed",
                      strlen(prefix), (int)MAX_PREFIX_BYTES);
    }
    if (!status) status = open_tools(options, &p->declared, error);
    p->tools = p->declared ? p->declared->list : NULL;
    if (!status) status = detokenizer_create(t, false, &p->detokenizer, error);
    if (status) {
        chat_parser_close(p);
        return status;
    }
    memcpy(p->id_prefix, prefix, strlen(prefix) + 1);
    p->t = t;
    p->on_event = options->on_event;
    p->user = options->user;
    p->without_reasoning = options->without_reasoning;
    p->without_tools = !p->tools;
    p->arguments.put = put_arguments;
    p->arguments.user = p;
    for (size_t i = 0; i < CONTROL_PIECES; i++) p->control_ids[i] = tokenizer_id(t, control_pieces[i].piece);
    read_prompt(p, options->prompt, options->n_prompt);
    p->may_be_unmarked = p->state == IN_CONTENT && p->tools && !options->marked_calls_only;
    *out = p;
    return KAKEYA_OK;
}

void chat_parser_close(chat_parser *parser) {
    if (!parser) return;
    detokenizer_destroy(parser->detokenizer);
    close_tools(parser->declared);
    chat_arguments_free(&parser->arguments);
    free(parser->channel);
    free(parser);
}

kakeya_status chat_parser_feed(chat_parser *parser, const int32_t *ids, size_t n, kakeya_error *error) {
    for (size_t i = 0; i < n && !parser->status; i++) take_token(parser, ids[i]);
    flush(parser);
    return failure(parser, error);
}

kakeya_status chat_parser_finish(chat_parser *parser, chat_ending ending, kakeya_error *error) {
    const char *text;
    size_t bytes;
    detokenizer_finish(parser->detokenizer, &text, &bytes);
    take(parser, text, bytes);
    settle(parser);
    if (ending == CHAT_ENDING_STOP && in_call(parser)) close_call(parser);
    if (parser->state == IN_CHANNEL) decide_channel(parser, ending == CHAT_ENDING_CUT && label_bytes(parser) > 0);
    if (parser->state == IN_CONTENT) release_space(parser, false);
    flush(parser);
    return failure(parser, error);
}

chat_place chat_parser_place(const chat_parser *parser) {
    if (in_call(parser)) return CHAT_PLACE_CALL;
    if (parser->state == IN_LABEL || parser->state == IN_CHANNEL || parser->state == IN_ROLE)
        return CHAT_PLACE_UNDECIDED;
    return parser->state == IN_REASONING ? CHAT_PLACE_REASONING : CHAT_PLACE_CONTENT;
}

chat_parser_counts chat_parser_count(const chat_parser *parser) {
    chat_parser_counts counts = parser->counts;
    counts.call_repairs += parser->arguments.repairs;
    counts.repairs += parser->arguments.repairs;
    return counts;
}
