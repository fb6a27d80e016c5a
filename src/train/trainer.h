/* Training of an f_theta: sums over sequences of tokens (train/closed_form.h), in fixed memory, which can be saved
 * between any two sequences and go on; and the files of the result. */
#ifndef KAKEYA_TRAIN_TRAINER_H
#define KAKEYA_TRAIN_TRAINER_H

#include "session/engine.h"
#include "train/closed_form.h"

typedef struct trainer trainer;

typedef struct trainer_options {
    restoration_config config; /* input aux_hidden or drafter_context_kv; what belongs to it; ranks, latents */
    int sequence;              /* tokens of a sequence, at most */
    int sink, window;          /* evicted positions lie behind the one and are at least the other old */
    int metric_tokens;         /* the metric is taken from the first sequences, about so many tokens of them */
    int threads;
} trainer_options;

/* The engine, with a drafter where the input is its context, outlives the trainer. KAKEYA_UNSUPPORTED where its backend
 * cannot train, or where there is no such drafter. */
kakeya_status trainer_create(kakeya_engine *engine, const trainer_options *options, trainer **out, kakeya_error *error);
void trainer_destroy(trainer *t); /* NULL is fine */

/* One sequence of n tokens, 1 to options.sequence. */
kakeya_status trainer_add(trainer *t, const int32_t *tokens, int n, kakeya_error *error);
uint64_t trainer_tokens(const trainer *t);
const closed_form_sums *trainer_sums(const trainer *t);

/* Writes the sums to a file, whole or not at all, and reads them again. `place` (any 8 values of the caller) comes
 * along. `purpose` names what must be the same on both ends: the model, the options, the data. KAKEYA_FORMAT for a file
 * that is damaged or has another purpose. */
enum { TRAINER_PLACE = 8 };
kakeya_status trainer_save(const trainer *t, const char *path, uint64_t purpose, const uint64_t place[TRAINER_PLACE],
                           kakeya_error *error);
kakeya_status trainer_load(trainer *t, const char *path, uint64_t purpose, uint64_t place[TRAINER_PLACE],
                           kakeya_error *error);

kakeya_status trainer_solve(const trainer *t, const closed_form_form *form, closed_form_weights *out,
                            kakeya_error *error);
/* The f_theta of a directory, which must fit the engine's models, as float32. KAKEYA_UNSUPPORTED for one that cannot be
 * trained. */
kakeya_status trainer_read(kakeya_engine *engine, const char *directory, restoration_config *config,
                           closed_form_weights *out, kakeya_error *error);
/* f_theta_weights.safetensors and f_theta_config.json in a directory that is there, of a rank of `config` (the trained
 * one or smaller ranks: the first values of the latents). The weights first: without its configuration a directory is
 * no f_theta. */
kakeya_status trainer_write(const restoration_config *trained, const closed_form_weights *w,
                            const restoration_config *config, const char *directory, kakeya_error *error);

#endif
