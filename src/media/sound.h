/* Sound: mono samples of 16 kHz, out of WAV, FLAC and MP3. Nothing here knows a model. */
#ifndef KAKEYA_MEDIA_SOUND_H
#define KAKEYA_MEDIA_SOUND_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef enum sound_format { SOUND_WAV = 0, SOUND_FLAC, SOUND_MP3, SOUND_FORMATS } sound_format;

enum {
    SOUND_RATE = 16000,    /* samples per second that models read */
    SOUND_MAX_SECONDS = 30 /* models are trained on no more */
};

/* What a file says. */
typedef struct sound_info {
    sound_format format;
    int rate, channels; /* as they are stored */
} sound_info;

typedef struct sound_samples {
    float *sample; /* [n] of SOUND_RATE, in [-1, 1]; malloc'ed, freed by sound_free */
    size_t n;
} sound_samples;

const char *sound_format_name(sound_format format); /* "WAV" */

void sound_free(sound_samples *s); /* a zeroed one too */

#endif
