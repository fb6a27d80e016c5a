/* What rows see, as tables for the device. A restored position, a column, a row: all are numbered segment after
 * segment. */
#include <string.h>

#include "backend/cuda/distil.h"

enum { COLUMN_INTS = sizeof(train_column) / sizeof(int) };

static int smaller(int a, int b) { return a < b ? a : b; }
static int later(int a, int b) { return a > b ? a : b; }
/* Products on tensor cores take values in eights. */
static int in_eights(int n) { return (n + 7) / 8 * 8; }

int train_most_restored(const backend_restoration_trainer *s, int type) {
    int window = s->m->config->sliding_window + s->o.rows;
    return type == LAYER_SLIDING ? smaller(window, s->o.sequence) : s->o.sequence;
}

int train_most_columns(const backend_restoration_trainer *s, int type) {
    int exact = type == LAYER_SLIDING ? smaller(s->m->config->sliding_window, s->o.sequence) : s->o.sequence;
    return in_eights(exact + train_most_restored(s, type) + s->o.rows);
}

size_t train_table_ints(const backend_restoration_trainer *s) {
    size_t b = (size_t)s->together, segments = b * (size_t)s->o.segments, t = (size_t)in_eights(s->o.sequence),
           rows = segments * (size_t)s->o.rows, restored = segments * t, n = 0;
    n += 2 * b * t + b + COLUMN_INTS * b * t; /* the teacher's tokens, positions, first rows, columns */
    n += 3 * rows + 3 * segments + restored;  /* the student's, and the restored positions */
    for (int type = 0; type < 2; type++)
        n += COLUMN_INTS * segments * (size_t)train_most_columns(s, type) + 3 * restored + 2 * segments + 1;
    return n + 64;
}

/* Room for n numbers; `device` gets its address there. */
static int *take(distil_tables *t, size_t n, const int **device) {
    size_t at = t->ints;
    t->ints += (n + 3) / 4 * 4;
    *device = t->device + at;
    return t->host + at;
}

static train_column *take_columns(distil_tables *t, size_t n, const train_column **device) {
    const int *at;
    int *host = take(t, n * COLUMN_INTS, &at);
    *device = (const train_column *)(const void *)at;
    return (train_column *)(void *)host;
}

/* Sequences of one length: shorter ones are continued with a token that nobody sees. */
static void lay_teacher(backend_restoration_trainer *s, const restoration_trainer_sequence *sequences, int n,
                        int length) {
    distil_pass *p = &s->teacher;
    *p = (distil_pass){.teacher = true, .items = n, .per = length, .rows = n * length};
    size_t rows = (size_t)p->rows;
    int *tokens = take(&s->tables, rows, &p->tokens), *position = take(&s->tables, rows, &p->position);
    const int *first_device;
    const train_column *column_device;
    int *first = take(&s->tables, (size_t)n, &first_device);
    train_column *column = take_columns(&s->tables, rows, &column_device);
    for (int i = 0; i < n; i++) {
        first[i] = 0;
        for (int t = 0; t < length; t++) {
            int row = i * length + t;
            tokens[row] = t < sequences[i].n ? sequences[i].tokens[t] : 0;
            position[row] = t;
            column[row] = (train_column){t, TRAIN_OWN, row};
        }
    }
    for (int type = 0; type < 2; type++)
        p->mask[type] = (train_mask){.column = column_device,
                                     .first = first_device,
                                     .items = n,
                                     .rows = length,
                                     .columns = length,
                                     .sliding = type == LAYER_SLIDING ? s->m->config->sliding_window : 0};
}

/* Positions that a layer of a kind has restored in a segment: [begin, end). */
typedef struct stretch {
    int begin, end;
} stretch;

static stretch restored_span(const backend_restoration_trainer *s, const restoration_trainer_segment *g, int type) {
    bool forced = distil_compares_attention(s->o.loss);
    int behind = forced ? 0 : s->o.sink, evicting = g->prompt ? 0 : s->o.rows,
        end = forced ? g->first + s->o.rows : g->first + evicting - s->o.window,
        slides = later(behind, g->first - s->m->config->sliding_window + 1);
    stretch p = {type == LAYER_SLIDING ? slides : behind, end};
    if (type == LAYER_FULL && !g->all_layers) p.begin = end;
    if (p.begin > p.end) p.begin = p.end;
    return p;
}

/* Columns of a segment. Returns their number. */
static int lay_columns(const backend_restoration_trainer *s, const restoration_trainer_segment *g, int type, int native,
                       int restored, int own, train_column *out) {
    bool forced = distil_compares_attention(s->o.loss), rule = type == LAYER_SLIDING || g->all_layers;
    int n = 0, oldest = type == LAYER_SLIDING ? later(0, g->first - s->m->config->sliding_window + 1) : 0;
    for (int p = oldest; p < g->first && !forced; p++) {
        bool exact = !rule || p < s->o.sink || p > g->first - g->prompt - s->o.window;
        if (exact) out[n++] = (train_column){p, TRAIN_EXACT, native + p};
    }
    stretch span = restored_span(s, g, type);
    for (int p = span.begin; p < span.end; p++) out[n++] = (train_column){p, TRAIN_RESTORED, restored++};
    for (int i = 0; i < s->o.rows && !forced; i++) out[n++] = (train_column){g->first + i, TRAIN_OWN, own + i};
    return n;
}

/* A chunk's segments in order, each with the number of its sequence. */
typedef struct numbered {
    const restoration_trainer_segment *segment;
    int sequence;
} numbered;

static void lay_student(backend_restoration_trainer *s, const restoration_trainer_sequence *sequences,
                        const numbered *all, int segments, int length) {
    distil_pass *p = &s->student;
    int per = s->o.rows;
    *p = (distil_pass){.items = segments, .per = per, .rows = segments * per};
    size_t rows = (size_t)p->rows;
    int *tokens = take(&s->tables, rows, &p->tokens), *position = take(&s->tables, rows, &p->position),
        *native = take(&s->tables, rows, &s->row_native);
    const int *first_device, *flag_device, *prompt_device;
    int *first = take(&s->tables, (size_t)segments, &first_device),
        *flag = take(&s->tables, (size_t)segments, &flag_device),
        *prompt = take(&s->tables, (size_t)segments, &prompt_device);
    for (int i = 0; i < segments; i++) {
        const restoration_trainer_segment *g = all[i].segment;
        first[i] = g->first;
        flag[i] = g->all_layers;
        prompt[i] = g->prompt;
        for (int r = 0; r < per; r++) {
            tokens[i * per + r] = sequences[all[i].sequence].tokens[g->first + r];
            position[i * per + r] = g->first + r;
            native[i * per + r] = all[i].sequence * length + g->first + r;
        }
    }
    for (int type = 0; type < 2; type++) {
        const train_column *column_device;
        int most = train_most_columns(s, type), widest = 8, restored = 0, count[2];
        train_column *column = take_columns(&s->tables, (size_t)segments * (size_t)most, &column_device);
        for (int pass = 0; pass < 2; pass++) { /* first how many there are, then where they lie */
            restored = 0;
            for (int i = 0; i < segments; i++) {
                train_column *to = pass ? column + (size_t)i * (size_t)widest : column;
                count[0] = lay_columns(s, all[i].segment, type, all[i].sequence * length, restored, i * per, to);
                stretch span = restored_span(s, all[i].segment, type);
                restored += span.end - span.begin;
                if (!pass) widest = later(widest, in_eights(count[0]));
                for (int c = count[0]; pass && c < widest; c++) to[c] = (train_column){0, TRAIN_NO_COLUMN, 0};
            }
        }
        p->mask[type] = (train_mask){.column = column_device,
                                     .first = first_device,
                                     .restored = type == LAYER_SLIDING ? NULL : flag_device,
                                     .prompt = prompt_device,
                                     .items = segments,
                                     .rows = per,
                                     .columns = widest,
                                     .sliding = type == LAYER_SLIDING ? s->m->config->sliding_window : 0,
                                     .rule = distil_compares_attention(s->o.loss) ? 2 : 1,
                                     .sink = s->o.sink,
                                     .window = s->o.window};
    }
}

static bool spreads(restoration_loss loss) {
    return loss != RESTORATION_LOSS_DISTIL && !distil_compares_attention(loss);
}

/* Position i of those that a segment has restored, and how many they are. */
static int restored_position(const backend_restoration_trainer *s, const restoration_trainer_segment *g, int length,
                             stretch all, int i) {
    if (!spreads(s->o.loss)) return all.begin + i;
    int step = length / s->o.rows, offset = step > 0 ? g->first % step : 0;
    return step > 0 ? i * step + offset : i % length;
}

static void lay_restored(backend_restoration_trainer *s, const restoration_trainer_sequence *sequences,
                         const numbered *all, int segments, int length) {
    size_t most = (size_t)segments * (size_t)s->o.sequence;
    int *native = take(&s->tables, most, &s->restored_native), *index[2], *position[2], *of[2], *begin[2];
    s->n_restored = 0;
    for (int type = 0; type < 2; type++) {
        distil_restored *r = &s->restored[type];
        index[type] = take(&s->tables, most, (const int **)&r->index);
        position[type] = take(&s->tables, most, (const int **)&r->position);
        of[type] = take(&s->tables, most, (const int **)&r->native);
        begin[type] = take(&s->tables, (size_t)segments + 1, (const int **)&r->begin);
        r->rows = 0;
    }
    for (int i = 0; i < segments; i++) {
        const restoration_trainer_segment *g = all[i].segment;
        int base = s->n_restored, first_native = all[i].sequence * length;
        stretch span[2];
        for (int type = 0; type < 2; type++) span[type] = restored_span(s, g, type);
        stretch whole = span[LAYER_SLIDING];
        if (span[LAYER_FULL].begin < whole.begin && g->all_layers) whole.begin = span[LAYER_FULL].begin;
        if (spreads(s->o.loss)) whole = span[0] = span[1] = (stretch){0, s->o.rows};
        for (int k = 0; k < whole.end - whole.begin; k++)
            native[s->n_restored++] = first_native + restored_position(s, g, sequences[all[i].sequence].n, whole, k);
        for (int type = 0; type < 2; type++) {
            distil_restored *r = &s->restored[type];
            begin[type][i] = r->rows;
            for (int k = span[type].begin - whole.begin; k < span[type].end - whole.begin; k++) {
                index[type][r->rows] = base + k;
                of[type][r->rows] = native[base + k];
                position[type][r->rows++] = native[base + k] - first_native;
            }
            begin[type][i + 1] = r->rows;
        }
    }
}

/* Of losses that look at each layer by itself: what a layer of a kind counts. */
static void lay_factors(backend_restoration_trainer *s, const numbered *all, int segments) {
    const model_config *c = s->m->config;
    int layers[2] = {0, 0};
    for (int i = 0; i < c->layers; i++) layers[c->layer[i].type]++;
    for (int type = 0; type < 2; type++) {
        const int *device;
        float *factor = (float *)(void *)take(&s->tables, (size_t)segments, &device);
        s->factor[type] = (const float *)(const void *)device;
        for (int i = 0; i < segments; i++) {
            bool all_layers = all[i].segment->all_layers;
            int counted = layers[LAYER_SLIDING] + (all_layers ? layers[LAYER_FULL] : 0);
            factor[i] = type == LAYER_SLIDING || all_layers ? 1.0f / (float)(counted > 0 ? counted : 1) : 0;
        }
    }
}

kakeya_status train_lay_tables(backend_restoration_trainer *s, const restoration_trainer_sequence *sequences, int n,
                               kakeya_error *error) {
    enum { MOST = 4096 };
    numbered all[MOST];
    int length = 8, segments = 0;
    for (int i = 0; i < n; i++) {
        length = later(length, in_eights(sequences[i].n));
        for (int k = 0; k < sequences[i].n_segments; k++) {
            if (segments == MOST) return error_set(error, KAKEYA_INVALID_ARGUMENT, "more than %d segments", MOST);
            all[segments++] = (numbered){&sequences[i].segments[k], i};
        }
    }
    s->tables.ints = 0;
    lay_teacher(s, sequences, n, length);
    lay_student(s, sequences, all, segments, length);
    lay_restored(s, sequences, all, segments, length);
    lay_factors(s, all, segments);
    s->scale = all[0].segment->scale;
    kakeya_status status = cuda_check(cudaMemcpyAsync(s->tables.device, s->tables.host, s->tables.ints * sizeof(int),
                                                      cudaMemcpyHostToDevice, s->launch.stream),
                                      "copying the tables of a step", error);
    return status;
}
