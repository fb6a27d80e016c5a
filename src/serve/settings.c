#include "serve/settings.h"

#include <unistd.h>

enum { DEFAULT_BATCH = 64 };

#define DEFAULT_CACHE ((size_t)8 << 30)

size_t serve_default_cache_bytes(void) {
    size_t tenth = (size_t)sysconf(_SC_PHYS_PAGES) / 10 * (size_t)sysconf(_SC_PAGESIZE);
    return tenth < DEFAULT_CACHE ? tenth : DEFAULT_CACHE;
}

int serve_batch(const serve_settings *settings) {
    return settings->engine.max_batch > 0 ? settings->engine.max_batch : DEFAULT_BATCH;
}
