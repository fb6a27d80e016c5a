/* DFlash drafters in GGUF files, as llama.cpp's converter writes them (architecture dflash): keys to the configuration,
 * names to the slots of the tensor list. */
#ifndef KAKEYA_MODEL_DFLASH_GGUF_H
#define KAKEYA_MODEL_DFLASH_GGUF_H

#include "formats/gguf.h"
#include "model/block_drafter.h"

/* The vocabulary is the verifier's where the file does not say. *scaled: embeddings are to be multiplied by
 * sqrt(hidden). */
kakeya_status dflash_gguf_config(const gguf *file, const model_config *verifier, block_drafter_config *out,
                                 bool *scaled, kakeya_error *error);

/* Opens and maps a file, binds and checks every tensor. What was read is the model's also on failure: its owner closes
 * it. */
kakeya_status dflash_gguf_open(const char *path, const model_config *verifier, mem_account *account,
                               block_drafter_model *model, kakeya_error *error);

#endif
