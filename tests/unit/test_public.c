/* The public header as a contract with programs that were compiled earlier or later than the library: structs that
 * grow, names of enums, the text side of a model without its weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fake_engine.h"
#include "kakeya_study.h"
#include "scratch.h"
#include "sweep.h"

/* ------------------------------------------------------------------------------------------- sized structs */

/* Memory whose last byte stands before a page that nobody may touch, with guard bytes in front. */
typedef struct guarded {
    unsigned char *pages, *data;
    size_t bytes, page;
} guarded;

enum { GUARD_BYTES = 64, GUARD = 0xA5 };

static guarded guarded_open(size_t bytes) {
    guarded g = {.bytes = bytes, .page = (size_t)sysconf(_SC_PAGESIZE)};
    assert_true(bytes + GUARD_BYTES <= g.page);
    g.pages = mmap(NULL, 2 * g.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.pages != MAP_FAILED);
    assert_int_equal(mprotect(g.pages + g.page, g.page, PROT_NONE), 0);
    g.data = g.pages + g.page - bytes;
    memset(g.data - GUARD_BYTES, GUARD, GUARD_BYTES + bytes);
    return g;
}

static void guarded_close(guarded *g) {
    for (size_t i = 1; i <= GUARD_BYTES; i++) assert_int_equal(g->data[-(ptrdiff_t)i], GUARD);
    munmap(g->pages, 2 * g->page);
}

/* A struct of an older caller ends in the middle of today's; the library neither writes nor reads behind its end. */
#define FOR_EVERY_OLDER(type, step)                                                                                    \
    for (size_t bytes = sizeof(size_t); bytes <= sizeof(type); bytes += sizeof(size_t)) {                              \
        guarded g = guarded_open(bytes);                                                                               \
        step;                                                                                                          \
        guarded_close(&g);                                                                                             \
    }

/* KAKEYA_INIT of a program that knows `size` bytes. */
static void init_sized(void *options, size_t size) {
    memset(options, 0, size);
    memcpy(options, &size, sizeof size);
}

static void open_older_engine(guarded *g) {
    kakeya_engine_options *options = (void *)g->data;
    kakeya_engine *engine = NULL;
    kakeya_error e = {0};
    init_sized(options, g->bytes);
    assert_int_equal(options->size, g->bytes);
    assert_int_equal(kakeya_engine_open(options, &engine, &e), KAKEYA_INVALID_ARGUMENT); /* no model is given */
    assert_non_null(strstr(e.message, "no model"));
}

static void test_older_engine_options(void **state) {
    (void)state;
    FOR_EVERY_OLDER(kakeya_engine_options, open_older_engine(&g));
}

static void open_older_session(kakeya_engine *engine, guarded *g) {
    kakeya_session_options *options = (void *)g->data;
    init_sized(options, g->bytes);
    kakeya_session *session = fake_session(engine, options);
    assert_int_equal(session->options.window, 64); /* a default that an old caller may not know of */
    assert_int_equal(session->options.draft_window, 1024);
    kakeya_session_close(session);
}

static void run_older(kakeya_session *session, guarded *g) {
    int32_t prompt[12];
    fake_prompt(prompt, 12, 1, FAKE_VOCAB);
    kakeya_generate_options *options = (void *)g->data;
    init_sized(options, g->bytes);
    if (g->bytes >= offsetof(kakeya_generate_options, max_tokens) + sizeof options->max_tokens) options->max_tokens = 5;
    kakeya_stats stats;
    KAKEYA_INIT(&stats);
    ok(kakeya_session_sync(session, prompt, 12, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, options, &stats, error));
    assert_true(stats.completion_tokens > 0);
}

static void score_older(kakeya_session *session, guarded *g) {
    int32_t tokens[12];
    fake_prompt(tokens, 12, 1, FAKE_VOCAB);
    kakeya_score_options *options = (void *)g->data;
    init_sized(options, g->bytes);
    ok(kakeya_session_score(session, tokens, 12, options, error));
}

static void test_older_session_and_generate_options(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL);
    FOR_EVERY_OLDER(kakeya_session_options, open_older_session(engine, &g));
    FOR_EVERY_OLDER(kakeya_generate_options, run_older(session, &g));
    FOR_EVERY_OLDER(kakeya_score_options, score_older(session, &g));
    close_all(session, engine, &script);
}

/* Zero is the default everywhere, and what a default is not has a value of its own. */
static void test_zeros(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    const int asked[][2] = {{0, KAKEYA_DEFAULT_SINK}, {KAKEYA_NO_SINK, 0}, {9, 9}};
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        so.sink = asked[i][0];
        so.window = asked[i][0] > 0 ? 9 : 0;
        kakeya_session *session = fake_session(engine, &so);
        assert_int_equal(session->cache_options.sink, asked[i][1]);
        assert_int_equal(session->cache_options.window, so.window ? so.window : KAKEYA_DEFAULT_WINDOW);
        assert_int_equal(session->cache_options.draft_window, KAKEYA_DEFAULT_DRAFT_WINDOW);
        kakeya_session_close(session);
    }
    /* what is off, with the value that says so and with zero; and the most likely token alone */
    int32_t prompt[12], answers[4][8];
    fake_prompt(prompt, 12, 1, FAKE_VOCAB);
    const kakeya_sampling off = {.temperature = 1, .seed = 7},
                          neutral = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 7},
                          likeliest = {.temperature = 1, .top_p = kakeya_options_top_p(0), .seed = 7},
                          greedy = {.temperature = 0};
    const kakeya_sampling sampling[4] = {off, neutral, likeliest, greedy};
    for (int i = 0; i < 4; i++) {
        kakeya_session *session = fake_session(engine, NULL);
        kakeya_generate_options go;
        KAKEYA_INIT(&go);
        go.max_tokens = 8;
        go.ignore_stop_tokens = true;
        go.sampling = sampling[i];
        ok(kakeya_session_sync(session, prompt, 12, NULL, NULL, NULL, error));
        ok(kakeya_session_generate(session, &go, NULL, error));
        size_t n;
        const int32_t *tokens = kakeya_session_tokens(session, &n);
        assert_int_equal(n, 20);
        memcpy(answers[i], tokens + 12, sizeof answers[i]);
        kakeya_session_close(session);
    }
    assert_memory_equal(answers[0], answers[1], sizeof answers[0]);
    assert_memory_equal(answers[2], answers[3], sizeof answers[2]);
    close_all(NULL, engine, &script);
}

static void fill_older_stats(kakeya_session *session, guarded *g) {
    int32_t prompt[12];
    fake_prompt(prompt, 12, 1, FAKE_VOCAB);
    kakeya_stats *stats = (void *)g->data;
    stats->size = g->bytes;
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = 5;
    options.ignore_stop_tokens = true;
    ok(kakeya_session_sync(session, prompt, 12, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, &options, stats, error));
    assert_int_equal(stats->size, g->bytes);
    if (g->bytes >= offsetof(kakeya_stats, completion_tokens) + sizeof(size_t))
        assert_int_equal(stats->completion_tokens, 5);
}

static void fill_older_kv(const kakeya_session *session, guarded *g) {
    kakeya_kv_bytes *kv = (void *)g->data;
    kv->size = g->bytes;
    kakeya_session_kv_bytes_sized(session, kv);
    assert_int_equal(kv->size, g->bytes);
    if (g->bytes >= offsetof(kakeya_kv_bytes, draft) + sizeof(size_t)) assert_int_equal(kv->draft, 4096);
}

static void test_older_results(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = fake_session(engine, NULL);
    FOR_EVERY_OLDER(kakeya_stats, fill_older_stats(session, &g));
    FOR_EVERY_OLDER(kakeya_kv_bytes, fill_older_kv(session, &g));
    close_all(session, engine, &script);
}

/* A newer program: zeros behind what this library knows are fine, anything else would be silently ignored and is
 * refused; results are zero there. */
static void test_newer_caller(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0});
    kakeya_session *session = NULL;
    kakeya_error e = {0};
    struct {
        kakeya_session_options known;
        int64_t later;
    } options;
    memset(&options, 0xff, sizeof options);
    init_sized(&options.known, sizeof options);
    assert_int_equal(options.later, 0);
    ok(kakeya_session_open(engine, &options.known, &session, error));
    kakeya_session *unwanted = NULL;
    options.later = 1;
    assert_int_equal(kakeya_session_open(engine, &options.known, &unwanted, &e), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(e.message, kakeya_version()));
    assert_null(unwanted);

    struct {
        kakeya_kv_bytes known;
        int64_t later;
    } kv;
    memset(&kv, 0xff, sizeof kv);
    kv.known.size = sizeof kv;
    kakeya_session_kv_bytes_sized(session, &kv.known);
    assert_int_equal(kv.later, 0);
    assert_int_equal(kv.known.total, kakeya_session_kv_bytes(session).total);
    close_all(session, engine, &script);
}

/* A forgotten _init is told, not obeyed. */
static void test_forgotten_init(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine = fake_engine(&script, (fake_engine_options){0}), *none = NULL;
    kakeya_session *session = fake_session(engine, NULL), *unwanted = NULL;
    static const size_t sizes[] = {0, 4, (size_t)1 << 20, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        kakeya_error e = {0};
        kakeya_engine_options engine_options = {.size = sizes[i]};
        kakeya_session_options session_options = {.size = sizes[i]};
        kakeya_generate_options generate_options = {.size = sizes[i]};
        kakeya_score_options score_options = {.size = sizes[i]};
        kakeya_stats stats = {.size = sizes[i]};
        assert_int_equal(kakeya_engine_open(&engine_options, &none, &e), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(e.message, "engine options"));
        assert_int_equal(kakeya_session_open(engine, &session_options, &unwanted, &e), KAKEYA_INVALID_ARGUMENT);
        assert_int_equal(kakeya_session_generate(session, &generate_options, NULL, &e), KAKEYA_INVALID_ARGUMENT);
        assert_int_equal(kakeya_session_score(session, NULL, 0, &score_options, &e), KAKEYA_INVALID_ARGUMENT);
        assert_int_equal(kakeya_session_generate(session, NULL, &stats, &e), KAKEYA_INVALID_ARGUMENT);
        assert_non_null(strstr(e.message, "stats"));
    }
    close_all(session, engine, &script);
}

/* Fields stay where version 0.2 put them; new ones come behind the last. */
static void test_layout(void **state) {
    (void)state;
    if (sizeof(void *) != 8) skip();
#define assert_place(type, field, place) assert_int_equal(offsetof(type, field), place)
    assert_place(kakeya_engine_options, model, 8);
    assert_place(kakeya_engine_options, precision, 40);
    assert_place(kakeya_engine_options, memory_limit_bytes, 48);
    assert_place(kakeya_engine_options, user, 64);
    assert_place(kakeya_engine_options, max_stall_ms, 76);
    assert_place(kakeya_engine_options, on_step, 80);
    assert_place(kakeya_engine_options, study, 160);
    assert_place(kakeya_study_options, cpu_isa, 16);
    assert_place(kakeya_request_options, tokens, 8);
    assert_place(kakeya_request_options, generate, 24);
    assert_place(kakeya_request_options, progress_user, 40);
    assert_place(kakeya_request_options, done_user, 56);
    assert_place(kakeya_session_options, context_tokens, 8);
    assert_place(kakeya_session_options, kv_format, 32);
    assert_place(kakeya_session_options, without_drafter, 40);
    assert_place(kakeya_generate_options, max_tokens, 8);
    assert_place(kakeya_generate_options, sampling, 24);
    assert_place(kakeya_generate_options, stop_strings, 56);
    assert_place(kakeya_generate_options, on_event, 80);
    assert_place(kakeya_generate_options, token_mask_user, 128);
    assert_place(kakeya_generate_options, grammar, 136);
    assert_place(kakeya_generate_options, presence_penalty, 144);
    assert_place(kakeya_generate_options, answer_start, 152);
    assert_place(kakeya_generate_options, prediction, 160);
    assert_place(kakeya_stats, prompt_tokens, 8);
    assert_place(kakeya_stats, drafted_at, 72);
    assert_place(kakeya_stats, finish, 600);
    assert_place(kakeya_stats, waits, 608);
    assert_place(kakeya_stats, prediction_drafted, 632);
    assert_place(kakeya_event, token, 12);
    assert_place(kakeya_event, finish, 40);
    assert_place(kakeya_event, n_top, 80);
    assert_place(kakeya_event, stats, 88);
    assert_place(kakeya_kv_bytes, each_token, 48);
    assert_place(kakeya_kv_bytes, shared, 56);
    assert_place(kakeya_score_options, file_hidden_states, 64);
    assert_place(kakeya_facts, f_theta_parameters, 120);
    assert_int_equal(sizeof(kakeya_sampling), 32);
    assert_int_equal(sizeof(kakeya_error), 1028);
#undef assert_place
}

/* --------------------------------------------------------------------------------------------------- names */

#define assert_names(function, type, last)                                                                             \
    do {                                                                                                               \
        for (int i = 0; i <= (int)(last); i++) {                                                                       \
            assert_non_null(function((type)i));                                                                        \
            for (int j = 0; j < i; j++) assert_string_not_equal(function((type)i), function((type)j));                 \
        }                                                                                                              \
        assert_null(function((type)((int)(last) + 1)));                                                                \
        assert_null(function((type)-1));                                                                               \
    } while (0)

static void test_names(void **state) {
    (void)state;
    assert_names(kakeya_status_name, kakeya_status, KAKEYA_BACKEND);
    assert_names(kakeya_precision_name, kakeya_precision, KAKEYA_PRECISION_FP8);
    assert_names(kakeya_kv_format_name, kakeya_kv_format, KAKEYA_KV_Q4);
    assert_names(kakeya_attention_name, kakeya_attention, KAKEYA_ATTENTION_RESTORED);
    assert_names(kakeya_restore_layers_name, kakeya_restore_layers, KAKEYA_RESTORE_ALL);
    assert_names(kakeya_mode_name, kakeya_mode, KAKEYA_MODE_NGRAM);
    assert_names(kakeya_finish_name, kakeya_finish, KAKEYA_FINISH_FAILED);
    assert_names(kakeya_event_name, kakeya_event_type, KAKEYA_EVENT_FINISH);
    assert_names(kakeya_memory_name, kakeya_memory_kind, KAKEYA_MEMORY_WORKSPACE);
    assert_names(kakeya_parameter_group_name, kakeya_parameter_group, KAKEYA_PARAMETERS_NORMS);
    assert_string_equal(kakeya_memory_name(KAKEYA_MEMORY_KV_LATENT), "kv.latent");
    assert_string_equal(kakeya_attention_name(KAKEYA_ATTENTION_SINK_WINDOW), "sink-window");
    assert_string_equal(kakeya_status_name(KAKEYA_CONTEXT_FULL), "context full");
}

/* -------------------------------------------------------------------------------------- tokenizer, notes, memory */

static void test_tokenizer_without_weights(void **state) {
    (void)state;
    kakeya_tokenizer *t = NULL;
    kakeya_error e = {0};
    assert_int_equal(kakeya_tokenizer_open(scratch_directory, &t, &e), KAKEYA_IO);
    assert_non_null(strstr(e.message, "tokenizer.json"));
    assert_null(t);
    assert_int_equal(symlink(KAKEYA_MODELS "/demo/tokenizer.json", scratch_path("tokenizer.json")), 0);
    ok(kakeya_tokenizer_open(scratch_directory, &t, error));
    assert_int_equal(kakeya_tokenizer_vocab_size(t), 8192);

    static const char text[] = "x = <eos> caf\xC3\xA9";
    int32_t *ids = NULL;
    size_t n = 0, plain = 0, bytes = 0;
    ok(kakeya_tokenize(t, text, strlen(text), KAKEYA_TEXT_LITERAL, &ids, &plain, error));
    for (size_t i = 0; i < plain; i++) assert_false(kakeya_tokenizer_is_special(t, ids[i]));
    kakeya_free(ids);
    /* a limit: exactly so many are taken, and what is longer says so without being read to its end */
    ok(kakeya_tokenize_at_most(t, text, strlen(text), KAKEYA_TEXT_LITERAL, plain, &ids, &n, error));
    assert_int_equal(n, plain);
    kakeya_free(ids);
    assert_int_equal(kakeya_tokenize_at_most(t, text, strlen(text), KAKEYA_TEXT_LITERAL, plain - 1, &ids, &n, &e),
                     KAKEYA_CONTEXT_FULL);
    assert_null(ids);
    assert_int_equal(n, plain);
    char *far = calloc(1, 1 << 20);
    assert_non_null(far);
    memset(far, 'x', (1 << 20) - 1);
    assert_int_equal(kakeya_tokenize_at_most(t, far, (1 << 20) - 1, 0, 100, &ids, &n, &e), KAKEYA_CONTEXT_FULL);
    assert_in_range(n, 101, 1 << 20);
    static const char chat[] = "[{\"role\":\"user\",\"content\":\"one two three four five six seven\"}]";
    kakeya_chat_options limited;
    KAKEYA_INIT(&limited);
    size_t whole = 0;
    ok(kakeya_chat_tokens(t, chat, strlen(chat), &limited, &ids, &whole, NULL, error));
    kakeya_free(ids);
    for (limited.most_tokens = 1; limited.most_tokens <= whole; limited.most_tokens++) {
        kakeya_status status = kakeya_chat_tokens(t, chat, strlen(chat), &limited, &ids, &n, NULL, &e);
        assert_int_equal(status, limited.most_tokens < whole ? KAKEYA_CONTEXT_FULL : KAKEYA_OK);
        if (status == KAKEYA_OK) assert_int_equal(n, whole);
        assert_in_range(n, limited.most_tokens + (status != KAKEYA_OK), whole);
        kakeya_free(ids);
    }
    free(far);
    ok(kakeya_tokenize(t, text, strlen(text), KAKEYA_TEXT_PROMPT, &ids, &n, error));
    int32_t eos = kakeya_tokenizer_find(t, "<eos>"), found = -1;
    assert_true(eos >= 0);
    assert_true(kakeya_tokenizer_is_special(t, ids[0]));
    for (size_t i = 0; i < n; i++) found = ids[i] == eos ? eos : found;
    assert_int_equal(found, eos);
    assert_string_equal(kakeya_tokenizer_piece(t, eos), "<eos>");
    assert_null(kakeya_tokenizer_piece(t, 8192));
    assert_null(kakeya_tokenizer_piece(t, -1));
    assert_int_equal(kakeya_tokenizer_find(t, "no such piece"), -1);
    char *back = NULL;
    ok(kakeya_detokenize(t, ids + 1, n - 1, true, &back, &bytes, error));
    assert_string_equal(back, text);
    kakeya_free(back);
    kakeya_free(ids);
    assert_int_equal(kakeya_tokenize(t, "a", 1, 8, &ids, &n, &e), KAKEYA_INVALID_ARGUMENT);
    assert_int_equal(kakeya_tokenize(NULL, "a", 1, 0, &ids, &n, &e), KAKEYA_UNSUPPORTED);

    /* turns of a model whose configuration is of another kind are not guessed */
    const kakeya_message message = {"user", "hello"};
    ok(kakeya_message_tokens(t, &message, 1, false, &ids, &n, error));
    kakeya_free(ids);
    kakeya_tokenizer_close(t);
    scratch_text("config.json", "{\"model_type\": \"llama\"}");
    ok(kakeya_tokenizer_open(scratch_directory, &t, error));
    assert_int_equal(kakeya_message_tokens(t, &message, 1, false, &ids, &n, &e), KAKEYA_UNSUPPORTED);
    assert_non_null(strstr(e.message, "llama"));
    kakeya_tokenizer_close(t);
}

static void test_notes_and_memory(void **state) {
    (void)state;
    fake_script script = fake_script_default();
    kakeya_engine *engine =
        fake_engine(&script, (fake_engine_options){.vocab = 8192, .tokenizer = KAKEYA_MODELS "/demo/tokenizer.json"});
    assert_null(kakeya_engine_note(engine, 0));
    assert_string_equal(kakeya_engine_chat_template(engine), "");
    strcpy(engine->verifier->note, "first");
    strcpy(engine->text.chat.note, "second");
    assert_string_equal(kakeya_engine_note(engine, 0), "first");
    assert_string_equal(kakeya_engine_note(engine, 1), "second");
    assert_null(kakeya_engine_note(engine, 2));
    strcpy(engine->verifier->note, "");
    assert_string_equal(kakeya_engine_note(engine, 0), "second");

    kakeya_session *a = fake_session(engine, NULL), *b = fake_session(engine, NULL);
    size_t kv = 0;
    ok(kakeya_session_sync(a, (const int32_t[]){1, 2, 3}, 3, NULL, NULL, NULL, error));
    for (int i = 0; kakeya_memory_name((kakeya_memory_kind)i); i++) {
        kakeya_memory_kind kind = (kakeya_memory_kind)i;
        assert_int_equal(kakeya_engine_memory(engine, kind),
                         kakeya_session_memory(a, kind) + kakeya_session_memory(b, kind));
        if (strncmp(kakeya_memory_name(kind), "kv.", 3) == 0) kv += kakeya_session_memory(a, kind);
    }
    assert_int_equal(kv, kakeya_session_kv_bytes(a).total);
    assert_true(kakeya_session_memory(a, KAKEYA_MEMORY_WORKSPACE) > 0);
    assert_int_equal(kakeya_session_memory(a, (kakeya_memory_kind)99), 0);
    kakeya_session_close(b);
    close_all(a, engine, &script);
}

/* ------------------------------------------------------------------------------------------- descriptions */

static kakeya_description *describe(const char *model, const char *synthetic) {
    kakeya_description *d = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = model;
    kakeya_study_options study;
    KAKEYA_INIT(&study);
    study.synthetic = synthetic;
    options.study = &study;
    ok(kakeya_describe(&options, &d, error));
    return d;
}

static void fill_older_facts(const kakeya_description *d, guarded *g) {
    kakeya_facts *facts = (void *)g->data;
    facts->size = g->bytes;
    kakeya_description_facts_sized(d, facts);
    assert_int_equal(facts->size, g->bytes);
    if (g->bytes >= offsetof(kakeya_facts, layers) + sizeof facts->layers) assert_int_equal(facts->layers, 12);
}

/* From configuration files alone: a directory without weights is enough. */
static void test_description_without_weights(void **state) {
    (void)state;
    const char *folder = scratch_folder("described");
    assert_int_equal(symlink(KAKEYA_MODELS "/demo/config.json", scratch_path("described/config.json")), 0);
    kakeya_description *bare = describe(folder, NULL), *demo = describe(KAKEYA_MODELS "/demo", NULL);
    kakeya_facts facts = kakeya_description_facts(demo), alone = kakeya_description_facts(bare);
    assert_string_equal(facts.variant, alone.variant);
    assert_int_equal(facts.layers, 12);
    assert_int_equal(facts.sliding_layers + facts.full_attention_layers, 12);
    assert_int_equal(facts.vocab, 8192);
    assert_int_equal(facts.experts, 16);
    assert_int_equal(facts.drafter_block_size, 8);
    assert_true(facts.f_theta_rank > 0 && facts.drafter_parameters > 0 && facts.f_theta_parameters > 0);
    assert_int_equal(alone.drafter_layers + alone.f_theta_rank, 0);
    assert_true(facts.parameters == alone.parameters && facts.active_parameters < facts.parameters);
    uint64_t sum = 0;
    for (int i = 0; kakeya_parameter_group_name((kakeya_parameter_group)i); i++)
        sum += kakeya_description_parameters(demo, (kakeya_parameter_group)i);
    assert_true(sum == facts.parameters);
    assert_int_equal(kakeya_description_parameters(demo, (kakeya_parameter_group)99), 0);
    assert_true(kakeya_description_bytes_per_token(demo, KAKEYA_PRECISION_F32) >
                kakeya_description_bytes_per_token(demo, KAKEYA_PRECISION_BF16));
    assert_int_equal(kakeya_description_bytes_per_token(demo, KAKEYA_PRECISION_AUTO), 0);
    FOR_EVERY_OLDER(kakeya_facts, fill_older_facts(demo, &g));
    kakeya_description_close(bare);
    kakeya_description_close(demo);
    kakeya_description *large = describe(NULL, "26b-a4b");
    assert_string_equal(kakeya_description_facts(large).variant, "26b-a4b");
    assert_true(kakeya_description_reference_bytes(large, KAKEYA_KV_BF16, 62000, false) >
                kakeya_description_reference_bytes(large, KAKEYA_KV_BF16, 62000, true));
    assert_int_equal(kakeya_description_reference_bytes(large, KAKEYA_KV_BF16, (size_t)1 << 40, true), 0);
    kakeya_description_close(large);

    kakeya_error e = {0};
    kakeya_description *none = NULL;
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    assert_int_equal(kakeya_describe(&options, &none, &e), KAKEYA_INVALID_ARGUMENT);
    options.model = scratch_folder("empty");
    assert_int_equal(kakeya_describe(&options, &none, &e), KAKEYA_IO);
    assert_non_null(strstr(e.message, "config.json"));
    options.model = NULL;
    kakeya_study_options study;
    KAKEYA_INIT(&study);
    study.synthetic = "17b";
    options.study = &study;
    assert_int_not_equal(kakeya_describe(&options, &none, &e), KAKEYA_OK);
    assert_null(none);
    kakeya_description_close(NULL);
}

/* What is foretold is what a session then holds. */
static void foretell(kakeya_engine *engine, kakeya_attention attention, kakeya_kv_format format, bool drafts) {
    enum { TOKENS = 300 };
    int32_t prompt[TOKENS];
    fake_prompt(prompt, TOKENS, 1, 8192);
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.attention = attention;
    so.kv_format = format;
    so.without_drafter = !drafts;
    kakeya_session *session = fake_session(engine, &so);
    kakeya_generate_options go;
    KAKEYA_INIT(&go);
    go.max_tokens = 2;
    go.ignore_stop_tokens = true;
    ok(kakeya_session_sync(session, prompt, TOKENS, NULL, NULL, NULL, error));
    ok(kakeya_session_generate(session, &go, NULL, error));
    kakeya_kv_bytes foretold, held = kakeya_session_kv_bytes(session);
    KAKEYA_INIT(&foretold);
    ok(kakeya_description_kv_bytes(kakeya_engine_description(engine), &so, TOKENS + 1, &foretold, error));
    assert_int_equal(held.full, foretold.full);
    assert_int_equal(held.sliding, foretold.sliding);
    assert_int_equal(held.latent, foretold.latent);
    assert_int_equal(held.draft, foretold.draft);
    assert_int_equal(held.total, foretold.total);
    assert_int_equal(held.each_token, foretold.each_token);
    kakeya_session_close(session);
}

static void test_foretold_memory(void **state) {
    (void)state;
    kakeya_engine_options eo;
    KAKEYA_INIT(&eo);
    eo.model = KAKEYA_MODELS "/demo";
    for (int format = KAKEYA_KV_F32; kakeya_kv_format_name((kakeya_kv_format)format); format++) {
        kakeya_engine *engine = NULL;
        ok(kakeya_engine_open(&eo, &engine, error));
        for (int attention = 0; kakeya_attention_name((kakeya_attention)attention); attention++)
            for (int drafts = 0; drafts < 2; drafts++)
                if (!sweep_short() || (format + attention + drafts) % 2)
                    foretell(engine, (kakeya_attention)attention, (kakeya_kv_format)format, drafts);
        kakeya_engine_close(engine);
    }
    kakeya_description *d = describe(NULL, "26b-a4b");
    kakeya_error e = {0};
    kakeya_kv_bytes kv;
    KAKEYA_INIT(&kv);
    assert_int_equal(kakeya_description_kv_bytes(d, NULL, (size_t)1 << 40, &kv, &e), KAKEYA_CONTEXT_FULL);
    kakeya_session_options so;
    KAKEYA_INIT(&so);
    so.window = -1;
    assert_int_equal(kakeya_description_kv_bytes(d, &so, 10, &kv, &e), KAKEYA_INVALID_ARGUMENT);
    so.window = 0;
    so.attention = KAKEYA_ATTENTION_RESTORED;
    assert_int_equal(kakeya_description_kv_bytes(d, &so, 10, &kv, &e), KAKEYA_INVALID_ARGUMENT);
    assert_non_null(strstr(e.message, "f_theta"));
    kv.size = 0;
    assert_int_equal(kakeya_description_kv_bytes(d, NULL, 10, &kv, &e), KAKEYA_INVALID_ARGUMENT);
    kakeya_description_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_older_engine_options),
        cmocka_unit_test(test_older_session_and_generate_options),
        cmocka_unit_test(test_zeros),
        cmocka_unit_test(test_older_results),
        cmocka_unit_test(test_newer_caller),
        cmocka_unit_test(test_forgotten_init),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_tokenizer_without_weights),
        cmocka_unit_test(test_notes_and_memory),
        cmocka_unit_test(test_description_without_weights),
        cmocka_unit_test(test_foretold_memory),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
