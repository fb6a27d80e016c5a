/* Rows of the text model out of sound: the conformer of E2B and E4B, and the 12B's frames, on the CPU. */
#ifndef KAKEYA_BACKEND_CPU_CONFORMER_H
#define KAKEYA_BACKEND_CPU_CONFORMER_H

#include "backend/cpu/cpu.h"

/* backend_ops.sound_begin and what follows it. A piece is a block of a layer on some rows. */
kakeya_status cpu_sound_begin(backend_model *m, const backend_sound *sound, float *rows, backend_hearing **out,
                              kakeya_error *error);
kakeya_status cpu_sound_step(backend_hearing *hearing, double seconds, bool *done, kakeya_error *error);
void cpu_sound_end(backend_hearing *hearing);
/* backend_measure_ops.sound_bytes */
size_t cpu_sound_bytes(const struct audio_model *audio, weight_format format, size_t samples);

#endif
