/* The text side of a model: its tokenizer, and how its turns are written. */
#ifndef KAKEYA_SESSION_TOKENIZER_H
#define KAKEYA_SESSION_TOKENIZER_H

#include <stdatomic.h>

#include "grammar/token_table.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

struct kakeya_tokenizer {
    tokenizer *tokens; /* NULL: the model has none */
    chat_template_info chat;
    char *chat_template;          /* its text; NULL: the model has none */
    _Atomic(token_table *) table; /* for grammars; NULL until the first one */
};

/* Reads both from a model directory or a GGUF file; one without a vocabulary leaves out->tokens NULL. variant: of the
 * model ("26b-a4b"), or NULL: as config.json says. What was read is there also on failure. */
kakeya_status tokenizer_read(const char *directory, const char *variant, kakeya_tokenizer *out, kakeya_error *error);
/* The table of a tokenizer that is open; made by the first call. */
kakeya_status tokenizer_table(const kakeya_tokenizer *t, const token_table **out, kakeya_error *error);
/* Refuses NULL, which stands for a model without tokenizer. */
kakeya_status tokenizer_need(const kakeya_tokenizer *t, kakeya_error *error);
void tokenizer_release(kakeya_tokenizer *t);

#endif
