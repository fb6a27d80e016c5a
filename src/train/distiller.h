/* Distillation of an f_theta: steps of AdamW over a corpus, on a backend's f_theta trainer (backend/backend_train.h).
 * What a step does follows from the options, the corpus and the step's number alone. */
#ifndef KAKEYA_TRAIN_DISTILLER_H
#define KAKEYA_TRAIN_DISTILLER_H

#include "backend/backend_train.h"
#include "session/engine.h"
#include "train/adamw.h"
#include "train/closed_form.h"
#include "train/corpus.h"

typedef struct distiller distiller;

typedef struct distiller_options {
    restoration_config config;
    restoration_trainer_options trainer; /* its f_theta is `config` */
    int batch, segments;                 /* sequences of a step, segments of each */
    int steps, warm_up;
    bool constant; /* the learning rate stays at its peak */
    double rate;   /* the peak */
    adamw_options adamw;
    int threads;
    double all_layers;  /* the share of segments that restore full-attention layers, too */
    double later_turns; /* the share of segments that are prompts of later turns */
    uint64_t seed;
} distiller_options;

/* What a step lost, means over its segments, and the length of its gradient. */
typedef struct distiller_step_result {
    restoration_trainer_result lost;
    double kl[2];    /* sums over the segments with sliding layers restored alone, and over those with all layers */
    int segments[2]; /* of either kind */
    double gradient;
} distiller_step_result;

/* What the steps of this object have taken so far. */
typedef struct distiller_seconds {
    double part[RESTORATION_PARTS]; /* of the device, where the backend measures them */
    double learning, optimiser;     /* of the clock: losses and gradients; weights */
    bool parts;
} distiller_seconds;

/* The recipe: see docs/guide/train.md. Its lengths follow the verifier's window. */
void distiller_options_init(distiller_options *o, const model_config *verifier);

/* Bytes that a distiller will take beside the engine. */
size_t distiller_bytes(kakeya_engine *engine, const distiller_options *options);
/* KAKEYA_UNSUPPORTED where the backend has no f_theta trainer. */
kakeya_status distiller_check(const kakeya_engine *engine, kakeya_error *error);
/* The engine outlives the distiller, and so does the corpus, which must not change. Where `start` has sizes, steps are
 * counted in units of these, and in those of what its decoders give where a norm follows. KAKEYA_UNSUPPORTED where the
 * backend has no f_theta trainer; KAKEYA_INVALID_ARGUMENT where no sequence is long enough. */
kakeya_status distiller_create(kakeya_engine *engine, const distiller_options *options, const corpus *data,
                               const closed_form_weights *start, distiller **out, kakeya_error *error);
void distiller_destroy(distiller *d); /* NULL is fine */

int distiller_done(const distiller *d); /* steps */
/* The next step. `interrupted` is asked between sequences: KAKEYA_CANCELLED then, and the step has not happened.
 * KAKEYA_FORMAT where the loss is no number. */
kakeya_status distiller_step(distiller *d, bool (*interrupted)(void *user), void *user, distiller_step_result *out,
                             kakeya_error *error);
void distiller_time(const distiller *d, distiller_seconds *out);
kakeya_status distiller_weights(const distiller *d, closed_form_weights *out, kakeya_error *error);

/* Everything that is needed to go on, the corpus included, as a file, whole or not at all. `purpose` names what must be
 * the same on both ends. */
kakeya_status distiller_save(const distiller *d, const char *path, uint64_t purpose, kakeya_error *error);
/* The corpus of such a file. KAKEYA_FORMAT for one that is damaged or has another purpose. */
kakeya_status distiller_load_corpus(const char *path, uint64_t purpose, corpus *out, kakeya_error *error);
/* The rest of it. */
kakeya_status distiller_load(distiller *d, const char *path, uint64_t purpose, kakeya_error *error);

#endif
