#include "backend/backend.h"

#include <string.h>

const backend_ops *cpu_backend(void);

const backend_ops *backend_find(const char *name, kakeya_error *error) {
    if (!name || strcmp(name, "auto") == 0 || strcmp(name, "cpu") == 0) return cpu_backend();
    error_set(error, KAKEYA_UNSUPPORTED, "backend '%s' is not in this build (available: cpu)", name);
    return NULL;
}
