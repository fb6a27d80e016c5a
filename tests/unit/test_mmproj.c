/* Protects: what reads pictures and sound survives every form of file. A model converted to a GGUF file with its mmproj
 * beside it, converted again, in Ollama's one-file form and as an MLX directory makes the same rows and, where its text
 * weights are the same, the same logits on bits; files that cannot be used are said, and refused where they were named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "vision_support.h"

#include "convert/convert.h"
#include "formats/gguf_choice.h"
#include "formats/gguf_output.h"
#include "model/gemma4_vision_bind.h"
#include "scratch.h"

static bool hears(const char *name) { return strstr(name, "tiny-e") || strstr(name, "tiny-unified"); }

/* Weights as they are. */
static void convert(const char *from, const char *to, convert_target target) {
    static const char *const keep[] = {".*=bf16"};
    const bool is_gguf = target < CONVERT_AFFINE4;
    const convert_options options = {
        .to = target, .threads = 2, .head = is_gguf ? "bf16" : NULL, .keep = keep, .n_keep = is_gguf};
    convert_report report;
    ok(convert_model(from, to, &options, &report, &failure));
    assert_true(report.vision_bytes > 10000);
    assert_int_equal(report.audio_bytes > 10000, hears(from));
}

static const char *folder_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", VISION, name);
    return path;
}

static void check_prompt(const fixture *a, const fixture *b, const prompt *p, const char *path, bool same_text) {
    float *hidden[2];
    float *logits[] = {score(a, p, 0, &hidden[0]), score(b, p, 0, &hidden[1])};
    size_t rows = 0;
    for (size_t i = 0; i < p->n * (size_t)a->hidden; i++) { /* text's embeddings may be quantised */
        const int32_t id = p->ids[i / (size_t)a->hidden];
        const bool row = id == kakeya_engine_image_token(a->engine) || id == kakeya_engine_sound_token(a->engine);
        rows += row;
        if ((same_text || row) && hidden[0][i] != hidden[1][i])
            fail_msg("%s, embedding %zu: %g, not %g", path, i, (double)hidden[1][i], (double)hidden[0][i]);
    }
    assert_true(rows >= (size_t)a->hidden);
    for (size_t i = 0; i < p->n * (size_t)a->vocab && same_text; i++)
        if (logits[0][i] != logits[1][i])
            fail_msg("%s, logit %zu: %g, not %g", path, i, (double)logits[1][i], (double)logits[0][i]);
    for (int i = 0; i < 2; i++) {
        free(hidden[i]);
        free(logits[i]);
    }
}

static kakeya_sound *open_chirp(void) {
    char *data;
    size_t bytes;
    kakeya_sound *heard;
    ok(file_read(KAKEYA_TEST_DATA "/sounds/chirp.wav", 1 << 20, &data, &bytes, &failure));
    ok(kakeya_sound_open("chirp.wav", data, bytes, &heard, &failure));
    free(data);
    return heard;
}

/* A model of the same values; same_text: of the same text weights, too; sound: as far as the first has it. */
static void check_parts(const char *name, const char *path, const char *mmproj, bool same_text, bool sound) {
    fixture a = open_model(name), b = open_model_at(name, path, mmproj);
    prompt p = open_prompt(&a, 1);
    check_prompt(&a, &b, &p, path, same_text);
    close_prompt(&p);
    assert_int_equal(kakeya_engine_sound_token(b.engine), sound ? kakeya_engine_sound_token(a.engine) : -1);
    if (hears(name) && sound) {
        kakeya_sound *heard = open_chirp();
        prompt listening = {.n_media = 1, .media = {{.sound = heard}}};
        listening.ids = golden(&a, "audio", "input_ids", &listening.n);
        check_prompt(&a, &b, &listening, path, same_text);
        kakeya_sound_close(heard);
    }
    close_model(&a);
    close_model(&b);
}

static void check_same(const char *name, const char *path, const char *mmproj, bool same_text) {
    check_parts(name, path, mmproj, same_text, true);
}

/* Tensors of what reads sound, as they were. */
static void check_same_audio(const char *name, const char *directory) {
    char path[2][600];
    safetensors *file[2];
    size_t audio = 0;
    snprintf(path[0], sizeof path[0], "%s/%s/model.safetensors", VISION, name);
    snprintf(path[1], sizeof path[1], "%s/model.safetensors", directory);
    for (int i = 0; i < 2; i++) ok(safetensors_open(path[i], &file[i], &failure));
    for (size_t i = 0; i < file[0]->count; i++) {
        const tensor *a = &file[0]->tensors[i], *b;
        if (!strstr(a->name, "audio")) continue;
        audio++;
        b = safetensors_find(file[1], a->name);
        if (!b) fail_msg("%s is not there", a->name);
        if (a->type != b->type || a->dims != b->dims || memcmp(a->shape, b->shape, (size_t)a->dims * sizeof *a->shape))
            fail_msg("%s is of another type or shape", a->name);
        assert_int_equal(a->bytes, b->bytes);
        if (memcmp(a->data, b->data, a->bytes) != 0) fail_msg("%s has other values", a->name);
    }
    assert_int_equal(audio > 0, hears(name));
    for (int i = 0; i < 2; i++) safetensors_close(file[i]);
}

static void check_same_bytes(const char *a, const char *b) {
    char *data[2];
    size_t bytes[2];
    ok(file_read(a, 1 << 24, &data[0], &bytes[0], &failure));
    ok(file_read(b, 1 << 24, &data[1], &bytes[1], &failure));
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(data[0], data[1], bytes[0]);
    free(data[0]);
    free(data[1]);
}

static void test_there_and_back(void **state) {
    (void)state;
    scratch_folder("g");
    scratch_folder("h");
    for (int m = 0; m < MODELS; m++) {
        char first[512], second[512], part[512], again[512], mlx[512], plain[512];
        snprintf(first, sizeof first, "%s/g/%s.gguf", scratch_directory, model_names[m]);
        snprintf(second, sizeof second, "%s/h/%s.gguf", scratch_directory, model_names[m]);
        snprintf(part, sizeof part, "%s/g/mmproj-%s.gguf", scratch_directory, model_names[m]);
        snprintf(again, sizeof again, "%s/h/mmproj-%s.gguf", scratch_directory, model_names[m]);
        snprintf(plain, sizeof plain, "%s/h/%s-bf16", scratch_directory, model_names[m]);
        snprintf(mlx, sizeof mlx, "%s/h/%s-mlx", scratch_directory, model_names[m]);
        convert(folder_of(model_names[m]), first, CONVERT_Q8_0);
        check_same(model_names[m], first, NULL, true);
        convert(first, second, CONVERT_Q8_0);
        check_same_bytes(part, again);
        check_same(model_names[m], second, part, true);
        convert(folder_of(model_names[m]), mlx, CONVERT_AFFINE8);
        check_same(model_names[m], mlx, NULL, false);
        convert(folder_of(model_names[m]), plain, CONVERT_BF16);
        check_same(model_names[m], plain, NULL, true);
        check_same_audio(model_names[m], plain);

        const convert_options options = {.to = CONVERT_Q8_0, .threads = 1};
        convert_report report;
        assert_int_equal(unlink(first), 0); /* the part alone is not overwritten either */
        assert_int_equal(convert_model(folder_of(model_names[m]), first, &options, &report, &failure),
                         KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(failure.message, part));
        assert_int_not_equal(access(first, F_OK), 0);
    }
}

/* ------------------------------------------------------------------------------------------------- made files */

static bool is_linear_bound(const char *name) { return strncmp(name, "v.", 2) == 0 && strstr(name, "put_m"); }

/* How a file is written again. */
typedef struct rewriting {
    const char *without;      /* a tensor, or the beginning of its name */
    const char *as_q8;        /* a tensor whose type is written as Q8_0 */
    const char *architecture; /* instead of its own */
    const char *kind;         /* of the projector */
    const char *audio_kind;   /* of that of sound */
    const char *without_keys; /* the beginning of their names */
    bool one_file;            /* names are those of a model's own file */
} rewriting;

static const char *renamed(const char *name, char out[96]) {
    static const char *const pairs[][2] = {{"a.input_projection.", "a.pre_encode.out."},
                                           {"a.pre_encode.out.", "mm.a.fc."},
                                           {".attn_pre_norm.", ".ln1."},
                                           {".attn_k_rel.", ".linear_pos."},
                                           {".ln2.", ".layer_pre_norm."},
                                           {".attn_post_norm.", ".ln2."}};
    for (size_t i = 0; strstr(name, "a.") == name && i < sizeof pairs / sizeof *pairs; i++) {
        const char *at = strstr(name, pairs[i][0]);
        if (!at) continue;
        snprintf(out, 96, "%.*s%s%s", (int)(at - name), name, pairs[i][1], at + strlen(pairs[i][0]));
        return out;
    }
    return name;
}

static void copy_keys(gguf_output *o, const gguf *file, bool vision_as_own, const rewriting *r) {
    for (size_t i = 0; i < file->parts[0].n_values; i++) {
        gguf_value value = file->parts[0].values[i];
        char key[128];
        if (r->architecture && strcmp(value.key, "general.architecture") == 0) {
            gguf_output_text(o, value.key, r->architecture, strlen(r->architecture));
        } else if (r->kind && strcmp(value.key, "clip.vision.projector_type") == 0) {
            gguf_output_text(o, value.key, r->kind, strlen(r->kind));
        } else if (r->audio_kind && strcmp(value.key, "clip.audio.projector_type") == 0) {
            gguf_output_text(o, value.key, r->audio_kind, strlen(r->audio_kind));
        } else if (r->without_keys && strncmp(value.key, r->without_keys, strlen(r->without_keys)) == 0) {
            continue;
        } else if (!vision_as_own) {
            gguf_output_copy(o, &value);
        } else if (strncmp(value.key, "clip.vision.", 12) == 0) {
            snprintf(key, sizeof key, "gemma4.vision.%s", value.key + 12);
            value.key = key;
            gguf_output_copy(o, &value);
        } else if (strncmp(value.key, "clip.audio.", 11) == 0 && !strstr(value.key, "projector_type")) {
            snprintf(key, sizeof key, "gemma4.audio.%s", value.key + 11);
            value.key = key;
            gguf_output_copy(o, &value);
        }
    }
}

static bool is_left_out(const gguf_tensor *t, bool packed, const rewriting *r) {
    return (r->without && strncmp(t->name, r->without, strlen(r->without)) == 0) ||
           (packed && is_linear_bound(t->name));
}

static void copy_tensors(gguf_output *o, const gguf *file, bool packed, const rewriting *r, bool data) {
    for (size_t i = 0; i < file->n_tensors; i++) {
        const gguf_tensor *t = file->tensors[i];
        const bool changed = r->as_q8 && strcmp(t->name, r->as_q8) == 0;
        const size_t bytes = changed ? (size_t)(t->ne[0] / 32 * 34 * t->ne[1]) : t->bytes;
        char other[96];
        if (is_left_out(t, packed, r)) continue;
        if (data)
            ok(gguf_output_write(o, t->data, bytes, &failure));
        else
            gguf_output_tensor(o, r->one_file ? renamed(t->name, other) : t->name,
                               changed ? GGUF_TENSOR_Q8_0 : t->type->id, t->dims, t->ne, bytes);
    }
}

/* The bounds of all linears in one tensor, as old files have them. */
static size_t pack_bounds(const gguf *file, float out[1024]) {
    static const char *const linears[] = {"attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"};
    static const char *const names[] = {"input_min", "input_max", "output_min", "output_max"};
    size_t n = 0;
    for (int layer = 0;; layer++) {
        for (size_t i = 0; i < 28; i++) {
            char name[96];
            snprintf(name, sizeof name, "v.blk.%d.%s.%s", layer, linears[i / 4], names[i % 4]);
            ptrdiff_t at = gguf_find_tensor(file, name);
            if (at < 0) return n;
            memcpy(&out[n++], file->tensors[at]->data, sizeof *out);
        }
    }
}

/* Ollama's form: one file. */
static void write_together(const char *text, const char *part, const char *path, bool packed) {
    const rewriting plain = {0}, own = {.one_file = true};
    gguf *a, *b;
    float bounds[1024];
    ok(gguf_open(text, &a, &failure));
    ok(gguf_open(part, &b, &failure));
    const size_t n = packed ? pack_bounds(b, bounds) : 0;
    const int64_t ne[] = {(int64_t)n};
    gguf_output *o = gguf_output_create();
    copy_keys(o, a, false, &plain);
    copy_keys(o, b, true, &plain);
    copy_tensors(o, a, false, &plain, false);
    copy_tensors(o, b, packed, &own, false);
    if (packed) gguf_output_tensor(o, "v.clamp_data", GGUF_TENSOR_F32, 1, ne, n * sizeof *bounds);
    ok(gguf_output_open(o, path, &failure));
    copy_tensors(o, a, false, &plain, true);
    copy_tensors(o, b, packed, &own, true);
    if (packed) ok(gguf_output_write(o, bounds, n * sizeof *bounds, &failure));
    ok(gguf_output_commit(o, &failure));
    gguf_close(a);
    gguf_close(b);
}

static void rewrite(const char *from, const char *to, const rewriting *r) {
    gguf *file;
    ok(gguf_open(from, &file, &failure));
    gguf_output *o = gguf_output_create();
    copy_keys(o, file, false, r);
    copy_tensors(o, file, false, r, false);
    ok(gguf_output_open(o, to, &failure));
    copy_tensors(o, file, false, r, true);
    ok(gguf_output_commit(o, &failure));
    gguf_close(file);
}

static void test_one_file(void **state) {
    (void)state;
    scratch_folder("o");
    scratch_folder("p");
    for (int m = 0; m < MODELS; m++) {
        char text[512], part[512], one[512];
        snprintf(text, sizeof text, "%s/o/%s.gguf", scratch_directory, model_names[m]);
        snprintf(part, sizeof part, "%s/o/mmproj-%s.gguf", scratch_directory, model_names[m]);
        snprintf(one, sizeof one, "%s/p/%s", scratch_directory, model_names[m]); /* blobs have no ending */
        convert(folder_of(model_names[m]), text, CONVERT_Q8_0);
        for (int packed = 0; packed <= (m == 1); packed++) {
            write_together(text, part, one, packed);
            /* its own tensors give the budget of published models, the prompt's pictures have their own */
            check_parts(model_names[m], one, NULL, true, strcmp(model_names[m], "tiny-e") == 0);
            assert_int_equal(unlink(one), 0);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------- refusals */

static kakeya_status open_engine(const char *model, const char *mmproj, kakeya_engine **engine) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    options.mmproj = mmproj;
    options.backend = "cpu";
    options.threads = 1;
    return kakeya_engine_open(&options, engine, &failure);
}

/* As a file beside the model it is noted and does no harm; named, it is refused. */
static void check_unusable(const char *model, const char *part, const char *words) {
    kakeya_engine *engine;
    bool noted = false;
    if (open_engine(model, part, &engine) == KAKEYA_OK) fail_msg("%s is taken", part);
    if (!strstr(failure.message, words) || !strstr(failure.message, "--mmproj"))
        fail_msg("not \"%s\": %s", words, failure.message);
    ok(open_engine(model, NULL, &engine));
    for (size_t i = 0; kakeya_engine_note(engine, i); i++)
        noted |= strstr(kakeya_engine_note(engine, i), words) && strstr(kakeya_engine_note(engine, i), "no pictures");
    if (!noted) fail_msg("no note with \"%s\"", words);
    assert_int_equal(kakeya_engine_image_token(engine), -1);
    kakeya_engine_close(engine);
}

static void test_what_cannot_be_used(void **state) {
    (void)state;
    scratch_folder("u");
    scratch_folder("v");
    char text[512], part[512], other[512];
    snprintf(text, sizeof text, "%s/u/model.gguf", scratch_directory);
    snprintf(part, sizeof part, "%s/u/mmproj-model.gguf", scratch_directory);
    snprintf(other, sizeof other, "%s/v/part.gguf", scratch_directory);
    convert(folder_of("tiny-tower"), text, CONVERT_Q8_0);
    assert_int_equal(rename(part, other), 0);
    kakeya_engine *engine;
    ok(open_engine(text, NULL, &engine)); /* nothing beside it */
    assert_non_null(kakeya_engine_note(engine, 0));
    assert_non_null(strstr(kakeya_engine_note(engine, 0), "no vision part (mmproj-*.gguf) beside the model"));
    kakeya_engine_close(engine);

    static const struct {
        rewriting how;
        const char *words;
    } cases[] = {
        {{.without = "v.blk.0.attn_k.weight"}, "v.blk.0.attn_k.weight is missing"},
        {{.without = "v.std_scale"}, "v.std_scale is missing"},
        {{.without = "v.position_embd"}, "v.position_embd.weight is missing"},
        {{.without = "v."}, "neither a tower"},
        {{.without = "mm."}, "mm.input_projection.weight is missing"},
        {{.as_q8 = "v.blk.0.ffn_down.weight"}, "v.blk.0.ffn_down.weight is stored as Q8_0"},
        {{.architecture = "gemma4"}, "general.architecture is gemma4"},
        {{.kind = "qwen3vl_merger"}, "clip.vision.projector_type is qwen3vl_merger"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rewrite(other, part, &cases[i].how);
        check_unusable(text, part, cases[i].words);
        assert_int_equal(unlink(part), 0);
    }

    char *data;
    size_t bytes;
    ok(file_read(other, 1 << 24, &data, &bytes, &failure));
    for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 23) {
        scratch_write("u/mmproj-model.gguf", data, cut);
        check_unusable(text, part, "mmproj-model.gguf");
    }
    free(data);
    assert_int_equal(unlink(part), 0);
    convert(folder_of("tiny-tower"), part, CONVERT_Q8_0); /* a language model under that name */
    assert_int_equal(unlink(scratch_path("u/mmproj-mmproj-model.gguf")), 0);
    check_unusable(text, part, "general.architecture is gemma4");

    assert_int_equal(open_engine(folder_of("tiny-tower"), other, &engine), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(failure.message, "--mmproj is for GGUF files"));
}

static bool has_note(const kakeya_engine *engine, const char *words) {
    for (size_t i = 0; kakeya_engine_note(engine, i); i++)
        if (strstr(kakeya_engine_note(engine, i), words)) return true;
    return false;
}

static void check_deaf(kakeya_engine *engine, const char *words) {
    kakeya_sound *heard = open_chirp();
    int tokens;
    assert_int_equal(kakeya_engine_sound_token(engine), -1);
    assert_int_equal(kakeya_engine_sound_tokens(engine, heard, &tokens, &failure), KAKEYA_UNSUPPORTED);
    if (!strstr(failure.message, "the model reads no sound: ") || !strstr(failure.message, words))
        fail_msg("not \"%s\": %s", words, failure.message);
    kakeya_sound_close(heard);
}

/* Tensors and their values are where llama.cpp's reader looks for them: what reads both ways alike could be wrong. */
static void test_names_of_sound(void **state) {
    (void)state;
    static const struct {
        const char *gguf, *name;
        bool softplus;
    } pairs[] = {
        {"a.conv1d.0.weight", "subsample_conv_projection.layer0.conv.weight", false},
        {"a.conv1d.0.norm.weight", "subsample_conv_projection.layer0.norm.weight", false},
        {"a.conv1d.1.weight", "subsample_conv_projection.layer1.conv.weight", false},
        {"a.input_projection.weight", "subsample_conv_projection.input_proj_linear.weight", false},
        {"a.blk.0.ffn_norm.weight", "layers.0.feed_forward1.pre_layer_norm.weight", false},
        {"a.blk.0.ffn_post_norm_1.weight", "layers.0.feed_forward2.post_layer_norm.weight", false},
        {"a.blk.1.ffn_down_1.weight", "layers.1.feed_forward2.ffw_layer_2.linear.weight", false},
        {"a.blk.1.attn_q.input_max", "layers.1.self_attn.q_proj.input_max", false},
        {"a.blk.1.attn_out.weight", "layers.1.self_attn.post.linear.weight", false},
        {"a.blk.1.attn_pre_norm.weight", "layers.1.norm_pre_attn.weight", false},
        {"a.blk.1.attn_k_rel.weight", "layers.1.self_attn.relative_k_proj.weight", false},
        {"a.blk.1.per_dim_scale.weight", "layers.1.self_attn.per_dim_scale", true},
        {"a.blk.1.conv_norm.weight", "layers.1.lconv1d.pre_layer_norm.weight", false},
        {"a.blk.1.norm_conv.weight", "layers.1.lconv1d.conv_norm.weight", false},
        {"a.blk.1.conv_dw.weight", "layers.1.lconv1d.depthwise_conv1d.weight", false},
        {"a.blk.1.conv_pw1.weight", "layers.1.lconv1d.linear_start.linear.weight", false},
        {"a.blk.1.ln2.weight", "layers.1.norm_out.weight", false},
        {"a.pre_encode.out.bias", "output_proj.bias", false},
    };
    scratch_folder("n");
    char text[512], part[512];
    snprintf(text, sizeof text, "%s/n/model.gguf", scratch_directory);
    snprintf(part, sizeof part, "%s/n/mmproj-model.gguf", scratch_directory);
    convert(folder_of("tiny-e"), text, CONVERT_Q8_0);
    gguf *file;
    safetensors *from;
    ok(gguf_open(part, &file, &failure));
    ok(safetensors_open(VISION "/tiny-e/model.safetensors", &from, &failure));
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        char name[160];
        snprintf(name, sizeof name, "model.audio_tower.%s", pairs[i].name);
        const ptrdiff_t at = gguf_find_tensor(file, pairs[i].gguf);
        const tensor *wanted = safetensors_find(from, name);
        if (at < 0 || !wanted) fail_msg("%s or %s is not there", pairs[i].gguf, name);
        const gguf_tensor *t = file->tensors[at];
        const bool wide = t->type->id == GGUF_TENSOR_F32;
        assert_int_equal(t->bytes, wanted->bytes * (wide ? 2 : 1));
        for (size_t k = 0; k < wanted->bytes / 2; k++) {
            const float x = vision_value(wanted->data, DTYPE_BF16, k);
            const float y = pairs[i].softplus ? (float)log1p(exp((double)x)) : x;
            const float got = vision_value(t->data, wide ? DTYPE_F32 : DTYPE_BF16, k);
            if (got != y) fail_msg("%s, value %zu: %g, not %g", pairs[i].gguf, k, (double)got, (double)y);
        }
    }
    const gguf_tensor *conv = file->tensors[gguf_find_tensor(file, "a.conv1d.1.weight")];
    assert_true(conv->dims == 4 && conv->ne[0] == 3 && conv->ne[1] == 3 && conv->ne[2] == 128 && conv->ne[3] == 4);
    safetensors_close(from);
    gguf_close(file);
}

/* What reads sound beside what reads pictures: neither needs the other. */
static void test_sound_alone(void **state) {
    (void)state;
    static const struct {
        rewriting how;
        const char *words;
    } cases[] = {
        {{.without = "a.blk.1.attn_k.weight"}, "a.blk.1.attn_k.weight is missing"},
        {{.without = "a.blk.0.per_dim_scale.weight"}, "a.blk.0.per_dim_scale.weight is missing"},
        {{.without = "a.conv1d.1.weight"}, "a.conv1d.1.weight is missing"},
        {{.without = "mm.a."}, "mm.a.input_projection.weight is missing"},
        {{.as_q8 = "a.blk.0.ffn_down.weight"}, "a.blk.0.ffn_down.weight is stored as Q8_0"},
        {{.audio_kind = "qwen2a"}, "clip.audio.projector_type is qwen2a"},
        {{.without_keys = "clip.audio.block_count"}, "clip.audio.block_count"},
    };
    scratch_folder("s");
    scratch_folder("t");
    char text[512], part[512], other[512];
    kakeya_engine *engine;
    snprintf(text, sizeof text, "%s/s/model.gguf", scratch_directory);
    snprintf(part, sizeof part, "%s/s/mmproj-model.gguf", scratch_directory);
    snprintf(other, sizeof other, "%s/t/part.gguf", scratch_directory);
    convert(folder_of("tiny-e"), text, CONVERT_Q8_0);
    assert_int_equal(rename(part, other), 0);
    ok(open_engine(text, NULL, &engine));
    check_deaf(engine, "no vision part (mmproj-*.gguf) beside the model");
    kakeya_engine_close(engine);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rewrite(other, part, &cases[i].how);
        ok(open_engine(text, NULL, &engine)); /* noted, and pictures are read */
        assert_true(has_note(engine, "no sound: ") && has_note(engine, cases[i].words));
        assert_true(kakeya_engine_image_token(engine) >= 0);
        check_deaf(engine, cases[i].words);
        kakeya_engine_close(engine);
        if (open_engine(text, part, &engine) == KAKEYA_OK) fail_msg("%s is taken", cases[i].words);
        if (!strstr(failure.message, cases[i].words) || !strstr(failure.message, "--mmproj"))
            fail_msg("not \"%s\": %s", cases[i].words, failure.message);
        assert_int_equal(unlink(part), 0);
    }
    rewrite(other, part, &(rewriting){.without_keys = "clip.audio.projector_type"});
    ok(open_engine(text, part, &engine)); /* it has none, which needs no note */
    assert_false(has_note(engine, "sound"));
    check_deaf(engine, "no audio encoder in ");
    kakeya_engine_close(engine);
    rewrite(other, part, &(rewriting){.without = "v.", .without_keys = "clip.vision."});
    for (int named = 0; named < 2; named++) {
        ok(open_engine(text, named ? part : NULL, &engine)); /* it has nothing else */
        assert_true(kakeya_engine_sound_token(engine) >= 0 && has_note(engine, "no pictures: "));
        assert_int_equal(kakeya_engine_image_token(engine), -1);
        kakeya_engine_close(engine);
    }

    /* in the model's own file */
    char one[512], less[512];
    snprintf(one, sizeof one, "%s/t/one", scratch_directory);
    snprintf(less, sizeof less, "%s/t/less", scratch_directory);
    write_together(text, other, one, false);
    rewrite(one, less, &(rewriting){.without = "mm.a.fc.weight"});
    ok(open_engine(less, NULL, &engine));
    assert_true(has_note(engine, "no sound: ") && has_note(engine, "mm.a.fc.weight is missing"));
    assert_true(kakeya_engine_image_token(engine) >= 0);
    check_deaf(engine, "mm.a.fc.weight is missing");
    kakeya_engine_close(engine);
    assert_int_equal(unlink(less), 0);
    rewrite(one, less, &(rewriting){.without_keys = "gemma4.audio."});
    ok(open_engine(less, NULL, &engine));
    assert_true(has_note(engine, " audio tensors skipped"));
    check_deaf(engine, "no audio encoder in ");
    kakeya_engine_close(engine);

    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = text;
    options.mmproj = other;
    options.vision = KAKEYA_VISION_OFF;
    ok(kakeya_engine_open(&options, &engine, &failure));
    assert_int_equal(kakeya_engine_image_token(engine), -1);
    assert_true(kakeya_engine_sound_token(engine) >= 0);
    kakeya_engine_close(engine);
}

/* The order in which files are tried. */
static void test_order(void **state) {
    (void)state;
    static const char *const names[] = {"mmproj-F16.gguf",        "Q4-mmproj.gguf",  "mmproj-BF16.gguf",
                                        "mmproj-other.gguf",      "mmproj-F32.gguf", "MMPROJ-Model-Q4_0.gguf",
                                        "model-Q4_0-mmproj.gguf", "model-Q4_0.gguf", "mmproj.txt"};
    static const char *const wanted[] = {"MMPROJ-Model-Q4_0.gguf", "model-Q4_0-mmproj.gguf", "mmproj-BF16.gguf",
                                         "mmproj-F32.gguf",        "mmproj-F16.gguf",        "Q4-mmproj.gguf",
                                         "mmproj-other.gguf"};
    scratch_folder("order");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        snprintf(name, sizeof name, "order/%s", names[i]);
        scratch_write(name, "", 0);
    }
    gguf_names found;
    ok(gguf_vision_parts(scratch_path("order/model-Q4_0.gguf"), &found, &failure));
    assert_int_equal(found.n, sizeof wanted / sizeof *wanted);
    for (size_t i = 0; i < found.n; i++) assert_string_equal(strrchr(found.names[i], '/') + 1, wanted[i]);
    gguf_names_free(&found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_there_and_back),      cmocka_unit_test(test_one_file),
        cmocka_unit_test(test_what_cannot_be_used), cmocka_unit_test(test_names_of_sound),
        cmocka_unit_test(test_sound_alone),         cmocka_unit_test(test_order),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
