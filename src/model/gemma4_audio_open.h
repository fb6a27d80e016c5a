/* An audio part in a checkpoint directory. */
#ifndef KAKEYA_MODEL_GEMMA4_AUDIO_OPEN_H
#define KAKEYA_MODEL_GEMMA4_AUDIO_OPEN_H

#include "formats/checkpoint.h"
#include "model/audio_model.h"

/* The sizes of an audio part as a config.json says them, called `path` in messages. *there becomes false where it says
 * that there is none, or, with a `reason`, one that cannot be used. */
kakeya_status audio_model_config(const char *path, const char *json, size_t json_bytes, const model_config *text,
                                 audio_model *out, bool *there, kakeya_error *reason, kakeya_error *error);

/* What a checkpoint directory holds for sound. *out becomes NULL where it has nothing: with a `reason` (of
 * reason_bytes, else "") where it has something that cannot be used, such as a tensor that is missing, of another shape
 * or quantised. Matrices are mapped; vectors are copied as float32 into `account` (MEM_WEIGHTS). */
kakeya_status audio_model_open(checkpoint *ck, const model_config *text, mem_account *account, audio_model **out,
                               char *reason, size_t reason_bytes, kakeya_error *error);

#endif
