/* Order of operations: as model/audio_model.h says. A row sees no later one, so
 * rows go through a layer a chunk at a time: what later chunks see of a layer (keys, values, the input of its
 * convolution) is kept for all rows, everything else for a chunk. Everything is float32 and no input is rounded,
 * whatever the model's precision. */
#include "backend/cpu/conformer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/matrix.h"
#include "base/clock.h"
#include "media/log_mel.h"
#include "model/audio_model.h"

enum {
    CHUNK = 128, /* rows of a piece */
    GROUP = 8,   /* rows whose convolutions are computed in one go */
    TAPS = 9,
    BANDS_1 = LOG_MEL_BANDS / 2, /* behind the first convolution */
    BANDS_2 = LOG_MEL_BANDS / 4, /* behind the second */
};

/* What a layer does, in this order. */
typedef enum conformer_block { BLOCK_FF_1 = 0, BLOCK_ATTENTION, BLOCK_CONVOLUTION, BLOCK_FF_2, BLOCKS } conformer_block;

typedef struct backend_hearing {
    backend_model *m;
    const audio_model *a;
    int frames, rows;
    float *input;          /* conformer: [frames][bands]; else [rows][samples of a frame] */
    float *h;              /* [rows][hidden] */
    float *k, *v, *gated;  /* [rows][hidden]: of the layer in work */
    float *x, *q, *branch; /* [CHUNK][hidden] */
    float *act;            /* [CHUNK][intermediate] */
    float *clamped;        /* [CHUNK][intermediate] */
    float *relative;       /* [reach][hidden]: keys of distances */
    float *first_conv;     /* [2 * GROUP + 1][BANDS_1][channels 0] */
    float *columns;        /* [GROUP * BANDS_2][TAPS][channels 0]: input of the second convolution */
    float *subsampled;     /* [CHUNK][BANDS_2][channels 1] */
    float *out;            /* [CHUNK][output] */
    float *soft;           /* [rows][text hidden]; the caller's */
    packed_rows packed;
    int layer; /* -1: before the first one; layers: behind the last one */
    int first; /* row of the chunk in work */
    int block;
    int group;       /* first row of the group in work */
    audio_role role; /* of the row task in work */
} sound_run;

static int max_int(int a, int b) { return a > b ? a : b; }
static int chunk_rows(const sound_run *t) { return t->rows - t->first < CHUNK ? t->rows - t->first : CHUNK; }
static const audio_weights *weights_of(const sound_run *t) { return &t->a->weights[1 + t->layer]; }
static size_t hidden_of(const sound_run *t) { return (size_t)t->a->hidden; }
static float *row_of(const sound_run *t, float *all, size_t row) {
    return all + ((size_t)t->first + row) * hidden_of(t);
}

/* ------------------------------------------------------------------------------------------------------- products */

static void clamp_values(float *to, const float *from, size_t n, float least, float most) {
    for (size_t i = 0; i < n; i++) to[i] = from[i] < least ? least : from[i] > most ? most : from[i];
}

static void multiply(sound_run *t, const weight *w, const float *in, int rows, float *out) {
    pack(t->m, &t->packed, in, (size_t)w->in, rows, w->in, packing_exact(t->m, w));
    matrix_job job = matrix_product(&t->packed, rows, w, out, (size_t)w->out);
    job.exact_input = true;
    matrix_run(t->m, &job, 1);
}

/* Of the chunk in work, with the bounds of a clipped linear. */
static void product(sound_run *t, audio_role role, const float *in, float *out) {
    const weight *w = &weights_of(t)->matrix[role];
    const vision_bounds *b = &weights_of(t)->bounds[role];
    const int rows = chunk_rows(t);
    if (t->a->clipped) clamp_values(t->clamped, in, (size_t)rows * (size_t)w->in, b->input_min, b->input_max);
    multiply(t, w, t->a->clipped ? t->clamped : in, rows, out);
    if (t->a->clipped) clamp_values(out, out, (size_t)rows * (size_t)w->out, b->output_min, b->output_max);
}

/* ---------------------------------------------------------------------------------------------------- convolutions */

/* Mean and deviation over channels, a weight for each, and what is below 0 becomes 0. */
static void centre_and_rectify(float *x, const float *weights, int n, double eps) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i];
    const double mean = sum / n;
    for (int i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    const double scale = 1 / sqrt(squares / n + eps);
    for (int i = 0; i < n; i++) {
        const float y = (float)(((double)x[i] - mean) * scale) * weights[i];
        x[i] = y > 0 ? y : 0;
    }
}

/* Rows of the first convolution that the group in work needs: twice as many as its own, and one before them. */
static void first_convolution(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    const int channels = t->a->channels[0], steps = (t->frames + 1) / 2;
    const float *kernel = t->a->weights->vector[AUDIO_CONV_0];
    for (size_t row = begin; row < end; row++) {
        const int at = 2 * t->group - 1 + (int)row;
        float *out = t->first_conv + row * BANDS_1 * (size_t)channels;
        memset(out, 0, (size_t)BANDS_1 * (size_t)channels * sizeof *out);
        if (at < 0 || at >= steps) continue; /* what is outside stays 0 */
        for (int band = 0; band < BANDS_1; band++, out += channels) {
            for (int tap = 0; tap < TAPS; tap++) {
                const int frame = 2 * at + tap / 3 - 1, from = 2 * band + tap % 3 - 1;
                if (frame < 0 || frame >= t->frames || from < 0 || from >= LOG_MEL_BANDS) continue;
                const float x = t->input[(size_t)frame * LOG_MEL_BANDS + (size_t)from];
                for (int c = 0; c < channels; c++) out[c] += x * kernel[c * TAPS + tap];
            }
            centre_and_rectify(out, t->a->weights->vector[AUDIO_CONV_0_NORM], channels, (double)t->a->rms_eps);
        }
    }
}

/* Of a row and a band of the second convolution, what its taps see. */
static void gather(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    const size_t channels = (size_t)t->a->channels[0];
    for (size_t item = begin; item < end; item++) {
        float *to = t->columns + item * TAPS * channels;
        for (int tap = 0; tap < TAPS; tap++, to += channels) {
            const size_t row = item / BANDS_2 * 2 + (size_t)(tap / 3);
            const int band = 2 * (int)(item % BANDS_2) + tap % 3 - 1;
            if (band < 0 || band >= BANDS_1)
                memset(to, 0, channels * sizeof *to);
            else
                memcpy(to, t->first_conv + (row * BANDS_1 + (size_t)band) * channels, channels * sizeof *to);
        }
    }
}

static void finish_second(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    const int channels = t->a->channels[1];
    float *x = t->subsampled + (size_t)(t->group - t->first) * BANDS_2 * (size_t)channels;
    for (size_t item = begin; item < end; item++)
        centre_and_rectify(x + item * (size_t)channels, t->a->weights->vector[AUDIO_CONV_1_NORM], channels,
                           (double)t->a->rms_eps);
}

static void subsample(sound_run *t) {
    const audio_model *a = t->a;
    const int rows = chunk_rows(t);
    for (t->group = t->first; t->group < t->first + rows; t->group += GROUP) {
        const int left = t->first + rows - t->group, n = left < GROUP ? left : GROUP;
        float *to = t->subsampled + (size_t)(t->group - t->first) * BANDS_2 * (size_t)a->channels[1];
        rows_run(t->m, 2 * n + 1, TAPS * BANDS_1 * a->channels[0], first_convolution, t);
        rows_run(t->m, n * BANDS_2, TAPS * a->channels[0], gather, t);
        multiply(t, &a->weights->matrix[AUDIO_CONV_1], t->columns, n * BANDS_2, to);
        rows_run(t->m, n * BANDS_2, a->channels[1], finish_second, t);
    }
    multiply(t, &a->weights->matrix[AUDIO_INPUT], t->subsampled, rows, row_of(t, t->h, 0));
}

/* ---------------------------------------------------------------------------------------------------- feed-forward */

/* x = norm(h) */
static void norm_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    for (size_t row = begin; row < end; row++)
        t->m->kernels->rms_norm(row_of(t, t->h, row), weights_of(t)->vector[t->role], t->a->hidden, t->a->rms_eps,
                                t->x + row * hidden_of(t));
}

/* h += share * norm(branch) */
static void add_branch(const sound_run *t, audio_role norm, float share, size_t begin, size_t end) {
    const cpu_kernels *kernels = t->m->kernels;
    for (size_t row = begin; row < end; row++) {
        float *branch = t->branch + row * hidden_of(t);
        kernels->rms_norm(branch, weights_of(t)->vector[norm], t->a->hidden, t->a->rms_eps, branch);
        kernels->axpy(share, branch, t->a->hidden, row_of(t, t->h, row));
    }
}

static void add_share(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    add_branch(t, t->role, t->a->residual, begin, end);
}

static void add_whole(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    add_branch(t, t->role, 1, begin, end);
}

static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

static void activate_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    const size_t width = (size_t)t->a->intermediate;
    for (size_t i = begin * width; i < end * width; i++) t->act[i] *= sigmoid(t->act[i]);
}

static void each_row(sound_run *t, audio_role role, int values, range_task task) {
    t->role = role;
    rows_run(t->m, chunk_rows(t), values, task, t);
}

/* `pre`: the first of the block's four roles, which follow each other. */
static void feed_forward(sound_run *t, audio_role pre) {
    each_row(t, pre, 2 * t->a->hidden, norm_rows);
    product(t, pre + 1, t->x, t->act);
    each_row(t, AUDIO_NONE, 8 * t->a->intermediate, activate_rows);
    product(t, pre + 2, t->act, t->branch);
    each_row(t, pre + 3, 2 * t->a->hidden, add_share);
}

/* ------------------------------------------------------------------------------------------------------- attention */

/* Keys of the distances 0 to reach - 1: the sine and cosine of each through a matrix. */
static void make_relative(sound_run *t) {
    const int half = t->a->hidden / 2;
    const double step = log(10000) / max_int(half - 1, 1);
    for (int d = 0; d < t->a->reach; d++) {
        float *row = t->columns + (size_t)d * hidden_of(t);
        for (int i = 0; i < half; i++) {
            const double angle = d * exp(-i * step);
            row[i] = (float)sin(angle);
            row[half + i] = (float)cos(angle);
        }
    }
    multiply(t, &weights_of(t)->matrix[AUDIO_RELATIVE_K], t->columns, t->a->reach, t->relative);
}

static float inner(const float *a, const float *b, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* One head of a row over itself and the rows before it; the result lies where the query was. */
static void attend_head(const sound_run *t, int at, size_t offset, float *q, float *weights) {
    const int d = t->a->head_dim, n = at + 1 < t->a->reach ? at + 1 : t->a->reach;
    const float cap = t->a->cap;
    float most = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) {
        const size_t key = (size_t)(at - i) * hidden_of(t) + offset;
        const float s = inner(q, t->k + key, d) + inner(q, t->relative + (size_t)i * hidden_of(t) + offset, d);
        weights[i] = cap * tanhf(s / cap);
        if (weights[i] > most) most = weights[i];
    }
    for (int i = 0; i < n; i++) sum += weights[i] = expf(weights[i] - most);
    memset(q, 0, (size_t)d * sizeof *q);
    for (int i = 0; i < n; i++)
        t->m->kernels->axpy(weights[i] / sum, t->v + (size_t)(at - i) * hidden_of(t) + offset, d, q);
}

static void attend_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    enum { MOST_REACH = 1 << 10 };
    const sound_run *t = context;
    float weights[MOST_REACH];
    for (size_t row = begin; row < end; row++)
        for (int head = 0; head < t->a->heads; head++) {
            const size_t offset = (size_t)head * (size_t)t->a->head_dim;
            attend_head(t, t->first + (int)row, offset, t->q + row * hidden_of(t) + offset, weights);
        }
}

/* Queries are scaled for both terms of a score, keys for the first alone. */
static void scale_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    const int d = t->a->head_dim;
    const double of_query = 1 / (sqrt(d) * log(2)), of_key = log(1 + exp(1)) / log(2);
    const float *scale = weights_of(t)->vector[AUDIO_DIM_SCALE];
    for (size_t row = begin; row < end; row++) {
        float *q = t->q + row * hidden_of(t), *k = row_of(t, t->k, row);
        for (int i = 0; i < t->a->hidden; i++) {
            q[i] *= (float)(of_query * (double)scale[i % d]);
            k[i] *= (float)of_key;
        }
    }
}

static void attention(sound_run *t) {
    if (t->first == 0) make_relative(t);
    each_row(t, AUDIO_PRE_ATTENTION_NORM, 2 * t->a->hidden, norm_rows);
    product(t, AUDIO_Q, t->x, t->q);
    product(t, AUDIO_K, t->x, row_of(t, t->k, 0));
    product(t, AUDIO_V, t->x, row_of(t, t->v, 0));
    each_row(t, AUDIO_NONE, 8 * t->a->hidden, scale_rows);
    each_row(t, AUDIO_NONE, 3 * t->a->reach * t->a->hidden, attend_rows);
    product(t, AUDIO_POST, t->q, t->branch);
    each_row(t, AUDIO_POST_ATTENTION_NORM, 2 * t->a->hidden, add_whole);
}

/* ----------------------------------------------------------------------------------------------------- convolution */

static void gate_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    const size_t n = hidden_of(t);
    for (size_t row = begin; row < end; row++) {
        const float *x = t->act + row * 2 * n;
        float *out = row_of(t, t->gated, row);
        for (size_t i = 0; i < n; i++) out[i] = x[i] * sigmoid(x[n + i]);
    }
}

/* Over the row and those before it; then a norm and silu. */
static void convolve_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    const int n = t->a->hidden, taps = t->a->kernel;
    const float *kernel = weights_of(t)->vector[AUDIO_CONV_DEPTH];
    for (size_t row = begin; row < end; row++) {
        const int at = t->first + (int)row;
        float *x = t->x + row * (size_t)n;
        memset(x, 0, (size_t)n * sizeof *x);
        for (int j = 0; j < taps; j++) {
            const int from = at - taps + 1 + j;
            if (from < 0) continue;
            const float *y = t->gated + (size_t)from * (size_t)n;
            for (int i = 0; i < n; i++) x[i] += y[i] * kernel[i * taps + j];
        }
        t->m->kernels->rms_norm(x, weights_of(t)->vector[AUDIO_CONV_NORM], n, t->a->rms_eps, x);
        for (int i = 0; i < n; i++) x[i] *= sigmoid(x[i]);
    }
}

static void add_rows(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    for (size_t row = begin; row < end; row++)
        t->m->kernels->axpy(1.0f, t->branch + row * hidden_of(t), t->a->hidden, row_of(t, t->h, row));
}

static void convolution(sound_run *t) {
    each_row(t, AUDIO_CONV_PRE_NORM, 2 * t->a->hidden, norm_rows);
    product(t, AUDIO_CONV_START, t->x, t->act);
    each_row(t, AUDIO_NONE, 8 * t->a->hidden, gate_rows);
    each_row(t, AUDIO_NONE, 2 * t->a->kernel * t->a->hidden, convolve_rows);
    product(t, AUDIO_CONV_END, t->x, t->branch);
    each_row(t, AUDIO_NONE, 2 * t->a->hidden, add_rows);
}

static void norm_in_place(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    for (size_t row = begin; row < end; row++) {
        float *h = row_of(t, t->h, row);
        t->m->kernels->rms_norm(h, weights_of(t)->vector[AUDIO_OUT_NORM], t->a->hidden, t->a->rms_eps, h);
    }
}

/* ------------------------------------------------------------------------------------------------------ projection */

static void norm_output(void *context, size_t begin, size_t end, int thread) {
    (void)thread;
    const sound_run *t = context;
    const size_t n = (size_t)t->a->output;
    const float *bias = t->a->weights->vector[AUDIO_OUTPUT_BIAS];
    for (size_t row = begin; row < end; row++) {
        float *out = t->out + row * n;
        if (bias) t->m->kernels->axpy(1.0f, bias, (int)n, out);
        t->m->kernels->rms_norm(out, NULL, (int)n, t->a->rms_eps, out);
    }
}

static void project(sound_run *t) {
    const audio_model *a = t->a;
    const int rows = chunk_rows(t);
    const size_t values = (size_t)rows * (size_t)a->output;
    if (a->conformer)
        multiply(t, &a->weights->matrix[AUDIO_OUTPUT], row_of(t, t->h, 0), rows, t->out);
    else
        memcpy(t->out, t->input + (size_t)t->first * (size_t)a->output, values * sizeof *t->out);
    each_row(t, AUDIO_NONE, 3 * a->output, norm_output);
    multiply(t, &a->weights->matrix[AUDIO_PROJECTION], t->out, rows,
             t->soft + (size_t)t->first * (size_t)a->text_hidden);
}

/* ---------------------------------------------------------------------------------------------------------- pieces */

static void run_block(sound_run *t) {
    switch ((conformer_block)t->block) {
    case BLOCK_FF_1:
        feed_forward(t, AUDIO_FF_1_PRE_NORM);
        break;
    case BLOCK_ATTENTION:
        attention(t);
        break;
    case BLOCK_CONVOLUTION:
        convolution(t);
        break;
    default:
        feed_forward(t, AUDIO_FF_2_PRE_NORM);
        each_row(t, AUDIO_NONE, 2 * t->a->hidden, norm_in_place);
    }
}

/* The next piece. True: that was the last one. */
static bool run_piece(sound_run *t) {
    const bool inside = t->layer >= 0 && t->layer < t->a->layers;
    if (inside)
        run_block(t);
    else if (t->layer < 0)
        subsample(t);
    else
        project(t);
    if (inside && ++t->block < BLOCKS) return false;
    t->block = 0;
    t->first += CHUNK;
    if (t->first < t->rows) return false;
    t->first = 0;
    return t->layer++ == t->a->layers;
}

/* ---------------------------------------------------------------------------------------------------------- memory */

typedef struct room {
    float **at;
    size_t floats;
} room;

enum { ROOMS = 15 };

static void list_rooms(sound_run *t, room out[ROOMS]) {
    const audio_model *a = t->a;
    const size_t rows = (size_t)t->rows, hidden = (size_t)a->hidden, chunk = CHUNK, one = a->conformer ? 1 : 0;
    const size_t kept = one * rows * hidden, some = one * chunk * hidden, wide = one * chunk * (size_t)a->intermediate;
    const size_t taps = GROUP * BANDS_2 * TAPS * (size_t)a->channels[0], sines = (size_t)a->reach * hidden;
    const room rooms[ROOMS] = {
        {&t->input, a->conformer ? (size_t)t->frames * LOG_MEL_BANDS : rows * (size_t)a->frame},
        {&t->h, kept},
        {&t->k, kept},
        {&t->v, kept},
        {&t->gated, kept},
        {&t->x, some},
        {&t->q, some},
        {&t->branch, some},
        {&t->act, wide},
        {&t->clamped, a->clipped ? wide : 0},
        {&t->relative, sines},
        {&t->first_conv, (2 * GROUP + 1) * BANDS_1 * (size_t)a->channels[0]},
        {&t->columns, taps > sines ? taps : sines},
        {&t->subsampled, chunk * BANDS_2 * (size_t)a->channels[1]},
        {&t->out, chunk * (size_t)a->output},
    };
    memcpy(out, rooms, sizeof rooms);
}

/* Values of the widest input of a product, and rows of the tallest. */
static int widest_of(const audio_model *a) {
    const int conv = max_int(TAPS * a->channels[0], BANDS_2 * a->channels[1]);
    return max_int(max_int(conv, a->output), a->intermediate);
}
static int tallest_of(const audio_model *a) { return max_int(max_int(CHUNK, GROUP * BANDS_2), a->reach); }

static packing_set packings_of(const sound_run *t) {
    packing_set packings = 0;
    for (int layer = 0; layer <= t->a->layers; layer++)
        for (int role = 0; role < AUDIO_ROLES; role++)
            if (weight_present(&t->a->weights[layer].matrix[role]))
                packings |= packing_exact(t->m, &t->a->weights[layer].matrix[role]);
    return packings;
}

static kakeya_status allocate(sound_run *t, kakeya_error *error) {
    room rooms[ROOMS];
    list_rooms(t, rooms);
    for (size_t i = 0; i < ROOMS; i++) {
        if (!rooms[i].floats) continue;
        *rooms[i].at = mem_alloc(t->m->account, MEM_WORKSPACE, rooms[i].floats * sizeof(float));
        if (!*rooms[i].at)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "a sound of %d tokens: out of memory", t->rows);
    }
    return packed_rows_create(t->m, &t->packed, tallest_of(t->a), widest_of(t->a), packings_of(t), error);
}

static int rows_of(const audio_model *a, size_t samples) { return (int)audio_model_rows(a, samples); }

/* Convolutions' matrices are float32, whatever the others are. */
size_t cpu_sound_bytes(const audio_model *a, weight_format format, size_t samples) {
    const cpu_kernels *kernels = cpu_kernels_find(NULL);
    sound_run t = {.a = a, .rows = rows_of(a, samples), .frames = (int)log_mel_frames(samples)};
    const cpu_packing packing[] = {kernels->weight[format].product[INPUT_EXACT].packing,
                                   kernels->weight[WEIGHT_F32].product[INPUT_EXACT].packing};
    const int packings = a->conformer && packing[0] != packing[1] ? 2 : 1;
    room rooms[ROOMS];
    size_t bytes = 0;
    list_rooms(&t, rooms);
    for (int i = 0; i < packings; i++)
        bytes += mem_rounded((size_t)tallest_of(a) * kernels->packing[packing[i]].row_bytes(widest_of(a)));
    for (size_t i = 0; i < ROOMS; i++)
        if (rooms[i].floats) bytes += mem_rounded(rooms[i].floats * sizeof(float));
    return bytes;
}

void cpu_sound_end(backend_hearing *t) {
    room rooms[ROOMS];
    list_rooms(t, rooms);
    for (size_t i = 0; i < ROOMS; i++) mem_free(*rooms[i].at);
    packed_rows_destroy(&t->packed);
    free(t);
}

kakeya_status cpu_sound_begin(backend_model *m, const backend_sound *sound, float *rows, backend_hearing **out,
                              kakeya_error *error) {
    const audio_model *a = sound->audio;
    *out = NULL;
    sound_run *t = calloc(1, sizeof *t);
    if (!t) return error_set(error, KAKEYA_OUT_OF_MEMORY, "a sound: out of memory");
    *t = (sound_run){.m = m, .a = a, .soft = rows, .layer = a->conformer ? -1 : a->layers};
    t->rows = rows_of(a, sound->n);
    t->frames = (int)log_mel_frames(sound->n);
    kakeya_status status = allocate(t, error);
    if (status != KAKEYA_OK) {
        cpu_sound_end(t);
        return status;
    }
    if (a->conformer) {
        log_mel(sound->samples, sound->n, t->input);
    } else {
        const size_t all = (size_t)t->rows * (size_t)a->frame;
        memcpy(t->input, sound->samples, sound->n * sizeof *t->input);
        memset(t->input + sound->n, 0, (all - sound->n) * sizeof *t->input);
    }
    *out = t;
    return KAKEYA_OK;
}

kakeya_status cpu_sound_step(backend_hearing *t, double seconds, bool *done, kakeya_error *error) {
    (void)error;
    const double end = clock_seconds() + seconds;
    do {
        *done = run_piece(t);
    } while (!*done && clock_seconds() < end);
    return KAKEYA_OK;
}
