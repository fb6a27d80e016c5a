#include "model/part.h"

enum {
    OUTPUT_TILE = 16, /* outputs of the LM head that stay together, as kernels take them */
    WIDTH_TILE = 8    /* columns of an MLP, of an expert, of heads: likewise */
};

/* Where the share of part `index` begins; that of the next part is its end. */
static int first_of(int size, int tile, model_part part, int index) {
    int tiles = (size + tile - 1) / tile;
    int first = (int)((long long)tiles * index / part.count) * tile;
    return first < size ? first : size;
}

static int share_of(int size, int tile, model_part part) {
    return first_of(size, tile, part, part.index + 1) - first_of(size, tile, part, part.index);
}

static kakeya_status divide(int *value, model_part part, const char *what, int layer, kakeya_error *error) {
    if (*value % part.count)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "--devices: %d %s of layer %d cannot be divided among %d devices: use a number that "
                         "divides them",
                         *value, what, layer, part.count);
    *value /= part.count;
    return KAKEYA_OK;
}

static kakeya_status deal_width(int *value, model_part part, const char *what, int layer, kakeya_error *error) {
    if (*value && (*value + WIDTH_TILE - 1) / WIDTH_TILE < part.count)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "--devices: %d %s of layer %d cannot be divided among %d devices: each needs at least "
                         "%d",
                         *value, what, layer, part.count, WIDTH_TILE);
    *value = share_of(*value, WIDTH_TILE, part);
    return KAKEYA_OK;
}

int model_part_kv_heads(model_part part, int kv_heads) {
    if (model_part_is_whole(part)) return kv_heads;
    if (kv_heads % part.count == 0) return kv_heads / part.count;
    return part.count % kv_heads ? 0 : 1;
}

static kakeya_status divide_kv_heads(int *kv_heads, model_part part, int layer, kakeya_error *error) {
    int share = model_part_kv_heads(part, *kv_heads);
    if (!share)
        return error_set(
            error, KAKEYA_UNSUPPORTED,
            "--devices: %d K/V heads of layer %d cannot be divided among %d devices: use a number that divides "
            "them, or a multiple",
            *kv_heads, layer, part.count);
    *kv_heads = share;
    return KAKEYA_OK;
}

kakeya_status model_part_config(const gemma4_config *whole, model_part part, gemma4_config *out, kakeya_error *error) {
    *out = *whole;
    if (model_part_is_whole(part)) return KAKEYA_OK;
    kakeya_status status = divide(&out->heads, part, "query heads", 0, error);
    if (!status && out->moe) status = deal_width(&out->expert_intermediate, part, "columns of an expert", 0, error);
    for (int i = 0; i < whole->layers && !status; i++) {
        status = divide_kv_heads(&out->layer[i].kv_heads, part, i, error);
        if (!status) status = deal_width(&out->layer[i].intermediate, part, "columns of the dense MLP", i, error);
    }
    return status;
}

int model_part_first_kv_head(model_part part, int kv_heads) {
    return model_part_is_whole(part) ? 0 : part.index * kv_heads / part.count;
}

int model_part_first_output(model_part part, int rows) {
    if (model_part_is_whole(part)) return part.index ? rows : 0;
    return first_of(rows, OUTPUT_TILE, part, part.index);
}

/* -------------------------------------------------------------------------------------------------------- cuts */

matrix_cut model_cut_nothing(const weight *w) {
    return (matrix_cut){.period = w->out, .rows = w->out, .columns = w->in};
}

matrix_cut model_cut_rows(const weight *w, model_part part, int period) {
    matrix_cut cut = model_cut_nothing(w);
    if (model_part_is_whole(part)) return cut;
    cut.period = period;
    cut.rows = share_of(period, WIDTH_TILE, part);
    cut.first_row = first_of(period, WIDTH_TILE, part, part.index);
    return cut;
}

matrix_cut model_cut_columns(const weight *w, model_part part) {
    matrix_cut cut = model_cut_nothing(w);
    if (model_part_is_whole(part)) return cut;
    cut.columns = share_of(w->in, WIDTH_TILE, part);
    cut.first_column = first_of(w->in, WIDTH_TILE, part, part.index);
    return cut;
}

matrix_cut model_cut_kv(const weight *w, model_part part, int kv_heads) {
    matrix_cut cut = model_cut_nothing(w);
    if (model_part_is_whole(part) || w->out == 0) return cut;
    int head = w->out / kv_heads, own = kv_heads / part.count;
    cut.rows = (own ? own : 1) * head;
    cut.first_row = model_part_first_kv_head(part, kv_heads) * head;
    return cut;
}

int model_cut_out(const weight *w, const matrix_cut *cut) { return cut->period ? w->out / cut->period * cut->rows : 0; }
