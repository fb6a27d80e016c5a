#include "serve/late_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

/* POSIX lets dlsym's pointers be used as functions; C has no cast for that. */
static bool find(late_library *l, void *library, size_t i) {
    void *address = dlsym(library, l->names[i]);
    if (!address) snprintf(l->problem, sizeof l->problem, "%s has no function %s", l->file, l->names[i]);
    memcpy((char *)l->functions + i * sizeof address, &address, sizeof address);
    return address != NULL;
}

static bool load(late_library *l) {
    void *library = dlopen(l->file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        snprintf(l->problem, sizeof l->problem, "%s", why ? why : l->file);
        return false;
    }
    for (size_t i = 0; i < l->n; i++)
        if (!find(l, library, i)) return false;
    return true;
}

kakeya_status late_library_load(late_library *l, kakeya_error *error) {
    pthread_mutex_lock(&l->lock);
    if (!l->tried) l->loaded = load(l);
    l->tried = true;
    bool loaded = l->loaded;
    pthread_mutex_unlock(&l->lock);
    return loaded ? KAKEYA_OK : error_set(error, KAKEYA_UNSUPPORTED, "%s: %s", l->what, l->problem);
}
