/* Writing GGUF files, version 3: keys and records of tensors first, then the tensors' bytes in the same order, in
 * pieces of any size. The file appears under its name when all is there. */
#ifndef KAKEYA_FORMATS_GGUF_OUTPUT_H
#define KAKEYA_FORMATS_GGUF_OUTPUT_H

#include "formats/gguf.h"

typedef struct gguf_output gguf_output;

gguf_output *gguf_output_create(void);  /* NULL: out of memory, which later calls report for what they add */
void gguf_output_abort(gguf_output *o); /* NULL is fine; leaves no file */

/* Keys. Nothing fails here: a lack of memory is reported by gguf_output_open. */

/* Keys from here on that begin with `asked` begin with `written` in its place: architectures say the same under their
 * own names. Both texts stay the caller's. */
void gguf_output_rename(gguf_output *o, const char *asked, const char *written);
void gguf_output_value(gguf_output *o, const char *key, gguf_value_type type, const void *value, size_t bytes);
void gguf_output_u32(gguf_output *o, const char *key, uint32_t value);
void gguf_output_f32(gguf_output *o, const char *key, float value);
void gguf_output_bool(gguf_output *o, const char *key, bool value);
void gguf_output_text(gguf_output *o, const char *key, const char *text, size_t bytes);
void gguf_output_array(gguf_output *o, const char *key, gguf_value_type type, uint64_t count, const void *data,
                       size_t bytes);
/* An array of `count` strings, each added by gguf_output_string. */
void gguf_output_strings(gguf_output *o, const char *key, uint64_t count);
void gguf_output_string(gguf_output *o, const char *text, size_t bytes);
/* A key of another file, as it is there. */
void gguf_output_copy(gguf_output *o, const gguf_value *value);

/* ne: the fastest dimension first. */
void gguf_output_tensor(gguf_output *o, const char *name, uint32_t type, int dims, const int64_t *ne, size_t bytes);

/* Writes everything up to the first tensor's bytes. */
kakeya_status gguf_output_open(gguf_output *o, const char *path, kakeya_error *error);
kakeya_status gguf_output_write(gguf_output *o, const void *data, size_t bytes, kakeya_error *error);
/* Refuses where bytes are missing. Frees the output, also on failure. */
kakeya_status gguf_output_commit(gguf_output *o, kakeya_error *error);

#endif
