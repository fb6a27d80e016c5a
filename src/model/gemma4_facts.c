#include "model/gemma4_facts.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "model/gemma4_layers.h"

static const double no_token_unsigned = 4294967295.0; /* -1 as u32, which llama.cpp's tools write */

/* Absent in config.json is the default of the configuration's class; converters write everything, so a GGUF file must
 * say what has no neutral value. */
const gemma4_fact gemma4_facts[FACT_COUNT] = {
    [FACT_LAYERS] = {"num_hidden_layers", "gemma4.block_count", FACT_INTEGER, 1, MODEL_MAX_LAYERS, 30, 30, NAN},
    [FACT_HIDDEN] = {"hidden_size", "gemma4.embedding_length", FACT_INTEGER, 1, MODEL_MAX_WIDTH, 2304, 2304, NAN},
    [FACT_CONTEXT] = {"max_position_embeddings", "gemma4.context_length", FACT_INTEGER, 1, MODEL_MAX_CONTEXT, 131072,
                      131072, NAN},
    [FACT_WINDOW] = {"sliding_window", "gemma4.attention.sliding_window", FACT_INTEGER, 1, MODEL_MAX_CONTEXT, 512, 512,
                     NAN},
    [FACT_EPS] = {"rms_norm_eps", "gemma4.attention.layer_norm_rms_epsilon", FACT_NUMBER, 1e-30, 1, 1e-6, 1e-6, NAN},
    [FACT_SOFTCAP] = {"final_logit_softcapping", "gemma4.final_logit_softcapping", FACT_NUMBER, 0, 1e6, 0, 0, 0},
    [FACT_HEADS] = {"num_attention_heads", "gemma4.attention.head_count", FACT_LAYERED, 1, MODEL_MAX_HEADS, 8, 8, NAN},
    [FACT_KV_HEADS] = {"num_key_value_heads", "gemma4.attention.head_count_kv", FACT_LAYERED, 1, MODEL_MAX_HEADS, 4, 4,
                       NAN},
    /* 0: those of sliding layers. GGUF files list the K/V heads of each layer. */
    [FACT_GLOBAL_KV_HEADS] = {"num_global_key_value_heads", NULL, FACT_INTEGER, 1, MODEL_MAX_HEADS, 0, 0, 0},
    [FACT_HEAD_DIM] = {"head_dim", "gemma4.attention.key_length_swa", FACT_INTEGER, 2, MODEL_MAX_HEAD_DIM, 256, 256,
                       NAN},
    [FACT_GLOBAL_HEAD_DIM] = {"global_head_dim", "gemma4.attention.key_length", FACT_INTEGER, 2, MODEL_MAX_HEAD_DIM,
                              512, 512, NAN},
    [FACT_INTERMEDIATE] = {"intermediate_size", "gemma4.feed_forward_length", FACT_LAYERED, 1, MODEL_MAX_WIDTH, 9216,
                           9216, NAN},
    [FACT_SHARED_KV] = {"num_kv_shared_layers", "gemma4.attention.shared_kv_layers", FACT_INTEGER, 0, MODEL_MAX_LAYERS,
                        0, 0, 0},
    [FACT_EXPERTS] = {"num_experts", "gemma4.expert_count", FACT_INTEGER, 0, MODEL_MAX_EXPERTS, 0, 0, 0},
    [FACT_EXPERTS_PER_TOKEN] = {"top_k_experts", "gemma4.expert_used_count", FACT_INTEGER, 0, MODEL_MAX_EXPERTS, 0, 0,
                                0},
    [FACT_EXPERT_INTERMEDIATE] = {"moe_intermediate_size", "gemma4.expert_feed_forward_length", FACT_INTEGER, 0,
                                  MODEL_MAX_WIDTH, 0, 0, 0},
    /* Absent in the text part of a gemma4_unified model: 0. */
    [FACT_PLE] = {"hidden_size_per_layer_input", "gemma4.embedding_length_per_layer_input", FACT_INTEGER, 0,
                  MODEL_MAX_WIDTH, 256, 0, 0},
    [FACT_PLE_VOCAB] = {"vocab_size_per_layer_input", NULL, FACT_INTEGER, 1, MODEL_MAX_VOCAB, 262144, 262144, 0},
    /* 0: as many as the vocabulary lists, or as the embedding has rows. */
    [FACT_VOCAB] = {"vocab_size", "gemma4.vocab_size", FACT_INTEGER, 1, MODEL_MAX_VOCAB, 262144, 262144, 0},
    [FACT_BOS] = {"bos_token_id", "tokenizer.ggml.bos_token_id", FACT_TOKEN, INT_MIN, UINT_MAX, 2, FACT_NO_TOKEN, 2},
    [FACT_PAD] = {"pad_token_id", "tokenizer.ggml.padding_token_id", FACT_TOKEN, INT_MIN, UINT_MAX, 0, FACT_NO_TOKEN,
                  FACT_NO_TOKEN},
    [FACT_THETA_SLIDING] = {"rope_parameters.sliding_attention.rope_theta", "gemma4.rope.freq_base_swa", FACT_NESTED, 1,
                            1e12, 1e4, NAN, 1e4},
    [FACT_THETA_FULL] = {"rope_parameters.full_attention.rope_theta", "gemma4.rope.freq_base", FACT_NESTED, 1, 1e12,
                         1e6, NAN, 1e6},
    [FACT_ROPE_FACTOR] = {"rope_parameters.full_attention.factor", "gemma4.rope.scaling.factor", FACT_NESTED, 1e-3, 1e6,
                          1, NAN, 1},
};

/* What Gemma 3 takes for absent where it is another thing. Both types of layers have the head dimension of the sliding
 * ones. */
static const struct {
    gemma4_fact_id id;
    double json_absent, gguf_absent;
} gemma3_absent[] = {
    {FACT_LAYERS, 26, NAN},         {FACT_WINDOW, 4096, 0},  {FACT_EPS, 1e-6, 1e-6}, {FACT_KV_HEADS, 4, 4},
    {FACT_GLOBAL_HEAD_DIM, 0, NAN}, {FACT_HEAD_DIM, 256, 0}, {FACT_PLE, 0, 0},       {FACT_VOCAB, 262208, 0},
};

double gemma4_fact_absent(const gemma4_reading *r, gemma4_fact_id id) {
    for (size_t i = 0; r->config->generation == GEMMA_3 && i < sizeof gemma3_absent / sizeof gemma3_absent[0]; i++) {
        if (gemma3_absent[i].id == id) return r->json ? gemma3_absent[i].json_absent : gemma3_absent[i].gguf_absent;
    }
    return r->json ? gemma4_facts[id].json_absent : gemma4_facts[id].gguf_absent;
}

bool gemma4_is_no_token(double id) { return id == FACT_NO_TOKEN || id == no_token_unsigned; }

bool gemma4_reading_ok(const gemma4_reading *r) { return (r->json ? r->json->status : r->gguf->status) == KAKEYA_OK; }

void gemma4_reading_fail(gemma4_reading *r, kakeya_status status, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (r->json)
        json_fail(r->json, status, "%s", text);
    else
        gguf_keys_fail(r->gguf, status, "%s", text);
}

const char *gemma4_fact_name(const gemma4_reading *r, gemma4_fact_id id) {
    if (r->json) return gemma4_facts[id].json;
    return gemma4_facts[id].gguf ? gguf_keys_name(r->gguf, gemma4_facts[id].gguf) : NULL;
}

/* ------------------------------------------------------------------------------------------------------- the walk */

static double read_json(gemma4_reading *reading, const cJSON *text, gemma4_fact_id id) {
    json_reader *r = reading->json;
    const gemma4_fact *f = &gemma4_facts[id];
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(text, f->json);
    double absent = gemma4_fact_absent(reading, id);
    if (!item) return absent;
    if (cJSON_IsNull(item)) return f->json_null;
    if (f->kind == FACT_NUMBER) return json_number(r, text, f->json, f->min, f->max, absent);
    if (f->kind != FACT_TOKEN) return json_int(r, text, f->json, (int)f->min, (int)f->max, (int)absent);
    if (!json_is_integer(item, f->min, f->max))
        json_fail(r, KAKEYA_FORMAT, "%s is neither a token id nor null", f->json);
    return item->valuedouble;
}

void gemma4_facts_read_json(gemma4_reading *r, const cJSON *text) {
    for (int id = 0; id < FACT_COUNT; id++) {
        bool nested = gemma4_facts[id].kind == FACT_NESTED;
        r->value[id] = nested ? gemma4_fact_absent(r, (gemma4_fact_id)id) : read_json(r, text, (gemma4_fact_id)id);
    }
}

static double read_gguf(gemma4_reading *reading, gemma4_fact_id id) {
    gguf_keys *r = reading->gguf;
    const gemma4_fact *f = &gemma4_facts[id];
    double absent = gemma4_fact_absent(reading, id);
    if (!f->gguf) return absent;
    if (isnan(absent) && !gguf_keys_find(r, f->gguf)) {
        gguf_keys_fail(r, KAKEYA_FORMAT, "key %s is missing", gguf_keys_name(r, f->gguf));
        return f->min;
    }
    if (f->kind == FACT_NUMBER || f->kind == FACT_NESTED) return gguf_keys_number(r, f->gguf, f->min, f->max, absent);
    return (double)gguf_keys_int(r, f->gguf, (long long)f->min, (long long)f->max,
                                 isnan(absent) ? 0 : (long long)absent);
}

void gemma4_facts_read_gguf(gemma4_reading *r) {
    for (int id = 0; id < FACT_COUNT; id++) {
        const gemma4_fact *f = &gemma4_facts[id];
        r->value[id] =
            f->kind == FACT_LAYERED || id == FACT_ROPE_FACTOR ? f->json_absent : read_gguf(r, (gemma4_fact_id)id);
    }
}

void gemma4_facts_layered(gemma4_reading *r, gemma4_fact_id id, int *out) {
    const gemma4_fact *f = &gemma4_facts[id];
    double absent = gemma4_fact_absent(r, id);
    bool given = !r->gguf || isnan(absent) || gguf_keys_find(r->gguf, f->gguf);
    if (r->gguf && given)
        gguf_keys_ints(r->gguf, f->gguf, r->config->layers, (long long)f->min, (long long)f->max, out);
    else
        for (int i = 0; i < r->config->layers; i++) out[i] = (int)(given ? r->value[id] : absent);
}

/* ------------------------------------------------------------------------------------------- what follows from them */

void gemma4_settle_sizes(gemma4_reading *r) {
    model_config *c = r->config;
    c->layers = (int)r->value[FACT_LAYERS];
    c->hidden = (int)r->value[FACT_HIDDEN];
    c->max_context = (int)r->value[FACT_CONTEXT];
    c->sliding_window = (int)r->value[FACT_WINDOW];
    if (c->generation == GEMMA_3) {
        r->value[r->json ? FACT_GLOBAL_HEAD_DIM : FACT_HEAD_DIM] =
            r->value[r->json ? FACT_HEAD_DIM : FACT_GLOBAL_HEAD_DIM];
        c->raw_values = true;
        if (!c->sliding_window) c->sliding_window = c->max_context; /* no layer slides */
    }
    c->rms_eps = (float)r->value[FACT_EPS];
    c->logit_softcap = (float)r->value[FACT_SOFTCAP] + 0.0f; /* no negative zero */
}

static void settle_heads(gemma4_reading *r) {
    model_config *c = r->config;
    int heads[MODEL_MAX_LAYERS] = {0}, dim_layer[2] = {-1, -1}; /* RoPE frequencies exist once per layer type */
    gemma4_facts_layered(r, FACT_HEADS, heads);
    c->heads = heads[0];
    for (int i = 0; i < c->layers && gemma4_reading_ok(r); i++) {
        const layer_config *l = &c->layer[i];
        if (heads[i] != heads[0])
            gemma4_reading_fail(r, KAKEYA_UNSUPPORTED, "%s gives layer %d %d heads and layer 0 %d: they must be equal",
                                gemma4_fact_name(r, FACT_HEADS), i, heads[i], heads[0]);
        if (l->head_dim % 2)
            gemma4_reading_fail(r, KAKEYA_FORMAT, "head dimension %d of layer %d (%s) is odd", l->head_dim, i,
                                gemma4_fact_name(r, l->type == LAYER_FULL ? FACT_GLOBAL_HEAD_DIM : FACT_HEAD_DIM));
        if (heads[i] % l->kv_heads)
            gemma4_reading_fail(r, KAKEYA_FORMAT,
                                "%d attention heads of layer %d cannot share %d K/V heads evenly (%s)", heads[i], i,
                                l->kv_heads, gemma4_fact_name(r, FACT_KV_HEADS));
        int first = dim_layer[l->type];
        if (first < 0)
            dim_layer[l->type] = i;
        else if (c->layer[first].head_dim != l->head_dim)
            gemma4_reading_fail(r, KAKEYA_UNSUPPORTED, "%s layers %d and %d have head dimensions %d and %d",
                                layer_type_name(l->type), first, i, c->layer[first].head_dim, l->head_dim);
    }
}

static void settle_sharing(gemma4_reading *r, const int *intermediate, bool double_wide) {
    model_config *c = r->config;
    const char *name = gemma4_fact_name(r, FACT_SHARED_KV);
    int orphan = 0;
    c->shared_kv_layers = (int)r->value[FACT_SHARED_KV];
    if (c->shared_kv_layers >= c->layers)
        gemma4_reading_fail(r, KAKEYA_FORMAT, "%s is %d of %d layers: none is left to share from", name,
                            c->shared_kv_layers, c->layers);
    else if (!gemma4_share_kv(c, (int)r->value[FACT_INTERMEDIATE], double_wide, &orphan))
        gemma4_reading_fail(r, KAKEYA_FORMAT, "%s is %d, but layer %d has no earlier %s layer to share from", name,
                            c->shared_kv_layers, orphan, layer_type_name(c->layer[orphan].type));
    for (int i = 0; i < c->layers && gemma4_reading_ok(r); i++) {
        layer_config *l = &c->layer[i];
        const layer_config *source = &c->layer[l->kv_source];
        if (intermediate) l->intermediate = intermediate[i];
        if (l->kv_heads != source->kv_heads)
            gemma4_reading_fail(r, KAKEYA_FORMAT,
                                "layer %d has %d K/V heads, but shares those of layer %d, which has %d", i, l->kv_heads,
                                l->kv_source, source->kv_heads);
    }
}

static int needed(gemma4_reading *r, gemma4_fact_id id) {
    if (r->value[id] < 1) gemma4_reading_fail(r, KAKEYA_FORMAT, "%s is missing or 0", gemma4_fact_name(r, id));
    return (int)r->value[id];
}

static void settle_experts(gemma4_reading *r) {
    model_config *c = r->config;
    if (!c->moe) return;
    c->experts = needed(r, FACT_EXPERTS);
    c->experts_per_token = needed(r, FACT_EXPERTS_PER_TOKEN);
    c->expert_intermediate = needed(r, FACT_EXPERT_INTERMEDIATE);
    if (c->experts_per_token > c->experts)
        gemma4_reading_fail(r, KAKEYA_FORMAT, "%s is %d, but there are %d experts",
                            gemma4_fact_name(r, FACT_EXPERTS_PER_TOKEN), c->experts_per_token, c->experts);
    if ((long long)c->experts * 2 * c->expert_intermediate > INT_MAX || (long long)c->experts * c->hidden > INT_MAX)
        gemma4_reading_fail(r, KAKEYA_FORMAT, "%d experts of width %d are too large", c->experts,
                            c->expert_intermediate);
}

void gemma4_settle_tokens(gemma4_reading *r) {
    model_config *c = r->config;
    double bos = r->value[FACT_BOS], pad = r->value[FACT_PAD];
    bool absent = bos == gemma4_facts[FACT_BOS].json_absent; /* a vocabulary without the usual one has none */
    if (gemma4_is_no_token(bos) || (absent && bos >= c->vocab)) bos = FACT_NO_TOKEN;
    if (bos != FACT_NO_TOKEN && (bos < 0 || bos >= c->vocab)) {
        gemma4_reading_fail(r, KAKEYA_FORMAT, "%s is %.0f, expected 0 to %d, or -1 for none",
                            gemma4_fact_name(r, FACT_BOS), bos, c->vocab - 1);
        bos = FACT_NO_TOKEN;
    }
    c->bos_token = (int)bos;
    c->pad_token = pad < 0 || pad >= c->vocab ? FACT_NO_TOKEN : (int)pad; /* nothing is padded here */
}

void gemma4_settle_layers(gemma4_reading *r, const int *intermediate, bool double_wide) {
    model_config *c = r->config;
    settle_heads(r);
    if (gemma4_reading_ok(r)) settle_sharing(r, intermediate, double_wide);
    if (gemma4_reading_ok(r)) settle_experts(r);
    c->ple_width = (int)r->value[FACT_PLE];
    if ((long long)c->ple_width * c->layers > INT_MAX / 4)
        gemma4_reading_fail(r, KAKEYA_FORMAT, "%s %d is too large for %d layers", gemma4_fact_name(r, FACT_PLE),
                            c->ple_width, c->layers);
}

/* ---------------------------------------------------------------------------------------------------------- tokens */

static bool add_token(const model_config *c, double id, int *set, int *n, int capacity) {
    if (id < 0 || id >= c->vocab) return true;
    for (int i = 0; i < *n; i++) {
        if (set[i] == (int)id) return true;
    }
    if (*n == capacity) return false;
    set[(*n)++] = (int)id;
    return true;
}

bool gemma4_add_stop_token(model_config *c, double id) {
    return add_token(c, id, c->stop_tokens, &c->n_stop_tokens, GEMMA4_NAMED_STOP_TOKENS);
}

void gemma4_settle_stop_tokens(model_config *c) {
    if (c->n_stop_tokens == 0) c->stop_tokens[c->n_stop_tokens++] = 1;
}

void gemma4_add_turn_end(model_config *c, double id) {
    (void)add_token(c, id, c->stop_tokens, &c->n_stop_tokens, MODEL_MAX_STOP_TOKENS);
}

bool gemma4_add_suppressed_token(model_config *c, double id) {
    return add_token(c, id, c->suppress_tokens, &c->n_suppress_tokens, MODEL_MAX_SUPPRESS_TOKENS);
}
