/* Training of a drafter, DFlash or an MTP assistant: steps of AdamW over a corpus of prompts with the model's answers,
 * on a backend's trainer (backend/backend_train.h). What a step does follows from the options, the corpus and the
 * step's number alone.
 */
#ifndef KAKEYA_TRAIN_DRAFTING_H
#define KAKEYA_TRAIN_DRAFTING_H

#include "backend/backend_train.h"
#include "session/engine.h"
#include "train/adamw.h"
#include "train/corpus.h"

typedef struct drafting drafting;

typedef struct drafting_options {
    block_drafter_config config;
    const assistant_config *assistant; /* what is trained instead, which the caller keeps; or NULL */
    const int32_t *token_of;           /* of the assistant's clusters, as in assistant_weights; the caller keeps it */
    drafter_trainer_options trainer;   /* its drafter is `config`, its assistant the above */
    int batch;                         /* sequences of a step */
    int prompt_blocks;                 /* of the trainer's blocks of a sequence: they begin in the prompt */
    int steps, warm_up;
    bool constant; /* the learning rate stays at its peak */
    double rate;   /* the peak */
    adamw_options adamw;
    int threads;
    uint64_t seed;
    size_t kept_bytes; /* of hidden states, at most; where a sequence's are not kept, they are computed again */
} drafting_options;

/* Sums over a step's blocks, and the length of its gradient. */
typedef struct drafting_step_result {
    drafter_trainer_result learned;
    double gradient;
} drafting_step_result;

/* The recipe, with decay and rate for a drafter from nothing: see docs/guide/train.md. `config` stays as it is. */
void drafting_options_init(drafting_options *o);
/* Weights of what is trained, and tokens of a block: the first and its drafts. */
size_t drafting_values(const drafting_options *o);
int drafting_block(const drafting_options *o);

/* Bytes that training will take beside the engine. */
size_t drafting_bytes(kakeya_engine *engine, const drafting_options *options);
/* The engine outlives it, and so does the corpus, which must not change. `start`: drafting_values values. Hidden
 * states come from the engine's backend; where that has no trainer, the CPU learns. KAKEYA_UNSUPPORTED where the
 * backend shows no hidden states, or for an assistant not K and V; KAKEYA_INVALID_ARGUMENT where no answer is long
 * enough. */
kakeya_status drafting_create(kakeya_engine *engine, const drafting_options *options, const corpus *data,
                              const float *start, drafting **out, kakeya_error *error);
void drafting_destroy(drafting *d); /* NULL is fine */

int drafting_done(const drafting *d);             /* steps */
const float *drafting_weights(const drafting *d); /* laid out as in model/block_drafter_values.h, or
                                                     assistant_values.h */
/* The next step. `interrupted` is asked between sequences: KAKEYA_CANCELLED then, and the step has not happened.
 * KAKEYA_FORMAT where the loss is no number. */
kakeya_status drafting_step(drafting *d, bool (*interrupted)(void *user), void *user, drafting_step_result *out,
                            kakeya_error *error);

/* Steps, weights and the optimiser's sums as a file, whole or not at all (train/saved.h). */
kakeya_status drafting_save(const drafting *d, const char *path, uint64_t purpose, kakeya_error *error);
kakeya_status drafting_load(drafting *d, const char *path, uint64_t purpose, kakeya_error *error);

#endif
