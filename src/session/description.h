/* A model as its configuration files describe it, and which directories belong to it. */
#ifndef KAKEYA_SESSION_DESCRIPTION_H
#define KAKEYA_SESSION_DESCRIPTION_H

#include "backend/timeline.h"
#include "kakeya_study.h"
#include "model/gemma4_audio.h"
#include "model/gemma4_vision.h"

struct kakeya_description {
    const gemma4_config *verifier;
    const dflash_config *drafter;      /* NULL: none */
    const f_theta_config *f_theta;     /* NULL: none */
    const assistant_config *assistant; /* NULL: none */
    const gemma4_vision *vision;       /* sizes of what reads pictures; NULL: nothing does */
    vision_sizes vision_sizes;
    const gemma4_audio *sound; /* the same of what reads sound */
    vision_sizes audio_sizes;
};

/* The timeline of a session of `tokens` tokens that has begun to answer: what its memory is computed from. */
timeline description_session(const kakeya_description *description, const kakeya_session_options *options,
                             size_t tokens);

#endif
