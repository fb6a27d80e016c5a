/* Sweeps over every combination run whole in `make test`; `make check` (tools/check.sh) cuts them short. */
#ifndef KAKEYA_TESTS_SWEEP_H
#define KAKEYA_TESTS_SWEEP_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool sweep_short(void) { return getenv("KAKEYA_SHORT_SWEEPS") != NULL; }

#endif
