/* Matrices of unusual shape and machines of unusual size: rows longer than a piece of work, more threads than cores.
 * Inputs and weights are random; the reference is a product in double precision. */
#include "kernel_operands.h"

#include "backend/cpu/matrix.h"
#include "copies.h"
#include "kakeya_study.h"
#include "model/tensors.h"

enum { WIDE = 40000 }; /* as float32: 160 KB a row, more than a piece of work has */

static kakeya_error error;

typedef struct fixture {
    mem_account account;
    backend_model model;
    packed_rows packed;
} fixture;

static void setup_model(fixture *f, const cpu_kernels *kernels, int threads, int rows, const weight *w) {
    memset(f, 0, sizeof *f);
    mem_account_init(&f->account, NULL, 0);
    f->model.kernels = kernels;
    f->model.account = &f->account;
    assert_ok(thread_pool_create(threads, &f->model.pool, &error));
    f->model.threads = thread_pool_size(f->model.pool);
    assert_ok(packed_rows_create(&f->model, &f->packed, rows, w->in, packing_of(&f->model, w), &error));
}

static void teardown_model(fixture *f) {
    packed_rows_destroy(&f->packed);
    thread_pool_destroy(f->model.pool);
    assert_int_equal(mem_total(&f->account), 0);
}

static float *run_product(const cpu_kernels *kernels, int threads, const weight *w, const float *x, int rows) {
    fixture f;
    setup_model(&f, kernels, threads, rows, w);
    float *y = calloc((size_t)rows * (size_t)w->out, sizeof *y);
    pack(&f.model, &f.packed, x, (size_t)w->in, rows, w->in, packing_of(&f.model, w));
    matrix_job job = matrix_product(&f.packed, rows, w, y, (size_t)w->out);
    matrix_run(&f.model, &job, 1);
    teardown_model(&f);
    return y;
}

static void wide_rows(void **state) {
    (void)state;
    enum { OUT = 50, ROWS = 21 };
    float *values = random_floats((size_t)OUT * WIDE, 1, 0.02f), *x = random_floats((size_t)ROWS * WIDE, 2, 1.0f);
    weight w = weight_matrix(WEIGHT_F32, values, OUT, WIDE);
    double *expected = calloc((size_t)ROWS * OUT, sizeof *expected);
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t o = 0; o < OUT; o++) {
            double sum = 0;
            for (size_t k = 0; k < WIDE; k++) sum += (double)x[r * WIDE + k] * (double)values[o * WIDE + k];
            expected[r * OUT + o] = sum;
        }
    }
    FOR_TABLES(kernels) {
        float *whole = run_product(kernels, 2, &w, x, ROWS);
        for (size_t i = 0; i < (size_t)ROWS * OUT; i++)
            check_near("wide product", kernels->name, (long)i, (double)whole[i], expected[i], 1e-3);
        static const int row_counts[] = {1, 5, BACKEND_MAX_DECODE_ROWS};
        for (size_t n = 0; n < COUNT(row_counts); n++) {
            for (int threads = 1; threads <= 3; threads++) {
                float *some = run_product(kernels, threads, &w, x, row_counts[n]);
                for (size_t i = 0; i < (size_t)row_counts[n] * OUT; i++)
                    check_same_bits("wide product of few rows", kernels->name, (long)i, some[i], whole[i]);
                free(some);
            }
        }
        free(whole);
    }
    free(expected);
    free(values);
    free(x);
}

/* --- a whole model ---------------------------------------------------------------------------------------------- */

static const char wide_config[] =
    "{\"model_type\": \"gemma4_text\", \"vocab_size\": 64, \"hidden_size\": 16, \"intermediate_size\": 40000,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8,"
    " \"global_head_dim\": 16, \"hidden_activation\": \"gelu_pytorch_tanh\", \"max_position_embeddings\": 256,"
    " \"rms_norm_eps\": 1e-06, \"sliding_window\": 16, \"layer_types\": [\"sliding_attention\", \"full_attention\"],"
    " \"tie_word_embeddings\": true, \"final_logit_softcapping\": 30.0, \"bos_token_id\": 2, \"pad_token_id\": 0,"
    " \"eos_token_id\": 1, \"dtype\": \"float32\", \"hidden_size_per_layer_input\": 0, \"num_kv_shared_layers\": 0,"
    " \"attention_k_eq_v\": false, \"enable_moe_block\": false, \"rope_parameters\": {"
    " \"full_attention\": {\"partial_rotary_factor\": 0.25, \"rope_theta\": 1e6, \"rope_type\": \"proportional\"},"
    " \"sliding_attention\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"}}}";

typedef struct slot_list {
    safetensors_entry entries[64];
    char names[64][SLOT_NAME_BYTES + 8];
    size_t n;
} slot_list;

static kakeya_status list_slot(void *context, const tensor_slot *slot, kakeya_error *unused) {
    (void)unused;
    slot_list *list = context;
    if (slot->kind == SLOT_IGNORED) return KAKEYA_OK;
    assert_true(list->n < COUNT(list->entries));
    snprintf(list->names[list->n], sizeof list->names[0], "%s%s", slot->unprefixed ? "" : "model.", slot->name);
    safetensors_entry *e = &list->entries[list->n];
    *e = (safetensors_entry){.name = list->names[list->n], .type = TENSOR_F32, .dims = slot->dims};
    for (int i = 0; i < slot->dims; i++) e->shape[i] = slot->shape[i];
    list->n++;
    return KAKEYA_OK;
}

/* A checkpoint of random float32 weights for `wide_config`. */
static const char *write_wide_model(void) {
    model_config config;
    static slot_list list;
    list.n = 0;
    assert_ok(model_config_parse("config.json", wide_config, strlen(wide_config), NULL, 0, &config, &error));
    assert_ok(gemma4_walk(&config, list_slot, &list, &error));
    const char *folder = scratch_folder("wide");
    scratch_text("wide/config.json", wide_config);
    safetensors_writer *writer = NULL;
    assert_ok(safetensors_writer_open(scratch_path("wide/model.safetensors"), list.entries, list.n, &writer, &error));
    for (size_t i = 0; i < list.n; i++) {
        size_t n = 1;
        for (int d = 0; d < list.entries[i].dims; d++) n *= (size_t)list.entries[i].shape[d];
        float *values = random_floats(n, 100 + i, list.entries[i].dims == 2 ? 0.1f : 0.5f);
        assert_ok(safetensors_writer_write(writer, values, n * sizeof *values, &error));
        free(values);
    }
    assert_ok(safetensors_writer_commit(writer, &error));
    return folder;
}

static kakeya_engine *open_engine(const char *model, const char *isa, int threads) {
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    options.backend = "cpu";
    kakeya_study_options study;
    KAKEYA_INIT(&study);
    study.cpu_isa = isa;
    options.study = &study;
    options.threads = threads;
    assert_ok(kakeya_engine_open(&options, &engine, &error));
    return engine;
}

enum { PROMPT = 20, GENERATED = 12 };

/* Tokens that the model writes behind a prompt, and the prompt's logits. */
static void generate(kakeya_engine *engine, int32_t tokens[PROMPT + GENERATED], float *logits) {
    kakeya_session *session = NULL;
    kakeya_session_options session_options;
    KAKEYA_INIT(&session_options);
    assert_ok(kakeya_session_open(engine, &session_options, &session, &error));
    for (int i = 0; i < PROMPT; i++) tokens[i] = 2 + i * 5 % 60;
    assert_ok(kakeya_session_sync(session, tokens, PROMPT, NULL, NULL, NULL, &error));
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.mode = KAKEYA_MODE_AR;
    options.max_tokens = GENERATED;
    options.ignore_stop_tokens = true;
    assert_ok(kakeya_session_generate(session, &options, NULL, &error));
    size_t n;
    const int32_t *timeline = kakeya_session_tokens(session, &n);
    assert_int_equal(n, PROMPT + GENERATED);
    memcpy(tokens, timeline, n * sizeof *tokens);
    if (logits) {
        kakeya_score_options score;
        KAKEYA_INIT(&score);
        score.logits = logits;
        assert_ok(kakeya_session_score(session, tokens, PROMPT, &score, &error));
    }
    kakeya_session_close(session);
}

static void wide_model(void **state) {
    (void)state;
    enum { VOCAB = 64 };
    char model[512];
    snprintf(model, sizeof model, "%s", write_wide_model());
    float expected[PROMPT * VOCAB], logits[PROMPT * VOCAB];
    bool first = true;
    FOR_TABLES(kernels) {
        int32_t tokens[2][PROMPT + GENERATED];
        for (int threads = 1; threads <= 2; threads++) {
            kakeya_engine *engine = open_engine(model, kernels->name, threads);
            assert_int_equal(kakeya_engine_vocab_size(engine), VOCAB);
            generate(engine, tokens[threads - 1], logits);
            kakeya_engine_close(engine);
        }
        assert_memory_equal(tokens[0], tokens[1], sizeof tokens[0]);
        for (size_t i = 0; i < COUNT(logits); i++) {
            assert_true(isfinite(logits[i]));
            if (!first) check_near("logit", kernels->name, (long)i, (double)logits[i], (double)expected[i], 1e-2);
        }
        if (first) memcpy(expected, logits, sizeof expected);
        first = false;
    }
}

/* --- many threads ----------------------------------------------------------------------------------------------- */

/* hwloc describes another machine when the environment says so. */
static void more_cores_than_ever(void **state) {
    (void)state;
    int32_t few[PROMPT + GENERATED], many[PROMPT + GENERATED];
    const char *model = KAKEYA_TEST_DATA "/golden/gemma4-tiny-moe";
    kakeya_engine *engine = open_engine(model, NULL, 1);
    generate(engine, few, NULL);
    kakeya_engine_close(engine);

    assert_int_equal(setenv("HWLOC_SYNTHETIC", "core:300 pu:1", 1), 0);
    engine = open_engine(model, NULL, 0);
    assert_non_null(strstr(kakeya_engine_backend(engine), "300 threads"));
    generate(engine, many, NULL);
    kakeya_engine_close(engine);
    unsetenv("HWLOC_SYNTHETIC");
    assert_memory_equal(few, many, sizeof few);

    engine = open_engine(model, NULL, 270); /* more than cores, and on purpose */
    generate(engine, many, NULL);
    kakeya_engine_close(engine);
    assert_memory_equal(few, many, sizeof few);
}

static void too_many_threads(void **state) {
    (void)state;
    kakeya_engine *engine = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = KAKEYA_TEST_DATA "/golden/gemma4-tiny-dense";
    options.backend = "cpu";
    options.threads = THREAD_POOL_MAX + 1;
    assert_refused(kakeya_engine_open(&options, &engine, &error), KAKEYA_INVALID_ARGUMENT, "1025", "1024");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wide_rows),
        cmocka_unit_test(wide_model),
        cmocka_unit_test(more_cores_than_ever),
        cmocka_unit_test(too_many_threads),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
