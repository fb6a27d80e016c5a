/* What the weights of a model are stored in, by class of tensors, and whether they are sound. Opens the model's files
 * without computing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/products.h"
#include "base/error.h"
#include "formats/checkpoint.h"
#include "kakeya_study.h"
#include "model/language_model.h"
#include "model/sizes.h"
#include "model/tensors.h"

/* --------------------------------------------------------------------------------------------------------- soundness
 * What is no finite number has all bits of its exponent set. */

static bool bad_f16(const unsigned char *p) { return (p[1] & 0x7c) == 0x7c; }
static bool bad_bf16(const unsigned char *p) { return (p[1] & 0x7f) == 0x7f && p[0] & 0x80; }
static bool bad_f32(const unsigned char *p) { return (p[3] & 0x7f) == 0x7f && p[2] & 0x80; }
static bool bad_e4m3(const unsigned char *p) { return (*p & 0x7f) == 0x7f; }
static bool bad_e8m0(const unsigned char *p) { return *p == 0xff; }

typedef bool (*bad_number)(const unsigned char *p);

/* Whether one of the numbers at p, p + step, ... below p + bytes is bad. */
static bool any_bad(bad_number bad, const unsigned char *p, size_t bytes, size_t step) {
    for (size_t i = 0; i < bytes; i += step) {
        if (bad(p + i)) return true;
    }
    return false;
}

/* Where the halves of a block's scales are; -1: there is none. */
static void scale_places(weight_format format, int places[2]) {
    static const signed char table[WEIGHT_FORMAT_COUNT][2] = {
        [WEIGHT_Q4_0] = {0, -1},   [WEIGHT_Q4_1] = {0, 2},    [WEIGHT_Q5_0] = {0, -1},   [WEIGHT_Q5_1] = {0, 2},
        [WEIGHT_Q8_0] = {0, -1},   [WEIGHT_Q2_K] = {80, 82},  [WEIGHT_Q3_K] = {108, -1}, [WEIGHT_Q4_K] = {0, 2},
        [WEIGHT_Q5_K] = {0, 2},    [WEIGHT_Q6_K] = {-2, -1},  [WEIGHT_IQ4_NL] = {0, -1}, [WEIGHT_IQ4_XS] = {0, -1},
        [WEIGHT_MXFP4] = {-1, -1}, [WEIGHT_NVFP4] = {-1, -1},
    };
    for (int i = 0; i < 2; i++) places[i] = table[format][i];
    if (format == WEIGHT_Q6_K) places[0] = 208;
}

static bool bad_blocks(weight_format format, const unsigned char *row, size_t bytes, size_t block) {
    int places[2];
    scale_places(format, places);
    for (int i = 0; i < 2; i++) {
        if (places[i] >= 0 && any_bad(bad_f16, row + places[i], bytes - (size_t)places[i], block)) return true;
    }
    if (format == WEIGHT_MXFP4) return any_bad(bad_e8m0, row, bytes, block);
    for (size_t i = 0; format == WEIGHT_NVFP4 && i < 4; i++) {
        if (any_bad(bad_e4m3, row + i, bytes - i, block)) return true;
    }
    return false;
}

/* Scales beside the codes. */
static bad_number scales_of(const weight *w, int stream) {
    switch (weight_format_find(w->format)->stream[stream].bytes) {
    case 4:
        return bad_f32;
    case 2:
        return w->scale_type == DTYPE_F16 ? bad_f16 : bad_bf16;
    default:
        if (stream == 2) return NULL; /* zero points */
        return w->format == WEIGHT_FP4_E4M3 || w->format == WEIGHT_FP4_E4M3_DIV ? bad_e4m3 : bad_e8m0;
    }
}

static bool bad_row(const weight *w, int row) {
    const weight_format_info *info = weight_format_find(w->format);
    const unsigned char *codes = weight_row(w, 0, row);
    size_t bytes = weight_row_bytes(w, 0);
    if (w->format == WEIGHT_F32) return any_bad(bad_f32, codes, bytes, 4);
    if (w->format == WEIGHT_F16) return any_bad(bad_f16, codes, bytes, 2);
    if (w->format == WEIGHT_BF16) return any_bad(bad_bf16, codes, bytes, 2);
    if (!weight_format_is_grouped(w->format) && bad_blocks(w->format, codes, bytes, (size_t)info->stream[0].bytes))
        return true;
    if ((w->format == WEIGHT_FP8 || w->format == WEIGHT_FP8_E8M0) && any_bad(bad_e4m3, codes, bytes, 1)) return true;
    for (int s = 1; s < info->streams; s++) {
        bad_number bad = scales_of(w, s);
        if (bad && any_bad(bad, weight_row(w, s, row), weight_row_bytes(w, s), (size_t)info->stream[s].bytes))
            return true;
    }
    return false;
}

/* --------------------------------------------------------------------------------------------------------- counts */

typedef struct inspector {
    const char *path;
    const language_model *model;
    bool check;
    struct {
        uint64_t matrices, bytes, per_token;
    } stored[PARAMETERS_GROUPS][WEIGHT_FORMAT_COUNT];
} inspector;

static void count(inspector *s, parameter_group group, weight_format format, uint64_t bytes, uint64_t per_token) {
    s->stored[group][format].matrices++;
    s->stored[group][format].bytes += bytes;
    s->stored[group][format].per_token += per_token;
}

/* Of `bytes` of a matrix, what the forward of one token reads. */
static uint64_t read_per_token(const model_config *c, parameter_group group, uint64_t bytes, int rows) {
    if (group == PARAMETERS_EXPERTS) return bytes / (uint64_t)c->experts * (uint64_t)c->experts_per_token;
    bool table = group == PARAMETERS_PLE_TABLE || (group == PARAMETERS_EMBEDDING && !c->tied_head);
    return table ? bytes / (uint64_t)rows : bytes;
}

static kakeya_status add_matrix(inspector *s, const tensor_slot *slot, const weight *w, kakeya_error *error) {
    uint64_t bytes = weight_bytes(w);
    count(s, slot->group, w->format, bytes, read_per_token(&s->model->config, slot->group, bytes, w->out));
    for (int r = 0; s->check && r < w->out; r++) {
        if (!bad_row(w, r)) continue;
        return error_set(error, KAKEYA_FORMAT, "%s: row %d of tensor %s (%s) has a scale or a value that is not finite",
                         s->path, r, slot->name, weight_format_name(w->format));
    }
    return KAKEYA_OK;
}

/* Vectors are float32 in memory, whatever they were. */
static kakeya_status add_numbers(inspector *s, const tensor_slot *slot, const float *values, kakeya_error *error) {
    size_t bytes = (size_t)tensor_slot_elements(slot) * sizeof *values;
    count(s, slot->group, WEIGHT_F32, bytes, bytes);
    if (!s->check || !any_bad(bad_f32, (const unsigned char *)values, bytes, sizeof *values)) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT, "%s: tensor %s has a value that is not finite", s->path, slot->name);
}

static kakeya_status add_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    inspector *s = context;
    const char *binding = (const char *)&s->model->weights + slot->offset;
    int layer;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    if (slot->kind == SLOT_VECTOR) return add_numbers(s, slot, *(const float *const *)(const void *)binding, error);
    if (slot->kind == SLOT_SCALAR) return add_numbers(s, slot, (const float *)(const void *)binding, error);
    const weight *w = (const weight *)(const void *)binding;
    if (weight_present(w)) return add_matrix(s, slot, w, error);
    if (sscanf(slot->name, "layers.%d.", &layer) != 1) return KAKEYA_OK;
    const layer_weights *l = &s->model->weights.layer[layer];
    kakeya_status status = add_matrix(s, slot, &l->experts_gate, error);
    return status == KAKEYA_OK ? add_matrix(s, slot, &l->experts_up, error) : status;
}

/* Tables of which rows are looked up, norms and scalars enter no product. */
static const char *products_of(const inspector *s, parameter_group group, weight_format format, char *out, size_t n) {
    bool looked_up = group == PARAMETERS_PLE_TABLE || (group == PARAMETERS_EMBEDDING && !s->model->config.tied_head);
    return looked_up || group == PARAMETERS_NORMS ? "-" : backend_cpu_products(format, out, n);
}

static void tell(const inspector *s, kakeya_stored_fn stored, void *user) {
    for (int g = 0; g < PARAMETERS_GROUPS; g++) {
        for (int f = 0; f < WEIGHT_FORMAT_COUNT; f++) {
            char kernels[64];
            if (s->stored[g][f].matrices)
                stored(user, parameter_group_name((parameter_group)g), weight_format_name((weight_format)f),
                       products_of(s, (parameter_group)g, (weight_format)f, kernels, sizeof kernels),
                       s->stored[g][f].matrices, s->stored[g][f].bytes, s->stored[g][f].per_token);
        }
    }
}

kakeya_status kakeya_inspect(const char *model, bool check, kakeya_stored_fn stored, void *user, kakeya_error *error) {
    mem_account account;
    language_model *opened = NULL;
    char *path = NULL;
    mem_account_init(&account, NULL, 0);
    inspector *s = calloc(1, sizeof *s);
    if (!s) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory to look at it", model);
    kakeya_status status = checkpoint_resolve(model, &path, error);
    if (status == KAKEYA_OK) status = language_model_open(path, &account, &opened, error);
    s->path = path;
    s->model = opened;
    s->check = check;
    if (status == KAKEYA_OK) status = gemma4_walk(&opened->config, add_slot, s, error);
    if (status == KAKEYA_OK) tell(s, stored, user);
    language_model_close(opened);
    free(path);
    free(s);
    return status;
}
