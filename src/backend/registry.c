#include "backend/registry.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/entry.h"
#include "base/platform.h"

extern const backend_entry cpu_entry;
#ifdef KAKEYA_HAVE_CUDA
extern const backend_entry cuda_entry;
#define CUDA_ENTRY &cuda_entry
#else
#define CUDA_ENTRY NULL
#endif
#ifdef KAKEYA_HAVE_MLX
extern const backend_entry mlx_entry;
#define MLX_ENTRY &mlx_entry
#else
#define MLX_ENTRY NULL
#endif

enum { PATH_BYTES = 1024, WHY_BYTES = BACKEND_ABOUT };

typedef struct backend_kind {
    const char *name;
    const backend_entry *built_in;
    const backend_entry *entry; /* the same, or the plugin's; NULL: not in this process */
    char plugin[PATH_BYTES];    /* "" or the file of the plugin */
    char why[WHY_BYTES];        /* entry NULL: the reason */
    bool refused;               /* a plugin was found, and is not used */
} backend_kind;

/* As `auto` prefers them. */
static backend_kind kinds[BACKEND_KINDS] = {
    {.name = "cuda", .built_in = CUDA_ENTRY},
    {.name = "mlx", .built_in = MLX_ENTRY},
    {.name = "cpu", .built_in = &cpu_entry},
};
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

/* The folder of the program or the library that this code is in; "" where that cannot be found out. */
static void own_folder(char folder[PATH_BYTES]) {
    char path[PATH_MAX];
    Dl_info about;
    *folder = '\0';
    /* Of a program the dynamic linker knows what it was called as, which may be no path. */
    if (!dladdr((const void *)kinds, &about) || !about.dli_fname || !strchr(about.dli_fname, '/') ||
        !realpath(about.dli_fname, path)) {
        if (!platform_program(path, sizeof path)) return;
    }
    char *slash = strrchr(path, '/');
    if (!slash || slash - path >= PATH_BYTES) return;
    *slash = '\0';
    snprintf(folder, PATH_BYTES, "%.*s", PATH_BYTES - 1, path);
}

/* The folders that are searched, between colons. */
static void search_path(char *out, size_t bytes) {
    char folder[PATH_BYTES];
    const char *given = getenv("KAKEYA_PLUGINS");
    *out = '\0';
    if (given) {
        snprintf(out, bytes, "%s", given);
        return;
    }
    own_folder(folder);
    const char *library = KAKEYA_LIBRARY_FOLDER; /* in the prefix, or an absolute path */
    const bool absolute = *library == '/';
    if (*folder)
        snprintf(out, bytes, "%s:%s/kakeya:%s%s%s/kakeya", folder, folder, absolute ? "" : folder,
                 absolute ? "" : "/../", library);
}

static void refuse(backend_kind *kind, const char *file, const char *reason) {
    kind->refused = true;
    snprintf(kind->why, sizeof kind->why, "%.300s %.300s", file, reason);
}

static void load_plugin(backend_kind *kind, const char *file) {
    char reason[WHY_BYTES];
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *message = dlerror();
        snprintf(reason, sizeof reason, "cannot be loaded: %s", message ? message : "no reason is given");
        refuse(kind, file, reason);
        return;
    }
    const backend_entry *entry = dlsym(library, BACKEND_PLUGIN_SYMBOL);
    if (!entry) {
        refuse(kind, file, "is no plugin of kakeya: it exports no " BACKEND_PLUGIN_SYMBOL);
    } else if (strncmp(entry->interface, KAKEYA_INTERFACE, BACKEND_INTERFACE_BYTES) != 0) {
        snprintf(reason, sizeof reason, "is of another build: its interface is %.*s, this one's %s",
                 BACKEND_INTERFACE_BYTES, entry->interface, KAKEYA_INTERFACE);
        refuse(kind, file, reason);
    } else if (strcmp(entry->name, kind->name) != 0) {
        snprintf(reason, sizeof reason, "is the plugin of backend %s", entry->name);
        refuse(kind, file, reason);
    } else {
        kind->entry = entry;
        return;
    }
    dlclose(library);
}

static void find_plugin(backend_kind *kind, const char *folders) {
    char file[PATH_BYTES];
    for (const char *at = folders; *at;) {
        size_t length = strcspn(at, ":");
        if (length > 0 && length < PATH_BYTES - 64) {
            snprintf(file, sizeof file, "%.*s/libkakeya-%s.so", (int)length, at, kind->name);
            if (access(file, F_OK) == 0) {
                snprintf(kind->plugin, sizeof kind->plugin, "%s", file);
                load_plugin(kind, file);
                return;
            }
        }
        at += length + (at[length] == ':');
    }
    snprintf(kind->why, sizeof kind->why, "not in this build, and there is no libkakeya-%s.so in %.500s", kind->name,
             *folders ? folders : "$KAKEYA_PLUGINS, which is empty");
}

static void load(void) {
    char folders[4 * PATH_BYTES];
    search_path(folders, sizeof folders);
    for (backend_kind *kind = kinds; kind < kinds + BACKEND_KINDS; kind++) {
        kind->entry = kind->built_in;
        if (!kind->entry) find_plugin(kind, folders);
    }
}

static backend_kind *kind_of(const char *name) {
    pthread_once(&loaded, load);
    for (backend_kind *kind = kinds; kind < kinds + BACKEND_KINDS; kind++) {
        if (strcmp(kind->name, name) == 0) return kind;
    }
    return NULL;
}

static backend_kind *automatic_kind(void) {
    backend_kind *kind = kinds;
    pthread_once(&loaded, load);
    /* The CPU, which is last, is always there. */
    while (!kind->entry || !kind->entry->present(NULL, 0)) kind++;
    return kind;
}

const backend_ops *backend_find(const char *name, kakeya_error *error) {
    char available[64] = "cpu";
    if (!name || strcmp(name, "auto") == 0) return automatic_kind()->entry->ops();
    const backend_kind *kind = kind_of(name);
    if (kind && kind->entry) return kind->entry->ops();
    for (size_t i = 0; i < BACKEND_KINDS - 1; i++) {
        if (!kinds[i].entry) continue;
        size_t used = strlen(available);
        snprintf(available + used, sizeof available - used, ", %s", kinds[i].name);
    }
    if (kind)
        error_set(error, KAKEYA_UNSUPPORTED, "backend %s: %s (available: %s)", name, kind->why, available);
    else
        error_set(error, KAKEYA_UNSUPPORTED, "backend '%s' is unknown (available: %s)", name, available);
    return NULL;
}

const backend_measure_ops *backend_measure_find(const backend_ops *ops) {
    const backend_kind *kind = kind_of(ops->name);
    return kind && kind->entry ? kind->entry->measure() : NULL;
}

const backend_train_ops *backend_train_find(const backend_ops *ops) {
    const backend_kind *kind = kind_of(ops->name);
    return kind && kind->entry ? kind->entry->train() : NULL;
}

void backend_list(backend_listing out[BACKEND_KINDS]) {
    const backend_kind *automatic = automatic_kind();
    for (size_t i = 0; i < BACKEND_KINDS; i++) {
        const backend_kind *kind = &kinds[i];
        backend_listing *listing = &out[i];
        *listing = (backend_listing){.name = kind->name,
                                     .built_in = kind->built_in != NULL,
                                     .plugin = kind->entry && !kind->built_in ? kind->plugin : NULL,
                                     .automatic = kind == automatic};
        if (kind->entry)
            listing->usable = kind->entry->present(listing->about, sizeof listing->about);
        else
            snprintf(listing->about, sizeof listing->about, "%s", kind->why);
    }
}

const char *backend_refused_plugin(void) {
    pthread_once(&loaded, load);
    for (const backend_kind *kind = kinds; kind < kinds + BACKEND_KINDS; kind++) {
        if (kind->refused) return kind->why;
    }
    return NULL;
}
