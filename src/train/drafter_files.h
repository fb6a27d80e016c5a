/* A drafter as a folder: config.json and model.safetensors, as model/block_drafter.h and model/assistant.h read them.
 */
#ifndef KAKEYA_TRAIN_DRAFTER_FILES_H
#define KAKEYA_TRAIN_DRAFTER_FILES_H

#include "session/engine.h"

/* The weights of the engine's drafter, laid out as in model/block_drafter_values.h. KAKEYA_UNSUPPORTED where the
 * backend does not show them. */
kakeya_status drafter_read(const kakeya_engine *engine, float *values, kakeya_error *error);
/* Files are written aside and renamed; config.json, without which a folder is no drafter, comes last. */
kakeya_status drafter_write(const block_drafter_config *config, const float *values, bool bf16, const char *directory,
                            kakeya_error *error);

/* The same of an MTP assistant (model/assistant_values.h), the head's rows in the order of tokens; model_type is
 * gemma4_assistant. token_of: of clusters, as in assistant_weights. */
kakeya_status assistant_read(const kakeya_engine *engine, float *values, kakeya_error *error);
kakeya_status assistant_write(const assistant_config *config, const int32_t *token_of, const float *values, bool bf16,
                              const char *directory, kakeya_error *error);

#endif
