#include "train/products.h"

#include <string.h>

/* A tile of c, and how deep the panels are that it is made of: with those packed the innermost loops stay within what a
 * core has of its own, and fit on a thread's stack. */
enum { TILE = 128, DEPTH = 128, MOST_HEIGHT = 8, MOST_WIDTH = 16 };

/* out [height][width] = sum over k of a [k][height]' b [k][width]. */
typedef struct tile_kernel {
    int height, width;
    void (*run)(const double *a, const double *b, int depth, double *out);
} tile_kernel;

#define DEFINE_KERNEL(name, attributes, bytes, rows, vectors)                                                          \
    attributes static void name##_tile(const double *a, const double *b, int depth, double *out) {                     \
        typedef double vector __attribute__((vector_size(bytes), aligned(8), may_alias));                              \
        enum { LANES = (bytes) / 8 };                                                                                  \
        vector sum[rows][vectors] = {{{0}}};                                                                           \
        for (int k = 0; k < depth; k++, a += (rows), b += (vectors)*LANES) {                                           \
            _Pragma("GCC unroll 8") for (int i = 0; i < (rows); i++) {                                                 \
                _Pragma("GCC unroll 8") for (int v = 0; v < (vectors); v++) sum[i][v] +=                               \
                    a[i] * *(const vector *)(b + v * LANES);                                                           \
            }                                                                                                          \
        }                                                                                                              \
        _Pragma("GCC unroll 8") for (int i = 0; i < (rows); i++) {                                                     \
            _Pragma("GCC unroll 8") for (int v = 0; v < (vectors); v++) *                                              \
                (vector *)(out + (i * (vectors) + v) * LANES) = sum[i][v];                                             \
        }                                                                                                              \
    }                                                                                                                  \
    static const tile_kernel name = {rows, (vectors) * (bytes) / 8, name##_tile};

#define NO_ATTRIBUTES
DEFINE_KERNEL(of_16_bytes, NO_ATTRIBUTES, 16, 4, 2)
#ifdef __x86_64__
DEFINE_KERNEL(of_32_bytes, __attribute__((target("avx2,fma"))), 32, 4, 2)
DEFINE_KERNEL(of_64_bytes, __attribute__((target("avx512f"))), 64, 8, 2)
#endif

static const tile_kernel *find_kernel(void) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f")) return &of_64_bytes;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &of_32_bytes;
#endif
    return &of_16_bytes;
}

/* Rows [first, first + n) of x, depth k from `from` on, in panels [k][height]; rows that are missing are zero. turned:
 * x lies as [k][rows]. */
static void pack(const double *x, size_t ld, bool turned, size_t first, int n, size_t from, int depth, int height,
                 double *out) {
    for (int p = 0; p < n; p += height, out += depth * height) {
        int rows = n - p < height ? n - p : height;
        if (rows < height) memset(out, 0, (size_t)(depth * height) * sizeof *out);
        if (turned) {
            const double *row = x + from * ld + first + (size_t)p;
            for (int k = 0; k < depth; k++, row += ld) memcpy(out + k * height, row, (size_t)rows * sizeof *out);
        } else {
            for (int i = 0; i < rows; i++) {
                const double *row = x + (first + (size_t)(p + i)) * ld + from;
                for (int k = 0; k < depth; k++) out[k * height + i] = row[k];
            }
        }
    }
}

typedef struct product_work {
    const products_job *job;
    const tile_kernel *kernel;
    size_t across; /* tiles of a row of them */
} product_work;

static void add_panels(const product_work *w, const double *a, const double *b, int rows, int columns, int depth,
                       double *c) {
    const products_job *job = w->job;
    int height = w->kernel->height, width = w->kernel->width;
    for (int j = 0; j < columns; j += width) {
        int wide = columns - j < width ? columns - j : width;
        for (int i = 0; i < rows; i += height) {
            double sum[MOST_HEIGHT * MOST_WIDTH];
            int high = rows - i < height ? rows - i : height;
            w->kernel->run(a + i * depth, b + j * depth, depth, sum);
            for (int y = 0; y < high; y++) {
                double *to = c + (size_t)(i + y) * job->ldc + j;
                const double *from = sum + y * width;
                for (int x = 0; x < wide; x++) to[x] += job->scale * from[x];
            }
        }
    }
}

static void run_tiles(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const product_work *w = context;
    const products_job *job = w->job;
    double a[TILE * DEPTH], b[TILE * DEPTH];
    for (size_t tile = begin; tile < end; tile++) {
        size_t row = tile / w->across * TILE, column = tile % w->across * TILE;
        int rows = (size_t)job->m - row < TILE ? (int)((size_t)job->m - row) : TILE,
            columns = (size_t)job->n - column < TILE ? (int)((size_t)job->n - column) : TILE;
        double *c = job->c + row * job->ldc + column;
        if (job->lower && column > row) continue;
        for (int i = 0; i < rows && job->set; i++) memset(c + (size_t)i * job->ldc, 0, (size_t)columns * sizeof *c);
        for (int k = 0; k < job->k; k += DEPTH) {
            int depth = job->k - k < DEPTH ? job->k - k : DEPTH;
            pack(job->a, job->lda, job->a_turned, row, rows, (size_t)k, depth, w->kernel->height, a);
            pack(job->b, job->ldb, !job->b_turned, column, columns, (size_t)k, depth, w->kernel->width, b);
            add_panels(w, a, b, rows, columns, depth, c);
        }
    }
}

void products_run(thread_pool *pool, const products_job *job) {
    if (job->m <= 0 || job->n <= 0) return;
    size_t down = ((size_t)job->m + TILE - 1) / TILE, across = ((size_t)job->n + TILE - 1) / TILE;
    product_work work = {job, find_kernel(), across};
    thread_pool_for(pool, down * across, 1, run_tiles, &work);
}
