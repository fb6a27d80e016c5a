#include "backend/backend.h"

#include <string.h>

const backend_ops *cpu_backend(void);
#ifdef KAKEYA_HAVE_CUDA
const backend_ops *cuda_backend(void);
bool cuda_device_present(void);
#endif
#ifdef KAKEYA_HAVE_MLX
const backend_ops *mlx_backend(void);
bool mlx_metal_present(void);
#endif

/* The backends of this build, for messages. */
static const char available[] = "cpu"
#ifdef KAKEYA_HAVE_CUDA
                                ", cuda"
#endif
#ifdef KAKEYA_HAVE_MLX
                                ", mlx"
#endif
    ;

const backend_ops *backend_find(const char *name, kakeya_error *error) {
    bool automatic = !name || strcmp(name, "auto") == 0;
#ifdef KAKEYA_HAVE_CUDA
    if (automatic ? cuda_device_present() : strcmp(name, "cuda") == 0) return cuda_backend();
#endif
#ifdef KAKEYA_HAVE_MLX
    /* Where it has no Metal, which is on a Mac alone, it is for tests. */
    if (automatic ? mlx_metal_present() : strcmp(name, "mlx") == 0) return mlx_backend();
#endif
    if (automatic || strcmp(name, "cpu") == 0) return cpu_backend();
    error_set(error, KAKEYA_UNSUPPORTED, "backend '%s' is not in this build (available: %s)", name, available);
    return NULL;
}

kakeya_status backend_precision(const backend_ops *ops, weight_format format, kakeya_precision asked,
                                kakeya_precision *out, kakeya_error *error) {
    *out = asked != KAKEYA_PRECISION_AUTO            ? asked
           : ops->bf16_only || format == WEIGHT_BF16 ? KAKEYA_PRECISION_BF16
           : weight_format_is_plain(format)          ? KAKEYA_PRECISION_F32
           : ops->int8_products                      ? KAKEYA_PRECISION_INT8
                                                     : KAKEYA_PRECISION_BF16;
    if (*out == KAKEYA_PRECISION_FP8 && !ops->fp8_prompts)
        return error_set(error, KAKEYA_UNSUPPORTED, "precision fp8 needs --backend cuda, this is backend %s",
                         ops->name);
    return KAKEYA_OK;
}

kakeya_status backend_draft_by(const backend_ops *ops, backend_model *model, backend_drafter drafter,
                               backend_cache *cache, int32_t bonus, int n, int32_t *drafts, kakeya_error *error) {
    backend_draft_request request = {.cache = cache, .drafter = drafter, .bonus = bonus, .n = n, .drafts = drafts};
    return ops->draft(model, &request, 1, error);
}

kakeya_status backend_draft_one(const backend_ops *ops, backend_model *model, backend_cache *cache, int32_t bonus,
                                int n, int32_t *drafts, kakeya_error *error) {
    return backend_draft_by(ops, model, BACKEND_DFLASH, cache, bonus, n, drafts, error);
}
