/* A configuration that is accepted can be run. The bytes change fields of a small configuration of each form; what the
 * parser accepts, and is small, gets random weights, a drafter, f_theta, a backend and a cache of some policy. Then:
 *  - every step succeeds or is refused with a message;
 *  - logits are finite;
 *  - a prompt in chunks and blocks with rejected drafts give the bits of the whole prompt and single rows;
 *  - the greedy choice is the largest logit of those that are not suppressed;
 *  - two caches in one forward give what each gives alone. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/float16.h"
#include "base/json.h"
#include "model/sizes.h"
#include "model/tensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MAX_PARAMETERS = 40000, /* of a model that is run: a few milliseconds an input */
    MAX_VOCAB = 400,
    MAX_ROWS = 48,
    CONTEXT = 64,
    BLOCKS = 4,
    MOST_OWNED = 2048,
};

static void fail(const char *what, long long a, long long b) {
    fprintf(stderr, "fuzz_forward: %s (%lld, %lld)\n", what, a, b);
    abort();
}

static void require(bool condition, const char *what) {
    if (!condition) fail(what, 0, 0);
}

typedef struct input {
    const uint8_t *data;
    size_t size, at;
} input;

static unsigned take(input *in, unsigned choices) { return in->at < in->size ? in->data[in->at++] % choices : 0; }

/* -------------------------------------------------------------------------------------------- configurations */

#define ROPE                                                                                                           \
    "\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":100},"                       \
    "\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000,\"partial_rotary_factor\":0.25}}"
#define COMMON                                                                                                         \
    "\"model_type\":\"gemma4_text\",\"hidden_size\":16,\"num_attention_heads\":2,\"num_key_value_heads\":1,"           \
    "\"head_dim\":8,\"intermediate_size\":20,\"vocab_size\":40,\"vocab_size_per_layer_input\":40,"                     \
    "\"sliding_window\":5,\"max_position_embeddings\":64,\"final_logit_softcapping\":30," ROPE

static const char *const forms[] = {
    "{" COMMON ",\"num_hidden_layers\":3,\"layer_types\":[\"sliding_attention\",\"sliding_attention\","
    "\"full_attention\"],\"global_head_dim\":12,\"hidden_size_per_layer_input\":0}",
    "{" COMMON ",\"num_hidden_layers\":4,\"layer_types\":[\"sliding_attention\",\"full_attention\","
    "\"sliding_attention\",\"full_attention\"],\"global_head_dim\":16,\"attention_k_eq_v\":true,"
    "\"num_global_key_value_heads\":1,\"hidden_size_per_layer_input\":0,\"enable_moe_block\":true,\"num_experts\":4,"
    "\"top_k_experts\":2,\"moe_intermediate_size\":6}",
    "{" COMMON ",\"num_hidden_layers\":4,\"layer_types\":[\"sliding_attention\",\"full_attention\","
    "\"sliding_attention\",\"full_attention\"],\"global_head_dim\":12,\"hidden_size_per_layer_input\":4,"
    "\"num_kv_shared_layers\":2,\"use_double_wide_mlp\":true}",
    "{" COMMON ",\"num_hidden_layers\":2,\"hidden_size_per_layer_input\":0,\"attention_k_eq_v\":true,"
    "\"per_layer_config\":{\"1\":{\"head_dim\":10,\"num_key_value_heads\":2}}}",
};
enum { FORMS = sizeof forms / sizeof forms[0] };

#define SMALL       "1", "2", "3", "4", "6", "8", "12"
#define WIDTHS      "1", "3", "8", "17", "24", "33", "40", "64", "72"
#define MOST_VALUES 10

/* Values that a field may well have; others come from `odd_values`. */
static const struct {
    const char *place, *key; /* place: "" of the text model, "top", or an entry of rope_parameters */
    const char *values[MOST_VALUES];
} fields[] = {
    {"", "hidden_size", {WIDTHS}},
    {"", "intermediate_size", {WIDTHS}},
    {"", "moe_intermediate_size", {WIDTHS}},
    {"", "vocab_size", {"2", "3", "17", "37", "64", "65", "128", "300"}},
    {"", "vocab_size_per_layer_input", {"1", "17", "40", "300"}},
    {"", "num_attention_heads", {SMALL}},
    {"", "num_key_value_heads", {SMALL}},
    {"", "num_global_key_value_heads", {SMALL}},
    {"", "head_dim", {"2", "4", "6", "8", "10", "16", "24", "36"}},
    {"", "global_head_dim", {"2", "4", "6", "8", "10", "16", "24", "36"}},
    {"", "num_hidden_layers", {SMALL}},
    {"", "num_kv_shared_layers", {"0", "1", "2", "3", "4"}},
    {"", "hidden_size_per_layer_input", {"0", "1", "3", "8", "17"}},
    {"", "sliding_window", {"1", "2", "3", "7", "15", "16", "17", "33", "64"}},
    {"", "max_position_embeddings", {"1", "8", "31", "40", "64", "1000"}},
    {"", "rms_norm_eps", {"0", "1e-6", "1e-3", "1"}},
    {"", "final_logit_softcapping", {"null", "0", "1e-3", "1", "30", "1e6"}},
    {"", "num_experts", {"1", "2", "3", "5", "8", "16"}},
    {"", "top_k_experts", {"1", "2", "3", "5", "8"}},
    {"", "enable_moe_block", {"true", "false"}},
    {"", "attention_k_eq_v", {"true", "false"}},
    {"", "use_double_wide_mlp", {"true", "false"}},
    {"", "tie_word_embeddings", {"true", "false"}},
    {"top", "tie_word_embeddings", {"true", "false"}},
    {"", "per_layer_config", {"{}", "{\"0\":{\"head_dim\":6}}", "{\"1\":{\"num_key_value_heads\":2}}"}},
    {"", "layer_types", {"[\"full_attention\",\"full_attention\"]", "[\"sliding_attention\",\"full_attention\"]"}},
    {"",
     "rope_scaling",
     {"{"
      "\"full_attention\":{\"type\":\"default\",\"rope_theta\":10}}"}},
    {"", "partial_rotary_factor", {"0", "0.1", "0.5", "1"}},
    {"sliding_attention", "rope_type", {"\"default\"", "\"proportional\""}},
    {"sliding_attention", "rope_theta", {"1", "2", "1e4", "1e12"}},
    {"sliding_attention", "partial_rotary_factor", {"0", "0.3", "1"}},
    {"sliding_attention", "factor", {"0.001", "8", "1e6"}},
    {"full_attention", "rope_type", {"\"default\"", "\"proportional\""}},
    {"full_attention", "rope_theta", {"1", "2", "1e4", "1e12"}},
    {"full_attention", "partial_rotary_factor", {"0", "0.3", "1"}},
    {"full_attention", "factor", {"0.001", "8", "1e6"}},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static const char *const odd_values[] = {"null", "0",     "-1", "1",  "2",   "1000000", "1e300",     "0.5",
                                         "true", "false", "[]", "{}", "[1]", "\"x\"",   "{\"0\":{}}"};
enum { ODD_VALUES = sizeof odd_values / sizeof odd_values[0] };

static void set(cJSON *object, const char *key, const char *value) {
    if (!cJSON_IsObject(object)) return;
    cJSON *item = value ? cJSON_Parse(value) : NULL;
    cJSON_DeleteItemFromObjectCaseSensitive(object, key);
    if (item) cJSON_AddItemToObject(object, key, item);
}

/* A field gets one of its values, an odd one, or goes. */
static void change_field(input *in, cJSON *top, cJSON *text) {
    unsigned field = take(in, FIELDS), kind = take(in, 8);
    const char *value = NULL;
    if (kind == 0) {
        value = odd_values[take(in, ODD_VALUES)];
    } else if (kind > 1) {
        unsigned n = 0;
        while (n < MOST_VALUES && fields[field].values[n]) n++;
        value = fields[field].values[take(in, n)];
    }
    cJSON *object = text;
    if (strcmp(fields[field].place, "top") == 0)
        object = top;
    else if (*fields[field].place)
        object = cJSON_GetObjectItem(cJSON_GetObjectItem(text, "rope_parameters"), fields[field].place);
    set(object, fields[field].key, value);
}

/* As many layer types as there are layers. */
static void choose_layer_types(input *in, cJSON *text) {
    const cJSON *layers = cJSON_GetObjectItem(text, "num_hidden_layers");
    int n = cJSON_IsNumber(layers) ? layers->valueint : 1;
    cJSON *types = cJSON_CreateArray();
    for (int i = 0; i < n && i < 16; i++)
        cJSON_AddItemToArray(types, cJSON_CreateString(take(in, 3) ? "sliding_attention" : "full_attention"));
    cJSON_DeleteItemFromObjectCaseSensitive(text, "layer_types");
    cJSON_AddItemToObject(text, "layer_types", types);
}

/* The text of a changed configuration; free with cJSON_free. */
static char *make_json(input *in) {
    cJSON *text = cJSON_Parse(forms[take(in, FORMS)]), *top = text;
    require(text, "a form is not JSON");
    if (take(in, 2)) {
        top = cJSON_CreateObject();
        cJSON_AddStringToObject(top, "model_type", "gemma4");
        cJSON_AddItemToObject(top, "text_config", text);
    }
    for (unsigned n = take(in, 10); n > 0; n--) change_field(in, top, text);
    if (take(in, 2)) choose_layer_types(in, text);
    char *json = cJSON_PrintUnformatted(top);
    cJSON_Delete(top);
    return json;
}

static bool small(const model_config *c) {
    if (c->layers > 8 || c->hidden > 128 || c->vocab > MAX_VOCAB || c->heads > 16 || c->experts > 16) return false;
    if (c->ple_width > 32 || c->ple_vocab > MAX_VOCAB || c->expert_intermediate > 128) return false;
    for (int i = 0; i < c->layers; i++) {
        if (c->layer[i].head_dim > 64 || c->layer[i].intermediate > 256) return false;
    }
    return gemma4_parameters(c).total <= MAX_PARAMETERS;
}

/* ---------------------------------------------------------------------------------------------------- weights */

typedef struct filler {
    char *base;
    weight_format format;
    uint32_t random;
    void *owned[MOST_OWNED];
    int n;
} filler;

static float next_uniform(uint32_t *state) { /* [-1, 1) */
    *state = *state * 1664525u + 1013904223u;
    return (float)(int32_t)*state * 0x1p-31f;
}

/* A half of either sign between 1/4 and 1 of the power of two below `range`. */
static uint16_t next_half(uint32_t *state, float range) {
    int exponent = 0;
    (void)frexpf(range, &exponent);
    uint32_t bits = (uint32_t)(int32_t)(next_uniform(state) * 0x1p31f);
    return (uint16_t)((bits & 0x8000) | (uint32_t)(exponent - 3 + 15 + (int)(bits >> 30 & 1)) << 10 |
                      (bits >> 16 & 0x3FF));
}

/* Values that keep a residual stream of the size that it has: every tensor matters, none drowns the others. */
static kakeya_status fill_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    filler *f = context;
    char *binding = f->base + slot->offset;
    size_t n = (size_t)tensor_slot_elements(slot);
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    if (slot->kind == SLOT_SCALAR) {
        *(float *)(void *)binding = 0.8f + 0.2f * next_uniform(&f->random);
        return KAKEYA_OK;
    }
    require(f->n < MOST_OWNED, "more tensors than expected");
    unsigned char *data = aligned_alloc(64, (n * 4 + 63) / 64 * 64);
    require(data, "out of memory");
    f->owned[f->n++] = data;
    if (slot->kind == SLOT_VECTOR) {
        for (size_t i = 0; i < n; i++) ((float *)(void *)data)[i] = 1 + 0.5f * next_uniform(&f->random);
        *(const float **)(void *)binding = (const float *)(void *)data;
        return KAKEYA_OK;
    }
    int in = (int)slot->shape[slot->dims - 1];
    float range = 1.7f / sqrtf((float)in);
    for (size_t i = 0; i < n; i++) {
        float value = range * next_uniform(&f->random);
        uint16_t narrow = f->format == WEIGHT_F16 ? next_half(&f->random, range) : f32_to_bf16(value);
        if (f->format == WEIGHT_F32)
            memcpy(data + 4 * i, &value, 4);
        else
            memcpy(data + 2 * i, &narrow, 2);
    }
    *(weight *)(void *)binding = weight_matrix(f->format, data, (int)(n / (size_t)in), in);
    return KAKEYA_OK;
}

static void fill(filler *f, tensor_walk walk, const void *shape, void *base) {
    f->base = base;
    require(walk(shape, fill_slot, f, NULL) == KAKEYA_OK, "a walk failed");
}

static void choose_drafter(input *in, const model_config *v, block_drafter_config *c) {
    static const int widths[] = {2, 4, 6, 8, 12, 16, 20};
    int kv_heads = 1 + (int)take(in, 2);
    *c = (block_drafter_config){
        .layers = 1 + (int)take(in, 3),
        .hidden = v->hidden,
        .heads = kv_heads * (1 + (int)take(in, 3)),
        .kv_heads = kv_heads,
        .head_dim = widths[take(in, 7)],
        .intermediate = 1 + (int)take(in, 40),
        .vocab = v->vocab,
        .rms_eps = 1e-6f,
        .rope_theta = 100,
        .logit_softcap = take(in, 2) ? 30.0f : 0,
        .block_size = 2 + (int)take(in, 8),
        .mask_token = (int)take(in, (unsigned)(v->vocab < 256 ? v->vocab : 256)),
        .targets = 1 + (int)take(in, 3),
    };
    for (int i = 0; i < c->targets; i++) c->target_layer[i] = (int)take(in, (unsigned)v->layers);
    for (int i = 0; i < c->layers; i++) c->sliding_window[i] = (int)take(in, 12);
}

static void choose_f_theta(input *in, const model_config *v, const block_drafter_config *d, restoration_model *f) {
    f->config =
        (restoration_config){.drafter_layers = d->layers,
                             .drafter_kv_heads = d->kv_heads,
                             .drafter_head_dim = d->head_dim,
                             .layers = v->layers,
                             .rank = 1 + (int)take(in, 20),
                             .input = take(in, 4) ? RESTORATION_DRAFTER_CONTEXT_KV : RESTORATION_DRAFTER_TOKEN_KV};
    f->config.rank_k = f->config.rank_v = f->config.rank;
    for (int i = 0; i < v->layers; i++) {
        f->config.kv_heads[i] = v->layer[i].kv_heads;
        f->config.head_dim[i] = v->layer[i].head_dim;
    }
    f->encoder_in = d->layers * d->kv_heads * d->head_dim;
}

/* ---------------------------------------------------------------------------------------------------- running */

typedef struct bench {
    const backend_ops *ops;
    backend_model *backend;
    const model_config *config;
    const block_drafter_config *drafter; /* or NULL */
    mem_account account;
    backend_cache_options cache;
    int32_t tokens[MAX_ROWS];
    int n_tokens, prompt; /* of them; the others are decoded */
    int chunk;            /* of the prompt */
    int most_rows;        /* of a block */
    int rows[BLOCKS], kept[BLOCKS];
} bench;

static void must(kakeya_status status, const kakeya_error *error, const char *what) {
    if (status == KAKEYA_OK) return;
    fprintf(stderr, "fuzz_forward: %s: %s\n", what, error->message);
    abort();
}

static void check_finite(const float *logits, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(logits[i])) fail("a logit is not finite", (long long)i, (long long)n);
    }
}

/* Rows of one cache, of which `kept` are committed. */
static void step(bench *b, backend_cache *cache, const int32_t *tokens, int n, int kept, segment_kind kind,
                 float *logits) {
    kakeya_error error = {0};
    backend_segment segment = {.cache = cache, .tokens = tokens, .n = n, .kind = kind, .logits = logits};
    must(b->ops->forward(b->backend, &segment, 1, &error), &error, "forward");
    require(b->ops->cache_pending(cache) == n, "rows are not pending");
    check_finite(logits, (size_t)n * (size_t)b->config->vocab);
    must(b->ops->cache_commit(cache, kept, &error), &error, "commit");
}

static backend_cache *new_cache(bench *b) {
    kakeya_error error = {0};
    backend_cache *cache = NULL;
    if (b->ops->cache_create(b->backend, &b->cache, &cache, &error) == KAKEYA_OK) return cache;
    require(error.message[0], "a cache is refused without a message");
    return NULL;
}

/* The prompt whole, then row by row. */
static void run_plain(bench *b, backend_cache *cache, float *logits) {
    size_t vocab = (size_t)b->config->vocab;
    step(b, cache, b->tokens, b->prompt, b->prompt, SEGMENT_PROMPT, logits);
    for (int at = b->prompt; at < b->n_tokens; at++)
        step(b, cache, b->tokens + at, 1, 1, SEGMENT_DECODE, logits + (size_t)at * vocab);
}

/* The prompt in chunks, then blocks with other tokens behind the right ones, which are dropped. */
static void run_blocks(bench *b, backend_cache *cache, float *logits, float *scratch) {
    size_t vocab = (size_t)b->config->vocab;
    for (int at = 0, n; at < b->prompt; at += n) {
        n = b->prompt - at < b->chunk ? b->prompt - at : b->chunk;
        step(b, cache, b->tokens + at, n, n, SEGMENT_PROMPT, logits + (size_t)at * vocab);
    }
    for (int at = b->prompt, i = 0; at < b->n_tokens; i = (i + 1) % BLOCKS) {
        int32_t block[BACKEND_MAX_DECODE_ROWS];
        int n = b->rows[i] < b->most_rows ? b->rows[i] : b->most_rows;
        int room = b->cache.context_tokens - at;
        if (n > room) n = room;
        int kept = b->kept[i] < n ? b->kept[i] : n;
        if (kept > b->n_tokens - at) kept = b->n_tokens - at;
        if (kept == 0 && i == 0) kept = 1; /* so that it ends */
        for (int r = 0; r < n; r++) block[r] = r < kept ? b->tokens[at + r] : b->tokens[(at + 3 * r) % b->n_tokens];
        step(b, cache, block, n, kept, SEGMENT_DECODE, scratch);
        memcpy(logits + (size_t)at * vocab, scratch, (size_t)kept * vocab * sizeof *logits);
        at += kept;
    }
}

static void compare(const char *what, const float *a, const float *b, size_t n, size_t vocab) {
    for (size_t i = 0; i < n; i++) {
        if (memcmp(a + i, b + i, sizeof *a) != 0) fail(what, (long long)(i / vocab), (long long)(i % vocab));
    }
}

static bool suppressed(const model_config *c, int token) {
    for (int i = 0; i < c->n_suppress_tokens; i++) {
        if (c->suppress_tokens[i] == token) return true;
    }
    return false;
}

static void check_draft(bench *b, backend_cache *cache) {
    kakeya_error error = {0};
    int32_t drafts[BACKEND_MAX_DRAFT];
    int n = b->drafter->block_size - 1;
    if (!b->cache.keep_draft_context || b->ops->cache_length(cache) + n + 1 > b->cache.context_tokens) return;
    must(backend_draft_one(b->ops, b->backend, cache, b->tokens[0], n, drafts, &error), &error, "draft");
    for (int i = 0; i < n; i++) {
        if (drafts[i] < 0 || drafts[i] >= b->config->vocab || drafts[i] == b->drafter->mask_token)
            fail("a draft is no token", i, drafts[i]);
    }
}

/* One more row of both caches in one forward, and its greedy choice alone. */
static void check_last_row(bench *b, backend_cache *one, backend_cache *two, float *scratch) {
    const model_config *c = b->config;
    kakeya_error error = {0};
    size_t vocab = (size_t)c->vocab;
    if (b->ops->cache_length(one) == b->cache.context_tokens) return;
    backend_cache *copy = NULL;
    must(b->ops->cache_fork(one, &b->account, &copy, &error), &error, "fork");
    backend_segment both[2] = {
        {.cache = one, .tokens = b->tokens, .n = 1, .kind = SEGMENT_DECODE, .logits = scratch},
        {.cache = two, .tokens = b->tokens, .n = 1, .kind = SEGMENT_DECODE, .logits = scratch + vocab},
    };
    must(b->ops->forward(b->backend, both, 2, &error), &error, "two segments");
    compare("two segments of one forward differ", scratch, scratch + vocab, vocab, vocab);
    int32_t choice = -2, largest = -1;
    backend_segment greedy = {.cache = copy, .tokens = b->tokens, .n = 1, .kind = SEGMENT_DECODE, .argmax = &choice};
    must(b->ops->forward(b->backend, &greedy, 1, &error), &error, "greedy choice");
    for (int v = 0; v < c->vocab; v++) {
        if (!suppressed(c, v) && (largest < 0 || scratch[v] > scratch[largest])) largest = v;
    }
    if (choice != largest) fail("the greedy choice is not the largest logit", choice, largest);
    b->ops->cache_destroy(copy);
}

static void run_caches(bench *b) {
    size_t n = (size_t)MAX_ROWS * (size_t)b->config->vocab;
    float *plain = calloc(n, sizeof *plain), *blocks = calloc(n, sizeof *blocks), *scratch = calloc(n, sizeof *scratch);
    require(plain && blocks && scratch, "out of memory");
    backend_cache *one = new_cache(b), *two = new_cache(b);
    if (one && two) {
        run_plain(b, one, plain);
        run_blocks(b, two, blocks, scratch);
        size_t vocab = (size_t)b->config->vocab;
        compare("blocks differ from single rows", plain, blocks, (size_t)b->n_tokens * vocab, vocab);
        if (b->drafter) {
            check_draft(b, one);
            check_draft(b, two);
        }
        check_last_row(b, one, two, scratch);
    }
    if (one) b->ops->cache_destroy(one);
    if (two) b->ops->cache_destroy(two);
    free(plain);
    free(blocks);
    free(scratch);
}

static void choose_run(input *in, bench *b) {
    static const int windows[] = {1, 2, 3, 5, 8, 16, 17, 20, 40};
    const model_config *c = b->config;
    b->cache = (backend_cache_options){
        .context_tokens = c->max_context < CONTEXT ? c->max_context : CONTEXT,
        .attention = (kakeya_attention)take(in, 3),
        .restore_layers = (kakeya_restore_layers)take(in, 2),
        .sink = (int)take(in, 6),
        .window = windows[take(in, 9)],
        .draft_window = windows[take(in, 9)],
        .kv_format = (kv_format)take(in, KV_FORMAT_COUNT),
        .keep_draft_context = take(in, 4) != 0,
        .account = &b->account,
    };
    int most = b->cache.context_tokens < MAX_ROWS ? b->cache.context_tokens : MAX_ROWS;
    b->n_tokens = 1 + (int)take(in, (unsigned)most);
    b->prompt = 1 + (int)take(in, (unsigned)b->n_tokens);
    b->chunk = 1 + (int)take(in, 20);
    bool bounded = b->cache.attention != KAKEYA_ATTENTION_NATIVE;
    b->most_rows = bounded && b->cache.window < BACKEND_MAX_DECODE_ROWS ? b->cache.window : BACKEND_MAX_DECODE_ROWS;
    for (int i = 0; i < BLOCKS; i++) {
        b->rows[i] = 1 + (int)take(in, BACKEND_MAX_DECODE_ROWS);
        b->kept[i] = (int)take(in, BACKEND_MAX_DECODE_ROWS + 1);
    }
    /* tokens without a row in a shorter per-layer table are refused */
    uint32_t random = take(in, 256),
             tokens = (uint32_t)(c->ple_width && c->ple_vocab < c->vocab ? c->ple_vocab : c->vocab);
    for (int i = 0; i < MAX_ROWS; i++) {
        random = random * 1664525u + 1013904223u;
        b->tokens[i] = (int32_t)((random >> 8) % tokens);
    }
}

static void run_model(input *in, language_model *verifier) {
    model_config *c = &verifier->config;
    static filler f;
    /* Plain formats: matrices of blocks come from files alone, with widths of whole blocks (test_gguf_models,
     * fuzz_gguf). */
    f = (filler){.format = (weight_format)take(in, WEIGHT_BF16 + 1), .random = take(in, 256)};
    fill(&f, gemma4_walk, c, &verifier->weights);
    if (c->tied_head) verifier->weights.head = verifier->weights.embed;
    c->checkpoint_format = f.format;

    static block_drafter_model drafter;
    static restoration_model f_theta;
    memset(&drafter, 0, sizeof drafter);
    memset(&f_theta, 0, sizeof f_theta);
    bool drafts = take(in, 4) != 0, restores = drafts && take(in, 4) != 0;
    if (drafts) {
        choose_drafter(in, c, &drafter.config);
        fill(&f, dflash_walk, &drafter.config, &drafter);
    }
    if (restores) {
        choose_f_theta(in, c, &drafter.config, &f_theta);
        fill(&f, restoration_walk, &f_theta.config, &f_theta);
    }

    bench b = {.ops = backend_find("cpu", NULL), .config = c, .drafter = drafts ? &drafter.config : NULL};
    mem_account_init(&b.account, NULL, 0);
    choose_run(in, &b);
    backend_model_options options = {.verifier = verifier,
                                     .drafter = drafts ? &drafter : NULL,
                                     .restoration = restores ? &f_theta : NULL,
                                     .precision = take(in, 2) ? KAKEYA_PRECISION_BF16 : KAKEYA_PRECISION_F32,
                                     .threads = 1,
                                     .drafter_scaled_embedding = take(in, 2),
                                     .drafter_block_bidirectional = take(in, 2),
                                     .account = &b.account};
    const char *const *best = cpu_kernels_supported();
    while (best[1]) best++;
    const char *const sets[] = {"scalar", *best};
    for (int i = 0; i < 2; i++) {
        kakeya_error error = {0};
        options.isa = sets[i];
        must(b.ops->model_create(&options, &b.backend, &error), &error, "model");
        run_caches(&b);
        b.ops->model_destroy(b.backend);
        require(mem_total(&b.account) == 0, "memory is still counted");
    }
    for (int i = 0; i < f.n; i++) free(f.owned[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static language_model verifier;
    input in = {.data = data, .size = size};
    char *json = make_json(&in);
    char generation[64];
    snprintf(generation, sizeof generation, "{\"suppress_tokens\":[%u,%u]}", take(&in, 64), take(&in, 64));
    memset(&verifier, 0, sizeof verifier);
    kakeya_error error = {0};
    kakeya_status status =
        model_config_parse("fuzz", json, strlen(json), generation, strlen(generation), &verifier.config, &error);
    cJSON_free(json);
    if (status != KAKEYA_OK)
        require(error.status == status && error.message[0], "a configuration is refused without a message");
    else if (small(&verifier.config))
        run_model(&in, &verifier);
    return 0;
}
