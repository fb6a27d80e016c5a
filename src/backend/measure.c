#include "backend/measure.h"

#include <string.h>

const backend_measure_ops *cpu_measure(void);
#ifdef KAKEYA_HAVE_CUDA
const backend_measure_ops *cuda_measure(void);
#endif
#ifdef KAKEYA_HAVE_MLX
const backend_measure_ops *mlx_measure(void);
#endif

const backend_measure_ops *backend_measure_find(const backend_ops *ops) {
#ifdef KAKEYA_HAVE_CUDA
    if (strcmp(ops->name, "cuda") == 0) return cuda_measure();
#endif
#ifdef KAKEYA_HAVE_MLX
    if (strcmp(ops->name, "mlx") == 0) return mlx_measure();
#endif
    return strcmp(ops->name, "cpu") == 0 ? cpu_measure() : NULL;
}
