/* Grammars for tests: compiled with the demo model's tokenizer, read letter by letter. */
#ifndef KAKEYA_TESTS_GRAMMAR_SUPPORT_H
#define KAKEYA_TESTS_GRAMMAR_SUPPORT_H

#include <stdlib.h>
#include <string.h>

#include "grammar/automaton.h"
#include "grammar/grammar.h"

static inline const kakeya_tokenizer *demo_tokenizer(void) {
    static kakeya_tokenizer *t;
    if (!t) assert_int_equal(kakeya_tokenizer_open(KAKEYA_MODELS "/demo", &t, NULL), KAKEYA_OK);
    return t;
}

static inline kakeya_status open_grammar(kakeya_grammar_kind kind, const char *text, kakeya_grammar **out,
                                         kakeya_error *error) {
    kakeya_grammar_options o;
    KAKEYA_INIT(&o);
    o.kind = kind;
    o.text_bytes = text ? strlen(text) : 0;
    char *exact = text ? malloc(o.text_bytes + 1) : NULL; /* nothing behind it: a sanitizer sees who reads on */
    if (exact) o.text = memcpy(exact + 1, text, o.text_bytes);
    kakeya_status status = kakeya_grammar_open(demo_tokenizer(), &o, out, error);
    free(exact);
    return status;
}

static inline kakeya_status open_calls(const char *tools, kakeya_grammar **out, kakeya_error *error) {
    kakeya_grammar_options o;
    KAKEYA_INIT(&o);
    o.calls = KAKEYA_CALLS_REQUIRED;
    o.tools = tools;
    o.tools_bytes = strlen(tools);
    return kakeya_grammar_open(demo_tokenizer(), &o, out, error);
}

/* What is to be read, with Q for the quote token and E for the end of a call where `marked`. */
typedef enum reading_result { READ_REFUSED = 0, READ_OPEN, READ_COMPLETE } reading_result;

static inline unsigned letter_of(char c, bool marked) {
    if (marked && c == '\1') return LETTER_QUOTE;
    if (marked && c == '\2') return LETTER_CALL_CLOSE;
    return (unsigned char)c;
}

/* *at: bytes that were taken. */
static inline reading_result read_letters(const kakeya_grammar *g, uint32_t root, const char *text, size_t bytes,
                                          bool marked, size_t *at) {
    static automaton_state states[2];
    automaton_begin(root, &states[0]);
    int now = 0;
    for (*at = 0; *at < bytes; ++*at, now = !now)
        if (!automaton_step(&g->program, &states[now], letter_of(text[*at], marked), &states[!now]))
            return READ_REFUSED;
    return automaton_complete(&g->program, &states[now]) ? READ_COMPLETE : READ_OPEN;
}

static inline reading_result read_text(const kakeya_grammar *g, const char *text) {
    size_t at;
    return read_letters(g, g->content, text, strlen(text), false, &at);
}

#endif
