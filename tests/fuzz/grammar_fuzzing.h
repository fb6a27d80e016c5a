/* What the targets of grammars share: a small vocabulary with the control tokens, and the promise of every grammar that
 * compiles: wherever a text stands, something may follow, unless it is complete. */
#ifndef KAKEYA_FUZZ_GRAMMAR_FUZZING_H
#define KAKEYA_FUZZ_GRAMMAR_FUZZING_H

#include "grammar/grammar.h"
#include "grammar/matcher.h"
#include "unit/tokenizer_form.h"

static inline const token_table *fuzzing_tokens(void) {
    static token_table *table;
    tokenizer *t;
    tokenizer_form form = default_form;
    form.added_tokens = "[{\"id\":256,\"content\":\"<eos>\",\"special\":true},"
                        "{\"id\":257,\"content\":\"<|tool_call>\",\"special\":true},"
                        "{\"id\":258,\"content\":\"<tool_call|>\",\"special\":true},"
                        "{\"id\":268,\"content\":\"<|\\\"|>\",\"special\":true},"
                        "{\"id\":269,\"content\":\"<|channel>\",\"special\":true},"
                        "{\"id\":270,\"content\":\"<channel|>\",\"special\":true}]";
    if (!table && (open_form(&form, &t, NULL) || token_table_create(t, &table, NULL))) abort();
    return table;
}

static inline kakeya_grammar *fuzzing_grammar(kakeya_grammar_kind kind, const char *text, size_t bytes,
                                              const char *tools, size_t tools_bytes) {
    kakeya_grammar *g;
    kakeya_error error = {0};
    const kakeya_grammar_options o = {.size = sizeof o,
                                      .kind = kind,
                                      .text = text,
                                      .text_bytes = bytes,
                                      .calls = tools ? KAKEYA_CALLS_REQUIRED : KAKEYA_CALLS_FREE,
                                      .tools = tools,
                                      .tools_bytes = tools_bytes,
                                      .thinking_tokens = 0};
    kakeya_status status = grammar_compile(fuzzing_tokens(), &o, &g, &error);
    if ((status == KAKEYA_OK) != (g != NULL) || (status != KAKEYA_OK && !error.message[0])) abort();
    return g;
}

/* Goes where the data says, or else anywhere that is allowed. */
static inline void fuzzing_walk(const kakeya_grammar *g, uint32_t root, const uint8_t *data, size_t n) {
    static automaton_state states[2];
    int now = 0;
    automaton_begin(root, &states[0]);
    for (size_t i = 0; i < n; i++) {
        unsigned wanted = data[i] < 0xFE ? data[i] : data[i] == 0xFE ? LETTER_QUOTE : LETTER_CALL_CLOSE;
        unsigned tried = 0;
        while (tried < LETTERS && !automaton_step(&g->program, &states[now], (wanted + tried) % LETTERS, &states[!now]))
            tried++;
        if (tried == LETTERS) {
            if (!automaton_complete(&g->program, &states[now])) abort();
            return;
        }
        now = !now;
        if (states[now].n > AUTOMATON_MAX_WAYS) abort();
        for (uint32_t k = 0; k < states[now].n; k++)
            if (states[now].ways[k].depth > GRAMMAR_MAX_DEPTH) abort();
    }
}

#endif
