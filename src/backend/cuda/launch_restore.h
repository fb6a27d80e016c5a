/* The launch of STEP_FORK, STEP_JOIN and STEP_RESTORE_*, on the step's stream or beside it. */
#ifndef KAKEYA_BACKEND_CUDA_LAUNCH_RESTORE_H
#define KAKEYA_BACKEND_CUDA_LAUNCH_RESTORE_H

#include "backend/cuda/pass.h"

void cuda_launch_restore(cuda_pass *p, const step_op *op);

#endif
