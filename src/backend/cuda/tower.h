/* What reads pictures on the device: its weights in bf16, and the memory of the largest picture so far. Products have
 * inputs in bf16 and sums in float32; the residual stream, norms, pooling and standardisation are float32. */
#ifndef KAKEYA_BACKEND_CUDA_TOWER_H
#define KAKEYA_BACKEND_CUDA_TOWER_H

#include "backend/cuda/model.h"
#include "backend/program/tower.h"

/* The verbs of backend.h. Of several devices the first one reads pictures. */
kakeya_status cuda_load_vision(backend_model *m, const vision_model *vision, kakeya_error *error);
kakeya_status cuda_embed_image(backend_model *m, const backend_image *image, float *rows, kakeya_error *error);
kakeya_status cuda_image_begin(backend_model *m, const backend_image *image, float *rows, backend_reading **out,
                               kakeya_error *error);
kakeya_status cuda_image_step(backend_reading *reading, double seconds, bool *made, kakeya_error *error);
void cuda_image_end(backend_reading *reading);
/* Device time of the operations of a list by kind, without copies between host and device: seconds [OP_KINDS]. */
kakeya_status cuda_image_seconds(backend_model *m, const backend_image *image, double *seconds, kakeya_error *error);
void cuda_tower_destroy(cuda_tower *tower); /* NULL is fine */

/* Workspace that pictures of up to so many patches take, as it is counted. */
size_t cuda_image_bytes(const vision_model *vision, weight_format format, int patches, int side, int threads);

#endif
