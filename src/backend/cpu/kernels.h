/* The kernel tables (kernels_table.h) that this CPU can run. */
#ifndef KAKEYA_BACKEND_CPU_KERNELS_H
#define KAKEYA_BACKEND_CPU_KERNELS_H

#include "backend/cpu/kernels_table.h"
#include "base/error.h"

/* The named table, or the best one this CPU runs when name is NULL. NULL if unknown or not supported here. */
const cpu_kernels *cpu_kernels_find(const char *name);
/* The same, or KAKEYA_UNSUPPORTED with its name. */
kakeya_status cpu_kernels_choose(const char *name, const cpu_kernels **out, kakeya_error *error);
cpu_input cpu_input_of(kakeya_precision precision);
/* Names of the tables that this CPU can run, best first, NULL-terminated. */
const char *const *cpu_kernels_supported(void);
/* Names of all tables of this build, in the same form. */
const char *const *cpu_kernels_compiled(void);

#endif
