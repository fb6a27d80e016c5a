#include "model/modules.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"

enum { MODULE_NAME_BYTES = SLOT_NAME_BYTES + 96 };

/* How the numbers of a scale tensor are dealt to rows. */
typedef enum scale_layout { SCALE_ONE = 0, SCALE_EXPERT, SCALE_ROW, SCALE_BLOCK } scale_layout;

/* A module before it is placed: streams that can be used as they lie, and what the others are made of. */
typedef struct module_view {
    weight_format format;
    module_form form;
    module_shape shape;
    int rows; /* of all experts */
    int group, bits;
    dtype scale_type;
    const unsigned char *stream[WEIGHT_STREAMS]; /* NULL: is made */
    const tensor *scale;                         /* of what is made */
    const tensor *wide;   /* scales in float32, which no stream of codes has: the values are made, as F32 */
    const tensor *biases; /* beside these; NULL: none */
    scale_layout layout;
    int block_rows, blocks_down, blocks_across;
} module_view;

/* ------------------------------------------------------------------------------------------------------ tensors */

static const tensor *find(const tensor_binding *b, const char *module, const char *suffix) {
    char name[MODULE_NAME_BYTES];
    snprintf(name, sizeof name, "%s%s", module, suffix);
    ptrdiff_t index = checkpoint_find(b->ck, name);
    if (index < 0) return NULL;
    b->used[index] = true;
    return b->ck->tensors[index];
}

void module_ignore(const tensor_binding *b, const char *module) {
    static const char *const suffixes[] = {
        "",
        ".weight",
        ".scales",
        ".biases",
        ".weight_packed",
        ".weight_scale",
        ".weight_scale_2",
        ".weight_shape",
        ".weight_zero_point",
        ".weight_global_scale",
        ".input_scale",
        ".input_global_scale",
        ".input_zero_point",
    };
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) (void)find(b, module, suffixes[i]);
}

static kakeya_status bad_type(const tensor_binding *b, const tensor *t, const char *wanted, kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "%s: tensor %s has dtype %s, expected %s", b->ck->directory, t->name,
                     tensor_type_name(t->type), wanted);
}

/* Shape [experts,] a, b. */
static kakeya_status check_shape(const tensor_binding *b, const tensor *t, int experts, int64_t rows, int64_t columns,
                                 kakeya_error *error) {
    int64_t shape[3] = {experts, rows, columns};
    const int64_t *wanted = experts ? shape : shape + 1;
    int dims = experts ? 3 : 2;
    bool same = t->dims == dims;
    for (int i = 0; same && i < dims; i++) same = t->shape[i] == wanted[i];
    if (same) return KAKEYA_OK;
    char found[128], expected[96];
    return error_set(error, KAKEYA_FORMAT, "%s: tensor %s has shape %s, expected %s", b->ck->directory, t->name,
                     tensor_shape_text(t->dims, t->shape, found, sizeof found),
                     tensor_shape_text(dims, wanted, expected, sizeof expected));
}

static kakeya_status missing(const tensor_binding *b, const char *module, const char *suffix, const char *form,
                             kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT, "%s: tensor %s%s is missing beside %s's others (%s)", b->ck->directory,
                     module, suffix, module, form);
}

static int64_t last_dimension(const tensor *t) { return t->dims ? t->shape[t->dims - 1] : 0; }

static float number(const tensor *t, size_t i) {
    uint16_t half;
    float value;
    if (t->type == TENSOR_F32) {
        memcpy(&value, t->data + i * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, t->data + i * sizeof half, sizeof half);
    return t->type == TENSOR_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

/* ------------------------------------------------------------------------------------------ one function per form */

/* Scales of 16 bits lie beside codes as they are. */
static kakeya_status read_scales(const tensor_binding *b, const tensor *t, module_view *v, kakeya_error *error) {
    if (t->type != TENSOR_BF16 && t->type != TENSOR_F16 && t->type != TENSOR_F32)
        return bad_type(b, t, "BF16, F16 or F32", error);
    v->scale_type = t->type == TENSOR_F16 ? DTYPE_F16 : DTYPE_BF16;
    v->wide = t->type == TENSOR_F32 ? t : NULL;
    return KAKEYA_OK;
}

static bool is_float(const tensor *t) {
    return t->type == TENSOR_F32 || t->type == TENSOR_F16 || t->type == TENSOR_BF16;
}

static weight_format affine_of(int bits) {
    static const weight_format formats[9] = {[2] = WEIGHT_AFFINE_2, [3] = WEIGHT_AFFINE_3, [4] = WEIGHT_AFFINE_4,
                                             [5] = WEIGHT_AFFINE_5, [6] = WEIGHT_AFFINE_6, [8] = WEIGHT_AFFINE_8};
    return bits >= 0 && bits <= 8 && formats[bits] ? formats[bits] : WEIGHT_FORMAT_COUNT;
}

weight_format module_scheme_format(const module_scheme *s) {
    switch (s->form) {
    case MODULE_AFFINE:
        return affine_of(s->bits);
    case MODULE_PACKED:
        if (s->bits == 4) return s->symmetric ? WEIGHT_INT4 : WEIGHT_INT4_ZERO;
        return s->symmetric ? WEIGHT_INT8 : WEIGHT_INT8_ZERO;
    case MODULE_INT8:
        return WEIGHT_INT8_SIGNED;
    case MODULE_FP8:
        return WEIGHT_FP8;
    case MODULE_MLX_MXFP8:
    case MODULE_MXFP8:
        return WEIGHT_FP8_E8M0;
    case MODULE_MLX_MXFP4:
    case MODULE_MXFP4:
        return WEIGHT_FP4_E8M0;
    case MODULE_NVFP4:
        return WEIGHT_FP4_E4M3_DIV;
    case MODULE_MLX_NVFP4:
    case MODULE_MODELOPT_NVFP4:
        return WEIGHT_FP4_E4M3;
    default:
        return WEIGHT_FORMAT_COUNT;
    }
}

/* Bits and group follow from the shapes: words * 32 / bits == groups * group == in. */
static kakeya_status view_mlx(const tensor_binding *b, const char *module, const tensor *codes, const tensor *scales,
                              const tensor *biases, module_view *v, kakeya_error *error) {
    int64_t words = last_dimension(codes), groups = last_dimension(scales), in = v->shape.in;
    if (codes->type != TENSOR_U32) return bad_type(b, codes, "U32", error);
    v->bits = words > 0 && words * 32 % in == 0 ? (int)(words * 32 / in) : 0;
    v->group = groups > 0 && in % groups == 0 ? (int)(in / groups) : 0;
    bool known = v->bits && v->group;
    if (biases) {
        v->form = MODULE_AFFINE;
        v->format = affine_of(v->bits);
        known = known && v->format != WEIGHT_FORMAT_COUNT && (v->group == 32 || v->group == 64 || v->group == 128);
    } else {
        v->form = v->bits == 8 ? MODULE_MLX_MXFP8 : v->group == 16 ? MODULE_MLX_NVFP4 : MODULE_MLX_MXFP4;
        known = known && (v->bits == 8 || v->bits == 4) && (v->group == 32 || (v->group == 16 && v->bits == 4));
        v->format = v->bits == 8 ? WEIGHT_FP8_E8M0 : v->group == 16 ? WEIGHT_FP4_E4M3 : WEIGHT_FP4_E8M0;
    }
    if (!known)
        return error_set(
            error, KAKEYA_UNSUPPORTED,
            "%s: module %s has %lld words and %lld scales per row of %lld weights, which is no form of MLX "
            "that is read",
            b->ck->directory, module, (long long)words, (long long)groups, (long long)in);
    kakeya_status status = check_shape(b, codes, v->shape.experts, v->shape.out, words, error);
    if (status == KAKEYA_OK) status = check_shape(b, scales, v->shape.experts, v->shape.out, groups, error);
    v->stream[0] = codes->data;
    v->stream[1] = scales->data;
    if (!biases) {
        if (status == KAKEYA_OK && scales->type != TENSOR_U8) status = bad_type(b, scales, "U8", error);
        return status;
    }
    if (status == KAKEYA_OK) status = check_shape(b, biases, v->shape.experts, v->shape.out, groups, error);
    if (status == KAKEYA_OK) status = read_scales(b, scales, v, error);
    if (status == KAKEYA_OK && biases->type != scales->type)
        status = bad_type(b, biases, tensor_type_name(scales->type), error);
    v->stream[2] = biases->data;
    v->biases = biases;
    return status;
}

static kakeya_status check_stored_shape(const tensor_binding *b, const char *module, module_shape shape,
                                        kakeya_error *error) {
    const tensor *t = find(b, module, ".weight_shape");
    int64_t stored[2];
    if (!t || shape.experts) return KAKEYA_OK;
    if (t->type != TENSOR_I64 || t->bytes != sizeof stored) return bad_type(b, t, "I64 of two numbers", error);
    memcpy(stored, t->data, sizeof stored);
    if (stored[0] == shape.out && stored[1] == shape.in) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT, "%s: tensor %s says [%lld, %lld], expected [%d, %d]", b->ck->directory,
                     t->name, (long long)stored[0], (long long)stored[1], shape.out, shape.in);
}

static kakeya_status view_packed(const tensor_binding *b, const char *module, const tensor *codes, const tensor *scale,
                                 module_view *v, kakeya_error *error) {
    int64_t words = last_dimension(codes), in = v->shape.in, groups = last_dimension(scale);
    const tensor *zero = find(b, module, ".weight_zero_point");
    if (find(b, module, ".weight_g_idx"))
        return error_set(error, KAKEYA_UNSUPPORTED,
                         "%s: tensor %s.weight_g_idx permutes columns (actorder group), which is not supported",
                         b->ck->directory, module);
    v->form = MODULE_PACKED;
    v->bits = words == (in + 7) / 8 ? 4 : 8;
    v->group = groups > 0 && in % groups == 0 ? (int)(in / groups) : 0;
    if (groups != 1 && v->group % 32) v->group = 0;
    kakeya_status status =
        check_shape(b, codes, v->shape.experts, v->shape.out, v->bits == 4 ? (in + 7) / 8 : (in + 3) / 4, error);
    if (status == KAKEYA_OK) status = check_stored_shape(b, module, v->shape, error);
    if (status == KAKEYA_OK && v->group == 0)
        status = error_set(error, KAKEYA_FORMAT, "%s: tensor %s has %lld groups for %lld columns", b->ck->directory,
                           scale->name, (long long)groups, (long long)in);
    if (status == KAKEYA_OK) status = check_shape(b, scale, v->shape.experts, v->shape.out, groups, error);
    if (status == KAKEYA_OK) status = read_scales(b, scale, v, error);
    if (status == KAKEYA_OK && zero) {
        int per_word = 32 / v->bits;
        status = check_shape(b, zero, v->shape.experts, (v->shape.out + per_word - 1) / per_word, groups, error);
        if (status == KAKEYA_OK && zero->type != TENSOR_I32) status = bad_type(b, zero, "I32", error);
    }
    v->format = v->bits == 4 ? (zero ? WEIGHT_INT4_ZERO : WEIGHT_INT4) : (zero ? WEIGHT_INT8_ZERO : WEIGHT_INT8);
    v->stream[0] = codes->data;
    v->stream[1] = scale->data;
    v->scale = zero;
    return status;
}

/* One number, one per expert, one per row, or one per block. */
static kakeya_status find_layout(const tensor_binding *b, const tensor *scale, const module_scheme *scheme,
                                 module_view *v, kakeya_error *error) {
    int64_t n = 1, experts = v->shape.experts ? v->shape.experts : 1;
    for (int i = 0; i < scale->dims; i++) n *= scale->shape[i];
    v->scale = scale;
    v->group = v->shape.in;
    if (!is_float(scale)) return bad_type(b, scale, "F32, F16 or BF16", error);
    if (scheme->block_rows && scheme->group) {
        v->layout = SCALE_BLOCK;
        v->group = scheme->group;
        v->block_rows = scheme->block_rows;
        v->blocks_down = (v->shape.out + v->block_rows - 1) / v->block_rows;
        v->blocks_across = (v->shape.in + v->group - 1) / v->group;
        return check_shape(b, scale, v->shape.experts, v->blocks_down, v->blocks_across, error);
    }
    v->layout = n == 1 ? SCALE_ONE : n == experts * v->shape.out ? SCALE_ROW : SCALE_EXPERT;
    if (v->layout != SCALE_EXPERT || n == experts) return KAKEYA_OK;
    char found[128];
    return error_set(error, KAKEYA_FORMAT,
                     "%s: tensor %s has shape %s, expected one number, or one for each of %lld rows", b->ck->directory,
                     scale->name, tensor_shape_text(scale->dims, scale->shape, found, sizeof found),
                     (long long)(experts * v->shape.out));
}

static kakeya_status view_bytes(const tensor_binding *b, const tensor *codes, const tensor *scale,
                                const module_scheme *scheme, module_view *v, kakeya_error *error) {
    kakeya_status status = check_shape(b, codes, v->shape.experts, v->shape.out, v->shape.in, error);
    v->bits = 8;
    v->stream[0] = codes->data;
    if (status != KAKEYA_OK) return status;
    if (codes->type == TENSOR_I8) {
        v->form = MODULE_INT8;
        v->format = WEIGHT_INT8_SIGNED;
        return find_layout(b, scale, scheme, v, error);
    }
    if (scale->type != TENSOR_U8 && scale->type != TENSOR_F8_E8M0) {
        v->form = MODULE_FP8;
        v->format = WEIGHT_FP8;
        return find_layout(b, scale, scheme, v, error);
    }
    v->form = MODULE_MXFP8;
    v->format = WEIGHT_FP8_E8M0;
    v->group = 32;
    v->stream[1] = scale->data;
    return check_shape(b, scale, v->shape.experts, v->shape.out, (v->shape.in + 31) / 32, error);
}

static kakeya_status view_fp4(const tensor_binding *b, const tensor *codes, const tensor *scale, const tensor *second,
                              module_form form, module_view *v, kakeya_error *error) {
    int group = form == MODULE_MXFP4 ? 32 : 16;
    v->form = form;
    v->bits = 4;
    v->group = group;
    v->format = form == MODULE_MXFP4 ? WEIGHT_FP4_E8M0 : form == MODULE_NVFP4 ? WEIGHT_FP4_E4M3_DIV : WEIGHT_FP4_E4M3;
    v->stream[0] = codes->data;
    v->stream[1] = scale->data;
    if (v->shape.in % group)
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s: %d columns are not a multiple of the group size %d",
                         b->ck->directory, codes->name, v->shape.in, group);
    kakeya_status status = check_shape(b, codes, v->shape.experts, v->shape.out, v->shape.in / 2, error);
    if (status == KAKEYA_OK) status = check_shape(b, scale, v->shape.experts, v->shape.out, v->shape.in / group, error);
    if (status != KAKEYA_OK) return status;
    if (form == MODULE_MXFP4)
        return scale->type == TENSOR_U8 || scale->type == TENSOR_F8_E8M0 ? KAKEYA_OK : bad_type(b, scale, "U8", error);
    if (scale->type != TENSOR_F8_E4M3) return bad_type(b, scale, "F8_E4M3", error);
    status = find_layout(b, second, &(module_scheme){0}, v, error);
    v->group = group;
    if (status == KAKEYA_OK && v->layout == SCALE_ROW && v->rows != 1)
        status = error_set(error, KAKEYA_FORMAT, "%s: tensor %s has a number per row, expected one", b->ck->directory,
                           second->name);
    return status;
}

/* ------------------------------------------------------------------------------------------------------- agreement */

static const char *source(const tensor_binding *b) { return b->ck->directory; }

/* What the tensors say against what the configuration says. */
static kakeya_status check_agreement(const tensor_binding *b, const quantisation *q, const char *module,
                                     const module_scheme *scheme, const module_view *v, kakeya_error *error) {
    const char *end = strrchr(module, '.');
    bool mlx = quantisation_method_of(q) == QUANTISATION_MLX;
    bool router = mlx && !scheme->stated && end && strcmp(end, ".proj") == 0 && strstr(module, ".router.");
    if (!q)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: module %s is stored as %s, but the configuration does not mention it", source(b), module,
                         module_form_name(v->form));
    if (router && v->form == MODULE_AFFINE && v->bits == 8 && v->group == 64) return KAKEYA_OK; /* as mlx-lm does */
    if (scheme->form != v->form)
        return error_set(error, KAKEYA_FORMAT, "%s: module %s is stored as %s, but the configuration says %s",
                         source(b), module, module_form_name(v->form), module_form_name(scheme->form));
    int group = scheme->block_rows ? v->group : scheme->group ? scheme->group : v->shape.in;
    if (scheme->bits != v->bits || group != v->group)
        return error_set(error, KAKEYA_FORMAT,
                         "%s: module %s has %d bits in groups of %d, but the configuration says %d in groups of %d",
                         source(b), module, v->bits, v->group, scheme->bits, group);
    bool zero = v->format == WEIGHT_INT4_ZERO || v->format == WEIGHT_INT8_ZERO;
    if (v->form == MODULE_PACKED && scheme->symmetric == zero)
        return error_set(error, KAKEYA_FORMAT, "%s: module %s %s zero points, but the configuration says symmetric: %s",
                         source(b), module, zero ? "has" : "has no", scheme->symmetric ? "true" : "false");
    return KAKEYA_OK;
}

/* A plain matrix must be one that the configuration leaves plain. Stacked experts are parameters, not modules, so that
 * a target of all linear modules does not mean them. */
static kakeya_status check_plain(const tensor_binding *b, const quantisation *q, const char *module,
                                 const module_scheme *scheme, bool table, bool stacked, kakeya_error *error) {
    bool by_class = quantisation_method_of(q) != QUANTISATION_MLX && !table && !stacked;
    if (scheme->form == MODULE_PLAIN || (!scheme->stated && !by_class)) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT, "%s: module %s is stored plainly, but the configuration says %s", source(b),
                     module, module_form_name(scheme->form));
}

/* ----------------------------------------------------------------------------------------------------------- views */

static kakeya_status view_plain(const tensor_binding *b, const tensor *t, module_view *v, kakeya_error *error) {
    dtype type;
    if (!tensor_dtype(t, &type)) return bad_type(b, t, "F32, F16 or BF16", error);
    v->format = type == DTYPE_F32 ? WEIGHT_F32 : type == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16;
    v->form = MODULE_PLAIN;
    v->stream[0] = t->data;
    return check_shape(b, t, v->shape.experts, v->shape.out, v->shape.in, error);
}

/* *found false: there is no such module. */
static kakeya_status view_module(const tensor_binding *b, const quantisation *q, const char *module, bool table,
                                 module_shape shape, module_view *v, bool *found, kakeya_error *error) {
    *v = (module_view){.shape = shape, .rows = shape.experts ? shape.experts * shape.out : shape.out};
    const module_scheme scheme = quantisation_find(q, module, !table);
    const tensor *codes = find(b, module, ".weight"), *packed = find(b, module, ".weight_packed");
    const tensor *scales = find(b, module, ".scales"), *scale = find(b, module, ".weight_scale");
    const tensor *second = find(b, module, ".weight_scale_2"), *global = find(b, module, ".weight_global_scale");
    const tensor *biases = scales ? find(b, module, ".biases") : NULL;
    *found = codes || packed || scales || scale;
    if (!*found) return KAKEYA_OK;
    (void)find(b, module, ".input_scale"); /* of activations, which are not quantised here as the file would have it */
    (void)find(b, module, ".input_global_scale");
    kakeya_status status;
    if (codes && packed)
        return error_set(error, KAKEYA_FORMAT, "%s: tensors %s and %s are both present", source(b), codes->name,
                         packed->name);
    if (!codes && !packed)
        return missing(b, module, scales ? ".weight" : ".weight or .weight_packed", module_form_name(scheme.form),
                       error);
    if (scales && packed) return missing(b, module, ".weight", module_form_name(scheme.form), error);
    if (!scales && !scale) {
        if (packed) return missing(b, module, ".weight_scale", module_form_name(scheme.form), error);
        if (codes->type == TENSOR_U32) return missing(b, module, ".scales", module_form_name(scheme.form), error);
        if (codes->type == TENSOR_U8 || codes->type == TENSOR_I8 || codes->type == TENSOR_F8_E4M3)
            return missing(b, module, ".weight_scale", module_form_name(scheme.form), error);
        status = view_plain(b, codes, v, error);
        return status == KAKEYA_OK ? check_plain(b, q, module, &scheme, table, shape.experts > 0, error) : status;
    }
    if (scales && !biases && is_float(scales)) return missing(b, module, ".biases", "affine", error);
    if (scales) {
        status = view_mlx(b, module, codes, scales, biases, v, error);
    } else if (packed && packed->type == TENSOR_I32) {
        status = view_packed(b, module, packed, scale, v, error);
    } else if (packed && packed->type == TENSOR_U8) {
        if (!global && scale->type == TENSOR_F8_E4M3)
            return missing(b, module, ".weight_global_scale", module_form_name(MODULE_NVFP4), error);
        status = view_fp4(b, packed, scale, global, global ? MODULE_NVFP4 : MODULE_MXFP4, v, error);
    } else if (packed) {
        status = bad_type(b, packed, "I32 or U8", error);
    } else if (codes->type == TENSOR_U8) {
        if (!second) return missing(b, module, ".weight_scale_2", module_form_name(scheme.form), error);
        status = view_fp4(b, codes, scale, second, MODULE_MODELOPT_NVFP4, v, error);
    } else if (codes->type == TENSOR_I8 || codes->type == TENSOR_F8_E4M3) {
        status = view_bytes(b, codes, scale, &scheme, v, error);
    } else {
        status = bad_type(b, codes, "U8, I8 or F8_E4M3, as there are scales beside it", error);
    }
    if (status == KAKEYA_OK) status = check_agreement(b, q, module, &scheme, v, error);
    if (status == KAKEYA_OK && v->wide) v->format = WEIGHT_F32;
    return status;
}

/* ----------------------------------------------------------------------------------------------------- placing */

static kakeya_status not_finite(const tensor_binding *b, const tensor *t, size_t i, float value, kakeya_error *error) {
    return error_set(error, KAKEYA_FORMAT,
                     "%s: tensor %s[%zu] is %g, which is not a "
                     "scale",
                     source(b), t->name, i, (double)value);
}

static kakeya_status make_scales(const tensor_binding *b, const module_view *v, float *to, kakeya_error *error) {
    int groups = (v->shape.in + v->group - 1) / v->group;
    for (int r = 0; r < v->rows; r++) {
        int expert = r / v->shape.out, row = r % v->shape.out;
        for (int g = 0; g < groups; g++) {
            size_t i = 0;
            if (v->layout == SCALE_EXPERT) i = (size_t)expert;
            if (v->layout == SCALE_ROW) i = (size_t)r;
            if (v->layout == SCALE_BLOCK)
                i = ((size_t)expert * (size_t)v->blocks_down + (size_t)(row / v->block_rows)) *
                        (size_t)v->blocks_across +
                    (size_t)g;
            float value = number(v->scale, i);
            if (!isfinite(value)) return not_finite(b, v->scale, i, value, error);
            to[(size_t)r * (size_t)groups + (size_t)g] = value;
        }
    }
    return KAKEYA_OK;
}

/* One per row; a module without a second scale has factors of 1. */
static kakeya_status make_factors(const tensor_binding *b, const module_view *v, float *to, kakeya_error *error) {
    for (int r = 0; r < v->rows; r++) {
        size_t i = v->layout == SCALE_EXPERT ? (size_t)(r / v->shape.out) : 0;
        to[r] = v->scale ? number(v->scale, i) : 1;
        if (!isfinite(to[r]) || to[r] <= 0) return not_finite(b, v->scale, i, to[r], error);
    }
    return KAKEYA_OK;
}

/* Zero points are packed along the rows, as words of 32 bits; here they are a byte each. */
static void make_zero_points(const module_view *v, unsigned char *to) {
    int per_word = 32 / v->bits, words = (v->shape.out + per_word - 1) / per_word;
    size_t groups = (size_t)(v->shape.in / v->group);
    for (int r = 0; r < v->rows; r++) {
        int expert = r / v->shape.out, row = r % v->shape.out;
        for (size_t g = 0; g < groups; g++) {
            uint32_t word;
            size_t at = ((size_t)expert * (size_t)words + (size_t)(row / per_word)) * groups + g;
            memcpy(&word, v->scale->data + at * sizeof word, sizeof word);
            to[(size_t)r * groups + g] = (unsigned char)(word >> v->bits * (row % per_word) & ((1u << v->bits) - 1));
        }
    }
}

/* Code i of a row, whose codes of `bits` bits are one string of bits. */
static int code_at(const unsigned char *row, int bits, size_t i) {
    size_t at = i * (size_t)bits;
    int code = row[at / 8] >> at % 8;
    if ((int)(at % 8) + bits > 8) code |= row[at / 8 + 1] << (8 - at % 8);
    return code & ((1 << bits) - 1);
}

/* What codes with float32 scales mean. */
static kakeya_status make_values(const tensor_binding *b, const module_view *v, float *to, kakeya_error *error) {
    size_t in = (size_t)v->shape.in, group = (size_t)v->group, groups = in / group, n = (size_t)v->rows * groups;
    size_t row_bytes =
        v->form == MODULE_AFFINE ? in * (size_t)v->bits / 8 : (in * (size_t)v->bits + 31) / 32 * 4; /* whole words */
    unsigned char *zero = v->scale ? malloc(n + 1) : NULL;
    if (v->scale && !zero) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for zero points", source(b));
    if (zero) make_zero_points(v, zero);
    kakeya_status status = KAKEYA_OK;
    for (size_t g = 0; g < n && status == KAKEYA_OK; g++) {
        const unsigned char *codes = v->stream[0] + g / groups * row_bytes;
        float scale = number(v->wide, g), bias = v->biases ? number(v->biases, g) : 0;
        if (!isfinite(scale)) status = not_finite(b, v->wide, g, scale, error);
        if (!isfinite(bias)) status = not_finite(b, v->biases, g, bias, error);
        int offset = v->form == MODULE_AFFINE ? 0 : zero ? zero[g] : 1 << (v->bits - 1);
        for (size_t i = g % groups * group, end = i + group; i < end; i++) {
            float product = scale * (float)(code_at(codes, v->bits, i) - offset);
            to[g / groups * in + i] = v->biases ? product + bias : product;
        }
    }
    free(zero);
    return status;
}

static kakeya_status make_stream(const tensor_binding *b, const module_view *v, int stream, void *to,
                                 kakeya_error *error) {
    if (v->wide) return make_values(b, v, to, error);
    if (v->stream[stream]) {
        const weight_stream *s = &weight_format_find(v->format)->stream[stream];
        memcpy(to, v->stream[stream], weight_stream_bytes(s, v->rows, v->shape.in, v->group));
        return KAKEYA_OK;
    }
    if (v->format == WEIGHT_INT4_ZERO || v->format == WEIGHT_INT8_ZERO) {
        make_zero_points(v, to);
        return KAKEYA_OK;
    }
    return stream == 2 ? make_factors(b, v, to, error) : make_scales(b, v, to, error);
}

static kakeya_status no_memory(const tensor_binding *b, const char *module, size_t bytes, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %zu bytes of module %s", source(b), bytes, module);
}

static weight empty_weight(const module_view *v, int rows) {
    weight w = weight_matrix(v->format, NULL, rows, v->shape.in);
    w.group = v->wide ? 0 : v->group;
    w.scale_type = v->scale_type;
    return w;
}

/* Streams stay in the file where they lie well enough there. */
static kakeya_status place(const tensor_binding *b, const char *module, const module_view *v, weight *out,
                           kakeya_error *error) {
    const weight_format_info *info = weight_format_find(v->format);
    *out = empty_weight(v, v->rows);
    for (int s = 0; s < info->streams; s++) {
        size_t bytes = weight_stream_bytes(&info->stream[s], v->rows, v->shape.in, v->group);
        if (!v->wide && v->stream[s] && (uintptr_t)v->stream[s] % (uintptr_t)info->stream[s].alignment == 0) {
            out->stream[s] = v->stream[s];
            b->memory->mapped_bytes += bytes;
            continue;
        }
        void *block = tensor_memory_block(b->memory, b->account, bytes);
        if (!block) return no_memory(b, module, bytes, error);
        kakeya_status status = make_stream(b, v, s, block, error);
        if (status != KAKEYA_OK) return status;
        out->stream[s] = block;
    }
    return KAKEYA_OK;
}

kakeya_status module_bind(const tensor_binding *b, const quantisation *q, const char *module, bool table,
                          module_shape shape, weight *out, bool *bound, kakeya_error *error) {
    module_view v;
    bool found;
    kakeya_status status = view_module(b, q, module, table, shape, &v, &found, error);
    *bound = status == KAKEYA_OK && found && (v.form != MODULE_PLAIN || shape.experts);
    return *bound ? place(b, module, &v, out, error) : status;
}

kakeya_status module_bind_experts(const tensor_binding *b, const quantisation *q, const char *before,
                                  const char *behind, module_shape shape, weight *out, bool *bound,
                                  kakeya_error *error) {
    char module[MODULE_NAME_BYTES];
    unsigned char *streams[WEIGHT_STREAMS] = {0};
    const module_shape one = {.out = shape.out, .in = shape.in};
    *bound = false;
    for (int e = 0; e < shape.experts; e++) {
        module_view v;
        bool found;
        snprintf(module, sizeof module, "%s%d%s", before, e, behind);
        kakeya_status status = view_module(b, q, module, false, one, &v, &found, error);
        if (status != KAKEYA_OK || (!found && e == 0)) return status;
        if (!found)
            return error_set(error, KAKEYA_FORMAT, "%s: module %s is missing: there are %d of %d experts before it",
                             source(b), module, e, shape.experts);
        const weight_format_info *info = weight_format_find(v.format);
        if (e == 0) *out = empty_weight(&v, shape.experts * shape.out);
        if (v.format != out->format || (!v.wide && v.group != out->group) || v.scale_type != out->scale_type)
            return error_set(error, KAKEYA_UNSUPPORTED,
                             "%s: module %s is stored as %s in groups of %d, expert 0 as %s in %d", source(b), module,
                             weight_format_name(v.format), v.group, weight_format_name(out->format), out->group);
        for (int s = 0; s < info->streams; s++) {
            size_t bytes = weight_stream_bytes(&info->stream[s], one.out, one.in, v.group);
            if (e == 0) {
                streams[s] = tensor_memory_block(b->memory, b->account, bytes * (size_t)shape.experts);
                if (!streams[s]) return no_memory(b, module, bytes * (size_t)shape.experts, error);
                out->stream[s] = streams[s];
            }
            status = make_stream(b, &v, s, streams[s] + (size_t)e * bytes, error);
            if (status != KAKEYA_OK) return status;
        }
    }
    *bound = true;
    return KAKEYA_OK;
}
