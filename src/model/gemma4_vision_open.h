/* What reads pictures, from a checkpoint directory. */
#ifndef KAKEYA_MODEL_GEMMA4_VISION_OPEN_H
#define KAKEYA_MODEL_GEMMA4_VISION_OPEN_H

#include "formats/checkpoint.h"
#include "model/vision_model.h"

/* What a checkpoint directory holds for pictures. *out becomes NULL where it has none: a text model, or one without
 * vision_config. KAKEYA_OK with *out NULL and a `reason` (of reason_bytes, "" otherwise) where it has one that cannot
 * be used: a tensor that is missing, of another shape or quantised. Matrices are mapped; vectors are copied as float32
 * into `account` (MEM_WEIGHTS). */
kakeya_status vision_model_open(checkpoint *ck, const model_config *text, mem_account *account, vision_model **out,
                                char *reason, size_t reason_bytes, kakeya_error *error);

/* The sizes of a vision part as a config.json says them, called `path` in messages. *there becomes false where it says
 * that there is none, or, with a `reason`, one that cannot be used. */
kakeya_status vision_model_config(const char *path, const char *json, size_t json_bytes, const model_config *text,
                                  vision_model *out, bool *there, kakeya_error *reason, kakeya_error *error);

#endif
