/* The launch of STEP_FORK, STEP_JOIN and STEP_RESTORE_*, on the step's stream or beside it. */
#ifndef KAKEYA_BACKEND_CUDA_LAUNCH_RESTORE_H
#define KAKEYA_BACKEND_CUDA_LAUNCH_RESTORE_H

#include "backend/cuda/latent_attention.h"
#include "backend/cuda/pass.h"

/* How the rows of a pass that attends latents attend layer `source`; exact: what they see exactly. */
latent_attention cuda_launch_latents(const cuda_pass *p, int source, const cuda_attention *exact);
void cuda_launch_restore(cuda_pass *p, const step_op *op);

#endif
