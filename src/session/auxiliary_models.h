/* Where the drafter and the f_theta of a model lie. */
#ifndef KAKEYA_SESSION_AUXILIARY_MODELS_H
#define KAKEYA_SESSION_AUXILIARY_MODELS_H

#include <stdbool.h>

#include "base/error.h"

/* The directory of an auxiliary model: what the option names, "none", or the model directory's sibling if that exists.
 * A model may be a symbolic link: its auxiliary models lie beside the link or beside what it leads to. *directory stays
 * NULL where there is none, and is malloc'ed otherwise. Where a sibling was looked for and not found, *sought (unless
 * sought is NULL) names the places in malloc'ed text; otherwise it is left as it is. */
kakeya_status auxiliary_model_directory(const char *option, const char *model_directory, const char *suffix,
                                        char **directory, char **sought, kakeya_error *error);

/* The drafter that an option names, and whether it is an MTP assistant. *path is malloc'ed. */
kakeya_status auxiliary_model_named(const char *option, char **path, bool *assistant, kakeya_error *error);

/* The MTP assistant of a model: MODEL-assistant, a directory or with .gguf, beside the model or under that name in the
 * Hugging Face cache. `model`: as the user names it, NULL where there is none. *path stays NULL where there is none,
 * and is malloc'ed otherwise. */
kakeya_status auxiliary_model_assistant(const char *model, const char *model_directory, char **path,
                                        kakeya_error *error);

#endif
