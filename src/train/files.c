/* The files of a trained f_theta (docs/design/restoration.md). */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/weight_values.h"
#include "base/files.h"
#include "base/float16.h"
#include "formats/safetensors.h"
#include "train/outputs.h"
#include "train/trainer.h"

/* A matrix whose first rows or columns are written: f_theta's latents are ordered. */
typedef struct matrix_part {
    char name[64];
    const float *values;
    size_t rows, columns, stride;
} matrix_part;

static size_t list_parts(const restoration_config *trained, const closed_form_weights *w, const restoration_config *c,
                         matrix_part *out) {
    static const char letters[] = {'k', 'v'};
    size_t n = 0, inputs = (size_t)restoration_encoder_in(c);
    for (int half = 0; half < 2; half++) {
        size_t rank = (size_t)(half ? c->rank_v : c->rank_k),
               stride = (size_t)(half ? trained->rank_v : trained->rank_k);
        if (w->encoder[half]) {
            matrix_part *part = &out[n++];
            *part = (matrix_part){.values = w->encoder[half], .rows = rank, .columns = inputs, .stride = inputs};
            snprintf(part->name, sizeof part->name, "encoder_%c.weight", letters[half]);
        }
        for (int i = 0; i < c->layers; i++) {
            matrix_part *part = &out[n++];
            *part = (matrix_part){.values = w->decoder[half][i],
                                  .rows = (size_t)(c->kv_heads[i] * c->head_dim[i]),
                                  .columns = rank,
                                  .stride = stride};
            snprintf(part->name, sizeof part->name, "decoders_%c.%d.weight", letters[half], i);
        }
    }
    return n;
}

static kakeya_status write_part(safetensors_writer *writer, const matrix_part *part, uint16_t *row,
                                kakeya_error *error) {
    kakeya_status status = KAKEYA_OK;
    for (size_t r = 0; r < part->rows && !status; r++) {
        for (size_t i = 0; i < part->columns; i++) row[i] = f32_to_bf16(part->values[r * part->stride + i]);
        status = safetensors_writer_write(writer, row, part->columns * sizeof *row, error);
    }
    return status;
}

static kakeya_status write_weights(const restoration_config *trained, const closed_form_weights *w,
                                   const restoration_config *c, const char *path, kakeya_error *error) {
    enum { MOST = 2 + 2 * MODEL_MAX_LAYERS };
    matrix_part *parts = calloc(MOST, sizeof *parts);
    safetensors_entry *entries = calloc(MOST, sizeof *entries);
    size_t inputs = (size_t)restoration_encoder_in(c), widest = inputs > (size_t)c->rank ? inputs : (size_t)c->rank,
           n = 0;
    uint16_t *row = malloc(widest * sizeof *row);
    safetensors_writer *writer = NULL;
    kakeya_status status = KAKEYA_OK;
    if (!parts || !entries || !row) {
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", path);
    } else {
        n = list_parts(trained, w, c, parts);
        for (size_t i = 0; i < n; i++)
            entries[i] = (safetensors_entry){.name = parts[i].name,
                                             .type = TENSOR_BF16,
                                             .dims = 2,
                                             .shape = {(int64_t)parts[i].rows, (int64_t)parts[i].columns}};
        status = safetensors_writer_open(path, entries, n, &writer, error);
    }
    for (size_t i = 0; i < n && !status; i++) status = write_part(writer, &parts[i], row, error);
    if (writer && !status)
        status = safetensors_writer_commit(writer, error);
    else
        safetensors_writer_abort(writer);
    free(parts);
    free(entries);
    free(row);
    return status;
}

/* What the closed form measured lies in a file beside the weights, since only a training that goes on needs it. */
static const char *const size_names[] = {"input_size", "value_size"};
enum { SIZES = sizeof size_names / sizeof *size_names };

typedef struct size_part {
    float *values;
    size_t n;
} size_part;

static void list_sizes(const restoration_config *c, const closed_form_weights *w, size_part out[SIZES]) {
    out[0] = (size_part){w->input_size, (size_t)restoration_encoder_in(c)};
    out[1] = (size_part){w->value_size, (size_t)c->layers};
}

static kakeya_status write_sizes(const closed_form_weights *w, const restoration_config *c, const char *path,
                                 kakeya_error *error) {
    size_part size[SIZES];
    safetensors_entry entries[SIZES] = {0};
    safetensors_writer *writer = NULL;
    list_sizes(c, w, size);
    for (size_t i = 0; i < SIZES; i++)
        entries[i] =
            (safetensors_entry){.name = size_names[i], .type = TENSOR_F32, .dims = 1, .shape = {(int64_t)size[i].n}};
    kakeya_status status = safetensors_writer_open(path, entries, SIZES, &writer, error);
    for (size_t i = 0; i < SIZES && !status; i++)
        status = safetensors_writer_write(writer, size[i].values, size[i].n * sizeof *size[i].values, error);
    if (writer && !status) return safetensors_writer_commit(writer, error);
    safetensors_writer_abort(writer);
    return status;
}

static cJSON *config_json(const restoration_config *c) {
    cJSON *json = cJSON_CreateObject();
    if (!json) return NULL;
    cJSON_AddStringToObject(json, "input", restoration_input_name(c->input));
    if (restoration_needs_drafter(c)) {
        cJSON_AddNumberToObject(json, "drafter_num_layers", c->drafter_layers);
        cJSON_AddNumberToObject(json, "drafter_num_kv_heads", c->drafter_kv_heads);
        cJSON_AddNumberToObject(json, "drafter_head_dim", c->drafter_head_dim);
    } else {
        cJSON_AddItemToObject(json, "aux_layers", cJSON_CreateIntArray(c->aux_layer, c->aux_layers));
        cJSON_AddNumberToObject(json, "verifier_hidden_size", c->hidden);
    }
    if (c->shared_latent) {
        cJSON_AddNumberToObject(json, "rank", c->rank);
    } else {
        cJSON_AddNumberToObject(json, "rank_k", c->rank_k);
        cJSON_AddNumberToObject(json, "rank_v", c->rank_v);
    }
    cJSON_AddStringToObject(json, "latent_format", restoration_latents_name(c->latents));
    cJSON_AddNumberToObject(json, "verifier_num_layers", c->layers);
    cJSON_AddNumberToObject(json, "verifier_num_kv_heads", c->kv_heads[0]);
    cJSON_AddNumberToObject(json, "verifier_head_dim", c->head_dim[0]);
    cJSON_AddItemToObject(json, "verifier_layer_kv_heads", cJSON_CreateIntArray(c->kv_heads, c->layers));
    cJSON_AddItemToObject(json, "verifier_layer_head_dims", cJSON_CreateIntArray(c->head_dim, c->layers));
    return json;
}

kakeya_status trainer_write(const restoration_config *trained, const closed_form_weights *w,
                            const restoration_config *config, const char *directory, kakeya_error *error) {
    char *weights = path_join(directory, "f_theta_weights.safetensors"),
         *described = path_join(directory, "f_theta_config.json"), *sizes = path_join(directory, TRAIN_SIZES_NAME);
    cJSON *json = config_json(config);
    kakeya_status status = KAKEYA_OK;
    if (!weights || !described || !sizes || !json)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    if (!status) status = write_weights(trained, w, config, weights, error);
    if (!status && w->input_size && w->value_size) status = write_sizes(w, config, sizes, error);
    if (!status) status = train_write_json(described, json, error);
    cJSON_Delete(json);
    free(weights);
    free(described);
    free(sizes);
    return status;
}

static void read_matrix(const weight *w, float *out) {
    for (int r = 0; r < w->out; r++) weight_values(w, r, 0, w->in, out + (size_t)r * (size_t)w->in);
}

/* The sizes of a directory that has them: numbers above 0. Those of another shape are as none. */
static kakeya_status read_sizes(const char *directory, const restoration_config *c, closed_form_weights *out,
                                kakeya_error *error) {
    char *path = path_join(directory, TRAIN_SIZES_NAME);
    safetensors *file = NULL;
    bool there = false;
    kakeya_status status =
        path ? file_find(path, &there, error) : error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    if (!status && there) status = safetensors_open(path, &file, error);
    if (!status && there && !closed_form_weights_create_sizes(c, out))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    size_part size[SIZES];
    list_sizes(c, out, size);
    bool whole = !status && there;
    for (size_t i = 0; i < SIZES && whole; i++) {
        const tensor *t = safetensors_find(file, size_names[i]);
        whole = t && t->type == TENSOR_F32 && t->bytes == size[i].n * sizeof *size[i].values;
        if (whole) memcpy(size[i].values, t->data, t->bytes);
        for (size_t k = 0; k < size[i].n && whole; k++) whole = size[i].values[k] > 0;
    }
    if (!whole) {
        free(out->input_size);
        free(out->value_size);
        out->input_size = out->value_size = NULL;
    }
    safetensors_close(file);
    free(path);
    return status;
}

kakeya_status trainer_read(kakeya_engine *engine, const char *directory, restoration_config *config,
                           closed_form_weights *out, kakeya_error *error) {
    *out = (closed_form_weights){0};
    restoration_model *f = NULL;
    kakeya_status status =
        restoration_model_open(directory, &engine->verifier->config, engine->drafter ? &engine->drafter->config : NULL,
                               &engine->account, &f, error);
    if (status) return status;
    *config = f->config;
    if (f->config.input == RESTORATION_DRAFTER_TOKEN_KV)
        status = error_set(error, KAKEYA_UNSUPPORTED, "%s: an f_theta with input \"%s\" cannot be trained", directory,
                           restoration_input_name(f->config.input));
    else if (!closed_form_weights_create(config, out))
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: out of memory", directory);
    if (!status) status = read_sizes(directory, config, out, error);
    if (status) {
        closed_form_weights_free(out);
    } else {
        read_matrix(&f->encoder_k, out->encoder[0]);
        if (out->encoder[1]) read_matrix(&f->encoder_v, out->encoder[1]);
        for (int i = 0; i < config->layers; i++) {
            read_matrix(&f->decoder_k[i], out->decoder[0][i]);
            read_matrix(&f->decoder_v[i], out->decoder[1][i]);
        }
    }
    restoration_model_close(f);
    return status;
}
