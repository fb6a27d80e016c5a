#include "media/sound.h"

#include <stdlib.h>

const char *sound_format_name(sound_format format) {
    static const char *const names[SOUND_FORMATS] = {"WAV", "FLAC", "MP3"};
    return names[format];
}

void sound_free(sound_samples *s) {
    free(s->sample);
    *s = (sound_samples){0};
}
