/* An audio part in llama.cpp's mmproj files, and in the one file of Ollama's form. */
#ifndef KAKEYA_MODEL_GEMMA4_AUDIO_GGUF_H
#define KAKEYA_MODEL_GEMMA4_AUDIO_GGUF_H

#include "formats/gguf.h"
#include "model/audio_model.h"

/* Keys that files of ours have where the values are not those of published models, which no other file says. */
#define AUDIO_KEY_CONTEXT  "clip.audio.attention.context_left"
#define AUDIO_KEY_CAP      "clip.audio.attention.logit_cap"
#define AUDIO_KEY_RESIDUAL "clip.audio.residual_weight"
static const int audio_published_reach = 12;
static const float audio_published_cap = 50, audio_published_residual = 0.5F;

/* What reads sound for the model of `text`, whose file is `model`, from `file`, which may be the same, is open and
 * outlives *out. *out becomes NULL, with a reason, where it has none, or, *there, one that cannot be used; what is
 * returned says whether something else has failed. */
kakeya_status audio_model_gguf_read(const gguf *file, const gguf *model, const model_config *text, mem_account *account,
                                    audio_model **out, bool *there, kakeya_error *reason, kakeya_error *error);

#endif
