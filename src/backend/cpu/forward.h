/* The verifier's forward. */
#ifndef KAKEYA_BACKEND_CPU_FORWARD_H
#define KAKEYA_BACKEND_CPU_FORWARD_H

#include "backend/backend.h"

kakeya_status cpu_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error);

#endif
