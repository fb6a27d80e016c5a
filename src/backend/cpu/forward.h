/* The verifier's forward: the list of its operations, and the kernels that do them. */
#ifndef KAKEYA_BACKEND_CPU_FORWARD_H
#define KAKEYA_BACKEND_CPU_FORWARD_H

#include "backend/backend.h"
#include "backend/program/program.h"

kakeya_status cpu_forward(backend_model *m, backend_segment *segments, int n_segments, kakeya_error *error);
const program_machine *cpu_machine(bool prompt);

#endif
