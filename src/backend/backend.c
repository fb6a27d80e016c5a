#include "backend/backend.h"

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
    return backend_draft_by(ops, model, BACKEND_BLOCK_DRAFTER, cache, bonus, n, drafts, error);
}
