/* How a backend shows itself to the rest of the library: one entry, which is linked in or is what a plugin exports.
 * Nothing else of a backend is known by name outside of its folder. */
#ifndef KAKEYA_BACKEND_ENTRY_H
#define KAKEYA_BACKEND_ENTRY_H

#include <kakeya_interface.h> /* made by CMake: KAKEYA_INTERFACE names the version and all headers a plugin shares */

#include "backend/backend.h"
#include "backend/backend_train.h"
#include "backend/measure.h"

enum { BACKEND_INTERFACE_BYTES = 64 };

typedef struct backend_entry {
    char interface[BACKEND_INTERFACE_BYTES]; /* KAKEYA_INTERFACE as the backend was compiled with; always first */
    const char *name;                        /* as ops()->name */
    /* Whether `auto` may take it. Unless about is NULL, writes what it would compute on, or why it cannot. Quiet. */
    bool (*present)(char *about, size_t bytes);
    const backend_ops *(*ops)(void);
    const backend_measure_ops *(*measure)(void);
    const backend_train_ops *(*train)(void);
} backend_entry;

/* What libkakeya-NAME.so exports, of type backend_entry. */
#define BACKEND_PLUGIN_SYMBOL "kakeya_backend_plugin"

/* Begins the definition of a backend's entry, by its name in a program, or as what a plugin exports. */
#ifdef KAKEYA_PLUGIN
#define BACKEND_ENTRY(linked)                                                                                          \
    extern const backend_entry kakeya_backend_plugin;                                                                  \
    __attribute__((visibility("default"))) const backend_entry kakeya_backend_plugin
#else
#define BACKEND_ENTRY(linked)                                                                                          \
    extern const backend_entry linked;                                                                                 \
    const backend_entry linked
#endif

#endif
