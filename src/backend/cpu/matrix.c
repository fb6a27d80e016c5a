/* Batches of matrix products. All products of one stage of a layer (q, k, v; gate, up and every chosen expert; ...) are
 * one fork-join: their output rows are cut into pieces that threads take from a common counter. No output element is
 * ever split over k, so results do not depend on threads or pieces. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/matrix.h"

/* Weight bytes of one piece when few rows make a product memory-bound: large enough to stream, small enough to balance
 */
static const size_t piece_bytes_streaming = (size_t)128 << 10;
/* Outputs of one piece when many rows make it compute-bound: each piece reads all packed rows again. */
static const size_t piece_outputs_computing = 192;
/* Pieces are whole numbers of the kernels' output tiles (3, 4, 6, 8). */
enum { PIECE_ALIGN = 24, PIECE_ALIGN_SMALL = 8 };

/* An input_set has one bit per format, and another one per format whose input is rounded to bf16. */
enum { ROUNDED_INPUTS = 16 };

static dtype element_of(weight_format format) {
    return format == WEIGHT_F32 ? DTYPE_F32 : format == WEIGHT_F16 ? DTYPE_F16 : DTYPE_BF16;
}

input_set input_exact(const weight *w) { return 1u << w->format; }

input_set input_of(const backend_model *m, const weight *w) {
    return input_exact(w) << (m->round ? ROUNDED_INPUTS : 0);
}

size_t packed_row_bytes(const backend_model *m, const weight *w) {
    return m->kernels->pack_row_bytes(element_of(w->format), m->round, w->in);
}

void load_row(const backend_model *m, const weight *w, int row, int begin, int n, float *out) {
    dtype type = element_of(w->format);
    m->kernels->load(type, (const char *)weight_row(w, 0, row) + (size_t)begin * dtype_bytes(type), n, out);
}

void multiply_alone(const backend_model *m, const weight *w, const float *x, size_t ldx, int rows, void *packed,
                    float *y, size_t ldy) {
    dtype type = element_of(w->format);
    m->kernels->pack_rows(type, false, x, ldx, rows, w->in, packed);
    m->kernels->matmul(type, false, packed, rows, w->in, weight_row(w, 0, 0), (size_t)w->in, 0, w->out, y, ldy);
}

void multiply_packed(const backend_model *m, const weight *w, const packed_rows *input, int first, int rows, float *y,
                     size_t ldy) {
    const char *x = (const char *)input->data[w->format] + (size_t)first * packed_row_bytes(m, w);
    m->kernels->matmul(element_of(w->format), m->round, x, rows, w->in, weight_row(w, 0, 0), (size_t)w->in, 0, w->out,
                       y, ldy);
}

kakeya_status packed_rows_create(backend_model *m, packed_rows *p, int rows, int k, unsigned formats,
                                 kakeya_error *error) {
    memset(p, 0, sizeof *p);
    p->rows = rows;
    p->k = k;
    for (int t = 0; t < WEIGHT_FORMAT_COUNT; t++) {
        if (!(formats & (1u << t))) continue;
        size_t rounded = m->kernels->pack_row_bytes(element_of((weight_format)t), true, k);
        size_t exact = m->kernels->pack_row_bytes(element_of((weight_format)t), false, k);
        p->row_bytes[t] = rounded > exact ? rounded : exact;
        p->data[t] = mem_alloc(m->account, MEM_WORKSPACE, p->row_bytes[t] * (size_t)rows);
        if (!p->data[t]) {
            packed_rows_destroy(p);
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d packed rows of %d values", rows, k);
        }
    }
    return KAKEYA_OK;
}

void packed_rows_destroy(packed_rows *p) {
    for (int t = 0; t < WEIGHT_FORMAT_COUNT; t++) {
        mem_free(p->data[t]);
        p->data[t] = NULL;
    }
}

void rows_run(backend_model *m, int rows, int values, range_task task, void *context) {
    if ((size_t)rows * (size_t)values <= CPU_SERIAL_VALUES) {
        task(context, 0, (size_t)rows, 0);
        return;
    }
    int grain = rows / (4 * m->threads);
    if (grain < 1) grain = 1;
    if (grain > 16) grain = 16;
    thread_pool_for(m->pool, (size_t)rows, (size_t)grain, task, context);
}

typedef struct pack_context {
    backend_model *model;
    packed_rows *p;
    const float *x;
    size_t ldx;
    int k;
    input_set inputs;
} pack_context;

static void pack_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    pack_context *c = context;
    for (int t = 0; t < WEIGHT_FORMAT_COUNT; t++) {
        for (int round = 0; round < 2; round++) {
            if (!(c->inputs & (1u << t) << (round ? ROUNDED_INPUTS : 0))) continue;
            dtype type = element_of((weight_format)t);
            size_t bytes = c->model->kernels->pack_row_bytes(type, round, c->k);
            c->model->kernels->pack_rows(type, round, c->x + begin * c->ldx, c->ldx, (int)(end - begin), c->k,
                                         (char *)c->p->data[t] + begin * bytes);
        }
    }
}

void pack(backend_model *m, packed_rows *p, const float *x, size_t ldx, int rows, int k, input_set inputs) {
    pack_context context = {m, p, x, ldx, k, inputs};
    rows_run(m, rows, k, pack_range, &context);
}

matrix_job matrix_product(const packed_rows *input, int rows, const weight *w, float *y, size_t ldy) {
    return (matrix_job){.input = input, .rows = rows, .w = w, .o_end = w->out, .y = y, .ldy = ldy};
}

typedef struct batch_context {
    backend_model *model;
    matrix_job *jobs;
    int n_jobs;
} batch_context;

static void run_pieces(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    batch_context *b = context;
    const cpu_kernels *kernels = b->model->kernels;
    int low = 0, high = b->n_jobs - 1;
    while (low < high) { /* the last job whose first piece is <= begin */
        int middle = (low + high + 1) / 2;
        if (b->jobs[middle].first_piece <= begin)
            low = middle;
        else
            high = middle - 1;
    }
    int j = low;
    for (size_t piece = begin; piece < end; piece++) {
        while (j + 1 < b->n_jobs && b->jobs[j + 1].first_piece <= piece) j++;
        const matrix_job *job = &b->jobs[j];
        int o = job->o_begin + (int)(piece - job->first_piece) * job->piece;
        int o_end = o + job->piece < job->o_end ? o + job->piece : job->o_end;
        bool round = b->model->round && !job->exact_input;
        const weight *w = job->w;
        dtype type = element_of(w->format);
        size_t row_bytes = kernels->pack_row_bytes(type, round, w->in);
        const char *packed = (const char *)job->input->data[w->format] + (size_t)job->first_row * row_bytes;
        kernels->matmul(type, round, packed, job->rows, w->in, weight_row(w, 0, 0), (size_t)w->in, o, o_end,
                        job->y + (o - job->o_begin), job->ldy);
    }
}

void matrix_run(backend_model *m, matrix_job *jobs, int n_jobs) {
    size_t pieces = 0, weights = 0, products = 0;
    for (int j = 0; j < n_jobs; j++) {
        matrix_job *job = &jobs[j];
        size_t row_bytes = weight_row_bytes(job->w, 0);
        size_t piece =
            job->rows > BACKEND_MAX_DECODE_ROWS ? piece_outputs_computing : piece_bytes_streaming / row_bytes;
        if (piece == 0) piece = 1; /* a row alone is larger than a piece should be */
        size_t align = PIECE_ALIGN;
        int outputs = job->o_end - job->o_begin;
        size_t share = ((size_t)outputs + (size_t)m->threads - 1) / (size_t)m->threads;
        if (piece > share) {
            piece = share;
            align = PIECE_ALIGN_SMALL;
        }
        piece = (piece + align - 1) / align * align;
        job->piece = (int)piece;
        job->first_piece = pieces;
        pieces += ((size_t)outputs + piece - 1) / piece;
        weights += (size_t)outputs * (size_t)job->w->in;
        products += (size_t)job->rows * (size_t)outputs * (size_t)job->w->in;
    }
    batch_context context = {m, jobs, n_jobs};
    if (weights <= CPU_SERIAL_WEIGHTS && products <= CPU_SERIAL_PRODUCTS) {
        run_pieces(&context, 0, pieces, 0);
        return;
    }
    thread_pool_for(m->pool, pieces, 1, run_pieces, &context);
}
