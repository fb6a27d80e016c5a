/* Where the drafter and the f_theta of a model lie. */
#ifndef KAKEYA_SESSION_COMPANION_H
#define KAKEYA_SESSION_COMPANION_H

#include "base/error.h"

/* The directory of a companion model: what the option names, "none", or the model directory's sibling if that exists.
 * *directory stays NULL where there is none, and is malloc'ed otherwise. */
kakeya_status companion_directory(const char *option, const char *model_directory, const char *suffix, char **directory,
                                  kakeya_error *error);

#endif
