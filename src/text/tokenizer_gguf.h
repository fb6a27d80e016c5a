/* The vocabulary in a GGUF file's keys to tables. */
#ifndef KAKEYA_TEXT_TOKENIZER_GGUF_H
#define KAKEYA_TEXT_TOKENIZER_GGUF_H

#include "formats/gguf.h"
#include "text/tokenizer.h"

/* *out is released by tokenizer_close; NULL with KAKEYA_OK where the file has no vocabulary. A text that is listed
 * twice keeps its lower id when text is encoded; both ids are decoded. */
kakeya_status tokenizer_open_gguf(const gguf *file, tokenizer **out, kakeya_error *error);

#endif
