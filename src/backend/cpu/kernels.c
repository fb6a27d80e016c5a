/* Which kernel table this CPU can run. */
#include <string.h>

#include "backend/cpu/kernels_private.h"

/* Best first. Each instruction set contains the ones behind it, so what a CPU supports is a tail of this list. */
static const cpu_kernels *const tables[] = {&cpu_kernels_scalar};
static const char *const names[] = {"scalar", NULL};

static size_t first_supported(void) { return 0; }

const char *const *cpu_kernels_supported(void) { return names + first_supported(); }

const cpu_kernels *cpu_kernels_find(const char *name) {
    size_t count = sizeof tables / sizeof tables[0];
    for (size_t i = first_supported(); i < count; i++) {
        if (!name || strcmp(name, names[i]) == 0) return tables[i];
    }
    return NULL;
}
