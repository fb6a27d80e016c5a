/* Bytes of a file to mono samples of 16 kHz: WAV, FLAC and MP3, told apart by their first bytes. Channels are averaged;
 * other rates are resampled. */
#ifndef KAKEYA_MEDIA_SOUND_DECODE_H
#define KAKEYA_MEDIA_SOUND_DECODE_H

#include "media/sound.h"

/* KAKEYA_UNSUPPORTED: none of the three formats; KAKEYA_FORMAT: a damaged file, or one that ends early;
 * KAKEYA_INVALID_ARGUMENT: longer than `seconds`, 1 to SOUND_MAX_SECONDS, which a header that says so tells before
 * anything is decoded. `name` begins messages. */
kakeya_status sound_decode(const char *name, const void *data, size_t bytes, int seconds, sound_info *info,
                           sound_samples *out, kakeya_error *error);

#endif
