/* Tensors of a file, of whatever kind, to a audio_model. */
#ifndef KAKEYA_MODEL_GEMMA4_AUDIO_BIND_H
#define KAKEYA_MODEL_GEMMA4_AUDIO_BIND_H

#include "model/audio_model.h"
#include "model/gemma4_vision_bind.h"

/* Finds a slot's tensor (bound -1), or one of its bounds. */
typedef kakeya_status (*audio_find)(void *file, const audio_slot *slot, int bound, vision_stored *out,
                                    kakeya_error *error);

/* Binds all tensors of an audio part whose sizes are known. KAKEYA_OK with a `reason` where the file cannot be used: a
 * tensor that is missing, of another shape or quantised. is_gguf: the file is one. What was made is a's also on
 * failure.
 */
kakeya_status audio_bind(audio_model *a, mem_account *account, audio_find find, void *file, bool is_gguf,
                         kakeya_error *reason, kakeya_error *error);

#endif
