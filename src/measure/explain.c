#include "measure/explain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kv_bytes.h"
#include "base/error.h"
#include "formats/checkpoint.h"
#include "kakeya_study.h"

/* A forward that is explained, and the operation whose cost is counted. */
typedef struct counting {
    const explain_options *options;
    const explanation *e;
    const model_config *config;
    const model_weights *weights;
    timeline decode, prompt; /* behind their last rows */
    const program_op *op;
    double rows;
} counting;

static double matrix_bytes(const counting *c, uint16_t slot) {
    return (double)weight_bytes(program_matrix(c->weights, slot));
}

static double matrix_elements(const counting *c, uint16_t slot) {
    const weight *w = program_matrix(c->weights, slot);
    return (double)w->out * w->in;
}

/* Bytes of a row of a table. */
static double table_row_bytes(const counting *c, uint16_t slot) {
    const weight *w = program_matrix(c->weights, slot);
    return (double)weight_bytes(w) / w->out;
}

/* Distinct experts that the rows choose on average when every choice is equally likely, of all. */
static double expert_share(const counting *c) {
    return 1 - pow(1 - (double)c->config->experts_per_token / c->config->experts, c->rows);
}

static void count_products(const counting *c, explain_row *row) {
    bool experts = c->op->kind == OP_EXPERT_PRODUCTS;
    double chosen = experts ? (double)c->config->experts_per_token / c->config->experts : 1;
    for (int i = 0; i < PROGRAM_MATRICES && c->op->slot[i]; i++) {
        row->bytes += matrix_bytes(c, c->op->slot[i]) * (experts ? expert_share(c) : 1);
        row->operations += 2 * matrix_elements(c, c->op->slot[i]) * chosen * c->rows;
    }
}

/* Positions that `rows` rows from `position` on see, all together. */
static double visible(const program_op *o, int position, int rows) {
    double sum = 0;
    for (int i = 0; i < rows; i++) {
        int seen = position + i + 1;
        sum += o->window && seen > o->window ? o->window : seen;
    }
    return sum;
}

static void count_attention(const counting *c, explain_row *row) {
    const explanation *e = c->e;
    double seen = visible(c->op, c->options->position, e->decode_rows) + visible(c->op, 0, e->prompt_rows);
    if (e->decode_rows) row->bytes += (double)kv_read_bytes(&c->decode, c->op->layer);
    if (e->prompt_rows) row->bytes += (double)kv_read_bytes(&c->prompt, c->op->layer);
    row->operations = 4.0 * c->config->heads * c->op->width * seen; /* queries by keys, weights by values */
}

/* Every row is stored at one of two times. */
static void count_store(const counting *c, explain_row *row) {
    const timeline *t = c->e->decode_rows ? &c->decode : &c->prompt;
    const timeline_layer *l = &t->layer[c->op->layer];
    bool late = l->kind == STORE_RING, behind = c->op->index == STORE_BEHIND_READERS;
    row->rows = (behind ? 0 : c->e->decode_rows) + (behind == late ? c->e->prompt_rows : 0);
    row->bytes = (double)row->rows * (double)l->row_bytes * (l->has_keys ? 2 : 1);
}

/* Values of rows stay in the caches; an instruction is counted as two operations a value. */
static void count_row_program(const counting *c, explain_row *row) {
    double values = c->rows * c->op->parts * c->op->width;
    for (int i = 0; i < c->op->steps; i++) {
        const row_step *s = &c->op->step[i];
        if (s->verb == ROW_LOOKUP) row->bytes += c->rows * table_row_bytes(c, s->slot);
        if (s->verb == ROW_MIX) row->operations += 2 * values * c->config->experts_per_token;
        if (s->verb > ROW_MIX) row->operations += 2 * values;
    }
}

/* A greedy step: nobody asks for logits, and choices read an int8 copy of the head where that is less. */
static void count_head(const counting *c, explain_row *row) {
    row->rows = c->op->kind == OP_CHOOSE ? c->e->decode_rows + (c->e->prompt_rows > 0) : 0;
    if (!row->rows) return;
    double elements = matrix_elements(c, c->op->slot[0]), bytes = matrix_bytes(c, c->op->slot[0]);
    row->bytes = elements < bytes ? elements : bytes;
    row->operations = 2 * elements * row->rows;
}

static void count(const counting *c, explain_row *row) {
    switch ((op_kind)c->op->kind) {
    case OP_EMBED:
        row->bytes = c->rows * table_row_bytes(c, c->op->slot[0]);
        break;
    case OP_PRODUCTS:
    case OP_EXPERT_PRODUCTS:
        count_products(c, row);
        break;
    case OP_ATTEND:
        count_attention(c, row);
        break;
    case OP_STORE:
        count_store(c, row);
        break;
    case OP_ROWS:
        count_row_program(c, row);
        break;
    case OP_LOGITS:
    case OP_CHOOSE:
        count_head(c, row);
        break;
    default:
        break;
    }
}

static timeline timeline_at(const explanation *e, const explain_options *options, int positions) {
    const kakeya_description description = {.verifier = e->config};
    return description_session(&description, &options->session, (size_t)(positions > 0 ? positions : 1));
}

static kakeya_status open_model(const explain_options *options, explanation *e, kakeya_error *error) {
    char *path = NULL;
    kakeya_status status;
    if (options->synthetic) {
        status = language_model_outline(options->synthetic, &e->account, &e->model, error);
    } else {
        status = checkpoint_resolve(options->model, &path, error);
        if (!status) status = language_model_open(path, &e->account, &e->model, error);
    }
    free(path);
    if (!status) e->config = &e->model->config;
    return status;
}

static kakeya_status find_rates(const explain_options *options, const backend_measure_ops *measure, explanation *e,
                                kakeya_error *error) {
    e->read_bytes_per_second = options->read_bytes_per_second;
    e->flops_per_second = options->flops_per_second;
    if (e->read_bytes_per_second > 0 && e->flops_per_second > 0) return KAKEYA_OK;
    if (!measure->probe_machine)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "backend %s measures its rates with a model alone (kakeya bench): give --read-gb and --gflops",
                         e->backend);
    backend_probe probe;
    const backend_model_options machine = {
        .precision = e->precision, .isa = options->isa, .threads = options->threads, .account = &e->account};
    kakeya_status status = measure->probe_machine(&machine, &probe, error);
    if (status) return status;
    e->measured = true;
    if (e->read_bytes_per_second <= 0) e->read_bytes_per_second = probe.read_bytes_per_second;
    if (e->flops_per_second <= 0) e->flops_per_second = probe.flops_per_second;
    return KAKEYA_OK;
}

static double larger(double a, double b) { return a > b ? a : b; }

static kakeya_status make_rows(const explain_options *options, const program_machine *machine, explanation *e,
                               kakeya_error *error) {
    program_shape shape = {.shard = {0, 1}, .rows = machine->rows};
    size_t most = (size_t)program_most_ops(e->config);
    e->ops = calloc(most, sizeof *e->ops);
    e->row = calloc(most, sizeof *e->row);
    program_launch *launches = calloc(most, sizeof *launches);
    if (!e->ops || !e->row || !launches) {
        free(launches);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for a list of %zu operations", most);
    }
    counting c = {.options = options,
                  .e = e,
                  .config = e->config,
                  .weights = &e->model->weights,
                  .decode = timeline_at(e, options, options->position + e->decode_rows),
                  .prompt = timeline_at(e, options, e->prompt_rows),
                  .rows = e->decode_rows + e->prompt_rows};
    for (int i = 0; i < e->config->layers; i++)
        if (c.prompt.layer[i].kind == STORE_RING) layer_add(&shape.rings, i);
    e->n = program_verifier(e->config, &shape, e->ops);
    e->launches = program_launches(machine, e->ops, e->n, launches);
    for (int i = 0; i < e->launches; i++) {
        const program_launch *l = &launches[i];
        for (int k = l->first; k < l->first + l->n; k++) {
            explain_row *row = &e->row[k];
            c.op = &e->ops[k];
            *row = (explain_row){.op = c.op, .launch = i, .rows = (int)c.rows, .fused = l->fusion >= 0};
            row->kernel = row->fused ? machine->fusion[l->fusion].kernel : machine->kernel[c.op->kind];
            count(&c, row);
            row->bound_seconds = larger(row->bytes / e->read_bytes_per_second, row->operations / e->flops_per_second);
            e->total.bytes += row->bytes;
            e->total.operations += row->operations;
            e->total.bound_seconds += row->bound_seconds;
        }
    }
    free(launches);
    return KAKEYA_OK;
}

static kakeya_status make(const explain_options *options, explanation *e, kakeya_error *error) {
    const backend_ops *ops = backend_find(options->backend, error);
    if (!ops) return KAKEYA_UNSUPPORTED;
    const backend_measure_ops *measure = backend_measure_find(ops);
    e->backend = ops->name;
    if (!measure || !measure->machine)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "the operations of backend %s cannot be explained: use --backend cpu or cuda", ops->name);
    if (options->session.attention == KAKEYA_ATTENTION_RESTORED)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "--attention restored cannot be explained: restoring is part of attention");
    kakeya_status status = open_model(options, e, error);
    if (status) return status;
    const program_machine *machine = measure->machine(options->prompt_rows > 0);
    if (machine->rows != ROWS_ALL && options->decode_rows && options->prompt_rows)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "backend %s computes prompts and decode rows in passes of their own: explain one at a time, "
                         "with --rows or with --prompt",
                         e->backend);
    if (options->position + options->decode_rows > e->config->max_context)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "--position %d: the model's context ends at %d tokens",
                         options->position, e->config->max_context);
    status = backend_precision(ops, e->config->checkpoint_format, options->precision, &e->precision, error);
    if (status) return status;
    e->most_rows = machine->most_rows;
    e->decode_rows = options->decode_rows;
    e->prompt_rows = options->prompt_rows;
    if (e->prompt_rows > e->config->max_context) e->prompt_rows = e->config->max_context;
    if (e->decode_rows + e->prompt_rows > e->most_rows) e->prompt_rows = e->most_rows - e->decode_rows;
    status = find_rates(options, measure, e, error);
    return status ? status : make_rows(options, machine, e, error);
}

kakeya_status explain_make(const explain_options *options, explanation **out, kakeya_error *error) {
    *out = calloc(1, sizeof **out);
    if (!*out) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for an explanation");
    mem_account_init(&(*out)->account, NULL, 0);
    kakeya_status status = make(options, *out, error);
    if (status) {
        explain_free(*out);
        *out = NULL;
    }
    return status;
}

void explain_free(explanation *e) {
    if (!e) return;
    free(e->row);
    free(e->ops);
    language_model_close(e->model);
    free(e);
}
