#include "model/shard.h"

enum {
    OUTPUT_TILE = 16, /* outputs of the LM head that stay together, as kernels take them */
    WIDTH_TILE = 8    /* columns of an MLP, of an expert, of heads: likewise */
};

/* Where the share of shard `index` begins; that of the next shard is its end. */
static int first_of(int size, int tile, model_shard shard, int index) {
    int tiles = (size + tile - 1) / tile;
    int first = (int)((long long)tiles * index / shard.count) * tile;
    return first < size ? first : size;
}

static int share_of(int size, int tile, model_shard shard) {
    return first_of(size, tile, shard, shard.index + 1) - first_of(size, tile, shard, shard.index);
}

static kakeya_status divide(int *value, model_shard shard, const char *what, int layer, kakeya_error *error) {
    if (*value % shard.count)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "--devices: %d %s of layer %d cannot be divided among %d devices: use a number that "
                         "divides them",
                         *value, what, layer, shard.count);
    *value /= shard.count;
    return KAKEYA_OK;
}

static kakeya_status deal_width(int *value, model_shard shard, const char *what, int layer, kakeya_error *error) {
    if (*value && (*value + WIDTH_TILE - 1) / WIDTH_TILE < shard.count)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "--devices: %d %s of layer %d cannot be divided among %d devices: each needs at least "
                         "%d",
                         *value, what, layer, shard.count, WIDTH_TILE);
    *value = share_of(*value, WIDTH_TILE, shard);
    return KAKEYA_OK;
}

int model_shard_kv_heads(model_shard shard, int kv_heads) {
    if (model_shard_is_whole(shard)) return kv_heads;
    if (kv_heads % shard.count == 0) return kv_heads / shard.count;
    return shard.count % kv_heads ? 0 : 1;
}

static kakeya_status divide_kv_heads(int *kv_heads, model_shard shard, int layer, kakeya_error *error) {
    int share = model_shard_kv_heads(shard, *kv_heads);
    if (!share)
        return error_set(
            error, KAKEYA_UNSUPPORTED,
            "--devices: %d K/V heads of layer %d cannot be divided among %d devices: use a number that divides "
            "them, or a multiple",
            *kv_heads, layer, shard.count);
    *kv_heads = share;
    return KAKEYA_OK;
}

kakeya_status model_shard_config(const model_config *whole, model_shard shard, model_config *out, kakeya_error *error) {
    *out = *whole;
    if (model_shard_is_whole(shard)) return KAKEYA_OK;
    kakeya_status status = divide(&out->heads, shard, "query heads", 0, error);
    if (!status && out->moe) status = deal_width(&out->expert_intermediate, shard, "columns of an expert", 0, error);
    for (int i = 0; i < whole->layers && !status; i++) {
        status = divide_kv_heads(&out->layer[i].kv_heads, shard, i, error);
        if (!status) status = deal_width(&out->layer[i].intermediate, shard, "columns of the dense MLP", i, error);
    }
    return status;
}

int model_shard_first_kv_head(model_shard shard, int kv_heads) {
    return model_shard_is_whole(shard) ? 0 : shard.index * kv_heads / shard.count;
}

int model_shard_first_output(model_shard shard, int rows) {
    if (model_shard_is_whole(shard)) return shard.index ? rows : 0;
    return first_of(rows, OUTPUT_TILE, shard, shard.index);
}

/* -------------------------------------------------------------------------------------------------------- cuts */

matrix_cut model_cut_nothing(const weight *w) {
    return (matrix_cut){.period = w->out, .rows = w->out, .columns = w->in};
}

matrix_cut model_cut_rows(const weight *w, model_shard shard, int period) {
    matrix_cut cut = model_cut_nothing(w);
    if (model_shard_is_whole(shard)) return cut;
    cut.period = period;
    cut.rows = share_of(period, WIDTH_TILE, shard);
    cut.first_row = first_of(period, WIDTH_TILE, shard, shard.index);
    return cut;
}

matrix_cut model_cut_columns(const weight *w, model_shard shard) {
    matrix_cut cut = model_cut_nothing(w);
    if (model_shard_is_whole(shard)) return cut;
    cut.columns = share_of(w->in, WIDTH_TILE, shard);
    cut.first_column = first_of(w->in, WIDTH_TILE, shard, shard.index);
    return cut;
}

matrix_cut model_cut_kv(const weight *w, model_shard shard, int kv_heads) {
    matrix_cut cut = model_cut_nothing(w);
    if (model_shard_is_whole(shard) || w->out == 0) return cut;
    int head = w->out / kv_heads, own = kv_heads / shard.count;
    cut.rows = (own ? own : 1) * head;
    cut.first_row = model_shard_first_kv_head(shard, kv_heads) * head;
    return cut;
}

int model_cut_out(const weight *w, const matrix_cut *cut) { return cut->period ? w->out / cut->period * cut->rows : 0; }
