#include "text/chat_arguments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/spaces.h"
#include "text/utf8.h"

typedef enum state {
    AT_KEY = 0,     /* an object goes on with a key or ends */
    IN_KEY,         /* a bare key */
    IN_QUOTED_KEY,  /* between quote tokens */
    IN_JSON_KEY,    /* between " and " */
    BEHIND_KEY,     /* a quoted key is over, its colon is to come */
    AT_VALUE,       /* a value, or the end of a list */
    IN_STRING,      /* between quote tokens */
    IN_JSON_STRING, /* between " and " */
    BEHIND_QUOTE,   /* a " in such a string, which ends it if a comma or a bracket follows */
    IN_WORD,        /* a bare value */
    BEHIND_VALUE,   /* a comma or a bracket is to come */
} state;

/* White space behind a quote that may be the end of a string; more of it is text. */
enum { MAX_SPACE_BYTES = 4096 };
/* Longer ones are not looked for behind a comma in a bare text. */
enum { MAX_KEY_BYTES = 256 };

/* ------------------------------------------------------------------------------------------------ writing */

static void put(chat_arguments *a, const char *text, size_t bytes) {
    if (bytes == 0) return;
    a->written_bytes += bytes;
    a->put(a->user, text, bytes);
}

static void puts_json(chat_arguments *a, const char *text) { put(a, text, strlen(text)); }

/* The inside of a JSON string. */
static void put_escaped(chat_arguments *a, const char *text, size_t bytes) {
    size_t start = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        put(a, text + start, i - start);
        start = i + 1;
        char escaped[8] = {'\\', (char)c};
        if (c == '\n') escaped[1] = 'n';
        if (c == '\t') escaped[1] = 't';
        if (c == '\r') escaped[1] = 'r';
        if (c < 0x20 && escaped[1] == (char)c) snprintf(escaped, sizeof escaped, "\\u%04x", c);
        puts_json(a, escaped);
    }
    put(a, text + start, bytes - start);
}

static void hold(chat_arguments *a, const char *text, size_t bytes) {
    if (a->held_bytes + bytes > a->held_capacity) {
        size_t larger = 2 * (a->held_bytes + bytes) + 64;
        char *moved = realloc(a->held, larger);
        if (!moved) {
            a->out_of_memory = true;
            return;
        }
        a->held = moved;
        a->held_capacity = larger;
    }
    if (bytes) memcpy(a->held + a->held_bytes, text, bytes);
    a->held_bytes += bytes;
}

/* ------------------------------------------------------------------------------------------------ structure */

static bool in_list(const chat_arguments *a) { return a->open[a->depth - 1].list; }

static bool is_closing(const chat_arguments *a, char c) {
    return c == '}' || c == ']' || (c == ')' && a->parentheses && a->depth == 1);
}

static bool is_colon(const chat_arguments *a, char c) {
    return c == ':' || (c == '=' && a->parentheses && a->depth == 1); /* f(a=1) */
}

static void expect_item(chat_arguments *a) {
    a->state = in_list(a) ? AT_VALUE : AT_KEY;
    if (in_list(a)) a->expected = chat_schema_items(a->open[a->depth - 1].schema);
}

static void begin_item(chat_arguments *a) {
    if (a->open[a->depth - 1].any) puts_json(a, ",");
    a->open[a->depth - 1].any = true;
}

static void begin_value(chat_arguments *a) {
    if (in_list(a)) begin_item(a); /* in an object, the key has done so */
}

static void put_value(chat_arguments *a, const char *text, size_t bytes) {
    begin_value(a);
    put(a, text, bytes);
    a->state = BEHIND_VALUE;
}

static void push(chat_arguments *a, bool list) {
    if (a->depth == CHAT_ARGUMENTS_MAX_DEPTH) {
        a->too_large = true;
        return;
    }
    if (a->depth) begin_value(a);
    a->open[a->depth].list = list;
    a->open[a->depth].any = false;
    a->open[a->depth].schema = a->expected;
    a->depth++;
    puts_json(a, list ? "[" : "{");
    expect_item(a);
}

static void pop(chat_arguments *a) {
    puts_json(a, in_list(a) ? "]" : "}");
    if (--a->depth == 0) {
        a->done = true;
    } else {
        a->state = BEHIND_VALUE;
    }
}

static void put_key(chat_arguments *a, const char *key, size_t bytes) {
    begin_item(a);
    puts_json(a, "\"");
    for (size_t at = 0, end; at < bytes;
         at = end + 1) { /* no key of a request holds U+0000, and calls come back in one */
        const char *nul = memchr(key + at, 0, bytes - at);
        end = nul ? (size_t)(nul - key) : bytes;
        put_escaped(a, key + at, end - at);
        if (!nul) continue;
        puts_json(a, "\xEF\xBF\xBD");
        a->repairs++;
    }
    puts_json(a, "\":");
    a->expected = chat_schema_member(a->open[a->depth - 1].schema, key, bytes);
    a->state = AT_VALUE;
}

static void end_key(chat_arguments *a, bool bare) {
    const char *key = a->held ? a->held : "";
    size_t bytes = a->held_bytes;
    if (bare) space_trim(&key, &bytes);
    put_key(a, key, bytes);
}

/* A key that no value follows. */
static void end_lone_key(chat_arguments *a, bool bare) {
    a->repairs++;
    end_key(a, bare);
    put_value(a, "null", 4);
}

/* ------------------------------------------------------------------------------------------------ bare words */

static bool is_number(const char *text, size_t bytes) {
    size_t at = 0, digits;
#define DIGITS()                                                                                                       \
    for (digits = 0; at < bytes && text[at] >= '0' && text[at] <= '9'; at++) digits++
    if (at < bytes && text[at] == '-') at++;
    size_t first = at;
    DIGITS();
    if (digits == 0 || (digits > 1 && text[first] == '0')) return false;
    if (at < bytes && text[at] == '.') {
        at++;
        DIGITS();
        if (digits == 0) return false;
    }
    if (at < bytes && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (at < bytes && (text[at] == '+' || text[at] == '-')) at++;
        DIGITS();
        if (digits == 0) return false;
    }
#undef DIGITS
    return at == bytes;
}

/* What a word means if it is no string; NULL: it is one. */
static const char *literal(const char *word, size_t bytes, unsigned *type) {
    static const struct {
        const char *word, *json;
        unsigned type;
    } literals[] = {
        {"true", "true", CHAT_TYPE_BOOLEAN}, {"false", "false", CHAT_TYPE_BOOLEAN}, {"null", "null", CHAT_TYPE_NULL},
        {"none", "null", CHAT_TYPE_NULL},    {"nil", "null", CHAT_TYPE_NULL},
    };
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++) {
        if (strlen(literals[i].word) != bytes || strncasecmp(literals[i].word, word, bytes) != 0) continue;
        *type = literals[i].type;
        return literals[i].json;
    }
    return NULL;
}

static void put_word(chat_arguments *a, const char *word, size_t bytes) {
    space_trim(&word, &bytes);
    unsigned allowed = chat_schema_types(a->expected), type = 0;
    const char *json = literal(word, bytes, &type);
    bool number = is_number(word, bytes);
    if (number) type = CHAT_TYPE_NUMBER;
    bool text_expected = (allowed & CHAT_TYPE_STRING) && !(allowed & type);
    begin_value(a);
    if (number && !text_expected) {
        put(a, word, bytes);
    } else if (json && !text_expected) {
        puts_json(a, json);
    } else {
        puts_json(a, "\"");
        put_escaped(a, word, bytes);
        puts_json(a, "\"");
    }
    a->state = BEHIND_VALUE;
}

static void end_word(chat_arguments *a) {
    size_t bytes = a->held_bytes;
    if (a->comma) { /* a comma at the end belongs to the object */
        const char *rest = a->held + a->comma;
        size_t rest_bytes = bytes - a->comma;
        space_trim(&rest, &rest_bytes);
        if (rest_bytes == 0) bytes = a->comma - 1;
    }
    put_word(a, a->held ? a->held : "", bytes);
}

/* A bare text may hold commas: they end it only before the next declared key. Returns whether this colon shows one. */
static bool word_ends_before_key(chat_arguments *a) {
    if (!a->comma || a->held_bytes - a->comma > MAX_KEY_BYTES) return false;
    const char *key = a->held + a->comma;
    size_t bytes = a->held_bytes - a->comma;
    space_trim(&key, &bytes);
    if (bytes >= 2 && key[0] == '"' && key[bytes - 1] == '"') {
        key++;
        bytes -= 2;
    }
    if (!chat_schema_names(a->open[a->depth - 1].schema, key, bytes)) return false;
    put_word(a, a->held, a->comma - 1);
    put_key(a, key, bytes);
    return true;
}

static size_t step_word(chat_arguments *a, char c) {
    if (is_closing(a, c)) {
        end_word(a);
        return 0;
    }
    if (c == ',') {
        bool text = chat_schema_types(a->expected) & CHAT_TYPE_STRING;
        if (!text || in_list(a)) {
            end_word(a);
            return 0;
        }
        a->comma = a->held_bytes + 1;
    }
    if (is_colon(a, c) && word_ends_before_key(a)) return 1;
    hold(a, &c, 1);
    return 1;
}

/* ------------------------------------------------------------------------------------------------ JSON strings */

/* Text of a JSON string or key, decoded. */
static void put_decoded(chat_arguments *a, const char *text, size_t bytes) {
    if (a->state == IN_JSON_KEY) {
        hold(a, text, bytes);
    } else {
        put_escaped(a, text, bytes);
    }
}

static void put_code(chat_arguments *a, unsigned code) {
    char text[4];
    size_t n = 0;
    if (code >= 0xD800 && code < 0xE000) code = 0xFFFD;
    if (code < 0x80) {
        text[n++] = (char)code;
    } else {
        if (code < 0x800) {
            text[n++] = (char)(0xC0 | code >> 6);
        } else {
            if (code < 0x10000) {
                text[n++] = (char)(0xE0 | code >> 12);
            } else {
                text[n++] = (char)(0xF0 | code >> 18);
                text[n++] = (char)(0x80 | (code >> 12 & 0x3F));
            }
            text[n++] = (char)(0x80 | (code >> 6 & 0x3F));
        }
        text[n++] = (char)(0x80 | (code & 0x3F));
    }
    put_decoded(a, text, n);
}

/* The first half of a surrogate pair that no second half follows. */
static void end_surrogate(chat_arguments *a) {
    if (a->high_surrogate) put_code(a, 0xFFFD);
    a->high_surrogate = 0;
}

static void end_unicode_escape(chat_arguments *a) {
    a->escape = 0;
    if (a->high_surrogate && a->code >= 0xDC00 && a->code < 0xE000) {
        unsigned code = 0x10000 + ((a->high_surrogate - 0xD800) << 10) + (a->code - 0xDC00);
        a->high_surrogate = 0;
        put_code(a, code);
        return;
    }
    end_surrogate(a);
    if (a->code >= 0xD800 && a->code < 0xDC00) {
        a->high_surrogate = a->code;
    } else {
        put_code(a, a->code);
    }
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Inside an escape; what is none is taken as it stands. */
static size_t step_escape(chat_arguments *a, char c) {
    if (a->escape == 'u') {
        int digit = hex_digit(c);
        if (digit < 0) {
            a->repairs++;
            a->escape = 0;
            end_surrogate(a);
            put_code(a, 0xFFFD);
            return 0;
        }
        a->code = a->code << 4 | (unsigned)digit;
        if (++a->escape_digits == 4) end_unicode_escape(a);
        return 1;
    }
    if (c == 'u') {
        a->escape = 'u';
        a->escape_digits = a->code = 0;
        return 1;
    }
    a->escape = 0;
    end_surrogate(a);
    static const char names[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char *known = c ? strchr(names, c) : NULL;
    if (known) {
        put_decoded(a, &meanings[known - names], 1);
        return 1;
    }
    a->repairs++;
    put_decoded(a, "\\", 1);
    return 0;
}

static void end_escape(chat_arguments *a) {
    if (a->escape) {
        a->repairs++;
        put_code(a, 0xFFFD);
    }
    a->escape = 0;
    end_surrogate(a);
}

static size_t step_json_text(chat_arguments *a, const char *text, size_t bytes) {
    if (a->escape) return step_escape(a, *text);
    if (*text == '\\') {
        a->escape = '\\';
        return 1;
    }
    end_surrogate(a);
    if (*text == '"') {
        if (a->state == IN_JSON_KEY) {
            a->state = BEHIND_KEY;
        } else {
            a->state = BEHIND_QUOTE;
            a->held_bytes = 0;
        }
        return 1;
    }
    size_t plain = 1;
    while (plain < bytes && text[plain] != '"' && text[plain] != '\\') plain++;
    put_decoded(a, text, plain);
    return plain;
}

static void end_json_string(chat_arguments *a) {
    puts_json(a, "\"");
    a->state = BEHIND_VALUE;
}

static size_t step_behind_quote(chat_arguments *a, const char *text, size_t bytes) {
    size_t space = space_length(text, bytes);
    if (space && a->held_bytes < MAX_SPACE_BYTES) {
        hold(a, text, space);
        return space;
    }
    if (*text == ',' || is_closing(a, *text)) {
        end_json_string(a);
        return 0;
    }
    a->repairs++; /* a quote that should have been escaped */
    put_escaped(a, "\"", 1);
    put_escaped(a, a->held ? a->held : "", a->held_bytes);
    a->state = IN_JSON_STRING;
    return 0;
}

/* ------------------------------------------------------------------------------------------------ steps */

static size_t step_at_key(chat_arguments *a, char c) {
    if (c == ',') return 1;
    if (is_closing(a, c)) {
        a->repairs += c == ']';
        pop(a);
        return 1;
    }
    if (c == '{') { /* {{ */
        a->repairs++;
        return 1;
    }
    a->held_bytes = 0;
    a->state = c == '"' ? IN_JSON_KEY : IN_KEY;
    return c == '"';
}

static size_t step_in_key(chat_arguments *a, char c) {
    if (is_colon(a, c)) {
        end_key(a, true);
        return 1;
    }
    if (c == '}' || (c == ')' && is_closing(a, c))) {
        end_lone_key(a, true);
        return 0;
    }
    hold(a, &c, 1);
    return 1;
}

static size_t step_behind_key(chat_arguments *a, char c) {
    if (is_colon(a, c)) {
        end_key(a, false);
        return 1;
    }
    if (c == ',' || is_closing(a, c)) {
        end_lone_key(a, false);
        return 0;
    }
    a->repairs++;
    a->state = IN_KEY;
    return 0;
}

static size_t step_at_value(chat_arguments *a, char c) {
    if (c == ',' || is_closing(a, c)) {
        if (!in_list(a)) {
            a->repairs++;
            put_value(a, "null", 4);
            return 0;
        }
        if (c == ',') return 1;
        a->repairs += c != ']';
        pop(a);
        return 1;
    }
    if (c == '{' || c == '[') {
        push(a, c == '[');
        return 1;
    }
    if (c == '"') {
        a->repairs++;
        begin_value(a);
        puts_json(a, "\"");
        a->state = IN_JSON_STRING;
        return 1;
    }
    a->held_bytes = a->comma = 0;
    a->state = IN_WORD;
    return 0;
}

static size_t step_behind_value(chat_arguments *a, char c) {
    if (is_closing(a, c)) {
        a->repairs += (c == ']') != in_list(a);
        pop(a);
        return 1;
    }
    expect_item(a);
    if (c == ',') return 1;
    a->repairs++;
    return 0;
}

/* Takes some bytes and returns how many; where it returns 0, the state has changed. */
static size_t step(chat_arguments *a, const char *text, size_t bytes) {
    size_t space;
    switch ((state)a->state) {
    case AT_KEY:
    case BEHIND_KEY:
    case AT_VALUE:
    case BEHIND_VALUE:
        space = space_length(text, bytes);
        if (space) return space;
        if (a->state == AT_KEY) return step_at_key(a, *text);
        if (a->state == BEHIND_KEY) return step_behind_key(a, *text);
        if (a->state == AT_VALUE) return step_at_value(a, *text);
        return step_behind_value(a, *text);
    case IN_KEY:
        return step_in_key(a, *text);
    case IN_QUOTED_KEY:
        hold(a, text, bytes);
        return bytes;
    case IN_STRING:
        put_escaped(a, text, bytes);
        return bytes;
    case IN_JSON_KEY:
    case IN_JSON_STRING:
        return step_json_text(a, text, bytes);
    case BEHIND_QUOTE:
        return step_behind_quote(a, text, bytes);
    case IN_WORD:
        return step_word(a, *text);
    }
    return bytes;
}

/* ------------------------------------------------------------------------------------------------ the face */

void chat_arguments_begin(chat_arguments *a, chat_schema schema, char opening) {
    *a = (chat_arguments){
        .put = a->put,
        .user = a->user,
        .held = a->held,
        .held_capacity = a->held_capacity,
        .repairs = a->repairs,
        .expected = schema,
        .parentheses = opening == '(',
    };
    push(a, false);
}

static void check_limits(chat_arguments *a) {
    if (!a->done && a->written_bytes + a->held_bytes > CHAT_ARGUMENTS_MAX_BYTES) a->too_large = true;
    if (!a->done && a->too_large) chat_arguments_close(a);
}

size_t chat_arguments_text(chat_arguments *a, const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes && !a->done && !a->out_of_memory) {
        at += step(a, text + at, bytes - at);
        check_limits(a);
    }
    return at;
}

void chat_arguments_quote(chat_arguments *a) {
    if (a->done) return;
    switch ((state)a->state) {
    case BEHIND_VALUE:
        a->repairs++;
        expect_item(a);
        chat_arguments_quote(a);
        break;
    case AT_KEY:
        a->held_bytes = 0;
        a->state = IN_QUOTED_KEY;
        break;
    case IN_QUOTED_KEY:
        a->state = BEHIND_KEY;
        break;
    case IN_KEY:
    case BEHIND_KEY:
        a->repairs++;
        break;
    case AT_VALUE:
        begin_value(a);
        puts_json(a, "\"");
        a->state = IN_STRING;
        break;
    case IN_STRING:
        puts_json(a, "\"");
        a->state = BEHIND_VALUE;
        break;
    case IN_JSON_KEY:
    case IN_JSON_STRING:
    case BEHIND_QUOTE:
    case IN_WORD:
        chat_arguments_text(a, "\"", 1);
        break;
    }
    check_limits(a);
}

void chat_arguments_close(chat_arguments *a) {
    if (a->done) return;
    a->repairs++;
    if (a->too_large && a->state != IN_STRING && a->state != IN_JSON_STRING) {
        a->held_bytes = 0; /* a key or a word that may not be whole */
        if (a->state == IN_WORD || a->state == AT_VALUE) {
            if (!in_list(a)) put_value(a, "null", 4);
            a->state = BEHIND_VALUE;
        } else if (a->state != BEHIND_QUOTE) {
            a->state = BEHIND_VALUE;
        }
    }
    switch ((state)a->state) {
    case IN_KEY:
    case IN_QUOTED_KEY:
    case IN_JSON_KEY:
    case BEHIND_KEY:
        end_escape(a);
        if (a->held_bytes) end_lone_key(a, a->state == IN_KEY);
        break;
    case AT_VALUE:
        if (!in_list(a)) put_value(a, "null", 4);
        break;
    case IN_JSON_STRING:
        end_escape(a);
        end_json_string(a);
        break;
    case BEHIND_QUOTE:
        end_json_string(a);
        break;
    case IN_STRING:
        puts_json(a, "\"");
        break;
    case IN_WORD:
        end_word(a);
        break;
    case AT_KEY:
    case BEHIND_VALUE:
        break;
    }
    while (!a->done) pop(a);
}

void chat_arguments_free(chat_arguments *a) {
    free(a->held);
    a->held = NULL;
    a->held_bytes = a->held_capacity = 0;
}
