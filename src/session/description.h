/* A model as its configuration files describe it, and which directories belong to it. */
#ifndef KAKEYA_SESSION_DESCRIPTION_H
#define KAKEYA_SESSION_DESCRIPTION_H

#include "backend/timeline.h"
#include "kakeya_study.h"
#include "model/audio_model.h"
#include "model/vision_model.h"

struct kakeya_description {
    const model_config *verifier;
    const block_drafter_config *drafter; /* NULL: none */
    const restoration_config *f_theta;   /* NULL: none */
    const assistant_config *assistant;   /* NULL: none */
    const vision_model *vision;          /* sizes of what reads pictures; NULL: nothing does */
    vision_sizes vision_sizes;
    const audio_model *sound; /* the same of what reads sound */
    vision_sizes audio_sizes;
};

/* The timeline of a session of `tokens` tokens that has begun to answer: what its memory is computed from. */
timeline description_session(const kakeya_description *description, const kakeya_session_options *options,
                             size_t tokens);

#endif
