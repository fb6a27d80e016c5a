/* What every trainer writes beside weights. */
#ifndef KAKEYA_TRAIN_OUTPUTS_H
#define KAKEYA_TRAIN_OUTPUTS_H

#include "base/error.h"

struct cJSON;

/* Makes a directory, or finds it there. */
kakeya_status train_make_directory(const char *path, kakeya_error *error);
/* After a failure: removes the directory where nothing has come into it. */
void train_drop_directory(const char *path);
/* A file of its own, whole or not at all. json NULL: out of memory. */
kakeya_status train_write_json(const char *path, const struct cJSON *json, kakeya_error *error);

#endif
