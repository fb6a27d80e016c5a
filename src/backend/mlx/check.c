/* Which way each operation is computed: tried when a model is loaded (check.cpp), and what follows from it for tiles.
 */
#include <stdio.h>
#include <string.h>

#include "backend/mlx/mlx.h"

static mlx_way slowest(const mlx_way ways[MLX_OPS]) {
    mlx_way way = MLX_WAY_OWN;
    for (int op = 0; op < MLX_OPS; op++) {
        if (ways[op] > way) way = ways[op];
    }
    return way;
}

static int rows_of(mlx_way way, int tile) { return way == MLX_WAY_OWN ? 0 : way == MLX_WAY_FIXED ? tile : 1; }

kakeya_status mlx_choose_ways(backend_model *m, kakeya_error *error) {
    mlx_failure failure;
    kakeya_status status = mlx_rope_reserve(m, MLX_ROPE_GROWTH, error);
    if (!status) status = mlx_check(mlx_device_choose(m->device, &m->form, &failure), &failure, error);
    if (status) return status;
    const mlx_ways *ways = mlx_device_ways(m->device);
    mlx_way few = slowest(ways->few), prompt = slowest(ways->prompt);
    m->decode_rows = rows_of(few, MLX_DECODE_ROWS);
    m->prompt_rows = rows_of(prompt, MLX_PROMPT_ROWS);
    m->head_rows = rows_of(ways->few[MLX_OP_HEAD], MLX_HEAD_ROWS);
    m->follow_rows = few == MLX_WAY_SERIAL ? 1 : MLX_FOLLOW_ROWS;
    return KAKEYA_OK;
}

/* "own kernels", "tiles", or, where operations differ, "tiles (products: row by row, ...)". */
static size_t name_ways(const mlx_way ways[MLX_OPS], char *to, size_t bytes) {
    int count[3] = {0, 0, 0}, most = 0;
    for (int op = 0; op < MLX_OPS; op++) count[ways[op]]++;
    for (int way = 1; way < 3; way++) {
        if (count[way] > count[most]) most = way;
    }
    size_t at = (size_t)snprintf(to, bytes, "%s", mlx_way_name((mlx_way)most));
    bool first = true;
    for (int op = 0; op < MLX_OPS && at < bytes; op++) {
        if ((int)ways[op] == most) continue;
        at += (size_t)snprintf(to + at, bytes - at, "%s%s: %s", first ? " (" : ", ", mlx_op_name((mlx_op)op),
                               mlx_way_name(ways[op]));
        first = false;
    }
    if (!first && at < bytes) at += (size_t)snprintf(to + at, bytes - at, ")");
    return at;
}

void mlx_describe_ways(const backend_model *m, char *to, size_t bytes) {
    const mlx_ways *ways = mlx_device_ways(m->device);
    size_t at = (size_t)snprintf(to, bytes, "rows by ");
    at += name_ways(ways->few, to + at, bytes - at);
    if (slowest(ways->prompt) == MLX_WAY_SERIAL && at < bytes) {
        at += (size_t)snprintf(to + at, bytes - at, ", prompts by ");
        if (at < bytes) name_ways(ways->prompt, to + at, bytes - at);
    }
}
