/* The public functions of grammars. */
#include "grammar/grammar.h"

#include "base/sized.h"
#include "session/tokenizer.h"

kakeya_status kakeya_grammar_open(const kakeya_tokenizer *t, const kakeya_grammar_options *options,
                                  kakeya_grammar **out, kakeya_error *error) {
    *out = NULL;
    kakeya_grammar_options o = {.size = sizeof o};
    const token_table *table;
    kakeya_status status = options ? sized_read("grammar options", options, &o, sizeof o, error) : KAKEYA_OK;
    if (status == KAKEYA_OK) status = tokenizer_need(t, error);
    if (status == KAKEYA_OK) status = tokenizer_table(t, &table, error);
    return status == KAKEYA_OK ? grammar_compile(table, &o, out, error) : status;
}

const char *kakeya_grammar_note(const kakeya_grammar *grammar, size_t index) {
    const cJSON *note = cJSON_GetArrayItem(grammar->notes, (int)index);
    return note ? note->valuestring : NULL;
}

size_t kakeya_grammar_bytes(const kakeya_grammar *grammar) { return grammar_bytes(grammar); }

void kakeya_grammar_close(kakeya_grammar *grammar) { grammar_free(grammar); }
