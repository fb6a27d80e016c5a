/* The small reference models as quantised directories of every form: random codes and scales under the names that each
 * tool gives them, and beside them the values that these mean, computed here. */
#ifndef KAKEYA_TESTS_QUANTISED_MODELS_H
#define KAKEYA_TESTS_QUANTISED_MODELS_H

#include <math.h>

#include "base/float16.h"
#include "formats/checkpoint.h"
#include "golden.h"
#include "scratch.h"

typedef enum stored_form {
    STORED_AFFINE, /* MLX: 4 bits in 32, some modules 3 in 64, the router 8 in 64; a gate of per-layer inputs with wide
                      scales */
    STORED_MLX_MXFP4,
    STORED_MLX_NVFP4,
    STORED_MLX_MXFP8,
    STORED_INT4,      /* compressed-tensors, a module per expert */
    STORED_INT4_ZERO, /* float32 scales in the first layer */
    STORED_INT8,
    STORED_W8A8,
    STORED_FP8_CHANNEL,
    STORED_FP8_BLOCK,
    STORED_NVFP4,
    STORED_MXFP4,
    STORED_MXFP8,
    STORED_MODELOPT_NVFP4,
    STORED_MODELOPT_FP8,
    STORED_FORMS
} stored_form;

static inline bool stored_by_mlx(stored_form form) { return form <= STORED_MLX_MXFP8; }

/* --- tensors to be written */

typedef struct made_tensor {
    char name[256];
    tensor_type type;
    int dims;
    int64_t shape[3];
    unsigned char *data;
    size_t bytes;
} made_tensor;

typedef struct made_file {
    made_tensor *tensors;
    size_t n;
} made_file;

static inline unsigned char *made_add(made_file *f, const char *name, const char *suffix, tensor_type type, int64_t a,
                                      int64_t b, int64_t c) {
    f->tensors = realloc(f->tensors, (f->n + 1) * sizeof *f->tensors);
    made_tensor *t = &f->tensors[f->n++];
    *t = (made_tensor){.type = type};
    snprintf(t->name, sizeof t->name, "%s%s", name, suffix);
    const int64_t sizes[3] = {a, b, c};
    size_t n = 1;
    for (int i = 0; i < 3; i++) {
        if (!sizes[i]) continue;
        t->shape[t->dims++] = sizes[i];
        n *= (size_t)sizes[i];
    }
    t->bytes = n * tensor_type_bytes(type);
    return t->data = calloc(t->bytes + 1, 1);
}

static inline void made_write(const made_file *f, const char *path) {
    safetensors_entry *entries = calloc(f->n, sizeof *entries);
    safetensors_writer *writer;
    for (size_t i = 0; i < f->n; i++) {
        const made_tensor *t = &f->tensors[i];
        entries[i] = (safetensors_entry){.name = t->name, .type = t->type, .dims = t->dims};
        memcpy(entries[i].shape, t->shape, sizeof t->shape);
    }
    REQUIRE_OK(safetensors_writer_open(path, entries, f->n, &writer, error));
    for (size_t i = 0; i < f->n; i++)
        REQUIRE_OK(safetensors_writer_write(writer, f->tensors[i].data, f->tensors[i].bytes, error));
    REQUIRE_OK(safetensors_writer_commit(writer, error));
    free(entries);
}

static inline void made_free(made_file *f) {
    for (size_t i = 0; i < f->n; i++) free(f->tensors[i].data);
    free(f->tensors);
    *f = (made_file){0};
}

/* --- codes and what they mean */

static inline uint32_t made_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static inline float made_e4m3(unsigned code) {
    unsigned exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(1 + mantissa / 8.0, (int)exponent - 7) : ldexp(mantissa, -9);
    return (float)(code & 0x80 ? -value : value);
}

static inline float made_e2m1(unsigned code) {
    static const float values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -values[code & 7] : values[code & 7];
}

/* A code of `bits` bits at place i of a row's string of bits. */
static inline void made_put(unsigned char *row, size_t i, int bits, unsigned code) {
    for (int b = 0; b < bits; b++) {
        size_t at = i * (size_t)bits + (size_t)b;
        if (code >> b & 1) row[at / 8] |= (unsigned char)(1u << at % 8);
    }
}

/* A scale between 1/128 and 1/64 as bf16, and its value. */
static inline float made_scale(uint64_t *seed, unsigned char *to) {
    uint16_t bits = (uint16_t)(0x3c00 | (made_random(seed) & 0x7f));
    memcpy(to, &bits, sizeof bits);
    return bf16_to_f32(bits);
}

/* Scale g, of 16 bits or of 32. */
static inline float made_wide_scale(uint64_t *seed, unsigned char *to, int64_t g, bool wide) {
    unsigned char narrow[2];
    float scale = made_scale(seed, wide ? narrow : to + 2 * g);
    if (!wide) return scale;
    scale *= 1 + (float)(made_random(seed) & 0xfff) / 0x100000;
    memcpy(to + 4 * g, &scale, sizeof scale);
    return scale;
}

static inline void made_affine(made_file *f, const char *module, int64_t experts, int64_t out, int64_t in, int bits,
                               int group, uint64_t *seed, float *values) {
    int64_t words = in * bits / 32, groups = in / group, rows = (experts ? experts : 1) * out;
#define MADE(suffix, type, columns)                                                                                    \
    made_add(f, module, suffix, type, experts ? experts : out, experts ? out : columns, experts ? columns : 0)
    const bool wide = strstr(module, "layers.0.per_layer_input_gate");
    const tensor_type type = wide ? TENSOR_F32 : TENSOR_BF16;
    unsigned char *codes = MADE(".weight", TENSOR_U32, words);
    unsigned char *scales = MADE(".scales", type, groups), *biases = MADE(".biases", type, groups);
    for (int64_t g = 0; g < rows * groups; g++) {
        float scale = made_wide_scale(seed, scales, g, wide), bias = made_wide_scale(seed, biases, g, wide) * -7;
        uint16_t narrow = f32_to_bf16(bias);
        if (!wide) bias = bf16_to_f32(narrow);
        memcpy(biases + (wide ? 4 : 2) * g, wide ? (void *)&bias : &narrow, wide ? sizeof bias : sizeof narrow);
        for (int64_t i = g % groups * group; i < (g % groups + 1) * group; i++) {
            unsigned code = made_random(seed) & ((1u << bits) - 1);
            made_put(codes + g / groups * words * 4, (size_t)i, bits, code);
            volatile float product = scale * (float)code; /* rounded before the sum */
            values[g / groups * in + i] = product + bias;
        }
    }
}

/* The floats of 4 and 8 bits; `suffixes` names codes and scales. */
static inline void made_floats(made_file *f, const char *module, int64_t experts, int64_t out, int64_t in,
                               const char *const suffixes[2], tensor_type code_type, tensor_type scale_type, int bits,
                               int group, float second, bool divide, uint64_t *seed, float *values) {
    int64_t per = 8 * (int64_t)tensor_type_bytes(code_type) / bits, rows = (experts ? experts : 1) * out;
    int64_t groups = in / group, row_bytes = in * bits / 8;
    unsigned char *codes = MADE(suffixes[0], code_type, in / per), *scales = MADE(suffixes[1], scale_type, groups);
    for (int64_t g = 0; g < rows * groups; g++) {
        bool power = group == 32;
        scales[g] = (unsigned char)(power ? 117 + made_random(seed) % 4 : 0x20 + made_random(seed) % 16);
        float scale = power    ? ldexpf(1, scales[g] - 127)
                      : divide ? made_e4m3(scales[g]) / second
                               : made_e4m3(scales[g]) * second;
        for (int64_t i = g % groups * group; i < (g % groups + 1) * group; i++) {
            unsigned code = made_random(seed) & (bits == 4 ? 15 : 0xbf);
            made_put(codes + g / groups * row_bytes, (size_t)i, bits, code);
            values[g / groups * in + i] = (bits == 4 ? made_e2m1(code) : made_e4m3(code)) * scale;
        }
    }
}

static inline void made_packed(made_file *f, const char *module, int64_t out, int64_t in, int bits, int group,
                               bool zero, uint64_t *seed, float *values) {
    const int64_t experts = 0, per = 32 / bits, groups = in / group, words = (in + per - 1) / per;
    const bool wide = zero && strstr(module, "layers.0.");
    unsigned char *codes = MADE(".weight_packed", TENSOR_I32, words),
                  *scales = MADE(".weight_scale", wide ? TENSOR_F32 : TENSOR_BF16, groups);
    unsigned char *zeros =
        zero ? made_add(f, module, ".weight_zero_point", TENSOR_I32, (out + per - 1) / per, groups, 0) : NULL;
    const int64_t shape[2] = {out, in};
    memcpy(made_add(f, module, ".weight_shape", TENSOR_I64, 2, 0, 0), shape, sizeof shape);
    for (int64_t g = 0; g < out * groups; g++) {
        int64_t row = g / groups, column = g % groups;
        float scale = made_wide_scale(seed, scales, g, wide);
        unsigned point = 1u << (bits - 1);
        if (zero) { /* along the rows */
            uint32_t word;
            unsigned char *at = zeros + 4 * (row / per * groups + column);
            point = made_random(seed) & ((1u << bits) - 1);
            memcpy(&word, at, sizeof word);
            word |= point << bits * (row % per);
            memcpy(at, &word, sizeof word);
        }
        for (int64_t i = column * group; i < (column + 1) * group; i++) {
            unsigned code = made_random(seed) & ((1u << bits) - 1);
            made_put(codes + row * words * 4, (size_t)i, bits, code);
            values[row * in + i] = (float)((int)code - (int)point) * scale;
        }
    }
}

/* Bytes with a scale per row, or per block of 32 x 32. */
static inline void made_bytes(made_file *f, const char *module, int64_t out, int64_t in, bool fp8, int block,
                              bool single, uint64_t *seed, float *values) {
    const int64_t experts = 0;
    int64_t down = block ? (out + block - 1) / block : out, across = block ? (in + block - 1) / block : 1;
    unsigned char *codes = MADE(".weight", fp8 ? TENSOR_F8_E4M3 : TENSOR_I8, in);
    unsigned char *scales = single ? made_add(f, module, ".weight_scale", TENSOR_F32, 1, 0, 0)
                                   : made_add(f, module, ".weight_scale", TENSOR_BF16, down, across, 0);
    const float one = 0.0123f;
    if (single) memcpy(scales, &one, sizeof one);
    for (int64_t i = 0; !single && i < down * across; i++) (void)made_scale(seed, scales + 2 * i);
    for (int64_t i = 0; i < out * in; i++) {
        int64_t row = i / in, column = i % in;
        uint16_t bits;
        memcpy(&bits, scales + (single ? 0 : 2 * (block ? row / block * across + column / block : row)), sizeof bits);
        codes[i] = (unsigned char)(made_random(seed) & (fp8 ? 0xbf : 0xff));
        values[i] = (fp8 ? made_e4m3(codes[i]) : (float)(int8_t)codes[i]) * (single ? one : bf16_to_f32(bits));
    }
}
#undef MADE

/* Whether a matrix is quantised at all; `table`: an embedding. */
static inline bool made_is_quantised(stored_form form, int64_t in, bool table, bool router) {
    if (stored_by_mlx(form)) return in % 32 == 0;
    if (table || router) return false;
    switch (form) {
    case STORED_INT8:
    case STORED_W8A8:
    case STORED_FP8_CHANNEL:
    case STORED_FP8_BLOCK:
    case STORED_MODELOPT_FP8:
        return true;
    case STORED_NVFP4:
    case STORED_MODELOPT_NVFP4:
        return in % 16 == 0;
    default:
        return in % 32 == 0;
    }
}

static inline void made_module(made_file *f, stored_form form, const char *module, int64_t experts, int64_t out,
                               int64_t in, bool router, uint64_t *seed, float *values) {
    static const char *const mlx[] = {".weight", ".scales"}, *const packed[] = {".weight_packed", ".weight_scale"};
    static const char *const plain[] = {".weight", ".weight_scale"};
    float second = form == STORED_NVFP4 ? 37.25f : 0.0371f;
    switch (form) {
    case STORED_AFFINE: {
        bool three = !router && in % 64 == 0 && strstr(module, "up_proj");
        made_affine(f, module, experts, out, in, router ? 8 : three ? 3 : 4, router || three ? 64 : 32, seed, values);
        break;
    }
    case STORED_MLX_MXFP4:
        made_floats(f, module, experts, out, in, mlx, TENSOR_U32, TENSOR_U8, 4, 32, 1, false, seed, values);
        break;
    case STORED_MLX_NVFP4:
        made_floats(f, module, experts, out, in, mlx, TENSOR_U32, TENSOR_U8, 4, 16, 1, false, seed, values);
        break;
    case STORED_MLX_MXFP8:
        made_floats(f, module, experts, out, in, mlx, TENSOR_U32, TENSOR_U8, 8, 32, 1, false, seed, values);
        break;
    case STORED_INT4:
    case STORED_INT4_ZERO:
        made_packed(f, module, out, in, 4, 32, form == STORED_INT4_ZERO, seed, values);
        break;
    case STORED_INT8:
        made_packed(f, module, out, in, 8, (int)in, false, seed, values);
        break;
    case STORED_W8A8:
    case STORED_FP8_CHANNEL:
    case STORED_FP8_BLOCK:
    case STORED_MODELOPT_FP8:
        made_bytes(f, module, out, in, form != STORED_W8A8, form == STORED_FP8_BLOCK ? 32 : 0,
                   form == STORED_MODELOPT_FP8, seed, values);
        break;
    case STORED_NVFP4:
    case STORED_MODELOPT_NVFP4: {
        bool divide = form == STORED_NVFP4;
        made_floats(f, module, 0, out, in, divide ? packed : plain, TENSOR_U8, TENSOR_F8_E4M3, 4, 16, second, divide,
                    seed, values);
        memcpy(made_add(f, module, divide ? ".weight_global_scale" : ".weight_scale_2", TENSOR_F32, divide, 0, 0),
               &second, sizeof second);
        memcpy(made_add(f, module, divide ? ".input_global_scale" : ".input_scale", TENSOR_F32, 1, 0, 0), &second,
               sizeof second);
        break;
    }
    case STORED_MXFP4:
        made_floats(f, module, 0, out, in, packed, TENSOR_U8, TENSOR_U8, 4, 32, 1, false, seed, values);
        break;
    default:
        made_floats(f, module, 0, out, in, plain, TENSOR_F8_E4M3, TENSOR_U8, 8, 32, 1, false, seed, values);
        break;
    }
}

/* --- whole models */

static inline void made_plain(made_file *f, const char *name, const char *suffix, int64_t experts, int64_t out,
                              int64_t in, const float *values) {
    size_t n = (size_t)((experts ? experts : 1) * out * in);
    memcpy(made_add(f, name, suffix, TENSOR_F32, experts ? experts : out, experts ? out : in, experts ? in : 0), values,
           n * sizeof *values);
}

/* A matrix in the form's file, as one module or one per expert; what it means goes to `values`. */
static inline void made_matrix(made_file *f, stored_form form, const char *module, int64_t experts, int64_t out,
                               int64_t in, uint64_t *seed, float *values) {
    bool table = strstr(module, "embed_tokens") != NULL, router = strstr(module, ".router.") != NULL;
    bool quantised = made_is_quantised(form, in, table, router);
    bool apart = experts && !stored_by_mlx(form);
    const char *place = strstr(module, "experts.");
    for (int64_t e = 0; e < (apart ? experts : 1); e++) {
        char name[192];
        if (apart)
            snprintf(name, sizeof name, "%.*sexperts.%d.%s", (int)(place - module), module, (int)e, place + 8);
        else if (experts)
            snprintf(name, sizeof name, "%.*sexperts.switch_glu.%s", (int)(place - module), module, place + 8);
        else
            snprintf(name, sizeof name, "%s", module);
        float *to = values + e * out * in;
        if (quantised)
            made_module(f, form, name, apart ? 0 : experts, out, in, router, seed, to);
        else
            made_plain(f, name, ".weight", apart ? 0 : experts, out, in, to);
    }
}

/* Name of a tensor with the text model's prefix as MLX has it. */
static inline void made_name(stored_form form, const char *from, char to[192]) {
    static const char nested[] = "model.language_model.";
    if (stored_by_mlx(form) && strncmp(from, nested, sizeof nested - 1) == 0)
        snprintf(to, 192, "language_model.model.%s", from + sizeof nested - 1);
    else
        snprintf(to, 192, "%s", from);
}

static inline const char *made_configuration(stored_form form, int layers, bool nested) {
    static char text[16384];
    static const char *const weights[STORED_FORMS] = {
        [STORED_INT4] = "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32,\"symmetric\":true",
        [STORED_INT4_ZERO] = "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"group\",\"group_size\":32,"
                             "\"symmetric\":false",
        [STORED_INT8] = "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":true",
        [STORED_W8A8] = "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\",\"symmetric\":true",
        [STORED_FP8_CHANNEL] = "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\",\"symmetric\":true",
        [STORED_FP8_BLOCK] = "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"block\",\"block_structure\":[32,32]",
        [STORED_NVFP4] = "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16",
        [STORED_MXFP4] = "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32",
        [STORED_MXFP8] = "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32",
    };
    static const char *const formats[STORED_FORMS] = {
        [STORED_INT4] = "pack-quantized",         [STORED_INT4_ZERO] = "pack-quantized",
        [STORED_INT8] = "pack-quantized",         [STORED_W8A8] = "int-quantized",
        [STORED_FP8_CHANNEL] = "float-quantized", [STORED_FP8_BLOCK] = "float-quantized",
        [STORED_NVFP4] = "nvfp4-pack-quantized",  [STORED_MXFP4] = "mxfp4-pack-quantized",
        [STORED_MXFP8] = "mxfp8-quantized",
    };
    static const char *const modes[] = {"affine", "mxfp4", "nvfp4", "mxfp8"};
    const char *prefix = nested ? "language_model.model." : "model.";
    const bool by_row = form == STORED_INT8 || (form >= STORED_W8A8 && form <= STORED_FP8_BLOCK) ||
                        form == STORED_MODELOPT_FP8; /* no groups that some widths are no multiples of */
    if (stored_by_mlx(form)) {
        int group = form == STORED_MLX_NVFP4 ? 16 : 32, bits = form == STORED_MLX_MXFP8 ? 8 : 4;
        size_t n =
            (size_t)snprintf(text, sizeof text, "\"quantization\":{\"group_size\":%d,\"bits\":%d,\"mode\":\"%s\"",
                             group, bits, modes[form]);
        for (int i = 0; form == STORED_AFFINE && i < layers; i++)
            n += (size_t)snprintf(text + n, sizeof text - n,
                                  ",\"%slayers.%d.mlp.up_proj\":{\"bits\":3,\"group_size\":64},"
                                  "\"%slayers.%d.experts.switch_glu.up_proj\":{"
                                  "\"bits\":3,\"group_size\":64}",
                                  prefix, i, prefix, i);
        snprintf(text + n, sizeof text - n, "}");
    } else if (form >= STORED_MODELOPT_NVFP4) {
        snprintf(text, sizeof text,
                 "\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"%s\",\"ignore\":[\"lm_head\","
                 "\"*router*\"%s]}",
                 form == STORED_MODELOPT_FP8 ? "FP8" : "NVFP4",
                 by_row ? "" : ",\"*.experts.*.down_proj\",\"*per_layer_projection\"");
    } else {
        snprintf(
            text, sizeof text,
            "\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"%s\",\"config_groups\":{"
            "\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{%s},\"input_activations\":null}},\"ignore\":["
            "\"lm_head\",\"re:.*router.*\"%s]}",
            formats[form], weights[form],
            by_row ? "" : ",\"re:.*experts\\\\.\\\\d+\\\\.down_proj$\",\"re:.*per_layer_projection$\"");
    }
    return text;
}

/* Writes reference model `name` in a form to the scratch folder `quantised`, and what it means to `meant`. */
static inline void made_model(const char *name, stored_form form) {
    char path[512], to[192];
    snprintf(path, sizeof path, KAKEYA_TEST_DATA "/golden/%s/model.safetensors", name);
    safetensors *source;
    REQUIRE_OK(safetensors_open(path, &source, error));
    made_file quantised = {0}, meant = {0};
    uint64_t seed = 17 + (uint64_t)form;
    bool nested = false;
    int layers = 0;
    for (size_t i = 0; i < source->count; i++) {
        const tensor *t = &source->tensors[i];
        int64_t *shape = (int64_t[3]){t->shape[0], t->dims > 1 ? t->shape[1] : 0, t->dims > 2 ? t->shape[2] : 0};
        int layer;
        const char *at = strstr(t->name, "layers.");
        if (at && sscanf(at, "layers.%d.", &layer) == 1 && layer >= layers) layers = layer + 1;
        nested |= strncmp(t->name, "model.language_model.", 21) == 0;
        made_name(form, t->name, to);
        if (t->dims < 2) {
            memcpy(made_add(&quantised, to, "", TENSOR_F32, shape[0], 0, 0), t->data, t->bytes);
            memcpy(made_add(&meant, t->name, "", TENSOR_F32, shape[0], 0, 0), t->data, t->bytes);
            continue;
        }
        float *values = malloc(t->bytes);
        memcpy(values, t->data, t->bytes);
        char *end = strstr(to, ".weight");
        if (end) *end = '\0';
        if (t->dims == 3 && strstr(to, "gate_up_proj")) {
            /* Gate and up are apart there, and one behind the other in each expert here. */
            int64_t half = shape[1] / 2 * shape[2];
            float *part = malloc(t->bytes / 2);
            for (int up = 0; up < 2; up++) {
                for (int64_t e = 0; e < shape[0]; e++)
                    memcpy(part + e * half, values + (2 * e + up) * half, (size_t)half * sizeof *part);
                snprintf(strstr(to, "experts."), 40, "experts.%s_proj", up ? "up" : "gate");
                made_matrix(&quantised, form, to, shape[0], shape[1] / 2, shape[2], &seed, part);
                for (int64_t e = 0; e < shape[0]; e++)
                    memcpy(values + (2 * e + up) * half, part + e * half, (size_t)half * sizeof *part);
            }
            free(part);
        } else if (t->dims == 3) {
            made_matrix(&quantised, form, to, shape[0], shape[1], shape[2], &seed, values);
        } else {
            made_matrix(&quantised, form, to, 0, shape[0], shape[1], &seed, values);
        }
        memcpy(made_add(&meant, t->name, "", TENSOR_F32, shape[0], shape[1], shape[2]), values, t->bytes);
        free(values);
    }
    safetensors_close(source);
    scratch_folder("quantised");
    scratch_folder("meant");
    made_write(&quantised, scratch_path("quantised/model.safetensors"));
    made_write(&meant, scratch_path("meant/model.safetensors"));
    made_free(&quantised);
    made_free(&meant);
    snprintf(path, sizeof path, KAKEYA_TEST_DATA "/golden/%s/config.json", name);
    size_t bytes;
    char *config = scratch_read(path, &bytes);
    scratch_write("meant/config.json", config, bytes);
    const char *more = made_configuration(form, layers, nested);
    char *both = malloc(bytes + strlen(more) + 8);
    size_t end = bytes;
    while (config[end - 1] != '}') end--;
    int n = sprintf(both, "%.*s,%s}", (int)end - 1, config, more);
    scratch_write("quantised/config.json", both, (size_t)n);
    free(both);
    free(config);
}

#endif
