/* Protects: what files say of a Gemma 3, in both dialects of config.json and in GGUF, with the defaults of its own
 * class; and that text becomes the ids that the definition gives where pieces have scores. Likelihoods are those of
 * test_forward.c and test_real_model.c. */
#include "text_support.h"

#include <math.h>

#include "gguf_writer.h"
#include "scratch.h"

#include "convert/vocabulary.h"
#include "model/gemma4_gguf.h"
#include "model/language_model.h"
#include "text/chat_gemma3.h"
#include "text/tokenizer_gguf.h"

static kakeya_error error;
static model_config config;

static kakeya_status parse(const char *json) {
    return model_config_parse("config.json", json, strlen(json), NULL, 0, &config, &error);
}

static void assert_layers(const char *types) {
    assert_int_equal(config.layers, strlen(types));
    for (int i = 0; i < config.layers; i++) {
        const layer_config *l = &config.layer[i];
        assert_int_equal(l->type, types[i] == 'f' ? LAYER_FULL : LAYER_SLIDING);
        assert_false(l->k_eq_v);
        assert_int_equal(l->head_dim, config.layer[0].head_dim);
        assert_int_equal(l->kv_heads, config.layer[0].kv_heads);
    }
    for (int type = 0; type < 2; type++)
        assert_int_equal(config.rope[type].rotated_pairs, type == LAYER_FULL && !strchr(types, 'f') ? 0
                                                          : type == LAYER_SLIDING && !strchr(types, 's')
                                                              ? 0
                                                              : config.layer[0].head_dim / 2);
}

/* As the 4B's file is published: what is the class's default is not there. */
static const char sparse[] =
    "{\"architectures\": [\"Gemma3ForConditionalGeneration\"], \"model_type\": \"gemma3\", "
    "\"eos_token_id\": [1, 106],\n"
    " \"mm_tokens_per_image\": 256, \"image_token_index\": 262144, \"vision_config\": {\"hidden_size\": 1152},\n"
    " \"text_config\": {\"hidden_size\": 2560, \"intermediate_size\": 10240, \"model_type\": \"gemma3_text\",\n"
    "  \"num_hidden_layers\": 34, \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": \"linear\"}, "
    "\"sliding_window\": 1024},\n"
    " \"torch_dtype\": \"bfloat16\"}";

static void test_sparse(void **state) {
    (void)state;
    assert_ok(parse(sparse));
    assert_layers("sssssfsssssfsssssfsssssfsssssfssss"); /* the last one slides */
    assert_int_equal(config.generation, GEMMA_3);
    assert_string_equal(config.variant, "gemma3-4b");
    assert_int_equal(config.heads, 8);
    assert_int_equal(config.layer[0].kv_heads, 4);
    assert_int_equal(config.layer[0].head_dim, 256);
    assert_int_equal(config.vocab, 262208);
    assert_int_equal(config.max_context, 131072);
    assert_int_equal(config.ple_width, 0);
    assert_true(config.raw_values && config.query_scale == 1.0f / 16 && config.logit_softcap == 0);
    assert_true(config.rope[LAYER_FULL].theta == 1e6f && config.rope[LAYER_FULL].factor == 8);
    assert_true(config.rope[LAYER_SLIDING].theta == 1e4f && config.rope[LAYER_SLIDING].factor == 1);
    assert_int_equal(config.n_stop_tokens, 2);
}

/* Flat, with the older names, and as transformers saves it now: the same model. */
static void test_dialects(void **state) {
    (void)state;
    static const char common[] = "\"num_hidden_layers\": 4, \"hidden_size\": 64, \"num_attention_heads\": 4, "
                                 "\"num_key_value_heads\": 2, \"head_dim\": 128, \"intermediate_size\": 96, "
                                 "\"query_pre_attn_scalar\": 168, \"sliding_window\": 24, \"vocab_size\": 512, "
                                 "\"max_position_embeddings\": 1000}";
    static const char *const dialects[] = {
        "{\"model_type\": \"gemma3_text\", \"architectures\": [\"Gemma3ForCausalLM\"], \"rope_theta\": 5000, "
        "\"rope_local_base_freq\": 700, \"sliding_window_pattern\": 2, \"rope_scaling\": {\"type\": \"linear\", "
        "\"factor\": 4}, \"attn_logit_softcapping\": null, \"final_logit_softcapping\": null, ",
        "{\"model_type\": \"gemma3_text\", \"layer_types\": [\"sliding_attention\", \"full_attention\", "
        "\"sliding_attention\", \"full_attention\"], \"_sliding_window_pattern\": 6, \"rope_parameters\": "
        "{\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 5000}, "
        "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 700}}, "};
    for (int i = 0; i < 2; i++) {
        char json[2048];
        snprintf(json, sizeof json, "%s%s", dialects[i], common);
        assert_ok(parse(json));
        assert_layers("sfsf");
        assert_true(config.rope[LAYER_FULL].theta == 5000 && config.rope[LAYER_FULL].factor == 4);
        assert_true(config.rope[LAYER_SLIDING].theta == 700 && config.rope[LAYER_SLIDING].factor == 1);
        assert_true(config.query_scale == (float)(1 / sqrt(168)));
        assert_string_equal(config.variant, "gemma3");
    }
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *from, *to, *expected;
    } cases[] = {
        {"\"rope_type\": \"linear\"", "\"rope_type\": \"yarn\"", "rope_type \"yarn\" is not supported"},
        {"{\"factor\": 8.0, ", "{", "rope_scaling has no factor"},
        {"\"sliding_window\": 1024", "\"use_bidirectional_attention\": true", "use_bidirectional_attention"},
        {"\"sliding_window\": 1024", "\"attention_bias\": true", "attention_bias"},
        {"\"sliding_window\": 1024", "\"attn_logit_softcapping\": 50", "attn_logit_softcapping"},
        {"\"sliding_window\": 1024", "\"hidden_act\": \"silu\"", "hidden_act \"silu\""},
        {"\"model_type\": \"gemma3\"", "\"model_type\": \"gemma4\"", "model_type is \"gemma4\", but the architecture"},
        {"\"model_type\": \"gemma3_text\"", "\"model_type\": \"gemma4_text\"",
         "text_config.model_type \"gemma4_text\""},
        {"\"sliding_window\": 1024", "\"rope_parameters\": {\"rope_theta\": 3}", "by layer type"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *json = scratch_replace(sparse, cases[i].from, cases[i].to);
        kakeya_status status = parse(json);
        assert_int_not_equal(status, KAKEYA_OK);
        if (!strstr(error.message, cases[i].expected)) fail_msg("%s: %s", cases[i].to, error.message);
        free(json);
    }
}

/* ---- GGUF */

static gguf *open_made(gguf_writer *w) {
    size_t bytes;
    unsigned char *data = gw_finish(w, &bytes);
    const char *path = scratch_write("made.gguf", data, bytes);
    free(data);
    gguf *file = NULL;
    assert_ok(gguf_open(path, &file, &error));
    return file;
}

static gguf_writer begin_file(int layers, int hidden, int heads, int head_dim) {
    gguf_writer w = gw_begin();
    gw_key_text(&w, "general.architecture", "gemma3");
    gw_key_u32(&w, "gemma3.block_count", (uint32_t)layers);
    gw_key_u32(&w, "gemma3.context_length", 4096);
    gw_key_u32(&w, "gemma3.embedding_length", (uint32_t)hidden);
    gw_key_u32(&w, "gemma3.feed_forward_length", 96);
    gw_key_u32(&w, "gemma3.attention.head_count", (uint32_t)heads);
    gw_key_u32(&w, "gemma3.attention.key_length", (uint32_t)head_dim);
    gw_key_u32(&w, "gemma3.attention.value_length", (uint32_t)head_dim);
    gw_key_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    const int64_t shape[] = {hidden, 16};
    float *rows = calloc((size_t)hidden * 16, sizeof *rows);
    gw_tensor(&w, "token_embd.weight", GGUF_TENSOR_F32, 2, shape, rows, (size_t)hidden * 16 * sizeof *rows);
    free(rows);
    return w;
}

static void read_made(gguf_writer *w) {
    gguf *file = open_made(w);
    char note[256];
    assert_ok(gemma4_gguf_config(file, &config, note, &error));
    assert_string_equal(note, "");
    gguf_close(file);
}

static void test_gguf_keys(void **state) {
    (void)state;
    gguf_writer w = begin_file(7, 64, 8, 32); /* what old files leave out: K/V heads, eps, pattern, bases */
    gw_key_u32(&w, "gemma3.attention.sliding_window", 32);
    read_made(&w);
    assert_layers("sssssfs");
    assert_true(config.layer[0].kv_heads == 4 && config.rms_eps == 1e-6f && config.sliding_window == 32);
    assert_true(config.rope[LAYER_FULL].theta == 1e6f && config.rope[LAYER_SLIDING].theta == 1e4f);
    assert_true(config.query_scale == (float)(1 / sqrt(32)) && config.raw_values && config.logit_softcap == 0);

    w = begin_file(4, 64, 4, 32); /* newer ones, and the names of Ollama's */
    gw_key_u32(&w, "gemma3.attention.sliding_window", 32);
    gw_key_u32(&w, "gemma3.attention.sliding_window_pattern", 2);
    gw_key_u32(&w, "gemma3.attention.head_count_kv", 1);
    gw_key_text(&w, "gemma3.rope.scaling.type", "linear");
    gw_key_f32(&w, "gemma3.rope.scaling.factor", 8);
    gw_key_f32(&w, "gemma3.rope.global.freq_base", 5000);
    gw_key_f32(&w, "gemma3.rope.local.freq_base", 700);
    read_made(&w);
    assert_layers("sfsf");
    assert_true(config.rope[LAYER_FULL].theta == 5000 && config.rope[LAYER_FULL].factor == 8);
    assert_true(config.rope[LAYER_SLIDING].theta == 700 && config.rope[LAYER_SLIDING].factor == 1);

    w = begin_file(3, 64, 4, 32); /* no window: nothing slides */
    read_made(&w);
    assert_layers("fff");

    w = begin_file(3, 5376, 32, 128); /* the widths of the 27B: scores are divided by the root of hidden / heads */
    gw_key_u32(&w, "gemma3.attention.sliding_window", 32);
    read_made(&w);
    assert_true(config.query_scale == (float)(1 / sqrt(168)));

    w = begin_file(3, 64, 4, 32);
    gw_key_u32(&w, "gemma3.rope.dimension_count", 16);
    gguf *file = open_made(&w);
    assert_refused(gemma4_gguf_config(file, &config, NULL, &error), KAKEYA_UNSUPPORTED,
                   "gemma3.rope.dimension_count is 16", "gemma3.attention.key_length is 32");
    gguf_close(file);
}

/* ---- turns */

static void assert_turns(const kakeya_chat_message *messages, size_t n, const char *expected) {
    const chat_options options = {.style = CHAT_STYLE_GEMMA3, .add_generation_prompt = true};
    chat_text text;
    size_t place_bytes;
    assert_ok(chat_render_gemma3(messages, n, &options, &text, &place_bytes, &error));
    assert_string_equal(text.text, expected);
    chat_text_free(&text);
}

static void assert_no_turns(const kakeya_chat_message *messages, size_t n, const char *tools, const char *expected) {
    cJSON *list = tools ? cJSON_Parse(tools) : NULL;
    const chat_options options = {.style = CHAT_STYLE_GEMMA3, .tools = list};
    chat_text text;
    size_t place_bytes;
    assert_int_not_equal(chat_render_gemma3(messages, n, &options, &text, &place_bytes, &error), KAKEYA_OK);
    if (!strstr(error.message, expected)) fail_msg("%s", error.message);
    assert_null(text.text);
    cJSON_Delete(list);
}

static void test_turns(void **state) {
    (void)state;
    const kakeya_chat_part parts[] = {{.text = " a "}, {.text = "b"}};
    kakeya_chat_message all[] = {{.role = "system", .content = " Be brief.\n"},
                                 {.role = "user", .content = "  Hello \n"},
                                 {.role = "assistant", .content = "Hi.\n", .reasoning = "hm"},
                                 {.role = "user", .parts = parts, .n_parts = 2}};
    assert_turns(
        all, 4,
        "<bos><start_of_turn>user\n Be brief.\n\n\nHello<end_of_turn>\n<start_of_turn>model\nHi.<end_of_turn>\n"
        "<start_of_turn>user\nab<end_of_turn>\n<start_of_turn>model\n");
    assert_turns(all + 1, 1, "<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n");
    assert_turns(all + 1, 0, "<bos><start_of_turn>model\n");
    assert_no_turns(all, 1, NULL, "there is none");
    assert_no_turns(all + 2, 1, NULL, "messages[0].role is \"assistant\", expected \"user\"");
    all[2].role = "user";
    assert_no_turns(all, 4, NULL, "messages[2].role is \"user\", expected \"assistant\"");
    assert_turns(all + 1, 1, "<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n");
    assert_no_turns(all + 1, 1, "[{\"name\": \"f\"}]", "trained to call");
    const kakeya_chat_call call = {.name = "f"};
    all[2] = (kakeya_chat_message){.role = "assistant", .calls = &call, .n_calls = 1};
    assert_no_turns(all + 1, 2, NULL, "messages[1]: the turns of Gemma 3 have no tools");
    all[2] = (kakeya_chat_message){.role = "tool", .content = "  Hello \n"};
    assert_no_turns(all + 1, 2, NULL, "messages[1]: the turns of Gemma 3 have no tools");

    static const char published[] =
        "{%- set first_user_prefix = messages[0]['content'] -%}{{ raise_exception(\"Conversation roles must "
        "alternate\") }}"
        "{{ '<start_of_turn>' + role }}{{ '<end_of_turn>' }}{{'<start_of_turn>model\n'}}";
    chat_template_info info = chat_template_check(published, strlen(published));
    assert_true(info.known && info.gemma_turns && info.style == CHAT_STYLE_GEMMA3 && !*info.note);
    static const char other[] = "<start_of_turn>developer<end_of_turn><start_function_declaration>";
    info = chat_template_check(other, strlen(other));
    assert_true(!info.known && info.gemma_turns && info.style == CHAT_STYLE_GEMMA3 && *info.note);
}

/* ---- pieces with scores */

enum { PIECES = 90, LETTERS = 5, LONGEST = 40 };

typedef struct vocabulary {
    char text[PIECES + 256][48];
    float score[PIECES + 256];
    int32_t type[PIECES + 256];
    int n, first_byte;
} vocabulary;

static uint32_t next_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 16;
}

static int find_piece(const vocabulary *v, const char *text) {
    for (int i = 0; i < v->n; i++) {
        if (strcmp(v->text[i], text) == 0) return i;
    }
    return -1;
}

static void add_piece(vocabulary *v, const char *text, int type, float score) {
    if (find_piece(v, text) >= 0) return;
    snprintf(v->text[v->n], sizeof v->text[0], "%s", text);
    v->type[v->n] = type;
    v->score[v->n++] = score;
}

/* Letters of which one has no piece, tags and runs of spaces and line ends that are cut out, and random words of which
 * several may have the same score. */
static void make_vocabulary(vocabulary *v, uint32_t *random) {
    static const char *const letters[LETTERS] = {"a", "b", "\xC3\xA9", "\xE2\x96\x81", "c"};
    static const char *const own[] = {"  ", "   ", "\n", "\n\n", "<b>", "ab<"};
    *v = (vocabulary){0};
    add_piece(v, "<pad>", 3, -1000);
    add_piece(v, "<eos>", 3, -1000);
    add_piece(v, "<bos>", 3, -1000);
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) add_piece(v, own[i], 4, -1000);
    v->first_byte = v->n;
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        add_piece(v, text, 6, 0);
    }
    for (int i = 0; i < LETTERS - 1; i++) add_piece(v, letters[i], 1, -900);
    while (v->n < PIECES + 256) {
        char text[32] = "";
        for (uint32_t n = 2 + next_random(random) % 4; n; n--) strcat(text, letters[next_random(random) % LETTERS]);
        add_piece(v, text, 1, -(float)(next_random(random) % 30));
    }
}

/* The definition, step by step. */
static size_t encode_slowly(const vocabulary *v, const char *text, int32_t *ids) {
    char symbols[2 * LONGEST][48];
    size_t n = 0, out = 0;
    for (const char *at = text;;) {
        int cut = -1;
        for (int i = 0; *at && i < v->n; i++) {
            size_t length = strlen(v->text[i]);
            if ((v->type[i] == 3 || v->type[i] == 4) && strncmp(at, v->text[i], length) == 0 &&
                (cut < 0 || length > strlen(v->text[cut])))
                cut = i;
        }
        if (*at && cut < 0) {
            size_t length = *at == ' ' || !((unsigned char)*at & 0x80) ? 1 : 2;
            snprintf(symbols[n], sizeof symbols[0], "%.*s", (int)length, at);
            if (*at == ' ') strcpy(symbols[n], "\xE2\x96\x81");
            n++;
            at += length;
            continue;
        }
        for (;;) { /* merges what has been gathered */
            float best = -INFINITY;
            size_t best_at = n;
            char joined[96];
            for (size_t i = 0; i + 1 < n; i++) {
                snprintf(joined, sizeof joined, "%s%s", symbols[i], symbols[i + 1]);
                int left = find_piece(v, symbols[i]), right = find_piece(v, symbols[i + 1]),
                    product = find_piece(v, joined);
                if (left < 0 || right < 0 || product < 0 || v->type[product] != 1 || v->score[product] <= best)
                    continue;
                best = v->score[product];
                best_at = i;
            }
            if (best_at == n) break;
            snprintf(joined, sizeof joined, "%s%s", symbols[best_at], symbols[best_at + 1]);
            snprintf(symbols[best_at], sizeof symbols[0], "%.47s", joined);
            memmove(symbols + best_at + 1, symbols + best_at + 2, (n - best_at - 2) * sizeof symbols[0]);
            n--;
        }
        for (size_t i = 0; i < n; i++) {
            int id = find_piece(v, symbols[i]);
            if (id >= 0) ids[out++] = id;
            for (const char *byte = symbols[i]; id < 0 && *byte; byte++)
                ids[out++] = v->first_byte + (unsigned char)*byte;
        }
        n = 0;
        if (!*at) return out;
        ids[out++] = cut;
        at += strlen(v->text[cut]);
    }
}

static tokenizer *open_vocabulary(const vocabulary *v) {
    const char *texts[PIECES + 256];
    for (int i = 0; i < v->n; i++) texts[i] = v->text[i];
    gguf_writer w = gw_begin();
    gw_key_text(&w, "general.architecture", "gemma3");
    gw_key_text(&w, "tokenizer.ggml.model", "llama");
    gw_key_text(&w, "tokenizer.ggml.pre", "default");
    gw_key_bool(&w, "tokenizer.ggml.add_space_prefix", false);
    gw_key_texts(&w, "tokenizer.ggml.tokens", texts, (uint64_t)v->n);
    gw_key_array(&w, "tokenizer.ggml.scores", GGUF_F32, v->score, (uint64_t)v->n, sizeof v->score[0]);
    gw_key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, v->type, (uint64_t)v->n, sizeof v->type[0]);
    gguf *file = open_made(&w);
    tokenizer *t = NULL;
    assert_ok(tokenizer_open_gguf(file, &t, &error));
    gguf_close(file);
    return t;
}

static const char *const parts[] = {"a", "b", "\xC3\xA9", " ", "c", "  ", "\n", "<b>", "<eos>", "ab", "<", "\xC3\xBC"};

static void random_text(char *text, size_t least, uint32_t *random) {
    *text = '\0';
    while (strlen(text) < least) strcat(text, parts[next_random(random) % (sizeof parts / sizeof parts[0])]);
}

static void test_pieces_with_scores(void **state) {
    (void)state;
    uint32_t random = 7;
    for (int round = 0; round < 20; round++) {
        static vocabulary v;
        make_vocabulary(&v, &random);
        tokenizer *t = open_vocabulary(&v);
        for (int c = 0; c < 100; c++) {
            char text[2 * LONGEST];
            random_text(text, (size_t)(c % LONGEST), &random);
            int32_t expected[4 * LONGEST], *ids;
            size_t n_expected = encode_slowly(&v, text, expected), n;
            tokenizer_encode_options options = {.parse_special = true};
            assert_ok(tokenizer_encode(t, text, strlen(text), options, &ids, &n, &error));
            for (size_t i = 0; i < n && i < n_expected; i++) {
                if (ids[i] != expected[i]) fail_msg("\"%s\": id %zu is %d, not %d", text, i, ids[i], expected[i]);
            }
            assert_int_equal(n, n_expected);
            free(ids);
        }
        assert_false(tokenizer_is_special(t, tokenizer_id(t, "\n")));
        assert_true(tokenizer_is_special(t, tokenizer_id(t, "<eos>")));
        tokenizer_close(t);
    }
}

/* Scores to merges and back are the scores' order: the same ids. */
static void test_scores_and_merges(void **state) {
    (void)state;
    uint32_t random = 11;
    for (int round = 0; round < 20; round++) {
        static vocabulary v, again;
        make_vocabulary(&v, &random);
        for (int i = 0; i < v.n; i++) /* of one piece each: no two are alike */
            if (v.type[i] == 1 && v.score[i] > -900) v.score[i] -= (float)i / 512;
        tokenizer *scored = open_vocabulary(&v), *merged = NULL;
        char *json = NULL;
        size_t bytes;
        bool ranked = false;
        assert_ok(vocabulary_json(scored, "made", &json, &bytes, &error));
        assert_ok(tokenizer_open_memory("tokenizer.json", json, bytes, &merged, &error));
        free(json);
        assert_int_equal(tokenizer_vocab_size(merged), v.n);
        again = v;
        assert_ok(vocabulary_scores(merged, again.score, &ranked, &error));
        assert_true(ranked);
        for (int i = 0; i < v.n; i++) {
            assert_string_equal(tokenizer_piece(merged, i, NULL), v.text[i]);
            assert_int_equal(tokenizer_is_special(merged, i), v.type[i] == 3);
            assert_int_equal(tokenizer_is_added(merged, i), v.type[i] == 3 || v.type[i] == 4);
            if (v.type[i] == 1) continue;
            assert_true(again.score[i] == v.score[i]);
        }
        tokenizer *back = open_vocabulary(&again);
        for (int c = 0; c < 100; c++) {
            char text[2 * LONGEST];
            random_text(text, (size_t)(c % LONGEST), &random);
            int32_t *ids, *expected;
            size_t n, n_expected;
            const tokenizer_encode_options options = {.parse_special = true};
            assert_ok(tokenizer_encode(scored, text, strlen(text), options, &expected, &n_expected, &error));
            assert_ok(tokenizer_encode(back, text, strlen(text), options, &ids, &n, &error));
            assert_int_equal(n, n_expected);
            if (memcmp(ids, expected, n * sizeof *ids) != 0) fail_msg("\"%s\"", text);
            free(ids);
            free(expected);
        }
        tokenizer_close(back);
        tokenizer_close(merged);
        tokenizer_close(scored);
    }
}

/* Merges that no scores say: one of two ways to a piece is missing, or another piece's merge lies between them. */
static void test_merges_without_scores(void **state) {
    (void)state;
    static const struct {
        const char *merges;
        bool ranked;
    } cases[] = {
        {"[\"a\", \"b\"], [\"b\", \"c\"], [\"ab\", \"c\"], [\"a\", \"bc\"]", true},
        {"[\"b\", \"c\"], [\"ab\", \"c\"], [\"a\", \"bc\"], [\"a\", \"b\"]", true},
        {"[\"a\", \"b\"], [\"b\", \"c\"], [\"ab\", \"c\"]", false},
        {"[\"a\", \"b\"], [\"ab\", \"c\"], [\"b\", \"c\"], [\"a\", \"bc\"]", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[16384], pieces[8192] = "";
        for (int byte = 0; byte < 256; byte++)
            snprintf(pieces + strlen(pieces), 32, ", \"<0x%02X>\": %d", (unsigned)byte, 6 + byte);
        snprintf(json, sizeof json,
                 "{\"version\": \"1.0\", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
                 "\"content\": \"\xE2\x96\x81\"}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": "
                 "\"Replace\", \"pattern\": {\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"}, {\"type\": "
                 "\"ByteFallback\"}, {\"type\": \"Fuse\"}]}, \"model\": {\"type\": \"BPE\", \"byte_fallback\": true, "
                 "\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"bc\": 4, \"abc\": 5%s}, \"merges\": [%s]}}",
                 pieces, cases[i].merges);
        tokenizer *t = NULL;
        float scores[262];
        bool ranked;
        assert_ok(tokenizer_open_memory("tokenizer.json", json, strlen(json), &t, &error));
        assert_ok(vocabulary_scores(t, scores, &ranked, &error));
        assert_int_equal(ranked, cases[i].ranked);
        if (ranked) assert_true(scores[5] < scores[4] && scores[0] == -3 && scores[2] == -5);
        if (ranked) assert_int_equal(scores[3] > scores[4], i == 0);
        tokenizer_close(t);
    }
}

static void test_bad_vocabularies(void **state) {
    (void)state;
    const char *texts[] = {"a", "b"};
    const int32_t types[] = {1, 1};
    const float scores[] = {0, NAN};
    for (int i = 0; i < 2; i++) {
        gguf_writer w = gw_begin();
        gw_key_text(&w, "general.architecture", "gemma3");
        gw_key_text(&w, "tokenizer.ggml.model", "llama");
        gw_key_texts(&w, "tokenizer.ggml.tokens", texts, 2);
        gw_key_array(&w, "tokenizer.ggml.token_type", GGUF_I32, types, 2, sizeof types[0]);
        if (i) gw_key_array(&w, "tokenizer.ggml.scores", GGUF_F32, scores, 2, sizeof scores[0]);
        gguf *file = open_made(&w);
        tokenizer *t = NULL;
        assert_refused(tokenizer_open_gguf(file, &t, &error), KAKEYA_FORMAT,
                       i ? "tokenizer.ggml.scores[1] is nan" : "tokenizer.ggml.scores is missing");
        gguf_close(file);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_dialects),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_gguf_keys),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_pieces_with_scores),
        cmocka_unit_test(test_scores_and_merges),
        cmocka_unit_test(test_merges_without_scores),
        cmocka_unit_test(test_bad_vocabularies),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
