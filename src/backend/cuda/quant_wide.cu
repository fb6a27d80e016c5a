/* Products of few rows with weights of 8 bits whose scales are float32 (quant_form.cuh). */
#include "backend/cuda/quant_form.cuh"

const quant_launchers quant_launch_g8 = QUANT_LAUNCHERS(CUDA_FORM_G8, false);
const quant_launchers quant_launch_f8 = QUANT_LAUNCHERS(CUDA_FORM_F8, false);
const quant_launchers quant_launch_f8_one_scale = QUANT_LAUNCHERS(CUDA_FORM_F8, true);
