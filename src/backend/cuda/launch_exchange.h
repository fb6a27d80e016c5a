/* The operations that only a step of several devices has. */
#ifndef KAKEYA_BACKEND_CUDA_LAUNCH_EXCHANGE_H
#define KAKEYA_BACKEND_CUDA_LAUNCH_EXCHANGE_H

#include "backend/cuda/pass.h"

/* STEP_EXCHANGE and STEP_MEET, as cuda_launch_ops does it. */
void cuda_launch_exchange(cuda_pass *pass, const step_op *op);

#endif
