/* A plugin for tests: the CPU backend under the name of the CUDA backend, which needs no device. With TEST_INTERFACE it
 * says that it was compiled with other headers. $KAKEYA_TEST_DEVICE: what its "device" is called; unset: there is none.
 */
#include <stdio.h>
#include <stdlib.h>

#include "backend/entry.h"

#ifndef TEST_INTERFACE
#define TEST_INTERFACE KAKEYA_INTERFACE
#endif

extern const backend_entry cpu_entry;

static bool present(char *about, size_t bytes) {
    const char *device = getenv("KAKEYA_TEST_DEVICE");
    if (about) snprintf(about, bytes, "%s", device ? device : "no device of tests is present");
    return device != NULL;
}

static const backend_ops *ops(void) {
    static backend_ops borrowed;
    borrowed = *cpu_entry.ops();
    borrowed.name = "cuda";
    return &borrowed;
}

static const backend_measure_ops *measure(void) { return cpu_entry.measure(); }
static const backend_train_ops *train(void) { return cpu_entry.train(); }

BACKEND_ENTRY(cuda_entry) = {
    .interface = TEST_INTERFACE,
    .name = "cuda",
    .present = present,
    .ops = ops,
    .measure = measure,
    .train = train,
};
