/* Rows of blocks with made-up values, for models without a checkpoint. */
#ifndef KAKEYA_BACKEND_CPU_SYNTHETIC_BLOCKS_H
#define KAKEYA_BACKEND_CPU_SYNTHETIC_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/weight_format.h"

/* Whether blocks of this format can be made. */
bool synthetic_blocks_can(weight_format format);
/* Fills `bytes` of whole blocks with values of about this standard deviation and mean 0. The same seed gives the same
 * bytes. */
void synthetic_blocks(weight_format format, float deviation, uint64_t seed, size_t bytes, unsigned char *out);

#endif
