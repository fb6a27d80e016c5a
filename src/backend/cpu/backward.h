/* Gradients of what a layer is made of, row by row, in plain C: float32 for training (backward_...), float64 for tests
 * that differentiate numerically (backward64_...). */
#ifndef KAKEYA_BACKEND_CPU_BACKWARD_H
#define KAKEYA_BACKEND_CPU_BACKWARD_H

#include <math.h>

#define BACKWARD_REAL  float
#define BACKWARD(name) backward_##name
#include "backend/cpu/backward_kernels.h"
#undef BACKWARD_REAL
#undef BACKWARD

#define BACKWARD_REAL  double
#define BACKWARD(name) backward64_##name
#include "backend/cpu/backward_kernels.h"
#undef BACKWARD_REAL
#undef BACKWARD

#endif
