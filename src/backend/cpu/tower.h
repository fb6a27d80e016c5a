/* Rows of the text model out of pictures: the list of backend/program/tower.h on the CPU. */
#ifndef KAKEYA_BACKEND_CPU_TOWER_H
#define KAKEYA_BACKEND_CPU_TOWER_H

#include "backend/cpu/cpu.h"

/* backend_ops.embed_image */
kakeya_status cpu_embed_image(backend_model *m, const backend_image *image, float *rows, kakeya_error *error);
/* Those of the same names, in pieces: an operation on some rows. */
kakeya_status cpu_image_begin(backend_model *m, const backend_image *image, float *rows, backend_reading **out,
                              kakeya_error *error);
kakeya_status cpu_image_step(backend_reading *reading, double seconds, bool *made, kakeya_error *error);
void cpu_image_end(backend_reading *reading);
/* backend_measure_ops.image_bytes */
size_t cpu_image_bytes(const struct vision_model *vision, weight_format format, int patches, int side, int threads);

#endif
