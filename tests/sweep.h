/* Sweeps over every combination run in `make test`, with every repetition in `make test-whole`; `make check`
 * (tools/check.sh) cuts them short. */
#ifndef KAKEYA_TESTS_SWEEP_H
#define KAKEYA_TESTS_SWEEP_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline bool sweep_short(void) { return getenv("KAKEYA_SHORT_SWEEPS") != NULL; }
/* On a processor that is emulated, which takes some twenty times as long, a test of kernels does the least that meets
 * every kernel. */
static inline bool sweep_emulated(void) {
    return sweep_short() && strcmp(getenv("KAKEYA_SHORT_SWEEPS"), "emulated") == 0;
}
static inline bool sweep_whole(void) { return getenv("WHOLE_SWEEPS") != NULL; }

#endif
