/* How near the CPU kernels come to what this machine allows.
 *
 *     bench_kernels [table ...]        all tables of this CPU without arguments
 *     bench_kernels stored             only how long vectors of K/V take to be stored and loaded, all tables
 *
 * One thread is timed by its own processor time, which other programs on the machine disturb less; two by the clock.
 * Every figure is the median of REPETITIONS; the measurements of a table take turns, so that a disturbance of the
 * machine does not hit one of them alone. Percentages compare with the probes of the same table and thread count. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/kernels.h"
#include "base/threads.h"

enum {
    REPETITIONS = 7,
    MAX_THREADS = 2,
    STREAM_BYTES = 256 << 20, /* weights of the memory-bound cases: far beyond any last-level cache */
    STREAM_K = 2816,
    PREFILL_ROWS = 512,
    PIECE_OUTPUTS = 192, /* outputs of one thread's piece in the compute-bound cases */
    MAX_CASES = 64,
};

typedef struct shape {
    int k, outputs;
} shape;

static const shape prefill_shapes[] = {{2816, 4096}, {2816, 1408}, {704, 2816}, {256, 512}};
static const int row_counts[] = {1, 2, 3, 4, 6, 8, 12, 16};

typedef enum case_kind { CASE_READ, CASE_FLOPS, CASE_ROWS, CASE_PREFILL, CASE_ATTENTION } case_kind;

typedef struct bench_case {
    case_kind kind;
    bool round;
    int threads, rows;
    shape shape;
    double rates[REPETITIONS]; /* bytes or operations per second */
} bench_case;

typedef struct bench {
    const cpu_kernels *kernels;
    thread_pool *pools[MAX_THREADS + 1];
    unsigned char *weights; /* STREAM_BYTES, valid as bf16 and float32 */
    unsigned char *packed;
    float *x, *y;
    bench_case *current;
    double operations[MAX_THREADS];
    float checksums[MAX_THREADS];
} bench;

static double now_seconds(int threads) {
    struct timespec now;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(const double *values) {
    double sorted[REPETITIONS];
    memcpy(sorted, values, sizeof sorted);
    qsort(sorted, REPETITIONS, sizeof *sorted, compare_doubles);
    return sorted[REPETITIONS / 2];
}

/* --- what is measured ------------------------------------------------------------------------------------------- */

static void read_range(void *context, size_t begin, size_t end, int thread) {
    bench *b = context;
    b->checksums[thread] += b->kernels->probe_read(b->weights + begin, end - begin);
}

static void run_flops(void *context, int thread, int threads) {
    (void)threads;
    bench *b = context;
    size_t iterations = strcmp(b->kernels->name, "scalar") == 0 ? 200 * 1000 : 2000 * 1000;
    b->operations[thread] = b->kernels->probe_flops(b->current->round, iterations);
}

static const cpu_product *product_of(const bench *b, const bench_case *c) {
    return &b->kernels->weight[WEIGHT_BF16].product[c->round ? INPUT_BF16 : INPUT_EXACT];
}

static void multiply_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    bench *b = context;
    const bench_case *c = b->current;
    weight all = weight_matrix(WEIGHT_BF16, b->weights, c->shape.outputs, c->shape.k);
    weight piece = weight_rows(&all, (int)begin, (int)(end - begin));
    product_of(b, c)->multiply(b->packed, c->rows, &piece, b->y + begin, (size_t)c->shape.outputs);
}

/* One key/value head after another over a long context; the heads of a position lie side by side, as in a cache. */
enum { ATTEND_DIM = 256, ATTEND_HEADS = 8, ATTEND_STRIDE = ATTEND_DIM * ATTEND_HEADS, ATTEND_KEYS = 16384 };
static const size_t attend_blocks = (size_t)ATTEND_HEADS * ATTEND_KEYS / ATTENTION_BLOCK;

static void attend_range(void *context, size_t begin, size_t end, int thread) {
    bench *b = context;
    const bench_case *c = b->current;
    int lo[PREFILL_ROWS], hi[PREFILL_ROWS];
    float m[PREFILL_ROWS], l[PREFILL_ROWS];
    float *o = b->y + (size_t)thread * PREFILL_ROWS * ATTEND_DIM;
    for (int r = 0; r < c->rows; r++) {
        lo[r] = 0;
        hi[r] = ATTENTION_BLOCK;
        m[r] = 0;
        l[r] = 0;
    }
    for (size_t block = begin; block < end; block++) {
        size_t head = block / (ATTEND_KEYS / ATTENTION_BLOCK), position = block % (ATTEND_KEYS / ATTENTION_BLOCK);
        const unsigned char *k = b->weights + 2 * (position * ATTENTION_BLOCK * ATTEND_STRIDE + head * ATTEND_DIM);
        const unsigned char *v = k + 2 * (size_t)ATTEND_KEYS * ATTEND_STRIDE;
        b->kernels->attend_block(c->rows, lo, hi, b->packed, ATTEND_DIM, KV_FORMAT_BF16, k, 2 * ATTEND_STRIDE,
                                 ATTEND_DIM, KV_FORMAT_BF16, v, 2 * ATTEND_STRIDE, NULL, m, l, o, ATTEND_DIM);
    }
}

/* Operations or bytes per second. */
static double measure(bench *b, bench_case *c) {
    thread_pool *pool = b->pools[c->threads];
    b->current = c;
    double start = 0, work = 0;
    if (c->kind == CASE_ROWS || c->kind == CASE_PREFILL) {
        b->kernels->packing[product_of(b, c)->packing].pack(b->x, (size_t)c->shape.k, c->rows, c->shape.k, b->packed);
    } else if (c->kind == CASE_ATTENTION) {
        cpu_packing queries = b->kernels->kv[KV_FORMAT_BF16].queries;
        b->kernels->packing[queries].pack(b->x, ATTEND_DIM, c->rows, ATTEND_DIM, b->packed);
        memset(b->y, 0, (size_t)MAX_THREADS * PREFILL_ROWS * ATTEND_DIM * sizeof *b->y);
    }
    start = now_seconds(c->threads);
    switch (c->kind) {
    case CASE_READ:
        thread_pool_for(pool, STREAM_BYTES, 1 << 20, read_range, b);
        work = STREAM_BYTES;
        break;
    case CASE_FLOPS:
        thread_pool_run(pool, run_flops, b);
        for (int t = 0; t < c->threads; t++) work += b->operations[t];
        break;
    case CASE_ROWS:
        thread_pool_for(pool, (size_t)c->shape.outputs, 48, multiply_range, b);
        work = 2.0 * c->shape.k * c->shape.outputs; /* bytes */
        break;
    case CASE_PREFILL:
        thread_pool_for(pool, (size_t)c->shape.outputs, PIECE_OUTPUTS, multiply_range, b);
        work = 2.0 * c->rows * c->shape.k * c->shape.outputs;
        break;
    case CASE_ATTENTION: {
        size_t blocks = attend_blocks * 8 / (size_t)(c->rows + 7);
        thread_pool_for(pool, blocks, 64, attend_range, b);
        work = 4.0 * c->rows * ATTENTION_BLOCK * ATTEND_DIM * (double)blocks;
        break;
    }
    }
    return work / (now_seconds(c->threads) - start);
}

/* --- report ----------------------------------------------------------------------------------------------------- */

static const bench_case *find(const bench_case *cases, int n, case_kind kind, bool round, int threads, int rows) {
    for (int i = 0; i < n; i++) {
        const bench_case *c = &cases[i];
        if (c->kind == kind && c->round == round && c->threads == threads && c->rows == rows) return c;
    }
    return NULL;
}

static void print_case(const bench_case *cases, int n, const bench_case *c) {
    double rate = median(c->rates);
    double bandwidth = median(find(cases, n, CASE_READ, false, c->threads, 0)->rates);
    double peak =
        median(find(cases, n, CASE_FLOPS, c->kind == CASE_ATTENTION ? false : c->round, c->threads, 0)->rates);
    const char *precision = c->round ? "bf16" : "f32 ";
    printf("  %d thread%s ", c->threads, c->threads == 1 ? " " : "s");
    switch (c->kind) {
    case CASE_READ:
        printf("read                              %7.2f GB/s\n", rate * 1e-9);
        break;
    case CASE_FLOPS:
        printf("multiply-add peak, %s           %7.1f GFLOP/s\n", precision, rate * 1e-9);
        break;
    case CASE_ROWS: {
        double one = median(find(cases, n, CASE_ROWS, c->round, c->threads, 1)->rates);
        printf("%s %3d rows over %zu MiB of weights %6.2f GB/s  %3.0f %% of read, %3.0f %% of peak, %5.2f x the time "
               "of one row\n",
               precision, c->rows, (size_t)STREAM_BYTES >> 20, rate * 1e-9, 100 * rate / bandwidth,
               100 * rate * c->rows / peak, one / rate);
        break;
    }
    case CASE_PREFILL:
        printf("%s %3d rows %4d -> %4d           %7.1f GFLOP/s  %3.0f %% of peak\n", precision, c->rows, c->shape.k,
               c->shape.outputs, rate * 1e-9, 100 * rate / peak);
        break;
    case CASE_ATTENTION:
        printf("attention, %3d rows, dimension %d   %7.1f GFLOP/s  %3.0f %% of peak, %6.2f GB/s, %3.0f %% of read\n",
               c->rows, ATTEND_DIM, rate * 1e-9, 100 * rate / peak, rate / c->rows * 1e-9,
               100 * rate / c->rows / bandwidth);
        break;
    }
}

static int list_cases(const cpu_kernels *kernels, bench_case *cases) {
    int n = 0;
    bool scalar = strcmp(kernels->name, "scalar") == 0;
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        cases[n++] = (bench_case){.kind = CASE_READ, .threads = threads};
        for (int round = 0; round < 2; round++) {
            cases[n++] = (bench_case){.kind = CASE_FLOPS, .round = round, .threads = threads};
        }
        for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
            if (scalar && row_counts[i] > 2) continue;
            cases[n++] = (bench_case){.kind = CASE_ROWS,
                                      .round = true,
                                      .threads = threads,
                                      .rows = row_counts[i],
                                      .shape = {STREAM_K, STREAM_BYTES / 2 / STREAM_K}};
        }
        for (size_t i = 0; i < sizeof prefill_shapes / sizeof *prefill_shapes; i++) {
            if (scalar && i < 2) continue;
            cases[n++] = (bench_case){.kind = CASE_PREFILL,
                                      .round = true,
                                      .threads = threads,
                                      .rows = PREFILL_ROWS,
                                      .shape = prefill_shapes[i]};
        }
        static const int attention_rows[] = {2, 8, 16, 128};
        for (size_t i = 0; i < sizeof attention_rows / sizeof *attention_rows; i++) {
            cases[n++] = (bench_case){.kind = CASE_ATTENTION, .threads = threads, .rows = attention_rows[i]};
        }
    }
    return n;
}

static void run_table(bench *b, const cpu_kernels *kernels) {
    bench_case cases[MAX_CASES];
    b->kernels = kernels;
    int n = list_cases(kernels, cases);
    for (int repetition = 0; repetition < REPETITIONS; repetition++) {
        for (int i = 0; i < n; i++) cases[i].rates[repetition] = measure(b, &cases[i]);
    }
    printf("%s\n", kernels->name);
    for (int i = 0; i < n; i++) print_case(cases, n, &cases[i]);
    fflush(stdout);
}

/* Nanoseconds for each of a vector's values. */
static void print_stored(bench *b, const cpu_kernels *kernels) {
    enum { VALUES = 512, VECTORS = 256 };
    for (int i = 0; i < VALUES * VECTORS; i++) b->x[i] = (float)((unsigned)i * 2654435761u >> 8) * 0x1p-24f - 0.5f;
    for (kv_format format = 0; format < KV_FORMAT_COUNT; format++) {
        const cpu_kv_kernels *kv = &kernels->kv[format];
        const size_t bytes = kv_format_row_bytes(format, 1, VALUES);
        double store[REPETITIONS], load[REPETITIONS];
        for (int repetition = 0; repetition < REPETITIONS; repetition++) {
            double start = now_seconds(1);
            for (int i = 0; i < VECTORS; i++)
                kv->store(b->x + (size_t)i * VALUES, VALUES, b->packed + (size_t)i * bytes);
            double stored = now_seconds(1);
            for (int i = 0; i < VECTORS; i++) kv->load(b->packed + (size_t)i * bytes, VALUES, b->y);
            store[repetition] = stored - start;
            load[repetition] = now_seconds(1) - stored;
        }
        printf("  %-10s %-4s vectors of %d       %7.2f ns to store a value, %5.2f to load it\n", kernels->name,
               kv_format_name(format), VALUES, 1e9 * median(store) / (VALUES * VECTORS),
               1e9 * median(load) / (VALUES * VECTORS));
    }
}

/* --- set-up ----------------------------------------------------------------------------------------------------- */

static int set_up(bench *b) {
    int max_k = 0, max_outputs = 0;
    for (size_t i = 0; i < sizeof prefill_shapes / sizeof *prefill_shapes; i++) {
        if (prefill_shapes[i].k > max_k) max_k = prefill_shapes[i].k;
        if (prefill_shapes[i].outputs > max_outputs) max_outputs = prefill_shapes[i].outputs;
    }
    size_t y_floats = (size_t)PREFILL_ROWS * (size_t)max_outputs;
    size_t streamed = (size_t)row_counts[sizeof row_counts / sizeof *row_counts - 1] * (STREAM_BYTES / 2 / STREAM_K);
    if (y_floats < streamed) y_floats = streamed;
    size_t x_floats = (size_t)PREFILL_ROWS * (size_t)max_k;
    b->weights = aligned_alloc(4096, STREAM_BYTES);
    b->packed = aligned_alloc(4096, x_floats * sizeof(float));
    b->x = malloc(x_floats * sizeof *b->x);
    b->y = calloc(y_floats, sizeof *b->y);
    if (!b->weights || !b->packed || !b->x || !b->y) {
        fprintf(stderr, "bench_kernels: no memory\n");
        return 1;
    }
    for (size_t i = 0; i < x_floats; i++) b->x[i] = (float)((int)(i * 2654435761u >> 8 & 0xff) - 128) / 64.0f;
    for (size_t i = 0; i < STREAM_BYTES; i += 2) {
        uint16_t value = (uint16_t)(0x3c00u + (i * 40503u >> 4 & 0x80ffu)); /* about 1/128, either sign */
        memcpy(b->weights + i, &value, 2);
    }
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        kakeya_error error;
        if (thread_pool_create(threads, &b->pools[threads], &error)) {
            fprintf(stderr, "bench_kernels: %s\n", error.message);
            return 1;
        }
    }
    return 0;
}

static void tear_down(bench *b) {
    for (int threads = 1; threads <= MAX_THREADS; threads++) thread_pool_destroy(b->pools[threads]);
    free(b->weights);
    free(b->packed);
    free(b->x);
    free(b->y);
}

int main(int argc, char **argv) {
    bench b = {0};
    int failure = set_up(&b);
    if (!failure && argc > 1) {
        for (int i = 1; i < argc; i++) {
            const cpu_kernels *kernels = cpu_kernels_find(argv[i]);
            if (strcmp(argv[i], "stored") == 0) {
                for (const char *const *name = cpu_kernels_supported(); *name; name++)
                    print_stored(&b, cpu_kernels_find(*name));
            } else if (kernels) {
                run_table(&b, kernels);
            } else {
                fprintf(stderr, "bench_kernels: no table \"%s\" on this CPU\n", argv[i]);
                failure = 1;
            }
        }
    } else if (!failure) {
        for (const char *const *name = cpu_kernels_supported(); *name; name++) run_table(&b, cpu_kernels_find(*name));
    }
    tear_down(&b);
    return failure;
}
