/* The files of text that a directory has beside its weights, from the keys of a GGUF file. */
#ifndef KAKEYA_CONVERT_TEXT_FILES_H
#define KAKEYA_CONVERT_TEXT_FILES_H

#include "base/json.h"
#include "model/language_model.h"

/* config.json, without a type of weights. *out is freed with cJSON_Delete. KAKEYA_UNSUPPORTED of a Gemma 4, whose
 * configuration has keys that GGUF files do not keep. */
kakeya_status configuration_of_gguf(const language_model *model, cJSON **out, kakeya_error *error);

/* "tokenizer.json", "tokenizer_config.json", "generation_config.json" or "chat_template.jinja"; *out is malloc'ed, and
 * NULL for other names and where the file says nothing of it. */
kakeya_status text_file_of_gguf(const language_model *model, const char *name, char **out, size_t *bytes,
                                kakeya_error *error);

#endif
