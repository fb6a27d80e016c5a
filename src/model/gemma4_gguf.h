/* Gemma 4 in GGUF files: keys to the configuration, names to the slots of the tensor list. */
#ifndef KAKEYA_MODEL_GEMMA4_GGUF_H
#define KAKEYA_MODEL_GEMMA4_GGUF_H

#include "formats/gguf.h"
#include "formats/gguf_keys.h"
#include "model/language_model.h"

/* The configuration that the keys and the tensors' names and shapes give. *note (256 bytes, may be NULL) receives what
 * a user should know, or "". */
kakeya_status gemma4_gguf_config(const gguf *file, model_config *out, char *note, kakeya_error *error);

/* The same of an MTP assistant's layers, which have no K/V of their own: under the keys "gemma4-assistant.". The file's
 * architecture has been looked at. */
void gemma4_gguf_assistant(gguf_keys *keys, model_config *out);

/* Opens and maps a file, binds and checks every tensor. What was read is the model's also on failure: its owner closes
 * it. */
kakeya_status gemma4_gguf_open(const char *path, mem_account *account, language_model *model, kakeya_error *error);

/* The name in GGUF files of a tensor called `name` without its prefix ("layers.3.mlp.up_proj.weight", "norm.weight");
 * false where there is none. */
bool gemma4_gguf_name(const char *name, char *out, size_t out_bytes);

/* The scale of attention that a file of a Gemma 3 of this shape means; no key says it. */
float gemma4_gguf_query_scale(const model_config *c);

/* The format of a tensor's type; false for types without kernels. */
bool gemma4_gguf_format(const gguf_type *type, weight_format *out);

/* Whether a tensor is of what reads sound. */
bool gemma4_gguf_is_audio(const char *name);

#endif
