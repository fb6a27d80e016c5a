/* The CPU backend as the registry sees it. */
#include <stdio.h>
#include <string.h>

#include "backend/cpu/int8.h"
#include "backend/cpu/kernels.h"
#include "backend/entry.h"

const backend_ops *cpu_backend(void);
const backend_measure_ops *cpu_measure(void);
const backend_train_ops *cpu_train(void);

static void add(char *text, size_t bytes, const char *word, const char *before) {
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", before, word);
}

static bool present(char *about, size_t bytes) {
    if (!about) return true;
    const cpu_kernels *best = cpu_kernels_find(NULL);
    snprintf(about, bytes, "kernels %s, int8 products %s; runs", best->name, int8_name(int8_of(best)));
    for (const char *const *name = cpu_kernels_supported(); *name; name++)
        add(about, bytes, *name, name == cpu_kernels_supported() ? " " : ", ");
    add(about, bytes, "compiled", "; ");
    for (const char *const *name = cpu_kernels_compiled(); *name; name++)
        add(about, bytes, *name, name == cpu_kernels_compiled() ? " " : ", ");
    return true;
}

BACKEND_ENTRY(cpu_entry) = {
    .interface = KAKEYA_INTERFACE,
    .name = "cpu",
    .present = present,
    .ops = cpu_backend,
    .measure = cpu_measure,
    .train = cpu_train,
};
