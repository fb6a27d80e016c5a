/* What graphs have said and needed, in the program's own terms. */
#include "backend/mlx/mlx.h"

kakeya_status mlx_check(int status, const mlx_failure *failure, kakeya_error *error) {
    if (status == MLX_DEVICE_OK) return KAKEYA_OK;
    kakeya_status kind = status == MLX_DEVICE_OUT_OF_MEMORY ? KAKEYA_OUT_OF_MEMORY : KAKEYA_BACKEND;
    return error_set(error, kind, "%s", failure->text);
}

static kakeya_status count(backend_model *m, size_t needed, kakeya_error *error) {
    if (needed <= m->workspace_bytes) return KAKEYA_OK;
    size_t more = needed - m->workspace_bytes;
    if (!mem_account_add(m->account, MEM_WORKSPACE, more))
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: a step needs %zu bytes of workspace", needed);
    m->workspace_bytes = needed;
    return KAKEYA_OK;
}

kakeya_status mlx_reserve_workspace(backend_model *m, size_t bytes, kakeya_error *error) {
    kakeya_status status = count(m, bytes, error);
    if (bytes > m->foreseen_bytes) m->foreseen_bytes = bytes;
    mlx_device_reset_peak();
    if (!status) mlx_device_limit(mlx_device_active_bytes() + m->workspace_bytes);
    return status;
}

/* Weights and RoPE tables are counted for themselves; what is above them was a graph's. */
kakeya_status mlx_count_workspace(backend_model *m, kakeya_error *error) {
    size_t peak = mlx_device_peak_bytes(), active = mlx_device_active_bytes(),
           needed = peak > active ? peak - active : 0;
    if (needed > m->needed_bytes) m->needed_bytes = needed;
    return count(m, needed, error);
}
