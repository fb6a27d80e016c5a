#include "backend/cpu/row_program.h"

#include <string.h>

#include "backend/cpu/experts.h"
#include "backend/cpu/matrix.h"

float *cpu_item(const backend_model *m, program_item item) {
    switch (item) {
    case DATA_H:
        return m->h;
    case DATA_X:
        return m->x;
    case DATA_Q:
    case DATA_ATTENDED:
        return m->q;
    case DATA_K:
        return m->k;
    case DATA_V:
        return m->v;
    case DATA_BRANCH:
    case DATA_X_ROUTER: /* between what attention adds and what the feed-forward block will */
    case DATA_NORMED:
        return m->branch;
    case DATA_X_EXPERTS:
        return m->x_experts;
    case DATA_ROUTER:
        return m->router_logits;
    case DATA_ACT:
        return m->gate_up;
    case DATA_ACT_EXPERTS:
        return m->expert_gate_up;
    case DATA_EXPERTS_OUT:
        return m->expert_out;
    case DATA_PLE:
        return m->ple;
    case DATA_PLE_GATE:
        return m->ple_gate;
    default:
        return NULL;
    }
}

/* A step with its operands found. */
typedef struct bound_step {
    row_verb verb;
    int into, from, part; /* part: -1: the one that the program is run for */
    float *item;
    size_t stride, part_stride;
    const float *values;
    const weight *table;
    float scalar;
} bound_step;

typedef struct row_job {
    backend_model *m;
    const row_place *place;
    const program_op *o;
    const int32_t *tokens;
    bound_step step[ROW_MAX_STEPS];
} row_job;

static void bind_step(const backend_model *m, const row_place *place, const program_op *o, const row_step *s,
                      bound_step *b) {
    b->verb = (row_verb)s->verb;
    b->into = s->into;
    b->from = s->from;
    b->part = s->part == ROW_OWN_PART || o->parts > 1 ? -1 : s->part;
    b->scalar = s->scalar;
    b->values = NULL;
    b->item = NULL;
    if (s->verb == ROW_LOOKUP)
        b->table = program_matrix(place->weights, s->slot);
    else if (s->slot)
        b->values = program_vector(place->weights, s->slot);
    if (s->verb == ROW_SCALE && b->values) b->scalar = *b->values;
    if (s->item == DATA_NONE || s->verb == ROW_MIX) return;
    bool parted = s->item == DATA_PLE;
    b->item = place->item(m, (program_item)s->item);
    b->part_stride = parted ? (size_t)o->width : 0;
    b->stride = (size_t)o->width * (parted ? (size_t)m->config->layers : 1);
}

/* Where the result goes: to its item; else it stays where the register is. A register that is nowhere is a row of the
 * thread's scratch; no program has two of them at a time. */
static float *place_of(const bound_step *s, size_t row, size_t part, float *in_register, float *scratch) {
    if (s->item) return s->item + row * s->stride + (s->part < 0 ? part : (size_t)s->part) * s->part_stride;
    return in_register ? in_register : scratch;
}

static void run_row(const row_job *job, size_t row, size_t part, float *scratch) {
    backend_model *m = job->m;
    const cpu_kernels *kernels = m->kernels;
    int width = job->o->width;
    float *reg[ROW_REGISTERS] = {NULL};
    for (int i = 0; i < job->o->steps; i++) {
        const bound_step *s = &job->step[i];
        float *into = reg[s->into], *from = reg[s->from], *to = place_of(s, row, part, into, scratch);
        switch (s->verb) {
        case ROW_LOAD:
            break;
        case ROW_LOOKUP:
            load_row(m, s->table, job->tokens[row], (int)part * width, width, to);
            break;
        case ROW_MIX:
            experts_mix(m, row, to);
            break;
        case ROW_NORM:
            kernels->rms_norm(from, s->values, width, job->place->rms_eps, to);
            break;
        case ROW_GATED:
            kernels->gated(0, into, from, width, to);
            break;
        default:
            if (to != into) memcpy(to, into, (size_t)width * sizeof *to);
            if (s->verb == ROW_ADD) kernels->axpy(1.0f, from, width, to);
            if (s->verb == ROW_SCALE) kernels->scale(s->scalar, width, to);
            if (s->verb == ROW_MULTIPLY) kernels->multiply(s->values, width, to);
        }
        reg[s->into] = to;
    }
}

static void run_rows(void *context, size_t begin, size_t end, int thread) {
    const row_job *job = context;
    for (size_t row = begin; row < end; row++) {
        for (size_t part = 0; part < (size_t)job->o->parts; part++)
            run_row(job, row, part, job->m->scratch[thread].row);
    }
}

void row_program_run(backend_model *m, const row_place *place, const program_op *o, const int32_t *tokens, int rows) {
    row_job job;
    job.m = m;
    job.place = place;
    job.o = o;
    job.tokens = tokens;
    int values = 0;
    for (int i = 0; i < o->steps; i++) {
        bind_step(m, place, o, &o->step[i], &job.step[i]);
        if (o->step[i].verb == ROW_LOAD || o->step[i].item) values += o->width;
        if (o->step[i].verb == ROW_MIX) values += m->config->experts_per_token * o->width;
    }
    if (rows == 1)
        run_rows(&job, 0, 1, 0);
    else
        rows_run(m, rows, values * o->parts, run_rows, &job);
}
