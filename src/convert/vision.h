/* What reads pictures, beside a model that is converted: as it is, never quantised. Beside a GGUF file it is a file of
 * its own with llama.cpp's keys and names (mmproj); in MLX directories its tensors stand among the others. */
#ifndef KAKEYA_CONVERT_VISION_H
#define KAKEYA_CONVERT_VISION_H

#include "formats/gguf_output.h"
#include "formats/safetensors.h"
#include "model/gemma4_vision.h"

/* Where the vision part is written beside the GGUF file `out`: mmproj-NAME.gguf in its folder. malloc'ed; NULL: out of
 * memory. */
char *vision_path(const char *out);

/* Writes the whole file but for its name, which gguf_output_commit gives it. *out is freed by that or by
 * gguf_output_abort; NULL on failure. *bytes: of its tensors. */
kakeya_status vision_to_gguf(const gemma4_vision *v, const char *model_name, const char *path, gguf_output **out,
                             uint64_t *bytes, kakeya_error *error);

/* Entries of a safetensors file, in the order in which vision_to_safetensors writes their bytes. */
typedef struct vision_entries {
    safetensors_entry *entries;
    char (*names)[VISION_NAME_BYTES + 8];
    size_t n;
} vision_entries;
/* v NULL: none. prefix: "model." in directories as published, "" in MLX's. Freed by vision_entries_free, also on
 * failure. */
kakeya_status vision_entries_make(const gemma4_vision *v, const char *prefix, vision_entries *out, kakeya_error *error);
void vision_entries_free(vision_entries *entries);
kakeya_status vision_to_safetensors(const gemma4_vision *v, safetensors_writer *writer, uint64_t *bytes,
                                    kakeya_error *error);

#endif
