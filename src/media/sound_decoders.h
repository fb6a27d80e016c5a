/* One decoder for each library, among which sound_decode.c chooses, and where they put what they decode. */
#ifndef KAKEYA_MEDIA_SOUND_DECODERS_H
#define KAKEYA_MEDIA_SOUND_DECODERS_H

#include "media/sound.h"

/* A file in memory. */
typedef struct sound_source {
    const char *name; /* begins messages */
    const unsigned char *data;
    size_t bytes;
    int seconds; /* at most */
} sound_source;

/* Frames, averaged over their channels, at the rate of the file. */
typedef struct sound_frames {
    float *sample; /* malloc'ed */
    size_t n, room;
    int rate, channels;
} sound_frames;

enum { SOUND_MIN_RATE = 4000, SOUND_MAX_RATE = 192000, SOUND_MAX_CHANNELS = 32 };

/* Before frames are added: the rate and the channels against what is supported. */
kakeya_status sound_begin(const sound_source *source, int rate, int channels, sound_frames *out, kakeya_error *error);
/* Refuses a file that has more frames than its seconds allow. */
kakeya_status sound_check_length(const sound_source *source, const sound_frames *frames, double n, kakeya_error *error);
/* n frames [n][channels], in [-1, 1]. */
kakeya_status sound_add(const sound_source *source, sound_frames *out, const float *from, size_t n,
                        kakeya_error *error);

/* out->sample is the caller's, also on failure. */
typedef kakeya_status sound_decoder(const sound_source *source, sound_frames *out, kakeya_error *error);
sound_decoder sound_decode_sndfile, sound_decode_mp3;

#endif
