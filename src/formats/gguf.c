#include "formats/gguf.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/foreign.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "GGUF files are read as little-endian memory"
#endif

static const char magic[4] = {'G', 'G', 'U', 'F'};
static const uint64_t max_elements = (uint64_t)1 << 47;
static const uint64_t max_string_bytes = (uint64_t)1 << 30;

enum {
    DEFAULT_ALIGNMENT = 32,
    MAX_ALIGNMENT = 65536,
    MAX_KEY_BYTES = 65535,
    MAX_NAME_BYTES = 63,
    MIN_VALUE_RECORD = 14,  /* length, a key of one byte, type, a value of one byte */
    MIN_TENSOR_RECORD = 33, /* length, a name of one byte, one dimension, type, offset */
};

static const struct {
    const char *name;
    size_t bytes; /* 0: no fixed size */
} value_types[GGUF_VALUE_TYPES] = {
    [GGUF_U8] = {"u8", 1},         [GGUF_I8] = {"i8", 1},   [GGUF_U16] = {"u16", 2},     [GGUF_I16] = {"i16", 2},
    [GGUF_U32] = {"u32", 4},       [GGUF_I32] = {"i32", 4}, [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1},
    [GGUF_STRING] = {"string", 0}, [GGUF_U64] = {"u64", 8}, [GGUF_ARRAY] = {"array", 0}, [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};

const char *gguf_value_type_name(gguf_value_type type) { return value_types[type].name; }

/* Every type that a file may hold, with or without kernels here. */
static const gguf_type types[] = {
    {GGUF_TENSOR_F32, "F32", 1, 4},
    {GGUF_TENSOR_F16, "F16", 1, 2},
    {GGUF_TENSOR_Q4_0, "Q4_0", 32, 18},
    {GGUF_TENSOR_Q4_1, "Q4_1", 32, 20},
    {GGUF_TENSOR_Q5_0, "Q5_0", 32, 22},
    {GGUF_TENSOR_Q5_1, "Q5_1", 32, 24},
    {GGUF_TENSOR_Q8_0, "Q8_0", 32, 34},
    {9, "Q8_1", 32, 36},
    {GGUF_TENSOR_Q2_K, "Q2_K", 256, 84},
    {GGUF_TENSOR_Q3_K, "Q3_K", 256, 110},
    {GGUF_TENSOR_Q4_K, "Q4_K", 256, 144},
    {GGUF_TENSOR_Q5_K, "Q5_K", 256, 176},
    {GGUF_TENSOR_Q6_K, "Q6_K", 256, 210},
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},
    {GGUF_TENSOR_IQ4_NL, "IQ4_NL", 32, 18},
    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},
    {GGUF_TENSOR_IQ4_XS, "IQ4_XS", 256, 136},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},
    {GGUF_TENSOR_BF16, "BF16", 1, 2},
    {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},
    {GGUF_TENSOR_MXFP4, "MXFP4", 32, 17},
    {GGUF_TENSOR_NVFP4, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},
    {42, "Q2_0", 64, 18},
};

static const gguf_type *find_type(uint32_t id) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].id == id) return &types[i];
    }
    return NULL;
}

char *gguf_show(const char *data, size_t bytes, char out[GGUF_SHOWN_BYTES]) {
    size_t used = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)data[i];
        if (used > GGUF_SHOWN_BYTES - 9) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (c >= 0x20 && c < 0x7f)
            out[used++] = (char)c;
        else
            used += (size_t)snprintf(out + used, 5, "\\x%02x", c);
    }
    out[used] = '\0';
    return out;
}

char *gguf_shape_text(const gguf_tensor *t, char *text, size_t text_bytes) {
    size_t used = 0;
    for (int i = 0; i < t->dims && used < text_bytes; i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%lld%s", i ? ", " : "{", (long long)t->ne[i],
                                 i == t->dims - 1 ? "}" : "");
    return text;
}

/* ------------------------------------------------------------------------------------------------------- cursor */

/* The only place that moves through a file. */
typedef struct cursor {
    const char *path;
    const unsigned char *data;
    size_t bytes, at;
    kakeya_error *error;
} cursor;

/* The next n bytes; NULL where there are fewer. */
static const unsigned char *take(cursor *c, uint64_t n) {
    if (n > c->bytes - c->at) return NULL;
    const unsigned char *here = c->data + c->at;
    c->at += (size_t)n;
    return here;
}

static bool take_u32(cursor *c, uint32_t *out) {
    const unsigned char *here = take(c, sizeof *out);
    if (here) memcpy(out, here, sizeof *out);
    return here != NULL;
}

static bool take_u64(cursor *c, uint64_t *out) {
    const unsigned char *here = take(c, sizeof *out);
    if (here) memcpy(out, here, sizeof *out);
    return here != NULL;
}

static size_t left(const cursor *c) { return c->bytes - c->at; }

static kakeya_status ends(const cursor *c, const char *where) {
    return error_set(c->error, KAKEYA_FORMAT, "%s: the file of %zu bytes ends inside %s (truncated? download it again)",
                     c->path, c->bytes, where);
}

static kakeya_status no_memory(const char *path, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its tables", path);
}

/* -------------------------------------------------------------------------------------------------------- names */

/* Names are collected behind one another; until the last one is there, the block may move, so records hold offsets in
 * the place of pointers. */
typedef struct name_block {
    char *data;
    size_t bytes, capacity;
} name_block;

static bool add_name(name_block *block, const unsigned char *name, size_t bytes, size_t *offset) {
    if (block->capacity - block->bytes < bytes + 1) {
        size_t capacity = 2 * block->capacity + bytes + 256;
        char *data = realloc(block->data, capacity);
        if (!data) return false;
        block->data = data;
        block->capacity = capacity;
    }
    *offset = block->bytes;
    memcpy(block->data + block->bytes, name, bytes);
    block->data[block->bytes + bytes] = '\0';
    block->bytes += bytes + 1;
    return true;
}

typedef struct parser {
    cursor at;
    gguf_part *part;
    name_block names;
    size_t *value_names, *tensor_names; /* offsets */
    size_t value_capacity, tensor_capacity;
    uint64_t *offsets; /* of tensors, from the start of the data */
    uint64_t declared_values, declared_tensors;
} parser;

/* Room for one more element in arrays that grow together. */
static bool grow(void **a, size_t a_bytes, void **b, size_t b_bytes, void **c, size_t c_bytes, size_t n,
                 size_t *capacity) {
    if (n < *capacity) return true;
    size_t larger = *capacity ? 2 * *capacity : 64;
    void **const arrays[] = {a, b, c};
    const size_t sizes[] = {a_bytes, b_bytes, c_bytes};
    for (int i = 0; i < 3; i++) {
        if (!arrays[i]) continue;
        void *moved = realloc(*arrays[i], larger * sizes[i]);
        if (!moved) return false;
        *arrays[i] = moved;
    }
    *capacity = larger;
    return true;
}

/* ------------------------------------------------------------------------------------------------------- values */

/* Strings back to back, each with its length. */
static kakeya_status skip_strings(parser *p, const char *key, uint64_t count) {
    cursor *c = &p->at;
    if (count > left(c) / 8)
        return error_set(c->error, KAKEYA_FORMAT, "%s: key %s has %llu strings, but %zu bytes of the file are left",
                         c->path, key, (unsigned long long)count, left(c));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t bytes;
        if (!take_u64(c, &bytes)) return ends(c, key);
        if (bytes > max_string_bytes || !take(c, bytes))
            return error_set(c->error, KAKEYA_FORMAT,
                             "%s: key %s: string %llu has %llu bytes, but %zu bytes of the file are left", c->path, key,
                             (unsigned long long)i, (unsigned long long)bytes, left(c));
    }
    return KAKEYA_OK;
}

static kakeya_status read_elements(parser *p, const char *key, gguf_value *value) {
    cursor *c = &p->at;
    value->data = c->data + c->at;
    size_t begin = c->at, size = value_types[value->type].bytes;
    kakeya_status status = KAKEYA_OK;
    if (value->type == GGUF_STRING)
        status = skip_strings(p, key, value->count);
    else if (value->count > left(c) / size || !take(c, value->count * size))
        status =
            error_set(c->error, KAKEYA_FORMAT, "%s: key %s has %llu values of %s, but %zu bytes of the file are left",
                      c->path, key, (unsigned long long)value->count, value_types[value->type].name, left(c));
    value->bytes = c->at - begin;
    return status;
}

static kakeya_status read_value(parser *p) {
    cursor *c = &p->at;
    gguf_part *part = p->part;
    if (!grow((void **)&part->values, sizeof *part->values, (void **)&p->value_names, sizeof *p->value_names, NULL, 0,
              part->n_values, &p->value_capacity))
        return no_memory(c->path, c->error);
    char shown[GGUF_SHOWN_BYTES], where[48];
    snprintf(where, sizeof where, "key %zu of %llu", part->n_values + 1, (unsigned long long)p->declared_values);
    uint64_t bytes;
    if (!take_u64(c, &bytes)) return ends(c, where);
    if (bytes == 0 || bytes > MAX_KEY_BYTES || bytes > left(c))
        return error_set(c->error, KAKEYA_FORMAT, "%s: %s has a name of %llu bytes (1 to %d, and %zu are left)",
                         c->path, where, (unsigned long long)bytes, (int)MAX_KEY_BYTES, left(c));
    const unsigned char *key = take(c, bytes);
    gguf_show((const char *)key, (size_t)bytes, shown);
    if (memchr(key, 0, (size_t)bytes))
        return error_set(c->error, KAKEYA_FORMAT, "%s: key %s has a NUL in its name", c->path, shown);

    gguf_value value = {.count = 1};
    uint32_t type;
    if (!take_u32(c, &type)) return ends(c, shown);
    if (type == GGUF_ARRAY) {
        value.array = true;
        if (!take_u32(c, &type) || !take_u64(c, &value.count)) return ends(c, shown);
    }
    if (type >= GGUF_VALUE_TYPES || type == GGUF_ARRAY)
        return error_set(c->error, KAKEYA_FORMAT, "%s: key %s has values of the unknown type %u", c->path, shown, type);
    value.type = (gguf_value_type)type;
    kakeya_status status = read_elements(p, shown, &value);
    if (status != KAKEYA_OK) return status;
    if (!add_name(&p->names, key, (size_t)bytes, &p->value_names[part->n_values])) return no_memory(c->path, c->error);
    part->values[part->n_values++] = value;
    return KAKEYA_OK;
}

static int compare_values(const void *a, const void *b) {
    return strcmp(((const gguf_value *)a)->key, ((const gguf_value *)b)->key);
}

static kakeya_status sort_values(parser *p) {
    gguf_part *part = p->part;
    for (size_t i = 0; i < part->n_values; i++) part->values[i].key = part->names + p->value_names[i];
    if (part->n_values) qsort(part->values, part->n_values, sizeof *part->values, compare_values);
    char shown[GGUF_SHOWN_BYTES];
    for (size_t i = 1; i < part->n_values; i++) {
        const char *key = part->values[i].key;
        if (strcmp(part->values[i - 1].key, key) == 0)
            return error_set(p->at.error, KAKEYA_FORMAT, "%s: key %s appears twice", p->at.path,
                             gguf_show(key, strlen(key), shown));
    }
    return KAKEYA_OK;
}

static const gguf_value *find_value(const gguf_part *part, const char *key) {
    gguf_value wanted = {.key = key};
    if (!part->n_values) return NULL;
    return bsearch(&wanted, part->values, part->n_values, sizeof *part->values, compare_values);
}

static kakeya_status read_alignment(parser *p) {
    p->part->alignment = DEFAULT_ALIGNMENT;
    const gguf_value *value = find_value(p->part, "general.alignment");
    if (!value) return KAKEYA_OK;
    if (value->array || !gguf_is_integer(value->type))
        return error_set(p->at.error, KAKEYA_FORMAT, "%s: general.alignment is %s%s, expected a whole number",
                         p->at.path, value->array ? "an array of " : "", gguf_value_type_name(value->type));
    long long alignment = gguf_value_int(value, 0);
    if (alignment <= 0 || alignment > MAX_ALIGNMENT || (alignment & (alignment - 1)))
        return error_set(p->at.error, KAKEYA_FORMAT, "%s: general.alignment is %lld, expected a power of two up to %d",
                         p->at.path, alignment, (int)MAX_ALIGNMENT);
    p->part->alignment = (uint32_t)alignment;
    return KAKEYA_OK;
}

/* ------------------------------------------------------------------------------------------------------ tensors */

/* Bytes of a tensor from its dimensions and type. */
static kakeya_status tensor_size(const cursor *c, const char *name, gguf_tensor *t) {
    char shape[128];
    uint64_t elements = 1;
    for (int i = 0; i < t->dims; i++) {
        if (t->ne[i] <= 0 || (uint64_t)t->ne[i] > max_elements / elements)
            return error_set(c->error, KAKEYA_FORMAT,
                             "%s: tensor %s has shape %s: every dimension is at least 1, their product at most 2^47",
                             c->path, name, gguf_shape_text(t, shape, sizeof shape));
        elements *= (uint64_t)t->ne[i];
    }
    if (t->ne[0] % t->type->block)
        return error_set(c->error, KAKEYA_FORMAT, "%s: tensor %s has rows of %lld values, but blocks of %s have %d",
                         c->path, name, (long long)t->ne[0], t->type->name, t->type->block);
    t->bytes = (size_t)(elements / t->type->block * t->type->bytes); /* < 2^47 * 8 */
    return KAKEYA_OK;
}

static kakeya_status read_tensor(parser *p) {
    cursor *c = &p->at;
    gguf_part *part = p->part;
    if (!grow((void **)&part->tensors, sizeof *part->tensors, (void **)&p->tensor_names, sizeof *p->tensor_names,
              (void **)&p->offsets, sizeof *p->offsets, part->n_tensors, &p->tensor_capacity))
        return no_memory(c->path, c->error);
    char shown[GGUF_SHOWN_BYTES], where[56];
    snprintf(where, sizeof where, "tensor record %zu of %llu", part->n_tensors + 1,
             (unsigned long long)p->declared_tensors);
    uint64_t bytes, offset;
    if (!take_u64(c, &bytes)) return ends(c, where);
    if (bytes == 0 || bytes > MAX_NAME_BYTES || bytes > left(c))
        return error_set(c->error, KAKEYA_FORMAT, "%s: %s has a name of %llu bytes (1 to %d, and %zu are left)",
                         c->path, where, (unsigned long long)bytes, (int)MAX_NAME_BYTES, left(c));
    const unsigned char *name = take(c, bytes);
    gguf_show((const char *)name, (size_t)bytes, shown);
    if (memchr(name, 0, (size_t)bytes))
        return error_set(c->error, KAKEYA_FORMAT, "%s: tensor %s has a NUL in its name", c->path, shown);

    gguf_tensor t = {0};
    uint32_t dims, type;
    if (!take_u32(c, &dims)) return ends(c, shown);
    if (dims < 1 || dims > GGUF_MAX_DIMS)
        return error_set(c->error, KAKEYA_FORMAT, "%s: tensor %s has %u dimensions, expected 1 to %d", c->path, shown,
                         dims, (int)GGUF_MAX_DIMS);
    t.dims = (int)dims;
    for (uint32_t i = 0; i < dims; i++) {
        uint64_t ne;
        if (!take_u64(c, &ne)) return ends(c, shown);
        t.ne[i] = ne > INT64_MAX ? -1 : (int64_t)ne;
    }
    if (!take_u32(c, &type) || !take_u64(c, &offset)) return ends(c, shown);
    t.type = find_type(type);
    if (!t.type)
        return error_set(c->error, KAKEYA_UNSUPPORTED, "%s: tensor %s is of type %u, %s", c->path, shown, type,
                         type > 42 && type < 1000 ? "which only ik_llama.cpp writes: take a Q4_K_M or Q8_0 file"
                                                  : "which no longer exists or does not exist yet");
    kakeya_status status = tensor_size(c, shown, &t);
    if (status != KAKEYA_OK) return status;
    if (offset % part->alignment)
        return error_set(c->error, KAKEYA_FORMAT, "%s: tensor %s begins at byte %llu of the data, not a multiple of %u",
                         c->path, shown, (unsigned long long)offset, part->alignment);
    if (!add_name(&p->names, name, (size_t)bytes, &p->tensor_names[part->n_tensors]))
        return no_memory(c->path, c->error);
    p->offsets[part->n_tensors] = offset;
    part->tensors[part->n_tensors++] = t;
    return KAKEYA_OK;
}

/* Offsets become addresses. */
static kakeya_status place_tensors(parser *p) {
    cursor *c = &p->at;
    gguf_part *part = p->part;
    size_t alignment = part->alignment;
    size_t padding = (alignment - c->at % alignment) % alignment;
    if (part->n_tensors == 0) return KAKEYA_OK;
    if (padding > left(c)) return ends(c, "the padding after the tensor records");
    c->at += padding;
    const unsigned char *data = c->data + c->at;
    uint64_t there = left(c), most = 0;
    const char *last = NULL;
    for (size_t i = 0; i < part->n_tensors; i++) {
        gguf_tensor *t = &part->tensors[i];
        t->name = p->names.data + p->tensor_names[i];
        uint64_t offset = p->offsets[i], bytes = t->bytes;
        if (offset > UINT64_MAX - c->at - bytes || offset > there || bytes > there - offset) {
            uint64_t end = offset > UINT64_MAX - bytes - c->at ? UINT64_MAX : offset + bytes + c->at;
            if (!last || end > most) {
                most = end;
                last = t->name;
            }
            continue;
        }
        t->data = data + offset;
    }
    char shown[GGUF_SHOWN_BYTES];
    if (!last) return KAKEYA_OK;
    return error_set(c->error, KAKEYA_FORMAT,
                     "%s: the file has %zu bytes, but tensor %s ends at byte %llu (truncated? download it again)",
                     c->path, c->bytes, gguf_show(last, strlen(last), shown), (unsigned long long)most);
}

static int compare_places(const void *a, const void *b) {
    const gguf_tensor *x = a, *y = b;
    return x->data < y->data ? -1 : x->data > y->data;
}

static int compare_names(const void *a, const void *b) {
    return strcmp(((const gguf_tensor *)a)->name, ((const gguf_tensor *)b)->name);
}

static kakeya_status sort_tensors(parser *p) {
    gguf_part *part = p->part;
    char first[GGUF_SHOWN_BYTES], second[GGUF_SHOWN_BYTES];
    if (!part->n_tensors) return KAKEYA_OK;
    qsort(part->tensors, part->n_tensors, sizeof *part->tensors, compare_places);
    for (size_t i = 1; i < part->n_tensors; i++) {
        const gguf_tensor *a = &part->tensors[i - 1], *b = &part->tensors[i];
        if (a->data + a->bytes > b->data)
            return error_set(p->at.error, KAKEYA_FORMAT, "%s: tensors %s and %s overlap", p->at.path,
                             gguf_show(a->name, strlen(a->name), first), gguf_show(b->name, strlen(b->name), second));
    }
    qsort(part->tensors, part->n_tensors, sizeof *part->tensors, compare_names);
    for (size_t i = 1; i < part->n_tensors; i++) {
        const char *name = part->tensors[i].name;
        if (strcmp(part->tensors[i - 1].name, name) == 0)
            return error_set(p->at.error, KAKEYA_FORMAT, "%s: tensor %s appears twice", p->at.path,
                             gguf_show(name, strlen(name), first));
    }
    return KAKEYA_OK;
}

/* --------------------------------------------------------------------------------------------------------- parts */

static kakeya_status read_header(parser *p) {
    cursor *c = &p->at;
    const unsigned char *start = take(c, sizeof magic);
    if (!start) return ends(c, "its first four bytes");
    if (memcmp(start, magic, sizeof magic) != 0) {
        static const char older[4][5] = {"lmgg", "fmgg", "tjgg", "algg"}; /* ggml, ggmf, ggjt, ggla as they lie */
        for (int i = 0; i < 4; i++) {
            if (memcmp(start, older[i], 4) == 0)
                return error_set(c->error, KAKEYA_UNSUPPORTED,
                                 "%s: a ggml file from before GGUF: download a .gguf file", c->path);
        }
        kakeya_status status = foreign_refuse(c->path, c->data, c->bytes, c->error);
        if (status != KAKEYA_OK) return status;
        return error_set(c->error, KAKEYA_FORMAT, "%s: not a GGUF file: it does not begin with \"GGUF\"", c->path);
    }
    if (!take_u32(c, &p->part->version)) return ends(c, "its version");
    uint32_t version = p->part->version;
    if ((version & 0xffff) == 0 && version)
        return error_set(c->error, KAKEYA_UNSUPPORTED,
                         "%s: a GGUF file in big-endian byte order: use the little-endian one", c->path);
    if (version != 2 && version != 3)
        return error_set(c->error, KAKEYA_UNSUPPORTED, "%s: GGUF version %u, expected 2 or 3", c->path, version);
    if (!take_u64(c, &p->declared_tensors) || !take_u64(c, &p->declared_values)) return ends(c, "its counts");
    if (p->declared_values > left(c) / MIN_VALUE_RECORD)
        return error_set(c->error, KAKEYA_FORMAT, "%s: n_kv announces %lld keys, but %zu bytes of the file are left",
                         c->path, (long long)p->declared_values, left(c));
    if (p->declared_tensors > left(c) / MIN_TENSOR_RECORD)
        return error_set(c->error, KAKEYA_FORMAT,
                         "%s: n_tensors announces %lld tensors, but %zu bytes of the file are left", c->path,
                         (long long)p->declared_tensors, left(c));
    return KAKEYA_OK;
}

/* Values are looked up before tensors are read, whose names may move the block. */
static void place_names(parser *p) {
    p->part->names = p->names.data;
    for (size_t i = 0; i < p->part->n_values; i++) p->part->values[i].key = p->names.data + p->value_names[i];
}

static kakeya_status parse_part(gguf_part *part, const unsigned char *data, size_t bytes, kakeya_error *error) {
    parser p = {.at = {.path = part->path, .data = data, .bytes = bytes, .error = error}, .part = part};
    kakeya_status status = read_header(&p);
    for (uint64_t i = 0; i < p.declared_values && status == KAKEYA_OK; i++) status = read_value(&p);
    if (status == KAKEYA_OK) {
        place_names(&p);
        status = sort_values(&p);
    }
    if (status == KAKEYA_OK) status = read_alignment(&p);
    /* Values have changed places, and their names' block may still move. */
    for (size_t i = 0; i < part->n_values && status == KAKEYA_OK; i++)
        p.value_names[i] = (size_t)(part->values[i].key - p.names.data);
    for (uint64_t i = 0; i < p.declared_tensors && status == KAKEYA_OK; i++) status = read_tensor(&p);
    if (p.names.data) place_names(&p);
    if (status == KAKEYA_OK) status = place_tensors(&p);
    if (status == KAKEYA_OK) status = sort_tensors(&p);
    free(p.value_names);
    free(p.tensor_names);
    free(p.offsets);
    return status;
}

static void part_free(gguf_part *part) {
    file_map_close(&part->map);
    free(part->values);
    free(part->tensors);
    free(part->names);
    free(part->path);
}

/* -------------------------------------------------------------------------------------------------------- splits */

/* PREFIX-%05d-of-%05d.gguf */
typedef struct split_name {
    int prefix_bytes; /* of the path */
    int number, count;
} split_name;

enum { SPLIT_ENDING_BYTES = 20, SPLIT_DIGITS = 5 };

static bool read_digits(const char *text, int *out) {
    *out = 0;
    for (int i = 0; i < SPLIT_DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        *out = *out * 10 + (text[i] - '0');
    }
    return true;
}

static bool read_split_name(const char *path, split_name *out) {
    size_t length = strlen(path);
    if (length < SPLIT_ENDING_BYTES || length > INT32_MAX) return false;
    const char *ending = path + length - SPLIT_ENDING_BYTES; /* -00001-of-00003.gguf */
    out->prefix_bytes = (int)(length - SPLIT_ENDING_BYTES);
    return ending[0] == '-' && read_digits(ending + 1, &out->number) && strncmp(ending + 6, "-of-", 4) == 0 &&
           read_digits(ending + 10, &out->count) && strcmp(ending + 15, ".gguf") == 0 && out->number >= 1 &&
           out->number <= out->count;
}

bool gguf_same_split(const char *a, const char *b) {
    split_name x, y;
    return read_split_name(a, &x) && read_split_name(b, &y) && x.count == y.count && x.prefix_bytes == y.prefix_bytes &&
           memcmp(a, b, (size_t)x.prefix_bytes) == 0;
}

/* A whole number of a part; -1 where there is no such key, -2 where it is none. */
static long long split_number(const gguf_part *part, const char *key) {
    const gguf_value *value = find_value(part, key);
    if (!value) return -1;
    long long number = value->array || !gguf_is_integer(value->type) ? -2 : gguf_value_int(value, 0);
    return number < 0 ? -2 : number;
}

static kakeya_status open_part(gguf *file, const char *path, kakeya_error *error) {
    gguf_part *parts = realloc(file->parts, (file->n_parts + 1) * sizeof *parts);
    if (!parts) return no_memory(path, error);
    file->parts = parts;
    gguf_part *part = &parts[file->n_parts];
    *part = (gguf_part){.path = strdup(path)};
    if (!part->path) return no_memory(path, error);
    file->n_parts++;
    kakeya_status status = file_map_open(path, &part->map, error);
    if (status == KAKEYA_OK) status = parse_part(part, part->map.data, part->map.bytes, error);
    file->bytes += part->map.bytes;
    return status;
}

static kakeya_status check_part_number(const gguf_part *part, int number, int count, kakeya_error *error) {
    long long no = split_number(part, "split.no"), of = split_number(part, "split.count");
    if (no == number && of == count) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT, "%s: split.no is %lld of split.count %lld, expected %d of %d", part->path,
                     no, of, number, count);
}

static kakeya_status open_split(gguf *file, const char *path, const split_name *name, kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = 0; i < name->count && status == KAKEYA_OK; i++) {
        char *part = NULL;
        if (asprintf(&part, "%.*s-%05d-of-%05d.gguf", name->prefix_bytes, path, i + 1, name->count) < 0)
            return no_memory(path, error);
        bool there;
        status = file_find(part, &there, error);
        if (status == KAKEYA_OK && !there)
            status =
                error_set(error, KAKEYA_IO, "%s: part %d of %d of a split model is missing", part, i + 1, name->count);
        if (status == KAKEYA_OK) status = open_part(file, part, error);
        free(part);
        if (status == KAKEYA_OK) status = check_part_number(&file->parts[i], i, name->count, error);
    }
    return status;
}

static int compare_tensors(const void *a, const void *b) {
    return strcmp((*(const gguf_tensor *const *)a)->name, (*(const gguf_tensor *const *)b)->name);
}

static const char *part_of(const gguf *file, const gguf_tensor *t) {
    for (size_t i = 0; i < file->n_parts; i++) {
        const gguf_part *part = &file->parts[i];
        if (t >= part->tensors && t < part->tensors + part->n_tensors) return part->path;
    }
    return gguf_path(file);
}

static kakeya_status merge_tensors(gguf *file, kakeya_error *error) {
    size_t total = 0;
    for (size_t i = 0; i < file->n_parts; i++) total += file->parts[i].n_tensors;
    file->tensors = malloc((total + 1) * sizeof *file->tensors);
    if (!file->tensors) return no_memory(gguf_path(file), error);
    for (size_t i = 0; i < file->n_parts; i++) {
        for (size_t k = 0; k < file->parts[i].n_tensors; k++)
            file->tensors[file->n_tensors++] = &file->parts[i].tensors[k];
    }
    qsort(file->tensors, total, sizeof *file->tensors, compare_tensors);
    char shown[GGUF_SHOWN_BYTES];
    for (size_t i = 1; i < total; i++) {
        const gguf_tensor *a = file->tensors[i - 1], *b = file->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return error_set(error, KAKEYA_FORMAT, "%s: tensor %s is also in %s", part_of(file, b),
                             gguf_show(a->name, strlen(a->name), shown), part_of(file, a));
    }
    if (file->n_parts == 1) return KAKEYA_OK;
    long long announced = split_number(&file->parts[0], "split.tensors.count");
    if (announced == (long long)total) return KAKEYA_OK;
    return error_set(error, KAKEYA_FORMAT, "%s: split.tensors.count is %lld, but the %zu parts hold %zu tensors",
                     gguf_path(file), announced, file->n_parts, total);
}

/* A file that says that it is split must be named as one; a file that is named so need not be split. */
static kakeya_status check_unsplit(const gguf_part *part, kakeya_error *error) {
    long long count = split_number(part, "split.count");
    if (count >= -1 && count <= 1) return KAKEYA_OK;
    return error_set(
        error, KAKEYA_FORMAT,
        "%s: one of %lld parts (split.count), but it is not named PREFIX-00001-of-%05lld.gguf as parts are", part->path,
        count, count < 0 ? 0 : count);
}

/* ---------------------------------------------------------------------------------------------------------- files */

bool gguf_is_file(const char *path) {
    char start[sizeof magic];
    size_t bytes;
    return file_read_start(path, start, sizeof start, &bytes, NULL) == KAKEYA_OK && bytes == sizeof start &&
           memcmp(start, magic, sizeof magic) == 0;
}

kakeya_status gguf_open(const char *path, gguf **out, kakeya_error *error) {
    *out = NULL;
    gguf *file = calloc(1, sizeof *file);
    if (!file) return no_memory(path, error);
    split_name name;
    kakeya_status status;
    if (read_split_name(path, &name) && name.count > 1) {
        status = open_split(file, path, &name, error);
    } else {
        status = open_part(file, path, error);
        if (status == KAKEYA_OK) status = check_unsplit(&file->parts[0], error);
    }
    if (status == KAKEYA_OK) status = merge_tensors(file, error);
    if (status != KAKEYA_OK) {
        gguf_close(file);
        return status;
    }
    *out = file;
    return KAKEYA_OK;
}

kakeya_status gguf_parse(const char *path, const unsigned char *data, size_t bytes, gguf **out, kakeya_error *error) {
    *out = NULL;
    gguf *file = calloc(1, sizeof *file);
    if (file) file->parts = calloc(1, sizeof *file->parts);
    char *copy = strdup(path);
    if (!file || !file->parts || !copy) {
        if (file) free(file->parts);
        free(file);
        free(copy);
        return no_memory(path, error);
    }
    file->n_parts = 1;
    file->parts[0].path = copy;
    file->bytes = bytes;
    kakeya_status status = parse_part(&file->parts[0], data, bytes, error);
    if (status == KAKEYA_OK) status = check_unsplit(&file->parts[0], error);
    if (status == KAKEYA_OK) status = merge_tensors(file, error);
    if (status != KAKEYA_OK) {
        gguf_close(file);
        return status;
    }
    *out = file;
    return KAKEYA_OK;
}

void gguf_close(gguf *file) {
    if (!file) return;
    for (size_t i = 0; i < file->n_parts; i++) part_free(&file->parts[i]);
    free(file->parts);
    free(file->tensors);
    free(file);
}

bool gguf_is_integer(gguf_value_type type) {
    return type <= GGUF_I32 || type == GGUF_U64 || type == GGUF_I64; /* the numbers below f32's are integers */
}

long long gguf_value_int(const gguf_value *value, uint64_t i) {
#define INTEGER(type, c_type)                                                                                          \
    case type: {                                                                                                       \
        c_type number;                                                                                                 \
        memcpy(&number, value->data + i * sizeof number, sizeof number);                                               \
        return (long long)number;                                                                                      \
    }
    switch (value->type) {
        INTEGER(GGUF_U8, uint8_t)
        INTEGER(GGUF_I8, int8_t)
        INTEGER(GGUF_U16, uint16_t)
        INTEGER(GGUF_I16, int16_t)
        INTEGER(GGUF_U32, uint32_t)
        INTEGER(GGUF_I32, int32_t)
        INTEGER(GGUF_I64, int64_t)
        INTEGER(GGUF_BOOL, uint8_t)
    case GGUF_U64: {
        uint64_t number;
        memcpy(&number, value->data + i * sizeof number, sizeof number);
        return number > INT64_MAX ? INT64_MAX : (long long)number;
    }
    default:
        return 0;
    }
}

const gguf_value *gguf_find(const gguf *file, const char *key) { return find_value(&file->parts[0], key); }

ptrdiff_t gguf_find_tensor(const gguf *file, const char *name) {
    gguf_tensor wanted = {.name = name};
    const gguf_tensor *key = &wanted;
    const gguf_tensor **found = bsearch(&key, file->tensors, file->n_tensors, sizeof *file->tensors, compare_tensors);
    return found ? found - file->tensors : -1;
}

gguf_text gguf_next_string(const gguf_value *array, size_t *at) {
    uint64_t bytes;
    memcpy(&bytes, array->data + *at, sizeof bytes); /* checked when the file was read */
    gguf_text text = {.data = (const char *)array->data + *at + sizeof bytes, .bytes = (size_t)bytes};
    *at += sizeof bytes + text.bytes;
    return text;
}

void gguf_unneeded(const gguf *file, const void *data, size_t bytes) {
    for (size_t i = 0; i < file->n_parts; i++) file_map_unneeded(&file->parts[i].map, data, bytes);
}
