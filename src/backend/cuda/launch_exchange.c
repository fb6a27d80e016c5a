#include "backend/cuda/launch_exchange.h"

#include "backend/cuda/tp_group.h"

void cuda_launch_exchange(cuda_pass *p, const step_op *op) {
    backend_model *m = p->model;
    cuda_workspace *s = &m->space;
    cuda_exchange e = m->exchange;
    e.turn = p->turns++;
    if (op->kind == STEP_EXCHANGE) {
        e.sum[0] = s->branch;
        if (op->index) {
            e.sum[1] = s->mixed;
            e.experts = s->experts_out;
        }
    }
    if (p->captured) {
        if (op->kind == STEP_MEET)
            cuda_exchange_meet(&m->launch, &e);
        else
            cuda_exchange_rows(&m->launch, &e, &s->route, p->rows);
        return;
    }
    if (op->kind == STEP_EXCHANGE) cuda_send_rows(&m->launch, &e, &s->route, p->rows);
    cuda_pass_note(p, cuda_tp_group_order(m, e.turn));
    if (op->kind == STEP_EXCHANGE) cuda_add_rows(&m->launch, &e, p->rows);
}
