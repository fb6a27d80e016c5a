#include "model/weight.h"

weight weight_matrix(weight_format format, const void *data, int out, int in) {
    return (weight){.format = format, .out = out, .in = in, .stream = {data}};
}

weight weight_rows(const weight *w, int first, int n) {
    weight slice = *w;
    slice.first += first;
    slice.out = n;
    return slice;
}

size_t weight_row_bytes(const weight *w, int stream) {
    return weight_stream_row_bytes(&weight_format_find(w->format)->stream[stream], w->in, w->group);
}

const void *weight_row(const weight *w, int stream, int row) {
    const weight_stream *s = &weight_format_find(w->format)->stream[stream];
    size_t tile = s->rows == WEIGHT_ALL ? 0 : (size_t)(w->first + row) / (size_t)s->rows;
    return (const char *)w->stream[stream] + tile * weight_stream_row_bytes(s, w->in, w->group);
}

void weight_row_streams(const weight *w, int row, const void *streams[WEIGHT_STREAMS]) {
    int n = weight_format_find(w->format)->streams;
    for (int s = 0; s < n; s++) streams[s] = weight_row(w, s, row);
}

size_t weight_bytes(const weight *w) {
    return weight_format_bytes(weight_format_find(w->format), w->out, w->in, w->group);
}
