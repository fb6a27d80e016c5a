/* How this backend launches the verifier's list of operations (backend/program/program.h): which of them share a
 * launch. step.h has the launches themselves, with what is private to these kernels; tests/gpu/test_step.c checks that
 * the two agree for all forms. */
#ifndef KAKEYA_BACKEND_CUDA_MACHINE_H
#define KAKEYA_BACKEND_CUDA_MACHINE_H

#include "backend/program/program.h"

/* Fusions, in the order in which they are tried. Those of prompts begin with CUDA_PROMPT_FUSIONS. */
typedef enum cuda_fusion {
    FUSE_NORMS_ROUTED = 0,
    FUSE_EMBED,
    CUDA_PROMPT_FUSIONS = FUSE_EMBED,
    FUSE_NORMS_MOE,
    FUSE_NORMS,
    FUSE_ROUTER,
    FUSE_GATE_UP,
    FUSE_DOWN,
    FUSE_MIX_AGREE,
    FUSE_HEADS_STORE,
    CUDA_FUSIONS
} cuda_fusion;

enum { CUDA_PROMPT_ROWS = 4352 }; /* of a forward, on devices with much memory */

/* Prompts and decode rows are computed in passes of their own. */
const program_machine *cuda_machine(bool prompt);

#endif
