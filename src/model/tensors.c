#include "model/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "model/synthetic_rows.h"

enum { LISTED_NAMES = 6, VECTOR_ALIGN_FLOATS = 16 };

int64_t tensor_slot_elements(const tensor_slot *slot) {
    int64_t n = 1;
    for (int i = 0; i < slot->dims; i++) n *= slot->shape[i];
    return n;
}

void tensor_memory_release(tensor_memory *memory) {
    for (size_t i = 0; i < memory->n_owned; i++) mem_free(memory->owned[i]);
    free(memory->owned);
    *memory = (tensor_memory){0};
}

void *tensor_memory_block(tensor_memory *memory, mem_account *account, size_t bytes) {
    void **owned = realloc(memory->owned, (memory->n_owned + 1) * sizeof *owned);
    if (!owned) return NULL;
    memory->owned = owned;
    void *block = mem_alloc(account, MEM_WEIGHTS, bytes);
    if (block) owned[memory->n_owned++] = block;
    return block;
}

/* Vectors of a model lie one after the other in a single block. */
size_t tensor_vector_floats(const tensor_slot *slot) {
    size_t n = (size_t)tensor_slot_elements(slot);
    return (n + VECTOR_ALIGN_FLOATS - 1) / VECTOR_ALIGN_FLOATS * VECTOR_ALIGN_FLOATS;
}

static kakeya_status count_vector(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    if (slot->kind == SLOT_VECTOR) *(size_t *)context += tensor_vector_floats(slot);
    return KAKEYA_OK;
}

kakeya_status tensor_vector_block(tensor_walk walk, const void *shape, mem_account *account, tensor_memory *memory,
                                  float **block, kakeya_error *error) {
    size_t floats = 0;
    kakeya_status status = walk(shape, count_vector, &floats, error);
    if (status != KAKEYA_OK || floats == 0) return status;
    *block = tensor_memory_block(memory, account, floats * sizeof(float));
    if (*block) return KAKEYA_OK;
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu bytes of norm weights", floats * sizeof(float));
}

weight tensor_slot_weight(const tensor_slot *slot, const void *data, weight_format format) {
    int64_t in = slot->shape[slot->dims - 1];
    return weight_matrix(format, data, (int)(tensor_slot_elements(slot) / in), (int)in);
}

static weight_format format_of(dtype type) {
    return type == DTYPE_F32 ? WEIGHT_F32 : type == DTYPE_F16 ? WEIGHT_F16 : WEIGHT_BF16;
}

/* ----------------------------------------------------------------------------------------------- binding */

void name_list_add(name_list *list, const char *name, const char *detail) {
    if (list->count++ >= LISTED_NAMES || list->used >= sizeof list->text) return;
    int wrote = snprintf(list->text + list->used, sizeof list->text - list->used, "%s%s%s", list->count > 1 ? ", " : "",
                         name, detail);
    list->used += (size_t)wrote;
}

kakeya_status name_lists_check(const char *file, const name_list *missing, const name_list *unexpected,
                               kakeya_error *error) {
    if (missing->count && unexpected->count)
        return error_set(error, KAKEYA_FORMAT, "%s: %zu missing tensor(s): %s; %zu unexpected: %s", file,
                         missing->count, missing->text, unexpected->count, unexpected->text);
    if (missing->count)
        return error_set(error, KAKEYA_FORMAT, "%s: %zu missing tensor(s): %s", file, missing->count, missing->text);
    if (unexpected->count)
        return error_set(error, KAKEYA_FORMAT, "%s: %zu unexpected tensor(s): %s", file, unexpected->count,
                         unexpected->text);
    return KAKEYA_OK;
}

typedef struct binder {
    tensor_binding to;
    const tensor_hook *hook;
    float *vectors;
    name_list missing;
} binder;

static float element(const tensor *t, dtype type, size_t i) {
    if (type == DTYPE_F32) {
        float value;
        memcpy(&value, t->data + i * 4, sizeof value);
        return value;
    }
    uint16_t bits;
    memcpy(&bits, t->data + i * 2, sizeof bits);
    return type == DTYPE_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

static kakeya_status bind_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    binder *b = context;
    char name[SLOT_NAME_BYTES + 64], expected[80], found[128];
    snprintf(name, sizeof name, "%s%s", slot->unprefixed ? "" : b->to.prefix, slot->name);
    if (b->hook) {
        bool bound = false;
        kakeya_status status = b->hook->bind(b->hook->context, &b->to, slot, name, &bound, error);
        if (status != KAKEYA_OK || bound) return status;
    }
    ptrdiff_t index = checkpoint_find(b->to.ck, name);
    if (index >= 0) b->to.used[index] = true;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;

    tensor_shape_text(slot->dims, slot->shape, expected, sizeof expected);
    if (index < 0) {
        char detail[96];
        snprintf(detail, sizeof detail, " %s", expected);
        name_list_add(&b->missing, name, detail);
        return KAKEYA_OK; /* reported together at the end */
    }
    const tensor *t = b->to.ck->tensors[index];
    bool same = t->dims == slot->dims;
    for (int i = 0; same && i < t->dims; i++) same = t->shape[i] == slot->shape[i];
    if (!same)
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s has shape %s, expected %s", b->to.ck->directory, name,
                         tensor_shape_text(t->dims, t->shape, found, sizeof found), expected);
    dtype type;
    if (!tensor_dtype(t, &type))
        return error_set(error, KAKEYA_FORMAT, "%s: tensor %s has dtype %s, expected F32, F16 or BF16",
                         b->to.ck->directory, name, tensor_type_name(t->type));

    char *binding = b->to.base + slot->offset;
    if (slot->kind == SLOT_MATRIX) {
        const void *data = NULL;
        kakeya_status status = checkpoint_aligned(b->to.ck, t, b->to.account, &data, error);
        if (status != KAKEYA_OK) return status;
        if (data == t->data) b->to.memory->mapped_bytes += t->bytes;
        *(weight *)(void *)binding = tensor_slot_weight(slot, data, format_of(type));
    } else if (slot->kind == SLOT_VECTOR) {
        size_t n = (size_t)t->shape[0];
        for (size_t i = 0; i < n; i++) b->vectors[i] = element(t, type, i);
        *(const float **)(void *)binding = b->vectors;
        b->vectors += tensor_vector_floats(slot);
    } else {
        *(float *)(void *)binding = element(t, type, 0);
    }
    return KAKEYA_OK;
}

/* Every tensor of the file must have been asked for or be one to skip. */
static kakeya_status check_names(binder *b, tensor_skip skip, kakeya_error *error) {
    name_list unexpected = {0};
    for (size_t i = 0; i < b->to.ck->n_tensors; i++) {
        const char *name = b->to.ck->tensors[i]->name;
        if (b->to.used[i]) continue;
        if (skip && skip(name))
            b->to.memory->skipped++;
        else
            name_list_add(&unexpected, name, "");
    }
    return name_lists_check(b->to.ck->directory, &b->missing, &unexpected, error);
}

kakeya_status tensors_bind(checkpoint *ck, const char *prefix, tensor_walk walk, const void *shape, void *base,
                           const tensor_hook *hook, tensor_skip skip, mem_account *account, tensor_memory *memory,
                           kakeya_error *error) {
    binder b = {.to = {.ck = ck, .prefix = prefix, .base = base, .account = account, .memory = memory}, .hook = hook};
    b.to.used = calloc(ck->n_tensors + 1, sizeof *b.to.used);
    if (!b.to.used) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its tensor list", ck->directory);
    kakeya_status status = tensor_vector_block(walk, shape, account, memory, &b.vectors, error);
    if (status == KAKEYA_OK) status = walk(shape, bind_slot, &b, error);
    if (status == KAKEYA_OK) status = check_names(&b, skip, error);
    free(b.to.used);
    return status;
}

/* --------------------------------------------------------------------------------------------- synthesis */

/* Matrices are cut from an endless repetition of one tile of random values. Its length is prime, so that the rows of a
 * matrix start at different places of it; at 2 MB in bf16 it stays in the cache while gigabytes are filled. */
enum { TILE_ELEMENTS = 1000003, MAX_TILES = 8 };

typedef struct tile {
    float deviation;
    unsigned char *values;
} tile;

typedef struct synthesizer {
    char *base;
    weight_format format; /* of plain matrices: F32 or BF16 */
    bool quantised;       /* matrices are of the formats that their slots say */
    mem_account *account;
    tensor_memory *memory;
    bool outline; /* matrices get a deviation instead of data */
    float *vectors;
    tile tiles[MAX_TILES]; /* by standard deviation */
    int n_tiles;
    uint64_t state;
} synthesizer;

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t value_bytes(weight_format format) { return (size_t)weight_format_find(format)->stream[0].bytes; }

/* The tile of uniform values with this standard deviation; NULL when out of memory. */
static const unsigned char *find_tile(synthesizer *s, float deviation) {
    for (int i = 0; i < s->n_tiles; i++) {
        if (s->tiles[i].deviation == deviation) return s->tiles[i].values;
    }
    if (s->n_tiles == MAX_TILES) return NULL;
    size_t width = value_bytes(s->format);
    unsigned char *values = malloc(TILE_ELEMENTS * width);
    if (!values) return NULL;
    uint64_t state = 1;
    const float half_range = deviation * 1.7320508f; /* uniform on [-h, h] has deviation h / sqrt(3) */
    for (size_t i = 0; i < TILE_ELEMENTS; i++) {
        float unit = (float)(next_random(&state) >> 40) * 0x1p-23f - 1.0f;
        float value = unit * half_range;
        uint16_t narrow = f32_to_bf16(value);
        memcpy(values + i * width, s->format == WEIGHT_F32 ? (const void *)&value : (const void *)&narrow, width);
    }
    s->tiles[s->n_tiles++] = (tile){.deviation = deviation, .values = values};
    return values;
}

/* All rows of a quantised matrix. */
static kakeya_status make_rows(synthesizer *s, weight *w, kakeya_error *error) {
    const weight_format_info *info = weight_format_find(w->format);
    const uint64_t seed = next_random(&s->state);
    void *made[WEIGHT_STREAMS] = {NULL};
    for (int i = 0; i < info->streams; i++) {
        size_t row = weight_row_bytes(w, i), bytes = row * (size_t)w->out;
        made[i] = tensor_memory_block(s->memory, s->account, bytes);
        if (!made[i])
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu bytes of synthetic codes", bytes);
        for (int o = 0; o < w->out; o++) synthetic_row(w, seed, o, i, (char *)made[i] + (size_t)o * row);
    }
    for (int i = 0; i < info->streams; i++) w->stream[i] = made[i];
    return KAKEYA_OK;
}

static bool is_blocks(const synthesizer *s, const tensor_slot *slot) {
    return s->quantised && !weight_format_is_plain(slot->quantised);
}

static kakeya_status synthesize_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    synthesizer *s = context;
    char *binding = s->base + slot->offset;
    size_t elements = (size_t)tensor_slot_elements(slot);
    if (slot->kind == SLOT_VECTOR) {
        for (size_t i = 0; i < elements; i++) s->vectors[i] = slot->synthetic;
        *(const float **)(void *)binding = s->vectors;
        s->vectors += tensor_vector_floats(slot);
    } else if (slot->kind == SLOT_SCALAR) {
        *(float *)(void *)binding = slot->synthetic;
    } else if (slot->kind == SLOT_MATRIX && (s->outline || is_blocks(s, slot))) {
        weight w = tensor_slot_weight(slot, NULL, is_blocks(s, slot) ? slot->quantised : s->format);
        w.synthetic = slot->synthetic;
        w.group = synthetic_group(w.format, w.in);
        w.scale_type = DTYPE_BF16;
        if (weight_format_is_grouped(w.format) && !s->outline) {
            kakeya_status status = make_rows(s, &w, error);
            if (status != KAKEYA_OK) return status;
        }
        *(weight *)(void *)binding = w;
    } else if (slot->kind == SLOT_MATRIX) {
        size_t width = value_bytes(s->format);
        const unsigned char *values = find_tile(s, slot->synthetic);
        unsigned char *data = values ? tensor_memory_block(s->memory, s->account, elements * width) : NULL;
        if (!data)
            return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for %zu bytes of synthetic tensor %s",
                             elements * width, slot->name);
        size_t from = next_random(&s->state) % TILE_ELEMENTS;
        for (size_t done = 0; done < elements;) {
            size_t n = TILE_ELEMENTS - from < elements - done ? TILE_ELEMENTS - from : elements - done;
            memcpy(data + done * width, values + from * width, n * width);
            done += n;
            from = 0;
        }
        *(weight *)(void *)binding = tensor_slot_weight(slot, data, s->format);
    }
    return KAKEYA_OK;
}

static kakeya_status fill_slots(tensor_walk walk, const void *shape, synthesizer *s, kakeya_error *error) {
    s->quantised = !weight_format_is_plain(s->format);
    if (s->quantised) s->format = WEIGHT_BF16;
    kakeya_status status = tensor_vector_block(walk, shape, s->account, s->memory, &s->vectors, error);
    if (status == KAKEYA_OK) status = walk(shape, synthesize_slot, s, error);
    for (int i = 0; i < s->n_tiles; i++) free(s->tiles[i].values);
    return status;
}

kakeya_status tensors_synthesize(tensor_walk walk, const void *shape, void *base, weight_format format,
                                 mem_account *account, tensor_memory *memory, kakeya_error *error) {
    synthesizer s = {.base = base, .format = format, .account = account, .memory = memory, .state = 2};
    return fill_slots(walk, shape, &s, error);
}

kakeya_status tensors_outline(tensor_walk walk, const void *shape, void *base, weight_format format,
                              mem_account *account, tensor_memory *memory, kakeya_error *error) {
    synthesizer s = {.base = base, .format = format, .account = account, .memory = memory, .outline = true};
    return fill_slots(walk, shape, &s, error);
}
