/* What conformers read of a sound: logarithms of its energy in 128 bands of the mel scale, 100 times a second.
 * transformers 5.23, Gemma4AudioFeatureExtractor. */
#ifndef KAKEYA_MEDIA_LOG_MEL_H
#define KAKEYA_MEDIA_LOG_MEL_H

#include <stddef.h>

enum { LOG_MEL_BANDS = 128 };

/* Frames of n samples of 16 kHz; 0 below 161. Those that transformers pads with are left out. */
size_t log_mel_frames(size_t n);
/* out: [log_mel_frames(n)][LOG_MEL_BANDS]. */
void log_mel(const float *samples, size_t n, float *out);

#endif
