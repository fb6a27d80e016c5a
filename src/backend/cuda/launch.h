/* Launches the operations of a step on the model's stream, one after the other. */
#ifndef KAKEYA_BACKEND_CUDA_LAUNCH_H
#define KAKEYA_BACKEND_CUDA_LAUNCH_H

#include "backend/cuda/pass.h"

/* Asynchronous. What the launchers were refused is in pass->failure afterwards; what the device meets is found when its
 * stream is finished. */
void cuda_launch_ops(cuda_pass *pass, const step_op *ops, int n);

#endif
