#include "model/weight_format.h"

static const weight_format_info formats[WEIGHT_FORMAT_COUNT] = {
    [WEIGHT_F32] = {.name = "F32", .streams = 1, .stream = {{.values = 1, .rows = 1, .bytes = 4, .alignment = 4}}},
    [WEIGHT_F16] = {.name = "F16", .streams = 1, .stream = {{.values = 1, .rows = 1, .bytes = 2, .alignment = 2}}},
    [WEIGHT_BF16] = {.name = "BF16", .streams = 1, .stream = {{.values = 1, .rows = 1, .bytes = 2, .alignment = 2}}},
};

const weight_format_info *weight_format_find(weight_format format) { return &formats[format]; }

static size_t tiles(int n, int of, int group) {
    int size = of == WEIGHT_ALL ? n : of == WEIGHT_GROUP ? group : of;
    return size > 0 ? ((size_t)n + (size_t)size - 1) / (size_t)size : 0;
}

size_t weight_stream_row_bytes(const weight_stream *stream, int in, int group) {
    return tiles(in, stream->values, group) * (size_t)stream->bytes;
}

size_t weight_stream_bytes(const weight_stream *stream, int out, int in, int group) {
    return tiles(out, stream->rows, group) * weight_stream_row_bytes(stream, in, group);
}

size_t weight_format_bytes(const weight_format_info *info, int out, int in, int group) {
    size_t bytes = 0;
    for (int s = 0; s < info->streams; s++) bytes += weight_stream_bytes(&info->stream[s], out, in, group);
    return bytes;
}
