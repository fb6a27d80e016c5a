/* GGUF files with llama.cpp's keys, names and choice of types. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "convert/audio.h"
#include "convert/importance.h"
#include "convert/quantise.h"
#include "convert/recipe.h"
#include "convert/source.h"
#include "convert/vocabulary.h"
#include "formats/checkpoint.h"
#include "formats/gguf_output.h"
#include "model/gemma4_facts.h"
#include "model/gemma4_gguf.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

enum { MAX_TOKENIZER_BYTES = 512 << 20, NAME_BYTES = 96 };

/* --------------------------------------------------------------------------------------------------------- types */

static const struct {
    weight_format format;
    uint32_t type;
} types[] = {
    {WEIGHT_F32, GGUF_TENSOR_F32},   {WEIGHT_F16, GGUF_TENSOR_F16},   {WEIGHT_BF16, GGUF_TENSOR_BF16},
    {WEIGHT_Q4_0, GGUF_TENSOR_Q4_0}, {WEIGHT_Q4_1, GGUF_TENSOR_Q4_1}, {WEIGHT_Q5_0, GGUF_TENSOR_Q5_0},
    {WEIGHT_Q5_1, GGUF_TENSOR_Q5_1}, {WEIGHT_Q8_0, GGUF_TENSOR_Q8_0}, {WEIGHT_Q4_K, GGUF_TENSOR_Q4_K},
    {WEIGHT_Q5_K, GGUF_TENSOR_Q5_K}, {WEIGHT_Q6_K, GGUF_TENSOR_Q6_K},
};

static uint32_t type_of(weight_format format) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (types[i].format == format) return types[i].type;
    }
    return GGUF_TENSOR_F32;
}

/* ---------------------------------------------------------------------------------------------------- vocabulary */

enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER_DEFINED, TYPE_UNUSED, TYPE_BYTE };

/* Converters call these user-defined, so that they are printed. */
static bool is_printed(const char *piece) {
    static const char *const names[] = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                        "<|tool_response>", "<tool_response|>", "<|\"|>"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(piece, names[i]) == 0) return true;
    }
    return false;
}

static int32_t token_type(const tokenizer *t, int32_t id, const char *piece) {
    if (!piece) return TYPE_UNUSED;
    if (tokenizer_byte(t, id) >= 0) return TYPE_BYTE;
    if (!tokenizer_is_special(t, id)) return TYPE_NORMAL;
    return strcmp(piece, "<unk>") == 0 ? TYPE_UNKNOWN : is_printed(piece) ? TYPE_USER_DEFINED : TYPE_CONTROL;
}

/* Of Gemma 3, whose added tokens that are not special are text. */
static int32_t ranked_type(const tokenizer *t, int32_t id, const char *piece) {
    if (!piece) return TYPE_UNUSED;
    if (tokenizer_byte(t, id) >= 0) return TYPE_BYTE;
    return !tokenizer_is_added(t, id) ? TYPE_NORMAL : tokenizer_is_special(t, id) ? TYPE_CONTROL : TYPE_USER_DEFINED;
}

/* A piece of a merge; a space inside is written as the character 256 code points above. */
static size_t put_piece(char *to, const char *piece) {
    size_t n = 0;
    for (; *piece; piece++) {
        if (*piece == ' ') {
            to[n++] = '\xC4';
            to[n++] = '\xA0';
        } else {
            to[n++] = *piece;
        }
    }
    return n;
}

static kakeya_status add_merges(gguf_output *o, const char *path, const cJSON *merges, kakeya_error *error) {
    const cJSON *merge;
    gguf_output_strings(o, "tokenizer.ggml.merges", (uint64_t)cJSON_GetArraySize(merges));
    cJSON_ArrayForEach(merge, merges) {
        const cJSON *left = cJSON_GetArrayItem(merge, 0), *right = cJSON_GetArrayItem(merge, 1);
        if (cJSON_IsString(merge)) { /* "left right" */
            gguf_output_string(o, merge->valuestring, strlen(merge->valuestring));
            continue;
        }
        if (!cJSON_IsString(left) || !cJSON_IsString(right))
            return error_set(error, KAKEYA_FORMAT, "%s: a merge is not a pair of pieces", path);
        char *text = malloc(2 * (strlen(left->valuestring) + strlen(right->valuestring)) + 1);
        if (!text) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its merges", path);
        size_t n = put_piece(text, left->valuestring);
        text[n++] = ' ';
        n += put_piece(text + n, right->valuestring);
        gguf_output_string(o, text, n);
        free(text);
    }
    return KAKEYA_OK;
}

/* With `ranked`, scores by which pieces merge; else merges follow. */
static kakeya_status add_pieces(gguf_output *o, const tokenizer *t, const char *path, const model_config *config,
                                const float *ranked, kakeya_error *error) {
    int known = tokenizer_vocab_size(t), n = config->vocab;
    if (known > n)
        return error_set(error, KAKEYA_FORMAT, "%s: the vocabulary has %d tokens, the embedding %d rows", path, known,
                         n);
    int32_t *kinds = malloc((size_t)n * sizeof *kinds);
    float *scores = malloc((size_t)n * sizeof *scores);
    if (!kinds || !scores) {
        free(scores);
        free(kinds);
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for %d tokens", path, n);
    }
    gguf_output_strings(o, "tokenizer.ggml.tokens", (uint64_t)n);
    for (int i = 0; i < n; i++) {
        char padding[32];
        size_t bytes = 0;
        const char *piece = i < known ? tokenizer_piece(t, i, &bytes) : NULL;
        kinds[i] = ranked ? ranked_type(t, i, piece) : token_type(t, i, piece);
        scores[i] = ranked && piece ? ranked[i] : -1000; /* without ranks of no meaning; readers want one for each */
        if (!piece) bytes = (size_t)snprintf(padding, sizeof padding, "[PAD%d]", i);
        char *spaced = ranked && kinds[i] == TYPE_USER_DEFINED ? vocabulary_spaced(piece, &bytes) : NULL;
        gguf_output_string(o, spaced ? spaced : piece ? piece : padding, bytes);
        free(spaced);
    }
    gguf_output_array(o, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)n, scores, (size_t)n * sizeof *scores);
    gguf_output_array(o, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)n, kinds, (size_t)n * sizeof *kinds);
    free(scores);
    free(kinds);
    return KAKEYA_OK;
}

static void add_named_tokens(gguf_output *o, const model_config *config) {
    if (config->bos_token >= 0) gguf_output_u32(o, "tokenizer.ggml.bos_token_id", (uint32_t)config->bos_token);
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (int i = 0; i < 3 && i < config->n_stop_tokens; i++)
        gguf_output_u32(o, ends[i], (uint32_t)config->stop_tokens[i]);
    if (config->pad_token >= 0) gguf_output_u32(o, "tokenizer.ggml.padding_token_id", (uint32_t)config->pad_token);
}

/* What is put around a text is found by asking. */
static kakeya_status add_surroundings(gguf_output *o, const tokenizer *t, const model_config *config,
                                      kakeya_error *error) {
    int32_t *ids = NULL;
    size_t n = 0;
    kakeya_status status = tokenizer_encode(t, "", 0, (tokenizer_encode_options){.add_special = true}, &ids, &n, error);
    if (status != KAKEYA_OK) return status;
    int32_t unknown = tokenizer_id(t, "<unk>");
    add_named_tokens(o, config);
    if (unknown >= 0) gguf_output_u32(o, "tokenizer.ggml.unknown_token_id", (uint32_t)unknown);
    gguf_output_bool(o, "tokenizer.ggml.add_bos_token", n > 0 && ids[0] == config->bos_token);
    gguf_output_bool(o, "tokenizer.ggml.add_eos_token", n > 1 && ids[n - 1] == config->stop_tokens[0]);
    gguf_output_bool(o, "tokenizer.ggml.add_space_prefix", false);
    free(ids);
    return KAKEYA_OK;
}

static kakeya_status add_template(gguf_output *o, const char *directory, kakeya_error *error) {
    char *text;
    size_t bytes;
    kakeya_status status = chat_template_read(directory, &text, &bytes, error);
    if (text) gguf_output_text(o, "tokenizer.chat_template", text, bytes);
    free(text);
    return status;
}

/* Scores in the place of merges, as files of Gemma 3 have them. *out stays NULL where merges have no such order, and no
 * added token is text, which only scores can tell. */
static kakeya_status find_scores(const tokenizer *t, const char *path, float **out, kakeya_error *error) {
    bool ranked = false, text = false;
    float *scores = malloc((size_t)tokenizer_vocab_size(t) * sizeof *scores);
    if (!scores) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its scores", path);
    kakeya_status status = vocabulary_scores(t, scores, &ranked, error);
    for (int id = 0; id < tokenizer_vocab_size(t); id++)
        text = text || (tokenizer_is_added(t, id) && !tokenizer_is_special(t, id));
    if (status == KAKEYA_OK && !ranked && text)
        status = error_set(error, KAKEYA_UNSUPPORTED,
                           "%s: its merges are not in the order of the pieces that they make, so that a GGUF file of "
                           "Gemma 3 has no scores for them",
                           path);
    if (status == KAKEYA_OK && ranked)
        *out = scores;
    else
        free(scores);
    return status;
}

static kakeya_status add_vocabulary(gguf_output *o, const char *path, const model_config *config, kakeya_error *error) {
    char *text = NULL;
    size_t bytes = 0;
    cJSON *json = NULL;
    tokenizer *t = NULL;
    float *scores = NULL;
    kakeya_status status = file_read_regular(path, MAX_TOKENIZER_BYTES, &text, &bytes, error);
    if (status == KAKEYA_OK) status = tokenizer_open_memory(path, text, bytes, &t, error);
    if (status == KAKEYA_OK && config->generation == GEMMA_3) status = find_scores(t, path, &scores, error);
    if (status == KAKEYA_OK && !scores) status = json_parse_object(path, text, bytes, &json, error);
    free(text);
    gguf_output_text(o, "tokenizer.ggml.model", scores ? "llama" : "gemma4", scores ? 5 : 6);
    if (scores) gguf_output_text(o, "tokenizer.ggml.pre", "default", 7);
    if (status == KAKEYA_OK) status = add_pieces(o, t, path, config, scores, error);
    if (status == KAKEYA_OK && !scores)
        status = add_merges(o, path, json_get(json_get(json, "model"), "merges"), error);
    if (status == KAKEYA_OK) status = add_surroundings(o, t, config, error);
    cJSON_Delete(json);
    tokenizer_close(t);
    free(scores);
    return status;
}

static kakeya_status add_tokenizer(gguf_output *o, const source *s, kakeya_error *error) {
    const model_config *config = &s->model->config;
    if (s->model->file) { /* the vocabulary of a GGUF file, as it is */
        const gguf_part *part = &s->model->file->parts[0];
        for (size_t i = 0; i < part->n_values; i++) {
            if (strncmp(part->values[i].key, "tokenizer.", 10) == 0) gguf_output_copy(o, &part->values[i]);
        }
        return KAKEYA_OK;
    }
    char *path = path_join(s->path, "tokenizer.json");
    if (!path) return error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for a path", s->path);
    bool there;
    kakeya_status status = file_find(path, &there, error);
    if (status != KAKEYA_OK) {
        free(path);
        return status;
    }
    if (there) {
        status = add_vocabulary(o, path, config, error);
        if (status == KAKEYA_OK) status = add_template(o, s->path, error);
    } else {
        gguf_output_text(o, "tokenizer.ggml.model", "none", 4);
        add_named_tokens(o, config);
        gguf_output_u32(o, "gemma4.vocab_size", (uint32_t)config->vocab);
    }
    if (status == KAKEYA_OK && config->n_suppress_tokens)
        gguf_output_array(o, "tokenizer.ggml.suppress_tokens", GGUF_I32, (uint64_t)config->n_suppress_tokens,
                          config->suppress_tokens, (size_t)config->n_suppress_tokens * sizeof *config->suppress_tokens);
    free(path);
    return status;
}

/* ------------------------------------------------------------------------------------------------- configuration */

/* One number where all layers agree, else one for each. */
static void add_per_layer(gguf_output *o, const char *key, const int *values, int n) {
    bool same = true;
    for (int i = 1; i < n; i++) same = same && values[i] == values[0];
    if (same)
        gguf_output_u32(o, key, (uint32_t)values[0]);
    else
        gguf_output_array(o, key, GGUF_I32, (uint64_t)n, values, (size_t)n * sizeof *values);
}

/* Layers of Gemma 3 are alike, but for what they see: one number where every n-th sees everything. */
static void add_gemma3_attention(gguf_output *o, const model_config *c, const bool *sliding) {
    int period = 0, n = 0;
    for (int i = 0; i < c->layers; i++) {
        n += sliding[i];
        if (!sliding[i] && !period) period = i + 1;
    }
    bool regular = true;
    for (int i = 0; i < c->layers; i++) regular = regular && sliding[i] == (!period || (i + 1) % period != 0);
    if (n) gguf_output_u32(o, "gemma4.attention.sliding_window", (uint32_t)c->sliding_window);
    if (n && regular)
        gguf_output_u32(o, "gemma4.attention.sliding_window_pattern", (uint32_t)period);
    else if (n)
        gguf_output_array(o, "gemma4.attention.sliding_window_pattern", GGUF_BOOL, (uint64_t)c->layers, sliding,
                          (size_t)c->layers);
    if (c->rope[LAYER_FULL].factor != 1) {
        gguf_output_text(o, "gemma4.rope.scaling.type", "linear", 6);
        gguf_output_f32(o, "gemma4.rope.scaling.factor", c->rope[LAYER_FULL].factor);
    }
}

static void add_gemma4_attention(gguf_output *o, const model_config *c, const int *dims, const bool *sliding) {
    gguf_output_u32(o, "gemma4.attention.key_length_swa", (uint32_t)dims[LAYER_SLIDING]);
    gguf_output_u32(o, "gemma4.attention.value_length_swa", (uint32_t)dims[LAYER_SLIDING]);
    gguf_output_u32(o, "gemma4.attention.sliding_window", (uint32_t)c->sliding_window);
    gguf_output_array(o, "gemma4.attention.sliding_window_pattern", GGUF_BOOL, (uint64_t)c->layers, sliding,
                      (size_t)c->layers);
    gguf_output_u32(o, "gemma4.attention.shared_kv_layers", (uint32_t)c->shared_kv_layers);
    gguf_output_u32(o, "gemma4.rope.dimension_count", (uint32_t)dims[LAYER_FULL]);
    gguf_output_u32(o, "gemma4.rope.dimension_count_swa", (uint32_t)dims[LAYER_SLIDING]);
}

static void add_attention(gguf_output *o, const model_config *c) {
    int kv_heads[MODEL_MAX_LAYERS], dims[2] = {0};
    bool sliding[MODEL_MAX_LAYERS];
    for (int i = 0; i < c->layers; i++) {
        kv_heads[i] = c->layer[i].kv_heads;
        sliding[i] = c->layer[i].type == LAYER_SLIDING;
        dims[c->layer[i].type] = c->layer[i].head_dim;
    }
    for (int type = 0; type < 2; type++) dims[type] = dims[type] ? dims[type] : dims[!type];
    gguf_output_u32(o, "gemma4.attention.head_count", (uint32_t)c->heads);
    add_per_layer(o, "gemma4.attention.head_count_kv", kv_heads, c->layers);
    gguf_output_u32(o, "gemma4.attention.key_length", (uint32_t)dims[LAYER_FULL]);
    gguf_output_u32(o, "gemma4.attention.value_length", (uint32_t)dims[LAYER_FULL]);
    gguf_output_f32(o, "gemma4.attention.layer_norm_rms_epsilon", c->rms_eps);
    gguf_output_f32(o, "gemma4.rope.freq_base", c->rope[LAYER_FULL].theta);
    gguf_output_f32(o, "gemma4.rope.freq_base_swa", c->rope[LAYER_SLIDING].theta);
    if (c->generation == GEMMA_3)
        add_gemma3_attention(o, c, sliding);
    else
        add_gemma4_attention(o, c, dims, sliding);
}

static void add_configuration(gguf_output *o, const source *s, uint32_t file_type) {
    const model_config *c = &s->model->config;
    int widths[MODEL_MAX_LAYERS];
    for (int i = 0; i < c->layers; i++) widths[i] = c->layer[i].intermediate;
    if (c->generation == GEMMA_3) gguf_output_rename(o, GEMMA4_GGUF_PREFIX, "gemma3.");
    gguf_output_text(o, "general.architecture", c->generation == GEMMA_3 ? "gemma3" : "gemma4", 6);
    gguf_output_text(o, "general.type", "model", 5);
    gguf_output_text(o, "general.name", c->variant, strlen(c->variant));
    gguf_output_text(o, "general.quantized_by", "kakeya", 6);
    gguf_output_u32(o, "gemma4.block_count", (uint32_t)c->layers);
    gguf_output_u32(o, "gemma4.context_length", (uint32_t)c->max_context);
    gguf_output_u32(o, "gemma4.embedding_length", (uint32_t)c->hidden);
    add_per_layer(o, "gemma4.feed_forward_length", widths, c->layers);
    add_attention(o, c);
    if (c->generation == GEMMA_4) gguf_output_u32(o, "gemma4.embedding_length_per_layer_input", (uint32_t)c->ple_width);
    if (c->logit_softcap > 0) gguf_output_f32(o, "gemma4.final_logit_softcapping", c->logit_softcap);
    if (c->moe) {
        gguf_output_u32(o, "gemma4.expert_count", (uint32_t)c->experts);
        gguf_output_u32(o, "gemma4.expert_used_count", (uint32_t)c->experts_per_token);
        gguf_output_u32(o, "gemma4.expert_feed_forward_length", (uint32_t)c->expert_intermediate);
    }
    gguf_output_u32(o, "general.quantization_version", 2);
    gguf_output_u32(o, "general.file_type", file_type);
}

/* Divisors of the frequencies of full attention in Gemma 4: 1 (or the factor) for pairs that turn, 1e30 for the others.
 */
static size_t rope_divisors(const model_config *c, float **out) {
    int pairs = 0;
    for (int i = 0; c->generation == GEMMA_4 && i < c->layers; i++)
        pairs = c->layer[i].type == LAYER_FULL ? c->layer[i].head_dim / 2 : pairs;
    *out = malloc(((size_t)pairs + 1) * sizeof **out);
    for (int i = 0; *out && i < pairs; i++)
        (*out)[i] = i < c->rope[LAYER_FULL].rotated_pairs ? c->rope[LAYER_FULL].factor : 1e30f;
    return (size_t)pairs;
}

/* ------------------------------------------------------------------------------------------------------- tensors */

typedef struct planned {
    weight_format format;
    size_t row_bytes;
    float *importance; /* [experts][in], or NULL */
    int expert_rows;
} planned;

typedef struct writing {
    gguf_output *o;
    weight_format format;
    const float *importance;
    int expert_rows;
    int in;
    atomic_ullong places[GRID_OTHER + 1]; /* blocks, by where they lie */
} writing;

static void make_row(void *context, int row, const float *x, unsigned char *out) {
    const writing *w = context;
    const float *importance = w->importance ? w->importance + (size_t)(row / w->expert_rows) * (size_t)w->in : NULL;
    quantise_row(w->format, x, importance, w->in, out);
}

static void make_grid_row(void *context, int row, const float *x, unsigned char *out) {
    writing *w = context;
    const weight_stream *block = &weight_format_find(WEIGHT_Q4_0)->stream[0];
    (void)row;
    for (int i = 0; i < w->in; i += block->values, out += block->bytes)
        atomic_fetch_add(&w->places[quantise_q4_0_grid(x + i, out)], 1);
}

/* A matrix is on a grid where all but one block of a thousand are, of rows from everywhere in it. */
static bool is_on_grid(const source_tensor *t) {
    enum { ROWS = 256, BLOCK = 32 };
    unsigned char block[18];
    long blocks = 0, found = 0;
    float *x = t->in % BLOCK == 0 ? malloc((size_t)t->in * sizeof *x) : NULL;
    for (int r = 0; x && r < ROWS; r++) {
        source_row(t, (int)((int64_t)r * t->rows / ROWS), x);
        for (int i = 0; i < t->in; i += BLOCK, blocks++) found += quantise_q4_0_grid(x + i, block) != GRID_NONE;
    }
    free(x);
    return blocks && found >= blocks - blocks / 1000;
}

static kakeya_status write_piece(void *context, const void *data, size_t bytes, kakeya_error *error) {
    const writing *w = context;
    return gguf_output_write(w->o, data, bytes, error);
}

static kakeya_status find_importance(const importances *file, const source_tensor *t, const char *name, planned *p,
                                     kakeya_error *error) {
    p->expert_rows = t->slot.dims == 3 ? (int)t->slot.shape[1] : t->rows;
    if (!file || !t->w) return KAKEYA_OK;
    return importances_find(file, name, t->rows / p->expert_rows, t->in, &p->importance, error);
}

static kakeya_status add_tensors(gguf_output *o, conversion *c, recipe *r, const importances *file, planned *plan,
                                 kakeya_error *error) {
    for (size_t i = 0; i < c->from->n; i++) {
        const source_tensor *t = &c->from->tensors[i];
        char name[NAME_BYTES];
        int64_t ne[GGUF_MAX_DIMS];
        if (!gemma4_gguf_name(t->slot.name, name, sizeof name))
            return error_set(error, KAKEYA_UNSUPPORTED, "GGUF files have no name for tensor %s", t->slot.name);
        kakeya_status status = find_importance(file, t, name, &plan[i], error);
        if (status != KAKEYA_OK) return status;
        c->report->important += plan[i].importance != NULL;
        plan[i].format = recipe_format(r, t, name);
        /* An embedding on the grid is exact in Q4_0. */
        if (c->options->grid && t->w && plan[i].format == WEIGHT_Q6_K && is_on_grid(t)) plan[i].format = WEIGHT_Q4_0;
        plan[i].row_bytes = weight_stream_row_bytes(&weight_format_find(plan[i].format)->stream[0], t->in, 0);
        for (int d = 0; d < t->slot.dims; d++) ne[d] = t->slot.shape[t->slot.dims - 1 - d];
        size_t bytes = plan[i].row_bytes * (size_t)t->rows;
        gguf_output_tensor(o, name, type_of(plan[i].format), t->slot.dims, ne, bytes);
        c->report->bytes += bytes;
        c->report->tensors++;
    }
    if (file && !c->report->important)
        return error_set(error, KAKEYA_FORMAT, "%s has no importances for this model's matrices",
                         c->options->importance[0]);
    return recipe_check_used(r, error);
}

static kakeya_status write_tensors(gguf_output *o, conversion *c, const planned *plan, kakeya_error *error) {
    for (size_t i = 0; i < c->from->n; i++) {
        const source_tensor *t = &c->from->tensors[i];
        writing w = {.o = o,
                     .format = plan[i].format,
                     .importance = plan[i].importance,
                     .expert_rows = plan[i].expert_rows,
                     .in = t->in};
        bool grid = c->options->grid && w.format == WEIGHT_Q4_0;
        kakeya_status status =
            t->w ? conversion_rows(c, t, plan[i].row_bytes, grid ? make_grid_row : make_row, write_piece, &w, error)
                 : gguf_output_write(o, t->values, (size_t)t->in * sizeof *t->values, error);
        if (status != KAKEYA_OK) return status;
        c->report->on_plain_grid += w.places[GRID_PLAIN];
        c->report->on_grid += w.places[GRID_PLAIN] + w.places[GRID_OTHER];
        c->report->blocks += w.places[GRID_NONE] + w.places[GRID_PLAIN] + w.places[GRID_OTHER];
    }
    return KAKEYA_OK;
}

/* What reads pictures and sound, in a file but for its name, which gguf_output_commit gives it. NULL on failure. */
static gguf_output *write_parts(conversion *c, const char *path, kakeya_status *status, kakeya_error *error) {
    const language_model *model = c->from->model;
    const char *name = model->config.variant;
    gguf_output *o = gguf_output_create();
    if (!o) {
        *status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its plan", path);
        return NULL;
    }
    gguf_output_text(o, "general.architecture", "clip", 4);
    gguf_output_text(o, "general.type", "mmproj", 6);
    gguf_output_text(o, "general.name", name, strlen(name));
    if (model->vision) vision_plan_gguf(model->vision, o, &c->report->vision_bytes);
    if (model->sound) audio_plan_gguf(model->sound, o, &c->report->audio_bytes);
    *status = gguf_output_open(o, path, error);
    if (*status == KAKEYA_OK && model->vision) *status = vision_write_gguf(model->vision, o, error);
    if (*status == KAKEYA_OK && model->sound) *status = audio_write_gguf(model->sound, o, error);
    if (*status == KAKEYA_OK) return o;
    gguf_output_abort(o);
    return NULL;
}

/* Both files, or none. */
static kakeya_status commit(gguf_output *o, conversion *c, const char *out, kakeya_error *error) {
    const language_model *model = c->from->model;
    if (!model->vision && !model->sound) return gguf_output_commit(o, error);
    gguf_output *parts = NULL;
    char *path = vision_path(out);
    kakeya_status status = KAKEYA_OK;
    if (path)
        parts = write_parts(c, path, &status, error);
    else
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for a path beside it", out);
    if (status == KAKEYA_OK) status = gguf_output_commit(parts, error);
    if (status != KAKEYA_OK) {
        gguf_output_abort(o);
    } else {
        status = gguf_output_commit(o, error);
        if (status != KAKEYA_OK) (void)unlink(path);
    }
    free(path);
    return status;
}

kakeya_status convert_to_gguf(conversion *c, const char *out, kakeya_error *error) {
    const model_config *config = &c->from->model->config;
    gguf_output *o = gguf_output_create();
    planned *plan = calloc(c->from->n + 1, sizeof *plan);
    importances *file = NULL;
    recipe r = {0};
    float *divisors = NULL;
    size_t pairs = rope_divisors(config, &divisors);
    kakeya_status status = KAKEYA_OK;
    if (!o || !plan || !divisors) status = error_set(error, KAKEYA_OUT_OF_MEMORY, "%s: no memory for its plan", out);
    if (status == KAKEYA_OK) status = recipe_init(&r, c->options, c->from, error);
    if (status == KAKEYA_OK && c->options->n_importance)
        status = importances_open(c->options->importance, c->options->n_importance, &file, error);
    if (status == KAKEYA_OK) {
        add_configuration(o, c->from, recipe_file_type(c->options->to));
        status = add_tokenizer(o, c->from, error);
    }
    if (status == KAKEYA_OK && pairs) {
        const int64_t ne[] = {(int64_t)pairs};
        gguf_output_tensor(o, "rope_freqs.weight", GGUF_TENSOR_F32, 1, ne, pairs * sizeof *divisors);
    }
    if (status == KAKEYA_OK) status = add_tensors(o, c, &r, file, plan, error);
    if (status == KAKEYA_OK) status = gguf_output_open(o, out, error);
    if (status == KAKEYA_OK && pairs) status = gguf_output_write(o, divisors, pairs * sizeof *divisors, error);
    if (status == KAKEYA_OK) status = write_tensors(o, c, plan, error);
    if (status == KAKEYA_OK)
        status = commit(o, c, out, error);
    else
        gguf_output_abort(o);
    for (size_t i = 0; plan && i < c->from->n; i++) free(plan[i].importance);
    importances_close(file);
    recipe_free(&r);
    free(divisors);
    free(plan);
    return status;
}
