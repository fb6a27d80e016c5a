/* What grammars cost, in processor time: the table of a vocabulary, compiling, a letter, a mask.
 *
 *     bench_grammar [MODEL-DIRECTORY] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/matcher.h"

static const struct {
    const char *name;
    kakeya_grammar_kind kind;
    const char *text, *answer;
} cases[] = {
    {"json object", KAKEYA_GRAMMAR_JSON_OBJECT, NULL, "{\"name\": \"some text of some length\", \"list\": [1, 2, 3.5]"},
    {"schema of three members", KAKEYA_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,"
     "\"maximum\":120},"
     "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",\"c\"]}}},\"required\":[\"name\"]}",
     "{\"name\": \"some text of some length\", \"age\": 42, \"tags\": [\"a\", \"b\""},
    {"pattern", KAKEYA_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"string\",\"pattern\":\"^(\\\\w+ ?){1,30}$\","
     "\"maxLength\":60}",
     "\"some text of some length"},
    {"date-time", KAKEYA_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"date-time\"}", "\"2024-02-29T10:00:"},
    {"regular expression", KAKEYA_GRAMMAR_REGEX, "(\\w+@\\w+\\.(com|org)[,;] ?){1,20}", "a@b.com, some_name@example."},
};

static double cpu_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void measure(const token_table *table, size_t i) {
    enum { ROUNDS = 50 };
    kakeya_grammar_options o;
    kakeya_error error;
    kakeya_grammar *g = NULL;
    kakeya_grammar_options_init(&o);
    o.kind = cases[i].kind;
    o.text = cases[i].text;
    o.text_bytes = o.text ? strlen(o.text) : 0;
    double start = cpu_seconds();
    for (int k = 0; k < ROUNDS; k++) {
        grammar_free(g);
        if (grammar_compile(table, &o, &g, &error)) {
            fprintf(stderr, "%s: %s\n", cases[i].name, error.message);
            exit(1);
        }
    }
    double compile = (cpu_seconds() - start) / ROUNDS;

    static automaton_state states[2];
    size_t n = strlen(cases[i].answer);
    start = cpu_seconds();
    for (int k = 0; k < 100 * ROUNDS; k++) {
        automaton_begin(g->content, &states[0]);
        for (size_t at = 0; at < n; at++)
            if (!automaton_step(&g->program, &states[at % 2], (unsigned char)cases[i].answer[at], &states[!(at % 2)]))
                exit(1);
    }
    double letter = (cpu_seconds() - start) / (100 * ROUNDS) / (double)n;

    mem_account account;
    matcher_space space = {.account = &account};
    matcher *m;
    mem_account_init(&account, NULL, 0);
    size_t words = ((size_t)table->vocab + 31) / 32;
    uint32_t *allowed = calloc(words, sizeof *allowed);
    if (!allowed || matcher_space_reserve(&space, g, &error) ||
        matcher_create(g, NULL, 0, NULL, 0, &account, &m, &error))
        exit(1);
    double longest = 0, total = 0;
    for (size_t at = 0; at < n; at++) { /* a mask in front of every letter, which single bytes spell */
        char piece[8];
        snprintf(piece, sizeof piece, "<0x%02X>", (unsigned)(unsigned char)cases[i].answer[at]);
        start = cpu_seconds();
        for (int k = 0; k < ROUNDS; k++) matcher_mask(m, &space, allowed, words);
        double seconds = (cpu_seconds() - start) / ROUNDS;
        total += seconds;
        longest = seconds > longest ? seconds : longest;
        if (!matcher_accept(m, &space, tokenizer_id(table->tokenizer, piece))) exit(1);
    }
    printf("%-24s %8.2f ms %8.0f ns %8.0f us %8.0f us\n", cases[i].name, compile * 1e3, letter * 1e9,
           total / (double)n * 1e6, longest * 1e6);
    matcher_destroy(m);
    matcher_space_free(&space);
    free(allowed);
    grammar_free(g);
}

int main(int argc, char **argv) {
    char path[1024];
    tokenizer *t;
    token_table *table;
    kakeya_error error;
    snprintf(path, sizeof path, "%s/tokenizer.json", argc > 1 ? argv[1] : "models/demo");
    if (tokenizer_open(path, &t, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    double start = cpu_seconds();
    if (token_table_create(t, &table, &error)) return 1;
    printf("table of %d tokens: %.1f ms\n", table->vocab, (cpu_seconds() - start) * 1e3);
    printf("%-24s %11s %11s %11s %11s\n", "", "compile", "letter", "mask", "longest");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) measure(table, i);
    token_table_destroy(table);
    tokenizer_close(t);
    return 0;
}
