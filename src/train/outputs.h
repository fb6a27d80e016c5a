/* What every trainer writes beside weights. */
#ifndef KAKEYA_TRAIN_OUTPUTS_H
#define KAKEYA_TRAIN_OUTPUTS_H

/* Beside an f_theta that comes from a closed form: in which units training goes on (closed_form_weights). */
#define TRAIN_SIZES_NAME "training_sizes.safetensors"

#include "base/error.h"

struct cJSON;

/* A trainer's files in its --out. A name that ends in '*' stands for all that begin so. */
typedef struct train_files {
    const char *what;          /* "an f_theta" */
    const char *finished;      /* is there when the work is done, or nearly */
    const char *const *states; /* of work that the same command goes on with; NULL ends the list */
    const char *const *others;
} train_files;

/* Whether a directory may be written to: it is absent, or it holds this trainer's files alone (and such that are
 * hidden) and no finished work, but for work that goes on. */
kakeya_status train_check_out(const char *path, const train_files *own, kakeya_error *error);

/* Makes a directory, or finds it there. */
kakeya_status train_make_directory(const char *path, kakeya_error *error);
/* After a failure: removes the directory where nothing has come into it. */
void train_drop_directory(const char *path);
/* A file of its own, whole or not at all. json NULL: out of memory. */
kakeya_status train_write_json(const char *path, const struct cJSON *json, kakeya_error *error);

#endif
