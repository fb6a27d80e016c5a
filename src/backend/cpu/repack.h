/* Repacking of a model's quantised matrices in tiles (int8_forms.h), while it is loaded. */
#ifndef KAKEYA_BACKEND_CPU_REPACK_H
#define KAKEYA_BACKEND_CPU_REPACK_H

#include "backend/cpu/cpu.h"

/* Makes the model's weights point to tiles where products take int8 and memory has room for all of them; otherwise they
 * stay as the file has them, and products are slower with the same bits. Pages of the file that are done with are given
 * back to the system, so that a matrix is in memory once. Tells the model's progress function; KAKEYA_CANCELLED where
 * that says so. */
kakeya_status repack_weights(backend_model *m, kakeya_error *error);
void repack_destroy(backend_model *m);

#endif
