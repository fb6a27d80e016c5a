/* Directories: in MLX's affine form, with mlx-lm's names: experts' gate and up apart, the router in 8 bits, the
 * embedding quantised, and what a group does not divide left as it was; or in floating point, with Hugging Face's. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/float16.h"
#include "base/json.h"
#include "convert/audio.h"
#include "convert/quantise.h"
#include "convert/source.h"
#include "convert/text_files.h"
#include "formats/checkpoint.h"
#include "model/gemma4_modules.h"

enum { GROUP = 64, ROUTER_BITS = 8, NAME_BYTES = SLOT_NAME_BYTES + 64, MAX_TEXT_BYTES = 512 << 20, OUTPUT_FILES = 8 };

/* What a directory consists of; the first two are made. */
static const char *const output_files[OUTPUT_FILES] = {
    "model.safetensors",      "config.json",         "tokenizer.json",          "tokenizer_config.json",
    "generation_config.json", "chat_template.jinja", "special_tokens_map.json", "chat_template.json",
};

/* A tensor of the model's list, or half of one, as a module. */
typedef struct out_module {
    source_tensor from;
    char name[NAME_BYTES]; /* without ".weight" where it is quantised */
    int bits;              /* 0: plain */
    tensor_type type;      /* of a plain one, or of the scales */
} out_module;

typedef struct out_plan {
    out_module *modules;
    size_t n;
    safetensors_entry *entries;
    size_t n_entries;
    char (*names)[NAME_BYTES + 16]; /* of entries */
    vision_entries vision, audio;   /* behind them */
    const char *prefix;
    bool nested;
} out_plan;

static kakeya_status no_memory(const char *out, kakeya_error *error) {
    return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its plan", out);
}

/* ---------------------------------------------------------------------------------------------------------- plan */

static tensor_type type_of(weight_format format) {
    return format == WEIGHT_F32 ? TENSOR_F32 : format == WEIGHT_F16 ? TENSOR_F16 : TENSOR_BF16;
}

/* Vectors are float32 in memory; those that bf16 holds exactly came from it. */
static tensor_type vector_type(const source_tensor *t) {
    for (int i = 0; i < t->in; i++) {
        uint32_t bits;
        memcpy(&bits, &t->values[i], sizeof bits);
        if (bits & 0xffff) return TENSOR_F32;
    }
    return TENSOR_BF16;
}

static void add_plain(out_plan *p, const conversion *c, const source_tensor *t) {
    static const tensor_type types[] = {TENSOR_F32, TENSOR_F16, TENSOR_BF16};
    out_module *m = &p->modules[p->n++];
    *m = (out_module){.from = *t, .type = types[c->options->to - CONVERT_F32]};
    if (!t->w && m->type != TENSOR_F32) m->type = vector_type(t);
    snprintf(m->name, sizeof m->name, "%s%s", t->slot.unprefixed ? "" : p->prefix, t->slot.name);
}

static void add_module(out_plan *p, const conversion *c, const source_tensor *t, const char *name) {
    out_module *m = &p->modules[p->n++];
    *m = (out_module){.from = *t};
    bool router = t->slot.group == PARAMETERS_ROUTER, left = strstr(name, "per_layer_model_projection") != NULL;
    if (t->w && t->in % GROUP == 0 && !left) m->bits = router ? ROUTER_BITS : c->options->to == CONVERT_AFFINE8 ? 8 : 4;
    m->type = t->w ? type_of(t->w->format) : vector_type(t);
    if (m->bits && m->type == TENSOR_F32) m->type = TENSOR_BF16; /* of scales */
    size_t length = strlen(name), suffix = strlen(".weight");
    if (m->bits && length > suffix && strcmp(name + length - suffix, ".weight") == 0) length -= suffix;
    const char *more = !m->bits && t->slot.dims == 3 ? ".weight" : "";
    snprintf(m->name, sizeof m->name, "%s%.*s%s", t->slot.unprefixed ? "" : p->prefix, (int)length, name, more);
}

/* The experts' gate and up as modules of their own. */
static void add_halves(out_plan *p, const conversion *c, const source_tensor *t) {
    for (int half = 0; half < 2; half++) {
        source_tensor part = *t;
        char name[NAME_BYTES];
        part.slot.shape[1] /= 2;
        part.rows /= 2;
        part.second = NULL;
        if (t->second)
            part.w = half ? t->second : t->w;
        else
            part.half = half + 1;
        snprintf(name, sizeof name, "layers.%d.experts.switch_glu.%s_proj", t->layer, half ? "up" : "gate");
        add_module(p, c, &part, name);
    }
}

static void add_entry(out_plan *p, const out_module *m, const char *suffix, tensor_type type, int64_t columns) {
    safetensors_entry *e = &p->entries[p->n_entries];
    char *name = p->names[p->n_entries++];
    const tensor_slot *slot = &m->from.slot;
    snprintf(name, sizeof *p->names, "%s%s", m->name, suffix);
    *e = (safetensors_entry){.name = name, .type = type, .dims = slot->dims};
    for (int i = 0; i < slot->dims; i++) e->shape[i] = slot->shape[i];
    e->shape[slot->dims - 1] = columns;
}

static kakeya_status make_plan(out_plan *p, const conversion *c, const char *out, kakeya_error *error) {
    size_t most = 2 * c->from->n + 1;
    const char *vision = strncmp(p->prefix, "model.", 6) == 0 ? "model." : "";
    kakeya_status status = vision_entries_make(c->from->model->vision, vision, &p->vision, error);
    if (status == KAKEYA_OK) status = audio_entries_make(c->from->model->sound, vision, &p->audio, error);
    if (status != KAKEYA_OK) return status;
    p->modules = calloc(most, sizeof *p->modules);
    p->entries = calloc(3 * most + p->vision.n + p->audio.n, sizeof *p->entries);
    p->names = calloc(3 * most, sizeof *p->names);
    if (!p->modules || !p->entries || !p->names) return no_memory(out, error);
    for (size_t i = 0; i < c->from->n; i++) {
        const source_tensor *t = &c->from->tensors[i];
        char name[NAME_BYTES];
        if (convert_is_plain(c->options->to)) {
            add_plain(p, c, t);
            continue;
        }
        if (strstr(t->slot.name, "experts.gate_up_proj")) {
            add_halves(p, c, t);
            continue;
        }
        snprintf(name, sizeof name, "%s", t->slot.name);
        if (strstr(name, "experts.down_proj"))
            snprintf(name, sizeof name, "layers.%d.experts.switch_glu.down_proj", t->layer);
        add_module(p, c, t, name);
    }
    for (size_t i = 0; i < p->n; i++) {
        const out_module *m = &p->modules[i];
        if (!m->bits) {
            add_entry(p, m, "", m->type, m->from.slot.shape[m->from.slot.dims - 1]);
            continue;
        }
        add_entry(p, m, ".weight", TENSOR_U32, (int64_t)m->from.in * m->bits / 32);
        add_entry(p, m, ".scales", m->type, m->from.in / GROUP);
        add_entry(p, m, ".biases", m->type, m->from.in / GROUP);
    }
    for (size_t i = 0; i < p->vision.n; i++) p->entries[p->n_entries++] = p->vision.entries[i];
    for (size_t i = 0; i < p->audio.n; i++) p->entries[p->n_entries++] = p->audio.entries[i];
    return KAKEYA_OK;
}

static void plan_free(out_plan *p) {
    free(p->modules);
    free(p->entries);
    free(p->names);
    vision_entries_free(&p->vision);
    vision_entries_free(&p->audio);
}

/* ------------------------------------------------------------------------------------------------------- weights */

typedef struct writing {
    safetensors_writer *writer;
    const out_module *m;
    unsigned char *scales, *biases; /* of all rows: written behind the codes */
    conversion *c;
} writing;

static void make_codes(void *context, int row, const float *x, unsigned char *out) {
    const writing *w = context;
    size_t at = (size_t)row * (size_t)(w->m->from.in / GROUP) * 2;
    quantise_affine(w->m->bits, GROUP, w->m->type == TENSOR_F16 ? DTYPE_F16 : DTYPE_BF16, x, w->m->from.in, out,
                    w->scales + at, w->biases + at);
}

static void make_plain(void *context, int row, const float *x, unsigned char *out) {
    const writing *w = context;
    (void)row;
    quantise_row(w->m->type == TENSOR_F32   ? WEIGHT_F32
                 : w->m->type == TENSOR_F16 ? WEIGHT_F16
                                            : WEIGHT_BF16,
                 x, NULL, w->m->from.in, out);
}

static kakeya_status write_piece(void *context, const void *data, size_t bytes, kakeya_error *error) {
    const writing *w = context;
    w->c->report->bytes += bytes;
    return safetensors_writer_write(w->writer, data, bytes, error);
}

static kakeya_status write_vector(writing *w, kakeya_error *error) {
    const source_tensor *t = &w->m->from;
    size_t width = tensor_type_bytes(w->m->type);
    unsigned char *bytes = malloc((size_t)t->in * width + 1);
    if (!bytes) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for tensor %s", w->m->name);
    make_plain(w, 0, t->values, bytes);
    kakeya_status status = write_piece(w, bytes, (size_t)t->in * width, error);
    free(bytes);
    return status;
}

static kakeya_status write_affine(writing *w, kakeya_error *error) {
    const source_tensor *t = &w->m->from;
    size_t bytes = (size_t)t->rows * (size_t)(t->in / GROUP) * 2;
    w->scales = malloc(bytes + 1);
    w->biases = malloc(bytes + 1);
    kakeya_status status = KAKEYA_OK;
    if (!w->scales || !w->biases)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for the scales of %s", w->m->name);
    if (status == KAKEYA_OK)
        status = conversion_rows(w->c, t, (size_t)t->in * (size_t)w->m->bits / 8, make_codes, write_piece, w, error);
    if (status == KAKEYA_OK) status = write_piece(w, w->scales, bytes, error);
    if (status == KAKEYA_OK) status = write_piece(w, w->biases, bytes, error);
    free(w->scales);
    free(w->biases);
    return status;
}

static kakeya_status write_weights(const out_plan *p, conversion *c, const char *path, kakeya_error *error) {
    safetensors_writer *writer = NULL;
    kakeya_status status = safetensors_writer_open(path, p->entries, p->n_entries, &writer, error);
    for (size_t i = 0; status == KAKEYA_OK && i < p->n; i++) {
        const out_module *m = &p->modules[i];
        writing w = {.writer = writer, .m = m, .c = c};
        if (m->bits)
            status = write_affine(&w, error);
        else if (m->from.w)
            status = conversion_rows(c, &m->from, (size_t)m->from.in * tensor_type_bytes(m->type), make_plain,
                                     write_piece, &w, error);
        else
            status = write_vector(&w, error);
        c->report->tensors++;
    }
    if (status == KAKEYA_OK)
        status = vision_to_safetensors(c->from->model->vision, writer, &c->report->vision_bytes, error);
    if (status == KAKEYA_OK)
        status = audio_to_safetensors(c->from->model->sound, strncmp(p->prefix, "model.", 6) != 0, writer,
                                      &c->report->audio_bytes, error);
    if (status == KAKEYA_OK) return safetensors_writer_commit(writer, error);
    safetensors_writer_abort(writer);
    return status;
}

/* --------------------------------------------------------------------------------------------------- other files */

static cJSON *quantisation_of(const out_plan *p, const conversion *c) {
    const int bits = c->options->to == CONVERT_AFFINE8 ? 8 : 4;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "group_size", GROUP);
    cJSON_AddNumberToObject(json, "bits", bits);
    cJSON_AddStringToObject(json, "mode", "affine");
    for (size_t i = 0; i < p->n; i++) {
        if (!p->modules[i].bits || p->modules[i].bits == bits) continue;
        cJSON *module = cJSON_AddObjectToObject(json, p->modules[i].name);
        cJSON_AddNumberToObject(module, "group_size", GROUP);
        cJSON_AddNumberToObject(module, "bits", p->modules[i].bits);
    }
    return json;
}

static kakeya_status write_text(const char *path, const char *text, size_t bytes, kakeya_error *error) {
    file_writer *file;
    kakeya_status status = file_writer_open(path, &file, error);
    if (status != KAKEYA_OK) return status;
    status = file_writer_write(file, text, bytes, error);
    if (status == KAKEYA_OK) return file_writer_commit(file, error);
    file_writer_abort(file);
    return status;
}

static void describe_affine(const out_plan *p, const conversion *c, cJSON *config) {
    static const char *const keys[] = {"quantization", "quantization_config"}; /* mlx-lm writes both */
    for (int i = 0; i < 2; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(config, keys[i]);
        cJSON_AddItemToObject(config, keys[i], quantisation_of(p, c));
    }
    /* mlx-lm reads the size of the vocabulary at the top. */
    if (p->nested && !cJSON_GetObjectItemCaseSensitive(config, "vocab_size"))
        cJSON_AddNumberToObject(config, "vocab_size", c->from->model->config.vocab);
}

/* Nothing is quantised any more, and the type is another, wherever it was said. */
static void describe_plain(const conversion *c, cJSON *config) {
    static const char *const gone[] = {"quantization", "quantization_config", "compression_config", "dtype",
                                       "torch_dtype"},
                             *const types[] = {"float32", "float16", "bfloat16"};
    cJSON *objects[] = {config, cJSON_GetObjectItemCaseSensitive(config, "text_config")};
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < sizeof gone / sizeof gone[0]; k++)
            cJSON_DeleteItemFromObjectCaseSensitive(objects[i], gone[k]);
    }
    for (int i = 3; i < 5; i++) cJSON_AddStringToObject(config, gone[i], types[c->options->to - CONVERT_F32]);
}

static kakeya_status write_configuration(const out_plan *p, const conversion *c, cJSON *config, const char *path,
                                         kakeya_error *error) {
    if (convert_is_plain(c->options->to))
        describe_plain(c, config);
    else
        describe_affine(p, c, config);
    char *text = cJSON_Print(config);
    if (!text) return no_memory(path, error);
    kakeya_status status = write_text(path, text, strlen(text), error);
    cJSON_free(text);
    return status;
}

static kakeya_status copy_file(const char *from, const char *to, kakeya_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    kakeya_status status = file_read_optional(from, MAX_TEXT_BYTES, &text, &bytes, error);
    if (text) status = write_text(to, text, bytes, error);
    free(text);
    return status;
}

/* A file of text that a GGUF file's keys stand for. */
static kakeya_status make_file(const language_model *model, const char *name, const char *to, kakeya_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    kakeya_status status = text_file_of_gguf(model, name, &text, &bytes, error);
    if (status == KAKEYA_OK && text) status = write_text(to, text, bytes, error);
    free(text);
    return status;
}

static kakeya_status write_files(const out_plan *p, conversion *c, cJSON *config, const char *folder,
                                 kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (int i = OUTPUT_FILES - 1; status == KAKEYA_OK && i >= 0; i--) { /* the long work last */
        const bool file = c->from->model->file != NULL;
        char *to = path_join(folder, output_files[i]), *from = path_join(c->from->path, output_files[i]);
        if (!to || !from)
            status = no_memory(folder, error);
        else if (i == 0)
            status = write_weights(p, c, to, error);
        else if (i == 1)
            status = write_configuration(p, c, config, to, error);
        else if (file)
            status = make_file(c->from->model, output_files[i], to, error);
        else
            status = copy_file(from, to, error);
        free(to);
        free(from);
    }
    return status;
}

/* Also what a file system without unnamed files keeps of one that was not finished. */
static void remove_folder(const char *folder) {
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        if (strncmp(entry->d_name, ".kakeya-", 8) == 0) (void)unlinkat(dirfd(listing), entry->d_name, 0);
    }
    if (listing) closedir(listing);
    for (int i = 0; i < OUTPUT_FILES; i++) {
        char *path = path_join(folder, output_files[i]);
        if (path) (void)unlink(path);
        free(path);
    }
    (void)rmdir(folder);
}

static const char unfinished[] = ".kakeya-"; /* NAME.kakeya-PID: a directory on its way */

/* The process that makes a directory holds a lock on it. -1: it cannot be had. */
static int lock_folder(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Whether a name is that of a directory on its way whose process is gone. One with this process's number is another's,
 * which had it before. */
static bool is_left_over(const char *name) {
    const char *at = NULL;
    for (const char *next = name; (next = strstr(next, unfinished)); next++) at = next;
    const char *digits = at ? at + strlen(unfinished) : "";
    size_t length = strspn(digits, "0123456789");
    if (!at || at == name || length < 1 || length > 9 || digits[length]) return false;
    pid_t process = (pid_t)atoi(digits);
    return process > 0 && (process == getpid() || (kill(process, 0) != 0 && errno == ESRCH));
}

/* Removes what conversions that were killed have left beside `out`. */
static void remove_left_overs(const char *out) {
    const char *slash = strrchr(out, '/');
    char *parent = !slash ? strdup(".") : slash == out ? strdup("/") : strndup(out, (size_t)(slash - out));
    DIR *listing = parent ? opendir(parent) : NULL;
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        char *path = is_left_over(entry->d_name) ? path_join(parent, entry->d_name) : NULL;
        int lock = path ? lock_folder(path) : -1;
        if (lock >= 0) {
            remove_folder(path);
            close(lock);
        }
        free(path);
    }
    if (listing) closedir(listing);
    free(parent);
}

kakeya_status convert_to_directory(conversion *c, const char *out, kakeya_error *error) {
    const checkpoint *ck = c->from->model->checkpoint;
    out_plan plan = {0};
    cJSON *config = NULL;
    char *folder = NULL;
    kakeya_status status = ck ? json_parse_object(ck->config_path, ck->config, ck->config_bytes, &config, error)
                              : configuration_of_gguf(c->from->model, &config, error);
    if (status == KAKEYA_OK) {
        plan.nested = json_get(config, "text_config") != NULL;
        plan.prefix = plan.nested ? "language_model.model." : "model.";
        if (ck && convert_is_plain(c->options->to)) plan.prefix = gemma4_prefix(ck);
        status = make_plan(&plan, c, out, error);
    }
    if (status == KAKEYA_OK) remove_left_overs(out);
    if (status == KAKEYA_OK && asprintf(&folder, "%s%s%ld", out, unfinished, (long)getpid()) < 0) {
        folder = NULL;
        status = no_memory(out, error);
    }
    if (status == KAKEYA_OK && mkdir(folder, 0777) != 0)
        status = error_set(error, KAKEYA_IO, "cannot make %s: %s", folder, strerror(errno));
    else if (status == KAKEYA_OK) {
        int lock = lock_folder(folder); /* without it, others believe the process's number */
        status = write_files(&plan, c, config, folder, error);
        if (status == KAKEYA_OK && rename(folder, out) != 0)
            status = error_set(error, KAKEYA_IO, "cannot rename %s to %s: %s", folder, out, strerror(errno));
        if (status != KAKEYA_OK) remove_folder(folder);
        if (lock >= 0) close(lock);
    }
    free(folder);
    cJSON_Delete(config);
    plan_free(&plan);
    return status;
}
