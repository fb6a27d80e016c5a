/* Repacking of a model's quantised matrices in tiles (int8_forms.h), while it is loaded. */
#ifndef KAKEYA_BACKEND_CPU_REPACK_H
#define KAKEYA_BACKEND_CPU_REPACK_H

#include "backend/cpu/cpu.h"

/* Makes the model's weights point to tiles where products take int8: to those of a file, where there is one beside the
 * model (tile_file.h), else to its own, where memory has room for all of them. Otherwise weights stay as the file has
 * them, and products are slower with the same bits. Pages of the file that are done with are given
 * back to the system, so that a matrix is in memory once. Tells the model's progress function; KAKEYA_CANCELLED where
 * that says so. */
kakeya_status repack_weights(backend_model *m, kakeya_error *error);
void repack_destroy(backend_model *m);

/* The same tiles to a file, with the memory of some rows of a matrix: backend_ops.weights_arrange. */
kakeya_status repack_to_file(const backend_model_options *options, const char *path, kakeya_error *error);

#endif
