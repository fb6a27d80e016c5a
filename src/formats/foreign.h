/* Files that are not what their name says, told by their first bytes. */
#ifndef KAKEYA_FORMATS_FOREIGN_H
#define KAKEYA_FORMATS_FOREIGN_H

#include <stddef.h>

#include "base/error.h"

/* KAKEYA_FORMAT where the bytes begin a file of a well-known kind that is found in the place of weights, configurations
 * and tokenizers: a Git LFS pointer, a web page, a PyTorch checkpoint, a GGUF file. The message says what the file is
 * and what to do. KAKEYA_OK for everything else; `path` is used in the message. */
kakeya_status foreign_refuse(const char *path, const void *data, size_t bytes, kakeya_error *error);

/* What to do about a PyTorch checkpoint; completes a sentence. */
#define FOREIGN_PYTORCH_ADVICE                                                                                         \
    "a PyTorch checkpoint, which can run code when it is read: convert it to safetensors "                             \
    "(save_pretrained of Hugging Face transformers writes them)"

#endif
