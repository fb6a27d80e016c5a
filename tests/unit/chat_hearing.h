/* Hearing what a parser of answers says: its events as one text. */
#ifndef KAKEYA_TESTS_CHAT_HEARING_H
#define KAKEYA_TESTS_CHAT_HEARING_H

#include "text_support.h"

#include "text/chat_parser.h"
#include "text/utf8.h"

typedef struct byte_list {
    char *text; /* NUL-terminated */
    size_t n, capacity;
} byte_list;

static inline void append(byte_list *b, const char *text, size_t n) {
    if (b->n + n + 1 > b->capacity) {
        b->capacity = 2 * (b->n + n + 1);
        b->text = realloc(b->text, b->capacity);
        assert_non_null(b->text);
    }
    memcpy(b->text + b->n, text, n);
    b->n += n;
    b->text[b->n] = 0;
}

static inline void append_text(byte_list *b, const char *text) { append(b, text, strlen(text)); }

/* What a stream said, as one text: "R<reasoning>|C<content>|name<arguments>." with a dot where the call ended. Events
 * of one kind are joined. */
typedef struct heard {
    byte_list all;
    int last;                         /* -1: nothing yet */
    size_t calls, events, stop_after; /* stop_after: 0 for never */
    char ids[64][64];
    chat_parser_counts counts;
} heard;

static inline bool hear(void *user, const chat_event *event) {
    heard *h = user;
    if (event->kind == CHAT_EVENT_CALL_BEGIN) {
        assert_int_equal(event->call, h->calls);
        assert_true(h->calls < 64);
        snprintf(h->ids[h->calls++], sizeof h->ids[0], "%s", event->id);
        append_text(&h->all, "|");
        append_text(&h->all, event->name);
    } else if (event->kind == CHAT_EVENT_CALL_END) {
        assert_int_equal(event->call, h->calls - 1);
        append_text(&h->all, ".");
    } else {
        assert_true(event->bytes > 0);
        assert_int_equal(utf8_valid_bytes(event->text, event->bytes), event->bytes);
        if (event->kind == CHAT_EVENT_CALL_ARGUMENTS) {
            assert_int_equal(event->call, h->calls - 1);
            assert_true(h->last == CHAT_EVENT_CALL_BEGIN || h->last == CHAT_EVENT_CALL_ARGUMENTS);
        } else if (h->last != (int)event->kind) {
            append_text(&h->all, event->kind == CHAT_EVENT_CONTENT ? "|C" : "|R");
        }
        append(&h->all, event->text, event->bytes);
    }
    h->last = (int)event->kind;
    return ++h->events != h->stop_after;
}

static inline void heard_free(heard *h) { free(h->all.text); }

/* How a stream is cut: one token at a time, all at once, or by a generator. */
typedef enum cut { CUT_SINGLE, CUT_WHOLE, CUT_RANDOM } cut;

static uint64_t random_state = 1;
static inline uint64_t random_below(uint64_t n) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (random_state >> 33) % n;
}

static inline heard parse_ids(const tokenizer *t, const int32_t *ids, size_t n, cut how, chat_ending ending,
                              const chat_parser_options *given) {
    heard h = {.last = -1};
    append_text(&h.all, "");
    chat_parser_options options = given ? *given : (chat_parser_options){0};
    options.on_event = hear;
    options.user = &h;
    kakeya_error error = {0};
    chat_parser *parser;
    if (chat_parser_open(t, &options, &parser, &error)) fail_msg("%s", error.message);
    for (size_t at = 0; at < n;) {
        size_t block = how == CUT_SINGLE ? 1 : how == CUT_WHOLE ? n : random_below(9);
        if (block > n - at) block = n - at;
        if (chat_parser_feed(parser, ids + at, block, &error)) fail_msg("%s", error.message);
        at += block;
    }
    if (chat_parser_finish(parser, ending, &error)) fail_msg("%s", error.message);
    h.counts = chat_parser_count(parser);
    chat_parser_close(parser);
    return h;
}

/* Text in which control tokens are control tokens. */
static inline int32_t *marked(const tokenizer *t, const char *text, size_t *n) {
    kakeya_error error = {0};
    int32_t *ids;
    tokenizer_encode_options options = {.parse_special = true};
    if (tokenizer_encode(t, text, strlen(text), options, &ids, n, &error)) fail_msg("%s", error.message);
    return ids;
}

static inline void assert_heard(const char *what, const heard *h, const char *expected) {
    if (strcmp(h->all.text, expected) != 0) {
        fail_msg("%s\nheard:    %s\nexpected: %s", what, h->all.text, expected);
    }
}

static const char weather_tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"zip\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"days\":{\"type\":\"integer\"},\"deep\":{\"$ref\":\"#/$defs/deep\"},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},"
    "\"extra\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}},"
    "\"$defs\":{\"deep\":{\"type\":\"object\",\"properties\":{\"code\":{\"type\":[\"string\",\"boolean\"]},"
    "\"again\":{\"$ref\":\"#/$defs/deep\"}}}}}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"weather.now\"}}]";

#endif
