#include "backend/cuda/tower_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/prompt_gemm.h"
#include "backend/cuda/tower_kernels.h"
#include "backend/cuda/weight_rows.h"

enum { PIECE_BYTES = 16 << 20, ALIGNMENT = 256 };

/* A walk over the tensors: sizes first, then places, then copies. */
typedef struct tower_upload {
    const vision_model *vision;
    tower_weights *w;
    const cuda_device *device;
    size_t matrix_bytes, vector_bytes;
    char *matrix_at, *vector_at; /* NULL: sizes are added up alone */
    char *staged;                /* pinned: [PIECE_BYTES] */
} tower_upload;

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static cuda_matrix shape_of(const vision_slot *slot) {
    const int in = (int)slot->columns;
    return (cuda_matrix){.form = CUDA_FORM_BF16, .out = (int)slot->rows, .in = in, .ld = cuda_padded(in)};
}

static kakeya_status add_sizes(void *context, const vision_slot *slot, kakeya_error *error) {
    (void)error;
    tower_upload *u = context;
    const cuda_matrix m = shape_of(slot);
    if (slot->matrix)
        u->matrix_bytes += weight_rows_bytes(&m, (size_t)m.out); /* q, k and v without a gap */
    else
        u->vector_bytes += aligned((size_t)slot->rows * sizeof(float));
    return KAKEYA_OK;
}

static kakeya_status send(const tower_upload *u, void *to, size_t bytes, kakeya_error *error) {
    kakeya_status status = cuda_check(cudaMemcpyAsync(to, u->staged, bytes, cudaMemcpyHostToDevice, u->device->stream),
                                      "uploading what reads images", error);
    return status ? status : cuda_finish(u->device, "uploading what reads images", error);
}

static kakeya_status send_matrix(tower_upload *u, const vision_slot *slot, const weight *from, kakeya_error *error) {
    cuda_matrix *m = &u->w->layers[slot->layer + 1].matrix[slot->role];
    *m = shape_of(slot);
    m->data = (cuda_bf16 *)(void *)u->matrix_at;
    const weight_source source = {.first = from, .cut = model_cut_nothing(from)};
    const size_t rows = (size_t)m->out, row = weight_rows_bytes(m, 8) / 8, most = PIECE_BYTES / row / 8 * 8;
    kakeya_status status = KAKEYA_OK;
    for (size_t first = 0; first < rows && !status; first += most) {
        const size_t n = rows - first < most ? rows - first : most;
        weight_rows_convert(&source, m, first, n, u->staged);
        status = send(u, u->matrix_at + first * row, n * row, error);
    }
    u->matrix_at += rows * row;
    return status;
}

static kakeya_status send_slot(void *context, const vision_slot *slot, kakeya_error *error) {
    tower_upload *u = context;
    const vision_weights *from = &u->vision->weights[slot->layer + 1];
    if (slot->matrix) return send_matrix(u, slot, &from->matrix[slot->role], error);
    const size_t bytes = (size_t)slot->rows * sizeof(float);
    memcpy(u->staged, from->vector[slot->role], bytes);
    u->w->layers[slot->layer + 1].vector[slot->role] = (const float *)(const void *)u->vector_at;
    kakeya_status status = send(u, u->vector_at, bytes, error);
    u->vector_at += aligned(bytes);
    return status;
}

static size_t turns_bytes(const vision_model *v) {
    return v->tower ? (size_t)v->positions * (size_t)(v->head_dim / 4) * sizeof(float2) : 0;
}

static kakeya_status send_turns(tower_upload *u, char *to, kakeya_error *error) {
    const vision_model *v = u->vision;
    const int pairs = v->head_dim / 4, at_once = pairs ? PIECE_BYTES / pairs / (int)sizeof(float2) : 0;
    float2 *turn = (float2 *)(void *)u->staged;
    u->w->turns = (const float2 *)(const void *)to;
    kakeya_status status = KAKEYA_OK;
    for (int first = 0; v->tower && first < v->positions && !status; first += at_once) {
        const int n = v->positions - first < at_once ? v->positions - first : at_once;
        for (int i = 0; i < n * pairs; i++) {
            const float exponent = (float)(2 * (i % pairs)) / (float)(v->head_dim / 2);
            const float angle = (float)(first + i / pairs) * (1.0f / powf(v->rope_theta, exponent));
            turn[i] = (float2){cosf(angle), sinf(angle)};
        }
        const size_t bytes = (size_t)(n * pairs) * sizeof *turn;
        status = send(u, to, bytes, error);
        to += bytes;
    }
    return status;
}

static kakeya_status check_width(const char *what, int n, int unit, kakeya_error *error) {
    if (n % unit == 0) return KAKEYA_OK;
    return error_set(error, KAKEYA_UNSUPPORTED,
                     "%s of %d in what reads images is not a multiple of %d, as backend "
                     "cuda needs",
                     what, n, unit);
}

static kakeya_status check_sizes(const vision_model *v, kakeya_error *error) {
    enum {
        MOST_VALUES = 24 << 10
    }; /* of a row program's registers, in the memory that every device's blocks may have */
    const int patch = vision_model_patch_values(v);
    kakeya_status status = check_width("a patch", patch, PROMPT_GEMM_UNIT, error);
    if (!status) status = check_width("a hidden size", v->hidden, PROMPT_GEMM_UNIT, error);
    if (!status) status = check_width("a text width", v->text_hidden, PROMPT_GEMM_UNIT, error);
    if (!status && v->tower) status = check_width("a feed-forward width", v->intermediate, PROMPT_GEMM_UNIT, error);
    if (status) return status;
    if (patch > MOST_VALUES || v->hidden > MOST_VALUES / TOWER_REGISTERS)
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "a hidden size of %d with patches of %d values in what reads images; backend cuda supports up "
                         "to %d and %d",
                         v->hidden, patch, MOST_VALUES / TOWER_REGISTERS, (int)MOST_VALUES);
    if (v->tower && !tower_attends(v->head_dim))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "head dimension %d of what reads images is not supported by backend "
                         "cuda",
                         v->head_dim);
    return KAKEYA_OK;
}

kakeya_status tower_weights_create(tower_weights *w, const cuda_device *device, mem_account *account,
                                   const vision_model *vision, kakeya_error *error) {
    tower_upload u = {.vision = vision, .w = w, .device = device};
    *w = (tower_weights){0};
    kakeya_status status = check_sizes(vision, error);
    if (status) return status;
    (void)vision_model_walk(vision, add_sizes, &u, NULL);
    const size_t matrices = aligned(u.matrix_bytes), bytes = matrices + u.vector_bytes + turns_bytes(vision);
    w->layers = calloc((size_t)vision->layers + 1, sizeof *w->layers);
    if (!w->layers) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "out of memory for what reads images");
    if (!status)
        status = cuda_buffer_create(&w->memory, device, account, MEM_WEIGHTS, bytes, "what reads images", error);
    if (!status) status = cuda_pinned((void **)&u.staged, PIECE_BYTES, "what reads images", error);
    if (!status) {
        u.matrix_at = w->memory.data;
        u.vector_at = u.matrix_at + matrices;
        status = send_turns(&u, u.vector_at + u.vector_bytes, error);
    }
    if (!status) status = vision_model_walk(vision, send_slot, &u, error);
    if (u.staged) (void)cudaFreeHost(u.staged);
    if (status) tower_weights_destroy(w);
    return status;
}

void tower_weights_destroy(tower_weights *w) {
    cuda_buffer_destroy(&w->memory);
    free(w->layers);
    *w = (tower_weights){0};
}
