#include "backend/backend_train.h"

#include <string.h>

const backend_train_ops *cpu_train(void);
#ifdef KAKEYA_HAVE_CUDA
const backend_train_ops *cuda_train(void);
#endif

#ifdef KAKEYA_HAVE_MLX
const backend_train_ops *mlx_train(void);
#endif

const backend_train_ops *backend_train_find(const backend_ops *ops) {
    if (strcmp(ops->name, "cpu") == 0) return cpu_train();
#ifdef KAKEYA_HAVE_CUDA
    if (strcmp(ops->name, "cuda") == 0) return cuda_train();
#endif
#ifdef KAKEYA_HAVE_MLX
    if (strcmp(ops->name, "mlx") == 0) return mlx_train();
#endif
    return NULL;
}
