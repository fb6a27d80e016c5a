/* Any text as rules, in GBNF or in Lark's syntax. What compiles leads nowhere where nothing may follow. */
#include "grammar_fuzzing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t path[] = "a(b)+c, d\n\"e\" 12.5e3 [x]{y} =:;/*-\xC3\xA9 true false null zzz";
    kakeya_grammar *g = fuzzing_grammar(KAKEYA_GRAMMAR_RULES, (const char *)data, size, NULL, 0);
    if (g) fuzzing_walk(g, g->content, path, sizeof path);
    grammar_free(g);
    return 0;
}
