/* The MLX backend as the registry sees it; in a plugin, all that the plugin exports. */
#include <stdio.h>

#include "backend/entry.h"
#include "backend/mlx/mlx_device.h"

const backend_ops *mlx_backend(void);
const backend_measure_ops *mlx_measure(void);
const backend_train_ops *mlx_train(void);

/* Without Metal, which only a Mac has, it is for tests. */
static bool present(char *about, size_t bytes) {
    bool metal = mlx_metal_present();
    if (about)
        snprintf(about, bytes, "libmlx %s, %s", mlx_version_loaded(),
                 metal ? "Metal" : "which has no Metal here and computes on the CPU, for tests");
    return metal;
}

BACKEND_ENTRY(mlx_entry) = {
    .interface = KAKEYA_INTERFACE,
    .name = "mlx",
    .present = present,
    .ops = mlx_backend,
    .measure = mlx_measure,
    .train = mlx_train,
};
