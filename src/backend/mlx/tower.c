/* Pictures: what reads them on the device, and the pieces of each (tower.cpp). A picture's memory is there while it is
 * computed; what a piece makes in between shares the workspace of forwards. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/mlx/mlx.h"
#include "backend/program/tower.h"
#include "base/clock.h"

struct backend_reading {
    backend_model *m;
    mlx_picture *picture;
    float *rows;
    size_t bytes, work; /* that it holds; of a piece */
};

struct mlx_vision {
    const vision_model *vision;
    mlx_tower tower;
    mlx_tower_weight *weight; /* by slot */
    program_op *ops;
};

/* ---------------------------------------------------------------------------------------------------------- memory */

/* Numbers of a head where attention pads it to at most 128. */
static size_t padded_heads(const vision_model *v) {
    const int d = v->head_dim;
    return (size_t)(v->heads * (d <= 64 ? 64 : d <= 80 ? 80 : d <= 128 ? 128 : d));
}

/* Between pieces: residual stream, queries, keys, values, what is attended, and what groups of rows make anew of them.
 */
static size_t picture_bytes(const vision_model *v, int patches) {
    const size_t heads = v->tower ? 6 * (size_t)(v->heads * v->head_dim) + 2 * padded_heads(v) : 0;
    const size_t row = (size_t)vision_model_patch_values(v) + 3 * (size_t)v->hidden + heads;
    return (size_t)patches * row * sizeof(float);
}

/* Of a piece: the results of a layer's operations over a group of rows and its matrices in float32, or scores. */
static size_t piece_bytes(const vision_model *v, weight_format format, int patches) {
    const size_t rows = patches < MLX_PICTURE_ROWS ? (size_t)patches : (size_t)MLX_PICTURE_ROWS;
    const size_t hidden = (size_t)v->hidden, patch = (size_t)vision_model_patch_values(v);
    const size_t text = (size_t)v->text_hidden, heads = (size_t)(v->heads * v->head_dim),
                 inner = (size_t)v->intermediate;
    const size_t ends = hidden * (patch > text ? patch : text);
    size_t layer = 0, row = 4 * patch + 12 * hidden + 2 * text, scores = 0;
    if (v->tower) {
        layer = hidden * (4 * heads + 3 * inner);
        row += 8 * heads + 11 * inner;
        const size_t square = 16 * (size_t)v->heads * (size_t)patches;
        scores =
            4 * (square > MLX_PICTURE_SCORES ? square : MLX_PICTURE_SCORES) + 3 * (size_t)patches * padded_heads(v);
    }
    const size_t widened = format == WEIGHT_BF16 ? layer + ends : 0, group = rows * row + widened;
    return (group > scores ? group : scores) * sizeof(float);
}

size_t mlx_image_bytes(const vision_model *v, weight_format format, int patches, int side, int threads) {
    (void)side, (void)threads;
    return picture_bytes(v, patches) + piece_bytes(v, format, patches);
}

/* --------------------------------------------------------------------------------------------------------- weights */

void mlx_vision_destroy(backend_model *m) {
    if (!m->vision) return;
    mem_free(m->vision->weight);
    mem_free(m->vision->ops);
    free(m->vision);
    m->vision = NULL;
}

kakeya_status mlx_load_vision(backend_model *m, const vision_model *v, kakeya_error *error) {
    if (m->vision) return KAKEYA_OK;
    mlx_vision *made = m->vision = calloc(1, sizeof *made);
    if (!made) return error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for what reads images");
    made->vision = v;
    made->weight =
        mem_alloc(m->account, MEM_WORKSPACE, (size_t)((1 + v->layers) * VISION_ROLES) * sizeof *made->weight);
    made->ops = mem_alloc(m->account, MEM_WORKSPACE, (size_t)tower_most_ops(v) * sizeof *made->ops);
    made->tower = (mlx_tower){.op = made->ops,
                              .weight = made->weight,
                              .positions = v->positions,
                              .places_alternate = !v->tower,
                              .eps = v->rms_eps};
    kakeya_status status = made->weight && made->ops
                               ? mlx_tower_load(m, v, made->weight, &made->tower.rope, error)
                               : error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for what reads images");
    if (status)
        mlx_vision_destroy(m);
    else
        made->tower.ops = program_tower(v, made->ops);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- verbs */

void mlx_image_end(backend_reading *r) {
    mlx_picture_free(r->picture);
    mem_account_remove(r->m->account, MEM_WORKSPACE, r->bytes);
    free(r);
}

kakeya_status mlx_image_begin(backend_model *m, const backend_image *image, float *rows, backend_reading **out,
                              kakeya_error *error) {
    const vision_model *v = image->vision;
    const int patches = image->across * image->down;
    *out = NULL;
    if (image->across > v->positions || image->down > v->positions)
        return error_set(error, KAKEYA_INVALID_ARGUMENT,
                         "an image of %d x %d patches: the model supports at most %d in each direction", image->across,
                         image->down, v->positions);
    kakeya_status status = mlx_load_vision(m, v, error);
    if (status) return status;
    backend_reading *r = calloc(1, sizeof *r);
    if (!r) return error_set(error, KAKEYA_OUT_OF_MEMORY, "an image: out of memory");
    const weight *first = &v->weights[v->layers ? 1 : 0].matrix[v->layers ? VISION_Q : VISION_PATCH];
    *r = (backend_reading){.m = m, .rows = rows, .work = piece_bytes(v, first->format, patches)};
    const size_t bytes = picture_bytes(v, patches);
    if (mem_account_add(m->account, MEM_WORKSPACE, bytes))
        r->bytes = bytes;
    else
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "an image of %d patches: out of memory", patches);
    mlx_failure failure;
    if (!status)
        status = mlx_check(mlx_picture_begin(m->device, &m->vision->tower, image->across, image->down,
                                             vision_model_patch_values(v), image->patches, &r->picture, &failure),
                           &failure, error);
    if (status)
        mlx_image_end(r);
    else
        *out = r;
    return status;
}

kakeya_status mlx_image_step(backend_reading *r, double seconds, bool *made, kakeya_error *error) {
    const double end = clock_seconds() + seconds;
    kakeya_status status = mlx_reserve_workspace(r->m, r->work, error);
    mlx_failure failure;
    *made = false;
    while (!status && !*made) {
        status = mlx_check(mlx_picture_step(r->picture, r->rows, made, &failure), &failure, error);
        if (clock_seconds() >= end) break;
    }
    return status ? status : mlx_count_workspace(r->m, error);
}

kakeya_status mlx_embed_image(backend_model *m, const backend_image *image, float *rows, kakeya_error *error) {
    backend_reading *r;
    bool made;
    kakeya_status status = mlx_image_begin(m, image, rows, &r, error);
    if (status) return status;
    status = mlx_image_step(r, INFINITY, &made, error);
    mlx_image_end(r);
    return status;
}
