#include "backend/backend.h"

#include <string.h>

const backend_ops *cpu_backend(void);
#ifdef KAKEYA_HAVE_CUDA
const backend_ops *cuda_backend(void);
bool cuda_device_present(void);
#endif

const backend_ops *backend_find(const char *name, kakeya_error *error) {
    bool automatic = !name || strcmp(name, "auto") == 0;
#ifdef KAKEYA_HAVE_CUDA
    static const char available[] = "cpu, cuda";
    if (automatic ? cuda_device_present() : strcmp(name, "cuda") == 0) return cuda_backend();
#else
    static const char available[] = "cpu";
#endif
    if (automatic || strcmp(name, "cpu") == 0) return cpu_backend();
    error_set(error, KAKEYA_UNSUPPORTED, "backend '%s' is not in this build (available: %s)", name, available);
    return NULL;
}

kakeya_status backend_draft_one(const backend_ops *ops, backend_model *model, backend_cache *cache, int32_t bonus,
                                int n, int32_t *drafts, kakeya_error *error) {
    backend_draft_request request = {.cache = cache, .bonus = bonus, .n = n, .drafts = drafts};
    return ops->draft(model, &request, 1, error);
}
