/* Which file is meant where a directory holds GGUF files, as most uploads of them do, one for each quantisation. */
#ifndef KAKEYA_FORMATS_GGUF_CHOICE_H
#define KAKEYA_FORMATS_GGUF_CHOICE_H

#include "base/error.h"

/* Without a tag: *file is the directory's one GGUF model, and NULL where it has safetensors or no such file. Several
 * are refused with their names. With a tag: the one whose name is the tag, with or without its ending, or has the tag
 * for a part between '-' or '.' ("Q4_K_M"), in any case of letters.
 *
 * Files may lie one folder deeper. Parts of a split count as one. Vision parts (mmproj) and files of importances
 * (imatrix) do not count. *file is malloc'ed. */
kakeya_status gguf_choose(const char *directory, const char *tag, char **file, kakeya_error *error);

/* Paths, malloc'ed one by one. */
typedef struct gguf_names {
    char **names;
    size_t n;
} gguf_names;
void gguf_names_free(gguf_names *names);

/* The vision parts (mmproj-*.gguf and the like) in the folder of a GGUF file, the one to be tried first at first: what
 * is named after the model, then BF16, F32, F16, then others by name. */
kakeya_status gguf_vision_parts(const char *model, gguf_names *out, kakeya_error *error);

#endif
