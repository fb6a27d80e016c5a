#include "serve/zmq_core.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"

zmq_core_functions zmq_core;

static struct {
    pthread_once_t once;
    bool loaded;
    char problem[256];
} load = {.once = PTHREAD_ONCE_INIT};

/* POSIX lets dlsym's pointers be used as functions; C has no cast for that. */
static bool find(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    if (!address) snprintf(load.problem, sizeof load.problem, "%s has no function %s", KAKEYA_ZMQ_LIBRARY, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static void load_once(void) {
    void *library = dlopen(KAKEYA_ZMQ_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        snprintf(load.problem, sizeof load.problem, "%s", why ? why : KAKEYA_ZMQ_LIBRARY);
        return;
    }
    load.loaded = true;
#define FIND(name) load.loaded = load.loaded && find(library, #name, &zmq_core.name);
    ZMQ_CORE_FUNCTIONS(FIND)
#undef FIND
}

kakeya_status zmq_core_load(kakeya_error *error) {
    pthread_once(&load.once, load_once);
    if (load.loaded) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED, "K/V events: libzmq does not load: %s", load.problem);
}
