/* Vision parts in GGUF files: llama.cpp's mmproj files, whose architecture is "clip", and the tensors "v." and "mm."
 * that Ollama keeps in the language model's own file. */
#ifndef KAKEYA_MODEL_GEMMA4_MMPROJ_H
#define KAKEYA_MODEL_GEMMA4_MMPROJ_H

#include "formats/gguf.h"
#include "model/gemma4_vision.h"

/* What reads pictures for the model of `text`, whose file is `model` and which has the vocabulary: the file `mmproj`;
 * where that is NULL, tensors in the model's own file, else the best file of that kind beside it. *out becomes NULL
 * where there is none that can be used, with a `reason` (of reason_bytes; "" where the model would not know what to do
 * with pictures); of a file that was named this is an error. */
kakeya_status gemma4_mmproj_open(const gguf *model, const gemma4_config *text, const char *mmproj, mem_account *account,
                                 gemma4_vision **out, char *reason, size_t reason_bytes, kakeya_error *error);

/* Of a file that is open and outlives *out: a vision part, or the model's own file. *out becomes NULL, with a reason,
 * where it cannot be used; what is returned says whether something else has failed. */
kakeya_status gemma4_mmproj_read(const gguf *file, const gguf *model, const gemma4_config *text, mem_account *account,
                                 gemma4_vision **out, kakeya_error *reason, kakeya_error *error);

/* The token of pictures in the model's vocabulary; -1: it knows none. */
int gemma4_mmproj_token(const gguf *model, const gemma4_config *text);

#endif
