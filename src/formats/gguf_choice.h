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

#endif
