/* What a limit on weights has come to, and what one would come to. */
#ifndef KAKEYA_BACKEND_CUDA_WEIGHTS_LIMIT_H
#define KAKEYA_BACKEND_CUDA_WEIGHTS_LIMIT_H

#include "backend/backend.h"

void cuda_weights_limit_state(const backend_model *m, backend_weights *out);
/* Bytes per second of the device's copies from the host, measured. */
kakeya_status cuda_weights_limit_probe(backend_model *m, double *bytes_per_second, kakeya_error *error);
/* As backend_measure_ops.bounded_needs. */
kakeya_status cuda_weights_limit_needs(const language_model *verifier, mem_account *account, size_t *resident,
                                       size_t *expert, double *bytes_per_second, kakeya_error *error);

#endif
