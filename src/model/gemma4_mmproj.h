/* What reads pictures and sound for GGUF files: llama.cpp's mmproj files, whose architecture is "clip", and the tensors
 * "v.", "a." and "mm." that Ollama keeps in the language model's own file. */
#ifndef KAKEYA_MODEL_GEMMA4_MMPROJ_H
#define KAKEYA_MODEL_GEMMA4_MMPROJ_H

#include "formats/gguf.h"
#include "model/audio_model.h"
#include "model/vision_model.h"

typedef struct gemma4_mmproj {
    gguf *file; /* where they lie; NULL: in the model's own */
    vision_model *vision;
    audio_model *sound;
    char no_pictures[160], no_sound[160]; /* why there is none; "" where the model would not know what to do with it */
    bool sound_is_broken;                 /* no_sound is about something that is there */
} gemma4_mmproj;

/* What reads pictures and sound for the model of `text`, whose file is `model` and which has the vocabulary: the file
 * `mmproj`; where that is NULL, tensors in the model's own file, else the best file of that kind beside it. What cannot
 * be used is NULL, with a reason; of a file that was named this is an error. no_vision: nothing that reads pictures is
 * looked for. Freed by gemma4_mmproj_close. */
kakeya_status gemma4_mmproj_open(const gguf *model, const model_config *text, const char *mmproj, bool no_vision,
                                 mem_account *account, gemma4_mmproj *out, kakeya_error *error);
void gemma4_mmproj_close(gemma4_mmproj *parts); /* a zeroed one is fine */

/* What reads pictures, of a file that is open and outlives *out: a vision part, or the model's own file. *out becomes
 * NULL, with a reason, where it cannot be used; what is returned says whether something else has failed. */
kakeya_status gemma4_mmproj_read(const gguf *file, const gguf *model, const model_config *text, mem_account *account,
                                 vision_model **out, kakeya_error *reason, kakeya_error *error);

#endif
