/* How matrices of a checkpoint become what lies on the device (weight_rows.h, quant.h), value by value. Needs no
 * device.
 */
#include <math.h>

#include "backend/cuda/matrix.h"
#include "backend/cuda/quant.h"
#include "backend/cuda/weight_rows.h"
#include "backend/groups.h"
#include "backend/weight_values.h"
#include "golden.h"

static uint32_t next_random(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

typedef struct made {
    weight w;
    void *streams[WEIGHT_STREAMS];
} made;

/* Where a block of a GGUF file has float16 scales, one or two. */
static size_t place_of_scales(weight_format format) {
    return format == WEIGHT_Q6_K ? 208 : format == WEIGHT_Q3_K ? 108 : format == WEIGHT_Q2_K ? 80 : 0;
}

static int scales_of_block(weight_format format) {
    bool two = format == WEIGHT_Q4_1 || format == WEIGHT_Q5_1 || format == WEIGHT_Q4_K || format == WEIGHT_Q5_K ||
               format == WEIGHT_Q2_K;
    return format == WEIGHT_MXFP4 || format == WEIGHT_NVFP4 ? 0 : two ? 2 : 1;
}

/* A scale of a grouped format, between 1/128 and 1/64 where it is a float; a zero point. */
static void make_scale(weight_format format, size_t bytes, unsigned char *to) {
    uint32_t random = next_random();
    float wide = f16_to_f32((uint16_t)(0x2000 | (random & 0x83ff))) * (1 + (float)(next_random() & 0xffff) * 0x1p-20f);
    uint16_t narrow = f32_to_bf16(wide);
    if (bytes == sizeof wide)
        memcpy(to, &wide, sizeof wide);
    else if (bytes == sizeof narrow)
        memcpy(to, &narrow, sizeof narrow);
    else if (format == WEIGHT_FP8_E8M0 || format == WEIGHT_FP4_E8M0)
        *to = (unsigned char)(120 + random % 8);
    else if (format == WEIGHT_INT4_ZERO)
        *to = random & 15;
    else
        *to = (unsigned char)((random & 0x7f) == 0x7f ? 0 : random); /* as a float a number */
}

/* Random codes; scales of GGUF blocks are between 1/128 and 1/64, too. */
static made make_grouped(weight_format format, int out, int in, int group) {
    const weight_format_info *info = weight_format_find(format);
    made m = {0};
    m.w = weight_matrix(format, NULL, out, in);
    m.w.group = group;
    m.w.scale_type = DTYPE_BF16;
    for (int s = 0; s < info->streams; s++) {
        size_t block = (size_t)info->stream[s].bytes, n = weight_stream_bytes(&info->stream[s], out, in, group) / block;
        unsigned char *bytes = malloc(n * block);
        for (size_t i = 0; i < n * block; i++) bytes[i] = (unsigned char)next_random();
        for (size_t b = 0; b < n; b++) {
            unsigned char *at = bytes + b * block;
            if (s > 0) {
                make_scale(format, block, at);
            } else if (!weight_format_is_grouped(format)) {
                uint16_t scale = (uint16_t)(0x2000 | (next_random() & 0x83ff));
                for (int i = 0; i < scales_of_block(format); i++)
                    memcpy(at + place_of_scales(format) + 2 * i, &scale, sizeof scale);
            } else if (format == WEIGHT_FP8 || format == WEIGHT_FP8_E8M0) {
                for (size_t i = 0; i < block; i++)
                    if ((at[i] & 0x7f) == 0x7f) at[i] ^= 1; /* no number */
            }
        }
        m.w.stream[s] = m.streams[s] = bytes;
    }
    return m;
}

static made make_blocks(weight_format format, int out, int in) {
    bool nv = format == WEIGHT_FP4_E4M3 || format == WEIGHT_FP4_E4M3_DIV;
    return make_grouped(format, out, in, !weight_format_is_grouped(format) ? 0 : nv ? 16 : 32);
}

static void free_blocks(made *m) {
    for (int s = 0; s < WEIGHT_STREAMS; s++) free(m->streams[s]);
}

static void row_values(const weight *w, int row, float *out) { weight_values(w, row, 0, w->in, out); }

/* As quant.h says where values lie. */
static float placed_value(const cuda_matrix *m, const unsigned char *data, int row, int k) {
    const unsigned char *unit = data + (size_t)(row / QUANT_ROWS) * quant_strip_bytes(m->form, m->ld) +
                                (size_t)(k / QUANT_VALUES) * (size_t)quant_unit_bytes(m->form);
    int g = row % QUANT_ROWS, block = k % QUANT_VALUES / QUANT_BLOCK, in_block = k % QUANT_BLOCK;
    int j = quant_place(m->form, in_block);
    const unsigned char *lane = unit + quant_lane_offset(m->form, g * 4 + quant_lane(m->form, in_block));
    const unsigned char *scales = unit + quant_scale_offset(m->form, g, block);
    int code = quant_is_narrow(m->form) ? (int)(block_u32(lane + 4 * block) >> quant_q4_shift(j) & 15)
                                        : lane[8 * block + quant_q8_byte(j)];
    switch (m->form) {
    case CUDA_FORM_Q4:
        return block_f16(scales) * (float)(code - 8);
    case CUDA_FORM_Q8:
        return block_f16(scales) * (float)(int8_t)code;
    case CUDA_FORM_G8:
        return group_float(scales, (size_t)in_block / 16) * (float)(int8_t)code;
    case CUDA_FORM_S4:
        return group_float(scales, 0) * (float)(code - 8);
    case CUDA_FORM_G4:
        return group_float(scales, (size_t)in_block / 16) * (float)fp4_values[code];
    case CUDA_FORM_F8:
        return group_float(scales, 0) * e4m3_to_f32((unsigned char)code);
    default:
        break;
    }
    float product = group_float(scales, 0) * (float)code;
    return product + group_float(scales, 1);
}

static void check_rows(const weight_source *source, const cuda_matrix *m, size_t piece) {
    size_t bytes = matrix_bytes(m->form, m->out, m->in);
    unsigned char *data = malloc(bytes);
    memset(data, 0xa5, bytes);
    for (size_t first = 0; first < (size_t)m->out; first += piece) {
        size_t n = (size_t)m->out - first < piece ? (size_t)m->out - first : piece;
        weight_rows_convert(source, m, first, n, data + weight_rows_bytes(m, first));
    }
    size_t whole = ((size_t)m->out + QUANT_ROWS - 1) / QUANT_ROWS * QUANT_ROWS; /* what is more stays zero */
    assert_int_equal(weight_rows_bytes(m, whole), bytes);
    float *values = calloc((size_t)source->first->in, sizeof *values);
    for (int row = 0; row < m->out; row++) {
        int rows = source->cut.rows, group = row / rows, of_group = row % rows;
        const weight *w = source->second && group % 2 ? source->second : source->first;
        if (source->second) group /= 2;
        row_values(w, group * source->cut.period + source->cut.first_row + of_group, values);
        for (int k = 0; k < m->in; k++) {
            float want = values[source->cut.first_column + k];
            if (m->form == CUDA_FORM_BF16) {
                assert_int_equal(((const uint16_t *)(const void *)data)[row * m->ld + k], f32_to_bf16(want));
            } else {
                float placed = placed_value(m, data, row, k);
                /* scale times factor is rounded before the code comes in, and not behind it */
                bool next = w->format == WEIGHT_NVFP4 && fabsf(placed - want) <= fabsf(want) * 0x1p-23f;
                if (placed != want && !next)
                    fail_msg("%s: row %d value %d is %.9g instead of %.9g", weight_format_name(w->format), row, k,
                             (double)placed, (double)want);
            }
        }
    }
    if (m->form != CUDA_FORM_BF16) { /* behind the last row and the last value */
        int rows = (m->out + QUANT_ROWS - 1) / QUANT_ROWS * QUANT_ROWS, width = quant_units(m->ld) * QUANT_VALUES;
        for (int row = 0; row < rows; row++) {
            for (int k = row < m->out ? m->in : 0; k < width; k++) assert_true(placed_value(m, data, row, k) == 0);
        }
    }
    free(values);
    free(data);
}

static cuda_matrix matrix_of(const weight_source *source, cuda_form form) {
    return (cuda_matrix){.form = form,
                         .out = weight_source_out(source),
                         .in = source->cut.columns,
                         .ld = cuda_padded(source->cut.columns)};
}

static void every_format(void **state) {
    (void)state;
    static const struct {
        weight_format format;
        cuda_form form;
    } cases[] = {
        {WEIGHT_Q4_0, CUDA_FORM_Q4},        {WEIGHT_Q5_0, CUDA_FORM_Q8},      {WEIGHT_Q8_0, CUDA_FORM_Q8},
        {WEIGHT_IQ4_NL, CUDA_FORM_Q8},      {WEIGHT_Q4_1, CUDA_FORM_A4},      {WEIGHT_Q5_1, CUDA_FORM_A8},
        {WEIGHT_Q4_K, CUDA_FORM_A4},        {WEIGHT_Q5_K, CUDA_FORM_A8},      {WEIGHT_Q6_K, CUDA_FORM_G8},
        {WEIGHT_AFFINE_3, CUDA_FORM_A4},    {WEIGHT_AFFINE_4, CUDA_FORM_A4},  {WEIGHT_AFFINE_5, CUDA_FORM_A8},
        {WEIGHT_AFFINE_8, CUDA_FORM_A8},    {WEIGHT_FP8, CUDA_FORM_F8},       {WEIGHT_FP8_E8M0, CUDA_FORM_F8},
        {WEIGHT_Q3_K, CUDA_FORM_G4},        {WEIGHT_IQ4_XS, CUDA_FORM_G8},    {WEIGHT_INT4, CUDA_FORM_S4},
        {WEIGHT_INT8, CUDA_FORM_G8},        {WEIGHT_INT4_ZERO, CUDA_FORM_A4}, {WEIGHT_INT8_ZERO, CUDA_FORM_A8},
        {WEIGHT_INT8_SIGNED, CUDA_FORM_G8}, {WEIGHT_MXFP4, CUDA_FORM_G4},     {WEIGHT_FP4_E8M0, CUDA_FORM_G4},
        {WEIGHT_NVFP4, CUDA_FORM_G4},       {WEIGHT_FP4_E4M3, CUDA_FORM_G4},  {WEIGHT_FP4_E4M3_DIV, CUDA_FORM_G4},
        {WEIGHT_Q2_K, CUDA_FORM_BF16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static const int shapes[][2] = {{8, 32}, {20, 96}, {64, 704}, {3, 64}};
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            int block = weight_format_find(cases[i].format)->stream[0].values;
            made m = make_blocks(cases[i].format, shapes[s][0], (shapes[s][1] + block - 1) / block * block);
            weight_source source = {.first = &m.w, .cut = model_cut_nothing(&m.w)};
            assert_int_equal(weight_source_form(&source), cases[i].form);
            assert_int_equal(weight_source_rounds(&source, cases[i].form), cases[i].form == CUDA_FORM_BF16);
            cuda_matrix matrix = matrix_of(&source, cases[i].form);
            check_rows(&source, &matrix, 64);
            check_rows(&source, &matrix, 8);
            matrix.form = CUDA_FORM_BF16;
            check_rows(&source, &matrix, 8);
            free_blocks(&m);
        }
    }
}

/* Groups of more than a block, of whole rows, and of what no block is; scales in float16. */
static void groups(void **state) {
    (void)state;
    static const struct {
        weight_format format;
        int in, group;
        dtype scales;
        cuda_form form;
    } cases[] = {
        {WEIGHT_INT4, 256, 128, DTYPE_BF16, CUDA_FORM_S4},     {WEIGHT_INT4, 256, 128, DTYPE_F16, CUDA_FORM_Q4},
        {WEIGHT_INT4_ZERO, 96, 96, DTYPE_F16, CUDA_FORM_A4},   {WEIGHT_INT8, 96, 96, DTYPE_BF16, CUDA_FORM_G8},
        {WEIGHT_INT8, 96, 96, DTYPE_F16, CUDA_FORM_Q8},        {WEIGHT_INT8_ZERO, 192, 64, DTYPE_BF16, CUDA_FORM_A8},
        {WEIGHT_INT8_SIGNED, 96, 96, DTYPE_F32, CUDA_FORM_G8}, {WEIGHT_INT8_SIGNED, 144, 48, DTYPE_F32, CUDA_FORM_BF16},
        {WEIGHT_FP4_E4M3, 48, 16, DTYPE_F32, CUDA_FORM_BF16}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        made m = make_grouped(cases[i].format, 24, cases[i].in, cases[i].group);
        m.w.scale_type = cases[i].scales;
        weight_source source = {.first = &m.w, .cut = model_cut_nothing(&m.w)};
        assert_int_equal(weight_source_form(&source), cases[i].form);
        cuda_matrix matrix = matrix_of(&source, cases[i].form);
        check_rows(&source, &matrix, 16);
        free_blocks(&m);
    }
}

/* Shares of devices: whole blocks stay codes, others become bf16. */
static void parts(void **state) {
    (void)state;
    made m = make_blocks(WEIGHT_Q4_0, 96, 192);
    static const struct {
        matrix_cut cut;
        cuda_form form;
    } cases[] = {{{96, 16, 48, 0, 192}, CUDA_FORM_Q4},
                 {{32, 8, 16, 0, 192}, CUDA_FORM_Q4},
                 {{96, 0, 96, 96, 96}, CUDA_FORM_Q4},
                 {{96, 0, 96, 80, 80}, CUDA_FORM_BF16},  /* begins inside of a block */
                 {{32, 4, 12, 0, 192}, CUDA_FORM_BF16}}; /* an expert's rows are no whole strips */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weight_source source = {.first = &m.w, .cut = cases[i].cut};
        assert_int_equal(weight_source_form(&source), cases[i].form);
        cuda_matrix matrix = matrix_of(&source, cases[i].form);
        check_rows(&source, &matrix, 16);
    }
    free_blocks(&m);
}

/* Experts whose gate and up are two matrices. */
static void gate_and_up(void **state) {
    (void)state;
    made gate = make_blocks(WEIGHT_Q8_0, 5 * 24, 64), up = make_blocks(WEIGHT_Q8_0, 5 * 24, 64),
         other = make_blocks(WEIGHT_Q4_0, 5 * 24, 64);
    weight_source source = {.first = &gate.w, .second = &up.w, .cut = {24, 0, 24, 0, 64}};
    assert_int_equal(weight_source_out(&source), 2 * 5 * 24);
    assert_int_equal(weight_source_form(&source), CUDA_FORM_Q8);
    cuda_matrix matrix = matrix_of(&source, CUDA_FORM_Q8);
    check_rows(&source, &matrix, 40);
    source.cut = (matrix_cut){24, 8, 16, 32, 32}; /* of two devices */
    matrix = matrix_of(&source, weight_source_form(&source));
    assert_int_equal(matrix.form, CUDA_FORM_Q8);
    check_rows(&source, &matrix, 8);
    source.second = &other.w; /* of another form */
    assert_int_equal(weight_source_form(&source), CUDA_FORM_BF16);
    matrix = matrix_of(&source, CUDA_FORM_BF16);
    check_rows(&source, &matrix, 8);
    free_blocks(&gate);
    free_blocks(&up);
    free_blocks(&other);
}

/* Prompt rows can meet e4m3 in e4m3 where a scale is that of 128 values at least, and outputs come in sixteens. */
static void rounded_rows(void **state) {
    (void)state;
    static const struct {
        int group, rows, first_column;
        bool rounds;
    } cases[] = {{512, 64, 0, true},   {512, 64, 32, true}, {128, 16, 256, true}, {256, 64, 128, true},
                 {128, 64, 64, false}, {64, 64, 0, false},  {32, 64, 0, false},   {512, 24, 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weight w = weight_matrix(WEIGHT_FP8, NULL, 5 * cases[i].rows, 512);
        w.group = cases[i].group;
        weight_source source = {.first = &w, .cut = {cases[i].rows, 0, cases[i].rows, cases[i].first_column, 256}};
        if (weight_source_rounds_rows(&source) != cases[i].rounds) fail_msg("case %zu", i);
        w.format = WEIGHT_Q8_0;
        assert_false(weight_source_rounds_rows(&source));
    }
}

/* Products may leave all scales but the first of a row out, where they are equal. */
static void one_scale(void **state) {
    (void)state;
    static const struct {
        weight_format format;
        int group;
        bool one;
    } cases[] = {{WEIGHT_FP8, 512, true},
                 {WEIGHT_FP8, 256, false},
                 {WEIGHT_FP8, 32, false},
                 {WEIGHT_FP8_E8M0, 512, false},
                 {WEIGHT_AFFINE_8, 512, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        weight w = weight_matrix(cases[i].format, NULL, 64, 512), plain = weight_matrix(WEIGHT_FP8, NULL, 64, 512);
        w.group = cases[i].group;
        plain.group = 512;
        weight_source source = {.first = &w, .cut = {32, 0, 32, 256, 256}};
        assert_int_equal(weight_source_has_one_scale(&source), cases[i].one);
        source = (weight_source){.first = &plain, .second = &w, .cut = {32, 0, 32, 256, 256}};
        assert_int_equal(weight_source_has_one_scale(&source), cases[i].one);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format), cmocka_unit_test(groups),       cmocka_unit_test(parts),
        cmocka_unit_test(gate_and_up),  cmocka_unit_test(rounded_rows), cmocka_unit_test(one_scale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
