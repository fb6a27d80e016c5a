#include "session/weights_needs.h"

#include <stdlib.h>

#include "backend/measure.h"
#include "base/block_reader.h"
#include "base/error.h"
#include "base/sized.h"
#include "formats/checkpoint.h"
#include "kakeya_study.h"
#include "model/language_model.h"

enum { EXPERT_MATRICES = 4 };

static size_t sum_bytes(const weight *const *matrices, size_t n) {
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        if (weight_present(matrices[i])) bytes += weight_bytes(matrices[i]);
    return bytes;
}

static size_t resident_bytes(const language_model *model) {
    const model_weights *w = &model->weights;
    const weight *const tables[] = {&w->embed, &w->ple_embed, &w->ple_model_proj, &w->head};
    size_t n = sizeof tables / sizeof tables[0], bytes = sum_bytes(tables, model->config.tied_head ? n - 1 : n);
    for (int i = 0; i < model->config.layers; i++) {
        const layer_weights *l = &w->layer[i];
        const weight *const dense[] = {&l->q_proj,  &l->k_proj,    &l->v_proj,      &l->o_proj,   &l->gate_proj,
                                       &l->up_proj, &l->down_proj, &l->router_proj, &l->ple_gate, &l->ple_proj};
        bytes += sum_bytes(dense, sizeof dense / sizeof dense[0]);
    }
    return bytes;
}

/* The experts of a layer. */
static size_t experts_bytes(const layer_weights *l) {
    const weight *const matrices[EXPERT_MATRICES] = {&l->experts_gate_up, &l->experts_gate, &l->experts_up,
                                                     &l->experts_down};
    return sum_bytes(matrices, EXPERT_MATRICES);
}

/* Reads pieces of the size of an expert's down matrix from where those of the first layer lie. */
static kakeya_status probe(const language_model *model, double seconds, kakeya_weights_needs *needs,
                           kakeya_error *error) {
    const weight *w = &model->weights.layer[0].experts_down;
    const size_t bytes = weight_row_bytes(w, 0) * (size_t)w->out;
    const char *path;
    uint64_t offset;
    if (seconds <= 0 || !language_model_locate(model, w->stream[0], bytes, &path, &offset)) return KAKEYA_OK;
    block_reader *reader = NULL;
    int file = 0;
    kakeya_status status = block_reader_create(&reader, error);
    if (!status) status = block_reader_file(reader, path, &file, error);
    if (!status)
        status = block_reader_probe(reader, file, offset, offset + bytes, bytes / (size_t)model->config.experts,
                                    seconds, &needs->read_bytes_per_second, error);
    block_reader_destroy(reader);
    return status;
}

/* machine: NULL, or of the backend, with bounded_needs. */
static kakeya_status inspect(const char *directory, const backend_measure_ops *machine, double seconds,
                             kakeya_weights_needs *needs, kakeya_error *error) {
    mem_account account;
    language_model *model = NULL;
    mem_account_init(&account, NULL, 0);
    kakeya_status status = language_model_open(directory, &account, &model, error);
    if (status != KAKEYA_OK) return status;
    const model_config *c = &model->config;
    needs->resident = resident_bytes(model);
    for (int i = 0; i < c->layers && c->moe; i++) {
        size_t bytes = experts_bytes(&model->weights.layer[i]) / (size_t)c->experts;
        if (bytes > needs->expert_bytes) needs->expert_bytes = bytes;
    }
    needs->experts = (size_t)c->layers * (size_t)c->experts;
    needs->wanted = (size_t)c->layers * (size_t)c->experts_per_token;
    if (c->moe && machine)
        status = machine->bounded_needs(model, &account, &needs->resident, &needs->expert_bytes,
                                        &needs->read_bytes_per_second, error);
    else if (c->moe)
        status = probe(model, seconds, needs, error);
    else
        status = error_set(error, KAKEYA_UNSUPPORTED,
                           "weights limit: every token needs all weights of a %s, which has no experts", c->variant);
    language_model_close(model);
    return status;
}

static kakeya_status inspect_any(const char *model, const backend_measure_ops *machine, double seconds,
                                 kakeya_weights_needs *out, kakeya_error *error) {
    kakeya_weights_needs needs = {.size = sizeof needs};
    char *directory = NULL;
    kakeya_status status = sized_check("weights needs", out, error);
    if (status == KAKEYA_OK && !model)
        status = error_set(error, KAKEYA_UNSUPPORTED,
                           "weights limit: experts are read from the model's files, and synthetic weights have none");
    if (status == KAKEYA_OK) status = checkpoint_resolve(model, &directory, error);
    if (status == KAKEYA_OK) status = inspect(directory, machine, seconds, &needs, error);
    free(directory);
    if (status == KAKEYA_OK) sized_write(out, &needs, sizeof needs);
    return status;
}

kakeya_status kakeya_weights_inspect(const char *model, double seconds, kakeya_weights_needs *out,
                                     kakeya_error *error) {
    return inspect_any(model, NULL, seconds, out, error);
}

kakeya_status weights_needs_on(const char *backend, const char *model, double seconds, kakeya_weights_needs *out,
                               bool *copies, kakeya_error *error) {
    const backend_ops *ops = backend_find(backend, error);
    if (!ops) return KAKEYA_UNSUPPORTED;
    const backend_measure_ops *measure = backend_measure_find(ops);
    *copies = measure && measure->bounded_needs;
    return inspect_any(model, *copies ? measure : NULL, seconds, out, error);
}
