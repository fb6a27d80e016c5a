/* Products of few rows with weights of 4 bits whose scales are float32 (quant_form.cuh). */
#include "backend/cuda/quant_form.cuh"

const quant_launchers quant_launch_s4 = QUANT_LAUNCHERS(CUDA_FORM_S4, false);
const quant_launchers quant_launch_g4 = QUANT_LAUNCHERS(CUDA_FORM_G4, false);
