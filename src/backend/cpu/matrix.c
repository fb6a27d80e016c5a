/* Batches of matrix products. All products of one stage of a layer (q, k, v; gate, up and every chosen expert; ...) are
 * one fork-join: their output rows are cut into pieces that threads take from a common counter. No output element is
 * ever split over k, so results do not depend on threads or pieces. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/int8.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/tiles.h"

/* Weight bytes of one piece when few rows make a product memory-bound: large enough to stream, small enough to balance
 */
static const size_t piece_bytes_streaming = (size_t)128 << 10;
/* As many neighbouring pieces go to one thread at a time: the first kilobytes of a piece that its thread has not walked
 * up to have been fetched by nobody. */
static const size_t run_pieces_streaming = 16;
/* Outputs of one piece when many rows make it compute-bound: each piece reads all packed rows again. */
static const size_t piece_outputs_computing = 192;
/* Pieces are whole numbers of the kernels' output tiles (3, 4, 6, 8), and of gemm's panels (16, 32). */
enum { PIECE_ALIGN = 24, PIECE_ALIGN_SMALL = 8, PIECE_ALIGN_GEMM = 32 };

static const cpu_product *product_of(const backend_model *m, const weight *w, bool exact) {
    exact |= m->input == INPUT_INT8 && weight_format_is_grouped(w->format) && !int8_takes(w);
    cpu_input input = exact ? INPUT_EXACT : m->input == INPUT_INT8 && w->fine_input ? INPUT_INT8_FINE : m->input;
    return &m->kernels->weight[w->format].product[input];
}

/* Synthetic matrices are not there yet when room for their input is made, but are of their size. */
packing_set packing_of(const backend_model *m, const weight *w) {
    return w->out > 0 ? 1u << product_of(m, w, false)->packing : 0;
}

packing_set packing_exact(const backend_model *m, const weight *w) {
    return w->out > 0 ? 1u << product_of(m, w, true)->packing : 0;
}

void load_row(const backend_model *m, const weight *w, int row, int begin, int n, float *out) {
    if (w->tiled)
        tiles_load(w, row, begin, n, out);
    else
        m->kernels->weight[w->format].load(w, row, begin, n, out);
}

size_t multiply_alone_bytes(const backend_model *m, const weight *w, int rows) {
    return m->kernels->packing[product_of(m, w, true)->packing].row_bytes(w->in) * (size_t)rows;
}

void multiply_alone(const backend_model *m, const weight *w, const float *x, size_t ldx, int rows, void *packed,
                    float *y, size_t ldy) {
    const cpu_product *product = product_of(m, w, true);
    m->kernels->packing[product->packing].pack(x, ldx, rows, w->in, packed);
    product->multiply(packed, rows, w, y, ldy);
}

/* Where row `row` lies in one packing, for rows of k values. */
static char *packed_row(const backend_model *m, const packed_rows *p, cpu_packing packing, int row, int k) {
    return (char *)p->data[packing] + (size_t)row * m->kernels->packing[packing].row_bytes(k);
}

void packed_row_copy(const backend_model *m, const weight *w, const packed_rows *source, int from, packed_rows *target,
                     int to) {
    cpu_packing packing = product_of(m, w, false)->packing;
    memcpy(packed_row(m, target, packing, to, w->in), packed_row(m, source, packing, from, w->in),
           m->kernels->packing[packing].row_bytes(w->in));
}

void multiply_packed(const backend_model *m, const weight *w, const packed_rows *input, int first, int rows, float *y,
                     size_t ldy) {
    const cpu_product *product = product_of(m, w, false);
    product->multiply(packed_row(m, input, product->packing, first, w->in), rows, w, y, ldy);
}

kakeya_status packed_rows_create(backend_model *m, packed_rows *p, int rows, int k, packing_set packings,
                                 kakeya_error *error) {
    memset(p, 0, sizeof *p);
    p->rows = rows;
    p->k = k;
    for (int i = 0; i < PACKING_COUNT; i++) {
        if (!(packings & (1u << i))) continue;
        p->data[i] = mem_alloc(m->account, MEM_WORKSPACE, m->kernels->packing[i].row_bytes(k) * (size_t)rows);
        if (!p->data[i]) {
            packed_rows_destroy(p);
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for %d packed rows of %d values", rows, k);
        }
    }
    return KAKEYA_OK;
}

void packed_rows_destroy(packed_rows *p) {
    for (int i = 0; i < PACKING_COUNT; i++) {
        mem_free(p->data[i]);
        p->data[i] = NULL;
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
    int first;
    const float *x;
    size_t ldx;
    int k;
    packing_set packings;
} pack_context;

static void pack_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    pack_context *c = context;
    for (int i = 0; i < PACKING_COUNT; i++) {
        if (!(c->packings & (1u << i))) continue;
        c->model->kernels->packing[i].pack(c->x + begin * c->ldx, c->ldx, (int)(end - begin), c->k,
                                           packed_row(c->model, c->p, (cpu_packing)i, c->first + (int)begin, c->k));
    }
}

void pack_at(backend_model *m, packed_rows *p, int first, const float *x, size_t ldx, int rows, int k,
             packing_set packings) {
    pack_context context = {m, p, first, x, ldx, k, packings};
    rows_run(m, rows, k, pack_range, &context);
}

void pack(backend_model *m, packed_rows *p, const float *x, size_t ldx, int rows, int k, packing_set packings) {
    pack_at(m, p, 0, x, ldx, rows, k, packings);
}

matrix_job matrix_product(const packed_rows *input, int rows, const weight *w, float *y, size_t ldy) {
    return (matrix_job){.input = input, .rows = rows, .w = w, .y = y, .ldy = ldy};
}

typedef struct gemm_context {
    const cpu_kernels *kernels;
    const float *x;
    size_t ldx;
    int rows, k;
    float *packed;
} gemm_context;

static void pack_groups(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const gemm_context *c = context;
    const int together = c->kernels->gemm_rows, first = (int)begin * together;
    const int rows = (int)end * together < c->rows ? (int)end * together - first : c->rows - first;
    c->kernels->gemm_pack(c->x + (size_t)first * c->ldx, c->ldx, rows, c->k,
                          c->packed + (size_t)first * gemm_row_floats(c->k));
}

void pack_gemm(backend_model *m, const float *x, size_t ldx, int rows, int k, float *packed) {
    gemm_context context = {m->kernels, x, ldx, rows, k, packed};
    const int together = m->kernels->gemm_rows;
    rows_run(m, (rows + together - 1) / together, together * k, pack_groups, &context);
}

matrix_job gemm_product(const float *packed, int rows, const weight *w, float *y, size_t ldy) {
    return (matrix_job){.gemm_input = packed, .rows = rows, .w = w, .y = y, .ldy = ldy};
}

typedef struct batch_context {
    backend_model *model;
    matrix_job *jobs;
    int n_jobs;
} batch_context;

static void run_pieces(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    batch_context *b = context;
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
        const weight *w = job->w;
        int o = (int)(piece - job->first_piece) * job->piece, left = w->out - o;
        weight outputs = weight_rows(w, o, left < job->piece ? left : job->piece);
        if (job->gemm_input) {
            const cpu_row_loader load = w->tiled ? tiles_load : b->model->kernels->weight[w->format].load;
            b->model->kernels->gemm(job->gemm_input, job->rows, &outputs, load, job->y + o, job->ldy);
            continue;
        }
        const cpu_product *product = product_of(b->model, w, job->exact_input);
        product->multiply(packed_row(b->model, job->input, product->packing, job->first_row, w->in), job->rows,
                          &outputs, job->y + o, job->ldy);
    }
}

void matrix_run(backend_model *m, matrix_job *jobs, int n_jobs) {
    size_t pieces = 0, weights = 0, products = 0;
    bool streaming = true;
    for (int j = 0; j < n_jobs; j++) {
        matrix_job *job = &jobs[j];
        size_t outputs = (size_t)job->w->out, row_bytes = weight_bytes(job->w) / outputs;
        const bool computes = job->gemm_input || job->rows > BACKEND_MAX_DECODE_ROWS;
        streaming &= !computes;
        size_t piece = computes ? piece_outputs_computing : piece_bytes_streaming / row_bytes;
        if (piece == 0) piece = 1; /* a row alone is larger than a piece should be */
        size_t align = job->gemm_input ? PIECE_ALIGN_GEMM : job->w->tiled ? TILE_OUTPUTS : PIECE_ALIGN;
        size_t share = (outputs + (size_t)m->threads - 1) / (size_t)m->threads;
        if (piece > share) {
            piece = share;
            if (!job->gemm_input && !job->w->tiled) align = PIECE_ALIGN_SMALL;
        }
        piece = (piece + align - 1) / align * align;
        job->piece = (int)piece;
        job->first_piece = pieces;
        pieces += (outputs + piece - 1) / piece;
        weights += outputs * (size_t)job->w->in;
        products += (size_t)job->rows * outputs * (size_t)job->w->in;
    }
    batch_context context = {m, jobs, n_jobs};
    if (weights <= CPU_SERIAL_WEIGHTS && products <= CPU_SERIAL_PRODUCTS) {
        run_pieces(&context, 0, pieces, 0);
        return;
    }
    thread_pool_for_runs(m->pool, pieces, streaming ? run_pieces_streaming : 1, run_pieces, &context);
}
