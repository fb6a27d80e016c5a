/* Grammars of 100 kB that are made to cost much: each is compiled, or refused in one line, and what it took is within
 * bounds. Work is counted in bytes that were asked for, since time is not the same twice: whoever makes automata
 * without end asks for memory without end. bench/grammar_limits.py has more of them, and what they take in seconds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <malloc.h>
#include <stdio.h>

#include "unit/grammar_support.h"

enum { SIZE = 100000, ONE = 400 };
static const size_t most_held = (size_t)64 << 20, most_asked = (size_t)256 << 20;

/* --------------------------------------------------------------------------------------- the allocator keeps account
 */

static size_t held, most, asked;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *block, size_t bytes);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *block, size_t bytes);
void __wrap_free(void *block);
char *__wrap_strdup(const char *text);

static void *taken(void *block) {
    size_t bytes = block ? malloc_usable_size(block) : 0;
    held += bytes;
    asked += bytes;
    if (held > most) most = held;
    return block;
}

void *__wrap_malloc(size_t bytes) { return taken(__real_malloc(bytes)); }
void *__wrap_calloc(size_t n, size_t bytes) { return taken(__real_calloc(n, bytes)); }

void *__wrap_realloc(void *block, size_t bytes) {
    size_t before = block ? malloc_usable_size(block) : 0;
    void *made = __real_realloc(block, bytes);
    if (made) held -= before;
    return taken(made);
}

void __wrap_free(void *block) {
    if (block) held -= malloc_usable_size(block);
    __real_free(block);
}

char *__wrap_strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *made = __wrap_malloc(bytes);
    return made ? memcpy(made, text, bytes) : NULL;
}

/* ------------------------------------------------------------------------------------------------------------- cases
 */

typedef struct written {
    char text[SIZE + ONE];
    size_t n;
} written;

static void put(written *w, const char *text) {
    size_t n = strlen(text);
    assert_true(w->n + n < sizeof w->text);
    memcpy(w->text + w->n, text, n + 1);
    w->n += n;
}

/* As many parts as fit, or `most_parts`. # in `part` is the number of each, and @ the next one. Returns how many. */
static int put_parts(written *w, const char *part, const char *between, int most_parts) {
    int i = 0;
    for (; i < most_parts && w->n + ONE < SIZE; i++) {
        char one[ONE];
        size_t n = 0;
        for (const char *c = part; *c; c++)
            n += (size_t)(*c == '#'   ? snprintf(one + n, sizeof one - n, "%d", i)
                          : *c == '@' ? snprintf(one + n, sizeof one - n, "%d", i + 1)
                                      : snprintf(one + n, sizeof one - n, "%c", *c));
        if (i) put(w, between);
        put(w, one);
    }
    return i;
}

#define HARD "(a|b)*a(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)"

static const struct hard_case {
    const char *name, *head, *part, *between, *tail;
    int most_parts;
    kakeya_grammar_kind kind; /* KAKEYA_GRAMMAR_TEXT: tools, which are loosened */
} cases[] = {
    {"patterns", "{\"properties\":{", "\"m#\":{\"type\":\"string\",\"pattern\":\"" HARD "#\"}", ",", "}}", SIZE,
     KAKEYA_GRAMMAR_JSON_SCHEMA},
    {"patterns that must not match, and never do", "{\"type\":\"string\",\"allOf\":[",
     "{\"not\":{\"pattern\":\"" HARD "$a#\"}}", ",", "]}", SIZE, KAKEYA_GRAMMAR_JSON_SCHEMA},
    {"unevaluated, through references", "{\"unevaluatedProperties\":false,\"$ref\":\"#/$defs/d0\",\"$defs\":{",
     "\"d#\":{\"properties\":{\"m#\":{}},\"anyOf\":[{\"$ref\":\"\\u0023/$defs/d@\"},{\"properties\":{\"n#\":{}}}]}",
     ",", ",\"d900\":{}}}", 900, KAKEYA_GRAMMAR_JSON_SCHEMA},
    {"products", "{\"allOf\":[", "{\"anyOf\":[{\"required\":[\"r#\"]},{\"required\":[\"s#\"]}]}", ",", "]}", SIZE,
     KAKEYA_GRAMMAR_JSON_SCHEMA},
    {"hard rules", "start: \"(\" start \")\" | x0\n", "x#: /" HARD "#/ | \"z\" start | x@\n", "", "x700: \"\"", 700,
     KAKEYA_GRAMMAR_RULES},
    {"counted alternatives", "root ::= \"x\" root", " | ([a-z]{1,9#} \"#\")", "", "", SIZE, KAKEYA_GRAMMAR_RULES},
    {"rules in rules", "root ::= r0\n", "r# ::= \"(\" r@ \")\" | r@ \"+\" root\n", "", "r1900 ::= \"a\"\n", 1900,
     KAKEYA_GRAMMAR_RULES},
    {"what is ignored", "%ignore /[ab]{1,300}/\nstart: ", "\"a#\" [start] ", "", "\n", SIZE, KAKEYA_GRAMMAR_RULES},
    {"patterns that are left out",
     "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{",
     "\"m#\":{\"type\":\"string\",\"pattern\":\"#" HARD "(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)(a|b)\"}", ",",
     "}}}}]", SIZE, KAKEYA_GRAMMAR_TEXT},
    {"multiples that are left out",
     "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{",
     "\"m#\":{\"type\":\"number\",\"multipleOf\":0.9973#}", ",", "}}}}]", SIZE, KAKEYA_GRAMMAR_TEXT},
    {"tools that are left out", "[",
     "{\"function\":{\"name\":\"f#\",\"parameters\":{\"allOf\":[{\"anyOf\":[{\"required\":[\"a\"]},"
     "{\"required\":[\"b\"]}]},{\"properties\":{\"a\":{\"multipleOf\":0.333333333},\"b\":{\"pattern\":\"#" HARD
     "\"}}}]}}}",
     ",", "]", SIZE, KAKEYA_GRAMMAR_TEXT},
    {"rules of tools", "[",
     "{\"function\":{\"name\":\"f#\"},\"custom\":{\"syntax\":\"lark\",\"definition\":"
     "\"start: /" HARD "#/ | \\\"z\\\" start\"}}",
     ",", "]", SIZE, KAKEYA_GRAMMAR_TEXT},
};

static void check(const struct hard_case *own) {
    static written w;
    kakeya_grammar_options o;
    kakeya_error error = {0};
    kakeya_grammar *g = NULL;
    const kakeya_tokenizer *t = demo_tokenizer();
    w.n = 0;
    put(&w, own->head);
    put_parts(&w, own->part, own->between, own->most_parts);
    put(&w, own->tail);
    KAKEYA_INIT(&o);
    o.kind = own->kind;
    if (own->kind == KAKEYA_GRAMMAR_TEXT) {
        o.calls = KAKEYA_CALLS_REQUIRED;
        o.tools = w.text;
        o.tools_bytes = w.n;
        o.loosen = true;
    } else {
        o.text = w.text;
        o.text_bytes = w.n;
    }
    size_t before = held;
    most = held;
    asked = 0;
    kakeya_status status = kakeya_grammar_open(t, &o, &g, &error);
    size_t used = most - before;
    printf("%s: %s; %zu kB at once, %zu kB in all\n", own->name, status ? error.message : "compiled", used >> 10,
           asked >> 10);
    if (status != KAKEYA_OK && (error.message[0] == 0 || strchr(error.message, '\n')))
        fail_msg("%s: '%s' is not one line", own->name, error.message);
    if (status != KAKEYA_OK && status != KAKEYA_UNSUPPORTED) fail_msg("%s: %s", own->name, error.message);
    if (used > most_held) fail_msg("%s: %zu bytes at once", own->name, used);
    if (asked > most_asked) fail_msg("%s: %zu bytes in all", own->name, asked);
    kakeya_grammar_close(g);
    if (held != before) fail_msg("%s: %zu bytes before, %zu behind", own->name, before, held);
}

static void test_costs(void **state) {
    (void)state;
    kakeya_grammar *g;
    kakeya_error error;
    assert_int_equal(open_grammar(KAKEYA_GRAMMAR_JSON_SCHEMA, "{}", &g, &error),
                     KAKEYA_OK); /* tables of the tokenizer */
    kakeya_grammar_close(g);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check(&cases[i]);
}

/* What a tool that is left out had made is gone, and what was beside it works. */
static void test_left_out(void **state) {
    (void)state;
    static written w;
    kakeya_grammar_options o;
    kakeya_error error = {0};
    kakeya_grammar *g = NULL;
    put(&w, "[{\"function\":{\"name\":\"large\",\"parameters\":{\"type\":\"object\",\"properties\":{");
    put_parts(&w, "\"m#\":{\"type\":\"array\",\"items\":{\"minimum\":#,\"maximum\":1234567#}}", ",", SIZE);
    put(&w,
        "}}}},{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1,2]}"
        "},\"required\":[\"a\"]}}}]");
    KAKEYA_INIT(&o);
    o.calls = KAKEYA_CALLS_REQUIRED;
    o.tools = w.text;
    o.tools_bytes = w.n;
    o.loosen = true;
    if (kakeya_grammar_open(demo_tokenizer(), &o, &g, &error)) fail_msg("%s", error.message);
    assert_string_equal(kakeya_grammar_note(g, 0), "tools[0].parameters#");
    assert_null(kakeya_grammar_note(g, 1));
    assert_true(kakeya_grammar_bytes(g) < 100000);
    static const struct {
        const char *text;
        reading_result result;
    } texts[] = {
        {"call:f{a:2}\2", READ_COMPLETE}, {"call:f{a:3", READ_REFUSED}, {"call:large{m0:{},x:1}\2", READ_COMPLETE}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t at;
        reading_result result = read_letters(g, g->call, texts[i].text, strlen(texts[i].text), true, &at);
        if (result != texts[i].result) fail_msg("'%s': %d, up to %zu", texts[i].text, result, at);
    }
    kakeya_grammar_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_costs), cmocka_unit_test(test_left_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
