/* What a limit on weights comes to: for a model's files and what their disk gives, or on a backend's device. */
#ifndef KAKEYA_SESSION_WEIGHTS_NEEDS_H
#define KAKEYA_SESSION_WEIGHTS_NEEDS_H

#include "kakeya_study.h"

/* As kakeya_weights_inspect; of a backend that keeps experts in the host's memory, bytes are the device's, and those
 * per second are those of copies. *copies: whether that is so. */
kakeya_status weights_needs_on(const char *backend, const char *model, double seconds, kakeya_weights_needs *out,
                               bool *copies, kakeya_error *error);

#endif
