/* What reads sound, beside a model that is converted: as it is, never quantised. It lies where what reads pictures does
 * (convert/vision.h), in GGUF files with llama.cpp's keys and names. */
#ifndef KAKEYA_CONVERT_AUDIO_H
#define KAKEYA_CONVERT_AUDIO_H

#include "convert/vision.h"
#include "model/audio_model.h"

/* Adds keys and tensors to a file that is not open yet, and writes the tensors, once it is. *bytes: of them. */
void audio_plan_gguf(const audio_model *a, gguf_output *o, uint64_t *bytes);
kakeya_status audio_write_gguf(const audio_model *a, gguf_output *o, kakeya_error *error);

/* As vision_entries_make and vision_to_safetensors. mlx: with the channels of convolutions in the last place. */
kakeya_status audio_entries_make(const audio_model *a, const char *prefix, vision_entries *out, kakeya_error *error);
kakeya_status audio_to_safetensors(const audio_model *a, bool mlx, safetensors_writer *writer, uint64_t *bytes,
                                   kakeya_error *error);

#endif
