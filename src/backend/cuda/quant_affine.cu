/* Products of few rows with weights whose values have an offset (quant_form.cuh). */
#include "backend/cuda/quant_form.cuh"

const quant_launchers quant_launch_a4 = QUANT_LAUNCHERS(CUDA_FORM_A4, false);
const quant_launchers quant_launch_a8 = QUANT_LAUNCHERS(CUDA_FORM_A8, false);
