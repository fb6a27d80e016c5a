/* What training asks of this backend. */
#include <stdlib.h>

#include "backend/backend_train.h"
#include "backend/cpu/drafter_trainer.h"
#include "backend/cpu/matrix.h"
#include "backend/cpu/restoration_trainer.h"
#include "backend/cpu/train_products.h"
#include "backend/cpu/train_taps.h"

/* A product of the transposed matrices: k runs along the rows. */
static kakeya_status train_outer(backend_model *m, const float *a, int na, const float *b, size_t ldb, int nb, int rows,
                                 float *out, kakeya_error *error) {
    size_t floats = (size_t)(na + nb) * (size_t)rows;
    float *turned = mem_alloc(m->account, MEM_WORKSPACE, floats * sizeof *turned);
    if (!turned)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory: sums of products need %zu bytes",
                         floats * sizeof *turned);
    float *b_turned = turned + (size_t)na * (size_t)rows;
    const train_products products = {.m = m};
    train_turn_wide(&products, a, (size_t)na, rows, na, turned);
    train_turn_wide(&products, b, ldb, rows, nb, b_turned);
    weight w = {.format = WEIGHT_F32, .out = na, .in = rows};
    w.stream[0] = (const unsigned char *)turned;
    packed_rows packed = {0};
    kakeya_status status = packed_rows_create(m, &packed, nb, rows, packing_exact(m, &w), error);
    if (!status) {
        pack(m, &packed, b_turned, (size_t)rows, nb, rows, packing_exact(m, &w));
        matrix_job job = matrix_product(&packed, nb, &w, out, (size_t)na);
        job.exact_input = true;
        matrix_run(m, &job, 1);
    }
    packed_rows_destroy(&packed);
    mem_free(turned);
    return status;
}

static void train_weight_row(const backend_model *m, const weight *w, int row, float *out) {
    load_row(m, w, row, 0, w->in, out);
}

const backend_train_ops *cpu_train(void);

const backend_train_ops *cpu_train(void) {
    static const backend_train_ops ops = {.forward = tapped_forward,
                                          .outer = train_outer,
                                          .weight_row = train_weight_row,
                                          .restoration_trainer_bytes = cpu_restoration_trainer_bytes,
                                          .restoration_trainer_create = cpu_restoration_trainer_create,
                                          .restoration_trainer_destroy = cpu_restoration_trainer_destroy,
                                          .restoration_trainer_weights = cpu_restoration_trainer_weights,
                                          .restoration_trainer_teach = cpu_restoration_trainer_teach,
                                          .restoration_trainer_learn = cpu_restoration_trainer_learn,
                                          .trains_assistants = true,
                                          .drafter_trainer_bytes = cpu_drafter_trainer_bytes,
                                          .drafter_trainer_create = cpu_drafter_trainer_create,
                                          .drafter_trainer_destroy = cpu_drafter_trainer_destroy,
                                          .drafter_trainer_weights = cpu_drafter_trainer_weights,
                                          .drafter_trainer_learn = cpu_drafter_trainer_learn};
    return &ops;
}
