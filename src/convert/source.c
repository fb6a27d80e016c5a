#include "convert/source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/weight_values.h"
#include "convert/quantise.h"
#include "formats/checkpoint.h"
#include "model/gemma4_gguf.h"

enum { PIECE_BYTES = 8 << 20 };

/* ------------------------------------------------------------------------------------------------------ the list */

/* Files of Gemma 3 hold what norms multiply with (GGUF), or what is added to 1 (directories). A scale of attention that
 * no key of a GGUF file can say becomes part of the queries' norm. */
static void settle_norms(const source *s, const tensor_slot *slot, float *values) {
    const model_config *c = &s->model->config;
    const bool directory = convert_is_directory(s->to);
    if (c->generation != GEMMA_3) return;
    for (int64_t i = 0; i < slot->shape[0]; i++) {
        if (directory != (s->model->checkpoint != NULL)) values[i] += directory ? -1.0f : 1.0f;
        if (!directory && strstr(slot->name, "self_attn.q_norm"))
            values[i] *= c->query_scale / gemma4_gguf_query_scale(c);
    }
}

static kakeya_status add_tensor(void *context, const tensor_slot *slot, kakeya_error *error) {
    source *s = context;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    if (s->n % 256 == 0) {
        source_tensor *grown = realloc(s->tensors, (s->n + 256) * sizeof *grown);
        if (!grown) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its tensor list", s->path);
        s->tensors = grown;
    }
    source_tensor *t = &s->tensors[s->n++];
    const char *binding = (const char *)&s->model->weights + slot->offset;
    *t = (source_tensor){.slot = *slot, .layer = -1, .rows = 1, .in = (int)tensor_slot_elements(slot)};
    if (sscanf(slot->name, "layers.%d.", &t->layer) != 1) t->layer = -1;
    if (slot->kind == SLOT_VECTOR) {
        float *values = *(float *const *)(const void *)binding;
        settle_norms(s, slot, values);
        t->values = values;
    }
    if (slot->kind == SLOT_SCALAR) t->values = (const float *)(const void *)binding;
    if (slot->kind != SLOT_MATRIX) return KAKEYA_OK;
    t->w = (const weight *)(const void *)binding;
    t->in = (int)slot->shape[slot->dims - 1];
    t->rows = (int)(tensor_slot_elements(slot) / t->in);
    if (!weight_present(t->w) && strstr(slot->name, "experts.gate_up_proj")) {
        t->w = &s->model->weights.layer[t->layer].experts_gate;
        t->second = &s->model->weights.layer[t->layer].experts_up;
    }
    s->layers_with_v += strstr(slot->name, "v_proj") != NULL;
    const weight *both[] = {t->w, t->second};
    for (int i = 0; i < 2 && both[i]; i++) {
        if (weight_format_is_plain(both[i]->format) || convert_is_plain(s->to)) continue;
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "%s: tensor %s is quantised already (%s): convert the original, in F32, F16 or BF16", s->path,
                         slot->name, weight_format_name(both[i]->format));
    }
    return KAKEYA_OK;
}

kakeya_status source_open(const char *name, convert_target to, source *out, kakeya_error *error) {
    *out = (source){.to = to};
    mem_account_init(&out->account, NULL, 0);
    kakeya_status status = checkpoint_resolve(name, &out->path, error);
    if (status == KAKEYA_OK) status = language_model_open_stored(out->path, &out->account, &out->model, error);
    if (status == KAKEYA_OK) status = gemma4_walk(&out->model->config, add_tensor, out, error);
    return status;
}

void source_close(source *s) {
    language_model_close(s->model);
    free(s->tensors);
    free(s->path);
}

/* -------------------------------------------------------------------------------------------------------- values */

void source_row(const source_tensor *t, int row, float *out) {
    if (t->half) {
        int half_rows = (int)t->slot.shape[1];
        row = row / half_rows * 2 * half_rows + (t->half - 1) * half_rows + row % half_rows;
    }
    if (!t->second) {
        weight_values(t->w, row, 0, t->in, out);
        return;
    }
    /* Of each expert the rows of the first matrix, then those of the second. */
    int expert_rows = (int)t->slot.shape[1], half = expert_rows / 2, expert = row / expert_rows, at = row % expert_rows;
    weight_values(at < half ? t->w : t->second, expert * half + at % half, 0, t->in, out);
}

/* -------------------------------------------------------------------------------------------------------- pieces */

typedef struct piece {
    const source_tensor *t;
    int first;
    size_t row_bytes;
    row_maker make;
    void *context;
    unsigned char *out;
    float *values; /* [threads][in] */
    int *bad;      /* by thread: the first row with a value that is no number, or -1 */
} piece;

static void make_rows(void *context, size_t begin, size_t end, int thread) {
    piece *p = context;
    float *x = p->values + (size_t)thread * (size_t)p->t->in;
    for (size_t i = begin; i < end; i++) {
        int row = p->first + (int)i;
        source_row(p->t, row, x);
        if (quantise_first_bad(x, p->t->in) < p->t->in) {
            if (p->bad[thread] < 0 || row < p->bad[thread]) p->bad[thread] = row;
            continue;
        }
        p->make(p->context, row, x, p->out + i * p->row_bytes);
    }
}

static kakeya_status check_rows(const conversion *c, const piece *p, int threads, kakeya_error *error) {
    int first = -1;
    for (int i = 0; i < threads; i++) {
        if (p->bad[i] >= 0 && (first < 0 || p->bad[i] < first)) first = p->bad[i];
    }
    if (first < 0) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT, "%s: row %d of tensor %s contains a value that is not finite", c->from->path,
                     first, p->t->slot.name);
}

kakeya_status conversion_rows(conversion *c, const source_tensor *t, size_t row_bytes, row_maker make,
                              piece_writer write, void *context, kakeya_error *error) {
    int threads = thread_pool_size(c->pool);
    size_t wide = row_bytes > (size_t)t->in * 4 ? row_bytes : (size_t)t->in * 4, together = PIECE_BYTES / wide + 1;
    piece p = {.t = t, .row_bytes = row_bytes, .make = make, .context = context};
    p.out = malloc(together * row_bytes);
    p.values = malloc((size_t)threads * (size_t)t->in * sizeof *p.values);
    p.bad = malloc((size_t)threads * sizeof *p.bad);
    kakeya_status status = KAKEYA_OK;
    if (!p.out || !p.values || !p.bad)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu rows of tensor %s", together, t->slot.name);
    for (int i = 0; status == KAKEYA_OK && i < threads; i++) p.bad[i] = -1;
    for (; status == KAKEYA_OK && p.first < t->rows; p.first += (int)together) {
        if (together > (size_t)(t->rows - p.first)) together = (size_t)(t->rows - p.first);
        thread_pool_for(c->pool, together, 16, make_rows, &p);
        status = check_rows(c, &p, threads, error);
        if (status == KAKEYA_OK) status = write(context, p.out, together * row_bytes, error);
        c->values_done += together * (uint64_t)t->in;
        if (status == KAKEYA_OK && c->options->progress &&
            !c->options->progress(c->options->user, "converting", c->values_done, c->values_total))
            status = error_set(error, KAKEYA_CANCELLED, "the conversion was cancelled, and nothing was written");
    }
    free(p.bad);
    free(p.values);
    free(p.out);
    return status;
}
