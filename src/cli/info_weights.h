/* What a limit on weights costs: the curve of `info` and of `serve --dry-run`. */
#ifndef KAKEYA_CLI_INFO_WEIGHTS_H
#define KAKEYA_CLI_INFO_WEIGHTS_H

#include "cli/cli.h"

/* What the curve is made of; the disk is read for a second. `model` NULL: synthetic weights, which are refused. */
kakeya_status info_weights_measure(const char *model, kakeya_weights_needs *out, kakeya_error *error);
/* limit: a row of its own, unless it is KAKEYA_WEIGHTS_AUTO. */
void info_weights_print(const kakeya_weights_needs *needs, size_t limit);
void info_weights_add_json(struct cJSON *object, const kakeya_weights_needs *needs, size_t limit);

#endif
