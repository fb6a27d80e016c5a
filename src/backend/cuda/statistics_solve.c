/* The closed form's matrix on a device: made from the sums, whitened by the factor of another one, and applied. Both
 * are n x n in float64. The factor's blocks on the diagonal are factorised and inverted on the host, the rest are
 * products. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/statistics.h"

enum {
    BLOCK = 128,
    DEEP = 512,    /* rows of y that make a product deep enough */
    TOGETHER = 64, /* rows of targets that are made at once ... */
    MOST = 4096,   /* ... and rows that the matrix is applied to */
};
static const char doing[] = "solving the closed form";

static size_t deepest_rows(const backend_statistics *s) {
    int most = 0;
    for (int i = 0; i < s->m->config->layers; i++) {
        if (s->m->config->layer[i].head_dim > most) most = s->m->config->layer[i].head_dim;
    }
    return (size_t)(DEEP + most);
}

/* Memory of all that follows, once. */
static kakeya_status prepare(backend_statistics *s, kakeya_error *error) {
    kakeya_status status = cuda_device_use(&s->m->device, error);
    if (status || s->solving.data) return status;
    size_t n = (size_t)s->o.inputs, blocks = (n + BLOCK - 1) / BLOCK, deep = deepest_rows(s),
           rows = n < MOST ? n : MOST, strip = (deep > BLOCK ? deep : BLOCK) * (n > deep ? n : deep),
           targets = TOGETHER * (size_t)s->o.targets, given = rows * n > deep * deep ? rows * n : deep * deep,
           made = targets > rows * n ? targets : rows * n;
    size_t doubles = 2 * n * n + blocks * BLOCK * BLOCK + strip + given + made;
    status = cuda_buffer_create(&s->solving, &s->m->device, s->m->account, MEM_WORKSPACE, doubles * sizeof(double),
                                doing, error);
    if (status) return status;
    s->matrix = s->solving.data;
    s->factor = s->matrix + n * n;
    s->inverse = s->factor + n * n;
    s->strip = s->inverse + blocks * BLOCK * BLOCK;
    s->given = s->strip + strip;
    s->made = s->given + given;
    return KAKEYA_OK;
}

static kakeya_status copy(backend_statistics *s, double *to, size_t ld_to, const double *from, size_t ld_from,
                          size_t columns, size_t rows, enum cudaMemcpyKind kind, kakeya_error *error) {
    return cuda_check(cudaMemcpy2DAsync(to, ld_to * sizeof *to, from, ld_from * sizeof *from, columns * sizeof *to,
                                        rows, kind, s->launch.stream),
                      doing, error);
}

/* matrix += scale * y' z of `rows` rows, its lower part. */
static void add_rows(backend_statistics *s, const double *y, int rows, double scale) {
    size_t n = (size_t)s->o.inputs;
    const dense_product p = {.a = y,
                             .b = s->strip,
                             .c = s->matrix,
                             .lda = n,
                             .ldb = n,
                             .ldc = n,
                             .m = s->o.inputs,
                             .n = s->o.inputs,
                             .k = rows,
                             .a_turned = 1,
                             .scale = scale,
                             .lower = 1};
    if (rows) cuda_dense_product(&s->launch, &p);
}

kakeya_status cuda_statistics_seen(backend_statistics *s, int first, int count, const double *metric, double scale,
                                   kakeya_error *error) {
    const model_config *c = s->m->config;
    kakeya_status status = prepare(s, error);
    if (status) return status;
    size_t n = (size_t)s->o.inputs, deepest = deepest_rows(s), rows = 0;
    const double *y = s->sums + s->o.yx + (size_t)first * n, *slab = y;
    int halves = count == s->o.targets ? 2 : 1;
    status = cuda_check(cudaMemsetAsync(s->matrix, 0, n * n * sizeof *s->matrix, s->launch.stream), doing, error);
    for (int item = 0; item < halves * c->layers && !status; item++) {
        const layer_config *l = &c->layer[item % c->layers];
        size_t d = (size_t)l->head_dim;
        if (s->target[item % c->layers] < 0) continue;
        for (int h = 0; h < l->kv_heads && !status; h++, metric += d * d, y += d * n, rows += d) {
            if (rows + d > deepest) {
                add_rows(s, slab, (int)rows, scale);
                slab = y;
                rows = 0;
            }
            status = copy(s, s->given, d, metric, d, d, d, cudaMemcpyHostToDevice, error);
            const dense_product p = {.a = s->given,
                                     .b = y,
                                     .c = s->strip + rows * n,
                                     .lda = d,
                                     .ldb = n,
                                     .ldc = n,
                                     .m = (int)d,
                                     .n = s->o.inputs,
                                     .k = (int)d,
                                     .scale = 1,
                                     .set = 1};
            cuda_dense_product(&s->launch, &p);
        }
    }
    add_rows(s, slab, (int)rows, scale);
    cuda_dense_mirror(&s->launch, s->matrix, s->o.inputs, 0);
    return status ? status : cuda_finish(&s->m->device, doing, error);
}

/* A block of the diagonal becomes its factor, inverse [size][BLOCK] that one's inverse. */
static bool factorise(double *a, int size, double *inverse) {
    for (int i = 0; i < size; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = a[i * BLOCK + j];
            for (int k = 0; k < j; k++) sum -= a[i * BLOCK + k] * a[j * BLOCK + k];
            if (i == j && !(sum > 0)) return false;
            a[i * BLOCK + j] = i == j ? sqrt(sum) : sum / a[j * BLOCK + j];
        }
        for (int j = i + 1; j < size; j++) a[i * BLOCK + j] = 0;
    }
    memset(inverse, 0, BLOCK * BLOCK * sizeof *inverse);
    for (int j = 0; j < size; j++) {
        for (int i = j; i < size; i++) {
            double sum = i == j;
            for (int k = j; k < i; k++) sum -= a[i * BLOCK + k] * inverse[k * BLOCK + j];
            inverse[i * BLOCK + j] = sum / a[i * BLOCK + i];
        }
    }
    return true;
}

/* Columns [begin, end) of `rows` rows of x: what earlier columns have of them is taken away, ... */
static void take_away(backend_statistics *s, double *x, size_t rows, size_t begin, size_t end) {
    size_t n = (size_t)s->o.inputs;
    const dense_product p = {.a = x,
                             .b = s->factor + begin * n,
                             .c = x + begin,
                             .lda = n,
                             .ldb = n,
                             .ldc = n,
                             .m = (int)rows,
                             .n = (int)(end - begin),
                             .k = (int)begin,
                             .b_turned = 1,
                             .scale = -1};
    if (begin) cuda_dense_product(&s->launch, &p);
}

/* ... and the rest meets the block on the diagonal. */
static kakeya_status meet_block(backend_statistics *s, double *x, size_t rows, size_t begin, size_t end,
                                kakeya_error *error) {
    size_t n = (size_t)s->o.inputs;
    const dense_product p = {.a = x + begin,
                             .b = s->inverse + begin * BLOCK,
                             .c = s->strip,
                             .lda = n,
                             .ldb = BLOCK,
                             .ldc = BLOCK,
                             .m = (int)rows,
                             .n = (int)(end - begin),
                             .k = (int)(end - begin),
                             .b_turned = 1,
                             .scale = 1,
                             .set = 1};
    if (!rows) return KAKEYA_OK;
    cuda_dense_product(&s->launch, &p);
    return copy(s, x + begin, n, s->strip, BLOCK, end - begin, rows, cudaMemcpyDeviceToDevice, error);
}

static kakeya_status factor_block(backend_statistics *s, size_t begin, size_t end, double *host, kakeya_error *error) {
    size_t n = (size_t)s->o.inputs, size = end - begin;
    double *at = s->factor + begin * n + begin;
    kakeya_status status = copy(s, host, BLOCK, at, n, size, size, cudaMemcpyDeviceToHost, error);
    if (!status) status = cuda_finish(&s->m->device, doing, error);
    if (!status && !factorise(host, (int)size, host + BLOCK * BLOCK))
        return error_set(error, KAKEYA_FORMAT, "the closed form has no solution: its sums are not finite");
    if (!status) status = copy(s, at, n, host, BLOCK, size, size, cudaMemcpyHostToDevice, error);
    if (!status)
        status = copy(s, s->inverse + begin * BLOCK, BLOCK, host + BLOCK * BLOCK, BLOCK, BLOCK, size,
                      cudaMemcpyHostToDevice, error);
    return status ? status : cuda_finish(&s->m->device, doing, error);
}

kakeya_status cuda_statistics_whiten(backend_statistics *s, double *c, kakeya_error *error) {
    size_t n = (size_t)s->o.inputs;
    kakeya_status status = prepare(s, error);
    double *host = malloc(2 * BLOCK * BLOCK * sizeof *host);
    if (!status && !host) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: the closed form");
    if (!status) status = copy(s, s->factor, n, c, n, n, n, cudaMemcpyHostToDevice, error);
    for (size_t begin = 0; begin < n && !status; begin += BLOCK) {
        size_t end = begin + BLOCK < n ? begin + BLOCK : n;
        take_away(s, s->factor + begin * n, n - begin, begin, end);
        status = factor_block(s, begin, end, host, error);
        if (!status) status = meet_block(s, s->factor + end * n, n - end, begin, end, error);
    }
    for (int side = 0; side < 2 && !status; side++) {
        if (side) cuda_dense_mirror(&s->launch, s->matrix, s->o.inputs, 1);
        for (size_t begin = 0; begin < n && !status; begin += BLOCK) {
            size_t end = begin + BLOCK < n ? begin + BLOCK : n;
            take_away(s, s->matrix, n, begin, end);
            status = meet_block(s, s->matrix, n, begin, end, error);
        }
    }
    if (!status) status = copy(s, c, n, s->factor, n, n, n, cudaMemcpyDeviceToHost, error);
    if (!status) status = cuda_finish(&s->m->device, doing, error);
    for (size_t i = 0; i < n && !status; i++) memset(c + i * n + i + 1, 0, (n - i - 1) * sizeof *c);
    free(host);
    return status;
}

/* out [rows][columns] = x times b, or times b'. */
static kakeya_status multiply(backend_statistics *s, const double *x, int rows, const double *b, bool turned,
                              int columns, double *out, kakeya_error *error) {
    size_t n = (size_t)s->o.inputs, wide = (size_t)columns;
    kakeya_status status = copy(s, s->given, n, x, n, n, (size_t)rows, cudaMemcpyHostToDevice, error);
    const dense_product p = {.a = s->given,
                             .b = b,
                             .c = s->made,
                             .lda = n,
                             .ldb = n,
                             .ldc = wide,
                             .m = rows,
                             .n = columns,
                             .k = s->o.inputs,
                             .b_turned = turned,
                             .scale = 1,
                             .set = 1};
    if (!status) cuda_dense_product(&s->launch, &p);
    if (!status) status = copy(s, out, wide, s->made, wide, wide, (size_t)rows, cudaMemcpyDeviceToHost, error);
    return status ? status : cuda_finish(&s->m->device, doing, error);
}

kakeya_status cuda_statistics_apply(backend_statistics *s, const double *x, int rows, double *out,
                                    kakeya_error *error) {
    size_t n = (size_t)s->o.inputs;
    kakeya_status status = prepare(s, error);
    for (int at = 0, some; at < rows && !status; at += some) {
        some = rows - at < MOST ? rows - at : MOST;
        status = multiply(s, x + (size_t)at * n, some, s->matrix, false, s->o.inputs, out + (size_t)at * n, error);
    }
    return status;
}

kakeya_status cuda_statistics_targets(backend_statistics *s, int first, int count, const double *x, int rows, double *y,
                                      kakeya_error *error) {
    size_t n = (size_t)s->o.inputs;
    const double *yx = s->sums + s->o.yx + (size_t)first * n;
    kakeya_status status = prepare(s, error);
    for (int at = 0, some; at < rows && !status; at += some) {
        some = rows - at < TOGETHER ? rows - at : TOGETHER;
        status = multiply(s, x + (size_t)at * n, some, yx, true, count, y + (size_t)at * (size_t)count, error);
    }
    return status;
}
