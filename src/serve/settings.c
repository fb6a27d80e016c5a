#include "serve/settings.h"

#include <unistd.h>

#define DEFAULT_CACHE ((size_t)8 << 30)

size_t serve_default_cache_bytes(void) {
    size_t tenth = (size_t)sysconf(_SC_PHYS_PAGES) / 10 * (size_t)sysconf(_SC_PAGESIZE);
    return tenth < DEFAULT_CACHE ? tenth : DEFAULT_CACHE;
}
