/* Protects: what a model is said to be stored in is what its files hold, by class; numbers that are not finite are
 * found where they are. */
#include "quantised_models.h"

#include "block_operands.h"
#include "formats/gguf.h"
#include "kakeya_study.h"

static kakeya_error error;

typedef struct seen {
    char text[2048];
    uint64_t bytes, per_token;
    int with_kernels, without_kernels; /* classes */
} seen;

static void note(void *user, const char *group, const char *format, const char *kernels, uint64_t matrices,
                 uint64_t bytes, uint64_t per_token) {
    seen *s = user;
    size_t used = strlen(s->text);
    snprintf(s->text + used, sizeof s->text - used, "%s %s %llu;", group, format, (unsigned long long)matrices);
    s->bytes += bytes;
    /* Norms and scalars enter no product; everything else has kernels on every CPU. */
    s->without_kernels += strcmp(kernels, "-") == 0;
    s->with_kernels += strlen(kernels) > 1;
    s->per_token += per_token;
}

static void test_classes(void **state) {
    (void)state;
    seen s = {0};
    made_model("gemma4-tiny-moe", STORED_AFFINE);
    assert_ok(kakeya_inspect(scratch_path("quantised"), true, note, &s, &error));
    /* 12 layers: q, k, o and (10 sliding ones) v; three matrices of the MLP, of which one has 3 bits; gate, up and down
     * of the experts, whose 24 columns are no multiple of a group. */
    assert_non_null(strstr(s.text, "embedding affine4 1;"));
    assert_non_null(strstr(s.text, "attention affine4 46;"));
    assert_non_null(strstr(s.text, "dense MLP affine3 12;dense MLP affine4 24;"));
    assert_non_null(strstr(s.text, "experts F32 12;experts affine3 12;experts affine4 12;"));
    assert_non_null(strstr(s.text, "router affine8 12;"));
    assert_true(s.per_token < s.bytes);
    assert_in_range(s.without_kernels, 1, 4);
    assert_true(s.with_kernels >= 7);
    seen plain = {0};
    assert_ok(kakeya_inspect(scratch_path("meant"), true, note, &plain, &error));
    assert_null(strstr(plain.text, "affine"));
    assert_true(plain.bytes > 2 * s.bytes);
    assert_int_equal(kakeya_inspect(scratch_path("nowhere"), false, note, &s, &error), KAKEYA_IO);
}

/* A byte of a tensor of the quantised directory. */
static void write_byte(const char *tensor_name, size_t at, unsigned char value) {
    size_t bytes;
    char *data = scratch_read(scratch_path("quantised/model.safetensors"), &bytes);
    safetensors *file;
    assert_ok(safetensors_parse("weights", (const unsigned char *)data, bytes, &file, &error));
    const tensor *t = safetensors_find(file, tensor_name);
    if (!t) fail_msg("no tensor %s", tensor_name);
    data[(size_t)(t->data - (const unsigned char *)data) + at] = (char)value;
    scratch_write("quantised/model.safetensors", data, bytes);
    safetensors_close(file);
    free(data);
}

static void test_numbers_that_are_not_finite(void **state) {
    (void)state;
    static const struct {
        stored_form form;
        const char *tensor;
        size_t at;
        unsigned char value, second;
        const char *place;
    } cases[] = {
        {STORED_AFFINE, "model.layers.1.mlp.up_proj.scales", 2 * 5, 0x80, 0x7f, "row 5 of tensor layers.1.mlp.up_proj"},
        {STORED_AFFINE, "model.layers.1.mlp.up_proj.biases", 2 * 7, 0xc0, 0xff, "row 7 of tensor layers.1.mlp.up_proj"},
        {STORED_MLX_MXFP4, "model.layers.2.mlp.up_proj.scales", 2 * 3, 0xff, 0, "row 3 of tensor layers.2.mlp.up_proj"},
        {STORED_MLX_NVFP4, "model.layers.2.mlp.up_proj.scales", 4 * 3, 0x7f, 0, "row 3 of tensor layers.2.mlp.up_proj"},
        {STORED_FP8_CHANNEL, "model.layers.0.mlp.up_proj.weight", 64 * 9 + 1, 0xff, 0,
         "row 9 of tensor layers.0.mlp.up_proj"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        seen s = {0};
        made_model("gemma4-tiny-dense", cases[i].form);
        assert_ok(kakeya_inspect(scratch_path("quantised"), true, note, &s, &error));
        write_byte(cases[i].tensor, cases[i].at, cases[i].value);
        if (cases[i].second) write_byte(cases[i].tensor, cases[i].at + 1, cases[i].second);
        assert_ok(kakeya_inspect(scratch_path("quantised"), false, note, &s, &error));
        assert_int_equal(kakeya_inspect(scratch_path("quantised"), true, note, &s, &error), KAKEYA_FORMAT);
        if (!strstr(error.message, cases[i].place)) fail_msg("\"%s\", expected %s", error.message, cases[i].place);
    }
}

/* The scale of a block in a GGUF file, made infinite. */
static void test_blocks(void **state) {
    (void)state;
    seen s = {0};
    assert_ok(kakeya_inspect(KAKEYA_TEST_DATA "/golden/quant/micro.gguf", true, note, &s, &error));
    assert_non_null(strstr(s.text, "Q8_0"));
    size_t bytes;
    char *data = scratch_read(KAKEYA_TEST_DATA "/golden/quant/micro.gguf", &bytes);
    gguf *file;
    assert_ok(gguf_parse("micro", (const unsigned char *)data, bytes, &file, &error));
    ptrdiff_t index = gguf_find_tensor(file, "blk.1.attn_q.weight");
    assert_true(index >= 0);
    const gguf_tensor *t = file->tensors[index];
    assert_int_equal(t->type->id, GGUF_TENSOR_Q8_0);
    size_t row = t->bytes / (size_t)t->ne[1], at = (size_t)(t->data - (const unsigned char *)data) + 3 * row;
    gguf_close(file);
    data[at] = 0;
    data[at + 1] = 0x7c;
    const char *path = scratch_write("damaged.gguf", data, bytes);
    assert_int_equal(kakeya_inspect(path, true, note, &s, &error), KAKEYA_FORMAT);
    assert_non_null(strstr(error.message, "row 3 of tensor layers.1.self_attn.q_proj.weight (Q8_0)"));
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_numbers_that_are_not_finite),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
