/* A model as its configuration files describe it, and which directories belong to it. */
#ifndef KAKEYA_SESSION_DESCRIPTION_H
#define KAKEYA_SESSION_DESCRIPTION_H

#include "backend/timeline.h"

struct kakeya_description {
    const gemma4_config *verifier;
    const dflash_config *drafter;  /* NULL: none */
    const f_theta_config *f_theta; /* NULL: none */
};

/* The timeline of a session of `tokens` tokens that has begun to answer: what its memory is computed from. */
timeline description_session(const kakeya_description *description, const kakeya_session_options *options,
                             size_t tokens);

/* The directory of a companion model: what the option names, "none", or the model directory's sibling if that exists.
 * *directory stays NULL where there is none, and is malloc'ed otherwise. */
kakeya_status companion_directory(const char *option, const char *model_directory, const char *suffix, char **directory,
                                  kakeya_error *error);

#endif
