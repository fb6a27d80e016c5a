/* int8 products of every block format: how near one row comes to the read bandwidth, and what more rows cost.
 *
 *     bench_int8 [FORMAT [OUT IN]]       all formats without arguments; 16384 x 2816
 *
 * One thread, timed by its own processor time, which other programs on the machine disturb less. Every figure is the
 * median of REPETITIONS; the measurements take turns, so that a disturbance does not hit one of them alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/int8.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/tiles.h"

enum {
    GROUP = 64,
    REPETITIONS = 9,
    ROW_COUNTS = 8,
    MOST_ROWS = 128,
    PROBE_BYTES = 256 << 20,
    PROBE_ITERATIONS = 100000
};
/* As matrix.c cuts the work: pieces stay in the second cache. */
enum { PIECE_OUTPUTS = 192, PIECE_BYTES = 128 << 10, MANY_ROWS = 17 };
static const int row_counts[ROW_COUNTS] = {1, 2, 4, 8, 16, 32, 64, MOST_ROWS};

typedef struct figures {
    double read[REPETITIONS], rate[REPETITIONS], rows[ROW_COUNTS][REPETITIONS], untiled[REPETITIONS]; /* seconds */
} figures;

static double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x) {
    qsort(x, REPETITIONS, sizeof *x, compare_doubles);
    return x[REPETITIONS / 2];
}

static void *memory(size_t bytes) {
    void *p = aligned_alloc((size_t)2 << 20, (bytes + (2 << 20)) >> 21 << 21);
    if (!p) {
        fprintf(stderr, "out of memory: %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* Scales of an ordinary size in every format: the upper byte of a float16 near 1, an exponent near that of 1. */
static void fill(unsigned char *blocks, size_t bytes, const weight_stream *stream, weight_format format) {
    uint64_t seed = 1;
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        blocks[i] = (unsigned char)((seed >> 56) & 0xbf);
    }
    for (size_t b = 0; b < bytes; b += (size_t)stream->bytes) {
        if (format == WEIGHT_MXFP4) blocks[b] = 120;
        if (format == WEIGHT_NVFP4) memset(blocks + b, 0x38, 4);
    }
}

static double seconds_of(int8_multiply multiply, const void *packed, int rows, const weight *w, float *y) {
    double start = now_seconds();
    int piece = PIECE_OUTPUTS;
    if (rows < MANY_ROWS) piece = (PIECE_BYTES / (int)(weight_bytes(w) / (size_t)w->out) + 15) / 16 * 16;
    for (int o = 0; o < w->out; o += piece) {
        weight part = weight_rows(w, o, w->out - o < piece ? w->out - o : piece);
        multiply(packed, rows, &part, y + o, (size_t)w->out);
    }
    return now_seconds() - start;
}

static void measure(weight_format format, const void *probe, int out, int in) {
    const int8_kernels *kernels = int8_widest();
    const cpu_kernels *table = cpu_kernels_find(NULL);
    const weight_format_info *info = weight_format_find(format);
    weight in_rows = weight_matrix(format, NULL, out, in);
    if (weight_format_is_grouped(format)) in_rows.group = format == WEIGHT_INT8_SIGNED ? in : GROUP;
    void *streams[WEIGHT_STREAMS] = {NULL};
    for (int s = 0; s < info->streams; s++) {
        size_t n = weight_stream_bytes(&info->stream[s], out, in, in_rows.group);
        in_rows.stream[s] = streams[s] = memory(n);
        if (s == 0)
            fill(streams[s], n, &info->stream[s], format);
        else
            memset(streams[s], 0x3c, n); /* about 0.01 as bf16 and as float32 */
    }
    weight in_tiles = in_rows;
    const size_t row = weight_row_bytes(&in_rows, 0), tile_row = tiles_row_bytes(&in_rows),
                 bytes = tiles_bytes(&in_rows);
    unsigned char *tiles = memory(bytes);
    float *x = memory(MOST_ROWS * (size_t)in * sizeof *x), *y = memory(MOST_ROWS * (size_t)out * sizeof *y);
    void *packed = memory(MOST_ROWS * int8_row_bytes(in));
    memset(tiles, 0, bytes);
    for (size_t i = 0; i < MOST_ROWS * (size_t)in; i++) x[i] = (float)(i * 2654435761u % 1000) / 500 - 1;
    kernels->pack(x, (size_t)in, MOST_ROWS, in, packed);
    in_tiles.stream[0] = tiles;
    in_tiles.tiled = true;

    double start = now_seconds();
    for (int o = 0; o < out; o += 16)
        kernels->tile[format](&in_rows, o, out - o < 16 ? out - o : 16, tiles_shape(&in_rows), 0,
                              tiles_in_row(&in_rows), tiles + (size_t)(o / 16) * tile_row);
    double repacking = now_seconds() - start;
    static figures f;
    for (int i = 0; i < REPETITIONS; i++) {
        start = now_seconds();
        volatile float checksum = table->probe_read(probe, PROBE_BYTES);
        (void)checksum;
        f.read[i] = now_seconds() - start;
        start = now_seconds();
        double operations = kernels->probe(PROBE_ITERATIONS);
        f.rate[i] = operations / (now_seconds() - start);
        for (int r = 0; r < ROW_COUNTS; r++) {
            f.rows[r][i] = seconds_of(kernels->multiply[format], packed, row_counts[r], &in_tiles, y);
        }
        f.untiled[i] = seconds_of(kernels->multiply[format], packed, 1, &in_rows, y);
    }
    double bandwidth = PROBE_BYTES / median(f.read), one = median(f.rows[0]);
    printf("| %s | %.1f | %.2f | %.0f %% |", weight_format_name(format), (double)bytes / 1e6, 1e3 * one,
           100 * (double)bytes / one / bandwidth);
    for (int r = 1; r < ROW_COUNTS; r++) printf(" %.2f |", median(f.rows[r]) / one);
    double last = median(f.rows[ROW_COUNTS - 1]);
    double rate = 2.0 * MOST_ROWS * (double)out * (double)in / last;
    printf(" %.0f | %.0f %% | %.1f | %.2f |\n", 1e-9 * rate, 100 * rate / median(f.rate), median(f.untiled) / one,
           (double)row * (double)out / repacking / 1e9);
    fflush(stdout);
    for (int s = 0; s < WEIGHT_STREAMS; s++) free(streams[s]);
    free(tiles), free(x), free(y), free(packed);
}

int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : NULL;
    int out = argc > 3 ? atoi(argv[2]) : 16384, in = argc > 3 ? atoi(argv[3]) : 2816;
    void *probe = memory(PROBE_BYTES);
    memset(probe, 1, PROBE_BYTES);
    printf("| format | MB | one row, ms | of read |");
    for (int r = 1; r < ROW_COUNTS; r++) printf(" %d rows |", row_counts[r]);
    printf(" GOP/s | of the rate | in rows | repacking, GB/s |\n");
    for (weight_format f = 0; f < WEIGHT_FORMAT_COUNT; f++) {
        if (!int8_scalar.multiply[f] || (only && strcmp(only, weight_format_name(f)) != 0)) continue;
        measure(f, probe, out, in);
    }
    free(probe);
    return 0;
}
