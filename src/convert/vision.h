/* What reads pictures, beside a model that is converted: as it is, never quantised. Beside a GGUF file it is a file of
 * its own with llama.cpp's keys and names (mmproj), which holds what reads sound, too (convert/audio.h); in directories
 * its tensors stand among the others. */
#ifndef KAKEYA_CONVERT_VISION_H
#define KAKEYA_CONVERT_VISION_H

#include "formats/gguf_output.h"
#include "formats/safetensors.h"
#include "model/vision_model.h"

/* Where these parts are written beside the GGUF file `out`: mmproj-NAME.gguf in its folder. malloc'ed; NULL: out of
 * memory. */
char *vision_path(const char *out);

/* Adds keys and tensors to a file that is not open yet, and writes the tensors, once it is. *bytes: of them. */
void vision_plan_gguf(const vision_model *v, gguf_output *o, uint64_t *bytes);
kakeya_status vision_write_gguf(const vision_model *v, gguf_output *o, kakeya_error *error);

/* Entries of a safetensors file, in the order in which vision_to_safetensors writes their bytes. */
typedef struct vision_entries {
    safetensors_entry *entries;
    char (*names)[VISION_NAME_BYTES + 8];
    size_t n;
} vision_entries;
/* v NULL: none. prefix: "model." in directories as published, "" in MLX's. Freed by vision_entries_free, also on
 * failure. */
kakeya_status vision_entries_make(const vision_model *v, const char *prefix, vision_entries *out, kakeya_error *error);
void vision_entries_free(vision_entries *entries);
/* Room for n of them, and the next one, whose dimensions are the caller's. */
kakeya_status vision_entries_reserve(vision_entries *entries, size_t n, kakeya_error *error);
safetensors_entry *vision_entry_add(vision_entries *entries, const char *prefix, const char *name, tensor_type type);
kakeya_status vision_to_safetensors(const vision_model *v, safetensors_writer *writer, uint64_t *bytes,
                                    kakeya_error *error);

/* Values that are float32 in memory: those that bf16 holds exactly came from it, and become it again. */
tensor_type vision_values_type(const float *values, size_t n);
kakeya_status vision_values_write(safetensors_writer *writer, const float *values, size_t n, uint64_t *bytes,
                                  kakeya_error *error);
/* Of a matrix in floating point; malloc'ed. NULL when out of memory. */
float *vision_matrix_values(const weight *w);

#endif
