/* tokenizer.json to tables. */
#ifndef KAKEYA_TEXT_TOKENIZER_LOAD_H
#define KAKEYA_TEXT_TOKENIZER_LOAD_H

#include "base/error.h"
#include "text/tokenizer_tables.h"

/* `name` stands for the path in messages; the data is not needed afterwards. *out is released by
 * tokenizer_tables_free. */
kakeya_status tokenizer_load(const char *name, const char *data, size_t bytes, tokenizer_tables **out,
                             kakeya_error *error);

#endif
