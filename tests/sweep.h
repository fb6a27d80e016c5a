/* Sweeps over every combination run in `make test`, with every repetition in `make test-whole`; `make check`
 * (tools/check.sh) cuts them short. */
#ifndef KAKEYA_TESTS_SWEEP_H
#define KAKEYA_TESTS_SWEEP_H

#include <stdbool.h>
#include <stdlib.h>

static inline bool sweep_short(void) { return getenv("KAKEYA_SHORT_SWEEPS") != NULL; }
static inline bool sweep_whole(void) { return getenv("WHOLE_SWEEPS") != NULL; }

#endif
