#include "backend/cpu/train_products.h"

#include "backend/cpu/matrix.h"

float *train_take(train_arena *a, size_t floats) {
    enum { ALIGN = 16 };
    float *at = a->base ? a->base + a->floats : NULL;
    a->floats += (floats + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

size_t train_packed_floats(const backend_model *m, size_t rows, size_t k) {
    size_t bytes = 0;
    for (int i = 0; i < PACKING_COUNT; i++) {
        const cpu_packing_kernels *p = &m->kernels->packing[i];
        if (p->row_bytes && p->row_bytes((int)k) > bytes) bytes = p->row_bytes((int)k);
    }
    return rows * bytes / sizeof(float);
}

void train_product(const train_products *p, const float *x, size_t ldx, int rows, const weight *w, float *y,
                   size_t ldy) {
    if (rows <= 0) return;
    packed_rows packed = {.rows = rows, .k = w->in};
    packing_set set = packing_exact(p->m, w);
    for (int i = 0; i < PACKING_COUNT; i++) {
        if (set & (1u << i)) packed.data[i] = p->packed;
    }
    pack(p->m, &packed, x, ldx, rows, w->in, set);
    matrix_job job = matrix_product(&packed, rows, w, y, ldy);
    job.exact_input = true;
    matrix_run(p->m, &job, 1);
}

typedef struct add_work {
    float *to;
    const float *from;
} add_work;

static void add_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const add_work *w = context;
    for (size_t i = begin; i < end; i++) w->to[i] += w->from[i];
}

void train_product_add(const train_products *p, const float *x, size_t ldx, int rows, const weight *w, float *y) {
    if (rows <= 0) return;
    train_product(p, x, ldx, rows, w, p->product, (size_t)w->out);
    add_work work = {y, p->product};
    thread_pool_for(p->m->pool, (size_t)rows * (size_t)w->out, 1 << 16, add_range, &work);
}

void train_turn(const float *x, size_t ldx, int rows, int n, float *out) {
    enum { BLOCK = 16 };
    for (int r0 = 0; r0 < rows; r0 += BLOCK) {
        int r1 = r0 + BLOCK < rows ? r0 + BLOCK : rows;
        for (int i = 0; i < n; i++) {
            for (int r = r0; r < r1; r++) out[(size_t)i * (size_t)rows + (size_t)r] = x[(size_t)r * ldx + (size_t)i];
        }
    }
}

typedef struct turn_work {
    const float *x;
    float *out;
    size_t ldx;
    int rows;
} turn_work;

static void turn_range(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const turn_work *w = context;
    train_turn(w->x + begin, w->ldx, w->rows, (int)(end - begin), w->out + begin * (size_t)w->rows);
}

void train_turn_wide(const train_products *p, const float *x, size_t ldx, int rows, int n, float *out) {
    turn_work work = {x, out, ldx, rows};
    thread_pool_for(p->m->pool, (size_t)n, 64, turn_range, &work);
}

/* A product of the transposed matrices: k runs along the rows. */
void train_outer_add(const train_products *p, const float *b, size_t ldb, int nb, const float *a, size_t lda, int na,
                     int rows, float *sum) {
    if (rows <= 0) return;
    float *a_turned = p->turned, *b_turned = a_turned + (size_t)na * (size_t)rows;
    train_turn_wide(p, a, lda, rows, na, a_turned);
    train_turn_wide(p, b, ldb, rows, nb, b_turned);
    weight w = weight_matrix(WEIGHT_F32, a_turned, na, rows);
    train_product_add(p, b_turned, (size_t)rows, nb, &w, sum);
}
