/* Writes a model that says what it is told: whatever the prompt, its greedy answer is TEXT, control tokens included. So
 * the tests of the command line see answers that no trained model gives on demand: thoughts, tool calls, broken ones.
 *
 * The model is a Gemma 4 of one layer in which a token decides the next one. The embeddings of the script's tokens are
 * unit vectors, attention adds nothing, and the MLP turns each unit vector into the next one. The script begins behind
 * the line end with which every prompt of the turn format ends. Because a token decides, it may occur once; a character
 * that occurs again is written as its byte token, which is another one for the same text. A second text is what it says
 * behind the result of a tool.
 *
 * usage: scripted_model TOKENIZER_MODEL DIRECTORY TEXT [TEXT]
 * DIRECTORY gets config.json, tokenizer.json and the weights.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kakeya.h"

enum { HIDDEN = 128, HEADS = 2, HEAD_DIM = 16, MOST_STATES = HIDDEN };

static void stop(const char *what, const char *why) {
    fprintf(stderr, "scripted_model: %s: %s\n", what, why);
    exit(1);
}

/* ------------------------------------------------------------------------------------------------ the script */

typedef struct script {
    int32_t tokens[MOST_STATES]; /* tokens[0] is the prompt's last one */
    int next[MOST_STATES];       /* what follows which; -1: nothing does */
    int n;
} script;

static bool has(const script *s, int32_t token) {
    for (int i = 0; i < s->n; i++) {
        if (s->tokens[i] == token) return true;
    }
    return false;
}

static void add(script *s, const kakeya_tokenizer *t, int32_t token) {
    const char *piece = kakeya_tokenizer_piece(t, token);
    if (s->n == MOST_STATES) stop("the text", "too many tokens");
    if (has(s, token)) {
        char byte[8];
        bool space = strcmp(piece, "\xE2\x96\x81") == 0;
        if (strlen(piece) != 1 && !space) stop(piece, "the token occurs twice");
        snprintf(byte, sizeof byte, "<0x%02X>", space ? ' ' : (unsigned char)piece[0]);
        token = kakeya_tokenizer_find(t, byte);
        if (token < 0 || has(s, token)) stop(piece, "the character occurs three times");
    }
    s->next[s->n] = s->n + 1;
    s->tokens[s->n++] = token;
}

static void add_text(script *s, const kakeya_tokenizer *t, const char *begin, const char *text) {
    kakeya_error error;
    int32_t *ids;
    size_t n;
    if (kakeya_tokenize(t, text, strlen(text), KAKEYA_TEXT_PARSE_SPECIAL, &ids, &n, &error)) stop(text, error.message);
    add(s, t, kakeya_tokenizer_find(t, begin));
    for (size_t i = 0; i < n; i++) add(s, t, ids[i]);
    kakeya_free(ids);
}

static script read_script(const kakeya_tokenizer *t, const char *text, const char *behind_results) {
    script s = {0};
    add_text(&s, t, "\n", text);
    add(&s, t, kakeya_tokenizer_find(t, "<turn|>"));
    int end = s.n - 1;
    s.next[end] = -1;
    if (behind_results) {
        add_text(&s, t, "<tool_response|>", behind_results);
        s.next[s.n - 1] = end;
    }
    return s;
}

/* ------------------------------------------------------------------------------------------------ the weights */

typedef struct tensor {
    const char *name;
    int rows, columns; /* columns 0: a vector */
    void (*fill)(float *data, const script *s, int rows, int columns);
} tensor;

static void fill_zero(float *data, const script *s, int rows, int columns) {
    (void)s;
    memset(data, 0, sizeof *data * (size_t)rows * (size_t)(columns ? columns : 1));
}

static void fill_one(float *data, const script *s, int rows, int columns) {
    (void)s;
    (void)columns;
    for (int i = 0; i < rows; i++) data[i] = 1;
}

/* What the MLP says outweighs the token that is still there. */
static void fill_loud(float *data, const script *s, int rows, int columns) {
    fill_one(data, s, rows, columns);
    for (int i = 0; i < rows; i++) data[i] = 8;
}

static void fill_identity(float *data, const script *s, int rows, int columns) {
    fill_zero(data, s, rows, columns);
    for (int i = 0; i < rows; i++) data[i * columns + i] = 1;
}

static void fill_next(float *data, const script *s, int rows, int columns) {
    fill_zero(data, s, rows, columns);
    for (int i = 0; i < s->n; i++)
        if (s->next[i] >= 0) data[s->next[i] * columns + i] = 1;
}

static void fill_embedding(float *data, const script *s, int rows, int columns) {
    fill_zero(data, s, rows, columns);
    for (int i = 0; i < s->n; i++) data[s->tokens[i] * columns + i] = 1;
}

static void write_weights(FILE *out, const script *s, int vocab) {
#define LAYER "model.layers.0."
    const tensor tensors[] = {
        {"model.embed_tokens.weight", vocab, HIDDEN, fill_embedding},
        {"model.norm.weight", HIDDEN, 0, fill_one},
        {LAYER "input_layernorm.weight", HIDDEN, 0, fill_one},
        {LAYER "post_attention_layernorm.weight", HIDDEN, 0, fill_one},
        {LAYER "pre_feedforward_layernorm.weight", HIDDEN, 0, fill_one},
        {LAYER "post_feedforward_layernorm.weight", HIDDEN, 0, fill_loud},
        {LAYER "layer_scalar", 1, 0, fill_one},
        {LAYER "mlp.gate_proj.weight", HIDDEN, HIDDEN, fill_identity},
        {LAYER "mlp.up_proj.weight", HIDDEN, HIDDEN, fill_identity},
        {LAYER "mlp.down_proj.weight", HIDDEN, HIDDEN, fill_next},
        {LAYER "self_attn.q_proj.weight", HEADS * HEAD_DIM, HIDDEN, fill_zero},
        {LAYER "self_attn.k_proj.weight", HEADS * HEAD_DIM, HIDDEN, fill_zero},
        {LAYER "self_attn.v_proj.weight", HEADS * HEAD_DIM, HIDDEN, fill_zero},
        {LAYER "self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIM, fill_zero},
        {LAYER "self_attn.q_norm.weight", HEAD_DIM, 0, fill_one},
        {LAYER "self_attn.k_norm.weight", HEAD_DIM, 0, fill_one},
    };
    enum { TENSORS = sizeof tensors / sizeof *tensors, HEADER_BYTES = 4096 };
    char header[HEADER_BYTES];
    int used = 0;
    size_t at = 0;
    for (int i = 0; i < TENSORS; i++) {
        const tensor *x = &tensors[i];
        char columns[16] = "";
        if (x->columns) snprintf(columns, sizeof columns, ",%d", x->columns);
        size_t end = at + sizeof(float) * (size_t)x->rows * (size_t)(x->columns ? x->columns : 1);
        used += snprintf(header + used, sizeof header - (size_t)used,
                         "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%d%s],\"data_offsets\":[%zu,%zu]}", i ? "," : "{",
                         x->name, x->rows, columns, at, end);
        at = end;
    }
    used += snprintf(header + used, sizeof header - (size_t)used, "}");
    for (; used % 8; used++) header[used] = ' ';
    uint64_t bytes = (uint64_t)used;
    for (int i = 0; i < 8; i++) fputc((int)(bytes >> 8 * i & 0xFF), out);
    fwrite(header, 1, (size_t)used, out);
    for (int i = 0; i < TENSORS; i++) {
        const tensor *x = &tensors[i];
        size_t n = (size_t)x->rows * (size_t)(x->columns ? x->columns : 1);
        float *data = malloc(n * sizeof *data);
        if (!data) stop(x->name, "out of memory");
        x->fill(data, s, x->rows, x->columns);
        fwrite(data, sizeof *data, n, out);
        free(data);
    }
}

/* ------------------------------------------------------------------------------------------------ the directory */

static FILE *create(const char *directory, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *file = fopen(path, "wb");
    if (!file) stop(path, "cannot be written");
    return file;
}

static void finish(FILE *file) {
    if (ferror(file) || fclose(file)) stop("the model", "cannot be written");
}

static void write_config(FILE *out, const kakeya_tokenizer *t, int vocab) {
    fprintf(out,
            "{\"architectures\":[\"Gemma4ForCausalLM\"],\"model_type\":\"gemma4_text\",\"dtype\":\"float32\","
            "\"vocab_size\":%d,\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":1,"
            "\"layer_types\":[\"full_attention\"],\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
            "\"head_dim\":%d,\"global_head_dim\":%d,\"num_global_key_value_heads\":%d,\"attention_k_eq_v\":false,"
            "\"sliding_window\":64,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-6,"
            "\"hidden_activation\":\"gelu_pytorch_tanh\",\"attention_bias\":false,\"enable_moe_block\":false,"
            "\"hidden_size_per_layer_input\":0,\"num_kv_shared_layers\":0,\"use_double_wide_mlp\":false,"
            "\"final_logit_softcapping\":30.0,\"tie_word_embeddings\":true,\"pad_token_id\":0,\"bos_token_id\":2,"
            "\"eos_token_id\":[1,%d,%d],\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\","
            "\"partial_rotary_factor\":0.25,\"rope_theta\":1000000.0},\"sliding_attention\":{\"rope_type\":\"default\","
            "\"rope_theta\":10000.0}}}\n",
            vocab, HIDDEN, HIDDEN, HEADS, HEADS, HEAD_DIM, HEAD_DIM, HEADS, (int)kakeya_tokenizer_find(t, "<turn|>"),
            (int)kakeya_tokenizer_find(t, "<|tool_response>"));
}

static void copy_tokenizer(const char *model, const char *directory) {
    char path[4096], block[65536];
    snprintf(path, sizeof path, "%s/tokenizer.json", model);
    FILE *in = fopen(path, "rb"), *out = create(directory, "tokenizer.json");
    if (!in) stop(path, "cannot be read");
    for (size_t n; (n = fread(block, 1, sizeof block, in)) > 0;) fwrite(block, 1, n, out);
    fclose(in);
    finish(out);
}

int main(int argc, char **argv) {
    if (argc != 4 && argc != 5) stop("usage", "scripted_model TOKENIZER_MODEL DIRECTORY TEXT [TEXT]");
    kakeya_error error;
    kakeya_tokenizer *t;
    if (kakeya_tokenizer_open(argv[1], &t, &error)) stop(argv[1], error.message);
    script s = read_script(t, argv[3], argc == 5 ? argv[4] : NULL);
    int vocab = kakeya_tokenizer_vocab_size(t);
    mkdir(argv[2], 0777);
    copy_tokenizer(argv[1], argv[2]);
    FILE *config = create(argv[2], "config.json");
    write_config(config, t, vocab);
    finish(config);
    FILE *weights = create(argv[2], "model.safetensors");
    write_weights(weights, &s, vocab);
    finish(weights);
    kakeya_tokenizer_close(t);
    return 0;
}
