/* Protects: whichever allocation of the engine or of a session fails, the call says so in one line, nothing is lost or
 * leaked (the sanitizer build watches), and the same call, tried again, leads to the same tokens. The k-th allocation
 * fails for every k.
 * Whole runs only: test_allocations has the backend. */
#include "failing_allocations.h"

#include <limits.h>

#include "golden.h"
#include "grammar/matcher.h"
#include "model/tensors.h"
#include "packed.h"
#include "scratch.h"
#include "session/engine.h"
#include "session/session.h"
#include "sweep.h"
#include "text/detokenizer.h"
#include "unit/tokenizer_form.h"

#define GOLDEN KAKEYA_TEST_DATA "/golden/"

enum { PROMPT = 18, ANSWER = 5, MOST_TOKENS = 64, RANK = 8 };

/* ------------------------------------------------------------------------------------------ a family of models */

typedef struct writer {
    safetensors_entry entries[64];
    char names[64][SLOT_NAME_BYTES];
    size_t n;
} writer;

static kakeya_status list_slot(void *context, const tensor_slot *slot, kakeya_error *error) {
    (void)error;
    writer *w = context;
    assert_true(w->n < 64);
    memcpy(w->names[w->n], slot->name, sizeof slot->name);
    safetensors_entry *e = &w->entries[w->n];
    *e = (safetensors_entry){.name = w->names[w->n], .type = TENSOR_F32, .dims = slot->dims};
    memcpy(e->shape, slot->shape, sizeof slot->shape);
    w->n++;
    return KAKEYA_OK;
}

static char *tokenizer_text(void) {
    tokenizer_form form = default_form;
    form.added_tokens =
        "[{\"id\":256,\"content\":\"<s>\",\"special\":true},{\"id\":257,\"content\":\"<s>>\",\"special\":true},"
        "{\"id\":258,\"content\":\"ab!\"},{\"id\":268,\"content\":\"b c\",\"normalized\":true}]";
    return tokenizer_json(&form);
}

/* An f_theta of small random weights for the tiny dense model and its drafter. */
static void write_f_theta(void) {
    kakeya_error error;
    static writer w;
    static restoration_config c;
    mem_account account;
    language_model *verifier;
    mem_account_init(&account, NULL, 0);
    assert_ok(language_model_open(GOLDEN "gemma4-tiny-dense", &account, &verifier, &error));
    c = (restoration_config){.drafter_layers = 3, .drafter_kv_heads = 2, .drafter_head_dim = 32};
    c.rank = c.rank_k = c.rank_v = RANK;
    c.layers = verifier->config.layers;
    char heads[256] = "", dims[256] = "", json[1024];
    for (int i = 0; i < c.layers; i++) {
        c.kv_heads[i] = verifier->config.layer[i].kv_heads;
        c.head_dim[i] = verifier->config.layer[i].head_dim;
        snprintf(heads + strlen(heads), sizeof heads - strlen(heads), "%s%d", i ? ", " : "", c.kv_heads[i]);
        snprintf(dims + strlen(dims), sizeof dims - strlen(dims), "%s%d", i ? ", " : "", c.head_dim[i]);
    }
    language_model_close(verifier);
    snprintf(
        json, sizeof json,
        "{\"drafter_num_layers\": 3, \"drafter_num_kv_heads\": 2, \"drafter_head_dim\": 32, \"rank\": %d, "
        "\"verifier_num_layers\": %d, \"verifier_num_kv_heads\": 2, \"verifier_head_dim\": 16, "
        "\"verifier_layer_kv_heads\": [%s], \"verifier_layer_head_dims\": [%s], \"input\": \"drafter_context_kv\"}",
        RANK, c.layers, heads, dims);
    w.n = 0;
    assert_ok(restoration_walk(&c, list_slot, &w, &error));
    scratch_folder("family-f-theta");
    scratch_text("family-f-theta/f_theta_config.json", json);
    safetensors_writer *file;
    assert_ok(safetensors_writer_open(scratch_path("family-f-theta/model.safetensors"), w.entries, w.n, &file, &error));
    uint32_t random = 5;
    for (size_t i = 0; i < w.n; i++) {
        int64_t values = w.entries[i].shape[0] * w.entries[i].shape[1];
        for (int64_t k = 0; k < values; k++) {
            random = random * 1664525u + 1013904223u;
            float value = (float)(int32_t)random * 0x1p-34f;
            assert_ok(safetensors_writer_write(file, &value, sizeof value, &error));
        }
    }
    assert_ok(safetensors_writer_commit(file, &error));
}

static void link_file(const char *target, const char *name) {
    assert_int_equal(symlink(target, scratch_path(name)), 0);
}

/* A model with a tokenizer and the siblings that it finds by itself. */
static void write_family(void) {
    scratch_folder("family");
    link_file(GOLDEN "gemma4-tiny-dense/config.json", "family/config.json");
    link_file(GOLDEN "gemma4-tiny-dense/model.safetensors", "family/model.safetensors");
    char *json = tokenizer_text();
    scratch_text("family/tokenizer.json", json);
    free(json);
    scratch_text("family/generation_config.json", "{\"eos_token_id\": [1, 7]}");
    scratch_text("family/chat_template.jinja", "{{ messages }}");
    link_file(GOLDEN "dflash-tiny", "family-dflash");
    write_f_theta();
}

/* ------------------------------------------------------------------------------------------------- one sweep */

typedef struct subject {
    const char *name;
    const char *model;     /* NULL: the family */
    const char *assistant; /* that drafts for the model; NULL: it has no drafter */
    kakeya_attention attention;
    kakeya_restore_layers layers;
    int threads;
    const char *dflash; /* that drafts beside the assistant, or NULL */
} subject;

static const subject subjects[] = {
    {"moe", GOLDEN "gemma4-tiny-moe", NULL, KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, 2, NULL},
    {"ple", GOLDEN "gemma4-tiny-ple", NULL, KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 1, NULL},
    {"assisted", GOLDEN "gemma4-tiny-ple", GOLDEN "mtp/ple", KAKEYA_ATTENTION_SINK_WINDOW, KAKEYA_RESTORE_SLIDING, 2,
     NULL},
    {"both drafters", GOLDEN "gemma4-tiny-dense", GOLDEN "mtp/dense", KAKEYA_ATTENTION_SINK_WINDOW,
     KAKEYA_RESTORE_SLIDING, 1, GOLDEN "dflash-tiny"},
    {"drafted", NULL, NULL, KAKEYA_ATTENTION_NATIVE, KAKEYA_RESTORE_SLIDING, 1, NULL},
    {"restored", NULL, NULL, KAKEYA_ATTENTION_RESTORED, KAKEYA_RESTORE_ALL, 2, NULL},
};
enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

/* A run through the life of an engine. With k > 0 the k-th allocation fails; the call that it makes fail is tried
 * again. */
typedef struct run {
    const subject *subject;
    bool rest; /* all that follow the k-th fail, too, until the call has returned */
    long k;
    bool failed; /* a call has */
    kakeya_engine *engine;
    kakeya_session *session, *copy;
    void *snapshot;
    size_t snapshot_bytes;
    int32_t prompt[MOST_TOKENS];
    size_t n_prompt;
    size_t wanted; /* tokens of the timeline behind an answer */
    kakeya_session *answering;
} run;

typedef kakeya_status (*call)(run *r, kakeya_error *error);

/* Calls; after a failure that was made, calls again. */
static void attempt(run *r, const char *what, call function) {
    kakeya_error error = {0};
    kakeya_status status = function(r, &error);
    if (status == KAKEYA_OK) return;
    const char *name = r->subject->name;
    long calls = failing_allocations_made();
    failing_allocations_end();
    if (r->k == 0 || calls < r->k || r->failed)
        fail_msg("%s: %s fails with allocation %ld of %ld: %s", name, what, r->k, calls, error.message);
    r->failed = true;
    if (status != KAKEYA_OUT_OF_MEMORY || error.status != status)
        fail_msg("%s: %s without allocation %ld: status %s (%s)", name, what, r->k, kakeya_status_name(status),
                 error.message);
    if (!error.message[0] || strchr(error.message, '\n'))
        fail_msg("%s: %s without allocation %ld says \"%s\"", name, what, r->k, error.message);
    status = function(r, &error);
    if (status != KAKEYA_OK)
        fail_msg("%s: %s, tried again after allocation %ld had failed: %s", name, what, r->k, error.message);
}

static kakeya_status open_engine(run *r, kakeya_error *error) {
    kakeya_engine_options options;
    KAKEYA_INIT(&options);
    options.model = r->subject->model ? r->subject->model : scratch_path("family");
    if (r->subject->assistant) options.drafter = unpacked_folder(r->subject->assistant);
    if (r->subject->dflash) options.second_drafter = unpacked_folder(r->subject->dflash);
    options.threads = r->subject->threads;
    kakeya_status status = kakeya_engine_open(&options, &r->engine, error);
    assert_true((status == KAKEYA_OK) == (r->engine != NULL));
    if (status == KAKEYA_OK && kakeya_engine_has_drafter(r->engine) != (r->subject->assistant || !r->subject->model))
        fail_msg("%s: without allocation %ld the engine is opened without its drafter", r->subject->name, r->k);
    if (status == KAKEYA_OK && !r->subject->model &&
        !(kakeya_engine_has_tokenizer(r->engine) && kakeya_engine_has_drafter(r->engine) &&
          kakeya_engine_has_f_theta(r->engine)))
        fail_msg("%s: without allocation %ld the engine is opened without one of its parts", r->subject->name, r->k);
    return status;
}

static kakeya_status open_session_of(run *r, kakeya_session **out, kakeya_error *error) {
    kakeya_session_options options;
    KAKEYA_INIT(&options);
    options.context_tokens = MOST_TOKENS;
    options.attention = r->subject->attention;
    options.restore_layers = r->subject->layers;
    options.sink = 2;
    options.window = 8;
    options.draft_window = 32;
    return kakeya_session_open(r->engine, &options, out, error);
}

static kakeya_status open_session(run *r, kakeya_error *error) { return open_session_of(r, &r->session, error); }
static kakeya_status open_copy(run *r, kakeya_error *error) { return open_session_of(r, &r->copy, error); }

static kakeya_status sync_prompt(run *r, kakeya_error *error) {
    return kakeya_session_sync(r->session, r->prompt, r->n_prompt, NULL, NULL, NULL, error);
}

/* Goes on to the wanted length, from wherever a failure has left the timeline. */
static kakeya_status answer(run *r, kakeya_error *error) {
    size_t n;
    kakeya_session_tokens(r->answering, &n);
    assert_true(n <= r->wanted);
    if (n == r->wanted) return KAKEYA_OK;
    kakeya_generate_options options;
    KAKEYA_INIT(&options);
    options.max_tokens = (int)(r->wanted - n);
    options.mode = r->subject->model && !r->subject->assistant ? KAKEYA_MODE_NGRAM : KAKEYA_MODE_SPECULATIVE;
    options.ignore_stop_tokens = true;
    options.sampling = (kakeya_sampling){.temperature = 0.7f, .top_p = 1, .repetition_penalty = 1.1f, .seed = 3};
    return kakeya_session_generate(r->answering, &options, NULL, error);
}

static kakeya_status take_snapshot(run *r, kakeya_error *error) {
    return session_to_memory(r->session, &r->snapshot, &r->snapshot_bytes, error);
}

static kakeya_status restore(run *r, kakeya_error *error) {
    return session_from_memory(r->copy, r->snapshot, r->snapshot_bytes, error);
}

static kakeya_status save_file(run *r, kakeya_error *error) {
    return kakeya_session_save_file(r->session, scratch_path("saved"), error);
}

static kakeya_status load_file(run *r, kakeya_error *error) {
    return kakeya_session_load_file(r->copy, scratch_path("saved"), error);
}

static kakeya_status fork_session(run *r, kakeya_error *error) {
    return kakeya_session_fork(r->session, &r->copy, error);
}

/* Adds the timeline to `tokens`. */
static void collect(kakeya_session *session, int32_t *tokens, size_t *n) {
    size_t more;
    const int32_t *held = kakeya_session_tokens(session, &more);
    assert_true(*n + more <= 8 * MOST_TOKENS);
    memcpy(tokens + *n, held, more * sizeof *tokens);
    *n += more;
}

static void answer_of(run *r, kakeya_session *session, size_t more, const char *what, int32_t *tokens, size_t *n) {
    size_t length;
    kakeya_session_tokens(session, &length);
    r->answering = session;
    r->wanted = length + more;
    attempt(r, what, answer);
    collect(session, tokens, n);
}

/* What follows the first answer. */
static void live_on(run *r, int32_t *tokens, size_t *n) {
    attempt(r, "a snapshot", take_snapshot);
    attempt(r, "opening a second session", open_copy);
    attempt(r, "restoring", restore);
    answer_of(r, r->copy, ANSWER, "an answer after restoring", tokens, n);
    kakeya_session_close(r->copy);
    r->copy = NULL;
    attempt(r, "saving to a file", save_file);
    attempt(r, "opening a third session", open_copy);
    attempt(r, "loading from a file", load_file);
    answer_of(r, r->copy, 2, "an answer after loading", tokens, n);
    kakeya_session_close(r->copy);
    r->copy = NULL;
    attempt(r, "a fork", fork_session);
    answer_of(r, r->copy, ANSWER, "an answer after forking", tokens, n);
    kakeya_session_close(r->copy);
    r->copy = NULL;
    r->prompt[PROMPT / 2]++; /* another text after a common beginning */
    r->n_prompt = PROMPT + 3;
    attempt(r, "another prompt", sync_prompt);
    answer_of(r, r->session, ANSWER, "an answer to another prompt", tokens, n);
    r->prompt[PROMPT / 2]--;
}

/* The whole life of a session of an open engine, or its first answer; its timelines go to `tokens`. */
static void live(run *r, bool whole, int32_t *tokens, size_t *n) {
    attempt(r, "opening a session", open_session);
    r->n_prompt = PROMPT;
    attempt(r, "a prompt", sync_prompt);
    answer_of(r, r->session, ANSWER, "an answer", tokens, n);
    if (whole) live_on(r, tokens, n);
    kakeya_session_close(r->session);
    r->session = NULL;
    kakeya_free(r->snapshot);
    r->snapshot = NULL;
    for (mem_tag tag = MEM_KV_FULL; tag <= MEM_KV_DRAFT; tag++) /* workspace and tables stay with the engine */
        assert_int_equal(mem_bytes(&r->engine->account, tag), 0);
}

static void compare(const run *r, const char *where, const int32_t *tokens, size_t n, const int32_t *expected) {
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] != expected[i])
            fail_msg("%s: after allocation %ld of %s had failed, token %zu is %d, expected %d", r->subject->name, r->k,
                     where, i, (int)tokens[i], (int)expected[i]);
    }
}

static void next(run *r, long step) {
    do r->k += step;
    while (!allocation_sites_worth(r->k));
    r->failed = false;
}

static void sweep(const subject *s, bool rest) {
    static int32_t expected[8 * MOST_TOKENS], tokens[8 * MOST_TOKENS];
    run r = {.subject = s, .rest = rest};
    for (int i = 0; i < MOST_TOKENS; i++) r.prompt[i] = (i * 37 + 11) % 300;
    size_t n_expected = 0;
    if (s->assistant) (void)unpacked_folder(s->assistant); /* found again without memory from here on */
    if (s->dflash) (void)unpacked_folder(s->dflash);
    allocation_sites_begin();
    attempt(&r, "opening the engine", open_engine);
    allocation_sites_end();
    live(&r, true, expected, &n_expected);
    kakeya_engine_close(r.engine);

    const long step = sweep_short() ? 23 : 1;
    long failures = 0;
    for (long calls = LONG_MAX; r.k < calls;) {
        size_t n = 0;
        next(&r, step);
        failing_allocations_arm(r.k, r.rest);
        attempt(&r, "opening the engine", open_engine);
        calls = failing_allocations_made();
        failing_allocations_end();
        live(&r, false, tokens, &n);
        compare(&r, "the engine", tokens, n, expected);
        kakeya_engine_close(r.engine);
        failures += r.failed;
    }
    r.k = 0;
    attempt(&r, "opening the engine", open_engine);
    size_t again = 0;
    allocation_sites_begin();
    live(&r, true, tokens, &again);
    allocation_sites_end();
    for (long calls = LONG_MAX; r.k < calls;) {
        size_t n = 0;
        next(&r, step);
        failing_allocations_arm(r.k, r.rest);
        live(&r, true, tokens, &n);
        calls = failing_allocations_made();
        failing_allocations_end();
        assert_int_equal(n, n_expected);
        compare(&r, "a session", tokens, n, expected);
        failures += r.failed;
    }
    kakeya_engine_close(r.engine);
    if (sweep_whole()) assert_true(failures > 200);
    assert_true(failures * step > 60);
    print_message("%s: %ld failures\n", s->name, failures);
}

static void test_every_allocation(void **state) {
    (void)state;
    write_family();
    for (int i = 0; i < SUBJECTS; i++) sweep(&subjects[i], false);
    sweep(&subjects[SUBJECTS - 1], true);
}

/* Text: a tokenizer of every section, encoding, decoding. */
static kakeya_status use_tokenizer(const char *json, int32_t *found, size_t *n_found, kakeya_error *error) {
    static const char text[] = "ab abc<s>\n b c\xC3\xA9!";
    tokenizer *t = NULL;
    int32_t *ids = NULL;
    char *decoded = NULL;
    size_t n = 0, bytes = 0;
    kakeya_status status = tokenizer_open_memory("made.json", json, strlen(json), &t, error);
    tokenizer_encode_options how = {.add_special = true, .parse_special = true};
    if (!status) status = tokenizer_encode(t, text, sizeof text - 1, how, &ids, &n, error);
    if (!status) status = detokenize(t, ids, n, true, &decoded, &bytes, error);
    if (!status && *n_found) {
        assert_int_equal(n, *n_found);
        assert_memory_equal(ids, found, n * sizeof *ids);
    } else if (!status) {
        *n_found = n;
        memcpy(found, ids, n * sizeof *ids);
    }
    free(decoded);
    free(ids);
    tokenizer_close(t);
    return status;
}

static void test_tokenizer(void **state) {
    (void)state;
    char *json = tokenizer_text();
    int32_t ids[64];
    size_t n = 0;
    kakeya_error error = {0};
    assert_ok(use_tokenizer(json, ids, &n, &error));
    int failures = 0;
    for (long k = 1, calls = LONG_MAX; k <= calls; k++) {
        failing_allocations_arm(k, false);
        kakeya_status status = use_tokenizer(json, ids, &n, &error);
        long made = failing_allocations_made();
        failing_allocations_end();
        if (made < k) calls = made;
        if (status != (made < k ? KAKEYA_OK : KAKEYA_OUT_OF_MEMORY))
            fail_msg("without allocation %ld: status %s (%s)", k, kakeya_status_name(status), error.message);
        failures += status != KAKEYA_OK;
    }
    assert_true(failures > 20);
    free(json);
}

/* Grammars: a vocabulary's table, compilers of every kind, following an answer. */
static kakeya_status use_grammar(const tokenizer *t, kakeya_grammar_kind kind, const char *text, const char *tools,
                                 kakeya_error *error) {
    token_table *table = NULL;
    kakeya_grammar *g = NULL;
    matcher *m = NULL;
    mem_account account;
    matcher_space space = {.account = &account};
    const kakeya_grammar_options o = {.size = sizeof o,
                                      .kind = kind,
                                      .text = text,
                                      .text_bytes = text ? strlen(text) : 0,
                                      .calls = tools ? KAKEYA_CALLS_REQUIRED : KAKEYA_CALLS_FREE,
                                      .tools = tools,
                                      .tools_bytes = tools ? strlen(tools) : 0,
                                      .thinking_tokens = 0};
    mem_account_init(&account, NULL, 0);
    kakeya_status status = token_table_create(t, &table, error);
    if (!status) status = grammar_compile(table, &o, &g, error);
    if (!status) status = matcher_space_reserve(&space, g, error);
    if (!status) status = matcher_create(g, NULL, 0, NULL, 0, &account, &m, error);
    matcher_destroy(m);
    matcher_space_free(&space);
    grammar_free(g);
    token_table_destroy(table);
    return status;
}

static void test_grammars(void **state) {
    (void)state;
    static const char schema[] =
        "{\"allOf\":[{\"$ref\":\"#/$defs/d\"},{\"properties\":{\"k\":{\"enum\":[1,\"x\",[null]]}},"
        "\"required\":[\"k\"]}],"
        "\"$defs\":{\"d\":{\"properties\":{\"p\":{\"pattern\":\"^a+$\",\"maxLength\":3},"
        "\"l\":{\"pattern\":\"(?!b(?<=a))\\\\b(?=\\\\p{Zl}|a$)\"},"
        "\"w\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":[\"object\",\"string\"],"
        "\"required\":[\"k\"],\"properties\":{\"k\":{\"type\":\"integer\"}}}},\"n\":{\"type\":\"number\","
        "\"minimum\":1,\"maximum\":2},\"u\":{\"anyOf\":[{\"$ref\":\"#\"},true]},\"i\":{\"prefixItems\":[{}]}}}}}";
    static const char more[] =
        "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"a\"},\"s\":{\"type\":\"array\","
        "\"uniqueItems\":true,\"items\":{\"type\":[\"string\",\"integer\"]}}},\"required\":[\"t\"],"
        "\"patternProperties\":{\"^x\":{\"format\":\"date\"}}},"
        "{\"type\":\"object\",\"properties\":{\"t\":{\"const\":\"b\"},\"c\":{\"type\":\"array\","
        "\"contains\":{\"const\":1},\"maxItems\":2},\"e\":{},\"f\":{},\"g\":{},\"h\":{},\"i\":{},"
        "\"j\":{},\"k\":{},\"l\":{},\"m\":{},\"n\":{},\"o\":{},\"p\":{},\"q\":{},\"r\":{},\"u\":{},\"v\":{}},"
        "\"required\":[\"t\",\"v\"],\"propertyNames\":{\"enum\":[\"t\",\"c\",\"v\"]}}]}";
    static const char rules[] = "start: start \"+\" item | item | call\nitem: /[a\u00e9]+/ | \"(\" start \")\"\n"
                                "call: (start | \"q\") \"!\"\n%ignore \" \"";
    static const kakeya_grammar_kind kinds[] = {KAKEYA_GRAMMAR_JSON_SCHEMA, KAKEYA_GRAMMAR_CHOICE, KAKEYA_GRAMMAR_TEXT,
                                                KAKEYA_GRAMMAR_JSON_SCHEMA, KAKEYA_GRAMMAR_RULES};
    static const char *const texts[] = {schema, "[\"a\",\"b\"]", NULL, more, rules};
    static const char form[] = "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"a b\":{\"format\":\"date\"}}}}]";
    tokenizer *t;
    tokenizer_form with_controls = default_form;
    with_controls.added_tokens = "[{\"id\":256,\"content\":\"<|tool_call>\",\"special\":true},"
                                 "{\"id\":257,\"content\":\"<tool_call|>\",\"special\":true},"
                                 "{\"id\":258,\"content\":\"<|\\\"|>\",\"special\":true}]";
    kakeya_error error = {0};
    assert_ok(open_form(&with_controls, &t, &error));
    int failures = 0;
    for (int i = 0; i < 5; i++) {
        for (long k = 1, calls = LONG_MAX; k <= calls; k++) {
            failing_allocations_arm(k, false);
            kakeya_status status = use_grammar(t, kinds[i], texts[i], i == 2 ? form : NULL, &error);
            long made = failing_allocations_made();
            failing_allocations_end();
            if (made < k) calls = made;
            if (status != (made < k ? KAKEYA_OK : KAKEYA_OUT_OF_MEMORY))
                fail_msg("grammar %d without allocation %ld: status %s (%s)", i, k, kakeya_status_name(status),
                         error.message);
            failures += status != KAKEYA_OK;
        }
    }
    assert_true(failures > 100);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_grammars),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
