/* The kernels of training as C++ for the host (backend/cuda/common.cuh beside this). */
#include "backend/cuda/train_attention.cu"
#include "backend/cuda/train_losses.cu"
#include "backend/cuda/train_products.cu"
#include "backend/cuda/train_rows.cu"
#include "backend/cuda/train_split.cu"

/* behind those: they come to the emulated header by another way */
#include "backend/cuda/drafter_trainer.cu"
#include "backend/cuda/statistics.cu"
