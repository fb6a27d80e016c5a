/* Which kernels multiply with weights of a format, in words. */
#ifndef KAKEYA_BACKEND_PRODUCTS_H
#define KAKEYA_BACKEND_PRODUCTS_H

#include "model/weight_format.h"

/* On this CPU, at precision int8 where the format has such products: "int8, vnni, tiles", "f32, avx512". Returns out.
 */
const char *backend_cpu_products(weight_format format, char *out, size_t n);

#endif
